/* words_real.c owns the words of AVX-512 as the processor has them. */
#define WORDS words_real
#include "words.h"

__attribute__((target("avx512vnni,avx512vl"))) void words_dpbusd(void *to, const void *c,
                                                                 const void *a, const void *b) {
  const __m256i x = _mm256_loadu_si256((const __m256i *)c);
  const __m256i y = _mm256_loadu_si256((const __m256i *)a);
  const __m256i z = _mm256_loadu_si256((const __m256i *)b);
  _mm256_storeu_si256((__m256i *)to, _mm256_dpbusd_epi32(x, y, z));
}
