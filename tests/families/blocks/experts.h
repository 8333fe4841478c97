/* tests/families/blocks/experts.h owns a call of attn_expert_rows with random arguments, and its answer in float64,
 * expert by expert from the formulas of the papers. */

#ifndef TESTS_EXPERTS_H
#define TESTS_EXPERTS_H

#include "layers.h"

typedef struct experts {
  attn_tensor y, x;
  attn_expert_rows_params p;
  attn_feed_forward wide; /* of experts of codes: what these stand for */
  promise does;
} experts;

typedef struct experts_shape {
  int64_t batch, rows, din, dff, dout, count, k; /* dff 0: without w_2 */
  attn_dtype x_type, w_type, y_type;
  test_layout layout;
  int gated, biases, shared; /* shared: 1 as it is, 2 with a gate */
} experts_shape;

experts_shape experts_plain(int64_t rows, int64_t count, int64_t k);
/* All outputs are asked for. Logits are exact in f32: choices by them are the oracle's. */
experts *experts_build(const experts_shape *shape, test_rng *rng);
/* Matrices as checkpoints have them: the same numbers, [out, in]. */
void experts_turn(experts *s);
/* Matrices of experts become codes of 8 or 4 bits, as they lie. */
void experts_code(experts *s, attn_dtype type, int64_t group, int zero, test_rng *rng);
/* Runs it and holds choices, weights, logits and rows against the oracle. */
void experts_check(experts *s, double tolerance, const char *what);

#endif
