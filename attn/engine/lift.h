/* engine/lift.h owns the two ends of a layer over rows that lie in several tensors: products of the
 * (normalised) rows with weights, split into heads, and the way back with residual and norm. Neither
 * makes a copy of its rows beyond a tile. */

/* Rows [B,1,n,dim] that follow one another: the parts of memories, then the input. */
enum { ATTN_ROW_PARTS_ = 5 };
typedef struct attn_parts_ {
  int count;
  attn_tensor part[ATTN_ROW_PARTS_];
  int64_t len[ATTN_ROW_PARTS_ + 1], tiles[ATTN_ROW_PARTS_ + 1]; /* of the parts before */
} attn_parts_;

ATTN_FUNC_ int64_t attn_tiles_of_(int64_t rows) {
  return rows / ATTN_TILE_ + (rows % ATTN_TILE_ != 0);
}

ATTN_FUNC_ void attn_parts_add_(attn_parts_ *x, attn_tensor t) {
  const int n = x->count;
  if (t.len == 0) return;
  x->part[n] = t;
  x->len[n + 1] = x->len[n] + t.len, x->tiles[n + 1] = x->tiles[n] + attn_tiles_of_(t.len);
  x->count++;
}

ATTN_FUNC_ int64_t attn_parts_len_(const attn_parts_ *x) { return x->len[x->count]; }

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

/* Eight sums in f64, joined by halves. */
ATTN_FUNC_ double attn_row_sum_(const float *x, int64_t n, double shift, int square) {
  double s[8] = {0};
  for (int64_t c = 0; c < n; c++) {
    const double d = (double)x[c] - shift;
    s[c % 8] += square ? d * d : d;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

ATTN_FUNC_ void attn_row_norm_(float *x, int64_t n, const attn_norm *norm) {
  const double mean = attn_row_sum_(x, n, 0.0, 0) / (double)n;
  const double eps = norm->eps == 0.0f ? 1e-5 : (double)norm->eps;
  const double by = 1.0 / sqrt(attn_row_sum_(x, n, mean, 1) / (double)n + eps);
  for (int64_t c = 0; c < n; c++) {
    const double y = ((double)x[c] - mean) * by * (norm->gain ? (double)norm->gain[c] : 1.0);
    x[c] = (float)(y + (norm->bias ? (double)norm->bias[c] : 0.0));
  }
}

/* ---- rows into heads ------------------------------------------------------------------------*/

enum { ATTN_LIFTS_ = 3 };
typedef struct attn_lift_ {
  const attn_table_ *table;
  attn_parts_ x;
  const attn_norm *norm; /* null = the rows as they are */
  int count;
  attn_tensor w[ATTN_LIFTS_], y[ATTN_LIFTS_]; /* [1,heads,dm,d], [B,heads,.,d] */
  int64_t from[ATTN_LIFTS_]; /* row i of x goes to row i - from, where a part begins */
  char *memory;
  int64_t each, at_sum, at_wide, at_rows;
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
  const int n = t->len - first < ATTN_TILE_ ? (int)(t->len - first) : ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  char *memory = a->memory + worker * a->each;
  float *packed = (float *)(void *)memory, *sum = (float *)(void *)(memory + a->at_sum);
  float *wide = (float *)(void *)(memory + a->at_wide);
  float *rows = (float *)(void *)(memory + a->at_rows);
  const void *in[ATTN_TILE_];
  void *out[ATTN_TILE_];
  for (int r = 0; r < n; r++) {
    in[r] = attn_at_(t, b, 0, first + r);
    if (!a->norm) continue;
    f->widen(rows + r * t->dim, in[r], t->stride_len, NULL, 1, t->dim, t->dtype, NULL);
    attn_row_norm_(rows + r * t->dim, t->dim, a->norm);
    in[r] = rows + r * t->dim;
  }
  f->pack(packed, in, n, t->dim, (int)(a->norm ? ATTN_F32 : t->dtype), 1.0f, 0.0f);
  for (int k = 0; k < a->count; k++) {
    const attn_tensor *w = &a->w[k], *y = &a->y[k];
    for (int64_t h = 0; at >= a->from[k] && h < w->heads; h++) {
      for (int r = 0; r < n; r++) out[r] = attn_at_(y, b, h, at - a->from[k] + r);
      attn_tile_times_(f, sum, packed, w, h, wide, groups, 1);
      f->unpack(out, sum, n, w->dim, y->dtype, NULL);
    }
  }
}

/* One more product of the rows from `from` on; w [1,1,dm,heads d] is cut into heads. */
ATTN_FUNC_ void attn_lift_add_(attn_lift_ *a, attn_tensor y, attn_tensor w, int64_t from) {
  w.dim /= y.heads, w.stride_head = w.dim, w.heads = y.heads;
  a->w[a->count] = w, a->y[a->count] = y, a->from[a->count] = from;
  a->count++;
}

/* Runs them; the caller has filled in x and norm. */
ATTN_FUNC_ int attn_stage_lift_(attn_stage_ *s, attn_lift_ *a) {
  const int64_t f = sizeof(float), dm = a->x.count ? a->x.part[0].dim : 1;
  const int64_t batch = a->x.count ? a->x.part[0].batch : 0;
  int64_t widest = 0, wide = 0;
  a->table = s->table;
  for (int k = 0; k < a->count; k++) {
    if (a->w[k].dim > widest) widest = a->w[k].dim;
    if (a->w[k].dtype != ATTN_F32 && a->w[k].dim > wide) wide = a->w[k].dim;
  }
  a->at_sum = attn_piece_(attn_mul_(dm, ATTN_TILE_), f);
  a->at_wide = attn_add_(a->at_sum, attn_piece_(attn_mul_(widest, ATTN_TILE_), f));
  a->at_rows = attn_add_(a->at_wide, attn_piece_(attn_mul_(wide, ATTN_BLOCK_), f));
  a->each = attn_add_(a->at_rows, a->norm ? attn_piece_(attn_mul_(dm, ATTN_TILE_), f) : 0);
  return attn_stage_for_(s, attn_mul_(batch, a->x.tiles[a->x.count]), attn_lift_item_, a, a->each,
                         &a->memory);
}

/* ---- heads into rows ------------------------------------------------------------------------*/

typedef struct attn_close_ {
  const attn_table_ *table;
  attn_tensor o, x, h, w; /* [B,1,L,dout], [B,H,L,dv], [B,1,L,dout], [1,1,H dv,dout] */
  attn_sublayer kind;
  const attn_norm *norm;
  int64_t tiles;
  char *memory;
  int64_t each, at_sum, at_wide, at_rows;
} attn_close_;

/* 64 rows: the heads one after another are one chain over H dv. */
ATTN_FUNC_ void attn_close_item_(void *job, int worker, int64_t index) {
  const attn_close_ *a = (const attn_close_ *)job;
  const attn_table_ *f = a->table;
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_, dout = a->o.dim;
  const int n = a->o.len - first < ATTN_TILE_ ? (int)(a->o.len - first) : ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  char *memory = a->memory + worker * a->each;
  float *packed = (float *)(void *)memory, *sum = (float *)(void *)(memory + a->at_sum);
  float *wide = (float *)(void *)(memory + a->at_wide);
  float *row = (float *)(void *)(memory + a->at_rows), *input = row + ATTN_TILE_ * dout;
  const void *in[ATTN_TILE_];
  void *out[ATTN_TILE_];
  for (int64_t h = 0; h < a->x.heads; h++) {
    const attn_tensor w = attn_stage_rows_(a->w, h * a->x.dim, a->x.dim);
    for (int r = 0; r < n; r++) in[r] = attn_at_(&a->x, b, h, first + r);
    f->pack(packed, in, n, a->x.dim, (int)a->x.dtype, 1.0f, 0.0f);
    attn_tile_times_(f, sum, packed, &w, 0, wide, groups, h == 0);
  }
  const int plain = a->kind == ATTN_SUBLAYER_PLAIN;
  for (int r = 0; r < n; r++)
    out[r] = plain ? (void *)attn_at_(&a->o, b, 0, first + r) : (void *)(row + r * dout);
  f->unpack(out, sum, n, dout, plain ? a->o.dtype : ATTN_F32, NULL);
  for (int r = 0; !plain && r < n; r++) {
    float *y = row + r * dout;
    f->widen(input, attn_at_(&a->h, b, 0, first + r), 0, NULL, 1, dout, a->h.dtype, NULL);
    for (int64_t c = 0; c < dout; c++) y[c] = input[c] + y[c];
    if (a->kind == ATTN_SUBLAYER_POST) attn_row_norm_(y, dout, a->norm);
    f->blend(attn_at_(&a->o, b, 0, first + r), y, NULL, a->o.dtype, ATTN_F32, ATTN_F32, dout, 1.0f,
             0.0f);
  }
}

ATTN_FUNC_ int attn_stage_close_(attn_stage_ *s, attn_tensor o, attn_tensor x, attn_tensor h,
                                 attn_tensor w, attn_sublayer kind, const attn_norm *norm) {
  const int64_t f = sizeof(float);
  attn_close_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.o = o, a.x = x, a.h = h, a.w = w, a.kind = kind, a.norm = norm;
  a.tiles = attn_tiles_of_(o.len);
  a.at_sum = attn_piece_(attn_mul_(x.dim, ATTN_TILE_), f);
  a.at_wide = attn_add_(a.at_sum, attn_piece_(attn_mul_(o.dim, ATTN_TILE_), f));
  a.at_rows =
      attn_add_(a.at_wide, w.dtype == ATTN_F32 ? 0 : attn_piece_(attn_mul_(o.dim, ATTN_BLOCK_), f));
  a.each = attn_add_(a.at_rows, attn_piece_(attn_mul_(o.dim, ATTN_TILE_ + 1), f));
  return attn_stage_for_(s, attn_mul_(o.batch, a.tiles), attn_close_item_, &a, a.each, &a.memory);
}
