/* families/sparse/ngram.h owns ProphetNet's n-gram attention: a causal run for each stream over the main stream's keys,
 * and each row's own key merged into it. */

typedef struct attn_ngram_job_ {
  attn_tensor o, q, k, v, own_k, own_v;
  attn_ngram_params p;
  attn_t5_rule_ rule;
  attn_tensor one;       /* scores of own keys */
  attn_tensor relative;  /* of the run's rows */
  int64_t streams, zero; /* row i of a run is zero + i away from key 0 */
  const int32_t *at;     /* the bucket of a distance, at most `last` */
  int64_t last;
} attn_ngram_job_;

/* Stream g of n of each sequence. */
ATTN_COLD_ attn_tensor attn_ngram_stream_(attn_tensor t, int64_t g, int64_t n) {
  if (g) t = attn_stage_shift_(t, g * t.stride_batch);
  t.batch /= n;
  if (t.batch > 1) t.stride_batch *= n;
  return t;
}

ATTN_FUNC_ void attn_ngram_bias_(void *user, const attn_score_tile *t) {
  const attn_ngram_job_ *j = (const attn_ngram_job_ *)user;
  for (int64_t r = 0; r < t->queries; r++) {
    const float *row =
        (const float *)(const void *)attn_at_(&j->relative, t->batch, t->head[r], t->query[r]);
    float *x = t->score + r * t->query_stride;
    for (int64_t c = 0; c < t->keys; c++)
      x[c * t->key_stride] +=
          row[j->at[attn_clamp_(j->zero + t->query[r] - t->key[c], 0, j->last)]];
  }
}

/* Rows of stream g that a sequence has, from row `first` on. */
ATTN_FUNC_ int64_t attn_ngram_rows_(const attn_ngram_job_ *j, int64_t b, int64_t first,
                                    int64_t rows) {
  return j->p.len ? attn_clamp_(j->p.len[b] - (j->k.len - j->q.len) - first, 0, rows) : rows;
}

/* Own scores have their bias; those of rows that do not exist weigh nothing. */
ATTN_FUNC_ void attn_ngram_own_item_(void *job, int worker, int64_t index) {
  const attn_ngram_job_ *j = (const attn_ngram_job_ *)job;
  const int64_t b = index / j->q.heads, h = index % j->q.heads;
  const int64_t rows = attn_ngram_rows_(j, b / j->streams, 0, j->q.len);
  (void)worker;
  for (int64_t i = 0; i < j->q.len; i++) {
    float *x = (float *)(void *)attn_at_(&j->one, b, h, i);
    if (i >= rows)
      *x = -INFINITY;
    else if (j->p.relative.data)
      *x += *(const float *)(const void *)attn_at_(&j->p.relative, b, h, i);
  }
}

/* Rows first .. first + rows - 1 of stream g over the first `keys` keys; the last that a row sees lies `back` behind
 * it. */
ATTN_COLD_ int attn_ngram_run_(attn_stage_ *s, attn_ngram_job_ *j, attn_tensor part,
                               attn_tensor lse, int64_t g, int64_t first, int64_t rows,
                               int64_t keys, int64_t back, int32_t *have) {
  const int64_t n = j->streams;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  j->zero = j->k.len - j->q.len + first;
  p.scale = j->p.scale, p.causal = 1, p.has_q_off = 1, p.q_off = j->zero - back;
  j->zero += j->own_k.data != NULL;
  if (lse.data) p.lse = attn_stage_rows_(attn_ngram_stream_(lse, g, n), first, rows);
  if (j->p.relative.data) {
    j->relative = attn_stage_rows_(attn_ngram_stream_(j->p.relative, g, n), first, rows);
    p.modify = attn_ngram_bias_, p.modify_user = j;
  }
  if (have) {
    for (int64_t b = 0; s->run && b < j->k.batch; b++)
      have[b] = (int32_t)attn_ngram_rows_(j, b, first, rows);
    p.q_len = have;
  }
  return attn_stage_sdpa_(s, attn_stage_rows_(attn_ngram_stream_(part, g, n), first, rows),
                          attn_stage_rows_(attn_ngram_stream_(j->q, g, n), first, rows),
                          attn_stage_rows_(j->k, 0, keys), attn_stage_rows_(j->v, 0, keys), &p);
}

/* The bucket of each distance that there is and has one of its own. */
ATTN_COLD_ void attn_ngram_buckets_(attn_stage_ *s, attn_ngram_job_ *j) {
  j->last = j->rule.most < j->k.len ? j->rule.most : j->k.len;
  int32_t *at = (int32_t *)attn_stage_take_(s, j->last + 1, sizeof *at);
  int64_t edge[ATTN_T5_MOST_], side = 0;
  if (s->run) attn_t5_edges_(edge, &j->rule);
  for (int64_t t = 0; s->run && t <= j->last; t++) {
    while (side + 1 < j->rule.side && edge[side + 1] <= t) side++;
    at[t] = (int32_t)side;
  }
  j->at = at;
}

ATTN_COLD_ int attn_ngram_steps_(attn_stage_ *s, void *job) {
  attn_ngram_job_ *j = (attn_ngram_job_ *)job;
  const attn_tensor *o = &j->o;
  const int64_t rows = o->len, before = j->k.len - rows;
  const int own = j->own_k.data != NULL;
  attn_tensor part = *o, lse = j->p.lse;
  int32_t *have = NULL;
  if (own) {
    part = attn_stage_part_(s, o);
    if (!lse.data) lse = attn_stage_tensor_(s, o->batch, o->heads, rows, 1);
  }
  if (j->p.len) have = (int32_t *)attn_stage_take_(s, j->k.batch, sizeof *have);
  if (j->p.relative.data) attn_ngram_buckets_(s, j);
  for (int64_t g = 0; g < j->streams && rows > 0; g++) {
    const int64_t lag = j->p.together ? 0 : g;
    const int64_t early = attn_clamp_(lag - before, 0, rows); /* they see key 0 alone */
    if (early && !attn_ngram_run_(s, j, part, lse, g, 0, early, 1, 0, have)) return 0;
    if (early < rows &&
        !attn_ngram_run_(s, j, part, lse, g, early, rows - early, j->k.len, lag, have))
      return 0;
  }
  if (!own) return 1;
  j->one = attn_stage_tensor_(s, o->batch, o->heads, rows, 1);
  return attn_stage_own_(s, j->one, j->q, j->own_k, j->p.scale) &&
         attn_stage_for_(s, attn_mul_(o->batch, o->heads), attn_ngram_own_item_, j, 0, NULL) &&
         attn_stage_merge_(s, *o, part, lse, j->own_v, j->one);
}

ATTN_COLD_ int attn_ngram_check_(attn_error_ *e, attn_ngram_job_ *j, const attn_ctx *ctx,
                                 int query) {
  enum { Q, K, V, OWN_K, OWN_V, R, O, LSE, COUNT };
  attn_ngram_params *p = &j->p;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  attn_span_ more[1];
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, "q"),
      ATTN_OPERAND_(&j->k, "k", 0, any, in, any, dk,
                    "k must be [B, a divisor of q.heads, S, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, j->k.batch, in, j->k.len, any,
                    "v must be [k.batch, a divisor of q.heads, k.len, dv]"),
      ATTN_OPERAND_(&j->own_k, "own_k", ATTN_OPTIONAL_, b, in, t, dk,
                    "own_k must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&j->own_v, "own_v", ATTN_OPTIONAL_, b, in, t, dv,
                    "own_v must be [q.batch, a divisor of q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&p->relative, "params.relative", ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, any,
                    "params.relative must be f32 [q.batch, q.heads, q.len, buckets]"),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, t, dv,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  if (!j->own_k.data != !j->own_v.data)
    return attn_reject_(e, ATTN_E_NULL, "own_k and own_v go together");
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (j->k.batch ? b % j->k.batch != 0 : b != 0)
    return attn_reject_(e, ATTN_E_SHAPE, "q.batch must be a multiple of k.batch");
  j->streams = j->k.batch ? b / j->k.batch : 0;
  if (j->k.len < t) return attn_reject_(e, ATTN_E_SHAPE, "k.len must be at least q.len");
  if (p->max_distance < 0 ||
      (p->relative.data && !attn_t5_rule_of_(&j->rule, p->relative.dim, p->max_distance, 0)))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params: relative.dim must be 2 to 1024, max_distance above half of it and "
                        "below 2^31");
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->len, j->k.batch, 4, "params.len must be aligned to its elements",
                           &more[0]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 1) &&
         (query ||
          attn_check_lens_(e, p->len, j->k.batch, j->k.len, "params.len must lie in 0..k.len"));
}

ATTN_COLD_ attn_status attn_ngram_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        attn_tensor own_k, attn_tensor own_v,
                                        const attn_ngram_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_ngram_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v, j.own_k = own_k, j.own_v = own_v;
  if (params) j.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_ngram_check_(&e, &j, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_ngram_steps_, &j,
                         "n-gram: streams, own keys", bytes);
}
ATTN_CALL_(attn_ngram, (o, q, k, v, own_k, own_v, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor own_k, attn_tensor own_v,
           const attn_ngram_params *params)
