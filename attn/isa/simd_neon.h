/* isa/simd_neon.h owns the vector vocabulary of the neon tier: 4 lanes. The words are explained
 * in isa/simd_avx512.h. 32-bit ARM flushes subnormals and has no division: both are noted. */

#define ATTN_T_ neon
#define ATTN_ISA_ID_ ATTN_ISA_NEON
#define ATTN_W_ 4
#ifdef ATTN_ARM64_
#define ATTN_MR_ 5 /* 20 sums, 4 vectors of queries and 5 keys fill 32 registers */
#else
#define ATTN_MR_ 2 /* 16 registers */
#endif
#define ATTN_NG_ 1
#ifdef ATTN_ARM64_
#define ATTN_ROW_COLS_ 16
#else
#define ATTN_ROW_COLS_ 8
#endif
#define ATTN_SPECIALISE_ ATTN_COPIES_

#define ATTN_VF_ float32x4_t
#define ATTN_VM_ uint32x4_t
#define ATTN_V_LOAD_(p) vld1q_f32(p)
#define ATTN_V_STORE_(p, v) vst1q_f32(p, v)
#define ATTN_V_LOAD_PART_(p, n) attn_load_part_neon_(p, n)
#define ATTN_V_STORE_PART_(p, v, n) attn_store_part_neon_(p, v, n)
#define ATTN_V_SET1_(x) vdupq_n_f32(x)
#define ATTN_V_ZERO_() vdupq_n_f32(0.0f)
#define ATTN_V_ADD_(a, b) vaddq_f32(a, b)
#define ATTN_V_SUB_(a, b) vsubq_f32(a, b)
#define ATTN_V_MUL_(a, b) vmulq_f32(a, b)
#ifdef ATTN_ARM64_
#define ATTN_V_DIV_(a, b) vdivq_f32(a, b)
#define ATTN_V_SQRT_(a) vsqrtq_f32(a)
#else
#define ATTN_V_DIV_(a, b) attn_div_neon_(a, b)
#define ATTN_V_SQRT_(a) attn_sqrt_neon_(a)
#endif
#define ATTN_V_FMA_(a, b, c) vfmaq_f32(c, a, b)
#ifdef __GNUC__
#define ATTN_V_APART_() __asm__ __volatile__("" ::: "memory")
#else
#define ATTN_V_APART_() ((void)0)
#endif
#define ATTN_V_SLIP_(a, b, p) ATTN_V_FMA_(a, b, ATTN_V_SUB_(ATTN_V_SET1_(0.0f), p))
#define ATTN_V_MAX_(a, b) attn_max_neon_(a, b)
#define ATTN_V_ABS_(a) vabsq_f32(a)
#define ATTN_V_EQ_(a, b) vceqq_f32(a, b)
#define ATTN_V_LT_(a, b) vcltq_f32(a, b)
#define ATTN_V_ALL_(m) attn_all_neon_(m)
#define ATTN_V_CHOSEN_(m) attn_chosen_neon_(m)
#define ATTN_V_SELECT_(m, a, b) vbslq_f32(m, a, b)
#define ATTN_V_ROUND_(x, t, n)                        \
  (t) = ATTN_V_ADD_(x, ATTN_V_SET1_(ATTN_EXP_BIAS_)), \
  (n) = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_))
#define ATTN_EXP_UNIT_ 2.0f
#define ATTN_V_EXP_FLOOR_(x) vmaxq_f32(vdupq_n_f32(-126.0f), x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) \
  vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23)))
#define ATTN_V_LDEXP_(p, t, n) attn_ldexp_neon_(p, t)
/* gcc for 32-bit ARM has the conversions only with -mfp16-format=ieee */
#if defined(ATTN_ARM64_) || defined(__ARM_FP16_FORMAT_IEEE)
#define ATTN_V_LOAD_F16_(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define ATTN_V_STORE_F16_(p, v) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)))
#define ATTN_V_SET1_F16_(h) vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)))
#else
#define ATTN_V_SET1_F16_(h) vdupq_n_f32(attn_from_f16_(h))
#define ATTN_V_LOAD_F16_(p) attn_load_f16_neon_(p)
#define ATTN_V_STORE_F16_(p, v) attn_store_f16_neon_(p, v)
#endif
#define ATTN_V_LOAD_BF16_(p) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))
#define ATTN_V_STORE_BF16_(p, v) vst1_u16(p, attn_to_bf16_neon_(v))
#define ATTN_V_LOAD_I8_(p) \
  vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(attn_load_bytes_neon_(p)))))
#define ATTN_V_LOAD_E4M3_(p) attn_load_e4m3_neon_(p)
#define ATTN_V_LOAD_I4_(p) attn_load_i4_neon_(p)
#define ATTN_V_LOAD_I4_EVEN_(p) attn_nibbles_neon_(p, 0)
#define ATTN_V_LOAD_I4_ODD_(p) attn_nibbles_neon_(p, 4)
#define ATTN_VP_ uint32x4_t
#define ATTN_PAIR_LOAD_(p) vld1q_u32(p)
#define ATTN_PAIR_STORE_(p, v) vst1q_u32(p, v)
#define ATTN_PAIR_SET1_(x) vdupq_n_u32(x)
#define ATTN_PAIR_EVEN_(v) vreinterpretq_f32_u32(vshlq_n_u32(v, 16))
#define ATTN_PAIR_ODD_(v) vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u)))
#define ATTN_PAIR_JOIN_(even, odd) \
  vsriq_n_u32(attn_round_bf16_neon_(odd), attn_round_bf16_neon_(even), 16)
#define ATTN_PAIR_TAKE_(v, mask, over) \
  vreinterpretq_f32_u32(veorq_u32(vandq_u32(v, vdupq_n_u32(mask)), vdupq_n_u32(over)))
#define ATTN_PAIR_BYTES_(p) attn_words_neon_(p)
#define ATTN_PAIR_DOWN_(v, n) vshlq_u32(v, vdupq_n_s32(-(n)))
#define ATTN_VU_ uint32x4_t
#define ATTN_U_LOAD_(p) vld1q_u32(p)
#define ATTN_U_SET1_(x) vdupq_n_u32(x)
#define ATTN_U_TIMES_(up, low, a, m) attn_times_neon_(&(up), &(low), a, m)
#define ATTN_U_XOR_(a, b, c) veorq_u32(veorq_u32(a, b), c)
#define ATTN_U_LEAST_(a, t) vcgeq_u32(vshrq_n_u32(a, 8), vdupq_n_u32(t))
#define ATTN_V_ZIP_(to, even, odd) attn_zip_neon_(to, even, odd)
#define ATTN_V_UNZIP_(to, a, b) attn_unzip_neon_(to, a, b)
#define ATTN_V_BITS_(bits) attn_bits_neon_(bits)
#define ATTN_V_WITHIN_(x, lo, len) \
  vcltq_u32(vsubq_u32(vdupq_n_u32(x), vld1q_u32(lo)), vld1q_u32(len))
#define ATTN_V_GATHER_(p, i) attn_gather_neon_(p, i)
#define ATTN_V_SWAP_PAIRS_(a) vrev64q_f32(a)
#define ATTN_V_REVERSE_(a) attn_reverse_neon_(a)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_neon_(r)
#define ATTN_V_SUMS_(r) attn_sums_neon_(r)
#define ATTN_V_SUM_(v) attn_sum_neon_(v)
#define ATTN_V_TOP_(v) attn_top_neon_(v)
#define ATTN_V_SLEEF_(f) Sleef_##f##f4_u10advsimd

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_ARM64_)
#error "SLEEF has no functions for this tier: define ATTN_NO_NEON, or leave ATTN_USE_SLEEF out"
#elif defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_NEON_)
float32x4_t Sleef_expf4_u10advsimd(float32x4_t);
float32x4_t Sleef_exp2f4_u10advsimd(float32x4_t);
float32x4_t Sleef_tanhf4_u10advsimd(float32x4_t);
float32x4_t Sleef_expm1f4_u10advsimd(float32x4_t);
#endif

/* b when either is NaN or both are equal, as on the other tiers: a running maximum passes NaN by */
ATTN_INLINE_ float32x4_t attn_reverse_neon_(float32x4_t a) {
  const float32x4_t r = vrev64q_f32(a);
  return vcombine_f32(vget_high_f32(r), vget_low_f32(r));
}

ATTN_INLINE_ float32x4_t attn_max_neon_(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}

ATTN_INLINE_ int attn_all_neon_(uint32x4_t m) {
  uint32x2_t x = vand_u32(vget_low_u32(m), vget_high_u32(m));
  return (vget_lane_u32(x, 0) & vget_lane_u32(x, 1)) == 0xffffffffu;
}

ATTN_INLINE_ uint64_t attn_chosen_neon_(uint32x4_t m) {
  const uint32_t lane[4] = {1, 2, 4, 8};
  const uint32x4_t x = vandq_u32(m, vld1q_u32(lane));
  const uint32x2_t y = vorr_u32(vget_low_u32(x), vget_high_u32(x));
  return vget_lane_u32(y, 0) | vget_lane_u32(y, 1);
}

ATTN_INLINE_ uint32x4_t attn_bits_neon_(uint64_t bits) {
  const uint32_t lane[4] = {1, 2, 4, 8};
  return vtstq_u32(vdupq_n_u32((uint32_t)bits), vld1q_u32(lane));
}

ATTN_INLINE_ float32x4_t attn_gather_neon_(const float *p, const int32_t *i) {
  const float t[4] = {p[i[0]], p[i[1]], p[i[2]], p[i[3]]};
  return vld1q_f32(t);
}

ATTN_INLINE_ float32x4_t attn_load_part_neon_(const float *p, int n) {
  float t[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return vld1q_f32(t);
}

ATTN_INLINE_ void attn_store_part_neon_(float *p, float32x4_t v, int n) {
  float t[4];
  vst1q_f32(t, v);
  for (int i = 0; i < n; i++) p[i] = t[i];
}

#ifndef ATTN_ARM64_
ATTN_INLINE_ float32x4_t attn_load_f16_neon_(const uint16_t *p) {
  float t[4];
  for (int i = 0; i < 4; i++) t[i] = attn_from_f16_(p[i]);
  return vld1q_f32(t);
}

ATTN_INLINE_ void attn_store_f16_neon_(uint16_t *p, float32x4_t v) {
  float t[4];
  vst1q_f32(t, v);
  for (int i = 0; i < 4; i++) p[i] = attn_to_f16_(t[i]);
}

ATTN_INLINE_ float32x4_t attn_div_neon_(float32x4_t a, float32x4_t b) {
  float x[4], y[4];
  vst1q_f32(x, a);
  vst1q_f32(y, b);
  for (int i = 0; i < 4; i++) x[i] /= y[i];
  return vld1q_f32(x);
}

ATTN_INLINE_ float32x4_t attn_sqrt_neon_(float32x4_t a) {
  float x[4];
  vst1q_f32(x, a);
  for (int i = 0; i < 4; i++) x[i] = sqrtf(x[i]);
  return vld1q_f32(x);
}
#endif

ATTN_INLINE_ float32x4_t attn_ldexp_neon_(float32x4_t p, float32x4_t t) {
  int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(ATTN_EXP_BIAS_BITS_ + 1));
  int32x4_t half = vshrq_n_s32(n, 1), rest = vsubq_s32(n, half), one = vdupq_n_s32(127);
  float32x4_t s = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, one), 23));
  float32x4_t r = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, one), 23));
  return vmulq_f32(vmulq_f32(p, s), r);
}

ATTN_INLINE_ uint32x4_t attn_round_bf16_neon_(float32x4_t v) {
  uint32x4_t x = vreinterpretq_u32_f32(v);
  uint32x4_t odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
  uint32x4_t up = vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  uint32x4_t quiet = vorrq_u32(x, vdupq_n_u32(0x400000));
  return vbslq_u32(vceqq_f32(v, v), up, quiet);
}

ATTN_INLINE_ uint16x4_t attn_to_bf16_neon_(float32x4_t v) {
  return vshrn_n_u32(attn_round_bf16_neon_(v), 16);
}

ATTN_INLINE_ int8x8_t attn_load_bytes_neon_(const void *p) {
  uint32_t bits;
  memcpy(&bits, p, 4);
  return vreinterpret_s8_u32(vdup_n_u32(bits));
}

/* the nibble of each lane goes to the top and comes back with its sign */
ATTN_INLINE_ float32x4_t attn_load_i4_neon_(const void *p) {
  const int32_t shift[4] = {28, 24, 20, 16};
  uint16_t bits;
  memcpy(&bits, p, 2);
  const int32x4_t x = vreinterpretq_s32_u32(vdupq_n_u32(bits));
  return vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(x, vld1q_s32(shift)), 28));
}

/* its bits in the place of those of an f16, whose exponents are 8 higher */
ATTN_INLINE_ float32x4_t attn_load_e4m3_neon_(const void *p) {
  const uint16x4_t b = vreinterpret_u16_s16(vget_low_s16(vmovl_s8(attn_load_bytes_neon_(p))));
  const uint16x4_t most = vdup_n_u16(0x7f), nan = vceq_u16(vand_u16(b, most), most);
  uint16_t h[4];
  vst1_u16(h, vorr_u16(vand_u16(vshl_n_u16(b, 7), vdup_n_u16(0xbfff)),
                       vand_u16(nan, vdup_n_u16(0x7e00))));
  return vmulq_f32(ATTN_V_LOAD_F16_(h), vdupq_n_f32(256.0f));
}

/* 4 x 4 in place */
ATTN_INLINE_ void attn_transpose_neon_(float32x4_t *r) {
  float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

ATTN_INLINE_ uint32x4_t attn_words_neon_(const void *p) {
  uint32_t x;
  memcpy(&x, p, sizeof x);
  return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(x)))));
}
ATTN_INLINE_ void attn_zip_neon_(float32x4_t *to, float32x4_t even, float32x4_t odd) {
  const float32x4x2_t x = vzipq_f32(even, odd);
  to[0] = x.val[0], to[1] = x.val[1];
}
ATTN_INLINE_ void attn_unzip_neon_(float32x4_t *to, float32x4_t a, float32x4_t b) {
  const float32x4x2_t x = vuzpq_f32(a, b);
  to[0] = x.val[0], to[1] = x.val[1];
}

ATTN_INLINE_ float32x4_t attn_sums_neon_(const float32x4_t *v) {
  float32x4_t r[4] = {v[0], v[1], v[2], v[3]};
  attn_transpose_neon_(r);
  return vaddq_f32(vaddq_f32(r[0], r[2]), vaddq_f32(r[1], r[3]));
}

ATTN_INLINE_ float attn_sum_neon_(float32x4_t v) {
  float32x2_t x = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(x, 0) + vget_lane_f32(x, 1);
}

ATTN_INLINE_ float attn_top_neon_(float32x4_t v) {
  float32x2_t x = vmax_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(vpmax_f32(x, x), 0);
}

ATTN_INLINE_ float32x4_t attn_nibbles_neon_(const void *p, int shift) {
  const signed char *from = (const signed char *)p;
  int32_t x[4];
  for (int i = 0; i < 4; i++) x[i] = (((from[i] >> shift) & 15) ^ 8) - 8;
  return vcvtq_f32_s32(vld1q_s32(x));
}

ATTN_INLINE_ void attn_times_neon_(uint32x4_t *up, uint32x4_t *low, uint32x4_t a, uint32_t m) {
  const uint32x2_t by = vdup_n_u32(m);
  const uint32x4_t x = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), by));
  const uint32x4_t y = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(a), by));
  const uint32x4x2_t z = vuzpq_u32(x, y);
  *low = z.val[0], *up = z.val[1];
}
