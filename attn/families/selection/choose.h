/* families/selection/choose.h owns the choice of the best candidates of up to 64 rows, each with candidates of its
 * own, and the lists that it writes. Scores are in t->s of engine/topk.h. */

/* t is open: no candidate yet, none of -inf. */
ATTN_FUNC_ void attn_pick_open_(attn_topk_ *t) {
  t->first = 0;
  for (int r = 0; r < ATTN_TILE_; r++) t->count[r] = t->settled[r] = 0, t->floor[r] = -FLT_MAX;
}

/* Takes the scores of candidates from .. from + n - 1, n at most ATTN_PICK_; row r has those from lo[r] to before hi[r]. */
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

/* Dot products of the tile's queries with candidates, rows of floats, up to the last that some row has. */
ATTN_FUNC_ void attn_pick_scan_(attn_topk_ *t, const float *x, int64_t stride, const int64_t *lo,
                                const int64_t *hi) {
  int64_t end = 0;
  float top[ATTN_TILE_] = {0};
  for (int r = 0; r < t->n; r++) end = hi[r] > end ? hi[r] : end;
  for (int64_t j = 0; j < end; j += ATTN_PICK_) {
    const int64_t n = end - j < ATTN_PICK_ ? end - j : (int64_t)ATTN_PICK_;
    attn_on_(tile, t->table)
        ->score_block(t->s, t->qt, x + j * stride, stride, n, t->dim, 0, t->groups, top);
    attn_pick_take_(t, n, j, lo, hi);
  }
}

/* Writes the best of row r behind the `many` that are in `to`, all ascending, then -1 up to k. */
ATTN_FUNC_ void attn_pick_write_(attn_topk_ *t, int r, int32_t *to, int64_t many, int64_t k) {
  uint64_t *list = t ? t->list + r * t->room : NULL;
  const int64_t forced = many;
  int64_t count = 0;
  if (t) attn_topk_keep_(t, r), count = t->count[r];
  if (count > k - many) (void)attn_topk_list_(t, r, &count), count = k - many;
  for (int64_t e = 0; e < count; e++) list[e] = list[e] << 32 | list[e] >> 32; /* by index */
  if (count > 1) attn_sort_(list, count, t->spare);
  for (int64_t e = 0; e < count; e++) to[many++] = (int32_t)attn_candidate_index_(list[e] >> 32);
  if (forced) attn_sort_keys_(to, many);
  for (; many < k; many++) to[many] = -1;
}

/* Keys of an entry, and the block of a position; -1 before the first key. */
ATTN_FUNC_ int64_t attn_pick_keys_(const attn_softmax_ *f, int64_t b) {
  return f->kv_len ? f->kv_len[b] : f->k.len;
}
ATTN_FUNC_ int64_t attn_pick_blocks_(int64_t keys, int64_t size) {
  return keys / size + (keys % size != 0);
}
ATTN_FUNC_ int64_t attn_pick_block_(int64_t position, int64_t size) {
  return position < 0 ? -1 : position / size;
}

/* The lists that such a call may write, count numbers, and m more inputs than attn_sdpa has. */
ATTN_COLD_ int attn_selected_apart_(attn_error_ *e, const attn_ctx *ctx, attn_softmax_ *f,
                                    const int32_t *index, int64_t count, const attn_span_ *more,
                                    int m) {
  static const char w[] = ATTN_WORDS_("q");
  enum { O, LSE, INDEX, OUTPUTS, Q = OUTPUTS, K, V, LEN, WORK, SPANS };
  attn_tensor *const t[] = {&f->o, &f->lse, NULL, &f->q, &f->k, &f->v};
  attn_span_ span[SPANS];
  memset(span, 0, sizeof span);
  for (int i = 0; i <= V; i++)
    if (t[i] && t[i]->data && !attn_check_stored_(e, t[i], w, &span[i])) return 0;
  if (!attn_check_array_(e, index, count, 4, "params.index must be aligned to its elements",
                         &span[INDEX]) ||
      !attn_check_array_(e, f->kv_len, f->q.batch, 4, "kv_len must be aligned to its elements",
                         &span[LEN]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
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
