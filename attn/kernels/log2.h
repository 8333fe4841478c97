/* kernels/log2.h owns logarithms beside 1, the same with SLEEF and without. */

/* log2(1 + z) / z for 0 <= z <= 1, a minimax fit (3e-8) */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(log2_beside)(ATTN_VF_ z) {
  ATTN_VF_ p = ATTN_V_SET1_(0.00754918205f);
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.0425670631f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(0.112856194f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.197118968f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(0.275641412f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.358408481f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(0.480692953f));
  p = ATTN_V_FMA_(p, z, ATTN_V_SET1_(-0.721340179f));
  return ATTN_V_FMA_(p, z, ATTN_V_SET1_(1.44269502f));
}
