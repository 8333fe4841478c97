/* families/training/edges_backward.h owns the gradients of attention over the caller's key lists: row by row, edge by
 * edge, nothing by pairs that are no edges. */

/* Rows whose shares of d_k and d_v are added one after another. */
enum { ATTN_EDGES_RUN_ = 512 };
/* Rows between asking for one of an edge and reading it. */
enum { ATTN_EDGES_AHEAD_ = 6 };

typedef struct attn_edges_back_ {
  attn_backward_ g; /* tensors and units; behind the units a set each, of d_bias */
  const attn_edges_params *p;
  const float *d_weights;
  float *d_bias;
  attn_drop_key_ drop;
} attn_edges_back_;

/* A worker's memory. */
typedef struct attn_edges_memory_ {
  float *q, *d_o, *o, *d_q; /* a row of each */
  attn_sent_rows_ k, v;
} attn_edges_memory_;

/* Edges of a row, a block at most: keys, places in the set, weights and gradients of scores. */
typedef struct attn_edges_run_ {
  int32_t key[ATTN_BLOCK_];
  int64_t at[ATTN_BLOCK_];
  float weight[ATTN_BLOCK_], d[ATTN_BLOCK_];
  int n;
} attn_edges_run_;

/* A row: its place, LSE and D. */
typedef struct attn_edges_row_ {
  int64_t b, h, i, hk, hv, set;
  const int64_t *ptr;
  float lse, less;
} attn_edges_row_;

/* Its edges from *next on that are allowed. 0: there are none left. */
ATTN_FUNC_ int attn_edges_next_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                const attn_edges_row_ *r, int64_t *next, attn_edges_run_ *x) {
  const int64_t keys = a->kv_len ? a->kv_len[r->b] : a->k.len, p = r->i + a->q_off;
  const int64_t end = attn_clamp_(p + a->right + 1, 0, keys);
  const int32_t *col = j->p->col + r->set * j->p->edges;
  const float *bias = j->p->bias ? j->p->bias + r->set * j->p->edges : NULL;
  for (x->n = 0; *next < r->ptr[1] && x->n < ATTN_BLOCK_; ++*next) {
    if (col[*next] >= end || (bias && bias[*next] == -INFINITY)) continue;
    x->key[x->n] = col[*next], x->at[x->n++] = *next;
  }
  return x->n > 0;
}

/* P of its edges. */
ATTN_FUNC_ void attn_edges_weights_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                    const attn_edges_memory_ *m, const attn_edges_row_ *r,
                                    attn_edges_run_ *x) {
  const float *bias = j->p->bias ? j->p->bias + r->set * j->p->edges : NULL;
  attn_on_(list, a->table)
      ->dots(x->weight, m->q, attn_at_(&a->k, r->b, r->hk, 0), a->k.stride_len, x->key, x->n,
             a->k.dim, a->k.dtype, ATTN_EDGES_AHEAD_);
  for (int e = 0; e < x->n; e++) {
    const double y =
        (double)x->weight[e] * a->scale + (bias ? (double)bias[x->at[e]] : 0.0) - (double)r->lse;
    x->weight[e] = y > 0 ? 0.0f : (float)attn_clamp_f64_(y); /* at most 1, and NaN stays */
  }
  a->table->exp(x->weight, x->weight, x->n);
}

/* And dX; the weights become those that multiply values. */
ATTN_FUNC_ void attn_edges_slopes_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                   const attn_edges_memory_ *m, const attn_edges_row_ *r,
                                   attn_edges_run_ *x) {
  const attn_table_ *f = a->table;
  const attn_drop *drop = &j->p->dropout;
  const uint32_t at[3] = {(uint32_t)r->i, (uint32_t)(r->h + drop->head0),
                          (uint32_t)(r->b + drop->batch0)};
  const float *more = j->d_weights ? j->d_weights + (r->b * a->q.heads + r->h) * j->p->edges : NULL;
  attn_on_(list, f)->dots(x->d, m->d_o, attn_at_(&a->v, r->b, r->hv, 0), a->v.stride_len, x->key,
                          x->n, a->v.dim, a->v.dtype, ATTN_EDGES_AHEAD_);
  if (attn_drops_(a)) attn_on_(drop, f)->drop_list(x->d, x->key, x->n, at, &j->drop);
  for (int e = 0; e < x->n; e++)
    x->d[e] = x->weight[e] * (x->d[e] + (more ? more[x->at[e]] : 0.0f) - r->less);
  if (attn_drops_(a)) attn_on_(drop, f)->drop_list(x->weight, x->key, x->n, at, &j->drop);
}

/* Row i of a head is ready. 0: it is empty. */
ATTN_FUNC_ int attn_edges_open_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                const attn_edges_memory_ *m, attn_edges_row_ *r, int64_t i) {
  const attn_table_ *f = a->table;
  const int64_t heads = j->p->per_head ? a->q.heads : 1;
  const float *more;
  attn_edges_run_ x;
  float d = 0.0f;
  r->i = i;
  r->set = (j->p->per_batch ? r->b * heads : 0) + (j->p->per_head ? r->h : 0);
  r->ptr = j->p->indptr + r->set * (a->q.len + 1) + i;
  memcpy(&r->lse, attn_at_(&a->lse, r->b, r->h, i), sizeof r->lse);
  if (r->lse == -INFINITY) return 0;
  f->widen(m->q, attn_at_(&a->q, r->b, r->h, i), 0, NULL, 1, a->q.dim, a->q.dtype, NULL);
  f->widen(m->d_o, attn_at_(&j->g.d_o, r->b, r->h, i), 0, NULL, 1, a->v.dim, j->g.d_o.dtype, NULL);
  f->widen(m->o, attn_at_(&a->o, r->b, r->h, i), 0, NULL, 1, a->v.dim, a->o.dtype, NULL);
  attn_on_(gradient, f)->row_dots(&r->less, m->d_o, m->o, 1, a->v.dim);
  if (j->g.d_lse.data) memcpy(&d, attn_at_(&j->g.d_lse, r->b, r->h, i), sizeof d);
  r->less -= d;
  if (!j->d_weights) return 1;
  more = j->d_weights + (r->b * a->q.heads + r->h) * j->p->edges;
  double sum = 0;
  for (int64_t next = r->ptr[0]; attn_edges_next_(a, j, r, &next, &x);) {
    attn_edges_weights_(a, j, m, r, &x);
    for (int e = 0; e < x.n; e++) sum += (double)x.weight[e] * (double)more[x.at[e]];
  }
  r->less = (float)((double)r->less + sum);
  return 1;
}

/* A row, by numbers of its edges, to their keys. */
ATTN_FUNC_ void attn_edges_send_(const attn_table_ *f, const attn_sent_rows_ *s, const float *row,
                                 const float *by, const attn_edges_run_ *x) {
  if (!s->out.data) return;
  attn_on_(gradient, f)->scatter(s->near, by, row, x->key, x->n, s->dim, ATTN_EDGES_AHEAD_);
  for (int e = 0; e < x->n; e++) s->some[x->key[e] / ATTN_BLOCK_] = 1;
}

/* The rows of a head. */
ATTN_FUNC_ void attn_edges_head_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                 attn_edges_memory_ *m, attn_edges_row_ *r) {
  const attn_table_ *f = a->table;
  const attn_backward_ *g = &j->g;
  const int64_t dk = a->q.dim;
  attn_edges_run_ x;
  for (int64_t i = 0; i < a->q.len; i++) {
    const int some = attn_edges_open_(a, j, m, r, i);
    memset(m->d_q, 0, (size_t)dk * sizeof(float));
    for (int64_t next = r->ptr[0]; some && attn_edges_next_(a, j, r, &next, &x);) {
      attn_edges_weights_(a, j, m, r, &x);
      attn_edges_slopes_(a, j, m, r, &x);
      if (g->d_q.data)
        attn_on_(sum, f)->axpys(m->d_q, x.d, attn_at_(&a->k, r->b, r->hk, 0), a->k.stride_len,
                                x.key, x.n, dk, a->k.dtype, 1.0f, 0);
      attn_edges_send_(f, &m->k, m->q, x.d, &x);
      attn_edges_send_(f, &m->v, m->d_o, x.weight, &x);
    }
    if (g->d_q.data) {
      char *out = attn_at_(&g->d_q, r->b, r->h, i);
      if (some || !g->accumulate)
        f->blend(out, m->d_q, g->accumulate ? out : NULL, g->d_q.dtype, ATTN_F32, g->d_q.dtype, dk,
                 g->scale, 1.0f);
    }
    if ((i + 1) % ATTN_EDGES_RUN_ == 0)
      attn_sent_fold_(f, &m->k, a->k.len), attn_sent_fold_(f, &m->v, a->k.len);
  }
}

/* A batch entry and heads h0 .. that share keys and values. */
ATTN_FUNC_ void attn_edges_unit_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                 attn_edges_memory_ *m, int64_t b, int64_t h0) {
  const int64_t each_k = a->q.heads / a->k.heads, each_v = a->q.heads / a->v.heads;
  attn_edges_row_ r;
  attn_clear_(&r, sizeof r);
  m->k.out = j->g.d_k, m->v.out = j->g.d_v, r.b = b;
  for (int64_t h = h0; h < h0 + j->g.heads; h++) {
    if (h % each_k == 0) attn_sent_open_(&m->k, &j->g, &a->k, b, h / each_k, a->k.len);
    if (h % each_v == 0) attn_sent_open_(&m->v, &j->g, &a->v, b, h / each_v, a->k.len);
    r.h = h, r.hk = h / each_k, r.hv = h / each_v;
    attn_edges_head_(a, j, m, &r);
    if ((h + 1) % each_k == 0) attn_sent_close_(a->table, &m->k, a->k.len, j->g.scale);
    if ((h + 1) % each_v == 0) attn_sent_close_(a->table, &m->v, a->k.len, 1.0f);
  }
}

/* d_bias of a set: batch entries and heads that share it. */
ATTN_FUNC_ void attn_edges_set_(const attn_softmax_ *a, const attn_edges_back_ *j,
                                const attn_edges_memory_ *m, int64_t set) {
  const int64_t heads = j->p->per_head ? a->q.heads : 1;
  const int64_t b0 = j->p->per_batch ? set / heads : 0, h0 = j->p->per_head ? set % heads : 0;
  const int64_t b1 = j->p->per_batch ? b0 + 1 : a->q.batch,
                h1 = j->p->per_head ? h0 + 1 : a->q.heads;
  float *out = j->d_bias + set * j->p->edges;
  attn_edges_run_ x;
  attn_edges_row_ r;
  attn_clear_(&r, sizeof r);
  for (int64_t e = 0; !j->g.accumulate && e < j->p->edges; e++) out[e] = 0.0f;
  for (r.b = b0; r.b < b1; r.b++)
    for (r.h = h0; r.h < h1; r.h++) {
      r.hk = r.h / (a->q.heads / a->k.heads), r.hv = r.h / (a->q.heads / a->v.heads);
      for (int64_t i = 0; i < a->q.len; i++) {
        if (!attn_edges_open_(a, j, m, &r, i)) continue;
        for (int64_t next = r.ptr[0]; attn_edges_next_(a, j, &r, &next, &x);) {
          attn_edges_weights_(a, j, m, &r, &x);
          attn_edges_slopes_(a, j, m, &r, &x);
          for (int e = 0; e < x.n; e++) out[x.at[e]] = attn_one_nan_(out[x.at[e]] + x.d[e]);
        }
      }
    }
}

/* The pieces of a worker's memory; with memory null only their bytes. */
ATTN_FUNC_ int64_t attn_edges_cut_(const attn_softmax_ *a, const attn_backward_ *g, char *memory,
                                   attn_edges_memory_ *m) {
  const int64_t dk = a->q.dim, dv = a->v.dim, keys = a->k.len, f = sizeof(float);
  const int64_t past = ATTN_GROUP_, blocks = attn_runs_of_(keys, ATTN_BLOCK_);
  int64_t at = 0;
#define ATTN_CUT_(member, type, n, size)                     \
  {                                                          \
    const int64_t from = attn_cut_(&at, n, size);            \
    if (memory) m->member = (type *)(void *)(memory + from); \
  }
  ATTN_CUT_(q, float, attn_add_(dk, past), f)
  ATTN_CUT_(d_q, float, attn_add_(dk, past), f)
  ATTN_CUT_(d_o, float, attn_add_(dv, past), f)
  ATTN_CUT_(o, float, attn_add_(dv, past), f)
  if (g->d_k.data) {
    ATTN_CUT_(k.near, float, attn_mul_(keys, dk), f)
    ATTN_CUT_(k.some, unsigned char, blocks, 1)
    if (attn_sent_apart_(g, &g->d_k, &a->k)) ATTN_CUT_(k.far, float, attn_mul_(keys, dk), f)
  }
  if (g->d_v.data) {
    ATTN_CUT_(v.near, float, attn_mul_(keys, dv), f)
    ATTN_CUT_(v.some, unsigned char, blocks, 1)
    if (attn_sent_apart_(g, &g->d_v, &a->v)) ATTN_CUT_(v.far, float, attn_mul_(keys, dv), f)
  }
#undef ATTN_CUT_
  return at;
}

ATTN_FUNC_ void attn_edges_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const attn_edges_back_ *j = (const attn_edges_back_ *)a->own_job;
  const int64_t parts = a->q.heads / j->g.heads;
  attn_edges_memory_ m;
  attn_scratch_ w;
  attn_clear_(&m, sizeof m);
  attn_scratch_cut_(a, worker, &w);
  attn_edges_cut_(a, &j->g, w.own, &m);
  m.k.dim = a->q.dim, m.v.dim = a->v.dim;
  if (index >= j->g.units) {
    attn_edges_set_(a, j, &m, index - j->g.units);
  } else if (!attn_sent_shared_(&j->g.d_k, &a->k) && !attn_sent_shared_(&j->g.d_v, &a->v)) {
    attn_edges_unit_(a, j, &m, index / parts, index % parts * j->g.heads);
  } else {
    for (int64_t n = 0; n < a->q.batch * parts; n++)
      attn_edges_unit_(a, j, &m, n / parts, n % parts * j->g.heads);
  }
}

/* ---- the call -------------------------------------------------------------------------------*/

enum { ATTN_EDGES_ARRAYS_ = 6 };

/* Every rule; data as in attn_sdpa_plan_. */
ATTN_COLD_ int attn_edges_back_plan_(attn_error_ *e, attn_softmax_ *a, attn_edges_back_ *j,
                                     const attn_edges_params *params, const attn_tensor *lse,
                                     attn_edges_params *own, const attn_ctx *ctx, int *workers,
                                     int data) {
  const attn_tensor *q = &a->q, *k = &a->k, *v = &a->v;
  const int64_t any = ATTN_ANY_;
  attn_backward_ *g = &j->g;
  attn_tensor o = a->o;
  const int either = ATTN_OUT_ | ATTN_OPTIONAL_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&g->d_q, "d_q", either, q->batch, q->heads, q->len, q->dim,
                    "d_q must have the shape of q"),
      ATTN_OPERAND_(&g->d_k, "d_k", either, any, any, k->len, k->dim,
                    "d_k must have the shape of k"),
      ATTN_OPERAND_(&g->d_v, "d_v", either, any, any, v->len, v->dim,
                    "d_v must have the shape of v"),
      ATTN_OPERAND_(&g->d_o, "d_o", 0, q->batch, q->heads, q->len, v->dim,
                    "d_o must have the shape of o"),
      ATTN_OPERAND_(&g->d_lse, "gradients.d_lse", ATTN_OPTIONAL_ | ATTN_IS_F32_, q->batch, q->heads,
                    q->len, 1, "gradients.d_lse must be [q.batch, q.heads, q.len, 1] of ATTN_F32"),
      ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->k, "k", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->v, "v", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&o, "o", 0, q->batch, q->heads, q->len, v->dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&own->lse, "lse", ATTN_IS_F32_, q->batch, q->heads, q->len, 1,
                    "lse must be [q.batch, q.heads, q.len, 1] of ATTN_F32")};
  enum { N = sizeof op / sizeof *op };
  attn_span_ span[ATTN_EDGES_ARRAYS_];
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null");
  *own = *params;
  own->lse = *lse, own->weights = NULL;
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 5; i < (int)N + 5; i++)
    if (!attn_check_operand_(e, &op[i % (int)N], q->heads)) return 0;
  if (attn_quantized_(k->dtype) || attn_quantized_(v->dtype))
    return attn_reject_(e, ATTN_E_DTYPE, "k and v must be of a float type");
  if (!attn_backward_sums_(e, g, k, v)) return 0;
  if (j->d_bias && !params->bias)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_bias wants params.bias");
  a->lse = *lse;
  if (!attn_edges_plan_(e, a, own, ctx, workers, data)) return 0;
  const int64_t sets = attn_mul_(own->per_batch ? q->batch : 1, own->per_head ? q->heads : 1);
  const int64_t n = attn_mul_(sets, own->edges), all = attn_mul_(q->batch, q->heads);
  const char *align = "arrays of gradients must be aligned to their elements";
  if (!attn_check_array_(e, j->d_bias, n, 4, align, &span[0]) ||
      !attn_check_array_(e, j->d_weights, attn_mul_(all, own->edges), 4, align, &span[1]) ||
      !attn_check_array_(e, own->indptr, attn_mul_(sets, q->len + 1), 8, align, &span[2]) ||
      !attn_check_array_(e, own->col, n, 4, align, &span[3]) ||
      !attn_check_array_(e, own->bias, n, 4, align, &span[4]) ||
      !attn_check_array_(e, own->kv_len, q->batch, 4, align, &span[5]) ||
      !attn_check_apart_(e, ctx, op, N, span, ATTN_EDGES_ARRAYS_))
    return 0;
  if (!attn_span_alone_(&span[0], op, N, span + 1, ATTN_EDGES_ARRAYS_ - 1))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "gradients.d_bias must not share memory with another argument");
  g->scale = (float)attn_clamp_f64_(a->scale);
  attn_backward_divide_(g, q->batch, q, k, v);
  if (attn_drops_(a)) attn_drop_key_of_(&own->dropout, &j->drop);
  j->p = own;
  a->own = attn_edges_item_, a->own_job = j, a->own_whole = 1;
  a->own_items = attn_add_(g->units, j->d_bias ? sets : 0);
  a->own_bytes = attn_edges_cut_(a, g, NULL, NULL);
  return 1;
}

ATTN_COLD_ attn_status attn_edges_backward_call_(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                 attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                 attn_tensor v, attn_tensor o, attn_tensor lse,
                                                 const attn_edges_params *params,
                                                 const attn_edges_gradients *gradients,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_edges_params own;
  attn_softmax_ a;
  attn_edges_back_ j;
  int workers;
  attn_problem_clear_(&a), attn_clear_(&j, sizeof j), attn_clear_(&own, sizeof own);
  a.o = o, a.q = q, a.k = k, a.v = v, own.lse = lse;
  j.g.d_q = d_q, j.g.d_k = d_k, j.g.d_v = d_v, j.g.d_o = d_o;
  if (gradients)
    j.g.d_lse = gradients->d_lse, j.g.accumulate = gradients->accumulate,
    j.d_weights = gradients->d_weights, j.d_bias = gradients->d_bias;
  if (attn_edges_back_plan_(&e, &a, &j, params, &lse, &own, ctx, &workers, bytes ? 0 : 1)) {
    const int idle = attn_nothing_(&a) || a.own_items == 0;
    if (bytes && ctx && ctx->workers > 1) workers = ctx->workers;
    if (idle && !bytes) {
      const attn_tensor *const y[3] = {&d_q, &d_k, &d_v};
      const int64_t n = own.edges * (own.per_batch ? q.batch : 1) * (own.per_head ? q.heads : 1);
      for (int i = 0; !j.g.accumulate && i < 3; i++)
        for (int64_t b = 0; b < y[i]->batch; b++) attn_zero_rows_(y[i], b, 0, y[i]->heads, 0);
      for (int64_t i = 0; !j.g.accumulate && j.d_bias && i < n; i++) j.d_bias[i] = 0.0f;
      attn_report_(ctx, a.table, 1, "no-op", a.own_items ? "no queries" : "no output is asked for");
    } else if (!idle && bytes) {
      const int64_t need = attn_softmax_bytes_(&a, workers);
      if (attn_workspace_fits_(&e, need)) *bytes = (size_t)need;
    } else if (!idle && attn_softmax_run_(&e, &a, ctx, workers) && ctx) {
      ctx->report.path = "gradients, rows of edges", ctx->report.why = "the only path";
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_edges_backward, (d_q, d_k, d_v, d_o, q, k, v, o, lse, params, gradients),
           attn_tensor d_q, attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor o, attn_tensor lse,
           const attn_edges_params *params, const attn_edges_gradients *gradients)
