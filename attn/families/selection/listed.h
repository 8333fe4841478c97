/* families/selection/listed.h owns exact attention to chosen keys one by one: as lists of a row (engine/lists.h), or,
 * where heads share keys and choice, as tiles of these heads whose keys are gathered once. */

/* Heads that are worth a tile: fewer are rows of their own. */
enum { ATTN_LISTED_HEADS_ = 4 };

typedef struct attn_listed_ {
  const attn_edges_params *lists; /* indptr and col are written by now */
  int64_t tiles;                  /* of the heads of a group */
} attn_listed_;

/* The next keys of a list, by the rule of runs: of all keys between two marks, as many marks as fit. */
ATTN_FUNC_ int attn_listed_take_(attn_block_ *b, attn_cursor_ *c) {
  int64_t at = 0, to;
  for (; at < c->runs && at < ATTN_BLOCK_; at = to) {
    const int64_t end = ((int64_t)c->key[at] / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    for (to = at; to < c->runs && c->key[to] < end;) to++;
    if (to > ATTN_BLOCK_) break;
    memcpy(b->index + at, c->key + at, (size_t)(to - at) * sizeof *c->key);
  }
  b->n = (int)at, b->by_lane = 0;
  c->key += at, c->runs -= at;
  if (at == 0) return 0;
  b->j0 = b->index[0];
  b->gathered = b->index[at - 1] - b->index[0] != at - 1;
  return 1;
}

/* Asks for keys of the next block. */
ATTN_FUNC_ void attn_listed_ahead_(const attn_tile_ *t, attn_cursor_ *c) {
  const attn_softmax_ *a = t->a;
  /* what the second cache holds is not asked for: 8 MB at T = 16384 takes 10 % less so, 2 MB 15 % more */
  if (a->seq || a->k.len < ((int64_t)1 << 21) / attn_bytes_(a->k.dtype, a->k.dim)) return;
  for (int i = 0; i < ATTN_BLOCK_ / 2 && c->runs > 0; i++, c->runs--, c->key++) {
    attn_row_ahead_(&a->k, t->batch, t->head_k, *c->key);
    attn_row_ahead_(&a->v, t->batch, t->head_v, *c->key);
  }
}

/* The picked rows of pages, as f32: neighbours of one page together. */
ATTN_FUNC_ void attn_listed_pages_(const attn_tile_ *t, const attn_tensor *x,
                                   const attn_scales *scales, int64_t head, float *copy,
                                   const int32_t *index, int n) {
  int64_t page, row;
  for (int e = 0, m; e < n; e += m) {
    const int64_t most = attn_storage_(t->a, t->batch, index[e], &page, &row);
    for (m = 1; e + m < n && m < most && index[e + m] == index[e] + m;) m++;
    const attn_rows_scale_ s = attn_scales_at_(scales, page, head, row);
    t->a->table->widen(copy + e * x->dim, attn_at_(x, page, head, row), x->stride_len, NULL, m,
                       x->dim, x->dtype, &s);
  }
}

static const attn_listed_calls_ attn_listed_by_pointer_ = {attn_listed_take_, attn_listed_ahead_,
                                                           attn_listed_pages_};

/* One (batch, group of heads, query, 64 of the heads): its list is that of a tile. */
ATTN_FUNC_ void attn_listed_item_(void *job, int worker, int64_t item) {
  const attn_softmax_ *f = (const attn_softmax_ *)job;
  const attn_listed_ *x = (const attn_listed_ *)f->own_job;
  const int64_t tile = item % x->tiles, i = item / x->tiles % f->q.len,
                unit = item / x->tiles / f->q.len;
  const int64_t groups = f->q.heads / f->group, b = unit / groups,
                left = f->group - tile * ATTN_TILE_;
  const int64_t *ptr = x->lists->indptr + b * (f->q.len + 1) + i;
  const int32_t *key = x->lists->col + b * x->lists->edges + ptr[0];
  attn_softmax_ own = *f;
  attn_plan_ plan; /* of no runs */
  attn_plan_tile_ none;
  attn_tile_ t;
  if (f->seq) attn_problem_turn_(f, b, &own);
  memset(&plan, 0, sizeof plan), memset(&none, 0, sizeof none);
  own.plan = &plan, own.edges = NULL;
  attn_tile_open_(&t, &own, worker);
  none.step = 1, t.plan = &none, t.keys = key, t.keys_n = ptr[1] - ptr[0];
  t.batch = b, t.n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  for (int r = 0; r < t.n; r++)
    t.row[r] = i, t.head[r] = unit % groups * f->group + tile * ATTN_TILE_ + r;
  attn_tile_run_(&t, 1);
}

/* Attention to the lists of x; f holds the tensors. */
ATTN_COLD_ int attn_stage_listed_(attn_stage_ *s, attn_softmax_ *f, const attn_selected *p,
                                  attn_listed_ *x) {
  int workers;
  if (!attn_selected_plan_(s->e, f, p, &s->ctx, &workers, -1)) return 0;
  const int shared = !x->lists->per_head && f->group >= ATTN_LISTED_HEADS_;
  f->edges = x->lists, f->listed = &attn_listed_by_pointer_;
  x->tiles = 0;
  if (shared) {
    x->tiles = attn_tiles_of_(f->group);
    f->own = attn_listed_item_, f->own_job = x;
    f->own_items =
        attn_mul_(attn_mul_(f->q.batch, f->q.heads / f->group), attn_mul_(f->q.len, x->tiles));
  } else {
    f->group = 1, f->tiles = attn_tiles_of_(f->q.len);
    if (f->seq) attn_sequences_count_(f);
  }
  const int64_t bytes = attn_softmax_bytes_(f, s->workers);
  s->ctx.workspace = attn_stage_spare_(s, bytes);
  if (!s->run) return 1;
  s->ctx.workspace_size = (size_t)s->spare;
  if (!attn_softmax_run_(s->e, f, &s->ctx, s->workers)) return 0;
  attn_stage_count_(s);
  return 1;
}
