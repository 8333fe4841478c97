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
