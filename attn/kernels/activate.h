/* kernels/activate.h owns what follows a dense product: scale, bias, activation. */

/* 1 / (1 + e^-x), without overflow */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(sigmoid)(ATTN_VF_ x) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_();
  const ATTN_VF_ e = ATTN_FN_(exp_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(x)));
  const ATTN_VF_ top = ATTN_V_SELECT_(ATTN_V_LT_(x, zero), e, one);
  return ATTN_V_DIV_(top, ATTN_V_ADD_(one, e));
}

/* Phi(x) = erfc(-x / sqrt 2) / 2 with relative precision far below 0, for x from -14 up, and e^(-x^2 / 2), |x| at most 14
 * in it. erfc z = e^(-z^2) t p(t), t = 1 / (1 + 0.3 z), p a minimax fit for 0 <= z <= 9.4 (2e-8); z^2 in two parts, or
 * its rounding would be seen in the tail. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(normal_below)(ATTN_VF_ x, ATTN_VF_ *fade) {
  const ATTN_VF_ most = ATTN_V_SET1_(14.0f);
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_(), half = ATTN_V_SET1_(0.5f);
  const ATTN_VF_ b = ATTN_V_ABS_(x), a = ATTN_V_SELECT_(ATTN_V_LT_(most, b), most, b);
  const ATTN_VF_ z = ATTN_V_MUL_(a, ATTN_V_SET1_(0.70710678f));
  const ATTN_VF_ t = ATTN_V_DIV_(one, ATTN_V_FMA_(z, ATTN_V_SET1_(0.3f), one));
  const ATTN_VF_ square = ATTN_V_MUL_(ATTN_V_MUL_(half, a), a);
  const ATTN_VF_ low = ATTN_V_FMA_(ATTN_V_MUL_(half, a), a, ATTN_V_SUB_(zero, square));
  ATTN_VF_ p = ATTN_V_SET1_(-0.12940725684165955f);
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(0.48495522141456604f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(-0.5109074711799622f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(0.5459921360015869f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(-0.0933203399181366f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(0.2142864316701889f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(0.1485264152288437f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(0.17068475484848022f));
  p = ATTN_V_FMA_(p, t, ATTN_V_SET1_(0.16919010877609253f));
  ATTN_VF_ e = ATTN_FN_(exp_neg)(ATTN_V_SUB_(zero, square));
  e = ATTN_V_FMA_(e, ATTN_V_SUB_(zero, low), e);
  const ATTN_VF_ tail = ATTN_V_MUL_(ATTN_V_MUL_(half, t), ATTN_V_MUL_(p, e)); /* erfc(z) / 2 */
  *fade = e;
  return ATTN_V_SELECT_(ATTN_V_LT_(x, zero), tail, ATTN_V_SUB_(one, tail));
}

/* x Phi(x) */
ATTN_OUTLINE_ ATTN_VF_ ATTN_FN_(gelu_tail)(ATTN_VF_ x0) {
  const ATTN_VF_ x = ATTN_V_MAX_(ATTN_V_SET1_(-14.0f), x0);
  ATTN_VF_ e;
  return ATTN_V_MUL_(x, ATTN_FN_(normal_below)(x, &e));
}

/* Activations that are chains of operations take four vectors side by side, as exp2_neg4 does. */
enum { ATTN_FN_(act_wide) = 4 };

/* The same from -3.5 up: max(x, 0) - a Phi(-a), a = |x|, where Phi(-a)^(-1/4) is a minimax fit about a = 1.5
 * (1e-8), odd and even of the higher powers apart. It grows all the way, so above 3.5, where less and less of the
 * tail is seen, it need not be right. lost: what the last rounding of the fit took. */
ATTN_INLINE_ void ATTN_FN_(gelu_some)(ATTN_VF_ *x, const int n) {
  const ATTN_VF_ c0 = ATTN_V_SET1_(1.96695387f), zero = ATTN_V_ZERO_(), none = ATTN_V_SET1_(-0.0f);
  ATTN_VF_ a[ATTN_FN_(act_wide)], v[ATTN_FN_(act_wide)], w[ATTN_FN_(act_wide)],
      p[ATTN_FN_(act_wide)], q[ATTN_FN_(act_wide)];
  uint64_t here = ~(uint64_t)0;
  ATTN_UNROLL_
  for (int i = 0; i < n; i++) {
    a[i] = ATTN_V_MAX_(ATTN_V_SET1_(-14.0f), ATTN_V_SUB_(zero, ATTN_V_ABS_(x[i])));
    v[i] = ATTN_V_ADD_(a[i], ATTN_V_SET1_(1.5f));
    w[i] = ATTN_V_MUL_(v[i], v[i]);
    p[i] = ATTN_V_SET1_(1.7305419e-07f), q[i] = ATTN_V_SET1_(-6.70883708e-07f);
  }
#define ATTN_GELU_STEP_(even, odd)                      \
  ATTN_UNROLL_                                          \
  for (int i = 0; i < n; i++) {                         \
    p[i] = ATTN_V_FMA_(p[i], w[i], ATTN_V_SET1_(even)); \
    q[i] = ATTN_V_FMA_(q[i], w[i], ATTN_V_SET1_(odd));  \
  }
  ATTN_GELU_STEP_(2.96771191e-06f, -1.94892509e-05f)
  ATTN_GELU_STEP_(0.000107952808f, -0.000539040135f)
  ATTN_GELU_STEP_(0.00251056743f, -0.0109189041f)
  ATTN_GELU_STEP_(0.0423385687f, -0.145482704f)
#undef ATTN_GELU_STEP_
  ATTN_UNROLL_
  for (int i = 0; i < n; i++) {
    p[i] = ATTN_V_FMA_(p[i], v[i], q[i]);
    p[i] = ATTN_V_FMA_(p[i], v[i], ATTN_V_SET1_(0.440123111f));
    p[i] = ATTN_V_FMA_(p[i], v[i], ATTN_V_SET1_(-0.953322113f));
  }
  ATTN_UNROLL_
  for (int i = 0; i < n; i++) {
    ATTN_VF_ y = ATTN_V_FMA_(p[i], v[i], c0);
    const ATTN_VF_ lost = ATTN_V_FMA_(p[i], v[i], ATTN_V_SUB_(c0, y));
    y = ATTN_V_FMA_(y, y, ATTN_V_MUL_(ATTN_V_ADD_(y, y), lost));
    p[i] = ATTN_V_ADD_(ATTN_V_MAX_(none, x[i]), ATTN_V_DIV_(a[i], ATTN_V_MUL_(y, y)));
  }
  ATTN_UNROLL_
  for (int i = 0; i < n; i++) here &= ATTN_V_CHOSEN_(ATTN_V_LT_(ATTN_V_SET1_(-3.5f), x[i]));
  if (ATTN_RARE_(~here & (((uint64_t)1 << ATTN_W_) - 1)))
    for (int i = 0; i < n; i++)
      p[i] = ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_SET1_(-3.5f), x[i]), p[i], ATTN_FN_(gelu_tail)(x[i]));
  ATTN_UNROLL_
  for (int i = 0; i < n; i++) x[i] = p[i];
}

/* x / (1 + 2^w) = max(x, 0) - a 2^w / (1 + 2^w), where a = |x|, w = -2 u log2 e; GELU by tanh has u = sqrt(2 /
 * pi) (a + 0.044715 a^3). Below -10 nothing is left. */
ATTN_INLINE_ void ATTN_FN_(gelu_tanh_some)(ATTN_VF_ *x, const int n) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_(), none = ATTN_V_SET1_(-0.0f);
  ATTN_VF_ a[ATTN_FN_(act_wide)], e[ATTN_FN_(act_wide)];
  ATTN_UNROLL_
  for (int i = 0; i < n; i++) {
    a[i] = ATTN_V_MAX_(ATTN_V_SET1_(-10.0f), ATTN_V_SUB_(zero, ATTN_V_ABS_(x[i])));
    e[i] =
        ATTN_V_FMA_(ATTN_V_MUL_(a[i], a[i]), ATTN_V_SET1_(0.10294324f), ATTN_V_SET1_(2.3022082f));
  }
  if (n == 1)
    e[0] = ATTN_FN_(exp2_product)(a[0], e[0]);
  else
    ATTN_FN_(exp2_product4)(e, a);
  ATTN_UNROLL_
  for (int i = 0; i < n; i++)
    x[i] = ATTN_V_ADD_(ATTN_V_MAX_(none, x[i]),
                       ATTN_V_DIV_(ATTN_V_MUL_(a[i], e[i]), ATTN_V_ADD_(one, e[i])));
}

/* log2(1 + 2^x) = max(x, 0) + log2(1 + z), z = 2^-|x| */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(softplus2)(ATTN_VF_ x) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), z = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(x)));
  return ATTN_V_FMA_(ATTN_FN_(log2_beside)(z), z, ATTN_V_MAX_(zero, x));
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(activation)(ATTN_VF_ x, int act) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_VF_ t;
  switch (act) {
    case ATTN_ACT_RELU: return ATTN_V_SELECT_(ATTN_V_LT_(x, zero), zero, x);
    case ATTN_ACT_RELU2: t = ATTN_V_SELECT_(ATTN_V_LT_(x, zero), zero, x); return ATTN_V_MUL_(t, t);
    case ATTN_ACT_GELU: ATTN_FN_(gelu_some)(&x, 1); return x;
    case ATTN_ACT_GELU_TANH: ATTN_FN_(gelu_tanh_some)(&x, 1); return x;
    case ATTN_ACT_SILU:
      x = ATTN_V_MAX_(ATTN_V_SET1_(-104.0f), x);
      return ATTN_V_MUL_(x, ATTN_FN_(sigmoid)(x));
    case ATTN_ACT_SIGMOID: return ATTN_FN_(sigmoid)(x);
    case ATTN_ACT_TANH: return ATTN_FN_(tanh)(x);
    case ATTN_ACT_EXP: return ATTN_FN_(exp)(x);
    case ATTN_ACT_ELU1:
      return ATTN_V_SELECT_(ATTN_V_LT_(zero, x), ATTN_V_ADD_(x, ATTN_V_SET1_(1.0f)),
                            ATTN_FN_(exp)(x));
    case ATTN_ACT_SOFTPLUS2_: return ATTN_FN_(softplus2)(x);
    default: return x;
  }
}

/* `count` vectors from i on, w numbers of the last. */
ATTN_INLINE_ void ATTN_FN_(act_some)(float *y, const float *x, const float *gate, int64_t i, int w,
                                     const float *bias, ATTN_VF_ scale, const int act,
                                     const int count) {
  ATTN_VF_ t[ATTN_FN_(act_wide)];
  ATTN_UNROLL_
  for (int j = 0; j < count; j++) {
    const int64_t at = i + j * ATTN_W_;
    t[j] = ATTN_FN_(load)(x, at, w, ATTN_F32);
    t[j] = bias ? ATTN_V_FMA_(t[j], scale, ATTN_FN_(load)(bias, at, w, ATTN_F32))
                : ATTN_V_MUL_(t[j], scale);
  }
  if (act == ATTN_ACT_GELU) {
    ATTN_FN_(gelu_some)(t, count);
  } else if (act == ATTN_ACT_GELU_TANH) {
    ATTN_FN_(gelu_tanh_some)(t, count);
  } else {
    ATTN_UNROLL_
    for (int j = 0; j < count; j++) t[j] = ATTN_FN_(activation)(t[j], act);
  }
  ATTN_UNROLL_
  for (int j = 0; j < count; j++) {
    const int64_t at = i + j * ATTN_W_;
    if (gate) t[j] = ATTN_V_MUL_(t[j], ATTN_FN_(load)(gate, at, w, ATTN_F32));
    ATTN_FN_(store)(y, at, ATTN_FN_(quiet)(t[j]), w, ATTN_F32);
  }
}

/* One activation over a row; where act is known here, the loop over whole vectors holds nothing else. */
ATTN_INLINE_ void ATTN_FN_(act_row)(float *y, const float *x, const float *gate, int64_t n,
                                    const float *bias, float scale, const int act) {
  const ATTN_VF_ s = ATTN_V_SET1_(scale);
  int64_t i = 0;
#if ATTN_SPECIALISE_
  enum { WIDE = ATTN_FN_(act_wide) };
  if (act == ATTN_ACT_GELU || act == ATTN_ACT_GELU_TANH)
    for (; i + WIDE * ATTN_W_ <= n; i += WIDE * ATTN_W_)
      ATTN_FN_(act_some)(y, x, gate, i, ATTN_W_, bias, s, act, WIDE);
  for (; i + ATTN_W_ <= n; i += ATTN_W_)
    ATTN_FN_(act_some)(y, x, gate, i, ATTN_W_, bias, s, act, 1);
#endif
  for (; i < n; i += ATTN_W_)
    ATTN_FN_(act_some)(y, x, gate, i, ATTN_FN_(lanes_left)(n, i), bias, s, act, 1);
}

ATTN_FUNC_ void ATTN_FN_(act)(float *y, const float *x, const float *gate, int64_t n,
                              const float *bias, float scale, int act) {
#if ATTN_SPECIALISE_
  switch (act) {
#define ATTN_CASE_(one) \
  case one: ATTN_FN_(act_row)(y, x, gate, n, bias, scale, one); return;
    ATTN_CASE_(ATTN_ACT_RELU)
    ATTN_CASE_(ATTN_ACT_RELU2)
    ATTN_CASE_(ATTN_ACT_GELU)
    ATTN_CASE_(ATTN_ACT_GELU_TANH)
    ATTN_CASE_(ATTN_ACT_SILU)
    ATTN_CASE_(ATTN_ACT_SIGMOID)
    ATTN_CASE_(ATTN_ACT_TANH)
    ATTN_CASE_(ATTN_ACT_EXP)
    ATTN_CASE_(ATTN_ACT_ELU1)
    ATTN_CASE_(ATTN_ACT_SOFTPLUS2_)
    default: ATTN_FN_(act_row)(y, x, gate, n, bias, scale, ATTN_ACT_NONE);
#undef ATTN_CASE_
  }
#else
  ATTN_FN_(act_row)(y, x, gate, n, bias, scale, act);
#endif
}

ATTN_FUNC_ void ATTN_FN_(activate)(float *y, int64_t n, const float *bias, float scale, int act) {
  ATTN_FN_(act)(y, y, NULL, n, bias, scale, act);
}

ATTN_FUNC_ void ATTN_FN_(clip)(float *y, const float *x, int64_t n, float low, float high,
                               const float by[2]) {
  const ATTN_VF_ least = ATTN_V_SET1_(low), most = ATTN_V_SET1_(high);
  const ATTN_VF_ scale = ATTN_V_SET1_(by[0]), more = ATTN_V_SET1_(by[1]);
  for (int64_t i = 0; i < n; i += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ t = ATTN_FN_(load)(x, i, w, ATTN_F32);
    t = ATTN_V_SELECT_(ATTN_V_LT_(most, t), most, t);
    t = ATTN_V_SELECT_(ATTN_V_LT_(t, least), least, t);
    ATTN_FN_(store)(y, i, ATTN_V_FMA_(t, scale, more), w, ATTN_F32);
  }
}
