/* isa/simd_avx2.h owns the vector vocabulary of the avx2 tier: 8 lanes. The words are explained
 * in isa/simd_avx512.h. */

#define ATTN_T_ avx2
#define ATTN_ISA_ID_ ATTN_ISA_AVX2
#define ATTN_W_ 8
#define ATTN_MR_ 6
#define ATTN_NG_ 1
#define ATTN_ROW_COLS_ 8
#define ATTN_SPECIALISE_ ATTN_COPIES_

#define ATTN_VF_ attn_v8_
#define ATTN_VM_ attn_v8_
#ifdef ATTN_VECTORS_
typedef float attn_v8_ __attribute__((vector_size(32)));
typedef float attn_v8_at_ __attribute__((vector_size(32), aligned(4)));
#define ATTN_V_LOAD_(p) ((attn_v8_) * (const attn_v8_at_ *)(p))
#define ATTN_V_STORE_(p, v) ((void)(*(attn_v8_at_ *)(p) = (v)))
#define ATTN_V_SET1_(x) ((x)-ATTN_VECTOR_ZERO_(attn_v8_))
#define ATTN_V_ZERO_() ATTN_VECTOR_ZERO_(attn_v8_)
#define ATTN_V_ADD_(a, b) ((a) + (b))
#define ATTN_V_SUB_(a, b) ((a) - (b))
#define ATTN_V_MUL_(a, b) ((a) * (b))
#define ATTN_V_DIV_(a, b) ((a) / (b))
#else
typedef __m256 attn_v8_;
#define ATTN_V_LOAD_(p) _mm256_loadu_ps(p)
#define ATTN_V_STORE_(p, v) _mm256_storeu_ps(p, v)
#define ATTN_V_SET1_(x) _mm256_set1_ps(x)
#define ATTN_V_ZERO_() _mm256_setzero_ps()
#define ATTN_V_ADD_(a, b) _mm256_add_ps(a, b)
#define ATTN_V_SUB_(a, b) _mm256_sub_ps(a, b)
#define ATTN_V_MUL_(a, b) _mm256_mul_ps(a, b)
#define ATTN_V_DIV_(a, b) _mm256_div_ps(a, b)
#endif
#ifdef __GNUC__ /* the builtins behind the intrinsics: these two words are most of the code */
#define ATTN_V_FMA_(a, b, c) ((attn_v8_)__builtin_ia32_vfmaddps256(a, b, c))
#define ATTN_V_MAX_(a, b) ((attn_v8_)__builtin_ia32_maxps256(a, b))
#else
#define ATTN_V_FMA_(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ATTN_V_MAX_(a, b) _mm256_max_ps(a, b)
#endif
#define ATTN_V_LOAD_PART_(p, n) (ATTN_VECTOR_(attn_v8_) _mm256_maskload_ps(p, attn_first_avx2_(n)))
#define ATTN_V_STORE_PART_(p, v, n) _mm256_maskstore_ps(p, attn_first_avx2_(n), v)
#define ATTN_V_APART_() ((void)0)
#define ATTN_V_SLIP_(a, b, p) ATTN_V_FMA_(a, b, ATTN_V_SUB_(ATTN_V_SET1_(0.0f), p))
#define ATTN_V_SQRT_(a) (ATTN_VECTOR_(attn_v8_) _mm256_sqrt_ps(a))
#define ATTN_V_ABS_(a) (ATTN_VECTOR_(attn_v8_) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a))
#define ATTN_V_EQ_(a, b) (ATTN_VECTOR_(attn_v8_) _mm256_cmp_ps(a, b, _CMP_EQ_OQ))
#define ATTN_V_LT_(a, b) (ATTN_VECTOR_(attn_v8_) _mm256_cmp_ps(a, b, _CMP_LT_OQ))
#define ATTN_V_ALL_(m) (_mm256_movemask_ps(m) == 255)
#define ATTN_V_CHOSEN_(m) ((uint64_t)(unsigned)_mm256_movemask_ps(m))
#define ATTN_V_SELECT_(m, a, b) (ATTN_VECTOR_(attn_v8_) _mm256_blendv_ps(b, a, m))
#define ATTN_V_ROUND_(x, t, n)                        \
  (t) = ATTN_V_ADD_(x, ATTN_V_SET1_(ATTN_EXP_BIAS_)), \
  (n) = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_))
/* n + 126 shifted into the exponent field is 2^(n-1), and 0 for n = -126, the floor. The other form
 * multiplies by 2^(n/2) twice. */
#define ATTN_EXP_UNIT_ 2.0f
#define ATTN_V_EXP_FLOOR_(x) ATTN_V_MAX_(ATTN_V_SET1_(-126.0f), x)
#define ATTN_V_LDEXP_SMALL_(p, t, n)    \
  ATTN_V_MUL_(p, ATTN_VECTOR_(attn_v8_) \
                     _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)))
#define ATTN_V_LDEXP_(p, t, n) attn_ldexp_avx2_(p, t)
#define ATTN_V_LOAD_F16_(p) \
  (ATTN_VECTOR_(attn_v8_) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p))))
#define ATTN_V_STORE_F16_(p, v) \
  _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define ATTN_V_SET1_F16_(h) (ATTN_VECTOR_(attn_v8_) _mm256_cvtph_ps(_mm_set1_epi16((short)(h))))
#define ATTN_V_LOAD_BF16_(p) \
  ATTN_VECTOR_(attn_v8_)     \
  _mm256_castsi256_ps(       \
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define ATTN_V_STORE_BF16_(p, v) _mm_storeu_si128((__m128i *)(p), attn_to_bf16_avx2_(v))
#define ATTN_V_LOAD_I8_(p) \
  (ATTN_VECTOR_(attn_v8_)  \
       _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p)))))
#define ATTN_V_LOAD_E4M3_(p) attn_load_e4m3_avx2_(p)
#define ATTN_V_LOAD_I4_(p) attn_load_i4_avx2_(p)
#define ATTN_V_LOAD_I4_EVEN_(p) attn_nibbles_avx2_(p, 0)
#define ATTN_V_LOAD_I4_ODD_(p) attn_nibbles_avx2_(p, 1)
#define ATTN_VP_ __m256i
#define ATTN_PAIR_LOAD_(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define ATTN_PAIR_STORE_(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define ATTN_PAIR_SET1_(x) _mm256_set1_epi32((int)(x))
#define ATTN_PAIR_EVEN_(v) (ATTN_VECTOR_(attn_v8_) _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)))
#define ATTN_PAIR_ODD_(v) \
  (ATTN_VECTOR_(attn_v8_) \
       _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u))))
#define ATTN_PAIR_JOIN_(even, odd)                        \
  _mm256_or_si256(                                        \
      _mm256_srli_epi32(attn_round_bf16_avx2_(even), 16), \
      _mm256_and_si256(attn_round_bf16_avx2_(odd), _mm256_set1_epi32((int)0xffff0000u)))
#define ATTN_PAIR_TAKE_(v, mask, over)                          \
  (ATTN_VECTOR_(attn_v8_) _mm256_castsi256_ps(_mm256_xor_si256( \
      _mm256_and_si256(v, _mm256_set1_epi32((int)(mask))), _mm256_set1_epi32((int)(over)))))
#define ATTN_PAIR_BYTES_(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define ATTN_PAIR_DOWN_(v, n) _mm256_srli_epi32(v, n)
#define ATTN_VU_ attn_counters_avx2_
#define ATTN_U_LOAD_(p) attn_load_counters_avx2_(p)
#define ATTN_U_SET1_(x) attn_set1_counters_avx2_(x)
#define ATTN_U_TIMES_(up, low, a, m) attn_times_avx2_(&(up), &(low), a, m)
#define ATTN_U_XOR_(a, b, c) attn_xor_avx2_(a, b, c)
#define ATTN_U_LEAST_(a, t) attn_least_avx2_(a, t)
#define ATTN_V_ZIP_(to, even, odd) attn_zip_avx2_(to, even, odd)
#define ATTN_V_UNZIP_(to, a, b) attn_unzip_avx2_(to, a, b)
#define ATTN_V_BITS_(bits) attn_bits_avx2_(bits)
#define ATTN_V_WITHIN_(x, lo, len) attn_within_avx2_(x, lo, len)
#define ATTN_V_GATHER_(p, i) \
  (ATTN_VECTOR_(attn_v8_) _mm256_i32gather_ps(p, _mm256_loadu_si256((const __m256i *)(i)), 4))
#define ATTN_V_SWAP_PAIRS_(a) (ATTN_VECTOR_(attn_v8_) _mm256_permute_ps(a, 0xB1))
#define ATTN_V_REVERSE_(a) \
  ATTN_VECTOR_(attn_v8_) _mm256_permute_ps(_mm256_permute2f128_ps(a, a, 1), 0x1B)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_avx2_(r)
#define ATTN_V_SUMS_(r) attn_sums_avx2_(r)
#define ATTN_V_SUM_(v) attn_sum_avx2_(v)
#define ATTN_V_TOP_(v) attn_top_avx2_(v)
#define ATTN_V_SLEEF_(f) Sleef_##f##f8_u10avx2

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_AVX2_)
__m256 Sleef_expf8_u10avx2(__m256);
__m256 Sleef_exp2f8_u10avx2(__m256);
__m256 Sleef_tanhf8_u10avx2(__m256);
__m256 Sleef_expm1f8_u10avx2(__m256);
#endif

/* all ones in the first n lanes */
ATTN_INLINE_ attn_v8_ attn_bits_avx2_(uint64_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i all = _mm256_set1_epi32((int)(uint32_t)bits);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
}

/* signed comparison of numbers that are 2^31 too large, or too small */
ATTN_INLINE_ attn_v8_ attn_within_avx2_(uint32_t x, const uint32_t *lo, const uint32_t *len) {
  const __m256i bias = _mm256_set1_epi32(INT32_MIN);
  const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)lo);
  const __m256i n = _mm256_loadu_si256((const __m256i *)(const void *)len);
  const __m256i d = _mm256_sub_epi32(_mm256_set1_epi32((int)(x ^ 0x80000000u)), a);
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_xor_si256(n, bias), d));
}

ATTN_INLINE_ __m256i attn_first_avx2_(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ATTN_INLINE_ attn_v8_ attn_ldexp_avx2_(attn_v8_ p, attn_v8_ t) {
  __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(ATTN_EXP_BIAS_BITS_ + 1));
  __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);
  __m256i one = _mm256_set1_epi32(127);
  __m256 s = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23));
  __m256 r = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, one), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, s), r);
}

ATTN_INLINE_ __m256i attn_round_bf16_avx2_(attn_v8_ v) {
  __m256i x = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
  __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan));
}

ATTN_INLINE_ __m128i attn_to_bf16_avx2_(attn_v8_ v) {
  __m256i y = _mm256_srli_epi32(attn_round_bf16_avx2_(v), 16);
  y = _mm256_permute4x64_epi64(_mm256_packus_epi32(y, y), 0x08);
  return _mm256_castsi256_si128(y);
}

/* the nibble of each lane goes to the top and comes back with its sign */
ATTN_INLINE_ attn_v8_ attn_load_i4_avx2_(const void *p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(bits), up), 28));
}

/* its bits in the place of those of an f16, whose exponents are 8 higher */
ATTN_INLINE_ attn_v8_ attn_load_e4m3_avx2_(const void *p) {
  const __m128i b = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
  const __m128i h = _mm_and_si128(_mm_slli_epi16(b, 7), _mm_set1_epi16((short)0xbfff));
  const __m128i most = _mm_and_si128(b, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_cmpeq_epi16(most, _mm_set1_epi16(0x7f));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)))),
                       _mm256_set1_ps(256.0f));
}

ATTN_INLINE_ void attn_zip_avx2_(attn_v8_ *to, attn_v8_ even, attn_v8_ odd) {
  const __m256 a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
  to[0] = ATTN_VECTOR_(attn_v8_) _mm256_permute2f128_ps(a, b, 0x20);
  to[1] = ATTN_VECTOR_(attn_v8_) _mm256_permute2f128_ps(a, b, 0x31);
}
ATTN_INLINE_ void attn_unzip_avx2_(attn_v8_ *to, attn_v8_ x, attn_v8_ y) {
  const __m256 a = _mm256_permute2f128_ps(x, y, 0x20), b = _mm256_permute2f128_ps(x, y, 0x31);
  to[0] = ATTN_VECTOR_(attn_v8_) _mm256_shuffle_ps(a, b, 0x88);
  to[1] = ATTN_VECTOR_(attn_v8_) _mm256_shuffle_ps(a, b, 0xDD);
}

/* 8 x 8 in place */
ATTN_INLINE_ void attn_transpose_avx2_(attn_v8_ *r) {
  attn_v8_ a[8], b[8];
#define ATTN_PAIR_(i)                                          \
  a[2 * (i)] = _mm256_unpacklo_ps(r[2 * (i)], r[2 * (i) + 1]); \
  a[2 * (i) + 1] = _mm256_unpackhi_ps(r[2 * (i)], r[2 * (i) + 1]);
  ATTN_PAIR_(0)
  ATTN_PAIR_(1)
  ATTN_PAIR_(2)
  ATTN_PAIR_(3)
#undef ATTN_PAIR_
#define ATTN_QUAD_(i)                                                       \
  b[4 * (i)] = _mm256_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0x44);         \
  b[4 * (i) + 1] = _mm256_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0xEE);     \
  b[4 * (i) + 2] = _mm256_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0x44); \
  b[4 * (i) + 3] = _mm256_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0xEE);
  ATTN_QUAD_(0)
  ATTN_QUAD_(1)
#undef ATTN_QUAD_
#define ATTN_LANE_(i)                                    \
  r[i] = _mm256_permute2f128_ps(b[i], b[(i) + 4], 0x20); \
  r[(i) + 4] = _mm256_permute2f128_ps(b[i], b[(i) + 4], 0x31);
  ATTN_LANE_(0)
  ATTN_LANE_(1)
  ATTN_LANE_(2)
  ATTN_LANE_(3)
#undef ATTN_LANE_
}

ATTN_INLINE_ attn_v8_ attn_sums_avx2_(const attn_v8_ *r) {
  attn_v8_ a[4], b, c;
#define ATTN_PAIR_(i)                                                  \
  a[i] = _mm256_add_ps(_mm256_permute2f128_ps(r[i], r[(i) + 4], 0x20), \
                       _mm256_permute2f128_ps(r[i], r[(i) + 4], 0x31));
  ATTN_PAIR_(0)
  ATTN_PAIR_(1)
  ATTN_PAIR_(2)
  ATTN_PAIR_(3)
#undef ATTN_PAIR_
  b = _mm256_add_ps(_mm256_shuffle_ps(a[0], a[1], 0x44), _mm256_shuffle_ps(a[0], a[1], 0xEE));
  c = _mm256_add_ps(_mm256_shuffle_ps(a[2], a[3], 0x44), _mm256_shuffle_ps(a[2], a[3], 0xEE));
  return _mm256_add_ps(_mm256_shuffle_ps(b, c, 0x88), _mm256_shuffle_ps(b, c, 0xDD));
}

ATTN_INLINE_ float attn_sum_avx2_(attn_v8_ v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ps(x, _mm_shuffle_ps(x, x, 0x55)));
}

ATTN_INLINE_ float attn_top_avx2_(attn_v8_ v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ps(x, _mm_shuffle_ps(x, x, 0x55)));
}

/* the low half is moved to the top, and back with its sign */
ATTN_INLINE_ attn_v8_ attn_nibbles_avx2_(const void *p, const int odd) {
  const __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
  return _mm256_cvtepi32_ps(odd ? _mm256_srai_epi32(x, 4)
                                : _mm256_srai_epi32(_mm256_slli_epi32(x, 28), 28));
}

/* as on the avx512 tier */
typedef struct {
  __m256i even, odd;
} attn_counters_avx2_;
ATTN_INLINE_ attn_counters_avx2_ attn_load_counters_avx2_(const uint32_t *p) {
  attn_counters_avx2_ x;
  x.even = _mm256_loadu_si256((const __m256i *)(const void *)p);
  x.odd = _mm256_srli_epi64(x.even, 32);
  return x;
}
ATTN_INLINE_ attn_counters_avx2_ attn_set1_counters_avx2_(uint32_t n) {
  attn_counters_avx2_ x;
  x.even = x.odd = _mm256_set1_epi32((int)n);
  return x;
}
ATTN_INLINE_ void attn_times_avx2_(attn_counters_avx2_ *up, attn_counters_avx2_ *low,
                                   attn_counters_avx2_ a, uint32_t m) {
  low->even = _mm256_mul_epu32(a.even, _mm256_set1_epi32((int)m));
  low->odd = _mm256_mul_epu32(a.odd, _mm256_set1_epi32((int)m));
  up->even = _mm256_srli_epi64(low->even, 32), up->odd = _mm256_srli_epi64(low->odd, 32);
}
ATTN_INLINE_ attn_counters_avx2_ attn_xor_avx2_(attn_counters_avx2_ a, attn_counters_avx2_ b,
                                                attn_counters_avx2_ c) {
  a.even = _mm256_xor_si256(a.even, _mm256_xor_si256(b.even, c.even));
  a.odd = _mm256_xor_si256(a.odd, _mm256_xor_si256(b.odd, c.odd));
  return a;
}
ATTN_INLINE_ attn_v8_ attn_least_avx2_(attn_counters_avx2_ a, uint32_t t) {
  const __m256i x = _mm256_blend_epi32(a.even, _mm256_slli_epi64(a.odd, 32), 0xaa);
  return _mm256_castsi256_ps(
      _mm256_cmpgt_epi32(_mm256_srli_epi32(x, 8), _mm256_set1_epi32((int)t - 1)));
}
