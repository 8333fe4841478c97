/* calls/cache_sdpa.h owns attention over the sequences of a cache: its checks, and the problem it
 * is for the exact-softmax engine. */

/* What a call over n sequences of a cache is made of. */
typedef struct attn_cached_ {
  attn_softmax_ a;
  attn_cache cache;
  attn_sdpa_params params;
} attn_cached_;

/* Fields of the cache and the sequences, and the parameters as attn_sdpa knows them. */
ATTN_FUNC_ int attn_cached_open_(attn_error_ *e, attn_cached_ *x, attn_tensor o, attn_tensor q,
                                 const attn_cache *cache, const attn_sequence *sequences, int64_t n,
                                 const attn_sdpa_params *params) {
  attn_span_ span[ATTN_CACHE_SPANS_], table;
  attn_softmax_ *a = &x->a;
  attn_sdpa_params *p = &x->params;
  attn_problem_clear_(a);
  if (!cache) return attn_reject_(e, ATTN_E_NULL, "cache must not be null");
  if (n < 0 || n >= (int64_t)1 << 40) return attn_reject_(e, ATTN_E_SHAPE, "n must lie in 0..2^40");
  if (n > 0 && !sequences) return attn_reject_(e, ATTN_E_NULL, "sequences must not be null");
  if ((uintptr_t)sequences % sizeof(void *) != 0)
    return attn_reject_(e, ATTN_E_ALIGN, "sequences must be aligned to its elements");
  x->cache = *cache;
  if (params)
    *p = *params;
  else
    attn_clear_(p, sizeof *p);
  if (p->kv_len || p->k_scales.scale || p->k_scales.zero || p->v_scales.scale || p->v_scales.zero ||
      p->has_q_off || p->q_offs || p->causal == ATTN_CAUSAL_START || p->ragged.kv_indptr)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.kv_len, k_scales, v_scales, has_q_off, q_offs, ATTN_CAUSAL_START and "
        "ragged.kv_indptr must be absent with a cache");
  if (p->map.data) /* also where there is no key */
    return attn_reject_(e, ATTN_E_RANGE, "params.map must be absent with a cache");
  if ((p->ragged.sequences || p->ragged.q_indptr) && p->ragged.sequences != n)
    return attn_reject_(e, ATTN_E_RANGE, "params.ragged.sequences must be n");
  if (!attn_check_places_(e, p)) return 0;
  if (cache->window > 0 && ((p->window.on && p->window.left != -1) || p->keep))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.window.left must be -1 and keep 0 with cache.window: the ring has them");
  if (!attn_check_cache_(e, &x->cache, 0, span)) return 0;
  cache = &x->cache;
  for (int64_t b = 0; b < n; b++)
    if (!attn_check_sequence_(e, cache, &sequences[b], &table)) return 0;
  if (cache->window > 0) {
    p->causal = 1;
    p->window = attn_window_of(cache->window - 1, -1);
    p->keep = cache->keep;
    a->sequences.window = cache->window, a->sequences.sinks = cache->keep;
  }
  p->k_scales = cache->k_scales, p->v_scales = cache->v_scales;
  a->takes_low = 1;
  a->o = o, a->q = q, a->k = cache->k, a->v = cache->v;
  if (attn_cache_latent_(cache)) a->v.data = cache->k.data, p->v_scales = cache->k_scales;
  a->sequences.n = n;
  a->sequences.cached = sequences, a->sequences.page = cache->k.len;
  a->seq = &a->sequences;
  return 1;
}

/* Outputs and the workspace share no memory with what describes the cache. */
ATTN_FUNC_ int attn_cached_apart_(attn_error_ *e, const attn_cached_ *x, const attn_ctx *ctx) {
  static const char w[] = ATTN_WORDS_("o");
  const attn_sequences_ *s = x->a.seq;
  attn_tensor out[2];
  attn_span_ span[3], part;
  memset(span, 0, sizeof span);
  out[0] = x->a.o, out[1] = x->params.lse;
  for (int i = 0; i < 2; i++)
    if (out[i].data && !attn_check_tensor_(e, &out[i], w, &span[i])) return 0;
  if (!attn_check_workspace_(e, ctx, &span[2])) return 0;
  for (int64_t b = -2; b < s->n; b++) {
    const void *data = b == -2   ? (const void *)x->cache.holders
                       : b == -1 ? (const void *)s->cached
                                 : (const void *)s->cached[b].table;
    const int64_t words = (int64_t)(sizeof *s->cached / sizeof(int32_t));
    const int64_t count = b == -2   ? x->cache.k.batch
                          : b == -1 ? attn_mul_(s->n, words)
                                    : s->cached[b].table_len;
    if (!attn_check_array_(e, data, count, sizeof(int32_t),
                           "a table must be aligned to its elements", &part))
      return 0;
    for (int i = 0; i < 3; i++)
      if (attn_overlap_(part, span[i]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "o, params.lse and ctx.workspace must not share memory with the "
                            "cache, its sequences or their tables");
  }
  return 1;
}

/* The pages of all sequences: what follows a table comes later. */
ATTN_FUNC_ int attn_cached_pages_(attn_error_ *e, const attn_cached_ *x) {
  const attn_sequences_ *s = x->a.seq;
  for (int64_t b = 0; b < s->n; b++)
    if (!attn_check_pages_(e, &x->cache, &s->cached[b])) return 0;
  return 1;
}

/* What is read of each sequence: the keys that its queries see. */
ATTN_FUNC_ int attn_cached_read_(attn_error_ *e, const attn_cached_ *x) {
  const attn_sequences_ *s = x->a.seq;
  for (int64_t b = 0; b < s->n; b++) {
    const attn_sequence *one = &s->cached[b];
    int64_t queries = attn_queries_(&x->a, b);
    if (!s->q && x->params.q_len) queries = x->params.q_len[b];
    if (queries > one->len)
      return attn_reject_(e, ATTN_E_RANGE, "a sequence has more queries than tokens");
    if (!s->window || queries == 0) continue;
    int64_t from = one->len - queries - s->window + 1; /* the first key of the first query */
    if (from < s->sinks) from = s->sinks;
    if (from < one->high - attn_ring_(&x->cache, one))
      return attn_reject_(e, ATTN_E_RANGE,
                          "a ring no longer holds the window of a sequence's first query");
  }
  return 1;
}

ATTN_PUB_ size_t attn_cache_sdpa_workspace(attn_tensor o, attn_tensor q, const attn_cache *cache,
                                           const attn_sequence *sequences, int64_t n,
                                           const attn_sdpa_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_cached_ x;
  int workers;
  if (!attn_cached_open_(&e, &x, o, q, cache, sequences, n, params) ||
      !attn_sdpa_plan_(&e, &x.a, &x.params, &plain, &workers, 0) ||
      !attn_cached_apart_(&e, &x, &plain))
    return ATTN_WORKSPACE_REJECTED;
  if (attn_nothing_(&x.a)) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_softmax_bytes_(&x.a, workers);
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_ attn_status attn_cache_sdpa(attn_tensor o, attn_tensor q, const attn_cache *cache,
                                      const attn_sequence *sequences, int64_t n,
                                      const attn_sdpa_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cached_ x;
  int workers;
  if (attn_cached_open_(&e, &x, o, q, cache, sequences, n, params) && attn_cached_pages_(&e, &x) &&
      attn_sdpa_plan_(&e, &x.a, &x.params, ctx, &workers, 1) && attn_cached_apart_(&e, &x, ctx) &&
      attn_cached_read_(&e, &x)) {
    if (attn_nothing_(&x.a))
      attn_report_(ctx, x.a.table, 1, "no-op", "no queries");
    else
      attn_softmax_run_(&e, &x.a, ctx, workers);
  }
  return attn_end_(ctx, &e);
}
