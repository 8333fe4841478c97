/* api/families/training/relu_backward.h owns the gradients of attn_relu. */

#if ATTN_HAS_RELU_AND_TRAINING
/* What a gradient of attn_relu has beside those of q, k and v; {0} is none of it. */
typedef struct attn_relu_gradients {
  attn_tensor d_sum;      /* in, optional: [B,H,Tq,1] f32, what reaches params.sum */
  float *d_gain, *d_gate; /* out, optional: [H dv], of RELA */
  attn_sdpa_gradients
      attention; /* of the terms of params.attention, and accumulate; without d_lse and d_map */
} attn_relu_gradients;

/* Gradients of attn_relu: of a loss L whose gradient by o is d_o.
 *
 *   r_ij = relu(x_ij)^power,  w_ij = c_i r_ij,  dw_ij = d_o_i . v_j + d_sum_i       x, c and power as attn_relu has them
 *   dX_ij = c_i (dw_ij - [NORM: sum_l w_il dw_il]) power relu(x_ij)^(power - 1),  0 where x_ij <= 0
 *   d_v_j = sum_i w_ij d_o_i;  d_q, d_k and the gradients of terms from dX as in attn_sdpa_backward; s = 1/n_i for GAU
 *   without a scale
 *   RELA, t = 1 / sqrt(mean o^2 + eps), u = o t, g = sigmoid(gate o), o being RAW's:  d_gain = sum d_o u g,  d_gate = sum
 *   d_o gain u g (1 - g) o, over batch and rows;  h = d_o gain g,  RAW's d_o = t (h - u mean(h u)) + h u (1 - g) gate
 *
 * n_i, alpha, gamma and eps are constants, c_i of NORM is not; c of a row whose sum is 0 counts as 0, and so does t where
 *   it is infinite.
 * Shapes: as attn_sdpa_backward has them; d_o as o. No output of forward is wanted: n_i, sums and RELA's o are made again.
 * params: as forward had them; sum says nothing here. modify wants gradients.attention.modify_back.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written: 0 where nothing is read.
 * NaN: what forward does not read is not read here, and d_o of rows that begin at q_len is not. A NaN in q, k, v or d_o
 *   reaches what attn_sdpa_backward says, but one in v_j or d_o_i neither d_q_i nor d_k_j of a pair with x_ij <= 0, NORM
 *   apart. RELA reads d_o of every row before q_len.
 * Memory: attn_relu_backward_workspace bytes: as attn_sdpa_backward, 24 a query of a worker where rows are counted or
 *   summed first; RELA 2 H dv + 2 numbers a query more.
 * Error: that of forward's weights, which are not bounded: a row of d_q is within 2e-6 + 2^-23 r_i (as there) of its sums
 *   of magnitudes, pairs apart whose score is within its rounding of 0, where what is multiplied by 0 or 1 is a choice.
 * Errors: as attn_relu and attn_sdpa_backward; RANGE: d_lse or d_map, attention.d_scale of GAU without a scale; outputs
 *   untouched.
 * Determinism, workers: as attn_sdpa_backward; sums of gain and gate in double, a head at a time.
 * Cost: as attn_sdpa_backward; 2 dk flops a pair more for LEN, VAR and GAU without a scale (not with by_keys), 2 (dk + dv)
 *   for NORM, forward once more for RELA.
 * Source: as attn_relu; the chain rule. */
ATTN_DEF attn_status attn_relu_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                        attn_tensor d_o, attn_tensor q, attn_tensor k,
                                        attn_tensor v, const attn_relu_params *params,
                                        const attn_relu_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_relu_backward_workspace(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                             attn_tensor d_o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const attn_relu_params *params,
                                             const attn_relu_gradients *gradients,
                                             const attn_ctx *ctx);
#endif
