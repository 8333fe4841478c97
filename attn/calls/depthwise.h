/* calls/depthwise.h owns convolution of each column by itself. Six neighbouring output rows read
 * nearly the same input rows: with one weight a tap they are a product of the gemm tile, whose left
 * matrix is six copies of the weights, each a place farther on, in one array with zeros at its ends. */

enum { ATTN_SIX_ = 6 };

typedef struct attn_depthwise_ {
  const attn_table_ *table;
  attn_tensor y, x, w;
  const int32_t *len;
  int accumulate, banded; /* by the product */
  int copied;             /* rows of x are made f32 in whole vectors */
  attn_taps_ taps;
  int64_t run, runs, width; /* output rows of an item; floats of a copied row */
  float *taps_at;           /* [w.heads][one]: weights, with 5 zeros before and after */
  int64_t one;
  char *own; /* of the workers */
  int64_t each, at_rows;
} attn_depthwise_;

/* Columns that are worked on together where each has its weights. */
enum { ATTN_DEPTHWISE_COLUMNS_ = 64 };

/* Rows of y += rows of x times w, a number for each of `cols` columns (own) or one for all; columns behind whole groups of 16
 * one by one, since vectors would end beyond the row. */
ATTN_FUNC_ void attn_depthwise_tap_(const attn_table_ *f, float *y, int64_t y_stride,
                                    const float *x, int64_t x_stride, const float *w, int own,
                                    int64_t rows, int cols) {
  const int whole = cols / 16 * 16;
  float by[ATTN_DEPTHWISE_COLUMNS_];
  for (int k = 0; !own && k < whole; k++) by[k] = *w;
  if (whole) attn_on_(dense, f)->join_runs(y, y_stride, x, x_stride, own ? w : by, rows, whole, 0);
  for (int64_t r = 0; r < rows; r++)
    for (int k = whole; k < cols; k++) y[r * y_stride + k] += w[own ? k : 0] * x[r * x_stride + k];
}

/* One row of y from its sum. */
ATTN_FUNC_ void attn_depthwise_put_(const attn_depthwise_ *a, int64_t b, int64_t h, int64_t m,
                                    const float *sum) {
  char *to = attn_at_(&a->y, b, h, m);
  if (sum || !a->accumulate)
    a->table->blend(to, sum, a->accumulate ? to : NULL, a->y.dtype, ATTN_F32, a->y.dtype, a->y.dim,
                    1.0f, 1.0f);
}

/* Output rows m .. m + rows - 1, at most six, whose first tap lies on row `start` of x. */
ATTN_FUNC_ void attn_depthwise_six_(const attn_depthwise_ *a, float *y, int64_t y_stride,
                                    int64_t rows, const float *taps, const float *x,
                                    int64_t x_stride, int64_t start, int64_t n) {
  const int64_t end = start + a->taps.kernel + rows - 1; /* after the last row that is read */
  const int64_t i0 = start < 0 ? 0 : start, i1 = end < n ? end : n;
  attn_on_(dense, a->table)
      ->gemm(y, y_stride, rows, taps + (ATTN_SIX_ - 1) + (i0 - start), -1, 1, x + i0 * x_stride,
             x_stride, i1 > i0 ? i1 - i0 : 0, a->x.dim, 1);
}

/* One output row from any rows; a NaN elsewhere does not reach it. */
ATTN_FUNC_ void attn_depthwise_row_(const attn_depthwise_ *a, float *sum, const float *taps,
                                    int64_t b, int64_t h, int64_t start, int64_t n) {
  const int64_t step = a->taps.dilation, d = a->x.dim;
  const int64_t r0 = start >= 0 ? 0 : (step - 1 - start) / step;
  const int64_t last = start >= n ? 0 : (n - 1 - start) / step + 1;
  const int64_t r1 = last < a->taps.kernel ? last : a->taps.kernel;
  int32_t index[ATTN_BLOCK_];
  for (int i = 0; i < ATTN_BLOCK_; i++) index[i] = i;
  memset(sum, 0, (size_t)d * sizeof *sum);
  for (int64_t r = r0; r < r1; r += ATTN_BLOCK_)
    attn_on_(sum, a->table)
        ->axpys(sum, taps + (ATTN_SIX_ - 1) + r, attn_at_(&a->x, b, h, start + r * step),
                a->x.stride_len * step, index, r1 - r < ATTN_BLOCK_ ? r1 - r : ATTN_BLOCK_, d,
                a->x.dtype, 1.0f, 0);
}

/* The six with weights for each column, of the n rows of x that are there. */
ATTN_FUNC_ void attn_depthwise_columns_(const attn_depthwise_ *a, float *y, int64_t y_stride,
                                        int64_t rows, const float *taps, const float *x,
                                        int64_t x_stride, int64_t start, int64_t n) {
  const int64_t step = a->taps.stride, d = a->x.dim;
  for (int64_t m = 0; m < rows; m++) memset(y + m * y_stride, 0, (size_t)d * sizeof *y);
  for (int64_t c = 0; c < d; c += ATTN_DEPTHWISE_COLUMNS_)
    for (int64_t r = 0; r < a->taps.kernel; r++) {
      const int64_t i = start + r * a->taps.dilation; /* of the first row; then i + step, .. */
      const int64_t m0 = i >= 0 ? 0 : (step - 1 - i) / step;
      const int64_t m1 = i >= n ? 0 : attn_min64_((n - 1 - i) / step + 1, rows);
      if (m0 < m1)
        attn_depthwise_tap_(a->table, y + m0 * y_stride + c, y_stride,
                            x + (i + m0 * step) * x_stride + c, step * x_stride,
                            taps + r * a->width + c, 1, m1 - m0,
                            (int)attn_min64_(d - c, ATTN_DEPTHWISE_COLUMNS_));
    }
}

/* A run of output rows of one head. */
ATTN_FUNC_ void attn_depthwise_item_(void *job, int worker, int64_t index) {
  const attn_depthwise_ *a = (const attn_depthwise_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->runs, b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t m0 = index % a->runs * a->run, d = a->x.dim;
  const int64_t m1 = a->y.len - m0 < a->run ? a->y.len : m0 + a->run;
  const int64_t n = attn_len_of_(a->len, b, a->x.len), len = attn_taps_len_(&a->taps, n);
  const int64_t end = len < m0 ? m0 : len < m1 ? len : m1;
  const float *taps = a->taps_at + (a->w.heads > 1 ? h : 0) * a->one;
  char *own = a->own + worker * a->each;
  float *sum = (float *)(void *)own; /* six rows */
  /* the rows the run reads */
  const int64_t first = attn_taps_start_(&a->taps, m0, len, n);
  const int64_t past = first + (end - m0 - 1) * a->taps.stride + a->taps.reach;
  const int64_t i0 = first < 0 ? 0 : first < n ? first : n, i1 = past < n ? past : n;
  const int per_column = a->w.dim > 1, direct = a->y.dtype == ATTN_F32 && !a->accumulate;
  const float *x = (const float *)(const void *)attn_at_(&a->x, b, h, i0);
  int64_t stride = a->x.stride_len;
  if (a->copied) {
    float *rows = (float *)(void *)(own + a->at_rows);
    for (int64_t i = i0; i < i1 && end > m0; i++)
      f->widen(rows + (i - i0) * a->width, attn_at_(&a->x, b, h, i), 0, NULL, 1, d, a->x.dtype,
               NULL);
    x = rows, stride = a->width;
  }
  const int six = a->banded && end > m0 && (i1 <= i0 || f->finite(x, stride, i1 - i0, d));
  for (int64_t m = m0; m < end;) {
    const int64_t start = first + (m - m0) * a->taps.stride;
    if (six || per_column) {
      const int64_t rows = end - m < ATTN_SIX_ ? end - m : (int64_t)ATTN_SIX_;
      float *to = direct ? (float *)(void *)attn_at_(&a->y, b, h, m) : sum;
      const int64_t to_stride = direct ? a->y.stride_len : a->width;
      if (six)
        attn_depthwise_six_(a, to, to_stride, rows, taps, x, stride, start - i0, i1 - i0);
      else
        attn_depthwise_columns_(a, to, to_stride, rows, taps, x, stride, start - i0, i1 - i0);
      for (int64_t r = 0; r < rows && !direct; r++)
        attn_depthwise_put_(a, b, h, m + r, sum + r * a->width);
      m += rows;
      continue;
    }
    attn_depthwise_row_(a, sum, taps, b, h, start, n);
    attn_depthwise_put_(a, b, h, m++, sum);
  }
  for (int64_t m = end; m < m1; m++) attn_depthwise_put_(a, b, h, m, NULL);
}

ATTN_COLD_ void attn_depthwise_pack_(const attn_depthwise_ *a) {
  const int64_t kernel = a->taps.kernel;
  memset(a->taps_at, 0, (size_t)(a->w.heads * a->one) * sizeof(float));
  for (int64_t h = 0; h < a->w.heads; h++)
    for (int64_t r = 0; r < kernel; r++) {
      float *to = a->taps_at + h * a->one;
      to += a->w.dim > 1 ? r * a->width : ATTN_SIX_ - 1 + r;
      a->table->widen(to, attn_at_(&a->w, 0, h, r), 0, NULL, 1, a->w.dim, a->w.dtype, NULL);
    }
}

/* attn_convolve_depthwise as a step; its arguments have been judged. */
ATTN_COLD_ int attn_stage_depthwise_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                     const attn_convolve_params *params) {
  attn_depthwise_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.y = y, a.x = x, a.w = w;
  if (params) a.len = params->x_len, a.accumulate = params->accumulate;
  (void)attn_taps_of_(&a.taps, w.len, params);
  const int per_column = w.dim > 1;
  a.banded = !per_column && a.taps.stride == 1 && a.taps.dilation == 1;
  a.width = attn_round_up_(x.dim, 16);
  a.copied = (a.banded && x.dim % 16 != 0) || ((a.banded || per_column) && x.dtype != ATTN_F32);
  a.run = w.len < 24 ? 96 : w.len < 128 ? w.len / ATTN_SIX_ * 24 : 512; /* whole sixes */
  if (a.run == 512) a.run = 510;
  a.runs = y.len / a.run + (y.len % a.run != 0);
  a.one = per_column ? attn_mul_(w.len, a.width) : attn_add_(w.len, 2 * (ATTN_SIX_ - 1));
  a.at_rows = attn_piece_(attn_mul_(ATTN_SIX_, a.width), 4);
  const int64_t rows =
      attn_add_(attn_mul_((a.run < y.len ? a.run : y.len) - 1, a.taps.stride), a.taps.reach);
  a.each = attn_add_(
      a.at_rows, attn_piece_(a.copied ? attn_mul_(rows < x.len ? rows : x.len, a.width) : 0, 4));
  const int64_t items = attn_mul_(attn_mul_(y.batch, y.heads), a.runs);
  if (items == 0) return 1;
  const int pieces = attn_pieces_(s->workers, items);
  const int64_t packed = attn_piece_(attn_mul_(w.heads, a.one), 4);
  char *memory = attn_stage_spare_(s, attn_add_(packed, attn_mul_(a.each, pieces)));
  if (!s->run) return 1;
  a.taps_at = (float *)(void *)memory, a.own = memory + packed;
  attn_depthwise_pack_(&a);
  attn_for_(&s->ctx, pieces, items, attn_depthwise_item_, &a);
  return 1;
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_depthwise_steps_(attn_stage_ *s, void *job) {
  const attn_convolve_job_ *j = (const attn_convolve_job_ *)job;
  return attn_stage_depthwise_(s, j->y, j->x, j->w, &j->p);
}

ATTN_COLD_ attn_status attn_convolve_depthwise_call_(attn_tensor y, attn_tensor x, attn_tensor w,
                                                     const attn_convolve_params *params,
                                                     attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_convolve_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.w = w;
  if (params) j.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_convolve_check_(&e, &j, ctx, bytes != NULL, 1);
  return attn_step_call_(&e, table, workers, ctx, attn_depthwise_steps_, &j,
                         "columns by themselves", bytes);
}

ATTN_CALL_(attn_convolve_depthwise, (y, x, w, params), attn_tensor y, attn_tensor x, attn_tensor w,
           const attn_convolve_params *params)
