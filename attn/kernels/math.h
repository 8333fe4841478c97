/* kernels/math.h owns elementary functions on vectors. Every exponential of the library ends in
 * the same polynomial, in loop bodies and tails alike. */

/* 2^f for |f| <= 1/2: 1 + f (c1 + ... c5 f^4), weighted minimax in ULP of the result */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_poly)(ATTN_VF_ f) {
  ATTN_VF_ p = ATTN_V_SET1_(ATTN_EXP_C5_);
  p = ATTN_V_FMA_(p, f, ATTN_V_SET1_(ATTN_EXP_C4_));
  p = ATTN_V_FMA_(p, f, ATTN_V_SET1_(ATTN_EXP_C3_));
  p = ATTN_V_FMA_(p, f, ATTN_V_SET1_(ATTN_EXP_C2_));
  p = ATTN_V_FMA_(p, f, ATTN_V_SET1_(ATTN_EXP_C1_));
  return ATTN_V_FMA_(p, f, ATTN_V_SET1_(1.0f));
}

/* 2^y for y <= 0 or NaN; 0 for y <= -150. y - round(y) is exact, so the error is the polynomial's */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_neg)(ATTN_VF_ y) {
  y = ATTN_V_MAX_(ATTN_V_SET1_(-150.0f), y);
  ATTN_VF_ t = ATTN_V_ADD_(y, ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ n = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ p = ATTN_FN_(exp2_poly)(ATTN_V_SUB_(y, n));
  return ATTN_V_LDEXP_SMALL_(p, t, n);
}

/* e^x for every x. ln 2 is split so that n * hi is exact for |n| <= 2^9 with or without FMA */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp)(ATTN_VF_ x) {
  ATTN_VF_ y = ATTN_V_MAX_(ATTN_V_SET1_(-104.0f), x);
  y = ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_SET1_(88.8f), y), ATTN_V_SET1_(88.8f), y);
  ATTN_VF_ t = ATTN_V_FMA_(y, ATTN_V_SET1_((float)ATTN_LOG2E_), ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ n = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ r = ATTN_V_FMA_(n, ATTN_V_SET1_(-0.693145751953125f), y);
  r = ATTN_V_FMA_(n, ATTN_V_SET1_(-1.42860677e-6f), r);
  ATTN_VF_ p = ATTN_FN_(exp2_poly)(ATTN_V_MUL_(r, ATTN_V_SET1_((float)ATTN_LOG2E_)));
  return ATTN_V_LDEXP_(p, t, n);
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
