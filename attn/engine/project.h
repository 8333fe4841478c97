/* engine/project.h owns small dense products of rows, Y = X W: the projections inside layers. The
 * value primitive computes them, with rows of X in the place of weights and of W of values. */

/* sum[d][lane] = x[c][lane] times w[c][d] of one head, c over w.len; start = 0 adds to what sum holds.
 * wide: room for ATTN_BLOCK_ rows of a w that is not f32. */
ATTN_FUNC_ void attn_tile_times_(const attn_table_ *f, float *sum, const float *x,
                                 const attn_tensor *w, int64_t head, float *wide, int groups,
                                 int start) {
  for (int64_t c = 0; c < w->len; c += ATTN_BLOCK_) {
    const int64_t m = w->len - c < ATTN_BLOCK_ ? w->len - c : ATTN_BLOCK_;
    int64_t stride = w->stride_len;
    const char *at = attn_at_(w, 0, head, c);
    const float *row = (const float *)(const void *)at;
    if (w->dtype != ATTN_F32) {
      f->widen(wide, at, stride, NULL, m, w->dim, w->dtype, NULL);
      row = wide, stride = w->dim;
    }
    f->value_block(sum, x + c * ATTN_TILE_, row, stride, m, w->dim, 0, groups, NULL,
                   start && c == 0);
  }
}

typedef struct attn_project_ {
  const attn_table_ *table;
  attn_tensor y, x, w;
  int64_t tiles;
  char *memory;
  int64_t each, at_sum, at_rows;
} attn_project_;

/* 64 rows of one head. */
ATTN_FUNC_ void attn_project_item_(void *job, int worker, int64_t index) {
  const attn_project_ *a = (const attn_project_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->tiles, b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t first = index % a->tiles * ATTN_TILE_, left = a->y.len - first;
  const int n = left < ATTN_TILE_ ? (int)left : ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  char *memory = a->memory + worker * a->each;
  float *rows = (float *)(void *)memory, *sum = (float *)(void *)(memory + a->at_sum);
  float *wide = (float *)(void *)(memory + a->at_rows);
  const void *in[ATTN_TILE_];
  void *out[ATTN_TILE_];
  for (int r = 0; r < n; r++) {
    in[r] = attn_at_(&a->x, b, a->x.heads > 1 ? h : 0, first + r);
    out[r] = attn_at_(&a->y, b, h, first + r);
  }
  f->pack(rows, in, n, a->x.dim, (int)a->x.dtype, 1.0f, FLT_MIN);
  attn_tile_times_(f, sum, rows, &a->w, a->w.heads > 1 ? h : 0, wide, groups, 1);
  f->unpack(out, sum, n, a->w.dim, a->y.dtype, NULL);
}

/* y [B,H,T,dout] = x [B, 1 or H, T, din] times w [1, 1 or H, din, dout]; a sum over din is one
 * chain of FMAs in order. y is of any type. */
ATTN_FUNC_ int attn_stage_project_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w) {
  attn_project_ a = {s->table, y, x, w, 0, NULL, 0, 0, 0};
  a.tiles = y.len / ATTN_TILE_ + (y.len % ATTN_TILE_ != 0);
  a.at_sum = attn_piece_(attn_mul_(x.dim, ATTN_TILE_), sizeof(float));
  a.at_rows = attn_add_(a.at_sum, attn_piece_(attn_mul_(w.dim, ATTN_TILE_), sizeof(float)));
  a.each = a.at_rows;
  if (w.dtype != ATTN_F32)
    a.each = attn_add_(a.each, attn_piece_(attn_mul_(w.dim, ATTN_BLOCK_), sizeof(float)));
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), a.tiles), attn_project_item_, &a,
                         a.each, &a.memory);
}
