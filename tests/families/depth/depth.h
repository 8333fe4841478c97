/* tests/families/depth/depth.h owns the float64 block of the tests of depth, over the rows that a mask names, and random
 * weights for it. */

#ifndef TESTS_DEPTH_H
#define TESTS_DEPTH_H

#include "compound.h"

typedef struct depth_shape {
  int64_t dm, heads, kv_heads, dk, dv, dff,
      de; /* de: width of the encoder's rows; 0 = no cross attention */
  int pre, biases, plain_norm;
  attn_dtype type;
} depth_shape;

depth_shape depth_plain(int64_t dm, int64_t heads, int64_t dk);
attn_block_params depth_weights(const depth_shape *shape, test_rng *rng);

/* LN of n numbers. */
void depth_norm(double *x, int64_t n, const attn_norm *norm);

/* Where row t of entry b stands among the keys: those from 0 to causal ? t : len[b] - 1 exist. */
typedef struct depth_case {
  const attn_block_params *p;
  int causal;
  const int32_t *len;       /* [B], rows that exist; null = all */
  const unsigned char *run; /* [B T], rows to compute; null = all. The others of y are those of x */
  const attn_tensor *e;     /* cross attention, or null */
  const int32_t *e_len;
} depth_case;
cube depth_block(const depth_case *c, const cube *x);

#endif
