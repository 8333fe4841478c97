/* families/mixers/spatial.h owns products of the blocks that mix tokens, Y = start + W M: along a sequence W is
 * learned, upright or transposed, and M the rows of an entry; along the channels W is the rows and M
 * learned. W is read where it lies, a causal one up to its diagonal. M lies in panels of 64 columns,
 * [batch][heads][panels][k][64]. */

enum { ATTN_SPATIAL_ROWS_ = 96, ATTN_SPATIAL_PANELS_ = 4 };

typedef struct attn_spatial_ {
  const attn_table_ *table;
  attn_tensor w;      /* [1 or batch, 1 or H, rows, k], turned: [.., k, rows]; it may be larger */
  int turned, causal; /* causal: row i reads 0..i */
  int64_t heads, rows, k, n; /* n: columns of a head */
  const int32_t *len;        /* optional: rows and k of an entry that exist */
  attn_matrix_ m[2];         /* M, packed */
  /* Optional: Y starts as their sum, */
  attn_tensor row_bias; /* [1, 1 or H, 1, rows] */
  attn_tensor col_bias; /* [1, 1, 1, H n] */
  attn_tensor add;      /* [batch, 1, rows, H n] */
  attn_tensor more;     /* [batch, 1, rows, .], f32, times m[1] */
  /* and ends as one of: f(Y) in panels, as another product reads it; what is there times Y, f32; Y */
  float *panels;
  attn_activation act;
  attn_tensor gate, y;
  int64_t row_runs, col_runs;
  char *memory; /* of the workers: a block of W, a tile of Y */
} attn_spatial_;

enum {
  ATTN_SPATIAL_BLOCK_ = (int)ATTN_SPATIAL_ROWS_ * (int)ATTN_DEEP_,
  ATTN_SPATIAL_TILE_ = (int)ATTN_SPATIAL_ROWS_ * (int)ATTN_PANEL_,
  ATTN_SPATIAL_BYTES_ = 4 * (ATTN_SPATIAL_BLOCK_ + (int)ATTN_SPATIAL_PANELS_ * ATTN_SPATIAL_TILE_)
};

/* A tile of Y: rows r0.. of a head, some panels; row r of panel p is at y + p step + 64 r. */
typedef struct attn_spatial_tile_ {
  int64_t b, h, r0, rows, k, panel, panels;
  float *y;
  int64_t step;
} attn_spatial_tile_;

/* Columns of panel p of the tile. */
ATTN_FUNC_ int64_t attn_spatial_cols_(const attn_spatial_ *a, const attn_spatial_tile_ *t,
                                      int64_t p) {
  const int64_t left = a->n - (t->panel + p) * ATTN_PANEL_;
  return left < ATTN_PANEL_ ? left : (int64_t)ATTN_PANEL_;
}

/* Rows r0 .. of a tile and n of their k, from k0 on, as the kernel reads them. */
typedef struct attn_left_ {
  const float *x;
  int64_t stride, step;
} attn_left_;

ATTN_FUNC_ attn_left_ attn_left_of_(const attn_table_ *f, const attn_tensor *w, int turned,
                                    int64_t b, int64_t h, int64_t r0, int64_t rows, int64_t k0,
                                    int64_t n, float *block) {
  const char *at = attn_at_(w, b, h, turned ? k0 : r0) + attn_bytes_(w->dtype, turned ? r0 : k0);
  attn_left_ l = {(const float *)(const void *)at, w->stride_len, 1};
  if (!turned && w->dtype == ATTN_F32) return l;
  l.x = block, l.stride = turned ? 1 : n, l.step = turned ? rows : 1;
  f->widen(block, at, w->stride_len, NULL, turned ? n : rows, turned ? rows : n, w->dtype, NULL);
  return l;
}

/* From row r and from k on. */
ATTN_FUNC_ attn_left_ attn_left_at_(attn_left_ l, int64_t r, int64_t k) {
  l.x += r * l.stride + k * l.step;
  return l;
}

/* y += l m of n rows of a panel */
ATTN_FUNC_ void attn_spatial_times_(const attn_table_ *f, float *y, int64_t rows, attn_left_ l,
                                    const float *m, int64_t n, int64_t cols) {
  attn_on_(dense, f)->gemm(y, ATTN_PANEL_, rows, l.x, l.stride, l.step, m, ATTN_PANEL_, n, cols, 0);
}

/* The same where row r reads k < first + r only: six rows read what all of them may, then each the rest
 * by itself. */
ATTN_FUNC_ void attn_spatial_below_(const attn_table_ *f, float *y, int64_t rows, attn_left_ l,
                                    const float *m, int64_t n, int64_t cols, int64_t first) {
  int64_t r = first < 1 ? 1 - first : 0;
  for (int64_t some; r < rows && first + r < n; r += some) {
    const int64_t all = first + r;
    some = rows - r < 6 ? rows - r : 6;
    attn_spatial_times_(f, y + r * ATTN_PANEL_, some, attn_left_at_(l, r, 0), m, all, cols);
    for (int64_t i = 1; i < some; i++)
      attn_spatial_times_(f, y + (r + i) * ATTN_PANEL_, 1, attn_left_at_(l, r + i, all),
                          m + all * ATTN_PANEL_, all + i < n ? i : n - all, cols);
  }
  if (r < rows)
    attn_spatial_times_(f, y + r * ATTN_PANEL_, rows - r, attn_left_at_(l, r, 0), m, n, cols);
}

/* Adds w m to a tile. */
ATTN_FUNC_ void attn_spatial_add_(const attn_spatial_ *a, const attn_spatial_tile_ *t,
                                  const attn_tensor *w, int turned, int causal,
                                  const attn_matrix_ *m, float *block) {
  const int64_t k = causal && t->r0 + t->rows < t->k ? t->r0 + t->rows : t->k;
  const int64_t mb = m->w.batch > 1 ? t->b : 0;
  const float *panel = m->packed + (mb * a->heads + t->h) * m->one + t->panel * m->k * ATTN_PANEL_;
  for (int64_t k0 = 0; k0 < k; k0 += ATTN_DEEP_) {
    const int64_t n = k - k0 < ATTN_DEEP_ ? k - k0 : (int64_t)ATTN_DEEP_;
    const attn_left_ l = attn_left_of_(a->table, w, turned, w->batch > 1 ? t->b : 0,
                                       w->heads > 1 ? t->h : 0, t->r0, t->rows, k0, n, block);
    for (int64_t p = 0; p < t->panels; p++) {
      const float *at = panel + (p * m->k + k0) * ATTN_PANEL_;
      const int64_t cols = attn_spatial_cols_(a, t, p);
      if (causal)
        attn_spatial_below_(a->table, t->y + p * t->step, t->rows, l, at, n, cols, t->r0 - k0 + 1);
      else
        attn_spatial_times_(a->table, t->y + p * t->step, t->rows, l, at, n, cols);
    }
  }
}

/* Row r of a tensor [.., 1, rows, H n] from the first column of the tile on, and its elements. */
ATTN_FUNC_ char *attn_spatial_row_(const attn_spatial_ *a, const attn_spatial_tile_ *t,
                                   const attn_tensor *x, int64_t r) {
  return attn_at_(x, x->batch > 1 ? t->b : 0, 0, r) +
         attn_bytes_(x->dtype, t->h * a->n + t->panel * ATTN_PANEL_);
}

/* What a tile is before the product. Rows of other tensors are read and written in whole. */
ATTN_FUNC_ void attn_spatial_start_(const attn_spatial_ *a, const attn_spatial_tile_ *t,
                                    float *block) {
  const attn_table_ *f = a->table;
  const attn_tensor *bias = &a->row_bias, *add = &a->add;
  const int64_t last = t->panels - 1;
  float row[ATTN_SPATIAL_ROWS_], col[(int)ATTN_SPATIAL_PANELS_ * (int)ATTN_PANEL_];
  memset(row, 0, sizeof row);
  memset(col, 0, sizeof col);
  if (bias->data)
    f->widen(row,
             attn_at_(bias, 0, bias->heads > 1 ? t->h : 0, 0) + attn_bytes_(bias->dtype, t->r0), 0,
             NULL, 1, t->rows, bias->dtype, NULL);
  if (a->col_bias.data)
    f->widen(col, attn_spatial_row_(a, t, &a->col_bias, 0), 0, NULL, 1,
             last * ATTN_PANEL_ + attn_spatial_cols_(a, t, last), a->col_bias.dtype, NULL);
  for (int64_t r = 0; r < t->rows; r++) {
    const char *from = add->data ? attn_spatial_row_(a, t, add, t->r0 + r) : NULL;
    for (int64_t p = 0; p < t->panels; p++) {
      float *y = t->y + p * t->step + r * ATTN_PANEL_;
      memcpy(y, col + p * ATTN_PANEL_, ATTN_PANEL_ * sizeof *y);
      if (from)
        f->blend(y, from + attn_bytes_(add->dtype, p * ATTN_PANEL_), y, ATTN_F32, add->dtype,
                 ATTN_F32, attn_spatial_cols_(a, t, p), 1.0f, 1.0f);
      if (bias->data)
        for (int i = 0; i < ATTN_PANEL_; i++) y[i] += row[r];
    }
  }
  if (a->more.data) {
    attn_spatial_tile_ own = *t;
    own.k = a->more.dim;
    attn_spatial_add_(a, &own, &a->more, 0, 0, &a->m[1], block);
  }
}

/* What is made of it. */
ATTN_FUNC_ void attn_spatial_finish_(const attn_spatial_ *a, const attn_spatial_tile_ *t) {
  const attn_table_ *f = a->table;
  if (a->panels)
    for (int64_t p = 0; p < t->panels; p++)
      attn_on_(dense, f)->activate(t->y + p * t->step, t->rows * ATTN_PANEL_, NULL, 1.0f,
                                   (int)a->act);
  if (!a->panels)
    for (int64_t r = 0; r < t->rows; r++) {
      const attn_tensor *out = a->gate.data ? &a->gate : &a->y;
      char *row = attn_spatial_row_(a, t, out, t->r0 + r);
      for (int64_t p = 0; p < t->panels; p++) {
        const float *y = t->y + p * t->step + r * ATTN_PANEL_;
        char *to = row + attn_bytes_(out->dtype, p * ATTN_PANEL_);
        const int64_t cols = attn_spatial_cols_(a, t, p);
        if (a->gate.data)
          attn_on_(dense, f)->act((float *)(void *)to, y, (const float *)(const void *)to, cols,
                                  NULL, 1.0f, (int)ATTN_ACT_NONE);
        else if (out->dtype == ATTN_F32)
          memcpy(to, y, (size_t)cols * sizeof *y);
        else
          f->blend(to, y, NULL, out->dtype, ATTN_F32, ATTN_F32, cols, 1.0f, 0.0f);
      }
    }
}

/* 96 rows by 4 panels of one head. */
ATTN_FUNC_ void attn_spatial_item_(void *job, int worker, int64_t index) {
  const attn_spatial_ *a = (const attn_spatial_ *)job;
  const int64_t unit = index / (a->row_runs * a->col_runs),
                at = index % (a->row_runs * a->col_runs), panels = a->m[0].panels;
  float *block = (float *)(void *)(a->memory + (int64_t)worker * ATTN_SPATIAL_BYTES_);
  attn_spatial_tile_ t;
  t.b = unit / a->heads, t.h = unit % a->heads;
  t.r0 = at / a->col_runs * ATTN_SPATIAL_ROWS_, t.panel = at % a->col_runs * ATTN_SPATIAL_PANELS_;
  t.rows = a->rows - t.r0, t.k = a->k;
  if (a->len) t.k = a->len[t.b], t.rows = t.k - t.r0;
  if (t.rows > ATTN_SPATIAL_ROWS_) t.rows = ATTN_SPATIAL_ROWS_;
  if (t.rows <= 0) return;
  t.panels =
      panels - t.panel < ATTN_SPATIAL_PANELS_ ? panels - t.panel : (int64_t)ATTN_SPATIAL_PANELS_;
  t.y = block + ATTN_SPATIAL_BLOCK_, t.step = ATTN_SPATIAL_TILE_;
  if (a->panels) {
    t.step = a->rows * ATTN_PANEL_;
    t.y = a->panels + (unit * panels + t.panel) * t.step + t.r0 * ATTN_PANEL_;
  }
  attn_spatial_start_(a, &t, block);
  attn_spatial_add_(a, &t, &a->w, a->turned, a->causal, &a->m[0], block);
  attn_spatial_finish_(a, &t);
}

/* The product as a step, after laying out m[from] .. m[to - 1]; others are in panels already. */
ATTN_COLD_ int attn_stage_spatial_(attn_stage_ *s, attn_spatial_ *a, int64_t batch, int from,
                                   int to) {
  a->table = s->table;
  a->row_runs = (a->rows + ATTN_SPATIAL_ROWS_ - 1) / ATTN_SPATIAL_ROWS_;
  a->col_runs = (a->m[0].panels + ATTN_SPATIAL_PANELS_ - 1) / ATTN_SPATIAL_PANELS_;
  const int64_t count = attn_mul_(attn_mul_(batch, a->heads), attn_mul_(a->row_runs, a->col_runs));
  return attn_stage_products_(s, a->m + from, to - from, count, attn_spatial_item_, a,
                              ATTN_SPATIAL_BYTES_, &a->memory);
}

/* t as a right factor that is always in panels, whose strips are whole panels. */
ATTN_COLD_ attn_matrix_ attn_spatial_matrix_(attn_tensor t) {
  attn_matrix_ m = attn_weight_matrix_(t, INT64_MAX, 1);
  m.strip = ATTN_PANEL_;
  return m;
}

/* ---- rows that are normalised on their way into panels --------------------------------------*/

typedef struct attn_norm_panels_ {
  const attn_table_ *table;
  attn_tensor x;
  attn_matrix_ m; /* [batch, H, x.len, x.dim / H] */
  const attn_norm *norm;
  int64_t tiles, run; /* rows at once */
  char *memory;       /* of the workers: a run of rows, twice where x is not f32 */
  int64_t each;
} attn_norm_panels_;

/* 64 rows of an entry. */
ATTN_FUNC_ void attn_norm_panels_item_(void *job, int worker, int64_t index) {
  const attn_norm_panels_ *a = (const attn_norm_panels_ *)job;
  const attn_matrix_ *m = &a->m;
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_, dim = a->x.dim;
  const int64_t end = a->x.len - first < ATTN_TILE_ ? a->x.len : first + ATTN_TILE_;
  float *room = (float *)(void *)(a->memory + worker * a->each);
  for (int64_t i = first, n; i < end; i += n) {
    attn_norm_rows_ rows;
    n = end - i < a->run ? end - i : a->run;
    memset(&rows, 0, sizeof rows);
    rows.n = dim, rows.y = room, rows.y_stride = dim;
    rows.x = attn_rows_in_(a->table, &a->x, attn_at_(&a->x, b, 0, i), n, dim, room + a->run * dim,
                           &rows.x_stride);
    attn_norm_rows_of_(a->table, &rows, n, a->norm);
    for (int64_t h = 0; h < m->w.heads; h++)
      for (int64_t p = 0; p < m->panels; p++) {
        const int64_t left = m->n - p * ATTN_PANEL_;
        const int64_t cols = left < ATTN_PANEL_ ? left : (int64_t)ATTN_PANEL_;
        const float *from = room + h * m->n + p * ATTN_PANEL_;
        float *to = m->packed + (b * m->w.heads + h) * m->one + (p * m->k + i) * ATTN_PANEL_;
        for (int64_t r = 0; r < n; r++, to += ATTN_PANEL_, from += dim) {
          if (cols < ATTN_PANEL_) memset(to, 0, ATTN_PANEL_ * sizeof *to);
          memcpy(to, from, (size_t)cols * sizeof *to);
        }
      }
  }
}

/* norm(x), its columns cut into heads, as a right factor at `packed`. */
ATTN_COLD_ int attn_stage_norm_panels_(attn_stage_ *s, attn_matrix_ *m, attn_tensor x,
                                       int64_t heads, const attn_norm *norm, float *packed) {
  attn_norm_panels_ a;
  memset(&a, 0, sizeof a);
  *m = attn_spatial_matrix_(attn_multihead_split_(x, heads));
  m->packed = packed;
  a.table = s->table, a.x = x, a.m = *m, a.norm = norm;
  a.tiles = attn_tiles_of_(x.len);
  a.run = x.dim <= 512 ? 8 : 4;
  a.each = attn_piece_(attn_mul_(x.dtype == ATTN_F32 ? a.run : 2 * a.run, x.dim), sizeof(float));
  return attn_stage_for_(s, attn_mul_(x.batch, a.tiles), attn_norm_panels_item_, &a, a.each,
                         &a.memory);
}

/* Room for panels of [batch, heads, k, n / heads]. */
ATTN_COLD_ float *attn_stage_panels_(attn_stage_ *s, int64_t batch, int64_t heads, int64_t k,
                                     int64_t n) {
  const int64_t wide = (n / heads + ATTN_PANEL_ - 1) / ATTN_PANEL_ * ATTN_PANEL_;
  return (float *)attn_stage_take_(s, attn_mul_(attn_mul_(batch, heads), attn_mul_(k, wide)),
                                   sizeof(float));
}
