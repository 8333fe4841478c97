/* families/training/learned_backward.h owns the gradient of rows that are picked from a table: tokens are sorted by row, so
 * that each row is summed by one worker, in order. */

enum { ATTN_LEARNED_ROWS_ = 8, ATTN_LEARNED_COLS_ = 128 }; /* of an item */

typedef struct attn_learned_back_ {
  const attn_table_ *table;
  attn_tensor y, x; /* d_table, d_y */
  attn_positions_ at;
  int accumulate;
  int64_t *end;   /* [rows]: behind the last token of each row, in order */
  int64_t *order; /* tokens by row, ascending: [B,T] with positions per batch entry, else [T] */
  int64_t slices;
} attn_learned_back_;

/* The row and what it has: a sum of runs of 512. */
typedef struct attn_learned_sum_ {
  float near[ATTN_LEARNED_COLS_], far[ATTN_LEARNED_COLS_];
  int64_t some, runs;
} attn_learned_sum_;

ATTN_FUNC_ void attn_learned_add_(const attn_table_ *f, attn_learned_sum_ *s, const char *x,
                                  attn_dtype type, int64_t n) {
  if (s->some == ATTN_SHARES_RUN_) {
    f->blend(s->far, s->near, s->runs ? s->far : NULL, ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
    s->runs++, s->some = 0;
  }
  f->blend(s->near, x, s->some ? s->near : NULL, ATTN_F32, type, ATTN_F32, n, 1.0f, 1.0f);
  s->some++;
}

ATTN_FUNC_ void attn_learned_row_(const attn_learned_back_ *a, int64_t row, int64_t c, int64_t n) {
  const attn_table_ *f = a->table;
  const attn_tensor *x = &a->x;
  const attn_dtype out = a->y.dtype;
  char *to = attn_at_(&a->y, 0, 0, row) + attn_bytes_(out, c);
  attn_learned_sum_ s;
  s.some = s.runs = 0;
  /* entries that share their positions go through them one after the other */
  for (int64_t e = 0; e < (a->at.each ? 1 : x->batch); e++)
    for (int64_t k = row ? a->end[row - 1] : 0; k < a->end[row]; k++) {
      const int64_t b = a->at.each ? a->order[k] / x->len : e;
      const int64_t i = a->at.each ? a->order[k] % x->len : a->order[k];
      for (int64_t h = 0; h < x->heads; h++)
        attn_learned_add_(f, &s, attn_at_(x, b, h, i) + attn_bytes_(x->dtype, c), x->dtype, n);
    }
  if (!s.some && a->accumulate) return;
  if (!s.some) memset(s.near, 0, sizeof s.near);
  if (s.runs) f->blend(s.near, s.near, s.far, ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
  f->blend(to, s.near, a->accumulate ? to : NULL, out, ATTN_F32, out, n, 1.0f, 1.0f);
}

ATTN_FUNC_ void attn_learned_back_item_(void *job, int worker, int64_t index) {
  const attn_learned_back_ *a = (const attn_learned_back_ *)job;
  const int64_t first = index / a->slices * ATTN_LEARNED_ROWS_;
  const int64_t c = index % a->slices * ATTN_LEARNED_COLS_, left = a->y.dim - c;
  (void)worker;
  for (int64_t row = first; row < first + ATTN_LEARNED_ROWS_ && row < a->y.len; row++)
    attn_learned_row_(a, row, c, left < ATTN_LEARNED_COLS_ ? left : (int64_t)ATTN_LEARNED_COLS_);
}

/* Counts the tokens of each row, and puts them in order. */
ATTN_FUNC_ void attn_learned_sort_(attn_learned_back_ *a, int64_t count) {
  const int64_t rows = a->y.len, len = a->x.len;
  attn_clear_(a->end, (size_t)rows * sizeof *a->end);
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = attn_whole_position_(&a->at, 0, t / len, t % len);
    if (row + 1 < rows) a->end[row + 1]++;
  }
  for (int64_t row = 1; row < rows; row++) a->end[row] += a->end[row - 1];
  /* these are beginnings, and become ends */
  for (int64_t t = 0; t < count; t++)
    a->order[a->end[attn_whole_position_(&a->at, 0, t / len, t % len)]++] = t;
}

ATTN_COLD_ int attn_learned_back_steps_(attn_stage_ *s, void *job) {
  attn_learned_back_ *a = (attn_learned_back_ *)job;
  const int64_t count =
      a->x.batch && a->x.heads ? attn_mul_(a->at.each ? a->x.batch : 1, a->x.len) : 0;
  a->slices = attn_runs_of_(a->y.dim, ATTN_LEARNED_COLS_);
  a->end = (int64_t *)attn_stage_take_(s, a->y.len, sizeof(int64_t));
  a->order = (int64_t *)attn_stage_take_(s, count, sizeof(int64_t));
  if (s->run) attn_learned_sort_(a, count);
  return attn_stage_for_(s, attn_mul_(attn_runs_of_(a->y.len, ATTN_LEARNED_ROWS_), a->slices),
                         attn_learned_back_item_, a, 0, NULL);
}

ATTN_COLD_ int attn_learned_back_check_(attn_error_ *e, attn_learned_back_ *a, const attn_ctx *ctx,
                                        int data) {
  const int64_t any = ATTN_ANY_, len = a->x.len;
  attn_arrays_ array = {1, {{0, 0, 0, 0}}};
  attn_operand_ op[] = {ATTN_OPERAND_(&a->y, "d_table", ATTN_OUT_ | ATTN_OPTIONAL_, 1, 1, any,
                                      a->x.dim, "d_table must be [1, 1, rows, d_y.dim]"),
                        ATTN_OPERAND_(&a->x, "d_y", 0, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op };
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  attn_positions_ *p = &a->at;
  p->len = p->rows = len, p->batch = a->x.batch, p->axes = 1;
  if (!attn_check_positions_(e, p, array.span)) return 0;
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  if (a->y.data) {
    if (!p->whole && len > 0 && (p->start < 0 || p->start > a->y.len - len))
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.start .. start + d_y.len - 1 must be rows of d_table");
    const int64_t count = attn_mul_(p->each ? p->batch : 1, len);
    for (int64_t i = 0; data && p->whole && p->batch > 0 && i < count; i++)
      if (p->whole[i] < 0 || p->whole[i] >= a->y.len)
        return attn_reject_(e, ATTN_E_RANGE, "params.positions must be rows of d_table");
  }
  return attn_check_apart_(e, ctx, op, N, array.span, array.n);
}

ATTN_COLD_ attn_status attn_learned_position_backward_call_(attn_tensor d_table, attn_tensor d_y,
                                                            const attn_learned_params *params,
                                                            const attn_learned_gradients *gradients,
                                                            attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_learned_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.y = d_table, a.x = d_y;
  if (params)
    a.at.start = params->start, a.at.whole = params->positions,
    a.at.each = params->positions_per_batch;
  if (gradients) a.accumulate = gradients->accumulate;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_learned_back_check_(&e, &a, ctx, bytes == NULL);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_learned_back_steps_, &a,
                            "tokens by row", d_table.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_learned_position_backward, (d_table, d_y, params, gradients), attn_tensor d_table,
           attn_tensor d_y, const attn_learned_params *params,
           const attn_learned_gradients *gradients)
