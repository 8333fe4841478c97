/* kernels/drop.h owns which elements dropout leaves: random numbers by Philox4x32-10 (Salmon et al. 2011, doi
 * 10.1145/2063384.2063405), four of them a counter; lanes are counters. */

ATTN_INLINE_ void ATTN_FN_(philox)(ATTN_VU_ *x, const uint32_t (*key)[2], const int from) {
  for (int r = from; r < 10; r++) {
    ATTN_VU_ up0, low0, up2, low2;
    ATTN_U_TIMES_(up0, low0, x[0], 0xD2511F53u);
    ATTN_U_TIMES_(up2, low2, x[2], 0xCD9E8D57u);
    x[0] = ATTN_U_XOR_(up2, x[1], ATTN_U_SET1_(key[r][0])), x[1] = low2;
    x[2] = ATTN_U_XOR_(up0, x[3], ATTN_U_SET1_(key[r][1])), x[3] = low0;
  }
}

/* A counter is {key / 4, row, head, batch}. Of its first two rounds a part is that of all keys and in a->word.., the rest
 * that of all lanes and made here. */
ATTN_FUNC_ void ATTN_FN_(drop_bits)(uint64_t *kept, int64_t j0, int64_t n, int g0, int g1,
                                    const attn_drop_lanes_ *a) {
  for (int64_t c = j0 / 4; 4 * c < j0 + n; c++) {
    const uint64_t first = (uint64_t)(uint32_t)c * 0xD2511F53u;
    const uint32_t mixed = (uint32_t)(first >> 32) ^ a->batch ^ a->by.key[0][1];
    const uint64_t second = (uint64_t)mixed * 0xCD9E8D57u;
    const ATTN_VU_ word0 = ATTN_U_SET1_((uint32_t)(second >> 32) ^ a->by.key[1][0]);
    const ATTN_VU_ word1 = ATTN_U_SET1_((uint32_t)second), word2 = ATTN_U_SET1_((uint32_t)first);
    const ATTN_VU_ zero = ATTN_U_SET1_(0);
    uint64_t stay[4] = {0, 0, 0, 0};
    for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
      ATTN_VU_ x[4];
      x[0] = ATTN_U_XOR_(ATTN_U_LOAD_(a->word0 + lane), word0, zero), x[1] = word1;
      x[2] = ATTN_U_XOR_(ATTN_U_LOAD_(a->word2 + lane), word2, zero);
      x[3] = ATTN_U_LOAD_(a->word3 + lane);
      ATTN_FN_(philox)(x, a->by.key, 2);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++)
        stay[i] |= ATTN_V_CHOSEN_(ATTN_U_LEAST_(x[i], a->by.least)) << lane;
    }
    for (int i = 0; i < 4; i++) {
      const int64_t j = 4 * c + i - j0;
      if (j >= 0 && j < n) kept[j] |= stay[i];
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(drop_block)(float *s, const uint64_t *kept, int64_t n, int g0, int g1,
                                     float by) {
  const ATTN_VF_ most = ATTN_V_SET1_(by), zero = ATTN_V_ZERO_();
  for (int64_t j = 0; j < n; j++, s += ATTN_TILE_)
    for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_)
      ATTN_V_STORE_(s + lane,
                    ATTN_V_MUL_(ATTN_V_LOAD_(s + lane),
                                ATTN_V_SELECT_(ATTN_V_BITS_(kept[j] >> lane), most, zero)));
}

ATTN_FUNC_ void ATTN_FN_(drop_list)(float *x, const int32_t *key, int64_t n, const uint32_t at[3],
                                    const attn_drop_key_ *a) {
  for (int64_t e = 0; e < n; e += ATTN_W_) {
    const int some = ATTN_FN_(lanes_left)(n, e);
    uint32_t four[ATTN_W_] = {0};
    uint64_t stay[4];
    ATTN_VU_ w[4];
    for (int i = 0; i < some; i++) four[i] = (uint32_t)key[e + i] / 4;
    w[0] = ATTN_U_LOAD_(four);
    for (int i = 0; i < 3; i++) w[i + 1] = ATTN_U_SET1_(at[i]);
    ATTN_FN_(philox)(w, a->key, 0);
    for (int i = 0; i < 4; i++) stay[i] = ATTN_V_CHOSEN_(ATTN_U_LEAST_(w[i], a->least));
    for (int i = 0; i < some; i++) x[e + i] *= stay[key[e + i] & 3] >> i & 1 ? a->by : 0.0f;
  }
}

ATTN_FUNC_ void ATTN_FN_(drop_row)(float *x, int64_t c0, int64_t n, const uint32_t at[3],
                                   const attn_drop_key_ *a) {
  const ATTN_VF_ most = ATTN_V_SET1_(a->by), zero = ATTN_V_ZERO_();
  uint32_t four[ATTN_W_];
  for (int i = 0; i < ATTN_W_; i++) four[i] = (uint32_t)(c0 / 4 + i);
  for (int64_t c = 0; c < n; c += 4 * ATTN_W_) {
    ATTN_VU_ w[4];
    ATTN_VF_ y[4], even[2], odd[2];
    w[0] = ATTN_U_LOAD_(four);
    for (int i = 0; i < 3; i++) w[i + 1] = ATTN_U_SET1_(at[i]);
    for (int i = 0; i < ATTN_W_; i++) four[i] += ATTN_W_;
    ATTN_FN_(philox)(w, a->key, 0);
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) y[i] = ATTN_V_SELECT_(ATTN_U_LEAST_(w[i], a->least), most, zero);
    ATTN_V_ZIP_(even, y[0], y[2]);
    ATTN_V_ZIP_(odd, y[1], y[3]);
    ATTN_V_ZIP_(y, even[0], odd[0]);
    ATTN_V_ZIP_(y + 2, even[1], odd[1]);
    for (int i = 0; i < 4 && c + i * ATTN_W_ < n; i++) {
      float *to = x + c + i * ATTN_W_;
      const int64_t left = n - c - i * ATTN_W_;
      const int some = left < ATTN_W_ ? (int)left : ATTN_W_;
      if (some == ATTN_W_)
        ATTN_V_STORE_(to, ATTN_FN_(quiet)(ATTN_V_MUL_(ATTN_V_LOAD_(to), y[i])));
      else
        ATTN_V_STORE_PART_(to, ATTN_FN_(quiet)(ATTN_V_MUL_(ATTN_V_LOAD_PART_(to, some), y[i])),
                           some);
    }
  }
}
