/* api/families/selection/eviction.h owns what a cache may forget: scores of keys by the weights that they get, the
 * choice of those that stay, for each key head by itself, and the moving of their rows to the front. SnapKV, at the
 * end of a prompt:
 *
 *   attn_snapkv(scores, q, k, NULL, NULL);                  // q: the last 64 queries, or all
 *   attn_evict_choose(kept, scores, NULL, NULL);            // 320 of T keys, the last 64 among them
 *   attn_evict(k, v, kept, 320, NULL, NULL);                // rows kept[..] are rows 0 .. 319 now
 *
 * H2O: attn_h2o adds the weights of new queries to sums that live beside the cache; when it is full,
 * attn_evict_choose of the sums, and attn_evict, which moves the sums too. Rotated keys keep their angles: the next
 * token's position is the number of tokens that there have been, not the number of rows left.
 *
 * In the pages of a cache: attn_snapkv and attn_h2o with params.cache, and attn_cache_evict in place of attn_evict,
 * which gives the pages behind the last row back. */

typedef struct attn_snapkv_params {
  float scale;             /* of the scores, as in attn_sdpa */
  int64_t window;          /* the last queries, whose weights count and whose keys stay; 0 = 64 */
  int64_t kernel;          /* keys that are pooled, odd; 0 = 5 */
  int maximum;             /* 1: their maximum; 0: their average */
  const int32_t *q_len;    /* [B], 0..Tq: the rows of q that are there */
  const int32_t *kv_len;   /* [B], 0..Tk: the keys; the last row of q sits at the last of them */
  attn_scales k_scales;    /* of quantised k */
  const attn_cache *cache; /* in place of k, whose data are null then: its rows in pages, */
  const attn_sequence *sequences; /* [B] of it, no ring; they have the lengths */
} attn_snapkv_params;

typedef struct attn_h2o_params {
  float scale;             /* of the scores, as in attn_sdpa */
  const int32_t *q_len;    /* [B], 0..Tq: the rows of q that are there */
  const int32_t *kv_len;   /* [B], 0..Tk: the keys; the last row of q sits at the last of them */
  attn_scales k_scales;    /* of quantised k */
  const attn_cache *cache; /* in place of k, as in attn_snapkv_params */
  const attn_sequence *sequences;
} attn_h2o_params;

typedef struct attn_evict_choose_params {
  int64_t capacity;      /* keys that stay; 0 = 320. H2O: recent + heavy ones */
  int has_recent;        /* 1: recent below holds; 0: 64 */
  int64_t recent;        /* the last ones, which stay whatever their score; less than capacity */
  const int32_t *kv_len; /* [B], 0..T: the keys that there are */
} attn_evict_choose_params;

typedef struct attn_evict_params {
  attn_scales k_scales; /* of quantised k and v: they move with their rows */
  attn_scales v_scales;
  attn_tensor
      more; /* in and out, optional: [B,H,T,any] of a float type, rows that move too: H2O's sums */
  int32_t *
      positions; /* in and out, optional: [B,H,T], a number a row that moves too: where it stood at first */
} attn_evict_params;

typedef struct attn_cache_evict_params {
  attn_tensor
      more; /* in and out, optional: [n,H,T,any] of a float type, rows that move too: H2O's sums; T from the longest
                       sequence on */
  int32_t *positions; /* in and out, optional: [n,H,places], as in attn_evict_params */
  int64_t places;     /* at least the longest sequence */
  int64_t *
      freed; /* out, optional: [n] pages that a sequence gave back, free where nobody else holds them */
} attn_cache_evict_params;

#if ATTN_HAS_SELECTION
/* SnapKV's scores of the keys before the last `window`.
 *
 *   P = causal softmax of the last `window` queries over all keys,  c_j = sum of P_ij over these queries and the query
 *       heads of a key head, for j < T - window
 *   scores_j = mean, or maximum, of c_{j-kernel/2} .. c_{j+kernel/2}; what lies outside 0 .. T-window-1 counts as 0
 *   in the
 *              mean, and not in the maximum; 0 for the last `window` keys and from kv_len on
 *
 * Shapes: q [B,H,Tq,dk], f32, f16, bf16, of which the last `window` rows are read (all, if they are fewer); k
 *   [B,Hk,Tk,dk], any storage type; scores [B,Hk,Tk,1], f32. Ends are aligned: the last row sees the last key.
 * Pages: with params->cache Tk is scores.len, at least the longest sequence.
 * Aliasing: inputs may share memory with each other, outputs with nothing. B, Tq, Tk may be 0.
 * Memory: attn_snapkv_workspace bytes, for each worker: 264 Tk of weights and sums, 460 dk, 1 KB.
 * NaN: in what the window sees makes scores NaN. Keys from kv_len on are never read.
 * Errors: NULL, DTYPE, SHAPE (window, an even kernel), HEADS, STRIDE, RANGE (lengths), VALUE (scale), OVERLAP,
 *   OVERFLOW, WORKSPACE, MEMORY, ALIGN, CTX, ISA, ENV; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers. report.pairs: the pairs of those
 *   rows.
 * Cost: 2 window Tk dk flops a query head. Source: Li et al. 2024, arXiv 2404.14469. */
ATTN_DEF attn_status attn_snapkv(attn_tensor scores, attn_tensor q, attn_tensor k,
                                 const attn_snapkv_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_snapkv_workspace(attn_tensor scores, attn_tensor q, attn_tensor k,
                                      const attn_snapkv_params *params, const attn_ctx *ctx);

/* H2O's sums: of the weights that each key has got so far.
 *
 *   sums_j += sum of P_ij over the rows i of q and the query heads of a key head, P the causal softmax with ends
 *   aligned
 *
 * Shapes: q and k as attn_snapkv, with any number of rows; sums [B,Hk,Tk,2], f32: a sum and what it rounds off, both
 *   0 at first; the caller carries them from call to call, clears those of new keys and lets attn_evict move them
 *   (more). So a prompt at once, in chunks or token by token has the same sums to 1e-6 of their size, however many
 *   calls there are.
 * Aliasing, memory, empty: as attn_snapkv. Without a row sums keep their value. NaN: in a row makes the sums of the
 *   keys that it sees NaN, in a key those of all keys that a row sees which sees it; keys from kv_len on are never
 *   read, their sums not touched.
 * Errors, determinism: as attn_snapkv. Cost: 2 dk flops a pair of the causal map. Items are key heads.
 * Source: Zhang et al. 2023, arXiv 2306.14048. */
ATTN_DEF attn_status attn_h2o(attn_tensor sums, attn_tensor q, attn_tensor k,
                              const attn_h2o_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_h2o_workspace(attn_tensor sums, attn_tensor q, attn_tensor k,
                                   const attn_h2o_params *params, const attn_ctx *ctx);

/* Which keys stay: the last `recent` and the best capacity - recent others, equal scores the lower index first; all
 * when there are no more than capacity.
 *
 * Shapes: scores [B,H,T,any], f32, of which column 0 is read (attn_snapkv's scores, attn_h2o's sums); kept
 *   [B,H,capacity]: indices ascending, then -1: min(capacity, T or kv_len[b]) of them, as many in every head. They
 *   are the rows' original positions when nothing was evicted before.
 * Aliasing: kept shares memory with nothing. Empty: B = 0 or H = 0 does nothing; without keys kept is -1.
 * Memory: attn_evict_choose_workspace bytes, 16 T a worker. NaN: the worst score. T < 2^31.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (capacity, recent, lengths), OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ALIGN, CTX, ISA, ENV; kept untouched. Determinism: the same on every tier. Cost: O(T).
 * Source: the recent and the heavy keys of Zhang et al. 2023, arXiv 2306.14048; the window and the best keys before it
 *   of Li et al. 2024, arXiv 2404.14469. */
ATTN_DEF attn_status attn_evict_choose(int32_t *kept, attn_tensor scores,
                                       const attn_evict_choose_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_evict_choose_workspace(int32_t *kept, attn_tensor scores,
                                            const attn_evict_choose_params *params,
                                            const attn_ctx *ctx);

/* Moves the rows that stay to the front, in place: row kept[r] becomes row r, of k, v, their scales, params->more and
 * params->positions, bit for bit. Rows behind the last keep their bytes; the sequence's length is then the number of
 * kept rows.
 *
 * Shapes: k [B,H,T,dk], v [B,H,T,dv] of any storage type (v.data null: there is none), kept [B,H,capacity] as
 *   attn_evict_choose writes it: ascending in 0..T-1, -1 behind the last.
 * Aliasing: k, v, their scales, more and positions are written and share memory with nothing. Memory: none.
 * Empty: B, H or T of 0 does nothing; a head whose kept begins with -1 stays as it is.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, INDEX (kept), OVERLAP, OVERFLOW, ALIGN, CTX, ISA, ENV; every byte as it was.
 * Determinism: the same bytes everywhere. Cost: the rows that move. Source: as attn_evict_choose; Li et al. gather the
 *   rows into another array. */
ATTN_DEF attn_status attn_evict(attn_tensor k, attn_tensor v, const int32_t *kept, int64_t capacity,
                                const attn_evict_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_evict_workspace(attn_tensor k, attn_tensor v, const int32_t *kept,
                                     int64_t capacity, const attn_evict_params *params,
                                     const attn_ctx *ctx);

/* The same in the pages of a cache: of sequence b, row kept[b,h,r] of head h becomes row r, with its scales, and the
 * sequence is as long as the rows that stay. Pages behind the last go back to the cache, where attn_cache_append
 * takes them again.
 *
 * Shapes: kept [n,H,capacity] as attn_evict_choose writes it, H the heads of cache.k and cache.v: ascending in
 *   0..len-1, -1 behind the last, as many in every head of a sequence. The next token's number in the sequence is
 *   its new len: with rope give attn_cache_append positions.
 * Sharing: a page that others hold too is copied before a row of it is written, as attn_cache_append does; others keep
 *   theirs. Vectors for pages (attn_key_blocks) are those of other keys afterwards: make them anew.
 * Aliasing: cache, sequences, tables, kept, more, positions and freed share memory with nothing. Memory: none.
 * Empty: n = 0 does nothing; a sequence whose kept begins with -1 gives all its pages back.
 * Errors: NULL, DTYPE, SHAPE (n, more, places), HEADS (cache.v), STRIDE, RANGE (capacity, lengths, a ring), INDEX
 *   (kept), PAGE (a table entry; sequences that share a table, or name a page more often than it is held), FULL (no
 *   free page for a copy), OVERLAP, OVERFLOW, ALIGN, CTX, ISA, ENV; every byte as it was.
 * Determinism: the same bytes everywhere. Cost: the rows that move, and kept once a page. Source: as attn_evict, in the
 *   pages of Kwon et al. 2023, arXiv 2309.06180. */
ATTN_DEF attn_status attn_cache_evict(attn_cache *cache, attn_sequence *sequences, int64_t n,
                                      const int32_t *kept, int64_t capacity,
                                      const attn_cache_evict_params *params, attn_ctx *ctx);
#endif
