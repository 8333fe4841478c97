/* engine/decode.h owns the few-query driver: rows that are too few to hide the reading of K and V.
 * The keys are split at fixed marks, so that work exists for every worker. A split is a work item
 * with a softmax of its own; its maximum, sum and output wait in memory and are merged in the order
 * of the splits.
 *
 * Up to ATTN_ROWS_ rows to a key go through kernels/decode.h, which reads K and V once, in order, at
 * the speed of memory. More rows fill lanes well enough: each split is then a tile like any other.
 * Terms of the score are those of the tile: a block of scores is transposed into lanes, changed there
 * and transposed back. The choice depends on the shapes of a call alone. */

#define ATTN_SPLIT_ 1024     /* keys, a multiple of ATTN_BLOCK_; part of the bits of every result */
#define ATTN_FEW_QUERIES_ 16 /* the most, and the most rows to a key */
#define ATTN_FEW_ROWS_ ATTN_TILE_
#define ATTN_AHEAD_BYTES_ 8192 /* of K and V, between asking and reading; measured */

/* The splits that some row may see, as far as windows say: a stream that goes on for ever costs what
 * its window costs. First those of the kept keys, then those of the window; the marks stay. */
ATTN_FUNC_ void attn_few_splits_(attn_softmax_ *a) {
  const int64_t hi = attn_clamp_(a->q_off + a->q.len + a->right, 0, a->k.len);
  const int64_t lo = attn_clamp_(a->q_off - a->left, 0, hi), keep = a->keep < hi ? a->keep : hi;
  const int64_t first = lo / ATTN_SPLIT_, end = (hi + ATTN_SPLIT_ - 1) / ATTN_SPLIT_;
  a->kept = (keep + ATTN_SPLIT_ - 1) / ATTN_SPLIT_;
  a->skip = first > a->kept ? first - a->kept : 0;
  a->splits = end - a->skip > 1 ? end - a->skip : 1;
}

/* Which calls are served, and whether by rows. Null, or why not. */
ATTN_FUNC_ const char *attn_few_plan_(attn_softmax_ *a, int one_order) {
  const int64_t rows = a->group * a->q.len;
  a->few = a->by_row = 0, a->splits = 1, a->kept = a->skip = 0;
  if (ATTN_PART_(PATTERN, a->plan) || ATTN_PART_(EDGES, a->edges))
    return "the call says which pairs exist";
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && !reshape->few) return "weights in place of a softmax";
  if (ATTN_PART_(LOW, a->low) || ATTN_PART_(LOW, a->codes)) return "params.compute";
  if (one_order) return "params.one_order is set";
  if (a->q.len < 1 || a->q.len > ATTN_FEW_QUERIES_ || rows > ATTN_FEW_ROWS_ || a->k.len < 1)
    return "more than 16 queries, or more than 64 rows to a key";
  if (a->map.data || a->raw.data || (a->terms & ~attn_terms_with_(ATTN_TAKES_FEW_)))
    return "a map, relative vectors, labels, a span or modify_weights";
  a->few = 1, a->by_row = rows <= ATTN_ROWS_ && !ATTN_PART_(LATENT, a->factored);
  attn_few_splits_(a);
  return NULL;
}

/* 4-bit rows: even elements of each 32 first. way = 1 into that order, 0 back. */
ATTN_FUNC_ void attn_row_pairs_(float *x, int64_t width, int way) {
  for (float t[32]; width > 0; width -= 32, x += 32) {
    memcpy(t, x, sizeof t);
    for (int i = 0; i < 16; i++) {
      x[way ? i : 2 * i] = t[way ? 2 * i : i];
      x[way ? 16 + i : 2 * i + 1] = t[way ? 2 * i + 1 : 16 + i];
    }
  }
}

/* Numbers of the first row of a part: [unit][split][row]. */
ATTN_FUNC_ int64_t attn_part_(const attn_softmax_ *a, int64_t unit, int64_t split) {
  return a->part0 + (unit * a->splits + split) * a->group * a->q.len;
}

/* Whether rows are converted as they are read. Those of rare types, with zero points or with more than
 * one scale are converted a block at a time: kernels for them would be much code. */
ATTN_FUNC_ int attn_few_direct_(const attn_tensor *x, const attn_scales *scales) {
  return x->dtype != ATTN_E4M3 && !scales->zero && (scales->group == 0 || scales->group >= x->dim);
}

/* What stays the same for all blocks. */
ATTN_FUNC_ void attn_few_open_(const attn_tensor *x, const attn_scales *scales,
                               attn_kv_rows_ *rows) {
  rows->row = rows->next = NULL, rows->n = rows->next_n = rows->next_step = 0;
  rows->scale = NULL;
  rows->dim = x->dim, rows->dtype = x->dtype;
  rows->bytes = attn_bytes_(x->dtype, x->dim);
  rows->step = attn_bytes_(x->dtype, x->stride_len);
  rows->scale_step = scales->stride_len;
  int64_t ahead = (ATTN_AHEAD_BYTES_ - 1) / rows->bytes + 1;
  if (ahead > ATTN_BLOCK_ / 2) ahead = ATTN_BLOCK_ / 2;
  rows->ahead = ahead;
}

/* The rows of x from `key` on: at most n, those that lie at equal steps. */
ATTN_FUNC_ int64_t attn_few_rows_(const attn_tile_ *t, const attn_tensor *x,
                                  const attn_scales *scales, int64_t head, int64_t key, int64_t n,
                                  attn_kv_rows_ *rows) {
  int64_t page, row;
  const int64_t run = attn_storage_(t->a, t->batch, key, &page, &row);
  if (run < n) n = run;
  rows->row = attn_at_(x, page, head, row), rows->n = n;
  rows->scale = attn_scales_at_(scales, page, head, row).scale;
  return n;
}

/* Converts n rows to f32 where they are not read directly. */
ATTN_FUNC_ void attn_few_widen_(const attn_tile_ *t, const attn_tensor *x,
                                const attn_scales *scales, int64_t head, int64_t key, float *copy,
                                attn_kv_rows_ *rows) {
  int64_t page, row;
  attn_storage_(t->a, t->batch, key, &page, &row);
  const attn_rows_scale_ s = attn_scales_at_(scales, page, head, row);
  t->a->table->widen(copy, rows->row, x->stride_len, NULL, rows->n, x->dim, x->dtype, &s);
  rows->row = (const char *)(const void *)copy, rows->scale = NULL, rows->dtype = ATTN_F32;
  rows->bytes = rows->step = 4 * x->dim;
}

/* What is read after `rows`: the rows of x from `key` on, up to `end`. */
ATTN_FUNC_ void attn_few_next_(const attn_tile_ *t, const attn_tensor *x, const attn_scales *scales,
                               int64_t head, int64_t key, int64_t end, attn_kv_rows_ *rows) {
  attn_kv_rows_ next;
  if (key >= end) return;
  attn_few_rows_(t, x, scales, head, key, end - key, &next);
  rows->next = next.row, rows->next_n = next.n;
  rows->next_step = attn_bytes_(x->dtype, x->stride_len);
}

/* Scores of keys j0..j1; s is where key `base` is. */
ATTN_FUNC_ void attn_few_scores_(attn_tile_ *t, int64_t base, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = t->a;
  const int64_t width = attn_row_width_(a->q.dim);
  for (int64_t j = j0, n; j < j1; j += n) {
    attn_kv_rows_ k = t->rows_k;
    n = attn_few_rows_(t, &a->k, &a->k_scales, t->head_k, j, j1 - j, &k);
    if (j + n < j1)
      attn_few_next_(t, &a->k, &a->k_scales, t->head_k, j + n, j1, &k);
    else
      attn_few_next_(t, &a->v, &a->v_scales, t->head_v, j0, j1, &k);
    if (!attn_few_direct_(&a->k, &a->k_scales))
      attn_few_widen_(t, &a->k, &a->k_scales, t->head_k, j, t->w.k, &k);
    attn_on_(few, a->table)->score_rows(t->w.row_s + (j - base), t->w.row_q, width, t->n, &k);
  }
}

/* Values of keys j0..j1 for rows r..r+rows. */
ATTN_FUNC_ void attn_few_values_(attn_tile_ *t, int64_t base, int64_t j0, int64_t j1, int r,
                                 int rows, const float *alpha) {
  const attn_softmax_ *a = t->a;
  const int64_t width = attn_row_width_(a->v.dim), end = t->g[0].hi_max;
  for (int64_t j = j0, n; j < j1; j += n, alpha = NULL) {
    attn_kv_rows_ v = t->rows_v;
    n = attn_few_rows_(t, &a->v, &a->v_scales, t->head_v, j, j1 - j, &v);
    if (!attn_few_direct_(&a->v, &a->v_scales))
      attn_few_widen_(t, &a->v, &a->v_scales, t->head_v, j, t->w.v, &v);
    if (j + n < j1)
      attn_few_next_(t, &a->v, &a->v_scales, t->head_v, j + n, j1, &v);
    else
      attn_few_next_(t, &a->k, &a->k_scales, t->head_k, j1, end, &v);
    attn_on_(few, a->table)
        ->value_rows(t->w.row_o + r * width, width, t->w.row_s + r * ATTN_ROWS_ROOM_ + (j - base),
                     rows, &v, alpha);
  }
}

/* Scores that are in lanes are changed there. 0 = no row sees a key of the block, 1 = some do, 2 = and
 * some pair may be forbidden. Narrows j0..j1 to the keys that are seen. */
ATTN_FUNC_ int attn_few_block_(attn_tile_ *t, attn_block_ *b, int64_t base, int64_t *j0,
                               int64_t *j1) {
  const attn_table_ *f = t->a->table;
  const void *from[ATTN_ROWS_];
  void *to[ATTN_ROWS_];
  if (!attn_block_open_(t, b, *j0, *j1)) return 0;
  *j0 = b->j0, *j1 = b->j0 + b->n;
  attn_few_scores_(t, base, *j0, *j1);
  attn_block_modifiers_(t, b);
  if (!b->partial && !attn_block_terms_in_(t, b) && !attn_late_(t->a)) {
    *t->w.pairs += (int64_t)t->n * b->n;
    return 1;
  }
  for (int r = 0; r < t->n; r++) from[r] = to[r] = t->w.row_s + r * ATTN_ROWS_ROOM_ + (*j0 - base);
  f->pack(t->w.s, from, t->n, b->n, ATTN_F32, 1.0f, attn_least_(1.0f));
  attn_block_scores_(t, b);
  f->unpack(to, t->w.s, t->n, b->n, ATTN_F32, NULL);
  return b->partial ? 2 : 1;
}

/* What the sums of row r are multiplied by; null: there are none yet. */
ATTN_FUNC_ const float *attn_few_alpha_(const attn_tile_ *t, int r) {
  return t->blocks > 1 ? t->alpha + r : NULL;
}

/* In the careful sweep: the values of each row's own keys alone. */
ATTN_FUNC_ void attn_few_own_values_(attn_tile_ *t, const attn_block_ *b, int64_t base, int64_t j0,
                                     int64_t j1) {
  const int64_t width = attn_row_width_(t->a->v.dim);
  for (int r = 0; r < t->n; r++) {
    const float *alpha = attn_few_alpha_(t, r);
    for (int64_t j = j0, n; j < j1; j += n) {
#define ATTN_READS_(key) \
  (b ? attn_block_reads_(t, b, (int)((key)-b->j0), r) : t->lo[r] <= (key) && (key) < t->hi[r])
      const int reads = ATTN_READS_(j);
      n = 1;
      while (j + n < j1 && ATTN_READS_(j + n) == reads) n++;
#undef ATTN_READS_
      if (reads) attn_few_values_(t, base, j, j + n, r, 1, alpha);
      if (reads) alpha = NULL;
    }
    float *o = t->w.row_o + r * width, *sum = o + ATTN_ROWS_ * width;
    for (int64_t c = 0; alpha && c < width; c++) o[c] = (o[c] + sum[c]) * *alpha, sum[c] = 0.0f;
  }
}

/* All blocks of a split, or of a part of its keys, by rows. */
ATTN_FUNC_ void attn_few_walk_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t end = t->g[0].hi_max;
  const int open = attn_few_opens_(a);
  attn_block_ b;
  if (open) attn_block_terms_(t, &b);
  for (int64_t j = t->g[0].lo_min, base; j < end; j = base + ATTN_BLOCK_) {
    int64_t j0 = j, j1;
    base = j / ATTN_BLOCK_ * ATTN_BLOCK_;
    j1 = end - base < ATTN_BLOCK_ ? end : base + ATTN_BLOCK_;
    int partial = t->g[0].ragged || t->g[0].lo_max > j0 || t->g[0].hi_min < j1;
    if (open) {
      const int seen = attn_few_block_(t, &b, base, &j0, &j1);
      if (!seen) continue;
      partial = seen > 1;
    } else {
      attn_few_scores_(t, base, j0, j1);
      *t->w.pairs += (int64_t)t->n * (j1 - j0);
    }
    /* whole groups of 16 keys */
    const int from = (int)((j0 - base) / 16 * 16), to = (int)((j1 - base + 15) / 16 * 16);
    const int filled = (open || !partial) && j0 == base + from && j1 == base + to;
    for (int r = 0; !filled && r < t->n; r++) {
      float *s = t->w.row_s + r * ATTN_ROWS_ROOM_ - base;
      const int64_t lo = open || t->lo[r] < j0 ? j0 : t->lo[r] < j1 ? t->lo[r] : j1;
      const int64_t hi = open || t->hi[r] > j1 ? j1 : t->hi[r];
      for (int64_t x = base + from; x < lo; x++) s[x] = -INFINITY;
      for (int64_t x = hi > lo ? hi : lo; x < base + to; x++) s[x] = -INFINITY;
    }
    t->partial |= partial;
    attn_on_(few, f)->softmax_rows(t->w.row_s, t->n, from, to, t->m, t->l, t->alpha);
    if (++t->blocks == 2)
      memset(t->w.row_o, 0, (size_t)(t->n * attn_row_width_(a->v.dim)) * sizeof(float));
    if (t->careful && partial)
      attn_few_own_values_(t, open ? &b : NULL, base, j0, j1);
    else
      attn_few_values_(t, base, j0, j1, 0, t->n, attn_few_alpha_(t, 0));
  }
}

/* The result is where the sums of its rows are. */
ATTN_FUNC_ float *attn_few_sweep_(attn_tile_ *t) {
  const int64_t width = attn_row_width_(t->a->v.dim);
  float *o = t->w.row_o;
  attn_tile_load_(t);
  t->partial = 0, t->scored = 1, t->blocks = 0;
  memset(o + ATTN_ROWS_ * width, 0, (size_t)(t->n * width) * sizeof(float));
  for (int part = 0; part < attn_tile_parts_(t); part++) {
    attn_tile_part_(t, part);
    attn_few_walk_(t);
  }
  if (t->blocks < 2) return o + ATTN_ROWS_ * width;
  attn_kv_rows_ none = t->rows_v; /* the last block is complete */
  none.n = 0;
  attn_on_(few, t->a->table)->value_rows(o, width, t->w.row_s, t->n, &none, attn_alpha_one_);
  return o;
}

/* Sinks, division and storage of rows whose sums are complete. */
ATTN_FUNC_ void attn_few_close_(attn_tile_ *t, float *o, int64_t width) {
  const attn_softmax_ *a = t->a;
  attn_tile_divide_(t);
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && reshape->gate) reshape->gate(t, o, width);
  for (int r = 0; r < t->n; r++)
    a->table->blend(t->out[r], o + r * width, NULL, a->o.dtype, ATTN_F32, ATTN_F32, a->v.dim,
                    t->scale[r], 0.0f);
}

/* A split by rows. The result is where their sums are. */
ATTN_FUNC_ float *attn_few_by_row_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const int64_t kw = attn_row_width_(a->q.dim), vw = attn_row_width_(a->v.dim);
  const int64_t pairs = *t->w.pairs;
  const int pairs_k = a->k.dtype == ATTN_I4 && attn_few_direct_(&a->k, &a->k_scales);
  const int pairs_v = a->v.dtype == ATTN_I4 && attn_few_direct_(&a->v, &a->v_scales);
  for (int r = 0; r < t->n; r++) {
    if (kw > a->q.dim)
      memset(t->w.row_q + r * kw + a->q.dim, 0, (size_t)(kw - a->q.dim) * sizeof(float));
    attn_on_(few, a->table)
        ->pack_row(t->w.row_q + r * kw, attn_at_(&a->q, t->batch, t->head[r], t->row[r]), a->q.dim,
                   a->q.dtype, a->scale_hi, a->scale_lo);
    const float *mix = ATTN_PART_(COMPOSED, a->mix) ? a->mix + t->head[r] * a->q.dim : NULL;
    if (mix)
      for (int64_t c = 0; c < a->q.dim; c++) t->w.row_q[r * kw + c] *= mix[c];
    if (pairs_k) attn_row_pairs_(t->w.row_q + r * kw, kw, 1);
  }
  attn_tile_reshape_(t);
  attn_few_open_(&a->k, &a->k_scales, &t->rows_k);
  attn_few_open_(&a->v, &a->v_scales, &t->rows_v);
  t->careful = 0;
  float *o = attn_few_sweep_(t);
  if (t->partial && !a->table->finite(o, vw, t->n, a->v.dim)) {
    t->careful = 1, *t->w.pairs = pairs;
    o = attn_few_sweep_(t);
  }
  if (pairs_v)
    for (int r = 0; r < t->n; r++) attn_row_pairs_(o + r * vw, vw, 0);
  return o;
}

/* A split by lanes. */
ATTN_FUNC_ void attn_few_by_lane_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const int64_t pairs = *t->w.pairs;
  t->careful = t->rel_careful = t->scored = 0;
  attn_tile_terms_(t);
  attn_tile_reshape_(t);
  int started = attn_tile_sweep_(t);
  if (t->partial && started && !a->table->finite(t->w.ot, ATTN_TILE_, a->v.dim, t->n)) {
    t->careful = 1, *t->w.pairs = pairs;
    started = attn_tile_sweep_(t);
  }
  if (!started) memset(t->w.ot, 0, (size_t)(a->v.dim * ATTN_TILE_) * sizeof(float));
}

/* Whether some row may see a key of key0 .. key1, by lengths and window. */
ATTN_FUNC_ int attn_few_seen_(const attn_softmax_ *a, int64_t batch, int64_t key0, int64_t key1) {
  const int64_t keys = a->kv_len ? a->kv_len[batch] : a->k.len;
  const int64_t lo = a->q_off - a->left, hi = a->q_off + a->q.len + a->right;
  return key0 < keys && key0 < hi && (key1 > lo || key0 < a->keep);
}

/* A split of one (batch, head group). */
ATTN_FUNC_ void attn_few_split_(const attn_softmax_ *a, int worker, int64_t unit, int64_t split) {
  const int64_t dv = a->v.dim;
  const int64_t vw = attn_row_width_(dv), part = attn_part_(a, unit, split);
  attn_tile_ t;
  t.a = a, t.plan = t.next = NULL, t.asked = ATTN_TILE_, t.given = NULL, t.keys = NULL;
  t.before = NULL;
  t.key0 = (split < a->kept ? split : split + a->skip) * ATTN_SPLIT_, t.key1 = t.key0 + ATTN_SPLIT_;
  if (a->splits > 1 &&
      !attn_few_seen_(a, unit / (a->q.heads / a->group), t.key0, t.key1)) { /* nothing to merge */
    for (int64_t r = 0; r < a->group * a->q.len; r++) a->part_l[part + r] = -1.0f;
    return;
  }
  attn_scratch_cut_(a, worker, &t.w);
  attn_tile_group_rows_(&t, unit, 0);
  attn_tile_lanes_(&t);
  float *o = NULL;
  if (a->by_row)
    o = attn_few_by_row_(&t);
  else
    attn_few_by_lane_(&t);
  if (a->splits == 1) {
    if (a->by_row)
      attn_few_close_(&t, o, vw);
    else
      attn_tile_finish_(&t);
    return;
  }
  memcpy(a->part_m + part, t.m, (size_t)t.n * sizeof(float));
  memcpy(a->part_l + part, t.l, (size_t)t.n * sizeof(float));
  void *rows[ATTN_TILE_];
  for (int r = 0; r < t.n; r++) {
    rows[r] = a->part_o + (part + r) * dv;
    if (a->by_row) memcpy(rows[r], o + r * vw, (size_t)dv * sizeof(float));
  }
  if (!a->by_row) a->table->unpack(rows, t.w.ot, t.n, dv, ATTN_F32, NULL);
}

/* A work item of a call whose batch entries are alike. */
ATTN_FUNC_ void attn_few_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_few_split_(a, worker, index / a->splits, index % a->splits);
}

/* Merges the parts of one (batch, head group): l = sum_s l_s 2^(m_s - m), o likewise, in the order of
 * the splits. Parts that saw no key are left out. */
ATTN_FUNC_ void attn_few_join_(const attn_softmax_ *a, int worker, int64_t unit) {
  const int64_t rows = a->group * a->q.len, dv = a->v.dim, first = attn_part_(a, unit, 0);
  attn_tile_ t;
  t.a = a, t.plan = t.next = NULL;
  attn_scratch_cut_(a, worker, &t.w);
  attn_tile_group_rows_(&t, unit, 0);
  t.groups = (t.n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  attn_tile_load_(&t);
  for (int r = 0; r < t.n; r++) {
    float *o = t.w.merge_o + r * dv, *weight = t.w.merge_w;
    int32_t *index = t.w.merge_i;
    int64_t n = 0;
    float m = -INFINITY;
    for (int64_t s = 0; s < a->splits; s++) {
      const int64_t at = first + s * rows + r;
      if (a->part_l[at] < 0.0f) continue;
      index[n] = (int32_t)s, weight[n++] = a->part_m[at];
      if (a->part_m[at] > m) m = a->part_m[at];
    }
    a->table->weights(weight, weight, n, m == -INFINITY ? 0.0f : m, 1.0f);
    double l = 0.0;
    for (int64_t s = 0; s < n; s++)
      l += (double)a->part_l[first + index[s] * rows + r] * (double)weight[s];
    memset(o, 0, (size_t)dv * sizeof(float));
    attn_on_(sum, a->table)
        ->axpys(o, weight, a->part_o + (first + r) * dv, rows * dv, index, n, dv, ATTN_F32, 1.0f,
                0);
    t.m[r] = m, t.l[r] = (float)l;
    t.out[r] = attn_at_(&a->o, t.batch, t.head[r], t.row[r]);
  }
  attn_few_close_(&t, t.w.merge_o, dv);
}

ATTN_FUNC_ void attn_few_merge_(void *job, int worker, int64_t unit) {
  attn_few_join_((const attn_softmax_ *)job, worker, unit);
}

#undef ATTN_FEW_QUERIES_
#undef ATTN_FEW_ROWS_
#undef ATTN_AHEAD_BYTES_
