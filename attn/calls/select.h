/* calls/select.h owns the choice of elements of rows (top k) and of centroids (k-means); what a
 * candidate is stands in engine/topk.h. */

enum { ATTN_BEST_ = 16, ATTN_BEST_WIDE_ = 512, ATTN_BEST_ITEM_ = 16384 };

typedef struct attn_best_ {
  const attn_table_ *table;
  attn_tensor values, x;
  int32_t *index;
  int64_t k;
  attn_top_k_params p;
  int64_t run, runs, room;
  char *own; /* of the workers */
  int64_t each, at_spare, at_wide;
} attn_best_;

/* What an element must reach to come before `worst`, which came earlier. */
ATTN_FUNC_ float attn_best_bar_(uint64_t worst) {
  const float x = attn_candidate_score_(worst);
  if (x != x) return -INFINITY;
  return x == INFINITY ? x - x : x == -INFINITY ? -FLT_MAX : attn_step_(x, 1);
}

/* Column j and those after it, n elements, as candidates. Returns how many the list has. */
ATTN_FUNC_ int64_t attn_best_take_(const attn_best_ *a, uint64_t *list, uint64_t *spare,
                                   int64_t count, float *bar, int *full, const float *x, int64_t n,
                                   int64_t j) {
  const float sign = a->p.smallest ? -1.0f : 1.0f, limit = sign * *bar;
  int some = !*full;
  if (*full && a->p.smallest) {
    for (int64_t i = 0; i < n; i++) some |= x[i] <= limit;
  } else if (*full) {
    for (int64_t i = 0; i < n; i++) some |= x[i] >= limit;
  }
  if (!some) return count;
  for (int64_t i = 0; i < n; i++) {
    const float score = sign * x[i];
    if (!*full || score >= *bar) list[count++] = attn_candidate_(score, j + i);
  }
  if (count >= 2 * a->k) {
    attn_select_(list, count, a->k, spare);
    count = a->k, *full = 1, *bar = attn_best_bar_(list[a->k - 1]);
  }
  return count;
}

ATTN_FUNC_ void attn_best_row_(const attn_best_ *a, char *own, int64_t b, int64_t h, int64_t t) {
  uint64_t *list = (uint64_t *)(void *)own, *spare = (uint64_t *)(void *)(own + a->at_spare);
  float *wide = (float *)(void *)(own + a->at_wide), *out = (float *)(void *)spare;
  const int64_t n = attn_len_of_(a->p.x_len, b, a->x.dim), k = a->k;
  const char *row = attn_at_(&a->x, b, h, t);
  const float none = a->p.smallest ? INFINITY : -INFINITY;
  float bar = -INFINITY;
  int64_t count = 0;
  int full = 0;
  for (int64_t j = 0; j < n; j += ATTN_BEST_WIDE_) {
    const int64_t m = n - j < ATTN_BEST_WIDE_ ? n - j : (int64_t)ATTN_BEST_WIDE_;
    const float *x = (const float *)(const void *)row + j;
    if (a->x.dtype != ATTN_F32) {
      a->table->widen(wide, row + attn_bytes_(a->x.dtype, j), 0, NULL, 1, m, a->x.dtype, NULL);
      x = wide;
    }
    for (int64_t i = 0; i < m; i += ATTN_BEST_)
      count = attn_best_take_(a, list, spare, count, &bar, &full, x + i,
                              m - i < ATTN_BEST_ ? m - i : (int64_t)ATTN_BEST_, j + i);
  }
  if (count > k) attn_select_(list, count, k, spare), count = k;
  attn_sort_(list, count, spare);
  if (a->index) {
    int32_t *to = a->index + ((b * a->x.heads + h) * a->x.len + t) * k;
    for (int64_t i = 0; i < k; i++)
      to[i] = i < count ? (int32_t)attn_candidate_index_(list[i]) : -1;
  }
  if (!a->values.data) return;
  for (int64_t i = 0; i < k; i++) {
    const float score = i < count ? attn_candidate_score_(list[i]) : none;
    out[i] = i < count && a->p.smallest ? 0.0f - score : score;
  }
  a->table->blend(attn_at_(&a->values, b, h, t), out, NULL, a->values.dtype, ATTN_F32, ATTN_F32, k,
                  1.0f, 0.0f);
}

ATTN_FUNC_ void attn_best_item_(void *job, int worker, int64_t index) {
  const attn_best_ *a = (const attn_best_ *)job;
  const int64_t unit = index / a->runs, t0 = index % a->runs * a->run;
  const int64_t t1 = a->x.len - t0 < a->run ? a->x.len : t0 + a->run;
  for (int64_t t = t0; t < t1; t++)
    attn_best_row_(a, a->own + worker * a->each, unit / a->x.heads, unit % a->x.heads, t);
}

ATTN_COLD_ int attn_best_steps_(attn_stage_ *s, void *job) {
  attn_best_ *a = (attn_best_ *)job;
  a->table = s->table;
  a->run = a->x.dim < ATTN_BEST_ITEM_ ? ATTN_BEST_ITEM_ / a->x.dim : 1;
  a->runs = a->x.len / a->run + (a->x.len % a->run != 0);
  a->room = attn_add_(attn_mul_(2, a->k), ATTN_BEST_);
  a->at_spare = attn_piece_(a->room, 8), a->at_wide = attn_mul_(2, a->at_spare);
  a->each = attn_add_(a->at_wide, a->x.dtype == ATTN_F32 ? 0 : attn_piece_(ATTN_BEST_WIDE_, 4));
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->x.batch, a->x.heads), a->runs), attn_best_item_,
                         a, a->each, &a->own);
}

ATTN_COLD_ int attn_best_check_(attn_error_ *e, attn_best_ *a, const attn_ctx *ctx, int query) {
  attn_span_ len;
  const int64_t any = ATTN_ANY_, b = a->x.batch, h = a->x.heads, t = a->x.len, n = a->x.dim;
  attn_tensor index = attn_bhtd(a->index, ATTN_F32, b, h, t, a->k); /* of 4 bytes, too */
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->values, "values", ATTN_OUT_ | ATTN_OPTIONAL_, b, h, t, a->k,
                    "values must be [B, H, T, k] for x [B, H, T, n]"),
      ATTN_OPERAND_(&index, "index", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, "")};
  if (!attn_check_operand_(e, &op[2], h)) return 0;
  if (a->k < 1 || a->k > n) return attn_reject_(e, ATTN_E_RANGE, "k must lie in 1..x.dim");
  if (n > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, "x.dim must be below 2^31");
  if (!a->values.data && !a->index && b > 0 && h > 0 && t > 0)
    return attn_reject_(e, ATTN_E_NULL, "values and index must not both be absent");
  if (!attn_check_operand_(e, &op[0], h) || !attn_check_operand_(e, &op[1], h) ||
      !attn_check_array_(e, a->p.x_len, b, 4, "params.x_len must be aligned to its elements",
                         &len) ||
      !attn_check_apart_(e, ctx, op, 3, &len, 1))
    return 0;
  return query || attn_check_lens_(e, a->p.x_len, b, n, "params.x_len must lie in 0..x.dim");
}

ATTN_COLD_ attn_status attn_top_k_call_(attn_tensor values, int32_t *index, attn_tensor x,
                                        int64_t k, const attn_top_k_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_best_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.values = values, a.index = index, a.x = x, a.k = k;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_best_check_(&e, &a, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_best_steps_, &a, "best elements", bytes);
}

ATTN_CALL_(attn_top_k, (values, index, x, k, params), attn_tensor values, int32_t *index,
           attn_tensor x, int64_t k, const attn_top_k_params *params)

/* ---- k-means --------------------------------------------------------------------------------*/

enum { ATTN_MEANS_COLS_ = 32 };

typedef struct attn_means_ {
  const attn_table_ *table;
  attn_tensor next, centroids, x;
  int32_t *assignment, *counts;
  attn_kmeans_params p;
  attn_topk_ search; /* a plan */
  int64_t tiles, slices;
  char *own; /* of the workers */
  int64_t each, at_count;
} attn_means_;

/* 64 rows find their centroids. */
ATTN_FUNC_ void attn_means_assign_(void *job, int worker, int64_t index) {
  const attn_means_ *a = (const attn_means_ *)job;
  const int64_t unit = index / a->tiles, b = unit / a->x.heads, h = unit % a->x.heads;
  const int64_t i0 = index % a->tiles * ATTN_TILE_, len = attn_len_of_(a->p.x_len, b, a->x.len);
  const int64_t all = a->x.len - i0 < ATTN_TILE_ ? a->x.len - i0 : ATTN_TILE_;
  const int n = len - i0 >= all ? (int)all : len > i0 ? (int)(len - i0) : 0;
  int32_t *to = a->assignment + unit * a->x.len + i0;
  const void *rows[ATTN_TILE_];
  attn_topk_ t = a->search;
  for (int r = 0; r < n; r++) rows[r] = attn_at_(&a->x, b, h, i0 + r);
  if (n > 0) {
    attn_topk_open_(&t, a->own + worker * a->each, rows, n, a->x.dtype, 1.0f);
    attn_topk_scan_(&t, attn_at_(&a->centroids, b, h, 0), a->centroids.stride_len, ATTN_F32,
                    a->centroids.len, 0);
  }
  for (int r = 0; r < all; r++) {
    int64_t count;
    to[r] = r < n ? (int32_t)attn_candidate_index_(attn_topk_list_(&t, r, &count)[0]) : -1;
  }
}

/* Some columns of the means of one head; the first such item also counts. */
ATTN_FUNC_ void attn_means_update_(void *job, int worker, int64_t index) {
  const attn_means_ *a = (const attn_means_ *)job;
  const int64_t unit = index / a->slices, b = unit / a->x.heads, h = unit % a->x.heads;
  const int64_t c0 = index % a->slices * ATTN_MEANS_COLS_, d = a->x.dim, c = a->centroids.len;
  const int64_t cols = d - c0 < ATTN_MEANS_COLS_ ? d - c0 : (int64_t)ATTN_MEANS_COLS_;
  const int64_t n = attn_len_of_(a->p.x_len, b, a->x.len);
  const int32_t *of = a->assignment + unit * a->x.len;
  double *sum = (double *)(void *)(a->own + worker * a->each);
  int32_t *count = (int32_t *)(void *)(a->own + worker * a->each + a->at_count);
  float row[ATTN_MEANS_COLS_];
  for (int64_t i = 0; i < c; i++) count[i] = 0;
  for (int64_t i = 0; i < n; i++) count[of[i]]++;
  if (a->counts && c0 == 0) memcpy(a->counts + unit * c, count, (size_t)c * sizeof *count);
  if (a->p.keep) return;
  memset(sum, 0, (size_t)(c * cols) * sizeof *sum);
  for (int64_t i = 0; i < n; i++) {
    double *to = sum + of[i] * cols;
    a->table->widen(row, attn_at_(&a->x, b, h, i) + attn_bytes_(a->x.dtype, c0), 0, NULL, 1, cols,
                    a->x.dtype, NULL);
    for (int64_t k = 0; k < cols; k++) to[k] += (double)row[k];
  }
  for (int64_t i = 0; i < c; i++) {
    const char *old = attn_at_(&a->centroids, b, h, i) + 4 * c0;
    for (int64_t k = 0; k < cols && count[i]; k++)
      row[k] = (float)(sum[i * cols + k] / (double)count[i]);
    a->table->blend(attn_at_(&a->next, b, h, i) + attn_bytes_(a->next.dtype, c0),
                    count[i] ? (const void *)row : old, NULL, a->next.dtype, ATTN_F32, ATTN_F32,
                    cols, 1.0f, 0.0f);
  }
}

ATTN_COLD_ int attn_means_steps_(attn_stage_ *s, void *job) {
  attn_means_ *a = (attn_means_ *)job;
  const int64_t units = attn_mul_(a->x.batch, a->x.heads), c = a->centroids.len;
  a->table = s->table;
  attn_topk_plan_(&a->search, s->table, a->x.dim, 1, ATTN_F32, !a->p.dot);
  a->tiles = a->x.len / ATTN_TILE_ + (a->x.len % ATTN_TILE_ != 0);
  a->each = a->search.bytes;
  if (!attn_stage_for_(s, attn_mul_(units, a->tiles), attn_means_assign_, a, a->each, &a->own))
    return 0;
  if (a->p.keep && !a->counts) return 1;
  a->slices = a->p.keep ? 1 : a->x.dim / ATTN_MEANS_COLS_ + (a->x.dim % ATTN_MEANS_COLS_ != 0);
  a->at_count = a->p.keep ? 0 : attn_piece_(attn_mul_(c, ATTN_MEANS_COLS_), 8);
  a->each = attn_add_(a->at_count, attn_piece_(c, 4));
  return attn_stage_for_(s, attn_mul_(units, a->slices), attn_means_update_, a, a->each, &a->own);
}

ATTN_COLD_ int attn_means_check_(attn_error_ *e, attn_means_ *a, const attn_ctx *ctx, int query) {
  enum { NEXT, ASSIGNMENT, COUNTS, CENTROIDS, X, COUNT };
  attn_span_ len;
  const int64_t any = ATTN_ANY_, b = a->x.batch, h = a->x.heads, c = a->centroids.len;
  attn_tensor assignment = attn_bhtd(a->assignment, ATTN_F32, b, h, a->x.len, 1);
  attn_tensor counts = attn_bhtd(a->counts, ATTN_F32, b, h, c, 1);
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->next, "next", ATTN_OUT_ | (a->p.keep ? ATTN_OPTIONAL_ : 0), b, h, c,
                    a->x.dim, "next must have the shape of centroids"),
      ATTN_OPERAND_(&assignment, "assignment", ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_(&counts, "counts", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->centroids, "centroids", ATTN_IS_F32_, b, h, any, a->x.dim,
                    "centroids must be f32 [B, H, C, d] for x [B, H, n, d]"),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, "")};
  if (!attn_check_operand_(e, &op[X], h) || !attn_check_operand_(e, &op[CENTROIDS], h)) return 0;
  if (c < 1) return attn_reject_(e, ATTN_E_SHAPE, "centroids.len must be at least 1");
  if (c > INT32_MAX || a->x.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "centroids.len and x.len must be below 2^31");
  for (int i = NEXT; i <= COUNTS; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  if (a->p.keep && a->next.data)
    return attn_reject_(e, ATTN_E_VALUE, "next must be absent with params.keep");
  if (a->next.data && attn_same_view_(&a->next, &a->centroids))
    op[CENTROIDS].span.lo = op[CENTROIDS].span.hi = 0; /* in place: next speaks for both */
  if (!attn_check_array_(e, a->p.x_len, b, 4, "params.x_len must be aligned to its elements",
                         &len) ||
      !attn_check_apart_(e, ctx, op, COUNT, &len, 1))
    return 0;
  return query || attn_check_lens_(e, a->p.x_len, b, a->x.len, "params.x_len must lie in 0..x.len");
}

ATTN_COLD_ attn_status attn_kmeans_step_call_(attn_tensor next, int32_t *assignment,
                                              int32_t *counts, attn_tensor centroids, attn_tensor x,
                                              const attn_kmeans_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_means_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.next = next, a.assignment = assignment, a.counts = counts, a.centroids = centroids, a.x = x;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_means_check_(&e, &a, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_means_steps_, &a, "nearest centroids",
                         bytes);
}

ATTN_CALL_(attn_kmeans_step, (next, assignment, counts, centroids, x, params), attn_tensor next,
           int32_t *assignment, int32_t *counts, attn_tensor centroids, attn_tensor x,
           const attn_kmeans_params *params)
