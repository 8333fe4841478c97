/* families/blocks/trajectory.h owns trajectories as sequences: returns to go, tokens, the mask of those that
 * exist, predictions. */

/* ---- returns --------------------------------------------------------------------------------*/

typedef struct attn_returns_job_ {
  const attn_table_ *table;
  attn_tensor y, r;
  double gamma;
  const float *target;
} attn_returns_job_;

/* A batch entry, 64 steps at a time: from the last, or with a target from the first. */
ATTN_FUNC_ void attn_returns_item_(void *job, int worker, int64_t b) {
  const attn_returns_job_ *j = (const attn_returns_job_ *)job;
  const int64_t n = j->r.len, blocks = attn_tiles_of_(n);
  double sum = j->target ? (double)j->target[b] : 0.0;
  (void)worker;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t first = (j->target ? i : blocks - 1 - i) * ATTN_TILE_;
    const int64_t m = n - first < ATTN_TILE_ ? n - first : ATTN_TILE_;
    float x[ATTN_TILE_];
    j->table->widen(x, attn_at_(&j->r, b, 0, first), j->r.stride_len, NULL, m, 1, j->r.dtype, NULL);
    for (int64_t k = 0; k < m; k++) {
      float *at = &x[j->target ? k : m - 1 - k];
      const double r = (double)*at;
      if (j->target) {
        *at = (float)sum;
        sum = (sum - r) / j->gamma;
      } else {
        sum = j->gamma == 1.0 ? r + sum : fma(j->gamma, sum, r);
        *at = (float)sum;
      }
    }
    for (int64_t k = 0; k < m; k++)
      j->table->blend(attn_at_(&j->y, b, 0, first + k), x + k, NULL, j->y.dtype, ATTN_F32, ATTN_F32,
                      1, 1.0f, 0.0f);
  }
}

ATTN_COLD_ int attn_returns_check_(attn_error_ *e, attn_returns_job_ *j,
                                   const attn_returns_params *params, const attn_ctx *ctx,
                                   int *workers, int data) {
  const int64_t b = j->y.batch;
  attn_span_ target;
  attn_operand_ op[2] = {
      ATTN_OPERAND_(&j->y, "y", ATTN_OUT_, ATTN_ANY_, 1, ATTN_ANY_, 1, "y must be [B, 1, T, 1]"),
      ATTN_OPERAND_(&j->r, "r", 0, b, 1, j->y.len, 1, "r must have the shape of y")};
  if (!attn_check_ctx_(e, ctx, &j->table, workers) || !attn_check_operand_(e, &op[0], 1) ||
      !attn_check_operand_(e, &op[1], 1))
    return 0;
  const float gamma = params ? params->gamma : 0.0f;
  j->gamma = gamma == 0.0f && !attn_to_bits_(gamma) ? 1.0 : (double)gamma;
  j->target = params ? params->target : NULL;
  if (!(gamma - gamma == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, "params.gamma must be finite");
  if (j->target && j->gamma == 0.0)
    return attn_reject_(e, ATTN_E_VALUE, "params.gamma must not be ATTN_ZERO with params.target");
  if (!attn_check_array_(e, j->target, b, 4, "params.target must be aligned to its elements",
                         &target))
    return 0;
  for (int64_t i = 0; data && j->target && i < b; i++)
    if (!(j->target[i] - j->target[i] == 0.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.target must be finite");
  if (attn_same_view_(&j->y, &j->r)) op[1].span.hi = op[1].span.lo; /* in place */
  return attn_check_apart_(e, ctx, op, 2, &target, 1);
}

ATTN_COLD_ attn_status attn_returns_call_(attn_tensor y, attn_tensor r,
                                          const attn_returns_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_returns_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.r = r;
  if (attn_returns_check_(&e, &j, params, ctx, &workers, bytes == NULL) && !bytes) {
    const int64_t count = j.y.len > 0 ? j.y.batch : 0;
    workers = attn_pieces_(workers, count);
    if (count) attn_for_(ctx, workers, count, attn_returns_item_, &j);
    attn_report_(ctx, j.table, workers, "running sums", "the only path");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_returns, (y, r, params), attn_tensor y, attn_tensor r,
           const attn_returns_params *params)

/* ---- tokens ---------------------------------------------------------------------------------*/

/* Steps of one item: 96 rows of y. */
enum { ATTN_TRAJECTORY_STEPS_ = 32 };

typedef struct attn_trajectory_job_ {
  const attn_table_ *table;
  attn_tensor y, x[3];
  attn_trajectory_params p;
  attn_matrix_ w[3];
  int64_t tiles;
  char *memory; /* of a worker: the biases and a time, rows of y, rows of x */
  int64_t each, at_y, at_x;
} attn_trajectory_job_;

ATTN_FUNC_ void attn_trajectory_item_(void *job, int worker, int64_t index) {
  const attn_trajectory_job_ *j = (const attn_trajectory_job_ *)job;
  const attn_table_ *f = j->table;
  const int64_t b = index / j->tiles, first = index % j->tiles * ATTN_TRAJECTORY_STEPS_;
  const int64_t steps = j->x[0].len, dm = j->y.dim, left = steps - first;
  const int64_t n = left < ATTN_TRAJECTORY_STEPS_ ? left : (int64_t)ATTN_TRAJECTORY_STEPS_;
  const attn_tensor *bias[3] = {&j->p.b_return, &j->p.b_state, &j->p.b_action};
  const int plain = j->y.dtype == ATTN_F32;
  char *memory = j->memory + worker * j->each;
  float *add = (float *)(void *)memory, *time = add + 3 * dm;
  float *to = (float *)(void *)(memory + j->at_y), *wide = (float *)(void *)(memory + j->at_x);
  const int64_t stride = plain ? j->y.stride_len : dm;
  if (plain) to = (float *)(void *)attn_at_(&j->y, b, 0, 3 * first);
  for (int i = 0; i < 3; i++) {
    const attn_tensor *t = &j->x[i];
    const attn_matrix_part_ all = {0, 0, 0, t->dim, 0, dm};
    attn_matrix_times_(f, &j->w[i], &all, to + i * stride, 3 * stride,
                       attn_floats_of_(f, t, b, 0, first, n, wide), 1);
    if (bias[i]->data) f->widen(add + i * dm, bias[i]->data, 0, NULL, 1, dm, bias[i]->dtype, NULL);
  }
  for (int64_t r = 0; r < 3 * n; r++) {
    float *row = to + r * stride;
    const int64_t t = j->p.timesteps[b * steps + first + r / 3];
    if (r % 3 == 0)
      f->widen(time, attn_at_(&j->p.times, 0, 0, t), 0, NULL, 1, dm, j->p.times.dtype, NULL);
    if (bias[r % 3]->data)
      attn_on_(dense, f)->activate(row, dm, add + r % 3 * dm, 1.0f, ATTN_ACT_NONE);
    attn_on_(dense, f)->activate(row, dm, time, 1.0f, ATTN_ACT_NONE);
  }
  const attn_norm_rows_ rows = {to, NULL, to, NULL, stride, 0, stride, 0, dm};
  attn_norm_rows_of_(f, &rows, 3 * n, &j->p.norm);
  if (!plain)
    for (int64_t r = 0; r < 3 * n; r++)
      f->blend(attn_at_(&j->y, b, 0, 3 * first + r), to + r * stride, NULL, j->y.dtype, ATTN_F32,
               ATTN_F32, dm, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_trajectory_check_(attn_error_ *e, attn_trajectory_job_ *j,
                                      const attn_trajectory_params *params, const attn_ctx *ctx,
                                      int *workers) {
  static const char *const w[] = {ATTN_WORDS_("y"), ATTN_WORDS_("returns"), ATTN_WORDS_("states"),
                                  ATTN_WORDS_("actions")};
  static const attn_said_ said[] = {ATTN_SAID_IN_OUT_("params.w_return", "1", "y.dim"),
                                    ATTN_SAID_IN_OUT_("params.w_state", "states.dim", "y.dim"),
                                    ATTN_SAID_IN_OUT_("params.w_action", "actions.dim", "y.dim"),
                                    ATTN_SAID_("params.b_return", "[1, 1, 1, y.dim]"),
                                    ATTN_SAID_("params.b_state", "[1, 1, 1, y.dim]"),
                                    ATTN_SAID_("params.b_action", "[1, 1, 1, y.dim]"),
                                    ATTN_SAID_("params.times", "[1, 1, E, y.dim]")};
  enum { Y, X, W = X + 3, B = W + 3, TIMES = B + 3, COUNT };
  const int64_t any = ATTN_ANY_, b = j->y.batch, n = j->x[0].len, dm = j->y.dim;
  attn_trajectory_params *p = &j->p;
  attn_arrays_ more = {0, {{0, 0, 0, 0}}};
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&j->y, w[Y], ATTN_OUT_, any, 1, any, any, "y must have one head"),
      ATTN_OPERAND_AS_(&j->x[0], w[X], 0, b, 1, any, 1, "returns must be [y.batch, 1, T, 1]"),
      ATTN_OPERAND_AS_(&j->x[1], w[X + 1], 0, b, 1, n, any,
                       "states must be [y.batch, 1, returns.len, .]"),
      ATTN_OPERAND_AS_(&j->x[2], w[X + 2], 0, b, 1, n, any,
                       "actions must be [y.batch, 1, returns.len, .]")};
  attn_turn_(&p->w_return, p->w_transposed), attn_turn_(&p->w_state, p->w_transposed);
  attn_turn_(&p->w_action, p->w_transposed);
  op[W] = attn_weight_(&p->w_return, &said[0], 0, 1, dm);
  op[W + 1] = attn_weight_(&p->w_state, &said[1], 0, j->x[1].dim, dm);
  op[W + 2] = attn_weight_(&p->w_action, &said[2], 0, j->x[2].dim, dm);
  op[B] = attn_bias_(&p->b_return, &said[3], ATTN_OPTIONAL_, dm);
  op[B + 1] = attn_bias_(&p->b_state, &said[4], ATTN_OPTIONAL_, dm);
  op[B + 2] = attn_bias_(&p->b_action, &said[5], ATTN_OPTIONAL_, dm);
  op[TIMES] = attn_bias_(&p->times, &said[6], 0, dm), op[TIMES].len = any;
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (j->y.len % 3 || j->y.len / 3 != n)
    return attn_reject_(e, ATTN_E_SHAPE, "y.len must be 3 returns.len");
  if (b > 0 && n > 0 && !p->timesteps)
    return attn_reject_(e, ATTN_E_NULL, "params.timesteps must not be null");
  if (!attn_check_array_(e, p->timesteps, attn_mul_(b, n), 4,
                         "params.timesteps must be aligned to its elements",
                         &more.span[more.n++]) ||
      !attn_check_norm_(e, &p->norm, dm, &more))
    return 0;
  for (int64_t i = 0; i < b * n; i++)
    if (p->timesteps[i] < 0 || p->timesteps[i] >= p->times.len)
      return attn_reject_(e, ATTN_E_RANGE, "params.timesteps must lie in 0..times.len-1");
  return attn_check_apart_(e, ctx, op, COUNT, more.span, more.n);
}

ATTN_COLD_ int attn_trajectory_steps_(attn_stage_ *s, void *job) {
  attn_trajectory_job_ *j = (attn_trajectory_job_ *)job;
  const attn_tensor w[3] = {j->p.w_return, j->p.w_state, j->p.w_action};
  const int64_t dm = j->y.dim, n = j->x[0].len, steps = ATTN_TRAJECTORY_STEPS_;
  int64_t widest = 0;
  for (int i = 0; i < 3; i++) {
    j->w[i] = attn_weight_matrix_(w[i], n, j->y.batch);
    if (j->x[i].dtype != ATTN_F32 && j->x[i].dim > widest) widest = j->x[i].dim;
  }
  j->tiles = n / steps + (n % steps != 0);
  j->at_y = attn_piece_(attn_mul_(4, dm), sizeof(float));
  j->at_x = attn_add_(
      j->at_y, j->y.dtype == ATTN_F32 ? 0 : attn_piece_(attn_mul_(3 * steps, dm), sizeof(float)));
  j->each = attn_add_(j->at_x, attn_piece_(attn_mul_(steps, widest), sizeof(float)));
  return attn_stage_products_(s, j->w, 3, attn_mul_(j->y.batch, j->tiles), attn_trajectory_item_, j,
                              j->each, &j->memory);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_trajectory_call_(attn_trajectory_job_ *j,
                                             const attn_trajectory_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  int workers;
  if (attn_trajectory_check_(&e, j, params, ctx, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, j->table, workers, ctx, bytes != NULL);
    if (j->y.batch == 0 || j->y.len == 0) {
      if (!bytes) attn_report_(ctx, j->table, 1, "no-op", "no steps");
    } else {
      attn_stage_call_(&s, ctx, attn_trajectory_steps_, j, "row products, times, norm", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_trajectory_job_ attn_trajectory_of_(attn_tensor y, attn_tensor returns,
                                                    attn_tensor states, attn_tensor actions) {
  attn_trajectory_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.x[0] = returns, j.x[1] = states, j.x[2] = actions;
  return j;
}

ATTN_COLD_ attn_status attn_trajectory_tokens_call_(attn_tensor y, attn_tensor returns,
                                                    attn_tensor states, attn_tensor actions,
                                                    const attn_trajectory_params *params,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_trajectory_job_ j = attn_trajectory_of_(y, returns, states, actions);
  return attn_trajectory_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_trajectory_tokens, (y, returns, states, actions, params), attn_tensor y,
           attn_tensor returns, attn_tensor states, attn_tensor actions,
           const attn_trajectory_params *params)

/* ---- what exists, what is read --------------------------------------------------------------*/

ATTN_PUB_ attn_mask attn_trajectory_mask(uint8_t *keys, const uint8_t *valid, int64_t batch,
                                         int64_t steps) {
  attn_mask none;
  memset(&none, 0, sizeof none);
  if (!keys || !valid || batch < 1 || steps < 1 || batch > INT64_MAX / 3 / steps) return none;
  for (int64_t i = 0; i < batch * steps; i++) {
    const uint8_t is = valid[i] != 0;
    keys[3 * i] = keys[3 * i + 1] = keys[3 * i + 2] = is;
  }
  return attn_mask_bool(keys, batch, 1, 1, 3 * steps);
}

ATTN_PUB_ attn_tensor attn_trajectory_rows(attn_tensor tokens, attn_trajectory_token token) {
  const int known = (int)token >= 0 && (int)token < 3;
  const int near =
      attn_abs64_(tokens.stride_len) < INT64_MAX / 16; /* else every call rejects the view */
  tokens = attn_stage_rows_(tokens, known && near ? (int64_t)token : 0, tokens.len / 3);
  tokens.stride_len = attn_mul_(tokens.stride_len, 3);
  return tokens;
}

typedef struct attn_predict_job_ {
  attn_tensor o, y;
  attn_trajectory_predict_params p;
} attn_predict_job_;

ATTN_COLD_ int attn_predict_steps_(attn_stage_ *s, void *job) {
  const attn_predict_job_ *j = (const attn_predict_job_ *)job;
  const int action = j->p.head == ATTN_TRAJECTORY_NEXT_ACTION;
  const attn_tensor rows =
      attn_trajectory_rows(j->y, action ? ATTN_TRAJECTORY_STATE : ATTN_TRAJECTORY_ACTION);
  return attn_stage_dense_(s, j->o, rows, j->p.w, j->p.bias,
                           action && !j->p.linear ? ATTN_ACT_TANH : ATTN_ACT_NONE);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_trajectory_predict_call_(attn_tensor o, attn_tensor y,
                                                     const attn_trajectory_predict_params *params,
                                                     attn_ctx *ctx, size_t *bytes) {
  static const char *const w[] = {ATTN_WORDS_("o"), ATTN_WORDS_("y")};
  static const attn_said_ said[] = {ATTN_SAID_IN_OUT_("params.w", "y.dim", "o.dim"),
                                    ATTN_SAID_("params.bias", "[1, 1, 1, o.dim]")};
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_predict_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.y = y;
  if (params) j.p = *params;
  attn_turn_(&j.p.w, j.p.w_transposed);
  attn_operand_ op[4] = {ATTN_OPERAND_AS_(&j.o, w[0], ATTN_OUT_, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_,
                                          "o must have one head"),
                         ATTN_OPERAND_AS_(&j.y, w[1], 0, o.batch, 1, ATTN_ANY_, ATTN_ANY_,
                                          "y must be [o.batch, 1, 3 T, .]"),
                         attn_weight_(&j.p.w, &said[0], 0, y.dim, o.dim),
                         attn_bias_(&j.p.bias, &said[1], ATTN_OPTIONAL_, o.dim)};
  int workers, ok = attn_check_ctx_(&e, ctx, &table, &workers);
  if (ok && !params)
    ok = attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  if (ok && ((int)j.p.head < 0 || j.p.head >= ATTN_TRAJECTORY_HEADS))
    ok = attn_reject_(&e, ATTN_E_RANGE, "params.head must be an attn_trajectory_head");
  for (int i = 0; ok && i < 4; i++) ok = attn_check_operand_(&e, &op[i], 1);
  if (ok && (y.len % 3 || y.len / 3 != o.len))
    ok = attn_reject_(&e, ATTN_E_SHAPE, "y.len must be 3 o.len");
  if (ok && attn_check_apart_(&e, ctx, op, 4, NULL, 0)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (o.batch == 0 || o.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no steps");
    } else {
      attn_stage_call_(&s, ctx, attn_predict_steps_, &j, "row products", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_trajectory_predict, (o, y, params), attn_tensor o, attn_tensor y,
           const attn_trajectory_predict_params *params)
