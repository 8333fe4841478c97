/* api/families/sparse/longformer_backward.h owns the gradients of attn_longformer. */

#if ATTN_HAS_SPARSE_AND_TRAINING
/* What a gradient of attn_longformer has beside those of q, k and v; {0} is none of it. */
typedef struct attn_longformer_gradients {
  attn_tensor d_lse; /* in, optional: [B,H,T,1] f32, what reaches params.lse */
  attn_tensor d_q_global, d_k_global, d_v_global; /* out, optional: of params' tensors */
  int accumulate; /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_longformer_gradients;

/* Gradients of attn_longformer: those of attn_sdpa_backward of the rows that are not global, over the schedule, by q, k
 * and v, and of the rows of global tokens, which see all keys, by q_global, k_global and v_global; without these three
 * all rows are of the first kind. lse: what forward left in params.lse.
 *
 * Shapes: d_q as q, d_k as k, d_v as v and so on, d_o as o, each f32, f16 or bf16; an output whose data is null is not made.
 * params: as forward had them; lse says nothing here.
 * Aliasing: inputs may share memory with each other, but o and lse; outputs with nothing.
 * Empty: unless accumulate is 1 every element is written: 0 in d_q of global rows that have projections of their own and of
 *   tokens that are not valid, in d_q_global behind a list, of keys that no row sees.
 * NaN, error, determinism: as attn_sdpa_backward. Errors: as attn_longformer and attn_sdpa_backward; NULL: a gradient of a
 *   global tensor that is absent.
 * Memory: attn_longformer_backward_workspace bytes, those of attn_sdpa_backward and d_o, o and lse of global rows. Schedules
 *   are built as forward builds them.
 * Cost: that of attn_sdpa_backward over forward's pairs.
 * Source: Beltagy et al. 2020, arXiv 2004.05150; the chain rule. */
ATTN_DEF attn_status attn_longformer_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                              attn_tensor d_o, attn_tensor q, attn_tensor k,
                                              attn_tensor v, attn_tensor o, attn_tensor lse,
                                              const attn_longformer_params *params,
                                              const attn_longformer_gradients *gradients,
                                              attn_ctx *ctx);
ATTN_DEF size_t attn_longformer_backward_workspace(attn_tensor d_q, attn_tensor d_k,
                                                   attn_tensor d_v, attn_tensor d_o, attn_tensor q,
                                                   attn_tensor k, attn_tensor v, attn_tensor o,
                                                   attn_tensor lse,
                                                   const attn_longformer_params *params,
                                                   const attn_longformer_gradients *gradients,
                                                   const attn_ctx *ctx);
#endif
