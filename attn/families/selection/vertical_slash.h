/* families/selection/vertical_slash.h owns the choice of columns and diagonals by the weights of the last queries, and
 * the blocks that hold a pair of one. */

typedef struct attn_vertical_slash_ {
  attn_glance_ g;
  attn_vertical_slash_params p;
  uint8_t *mask;
  int64_t rows, columns; /* blocks of queries and of keys */
  int64_t at_column, at_offset, at_list, at_chosen, each;
  char *own;
} attn_vertical_slash_;

/* Sums of the weights of one tile, rows from `first` on. */
ATTN_FUNC_ void attn_vertical_slash_tile_(const attn_vertical_slash_ *a, char *own, int64_t b,
                                          int64_t h, int64_t first, int64_t n, float *column,
                                          float *offset) {
  const attn_table_ *f = a->g.table;
  double sum[ATTN_TILE_];
  float part[ATTN_BLOCK_];
  attn_glanced_ t;
  attn_glance_open_(&a->g, &t, own, b, h, first, n);
  for (int64_t j = 0; j < t.keys; j += ATTN_BLOCK_)
    attn_glance_weigh_(&a->g, &t, j, attn_min64_(t.keys - j, ATTN_BLOCK_), sum);
  attn_glance_close_(&t);
  for (int64_t j = 0; j < t.keys; j += ATTN_BLOCK_) {
    const int64_t m = attn_min64_(t.keys - j, ATTN_BLOCK_);
    attn_glance_columns_(&a->g, &t, j, m, part);
    for (int64_t x = 0; x < m; x++) column[j + x] += part[x];
  }
  attn_on_(tile, f)->scale_block(t.s, t.keys, 0, t.groups, t.share);
  for (int64_t j = 0; j < t.keys; j++) { /* row r of the tile has offset first + r + q_off - j */
    const int64_t past = attn_max64_(j - first - a->g.q_off, 0); /* rows before it */
    float *to = offset + (past < n ? first + past + a->g.q_off - j : 0);
    if (past < n)
      f->blend(to, to, t.s + j * ATTN_TILE_ + past, ATTN_F32, ATTN_F32, ATTN_F32, n - past, 1.0f,
               1.0f);
  }
}

/* Which blocks hold a chosen pair: for each block of keys its first chosen column, and offset by offset. */
ATTN_FUNC_ void attn_vertical_slash_mask_(const attn_vertical_slash_ *a, uint8_t *mask, int64_t b,
                                          const uint8_t *column, const uint8_t *offset, int64_t n) {
  const int64_t block = a->p.block, keys = attn_glance_keys_(&a->g, b);
  const int64_t rows = attn_glance_rows_(&a->g, b);
  for (int64_t at = 0; at < a->rows; at++, mask += a->columns) {
    const int64_t i1 = attn_min64_(rows, (at + 1) * block), p1 = i1 - 1 + a->g.q_off;
    const int64_t p0 = attn_max64_(at * block + a->g.q_off, 0);
    memset(mask, 0, (size_t)a->columns);
    if (at * block >= i1 || p1 < 0) continue;
    for (int64_t c = 0; c * block <= attn_min64_(p1, keys - 1); c++)
      for (int64_t j = c * block; j < attn_min64_((c + 1) * block, attn_min64_(p1 + 1, keys)); j++)
        if (column[j]) {
          mask[c] = 1;
          break;
        }
    for (int64_t d = 0; d <= attn_min64_(p1, n - 1); d++) {
      const int64_t lo = attn_max64_(p0 - d, 0), hi = attn_min64_(p1 - d, keys - 1);
      if (offset[d])
        for (int64_t c = lo / block; lo <= hi && c <= hi / block; c++) mask[c] = 1;
    }
  }
}

ATTN_FUNC_ void attn_vertical_slash_item_(void *job, int worker, int64_t index) {
  const attn_vertical_slash_ *a = (const attn_vertical_slash_ *)job;
  const int64_t b = index / a->g.q.heads, h = index % a->g.q.heads, room = a->g.k.len;
  const int64_t rows = attn_glance_rows_(&a->g, b), from = attn_max64_(rows - a->p.queries, 0);
  const int64_t n = attn_min64_(attn_max64_(rows + a->g.q_off, 0), attn_glance_keys_(&a->g, b));
  const int64_t far = attn_max64_(rows + a->g.q_off, 0); /* offsets that there are */
  char *own = a->own + worker * a->each;
  float *column = (float *)(void *)(own + a->at_column);
  float *offset = (float *)(void *)(own + a->at_offset);
  uint8_t *chosen = (uint8_t *)(own + a->at_chosen);
  uint64_t *list = (uint64_t *)(void *)(own + a->at_list);
  memset(column, 0, (size_t)room * sizeof *column);
  memset(offset, 0, (size_t)room * sizeof *offset);
  for (int64_t first = from; first < rows; first += ATTN_TILE_)
    attn_vertical_slash_tile_(a, own, b, h, first, attn_min64_(rows - first, ATTN_TILE_), column,
                              offset);
  for (int64_t j = 0; j < room; j++) {
    column[j] = attn_one_nan_(column[j]), offset[j] = attn_one_nan_(offset[j]);
    chosen[j] = j < a->p.sink, chosen[room + j] = j < a->p.near_by;
  }
  attn_cover_(chosen, column, n, a->p.gamma, list);
  attn_cover_(chosen + room, offset, far, a->p.gamma, list);
  attn_vertical_slash_mask_(a, a->mask + index * a->rows * a->columns, b, chosen, chosen + room,
                            far);
  if (a->p.columns.data)
    memcpy(attn_at_(&a->p.columns, b, h, 0), column, (size_t)room * sizeof *column);
  if (a->p.offsets.data)
    memcpy(attn_at_(&a->p.offsets, b, h, 0), offset, (size_t)room * sizeof *offset);
}

ATTN_COLD_ int attn_vertical_slash_steps_(attn_stage_ *s, void *job) {
  attn_vertical_slash_ *a = (attn_vertical_slash_ *)job;
  const int64_t keys = a->g.k.len;
  attn_glance_plan_(&a->g, s->table, a->p.scale, 1.0);
  a->at_column = a->g.bytes;
  a->at_offset = attn_add_(a->at_column, attn_piece_(keys, 4));
  a->at_list = attn_add_(a->at_offset, attn_piece_(keys, 4));
  a->at_chosen = attn_add_(a->at_list, attn_piece_(attn_mul_(keys, 2), 8));
  a->each = attn_add_(a->at_chosen, attn_piece_(attn_mul_(keys, 2), 1));
  for (int64_t b = 0; s->run && b < a->g.q.batch; b++)
    s->pairs +=
        attn_glance_pairs_(&a->g, b, attn_max64_(attn_glance_rows_(&a->g, b) - a->p.queries, 0));
  return attn_stage_for_(s, attn_mul_(a->g.q.batch, a->g.q.heads), attn_vertical_slash_item_, a,
                         a->each, &a->own);
}

ATTN_COLD_ int attn_vertical_slash_check_(attn_error_ *e, attn_vertical_slash_ *a,
                                          attn_arguments_ *l, const attn_ctx *ctx, int query) {
  static const char sums[] = "params.columns and .offsets must be f32 [q.batch, q.heads, 1, k.len]";
  attn_vertical_slash_params *p = &a->p;
  attn_span_ spans[3];
  a->g.q_len = p->q_len, a->g.kv_len = p->kv_len, a->g.q_off = p->q_off, a->g.cell = 1;
  if (!attn_glance_check_(e, &a->g, l, spans, p->scale) ||
      !attn_glance_check_off_(e, &a->g, p->has_q_off))
    return 0;
  if (p->block == 0) p->block = 64;
  if (p->queries == 0) p->queries = 64;
  p->sink = attn_given_or_(p->has_sink, p->sink, 30);
  p->near_by = attn_given_or_(p->has_near_by, p->near_by, 100);
  if (p->block < 1 || p->block > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "params.block must be positive and below 2^31");
  if (p->queries < 0 || p->sink < 0 || p->near_by < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "params.queries, .sink and .near_by must not be negative");
  a->rows = attn_runs_of_(a->g.q.len, p->block), a->columns = attn_runs_of_(a->g.k.len, p->block);
  if (a->g.k.len == 0) p->columns.data = p->offsets.data = NULL;
  const int role = ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_;
  return attn_cover_gamma_(e, &p->gamma) &&
         attn_check_argument_(e, l, &p->columns, ATTN_WORDS_("params.columns"), role, l->batch,
                              l->heads, 1, a->g.k.len, sums) &&
         attn_check_argument_(e, l, &p->offsets, ATTN_WORDS_("params.offsets"), role, l->batch,
                              l->heads, 1, a->g.k.len, sums) &&
         attn_mask_check_(e, a->mask, l, a->rows, a->columns, ctx, spans) &&
         (query || attn_glance_lens_(e, &a->g));
}

ATTN_COLD_ attn_status attn_vertical_slash_call_(uint8_t *mask, attn_tensor q, attn_tensor k,
                                                 const attn_vertical_slash_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_arguments_ l;
  attn_vertical_slash_ a;
  int workers = 1;
  attn_clear_(&l, sizeof l), attn_clear_(&a, sizeof a);
  if (params) a.p = *params;
  a.mask = mask, a.g.q = q, a.g.k = k;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    attn_vertical_slash_check_(&e, &a, &l, ctx, bytes != NULL);
  return attn_step_call_or_(
      &e, table, workers, ctx, attn_vertical_slash_steps_, &a, "columns and diagonals",
      attn_mul_(q.batch, attn_mul_(a.rows, a.columns)) ? NULL : "no blocks", bytes);
}
ATTN_CALL_(attn_vertical_slash, (mask, q, k, params), uint8_t *mask, attn_tensor q, attn_tensor k,
           const attn_vertical_slash_params *params)
