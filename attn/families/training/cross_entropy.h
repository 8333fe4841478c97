/* families/training/cross_entropy.h owns the loss over classes and its gradient by logits: checks, and rows by runs of
 * columns. */

/* Logits that a worker takes at a time, in whole rows. */
enum { ATTN_LOSS_ITEM_ = 16384 };

typedef struct attn_cross_entropy_ {
  const attn_table_ *table;
  double *loss;
  attn_tensor d, x; /* d.data null: not asked for */
  const int32_t *targets;
  attn_cross_entropy_params p;
  attn_loss_rule_ rule;
  int64_t rows, each; /* of an item */
  double count;
  double *losses; /* [rows] */
} attn_cross_entropy_;

ATTN_FUNC_ int attn_loss_ignored_(const attn_cross_entropy_params *p, int32_t target) {
  return p->has_ignore_index && target == p->ignore_index;
}

/* A run of a row as floats. */
ATTN_FUNC_ const float *attn_loss_floats_(const attn_table_ *f, float *wide, const char *row,
                                          attn_dtype dtype, int64_t c0, int64_t n) {
  const char *from = row + attn_bytes_(dtype, c0);
  if (dtype == ATTN_F32) return (const float *)(const void *)from;
  f->widen(wide, from, 0, NULL, 1, n, dtype, NULL);
  return wide;
}

/* The gradient of a row. */
ATTN_FUNC_ void attn_loss_write_(const attn_cross_entropy_ *a, const attn_loss_slope_ *slope,
                                 char *to, const char *row, int64_t target) {
  const attn_dtype type = a->d.dtype;
  const int direct = type == ATTN_F32 && !a->p.accumulate;
  float wide[ATTN_LOSS_RUN_], made[ATTN_LOSS_RUN_];
  for (int64_t c = 0; c < a->x.dim; c += ATTN_LOSS_RUN_) {
    const int64_t left = a->x.dim - c, n = left < ATTN_LOSS_RUN_ ? left : (int64_t)ATTN_LOSS_RUN_;
    const float *x = attn_loss_floats_(a->table, wide, row, a->x.dtype, c, n);
    char *at = to + attn_bytes_(type, c);
    attn_loss_slopes_(a->table, slope, direct ? (float *)(void *)at : made, x, c, n, target);
    if (!direct)
      a->table->blend(at, made, a->p.accumulate ? at : NULL, type, ATTN_F32, type, n, 1.0f, 1.0f);
  }
}

ATTN_FUNC_ void attn_cross_entropy_item_(void *job, int worker, int64_t index) {
  const attn_cross_entropy_ *a = (const attn_cross_entropy_ *)job;
  int64_t r = index * a->each;
  const int64_t end = a->rows - r < a->each ? a->rows : r + a->each;
  (void)worker;
  for (; r < end; r++) {
    const int64_t unit = r / a->x.len, b = unit / a->x.heads, h = unit % a->x.heads;
    const char *row = attn_at_(&a->x, b, h, r % a->x.len);
    char *to = a->d.data ? attn_at_(&a->d, b, h, r % a->x.len) : NULL;
    const int64_t target = a->targets[r];
    attn_logits_row_ sums = attn_loss_begin_();
    attn_loss_slope_ slope;
    float wide[ATTN_LOSS_RUN_];
    if (attn_loss_ignored_(&a->p, a->targets[r])) {
      if (a->loss) a->losses[r] = 0.0;
      if (to && !a->p.accumulate) memset(to, 0, (size_t)attn_bytes_(a->d.dtype, a->d.dim));
      continue;
    }
    for (int64_t c = 0; c < a->x.dim; c += ATTN_LOSS_RUN_) {
      const int64_t left = a->x.dim - c, n = left < ATTN_LOSS_RUN_ ? left : (int64_t)ATTN_LOSS_RUN_;
      const float *x = attn_loss_floats_(a->table, wide, row, a->x.dtype, c, n);
      attn_loss_take_(a->table, &a->rule, &sums, x, c, n, target);
    }
    const double loss = attn_loss_close_(&a->rule, &sums, &slope);
    if (a->loss) a->losses[r] = loss;
    if (to) attn_loss_write_(a, &slope, to, row, target);
  }
}

ATTN_COLD_ int attn_cross_entropy_steps_(attn_stage_ *s, void *job) {
  attn_cross_entropy_ *a = (attn_cross_entropy_ *)job;
  double sum = 0.0;
  if (a->loss) a->losses = (double *)attn_stage_take_(s, a->rows, sizeof(double));
  attn_stage_for_(s, attn_runs_of_(a->rows, a->each), attn_cross_entropy_item_, a, 0, NULL);
  if (!s->run || !a->loss) return 1;
  for (int64_t r = 0; r < a->rows; r++) sum += a->losses[r];
  *a->loss = attn_one_nan_f64_(a->count > 0.0 ? sum / a->count : 0.0);
  return 1;
}

/* The numbers of a loss, and its targets; rows: how many there are, 0 where targets are not to be read. */
ATTN_COLD_ int attn_loss_check_(attn_error_ *e, const attn_cross_entropy_params *p,
                                const int32_t *targets, int64_t rows, int64_t classes,
                                attn_loss_rule_ *rule, double *count) {
  int64_t counted = 0;
  if (!(p->smoothing >= 0.0f && p->smoothing <= 1.0f))
    return attn_reject_(e, ATTN_E_RANGE, "params.smoothing must be in [0, 1]");
  if (!(p->z_loss >= 0.0f && p->z_loss < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.z_loss must be finite and not negative");
  if (!(p->grad - p->grad == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.grad must be finite");
  if ((p->sum | p->has_ignore_index | p->accumulate) & ~1)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.sum, has_ignore_index and accumulate must be 0 or 1");
  if (p->count < 0 || (p->count && p->sum))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.count must not be negative, and 0 with params.sum");
  for (int64_t r = 0; r < rows; r++) {
    if (attn_loss_ignored_(p, targets[r])) continue;
    if (targets[r] < 0 || targets[r] >= classes)
      return attn_reject_(e, ATTN_E_INDEX, "targets must be classes or params.ignore_index");
    counted++;
  }
  *count = p->sum ? 1.0 : (double)(p->count ? p->count : counted);
  const double g = p->grad != 0.0f || signbit(p->grad) ? (double)p->grad : 1.0;
  rule->smoothing = (double)p->smoothing, rule->z = (double)p->z_loss, rule->classes = classes;
  rule->grad = *count > 0.0 ? g / *count : 0.0;
  return 1;
}

ATTN_COLD_ int attn_cross_entropy_check_(attn_error_ *e, attn_cross_entropy_ *a,
                                         const attn_ctx *ctx) {
  attn_span_ span[2]; /* of loss and targets */
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d, "d_logits", ATTN_OUT_ | ATTN_OPTIONAL_, a->x.batch, a->x.heads, a->x.len,
                    a->x.dim, "d_logits must have the shape of logits"),
      ATTN_OPERAND_(&a->x, "logits", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, "")};
  if (!attn_check_given_(e, op, 2)) return 0;
  for (int i = 1; i >= 0; i--)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  a->rows = attn_mul_(attn_mul_(a->x.batch, a->x.heads), a->x.len);
  if (a->rows > 0 && !a->targets) return attn_reject_(e, ATTN_E_NULL, "targets must not be null");
  if (!attn_check_array_(e, a->loss, 1, 8, "loss must be aligned to its elements", &span[0]) ||
      !attn_check_array_(e, a->targets, a->rows, 4, "targets must be aligned to its elements",
                         &span[1]))
    return 0;
  if (a->d.data && attn_same_view_(&a->d, &a->x)) {
    if (a->p.accumulate)
      return attn_reject_(e, ATTN_E_OVERLAP, "d_logits must not be logits with params.accumulate");
    op[1].span.lo = op[1].span.hi = 0;
  }
  if (!attn_check_apart_(e, ctx, op, 2, span, 2)) return 0;
  if (!attn_span_alone_(&span[0], op, 2, &span[1], 1))
    return attn_reject_(e, ATTN_E_OVERLAP, "loss must share no memory with another argument");
  a->each = a->x.dim < ATTN_LOSS_ITEM_ ? ATTN_LOSS_ITEM_ / a->x.dim : 1;
  return attn_loss_check_(e, &a->p, a->targets, a->rows, a->x.dim, &a->rule, &a->count);
}

ATTN_COLD_ attn_status attn_cross_entropy_call_(double *loss, attn_tensor d_logits,
                                                attn_tensor logits, const int32_t *targets,
                                                const attn_cross_entropy_params *params,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cross_entropy_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  if (params) a.p = *params;
  a.loss = loss, a.d = d_logits, a.x = logits, a.targets = targets, a.each = 1;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) attn_cross_entropy_check_(&e, &a, ctx);
  return attn_step_call_or_(&e, a.table, attn_pieces_(workers, attn_runs_of_(a.rows, a.each)), ctx,
                            attn_cross_entropy_steps_, &a, "cross-entropy, runs of columns",
                            loss || d_logits.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_cross_entropy, (loss, d_logits, logits, targets, params), double *loss,
           attn_tensor d_logits, attn_tensor logits, const int32_t *targets,
           const attn_cross_entropy_params *params)
