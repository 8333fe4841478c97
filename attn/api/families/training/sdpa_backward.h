/* api/families/training/sdpa_backward.h owns the gradients of attn_sdpa. */

/* What a gradient of attn_sdpa has beside those of q, k and v; {0} is none of it. */
typedef struct attn_sdpa_gradients {
  attn_tensor d_lse; /* in, optional: [B,H,Tq,1] f32, what reaches params.lse */
  float *d_sinks;    /* out, optional: [H] that of params.sinks */
  int accumulate;    /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_sdpa_gradients;

/* Gradients of attn_sdpa: of a loss L whose gradient by o is d_o.
 *
 *   P_ij  = exp(x_ij - LSE_i)                 x_ij as attn_sdpa has it, made again
 *   D_i   = d_o_i . o_i - d_lse_i
 *   dX_ij = P_ij (d_o_i . v_j - D_i)
 *   d_q_i = s sum_j dX_ij k_j,  d_k_j = s sum_i dX_ij q_i,  d_v_j = sum_i P_ij d_o_i
 *   d_sinks_h = - sum_{b,i} exp(sink_h - LSE_i) D_i
 *
 * Shapes: d_q as q, d_k as k, d_v as v (f32, f16 or bf16, whatever q, k and v are), d_o as o; o, lse [B,H,Tq,1] f32: what
 *   forward left. An output whose data is null is not made. Heads of k and v that query heads share get the sum.
 * params: as forward had them; their lse, map, compute and one_order say nothing here. Additive terms (mask, bias, alibi,
 *   toeplitz without inside, t5, parabola, gaussian), sinks, softmax_one, windows, lengths, sequences of unequal length and
 *   schedules are those of forward and have no gradient here but sinks; relative, xl, labels, factor, softcap, span,
 *   modify and modify_weights must be absent (RANGE). Of quantised k and v the gradients are those of the rows that
 *   they stand for.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written: 0 where nothing is read, as with Tq = 0 or Tk = 0,
 *   in rows of q that see no key (LSE -inf) or begin at q_len, of k and v that no row sees, and of tensors end to
 *   end that no sequence has.
 * NaN: what forward does not read is not read here: keys and values that are forbidden, and q, d_o and d_lse of rows that are
 *   empty. A NaN in d_o or q of a row reaches its d_q, d_k and d_v of the keys that it sees, and d_sinks of its head; in k
 *   or v of a key the d_q of the rows that see it, and what these reach.
 * Memory: attn_sdpa_backward_workspace bytes, O(tile * (dk + dv)) a worker, and of one head of keys a worker dk + dv numbers
 *   in f32 a key, twice that where d_k and d_v are not f32 or accumulate is 1; dk a query with a schedule of several
 *   phases. No Tq x Tk array.
 * Error: with r_i = max_j s |q_i| |k_j| a row of d_q is within (2e-6 + 2^-23 r_i) s sum_j P_ij (|d_o_i| |v_j| +
 *   |D_i|) |k_j|, those of d_k and d_v likewise with sums over i. o should be f32: D from a 16-bit o costs d_q and
 *   d_k a relative 1e-3 (bf16) or 7e-5 (f16). 16-bit outputs are rounded once.
 * Errors: as attn_sdpa; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition, and whichever
 *   outputs are asked for. d_q sums keys in the order of attn_sdpa; d_k and d_v sum queries ascending, in runs of 512,
 *   heads of a group ascending; d_sinks in double, batch and rows ascending.
 * Workers: each takes a batch entry and the heads that share keys and values.
 * Cost: 2 (3 dk + 2 dv) flops a pair over the tiles that forward computes; lists of a schedule as runs of all rows of a tile.
 * Source: Dao et al. 2022, arXiv 2205.14135; Dao 2023, arXiv 2307.08691; Rabe and Staats 2021, arXiv 2112.05682. */
ATTN_DEF attn_status attn_sdpa_backward(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                        attn_tensor d_o, attn_tensor q, attn_tensor k,
                                        attn_tensor v, attn_tensor o, attn_tensor lse,
                                        const attn_sdpa_params *params,
                                        const attn_sdpa_gradients *gradients, attn_ctx *ctx);
ATTN_DEF size_t attn_sdpa_backward_workspace(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                             attn_tensor d_o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, attn_tensor o, attn_tensor lse,
                                             const attn_sdpa_params *params,
                                             const attn_sdpa_gradients *gradients,
                                             const attn_ctx *ctx);
