/* peak.c owns the multiply-add probes, one loop per tier. */
#include "peak.h"

#include <stdio.h>

#include "clock.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define PEAK_X86 1
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

/* Twelve accumulators: more than latency times pipes (4 x 2) on the cores known, and with the two
 * operands they fit the sixteen registers of AVX2. */
#define EACH_12(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define PROBE_SECONDS 1e-3
#define STEPS 16384

/* x and y come from memory the compiler cannot see through; the fixed point y / (1 - x) keeps
 * the sums normal. */
static volatile float probe_x = 0.5f, probe_y = 0.25f, probe_sink;

typedef float vec4 __attribute__((vector_size(16)));

/* Different starts, or the compiler would see twelve copies of one sum. */
#define DECLARE(i) a##i = y + (float)i,
#define STEP_C(i) a##i = a##i * x + y;
#define SUM(i) +a##i

static void steps_scalar(void) {
  vec4 x = {probe_x, probe_x, probe_x, probe_x}, y = {probe_y, probe_y, probe_y, probe_y};
  vec4 EACH_12(DECLARE) s = y;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_C)
  }
  s = s EACH_12(SUM);
  probe_sink = s[0] + s[1] + s[2] + s[3];
}

#ifdef PEAK_X86
#define STEP_256(i) a##i = _mm256_fmadd_ps(a##i, x, y);
#define STEP_512(i) a##i = _mm512_fmadd_ps(a##i, x, y);

__attribute__((target("avx2,fma"))) static void steps_avx2(void) {
  __m256 x = _mm256_set1_ps(probe_x), y = _mm256_set1_ps(probe_y);
  __m256 EACH_12(DECLARE) s = y;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_256)
  }
  s = s EACH_12(SUM);
  probe_sink = _mm256_cvtss_f32(s);
}

__attribute__((target("avx512f"))) static void steps_avx512(void) {
  __m512 x = _mm512_set1_ps(probe_x), y = _mm512_set1_ps(probe_y);
  __m512 EACH_12(DECLARE) s = y;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_512)
  }
  s = s EACH_12(SUM);
  probe_sink = _mm512_cvtss_f32(s);
}
#if (defined(__clang__) && __clang_major__ >= 9) || (!defined(__clang__) && __GNUC__ >= 10)
#define PEAK_BF16 1
#define STEP_BF16(i) a##i = _mm512_dpbf16_ps(a##i, x, x);
__attribute__((target("avx512f,avx512bf16"))) static void steps_bf16(void) {
  __m512bh x = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(probe_x));
  __m512 y = _mm512_set1_ps(probe_y);
  __m512 EACH_12(DECLARE) s = y;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_BF16)
  }
  s = s EACH_12(SUM);
  probe_sink = _mm512_cvtss_f32(s);
}
#endif
#if (defined(__clang__) && __clang_major__ >= 7) || (!defined(__clang__) && __GNUC__ >= 8)
#define PEAK_VNNI 1
typedef int int16s __attribute__((vector_size(64)));
#define DECLARE_INT(i) a##i = x + i,
#define STEP_I8(i) a##i = (int16s)_mm512_dpbusd_epi32((__m512i)a##i, (__m512i)x, (__m512i)x);
__attribute__((target("avx512f,avx512vnni"))) static void steps_vnni(void) {
  const int16s x = (int16s)_mm512_set1_epi32((int)probe_x);
  int16s EACH_12(DECLARE_INT) s = x;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_I8)
  }
  s = s EACH_12(SUM);
  probe_sink = (float)s[0];
}
#endif
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define PEAK_AVX_VNNI 1
typedef int int8s __attribute__((vector_size(32)));
#define STEP_AVX_VNNI(i) \
  a##i = (int8s)_mm256_dpbusd_avx_epi32((__m256i)a##i, (__m256i)x, (__m256i)x);
__attribute__((target("avx2,avxvnni"))) static void steps_avx_vnni(void) {
  const int8s x = (int8s)_mm256_set1_epi32((int)probe_x);
  int8s EACH_12(DECLARE_INT) s = x;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_AVX_VNNI)
  }
  s = s EACH_12(SUM);
  probe_sink = (float)s[0];
}
#endif
#elif defined(__ARM_NEON)
#define STEP_NEON(i) a##i = vfmaq_f32(y, a##i, x);

static void steps_neon(void) {
  float32x4_t x = vdupq_n_f32(probe_x), y = vdupq_n_f32(probe_y);
  float32x4_t EACH_12(DECLARE) s = y;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_NEON)
  }
  s = s EACH_12(SUM);
  probe_sink = vgetq_lane_f32(s, 0);
}
#ifdef __aarch64__
#define PEAK_FP16FML 1
/* fmlal v0.4s .. v11.4s, v12.4h, v12.h[0], which gcc's assembler may not know */
static void steps_fp16fml(void) {
  __asm__ volatile("movi v12.2d, #0" ::: "v12");
  for (int n = 0; n < STEPS; n++)
    __asm__ volatile(".irp n,0,1,2,3,4,5,6,7,8,9,10,11\n\t.inst 0x4f8c0180 + \\n\n\t.endr" ::
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10",
                           "v11");
}
#endif
#if defined(__aarch64__) && !defined(__clang__) && __GNUC__ >= 10
#define PEAK_ARM 1
/* asm, as in attn/isa/simd_neonbf16.h */
#define STEP_BFDOT(i) __asm__("bfdot %0.4s, %1.8h, %1.8h" : "+w"(a##i) : "w"(x));
__attribute__((target("+bf16"))) static void steps_bfdot(void) {
  float32x4_t x = vdupq_n_f32(probe_x), y = vdupq_n_f32(probe_y);
  float32x4_t EACH_12(DECLARE) s = y;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_BFDOT)
  }
  s = s EACH_12(SUM);
  probe_sink = vgetq_lane_f32(s, 0);
}
#define DECLARE_INT(i) a##i = x + i,
#define STEP_SDOT(i) __asm__("sdot %0.4s, %1.16b, %1.16b" : "+w"(a##i) : "w"(x));
__attribute__((target("arch=armv8.2-a+dotprod"))) static void steps_sdot(void) {
  int32x4_t x = vdupq_n_s32((int)probe_x);
  int32x4_t EACH_12(DECLARE_INT) s = x;
  for (int n = 0; n < STEPS; n++) {
    EACH_12(STEP_SDOT)
  }
  s = s EACH_12(SUM);
  probe_sink = (float)vgetq_lane_s32(s, 0);
}
#endif
#endif

static peak_record records[ATTN_ISA_COUNT];

/* GFLOP/s of a loop with so many multiply-adds an instruction. */
static double rate_of(void (*steps)(void), int lanes) {
  double start = clock_busy(), seconds;
  int n = 0;
  do {
    steps();
    n++;
    seconds = clock_busy() - start;
  } while (seconds < PROBE_SECONDS);
  return 2e-9 * STEPS * 12 * lanes * n / seconds;
}

double peak_feature_probe(attn_feature feature) {
  if (attn_feature_status(feature) != ATTN_ISA_OK) return 0;
#ifdef PEAK_BF16
  if (feature == ATTN_FEATURE_AVX512_BF16) return rate_of(steps_bf16, 32);
#endif
#ifdef PEAK_VNNI
  if (feature == ATTN_FEATURE_AVX512_VNNI) return rate_of(steps_vnni, 64);
#endif
#ifdef PEAK_FP16FML
  if (feature == ATTN_FEATURE_NEON_FP16FML) return rate_of(steps_fp16fml, 4);
#endif
#ifdef PEAK_AVX_VNNI
  if (feature == ATTN_FEATURE_AVX_VNNI) return rate_of(steps_avx_vnni, 32);
#endif
#ifdef PEAK_ARM
  if (feature == ATTN_FEATURE_NEON_BF16) return rate_of(steps_bfdot, 8);
  if (feature == ATTN_FEATURE_NEON_DOTPROD) return rate_of(steps_sdot, 16);
#endif
  return 0;
}

/* The loop of a tier and the lanes of its vectors; null when this machine cannot run it. */
static void (*steps_of(attn_isa isa, int *lanes))(void) {
  *lanes = 4;
  if (attn_isa_status(isa) != ATTN_ISA_OK) return NULL;
  if (isa == ATTN_ISA_SCALAR) return steps_scalar;
#ifdef PEAK_X86
  *lanes = isa == ATTN_ISA_AVX2 ? 8 : 16;
  if (isa == ATTN_ISA_AVX2) return steps_avx2;
  if (isa == ATTN_ISA_AVX512) return steps_avx512;
#elif defined(__ARM_NEON)
  if (isa == ATTN_ISA_NEON) return steps_neon;
#endif
  return NULL;
}

void peak_steps(attn_isa isa) {
  int lanes;
  void (*steps)(void) = steps_of(isa, &lanes);
  if (steps) steps();
}

double peak_probe(attn_isa isa) {
  int lanes;
  void (*steps)(void) = steps_of(isa, &lanes);
  if (!steps) return 0;

  const double rate = rate_of(steps, lanes);

  peak_record *r = &records[isa];
  if (!r->probes || rate < r->min) r->min = rate;
  if (rate > r->max) r->max = rate;
  r->sum += rate;
  r->probes++;
  return rate;
}

const peak_record *peak_of(attn_isa isa) { return &records[isa]; }

void peak_print(attn_isa isa) {
  const peak_record *r = &records[isa];
  if (!r->probes) return;
  printf("FMA peak %s: %.1f GFLOP/s per core (largest of %d probes; mean %.1f, smallest %.1f)\n",
         attn_isa_name(isa), r->max, r->probes, r->sum / r->probes, r->min);
}
