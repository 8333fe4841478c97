/* families/selection/choose.h owns the choice of the best candidates of up to 64 rows, each with candidates of its
 * own, and the lists that it writes. Scores are in t->s of engine/topk.h. */

/* t is open: no candidate yet, none of -inf. */
ATTN_FUNC_ void attn_pick_open_(attn_topk_ *t) {
  t->first = 0;
  for (int r = 0; r < ATTN_TILE_; r++) t->count[r] = t->settled[r] = 0, t->floor[r] = -FLT_MAX;
}

/* Takes the scores of candidates from .. from + n - 1, n at most ATTN_PICK_; row r has those from lo[r] to before
 * hi[r]. */
ATTN_FUNC_ void attn_pick_take_(attn_topk_ *t, int64_t n, int64_t from, const int64_t *lo,
                                const int64_t *hi) {
  for (int r = 0; r < t->n; r++) {
    for (int64_t e = attn_clamp_(hi[r] - from, 0, n); e < n; e++)
      t->s[e * ATTN_TILE_ + r] = -INFINITY;
    for (int64_t e = attn_clamp_(lo[r] - from, 0, n) - 1; e >= 0; e--)
      t->s[e * ATTN_TILE_ + r] = -INFINITY;
  }
  attn_topk_take_(t, NULL, 0, n, from);
  for (int r = 0; r < t->n; r++)
    if (t->floor[r] < -FLT_MAX) t->floor[r] = -FLT_MAX;
}

/* Vectors that stand for blocks of keys: [B,Hk,blocks,dim], or with held those of the pages of a cache,
 *   [pages,Hk,1,dim]. */
typedef struct attn_stands_ {
  attn_tensor y;
  const attn_sequence *held;
} attn_stands_;

/* Dot products of the tile's queries with the vectors of blocks j .. j + n - 1. */
ATTN_FUNC_ void attn_pick_scores_(attn_topk_ *t, const attn_stands_ *x, int64_t b, int64_t h,
                                  int64_t j, int64_t n) {
  const float *y = t->wide;
  int64_t stride = x->y.stride_len;
  float top[ATTN_TILE_] = {0};
  if (x->held) {
    t->table->widen(t->wide, attn_at_(&x->y, 0, h, 0), x->y.stride_batch, x->held[b].table + j, n,
                    x->y.dim, ATTN_F32, NULL);
    stride = x->y.dim;
  } else {
    y = (const float *)(const void *)attn_at_(&x->y, b, h, j);
  }
  attn_on_(tile, t->table)->score_block(t->s, t->qt, y, stride, n, x->y.dim, 0, t->groups, top);
}

/* The search that this takes. */
ATTN_COLD_ void attn_pick_plan_(attn_topk_ *t, const attn_table_ *table, const attn_stands_ *x,
                                int64_t dim, int64_t k) {
  attn_topk_plan_(t, table, dim, k > 0 ? k : 1, x->held ? ATTN_F16 : ATTN_F32, 0);
}

/* Indices of the n candidates behind the `many` that are in `to`, all ascending: by a bit for each index where the
 * room of a list has bits enough, else sorted. */
ATTN_FUNC_ void attn_pick_order_(attn_topk_ *t, uint64_t *list, int64_t n, int32_t *to,
                                 int64_t many) {
  int64_t words = 0, at = many;
  for (int64_t e = 0; e < n; e++) to[at++] = (int32_t)attn_candidate_index_(list[e]);
  for (int64_t e = 0; e < at; e++) words = attn_max64_(words, to[e] / 64 + 1);
  if (words > t->room) {
    for (int64_t e = 0; e < n; e++) list[e] = list[e] << 32 | list[e] >> 32;
    attn_sort_(list, n, t->spare);
    for (int64_t e = 0; e < n; e++) to[many + e] = (int32_t)attn_candidate_index_(list[e] >> 32);
    if (many) attn_sort_keys_(to, at);
    return;
  }
  memset(t->spare, 0, (size_t)words * sizeof *t->spare);
  for (int64_t e = 0; e < at; e++) t->spare[to[e] / 64] |= (uint64_t)1 << (to[e] % 64);
  at = 0;
  for (int64_t w = 0; w < words; w++)
    for (uint64_t left = t->spare[w]; left; left &= left - 1)
      to[at++] = (int32_t)(w * 64 + attn_lowest_(left));
}

/* Writes the best of row r behind the `many` that are in `to`, all ascending, then -1 up to k. */
ATTN_FUNC_ void attn_pick_write_(attn_topk_ *t, int r, int32_t *to, int64_t many, int64_t k) {
  uint64_t *list = t ? t->list + r * t->room : NULL;
  int64_t count = 0;
  if (t) attn_topk_keep_(t, r), count = t->count[r];
  if (count > k - many) {
    if (k > many) attn_select_(list, count, k - many, t->spare);
    count = k - many;
  }
  if (t) attn_pick_order_(t, list, count, to, many);
  for (many += count; many < k; many++) to[many] = -1;
}

/* Keys of an entry, the position of its first row, and the block of a position; -1 before the first key. */
ATTN_FUNC_ int64_t attn_pick_keys_(const attn_softmax_ *f, int64_t b) {
  return f->seq ? attn_keys_(f, b) : f->kv_len ? f->kv_len[b] : f->k.len;
}
ATTN_FUNC_ int64_t attn_pick_off_(const attn_softmax_ *f, int64_t b) {
  return f->seq ? attn_keys_(f, b) - f->q.len : f->q_off;
}
ATTN_FUNC_ int64_t attn_pick_blocks_(int64_t keys, int64_t size) {
  return keys / size + (keys % size != 0);
}
ATTN_FUNC_ int64_t attn_pick_block_(int64_t position, int64_t size) {
  return position < 0 ? -1 : position / size;
}

/* The lists that such a call may write, count numbers, and m more inputs than attn_sdpa has. */
ATTN_COLD_ int attn_selected_apart_(attn_error_ *e, const attn_ctx *ctx, attn_softmax_ *f,
                                    const attn_selected *x, const int32_t *index, int64_t count,
                                    const attn_span_ *more, int m) {
  static const char w[] = ATTN_WORDS_("q");
  enum { O, LSE, INDEX, OUTPUTS, Q = OUTPUTS, K, V, LEN, WORK, SPANS };
  attn_tensor *const t[] = {&f->o, &f->lse, NULL, &f->q, &f->k, &f->v};
  attn_span_ span[SPANS];
  attn_paged_ pages;
  memset(span, 0, sizeof span);
  for (int i = 0; i <= (x->cache ? Q : V); i++)
    if (t[i] && t[i]->data && !attn_check_stored_(e, t[i], w, &span[i])) return 0;
  if (!attn_check_array_(e, index, count, 4, "params.index must be aligned to its elements",
                         &span[INDEX]) ||
      !attn_check_array_(e, f->kv_len, f->q.batch, 4, "kv_len must be aligned to its elements",
                         &span[LEN]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  if (x->cache &&
      !attn_paged_check_(e, &pages, x->cache, x->sequences, f->q.batch, &span[INDEX], 1, 0))
    return 0;
  for (int j = 0; j < SPANS; j++)
    if (j != INDEX && attn_overlap_(span[INDEX], span[j]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "params.index must not share memory with another argument");
  for (int j = 0; j < m; j++)
    for (int i = 0; i <= INDEX; i++)
      if (attn_overlap_(span[i], more[j]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "an output must not share memory with what params points at");
  for (int j = 0; j < m; j++)
    if (attn_overlap_(span[WORK], more[j]))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  return 1;
}
