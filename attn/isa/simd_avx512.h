/* isa/simd_avx512.h owns the vector vocabulary of the avx512 tier: 16 lanes. The four simd files
 * define the same words in the same order; isa/simd_undef.h forgets them. */

#define ATTN_T_ avx512
#define ATTN_ISA_ID_ ATTN_ISA_AVX512
#define ATTN_W_ 16         /* lanes of a vector */
#define ATTN_MR_ 6         /* rows of a micro-kernel */
#define ATTN_NG_ 4         /* lane groups (of 16 lanes) of a micro-kernel */
#define ATTN_SPECIALISE_ 1 /* one copy of a loop per storage type and set of modifiers */

#define ATTN_VF_ __m512
#define ATTN_VM_ __mmask16
/* lanes in and out; PART touches the first n lanes only, loads zero in the others */
#define ATTN_V_LOAD_(p) _mm512_loadu_ps(p)
#define ATTN_V_STORE_(p, v) _mm512_storeu_ps(p, v)
#define ATTN_V_LOAD_PART_(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1u), p)
#define ATTN_V_STORE_PART_(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1u), v)
#define ATTN_V_SET1_(x) _mm512_set1_ps(x)
#define ATTN_V_ZERO_() _mm512_setzero_ps()
/* arithmetic; MAX gives b when either is NaN or both are equal */
#define ATTN_V_ADD_(a, b) _mm512_add_ps(a, b)
#define ATTN_V_SUB_(a, b) _mm512_sub_ps(a, b)
#define ATTN_V_MUL_(a, b) _mm512_mul_ps(a, b)
#define ATTN_V_DIV_(a, b) _mm512_div_ps(a, b)
#define ATTN_V_FMA_(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ATTN_V_MAX_(a, b) _mm512_max_ps(a, b)
#define ATTN_V_ABS_(a) _mm512_abs_ps(a)
/* comparisons and choice; NaN compares false */
#define ATTN_V_EQ_(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define ATTN_V_LT_(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
/* 1 when every lane is chosen */
#define ATTN_V_ALL_(m) ((m) == 0xffff)
#define ATTN_V_SELECT_(m, a, b) _mm512_mask_blend_ps(m, b, a)
/* n = x rounded to an integer, t = n + ATTN_EXP_BIAS_ (unused here) */
#define ATTN_V_ROUND_(x, t, n) (n) = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), (t) = (n)
/* p * 2^n / UNIT: SMALL for n <= 0 after EXP_FLOOR, 0 below n = -125; the other for any n, rounded
 * once. NaN in p stays NaN whatever its payload. */
/* what the polynomial for LDEXP is multiplied by */
#define ATTN_EXP_UNIT_ 1.0f
#define ATTN_V_EXP_FLOOR_(x) (x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) \
  ((void)(t),                        \
   _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ), p, n))
#define ATTN_V_LDEXP_(p, t, n) ((void)(t), _mm512_scalef_ps(p, n))
/* 16-bit storage, round to nearest even */
#define ATTN_V_LOAD_F16_(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define ATTN_V_STORE_F16_(p, v) \
  _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define ATTN_V_LOAD_BF16_(p) \
  _mm512_castsi512_ps(       \
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define ATTN_V_STORE_BF16_(p, v) _mm256_storeu_si256((__m256i *)(p), attn_to_bf16_avx512_(v))
/* the lowest bits of a uint64_t as a choice of lanes; p[i[lane]] */
#define ATTN_V_BITS_(bits) ((__mmask16)(bits))
#define ATTN_V_GATHER_(p, i) _mm512_i32gather_ps(_mm512_loadu_si512(i), p, 4)
/* lanes (0,1),(2,3).. exchanged */
#define ATTN_V_SWAP_PAIRS_(a) _mm512_permute_ps(a, 0xB1)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_avx512_(r)
/* SLEEF's name of a function; own prototypes, since its header hides them from other regions */
#define ATTN_V_SLEEF_(f) Sleef_##f##f16_u10avx512f

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_AVX512_)
__m512 Sleef_expf16_u10avx512f(__m512);
__m512 Sleef_exp2f16_u10avx512f(__m512);
__m512 Sleef_tanhf16_u10avx512f(__m512);
#endif

ATTN_INLINE_ __m256i attn_to_bf16_avx512_(__m512 v) {
  __m512i x = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16));
}

/* 16 x 16 in place: r[i] lane j <-> r[j] lane i, by 2x2, 4x4 and 128-bit exchanges */
ATTN_INLINE_ void attn_transpose_avx512_(__m512 *r) {
  __m512 a[16], b[16];
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
