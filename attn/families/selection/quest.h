/* families/selection/quest.h owns attention to pages of keys (M3): the choice of pages by bounds of their scores. */

typedef struct attn_quest_job_ {
  attn_softmax_ f; /* the call as attn_sdpa would see it */
  attn_quest_params p;
  attn_key_blocks_job_ blocks;
  attn_stands_ bounds;
  attn_topk_ search;
  attn_edges_params lists;
  attn_listed_ listed;
  int64_t k; /* of a row of index */
  int64_t *indptr;
  int32_t *index, *col;
  char *memory;
} attn_quest_job_;

/* The bound of the keys from .. to of a page that row r sees in part. */
ATTN_FUNC_ float attn_quest_part_(const attn_quest_job_ *a, const attn_topk_ *t, int r, int64_t b,
                                  int64_t head, int64_t from, int64_t to, float *row) {
  const attn_softmax_ *f = &a->f;
  const int64_t dk = f->k.dim;
  float *least = row + dk, *most = least + dk, *s = most + dk, top[ATTN_TILE_] = {0};
  const attn_paged_ keys = attn_paged_keys_(f);
  for (int64_t i = from; i < to; i++) {
    attn_paged_widen_(t->table, &keys, row, NULL, b, head, i, 1);
    for (int64_t c = 0; c < dk; c++) {
      if (i == from || row[c] < least[c] || row[c] != row[c]) least[c] = row[c];
      if (i == from || row[c] > most[c] || row[c] != row[c]) most[c] = row[c];
    }
  }
  attn_on_(tile, t->table)->score_block(s, t->qt, least, 2 * dk, 1, 2 * dk, 0, t->groups, top);
  return s[r];
}

/* The pages of 64 rows of the heads that share keys, query by query. */
ATTN_FUNC_ void attn_quest_item_(void *job, int worker, int64_t item) {
  attn_quest_job_ *a = (attn_quest_job_ *)job;
  const attn_softmax_ *f = &a->f;
  const int64_t g = f->q.heads / f->k.heads, tiles = attn_tiles_of_(f->q.len * g),
                unit = item / tiles;
  const int64_t b = unit / f->k.heads, head = unit % f->k.heads, r0 = item % tiles * ATTN_TILE_,
                dk = f->q.dim;
  const int64_t left = f->q.len * g - r0, keys = attn_pick_keys_(f, b), page = a->p.page;
  const int n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  int64_t sees[ATTN_TILE_], last[ATTN_TILE_], lo[ATTN_TILE_] = {0}, hi[ATTN_TILE_] = {0}, end = 0;
  const void *row[ATTN_TILE_] = {NULL};
  char *memory =
      a->memory + worker * attn_add_(a->search.bytes, attn_piece_(3 * dk + ATTN_TILE_, 4));
  attn_topk_ t = a->search;
  for (int r = 0; r < n; r++) {
    const int64_t i = (r0 + r) / g;
    sees[r] = attn_clamp_(i + attn_pick_off_(f, b) + 1, 0, keys);
    last[r] = attn_pick_block_(sees[r] - 1, page);
    hi[r] = a->p.last_competes ? last[r] + 1 : last[r] < 0 ? 0 : last[r];
    if (hi[r] > end) end = hi[r];
    row[r] = attn_at_(&f->q, b, head * g + (r0 + r) % g, i);
  }
  /* q kmin where q < 0, q kmax where q > 0: one product of twice the width */
  t.dim = dk;
  attn_topk_open_(&t, memory, row, n, f->q.dtype, 1.0f);
  t.dim = 2 * dk;
  for (int64_t c = 0; c < dk * ATTN_TILE_; c++) {
    const float x = t.qt[c];
    t.qt[c] = x < 0.0f ? x : 0.0f, t.qt[dk * ATTN_TILE_ + c] = x > 0.0f ? x : 0.0f;
  }
  attn_pick_open_(&t);
  for (int64_t j = 0; j < end; j += ATTN_PICK_) {
    const int64_t m = end - j < ATTN_PICK_ ? end - j : (int64_t)ATTN_PICK_;
    attn_pick_scores_(&t, &a->bounds, b, head, j, m);
    for (int r = 0; r < n; r++) { /* a page of a cache that is not full has no bounds yet */
      const int64_t e = last[r] - j, stop = attn_add_(attn_mul_(last[r], page), page);
      const int64_t known = a->bounds.held ? stop : attn_min64_(stop, keys);
      if (e < 0 || e >= m || last[r] >= hi[r] || sees[r] >= known) continue;
      t.s[e * ATTN_TILE_ + r] = attn_quest_part_(a, &t, r, b, head, last[r] * page, sees[r],
                                                 (float *)(void *)(memory + a->search.bytes));
    }
    attn_pick_take_(&t, m, j, lo, hi);
  }
  for (int r = 0; r < n; r++) {
    const int64_t h = head * g + (r0 + r) % g, i = (r0 + r) / g;
    int32_t *to = a->index + ((b * f->q.heads + h) * f->q.len + i) * a->k;
    const int forced = !a->p.last_competes && last[r] >= 0;
    if (forced) to[0] = (int32_t)last[r];
    attn_pick_write_(&t, r, to, forced, a->k);
  }
}

/* Pages of one (batch, head) as keys. */
ATTN_FUNC_ void attn_quest_lists_(void *job, int worker, int64_t unit) {
  const attn_quest_job_ *a = (const attn_quest_job_ *)job;
  const attn_softmax_ *f = &a->f;
  const int64_t keys = attn_pick_keys_(f, unit / f->q.heads), page = a->p.page,
                off = attn_pick_off_(f, unit / f->q.heads);
  int64_t *ptr = a->indptr + unit * (f->q.len + 1), at = 0;
  int32_t *col = a->col + unit * a->lists.edges;
  (void)worker;
  ptr[0] = 0;
  for (int64_t i = 0; i < f->q.len; i++) {
    const int32_t *pages = a->index + (unit * f->q.len + i) * a->k;
    const int64_t sees = attn_clamp_(i + off + 1, 0, keys);
    for (int64_t e = 0; e < a->k && pages[e] >= 0; e++)
      for (int64_t j = pages[e] * page; j < sees && j - pages[e] * page < page; j++)
        col[at++] = (int32_t)j;
    ptr[i + 1] = at;
  }
}

ATTN_COLD_ int attn_quest_steps_(attn_stage_ *s, void *job) {
  attn_quest_job_ *a = (attn_quest_job_ *)job;
  const attn_softmax_ *f = &a->f;
  attn_softmax_ attend;
  const int64_t units = attn_mul_(f->q.batch, f->q.heads),
                pages = attn_pick_blocks_(f->k.len, a->p.page);
  const int64_t g = f->k.heads > 0 ? f->q.heads / f->k.heads : 1,
                others = a->p.pages - !a->p.last_competes;
  const int64_t width = attn_mul_(2, f->q.dim), some = pages > 0 ? pages : 1;
  a->k = a->p.index || a->p.pages < some ? a->p.pages : some;
  a->index = a->p.index
                 ? a->p.index
                 : (int32_t *)attn_stage_take_(s, attn_mul_(units, attn_mul_(f->q.len, a->k)), 4);
  /* a row's pages have no more keys than there are */
  const int64_t most = attn_mul_(a->k, a->p.page) < f->k.len ? a->k * a->p.page : f->k.len;
  memset(&a->lists, 0, sizeof a->lists);
  a->lists.per_batch = a->lists.per_head = 1, a->lists.edges = attn_mul_(f->q.len, most);
  a->indptr = (int64_t *)attn_stage_take_(s, attn_mul_(units, attn_add_(f->q.len, 1)), 8);
  a->col = (int32_t *)attn_stage_take_(s, attn_mul_(units, a->lists.edges), 4);
  a->lists.indptr = a->indptr, a->lists.col = a->col;
  if (!attn_stage_stands_(s, &a->bounds, &a->p.bounds, &a->blocks, f, a->p.page,
                          ATTN_KEY_BLOCK_BOUNDS))
    return 0;
  attn_pick_plan_(&a->search, s->table, &a->bounds, width, attn_min64_(others, some));
  if (!attn_stage_for_(
          s, attn_mul_(attn_mul_(f->q.batch, f->k.heads), attn_tiles_of_(attn_mul_(f->q.len, g))),
          attn_quest_item_, a,
          attn_add_(a->search.bytes, attn_piece_(attn_add_(attn_mul_(3, f->q.dim), ATTN_TILE_), 4)),
          &a->memory) ||
      !attn_stage_for_(s, units, attn_quest_lists_, a, 0, NULL))
    return 0;
  attn_problem_clear_(&attend);
  attend.o = f->o, attend.q = f->q, attend.k = f->k, attend.v = f->v;
  memset(&a->listed, 0, sizeof a->listed);
  a->listed.lists = &a->lists;
  return attn_stage_listed_(s, &attend, &a->p.attention, &a->listed);
}

ATTN_COLD_ int attn_quest_check_(attn_error_ *e, attn_quest_job_ *a, const attn_quest_params *p,
                                 const attn_ctx *ctx, int *workers, int query) {
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says what a page is");
  a->p = *p;
  if (p->page == 0 && p->attention.cache) a->p.page = p->attention.cache->k.len;
  if (a->p.page < 1) return attn_reject_(e, ATTN_E_RANGE, "params.page must be at least 1");
  if (p->pages < 1) return attn_reject_(e, ATTN_E_RANGE, "params.pages must be at least 1");
  if (!attn_selected_plan_(e, &a->f, &p->attention, ctx, workers, !query)) return 0;
  attn_softmax_ *f = &a->f;
  attn_operand_ op = ATTN_OPERAND_(
      &a->p.bounds, "params.bounds", ATTN_OPTIONAL_ | ATTN_IS_F32_, f->k.batch, f->k.heads,
      attn_stands_len_(f, a->p.page), attn_mul_(2, f->k.dim),
      "params.bounds must be f32 [B, Hk, ceil(Tk / page), 2 dk], of a cache [pages, Hk, 1, 2 dk], "
      "and page then its own");
  const int64_t count = attn_mul_(attn_mul_(f->q.batch, f->q.heads), attn_mul_(f->q.len, p->pages));
  return attn_check_operand_(e, &op, f->q.heads) &&
         attn_selected_apart_(e, ctx, f, &p->attention, p->index, count, &op.span, 1);
}

ATTN_COLD_ attn_status attn_quest_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        const attn_quest_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_quest_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.f.o = o, a.f.q = q, a.f.k = k, a.f.v = v;
  (void)attn_quest_check_(&e, &a, params, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(
      &e, a.f.table, workers, ctx, attn_quest_steps_, &a, "chosen pages, as lists of keys",
      e.status == ATTN_OK && attn_nothing_(&a.f) ? "no queries" : NULL, bytes);
}
ATTN_CALL_(attn_quest, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_quest_params *params)
