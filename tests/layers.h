/* tests/layers.h owns float64 pieces of layers over rows [B,1,n,dm]: products with bias, attention of
 * heads side by side, residual with norm, feed-forward. */

#ifndef TESTS_LAYERS_H
#define TESTS_LAYERS_H

#include "compound.h"

/* x w + b; b may be absent. */
cube rows_dense(const cube *x, const attn_tensor *w, const attn_tensor *b);
/* Heads of q (batch 1 or that of k) over the first len[b] rows of k and v. */
cube rows_attend(const cube *q, const cube *k, const cube *v, int64_t heads, double scale,
                 const int32_t *len);
/* norm(a + b); b null = 0, norm null = none; batches of 1 broadcast. */
cube rows_norm(const cube *a, const cube *b, const attn_norm *norm);
cube rows_feed(const cube *x, const attn_feed_forward *ff);

/* Weights and optional biases of a feed-forward din -> dff -> dout; dff 0: without w_2. */
attn_feed_forward drawn_feed(int64_t din, int64_t dff, int64_t dout, int bias, attn_dtype type,
                             test_rng *rng);
/* A weight [in, out] as [out, in], each head by itself. */
attn_tensor turned_weight(attn_tensor w);
/* Random codes for a matrix, which lies [out, in] if turned; *w becomes them, and what they stand for is returned. */
attn_tensor coded_weight(attn_tensor *w, attn_scales *s, int turned, attn_dtype type, int64_t group,
                         int zero, test_rng *rng);
attn_norm drawn_norm(int64_t dm, test_rng *rng);
/* Rows in another order: row i of the result is row order[i]. */
attn_tensor reordered(attn_tensor x, const int64_t *order);
/* A shuffled 0 .. n-1. */
int64_t *shuffled(int64_t n, test_rng *rng);

#endif
