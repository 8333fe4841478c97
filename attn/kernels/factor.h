/* kernels/factor.h owns what heads have of vectors that they share: numbers of each lane, times dot products or
 * weights. */

ATTN_FUNC_ void ATTN_FN_(factor_block)(float *y, const float *x, const float *a, int64_t stride,
                                       int64_t n, int lanes, float by, int add, float *top) {
  const ATTN_VF_ times = ATTN_V_SET1_(by), none = ATTN_V_ZERO_();
  for (int64_t i = 0; i < lanes; i += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(lanes, i);
    ATTN_VF_ most = top ? ATTN_V_LOAD_(top + i) : none;
    for (int64_t j = 0; j < n; j++) {
      float *to = y + j * ATTN_TILE_ + i;
      const ATTN_VF_ f = ATTN_V_MUL_(ATTN_FN_(load)(a + j * stride, i, w, ATTN_F32), times);
      const ATTN_VF_ s =
          ATTN_V_FMA_(ATTN_V_LOAD_(x + j * ATTN_TILE_ + i), f, add ? ATTN_V_LOAD_(to) : none);
      ATTN_V_STORE_(to, s);
      most = ATTN_V_MAX_(s, most);
    }
    if (top) ATTN_V_STORE_(top + i, most);
  }
}
