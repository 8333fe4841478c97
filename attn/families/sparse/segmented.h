/* families/sparse/segmented.h owns attention inside groups of rows with exchange between the groups:
 * segmented attention and hierarchies, and how the rows of a group become one. */

/* ---- aggregation ----------------------------------------------------------------------------*/

/* Groups of rows: indptr, or runs of `length`. */
typedef struct attn_groups_ {
  const int32_t *indptr;
  int64_t count, length, rows;
} attn_groups_;

ATTN_FUNC_ int64_t attn_group_at_(const attn_groups_ *g, int64_t a) {
  if (g->indptr) return g->indptr[a];
  return a > g->rows / g->length ? g->rows : a * g->length;
}

typedef struct attn_gather_ {
  const attn_table_ *table;
  attn_tensor z, y, hidden; /* z row n: group number n of those that are not empty */
  attn_groups_ groups;
  const attn_aggregate *how;
  char *memory;
  int64_t each, width; /* hidden.dim */
} attn_gather_;

ATTN_FUNC_ const float *attn_row_f32_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (const float *)(const void *)attn_at_(t, b, h, i);
}

/* u . tanh(hidden + b); tanh x = 1 - 2 / (e^2x + 1) */
ATTN_FUNC_ float attn_gather_logit_(const attn_gather_ *a, const float *hidden, float *work) {
  double sum = 0.0;
  for (int64_t c = 0; c < a->width; c++) {
    const float x = 2.0f * (hidden[c] + (a->how->bias ? a->how->bias[c] : 0.0f));
    work[c] = x > 40.0f ? 40.0f : x < -40.0f ? -40.0f : x;
  }
  a->table->exp(work, work, a->width);
  for (int64_t c = 0; c < a->width; c++)
    sum += (double)a->how->u[c] * (1.0 - 2.0 / ((double)work[c] + 1.0));
  return (float)sum;
}

/* z = rows i0..i1 as one. */
ATTN_FUNC_ void attn_gather_group_(const attn_gather_ *a, int64_t b, int64_t h, int64_t i0,
                                   int64_t i1, float *z, float *weight, float *work) {
  const int kind = (int)a->how->kind;
  const int64_t n = i1 - i0;
  double total = kind == ATTN_AGGREGATE_MEAN ? (double)n : 1.0;
  if (kind == ATTN_AGGREGATE_FIRST) i1 = i0 + 1;
  if (kind == ATTN_AGGREGATE_LAST) i0 = i1 - 1;
  if (kind == ATTN_AGGREGATE_ATTENTION) {
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
      weight[i] = attn_gather_logit_(a, attn_row_f32_(&a->hidden, b, h, i0 + i), work);
      if (!(weight[i] <= top)) top = weight[i];
    }
    for (int64_t i = 0; i < n; i++) weight[i] -= top;
    a->table->exp(weight, weight, n);
    total = 0.0;
    for (int64_t i = 0; i < n; i++) total += (double)weight[i];
  }
  for (int64_t c = 0; c < a->y.dim; c++) {
    double sum = 0.0;
    for (int64_t i = i0; i < i1; i++) {
      const double x = (double)attn_row_f32_(&a->y, b, h, i)[c];
      if (kind == ATTN_AGGREGATE_MAX)
        sum = i == i0 || x > sum || x != x ? x : sum;
      else
        sum += kind == ATTN_AGGREGATE_ATTENTION ? (double)weight[i - i0] * x : x;
    }
    z[c] = (float)(sum / total);
  }
}

/* All groups of one head. */
ATTN_FUNC_ void attn_gather_item_(void *job, int worker, int64_t index) {
  const attn_gather_ *a = (const attn_gather_ *)job;
  const int64_t b = index / a->y.heads, h = index % a->y.heads;
  float *work = (float *)(void *)(a->memory + worker * a->each);
  float *weight = (float *)(void *)((char *)work + attn_piece_(a->width, sizeof(float)));
  for (int64_t g = 0, n = 0; g < a->groups.count; g++) {
    const int64_t i0 = attn_group_at_(&a->groups, g), i1 = attn_group_at_(&a->groups, g + 1);
    if (i0 == i1) continue;
    attn_gather_group_(a, b, h, i0, i1, (float *)(void *)attn_at_(&a->z, b, h, n++), weight, work);
  }
}

/* z = one row for each group of y that is not empty; both f32. */
ATTN_COLD_ int attn_stage_gather_(attn_stage_ *s, attn_tensor z, attn_tensor y, attn_groups_ groups,
                                  const attn_aggregate *how) {
  attn_gather_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.z = z, a.y = y, a.groups = groups, a.how = how;
  if (how->kind == ATTN_AGGREGATE_ATTENTION) {
    a.width = how->w.dim;
    a.hidden = attn_stage_tensor_(s, y.batch, y.heads, y.len, a.width);
    if (!attn_stage_gemm_(s, a.hidden, y, how->w, NULL)) return 0;
    a.each = attn_add_(attn_piece_(a.width, sizeof(float)), attn_piece_(y.len, sizeof(float)));
  }
  return attn_stage_for_(s, attn_mul_(y.batch, y.heads), attn_gather_item_, &a, a.each, &a.memory);
}

/* ATTENTION's parameters, for rows of width dv. */
ATTN_COLD_ int attn_check_aggregate_(attn_error_ *e, attn_aggregate *a, int64_t heads, int64_t dv,
                                     attn_span_ span[3]) {
  static const char w[] = ATTN_WORDS_("params.aggregate.w");
  attn_operand_ op =
      ATTN_OPERAND_AS_(&a->w, w, ATTN_MATRIX_, 1, ATTN_ONE_OR_ALL_, dv, ATTN_ANY_,
                       ATTN_HEADS_IN_OUT_("params.aggregate.w", "1 or H", "dv", "dh"));
  memset(span, 0, 3 * sizeof *span);
  if ((int)a->kind < 0 || a->kind >= ATTN_AGGREGATE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.aggregate.kind must be an attn_aggregate_kind");
  if (a->kind != ATTN_AGGREGATE_ATTENTION) return 1;
  attn_turn_(&a->w, a->w_transposed);
  const char *align = "params.aggregate.b and .u must be aligned to their elements";
  if (!attn_check_operand_(e, &op, heads)) return 0;
  span[0] = op.span;
  if (!a->u) return attn_reject_(e, ATTN_E_NULL, "params.aggregate.u must not be null");
  return attn_check_array_(e, a->bias, a->w.dim, 4, align, &span[1]) &&
         attn_check_array_(e, a->u, a->w.dim, 4, align, &span[2]);
}

/* Offsets 0 .. rows, not descending; strict: no group is empty. */
ATTN_COLD_ int attn_check_groups_(attn_error_ *e, const int32_t *indptr, int64_t count,
                                  int64_t rows, int strict, const char *reason) {
  if (indptr[0] != 0 || indptr[count] != rows) return attn_reject_(e, ATTN_E_INDEX, reason);
  for (int64_t a = 0; a < count; a++)
    if (indptr[a + 1] < indptr[a] + (int64_t)(strict != 0))
      return attn_reject_(e, ATTN_E_INDEX, reason);
  return 1;
}

/* ---- segmented attention --------------------------------------------------------------------*/

typedef struct attn_segmented_job_ {
  attn_tensor o, q, k, v;
  attn_segmented_params p;
  attn_groups_ groups;
  int64_t full;       /* segments that are not empty */
  int64_t key, value; /* d', d'' */
} attn_segmented_job_;

ATTN_COLD_ int attn_segmented_check_(attn_error_ *e, attn_segmented_job_ *j,
                                     const attn_segmented_params *params, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers) {
  enum { Q, K, V, WQ, WK, WV, O, LSE, COUNT };
  attn_segmented_params *p = &j->p;
  attn_span_ more[4];
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_, some = ATTN_ONE_OR_ALL_;
  const int matrix = ATTN_MATRIX_ | ATTN_OPTIONAL_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the segments");
  *p = *params;
  if ((int)p->integrate < 0 || p->integrate >= ATTN_INTEGRATE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.integrate must be an attn_integrate");
  if (p->integrate == ATTN_INTEGRATE_SUMMARY && p->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.causal does not go with ATTN_INTEGRATE_SUMMARY");
  const int on = p->integrate != ATTN_INTEGRATE_NONE, pool = p->integrate == ATTN_INTEGRATE_POOL;
  if (!on || pool) p->w_q.data = p->w_k.data = NULL;
  if (!on) p->w_v.data = NULL;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  attn_turn_(&p->w_q, p->w_transposed), attn_turn_(&p->w_k, p->w_transposed);
  attn_turn_(&p->w_v, p->w_transposed);
  j->key = p->w_q.data ? p->w_q.dim : dv;
  j->value = p->w_v.data ? p->w_v.dim : dv;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&j->k, "k", 0, b, in, t, dk,
                    "k must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, t, any,
                    "v must be [q.batch, a divisor of q.heads, q.len, dv]"),
      ATTN_OPERAND_(&p->w_q, "params.w_q", matrix, 1, some, dv, any,
                    ATTN_HEADS_IN_OUT_("params.w_q", "1 or q.heads", "v.dim", "d'")),
      ATTN_OPERAND_(
          &p->w_k, "params.w_k", matrix, 1, some, dv, j->key,
          ATTN_HEADS_IN_OUT_("params.w_k", "1 or q.heads", "v.dim", "width of the inner queries")),
      ATTN_OPERAND_(&p->w_v, "params.w_v", matrix, 1, some, dv, any,
                    ATTN_HEADS_IN_OUT_("params.w_v", "1 or q.heads", "v.dim", "d''")),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, t, any, "o must be [q.batch, q.heads, q.len, .]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]")};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (i == K && t > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW, "q.len must be below 2^31");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (on && !p->w_k.data && j->key != dv) return attn_reject_(e, ATTN_E_SHAPE, op[WK].rule);
  if (on && !p->concat && j->value != dv)
    return attn_reject_(e, ATTN_E_SHAPE, "params.w_v must keep the width v.dim, or set .concat");
  if (j->o.dim != dv + (on && p->concat ? j->value : 0))
    return attn_reject_(e, ATTN_E_SHAPE, "o.dim must be v.dim, with params.concat v.dim + d''");
  if (!(p->gain - p->gain == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.gain must be finite");
  if (!attn_check_scale_(e, p->scale)) return 0;
  memset(more, 0, sizeof more);
  if (on && !attn_check_aggregate_(e, &p->aggregate, h, dv, more)) return 0;
  const char *rule = "params.indptr must go from 0 to q.len and not descend";
  if (p->indptr) {
    if (p->segments < 0 || (p->segments == 0 && t > 0))
      return attn_reject_(e, ATTN_E_RANGE, "params.segments must be at least 1");
    if (!attn_check_array_(e, p->indptr, attn_add_(p->segments, 1), 4,
                           "params.indptr must be aligned to its elements", &more[3]) ||
        !attn_check_groups_(e, p->indptr, p->segments, t, 0, rule))
      return 0;
  } else if (p->length < 1) {
    return attn_reject_(e, ATTN_E_RANGE, "params.length must be at least 1, or give .indptr");
  }
  attn_groups_ *g = &j->groups;
  g->indptr = p->indptr, g->length = p->length, g->rows = t;
  g->count = p->indptr ? p->segments : t / p->length + (t % p->length != 0);
  for (int64_t a = 0; a < g->count; a++) j->full += attn_group_at_(g, a) < attn_group_at_(g, a + 1);
  return attn_check_apart_(e, ctx, op, COUNT, more, 4);
}

/* out = y + gain u, or [y ; u]; u has a row for each row, or for each segment. */
typedef struct attn_exchange_ {
  const attn_table_ *table;
  attn_tensor o, y, u;
  attn_groups_ groups;
  int per_group, concat;
  float gain;
} attn_exchange_;

ATTN_FUNC_ void attn_exchange_item_(void *job, int worker, int64_t index) {
  const attn_exchange_ *a = (const attn_exchange_ *)job;
  const attn_dtype type = a->o.dtype, f32 = ATTN_F32;
  const int64_t b = index / a->y.heads, h = index % a->y.heads, dv = a->y.dim;
  int64_t n = -1, end = 0;
  (void)worker;
  for (int64_t i = 0, g = 0; i < a->y.len; i++) {
    for (; i == end; g++) { /* the next segment that is not empty */
      end = attn_group_at_(&a->groups, g + 1);
      if (end > i) n++;
    }
    char *o = attn_at_(&a->o, b, h, i);
    const void *y = attn_at_(&a->y, b, h, i), *u = attn_at_(&a->u, b, h, a->per_group ? n : i);
    if (a->concat) {
      a->table->blend(o, y, NULL, type, f32, f32, dv, 1.0f, 0.0f);
      a->table->blend(o + attn_bytes_(type, dv), u, NULL, type, f32, f32, a->u.dim, 1.0f, 0.0f);
    } else { /* nothing of u when the gain is 0, not even NaN */
      a->table->blend(o, y, a->gain == 0.0f ? NULL : u, type, f32, f32, dv, 1.0f, a->gain);
    }
  }
}

/* u[a] = mean of z over the visible segments, f32. */
typedef struct attn_pool_ {
  attn_tensor u, z;
  int causal;
} attn_pool_;

ATTN_FUNC_ void attn_pool_item_(void *job, int worker, int64_t index) {
  const attn_pool_ *a = (const attn_pool_ *)job;
  const int64_t b = index / a->z.heads, h = index % a->z.heads, n = a->z.len;
  (void)worker;
  for (int64_t c = 0; c < a->z.dim; c++) {
    double sum = 0.0;
    if (!a->causal)
      for (int64_t g = 0; g < n; g++) sum += (double)attn_row_f32_(&a->z, b, h, g)[c];
    for (int64_t g = 0; g < n; g++) {
      const int64_t seen = a->causal ? g : n;
      float *u = (float *)(void *)attn_at_(&a->u, b, h, g);
      u[c] = seen > 0 ? (float)(sum / (double)seen) : 0.0f;
      if (a->causal) sum += (double)attn_row_f32_(&a->z, b, h, g)[c];
    }
  }
}

ATTN_COLD_ int attn_segmented_steps_(attn_stage_ *s, void *job) {
  const attn_segmented_job_ *j = (const attn_segmented_job_ *)job;
  const attn_segmented_params *g = &j->p;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, n = j->full;
  const int pool = g->integrate == ATTN_INTEGRATE_POOL, rows = g->integrate == ATTN_INTEGRATE_TOKEN;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = g->scale, p.causal = g->causal != 0, p.lse = g->lse, p.schedule = g->schedule;
  if (g->integrate == ATTN_INTEGRATE_NONE) return attn_stage_sdpa_(s, j->o, j->q, j->k, j->v, &p);
  const attn_tensor y = attn_stage_tensor_(s, b, h, t, j->v.dim);
  const attn_tensor z = attn_stage_tensor_(s, b, h, n, j->v.dim);
  const attn_tensor u = attn_stage_tensor_(s, b, h, rows ? t : n, j->value);
  attn_tensor q = rows ? y : z, k = z, v = z;
  if (g->w_q.data) q = attn_stage_tensor_(s, b, h, q.len, j->key);
  if (g->w_k.data) k = attn_stage_tensor_(s, b, h, n, j->key);
  if (g->w_v.data) v = attn_stage_tensor_(s, b, h, n, j->value);
  if (!attn_stage_sdpa_(s, y, j->q, j->k, j->v, &p) ||
      !attn_stage_gather_(s, z, y, j->groups, &g->aggregate) ||
      (g->w_q.data && !attn_stage_gemm_(s, q, rows ? y : z, g->w_q, NULL)) ||
      (g->w_k.data && !attn_stage_gemm_(s, k, z, g->w_k, NULL)) ||
      (g->w_v.data && !attn_stage_gemm_(s, v, z, g->w_v, NULL)))
    return 0;
  if (pool) {
    attn_pool_ a = {u, v, g->causal};
    attn_stage_for_(s, attn_mul_(b, h), attn_pool_item_, &a, 0, NULL);
  } else {
    memset(&p, 0, sizeof p);
    /* causal: the rows of a segment see the summaries before its own */
    for (int64_t a = 0, seen = 0; a < (g->causal ? j->groups.count : 1); a++) {
      const int64_t i0 = g->causal ? attn_group_at_(&j->groups, a) : 0;
      const int64_t m = g->causal ? attn_group_at_(&j->groups, a + 1) - i0 : u.len;
      const int64_t keys = g->causal ? seen : n;
      if (g->causal && m == 0) continue;
      if (!attn_stage_sdpa_(s, attn_stage_rows_(u, i0, m), attn_stage_rows_(q, i0, m),
                            attn_stage_rows_(k, 0, keys), attn_stage_rows_(v, 0, keys), &p))
        return 0;
      seen++;
    }
  }
  attn_exchange_ a = {
      s->table,  j->o,  y,         u,
      j->groups, !rows, g->concat, g->gain != 0.0f || attn_to_bits_(g->gain) ? g->gain : 1.0f};
  return attn_stage_for_(s, attn_mul_(b, h), attn_exchange_item_, &a, 0, NULL);
}

ATTN_COLD_ attn_pattern attn_groups_pattern_(const attn_groups_ *g) {
  return g->indptr ? attn_pattern_segments(g->indptr, g->count)
                   : attn_pattern_blocks(g->length, 0, 0);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_segmented_job_call_(attn_segmented_job_ *j,
                                                const attn_segmented_params *params, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_schedule own = {NULL, 0, NULL};
  if (attn_segmented_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const attn_pattern segments = attn_groups_pattern_(&j->groups);
    if (j->q.len == 0 || j->q.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else if (attn_stage_schedule_(&s, &j->p.schedule, &own, &segments, j->q.heads, j->q.len,
                                    "params.schedule must be of attn_pattern_segments(indptr), or "
                                    "_blocks(length, 0, 0)")) {
      attn_stage_call_(&s, ctx, attn_segmented_steps_, j, "segments, then an exchange", bytes);
    }
    attn_schedule_free(&own);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_segmented_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, const attn_segmented_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_segmented_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  return attn_segmented_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_segmented, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_segmented_params *params)
