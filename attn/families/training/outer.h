/* families/training/outer.h owns products summed over rows, scale A^T B: gradients of matrices. Rows are taken by
 * batch entry, head and position in runs of 512: within a run a sum is one chain of multiply-adds, and runs are joined
 * in order, so that neither workers nor cuts reach the bits. */

/* STEP: between rows of what is turned; rows a multiple of 1 KB apart would share few places of the first cache. So do
 * rows of sums, which have a group more than columns. */
enum {
  ATTN_OUTER_ROWS_ = 192,
  ATTN_OUTER_COLS_ = 256,
  ATTN_OUTER_DEEP_ = 256,
  ATTN_OUTER_STEP_ = ATTN_OUTER_DEEP_ + ATTN_GROUP_
};

typedef struct attn_outer_ {
  const attn_table_ *table;
  attn_tensor y, a, b; /* y [1 or B, 1 or H, a.dim, b.dim]; a and b of the same rows */
  attn_matrix_ m;      /* b */
  float scale;
  int accumulate;
  int64_t rows, cols, row_runs, col_runs; /* of an item */
  int64_t most, wide;                     /* whatever the number of workers */
  char *memory;
  int64_t each;
} attn_outer_;

/* Columns r0 .. r0 + rows - 1 of n rows of A as rows. */
ATTN_FUNC_ void attn_outer_turn_(const attn_outer_ *p, float *to, int64_t b, int64_t h, int64_t i,
                                 int64_t n, int64_t r0, int64_t rows) {
  const void *from[ATTN_TILE_];
  for (int64_t t = 0, some; t < n; t += some) {
    some = n - t < ATTN_TILE_ ? n - t : (int64_t)ATTN_TILE_;
    for (int64_t k = 0; k < some; k++)
      from[k] = attn_at_(&p->a, b, h, i + t + k) + attn_bytes_(p->a.dtype, r0);
    attn_on_(dense, p->table)
        ->turn(to + t, ATTN_OUTER_STEP_, from, (int)p->a.dtype, rows, (int)some);
  }
}

/* far += near; 0 by 0 in the first */
ATTN_FUNC_ void attn_outer_join_(const attn_table_ *f, float *far, const float *near, int64_t n) {
  f->blend(far, far, near, ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
}

ATTN_FUNC_ void attn_outer_item_(void *job, int worker, int64_t index) {
  const attn_outer_ *p = (const attn_outer_ *)job;
  const attn_table_ *f = p->table;
  const attn_tensor *y = &p->y;
  const int64_t at = index / p->col_runs, unit = at / p->row_runs;
  const int64_t b = unit / y->heads, h = unit % y->heads;
  const int64_t r0 = at % p->row_runs * p->rows, c0 = index % p->col_runs * p->cols;
  const int64_t rows = y->len - r0 < p->rows ? y->len - r0 : p->rows;
  const int64_t c1 = y->dim - c0 < p->cols ? y->dim : c0 + p->cols, room = p->most * p->wide;
  const int64_t b1 = y->batch == p->a.batch ? b + 1 : p->a.batch;
  const int64_t h1 = y->heads == p->a.heads ? h + 1 : p->a.heads;
  float *far = (float *)(void *)(p->memory + worker * p->each), *near = far + room;
  float *turned = near + room;
  int64_t left = ATTN_SHARES_RUN_;
  attn_clear_(far, (size_t)room * sizeof *far);
  for (int64_t e = y->batch == p->a.batch ? b : 0; e < b1; e++)
    for (int64_t g = y->heads == p->a.heads ? h : 0; g < h1; g++)
      for (int64_t i = 0, n; i < p->a.len; i += n) {
        n = p->a.len - i < left ? p->a.len - i : left;
        if (n > ATTN_OUTER_DEEP_) n = ATTN_OUTER_DEEP_;
        attn_matrix_part_ part = {e, g, i, n, c0, c1};
        attn_outer_turn_(p, turned, e, g, i, n, r0, rows);
        attn_matrix_times_(f, &p->m, &part, near, p->wide,
                           attn_floats_at_(turned, ATTN_OUTER_STEP_, rows),
                           left == ATTN_SHARES_RUN_);
        left -= n;
        if (left) continue;
        for (int64_t r = 0; r < rows; r++)
          attn_outer_join_(f, far + r * p->wide, near + r * p->wide, c1 - c0);
        left = ATTN_SHARES_RUN_;
      }
  for (int64_t r = 0; r < rows; r++) {
    float *sum = far + r * p->wide;
    char *to = attn_at_(y, b, h, r0 + r) + attn_bytes_(y->dtype, c0);
    if (left < ATTN_SHARES_RUN_) attn_outer_join_(f, sum, near + r * p->wide, c1 - c0);
    f->blend(to, sum, p->accumulate ? to : NULL, y->dtype, ATTN_F32, y->dtype, c1 - c0, p->scale,
             1.0f);
  }
}

/* y = scale A^T B over all rows that share y, or is added to. */
ATTN_COLD_ int attn_stage_outer_(attn_stage_ *s, attn_tensor y, attn_tensor a, attn_tensor b,
                                 float scale, int accumulate) {
  attn_outer_ p;
  attn_clear_(&p, sizeof p);
  p.table = s->table, p.scale = scale, p.accumulate = accumulate;
  attn_tensor *const both[2] = {&a, &b};
  if (y.heads == 1) attn_merge_heads_(both, 2);
  if (y.heads == 1 && y.batch == 1) attn_merge_batch_(both, 2);
  p.y = y, p.a = a, p.b = b;
  p.m = attn_matrix_loose_(b, 0, ATTN_OUTER_ROWS_);
  p.most = y.len < ATTN_OUTER_ROWS_ ? y.len : (int64_t)ATTN_OUTER_ROWS_;
  p.rows = p.most;
  p.cols = y.dim < ATTN_OUTER_COLS_ ? attn_runs_of_(y.dim, ATTN_PANEL_) * ATTN_PANEL_
                                    : (int64_t)ATTN_OUTER_COLS_;
  p.wide = p.cols + ATTN_GROUP_;
  p.each = attn_piece_(p.most * (2 * p.wide + ATTN_OUTER_STEP_), sizeof(float));
  int64_t items;
  for (;;) { /* of few items the last ones would leave workers without */
    p.row_runs = attn_runs_of_(y.len, p.rows), p.col_runs = attn_runs_of_(y.dim, p.cols);
    items = attn_mul_(attn_mul_(y.batch, y.heads), attn_mul_(p.row_runs, p.col_runs));
    if (s->workers < 2 || items >= 4 * (int64_t)s->workers) break;
    if (p.cols > ATTN_PANEL_)
      p.cols = attn_runs_of_(p.cols, 2 * ATTN_PANEL_) * ATTN_PANEL_;
    else if (p.rows > 24)
      p.rows = attn_runs_of_(p.rows, 2);
    else
      break;
  }
  return attn_stage_for_(s, items, attn_outer_item_, &p, p.each, &p.memory);
}
