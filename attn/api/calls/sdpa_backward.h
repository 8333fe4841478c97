/* api/calls/sdpa_backward.h owns the gradients of attn_sdpa. */

/* The way back through a function of params.modify. A tile of gradients by the scores that it left, at d->score and its
 * strides, becomes one of gradients by those that it was given; before and after are these scores, natural, at the
 * same strides. It may depend on nothing but the tile, and gets a pair once or twice, from any worker; what it makes of
 * pairs that are forbidden, or that the function forbade, is ignored. */
typedef void (*attn_score_back_fn)(void *user, const attn_score_tile *d, const float *before,
                                   const float *after);

/* What a gradient of attn_sdpa has beside those of q, k and v; {0} is none of it. Each output may be absent, and wants
 * the field of params that it is the gradient of. */
typedef struct attn_sdpa_gradients {
  attn_tensor d_lse; /* in, optional: [B,H,Tq,1] f32, what reaches params.lse */
  attn_tensor
      d_map; /* in, optional: [B,H,Tq,Tk] f32, what reaches params.map, of WEIGHTS, DROPPED or SCORES */
  int accumulate;    /* 1: is added to what the outputs hold; 0: they are overwritten */
  float *d_sinks;    /* [H] */
  float *d_alibi;    /* [H], of the slopes */
  float *d_toeplitz; /* as params.toeplitz.table */
  float *d_t5;       /* [buckets, H] */
  float *d_parabola_w, *d_parabola_bias; /* [H] */
  float *d_center, *d_precision;         /* [B,H,Tq], of params.gaussian */
  /* [1 or B, 1 or H, 1 or Tq, Tk] f32: of all queries and keys, summed where it has 1; with sequences of unequal length
   * B is their number, Tq and Tk the most of one */
  attn_tensor d_bias;
  float *d_scale; /* [H], of params.scale, also where that is 0 and stands for 1/sqrt(dk) */
  attn_relative d_relative;  /* the shapes of params.relative, f32 */
  attn_tensor d_xl_table;    /* that of params.xl.table, f32 */
  float *d_xl_u, *d_xl_v;    /* [H, dk] */
  attn_tensor d_label_table; /* that of params.labels.table, f32 */
  float *d_label_bias;       /* [labels, H] */
  float *d_alpha, *d_beta;   /* [H], of params.factor */
  float *d_span;             /* as params.span.z */
  /* wanted with params.modify, whose user it gets: see attn_score_back_fn */
  attn_score_back_fn modify_back;
} attn_sdpa_gradients;

/* Gradients of attn_sdpa: of a loss L whose gradient by o is d_o.
 *
 *   P_ij  = exp(x_ij - LSE_i)                 x_ij as attn_sdpa has it, log of an adaptive span's m included, made again
 *   dP_ij = M_ij d_o_i . (v_j + relative.values[e]) + d_map_ij   M: what dropout made of 1, made again; 1 without
 *   D_i   = d_o_i . o_i - d_lse_i + sum_j P_ij d_map_ij          (of a map of DROPPED: M_ij d_map_ij, here and above)
 *   dX_ij = P_ij (dP_ij - D_i)
 *   where d_map is of SCORES: dX_ij = P_ij (M_ij d_o_i . v_j - D_i) + d_map_ij of allowed pairs, no d_map in dP and D
 *   d_q_i = s sum_j dS_ij (k_j + relative.keys[e] + labels.table[l] + xl.table[d - first])
 *   d_k_j = s sum_i dS_ij (q_i + relative.queries[e] + u_h),     d_v_j = sum_i P_ij M_ij d_o_i
 *   d_sinks_h = - sum_{b,i} exp(sink_h - LSE_i) D_i
 *
 * dS is what dX becomes on the way back through what follows the scaled product, d = j - p_i, e its clipped row: the
 * caller's function by modify_back; a soft-cap, y = c tanh(x / c), by 1 - (y / c)^2, c being a constant; a factor by
 * distance, a = relu(s r) f, by f where s r > 0. Sums over pairs, of dX where a term is added and of dS inside:
 *
 *   d_bias = dX;  d_alibi_h = - sum |d| dX;  d_toeplitz, d_t5: over the pairs that an entry serves, times s with inside
 *   g = w_h d^2 + b_h:  d_parabola_w_h = - sum sign(g) d^2 dX,  d_parabola_bias_h = - sum sign(g) dX
 *   d_center_i = 2 precision_i sum_j (j - center_i) dX,  d_precision_i = - sum_j (j - center_i)^2 dX
 *   d_span: sum dX / (m R) where 0 < m < 1, R the length of the ramp
 *   d_alpha_h = sum dX a |d| sigma(beta - alpha |d|),  d_beta_h = sum dX a (sigma(beta) - sigma(beta - alpha |d|))
 *   d_relative.keys[e], d_label_table[l] = s sum dS q_i,  d_relative.queries[e] = s sum dS k_j,  d_relative.values[e] =
 *   sum P M d_o_i,  d_label_bias[l,h] = s sum dS,  d_xl_table[d - first] = s sum dS (q_i + v_h),  d_xl_u_h = s sum dS k_j,
 *   d_xl_v_h = s sum dS xl.table[d - first];  of tables that heads share the sum over heads, of all that over the batch
 *   d_scale_h = sum dS r, r the product without its scale, and sum dX table of a toeplitz table inside: for one scale the
 *   sum over heads is its gradient
 *
 * Shapes: d_q as q, d_k as k, d_v as v (f32, f16 or bf16, whatever q, k and v are), d_o as o; o, lse [B,H,Tq,1] f32:
 *   what forward left. An output whose data is null is not made. Where k or v has stride 0 over batch or heads, d_k
 *   or d_v may have 1 there, the sum (then f32); with their extent each share is by itself. Heads of k and v that
 *   query heads share get the sum.
 * params: as forward had them; their lse, map, compute and one_order say nothing here, map_stage what d_map is by.
 *   modify wants modify_back (NULL); modify_weights must be absent (RANGE), d_map of sequences of unequal length too, and
 *   that of SCORES with a span. Of quantised k and v the gradients are those of the rows that they stand for.
 * Aliasing: inputs may share memory with each other; outputs with nothing, nor their rows with one another.
 * Empty: unless accumulate is 1 every element of an output is written: 0 where nothing is read, as with Tq = 0 or Tk
 *   = 0, in rows of q that see no key (LSE -inf) or begin at q_len, in d_bias where a bias is -inf, of k and v that
 *   no row sees, and of tensors end to end that no sequence has.
 * NaN: what forward does not read is not read here: keys and values that are forbidden, and q, d_o and d_lse of rows
 *   that are empty. A NaN in d_o or q of a row reaches its d_q, d_k and d_v of the keys that it sees, and d_sinks of
 *   its head; in k or v of a key the d_q of the rows that see it, and what these reach; in a row of a table the pairs
 *   that read it. A NaN in d_map counts where its pair is allowed.
 * Memory: attn_sdpa_backward_workspace bytes, O(tile * (dk + dv)) a worker, and of one head of keys a worker dk + dv
 *   numbers in f32 a key, twice that where d_k and d_v are not f32 or accumulate is 1; dk a query with a schedule of
 *   several phases, and two a query and key for gradients by distance. Tables that pairs read a row of take 264 bytes a
 *   distance or label, at most one a query and key, and their gradients 8 a number; a map 8 a query; other terms at most
 *   160 KB. No Tq x Tk array.
 * Error: with r_i = max_j s |q_i| |k_j| a row of d_q is within (2e-6 + 2^-23 r_i) s sum_j P_ij (M_ij |d_o_i| |v_j|
 *   + |D_i|) |k_j|, those of d_k and d_v likewise with sums over i. o should be f32: D from a 16-bit o costs d_q and
 *   d_k a relative 1e-3 (bf16) or 7e-5 (f16). 16-bit outputs are rounded once.
 * Errors: as attn_sdpa, VALUE for d_scale of a scale of ATTN_ZERO; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition, and
 *   whichever outputs are asked for. d_q sums keys in the order of attn_sdpa; d_k and d_v sum queries ascending, 64
 *   from 0 and runs of 512, heads of a group ascending; sums over pairs in double, heads, batch and rows ascending.
 * Workers: each takes a batch entry and the heads that share keys and values; of terms a head, or where heads share
 *   an output all of them; one does all where d_k or d_v is a sum over a stride of 0.
 * Cost: 2 (3 dk + 2 dv) flops a pair over the tiles that forward computes, lists of a schedule as runs of all rows
 *   of a tile; 2 dk more with a soft-cap below other terms or a factor; 2 (dk + dv) more for the gradients of terms
 *   together, and 2 dk more with d_map but that of SCORES, twice where both are asked for. A table adds some 3 dk for
 *   d_q or d_k and as much for its own gradient, less where most keys lie beyond its clipping distance.
 * Source: Dao et al. 2022, arXiv 2205.14135; Dao 2023, arXiv 2307.08691; Rabe and Staats 2021, arXiv 2112.05682; the
 *   chain rule on the terms of api/calls/score.h. */
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
