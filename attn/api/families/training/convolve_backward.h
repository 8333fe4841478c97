/* api/families/training/convolve_backward.h owns the gradients of convolutions along the sequence. */

/* What a gradient of a convolution has beside those of x and w; {0} is none of it. */
typedef struct attn_convolve_gradients {
  attn_tensor d_bias; /* out, optional: that of params.bias */
  int accumulate;     /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_convolve_gradients;

/* Gradients of attn_convolve: of a loss whose gradient by y is d_y.
 *
 *   d_x[start_m + r dilation] += d_y_m W[r]^T,  d_W[r] = sum_m x[start_m + r dilation]^T d_y_m,  d_bias = sum_m d_y_m
 *
 * over batch entries and output rows m, and taps r whose row of x exists.
 * Shapes: d_y [B,H,M,d_out] as y; d_x as x, d_w as w, gradients.d_bias as params.bias, each f32, f16 or bf16 and of any
 *   strides. An output whose data is null is not made. What forward read with heads 1 for all gets the sum; where an input
 *   has a stride of 0 its gradient may have 1 there, the sum, or the full extent, each share by itself.
 * params: as forward had them. Null: stride 1, no padding.
 * Lengths: rows of d_y beyond those of a batch entry are not read, d_x from x_len on is 0.
 * Aliasing: outputs share memory with nothing, nor their rows with one another; inputs may with each other.
 * Empty: unless accumulate is 1 every element of an output is written, 0 where nothing is read, as with no rows.
 * NaN: as IEEE arithmetic has it, in exactly what reads it.
 * Memory: attn_convolve_backward_workspace bytes: that of attn_gemm and attn_gemm_backward for a tap, B H M d_in numbers,
 *   and B H n d_in where d_x is not f32 or accumulate is 1.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs
 *   untouched. NULL also for d_bias without a bias.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for. d_x
 *   adds taps ascending; d_w and d_bias sum rows in runs of 512 that are joined, with x_len one batch entry after the other.
 * Error: as attn_gemm_backward; with x_len a rounding of the sum more for each batch entry.
 * Cost: 4 B H M kernel d_in d_out flops. Source: Liu et al. 2018, arXiv 1801.10198; the chain rule. */
ATTN_DEF attn_status attn_convolve_backward(attn_tensor d_x, attn_tensor d_w, attn_tensor d_y,
                                            attn_tensor x, attn_tensor w,
                                            const attn_convolve_params *params,
                                            const attn_convolve_gradients *gradients,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_convolve_backward_workspace(attn_tensor d_x, attn_tensor d_w, attn_tensor d_y,
                                                 attn_tensor x, attn_tensor w,
                                                 const attn_convolve_params *params,
                                                 const attn_convolve_gradients *gradients,
                                                 const attn_ctx *ctx);

/* Gradients of attn_convolve_depthwise: of a loss whose gradient by y is d_y.
 *
 *   d_x[start_m + r dilation][c] += w[r][c] d_y_m[c],  d_w[r][c] = sum_m x[start_m + r dilation][c] d_y_m[c]
 *
 * over batch entries and output rows m, and taps r whose row of x exists; with w [.., kernel, 1] over columns too. What y
 * held under params.accumulate has the gradient d_y.
 * Shapes, params, lengths, aliasing, empty, NaN: as attn_convolve_backward; gradients.d_bias absent.
 * Memory: attn_convolve_depthwise_backward_workspace bytes: a row a worker; d_y, w and x once more where they are not f32,
 *   d_w where it is not f32, a sum or added to, d_x where it is a sum.
 * Errors: as attn_convolve_backward.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for. d_x
 *   adds taps ascending; d_w sums batch entries, heads and rows in runs of 512 that are joined.
 * Error: 1e-7 of the sums of magnitudes for each addition of a run, of d_x for each tap.
 * Cost: 4 B H M kernel d flops. Source: Xiong et al. 2021, arXiv 2102.03902; the chain rule. */
ATTN_DEF attn_status attn_convolve_depthwise_backward(attn_tensor d_x, attn_tensor d_w,
                                                      attn_tensor d_y, attn_tensor x, attn_tensor w,
                                                      const attn_convolve_params *params,
                                                      const attn_convolve_gradients *gradients,
                                                      attn_ctx *ctx);
ATTN_DEF size_t attn_convolve_depthwise_backward_workspace(attn_tensor d_x, attn_tensor d_w,
                                                           attn_tensor d_y, attn_tensor x,
                                                           attn_tensor w,
                                                           const attn_convolve_params *params,
                                                           const attn_convolve_gradients *gradients,
                                                           const attn_ctx *ctx);
