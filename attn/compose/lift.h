/* compose/lift.h owns the two ends of a layer over rows that lie in several tensors: products of the
 * (normalised) rows with weights, split into heads, and the way back with residual and norm. Neither
 * makes a copy of its rows beyond a tile. */

/* Rows [B,1,n,dim] that follow one another: the parts of memories, then the input. */
enum { ATTN_PARTS_MOST_ = 5 };
typedef struct attn_parts_ {
  int count;
  attn_tensor part[ATTN_PARTS_MOST_];
  int64_t len[ATTN_PARTS_MOST_ + 1], tiles[ATTN_PARTS_MOST_ + 1]; /* of the parts before */
} attn_parts_;

ATTN_COLD_ void attn_parts_add_(attn_parts_ *x, attn_tensor t) {
  const int n = x->count;
  if (t.len == 0) return;
  x->part[n] = t;
  x->len[n + 1] = attn_add_(x->len[n], t.len);
  x->tiles[n + 1] = x->tiles[n] + attn_tiles_of_(t.len);
  x->count++;
}

ATTN_COLD_ int64_t attn_parts_len_(const attn_parts_ *x) { return x->len[x->count]; }

/* Row i: the part it is in; *i becomes its number there. */
ATTN_FUNC_ const attn_tensor *attn_parts_find_(const attn_parts_ *x, int64_t *i) {
  int n = 0;
  while (*i >= x->len[n + 1]) n++;
  *i -= x->len[n];
  return &x->part[n];
}

/* y = row i of a batch entry, as floats. */
ATTN_FUNC_ void attn_parts_row_(const attn_table_ *f, float *y, const attn_parts_ *x, int64_t b,
                                int64_t i) {
  const attn_tensor *t = attn_parts_find_(x, &i);
  f->widen(y, attn_at_(t, b, 0, i), t->stride_len, NULL, 1, t->dim, t->dtype, NULL);
}

/* Row i of y = a row of floats. */
ATTN_FUNC_ void attn_parts_put_(const attn_table_ *f, const attn_parts_ *y, int64_t b, int64_t i,
                                const float *x) {
  const attn_tensor *t = attn_parts_find_(y, &i);
  f->blend(attn_at_(t, b, 0, i), x, NULL, t->dtype, ATTN_F32, ATTN_F32, t->dim, 1.0f, 0.0f);
}

/* Rows of a head of y from i on = rows x times its matrix; room: as many rows of y where that is not
 * f32. */
ATTN_FUNC_ void attn_tile_times_(const attn_table_ *f, const attn_tensor *y, int64_t b, int64_t h,
                                 int64_t i, const attn_matrix_ *w, attn_floats_ x, float *room) {
  const attn_matrix_part_ part = {b, h, 0, w->k, 0, y->dim};
  const int plain = y->dtype == ATTN_F32;
  float *to = plain ? (float *)(void *)attn_at_(y, b, h, i) : room;
  attn_matrix_times_(f, w, &part, to, plain ? y->stride_len : y->dim, x, 1);
  if (!plain)
    for (int64_t r = 0; r < x.rows; r++)
      f->blend(attn_at_(y, b, h, i + r), to + r * y->dim, NULL, y->dtype, ATTN_F32, ATTN_F32,
               y->dim, 1.0f, 0.0f);
}

/* ---- rows into heads ------------------------------------------------------------------------*/

enum { ATTN_LIFTS_ = 3 };
typedef struct attn_lift_ {
  const attn_table_ *table;
  attn_parts_ x;
  const attn_norm *norm; /* null = the rows as they are */
  int count;
  attn_matrix_ w[ATTN_LIFTS_]; /* [1,heads,dm,d] */
  attn_tensor y[ATTN_LIFTS_];  /* [B,heads,.,d] */
  int64_t from[ATTN_LIFTS_];   /* row i of x goes to row i - from, where a part begins */
  char *memory;
  int64_t each, at_rows;
} attn_lift_;

/* 64 rows of one part. */
ATTN_FUNC_ void attn_lift_item_(void *job, int worker, int64_t index) {
  const attn_lift_ *a = (const attn_lift_ *)job;
  const attn_table_ *f = a->table;
  const int64_t tiles = a->x.tiles[a->x.count], b = index / tiles, tile = index % tiles;
  int part = 0;
  while (tile >= a->x.tiles[part + 1]) part++;
  const attn_tensor *t = &a->x.part[part];
  const int64_t first = (tile - a->x.tiles[part]) * ATTN_TILE_, at = a->x.len[part] + first;
  const int64_t n = t->len - first < ATTN_TILE_ ? t->len - first : ATTN_TILE_;
  char *memory = a->memory + worker * a->each;
  float *rows = (float *)(void *)(memory + a->at_rows);
  attn_floats_ x;
  if (a->norm) {
    f->widen(rows, attn_at_(t, b, 0, first), t->stride_len, NULL, n, t->dim, t->dtype, NULL);
    attn_norm_in_place_(f, rows, t->dim, n, a->norm);
    x = attn_floats_at_(rows, t->dim, n);
  } else {
    x = attn_floats_of_(f, t, b, 0, first, n, rows);
  }
  for (int k = 0; k < a->count; k++) {
    const attn_matrix_ *w = &a->w[k];
    for (int64_t h = 0; at >= a->from[k] && h < w->w.heads; h++)
      attn_tile_times_(f, &a->y[k], b, h, at - a->from[k], w, x, (float *)(void *)memory);
  }
}

/* One more product of the rows from `from` on; w [1,1,dm,heads d] is cut into heads. */
ATTN_COLD_ void attn_lift_add_(attn_lift_ *a, attn_tensor y, attn_tensor w, int64_t from) {
  a->w[a->count] =
      attn_weight_matrix_(attn_weight_heads_(w, y.heads), attn_parts_len_(&a->x) - from, y.batch);
  a->y[a->count] = y, a->from[a->count] = from;
  a->count++;
}

/* Runs them; the caller has filled in x and norm. */
ATTN_COLD_ int attn_stage_lift_(attn_stage_ *s, attn_lift_ *a) {
  const int64_t batch = a->x.count ? a->x.part[0].batch : 0;
  int64_t widest = 0;
  int copy = a->norm != NULL;
  a->table = s->table;
  for (int k = 0; k < a->count; k++)
    if (a->y[k].dtype != ATTN_F32 && a->w[k].n > widest) widest = a->w[k].n;
  for (int i = 0; i < a->x.count; i++) copy |= a->x.part[i].dtype != ATTN_F32;
  a->at_rows = attn_piece_(attn_mul_(widest, ATTN_TILE_), sizeof(float));
  a->each = attn_add_(
      a->at_rows, copy ? attn_piece_(attn_mul_(a->x.part[0].dim, ATTN_TILE_), sizeof(float)) : 0);
  return attn_stage_products_(s, a->w, a->count, attn_mul_(batch, a->x.tiles[a->x.count]),
                              attn_lift_item_, a, a->each, &a->memory);
}

/* ---- heads into rows ------------------------------------------------------------------------*/

typedef struct attn_close_ {
  const attn_table_ *table;
  attn_tensor o, x, h; /* [B,1,L,dout], [B,H,L,dv], [B,1,L,dout] */
  attn_matrix_ w;      /* [1,1,H dv,dout] */
  attn_tensor bias;    /* [1,1,1,dout], or absent */
  attn_sublayer kind;
  const attn_norm *norm;
  int64_t tiles;
  char *memory;
  int64_t each, at_in;
} attn_close_;

/* 64 rows: the heads one after another are one chain over H dv. */
ATTN_FUNC_ void attn_close_item_(void *job, int worker, int64_t index) {
  const attn_close_ *a = (const attn_close_ *)job;
  const attn_table_ *f = a->table;
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_, dout = a->o.dim;
  const int64_t n = a->o.len - first < ATTN_TILE_ ? a->o.len - first : ATTN_TILE_, dv = a->x.dim;
  float *rows = (float *)(void *)(a->memory + worker * a->each);
  float *wide = (float *)(void *)(a->memory + worker * a->each + a->at_in);
  for (int64_t h = 0; h < a->x.heads; h++) {
    const attn_matrix_part_ part = {0, 0, h * dv, dv, 0, dout};
    attn_matrix_times_(f, &a->w, &part, rows, dout, attn_floats_of_(f, &a->x, b, h, first, n, wide),
                       h == 0);
  }
  for (int64_t r = 0; a->bias.data && r < n; r++)
    f->blend(rows + r * dout, rows + r * dout, a->bias.data, ATTN_F32, ATTN_F32, a->bias.dtype,
             dout, 1.0f, 1.0f);
  if (a->kind != ATTN_SUBLAYER_PLAIN)
    for (int64_t r = 0; r < n; r++)
      f->blend(rows + r * dout, rows + r * dout, attn_at_(&a->h, b, 0, first + r), ATTN_F32,
               ATTN_F32, a->h.dtype, dout, 1.0f, 1.0f);
  if (a->kind == ATTN_SUBLAYER_POST) attn_norm_in_place_(f, rows, dout, n, a->norm);
  for (int64_t r = 0; r < n; r++)
    f->blend(attn_at_(&a->o, b, 0, first + r), rows + r * dout, NULL, a->o.dtype, ATTN_F32,
             ATTN_F32, dout, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_stage_close_(attn_stage_ *s, attn_tensor o, attn_tensor x, attn_tensor h,
                                 attn_tensor w, attn_tensor bias, attn_sublayer kind,
                                 const attn_norm *norm) {
  attn_close_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.o = o, a.x = x, a.h = h, a.bias = bias, a.kind = kind, a.norm = norm;
  a.w = attn_weight_matrix_(w, o.len, o.batch);
  a.tiles = attn_tiles_of_(o.len);
  a.at_in = attn_piece_(attn_mul_(o.dim, ATTN_TILE_), sizeof(float));
  const int64_t wide = x.dtype == ATTN_F32 ? 0 : attn_mul_(x.dim, ATTN_TILE_);
  a.each = attn_add_(a.at_in, attn_piece_(wide > o.dim ? wide : o.dim, sizeof(float)));
  return attn_stage_products_(s, &a.w, 1, attn_mul_(o.batch, a.tiles), attn_close_item_, &a, a.each,
                              &a.memory);
}
