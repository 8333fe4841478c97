/* families/content/topk.h owns attention to the best keys of each query (D1): checks, on the
 * exact-softmax engine with a choice of keys. */

ATTN_COLD_ int64_t attn_not_below_0_(int64_t x) { return x > 0 ? x : 0; }

/* What the calls are given. */
typedef struct attn_topk_job_ {
  const attn_tensor *o, *v; /* null in attn_topk_select */
  attn_tensor q, k;
  const attn_topk_params *p;
} attn_topk_job_;

/* Every rule of both calls; data as in attn_sdpa_plan_. a is all zero. */
ATTN_COLD_ int attn_choice_plan_(attn_error_ *e, attn_softmax_ *a, attn_choice_ *c,
                                 const attn_topk_job_ *j, const attn_ctx *ctx, int *workers,
                                 int data) {
  const attn_tensor *v = j->v, q = j->q, k = j->k;
  const attn_topk_params *p = j->p;
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says what is selected");
  attn_sdpa_params s = p->attention;
  const int best = p->mode == ATTN_TOPK_EXACT || p->mode == ATTN_TOPK_TIES;
  memset(c, 0, sizeof *c);
  c->on = &attn_choice_on_;
  if ((int)p->mode < 0 || p->mode >= ATTN_TOPK_MODES)
    return attn_reject_(e, ATTN_E_RANGE, "params.mode must be an attn_topk_mode");
  if (best && p->k < 1) return attn_reject_(e, ATTN_E_RANGE, "params.k must be at least 1");
  if (!best && p->bound != p->bound)
    return attn_reject_(e, ATTN_E_VALUE, "params.bound must not be NaN");
  if (p->mode == ATTN_TOPK_REL && p->bound < 0.0f)
    return attn_reject_(e, ATTN_E_VALUE, "params.bound must not be negative with ATTN_TOPK_REL");
  if (attn_unlike_(&s) || s.span.z || s.relative.values.data || s.map.data)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.attention: ragged, q_offs, align_lengths, span, relative.values and map "
        "must be absent");
  if (!v && s.lse.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention.lse must be absent without values");
  if (!p->indptr && (!v || p->col))
    return attn_reject_(e, ATTN_E_NULL, "params.indptr must not be null");
  if (p->edges < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.edges must not be negative");
  const int64_t sets = attn_mul_(attn_not_below_0_(q.batch), attn_not_below_0_(q.heads));
  if (!attn_check_array_(e, p->indptr, attn_mul_(sets, attn_add_(attn_not_below_0_(q.len), 1)), 8,
                         "params.indptr must be aligned to its elements", &c->span[0]) ||
      !attn_check_array_(e, p->col, attn_mul_(sets, p->edges), 4,
                         "params.col must be aligned to its elements", &c->span[1]))
    return 0;
  c->values = v != NULL;
  a->choice = c, a->q = q, a->k = k;
  s.one_order = 1;
  if (v) {
    a->o = *j->o, a->v = *v;
  } else { /* nothing is summed: a column of k stands for the values, a row of q for the output */
    s.sinks = NULL, s.softmax_one = 0, s.v_scales = s.k_scales;
    a->v = k, a->v.dim = 1;
    a->o = attn_view_(p->indptr, ATTN_F32, q.batch, q.heads, q.len, 1);
    a->o.stride_len = 2, a->o.stride_head = attn_mul_(2, attn_not_below_0_(q.len) + 1);
    a->o.stride_batch = attn_mul_(a->o.stride_head, attn_not_below_0_(q.heads));
  }
  if (!attn_sdpa_plan_(e, a, &s, ctx, workers, data)) return 0;
  if (k.len > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, "k.len must be below 2^31");
  const int64_t most = best && p->k < k.len ? p->k : k.len;
  if (p->mode == ATTN_TOPK_EXACT && p->col && p->edges < attn_mul_(q.len, most))
    return attn_reject_(e, ATTN_E_SHAPE, "params.edges must be at least q.len * min(k, k.len)");
  c->mode = p->mode;
  c->indptr = p->indptr, c->col = p->col, c->edges = p->edges;
  c->bound = attn_to_unit_(a, p->bound);
  if (best && p->k >= k.len)
    c->mode = ATTN_TOPK_ABS, c->bound = -INFINITY; /* all keys */
  else if (best)
    c->k = p->k + (p->mode == ATTN_TOPK_TIES);
  /* Nothing is added to the products: they are compared as they are, not with the scale in the queries,
   * whose roundings would tell equal ones apart. */
  const int ties = c->mode == ATTN_TOPK_REL ? p->bound == 0.0f : c->mode != ATTN_TOPK_ABS;
  if (ties && !(a->terms & ~ATTN_TERM_MASK_) && a->scale_hi > 1e-6f && a->scale_hi < 1e6f)
    c->factor = a->scale_hi, a->scale_hi = 1.0f, a->scale_lo = attn_least_(1.0f);
  return 1;
}

/* Whether there is nothing to select for; then all sets are empty. */
ATTN_COLD_ int attn_choice_nothing_(const attn_softmax_ *a) {
  if (!attn_nothing_(a)) return 0;
  for (int64_t i = 0; a->choice->indptr && a->q.len == 0 && i < a->q.batch * a->q.heads; i++)
    a->choice->indptr[i] = 0;
  return 1;
}

ATTN_COLD_ size_t attn_choice_need_(const attn_topk_job_ *j, const attn_ctx *ctx) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  attn_choice_ c;
  int workers;
  memset(&a, 0, sizeof a);
  if (!attn_choice_plan_(&e, &a, &c, j, &plain, &workers, 0)) return ATTN_WORKSPACE_REJECTED;
  if (attn_nothing_(&a)) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_softmax_bytes_(&a, workers);
  return attn_answer_(e.status, bytes);
}

ATTN_COLD_ attn_status attn_choice_call_(const attn_topk_job_ *j, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  attn_choice_ c;
  int workers;
  memset(&a, 0, sizeof a);
  if (attn_choice_plan_(&e, &a, &c, j, ctx, &workers, 1)) {
    if (attn_choice_nothing_(&a))
      attn_report_(ctx, a.table, 1, "no-op", "no queries");
    else
      attn_softmax_run_(&e, &a, ctx, workers);
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ attn_status attn_topk_sdpa(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_topk_params *params,
                                          attn_ctx *ctx) {
  const attn_topk_job_ j = {&o, &v, q, k, params};
  return attn_choice_call_(&j, ctx);
}
ATTN_PUB_COLD_ size_t attn_topk_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                               attn_tensor v, const attn_topk_params *params,
                                               const attn_ctx *ctx) {
  const attn_topk_job_ j = {&o, &v, q, k, params};
  return attn_choice_need_(&j, ctx);
}
ATTN_PUB_COLD_ attn_status attn_topk_select(attn_tensor q, attn_tensor k,
                                            const attn_topk_params *params, attn_ctx *ctx) {
  const attn_topk_job_ j = {NULL, NULL, q, k, params};
  return attn_choice_call_(&j, ctx);
}
ATTN_PUB_COLD_ size_t attn_topk_select_workspace(attn_tensor q, attn_tensor k,
                                                 const attn_topk_params *params,
                                                 const attn_ctx *ctx) {
  const attn_topk_job_ j = {NULL, NULL, q, k, params};
  return attn_choice_need_(&j, ctx);
}
