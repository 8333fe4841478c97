/* api/families/training/edges_backward.h owns the gradients of attn_edges. */

#if ATTN_HAS_EDGES_AND_TRAINING
/* What a gradient of attn_edges has beside those of q, k and v; {0} is none of it. */
typedef struct attn_edges_gradients {
  attn_tensor d_lse;      /* in, optional: [B,H,Tq,1] f32, what reaches params.lse */
  const float *d_weights; /* in, optional: [B,H,edges], what reaches params.weights */
  float *d_bias;          /* out, optional: laid out as params.bias; wants that */
  int accumulate;         /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_edges_gradients;

/* Gradients of attn_edges: of a loss L whose gradient by o is d_o. Over the edges e = (i, j) that forward reads
 *
 *   P_e = exp(s q_i . k_j + bias_e - LSE_i),  dP_e = M_e d_o_i . v_j + d_weights_e,  D_i = d_o_i . o_i - d_lse_i +
 *   sum_e P_e d_weights_e,  dX_e = P_e (dP_e - D_i),  M: what dropout made of 1
 *   d_q_i = s sum_e dX_e k_j,  d_k_j = s sum_e dX_e q_i,  d_v_j = sum_e P_e M_e d_o_i,  d_bias_e = dX_e, summed over heads
 *   and batch entries that share a set
 *
 * Shapes: as attn_sdpa_backward has them; k and v of a float type (DTYPE).
 * params: as forward had them; lse and weights say nothing here.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written: 0 where no edge is, in rows without a key that they
 *   may see, and of entries of d_bias that no row has or whose bias is -inf.
 * NaN: as attn_sdpa_backward.
 * Memory: attn_edges_backward_workspace bytes: of a head of keys a worker dk + dv numbers in f32 a key, twice that where
 *   d_k and d_v are not f32 or accumulate is 1, and some rows.
 * Error: as attn_sdpa_backward. Errors: as attn_edges and attn_sdpa_backward; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition, and whichever
 *   outputs are asked for. d_q sums a row's edges as they lie, 128 from 0; d_k and d_v rows ascending, 512 from 0, heads of
 *   a group ascending; d_bias batch entries, then heads.
 * Workers: each takes a batch entry and the heads that share keys and values, of d_bias a set.
 * Cost: 2 (3 dk + 2 dv) flops an edge and reading and writing of four rows; 2 (dk + dv) more for d_bias.
 * Source: Child et al. 2019, arXiv 1904.10509; Dao et al. 2022, arXiv 2205.14135; the chain rule. */
ATTN_DEF attn_status attn_edges_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                         attn_tensor d_o, attn_tensor q, attn_tensor k,
                                         attn_tensor v, attn_tensor o, attn_tensor lse,
                                         const attn_edges_params *params,
                                         const attn_edges_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_edges_backward_workspace(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                              attn_tensor d_o, attn_tensor q, attn_tensor k,
                                              attn_tensor v, attn_tensor o, attn_tensor lse,
                                              const attn_edges_params *params,
                                              const attn_edges_gradients *gradients,
                                              const attn_ctx *ctx);
#endif
