/* families/sparse/hierarchy.h owns hierarchical attention: segmented attention level by level, and the
 * sum of all levels at each token. */

typedef struct attn_hierarchy_job_ {
  attn_tensor o, x;
  attn_hierarchy_params p;
  int64_t units[ATTN_HIERARCHY_LEVELS];
  attn_tensor w[3][ATTN_HIERARCHY_LEVELS]; /* of q, k, v */
  attn_tensor y[ATTN_HIERARCHY_LEVELS];    /* outputs */
  attn_tensor row[ATTN_HIERARCHY_LEVELS];  /* f32 */
  attn_aggregate aggregate[ATTN_HIERARCHY_LEVELS];
  const attn_schedule *schedule[ATTN_HIERARCHY_LEVELS];
  const attn_table_ *table;
  char *memory;
  int64_t each;
} attn_hierarchy_job_;

/* One of the optional arrays of tensors; absent = all null. */
ATTN_COLD_ void attn_hierarchy_copy_(attn_tensor *to, const attn_tensor *from, int64_t levels) {
  if (from)
    for (int64_t l = 0; l < levels; l++) to[l] = from[l];
}

ATTN_COLD_ int attn_hierarchy_levels_(attn_error_ *e, attn_hierarchy_job_ *j) {
  attn_hierarchy_params *p = &j->p;
  if (p->levels == 0) p->levels = 1;
  if (p->levels < 1 || p->levels > ATTN_HIERARCHY_LEVELS)
    return attn_reject_(e, ATTN_E_RANGE, "params.levels must lie in 0..ATTN_HIERARCHY_LEVELS");
  j->units[0] = j->x.len;
  if (j->x.len > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, "x.len must be below 2^31");
  if (p->levels == 1) return 1;
  if (!p->units || !p->indptr)
    return attn_reject_(
        e, ATTN_E_NULL,
        p->units ? "params.indptr must not be null" : "params.units must not be null");
  attn_span_ copied; /* both are read here and never again */
  if (!attn_check_array_(e, p->units, p->levels, 8, "params.units must be aligned to its elements",
                         &copied) ||
      !attn_check_array_(e, p->indptr, p->levels - 1, sizeof *p->indptr,
                         "params.indptr must be aligned to its elements", &copied))
    return 0;
  for (int64_t l = 0; l < p->levels; l++) {
    j->units[l] = p->units[l];
    if (p->units[l] < 0 || p->units[l] > (l ? p->units[l - 1] : j->x.len) ||
        (l == 0 && p->units[0] != j->x.len))
      return attn_reject_(e, ATTN_E_SHAPE,
                          "params.units must begin with x.len and grow from level to level");
  }
  return 1;
}

ATTN_COLD_ int attn_hierarchy_check_(attn_error_ *e, attn_hierarchy_job_ *j,
                                     const attn_hierarchy_params *params, const attn_ctx *ctx,
                                     int *workers) {
  static const char *const w[] = {ATTN_WORDS_("x"),          ATTN_WORDS_("o"),
                                  ATTN_WORDS_("params.w_q"), ATTN_WORDS_("params.w_k"),
                                  ATTN_WORDS_("params.w_v"), ATTN_WORDS_("params.y")};
  static const char *const rule[] = {
      ATTN_HEADS_IN_OUT_("params.w_q", "1 or x.heads", "width of the level", "of its queries"),
      ATTN_HEADS_IN_OUT_("params.w_k", "1 or x.heads", "width of the level", "of its queries"),
      ATTN_HEADS_IN_OUT_("params.w_v", "1 or x.heads", "width of the level", "of the next"),
      "params.y must be [x.batch, x.heads, units of the level, its width]"};
  enum { LEVELS = ATTN_HIERARCHY_LEVELS };
  attn_operand_ op[2 + 4 * LEVELS];
  attn_span_ more[4 * LEVELS + 1];
  attn_hierarchy_params *p = &j->p;
  int n = 2, m = 0;
  memset(op, 0, sizeof op);
  memset(more, 0, sizeof more);
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (params) *p = *params;
  op[0].t = &j->x, op[0].w = w[0];
  op[0].batch = op[0].heads = op[0].len = op[0].dim = ATTN_ANY_;
  if (!attn_check_operand_(e, &op[0], 1)) return 0;
  if (j->x.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "x.heads must be at least 1");
  if (!attn_hierarchy_levels_(e, j)) return 0;
  attn_hierarchy_copy_(j->w[0], p->w_q, p->levels);
  attn_hierarchy_copy_(j->w[1], p->w_k, p->levels);
  attn_hierarchy_copy_(j->w[2], p->w_v, p->levels);
  attn_hierarchy_copy_(j->y, p->y, p->levels);
  for (int64_t l = 0; l < 3 * p->levels; l++) attn_turn_(&j->w[l % 3][l / 3], p->w_transposed);
  const int64_t b = j->x.batch, h = j->x.heads;
  const int optional = ATTN_OPTIONAL_;
  op[1].t = &j->o, op[1].w = w[1], op[1].role = ATTN_OUT_ | optional;
  op[1].batch = b, op[1].heads = h, op[1].len = j->x.len, op[1].dim = ATTN_ANY_;
  op[1].rule = "o must be [x.batch, x.heads, x.len, width of every level]";
  if (!attn_check_operand_(e, &op[1], h)) return 0;
  int64_t d = j->x.dim;
  for (int64_t l = 0; l < p->levels; l++) {
    const int64_t key = j->w[0][l].data ? j->w[0][l].dim : d;
    for (int i = 0; i < 4; i++, n++) {
      op[n].t = i < 3 ? &j->w[i][l] : &j->y[l], op[n].w = w[2 + i], op[n].rule = rule[i];
      op[n].role = i < 3 ? ATTN_MATRIX_ | optional : ATTN_OUT_ | optional;
      op[n].batch = i < 3 ? 1 : b, op[n].heads = i < 3 ? (int64_t)ATTN_ONE_OR_ALL_ : h;
      op[n].len = i < 3 ? d : j->units[l], op[n].dim = i == 1 ? key : (int64_t)ATTN_ANY_;
      if (!attn_check_operand_(e, &op[n], h)) return 0;
    }
    if (!j->w[1][l].data && key != d)
      return attn_reject_(e, ATTN_E_SHAPE, attn_says_(rule[1], p->w_transposed != 0));
    if (j->w[2][l].data) d = j->w[2][l].dim;
    if (j->y[l].data && j->y[l].dim != d) return attn_reject_(e, ATTN_E_SHAPE, rule[3]);
    if (j->o.data && j->o.dim != d) return attn_reject_(e, ATTN_E_SHAPE, op[1].rule);
    j->row[l].dim = d;
    if (l + 1 == p->levels) break;
    if (p->aggregates) j->aggregate[l] = p->aggregates[l];
    const int32_t *indptr = p->indptr[l];
    if (!indptr) return attn_reject_(e, ATTN_E_NULL, "params.indptr must not hold null");
    if (!attn_check_aggregate_(e, &j->aggregate[l], h, d, &more[m]) ||
        !attn_check_array_(e, indptr, j->units[l + 1] + 1, 4,
                           "params.indptr must be aligned to their elements", &more[m + 3]) ||
        !attn_check_groups_(e, indptr, j->units[l + 1], j->units[l], 1,
                            "params.indptr must go from 0 to the units of their level, ascending"))
      return 0;
    m += 4;
  }
  if (!attn_check_array_(e, p->gains, p->levels, 4, "params.gains must be aligned to its elements",
                         &more[m++]) ||
      !attn_check_logits_(e, p->gains, p->levels, 1, "params.gains must be finite") ||
      !attn_check_scale_(e, p->scale))
    return 0;
  return attn_check_apart_(e, ctx, op, n, more, m);
}

/* The sum of the levels at each token of one head. */
ATTN_FUNC_ void attn_hierarchy_item_(void *job, int worker, int64_t index) {
  const attn_hierarchy_job_ *j = (const attn_hierarchy_job_ *)job;
  const int64_t b = index / j->x.heads, h = index % j->x.heads, dim = j->o.dim;
  float *sum = (float *)(void *)(j->memory + worker * j->each);
  int64_t unit[ATTN_HIERARCHY_LEVELS] = {0};
  for (int64_t i = 0; i < j->x.len; i++) {
    unit[0] = i;
    j->table->blend(sum, NULL, NULL, ATTN_F32, ATTN_F32, ATTN_F32, dim, 0.0f, 0.0f);
    for (int64_t l = 0; l < j->p.levels; l++) {
      const float gain = j->p.gains ? j->p.gains[l] : 1.0f;
      if (l > 0)
        while (unit[l - 1] >= j->p.indptr[l - 1][unit[l] + 1]) unit[l]++;
      const int64_t u = l > 0 && j->p.causal ? unit[l] - 1 : unit[l];
      if (u < 0 || gain == 0.0f) continue;
      j->table->blend(sum, sum, attn_at_(&j->row[l], b, h, u), ATTN_F32, ATTN_F32, ATTN_F32, dim,
                      1.0f, gain);
    }
    j->table->blend(attn_at_(&j->o, b, h, i), sum, NULL, j->o.dtype, ATTN_F32, ATTN_F32, dim, 1.0f,
                    0.0f);
  }
}

/* Rows of a level into an output of another type. */
typedef struct attn_copy_ {
  const attn_table_ *table;
  attn_tensor to, from;
} attn_copy_;

ATTN_FUNC_ void attn_copy_item_(void *job, int worker, int64_t index) {
  const attn_copy_ *a = (const attn_copy_ *)job;
  const int64_t b = index / a->to.heads, h = index % a->to.heads;
  (void)worker;
  for (int64_t i = 0; i < a->to.len; i++)
    a->table->blend(attn_at_(&a->to, b, h, i), attn_at_(&a->from, b, h, i), NULL, a->to.dtype,
                    a->from.dtype, ATTN_F32, a->to.dim, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_hierarchy_steps_(attn_stage_ *s, void *job) {
  attn_hierarchy_job_ *j = (attn_hierarchy_job_ *)job;
  const int64_t b = j->x.batch, h = j->x.heads;
  attn_tensor state = j->x;
  for (int64_t l = 0; l < j->p.levels; l++) {
    const int64_t n = j->units[l], d = j->row[l].dim;
    attn_tensor in[3]; /* q, k, v */
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < 3; i++) {
      in[i] = state;
      if (!j->w[i][l].data) continue;
      in[i] = attn_stage_tensor_(s, b, h, n, j->w[i][l].dim);
      if (!attn_stage_gemm_(s, in[i], state, j->w[i][l], NULL)) return 0;
    }
    const int direct = j->y[l].data && j->y[l].dtype == ATTN_F32;
    j->row[l] = direct ? j->y[l] : attn_stage_tensor_(s, b, h, n, d);
    p.scale = j->p.scale, p.causal = j->p.causal != 0, p.schedule = j->schedule[l];
    if (!attn_stage_sdpa_(s, j->row[l], in[0], in[1], in[2], &p)) return 0;
    if (j->y[l].data && !direct) {
      attn_copy_ a = {s->table, j->y[l], j->row[l]};
      attn_stage_for_(s, attn_mul_(b, h), attn_copy_item_, &a, 0, NULL);
    }
    if (l + 1 == j->p.levels) break;
    const attn_groups_ groups = {j->p.indptr[l], j->units[l + 1], 0, n};
    state = attn_stage_tensor_(s, b, h, j->units[l + 1], d);
    if (!attn_stage_gather_(s, state, j->row[l], groups, &j->aggregate[l])) return 0;
  }
  j->each = attn_piece_(j->o.data ? j->o.dim : 0, sizeof(float));
  return !j->o.data ||
         attn_stage_for_(s, attn_mul_(b, h), attn_hierarchy_item_, j, j->each, &j->memory);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_hierarchy_job_call_(attn_hierarchy_job_ *j,
                                                const attn_hierarchy_params *params, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_schedule own[ATTN_HIERARCHY_LEVELS];
  int workers, ok = 1;
  memset(own, 0, sizeof own);
  if (attn_hierarchy_check_(&e, j, params, ctx, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, j->table, workers, ctx, bytes != NULL);
    if (j->x.len == 0 || j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, j->table, 1, "no-op", "no tokens");
      return attn_end_(bytes ? NULL : ctx, &e);
    }
    for (int64_t l = 0; ok && l + 1 < j->p.levels; l++) {
      const attn_pattern groups = attn_pattern_segments(j->p.indptr[l], j->units[l + 1]);
      if (j->p.schedules) j->schedule[l] = &j->p.schedules[l];
      ok = attn_stage_schedule_(&s, &j->schedule[l], &own[l], &groups, j->x.heads, j->units[l],
                                "params.schedules[l] must be of attn_pattern_segments(indptr[l])");
    }
    if (ok) attn_stage_call_(&s, ctx, attn_hierarchy_steps_, j, "levels of segments", bytes);
    for (int l = 0; l < ATTN_HIERARCHY_LEVELS; l++) attn_schedule_free(&own[l]);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_hierarchy_call_(attn_tensor o, attn_tensor x,
                                            const attn_hierarchy_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_hierarchy_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  return attn_hierarchy_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_hierarchy, (o, x, params), attn_tensor o, attn_tensor x,
           const attn_hierarchy_params *params)
