/* api/calls/relu.h owns attention with rectified weights (A4). */

/* How attn_relu turns scores into weights; x_ij = score, n_i = the row's allowed keys (at least 1),
 * or Tk with by_keys. */
typedef enum attn_relu_kind {
  ATTN_RELU_RAW = 0, /* relu(x)^power */
  ATTN_RELU_LEN,     /* n_i^-alpha relu(x)^power; Wortsman et al. 2023, arXiv 2309.08586 */
  ATTN_RELU_VAR,     /* relu(x) / (gamma sqrt(n_i/2)); Shen et al. 2023, arXiv 2302.06461 */
  ATTN_RELU_GAU,     /* relu(x)^2; without a scale it is 1/n_i, and toeplitz.inside
                      * needs one; Hua et al. 2022, arXiv 2202.10447 */
  ATTN_RELU_NORM,    /* relu(x)^power / (eps + sum_j relu(x_ij)^power) */
  ATTN_RELU_RELA     /* RAW with power 1, then a gated RMSNorm over all heads of a query:
                      * y = gain o / sqrt(mean o^2 + eps) sigmoid(gate o); Zhang et al. 2021, arXiv
                      * 2104.07012 */
} attn_relu_kind;

/* {0} is relu(x) unnormalised. */
typedef struct attn_relu_params {
  attn_relu_kind kind;
  int power;                  /* 1 or 2; 0 = 1. VAR and RELA want 1, GAU is 2 whatever this says */
  float alpha;                /* LEN: >= 0; 0 = 1, ATTN_ZERO = 0 */
  float gamma;                /* VAR: > 0; 0 = 1 */
  float eps;                  /* NORM: >= 0. RELA: >= 0; 0 = 1e-8, ATTN_ZERO = 0 */
  int by_keys;                /* 1: n_i is Tk */
  const float *gain;          /* RELA: [H dv] */
  const float *gate;          /* RELA: [H dv] */
  attn_tensor sum;            /* out, optional: [B,H,Tq,1] f32, sum_j w_ij */
  attn_sdpa_params attention; /* scale, allowed set and terms as in attn_sdpa; without ragged,
                            * q_offs, align_lengths, sinks, softmax_one, span, relative.values, lse and map */
} attn_relu_params;

#if ATTN_HAS_RELU
/* Attention with rectified weights in place of a softmax: O_i = sum_j w_ij v_j, w as
 * attn_relu_kind says, 0 on forbidden pairs.
 *
 * Shapes, aliasing, memory, NaN, determinism and cost as attn_sdpa, without exponentials. For RELA o
 *   must be f32, o.dim columns of H heads are one vector of the norm. A row of zeros stays zero.
 * n_i does not count pairs whose score is -inf, be it by a bias, a modifier or by itself, and stops
 *   at 2^24. Weights are not bounded: a
 *   result beyond f32 becomes infinite. Empty rows: O = 0, sum = 0.
 * Errors: those of attn_sdpa, RANGE (kind, power, fields that must be absent), VALUE (alpha, gamma,
 *   eps, gain or gate not finite), DTYPE (RELA's o). */
ATTN_DEF attn_status attn_relu(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_relu_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_relu_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_relu_params *params, const attn_ctx *ctx);
#endif
