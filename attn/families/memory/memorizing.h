/* families/memory/memorizing.h owns the Memorizing Transformer: its memory, a ring of keys and values, and
 * attention over the best few of them beside the local one. */

typedef struct attn_memorizing_job_ {
  attn_tensor o, q, k, v;
  attn_kv_memory mem;
  attn_memorizing_params p;
  int alone; /* 1: the segment only joins the memory */
  const attn_table_ *table;
  attn_tensor near, lse, far_q; /* local attention; queries of the search */
  attn_topk_ plan;
  int64_t group, tiles;
  char *memory;
  int64_t each;
} attn_memorizing_job_;

/* ---- rows -----------------------------------------------------------------------------------*/

/* y = x in f32, normalised or not, times size. */
ATTN_FUNC_ void attn_unit_row_(const attn_table_ *f, float *y, const char *x, attn_dtype type,
                               int64_t dim, int unit, float size) {
  float sum = 0.0f;
  f->widen(y, x, 0, NULL, 1, dim, type, NULL);
  if (unit) attn_on_(select, f)->squares(&sum, NULL, y, 0, NULL, 1, dim);
  if (unit) size = (float)((double)size / sqrt((double)sum + 1e-6));
  if (size != 1.0f) f->blend(y, y, NULL, ATTN_F32, ATTN_F32, ATTN_F32, dim, size, 0.0f);
}

typedef struct attn_unit_ {
  const attn_table_ *table;
  attn_tensor y, x; /* y f32 */
  int unit;
  const float *size; /* of each head, its absolute value; null = 1 */
} attn_unit_;

ATTN_FUNC_ void attn_unit_item_(void *job, int worker, int64_t index) {
  const attn_unit_ *a = (const attn_unit_ *)job;
  const int64_t b = index / a->x.heads, h = index % a->x.heads;
  (void)worker;
  for (int64_t i = 0; i < a->x.len; i++)
    attn_unit_row_(a->table, (float *)(void *)attn_at_(&a->y, b, h, i), attn_at_(&a->x, b, h, i),
                   a->x.dtype, a->x.dim, a->unit, a->size ? fabsf(a->size[h]) : 1.0f);
}

ATTN_COLD_ int attn_stage_unit_(attn_stage_ *s, attn_tensor y, attn_tensor x, int unit,
                                const float *size) {
  attn_unit_ a = {s->table, y, x, unit, size};
  return attn_stage_for_(s, x.len > 0 ? attn_mul_(x.batch, x.heads) : 0, attn_unit_item_, &a, 0,
                         NULL);
}

/* [xl; x] in f32; x itself when there is nothing to do. */
ATTN_COLD_ int attn_memorizing_local_(attn_stage_ *s, attn_tensor *all, attn_tensor x,
                                      attn_tensor xl, int unit) {
  const int64_t m = xl.data ? xl.len : 0;
  *all = x;
  if (!unit && m == 0) return 1;
  *all = attn_stage_tensor_(s, x.batch, x.heads, attn_add_(m, x.len), x.dim);
  return (m == 0 || attn_stage_unit_(s, attn_stage_rows_(*all, 0, m), xl, unit, NULL)) &&
         attn_stage_unit_(s, attn_stage_rows_(*all, m, x.len), x, unit, NULL);
}

/* ---- the memory -----------------------------------------------------------------------------*/

/* Row of entry j. */
ATTN_FUNC_ int64_t attn_recall_row_(const attn_kv_memory *m, int64_t j) {
  const int64_t at = m->first + j;
  return at < m->k.len ? at : (at - m->k.len) % m->k.len;
}

/* The last rows of one head of k or v become entries len, len + 1, .. */
ATTN_FUNC_ void attn_recall_put_(void *job, int worker, int64_t index) {
  const attn_memorizing_job_ *a = (const attn_memorizing_job_ *)job;
  const int64_t heads = a->k.heads + a->v.heads, b = index / heads, x = index % heads;
  const int is_k = x < a->k.heads, unit = is_k ? !a->p.raw : a->p.normalize_v;
  const int64_t h = is_k ? x : x - a->k.heads;
  const attn_tensor *from = is_k ? &a->k : &a->v, *to = is_k ? &a->mem.k : &a->mem.v;
  float *row = (float *)(void *)(a->memory + worker * a->each);
  const int64_t n = from->len < to->len ? from->len : to->len;
  for (int64_t i = 0; i < n; i++) {
    attn_unit_row_(a->table, row, attn_at_(from, b, h, from->len - n + i), from->dtype, from->dim,
                   unit, 1.0f);
    attn_row_copy_(a->table, attn_at_(to, b, h, attn_recall_row_(&a->mem, a->mem.len + i)),
                   to->dtype, (const char *)row, ATTN_F32, to->dim);
  }
}

ATTN_COLD_ int attn_recall_join_(attn_stage_ *s, attn_memorizing_job_ *a) {
  const int64_t dim = a->k.dim > a->v.dim ? a->k.dim : a->v.dim;
  const int64_t cap = a->mem.k.len, n = a->k.len < cap ? a->k.len : cap;
  a->each = attn_piece_(dim, 4);
  if (!attn_stage_for_(s, attn_mul_(a->k.batch, a->k.heads + a->v.heads), attn_recall_put_, a,
                       a->each, &a->memory))
    return 0;
  if (!s->run) return 1;
  const int64_t over = a->mem.len + n - cap;
  if (over > 0) a->mem.first = attn_recall_row_(&a->mem, over);
  a->mem.len = over > 0 ? cap : a->mem.len + n;
  return 1;
}

/* ---- the search -----------------------------------------------------------------------------*/

/* What a score is multiplied by. */
ATTN_FUNC_ double attn_memorizing_scale_(const attn_memorizing_job_ *a, int64_t h) {
  if (a->p.raw) return 1.0 / sqrt((double)a->q.dim);
  return a->p.tau ? fabs((double)a->p.tau[h]) : 1.0;
}

/* Row r of the tile: its entries are weighed and summed, the sum joins the local attention. */
ATTN_FUNC_ void attn_memorizing_row_(const attn_memorizing_job_ *a, attn_topk_ *t, int r,
                                     char *memory, int64_t b, int64_t h, int64_t i) {
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim, hv = h / (a->q.heads / a->v.heads);
  float *x = (float *)(void *)memory;
  int32_t *pick = (int32_t *)(void *)(memory + attn_piece_(a->plan.k, 4));
  float *far = (float *)(void *)(memory + 2 * attn_piece_(a->plan.k, 4));
  char *o = attn_at_(&a->o, b, h, i);
  const char *near = attn_at_(&a->near, b, h, i);
  int64_t n = 0;
  double lse = 0.0;
  if (a->mem.len > 0) {
    const uint64_t *list = attn_topk_list_(t, r, &n);
    for (int64_t e = 0; e < n; e++) {
      x[e] = attn_candidate_score_(list[e]);
      pick[e] = (int32_t)attn_recall_row_(&a->mem, attn_candidate_index_(list[e]));
    }
    lse = attn_row_weights_(f, x, n, attn_memorizing_scale_(a, h) * ATTN_LOG2E_) * ATTN_LN2_;
    memset(far, 0, (size_t)dv * sizeof *far);
    attn_on_(sum, f)->axpys(far, x, attn_at_(&a->mem.v, b, hv, 0), a->mem.v.stride_len, pick, n, dv,
                            a->mem.v.dtype, 1.0f, ATTN_AHEAD_);
  }
  if (!a->p.joint) {
    float g, rest;
    attn_sigmoid_(f, a->p.b_g ? (double)a->p.b_g[h] : 0.0, &g, &rest);
    f->blend(o, n > 0 ? far : NULL, near, a->o.dtype, ATTN_F32, a->near.dtype, dv, g, rest);
    return;
  }
  attn_merge_job_ m;
  float l[2], e[2];
  memset(&m, 0, sizeof m);
  m.table = f, m.o = a->o, m.o1 = a->near, m.o2.dtype = ATTN_F32;
  memcpy(&l[0], attn_at_(&a->lse, b, h, i), 4);
  l[1] = (float)lse;
  const float top = l[0] > l[1] ? l[0] : l[1];
  e[0] = l[0] - top, e[1] = l[1] - top;
  f->exp(e, e, 2);
  attn_merge_row_(&m, o, near, far, l, e);
}

/* 64 rows of the heads that share a memory. */
ATTN_FUNC_ void attn_memorizing_item_(void *job, int worker, int64_t index) {
  const attn_memorizing_job_ *a = (const attn_memorizing_job_ *)job;
  const int64_t unit = index / a->tiles, b = unit / a->k.heads, hk = unit % a->k.heads;
  const int64_t first = index % a->tiles * ATTN_TILE_, left = a->group * a->q.len - first;
  const int n = left < ATTN_TILE_ ? (int)left : ATTN_TILE_;
  char *memory = a->memory + worker * a->each;
  attn_topk_ t = a->plan;
  const attn_kv_memory *m = &a->mem;
  const void *rows[ATTN_TILE_] = {NULL};
  int zero[ATTN_TILE_], zeros = 0;
  for (int r = 0; r < n; r++) {
    const int64_t i = (first + r) / a->group, h = hk * a->group + (first + r) % a->group;
    rows[r] = attn_at_(&a->far_q, b, h, i);
    zero[r] = attn_memorizing_scale_(a, h) == 0.0;
    zeros += zero[r];
  }
  if (m->len > 0) {
    const int64_t run = m->k.len - m->first < m->len ? m->k.len - m->first : m->len;
    attn_topk_open_(&t, memory, rows, n, a->far_q.dtype, 1.0f);
    if (zeros)
      for (int r = 0; r < n; r++) /* all scores are 0 */
        if (zero[r])
          for (int64_t c = 0; c < a->q.dim; c++) t.qt[c * ATTN_TILE_ + r] = 0.0f;
    attn_topk_scan_(&t, attn_at_(&m->k, b, hk, m->first), m->k.stride_len, m->k.dtype, run, 0);
    if (run < m->len)
      attn_topk_scan_(&t, attn_at_(&m->k, b, hk, 0), m->k.stride_len, m->k.dtype, m->len - run,
                      run);
  }
  for (int r = 0; r < n; r++)
    attn_memorizing_row_(a, &t, r, memory + a->plan.bytes, b,
                         hk * a->group + (first + r) % a->group, (first + r) / a->group);
}

/* ---- the calls ------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_memorizing_steps_(attn_stage_ *s, void *job) {
  attn_memorizing_job_ *a = (attn_memorizing_job_ *)job;
  const attn_memorizing_params *p = &a->p;
  const int64_t picks = attn_piece_(a->plan.k, 4), cells = attn_mul_(a->group, a->q.len);
  attn_tensor q = a->q, k, v;
  attn_sdpa_params local;
  a->table = s->table;
  if (a->alone) return attn_recall_join_(s, a);
  a->near = attn_stage_part_(s, &a->o);
  memset(&local, 0, sizeof local);
  local.causal = 1;
  if (p->joint) local.lse = a->lse = attn_stage_tensor_(s, q.batch, q.heads, q.len, 1);
  a->far_q = q;
  if (!p->raw) {
    local.scale = 1.0f;
    q = a->far_q = attn_stage_tensor_(s, q.batch, q.heads, q.len, q.dim);
    if (!attn_stage_unit_(s, q, a->q, 1, NULL)) return 0;
    if (p->tau) {
      q = attn_stage_tensor_(s, q.batch, q.heads, q.len, q.dim);
      if (!attn_stage_unit_(s, q, a->far_q, 0, p->tau)) return 0;
    }
  }
  if (!attn_memorizing_local_(s, &k, a->k, p->xl_k, !p->raw) ||
      !attn_memorizing_local_(s, &v, a->v, p->xl_v, p->normalize_v) ||
      !attn_stage_sdpa_(s, a->near, q, k, v, &local))
    return 0;
  a->tiles = cells / ATTN_TILE_ + (cells % ATTN_TILE_ != 0);
  a->each = attn_add_(a->plan.bytes, attn_add_(attn_mul_(2, picks), attn_piece_(a->v.dim, 4)));
  if (s->run && a->mem.len == 0 && (p->joint || p->bypass_empty)) {
    if (a->near.data != a->o.data) {
      const attn_tensor *o = &a->o, *x = &a->near;
      for (int64_t r = 0; r < o->batch * o->heads * o->len; r++) {
        const int64_t b = r / o->len / o->heads, h = r / o->len % o->heads, i = r % o->len;
        attn_row_copy_(s->table, attn_at_(o, b, h, i), o->dtype, attn_at_(x, b, h, i), x->dtype,
                       o->dim);
      }
    }
  } else {
    if (s->run) s->pairs += a->q.batch * a->q.heads * a->q.len * a->mem.len;
    if (!attn_stage_for_(s, attn_mul_(attn_mul_(a->q.batch, a->k.heads), a->tiles),
                         attn_memorizing_item_, a, a->each, &a->memory))
      return 0;
  }
  return attn_recall_join_(s, a);
}

/* Every rule of both calls; data = 0: without those that read arrays. */
ATTN_COLD_ int attn_memorizing_check_(attn_error_ *e, attn_memorizing_job_ *a,
                                      const attn_table_ *table, const attn_kv_memory *memory,
                                      const attn_memorizing_params *params, const attn_ctx *ctx,
                                      int data) {
  enum { Q, K, V, XK, XV, O, MK, MV, COUNT };
  const int64_t any = ATTN_ANY_;
  attn_span_ more[2];
  attn_memorizing_params *p = &a->p;
  if (params) *p = *params;
  if (!memory) return attn_reject_(e, ATTN_E_NULL, "memory must not be null");
  a->mem = *memory;
  if (a->alone) a->q = attn_view_(NULL, ATTN_F32, a->k.batch, a->k.heads, 0, a->k.dim);
  const int64_t b = a->q.batch, h = a->q.heads;
  const int role = a->alone ? ATTN_OPTIONAL_ : 0;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->k, "k", 0, b, ATTN_DIVIDES_, a->alone ? any : a->q.len, a->q.dim,
                    "k must be [q.batch, Hk, q.len, q.dim], and Hk divide q.heads"),
      ATTN_OPERAND_(&a->v, "v", 0, b, a->alone ? any : (int64_t)ATTN_DIVIDES_, a->k.len, any,
                    "v must be [q.batch, Hv, k.len, .], and Hv divide q.heads"),
      ATTN_OPERAND_(&p->xl_k, "params.xl_k", ATTN_OPTIONAL_, b, a->k.heads, any, a->k.dim,
                    "params.xl_k must be [q.batch, k.heads, M, q.dim]"),
      ATTN_OPERAND_(&p->xl_v, "params.xl_v", ATTN_OPTIONAL_, b, a->v.heads, p->xl_k.len, a->v.dim,
                    "params.xl_v must be [q.batch, v.heads, xl_k.len, v.dim]"),
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_ | role, b, h, a->q.len, a->v.dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&a->mem.k, "memory.k", ATTN_OUT_, b, a->k.heads, any, a->k.dim,
                    "memory.k must be [q.batch, k.heads, capacity, q.dim]"),
      ATTN_OPERAND_(&a->mem.v, "memory.v", ATTN_OUT_, b, a->v.heads, memory->k.len, a->v.dim,
                    "memory.v must be [q.batch, v.heads, capacity, v.dim]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  if (!a->alone && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  if ((p->xl_k.data != NULL) != (p->xl_v.data != NULL))
    return attn_reject_(e, ATTN_E_NULL, "params.xl_k and .xl_v go together");
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  const int64_t cap = a->mem.k.len;
  if (cap < 1 || cap > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "memory.k.len must lie in 1..2^31-1");
  if (a->mem.len < 0 || a->mem.len > cap)
    return attn_reject_(e, ATTN_E_RANGE, "memory.len must lie in 0..memory.k.len");
  if (a->mem.first < 0 || a->mem.first >= cap)
    return attn_reject_(e, ATTN_E_RANGE, "memory.first must lie in 0..memory.k.len-1");
  if (p->k < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.k must not be negative");
  if (p->joint && (p->b_g || p->bypass_empty))
    return attn_reject_(e, ATTN_E_RANGE, "params.joint has no b_g and no bypass_empty");
  if (p->raw && p->tau) return attn_reject_(e, ATTN_E_RANGE, "params.raw has no tau");
  if (a->k.len >= (int64_t)1 << 39 || (p->xl_k.data && p->xl_k.len >= (int64_t)1 << 39))
    return attn_reject_(e, ATTN_E_OVERFLOW, "k.len and params.xl_k.len must be below 2^39");
  if (p->k == 0) p->k = 32;
  if (!attn_check_array_(e, p->b_g, h, 4, "params.b_g must be aligned to its elements", &more[0]) ||
      !attn_check_array_(e, p->tau, h, 4, "params.tau must be aligned to its elements", &more[1]) ||
      !attn_check_apart_(e, ctx, op, COUNT, more, 2))
    return 0;
  if (data && !a->alone &&
      (!attn_check_logits_(e, p->b_g, h, 1, "params.b_g must be finite") ||
       !attn_check_logits_(e, p->tau, h, 1, "params.tau must be finite")))
    return 0;
  a->group = a->alone ? 1 : h / a->k.heads;
  attn_topk_plan_(&a->plan, table, a->k.dim, p->k < cap ? p->k : cap, a->mem.k.dtype, 0);
  return 1;
}

ATTN_COLD_ attn_status attn_memorizing_call_(attn_memorizing_job_ *a, const attn_kv_memory *memory,
                                             const attn_memorizing_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_check_ctx_(&e, ctx, &table, &workers) &&
      attn_memorizing_check_(&e, a, table, memory, params, ctx, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a->k.len > 0 && a->k.batch > 0 && a->k.heads > 0)
      attn_stage_call_(&s, ctx, attn_memorizing_steps_, a,
                       a->alone ? "rows" : "exact search, gathered rows, exact softmax", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_memorizing_job_ attn_memorizing_job_of_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                        attn_tensor v) {
  attn_memorizing_job_ a;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  return a;
}

ATTN_PUB_COLD_ attn_status attn_memorizing(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, attn_kv_memory *memory,
                                           const attn_memorizing_params *params, attn_ctx *ctx) {
  attn_memorizing_job_ a = attn_memorizing_job_of_(o, q, k, v);
  attn_status status = attn_memorizing_call_(&a, memory, params, ctx, NULL);
  if (status == ATTN_OK) memory->len = a.mem.len, memory->first = a.mem.first;
  return status;
}
ATTN_PUB_COLD_ size_t attn_memorizing_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, const attn_kv_memory *memory,
                                                const attn_memorizing_params *params,
                                                const attn_ctx *ctx) {
  attn_memorizing_job_ a = attn_memorizing_job_of_(o, q, k, v);
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_memorizing_call_(&a, memory, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

ATTN_COLD_ attn_memorizing_job_ attn_recall_job_(attn_tensor k, attn_tensor v,
                                                 attn_memorizing_params *p,
                                                 const attn_memorizing_params *params) {
  attn_memorizing_job_ a;
  memset(&a, 0, sizeof a);
  memset(p, 0, sizeof *p);
  if (params) p->raw = params->raw, p->normalize_v = params->normalize_v;
  a.k = k, a.v = v, a.alone = 1;
  return a;
}

ATTN_PUB_COLD_ attn_status attn_recall_append(attn_kv_memory *memory, attn_tensor k, attn_tensor v,
                                              const attn_memorizing_params *params, attn_ctx *ctx) {
  attn_memorizing_params p;
  attn_memorizing_job_ a = attn_recall_job_(k, v, &p, params);
  attn_status status = attn_memorizing_call_(&a, memory, &p, ctx, NULL);
  if (status == ATTN_OK) memory->len = a.mem.len, memory->first = a.mem.first;
  return status;
}
ATTN_PUB_COLD_ size_t attn_recall_append_workspace(const attn_kv_memory *memory, attn_tensor k,
                                                   attn_tensor v,
                                                   const attn_memorizing_params *params,
                                                   const attn_ctx *ctx) {
  attn_memorizing_params p;
  attn_memorizing_job_ a = attn_recall_job_(k, v, &p, params);
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_memorizing_call_(&a, memory, &p, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
