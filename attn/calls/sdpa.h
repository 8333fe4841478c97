/* calls/sdpa.h owns family A (with ALiBi, which is a field of it): argument checks and the
 * translation of parameters into the exact-softmax engine's terms. */

ATTN_FUNC_ int64_t attn_gcd_(int64_t a, int64_t b) {
  while (a != b && b) { /* most are alike */
    int64_t r = a % b;
    a = b, b = r;
  }
  return a;
}

ATTN_FUNC_ int attn_check_window_(attn_error_ *e, const attn_window *w) {
  if (!w->on && (w->left || w->right))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.window has left or right without on = 1: use attn_window_of");
  if (w->left < -1 || w->right < -1)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.window.left and right must be -1 (unlimited) or not negative");
  return 1;
}

/* A side of a window as a distance; a quarter of INT64_MAX is beyond every position. */
ATTN_FUNC_ int64_t attn_reach_(const attn_window *w, int64_t side) {
  const int64_t far = INT64_MAX / 4;
  return w->on && side >= 0 && side < far ? side : far;
}

/* Where queries sit: what the fields say about it. Reads no array. */
ATTN_FUNC_ int attn_check_places_(attn_error_ *e, const attn_sdpa_params *p) {
  if (p->causal < 0 || p->causal >= (int)ATTN_CAUSALS)
    return attn_reject_(e, ATTN_E_RANGE, "params.causal must be an attn_causal: 0, 1 or 2");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (p->q_offs && p->has_q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_offs must be null with params.has_q_off");
  if (p->align_lengths && (p->has_q_off || p->q_offs || p->causal == ATTN_CAUSAL_START))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.align_lengths aligns ends: without has_q_off, q_offs and "
                        "ATTN_CAUSAL_START");
  return attn_check_window_(e, &p->window);
}

/* The q_off of a call that has one. */
ATTN_FUNC_ int64_t attn_q_off_(const attn_sdpa_params *p, int64_t queries, int64_t keys) {
  return p->has_q_off ? p->q_off : p->causal == ATTN_CAUSAL_START ? 0 : keys - queries;
}

/* An additive mask has no NaN and no +inf. Distinct entries are read once. */
ATTN_FUNC_ int attn_check_bias_(attn_error_ *e, const attn_table_ *table, const attn_mask *m) {
  float x[ATTN_BLOCK_];
  for (int64_t b = 0; b < m->batch; b++)
    for (int64_t h = 0; h < m->heads; h++)
      for (int64_t i = 0; i < m->q_len; i++)
        for (int64_t j = 0; j < m->k_len; j += ATTN_BLOCK_) {
          const int64_t n = m->k_len - j < ATTN_BLOCK_ ? m->k_len - j : ATTN_BLOCK_;
          const char *row = attn_mask_at_(m, b, h, i) + j * attn_size_(m->dtype);
          table->widen(x, row, 0, NULL, 1, n, m->dtype, NULL);
          for (int64_t c = 0; c < n; c++)
            if (!(x[c] < INFINITY))
              return attn_reject_(e, ATTN_E_VALUE, "params.bias holds NaN or +inf");
        }
  return 1;
}

ATTN_FUNC_ int attn_check_logits_(attn_error_ *e, const float *x, int64_t n, int finite,
                                  const char *reason) {
  if (x)
    for (int64_t i = 0; i < n; i++)
      if (!(x[i] < INFINITY) || (finite && x[i] == -INFINITY))
        return attn_reject_(e, ATTN_E_VALUE, reason);
  return 1;
}

ATTN_FUNC_ int attn_check_lens_(attn_error_ *e, const int32_t *len, int64_t n, int64_t most,
                                const char *reason) {
  if (len)
    for (int64_t b = 0; b < n; b++)
      if (len[b] < 0 || len[b] > most) return attn_reject_(e, ATTN_E_RANGE, reason);
  return 1;
}

/* params.mask and params.bias of a call with these extents; of_new: the mask is of new tokens alone. */
ATTN_FUNC_ int attn_check_masks_(attn_error_ *e, const attn_mask *mask, const attn_mask *bias,
                                 const int64_t full[4], int of_new, attn_span_ *mask_span,
                                 attn_span_ *bias_span) {
  static const attn_mask_words_ wmask = {
      "params.mask.kind must be ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.mask.data must not be null",
      "params.mask.dtype is not used",
      "params.mask must have extents 1 or [batch, heads, q_len, k_len], with mask_new q_len twice",
      "params.mask spans more bytes than the address space holds",
      "params.mask.data alignment"};
  static const attn_mask_words_ wbias = {
      "params.bias.kind must be ATTN_MASK_NONE or ATTN_MASK_ADD",
      "params.bias.data must not be null",
      "params.bias.dtype must be ATTN_F32, ATTN_F16 or ATTN_BF16",
      "params.bias must have extents 1 or [batch, heads, q_len, k_len]",
      "params.bias spans more bytes than the address space holds",
      "params.bias.data must be aligned to its elements"};
  const unsigned flags = 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS;
  const int64_t own[4] = {full[0], full[1], full[2], full[of_new ? 2 : 3]};
  if (of_new && mask->kind && mask->k_len != full[2])
    return attn_reject_(e, ATTN_E_MASK, wmask.extent);
  return attn_check_mask_(e, mask, &wmask, flags, own, mask_span) &&
         attn_check_mask_(e, bias, &wbias, 1u << ATTN_MASK_ADD, full, bias_span);
}

/* The scales of x, which only quantised rows have. */
ATTN_FUNC_ int attn_take_scales_(attn_error_ *e, attn_scales *to, const attn_scales *s,
                                 const attn_tensor *x, const attn_scales_words_ *w,
                                 attn_spans_ *all) {
  if (!attn_quantized_(x->dtype) && !s->scale && !s->zero) return 1;
  *to = *s;
  return attn_check_scales_(e, to, x, w, 0, attn_spans_more_(all, 2));
}

/* What the map holds, and whether weights may be changed. */
ATTN_FUNC_ int attn_map_stage_take_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *p) {
  const int inside = ATTN_TERM_RELATIVE_ | ATTN_TERM_QUERIES_ | ATTN_TERM_XL_ | ATTN_TERM_LABELS_ |
                     ATTN_TERM_FACTOR_;
  if ((int)p->map_stage < 0 || p->map_stage >= ATTN_MAP_STAGES)
    return attn_reject_(e, ATTN_E_RANGE, "params.map_stage must be an attn_map_stage");
  const int last = p->map_stage == ATTN_MAP_CAPPED && a->cap_last;
  if (last && (a->terms & (ATTN_TERM_MODIFY_ | ATTN_TERM_SPAN_)))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.map_stage: ATTN_MAP_CAPPED has no modify or span with ATTN_SOFTCAP_BIASED");
  if (p->map_stage == ATTN_MAP_CAPPED && !last && (a->terms & inside))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.map_stage: ATTN_MAP_CAPPED has no relative.keys or queries, xl, labels or factor");
  if (p->modify_weights && (a->reshape || a->choice || a->edges))
    return attn_reject_(e, ATTN_E_RANGE, "params.modify_weights must be absent in this call");
  if (p->modify_weights && a->map.data && p->map_stage != ATTN_MAP_WEIGHTS)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.modify_weights wants a map of ATTN_MAP_WEIGHTS, or none");
  a->map_scores = p->map_stage == ATTN_MAP_SCORES || last;
  a->map_dropped = p->map_stage == ATTN_MAP_DROPPED && attn_drops_(a);
  if (a->map_scores || p->map_stage == ATTN_MAP_WEIGHTS || p->map_stage == ATTN_MAP_DROPPED)
    return 1;
  a->raw = a->map, a->map.data = NULL;
  a->raw_cap = p->map_stage == ATTN_MAP_CAPPED ? p->softcap : 0.0f;
  if (a->raw_cap > 0.0f && a->raw_cap < FLT_MIN) a->raw_cap = FLT_MIN;
  return 1;
}

/* Every rule of attn_sdpa for a, which holds the four tensors, for what reshapes it, and addends, and
 * the rest of the engine's problem. data = 0 leaves out what would read arrays (the workspace
 * query); data = -1 also what compares addresses, since some are not known yet. */
ATTN_FUNC_ int attn_sdpa_plan_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *params,
                               const attn_ctx *ctx, int *workers, int data) {
  static const char wo[] = ATTN_WORDS_("o"), wq[] = ATTN_WORDS_("q"), wk[] = ATTN_WORDS_("k"),
                    wv[] = ATTN_WORDS_("v"), wl[] = ATTN_WORDS_("params.lse"),
                    wm[] = ATTN_WORDS_("params.map");
  static const attn_scales_words_ wks = ATTN_SCALES_WORDS_("params.k_scales", "k"),
                                  wvs = ATTN_SCALES_WORDS_("params.v_scales", "v");
  static const attn_sdpa_params none ATTN_ZEROS_;
  const attn_sdpa_params *p = params ? params : &none;
  const int has_lse = p->lse.data != NULL, has_map = p->map.data != NULL && a->k.len > 0;
  enum { O, LSE, MAP, OUTPUTS, Q = OUTPUTS, K, V, MORE };
  attn_spans_ all; /* the outputs first */
  attn_span_ *span = all.span, work;
  attn_tensor *o = &a->o, *q = &a->q, *k = &a->k, *v = &a->v, *lse = &a->lse, *map = &a->map;
  all.n = 0;
  attn_spans_more_(&all, MORE);

  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  if (!attn_check_tensor_(e, q, wq, &span[Q]) || !attn_check_stored_(e, k, wk, &span[K]) ||
      !attn_check_stored_(e, v, wv, &span[V]) || !attn_check_tensor_(e, o, wo, &span[O]))
    return 0;
  if (k->dim != q->dim) return attn_reject_(e, ATTN_E_SHAPE, "k.dim must equal q.dim");
  if (v->len != k->len) return attn_reject_(e, ATTN_E_SHAPE, "v.len must equal k.len");
  /* 0 heads of queries: no rows, whatever k and v have */
  if (q->heads > 0 && q->heads != k->heads && (k->heads < 1 || q->heads % k->heads))
    return attn_reject_(e, ATTN_E_HEADS, "k.heads must divide q.heads");
  if (q->heads > 0 && q->heads != v->heads && (v->heads < 1 || q->heads % v->heads))
    return attn_reject_(e, ATTN_E_HEADS, "v.heads must divide q.heads");
  if (o->batch != q->batch || o->heads != q->heads || o->len != q->len)
    return attn_reject_(e, ATTN_E_SHAPE, "o.batch, .heads and .len must equal those of q");
  if (o->dim != v->dim) return attn_reject_(e, ATTN_E_SHAPE, "o.dim must equal v.dim");
  if (!attn_check_rows_(e, o, wo)) return 0;
  int64_t full[4];
  if (!attn_check_sequences_(e, a, p, &all, full)) return 0;
  if (!attn_take_scales_(e, &a->k_scales, &p->k_scales, k, &wks, &all) ||
      !attn_take_scales_(e, &a->v_scales, &p->v_scales, v, &wvs, &all))
    return 0;

  const float scale = p->scale;
  if (!(scale - scale == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
  if (!attn_terms_take_(e, a, p)) return 0;
  if (!attn_check_places_(e, p)) return 0;
  if (q->len >= (int64_t)1 << 40 || k->len >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^40");
  if (p->keep < 0) return attn_reject_(e, ATTN_E_RANGE, "params.keep must not be negative");
  if (p->keep > 0 && p->schedule)
    return attn_reject_(e, ATTN_E_RANGE, "params.keep must be 0 with params.schedule");

  if (((p->mask.kind || p->bias.kind) &&
       !attn_check_masks_(e, &p->mask, &p->bias, full, p->mask_new, attn_spans_more_(&all, 1),
                          attn_spans_more_(&all, 1))) ||
      !attn_take_array_(e, p->alibi, q->heads, 4, "params.alibi must be aligned to its elements",
                        &all) ||
      !attn_take_array_(e, p->sinks, q->heads, 4, "params.sinks must be aligned to its elements",
                        &all) ||
      !attn_take_array_(e, p->kv_len, full[0], 4, "params.kv_len must be aligned to its elements",
                        &all) ||
      !attn_take_array_(e, p->q_len, q->batch, 4, "params.q_len must be aligned to its elements",
                        &all))
    return 0;
  if (has_lse) {
    *lse = p->lse;
    if (lse->dtype != ATTN_F32)
      return attn_reject_(e, ATTN_E_DTYPE, "params.lse.dtype must be ATTN_F32");
    if (!attn_check_tensor_(e, lse, wl, &span[LSE])) return 0;
    if (lse->batch != q->batch || lse->heads != q->heads || lse->len != q->len || lse->dim != 1)
      return attn_reject_(e, ATTN_E_SHAPE, "params.lse must be [q.batch, q.heads, q.len, 1]");
    if (!attn_check_rows_(e, lse, wl)) return 0;
  }
  if (has_map) {
    *map = p->map;
    if (map->dtype != ATTN_F32)
      return attn_reject_(e, ATTN_E_DTYPE, "params.map.dtype must be ATTN_F32");
    if (!attn_check_tensor_(e, map, wm, &span[MAP])) return 0;
    if (map->batch != q->batch || map->heads != q->heads || map->len != q->len ||
        map->dim != k->len)
      return attn_reject_(e, ATTN_E_SHAPE, "params.map must be [q.batch, q.heads, q.len, k.len]");
    if (!attn_check_rows_(e, map, wm)) return 0;
  }
  if (!attn_map_stage_take_(e, a, p) ||
      !(p->compute == ATTN_COMPUTE_I8
            ? attn_codes_choose_(e, a, p->compute_prefer)
            : attn_compute_take_(e, a->table, p->compute, p->compute_prefer, a->takes_low,
                                 ATTN_COMPUTE_WORDS_("params.compute"), &a->low, &a->feature)))
    return 0;
  /* what the terms' checks need of the engine's problem */
  q->len = full[2], k->len = v->len = full[3];
  a->unit = a->reshape && a->reshape->natural ? 1.0 : ATTN_LOG2E_;
  a->scale = (double)scale;
  if (scale == 0.0f && !attn_to_bits_(scale)) a->scale = 1.0 / sqrt((double)q->dim);
  a->q_off = attn_q_off_(p, q->len, k->len);
  a->kv_len = p->kv_len, a->q_len = p->q_len, a->mask_new = p->mask_new != 0;
  a->left = attn_reach_(&p->window, p->window.left);
  a->keep = !p->window.on || p->window.left < 0 ? 0 : p->keep < k->len ? p->keep : k->len;
  a->right = p->causal ? 0 : attn_reach_(&p->window, p->window.right);
  if (attn_drops_(a) &&
      !attn_check_drop_(e, &a->drop, attn_max64_(full[0], q->batch), q->heads, q->len, k->len))
    return 0;
  const int judged = ATTN_HAS_TERMS && attn_terms_any_(a->terms, p);
  if (judged && !attn_check_terms_(e, a, p, attn_spans_more_(&all, ATTN_TERMS_))) return 0;
  if (p->schedule && !ATTN_HAS_PATTERN)
    return attn_reject_(e, ATTN_E_SCHEDULE,
                        "params.schedule: ATTN_ONLY leaves out ATTN_FAMILY_PATTERN");
  if (p->schedule) {
    a->plan = attn_plan_of_(p->schedule);
    if (!a->plan)
      return attn_reject_(e, ATTN_E_SCHEDULE, "params.schedule is not a built schedule");
    if (a->plan->heads != q->heads || a->plan->q_len != q->len || a->plan->k_len != k->len ||
        a->plan->q_off != a->q_off)
      return attn_reject_(e, ATTN_E_SCHEDULE,
                          "params.schedule was built for other heads, lengths or q_off");
    attn_span_ *plan = attn_spans_more_(&all, 1);
    plan->lo = (uintptr_t)p->schedule->data;
    plan->hi = plan->lo + p->schedule->size;
  }
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  if (a->outer) {
    span[O].hi = span[O].lo, span[Q].hi = span[Q].lo;
    span[K].hi = span[K].lo, span[V].hi = span[V].lo;
    for (int x = LSE; x < all.n; x++)
      if (attn_overlap_(a->outer[0], span[x]) || attn_overlap_(a->outer[1], span[x]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "an output must not share memory with what params points at");
  }
  if (ATTN_HAS_TRAINING && a->o_stands_in) memset(&span[O], 0, sizeof span[O]);
  const int apart = data < 0 ? 0 : all.n;
  for (int i = O; i < OUTPUTS; i++)
    for (int j = i + 1; span[i].lo < span[i].hi && j < apart; j++)
      if (attn_overlap_(span[i], span[j]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            attn_says_(i == O     ? wo
                                       : i == LSE ? wl
                                                  : wm,
                                       ATTN_SAYS_OVERLAP_));
  if (ATTN_PART_(CONTENT, a->choice) && !a->choice->values)
    memset(&span[O], 0, sizeof span[O]); /* o is a stand-in */
  for (int n = 0; ATTN_PART_(CONTENT, a->choice) && data >= 0 && n < 2; n++)
    for (int y = O; y <= all.n; y++)
      if (attn_overlap_(a->choice->span[n], y < all.n ? span[y] : work) ||
          attn_overlap_(a->choice->span[0], a->choice->span[1]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            n ? "params.col must not share memory with another argument"
                              : "params.indptr must not share memory with another argument");
  for (int i = 0; i < a->besides && data >= 0; i++)
    for (int j = 0; j <= all.n; j++)
      if (attn_overlap_(a->beside[i], j < all.n ? span[j] : work))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "a gradient must not share memory with another argument");
  for (int i = 0; i < apart; i++)
    if (attn_overlap_(span[i], work))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  if (data > 0) {
    if (!attn_check_lens_(e, p->kv_len, full[0], k->len, "params.kv_len must lie in 0..k.len") ||
        !attn_check_lens_(e, p->q_len, q->batch, q->len, "params.q_len must lie in 0..q.len") ||
        !attn_check_logits_(e, p->alibi, q->heads, 1, "params.alibi must be finite") ||
        !attn_check_logits_(e, p->sinks, q->heads, 0, "params.sinks holds NaN or +inf") ||
        (judged && !attn_check_term_values_(e, a)))
      return 0;
    if (ctx && ctx->validate && p->bias.kind && q->batch && q->len && k->len &&
        !attn_check_bias_(e, a->table, &p->bias))
      return 0;
    if (ctx && ctx->validate && a->seq &&
        !attn_check_sequence_scales_(e, a, p->kv_len, wks.value, wvs.value))
      return 0;
    if (ctx && ctx->validate && !a->seq &&
        (!attn_check_scale_values_(e, &a->k_scales, k, p->kv_len, &wks) ||
         !attn_check_scale_values_(e, &a->v_scales, v, p->kv_len, &wvs)))
      return 0;
  }

  /* the rest of the engine's problem */
  if (k->len == 0) memset(&a->mask, 0, sizeof a->mask), memset(&a->bias, 0, sizeof a->bias);
  a->sinks = p->sinks, a->softmax_one = p->softmax_one != 0;
  const double s = attn_clamp_f64_(a->scale * a->unit);
  a->scale_hi = (float)s;
  a->scale_lo = (float)(s - (double)a->scale_hi);
  a->softcap = attn_to_unit_(a, p->softcap);
  /* 1 / softcap stays finite */
  if (p->softcap > 0.0f && a->softcap < FLT_MIN) a->softcap = FLT_MIN;
  /* tables of one head and rows of one head go together */
  const int by_head = p->schedule || (a->terms & ~attn_terms_with_(ATTN_TAKES_HEADS_)) ||
                      a->addends || (a->reshape && a->reshape->by_head);
  a->group = by_head || q->heads == 0
                 ? 1
                 : attn_gcd_(attn_over_(q->heads, k->heads), attn_over_(q->heads, v->heads));
  a->one_order = p->one_order;
  a->why = attn_few_plan_(a, p->one_order);
  a->phases = a->plan ? (int)a->plan->phases : 1;
  const int64_t heads = attn_max64_(q->heads, 1);
  if (attn_mul_(attn_mul_(heads, q->len), ATTN_TILE_) == INT64_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.heads * q.len is too large");
  a->tiles = (a->group * q->len + ATTN_TILE_ - 1) / ATTN_TILE_;
  if (attn_mul_(attn_mul_(a->tiles, heads), full[0]) == INT64_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.batch * q.heads * q.len is too large");
  if (a->seq) attn_sequences_count_(a);
  return 1;
}

/* Whether a problem has no query. */
ATTN_FUNC_ int attn_nothing_(const attn_softmax_ *a) {
  return a->q.batch == 0 || a->q.heads == 0 || a->q.len == 0 || (a->seq && a->seq->items == 0);
}

/* Bytes that the problem a would want, -1 when it would be rejected; data as in attn_sdpa_plan_, <= 0. */
ATTN_FUNC_ int64_t attn_problem_need_(attn_error_ *e, attn_softmax_ *a,
                                      const attn_sdpa_params *params, const attn_ctx *ctx,
                                      int data) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  if (!attn_sdpa_plan_(e, a, params, &plain, &workers, data)) return -1;
  if (attn_nothing_(a)) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  return attn_softmax_bytes_(a, workers);
}

/* The same of attn_sdpa; reshape: of what reshapes it. */
ATTN_FUNC_ int64_t attn_sdpa_need_(attn_error_ *e, attn_tensor o, attn_tensor q, attn_tensor k,
                                   attn_tensor v, const attn_sdpa_params *params,
                                   const attn_reshape_ *reshape, const attn_ctx *ctx, int data) {
  attn_softmax_ a;
  attn_problem_clear_(&a);
  a.o = o, a.q = q, a.k = k, a.v = v, a.reshape = reshape;
  a.takes_low = a.takes_drop = !reshape;
  return attn_problem_need_(e, &a, params, ctx, data);
}

ATTN_PUB_ size_t attn_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_sdpa_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const int64_t bytes = attn_sdpa_need_(&e, o, q, k, v, params, NULL, ctx, 0);
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_ attn_status attn_sdpa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_sdpa_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  attn_problem_clear_(&a);
  a.o = o, a.q = q, a.k = k, a.v = v, a.takes_low = a.takes_drop = 1;
  int workers;
  if (attn_sdpa_plan_(&e, &a, params, ctx, &workers, 1)) {
    if (attn_nothing_(&a))
      attn_report_(ctx, a.table, 1, "no-op", "no queries");
    else
      attn_softmax_run_(&e, &a, ctx, workers);
  }
  return attn_end_(ctx, &e);
}

typedef struct attn_merge_job_ {
  const attn_table_ *table;
  attn_tensor o, lse, o1, lse1, o2, lse2;
} attn_merge_job_;

/* Every rule of attn_merge. */
ATTN_FUNC_ int attn_merge_plan_(attn_error_ *e, attn_merge_job_ *m, const attn_ctx *ctx,
                                int *workers) {
  static const char *const w[6] = {ATTN_WORDS_("o"),    ATTN_WORDS_("lse"), ATTN_WORDS_("o1"),
                                   ATTN_WORDS_("lse1"), ATTN_WORDS_("o2"),  ATTN_WORDS_("lse2")};
  static const char *const shape[6] = {"",
                                       "lse must be [o.batch, o.heads, o.len, 1]",
                                       "o1 must have the shape of o",
                                       "lse1 must be [o.batch, o.heads, o.len, 1]",
                                       "o2 must have the shape of o",
                                       "lse2 must be [o.batch, o.heads, o.len, 1]"};
  static const char *const type[6] = {"", "lse.dtype must be ATTN_F32",
                                      "", "lse1.dtype must be ATTN_F32",
                                      "", "lse2.dtype must be ATTN_F32"};
  attn_tensor *t[6] = {&m->o, &m->lse, &m->o1, &m->lse1, &m->o2, &m->lse2};
  attn_span_ span[6];
  memset(span, 0, sizeof span);
  if (!attn_check_ctx_(e, ctx, &m->table, workers)) return 0;
  for (int i = 0; i < 6; i++) {
    if (i == 1 && !t[i]->data) continue;
    if (i % 2 && t[i]->dtype != ATTN_F32) return attn_reject_(e, ATTN_E_DTYPE, type[i]);
    if (!attn_check_tensor_(e, t[i], w[i], &span[i])) return 0;
    if (i && (t[i]->batch != m->o.batch || t[i]->heads != m->o.heads || t[i]->len != m->o.len ||
              t[i]->dim != (i % 2 ? 1 : m->o.dim)))
      return attn_reject_(e, ATTN_E_SHAPE, shape[i]);
  }
  if (!attn_check_rows_(e, &m->o, w[0])) return 0;
  if (m->lse.data && !attn_check_rows_(e, &m->lse, w[1])) return 0;
  for (int x = 0; x < 2; x++)
    for (int y = x + 1; y < 6; y++)
      if (attn_overlap_(span[x], span[y]) && !(y >= 2 && y % 2 == x && attn_same_view_(t[x], t[y])))
        return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(w[x], ATTN_SAYS_OVERLAP_));
  return 1;
}

/* One row, given its two LSEs l and e = exp(l - max l); returns the LSE of both. */
ATTN_FUNC_ float attn_merge_row_(const attn_merge_job_ *m, void *y, const void *x1, const void *x2,
                                 const float l[2], const float e[2]) {
  const attn_table_ *f = m->table;
  const int64_t dim = m->o.dim;
  const attn_dtype to = m->o.dtype, t1 = m->o1.dtype, t2 = m->o2.dtype;
  const float nan = attn_from_bits_(0x7fc00000u), sum = e[0] + e[1];
  if (l[0] == -INFINITY && l[1] == -INFINITY) {
    f->blend(y, NULL, NULL, to, t1, t2, dim, 0.0f, 0.0f);
    return -INFINITY;
  }
  if (!(sum > 0.0f && l[0] < INFINITY && l[1] < INFINITY)) {
    f->blend(y, x1, x2, to, t1, t2, dim, nan, nan);
    return nan;
  }
  if (l[0] == -INFINITY || l[1] == -INFINITY) { /* exact identity: the other part as it is */
    const int first = l[1] == -INFINITY;
    if ((first ? t1 : t2) == to)
      memmove(y, first ? x1 : x2, (size_t)attn_bytes_(to, dim));
    else
      f->blend(y, first ? x1 : NULL, first ? NULL : x2, to, t1, t2, dim, 1.0f, 1.0f);
    return first ? l[0] : l[1];
  }
  f->blend(y, x1, x2, to, t1, t2, dim, e[0] / sum, e[1] / sum);
  return (float)((double)(l[0] > l[1] ? l[0] : l[1]) + attn_log2_(sum) * ATTN_LN2_);
}

enum { ATTN_MERGE_ROWS_ = 32 };

ATTN_FUNC_ int64_t attn_merge_runs_(int64_t len) {
  return len / ATTN_MERGE_ROWS_ + (len % ATTN_MERGE_ROWS_ != 0);
}

/* A run of rows of one head: the exponentials of all of them are taken together. */
ATTN_FUNC_ void attn_merge_item_(void *job, int worker, int64_t index) {
  const attn_merge_job_ *m = (const attn_merge_job_ *)job;
  const int64_t runs = attn_merge_runs_(m->o.len);
  const int64_t b = index / runs / m->o.heads, h = index / runs % m->o.heads;
  const int64_t first = index % runs * ATTN_MERGE_ROWS_;
  const int n = m->o.len - first < ATTN_MERGE_ROWS_ ? (int)(m->o.len - first) : ATTN_MERGE_ROWS_;
  float l[ATTN_MERGE_ROWS_][2], e[ATTN_MERGE_ROWS_][2] = {{0}};
  (void)worker;
  for (int r = 0; r < n; r++) {
    memcpy(&l[r][0], attn_at_(&m->lse1, b, h, first + r), 4);
    memcpy(&l[r][1], attn_at_(&m->lse2, b, h, first + r), 4);
    const float top = l[r][0] > l[r][1] ? l[r][0] : l[r][1];
    e[r][0] = l[r][0] - top, e[r][1] = l[r][1] - top;
  }
  m->table->exp(e[0], e[0], 2 * n);
  for (int r = 0; r < n; r++) {
    const int64_t i = first + r;
    float lse = attn_merge_row_(m, attn_at_(&m->o, b, h, i), attn_at_(&m->o1, b, h, i),
                                attn_at_(&m->o2, b, h, i), l[r], e[r]);
    if (m->lse.data) memcpy(attn_at_(&m->lse, b, h, i), &lse, 4);
  }
}

ATTN_PUB_ attn_status attn_merge(attn_tensor o, attn_tensor lse, attn_tensor o1, attn_tensor lse1,
                                 attn_tensor o2, attn_tensor lse2, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_merge_job_ m = {NULL, o, lse, o1, lse1, o2, lse2};
  int workers;
  if (attn_merge_plan_(&e, &m, ctx, &workers)) {
    const int empty = o.batch == 0 || o.heads == 0 || o.len == 0;
    int64_t items = empty ? 0 : o.batch * o.heads * attn_merge_runs_(o.len);
    workers = attn_pieces_(workers, items);
    attn_for_(ctx, workers, items, attn_merge_item_, &m);
    attn_report_(ctx, m.table, workers, "row blend", "the only path");
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_merge_workspace(attn_tensor o, attn_tensor lse, attn_tensor o1,
                                      attn_tensor lse1, attn_tensor o2, attn_tensor lse2,
                                      const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_merge_job_ m = {NULL, o, lse, o1, lse1, o2, lse2};
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  (void)attn_merge_plan_(&e, &m, &plain, &workers);
  return attn_answer_(e.status, 0);
}
