/* kernels/math.h owns elementary functions on vectors. Every exponential of the library ends in
 * the same polynomial, in loop bodies and tails alike. */

/* 2^f for |f| <= 1/2: 1 + f (c1 + ... c6 f^5), weighted minimax in ULP of the result. One step of
 * it for each of the chains that `each` names, so that they run side by side. */
#define ATTN_POLY_0_(i) \
  p##i = ATTN_V_FMA_(ATTN_V_SET1_(ATTN_EXP_C6_), f##i, ATTN_V_SET1_(ATTN_EXP_C5_));
#define ATTN_POLY_1_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_C4_));
#define ATTN_POLY_2_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_C3_));
#define ATTN_POLY_3_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_C2_));
#define ATTN_POLY_4_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_C1_));
#define ATTN_POLY_5_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(1.0f));
#define ATTN_POLY_(each)                                     \
  each(ATTN_POLY_0_) each(ATTN_POLY_1_) each(ATTN_POLY_2_) \
  each(ATTN_POLY_3_) each(ATTN_POLY_4_) each(ATTN_POLY_5_)

/* 2^y for y <= 0 or NaN; 0 for y <= -150. y - round(y) is exact, so the error is the polynomial's */
#define ATTN_EXP2_CLAMP_(i) f##i = ATTN_V_MAX_(ATTN_V_SET1_(-150.0f), f##i);
#define ATTN_EXP2_ROUND_(i) ATTN_V_ROUND_(f##i, t##i, n##i);
#define ATTN_EXP2_REDUCE_(i) f##i = ATTN_V_SUB_(f##i, n##i);
#define ATTN_EXP2_SCALE_(i) p##i = ATTN_V_LDEXP_SMALL_(p##i, t##i, n##i);
#define ATTN_EXP2_(each) \
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

/* e^x for every x. ln 2 is split so that n * hi is exact for |n| <= 2^9 with or without FMA */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp)(ATTN_VF_ x) {
  ATTN_VF_ y = ATTN_V_MAX_(ATTN_V_SET1_(-104.0f), x);
  y = ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_SET1_(88.8f), y), ATTN_V_SET1_(88.8f), y);
  ATTN_VF_ t = ATTN_V_FMA_(y, ATTN_V_SET1_((float)ATTN_LOG2E_), ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ n = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ r = ATTN_V_FMA_(n, ATTN_V_SET1_(-0.693145751953125f), y);
  r = ATTN_V_FMA_(n, ATTN_V_SET1_(-1.42860677e-6f), r);
  ATTN_VF_ f0 = ATTN_V_MUL_(r, ATTN_V_SET1_((float)ATTN_LOG2E_)), p0;
  ATTN_POLY_(ATTN_EACH1_)
  return ATTN_V_LDEXP_(p0, t, n);
}

/* tanh x = x + x^3 P(x^2) near 0 (Cephes' interval), 1 - 2/(e^2|x| + 1) beyond */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(tanh)(ATTN_VF_ x) {
  ATTN_VF_ one = ATTN_V_SET1_(1.0f), z = ATTN_V_MUL_(x, x), a = ATTN_V_ABS_(x);
  ATTN_VF_ p = ATTN_V_SET1_(-5.70498872745e-3f);
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(2.06390887954e-2f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-5.37397155531e-2f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(1.33314422036e-1f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-3.33332819422e-1f));
  p = ATTN_V_FMA_(ATTN_V_MUL_(p, z), x, x);
  /* e = 2^-2|x| log2 e <= 1 */
  ATTN_VF_ e = ATTN_FN_(exp2_neg)(ATTN_V_MUL_(a, ATTN_V_SET1_((float)(-2.0 * ATTN_LOG2E_))));
  ATTN_VF_ b = ATTN_V_DIV_(ATTN_V_SUB_(one, e), ATTN_V_ADD_(one, e));
  b = ATTN_V_SELECT_(ATTN_V_LT_(x, ATTN_V_ZERO_()), ATTN_V_SUB_(ATTN_V_ZERO_(), b), b);
  return ATTN_V_SELECT_(ATTN_V_LT_(a, ATTN_V_SET1_(0.625f)), p, b);
}

#undef ATTN_POLY_0_
#undef ATTN_POLY_1_
#undef ATTN_POLY_2_
#undef ATTN_POLY_3_
#undef ATTN_POLY_4_
#undef ATTN_POLY_5_
#undef ATTN_POLY_
#undef ATTN_EXP2_CLAMP_
#undef ATTN_EXP2_ROUND_
#undef ATTN_EXP2_REDUCE_
#undef ATTN_EXP2_SCALE_
#undef ATTN_EXP2_
#undef ATTN_EACH1_
#undef ATTN_EACH4_
