/* kernels/topk.h owns what selection needs of vectors: which scores reach a row's floor, and sums of
 * squared differences. */

ATTN_FUNC_ void ATTN_FN_(above)(uint64_t *lanes, const float *s, const float *key, int64_t n,
                                int g0, int g1, const float *floor) {
  for (int64_t j = 0; j < n; j++, s += ATTN_TILE_) {
    const ATTN_VF_ add = ATTN_V_SET1_(key ? key[j] : 0.0f);
    uint64_t below = 0;
    for (int g = g0; g < g1; g++) {
      ATTN_UNROLL_
      for (int i = g * ATTN_GROUP_; i < (g + 1) * ATTN_GROUP_; i += ATTN_W_) {
        const ATTN_VF_ x = ATTN_V_ADD_(ATTN_V_LOAD_(s + i), add);
        below |= ATTN_V_CHOSEN_(ATTN_V_LT_(x, ATTN_V_LOAD_(floor + i))) << i;
      }
    }
    const uint64_t end = g1 == ATTN_TILE_ / ATTN_GROUP_ ? 0 : (uint64_t)1 << (g1 * ATTN_GROUP_);
    lanes[j] = ~below & (end - ((uint64_t)1 << (g0 * ATTN_GROUP_)));
  }
}

/* Running sums of one row: elements c, c + 16, .. go to sum c mod 16; they are joined down to one
 * vector, sums 8 apart, then 4. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(square_row)(const int apart, const float *q, const float *row,
                                           int64_t dim) {
  ATTN_VF_ a[ATTN_FN_(parts)];
  int64_t c = 0;
  ATTN_UNROLL_
  for (int i = 0; i < ATTN_FN_(parts); i++) a[i] = ATTN_V_ZERO_();
  for (; c + 16 <= dim; c += 16) {
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_FN_(parts); i++) {
      ATTN_VF_ x = ATTN_V_LOAD_(row + c + i * ATTN_W_);
      if (apart) x = ATTN_V_SUB_(ATTN_V_LOAD_(q + c + i * ATTN_W_), x);
      a[i] = ATTN_V_FMA_(x, x, a[i]);
    }
  }
  if (c < dim) {
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_FN_(parts); i++) {
      const int64_t at = c + i * ATTN_W_;
      if (at >= dim) continue;
      const int w = ATTN_FN_(lanes_left)(dim, at);
      ATTN_VF_ x = ATTN_FN_(load)(row, at, w, ATTN_F32);
      if (apart) x = ATTN_V_SUB_(ATTN_FN_(load)(q, at, w, ATTN_F32), x);
      a[i] = ATTN_V_FMA_(x, x, a[i]);
    }
  }
#if ATTN_W_ == 4
  a[0] = ATTN_V_ADD_(a[0], a[2]), a[1] = ATTN_V_ADD_(a[1], a[3]);
  a[0] = ATTN_V_ADD_(a[0], a[1]);
#elif ATTN_W_ == 8
  a[0] = ATTN_V_ADD_(a[0], a[1]);
#endif
  return a[0];
}

ATTN_INLINE_ void ATTN_FN_(squares_kind)(const int apart, float *out, const float *q,
                                         const float *k, int64_t stride, const int32_t *index,
                                         int64_t n, int64_t dim) {
  int64_t e = 0;
  for (; e + ATTN_W_ <= n; e += ATTN_W_) {
    ATTN_VF_ a[ATTN_W_];
    for (int i = 0; i < ATTN_W_; i++)
      a[i] = ATTN_FN_(square_row)(apart, q, k + (index ? index[e + i] : e + i) * stride, dim);
    ATTN_V_TRANSPOSE_(a);
    ATTN_UNROLL_
    for (int h = ATTN_W_ / 2; h > 0; h /= 2) {
      ATTN_UNROLL_
      for (int i = 0; i < h; i++) a[i] = ATTN_V_ADD_(a[i], a[i + h]);
    }
    ATTN_V_STORE_(out + e, a[0]);
  }
  for (; e < n; e++) { /* the same joins, one row at a time */
    float t[ATTN_W_];
    const float *row = k + (index ? index[e] : e) * stride;
    ATTN_V_STORE_(t, ATTN_FN_(square_row)(apart, q, row, dim));
    for (int h = ATTN_W_ / 2; h > 0; h /= 2)
      for (int i = 0; i < h; i++) t[i] += t[i + h];
    out[e] = t[0];
  }
}

ATTN_FUNC_ void ATTN_FN_(squares)(float *out, const float *q, const float *k, int64_t stride,
                                  const int32_t *index, int64_t n, int64_t dim) {
  if (q)
    ATTN_FN_(squares_kind)(1, out, q, k, stride, index, n, dim);
  else
    ATTN_FN_(squares_kind)(0, out, q, k, stride, index, n, dim);
}
