/* api/families/linear/features_backward.h owns the gradient of attn_features. */

#if ATTN_HAS_LINEAR_AND_TRAINING
typedef struct attn_features_gradients {
  int accumulate; /* 1: is added to what d_x holds; 0: it is overwritten */
} attn_features_gradients;

/* The gradient of attn_features by x: of a loss whose gradient by y = phi(x) is d_y, with the same map and is_key.
 *
 *   ELU1, ACT   d_x = scale d_y f'(u), by way of the directions where there are some
 *   DPFP        of the two factors of each feature
 *   RFA         of sines and cosines, then of the row on the unit sphere: d_x is at right angles to x; with keep_norm of
 *               keys of their factor as well
 *   SOFTMAX     with T_r = d_y_r (y_r without its eps): d_x' = sum_r T_r w_r - (sum_r T_r) x'
 *   HYPERBOLIC  the same of both signs
 *   USER        map.back
 *
 * after that of map.norm. Directions, sigma, eps, kernel_eps and the stabiliser c, the largest of its row or of all keys,
 * are constants. A norm cancels c, and so does attention where eps is 0: there the gradient is exact.
 * Shapes: d_y [B,H,T,m] as y, x [B,H,T,dk], d_x as x (1 or the full extent where x has a stride of 0: the sum, or each
 *   share), each f32, f16 or bf16 and of any strides. d_x.data null: nothing is done. gradients null = {0}.
 * At kinks: relu and its square have the slope 0 at 0, |x'| at most 1e-6 counts as 1e-6, rows whose sum or length is 0
 *   have the gradient 0.
 * Aliasing: d_x shares memory with nothing, nor its rows with one another; inputs may with each other.
 * Empty: with T, B or H of 0 nothing is written, but a sum of no rows is 0.
 * NaN: stays in its row, and in sums of it.
 * Memory: attn_features_backward_workspace bytes: that of attn_features, w once more, 256 (dk + m) a worker; B H T dk
 *   numbers where d_x is a sum.
 * Errors: those of attn_features, with NULL for a USER map without `back`, SHAPE of d_x and d_y, RANGE of accumulate;
 *   outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers.
 * Error: about 1e-6 of the same sums over magnitudes, and what the features' own errors make of it.
 * Cost: 4 B H T D dk flops, the features once more. Source: those of the maps; the chain rule. */
ATTN_DEF attn_status attn_features_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                            const attn_feature_map *map, int is_key,
                                            const attn_features_gradients *gradients,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_features_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                 const attn_feature_map *map, int is_key,
                                                 const attn_features_gradients *gradients,
                                                 const attn_ctx *ctx);
#endif
