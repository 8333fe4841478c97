/* problem.h owns one attention problem of the benchmarks: its shape, its random data, its work. */
#ifndef BENCH_PROBLEM_H
#define BENCH_PROBLEM_H

#include <stdint.h>

#include "header.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is switched on beside plain attention. */
typedef enum problem_extra {
  PROBLEM_PLAIN = 0,
  PROBLEM_ALIBI,
  PROBLEM_SOFTCAP,
  PROBLEM_WINDOW, /* 256 keys back, causal */
  PROBLEM_BOOL,   /* byte mask [1,1,Tq,Tk], one entry in 16 forbidden */
  PROBLEM_ADD,    /* f32 bias [1,1,Tq,Tk] */
  PROBLEM_SINKS
} problem_extra;

/* Zero means: kv_heads = heads, tk = tq, dv = dk, batch = 1. */
typedef struct problem_shape {
  attn_dtype dtype;
  int64_t batch, heads, kv_heads, tq, tk, dk, dv;
  int causal, bthd;
  problem_extra extra;
} problem_shape;

typedef struct problem {
  problem_shape shape;
  attn_tensor q, k, v, o;
  attn_sdpa_params params;
  double pairs; /* allowed query-key pairs */
  double flops; /* 2 pairs (dk + dv) */
  void *data;   /* what the tensors and masks point into */
  void *workspace;
  size_t workspace_size;
} problem;

/* Fills in the zeros, allocates, draws unit-variance numbers; the workspace is for the workers
 * and parallel_for of ctx. 0 when memory is short. */
int problem_init(problem *p, const problem_shape *shape, const attn_ctx *ctx);
void problem_free(problem *p);

/* One call of attn_sdpa, in the given tier and with the workspace. `ctx` brings the workers. */
attn_status problem_run(problem *p, attn_isa isa, attn_ctx *ctx);

/* How many calls of p last about this many seconds at this rate. */
int problem_calls(const problem *p, double seconds, double gflops);

#ifdef __cplusplus
}
#endif
#endif
