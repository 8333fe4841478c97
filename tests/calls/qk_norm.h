/* tests/calls/qk_norm.h owns the definition of a norm of queries and keys in double, and random descriptions. */

#ifndef TESTS_QK_NORM_H
#define TESTS_QK_NORM_H

#include "harness.h"

/* A legal description: gains and temperature of `heads` and `kv_heads` heads of width dim. */
attn_qk_norm qk_norm_described(test_rng *rng, int kind, int64_t heads, int64_t kv_heads,
                               int64_t dim);
/* Rows of numbers [B,H,T,d], as doubles, in place; keys: of keys. */
void qk_norm_rows(double *x, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                  const attn_qk_norm *p, int keys);
/* y = x, of any types, normed. */
void qk_norm_to(attn_tensor y, attn_tensor x, const attn_qk_norm *p, int keys);

#endif
