/* families/linear/short_convolve.h owns the short causal convolution of columns and the rows that it keeps. */

enum { ATTN_SHORT_TAPS_ = 64, ATTN_SHORT_ROWS_ = 64, ATTN_SHORT_COLS_ = 256 };

typedef struct attn_brief_ {
  const attn_table_ *table;
  attn_tensor y, x, w;
  attn_short_convolve_params p;
  int64_t units, tiles, slices, taps; /* sequences; runs of rows, and of columns, of one */
  int64_t each;
  char *memory;
} attn_brief_;

/* The rows of a sequence, and its batch entry. */
typedef struct attn_brief_range_ {
  int64_t b, t0, t1;
} attn_brief_range_;

ATTN_FUNC_ attn_brief_range_ attn_brief_range_of_(const attn_brief_ *a, int64_t unit) {
  const attn_short_convolve_params *p = &a->p;
  attn_brief_range_ r = {unit, 0, a->x.len};
  if (p->cu_seqlens) r.b = 0, r.t0 = p->cu_seqlens[unit], r.t1 = p->cu_seqlens[unit + 1];
  if (p->len) r.t1 = p->len[unit];
  return r;
}

/* Columns of row t of a sequence, which may lie before it. */
ATTN_FUNC_ void attn_brief_row_(const attn_brief_ *a, const attn_brief_range_ *r, float *to,
                                int64_t unit, int64_t h, int64_t t, int64_t c, int64_t cols) {
  const attn_tensor *from = t < r->t0 ? &a->p.initial : &a->x;
  if (!from->data) {
    memset(to, 0, (size_t)cols * sizeof(float));
    return;
  }
  const char *row =
      t < r->t0 ? attn_at_(from, unit, h, a->taps - 1 + t - r->t0) : attn_at_(from, r->b, h, t);
  a->table->widen(to, row + attn_bytes_(from->dtype, c), 0, NULL, 1, cols, from->dtype, NULL);
}

/* Up to 64 rows of 256 columns: a tap after another over all of them. */
ATTN_FUNC_ void attn_brief_item_(void *job, int worker, int64_t index) {
  const attn_brief_ *a = (const attn_brief_ *)job;
  const attn_table_ *f = a->table;
  const int64_t slice = index % a->slices, tile = index / a->slices % a->tiles;
  const int64_t at = index / a->slices / a->tiles, unit = at / a->x.heads, h = at % a->x.heads;
  const int64_t e = ATTN_SHORT_COLS_, c = slice * e, cols = a->x.dim - c < e ? a->x.dim - c : e;
  const attn_brief_range_ r = attn_brief_range_of_(a, unit);
  const int64_t end = a->p.cu_seqlens ? r.t1 : a->x.len, t0 = r.t0 + tile * ATTN_SHORT_ROWS_;
  const int64_t t1 = end - t0 < ATTN_SHORT_ROWS_ ? end : t0 + ATTN_SHORT_ROWS_,
                stop = r.t1 < t1 ? r.t1 : t1;
  const int64_t w_head = a->w.heads > 1 ? h : 0;
  float *x = (float *)(void *)(a->memory + worker * a->each),
        *w = x + (ATTN_SHORT_ROWS_ + a->taps - 1) * e;
  float *y = w + e, *bias = y + ATTN_SHORT_ROWS_ * e;
  if (t0 < stop) {
    for (int64_t t = t0 - a->taps + 1; t < stop; t++)
      attn_brief_row_(a, &r, x + (t - t0 + a->taps - 1) * e, unit, h, t, c, cols);
    for (int64_t k = 0; k < a->taps; k++) {
      f->widen(w, attn_at_(&a->w, 0, w_head, k) + attn_bytes_(a->w.dtype, c), 0, NULL, 1, cols,
               a->w.dtype, NULL);
      attn_on_(dense, f)->join_runs(y, e, x + k * e, e, w, stop - t0, (int)cols, k == 0);
    }
    if (a->p.bias.data)
      f->widen(
          bias,
          attn_at_(&a->p.bias, 0, a->p.bias.heads > 1 ? h : 0, 0) + attn_bytes_(a->p.bias.dtype, c),
          0, NULL, 1, cols, a->p.bias.dtype, NULL);
  }
  for (int64_t t = t0; t < t1; t++) {
    char *to = attn_at_(&a->y, r.b, h, t) + attn_bytes_(a->y.dtype, c);
    float *row = y + (t - t0) * e;
    if (t < stop)
      attn_on_(dense, f)->activate(row, cols, a->p.bias.data ? bias : NULL, 1.0f,
                                   (int)a->p.activation);
    f->blend(to, t < stop ? row : NULL, NULL, a->y.dtype, ATTN_F32, ATTN_F32, cols, 1.0f, 0.0f);
  }
}

/* The last rows of a sequence and head, the first of them first: they may replace those before it. */
ATTN_FUNC_ void attn_brief_keep_(void *job, int worker, int64_t index) {
  const attn_brief_ *a = (const attn_brief_ *)job;
  const int64_t unit = index / a->x.heads, h = index % a->x.heads, keep = a->taps - 1;
  const attn_brief_range_ r = attn_brief_range_of_(a, unit);
  float *row = (float *)(void *)(a->memory + worker * a->each);
  for (int64_t k = 0; k < keep; k++)
    for (int64_t c = 0; c < a->x.dim; c += ATTN_SHORT_COLS_) {
      const int64_t cols =
          a->x.dim - c < ATTN_SHORT_COLS_ ? a->x.dim - c : (int64_t)ATTN_SHORT_COLS_;
      attn_brief_row_(a, &r, row, unit, h, r.t1 - keep + k, c, cols);
      a->table->blend(
          attn_at_(&a->p.final_rows, unit, h, k) + attn_bytes_(a->p.final_rows.dtype, c), row, NULL,
          a->p.final_rows.dtype, ATTN_F32, ATTN_F32, cols, 1.0f, 0.0f);
    }
}

ATTN_COLD_ int attn_brief_steps_(attn_stage_ *s, void *job) {
  attn_brief_ *a = (attn_brief_ *)job;
  const int64_t heads = attn_mul_(a->units, a->x.heads), e = ATTN_SHORT_COLS_;
  a->tiles = a->x.len / ATTN_SHORT_ROWS_ + (a->x.len % ATTN_SHORT_ROWS_ != 0);
  a->slices = a->x.dim / e + (a->x.dim % e != 0);
  a->each = attn_piece_((2 * ATTN_SHORT_ROWS_ + a->taps + 1) * e, sizeof(float));
  if (!attn_stage_for_(s, attn_mul_(heads, attn_mul_(a->tiles, a->slices)), attn_brief_item_, a,
                       a->each, &a->memory))
    return 0;
  return !a->p.final_rows.data ||
         attn_stage_for_(s, heads, attn_brief_keep_, a, a->each, &a->memory);
}

ATTN_COLD_ int attn_brief_check_(attn_error_ *e, attn_brief_ *a, const attn_ctx *ctx, int data) {
  enum { Y, FINAL, X, W, BIAS, INITIAL, COUNT };
  attn_short_convolve_params *p = &a->p;
  const attn_tensor *x = &a->x;
  const int64_t n = p->cu_seqlens ? p->sequences : x->batch;
  attn_span_ more[2];
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_, x->batch, x->heads, x->len, x->dim,
                    "y must have the shape of x"),
      ATTN_OPERAND_(&p->final_rows, "params.final_rows", ATTN_OUT_ | ATTN_OPTIONAL_, n, x->heads,
                    attn_sub_(a->w.len, 1), x->dim,
                    "params.final_rows must be [batch or sequences, H, w.len - 1, n]"),
      ATTN_OPERAND_(&a->x, "x", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ""),
      ATTN_OPERAND_(&a->w, "w", 0, 1, ATTN_ONE_OR_ALL_, ATTN_ANY_, x->dim,
                    "w must be [1, 1 or H, K, n]"),
      ATTN_OPERAND_(&p->bias, "params.bias", ATTN_OPTIONAL_, 1, ATTN_ONE_OR_ALL_, 1, x->dim,
                    "params.bias must be [1, 1 or H, 1, n]"),
      ATTN_OPERAND_(&p->initial, "params.initial", ATTN_OPTIONAL_, n, x->heads,
                    attn_sub_(a->w.len, 1), x->dim,
                    "params.initial must be [batch or sequences, H, w.len - 1, n]")};
  if (!attn_recurrent_check_sequences_(e, p->cu_seqlens, p->sequences)) return 0;
  if (p->cu_seqlens && p->len)
    return attn_reject_(e, ATTN_E_RANGE, "params.len must be absent with params.cu_seqlens");
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = X; i <= W; i++)
    if (!attn_check_operand_(e, &op[i], x->heads)) return 0;
  if (a->w.len < 1 || a->w.len > ATTN_SHORT_TAPS_)
    return attn_reject_(e, ATTN_E_SHAPE, "w.len must lie in 1 .. 64");
  for (int i = 0; i < COUNT; i++)
    if (i != X && i != W && !attn_check_operand_(e, &op[i], x->heads)) return 0;
  if (!attn_check_activation_(e, &p->activation, ATTN_ACT_SILU,
                              "params.activation must be an attn_activation"))
    return 0;
  if (p->cu_seqlens && x->batch != 1)
    return attn_reject_(e, ATTN_E_SHAPE, "x.batch must be 1 with params.cu_seqlens");
  if (!attn_check_array_(e, p->len, x->batch, 4, "params.len must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, p->cu_seqlens, attn_add_(p->sequences, 1), 4,
                         "params.cu_seqlens must be aligned to its elements", &more[1]))
    return 0;
  if (data && (!attn_check_lens_(e, p->len, x->batch, x->len, "params.len must lie in 0..x.len") ||
               !attn_recurrent_check_marks_(e, p->cu_seqlens, p->sequences, x->len)))
    return 0;
  a->units = n, a->taps = a->w.len;
  if (p->initial.data) attn_around_alias_(&op[FINAL], &op[INITIAL]);
  return attn_check_apart_(e, ctx, op, COUNT, more, 2);
}

ATTN_COLD_ attn_status attn_short_convolve_call_(attn_tensor y, attn_tensor x, attn_tensor w,
                                                 const attn_short_convolve_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_brief_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x, a.w = w;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_brief_check_(&e, &a, ctx, bytes == NULL);
  return attn_step_call_(&e, a.table, workers, ctx, attn_brief_steps_, &a, "a tap after another",
                         bytes);
}
ATTN_CALL_(attn_short_convolve, (y, x, w, params), attn_tensor y, attn_tensor x, attn_tensor w,
           const attn_short_convolve_params *params)
