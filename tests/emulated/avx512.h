/* avx512.h owns the words of AVX-512 that attn/isa/simd_avx512.h speaks, done by AVX2 in two halves:
 * the same bits of every number, NaN included; words.c compares them with the real ones. Debian's SIMDe 0.7.4
 * lacks fifteen of these words. It comes before attn.h, is compiled with -mavx2 -mfma -mf16c and without
 * AVX-512, and takes the place of the intrinsics, so that the text of the tier stays as it is. A word that
 * the tier takes up and that is missing here does not compile; it is added here and in words.h. */
#ifndef TEST_EMULATED_AVX512_H
#define TEST_EMULATED_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

/* The region of the tier, and what it asks of the processor. */
#define ATTN_FEATURES_AVX512_ ATTN_FEATURES_AVX2_
#define ATTN_XCR0_AVX512_ ATTN_XCR0_AVX2_

#define EMULATED static inline __attribute__((always_inline, unused))

/* A register and its parts. */
typedef union em512 {
  __m512 f;
  __m512i i;
  __m256 half[2];
  __m256i half_i[2];
  __m128 quarter[4];
  float lane[16];
  uint32_t bits[16];
} em512;

EMULATED em512 em_f(__m512 x) {
  em512 e;
  e.f = x;
  return e;
}
EMULATED em512 em_i(__m512i x) {
  em512 e;
  e.i = x;
  return e;
}
EMULATED __m512 em_join(__m256 low, __m256 high) {
  em512 e;
  e.half[0] = low, e.half[1] = high;
  return e.f;
}
EMULATED __m512i em_join_i(__m256i low, __m256i high) {
  em512 e;
  e.half_i[0] = low, e.half_i[1] = high;
  return e.i;
}

/* all ones in the lanes chosen */
EMULATED __m256i em_chosen(__mmask16 m, int half) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(m >> (8 * half)), lane), lane);
}
EMULATED __mmask16 em_mask(__m256 low, __m256 high) {
  return (__mmask16)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

/* Words of one, two or three registers that do the same to both halves. An argument that is no
 * constant must not be written out twice: in a nest of words that doubles. */
#define EM_WORD_1(name, word) \
  EMULATED __m512 name(__m512 a) { return em_join(word(em_f(a).half[0]), word(em_f(a).half[1])); }
#define EM_WORD_2(name, word)                               \
  EMULATED __m512 name(__m512 a, __m512 b) {                \
    return em_join(word(em_f(a).half[0], em_f(b).half[0]),  \
                   word(em_f(a).half[1], em_f(b).half[1])); \
  }
#define EM_WORD_2I(name, word)                                    \
  EMULATED __m512i name(__m512i a, __m512i b) {                   \
    return em_join_i(word(em_i(a).half_i[0], em_i(b).half_i[0]),  \
                     word(em_i(a).half_i[1], em_i(b).half_i[1])); \
  }
EM_WORD_2(em_add, _mm256_add_ps)
EM_WORD_2(em_sub, _mm256_sub_ps)
EM_WORD_2(em_mul, _mm256_mul_ps)
EM_WORD_2(em_div, _mm256_div_ps)
EM_WORD_2(em_max, _mm256_max_ps)
EM_WORD_2(em_low_pairs, _mm256_unpacklo_ps)
EM_WORD_2(em_high_pairs, _mm256_unpackhi_ps)
EM_WORD_2I(em_add_i, _mm256_add_epi32)
EM_WORD_2I(em_sub_i, _mm256_sub_epi32)
EM_WORD_2I(em_and_i, _mm256_and_si256)
EM_WORD_2I(em_or_i, _mm256_or_si256)
#define EM_ROUND(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT)
#define EM_ABS(x) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
EM_WORD_1(em_sqrt, _mm256_sqrt_ps)
EM_WORD_1(em_round, EM_ROUND)
EM_WORD_1(em_abs, EM_ABS)
EMULATED __m512 em_fma(__m512 a, __m512 b, __m512 c) {
  return em_join(_mm256_fmadd_ps(em_f(a).half[0], em_f(b).half[0], em_f(c).half[0]),
                 _mm256_fmadd_ps(em_f(a).half[1], em_f(b).half[1], em_f(c).half[1]));
}

/* --- numbers in and out */
EMULATED __m512 em_loadu(const void *p) {
  const float *f = (const float *)p;
  return em_join(_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8));
}
EMULATED __m512i em_loadu_i(const void *p) {
  const char *c = (const char *)p;
  return em_join_i(_mm256_loadu_si256((const __m256i *)(const void *)c),
                   _mm256_loadu_si256((const __m256i *)(const void *)(c + 32)));
}
EMULATED void em_storeu(void *p, __m512 x) {
  float *f = (float *)p;
  _mm256_storeu_ps(f, em_f(x).half[0]), _mm256_storeu_ps(f + 8, em_f(x).half[1]);
}
EMULATED __m512 em_load_chosen(__mmask16 m, const float *p) {
  return em_join(_mm256_maskload_ps(p, em_chosen(m, 0)),
                 _mm256_maskload_ps(p + 8, em_chosen(m, 1)));
}
EMULATED void em_store_chosen(float *p, __mmask16 m, __m512 x) {
  _mm256_maskstore_ps(p, em_chosen(m, 0), em_f(x).half[0]);
  _mm256_maskstore_ps(p + 8, em_chosen(m, 1), em_f(x).half[1]);
}
EMULATED __m512 em_gather(__m512i i, const float *p) {
  return em_join(_mm256_i32gather_ps(p, em_i(i).half_i[0], 4),
                 _mm256_i32gather_ps(p, em_i(i).half_i[1], 4));
}

/* --- choice */
EMULATED __m512 em_blend(__mmask16 m, __m512 no, __m512 yes) {
  return em_join(
      _mm256_blendv_ps(em_f(no).half[0], em_f(yes).half[0], _mm256_castsi256_ps(em_chosen(m, 0))),
      _mm256_blendv_ps(em_f(no).half[1], em_f(yes).half[1], _mm256_castsi256_ps(em_chosen(m, 1))));
}
EMULATED __mmask16 em_less_unsigned(__m512i a, __m512i b) {
  int m = 0;
  for (int l = 0; l < 16; l++) m |= (em_i(a).bits[l] < em_i(b).bits[l]) << l;
  return (__mmask16)m;
}

/* --- powers of two: x 2^floor(n), rounded once */
EMULATED __m512 em_scalef(__m512 x, __m512 n) {
  em512 e = em_f(x), by = em_f(n);
  for (int l = 0; l < 16; l++) {
    const float power = floorf(by.lane[l]);
    if (isnan(e.lane[l])) { /* a quiet one yields to an infinite power */
      const int yields = isinf(power) && e.bits[l] & 0x400000;
      e.bits[l] = !yields ? e.bits[l] | 0x400000 : power > 0 ? 0x7f800000 : 0;
    } else if (isnan(power)) {
      e.bits[l] = by.bits[l] | 0x400000;
    } else if (isinf(power)) {
      e.lane[l] *= power > 0 ? power : 0.0f;
    } else {
      e.lane[l] = scalbnf(e.lane[l], power > 999 ? 999 : power < -999 ? -999 : (int)power);
    }
  }
  return e.f;
}

/* --- lanes elsewhere */
EMULATED __m512i em_ternary(__m512i x, __m512i y, __m512i z, int table) {
  em512 e, a = em_i(x), b = em_i(y), c = em_i(z);
  for (int n = 0; n < 16; n++) {
    e.bits[n] = 0;
    for (int t = 0; t < 8; t++)
      if (table >> t & 1)
        e.bits[n] |= (t & 4 ? a.bits[n] : ~a.bits[n]) & (t & 2 ? b.bits[n] : ~b.bits[n]) &
                     (t & 1 ? c.bits[n] : ~c.bits[n]);
  }
  return e.i;
}
EMULATED __m512 em_permutex2var(__m512 x, __m512i i, __m512 y) {
  em512 e, a = em_f(x), b = em_f(y), at = em_i(i);
  for (int n = 0; n < 16; n++)
    e.bits[n] = at.bits[n] & 16 ? b.bits[at.bits[n] & 15] : a.bits[at.bits[n] & 15];
  return e.f;
}
EMULATED __m512 em_permutexvar(__m512i i, __m512 x) {
  em512 e;
  for (int l = 0; l < 16; l++) e.lane[l] = em_f(x).lane[em_i(i).bits[l] & 15];
  return e.f;
}
EMULATED __m512 em_quarters(__m512 a, __m512 b, int which) {
  em512 e;
  e.quarter[0] = em_f(a).quarter[which & 3], e.quarter[1] = em_f(a).quarter[which >> 2 & 3];
  e.quarter[2] = em_f(b).quarter[which >> 4 & 3], e.quarter[3] = em_f(b).quarter[which >> 6 & 3];
  return e.f;
}
EMULATED float em_top(__m512 x) {
  const __m256 a = _mm256_max_ps(em_f(x).half[1], em_f(x).half[0]);
  const __m128 b = _mm_max_ps(_mm256_extractf128_ps(a, 1), _mm256_castps256_ps128(a));
  const __m128 c = _mm_max_ps(b, _mm_shuffle_ps(b, b, 0x4E));
  return _mm_cvtss_f32(_mm_max_ps(c, _mm_shuffle_ps(c, c, 0xB1)));
}

/* --- other widths */
EMULATED __m512 em_from_half(__m256i h) {
  return em_join(_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
EMULATED __m512i em_from_u16(__m256i h) {
  return em_join_i(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)),
                   _mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)));
}
EMULATED __m512i em_from_i8(__m128i b) {
  return em_join_i(_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)));
}
EMULATED __m512i em_from_u8(__m128i b) {
  return em_join_i(_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8)));
}
EMULATED __m512i em_from_u8_to_64(__m128i b) {
  return em_join_i(_mm256_cvtepu8_epi64(b), _mm256_cvtepu8_epi64(_mm_srli_si128(b, 4)));
}
EMULATED __m256i em_to_16(__m512i x) {
  uint16_t low[16];
  for (int l = 0; l < 16; l++) low[l] = (uint16_t)em_i(x).bits[l];
  return _mm256_loadu_si256((const __m256i *)(const void *)low);
}

#undef _mm512_setr_ps
#undef _mm512_setr_epi32
#define _mm512_loadu_ps(p) em_loadu(p)
#define _mm512_storeu_ps(p, x) em_storeu(p, x)
#define _mm512_storeu_si512(p, x) em_storeu((float *)(p), _mm512_castsi512_ps(x))
#define _mm512_loadu_si512(p) em_loadu_i(p)
#define _mm512_maskz_loadu_ps(m, p) em_load_chosen(m, p)
#define _mm512_mask_storeu_ps(p, m, x) em_store_chosen(p, m, x)
#define _mm512_i32gather_ps(i, p, scale) em_gather(i, p) /* scale: 4 */
#define _mm512_set1_ps(x) em_join(_mm256_set1_ps(x), _mm256_set1_ps(x))
#define _mm512_set1_epi32(x) em_join_i(_mm256_set1_epi32(x), _mm256_set1_epi32(x))
#define _mm512_setzero_ps() em_join(_mm256_setzero_ps(), _mm256_setzero_ps())
#define _mm512_setr_ps(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  em_join(_mm256_setr_ps(a, b, c, d, e, f, g, h), _mm256_setr_ps(i, j, k, l, m, n, o, p))
#define _mm512_setr_epi32(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  em_join_i(_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p))
#define _mm512_castps_si512(x) em_f(x).i
#define _mm512_castsi512_ps(x) em_i(x).f
#define _mm512_cvtss_f32(x) em_f(x).lane[0]

#define _mm512_add_ps(a, b) em_add(a, b)
#define _mm512_sub_ps(a, b) em_sub(a, b)
#define _mm512_mul_ps(a, b) em_mul(a, b)
#define _mm512_div_ps(a, b) em_div(a, b)
#define _mm512_max_ps(a, b) em_max(a, b)
#define _mm512_fmadd_ps(a, b, c) em_fma(a, b, c)
#define __builtin_ia32_maxps512_mask(a, b, old, m, round) em_max(a, b)
#define __builtin_ia32_vfmaddps512_mask(a, b, c, m, round) em_fma(a, b, c)
#define _mm512_sqrt_ps(a) em_sqrt(a)
#define _mm512_abs_ps(a) em_abs(a)
#define _mm512_mask_mul_ps(old, m, a, b) em_blend(m, old, em_mul(a, b))
#define _mm512_roundscale_ps(a, how) em_round(a) /* how: to the nearest */
#define _mm512_scalef_ps(x, n) em_scalef(x, n)
#define _mm512_maskz_scalef_ps(m, x, n) em_blend(m, _mm512_setzero_ps(), em_scalef(x, n))
#define _mm512_reduce_max_ps(x) em_top(x)

#define _mm512_cmp_ps_mask(a, b, how)                           \
  em_mask(_mm256_cmp_ps(em_f(a).half[0], em_f(b).half[0], how), \
          _mm256_cmp_ps(em_f(a).half[1], em_f(b).half[1], how))
#define _mm512_cmplt_epu32_mask(a, b) em_less_unsigned(a, b)
#define _mm_cmpneq_epi8_mask(a, b) ((__mmask16)~_mm_movemask_epi8(_mm_cmpeq_epi8(a, b)))
#define _mm512_mask_blend_ps(m, no, yes) em_blend(m, no, yes)
#define _mm512_mask_blend_epi32(m, no, yes) em_f(em_blend(m, em_i(no).f, em_i(yes).f)).i

#define _mm512_add_epi32(a, b) em_add_i(a, b)
#define _mm512_sub_epi32(a, b) em_sub_i(a, b)
#define _mm512_mul_epu32(a, b)                                      \
  em_join_i(_mm256_mul_epu32(em_i(a).half_i[0], em_i(b).half_i[0]), \
            _mm256_mul_epu32(em_i(a).half_i[1], em_i(b).half_i[1]))
#define _mm512_and_si512(a, b) em_and_i(a, b)
#define _mm512_or_si512(a, b) em_or_i(a, b)
#define EM_SHIFT(word, a, n) \
  em_join_i(word(em_i(a).half_i[0], (int)(n)), word(em_i(a).half_i[1], (int)(n)))
#define _mm512_slli_epi32(a, n) EM_SHIFT(_mm256_slli_epi32, a, n)
#define _mm512_srli_epi32(a, n) EM_SHIFT(_mm256_srli_epi32, a, n)
#define _mm512_slli_epi64(a, n) EM_SHIFT(_mm256_slli_epi64, a, n)
#define _mm512_srli_epi64(a, n) EM_SHIFT(_mm256_srli_epi64, a, n)

#define EM_TO_HALF(x) _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
#define _mm512_cvtps_ph(a, how) \
  _mm256_setr_m128i(EM_TO_HALF(em_f(a).half[0]), EM_TO_HALF(em_f(a).half[1]))
#define _mm512_cvtph_ps(h) em_from_half(h)
#define _mm512_cvtepi32_ps(a) \
  em_join(_mm256_cvtepi32_ps(em_i(a).half_i[0]), _mm256_cvtepi32_ps(em_i(a).half_i[1]))
#define _mm512_cvtepu16_epi32(h) em_from_u16(h)
#define _mm512_cvtepi8_epi32(b) em_from_i8(b)
#define _mm512_cvtepu8_epi32(b) em_from_u8(b)
#define _mm512_cvtepu8_epi64(b) em_from_u8_to_64(b)
#define _mm512_cvtepi32_epi16(a) em_to_16(a)

#define _mm512_ternarylogic_epi32(x, y, z, table) em_ternary(x, y, z, table)
#define _mm512_permutexvar_ps(i, x) em_permutexvar(i, x)
#define _mm512_permutex2var_ps(x, i, y) em_permutex2var(x, i, y)
#define _mm512_shuffle_f32x4(a, b, which) em_quarters(a, b, which)
#define EM_INSIDE(word, a, b, which)                     \
  em_join(word(em_f(a).half[0], em_f(b).half[0], which), \
          word(em_f(a).half[1], em_f(b).half[1], which))
#define _mm512_shuffle_ps(a, b, which) EM_INSIDE(_mm256_shuffle_ps, a, b, which)
#define _mm512_permute_ps(a, which) _mm512_shuffle_ps(a, a, which)
#define _mm512_unpacklo_ps(a, b) em_low_pairs(a, b)
#define _mm512_unpackhi_ps(a, b) em_high_pairs(a, b)

#endif
