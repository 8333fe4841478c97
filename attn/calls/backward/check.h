/* calls/backward/check.h owns the rules of a call for the gradients of attention. */

/* Terms without gradients, and what others need for theirs. */
ATTN_COLD_ int attn_backward_terms_(attn_error_ *e, const attn_sdpa_params *p,
                                    const attn_sdpa_gradients *g) {
  if (p->modify_weights)
    return attn_reject_(e, ATTN_E_RANGE, "params.modify_weights must be absent");
  if (p->modify && !g->modify_back)
    return attn_reject_(e, ATTN_E_NULL,
                        "gradients.modify_back must not be null with params.modify");
  if (g->modify_back && !p->modify)
    return attn_reject_(e, ATTN_E_NULL, "gradients.modify_back wants params.modify");
  if (g->d_map.data && p->map_stage != ATTN_MAP_WEIGHTS && p->map_stage != ATTN_MAP_DROPPED &&
      p->map_stage != ATTN_MAP_SCORES)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "gradients.d_map wants ATTN_MAP_WEIGHTS, ATTN_MAP_DROPPED or ATTN_MAP_SCORES");
  if (g->d_map.data && p->map_stage == ATTN_MAP_SCORES && p->span.z)
    return attn_reject_(e, ATTN_E_RANGE,
                        "gradients.d_map of ATTN_MAP_SCORES must be absent with params.span");
  if (g->d_map.data && (p->ragged.q_indptr || p->ragged.kv_indptr))
    return attn_reject_(e, ATTN_E_RANGE,
                        "gradients.d_map must be absent with sequences of unequal length");
  return 1;
}

enum {
  ATTN_GRADIENT_TENSORS_ = 9,
  ATTN_GRADIENT_OUTPUTS_ = (int)ATTN_GRADIENT_ARRAYS_ + (int)ATTN_GRADIENT_TENSORS_
};

/* The arrays, and of what they are the gradients. */
ATTN_COLD_ int attn_backward_arrays_(attn_error_ *e, const attn_softmax_ *a,
                                     const attn_sdpa_params *p, attn_backward_ *job,
                                     attn_span_ *out) {
  const attn_sdpa_gradients *g = &job->asked;
  const int64_t h = a->q.heads, rows = attn_mul_(attn_mul_(a->q.batch, h), a->q.len);
  const int64_t table =
      attn_mul_(attn_max64_(p->toeplitz.heads, 1), attn_max64_(p->toeplitz.len, 0));
  const int64_t t5 = attn_mul_(attn_max64_(p->t5.buckets ? p->t5.buckets : 32, 0), h);
  const int64_t wide = attn_mul_(h, a->q.dim);
  const attn_gradient_array_ none = {NULL, 0};
  const attn_gradient_array_ gain = job->weights ? job->weights->gain : none;
  const attn_gradient_array_ gate = job->weights ? job->weights->gate : none;
  const struct {
    float *y;
    const void *of;
    int64_t n;
    const char *why;
  } list[ATTN_GRADIENT_ARRAYS_] = {
      {g->d_sinks, p->sinks, h, "gradients.d_sinks wants params.sinks"},
      {g->d_alibi, p->alibi, h, "gradients.d_alibi wants params.alibi"},
      {g->d_toeplitz, p->toeplitz.table, table, "gradients.d_toeplitz wants params.toeplitz"},
      {g->d_t5, p->t5.table, t5, "gradients.d_t5 wants params.t5"},
      {g->d_parabola_w, p->parabola.w, h, "gradients.d_parabola_w wants params.parabola"},
      {g->d_parabola_bias, p->parabola.bias, h,
       "gradients.d_parabola_bias wants params.parabola.bias"},
      {g->d_center, p->gaussian.center, rows, "gradients.d_center wants params.gaussian"},
      {g->d_precision, p->gaussian.precision, rows, "gradients.d_precision wants params.gaussian"},
      {g->d_scale, g, h, ""},
      {g->d_xl_u, p->xl.u, wide, "gradients.d_xl_u wants params.xl.u"},
      {g->d_xl_v, p->xl.v, wide, "gradients.d_xl_v wants params.xl.v"},
      {g->d_label_bias, p->labels.bias, attn_mul_(attn_max64_(p->labels.table.len, 0), h),
       "gradients.d_label_bias wants params.labels.bias"},
      {g->d_alpha, p->factor.alpha, h, "gradients.d_alpha wants params.factor"},
      {g->d_beta, p->factor.beta, h, "gradients.d_beta wants params.factor"},
      {g->d_span, p->span.z, p->span.per_query ? rows : h, "gradients.d_span wants params.span"},
      {gain.y, gain.n ? g : NULL, gain.n, "gradients.d_gain wants ATTN_RELU_RELA"},
      {gate.y, gate.n ? g : NULL, gate.n, "gradients.d_gate wants ATTN_RELU_RELA"}};
  for (int i = 0; i < ATTN_GRADIENT_ARRAYS_; i++) {
    if (list[i].y && !list[i].of) return attn_reject_(e, ATTN_E_NULL, list[i].why);
    if (!attn_check_array_(e, list[i].y, list[i].n, 4,
                           "an array of gradients must be aligned to its elements", out++))
      return 0;
    job->array[i].y = list[i].y, job->array[i].n = list[i].n;
  }
  return 1;
}

/* A table of gradients: the heads and rows of the one that it is of. */
ATTN_COLD_ int attn_backward_table_(attn_error_ *e, const attn_tensor *y, const attn_tensor *of,
                                    const char *absent, const char *shape) {
  if (!y->data) return 1;
  if (!of->data) return attn_reject_(e, ATTN_E_NULL, absent);
  return (y->heads == of->heads && y->len == of->len) || attn_reject_(e, ATTN_E_SHAPE, shape);
}
ATTN_COLD_ int attn_backward_tables_(attn_error_ *e, const attn_sdpa_params *p,
                                     const attn_sdpa_gradients *g) {
  return attn_backward_table_(e, &g->d_relative.keys, &p->relative.keys,
                              "gradients.d_relative.keys wants params.relative.keys",
                              "gradients.d_relative.keys must have the shape of its table") &&
         attn_backward_table_(e, &g->d_relative.values, &p->relative.values,
                              "gradients.d_relative.values wants params.relative.values",
                              "gradients.d_relative.values must have the shape of its table") &&
         attn_backward_table_(e, &g->d_relative.queries, &p->relative.queries,
                              "gradients.d_relative.queries wants params.relative.queries",
                              "gradients.d_relative.queries must have the shape of its table") &&
         attn_backward_table_(e, &g->d_xl_table, &p->xl.table,
                              "gradients.d_xl_table wants params.xl",
                              "gradients.d_xl_table must have the shape of its table") &&
         attn_backward_table_(e, &g->d_label_table, &p->labels.table,
                              "gradients.d_label_table wants params.labels",
                              "gradients.d_label_table must have the shape of its table");
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

/* What is summed over heads, or read for all, and added to. */
ATTN_COLD_ int attn_backward_sums_(attn_error_ *e, const attn_backward_ *g, const attn_tensor *k,
                                   const attn_tensor *v) {
  if (!attn_backward_extents_(e, &g->d_k, k, "d_k must have the shape of k",
                              "d_k.dtype must be ATTN_F32 where it is a sum over k") ||
      !attn_backward_extents_(e, &g->d_v, v, "d_v must have the shape of v",
                              "d_v.dtype must be ATTN_F32 where it is a sum over v"))
    return 0;
  if (g->accumulate != 0 && g->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return 1;
}

/* Units: a batch entry and the query heads that share a head of keys and one of values; one, where an output is a sum
 * over what is read for all. */
ATTN_COLD_ void attn_backward_divide_(attn_backward_ *g, int64_t entries, const attn_tensor *q,
                                      const attn_tensor *k, const attn_tensor *v) {
  const int64_t heads = attn_max64_(q->heads, 1);
  const int64_t by_k = attn_max64_(attn_over_(heads, attn_max64_(k->heads, 1)), 1);
  const int64_t by_v = attn_max64_(attn_over_(heads, attn_max64_(v->heads, 1)), 1);
  const int tensors = g->d_q.data || g->d_k.data || g->d_v.data;
  g->heads = by_k / attn_gcd_(by_k, by_v) * by_v;
  g->units = tensors ? attn_mul_(entries, heads / g->heads) : 0;
  if (g->units && (attn_sent_shared_(&g->d_k, k) || attn_sent_shared_(&g->d_v, v))) g->units = 1;
}

/* What a call is given. */
typedef struct attn_backward_call_ {
  attn_tensor d_q, d_k, d_v, d_o, q, k, v, o, lse;
  const attn_sdpa_params *params;
  const attn_sdpa_gradients *gradients;
  const attn_back_weights_ *weights; /* with these o and lse say nothing */
  attn_range_fn_ range;              /* as in attn_softmax_ */
  const void *range_user;
} attn_backward_call_;

/* A problem and a job take it. */
ATTN_COLD_ void attn_backward_take_(const attn_backward_call_ *c, attn_softmax_ *a,
                                    attn_backward_ *g) {
  a->o = c->o, a->q = c->q, a->k = c->k, a->v = c->v;
  g->d_q = c->d_q, g->d_k = c->d_k, g->d_v = c->d_v, g->d_o = c->d_o;
  if (c->gradients) g->asked = *c->gradients;
  g->d_lse = g->asked.d_lse, g->d_sinks = g->asked.d_sinks, g->accumulate = g->asked.accumulate;
  g->weights = c->weights, a->range = c->range, a->range_user = c->range_user;
  if (!c->weights) return;
  a->reshape = c->weights->reshape, g->d_sum = c->weights->d_sum;
  void *aligned = (void *)((uintptr_t)c->d_o.data & ~(uintptr_t)3);
  a->o = attn_bhtd(aligned, ATTN_F32, c->d_o.batch, c->d_o.heads, c->d_o.len, c->d_o.dim);
  a->o_stands_in = 1;
}

/* Every rule. a: forward's problem; data as in attn_sdpa_plan_. */
ATTN_COLD_ int attn_backward_plan_(attn_error_ *e, attn_softmax_ *a, attn_backward_ *g,
                                   const attn_sdpa_params *params, const attn_tensor *lse,
                                   attn_span_ out[ATTN_GRADIENT_OUTPUTS_], const attn_ctx *ctx,
                                   int *workers, int data) {
  const attn_tensor *q = &a->q, *k = &a->k, *v = &a->v, *bias = &g->asked.d_bias;
  const int64_t any = ATTN_ANY_;
  const int table = (int)ATTN_OUT_ | (int)ATTN_OPTIONAL_ | (int)ATTN_IS_F32_;
  attn_sdpa_params p = *params;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&g->d_q, "d_q", ATTN_OUT_ | ATTN_OPTIONAL_, q->batch, q->heads, q->len, q->dim,
                    "d_q must have the shape of q"),
      ATTN_OPERAND_(&g->d_k, "d_k", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, k->len, k->dim,
                    "d_k must have the shape of k"),
      ATTN_OPERAND_(&g->d_v, "d_v", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, v->len, v->dim,
                    "d_v must have the shape of v"),
      ATTN_OPERAND_(&g->asked.d_bias, "gradients.d_bias", table, any, any, any, any,
                    "gradients.d_bias.dtype must be ATTN_F32"),
      ATTN_OPERAND_(&g->asked.d_relative.keys, "gradients.d_relative.keys", table, 1, any, any,
                    q->dim, "gradients.d_relative.keys must be [1, 1 or q.heads, n, q.dim] of f32"),
      ATTN_OPERAND_(&g->asked.d_relative.values, "gradients.d_relative.values", table, 1, any, any,
                    v->dim,
                    "gradients.d_relative.values must be [1, 1 or q.heads, n, v.dim] of f32"),
      ATTN_OPERAND_(&g->asked.d_relative.queries, "gradients.d_relative.queries", table, 1, any,
                    any, q->dim,
                    "gradients.d_relative.queries must be [1, 1 or q.heads, n, q.dim] of f32"),
      ATTN_OPERAND_(&g->asked.d_xl_table, "gradients.d_xl_table", table, 1, any, any, q->dim,
                    "gradients.d_xl_table must be [1, 1 or q.heads, n, q.dim] of f32"),
      ATTN_OPERAND_(&g->asked.d_label_table, "gradients.d_label_table", table, 1, any, any, q->dim,
                    "gradients.d_label_table must be [1, 1 or q.heads, n, q.dim] of f32"),
      ATTN_OPERAND_(&g->d_o, "d_o", 0, q->batch, q->heads, q->len, v->dim,
                    "d_o must have the shape of o"),
      ATTN_OPERAND_(&g->d_lse, "gradients.d_lse", ATTN_OPTIONAL_ | ATTN_IS_F32_, q->batch, q->heads,
                    q->len, 1, "gradients.d_lse must be [q.batch, q.heads, q.len, 1] of ATTN_F32"),
      ATTN_OPERAND_(&g->asked.d_map, "gradients.d_map", ATTN_OPTIONAL_ | ATTN_IS_F32_, q->batch,
                    q->heads, q->len, k->len,
                    "gradients.d_map must be [q.batch, q.heads, q.len, k.len] of ATTN_F32"),
      ATTN_OPERAND_(&g->d_sum, "gradients.d_sum", ATTN_OPTIONAL_ | ATTN_IS_F32_, q->batch, q->heads,
                    q->len, 1, "gradients.d_sum must be [q.batch, q.heads, q.len, 1] of ATTN_F32")};
  enum { N = sizeof op / sizeof *op, TENSORS = ATTN_GRADIENT_TENSORS_, READ = N - TENSORS };
  static const char *const given[] = {"q.data must not be null", "k.data must not be null",
                                      "v.data must not be null", "o.data must not be null"};
  const attn_tensor *const read[] = {q, k, v, &a->o};
  for (int i = 0; i < (g->weights ? 3 : 4); i++)
    if (!read[i]->data && !read[i]->dim) return attn_reject_(e, ATTN_E_NULL, given[i]);
  if (!g->weights && !lse->data && ((q->batch && q->heads && q->len) || !lse->dim))
    return attn_reject_(e, ATTN_E_NULL, "lse.data must not be null");
  if (q->len > INT32_MAX || k->len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^31");
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], q->heads)) return 0;
  if (!attn_backward_sums_(e, g, k, v)) return 0;
  if (!attn_backward_terms_(e, &p, &g->asked) || !attn_backward_tables_(e, &p, &g->asked)) return 0;
  if (bias->data && !p.bias.kind)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_bias wants params.bias");
  for (int i = 0; i < (int)TENSORS; i++) out[i] = op[i].span;
  if (!attn_backward_arrays_(e, a, &p, g, out + TENSORS) ||
      (data >= 0 && !attn_check_apart_(e, ctx, op, N, out + TENSORS, ATTN_GRADIENT_ARRAYS_)))
    return 0;
  for (int i = TENSORS; data >= 0 && i < (int)ATTN_GRADIENT_OUTPUTS_; i++)
    for (int j = i + 1; j < (int)ATTN_GRADIENT_OUTPUTS_ + (int)READ; j++)
      if (attn_overlap_(out[i], j < (int)ATTN_GRADIENT_OUTPUTS_
                                    ? out[j]
                                    : op[j - (int)ATTN_GRADIENT_ARRAYS_].span))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "a gradient must not share memory with another argument");
  a->takes_drop = !g->weights;
  p.lse = *lse, p.compute = ATTN_COMPUTE_F32, p.compute_prefer = 0, p.one_order = 1;
  g->map_dropped = p.map_stage == ATTN_MAP_DROPPED;
  g->map_scores = g->asked.d_map.data && p.map_stage == ATTN_MAP_SCORES;
  memset(&p.map, 0, sizeof p.map), p.map_stage = ATTN_MAP_WEIGHTS;
  a->beside = out, a->besides = ATTN_GRADIENT_OUTPUTS_;
  if (!attn_sdpa_plan_(e, a, &p, ctx, workers, data)) return 0;
  const int64_t entries = a->seq ? a->seq->n : q->batch;
  if (bias->data && ((bias->batch != 1 && bias->batch != entries) ||
                     (bias->heads != 1 && bias->heads != q->heads) ||
                     (bias->len != 1 && bias->len != q->len) || bias->dim != k->len))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "gradients.d_bias must be [1 or q.batch, 1 or q.heads, 1 or q.len, k.len]");
  if (g->asked.d_scale && a->scale == 0.0)
    return attn_reject_(e, ATTN_E_VALUE, "gradients.d_scale wants a scale that is not 0");
  /* a tile has rows of one head */
  a->group = 1, a->tiles = attn_tiles_of_(q->len);
  if (a->seq) attn_sequences_count_(a);
  attn_backward_divide_(g, entries, q, k, v);
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
