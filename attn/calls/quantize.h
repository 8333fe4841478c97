/* calls/quantize.h owns the calls that quantise whole tensors, and back. */

typedef struct attn_quantize_job_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_scales scales;
  int bad; /* atomic: a number of x is not finite */
} attn_quantize_job_;

static const attn_scales_words_ attn_quantize_words_ = ATTN_SCALES_WORDS_("scales", "y");
static const attn_scales_words_ attn_dequantize_words_ = ATTN_SCALES_WORDS_("scales", "x");

/* Every rule of both calls but those about the numbers. back = 1: y is the float tensor. */
ATTN_FUNC_ int attn_quantize_plan_(attn_error_ *e, attn_quantize_job_ *j, int back,
                                   const attn_ctx *ctx, int *workers) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x");
  const attn_tensor *stored = back ? &j->x : &j->y;
  attn_span_ sy, sx, ss[2];
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!(back ? attn_check_tensor_ : attn_check_stored_)(e, &j->y, wy, &sy) ||
      !(back ? attn_check_stored_ : attn_check_tensor_)(e, &j->x, wx, &sx))
    return 0;
  if (!attn_quantized_(stored->dtype))
    return attn_reject_(e, ATTN_E_DTYPE,
                        back ? "x.dtype must be ATTN_I8, ATTN_I4 or ATTN_E4M3"
                             : "y.dtype must be ATTN_I8, ATTN_I4 or ATTN_E4M3");
  if (j->x.batch != j->y.batch || j->x.heads != j->y.heads || j->x.len != j->y.len ||
      j->x.dim != j->y.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "x must have the shape of y");
  if (!attn_check_rows_(e, &j->y, wy) ||
      !attn_check_scales_(e, &j->scales, stored,
                          back ? &attn_dequantize_words_ : &attn_quantize_words_, !back, ss))
    return 0;
  if (attn_overlap_(sy, sx) || attn_overlap_(sy, ss[0]) || attn_overlap_(sy, ss[1]))
    return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wy, ATTN_SAYS_OVERLAP_));
  if (!back && (attn_overlap_(ss[0], ss[1]) || attn_overlap_(ss[0], sx)))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        attn_says_(attn_quantize_words_.scale, ATTN_SAYS_OVERLAP_));
  if (!back && attn_overlap_(ss[1], sx))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        attn_says_(attn_quantize_words_.zero, ATTN_SAYS_OVERLAP_));
  return 1;
}

/* Rows of one head that an item takes. */
enum { ATTN_QUANT_ROWS_ = 64 };

ATTN_FUNC_ int64_t attn_quantize_items_(const attn_tensor *x) {
  const int64_t runs = x->len / ATTN_QUANT_ROWS_ + (x->len % ATTN_QUANT_ROWS_ != 0);
  return attn_mul_(attn_mul_(x->batch, x->heads), runs);
}

/* The rows first .. first + n - 1 of (b, h) that an item is. */
typedef struct attn_quantize_rows_ {
  int64_t b, h, first, end;
} attn_quantize_rows_;

ATTN_FUNC_ attn_quantize_rows_ attn_quantize_cut_(const attn_tensor *x, int64_t index) {
  const int64_t runs = x->len / ATTN_QUANT_ROWS_ + (x->len % ATTN_QUANT_ROWS_ != 0);
  attn_quantize_rows_ r;
  r.b = index / runs / x->heads, r.h = index / runs % x->heads;
  r.first = index % runs * ATTN_QUANT_ROWS_;
  r.end = x->len - r.first < ATTN_QUANT_ROWS_ ? x->len : r.first + ATTN_QUANT_ROWS_;
  return r;
}

/* Everything is judged before the first write. */
ATTN_FUNC_ void attn_quantize_judge_(void *job, int worker, int64_t index) {
  attn_quantize_job_ *j = (attn_quantize_job_ *)job;
  const attn_quantize_rows_ r = attn_quantize_cut_(&j->x, index);
  (void)worker;
  for (int64_t i = r.first; i < r.end && !ATTN_ATOMIC_LOAD_(&j->bad); i++)
    if (!attn_finite_row_(j->table, attn_at_(&j->x, r.b, r.h, i), j->x.dtype, j->x.dim))
      ATTN_ATOMIC_STORE_(&j->bad, 1);
}

ATTN_FUNC_ void attn_quantize_item_(void *job, int worker, int64_t index) {
  const attn_quantize_job_ *j = (const attn_quantize_job_ *)job;
  const attn_quantize_rows_ r = attn_quantize_cut_(&j->x, index);
  const attn_scales *s = &j->scales;
  (void)worker;
  for (int64_t i = r.first; i < r.end; i++) {
    const int64_t at = r.b * s->stride_batch + r.h * s->stride_head + i * s->stride_len;
    attn_quantize_row_(j->table, attn_at_(&j->y, r.b, r.h, i), j->y.dtype,
                       s->scale ? s->scale + at : NULL, s->zero ? s->zero + at : NULL, s->group,
                       attn_at_(&j->x, r.b, r.h, i), j->x.dtype, j->x.dim);
  }
}

ATTN_FUNC_ void attn_dequantize_item_(void *job, int worker, int64_t index) {
  const attn_quantize_job_ *j = (const attn_quantize_job_ *)job;
  const attn_quantize_rows_ r = attn_quantize_cut_(&j->x, index);
  const int64_t group = j->scales.group ? j->scales.group : (int64_t)ATTN_QUANT_;
  float wide[ATTN_QUANT_];
  (void)worker;
  for (int64_t i = r.first; i < r.end; i++) {
    const attn_rows_scale_ row = attn_scales_at_(&j->scales, r.b, r.h, i);
    const char *x = attn_at_(&j->x, r.b, r.h, i);
    char *y = attn_at_(&j->y, r.b, r.h, i);
    for (int64_t c = 0, n; c < j->x.dim; c += n) { /* parts of one scale each */
      const int64_t g = j->scales.group ? c / group : 0;
      const attn_rows_scale_ part = {row.scale ? row.scale + g : NULL,
                                     row.zero ? row.zero + g : NULL, 0, 0};
      n = group - c % group < j->x.dim - c ? group - c % group : j->x.dim - c;
      if (n > ATTN_QUANT_) n = ATTN_QUANT_;
      j->table->widen(wide, x + attn_bytes_(j->x.dtype, c), 0, NULL, 1, n, j->x.dtype, &part);
      j->table->blend(y + attn_bytes_(j->y.dtype, c), wide, NULL, j->y.dtype, ATTN_F32, ATTN_F32, n,
                      1.0f, 0.0f);
    }
  }
}

ATTN_PUB_ attn_status attn_quantize(attn_tensor y, attn_scales scales, attn_tensor x,
                                    attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_quantize_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.scales = scales;
  if (!attn_quantize_plan_(&e, &j, 0, ctx, &workers)) return attn_end_(ctx, &e);
  const int64_t items = attn_quantize_items_(&j.x);
  workers = attn_pieces_(workers, items);
  if (items) attn_for_(ctx, workers, items, attn_quantize_judge_, &j);
  if (j.bad) {
    attn_reject_(&e, ATTN_E_VALUE, "x holds NaN or infinity");
    return attn_end_(ctx, &e);
  }
  if (items) attn_for_(ctx, workers, items, attn_quantize_item_, &j);
  attn_report_(ctx, j.table, workers, "row quantisation", "the only path");
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_dequantize(attn_tensor y, attn_tensor x, attn_scales scales,
                                      attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_quantize_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.scales = scales;
  if (!attn_quantize_plan_(&e, &j, 1, ctx, &workers) ||
      !attn_check_scale_values_(&e, &j.scales, &j.x, NULL, &attn_dequantize_words_))
    return attn_end_(ctx, &e);
  const int64_t items = attn_quantize_items_(&j.x);
  workers = attn_pieces_(workers, items);
  if (items) attn_for_(ctx, workers, items, attn_dequantize_item_, &j);
  attn_report_(ctx, j.table, workers, "row dequantisation", "the only path");
  return attn_end_(ctx, &e);
}

ATTN_FUNC_ size_t attn_quantize_ask_(attn_tensor y, attn_tensor x, attn_scales scales, int back,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_quantize_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.scales = scales;
  (void)attn_quantize_plan_(&e, &j, back, &plain, &workers);
  return attn_answer_(e.status, 0);
}

ATTN_PUB_ size_t attn_quantize_workspace(attn_tensor y, attn_scales scales, attn_tensor x,
                                         const attn_ctx *ctx) {
  return attn_quantize_ask_(y, x, scales, 0, ctx);
}

ATTN_PUB_ size_t attn_dequantize_workspace(attn_tensor y, attn_tensor x, attn_scales scales,
                                           const attn_ctx *ctx) {
  return attn_quantize_ask_(y, x, scales, 1, ctx);
}
