/* api/families/blocks/reversible.h owns the reversible residual (K4); the rules of coder.h hold here. */

/* ---- reversible residual ------------------------------------------------------------------------*/

/* y = a function of the rows x, both [B,1,n,d]; y is dense f32 of the same extents and shares no memory with
 * x, which must be left as it is. The same x must give the same bits. ctx has the tier and the workers of
 * the outer call, and no workspace. A status other than ATTN_OK ends the outer call, which returns it. */
typedef attn_status (*attn_rows_fn)(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx);

typedef struct attn_reversible_params {
  attn_rows_fn f, g; /* usually attention and feed-forward, each with its own norm before it */
  void *f_user, *g_user;
} attn_reversible_params;

/* A residual block of two streams whose inputs can be had back from its outputs:
 *
 *   y1 = x1 + F(x2),  y2 = x2 + G(y1)
 *
 * Shapes: all four [B,1,n,d]. Entering streams are usually two copies of the rows, leaving ones are
 *   averaged (attn_stream_mean) or put side by side.
 * Aliasing: y1 may be x1 and y2 may be x2, the same views: in place; nothing else is shared.
 * Rounding: F and G see the streams as they are stored, so that the inverse computes the same F and G.
 * Memory: 2 B n d numbers, beside what F and G allocate. Cost: two sums, F and G.
 * Errors also: those of F and G, outputs untouched.
 * Source: Gomez et al. 2017, arXiv 1707.04585; Kitaev et al. 2020, arXiv 2001.04451. */
ATTN_DEF attn_status attn_reversible(attn_tensor y1, attn_tensor y2, attn_tensor x1, attn_tensor x2,
                                     const attn_reversible_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_reversible_workspace(attn_tensor y1, attn_tensor y2, attn_tensor x1,
                                          attn_tensor x2, const attn_reversible_params *params,
                                          const attn_ctx *ctx);

/* The way back: x2 = y2 - G(y1), x1 = y1 - F(x2), each within a few units of the last place of the sums.
 * Aliasing: x1 may be y1 and x2 may be y2. Otherwise as attn_reversible. */
ATTN_DEF attn_status attn_reversible_inverse(attn_tensor x1, attn_tensor x2, attn_tensor y1,
                                             attn_tensor y2, const attn_reversible_params *params,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_reversible_inverse_workspace(attn_tensor x1, attn_tensor x2, attn_tensor y1,
                                                  attn_tensor y2,
                                                  const attn_reversible_params *params,
                                                  const attn_ctx *ctx);

/* y = (x1 + x2) / 2, where two streams become one. Shapes: all [B,H,n,d]. Aliasing: y may be x1 or x2.
 * Memory: none. */
ATTN_DEF attn_status attn_stream_mean(attn_tensor y, attn_tensor x1, attn_tensor x2, attn_ctx *ctx);
ATTN_DEF size_t attn_stream_mean_workspace(attn_tensor y, attn_tensor x1, attn_tensor x2,
                                           const attn_ctx *ctx);
