/* families/training/norm_backward.h owns the gradients of layer norm and RMS norm. */

typedef struct attn_norm_back_ {
  const attn_table_ *table;
  attn_tensor d_x, d_residual; /* out; data null: not made */
  attn_tensor d_y, d_sum, x, residual;
  float *d_gain, *d_bias;
  attn_norm norm;
  float eps;
  int accumulate;
  int fresh;          /* rows are overwritten all the same */
  float *part;        /* [tiles][2][n]: of d_gain and d_bias, of 64 rows each */
  int64_t tiles, run; /* rows at once */
  char *memory;
  int64_t each, room;
} attn_norm_back_;

/* One row in double; sums and rows as the kernel has them. */
ATTN_FUNC_ void attn_norm_back_exact_(const attn_norm_slopes_ *a, int r, float eps) {
  const float *x = a->x + r * a->x_stride, *d = a->d_y + r * a->d_y_stride;
  const float *more = a->sum ? a->sum + r * a->sum_stride : NULL;
  float *y = a->d_x ? a->d_x + r * a->d_x_stride : NULL;
  const double n = (double)a->n, mean = a->rms ? 0.0 : attn_row_sum_(x, a->n, 0.0, 0) / n;
  const double by = 1.0 / sqrt(attn_row_sum_(x, a->n, mean, 1) / n + (double)eps);
  double s = 0.0, q = 0.0;
  for (int64_t c = 0; c < a->n; c++) {
    const float gain = a->gain ? a->gain[c] + a->lift : 1.0f;
    const double h = ((double)x[c] - mean) * by, g = (double)d[c] * (double)gain;
    s += g, q += g * h;
    if (a->d_gain) a->d_gain[c] = (float)((double)a->d_gain[c] + (double)d[c] * h);
    if (a->d_bias) a->d_bias[c] += d[c];
  }
  s = a->rms ? 0.0 : s / n, q /= n;
  for (int64_t c = 0; y && c < a->n; c++) {
    const float gain = a->gain ? a->gain[c] + a->lift : 1.0f;
    const double h = ((double)x[c] - mean) * by, g = (double)d[c] * (double)gain;
    y[c] = attn_one_nan_((float)(by * (g - s - h * q) + (more ? (double)more[c] : 0.0)));
  }
}

/* Whether the rows of an output are made where they are. */
ATTN_FUNC_ int attn_norm_back_direct_(const attn_norm_back_ *a, const attn_tensor *y) {
  return y->data && y->dtype == ATTN_F32 && !a->accumulate;
}

/* n rows of one head from i on; what they add to the parameters goes to part. */
ATTN_FUNC_ void attn_norm_back_rows_(const attn_norm_back_ *a, float *room, float *part, int64_t b,
                                     int64_t h, int64_t i, int64_t n) {
  const attn_table_ *f = a->table;
  const attn_tensor *const out[2] = {&a->d_x, &a->d_residual};
  const int64_t dim = a->d_y.dim;
  int direct = -1;
  float size[3 * ATTN_TILE_];
  attn_norm_slopes_ s;
  attn_norm_rows_ rows;
  attn_clear_(&s, sizeof s), attn_clear_(&rows, sizeof rows);
  s.n = dim, s.gain = a->norm.gain, s.lift = a->norm.gain_less_one ? 1.0f : -0.0f;
  s.rms = a->norm.kind == ATTN_NORM_RMS;
  if (a->d_gain) s.d_gain = part;
  if (a->d_bias) s.d_bias = part + dim;
  s.d_y = attn_rows_in_(f, &a->d_y, attn_at_(&a->d_y, b, h, i), n, dim, room, &s.d_y_stride);
  if (a->d_sum.data)
    s.sum = attn_rows_in_(f, &a->d_sum, attn_at_(&a->d_sum, b, h, i), n, dim, room + a->room,
                          &s.sum_stride);
  if (a->residual.data) {
    float *to = room + 2 * a->room;
    for (int64_t r = 0; r < n; r++)
      f->blend(to + r * dim, attn_at_(&a->x, b, h, i + r), attn_at_(&a->residual, b, h, i + r),
               ATTN_F32, a->x.dtype, a->residual.dtype, dim, 1.0f, 1.0f);
    s.x = to, s.x_stride = dim;
  } else {
    s.x =
        attn_rows_in_(f, &a->x, attn_at_(&a->x, b, h, i), n, dim, room + 2 * a->room, &s.x_stride);
  }
  for (int k = 1; k >= 0; k--)
    if (attn_norm_back_direct_(a, out[k])) direct = k;
  if (direct >= 0)
    s.d_x = (float *)(void *)attn_at_(out[direct], b, h, i), s.d_x_stride = out[direct]->stride_len;
  else if (out[0]->data || out[1]->data)
    s.d_x = room + 3 * a->room, s.d_x_stride = dim;
  rows.x = s.x, rows.x_stride = s.x_stride, rows.n = dim;
  s.skip = attn_on_(norm, f)->sizes(size, &rows, (int)n, a->eps, s.rms);
  attn_on_(gradient, f)->norm_slopes(&s, (int)n, size);
  for (int r = 0; r < (int)n; r++)
    if (s.skip >> r & 1) attn_norm_back_exact_(&s, r, a->eps);
  for (int k = 0; k < 2; k++)
    for (int64_t r = 0; out[k]->data && k != direct && r < n; r++) {
      char *to = attn_at_(out[k], b, h, i + r);
      f->blend(to, s.d_x + r * s.d_x_stride, a->accumulate ? to : NULL, out[k]->dtype, ATTN_F32,
               out[k]->dtype, dim, 1.0f, 1.0f);
    }
}

/* 64 rows, by batch entry, head and position. */
ATTN_FUNC_ void attn_norm_back_item_(void *job, int worker, int64_t index) {
  const attn_norm_back_ *a = (const attn_norm_back_ *)job;
  const attn_tensor *y = &a->d_y;
  const int64_t all = y->batch * y->heads * y->len, first = index * ATTN_TILE_;
  const int64_t end = all - first < ATTN_TILE_ ? all : first + ATTN_TILE_;
  float *room = (float *)(void *)(a->memory + worker * a->each);
  float *part = a->part ? a->part + 2 * index * y->dim : NULL;
  for (int64_t c = 0; part && c < 2 * y->dim; c++) part[c] = 0.0f;
  for (int64_t r = first, n; r < end; r += n) {
    const int64_t unit = r / y->len, i = r % y->len;
    n = end - r < y->len - i ? end - r : y->len - i;
    if (n > a->run) n = a->run;
    attn_norm_back_rows_(a, room, part, unit / y->heads, unit % y->heads, i, n);
  }
}

/* Rows, and parts of the parameters; then these, and sums of what was read for several. */
ATTN_COLD_ int attn_norm_back_steps_(attn_stage_ *s, void *job) {
  const attn_norm_back_ *all = (const attn_norm_back_ *)job;
  attn_norm_back_ a = *all;
  attn_tensor *t[6];
  attn_tensor *const each[6] = {&a.d_y, &a.d_sum, &a.x, &a.residual, &a.d_x, &a.d_residual};
  const int64_t dim = a.d_y.dim, rows = attn_mul_(attn_mul_(a.d_y.batch, a.d_y.heads), a.d_y.len);
  int n = 0, aside = a.residual.data != NULL;
  const int sums = (a.d_x.data && !attn_gradient_whole_(&a.d_x, &a.d_y)) ||
                   (a.d_residual.data && !attn_gradient_whole_(&a.d_residual, &a.d_y));
  attn_tensor made;
  float *own[2] = {a.d_gain, a.d_bias};
  attn_clear_(&made, sizeof made);
  a.table = s->table;
  a.tiles = attn_runs_of_(rows, ATTN_TILE_);
  a.x = attn_spread_to_(&a.x, &a.d_y);
  if (a.residual.data) a.residual = attn_spread_to_(&a.residual, &a.d_y);
  if (sums) {
    made = attn_stage_tensor_(s, a.d_y.batch, a.d_y.heads, a.d_y.len, dim);
    a.d_x = made, a.d_residual.data = NULL, a.accumulate = 0;
  }
  if (a.d_gain || a.d_bias)
    a.part = (float *)(void *)attn_stage_take_(s, attn_mul_(a.tiles, attn_mul_(2, dim)), 4);
  if (a.fresh) a.accumulate = 0;
  for (int i = 0; i < 6; i++)
    if (each[i]->data) {
      t[n++] = each[i];
      aside |= each[i]->dtype != ATTN_F32 || (i > 3 && a.accumulate);
    }
  attn_merge_heads_(t, n), attn_merge_batch_(t, n);
  /* between its two passes a row stays in the second cache */
  a.run = aside ? 4 : dim <= 256 ? ATTN_TILE_ : dim <= 2048 ? 16 : 8;
  a.room = attn_mul_(a.run, dim);
  a.each = aside ? attn_piece_(attn_mul_(4, a.room), sizeof(float)) : 0;
  if (!attn_stage_for_(s, a.tiles, attn_norm_back_item_, &a, a.each, &a.memory)) return 0;
  for (int i = 0; i < 2; i++) {
    if (!own[i]) continue;
    attn_tensor parts = attn_bhtd(a.part + i * dim, ATTN_F32, 1, 1, a.tiles, dim);
    parts.stride_len = 2 * dim;
    if (!attn_stage_shares_(s, attn_bhtd(own[i], ATTN_F32, 1, 1, 1, dim), parts, all->accumulate))
      return 0;
  }
  return !sums ||
         ((!all->d_x.data || attn_stage_shares_(s, all->d_x, made, all->accumulate)) &&
          (!all->d_residual.data || attn_stage_shares_(s, all->d_residual, made, all->accumulate)));
}

ATTN_COLD_ int attn_norm_back_check_(attn_error_ *e, attn_norm_back_ *a, const attn_ctx *ctx) {
  const int64_t any = ATTN_ANY_, B = a->d_y.batch, H = a->d_y.heads, len = a->d_y.len;
  const int64_t dim = a->d_y.dim;
  attn_arrays_ array = {0, {{0, 0, 0, 0}}};
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_y, "d_y", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, len, dim, "x must be [1 or B, 1 or H, T, n] like d_y"),
      ATTN_OPERAND_(&a->residual, "params.residual", ATTN_OPTIONAL_, any, any, len, dim,
                    "params.residual must be [1 or B, 1 or H, T, n] like d_y"),
      ATTN_OPERAND_(&a->d_residual, "gradients.d_residual", ATTN_OUT_ | ATTN_OPTIONAL_, any, any,
                    any, any, ""),
      ATTN_OPERAND_(&a->d_sum, "gradients.d_sum", ATTN_OPTIONAL_, B, H, len, dim,
                    "gradients.d_sum must have the shape of d_y")};
  enum { DX, DY, X, RESIDUAL, DR, SUM, N };
  const char *align = "gradients.d_gain and d_bias must be aligned to their elements";
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < N; i++) {
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
    if ((i == X || i == RESIDUAL) && op[i].t->data && !attn_gemm_fits_(op[i].t, &a->d_y))
      return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
  }
  if (!attn_check_norm_(e, &a->norm, dim, &array)) return 0;
  if (a->d_x.data && !attn_gradient_fits_(&a->d_x, &a->x))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_x must have the shape of x, or 1 where x has a stride of 0");
  if (a->d_residual.data && !a->residual.data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_residual wants params.residual");
  if (a->d_residual.data && !attn_gradient_fits_(&a->d_residual, &a->residual))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "gradients.d_residual must have the shape of params.residual, or 1 where "
                        "that has a stride of 0");
  if (a->d_gain && !a->norm.gain)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_gain wants params.norm.gain");
  if (a->d_bias && !a->norm.bias)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_bias wants params.norm.bias");
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  array.n += 2;
  attn_span_ *const own = &array.span[array.n - 2];
  if (!attn_check_array_(e, a->d_gain, dim, 4, align, &own[0]) ||
      !attn_check_array_(e, a->d_bias, dim, 4, align, &own[1]))
    return 0;
  if (!a->accumulate && attn_in_place_(&a->d_x, &a->d_y)) op[DY].span.lo = op[DY].span.hi = 0;
  for (int i = 0; i < 2; i++)
    if (!attn_span_alone_(&own[i], op, N, array.span, array.n - 2) ||
        (i == 1 && attn_overlap_(own[0], own[1])))
      return attn_reject_(
          e, ATTN_E_OVERLAP,
          "gradients.d_gain and d_bias must not share memory with another argument");
  return attn_check_apart_(e, ctx, op, N, array.span, array.n);
}

ATTN_COLD_ attn_status attn_norm_backward_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                           const attn_layer_norm_params *params,
                                           const attn_layer_norm_gradients *gradients,
                                           attn_norm_kind kind, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_norm_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_y = d_y, a.x = x;
  if (params) a.norm = params->norm, a.residual = params->residual;
  if (gradients)
    a.d_sum = gradients->d_sum, a.d_residual = gradients->d_residual, a.d_gain = gradients->d_gain,
    a.d_bias = gradients->d_bias, a.accumulate = gradients->accumulate;
  a.norm.kind = kind;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_norm_back_check_(&e, &a, ctx);
  a.eps = a.norm.eps != 0.0f ? a.norm.eps : kind == ATTN_NORM_RMS ? 1e-6f : 1e-5f;
  return attn_step_call_or_(
      &e, a.table, workers, ctx, attn_norm_back_steps_, &a, "rows a few at a time",
      a.d_x.data || a.d_residual.data || a.d_gain || a.d_bias ? NULL : "no output is asked for",
      bytes);
}

ATTN_COLD_ attn_status attn_layer_norm_backward_call_(attn_tensor d_x, attn_tensor d_y,
                                                      attn_tensor x,
                                                      const attn_layer_norm_params *params,
                                                      const attn_layer_norm_gradients *gradients,
                                                      attn_ctx *ctx, size_t *bytes) {
  return attn_norm_backward_(d_x, d_y, x, params, gradients, ATTN_NORM_LAYER, ctx, bytes);
}
ATTN_CALL_(attn_layer_norm_backward, (d_x, d_y, x, params, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, const attn_layer_norm_params *params,
           const attn_layer_norm_gradients *gradients)

ATTN_COLD_ attn_status attn_rms_norm_backward_call_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                    const attn_layer_norm_params *params,
                                                    const attn_layer_norm_gradients *gradients,
                                                    attn_ctx *ctx, size_t *bytes) {
  return attn_norm_backward_(d_x, d_y, x, params, gradients, ATTN_NORM_RMS, ctx, bytes);
}
ATTN_CALL_(attn_rms_norm_backward, (d_x, d_y, x, params, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, const attn_layer_norm_params *params,
           const attn_layer_norm_gradients *gradients)
