/* families/training/sdpa_backward.h owns the call for the gradients of attention: its checks, the memory of a
 * worker, and the units that workers take. */

/* ---- units ----------------------------------------------------------------------------------*/

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
  const int far_k = attn_sent_apart_(g, &g->d_k, &a->k),
            far_v = attn_sent_apart_(g, &g->d_v, &a->v);
  int64_t at = 0;
  const attn_sdpa_gradients *p = &g->asked;
  const attn_toeplitz *z = &a->by_distance.toeplitz;
#define ATTN_CUT_(member, type, n, size) ATTN_CUT_TO_(m->member, type, n, size)
#define ATTN_CUT_TO_(place, type, n, size)             \
  {                                                    \
    if (memory) place = (type *)(void *)(memory + at); \
    at = attn_add_(at, attn_piece_(n, size));          \
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
  if (p->d_alibi || p->d_toeplitz || p->d_t5 || p->d_parabola_w || p->d_parabola_bias)
    ATTN_CUT_TO_(x->by_distance, double, attn_add_(a->q.len, a->k.len), sizeof(double))
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

/* The tiles of a head, in order. */
ATTN_FUNC_ void attn_backward_head_(attn_tile_ *t, const attn_backward_ *g,
                                    attn_backward_memory_ *m, attn_term_sums_ *sums, int64_t b,
                                    int64_t h) {
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
      attn_backward_tile_run_(t, g, m, sums);
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
                                     const attn_backward_ *g, const attn_backward_memory_ *m,
                                     int64_t h) {
  const float sink = all->sinks[h];
  const int64_t entries = all->seq ? all->seq->n : all->q.batch;
  double sum = 0;
  for (int64_t b = 0; sink > -INFINITY && b < entries; b++) {
    attn_softmax_ own;
    attn_backward_ here = *g;
    attn_backward_entry_(all, b, &own, t, &here);
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
  attn_terms_put_(&g->d_sinks[h], sum, g->accumulate);
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
    x->alibi = x->w = x->bias = 0;
    for (int64_t b = 0; b < entries; b++) {
      attn_softmax_ own;
      attn_backward_ here = *g;
      here.d_q.data = here.d_k.data = here.d_v.data = NULL;
      attn_backward_entry_(all, b, &own, t, &here);
      for (int64_t i = 0; x->by_distance && i < t->a->q.len + t->a->k.len; i++)
        x->by_distance[i] = 0;
      attn_backward_head_(t, &here, m, x, b, h);
      attn_terms_sort_(t->a, x, h);
    }
    if (p->d_alibi) attn_terms_put_(&p->d_alibi[h], x->alibi, g->accumulate);
    if (p->d_parabola_w) attn_terms_put_(&p->d_parabola_w[h], x->w, g->accumulate);
    if (p->d_parabola_bias) attn_terms_put_(&p->d_parabola_bias[h], x->bias, g->accumulate);
    if (p->d_t5) attn_terms_put_row_(p->d_t5 + h, x->t5 + h, buckets, heads, g->accumulate);
    if (p->d_toeplitz && (rows > 1 || h == h1 - 1)) {
      const int64_t at = rows > 1 ? h * z->len : 0;
      attn_terms_put_row_(p->d_toeplitz + at, x->toeplitz + at, z->len, 1, g->accumulate);
    }
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

/* ---- the call -------------------------------------------------------------------------------*/

/* Terms that forward may have and this call not, yet. */
ATTN_COLD_ int attn_backward_terms_(attn_error_ *e, const attn_sdpa_params *p) {
  if (p->relative.keys.data || p->relative.queries.data || p->relative.values.data ||
      p->xl.table.data || p->xl.u || p->xl.v || p->labels.label || p->factor.alpha ||
      p->factor.beta || p->span.z || p->modify || p->modify_weights)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.relative, xl, labels, factor, span, modify and modify_weights "
                        "must be absent");
  return 1;
}

enum { ATTN_GRADIENT_ARRAYS_ = 8, ATTN_GRADIENT_OUTPUTS_ = ATTN_GRADIENT_ARRAYS_ + 4 };

/* One array for the gradients of `of`. */
ATTN_COLD_ int attn_backward_array_(attn_error_ *e, const float *y, const void *of, int64_t n,
                                    const char *why, attn_span_ **out) {
  if (y && !of) return attn_reject_(e, ATTN_E_NULL, why);
  return attn_check_array_(e, y, n, 4, "an array of gradients must be aligned to its elements",
                           (*out)++);
}

/* All of them; their spans go to out. */
ATTN_COLD_ int attn_backward_arrays_(attn_error_ *e, const attn_softmax_ *a,
                                     const attn_sdpa_params *p, const attn_sdpa_gradients *g,
                                     attn_span_ *out) {
  const int64_t h = a->q.heads, rows = attn_mul_(attn_mul_(a->q.batch, h), a->q.len);
  const int64_t table = attn_mul_(attn_max64_(p->toeplitz.heads, 1), p->toeplitz.len);
  const int64_t t5 = attn_mul_(p->t5.buckets ? p->t5.buckets : 32, h);
  return attn_backward_array_(e, g->d_sinks, p->sinks, h, "gradients.d_sinks wants params.sinks",
                              &out) &&
         attn_backward_array_(e, g->d_alibi, p->alibi, h, "gradients.d_alibi wants params.alibi",
                              &out) &&
         attn_backward_array_(e, g->d_toeplitz, p->toeplitz.table, table,
                              "gradients.d_toeplitz wants params.toeplitz", &out) &&
         attn_backward_array_(e, g->d_t5, p->t5.table, t5, "gradients.d_t5 wants params.t5",
                              &out) &&
         attn_backward_array_(e, g->d_parabola_w, p->parabola.w, h,
                              "gradients.d_parabola_w wants params.parabola", &out) &&
         attn_backward_array_(e, g->d_parabola_bias, p->parabola.bias, h,
                              "gradients.d_parabola_bias wants params.parabola.bias", &out) &&
         attn_backward_array_(e, g->d_center, p->gaussian.center, rows,
                              "gradients.d_center wants params.gaussian", &out) &&
         attn_backward_array_(e, g->d_precision, p->gaussian.precision, rows,
                              "gradients.d_precision wants params.gaussian", &out);
}

/* The batch and heads of a gradient are those of x, or 1 where x has one for all. */
ATTN_COLD_ int attn_backward_extents_(attn_error_ *e, const attn_tensor *y, const attn_tensor *x,
                                      const char *shape, const char *type) {
  if (!y->data) return 1;
  if ((y->batch != x->batch && (y->batch != 1 || x->batch < 1 || x->stride_batch)) ||
      (y->heads != x->heads && (y->heads != 1 || x->heads < 1 || x->stride_head)))
    return attn_reject_(e, ATTN_E_SHAPE, shape);
  return !attn_sent_shared_(y, x) || y->dtype == ATTN_F32 || attn_reject_(e, ATTN_E_DTYPE, type);
}

/* Every rule. a: forward's problem; data as in attn_sdpa_plan_. */
ATTN_COLD_ int attn_backward_plan_(attn_error_ *e, attn_softmax_ *a, attn_backward_ *g,
                                   const attn_sdpa_params *params, const attn_tensor *lse,
                                   attn_span_ out[ATTN_GRADIENT_OUTPUTS_], const attn_ctx *ctx,
                                   int *workers, int data) {
  const attn_tensor *q = &a->q, *k = &a->k, *v = &a->v, *bias = &g->asked.d_bias;
  const int64_t any = ATTN_ANY_;
  attn_sdpa_params p = *params;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&g->d_q, "d_q", ATTN_OUT_ | ATTN_OPTIONAL_, q->batch, q->heads, q->len, q->dim,
                    "d_q must have the shape of q"),
      ATTN_OPERAND_(&g->d_k, "d_k", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, k->len, k->dim,
                    "d_k must have the shape of k"),
      ATTN_OPERAND_(&g->d_v, "d_v", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, v->len, v->dim,
                    "d_v must have the shape of v"),
      ATTN_OPERAND_(&g->asked.d_bias, "gradients.d_bias",
                    (int)ATTN_OUT_ | (int)ATTN_OPTIONAL_ | (int)ATTN_IS_F32_, any, any, any, any,
                    "gradients.d_bias.dtype must be ATTN_F32"),
      ATTN_OPERAND_(&g->d_o, "d_o", 0, q->batch, q->heads, q->len, v->dim,
                    "d_o must have the shape of o"),
      ATTN_OPERAND_(&g->d_lse, "gradients.d_lse", ATTN_OPTIONAL_ | ATTN_IS_F32_, q->batch, q->heads,
                    q->len, 1, "gradients.d_lse must be [q.batch, q.heads, q.len, 1] of ATTN_F32")};
  enum { N = sizeof op / sizeof *op, TENSORS = ATTN_GRADIENT_OUTPUTS_ - ATTN_GRADIENT_ARRAYS_ };
  static const char *const given[] = {"q.data must not be null", "k.data must not be null",
                                      "v.data must not be null", "o.data must not be null"};
  const attn_tensor *const read[] = {q, k, v, &a->o};
  for (int i = 0; i < 4; i++)
    if (!read[i]->data && !read[i]->dim) return attn_reject_(e, ATTN_E_NULL, given[i]);
  if (!lse->data && ((q->batch && q->heads && q->len) || !lse->dim))
    return attn_reject_(e, ATTN_E_NULL, "lse.data must not be null");
  if (q->len > INT32_MAX || k->len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^31");
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], q->heads)) return 0;
  if (!attn_backward_extents_(e, &g->d_k, k, "d_k must have the shape of k",
                              "d_k.dtype must be ATTN_F32 where it is a sum over k") ||
      !attn_backward_extents_(e, &g->d_v, v, "d_v must have the shape of v",
                              "d_v.dtype must be ATTN_F32 where it is a sum over v"))
    return 0;
  if (g->accumulate != 0 && g->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  if (!attn_backward_terms_(e, &p)) return 0;
  if (bias->data && !p.bias.kind)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_bias wants params.bias");
  for (int i = 0; i < (int)TENSORS; i++) out[i] = op[i].span;
  if (!attn_backward_arrays_(e, a, &p, &g->asked, out + TENSORS) ||
      !attn_check_apart_(e, ctx, op, N, out + TENSORS, ATTN_GRADIENT_ARRAYS_))
    return 0;
  for (int i = TENSORS; i < (int)ATTN_GRADIENT_OUTPUTS_; i++)
    for (int j = i + 1; j < (int)ATTN_GRADIENT_OUTPUTS_ + 2; j++)
      if (attn_overlap_(out[i], j < (int)ATTN_GRADIENT_OUTPUTS_
                                    ? out[j]
                                    : op[N - 1 - (j - (int)ATTN_GRADIENT_OUTPUTS_)].span))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "a gradient must not share memory with another argument");
  a->takes_drop = 1;
  p.lse = *lse, p.compute = ATTN_COMPUTE_F32, p.compute_prefer = 0, p.one_order = 1;
  memset(&p.map, 0, sizeof p.map), p.map_stage = ATTN_MAP_WEIGHTS;
  a->beside = out, a->besides = ATTN_GRADIENT_OUTPUTS_;
  if (!attn_sdpa_plan_(e, a, &p, ctx, workers, data)) return 0;
  const int64_t entries = a->seq ? a->seq->n : q->batch;
  if (bias->data &&
      ((bias->batch != 1 && bias->batch != entries) ||
       (bias->heads != 1 && bias->heads != q->heads) || bias->len != q->len || bias->dim != k->len))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "gradients.d_bias must be [1 or q.batch, 1 or q.heads, q.len, k.len]");
  /* a tile has rows of one head, and every key head its unit */
  const int64_t heads = attn_max64_(q->heads, 1);
  const int64_t by_k = attn_max64_(attn_over_(heads, attn_max64_(k->heads, 1)), 1);
  const int64_t by_v = attn_max64_(attn_over_(heads, attn_max64_(v->heads, 1)), 1);
  a->group = 1, a->tiles = attn_tiles_of_(q->len);
  if (a->seq) attn_sequences_count_(a);
  const int tensors = g->d_q.data || g->d_k.data || g->d_v.data;
  g->heads = by_k / attn_gcd_(by_k, by_v) * by_v;
  g->units = tensors ? attn_mul_(entries, heads / g->heads) : 0;
  if (g->units && (attn_sent_shared_(&g->d_k, k) || attn_sent_shared_(&g->d_v, v))) g->units = 1;
  g->scale = (float)attn_clamp_f64_(a->scale);
  g->lists = 0;
  for (int64_t i = 0; ATTN_PART_(PATTERN, a->plan) && i < a->plan->tiles; i++) {
    const attn_plan_tile_ *t =
        (const attn_plan_tile_ *)attn_plan_at_(a->plan, a->plan->at_tile) + i;
    if (t->step == 0 && t->count > g->lists) g->lists = t->count;
  }
  const int terms = attn_terms_asked_(&g->asked), shared = attn_terms_shared_(a, &g->asked);
  a->own = attn_backward_item_, a->own_job = g, a->own_whole = 1;
  a->own_items = attn_add_(g->units, g->d_sinks ? q->heads : 0);
  if (terms) a->own_items = attn_add_(a->own_items, shared ? 1 : q->heads);
  a->own_bytes = attn_backward_cut_(a, g, NULL, NULL, NULL);
  return 1;
}

/* The outputs of a call without queries. */
ATTN_FUNC_ void attn_backward_nothing_(const attn_softmax_ *a, const attn_backward_ *g) {
  const attn_sdpa_gradients *p = &g->asked;
  const attn_tensor *const y[4] = {&g->d_q, &g->d_k, &g->d_v, &p->d_bias};
  const attn_toeplitz *z = &a->by_distance.toeplitz;
  float *const array[6] = {g->d_sinks,         p->d_alibi, p->d_parabola_w,
                           p->d_parabola_bias, p->d_t5,    p->d_toeplitz};
  if (g->accumulate) return;
  for (int i = 0; i < 4; i++)
    for (int64_t b = 0; b < y[i]->batch; b++) attn_zero_rows_(y[i], b, 0, y[i]->heads, 0);
  for (int i = 0; i < 6; i++) {
    const int64_t n = i == 5   ? attn_max64_(z->heads, 1) * z->len
                      : i == 4 ? attn_t5_buckets_(a) * a->q.heads
                               : a->q.heads;
    for (int64_t c = 0; array[i] && c < n; c++) array[i][c] = 0.0f;
  }
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
  attn_span_ out[ATTN_GRADIENT_OUTPUTS_];
  int workers;
  attn_problem_clear_(&a), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  a.o = o, a.q = q, a.k = k, a.v = v;
  g.d_q = d_q, g.d_k = d_k, g.d_v = d_v, g.d_o = d_o;
  if (gradients) g.asked = *gradients;
  g.d_lse = g.asked.d_lse, g.d_sinks = g.asked.d_sinks, g.accumulate = g.asked.accumulate;
  if (attn_backward_plan_(&e, &a, &g, params ? params : &none, &lse, out, ctx, &workers,
                          bytes ? 0 : 1)) {
    const int idle = attn_nothing_(&a);
    if (bytes && ctx && ctx->workers > 1) workers = ctx->workers;
    if (idle || a.own_items == 0) {
      if (!bytes) {
        attn_backward_nothing_(&a, &g);
        attn_report_(ctx, a.table, 1, "no-op", idle ? "no queries" : "no output is asked for");
      }
    } else if (bytes) {
      const int64_t need = attn_softmax_bytes_(&a, workers);
      if (attn_workspace_fits_(&e, need)) *bytes = (size_t)need;
    } else if (attn_softmax_run_(&e, &a, ctx, workers) && ctx) {
      ctx->report.path = "gradients, queries in lanes";
      ctx->report.why = "one pass for q, k and v, one for what is added to scores";
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_sdpa_backward, (d_q, d_k, d_v, d_o, q, k, v, o, lse, params, gradients),
           attn_tensor d_q, attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor o, attn_tensor lse,
           const attn_sdpa_params *params, const attn_sdpa_gradients *gradients)
