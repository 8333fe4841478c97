/* peers.h owns the other ways to compute attention that ours is compared with, all on one thread:
 * a composite of OpenBLAS and SLEEF, the plain loop, and the exponentials of SLEEF and libm. */
#ifndef BENCH_PEERS_H
#define BENCH_PEERS_H

#include "problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1 if the peers can compute this problem: dense f32, equal head counts, no extras. */
int peer_fits(const problem *p);

/* A peer's private memory for one problem. */
typedef struct peer {
  const problem *p;
  float *out;    /* [batch * heads][tq][dv] */
  float *scores; /* composite: block x tk; naive: tk */
  int block;     /* query rows the composite takes at a time */
  attn_isa isa;  /* width of the composite's softmax */
} peer;

/* 0 when memory is short. */
int peer_init(peer *w, const problem *p, attn_isa isa);
void peer_free(peer *w);

/* Chooses the composite's block: the fastest of the powers of two up to tq, tried on one head. */
void composite_tune(peer *w);

/* Heads 0..heads-1 of the flattened [batch * heads], with every head's result in w->out. */
void composite_run(peer *w, int64_t heads);
void naive_run(peer *w, int64_t heads);

/* y = x w, or x w^T, of dense rows: OpenBLAS on one thread. */
void peer_gemm(float *y, const float *x, const float *w, int64_t m, int64_t k, int64_t n,
               int transposed);

/* The OpenBLAS kernels in use, e.g. "SkylakeX". */
const char *composite_core(void);

/* The largest difference between w->out and ours over the first heads. */
double peer_difference(const peer *w, int64_t heads);

/* y = exp(x): SLEEF of the tier's width, 1.0 ULP variant; libm's expf for the other tiers. */
void peer_exp(float *y, const float *x, int64_t n, attn_isa isa);
const char *peer_exp_name(attn_isa isa);

/* In place softmax numerator of a row: exp(x - max); returns the sum. */
float peer_softmax(float *x, int64_t n, attn_isa isa);

/* One head of the plain loop, compiled for this processor and for the baseline one. */
void naive_head(float *o, const float *q, const float *k, const float *v, float *scores, int64_t tq,
                int64_t tk, int64_t dk, int64_t dv, int causal);
void naive_head_baseline(float *o, const float *q, const float *k, const float *v, float *scores,
                         int64_t tq, int64_t tk, int64_t dk, int64_t dv, int causal);

#ifdef __cplusplus
}
#endif
#endif
