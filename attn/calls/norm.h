/* calls/norm.h owns what stands between dense products: layer norm and RMS norm with their residual sum, activations
 * with a gate; as calls and as steps of other calls. */

/* ---- checks that layers share ---------------------------------------------------------------*/

/* Spans of the plain arrays of a call. */
typedef struct attn_arrays_ {
  int n;
  attn_span_ span[16];
} attn_arrays_;

ATTN_FUNC_ int attn_check_norm_(attn_error_ *e, const attn_norm *norm, int64_t dm,
                                attn_arrays_ *more) {
  const char *align = "the gain and bias of a norm must be aligned to their elements";
  if (!(norm->eps >= 0.0f && norm->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "the eps of a norm must be finite and not negative");
  if (norm->kind != ATTN_NORM_LAYER && norm->kind != ATTN_NORM_RMS)
    return attn_reject_(e, ATTN_E_RANGE,
                        "the kind of a norm must be ATTN_NORM_LAYER or ATTN_NORM_RMS");
  if (norm->gain_less_one != 0 && norm->gain_less_one != 1)
    return attn_reject_(e, ATTN_E_RANGE, "the gain_less_one of a norm must be 0 or 1");
  more->n += 2;
  return attn_check_array_(e, norm->gain, dm, 4, align, &more->span[more->n - 2]) &&
         attn_check_array_(e, norm->bias, dm, 4, align, &more->span[more->n - 1]);
}

/* ---- rows and columns of an item ------------------------------------------------------------*/

/* What the operands of both calls are: y and sum are outputs, x and more (residual or gate) inputs. */
typedef struct attn_between_ {
  const attn_table_ *table;
  attn_tensor y, sum, x, more;
  const attn_norm *norm; /* null = none */
  attn_norm own;
  attn_activation act;
  attn_act_form form;
  int64_t tiles, slices; /* 64 rows; columns of an activation */
  int64_t run;           /* rows at once */
  char *memory;          /* of the workers: rooms of `room` floats */
  int64_t each, room;
} attn_between_;

/* Numbers that are activated at once, and columns of an item: one row may be all there is. */
enum { ATTN_SLICE_ = 2048 };

/* Rows i .. i + n - 1, columns from c on, as floats: where they lie, or copied into room. */
ATTN_FUNC_ const float *attn_rows_in_(const attn_table_ *f, const attn_tensor *t, const char *at,
                                      int64_t n, int64_t cols, float *room, int64_t *stride) {
  *stride = t->stride_len;
  if (t->dtype == ATTN_F32) return (const float *)(const void *)at;
  f->widen(room, at, t->stride_len, NULL, n, cols, t->dtype, NULL);
  *stride = cols;
  return room;
}

/* Where those of an output are made. */
ATTN_FUNC_ float *attn_rows_out_(const attn_tensor *t, char *at, int64_t cols, float *room,
                                 int64_t *stride) {
  const int plain = t->dtype == ATTN_F32;
  *stride = plain ? t->stride_len : cols;
  return plain ? (float *)(void *)at : room;
}

ATTN_FUNC_ void attn_rows_done_(const attn_table_ *f, const attn_tensor *t, char *at, int64_t n,
                                int64_t cols, const float *room) {
  if (t->dtype != ATTN_F32)
    for (int64_t r = 0; r < n; r++)
      f->blend(at + attn_bytes_(t->dtype, r * t->stride_len), room + r * cols, NULL, t->dtype,
               ATTN_F32, ATTN_F32, cols, 1.0f, 0.0f);
}

ATTN_FUNC_ int attn_between_narrow_(const attn_between_ *a) {
  return a->x.dtype != ATTN_F32 || a->y.dtype != ATTN_F32 || a->more.dtype != ATTN_F32 ||
         a->sum.dtype != ATTN_F32;
}

/* Rooms beside each other, if any is needed: x and y share the first, since y may be x. */
ATTN_FUNC_ void attn_between_rooms_(attn_between_ *a, int rooms) {
  a->each = attn_between_narrow_(a) ? attn_piece_(attn_mul_(rooms, a->room), sizeof(float)) : 0;
}

/* ---- layer norm -----------------------------------------------------------------------------*/

/* 64 rows of one head, as many at once as stay in the first cache. */
ATTN_FUNC_ void attn_layer_norm_item_(void *job, int worker, int64_t index) {
  const attn_between_ *a = (const attn_between_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->tiles, b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t first = index % a->tiles * ATTN_TILE_, dim = a->y.dim;
  const int64_t end = a->y.len - first < ATTN_TILE_ ? a->y.len : first + ATTN_TILE_;
  float *room = (float *)(void *)(a->memory + worker * a->each);
  for (int64_t i = first, n; i < end; i += n) {
    n = end - i < a->run ? end - i : a->run;
    char *y = attn_at_(&a->y, b, h, i), *sum = a->sum.data ? attn_at_(&a->sum, b, h, i) : NULL;
    const char *x = attn_at_(&a->x, b, h, i);
    const char *more = a->more.data ? attn_at_(&a->more, b, h, i) : NULL;
    if (!a->norm) {
      f->blend(y, x, more, a->y.dtype, a->x.dtype, a->more.dtype, dim, 1.0f, 1.0f);
      continue;
    }
    attn_norm_rows_ rows;
    attn_clear_(&rows, sizeof rows);
    rows.n = dim;
    rows.x = attn_rows_in_(f, &a->x, x, n, dim, room, &rows.x_stride);
    rows.y = attn_rows_out_(&a->y, y, dim, room, &rows.y_stride);
    if (more)
      rows.more = attn_rows_in_(f, &a->more, more, n, dim, room + a->room, &rows.more_stride);
    if (sum) rows.sum = attn_rows_out_(&a->sum, sum, dim, room + 2 * a->room, &rows.sum_stride);
    attn_norm_rows_of_(f, &rows, n, a->norm);
    if (sum) attn_rows_done_(f, &a->sum, sum, n, dim, rows.sum);
    attn_rows_done_(f, &a->y, y, n, dim, rows.y);
  }
}

/* y = LN(x + residual) and sum = x + residual; residual and sum may be absent, norm null = none. x and
 * residual have the batch and heads of y or 1; y and sum may be x or residual. */
ATTN_FUNC_ int attn_stage_sum_norm_(attn_stage_ *s, attn_tensor y, attn_tensor sum, attn_tensor x,
                                    attn_tensor residual, const attn_norm *norm) {
  attn_between_ a;
  attn_clear_(&a, sizeof a);
  a.table = s->table, a.y = y, a.norm = norm;
  if (sum.data) a.sum = sum;
  a.x = attn_spread_heads_(attn_spread_(x, y.batch), y.heads);
  if (residual.data) a.more = attn_spread_heads_(attn_spread_(residual, y.batch), y.heads);
  a.tiles = attn_tiles_of_(y.len);
  a.run = !norm ? 1 : attn_between_narrow_(&a) ? 4 : ATTN_TILE_;
  a.room = attn_mul_(a.run, y.dim);
  if (norm) attn_between_rooms_(&a, 3);
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), a.tiles), attn_layer_norm_item_,
                         &a, a.each, &a.memory);
}

ATTN_FUNC_ int attn_stage_norm_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor residual,
                                const attn_norm *norm) {
  if (norm && norm->kind == ATTN_NORM_NONE) norm = NULL;
  return attn_stage_sum_norm_(s, y, attn_view_(NULL, ATTN_F32, 0, 0, 0, 0), x, residual, norm);
}

/* ---- activation -----------------------------------------------------------------------------*/

/* n numbers in a row. */
ATTN_FUNC_ void attn_activate_some_(const attn_between_ *a, float *room, char *to, const char *x,
                                    const char *gate, int64_t n) {
  const attn_table_ *f = a->table;
  int64_t stride;
  const float *in = attn_rows_in_(f, &a->x, x, 1, n, room, &stride);
  const float *by = gate ? attn_rows_in_(f, &a->more, gate, 1, n, room + a->room, &stride) : NULL;
  float *y = attn_rows_out_(&a->y, to, n, room, &stride);
  if (attn_formed_(&a->form))
    attn_formed_row_(f, y, in, by, n, (int)a->act, &a->form);
  else
    attn_on_(dense, f)->act(y, in, by, n, NULL, 1.0f, (int)a->act);
  attn_rows_done_(f, &a->y, to, 1, n, y);
}

/* 64 rows of one head, some columns; rows that lie end to end are one. */
ATTN_FUNC_ void attn_activate_item_(void *job, int worker, int64_t index) {
  const attn_between_ *a = (const attn_between_ *)job;
  const int64_t slice = index % a->slices, tile = index / a->slices % a->tiles, dim = a->y.dim;
  const int64_t unit = index / a->slices / a->tiles, b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t first = tile * ATTN_TILE_, left = a->y.len - first, c0 = slice * ATTN_SLICE_;
  const int64_t rows = left < ATTN_TILE_ ? left : (int64_t)ATTN_TILE_;
  const int whole = a->slices == 1 && a->y.stride_len == dim && a->x.stride_len == dim &&
                    (!a->more.data || a->more.stride_len == dim);
  const int64_t cols = whole                    ? rows * dim
                       : dim - c0 < ATTN_SLICE_ ? dim - c0
                                                : (int64_t)ATTN_SLICE_;
  float *room = (float *)(void *)(a->memory + worker * a->each);
  for (int64_t i = 0; i < (whole ? 1 : rows); i++) {
    char *y = attn_at_(&a->y, b, h, first + i) + attn_bytes_(a->y.dtype, c0);
    const char *x = attn_at_(&a->x, b, h, first + i) + attn_bytes_(a->x.dtype, c0), *gate = NULL;
    if (a->more.data) gate = attn_at_(&a->more, b, h, first + i) + attn_bytes_(a->more.dtype, c0);
    for (int64_t c = 0, n; c < cols; c += n) {
      n = cols - c < ATTN_SLICE_ ? cols - c : (int64_t)ATTN_SLICE_;
      attn_activate_some_(a, room, y + attn_bytes_(a->y.dtype, c), x + attn_bytes_(a->x.dtype, c),
                          gate ? gate + attn_bytes_(a->more.dtype, c) : NULL, n);
    }
  }
}

/* y = act(x) gate; gate may be absent; form null = plain. */
ATTN_FUNC_ int attn_stage_activate_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor gate,
                                    attn_activation act, const attn_act_form *form) {
  attn_between_ a;
  attn_clear_(&a, sizeof a);
  if (form) a.form = *form;
  a.table = s->table, a.y = y, a.act = act;
  a.x = attn_spread_heads_(attn_spread_(x, y.batch), y.heads);
  if (gate.data) a.more = attn_spread_heads_(attn_spread_(gate, y.batch), y.heads);
  a.tiles = attn_tiles_of_(y.len);
  a.slices = y.dim / ATTN_SLICE_ + (y.dim % ATTN_SLICE_ != 0);
  a.room = ATTN_SLICE_;
  attn_between_rooms_(&a, 2);
  return attn_stage_for_(s, attn_mul_(attn_mul_(attn_mul_(y.batch, y.heads), a.tiles), a.slices),
                         attn_activate_item_, &a, a.each, &a.memory);
}

/* ---- calls ----------------------------------------------------------------------------------*/

ATTN_FUNC_ int attn_between_check_(attn_error_ *e, attn_between_ *a, const attn_ctx *ctx,
                                   int norm) {
  static const char *const w[] = {ATTN_WORDS_("y"), ATTN_WORDS_("x"),
                                  ATTN_WORDS_("params.residual"), ATTN_WORDS_("params.gate"),
                                  ATTN_WORDS_("params.sum")};
  enum { Y, X, MORE, SUM, COUNT };
  const int64_t any = ATTN_ANY_, len = a->y.len, dim = a->y.dim;
  attn_arrays_ array = {0, {{0, 0, 0, 0}}};
  const char *rule = norm ? "params.residual must be [1 or B, 1 or H, T, n] like y"
                          : "params.gate must be [1 or B, 1 or H, T, n] like y";
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&a->y, w[0], ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&a->x, w[1], 0, any, any, len, dim,
                       "x must be [1 or B, 1 or H, T, n] like y"),
      ATTN_OPERAND_AS_(&a->more, w[norm ? 2 : 3], ATTN_OPTIONAL_, any, any, len, dim, rule),
      ATTN_OPERAND_AS_(&a->sum, w[4], ATTN_OUT_ | ATTN_OPTIONAL_, a->y.batch, a->y.heads, len, dim,
                       "params.sum must have the shape of y")};
  for (int i = 0; i < COUNT; i++) {
    const attn_tensor *t = op[i].t;
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
    if (t->data && !attn_gemm_fits_(t, &a->y)) return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
  }
  for (int i = X; i <= MORE; i++) /* in place: the output speaks for both */
    for (int o = Y; o < COUNT; o += SUM - Y) {
      const attn_tensor *t = op[i].t, *to = op[o].t;
      if (to->data && attn_same_view_(t, to) && t->batch == to->batch && t->heads == to->heads)
        op[i].span.lo = op[i].span.hi = 0;
    }
  if (norm && !attn_check_norm_(e, &a->own, dim, &array)) return 0;
  return attn_check_apart_(e, ctx, op, COUNT, array.span, array.n);
}

ATTN_FUNC_ int attn_layer_norm_steps_(attn_stage_ *s, void *job) {
  const attn_between_ *a = (const attn_between_ *)job;
  return attn_stage_sum_norm_(s, a->y, a->sum, a->x, a->more, &a->own);
}

ATTN_FUNC_ attn_status attn_layer_norm_call_(attn_tensor y, attn_tensor x,
                                             const attn_layer_norm_params *params,
                                             attn_norm_kind kind, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_between_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.y = y, a.x = x;
  if (params) {
    a.own = params->norm;
    if (params->residual.data) a.more = params->residual;
    if (params->sum.data) a.sum = params->sum;
  }
  a.own.kind = kind;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_between_check_(&e, &a, ctx, 1);
  return attn_step_call_(&e, a.table, workers, ctx, attn_layer_norm_steps_, &a,
                         "rows a few at a time", bytes);
}

ATTN_FUNC_ size_t attn_layer_norm_bytes_(attn_tensor y, attn_tensor x,
                                         const attn_layer_norm_params *params, attn_norm_kind kind,
                                         const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_layer_norm_call_(y, x, params, kind, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

ATTN_PUB_ attn_status attn_layer_norm(attn_tensor y, attn_tensor x,
                                      const attn_layer_norm_params *params, attn_ctx *ctx) {
  return attn_layer_norm_call_(y, x, params, ATTN_NORM_LAYER, ctx, NULL);
}
ATTN_PUB_ size_t attn_layer_norm_workspace(attn_tensor y, attn_tensor x,
                                           const attn_layer_norm_params *params,
                                           const attn_ctx *ctx) {
  return attn_layer_norm_bytes_(y, x, params, ATTN_NORM_LAYER, ctx);
}

ATTN_PUB_ attn_status attn_rms_norm(attn_tensor y, attn_tensor x,
                                    const attn_layer_norm_params *params, attn_ctx *ctx) {
  return attn_layer_norm_call_(y, x, params, ATTN_NORM_RMS, ctx, NULL);
}
ATTN_PUB_ size_t attn_rms_norm_workspace(attn_tensor y, attn_tensor x,
                                         const attn_layer_norm_params *params,
                                         const attn_ctx *ctx) {
  return attn_layer_norm_bytes_(y, x, params, ATTN_NORM_RMS, ctx);
}

ATTN_FUNC_ int attn_activate_steps_(attn_stage_ *s, void *job) {
  const attn_between_ *a = (const attn_between_ *)job;
  return attn_stage_activate_(s, a->y, a->x, a->more, a->act, &a->form);
}

ATTN_FUNC_ attn_status attn_activate_call_(attn_tensor y, attn_tensor x,
                                           const attn_activate_params *params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_between_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.y = y, a.x = x;
  if (params) {
    a.act = params->activation, a.form = params->form;
    if (params->gate.data) a.more = params->gate;
  }
  (void)(attn_check_ctx_(&e, ctx, &a.table, &workers) && attn_between_check_(&e, &a, ctx, 0) &&
         attn_check_activation_(&e, &a.act, ATTN_ACT_NONE,
                                "params.activation must be an attn_activation") &&
         attn_check_form_(&e, &a.form, a.more.data != NULL));
  return attn_step_call_(&e, a.table, workers, ctx, attn_activate_steps_, &a, "element by element",
                         bytes);
}

ATTN_PUB_ attn_status attn_activate(attn_tensor y, attn_tensor x,
                                    const attn_activate_params *params, attn_ctx *ctx) {
  return attn_activate_call_(y, x, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_activate_workspace(attn_tensor y, attn_tensor x,
                                         const attn_activate_params *params, const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_activate_call_(y, x, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
