/* api/calls/cache.h owns keys and values that outlive a call: quantised rows and the cache of pages, with
 * its sequences that grow, fork and go back. */

/* Pages of keys and values, shared by any number of sequences. A plain struct over the caller's
 * memory: fill it in by hand or with attn_cache_open. One page as long as a sequence may grow is a
 * contiguous cache; a page of 1 row is as legal. k, v, their scales and the holders share no memory
 * with one another, judged by the range of addresses of each.
 *
 * Latent rows (MLA): with v.data null, the value of a key is the first v.dim columns of its row in
 * k, and v says no more than that. */
typedef struct attn_cache {
  attn_tensor k;                  /* [pages, Hk, page, dk], any type, any strides */
  attn_tensor v;                  /* [pages, Hv, page, dv] */
  attn_scales k_scales, v_scales; /* [pages, H, page, groups] of quantised types */
  int32_t *holders;               /* [pages] how many sequences hold each page; 0 at first */
  int64_t next_free;              /* where the search for a free page goes on, 0..pages */
  int64_t window; /* 0: every key is kept. w: a ring, queries see the last w keys (their own
                       * among them) and the first `keep` */
  int64_t keep;
} attn_cache;

/* One sequence of a cache: {table, table_len} and zeros at first. Token j is row s % page of page
 * table[s / page], s = j, or in a ring s = j < keep ? j : keep + (j - keep) % R with
 * R = table_len page - keep. Entries of the table past the last page are not read.
 * A ring wants R >= window + (most tokens of one append) - 1; what R is longer than the window, a
 * sequence can go back. Key j >= keep is still there when j >= high - R. */
typedef struct attn_sequence {
  int32_t *table;
  int64_t table_len; /* its room, pages */
  int64_t len;       /* tokens */
  int64_t high;      /* len; in a ring that has come round, the most tokens it has held */
} attn_sequence;

#if ATTN_HAS_CACHE
/* How attn_cache_open lays a cache out. */
typedef struct attn_cache_params {
  attn_dtype k_dtype, v_dtype;
  int64_t k_heads, v_heads, dk, dv; /* v_heads 0 = k_heads, dv 0 = dk */
  int latent;                       /* 1: v is the first dv columns of k */
  int64_t pages, page;
  int64_t k_group, v_group; /* of quantised types; 0 = a scale a row */
  int k_zero, v_zero;       /* 1: with zero points */
  int64_t window, keep;
} attn_cache_params;

/* Bytes of a cache of these sizes (holders included); 0 = the sizes are not legal. */
ATTN_DEF size_t attn_cache_size(const attn_cache_params *params);

/* Lays a cache out in memory of at least attn_cache_size bytes, aligned to 64 for speed, to 4 at
 * least. Only the holders are written. Rows of a page and head are contiguous: [pages][H][page][d],
 * with one element more in rows of ATTN_I4 of odd width. Quantised types get scales.
 * Errors: NULL, DTYPE, SHAPE (latent with more than dv of v; groups or zeros that the type cannot
 *   have), RANGE (window, keep), ALIGN, OVERFLOW, OVERLAP (cache inside memory), WORKSPACE (too
 *   small), ISA, ENV, CTX; nothing written. */
ATTN_DEF attn_status attn_cache_open(attn_cache *cache, void *memory, size_t size,
                                     const attn_cache_params *params, attn_ctx *ctx);

/* An empty sequence with a table of table_len entries, which are not read: what {table, table_len} is.
 * Errors: NULL, SHAPE (table_len < 1), ALIGN, OVERFLOW, OVERLAP (the sequence inside its table), ISA, ENV,
 *   CTX; nothing written. */
ATTN_DEF attn_status attn_sequence_init(attn_sequence *sequence, int32_t *table, int64_t table_len,
                                        attn_ctx *ctx);

/* Appends rows to n sequences: sequence b gets rows 0 .. rows[b]-1 (null = all) of k [n, Hk, T, dk]
 * and v [n, Hv, T, dv] (f32, f16, bf16), converted to the cache's types, to quantised ones as
 * attn_quantize does; a latent cache wants v.data null. With indptr (from 0, and rows null), k and v
 * have batch 1 and sequence b gets their rows indptr[b] .. indptr[b+1]-1.
 * Pages are taken as they are needed. A page that another sequence holds too is copied first, its
 * rows up to the sequence's end (at most one page a sequence and call); a ring copies each shared
 * page that it writes to. When all that share a page append in one call, the last keeps it.
 * All or nothing: when one sequence has no room (ATTN_E_FULL) nothing is written and no page taken.
 * Aliasing: k and v may share memory with each other; the cache, the sequences and their tables
 *   share none with anything.
 * Errors: NULL, DTYPE, SHAPE (n < 0), HEADS, STRIDE (rows of the cache), RANGE (rows, lengths, more
 *   rows than a ring holds beside its window), INDEX (indptr), PAGE (a table entry that is written to
 *   is out of range or not held; two sequences of the call share a table, or more of them name a page
 *   than hold it), FULL, VALUE (NaN or infinity in rows for a quantised type; other types keep them),
 *   OVERLAP, OVERFLOW, ISA, ENV, CTX, ALIGN; every byte as it was.
 * rope: keys are stored as attn_rope with keys = 1 makes them, normed too if it has a norm; the position of a token
 *   is start + its number in the sequence, or with positions that of its row of k ([T], [n,T] per batch; all of them
 *   must be legal), and a row is rounded to the cache's type once. In a quantised type a rotated number beyond f32
 *   counts as the largest one, NaN of a table as 0. Errors also: those of attn_rope; MEMORY, WORKSPACE.
 * Determinism: the same bytes on every tier, rotated ones but scalar.
 * Cost: O(rows * d), without a look at what is stored; the search for pages is short while a share
 *   of them is free, O(pages) at worst; rope: that of attn_rope. Memory: none; with rope attn_cache_append_workspace
 *   bytes. The workers share the rows of calls of 65536 numbers and more. Not for two threads at once on one cache;
 *   a call that only attends must not run beside it either. */
typedef struct attn_append_params {
  const int64_t *rows;          /* [n], 0..T */
  const int64_t *indptr;        /* [n + 1] */
  const attn_rope_params *rope; /* null = none: keys are stored rotated */
} attn_append_params;
ATTN_DEF attn_status attn_cache_append(attn_cache *cache, attn_sequence *sequences, int64_t n,
                                       attn_tensor k, attn_tensor v,
                                       const attn_append_params *params, attn_ctx *ctx);
/* Bytes that wants, 0 without rope; reads lengths, rows and indptr. */
ATTN_DEF size_t attn_cache_append_workspace(const attn_cache *cache, const attn_sequence *sequences,
                                            int64_t n, attn_tensor k, attn_tensor v,
                                            const attn_append_params *params, const attn_ctx *ctx);

/* child, which must be empty and have table room, becomes a copy of parent that shares its pages:
 * O(pages of parent), no row is copied. Both may grow from there.
 * Errors: NULL, RANGE (child not empty; in a ring another table_len), PAGE (an entry of parent), FULL
 *   (child's table has no room), OVERLAP (one table), and those of a broken cache or sequence (NULL,
 *   DTYPE, SHAPE, STRIDE, RANGE, OVERFLOW, ALIGN), ISA, ENV, CTX; nothing written. */
ATTN_DEF attn_status attn_cache_fork(attn_cache *cache, attn_sequence *child,
                                     const attn_sequence *parent, attn_ctx *ctx);

/* Goes back to len tokens (0 <= len <= sequence->len) and gives back pages that are no longer
 * needed; a ring that has come round keeps all of them unless len <= keep. What the next append
 * stores is as if the tokens from len on had never been. Errors: PAGE (an entry given back), ROLLBACK:
 * len is negative or beyond the end, or a ring has overwritten a key that its last token saw; and
 * those of a broken cache or sequence, as attn_cache_fork. Cost: O(pages given back). */
ATTN_DEF attn_status attn_cache_rollback(attn_cache *cache, attn_sequence *sequence, int64_t len,
                                         attn_ctx *ctx);

/* Gives all pages back; the sequence is empty. Errors: as attn_cache_rollback. */
ATTN_DEF attn_status attn_cache_release(attn_cache *cache, attn_sequence *sequence, attn_ctx *ctx);

/* Drafts: a tree of tokens that are verified in one call. Its n nodes stand behind the P tokens of a
 * sequence, node i as token P + i; parent[i] is the node before it, -1 <= parent[i] < i, -1 where the prefix
 * is (several roots are legal). A node sees the prefix, its ancestors and itself, and its position is P +
 * its depth. A step of speculative decoding:
 *
 *   attn_draft_positions(positions, parent, n, P);            // for attn_rope of the queries
 *   attn_cache_append(&cache, &s, 1, k, v, &append, &ctx);    // append.rope has them too
 *   attn_draft_mask(bits, (n + 7) / 8, parent, n);
 *   p.causal = 1, p.mask_new = 1, p.mask = attn_mask_bits(bits, 1, 1, n, n);
 *   attn_cache_sdpa(o, q, &cache, &s, 1, &p, &ctx);           // each node's own logits
 *   attn_cache_accept(&cache, &s, parent, n, leaf, &ctx);     // the last node that was right
 *
 * Sequences of unequal trees: params.ragged and a mask of batch n, entry b with the bits of its own tree in its
 * first rows. Windows and terms by distance count tokens as they are stored, not depths. Miao et al.
 * 2023, arXiv 2305.09781. */

/* Row i of bits [n], `stride` bytes apart, gets a 1 for each node that node i sees, 0 for the others, to the
 * end of its last byte. n >= 0, stride >= (n + 7) / 8. Errors: NULL, SHAPE, OVERFLOW, ALIGN, INDEX (parent),
 *   OVERLAP; nothing written. Determinism: the same everywhere. Cost: O(n^2 / 8). */
ATTN_DEF attn_status attn_draft_mask(uint8_t *bits, int64_t stride, const int32_t *parent,
                                     int64_t n);
/* positions[i] = start + depth of node i, a root's depth being 0. |start| <= 2^62. Errors: NULL, SHAPE, RANGE
 *   (start), OVERFLOW, ALIGN, INDEX (parent), OVERLAP; nothing written. Cost: O(n). */
ATTN_DEF attn_status attn_draft_positions(int64_t *positions, const int32_t *parent, int64_t n,
                                          int64_t start);

/* Of the tree that the last n tokens of a sequence are, keeps the path from its root to node `leaf`, in order,
 * and drops the others; leaf = -1 keeps none. The node at depth d becomes token P + d, the position that its
 * key was rotated for. Rows are moved as they are stored, in pages of the sequence's own: a shared page that
 * is moved to is copied first. A chain is a rollback.
 * Errors: NULL, SHAPE (n < 0), RANGE (more nodes than tokens, leaf outside -1 .. n - 1, a ring, whose window
 *   counts tokens), INDEX (parent), PAGE (a table entry that is read, written or given back), FULL (no free page
 *   for a copy), OVERLAP (parent in the cache or the table), OVERFLOW, ALIGN, and those of a broken cache or
 *   sequence, as attn_cache_fork; nothing written.
 * Memory: none. Determinism: the same bytes everywhere. Cost: O(n + depth (dk + dv)). */
ATTN_DEF attn_status attn_cache_accept(attn_cache *cache, attn_sequence *sequence,
                                       const int32_t *parent, int64_t n, int64_t leaf,
                                       attn_ctx *ctx);

/* attn_sdpa over n sequences of a cache; query i of sequence b sits at token len_b - (its queries)
 * + i, so append first, then attend.
 *
 * Shapes: q [n, H, Tq, dk], o [n, H, Tq, dv], params->q_len for fewer queries; or params->ragged with
 *   sequences = n and q (kv null) and batch 1. Keys never go past a sequence's length, whatever the
 *   pages hold there. In a ring the window and keep of the cache hold: window.left of
 *   params must be -1, keep 0, and causal is implied.
 * params: as attn_sdpa, without kv_len, k_scales, v_scales, has_q_off, q_offs, ATTN_CAUSAL_START,
 *   ragged.kv_indptr, schedule, map, relative, xl, gaussian and span (RANGE). A mask or bias has the extents [n, H,
 *   most queries, the longest sequence's tokens], each that or 1.
 * Bits: those of attn_sdpa on the same keys in one piece, whatever the pages are, in a call of the same class
 *   (attn_sdpa, Determinism; Tq is the most queries that a sequence may have here).
 * Errors: those of attn_sdpa and of a broken cache or sequence, SHAPE (n < 0), PAGE (a table entry out
 *   of range or not held), RANGE (a length past the table's room; more queries than tokens; a ring that
 *   no longer holds the window of the first query), OVERLAP (o, lse or the workspace with the cache, its
 *   sequences or tables). A sequence without tokens is legal when it has no queries.
 * Cost, determinism, memory: as attn_sdpa. Paged storage: Kwon et al. 2023, arXiv 2309.06180; sinks:
 *   Xiao et al. 2023, arXiv 2309.17453; latent rows: DeepSeek-AI 2024, arXiv 2405.04434. */
ATTN_DEF attn_status attn_cache_sdpa(attn_tensor o, attn_tensor q, const attn_cache *cache,
                                     const attn_sequence *sequences, int64_t n,
                                     const attn_sdpa_params *params, attn_ctx *ctx);
/* Bytes that wants; reads lengths and the offsets of params->ragged, no table. */
ATTN_DEF size_t attn_cache_sdpa_workspace(attn_tensor o, attn_tensor q, const attn_cache *cache,
                                          const attn_sequence *sequences, int64_t n,
                                          const attn_sdpa_params *params, const attn_ctx *ctx);
#endif
