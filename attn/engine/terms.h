/* engine/terms.h owns the score terms that need more than a vector operation per score: dot products
 * with tables of relative vectors (E2), their weights on the value side (E9), and the user's
 * modifier. */

/* The keys a tile may see, first to last. 0 = none. */
ATTN_FUNC_ int attn_tile_keys_(const attn_tile_ *t, int64_t *first, int64_t *last) {
  const attn_plan_ *plan = ATTN_PART_(PATTERN, t->a->plan);
  *first = INT64_MAX, *last = -1;
  for (int g = 0; g < t->groups; g++) {
    if (t->g[g].hi_max - 1 > *last) *last = t->g[g].hi_max - 1;
    if (t->g[g].hi_max > 0 && t->g[g].lo_min < *first) *first = t->g[g].lo_min;
  }
  if (plan && t->plan->count > 0 && t->plan->step != 0) {
    const attn_plan_run_ *run =
        (const attn_plan_run_ *)attn_plan_at_(plan, plan->at_run) + t->plan->at;
    const attn_plan_run_ *end = run + t->plan->count - 1;
    if (run->key > *first) *first = run->key;
    const int64_t most = end->key + (int64_t)(end->n - 1) * attn_abs64_(t->plan->step);
    if (most < *last) *last = most;
  }
  return *first <= *last;
}

ATTN_FUNC_ int64_t attn_relative_clip_(const attn_softmax_ *a) {
  const attn_relative *x = &a->relative;
  return ((x->keys.data ? x->keys.len : x->values.data ? x->values.len : x->queries.len) - 1) / 2;
}

/* Before a tile's first block: dots of its queries with the vectors of every label and distance that
 * occurs, and the biases of Transformer-XL. */
ATTN_FUNC_ void attn_tile_terms_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dk = a->q.dim, h = t->head[0];
  const double s = a->scale * a->unit;
  int64_t first, last;
  t->rel_rows = t->rel_first = 0;
  if ((ATTN_PART_(TERMS, a->relative.keys.data) || ATTN_PART_(TERMS, a->relative.values.data)) &&
      attn_tile_keys_(t, &first, &last)) {
    const int64_t c = attn_relative_clip_(a);
    int64_t near = INT64_MAX, far = INT64_MIN;
    for (int g = 0; g < t->groups; g++) {
      if (t->g[g].pos_min < near) near = t->g[g].pos_min;
      if (t->g[g].pos_max > far) far = t->g[g].pos_max;
    }
    t->rel_first = attn_clamp_(first - far, -c, c);
    t->rel_rows = attn_clamp_(last - near, -c, c) - t->rel_first + 1;
    if (ATTN_PART_(TERMS, a->relative.keys.data))
      attn_on_(tile, f)->score_block(
          t->w.rel_keys, t->w.qt, attn_table_row_(&a->relative.keys, h, t->rel_first + c),
          a->relative.keys.stride_len, t->rel_rows, dk, 0, t->groups, t->spare);
  }
  if (ATTN_PART_(TERMS, a->relative.queries.data))
    for (int r = 0; r < ATTN_TILE_; r++) t->w.rel_queries[r] = 1.0f;
  if (ATTN_PART_(TERMS, a->labels.label)) {
    const int64_t n = a->labels.table.len;
    attn_on_(tile, f)->score_block(t->w.labels, t->w.qt, attn_table_row_(&a->labels.table, h, 0),
                                   a->labels.table.stride_len, n, dk, 0, t->groups, t->spare);
    if (a->labels.bias)
      for (int64_t e = 0; e < n; e++) {
        const float x = (float)attn_clamp_f64_((double)a->labels.bias[e * a->q.heads + h] * s);
        for (int r = 0; r < t->n; r++) t->w.labels[e * ATTN_TILE_ + r] += x;
      }
  }
  if (ATTN_PART_(TERMS, a->xl.table.data)) { /* last: the other terms use the plain queries */
    for (int64_t c = 0; c < dk; c++) {
      const float u = a->xl.u ? a->xl.u[h * dk + c] : 0.0f;
      const float v = a->xl.v ? a->xl.v[h * dk + c] : 0.0f;
      const float us = (float)((double)u * s), vs = (float)((double)v * s);
      float *x = t->w.qt + c * ATTN_TILE_, *y = t->w.xl_qt + c * ATTN_TILE_;
      for (int r = 0; r < t->groups * ATTN_GROUP_; r++) y[r] = x[r] + vs, x[r] += us;
    }
    if (ATTN_PART_(LOW, a->low) && !ATTN_PART_(LOW, a->codes)) attn_low_queries_(t, ATTN_F32);
  }
}

/* Which row of relative vectors the lanes of group g want for a key; -1 = not the same one. */
ATTN_FUNC_ int64_t attn_relative_row_(const attn_tile_ *t, int g, int64_t key, int64_t c) {
  if (key - t->g[g].pos_min <= -c) return -c - t->rel_first;
  if (key - t->g[g].pos_max >= c) return c - t->rel_first;
  return -1;
}

/* The entries from e on, before end, that want the same row as e. */
ATTN_FUNC_ int attn_relative_run_(const attn_tile_ *t, const attn_block_ *b, int g, int e, int end,
                                  int64_t c) {
  const int64_t row = attn_relative_row_(t, g, attn_block_key_(b, e), c);
  int n = 1;
  while (e + n < end && attn_relative_row_(t, g, attn_block_key_(b, e + n), c) == row) n++;
  return n;
}

/* s[key][lane] += q . keys[distance] for a segment. Most keys lie beyond the clipping distance of a
 * whole lane group: they get one row. */
ATTN_FUNC_ void attn_block_relative_keys_(attn_tile_ *t, const attn_block_ *b,
                                          const attn_segment_ *seg) {
  static const int32_t back[ATTN_BLOCK_] = {0};
  const int64_t c = attn_relative_clip_(t->a);
  attn_modifiers_ mod;
  memset(&mod, 0, sizeof mod);
  mod.back = back;
  for (int g = seg->g0; g < seg->g1; g++)
    for (int e = seg->at, n; e < seg->at + seg->n; e += n) {
      const int64_t row = attn_relative_row_(t, g, attn_block_key_(b, e), c);
      float *s = t->w.s + e * ATTN_TILE_;
      n = attn_relative_run_(t, b, g, e, seg->at + seg->n, c);
      if (row >= 0) {
        mod.table = t->w.rel_keys + row * ATTN_TILE_;
        attn_on_(tile, t->a->table)->modify_block(s, n, g, g + 1, &mod, t->spare);
        continue;
      }
      for (int i = 0; i < n; i++)
        for (int r = g * ATTN_GROUP_; r < (g + 1) * ATTN_GROUP_ && r < t->n; r++) {
          const int64_t d = attn_clamp_(attn_block_key_(b, e + i) - t->pos[r], -c, c);
          s[i * ATTN_TILE_ + r] += t->w.rel_keys[(d - t->rel_first) * ATTN_TILE_ + r];
        }
    }
}

ATTN_FUNC_ void attn_tile_relative_clear_(attn_tile_ *t) {
  if (!ATTN_PART_(TERMS, t->a->relative.values.data) || t->rel_rows == 0) return;
  memset(t->w.rel_values, 0, (size_t)(t->rel_rows * ATTN_TILE_) * sizeof(float));
  memset(t->w.rel_hit, 0, (size_t)(t->rel_rows * ATTN_TILE_));
}

/* Whether row r may see entry e by what the driver knows; a bias may still forbid it. */
ATTN_FUNC_ int attn_block_sees_(const attn_tile_ *t, const attn_block_ *b, int e, int r) {
  const int64_t key = attn_block_key_(b, e);
  return t->lo[r] <= key && key < t->hi[r] && !(b->by_lane && !(b->lanes[e] >> r & 1));
}

/* Whether row r reads entry e. By the masks, not by the score: an allowed score may be -inf, and its
 * value is read; what a user's modifier forbids, before scores were given too, or a choice leaves out can
 * only be seen in the score. */
ATTN_FUNC_ int attn_block_reads_(const attn_tile_ *t, const attn_block_ *b, int e, int r) {
  const int64_t cell = e * ATTN_TILE_ + r;
  return attn_block_sees_(t, b, e, r) && !(b->mod.key && b->mod.key[e] == -INFINITY) &&
         !(b->mod.bias && b->mod.bias[cell] == -INFINITY) &&
         !((attn_modifies_(t->a) || ATTN_PART_(CONTENT, t->a->choice) || t->given) &&
           t->w.s[cell] == -INFINITY);
}

/* Notes the distances at which each row has a key; before scores become weights. */
ATTN_FUNC_ void attn_block_relative_hits_(attn_tile_ *t, const attn_block_ *b) {
  const int64_t c = attn_relative_clip_(t->a);
  for (int e = 0; e < b->n; e++)
    for (int r = 0; r < t->n; r++) {
      const int64_t d = attn_clamp_(attn_block_key_(b, e) - t->pos[r], -c, c) - t->rel_first;
      if (attn_block_reads_(t, b, e, r)) t->w.rel_hit[d * ATTN_TILE_ + r] = 1;
    }
}

/* Weights of a block by clipped distance: what lies beyond the clipping distance is many keys, which are
 * summed from zero as values are; at every other distance there is one key. */
typedef struct attn_beyond_ {
  float sum[2][ATTN_GROUP_]; /* on either side; clip 0: both in the first */
  int64_t clip;
} attn_beyond_;

/* One weight of row r. */
ATTN_FUNC_ void attn_relative_add_(attn_tile_ *t, attn_beyond_ *x, int r, int64_t key, float p) {
  const int64_t d = attn_clamp_(key - t->pos[r], -x->clip, x->clip);
  if (d == -x->clip)
    x->sum[0][r % ATTN_GROUP_] += p;
  else if (d == x->clip)
    x->sum[1][r % ATTN_GROUP_] += p;
  else
    t->w.rel_values[(d - t->rel_first) * ATTN_TILE_ + r] += p;
}

/* The sums of rows r0 .. r1 of a group meet those of the blocks before. */
ATTN_FUNC_ void attn_relative_meet_(attn_tile_ *t, const attn_beyond_ *x, int r0, int r1) {
  for (int side = 0; side < 2; side++) {
    const int64_t d = (side ? x->clip : -x->clip) - t->rel_first;
    for (int r = r0; d >= 0 && d < t->rel_rows && r < r1; r++)
      t->w.rel_values[d * ATTN_TILE_ + r] += x->sum[side][r % ATTN_GROUP_];
  }
}

/* The block's weights, of keys that one lane group has scores for. */
ATTN_FUNC_ void attn_block_relative_group_(attn_tile_ *t, const attn_block_ *b, int g) {
  static const float one = 1.0f;
  attn_beyond_ x = {{{0}, {0}}, attn_relative_clip_(t->a)};
  const int end = b->end[g], r0 = g * ATTN_GROUP_,
            r1 = t->n < r0 + ATTN_GROUP_ ? t->n : r0 + ATTN_GROUP_;
  for (int e = b->first[g], n; e < end; e += n) {
    const int64_t row = attn_relative_row_(t, g, attn_block_key_(b, e), x.clip);
    const float *p = t->w.s + e * ATTN_TILE_;
    n = attn_relative_run_(t, b, g, e, end, x.clip);
    if (row >= 0 && n == end - b->first[g]) { /* a block far away: the same sum */
      attn_on_(tile, t->a->table)
          ->value_block(t->w.rel_values + row * ATTN_TILE_, p, &one, 0, n, 1, g, g + 1, NULL, 0);
      return;
    }
    float *sum = x.sum[x.clip > 0 && row + t->rel_first == x.clip];
    for (int j = 0; j < n && row >= 0; j++)
      for (int i = 0; i < ATTN_GROUP_; i++) sum[i] += p[j * ATTN_TILE_ + r0 + i];
    for (int j = 0; j < n && row < 0; j++)
      for (int r = r0; r < r1; r++)
        attn_relative_add_(t, &x, r, attn_block_key_(b, e + j), p[j * ATTN_TILE_ + r]);
  }
  attn_relative_meet_(t, &x, r0, r1);
}

/* Adds the block's weights to the sums by distance. */
ATTN_FUNC_ void attn_block_relative_values_(attn_tile_ *t, const attn_block_ *b, int started) {
  for (int g = 0; g < t->groups; g++) {
    if (b->end[g] == 0) continue;
    if (started)
      attn_on_(tile, t->a->table)->scale_block(t->w.rel_values, t->rel_rows, g, g + 1, t->alpha);
    if (t->rel_rows > 0) attn_block_relative_group_(t, b, g);
  }
}

ATTN_FUNC_ void attn_block_labels_(attn_tile_ *t, const attn_block_ *b, const attn_segment_ *seg) {
  const attn_labels *z = &t->a->labels;
  for (int e = seg->at; e < seg->at + seg->n; e++)
    for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_ && r < t->n; r++) {
      if (!attn_block_sees_(t, b, e, r)) continue;
      const int64_t x = z->label(z->user, t->batch, t->head[r], t->row[r], attn_block_key_(b, e));
      if (x >= 0 && x < z->table.len) t->w.s[e * ATTN_TILE_ + r] += t->w.labels[x * ATTN_TILE_ + r];
    }
}

/* t->w.dot = (q + v) . table[j - p] for a tile of consecutive rows and consecutive keys. Between
 * them only n + 63 distances occur: they are computed once, as scores of table rows, and read along
 * diagonals by transposing, shifting each row and transposing back. The next block's first 63 are
 * this one's last. */
ATTN_FUNC_ void attn_block_xl_lined_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t more = t->n - 1, far = t->pos[t->n - 1], stride = a->xl.table.stride_len;
  const int64_t row0 = b->j0 - far - a->xl.first; /* of entry 0 */
  const int64_t count = b->n + more, done = t->xl_next == b->j0 ? more : 0;
  const int64_t from = attn_clamp_(-row0, done, count);
  const int64_t to = attn_clamp_(a->xl.table.len - row0, from, count);
  void *row[ATTN_GROUP_];
  const void *src[ATTN_GROUP_];
  float *dots = t->w.xl_dots;
  for (int64_t e = done; e < count; e++) /* distances that no allowed pair has */
    if (e < from || e >= to) memset(dots + e * ATTN_TILE_, 0, ATTN_TILE_ * sizeof(float));
  if (to > from)
    attn_on_(tile, f)->score_block(dots + from * ATTN_TILE_, t->w.xl_qt,
                                   attn_table_row_(&a->xl.table, t->head[0], row0 + from), stride,
                                   to - from, a->q.dim, 0, t->groups, t->spare);
  for (int g = 0; g < t->groups; g++) {
    const int r0 = g * ATTN_GROUP_, n = t->n - r0 < ATTN_GROUP_ ? t->n - r0 : ATTN_GROUP_;
    const int64_t last = t->pos[r0 + n - 1];
    for (int r = 0; r < n; r++) {
      float *x = t->w.rows + r * ATTN_ROOM_;
      row[r] = x, src[r] = x + (last - t->pos[r0 + r]);
    }
    f->unpack(row, dots + (far - last) * ATTN_TILE_ + r0, n, b->n + n - 1, ATTN_F32, NULL);
    f->pack(t->w.dot + r0, src, n, b->n, ATTN_F32, 1.0f, attn_least_(1.0f));
  }
  memmove(dots, dots + b->n * ATTN_TILE_, (size_t)(more * ATTN_TILE_) * sizeof(float));
  t->xl_next = b->j0 + b->n;
}

/* The same for one row and any keys, as out[e]; q is row r of the transposed-back queries. */
ATTN_FUNC_ void attn_xl_row_(const attn_tile_ *t, float *out, const float *q, int r,
                             const int32_t *key, int n) {
  const attn_xl *z = &t->a->xl;
  int32_t row[ATTN_BLOCK_];
  for (int e = 0; e < n; e++)
    row[e] = (int32_t)attn_clamp_(key[e] - t->pos[r] - z->first, 0, z->table.len - 1);
  attn_on_(list, t->a->table)
      ->dots(out, q, attn_table_row_(&z->table, t->head[0], 0), z->table.stride_len, row, n,
             t->a->q.dim, ATTN_F32, 0);
}

ATTN_FUNC_ void attn_block_xl_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  void *row[ATTN_TILE_];
  const void *src[ATTN_TILE_];
  int32_t key[ATTN_BLOCK_];
  if (t->lined && !b->gathered) {
    attn_block_xl_lined_(t, b);
    return;
  }
  for (int e = 0; e < b->n; e++) key[e] = (int32_t)attn_block_key_(b, e);
  for (int r = 0; r < t->n; r++) row[r] = t->w.q_rows + r * a->q.dim;
  a->table->unpack(row, t->w.xl_qt, t->n, a->q.dim, ATTN_F32, NULL);
  for (int r = 0; r < t->n; r++) {
    float *x = t->w.rows + r * ATTN_ROOM_;
    attn_xl_row_(t, x, (const float *)row[r], r, key, b->n);
    src[r] = x;
  }
  a->table->pack(t->w.dot, src, t->n, b->n, ATTN_F32, 1.0f, attn_least_(1.0f));
}

/* Rows of the block's keys in f32. Those of products of halves or codes need not be there. */
ATTN_FUNC_ const float *attn_relative_rows_of_(attn_tile_ *t, const attn_block_ *b,
                                               int64_t *stride) {
  const attn_softmax_ *a = t->a;
  *stride = b->k_stride;
  if (b->gathered || !(ATTN_PART_(LOW, a->low) || ATTN_PART_(LOW, a->codes))) return b->k;
  t->w.held->n = 0; /* w.k has others from here on */
  return attn_block_rows_(a, b, &a->k, &a->k_scales, t->batch, t->head_k, t->w.k, stride);
}

/* Keys at .. at + 16 of a tile of consecutive rows, in lanes at % 64 on of w.rel_queries: their products with the
 * vectors of all distances between, the furthest ahead first, added to t->w.dot along diagonals. */
ATTN_FUNC_ void attn_relative_queries_group_(attn_tile_ *t, const attn_block_ *b, int at, int n) {
  const attn_tensor *x = &t->a->relative.queries;
  const attn_table_ *f = t->a->table;
  const int64_t c = attn_relative_clip_(t->a), key = b->j0 + at, pos = t->pos[0];
  const int64_t last = attn_clamp_(key + n - 1 - pos, -c, c);
  const int64_t rows = last - attn_clamp_(key - pos - (t->n - 1), -c, c) + 1;
  const int g = at / ATTN_GROUP_ % (ATTN_TILE_ / ATTN_GROUP_);
  const float *by = t->w.rel_queries, *qt = by + ATTN_TILE_;
  float *dots = t->w.rel_queries + (t->a->q.dim + 1) * ATTN_TILE_;
  void *row[ATTN_GROUP_];
  attn_on_(tile, f)->score_block(dots, qt, attn_table_row_(x, t->head[0], last + c), -x->stride_len,
                                 rows, t->a->q.dim, g, g + 1, t->spare);
  for (int e = 0; e < n; e++) row[e] = t->w.rows + e * ATTN_ROOM_;
  f->unpack(row, dots + g * ATTN_GROUP_, n, rows, ATTN_F32, NULL);
  for (int e = 0; e < n; e++) {
    const float *y = (const float *)row[e];
    float *s = t->w.dot + (at + e) * ATTN_TILE_;
    const int64_t d = key + e - pos; /* of row 0 */
    const int r0 = (int)attn_clamp_(d - c, 0, t->n), r1 = (int)attn_clamp_(d + c, r0, t->n);
    for (int r = 0; r < r0; r++) s[r] += by[r] * y[last - c];
    for (int r = r0; r < r1; r++) s[r] += by[r] * y[last - d + r];
    for (int r = r1; r < t->n; r++) s[r] += by[r] * y[last + c];
  }
}

/* t->w.dot += k . queries[distance]. Rows of a schedule have other distances each: product by product. */
ATTN_FUNC_ void attn_block_relative_queries_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_tensor *x = &a->relative.queries;
  const int64_t c = attn_relative_clip_(a);
  const float *by = t->w.rel_queries, s = (float)(a->scale * a->unit);
  int64_t stride;
  const float *k = attn_relative_rows_of_(t, b, &stride);
  if (!ATTN_PART_(TERMS, a->xl.table.data))
    memset(t->w.dot, 0, (size_t)(b->n * ATTN_TILE_) * sizeof(float));
  if (t->lined && !b->gathered) {
    for (int at = 0; at < b->n; at += ATTN_TILE_) {
      const int end = b->n - at < ATTN_TILE_ ? b->n : at + ATTN_TILE_;
      const void *row[ATTN_TILE_];
      for (int e = at; e < end; e++) row[e - at] = k + e * stride;
      a->table->pack(t->w.rel_queries + ATTN_TILE_, row, end - at, a->q.dim, ATTN_F32, a->scale_hi,
                     a->scale_lo);
      for (int e = at; e < end; e += ATTN_GROUP_)
        attn_relative_queries_group_(t, b, e, end - e < ATTN_GROUP_ ? end - e : ATTN_GROUP_);
    }
    return;
  }
  for (int e = 0; e < b->n; e++) {
    int32_t row[ATTN_TILE_];
    float y[ATTN_TILE_];
    for (int r = 0; r < t->n; r++)
      row[r] = (int32_t)(attn_clamp_(attn_block_key_(b, e) - t->pos[r], -c, c) + c);
    attn_on_(list, a->table)
        ->dots(y, k + e * stride, attn_table_row_(x, t->head[0], 0), x->stride_len, row, t->n,
               a->q.dim, ATTN_F32, 0);
    for (int r = 0; r < t->n; r++) t->w.dot[e * ATTN_TILE_ + r] += by[r] * (y[r] * s);
  }
}

/* The soft-cap by itself. */
ATTN_FUNC_ void attn_tile_cap_(const attn_tile_ *t, float *s, int64_t n, int g0, int g1) {
  attn_modifiers_ cap;
  float top[ATTN_TILE_] = {0};
  memset(&cap, 0, sizeof cap);
  cap.softcap = t->a->softcap;
  attn_on_(tile, t->a->table)->modify_block(s, n, g0, g1, &cap, top);
}

/* Scores to natural units, or back from them. */
ATTN_FUNC_ void attn_tile_natural_(const attn_tile_ *t, float *s, int64_t n, int g0, int g1,
                                   int natural) {
  float by[ATTN_TILE_];
  const double unit = t->a->unit;
  if (unit == 1.0) return;
  for (int r = 0; r < ATTN_TILE_; r++) by[r] = (float)(natural ? 1.0 / unit : unit);
  attn_on_(tile, t->a->table)->scale_block(s, n, g0, g1, by);
}

/* Hands weights [key][lane] to the caller's function or, with weights = 0, scores in natural units to the
 * terms that are functions and the user's modifier. */
ATTN_FUNC_ void attn_tile_modify_(const attn_tile_ *t, float *s, const int64_t *key, int64_t n,
                                  int r0, int r1, int weights) {
  attn_score_tile tile;
  memset(&tile, 0, sizeof tile);
  tile.score = s + r0, tile.key_stride = ATTN_TILE_, tile.query_stride = 1;
  tile.batch = t->batch, tile.keys = n, tile.queries = r1 - r0;
  tile.key = key, tile.query = t->row + r0, tile.position = t->pos + r0, tile.head = t->head + r0;
  if (weights)
    t->a->modify_weights(t->a->modify_weights_user, &tile);
  else
    attn_terms_apply_(t->a, &tile);
}

ATTN_FUNC_ void attn_block_modify_(attn_tile_ *t, const attn_block_ *b, const attn_segment_ *seg) {
  int64_t key[ATTN_BLOCK_];
  const int r1 = seg->g1 * ATTN_GROUP_;
  for (int e = 0; e < seg->n; e++) key[e] = attn_block_key_(b, seg->at + e);
  float *s = t->w.s + seg->at * ATTN_TILE_;
  attn_tile_natural_(t, s, seg->n, seg->g0, seg->g1, 1);
  attn_tile_modify_(t, s, key, seg->n, seg->g0 * ATTN_GROUP_, r1 < t->n ? r1 : t->n, 0);
  attn_tile_natural_(t, s, seg->n, seg->g0, seg->g1, 0);
}
