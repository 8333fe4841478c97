/* families/maps/mixed.h owns the calls of attention over mixed scores (general form, H3, H4): their
 * checks, their memory, and the weights that each of them has. */

enum { ATTN_MAPS_KERNEL_ = 1 << 20 }; /* rows or columns of a kernel */

/* ---- checks ---------------------------------------------------------------------------------*/

/* Every number of previous is finite. */
ATTN_COLD_ int attn_maps_finite_(attn_error_ *e, const attn_table_ *f, const attn_tensor *t) {
  float x[ATTN_BLOCK_];
  for (int64_t r = 0; r < t->batch * t->heads * t->len; r++)
    for (int64_t j = 0; j < t->dim; j += ATTN_BLOCK_) {
      const int64_t n = t->dim - j < ATTN_BLOCK_ ? t->dim - j : (int64_t)ATTN_BLOCK_;
      const char *row = attn_at_(t, r / t->len / t->heads, r / t->len % t->heads, r % t->len);
      f->widen(x, row + attn_bytes_(t->dtype, j), 0, NULL, 1, n, t->dtype, NULL);
      if (!f->finite(x, n, 1, n))
        return attn_reject_(e, ATTN_E_VALUE, "params.previous holds NaN or an infinity");
    }
  return 1;
}

/* What attention is told: one call of attn_sdpa cut at the scores. */
ATTN_COLD_ int attn_maps_plan_(attn_error_ *e, attn_maps_job_ *a, const attn_sdpa_params *params,
                               const attn_ctx *ctx, int *workers, int data) {
  attn_sdpa_params all = *params, after = *params;
  if (attn_unlike_(params) || params->schedule || params->span.z)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.attention: ragged, q_offs, align_lengths, schedule and span must be "
        "absent");
  if (params->modify_weights)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention.modify_weights must be absent");
  if (params->map_stage == ATTN_MAP_RAW || params->map_stage == ATTN_MAP_CAPPED)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention.map_stage: scores before the mixing are params.scores");
  if (params->softcap > 0.0f && params->softcap_at == ATTN_SOFTCAP_BIASED &&
      params->bias.kind != ATTN_MASK_NONE)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention.softcap_at: a bias is a mask here, behind every cap");
  all.one_order = after.one_order = 1;
  a->fresh = a->after;
  if (!attn_sdpa_plan_(e, &a->after, &after, ctx, workers, data)) return 0;
  if (!a->after.k.len) a->convolve = 0;
  /* the scores: no masks, and windows only where nobody looks beyond them */
  memset(&all.mask, 0, sizeof all.mask);
  memset(&all.bias, 0, sizeof all.bias);
  memset(&all.lse, 0, sizeof all.lse);
  memset(&all.map, 0, sizeof all.map);
  memset(&all.relative.values, 0, sizeof all.relative.values);
  all.sinks = NULL, all.softmax_one = 0, all.q_len = NULL;
  if (a->whole) { /* all pairs, at the same positions */
    all.has_q_off = 1, all.q_off = a->after.q_off;
    all.causal = ATTN_CAUSAL_NONE, all.keep = 0;
    memset(&all.window, 0, sizeof all.window);
  }
  a->fresh.reshape = &attn_maps_natural_;
  if (!attn_sdpa_plan_(e, &a->fresh, &all, ctx, workers, data)) return 0;
  a->fresh.left = a->fresh.right = INT64_MAX / 4, a->fresh.keep = 0;
  a->fresh.v = a->fresh.k,
  a->fresh.v_scales = a->fresh.k_scales; /* not read: one copy serves both */
  a->fresh.group = 1;
  /* the softmax: no terms */
  attn_softmax_ *s = &a->after;
  attn_terms_drop_(s);
  s->group = 1;
  const double unit = s->unit / a->mean;
  s->scale_hi = (float)unit; /* from below, and the rest positive: -inf stays -inf */
  if ((double)s->scale_hi > unit) s->scale_hi = attn_from_bits_(attn_to_bits_(s->scale_hi) - 1);
  s->scale_lo = (float)(unit - (double)s->scale_hi);
  if (s->scale_lo == 0.0f) s->scale_lo = attn_least_(s->scale_hi);
  s->k = s->v, s->k_scales = s->v_scales, s->q.dim = 1; /* neither is read */
  return 1;
}

/* previous and scores, against each other and the rest. */
ATTN_COLD_ int attn_maps_check_(attn_error_ *e, attn_maps_job_ *a, const attn_sdpa_params *p,
                                const attn_ctx *ctx, int in_place, int data) {
  static const char *const w[] = {ATTN_WORDS_("o"),
                                  ATTN_WORDS_("q"),
                                  ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"),
                                  ATTN_WORDS_("params.previous"),
                                  ATTN_WORDS_("params.scores"),
                                  ATTN_WORDS_("params.kernel"),
                                  ATTN_WORDS_("params.attention.lse"),
                                  ATTN_WORDS_("params.attention.map")};
  enum { O, Q, K, V, PREVIOUS, SCORES, KERNEL, LSE, MAP, COUNT };
  const int64_t any = ATTN_ANY_, b = a->after.q.batch, h = a->after.q.heads;
  const int64_t tq = a->after.q.len, tk = a->after.k.len;
  attn_tensor q = a->fresh.q, k = a->fresh.k, v = a->after.v, o = a->after.o;
  attn_tensor lse = a->after.lse, map = a->after.map;
  if (tk == 0) a->previous.data = a->scores.data = NULL;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&o, w[O], ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&q, w[Q], 0, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&k, w[K], ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&v, w[V], ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&a->previous, w[PREVIOUS], ATTN_OPTIONAL_, b, h, tq, tk,
                       "params.previous must be [q.batch, q.heads, q.len, k.len]"),
      ATTN_OPERAND_AS_(&a->scores, w[SCORES], ATTN_OUT_ | ATTN_OPTIONAL_, b, h, tq, tk,
                       "params.scores must be [q.batch, q.heads, q.len, k.len]"),
      ATTN_OPERAND_AS_(&a->kernel, w[KERNEL], ATTN_OPTIONAL_, h, h, any, any,
                       "params.kernel must be [q.heads, q.heads, kh, kw]"),
      ATTN_OPERAND_AS_(&lse, w[LSE], ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&map, w[MAP], ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, "")};
  attn_span_ more, outer[2];
  for (int i = 0; i < COUNT; i++) {
    if ((i == K || i == V) && attn_quantized_(op[i].t->dtype)) {
      if (!attn_check_stored_(e, op[i].t, op[i].w, &op[i].span)) return 0;
    } else if (!attn_check_operand_(e, &op[i], h)) {
      return 0;
    }
  }
  if (!attn_check_array_(e, a->bias, h, 4, "params.bias must be aligned to its elements", &more))
    return 0;
  if (in_place && a->previous.data && attn_same_view_(&a->previous, &a->scores))
    op[PREVIOUS].span.lo = op[PREVIOUS].span.hi = 0; /* scores speaks for both */
  if (!attn_check_apart_(e, ctx, op, COUNT, &more, 1)) return 0;
  /* scores against what p points at: the plan's rules hold, so that nothing else is left to reject */
  attn_softmax_ x;
  int workers;
  memset(&x, 0, sizeof x);
  memset(outer, 0, sizeof outer);
  outer[0] = op[SCORES].span;
  x.o = o, x.q = q, x.k = k, x.v = v, x.outer = outer;
  if (!attn_sdpa_plan_(e, &x, p, ctx, &workers, -1))
    return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(w[SCORES], ATTN_SAYS_OVERLAP_));
  return !data || !ctx || !ctx->validate || !a->previous.data || !tk ||
         attn_maps_finite_(e, a->after.table, &a->previous);
}

/* ---- the call -------------------------------------------------------------------------------*/

/* Memory, then tile after tile. */
ATTN_COLD_ int attn_maps_steps_(attn_stage_ *s, void *job) {
  attn_maps_job_ *a = (attn_maps_job_ *)job;
  attn_softmax_ *f = &a->fresh, *g = &a->after;
  const int64_t h = g->q.heads, tk = g->k.len, size = sizeof(float);
  attn_shared_ x;
  a->heads = a->convolve ? h : 1;
  a->rows = a->convolve ? ATTN_TILE_ / 2 : ATTN_TILE_; /* all heads stay near: 15 % less time */
  if (a->convolve && a->source[0] != 0.0f && a->kh <= ATTN_GROUP_) a->rows -= a->kh - 1;
  a->tiles = (g->q.len + a->rows - 1) / a->rows;
  a->width = attn_add_(tk, a->kw - 1);
  attn_shared_plan_(f, &x);
  char *shared = (char *)attn_stage_take_(s, x.bytes, 1);
  if (a->convolve)
    a->weights =
        (float *)attn_stage_take_(s, attn_mul_(attn_mul_(h, h), attn_mul_(a->kh, a->kw)), size);
  int64_t at = attn_scratch_plan_(f);
  a->at_after = at, at = attn_add_(at, attn_scratch_plan_(g));
  a->at_fresh = at, at = attn_add_(at, attn_piece_(attn_mul_(ATTN_TILE_, tk), size));
  a->at_scores = at;
  if (!a->scores.data || a->scores.dtype != ATTN_F32)
    at = attn_add_(at, attn_piece_(attn_mul_(attn_mul_(a->heads, a->rows), tk), size));
  a->at_source = at, a->at_sum = at;
  if (a->convolve) {
    const int64_t rows = attn_mul_(attn_add_(a->rows, a->kh - 1), h);
    at = attn_add_(at, attn_piece_(attn_add_(attn_mul_(rows, a->width), 2 * ATTN_TILE_), size));
    a->at_sum = at, at = attn_add_(at, attn_piece_(attn_mul_(h, ATTN_MAPS_STRIP_), size));
  }
  a->each = at;
  const int64_t count = attn_mul_(attn_mul_(g->q.batch, h / a->heads), a->tiles);
  const int workers = attn_pieces_(s->workers, count);
  char *spare = attn_stage_spare_(s, attn_mul_(a->each, workers));
  if (!s->run) return 1;
  a->memory = f->workspace = spare, f->bytes = g->bytes = a->each;
  g->workspace = spare + a->at_after;
  f->distance = attn_has_distance_(&f->by_distance) ? (float *)(void *)(shared + x.distance) : NULL;
  f->factor = f->by_distance.factor.alpha ? (float *)(void *)(shared + x.factor) : NULL;
  if (f->distance || f->factor)
    attn_distance_fill_(f, (float *)(void *)(f->distance ? shared + x.distance : NULL),
                        (float *)(void *)(f->factor ? shared + x.factor : NULL));
  if (a->convolve) attn_maps_weights_(a);
  attn_scratch_open_(g, workers);
  attn_for_(&s->ctx, workers, count, attn_maps_item_, a);
  s->pairs += attn_scratch_pairs_(g, workers);
  return 1;
}

/* The call, or with bytes the workspace query. The job has its tensors and weights; in_place:
 * scores may be previous. */
ATTN_COLD_ int attn_maps_run_(attn_error_ *e, attn_maps_job_ *a, const attn_sdpa_params *params,
                              attn_ctx *ctx, int in_place, size_t *bytes) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  const attn_ctx *use = bytes ? &plain : ctx;
  int workers;
  a->whole = a->scores.data != NULL || a->convolve;
  if (!a->previous.data) a->by_previous = a->source[1] = 0.0f;
  if (!attn_maps_plan_(e, a, params, use, &workers, bytes == NULL) ||
      !attn_maps_check_(e, a, params, use, in_place, bytes == NULL))
    return 0;
  attn_stage_ s = attn_stage_open_(e, a->after.table, workers, ctx, bytes != NULL);
  if (attn_nothing_(&a->after)) {
    if (!bytes) attn_report_(ctx, a->after.table, 1, "no-op", "no queries");
  } else {
    attn_stage_call_(
        &s, ctx, attn_maps_steps_, a,
        a->convolve ? "streaming softmax, convolved scores" : "streaming softmax, mixed scores",
        bytes);
  }
  return e->status == ATTN_OK;
}

ATTN_COLD_ void attn_maps_open_(attn_maps_job_ *a, attn_tensor o, attn_tensor q, attn_tensor k,
                                attn_tensor v) {
  memset(a, 0, sizeof *a);
  a->after.o = o, a->after.q = q, a->after.k = k, a->after.v = v;
  a->by_fresh = a->by_previous = 1.0f;
  a->mean = 1.0, a->kh = a->kw = 1;
}

/* 0 = the default, ATTN_ZERO = 0. */
ATTN_COLD_ float attn_maps_or_(float x, float otherwise) {
  return x != 0.0f ? x : attn_to_bits_(x) ? 0.0f : otherwise;
}

ATTN_COLD_ attn_status attn_score_mix_job_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, const attn_score_mix_params *params,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_score_mix_params zero;
  attn_maps_job_ a;
  if (!params) memset(&zero, 0, sizeof zero);
  const attn_score_mix_params *p = params ? params : &zero;
  attn_maps_open_(&a, o, q, k, v);
  a.previous = p->previous, a.scores = p->scores;
  a.by_fresh = attn_maps_or_(p->fresh_weight, 1.0f);
  a.by_previous = attn_maps_or_(p->previous_weight, 1.0f);
  if (!(a.by_fresh - a.by_fresh == 0.0f) || !(a.by_previous - a.by_previous == 0.0f))
    attn_reject_(&e, ATTN_E_VALUE, "params.fresh_weight and params.previous_weight must be finite");
  else
    attn_maps_run_(&e, &a, &p->attention, ctx, 1, bytes);
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_score_mix_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, const attn_score_mix_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  return attn_score_mix_job_call_(o, q, k, v, params, ctx, bytes);
}
ATTN_CALL_(attn_score_mix, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_score_mix_params *params)

ATTN_COLD_ attn_status attn_realformer_job_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                 attn_tensor v,
                                                 const attn_realformer_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_realformer_params zero;
  attn_maps_job_ a;
  if (!params) memset(&zero, 0, sizeof zero);
  const attn_realformer_params *p = params ? params : &zero;
  attn_maps_open_(&a, o, q, k, v);
  a.previous = p->previous, a.scores = p->scores;
  if (p->mean) a.mean = (double)p->layers_below + 1.0;
  if (p->layers_below < 0)
    attn_reject_(&e, ATTN_E_RANGE, "params.layers_below must not be negative");
  else
    attn_maps_run_(&e, &a, &p->attention, ctx, 1, bytes);
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_realformer_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const attn_realformer_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  return attn_realformer_job_call_(o, q, k, v, params, ctx, bytes);
}
ATTN_CALL_(attn_realformer, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_realformer_params *params)

/* A share of 0..1 with its default. */
ATTN_COLD_ int attn_predictive_share_(float *x) {
  *x = attn_maps_or_(*x, 0.5f);
  return *x >= 0.0f && *x <= 1.0f;
}

ATTN_COLD_ int attn_predictive_check_(attn_error_ *e, attn_maps_job_ *a,
                                      attn_predictive_params *p) {
  static const char w[] = ATTN_WORDS_("params.kernel");
  const attn_tensor *k = &p->kernel;
  attn_span_ span;
  if (!attn_predictive_share_(&p->alpha) || !attn_predictive_share_(&p->previous_share) ||
      !attn_predictive_share_(&p->convolved_share))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.alpha, previous_share and convolved_share must lie in 0..1");
  if (p->activation != ATTN_ACT_DEFAULT && p->activation != ATTN_ACT_NONE &&
      p->activation != ATTN_ACT_RELU)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.activation must be ATTN_ACT_NONE or ATTN_ACT_RELU");
  if (p->rule != ATTN_PREDICTIVE_SAME && p->rule != ATTN_PREDICTIVE_CAUSAL)
    return attn_reject_(e, ATTN_E_RANGE, "params.rule must be an attn_predictive_rule");
  const int first = !p->previous.data;
  const float share = p->evolving ? p->convolved_share : first ? 0.0f : 1.0f - p->alpha;
  a->previous = p->previous, a->scores = p->scores, a->kernel = p->kernel, a->bias = p->bias;
  if (!k->data && share != 0.0f)
    return attn_reject_(e, ATTN_E_NULL, "params.kernel.data must not be null");
  if (k->data) {
    static const char wq[] = ATTN_WORDS_("q");
    if (!attn_check_tensor_(e, &a->kernel, w, &span)) return 0;
    if (!attn_check_set_(e, &a->after.q, wq)) return 0;
    if (k->batch != a->after.q.heads || k->heads != a->after.q.heads || k->len < 1)
      return attn_reject_(e, ATTN_E_SHAPE, "params.kernel must be [q.heads, q.heads, kh, kw]");
    if (p->rule == ATTN_PREDICTIVE_SAME && (k->len % 2 == 0 || k->dim % 2 == 0))
      return attn_reject_(e, ATTN_E_SHAPE,
                          "params.kernel: kh and kw must be odd with ATTN_PREDICTIVE_SAME");
    if (k->len > ATTN_MAPS_KERNEL_ || k->dim > ATTN_MAPS_KERNEL_)
      return attn_reject_(e, ATTN_E_OVERFLOW, "params.kernel: kh and kw must be below 2^20");
  }
  const float mp = first ? 0.0f : p->previous_share, mc = p->convolved_share;
  a->by_convolved = share;
  a->by_fresh = p->evolving ? (1.0f - mc) * (1.0f - mp) : first ? 1.0f : p->alpha;
  a->by_previous = p->evolving ? (1.0f - mc) * mp : 0.0f;
  a->source[0] = p->evolving ? 1.0f - mp : 0.0f, a->source[1] = p->evolving ? mp : 1.0f;
  a->convolve = share != 0.0f, a->relu = p->activation == ATTN_ACT_RELU;
  a->causal = p->rule == ATTN_PREDICTIVE_CAUSAL;
  if (a->convolve) {
    a->kh = k->len, a->kw = k->dim;
    a->above = a->causal ? a->kh - 1 : (a->kh - 1) / 2;
  }
  return 1;
}

ATTN_COLD_ attn_status attn_predictive_job_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                 attn_tensor v,
                                                 const attn_predictive_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_predictive_params p;
  attn_maps_job_ a;
  attn_maps_open_(&a, o, q, k, v);
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  if (attn_predictive_check_(&e, &a, &p)) attn_maps_run_(&e, &a, &p.attention, ctx, 0, bytes);
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_predictive_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const attn_predictive_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  return attn_predictive_job_call_(o, q, k, v, params, ctx, bytes);
}
ATTN_CALL_(attn_predictive, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_predictive_params *params)
