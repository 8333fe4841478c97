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
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  return ATTN_FN_(exp_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(x)));
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
    ATTN_PREFETCH_(r->d_x +
                   at); /* is written next: memory has work in both passes, a fifth of the time */
    s[p] = ATTN_V_ADD_(s[p], g);
    q[p] = ATTN_V_FMA_(g, ATTN_FN_(norm_slope_h)(r, at, w), q[p]);
  }
}

/* What the rows r and next, which may be null, add to the gradients of gain and bias, either null; they share loads. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_sent)(const ATTN_FN_(norm_slope_) *r,
                                            const ATTN_FN_(norm_slope_) *next, float *gain,
                                            float *bias, int64_t n) {
  for (int64_t c = 0; c < n; c += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(n, c);
    const ATTN_VF_ d = ATTN_FN_(load)(r->d_y, c, w, ATTN_F32);
    ATTN_VF_ e = d;
    if (next) e = ATTN_FN_(load)(next->d_y, c, w, ATTN_F32);
    if (gain) {
      ATTN_VF_ t = ATTN_FN_(load)(gain, c, w, ATTN_F32);
      t = ATTN_V_FMA_(d, ATTN_FN_(norm_slope_h)(r, c, w), t);
      if (next) t = ATTN_V_FMA_(e, ATTN_FN_(norm_slope_h)(next, c, w), t);
      ATTN_FN_(store)(gain, c, t, w, ATTN_F32);
    }
    if (bias) {
      ATTN_VF_ t = ATTN_V_ADD_(d, ATTN_FN_(load)(bias, c, w, ATTN_F32));
      if (next) t = ATTN_V_ADD_(e, t);
      ATTN_FN_(store)(bias, c, t, w, ATTN_F32);
    }
  }
}

ATTN_INLINE_ void ATTN_FN_(norm_slope_send)(const ATTN_FN_(norm_slope_) *r,
                                            const ATTN_FN_(norm_slope_) *next, float *gain,
                                            float *bias, int64_t n) {
  if (gain && bias)
    ATTN_FN_(norm_slope_sent)(r, next, gain, bias, n);
  else if (gain)
    ATTN_FN_(norm_slope_sent)(r, next, gain, NULL, n);
  else if (bias)
    ATTN_FN_(norm_slope_sent)(r, next, NULL, bias, n);
}

/* One vector of a row; sum may be null. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_put)(const ATTN_FN_(norm_slope_) *r, const float *sum,
                                           const float *gain, ATTN_VF_ lift, int64_t c, int w) {
  const ATTN_VF_ h = ATTN_FN_(norm_slope_h)(r, c, w), zero = ATTN_V_ZERO_();
  ATTN_VF_ g = ATTN_FN_(load)(r->d_y, c, w, ATTN_F32);
  if (gain) g = ATTN_V_MUL_(g, ATTN_V_ADD_(ATTN_FN_(load)(gain, c, w, ATTN_F32), lift));
  g = ATTN_V_FMA_(ATTN_V_SUB_(zero, h), r->gh, ATTN_V_SUB_(g, r->g));
  g = ATTN_V_FMA_(g, r->by, sum ? ATTN_FN_(load)(sum, c, w, ATTN_F32) : zero);
  ATTN_FN_(store)(r->d_x, c, ATTN_FN_(quiet)(g), w, ATTN_F32);
}

ATTN_INLINE_ void ATTN_FN_(norm_slope_out)(const ATTN_FN_(norm_slope_) *r, const float *sum,
                                           const float *gain, ATTN_VF_ lift, int64_t n) {
  int64_t c = 0;
  for (; c + 2 * ATTN_W_ <= n; c += 2 * ATTN_W_) {
    ATTN_FN_(norm_slope_put)(r, sum, gain, lift, c, ATTN_W_);
    ATTN_FN_(norm_slope_put)(r, sum, gain, lift, c + ATTN_W_, ATTN_W_);
  }
  for (; c < n; c += ATTN_W_)
    ATTN_FN_(norm_slope_put)(r, sum, gain, lift, c, ATTN_FN_(lanes_left)(n, c));
}

/* The last pass of a row. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_last)(const ATTN_FN_(norm_slope_) *r, const float *gain,
                                            ATTN_VF_ lift, int64_t n) {
  if (!r->d_x) return;
  if (r->sum)
    ATTN_FN_(norm_slope_out)(r, r->sum, gain, lift, n);
  else if (gain)
    ATTN_FN_(norm_slope_out)(r, NULL, gain, lift, n);
  else
    ATTN_FN_(norm_slope_out)(r, NULL, NULL, lift, n);
}

/* Both at once of one vector of two rows, as training has it: each number is loaded once. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_two)(const ATTN_FN_(norm_slope_) *r,
                                           const ATTN_FN_(norm_slope_) *next, const float *gain,
                                           ATTN_VF_ lift, float *d_gain, float *d_bias, int64_t c,
                                           int w) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  const ATTN_VF_ d = ATTN_FN_(load)(r->d_y, c, w, ATTN_F32), h = ATTN_FN_(norm_slope_h)(r, c, w);
  const ATTN_VF_ e = ATTN_FN_(load)(next->d_y, c, w, ATTN_F32),
                 k = ATTN_FN_(norm_slope_h)(next, c, w);
  const ATTN_VF_ f = ATTN_V_ADD_(ATTN_FN_(load)(gain, c, w, ATTN_F32), lift);
  ATTN_VF_ t = ATTN_V_FMA_(d, h, ATTN_FN_(load)(d_gain, c, w, ATTN_F32));
  ATTN_FN_(store)(d_gain, c, ATTN_V_FMA_(e, k, t), w, ATTN_F32);
  if (d_bias) {
    t = ATTN_V_ADD_(d, ATTN_FN_(load)(d_bias, c, w, ATTN_F32));
    ATTN_FN_(store)(d_bias, c, ATTN_V_ADD_(e, t), w, ATTN_F32);
  }
  t = ATTN_V_SUB_(ATTN_V_MUL_(d, f), r->g);
  t = ATTN_V_FMA_(ATTN_V_FMA_(ATTN_V_SUB_(zero, h), r->gh, t), r->by, zero);
  ATTN_FN_(store)(r->d_x, c, ATTN_FN_(quiet)(t), w, ATTN_F32);
  t = ATTN_V_SUB_(ATTN_V_MUL_(e, f), next->g);
  t = ATTN_V_FMA_(ATTN_V_FMA_(ATTN_V_SUB_(zero, k), next->gh, t), next->by, zero);
  ATTN_FN_(store)(next->d_x, c, ATTN_FN_(quiet)(t), w, ATTN_F32);
}

/* ahead: whether two rows follow, whose lines are asked for. */
ATTN_INLINE_ void ATTN_FN_(norm_slope_pair)(const ATTN_FN_(norm_slope_) *r,
                                            const ATTN_FN_(norm_slope_) *next,
                                            const attn_norm_slopes_ *a, ATTN_VF_ lift,
                                            float *d_bias, int ahead) {
  const int64_t n = a->n, y = ahead ? 2 * a->d_y_stride : 0;
  int64_t c = 0;
  for (; c + ATTN_W_ <= n; c += ATTN_W_) {
    ATTN_PREFETCH_(r->d_y + y + c);
    ATTN_PREFETCH_(next->d_y + y + c);
    ATTN_FN_(norm_slope_two)(r, next, a->gain, lift, a->d_gain, d_bias, c, ATTN_W_);
  }
  if (c < n) ATTN_FN_(norm_slope_two)(r, next, a->gain, lift, a->d_gain, d_bias, c, (int)(n - c));
}

/* The first pass of row i. */
ATTN_INLINE_ ATTN_FN_(norm_slope_)
    ATTN_FN_(norm_slope_row)(const attn_norm_slopes_ *a, int i, const float *size, ATTN_VF_ lift) {
  const ATTN_VF_ n = ATTN_V_SET1_((float)a->n), zero = ATTN_V_ZERO_();
  ATTN_VF_ s[ATTN_FN_(norm_parts)], q[ATTN_FN_(norm_parts)];
  int64_t c = 0;
  ATTN_FN_(norm_slope_) r;
  r.mean = ATTN_V_SET1_(size[3 * i]), r.by = ATTN_V_SET1_(size[3 * i + 1]);
  r.plus = ATTN_V_SET1_(size[3 * i + 2]), r.g = r.gh = zero;
  r.x = a->x + i * a->x_stride, r.d_y = a->d_y + i * a->d_y_stride;
  r.sum = a->sum ? a->sum + i * a->sum_stride : NULL;
  r.d_x = a->d_x ? a->d_x + i * a->d_x_stride : NULL;
  if (!r.d_x) return r;
  ATTN_UNROLL_
  for (int p = 0; p < ATTN_FN_(norm_parts); p++) s[p] = q[p] = zero;
  if (a->gain)
    for (; c + 32 <= a->n; c += 32) ATTN_FN_(norm_slope_sums)(s, q, &r, a->gain, lift, c, 32);
  else
    for (; c + 32 <= a->n; c += 32) ATTN_FN_(norm_slope_sums)(s, q, &r, NULL, lift, c, 32);
  if (c < a->n) ATTN_FN_(norm_slope_sums)(s, q, &r, a->gain, lift, c, a->n - c);
  if (!a->rms) r.g = ATTN_V_DIV_(ATTN_V_SET1_(ATTN_V_SUM_(ATTN_FN_(norm_join)(s))), n);
  r.gh = ATTN_V_DIV_(ATTN_V_SET1_(ATTN_V_SUM_(ATTN_FN_(norm_join)(q))), n);
  return r;
}

ATTN_FUNC_ void ATTN_FN_(norm_slopes)(const attn_norm_slopes_ *a, int rows, const float *size) {
  const ATTN_VF_ lift = ATTN_V_SET1_(a->lift);
  for (int i = 0, two; i < rows; i += 1 + two) {
    ATTN_FN_(norm_slope_) r[2];
    two = i + 1 < rows && !(a->skip >> i & 3);
    if (a->skip >> i & 1) continue;
    for (int k = 0; k <= two; k++) r[k] = ATTN_FN_(norm_slope_row)(a, i + k, size, lift);
    if (two && r->d_x && a->gain && a->d_gain && !a->sum) {
      if (a->d_bias)
        ATTN_FN_(norm_slope_pair)(r, r + 1, a, lift, a->d_bias, i + 3 < rows);
      else
        ATTN_FN_(norm_slope_pair)(r, r + 1, a, lift, NULL, i + 3 < rows);
      continue;
    }
    if (two)
      ATTN_FN_(norm_slope_send)(r, r + 1, a->d_gain, a->d_bias, a->n);
    else
      ATTN_FN_(norm_slope_send)(r, NULL, a->d_gain, a->d_bias, a->n);
    for (int k = 0; k <= two; k++) ATTN_FN_(norm_slope_last)(r + k, a->gain, lift, a->n);
  }
}
