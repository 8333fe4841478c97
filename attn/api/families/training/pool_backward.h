/* api/families/training/pool_backward.h owns the gradients of attn_pool. */

/* What a gradient of attn_pool has beside that of x; {0} is none of it. */
typedef struct attn_pool_gradients {
  attn_tensor d_w, d_bias; /* out, optional: those of params.w and params.bias */
  int accumulate;          /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_pool_gradients;

/* Gradients of attn_pool: of a loss whose gradient by y is d_y. Of block m of rows start .. end - 1:
 *
 *   MEAN     d_x_i += d_y_m / (end - start)
 *   MAX      column by column to the first row that has the maximum, a NaN where there is one
 *   DYNAMIC  with weights a and the row c that they come from: d_x_(start + r) += a_r d_y_m,
 *            d_a_r = d_y_m . x_(start + r), d_z = a (d_a - a . d_a), d_x_c += d_z w^T, d_w += x_c^T d_z, d_bias += d_z
 *
 * Shapes: d_y [B,H,M,d] as y, d_x as x, gradients.d_w, d_bias as params.w, params.bias, each f32, f16 or bf16 and of any
 *   strides. An output whose data is null is not made. What forward read with heads 1 for all gets the sum; where an input
 *   has a stride of 0 its gradient may have 1 there, the sum, or the full extent, each share by itself.
 * params: as forward had them. Lengths: rows of d_y beyond the blocks of an entry are not read, d_x from x_len on is 0.
 * Aliasing: outputs share memory with nothing, nor their rows with one another; inputs may with each other.
 * Empty: unless accumulate is 1 every element of an output is written, 0 where nothing is read.
 * NaN: as IEEE arithmetic has it, in exactly what reads it.
 * Memory: attn_pool_backward_workspace bytes: 24 d a worker, DYNAMIC w as f32 and B H M (d + kernel) numbers; B H n d where
 *   d_x is not f32, a sum or added to.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 *   NULL also for d_w and d_bias without w and bias.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for:
 *   blocks that share rows are added in order, what weights give after what values do.
 * Error: 1e-6 of the sums of magnitudes. Cost: as attn_pool; DYNAMIC 6 d kernel flops a block.
 * Source: that of attn_pool; the chain rule. */
ATTN_DEF attn_status attn_pool_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                        const attn_pool_params *params,
                                        const attn_pool_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_pool_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                             const attn_pool_params *params,
                                             const attn_pool_gradients *gradients,
                                             const attn_ctx *ctx);
