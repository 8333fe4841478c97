/* families/content/mixture_calls.h owns the checks and the public calls of mixtures of attention experts. */

/* A expert, and with lse that its params point at nothing which lse overlaps. */
ATTN_COLD_ int attn_mixture_path_(attn_error_ *e, const attn_mixture_job_ *a, const attn_expert *p,
                                  const attn_tensor *lse, const attn_ctx *ctx, int data) {
  attn_softmax_ f;
  attn_sdpa_params own;
  int workers;
  memset(&f, 0, sizeof f);
  memset(&own, 0, sizeof own);
  f.o = a->o, f.q = p->q, f.k = p->k, f.v = p->v;
  if (p->params) own = *p->params;
  if (lse) own.lse = *lse;
  return attn_sdpa_plan_(e, &f, &own, ctx, &workers, data);
}

/* The experts: each is what attn_sdpa takes, for rows like those of o. */
ATTN_COLD_ int attn_mixture_paths_(attn_error_ *e, const attn_mixture_job_ *a, const attn_ctx *ctx,
                                   const attn_operand_ *more, int extra, int data) {
  static const char w[] = ATTN_WORDS_("params.lse");
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_span_ span, other;
  for (int64_t x = 0; x < a->count; x++) {
    const attn_expert *p = &a->experts[x];
    if (p->params && (p->params->map.data || attn_unlike_(p->params) ||
                      p->params->ragged.q_indptr || p->params->ragged.kv_indptr))
      return attn_reject_(
          e, ATTN_E_RANGE,
          "params.map, .ragged, .q_offs and .align_lengths must be absent in a expert");
    if (p->params && p->params->modify_weights)
      return attn_reject_(e, ATTN_E_RANGE, "params.modify_weights must be absent in a expert");
    if (p->q.batch != a->o.batch || p->q.heads != a->o.heads || p->q.len != a->o.len ||
        p->v.dim != a->o.dim)
      return attn_reject_(e, ATTN_E_SHAPE,
                          "experts must have q [o.batch, o.heads, o.len, .] and v.dim = o.dim");
    if (!attn_mixture_path_(e, a, p, NULL, data ? ctx : &plain, data)) return 0;
  }
  for (int64_t x = 0; x < a->count; x++) { /* an LSE against everything of the other experts */
    const attn_sdpa_params *p = a->experts[x].params;
    if (!p || !p->lse.data) continue;
    attn_tensor lse = p->lse, next;
    if (!attn_check_tensor_(e, &lse, w, &span)) return 0;
    for (int i = 0; i < extra; i++)
      if (attn_overlap_(span, more[i].span))
        return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(w, ATTN_SAYS_OVERLAP_));
    for (int64_t y = 0; y < a->count; y++) {
      const attn_expert *at = &a->experts[y];
      if (y == x) continue;
      if (!attn_mixture_path_(e, a, at, &lse, &plain, 0)) return 0;
      if (!at->params || !at->params->lse.data) continue;
      next = at->params->lse;
      if (!attn_check_tensor_(e, &next, w, &other)) return 0;
      if (attn_overlap_(span, other))
        return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(w, ATTN_SAYS_OVERLAP_));
    }
  }
  return 1;
}

ATTN_COLD_ int attn_mixture_check_(attn_error_ *e, attn_mixture_job_ *a, int call,
                                   const attn_mixture_params *params, const attn_ctx *ctx,
                                   const attn_table_ **table, int *workers, int data) {
  static const char *const w[] = {
      ATTN_WORDS_("o"),           ATTN_WORDS_("pi"),     ATTN_WORDS_("x"),     ATTN_WORDS_("w"),
      ATTN_WORDS_("params.bias"), ATTN_WORDS_("expert"), ATTN_WORDS_("weight")};
  enum { O, PI, X, W, BIAS, PATH, WEIGHT, COUNT };
  const int64_t any = ATTN_ANY_, some = ATTN_ONE_OR_ALL_;
  const int gate = call == ATTN_MX_GATE_ || call == ATTN_MX_GATED_;
  const int select = call == ATTN_MX_SELECT_, send = call == ATTN_MX_SEND_;
  const int sums = call != ATTN_MX_GATE_ && !select;
  attn_mixture_params *p = &a->p;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  attn_turn_(&a->w, p->w_transposed);
  if (p->temperature == 0.0f && !attn_to_bits_(p->temperature)) p->temperature = 1.0f;
  if (!(p->temperature > 0.0f && p->temperature < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.temperature must be positive and finite");
  if (p->capacity < 0) return attn_reject_(e, ATTN_E_RANGE, "params.capacity must not be negative");
  if (select && !params)
    return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says how many experts");
  if (sums && a->count < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "there must be at least 1 expert: count");
  if (sums && !a->experts) return attn_reject_(e, ATTN_E_NULL, "experts must not be null");
  const attn_tensor *lead = sums ? &a->o : &a->pi;
  if (!attn_check_set_(e, lead, w[sums ? O : PI]) ||
      (send && !attn_check_set_(e, &a->weight, w[WEIGHT])) ||
      (!send && call != ATTN_MX_GATED_ && !attn_check_set_(e, &a->pi, w[PI])))
    return 0;
  const int64_t b = lead->batch, h = lead->heads, n = lead->len;
  const int64_t experts = sums ? a->count : a->pi.dim;
  /* heads of the gate */
  const int64_t heads = call == ATTN_MX_GATED_ ? a->x.heads > a->w.heads ? a->x.heads : a->w.heads
                        : send                 ? a->weight.heads
                                               : a->pi.heads;
  a->k = send ? a->weight.dim : call == ATTN_MX_GATE_ ? 0 : p->k;
  if (send && n > 0 && b > 0 && h > 0 && a->k > experts)
    return attn_reject_(e, ATTN_E_RANGE, "weight.dim must lie in 1..count");
  if ((select && p->k < 1) || p->k < 0 || p->k > (call == ATTN_MX_GATE_ ? INT64_MAX : experts))
    return attn_reject_(e, ATTN_E_RANGE, "params.k must lie in 1..P");
  if (n > INT32_MAX || experts > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "rows and experts must be below 2^31");
  if (sums && heads != 1 && heads != h)
    return attn_reject_(e, ATTN_E_SHAPE, "the gate must have 1 head, or those of o");
  attn_tensor none, expert = attn_bhtd(a->expert, ATTN_F32, b, heads, n, a->k);
  memset(&none, 0, sizeof none);
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&a->o, w[O], ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&a->pi, w[PI], gate ? ATTN_OUT_ | ATTN_IS_F32_ : 0, b, any, n, experts,
                       "pi must be [B, 1 or H, Tq, P], and f32 as an output"),
      ATTN_OPERAND_AS_(&a->x, w[X], 0, b, some, n, any, "x must be [B, 1 or Hg, Tq, dx]"),
      ATTN_OPERAND_AS_(&a->w, w[W], ATTN_MATRIX_, 1, some, a->x.dim, experts,
                       ATTN_HEADS_IN_OUT_("w", "1 or Hg", "dx", "P")),
      ATTN_OPERAND_AS_(&p->bias, w[BIAS], ATTN_OPTIONAL_, 1, some, 1, experts,
                       "params.bias must be [1, 1 or Hg, 1, P]"),
      ATTN_OPERAND_AS_(&expert, w[PATH], select ? ATTN_OUT_ : 0, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&a->weight, w[WEIGHT], (select ? ATTN_OUT_ : 0) | ATTN_IS_F32_, b, heads, n,
                       a->k, "weight must be f32 [B, Hg, Tq, k]")};
  const int used[COUNT] = {
      sums, call != ATTN_MX_GATED_ && !send, gate, gate, gate, select || send, select || send};
  for (int i = 0; i < COUNT; i++) {
    if (!used[i])
      op[i].t = &none, op[i].role = ATTN_OPTIONAL_;
    else if (!attn_check_operand_(e, &op[i], heads))
      return 0;
  }
  if (!attn_check_apart_(e, ctx, op, COUNT, NULL, 0)) return 0;
  if (sums && !attn_mixture_paths_(e, a, ctx, op, COUNT, data)) return 0;
  if (send && data)
    for (int64_t r = 0; r < b * heads * n; r++) {
      const int32_t *to = a->expert + r * a->k;
      for (int64_t x = 0; x < a->k; x++) {
        int twice = 0;
        for (int64_t y = 0; y < x; y++) twice |= to[x] >= 0 && to[y] == to[x];
        if (to[x] < -1 || to[x] >= a->count || twice)
          return attn_reject_(e, ATTN_E_INDEX, "expert must hold -1..count-1, none twice in a row");
      }
    }
  return 1;
}

/* A call, or with bytes its workspace query. */
ATTN_COLD_ attn_status attn_mixture_job_call_(attn_mixture_job_ *a, int call,
                                              const attn_mixture_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  static const attn_steps_fn_ steps[] = {attn_gate_steps_, attn_choose_steps_, attn_mix_steps_,
                                         attn_send_steps_, attn_gated_steps_};
  static const char *const expert[] = {"gate", "chosen experts", "all experts",
                                       "rows sent to experts", "gate and experts"};
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_mixture_check_(&e, a, call, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const attn_tensor *lead = call == ATTN_MX_GATE_ || call == ATTN_MX_SELECT_ ? &a->pi : &a->o;
    if (lead->batch > 0 && lead->heads > 0 && lead->len > 0)
      attn_stage_call_(&s, ctx, steps[call], a, expert[call], bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_mixture_job_ attn_mixture_job_of_(attn_tensor o, const attn_expert *experts,
                                                  int64_t count) {
  attn_mixture_job_ a;
  memset(&a, 0, sizeof a);
  a.o = o, a.experts = experts, a.count = count;
  return a;
}

ATTN_COLD_ attn_mixture_job_ attn_gate_job_(attn_tensor pi, attn_tensor x, attn_tensor w) {
  attn_mixture_job_ a;
  memset(&a, 0, sizeof a);
  a.pi = pi, a.x = x, a.w = w;
  return a;
}
ATTN_COLD_ attn_status attn_gate_call_(attn_tensor pi, attn_tensor x, attn_tensor w,
                                       const attn_mixture_params *params, attn_ctx *ctx,
                                       size_t *bytes) {
  attn_mixture_job_ a = attn_gate_job_(pi, x, w);
  return attn_mixture_job_call_(&a, ATTN_MX_GATE_, params, ctx, bytes);
}
ATTN_CALL_(attn_gate, (pi, x, w, params), attn_tensor pi, attn_tensor x, attn_tensor w,
           const attn_mixture_params *params)

ATTN_COLD_ attn_status attn_mixture_call_(attn_tensor o, const attn_expert *experts, int64_t count,
                                          attn_tensor pi, attn_ctx *ctx, size_t *bytes) {
  attn_mixture_job_ a = attn_mixture_job_of_(o, experts, count);
  a.pi = pi;
  return attn_mixture_job_call_(&a, ATTN_MX_MIX_, NULL, ctx, bytes);
}
ATTN_CALL_(attn_mixture, (o, experts, count, pi), attn_tensor o, const attn_expert *experts,
           int64_t count, attn_tensor pi)

ATTN_COLD_ attn_status attn_dispatch_select_call_(int32_t *expert, attn_tensor weight,
                                                  attn_tensor pi, const attn_mixture_params *params,
                                                  attn_ctx *ctx, size_t *bytes) {
  attn_mixture_job_ a = attn_gate_job_(pi, weight, weight);
  a.expert = expert, a.weight = weight;
  return attn_mixture_job_call_(&a, ATTN_MX_SELECT_, params, ctx, bytes);
}
ATTN_CALL_(attn_dispatch_select, (expert, weight, pi, params), int32_t *expert, attn_tensor weight,
           attn_tensor pi, const attn_mixture_params *params)

ATTN_COLD_ attn_mixture_job_ attn_dispatch_job_(attn_tensor o, const attn_expert *experts,
                                                int64_t count, const int32_t *expert,
                                                attn_tensor weight) {
  attn_mixture_job_ a = attn_mixture_job_of_(o, experts, count);
  a.expert = (int32_t *)(uintptr_t)expert, a.weight = weight; /* read only */
  return a;
}
ATTN_COLD_ attn_status attn_dispatch_call_(attn_tensor o, const attn_expert *experts, int64_t count,
                                           const int32_t *expert, attn_tensor weight, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_mixture_job_ a = attn_dispatch_job_(o, experts, count, expert, weight);
  return attn_mixture_job_call_(&a, ATTN_MX_SEND_, NULL, ctx, bytes);
}
ATTN_CALL_(attn_dispatch, (o, experts, count, expert, weight), attn_tensor o,
           const attn_expert *experts, int64_t count, const int32_t *expert, attn_tensor weight)

ATTN_COLD_ attn_status attn_gated_call_(attn_tensor o, const attn_expert *experts, int64_t count,
                                        attn_tensor x, attn_tensor w,
                                        const attn_mixture_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_mixture_job_ a = attn_mixture_job_of_(o, experts, count);
  a.x = x, a.w = w;
  return attn_mixture_job_call_(&a, ATTN_MX_GATED_, params, ctx, bytes);
}
ATTN_CALL_(attn_gated, (o, experts, count, x, w, params), attn_tensor o, const attn_expert *experts,
           int64_t count, attn_tensor x, attn_tensor w, const attn_mixture_params *params)
