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
  PROBLEM_SINKS,
  PROBLEM_TOEPLITZ, /* a number for every distance */
  PROBLEM_T5,       /* 32 buckets up to 128 */
  PROBLEM_PARABOLA,
  PROBLEM_GAUSSIAN,
  PROBLEM_FACTOR,  /* the distance-aware factor */
  PROBLEM_SPAN,    /* adaptive span whose ramp ends where the window of PROBLEM_WINDOW does */
  PROBLEM_SHAW,    /* vectors for keys and values, distances clipped to 16 */
  PROBLEM_DEBERTA, /* vectors for keys and queries, distances clipped to 256 */
  PROBLEM_XL,      /* Transformer-XL, with both biases */
  PROBLEM_LABELS,  /* 32 labels with vectors and numbers, from a callback */
  PROBLEM_MODIFY,  /* a user's callback that changes nothing */
  PROBLEM_EXTRAS
} problem_extra;

/* Its part of an entry's name, e.g. "/alibi"; "" for plain. */
const char *problem_extra_name(problem_extra extra);

/* Zero means: kv_heads = heads, tk = tq, dv = dk, batch = 1. */
typedef struct problem_shape {
  attn_dtype dtype;
  int64_t batch, heads, kv_heads, tq, tk, dk, dv;
  int causal, bthd;
  attn_compute compute;
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

/* Restricts p to the pairs of a schedule, which stays the caller's. 0 when memory is short or the
 * schedule is none. */
int problem_schedule(problem *p, const attn_schedule *schedule, const attn_ctx *ctx);

/* The same by a mask of the caller's that leaves so many pairs. */
int problem_mask(problem *p, const attn_mask *mask, double pairs, const attn_ctx *ctx);

/* One call of attn_sdpa, in the given tier and with the workspace. `ctx` brings the workers. */
attn_status problem_run(problem *p, attn_isa isa, attn_ctx *ctx);

/* How many calls of p last about this many seconds at this rate. */
int problem_calls(const problem *p, double seconds, double gflops);

#ifdef __cplusplus
}
#endif
#endif
