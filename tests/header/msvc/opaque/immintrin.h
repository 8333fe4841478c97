/* immintrin.h owns the vectors of MSVC for a parse by msvc.sh: unions, which know neither operators
 * nor casts, and the intrinsics that attn.h uses, with Microsoft's types. One that is missing here
 * is an error: declare it. */

#pragma once
#ifdef __cplusplus
extern "C" {
#endif

typedef union __declspec(align(16)) __m128 {
  float m128_f32[4];
} __m128;
typedef union __declspec(align(16)) __m128i {
  int m128i_i32[4];
} __m128i;
typedef union __declspec(align(32)) __m256 {
  float m256_f32[8];
} __m256;
typedef union __declspec(align(32)) __m256i {
  int m256i_i32[8];
} __m256i;
typedef union __declspec(align(64)) __m512 {
  float m512_f32[16];
} __m512;
typedef union __declspec(align(64)) __m512i {
  int m512i_i32[16];
} __m512i;
typedef unsigned short __mmask16;

enum { _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_CUR_DIRECTION = 4 };
enum { _CMP_UNORD_Q = 3, _CMP_NLT_UQ = 5, _CMP_EQ_OQ = 0, _CMP_LT_OQ = 17 };

/* one name for each type of function */
typedef __m128 f128_(__m128, __m128);
typedef __m128 f128_at_(__m128, __m128, unsigned);
typedef __m128i i128_(__m128i, __m128i);
typedef __m256 f256_(__m256, __m256);
typedef __m256 f256_at_(__m256, __m256, int);
typedef __m256 f256_3_(__m256, __m256, __m256);
typedef __m256i i256_(__m256i, __m256i);
typedef __m256i i256_shift_(__m256i, int);
typedef __m256i i256_wide_(__m128i);
typedef __m512 f512_(__m512, __m512);
typedef __m512 f512_1_(__m512);
typedef __m512 f512_at_(__m512, __m512, int);
typedef __m512i i512_(__m512i, __m512i);
typedef __m512i i512_shift_(__m512i, unsigned);
typedef __m512i i512_wide_(__m128i);

f128_ _mm_add_ps, _mm_max_ps, _mm_movehl_ps;
f128_at_ _mm_shuffle_ps;
float _mm_cvtss_f32(__m128);
unsigned _mm_getcsr(void);
void _mm_setcsr(unsigned);
i128_ _mm_and_si128, _mm_or_si128, _mm_cmpeq_epi16;
unsigned short _mm_cmpneq_epi8_mask(__m128i, __m128i);
__m128i _mm_cvtepi8_epi16(__m128i);
__m128i _mm_slli_epi16(__m128i, int);
__m128i _mm_set1_epi8(char);
__m128i _mm_set1_epi16(short);
__m128i _mm_loadl_epi64(__m128i const *);
__m128i _mm_loadu_si128(__m128i const *);
void _mm_storeu_si128(__m128i *, __m128i);

f256_ _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps, _mm256_max_ps, _mm256_andnot_ps;
f256_ _mm256_unpackhi_ps, _mm256_unpacklo_ps;
f256_at_ _mm256_cmp_ps, _mm256_shuffle_ps, _mm256_permute2f128_ps;
f256_3_ _mm256_fmadd_ps, _mm256_blendv_ps;
__m256 _mm256_sqrt_ps(__m256);
__m256 _mm256_permute_ps(__m256, int);
__m256 _mm256_set1_ps(float);
__m256 _mm256_setzero_ps(void);
__m256 _mm256_loadu_ps(float const *);
__m256 _mm256_maskload_ps(float const *, __m256i);
__m256 _mm256_i32gather_ps(float const *, __m256i, int);
void _mm256_storeu_ps(float *, __m256);
void _mm256_maskstore_ps(float *, __m256i, __m256);
int _mm256_movemask_ps(__m256);
__m128 _mm256_castps256_ps128(__m256);
__m128 _mm256_extractf128_ps(__m256, int);
__m256i _mm256_castps_si256(__m256);
__m256 _mm256_castsi256_ps(__m256i);
__m128i _mm256_castsi256_si128(__m256i);
__m256 _mm256_cvtepi32_ps(__m256i);
__m256 _mm256_cvtph_ps(__m128i);
__m128i _mm256_cvtps_ph(__m256, int);
i256_ _mm256_add_epi32, _mm256_sub_epi32, _mm256_and_si256, _mm256_or_si256, _mm256_xor_si256;
i256_ _mm256_cmpeq_epi32, _mm256_cmpgt_epi32, _mm256_packus_epi32, _mm256_sllv_epi32;
i256_ _mm256_mul_epu32;
__m256i _mm256_blend_epi32(__m256i, __m256i, int);
i256_shift_ _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi32;
i256_shift_ _mm256_slli_epi64, _mm256_srli_epi64, _mm256_permute4x64_epi64;
i256_wide_ _mm256_cvtepi8_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32;
__m256i _mm256_set1_epi16(short);
__m256i _mm256_set1_epi32(int);
__m256i _mm256_setr_epi32(int, int, int, int, int, int, int, int);
__m256i _mm256_loadu_si256(__m256i const *);
void _mm256_storeu_si256(__m256i *, __m256i);

f512_ _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps, _mm512_max_ps, _mm512_scalef_ps;
f512_ _mm512_unpackhi_ps, _mm512_unpacklo_ps;
f512_1_ _mm512_abs_ps, _mm512_sqrt_ps;
f512_at_ _mm512_shuffle_ps, _mm512_shuffle_f32x4;
__m512 _mm512_fmadd_ps(__m512, __m512, __m512);
__m512 _mm512_permute_ps(__m512, int);
__m512 _mm512_permutexvar_ps(__m512i, __m512);
__m512 _mm512_permutex2var_ps(__m512, __m512i, __m512);
__m512i _mm512_ternarylogic_epi32(__m512i, __m512i, __m512i, int);
__m512 _mm512_roundscale_ps(__m512, int);
__m512 _mm512_mask_blend_ps(__mmask16, __m512, __m512);
__m512 _mm512_mask_mul_ps(__m512, __mmask16, __m512, __m512);
__m512 _mm512_maskz_scalef_ps(__mmask16, __m512, __m512);
__mmask16 _mm512_cmp_ps_mask(__m512, __m512, int);
__mmask16 _mm512_cmplt_epu32_mask(__m512i, __m512i);
__m512 _mm512_set1_ps(float);
__m512 _mm512_setzero_ps(void);
__m512 _mm512_setr_ps(float, float, float, float, float, float, float, float, float, float, float,
                      float, float, float, float, float);
__m512 _mm512_loadu_ps(void const *);
__m512 _mm512_maskz_loadu_ps(__mmask16, void const *);
__m512 _mm512_i32gather_ps(__m512i, void const *, int);
void _mm512_storeu_ps(void *, __m512);
void _mm512_mask_storeu_ps(void *, __mmask16, __m512);
float _mm512_cvtss_f32(__m512);
float _mm512_reduce_max_ps(__m512);
__m512i _mm512_castps_si512(__m512);
__m512 _mm512_castsi512_ps(__m512i);
__m512 _mm512_cvtepi32_ps(__m512i);
__m512 _mm512_cvtph_ps(__m256i);
__m256i _mm512_cvtps_ph(__m512, int);
__m256i _mm512_cvtepi32_epi16(__m512i);
i512_ _mm512_add_epi32, _mm512_sub_epi32, _mm512_and_si512, _mm512_or_si512, _mm512_mul_epu32;
i512_shift_ _mm512_slli_epi32, _mm512_srli_epi32, _mm512_slli_epi64, _mm512_srli_epi64;
i512_wide_ _mm512_cvtepi8_epi32, _mm512_cvtepu8_epi32, _mm512_cvtepu8_epi64;
__m512i _mm512_cvtepu16_epi32(__m256i);
__m512i _mm512_mask_blend_epi32(__mmask16, __m512i, __m512i);
__m512i _mm512_set1_epi32(int);
__m512i _mm512_setr_epi32(int, int, int, int, int, int, int, int, int, int, int, int, int, int, int,
                          int);
__m512i _mm512_loadu_si512(void const *);
void _mm512_storeu_si512(void *, __m512i);

#ifdef __cplusplus
}
#endif
