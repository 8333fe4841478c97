/* families/compression/poolingformer.h owns Poolingformer: a window, and a wider window of pooled keys, whose
 * results are added.
 *
 * With blocks counted from each query's own window, a whole block is one row of a pooling with stride 1,
 * and what a row sees of these is a run of every xi-th one. So the rows whose windows begin alike modulo
 * xi are one call on views xi apart. The short block at the end of a window is the row's own: a part of
 * one key, merged. */

typedef struct attn_poolingformer_job_ {
  attn_short_ x, y; /* of the levels; y has no o */
  attn_poolingformer_params p;
  int64_t w1, w2, kernel, stride;
} attn_poolingformer_job_;

/* The second level side by side with the first. */
ATTN_COLD_ int attn_poolingformer_beside_(attn_error_ *e, attn_poolingformer_job_ *j,
                                          attn_operand_ *op) {
  static const char *const w[] = {ATTN_WORDS_("params.q2"), ATTN_WORDS_("params.k2"),
                                  ATTN_WORDS_("params.v2")};
  static const char *const rule[] = {
      "params.q2 must be [q.batch, q.heads, q.len, the width of k2]",
      "params.k2 must be [q.batch, a divisor of q.heads, k.len, the width of q2]",
      "params.v2 must be [q.batch, a divisor of q.heads, k.len, v.dim]"};
  attn_poolingformer_params *p = &j->p;
  j->y = j->x;
  if (p->q2.data) j->y.q = p->q2;
  if (p->k2.data) j->y.k = p->k2;
  if (p->v2.data) j->y.v = p->v2;
  attn_tensor *const t[] = {&j->y.q, &j->y.k, &j->y.v};
  for (int i = 0; i < 3; i++) {
    op[i].t = t[i], op[i].w = w[i], op[i].rule = rule[i];
    op[i].batch = j->x.q.batch, op[i].heads = i ? (int64_t)ATTN_DIVIDES_ : j->x.q.heads;
    op[i].len = i ? j->x.k.len : j->x.q.len;
    op[i].dim = i == 0 ? (int64_t)ATTN_ANY_ : i == 1 ? j->y.q.dim : j->x.v.dim;
    if (!attn_check_operand_(e, &op[i], j->x.q.heads)) return 0;
  }
  return 1;
}

/* Behind it: the shapes of what the weights will make. */
ATTN_COLD_ int attn_poolingformer_behind_(attn_error_ *e, attn_poolingformer_job_ *j,
                                          attn_operand_ *op) {
  static const char *const w[] = {ATTN_WORDS_("params.w_q"), ATTN_WORDS_("params.w_k"),
                                  ATTN_WORDS_("params.w_v"), ATTN_WORDS_("params.b_q"),
                                  ATTN_WORDS_("params.b_k"), ATTN_WORDS_("params.b_v")};
  static const char *const rule[] = {
      ATTN_IN_OUT_("params.w_q", "q.heads * v.dim", "q.heads * d2"),
      ATTN_IN_OUT_("params.w_k", "q.heads * v.dim", "(a divisor of q.heads) * d2"),
      ATTN_IN_OUT_("params.w_v", "q.heads * v.dim", "(a divisor of q.heads) * v.dim"),
      "params.b_q must be [1, 1, 1, the width of w_q]",
      "params.b_k must be [1, 1, 1, the width of w_k]",
      "params.b_v must be [1, 1, 1, the width of w_v]"};
  attn_poolingformer_params *p = &j->p;
  attn_tensor *const t[] = {&p->w_q, &p->w_k, &p->w_v, &p->b_q, &p->b_k, &p->b_v};
  attn_tensor *const made[] = {&j->y.q, &j->y.k, &j->y.v};
  const int64_t h = j->x.q.heads, dv = j->x.v.dim;
  if (p->q2.data || p->k2.data || p->v2.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.q2, k2 and v2 must be absent with params.w_q");
  for (int i = 0; i < 3; i++) attn_turn_(t[i], p->w_transposed);
  for (int i = 0; i < 6; i++) {
    if (!attn_short_operand_(e, &op[i], t[i], w[i], i < 3 ? ATTN_MATRIX_ : ATTN_OPTIONAL_, 1,
                             i < 3 ? attn_mul_(h, dv) : 1,
                             i < 3 ? (int64_t)ATTN_ANY_ : t[i - 3]->dim, rule[i]))
      return 0;
    if (i >= 3) continue;
    const int64_t width = i == 0 ? t[0]->dim / h : i == 1 ? j->y.q.dim : dv;
    const int64_t heads = width ? t[i]->dim / width : 0;
    if (heads < 1 || t[i]->dim != heads * width || h % heads || (i == 0 && heads != h))
      return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
    *made[i] = attn_bhtd(NULL, ATTN_F32, j->x.q.batch, heads, j->x.q.len, width);
  }
  j->y.kv_len = j->y.q_len = j->x.q_len;
  j->y.scale = j->x.scale;
  return 1;
}

/* Numbers, with their defaults. */
ATTN_COLD_ int attn_poolingformer_numbers_(attn_error_ *e, attn_poolingformer_job_ *j) {
  const attn_poolingformer_params *p = &j->p;
  const int64_t far = (int64_t)1 << 41;
  for (int n = 0; n < 2; n++) {
    const attn_window *w = n ? &p->window_2 : &p->window_1;
    if (w->left != w->right || w->left < -1 || (!w->on && w->left))
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.window_1 and window_2 must be {0} or attn_window_of(w, w)");
  }
  j->w1 = p->window_1.on ? attn_min64_(attn_reach_(&p->window_1, p->window_1.left), far) : 128;
  j->w2 = p->window_2.on ? attn_min64_(attn_reach_(&p->window_2, p->window_2.left), far) : 512;
  if (p->kernel < 0) return attn_reject_(e, ATTN_E_RANGE, "params.kernel must not be negative");
  j->kernel = p->kernel ? p->kernel : 5;
  j->stride = p->stride ? p->stride : attn_min64_(j->kernel, 4);
  if (j->stride < 1 || j->kernel < j->stride)
    return attn_reject_(e, ATTN_E_RANGE, "params.stride must lie in 1..kernel");
  if ((int)p->pool < 0 || p->pool >= ATTN_POOL_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.pool must be an attn_pool_kind");
  if ((int)p->align < 0 || p->align >= ATTN_POOLINGFORMER_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.align must be an attn_poolingformer_align");
  return 1;
}

ATTN_COLD_ int attn_poolingformer_check_(attn_error_ *e, attn_poolingformer_job_ *j,
                                         const attn_poolingformer_params *params,
                                         const attn_ctx *ctx, const attn_table_ **table,
                                         int *workers, int data) {
  static const char *const w[] = {ATTN_WORDS_("params.pool_k"), ATTN_WORDS_("params.pool_v"),
                                  ATTN_WORDS_("params.pool_b_k"), ATTN_WORDS_("params.pool_b_v")};
  static const char *const rule[] = {
      "params.pool_k must be [1, 1 or heads of the pooled keys, their width, kernel]",
      "params.pool_v must be [1, 1 or heads of the pooled values, their width, kernel]",
      "params.pool_b_k must be [1, 1 or heads of the pooled keys, 1, kernel]",
      "params.pool_b_v must be [1, 1 or heads of the pooled values, 1, kernel]"};
  attn_poolingformer_params *p = &j->p;
  attn_operand_ op[ATTN_SHORT_N_ + 10];
  attn_span_ lens[2];
  memset(op, 0, sizeof op);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  j->x.kv_len = p->kv_len, j->x.q_len = p->q_len, j->x.scale = p->scale;
  int n = ATTN_SHORT_N_;
  if (!attn_short_check_(e, &j->x, op, lens, p->has_q_off, p->q_off, data) ||
      !attn_poolingformer_numbers_(e, j))
    return 0;
  if (!p->w_q.data && (p->w_k.data || p->w_v.data || p->b_q.data || p->b_k.data || p->b_v.data))
    return attn_reject_(e, ATTN_E_NULL, "params.w_q must be there for w_k, w_v and their biases");
  if (p->w_q.data ? !attn_poolingformer_behind_(e, j, op + n)
                  : !attn_poolingformer_beside_(e, j, op + n))
    return 0;
  n += p->w_q.data ? 6 : 3;
  if (p->pool == ATTN_POOL_DYNAMIC) {
    attn_tensor *const t[] = {&p->pool_k, &p->pool_v, &p->pool_b_k, &p->pool_b_v};
    for (int i = 0; i < 4; i++, n++) {
      const attn_tensor *of = i % 2 ? &j->y.v : &j->y.k;
      if (!attn_short_operand_(e, &op[n], t[i], w[i], i < 2 ? 0 : ATTN_OPTIONAL_, of->heads,
                               i < 2 ? of->dim : 1, j->kernel, rule[i]))
        return 0;
    }
  } else { /* a block of all rows is as good as a longer one */
    j->kernel = attn_min64_(j->kernel, attn_max64_(j->y.k.len, 1));
    j->stride = attn_min64_(j->stride, j->kernel);
  }
  return attn_check_apart_(e, ctx, op, n, lens, 2);
}

/* ---- the second level on a grid ---------------------------------------------------------------*/

ATTN_FUNC_ void attn_poolingformer_grid_(const void *user, int64_t b, int64_t row, int64_t *lo,
                                         int64_t *hi) {
  const attn_poolingformer_job_ *j = (const attn_poolingformer_job_ *)user;
  const int64_t n = attn_short_keys_(&j->y, b), p = row + j->y.q_off, xi = j->stride;
  const int64_t first = p - j->w2, last = j->p.causal ? p : p + j->w2; /* rows of the window */
  *lo = first > 0 ? (first + xi - 1) / xi : 0;
  if (last >= n - 1)
    *hi = n == 0 ? 0 : n <= j->kernel ? 1 : 1 + (n - j->kernel + xi - 1) / xi;
  else
    *hi = last + 1 >= j->kernel ? 1 + (last + 1 - j->kernel) / xi : 0;
}

/* Pooled rows of x, a block every `stride` rows. */
ATTN_COLD_ int attn_poolingformer_pool_(attn_stage_ *s, const attn_poolingformer_job_ *j,
                                        attn_tensor *y, attn_tensor x, int64_t stride, int value) {
  attn_pool_params p;
  memset(&p, 0, sizeof p);
  p.kind = j->p.pool, p.kernel = j->kernel, p.stride = stride, p.x_len = j->y.kv_len;
  p.w = value ? j->p.pool_v : j->p.pool_k;
  p.bias = value ? j->p.pool_b_v : j->p.pool_b_k;
  *y = attn_stage_tensor_(s, x.batch, x.heads, attn_pool_len(x.len, 0, &p), x.dim);
  return y->len == 0 || attn_stage_pool_(s, *y, x, &p);
}

/* ---- the second level on each row's window ------------------------------------------------------*/

/* Blocks of row i's window: how many are whole; the short one at the end, if there is one. */
typedef struct attn_blocks_ {
  int64_t first, whole; /* the window's first row */
  int64_t start, end;   /* of the short one; equal: none */
} attn_blocks_;

ATTN_FUNC_ attn_blocks_ attn_poolingformer_blocks_(const attn_poolingformer_job_ *j, int64_t b,
                                                   int64_t i) {
  const int64_t n = attn_short_keys_(&j->y, b), p = i + j->y.q_off;
  const int64_t end = attn_min64_(n, (j->p.causal ? p : p + j->w2) + 1);
  attn_blocks_ a = {attn_max64_(p - j->w2, 0), 0, 0, 0};
  const int64_t rows = end - a.first;
  if (rows <= 0 || (j->y.q_len && i >= j->y.q_len[b])) return a;
  if (rows >= j->kernel) a.whole = 1 + (rows - j->kernel) / j->stride;
  if (a.whole == 0 || (rows - j->kernel) % j->stride)
    a.start = a.first + a.whole * j->stride, a.end = end;
  return a;
}

/* Rows of a view of every `step`-th one. */
typedef struct attn_every_ {
  const attn_poolingformer_job_ *j;
  int64_t first, step;
  int slides; /* row t of the view begins with key t of its view, else with key 0 */
} attn_every_;

ATTN_FUNC_ void attn_poolingformer_whole_(const void *user, int64_t b, int64_t row, int64_t *lo,
                                          int64_t *hi) {
  const attn_every_ *a = (const attn_every_ *)user;
  *lo = a->slides ? row : 0;
  *hi = *lo + attn_poolingformer_blocks_(a->j, b, a->first + row * a->step).whole;
}

/* Rows from, from + step, .. */
ATTN_COLD_ attn_tensor attn_every_row_(attn_tensor t, int64_t from, int64_t step) {
  const int64_t n = t.len > from ? (t.len - from - 1) / step + 1 : 0;
  t = attn_stage_rows_(t, from, n);
  t.stride_len = n > 1 ? t.stride_len * step : 0;
  return t;
}

/* o2 and lse over the whole blocks k, v. */
ATTN_COLD_ int attn_poolingformer_wholes_(attn_stage_ *s, const attn_poolingformer_job_ *j,
                                          attn_tensor o2, attn_tensor lse, attn_tensor k,
                                          attn_tensor v) {
  const int64_t t = j->y.q.len, xi = j->stride;
  /* windows of the rows before `edge` begin with row 0, that of row edge with row `row` */
  const int64_t edge = attn_max64_(0, attn_min64_(t, j->w2 - j->y.q_off + 1));
  const int64_t row = edge + j->y.q_off - j->w2;
  attn_sdpa_params p = attn_short_params_(&j->y);
  p.q_len = NULL;
  if (edge > 0) {
    const attn_every_ a = {j, 0, 1, 0};
    p.lse = attn_stage_rows_(lse, 0, edge);
    if (!attn_stage_ranged_(s, attn_stage_rows_(o2, 0, edge), attn_stage_rows_(j->y.q, 0, edge),
                            attn_every_row_(k, 0, xi), attn_every_row_(v, 0, xi), &p,
                            attn_poolingformer_whole_, &a))
      return 0;
  }
  for (int64_t c = 0; c < xi && edge + c < t; c++) {
    const attn_every_ a = {j, edge + c, xi, 1};
    p.lse = attn_every_row_(lse, a.first, xi);
    if (!attn_stage_ranged_(s, attn_every_row_(o2, a.first, xi),
                            attn_every_row_(j->y.q, a.first, xi), attn_every_row_(k, row + c, xi),
                            attn_every_row_(v, row + c, xi), &p, attn_poolingformer_whole_, &a))
      return 0;
  }
  return 1;
}

enum { ATTN_TAIL_ROWS_ = 64 };

/* The short blocks of all rows: the scores of the keys as LSE, or the values. */
typedef struct attn_tail_ {
  const attn_table_ *table;
  const attn_poolingformer_job_ *j;
  attn_tensor x, w, bias, lse, y; /* lse or y is absent */
  double scale;
  int64_t runs;
  char *memory;
  int64_t each, at_sum, at_w, at_z;
} attn_tail_;

/* sum[c] = the pooled rows start .. end - 1 */
ATTN_FUNC_ void attn_tail_pool_(const attn_tail_ *a, char *own, double *sum, int64_t b, int64_t h,
                                int64_t start, int64_t end) {
  float *row = (float *)(void *)own, *w = (float *)(void *)(own + a->at_w);
  float *z = (float *)(void *)(own + a->at_z);
  const int64_t d = a->x.dim, n = end - start, kernel = a->j->kernel;
  const attn_pool_kind kind = a->j->p.pool;
  double total = (double)n;
  if (kind == ATTN_POOL_DYNAMIC) {
    const int64_t centre = attn_min64_(start + (kernel - 1) / 2, end - 1);
    float top = -INFINITY;
    a->table->widen(row, attn_at_(&a->x, b, h, centre), 0, NULL, 1, d, a->x.dtype, NULL);
    for (int64_t r = 0; r < n; r++) {
      z[r] = w[d * kernel + r];
      for (int64_t c = 0; c < d; c++) z[r] += row[c] * w[c * kernel + r];
      if (z[r] > top || z[r] != z[r]) top = z[r];
    }
    for (int64_t r = 0; r < n; r++) z[r] -= top;
    a->table->exp(z, z, n);
    total = 0.0;
    for (int64_t r = 0; r < n; r++) total += (double)z[r];
  }
  for (int64_t r = 0; r < n; r++) {
    const double by = kind == ATTN_POOL_DYNAMIC ? (double)z[r] : 1.0;
    a->table->widen(row, attn_at_(&a->x, b, h, start + r), 0, NULL, 1, d, a->x.dtype, NULL);
    for (int64_t c = 0; c < d; c++) {
      const double x = (double)row[c];
      if (kind != ATTN_POOL_MAX)
        sum[c] = (r ? sum[c] : 0.0) + by * x;
      else if (r == 0 || x > sum[c] || x != x)
        sum[c] = x;
    }
  }
  for (int64_t c = 0; c < d && kind != ATTN_POOL_MAX; c++) sum[c] /= total;
}

ATTN_FUNC_ void attn_tail_item_(void *job, int worker, int64_t index) {
  const attn_tail_ *a = (const attn_tail_ *)job;
  const attn_poolingformer_job_ *j = a->j;
  const attn_tensor *q = &j->y.q, *bias = &a->bias;
  const int64_t unit = index / a->runs, b = unit / a->x.heads, h = unit % a->x.heads;
  const int64_t i0 = index % a->runs * ATTN_TAIL_ROWS_, d = a->x.dim, group = q->heads / a->x.heads;
  char *own = a->memory + worker * a->each;
  float *row = (float *)(void *)own, *w = (float *)(void *)(own + a->at_w);
  double *sum = (double *)(void *)(own + a->at_sum);
  if (j->p.pool == ATTN_POOL_DYNAMIC) { /* with the bias as the last row */
    const int64_t n = j->kernel;
    a->table->widen(w, attn_at_(&a->w, 0, a->w.heads > 1 ? h : 0, 0), a->w.stride_len, NULL, d, n,
                    a->w.dtype, NULL);
    memset(w + d * n, 0, (size_t)n * sizeof *w);
    if (bias->data)
      a->table->widen(w + d * n, attn_at_(bias, 0, bias->heads > 1 ? h : 0, 0), 0, NULL, 1, n,
                      bias->dtype, NULL);
  }
  for (int64_t i = i0; i < q->len && i < i0 + ATTN_TAIL_ROWS_; i++) {
    const attn_blocks_ blocks = attn_poolingformer_blocks_(j, b, i);
    const int some = blocks.end > blocks.start;
    if (some) attn_tail_pool_(a, own, sum, b, h, blocks.start, blocks.end);
    if (a->y.data) {
      float *y = (float *)(void *)attn_at_(&a->y, b, h, i);
      for (int64_t c = 0; c < d; c++) y[c] = some ? (float)sum[c] : 0.0f;
      continue;
    }
    for (int64_t g = h * group; g < (h + 1) * group; g++) {
      float x = -INFINITY;
      if (some) {
        double dot = 0.0;
        a->table->widen(row, attn_at_(q, b, g, i), 0, NULL, 1, d, q->dtype, NULL);
        for (int64_t c = 0; c < d; c++) dot += (double)row[c] * sum[c];
        x = (float)(dot * a->scale);
      }
      memcpy(attn_at_(&a->lse, b, g, i), &x, sizeof x);
    }
  }
}

ATTN_COLD_ int attn_stage_tails_(attn_stage_ *s, const attn_poolingformer_job_ *j, attn_tensor lse,
                                 attn_tensor y) {
  const int dynamic = j->p.pool == ATTN_POOL_DYNAMIC;
  attn_tail_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.j = j, a.lse = lse, a.y = y;
  a.x = y.data ? j->y.v : j->y.k;
  a.w = y.data ? j->p.pool_v : j->p.pool_k;
  a.bias = y.data ? j->p.pool_b_v : j->p.pool_b_k;
  a.scale = (double)j->y.scale;
  if (j->y.scale == 0.0f)
    a.scale = attn_to_bits_(j->y.scale) ? 0.0 : 1.0 / sqrt((double)j->y.q.dim);
  a.runs = (j->y.q.len - 1) / ATTN_TAIL_ROWS_ + 1;
  a.at_sum = attn_piece_(a.x.dim, 4);
  a.at_w = attn_add_(a.at_sum, attn_piece_(a.x.dim, 8));
  a.at_z = attn_add_(a.at_w, dynamic ? attn_piece_(attn_mul_(a.x.dim + 1, j->kernel), 4) : 0);
  a.each = attn_add_(a.at_z, dynamic ? attn_piece_(j->kernel, 4) : 0);
  return attn_stage_for_(s, attn_mul_(attn_mul_(a.x.batch, a.x.heads), a.runs), attn_tail_item_, &a,
                         a.each, &a.memory);
}

/* ---- the steps --------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_poolingformer_second_(attn_stage_ *s, const attn_poolingformer_job_ *j,
                                          attn_tensor o2) {
  const attn_short_ *y = &j->y;
  const int grid = j->p.align == ATTN_POOLINGFORMER_GRID;
  attn_tensor k, v, none;
  memset(&none, 0, sizeof none);
  if (!attn_poolingformer_pool_(s, j, &k, y->k, grid ? j->stride : 1, 0) ||
      !attn_poolingformer_pool_(s, j, &v, y->v, grid ? j->stride : 1, 1))
    return 0;
  if (grid) {
    const attn_sdpa_params p = attn_short_params_(y);
    return attn_stage_ranged_(s, o2, y->q, k, v, &p, attn_poolingformer_grid_, j);
  }
  const attn_tensor lse = attn_stage_tensor_(s, o2.batch, o2.heads, o2.len, 1);
  const attn_tensor one = attn_stage_tensor_(s, o2.batch, o2.heads, o2.len, 1);
  const attn_tensor own = attn_stage_tensor_(s, o2.batch, y->v.heads, o2.len, o2.dim);
  return attn_poolingformer_wholes_(s, j, o2, lse, k, v) && attn_stage_tails_(s, j, one, none) &&
         attn_stage_tails_(s, j, none, own) && attn_stage_merge_(s, o2, o2, lse, own, one);
}

/* Heads side by side as heads. */
ATTN_COLD_ attn_tensor attn_poolingformer_heads_(attn_tensor t, int64_t heads) {
  t.dim /= heads, t.heads = heads, t.stride_head = t.dim;
  return t;
}

/* q2, k2 or v2 */
ATTN_COLD_ int attn_poolingformer_project_(attn_stage_ *s, attn_tensor *y, attn_tensor x,
                                           attn_tensor w, attn_tensor bias) {
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  if (bias.data) p.bias = attn_poolingformer_heads_(bias, y->heads);
  *y = attn_stage_tensor_(s, y->batch, y->heads, y->len, y->dim);
  return attn_stage_gemm_(s, *y, x, attn_weight_heads_(w, y->heads), &p);
}

ATTN_COLD_ int attn_poolingformer_steps_(attn_stage_ *s, void *job) {
  attn_poolingformer_job_ *j = (attn_poolingformer_job_ *)job;
  const attn_poolingformer_params *g = &j->p;
  const attn_short_ *x = &j->x;
  const int64_t b = x->q.batch, h = x->q.heads, t = x->q.len, dv = x->v.dim;
  const attn_tensor o2 = attn_stage_tensor_(s, b, h, t, dv);
  attn_tensor o1, all;
  if (g->w_q.data) {
    all = attn_stage_tensor_(s, b, 1, t, attn_mul_(h, dv));
    o1 = attn_bthd(all.data, ATTN_F32, b, t, h, dv);
  } else {
    all = o1 = attn_stage_part_(s, &x->o);
  }
  attn_sdpa_params p = attn_short_params_(x);
  p.kv_len = x->kv_len, p.has_q_off = 1, p.q_off = x->q_off;
  p.window = attn_window_of(j->w1, j->w1);
  p.causal = g->causal != 0;
  return attn_stage_sdpa_(s, o1, x->q, x->k, x->v, &p) &&
         (!g->w_q.data || (attn_poolingformer_project_(s, &j->y.q, all, g->w_q, g->b_q) &&
                           attn_poolingformer_project_(s, &j->y.k, all, g->w_k, g->b_k) &&
                           attn_poolingformer_project_(s, &j->y.v, all, g->w_v, g->b_v))) &&
         attn_poolingformer_second_(s, j, o2) && attn_stage_add_rows_(s, x->o, o1, o2);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_poolingformer_job_call_(attn_poolingformer_job_ *j,
                                                    const attn_poolingformer_params *params,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_poolingformer_check_(&e, j, params, ctx, &table, &workers, !bytes)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (!attn_short_empty_(&j->x))
      attn_stage_call_(&s, ctx, attn_poolingformer_steps_, j,
                       j->p.w_q.data ? "window, then pooled window" : "window and pooled window",
                       bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_poolingformer_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                attn_tensor v,
                                                const attn_poolingformer_params *params,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_poolingformer_job_ j;
  memset(&j, 0, sizeof j);
  j.x.o = o, j.x.q = q, j.x.k = k, j.x.v = v;
  return attn_poolingformer_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_poolingformer, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_poolingformer_params *params)
