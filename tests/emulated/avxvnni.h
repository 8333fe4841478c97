/* avxvnni.h owns the word of AVX-VNNI, done by AVX2: few processors, and no emulator here, have it. words.c compares
 * it with that of AVX512-VNNI, which is the same in half the width. It comes before attn.h. */
#ifndef TEST_EMULATED_AVXVNNI_H
#define TEST_EMULATED_AVXVNNI_H

#include <immintrin.h>

/* The region of the feature, and what it asks of the processor. */
#define ATTN_FEATURES_AVXVNNI_ ATTN_FEATURES_AVX2_

/* c + the four products of unsigned a and signed b of each lane, whose sums do not saturate */
static inline __attribute__((always_inline, unused)) __m256i em_dpbusd(__m256i c, __m256i a,
                                                                       __m256i b) {
  const __m256i low = _mm256_set1_epi16(255), ones = _mm256_set1_epi16(1);
  const __m256i even =
      _mm256_mullo_epi16(_mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  c = _mm256_add_epi32(c, _mm256_madd_epi16(even, ones));
  return _mm256_add_epi32(c, _mm256_madd_epi16(odd, ones));
}
#define _mm256_dpbusd_avx_epi32(c, a, b) em_dpbusd(c, a, b)

#endif
