/* one_call.c owns the program that calls one function and does nothing else, for what is counted rather than timed
 * (cache.py, call.py, arm_loops.py), and for the time of calls so small that what happens once a call is most of it.
 *
 * one_call TIER WHAT A B C [CALLS [HEADS]]: sdpa queries keys d | cache queries keys d | gemm m n k | linear keys dk dv
 * | recurrent keys dk dv | norm rows dim 0 | rope rows dim 0. CALLS is 1; 0 times the call and prints the nanoseconds of
 * the best turn. linear and recurrent (the gated delta rule) go on with a state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "header.h"

typedef struct job {
  attn_status (*call)(struct job *j);
  size_t (*wants)(struct job *j);
  attn_tensor t[4];
  attn_cache cache;
  attn_sequence sequence;
  attn_linear_params linear;
  attn_recurrent_params recurrent;
  attn_ctx ctx;
} job;

static void *zeros(size_t bytes) {
  const size_t whole = (bytes + 63) / 64 * 64;
  void *p = aligned_alloc(64, whole ? whole : 64);
  if (!p) exit(1);
  return memset(p, 0, whole);
}

static attn_tensor rows(int64_t heads, int64_t n, int64_t dim) {
  return attn_bhtd(zeros((size_t)(heads * n * dim) * sizeof(float)), ATTN_F32, 1, heads, n, dim);
}

static attn_status sdpa(job *j) {
  return attn_sdpa(j->t[0], j->t[1], j->t[2], j->t[3], NULL, &j->ctx);
}
static size_t sdpa_wants(job *j) {
  return attn_sdpa_workspace(j->t[0], j->t[1], j->t[2], j->t[3], NULL, &j->ctx);
}

static attn_status cached(job *j) {
  return attn_cache_sdpa(j->t[0], j->t[1], &j->cache, &j->sequence, 1, NULL, &j->ctx);
}
static size_t cached_wants(job *j) {
  return attn_cache_sdpa_workspace(j->t[0], j->t[1], &j->cache, &j->sequence, 1, NULL, &j->ctx);
}
static attn_status cache_fill(job *j, int64_t heads, int64_t keys, int64_t d) {
  const int64_t page = 128;
  const attn_cache_params p = {
      .k_heads = heads, .dk = d, .pages = (keys + page - 1) / page, .page = page};
  const size_t size = attn_cache_size(&p);
  int32_t *table = zeros((size_t)p.pages * sizeof *table);
  attn_status s = attn_cache_open(&j->cache, zeros(size), size, &p, &j->ctx);
  if (s == ATTN_OK) s = attn_sequence_init(&j->sequence, table, p.pages, &j->ctx);
  if (s != ATTN_OK) return s;
  return attn_cache_append(&j->cache, &j->sequence, 1, j->t[2], j->t[3], NULL, &j->ctx);
}

static attn_status gemm(job *j) { return attn_gemm(j->t[0], j->t[1], j->t[2], NULL, &j->ctx); }
static size_t gemm_wants(job *j) {
  return attn_gemm_workspace(j->t[0], j->t[1], j->t[2], NULL, &j->ctx);
}

static attn_status linear(job *j) {
  return attn_linear(j->t[0], j->t[1], j->t[2], j->t[3], &j->linear, &j->ctx);
}
static size_t linear_wants(job *j) {
  return attn_linear_workspace(j->t[0], j->t[1], j->t[2], j->t[3], &j->linear, &j->ctx);
}

static attn_status recurrent(job *j) {
  return attn_recurrent(j->t[0], j->t[1], j->t[2], j->t[3], &j->recurrent, &j->ctx);
}
static size_t recurrent_wants(job *j) {
  return attn_recurrent_workspace(j->t[0], j->t[1], j->t[2], j->t[3], &j->recurrent, &j->ctx);
}

static attn_status norm(job *j) { return attn_layer_norm(j->t[0], j->t[1], NULL, &j->ctx); }
static size_t norm_wants(job *j) {
  return attn_layer_norm_workspace(j->t[0], j->t[1], NULL, &j->ctx);
}

static attn_status rope(job *j) { return attn_rope(j->t[0], j->t[1], NULL, &j->ctx); }
static size_t rope_wants(job *j) { return attn_rope_workspace(j->t[0], j->t[1], NULL, &j->ctx); }

/* 0: there is no such call. */
static int prepare(job *j, const char *what, const int64_t size[3], int64_t heads) {
  const int64_t a = size[0], b = size[1], c = size[2];
  if (strcmp(what, "sdpa") == 0 || strcmp(what, "cache") == 0) {
    j->call = sdpa, j->wants = sdpa_wants;
    j->t[0] = rows(heads, a, c), j->t[1] = rows(heads, a, c);
    j->t[2] = rows(heads, b, c), j->t[3] = rows(heads, b, c);
    if (what[0] == 's') return 1;
    j->call = cached, j->wants = cached_wants;
    return cache_fill(j, heads, b, c) == ATTN_OK;
  }
  if (strcmp(what, "gemm") == 0) {
    j->call = gemm, j->wants = gemm_wants;
    j->t[0] = rows(heads, a, b), j->t[1] = rows(heads, a, c), j->t[2] = rows(1, c, b);
    return 1;
  }
  const int kept = strcmp(what, "linear") == 0 || strcmp(what, "recurrent") == 0;
  if (kept) {
    j->t[0] = rows(heads, a, c), j->t[1] = rows(heads, a, b);
    j->t[2] = rows(heads, a, b), j->t[3] = rows(heads, a, c);
  }
  if (kept && what[0] == 'r') {
    j->call = recurrent, j->wants = recurrent_wants;
    j->recurrent.rule = ATTN_RECURRENT_GATED_DELTA;
    j->recurrent.decay = rows(heads, a, 1), j->recurrent.beta = rows(heads, a, 1);
    j->recurrent.initial_state = j->recurrent.final_state = rows(heads, b, c);
    return 1;
  }
  if (kept) {
    j->call = linear, j->wants = linear_wants;
    j->linear.causal = ATTN_LINEAR_CAUSAL;
    const size_t bytes = attn_linear_state_bytes(&j->linear, 1, heads, heads, b, c);
    j->linear.state = zeros(bytes), j->linear.state_bytes = bytes;
    return attn_linear_begin(j->linear.state, bytes, &j->linear, 1, heads, heads, b, c, &j->ctx) ==
           ATTN_OK;
  }
  const int is_norm = strcmp(what, "norm") == 0;
  j->call = is_norm ? norm : rope, j->wants = is_norm ? norm_wants : rope_wants;
  j->t[0] = rows(heads, a, b), j->t[1] = rows(heads, a, b);
  return is_norm || strcmp(what, "rope") == 0;
}

static int run(job *j, int64_t calls, attn_isa isa) {
  for (int64_t i = 0; i < calls; i++)
    if (j->call(j) != ATTN_OK || j->ctx.report.isa != isa) return 0;
  return 1;
}

/* The best of many turns of about 50 us. */
static int best(job *j, attn_isa isa) {
  double best = 1.0;
  int64_t calls = 1;
  for (int turn = 0; turn < 1000; turn++) {
    double seconds = clock_now();
    if (!run(j, calls, isa)) return 0;
    seconds = clock_now() - seconds;
    if (seconds / (double)calls < best) best = seconds / (double)calls;
    if (turn < 20 && seconds < 5e-5) calls *= 2;
  }
  printf("%.0f\n", best * 1e9);
  return 1;
}

int main(int argc, char **argv) {
  job j;
  int64_t size[3];
  attn_isa isa = ATTN_ISA_AUTO;
  memset(&j, 0, sizeof j);
  for (int i = 1; argc > 1 && i < ATTN_ISA_COUNT; i++)
    if (strcmp(argv[1], attn_isa_name((attn_isa)i)) == 0) isa = (attn_isa)i;
  if (!isa || argc < 6 || argc > 8) {
    fprintf(
        stderr,
        "usage: one_call TIER sdpa|cache|gemm|linear|recurrent|norm|rope A B C [CALLS [HEADS]]\n");
    return 2;
  }
  if (attn_isa_status(isa) != ATTN_ISA_OK) {
    fprintf(stderr, "%s: %s\n", argv[1], attn_isa_why(isa));
    return 1;
  }
  for (int i = 0; i < 3; i++) size[i] = atoll(argv[3 + i]);
  const int64_t calls = argc > 6 ? atoll(argv[6]) : 1, heads = argc > 7 ? atoll(argv[7]) : 1;
  j.ctx.isa = isa;
  if (!prepare(&j, argv[2], size, heads)) return 2;
  j.ctx.workspace_size = j.wants(&j);
  if (j.ctx.workspace_size == ATTN_WORKSPACE_REJECTED) return 1;
  if (j.ctx.workspace_size) j.ctx.workspace = zeros(j.ctx.workspace_size);
  return !(calls ? run(&j, calls, isa) : best(&j, isa));
}
