/* families/training/sdpa_backward.h owns the call for the gradients of attention: its checks, the memory of a
 * worker, and the units that workers take. */

/* ---- units ----------------------------------------------------------------------------------*/

/* The pieces of a worker's memory; with memory null only their bytes, INT64_MAX when they cannot be. */
ATTN_FUNC_ int64_t attn_backward_cut_(const attn_softmax_ *a, const attn_backward_ *g, char *memory,
                                      attn_backward_memory_ *m) {
  const int64_t f = sizeof(float), tile = ATTN_TILE_, block = ATTN_BLOCK_, dk = a->q.dim;
  const int64_t dv = a->v.dim, blocks = attn_runs_of_(a->k.len, ATTN_BLOCK_), past = ATTN_GROUP_;
  const int far_k = g->d_k.dtype != ATTN_F32 || g->accumulate,
            far_v = g->d_v.dtype != ATTN_F32 || g->accumulate;
  int64_t at = 0;
#define ATTN_CUT_(member, type, n, size)                   \
  {                                                        \
    if (memory) m->member = (type *)(void *)(memory + at); \
    at = attn_add_(at, attn_piece_(n, size));              \
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
  if (attn_backward_caps_first_(a)) ATTN_CUT_(capped, float, block *tile, f)
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
#undef ATTN_CUT_
  return at;
}

/* The rows of one head of keys begin: nothing has been sent to them. */
ATTN_FUNC_ void attn_sent_open_(attn_sent_rows_ *s, const attn_backward_ *g, int64_t b,
                                int64_t head, int64_t keys) {
  if (!s->out.data) return;
  const int own = s->out.dtype != ATTN_F32 || g->accumulate;
  s->head = head, s->folded = 0;
  if (!own) s->far = (float *)(void *)attn_at_(&s->out, b, head, 0);
  s->far_stride = own ? s->dim : s->out.stride_len;
  memset(s->near, 0, (size_t)(keys * s->dim) * sizeof(float));
  memset(s->some, 0, (size_t)attn_runs_of_(keys, ATTN_BLOCK_));
}

/* And are complete. */
ATTN_FUNC_ void attn_sent_close_(const attn_table_ *f, attn_sent_rows_ *s, const attn_backward_ *g,
                                 int64_t b, int64_t keys, float scale) {
  const attn_dtype y = s->out.dtype;
  if (s->folded) attn_sent_fold_(f, s, keys);
  for (int64_t j = 0, n; s->out.data && j < keys; j += n) {
    const float *from = s->folded ? s->far + j * s->far_stride : s->near + j * s->dim;
    char *out = attn_at_(&s->out, b, s->head, j);
    n = s->out.stride_len == s->dim ? attn_sent_rows_at_(s, j, keys) : 1;
    f->blend(out, from, g->accumulate ? out : NULL, y, ATTN_F32, y, n * s->dim, scale, 1.0f);
  }
}

/* 0 in rows from .. of heads h0 .. of a batch entry. */
ATTN_FUNC_ void attn_zero_rows_(const attn_tensor *y, int64_t b, int64_t h0, int64_t heads,
                                int64_t from) {
  for (int64_t h = h0; y->data && h < h0 + heads; h++)
    for (int64_t i = from; i < y->len; i++)
      memset(attn_at_(y, b, h, i), 0, (size_t)attn_bytes_(y->dtype, y->dim));
}

/* The tiles of a head, in order. */
ATTN_FUNC_ void attn_backward_head_(attn_tile_ *t, const attn_backward_ *g,
                                    attn_backward_memory_ *m, int64_t b, int64_t h) {
  const attn_softmax_ *a = t->a;
  const attn_plan_ *p = ATTN_PART_(PATTERN, a->plan);
  int64_t done = 0, first = 0;
  const int phases = p ? ((const int32_t *)attn_plan_at_(
                             p, p->at_phase))[((const int32_t *)attn_plan_at_(p, p->at_head))[h]]
                       : 1;
  if (m->d_rows) memset(m->d_rows, 0, (size_t)(a->q.len * a->q.dim) * sizeof(float));
  for (int phase = 0; phase < phases; phase++) {
    const int64_t tiles = p ? attn_plan_tiles_(p, h, phase, &first) : attn_tiles_of_(a->q.len);
    for (int64_t n = 0; n < tiles; n++) {
      if (p)
        attn_tile_plan_rows_(t, b, h,
                             (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile) + first + n);
      else
        attn_tile_group_rows_(t, b * a->q.heads + h, n);
      attn_backward_tile_run_(t, g, m);
      if (++done % ATTN_GRAD_RUN_ == 0)
        attn_sent_fold_(a->table, &m->k, a->k.len), attn_sent_fold_(a->table, &m->v, a->k.len);
    }
  }
  for (int64_t i = 0; m->d_rows && g->d_q.data && i < a->q.len; i++) {
    char *out = attn_at_(&g->d_q, b, h, i);
    a->table->blend(out, m->d_rows + i * a->q.dim, g->accumulate ? out : NULL, g->d_q.dtype,
                    ATTN_F32, g->d_q.dtype, a->q.dim, g->scale, 1.0f);
  }
}

/* d_sinks of the head h of t. */
ATTN_FUNC_ void attn_backward_sinks_(attn_tile_ *t, const attn_backward_ *g,
                                     const attn_backward_memory_ *m, int64_t h) {
  const attn_softmax_ *all = t->a;
  const float sink = all->sinks[h];
  const int64_t entries = all->seq ? all->seq->n : all->q.batch;
  double sum = 0;
  for (int64_t b = 0; sink > -INFINITY && b < entries; b++) {
    attn_softmax_ own;
    attn_backward_ here = *g;
    t->a = attn_problem_(all, b, &own);
    if (all->seq && all->seq->q) {
      attn_skip_rows_(&here.d_o, all->seq->q[b], t->a->q.len);
      attn_skip_rows_(&here.d_lse, all->seq->q[b], t->a->q.len);
    }
    for (int64_t n = 0; n < attn_tiles_of_(t->a->q.len); n++) {
      attn_tile_group_rows_(t, b * all->q.heads + h, n);
      attn_backward_lanes_(t, &here, m);
      for (int r = 0; r < t->n; r++) {
        float share;
        if (m->lanes->hi[r] == INFINITY) continue;
        memcpy(&share, attn_at_(&t->a->lse, b, h, t->row[r]), sizeof share);
        share = sink - share;
        all->table->exp(&share, &share, 1);
        sum -= (double)share * (double)m->lanes->less[r];
      }
    }
  }
  if (g->accumulate) sum += (double)g->d_sinks[h];
  g->d_sinks[h] = attn_one_nan_((float)sum);
}

/* A batch entry and heads that share keys and values; behind those the heads' sinks. */
ATTN_FUNC_ void attn_backward_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *all = (const attn_softmax_ *)job, *a = all;
  attn_backward_ g = *(const attn_backward_ *)all->own_job;
  const attn_sequences_ *s = all->seq;
  attn_softmax_ own;
  attn_tile_ t;
  attn_backward_memory_ m;
  attn_tile_open_(&t, all, worker);
  attn_clear_(&m, sizeof m);
  attn_backward_cut_(all, &g, t.w.own, &m);
  if (index >= g.units) {
    attn_backward_sinks_(&t, &g, &m, index - g.units);
    return;
  }
  const int64_t parts = all->q.heads / g.heads, b = index / parts, h0 = index % parts * g.heads;
  const int64_t each_k = all->q.heads / all->k.heads, each_v = all->q.heads / all->v.heads;
  t.a = a = attn_problem_(all, b, &own);
  if (s && s->q) {
    if (b == s->n - 1 && !g.accumulate) attn_zero_rows_(&g.d_q, 0, h0, g.heads, s->q[s->n]);
    attn_skip_rows_(&g.d_q, s->q[b], a->q.len), attn_skip_rows_(&g.d_o, s->q[b], a->q.len);
    attn_skip_rows_(&g.d_lse, s->q[b], a->q.len);
  }
  if (s && s->kv) {
    if (b == s->n - 1 && !g.accumulate) {
      attn_zero_rows_(&g.d_k, 0, h0 / each_k, attn_runs_of_(g.heads, each_k), s->kv[s->n]);
      attn_zero_rows_(&g.d_v, 0, h0 / each_v, attn_runs_of_(g.heads, each_v), s->kv[s->n]);
    }
    attn_skip_rows_(&g.d_k, s->kv[b], a->k.len), attn_skip_rows_(&g.d_v, s->kv[b], a->k.len);
  }
  m.q.dim = m.k.dim = a->q.dim, m.d_o.dim = m.v.dim = a->v.dim;
  m.q.finite = m.d_o.finite = 1;
  m.k.out = g.d_k, m.v.out = g.d_v;
  t.w.held->n = 0;
  for (int64_t h = h0; h < h0 + g.heads; h++) {
    if (h % each_k == 0) attn_sent_open_(&m.k, &g, b, h / each_k, a->k.len);
    if (h % each_v == 0) attn_sent_open_(&m.v, &g, b, h / each_v, a->k.len);
    attn_backward_head_(&t, &g, &m, b, h);
    if ((h + 1) % each_k == 0) attn_sent_close_(a->table, &m.k, &g, b, a->k.len, g.scale);
    if ((h + 1) % each_v == 0) attn_sent_close_(a->table, &m.v, &g, b, a->k.len, 1.0f);
  }
}

/* ---- the call -------------------------------------------------------------------------------*/

/* Terms that forward may have and this call not, yet. */
ATTN_FUNC_ int attn_backward_terms_(attn_error_ *e, const attn_sdpa_params *p,
                                    const attn_backward_ *g) {
  if (p->relative.keys.data || p->relative.queries.data || p->relative.values.data ||
      p->xl.table.data || p->xl.u || p->xl.v || p->labels.label || p->factor.alpha ||
      p->factor.beta || p->span.z || p->modify || p->modify_weights)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.relative, xl, labels, factor, span, modify and modify_weights "
                        "must be absent");
  if (g->d_sinks && !p->sinks)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_sinks wants params.sinks");
  return 1;
}

/* Every rule. a: forward's problem; data as in attn_sdpa_plan_. */
ATTN_COLD_ int attn_backward_plan_(attn_error_ *e, attn_softmax_ *a, attn_backward_ *g,
                                   const attn_sdpa_params *params, const attn_tensor *lse,
                                   attn_span_ out[4], const attn_ctx *ctx, int *workers, int data) {
  const attn_tensor *q = &a->q, *k = &a->k, *v = &a->v;
  attn_sdpa_params p = *params;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&g->d_q, "d_q", ATTN_OUT_ | ATTN_OPTIONAL_, q->batch, q->heads, q->len, q->dim,
                    "d_q must have the shape of q"),
      ATTN_OPERAND_(&g->d_k, "d_k", ATTN_OUT_ | ATTN_OPTIONAL_, k->batch, k->heads, k->len, k->dim,
                    "d_k must have the shape of k"),
      ATTN_OPERAND_(&g->d_v, "d_v", ATTN_OUT_ | ATTN_OPTIONAL_, v->batch, v->heads, v->len, v->dim,
                    "d_v must have the shape of v"),
      ATTN_OPERAND_(&g->d_o, "d_o", 0, q->batch, q->heads, q->len, v->dim,
                    "d_o must have the shape of o"),
      ATTN_OPERAND_(&g->d_lse, "gradients.d_lse", ATTN_OPTIONAL_ | ATTN_IS_F32_, q->batch, q->heads,
                    q->len, 1, "gradients.d_lse must be [q.batch, q.heads, q.len, 1] of ATTN_F32")};
  enum { N = sizeof op / sizeof *op };
  if (!lse->data && q->batch && q->heads && q->len)
    return attn_reject_(e, ATTN_E_NULL, "lse.data must not be null");
  for (int i = 0; i < N; i++)
    if (!attn_check_operand_(e, &op[i], q->heads)) return 0;
  if (g->accumulate != 0 && g->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  if (!attn_backward_terms_(e, &p, g)) return 0;
  for (int i = 0; i < 3; i++) out[i] = op[i].span;
  if (!attn_check_array_(e, g->d_sinks, q->heads, 4,
                         "gradients.d_sinks must be aligned to its elements", &out[3]) ||
      !attn_check_apart_(e, ctx, op, N, &out[3], data < 0 ? 0 : 1))
    return 0;
  p.lse = *lse, p.compute = ATTN_COMPUTE_F32, p.compute_prefer = 0, p.one_order = 1;
  memset(&p.map, 0, sizeof p.map), p.map_stage = ATTN_MAP_WEIGHTS;
  a->beside = out, a->besides = 4;
  if (!attn_sdpa_plan_(e, a, &p, ctx, workers, data)) return 0;
  /* a tile has rows of one head, and every key head its unit */
  const int64_t heads = attn_max64_(q->heads, 1);
  const int64_t by_k = attn_max64_(attn_over_(heads, attn_max64_(k->heads, 1)), 1);
  const int64_t by_v = attn_max64_(attn_over_(heads, attn_max64_(v->heads, 1)), 1);
  a->group = 1, a->tiles = attn_tiles_of_(q->len);
  if (a->seq) attn_sequences_count_(a);
  g->heads = by_k / attn_gcd_(by_k, by_v) * by_v;
  g->units = attn_mul_(a->seq ? a->seq->n : q->batch, heads / g->heads);
  g->scale = (float)attn_clamp_f64_(a->scale);
  g->lists = 0;
  for (int64_t i = 0; ATTN_PART_(PATTERN, a->plan) && i < a->plan->tiles; i++) {
    const attn_plan_tile_ *t =
        (const attn_plan_tile_ *)attn_plan_at_(a->plan, a->plan->at_tile) + i;
    if (t->step == 0 && t->count > g->lists) g->lists = t->count;
  }
  a->own = attn_backward_item_, a->own_job = g, a->own_whole = 1;
  a->own_items = attn_add_(g->units, g->d_sinks ? q->heads : 0);
  a->own_bytes = attn_backward_cut_(a, g, NULL, NULL);
  return 1;
}

/* The outputs of a call without queries. */
ATTN_FUNC_ void attn_backward_nothing_(const attn_backward_ *g, int64_t heads) {
  const attn_tensor *const y[3] = {&g->d_q, &g->d_k, &g->d_v};
  if (g->accumulate) return;
  for (int i = 0; i < 3; i++)
    for (int64_t b = 0; b < y[i]->batch; b++) attn_zero_rows_(y[i], b, 0, y[i]->heads, 0);
  for (int64_t h = 0; g->d_sinks && h < heads; h++) g->d_sinks[h] = 0.0f;
}

ATTN_COLD_ attn_status attn_sdpa_backward_call_(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, attn_tensor o, attn_tensor lse,
                                                const attn_sdpa_params *params,
                                                const attn_sdpa_gradients *gradients, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  attn_backward_ g;
  attn_sdpa_params none;
  attn_span_ out[4];
  int workers;
  attn_problem_clear_(&a), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  a.o = o, a.q = q, a.k = k, a.v = v;
  g.d_q = d_q, g.d_k = d_k, g.d_v = d_v, g.d_o = d_o;
  if (gradients)
    g.d_lse = gradients->d_lse, g.d_sinks = gradients->d_sinks,
    g.accumulate = gradients->accumulate;
  if (attn_backward_plan_(&e, &a, &g, params ? params : &none, &lse, out, ctx, &workers,
                          bytes ? 0 : 1)) {
    const int idle = attn_nothing_(&a), unasked = !d_q.data && !d_k.data && !d_v.data && !g.d_sinks;
    if (bytes && ctx && ctx->workers > 1) workers = ctx->workers;
    if (idle || unasked) {
      if (!bytes) {
        attn_backward_nothing_(&g, q.heads);
        attn_report_(ctx, a.table, 1, "no-op", idle ? "no queries" : "no output is asked for");
      }
    } else if (bytes) {
      const int64_t need = attn_softmax_bytes_(&a, workers);
      if (attn_workspace_fits_(&e, need)) *bytes = (size_t)need;
    } else if (attn_softmax_run_(&e, &a, ctx, workers) && ctx) {
      ctx->report.path = "gradients, queries in lanes";
      ctx->report.why = "one pass makes all of them";
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_sdpa_backward, (d_q, d_k, d_v, d_o, q, k, v, o, lse, params, gradients),
           attn_tensor d_q, attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor o, attn_tensor lse,
           const attn_sdpa_params *params, const attn_sdpa_gradients *gradients)
