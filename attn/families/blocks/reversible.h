/* families/blocks/reversible.h owns the reversible residual, both ways, and the mean of its streams. */

typedef struct attn_reversible_job_ {
  attn_tensor a_out, b_out, a, b; /* a_out = a + sign P(b), then b_out = b + sign Q(a_out) */
  attn_rows_fn p, q;
  void *p_user, *q_user;
  float sign;
} attn_reversible_job_;

/* Rows of to = by_x x + by_t t. */
typedef struct attn_streams_ {
  const attn_table_ *table;
  attn_tensor to, x, t;
  float by_x, by_t;
  int64_t tiles;
} attn_streams_;

ATTN_FUNC_ void attn_streams_item_(void *job, int worker, int64_t index) {
  const attn_streams_ *a = (const attn_streams_ *)job;
  const int64_t unit = index / a->tiles, b = unit / a->to.heads, h = unit % a->to.heads;
  const int64_t first = index % a->tiles * ATTN_TILE_;
  const int64_t end = a->to.len - first < ATTN_TILE_ ? a->to.len : first + ATTN_TILE_;
  (void)worker;
  for (int64_t i = first; i < end; i++)
    a->table->blend(attn_at_(&a->to, b, h, i), attn_at_(&a->x, b, h, i), attn_at_(&a->t, b, h, i),
                    a->to.dtype, a->x.dtype, a->t.dtype, a->to.dim, a->by_x, a->by_t);
}

/* to = by_x x + by_t t; `to` may be either. */
ATTN_COLD_ int attn_stage_stream_(attn_stage_ *s, attn_tensor to, attn_tensor x, attn_tensor t,
                                  float by_x, float by_t) {
  attn_streams_ a = {s->table, to, x, t, by_x, by_t, attn_tiles_of_(to.len)};
  return attn_stage_for_(s, attn_mul_(attn_mul_(to.batch, to.heads), a.tiles), attn_streams_item_,
                         &a, 0, NULL);
}

/* Dense, of the type and extents of t. */
ATTN_COLD_ attn_tensor attn_stage_like_(attn_stage_ *s, const attn_tensor *t) {
  const int64_t n = attn_mul_(attn_mul_(t->batch, t->len), t->dim);
  return attn_bhtd(attn_stage_take_(s, n, attn_size_(t->dtype)), t->dtype, t->batch, 1, t->len,
                   t->dim);
}

/* y = fn(x) by the caller's function. */
ATTN_COLD_ int attn_stage_rows_fn_(attn_stage_ *s, attn_rows_fn fn, void *user, attn_tensor y,
                                   attn_tensor x) {
  if (!s->run) return 1;
  s->ctx.workspace = NULL, s->ctx.workspace_size = 0, s->ctx.reason = NULL;
  const attn_status status = fn(user, y, x, &s->ctx);
  if (status == ATTN_OK) return 1;
  return attn_reject_(s->e, status,
                      s->ctx.reason ? s->ctx.reason : "params.f or params.g returned this status");
}

/* Both functions have answered before an output is written. */
ATTN_COLD_ int attn_reversible_steps_(attn_stage_ *s, void *job) {
  const attn_reversible_job_ *j = (const attn_reversible_job_ *)job;
  const int64_t n = j->a.len;
  const attn_tensor p = attn_stage_tensor_(s, j->a.batch, 1, n, j->a.dim);
  const attn_tensor q = attn_stage_tensor_(s, j->a.batch, 1, n, j->a.dim);
  const attn_tensor a = j->a_out.dtype == ATTN_F32 ? p : attn_stage_like_(s, &j->a_out);
  return attn_stage_rows_fn_(s, j->p, j->p_user, p, j->b) &&
         attn_stage_stream_(s, a, j->a, p, 1.0f, j->sign) &&
         attn_stage_rows_fn_(s, j->q, j->q_user, q, a) &&
         attn_stage_stream_(s, j->b_out, j->b, q, 1.0f, j->sign) &&
         attn_stage_norm_(s, j->a_out, a, attn_view_(NULL, ATTN_F32, 0, 0, 0, 0), NULL);
}

/* names: of a_out, b_out, a, b. */
ATTN_COLD_ attn_status attn_reversible_job_call_(attn_reversible_job_ *j, const char *const *names,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  const int64_t b = j->a.batch, n = j->a.len, d = j->a.dim, any = ATTN_ANY_;
  const char *rule = "all streams must have the extents [B, 1, n, d]";
  attn_operand_ op[] = {ATTN_OPERAND_AS_(&j->a_out, names[0], ATTN_OUT_, b, 1, n, d, rule),
                        ATTN_OPERAND_AS_(&j->b_out, names[1], ATTN_OUT_, b, 1, n, d, rule),
                        ATTN_OPERAND_AS_(&j->a, names[2], 0, any, 1, any, any, rule),
                        ATTN_OPERAND_AS_(&j->b, names[3], 0, b, 1, n, d, rule)};
  int ok = attn_check_ctx_(&e, ctx, &table, &workers);
  for (int i = 0; ok && i < 4; i++) ok = attn_check_operand_(&e, &op[i ^ 2], 1); /* inputs first */
  if (ok && attn_same_view_(&j->a_out, &j->a)) op[2].span.hi = op[2].span.lo;
  if (ok && attn_same_view_(&j->b_out, &j->b)) op[3].span.hi = op[3].span.lo;
  ok = ok && attn_check_apart_(&e, ctx, op, 4, NULL, 0);
  if (ok && (!j->p || !j->q))
    ok = attn_reject_(&e, ATTN_E_NULL, "params, params.f and params.g must not be null");
  if (ok) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (n == 0 || b == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no rows");
    } else {
      attn_stage_call_(&s, ctx, attn_reversible_steps_, j, "reversible residual", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_reversible_call_(attn_tensor y1, attn_tensor y2, attn_tensor x1,
                                             attn_tensor x2, const attn_reversible_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  static const char *const names[] = {ATTN_WORDS_("y1"), ATTN_WORDS_("y2"), ATTN_WORDS_("x1"),
                                      ATTN_WORDS_("x2")};
  attn_reversible_job_ j = {y1, y2, x1, x2, NULL, NULL, NULL, NULL, 1.0f};
  if (params)
    j.p = params->f, j.p_user = params->f_user, j.q = params->g, j.q_user = params->g_user;
  return attn_reversible_job_call_(&j, names, ctx, bytes);
}
ATTN_CALL_(attn_reversible, (y1, y2, x1, x2, params), attn_tensor y1, attn_tensor y2,
           attn_tensor x1, attn_tensor x2, const attn_reversible_params *params)

ATTN_COLD_ attn_status attn_reversible_inverse_call_(attn_tensor x1, attn_tensor x2, attn_tensor y1,
                                                     attn_tensor y2,
                                                     const attn_reversible_params *params,
                                                     attn_ctx *ctx, size_t *bytes) {
  static const char *const names[] = {ATTN_WORDS_("x2"), ATTN_WORDS_("x1"), ATTN_WORDS_("y2"),
                                      ATTN_WORDS_("y1")};
  attn_reversible_job_ j = {x2, x1, y2, y1, NULL, NULL, NULL, NULL, -1.0f};
  if (params)
    j.p = params->g, j.p_user = params->g_user, j.q = params->f, j.q_user = params->f_user;
  return attn_reversible_job_call_(&j, names, ctx, bytes);
}
ATTN_CALL_(attn_reversible_inverse, (x1, x2, y1, y2, params), attn_tensor x1, attn_tensor x2,
           attn_tensor y1, attn_tensor y2, const attn_reversible_params *params)

/* ---- the mean -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_mean_steps_(attn_stage_ *s, void *job) {
  const attn_streams_ *a = (const attn_streams_ *)job;
  return attn_stage_stream_(s, a->to, a->x, a->t, 0.5f, 0.5f);
}

ATTN_COLD_ attn_status attn_stream_mean_call_(attn_tensor y, attn_tensor x1, attn_tensor x2,
                                              attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_streams_ a;
  memset(&a, 0, sizeof a);
  a.to = y, a.x = x1, a.t = x2;
  const char *rule = "y, x1 and x2 must have the same extents";
  const int64_t b = y.batch, h = y.heads, n = y.len, d = y.dim;
  attn_operand_ op[] = {ATTN_OPERAND_(&a.to, "y", ATTN_OUT_, b, h, n, d, rule),
                        ATTN_OPERAND_(&a.x, "x1", 0, b, h, n, d, rule),
                        ATTN_OPERAND_(&a.t, "x2", 0, b, h, n, d, rule)};
  int ok = attn_check_ctx_(&e, ctx, &table, &workers);
  for (int i = 0; ok && i < 3; i++) {
    ok = attn_check_operand_(&e, &op[i], h);
    if (i && attn_same_view_(op[i].t, &a.to)) op[i].span.hi = op[i].span.lo;
  }
  if (ok && attn_check_apart_(&e, ctx, op, 3, NULL, 0)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_mean_steps_, &a, "row blend", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_stream_mean, (y, x1, x2), attn_tensor y, attn_tensor x1, attn_tensor x2)
