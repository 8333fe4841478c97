/* calls/backward/tile.h owns one tile of the gradients of attention: a sweep over the keys of forward in
 * which scores become weights P and gradients dX, and five products are made of them. What its rows send to keys is
 * summed in the memory of a worker. */

/* ---- rows -----------------------------------------------------------------------------------*/

/* Rows of a tile as f32. */
ATTN_FUNC_ void attn_backward_widen_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                     const attn_tensor *x, float *to) {
  t->a->table->widen(to, attn_at_(x, t->batch, t->head[0], 0), x->stride_len, m->index, t->n,
                     x->dim, x->dtype, NULL);
}

/* LSE and D of the rows of a tile; d_o in rows. */
ATTN_FUNC_ void attn_backward_lanes_(attn_tile_ *t, const attn_backward_ *g,
                                     const attn_backward_memory_ *m) {
  const attn_softmax_ *a = t->a;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  float dots[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) m->index[r] = (int32_t)t->row[r];
  attn_backward_widen_(t, m, &g->d_o, m->d_o.raw);
  if (ATTN_PART_(RELU, g->weights)) {
    g->weights->lanes(t, g, m);
    return;
  }
  attn_backward_widen_(t, m, &a->o, t->w.ot);
  attn_on_(gradient, a->table)->row_dots(dots, m->d_o.raw, t->w.ot, t->n, a->v.dim);
  for (int r = 0; r < ATTN_TILE_; r++) {
    float lse = -INFINITY, d = 0.0f;
    if (r < t->n && t->row[r] < queries)
      memcpy(&lse, attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), sizeof lse);
    const int empty = lse == -INFINITY;
    if (!empty && g->d_lse.data)
      memcpy(&d, attn_at_(&g->d_lse, t->batch, t->head[r], t->row[r]), sizeof d);
    const double unit = (double)lse * a->unit;
    m->lanes->hi[r] = empty ? INFINITY : (float)attn_clamp_f64_(unit);
    m->lanes->lo[r] = empty ? 0.0f : (float)(unit - (double)m->lanes->hi[r]);
    m->lanes->less[r] = empty ? 0.0f : dots[r] - d;
  }
}

/* Of rows in f32 those that are not empty remain. */
ATTN_FUNC_ void attn_factor_rows_open_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                       attn_factor_rows_ *f) {
  const int64_t dim = f->dim, all = t->groups * ATTN_GROUP_;
  for (int64_t r = 0; r < all; r++)
    if (r >= t->n || m->lanes->hi[r] == INFINITY)
      memset(f->raw + r * dim, 0, (size_t)dim * sizeof(float));
  f->finite = t->a->table->finite(f->raw, dim, all, dim);
  for (int64_t i = 0; !f->finite && i < all * dim; i++)
    f->clean[i] = f->raw[i] - f->raw[i] == 0.0f ? f->raw[i] : 0.0f;
}

/* ---- what is sent to keys -------------------------------------------------------------------*/

/* What attn_sent_add_ left out: numbers of rows that are not finite, to the keys that these rows see. */
ATTN_FUNC_ void attn_sent_patch_(const attn_tile_ *t, const attn_segment_ *seg,
                                 const attn_factor_rows_ *f, float *to, const float *x) {
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  for (int r = seg->g0 * ATTN_GROUP_; r < r1; r++)
    for (int64_t c = 0; c < f->dim; c++) {
      const float y = f->raw[r * f->dim + c];
      for (int e = 0; y - y != 0.0f && e < seg->n; e++) {
        const int64_t cell = (seg->at + e) * ATTN_TILE_ + r;
        if (t->w.hit[cell]) to[e * f->dim + c] += x[cell] * y;
      }
    }
}

/* Adds to the keys of a segment: sums over its lanes of x [key][lane] times their rows. */
ATTN_FUNC_ void attn_sent_add_(const attn_tile_ *t, const attn_backward_memory_ *m,
                               const attn_sent_rows_ *s, const attn_block_ *b,
                               const attn_segment_ *seg, const attn_factor_rows_ *f,
                               const float *x) {
  const int64_t dim = s->dim, from = seg->g0 * ATTN_GROUP_, bytes = dim * (int64_t)sizeof(float);
  const int clean = b->partial && !f->finite, apart = attn_block_run_(b, seg->at) < seg->n;
  float *to = apart ? m->part : s->near + attn_block_key_(b, seg->at) * dim;
  for (int e = 0; apart && e < seg->n; e++)
    memcpy(to + e * dim, s->near + attn_block_key_(b, seg->at + e) * dim, (size_t)bytes);
  attn_on_(dense, t->a->table)
      ->gemm(to, dim, seg->n, x + seg->at * ATTN_TILE_ + from, ATTN_TILE_, 1,
             (clean ? f->clean : f->raw) + from * dim, dim, (seg->g1 - seg->g0) * ATTN_GROUP_, dim,
             2);
  if (clean) attn_sent_patch_(t, seg, f, to, x);
  for (int e = 0; e < seg->n; e++) {
    const int64_t key = attn_block_key_(b, seg->at + e);
    s->some[key / ATTN_BLOCK_] = 1;
    if (apart) memcpy(s->near + key * dim, to + e * dim, (size_t)bytes);
  }
}

/* Rows j0 .. of far and near as long rows: as many as lie end to end, at most a block. */
ATTN_FUNC_ int64_t attn_sent_rows_at_(const attn_sent_rows_ *s, int64_t j0, int64_t keys) {
  const int64_t n = attn_min64_(ATTN_BLOCK_ - j0 % ATTN_BLOCK_, keys - j0);
  return s->far_stride == s->dim ? n : 1;
}

/* A run of tiles is complete: near joins far, or becomes it. */
ATTN_FUNC_ void attn_sent_fold_(const attn_table_ *f, attn_sent_rows_ *s, int64_t keys) {
  for (int64_t j = 0, n; s->out.data && j < keys; j += n) {
    float *near = s->near + j * s->dim, *far = s->far + j * s->far_stride;
    n = attn_sent_rows_at_(s, j, keys);
    const size_t bytes = (size_t)(n * s->dim) * sizeof(float);
    if (!s->folded)
      memcpy(far, near, bytes);
    else if (s->some[j / ATTN_BLOCK_])
      f->blend(far, far, near, ATTN_F32, ATTN_F32, ATTN_F32, n * s->dim, 1.0f, 1.0f);
    if (s->some[j / ATTN_BLOCK_]) memset(near, 0, bytes);
    if ((j + n) % ATTN_BLOCK_ == 0) s->some[j / ATTN_BLOCK_] = 0;
  }
  if (s->out.data && keys % ATTN_BLOCK_) s->some[keys / ATTN_BLOCK_] = 0;
  s->folded = 1;
}

/* ---- blocks ---------------------------------------------------------------------------------*/

/* A stretch of keys is complete: sum joins far; close: for the last time. */
ATTN_FUNC_ void attn_backward_fold_(const attn_tile_ *t, attn_backward_tile_ *x, int close) {
  const int64_t dk = t->a->q.dim;
  const attn_backward_memory_ *m = x->m;
  if (!x->folded) memset(m->far, 0, (size_t)(2 * dk * ATTN_TILE_) * sizeof(float));
  attn_on_(tile, t->a->table)
      ->fold_block(m->far, m->far + dk * ATTN_TILE_, m->sum, dk, t->groups, attn_alpha_one_, close);
  x->folded = 1, x->started = 0;
}

/* Numbers of keys that are not finite, to the d_q of the rows that see them. */
ATTN_FUNC_ void attn_backward_patch_(const attn_tile_ *t, const attn_block_ *b,
                                     const attn_backward_memory_ *m) {
  const int64_t dk = t->a->q.dim;
  for (int e = 0; e < b->n; e++)
    for (int64_t c = 0; c < dk; c++) {
      const float y = b->k[e * b->k_stride + c];
      for (int r = 0; y - y != 0.0f && r < t->n; r++)
        if (t->w.hit[e * ATTN_TILE_ + r])
          m->sum[c * ATTN_TILE_ + r] += m->dp[e * ATTN_TILE_ + r] * y;
    }
}

/* Asks for what a block's keys have been sent so far, which may lie beyond the second cache. */
ATTN_INLINE_ void attn_sent_ahead_(const attn_sent_rows_ *s, const attn_block_ *b) {
  for (int e = 0; s->out.data && e < b->n; e++) {
    const float *near = s->near + attn_block_key_(b, e) * s->dim;
    for (int64_t c = 0; c < s->dim; c += 16) ATTN_PREFETCH_FAR_(near + c);
  }
}

/* What reaches a map, of a block, [key][lane]. */
ATTN_FUNC_ void attn_backward_map_(const attn_tile_ *t, const attn_backward_ *g,
                                   const attn_backward_memory_ *m, const attn_block_ *b) {
  const void *row[ATTN_TILE_];
  for (int e = 0, n; e < b->n; e += n) {
    n = attn_block_run_(b, e);
    for (int r = 0; r < t->n; r++)
      row[r] = attn_at_(&g->asked.d_map, t->batch, t->head[r], t->row[r]) +
               attn_bytes_(ATTN_F32, attn_block_key_(b, e));
    t->a->table->pack(m->map + e * ATTN_TILE_, row, t->n, n, ATTN_F32, 1.0f, attn_least_(1.0f));
  }
}

/* Of what reaches scores that of allowed pairs stays. */
ATTN_FUNC_ void attn_backward_map_seen_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                        const attn_segment_ *seg) {
  for (int64_t at = seg->at * ATTN_TILE_; at < (seg->at + seg->n) * ATTN_TILE_; at += ATTN_TILE_)
    for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_; r++)
      if (t->w.s[at + r] == -INFINITY || m->lanes->hi[r] == INFINITY) m->map[at + r] = 0.0f;
}

/* A segment's share of d_map joins what it has of d_o. */
ATTN_FUNC_ void attn_backward_join_map_(const attn_backward_memory_ *m, const attn_segment_ *seg,
                                        float *d) {
  const float *map = m->map + seg->at * ATTN_TILE_;
  for (int64_t at = 0; at < seg->n * ATTN_TILE_; at += ATTN_TILE_)
    for (int64_t c = at + seg->g0 * ATTN_GROUP_; c < at + seg->g1 * ATTN_GROUP_; c++)
      d[c] += map[c];
}

/* Products of d_o with relative values, added to a segment of those with values. */
ATTN_FUNC_ void attn_backward_relative_(attn_tile_ *t, const attn_backward_memory_ *m,
                                        const attn_block_ *b, const attn_segment_ *seg) {
  float *const s = t->w.s, *const dots = t->w.rel_keys;
  t->w.s = m->dp, t->w.rel_keys = m->pair.value_dots;
  attn_block_relative_keys_(t, b, seg);
  t->w.s = s, t->w.rel_keys = dots;
}

/* The rows and scores of a block, and what is kept of these. */
ATTN_FUNC_ void attn_backward_scores_(attn_tile_ *t, const attn_backward_memory_ *m, attn_block_ *b,
                                      int fused) {
  attn_ramp_ ramp;
  attn_block_modifiers_(t, b);
  attn_block_scores_(t, b);
  attn_chain_keep_(t, m, b, fused);
  if (attn_block_ramp_(t, b, &ramp)) attn_block_ramp_scores_(t, b, &ramp);
}

/* The five products of a block. */
ATTN_FUNC_ void attn_backward_block_(attn_tile_ *t, attn_backward_tile_ *x, attn_block_ *b,
                                     int64_t stretch) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const attn_backward_memory_ *m = x->m;
  const int64_t dk = a->q.dim, dv = a->v.dim;
  const attn_backward_ *g = x->job;
  const int scored = g->d_q.data || g->d_k.data || x->sums; /* dX is wanted */
  const int fused = attn_chain_fused_(a, x->sums || g->map_scores);
  attn_block_fetch_(t, b);
  attn_sent_ahead_(&m->v, b), attn_sent_ahead_(&m->k, b);
  attn_backward_scores_(t, m, b, fused);
  if (m->map) attn_backward_map_(t, g, m, b);
  if (m->reads) attn_backward_reads_(t, m, b);
  const attn_grad_cap_ cap = attn_chain_cap_(t, m, fused);
  const int clean = b->partial && g->d_q.data && !f->finite(b->k, b->k_stride, b->n, dk);
  if (clean || (b->partial && (!m->q.finite || !m->d_o.finite)))
    for (int e = 0; e < b->n; e++)
      for (int r = 0; r < t->n; r++)
        t->w.hit[e * ATTN_TILE_ + r] = m->lanes->hi[r] < INFINITY && attn_block_reads_(t, b, e, r);
  for (int e = 0; clean && e < b->n; e++)
    for (int64_t c = 0; c < dk; c++) {
      const float y = b->k[e * b->k_stride + c];
      m->keys[e * dk + c] = y - y == 0.0f ? y : 0.0f;
    }
  const int drops = attn_drops_(a);
  const float by = attn_drop_by_(&a->drop);
  if (drops) attn_block_kept_(t, b, m->kept);
  if (x->started && x->stretch != stretch) attn_backward_fold_(t, x, 0);
  if (!x->started) memset(m->sum, 0, (size_t)(dk * ATTN_TILE_) * sizeof(float));
  x->started = 1, x->stretch = stretch;
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    float *s = t->w.s + seg->at * ATTN_TILE_, *d = m->dp + seg->at * ATTN_TILE_;
    if (scored)
      attn_on_(tile, f)->score_block(d, m->d_ot, b->v + seg->at * b->v_stride, b->v_stride, seg->n,
                                     dv, seg->g0, seg->g1, t->spare);
    else
      memset(d, 0, (size_t)(seg->n * ATTN_TILE_) * sizeof(float));
    const uint64_t *kept = drops ? m->kept + seg->at : NULL;
    if (scored && m->pair.value_dots) attn_backward_relative_(t, m, b, seg);
    if (m->map && g->map_scores) attn_backward_map_seen_(t, m, seg);
    if (m->map && g->map_dropped) attn_backward_join_map_(m, seg, d);
    if (kept) attn_on_(drop, f)->drop_block(d, kept, seg->n, seg->g0, seg->g1, by);
    if (m->map && !g->map_dropped && !g->map_scores) attn_backward_join_map_(m, seg, d);
    attn_grad_cap_ here = cap;
    if (cap.capped) here.capped += seg->at * ATTN_TILE_;
    if (ATTN_PART_(RELU, g->weights))
      g->weights->grad(t, g, m, seg, d, &here);
    else
      attn_on_(gradient, f)->grad_block(s, d, seg->n, seg->g0, seg->g1, m->lanes, &here);
    if (m->map && g->map_scores) attn_backward_join_map_(m, seg, d);
    if (ATTN_HAS_TERMS || x->sums) attn_chain_back_(t, x, b, seg, fused, d);
    if (ATTN_PART_(RELU, m->by)) attn_on_(tile, f)->scale_block(d, seg->n, seg->g0, seg->g1, m->by);
    if (kept) attn_on_(drop, f)->drop_block(s, kept, seg->n, seg->g0, seg->g1, by);
    if (m->v.out.data) attn_sent_add_(t, m, &m->v, b, seg, &m->d_o, t->w.s);
    if (m->k.out.data) attn_sent_add_(t, m, &m->k, b, seg, &m->q, m->dp);
    if (g->d_q.data)
      attn_on_(tile, f)->value_block(
          m->sum, d, clean ? m->keys + seg->at * dk : b->k + seg->at * b->k_stride,
          clean ? dk : b->k_stride, seg->n, dk, seg->g0, seg->g1, NULL, 0);
  }
  if (clean) attn_backward_patch_(t, b, m);
  if (m->reads && scored) attn_pair_tables_(t, x, b, m->dp);
  if (m->reads && x->sums && x->sums->table[ATTN_PAIR_VALUES_])
    attn_pair_block_(t, x, b, ATTN_PAIR_VALUES_, t->w.s);
}

/* ---- the tile -------------------------------------------------------------------------------*/

/* The lists of a tile as runs, keys ascending. Returns how many. */
ATTN_FUNC_ int64_t attn_backward_lists_(const attn_tile_ *t, attn_plan_run_ *run) {
  attn_list_ list[ATTN_TILE_];
  int64_t n = 0;
  for (int r = 0; r < t->n; r++) attn_list_of_(t, r, &list[r]);
  for (;;) {
    int32_t key = INT32_MAX;
    uint64_t lanes = 0;
    for (int r = 0; r < t->n; r++) {
      if (list[r].next == list[r].count) continue;
      const int32_t at = list[r].key[list[r].next];
      if (at < key) key = at, lanes = 0;
      if (at == key) lanes |= (uint64_t)1 << r;
    }
    if (!lanes) return n;
    for (int r = 0; r < t->n; r++) list[r].next += (int64_t)(lanes >> r & 1);
    if (n > 0 && run[n - 1].lanes == lanes && run[n - 1].key + run[n - 1].n == key) {
      run[n - 1].n++;
      continue;
    }
    run[n].key = key, run[n].n = 1, run[n].lanes = lanes, n++;
  }
}

/* d_q of the rows of a tile. */
ATTN_FUNC_ void attn_backward_finish_(const attn_tile_ *t, const attn_backward_tile_ *x) {
  const attn_backward_ *g = x->job;
  const attn_backward_memory_ *m = x->m;
  const attn_table_ *f = t->a->table;
  const attn_tensor *y = &g->d_q;
  const int64_t dk = t->a->q.dim;
  const int later = m->d_rows != NULL, plain = !later && !g->accumulate;
  void *rows[ATTN_TILE_];
  float scale[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) scale[r] = plain ? g->scale : 1.0f;
  for (int r = 0; r < t->n; r++)
    rows[r] = plain ? attn_at_(y, t->batch, t->head[r], t->row[r]) : (char *)(m->q.raw + r * dk);
  f->unpack(rows, x->folded ? m->far : m->sum, t->n, dk, plain ? y->dtype : ATTN_F32, scale);
  for (int r = 0; r < t->n; r++) {
    const int empty = m->lanes->hi[r] == INFINITY;
    float *sum = later ? m->d_rows + t->row[r] * dk : NULL;
    char *out = attn_at_(y, t->batch, t->head[r], t->row[r]);
    if (plain && empty)
      memset(out, 0, (size_t)attn_bytes_(y->dtype, dk));
    else if (later && !empty)
      f->blend(sum, sum, rows[r], ATTN_F32, ATTN_F32, ATTN_F32, dk, 1.0f, 1.0f);
    else if (!plain && !empty)
      f->blend(out, rows[r], out, y->dtype, ATTN_F32, y->dtype, dk, g->scale, 1.0f);
  }
}

/* A tile of which the rows are known is ready: what they see and read, and its part of a schedule in a copy. Returns the
 * runs that its lists make; -1: it has none. */
ATTN_FUNC_ int64_t attn_backward_open_(attn_tile_ *t, const attn_backward_memory_ *m,
                                       attn_plan_tile_ *plan) {
  const int other = ATTN_PART_(PATTERN, t->a->plan) && t->plan->step <= 0;
  int64_t listed = -1;
  if (other) *plan = *t->plan, plan->step = plan->step < 0 ? -plan->step : 1;
  if (other && t->plan->step == 0) listed = attn_backward_lists_(t, m->runs);
  attn_tile_lanes_(t);
  attn_tile_terms_(t);
  if (other) t->plan = plan;
  t->careful = t->rel_careful = t->partial = 0;
  t->xl_next = -1, t->before = m->before;
  return listed;
}

/* The walk over a part of its keys. */
ATTN_FUNC_ void attn_backward_walk_(attn_tile_ *t, const attn_backward_memory_ *m, int part,
                                    int64_t listed, attn_walk_ *w) {
  attn_tile_part_(t, part);
  attn_walk_open_(t, w);
  if (listed >= 0) w->cursor.run = m->runs, w->cursor.runs = listed, w->cursor.used = 0;
}

/* d_o of a tile's rows, in lanes. */
ATTN_FUNC_ void attn_backward_pack_(const attn_tile_ *t, const attn_backward_ *g,
                                    const attn_backward_memory_ *m) {
  const void *d_o[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) d_o[r] = attn_at_(&g->d_o, t->batch, t->head[r], t->row[r]);
  t->a->table->pack(m->d_ot, d_o, t->n, t->a->v.dim, (int)g->d_o.dtype, 1.0f, attn_least_(1.0f));
}

/* A tile whose rows are known, of one head: their shares of sum_j P_ij d_map_ij. */
ATTN_FUNC_ void attn_backward_tile_map_(attn_tile_ *t, const attn_backward_ *g,
                                        attn_backward_memory_ *m) {
  const attn_softmax_ *a = t->a;
  const attn_grad_cap_ none = {NULL, 0.0f};
  attn_plan_tile_ plan;
  attn_walk_ w;
  const int64_t listed = attn_backward_open_(t, m, &plan);
  double more[ATTN_TILE_] = {0};
  attn_backward_lanes_(t, g, m);
  for (int r = 0; r < ATTN_TILE_; r++) m->lanes->less[r] = 0.0f;
  for (int part = 0; part < attn_tile_parts_(t); part++) {
    attn_backward_walk_(t, m, part, listed, &w);
    while (attn_walk_next_(t, &w)) {
      attn_block_ *b = &w.block;
      attn_block_fetch_(t, b);
      attn_backward_scores_(t, m, b, 1);
      attn_backward_map_(t, g, m, b);
      if (attn_drops_(a)) attn_block_kept_(t, b, m->kept);
      for (int i = 0; i < b->count; i++) {
        const attn_segment_ *seg = &b->seg[i];
        float *d = m->map + seg->at * ATTN_TILE_;
        if (g->map_dropped && attn_drops_(a))
          attn_on_(drop, a->table)
              ->drop_block(d, m->kept + seg->at, seg->n, seg->g0, seg->g1, attn_drop_by_(&a->drop));
        attn_on_(gradient, a->table)
            ->grad_block(t->w.s + seg->at * ATTN_TILE_, d, seg->n, seg->g0, seg->g1, m->lanes,
                         &none);
        for (int e = 0; e < seg->n; e++)
          for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_ && r < t->n; r++)
            more[r] += (double)d[e * ATTN_TILE_ + r];
      }
    }
  }
  for (int r = 0; r < t->n; r++) m->map_sums[t->row[r]] += more[r];
}

/* The same: its gradients. */
ATTN_FUNC_ void attn_backward_tile_run_(attn_tile_ *t, const attn_backward_ *g,
                                        attn_backward_memory_ *m, attn_term_sums_ *sums) {
  const attn_softmax_ *a = t->a;
  attn_backward_tile_ x = {g, m, sums, 0, 0, -1};
  attn_plan_tile_ plan;
  attn_walk_ w;
  const int64_t listed = attn_backward_open_(t, m, &plan);
  attn_backward_lanes_(t, g, m);
  if (sums)
    attn_clear_(sums->center, sizeof sums->center),
        attn_clear_(sums->precision, sizeof sums->precision),
        attn_clear_(sums->spans, sizeof sums->spans);
  for (int r = 0; m->map_sums && r < t->n; r++) {
    const double less = (double)m->lanes->less[r] + m->map_sums[t->row[r]];
    if (m->lanes->hi[r] < INFINITY) m->lanes->less[r] = (float)less;
  }
  attn_backward_pack_(t, g, m);
  if (m->pair.value_dots && t->rel_rows > 0)
    attn_on_(tile, a->table)
        ->score_block(
            m->pair.value_dots, m->d_ot,
            attn_table_row_(&a->relative.values, t->head[0], t->rel_first + attn_relative_clip_(a)),
            a->relative.values.stride_len, t->rel_rows, a->v.dim, 0, t->groups, t->spare);
  const int tables = sums && m->reads;
  if (g->d_k.data || tables) {
    attn_backward_widen_(t, m, &a->q, m->q.raw);
    const float *u =
        ATTN_PART_(TERMS, a->xl.u) && g->d_k.data ? a->xl.u + t->head[0] * a->q.dim : NULL;
    for (int64_t i = 0; u && i < t->n * a->q.dim; i++) m->q.raw[i] += u[i % a->q.dim];
    attn_factor_rows_open_(t, m, &m->q);
  }
  if (g->d_v.data || tables) attn_factor_rows_open_(t, m, &m->d_o);
  for (int part = 0; part < attn_tile_parts_(t); part++) {
    attn_backward_walk_(t, m, part, listed, &w);
    while (attn_walk_next_(t, &w)) attn_backward_block_(t, &x, &w.block, attn_walk_stretch_(t, &w));
  }
  if (sums) attn_terms_rows_(t, &g->asked, sums);
  if (!g->d_q.data) return;
  if (x.folded && x.started) attn_backward_fold_(t, &x, 1);
  if (!x.folded && !x.started) memset(m->sum, 0, (size_t)(a->q.dim * ATTN_TILE_) * sizeof(float));
  attn_backward_finish_(t, &x);
}
