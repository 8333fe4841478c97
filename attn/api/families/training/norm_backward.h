/* api/families/training/norm_backward.h owns the gradients of attn_layer_norm and attn_rms_norm. */

/* What a gradient of a norm has beside that of x; {0} is none of it. */
typedef struct attn_layer_norm_gradients {
  attn_tensor d_sum;      /* in, optional: what reaches params.sum, in the shape of d_y */
  attn_tensor d_residual; /* out, optional: that of params.residual */
  float *d_gain, *d_bias; /* out, optional: [n] those of params.norm.gain and bias */
  int accumulate;         /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_layer_norm_gradients;

/* Gradients of attn_layer_norm: of a loss L whose gradient by y is d_y.
 *
 *   s = x + residual,  rho = (variance of s + eps)^(-1/2),  h = (s - mean of s) rho,  g = d_y gain
 *   d_x = d_residual = rho (g - mean of g - h mean of g h) + d_sum,  d_gain = sum of d_y h,  d_bias = sum of d_y
 *
 * Shapes: d_y and gradients.d_sum as y; d_x as x, d_residual as params.residual, each f32, f16 or bf16 and of any strides.
 *   An output whose data is null is not made. What forward read with batch 1 or heads 1 for all gets the sum; where an
 *   input has a stride of 0 its gradient may have the full extent, each share by itself, or 1, the sum.
 * params: as forward had them, x and residual as they were before it (where sum was written over one of them: sum as x and
 *   no residual); norm.kind and sum are not read. d_gain is that of what gain holds with gain_less_one too.
 * Aliasing: d_x may be d_y, the same view, without accumulate; else outputs share memory with nothing, nor their rows
 *   with one another. Inputs may share memory with each other.
 * Empty: B, H or T = 0: d_gain, d_bias and what is a sum become 0, unless accumulate is 1.
 * NaN and infinity: in a row of d_y, d_sum, x or residual they reach that row of d_x, and d_gain and d_bias, nothing else.
 *   A column alone (n = 1) passes d_sum and nothing of d_y, as does, nearly, a row of equal numbers.
 * Memory: attn_layer_norm_backward_workspace bytes: n numbers a worker for each of 16 rows at most where a tensor is not
 *   f32, there is a residual or accumulate is 1; 2 n for each 64 rows with d_gain or d_bias; B H T n with a sum.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs
 *   untouched. NULL also for the gradient of what params do not have.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for; a
 *   row of d_x depends on that row alone. d_gain and d_bias sum rows by batch entry, head and position in runs of
 *   64, and those in runs of 512.
 * Error: d_x below 16 2^-24 rho (|g_c| + mean of |g| + (1 + |h_c|) mean of |g| (1 + |h|)), d_gain and d_bias 2^-24 (64 +
 *   rows / 64) sum of |d_y| (1 + |h|) up to 32768 rows; rows that floats cannot square are done in f64.
 * Cost: each number of x and d_y is read once from memory and each of d_x written once.
 * Source: Ba et al. 2016, arXiv 1607.06450, and the chain rule. params null: defaults. */
ATTN_DEF attn_status attn_layer_norm_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                              const attn_layer_norm_params *params,
                                              const attn_layer_norm_gradients *gradients,
                                              attn_ctx *ctx);
ATTN_DEF size_t attn_layer_norm_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                   const attn_layer_norm_params *params,
                                                   const attn_layer_norm_gradients *gradients,
                                                   const attn_ctx *ctx);

/* Gradients of attn_rms_norm; all else is as above:
 *
 *   s = x + residual,  rho = (mean of s^2 + eps)^(-1/2),  h = s rho,  g = d_y gain
 *   d_x = d_residual = rho (g - h mean of g h) + d_sum,  d_gain = sum of d_y h,  d_bias = sum of d_y
 *
 * Source: Zhang and Sennrich 2019, arXiv 1910.07467, and the chain rule. params null: defaults. */
ATTN_DEF attn_status attn_rms_norm_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                            const attn_layer_norm_params *params,
                                            const attn_layer_norm_gradients *gradients,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_rms_norm_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                 const attn_layer_norm_params *params,
                                                 const attn_layer_norm_gradients *gradients,
                                                 const attn_ctx *ctx);
