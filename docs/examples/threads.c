/* threads.c owns the example of a caller's own threads and memory: the pool of pool.h drives attention, in a workspace
 * that the caller allocates once. Usage: threads [WORKERS]. */
#ifdef __linux__
#define _GNU_SOURCE /* the pool puts its threads on cores of their own */
#else
#define _POSIX_C_SOURCE 200809L
#endif
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"

enum {
  MAX_WORKERS = POOL_THREADS + 1,
  HEADS = 8,
  T = 1024,
  D = 64,
  VALUES = HEADS * T * D,
  ROUNDS = 10
};

static float q_data[VALUES], k_data[VALUES], v_data[VALUES], serial[VALUES], parallel[VALUES];

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of a few runs of causal attention into out, in seconds. */
static double attend(float *out, attn_ctx *ctx) {
  attn_tensor q = attn_bhtd(q_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor k = attn_bhtd(k_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor v = attn_bhtd(v_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor o = attn_bhtd(out, ATTN_F32, 1, HEADS, T, D);
  attn_sdpa_params params = {.causal = 1};

  /* Asked once, allocated once, used for every call: attn.h itself then allocates nothing. */
  ctx->workspace_size = attn_sdpa_workspace(o, q, k, v, &params, ctx);
  ctx->workspace = malloc(ctx->workspace_size);

  double best = 1e30;
  for (int i = 0; i < ROUNDS; i++) {
    double start = seconds_now();
    attn_status status = attn_sdpa(o, q, k, v, &params, ctx);
    double seconds = seconds_now() - start;
    if (status != ATTN_OK) {
      fprintf(stderr, "threads: %s: %s\n", attn_status_string(status), ctx->reason);
      exit(1);
    }
    if (seconds < best) best = seconds;
  }
  free(ctx->workspace);
  return best;
}

int main(int argc, char **argv) {
  int workers = argc > 1 ? atoi(argv[1]) : 2;
  if (workers < 1 || workers > MAX_WORKERS) {
    fprintf(stderr, "threads: WORKERS must be 1..%d\n", MAX_WORKERS);
    return 1;
  }
  for (int i = 0; i < VALUES; i++) {
    q_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    k_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    v_data[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
  }

  attn_ctx alone = {0};
  double serial_seconds = attend(serial, &alone);

  pool p;
  pool_open(&p, workers);
  attn_ctx together = {.parallel_for = pool_run, .parallel_user = &p, .workers = workers};
  double parallel_seconds = attend(parallel, &together);
  pool_close(&p);

  int same = memcmp(serial, parallel, sizeof serial) == 0;
  printf("%s tier: %.2f ms alone, %.2f ms in %d pieces (%.2f x), workspace %zu bytes, %s\n",
         attn_isa_name(together.report.isa), 1e3 * serial_seconds, 1e3 * parallel_seconds,
         together.report.workers, serial_seconds / parallel_seconds, together.workspace_size,
         same ? "same bits" : "DIFFERENT BITS");
  return same ? 0 : 1;
}
