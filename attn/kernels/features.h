/* kernels/features.h owns the elementwise half of feature maps: what follows the projection u = W x. */

/* top[r] = the largest of m numbers of row r, of their magnitudes if `both`. */
ATTN_FUNC_ void ATTN_FN_(top_rows)(float *top, const float *x, int64_t stride, int64_t n, int64_t m,
                                   int both) {
  for (int64_t r = 0; r < n; r++, x += stride) {
    float most = -INFINITY;
    int64_t c = 0;
    if (m >= ATTN_W_) { /* the last vector ends with the row and may lie over the one before */
      ATTN_VF_ a = ATTN_V_SET1_(-INFINITY), b = a;
      for (; c < m; c += 2 * ATTN_W_) {
        const int64_t last = m - ATTN_W_, next = c + ATTN_W_ < last ? c + ATTN_W_ : last;
        ATTN_VF_ u = ATTN_V_LOAD_(x + (c < last ? c : last)), v = ATTN_V_LOAD_(x + next);
        if (both) u = ATTN_V_ABS_(u), v = ATTN_V_ABS_(v);
        a = ATTN_V_MAX_(u, a), b = ATTN_V_MAX_(v, b);
      }
      most = ATTN_V_TOP_(ATTN_V_MAX_(a, b));
    }
    for (; c < m; c++) {
      const float t = both && x[c] < 0.0f ? -x[c] : x[c];
      if (t > most) most = t;
    }
    top[r] = most;
  }
}

/* y[r][c] = 2^(y[r][c] - shift[r]) scale[r] + add, shift no less than any y of the row. both: then
 * y[r][m + c] = 2^(-y[r][c] - shift[r]) scale[r] + add. */
ATTN_FUNC_ void ATTN_FN_(power_rows)(float *y, int64_t stride, int64_t n, int64_t m,
                                     const float *shift, const float *scale, float add, int both) {
  const ATTN_VF_ more = ATTN_V_SET1_(add), zero = ATTN_V_ZERO_();
  for (int64_t r = 0; r < n; r++, y += stride) {
    const ATTN_VF_ from = ATTN_V_SET1_(shift[r]), by = ATTN_V_SET1_(scale[r]);
    int64_t c = 0;
    for (; both && c < m; c += ATTN_W_) {
      const int w = ATTN_FN_(lanes_left)(m, c);
      const ATTN_VF_ u = ATTN_FN_(load)(y, c, w, ATTN_F32);
      ATTN_FN_(store)(y + m, c, ATTN_V_SUB_(zero, u), w, ATTN_F32);
    }
    const int64_t all = both ? 2 * m : m;
    c = 0;
#if ATTN_SPECIALISE_
    for (; c + 4 * ATTN_W_ <= all; c += 4 * ATTN_W_) {
      ATTN_VF_ t[4];
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) t[i] = ATTN_V_SUB_(ATTN_V_LOAD_(y + c + i * ATTN_W_), from);
      ATTN_FN_(exp2_neg4)(t);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) ATTN_V_STORE_(y + c + i * ATTN_W_, ATTN_V_FMA_(t[i], by, more));
    }
#endif
    for (; c < all; c += ATTN_W_) {
      const int w = ATTN_FN_(lanes_left)(all, c);
      const ATTN_VF_ t = ATTN_V_SUB_(ATTN_FN_(load)(y, c, w, ATTN_F32), from);
      ATTN_FN_(store)(y, c, ATTN_V_FMA_(ATTN_FN_(exp2_neg)(t), by, more), w, ATTN_F32);
    }
  }
}

/* With x = y[r][c] in[r], |x| <= 8192: y[r][c] = sin(x) out[r], y[r][m + c] = cos(x) out[r], wrong by
 * less than 2e-7 out[r]. x = n pi + t, pi in three parts, the first two of which times n are exact;
 * minimax polynomials for |t| <= pi/2; odd n changes both signs. */
ATTN_FUNC_ void ATTN_FN_(wave_rows)(float *y, int64_t stride, int64_t n, int64_t m, const float *in,
                                    const float *out) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f);
  for (int64_t r = 0; r < n; r++, y += stride) {
    const ATTN_VF_ vin = ATTN_V_SET1_(in[r]), vout = ATTN_V_SET1_(out[r]);
    for (int64_t c = 0; c < m; c += ATTN_W_) {
      const int w = ATTN_FN_(lanes_left)(m, c);
      const ATTN_VF_ x = ATTN_V_MUL_(ATTN_FN_(load)(y, c, w, ATTN_F32), vin);
      ATTN_VF_ unused, k, h;
      ATTN_V_ROUND_(ATTN_V_MUL_(x, ATTN_V_SET1_(0.318309886f)), unused, k);
      ATTN_V_ROUND_(ATTN_V_MUL_(k, ATTN_V_SET1_(0.5f)), unused, h);
      (void)unused;
      ATTN_VF_ t = ATTN_V_FMA_(k, ATTN_V_SET1_(-3.140625f), x);
      t = ATTN_V_FMA_(k, ATTN_V_SET1_(-9.675025939941406e-4f), t);
      t = ATTN_V_FMA_(k, ATTN_V_SET1_(-1.5099579909783764e-7f), t);
      const ATTN_VF_ odd = ATTN_V_FMA_(h, ATTN_V_SET1_(-2.0f), k); /* -1, 0, 1 */
      const ATTN_VF_ sign = ATTN_V_FMA_(ATTN_V_MUL_(odd, odd), ATTN_V_SET1_(-2.0f), one);
      const ATTN_VF_ a = ATTN_V_MUL_(sign, vout), ta = ATTN_V_MUL_(t, a), z = ATTN_V_MUL_(t, t);
      ATTN_VF_ p = ATTN_V_SET1_(2.599994104457437e-6f), q = ATTN_V_SET1_(-2.607652902497648e-7f);
      p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-1.9806588534265757e-4f));
      q = ATTN_V_FMA_(q, z, ATTN_V_SET1_(2.4761855456745252e-5f));
      p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(8.333017118275166e-3f));
      q = ATTN_V_FMA_(q, z, ATTN_V_SET1_(-1.3888402609154582e-3f));
      p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.16666656732559204f));
      q = ATTN_V_FMA_(q, z, ATTN_V_SET1_(4.166664183139801e-2f));
      q = ATTN_V_FMA_(q, z, ATTN_V_SET1_(-0.5f));
      p = ATTN_V_FMA_(ATTN_V_MUL_(p, z), ta, ta);
      q = ATTN_V_FMA_(ATTN_V_MUL_(q, z), a, a);
      ATTN_FN_(store)(y, c, p, w, ATTN_F32);
      ATTN_FN_(store)(y + m, c, q, w, ATTN_F32);
    }
  }
}

/* y[i] = elu(x[i] scale) + 1. Where x is positive the power is not used, whatever it is. */
ATTN_FUNC_ void ATTN_FN_(elu1)(float *y, const float *x, int64_t n, float scale) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), by = ATTN_V_SET1_(scale);
  const ATTN_VF_ log2 = ATTN_V_SET1_((float)((double)scale * ATTN_LOG2E_));
  int64_t i = 0;
#if ATTN_SPECIALISE_
  for (; i + 4 * ATTN_W_ <= n; i += 4 * ATTN_W_) {
    ATTN_VF_ t[4];
    ATTN_UNROLL_
    for (int j = 0; j < 4; j++) t[j] = ATTN_V_MUL_(ATTN_V_LOAD_(x + i + j * ATTN_W_), log2);
    ATTN_FN_(exp2_neg4)(t);
    ATTN_UNROLL_
    for (int j = 0; j < 4; j++) {
      const ATTN_VF_ u = ATTN_V_FMA_(ATTN_V_LOAD_(x + i + j * ATTN_W_), by, one);
      ATTN_V_STORE_(y + i + j * ATTN_W_, ATTN_V_SELECT_(ATTN_V_LT_(one, u), u, t[j]));
    }
  }
#endif
  for (; i < n; i += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(n, i);
    const ATTN_VF_ v = ATTN_FN_(load)(x, i, w, ATTN_F32), u = ATTN_V_FMA_(v, by, one);
    const ATTN_VF_ t = ATTN_FN_(exp2_neg)(ATTN_V_MUL_(v, log2));
    ATTN_FN_(store)(y, i, ATTN_V_SELECT_(ATTN_V_LT_(one, u), u, t), w, ATTN_F32);
  }
}
