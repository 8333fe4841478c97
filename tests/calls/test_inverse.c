/* tests/calls/test_inverse.c owns the pseudo-inverse and linear systems: against float64, what follows from
 * their formulas, singular matrices, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor x, a, b;
  double lambda;
  int64_t iterations;
  int solve;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->solve ? attn_solve(s->x, s->a, s->b, s->lambda, ctx)
                  : attn_pinv(s->x, s->a, s->iterations, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->solve ? attn_solve_workspace(s->x, s->a, s->b, s->lambda, ctx)
                  : attn_pinv_workspace(s->x, s->a, s->iterations, ctx);
}

/* Rows of a are a softmax of scores with this spread; n = 0: the pseudo-inverse. */
static scene *build(int64_t batch, int64_t heads, int64_t m, int64_t n, double spread,
                    attn_dtype a_type, attn_dtype x_type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->solve = n > 0, s->iterations = 6, s->lambda = 1;
  s->a = drawn(a_type, TEST_PADDED, batch, heads, m, m, spread, rng);
  for (int64_t r = 0; r < batch * heads * m; r++) {
    const int64_t b = r / m / heads, h = r / m % heads, i = r % m;
    double sum = 0;
    for (int64_t j = 0; j < m; j++) sum += exp(oracle_get(&s->a, b, h, i, j) + (i == j));
    for (int64_t j = 0; j < m; j++)
      oracle_set(&s->a, b, h, i, j, exp(oracle_get(&s->a, b, h, i, j) + (i == j)) / sum);
  }
  if (n) s->b = drawn(x_type, TEST_NEGATIVE, batch, heads, m, n, 1, rng);
  s->x = output(x_type, TEST_PADDED, batch, heads, m, n ? n : m, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->x;
  return s;
}

/* y = x w, m x m. */
static void times(double *y, const double *x, const double *w, int64_t m) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) {
      double sum = 0;
      for (int64_t k = 0; k < m; k++) sum += x[i * m + k] * w[k * m + j];
      y[i * m + j] = sum;
    }
}

/* The iteration in float64; returns the largest |entry| of any Z. */
static double iterate(double *z, const scene *s, int64_t b, int64_t h) {
  const int64_t m = s->a.len;
  const size_t size = (size_t)(m * m) * sizeof(double);
  double *a = test_mem(size), *y = test_mem(size), *t = test_mem(size), *u = test_mem(size);
  double rows = 0, columns = 0, most = 0;
  for (int64_t i = 0; i < m; i++) {
    double row = 0, column = 0;
    for (int64_t j = 0; j < m; j++) {
      a[i * m + j] = oracle_get(&s->a, b, h, i, j);
      row += fabs(a[i * m + j]), column += fabs(oracle_get(&s->a, b, h, j, i));
    }
    rows = fmax(rows, row), columns = fmax(columns, column);
  }
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) z[i * m + j] = rows > 0 ? a[j * m + i] / rows / columns : 0;
  for (int64_t n = 0; n <= s->iterations; n++) {
    for (int64_t e = 0; e < m * m; e++) most = fmax(most, fabs(z[e]));
    if (n == s->iterations) break;
    times(y, a, z, m);
    for (int64_t e = 0; e < m * m; e++) t[e] = (e % (m + 1) == 0 ? 7 : 0) - y[e];
    times(u, y, t, m);
    for (int64_t e = 0; e < m * m; e++) u[e] = (e % (m + 1) == 0 ? 15 : 0) - u[e];
    times(t, y, u, m);
    for (int64_t e = 0; e < m * m; e++) t[e] = (e % (m + 1) == 0 ? 13 : 0) - t[e];
    times(u, z, t, m);
    for (int64_t e = 0; e < m * m; e++) z[e] = u[e] / 4;
  }
  return most;
}

static void check(const scene *s, const char *what) {
  const int64_t m = s->a.len;
  double *z = test_mem((size_t)(m * m) * sizeof *z);
  for (int64_t u = 0; u < s->a.batch * s->a.heads; u++) {
    const int64_t b = u / s->a.heads, h = u % s->a.heads;
    const double most = iterate(z, s, b, h); /* an error of Y counts |Z| times */
    for (int64_t e = 0; e < m * m; e++)
      value_check(oracle_get(&s->x, b, h, e / m, e % m), z[e],
                  1e-6 * most * (1 + most * (double)(m < 9 ? m : 9)), s->x.dtype, what, b, h, e / m,
                  e % m);
  }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void PI_pinv_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9400);
  for (int64_t n = test_count(40, 12); n-- > 0; test_mem_release()) {
    const int64_t m = test_range(&rng, 1, n % 5 ? 20 : 50);
    const int64_t batch = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 2);
    const int64_t iterations = test_range(&rng, 0, 7);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s =
        build(batch, heads, m, 0, n % 2 ? 1 : 2.5, floats[n % 4 % 3], floats[n / 3 % 4 % 3], &rng);
    test_where = TEST_HEAP;
    s->iterations = iterations;
    promise_run(&s->does);
    check(s, "pinv");
  }
}

/* With iterations enough A Z A = A; the rows of A sum to 1, so those of Z do. In place the same bits; no
 * matrix touches another. */
void PI_pinv_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(9401);
  scene *s = build(2, 2, 17, 0, 3, ATTN_F32, ATTN_F32, &rng);
  for (int64_t u = 0; u < 4; u++) /* (A + I) / 2, whose inverse is no larger than it need be */
    for (int64_t i = 0; i < 17; i++)
      for (int64_t j = 0; j < 17; j++)
        oracle_set(&s->a, u / 2, u % 2, i, j,
                   (oracle_get(&s->a, u / 2, u % 2, i, j) + (i == j)) / 2);
  s->iterations = 30;
  promise_run(&s->does);
  for (int64_t u = 0; u < 4; u++) {
    for (int64_t i = 0; i < 17; i++) {
      double sum = 0, worst = 0;
      for (int64_t j = 0; j < 17; j++) {
        double unit = 0;
        for (int64_t k = 0; k < 17; k++)
          unit += oracle_get(&s->a, u / 2, u % 2, i, k) * oracle_get(&s->x, u / 2, u % 2, k, j);
        worst = fmax(worst, fabs(unit - (i == j)));
        sum += oracle_get(&s->x, u / 2, u % 2, i, j);
      }
      if (!(worst < 2e-5) || !(fabs(sum - 1) < 2e-5)) fail_msg("A Z: %g, sum %g", worst, sum);
    }
  }
  scene one = *s;
  one.a = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 17, 17);
  test_copy(one.a, test_one(s->a, 1, 1, 0, 1));
  one.x = one.a;
  attn_ctx ctx = test_ctx();
  assert_int_equal(call(&one, &ctx), ATTN_OK);
  test_assert_same(one.x, test_one(s->x, 1, 1, 0, 1), "alone and in place");
}

/* Nothing to iterate, one element, a matrix of zeros, NaN in one of several; tiny numbers. */
void PI_pinv_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(9402);
  scene *s = build(1, 3, 5, 0, 1, ATTN_F32, ATTN_F32, &rng);
  test_fill_value(test_one(s->a, 0, 1, 1, 1), 0);
  oracle_set(&s->a, 0, 2, 3, 1, (double)NAN);
  promise_run(&s->does);
  for (int64_t e = 0; e < 25; e++) {
    assert_true(!isnan(oracle_get(&s->x, 0, 0, e / 5, e % 5)));
    assert_true(oracle_get(&s->x, 0, 1, e / 5, e % 5) == 0);
    assert_true(isnan(oracle_get(&s->x, 0, 2, e / 5, e % 5)));
  }
  s = build(1, 1, 1, 0, 1, ATTN_F32, ATTN_F32, &rng);
  for (int n = 0; n < 3; n++) {
    const double x = n == 0 ? 3 : n == 1 ? -1e-30 : 1e30;
    oracle_set(&s->a, 0, 0, 0, 0, x);
    const double stored = oracle_get(&s->a, 0, 0, 0, 0);
    promise_run(&s->does);
    value_check(oracle_get(&s->x, 0, 0, 0, 0) * stored, 1, 1e-6, ATTN_F32, "one number", 0, 0, 0,
                0);
  }
}

void PI_solve_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9403);
  for (int64_t n = test_count(60, 16); n-- > 0; test_mem_release()) {
    const int64_t m = test_range(&rng, 1, n % 5 ? 16 : 40), cols = test_range(&rng, 1, 20);
    const int64_t batch = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 2);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(batch, heads, m, cols, 2, floats[n % 3], floats[n / 3 % 3], &rng);
    test_where = TEST_HEAP;
    s->lambda = n % 4 == 1 ? 0.25 : n % 4 == 2 ? -3 : 1;
    if (n % 4 == 3) test_fill(s->a, &rng, test_normal), s->lambda = 0; /* pivots matter */
    promise_run(&s->does);
    for (int64_t r = 0; r < batch * heads * m; r++) { /* (A + lambda I) x = b */
      const int64_t b = r / m / heads, h = r / m % heads, i = r % m;
      const double unit = s->x.dtype == ATTN_F32 ? 6e-8 : s->x.dtype == ATTN_F16 ? 5e-4 : 4e-3;
      for (int64_t c = 0; c < cols; c++) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < m; j++) {
          const double t = (oracle_get(&s->a, b, h, i, j) + (i == j ? s->lambda : 0)) *
                           oracle_get(&s->x, b, h, j, c);
          sum += t, size += fabs(t);
        }
        value_check(sum, oracle_get(&s->b, b, h, i, c), unit * size + 1e-7, ATTN_F32, "solve", b, h,
                    i, c);
      }
    }
  }
}

/* In place and alone: the same bits. Ones over 1 + lambda. Rows exchanged. */
void PI_solve_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(9404);
  scene *s = build(2, 2, 13, 19, 2, ATTN_F32, ATTN_F32, &rng);
  promise_run(&s->does);
  scene place = *s;
  attn_ctx ctx = test_ctx();
  place.x = place.b = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 13, 19);
  test_copy(place.x, s->b);
  assert_int_equal(call(&place, &ctx), ATTN_OK);
  test_assert_same(place.x, s->x, "in place");
  s->lambda = 0.5;
  test_fill_value(s->b, 1);
  promise_run(&s->does);
  for (int64_t i = 0; i < 13; i++)
    value_check(oracle_get(&s->x, 1, 0, i, 5), 1 / 1.5, 1e-6, ATTN_F32, "ones", 1, 0, i, 5);
  s = build(1, 1, 4, 3, 1, ATTN_F32, ATTN_F32, &rng);
  s->lambda = 0;
  for (int64_t i = 0; i < 4; i++)
    for (int64_t j = 0; j < 4; j++) oracle_set(&s->a, 0, 0, i, j, j == (i + 1) % 4);
  promise_run(&s->does);
  for (int64_t i = 0; i < 4; i++)
    test_assert_same(test_rows(s->x, (i + 1) % 4, 1), test_rows(s->b, i, 1), "a permutation");
}

/* One singular matrix among others: the call fails and writes nothing. */
void PI_solve_singular(void **state) {
  (void)state;
  test_rng rng = test_seed(9405);
  for (int n = 0; n < 5; n++) {
    scene *s = build(2, 2, 6, 3, 1, ATTN_F32, ATTN_F32, &rng);
    attn_tensor bad = test_one(s->a, 1, 1, 1, 1);
    s->lambda = n < 2;
    if (n == 0) { /* an exchange of two, plus the unit matrix */
      test_fill_value(bad, 0);
      for (int64_t i = 0; i < 6; i++) oracle_set(&bad, 0, 0, i, i ^ 1, 1);
    }
    if (n == 1) oracle_set(&bad, 0, 0, 2, 4, (double)INFINITY);
    if (n == 2) test_fill_value(bad, 0);
    if (n == 3) oracle_set(&bad, 0, 0, 0, 0, (double)NAN);
    if (n == 4) test_fill_value(bad, 0.5);
    promise_reject(&s->does, ATTN_E_NUMERIC, "a + lambda I");
    test_copy(bad, test_one(s->a, 0, 1, 0, 1));
    promise_run(&s->does);
  }
  /* nearly: a pivot of 1e-13 of the largest entry, then one of 1e-11 */
  for (int n = 0; n < 2; n++) {
    scene *s = build(1, 1, 2, 1, 1, ATTN_F32, ATTN_F32, &rng);
    s->lambda = 0;
    test_fill_value(s->a, 0);
    oracle_set(&s->a, 0, 0, 0, 0, 1);
    oracle_set(&s->a, 0, 0, 1, 1, n ? 1e-11 : 1e-13);
    if (n)
      promise_run(&s->does);
    else
      promise_reject(&s->does, ATTN_E_NUMERIC, "pivot");
  }
}

void PI_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9406);
  for (int n = 0; n < 4; n++)
    promise_keep(&build(2, 3, 21, n % 2 ? 30 : 0, 2, floats[n % 3], floats[n / 2], &rng)->does);
  for (int n = 0; n < 4; n++) /* nothing to do */
    promise_run(&build(n % 2, 1 - n % 2, 3, n > 1 ? 2 : 0, 1, ATTN_F32, ATTN_F32, &rng)->does);
}

void PI_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9407);
  for (int n = 0; n < 26; n++) {
    scene *s = build(2, 2, 5, n % 2 ? 4 : 0, 1, ATTN_F32, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "", *out = s->solve ? "x " : "z ";
    switch (n / 2) {
      case 0: s->a.dim = 4, word = "a "; break;
      case 1: s->a.data = NULL, want = ATTN_E_NULL, word = "a.data"; break;
      case 2: s->x.data = NULL, want = ATTN_E_NULL, word = s->solve ? "x.data" : "z.data"; break;
      case 3: s->x.len = 4, s->b.len = 4, word = out; break;
      case 4: s->x.heads = s->b.heads = 1, word = out; break;
      case 5: s->x.stride_len = 0, want = ATTN_E_STRIDE, word = out; break;
      case 6: s->a.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "a.dtype"; break;
      case 7:
        if (s->solve)
          s->lambda = (double)NAN, want = ATTN_E_VALUE, word = "lambda";
        else
          s->iterations = -1, want = ATTN_E_RANGE, word = "iterations";
        break;
      case 8:
        if (!s->solve) continue;
        s->b.data = NULL, want = ATTN_E_NULL, word = "b.data";
        break;
      case 9:
        if (!s->solve) continue;
        s->b.dim = 3, word = "b ";
        break;
      case 10: /* partly over an input */
        want = ATTN_E_OVERLAP, word = out;
        s->x = s->solve ? s->b : s->a;
        s->x.data = (char *)s->x.data + 4;
        break;
      case 11:
        if (!s->solve) continue;
        want = ATTN_E_OVERLAP, word = out, s->x = s->a, s->x.dim = 4;
        break;
      default: s->x.stride_head = INT64_MAX, want = ATTN_E_OVERFLOW, word = out;
    }
    promise_reject(&s->does, want, word);
  }
}
