/* isa/simd_neondotprod.h owns the words of the neon vocabulary that FEAT_DotProd of 64-bit ARM has instructions
 * for: codes of 8 bits, four to a word. kernels/codes.h is compiled once more with them, in a region of its
 * own. Both sides are signed, so that nothing is raised. */

#undef ATTN_T_
#define ATTN_T_ neondotprod
#undef ATTN_TIER_
#define ATTN_TIER_ neon /* whose functions are there */
#define ATTN_CODE_RAISED_ 0.0f
#define ATTN_VC_ int32x4_t
#define ATTN_VC1_ float /* what all lanes are multiplied by: the first of a register */
#define ATTN_CODE_LOAD_(p) vld1q_s32((const int32_t *)(const void *)(p))
#define ATTN_CODE_STORE_(p, v) vst1q_s32((int32_t *)(void *)(p), v)
#define ATTN_CODE_SET1_(x) attn_from_bits_(x)
#define ATTN_CODE_ALL_(x) vdupq_n_s32((int32_t)(x))
#define ATTN_CODE_DOT_(k, x, c) attn_dot_neondotprod_(k, x, c)
#define ATTN_CODE_QUAD_(k, x, c) attn_dots_neondotprod_(k, x, c)
#define ATTN_CODE_SUM_(c) vcvtq_f32_s32(c)
#define ATTN_CODE_PUT_(p, v) attn_put_neondotprod_(p, v)
#define ATTN_CODE_RAISE_(p, from) \
  vst1q_s8((int8_t *)(void *)(p), vld1q_s8((const int8_t *)(const void *)(from)))
#define ATTN_CODE_PUT_FOUR_(p, v) attn_put_four_neondotprod_(p, v)
#define ATTN_CODE_QUADS_(v) attn_quads_neondotprod_(v)
#define ATTN_CODE_PUT_INT_(p, v) vst1q_s32(p, vcvtnq_s32_f32(v))

ATTN_INLINE_ int32x4_t attn_dot_neondotprod_(float k, int32x4_t x, int32x4_t c) {
  __asm__("sdot %0.4s, %1.16b, %2.4b[0]" : "+w"(c) : "w"(x), "w"(k));
  return c;
}

ATTN_INLINE_ int32x4_t attn_dots_neondotprod_(int32x4_t k, int32x4_t x, int32x4_t c) {
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(k), "w"(x));
  return c;
}

ATTN_INLINE_ void attn_quads_neondotprod_(int32x4_t *v) {
  const int8x16x2_t even = vzipq_s8(vreinterpretq_s8_s32(v[0]), vreinterpretq_s8_s32(v[1]));
  const int8x16x2_t odd = vzipq_s8(vreinterpretq_s8_s32(v[2]), vreinterpretq_s8_s32(v[3]));
  for (int i = 0; i < 2; i++) {
    const int16x8x2_t both =
        vzipq_s16(vreinterpretq_s16_s8(even.val[i]), vreinterpretq_s16_s8(odd.val[i]));
    v[2 * i] = vreinterpretq_s32_s16(both.val[0]),
          v[2 * i + 1] = vreinterpretq_s32_s16(both.val[1]);
  }
}

ATTN_INLINE_ void attn_put_neondotprod_(void *p, float32x4_t v) {
  const int16x4_t x = vmovn_s32(vcvtnq_s32_f32(v));
  const int8x8_t bytes = vmovn_s16(vcombine_s16(x, x));
  const uint32_t word = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
  memcpy(p, &word, sizeof word);
}

ATTN_INLINE_ void attn_put_four_neondotprod_(void *p, const float32x4_t *v) {
  int32x4_t x = vcvtnq_s32_f32(v[0]);
  x = vsliq_n_s32(x, vcvtnq_s32_f32(v[1]), 8);
  x = vsliq_n_s32(x, vcvtnq_s32_f32(v[2]), 16);
  x = vsliq_n_s32(x, vcvtnq_s32_f32(v[3]), 24);
  vst1q_s32((int32_t *)p, x);
}
