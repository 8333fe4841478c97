/* api/families/training/multihead_backward.h owns the gradients of attn_multihead. */

#if ATTN_HAS_MULTIHEAD_AND_TRAINING
/* Gradients of a norm of queries and keys: the shapes of its arrays, which they want. */
typedef struct attn_qk_norm_gradients {
  float *d_q_gain, *d_k_gain, *d_temperature; /* out, optional */
} attn_qk_norm_gradients;

/* What a gradient of attn_multihead has beside that of x; {0} is none of it. */
typedef struct attn_multihead_gradients {
  attn_tensor d_x_k, d_x_v; /* out, optional: want x_k, x_v, have their shapes */
  attn_tensor d_w_q, d_w_k, d_w_v,
      d_w_o; /* out, optional: the shapes of weights as they lie in memory */
  attn_tensor d_b_q, d_b_k, d_b_v, d_b_o;
  attn_tensor d_each; /* in, optional: [B,H,Tq,dv], what reaches params.each */
  /* in: d_lse, d_map, modify_back; out: those of sinks and of terms; its accumulate is 0 */
  attn_sdpa_gradients attention;
  int accumulate; /* 1: is added to what all outputs hold; 0: they are overwritten */
  int kept; /* 1: params.each and params.attention.lse, both f32, hold what forward left; 0: it is made again */
  attn_tensor d_bias_k, d_bias_v; /* out, optional: want bias_k and bias_v, have their shapes */
  attn_qk_norm_gradients norm;    /* of params.rope->norm */
} attn_multihead_gradients;

/* Gradients of attn_multihead: of a loss whose gradient by y is d_y.
 *
 *   d_O = heads of d_y w_o^T (+ d_each);  d_q, d_k, d_v: attn_sdpa_backward, turned back where rope turned, and through
 *     rope->norm as attn_rms_norm_backward and attn_layer_norm_backward have it, L2 as RMS with factors
 *   bias_k, bias_v: a key of weight P_i = exp(q_i . bias_k scale - LSE_i); d_bias_v = sum P_i d_O_i,
 *     d_bias_k = scale sum dX_i q_i, dX_i = P_i (d_O_i . bias_v - d_O_i . O_i + d_LSE_i)
 *   d_x = d_q w_q^T,  d_x_k = d_k w_k^T,  d_x_v = d_v w_v^T: what is absent sends its share to the one it stood for
 *   d_w_q = x^T d_q,  d_w_k = x_k^T d_k,  d_w_v = x_v^T d_v,  d_w_o = O^T d_y;  d_b the sums of d_q, d_k, d_v, d_y
 *
 * q, k and v are made again, O and the LSE unless they were kept: the same bits.
 * Shapes: d_y [B,1,Tq,dmo] as y; d_x as x, d_x_k as x_k, d_x_v as x_v; each f32, f16 or bf16, of any strides. An output
 *   whose data is null is not made.
 * params: as forward had them. attention.modify_weights must be absent, with bias_k d_map too (RANGE); w_o
 *   there (NULL), weights of a float type (DTYPE). compute and attention.compute say nothing of products here, which are
 *   f32; what is made again has forward's. attention.map is not read, each and lse only where kept is 1.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written, 0 where nothing is read.
 * NaN: as attn_sdpa_backward and attn_gemm_backward have it.
 * Memory: attn_multihead_backward_workspace bytes: q, k, v and their gradients, O and its gradient in f32, with a norm q
 *   and k twice more, with bias_k one more row of q a query, that of
 *   attn_sdpa_backward, attn_gemm and attn_gemm_backward for one step, and in f32 what is learned where it is not, d_x where
 *   it is not or is added to, and once more where several projections read it. No Tq x Tk array.
 * Errors: those of attn_multihead, attn_sdpa_backward and attn_gemm_backward; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, whichever outputs are asked for, and
 *   whatever was kept. Sums over rows as attn_gemm_backward has them; d_x adds the shares of q, k and v in that order.
 * Error: as attn_gemm_backward and attn_sdpa_backward, one after the other.
 * Cost: 2.75 times attn_multihead's flops beside attention for all outputs, 1.75 times without w's; attn_sdpa_backward,
 *   and attn_sdpa unless kept.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; Dao et al. 2022, arXiv 2205.14135; the chain rule. */
ATTN_DEF attn_status attn_multihead_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                             attn_tensor x_k, attn_tensor x_v,
                                             const attn_multihead_params *params,
                                             const attn_multihead_gradients *gradients,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_multihead_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                  attn_tensor x_k, attn_tensor x_v,
                                                  const attn_multihead_params *params,
                                                  const attn_multihead_gradients *gradients,
                                                  const attn_ctx *ctx);
#endif
