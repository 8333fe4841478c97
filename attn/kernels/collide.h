/* kernels/collide.h owns the weights of hashes that meet, and sums of rows by bucket. */

/* acos(x) / pi of x from 0 to 1 is sqrt(1 - x) times a polynomial, wrong by 1.5e-8 of itself. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(apart)(ATTN_VF_ x) {
  static const float c[8] = {0.5f,           -0.0683088899f,  0.0283223577f,  -0.0159677565f,
                             0.00982391927f, -0.00542562455f, 0.00211313786f, -0.000398987788f};
  ATTN_VF_ y = ATTN_V_SET1_(c[7]);
  ATTN_UNROLL_
  for (int i = 6; i >= 0; i--) y = ATTN_V_FMA_(y, x, ATTN_V_SET1_(c[i]));
  return ATTN_V_MUL_(ATTN_V_SQRT_(ATTN_V_SUB_(ATTN_V_SET1_(1.0f), x)), y);
}

/* What is beyond 1 counts as 1; -inf, no key, is -1 and has no weight. NaN stays. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(meeting)(ATTN_VF_ x, int tau) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), size = ATTN_V_ABS_(x);
  const ATTN_VF_ p = ATTN_FN_(apart)(ATTN_V_SELECT_(ATTN_V_LT_(one, size), one, size));
  const ATTN_VF_ w = ATTN_V_SELECT_(ATTN_V_LT_(x, ATTN_V_ZERO_()), p, ATTN_V_SUB_(one, p));
  int bit = 16;
  ATTN_VF_ y = w;
  while (bit > tau) bit /= 2;
  for (bit /= 2; bit > 0; bit /= 2) {
    y = ATTN_V_MUL_(y, y);
    if (tau & bit) y = ATTN_V_MUL_(y, w);
  }
  return y;
}

ATTN_FUNC_ void ATTN_FN_(angle_block)(float *s, int64_t n, int g0, int g1, int tau, float *l) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ sum = ATTN_V_ZERO_();
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ w[4];
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++)
        w[i] = ATTN_FN_(meeting)(ATTN_V_LOAD_(cell + i * ATTN_TILE_), tau);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        ATTN_V_STORE_(cell + i * ATTN_TILE_, w[i]);
        sum = ATTN_V_ADD_(sum, w[i]);
      }
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      const ATTN_VF_ w = ATTN_FN_(meeting)(ATTN_V_LOAD_(cell), tau);
      ATTN_V_STORE_(cell, w);
      sum = ATTN_V_ADD_(sum, w);
    }
    ATTN_V_STORE_(l + lane, ATTN_V_ADD_(ATTN_V_LOAD_(l + lane), sum));
  }
}

/* rest is what the sum has too much. */
ATTN_FUNC_ void ATTN_FN_(bucket_rows)(const attn_bucket_rows_ *p) {
  for (int64_t i = 0; i < p->n; i++) {
    const int64_t to = p->to ? p->to[i] : i, from = p->from ? p->from[i] : i;
    float *sum = p->sum + to * p->width, *rest = sum + p->rest;
    const float *x = p->x + from * p->width;
    for (int64_t c = 0; c < p->width; c += ATTN_W_) {
      const ATTN_VF_ old = ATTN_V_LOAD_(sum + c);
      const ATTN_VF_ y = ATTN_V_SUB_(ATTN_V_LOAD_(x + c), ATTN_V_LOAD_(rest + c));
      const ATTN_VF_ now = ATTN_V_ADD_(old, y);
      ATTN_V_STORE_(rest + c, ATTN_V_SUB_(ATTN_V_SUB_(now, old), y));
      ATTN_V_STORE_(sum + c, now);
    }
  }
}
