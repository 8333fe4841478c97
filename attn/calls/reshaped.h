/* calls/reshaped.h owns the checks of attn_reshaped, and the call: a problem of the exact-softmax engine with
 * other weights, or with more around them. */

/* The rules of the numbers, and of what goes with what. */
ATTN_COLD_ int attn_reshaped_rules_(attn_error_ *e, const attn_reshaped_params *p) {
  const attn_sdpa_params *s = &p->attention;
  const attn_temperature *t = &p->temperature;
  if ((int)p->kind < 0 || p->kind > ATTN_RESHAPE_ENTMAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_reshape_kind");
  if (!(p->bias - p->bias == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.bias must be finite");
  if (p->kind != ATTN_RESHAPE_SIGMOID && (p->has_bias || p->by_row || p->bias != 0.0f))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.has_bias, by_row and bias are for ATTN_RESHAPE_SIGMOID");
  if (p->kind != ATTN_RESHAPE_STICK && (p->include_self || p->remainder))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.include_self and remainder are for ATTN_RESHAPE_STICK");
  if (p->sum.data && p->kind != ATTN_RESHAPE_SIGMOID && p->kind != ATTN_RESHAPE_STICK)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.sum is for ATTN_RESHAPE_SIGMOID and ATTN_RESHAPE_STICK");
  if (p->kind != ATTN_RESHAPE_ENTMAX && (p->alpha != 0.0f || p->alphas || p->support.data))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.alpha, alphas and support are for ATTN_RESHAPE_ENTMAX");
  if (p->alpha != 0.0f && p->alphas)
    return attn_reject_(e, ATTN_E_RANGE, "params.alpha must be 0 with params.alphas");
  if (p->alpha != 0.0f && !(p->alpha > 1.0f && p->alpha <= 2.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.alpha must lie above 1 and be at most 2, or be 0");
  if (p->kind == ATTN_RESHAPE_STICK && !s->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention.causal is needed by ATTN_RESHAPE_STICK");
  if (p->kind == ATTN_RESHAPE_STICK && (s->schedule || s->keep || s->xl.table.data))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.attention: schedule, keep and xl must be absent with ATTN_RESHAPE_STICK");
  if (p->bias != 0.0f && !p->has_bias)
    return attn_reject_(e, ATTN_E_RANGE, "params.bias needs params.has_bias = 1");
  if (p->has_bias && p->by_row)
    return attn_reject_(e, ATTN_E_RANGE, "params.by_row must be 0 with params.has_bias");
  if (p->kind != ATTN_RESHAPE_SOFTMAX && (s->lse.data || s->map.data || s->sinks ||
                                          s->softmax_one || s->span.z || s->relative.values.data))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention: lse, map, sinks, softmax_one, span and relative.values "
                        "need ATTN_RESHAPE_SOFTMAX");
  if (s->map.data && s->map_stage != ATTN_MAP_WEIGHTS && s->map_stage != ATTN_MAP_SCORES)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention.map_stage must be ATTN_MAP_WEIGHTS or ATTN_MAP_SCORES");
  if (p->ssmax.bias && !p->ssmax.scale)
    return attn_reject_(e, ATTN_E_NULL, "params.ssmax.bias needs params.ssmax.scale");
  if (t->on && !(t->beta - t->beta == 0.0f && t->shift - t->shift == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.temperature.beta and shift must be finite");
  if (t->on && (!(t->interval >= 0.0f && t->interval < INFINITY) ||
                (t->interval == 0.0f && attn_to_bits_(t->interval))))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.temperature.interval must be finite and positive, or 0 for 8192");
  if (t->on && (s->xl.table.data || s->labels.bias))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.temperature: attention.xl and labels.bias must be absent");
  if (!p->forget.log_f.data && (p->forget.sums || p->forget.known))
    return attn_reject_(e, ATTN_E_NULL, "params.forget.sums and known need params.forget.log_f");
  if (p->forget.known && !p->forget.sums)
    return attn_reject_(e, ATTN_E_RANGE, "params.forget.known needs params.forget.sums");
  if (p->forget.log_f.data && !s->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.forget.log_f needs params.attention.causal");
  if (!p->selective.on && (p->selective.first || p->selective.sums))
    return attn_reject_(e, ATTN_E_NULL, "params.selective.first and sums need params.selective.on");
  if (p->selective.on && !s->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.selective needs params.attention.causal");
  if (p->selective.on && (p->kind == ATTN_RESHAPE_ENTMAX || p->cope.table.data || s->schedule ||
                          s->keep || s->xl.table.data || s->span.z))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.selective: ATTN_RESHAPE_ENTMAX, cope, and schedule, keep, xl and "
                        "span of attention must be absent");
  if (p->norm && p->norm->kind == ATTN_QK_NORM_RMS_ALL)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.norm.kind must not be ATTN_QK_NORM_RMS_ALL: attn_rope has that");
  if (p->norm && (p->cope.table.data || p->path.w.data || s->schedule || s->xl.table.data ||
                  s->relative.keys.data || s->relative.queries.data || s->labels.label))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.norm: cope, path, and schedule, xl, relative.keys, relative.queries and "
        "labels of attention must be absent");
  if (p->cope.table.data && !s->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.cope needs params.attention.causal");
  if (p->cope.table.data && (p->kind == ATTN_RESHAPE_STICK || p->kind == ATTN_RESHAPE_ENTMAX ||
                             s->schedule || s->keep || s->xl.table.data || s->span.z))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.cope: ATTN_RESHAPE_STICK, ATTN_RESHAPE_ENTMAX, and schedule, keep, "
                        "xl and span of attention must be absent");
  if (!p->path.w.data != !p->path.beta.data)
    return attn_reject_(e, ATTN_E_NULL, "params.path.w and params.path.beta need each other");
  if (p->path.w.data && !s->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.path needs params.attention.causal");
  if (p->path.w.data &&
      (p->selective.on || s->schedule || s->keep || s->xl.table.data || s->span.z))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.path: selective, and schedule, keep, xl and span of attention must "
                        "be absent");
  return 1;
}

/* What the engine is told before its own checks. */
ATTN_COLD_ void attn_reshaped_tell_(attn_reshaped_job_ *j, const attn_tensor *k,
                                    const attn_tensor *v) {
  const attn_reshaped_params *p = j->p;
  const attn_sdpa_params *s = &p->attention;
  const int terms = attn_terms_of_(s);
  const int plain = ATTN_TERM_MASK_ | ATTN_TERM_BIAS_ | ATTN_TERM_MODIFY_ | ATTN_TERM_SPAN_;
  const int counts = p->ssmax.scale || p->by_row;
  attn_reshape_ *r = &j->reshape;
  r->user = j;
  /* scores that are no multiples of the queries, or that a negative factor would change */
  j->late = p->ssmax.scale &&
            (terms & (attn_terms_with_(ATTN_TERM_ADDED_) | (int)ATTN_TERM_FACTOR_)) != 0;
  if (counts && (s->schedule || (terms & plain))) r->tally = attn_reshaped_tally_;
  if (p->kind == ATTN_RESHAPE_SIGMOID)
    r->weigh = attn_reshaped_sigmoid_, r->finish = attn_reshaped_sums_;
  if (p->kind == ATTN_RESHAPE_SOFTPICK)
    r->weigh = attn_reshaped_softpick_, r->finish = attn_reshaped_picked_, r->shifts = 1;
  if (p->kind == ATTN_RESHAPE_STICK) {
    r->weigh = attn_reshaped_stick_, r->finish = attn_reshaped_left_, r->backwards = 1;
    r->bound = attn_reshaped_bound_;
  }
  if (p->kind == ATTN_RESHAPE_ENTMAX) {
    r->weigh = attn_entmax_weigh_, r->before = attn_entmax_before_;
    r->finish = attn_entmax_finish_, r->sparse = 1;
    r->by_head = p->alphas != NULL; /* the bits of a row do not hang on the alpha of others */
  }
  r->few = !r->weigh && !r->tally && !j->cope.data && !p->selective.on && !j->w.data && !p->norm;
  if (p->norm) r->queries = attn_reshaped_queries_, r->keys = attn_reshaped_keys_of_;
  if (j->cope.data) r->backwards = 1, r->by_head = j->cope.heads != 1;
  if (p->selective.on) r->by_head = 1, r->pass = attn_selective_pass_;
  if (j->log_f.data) {
    const int64_t heads = j->log_f.heads;
    r->by_head |= heads < 1 || (k->heads % heads && v->heads % heads);
    r->bound = attn_reshaped_bound_;
  }
  if (j->w.data) r->backwards = 1, r->start = attn_path_start_, r->products = attn_path_products_;
  if (j->log_f.data || p->selective.on || j->w.data || p->norm) r->prepare = attn_reshaped_prepare_;
  j->at_sizes = -1;
  if (j->log_f.data || j->late || j->cope.data || p->selective.on)
    r->late = attn_reshaped_late_, r->late_list = attn_reshaped_late_list_;
  if (r->late || p->ssmax.scale || p->temperature.on || p->kind == ATTN_RESHAPE_SIGMOID)
    r->open = attn_reshaped_open_;
  if (j->gate.data) r->gate = attn_reshaped_gate_;
}

/* Every number of log f from the known ones on. */
ATTN_COLD_ int attn_check_forget_(attn_error_ *e, const attn_softmax_ *a,
                                  const attn_reshaped_job_ *j) {
  const attn_tensor *f = &j->log_f;
  for (int64_t b = 0; b < f->batch; b++)
    for (int64_t h = 0; h < f->heads; h++)
      for (int64_t i = j->p->forget.known; i < attn_len_of_(a->kv_len, b, f->len); i++)
        if (!(attn_number_(attn_at_(f, b, h, i), 0, f->dtype, NULL) <= 0.0f))
          return attn_reject_(e, ATTN_E_VALUE, "params.forget.log_f must not be above 0 or NaN");
  return 1;
}

/* Every strength of a transition. */
ATTN_COLD_ int attn_check_strength_(attn_error_ *e, const attn_tensor *x, const int32_t *len,
                                    const char *reason) {
  for (int64_t b = 0; b < x->batch; b++)
    for (int64_t h = 0; h < x->heads; h++)
      for (int64_t i = 0; i < attn_len_of_(len, b, x->len); i++) {
        const float y = attn_number_(attn_at_(x, b, h, i), 0, x->dtype, NULL);
        if (!(y >= 0.0f && y <= 2.0f)) return attn_reject_(e, ATTN_E_VALUE, reason);
      }
  return 1;
}

/* The arguments that attn_sdpa has not, once it has checked its own. */
ATTN_COLD_ int attn_reshaped_check_(attn_error_ *e, attn_softmax_ *a, attn_reshaped_job_ *j,
                                    const attn_ctx *ctx, int data) {
  const attn_reshaped_params *p = j->p;
  const attn_sdpa_params *s = &p->attention;
  const int64_t full[4] = {a->q.batch, a->q.heads, a->q.len, a->k.len};
  const int64_t batch = a->q.batch, heads = a->q.heads, any = ATTN_ANY_;
  attn_tensor o = a->o, q = a->q, k = a->k, v = a->v, lse = a->lse, map = a->map;
  enum { O, LSE, MAP, Q, K, V, GATE, LOG_F, W, BETA, COUNT };
  enum {
    SCALE,
    BIAS,
    ALPHAS,
    SUMS,
    FADE,
    COPE,
    MASK,
    ADD,
    KV,
    QL,
    ALIBI,
    SINKS,
    NORM_Q,
    NORM_K = NORM_Q + 2,
    MORE = NORM_K + 2
  };
  static const char wcope[] = ATTN_WORDS_("params.cope.table");
  attn_span_ more[MORE];
  const int maybe = ATTN_OPTIONAL_;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&o, "o", ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_(&lse, "params.lse", ATTN_OUT_ | maybe, any, any, any, any, ""),
      ATTN_OPERAND_(&map, "params.map", ATTN_OUT_ | maybe, any, any, any, any, ""),
      ATTN_OPERAND_(&q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&k, "k", maybe, any, any, any, any, ""),
      ATTN_OPERAND_(&v, "v", maybe, any, any, any, any, ""),
      ATTN_OPERAND_(&j->gate, "params.gate", maybe, batch, heads, a->q.len, any,
                    "params.gate must be [q.batch, q.heads, q.len, 1 or v.dim]"),
      ATTN_OPERAND_(&j->log_f, "params.forget.log_f", maybe, batch, ATTN_DIVIDES_, a->k.len, 1,
                    "params.forget.log_f must be [q.batch, a divisor of q.heads, k.len, 1]"),
      ATTN_OPERAND_(&j->w, "params.path.w", maybe, batch, a->k.heads, a->k.len, a->q.dim,
                    "params.path.w must be [q.batch, k.heads, k.len, q.dim]"),
      ATTN_OPERAND_(&j->beta, "params.path.beta", maybe, batch, a->k.heads, a->k.len, 1,
                    "params.path.beta must be [q.batch, k.heads, k.len, 1]")};
  memset(more, 0, sizeof more);
  for (int i = GATE; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], heads)) return 0;
  if (j->gate.data && j->gate.dim != 1 && j->gate.dim != a->v.dim)
    return attn_reject_(e, ATTN_E_SHAPE, op[GATE].rule);
  const int64_t sums = attn_mul_(attn_mul_(batch, j->log_f.data ? j->log_f.heads : 0), a->k.len);
  if (!attn_check_array_(e, p->ssmax.scale, heads, 4,
                         "params.ssmax.scale must be aligned to its elements", &more[SCALE]) ||
      !attn_check_array_(e, p->ssmax.bias, heads, 4,
                         "params.ssmax.bias must be aligned to its elements", &more[BIAS]) ||
      !attn_check_array_(e, p->alphas, heads, 4, "params.alphas must be aligned to its elements",
                         &more[ALPHAS]) ||
      !attn_check_array_(e, p->forget.sums, attn_mul_(sums, 2), 8,
                         "params.forget.sums must be aligned to its elements", &more[SUMS]) ||
      !attn_check_array_(e, p->selective.sums, attn_mul_(batch, a->k.len), 8,
                         "params.selective.sums must be aligned to its elements", &more[FADE]))
    return 0;
  if (p->selective.on && !p->selective.sums && a->q_off > 0)
    return attn_reject_(e, ATTN_E_NULL,
                        "params.selective.sums is needed by rows behind position 0: q_off > 0");
  if (!attn_check_table_(e, &j->cope, wcope, "params.cope.table.dtype must be ATTN_F32",
                         "params.cope.table must be [1, 1 or q.heads, npos, q.dim], npos >= 1",
                         heads, a->q.dim, &more[COPE]))
    return 0;
  if (j->cope.data && j->cope.len > (int64_t)1 << 22)
    return attn_reject_(e, ATTN_E_RANGE, "params.cope.table.len must be at most 2^22");
  for (int side = 0; p->norm && side < 2; side++)
    if (!attn_qk_norm_open_(e, &j->norm[side], p->norm, side, side ? a->k.heads : heads, a->q.dim,
                            data > 0, &more[side ? NORM_K : NORM_Q]))
      return 0;
  if (p->forget.known < 0 || p->forget.known > a->k.len)
    return attn_reject_(e, ATTN_E_RANGE, "params.forget.known must lie in 0..k.len");
  if (j->log_f.data && a->q_off > a->k.len - a->q.len)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.forget.log_f needs q_off + q.len <= k.len: a number for each row");
  if (j->w.data && a->q_off > a->k.len - a->q.len)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.path needs q_off + q.len <= k.len: a transition for each row");
  /* attn_sdpa has judged these; here their memory is asked for */
  if (!attn_check_tensor_(e, &o, op[O].w, &op[O].span) ||
      !attn_check_tensor_(e, &q, op[Q].w, &op[Q].span) ||
      !attn_check_stored_(e, &k, op[K].w, &op[K].span) ||
      !attn_check_stored_(e, &v, op[V].w, &op[V].span) ||
      (lse.data && !attn_check_tensor_(e, &lse, op[LSE].w, &op[LSE].span)) ||
      (map.data && !attn_check_tensor_(e, &map, op[MAP].w, &op[MAP].span)) ||
      !attn_check_masks_(e, &s->mask, &s->bias, full, s->mask_new, &more[MASK], &more[ADD]) ||
      !attn_check_array_(e, s->kv_len, batch, 4, "params.kv_len alignment", &more[KV]) ||
      !attn_check_array_(e, s->q_len, batch, 4, "params.q_len alignment", &more[QL]) ||
      !attn_check_array_(e, s->alibi, heads, 4, "params.alibi alignment", &more[ALIBI]) ||
      !attn_check_array_(e, s->sinks, heads, 4, "params.sinks alignment", &more[SINKS]))
    return 0;
  for (int at = SUMS; at <= FADE; at++) {
    int met = 0;
    for (int i = 0; i < COUNT; i++) met |= attn_overlap_(more[at], op[i].span);
    for (int i = 0; i < MORE; i++) met |= i != at && attn_overlap_(more[at], more[i]);
    if (met)
      return attn_reject_(
          e, ATTN_E_OVERLAP,
          at == SUMS ? "params.forget.sums must not share memory with another argument"
                     : "params.selective.sums must not share memory with another argument");
  }
  if (!attn_check_apart_(e, ctx, op, COUNT, more, MORE)) return 0;
  if (data <= 0) return 1;
  for (int64_t h = 0; p->ssmax.scale && h < heads; h++)
    if (!(p->ssmax.scale[h] - p->ssmax.scale[h] == 0.0f) ||
        (p->ssmax.bias && !(p->ssmax.bias[h] - p->ssmax.bias[h] == 0.0f)))
      return attn_reject_(e, ATTN_E_VALUE, "params.ssmax.scale and bias must be finite");
  for (int64_t h = 0; p->alphas && h < heads; h++)
    if (!(p->alphas[h] > 1.0f && p->alphas[h] <= 2.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.alphas must lie above 1 and be at most 2");
  if (j->w.data && !attn_check_strength_(e, &j->beta, a->kv_len,
                                         "params.path.beta must lie in 0..2 and not be NaN"))
    return 0;
  return !j->log_f.data || attn_check_forget_(e, a, j);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_reshaped_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, const attn_reshaped_params *params,
                                           attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_reshaped_params p;
  attn_reshaped_job_ j;
  attn_softmax_ a;
  int workers;
  memset(&p, 0, sizeof p), memset(&j, 0, sizeof j), memset(&a, 0, sizeof a);
  if (params) p = *params;
  j.p = &p, j.gate = p.gate, j.log_f = p.forget.log_f, j.sums = p.forget.sums;
  j.cope = p.cope.table, j.w = p.path.w, j.beta = p.path.beta;
  a.o = o, a.q = q, a.k = k, a.v = v, a.reshape = &j.reshape;
  if (!attn_reshaped_rules_(&e, &p)) return attn_end_(bytes ? NULL : ctx, &e);
  const int data = bytes ? 0 : 1;
  attn_sdpa_params scores = p.attention;
  if (p.sum.data) scores.lse = p.sum;
  if (p.support.data) scores.lse = p.support;
  if (p.norm && p.norm->kind == ATTN_QK_NORM_L2 && scores.scale == 0.0f &&
      !attn_to_bits_(scores.scale))
    scores.scale = 1.0f;
  attn_reshaped_tell_(&j, &k, &v);
  if (!attn_sdpa_plan_(&e, &a, &scores, ctx, &workers, data) ||
      !attn_reshaped_check_(&e, &a, &j, ctx, data))
    return attn_end_(bytes ? NULL : ctx, &e);
  if (p.kind == ATTN_RESHAPE_ENTMAX && a.phases > 1) {
    attn_reject_(&e, ATTN_E_SCHEDULE,
                 "params.attention.schedule must have one phase with ATTN_RESHAPE_ENTMAX");
    return attn_end_(bytes ? NULL : ctx, &e);
  }
  if (p.kind == ATTN_RESHAPE_ENTMAX) j.reshape.tile_bytes = attn_entmax_bytes_(&a);
  if (j.log_f.data && !j.sums) {
    const int64_t sums = attn_mul_(attn_mul_(a.q.batch, j.log_f.heads), a.k.len);
    j.reshape.bytes = attn_piece_(sums, (int64_t)sizeof(attn_forget_sum));
  }
  if (p.selective.on) {
    const int64_t keys = attn_mul_(a.q.batch, a.k.len), f = sizeof(float);
    j.reshape.tile_bytes = ATTN_TILE_ * ATTN_BLOCK_ * f;
    j.at_less = j.reshape.bytes;
    j.at_fade = attn_add_(j.at_less, attn_piece_(keys, f * ATTN_TILE_));
    j.reshape.bytes = attn_add_(j.at_fade, p.selective.sums ? 0 : attn_piece_(keys, 8));
  }
  if (j.cope.data)
    j.reshape.tile_bytes = attn_piece_(attn_add_(attn_cope_stride_(&j.cope), a.q.dim),
                                       ATTN_TILE_ * (int64_t)sizeof(float));
  if (j.w.data) {
    j.at_path = j.reshape.bytes, j.at_path_tile = attn_piece_(j.reshape.tile_bytes, 1);
    j.reshape.bytes = attn_add_(j.at_path, attn_path_bytes_(&a));
    j.reshape.tile_bytes = attn_add_(j.at_path_tile, attn_path_tile_bytes_(&a));
  }
  if (p.norm && a.tiles > 1) {
    const int64_t keys = attn_mul_(attn_mul_(a.q.batch, a.k.heads), a.k.len);
    j.at_sizes = j.reshape.bytes;
    j.reshape.bytes = attn_add_(j.at_sizes, attn_piece_(keys, 3 * (int64_t)sizeof(float)));
  }
  const int64_t queries = attn_piece_(attn_mul_(ATTN_TILE_, a.q.dim), sizeof(float));
  if (p.norm && j.reshape.tile_bytes < queries) j.reshape.tile_bytes = queries;
  if (bytes) {
    if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
    const int64_t need = attn_nothing_(&a) ? 0 : attn_softmax_bytes_(&a, workers);
    if (attn_workspace_fits_(&e, need)) *bytes = (size_t)need;
  } else if (attn_nothing_(&a)) {
    attn_report_(ctx, a.table, 1, "no-op", "no queries");
  } else {
    attn_softmax_run_(&e, &a, ctx, workers);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_reshaped, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_reshaped_params *params)
