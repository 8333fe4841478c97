/* families/linear/damped_ema.h owns moving averages of channels, in one direction or both. */

enum { ATTN_EMA_ROWS_ = 32, ATTN_EMA_COLS_ = 64 };

typedef struct attn_damped_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_damped_ema_params p;
  float scale;
  int64_t slices, each, rows; /* of channels; bytes of a worker; of y that it holds */
  int both;
  char *memory;
} attn_damped_;

/* The numbers of a direction, of channels c .., [N][64]. Where little fades, what does is subtracted; else what
 * stays is multiplied: a float holds either as exactly as the other. */
ATTN_FUNC_ void attn_damped_lay_(const attn_damped_ *a, const attn_ema_ *p, float *write,
                                 const attn_damped_ema_set *s, int64_t c, int64_t cols) {
  const int64_t n = p->dims * p->width;
  float *fade = write + n, *keep = fade + n, *read = keep + n;
  for (int64_t i = 0; i < cols; i++)
    for (int64_t d = 0; d < p->dims; d++) {
      const int64_t at = (c + i) * p->dims + d, to = d * p->width + i;
      const double fades = (double)s->alpha[at] * (double)s->delta[at];
      const int slow = fades < 0.5;
      write[to] = s->alpha[at] * s->beta[at];
      fade[to] = (float)(slow ? -fades : 1.0 - fades);
      keep[to] = slow ? 1.0f : 0.0f;
      read[to] = s->eta[at] * a->scale;
    }
}

/* Rows t0 .. t1 through the states, the last one first if `back`. */
ATTN_FUNC_ void attn_damped_rows_(const attn_damped_ *a, attn_ema_ *p, float *x, float *y,
                                  int64_t b, int64_t c, int64_t t0, int64_t t1, int back) {
  const int64_t w = p->width, last = back ? (t1 - t0 - 1) * w : 0;
  for (int64_t t = t0; t < t1; t++)
    a->table->widen(x + (t - t0) * w, attn_at_(&a->x, b, 0, t) + attn_bytes_(a->x.dtype, c), 0,
                    NULL, 1, p->cols, a->x.dtype, NULL);
  p->x = x + last, p->y = y + last, p->n = t1 - t0, p->step = back ? -w : w, p->add = back;
  attn_on_(ema, a->table)->ema(p);
}

/* y null: zeros */
ATTN_FUNC_ void attn_damped_store_(const attn_damped_ *a, const float *y, int64_t b, int64_t c,
                                   int64_t cols, int64_t t0, int64_t t1) {
  for (int64_t t = t0; t < t1; t++)
    a->table->blend(attn_at_(&a->y, b, 0, t) + attn_bytes_(a->y.dtype, c),
                    y ? y + (t - t0) * ATTN_EMA_COLS_ : NULL, NULL, a->y.dtype, ATTN_F32, ATTN_F32,
                    cols, 1.0f, 0.0f);
}

/* States [D][N or 2 N] of channels c .. from or to [N][64], and the rest that rounding left. */
ATTN_FUNC_ void attn_damped_state_(const attn_tensor *s, const attn_ema_ *p, int64_t b, int64_t c,
                                   int keep) {
  for (int64_t i = 0; s->data && i < p->cols; i++) {
    float *row = (float *)(void *)attn_at_(s, b, 0, c + i);
    for (int64_t d = 0; d < s->dim; d++) {
      float *at = d < p->dims ? p->h + d * p->width + i : p->low + (d - p->dims) * p->width + i;
      if (keep)
        row[d] = attn_one_nan_(*at);
      else
        *at = row[d];
    }
  }
}

/* Up to 64 channels of a batch entry, all their tokens. */
ATTN_FUNC_ void attn_damped_item_(void *job, int worker, int64_t index) {
  const attn_damped_ *a = (const attn_damped_ *)job;
  const int64_t b = index / a->slices, c = index % a->slices * ATTN_EMA_COLS_, r = ATTN_EMA_ROWS_;
  const int64_t left = a->x.dim - c, stop = a->p.len ? a->p.len[b] : a->x.len;
  const int64_t n = a->p.dims * ATTN_EMA_COLS_;
  float *x = (float *)(void *)(a->memory + worker * a->each), *y = x + r * ATTN_EMA_COLS_;
  float *by = y + a->rows * ATTN_EMA_COLS_, *write = by + ATTN_EMA_COLS_;
  attn_ema_ p;
  attn_clear_(&p, sizeof p);
  memset(x, 0, (size_t)(r * ATTN_EMA_COLS_) * sizeof(float));
  memset(by, 0, (size_t)(ATTN_EMA_COLS_ + 6 * n) * sizeof(float));
  p.width = ATTN_EMA_COLS_, p.dims = a->p.dims, p.cols = left < p.width ? left : p.width;
  p.write = write, p.fade = write + n, p.keep = write + 2 * n, p.read = write + 3 * n;
  p.h = write + 4 * n, p.low = write + 5 * n;
  if (a->p.omega) {
    memcpy(by, a->p.omega + c, (size_t)p.cols * sizeof(float));
    p.by = by;
  }
  attn_damped_lay_(a, &p, write, &a->p.forward, c, p.cols);
  attn_damped_state_(&a->p.initial_state, &p, b, c, 0);
  for (int64_t t = 0; t < stop; t += r) {
    const int64_t end = stop - t < r ? stop : t + r;
    attn_damped_rows_(a, &p, x, a->both ? y + t * p.width : y, b, c, t, end, 0);
    if (!a->both) attn_damped_store_(a, y, b, c, p.cols, t, end);
  }
  attn_damped_state_(&a->p.final_state, &p, b, c, 1);
  if (a->both) {
    attn_damped_lay_(a, &p, write, &a->p.backward, c, p.cols);
    memset(p.h, 0, (size_t)(2 * n) * sizeof(float));
    for (int64_t end = stop; end > 0; end -= r) { /* y may be x */
      const int64_t t = end < r ? 0 : end - r;
      attn_damped_rows_(a, &p, x, y + t * p.width, b, c, t, end, 1);
      attn_damped_store_(a, y + t * p.width, b, c, p.cols, t, end);
    }
  }
  attn_damped_store_(a, NULL, b, c, p.cols, stop, a->x.len);
}

ATTN_COLD_ int attn_damped_steps_(attn_stage_ *s, void *job) {
  attn_damped_ *a = (attn_damped_ *)job;
  const int64_t cols = ATTN_EMA_COLS_;
  a->slices = a->x.dim / cols + (a->x.dim % cols != 0);
  a->rows = a->both ? a->x.len : (int64_t)ATTN_EMA_ROWS_;
  const int64_t lines = attn_add_(attn_add_(ATTN_EMA_ROWS_ + 1, a->rows), attn_mul_(6, a->p.dims));
  a->each = attn_piece_(attn_mul_(lines, cols), sizeof(float));
  return attn_stage_for_(s, attn_mul_(a->x.batch, a->slices), attn_damped_item_, a, a->each,
                         &a->memory);
}

/* All four arrays, or none: 0 = none, -1 = some. */
ATTN_COLD_ int attn_damped_given_(const attn_damped_ema_set *s) {
  const int n = !!s->alpha + !!s->delta + !!s->beta + !!s->eta;
  return n == 4 ? 1 : n == 0 ? 0 : -1;
}

ATTN_COLD_ int attn_damped_within_(const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (!(x[i] >= 0.0f && x[i] <= 1.0f)) return 0;
  return 1;
}

ATTN_COLD_ int attn_damped_check_(attn_error_ *e, attn_damped_ *a, const attn_ctx *ctx, int data) {
  enum { Y, FINAL, X, INITIAL, COUNT, ARRAYS = 10 };
  attn_damped_ema_params *p = &a->p;
  const attn_tensor *x = &a->x;
  const int64_t size = attn_mul_(x->dim, p->dims);
  attn_span_ more[ARRAYS];
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_, x->batch, 1, x->len, x->dim,
                    "y must have the shape of x"),
      ATTN_OPERAND_(&p->final_state, "params.final_state",
                    ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, x->batch, 1, x->dim, ATTN_ANY_,
                    "params.final_state must be [B, 1, D, N or 2 N] of ATTN_F32"),
      ATTN_OPERAND_(&a->x, "x", 0, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_, "x must be [B, 1, T, D]"),
      ATTN_OPERAND_(&p->initial_state, "params.initial_state", ATTN_OPTIONAL_ | ATTN_IS_F32_,
                    x->batch, 1, x->dim, ATTN_ANY_,
                    "params.initial_state must be [B, 1, D, N or 2 N] of ATTN_F32")};
  const attn_damped_ema_set *set[2] = {&p->forward, &p->backward};
  if (attn_damped_given_(set[0]) < 1)
    return attn_reject_(e, ATTN_E_NULL, "params.forward must have alpha, delta, beta and eta");
  a->both = attn_damped_given_(set[1]);
  if (a->both < 0)
    return attn_reject_(e, ATTN_E_NULL,
                        "params.backward must have alpha, delta, beta and eta, or none");
  if (p->dims < 1) return attn_reject_(e, ATTN_E_RANGE, "params.dims must be at least 1");
  if (!attn_check_given_(e, op, COUNT) || !attn_check_operand_(e, &op[X], 1)) return 0;
  for (int i = 0; i < COUNT; i++)
    if (i != X && !attn_check_operand_(e, &op[i], 1)) return 0;
  for (int i = FINAL; i <= INITIAL; i += INITIAL - FINAL) {
    const attn_tensor *s = op[i].t;
    if (s->data && a->both)
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.initial_state and final_state must be absent with "
                          "params.backward");
    if (s->data && s->dim != p->dims && s->dim != attn_mul_(2, p->dims))
      return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
  }
  if (!attn_check_scale_(e, p->scale)) return 0;
  for (int i = 0; i < 2; i++) {
    const char *says = i ? "arrays of params.backward must be aligned to their elements"
                         : "arrays of params.forward must be aligned to their elements";
    if (!attn_check_array_(e, set[i]->alpha, size, 4, says, &more[4 * i]) ||
        !attn_check_array_(e, set[i]->delta, size, 4, says, &more[4 * i + 1]) ||
        !attn_check_array_(e, set[i]->beta, size, 4, says, &more[4 * i + 2]) ||
        !attn_check_array_(e, set[i]->eta, size, 4, says, &more[4 * i + 3]))
      return 0;
  }
  if (!attn_check_array_(e, p->omega, x->dim, 4, "params.omega must be aligned to its elements",
                         &more[8]) ||
      !attn_check_array_(e, p->len, x->batch, 4, "params.len must be aligned to its elements",
                         &more[9]))
    return 0;
  attn_around_alias_(&op[Y], &op[X]);
  if (p->initial_state.data) attn_around_alias_(&op[FINAL], &op[INITIAL]);
  if (!attn_check_apart_(e, ctx, op, COUNT, more, ARRAYS)) return 0;
  if (data && !attn_check_lens_(e, p->len, x->batch, x->len, "params.len must lie in 0..x.len"))
    return 0;
  for (int i = 0; data && i <= a->both; i++)
    if (!attn_damped_within_(set[i]->alpha, size) || !attn_damped_within_(set[i]->delta, size))
      return attn_reject_(e, ATTN_E_VALUE,
                          i ? "params.backward.alpha and delta must lie in 0 .. 1"
                            : "params.forward.alpha and delta must lie in 0 .. 1");
  a->scale = attn_map_default_(p->scale, (float)(1.0 / sqrt((double)p->dims)));
  return 1;
}

ATTN_COLD_ attn_status attn_damped_ema_call_(attn_tensor y, attn_tensor x,
                                             const attn_damped_ema_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_damped_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_damped_check_(&e, &a, ctx, bytes == NULL);
  return attn_step_call_(&e, a.table, workers, ctx, attn_damped_steps_, &a, "a token after another",
                         bytes);
}
ATTN_CALL_(attn_damped_ema, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_damped_ema_params *params)
