/* api/calls/differential.h owns attention by the difference of two softmaxes. */

/* {0} is layer 1 of the paper with the weight that zero vectors give, 0.2.
 * What the second softmax is multiplied by, one of these:
 *   lambdas [B,H,Tq,1], f32, f16 or bf16, any stride 0: [H] has stride_batch = stride_len = 0
 *   lambda, with has_lambda = 1
 *   exp(q1 . k1) - exp(q2 . k2) + l0, vectors lambda_q1, .. [lambda_dim], which come together; null = 0
 * l0 = init, or where that is 0 (ATTN_ZERO is 0 itself) 0.8 - 0.6 exp(-0.3 (layer - 1)), layer from 1; 0 = 1.
 *   Published code counts layers from 0 and puts that number in the place of layer - 1, which is the same.
 * gain [dv], null = 1; eps, 0 = 1e-5; no_norm = 1: the difference as it is.
 * attention: scale, allowed set, terms and storage of both softmaxes, per head of o; without lse, map, ragged, q_offs,
 *   align_lengths, modify_weights and compute. */
typedef struct attn_differential_params {
  attn_tensor lambdas; /* data null = absent */
  int has_lambda;
  float lambda;
  const float *lambda_q1, *lambda_k1, *lambda_q2, *lambda_k2;
  int64_t lambda_dim;
  float init;
  int64_t layer;
  int no_norm;
  const float *gain;
  float eps;
  attn_sdpa_params attention;
} attn_differential_params;

#if ATTN_HAS_RESHAPED
/* Differential attention: what two maps have in common goes.
 *
 *   d_i = sum_j (softmax_j(x1_ij) - lambda softmax_j(x2_ij)) v_j,  x1 of heads 2h, x2 of heads 2h + 1 of q and k
 *   o_i = (1 - l0) d_i gain / sqrt(mean_c d_ic^2 + eps)
 *
 * Shapes: q [B,2H,Tq,dk], k [B,2Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]; Hk and Hv divide H; v is usually
 *   [B,Hk,Tk,2 dk]. Heads 2g and 2g + 1 of k are the maps of a group of H/Hk heads, as the code for FlashAttention
 *   has it. (Code that repeats each head of k, H/Hk of them, and then counts pairs, gives both maps of a head the
 *   same keys when that is even.) Heads of a view whose stride_head is dk are the halves of a wide head
 *   [first dk | last dk]: all of them where wide heads lie side by side in a row (attn_bthd), else one a batch entry.
 * Aliasing, storage, NaN: as attn_sdpa; lambdas and the arrays share no memory with o. NaN in lambdas reaches its rows.
 * Memory: attn_differential_workspace bytes: as attn_sdpa, and where o is not f32, or a schedule has several phases, a
 *   copy of o in f32. No Tq x Tk array.
 * Few queries: as attn_sdpa. Empty: as attn_sdpa; a row without keys, or whose difference is 0, is 0, without eps too.
 * Precision: each softmax as attn_sdpa's; a difference of nearly equal ones has their error, which the norm then
 *   raises as it does the difference. Squares are summed in double.
 * Errors: those of attn_sdpa; HEADS (an odd number of heads of q or k), SHAPE (o without half the heads of q,
 *   lambdas), NULL (some of the vectors), RANGE (layer below 0, lambda_dim, two sources of lambda, fields that must
 *   be absent), VALUE (numbers that are not finite, eps below 0), DTYPE, ALIGN, OVERLAP; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition; classes of
 *   calls as attn_sdpa. Cost: two calls of attn_sdpa with H heads, of dk and dv: two products of scores and two of
 *   values. One sum of values for both maps would need the sums of both rows first, so scores and exponentials
 *   twice: no less work.
 * Source: Ye et al. 2024, arXiv 2410.05258. LSE of a difference does not exist. */
ATTN_DEF attn_status attn_differential(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_differential_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_differential_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, const attn_differential_params *params,
                                            const attn_ctx *ctx);
#endif
