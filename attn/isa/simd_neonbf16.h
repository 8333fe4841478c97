/* isa/simd_neonbf16.h owns the words of the neon vocabulary that FEAT_BF16 of 64-bit ARM has instructions for.
 * It changes those words, which are still there: kernels/low.h is compiled once more, in a region of its
 * own. They are assembly: the intrinsics of gcc want a version of the architecture, see isa/config.h, and clang
 * below 16 has them only where all is compiled for them. Subnormal numbers count as 0; sums are rounded to odd,
 * hence to either side of the number. */

#undef ATTN_T_
#define ATTN_T_ neonbf16
#undef ATTN_TIER_
#define ATTN_TIER_ neon /* whose functions are there */
/* What all lanes are multiplied by stays the first of a register: to repeat it would cost as much as to multiply
 * by it. */
#undef ATTN_VP1_
#define ATTN_VP1_ float
#undef ATTN_PAIR_SET1_
#define ATTN_PAIR_SET1_(x) attn_from_bits_(x)
#undef ATTN_PAIR_DOT_
#define ATTN_PAIR_DOT_(a, b, c) attn_dot_neonbf16_(a, b, c)
#undef ATTN_PAIR_EXP2_
#define ATTN_PAIR_EXP2_(x) attn_exp2_short4_neon_(x)
#undef ATTN_PAIR_JOIN_
#define ATTN_PAIR_JOIN_(even, odd) attn_join_neonbf16_(even, odd)
#undef ATTN_V_STORE_BF16_
#define ATTN_V_STORE_BF16_(p, v) vst1_u16(p, attn_round_neonbf16_(v))
/* 2 W numbers of two rows as 2 W pairs */
#define ATTN_PAIR_ZIP_(to, even, odd) attn_zip_neonbf16_(to, even, odd)

ATTN_INLINE_ float32x4_t attn_dot_neonbf16_(uint32x4_t a, float b, float32x4_t c) {
  __asm__("bfdot %0.4s, %1.8h, %2.2h[0]" : "+w"(c) : "w"(a), "w"(b));
  return c;
}

ATTN_INLINE_ uint16x4_t attn_round_neonbf16_(float32x4_t v) {
  uint16x4_t x;
  __asm__("bfcvtn %0.4h, %1.4s" : "=w"(x) : "w"(v));
  return x;
}

ATTN_INLINE_ uint32x4_t attn_join_neonbf16_(float32x4_t even, float32x4_t odd) {
  const uint16x4x2_t x = vzip_u16(attn_round_neonbf16_(even), attn_round_neonbf16_(odd));
  return vreinterpretq_u32_u16(vcombine_u16(x.val[0], x.val[1]));
}

ATTN_INLINE_ void attn_zip_neonbf16_(uint32_t *to, const uint16_t *even, const uint16_t *odd) {
  uint16x8x2_t x;
  x.val[0] = vld1q_u16(even), x.val[1] = vld1q_u16(odd);
  vst2q_u16((uint16_t *)(void *)to, x);
}
