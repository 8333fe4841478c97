/* isa/simd_neonfp16fml.h owns the words of pairs of f16 that FEAT_FHM of 64-bit ARM has instructions for, which
 * add products of f16 to f32 with one rounding: the sums are those of isa/simd_f16.h. */

#undef ATTN_T_
#define ATTN_T_ neonfp16fml
#undef ATTN_VP_
#define ATTN_VP_ uint16x8_t
#undef ATTN_PAIR_LOAD_
#define ATTN_PAIR_LOAD_(p) vreinterpretq_u16_u32(vld1q_u32(p))
#undef ATTN_PAIR_STORE_
#define ATTN_PAIR_STORE_(p, v) vst1q_u32(p, vreinterpretq_u32_u16(v))
#undef ATTN_PAIR_SET1_
#define ATTN_PAIR_SET1_(x) vreinterpretq_u16_u32(vdupq_n_u32(x))
#undef ATTN_PAIR_EVEN_
#define ATTN_PAIR_EVEN_(v) vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(v)))
#undef ATTN_PAIR_ODD_
#define ATTN_PAIR_ODD_(v) vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(v)))
#undef ATTN_PAIR_JOIN_
#define ATTN_PAIR_JOIN_(even, odd) \
  vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(even)), vreinterpret_u16_f16(vcvt_f16_f32(odd)))
#undef ATTN_PAIR_WORDS_
#define ATTN_PAIR_WORDS_(to, even, odd) attn_words_neonfp16fml_(to, even, odd)
#undef ATTN_PAIR_DOT_
#define ATTN_PAIR_DOT_(a, b, c) attn_dot_neonfp16fml_(a, b, c)
#undef ATTN_PAIR_EXP2_
#define ATTN_PAIR_EXP2_(x) attn_exp2_short4_neon_(x)
/* 2 W numbers of two rows as 2 W pairs */
#undef ATTN_PAIR_ZIP_
#define ATTN_PAIR_ZIP_(to, even, odd) attn_zip_neonfp16fml_(to, even, odd)

/* FMLAL and FMLAL2 by their numbers: the assembler of gcc knows the names for a version of the architecture alone,
 * which would take away from what -march says. */
#define ATTN_FML_(code)                                                                       \
  ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30" \
  ",31\n\t.equ .Lattn_v\\n, \\n\n\t.endr\n\t.inst " code                                      \
  " + (.Lattn_%2 << 16) + (.Lattn_%1 << 5) + .Lattn_%0"
ATTN_INLINE_ float32x4_t attn_dot_neonfp16fml_(uint16x8_t a, uint16x8_t b, float32x4_t c) {
  __asm__(ATTN_FML_("0x4f800000") : "+w"(c) : "w"(a), "x"(b)); /* fmlal %0.4s, %1.4h, %2.h[0] */
  __asm__(ATTN_FML_("0x6f908000") : "+w"(c) : "w"(a), "x"(b)); /* fmlal2 %0.4s, %1.4h, %2.h[1] */
  return c;
}
#undef ATTN_FML_

ATTN_INLINE_ void attn_words_neonfp16fml_(uint32_t *to, float32x4_t even, float32x4_t odd) {
  const uint16x8_t x = ATTN_PAIR_JOIN_(even, odd);
  const uint16x4x2_t w = vzip_u16(vget_low_u16(x), vget_high_u16(x));
  vst1q_u32(to, vreinterpretq_u32_u16(vcombine_u16(w.val[0], w.val[1])));
}

ATTN_INLINE_ void attn_zip_neonfp16fml_(uint32_t *to, const uint16_t *even, const uint16_t *odd) {
  uint16x8x2_t x;
  x.val[0] = vld1q_u16(even), x.val[1] = vld1q_u16(odd);
  vst2q_u16((uint16_t *)(void *)to, x);
}
