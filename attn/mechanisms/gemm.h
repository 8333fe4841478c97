/* mechanisms/gemm.h owns dense products of rows. W is read in place or lies in panels of 64 columns;
 * 96 rows of X by 256 columns are an item; sums over more than 128 elements go on where Y is. */

enum { ATTN_GEMM_PANEL_ = 64, ATTN_GEMM_ROWS_ = 96, ATTN_GEMM_COLS_ = 256, ATTN_GEMM_DEEP_ = 128 };
#define ATTN_GEMM_IN_PLACE_ 48 /* rows from which on copying W pays; measured */

typedef struct attn_gemm_ {
  const attn_table_ *table;
  attn_tensor y, x, w, bias;
  float scale;
  int act, transposed;
  int finish;          /* something follows the product */
  int64_t k, n;        /* W is k x n */
  int64_t direct;      /* columns whose W is read in place */
  int64_t panels, one; /* of the others; floats of a matrix of them */
  float *packed;       /* [w.batch][w.heads][panels][k][64] */
  int64_t row_runs, col_runs;
  char *own; /* of the workers: rows of x and of y as f32 */
  int64_t own_bytes, own_y;
} attn_gemm_;

/* Whether t broadcasts to the batch and heads of y. */
ATTN_FUNC_ int attn_gemm_fits_(const attn_tensor *t, const attn_tensor *y) {
  return (t->batch == 1 || t->batch == y->batch) && (t->heads == 1 || t->heads == y->heads);
}

/* Every rule; everything but memory is set. */
ATTN_FUNC_ int attn_gemm_plan_(attn_error_ *e, attn_gemm_ *a, attn_tensor y, attn_tensor x,
                               attn_tensor w, const attn_gemm_params *params, const attn_ctx *ctx,
                               int *workers) {
  static const attn_words_ wy = ATTN_WORDS_("y"), wx = ATTN_WORDS_("x"), ww = ATTN_WORDS_("w"),
                           wb = ATTN_WORDS_("params.bias");
  attn_span_ sy, sx, sw, sb = {0, 0}, ss;
  memset(a, 0, sizeof *a);
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  a->y = y, a->x = x, a->w = w, a->scale = 1.0f;
  if (!attn_check_tensor_(e, &a->y, &wy, &sy) || !attn_check_tensor_(e, &a->x, &wx, &sx) ||
      !attn_check_tensor_(e, &a->w, &ww, &sw))
    return 0;
  a->transposed = params && params->w_transposed;
  a->k = a->transposed ? w.dim : w.len, a->n = a->transposed ? w.len : w.dim;
  if (x.len != y.len) return attn_reject_(e, ATTN_E_SHAPE, "x.len must equal y.len");
  if (a->k != x.dim)
    return attn_reject_(e, ATTN_E_SHAPE,
                        a->transposed ? "w.dim must equal x.dim for params.w_transposed"
                                      : "w.len must equal x.dim");
  if (a->n != y.dim)
    return attn_reject_(e, ATTN_E_SHAPE,
                        a->transposed ? "w.len must equal y.dim for params.w_transposed"
                                      : "w.dim must equal y.dim");
  if (!attn_gemm_fits_(&a->x, &y) || !attn_gemm_fits_(&a->w, &y))
    return attn_reject_(e, ATTN_E_SHAPE,
                        attn_gemm_fits_(&a->x, &y) ? "w.batch and w.heads must be 1 or those of y"
                                                   : "x.batch and x.heads must be 1 or those of y");
  if (params) {
    if (params->scale != 0.0f || signbit(params->scale)) a->scale = params->scale;
    if (!(a->scale - a->scale == 0.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
    if ((int)params->activation < 0 || params->activation >= ATTN_ACT_COUNT)
      return attn_reject_(e, ATTN_E_VALUE, "params.activation is none of attn_activation");
    a->act = (int)params->activation, a->bias = params->bias;
    if (a->bias.data) {
      if (!attn_check_tensor_(e, &a->bias, &wb, &sb)) return 0;
      if (a->bias.len != 1 || a->bias.dim != y.dim || !attn_gemm_fits_(&a->bias, &y))
        return attn_reject_(e, ATTN_E_SHAPE,
                            "params.bias must be [1 or B, 1 or H, 1, y.dim] for y's B and H");
    }
  }
  if (!attn_check_rows_(e, &a->y, &wy) || !attn_check_workspace_(e, ctx, &ss)) return 0;
  if (attn_overlap_(sy, sx) || attn_overlap_(sy, sw) || attn_overlap_(sy, sb))
    return attn_reject_(e, ATTN_E_OVERLAP, wy.overlap);
  if (attn_overlap_(ss, sx) || attn_overlap_(ss, sw) || attn_overlap_(ss, sb) ||
      attn_overlap_(ss, sy))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace shares memory with an argument");
  a->finish = a->act || a->bias.data || a->scale != 1.0f;
  if (w.dtype == ATTN_F32 && !a->transposed && y.len < ATTN_GEMM_IN_PLACE_)
    a->direct = a->n / 16 * 16;
  a->panels = (a->n - a->direct + ATTN_GEMM_PANEL_ - 1) / ATTN_GEMM_PANEL_;
  a->one = attn_mul_(a->panels, attn_mul_(a->k, ATTN_GEMM_PANEL_));
  a->row_runs = y.len / ATTN_GEMM_ROWS_ + (y.len % ATTN_GEMM_ROWS_ != 0);
  a->col_runs = (a->n + ATTN_GEMM_COLS_ - 1) / ATTN_GEMM_COLS_;
  a->own_y = x.dtype != ATTN_F32 ? attn_piece_(ATTN_GEMM_ROWS_ * ATTN_GEMM_DEEP_, 4) : 0;
  a->own_bytes = a->own_y + (y.dtype != ATTN_F32 ? ATTN_GEMM_ROWS_ * ATTN_GEMM_COLS_ * 4 : 0);
  *workers = attn_pieces_(
      *workers, attn_mul_(attn_mul_(y.batch, y.heads), attn_mul_(a->row_runs, a->col_runs)));
  return 1;
}

ATTN_FUNC_ int64_t attn_gemm_bytes_(const attn_gemm_ *a, int workers) {
  if (a->y.batch == 0 || a->y.heads == 0 || a->y.len == 0) return 0;
  const int64_t packed = attn_piece_(attn_mul_(attn_mul_(a->w.batch, a->w.heads), a->one), 4);
  const int64_t bytes = attn_add_(packed, attn_mul_(a->own_bytes, workers));
  return bytes ? attn_workspace_bytes_(bytes, 1) : 0;
}

/* A panel of one matrix: 64 columns or what is left, the rest 0. */
ATTN_FUNC_ void attn_gemm_pack_(void *job, int worker, int64_t index) {
  const attn_gemm_ *a = (const attn_gemm_ *)job;
  const int64_t matrix = index / a->panels, panel = index % a->panels;
  const int64_t b = matrix / a->w.heads, h = matrix % a->w.heads;
  const int64_t c = a->direct + panel * ATTN_GEMM_PANEL_;
  const int cols = a->n - c < ATTN_GEMM_PANEL_ ? (int)(a->n - c) : (int)ATTN_GEMM_PANEL_;
  float *to = a->packed + matrix * a->one + panel * a->k * ATTN_GEMM_PANEL_;
  (void)worker;
  if (cols < ATTN_GEMM_PANEL_) memset(to, 0, (size_t)(a->k * ATTN_GEMM_PANEL_) * sizeof(float));
  if (a->transposed) {
    const void *rows[ATTN_GEMM_PANEL_];
    for (int i = 0; i < cols; i++) rows[i] = attn_at_(&a->w, b, h, c + i);
    a->table->pack(to, rows, cols, a->k, (int)a->w.dtype, 1.0f, FLT_MIN);
    return;
  }
  const int64_t at_once = cols == ATTN_GEMM_PANEL_ ? a->k : 1;
  for (int64_t i = 0; i < a->k; i += at_once)
    a->table->widen(to + i * ATTN_GEMM_PANEL_,
                    attn_at_(&a->w, b, h, i) + attn_bytes_(a->w.dtype, c), a->w.stride_len, NULL,
                    at_once, cols, a->w.dtype, NULL);
}

/* 96 rows by 256 columns of one product. */
ATTN_FUNC_ void attn_gemm_item_(void *job, int worker, int64_t index) {
  const attn_gemm_ *a = (const attn_gemm_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / (a->row_runs * a->col_runs),
                at = index % (a->row_runs * a->col_runs);
  const int64_t b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t wb = a->w.batch > 1 ? b : 0, wh = a->w.heads > 1 ? h : 0;
  const int64_t r0 = at / a->col_runs * ATTN_GEMM_ROWS_, c0 = at % a->col_runs * ATTN_GEMM_COLS_;
  const int64_t rows = a->y.len - r0 < ATTN_GEMM_ROWS_ ? a->y.len - r0 : (int64_t)ATTN_GEMM_ROWS_;
  const int64_t c1 = a->n - c0 < ATTN_GEMM_COLS_ ? a->n : c0 + ATTN_GEMM_COLS_;
  const float *packed = a->packed + (wb * a->w.heads + wh) * a->one;
  char *own = a->own + worker * a->own_bytes;
  const char *in = attn_at_(&a->x, a->x.batch > 1 ? b : 0, a->x.heads > 1 ? h : 0, r0);
  float *y = (float *)(void *)attn_at_(&a->y, b, h, r0);
  int64_t stride = a->y.stride_len;
  if (a->y.dtype == ATTN_F32)
    y += c0;
  else
    y = (float *)(void *)(own + a->own_y), stride = ATTN_GEMM_COLS_;
  for (int64_t k = 0; k < a->k; k += ATTN_GEMM_DEEP_) {
    const int64_t n = a->k - k < ATTN_GEMM_DEEP_ ? a->k - k : (int64_t)ATTN_GEMM_DEEP_;
    const float *x = (const float *)(const void *)in + k;
    int64_t x_stride = a->x.stride_len;
    if (a->x.dtype != ATTN_F32) {
      float *wide = (float *)(void *)own;
      f->widen(wide, in + attn_bytes_(a->x.dtype, k), a->x.stride_len, NULL, rows, n, a->x.dtype,
               NULL);
      x = wide, x_stride = n;
    }
    for (int64_t c = c0, cols; c < c1; c += cols) {
      cols = c1 - c < ATTN_GEMM_PANEL_ ? c1 - c : (int64_t)ATTN_GEMM_PANEL_;
      if (c < a->direct) {
        if (a->direct - c < cols) cols = a->direct - c;
        f->gemm(y + (c - c0), stride, rows, x, x_stride,
                (const float *)(const void *)attn_at_(&a->w, wb, wh, k) + c, a->w.stride_len, n,
                cols, k == 0);
        continue;
      }
      const int64_t panel = (c - a->direct) / ATTN_GEMM_PANEL_;
      f->gemm(y + (c - c0), stride, rows, x, x_stride,
              packed + (panel * a->k + k) * ATTN_GEMM_PANEL_, ATTN_GEMM_PANEL_, n, cols, k == 0);
    }
  }
  float bias[ATTN_GEMM_COLS_];
  if (a->bias.data)
    f->widen(bias,
             attn_at_(&a->bias, a->bias.batch > 1 ? b : 0, a->bias.heads > 1 ? h : 0, 0) +
                 attn_bytes_(a->bias.dtype, c0),
             0, NULL, 1, c1 - c0, a->bias.dtype, NULL);
  for (int64_t r = 0; r < rows; r++) {
    if (a->finish)
      f->activate(y + r * stride, c1 - c0, a->bias.data ? bias : NULL, a->scale, a->act);
    if (a->y.dtype != ATTN_F32)
      f->blend(attn_at_(&a->y, b, h, r0 + r) + attn_bytes_(a->y.dtype, c0), y + r * stride, NULL,
               a->y.dtype, ATTN_F32, ATTN_F32, c1 - c0, 1.0f, 0.0f);
  }
}

ATTN_PUB_ attn_status attn_gemm(attn_tensor y, attn_tensor x, attn_tensor w,
                                const attn_gemm_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ memory = {NULL, NULL};
  attn_gemm_ a;
  int workers;
  if (!attn_gemm_plan_(&e, &a, y, x, w, params, ctx, &workers)) return attn_end_(ctx, &e);
  const int64_t items =
      attn_mul_(attn_mul_(a.y.batch, a.y.heads), attn_mul_(a.row_runs, a.col_runs));
  const int64_t bytes = attn_gemm_bytes_(&a, workers);
  if (items) {
    if (bytes && !attn_workspace_get_(&e, &memory, ctx, bytes)) return attn_end_(ctx, &e);
    const int64_t pack = a.w.batch * a.w.heads * a.panels;
    a.packed = (float *)(void *)memory.base;
    a.own = memory.base + attn_piece_(a.w.batch * a.w.heads * a.one, 4);
    if (pack) attn_for_(ctx, attn_pieces_(workers, pack), pack, attn_gemm_pack_, &a);
    attn_for_(ctx, workers, items, attn_gemm_item_, &a);
    attn_workspace_drop_(&memory);
  }
  attn_report_(ctx, a.table, workers,
               a.direct ? "dense product, w in place" : "dense product, panels",
               a.direct ? "few rows of x, f32 w" : "many rows of x, or w not f32, or transposed");
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_gemm_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                     const attn_gemm_params *params, const attn_ctx *ctx) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_error_ e = {ATTN_OK, NULL};
  attn_gemm_ a;
  int workers;
  if (!attn_gemm_plan_(&e, &a, y, x, w, params, &plain, &workers)) return 0;
  const int64_t bytes = attn_gemm_bytes_(&a, workers);
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}
#undef ATTN_GEMM_IN_PLACE_
