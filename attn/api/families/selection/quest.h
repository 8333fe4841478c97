/* api/families/selection/quest.h owns attention to the pages of a cache that a query's bounds speak for. */

typedef struct attn_quest_params {
  int64_t page;            /* keys of a page, at least 1; of a cache 0 = its pages */
  int64_t pages;           /* pages of a row, at least 1 */
  int last_competes;       /* 0: a row's last page is always taken, and counted */
  attn_selected attention; /* the softmax over them */
  attn_tensor
      bounds; /* optional: attn_key_blocks of kind BOUNDS and this size; else made in the call */
  int32_t *index; /* out, optional: [B,H,Tq,pages] the pages of a row, ascending, then -1 */
} attn_quest_params;

/* Attention of each query to the pages of keys that may hold its highest scores (Quest).
 *
 *   bound_ij = sum_c max(q_ic kmin_jc, q_ic kmax_jc), for each query head; page j holds keys j page .. (j + 1) page - 1
 *   S_i = keys up to i + q_off of the last page that row i sees, and of the `pages` - 1 others of largest bound
 *   O_i = sum over S_i of softmax(scale q_i . k) v
 *
 * Shapes, aliasing: as attn_sdpa, causal; GQA; quantised k and v.
 * Pages: attention.cache; bounds are then those of its pages, of which a page is one. A page that is not full is
 *   bounded in the call, where it competes.
 * With last_competes the last page has a bound too: over the keys that the row sees. Pages past kv_len are none. Equal
 *   bounds go to the lower page; a NaN bound (of keys that are not finite, too) comes after all numbers, one of -inf is
 *   not chosen.
 * Memory: attn_quest_workspace bytes: 4 pages (page + 1) + 8 a row and head, 8 dk a page without bounds, and that of
 *   attn_edges. Empty rows are 0 with LSE -inf. NaN: what a row does not choose never reaches it; no later key does.
 * Errors: those of attn_sdpa; NULL: params; RANGE: page, pages; SHAPE: bounds; outputs untouched.
 * Determinism: the same bits and pages on avx2, avx512 and neon, any number of workers, batch composition and
 *   division of the queries.
 * Cost: 4 dk flops a row and page, bounds read once for the heads that share keys; then the keys of its pages, row by
 *   row: made for few queries on a long cache. report.pairs says how many.
 * Source: Tang et al. 2024, arXiv 2406.10774. */
ATTN_DEF attn_status attn_quest(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_quest_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_quest_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_quest_params *params, const attn_ctx *ctx);
