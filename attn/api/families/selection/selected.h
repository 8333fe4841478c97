/* api/families/selection/selected.h owns what learned selections of keys share: the softmax over the keys that were
 * chosen, and the vectors that stand for blocks of keys. */

/* Zero: scale dk^-1/2, the last query at the last key, all keys. */
typedef struct attn_selected {
  float scale; /* 0 = dk^-1/2 */
  int has_q_off;
  int64_t q_off;         /* row i is at position i + q_off; without has_q_off Tk - Tq */
  const int32_t *kv_len; /* [B] keys of an entry, or null: k.len */
  attn_scales k_scales, v_scales;
  attn_tensor lse;         /* out, optional: [B,H,Tq,1], f32 */
  const attn_cache *cache; /* in place of k and v, whose data are null then: their rows in pages, */
  const attn_sequence *sequences; /* [B] of it, no ring; row i of entry b is token len_b - Tq + i */
} attn_selected;

typedef enum attn_key_block_kind {
  ATTN_KEY_BLOCK_MEAN,   /* the mean of a block's keys: [B,Hk,blocks,dk] */
  ATTN_KEY_BLOCK_BOUNDS, /* per channel the least, then the greatest: [B,Hk,blocks,2 dk] */
  ATTN_KEY_BLOCK_KINDS
} attn_key_block_kind;

typedef struct attn_key_blocks_params {
  attn_key_block_kind kind;
  int64_t size;  /* keys of a block, at least 1 */
  int64_t first; /* keys before it have not changed: blocks wholly before it are not written */
  const int32_t *kv_len; /* [B] keys of an entry, or null: k.len */
  attn_scales k_scales;
  const attn_cache *cache;        /* in place of k: a block is a page of it, */
  const attn_sequence *sequences; /* [n], */
  int64_t n;
  int64_t
      fresh; /* whose last `fresh` tokens are new; 0 = all. The fields above but kind are 0 then */
} attn_key_blocks_params;

/* Vectors that stand for blocks of keys, beside a cache: built once, and kept up as keys are appended.
 *
 *   y_j = the mean, or the bounds by channel, of keys j size .. min((j + 1) size, kv_len) - 1
 *
 * Shapes: k [B,Hk,Tk,dk] of any type, y f32 [B,Hk,ceil(Tk/size), dk or 2 dk]; outputs share no memory with inputs.
 * Memory: attn_key_blocks_workspace bytes, dk doubles a worker. Means are summed in double in the order of keys and
 *   rounded once. Keys past kv_len are not read; blocks without a key are 0. NaN: a key's NaN is its block's.
 * Pages: with params->cache, k.data null, y is [pages,Hk,1, dk or 2 dk]: a vector for each page, whatever sequences
 *   hold it, so that a fork shares those of its parent. Written are those of the pages that the n sequences fill, as
 *   far as they have fresh tokens; a page that is not full has none: no call reads it. After attn_cache_append of m
 *   rows each, fresh = m.
 * Errors: NULL: params, one of cache and sequences; RANGE: kind, size, first outside 0 .. Tk, fresh, a ring; SHAPE:
 *   y; PAGE: a table; as other calls; y untouched.
 * Determinism: the same bits on all tiers, any number of workers. Cost: the keys from `first` on are read once.
 * Source: Lu et al. 2025, arXiv 2502.13189; Tang et al. 2024, arXiv 2406.10774. */
ATTN_DEF attn_status attn_key_blocks(attn_tensor y, attn_tensor k,
                                     const attn_key_blocks_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_key_blocks_workspace(attn_tensor y, attn_tensor k,
                                          const attn_key_blocks_params *params,
                                          const attn_ctx *ctx);
