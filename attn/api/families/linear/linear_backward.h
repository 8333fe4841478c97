/* api/families/linear/linear_backward.h owns the gradients of attn_linear. */

#if ATTN_HAS_LINEAR_AND_TRAINING
/* What a gradient of attn_linear has beside those of q, k and v; {0} is none of it. */
typedef struct attn_linear_gradients {
  /* out, optional: as params.rate; with rate_head [1, Hkv, 1, 1], with rate_const [1, 1, 1, 1] */
  attn_tensor d_rate;
  attn_tensor d_s, d_z;         /* out, optional: of the state before the call */
  attn_tensor d_s_end, d_z_end; /* in, optional: of the one behind it; absent = 0 */
  int accumulate;               /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_linear_gradients;

/* Gradients of attn_linear: of a loss whose gradient by o is d_o, with the params of forward. A row p = phi(q_i) reads
 * n = p S, d = p . z, o = out_scale n / den:
 *
 *   d_n = out_scale d_o / den;  d_d = -(d_n . n) / den (0 of DEN_NONE, and where CLAMP holds den at eps)
 *   d_p = d_n S^T + d_d z, and the gradients of S and z it reads, dS and dz, get p^T d_n and d_d p
 *
 * and keys in reverse, S, z those before key t, p = phi(k_t), a and b its rate, dS, dz those behind it:
 *
 *   SUM, DECAY  d_v = p dS, d_p = dS v + dz;  d_a = <dS, S> + dz . z, then dS, dz times a
 *   GATED       the same times 1 - a;  d_a = <dS, S - p^T v> + dz . (z - p)
 *   DELTA       f = v - p S, y = p dS:  d_v = b y, d_b = y . f, d_p = b dS f - b S y + dz, then dS -= b p^T y
 *   DELTA_ATTN  the same with S / kappa, and kappa's own gradient; nothing of it where nothing is read
 *
 * then through the feature map as attn_features_backward: its stabiliser is a constant, which is exact where eps is 0. No
 * rate is divided by: a rate of 0 has its exact gradient.
 * Shapes: d_o [B,H,Tq,dv] as o; d_q, d_k, d_v as q, k, v, or 1 where those have a stride of 0: the sum; each f32, f16 or
 *   bf16 and of any strides. An output whose data is null is not made.
 * params: as forward had them; state is what it was before forward, a copy that is kept for this, and stays.
 *   gradients.d_s, d_s_end [B, state heads, m, dv] and d_z, d_z_end [B, state heads, 1, m], shaped as attn_linear_view has
 *   S and z, are those of the states, in their own units: what one call gives d_s and d_z for, the call before takes as
 *   d_s_end and d_z_end, and both have the gradients of one call.
 * Lengths: rows from q_len and keys from kv_len on have 0, and nothing there is read.
 * Aliasing: outputs share memory with nothing, nor their rows with one another; inputs may with each other.
 * Empty: rows that forward makes 0 give nothing. Unless accumulate is 1 every element of an output is written.
 * NaN and infinity: of d_o and q of a row they reach d_q of that row and what it sees; of a key the rows that see it, and
 *   the keys those see. A chunk that has some goes row by row and key by key, 60 times slower.
 * Memory: attn_linear_backward_workspace bytes: w twice, and a worker has 20 m dv' + 450 (m + dv') + 200 dk + 25000
 *   numbers and m dv' for each 1024 keys, dv' = dv + 1 in whole 16s; the outputs once more in f32 where they are not f32,
 *   or sums.
 * Errors: those of attn_linear; NULL for d_rate without rates, for gradients of a state without one and a USER map without
 *   `back`, SHAPE of gradients; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any workers and batch, and whichever outputs are asked for;
 *   chunk has no part in it. No bit of d_q of a causal row depends on a later token. Batch entries and kv heads are
 *   divided among workers, heads that share one are not.
 * Error: about 1e-5 of the sums of magnitudes at T = 4096.
 * Cost: about 14 T m dv' + 200 T (m + dv') flops, DELTA a third more, and the features three times.
 * Source: Katharopoulos et al. 2020, arXiv 2006.16236; Schlag et al. 2021, arXiv 2102.11174; the chain rule. */
ATTN_DEF attn_status attn_linear_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                          attn_tensor d_o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_linear_params *params,
                                          const attn_linear_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_linear_backward_workspace(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                               attn_tensor d_o, attn_tensor q, attn_tensor k,
                                               attn_tensor v, const attn_linear_params *params,
                                               const attn_linear_gradients *gradients,
                                               const attn_ctx *ctx);
#endif
