/* calls/convolve.h owns convolution along the sequence by dense matrices, a product of the gemm tile
 * for each tap: rows are read where they lie, and those of the padding never. */

/* Where the taps of a convolution lie. */
typedef struct attn_taps_ {
  int64_t kernel, stride, dilation, reach;
  attn_pad pad;
} attn_taps_;

/* 0 for parameters that are no good. */
ATTN_COLD_ int attn_taps_of_(attn_taps_ *t, int64_t kernel, const attn_convolve_params *p) {
  memset(t, 0, sizeof *t);
  t->kernel = kernel, t->stride = p ? p->stride : 0, t->dilation = p ? p->dilation : 0;
  t->pad = p ? p->pad : ATTN_PAD_DEFAULT;
  if (t->stride == 0) t->stride = 1;
  if (t->dilation == 0) t->dilation = 1;
  if (t->pad == ATTN_PAD_DEFAULT) t->pad = ATTN_PAD_DROP;
  const int64_t most = INT32_MAX;
  if (kernel < 1 || kernel > most || t->stride < 1 || t->stride > most || t->dilation < 1 ||
      t->dilation > most || (int)t->pad < 0 || t->pad >= ATTN_PAD_COUNT)
    return 0;
  t->reach = (kernel - 1) * t->dilation + 1;
  return 1;
}

/* Output rows of n rows. */
ATTN_FUNC_ int64_t attn_taps_len_(const attn_taps_ *t, int64_t n) {
  if (t->pad == ATTN_PAD_DROP) return n < t->reach ? 0 : 1 + (n - t->reach) / t->stride;
  return n / t->stride + (n % t->stride != 0);
}

/* The row under the first tap of output row m of `len`; it may not exist. */
ATTN_FUNC_ int64_t attn_taps_start_(const attn_taps_ *t, int64_t m, int64_t len, int64_t n) {
  if (t->pad == ATTN_PAD_LEFT) return n - t->reach - (len - 1 - m) * t->stride;
  if (t->pad == ATTN_PAD_SAME) return m * t->stride - (t->kernel - 1) / 2 * t->dilation;
  return m * t->stride;
}

ATTN_PUB_ int64_t attn_convolve_len(int64_t n, int64_t kernel, const attn_convolve_params *params) {
  attn_taps_ t;
  return n < 0 || !attn_taps_of_(&t, kernel, params) ? -1 : attn_taps_len_(&t, n);
}

typedef struct attn_convolve_ {
  const attn_table_ *table;
  attn_tensor y, x, bias;
  const int32_t *len;
  attn_taps_ taps;
  attn_matrix_ w;
  int64_t row_runs, col_runs;
  char *own; /* of the workers: rows of x and of y as f32 */
  int64_t each, at_y;
} attn_convolve_;

/* `rows` rows of y += one tap, a part of the matrix, whose row for the first is x_i of batch entry b */
ATTN_FUNC_ void attn_convolve_tap_(const attn_convolve_ *a, const attn_matrix_part_ *tap,
                                   float *wide, float *y, int64_t y_stride, int64_t rows, int64_t b,
                                   int64_t i, int start) {
  const int64_t d = a->x.dim, step = a->taps.stride * a->x.stride_len;
  const char *in = attn_at_(&a->x, b, tap->h, i);
  attn_matrix_part_ run = *tap;
  if (a->x.dtype == ATTN_F32) {
    attn_matrix_times_(a->table, &a->w, tap, y, y_stride,
                       attn_floats_at_((const float *)(const void *)in, step, rows), start);
    return;
  }
  for (int64_t k = 0; k < d; k += ATTN_DEEP_) {
    const int64_t n = d - k < ATTN_DEEP_ ? d - k : (int64_t)ATTN_DEEP_;
    a->table->widen(wide, in + attn_bytes_(a->x.dtype, k), step, NULL, rows, n, a->x.dtype, NULL);
    run.k0 = tap->k0 + k, run.depth = n;
    attn_matrix_times_(a->table, &a->w, &run, y, y_stride, attn_floats_at_(wide, n, rows),
                       start && k == 0);
  }
}

/* 96 rows by 256 columns of one head. */
ATTN_FUNC_ void attn_convolve_item_(void *job, int worker, int64_t index) {
  const attn_convolve_ *a = (const attn_convolve_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / (a->row_runs * a->col_runs),
                at = index % (a->row_runs * a->col_runs);
  const int64_t b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t m0 = at / a->col_runs * ATTN_GEMM_ROWS_, c0 = at % a->col_runs * ATTN_GEMM_COLS_;
  const int64_t all = a->y.len - m0 < ATTN_GEMM_ROWS_ ? a->y.len - m0 : (int64_t)ATTN_GEMM_ROWS_;
  const int64_t c1 = a->y.dim - c0 < ATTN_GEMM_COLS_ ? a->y.dim : c0 + ATTN_GEMM_COLS_;
  const int64_t n = attn_len_of_(a->len, b, a->x.len), len = attn_taps_len_(&a->taps, n);
  const int64_t rows = len <= m0 ? 0 : len - m0 < all ? len - m0 : all;
  const int64_t step = a->taps.stride, first = attn_taps_start_(&a->taps, m0, len, n);
  char *own = a->own + worker * a->each;
  float *y = (float *)(void *)attn_at_(&a->y, b, h, m0), bias[ATTN_GEMM_COLS_];
  int64_t stride = a->y.stride_len;
  if (a->y.dtype == ATTN_F32)
    y += c0;
  else
    y = (float *)(void *)(own + a->at_y), stride = ATTN_GEMM_COLS_;
  for (int64_t r = 0, started = 0; r < a->taps.kernel && rows > 0; r++) {
    const int64_t i = first + r * a->taps.dilation; /* of the first row; then i + step, .. */
    const int64_t lo = i >= 0 ? 0 : (step - 1 - i) / step, hi = i >= n ? 0 : (n - 1 - i) / step + 1;
    const int64_t end = hi < rows ? hi : rows, whole = lo == 0 && end == rows;
    const attn_matrix_part_ tap = {0, h, r * a->x.dim, a->x.dim, c0, c1};
    if (!started && !whole)
      for (int64_t m = 0; m < rows; m++) memset(y + m * stride, 0, (size_t)(c1 - c0) * sizeof *y);
    if (lo < end)
      attn_convolve_tap_(a, &tap, (float *)(void *)own, y + lo * stride, stride, end - lo, b,
                         i + lo * step, !started && whole);
    started = 1;
  }
  if (a->bias.data)
    f->widen(bias,
             attn_at_(&a->bias, 0, a->bias.heads > 1 ? h : 0, 0) + attn_bytes_(a->bias.dtype, c0),
             0, NULL, 1, c1 - c0, a->bias.dtype, NULL);
  for (int64_t m = 0; m < all; m++) {
    char *to = attn_at_(&a->y, b, h, m0 + m) + attn_bytes_(a->y.dtype, c0);
    const float *from = m < rows ? y + m * stride : NULL;
    if (from && a->bias.data)
      attn_on_(dense, f)->activate(y + m * stride, c1 - c0, bias, 1.0f, ATTN_ACT_NONE);
    if (!from || a->y.dtype != ATTN_F32)
      f->blend(to, from, NULL, a->y.dtype, ATTN_F32, ATTN_F32, c1 - c0, 1.0f, 0.0f);
  }
}

/* attn_convolve as a step; its arguments have been judged. */
ATTN_COLD_ int attn_stage_convolve_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                    const attn_convolve_params *params) {
  attn_convolve_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.y = y, a.x = x;
  if (params) a.bias = params->bias, a.len = params->x_len;
  (void)attn_taps_of_(&a.taps, w.len / x.dim, params);
  a.w = attn_matrix_of_(w, 0, y.len, y.batch);
  a.row_runs = y.len / ATTN_GEMM_ROWS_ + (y.len % ATTN_GEMM_ROWS_ != 0);
  a.col_runs = y.dim / ATTN_GEMM_COLS_ + (y.dim % ATTN_GEMM_COLS_ != 0);
  a.at_y = x.dtype != ATTN_F32 ? attn_piece_((int64_t)ATTN_GEMM_ROWS_ * (int64_t)ATTN_DEEP_, 4) : 0;
  a.each = a.at_y + (y.dtype != ATTN_F32 ? attn_piece_(ATTN_GEMM_ROWS_ * ATTN_GEMM_COLS_, 4) : 0);
  const int64_t items = attn_mul_(attn_mul_(y.batch, y.heads), attn_mul_(a.row_runs, a.col_runs));
  if (items == 0) return 1;
  const int pieces = attn_pieces_(s->workers, items);
  const int64_t packed = attn_matrix_bytes_(&a.w);
  char *memory = attn_stage_spare_(s, attn_add_(packed, attn_mul_(a.each, pieces)));
  if (!s->run) return 1;
  a.own = memory + packed;
  attn_matrix_lay_(&a.w, s->table, memory, &s->ctx, s->workers);
  attn_for_(&s->ctx, pieces, items, attn_convolve_item_, &a);
  return 1;
}

/* ---- the call -------------------------------------------------------------------------------*/

typedef struct attn_convolve_job_ {
  attn_tensor y, x, w;
  attn_convolve_params p;
} attn_convolve_job_;

ATTN_COLD_ int attn_convolve_steps_(attn_stage_ *s, void *job) {
  const attn_convolve_job_ *j = (const attn_convolve_job_ *)job;
  return attn_stage_convolve_(s, j->y, j->x, j->w, &j->p);
}

/* Every rule of both convolutions. */
ATTN_COLD_ int attn_convolve_check_(attn_error_ *e, attn_convolve_job_ *j, const attn_ctx *ctx,
                                    int query, int depthwise) {
  static const char *const w[] = {ATTN_WORDS_("y"), ATTN_WORDS_("x"), ATTN_WORDS_("w"),
                                  ATTN_WORDS_("params.bias")};
  attn_convolve_params *p = &j->p;
  attn_span_ len;
  attn_taps_ taps;
  const int64_t heads = j->y.heads, any = ATTN_ANY_, few = ATTN_ONE_OR_ALL_;
  attn_operand_ op[] = {ATTN_OPERAND_AS_(&j->y, w[0], ATTN_OUT_, any, any, any, any, ""),
                        ATTN_OPERAND_AS_(&j->x, w[1], 0, j->y.batch, heads, any, any,
                                         "x must have the batch and heads of y"),
                        ATTN_OPERAND_AS_(&j->w, w[2], 0, 1, few, any, any,
                                         "w.batch must be 1, w.heads 1 or those of y"),
                        ATTN_OPERAND_AS_(&p->bias, w[3], ATTN_OPTIONAL_, 1, few, 1, j->y.dim,
                                         "params.bias must be [1, 1 or H, 1, y.dim]")};
  for (int i = 0; i < 3; i++)
    if (!attn_check_operand_(e, &op[i], heads)) return 0;
  if (depthwise ? j->x.dim != j->y.dim || (j->w.dim != 1 && j->w.dim != j->x.dim)
                : j->w.dim != j->y.dim || j->w.len % j->x.dim)
    return attn_reject_(e, ATTN_E_SHAPE,
                        depthwise ? "x.dim must equal y.dim, and w.dim that or 1"
                                  : "w.dim must equal y.dim, and x.dim divide w.len");
  if (j->w.len < 1) return attn_reject_(e, ATTN_E_SHAPE, "w.len must not be 0");
  if (depthwise ? p->bias.data != NULL : p->accumulate != 0)
    return attn_reject_(e, ATTN_E_VALUE,
                        depthwise ? "params.bias is for attn_convolve alone"
                                  : "params.accumulate is for attn_convolve_depthwise alone");
  if (!depthwise && !attn_check_operand_(e, &op[3], heads)) return 0;
  if ((int)p->pad < 0 || p->pad >= ATTN_PAD_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.pad must be an attn_pad");
  if (!attn_taps_of_(&taps, depthwise ? j->w.len : j->w.len / j->x.dim, p))
    return attn_reject_(e, ATTN_E_RANGE,
                        "kernel, params.stride and params.dilation must lie in 1..2^31 - 1");
  if (j->x.len > INT64_MAX / 4) return attn_reject_(e, ATTN_E_OVERFLOW, "x.len is too large");
  if (j->y.len != attn_taps_len_(&taps, j->x.len))
    return attn_reject_(e, ATTN_E_SHAPE, "y.len must be attn_convolve_len of x.len");
  if (!attn_check_array_(e, p->x_len, j->y.batch, 4, "params.x_len must be aligned to its elements",
                         &len) ||
      !attn_check_apart_(e, ctx, op, 4, &len, 1))
    return 0;
  return query ||
         attn_check_lens_(e, p->x_len, j->y.batch, j->x.len, "params.x_len must lie in 0..x.len");
}

ATTN_COLD_ attn_status attn_convolve_call_(attn_tensor y, attn_tensor x, attn_tensor w,
                                           const attn_convolve_params *params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_convolve_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.w = w;
  if (params) j.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_convolve_check_(&e, &j, ctx, bytes != NULL, 0);
  return attn_step_call_(&e, table, workers, ctx, attn_convolve_steps_, &j, "a dense product a tap",
                         bytes);
}

ATTN_PUB_ attn_status attn_convolve(attn_tensor y, attn_tensor x, attn_tensor w,
                                    const attn_convolve_params *params, attn_ctx *ctx) {
  return attn_convolve_call_(y, x, w, params, ctx, NULL);
}
ATTN_PUB_COLD_ size_t attn_convolve_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                              const attn_convolve_params *params,
                                              const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_convolve_call_(y, x, w, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
