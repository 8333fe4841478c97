/* api/families/training/merge_backward.h owns the gradients of attn_merge. */

/* What a gradient of attn_merge has beside those of o1 and o2; {0} is none of it. */
typedef struct attn_merge_gradients {
  attn_tensor d_lse;          /* in, optional: [B,H,T,1] f32, what reaches lse */
  attn_tensor d_lse1, d_lse2; /* out, optional: [B,H,T,1] f32 */
  int accumulate;             /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_merge_gradients;

/* Gradients of attn_merge, row by row: of a loss whose gradient by o is d_o and by lse d_lse.
 *
 *   a_n = exp(L_n - L),  g = d_o . (O_1 - O_2)
 *   d_o_n = a_n d_o,  d_lse1 = a_1 (a_2 g + d_lse),  d_lse2 = a_2 (d_lse - a_1 g)
 *
 * so that attention over parts of the keys, each with attn_sdpa_backward (its d_lse is the part's here), has the gradients
 * of the whole. o and lse are not read; o1, lse1, o2 and lse2 must be there still, so a merge in place leaves nothing for
 * its gradient.
 * Shapes: d_o, o1, o2, d_o1, d_o2 [B,H,T,dv], each f32, f16 or bf16 and of any strides; lse1, lse2 and those of gradients
 *   [B,H,T,1] f32. An output whose data is null is not made.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: a part with L_n = -inf is not read, its gradients are 0, and the other's are d_o and d_lse as they are; where both
 *   are -inf d_o and d_lse are not read either. Unless accumulate is 1 every element of an output is written.
 * NaN: a NaN or +inf in L_n makes NaN of its row; a NaN in O_1 or O_2 reaches d_lse1 and d_lse2 of its row.
 * Memory: attn_merge_backward_workspace bytes: 12 dv a worker where d_o, o1 or o2 is not f32.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for.
 * Error: with u = 1e-6 + 2^-24 |L_1 - L_2|, d_o_n within u of itself, d_lse_n within u a_n (a_m |d_o| (|O_1| + |O_2|) +
 *   |d_lse|); 16-bit outputs are rounded once more.
 * Cost: one pass over d_o, o1, o2 and the outputs. Source: Rabe and Staats 2021, arXiv 2112.05682; the chain rule. */
ATTN_DEF attn_status attn_merge_backward(attn_tensor d_o1, attn_tensor d_o2, attn_tensor d_o,
                                         attn_tensor o1, attn_tensor lse1, attn_tensor o2,
                                         attn_tensor lse2, const attn_merge_gradients *gradients,
                                         attn_ctx *ctx);
ATTN_DEF size_t attn_merge_backward_workspace(attn_tensor d_o1, attn_tensor d_o2, attn_tensor d_o,
                                              attn_tensor o1, attn_tensor lse1, attn_tensor o2,
                                              attn_tensor lse2,
                                              const attn_merge_gradients *gradients,
                                              const attn_ctx *ctx);
