/* isa/simd_avx512vnni.h owns the words of the avx512 vocabulary that AVX512-VNNI has instructions for: codes
 * of 8 bits, four to a word. kernels/codes.h is compiled once more with them, in a region of its own. */

#undef ATTN_T_
#define ATTN_T_ avx512vnni
#undef ATTN_TIER_
#define ATTN_TIER_ avx512        /* whose functions are there */
#define ATTN_CODE_RAISED_ 128.0f /* of keys: the instruction takes one side unsigned */
/* four codes of each lane, and their sums. A vector of integers of its own: cast to __m512i and back in a loop,
 * gcc copies sums to memory. c + the four products of k, raised by 128, and x */
typedef int32_t attn_i16_ __attribute__((vector_size(64)));
#define ATTN_VC_ attn_i16_
#define ATTN_CODE_LOAD_(p) ((attn_i16_)_mm512_loadu_si512((const void *)(p)))
#define ATTN_CODE_STORE_(p, v) _mm512_storeu_si512((void *)(p), (__m512i)(v))
#define ATTN_CODE_SET1_(x) ((attn_i16_)_mm512_set1_epi32((int)(x)))
#if defined(ATTN_GCC_)
#define ATTN_CODE_DOT_(k, x, c) ((attn_i16_)__builtin_ia32_vpdpbusd_v16si(c, k, x))
#else
#define ATTN_CODE_DOT_(k, x, c) \
  ((attn_i16_)_mm512_dpbusd_epi32((__m512i)(c), (__m512i)(k), (__m512i)(x)))
#endif
#define ATTN_CODE_ALL_(x) ATTN_CODE_SET1_(x)
#define ATTN_CODE_QUAD_(k, x, c) ATTN_CODE_DOT_(k, x, c)
#define ATTN_CODE_SUM_(c) (ATTN_VECTOR_(attn_v16_) _mm512_cvtepi32_ps((__m512i)(c)))
/* W codes raised by 128, of numbers or as they are; those of four numbers a lane in a word, and an integer a lane */
#define ATTN_CODE_PUT_(p, v)  \
  _mm_storeu_si128(           \
      (__m128i *)(void *)(p), \
      _mm_xor_si128(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)), _mm_set1_epi8(-128)))
#define ATTN_CODE_RAISE_(p, from)          \
  _mm_storeu_si128((__m128i *)(void *)(p), \
                   _mm_xor_si128(_mm_loadu_si128((const __m128i *)(from)), _mm_set1_epi8(-128)))
#define ATTN_CODE_PUT_FOUR_(p, v) attn_put_four_avx512vnni_(p, v)
/* the bytes of four rows, each four of a column a lane: lane 4 l + i of v[t] has those of column 16 l + 4 t + i */
#define ATTN_CODE_QUADS_(v) attn_quads_avx512vnni_(v)
#define ATTN_CODE_PUT_INT_(p, v) _mm512_storeu_si512((void *)(p), _mm512_cvtps_epi32(v))

ATTN_INLINE_ void attn_put_four_avx512vnni_(void *p, const attn_v16_ *v) {
  const __m512i byte = _mm512_set1_epi32(255);
  const __m512i a = _mm512_and_si512(_mm512_cvtps_epi32(v[0]), byte);
  const __m512i b = _mm512_and_si512(_mm512_cvtps_epi32(v[1]), byte);
  const __m512i c = _mm512_and_si512(_mm512_cvtps_epi32(v[2]), byte);
  const __m512i d = _mm512_slli_epi32(_mm512_cvtps_epi32(v[3]), 24);
  _mm512_storeu_si512(p, _mm512_or_si512(_mm512_or_si512(a, _mm512_slli_epi32(b, 8)),
                                         _mm512_or_si512(_mm512_slli_epi32(c, 16), d)));
}

ATTN_INLINE_ void attn_quads_avx512vnni_(attn_i16_ *v) {
  const __m512i a = (__m512i)v[0], b = (__m512i)v[1], c = (__m512i)v[2], d = (__m512i)v[3];
  const __m512i e = _mm512_unpacklo_epi8(a, b), f = _mm512_unpackhi_epi8(a, b);
  const __m512i g = _mm512_unpacklo_epi8(c, d), h = _mm512_unpackhi_epi8(c, d);
  v[0] = (attn_i16_)_mm512_unpacklo_epi16(e, g), v[1] = (attn_i16_)_mm512_unpackhi_epi16(e, g);
  v[2] = (attn_i16_)_mm512_unpacklo_epi16(f, h), v[3] = (attn_i16_)_mm512_unpackhi_epi16(f, h);
}
