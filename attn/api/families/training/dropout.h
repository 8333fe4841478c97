/* api/families/training/dropout.h owns dropout of the elements of a tensor. */

/* y = x M: element (b, h, i, c) of x stays, times 1/(1 - p), or becomes 0, as attn_drop says, c in the place of j. For the
 * embeddings, residual branches and hidden layers of a model that learns; the weights of attention have params.dropout.
 * Its gradient is itself: d_x = attn_dropout(d_y) with the same dropout.
 *
 * Shapes: x, y [B,H,T,n], each f32, f16 or bf16 and of any strides. dropout null: p = 0, a copy.
 * Aliasing: y may be x, the same view; else they share no memory, nor rows of y with one another.
 * Empty: nothing is done.
 * NaN and infinity: a product: they become NaN where they are dropped.
 * Memory: attn_dropout_workspace bytes: 8 KB a worker where y is not f32.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; y untouched.
 * Determinism: the same bits on every tier and for any number of workers; those of a part by itself, if batch0 and head0
 *   name its place.
 * Error: that of one product; y of 16 bits is rounded once more.
 * Cost: two or three operations an element; x is read once and y written once.
 * Source: Srivastava et al. 2014, JMLR 15, 1929-1958; the numbers: Salmon et al. 2011, doi 10.1145/2063384.2063405. */
ATTN_DEF attn_status attn_dropout(attn_tensor y, attn_tensor x, const attn_drop *dropout,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_dropout_workspace(attn_tensor y, attn_tensor x, const attn_drop *dropout,
                                       const attn_ctx *ctx);
