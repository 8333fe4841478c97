/* approximations.h owns what `make bench-linear` measures: calls whose cost grows slower than the square
 * of the sequence, each with the dense attention that it stands in for. */
#ifndef BENCH_APPROXIMATIONS_H
#define BENCH_APPROXIMATIONS_H

#include "header.h"

#define WIDTH 64     /* of heads and models */
#define STEP_HEADS 8 /* of a decoding step */
#define MAX_LENGTH 65536

/* What the dense side is. */
enum { FULL, CAUSAL, STEP };

typedef struct call {
  int64_t len;
  attn_tensor q, k, v, o; /* of a STEP STEP_HEADS heads and one row, else one head */
  double flops;           /* as the method's paper counts them */
  double times;           /* o times this stands for attention; 0: it does not */
  float *extra[8];        /* weights */
  int extras;
  void *state;
  union {
    attn_linear_params linear;
    attn_linformer_params linformer;
    attn_nystrom_params nystrom;
    attn_cluster_params cluster;
    attn_probsparse_params probsparse;
    attn_poolingformer_params poolingformer;
    attn_memory_compressed_params memory;
    attn_luna_params luna;
    attn_isab_params isab;
  } p;
  attn_tensor points; /* Luna's and the Set Transformer's */
} call;

typedef struct method {
  const char *name;
  int dense;           /* FULL, .. */
  int products;        /* of rows with weights that the dense layer has too */
  int (*open)(call *); /* flops, p and extra; 0 when it cannot */
  attn_status (*run)(call *, attn_ctx *);
  size_t (*workspace)(call *, const attn_ctx *);
} method;

extern const method methods[];
extern const int method_count;

/* n normal numbers, scaled. */
void normal_fill(float *x, int64_t n, double size, uint64_t seed);

#endif
