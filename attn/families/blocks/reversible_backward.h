/* families/blocks/reversible_backward.h owns the gradients of the reversible residual. */

typedef struct attn_reversible_back_ {
  attn_tensor x1, x2, d_x1, d_x2, y1, y2, d_y1, d_y2;
  attn_reversible_params p;
  attn_reversible_gradients g;
} attn_reversible_back_;

/* d_x by the caller's way back. */
ATTN_COLD_ int attn_stage_rows_back_fn_(attn_stage_ *s, attn_rows_back_fn fn, void *user,
                                        attn_tensor d_x, attn_tensor d_y, attn_tensor x) {
  if (!s->run) return 1;
  s->ctx.workspace = NULL, s->ctx.workspace_size = 0, s->ctx.reason = NULL;
  const attn_status status = fn(user, d_x, d_y, x, &s->ctx);
  if (status == ATTN_OK) return 1;
  return attn_reject_(
      s->e, status,
      s->ctx.reason ? s->ctx.reason : "gradients.f or gradients.g returned this status");
}

/* All functions have answered before an output is written. */
ATTN_COLD_ int attn_reversible_back_steps_(attn_stage_ *s, void *job) {
  const attn_reversible_back_ *j = (const attn_reversible_back_ *)job;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0), *y = &j->y1;
  const attn_tensor t = attn_stage_tensor_(s, y->batch, 1, y->len, y->dim);
  const attn_tensor d1 = attn_stage_tensor_(s, y->batch, 1, y->len, y->dim);
  const attn_tensor d2 = attn_stage_tensor_(s, y->batch, 1, y->len, y->dim);
  const attn_tensor x1 = attn_stage_tensor_(s, y->batch, 1, y->len, y->dim);
  const attn_tensor x2 = attn_stage_like_(s, &j->x2); /* as it is stored */
  return attn_stage_rows_fn_(s, j->p.g, j->p.g_user, t, j->y1) &&
         attn_stage_stream_(s, x2, j->y2, t, 1.0f, -1.0f) &&
         attn_stage_norm_(s, d2, j->d_y2, none, NULL) &&
         attn_stage_rows_back_fn_(s, j->g.g, j->p.g_user, t, d2, j->y1) &&
         attn_stage_stream_(s, d1, j->d_y1, t, 1.0f, 1.0f) &&
         attn_stage_rows_fn_(s, j->p.f, j->p.f_user, t, x2) &&
         attn_stage_stream_(s, x1, j->y1, t, 1.0f, -1.0f) &&
         attn_stage_rows_back_fn_(s, j->g.f, j->p.f_user, t, d1, x2) &&
         attn_stage_stream_(s, j->d_x2, d2, t, 1.0f, 1.0f) &&
         attn_stage_norm_(s, j->d_x1, d1, none, NULL) &&
         attn_stage_norm_(s, j->x1, x1, none, NULL) && attn_stage_norm_(s, j->x2, x2, none, NULL);
}

ATTN_COLD_ attn_status attn_reversible_backward_call_(
    attn_tensor x1, attn_tensor x2, attn_tensor d_x1, attn_tensor d_x2, attn_tensor y1,
    attn_tensor y2, attn_tensor d_y1, attn_tensor d_y2, const attn_reversible_params *params,
    const attn_reversible_gradients *gradients, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_reversible_back_ j;
  int workers = 1;
  attn_clear_(&j, sizeof j);
  j.x1 = x1, j.x2 = x2, j.d_x1 = d_x1, j.d_x2 = d_x2;
  j.y1 = y1, j.y2 = y2, j.d_y1 = d_y1, j.d_y2 = d_y2;
  if (params) j.p = *params;
  if (gradients) j.g = *gradients;
  const int64_t b = y1.batch, n = y1.len, d = y1.dim, any = ATTN_ANY_;
  const char *rule = "all streams and gradients must have the extents [B, 1, n, d]";
  attn_operand_ op[] = {ATTN_OPERAND_(&j.x1, "x1", ATTN_OUT_, b, 1, n, d, rule),
                        ATTN_OPERAND_(&j.x2, "x2", ATTN_OUT_, b, 1, n, d, rule),
                        ATTN_OPERAND_(&j.d_x1, "d_x1", ATTN_OUT_, b, 1, n, d, rule),
                        ATTN_OPERAND_(&j.d_x2, "d_x2", ATTN_OUT_, b, 1, n, d, rule),
                        ATTN_OPERAND_(&j.y1, "y1", 0, any, 1, any, any, rule),
                        ATTN_OPERAND_(&j.y2, "y2", 0, b, 1, n, d, rule),
                        ATTN_OPERAND_(&j.d_y1, "d_y1", 0, b, 1, n, d, rule),
                        ATTN_OPERAND_(&j.d_y2, "d_y2", 0, b, 1, n, d, rule)};
  int ok = attn_check_ctx_(&e, ctx, &table, &workers);
  for (int i = 0; ok && i < 8; i++) ok = attn_check_operand_(&e, &op[i ^ 4], 1); /* inputs first */
  for (int i = 0; ok && i < 4; i++)
    if (attn_same_view_(op[i].t, op[i + 4].t)) op[i + 4].span.hi = op[i + 4].span.lo;
  ok = ok && attn_check_apart_(&e, ctx, op, 8, NULL, 0);
  if (ok && (!j.p.f || !j.p.g || !j.g.f || !j.g.g))
    (void)attn_reject_(&e, ATTN_E_NULL,
                       "params, gradients and the functions of both must not be null");
  return attn_step_call_or_(&e, table, workers, ctx, attn_reversible_back_steps_, &j,
                            "reversible residual", n == 0 || b == 0 ? "no rows" : NULL, bytes);
}
ATTN_CALL_(attn_reversible_backward, (x1, x2, d_x1, d_x2, y1, y2, d_y1, d_y2, params, gradients),
           attn_tensor x1, attn_tensor x2, attn_tensor d_x1, attn_tensor d_x2, attn_tensor y1,
           attn_tensor y2, attn_tensor d_y1, attn_tensor d_y2, const attn_reversible_params *params,
           const attn_reversible_gradients *gradients)
