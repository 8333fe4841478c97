/* tests/families/heads/talking.h owns what the tests of attn_talking and of its gradients share: extents, and a row of
 * weights in float64. */

#ifndef TESTS_TALKING_H
#define TESTS_TALKING_H

#include "compound.h"

typedef struct talking_shape {
  int64_t batch, hk, h, hv, k_heads, v_heads, tq, tk, dk, dv;
  attn_dtype q_type, kv_type, o_type, w_type;
  int transposed; /* matrices */
} talking_shape;

talking_shape talking_plain(int64_t hk, int64_t h, int64_t hv, int64_t tq, int64_t tk);

int64_t talking_heads(const attn_talking_params *p);
/* What head `from` gives to head `to` by a matrix of p. */
double talking_mixed(const attn_talking_params *p, const attn_tensor *w, int64_t from, int64_t to);
/* Queries of 0 for each softmax head, which leave the terms of scores. */
attn_tensor talking_nothing(const attn_tensor *q, const attn_talking_params *p);
/* Row (b, h, i) of W, h a softmax head; returns its LSE. zero: of talking_nothing. */
double talking_weights(const attn_tensor *q, const attn_tensor *k, const attn_talking_params *p,
                       const attn_tensor *zero, int64_t b, int64_t h, int64_t i, double *w);

#endif
