/* kernels/math.h owns elementary functions on vectors. Every exponential of the library ends in
 * the same polynomial, in loop bodies and tails alike. */

/* 2^f for |f| <= 1/2: 1 + f (c1 + ... c6 f^5), weighted minimax in ULP of the result; times
 * ATTN_EXP_UNIT_, a power of 2, which changes no rounding. One step of it for each of the chains
 * that `each` names, so that they run side by side. */
#define ATTN_POLY_0_(i)                                                 \
  p##i = ATTN_V_FMA_(ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C6_), f##i, \
                     ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C5_));
#define ATTN_POLY_1_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C4_));
#define ATTN_POLY_2_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C3_));
#define ATTN_POLY_3_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C2_));
#define ATTN_POLY_4_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C1_));
#define ATTN_POLY_5_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_));
#define ATTN_POLY_(each)                                                                         \
  each(ATTN_POLY_0_) each(ATTN_POLY_1_) each(ATTN_POLY_2_) each(ATTN_POLY_3_) each(ATTN_POLY_4_) \
      each(ATTN_POLY_5_)

/* 2^y for y <= 0 or NaN, 0 where it would be subnormal: a weight beside one of 1. y - round(y) is
 * exact, so the error is the polynomial's. */
#define ATTN_EXP2_CLAMP_(i) f##i = ATTN_V_EXP_FLOOR_(f##i);
#define ATTN_EXP2_ROUND_(i) ATTN_V_ROUND_(f##i, t##i, n##i);
#define ATTN_EXP2_REDUCE_(i) f##i = ATTN_V_SUB_(f##i, n##i);
#define ATTN_EXP2_SCALE_(i) p##i = ATTN_V_LDEXP_SMALL_(p##i, t##i, n##i);
#define ATTN_EXP2_(each)                                                                 \
  each(ATTN_EXP2_CLAMP_) each(ATTN_EXP2_ROUND_) each(ATTN_EXP2_REDUCE_) ATTN_POLY_(each) \
  each(ATTN_EXP2_SCALE_)

#define ATTN_EACH1_(step) step(0)
#define ATTN_EACH4_(step) step(0) step(1) step(2) step(3)

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_neg)(ATTN_VF_ f0) {
  ATTN_VF_ t0, n0, p0;
  ATTN_EXP2_(ATTN_EACH1_)
  return p0;
}

/* four at once, side by side: one chain alone fills the scheduler of a core before its ports
 * (measured on Zen 5: 5.2 -> 4.0 cycles a vector) */
ATTN_INLINE_ void ATTN_FN_(exp2_neg4)(ATTN_VF_ *y) {
  ATTN_VF_ f0 = y[0], f1 = y[1], f2 = y[2], f3 = y[3];
  ATTN_VF_ t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3;
  ATTN_EXP2_(ATTN_EACH4_)
  y[0] = p0, y[1] = p1, y[2] = p2, y[3] = p3;
}

/* 2^y - 2^n and 2^n, n = y rounded, for -126 <= y <= 64 or NaN: the first loses nothing where it is small. 2^n
 * is 0 from -126 down. w = 2^n / ATTN_EXP_UNIT_. */
#define ATTN_SPLIT_POWER_(i) w##i = ATTN_V_LDEXP_SMALL_(one, t##i, n##i);
#define ATTN_SPLIT_REST_(i) p##i = ATTN_V_MUL_(ATTN_V_MUL_(p##i, f##i), w##i);
#define ATTN_EXP2_SPLIT_(each)                                                              \
  each(ATTN_EXP2_ROUND_) each(ATTN_EXP2_REDUCE_) each(ATTN_SPLIT_POWER_) each(ATTN_POLY_0_) \
      each(ATTN_POLY_1_) each(ATTN_POLY_2_) each(ATTN_POLY_3_) each(ATTN_POLY_4_)           \
          each(ATTN_SPLIT_REST_)

ATTN_INLINE_ void ATTN_FN_(exp2_parts)(ATTN_VF_ *y, ATTN_VF_ *power) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), unit = ATTN_V_SET1_(ATTN_EXP_UNIT_);
  ATTN_VF_ f0 = *y, t0, n0, p0, w0;
  ATTN_EXP2_SPLIT_(ATTN_EACH1_)
  *y = p0, *power = ATTN_V_MUL_(w0, unit);
}

ATTN_INLINE_ void ATTN_FN_(exp2_parts4)(ATTN_VF_ *y, ATTN_VF_ *power) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), unit = ATTN_V_SET1_(ATTN_EXP_UNIT_);
  ATTN_VF_ f0 = y[0], f1 = y[1], f2 = y[2], f3 = y[3];
  ATTN_VF_ t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3, w0, w1, w2, w3;
  ATTN_EXP2_SPLIT_(ATTN_EACH4_)
  y[0] = p0, y[1] = p1, y[2] = p2, y[3] = p3;
  power[0] = ATTN_V_MUL_(w0, unit), power[1] = ATTN_V_MUL_(w1, unit);
  power[2] = ATTN_V_MUL_(w2, unit), power[3] = ATTN_V_MUL_(w3, unit);
}

/* 2^(x y) for -126 <= x y <= 0 or NaN: what is left of the product behind its whole part is rounded once. */
#define ATTN_EXP2_TIMES_(i) f##i = ATTN_V_MUL_(x##i, y##i);
#define ATTN_EXP2_REST_(i) f##i = ATTN_V_FMA_(x##i, y##i, ATTN_V_SUB_(zero, n##i));
#define ATTN_EXP2_PRODUCT_(each)                                                       \
  each(ATTN_EXP2_TIMES_) each(ATTN_EXP2_ROUND_) each(ATTN_EXP2_REST_) ATTN_POLY_(each) \
  each(ATTN_EXP2_SCALE_)

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_product)(ATTN_VF_ x0, ATTN_VF_ y0) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_VF_ f0, t0, n0, p0;
  ATTN_EXP2_PRODUCT_(ATTN_EACH1_)
  return p0;
}

ATTN_INLINE_ void ATTN_FN_(exp2_product4)(ATTN_VF_ *y, const ATTN_VF_ *x) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  const ATTN_VF_ y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3];
  ATTN_VF_ f0, f1, f2, f3, t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3;
  ATTN_EXP2_PRODUCT_(ATTN_EACH4_)
  y[0] = p0, y[1] = p1, y[2] = p2, y[3] = p3;
}

/* the same to 7.5e-5 of the result, for weights that are rounded to bf16 next */
#define ATTN_SHORT_0_(i)                                               \
  p##i = ATTN_V_FMA_(ATTN_V_SET1_(ATTN_EXP_UNIT_ * 0.05517167f), f##i, \
                     ATTN_V_SET1_(ATTN_EXP_UNIT_ * 0.24261113f));
#define ATTN_SHORT_1_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * 0.69326099f));
#define ATTN_SHORT_2_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * 0.99992807f));
ATTN_INLINE_ void ATTN_FN_(exp2_short4)(ATTN_VF_ *y) {
  ATTN_VF_ f0 = y[0], f1 = y[1], f2 = y[2], f3 = y[3];
  ATTN_VF_ t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3;
  ATTN_EACH4_(ATTN_EXP2_CLAMP_)
  ATTN_EACH4_(ATTN_EXP2_ROUND_)
  ATTN_EACH4_(ATTN_EXP2_REDUCE_)
  ATTN_EACH4_(ATTN_SHORT_0_)
  ATTN_EACH4_(ATTN_SHORT_1_)
  ATTN_EACH4_(ATTN_SHORT_2_)
  ATTN_EACH4_(ATTN_EXP2_SCALE_)
  y[0] = p0, y[1] = p1, y[2] = p2, y[3] = p3;
}

/* 2^y for y <= 0 or NaN, subnormal results included: for weights that leave the library */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_full)(ATTN_VF_ y) {
  ATTN_VF_ f0 = ATTN_V_MAX_(ATTN_V_SET1_(-150.0f), y), t0, n0, p0;
  ATTN_EXP2_ROUND_(0) ATTN_EXP2_REDUCE_(0) ATTN_POLY_(ATTN_EACH1_)
  return ATTN_V_LDEXP_(p0, t0, n0);
}

/* e^x for x <= 0 or NaN. ln 2 is split so that n * hi is exact for |n| <= 2^9 with or without FMA */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp_neg)(ATTN_VF_ x) {
  const ATTN_VF_ y = ATTN_V_MAX_(ATTN_V_SET1_(-104.0f), x);
  ATTN_VF_ t = ATTN_V_FMA_(y, ATTN_V_SET1_((float)ATTN_LOG2E_), ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ n = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ r = ATTN_V_FMA_(n, ATTN_V_SET1_(-0.693145751953125f), y);
  r = ATTN_V_FMA_(n, ATTN_V_SET1_(-1.42860677e-6f), r);
  ATTN_VF_ f0 = ATTN_V_MUL_(r, ATTN_V_SET1_((float)ATTN_LOG2E_)), p0;
  ATTN_POLY_(ATTN_EACH1_)
  return ATTN_V_LDEXP_(p0, t, n);
}

/* e^x for every x */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp)(ATTN_VF_ x) {
  const ATTN_VF_ most = ATTN_V_SET1_(88.8f);
  return ATTN_FN_(exp_neg)(ATTN_V_SELECT_(ATTN_V_LT_(most, x), most, x));
}

/* tanh x = (1 - e)/(1 + e) with e = 2^y, y = -2 |x| log2 e. With y = n + f and 2^f = 1 + f q(f),
 * 1 - e = (1 - 2^n) - 2^n f q(f) loses nothing near 0. Here w = 2^n / ATTN_EXP_UNIT_, u = 1 - e. */
#define ATTN_TANH_ARG_(i) \
  f##i = ATTN_V_MUL_(ATTN_V_ABS_(x##i), ATTN_V_SET1_((float)(-2.0 * ATTN_LOG2E_)));
#define ATTN_TANH_CLAMP_(i) f##i = ATTN_V_MAX_(ATTN_V_SET1_(-30.0f), f##i);
#define ATTN_TANH_POWER_(i) w##i = ATTN_V_LDEXP_SMALL_(one, t##i, n##i);
#define ATTN_TANH_TOP_(i) \
  u##i = ATTN_V_SUB_(ATTN_V_FMA_(w##i, unit, one), ATTN_V_MUL_(ATTN_V_MUL_(p##i, f##i), w##i));
#define ATTN_TANH_DIVIDE_(i) u##i = ATTN_V_DIV_(u##i, ATTN_V_SUB_(two, u##i));
#define ATTN_TANH_SIGN_(i) \
  x##i = ATTN_V_SELECT_(ATTN_V_LT_(x##i, zero), ATTN_V_SUB_(zero, u##i), u##i);
#define ATTN_TANH_(each)                                                                     \
  each(ATTN_TANH_ARG_) each(ATTN_TANH_CLAMP_) each(ATTN_EXP2_ROUND_) each(ATTN_EXP2_REDUCE_) \
      each(ATTN_TANH_POWER_) each(ATTN_POLY_0_) each(ATTN_POLY_1_) each(ATTN_POLY_2_)        \
          each(ATTN_POLY_3_) each(ATTN_POLY_4_) each(ATTN_TANH_TOP_) each(ATTN_TANH_DIVIDE_) \
              each(ATTN_TANH_SIGN_)

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(tanh)(ATTN_VF_ x0) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), two = ATTN_V_SET1_(2.0f);
  const ATTN_VF_ unit = ATTN_V_SET1_(-ATTN_EXP_UNIT_);
  ATTN_VF_ f0, t0, n0, p0, w0, u0;
  ATTN_TANH_(ATTN_EACH1_)
  return x0;
}

ATTN_INLINE_ void ATTN_FN_(tanh4)(ATTN_VF_ *x) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), two = ATTN_V_SET1_(2.0f);
  const ATTN_VF_ unit = ATTN_V_SET1_(-ATTN_EXP_UNIT_);
  ATTN_VF_ x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  ATTN_VF_ f0, f1, f2, f3, t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3;
  ATTN_VF_ w0, w1, w2, w3, u0, u1, u2, u3;
  ATTN_TANH_(ATTN_EACH4_)
  x[0] = x0, x[1] = x1, x[2] = x2, x[3] = x3;
}

#undef ATTN_POLY_0_
#undef ATTN_POLY_1_
#undef ATTN_POLY_2_
#undef ATTN_POLY_3_
#undef ATTN_POLY_4_
#undef ATTN_POLY_5_
#undef ATTN_POLY_
#undef ATTN_SPLIT_POWER_
#undef ATTN_SPLIT_REST_
#undef ATTN_EXP2_SPLIT_
#undef ATTN_SHORT_0_
#undef ATTN_SHORT_1_
#undef ATTN_SHORT_2_
#undef ATTN_EXP2_CLAMP_
#undef ATTN_EXP2_ROUND_
#undef ATTN_EXP2_REDUCE_
#undef ATTN_EXP2_SCALE_
#undef ATTN_EXP2_TIMES_
#undef ATTN_EXP2_REST_
#undef ATTN_EXP2_PRODUCT_
#undef ATTN_EXP2_
#undef ATTN_EACH1_
#undef ATTN_EACH4_
#undef ATTN_TANH_ARG_
#undef ATTN_TANH_CLAMP_
#undef ATTN_TANH_POWER_
#undef ATTN_TANH_TOP_
#undef ATTN_TANH_DIVIDE_
#undef ATTN_TANH_SIGN_
#undef ATTN_TANH_
