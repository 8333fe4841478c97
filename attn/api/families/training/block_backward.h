/* api/families/training/block_backward.h owns the gradients of encoder and decoder blocks. */

#if ATTN_HAS_BLOCKS_AND_TRAINING
/* Of a norm's gain and bias, [dm], each optional. */
typedef struct attn_norm_gradients {
  float *d_gain, *d_bias;
} attn_norm_gradients;

/* What a gradient of a block has beside that of x; {0} is none of it. In self, cross and ff accumulate is 0, d_x_k and d_x_v
 * are absent; kept may be 1, with each and lse of params.self or cross as forward left them. */
typedef struct attn_block_gradients {
  attn_multihead_gradients self, cross;
  attn_feed_forward_gradients ff;
  attn_norm_gradients norm_self, norm_cross, norm_ff;
  attn_norm_gradients after_self, after_cross, after_ff;
  attn_tensor d_e; /* out, optional, of a decoder: the shape of e */
  int accumulate;  /* 1: is added to what all outputs hold; 0: they are overwritten */
} attn_block_gradients;

/* Gradients of attn_encoder: of a loss whose gradient by y is d_y. For each part F, from the last to the first, d the
 * gradient by its output, N* that of a norm at the rows that it read:
 *
 *   POST:      d = N*(d),               d_x = d + F*(d)
 *   PRE:       d_x = d + N*(F*(d))
 *   SANDWICH:  d_x = d + N*(F*(N'*(d)))
 *   PARALLEL:  d_x = d + N_self*(MHA*(d)) + N_ff*(FFN*(d))
 *
 * Rows between the parts are made again from x. What forward may keep is each attention's heads and LSE: without them it
 * is computed once more; the same bits.
 * Shapes: d_y as y, d_x as x, each f32, f16 or bf16, of any strides; the gradients of what is learned as
 *   attn_multihead_backward and attn_feed_forward_rows_backward have them. An output whose data is null is not made.
 * params: as forward had them, with what those two refuse (DTYPE): codes.
 *   Rows from x_len on do not exist: d_y is not read there, d_x is 0.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written, 0 where nothing is read.
 * NaN: as the parts have it.
 * Memory: attn_encoder_backward_workspace bytes: f32 rows of dm numbers, 3 to 5 a part, the heads' outputs and LSE of each
 *   attention unless they were kept, and what its gradient or that of the feed-forward wants. No T x T and no T x dff
 *   array.
 * Errors: those of attn_encoder and of the gradients of its parts; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, whichever outputs are asked for, and
 *   whatever was kept.
 * Cost: attn_encoder's (less the feed-forward's where no norm stands behind it) and that of the gradients of its parts.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; Xiong et al. 2020, arXiv 2002.04745; the chain rule. */
ATTN_DEF attn_status attn_encoder_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                           const attn_block_params *params,
                                           const attn_block_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_encoder_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                const attn_block_params *params,
                                                const attn_block_gradients *gradients,
                                                const attn_ctx *ctx);

/* Gradients of attn_decoder: the same with cross attention between the two, whose keys and values give d_e; rows of e from
 * e_len on have 0. Shapes, rules, memory, errors, determinism and cost as attn_encoder_backward. */
ATTN_DEF attn_status attn_decoder_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                           attn_tensor e, const attn_block_params *params,
                                           const attn_block_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_decoder_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                attn_tensor e, const attn_block_params *params,
                                                const attn_block_gradients *gradients,
                                                const attn_ctx *ctx);
#endif
