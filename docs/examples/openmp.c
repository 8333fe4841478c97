/* openmp.c owns the example of the ready-made parallel loop: compile with -fopenmp, name it in the
 * context, done. Without OpenMP the same program runs on one thread. */
#define ATTN_IMPLEMENTATION
#include "attn.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, T = 512, D = 64, VALUES = HEADS * T * D };

static float q_data[VALUES], k_data[VALUES], v_data[VALUES], serial[VALUES], parallel[VALUES];

static void attend(float *out, attn_ctx *ctx) {
  attn_tensor q = attn_bhtd(q_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor k = attn_bhtd(k_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor v = attn_bhtd(v_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor o = attn_bhtd(out, ATTN_F32, 1, HEADS, T, D);
  attn_status status = attn_sdpa(o, q, k, v, NULL, ctx);
  if (status != ATTN_OK) {
    fprintf(stderr, "openmp: %s: %s\n", attn_status_string(status), ctx->reason);
    exit(1);
  }
}

int main(void) {
  for (int i = 0; i < VALUES; i++) {
    q_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    k_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    v_data[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
  }

  attn_ctx alone = {0}, together = {0};
#ifdef _OPENMP
  together.parallel_for = attn_parallel_openmp;
  together.workers = omp_get_max_threads();
#endif
  attend(serial, &alone);
  attend(parallel, &together);

  int same = memcmp(serial, parallel, sizeof serial) == 0;
  printf("%s tier, %d pieces: %s as one thread\n", attn_isa_name(together.report.isa),
         together.report.workers, same ? "the same bits" : "OTHER BITS");
  return same ? 0 : 1;
}
