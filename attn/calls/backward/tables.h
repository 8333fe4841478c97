/* calls/backward/tables.h owns what pairs send to rows of tables, and get from them: relative keys, queries
 * and values, labels, Transformer-XL's distances. Of a block of keys the pairs that read the same row are summed first,
 * query by query; what follows are products of the rows that some pair has read. Relative queries are the same with
 * keys and queries exchanged. */

ATTN_FUNC_ const attn_tensor *attn_pair_table_(const attn_softmax_ *a, int kind) {
  return kind == ATTN_PAIR_KEYS_     ? &a->relative.keys
         : kind == ATTN_PAIR_LABELS_ ? &a->labels.table
         : kind == ATTN_PAIR_XL_     ? &a->xl.table
         : kind == ATTN_PAIR_VALUES_ ? &a->relative.values
                                     : &a->relative.queries;
}

ATTN_FUNC_ int attn_pair_there_(const attn_softmax_ *a, int kind) {
  return ATTN_HAS_TERMS && attn_pair_table_(a, kind)->data != NULL;
}

ATTN_FUNC_ const attn_tensor *attn_pair_gradient_(const attn_sdpa_gradients *g, int kind) {
  return kind == ATTN_PAIR_KEYS_     ? &g->d_relative.keys
         : kind == ATTN_PAIR_LABELS_ ? &g->d_label_table
         : kind == ATTN_PAIR_XL_     ? &g->d_xl_table
         : kind == ATTN_PAIR_VALUES_ ? &g->d_relative.values
                                     : &g->d_relative.queries;
}

ATTN_FUNC_ int attn_pair_any_(const attn_softmax_ *a) {
  int any = 0;
  for (int kind = 0; kind < ATTN_PAIR_TABLES_; kind++) any |= attn_pair_there_(a, kind);
  return any;
}

/* Rows of tables that the pairs of a block may read. */
ATTN_FUNC_ int64_t attn_pair_most_(const attn_softmax_ *a) {
  int64_t most = 0;
  for (int kind = 0; kind < ATTN_PAIR_QUERIES_; kind++) {
    if (!attn_pair_there_(a, kind)) continue;
    const int64_t len = attn_pair_table_(a, kind)->len, apart = attn_add_(a->q.len, a->k.len);
    const int64_t n = kind == ATTN_PAIR_LABELS_ ? len : attn_min64_(len, apart);
    if (n > most) most = n;
  }
  return most;
}

/* Which row a distance reads: clip(d, -clip, clip) + shift. */
typedef struct attn_pair_rule_ {
  int64_t clip, shift;
} attn_pair_rule_;

ATTN_FUNC_ attn_pair_rule_ attn_pair_rule_of_(const attn_softmax_ *a, int kind) {
  attn_pair_rule_ rule = {INT64_MAX / 4, -a->xl.first};
  if (kind != ATTN_PAIR_XL_) rule.clip = rule.shift = (attn_pair_table_(a, kind)->len - 1) / 2;
  return rule;
}

ATTN_INLINE_ int64_t attn_pair_row_(const attn_pair_rule_ *rule, int64_t d) {
  return attn_clamp_(d, -rule->clip, rule->clip) + rule->shift;
}

/* The rows that keys e0 .. e1 of a block may read. */
ATTN_FUNC_ void attn_pair_window_(const attn_tile_ *t, const attn_block_ *b, int e0, int e1,
                                  const attn_pair_rule_ *rule, int64_t len, int64_t *lo,
                                  int64_t *hi) {
  int64_t near = INT64_MAX, far = INT64_MIN;
  for (int g = 0; g < t->groups; g++) {
    if (t->g[g].pos_min < near) near = t->g[g].pos_min;
    if (t->g[g].pos_max > far) far = t->g[g].pos_max;
  }
  *lo = attn_clamp_(attn_pair_row_(rule, attn_block_key_(b, e0) - far), 0, len - 1);
  *hi = attn_clamp_(attn_pair_row_(rule, attn_block_key_(b, e1) - near), 0, len - 1);
}

/* Which rows read each key of a block. */
ATTN_FUNC_ void attn_backward_reads_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                     const attn_block_ *b) {
  uint64_t alive = 0;
  for (int r = 0; r < t->n; r++) alive |= (uint64_t)(m->lanes->hi[r] != INFINITY) << r;
  for (int e = 0; e < b->n; e++) {
    m->reads[e] = alive;
    for (int r = 0; b->partial && r < t->n; r++)
      if (!attn_block_reads_(t, b, e, r)) m->reads[e] &= ~((uint64_t)1 << r);
  }
}

/* ---- sums of pairs --------------------------------------------------------------------------*/

/* x [key][lane] of the pairs that a segment has: by label, */
ATTN_FUNC_ void attn_pair_label_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                 const attn_block_ *b, const attn_segment_ *seg, const float *x) {
  const attn_labels *z = &t->a->labels;
  for (int e = seg->at; e < seg->at + seg->n; e++)
    for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_ && r < t->n; r++) {
      if (!(m->reads[e] >> r & 1)) continue;
      const int64_t at = z->label(z->user, t->batch, t->head[r], t->row[r], attn_block_key_(b, e));
      if (at < 0 || at >= z->table.len) continue;
      m->pair.sum[at * ATTN_TILE_ + r] += x[e * ATTN_TILE_ + r];
      m->pair.hit[at] |= (uint64_t)1 << r;
    }
}

/* or by distance, rows lo .. hi of the table. */
ATTN_FUNC_ void attn_pair_distance_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                    const attn_block_ *b, const attn_segment_ *seg,
                                    const attn_pair_rule_ *rule, int64_t lo, int64_t hi,
                                    const float *x) {
  const int r0 = seg->g0 * ATTN_GROUP_;
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  int64_t near = INT64_MAX, far = INT64_MIN;
  uint64_t lanes = 0;
  for (int g = seg->g0; g < seg->g1; g++) {
    if (t->g[g].pos_min < near) near = t->g[g].pos_min;
    if (t->g[g].pos_max > far) far = t->g[g].pos_max;
  }
  for (int r = r0; r < r1; r++) lanes |= (uint64_t)1 << r;
  for (int e = seg->at; e < seg->at + seg->n; e++) {
    const int64_t key = attn_block_key_(b, e);
    const uint64_t hit = m->reads[e] & lanes;
    const float *from = x + e * ATTN_TILE_;
    const int64_t at = attn_pair_row_(rule, key - far);
    if (at == attn_pair_row_(rule, key - near)) { /* one row for all of them */
      float *to = m->pair.sum + (attn_clamp_(at, lo, hi) - lo) * ATTN_TILE_;
      for (int r = r0; r < r1; r++) to[r] += from[r];
      m->pair.hit[attn_clamp_(at, lo, hi) - lo] |= hit;
      continue;
    }
    for (int r = r0; r < r1; r++) {
      const int64_t row = attn_clamp_(attn_pair_row_(rule, key - t->pos[r]), lo, hi) - lo;
      m->pair.sum[row * ATTN_TILE_ + r] += from[r];
      m->pair.hit[row] |= hit & (uint64_t)1 << r;
    }
  }
}

/* The next rows to multiply, from *at on and at most a block; of many those that have been read alone. 0 = there are
 * none. */
ATTN_FUNC_ int64_t attn_pair_run_(const attn_pair_sums_ *x, int64_t rows, int64_t *at) {
  int64_t n = 0;
  if (rows <= ATTN_BLOCK_ + ATTN_TILE_) return attn_min64_(rows - *at, ATTN_BLOCK_);
  while (*at < rows && !x->hit[*at]) ++*at;
  while (n < ATTN_BLOCK_ && *at + n < rows && x->hit[*at + n]) n++;
  return n;
}

/* ---- products of rows -----------------------------------------------------------------------*/

/* Copies rows; `clean`: with 0 in place of what is not finite. */
ATTN_FUNC_ void attn_pair_copy_(float *to, const float *from, int64_t stride, int64_t n,
                                int64_t dim, int clean) {
  for (int64_t i = 0; i < n; i++, from += stride, to += dim) {
    if (clean)
      for (int64_t c = 0; c < dim; c++) to[c] = from[c] - from[c] == 0.0f ? from[c] : 0.0f;
    else
      memcpy(to, from, (size_t)dim * sizeof(float));
  }
}

/* d_q += sums [row][lane] times rows of a table; what is not finite reaches the queries that read it. */
ATTN_FUNC_ void attn_pair_to_queries_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                      const attn_tensor *table, int64_t row, int64_t at,
                                      int64_t n) {
  const int64_t dk = t->a->q.dim, stride = table->stride_len;
  const attn_table_ *f = t->a->table;
  const float *rows = attn_table_row_(table, t->head[0], row);
  const float *sum = m->pair.sum + at * ATTN_TILE_;
  const int fine = f->finite(rows, stride, n, dk);
  if (!fine) attn_pair_copy_(m->part, rows, stride, n, dk, 1);
  attn_on_(tile, f)->value_block(m->sum, sum, fine ? rows : m->part, fine ? stride : dk, n, dk, 0,
                                 t->groups, NULL, 0);
  for (int64_t i = 0; !fine && i < n; i++)
    for (int64_t c = 0; c < dk; c++) {
      const float y = rows[i * stride + c];
      for (int r = 0; y - y != 0.0f && r < t->n; r++)
        if (m->pair.hit[at + i] >> r & 1) m->sum[c * ATTN_TILE_ + r] += sum[i * ATTN_TILE_ + r] * y;
    }
}

/* part [n][dim] = sums [row][lane] times the rows of a tile. */
ATTN_FUNC_ void attn_pair_times_(const attn_tile_ *t, const attn_backward_memory_ *m, int64_t at,
                                 int64_t n, const attn_factor_rows_ *f) {
  const float *sum = m->pair.sum + at * ATTN_TILE_;
  attn_on_(dense, t->a->table)
      ->gemm(m->part, f->dim, n, sum, ATTN_TILE_, 1, f->finite ? f->raw : f->clean, f->dim,
             t->groups * ATTN_GROUP_, f->dim, 1);
  for (int r = 0; !f->finite && r < t->n; r++)
    for (int64_t c = 0; c < f->dim; c++) {
      const float y = f->raw[r * f->dim + c];
      for (int64_t i = 0; y - y != 0.0f && i < n; i++)
        if (m->pair.hit[at + i] >> r & 1) m->part[i * f->dim + c] += sum[i * ATTN_TILE_ + r] * y;
    }
}

/* The gradient of a table, rows `row` .. on, and of what goes with it. */
ATTN_FUNC_ void attn_pair_to_table_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                    attn_term_sums_ *x, int kind, int64_t row, int64_t at,
                                    int64_t n) {
  const attn_softmax_ *a = t->a;
  const attn_factor_rows_ *f = kind == ATTN_PAIR_VALUES_ ? &m->d_o : &m->q;
  const attn_tensor *table = attn_pair_table_(a, kind);
  const float *v = kind == ATTN_PAIR_XL_ && a->xl.v ? a->xl.v + t->head[0] * f->dim : NULL;
  double *d_v = kind == ATTN_PAIR_XL_ ? x->v : NULL;
  double *bias = kind == ATTN_PAIR_LABELS_ ? x->label_bias : NULL;
  if (x->table[kind]) attn_pair_times_(t, m, at, n, f);
  for (int64_t i = 0; i < n && (x->table[kind] || d_v || bias); i++) {
    const float *from = attn_table_row_(table, t->head[0], row + i);
    if (!m->pair.hit[at + i]) continue;
    double *to = x->table[kind] ? x->table[kind] + (row + i) * f->dim : NULL, all = 0;
    for (int r = 0; (v || d_v || bias) && r < t->n; r++)
      all += (double)m->pair.sum[(at + i) * ATTN_TILE_ + r];
    for (int64_t c = 0; to && c < f->dim; c++)
      to[c] += (double)m->part[i * f->dim + c] + (v ? all * (double)v[c] : 0.0);
    for (int64_t c = 0; d_v && c < f->dim; c++) d_v[c] += all * (double)from[c];
    if (bias) bias[row + i] += all;
  }
}

/* A block's pairs and one table. x: dX [key][lane]; of VALUES the weights. */
ATTN_FUNC_ void attn_pair_block_(const attn_tile_ *t, const attn_backward_tile_ *job,
                                 const attn_block_ *b, int kind, const float *x) {
  const attn_softmax_ *a = t->a;
  const attn_backward_memory_ *m = job->m;
  const attn_tensor *table = attn_pair_table_(a, kind);
  const attn_pair_rule_ rule = attn_pair_rule_of_(a, kind);
  int64_t lo = 0, hi = table->len - 1, at = 0, n;
  const attn_term_sums_ *y = job->sums;
  const int biased =
      y && ((kind == ATTN_PAIR_XL_ && y->v) || (kind == ATTN_PAIR_LABELS_ && y->label_bias));
  if (y ? !y->table[kind] && !biased : !job->job->d_q.data) return; /* nobody asks */
  if (kind != ATTN_PAIR_LABELS_) attn_pair_window_(t, b, 0, b->n - 1, &rule, table->len, &lo, &hi);
  for (int i = 0; i < b->count; i++)
    if (kind == ATTN_PAIR_LABELS_)
      attn_pair_label_(t, m, b, &b->seg[i], x);
    else
      attn_pair_distance_(t, m, b, &b->seg[i], &rule, lo, hi, x);
  for (; (n = attn_pair_run_(&m->pair, hi - lo + 1, &at)) > 0; at += n) {
    if (job->job->d_q.data && kind != ATTN_PAIR_VALUES_)
      attn_pair_to_queries_(t, m, table, lo + at, at, n);
    if (job->sums) attn_pair_to_table_(t, m, job->sums, kind, lo + at, at, n);
  }
  memset(m->pair.sum, 0, (size_t)((hi - lo + 1) * ATTN_TILE_) * sizeof(float));
  memset(m->pair.hit, 0, (size_t)(hi - lo + 1) * sizeof(uint64_t));
}

/* ---- relative queries -----------------------------------------------------------------------*/

/* A key whose pairs read rows far apart: one after the other. */
ATTN_FUNC_ void attn_pair_key_(const attn_tile_ *t, const attn_backward_tile_ *job,
                               const attn_block_ *b, int e, const float *x) {
  const attn_tensor *table = &t->a->relative.queries;
  const attn_pair_rule_ rule = attn_pair_rule_of_(t->a, ATTN_PAIR_QUERIES_);
  const attn_sent_rows_ *s = &job->m->k;
  const int64_t dk = t->a->q.dim, key = attn_block_key_(b, e);
  double *d_table = job->sums ? job->sums->table[ATTN_PAIR_QUERIES_] : NULL;
  for (int r = 0; r < t->n; r++) {
    const int64_t row = attn_pair_row_(&rule, key - t->pos[r]);
    const float y = x[e * ATTN_TILE_ + r];
    const float *from = attn_table_row_(table, t->head[0], row);
    if (!(job->m->reads[e] >> r & 1)) continue;
    for (int64_t c = 0; s->out.data && c < dk; c++) s->near[key * dk + c] += y * from[c];
    for (int64_t c = 0; d_table && c < dk; c++)
      d_table[row * dk + c] += (double)(y * b->k[e * b->k_stride + c]);
  }
  if (s->out.data) s->some[key / ATTN_BLOCK_] = 1;
}

/* Keys at .. at + n of a block, n up to 16, whose pairs read rows lo .. hi, at most ATTN_AROUND_. */
ATTN_FUNC_ void attn_pair_keys_(const attn_tile_ *t, const attn_backward_tile_ *job,
                                const attn_block_ *b, int at, int n, int64_t lo, int64_t hi,
                                const float *x) {
  const attn_tensor *table = &t->a->relative.queries;
  const attn_pair_rule_ rule = attn_pair_rule_of_(t->a, ATTN_PAIR_QUERIES_);
  const attn_table_ *f = t->a->table;
  const attn_backward_memory_ *m = job->m;
  const int64_t dk = t->a->q.dim, rows = hi - lo + 1;
  float *sum = m->pair.around, *near = sum + ATTN_AROUND_ * ATTN_GROUP_;
  float *keys = near + ATTN_AROUND_ * dk;
  const float *from = attn_table_row_(table, t->head[0], lo), *k = b->k + at * b->k_stride;
  const int fine = f->finite(from, table->stride_len, rows, dk);
  const int known = f->finite(k, b->k_stride, n, dk);
  double *d_table = job->sums ? job->sums->table[ATTN_PAIR_QUERIES_] : NULL;
  uint32_t hit[ATTN_AROUND_] = {0};
  memset(sum, 0, (size_t)(rows * ATTN_GROUP_) * sizeof(float));
  for (int e = 0; e < n; e++)
    for (int r = 0; r < t->n; r++) {
      if (!(m->reads[at + e] >> r & 1)) continue;
      const int64_t row = attn_pair_row_(&rule, attn_block_key_(b, at + e) - t->pos[r]) - lo;
      sum[row * ATTN_GROUP_ + e] += x[(at + e) * ATTN_TILE_ + r];
      hit[row] |= (uint32_t)1 << e;
    }
  attn_pair_copy_(near, from, table->stride_len, rows, dk, !fine);
  for (int e = 0, run; m->k.out.data && e < n; e += run) {
    const int64_t key = attn_block_key_(b, at + e);
    run = (int)attn_min64_(attn_block_run_(b, at + e), n - e);
    attn_on_(dense, f)->gemm(m->k.near + key * dk, dk, run, sum + e, 1, ATTN_GROUP_, near, dk, rows,
                             dk, 2);
    m->k.some[key / ATTN_BLOCK_] = m->k.some[(key + run - 1) / ATTN_BLOCK_] = 1;
  }
  for (int64_t i = 0; m->k.out.data && !fine && i < rows; i++)
    for (int64_t c = 0; c < dk; c++) {
      const float y = from[i * table->stride_len + c];
      for (int e = 0; y - y != 0.0f && e < n; e++)
        if (hit[i] >> e & 1)
          m->k.near[attn_block_key_(b, at + e) * dk + c] += sum[i * ATTN_GROUP_ + e] * y;
    }
  if (!d_table) return;
  attn_pair_copy_(keys, k, b->k_stride, n, dk, !known);
  attn_on_(dense, f)->gemm(m->part, dk, rows, sum, ATTN_GROUP_, 1, keys, dk, n, dk, 1);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t c = 0; hit[i] && c < dk; c++) {
      double *to = d_table + (lo + i) * dk + c;
      *to += (double)m->part[i * dk + c];
      for (int e = 0; !known && e < n; e++) {
        const float y = k[e * b->k_stride + c];
        if (y - y != 0.0f && (hit[i] >> e & 1)) *to += (double)(sum[i * ATTN_GROUP_ + e] * y);
      }
    }
}

/* A block's pairs and relative.queries: to d_k, and to the gradient of the table. */
ATTN_FUNC_ void attn_pair_turned_(const attn_tile_ *t, const attn_backward_tile_ *job,
                                  const attn_block_ *b, const float *x) {
  const attn_pair_rule_ rule = attn_pair_rule_of_(t->a, ATTN_PAIR_QUERIES_);
  for (int at = 0; at < b->n; at += ATTN_GROUP_) {
    const int n = b->n - at < ATTN_GROUP_ ? b->n - at : ATTN_GROUP_;
    int64_t lo, hi;
    attn_pair_window_(t, b, at, at + n - 1, &rule, t->a->relative.queries.len, &lo, &hi);
    if (hi - lo < ATTN_AROUND_) {
      attn_pair_keys_(t, job, b, at, n, lo, hi, x);
      continue;
    }
    for (int e = at; e < at + n; e++) attn_pair_key_(t, job, b, e, x);
  }
}

/* d_u of Transformer-XL: sums over rows times keys. */
ATTN_FUNC_ void attn_pair_biases_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                  const attn_block_ *b, double *d_u, const float *x) {
  for (int e = 0; e < b->n; e++) {
    double all = 0;
    for (int r = 0; r < t->n; r++)
      if (m->reads[e] >> r & 1) all += (double)x[e * ATTN_TILE_ + r];
    for (int64_t c = 0; m->reads[e] && c < t->a->q.dim; c++)
      d_u[c] += all * (double)b->k[e * b->k_stride + c];
  }
}

/* What a block's pairs send to all tables but that of values, and get from them. */
ATTN_FUNC_ void attn_pair_tables_(const attn_tile_ *t, const attn_backward_tile_ *job,
                                  const attn_block_ *b, const float *x) {
  for (int kind = 0; kind < ATTN_PAIR_VALUES_; kind++)
    if (attn_pair_there_(t->a, kind)) attn_pair_block_(t, job, b, kind, x);
  if (attn_pair_there_(t->a, ATTN_PAIR_QUERIES_)) attn_pair_turned_(t, job, b, x);
  if (job->sums && job->sums->u) attn_pair_biases_(t, job->m, b, job->sums->u, x);
}
