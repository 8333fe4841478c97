/* api/families/training/cross_entropy_head.h owns the loss over classes whose logits are a product of rows. */

/* {0}: no bias, w [1,1,in,V]. */
typedef struct attn_cross_entropy_head_params {
  attn_cross_entropy_params loss;
  attn_tensor bias; /* [1,1,1,V], any float type; data null = 0 */
  int w_transposed; /* w is [1,1,V,in], as linear layers and embeddings have it */
} attn_cross_entropy_head_params;

/* Gradients of what is learned; data null: not asked for. */
typedef struct attn_cross_entropy_head_gradients {
  attn_tensor d_w;    /* the shape of w */
  attn_tensor d_bias; /* [1,1,1,V], also where there is no bias */
} attn_cross_entropy_head_gradients;

/* attn_cross_entropy of logits = x w + bias, with the gradients by x, w and bias, and never all logits at once:
 *
 *   dz = the gradient by logits;   d_x = dz w^T,  d_w = x^T dz,  d_bias = sum_t dz_t
 *
 * 512 columns of logits are made at a time, for the loss, and where gradients are asked for made again. A w that is
 * tied to an embedding has d_w added to that of the embedding by params.loss.accumulate, which holds for all
 * gradients here.
 * Shapes: x [B,H,T,in], w [1,1,in,V] (w_transposed: [1,1,V,in]); f32, f16 or bf16 each, as d_x (of x's shape), d_w
 *   and d_bias; targets [B*H*T] as in attn_cross_entropy. An output that is null is not made, nor what only it needs.
 * Aliasing: outputs share memory with nothing; x, w and bias may with each other.
 * Empty: rows that are ignored are not read, cost nothing and have d_x = 0. Unless accumulate is 1 every element of
 *   an output is written, 0 where no row counts.
 * Infinities, NaN: of logits as in attn_cross_entropy; of what they are made of by products as IEEE has them: a NaN
 *   in a row of x reaches its d_x, and d_w and d_bias; in w all rows.
 * Memory: attn_cross_entropy_head_workspace bytes: for each row 2.1 KB of logits, as much again for d_w, 4 in of x, as
 *   much for each of d_x and d_w, and 64 beside; 2 in KB for columns of w, 200 KB a worker. Ignored
 *   rows are among them; the query judges targets too.
 * Error: logits are f32 whatever x and w are, each within (in + 1) 2^-24 sum |x w|; then as attn_cross_entropy. Sums
 *   over rows and columns are joined from runs of 512. 16-bit outputs are rounded once.
 * Errors: those of attn_cross_entropy; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked
 *   for. d_x sums columns ascending in runs of 512, d_w and d_bias rows that count, 512 at a time.
 * Workers: each takes blocks of rows and columns. Cost: 2 in V flops a row that counts for the loss, 6 more for all
 *   gradients, 4 more where V is 512 or less.
 * Source: as attn_cross_entropy; in pieces as Wijmans et al. 2024, arXiv 2411.09009, have it. */
ATTN_DEF attn_status attn_cross_entropy_head(double *loss, attn_tensor d_x, attn_tensor x,
                                             attn_tensor w, const int32_t *targets,
                                             const attn_cross_entropy_head_params *params,
                                             const attn_cross_entropy_head_gradients *gradients,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_cross_entropy_head_workspace(
    double *loss, attn_tensor d_x, attn_tensor x, attn_tensor w, const int32_t *targets,
    const attn_cross_entropy_head_params *params,
    const attn_cross_entropy_head_gradients *gradients, const attn_ctx *ctx);
