/* families/sparse/star_tree.h owns the Star-Transformer, Longformer and the BP-Transformer's tree. Each is
 * a list of checks and a list of steps (engine/stage.h). */

/* ---- Star-Transformer -----------------------------------------------------------------------*/

typedef struct attn_star_job_ {
  attn_tensor o, q, k, v, k_relay, v_relay;
  attn_star_params p;
  int relay; /* the second half */
  int64_t width;
} attn_star_job_;

ATTN_COLD_ int attn_star_check_(attn_error_ *e, attn_star_job_ *j, const attn_star_params *params,
                                const attn_ctx *ctx, const attn_table_ **table, int *workers) {
  static const char *const w[] = {ATTN_WORDS_("q"),
                                  ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"),
                                  ATTN_WORDS_("k_relay"),
                                  ATTN_WORDS_("v_relay"),
                                  ATTN_WORDS_("params.k_own"),
                                  ATTN_WORDS_("params.v_own"),
                                  ATTN_WORDS_("o"),
                                  ATTN_WORDS_("params.lse"),
                                  ATTN_WORDS_("q_relay")};
  enum { Q, K, V, KR, VR, KO, VO, O, LSE, COUNT };
  attn_star_params *p = &j->p;
  const attn_tensor *q = &j->q, *k = &j->k, *v = &j->v;
  if (params) *p = *params;
  if (j->relay) p->k_own.data = p->v_own.data = NULL;
  const int64_t b = q->batch, h = q->heads, t = q->len, dk = q->dim, dv = v->dim;
  const int64_t in = ATTN_DIVIDES_, any = ATTN_ANY_;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&j->q, j->relay ? w[9] : w[Q], 0, any, any, j->relay ? 1 : any, any,
                       "q_relay must have one row"),
      ATTN_OPERAND_AS_(&j->k, w[K], 0, b, in, j->relay ? any : t, dk,
                       "k must be [q.batch, a divisor of q.heads, T, q.dim]"),
      ATTN_OPERAND_AS_(&j->v, w[V], 0, b, in, k->len, any,
                       "v must be [q.batch, a divisor of q.heads, k.len, dv]"),
      ATTN_OPERAND_AS_(&j->k_relay, w[KR], 0, b, in, 1, dk,
                       "k_relay must be [q.batch, a divisor of q.heads, 1, q.dim]"),
      ATTN_OPERAND_AS_(&j->v_relay, w[VR], 0, b, in, 1, dv,
                       "v_relay must be [q.batch, a divisor of q.heads, 1, v.dim]"),
      ATTN_OPERAND_AS_(&p->k_own, w[KO], ATTN_OPTIONAL_, b, in, t, dk,
                       "params.k_own must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_AS_(&p->v_own, w[VO], ATTN_OPTIONAL_, b, in, t, dv,
                       "params.v_own must be [q.batch, a divisor of q.heads, q.len, v.dim]"),
      ATTN_OPERAND_AS_(&j->o, w[O], ATTN_OUT_, b, h, t, dv,
                       "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_AS_(&p->lse, w[LSE], ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                       "params.lse must be f32 [q.batch, q.heads, q.len, 1]")};
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_check_given_(e, op, COUNT)) return 0;
  if (!j->relay) {
    if (t < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.len must be at least 1");
    if (p->width < 0) return attn_reject_(e, ATTN_E_RANGE, "params.width must not be negative");
    if (!p->k_own.data != !p->v_own.data)
      return attn_reject_(e, ATTN_E_NULL, "params.k_own and params.v_own go together");
  }
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  j->width = attn_given_or_(p->has_width, p->width, 1);
  if (j->width > t) j->width = t;
  return attn_check_scale_(e, p->scale) && attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

/* The band, what wraps around the ring at its two ends, the relay, the private keys. */
ATTN_COLD_ int attn_star_steps_(attn_stage_ *s, void *job) {
  const attn_star_job_ *j = (const attn_star_job_ *)job;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, w = j->width;
  const int ring = !j->relay && !j->p.no_ring && w > 0,
            whole = j->relay || (ring && w >= t - w - 1);
  const attn_tensor part = attn_stage_part_(s, &j->o);
  const attn_tensor one = attn_stage_tensor_(s, b, h, t, 1);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale;
  p.lse = j->p.lse.data ? j->p.lse : attn_stage_tensor_(s, b, h, t, 1);
  const attn_tensor lse = p.lse;
  if (!whole) p.window = attn_window_of(w, w);
  if (!attn_stage_sdpa_(s, part, j->q, j->k, j->v, &p)) return 0;
  for (int end = 0; end < 2 && ring && !whole; end++) {
    /* row r of the first w sees keys r.. of the last w; of the last w, keys ..r of the first */
    const int64_t row = end ? t - w : 0, key = end ? 0 : t - w;
    const attn_tensor to = attn_stage_rows_(part, row, w), sum = attn_stage_rows_(lse, row, w);
    const attn_tensor corner = attn_stage_tensor_(s, b, h, w, j->v.dim);
    memset(&p, 0, sizeof p);
    p.scale = j->p.scale;
    p.lse = attn_stage_rows_(one, 0, w);
    p.has_q_off = 1;
    p.causal = end;
    p.window = attn_window_of(end ? -1 : 0, -1);
    if (!attn_stage_sdpa_(s, corner, attn_stage_rows_(j->q, row, w), attn_stage_rows_(j->k, key, w),
                          attn_stage_rows_(j->v, key, w), &p) ||
        !attn_stage_merge_(s, to, to, sum, corner, p.lse))
      return 0;
  }
  const int own = j->p.k_own.data != NULL;
  return attn_stage_own_(s, one, j->q, j->k_relay, j->p.scale) &&
         attn_stage_merge_(s, own ? part : j->o, part, lse, j->v_relay, one) &&
         (!own || (attn_stage_own_(s, one, j->q, j->p.k_own, j->p.scale) &&
                   attn_stage_merge_(s, j->o, part, lse, j->p.v_own, one)));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_star_call_(attn_star_job_ *j, const attn_star_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_star_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_star_steps_, j, "star: window, wrap, relay", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_star_job_ attn_star_job_of_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, attn_tensor k_relay, attn_tensor v_relay,
                                            int relay) {
  attn_star_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v, j.k_relay = k_relay, j.v_relay = v_relay, j.relay = relay;
  return j;
}

ATTN_COLD_ attn_status attn_star_satellites_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                  attn_tensor v, attn_tensor k_relay,
                                                  attn_tensor v_relay,
                                                  const attn_star_params *params, attn_ctx *ctx,
                                                  size_t *bytes) {
  attn_star_job_ j = attn_star_job_of_(o, q, k, v, k_relay, v_relay, 0);
  return attn_star_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_star_satellites, (o, q, k, v, k_relay, v_relay, params), attn_tensor o,
           attn_tensor q, attn_tensor k, attn_tensor v, attn_tensor k_relay, attn_tensor v_relay,
           const attn_star_params *params)
ATTN_COLD_ attn_status attn_star_relay_call_(attn_tensor o, attn_tensor q_relay,
                                             attn_tensor k_relay, attn_tensor v_relay,
                                             attn_tensor k, attn_tensor v,
                                             const attn_star_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_star_job_ j = attn_star_job_of_(o, q_relay, k, v, k_relay, v_relay, 1);
  return attn_star_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_star_relay, (o, q_relay, k_relay, v_relay, k, v, params), attn_tensor o,
           attn_tensor q_relay, attn_tensor k_relay, attn_tensor v_relay, attn_tensor k,
           attn_tensor v, const attn_star_params *params)

/* ---- the tree -------------------------------------------------------------------------------*/

ATTN_PUB_ int64_t attn_tree_nodes(int64_t tokens) {
  int64_t nodes = tokens;
  if (tokens < 1 || tokens > INT32_MAX) return 0;
  for (int64_t n = tokens; n > 1;) n = n / 2 + n % 2, nodes += n;
  return nodes > INT32_MAX ? 0 : nodes;
}

/* Node id as level and place; the number of nodes of its level. */
ATTN_FUNC_ int attn_tree_find_(int64_t tokens, int64_t id, int64_t *place, int64_t *count) {
  int level = 0;
  for (*count = tokens; id >= *count; level++) id -= *count, *count = *count / 2 + *count % 2;
  *place = id;
  return level;
}

/* Step t of loop level l on which a token at i reaches node `place` of `level`, -1 if never; the
 * nodes of a side follow one another away from the token. */
ATTN_FUNC_ int64_t attn_tree_step_(const attn_tree_params *p, int64_t i, int right, int level,
                                   int64_t place, int *l) {
  const int64_t k = p->k < p->tokens ? p->k : p->tokens; /* more never exist */
  if (p->overlap) { /* level l has nodes at .. at + k - 1, or at .. at - k + 1 */
    int64_t at = right ? i + 1 : i - 1, n = p->tokens;
    for (*l = 0; *l < level; ++*l, n = n / 2 + n % 2) {
      if (right ? at + k >= n : at - k < 0) return -1;
      at = right ? (at + k) / 2 : (at - k) / 2;
    }
    int64_t t = right ? place - at : at - place;
    return t >= 0 && t < k ? t : -1;
  }
  int64_t edge = right ? i + 1 : i; /* of what is covered so far */
  for (*l = 0; *l <= level + 1; ++*l) {
    if (right ? edge >= p->tokens : edge <= 0) return -1;
    const int64_t size = (int64_t)1 << *l;
    int64_t t = 0;
    if (edge % size != 0) { /* one node of the level below comes first, and counts as one */
      const int64_t half = size / 2, at = right ? edge / half : edge / half - 1;
      if (*l - 1 == level && place == at) return 0;
      edge = right ? (at + 1) * half : at * half;
      t = 1;
    }
    const int64_t at = right ? edge / size : edge / size - 1;
    const int64_t away = right ? place - at : at - place;
    if (*l == level && away >= 0 && away < k - t) return t + away;
    edge = right ? edge + (k - t) * size : edge - (k - t) * size;
  }
  return -1;
}

/* attn_tree_label for checked params. */
ATTN_FUNC_ int64_t attn_tree_edge_(const attn_tree_params *p, int64_t i, int64_t j) {
  int64_t place, count, own, t;
  const int level = attn_tree_find_(p->tokens, j, &place, &count);
  const int64_t each = 2 * p->k + 1;
  int l;
  if (i >= p->tokens) {
    const int up = attn_tree_find_(p->tokens, i, &own, &t);
    const int sees = level == 0 ? place >> up == own : j == i && p->include_self;
    return sees ? each * (up < p->clip ? up : p->clip) : -1;
  }
  if (j == i) return 0;
  const int right = (place << level) > i;
  if (right && p->causal) return -1;
  t = attn_tree_step_(p, i, right, level, place, &l);
  return t < 0 ? -1 : each * (l < p->clip ? l : p->clip) + 2 * t + 1 + right;
}

/* Defaults and ranges. */
ATTN_FUNC_ int attn_tree_params_(attn_error_ *e, attn_tree_params *p) {
  if (p->tokens < 1 || attn_tree_nodes(p->tokens) == 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.tokens must be at least 1 and have fewer than 2^31 nodes");
  if (p->k < 1 || p->k > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.k must lie in 1..2^31-1");
  if (p->clip < 0) return attn_reject_(e, ATTN_E_RANGE, "params.clip must not be negative");
  int64_t place, count;
  const int64_t levels = attn_tree_find_(p->tokens, attn_tree_nodes(p->tokens) - 1, &place, &count);
  p->clip = attn_min64_(attn_given_or_(p->has_clip, p->clip, levels), levels);
  return 1;
}

ATTN_PUB_ int64_t attn_tree_label(const attn_tree_params *params, int64_t i, int64_t j) {
  attn_error_ e = {ATTN_OK, NULL};
  if (!params) return -1;
  attn_tree_params p = *params;
  if (!attn_tree_params_(&e, &p)) return -1;
  const int64_t nodes = attn_tree_nodes(p.tokens);
  return i < 0 || j < 0 || i >= nodes || j >= nodes ? -1 : attn_tree_edge_(&p, i, j);
}

typedef struct attn_tree_job_ {
  attn_tensor o, q, k, v;
  attn_tree_params p;
} attn_tree_job_;

ATTN_COLD_ int attn_tree_check_(attn_error_ *e, attn_tree_job_ *j, const attn_tree_params *params,
                                const attn_ctx *ctx, const attn_table_ **table, int *workers) {
  enum { Q, K, V, TABLE, O, LSE, COUNT };
  attn_tree_params *p = &j->p;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the tokens");
  *p = *params;
  if (!attn_tree_params_(e, p) || !attn_check_scale_(e, p->scale)) return 0;
  const int64_t n = attn_tree_nodes(p->tokens), b = j->q.batch, h = j->q.heads;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, n, any,
                    "q.len must be attn_tree_nodes(params.tokens)"),
      ATTN_OPERAND_(&j->k, "k", 0, b, in, n, j->q.dim,
                    "k must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, n, any,
                    "v must be [q.batch, a divisor of q.heads, q.len, dv]"),
      ATTN_OPERAND_(&p->table, "params.table", ATTN_OPTIONAL_ | ATTN_IS_F32_, 1, ATTN_ONE_OR_ALL_,
                    any, j->q.dim,
                    "params.table must be f32 [1, 1 or q.heads, (2 k + 1)(clip + 1), q.dim]"),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, n, j->v.dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, n, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]")};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (p->table.data && p->table.len < attn_mul_(2 * p->k + 1, p->clip + 1))
    return attn_reject_(e, ATTN_E_SHAPE, op[TABLE].rule);
  return attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

ATTN_FUNC_ int64_t attn_tree_label_(void *user, int64_t b, int64_t h, int64_t i, int64_t j) {
  (void)b, (void)h;
  return attn_tree_edge_((const attn_tree_params *)user, i, j);
}

ATTN_COLD_ int attn_tree_steps_(attn_stage_ *s, void *job) {
  attn_tree_job_ *j = (attn_tree_job_ *)job;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale, p.lse = j->p.lse, p.schedule = j->p.schedule;
  if (j->p.table.data)
    p.labels.label = attn_tree_label_, p.labels.user = &j->p, p.labels.table = j->p.table;
  return attn_stage_sdpa_(s, j->o, j->q, j->k, j->v, &p);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_tree_job_call_(attn_tree_job_ *j, const attn_tree_params *params,
                                           attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_schedule own = {NULL, 0, NULL};
  if (attn_tree_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_pattern tree = attn_pattern_tree(j->p.tokens, j->p.k);
    tree.causal = j->p.causal, tree.overlap = j->p.overlap, tree.include_self = j->p.include_self;
    if (attn_stage_schedule_(
            &s, &j->p.schedule, &own, &tree, j->q.heads, j->q.len,
            "params.schedule must be of attn_pattern_tree with the fields of params"))
      attn_stage_call_(&s, ctx, attn_tree_steps_, j, "tree: one schedule, labels", bytes);
    attn_schedule_free(&own);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_tree_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_tree_params *params, attn_ctx *ctx,
                                       size_t *bytes) {
  attn_tree_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  return attn_tree_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_tree, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_tree_params *params)
