/* tests/families/maps/synthesizer.h owns what the tests of synthesizer attention share: calls of every shape, and their
 * oracle. */

#ifndef TESTS_SYNTHESIZER_H
#define TESTS_SYNTHESIZER_H

#include "compound.h"

typedef struct synth_scene {
  attn_tensor o, v;
  attn_synthesizer_source source[ATTN_SYNTHESIZER_MOST + 1];
  float weight[ATTN_SYNTHESIZER_MOST + 1];
  attn_synthesizer_params p;
  promise does;
} synth_scene;

typedef struct synth_shape {
  int64_t batch, heads, v_heads, queries, keys, dv, off;
  attn_dtype type, v_type, o_type;
  int outputs, vary; /* lse and map; what is drawn beside */
} synth_shape;

/* One batch entry, two heads, f32, the ends of queries and keys aligned. */
synth_shape synth_plain(int64_t queries, int64_t keys);
attn_synthesizer_net synth_net(const synth_shape *x, int64_t din, int64_t n, test_rng *rng);
synth_scene *synth_build(const synth_shape *x, int count, const attn_synthesizer_kind *kinds,
                         test_rng *rng);
synth_scene *synth_one(const synth_shape *x, attn_synthesizer_kind kind, test_rng *rng);
attn_status synth_call(void *scene, attn_ctx *ctx);
/* Runs and compares with float64. */
void synth_run(synth_scene *s, const char *what);

/* An entry; extents of 1 broadcast. */
double synth_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c);

#endif
