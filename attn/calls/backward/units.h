/* calls/backward/units.h owns how the gradients of attention are divided among workers, and the memory of
 * each. */

/* Whether an output has 1 where x, a row read for all, has many. */
ATTN_FUNC_ int attn_sent_shared_(const attn_tensor *y, const attn_tensor *x) {
  return y->data && (y->batch < x->batch || y->heads < x->heads);
}

/* Whether sums can't be made in the output itself. */
ATTN_FUNC_ int attn_sent_apart_(const attn_backward_ *g, const attn_tensor *y,
                                const attn_tensor *x) {
  return y->dtype != ATTN_F32 || g->accumulate || attn_sent_shared_(y, x);
}

/* The pieces of a worker's memory; with memory null only their bytes, INT64_MAX when they cannot be. */
ATTN_FUNC_ int64_t attn_backward_cut_(const attn_softmax_ *a, const attn_backward_ *g, char *memory,
                                      attn_backward_memory_ *m, attn_term_sums_ *x) {
  const int64_t f = sizeof(float), tile = ATTN_TILE_, block = ATTN_BLOCK_, dk = a->q.dim;
  const int64_t dv = a->v.dim, blocks = attn_runs_of_(a->k.len, ATTN_BLOCK_), past = ATTN_GROUP_;
  const int pairs = attn_pair_any_(a);
  const int far_k = attn_sent_apart_(g, &g->d_k, &a->k),
            far_v = attn_sent_apart_(g, &g->d_v, &a->v);
  int64_t at = 0;
  const attn_sdpa_gradients *p = &g->asked;
  const attn_toeplitz *z = &a->by_distance.toeplitz;
#define ATTN_CUT_(member, type, n, size) ATTN_CUT_TO_(m->member, type, n, size)
#define ATTN_CUT_TO_(place, type, n, size)               \
  {                                                      \
    const int64_t from = attn_cut_(&at, n, size);        \
    if (memory) place = (type *)(void *)(memory + from); \
  }
  ATTN_CUT_(lanes, attn_grad_lanes_, 1, sizeof(attn_grad_lanes_))
  ATTN_CUT_(d_ot, float, attn_mul_(dv, tile), f)
  ATTN_CUT_(dp, float, block *tile, f)
  ATTN_CUT_(sum, float, attn_mul_(dk, tile), f)
  ATTN_CUT_(far, float, attn_mul_(dk, 2 * tile), f)
  ATTN_CUT_(keys, float, attn_mul_(dk, block), f)
  ATTN_CUT_(part, float, attn_add_(attn_mul_(dk > dv ? dk : dv, block), past), f)
  if (a->phases > 1)
    ATTN_CUT_(d_rows, float, attn_mul_(a->q.len, dk), f)
  else if (memory)
    m->d_rows = NULL;
  ATTN_CUT_(index, int32_t, tile, sizeof(int32_t))
  if (attn_drops_(a)) ATTN_CUT_(kept, uint64_t, block, (int64_t)sizeof(uint64_t))
  if (attn_chain_capped_(a, g)) ATTN_CUT_(capped, float, block *tile, f)
  if (attn_chain_inner_(a, p)) ATTN_CUT_(inner, float, block *tile, f)
  if (attn_modifies_(a)) {
    ATTN_CUT_(before, float, block *tile, f)
    ATTN_CUT_(after, float, block *tile, f)
  }
  if (p->d_map.data) {
    ATTN_CUT_(map, float, block *tile, f)
    if (!g->map_scores) ATTN_CUT_(map_sums, double, a->q.len, (int64_t)sizeof(double))
  }
  if (ATTN_PART_(RELU, g->weights) && g->weights->tally) {
    ATTN_CUT_(row_keys, double, a->q.len, (int64_t)sizeof(double))
    ATTN_CUT_(row_sums, double, a->q.len, (int64_t)sizeof(double))
    ATTN_CUT_(row_dots, double, a->q.len, (int64_t)sizeof(double))
  }
  if (ATTN_PART_(RELU, g->weights) && g->weights->scales) ATTN_CUT_(by, float, tile, f)
  if (pairs) {
    ATTN_CUT_(reads, uint64_t, block, (int64_t)sizeof(uint64_t))
    ATTN_CUT_(pair.sum, float, attn_mul_(attn_pair_most_(a), tile), f)
    ATTN_CUT_(pair.hit, uint64_t, attn_pair_most_(a), (int64_t)sizeof(uint64_t))
  }
  if (attn_pair_there_(a, ATTN_PAIR_VALUES_))
    ATTN_CUT_(pair.value_dots, float, attn_mul_(attn_relative_rows_(a), tile), f)
  if (attn_pair_there_(a, ATTN_PAIR_QUERIES_))
    ATTN_CUT_(
        pair.around, float,
        attn_add_(attn_add_(attn_mul_(dk, ATTN_AROUND_ + ATTN_GROUP_), ATTN_AROUND_ * ATTN_GROUP_),
                  past),
        f)
  ATTN_CUT_(runs, attn_plan_run_, g->lists, sizeof(attn_plan_run_))
  ATTN_CUT_(q.raw, float, attn_add_(attn_mul_(dk, tile), past), f)
  ATTN_CUT_(q.clean, float, attn_add_(attn_mul_(dk, tile), past), f)
  ATTN_CUT_(d_o.raw, float, attn_add_(attn_mul_(dv, tile), past), f)
  ATTN_CUT_(d_o.clean, float, attn_add_(attn_mul_(dv, tile), past), f)
  if (g->d_k.data) {
    ATTN_CUT_(k.near, float, attn_mul_(a->k.len, dk), f)
    ATTN_CUT_(k.some, unsigned char, blocks, 1)
    if (far_k) ATTN_CUT_(k.far, float, attn_mul_(a->k.len, dk), f)
  }
  if (g->d_v.data) {
    ATTN_CUT_(v.near, float, attn_mul_(a->k.len, dv), f)
    ATTN_CUT_(v.some, unsigned char, blocks, 1)
    if (far_v) ATTN_CUT_(v.far, float, attn_mul_(a->k.len, dv), f)
  }
  const int64_t apart = attn_add_(a->q.len, a->k.len), number = sizeof(double);
  if (attn_terms_by_distance_(a, p)) ATTN_CUT_TO_(x->by_distance, double, apart, number)
  if (p->d_scale || p->d_alpha || p->d_beta) ATTN_CUT_TO_(x->by_factor, double, apart, number)
  if (p->d_bias.data && p->d_bias.len < a->q.len) ATTN_CUT_TO_(x->by_key, double, a->k.len, number)
  for (int kind = 0; kind < ATTN_PAIR_TABLES_; kind++) {
    const attn_tensor *y = attn_pair_gradient_(p, kind);
    if (y->data) ATTN_CUT_TO_(x->table[kind], double, attn_mul_(y->len, y->dim), number)
  }
  if (p->d_label_bias) ATTN_CUT_TO_(x->label_bias, double, a->labels.table.len, number)
  if (p->d_xl_u) ATTN_CUT_TO_(x->u, double, dk, number)
  if (p->d_xl_v) ATTN_CUT_TO_(x->v, double, dk, number)
  if (p->d_toeplitz)
    ATTN_CUT_TO_(x->toeplitz, double, attn_mul_(attn_max64_(z->heads, 1), z->len), sizeof(double))
  if (p->d_t5)
    ATTN_CUT_TO_(x->t5, double, attn_mul_(attn_t5_buckets_(a), a->q.heads), sizeof(double))
#undef ATTN_CUT_
#undef ATTN_CUT_TO_
  return at;
}

/* The rows of one head of keys, of x, begin: nothing has been sent to them. */
ATTN_FUNC_ void attn_sent_open_(attn_sent_rows_ *s, const attn_backward_ *g, const attn_tensor *x,
                                int64_t b, int64_t head, int64_t keys) {
  if (!s->out.data) return;
  const int apart = attn_sent_apart_(g, &s->out, x);
  s->batch = s->out.batch < x->batch ? 0 : b, s->head = s->out.heads < x->heads ? 0 : head;
  s->add = g->accumulate || s->batch < b || s->head < head, s->folded = 0;
  if (!apart) s->far = (float *)(void *)attn_at_(&s->out, b, head, 0);
  s->far_stride = apart ? s->dim : s->out.stride_len;
  memset(s->near, 0, (size_t)(keys * s->dim) * sizeof(float));
  memset(s->some, 0, (size_t)attn_runs_of_(keys, ATTN_BLOCK_));
}

/* And are complete. */
ATTN_FUNC_ void attn_sent_close_(const attn_table_ *f, attn_sent_rows_ *s, int64_t keys,
                                 float scale) {
  const attn_dtype y = s->out.dtype;
  if (s->folded) attn_sent_fold_(f, s, keys);
  for (int64_t j = 0, n; s->out.data && j < keys; j += n) {
    const float *from = s->folded ? s->far + j * s->far_stride : s->near + j * s->dim;
    char *out = attn_at_(&s->out, s->batch, s->head, j);
    n = s->out.stride_len == s->dim ? attn_sent_rows_at_(s, j, keys) : 1;
    f->blend(out, from, s->add ? out : NULL, y, ATTN_F32, y, n * s->dim, scale, 1.0f);
  }
}

/* The tiles of a head, in order. before: for the sums over rows that gradients want; else gradients. */
ATTN_FUNC_ void attn_backward_tiles_(attn_tile_ *t, const attn_backward_ *g,
                                     attn_backward_memory_ *m, attn_term_sums_ *sums, int64_t b,
                                     int64_t h, int before) {
  const attn_softmax_ *a = t->a;
  const attn_plan_ *p = ATTN_PART_(PATTERN, a->plan);
  int64_t done = 0, first = 0;
  const int phases = p ? ((const int32_t *)attn_plan_at_(
                             p, p->at_phase))[((const int32_t *)attn_plan_at_(p, p->at_head))[h]]
                       : 1;
  for (int phase = 0; phase < phases; phase++) {
    const int64_t tiles = p ? attn_plan_tiles_(p, h, phase, &first) : attn_tiles_of_(a->q.len);
    for (int64_t n = 0; n < tiles; n++) {
      if (p)
        attn_tile_plan_rows_(t, b, h,
                             (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile) + first + n);
      else
        attn_tile_group_rows_(t, b * a->q.heads + h, n);
      if (before) {
        if (ATTN_PART_(RELU, g->weights))
          g->weights->tally(t, g, m);
        else
          attn_backward_tile_map_(t, g, m);
        continue;
      }
      attn_backward_tile_run_(t, g, m, sums);
      if (++done % ATTN_GRAD_RUN_ == 0)
        attn_sent_fold_(a->table, &m->k, a->k.len), attn_sent_fold_(a->table, &m->v, a->k.len);
    }
  }
}

/* What a map adds to the D of a head's rows, which may lie in tiles of several phases; and what else is wanted of them. */
ATTN_FUNC_ void attn_backward_maps_(attn_tile_ *t, const attn_backward_ *g,
                                    attn_backward_memory_ *m, int64_t b, int64_t h) {
  if (!m->map_sums && !m->row_keys) return;
  for (int64_t i = 0; m->map_sums && i < t->a->q.len; i++) m->map_sums[i] = 0;
  for (int64_t i = 0; m->row_keys && i < t->a->q.len; i++)
    m->row_keys[i] = m->row_sums[i] = m->row_dots[i] = 0;
  attn_backward_tiles_(t, g, m, NULL, b, h, 1);
}

ATTN_FUNC_ void attn_backward_head_(attn_tile_ *t, const attn_backward_ *g,
                                    attn_backward_memory_ *m, attn_term_sums_ *sums, int64_t b,
                                    int64_t h) {
  const attn_softmax_ *a = t->a;
  if (m->d_rows) memset(m->d_rows, 0, (size_t)(a->q.len * a->q.dim) * sizeof(float));
  attn_backward_maps_(t, g, m, b, h);
  attn_backward_tiles_(t, g, m, sums, b, h, 0);
  for (int64_t i = 0; m->d_rows && g->d_q.data && i < a->q.len; i++) {
    char *out = attn_at_(&g->d_q, b, h, i);
    a->table->blend(out, m->d_rows + i * a->q.dim, g->accumulate ? out : NULL, g->d_q.dtype,
                    ATTN_F32, g->d_q.dtype, a->q.dim, g->scale, 1.0f);
  }
}

/* The rows of sequence b: t gets its problem, here its outputs. */
ATTN_FUNC_ void attn_backward_entry_(const attn_softmax_ *all, int64_t b, attn_softmax_ *own,
                                     attn_tile_ *t, attn_backward_ *here) {
  const attn_sequences_ *s = all->seq;
  t->a = attn_problem_(all, b, own);
  if (s && s->q) {
    attn_skip_rows_(&here->d_q, s->q[b], t->a->q.len);
    attn_skip_rows_(&here->d_o, s->q[b], t->a->q.len);
    attn_skip_rows_(&here->d_lse, s->q[b], t->a->q.len);
  }
  if (s && s->kv) {
    attn_skip_rows_(&here->d_k, s->kv[b], t->a->k.len);
    attn_skip_rows_(&here->d_v, s->kv[b], t->a->k.len);
  }
}

/* d_sinks of the head h. */
ATTN_FUNC_ void attn_backward_sinks_(const attn_softmax_ *all, attn_tile_ *t,
                                     const attn_backward_ *g, attn_backward_memory_ *m, int64_t h) {
  const float sink = all->sinks[h];
  const int64_t entries = all->seq ? all->seq->n : all->q.batch;
  double sum = 0;
  for (int64_t b = 0; sink > -INFINITY && b < entries; b++) {
    attn_softmax_ own;
    attn_backward_ here = *g;
    attn_backward_entry_(all, b, &own, t, &here);
    attn_backward_maps_(t, &here, m, b, h);
    for (int64_t n = 0; n < attn_tiles_of_(t->a->q.len); n++) {
      attn_tile_group_rows_(t, b * all->q.heads + h, n);
      attn_backward_lanes_(t, &here, m);
      for (int r = 0; r < t->n; r++) {
        const double more = m->map_sums ? m->map_sums[t->row[r]] : 0.0;
        float share;
        if (m->lanes->hi[r] == INFINITY) continue;
        memcpy(&share, attn_at_(&t->a->lse, b, h, t->row[r]), sizeof share);
        share = sink - share;
        all->table->exp(&share, &share, 1);
        sum -= (double)share * ((double)m->lanes->less[r] + more);
      }
    }
  }
  attn_terms_put_(&g->d_sinks[h], sum, g->accumulate);
}

ATTN_FUNC_ void attn_backward_clear_(double *x, int64_t n) {
  for (int64_t i = 0; x && i < n; i++) x[i] = 0;
}

/* Sums over rows of tables begin, those of all heads with the first. */
ATTN_FUNC_ void attn_backward_tables_open_(const attn_softmax_ *a, const attn_sdpa_gradients *p,
                                           attn_term_sums_ *x, int first) {
  for (int kind = 0; kind < ATTN_PAIR_TABLES_; kind++) {
    const attn_tensor *y = attn_pair_gradient_(p, kind);
    if (first || y->heads > 1) attn_backward_clear_(x->table[kind], y->len * y->dim);
  }
  attn_backward_clear_(x->label_bias, a->labels.table.len);
  attn_backward_clear_(x->u, a->q.dim), attn_backward_clear_(x->v, a->q.dim);
}

/* And leave, those of all heads with the last. */
ATTN_FUNC_ void attn_backward_tables_close_(const attn_softmax_ *a, const attn_backward_ *g,
                                            const attn_term_sums_ *x, int64_t h, int last) {
  const attn_sdpa_gradients *p = &g->asked;
  const int64_t heads = a->q.heads, dk = a->q.dim;
  for (int kind = 0; kind < ATTN_PAIR_TABLES_; kind++) {
    const attn_tensor *y = attn_pair_gradient_(p, kind);
    if (last || y->heads > 1)
      attn_terms_put_table_(y, x->table[kind], h, kind == ATTN_PAIR_VALUES_ ? 1.0 : a->scale,
                            g->accumulate);
  }
  for (int64_t i = 0; x->label_bias && i < a->labels.table.len; i++)
    attn_terms_put_(&p->d_label_bias[i * heads + h], a->scale * x->label_bias[i], g->accumulate);
  for (int64_t c = 0; x->u && c < dk; c++)
    attn_terms_put_(&p->d_xl_u[h * dk + c], a->scale * x->u[c], g->accumulate);
  for (int64_t c = 0; x->v && c < dk; c++)
    attn_terms_put_(&p->d_xl_v[h * dk + c], a->scale * x->v[c], g->accumulate);
}

/* Gradients of the terms of heads h0 .. h1 - 1. */
ATTN_FUNC_ void attn_backward_added_(const attn_softmax_ *all, attn_tile_ *t,
                                     const attn_backward_ *g, attn_backward_memory_ *m,
                                     attn_term_sums_ *x, int64_t h0, int64_t h1) {
  const attn_sdpa_gradients *p = &g->asked;
  const attn_toeplitz *z = &all->by_distance.toeplitz;
  const int64_t entries = all->seq ? all->seq->n : all->q.batch, heads = all->q.heads;
  const int64_t rows = attn_max64_(z->heads, 1), buckets = p->d_t5 ? attn_t5_buckets_(all) : 0;
  attn_terms_open_(all, p, h0, h1);
  for (int64_t i = 0; x->toeplitz && i < rows * z->len; i++) x->toeplitz[i] = 0;
  for (int64_t i = 0; i < buckets * heads; i++) x->t5[i] = 0;
  for (int64_t h = h0; h < h1; h++) {
    x->alibi = x->w = x->bias = x->scale = x->alpha = x->beta = x->span = 0;
    attn_backward_tables_open_(all, p, x, h == h0);
    for (int64_t b = 0; b < entries; b++) {
      attn_softmax_ own;
      attn_backward_ here = *g;
      here.d_q.data = here.d_k.data = here.d_v.data = NULL;
      attn_backward_entry_(all, b, &own, t, &here);
      const int64_t apart = t->a->q.len + t->a->k.len;
      attn_backward_clear_(x->by_distance, apart), attn_backward_clear_(x->by_factor, apart);
      attn_backward_clear_(x->by_key, t->a->k.len);
      attn_backward_head_(t, &here, m, x, b, h);
      attn_terms_sort_(t->a, x, h), attn_terms_sort_inner_(t->a, x, h);
      attn_terms_sort_keys_(t->a, p, x, b, h);
    }
    if (p->d_alibi) attn_terms_put_(&p->d_alibi[h], x->alibi, g->accumulate);
    if (p->d_parabola_w) attn_terms_put_(&p->d_parabola_w[h], x->w, g->accumulate);
    if (p->d_parabola_bias) attn_terms_put_(&p->d_parabola_bias[h], x->bias, g->accumulate);
    if (p->d_scale) attn_terms_put_(&p->d_scale[h], x->scale, g->accumulate);
    if (p->d_alpha) attn_terms_put_(&p->d_alpha[h], x->alpha, g->accumulate);
    if (p->d_beta) attn_terms_put_(&p->d_beta[h], x->beta, g->accumulate);
    if (p->d_span && !all->span.per_query) attn_terms_put_(&p->d_span[h], x->span, g->accumulate);
    if (p->d_t5) attn_terms_put_row_(p->d_t5 + h, x->t5 + h, buckets, heads, g->accumulate);
    if (p->d_toeplitz && (rows > 1 || h == h1 - 1)) {
      const int64_t at = rows > 1 ? h * z->len : 0;
      attn_terms_put_row_(p->d_toeplitz + at, x->toeplitz + at, z->len, 1, g->accumulate);
    }
    attn_backward_tables_close_(all, g, x, h, h == h1 - 1);
  }
  attn_terms_close_(p, h0, h1);
}

/* A batch entry and heads h0 .. that share keys and values. */
ATTN_FUNC_ void attn_backward_unit_(const attn_softmax_ *all, attn_tile_ *t,
                                    const attn_backward_ *g, attn_backward_memory_ *m, int64_t b,
                                    int64_t h0) {
  const int64_t each_k = all->q.heads / all->k.heads, each_v = all->q.heads / all->v.heads;
  const attn_sequences_ *s = all->seq;
  attn_softmax_ own;
  attn_backward_ here = *g;
  if (s && b == s->n - 1 && !g->accumulate) { /* what no sequence has */
    if (s->q) attn_zero_rows_(&g->d_q, 0, h0, g->heads, s->q[s->n]);
    if (s->kv) {
      attn_zero_rows_(&g->d_k, 0, h0 / each_k, attn_runs_of_(g->heads, each_k), s->kv[s->n]);
      attn_zero_rows_(&g->d_v, 0, h0 / each_v, attn_runs_of_(g->heads, each_v), s->kv[s->n]);
    }
  }
  attn_backward_entry_(all, b, &own, t, &here);
  const int64_t keys = t->a->k.len;
  m->k.out = here.d_k, m->v.out = here.d_v;
  for (int64_t h = h0; h < h0 + g->heads; h++) {
    if (h % each_k == 0) attn_sent_open_(&m->k, g, &all->k, b, h / each_k, keys);
    if (h % each_v == 0) attn_sent_open_(&m->v, g, &all->v, b, h / each_v, keys);
    attn_backward_head_(t, &here, m, NULL, b, h);
    if ((h + 1) % each_k == 0) attn_sent_close_(all->table, &m->k, keys, g->scale);
    if ((h + 1) % each_v == 0) attn_sent_close_(all->table, &m->v, keys, 1.0f);
  }
}

/* A batch entry and heads that share keys and values; behind those the heads' sinks and terms. */
ATTN_FUNC_ void attn_backward_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *all = (const attn_softmax_ *)job;
  attn_backward_ g = *(const attn_backward_ *)all->own_job;
  const attn_sequences_ *s = all->seq;
  attn_tile_ t;
  attn_backward_memory_ m;
  attn_term_sums_ sums;
  attn_tile_open_(&t, all, worker);
  attn_clear_(&m, sizeof m), attn_clear_(&sums, sizeof sums);
  attn_backward_cut_(all, &g, t.w.own, &m, &sums);
  m.q.dim = m.k.dim = all->q.dim, m.d_o.dim = m.v.dim = all->v.dim;
  m.q.finite = m.d_o.finite = 1;
  if (m.reads) {
    const int64_t n = attn_pair_most_(all);
    memset(m.pair.sum, 0, (size_t)(n * ATTN_TILE_) * sizeof(float));
    memset(m.pair.hit, 0, (size_t)n * sizeof(uint64_t));
  }
  t.w.held->n = 0;
  const int64_t sinks = g.d_sinks ? all->q.heads : 0, after = index - g.units - sinks;
  if (after >= 0) {
    const int shared = attn_terms_shared_(all, &g.asked);
    attn_backward_added_(all, &t, &g, &m, &sums, shared ? 0 : after,
                         shared ? all->q.heads : after + 1);
    return;
  }
  if (index >= g.units) {
    attn_backward_sinks_(all, &t, &g, &m, index - g.units);
    return;
  }
  const int64_t parts = all->q.heads / g.heads;
  if (!attn_sent_shared_(&g.d_k, &all->k) && !attn_sent_shared_(&g.d_v, &all->v)) {
    attn_backward_unit_(all, &t, &g, &m, index / parts, index % parts * g.heads);
    return;
  }
  for (int64_t n = 0; n < (s ? s->n : all->q.batch) * parts; n++)
    attn_backward_unit_(all, &t, &g, &m, n / parts, n % parts * g.heads);
}
