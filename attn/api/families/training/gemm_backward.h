/* api/families/training/gemm_backward.h owns the gradients of attn_gemm. */

/* What a gradient of attn_gemm has beside those of x and w; {0} is none of it. */
typedef struct attn_gemm_gradients {
  attn_tensor d_bias; /* out, optional: that of params.bias */
  attn_tensor
      z; /* in, optional: [B,H,m,n] scale x w + bias, where forward kept it; absent: made again */
  int accumulate; /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_gemm_gradients;

/* Gradients of attn_gemm: of a loss L whose gradient by y is d_y.
 *
 *   z = scale x w + bias,  d_z = d_y act'(z)
 *   d_x = scale d_z w^T,  d_w = scale x^T d_z (transposed where w is),  d_bias = sum of d_z
 *   act'(z): NONE 1; RELU [z > 0]; RELU2 2 max(z, 0); GELU Phi(z) + z phi(z); GELU_TANH (1 + t) / 2 + z (1 - t^2) a (1 +
 *     0.134145 z^2) / 2, a = sqrt(2 / pi), t = tanh(a (z + 0.044715 z^3)); SILU g (1 + z (1 - g)), g = 1 / (1 + e^-z);
 *     SIGMOID g (1 - g); TANH 1 - y^2; EXP y; ELU1 1 for z > 0, else e^z; in a form act'(slope z), 0 from its limit on;
 *     with a softcap c > 0 act' is taken of c tanh(z / c), and 1 - tanh(z / c)^2 times that
 *
 * Shapes: d_y [B,H,m,n]; d_x as x, d_w as w, gradients.d_bias as params.bias, each f32, f16 or bf16 and of any strides. An
 *   output whose data is null is not made. What forward read with batch 1 or heads 1 for all gets the sum; where
 *   an input has a stride of 0 its gradient may have the full extent, each share by itself, or 1, the sum.
 * params: as forward had them; w a float type (DTYPE). compute and compute_prefer say nothing here: products are f32, z
 *   made again too.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written, 0 where no row is: m = 0, B = 0 or H = 0.
 * NaN and infinity: as IEEE arithmetic has it, but that RELU and RELU2 pass 0 where z <= 0, whatever d_y is there; a NaN in
 *   d_y or x of a row reaches that row of d_x, and d_w and d_bias. No finite z makes act' infinite but EXP's and RELU2's.
 * Memory: attn_gemm_backward_workspace bytes: of attn_gemm for d_x; B H m n numbers for d_z with an activation or a
 *   softcap; B H m k where d_x is a sum or added to; up to 740 KB a worker for d_w.
 * Errors: as attn_gemm; NULL also for d_bias without a bias; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for. d_x
 *   is the chain of attn_gemm over n; d_w and d_bias sum rows by batch entry, head and position, in runs of
 *   512 that are joined.
 * Error: d_x as attn_gemm; d_w 2^-24 (512 + rows / 512) sum |scale x d_z|; act' within 5e-7 (1 + |z act''|), beside that
 *   of z. Outputs of 16 bits are rounded once.
 * Cost: 2 B H m n k flops each for d_x, d_w and, with an activation or a softcap and without gradients.z, z.
 * Source: the chain rule. */
ATTN_DEF attn_status attn_gemm_backward(attn_tensor d_x, attn_tensor d_w, attn_tensor d_y,
                                        attn_tensor x, attn_tensor w,
                                        const attn_gemm_params *params,
                                        const attn_gemm_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_gemm_backward_workspace(attn_tensor d_x, attn_tensor d_w, attn_tensor d_y,
                                             attn_tensor x, attn_tensor w,
                                             const attn_gemm_params *params,
                                             const attn_gemm_gradients *gradients,
                                             const attn_ctx *ctx);
