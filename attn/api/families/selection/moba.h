/* api/families/selection/moba.h owns mixtures of block attention. */

typedef struct attn_moba_params {
  int64_t block;           /* keys of a block, at least 1 */
  int64_t k;               /* blocks of a row, its own among them: at least 1 */
  attn_selected attention; /* the softmax over them */
  attn_tensor
      means;      /* optional: attn_key_blocks of kind MEAN and this size; else made in the call */
  int32_t *index; /* out, optional: [B,H,Tq,k] the blocks of a row, ascending, then -1 */
} attn_moba_params;

/* Attention of each query to its own block and to the blocks of keys before it that fit it best (MoBA).
 *
 *   p_i = i + q_off,  own = floor(p_i / block),  z_ij = q_i . mean(K of block j), j < own
 *   S_i = keys of `own` up to p_i, and all keys of the k - 1 blocks of largest z_ij, for each query head
 *   O_i = sum over S_i of softmax(scale q_i . k) v
 *
 * Shapes, aliasing: as attn_sdpa, causal; GQA; quantised k and v.
 * Pages: attention.cache; means are then those of its pages, and block is their rows.
 * The own block counts in k and never competes. Blocks past kv_len are none. Equal z go to the lower block; a NaN z
 *   comes after all numbers, a z of -inf is not chosen.
 * Memory: attn_moba_workspace bytes: 4 k bytes a row and head without index, 4 dk a block without means, and for each
 *   worker that of a tile of attn_sdpa, 1024 rows of 8 (dv + 4) bytes, a list of 4 k bytes for each of them, 16
 *   bytes a block.
 * Empty rows are 0 with LSE -inf. NaN: what a row does not choose never reaches it; no later key does.
 * Errors: those of attn_sdpa; NULL: params; RANGE: block, k; SHAPE: means; outputs untouched.
 * Determinism: the same bits and blocks on avx2, avx512 and neon, any number of workers, batch composition and
 *   division of the queries. Blocks are joined compensated, in ascending order.
 * Cost: 2 dk flops a row and earlier block; then only what was chosen: rows are gathered by block. report.pairs says
 *   so.
 * Source: Lu et al. 2025, arXiv 2502.13189. */
ATTN_DEF attn_status attn_moba(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_moba_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_moba_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_moba_params *params, const attn_ctx *ctx);
