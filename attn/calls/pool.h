/* calls/pool.h owns pooling along the sequence: means, maxima and weighted sums of runs of rows. */

enum { ATTN_POOL_ROWS_ = 512, ATTN_POOL_WIDE_ = 32 }; /* of an item; widened at once */

typedef struct attn_pooled_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_pool_params p; /* stride resolved */
  const uint8_t
      *valid; /* MEAN, optional: rows of entry b with valid[b valid_stride + i] = 0 are left out */
  int64_t valid_stride;
  int64_t run, runs; /* blocks of an item, items of a head */
  int64_t columns;   /* of a block's weights, in whole vectors */
  float *packed;     /* DYNAMIC: [w.heads][d][columns] */
  int64_t one;       /* floats of one of them */
  char *own;         /* of the workers */
  int64_t each, at_total, at_wide, at_z, at_bias;
} attn_pooled_;

ATTN_PUB_ int64_t attn_pool_len(int64_t n, int64_t segments, const attn_pool_params *params) {
  const int64_t kernel = params ? params->kernel : 0;
  const int64_t stride = params && params->stride ? params->stride : kernel;
  if (n < 0 || kernel < 0) return -1;
  if (kernel == 0) return segments < 0 ? -1 : n < segments ? n : segments;
  if (stride < 1 || stride > kernel) return -1;
  return n == 0 ? 0 : n <= kernel ? 1 : 2 + (n - kernel - 1) / stride;
}

/* Blocks of batch entry b, which has n rows. */
ATTN_FUNC_ int64_t attn_pooled_blocks_(const attn_pooled_ *a, int64_t b, int64_t n) {
  return attn_pool_len(n, attn_len_of_(a->p.segments, b, a->y.len), &a->p);
}

/* Rows *start .. *end - 1 are block m of `blocks`. */
ATTN_FUNC_ void attn_pooled_range_(const attn_pooled_ *a, int64_t m, int64_t blocks, int64_t n,
                                   int64_t *start, int64_t *end) {
  if (a->p.kernel) {
    *start = m * a->p.stride, *end = n - *start < a->p.kernel ? n : *start + a->p.kernel;
  } else { /* m n / blocks, of numbers whose product may be large */
    const int64_t q = n / blocks, r = n % blocks;
    *start = m * q + m * r / blocks, *end = (m + 1) * q + (m + 1) * r / blocks;
  }
}

/* sum = sum_r p[r] x_(i0 + r) of n rows, p null = 1 (0 for rows left out): f32 over 128 rows, double beyond.
 * Returns the sum of p, in the same order. */
ATTN_FUNC_ float attn_pooled_sum_(const attn_pooled_ *a, char *own, float *sum, int64_t b,
                                  int64_t h, int64_t i0, int64_t n, const float *p) {
  const int64_t d = a->x.dim;
  const uint8_t *valid = a->valid ? a->valid + b * a->valid_stride + i0 : NULL;
  double *total = (double *)(void *)(own + a->at_total), all = 0.0;
  float ones[ATTN_BLOCK_], part;
  int32_t index[ATTN_BLOCK_];
  const int64_t most = n < ATTN_BLOCK_ ? n : ATTN_BLOCK_;
  for (int i = 0; i < most; i++) ones[i] = 1.0f, index[i] = i;
  for (int64_t r = 0; r < n; r += ATTN_BLOCK_) {
    const int64_t here = n - r < ATTN_BLOCK_ ? n - r : ATTN_BLOCK_;
    int64_t m = here;
    if (valid) m = 0;
    for (int i = 0; valid && i < here; i++)
      if (valid[r + i]) index[m++] = i;
    memset(sum, 0, (size_t)d * sizeof *sum);
    attn_on_(sum, a->table)
        ->axpys(sum, p ? p + r : ones, attn_at_(&a->x, b, h, i0 + r), a->x.stride_len, index, m, d,
                a->x.dtype, 1.0f, 0);
    part = p ? 0.0f : (float)m;
    if (p)
      for (int64_t i = 0; i < m; i++) part += p[r + i];
    if (n <= ATTN_BLOCK_) return part;
    all += (double)part;
    for (int64_t c = 0; c < d; c++) total[c] = (r ? total[c] : 0.0) + (double)sum[c];
  }
  for (int64_t c = 0; c < d; c++) sum[c] = (float)total[c];
  return (float)all;
}

/* top[c] = the maximum of 64 columns of n rows and of what it was; a NaN stays. Of finite numbers the
 * maximum is the same on every tier, but for the sign of 0. */
ATTN_FUNC_ void attn_pooled_top_(const attn_table_ *f, float *top, float *x, int64_t n,
                                 int64_t cols) {
  attn_modifiers_ none;
  memset(&none, 0, sizeof none);
  if (f->finite(x, ATTN_TILE_, n, cols)) {
    attn_on_(tile, f)->modify_block(x, n, 0, (int)((cols + ATTN_GROUP_ - 1) / ATTN_GROUP_), &none,
                                    top);
    return;
  }
  for (int64_t r = 0; r < n; r++, x += ATTN_TILE_)
    for (int64_t c = 0; c < cols; c++)
      if (!(top[c] >= x[c] || top[c] != top[c])) top[c] = x[c];
}

/* row = the maximum of n rows, 64 columns at a time. */
ATTN_FUNC_ void attn_pooled_max_(const attn_pooled_ *a, char *own, float *row, int64_t b, int64_t h,
                                 int64_t i0, int64_t n) {
  const int64_t d = a->x.dim;
  float *wide = (float *)(void *)(own + a->at_wide), top[ATTN_TILE_];
  for (int64_t c = 0; c < d; c += ATTN_TILE_) {
    const int64_t cols = d - c < ATTN_TILE_ ? d - c : ATTN_TILE_;
    for (int i = 0; i < ATTN_TILE_; i++) top[i] = -INFINITY;
    if (cols < ATTN_TILE_) memset(wide, 0, ATTN_POOL_WIDE_ * ATTN_TILE_ * sizeof *wide);
    for (int64_t r = 0; r < n; r += ATTN_POOL_WIDE_) {
      const int64_t m = n - r < ATTN_POOL_WIDE_ ? n - r : (int64_t)ATTN_POOL_WIDE_;
      const int64_t at_once = cols < ATTN_TILE_ ? 1 : m;
      for (int64_t i = 0; i < m; i += at_once)
        a->table->widen(wide + i * ATTN_TILE_,
                        attn_at_(&a->x, b, h, i0 + r + i) + attn_bytes_(a->x.dtype, c),
                        a->x.stride_len, NULL, at_once, cols, a->x.dtype, NULL);
      attn_pooled_top_(a->table, top, wide, m, cols);
    }
    for (int64_t i = 0; i < cols; i++) row[c + i] = top[i] + 0.0f; /* -0 becomes 0 */
  }
}

/* z[0 .. n-1] = weights of a block of n rows, not yet divided by their sum: e^(z - max). */
ATTN_FUNC_ void attn_pooled_weights_(const attn_pooled_ *a, char *own, float *z, float *centre,
                                     int64_t b, int64_t h, int64_t start, int64_t n) {
  const attn_table_ *f = a->table;
  const int64_t d = a->x.dim, kernel = a->p.kernel, middle = (kernel - 1) / 2;
  const float *bias = a->p.bias.data ? (const float *)(const void *)(own + a->at_bias) : NULL;
  f->widen(centre, attn_at_(&a->x, b, h, start + (middle < n ? middle : n - 1)), 0, NULL, 1, d,
           a->x.dtype, NULL);
  attn_on_(dense, f)->gemm(z, a->columns, 1, centre, d, 1,
                           a->packed + (a->p.w.heads > 1 ? h : 0) * a->one, a->columns, d, kernel,
                           1);
  if (bias) attn_on_(dense, f)->activate(z, n, bias, 1.0f, ATTN_ACT_NONE);
  float top = -INFINITY;
  for (int64_t i = 0; i < n; i++) top = z[i] > top ? z[i] : top;
  for (int64_t i = 0; i < n; i++) z[i] -= top;
  f->exp(z, z, n);
}

/* A run of blocks of one head. */
ATTN_FUNC_ void attn_pooled_item_(void *job, int worker, int64_t index) {
  const attn_pooled_ *a = (const attn_pooled_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->runs, b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t m0 = index % a->runs * a->run, d = a->x.dim;
  const int64_t m1 = a->y.len - m0 < a->run ? a->y.len : m0 + a->run;
  const int64_t n = attn_len_of_(a->p.x_len, b, a->x.len), blocks = attn_pooled_blocks_(a, b, n);
  char *own = a->own + worker * a->each;
  float *row = (float *)(void *)own, *z = (float *)(void *)(own + a->at_z);
  if (a->p.bias.data)
    f->widen((float *)(void *)(own + a->at_bias),
             attn_at_(&a->p.bias, 0, a->p.bias.heads > 1 ? h : 0, 0), 0, NULL, 1, a->p.kernel,
             a->p.bias.dtype, NULL);
  for (int64_t m = m0; m < m1; m++) {
    int64_t start, end;
    float by[ATTN_TILE_], sum;
    if (m >= blocks) {
      f->blend(attn_at_(&a->y, b, h, m), NULL, NULL, a->y.dtype, ATTN_F32, ATTN_F32, d, 0.0f, 0.0f);
      continue;
    }
    attn_pooled_range_(a, m, blocks, n, &start, &end);
    if (a->p.kind == ATTN_POOL_MAX) {
      attn_pooled_max_(a, own, row, b, h, start, end - start);
    } else {
      const int weighted = a->p.kind == ATTN_POOL_DYNAMIC;
      if (weighted) attn_pooled_weights_(a, own, z, row, b, h, start, end - start);
      sum = attn_pooled_sum_(a, own, row, b, h, start, end - start, weighted ? z : NULL);
      for (int i = 0; i < ATTN_TILE_; i++) by[i] = sum;
      if (sum != 1.0f && sum != 0.0f)
        for (int64_t c = 0; c < d; c += ATTN_TILE_)
          attn_on_(tile, f)->divide(row + c, by, ATTN_GROUPS_);
    }
    f->blend(attn_at_(&a->y, b, h, m), row, NULL, a->y.dtype, ATTN_F32, ATTN_F32, d, 1.0f, 0.0f);
  }
}

ATTN_COLD_ void attn_pooled_pack_(const attn_pooled_ *a) {
  const attn_tensor *w = &a->p.w;
  memset(a->packed, 0, (size_t)(w->heads * a->one) * sizeof(float));
  for (int64_t h = 0; h < w->heads; h++)
    for (int64_t c = 0; c < w->len; c++)
      a->table->widen(a->packed + h * a->one + c * a->columns, attn_at_(w, 0, h, c), 0, NULL, 1,
                      w->dim, w->dtype, NULL);
}

/* A step; y, x and p have been judged. */
ATTN_COLD_ int attn_stage_pooled_(attn_stage_ *s, attn_pooled_ a) {
  const attn_tensor y = a.y, x = a.x;
  a.table = s->table;
  if (a.p.stride == 0) a.p.stride = a.p.kernel;
  const int dynamic = a.p.kind == ATTN_POOL_DYNAMIC;
  if (!dynamic) a.p.w.data = a.p.bias.data = NULL;
  const int64_t rows = a.p.kernel ? a.p.stride : y.len ? x.len / y.len + 1 : 1;
  a.run = rows >= ATTN_POOL_ROWS_ ? 1 : ATTN_POOL_ROWS_ / (rows < 8 ? 8 : rows);
  a.runs = y.len / a.run + (y.len % a.run != 0);
  a.columns = dynamic ? attn_round_up_(a.p.kernel, 16) : 0;
  a.one = attn_mul_(x.dim, a.columns);
  a.at_total = attn_piece_(attn_round_up_(x.dim, ATTN_TILE_), 4);
  a.at_wide = attn_add_(a.at_total, attn_piece_(x.dim, 8));
  a.at_z = a.at_wide;
  if (a.p.kind == ATTN_POOL_MAX)
    a.at_z = attn_add_(a.at_wide, attn_piece_(ATTN_POOL_WIDE_ * ATTN_TILE_, 4));
  a.at_bias = attn_add_(a.at_z, attn_piece_(a.columns, 4));
  a.each = attn_add_(a.at_bias, attn_piece_(a.p.bias.data ? a.columns : 0, 4));
  const int64_t items = attn_mul_(attn_mul_(y.batch, y.heads), a.runs);
  if (items == 0) return 1;
  const int pieces = attn_pieces_(s->workers, items);
  const int64_t packed = dynamic ? attn_piece_(attn_mul_(a.p.w.heads, a.one), 4) : 0;
  char *memory = attn_stage_spare_(s, attn_add_(packed, attn_mul_(a.each, pieces)));
  if (!s->run) return 1;
  a.packed = (float *)(void *)memory, a.own = memory + packed;
  if (dynamic) attn_pooled_pack_(&a);
  attn_for_(&s->ctx, pieces, items, attn_pooled_item_, &a);
  return 1;
}

/* attn_pool as a step. */
ATTN_COLD_ int attn_stage_pool_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                const attn_pool_params *params) {
  attn_pooled_ a;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x;
  if (params) a.p = *params;
  return attn_stage_pooled_(s, a);
}

/* ---- the call -------------------------------------------------------------------------------*/

typedef struct attn_pooled_job_ {
  attn_tensor y, x;
  attn_pool_params p;
} attn_pooled_job_;

ATTN_COLD_ int attn_pooled_steps_(attn_stage_ *s, void *job) {
  const attn_pooled_job_ *j = (const attn_pooled_job_ *)job;
  return attn_stage_pool_(s, j->y, j->x, &j->p);
}

ATTN_COLD_ int attn_pooled_check_(attn_error_ *e, attn_pooled_job_ *j, const attn_ctx *ctx,
                                  int query) {
  static const char *const w[] = {ATTN_WORDS_("y"), ATTN_WORDS_("x"), ATTN_WORDS_("params.w"),
                                  ATTN_WORDS_("params.bias")};
  attn_pool_params *p = &j->p;
  attn_span_ arrays[2];
  const int64_t heads = j->y.heads, any = ATTN_ANY_, few = ATTN_ONE_OR_ALL_;
  attn_operand_ op[] = {ATTN_OPERAND_AS_(&j->y, w[0], ATTN_OUT_, any, any, any, any, ""),
                        ATTN_OPERAND_AS_(&j->x, w[1], 0, j->y.batch, heads, any, j->y.dim,
                                         "x must have the batch, heads and dim of y"),
                        ATTN_OPERAND_AS_(&p->w, w[2], 0, 1, few, j->x.dim, p->kernel,
                                         "params.w must be [1, 1 or H, d, kernel]"),
                        ATTN_OPERAND_AS_(&p->bias, w[3], ATTN_OPTIONAL_, 1, few, 1, p->kernel,
                                         "params.bias must be [1, 1 or H, 1, kernel]")};
  if ((int)p->kind < 0 || p->kind >= ATTN_POOL_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_pool_kind");
  const int dynamic = p->kind == ATTN_POOL_DYNAMIC;
  if (!attn_check_operand_(e, &op[0], heads) || !attn_check_operand_(e, &op[1], heads)) return 0;
  if (p->kernel < 0) return attn_reject_(e, ATTN_E_RANGE, "params.kernel must not be negative");
  if (p->stride < 0 || p->stride > p->kernel)
    return attn_reject_(e, ATTN_E_RANGE, "params.stride must lie in 1..kernel, or be 0");
  if (dynamic && p->kernel == 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.kernel must be at least 1 for ATTN_POOL_DYNAMIC");
  if (p->segments && p->kernel)
    return attn_reject_(e, ATTN_E_RANGE, "params.segments are not for blocks of params.kernel");
  if (dynamic && !p->w.data)
    return attn_reject_(e, ATTN_E_NULL, "params.w must be there for ATTN_POOL_DYNAMIC");
  if (!dynamic) p->w.data = p->bias.data = NULL;
  if (dynamic && (!attn_check_operand_(e, &op[2], heads) || !attn_check_operand_(e, &op[3], heads)))
    return 0;
  if (p->kernel && j->y.len != attn_pool_len(j->x.len, 0, p))
    return attn_reject_(e, ATTN_E_SHAPE, "y.len must be attn_pool_len of x.len");
  if (!attn_check_array_(e, p->x_len, j->y.batch, 4, "params.x_len must be aligned to its elements",
                         &arrays[0]) ||
      !attn_check_array_(e, p->segments, j->y.batch, 4,
                         "params.segments must be aligned to its elements", &arrays[1]) ||
      !attn_check_apart_(e, ctx, op, dynamic ? 4 : 2, arrays, 2))
    return 0;
  return query || (attn_check_lens_(e, p->x_len, j->y.batch, j->x.len,
                                    "params.x_len must lie in 0..x.len") &&
                   attn_check_lens_(e, p->segments, j->y.batch, j->y.len,
                                    "params.segments must lie in 0..y.len"));
}

ATTN_COLD_ attn_status attn_pool_call_(attn_tensor y, attn_tensor x, const attn_pool_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_pooled_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (params) j.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_pooled_check_(&e, &j, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_pooled_steps_, &j, "pooled rows", bytes);
}

ATTN_CALL_(attn_pool, (y, x, params), attn_tensor y, attn_tensor x, const attn_pool_params *params)
