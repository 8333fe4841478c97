/* families/training/dropout.h owns dropout of the elements of a tensor. */

typedef struct attn_dropped_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_drop drop;
  int64_t tiles, slices; /* 64 rows; columns */
  char *memory;
  int64_t each;
} attn_dropped_;

/* 64 rows of one head, some columns. */
ATTN_FUNC_ void attn_dropped_item_(void *job, int worker, int64_t index) {
  const attn_dropped_ *a = (const attn_dropped_ *)job;
  const int64_t tile = index / a->slices % a->tiles, unit = index / a->slices / a->tiles;
  const int64_t b = unit / a->y.heads, h = unit % a->y.heads, first = tile * ATTN_TILE_;
  const int64_t c = index % a->slices * ATTN_SLICE_, n = attn_min64_(a->y.dim - c, ATTN_SLICE_);
  const int64_t end = attn_min64_(a->y.len, first + ATTN_TILE_);
  const uint32_t head = (uint32_t)(h + a->drop.head0), batch = (uint32_t)(b + a->drop.batch0);
  attn_drop_key_ key;
  attn_drop_key_of_(&a->drop, &key);
  for (int64_t i = first; i < end; i++) {
    char *y = attn_at_(&a->y, b, h, i) + attn_bytes_(a->y.dtype, c);
    const char *x = attn_at_(&a->x, b, h, i) + attn_bytes_(a->x.dtype, c);
    const int f32 = a->y.dtype == ATTN_F32;
    float *row = (float *)(void *)(f32 ? y : a->memory + worker * a->each);
    const uint32_t at[3] = {(uint32_t)i, head, batch};
    if (!f32 || a->x.dtype != ATTN_F32)
      a->table->widen(row, x, 0, NULL, 1, n, a->x.dtype, NULL);
    else if ((const char *)row != x)
      memcpy(row, x, (size_t)n * sizeof(float));
    attn_on_(dropout, a->table)->drop_row(row, c, n, at, &key);
    if (!f32) a->table->blend(y, row, NULL, a->y.dtype, ATTN_F32, a->y.dtype, n, 1.0f, 1.0f);
  }
}

ATTN_COLD_ int attn_dropped_steps_(attn_stage_ *s, void *job) {
  attn_dropped_ a = *(const attn_dropped_ *)job;
  a.table = s->table;
  a.tiles = attn_tiles_of_(a.y.len), a.slices = attn_runs_of_(a.y.dim, ATTN_SLICE_);
  a.each = a.y.dtype == ATTN_F32 ? 0 : attn_piece_(ATTN_SLICE_, sizeof(float));
  return attn_stage_for_(s,
                         attn_mul_(attn_mul_(a.y.batch, a.y.heads), attn_mul_(a.tiles, a.slices)),
                         attn_dropped_item_, &a, a.each, &a.memory);
}

ATTN_COLD_ int attn_dropped_check_(attn_error_ *e, attn_dropped_ *a, const attn_ctx *ctx) {
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {ATTN_OPERAND_(&a->y, "y", ATTN_OUT_, a->x.batch, a->x.heads, a->x.len,
                                      a->x.dim, "y must have the shape of x"),
                        ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, "")};
  if (!attn_check_given_(e, op, 2)) return 0;
  for (int i = 1; i >= 0; i--)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_check_drop_(e, &a->drop, a->x.batch, a->x.heads, a->x.len, a->x.dim)) return 0;
  if (attn_in_place_(&a->y, &a->x)) op[1].span.lo = op[1].span.hi = 0;
  return attn_check_apart_(e, ctx, op, 2, NULL, 0);
}

ATTN_COLD_ attn_status attn_dropout_call_(attn_tensor y, attn_tensor x, const attn_drop *dropout,
                                          attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_dropped_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.y = y, a.x = x;
  if (dropout) a.drop = *dropout;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_dropped_check_(&e, &a, ctx);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_dropped_steps_, &a,
                            "element by element", NULL, bytes);
}
ATTN_CALL_(attn_dropout, (y, x, dropout), attn_tensor y, attn_tensor x, const attn_drop *dropout)
