/* isa/simd_avx512bf16.h owns the words of the avx512 vocabulary that AVX512-BF16 has instructions for. It
 * changes those words, which are still there: kernels/low.h is compiled once more, in a region of its
 * own. Subnormal numbers count as 0. */

#undef ATTN_T_
#define ATTN_T_ avx512bf16
#define ATTN_TIER_ avx512 /* whose functions are there */
#undef ATTN_PAIR_DOT_
#undef ATTN_PAIR_EXP2_
#define ATTN_PAIR_DOT_(a, b, c) \
  (ATTN_VECTOR_(attn_v16_) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b)))
#undef ATTN_PAIR_JOIN_
#define ATTN_PAIR_JOIN_(even, odd) attn_join_avx512bf16_(even, odd)
#undef ATTN_V_STORE_BF16_
#define ATTN_V_STORE_BF16_(p, v) \
  _mm256_storeu_si256((__m256i *)(void *)(p), (__m256i)_mm512_cvtneps_pbh(v))

/* 2 W numbers of two rows as 2 W pairs */
#define ATTN_PAIR_ZIP_(to, even, odd) attn_zip_avx512bf16_(to, even, odd)
/* 2^x for x <= 0 or NaN to 7.5e-5 of the result, four at once */
#define ATTN_PAIR_EXP2_(x) attn_exp2_avx512bf16_(x)

ATTN_INLINE_ void attn_zip_avx512bf16_(uint32_t *to, const void *even, const void *odd) {
  const __m512i x = _mm512_loadu_si512(even), y = _mm512_loadu_si512(odd);
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  _mm512_storeu_si512((void *)to, _mm512_permutex2var_epi16(x, low, y));
  _mm512_storeu_si512((void *)(to + 16), _mm512_permutex2var_epi16(x, high, y));
}

/* x less its floor, which SCALEF takes itself; the polynomial is that of kernels/math.h, moved by a half.
 * What would be subnormal becomes 0 when it is rounded to bf16. */
ATTN_INLINE_ void attn_exp2_avx512bf16_(attn_v16_ *x) {
  attn_v16_ p[4];
  ATTN_UNROLL_
  for (int i = 0; i < 4; i++) {
    const attn_v16_ f = _mm512_reduce_ps(x[i], 0x09);
    p[i] = _mm512_fmadd_ps(f, _mm512_set1_ps(0.0780245232f), _mm512_set1_ps(0.226067158f));
    p[i] = _mm512_fmadd_ps(f, p[i], _mm512_set1_ps(0.695833538f));
    p[i] = _mm512_fmadd_ps(f, p[i], _mm512_set1_ps(0.999925219f));
    p[i] = _mm512_scalef_ps(p[i], x[i]);
  }
  ATTN_UNROLL_
  for (int i = 0; i < 4; i++) x[i] = p[i];
}

ATTN_INLINE_ __m512i attn_join_avx512bf16_(attn_v16_ even, attn_v16_ odd) {
  const __m512i at = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                      23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(at, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
