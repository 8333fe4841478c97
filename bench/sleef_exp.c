/* sleef_exp.c owns the loops over SLEEF's exponential: elementwise, and the softmax of a row. */
#include <math.h>

#include "peers.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Own prototypes: sleef.h shows these only to files compiled for the wide targets as a whole. */
__m512 Sleef_expf16_u10avx512f(__m512);
__m256 Sleef_expf8_u10avx2(__m256);

#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define AVX2 __attribute__((target("avx2,fma")))

AVX512 static __mmask16 tail(int64_t left) {
  return left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
}

AVX512 static void exp_avx512(float *y, const float *x, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(y + i, Sleef_expf16_u10avx512f(_mm512_loadu_ps(x + i)));
  if (i < n) {
    __mmask16 m = tail(n - i);
    _mm512_mask_storeu_ps(y + i, m, Sleef_expf16_u10avx512f(_mm512_maskz_loadu_ps(m, x + i)));
  }
}

/* Four running maxima hide the latency; the exponentials bound the second loop by themselves. */
AVX512 static float softmax_avx512(float *x, int64_t n) {
  __m512 low = _mm512_set1_ps(-INFINITY), m0 = low, m1 = low, m2 = low, m3 = low;
  __m512 sum = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    m0 = _mm512_max_ps(m0, _mm512_loadu_ps(x + i));
    m1 = _mm512_max_ps(m1, _mm512_loadu_ps(x + i + 16));
    m2 = _mm512_max_ps(m2, _mm512_loadu_ps(x + i + 32));
    m3 = _mm512_max_ps(m3, _mm512_loadu_ps(x + i + 48));
  }
  for (; i < n; i += 16) m0 = _mm512_max_ps(m0, _mm512_mask_loadu_ps(low, tail(n - i), x + i));
  m0 = _mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3));
  __m512 max = _mm512_set1_ps(_mm512_reduce_max_ps(m0));
  for (i = 0; i + 16 <= n; i += 16) {
    __m512 e = Sleef_expf16_u10avx512f(_mm512_sub_ps(_mm512_loadu_ps(x + i), max));
    sum = _mm512_add_ps(sum, e);
    _mm512_storeu_ps(x + i, e);
  }
  if (i < n) {
    __mmask16 m = tail(n - i);
    __m512 e = Sleef_expf16_u10avx512f(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), max));
    sum = _mm512_mask_add_ps(sum, m, sum, e);
    _mm512_mask_storeu_ps(x + i, m, e);
  }
  return _mm512_reduce_add_ps(sum);
}

AVX2 static void exp_avx2(float *y, const float *x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, Sleef_expf8_u10avx2(_mm256_loadu_ps(x + i)));
  for (; i < n; i++) y[i] = _mm256_cvtss_f32(Sleef_expf8_u10avx2(_mm256_set1_ps(x[i])));
}

AVX2 static float softmax_avx2(float *x, int64_t n) {
  __m256 low = _mm256_set1_ps(-INFINITY), m0 = low, m1 = low, m2 = low, m3 = low;
  __m256 sum = _mm256_setzero_ps();
  float lanes[8], max = -INFINITY, total = 0;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    m0 = _mm256_max_ps(m0, _mm256_loadu_ps(x + i));
    m1 = _mm256_max_ps(m1, _mm256_loadu_ps(x + i + 8));
    m2 = _mm256_max_ps(m2, _mm256_loadu_ps(x + i + 16));
    m3 = _mm256_max_ps(m3, _mm256_loadu_ps(x + i + 24));
  }
  _mm256_storeu_ps(lanes, _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3)));
  for (int u = 0; u < 8; u++) max = lanes[u] > max ? lanes[u] : max;
  for (; i < n; i++) max = x[i] > max ? x[i] : max;
  __m256 top = _mm256_set1_ps(max);
  for (i = 0; i + 8 <= n; i += 8) {
    __m256 e = Sleef_expf8_u10avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i), top));
    sum = _mm256_add_ps(sum, e);
    _mm256_storeu_ps(x + i, e);
  }
  _mm256_storeu_ps(lanes, sum);
  for (int u = 0; u < 8; u++) total += lanes[u];
  if (i < n) {
    int64_t rest = n - i;
    for (int u = 0; u < 8; u++) lanes[u] = u < rest ? x[i + u] : max;
    _mm256_storeu_ps(lanes, Sleef_expf8_u10avx2(_mm256_sub_ps(_mm256_loadu_ps(lanes), top)));
    for (int u = 0; u < rest; u++) total += x[i + u] = lanes[u];
  }
  return total;
}
#endif

void peer_exp(float *y, const float *x, int64_t n, attn_isa isa) {
#if defined(__x86_64__)
  if (isa == ATTN_ISA_AVX512) {
    exp_avx512(y, x, n);
    return;
  }
  if (isa == ATTN_ISA_AVX2) {
    exp_avx2(y, x, n);
    return;
  }
#else
  (void)isa;
#endif
  for (int64_t i = 0; i < n; i++) y[i] = expf(x[i]);
}

const char *peer_exp_name(attn_isa isa) {
  return isa == ATTN_ISA_AVX512 ? "Sleef_expf16_u10avx512f"
         : isa == ATTN_ISA_AVX2 ? "Sleef_expf8_u10avx2"
                                : "expf of libm";
}

float peer_softmax(float *x, int64_t n, attn_isa isa) {
#if defined(__x86_64__)
  if (isa == ATTN_ISA_AVX512) return softmax_avx512(x, n);
  if (isa == ATTN_ISA_AVX2) return softmax_avx2(x, n);
#else
  (void)isa;
#endif
  float max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
  for (int64_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - max);
  return sum;
}
