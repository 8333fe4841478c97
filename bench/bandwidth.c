/* bandwidth.c owns the read bandwidth probe: threads that sum their own buffer. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "peak.h"

typedef float vec4 __attribute__((vector_size(16)));
typedef float vec16 __attribute__((vector_size(64)));

typedef struct reader {
  const float *data;
  size_t bytes;
  int core, passes;
  double seconds;
  float sum;
  pthread_barrier_t *start;
} reader;

/* Eight independent sums by name, which stay in registers: loads set the pace, not additions. */
#define EACH_8(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define CLEAR(i) s##i = p[0] - p[0],
#define ADD(i) s##i += p[i];
#define TOTAL(i) +s##i[0]
#define READ(name, vec, attribute)                               \
  attribute static float name(const float *data, size_t bytes) { \
    const vec *p = (const vec *)(const void *)data;              \
    const vec *end = p + bytes / sizeof(vec);                    \
    vec EACH_8(CLEAR) none;                                      \
    for (; p < end; p += 8) {                                    \
      EACH_8(ADD)                                                \
    }                                                            \
    (void)none;                                                  \
    return 0 EACH_8(TOTAL);                                      \
  }

/* Buffers are multiples of 4096 bytes, so both divide them into groups of eight. */
READ(read_baseline, vec4, )
#if defined(__x86_64__)
READ(read_avx512, vec16, __attribute__((target("avx512f"))))
#endif

float peak_read(const float *data, size_t bytes) {
#if defined(__x86_64__)
  if (attn_isa_status(ATTN_ISA_AVX512) == ATTN_ISA_OK) return read_avx512(data, bytes);
#endif
  return read_baseline(data, bytes);
}

static void *reader_main(void *arg) {
  reader *r = arg;
  clock_pin(r->core);
  r->sum = peak_read(r->data, r->bytes);
  pthread_barrier_wait(r->start);
  double t = clock_now();
  for (int n = 0; n < r->passes; n++) r->sum += peak_read(r->data, r->bytes);
  r->seconds = clock_now() - t;
  return NULL;
}

enum { MAX_THREADS = 64, TRIALS = 5 };

double peak_read_bandwidth(size_t bytes, int threads) {
  reader readers[MAX_THREADS];
  pthread_t ids[MAX_THREADS];
  pthread_barrier_t start;
  double best = 0;
  if (threads < 1 || threads > MAX_THREADS) return 0;
  bytes = (bytes + 4095) / 4096 * 4096;
  void *memory = aligned_alloc(4096, bytes * (size_t)threads);
  if (!memory) return 0;
  memset(memory, 0, bytes * (size_t)threads);
  for (int trial = 0; trial < TRIALS; trial++) {
    int started = 0;
    double slowest = 0;
    if (pthread_barrier_init(&start, NULL, (unsigned)threads)) break;
    for (int i = 0; i < threads; i++) {
      reader r = {(const float *)memory + (size_t)i * (bytes / sizeof(float)),
                  bytes,
                  i % clock_cores(),
                  (int)(((size_t)256 << 20) / bytes) + 1,
                  0,
                  0,
                  &start};
      readers[i] = r;
      if (pthread_create(&ids[i], NULL, reader_main, &readers[i])) abort();
      started++;
    }
    for (int i = 0; i < started; i++) {
      pthread_join(ids[i], NULL);
      if (readers[i].seconds > slowest) slowest = readers[i].seconds;
    }
    pthread_barrier_destroy(&start);
    double rate = 1e-9 * (double)bytes * readers[0].passes * threads / slowest;
    if (rate > best) best = rate;
  }
  free(memory);
  return best;
}

size_t peak_level_bytes(int level, int threads) {
  long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (l2 <= 0) l2 = 1 << 20;
  if (l3 <= 0) l3 = 8 << 20;
  if (level == 2) return (size_t)l2 / 2;
  /* Far from all of it: neighbours share the L3. */
  if (level == 3) return (size_t)(l3 / 8 / threads > 2 * l2 ? l3 / 8 / threads : 2 * l2);
  return (size_t)l3 * 8 / (size_t)threads;
}
