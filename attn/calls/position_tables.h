/* calls/position_tables.h owns the encodings that are added to token vectors: sinusoids, the
 * signal of the Universal Transformer, learned tables. */

/* As in attn_rope, a position is 16 floor(p / 16) and a rest. The row of the first is made in
 * double; the encoding of p is that row turned by the angles of the rest, which is a rotary
 * embedding with fixed rows. */
typedef struct attn_sinusoid_job_ {
  const attn_table_ *table;
  attn_tensor y, x; /* x.data null = none */
  attn_positions_ at;
  attn_sinusoid_params p; /* base and x_scale resolved */
  int signal;             /* with the step of attn_universal_signal */
  int64_t step;
  int64_t pairs, width; /* frequencies; floats of a row, at least 2 pairs and y.dim */
  double *theta;        /* [pairs] */
  float *fine;          /* [run][2][width] cosines and sines of 0..15, as table->rope wants them */
  float *step_row;      /* [width] */
  char *workspace;      /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_sinusoid_job_;

/* One worker's part: the last coarse position, its row, and the row of the present position. */
typedef struct attn_sinusoid_rows_ {
  int64_t *coarse;
  float *coarse_row, *row; /* [width] */
} attn_sinusoid_rows_;

/* y, and x if there is one, of equal shape; y may be x. */
ATTN_COLD_ int attn_check_added_(attn_error_ *e, attn_tensor *y, attn_tensor *x, attn_span_ *sy,
                                 attn_span_ *sx) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x");
  sx->lo = sx->hi = 0;
  if (!attn_check_tensor_(e, y, wy, sy)) return 0;
  if (x->data) {
    if (!attn_check_tensor_(e, x, wx, sx)) return 0;
    if (y->batch != x->batch || y->heads != x->heads || y->len != x->len || y->dim != x->dim)
      return attn_reject_(e, ATTN_E_SHAPE, "x must have the shape of y");
  }
  if (!attn_check_rows_(e, y, wy)) return 0;
  if (x->data && attn_overlap_(*sy, *sx) && !attn_same_view_(y, x))
    return attn_reject_(e, ATTN_E_OVERLAP, "y must be x or share no memory with it");
  return 1;
}

ATTN_COLD_ int attn_sinusoid_plan_(attn_error_ *e, attn_sinusoid_job_ *j,
                                   const attn_sinusoid_params *params, const attn_ctx *ctx,
                                   int *workers, int data) {
  attn_span_ sy, sx, sp = {0, 0, 0, 0}, sw = {0, 0, 0, 0};
  attn_sinusoid_params *p = &j->p;
  memset(p, 0, sizeof *p);
  if (params) *p = *params;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_added_(e, &j->y, &j->x, &sy, &sx)) return 0;
  if (attn_abs64_(j->step) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.step must lie within 2^61 of 0");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  if ((int)p->layout < 0 || p->layout > ATTN_SINUSOID_T2T)
    return attn_reject_(e, ATTN_E_RANGE, "params.layout must be an attn_sinusoid_layout");
  if (p->x_scale - p->x_scale != 0.0f)
    return attn_reject_(e, ATTN_E_VALUE, "params.x_scale must be finite");
  if (p->x_scale == 0.0f && attn_to_bits_(p->x_scale) == 0) p->x_scale = 1.0f;
  const attn_positions_ at = {
      p->start, p->positions, p->real_positions, p->positions_per_batch, j->y.len, j->y.batch, 1,
      0,        j->y.len};
  j->at = at;
  if (!attn_check_positions_(e, &j->at, &sp)) return 0;
  if (attn_overlap_(sy, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "y must not share memory with params.positions");
  if (data && !attn_check_real_positions_(e, &j->at)) return 0;
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sy) || attn_overlap_(sw, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  if (p->x_scale == 0.0f) j->x.data = NULL;
  j->pairs = p->layout == ATTN_SINUSOID_T2T ? j->y.dim / 2 : j->y.dim / 2 + j->y.dim % 2;
  j->width = 2 * j->pairs > j->y.dim ? 2 * j->pairs : j->y.dim;
  j->bytes = attn_add_(attn_piece_(1, sizeof(int64_t)),
                       attn_mul_(2, attn_piece_(j->width, sizeof(float))));
  return 1;
}

ATTN_COLD_ int64_t attn_sinusoid_bytes_(const attn_sinusoid_job_ *j, int workers) {
  const int64_t rows = 2 * ATTN_ROPE_RUN_ + 1;
  const int64_t shared = attn_add_(attn_piece_(j->pairs, sizeof(double)),
                                   attn_mul_(rows, attn_piece_(j->width, sizeof(float))));
  return attn_workspace_bytes_(attn_add_(shared, attn_mul_(j->bytes, workers)), 1);
}

ATTN_FUNC_ int64_t attn_row_runs_(int64_t len) {
  return len / ATTN_ROPE_RUN_ + (len % ATTN_ROPE_RUN_ != 0);
}

/* Runs of rows; with positions per batch entry each entry has its own. */
ATTN_COLD_ int64_t attn_sinusoid_items_(const attn_sinusoid_job_ *j) {
  if (j->y.batch == 0 || j->y.heads == 0 || j->y.len == 0) return 0;
  return attn_mul_(attn_row_runs_(j->y.len), j->at.each ? j->y.batch : 1);
}

ATTN_FUNC_ void attn_sinusoid_cut_(const attn_sinusoid_job_ *j, int worker,
                                   attn_sinusoid_rows_ *r) {
  char *at = j->workspace + worker * j->bytes;
  r->coarse = (int64_t *)(void *)at, at += attn_piece_(1, sizeof(int64_t));
  r->coarse_row = (float *)(void *)at, at += attn_piece_(j->width, sizeof(float));
  r->row = (float *)(void *)at;
}

/* Sines and cosines of one position into the columns of the layout. */
ATTN_FUNC_ void attn_sinusoid_make_(const attn_sinusoid_job_ *j, double position, float *row) {
  const int halves = j->p.layout != ATTN_SINUSOID_INTERLEAVED;
  for (int64_t m = 0; m < j->pairs; m++) {
    double sine, cosine;
    attn_sincos_(position * j->theta[m], &sine, &cosine);
    const int64_t a = halves ? m : 2 * m, b = halves ? m + j->pairs : a + 1;
    row[a] = (float)sine, row[b] = (float)cosine;
  }
  if (j->width > 2 * j->pairs) row[2 * j->pairs] = 0.0f;
}

/* The encoding of a whole position into r->row. */
ATTN_FUNC_ void attn_sinusoid_at_(const attn_sinusoid_job_ *j, attn_sinusoid_rows_ *r,
                                  int64_t position) {
  const int64_t rest = attn_rest_(position);
  const float *cosines = j->fine + 2 * rest * j->width;
  if (*r->coarse != position - rest) {
    attn_sinusoid_make_(j, (double)(position - rest), r->coarse_row);
    *r->coarse = position - rest;
  }
  attn_on_(rope, j->table)
      ->rope(r->row, r->coarse_row, ATTN_F32, ATTN_F32, j->width, 2 * j->pairs,
             j->p.layout != ATTN_SINUSOID_INTERLEAVED, cosines, cosines + j->width);
}

ATTN_FUNC_ void attn_sinusoid_item_(void *job, int worker, int64_t index) {
  const attn_sinusoid_job_ *j = (const attn_sinusoid_job_ *)job;
  const attn_table_ *f = j->table;
  const int64_t runs = attn_row_runs_(j->y.len), first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->y.len - first < ATTN_ROPE_RUN_ ? j->y.len : first + ATTN_ROPE_RUN_;
  const int64_t b0 = index / runs, b1 = j->at.each ? b0 + 1 : j->y.batch;
  attn_sinusoid_rows_ r;
  attn_sinusoid_cut_(j, worker, &r);
  for (int64_t i = first; i < end; i++) {
    int64_t position;
    double real;
    if (attn_position_(&j->at, 0, b0, i, &position, &real))
      attn_sinusoid_at_(j, &r, position);
    else
      attn_sinusoid_make_(j, real, r.row);
    if (j->signal)
      f->blend(r.row, r.row, j->step_row, ATTN_F32, ATTN_F32, ATTN_F32, j->width, 1.0f, 1.0f);
    for (int64_t b = b0; b < b1; b++)
      for (int64_t h = 0; h < j->y.heads; h++)
        f->blend(attn_at_(&j->y, b, h, i), j->x.data ? attn_at_(&j->x, b, h, i) : NULL, r.row,
                 j->y.dtype, j->x.dtype, ATTN_F32, j->y.dim, j->p.x_scale, 1.0f);
  }
}

/* The rows that turn an encoding on by `rest` positions. */
ATTN_COLD_ void attn_sinusoid_fine_(attn_sinusoid_job_ *j, int64_t rest) {
  float *cosines = j->fine + 2 * rest * j->width, *sines = cosines + j->width;
  const int halves = j->p.layout != ATTN_SINUSOID_INTERLEAVED;
  for (int64_t m = 0; m < j->pairs; m++) {
    double sine, cosine;
    attn_sincos_((double)rest * j->theta[m], &sine, &cosine);
    const int64_t a = halves ? m : 2 * m, b = halves ? m + j->pairs : a + 1;
    cosines[a] = cosines[b] = (float)cosine, sines[a] = (float)sine, sines[b] = -(float)sine;
  }
}

/* Makes what all workers read: frequencies, the fine rows that occur, the row of the step. */
ATTN_COLD_ void attn_sinusoid_tables_(attn_sinusoid_job_ *j, char *base, int workers) {
  const int64_t row = attn_piece_(j->width, sizeof(float));
  unsigned seen = 0;
  attn_sinusoid_rows_ r;
  j->theta = (double *)(void *)base, base += attn_piece_(j->pairs, sizeof(double));
  j->step_row = (float *)(void *)base, base += row;
  j->fine = (float *)(void *)base, base += 2 * ATTN_ROPE_RUN_ * row;
  j->workspace = base;
  const double most = j->pairs > 1 ? (double)(j->pairs - 1) : 1.0;
  for (int64_t m = 0; m < j->pairs; m++)
    j->theta[m] =
        pow(j->p.base, j->p.layout == ATTN_SINUSOID_T2T ? -(double)m / most
                                                        : -2.0 * (double)m / (double)j->y.dim);
  for (int64_t b = 0; b < (j->at.each ? j->y.batch : 1); b++)
    for (int64_t i = 0; i < j->y.len && seen != 0xffffu; i++) {
      int64_t p;
      double real;
      if (attn_position_(&j->at, 0, b, i, &p, &real)) seen |= 1u << attn_rest_(p);
    }
  if (j->signal) seen |= 1u << attn_rest_(j->step);
  for (int rest = 0; rest < ATTN_ROPE_RUN_; rest++)
    if (seen >> rest & 1u) attn_sinusoid_fine_(j, rest);
  for (int w = 0; w < workers; w++) {
    attn_sinusoid_cut_(j, w, &r);
    *r.coarse = INT64_MAX; /* no multiple of 16 */
  }
  if (!j->signal) return;
  attn_sinusoid_cut_(j, 0, &r);
  attn_sinusoid_at_(j, &r, j->step);
  memcpy(j->step_row, r.row, (size_t)j->width * sizeof(float));
}

ATTN_COLD_ attn_status attn_sinusoid_run_(attn_sinusoid_job_ *j, const attn_sinusoid_params *params,
                                          attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ w;
  int workers;
  if (attn_sinusoid_plan_(&e, j, params, ctx, &workers, 1)) {
    const int64_t items = attn_sinusoid_items_(j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j->table, 1, "no-op", "no rows");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_sinusoid_bytes_(j, workers))) {
      attn_sinusoid_tables_(j, w.base, workers);
      attn_for_(ctx, workers, items, attn_sinusoid_item_, j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j->table, workers, "turned rows", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_COLD_ size_t attn_sinusoid_ask_(attn_sinusoid_job_ *j, const attn_sinusoid_params *params,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  if (!attn_sinusoid_plan_(&e, j, params, &plain, &workers, 0)) return ATTN_WORKSPACE_REJECTED;
  const int64_t items = attn_sinusoid_items_(j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_sinusoid_bytes_(j, attn_pieces_(workers, items));
  return attn_answer_(e.status, bytes);
}

ATTN_COLD_ void attn_sinusoid_job_of_(attn_sinusoid_job_ *j, attn_tensor y, attn_tensor x,
                                      const attn_universal_signal_params *signal) {
  memset(j, 0, sizeof *j);
  j->y = y, j->x = x;
  if (signal) j->step = signal->step;
}

ATTN_PUB_COLD_ attn_status attn_sinusoid(attn_tensor y, attn_tensor x,
                                         const attn_sinusoid_params *params, attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, NULL);
  return attn_sinusoid_run_(&j, params, ctx);
}

ATTN_PUB_COLD_ size_t attn_sinusoid_workspace(attn_tensor y, attn_tensor x,
                                              const attn_sinusoid_params *params,
                                              const attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, NULL);
  return attn_sinusoid_ask_(&j, params, ctx);
}

ATTN_PUB_COLD_ attn_status attn_universal_signal(attn_tensor y, attn_tensor x,
                                                 const attn_universal_signal_params *params,
                                                 attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, params);
  j.signal = 1;
  return attn_sinusoid_run_(&j, params ? &params->position : NULL, ctx);
}

ATTN_PUB_COLD_ size_t attn_universal_signal_workspace(attn_tensor y, attn_tensor x,
                                                      const attn_universal_signal_params *params,
                                                      const attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, params);
  j.signal = 1;
  return attn_sinusoid_ask_(&j, params ? &params->position : NULL, ctx);
}

typedef struct attn_learned_job_ {
  const attn_table_ *table;
  attn_tensor y, x, rows;
  attn_positions_ at;
} attn_learned_job_;

ATTN_COLD_ int attn_learned_plan_(attn_error_ *e, attn_learned_job_ *j,
                                  const attn_learned_params *params, const attn_ctx *ctx,
                                  int *workers, int data) {
  static const char wt[] = ATTN_WORDS_("table");
  attn_span_ sy, sx, st, si;
  memset(&j->at, 0, sizeof j->at);
  if (params)
    j->at.start = params->start, j->at.whole = params->positions,
    j->at.each = params->positions_per_batch;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_added_(e, &j->y, &j->x, &sy, &sx)) return 0;
  if (!attn_check_tensor_(e, &j->rows, wt, &st)) return 0;
  if (j->rows.batch != 1 || j->rows.heads != 1 || j->rows.dim != j->y.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "table must be [1, 1, rows, y.dim]");
  attn_positions_ *p = &j->at;
  p->len = p->rows = j->y.len, p->batch = j->y.batch, p->axes = 1;
  if (!attn_check_positions_(e, p, &si)) return 0;
  if (attn_overlap_(sy, st) || attn_overlap_(sy, si))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "y must not share memory with table or params.positions");
  if (!p->whole && j->y.len > 0 && (p->start < 0 || p->start > j->rows.len - j->y.len))
    return attn_reject_(e, ATTN_E_RANGE, "params.start .. start + y.len - 1 must be rows of table");
  const int64_t count = attn_mul_(p->each ? j->y.batch : 1, p->len);
  for (int64_t i = 0; data && p->whole && j->y.batch > 0 && i < count; i++)
    if (p->whole[i] < 0 || p->whole[i] >= j->rows.len)
      return attn_reject_(e, ATTN_E_RANGE, "params.positions must be rows of table");
  return 1;
}

ATTN_FUNC_ void attn_learned_item_(void *job, int worker, int64_t index) {
  const attn_learned_job_ *j = (const attn_learned_job_ *)job;
  const int64_t runs = attn_row_runs_(j->y.len), b = index / runs;
  const int64_t first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->y.len - first < ATTN_ROPE_RUN_ ? j->y.len : first + ATTN_ROPE_RUN_;
  (void)worker;
  for (int64_t h = 0; h < j->y.heads; h++)
    for (int64_t i = first; i < end; i++) {
      const int64_t id = attn_whole_position_(&j->at, 0, b, i);
      j->table->blend(attn_at_(&j->y, b, h, i), j->x.data ? attn_at_(&j->x, b, h, i) : NULL,
                      attn_at_(&j->rows, 0, 0, id), j->y.dtype, j->x.dtype, j->rows.dtype, j->y.dim,
                      1.0f, 1.0f);
    }
}

ATTN_PUB_COLD_ attn_status attn_learned_position(attn_tensor y, attn_tensor x, attn_tensor table,
                                                 const attn_learned_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_learned_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.rows = table;
  if (attn_learned_plan_(&e, &j, params, ctx, &workers, 1)) {
    const int64_t items = j.y.heads == 0 ? 0 : attn_mul_(j.y.batch, attn_row_runs_(j.y.len));
    workers = attn_pieces_(workers, items);
    attn_for_(ctx, workers, items, attn_learned_item_, &j);
    attn_report_(ctx, j.table, workers, items ? "row sum" : "no-op",
                 items ? "the only path" : "no rows");
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ size_t attn_learned_position_workspace(attn_tensor y, attn_tensor x,
                                                      attn_tensor table,
                                                      const attn_learned_params *params,
                                                      const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_learned_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.rows = table;
  (void)attn_learned_plan_(&e, &j, params, &plain, &workers, 0);
  return attn_answer_(e.status, 0);
}

/* ---- distances into buckets ---------------------------------------------------------------------*/

ATTN_PUB_ int64_t attn_t5_bucket(int64_t distance, int bidirectional, int64_t buckets,
                                 int64_t max_distance) {
  attn_t5_rule_ t;
  if (!attn_t5_rule_of_(&t, buckets, max_distance, bidirectional)) return -1;
  const int64_t base = bidirectional && distance > 0 ? t.side : 0;
  const int64_t a = !bidirectional && distance > 0 ? 0 : attn_abs64_(distance);
  if (a < t.exact) return base + a;
  if (a >= t.most) return base + t.side - 1;
  int64_t lo = 0, hi = t.logs; /* reaches lo, not hi (hi is cut off) */
  while (hi - lo > 1) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (attn_t5_reaches_(&t, a, mid))
      lo = mid;
    else
      hi = mid;
  }
  return base + t.exact + lo;
}

ATTN_PUB_ int64_t attn_deberta_bucket(int64_t distance, int64_t buckets, int64_t max_distance) {
  attn_t5_rule_ t;
  const int64_t a = attn_abs64_(distance), mid = buckets / 2;
  if (buckets < 4 || buckets > ATTN_T5_MOST_ || max_distance <= mid + 1 || max_distance > INT32_MAX)
    return INT64_MIN;
  t.side = buckets, t.exact = mid, t.logs = mid - 1, t.most = max_distance - 1, t.bidirectional = 1;
  if (a <= mid) return distance;
  if (a > t.most) return distance > 0 ? 2 * mid : -2 * mid;
  int64_t lo = 0, hi = t.logs; /* beyond the end of lo, not of hi */
  while (hi - lo > 1) {
    const int64_t k = lo + (hi - lo) / 2;
    if (attn_t5_against_(&t, a, k) > 0)
      lo = k;
    else
      hi = k;
  }
  return distance > 0 ? mid + hi : -mid - hi;
}
