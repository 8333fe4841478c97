/* families/priors/average.h owns the average attention network: running means, a feed-forward part, a gate. It
 * walks over the tokens in runs, so that memory does not grow with them. */

enum { ATTN_AVERAGE_RUN_ = 256, ATTN_AVERAGE_COLS_ = 64, ATTN_AVERAGE_HEAD_ = 4 };
#define ATTN_AVERAGE_MAGIC_ 0x61766731 /* the first number of a state; then B, d and 0 */

typedef struct attn_average_ {
  const attn_table_ *table;
  attn_tensor o, y;
  attn_average_params p;
  int64_t *count; /* [B], then the sums */
  double *sum;    /* [B][d] */
  /* of a run */
  int64_t t0, n;
  attn_tensor both, avg, g, gate; /* [y ; g]; means; what the gate sees of them; i and f */
  char *own;                      /* of the workers: a row */
  int64_t each;
} attn_average_;

/* Some columns of a run: their means, and y beside them. */
ATTN_FUNC_ void attn_average_scan_(void *job, int worker, int64_t index) {
  const attn_average_ *a = (const attn_average_ *)job;
  const int64_t d = a->y.dim, slices = (d + ATTN_AVERAGE_COLS_ - 1) / ATTN_AVERAGE_COLS_;
  const int64_t b = index / slices, c0 = index % slices * ATTN_AVERAGE_COLS_;
  const int64_t cols = d - c0 < ATTN_AVERAGE_COLS_ ? d - c0 : (int64_t)ATTN_AVERAGE_COLS_;
  double *sum = a->sum + b * d + c0;
  int64_t count = a->count[b];
  float row[ATTN_AVERAGE_COLS_];
  (void)worker;
  for (int64_t t = 0; t < a->n; t++) {
    float *mean = (float *)(void *)attn_at_(&a->avg, b, 0, t) + c0;
    const int real = !a->p.valid || a->p.valid[b * a->y.len + a->t0 + t];
    a->table->widen(row, attn_at_(&a->y, b, 0, a->t0 + t) + attn_bytes_(a->y.dtype, c0), 0, NULL, 1,
                    cols, a->y.dtype, NULL);
    count += real;
    const double by = 1.0 / (double)(count < 1 ? 1 : count);
    for (int64_t c = 0; c < cols; c++) {
      if (real) sum[c] += (double)row[c];
      mean[c] = (float)(sum[c] * by);
    }
    if (a->both.data) memcpy(attn_at_(&a->both, b, 0, t) + 4 * c0, row, (size_t)cols * sizeof *row);
  }
  for (int64_t c = 0; c < cols; c++) sum[c] = attn_one_nan_f64_(sum[c]);
}

/* A row of o. */
ATTN_FUNC_ void attn_average_row_(void *job, int worker, int64_t index) {
  const attn_average_ *a = (const attn_average_ *)job;
  const int64_t b = index / a->n, t = index % a->n, d = a->y.dim;
  const float *g = (const float *)(const void *)attn_at_(&a->g, b, 0, t), *y = NULL;
  float *row = (float *)(void *)(a->own + worker * a->each);
  if (a->gate.data) {
    const float *i = (const float *)(const void *)attn_at_(&a->gate, b, 0, t), *f = i + d;
    y = (const float *)(const void *)attn_at_(&a->both, b, 0, t);
    for (int64_t c = 0; c < d; c++) row[c] = i[c] * y[c] + f[c] * g[c];
  } else {
    memcpy(row, g, (size_t)d * sizeof *row);
  }
  if (a->p.out != ATTN_AVERAGE_PLAIN)
    a->table->blend(row, row, attn_at_(&a->y, b, 0, a->t0 + t), ATTN_F32, ATTN_F32, a->y.dtype, d,
                    1.0f, 1.0f);
  if (a->p.out == ATTN_AVERAGE_NORM) {
    const attn_norm norm = {a->p.gain, a->p.bias, a->p.eps, ATTN_NORM_LAYER, 0};
    attn_row_norm_(a->table, row, d, &norm);
  }
  a->table->blend(attn_at_(&a->o, b, 0, a->t0 + t), row, NULL, a->o.dtype, ATTN_F32, ATTN_F32, d,
                  1.0f, 0.0f);
}

/* Tokens t0 .. t0 + n - 1. */
ATTN_COLD_ int attn_average_run_(attn_stage_ *s, attn_average_ *a, attn_tensor hidden) {
  const int64_t b = a->y.batch, d = a->y.dim;
  const int64_t slices = (d + ATTN_AVERAGE_COLS_ - 1) / ATTN_AVERAGE_COLS_;
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  if (!attn_stage_for_(s, attn_mul_(b, slices), attn_average_scan_, a, 0, NULL)) return 0;
  if (s->run)
    for (int64_t i = 0; i < b; i++)
      for (int64_t t = 0; t < a->n; t++)
        a->count[i] += !a->p.valid || a->p.valid[i * a->y.len + a->t0 + t];
  if (hidden.data) {
    p.bias = a->p.b_1, p.activation = ATTN_ACT_RELU;
    if (!attn_stage_gemm_(s, hidden, a->avg, a->p.w_1, &p)) return 0;
    p.bias = a->p.b_2, p.activation = ATTN_ACT_NONE;
    if (!attn_stage_gemm_(s, a->g, hidden, a->p.w_2, &p)) return 0;
  }
  if (a->gate.data) {
    p.bias = a->p.b_g, p.activation = ATTN_ACT_SIGMOID;
    if (!attn_stage_gemm_(s, a->gate, a->both, a->p.w_g, &p)) return 0;
  }
  a->each = attn_piece_(d, 4);
  return attn_stage_for_(s, attn_mul_(b, a->n), attn_average_row_, a, a->each, &a->own);
}

ATTN_COLD_ int attn_average_steps_(attn_stage_ *s, void *job) {
  attn_average_ *a = (attn_average_ *)job;
  const int64_t b = a->y.batch, t = a->y.len, d = a->y.dim;
  const int64_t most = t < ATTN_AVERAGE_RUN_ ? t : (int64_t)ATTN_AVERAGE_RUN_;
  const int fed = a->p.w_1.data != NULL, gated = a->p.w_g.data != NULL;
  attn_tensor both = attn_view_(NULL, ATTN_F32, 0, 0, 0, 1), hidden = both, gate = both, g, avg;
  if (b == 0 || t == 0) return 1;
  a->table = s->table;
  if (gated) {
    both = attn_stage_tensor_(s, b, 1, most, attn_mul_(2, d));
    gate = attn_stage_tensor_(s, b, 1, most, attn_mul_(2, d));
    g = attn_stage_shift_(both, d), g.dim = d;
  } else {
    g = attn_stage_tensor_(s, b, 1, most, d);
  }
  avg = fed ? attn_stage_tensor_(s, b, 1, most, d) : g;
  if (fed) hidden = attn_stage_tensor_(s, b, 1, most, a->p.w_1.dim);
  if (a->p.state) {
    a->count = (int64_t *)a->p.state + ATTN_AVERAGE_HEAD_;
  } else {
    a->count = (int64_t *)attn_stage_take_(s, attn_mul_(b, attn_add_(d, 1)), 8);
    if (s->run) memset(a->count, 0, (size_t)(b * (d + 1)) * 8);
  }
  a->sum = (double *)(void *)(a->count + b);
  for (a->t0 = 0; a->t0 < t; a->t0 += a->n) {
    a->n = t - a->t0 < most ? t - a->t0 : most;
    a->both = both, a->both.len = a->n, a->gate = gate, a->gate.len = a->n;
    a->avg = avg, a->avg.len = a->n, a->g = g, a->g.len = a->n, hidden.len = a->n;
    if (!attn_average_run_(s, a, hidden)) return 0;
    if (!s->run) break; /* the others want no more */
  }
  return 1;
}

/* Numbers of 8 bytes; INT64_MAX: too many. */
ATTN_COLD_ int64_t attn_average_numbers_(int64_t batch, int64_t dim) {
  return attn_add_(attn_mul_(batch, attn_add_(dim, 1)), ATTN_AVERAGE_HEAD_);
}

ATTN_PUB_ size_t attn_average_state_bytes(int64_t batch, int64_t dim) {
  if (batch < 0 || dim < 1) return 0;
  const int64_t bytes = attn_mul_(attn_average_numbers_(batch, dim), 8);
  return bytes > (sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4) ? 0 : (size_t)bytes;
}

ATTN_COLD_ int attn_average_state_(attn_error_ *e, const void *state, size_t bytes, int64_t batch,
                                   int64_t dim, attn_span_ *span, const char *align) {
  const size_t need = attn_average_state_bytes(batch, dim);
  if (need == 0)
    return attn_reject_(e, ATTN_E_OVERFLOW, "the state would not fit the address space");
  if (bytes < need)
    return attn_reject_(e, ATTN_E_SHAPE, "the state must have attn_average_state_bytes");
  return attn_check_array_(e, state, (int64_t)(need / 8), 8, align, span);
}

ATTN_PUB_COLD_ attn_status attn_average_begin(void *state, size_t bytes, int64_t batch, int64_t dim,
                                              attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_span_ span;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (batch < 0 || dim < 1)
    attn_reject_(&e, ATTN_E_SHAPE, "batch must not be negative, dim at least 1");
  else if (!state)
    attn_reject_(&e, ATTN_E_NULL, "state must not be null");
  else if (attn_average_state_(&e, state, bytes, batch, dim, &span,
                               "state must be aligned to 8 bytes")) {
    const int64_t head[ATTN_AVERAGE_HEAD_] = {ATTN_AVERAGE_MAGIC_, batch, dim, 0};
    memset(state, 0, attn_average_state_bytes(batch, dim));
    memcpy(state, head, sizeof head);
    attn_report_(ctx, table, 1, "an empty state", "the only path");
  }
  return attn_end_(ctx, &e);
}

ATTN_COLD_ int attn_average_check_(attn_error_ *e, attn_average_ *a, const attn_ctx *ctx,
                                   int query) {
  enum { O, Y, WG, BG, W1, B1, W2, B2, COUNT };
  enum { REAL, GAIN, BIAS, STATE, ARRAYS };
  attn_average_params *p = &a->p;
  attn_span_ array[ARRAYS], work;
  const int64_t any = ATTN_ANY_, b = a->y.batch, d = a->y.dim, twice = attn_mul_(2, d);
  attn_tensor *const w[] = {&p->w_g, &p->w_1, &p->w_2};
  for (int i = 0; i < 3; i++) attn_turn_(w[i], p->w_transposed);
  const int64_t f = p->w_1.data ? p->w_1.dim : 0;
  const int maybe = ATTN_OPTIONAL_, matrix = ATTN_OPTIONAL_ | ATTN_MATRIX_;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, b, 1, a->y.len, d, "o must have the shape of y"),
      ATTN_OPERAND_(&a->y, "y", 0, any, 1, any, any, "y must have one head"),
      ATTN_OPERAND_(&p->w_g, "params.w_g", matrix, 1, 1, twice, twice,
                    ATTN_IN_OUT_("params.w_g", "2 d", "2 d")),
      ATTN_OPERAND_(&p->b_g, "params.b_g", maybe, 1, 1, 1, twice,
                    "params.b_g must be [1, 1, 1, 2 d]"),
      ATTN_OPERAND_(&p->w_1, "params.w_1", matrix, 1, 1, d, any,
                    ATTN_IN_OUT_("params.w_1", "d", "f")),
      ATTN_OPERAND_(&p->b_1, "params.b_1", maybe, 1, 1, 1, f, "params.b_1 must be [1, 1, 1, f]"),
      ATTN_OPERAND_(&p->w_2, "params.w_2", matrix, 1, 1, f, d,
                    ATTN_IN_OUT_("params.w_2", "f", "d")),
      ATTN_OPERAND_(&p->b_2, "params.b_2", maybe, 1, 1, 1, d, "params.b_2 must be [1, 1, 1, d]")};
  if (!attn_check_operand_(e, &op[Y], 1) || !attn_check_operand_(e, &op[O], 1)) return 0;
  if (!p->w_1.data != !p->w_2.data)
    return attn_reject_(e, ATTN_E_NULL, "params.w_1 and .w_2 must be there both, or neither");
  if ((p->b_g.data && !p->w_g.data) || ((p->b_1.data || p->b_2.data) && !p->w_1.data))
    return attn_reject_(e, ATTN_E_NULL, "a bias must not be without its weights");
  for (int i = WG; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if ((int)p->out < 0 || p->out >= ATTN_AVERAGE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.out must be an attn_average_out");
  if (p->eps == 0.0f && !signbit(p->eps)) p->eps = 1e-6f;
  if (!(p->eps > 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be positive and finite");
  if (!attn_check_array_(e, p->valid, attn_mul_(b, a->y.len), 1, "", &array[REAL]) ||
      !attn_check_array_(e, p->gain, d, 4, "params.gain must be aligned to its elements",
                         &array[GAIN]) ||
      !attn_check_array_(e, p->bias, d, 4, "params.bias must be aligned to its elements",
                         &array[BIAS]))
    return 0;
  array[STATE].lo = array[STATE].hi = 0;
  if (p->state && !attn_average_state_(e, p->state, p->state_bytes, b, d, &array[STATE],
                                       "params.state must be aligned to 8 bytes"))
    return 0;
  if (!attn_check_apart_(e, ctx, op, COUNT, array, ARRAYS) || !attn_check_workspace_(e, ctx, &work))
    return 0;
  for (int i = 0; i < (int)COUNT + (int)STATE; i++)
    if (attn_overlap_(array[STATE], i < COUNT ? op[i].span : array[i - COUNT]))
      return attn_reject_(e, ATTN_E_OVERLAP, "params.state must not share memory with an argument");
  const int64_t *head = (const int64_t *)p->state;
  if (head && !query && (head[0] != ATTN_AVERAGE_MAGIC_ || head[1] != b || head[2] != d))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.state must come from attn_average_begin for y's batch and dim");
  if (head && !query)
    for (int64_t i = 0; i < b; i++)
      if (head[ATTN_AVERAGE_HEAD_ + i] < 0 || head[ATTN_AVERAGE_HEAD_ + i] > (int64_t)1 << 48)
        return attn_reject_(e, ATTN_E_VALUE, "params.state has a count of tokens out of range");
  return 1;
}

ATTN_COLD_ attn_status attn_average_call_(attn_tensor o, attn_tensor y,
                                          const attn_average_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_average_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.o = o, a.y = y;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_average_check_(&e, &a, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_average_steps_, &a, "running means", bytes);
}

ATTN_CALL_(attn_average, (o, y, params), attn_tensor o, attn_tensor y,
           const attn_average_params *params)
#undef ATTN_AVERAGE_MAGIC_
