/* kernels/gate.h owns a row of a gate: its logistic function and what that weighs. */

/* Four vectors at a time, so that their chains run side by side; those beyond the end repeat the first. */
ATTN_FUNC_ void ATTN_FN_(gate)(float *y, const float *a, float scale, const float *less,
                               const float *x, const float *v, int64_t n, int squash, int keep) {
  const ATTN_VF_ times = ATTN_V_SET1_(scale), one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_();
  const ATTN_VF_ log2e = ATTN_V_SET1_((float)-ATTN_LOG2E_);
  for (int64_t i = 0; i < n; i += 4 * ATTN_W_) {
    const int vecs = n - i < 4 * ATTN_W_ ? (int)(n - i + ATTN_W_ - 1) / ATTN_W_ : 4;
    ATTN_VF_ g[4], e[4], t[4];
    ATTN_UNROLL_
    for (int k = 0; k < 4; k++) {
      const int64_t c = k < vecs ? i + k * ATTN_W_ : i;
      const int w = ATTN_FN_(lanes_left)(n, c);
      g[k] = ATTN_V_MUL_(ATTN_FN_(load)(a, c, w, ATTN_F32), times);
      if (less) g[k] = ATTN_V_SUB_(g[k], ATTN_FN_(load)(less, c, w, ATTN_F32));
      e[k] = ATTN_V_MUL_(ATTN_V_ABS_(g[k]), log2e);
      t[k] = ATTN_FN_(load)(v, c, w, ATTN_F32);
    }
    ATTN_FN_(exp2_neg4)(e);
    if (squash) ATTN_FN_(tanh4)(t);
    for (int k = 0; k < vecs; k++) {
      const int64_t c = i + k * ATTN_W_;
      const int w = ATTN_FN_(lanes_left)(n, c);
      const ATTN_VF_ top = ATTN_V_SELECT_(ATTN_V_LT_(g[k], zero), e[k], one);
      const ATTN_VF_ s = ATTN_V_DIV_(top, ATTN_V_ADD_(one, e[k]));
      ATTN_VF_ u = x ? ATTN_FN_(load)(x, c, w, ATTN_F32) : zero;
      if (keep) u = ATTN_V_MUL_(ATTN_V_SUB_(one, s), u);
      ATTN_FN_(store)(y, c, ATTN_FN_(quiet)(ATTN_V_FMA_(s, t[k], u)), w, ATTN_F32);
    }
  }
}
