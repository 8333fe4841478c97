/* api/families/selection/dsa.h owns attention to keys that a small indexer chooses. */

typedef struct attn_dsa_params {
  int64_t k;                  /* keys of a row, at least 1 */
  attn_selected attention;    /* the softmax over them */
  attn_tensor qi;             /* [B,HI,Tq,di] queries of the indexer */
  attn_tensor ki;             /* [B,1,Tk,di] its keys, of any type */
  attn_tensor wi;             /* [B,1,Tq,HI] weights of its heads, any sign */
  attn_scales ki_scales;      /* of quantised ki */
  int32_t *index;             /* out, optional: [B,Tq,k] the keys of a row, ascending, then -1 */
  const attn_cache *ki_cache; /* of one head, in place of ki: its k, of any page, */
  const attn_sequence *ki_sequences; /* [B], as long as attention.sequences */
} attn_dsa_params;

/* Attention of each query to the keys that a lightning indexer likes best, the same for all heads (DSA).
 *
 *   I_ij = sum_h wi_ih relu(qi_ih . ki_j)
 *   S_i = the min(k, visible) keys j <= i + q_off of largest I_ij,  O_i = sum over S_i of softmax(scale q_i . k) v
 *
 * Shapes, aliasing: as attn_sdpa, causal; GQA; quantised k and v. Latents (MLA, absorbed) are k of one head and v its
 *   first columns, in the same memory.
 * Pages: attention.cache, also a latent one; ki are [B,1,the longest sequence,di], or in pages too.
 * Equal I go to the lower key; exact zeros are common. A NaN comes after all numbers. Positive factors of I change no
 *   choice. A scale for each key of ki multiplies after the sum over heads.
 * Memory: attn_dsa_workspace bytes: 4 k bytes a row, 8 bytes a row, and for each worker 65 lists of 2 k + 48
 *   candidates of 8 bytes, 256 di (HI + 1) bytes, and that of attn_edges. No scores of all pairs are kept.
 * Empty rows are 0 with LSE -inf. NaN: what a row does not choose never reaches it; no later key does.
 * Errors: those of attn_sdpa; NULL: params, qi, ki, wi; RANGE: k; SHAPE: qi, ki, wi; outputs untouched.
 * Determinism: the same bits and keys on avx2, avx512 and neon, any number of workers, batch composition and
 *   division of the queries.
 * Cost: 2 HI di flops a visible pair where a row sees more than k keys; then 2 (dk + dv) a chosen one. Four heads and
 *   more that share keys gather them once.
 * Source: DeepSeek-AI 2025, arXiv 2512.02556. */
ATTN_DEF attn_status attn_dsa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                              const attn_dsa_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_dsa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                   const attn_dsa_params *params, const attn_ctx *ctx);
