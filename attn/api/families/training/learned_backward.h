/* api/families/training/learned_backward.h owns the gradient of attn_learned_position. */

/* What a gradient of attn_learned_position is asked for with; {0}: is overwritten. */
typedef struct attn_learned_gradients {
  int accumulate; /* 1: is added to what d_table holds */
} attn_learned_gradients;

/* Gradient of attn_learned_position by its table, be it of positions or of tokens: of a loss L whose gradient by y is
 * d_y. That by x is d_y itself.
 *
 *   d_table[r,:] = sum of d_y[b,h,i,:] over all b, h, i whose position is r
 *
 * Shapes: d_table as table, [1,1,n,d]; d_y [B,H,T,d]; each f32, f16 or bf16 and of any strides. d_table.data null:
 *   nothing is done. params: as forward had them.
 * Aliasing: d_table shares memory with nothing, nor its rows with one another.
 * Empty: rows of the table that no token names become 0, unless accumulate is 1: then they are not touched.
 * NaN and infinity: in a row of d_y they reach the row of the table that it names, nothing else.
 * Memory: attn_learned_position_backward_workspace bytes: 8 for each row of the table and each position.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (any position outside 0..n-1, accumulate neither 0 nor 1), OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on every tier and for any number of workers. A row sums its tokens by batch entry, then
 *   position, then head, in runs of 512 that are joined.
 * Error: 2^-24 (512 + tokens of the row / 512) sum of |d_y|; outputs of 16 bits are rounded once.
 * Workers: each takes rows and columns of the table. Cost: tokens are sorted by row; each number of d_y is then read
 *   once and each of d_table written once.
 * Source: the chain rule on Gehring et al. 2017, arXiv 1705.03122. params null: start is 0. */
ATTN_DEF attn_status attn_learned_position_backward(attn_tensor d_table, attn_tensor d_y,
                                                    const attn_learned_params *params,
                                                    const attn_learned_gradients *gradients,
                                                    attn_ctx *ctx);
ATTN_DEF size_t attn_learned_position_backward_workspace(attn_tensor d_table, attn_tensor d_y,
                                                         const attn_learned_params *params,
                                                         const attn_learned_gradients *gradients,
                                                         const attn_ctx *ctx);
