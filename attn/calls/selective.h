/* calls/selective.h owns the order of rows of selective attention: tile after tile, what head 0 takes from the keys
 * of a tile, then the tile in all heads. */

/* Keys j0 .. j1 for the rows of a tile: scores of entries first[g] .. end[g] of each lane group become what is taken
 * before each row. */
ATTN_FUNC_ void attn_fade_rows_(const attn_tile_ *t, const attn_block_ *b, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = t->a;
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const int64_t at = t->batch * a->k.len + j0;
  double sum[ATTN_BLOCK_] = {0};
  void *to[ATTN_TILE_];
  const void *from[ATTN_TILE_];
  for (int64_t e = 0; e < j1 - j0; e++) sum[e] = j->fade[at + e] > 1e38 ? 1e38 : j->fade[at + e];
  for (int r = 0; r < t->n; r++) {
    float *x = t->w.reshape + r * ATTN_BLOCK_;
    to[r] = x + (b->j0 - j0), from[r] = x;
  }
  a->table->unpack(to, t->w.s, t->n, b->n, ATTN_F32, NULL);
  for (int r = 0; r < t->n; r++) {
    float *x = t->w.reshape + r * ATTN_BLOCK_;
    const int64_t skip = b->j0 - j0, own = t->pos[r] - j0;
    for (int64_t e = 0; e < skip + b->first[r / ATTN_GROUP_]; e++) x[e] = 0.0f;
    for (int64_t e = skip + b->end[r / ATTN_GROUP_]; e < ATTN_BLOCK_; e++) x[e] = 0.0f;
    if (own >= 0 && own < ATTN_BLOCK_) x[own] = 0.0f;
    if (j0 == 0 && !j->p->selective.first) x[0] = 0.0f;
    attn_on_(reshape, a->table)->fade_row(sum, x);
  }
  a->table->pack((float *)(void *)(j->memory + j->at_less) + at * ATTN_TILE_, from, t->n, j1 - j0,
                 ATTN_F32, 1.0f, attn_least_(1.0f));
  for (int64_t e = 0; e < j1 - j0; e++) j->fade[at + e] = sum[e];
}

/* A block of keys of one batch entry, and the rows of j->tile in head 0. */
ATTN_FUNC_ void attn_fade_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const int64_t blocks = (a->k.len + ATTN_BLOCK_ - 1) / ATTN_BLOCK_;
  const int64_t batch = index / blocks, j0 = index % blocks * ATTN_BLOCK_;
  const int64_t j1 = a->k.len - j0 < ATTN_BLOCK_ ? a->k.len : j0 + ATTN_BLOCK_;
  attn_tile_ t;
  attn_block_ b;
  attn_tile_open_(&t, a, worker);
  attn_tile_group_rows_(&t, batch * a->q.heads, attn_reshaped_of_(a)->tile);
  attn_tile_lanes_(&t);
  int seen = 0;
  for (int g = 0; g < t.groups; g++) seen |= t.g[g].hi_max > j0 && t.g[g].lo_min < j1;
  if (!seen) return; /* by any head */
  attn_tile_terms_(&t);
  attn_tile_reshape_(&t);
  attn_block_terms_(&t, &b);
  t.xl_next = t.stretch = -1;
  if (attn_block_open_(&t, &b, j0, j1)) {
    attn_block_fetch_(&t, &b);
    attn_block_modifiers_(&t, &b);
    attn_block_scores_(&t, &b);
  } else {
    for (int g = 0; g < t.groups; g++) b.first[g] = b.end[g] = 0;
    b.j0 = j0, b.n = 0;
  }
  attn_fade_rows_(&t, &b, j0, j1);
}

ATTN_FUNC_ void attn_faded_item_(void *job, int worker, int64_t unit) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_softmax_tile_(a, worker, unit, a->tiles - 1 - attn_reshaped_of_(a)->tile);
}

ATTN_FUNC_ void attn_selective_pass_(attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_reshaped_job_ *j = (attn_reshaped_job_ *)(uintptr_t)a->reshape->user;
  const int64_t blocks = a->q.batch * ((a->k.len + ATTN_BLOCK_ - 1) / ATTN_BLOCK_);
  const int64_t units = a->q.batch * a->q.heads;
  a->phase = 0;
  for (j->tile = 0; j->tile < a->tiles; j->tile++) {
    j->less = NULL;
    attn_for_(ctx, attn_pieces_(workers, blocks), blocks, attn_fade_item_, a);
    j->less = (float *)(void *)(j->memory + j->at_less);
    attn_for_(ctx, attn_pieces_(workers, units), units, attn_faded_item_, a);
  }
}
