/* calls/edges.h owns attention over the caller's key lists (A7): their checks, on the
 * exact-softmax engine's lists. */

/* Whether a list names a key twice. One that ascends does not; of another all pairs are looked at. */
ATTN_COLD_ int attn_edges_same_(const attn_edges_params *p, int64_t from, int64_t to) {
  int64_t up = from + 1;
  while (up < to && p->col[up - 1] < p->col[up]) up++;
  if (up >= to) return 0;
  for (int64_t x = from; x < to; x++)
    for (int64_t y = from; y < x; y++)
      if (p->col[x] == p->col[y]) return 1;
  return 0;
}

/* The sets themselves. Doubles are looked for only when asked: that costs the square of a list that does not ascend. */
ATTN_COLD_ int attn_check_sets_(attn_error_ *e, const attn_edges_params *p, const attn_softmax_ *a,
                                int validate) {
  const int64_t sets = (p->per_batch ? a->q.batch : 1) * (p->per_head ? a->q.heads : 1);
  attn_edges_params at = *p;
  for (int64_t s = 0; s < sets; s++) {
    const int64_t *ptr = p->indptr + s * (a->q.len + 1);
    at.col = p->col ? p->col + s * p->edges : NULL;
    if (ptr[0] != 0) return attn_reject_(e, ATTN_E_INDEX, "params.indptr must begin with 0");
    for (int64_t i = 0; i < a->q.len; i++)
      if (ptr[i + 1] < ptr[i] || ptr[i + 1] > p->edges)
        return attn_reject_(e, ATTN_E_INDEX, "params.indptr must not decrease or pass edges");
    if (!p->slack && ptr[a->q.len] != p->edges)
      return attn_reject_(e, ATTN_E_INDEX, "params.indptr must end with params.edges");
    for (int64_t x = 0; x < ptr[a->q.len]; x++)
      if (at.col[x] < 0 || at.col[x] >= a->k.len)
        return attn_reject_(e, ATTN_E_INDEX, "params.col must lie in 0..k.len-1");
    if (validate)
      for (int64_t i = 0; i < a->q.len; i++)
        if (attn_edges_same_(&at, ptr[i], ptr[i + 1]))
          return attn_reject_(e, ATTN_E_INDEX, "params.col has a key twice in one set");
  }
  return 1;
}

/* Every rule of attn_edges; a holds the tensors. */
ATTN_COLD_ int attn_edges_plan_(attn_error_ *e, attn_softmax_ *a, const attn_edges_params *p,
                                const attn_ctx *ctx, int *workers, int data) {
  enum { ROW_PTR, COL, BIAS, WEIGHTS, O, LSE, Q, K, V, KV_LEN, WORK, SPANS };
  attn_span_ span[SPANS];
  attn_sdpa_params s;
  memset(span, 0, sizeof span);
  memset(&s, 0, sizeof s);
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null");
  s.scale = p->scale, s.causal = p->causal != 0, s.has_q_off = p->has_q_off, s.q_off = p->q_off;
  s.one_order = 1;
  s.kv_len = p->kv_len, s.lse = p->lse, s.dropout = p->dropout, a->takes_drop = 1;
  if (!attn_sdpa_plan_(e, a, &s, ctx, workers, data)) return 0;
  const int64_t all = attn_mul_(a->q.batch, a->q.heads);
  const int64_t sets = attn_mul_(p->per_batch ? a->q.batch : 1, p->per_head ? a->q.heads : 1);
  if (p->edges < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.edges must not be negative");
  if (p->edges >= (int64_t)1 << 40 || a->k.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.edges and k.len are too large");
  if (!p->indptr) return attn_reject_(e, ATTN_E_NULL, "params.indptr must not be null");
  if (!p->col && p->edges) return attn_reject_(e, ATTN_E_NULL, "params.col must not be null");
  const int64_t n = attn_mul_(sets, p->edges);
  if (!attn_check_array_(e, p->indptr, attn_mul_(sets, a->q.len + 1), 8,
                         "params.indptr must be aligned to its elements", &span[ROW_PTR]) ||
      !attn_check_array_(e, p->col, n, 4, "params.col must be aligned to its elements",
                         &span[COL]) ||
      !attn_check_array_(e, p->bias, n, 4, "params.bias must be aligned to its elements",
                         &span[BIAS]) ||
      !attn_check_array_(e, p->weights, attn_mul_(all, p->edges), 4,
                         "params.weights must be aligned to its elements", &span[WEIGHTS]) ||
      !attn_check_array_(e, p->kv_len, a->q.batch, 4, "params.kv_len must be aligned",
                         &span[KV_LEN]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  static const char w[] = ATTN_WORDS_("q");
  if (!attn_check_tensor_(e, &a->o, w, &span[O]) || !attn_check_tensor_(e, &a->q, w, &span[Q]) ||
      !attn_check_tensor_(e, &a->k, w, &span[K]) || !attn_check_tensor_(e, &a->v, w, &span[V]) ||
      (a->lse.data && !attn_check_tensor_(e, &a->lse, w, &span[LSE])))
    return 0;
  for (int x = ROW_PTR; x <= BIAS; x++)
    if (attn_overlap_(span[x], span[O]) || attn_overlap_(span[x], span[LSE]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "o and params.lse must not share memory with the sets");
  for (int x = 0; x < SPANS; x++)
    if (x != WEIGHTS && attn_overlap_(span[x], span[WEIGHTS]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "params.weights must not share memory with another argument");
  for (int x = 0; x < O; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with the sets");
  if (data > 0) {
    if (!attn_check_sets_(e, p, a, ctx && ctx->validate)) return 0;
    if (p->bias)
      for (int64_t set = 0; set < sets; set++)
        if (!attn_check_logits_(e, p->bias + set * p->edges,
                                p->indptr[set * (a->q.len + 1) + a->q.len], 0,
                                "params.bias holds NaN or +inf"))
          return 0;
  }
  a->edges = p;
  a->group = 1;
  a->tiles = (a->q.len + ATTN_TILE_ - 1) / ATTN_TILE_;
  return 1;
}

ATTN_PUB_COLD_ size_t attn_edges_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, const attn_edges_params *params,
                                           const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  if (!attn_edges_plan_(&e, &a, params, &plain, &workers, 0)) return ATTN_WORKSPACE_REJECTED;
  if (attn_nothing_(&a)) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_softmax_bytes_(&a, workers);
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_COLD_ attn_status attn_edges(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_edges_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  if (attn_edges_plan_(&e, &a, params, ctx, &workers, 1)) {
    if (attn_nothing_(&a))
      attn_report_(ctx, a.table, 1, "no-op", "no queries");
    else
      attn_softmax_run_(&e, &a, ctx, workers);
  }
  return attn_end_(ctx, &e);
}
