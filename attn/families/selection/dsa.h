/* families/selection/dsa.h owns attention to keys that an indexer chooses (M3): the indexer's scores, 64 queries at a
 * time, and the lists that all heads share. */

typedef struct attn_dsa_job_ {
  attn_softmax_ f; /* the call as attn_sdpa would see it */
  attn_dsa_params p;
  attn_paged_ ki;
  attn_topk_ search;
  attn_edges_params lists;
  attn_listed_ listed;
  int64_t *indptr;
  int32_t *col;
  char *memory;
  int64_t each, at_q, at_k, at_s, at_w;
} attn_dsa_job_;

/* What row i of entry b sees, and chooses. */
ATTN_FUNC_ int64_t attn_dsa_sees_(const attn_dsa_job_ *a, int64_t b, int64_t i) {
  return attn_clamp_(i + attn_pick_off_(&a->f, b) + 1, 0, attn_pick_keys_(&a->f, b));
}

ATTN_FUNC_ void attn_dsa_count_(void *job, int worker, int64_t b) {
  const attn_dsa_job_ *a = (const attn_dsa_job_ *)job;
  int64_t *ptr = a->indptr + b * (a->f.q.len + 1);
  (void)worker;
  ptr[0] = 0;
  for (int64_t i = 0; i < a->f.q.len; i++) {
    const int64_t sees = attn_dsa_sees_(a, b, i);
    ptr[i + 1] = ptr[i] + (sees < a->p.k ? sees : a->p.k);
  }
}

/* Scores of keys j .. j + n - 1, none of -inf: such a key is chosen before none. */
ATTN_FUNC_ void attn_dsa_scores_(const attn_dsa_job_ *a, attn_topk_ *t, char *memory, int64_t b,
                                 int64_t j, int64_t n) {
  const attn_table_ *f = a->search.table;
  const attn_tensor *ki = &a->ki.x;
  const attn_scales *by_key = &a->ki.scales;
  const int64_t di = ki->dim, heads = a->p.qi.heads;
  const float *q = (const float *)(const void *)(memory + a->at_q),
              *w = (const float *)(const void *)(memory + a->at_w);
  float *s = (float *)(void *)(memory + a->at_s), *wide = (float *)(void *)(memory + a->at_k),
        top[ATTN_TILE_] = {0}, scale[ATTN_PICK_];
  const int after = by_key->scale && !by_key->zero && !by_key->group;
  const float *k = wide;
  int64_t stride = di;
  if (ki->dtype != ATTN_F32 || a->ki.held)
    attn_paged_widen_(f, &a->ki, wide, after ? scale : NULL, b, 0, j, n);
  else
    k = (const float *)(const void *)attn_at_(ki, b, 0, j), stride = ki->stride_len;
  memset(t->s, 0, (size_t)(n * ATTN_TILE_) * sizeof(float));
  for (int64_t h = 0; h < heads; h++) {
    float by[ATTN_TILE_], sum[ATTN_TILE_]; /* local: compilers then know that nothing overlaps */
    memcpy(by, w + h * ATTN_TILE_, sizeof by);
    attn_on_(tile, f)->score_block(s, q + h * di * ATTN_TILE_, k, stride, n, di, 0, t->groups, top);
    for (int64_t e = 0; e < n; e++) {
      const float *x = s + e * ATTN_TILE_;
      memcpy(sum, t->s + e * ATTN_TILE_, sizeof sum);
      for (int r = 0; r < ATTN_TILE_; r++) sum[r] += by[r] * (x[r] < 0.0f ? 0.0f : x[r]);
      memcpy(t->s + e * ATTN_TILE_, sum, sizeof sum);
    }
  }
  for (int64_t e = 0; e < n; e++) {
    const float x = after ? scale[e] : 1.0f;
    for (int r = 0; r < ATTN_TILE_; r++) {
      const float y = t->s[e * ATTN_TILE_ + r] * x;
      t->s[e * ATTN_TILE_ + r] = y < -FLT_MAX ? -FLT_MAX : y;
    }
  }
}

/* The keys of 64 queries. */
ATTN_FUNC_ void attn_dsa_item_(void *job, int worker, int64_t item) {
  const attn_dsa_job_ *a = (const attn_dsa_job_ *)job;
  const attn_tensor *qi = &a->p.qi;
  const int64_t tiles = attn_tiles_of_(a->f.q.len), b = item / tiles,
                i0 = item % tiles * ATTN_TILE_;
  const int64_t left = a->f.q.len - i0, *ptr = a->indptr + b * (a->f.q.len + 1) + i0;
  const int n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  int64_t lo[ATTN_TILE_] = {0}, sees[ATTN_TILE_] = {0}, end = 0;
  const void *row[ATTN_TILE_] = {NULL};
  char *memory = a->memory + worker * a->each;
  attn_topk_ t = a->search;
  for (int r = 0; r < n; r++) {
    sees[r] = attn_dsa_sees_(a, b, i0 + r);
    if (sees[r] > end) end = sees[r];
    row[r] = attn_at_(qi, b, 0, i0 + r);
  }
  attn_topk_open_(&t, memory, row, n, qi->dtype, 1.0f);
  attn_pick_open_(&t);
  for (int64_t h = 0; end > a->p.k && h < qi->heads; h++) {
    float *q = (float *)(void *)(memory + a->at_q) + h * qi->dim * ATTN_TILE_;
    float *w = (float *)(void *)(memory + a->at_w) + h * ATTN_TILE_;
    for (int r = 0; r < n; r++) row[r] = attn_at_(qi, b, h, i0 + r);
    t.table->pack(q, row, n, qi->dim, (int)qi->dtype, 1.0f, attn_least_(1.0f));
    for (int r = 0; r < ATTN_TILE_; r++)
      w[r] = r < n ? attn_number_(attn_at_(&a->p.wi, b, 0, i0 + r), h, a->p.wi.dtype, NULL) : 0.0f;
  }
  for (int64_t j = 0; end > a->p.k && j < end; j += ATTN_PICK_) {
    const int64_t m = end - j < ATTN_PICK_ ? end - j : (int64_t)ATTN_PICK_;
    attn_dsa_scores_(a, &t, memory, b, j, m);
    attn_pick_take_(&t, m, j, lo, sees);
  }
  for (int r = 0; r < n; r++) {
    int32_t *to = a->col + b * a->lists.edges + ptr[r];
    const int64_t many = ptr[r + 1] - ptr[r];
    if (sees[r] > a->p.k)
      attn_pick_write_(&t, r, to, 0, many);
    else
      for (int64_t e = 0; e < many; e++) to[e] = (int32_t)e;
    for (int64_t e = 0; a->p.index && e < a->p.k; e++)
      a->p.index[(b * a->f.q.len + i0 + r) * a->p.k + e] = e < many ? to[e] : -1;
  }
}

ATTN_COLD_ int attn_dsa_steps_(attn_stage_ *s, void *job) {
  attn_dsa_job_ *a = (attn_dsa_job_ *)job;
  const attn_softmax_ *f = &a->f;
  attn_softmax_ attend;
  const int64_t tq = f->q.len, heads = a->p.qi.heads, most = a->p.k < f->k.len ? a->p.k : f->k.len;
  memset(&a->lists, 0, sizeof a->lists);
  memset(&a->listed, 0, sizeof a->listed);
  a->lists.per_batch = 1, a->lists.edges = attn_mul_(tq, most);
  a->indptr = (int64_t *)attn_stage_take_(s, attn_mul_(f->q.batch, attn_add_(tq, 1)), 8);
  a->col = (int32_t *)attn_stage_take_(s, attn_mul_(f->q.batch, a->lists.edges), 4);
  a->lists.indptr = a->indptr, a->lists.col = a->col;
  a->listed.lists = &a->lists;
  attn_topk_plan_(&a->search, s->table, a->p.qi.dim, most > 0 ? most : 1, ATTN_F32, 0);
  a->at_q = a->search.bytes;
  a->at_k =
      attn_add_(a->at_q, attn_piece_(attn_mul_(attn_mul_(heads, a->p.qi.dim), ATTN_TILE_), 4));
  a->at_s = attn_add_(a->at_k, attn_piece_(attn_mul_(a->p.qi.dim, ATTN_PICK_), 4));
  a->at_w = attn_add_(a->at_s, attn_piece_((int64_t)ATTN_PICK_ * ATTN_TILE_, 4));
  a->each = attn_add_(a->at_w, attn_piece_(attn_mul_(heads, ATTN_TILE_), 4));
  if (!attn_stage_for_(s, f->q.batch, attn_dsa_count_, a, 0, NULL) ||
      !attn_stage_for_(s, attn_mul_(f->q.batch, attn_tiles_of_(tq)), attn_dsa_item_, a, a->each,
                       &a->memory))
    return 0;
  attn_problem_clear_(&attend);
  attend.o = f->o, attend.q = f->q, attend.k = f->k, attend.v = f->v;
  return attn_stage_listed_(s, &attend, &a->p.attention, &a->listed);
}

/* Keys of the indexer in pages. */
ATTN_COLD_ int attn_dsa_pages_(attn_error_ *e, attn_dsa_job_ *a, const attn_ctx *ctx, int data) {
  static const char w[] = ATTN_WORDS_("o");
  const attn_dsa_params *p = &a->p;
  attn_tensor *const t[] = {&a->f.o, &a->f.lse};
  const int64_t lists = attn_mul_(a->f.q.batch, attn_mul_(a->f.q.len, p->k));
  attn_span_ out[4];
  memset(out, 0, sizeof out);
  if (!p->attention.cache || p->ki.data || p->ki_scales.scale || p->ki_scales.zero)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.ki_cache goes with params.attention.cache, and without ki");
  for (int i = 0; i < 2; i++)
    if (t[i]->data && !attn_check_tensor_(e, t[i], w, &out[i])) return 0;
  if (!attn_check_array_(e, p->index, lists, 4, "params.index must be aligned to its elements",
                         &out[2]) ||
      !attn_check_workspace_(e, ctx, &out[3]) ||
      !attn_paged_check_(e, &a->ki, p->ki_cache, p->ki_sequences, a->f.q.batch, out, 4, data))
    return 0;
  if (a->ki.x.heads != 1 || a->ki.x.dim != p->qi.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "params.ki_cache.k must have one head, di wide");
  for (int64_t b = 0; b < a->f.q.batch; b++)
    if (p->ki_sequences[b].len != p->attention.sequences[b].len)
      return attn_reject_(
          e, ATTN_E_RANGE,
          "params.ki_sequences must have the lengths of params.attention.sequences");
  return 1;
}

ATTN_COLD_ int attn_dsa_check_(attn_error_ *e, attn_dsa_job_ *a, const attn_dsa_params *p,
                               const attn_ctx *ctx, int *workers, int query) {
  static const char wki[] = ATTN_WORDS_("params.ki");
  static const attn_scales_words_ wks = ATTN_SCALES_WORDS_("params.ki_scales", "params.ki");
  attn_spans_ all;
  attn_span_ *key;
  all.n = 0, key = attn_spans_more_(&all, 1);
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the indexer");
  a->p = *p;
  if (p->k < 1) return attn_reject_(e, ATTN_E_RANGE, "params.k must be at least 1");
  if (!attn_selected_plan_(e, &a->f, &p->attention, ctx, workers, !query)) return 0;
  attn_softmax_ *f = &a->f;
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {ATTN_OPERAND_(&a->p.qi, "params.qi", 0, f->q.batch, any, f->q.len, any,
                                      "params.qi must be [B, HI, Tq, di]"),
                        ATTN_OPERAND_(&a->p.wi, "params.wi", 0, f->q.batch, 1, f->q.len,
                                      p->qi.heads, "params.wi must be [B, 1, Tq, HI]")};
  if (!attn_check_given_(e, op, 2)) return 0;
  for (int i = 0; i < 2; i++) {
    if (!attn_check_operand_(e, &op[i], f->q.heads)) return 0;
    *attn_spans_more_(&all, 1) = op[i].span;
  }
  if (p->ki_cache || p->ki_sequences) {
    if (!attn_dsa_pages_(e, a, ctx, !query)) return 0;
  } else if (!attn_check_stored_(e, &a->p.ki, wki, key)) {
    return 0;
  } else if (a->p.ki.batch != f->q.batch || a->p.ki.heads != 1 || a->p.ki.len != f->k.len ||
             a->p.ki.dim != a->p.qi.dim) {
    return attn_reject_(e, ATTN_E_SHAPE, "params.ki must be [B, 1, Tk, di]");
  } else {
    a->ki.x = a->p.ki;
    if (!attn_take_scales_(e, &a->ki.scales, &p->ki_scales, &a->p.ki, &wks, &all)) return 0;
  }
  return attn_selected_apart_(e, ctx, f, &p->attention, p->index,
                              attn_mul_(f->q.batch, attn_mul_(f->q.len, p->k)), all.span, all.n);
}

ATTN_COLD_ attn_status attn_dsa_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_dsa_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_dsa_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.f.o = o, a.f.q = q, a.f.k = k, a.f.v = v;
  (void)attn_dsa_check_(&e, &a, params, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(
      &e, a.f.table, workers, ctx, attn_dsa_steps_, &a, "chosen keys, the same for all heads",
      e.status == ATTN_OK && attn_nothing_(&a.f) ? "no queries" : NULL, bytes);
}
ATTN_CALL_(attn_dsa, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_dsa_params *params)
