/* tests/families/memory/segment.h owns what the tests of memories share: rings with any contents, and the layer behind
 * them in float64. */

#ifndef TESTS_SEGMENT_H
#define TESTS_SEGMENT_H

#include "compound.h"

/* A ring of `len` random rows in `room`, starting anywhere. */
attn_memory ring_drawn(attn_dtype type, test_layout layout, int64_t batch, int64_t room,
                       int64_t len, int64_t dm, test_rng *rng);
/* Number c of row i, oldest first. */
double ring_get(const attn_memory *m, int64_t b, int64_t i, int64_t c);

typedef struct segment_shape {
  int64_t batch, tokens, memory, compressed, dm, heads, kv_heads, dk, dv;
  attn_sublayer sublayer;
  int64_t out;    /* PLAIN: width of w_o, 0 = none */
  int64_t window; /* 0 = none */
  int relative;   /* 1: w_r, 2: r */
  int norm;       /* bits: gain, bias */
  attn_dtype type;
  int bidirectional;
  int bare; /* bits: no u, no v */
} segment_shape;

typedef struct segment_scene {
  attn_tensor o, h;
  attn_segment_layer_params p;
  promise does;
} segment_scene;

/* All fields drawn, small. */
segment_shape segment_random(test_rng *rng);
segment_scene *segment_build(const segment_shape *x, test_rng *rng);
/* Fresh outputs for the scene's tokens. */
void segment_outputs(segment_scene *s, attn_dtype type);
/* Compares o, and lse and usage if they are there, with the oracle. */
void segment_check(const segment_scene *s, double tolerance, const char *what);

#endif
