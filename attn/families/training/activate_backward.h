/* families/training/activate_backward.h owns gradients through activations and gates, element by element. */

typedef struct attn_slopes_ {
  const attn_table_ *table;
  attn_tensor d_x, d_gate; /* out, data null: not made */
  attn_tensor d_y, x, gate;
  attn_activation act;
  int accumulate;
  int64_t tiles, slices; /* 64 rows; columns */
  char *memory;
  int64_t each;
} attn_slopes_;

/* Whether rows of an output are made beside it. */
ATTN_FUNC_ int attn_slopes_aside_(const attn_slopes_ *a, const attn_tensor *y) {
  return y->data && (y->dtype != ATTN_F32 || a->accumulate);
}

/* An output of n numbers begins: where they are made. */
ATTN_FUNC_ float *attn_slopes_open_(const attn_slopes_ *a, const attn_tensor *y, char *at,
                                    float *room) {
  return attn_slopes_aside_(a, y) ? room : (float *)(void *)at;
}
ATTN_FUNC_ void attn_slopes_close_(const attn_slopes_ *a, const attn_tensor *y, char *at,
                                   const float *made, int64_t n) {
  if (attn_slopes_aside_(a, y))
    a->table->blend(at, made, a->accumulate ? at : NULL, y->dtype, ATTN_F32, y->dtype, n, 1.0f,
                    1.0f);
}

/* 64 rows of one head, some columns; rows that lie end to end are one. */
ATTN_FUNC_ void attn_slopes_item_(void *job, int worker, int64_t index) {
  const attn_slopes_ *a = (const attn_slopes_ *)job;
  const attn_table_ *f = a->table;
  const attn_tensor *const t[5] = {&a->d_x, &a->d_gate, &a->d_y, &a->x, &a->gate};
  const int64_t tile = index / a->slices % a->tiles, unit = index / a->slices / a->tiles;
  const int64_t b = unit / a->d_y.heads, h = unit % a->d_y.heads, dim = a->d_y.dim;
  const int64_t first = tile * ATTN_TILE_, c0 = index % a->slices * ATTN_SLICE_;
  const int64_t left = a->d_y.len - first, rows = left < ATTN_TILE_ ? left : (int64_t)ATTN_TILE_;
  int whole = a->slices == 1;
  for (int k = 0; k < 5; k++) whole &= !t[k]->data || t[k]->stride_len == dim;
  const int64_t cols = whole                    ? rows * dim
                       : dim - c0 < ATTN_SLICE_ ? dim - c0
                                                : (int64_t)ATTN_SLICE_;
  float *room = (float *)(void *)(a->memory + worker * a->each);
  for (int64_t i = 0; i < (whole ? 1 : rows); i++)
    for (int64_t c = 0, n; c < cols; c += n) {
      char *at[5];
      const float *in[5] = {NULL, NULL, NULL, NULL, NULL};
      int64_t stride;
      n = cols - c < ATTN_SLICE_ ? cols - c : (int64_t)ATTN_SLICE_;
      for (int k = 0; k < 5; k++) {
        at[k] =
            t[k]->data ? attn_at_(t[k], b, h, first + i) + attn_bytes_(t[k]->dtype, c0 + c) : NULL;
        if (k > 1 && at[k])
          in[k] = attn_rows_in_(f, t[k], at[k], 1, n, room + k * ATTN_SLICE_, &stride);
      }
      if (at[1]) { /* first: d_x may lie where d_y does */
        float *y = attn_slopes_open_(a, t[1], at[1], room + ATTN_SLICE_);
        attn_on_(dense, f)->act(y, in[3], in[2], n, NULL, 1.0f, (int)a->act);
        attn_slopes_close_(a, t[1], at[1], y, n);
      }
      if (at[0]) {
        float *y = attn_slopes_open_(a, t[0], at[0], room);
        attn_on_(gradient, f)->slope(y, in[2], in[3], in[4], n, (int)a->act);
        attn_slopes_close_(a, t[0], at[0], y, n);
      }
    }
}

/* d_x = d_y gate act'(x) and d_gate = d_y act(x), or what these are is added to; all have the extents of d_y. */
ATTN_COLD_ int attn_stage_slopes_(attn_stage_ *s, const attn_slopes_ *all) {
  attn_slopes_ a = *all;
  const attn_tensor *const in[3] = {&a.d_y, &a.x, &a.gate};
  int aside = attn_slopes_aside_(&a, &a.d_x) || attn_slopes_aside_(&a, &a.d_gate);
  for (int i = 0; i < 3; i++) aside |= in[i]->data && in[i]->dtype != ATTN_F32;
  a.table = s->table;
  a.tiles = attn_tiles_of_(a.d_y.len), a.slices = attn_runs_of_(a.d_y.dim, ATTN_SLICE_);
  a.each = aside ? attn_piece_(5 * ATTN_SLICE_, sizeof(float)) : 0;
  return attn_stage_for_(
      s, attn_mul_(attn_mul_(a.d_y.batch, a.d_y.heads), attn_mul_(a.tiles, a.slices)),
      attn_slopes_item_, &a, a.each, &a.memory);
}
