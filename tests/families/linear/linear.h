/* tests/families/linear/linear.h owns what the tests of attn_linear share: a scene, and the recurrence in float64, one
 * key after another, with feature maps of its own. */

#ifndef TESTS_LINEAR_H
#define TESTS_LINEAR_H

#include "compound.h"

typedef struct linear_scene {
  attn_tensor o, q, k, v;
  attn_linear_params p;
  double *s, *z; /* the oracle's states [B][heads][m][dv], [B][heads][m], kept between calls */
  int *seen;     /* [B][heads]: a key has been */
  void *start;   /* with p.state: what the state is before each call */
  attn_tensor s_view, z_view;
  promise does;
} linear_scene;

typedef struct linear_shape {
  int64_t batch, heads, kv_heads, rows, keys, dk, dv;
  attn_dtype q_type, k_type, v_type, o_type;
  test_layout q_layout, k_layout, v_layout, o_layout;
} linear_shape;

linear_shape linear_plain(int64_t heads, int64_t rows, int64_t keys, int64_t dk, int64_t dv);
/* Fresh tensors; params zero. */
linear_scene *linear_build(const linear_shape *x, test_rng *rng);
/* Random directions [1, 1 or heads, d, dk]. */
attn_tensor linear_w(int64_t heads, int64_t d, int64_t dk, test_rng *rng);
/* Rates in 0 .. 1, some of them 0 and 1. */
attn_tensor linear_rates(const linear_scene *s, attn_dtype type, int shared, test_rng *rng);
/* A state of its own for the scene, empty. */
void linear_keep(linear_scene *s);
/* What the state is now becomes what the next call begins with. */
void linear_go_on(linear_scene *s);

/* Runs the call and holds o, and the state if there is one, against the recurrence; tolerance in units
 * of what the sums of magnitudes would round to. */
void linear_check(linear_scene *s, double tolerance, const char *what);
/* Only the recurrence: o as doubles. */
cube linear_oracle(linear_scene *s, cube *size);

#endif
