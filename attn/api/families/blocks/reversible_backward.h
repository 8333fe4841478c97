/* api/families/blocks/reversible_backward.h owns the gradients of the reversible residual. */

#if ATTN_HAS_BLOCKS_AND_TRAINING
/* The way back through an attn_rows_fn: d_x = the gradient by its rows x, where d_y is that by its y; all [B,1,n,d], d_x and
 * d_y dense f32. What it learns is its own: it is called once. It may not change x and d_y. ctx, statuses: as there. */
typedef attn_status (*attn_rows_back_fn)(void *user, attn_tensor d_x, attn_tensor d_y,
                                         attn_tensor x, attn_ctx *ctx);

typedef struct attn_reversible_gradients {
  attn_rows_back_fn f, g; /* of params' f and g, whose users they get */
} attn_reversible_gradients;

/* Gradients of attn_reversible from what it left alone: the streams that entered are had back on the way.
 *
 *   x2 = y2 - G(y1),  d_x1 = d_y1 + G*(y1, d_y2),  x1 = y1 - F(x2),  d_x2 = d_y2 + F*(x2, d_x1)
 *
 * Shapes: all eight [B,1,n,d], each f32, f16 or bf16 and of any strides.
 * Aliasing: x1 may be y1, x2 y2, d_x1 d_y1 and d_x2 d_y2, the same views: in place; nothing else is shared.
 * Rounding: F and F* see x2 as it is stored, F* gets d_x1 in f32. x1 and x2 are within a few units in the last place of
 *   the sums of what entered; gradients are those at the streams that are had back.
 * Memory: attn_reversible_backward_workspace bytes: 5 B n d numbers, beside what the functions allocate.
 * Empty: B = 0 or n = 0 is a no-op. NaN: as the functions have it, and in its element.
 * Errors: as attn_reversible, NULL also for gradients or one of its functions; outputs untouched. A function that fails
 *   ends the call; what a way back has learned before stays learned.
 * Determinism: as the functions have it. Cost: four sums, F, G, F* and G*.
 * Source: Gomez et al. 2017, arXiv 1707.04585. */
ATTN_DEF attn_status attn_reversible_backward(attn_tensor x1, attn_tensor x2, attn_tensor d_x1,
                                              attn_tensor d_x2, attn_tensor y1, attn_tensor y2,
                                              attn_tensor d_y1, attn_tensor d_y2,
                                              const attn_reversible_params *params,
                                              const attn_reversible_gradients *gradients,
                                              attn_ctx *ctx);
ATTN_DEF size_t attn_reversible_backward_workspace(attn_tensor x1, attn_tensor x2, attn_tensor d_x1,
                                                   attn_tensor d_x2, attn_tensor y1, attn_tensor y2,
                                                   attn_tensor d_y1, attn_tensor d_y2,
                                                   const attn_reversible_params *params,
                                                   const attn_reversible_gradients *gradients,
                                                   const attn_ctx *ctx);
#endif
