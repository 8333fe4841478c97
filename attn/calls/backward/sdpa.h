/* calls/backward/sdpa.h owns the call for the gradients of attention. */

/* The outputs of a call without queries. */
ATTN_FUNC_ void attn_backward_nothing_(const attn_backward_ *g) {
  const attn_sdpa_gradients *p = &g->asked;
  const attn_tensor *const y[] = {&g->d_q,
                                  &g->d_k,
                                  &g->d_v,
                                  &p->d_bias,
                                  &p->d_relative.keys,
                                  &p->d_relative.values,
                                  &p->d_relative.queries,
                                  &p->d_xl_table,
                                  &p->d_label_table};
  if (g->accumulate) return;
  for (int i = 0; i < 9; i++)
    for (int64_t b = 0; b < y[i]->batch; b++) attn_zero_rows_(y[i], b, 0, y[i]->heads, 0);
  for (int i = 0; i < ATTN_GRADIENT_ARRAYS_; i++)
    for (int64_t c = 0; g->array[i].y && c < g->array[i].n; c++) g->array[i].y[c] = 0.0f;
}

/* A call as a problem and its job, judged; data as in attn_sdpa_plan_. */
ATTN_COLD_ int attn_backward_ready_(attn_error_ *e, const attn_backward_call_ *c, attn_softmax_ *a,
                                    attn_backward_ *g, attn_span_ out[ATTN_GRADIENT_OUTPUTS_],
                                    const attn_ctx *ctx, int *workers, int data) {
  attn_sdpa_params none;
  attn_problem_clear_(a), attn_clear_(g, sizeof *g), attn_clear_(&none, sizeof none);
  attn_backward_take_(c, a, g);
  return attn_backward_plan_(e, a, g, c->params ? c->params : &none, &c->lse, out, ctx, workers,
                             data);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ void attn_backward_run_(attn_error_ *e, const attn_backward_call_ *c, attn_ctx *ctx,
                                   size_t *bytes, int data) {
  attn_softmax_ a;
  attn_backward_ g;
  attn_span_ out[ATTN_GRADIENT_OUTPUTS_];
  int workers;
  if (!attn_backward_ready_(e, c, &a, &g, out, ctx, &workers, data)) return;
  const int idle = attn_nothing_(&a);
  if (bytes && ctx && ctx->workers > 1) workers = ctx->workers;
  if (idle || a.own_items == 0) {
    if (bytes) return;
    attn_backward_nothing_(&g);
    attn_report_(ctx, a.table, 1, "no-op", idle ? "no queries" : "no output is asked for");
  } else if (bytes) {
    const int64_t need = attn_softmax_bytes_(&a, workers);
    if (attn_workspace_fits_(e, need)) *bytes = (size_t)need;
  } else if (attn_softmax_run_(e, &a, ctx, workers) && ctx) {
    ctx->report.path = "gradients, queries in lanes";
    ctx->report.why = "one pass for q, k and v, one for what is added to scores";
  }
}

/* The same as a step. */
ATTN_COLD_ int attn_stage_sdpa_backward_(attn_stage_ *s, const attn_backward_call_ *c) {
  size_t bytes = 0;
  s->ctx.workspace = NULL, s->ctx.workspace_size = 0;
  if (!s->run) {
    const attn_ctx held = s->ctx;
    attn_ctx plain = attn_before_workspace_(&held);
    attn_backward_run_(s->e, c, &plain, &bytes, -1);
    attn_stage_spare_(s, (int64_t)bytes);
    return s->e->status == ATTN_OK;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  attn_backward_run_(s->e, c, &s->ctx, NULL, 1);
  attn_stage_count_(s);
  return s->e->status == ATTN_OK;
}

ATTN_COLD_ attn_status attn_sdpa_backward_call_(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, attn_tensor o, attn_tensor lse,
                                                const attn_sdpa_params *params,
                                                const attn_sdpa_gradients *gradients, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_backward_call_ c;
  attn_clear_(&c, sizeof c);
  c.d_q = d_q, c.d_k = d_k, c.d_v = d_v, c.d_o = d_o;
  c.q = q, c.k = k, c.v = v, c.o = o, c.lse = lse, c.params = params, c.gradients = gradients;
  attn_backward_run_(&e, &c, ctx, bytes, bytes ? 0 : 1);
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_sdpa_backward, (d_q, d_k, d_v, d_o, q, k, v, o, lse, params, gradients),
           attn_tensor d_q, attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor o, attn_tensor lse,
           const attn_sdpa_params *params, const attn_sdpa_gradients *gradients)
