/* families/selection/xattention.h owns the choice of blocks by sums along antidiagonals: a map of cells of `stride`
 * queries and keys, whose weights are summed block by block. */

typedef struct attn_xattention_ {
  attn_glance_ g;
  attn_xattention_params p;
  uint8_t *mask;
  int64_t rows, columns; /* blocks of queries and of keys */
  int64_t cells, tall;   /* cells of a block; query blocks of an item */
  int64_t items;         /* of a head */
  int64_t at_sum, at_mass, at_row, at_list, each;
  char *own;
} attn_xattention_;

/* What one tile of cells, from cell `first` on, gives to the blocks of an item, [block][column]. */
ATTN_FUNC_ void attn_xattention_tile_(const attn_xattention_ *a, char *own, int64_t b, int64_t h,
                                      int64_t first, int64_t n, int64_t origin) {
  double *sum = (double *)(void *)(own + a->at_sum), *mass = (double *)(void *)(own + a->at_mass);
  attn_glanced_ t;
  attn_glance_open_(&a->g, &t, own, b, h, first, n);
  const int64_t columns = attn_runs_of_(t.keys, a->cells);
  for (int64_t c = 0; c < columns; c++)
    attn_glance_weigh_(&a->g, &t, c * a->cells, attn_min64_(a->cells, t.keys - c * a->cells),
                       sum + c * ATTN_TILE_);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < n; r++)
      if (t.l[r] != 0.0)
        mass[((first - origin + r) / a->cells) * a->columns + c] +=
            sum[c * ATTN_TILE_ + r] / t.l[r];
}

/* The choice of one block of queries, from its masses. */
ATTN_FUNC_ void attn_xattention_row_(const attn_xattention_ *a, char *own, int64_t b, int64_t h,
                                     int64_t at, const double *mass) {
  const int64_t unit = (b * a->g.q.heads + h) * a->rows + at, block = a->p.block;
  const int64_t keys = attn_glance_keys_(&a->g, b), i0 = at * block;
  const int64_t i1 = attn_min64_(attn_glance_rows_(&a->g, b), i0 + block);
  const int64_t p0 = attn_max64_(i0 + a->g.q_off, 0),
                p1 = attn_min64_(i1 - 1 + a->g.q_off, keys - 1);
  const int64_t n = i0 >= i1 || p1 < 0 ? 0 : p1 / block + 1;
  uint8_t *chosen = a->mask + unit * a->columns;
  float *row = (float *)(void *)(own + a->at_row);
  for (int64_t c = 0; c < a->columns; c++) {
    row[c] = attn_one_nan_((float)mass[c]);
    chosen[c] = c < n && (c == 0 || c >= p0 / block);
  }
  attn_cover_(chosen, row, n, a->p.gamma, (uint64_t *)(void *)(own + a->at_list));
  if (a->p.mass.data) memcpy(attn_at_(&a->p.mass, b, h, at), row, (size_t)a->columns * sizeof *row);
}

ATTN_FUNC_ void attn_xattention_item_(void *job, int worker, int64_t index) {
  const attn_xattention_ *a = (const attn_xattention_ *)job;
  const int64_t unit = index / a->items, b = unit / a->g.q.heads, h = unit % a->g.q.heads;
  const int64_t at = (a->items - 1 - index % a->items) * a->tall; /* the dearest first */
  const int64_t tall = attn_min64_(a->tall, a->rows - at), origin = at * a->cells;
  const int64_t end =
      attn_min64_((at + tall) * a->cells, attn_runs_of_(attn_glance_rows_(&a->g, b), a->p.stride));
  char *own = a->own + worker * a->each;
  double *mass = (double *)(void *)(own + a->at_mass);
  memset(mass, 0, (size_t)(tall * a->columns) * sizeof *mass);
  for (int64_t first = origin; first < end; first += ATTN_TILE_)
    attn_xattention_tile_(a, own, b, h, first, attn_min64_(end - first, ATTN_TILE_), origin);
  for (int64_t r = 0; r < tall; r++)
    attn_xattention_row_(a, own, b, h, at + r, mass + r * a->columns);
}

ATTN_COLD_ int attn_xattention_steps_(attn_stage_ *s, void *job) {
  attn_xattention_ *a = (attn_xattention_ *)job;
  const int64_t units = attn_mul_(a->g.q.batch, a->g.q.heads);
  attn_glance_plan_(&a->g, s->table, a->p.scale, (double)a->p.stride * (double)a->p.norm);
  a->cells = a->p.block / a->p.stride;
  a->tall = a->cells < ATTN_TILE_ ? ATTN_TILE_ / a->cells : 1;
  a->items = attn_runs_of_(a->rows, a->tall);
  a->at_sum = a->g.bytes;
  a->at_mass = attn_add_(a->at_sum, attn_piece_(attn_mul_(a->columns, ATTN_TILE_), 8));
  a->at_row = attn_add_(a->at_mass, attn_piece_(attn_mul_(a->tall, a->columns), 8));
  a->at_list = attn_add_(a->at_row, attn_piece_(a->columns, 4));
  a->each = attn_add_(a->at_list, attn_piece_(attn_mul_(a->columns, 2), 8));
  for (int64_t b = 0; s->run && b < a->g.q.batch; b++) s->pairs += attn_glance_pairs_(&a->g, b, 0);
  return attn_stage_for_(s, attn_mul_(units, a->items), attn_xattention_item_, a, a->each, &a->own);
}

/* The mask of a call, of so many blocks; lens: of q_len, kv_len, the mask. */
ATTN_COLD_ int attn_mask_check_(attn_error_ *e, const uint8_t *mask, const attn_arguments_ *l,
                                int64_t rows, int64_t columns, const attn_ctx *ctx,
                                attn_span_ spans[3]) {
  const int64_t n = attn_mul_(attn_mul_(l->batch, l->heads), attn_mul_(rows, columns));
  if (n > 0 && !mask) return attn_reject_(e, ATTN_E_NULL, "mask must not be null");
  if (!attn_check_array_(e, mask, n, 1, "", &spans[2])) return 0;
  if (!attn_span_alone_(&spans[2], l->op, l->n, spans, 2))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "mask is an output and must not share memory with another argument");
  return attn_check_apart_(e, ctx, l->op, l->n, spans, 3);
}

ATTN_COLD_ int attn_xattention_check_(attn_error_ *e, attn_xattention_ *a, attn_arguments_ *l,
                                      const attn_ctx *ctx, int query) {
  attn_xattention_params *p = &a->p;
  attn_span_ spans[3];
  a->g.q_len = p->q_len, a->g.kv_len = p->kv_len, a->g.q_off = p->q_off;
  if (!attn_glance_check_(e, &a->g, l, spans, p->scale) ||
      !attn_glance_check_off_(e, &a->g, p->has_q_off))
    return 0;
  if (p->block == 0) p->block = 128;
  if (p->stride == 0) p->stride = 16;
  if (p->block < 1 || p->stride < 1 || p->block % p->stride || p->block > INT32_MAX)
    return attn_reject_(
        e, ATTN_E_SHAPE,
        "params.block must be a multiple of params.stride, both positive and below 2^31");
  if (p->norm == 0.0f && attn_to_bits_(p->norm) == 0) p->norm = 1.0f;
  if (!(p->norm > 0.0f && p->norm < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.norm must be positive and finite");
  a->g.cell = p->stride;
  a->rows = attn_runs_of_(a->g.q.len, p->block), a->columns = attn_runs_of_(a->g.k.len, p->block);
  if (a->columns == 0) p->mass.data = NULL;
  return attn_cover_gamma_(e, &p->gamma) &&
         attn_check_argument_(
             e, l, &p->mass, ATTN_WORDS_("params.mass"), ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_,
             l->batch, l->heads, a->rows, a->columns,
             "params.mass must be f32 [q.batch, q.heads, query blocks, key blocks]") &&
         attn_mask_check_(e, a->mask, l, a->rows, a->columns, ctx, spans) &&
         (query || attn_glance_lens_(e, &a->g));
}

ATTN_COLD_ attn_status attn_xattention_call_(uint8_t *mask, attn_tensor q, attn_tensor k,
                                             const attn_xattention_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_arguments_ l;
  attn_xattention_ a;
  int workers = 1;
  attn_clear_(&l, sizeof l), attn_clear_(&a, sizeof a);
  if (params) a.p = *params;
  a.mask = mask, a.g.q = q, a.g.k = k;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    attn_xattention_check_(&e, &a, &l, ctx, bytes != NULL);
  return attn_step_call_or_(
      &e, table, workers, ctx, attn_xattention_steps_, &a, "blocks by antidiagonals",
      attn_mul_(q.batch, attn_mul_(a.rows, a.columns)) ? NULL : "no blocks", bytes);
}
ATTN_CALL_(attn_xattention, (mask, q, k, params), uint8_t *mask, attn_tensor q, attn_tensor k,
           const attn_xattention_params *params)
