/* isa/simd_avx512.h owns the vector vocabulary of the avx512 tier: 16 lanes. The four simd files
 * define the same words in the same order; isa/simd_undef.h forgets them. */

#define ATTN_T_ avx512
#define ATTN_ISA_ID_ ATTN_ISA_AVX512
#define ATTN_W_ 16                    /* lanes of a vector */
#define ATTN_MR_ 6                    /* rows of a micro-kernel */
#define ATTN_NG_ 4                    /* lane groups (of 16 lanes) of a micro-kernel */
#define ATTN_ROW_COLS_ 16             /* vectors of sums over values in registers */
#define ATTN_SPECIALISE_ ATTN_COPIES_ /* one copy of a loop per storage type and set of modifiers */

#define ATTN_VF_ attn_v16_
#define ATTN_VM_ __mmask16
#ifdef ATTN_VECTORS_
typedef float attn_v16_ __attribute__((vector_size(64)));
typedef float attn_v16_at_ __attribute__((vector_size(64), aligned(4)));
#else
typedef __m512 attn_v16_;
#endif
/* lanes in and out; PART touches the first n lanes only, loads zero in the others */
#ifdef ATTN_VECTORS_
#define ATTN_V_LOAD_(p) ((attn_v16_) * (const attn_v16_at_ *)(p))
#define ATTN_V_STORE_(p, v) ((void)(*(attn_v16_at_ *)(p) = (v)))
#define ATTN_V_SET1_(x) ((x)-ATTN_VECTOR_ZERO_(attn_v16_))
#define ATTN_V_ZERO_() ATTN_VECTOR_ZERO_(attn_v16_)
#else
#define ATTN_V_LOAD_(p) _mm512_loadu_ps(p)
#define ATTN_V_STORE_(p, v) _mm512_storeu_ps(p, v)
#define ATTN_V_SET1_(x) _mm512_set1_ps(x)
#define ATTN_V_ZERO_() _mm512_setzero_ps()
#endif
#define ATTN_V_LOAD_PART_(p, n) \
  (ATTN_VECTOR_(attn_v16_) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1u), p))
#define ATTN_V_STORE_PART_(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1u), v)
/* arithmetic; MAX gives b when either is NaN or both are equal */
#ifdef ATTN_VECTORS_
#define ATTN_V_ADD_(a, b) ((a) + (b))
#define ATTN_V_SUB_(a, b) ((a) - (b))
#define ATTN_V_MUL_(a, b) ((a) * (b))
#define ATTN_V_DIV_(a, b) ((a) / (b))
#else
#define ATTN_V_ADD_(a, b) _mm512_add_ps(a, b)
#define ATTN_V_SUB_(a, b) _mm512_sub_ps(a, b)
#define ATTN_V_MUL_(a, b) _mm512_mul_ps(a, b)
#define ATTN_V_DIV_(a, b) _mm512_div_ps(a, b)
#endif
/* the builtins behind the intrinsics: these two words are most of the code */
#if defined(ATTN_GCC_) && defined(__OPTIMIZE__)
#define ATTN_V_FMA_(a, b, c) \
  ((attn_v16_)__builtin_ia32_vfmaddps512_mask(a, b, c, (__mmask16)-1, _MM_FROUND_CUR_DIRECTION))
#define ATTN_V_MAX_(a, b) \
  ((attn_v16_)__builtin_ia32_maxps512_mask(a, b, a, (__mmask16)-1, _MM_FROUND_CUR_DIRECTION))
#else
#define ATTN_V_FMA_(a, b, c) (ATTN_VECTOR_(attn_v16_) _mm512_fmadd_ps(a, b, c))
#define ATTN_V_MAX_(a, b) (ATTN_VECTOR_(attn_v16_) _mm512_max_ps(a, b))
#endif
/* no load is moved across it: for kernels whose operands, all loaded at once, would not leave the sums their
 * registers */
#define ATTN_V_APART_() ((void)0)
/* what a b lost when it was rounded to p, exact where FMA rounds once */
#define ATTN_V_SLIP_(a, b, p) ATTN_V_FMA_(a, b, ATTN_V_SUB_(ATTN_V_SET1_(0.0f), p))
#define ATTN_V_SQRT_(a) (ATTN_VECTOR_(attn_v16_) _mm512_sqrt_ps(a))
#define ATTN_V_ABS_(a) (ATTN_VECTOR_(attn_v16_) _mm512_abs_ps(a))
/* comparisons and choice; NaN compares false */
#define ATTN_V_EQ_(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define ATTN_V_LT_(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
/* 1 when every lane is chosen */
#define ATTN_V_ALL_(m) ((m) == 0xffff)
/* the lanes chosen, as the lowest bits of a uint64_t */
#define ATTN_V_CHOSEN_(m) ((uint64_t)(m))
#define ATTN_V_SELECT_(m, a, b) (ATTN_VECTOR_(attn_v16_) _mm512_mask_blend_ps(m, b, a))
/* n = x rounded to an integer, t = n + ATTN_EXP_BIAS_ (unused here) */
#define ATTN_V_ROUND_(x, t, n) \
  (n) = ATTN_VECTOR_(attn_v16_) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), (t) = (n)
/* p * 2^n / UNIT: SMALL for n <= 0 after EXP_FLOOR, 0 below n = -125; the other for any n, rounded
 * once. NaN in p stays NaN whatever its payload. */
/* what the polynomial for LDEXP is multiplied by */
#define ATTN_EXP_UNIT_ 1.0f
#define ATTN_V_EXP_FLOOR_(x) (x)
#define ATTN_V_LDEXP_SMALL_(p, t, n)                          \
  ((void)(t), ATTN_VECTOR_(attn_v16_) _mm512_maskz_scalef_ps( \
                  _mm512_cmp_ps_mask(n, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ), p, n))
#define ATTN_V_LDEXP_(p, t, n) ((void)(t), ATTN_VECTOR_(attn_v16_) _mm512_scalef_ps(p, n))
/* 16-bit storage, round to nearest even */
#define ATTN_V_LOAD_F16_(p) \
  (ATTN_VECTOR_(attn_v16_) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p))))
#define ATTN_V_STORE_F16_(p, v) \
  _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define ATTN_V_SET1_F16_(h) (ATTN_VECTOR_(attn_v16_) _mm512_cvtph_ps(_mm256_set1_epi16((short)(h))))
#define ATTN_V_LOAD_BF16_(p) \
  ATTN_VECTOR_(attn_v16_)    \
  _mm512_castsi512_ps(       \
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define ATTN_V_STORE_BF16_(p, v) _mm256_storeu_si256((__m256i *)(p), attn_to_bf16_avx512_(v))
/* storage of keys and values, as the numbers that stand there: W bytes, or W/2 for I4; EVEN and ODD
 * take half of 2 W nibbles in W bytes. A look-up takes the low 4 bits of an index. */
#define ATTN_V_LOAD_I8_(p) \
  (ATTN_VECTOR_(attn_v16_) \
       _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p)))))
#define ATTN_V_LOAD_E4M3_(p) attn_load_e4m3_avx512_(p)
#define ATTN_V_LOAD_I4_(p) attn_load_i4_avx512_(p)
#define ATTN_V_LOAD_I4_EVEN_(p) attn_nibbles_avx512_(attn_bytes_avx512_(p))
#define ATTN_V_LOAD_I4_ODD_(p) attn_nibbles_avx512_(_mm512_srli_epi32(attn_bytes_avx512_(p), 4))
/* x - lo[lane] < len[lane] for unsigned 32-bit integers modulo 2^32 */
#define ATTN_V_WITHIN_(x, lo, len)                                                               \
  _mm512_cmplt_epu32_mask(_mm512_sub_epi32(_mm512_set1_epi32((int)(x)), _mm512_loadu_si512(lo)), \
                          _mm512_loadu_si512(len))
/* pairs of bf16, the even one in the low half of 32 bits: W of them; the f32 of each half; two vectors
 * rounded to pairs. DOT, c and the two products of each pair, is in kernels/low.h, or an instruction. */
#define ATTN_VP_ __m512i
#define ATTN_PAIR_LOAD_(p) _mm512_loadu_si512((const void *)(p))
#define ATTN_PAIR_STORE_(p, v) _mm512_storeu_si512((void *)(p), v)
#define ATTN_PAIR_SET1_(x) _mm512_set1_epi32((int)(x))
#define ATTN_PAIR_EVEN_(v) (ATTN_VECTOR_(attn_v16_) _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)))
#define ATTN_PAIR_ODD_(v)  \
  (ATTN_VECTOR_(attn_v16_) \
       _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u))))
#define ATTN_PAIR_JOIN_(even, odd)                          \
  _mm512_or_si512(                                          \
      _mm512_srli_epi32(attn_round_bf16_avx512_(even), 16), \
      _mm512_and_si512(attn_round_bf16_avx512_(odd), _mm512_set1_epi32((int)0xffff0000u)))
/* integers: (v & mask) ^ over as floats; of bytes; v >> n */
#define ATTN_PAIR_TAKE_(v, mask, over)                                    \
  (ATTN_VECTOR_(attn_v16_) _mm512_castsi512_ps(_mm512_ternarylogic_epi32( \
      v, _mm512_set1_epi32((int)(mask)), _mm512_set1_epi32((int)(over)), 0x6A)))
#define ATTN_PAIR_BYTES_(p) attn_bytes_avx512_(p)
#define ATTN_PAIR_DOWN_(v, n) _mm512_srli_epi32(v, n)
/* W counters of 32 bits, in whatever form multiplies them whole: up and low = the halves of a m; XOR of three; the
 * lanes whose highest 24 bits are at least t */
#define ATTN_VU_ attn_counters_avx512_
#define ATTN_U_LOAD_(p) attn_load_counters_avx512_(p)
#define ATTN_U_SET1_(x) attn_set1_counters_avx512_(x)
#define ATTN_U_TIMES_(up, low, a, m) attn_times_avx512_(&(up), &(low), a, m)
#define ATTN_U_XOR_(a, b, c) attn_xor_avx512_(a, b, c)
#define ATTN_U_LEAST_(a, t) attn_least_avx512_(a, t)
/* the code of 4 bits at bit 0, where one instruction finds it in a table */
#define ATTN_PAIR_NIBBLE_(v) attn_nibbles_avx512_(v)
/* to[0], to[1] = the lanes of even and odd in turn, and back */
#define ATTN_V_ZIP_(to, even, odd) attn_zip_avx512_(to, even, odd)
#define ATTN_V_UNZIP_(to, a, b) attn_unzip_avx512_(to, a, b)
/* the lowest bits of a uint64_t as a choice of lanes; p[i[lane]] */
#define ATTN_V_BITS_(bits) ((__mmask16)(bits))
#define ATTN_V_GATHER_(p, i) \
  (ATTN_VECTOR_(attn_v16_) _mm512_i32gather_ps(_mm512_loadu_si512(i), p, 4))
/* lanes (0,1),(2,3).. exchanged */
#define ATTN_V_SWAP_PAIRS_(a) (ATTN_VECTOR_(attn_v16_) _mm512_permute_ps(a, 0xB1))
/* the last lane first */
#define ATTN_V_REVERSE_(a) \
  ATTN_VECTOR_(attn_v16_)  \
  _mm512_permutexvar_ps(_mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), a)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_avx512_(r)
/* lane i = the sum of all lanes of r[i], lanes half a vector apart first; of one vector; the largest
 * lane */
#define ATTN_V_SUMS_(r) attn_sums_avx512_(r)
#define ATTN_V_SUM_(v) attn_sum_avx512_(v)
#define ATTN_V_TOP_(v) _mm512_reduce_max_ps(v)
/* SLEEF's name of a function; own prototypes, since its header hides them from other regions */
#define ATTN_V_SLEEF_(f) Sleef_##f##f16_u10avx512f

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_AVX512_)
__m512 Sleef_expf16_u10avx512f(__m512);
__m512 Sleef_exp2f16_u10avx512f(__m512);
__m512 Sleef_tanhf16_u10avx512f(__m512);
__m512 Sleef_expm1f16_u10avx512f(__m512);
#endif

/* the nearest bf16 in the upper half, anything below */
ATTN_INLINE_ __m512i attn_round_bf16_avx512_(attn_v16_ v) {
  __m512i x = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_blend_epi32(nan, up, quiet);
}

ATTN_INLINE_ __m256i attn_to_bf16_avx512_(attn_v16_ v) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(attn_round_bf16_avx512_(v), 16));
}

ATTN_INLINE_ attn_v16_ attn_nibbles_avx512_(__m512i x) {
  const __m512 n = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  return ATTN_VECTOR_(attn_v16_) _mm512_permutexvar_ps(x, n);
}

/* a byte in every 64 bits: its high half goes to the upper 32 */
ATTN_INLINE_ attn_v16_ attn_load_i4_avx512_(const void *p) {
  const __m512i x = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
  return attn_nibbles_avx512_(_mm512_or_si512(x, _mm512_slli_epi64(x, 28)));
}

/* the bytes as integers */
ATTN_INLINE_ __m512i attn_bytes_avx512_(const void *p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* its bits in the place of those of an f16, whose exponents are 8 higher */
ATTN_INLINE_ attn_v16_ attn_load_e4m3_avx512_(const void *p) {
  const __m128i b = _mm_loadu_si128((const __m128i *)p), sign = _mm_set1_epi8(-128);
  const __mmask16 number = _mm_cmpneq_epi8_mask(_mm_or_si128(b, sign), _mm_set1_epi8(-1));
  __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7);
  h = _mm256_and_si256(h, _mm256_set1_epi16((short)0xbfff));
  return ATTN_VECTOR_(attn_v16_)
      _mm512_mask_mul_ps(_mm512_set1_ps(attn_from_bits_(0x7fc00000u)), number, _mm512_cvtph_ps(h),
                         _mm512_set1_ps(256.0f));
}

/* 16 x 16 in place: r[i] lane j <-> r[j] lane i, by 2x2, 4x4 and 128-bit exchanges */
ATTN_INLINE_ void attn_transpose_avx512_(attn_v16_ *r) {
  attn_v16_ a[16], b[16];
#define ATTN_PAIR_(i)                                          \
  a[2 * (i)] = _mm512_unpacklo_ps(r[2 * (i)], r[2 * (i) + 1]); \
  a[2 * (i) + 1] = _mm512_unpackhi_ps(r[2 * (i)], r[2 * (i) + 1]);
  ATTN_PAIR_(0)
  ATTN_PAIR_(1)
  ATTN_PAIR_(2)
  ATTN_PAIR_(3)
  ATTN_PAIR_(4)
  ATTN_PAIR_(5)
  ATTN_PAIR_(6)
  ATTN_PAIR_(7)
#undef ATTN_PAIR_
#define ATTN_QUAD_(i)                                                       \
  b[4 * (i)] = _mm512_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0x44);         \
  b[4 * (i) + 1] = _mm512_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0xEE);     \
  b[4 * (i) + 2] = _mm512_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0x44); \
  b[4 * (i) + 3] = _mm512_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0xEE);
  ATTN_QUAD_(0)
  ATTN_QUAD_(1)
  ATTN_QUAD_(2)
  ATTN_QUAD_(3)
#undef ATTN_QUAD_
#define ATTN_LANE_(i)                                                \
  a[i] = _mm512_shuffle_f32x4(b[i], b[(i) + 4], 0x88);               \
  a[(i) + 4] = _mm512_shuffle_f32x4(b[i], b[(i) + 4], 0xDD);         \
  a[(i) + 8] = _mm512_shuffle_f32x4(b[(i) + 8], b[(i) + 12], 0x88);  \
  a[(i) + 12] = _mm512_shuffle_f32x4(b[(i) + 8], b[(i) + 12], 0xDD); \
  r[i] = _mm512_shuffle_f32x4(a[i], a[(i) + 8], 0x88);               \
  r[(i) + 8] = _mm512_shuffle_f32x4(a[i], a[(i) + 8], 0xDD);         \
  r[(i) + 4] = _mm512_shuffle_f32x4(a[(i) + 4], a[(i) + 12], 0x88);  \
  r[(i) + 12] = _mm512_shuffle_f32x4(a[(i) + 4], a[(i) + 12], 0xDD);
  ATTN_LANE_(0)
  ATTN_LANE_(1)
  ATTN_LANE_(2)
  ATTN_LANE_(3)
#undef ATTN_LANE_
}

ATTN_INLINE_ void attn_zip_avx512_(attn_v16_ *to, attn_v16_ even, attn_v16_ odd) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  to[0] = ATTN_VECTOR_(attn_v16_) _mm512_permutex2var_ps(even, low, odd);
  to[1] = ATTN_VECTOR_(attn_v16_)
      _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd);
}
ATTN_INLINE_ void attn_unzip_avx512_(attn_v16_ *to, attn_v16_ a, attn_v16_ b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  to[0] = ATTN_VECTOR_(attn_v16_) _mm512_permutex2var_ps(a, even, b);
  to[1] = ATTN_VECTOR_(attn_v16_)
      _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}

ATTN_INLINE_ attn_v16_ attn_sums_avx512_(const attn_v16_ *r) {
  attn_v16_ a[8], b[4];
#define ATTN_PAIR_(i, x, y)                                                          \
  a[i] = ATTN_V_ADD_(ATTN_VECTOR_(attn_v16_) _mm512_shuffle_f32x4(r[x], r[y], 0x44), \
                     ATTN_VECTOR_(attn_v16_) _mm512_shuffle_f32x4(r[x], r[y], 0xEE));
  ATTN_PAIR_(0, 0, 4)
  ATTN_PAIR_(1, 8, 12)
  ATTN_PAIR_(2, 1, 5)
  ATTN_PAIR_(3, 9, 13)
  ATTN_PAIR_(4, 2, 6)
  ATTN_PAIR_(5, 10, 14)
  ATTN_PAIR_(6, 3, 7)
  ATTN_PAIR_(7, 11, 15)
#undef ATTN_PAIR_
#define ATTN_QUAD_(i)                                                                             \
  b[i] =                                                                                          \
      ATTN_V_ADD_(ATTN_VECTOR_(attn_v16_) _mm512_shuffle_f32x4(a[2 * (i)], a[2 * (i) + 1], 0x88), \
                  _mm512_shuffle_f32x4(a[2 * (i)], a[2 * (i) + 1], 0xDD));
  ATTN_QUAD_(0)
  ATTN_QUAD_(1)
  ATTN_QUAD_(2)
  ATTN_QUAD_(3)
#undef ATTN_QUAD_
  a[0] = ATTN_V_ADD_(ATTN_VECTOR_(attn_v16_) _mm512_shuffle_ps(b[0], b[1], 0x44),
                     ATTN_VECTOR_(attn_v16_) _mm512_shuffle_ps(b[0], b[1], 0xEE));
  a[1] = ATTN_V_ADD_(ATTN_VECTOR_(attn_v16_) _mm512_shuffle_ps(b[2], b[3], 0x44),
                     ATTN_VECTOR_(attn_v16_) _mm512_shuffle_ps(b[2], b[3], 0xEE));
  return ATTN_V_ADD_(ATTN_VECTOR_(attn_v16_) _mm512_shuffle_ps(a[0], a[1], 0x88),
                     ATTN_VECTOR_(attn_v16_) _mm512_shuffle_ps(a[0], a[1], 0xDD));
}

ATTN_INLINE_ float attn_sum_avx512_(attn_v16_ v) {
  v = ATTN_V_ADD_(v, ATTN_VECTOR_(attn_v16_) _mm512_shuffle_f32x4(v, v, 0xEE));
  v = ATTN_V_ADD_(v, ATTN_VECTOR_(attn_v16_) _mm512_shuffle_f32x4(v, v, 0x55));
  v = ATTN_V_ADD_(v, ATTN_VECTOR_(attn_v16_) _mm512_permute_ps(v, 0xEE));
  v = ATTN_V_ADD_(v, ATTN_VECTOR_(attn_v16_) _mm512_permute_ps(v, 0x55));
  return _mm512_cvtss_f32(v);
}

/* counters 0, 2, 4 .. and 1, 3, 5 .. in the low halves of 64 bits; what is above them means nothing */
typedef struct {
  __m512i even, odd;
} attn_counters_avx512_;
ATTN_INLINE_ attn_counters_avx512_ attn_load_counters_avx512_(const uint32_t *p) {
  attn_counters_avx512_ x;
  x.even = _mm512_loadu_si512((const void *)p), x.odd = _mm512_srli_epi64(x.even, 32);
  return x;
}
ATTN_INLINE_ attn_counters_avx512_ attn_set1_counters_avx512_(uint32_t n) {
  attn_counters_avx512_ x;
  x.even = x.odd = _mm512_set1_epi32((int)n);
  return x;
}
ATTN_INLINE_ void attn_times_avx512_(attn_counters_avx512_ *up, attn_counters_avx512_ *low,
                                     attn_counters_avx512_ a, uint32_t m) {
  low->even = _mm512_mul_epu32(a.even, _mm512_set1_epi32((int)m));
  low->odd = _mm512_mul_epu32(a.odd, _mm512_set1_epi32((int)m));
  up->even = _mm512_srli_epi64(low->even, 32), up->odd = _mm512_srli_epi64(low->odd, 32);
}
ATTN_INLINE_ attn_counters_avx512_ attn_xor_avx512_(attn_counters_avx512_ a,
                                                    attn_counters_avx512_ b,
                                                    attn_counters_avx512_ c) {
  a.even = _mm512_ternarylogic_epi32(a.even, b.even, c.even, 0x96);
  a.odd = _mm512_ternarylogic_epi32(a.odd, b.odd, c.odd, 0x96);
  return a;
}
ATTN_INLINE_ __mmask16 attn_least_avx512_(attn_counters_avx512_ a, uint32_t t) {
  const __m512i x =
      _mm512_mask_blend_epi32((__mmask16)0xaaaa, a.even, _mm512_slli_epi64(a.odd, 32));
  return (__mmask16)~_mm512_cmplt_epu32_mask(_mm512_srli_epi32(x, 8), _mm512_set1_epi32((int)t));
}
