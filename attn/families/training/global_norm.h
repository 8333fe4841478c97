/* families/training/global_norm.h owns the norm of all gradients: sums of squares by blocks, which are then added in
 * order. */

/* Elements of a sum; blocks that a worker takes at a time. */
enum { ATTN_NORM_BLOCK_ = 4096, ATTN_NORM_RUN_ = 16 };

typedef struct attn_global_norm_ {
  const attn_table_ *table;
  double *norm, *clip;
  const attn_flat_array *x;
  int64_t arrays, blocks;
  double most;
  int64_t *first; /* [arrays]: the first block of each */
  double *sum;    /* [blocks] */
} attn_global_norm_;

ATTN_FUNC_ void attn_global_norm_item_(void *job, int worker, int64_t index) {
  const attn_global_norm_ *a = (const attn_global_norm_ *)job;
  int64_t at = index * ATTN_NORM_RUN_, end = at + ATTN_NORM_RUN_, lo = 0, hi = a->arrays;
  (void)worker;
  if (end > a->blocks) end = a->blocks;
  while (hi - lo > 1) { /* the last array that begins at or before block `at` */
    const int64_t mid = lo + (hi - lo) / 2;
    if (a->first[mid] <= at)
      lo = mid;
    else
      hi = mid;
  }
  for (; at < end; at++) {
    while (lo + 1 < a->arrays && a->first[lo + 1] <= at) lo++;
    const int64_t from = (at - a->first[lo]) * ATTN_NORM_BLOCK_, left = a->x[lo].n - from;
    a->sum[at] = attn_on_(optimiser, a->table)
                     ->square_sum(a->x[lo].data + from,
                                  left < ATTN_NORM_BLOCK_ ? left : (int64_t)ATTN_NORM_BLOCK_);
  }
}

ATTN_COLD_ int attn_global_norm_steps_(attn_stage_ *s, void *job) {
  attn_global_norm_ *a = (attn_global_norm_ *)job;
  a->first = (int64_t *)attn_stage_take_(s, a->arrays, sizeof(int64_t));
  a->sum = (double *)attn_stage_take_(s, a->blocks, sizeof(double));
  for (int64_t i = 0, at = 0; s->run && i < a->arrays; i++)
    a->first[i] = at, at += attn_runs_of_(a->x[i].n, ATTN_NORM_BLOCK_);
  attn_stage_for_(s, attn_runs_of_(a->blocks, ATTN_NORM_RUN_), attn_global_norm_item_, a, 0, NULL);
  if (!s->run) return 1;
  double sum = 0.0;
  for (int64_t i = 0; i < a->blocks; i++) sum += a->sum[i];
  if (!(sum - sum == 0.0)) return attn_reject_(s->e, ATTN_E_VALUE, "the norm of x is not finite");
  const double norm = sqrt(sum), by = a->most / (norm + 1e-6);
  if (a->norm) *a->norm = norm;
  if (a->clip) *a->clip = !(by < 1.0) ? 1.0 : by > 0.0 ? by : (double)ATTN_ZERO;
  return 1;
}

/* Whether an output, or the workspace, shares memory with nothing. */
ATTN_COLD_ int attn_global_norm_apart_(const attn_global_norm_ *a, attn_span_ span,
                                       const attn_span_ *other, int others) {
  attn_error_ ignored = {ATTN_OK, NULL};
  for (int i = 0; i < others; i++)
    if (attn_overlap_(span, other[i])) return 0;
  for (int64_t i = 0; span.lo < span.hi && i < a->arrays; i++) {
    attn_span_ x;
    if (attn_check_array_(&ignored, a->x[i].data, a->x[i].n, 4, "", &x) && attn_overlap_(span, x))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_global_norm_check_(attn_error_ *e, attn_global_norm_ *a, const attn_ctx *ctx) {
  attn_span_ span[4], one; /* of norm, clip, x, the workspace */
  if (a->arrays < 0) return attn_reject_(e, ATTN_E_SHAPE, "arrays must not be negative");
  if (a->arrays > 0 && !a->x) return attn_reject_(e, ATTN_E_NULL, "x must not be null");
  if (!attn_check_array_(e, a->norm, 1, 8, "norm must be aligned to its elements", &span[0]) ||
      !attn_check_array_(e, a->clip, 1, 8, "clip must be aligned to its elements", &span[1]) ||
      !attn_check_array_(e, a->x, attn_mul_(a->arrays, sizeof *a->x / 4), 4,
                         "x must be aligned to its elements", &span[2]) ||
      !attn_check_workspace_(e, ctx, &span[3]))
    return 0;
  for (int64_t i = 0; i < a->arrays; i++) {
    const attn_flat_array *x = &a->x[i];
    if (x->n < 0) return attn_reject_(e, ATTN_E_SHAPE, "x[i].n must not be negative");
    if (x->n > 0 && !x->data) return attn_reject_(e, ATTN_E_NULL, "x[i].data must not be null");
    if (!attn_check_array_(e, x->data, x->n, 4, "x[i].data must be aligned to its elements", &one))
      return 0;
    a->blocks = attn_add_(a->blocks, attn_runs_of_(x->n, ATTN_NORM_BLOCK_));
  }
  if (!(a->most >= 0.0)) return attn_reject_(e, ATTN_E_VALUE, "most must not be negative or NaN");
  if (!attn_global_norm_apart_(a, span[0], span + 1, 2))
    return attn_reject_(e, ATTN_E_OVERLAP, "norm must share no memory with another argument");
  if (!attn_global_norm_apart_(a, span[1], span + 2, 1))
    return attn_reject_(e, ATTN_E_OVERLAP, "clip must share no memory with another argument");
  if (!attn_global_norm_apart_(a, span[3], span, 3))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with an array");
  return 1;
}

ATTN_COLD_ attn_status attn_global_norm_call_(double *norm, double *clip, const attn_flat_array *x,
                                              int64_t arrays, double most, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_global_norm_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.norm = norm, a.clip = clip, a.x = x, a.arrays = arrays, a.most = most;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) attn_global_norm_check_(&e, &a, ctx);
  return attn_step_call_or_(&e, a.table,
                            attn_pieces_(workers, attn_runs_of_(a.blocks, ATTN_NORM_RUN_)), ctx,
                            attn_global_norm_steps_, &a, "squares in double, by blocks",
                            norm || clip ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_global_norm, (norm, clip, x, arrays, most), double *norm, double *clip,
           const attn_flat_array *x, int64_t arrays, double most)
