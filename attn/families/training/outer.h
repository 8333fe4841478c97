/* families/training/outer.h owns products summed over rows, scale A^T B: gradients of matrices. Rows are taken by
 * batch entry, head and position in runs of 512: within a run a sum is one chain of multiply-adds, and runs are joined
 * in order, so that neither workers nor cuts reach the bits. A run is one pass of the tile of dense products, whose sums
 * meet those of earlier runs at its end; columns of A are copied six by six, as the tile takes them. */

enum { ATTN_OUTER_ROWS_ = 192, ATTN_OUTER_COLS_ = 256 };

typedef struct attn_outer_ {
  const attn_table_ *table;
  attn_tensor y, a, b; /* y [1 or B, 1 or H, a.dim, b.dim]; a and b of the same rows */
  attn_matrix_ m;      /* b */
  float scale;
  int accumulate, strip;
  int64_t rows, cols, row_runs, col_runs; /* of an item */
  int64_t most, wide; /* rows and columns of sums, whatever the number of workers */
  int64_t step;       /* floats from six columns of A to the next six */
  char *memory;
  int64_t each;
} attn_outer_;

/* Rows of A and B that make one matrix, in order: which batch entries and heads. */
typedef struct attn_outer_rows_ {
  int64_t b, h, heads, all;
} attn_outer_rows_;

/* Row `at` of t, and how many follow it there, n at most. */
ATTN_FUNC_ const char *attn_outer_row_(const attn_outer_rows_ *u, const attn_tensor *t, int64_t at,
                                       int64_t *n) {
  const int64_t entry = at / t->len, i = at % t->len;
  if (*n > t->len - i) *n = t->len - i;
  return attn_at_(t, u->b + entry / u->heads, u->h + entry % u->heads, i);
}

/* Rows `ahead` of the one that is copied are fetched: they are too far apart for processors to guess. */
enum { ATTN_OUTER_AHEAD_ = 8 };

/* Columns r0 .. r0 + rows - 1 of n rows of A from row `at` on, six by six as the tile takes them: those of each row side by
 * side, p->step floats from six to six. */
ATTN_FUNC_ void attn_outer_left_(const attn_outer_ *p, const attn_outer_rows_ *u, float *to,
                                 int64_t at, int64_t n, int64_t r0, int64_t rows) {
  float wide[ATTN_OUTER_ROWS_];
  for (int64_t some; n > 0; n -= some, at += some) {
    some = n;
    const char *from = attn_outer_row_(u, &p->a, at, &some) + attn_bytes_(p->a.dtype, r0);
    const int64_t bytes = attn_bytes_(p->a.dtype, p->a.stride_len);
    for (int64_t k = 0; k < some; k++, to += 6, from += bytes) {
      const float *row = (const float *)(const void *)from;
      for (int64_t c = 0; k + ATTN_OUTER_AHEAD_ < some && c < attn_bytes_(p->a.dtype, rows);
           c += 64)
        ATTN_PREFETCH_(from + ATTN_OUTER_AHEAD_ * bytes + c);
      if (p->a.dtype != ATTN_F32) {
        p->table->widen(wide, from, 0, NULL, 1, rows, p->a.dtype, NULL);
        row = wide;
      }
      float *six = to;
      int64_t r = 0;
      for (; r + 6 <= rows; r += 6, six += p->step) memcpy(six, row + r, 6 * sizeof *six);
      for (int64_t e = r; e < rows; e++) six[e - r] = row[e];
    }
  }
}

/* Columns c .. c + cols - 1, up to a panel, of n rows of B from row `at` on as strips one after the other. */
ATTN_FUNC_ void attn_outer_right_(const attn_outer_ *p, const attn_outer_rows_ *u, float *to,
                                  int64_t at, int64_t n, int64_t c, int64_t cols) {
  const int64_t one = n * p->strip, bytes = attn_bytes_(p->b.dtype, p->b.stride_len);
  const int copied = p->b.dtype == ATTN_F32 && cols % p->strip == 0;
  for (int64_t some; n > 0; n -= some, at += some) {
    some = n;
    const char *from = attn_outer_row_(u, &p->b, at, &some) + attn_bytes_(p->b.dtype, c);
    for (int64_t k = 0; copied && k < some; k++, from += bytes, to += p->strip) {
      const int64_t ahead = k + ATTN_OUTER_AHEAD_ < some ? ATTN_OUTER_AHEAD_ * bytes : 0;
      const float *row = (const float *)(const void *)from;
      float *strip = to;
      for (int64_t left = cols; left > 0; left -= p->strip, strip += one)
        for (int e = 0; e < p->strip; e += 16, row += 16) {
          ATTN_PREFETCH_((const char *)row + ahead);
          memcpy(strip + e, row, 16 * sizeof *row);
        }
    }
    if (copied) continue;
    for (int64_t e = 0; e < cols; e += p->strip)
      attn_strip_copy_(p->table, &p->m, from + attn_bytes_(p->b.dtype, e), to + e / p->strip * one,
                       p->strip, some, cols - e < p->strip ? (int)(cols - e) : p->strip);
    to += some * p->strip;
  }
}

ATTN_FUNC_ void attn_outer_item_(void *job, int worker, int64_t index) {
  const attn_outer_ *p = (const attn_outer_ *)job;
  const attn_table_ *f = p->table;
  const attn_tensor *y = &p->y;
  const int64_t at = index / p->col_runs, unit = at / p->row_runs;
  const int64_t b = unit / y->heads, h = unit % y->heads;
  const int64_t r0 = at % p->row_runs * p->rows, c0 = index % p->col_runs * p->cols;
  const int64_t rows = y->len - r0 < p->rows ? y->len - r0 : p->rows;
  const int64_t c1 = y->dim - c0 < p->cols ? y->dim : c0 + p->cols;
  const int each_b = y->batch == p->a.batch, each_h = y->heads == p->a.heads;
  attn_outer_rows_ u;
  u.b = each_b ? b : 0, u.h = each_h ? h : 0, u.heads = each_h ? 1 : p->a.heads;
  u.all = (each_b ? 1 : p->a.batch) * u.heads * p->a.len;
  float *sum = (float *)(void *)(p->memory + worker * p->each);
  float *left = sum + p->most * p->wide;
  float *right = left + attn_runs_of_(p->most, 6) * p->step;
  if (u.all == 0) attn_clear_(sum, (size_t)(p->most * p->wide) * sizeof *sum);
  for (int64_t i = 0, n; i < u.all; i += n) {
    n = u.all - i < ATTN_SHARES_RUN_ ? u.all - i : (int64_t)ATTN_SHARES_RUN_;
    attn_outer_left_(p, &u, left, i, n, r0, rows);
    for (int64_t c = c0; c < c1; c += ATTN_PANEL_) {
      const int64_t end = c1 - c < ATTN_PANEL_ ? c1 : c + ATTN_PANEL_;
      attn_outer_right_(p, &u, right, i, n, c, end - c);
      for (int64_t e = c; e < end; e += p->strip)
        for (int64_t r = 0; r < rows; r += 6)
          attn_on_(dense, f)->gemm(sum + r * p->wide + (e - c0), p->wide,
                                   rows - r < 6 ? rows - r : 6, left + r / 6 * p->step, 1, 6,
                                   right + (e - c) * n, p->strip, n,
                                   end - e < p->strip ? end - e : p->strip, i ? 2 : 1);
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    char *to = attn_at_(y, b, h, r0 + r) + attn_bytes_(y->dtype, c0);
    f->blend(to, sum + r * p->wide, p->accumulate ? to : NULL, y->dtype, ATTN_F32, y->dtype,
             c1 - c0, p->scale, 1.0f);
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
  p.strip = attn_matrix_strip_(&p.m, s->table);
  const int64_t run = ATTN_SHARES_RUN_;
  p.wide = p.cols + ATTN_GROUP_;
  p.step = 6 * run + ATTN_GROUP_; /* places of the first cache are not shared */
  p.each = attn_piece_(p.most * p.wide + attn_runs_of_(p.most, 6) * p.step + run * ATTN_PANEL_,
                       sizeof(float));
  int64_t items;
  for (;;) { /* of few items the last ones would leave workers without */
    p.row_runs = attn_runs_of_(y.len, p.rows), p.col_runs = attn_runs_of_(y.dim, p.cols);
    items = attn_mul_(attn_mul_(y.batch, y.heads), attn_mul_(p.row_runs, p.col_runs));
    if (s->workers < 2 || items >= 4 * (int64_t)s->workers) break;
    if (p.cols > ATTN_PANEL_)
      p.cols = attn_runs_of_(p.cols, 2 * ATTN_PANEL_) * ATTN_PANEL_;
    else if (p.rows > 24)
      p.rows = attn_runs_of_(p.rows, 12) * 6;
    else
      break;
  }
  return attn_stage_for_(s, items, attn_outer_item_, &p, p.each, &p.memory);
}
