/* kernels/math_sleef.h owns the functions of kernels/math.h on top of SLEEF, for users who define
 * ATTN_USE_SLEEF and link with -lsleef: 1.0 ULP each, at about SLEEF's cost. Results then have
 * other bits than the built-in ones, and may differ between tiers. */

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_full)(ATTN_VF_ y) { return ATTN_V_SLEEF_(exp2)(y); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_neg)(ATTN_VF_ y) { return ATTN_V_SLEEF_(exp2)(y); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_product)(ATTN_VF_ a, ATTN_VF_ b) {
  return ATTN_V_SLEEF_(exp2)(ATTN_V_MUL_(a, b));
}
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp)(ATTN_VF_ x) { return ATTN_V_SLEEF_(exp)(x); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp_neg)(ATTN_VF_ x) { return ATTN_V_SLEEF_(exp)(x); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(tanh)(ATTN_VF_ x) { return ATTN_V_SLEEF_(tanh)(x); }

ATTN_INLINE_ void ATTN_FN_(exp2_neg4)(ATTN_VF_ *y) {
  for (int i = 0; i < 4; i++) y[i] = ATTN_V_SLEEF_(exp2)(y[i]);
}
ATTN_INLINE_ void ATTN_FN_(exp2_short4)(ATTN_VF_ *y) { ATTN_FN_(exp2_neg4)(y); }
ATTN_INLINE_ void ATTN_FN_(tanh4)(ATTN_VF_ *x) {
  for (int i = 0; i < 4; i++) x[i] = ATTN_V_SLEEF_(tanh)(x[i]);
}
ATTN_INLINE_ void ATTN_FN_(exp2_product4)(ATTN_VF_ *y, const ATTN_VF_ *x) {
  for (int i = 0; i < 4; i++) y[i] = ATTN_V_SLEEF_(exp2)(ATTN_V_MUL_(x[i], y[i]));
}

/* 2^y - 2^n and 2^n, n = y rounded. */
ATTN_INLINE_ void ATTN_FN_(exp2_parts)(ATTN_VF_ *y, ATTN_VF_ *power) {
  ATTN_VF_ t, n;
  ATTN_V_ROUND_(*y, t, n);
  (void)t;
  *power = ATTN_V_SLEEF_(exp2)(n);
  *y = ATTN_V_SLEEF_(expm1)(ATTN_V_MUL_(ATTN_V_SUB_(*y, n), ATTN_V_SET1_(0.693147182f)));
  *y = ATTN_V_MUL_(*y, *power);
}
ATTN_INLINE_ void ATTN_FN_(exp2_parts4)(ATTN_VF_ *y, ATTN_VF_ *power) {
  for (int i = 0; i < 4; i++) ATTN_FN_(exp2_parts)(y + i, power + i);
}
