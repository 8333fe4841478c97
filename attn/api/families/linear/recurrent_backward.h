/* api/families/linear/recurrent_backward.h owns the gradients of attn_recurrent. */

#if ATTN_HAS_LINEAR_AND_TRAINING
/* What a gradient of attn_recurrent has beside those of q, k and v; {0} is none of it. Each output may be absent, and
 * wants what it is the gradient of in params. */
typedef struct attn_recurrent_gradients {
  attn_tensor d_final_state;   /* in, optional: f32, the shape of params.final_state */
  attn_tensor d_initial_state; /* f32, that of params.initial_state */
  attn_tensor d_decay;         /* of params.decay: of the number that stands there, log or factor */
  attn_tensor d_a, d_b, d_beta, d_bonus, d_dt, d_gate, d_lambda;
  attn_tensor d_initial_n, d_initial_m; /* MLSTM: f32, the shapes of params.initial_n and _m */
  attn_tensor d_final_n, d_final_m;     /* MLSTM: in, optional: f32, the same shapes */
  float *d_a_log, *d_dt_bias, *d_skip;  /* [H] */
  int accumulate; /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_recurrent_gradients;

/* Gradients of attn_recurrent: of a loss L whose gradient by o is d_o. Of every rule the token is
 *
 *   S_t = diag(w) S + b (a^T S) + k v^T,  o_t = s q^T S_t
 *
 * (delta rules: a = w o k, b = -beta k, v times beta; RWKV7: b = r o e, a = -r; MAMBA2: v times D; RWKV6: o of the state
 *   before the token, and its own key)
 * and with D = the gradient by S_t, s q d_o^T of this token included:
 *
 *   d_q = s S_t d_o,  d_k = D v,  d_v = D^T k,  d_b = D (S^T a),  d_a = S (D^T b),  d_w = sum over columns of D o S,
 *   D of the token before = diag(w) D + a (D^T b)^T
 *
 * which go on to what the caller gave: d_decay = w d_w of a log, d_w of a factor, summed over the channels and tokens
 *   that share it; HGRN2's key is 1 - w; l2norm_qk by its quotient; MAMBA2: dD = d_v . v - e^a_log (sum_c w d_w), through
 *   its softplus, 0 where a bound holds. Chains are cut at resets, and where a token leaves nothing of the state: there
 *   d_decay is 0, also of a factor.
 *
 * MLSTM: n is one more column of S, whose value is 1, and values are times the gate i = e^(gate - m). o = x / y, y =
 *   max(|q . n|, e^-m) + eps, sends d_x = d_o / y, and -(d_o . o) / y to |q . n| where that is the maximum, also where both
 *   are equal. m = max(log w + m, gate) matters to eps and to the states alone; what reaches it goes to the greater, log w
 *   of equals.
 *
 * lambda: o is a sum over levels of lambda q^T S^l, so each level goes back by itself, its q times lambda, and d_lambda =
 *   s q . (S^l d_o). A token writes to level l in every other block of 2^(l-1) tokens, those of the next read it. Of an
 *   initial state the levels of the token before the call get gradients, others 0; of the final one those of the last token
 *   count.
 *
 * Shapes: d_o [B,H,T,dv], H the largest head count; d_q as q, d_k as k, d_v as v and so on, f32, f16 or bf16, or 1 where what
 *   it is of has a stride of 0 over the batch, heads or rows: the sum. Heads that are shared get the sum.
 * params: as forward had them; final_state says nothing here, chunk neither.
 * Aliasing: inputs may share memory with each other; outputs with nothing.
 * Empty: unless accumulate is 1 every element is written: 0 in rows beyond len. A sequence without tokens hands
 *   d_final_state on.
 * NaN: reaches what its token reads and writes, and by the state d_k, d_v and rates of tokens before it, until a cut.
 * Memory: attn_recurrent_backward_workspace bytes: a worker has T / 64 + 3 states of dk dv (with lambda no more), the rows
 *   of a chunk of 64 and 270 KB of states; outputs that are not f32, are sums or are added to once more in f32.
 * Error: within 2e-5 of sums of magnitudes at T = 4096.
 * Errors: as attn_recurrent, NULL: a gradient of what is absent; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for.
 * Workers: each takes a sequence and the heads that share what they read; of d_bonus, d_a_log, d_dt_bias, d_skip and what
 *   batch entries share all sequences.
 * Cost: token by token, some 2 (12 dk dv) flops, with a and b 2 (22 dk dv): twice there, once back; with
 *   lambda as often as the last token has levels, floor(log2(T)) + 2.
 * Source: Yang et al. 2023, arXiv 2312.06635; Yang et al. 2024, arXiv 2406.06484; the chain rule. */
ATTN_DEF attn_status attn_recurrent_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                             attn_tensor d_o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const attn_recurrent_params *params,
                                             const attn_recurrent_gradients *gradients,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_recurrent_backward_workspace(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                  attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                  attn_tensor v,
                                                  const attn_recurrent_params *params,
                                                  const attn_recurrent_gradients *gradients,
                                                  const attn_ctx *ctx);
#endif
