/* families/depth/exits.h owns the predictors of exits, their targets, and a step that others use too: a dot
 * product a row. */

/* A plain array of n numbers that a call writes, as an argument. */
ATTN_COLD_ int attn_check_written_(attn_error_ *e, attn_operand_ *p, const void *data, int64_t n,
                                   int64_t size, const char *w, const char *align) {
  memset(p, 0, sizeof *p);
  p->w = w, p->role = ATTN_OUT_;
  return attn_check_array_(e, data, n, size, align, &p->span);
}

/* ---- a dot product a row --------------------------------------------------------------------*/

typedef struct attn_row_dots_ {
  const attn_table_ *table;
  attn_tensor y, x, w, bias;
  attn_activation act;
  int64_t tiles;
  char *memory; /* of the workers: a row of w */
  int64_t each;
} attn_row_dots_;

/* 64 rows of a head. */
ATTN_FUNC_ void attn_row_dots_item_(void *job, int worker, int64_t index) {
  const attn_row_dots_ *a = (const attn_row_dots_ *)job;
  const int64_t unit = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t b = unit / a->y.heads, h = unit % a->y.heads, left = a->y.len - first;
  const int64_t n = left < ATTN_TILE_ ? left : ATTN_TILE_;
  float *w = (float *)(void *)(a->memory + worker * a->each), y[ATTN_TILE_], bias = 0.0f;
  int32_t row[ATTN_TILE_];
  for (int i = 0; i < ATTN_TILE_; i++) row[i] = i;
  a->table->widen(w, attn_at_(&a->w, 0, h, 0), 0, NULL, 1, a->w.dim, a->w.dtype, NULL);
  if (a->bias.data)
    a->table->widen(&bias, attn_at_(&a->bias, 0, h, 0), 0, NULL, 1, 1, a->bias.dtype, NULL);
  attn_on_(list, a->table)
      ->dots(y, w, attn_at_(&a->x, b, h, first), a->x.stride_len, row, n, a->x.dim, a->x.dtype, 0);
  for (int64_t i = 0; i < n; i++) y[i] += bias;
  if (a->act != ATTN_ACT_NONE) attn_on_(dense, a->table)->activate(y, n, NULL, 1.0f, (int)a->act);
  for (int64_t i = 0; i < n; i++)
    a->table->blend(attn_at_(&a->y, b, h, first + i), &y[i], NULL, a->y.dtype, ATTN_F32, ATTN_F32,
                    1, 1.0f, 0.0f);
}

/* y[b,h,i] = act(w_h . x[b,h,i] + bias_h): y [B,H,T,1], w [1, 1 or H, 1, dim], bias likewise or none. */
ATTN_COLD_ int attn_stage_row_dots_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                    attn_tensor bias, attn_activation act) {
  attn_row_dots_ a = {s->table, y, x, w, bias, act, attn_tiles_of_(y.len), NULL, 0};
  if (w.heads == 1) a.w.stride_head = 0;
  if (bias.heads == 1) a.bias.stride_head = 0;
  a.each = attn_piece_(w.dim, sizeof(float));
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), a.tiles), attn_row_dots_item_,
                         &a, a.each, &a.memory);
}

/* ---- predictors -----------------------------------------------------------------------------*/

typedef struct attn_exits_ {
  int32_t *exits;
  attn_tensor q, x;
  attn_exits_params p;
  const attn_table_ *table;
  int64_t rows;      /* of a batch entry that have an exit */
  attn_tensor part;  /* sums of runs of rows */
  attn_tensor state; /* logits, or chi */
} attn_exits_;

enum { ATTN_EXITS_RUN_ = 256 };

ATTN_FUNC_ int64_t attn_exits_runs_(int64_t len) {
  return len / ATTN_EXITS_RUN_ + (len % ATTN_EXITS_RUN_ != 0);
}

/* The sum of 256 rows of a batch entry. */
ATTN_FUNC_ void attn_exits_sum_(void *job, int worker, int64_t index) {
  const attn_exits_ *a = (const attn_exits_ *)job;
  const int64_t runs = attn_exits_runs_(a->x.len), b = index / runs;
  const int64_t len = a->p.x_len ? a->p.x_len[b] : a->x.len, i = index % runs * ATTN_EXITS_RUN_;
  char *y = attn_at_(&a->part, b, 0, index % runs);
  (void)worker;
  memset(y, 0, (size_t)a->x.dim * sizeof(float));
  for (int64_t n = i; n < len && n < i + ATTN_EXITS_RUN_; n++)
    a->table->blend(y, y, attn_at_(&a->x, b, 0, n), ATTN_F32, ATTN_F32, a->x.dtype, a->x.dim, 1.0f,
                    1.0f);
}

/* The mean of a batch entry from its sums: their first row. */
ATTN_FUNC_ void attn_exits_mean_(void *job, int worker, int64_t b) {
  const attn_exits_ *a = (const attn_exits_ *)job;
  const int64_t len = a->p.x_len ? a->p.x_len[b] : a->x.len;
  char *y = attn_at_(&a->part, b, 0, 0);
  (void)worker;
  for (int64_t n = 1; n < attn_exits_runs_(len); n++)
    a->table->blend(y, y, attn_at_(&a->part, b, 0, n), ATTN_F32, ATTN_F32, ATTN_F32, a->x.dim, 1.0f,
                    1.0f);
  a->table->blend(y, y, NULL, ATTN_F32, ATTN_F32, ATTN_F32, a->x.dim, (float)(1.0 / (double)len),
                  0.0f);
}

/* Softmax and argmax of a row of logits. */
ATTN_FUNC_ void attn_exits_softmax_(void *job, int worker, int64_t index) {
  const attn_exits_ *a = (const attn_exits_ *)job;
  const int64_t b = index / a->rows, i = index % a->rows, n = a->p.layers;
  float *x = (float *)(void *)attn_at_(&a->state, b, 0, i);
  int64_t best = 0;
  double sum = 0.0;
  (void)worker;
  for (int64_t c = 1; c < n; c++)
    if (x[c] > x[best]) best = c;
  if (a->exits) a->exits[index] = (int32_t)(best + 1);
  if (!a->q.data) return;
  const double top = (double)x[best];
  for (int64_t c = 0; c < n; c++) x[c] = (float)(((double)x[c] - top) * ATTN_LOG2E_);
  a->table->weights(x, x, n, 0.0f, 1.0f);
  for (int64_t c = 0; c < n; c++) sum += (double)x[c];
  a->table->blend(attn_at_(&a->q, b, 0, i), x, NULL, a->q.dtype, ATTN_F32, ATTN_F32, n,
                  (float)(1.0 / sum), 0.0f);
}

/* The running product of a token. */
ATTN_FUNC_ void attn_exits_product_(void *job, int worker, int64_t index) {
  const attn_exits_ *a = (const attn_exits_ *)job;
  const int64_t b = index / a->rows, i = index % a->rows, n = a->p.layers;
  char *q = a->q.data ? attn_at_(&a->q, b, 0, i) : NULL;
  double left = 1.0;
  int64_t stop = n;
  (void)worker;
  for (int64_t c = 1; c <= n; c++) {
    float chi = 1.0f;
    if (c < n) memcpy(&chi, attn_at_(&a->state, b, c - 1, i), sizeof chi);
    const float part = (float)((double)chi * left);
    if (q)
      a->table->blend(q + attn_bytes_(a->q.dtype, c - 1), &part, NULL, a->q.dtype, ATTN_F32,
                      ATTN_F32, 1, 1.0f, 0.0f);
    left *= 1.0 - (double)chi;
    if (stop == n && c < n && chi > (a->p.taus ? a->p.taus[c - 1] : a->p.tau)) stop = c;
  }
  if (a->exits) a->exits[index] = (int32_t)stop;
}

ATTN_COLD_ int attn_exits_steps_(attn_stage_ *s, void *job) {
  attn_exits_ *a = (attn_exits_ *)job;
  const attn_exits_params *p = &a->p;
  const int64_t batch = a->x.batch, n = p->layers, rows = attn_mul_(batch, a->rows);
  attn_tensor from = a->x;
  a->table = s->table;
  if (p->kind == ATTN_EXIT_GEOMETRIC) {
    a->state = attn_stage_tensor_(s, batch, n - 1, a->rows, 1);
    return (n == 1 || attn_stage_row_dots_(s, a->state, a->x, p->w, p->bias, ATTN_ACT_SIGMOID)) &&
           attn_stage_for_(s, rows, attn_exits_product_, a, 0, NULL);
  }
  if (p->kind == ATTN_EXIT_SEQUENCE) {
    const int64_t runs = attn_exits_runs_(a->x.len);
    a->part = attn_stage_tensor_(s, batch, 1, runs, a->x.dim);
    if (!attn_stage_for_(s, attn_mul_(batch, runs), attn_exits_sum_, a, 0, NULL) ||
        !attn_stage_for_(s, batch, attn_exits_mean_, a, 0, NULL))
      return 0;
    from = attn_stage_rows_(a->part, 0, 1);
  }
  a->state = attn_stage_tensor_(s, batch, 1, a->rows, n);
  return attn_stage_dense_(s, a->state, from, p->w, p->bias, ATTN_ACT_NONE) &&
         attn_stage_for_(s, rows, attn_exits_softmax_, a, 0, NULL);
}

/* Every rule but that of overlap. */
ATTN_COLD_ int attn_exits_shapes_(attn_error_ *e, attn_exits_ *a, attn_operand_ op[5],
                                  attn_arrays_ *more, int query) {
  static const char *const words[] = {ATTN_WORDS_("exits"), ATTN_WORDS_("q"), ATTN_WORDS_("x")};
  static const attn_said_ flat[] = {ATTN_SAID_IN_OUT_("params.w", "x.dim", "layers"),
                                    ATTN_SAID_("params.bias", "[1, 1, 1, layers]")};
  static const attn_said_ deep[] = {
      ATTN_SAID_("params.w", "[1, 1 or layers - 1, 1, x.dim] with ATTN_EXIT_GEOMETRIC"),
      ATTN_SAID_("params.bias", "[1, 1 or layers - 1, 1, 1] with ATTN_EXIT_GEOMETRIC")};
  attn_exits_params *p = &a->p;
  const int64_t n = p->layers, any = ATTN_ANY_, batch = a->x.batch;
  if ((int)p->kind < 0 || p->kind >= ATTN_EXIT_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_exit_kind");
  if (n < 1 || n > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "params.layers must lie in 1..2^31 - 1");
  const int layered = p->kind == ATTN_EXIT_GEOMETRIC, whole = p->kind == ATTN_EXIT_SEQUENCE;
  if (!a->exits && !a->q.data && batch > 0 && a->x.len > 0)
    return attn_reject_(e, ATTN_E_NULL, "exits and q must not both be null");
  const attn_operand_ x = ATTN_OPERAND_AS_(
      &a->x, words[2], 0, any, layered ? n - 1 : 1, any, any,
      layered ? "x must have layers - 1 heads with ATTN_EXIT_GEOMETRIC" : "x must have one head");
  op[0] = x;
  if (!attn_check_operand_(e, &op[0], 1)) return 0;
  a->rows = whole ? 1 : a->x.len;
  if (whole && a->x.len == 0)
    return attn_reject_(e, ATTN_E_SHAPE, "x.len must be at least 1 with ATTN_EXIT_SEQUENCE");
  const attn_operand_ q = ATTN_OPERAND_AS_(
      &a->q, words[1], ATTN_OUT_ | ATTN_OPTIONAL_, batch, 1, a->rows, n,
      whole ? "q must be [x.batch, 1, 1, layers]" : "q must be [x.batch, 1, x.len, layers]");
  op[1] = q;
  if (!attn_check_operand_(e, &op[1], 1)) return 0;
  if (!layered) {
    attn_turn_(&p->w, p->w_transposed);
    op[2] = attn_weight_(&p->w, &flat[0], 0, a->x.dim, n);
    op[3] = attn_bias_(&p->bias, &flat[1], ATTN_OPTIONAL_, n);
  } else {
    op[2] = attn_bias_(&p->w, &deep[0], n == 1 ? (int)ATTN_OPTIONAL_ : 0, a->x.dim);
    op[3] = attn_bias_(&p->bias, &deep[1], ATTN_OPTIONAL_, 1);
    op[2].heads = op[3].heads = ATTN_ONE_OR_ALL_;
  }
  if (!attn_check_operand_(e, &op[2], n - 1) || !attn_check_operand_(e, &op[3], n - 1) ||
      !attn_check_written_(e, &op[4], a->exits, attn_mul_(batch, a->rows), 4, words[0],
                           "exits must be aligned to its elements") ||
      !attn_check_array_(e, p->x_len, batch, 4, "params.x_len must be aligned to its elements",
                         &more->span[more->n++]) ||
      !attn_check_array_(e, p->taus, n - 1, 4, "params.taus must be aligned to its elements",
                         &more->span[more->n++]))
    return 0;
  if (p->x_len && !whole)
    return attn_reject_(e, ATTN_E_RANGE, "params.x_len must be null but for ATTN_EXIT_SEQUENCE");
  if (p->x_len && !query)
    for (int64_t b = 0; b < batch; b++)
      if (p->x_len[b] < 1 || p->x_len[b] > a->x.len)
        return attn_reject_(e, ATTN_E_RANGE, "params.x_len must lie in 1..x.len");
  if (p->tau == 0.0f && !attn_to_bits_(p->tau)) p->tau = 0.5f;
  if (!(p->tau >= 0.0f && p->tau <= 1.0f))
    return attn_reject_(e, ATTN_E_RANGE, "params.tau must lie in 0..1");
  if (p->taus && layered && !query)
    for (int64_t i = 0; i < n - 1; i++)
      if (!(p->taus[i] >= 0.0f && p->taus[i] <= 1.0f))
        return attn_reject_(e, ATTN_E_RANGE, "params.taus must lie in 0..1");
  return 1;
}

ATTN_COLD_ attn_status attn_exits_call_(int32_t *exits, attn_tensor q, attn_tensor x,
                                        const attn_exits_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_operand_ op[5];
  attn_arrays_ more;
  attn_exits_ a;
  int workers;
  memset(&a, 0, sizeof a), memset(&more, 0, sizeof more);
  a.exits = exits, a.q = q, a.x = x;
  if (params) a.p = *params;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (attn_check_ctx_(&e, ctx, &table, &workers) &&
             attn_exits_shapes_(&e, &a, op, &more, bytes != NULL) &&
             attn_check_apart_(&e, ctx, op, 5, more.span, more.n)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a.rows > 0 && x.batch > 0)
      attn_stage_call_(&s, ctx, attn_exits_steps_, &a, "exit predictor", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_exits, (exits, q, x, params), int32_t *exits, attn_tensor q, attn_tensor x,
           const attn_exits_params *params)

/* ---- targets --------------------------------------------------------------------------------*/

enum { ATTN_SMOOTH_ = 64 }; /* columns at once; zeros beside a row */

typedef struct attn_smooth_ {
  attn_tensor y, x;
  attn_exit_smooth_params p;
  const attn_table_ *table;
  int64_t reach;  /* the furthest neighbour with a weight */
  float *weight;  /* [2 reach + 1] */
  int32_t *index; /* 0, 1, .. */
  char *memory;   /* of the workers: a row between zeros, a row of sums */
  int64_t each;
} attn_smooth_;

/* One row: the sum over t' is one of shifted rows, each with one weight. */
ATTN_FUNC_ void attn_smooth_item_(void *job, int worker, int64_t index) {
  const attn_smooth_ *a = (const attn_smooth_ *)job;
  const int64_t b = index / a->x.len, i = index % a->x.len, n = a->x.dim, r = a->reach;
  const int64_t len = a->p.x_len ? a->p.x_len[b] : n, room = n + 2 * ATTN_SMOOTH_;
  float *x = (float *)(void *)(a->memory + worker * a->each), *y = x + room;
  memset(x, 0, (size_t)(room + n) * sizeof *x);
  x += ATTN_SMOOTH_;
  if (len > 0) a->table->widen(x, attn_at_(&a->x, b, 0, i), 0, NULL, 1, len, a->x.dtype, NULL);
  for (int64_t c = 0; c < len; c += ATTN_SMOOTH_) {
    const int64_t cols = len - c < ATTN_SMOOTH_ ? len - c : (int64_t)ATTN_SMOOTH_;
    const int64_t from = r > c + cols - 1 ? r - (c + cols - 1) : 0;
    const int64_t end = r + len - c < 2 * r + 1 ? r + len - c : 2 * r + 1;
    attn_on_(sum, a->table)
        ->axpys(y + c, a->weight + from, x + (c + from - r), 1, a->index, end - from, cols,
                ATTN_F32, 0.0f, 0);
  }
  a->table->blend(attn_at_(&a->y, b, 0, i), y, NULL, a->y.dtype, ATTN_F32, ATTN_F32, n, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_smooth_steps_(attn_stage_ *s, void *job) {
  attn_smooth_ *a = (attn_smooth_ *)job;
  const double sigma = (double)a->p.sigma, reach = floor(sqrt(27.631021115928547 * sigma));
  const int64_t n = a->x.dim;
  a->table = s->table;
  a->reach = reach < (double)(n - 1) ? (int64_t)reach : n - 1;
  const int64_t r = a->reach, weights = 2 * r + 1;
  a->weight = (float *)attn_stage_take_(s, weights, sizeof(float));
  a->index = (int32_t *)attn_stage_take_(s, weights, sizeof(int32_t));
  if (s->run)
    for (int64_t d = 0; d < weights; d++) {
      a->index[d] = (int32_t)d;
      a->weight[d] = (float)(-(double)(d - r) * (double)(d - r) / sigma);
    }
  if (s->run) a->table->exp(a->weight, a->weight, weights);
  a->each = attn_piece_(attn_add_(attn_mul_(2, n), 2 * ATTN_SMOOTH_), sizeof(float));
  return attn_stage_for_(s, attn_mul_(a->x.batch, a->x.len), attn_smooth_item_, a, a->each,
                         &a->memory);
}

/* Scores [B,1,N,T] of layers, and lengths of the sequences. */
ATTN_COLD_ int attn_check_layers_(attn_error_ *e, attn_tensor *x, const int32_t *len,
                                  attn_operand_ *op, attn_arrays_ *more, int query) {
  static const char word[] = ATTN_WORDS_("x");
  const int64_t any = ATTN_ANY_;
  const attn_operand_ p = {x, word, 0, any, 1, any, any, "x must have one head", {0, 0, 0, 0}};
  *op = p;
  if (!attn_check_operand_(e, op, 1) ||
      !attn_check_array_(e, len, x->batch, 4, "params.x_len must be aligned to its elements",
                         &more->span[more->n++]))
    return 0;
  if (x->len > INT32_MAX || x->dim > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "x.len and x.dim must be below 2^31");
  return query || attn_check_lens_(e, len, x->batch, x->dim, "params.x_len must lie in 0..x.dim");
}

ATTN_COLD_ attn_status attn_exit_smooth_call_(attn_tensor y, attn_tensor x,
                                              const attn_exit_smooth_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  static const char word[] = ATTN_WORDS_("y");
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_operand_ op[2];
  attn_arrays_ more;
  attn_smooth_ a;
  int workers;
  memset(&a, 0, sizeof a), memset(&more, 0, sizeof more);
  a.y = y, a.x = x;
  if (params) a.p = *params;
  if (!attn_check_ctx_(&e, ctx, &table, &workers) ||
      !attn_check_layers_(&e, &a.x, a.p.x_len, &op[0], &more, bytes != NULL))
    return attn_end_(bytes ? NULL : ctx, &e);
  const attn_operand_ out = ATTN_OPERAND_AS_(&a.y, word, ATTN_OUT_, x.batch, 1, x.len, x.dim,
                                             "y must have the shape of x");
  op[1] = out;
  if (!(a.p.sigma > 0.0f && a.p.sigma < INFINITY)) {
    attn_reject_(&e, ATTN_E_RANGE, "params.sigma must be positive and finite");
  } else if (attn_check_operand_(&e, &op[1], 1) &&
             attn_check_apart_(&e, ctx, op, 2, more.span, more.n)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (x.batch > 0 && x.len > 0)
      attn_stage_call_(&s, ctx, attn_smooth_steps_, &a, "sum of shifted rows", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_exit_smooth, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_exit_smooth_params *params)

typedef struct attn_target_ {
  int32_t *target;
  attn_tensor x;
  attn_exit_target_params p;
  const attn_table_ *table;
} attn_target_;

/* A batch entry: tokens are taken 64 at a time, layer by layer. */
ATTN_FUNC_ void attn_target_item_(void *job, int worker, int64_t b) {
  const attn_target_ *a = (const attn_target_ *)job;
  const int64_t layers = a->x.len, t = a->x.dim, len = a->p.x_len ? a->p.x_len[b] : t;
  const double price = (double)a->p.lambda;
  int32_t *to = a->target + (a->p.tokens ? b * t : b);
  float x[ATTN_TILE_];
  double best[ATTN_TILE_];
  (void)worker;
  if (a->p.tokens)
    for (int64_t i = 0; i < t; i += ATTN_TILE_) {
      const int64_t n = t - i < ATTN_TILE_ ? t - i : ATTN_TILE_;
      const int64_t here = len - i < n ? (len > i ? len - i : 0) : n;
      for (int64_t c = 0; c < n; c++) to[i + c] = 0;
      if (here > 0)
        for (int64_t k = 0; k < layers; k++) {
          a->table->widen(x, attn_at_(&a->x, b, 0, k) + attn_bytes_(a->x.dtype, i), 0, NULL, 1,
                          here, a->x.dtype, NULL);
          for (int64_t c = 0; c < here; c++) {
            const double value = (double)x[c] - price * (double)(k + 1);
            if (k == 0 || value > best[c]) best[c] = value, to[i + c] = (int32_t)(k + 1);
          }
        }
    }
  if (a->p.tokens) return;
  best[0] = 0.0;
  for (int64_t k = 0; k < layers; k++) {
    double sum = 0.0;
    for (int64_t i = 0; i < len; i += ATTN_TILE_) {
      const int64_t n = len - i < ATTN_TILE_ ? len - i : ATTN_TILE_;
      a->table->widen(x, attn_at_(&a->x, b, 0, k) + attn_bytes_(a->x.dtype, i), 0, NULL, 1, n,
                      a->x.dtype, NULL);
      for (int64_t c = 0; c < n; c++) sum += (double)x[c];
    }
    sum -= price * (double)(k + 1);
    if (k == 0 || sum > best[0]) best[0] = sum, *to = (int32_t)(k + 1);
  }
}

ATTN_COLD_ attn_status attn_exit_target_call_(int32_t *target, attn_tensor x,
                                              const attn_exit_target_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  static const char word[] = ATTN_WORDS_("target");
  attn_error_ e = {ATTN_OK, NULL};
  attn_operand_ op[2];
  attn_arrays_ more;
  attn_target_ a;
  int workers;
  memset(&a, 0, sizeof a), memset(&more, 0, sizeof more);
  a.target = target, a.x = x;
  if (params) a.p = *params;
  if (!attn_check_ctx_(&e, ctx, &a.table, &workers) ||
      !attn_check_layers_(&e, &a.x, a.p.x_len, &op[0], &more, 0))
    return attn_end_(bytes ? NULL : ctx, &e);
  const int64_t targets = attn_mul_(x.batch, a.p.tokens ? x.dim : 1);
  if (x.len < 1) {
    attn_reject_(&e, ATTN_E_SHAPE, "x.len, the layers, must be at least 1");
  } else if (!(a.p.lambda >= 0.0f && a.p.lambda < INFINITY)) {
    attn_reject_(&e, ATTN_E_RANGE, "params.lambda must be finite and not negative");
  } else if (!target && x.batch > 0) {
    attn_reject_(&e, ATTN_E_NULL, "target must not be null");
  } else if (attn_check_written_(&e, &op[1], target, targets, 4, word,
                                 "target must be aligned to its elements") &&
             attn_check_apart_(&e, ctx, op, 2, more.span, more.n) && !bytes) {
    workers = attn_pieces_(workers, x.batch);
    if (x.batch > 0) attn_for_(ctx, workers, x.batch, attn_target_item_, &a);
    attn_report_(ctx, a.table, workers, x.batch ? "rows" : "no-op", "the only path");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_exit_target, (target, x, params), int32_t *target, attn_tensor x,
           const attn_exit_target_params *params)
