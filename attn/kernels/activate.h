/* kernels/activate.h owns what follows a dense product: scale, bias, activation. */

/* 1 / (1 + e^-x), without overflow */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(sigmoid)(ATTN_VF_ x) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_();
  const ATTN_VF_ e = ATTN_FN_(exp_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(x)));
  const ATTN_VF_ top = ATTN_V_SELECT_(ATTN_V_LT_(x, zero), e, one);
  return ATTN_V_DIV_(top, ATTN_V_ADD_(one, e));
}

/* x erfc(-x / sqrt 2) / 2. erfc z = e^(-z^2) t p(t), t = 1 / (1 + 0.3 z), p a minimax fit for 0 <= z <=
 * 9.4 (2e-8); z^2 in two parts, or its rounding would be seen in the tail. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(gelu)(ATTN_VF_ x0) {
  const ATTN_VF_ most = ATTN_V_SET1_(14.0f), x = ATTN_V_MAX_(ATTN_V_SET1_(-14.0f), x0);
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
  const ATTN_VF_ phi = ATTN_V_SELECT_(ATTN_V_LT_(x, zero), tail, ATTN_V_SUB_(one, tail));
  return ATTN_V_MUL_(x, phi);
}

/* log2(1 + 2^x) = max(x, 0) + log2(1 + z), z = 2^-|x|; log2(1 + z) / z is a minimax fit (3e-8). */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(softplus2)(ATTN_VF_ x) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), z = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(x)));
  ATTN_VF_ p = ATTN_V_SET1_(0.00754918205f);
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.0425670631f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(0.112856194f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.197118968f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(0.275641412f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.358408481f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(0.480692953f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.721340179f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(1.44269502f));
  return ATTN_V_FMA_(p, z, ATTN_V_MAX_(zero, x));
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(activation)(ATTN_VF_ x, int act) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_VF_ t;
  switch (act) {
    case ATTN_ACT_RELU: return ATTN_V_SELECT_(ATTN_V_LT_(x, zero), zero, x);
    case ATTN_ACT_RELU2: t = ATTN_V_SELECT_(ATTN_V_LT_(x, zero), zero, x); return ATTN_V_MUL_(t, t);
    case ATTN_ACT_GELU: return ATTN_FN_(gelu)(x);
    case ATTN_ACT_GELU_TANH: /* (1 + tanh u) / 2 = sigmoid 2u; below -14 nothing is left */
      x = ATTN_V_MAX_(ATTN_V_SET1_(-14.0f), x);
      t = ATTN_V_MUL_(ATTN_V_MUL_(x, x), ATTN_V_SET1_(0.0713548163f));
      t = ATTN_V_FMA_(t, x, ATTN_V_MUL_(x, ATTN_V_SET1_(1.59576912f)));
      return ATTN_V_MUL_(x, ATTN_FN_(sigmoid)(t));
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

ATTN_INLINE_ void ATTN_FN_(act_some)(float *y, const float *x, const float *gate, int64_t i, int w,
                                     const float *bias, ATTN_VF_ scale, const int act) {
  ATTN_VF_ t = ATTN_FN_(load)(x, i, w, ATTN_F32);
  t = bias ? ATTN_V_FMA_(t, scale, ATTN_FN_(load)(bias, i, w, ATTN_F32)) : ATTN_V_MUL_(t, scale);
  t = ATTN_FN_(activation)(t, act);
  if (gate) t = ATTN_V_MUL_(t, ATTN_FN_(load)(gate, i, w, ATTN_F32));
  ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(t), w, ATTN_F32);
}

/* One activation over a row; where act is known here, the loop over whole vectors holds nothing else. */
ATTN_INLINE_ void ATTN_FN_(act_row)(float *y, const float *x, const float *gate, int64_t n,
                                    const float *bias, float scale, const int act) {
  const ATTN_VF_ s = ATTN_V_SET1_(scale);
  int64_t i = 0;
#if ATTN_SPECIALISE_
  for (; i + ATTN_W_ <= n; i += ATTN_W_) ATTN_FN_(act_some)(y, x, gate, i, ATTN_W_, bias, s, act);
#endif
  for (; i < n; i += ATTN_W_)
    ATTN_FN_(act_some)(y, x, gate, i, ATTN_FN_(lanes_left)(n, i), bias, s, act);
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
