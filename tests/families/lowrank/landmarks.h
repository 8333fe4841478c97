/* tests/families/lowrank/landmarks.h owns what the tests of attention through landmarks share: its formulas in float64,
 * from the means of segments to the rows of o. */

#ifndef TESTS_LANDMARKS_H
#define TESTS_LANDMARKS_H

#include "compound.h"

/* Either call; solve: CSALR. */
typedef struct landmarks {
  attn_tensor o, q, k, v;
  attn_nystrom_params p;
  attn_csalr_params c;
  int solve;
  promise does;
} landmarks;

typedef struct landmarks_shape {
  int64_t batch, heads, k_heads, v_heads, queries, keys, dk, dv;
  attn_dtype q_type, k_type, v_type, o_type;
  test_layout layout;
  double size; /* of q and k */
} landmarks_shape;

/* Two heads, f32. */
landmarks_shape landmarks_plain(int64_t queries, int64_t keys, int64_t dk, int64_t dv);
landmarks *landmarks_build(const landmarks_shape *x, int solve, test_rng *rng);
/* Sets m, the scale and the lengths in either's params. */
void landmarks_set(landmarks *s, int64_t m, float scale, const int32_t *kv_len,
                   const int32_t *q_len);
/* o against the formula. What a few roundings of A can do to the result is allowed for. */
void landmarks_check(const landmarks *s, const char *what);
/* Runs and checks. */
void landmarks_run(landmarks *s, const char *what);
/* Queries that are keys, of so much size that A is nearly the identity. */
void landmarks_peaked(landmarks *s, test_rng *rng);

#endif
