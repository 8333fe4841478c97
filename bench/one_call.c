/* one_call.c owns the program that is looked at rather than timed, by cachegrind (cache.py) and by qemu
 * (arm_loops.py): one call, then the end. Usage: one_call TIER sdpa queries keys d | gemm m n k. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

static int sdpa(attn_isa isa, int64_t queries, int64_t keys, int64_t d) {
  problem p;
  attn_ctx ctx = {0};
  const problem_shape shape = {.heads = 1, .tq = queries, .tk = keys, .dk = d};
  if (!problem_init(&p, &shape, &ctx)) return 0;
  const int ok = problem_run(&p, isa, &ctx) == ATTN_OK && ctx.report.isa == isa;
  problem_free(&p);
  return ok;
}

static attn_tensor rows(int64_t n, int64_t dim) {
  void *data = aligned_alloc(64, (size_t)(n * dim) * sizeof(float));
  if (data) memset(data, 0, (size_t)(n * dim) * sizeof(float));
  return attn_bhtd(data, ATTN_F32, 1, 1, n, dim);
}

static int gemm(attn_isa isa, int64_t m, int64_t n, int64_t k) {
  attn_ctx ctx = {.isa = isa};
  const attn_tensor y = rows(m, n), x = rows(m, k), w = rows(k, n);
  const int ok = attn_gemm(y, x, w, NULL, &ctx) == ATTN_OK && ctx.report.isa == isa;
  free(y.data), free(x.data), free(w.data);
  return ok;
}

int main(int argc, char **argv) {
  int64_t size[3] = {0, 0, 0};
  attn_isa isa = ATTN_ISA_AUTO;
  for (int i = 1; argc > 1 && i < ATTN_ISA_COUNT; i++)
    if (strcmp(argv[1], attn_isa_name((attn_isa)i)) == 0) isa = (attn_isa)i;
  const int is_gemm = argc == 6 && strcmp(argv[2], "gemm") == 0;
  if (!isa || !(is_gemm || (argc == 6 && strcmp(argv[2], "sdpa") == 0))) {
    fprintf(stderr, "usage: one_call TIER sdpa queries keys d | one_call TIER gemm m n k\n");
    return 2;
  }
  for (int i = 0; i < 3; i++) size[i] = atoll(argv[3 + i]);
  if (attn_isa_status(isa) != ATTN_ISA_OK) {
    fprintf(stderr, "%s: %s\n", argv[1], attn_isa_why(isa));
    return 1;
  }
  return !(is_gemm ? gemm : sdpa)(isa, size[0], size[1], size[2]);
}
