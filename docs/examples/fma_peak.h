/* fma_peak.h owns the yardstick of the demo: the multiply-adds a second that one core can do with
 * the vectors of a tier, measured by loops that touch registers only. */
#ifndef EXAMPLES_FMA_PEAK_H
#define EXAMPLES_FMA_PEAK_H

#include <time.h>

#include "attn.h"

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#include <immintrin.h>
#elif defined(__GNUC__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

/* Independent sums, enough to cover latency x pipes and few enough to stay in registers. */
#define PEAK_EACH_12(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#if defined(__aarch64__)
#define PEAK_SUMS 20
#define PEAK_EACH(F) PEAK_EACH_12(F) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19)
#else
#define PEAK_SUMS 12
#define PEAK_EACH(F) PEAK_EACH_12(F)
#endif
#define PEAK_STEPS 500000

/* Volatile, so that the compiler can neither fold the sums nor drop them; they tend to 0.5, far
 * from slow subnormal numbers. */
static volatile float peak_x = 0.5f, peak_y = 0.25f, peak_out;

/* One loop; PEAK_FMA(a) is a * x + y on vectors of type VEC. Each sum starts at another value, or
 * they would all be one sum. */
#define PEAK_DECLARE(i) sum##i = PEAK_START(i),
#define PEAK_STEP(i) sum##i = PEAK_FMA(sum##i);
#define PEAK_ADD(i) total = total + sum##i;
#define PEAK_LOOP(VEC)                            \
  VEC x = PEAK_SET(peak_x), y = PEAK_SET(peak_y); \
  VEC PEAK_EACH(PEAK_DECLARE) total = y;          \
  for (int n = 0; n < PEAK_STEPS; n++) {          \
    PEAK_EACH(PEAK_STEP)                          \
  }                                               \
  PEAK_EACH(PEAK_ADD)

#if defined(__GNUC__)
/* What a compiler may make of portable C: the 16-byte vectors that every such machine has. */
typedef float peak_vec4 __attribute__((vector_size(16)));
#define PEAK_SET(f) ((peak_vec4){f, f, f, f})
#define PEAK_START(i) (y + (float)i)
#define PEAK_FMA(a) (a * x + y)
static void peak_scalar(void) {
  PEAK_LOOP(peak_vec4)
  peak_out = total[0];
}
#undef PEAK_SET
#undef PEAK_FMA
#endif

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define PEAK_SET(f) _mm256_set1_ps(f)
#define PEAK_FMA(a) _mm256_fmadd_ps(a, x, y)
__attribute__((target("avx2,fma"))) static void peak_avx2(void) {
  PEAK_LOOP(__m256)
  peak_out = _mm256_cvtss_f32(total);
}
#undef PEAK_SET
#undef PEAK_FMA
#define PEAK_SET(f) _mm512_set1_ps(f)
#define PEAK_FMA(a) _mm512_fmadd_ps(a, x, y)
__attribute__((target("avx512f"))) static void peak_avx512(void) {
  PEAK_LOOP(__m512)
  peak_out = _mm512_cvtss_f32(total);
}
#elif defined(__GNUC__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
#define PEAK_SET(f) vdupq_n_f32(f)
#define PEAK_FMA(a) vfmaq_f32(y, a, x)
static void peak_neon(void) {
  PEAK_LOOP(float32x4_t)
  peak_out = vgetq_lane_f32(total, 0);
}
#endif

/* GFLOP/s of a tier that runs here, 2 flops a multiply-add; 0 where the compiler has no way to say
 * it. The best of many short runs: what the core can do when nothing disturbs it. */
static double fma_peak(attn_isa isa) {
  void (*loop)(void) = NULL;
  int lanes = 4;
#if defined(__GNUC__)
  if (isa == ATTN_ISA_SCALAR) loop = peak_scalar;
#if defined(__x86_64__) || defined(__i386__)
  if (isa == ATTN_ISA_AVX2) loop = peak_avx2, lanes = 8;
  if (isa == ATTN_ISA_AVX512) loop = peak_avx512, lanes = 16;
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
  if (isa == ATTN_ISA_NEON) loop = peak_neon;
#endif
#endif
  double best = 0;
  for (int run = 0; loop && run < 20; run++) {
    clock_t start = clock();
    loop();
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    double gflops = seconds > 0 ? 2e-9 * lanes * PEAK_SUMS * PEAK_STEPS / seconds : 0;
    if (gflops > best) best = gflops;
  }
  return best;
}

#endif
