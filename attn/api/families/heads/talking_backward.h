/* api/families/heads/talking_backward.h owns the gradients of attn_talking. */

#if ATTN_HAS_HEADS_AND_TRAINING
/* What a gradient of attn_talking has beside those of q, k and v; {0} is none of it. */
typedef struct attn_talking_gradients {
  attn_tensor d_w_l, d_w_w; /* out, optional: shapes of params.w_l and w_w */
  attn_tensor d_lse;        /* in, optional: f32 [B,H,Tq,1], what reaches params.attention.lse */
  int accumulate;           /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_talking_gradients;

/* Gradients of attn_talking: of a loss whose gradient by o is d_o.
 *
 *   dU_vij = d_o_vi . v_vj,   dW_hij = sum_v dU_vij P_w[h,v],   D_hi = sum_j W_hij dW_hij
 *   dL_hij = W_hij (dW_hij - D_hi + d_lse_hi),   dJ_kij = sum_h dL_hij P_l[k,h]
 *   d_q_ki = s sum_j dJ_kij k_kj,   d_k_kj = s sum_i dJ_kij q_ki,   d_v_vj = sum_i U_vij d_o_vi
 *   d_P_l[k,h] = sum_ij J_kij dL_hij,   d_P_w[h,v] = sum_ij W_hij dU_vij
 *
 * Shapes: d_o [B,hv,Tq,dv]; d_q as q, d_k as k, d_v as v, d_w_l and d_w_w as w_l and w_w, transposed where these are;
 *   each f32, f16 or bf16, or absent. Key and value heads of a group get the sum; where an input has a stride of 0 over the
 *   batch, heads or rows its gradient may have the full extent or 1, the sum.
 * params: as forward had them. attention.lse is in: what forward left, or absent: made again, to the same bits. Terms of
 *   scores are taken, but get no gradients.
 * Aliasing: inputs may share memory with each other; outputs with nothing.
 * Empty: unless accumulate is 1 every element is written. A row that a softmax head leaves empty sends nothing through it;
 *   rows beyond q_len are not read, nor are d_o's there; their d_q is 0, as is what keys beyond kv_len get.
 * NaN: in d_o or a query reaches the keys and values that some softmax head lets its row see, in a key or value the
 *   queries that see it; what all softmax heads forbid never does.
 * Memory: attn_talking_backward_workspace bytes: no array of pairs; H + 2 hk H / 64 + 2 H hv / 64 floats a query beside the
 *   LSE; per worker blocks of 128 x 64 pairs of hk + 2 H + hv heads, and a block's rows of d_k and d_v three times.
 * Error: within 2e-5 of sums of magnitudes at T = 4096.
 * Errors: those of attn_talking; NULL: d_o; SHAPE: a gradient's; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for.
 * Workers: tiles of 64 queries, then blocks of 128 keys.
 * Cost: 2 (6 hk dk + 4 hv dv) flops a pair (with attention.lse 2 (5 hk dk + 4 hv dv)), where by parts it would be H times
 *   attn_sdpa_backward's 2 (3 hk dk + 2 hv dv), and 2 (7 hk H + 5 H hv) of mixing and the
 *   matrices' shares.
 * Source: Shazeer et al. 2020, arXiv 2003.02436; the chain rule. */
ATTN_DEF attn_status attn_talking_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                           attn_tensor d_o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, const attn_talking_params *params,
                                           const attn_talking_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_talking_backward_workspace(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, const attn_talking_params *params,
                                                const attn_talking_gradients *gradients,
                                                const attn_ctx *ctx);
#endif
