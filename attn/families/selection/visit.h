/* families/selection/visit.h owns exact attention to chosen blocks of keys: rows are gathered by the block that they
 * chose, 64 at a time, and every block that a row visits is a stretch of its own (engine/stretch.h). So what is
 * computed follows what was chosen, wherever the rows that share a block lie. */

/* Rows of a chunk, whose sums wait in the memory of a worker between their blocks. */
enum { ATTN_VISIT_ROWS_ = 1024 };

typedef struct attn_visits_ {
  const int32_t *index; /* [B][heads][Tq][k], blocks of `size` keys; -1 is none */
  int64_t k, size, heads;
  int64_t group, rows,
      chunks; /* query heads of a choice, queries of a chunk, chunks of a sequence */
  char *memory;
  int64_t each, at_row, at_first, at_m, at_l, at_low, at_far;
} attn_visits_;

/* Where the rows of a chunk wait. */
typedef struct attn_waiting_ {
  float *m, *l, *low, *far; /* [rows], far [rows][2][dv] */
} attn_waiting_;

ATTN_FUNC_ attn_waiting_ attn_visit_waiting_(const attn_visits_ *x, int worker) {
  char *at = x->memory + worker * x->each;
  attn_waiting_ w;
  w.m = (float *)(void *)(at + x->at_m), w.l = (float *)(void *)(at + x->at_l);
  w.low = (float *)(void *)(at + x->at_low), w.far = (float *)(void *)(at + x->at_far);
  return w;
}

/* Rows come back to a tile: sums of earlier blocks, in two parts, */
ATTN_FUNC_ void attn_visit_load_(attn_tile_ *t, const attn_waiting_ *w, const int32_t *slot) {
  const int64_t dv = t->a->v.dim;
  const void *row[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) {
    const int32_t at = r < t->n ? slot[r] : 0;
    t->m[r] = t->far_m[r] = r < t->n ? w->m[at] : -INFINITY;
    t->far_l[r] = r < t->n ? w->l[at] : 0.0f, t->far_low[r] = r < t->n ? w->low[at] : 0.0f;
    t->l[r] = t->count[r] = 0.0f, t->alpha[r] = t->scale[r] = 1.0f;
  }
  for (int part = 0; part < 2; part++) {
    for (int r = 0; r < t->n; r++) row[r] = w->far + (2 * slot[r] + part) * dv;
    t->a->table->pack(t->w.far + part * dv * ATTN_TILE_, row, t->n, dv, ATTN_F32, 1.0f,
                      attn_least_(1.0f));
  }
  t->folded = 1, t->partial = 0;
  t->xl_next = t->stretch = -1;
}

/* and wait for the next. */
ATTN_FUNC_ void attn_visit_store_(const attn_tile_ *t, const attn_waiting_ *w,
                                  const int32_t *slot) {
  const int64_t dv = t->a->v.dim;
  void *row[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) {
    w->m[slot[r]] = t->far_m[r], w->l[slot[r]] = t->far_l[r], w->low[slot[r]] = t->far_low[r];
  }
  for (int part = 0; part < 2; part++) {
    for (int r = 0; r < t->n; r++) row[r] = w->far + (2 * slot[r] + part) * dv;
    t->a->table->unpack(row, t->w.far + part * dv * ATTN_TILE_, t->n, dv, ATTN_F32, NULL);
  }
}

/* The rows of a tile see the keys t->key0 .. t->key1. */
ATTN_FUNC_ void attn_visit_tile_(attn_tile_ *t, const attn_waiting_ *w, const int32_t *slot) {
  const int64_t pairs = *t->w.pairs, dv = t->a->v.dim;
  attn_tile_lanes_(t);
  attn_tile_terms_(t);
  t->rel_careful = 0;
  for (t->careful = 0;; t->careful = 1) {
    attn_visit_load_(t, w, slot);
    if (!attn_tile_walk_(t, 0)) return;
    attn_tile_fold_(t, 0);
    if (t->careful || !t->partial || t->a->table->finite(t->w.far, ATTN_TILE_, dv, t->n)) break;
    *t->w.pairs = pairs;
  }
  attn_visit_store_(t, w, slot);
}

/* Rows by block: those of block j are row[first[j]] .. row[first[j + 1] - 1], ascending. */
ATTN_FUNC_ void attn_visit_sort_(const attn_visits_ *x, const int32_t *index, int64_t n,
                                 int64_t blocks, int64_t *first, int32_t *row) {
  for (int64_t j = 0; j <= blocks + 1; j++) first[j] = 0;
  for (int64_t e = 0; e < n * x->k; e++)
    if (index[e] >= 0) first[index[e] + 2]++;
  for (int64_t j = 2; j <= blocks + 1; j++) first[j] += first[j - 1];
  for (int64_t i = 0; i < n; i++)
    for (int64_t e = 0; e < x->k; e++)
      if (index[i * x->k + e] >= 0) row[first[index[i * x->k + e] + 1]++] = (int32_t)i;
}

/* One (batch, choice, chunk of queries), the last first. */
ATTN_FUNC_ void attn_visit_item_(void *job, int worker, int64_t item) {
  attn_softmax_ own;
  const attn_visits_ *x = (const attn_visits_ *)((const attn_softmax_ *)job)->own_job;
  const int64_t unit = item / x->chunks, b = unit / x->heads, head = unit % x->heads * x->group,
                g = x->group;
  const attn_softmax_ *f = attn_problem_((const attn_softmax_ *)job, b, &own);
  const int64_t i0 = (x->chunks - 1 - item % x->chunks) * x->rows, left = f->q.len - i0;
  const int64_t n = left < x->rows ? left : x->rows, dv = f->v.dim,
                blocks = attn_pick_blocks_(f->k.len, x->size);
  int32_t *row = (int32_t *)(void *)(x->memory + worker * x->each + x->at_row), slot[ATTN_TILE_];
  int64_t *first = (int64_t *)(void *)(x->memory + worker * x->each + x->at_first);
  const attn_waiting_ w = attn_visit_waiting_(x, worker);
  attn_tile_ t;
  attn_visit_sort_(x, x->index + (unit * f->q.len + i0) * x->k, n, blocks, first, row);
  for (int64_t r = 0; r < n * g; r++) w.m[r] = -INFINITY, w.l[r] = w.low[r] = 0.0f;
  memset(w.far, 0, (size_t)(n * g * 2 * dv) * sizeof(float));
  /* behind the last block: all rows once more, to be written */
  for (int64_t j = 0; j <= blocks; j++) {
    const int last = j == blocks;
    const int64_t from = last ? 0 : first[j], lanes = (last ? n : first[j + 1] - from) * g;
    for (int64_t at = 0; at < lanes; at += ATTN_TILE_) {
      attn_tile_open_(&t, f, worker);
      t.batch = b, t.n = lanes - at < ATTN_TILE_ ? (int)(lanes - at) : (int)ATTN_TILE_;
      for (int r = 0; r < t.n; r++) {
        const int64_t i = last ? (at + r) / g : row[from + (at + r) / g], h = (at + r) % g;
        t.row[r] = i0 + i, t.head[r] = head + h, slot[r] = (int32_t)(i * g + h);
      }
      if (!last) {
        t.key0 = j * x->size, t.key1 = attn_add_(t.key0, x->size);
        attn_visit_tile_(&t, &w, slot);
        continue;
      }
      attn_tile_lanes_(&t);
      attn_visit_load_(&t, &w, slot);
      memset(t.w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
      attn_tile_unfold_(&t);
      attn_tile_finish_(&t);
    }
  }
}

/* The same of keys and values in the pages of a cache. */
ATTN_COLD_ int attn_selected_cached_(attn_error_ *e, attn_softmax_ *f, const attn_selected *x,
                                     const attn_sdpa_params *p, const attn_ctx *ctx, int *workers,
                                     int data) {
  attn_cached_ c;
  if (!x->cache || !x->sequences)
    return attn_reject_(e, ATTN_E_NULL, "params.attention.cache and .sequences go together");
  if (data >= 0 && (f->k.data || f->v.data))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "k.data and v.data must be null with params.attention.cache");
  if (x->cache->window)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention.cache.window must be 0: a ring forgets by itself");
  if (!attn_cached_open_(e, &c, f->o, f->q, x->cache, x->sequences, f->q.batch, p) ||
      (data > 0 && !attn_cached_pages_(e, &c)) ||
      !attn_sdpa_plan_(e, &c.a, &c.params, ctx, workers, data) ||
      (data >= 0 && !attn_cached_apart_(e, &c, ctx)) || (data > 0 && !attn_cached_read_(e, &c)))
    return 0;
  *f = c.a, f->seq = &f->sequences;
  return 1;
}

/* The problem of the call, in the order of many queries: checks as attn_sdpa, data as there. */
ATTN_COLD_ int attn_selected_plan_(attn_error_ *e, attn_softmax_ *f, const attn_selected *x,
                                   const attn_ctx *ctx, int *workers, int data) {
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = x->scale, p.causal = 1, p.has_q_off = x->has_q_off, p.q_off = x->q_off,
  p.kv_len = x->kv_len;
  p.k_scales = x->k_scales, p.v_scales = x->v_scales, p.lse = x->lse, p.one_order = 1;
  if (x->cache || x->sequences ? !attn_selected_cached_(e, f, x, &p, ctx, workers, data)
                               : !attn_sdpa_plan_(e, f, &p, ctx, workers, data))
    return 0;
  return f->k.len <= INT32_MAX || attn_reject_(e, ATTN_E_OVERFLOW, "k.len must be below 2^31");
}

/* Attention to the blocks of x->index; f holds the tensors. */
ATTN_COLD_ int attn_stage_visit_(attn_stage_ *s, attn_softmax_ *f, const attn_selected *p,
                                 attn_visits_ *x) {
  int workers;
  if (!attn_selected_plan_(s->e, f, p, &s->ctx, &workers, -1)) return 0;
  const int64_t blocks = attn_pick_blocks_(f->k.len, x->size);
  x->group = f->q.heads / x->heads;
  x->rows = x->group < ATTN_VISIT_ROWS_ ? ATTN_VISIT_ROWS_ / x->group : 1;
  if (x->rows > f->q.len) x->rows = f->q.len;
  x->chunks = f->q.len / x->rows + (f->q.len % x->rows != 0);
  const int64_t waiting = attn_mul_(x->rows, x->group);
  x->at_row = 0, x->at_first = attn_piece_(attn_mul_(x->rows, x->k), 4);
  x->at_m = attn_add_(x->at_first, attn_piece_(attn_add_(blocks, 2), 8));
  x->at_l = attn_add_(x->at_m, attn_piece_(waiting, 4));
  x->at_low = attn_add_(x->at_l, attn_piece_(waiting, 4));
  x->at_far = attn_add_(x->at_low, attn_piece_(waiting, 4));
  x->each = attn_add_(x->at_far, attn_piece_(attn_mul_(waiting, f->v.dim), 8));
  f->own = attn_visit_item_, f->own_job = x;
  f->own_items = attn_mul_(attn_mul_(f->q.batch, x->heads), x->chunks);
  const int64_t bytes = attn_softmax_bytes_(f, s->workers);
  const int64_t own = attn_mul_(x->each, attn_softmax_workers_(f, s->workers));
  char *spare = attn_stage_spare_(s, attn_add_(own, bytes));
  if (!s->run) return 1;
  x->memory = spare;
  s->ctx.workspace = spare + own, s->ctx.workspace_size = (size_t)(s->spare - own);
  if (!attn_softmax_run_(s->e, f, &s->ctx, s->workers)) return 0;
  attn_stage_count_(s);
  return 1;
}
