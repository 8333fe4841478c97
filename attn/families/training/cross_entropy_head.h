/* families/training/cross_entropy_head.h owns the loss over classes whose logits are a product of rows, by chunks of
 * columns: rows that count stand side by side, and each chunk of their logits is made for the loss and again for the
 * gradients. */

/* RUN: columns of a chunk, one run of sums over columns, and rows of one over rows. ROWS, COLS: tiles of gradients. */
enum {
  ATTN_HEAD_RUN_ = ATTN_LOSS_RUN_,
  ATTN_HEAD_ROWS_ = 96,
  ATTN_HEAD_COLS_ = 256,
  ATTN_HEAD_ITEM_ = 64
};

typedef struct attn_head_loss_ {
  const attn_table_ *table;
  double *loss;
  attn_tensor d_x, d_w, d_bias, x, w, bias;
  const int32_t *targets;
  int transposed;
  attn_cross_entropy_params p;
  attn_loss_rule_ rule;
  double count;
  int64_t all, rows; /* rows, and those that count: of what is allocated, and of what is done */
  int64_t *row;      /* [rows]: which of all */
  attn_tensor flat;  /* [rows][in] of x */
  float *turned;     /* [in][turned_stride], the same turned */
  int64_t turned_stride;
  attn_tensor z, sum; /* a chunk, its rows; [rows][in] of d_x */
  attn_logits_row_ *state;
  attn_loss_slope_ *slope;
  double *losses;
  int64_t c0, cols;    /* the chunk */
  attn_matrix_ matrix; /* of the product at hand */
  int64_t runs;        /* of columns of its tiles */
  char *memory;
  int64_t each;
} attn_head_loss_;

ATTN_FUNC_ char *attn_head_row_(const attn_tensor *t, int64_t r) {
  const int64_t unit = r / t->len;
  return attn_at_(t, unit / t->heads, unit % t->heads, r % t->len);
}

/* ---- rows -----------------------------------------------------------------------------------*/

/* Rows that count, side by side, and turned. */
ATTN_FUNC_ void attn_head_gather_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  const int64_t r0 = index * ATTN_HEAD_ITEM_, left = a->rows - r0, in = a->x.dim;
  const int n = left < ATTN_HEAD_ITEM_ ? (int)left : (int)ATTN_HEAD_ITEM_;
  const void *rows[ATTN_HEAD_ITEM_];
  (void)worker;
  for (int i = 0; i < n; i++) {
    float *to = (float *)(void *)attn_at_(&a->flat, 0, 0, r0 + i);
    a->table->widen(to, attn_head_row_(&a->x, a->row[r0 + i]), 0, NULL, 1, in, a->x.dtype, NULL);
    a->state[r0 + i] = attn_loss_begin_();
    rows[i] = to;
  }
  if (a->turned)
    attn_on_(dense, a->table)->turn(a->turned + r0, a->turned_stride, rows, ATTN_F32, in, n);
}

ATTN_FUNC_ void attn_head_take_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  int64_t r = index * ATTN_HEAD_ITEM_;
  const int64_t end = a->rows - r < ATTN_HEAD_ITEM_ ? a->rows : r + ATTN_HEAD_ITEM_;
  (void)worker;
  for (; r < end; r++) {
    attn_loss_take_(a->table, &a->rule, &a->state[r],
                    (const float *)(const void *)attn_at_(&a->z, 0, 0, r), a->c0, a->cols,
                    a->targets[a->row[r]]);
    if (a->c0 + a->cols == a->rule.classes)
      a->losses[r] = attn_loss_close_(&a->rule, &a->state[r], &a->slope[r]);
  }
}

/* Logits of a chunk become their gradients. */
ATTN_FUNC_ void attn_head_slope_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  int64_t r = index * ATTN_HEAD_ITEM_;
  const int64_t end = a->rows - r < ATTN_HEAD_ITEM_ ? a->rows : r + ATTN_HEAD_ITEM_;
  (void)worker;
  for (; r < end; r++) {
    float *z = (float *)(void *)attn_at_(&a->z, 0, 0, r);
    attn_loss_slopes_(a->table, &a->slope[r], z, z, a->c0, a->cols, a->targets[a->row[r]]);
  }
}

/* A row of an output from floats, which may be changed. */
ATTN_FUNC_ void attn_head_put_(const attn_head_loss_ *a, void *to, attn_dtype type, float *x,
                               int64_t n) {
  attn_row_one_nan_(a->table, x, n);
  a->table->blend(to, x, a->p.accumulate ? to : NULL, type, ATTN_F32, type, n, 1.0f, 1.0f);
}

ATTN_FUNC_ void attn_head_finish_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  int64_t r = index * ATTN_HEAD_ITEM_;
  const int64_t end = a->rows - r < ATTN_HEAD_ITEM_ ? a->rows : r + ATTN_HEAD_ITEM_;
  (void)worker;
  for (; r < end; r++)
    attn_head_put_(a, attn_head_row_(&a->d_x, a->row[r]), a->d_x.dtype,
                   (float *)(void *)attn_at_(&a->sum, 0, 0, r), a->x.dim);
}

/* ---- products -------------------------------------------------------------------------------*/

/* A tile of d_x: the chunk's columns, which are one run, join what earlier ones left. */
ATTN_FUNC_ void attn_head_back_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  const int64_t r0 = index / a->runs * ATTN_HEAD_ROWS_, i0 = index % a->runs * ATTN_HEAD_COLS_;
  const int64_t rows = a->rows - r0 < ATTN_HEAD_ROWS_ ? a->rows - r0 : (int64_t)ATTN_HEAD_ROWS_;
  const int64_t i1 = a->x.dim - i0 < ATTN_HEAD_COLS_ ? a->x.dim : i0 + ATTN_HEAD_COLS_;
  const attn_matrix_part_ part = {0, 0, 0, a->cols, i0, i1};
  const attn_floats_ z = attn_floats_at_((const float *)(const void *)attn_at_(&a->z, 0, 0, r0),
                                         a->z.stride_len, rows);
  float *near = (float *)(void *)(a->memory + worker * a->each);
  attn_matrix_times_(a->table, &a->matrix, &part, near, ATTN_HEAD_COLS_, z, 1);
  for (int64_t r = 0; r < rows; r++) {
    float *to = (float *)(void *)attn_at_(&a->sum, 0, 0, r0 + r) + i0;
    a->table->blend(to, near + r * ATTN_HEAD_COLS_, a->c0 > 0 ? to : NULL, ATTN_F32, ATTN_F32,
                    ATTN_F32, i1 - i0, 1.0f, 1.0f);
  }
}

/* A tile of d_w: rows i of x turned by columns of the chunk, rows in runs that are joined in order. */
ATTN_FUNC_ void attn_head_weight_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  const int64_t i0 = index / a->runs * ATTN_HEAD_ROWS_, c0 = index % a->runs * ATTN_HEAD_COLS_;
  const int64_t n = a->x.dim - i0 < ATTN_HEAD_ROWS_ ? a->x.dim - i0 : (int64_t)ATTN_HEAD_ROWS_;
  const int64_t c1 = a->cols - c0 < ATTN_HEAD_COLS_ ? a->cols : c0 + ATTN_HEAD_COLS_;
  float *far = (float *)(void *)(a->memory + worker * a->each);
  float *near = far + ATTN_HEAD_ROWS_ * ATTN_HEAD_COLS_, line[ATTN_HEAD_ROWS_];
  for (int64_t t = 0; t < a->rows; t += ATTN_HEAD_RUN_) {
    const int64_t deep = a->rows - t < ATTN_HEAD_RUN_ ? a->rows - t : (int64_t)ATTN_HEAD_RUN_;
    const attn_matrix_part_ part = {0, 0, t, deep, c0, c1};
    attn_matrix_times_(a->table, &a->matrix, &part, t > 0 ? near : far, ATTN_HEAD_COLS_,
                       attn_floats_at_(a->turned + i0 * a->turned_stride + t, a->turned_stride, n),
                       1);
    for (int64_t i = 0; t > 0 && i < n; i++)
      a->table->blend(far + i * ATTN_HEAD_COLS_, far + i * ATTN_HEAD_COLS_,
                      near + i * ATTN_HEAD_COLS_, ATTN_F32, ATTN_F32, ATTN_F32, c1 - c0, 1.0f,
                      1.0f);
  }
  for (int64_t i = 0; !a->transposed && i < n; i++)
    attn_head_put_(a, attn_at_(&a->d_w, 0, 0, i0 + i) + attn_bytes_(a->d_w.dtype, a->c0 + c0),
                   a->d_w.dtype, far + i * ATTN_HEAD_COLS_, c1 - c0);
  for (int64_t c = c0; a->transposed && c < c1; c++) {
    for (int64_t i = 0; i < n; i++) line[i] = far[i * ATTN_HEAD_COLS_ + c - c0];
    attn_head_put_(a, attn_at_(&a->d_w, 0, 0, a->c0 + c) + attn_bytes_(a->d_w.dtype, i0),
                   a->d_w.dtype, line, n);
  }
}

/* d_bias of some columns of the chunk, in the same runs. */
ATTN_FUNC_ void attn_head_bias_item_(void *job, int worker, int64_t index) {
  const attn_head_loss_ *a = (const attn_head_loss_ *)job;
  const int64_t c0 = index * ATTN_HEAD_ITEM_, left = a->cols - c0;
  const int64_t n = left < ATTN_HEAD_ITEM_ ? left : (int64_t)ATTN_HEAD_ITEM_;
  float far[ATTN_HEAD_ITEM_] = {0.0f}, near[ATTN_HEAD_ITEM_];
  (void)worker;
  for (int64_t t = 0; t < a->rows; t += ATTN_HEAD_RUN_) {
    const int64_t end = a->rows - t < ATTN_HEAD_RUN_ ? a->rows : t + ATTN_HEAD_RUN_;
    memset(near, 0, sizeof near);
    for (int64_t r = t; r < end; r++)
      a->table->blend(near, near, (const float *)(const void *)attn_at_(&a->z, 0, 0, r) + c0,
                      ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
    a->table->blend(far, far, near, ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
  }
  attn_head_put_(a, attn_at_(&a->d_bias, 0, 0, 0) + attn_bytes_(a->d_bias.dtype, a->c0 + c0),
                 a->d_bias.dtype, far, n);
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* Columns of the chunk of a matrix that lies turned or not. */
ATTN_COLD_ attn_tensor attn_head_columns_(const attn_head_loss_ *a) {
  attn_tensor w = a->w;
  const int turned = attn_is_turned_(&w);
  if (w.data) w.data = (char *)w.data + attn_bytes_(w.dtype, a->c0 * (turned ? w.stride_len : 1));
  w.dim = a->cols;
  return w;
}

/* Logits of the chunk from column c on, for the loss or for gradients. */
ATTN_COLD_ int attn_head_chunk_(attn_stage_ *s, attn_head_loss_ *a, int64_t c, int make) {
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  a->c0 = c, a->cols = a->rule.classes - c;
  if (a->cols > ATTN_HEAD_RUN_) a->cols = ATTN_HEAD_RUN_;
  a->z.dim = a->cols, a->z.len = a->flat.len = a->sum.len = a->rows;
  if (!make) return 1;
  p.bias = a->bias;
  if (p.bias.data)
    p.bias.data = (char *)p.bias.data + attn_bytes_(p.bias.dtype, c), p.bias.dim = a->cols;
  return attn_stage_gemm_(s, a->z, a->flat, attn_head_columns_(a), &p);
}

/* Gradients of the chunk. */
ATTN_COLD_ int attn_head_gradients_(attn_stage_ *s, attn_head_loss_ *a) {
  const int64_t in = a->x.dim, tile = ATTN_HEAD_ROWS_ * ATTN_HEAD_COLS_ * (int64_t)sizeof(float);
  attn_stage_for_(s, attn_runs_of_(a->rows, ATTN_HEAD_ITEM_), attn_head_slope_item_, a, 0, NULL);
  if (a->d_x.data) {
    attn_tensor w = attn_head_columns_(a);
    const int turned = attn_turn_back_(&w); /* [cols, in] then, which is the way it is wanted */
    a->matrix = attn_matrix_of_(w, !turned, a->rows, 1);
    a->runs = attn_runs_of_(in, ATTN_HEAD_COLS_), a->each = tile;
    attn_stage_products_(s, &a->matrix, 1, attn_runs_of_(a->rows, ATTN_HEAD_ROWS_) * a->runs,
                         attn_head_back_item_, a, a->each, &a->memory);
  }
  if (a->d_w.data) {
    a->matrix = attn_matrix_of_(a->z, 0, in, 1);
    a->runs = attn_runs_of_(a->cols, ATTN_HEAD_COLS_), a->each = 2 * tile;
    attn_stage_products_(s, &a->matrix, 1, attn_runs_of_(in, ATTN_HEAD_ROWS_) * a->runs,
                         attn_head_weight_item_, a, a->each, &a->memory);
  }
  if (a->d_bias.data)
    attn_stage_for_(s, attn_runs_of_(a->cols, ATTN_HEAD_ITEM_), attn_head_bias_item_, a, 0, NULL);
  return 1;
}

/* Zeros where no row counts. */
ATTN_COLD_ void attn_head_clear_(const attn_head_loss_ *a) {
  const attn_tensor *const out[] = {&a->d_w, &a->d_bias};
  if (a->p.accumulate) return;
  for (int64_t r = 0; a->d_x.data && r < a->all; r++)
    if (attn_loss_ignored_(&a->p, a->targets[r]))
      memset(attn_head_row_(&a->d_x, r), 0, (size_t)attn_bytes_(a->d_x.dtype, a->d_x.dim));
  for (int i = 0; a->rows == 0 && i < 2; i++)
    for (int64_t r = 0; out[i]->data && r < out[i]->len; r++)
      memset(attn_at_(out[i], 0, 0, r), 0, (size_t)attn_bytes_(out[i]->dtype, out[i]->dim));
}

ATTN_COLD_ int attn_head_loss_steps_(attn_stage_ *s, void *job) {
  attn_head_loss_ *a = (attn_head_loss_ *)job;
  const int64_t in = a->x.dim, classes = a->rule.classes;
  const int any = a->d_x.data || a->d_w.data || a->d_bias.data;
  double sum = 0.0;
  a->rows = a->all; /* so that memory does not hang on targets */
  a->row = (int64_t *)attn_stage_take_(s, a->rows, sizeof(int64_t));
  a->flat = attn_stage_tensor_(s, 1, 1, a->rows, in);
  a->state = (attn_logits_row_ *)attn_stage_take_(s, a->rows, sizeof *a->state);
  a->slope = (attn_loss_slope_ *)attn_stage_take_(s, a->rows, sizeof *a->slope);
  a->losses = (double *)attn_stage_take_(s, a->rows, sizeof(double));
  a->turned = NULL, a->turned_stride = attn_round_up_(a->rows, ATTN_HEAD_ITEM_) + 16;
  if (a->d_w.data)
    a->turned = (float *)attn_stage_take_(s, attn_mul_(in, a->turned_stride), sizeof(float));
  /* rows of a chunk do not meet in one set of the cache */
  a->z = attn_stage_tensor_(s, 1, 1, a->rows,
                            classes < ATTN_HEAD_RUN_ ? classes + 16 : ATTN_HEAD_RUN_ + 16);
  if (a->d_x.data) a->sum = attn_stage_tensor_(s, 1, 1, a->rows, in);
  if (s->run) {
    a->rows = 0;
    for (int64_t r = 0; r < a->all; r++)
      if (!attn_loss_ignored_(&a->p, a->targets[r])) a->row[a->rows++] = r;
    attn_head_clear_(a);
    if (a->loss) *a->loss = 0.0;
  }
  if (a->rows == 0) return 1;
  const int64_t items = attn_runs_of_(a->rows, ATTN_HEAD_ITEM_);
  attn_stage_for_(s, items, attn_head_gather_item_, a, 0, NULL);
  for (int64_t c = 0; c < classes; c += ATTN_HEAD_RUN_) {
    if (!attn_head_chunk_(s, a, c, 1)) return 0;
    attn_stage_for_(s, items, attn_head_take_item_, a, 0, NULL);
  }
  for (int64_t r = 0; s->run && r < a->rows; r++) sum += a->losses[r];
  if (s->run && a->loss) *a->loss = attn_one_nan_f64_(sum / a->count);
  for (int64_t c = 0; any && c < classes; c += ATTN_HEAD_RUN_)
    if (!attn_head_chunk_(s, a, c, classes > ATTN_HEAD_RUN_) || !attn_head_gradients_(s, a))
      return 0;
  if (a->d_x.data) attn_stage_for_(s, items, attn_head_finish_item_, a, 0, NULL);
  return 1;
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_head_loss_check_(attn_error_ *e, attn_head_loss_ *a, const attn_ctx *ctx) {
  attn_span_ span[2]; /* of loss and targets */
  attn_tensor *x = &a->x, *w = &a->w;
  if (a->transposed != 0 && a->transposed != 1)
    return attn_reject_(e, ATTN_E_RANGE, "params.w_transposed must be 0 or 1");
  const int64_t in = a->x.dim, classes = a->transposed ? w->len : w->dim;
  attn_turn_(w, a->transposed);
  attn_operand_ op[] = {
      ATTN_OPERAND_(x, "x", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ""),
      ATTN_OPERAND_(w, "w", ATTN_MATRIX_, 1, 1, in, ATTN_ANY_, ATTN_IN_OUT_("w", "x.dim", "V")),
      ATTN_OPERAND_(&a->bias, "params.bias", ATTN_OPTIONAL_, 1, 1, 1, classes,
                    "params.bias must be [1, 1, 1, V]"),
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, x->batch, x->heads, x->len, in,
                    "d_x must have the shape of x"),
      ATTN_OPERAND_(&a->d_w, "gradients.d_w", ATTN_OUT_ | ATTN_OPTIONAL_, 1, 1,
                    a->transposed ? classes : in, a->transposed ? in : classes,
                    "gradients.d_w must have the shape of w"),
      ATTN_OPERAND_(&a->d_bias, "gradients.d_bias", ATTN_OUT_ | ATTN_OPTIONAL_, 1, 1, 1, classes,
                    "gradients.d_bias must be [1, 1, 1, V]")};
  enum { N = sizeof op / sizeof *op };
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  a->all = attn_mul_(attn_mul_(x->batch, x->heads), x->len);
  if (a->all > 0 && !a->targets) return attn_reject_(e, ATTN_E_NULL, "targets must not be null");
  if (!attn_check_array_(e, a->loss, 1, 8, "loss must be aligned to its elements", &span[0]) ||
      !attn_check_array_(e, a->targets, a->all, 4, "targets must be aligned to its elements",
                         &span[1]) ||
      !attn_check_apart_(e, ctx, op, N, span, 2))
    return 0;
  if (!attn_span_alone_(&span[0], op, N, &span[1], 1))
    return attn_reject_(e, ATTN_E_OVERLAP, "loss must share no memory with another argument");
  return attn_loss_check_(e, &a->p, a->targets, a->all, classes, &a->rule, &a->count);
}

ATTN_COLD_ attn_status attn_cross_entropy_head_call_(
    double *loss, attn_tensor d_x, attn_tensor x, attn_tensor w, const int32_t *targets,
    const attn_cross_entropy_head_params *params,
    const attn_cross_entropy_head_gradients *gradients, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_head_loss_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  if (params) a.p = params->loss, a.bias = params->bias, a.transposed = params->w_transposed;
  if (gradients) a.d_w = gradients->d_w, a.d_bias = gradients->d_bias;
  a.loss = loss, a.d_x = d_x, a.x = x, a.w = w, a.targets = targets;
  const int asked = loss || d_x.data || a.d_w.data || a.d_bias.data;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) attn_head_loss_check_(&e, &a, ctx);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_head_loss_steps_, &a,
                            "cross-entropy of a product, chunks of columns",
                            asked ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_cross_entropy_head, (loss, d_x, x, w, targets, params, gradients), double *loss,
           attn_tensor d_x, attn_tensor x, attn_tensor w, const int32_t *targets,
           const attn_cross_entropy_head_params *params,
           const attn_cross_entropy_head_gradients *gradients)
