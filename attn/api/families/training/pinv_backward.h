/* api/families/training/pinv_backward.h owns the gradient of attn_pinv. */

/* The gradient of attn_pinv by a, through its iterations as they are, converged or not: with Y = A Z, T1 = 7 I - Y, T2 = 15 I
 * - Y T1, T3 = 13 I - Y T2, of each from the last to the first
 *
 *   dT3 = Z^T dZ / 4,  dT2 = -Y^T dT3,  dT1 = -Y^T dT2,  dY = -dT3 T2^T - dT2 T1^T - dT1
 *   dA += dY Z^T,  dZ = dZ T3^T / 4 + A^T dY;   at last that of Z = A^T / (|A|_1 |A|_inf), sums of the first largest column
 *   and row included
 *
 * With it attn_nystrom has gradients by parts: attn_sdpa_backward of its three maps (A by d_map), this, attn_pool_backward
 * of segments, attn_convolve_depthwise_backward.
 * Shapes: d_a, d_z, a [B,H,m,m], f32, f16 or bf16; iterations >= 0 (RANGE). Aliasing: d_a shares memory with nothing.
 * Memory: attn_pinv_backward_workspace bytes, 4 (iterations + 12) m m' a worker, m' <= m + 31. A = 0 gives 0; m = 0 or B = 0
 *   is a no-op; NaN and infinity in a matrix spoil its result alone.
 * Error: within 1e-5 of the largest number of the result where forward converges. Determinism: the same bits on avx2,
 *   avx512 and neon, for any number of workers; a worker takes a matrix.
 * Cost: 30 iterations m^3 flops a matrix. Source: as attn_pinv; the chain rule. */
ATTN_DEF attn_status attn_pinv_backward(attn_tensor d_a, attn_tensor d_z, attn_tensor a,
                                        int64_t iterations, attn_ctx *ctx);
ATTN_DEF size_t attn_pinv_backward_workspace(attn_tensor d_a, attn_tensor d_z, attn_tensor a,
                                             int64_t iterations, const attn_ctx *ctx);
