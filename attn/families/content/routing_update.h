/* families/content/routing_update.h owns the centroids of the Routing Transformer: how they begin, and how they
 * follow their rows. */

enum { ATTN_RT_COLS_ = 32 };

typedef struct attn_drift_ {
  const attn_routing_job_ *job;
  int64_t slices, clusters, dim;
  double *sum;   /* [H][C][dk] */
  int64_t *rows; /* [H][C] */
  double decay;
} attn_drift_;

/* Some columns of the sums of one head; the first such item also counts. */
ATTN_FUNC_ void attn_drift_sum_(void *job, int worker, int64_t index) {
  const attn_drift_ *a = (const attn_drift_ *)job;
  const int64_t h = index / a->slices, c0 = index % a->slices * ATTN_RT_COLS_, d = a->dim;
  const int64_t cols = d - c0 < ATTN_RT_COLS_ ? d - c0 : (int64_t)ATTN_RT_COLS_;
  const int64_t heads = a->job->side[0].x.heads;
  double *sum = a->sum + h * a->clusters * d + c0;
  int64_t *rows = a->rows + h * a->clusters;
  float row[ATTN_RT_COLS_];
  (void)worker;
  for (int64_t c = 0; c < a->clusters; c++) {
    for (int64_t k = 0; k < cols; k++) sum[c * d + k] = 0.0;
    if (c0 == 0) rows[c] = 0;
  }
  for (int64_t b = 0; b < a->job->side[0].x.batch; b++)
    for (int side = 0; side < a->job->sides; side++) {
      const attn_routed_ *s = &a->job->side[side];
      const int32_t *of = s->of + (b * heads + h) * s->x.len;
      const int64_t n = attn_len_of_(s->len, b, s->x.len);
      for (int64_t i = 0; i < n; i++) {
        const char *x = attn_at_(&s->x, b, h / (heads / s->x.heads), i);
        a->job->table->widen(row, x + attn_bytes_(s->x.dtype, c0), 0, NULL, 1, cols, s->x.dtype,
                             NULL);
        for (int64_t k = 0; k < cols; k++) sum[of[i] * d + k] += (double)row[k];
        if (c0 == 0) rows[of[i]]++;
      }
    }
}

ATTN_FUNC_ double attn_drift_size_(const double *x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
  return sqrt(sum);
}

/* All centroids of a head. */
ATTN_FUNC_ void attn_drift_move_(void *job, int worker, int64_t h) {
  const attn_drift_ *a = (const attn_drift_ *)job;
  const attn_routing_update_params *u = &a->job->u;
  const int64_t n = a->clusters, d = a->dim;
  const double lam = a->decay, rest = 1.0 - lam;
  double all = 0.0;
  (void)worker;
  if (u->rule == ATTN_ROUTING_RUNNING)
    for (int64_t c = 0; c < n; c++) {
      float *count = u->counts + h * n + c;
      *count = attn_one_nan_((float)(lam * (double)*count + rest * (double)a->rows[h * n + c]));
      all += (double)*count;
    }
  for (int64_t c = 0; c < n; c++) {
    double *x = a->sum + (h * n + c) * d; /* becomes the centroid */
    const float *old = (const float *)(const void *)attn_at_(&a->job->centroids, 0, h, c);
    float *next = (float *)(void *)attn_at_(&a->job->next, 0, h, c);
    const double size = attn_drift_size_(x, d);
    if (u->rule == ATTN_ROUTING_RUNNING) {
      float *m = (float *)(void *)attn_at_(&u->sums, 0, h, c);
      const double share = ((double)u->counts[h * n + c] + 1e-5) / (all + 1e-5 * (double)n) * all;
      for (int64_t k = 0; k < d; k++) {
        m[k] = attn_one_nan_((float)(lam * (double)m[k] + rest * x[k]));
        x[k] = all > 0.0 ? (double)m[k] / share : (double)old[k];
      }
    } else {
      const int direction = u->rule == ATTN_ROUTING_DIRECTION;
      const double by = direction ? rest / size : a->job->sides > 1 ? 0.5 * rest : rest;
      for (int64_t k = 0; k < d; k++)
        x[k] = direction && size == 0.0 ? (double)old[k] : lam * (double)old[k] + by * x[k];
    }
    const double length = u->renormalize ? attn_drift_size_(x, d) : 1.0;
    for (int64_t k = 0; k < d; k++)
      next[k] = attn_one_nan_((float)(length > 0.0 ? x[k] / length : x[k]));
  }
}

ATTN_COLD_ int attn_routing_update_steps_(attn_stage_ *s, void *job) {
  attn_routing_job_ a = *(const attn_routing_job_ *)job;
  const int64_t h = a.centroids.heads;
  attn_drift_ x = {&a, 0, a.centroids.len, a.centroids.dim, NULL, NULL, (double)a.u.decay};
  a.table = s->table;
  if (a.u.decay == 0.0f && !attn_to_bits_(a.u.decay)) x.decay = 0.999;
  x.slices = x.dim / ATTN_RT_COLS_ + (x.dim % ATTN_RT_COLS_ != 0);
  x.sum = (double *)attn_stage_take_(s, attn_mul_(attn_mul_(h, x.clusters), x.dim), 8);
  x.rows = (int64_t *)attn_stage_take_(s, attn_mul_(h, x.clusters), 8);
  return attn_routing_normalise_(s, &a) && attn_routing_assign_(s, &a) &&
         attn_stage_for_(s, attn_mul_(h, x.slices), attn_drift_sum_, &x, 0, NULL) &&
         attn_stage_for_(s, h, attn_drift_move_, &x, 0, NULL);
}

ATTN_COLD_ attn_routing_job_ attn_drift_job_(attn_tensor next, attn_tensor q, attn_tensor k,
                                             attn_tensor centroids,
                                             const attn_routing_update_params *params) {
  attn_routing_job_ a = attn_routing_job_of_(q, k);
  a.next = next, a.centroids = centroids;
  if (params) a.u = *params;
  return a;
}

ATTN_COLD_ attn_status attn_routing_update_call_(attn_tensor next, attn_tensor q, attn_tensor k,
                                                 attn_tensor centroids,
                                                 const attn_routing_params *routing,
                                                 const attn_routing_update_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_routing_job_ a = attn_drift_job_(next, q, k, centroids, params);
  return attn_routing_job_call_(&a, ATTN_RT_UPDATE_, routing, attn_routing_update_steps_,
                                "nearest centroids, moved", ctx, bytes);
}
ATTN_CALL_(attn_routing_update, (next, q, k, centroids, routing, params), attn_tensor next,
           attn_tensor q, attn_tensor k, attn_tensor centroids, const attn_routing_params *routing,
           const attn_routing_update_params *params)

/* ---- the first ones -------------------------------------------------------------------------*/

typedef struct attn_first_means_ {
  const attn_table_ *table;
  attn_tensor centroids, q;
  attn_routing_norm norm;
  uint64_t seed;
  char *memory;
  int64_t each;
} attn_first_means_;

ATTN_FUNC_ void attn_first_means_item_(void *job, int worker, int64_t h) {
  const attn_first_means_ *a = (const attn_first_means_ *)job;
  const int64_t n = a->q.len, clusters = a->centroids.len;
  int64_t from = 0, c = 0;
  attn_marks_ set;
  attn_marks_cut_(&set, (uint64_t *)(void *)(a->memory + worker * a->each), n);
  memset(set.bits, 0, (size_t)a->each);
  attn_sample_(&set, attn_stream_(a->seed, ATTN_DRAW_CENTROIDS_, h, 0), n, clusters);
  for (uint64_t bits; (bits = attn_unmark_(&set, &from, n)) != 0;)
    for (; bits; bits &= bits - 1, c++) {
      float *to = (float *)(void *)attn_at_(&a->centroids, 0, h, c);
      a->table->widen(to, attn_at_(&a->q, 0, h, from + attn_lowest_(bits)), 0, NULL, 1, a->q.dim,
                      a->q.dtype, NULL);
      attn_routing_norm_(a->table, to, a->q.dim, 1, a->norm);
    }
}

ATTN_COLD_ int attn_first_means_steps_(attn_stage_ *s, void *job) {
  attn_first_means_ *a = (attn_first_means_ *)job;
  a->table = s->table;
  a->each = attn_piece_(attn_marks_words_(a->q.len), 8);
  return attn_stage_for_(s, a->q.batch > 0 ? a->q.heads : 0, attn_first_means_item_, a, a->each,
                         &a->memory);
}

ATTN_COLD_ attn_status attn_routing_start_call_(attn_tensor centroids, attn_tensor q,
                                                attn_routing_norm norm, uint64_t seed,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  int workers = 1;
  attn_first_means_ a;
  memset(&a, 0, sizeof a);
  a.centroids = centroids, a.q = q, a.norm = norm, a.seed = seed;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a.centroids, "centroids", ATTN_OUT_ | ATTN_IS_F32_, 1, q.heads, ATTN_ANY_,
                    q.dim, "centroids must be f32 [1, H, C, dk] for q [B, H, Tq, dk]"),
      ATTN_OPERAND_(&a.q, "q", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, "")};
  if (attn_check_ctx_(&e, ctx, &table, &workers) && attn_check_operand_(&e, &op[1], q.heads) &&
      attn_check_operand_(&e, &op[0], q.heads)) {
    if ((int)norm < 0 || norm >= ATTN_ROUTING_NORM_COUNT)
      attn_reject_(&e, ATTN_E_RANGE, "norm must be an attn_routing_norm");
    else if (centroids.len < 1 || (q.batch > 0 && centroids.len > q.len))
      attn_reject_(&e, ATTN_E_SHAPE, "centroids.len must lie in 1..q.len");
    else if (q.len > INT32_MAX)
      attn_reject_(&e, ATTN_E_OVERFLOW, "q.len must be below 2^31");
    else
      (void)attn_check_apart_(&e, ctx, op, 2, NULL, 0);
  }
  return attn_step_call_(&e, table, workers, ctx, attn_first_means_steps_, &a, "sampled rows",
                         bytes);
}

ATTN_CALL_(attn_routing_start, (centroids, q, norm, seed), attn_tensor centroids, attn_tensor q,
           attn_routing_norm norm, uint64_t seed)
