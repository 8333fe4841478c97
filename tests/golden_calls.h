/* tests/golden_calls.h owns the form of a golden call: it fills o [1,2,70,20] and lse [1,2,70,1] from
 * exact numbers. Lists end with an empty entry. */

#ifndef TESTS_GOLDEN_CALLS_H
#define TESTS_GOLDEN_CALLS_H

#include "compound.h"

enum { T = 70, DK = 24, DV = 20 };

typedef struct golden_call {
  const char *name;
  attn_status (*call)(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx);
} golden_call;

/* Numbers that every machine has alike: [1, heads, len, dim]. */
attn_tensor golden_exact(test_rng *rng, int64_t heads, int64_t len, int64_t dim);
/* The same [1, 1, len, dim], an eighth as large: weights that leave activations and softmax to differ. */
attn_tensor golden_weight(test_rng *rng, int64_t len, int64_t dim);
attn_norm golden_norm(test_rng *rng, int64_t dim);
attn_feed_forward golden_feed(test_rng *rng, int64_t dim, int64_t hidden, attn_activation act);
/* The numbers of head h of o as rows [1,1,len,dim], len dim <= T DV; those left over are 0. */
attn_tensor golden_rows(attn_tensor o, int64_t h, int64_t len, int64_t dim);

extern const golden_call golden_content[], golden_heads[], golden_blocks[], golden_depth[],
    golden_options[], golden_selection[], golden_reshaped[], golden_latent[], golden_path[],
    golden_hashes[], golden_sparse[], golden_levels[], golden_today[], golden_training[];

#endif
