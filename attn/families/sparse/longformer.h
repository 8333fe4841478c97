/* families/sparse/longformer.h owns Longformer: one sparse softmax for local rows, one full softmax for
 * the rows of global tokens, which have projections of their own. */

typedef struct attn_longformer_job_ {
  attn_tensor o, q, k, v;
  attn_longformer_params p;
  int64_t entries; /* different lists: 1 or B */
} attn_longformer_job_;

/* List b: its length; *list may be null when that is 0. */
ATTN_COLD_ int64_t attn_longformer_list_(const attn_longformer_params *p, int64_t b,
                                         const int32_t **list) {
  *list = p->global;
  if (!p->global_indptr) return p->globals;
  if (p->global) *list = p->global + p->global_indptr[b];
  return p->global_indptr[b + 1] - p->global_indptr[b];
}

/* Rules about the arrays. */
ATTN_COLD_ int attn_longformer_arrays_(attn_error_ *e, const attn_longformer_params *p,
                                       int64_t entries, int64_t heads, int64_t tokens) {
  static const char align[] = "params: a list must be aligned to its elements";
  attn_span_ any;
  if (!p->window) return attn_reject_(e, ATTN_E_NULL, "params.window must not be null");
  if (!attn_check_array_(e, p->window, heads, sizeof *p->window, align, &any) ||
      !attn_check_array_(e, p->dilation, heads, sizeof *p->dilation, align, &any) ||
      !attn_check_array_(e, p->global, p->globals, sizeof *p->global, align, &any) ||
      !attn_check_array_(e, p->global_indptr, entries, sizeof *p->global_indptr, align, &any))
    return 0;
  for (int64_t h = 0; h < heads; h++) {
    if (p->window[h] < 0)
      return attn_reject_(e, ATTN_E_RANGE, "params.window must not be negative");
    if (p->dilation && p->dilation[h] < 1)
      return attn_reject_(e, ATTN_E_RANGE, "params.dilation must be at least 1");
  }
  if (p->globals < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.globals must not be negative");
  if (p->globals > 0 && !p->global)
    return attn_reject_(e, ATTN_E_NULL, "params.global must not be null");
  if (p->global_indptr)
    for (int64_t b = 0; b <= entries; b++)
      if (p->global_indptr[b] < (b ? p->global_indptr[b - 1] : 0) ||
          p->global_indptr[b] > p->globals)
        return attn_reject_(
            e, ATTN_E_INDEX,
            "params.global_indptr must ascend from 0 or more to params.globals or less");
  for (int64_t b = 0; b < entries; b++) {
    const int32_t *list;
    const int64_t n = attn_longformer_list_(p, b, &list);
    for (int64_t r = 0; r < n; r++)
      if (list[r] < (r ? list[r - 1] + (int64_t)1 : 0) || list[r] >= tokens)
        return attn_reject_(e, ATTN_E_INDEX,
                            "params.global must hold tokens in 0..T-1, strictly ascending");
  }
  return 1;
}

/* The local pattern: without global projections global rows are rows like others, with them they are
 * left out. Of a single head, or per head; parts may be null. */
typedef struct attn_longformer_graph_ {
  const attn_longformer_params *p;
  const int32_t *list;
  int64_t n, heads; /* of the list; different heads */
} attn_longformer_graph_;

ATTN_COLD_ attn_longformer_graph_ attn_longformer_graph_of_(const attn_longformer_params *p,
                                                            int64_t heads, int64_t b) {
  attn_longformer_graph_ g;
  g.p = p, g.n = attn_longformer_list_(p, b, &g.list), g.heads = 1;
  for (int64_t h = 1; h < heads; h++)
    if (p->window[h] != p->window[0] || (p->dilation && p->dilation[h] != p->dilation[0]))
      g.heads = heads;
  return g;
}

ATTN_COLD_ attn_pattern attn_longformer_head_(const attn_longformer_graph_ *g, int64_t h) {
  return attn_pattern_longformer(g->p->window[h], g->p->dilation ? g->p->dilation[h] : 1, g->list,
                                 g->n);
}

ATTN_COLD_ attn_pattern attn_longformer_pattern_(const attn_longformer_graph_ *g,
                                                 const attn_pattern *heads, attn_pattern local[2]) {
  local[0] = g->heads == 1 ? attn_longformer_head_(g, 0) : attn_pattern_per_head(heads, g->heads);
  local[1] = attn_pattern_global(g->list, g->n);
  local[1].no_columns = 1;
  attn_pattern all = g->p->q_global.data && g->n > 0 ? attn_pattern_diff(local) : local[0];
  all.causal = g->p->causal != 0;
  return all;
}

/* Whether a schedule is the one that is built for list b. Needs no memory: the parts of a pattern follow
 * it in its identity. */
ATTN_COLD_ int attn_longformer_given_(attn_error_ *e, const attn_schedule *s,
                                      const attn_longformer_params *p, int64_t heads,
                                      int64_t tokens, int64_t b) {
  const attn_longformer_graph_ g = attn_longformer_graph_of_(p, heads, b);
  attn_pattern local[2], all = attn_longformer_pattern_(&g, NULL, local);
  const int apart = all.kind == ATTN_PATTERN_DIFF;
  attn_identity_ c = attn_identity_open_(heads, tokens, tokens, 0);
  all.parts = NULL;
  attn_identity_pattern_(&c, &all);
  if (apart) attn_identity_pattern_(&c, &local[0]);
  for (int64_t h = 0; g.heads > 1 && h < heads; h++) {
    const attn_pattern head = attn_longformer_head_(&g, h);
    attn_identity_pattern_(&c, &head);
  }
  if (apart) attn_identity_pattern_(&c, &local[1]);
  return attn_schedule_check_(
      e, s, &c, "params.schedules[b] must be what attn_longformer_schedule makes of params");
}

/* Builds the schedule of list b. */
ATTN_COLD_ int attn_longformer_build_(attn_error_ *e, attn_schedule *schedule,
                                      const attn_longformer_params *p, int64_t heads,
                                      int64_t tokens, int64_t b, attn_ctx *ctx) {
  const attn_longformer_graph_ g = attn_longformer_graph_of_(p, heads, b);
  const int64_t count = g.heads;
  if (count > INT64_MAX / (int64_t)sizeof(attn_pattern) ||
      (uint64_t)count > SIZE_MAX / sizeof(attn_pattern))
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.window has too many heads");
  attn_pattern *part = (attn_pattern *)ATTN_MALLOC((size_t)count * sizeof *part);
  if (!part) return attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  for (int64_t h = 0; h < count; h++) part[h] = attn_longformer_head_(&g, h);
  attn_pattern local[2], all = attn_longformer_pattern_(&g, part, local);
  attn_status status = attn_schedule_build(schedule, &all, heads, tokens, tokens, NULL, ctx);
  ATTN_FREE(part);
  return status == ATTN_OK ? 1 : attn_reject_(e, status, ctx->reason);
}

ATTN_PUB_COLD_ attn_status attn_longformer_schedule(attn_schedule *schedule,
                                                    const attn_longformer_params *params,
                                                    int64_t heads, int64_t tokens, int64_t b,
                                                    attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_ctx inner = attn_before_workspace_(ctx);
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (!schedule || !params) {
    attn_reject_(&e, ATTN_E_NULL,
                 schedule ? "params must not be null" : "schedule must not be null");
  } else if (heads < 1 || tokens < 0 || tokens > INT32_MAX) {
    attn_reject_(&e, ATTN_E_SHAPE, "heads must be at least 1, and tokens lie in 0..2^31-1");
  } else if (b < 0 || b == INT64_MAX) {
    attn_reject_(&e, ATTN_E_RANGE, "b must not be negative");
  } else if (attn_longformer_arrays_(&e, params, params->global_indptr ? b + 1 : 1, heads,
                                     tokens)) {
    attn_longformer_build_(&e, schedule, params, heads, tokens, b, &inner);
  }
  return attn_end_(ctx, &e);
}

/* Which tokens there are; span: where that is said. */
ATTN_COLD_ int attn_longformer_valid_(attn_error_ *e, attn_longformer_job_ *j, attn_span_ *span) {
  static const attn_mask_words_ wm = {
      "params.valid.kind must be ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.valid.data must not be null",
      "params.valid.dtype is not used",
      "params.valid must be [1 or q.batch, 1, 1, 1 or q.len]",
      "params.valid spans more bytes than the address space holds",
      "params.valid.data alignment"};
  const int64_t full[4] = {j->q.batch, 1, 1, j->q.len};
  return attn_check_mask_(e, &j->p.valid, &wm, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                          span);
}

ATTN_COLD_ int attn_longformer_check_(attn_error_ *e, attn_longformer_job_ *j,
                                      const attn_longformer_params *params, const attn_ctx *ctx,
                                      const attn_table_ **table, int *workers) {
  enum { Q, K, V, QG, KG, VG, O, LSE, COUNT };
  attn_longformer_params *p = &j->p;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  attn_span_ more[5];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the windows");
  *p = *params;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&j->k, "k", 0, b, in, t, dk,
                    "k must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, t, any,
                    "v must be [q.batch, a divisor of q.heads, q.len, dv]"),
      ATTN_OPERAND_(&p->q_global, "params.q_global", ATTN_OPTIONAL_, b, h, any, dk,
                    "params.q_global must be [q.batch, q.heads, longest list, q.dim]"),
      ATTN_OPERAND_(&p->k_global, "params.k_global", ATTN_OPTIONAL_, b, in, t, dk,
                    "params.k_global must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&p->v_global, "params.v_global", ATTN_OPTIONAL_, b, in, t, dv,
                    "params.v_global must be [q.batch, a divisor of q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, t, dv,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]")};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (i == K && t > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW, "q.len must be below 2^31");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  const int own = p->k_global.data != NULL; /* q_global may be empty, when all lists are */
  if (!p->v_global.data != !own ||
      (own ? !p->q_global.data && p->q_global.len : p->q_global.data != NULL))
    return attn_reject_(e, ATTN_E_NULL,
                        "params.q_global, .k_global and .v_global go together: all or none");
  const char *align = "params holds a list that is not aligned to its elements";
  j->entries = p->global_indptr ? b : 1;
  if (!attn_check_scale_(e, p->scale) || !attn_check_array_(e, p->window, h, 4, align, &more[0]) ||
      !attn_check_array_(e, p->dilation, h, 4, align, &more[1]) ||
      !attn_check_array_(e, p->global, p->globals < 0 ? 0 : p->globals, 4, align, &more[2]) ||
      !attn_check_array_(e, p->global_indptr, attn_add_(b, 1), 8, align, &more[3]) ||
      !attn_longformer_arrays_(e, p, j->entries, h, t) || !attn_longformer_valid_(e, j, &more[4]))
    return 0;
  if (own)
    for (int64_t a = 0; a < j->entries; a++) {
      const int32_t *list;
      if (attn_longformer_list_(p, a, &list) > p->q_global.len)
        return attn_reject_(e, ATTN_E_SHAPE, op[QG].rule);
    }
  return attn_check_apart_(e, ctx, op, COUNT, more, 5);
}

/* One row of o and lse: the result of a global row, or nothing when the token is not there. */
typedef struct attn_longformer_rows_ {
  const attn_table_ *table;
  attn_tensor o, lse, from, from_lse; /* lse may be absent */
  attn_mask valid;
  const int32_t *list; /* null: rows that are not valid are cleared */
} attn_longformer_rows_;

ATTN_FUNC_ void attn_longformer_row_(void *job, int worker, int64_t index) {
  const attn_longformer_rows_ *a = (const attn_longformer_rows_ *)job;
  const int64_t n = a->list ? a->from.len : a->o.len;
  const int64_t b = index / n / a->o.heads, h = index / n % a->o.heads, r = index % n;
  const int64_t i = a->list ? a->list[r] : r;
  float x = -INFINITY;
  (void)worker;
  if (a->list) {
    a->table->blend(attn_at_(&a->o, b, h, i), attn_at_(&a->from, b, h, r), NULL, a->o.dtype,
                    a->from.dtype, ATTN_F32, a->o.dim, 1.0f, 0.0f);
    memcpy(&x, attn_at_(&a->from_lse, b, h, r), sizeof x);
  } else {
    const char *row = attn_mask_at_(&a->valid, b, 0, 0);
    const int64_t at = a->valid.k_len > 1 ? i : 0;
    if (a->valid.kind == ATTN_MASK_BITS ? attn_mask_bit_(row, at) : row[at]) return;
    a->table->blend(attn_at_(&a->o, b, h, i), NULL, NULL, a->o.dtype, ATTN_F32, ATTN_F32, a->o.dim,
                    0.0f, 0.0f);
  }
  if (a->lse.data) memcpy(attn_at_(&a->lse, b, h, i), &x, sizeof x);
}

/* Rows of global tokens, for the batch entries of q that share a list. */
ATTN_COLD_ int attn_longformer_global_(attn_stage_ *s, const attn_longformer_job_ *j,
                                       attn_longformer_rows_ *rows, attn_sdpa_params p, int64_t b) {
  const int one = j->p.global_indptr != NULL, causal = j->p.causal;
  attn_tensor q = j->p.q_global, k = j->p.k_global, v = j->p.v_global;
  const int64_t n = attn_longformer_list_(&j->p, b, &rows->list);
  if (n == 0) return 1;
  q.len = n;
  if (one) q = attn_stage_entry_(q, b), k = attn_stage_entry_(k, b), v = attn_stage_entry_(v, b);
  rows->from = attn_stage_tensor_(s, q.batch, q.heads, n, v.dim);
  rows->from_lse = attn_stage_tensor_(s, q.batch, q.heads, n, 1);
  p.schedule = NULL;
  for (int64_t r = 0; r < n; r += causal ? 1 : n) { /* causal rows end at different keys */
    const int64_t m = causal ? 1 : n;
    p.lse = attn_stage_rows_(rows->from_lse, r, m);
    p.causal = causal != 0, p.has_q_off = 1, p.q_off = causal ? rows->list[r] : 0;
    if (!attn_stage_sdpa_(s, attn_stage_rows_(rows->from, r, m), attn_stage_rows_(q, r, m), k, v,
                          &p))
      return 0;
  }
  return attn_stage_for_(s, attn_mul_(attn_mul_(q.batch, q.heads), n), attn_longformer_row_, rows,
                         0, NULL);
}

ATTN_COLD_ int attn_longformer_steps_(attn_stage_ *s, void *job) {
  const attn_longformer_job_ *j = (const attn_longformer_job_ *)job;
  const int one = j->p.global_indptr != NULL;
  const int64_t used = s->used;
  int64_t most = used;
  for (int64_t b = 0; b < j->entries; b++) {
    attn_longformer_rows_ rows;
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    memset(&rows, 0, sizeof rows);
    rows.table = s->table;
    rows.o = one ? attn_stage_entry_(j->o, b) : j->o;
    if (j->p.lse.data) rows.lse = one ? attn_stage_entry_(j->p.lse, b) : j->p.lse;
    rows.valid = j->p.valid;
    if (one && rows.valid.kind) {
      rows.valid.data = attn_mask_at_(&rows.valid, b, 0, 0);
      rows.valid.batch = 1;
    }
    p.scale = j->p.scale, p.schedule = j->p.schedules + b;
    p.lse = rows.lse, p.mask = rows.valid;
    s->used = used;
    if (!attn_stage_sdpa_(s, rows.o, one ? attn_stage_entry_(j->q, b) : j->q,
                          one ? attn_stage_entry_(j->k, b) : j->k,
                          one ? attn_stage_entry_(j->v, b) : j->v, &p))
      return 0;
    if (j->p.q_global.data && !attn_longformer_global_(s, j, &rows, p, b)) return 0;
    if (s->used > most) most = s->used;
    rows.list = NULL;
    if (rows.valid.kind)
      attn_stage_for_(s, attn_mul_(attn_mul_(rows.o.batch, rows.o.heads), rows.o.len),
                      attn_longformer_row_, &rows, 0, NULL);
  }
  s->used = most;
  return 1;
}

/* The steps of a job that was judged, or with bytes the workspace query: with schedules that are given or built. */
ATTN_COLD_ void attn_longformer_run_(attn_error_ *e, attn_longformer_job_ *j,
                                     const attn_table_ *table, int workers, attn_ctx *ctx,
                                     attn_steps_fn_ steps, void *job, const char *path,
                                     size_t *bytes) {
  attn_schedule *own = NULL;
  int64_t built = 0;
  attn_stage_ s = attn_stage_open_(e, table, workers, ctx, bytes != NULL);
  const int64_t n = j->q.len ? j->entries : 0;
  int ok = j->p.schedules != NULL || n == 0;
  j->entries = n;
  for (int64_t b = 0; ok && j->p.schedules && b < n; b++)
    ok = attn_longformer_given_(e, &j->p.schedules[b], &j->p, j->q.heads, j->q.len, b);
  if (!j->p.schedules && n > 0) {
    const size_t most = SIZE_MAX / sizeof *own;
    own = (uint64_t)n > most ? NULL : (attn_schedule *)ATTN_MALLOC((size_t)n * sizeof *own);
    ok = own ? 1 : attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
    for (j->p.schedules = own; ok && built < n; built += ok)
      ok = attn_longformer_build_(e, &own[built], &j->p, j->q.heads, j->q.len, built, &s.ctx);
  }
  if (ok) attn_stage_call_(&s, ctx, steps, job, path, bytes);
  while (built > 0) attn_schedule_free(&own[--built]);
  if (own) ATTN_FREE(own);
}

ATTN_COLD_ attn_status attn_longformer_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const attn_longformer_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_longformer_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  if (attn_longformer_check_(&e, &j, params, ctx, &table, &workers))
    attn_longformer_run_(&e, &j, table, workers, ctx, attn_longformer_steps_, &j,
                         "longformer: local rows, global rows", bytes);
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_longformer, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_longformer_params *params)
