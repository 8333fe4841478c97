/* api/families/training/sdpa_backward.h owns the gradients of attn_sdpa. */

/* What a gradient of attn_sdpa has beside those of q, k and v; {0} is none of it. Each output may be absent, and wants
 * the field of params that it is the gradient of. */
typedef struct attn_sdpa_gradients {
  attn_tensor d_lse; /* in, optional: [B,H,Tq,1] f32, what reaches params.lse */
  int accumulate;    /* 1: is added to what the outputs hold; 0: they are overwritten */
  float *d_sinks;    /* [H] */
  float *d_alibi;    /* [H], of the slopes */
  float *d_toeplitz; /* as params.toeplitz.table */
  float *d_t5;       /* [buckets, H] */
  float *d_parabola_w, *d_parabola_bias; /* [H] */
  float *d_center, *d_precision;         /* [B,H,Tq], of params.gaussian */
  /* [1 or B, 1 or H, Tq, Tk] f32: of all queries and keys, summed where it has 1; with sequences of unequal length B is
   * their number, Tq and Tk the most of one */
  attn_tensor d_bias;
} attn_sdpa_gradients;

/* Gradients of attn_sdpa: of a loss L whose gradient by o is d_o.
 *
 *   P_ij  = exp(x_ij - LSE_i)                 x_ij as attn_sdpa has it, made again
 *   D_i   = d_o_i . o_i - d_lse_i
 *   dX_ij = P_ij (M_ij d_o_i . v_j - D_i)     M: what dropout made of 1, made again; 1 without
 *   d_q_i = s sum_j dX_ij k_j,  d_k_j = s sum_i dX_ij q_i,  d_v_j = sum_i P_ij M_ij d_o_i
 *   d_sinks_h = - sum_{b,i} exp(sink_h - LSE_i) D_i
 *
 * Of terms of the score, d = j - p_i: d_bias = dX; d_alibi_h = - sum |d| dX; d_toeplitz and d_t5 the sums of dX over
 * the pairs that an entry serves (times s with inside); with g = w_h d^2 + b_h d_parabola_w_h = - sum sign(g) d^2 dX
 * and d_parabola_bias_h = - sum sign(g) dX; d_center_i = 2 precision_i sum_j (j - center_i) dX, d_precision_i =
 * - sum_j (j - center_i)^2 dX. A soft-cap, y = c tanh(x / c), multiplies what passes it by 1 - (y / c)^2; c is a
 * constant.
 *
 * Shapes: d_q as q, d_k as k, d_v as v (f32, f16 or bf16, whatever q, k and v are), d_o as o; o, lse [B,H,Tq,1] f32:
 *   what forward left. An output whose data is null is not made. Where k or v has stride 0 over batch or heads, d_k
 *   or d_v may have 1 there, the sum (then f32); with their extent each share is by itself. Heads of k and v that
 *   query heads share get the sum.
 * params: as forward had them; their lse, map, compute and one_order say nothing here. relative, xl, labels, factor,
 *   span, modify and modify_weights must be absent (RANGE). Of quantised k and v the gradients are those of the rows
 *   that they stand for.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written: 0 where nothing is read, as with Tq = 0 or Tk
 *   = 0, in rows of q that see no key (LSE -inf) or begin at q_len, in d_bias where a bias is -inf, of k and v that
 *   no row sees, and of tensors end to end that no sequence has.
 * NaN: what forward does not read is not read here: keys and values that are forbidden, and q, d_o and d_lse of rows
 *   that are empty. A NaN in d_o or q of a row reaches its d_q, d_k and d_v of the keys that it sees, and d_sinks of
 *   its head; in k or v of a key the d_q of the rows that see it, and what these reach.
 * Memory: attn_sdpa_backward_workspace bytes, O(tile * (dk + dv)) a worker, and of one head of keys a worker dk + dv
 *   numbers in f32 a key, twice that where d_k and d_v are not f32 or accumulate is 1; dk a query with a schedule of
 *   several phases, and two a query and key for gradients by distance. No Tq x Tk array.
 * Error: with r_i = max_j s |q_i| |k_j| a row of d_q is within (2e-6 + 2^-23 r_i) s sum_j P_ij (M_ij |d_o_i| |v_j|
 *   + |D_i|) |k_j|, those of d_k and d_v likewise with sums over i. o should be f32: D from a 16-bit o costs d_q and
 *   d_k a relative 1e-3 (bf16) or 7e-5 (f16). 16-bit outputs are rounded once.
 * Errors: as attn_sdpa; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition, and
 *   whichever outputs are asked for. d_q sums keys in the order of attn_sdpa; d_k and d_v sum queries ascending, 64
 *   from 0 and runs of 512, heads of a group ascending; sums over pairs in double, heads, batch and rows ascending.
 * Workers: each takes a batch entry and the heads that share keys and values; of terms a head, or where heads share
 *   an output all of them; one does all where d_k or d_v is a sum over a stride of 0.
 * Cost: 2 (3 dk + 2 dv) flops a pair over the tiles that forward computes, lists of a schedule as runs of all rows
 *   of a tile; 2 dk more with a soft-cap below other terms; 2 (dk + dv) more for the gradients of terms together.
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
