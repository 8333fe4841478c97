/* calls/inverse.h owns inverses of small matrices: the iterative pseudo-inverse, and the solution
 * of linear systems by elimination. */

typedef struct attn_pinv_ {
  const attn_table_ *table;
  attn_tensor z, a;
  int64_t iterations, width; /* floats of a row, in whole vectors */
  double *sums; /* the largest column and row sum that all start with, or null: their own */
  char *own;    /* of the workers: five matrices */
  int64_t each;
} attn_pinv_;

/* y = x w, all m x m with rows of `width` floats, then y = by y + plus I */
ATTN_FUNC_ void attn_pinv_times_(const attn_pinv_ *p, float *y, const float *x, const float *w,
                                 float by, float plus) {
  const int64_t m = p->a.dim, width = p->width;
  attn_on_(dense, p->table)->gemm(y, width, m, x, width, 1, w, width, m, m, 1);
  for (int64_t i = 0; i < m; i++) {
    attn_on_(dense, p->table)->activate(y + i * width, m, NULL, by, ATTN_ACT_NONE);
    if (plus != 0.0f) y[i * width + i] += plus;
  }
}

/* The largest column sum and the largest row sum of |a|. */
ATTN_FUNC_ void attn_pinv_sums_(double sums[2], const float *a, int64_t m, int64_t width) {
  double rows = 0.0, columns = 0.0;
  for (int64_t i = 0; i < m; i++) {
    double row = 0.0, column = 0.0;
    for (int64_t j = 0; j < m; j++) {
      row += fabs((double)a[i * width + j]), column += fabs((double)a[j * width + i]);
    }
    if (!(row <= rows)) rows = row; /* a NaN stays: what follows is one anyway */
    if (!(column <= columns)) columns = column;
  }
  sums[0] = columns, sums[1] = rows;
}

/* z = a^T / their product */
ATTN_FUNC_ void attn_pinv_start_(float *z, const float *a, int64_t m, int64_t width,
                                 const double sums[2]) {
  const double by = sums[1] > 0.0 ? 1.0 / (sums[1] * sums[0]) : sums[1];
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) z[i * width + j] = (float)((double)a[j * width + i] * by);
}

ATTN_FUNC_ void attn_pinv_item_(void *job, int worker, int64_t index) {
  const attn_pinv_ *p = (const attn_pinv_ *)job;
  const int64_t b = index / p->a.heads, h = index % p->a.heads, m = p->a.dim, width = p->width;
  float *a = (float *)(void *)(p->own + worker * p->each);
  float *z = a + m * width, *y = z + m * width, *s = y + m * width, *t = s + m * width;
  memset(a, 0, (size_t)(5 * m * width) * sizeof *a);
  for (int64_t i = 0; i < m; i++)
    p->table->widen(a + i * width, attn_at_(&p->a, b, h, i), 0, NULL, 1, m, p->a.dtype, NULL);
  double own[2];
  if (!p->sums) attn_pinv_sums_(own, a, m, width);
  attn_pinv_start_(z, a, m, width, p->sums ? p->sums : own);
  for (int64_t it = 0; it < p->iterations; it++) {
    float *old = z;
    attn_pinv_times_(p, y, a, z, 1.0f, 0.0f);
    for (int64_t i = 0; i < m; i++) {
      for (int64_t j = 0; j < m; j++) s[i * width + j] = 0.0f - y[i * width + j];
      s[i * width + i] += 7.0f;
    }
    attn_pinv_times_(p, t, y, s, -1.0f, 15.0f);
    attn_pinv_times_(p, s, y, t, -1.0f, 13.0f);
    attn_pinv_times_(p, t, z, s, 0.25f, 0.0f);
    z = t, t = old;
  }
  for (int64_t i = 0; i < m; i++)
    p->table->blend(attn_at_(&p->z, b, h, i), z + i * width, NULL, p->z.dtype, ATTN_F32, ATTN_F32,
                    m, 1.0f, 0.0f);
}

/* sums becomes the largest of itself and of the sums of matrices a, f32 in memory; a NaN stays. */
ATTN_COLD_ void attn_pinv_most_(double sums[2], attn_tensor a) {
  for (int64_t u = 0; u < a.batch * a.heads; u++) {
    double own[2];
    const char *x = attn_at_(&a, u / a.heads, u % a.heads, 0);
    attn_pinv_sums_(own, (const float *)(const void *)x, a.dim, a.stride_len);
    for (int i = 0; i < 2; i++)
      if (!(own[i] <= sums[i])) sums[i] = own[i] > sums[i] || own[i] != own[i] ? own[i] : sums[i];
  }
}

/* attn_pinv as a step; its arguments have been judged. sums: null, or what all matrices start with. */
ATTN_COLD_ int attn_stage_pinv_(attn_stage_ *s, attn_tensor z, attn_tensor a, int64_t iterations,
                                double *sums) {
  attn_pinv_ p;
  memset(&p, 0, sizeof p);
  p.table = s->table, p.z = z, p.a = a, p.iterations = iterations, p.sums = sums;
  p.width =
      attn_round_up_(a.dim, 16) | 16; /* rows a power of two apart share few sets of a cache */
  p.each = attn_piece_(attn_mul_(attn_mul_(5, a.dim), p.width), 4);
  const int64_t items = a.len > 0 ? attn_mul_(a.batch, a.heads) : 0;
  return attn_stage_for_(s, items, attn_pinv_item_, &p, p.each, &p.own);
}

/* ---- linear systems -------------------------------------------------------------------------*/

enum { ATTN_SOLVE_COLS_ = 8 };
#define ATTN_SOLVE_LEAST_ 1e-12

typedef struct attn_solve_ {
  const attn_table_ *table;
  attn_tensor x, a, b;
  double lambda;
  int64_t m, slices;
  double *lu;     /* [matrix][m][m] */
  int64_t *pivot; /* [matrix][m]; pivot[0] < 0: no inverse */
  char *own;      /* of the workers */
  int64_t each;
} attn_solve_;

/* One matrix into its factors: rows of L below the diagonal, of U from it on. */
ATTN_FUNC_ void attn_solve_factor_(void *job, int worker, int64_t index) {
  const attn_solve_ *p = (const attn_solve_ *)job;
  const int64_t m = p->m;
  double *lu = p->lu + index * m * m, most = 0.0;
  int64_t *pivot = p->pivot + index * m;
  float *row = (float *)(void *)(p->own + worker * p->each);
  for (int64_t i = 0; i < m; i++) {
    p->table->widen(row, attn_at_(&p->a, index / p->a.heads, index % p->a.heads, i), 0, NULL, 1, m,
                    p->a.dtype, NULL);
    for (int64_t j = 0; j < m; j++) {
      const double x = (double)row[j] + (i == j ? p->lambda : 0.0);
      lu[i * m + j] = x;
      if (!(fabs(x) <= most)) most = fabs(x);
    }
  }
  for (int64_t k = 0; k < m; k++) {
    int64_t best = k;
    for (int64_t i = k + 1; i < m; i++)
      if (fabs(lu[i * m + k]) > fabs(lu[best * m + k])) best = i;
    const double top = lu[best * m + k];
    pivot[k] = best;
    if (!(fabs(top) >= ATTN_SOLVE_LEAST_ * most) || top == 0.0 || !(most < (double)INFINITY)) {
      pivot[0] = -1;
      return;
    }
    for (int64_t j = 0; j < m && best != k; j++) {
      const double t = lu[k * m + j];
      lu[k * m + j] = lu[best * m + j], lu[best * m + j] = t;
    }
    for (int64_t i = k + 1; i < m; i++) {
      const double by = lu[i * m + k] / top;
      lu[i * m + k] = by;
      for (int64_t j = k + 1; j < m; j++) lu[i * m + j] -= by * lu[k * m + j];
    }
  }
}

/* Eight columns of one system. */
ATTN_FUNC_ void attn_solve_item_(void *job, int worker, int64_t index) {
  const attn_solve_ *p = (const attn_solve_ *)job;
  enum { N = ATTN_SOLVE_COLS_ };
  const int64_t m = p->m, unit = index / p->slices, c0 = index % p->slices * N;
  const int64_t b = unit / p->a.heads, h = unit % p->a.heads;
  const int64_t cols = p->x.dim - c0 < N ? p->x.dim - c0 : (int64_t)N;
  const double *lu = p->lu + unit * m * m;
  const int64_t *pivot = p->pivot + unit * m;
  double *x = (double *)(void *)(p->own + worker * p->each);
  float row[N] = {0};
  for (int64_t i = 0; i < m; i++) {
    p->table->widen(row, attn_at_(&p->b, b, h, i) + attn_bytes_(p->b.dtype, c0), 0, NULL, 1, cols,
                    p->b.dtype, NULL);
    for (int c = 0; c < N; c++) x[i * N + c] = (double)row[c];
  }
  for (int64_t i = 0; i < m; i++)
    for (int c = 0; c < N && pivot[i] != i; c++) {
      const double t = x[i * N + c];
      x[i * N + c] = x[pivot[i] * N + c], x[pivot[i] * N + c] = t;
    }
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < i; j++)
      for (int c = 0; c < N; c++) x[i * N + c] -= lu[i * m + j] * x[j * N + c];
  for (int64_t i = m - 1; i >= 0; i--) {
    for (int64_t j = i + 1; j < m; j++)
      for (int c = 0; c < N; c++) x[i * N + c] -= lu[i * m + j] * x[j * N + c];
    for (int c = 0; c < N; c++) x[i * N + c] /= lu[i * m + i];
  }
  for (int64_t i = 0; i < m; i++) {
    for (int c = 0; c < N; c++) row[c] = (float)x[i * N + c];
    p->table->blend(attn_at_(&p->x, b, h, i) + attn_bytes_(p->x.dtype, c0), row, NULL, p->x.dtype,
                    ATTN_F32, ATTN_F32, cols, 1.0f, 0.0f);
  }
}

/* attn_solve as a step; its arguments have been judged but for the pivots. */
ATTN_COLD_ int attn_stage_solve_(attn_stage_ *s, attn_tensor x, attn_tensor a, attn_tensor b,
                                 double lambda) {
  attn_solve_ p;
  memset(&p, 0, sizeof p);
  p.table = s->table, p.x = x, p.a = a, p.b = b, p.lambda = lambda, p.m = a.len;
  p.slices = x.dim / ATTN_SOLVE_COLS_ + (x.dim % ATTN_SOLVE_COLS_ != 0);
  p.each = attn_piece_(attn_mul_(p.m, ATTN_SOLVE_COLS_), 8);
  const int64_t units = p.m > 0 ? attn_mul_(a.batch, a.heads) : 0;
  const int64_t items = attn_mul_(units, p.slices);
  const int64_t lu = attn_piece_(attn_mul_(units, attn_mul_(p.m, p.m)), 8);
  const int64_t pivots = attn_piece_(attn_mul_(units, p.m), 8);
  if (units == 0) return 1;
  const int pieces = attn_pieces_(s->workers, items);
  char *memory = attn_stage_spare_(s, attn_add_(attn_add_(lu, pivots), attn_mul_(p.each, pieces)));
  if (!s->run) return 1;
  p.lu = (double *)(void *)memory, p.pivot = (int64_t *)(void *)(memory + lu);
  p.own = memory + lu + pivots;
  attn_for_(&s->ctx, attn_pieces_(pieces, units), units, attn_solve_factor_, &p);
  for (int64_t i = 0; i < units; i++)
    if (p.pivot[i * p.m] < 0)
      return attn_reject_(s->e, ATTN_E_NUMERIC,
                          "a + lambda I must not be singular: a pivot is below 1e-12 times its "
                          "largest entry, or a is not finite");
  attn_for_(&s->ctx, pieces, items, attn_solve_item_, &p);
  return 1;
}
#undef ATTN_SOLVE_LEAST_

/* ---- the calls ------------------------------------------------------------------------------*/

/* attn_pinv has no b. */
typedef struct attn_inverse_job_ {
  attn_tensor x, a, b;
  double lambda;
  int64_t iterations;
  int solve;
} attn_inverse_job_;

ATTN_COLD_ int attn_inverse_steps_(attn_stage_ *s, void *job) {
  const attn_inverse_job_ *j = (const attn_inverse_job_ *)job;
  return j->solve ? attn_stage_solve_(s, j->x, j->a, j->b, j->lambda)
                  : attn_stage_pinv_(s, j->x, j->a, j->iterations, NULL);
}

ATTN_COLD_ int attn_inverse_check_(attn_error_ *e, attn_inverse_job_ *j, const attn_ctx *ctx) {
  static const char *const w[] = {ATTN_WORDS_("x"), ATTN_WORDS_("a"), ATTN_WORDS_("b"),
                                  ATTN_WORDS_("z")};
  const int64_t any = ATTN_ANY_, m = j->a.len;
  attn_operand_ op[] = {
      ATTN_OPERAND_AS_(
          &j->x, j->solve ? w[0] : w[3], ATTN_OUT_, j->a.batch, j->a.heads, m, j->solve ? any : m,
          j->solve ? "x must have the batch, heads and len of a" : "z must have the shape of a"),
      ATTN_OPERAND_AS_(&j->a, w[1], 0, any, any, any, m,
                       "a must be square: a.dim must equal a.len"),
      ATTN_OPERAND_AS_(&j->b, w[2], j->solve ? 0 : ATTN_OPTIONAL_, j->x.batch, j->x.heads, j->x.len,
                       j->x.dim, "b must have the shape of x")};
  if (!attn_check_given_(e, op, 3)) return 0;
  for (int i = 0; i < 3; i++)
    if (!attn_check_operand_(e, &op[(i + 1) % 3], j->a.heads)) return 0;
  if (j->iterations < 0) return attn_reject_(e, ATTN_E_RANGE, "iterations must not be negative");
  if (!(j->lambda - j->lambda == 0.0))
    return attn_reject_(e, ATTN_E_VALUE, "lambda must be finite");
  attn_operand_ *in = j->solve ? &op[2] : &op[1];
  if (attn_same_view_(in->t, &j->x)) in->span.lo = in->span.hi = 0; /* in place */
  return attn_check_apart_(e, ctx, op, 3, NULL, 0);
}

ATTN_COLD_ attn_status attn_inverse_call_(attn_inverse_job_ *j, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  int workers = 1;
  if (attn_check_ctx_(&e, ctx, &table, &workers)) (void)attn_inverse_check_(&e, j, ctx);
  return attn_step_call_(&e, table, workers, ctx, attn_inverse_steps_, j,
                         j->solve ? "elimination" : "iterated products", bytes);
}

ATTN_FUNC_ attn_inverse_job_ attn_inverse_of_(attn_tensor x, attn_tensor a) {
  attn_inverse_job_ j;
  memset(&j, 0, sizeof j);
  j.x = x, j.a = a;
  return j;
}

ATTN_PUB_ attn_status attn_pinv(attn_tensor z, attn_tensor a, int64_t iterations, attn_ctx *ctx) {
  attn_inverse_job_ j = attn_inverse_of_(z, a);
  j.iterations = iterations;
  return attn_inverse_call_(&j, ctx, NULL);
}
ATTN_PUB_COLD_ size_t attn_pinv_workspace(attn_tensor z, attn_tensor a, int64_t iterations,
                                          const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  attn_inverse_job_ j = attn_inverse_of_(z, a);
  size_t bytes = 0;
  j.iterations = iterations;
  const attn_status status = attn_inverse_call_(&j, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

ATTN_PUB_ attn_status attn_solve(attn_tensor x, attn_tensor a, attn_tensor b, double lambda,
                                 attn_ctx *ctx) {
  attn_inverse_job_ j = attn_inverse_of_(x, a);
  j.b = b, j.lambda = lambda, j.solve = 1;
  return attn_inverse_call_(&j, ctx, NULL);
}
ATTN_PUB_COLD_ size_t attn_solve_workspace(attn_tensor x, attn_tensor a, attn_tensor b,
                                           double lambda, const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  attn_inverse_job_ j = attn_inverse_of_(x, a);
  size_t bytes = 0;
  j.b = b, j.lambda = lambda, j.solve = 1;
  const attn_status status = attn_inverse_call_(&j, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
