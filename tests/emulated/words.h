/* words.h owns the list of the words that avx512.h emulates, each used once. It is compiled twice, with the
 * real words and with the emulated ones, as the function that WORDS names. */
#include <immintrin.h>
#include <stdint.h>

/* What one use of a word gives, as sixteen numbers' bits. */
typedef struct words_result {
  const char *name;
  uint32_t bits[16];
} words_result;

enum { WORDS_MOST = 64 };

int words_real(words_result *to, const float *a, const float *b, const float *c, const void *bytes);
int words_emulated(words_result *to, const float *a, const float *b, const float *c,
                   const void *bytes);

/* AVX512-VNNI's word of 8 lanes, which AVX-VNNI has too. */
void words_dpbusd(void *to, const void *c, const void *a, const void *b);

#ifdef WORDS
#define PUT(word) to[n].name = #word, _mm512_storeu_ps(to[n++].bits, word)
#define PUT_I(word) to[n].name = #word, _mm512_storeu_ps(to[n++].bits, _mm512_castsi512_ps(word))

int WORDS(words_result *to, const float *a, const float *b, const float *c, const void *bytes) {
  int n = 0;
  const __m512 x = _mm512_loadu_ps(a), y = _mm512_loadu_ps(b), z = _mm512_loadu_ps(c);
  const __m512i i = _mm512_castps_si512(x), j = _mm512_loadu_si512(b);
  const __m128i q = _mm_loadu_si128((const __m128i *)bytes);
  const __m256i h = _mm256_loadu_si256((const __m256i *)bytes);
  const int some = _mm_cvtsi128_si32(q) & 15;
  const __mmask16 few = (__mmask16)((1u << some) - 1u), odd = (__mmask16)_mm_cvtsi128_si32(q);
  PUT(_mm512_maskz_loadu_ps(few, a));
  _mm512_storeu_ps(to[n].bits, z);
  _mm512_mask_storeu_ps((float *)(void *)to[n].bits, few, x);
  to[n++].name = "_mm512_mask_storeu_ps";
  _mm512_storeu_si512((void *)to[n].bits, i);
  to[n++].name = "_mm512_storeu_si512";
  PUT(_mm512_i32gather_ps(_mm512_and_si512(j, _mm512_set1_epi32(15)), a, 4));
  PUT(_mm512_set1_ps(_mm512_cvtss_f32(x)));
  PUT(_mm512_add_ps(x, y));
  PUT(_mm512_sub_ps(x, y));
  PUT(_mm512_mul_ps(x, y));
  PUT(_mm512_div_ps(x, y));
  PUT(_mm512_max_ps(x, y));
  PUT(_mm512_fmadd_ps(x, y, z));
  PUT(_mm512_sqrt_ps(x));
  PUT(_mm512_abs_ps(x));
  PUT(_mm512_mask_mul_ps(z, odd, x, y));
  PUT(_mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT));
  PUT(_mm512_scalef_ps(x, y));
  PUT(_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(y, z, _CMP_NLT_UQ), x, y));
  PUT(_mm512_set1_ps(_mm512_reduce_max_ps(x)));
  PUT(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ), y, z));
  PUT(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), y, z));
  PUT(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), y, z));
  PUT(_mm512_mask_blend_ps(_mm512_cmplt_epu32_mask(i, j), y, z));
  PUT(_mm512_mask_blend_ps(_mm_cmpneq_epi8_mask(q, _mm_srli_si128(q, 1)), y, z));
  PUT_I(_mm512_mask_blend_epi32(odd, i, j));
  PUT_I(_mm512_add_epi32(i, j));
  PUT_I(_mm512_sub_epi32(i, j));
  PUT_I(_mm512_and_si512(i, j));
  PUT_I(_mm512_or_si512(i, j));
  PUT_I(_mm512_slli_epi32(i, 16));
  PUT_I(_mm512_srli_epi32(i, 4));
  PUT_I(_mm512_srli_epi64(i, 32));
  PUT_I(_mm512_mul_epu32(i, j));
  PUT_I(_mm512_slli_epi64(i, 28));
  PUT_I(_mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)));
  PUT_I(_mm512_cvtepu16_epi32(_mm512_cvtepi32_epi16(i)));
  PUT(_mm512_cvtph_ps(h));
  PUT(_mm512_cvtepi32_ps(i));
  PUT_I(_mm512_cvtepi8_epi32(q));
  PUT_I(_mm512_cvtepu8_epi32(q));
  PUT_I(_mm512_cvtepu8_epi64(q));
  PUT(_mm512_permutexvar_ps(j, x));
  PUT(_mm512_permutex2var_ps(x, j, y));
  PUT_I(_mm512_ternarylogic_epi32(i, j, _mm512_castps_si512(z), 0xea));
  PUT(_mm512_permutexvar_ps(
      _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
      _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)));
  PUT(_mm512_shuffle_f32x4(x, y, 0x88));
  PUT(_mm512_shuffle_f32x4(x, y, 0xDD));
  PUT(_mm512_shuffle_f32x4(x, y, 0x4E));
  PUT(_mm512_shuffle_ps(x, y, 0x44));
  PUT(_mm512_shuffle_ps(x, y, 0xDD));
  PUT(_mm512_permute_ps(x, 0xB1));
  PUT(_mm512_permute_ps(x, 0x55));
  PUT(_mm512_unpacklo_ps(x, y));
  PUT(_mm512_unpackhi_ps(x, y));
  PUT(_mm512_setzero_ps());
  return n;
}
#endif
