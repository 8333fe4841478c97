/* kernels/gradient_rows.h owns what gradients do to rows: slopes of activations, and the two passes over rows of a
 * norm. */

/* e^-b / (1 + e^-b) or 1 / (1 + e^-b), b = |x|: the sigmoid of x; *both is their product, the slope of it. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(sigmoid_slope)(ATTN_VF_ x, ATTN_VF_ e, ATTN_VF_ *both) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_();
  const ATTN_VF_ most = ATTN_V_DIV_(one, ATTN_V_ADD_(one, e)), least = ATTN_V_MUL_(e, most);
  *both = ATTN_V_MUL_(most, least);
  return ATTN_V_SELECT_(ATTN_V_LT_(x, zero), least, most);
}

/* x within -most .. most; NaN stays */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(slope_clamp)(ATTN_VF_ x, float most) {
  const ATTN_VF_ top = ATTN_V_SET1_(most), t = ATTN_V_MAX_(ATTN_V_SET1_(-most), x);
  return ATTN_V_SELECT_(ATTN_V_LT_(top, t), top, t);
}

/* e^-|x| */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(slope_fade)(ATTN_VF_ x) {
  return ATTN_FN_(exp_neg)(ATTN_V_SUB_(ATTN_V_ZERO_(), ATTN_V_ABS_(x)));
}

/* The derivative at z. What is far out is cut where the function is its asymptote in floats, so that nothing
 * overflows on the way. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(slope_at)(ATTN_VF_ z, int act) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f);
  ATTN_VF_ x, e, s, both;
  switch (act) {
    case ATTN_ACT_RELU2: return ATTN_V_ADD_(z, z); /* of z > 0 */
    case ATTN_ACT_GELU:
      x = ATTN_FN_(slope_clamp)(z, 14.0f);
      s = ATTN_FN_(normal_below)(x, &e);
      return ATTN_V_FMA_(ATTN_V_MUL_(x, ATTN_V_SET1_(0.39894228f)), e, s);
    case ATTN_ACT_GELU_TANH: /* (1 + t) / 2 is the sigmoid of 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3) */
      x = ATTN_FN_(slope_clamp)(z, 10.0f);
      both = ATTN_V_MUL_(x, x);
      s = ATTN_V_FMA_(ATTN_V_MUL_(x, both), ATTN_V_SET1_(0.07135481f),
                      ATTN_V_MUL_(x, ATTN_V_SET1_(1.5957691f)));
      x = ATTN_V_MUL_(x, ATTN_V_FMA_(both, ATTN_V_SET1_(0.21406444f), ATTN_V_SET1_(1.5957691f)));
      s = ATTN_FN_(sigmoid_slope)(s, ATTN_FN_(slope_fade)(s), &both);
      return ATTN_V_FMA_(x, both, s);
    case ATTN_ACT_SILU:
      x = ATTN_FN_(slope_clamp)(z, 104.0f);
      s = ATTN_FN_(sigmoid_slope)(x, ATTN_FN_(slope_fade)(x), &both);
      return ATTN_V_FMA_(x, both, s);
    case ATTN_ACT_SIGMOID: (void)ATTN_FN_(sigmoid_slope)(z, ATTN_FN_(slope_fade)(z), &s); return s;
    case ATTN_ACT_TANH: /* 1 - y^2 = 4 e / (1 + e)^2, e = e^-2|z| */
      x = ATTN_FN_(slope_clamp)(z, 64.0f);
      (void)ATTN_FN_(sigmoid_slope)(x, ATTN_FN_(slope_fade)(ATTN_V_ADD_(x, x)), &s);
      return ATTN_V_MUL_(s, ATTN_V_SET1_(4.0f));
    case ATTN_ACT_EXP: return ATTN_FN_(exp)(z);
    case ATTN_ACT_ELU1: return ATTN_V_SELECT_(ATTN_V_LT_(zero, z), one, ATTN_FN_(exp)(z));
    default: return one;
  }
}

ATTN_INLINE_ void ATTN_FN_(slope_some)(float *y, const float *d, const float *z, const float *gate,
                                       int64_t i, int w, const int act) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_VF_ t = ATTN_FN_(load)(d, i, w, ATTN_F32);
  if (gate) t = ATTN_V_MUL_(t, ATTN_FN_(load)(gate, i, w, ATTN_F32));
  if (act != ATTN_ACT_NONE) {
    const ATTN_VF_ x = ATTN_FN_(load)(z, i, w, ATTN_F32);
    if (act != ATTN_ACT_RELU) t = ATTN_V_MUL_(t, ATTN_FN_(slope_at)(x, act));
    if (act == ATTN_ACT_RELU ||
        act == ATTN_ACT_RELU2) /* 0 at and below 0 whatever d is; NaN stays */
      t = ATTN_V_SELECT_(ATTN_V_LT_(zero, x), t, ATTN_V_SELECT_(ATTN_V_EQ_(x, x), zero, x));
  }
  ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(t), w, ATTN_F32);
}

ATTN_INLINE_ void ATTN_FN_(slope_row)(float *y, const float *d, const float *z, const float *gate,
                                      int64_t n, const int act) {
  int64_t i = 0;
#if ATTN_SPECIALISE_
  for (; i + ATTN_W_ <= n; i += ATTN_W_) ATTN_FN_(slope_some)(y, d, z, gate, i, ATTN_W_, act);
#endif
  for (; i < n; i += ATTN_W_)
    ATTN_FN_(slope_some)(y, d, z, gate, i, ATTN_FN_(lanes_left)(n, i), act);
}

ATTN_FUNC_ void ATTN_FN_(slope)(float *y, const float *d, const float *z, const float *gate,
                                int64_t n, int act) {
#if ATTN_SPECIALISE_
  switch (act) {
#define ATTN_CASE_(one) \
  case one: ATTN_FN_(slope_row)(y, d, z, gate, n, one); return;
    ATTN_CASE_(ATTN_ACT_RELU)
    ATTN_CASE_(ATTN_ACT_RELU2)
    ATTN_CASE_(ATTN_ACT_GELU)
    ATTN_CASE_(ATTN_ACT_GELU_TANH)
    ATTN_CASE_(ATTN_ACT_SILU)
    ATTN_CASE_(ATTN_ACT_SIGMOID)
    ATTN_CASE_(ATTN_ACT_TANH)
    ATTN_CASE_(ATTN_ACT_EXP)
    ATTN_CASE_(ATTN_ACT_ELU1)
    default: ATTN_FN_(slope_row)(y, d, z, gate, n, ATTN_ACT_NONE);
#undef ATTN_CASE_
  }
#else
  ATTN_FN_(slope_row)(y, d, z, gate, n, act);
#endif
}

/* ---- norms ----------------------------------------------------------------------------------*/

/* A row between its passes: h = (x - mean) by + plus, g = d_y gain. */
typedef struct ATTN_FN_(norm_slope_) {
  ATTN_VF_ mean, by, plus, g, gh;
  const float *x, *d_y, *sum;
  float *d_x;
} ATTN_FN_(norm_slope_);

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(norm_slope_h)(const ATTN_FN_(norm_slope_) *r, int64_t c, int w) {
  return ATTN_V_FMA_(ATTN_V_SUB_(ATTN_FN_(load)(r->x, c, w, ATTN_F32), r->mean), r->by, r->plus);
}

/* The sums of g and of g h over columns c .. c + left - 1, 32 at most. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_sums)(ATTN_VF_ *s, ATTN_VF_ *q,
                                            const ATTN_FN_(norm_slope_) *r, const float *gain,
                                            ATTN_VF_ lift, int64_t c, int64_t left) {
  ATTN_UNROLL_
  for (int p = 0; p < ATTN_FN_(norm_parts); p++) {
    const int64_t at = c + p * ATTN_W_, have = left - p * ATTN_W_;
    const int w = have < ATTN_W_ ? (int)have : ATTN_W_;
    if (w <= 0) continue;
    ATTN_VF_ g = ATTN_FN_(load)(r->d_y, at, w, ATTN_F32);
    if (gain) g = ATTN_V_MUL_(g, ATTN_V_ADD_(ATTN_FN_(load)(gain, at, w, ATTN_F32), lift));
    s[p] = ATTN_V_ADD_(s[p], g);
    q[p] = ATTN_V_FMA_(g, ATTN_FN_(norm_slope_h)(r, at, w), q[p]);
  }
}

/* One vector: what the row adds to the gradients of gain and bias, and its own. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_put)(const ATTN_FN_(norm_slope_) *r,
                                           const attn_norm_slopes_ *a, ATTN_VF_ lift, int64_t c,
                                           int w) {
  const ATTN_VF_ h = ATTN_FN_(norm_slope_h)(r, c, w), zero = ATTN_V_ZERO_();
  const ATTN_VF_ d = ATTN_FN_(load)(r->d_y, c, w, ATTN_F32);
  if (a->d_gain)
    ATTN_FN_(store)(a->d_gain, c, ATTN_V_FMA_(d, h, ATTN_FN_(load)(a->d_gain, c, w, ATTN_F32)), w,
                    ATTN_F32);
  if (a->d_bias)
    ATTN_FN_(store)(a->d_bias, c, ATTN_V_ADD_(d, ATTN_FN_(load)(a->d_bias, c, w, ATTN_F32)), w,
                    ATTN_F32);
  if (!r->d_x) return;
  ATTN_VF_ g = d;
  if (a->gain) g = ATTN_V_MUL_(g, ATTN_V_ADD_(ATTN_FN_(load)(a->gain, c, w, ATTN_F32), lift));
  g = ATTN_V_FMA_(ATTN_V_SUB_(zero, h), r->gh, ATTN_V_SUB_(g, r->g));
  g = ATTN_V_FMA_(g, r->by, r->sum ? ATTN_FN_(load)(r->sum, c, w, ATTN_F32) : zero);
  ATTN_FN_(store)(r->d_x, c, ATTN_FN_(quiet)(g), w, ATTN_F32);
}

ATTN_FUNC_ void ATTN_FN_(norm_slopes)(const attn_norm_slopes_ *a, int rows, const float *size) {
  const ATTN_VF_ lift = ATTN_V_SET1_(a->lift), n = ATTN_V_SET1_((float)a->n);
  for (int i = 0; i < rows; i++, size += 3) {
    ATTN_FN_(norm_slope_)
    r = {ATTN_V_SET1_(size[0]),
         ATTN_V_SET1_(size[1]),
         ATTN_V_SET1_(size[2]),
         ATTN_V_ZERO_(),
         ATTN_V_ZERO_(),
         a->x + i * a->x_stride,
         a->d_y + i * a->d_y_stride,
         a->sum ? a->sum + i * a->sum_stride : NULL,
         a->d_x ? a->d_x + i * a->d_x_stride : NULL};
    int64_t c = 0;
    if (a->skip >> i & 1) continue;
    if (r.d_x) {
      ATTN_VF_ s[ATTN_FN_(norm_parts)], q[ATTN_FN_(norm_parts)];
      ATTN_UNROLL_
      for (int p = 0; p < ATTN_FN_(norm_parts); p++) s[p] = q[p] = ATTN_V_ZERO_();
      for (; c + 32 <= a->n; c += 32) ATTN_FN_(norm_slope_sums)(s, q, &r, a->gain, lift, c, 32);
      if (c < a->n) ATTN_FN_(norm_slope_sums)(s, q, &r, a->gain, lift, c, a->n - c);
      if (!a->rms) r.g = ATTN_V_DIV_(ATTN_V_SET1_(ATTN_V_SUM_(ATTN_FN_(norm_join)(s))), n);
      r.gh = ATTN_V_DIV_(ATTN_V_SET1_(ATTN_V_SUM_(ATTN_FN_(norm_join)(q))), n);
    }
    for (c = 0; c + ATTN_W_ <= a->n; c += ATTN_W_)
      ATTN_FN_(norm_slope_put)(&r, a, lift, c, ATTN_W_);
    if (c < a->n) ATTN_FN_(norm_slope_put)(&r, a, lift, c, (int)(a->n - c));
  }
}
