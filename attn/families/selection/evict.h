/* families/selection/evict.h owns the choice of the keys that stay and the moving of their rows to the front. */

typedef struct attn_evict_choice_ {
  attn_tensor scores;
  attn_evict_choose_params p;
  int32_t *kept;
  int64_t each;
  char *own;
} attn_evict_choice_;

ATTN_FUNC_ void attn_evict_choice_item_(void *job, int worker, int64_t index) {
  const attn_evict_choice_ *a = (const attn_evict_choice_ *)job;
  const int64_t b = index / a->scores.heads, h = index % a->scores.heads;
  const int64_t n = attn_len_of_(a->p.kv_len, b, a->scores.len), last = n - a->p.recent;
  const int64_t stay = attn_min64_(n, a->p.capacity), best = stay - a->p.recent;
  uint64_t *list = (uint64_t *)(void *)(a->own + worker * a->each);
  int32_t *to = a->kept + index * a->p.capacity;
  if (n <= a->p.capacity) {
    for (int64_t r = 0; r < n; r++) to[r] = (int32_t)r;
  } else {
    for (int64_t j = 0; j < last; j++) {
      float x;
      memcpy(&x, attn_at_(&a->scores, b, h, j), sizeof x);
      list[j] = attn_candidate_(x, j);
    }
    attn_select_(list, last, best, list + last);
    for (int64_t r = 0; r < best; r++) to[r] = (int32_t)attn_candidate_index_(list[r]);
    attn_sort_keys_(to, best);
    for (int64_t r = best; r < stay; r++) to[r] = (int32_t)(n - stay + r);
  }
  for (int64_t r = stay; r < a->p.capacity; r++) to[r] = -1;
}

ATTN_COLD_ int attn_evict_choose_steps_(attn_stage_ *s, void *job) {
  attn_evict_choice_ *a = (attn_evict_choice_ *)job;
  a->each = attn_piece_(attn_mul_(a->scores.len, 2), 8);
  return attn_stage_for_(s, attn_mul_(a->scores.batch, a->scores.heads), attn_evict_choice_item_, a,
                         a->each, &a->own);
}

/* kept as an operand that may share memory with nothing; its elements have the size of floats. */
ATTN_COLD_ int attn_check_kept_(attn_error_ *e, attn_arguments_ *l, attn_tensor *view,
                                const int32_t *kept, int64_t batch, int64_t heads, int64_t capacity,
                                int role) {
  const int64_t any = ATTN_ANY_;
  *view = attn_bhtd(kept, ATTN_F32, batch, heads, 1, capacity);
  return attn_check_argument_(e, l, view, ATTN_WORDS_("kept"), role, any, any, any, any, "");
}

ATTN_COLD_ int attn_evict_choose_check_(attn_error_ *e, attn_evict_choice_ *a, const attn_ctx *ctx,
                                        int query) {
  const int64_t any = ATTN_ANY_;
  attn_evict_choose_params *p = &a->p;
  attn_arguments_ l;
  attn_tensor kept;
  attn_span_ len;
  attn_clear_(&l, sizeof l);
  if (!attn_check_argument_(e, &l, &a->scores, ATTN_WORDS_IN_("scores"), ATTN_IS_F32_, any, any,
                            any, any, "scores must be f32"))
    return 0;
  if (p->capacity == 0) p->capacity = 320;
  p->recent = attn_given_or_(p->has_recent, p->recent, 64);
  if (p->recent < 0 || p->capacity <= p->recent || p->capacity > INT32_MAX)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.capacity must be above params.recent and below 2^31, recent not negative");
  if (a->scores.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "scores.len must be below 2^31");
  return attn_check_kept_(e, &l, &kept, a->kept, a->scores.batch, a->scores.heads, p->capacity,
                          ATTN_OUT_) &&
         attn_check_array_(e, p->kv_len, a->scores.batch, 4,
                           "params.kv_len must be aligned to its elements", &len) &&
         attn_check_apart_(e, ctx, l.op, l.n, &len, 1) &&
         (query || attn_check_lens_(e, p->kv_len, a->scores.batch, a->scores.len,
                                    "params.kv_len must lie in 0..scores.len"));
}

ATTN_COLD_ attn_status attn_evict_choose_call_(int32_t *kept, attn_tensor scores,
                                               const attn_evict_choose_params *params,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_evict_choice_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  if (params) a.p = *params;
  a.kept = kept, a.scores = scores;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    attn_evict_choose_check_(&e, &a, ctx, bytes != NULL);
  return attn_step_call_or_(&e, table, workers, ctx, attn_evict_choose_steps_, &a, "the best keys",
                            scores.batch == 0 || scores.heads == 0 ? "no heads" : NULL, bytes);
}
ATTN_CALL_(attn_evict_choose, (kept, scores, params), int32_t *kept, attn_tensor scores,
           const attn_evict_choose_params *params)

/* ---- moving ---------------------------------------------------------------------------------*/

/* What moves together: k, v, more, positions and scales, as tensors. */
enum { ATTN_EVICT_ROWS_ = 8 };
typedef struct attn_evict_ {
  attn_tensor rows[ATTN_EVICT_ROWS_];
  int n;
  const int32_t *kept;
  int64_t capacity, heads;
} attn_evict_;

/* Rows come in ascending order from behind, so none is written before it is read. */
ATTN_FUNC_ void attn_evict_item_(void *job, int worker, int64_t index) {
  const attn_evict_ *a = (const attn_evict_ *)job;
  const int32_t *kept = a->kept + index * a->capacity;
  (void)worker;
  for (int x = 0; x < a->n; x++) {
    const attn_tensor *t = &a->rows[x];
    const int64_t b = index / a->heads, h = index % a->heads;
    const size_t bytes = (size_t)attn_bytes_(t->dtype, t->dim);
    for (int64_t r = 0; r < a->capacity && kept[r] >= 0; r++)
      if (kept[r] != r) memcpy(attn_at_(t, b, h, r), attn_at_(t, b, h, kept[r]), bytes);
  }
}

ATTN_COLD_ int attn_evict_steps_(attn_stage_ *s, void *job) {
  attn_evict_ *a = (attn_evict_ *)job;
  return attn_stage_for_(s, attn_mul_(a->rows[0].batch, a->heads), attn_evict_item_, a, 0, NULL);
}

/* A tensor that moves, with its scales. */
ATTN_COLD_ int attn_evict_take_(attn_error_ *e, attn_evict_ *a, attn_arguments_ *l, attn_tensor *t,
                                attn_scales *s, const char *w, const attn_scales_words_ *ws) {
  attn_operand_ *p = &l->op[l->n++];
  attn_span_ span[2];
  p->t = t, p->w = w, p->role = ATTN_OUT_;
  if (!attn_check_stored_(e, t, w, &p->span) || !attn_check_rows_(e, t, w) ||
      !attn_check_scales_(e, s, t, ws, 1, span))
    return 0;
  a->rows[a->n++] = *t;
  for (int i = 0; i < 2; i++) {
    float *data = i ? s->zero : s->scale;
    if (!data || span[i].lo == span[i].hi) continue;
    p = &l->op[l->n++], p->t = t, p->role = ATTN_OUT_, p->span = span[i];
    p->w = i ? ws->zero : ws->scale;
    a->rows[a->n++] = attn_scales_view_(s, data, t, attn_scale_groups_(s, t->dim));
  }
  return 1;
}

ATTN_COLD_ int attn_evict_kept_(attn_error_ *e, const attn_evict_ *a) {
  const int64_t all = a->rows[0].batch * a->heads, len = a->rows[0].len;
  for (int64_t x = 0; x < all; x++)
    for (int64_t r = 0; r < a->capacity; r++) {
      const int32_t *at = a->kept + x * a->capacity + r;
      if (*at < -1 || *at >= len || (r > 0 && (*at >= 0 ? *at <= at[-1] || at[-1] < 0 : 0)))
        return attn_reject_(e, ATTN_E_INDEX,
                            "kept must ascend in 0..k.len-1, with -1 behind the last");
    }
  return 1;
}

ATTN_COLD_ int attn_evict_check_(attn_error_ *e, attn_evict_ *a, attn_tensor *k, attn_tensor *v,
                                 attn_evict_params *p, const attn_ctx *ctx, int query) {
  static const char wk[] = ATTN_WORDS_("k"), wv[] = ATTN_WORDS_("v");
  static const attn_scales_words_ sk = ATTN_SCALES_WORDS_("params.k_scales", "k"),
                                  sv = ATTN_SCALES_WORDS_("params.v_scales", "v");
  const int64_t any = ATTN_ANY_;
  attn_arguments_ l;
  attn_tensor kept, places;
  attn_clear_(&l, sizeof l);
  if (!attn_evict_take_(e, a, &l, k, &p->k_scales, wk, &sk)) return 0;
  a->heads = k->heads;
  if (v->data) {
    if (v->batch != k->batch || v->heads != k->heads || v->len != k->len)
      return attn_reject_(e, ATTN_E_SHAPE, "v must be [k.batch, k.heads, k.len, .]");
    if (!attn_evict_take_(e, a, &l, v, &p->v_scales, wv, &sv)) return 0;
  }
  if (a->capacity < 1 || a->capacity > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "capacity must lie in 1..2^31-1");
  if (!attn_check_kept_(e, &l, &kept, a->kept, k->batch, k->heads, a->capacity, 0) ||
      !attn_check_argument_(e, &l, &p->more, ATTN_WORDS_("params.more"), ATTN_OUT_ | ATTN_OPTIONAL_,
                            k->batch, k->heads, k->len, any,
                            "params.more must be [k.batch, k.heads, k.len, .]"))
    return 0;
  if (p->more.data) a->rows[a->n++] = p->more;
  places = attn_bhtd(p->positions, ATTN_F32, k->batch, k->heads, k->len, 1);
  if (!attn_check_argument_(e, &l, &places, ATTN_WORDS_("params.positions"),
                            ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""))
    return 0;
  if (p->positions) a->rows[a->n++] = places;
  return attn_check_apart_(e, ctx, l.op, l.n, NULL, 0) && (query || attn_evict_kept_(e, a));
}

ATTN_COLD_ attn_status attn_evict_call_(attn_tensor k, attn_tensor v, const int32_t *kept,
                                        int64_t capacity, const attn_evict_params *params,
                                        attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_evict_params p;
  attn_evict_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a), attn_clear_(&p, sizeof p);
  if (params) p = *params;
  a.kept = kept, a.capacity = capacity;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    attn_evict_check_(&e, &a, &k, &v, &p, ctx, bytes != NULL);
  return attn_step_call_or_(&e, table, workers, ctx, attn_evict_steps_, &a, "rows to the front",
                            k.batch == 0 || k.heads == 0 || k.len == 0 ? "no rows" : NULL, bytes);
}
ATTN_CALL_(attn_evict, (k, v, kept, capacity, params), attn_tensor k, attn_tensor v,
           const int32_t *kept, int64_t capacity, const attn_evict_params *params)
