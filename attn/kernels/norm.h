/* kernels/norm.h owns the two loops of layer norm: moments of a row, and what is made of them. */

/* out = sum of x - shift, and of its square, each over 16 running sums joined by halves. */
ATTN_FUNC_ void ATTN_FN_(moments)(float *out, const float *x, int64_t n, float shift) {
  enum { PARTS = 16 / ATTN_W_ };
  const ATTN_VF_ from = ATTN_V_SET1_(shift);
  ATTN_VF_ s[PARTS], q[PARTS];
  for (int i = 0; i < PARTS; i++) s[i] = q[i] = ATTN_V_ZERO_();
  for (int64_t c = 0; c < n; c += 16) {
    float tail[16];
    const float *at = x + c;
    if (n - c < 16) {
      for (int i = 0; i < 16; i++) tail[i] = c + i < n ? at[i] : shift;
      at = tail;
    }
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) {
      const ATTN_VF_ t = ATTN_V_SUB_(ATTN_V_LOAD_(at + i * ATTN_W_), from);
      s[i] = ATTN_V_ADD_(s[i], t);
      q[i] = ATTN_V_FMA_(t, t, q[i]);
    }
  }
  out[0] = ATTN_FN_(row_sum)(s), out[1] = ATTN_FN_(row_sum)(q);
}

/* x = ((x - shift) by + plus) gain + bias; gain null = 1, bias null = 0 */
ATTN_FUNC_ void ATTN_FN_(normalise)(float *x, int64_t n, float shift, float by, float plus,
                                    const float *gain, const float *bias) {
  const ATTN_VF_ from = ATTN_V_SET1_(shift), times = ATTN_V_SET1_(by), more = ATTN_V_SET1_(plus);
  for (int64_t c = 0; c < n; c += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(n, c);
    ATTN_VF_ t = ATTN_V_SUB_(ATTN_FN_(load)(x, c, w, ATTN_F32), from);
    t = ATTN_V_FMA_(t, times, more);
    if (gain)
      t = ATTN_V_FMA_(t, ATTN_FN_(load)(gain, c, w, ATTN_F32),
                      bias ? ATTN_FN_(load)(bias, c, w, ATTN_F32) : ATTN_V_ZERO_());
    else if (bias)
      t = ATTN_V_ADD_(t, ATTN_FN_(load)(bias, c, w, ATTN_F32));
    ATTN_FN_(store)(x, c, t, w, ATTN_F32);
  }
}
