/* families/linear/gated_norm.h owns the elementwise calls around decaying states: logs of decays, norms with a gate. */

/* Rows of tokens of one (batch, head), or tokens of a group of heads. */
typedef struct attn_around_ {
  const attn_table_ *table;
  attn_tensor y, x, z;
  attn_log_decay_params decay;
  attn_gated_norm_params norm;
  float eps;
  int64_t heads, tiles; /* of an item; of a unit */
  int64_t wide, each;
  char *memory;
} attn_around_;

enum { ATTN_AROUND_ROWS_ = 64, ATTN_AROUND_SLICE_ = 256 };

/* In place: the output speaks for both. */
ATTN_COLD_ void attn_around_alias_(attn_operand_ *to, attn_operand_ *from) {
  if (attn_same_view_(to->t, from->t) && to->t->batch == from->t->batch &&
      to->t->heads == from->t->heads)
    from->span.lo = from->span.hi = 0;
}

/* ---- logs of decays -----------------------------------------------------------------------------*/

/* What x + dt_bias of columns c .. of head h is multiplied by, and the function of that; one for all n of them where
 * columns share theirs. */
ATTN_FUNC_ void attn_log_decay_rates_(const attn_around_ *a, float *in, float *out, int64_t n,
                                      int64_t h, int64_t c) {
  const attn_log_decay_params *p = &a->decay;
  for (int64_t i = 0; i < n; i++) {
    if (i && !p->channels) {
      in[i] = in[0], out[i] = out[0];
      continue;
    }
    const double rate =
        p->a_log ? attn_exp_f64_((double)p->a_log[p->channels ? h * a->x.dim + c + i : h]) : 1.0;
    in[i] = (float)(p->bounded ? rate : ATTN_LOG2E_);
    out[i] = (float)(p->bounded ? (double)p->lower : -rate * ATTN_LN2_);
  }
}

ATTN_FUNC_ void attn_log_decay_some_(const attn_around_ *a, float *x, const float *in,
                                     const float *out, int64_t n, const float *bias, int64_t step) {
  for (int64_t i = 0; i < n; i++) x[i] = (bias ? x[i] + bias[i * step] : x[i]) * in[i];
  attn_on_(dense, a->table)
      ->act(x, x, out, n, NULL, 1.0f,
            a->decay.bounded ? (int)ATTN_ACT_SIGMOID : ATTN_ACT_SOFTPLUS2_);
}

ATTN_FUNC_ void attn_log_decay_item_(void *job, int worker, int64_t index) {
  const attn_around_ *a = (const attn_around_ *)job;
  const attn_log_decay_params *p = &a->decay;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->tiles, i0 = index % a->tiles * ATTN_AROUND_ROWS_, n = a->x.dim;
  const int64_t b = unit / a->x.heads, h = unit % a->x.heads, left = a->x.len - i0;
  const int64_t rows = left < ATTN_AROUND_ROWS_ ? left : (int64_t)ATTN_AROUND_ROWS_;
  float x[ATTN_AROUND_SLICE_], in[ATTN_AROUND_SLICE_], out[ATTN_AROUND_SLICE_];
  (void)worker;
  const float *bias = p->dt_bias ? p->dt_bias + (p->channels ? h * n : h) : NULL;
  if (n == 1) { /* tokens side by side */
    attn_log_decay_rates_(a, in, out, 1, h, 0);
    for (int64_t i = 1; i < rows; i++) in[i] = in[0], out[i] = out[0];
    f->widen(x, attn_at_(&a->x, b, h, i0), a->x.stride_len, NULL, rows, 1, a->x.dtype, NULL);
    attn_log_decay_some_(a, x, in, out, rows, bias, 0);
    for (int64_t i = 0; i < rows; i++)
      f->blend(attn_at_(&a->y, b, h, i0 + i), x + i, NULL, a->y.dtype, ATTN_F32, ATTN_F32, 1, 1.0f,
               0.0f);
    return;
  }
  for (int64_t c = 0; c < n; c += ATTN_AROUND_SLICE_) {
    const int64_t some = n - c < ATTN_AROUND_SLICE_ ? n - c : (int64_t)ATTN_AROUND_SLICE_;
    attn_log_decay_rates_(a, in, out, some, h, c);
    for (int64_t i = i0; i < i0 + rows; i++) {
      f->widen(x, attn_at_(&a->x, b, h, i) + attn_bytes_(a->x.dtype, c), 0, NULL, 1, some,
               a->x.dtype, NULL);
      attn_log_decay_some_(a, x, in, out, some, bias ? bias + (p->channels ? c : 0) : NULL,
                           p->channels ? 1 : 0);
      f->blend(attn_at_(&a->y, b, h, i) + attn_bytes_(a->y.dtype, c), x, NULL, a->y.dtype, ATTN_F32,
               ATTN_F32, some, 1.0f, 0.0f);
    }
  }
}

ATTN_COLD_ int attn_log_decay_steps_(attn_stage_ *s, void *job) {
  attn_around_ *a = (attn_around_ *)job;
  a->tiles = a->x.len / ATTN_AROUND_ROWS_ + (a->x.len % ATTN_AROUND_ROWS_ != 0);
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->x.batch, a->x.heads), a->tiles),
                         attn_log_decay_item_, a, 0, &a->memory);
}

ATTN_COLD_ int attn_log_decay_check_(attn_error_ *e, attn_around_ *a, const attn_ctx *ctx) {
  enum { Y, X, COUNT };
  attn_log_decay_params *p = &a->decay;
  attn_span_ more[2];
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_, a->x.batch, a->x.heads, a->x.len, a->x.dim,
                    "y must have the shape of x"),
      ATTN_OPERAND_(&a->x, "x", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, "")};
  if (!attn_check_given_(e, op, COUNT) || !attn_check_operand_(e, &op[X], 1) ||
      !attn_check_operand_(e, &op[Y], 1))
    return 0;
  const int64_t n = p->channels ? attn_mul_(a->x.heads, a->x.dim) : a->x.heads;
  if (!attn_check_array_(e, p->a_log, n, 4, "params.a_log must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, p->dt_bias, n, 4, "params.dt_bias must be aligned to its elements",
                         &more[1]))
    return 0;
  if (p->bounded ? !(p->lower <= 0.0f) || p->lower - p->lower != 0.0f : p->lower != 0.0f)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.lower must be negative and finite, 0 where not bounded");
  if (p->lower == 0.0f) p->lower = -5.0f;
  attn_around_alias_(&op[Y], &op[X]);
  return attn_check_apart_(e, ctx, op, COUNT, more, 2);
}

ATTN_COLD_ attn_status attn_log_decay_call_(attn_tensor y, attn_tensor x,
                                            const attn_log_decay_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_around_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x;
  if (params) a.decay = *params;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_log_decay_check_(&e, &a, ctx);
  return attn_step_call_(&e, a.table, workers, ctx, attn_log_decay_steps_, &a, "element by element",
                         bytes);
}
ATTN_CALL_(attn_log_decay, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_log_decay_params *params)

/* ---- norms with a gate --------------------------------------------------------------------------*/

/* Tokens of an item's heads: u = act(z) x, then times 1 / rms and the gain. */
ATTN_FUNC_ void attn_gated_norm_item_(void *job, int worker, int64_t index) {
  const attn_around_ *a = (const attn_around_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->tiles, i0 = index % a->tiles * ATTN_AROUND_ROWS_, n = a->x.dim;
  const int64_t units = a->x.heads / a->heads, b = unit / units, h0 = unit % units * a->heads;
  const int64_t left = a->x.len - i0,
                last = left < ATTN_AROUND_ROWS_ ? a->x.len : i0 + ATTN_AROUND_ROWS_;
  const int before = a->norm.kind == ATTN_GATED_NORM_BEFORE;
  const int act =
      a->norm.kind == ATTN_GATED_NORM_SIGMOID ? (int)ATTN_ACT_SIGMOID : (int)ATTN_ACT_SILU;
  float *u = (float *)(void *)(a->memory + worker * a->each), *x = u + a->wide, *z = x + n;
  for (int64_t i = i0; i < last; i++) {
    double sum = 0.0;
    for (int64_t h = 0; h < a->heads; h++) {
      float *at = u + h * n, square;
      f->widen(x, attn_at_(&a->x, b, h0 + h, i), 0, NULL, 1, n, a->x.dtype, NULL);
      f->widen(z, attn_at_(&a->z, b, h0 + h, i), 0, NULL, 1, n, a->z.dtype, NULL);
      attn_on_(dense, f)->act(at, z, x, n, NULL, 1.0f, act);
      const float *of = before ? at : x;
      attn_on_(select, f)->squares(&square, NULL, of, n, NULL, 1, n);
      double t = (double)square;
      if (!(t > 1e-20 && t < 1e30)) { /* what floats cannot square */
        t = 0.0;
        for (int64_t c = 0; c < n; c++) t += (double)of[c] * (double)of[c];
      }
      sum += t;
    }
    const float by = (float)(1.0 / sqrt(sum / ((double)n * (double)a->heads) + (double)a->eps));
    for (int64_t h = 0; h < a->heads; h++) {
      const float *gain = a->norm.gain ? a->norm.gain + (before ? (h0 + h) * n : 0) : NULL;
      float *at = u + h * n;
      if (gain) attn_on_(dense, f)->act(at, at, gain, n, NULL, 1.0f, (int)ATTN_ACT_NONE);
      f->blend(attn_at_(&a->y, b, h0 + h, i), at, NULL, a->y.dtype, ATTN_F32, ATTN_F32, n,
               sum > 0.0 || sum != sum ? by : 0.0f, 0.0f);
    }
  }
}

ATTN_COLD_ int attn_gated_norm_steps_(attn_stage_ *s, void *job) {
  attn_around_ *a = (attn_around_ *)job;
  a->tiles = a->x.len / ATTN_AROUND_ROWS_ + (a->x.len % ATTN_AROUND_ROWS_ != 0);
  a->wide = attn_mul_(a->heads, a->x.dim);
  a->each = attn_piece_(attn_add_(a->wide, attn_mul_(2, a->x.dim)), sizeof(float));
  const int64_t units = a->heads ? a->x.heads / a->heads : 0;
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->x.batch, units), a->tiles),
                         attn_gated_norm_item_, a, a->each, &a->memory);
}

ATTN_COLD_ int attn_gated_norm_check_(attn_error_ *e, attn_around_ *a, const attn_ctx *ctx) {
  enum { Y, X, Z, COUNT };
  const attn_gated_norm_params *p = &a->norm;
  attn_span_ gain;
  const attn_tensor *x = &a->x;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_, x->batch, x->heads, x->len, x->dim,
                    "y must have the shape of x"),
      ATTN_OPERAND_(&a->x, "x", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ""),
      ATTN_OPERAND_(&a->z, "z", 0, x->batch, x->heads, x->len, x->dim,
                    "z must have the shape of x")};
  if (!attn_check_given_(e, op, COUNT) || !attn_check_operand_(e, &op[X], 1) ||
      !attn_check_operand_(e, &op[Y], 1) || !attn_check_operand_(e, &op[Z], 1))
    return 0;
  if ((int)p->kind < 0 || p->kind >= ATTN_GATED_NORM_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_gated_norm_kind");
  const int before = p->kind == ATTN_GATED_NORM_BEFORE;
  const int64_t groups = p->groups ? p->groups : 1;
  if (p->groups < 0 || (!before && p->groups != 0) || (before && x->heads % groups))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.groups must divide the heads for BEFORE, else be 0");
  a->heads = before ? x->heads / groups : 1;
  a->eps = attn_map_default_(p->eps, p->kind == ATTN_GATED_NORM_SILU ? 1e-6f : 1e-5f);
  if (!(p->eps >= 0.0f) || p->eps - p->eps != 0.0f)
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  if (!attn_check_array_(e, p->gain, before ? attn_mul_(x->heads, x->dim) : x->dim, 4,
                         "params.gain must be aligned to its elements", &gain))
    return 0;
  attn_around_alias_(&op[Y], &op[X]);
  attn_around_alias_(&op[Y], &op[Z]);
  return attn_check_apart_(e, ctx, op, COUNT, &gain, 1);
}

ATTN_COLD_ attn_status attn_gated_norm_call_(attn_tensor y, attn_tensor x, attn_tensor z,
                                             const attn_gated_norm_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_around_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x, a.z = z;
  if (params) a.norm = *params;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_gated_norm_check_(&e, &a, ctx);
  return attn_step_call_(&e, a.table, workers, ctx, attn_gated_norm_steps_, &a, "rows one by one",
                         bytes);
}
ATTN_CALL_(attn_gated_norm, (y, x, z, params), attn_tensor y, attn_tensor x, attn_tensor z,
           const attn_gated_norm_params *params)
