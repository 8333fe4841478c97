/* isa/simd_avxvnni.h owns the words of the avx2 vocabulary that AVX-VNNI has instructions for: those of
 * isa/simd_avx512vnni.h, in half the width and without AVX-512. kernels/codes.h is compiled once more with
 * them, in a region of its own. */

#undef ATTN_T_
#define ATTN_T_ avxvnni
#undef ATTN_TIER_
#define ATTN_TIER_ avx2 /* whose functions are there */
#define ATTN_CODE_RAISED_ 128.0f
typedef int32_t attn_i8_ __attribute__((vector_size(32)));
#define ATTN_VC_ attn_i8_
#define ATTN_CODE_LOAD_(p) ((attn_i8_)_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define ATTN_CODE_STORE_(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), (__m256i)(v))
#define ATTN_CODE_SET1_(x) ((attn_i8_)_mm256_set1_epi32((int)(x)))
#define ATTN_CODE_DOT_(k, x, c) \
  ((attn_i8_)_mm256_dpbusd_avx_epi32((__m256i)(c), (__m256i)(k), (__m256i)(x)))
#define ATTN_CODE_ALL_(x) ATTN_CODE_SET1_(x)
#define ATTN_CODE_QUAD_(k, x, c) ATTN_CODE_DOT_(k, x, c)
#define ATTN_CODE_SUM_(c) (ATTN_VECTOR_(attn_v8_) _mm256_cvtepi32_ps((__m256i)(c)))
#define ATTN_CODE_PUT_(p, v) attn_put_avxvnni_(p, v)
#define ATTN_CODE_RAISE_(p, from)          \
  _mm_storeu_si128((__m128i *)(void *)(p), \
                   _mm_xor_si128(_mm_loadu_si128((const __m128i *)(from)), _mm_set1_epi8(-128)))
#define ATTN_CODE_PUT_FOUR_(p, v) attn_put_four_avxvnni_(p, v)
#define ATTN_CODE_QUADS_(v) attn_quads_avxvnni_(v)
#define ATTN_CODE_PUT_INT_(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), _mm256_cvtps_epi32(v))

ATTN_INLINE_ void attn_put_avxvnni_(void *p, attn_v8_ v) {
  const __m256i x = _mm256_cvtps_epi32(v);
  const __m128i y = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i *)p, _mm_xor_si128(_mm_packs_epi16(y, y), _mm_set1_epi8(-128)));
}

ATTN_INLINE_ void attn_put_four_avxvnni_(void *p, const attn_v8_ *v) {
  const __m256i byte = _mm256_set1_epi32(255);
  const __m256i a = _mm256_and_si256(_mm256_cvtps_epi32(v[0]), byte);
  const __m256i b = _mm256_and_si256(_mm256_cvtps_epi32(v[1]), byte);
  const __m256i c = _mm256_and_si256(_mm256_cvtps_epi32(v[2]), byte);
  const __m256i d = _mm256_slli_epi32(_mm256_cvtps_epi32(v[3]), 24);
  _mm256_storeu_si256((__m256i *)p, _mm256_or_si256(_mm256_or_si256(a, _mm256_slli_epi32(b, 8)),
                                                    _mm256_or_si256(_mm256_slli_epi32(c, 16), d)));
}

ATTN_INLINE_ void attn_quads_avxvnni_(attn_i8_ *v) {
  const __m256i a = (__m256i)v[0], b = (__m256i)v[1], c = (__m256i)v[2], d = (__m256i)v[3];
  const __m256i e = _mm256_unpacklo_epi8(a, b), f = _mm256_unpackhi_epi8(a, b);
  const __m256i g = _mm256_unpacklo_epi8(c, d), h = _mm256_unpackhi_epi8(c, d);
  v[0] = (attn_i8_)_mm256_unpacklo_epi16(e, g), v[1] = (attn_i8_)_mm256_unpackhi_epi16(e, g);
  v[2] = (attn_i8_)_mm256_unpacklo_epi16(f, h), v[3] = (attn_i8_)_mm256_unpackhi_epi16(f, h);
}
