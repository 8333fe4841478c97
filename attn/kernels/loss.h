/* kernels/loss.h owns exponentials of a row of logits: their sums, and the slopes that are made of them. */

/* exp(x - top) of four vectors, 0 where it would be subnormal. */
ATTN_INLINE_ void ATTN_FN_(loss_powers)(ATTN_VF_ *y, const float *x, ATTN_VF_ top) {
  const ATTN_VF_ unit = ATTN_V_SET1_((float)ATTN_LOG2E_);
  ATTN_UNROLL_
  for (int i = 0; i < 4; i++)
    y[i] = ATTN_V_MUL_(ATTN_V_SUB_(ATTN_V_LOAD_(x + i * ATTN_W_), top), unit);
  ATTN_FN_(exp2_neg4)(y);
}

ATTN_FUNC_ float ATTN_FN_(loss_run)(float *sum, const float *x, int64_t n) {
  ATTN_VF_ most[4], part[ATTN_FN_(norm_parts)], y[4];
  for (int i = 0; i < 4; i++) most[i] = ATTN_V_SET1_(-INFINITY);
  for (int64_t c = 0; c < n; c += 4 * ATTN_W_) ATTN_UNROLL_
  for (int i = 0; i < 4; i++)
    most[i] = ATTN_V_MAX_(ATTN_V_LOAD_(x + c + i * ATTN_W_), most[i]); /* which drops NaN */
  const float top =
      ATTN_V_TOP_(ATTN_V_MAX_(ATTN_V_MAX_(most[0], most[1]), ATTN_V_MAX_(most[2], most[3])));
  const ATTN_VF_ from = ATTN_V_SET1_(top > -INFINITY ? top : 0.0f);
  for (int p = 0; p < ATTN_FN_(norm_parts); p++) part[p] = ATTN_V_ZERO_();
  for (int64_t c = 0; c < n; c += 4 * ATTN_W_) {
    ATTN_FN_(loss_powers)(y, x + c, from);
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) {
      const int p = (int)(c / ATTN_W_ + i) % ATTN_FN_(norm_parts); /* as columns lie, modulo 32 */
      part[p] = ATTN_V_ADD_(part[p], y[i]);
    }
  }
  *sum = ATTN_V_SUM_(ATTN_FN_(norm_join)(part));
  return top;
}

ATTN_FUNC_ void ATTN_FN_(loss_slope)(float *y, const float *x, int64_t n, float top, float by,
                                     float less) {
  const ATTN_VF_ from = ATTN_V_SET1_(top), times = ATTN_V_SET1_(by), zero = ATTN_V_ZERO_();
  const ATTN_VF_ more = ATTN_V_SUB_(zero, ATTN_V_SET1_(less));
  ATTN_VF_ p[4];
  for (int64_t c = 0; c < n; c += 4 * ATTN_W_) {
    ATTN_FN_(loss_powers)(p, x + c, from);
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++)
      ATTN_V_STORE_(y + c + i * ATTN_W_, ATTN_FN_(quiet)(ATTN_V_FMA_(times, p[i], more)));
  }
}
