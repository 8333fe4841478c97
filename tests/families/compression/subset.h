/* tests/families/compression/subset.h owns what the tests of attention with fewer queries than there are share (clusters,
 * selected rows): random shapes, their tensors, and the random numbers of the definitions. */

#ifndef TESTS_SUBSET_H
#define TESTS_SUBSET_H

#include "compound.h"

typedef struct subset_shape {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv;
  attn_dtype type;
  test_layout layout;
} subset_shape;

subset_shape subset_plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv);
/* Any storage type, layout and groups of heads; 1 .. q_most queries, 1 .. k_most keys. */
subset_shape subset_any(int64_t q_most, int64_t k_most, test_rng *rng);

typedef struct subset_tensors {
  attn_tensor o, q, k, v;
} subset_tensors;
/* *block becomes the memory of o. */
subset_tensors subset_draw(const subset_shape *x, test_block *block, test_rng *rng);

/* A length, or all there are. */
int64_t subset_length(const int32_t *len, int64_t b, int64_t all);

/* The n-th number of a stream, and floor(u n / 2^64). */
uint64_t subset_number(uint64_t seed, uint64_t stream, uint64_t n);
int64_t subset_below(uint64_t u, int64_t n);

#endif
