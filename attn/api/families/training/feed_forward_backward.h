/* api/families/training/feed_forward_backward.h owns the gradients of attn_feed_forward_rows. */

#if ATTN_HAS_MULTIHEAD_AND_TRAINING
/* Gradients of what a feed-forward learns, each optional: the shapes of ff's fields as they lie in memory, f32, f16 or
 * bf16, of any strides. */
typedef struct attn_feed_forward_gradients {
  attn_tensor d_w_1, d_w_2, d_w_3;
  attn_tensor d_b_1, d_b_2, d_b_3;
  int accumulate; /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_feed_forward_gradients;

/* Gradients of attn_feed_forward_rows: of a loss whose gradient by y is d_y.
 *
 *   z = x w_1 + b_1,  u = x w_3 + b_3 (1 without),  h = f(z) u
 *   d_h = d_y w_2^T (d_y without),  d_z = d_h u f'(z),  d_u = d_h f(z),  d_x = d_z w_1^T + d_u w_3^T
 *   d_w_1 = x^T d_z,  d_w_2 = h^T d_y,  d_w_3 = x^T d_u,  d_b_1, d_b_2, d_b_3 = sums of d_z, d_y, d_u;  f' as
 *   attn_gemm_backward has it; in a form f and u as attn_activate_backward has them
 *
 * Shapes: d_y [B,1,T,dout] as y, x [B,1,T,din]; d_x as x, f32, f16 or bf16. An output whose data is null is not made.
 * ff: as forward had it, weights of a float type (DTYPE). compute says nothing here: products are f32, hidden rows made
 *   again too.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written, 0 where there are no rows.
 * NaN: as IEEE arithmetic has it; in a row of x or d_y it reaches that row of d_x, and what is learned.
 * Memory: attn_feed_forward_rows_backward_workspace bytes: 512 hidden rows two to five times, that of attn_gemm and
 *   attn_gemm_backward for one product, a d_x of 512 rows, and what is learned in f32 where it is not. No rows of all.
 * Errors: those of attn_gemm_backward and attn_feed_forward_rows; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for. What
 *   is learned sums rows in runs of 512 (of whole batch entries where these are shorter), which are joined in order;
 *   chunks of forward say nothing.
 * Error: as attn_gemm_backward, from one product to the next.
 * Cost: 2 B T dff (din + dout) flops for d_x, as much for what is learned, 2 B T dff din for z; with w_3 2 B T dff din more
 *   of each.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; Shazeer 2020, arXiv 2002.05202; the chain rule. */
ATTN_DEF attn_status attn_feed_forward_rows_backward(attn_tensor d_x, attn_tensor d_y,
                                                     attn_tensor x, const attn_feed_forward *ff,
                                                     const attn_feed_forward_gradients *gradients,
                                                     attn_ctx *ctx);
ATTN_DEF size_t attn_feed_forward_rows_backward_workspace(
    attn_tensor d_x, attn_tensor d_y, attn_tensor x, const attn_feed_forward *ff,
    const attn_feed_forward_gradients *gradients, const attn_ctx *ctx);
#endif
