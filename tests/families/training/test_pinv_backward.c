/* tests/families/training/test_pinv_backward.c owns N4, the gradient of the iterative pseudo-inverse, against differences of a
 * loss over the iterations in float64, and against the inverse's where they converge. */

#include "compound.h"

enum { M = 24 };

typedef struct pinv_back {
  attn_tensor d_a, d_z, a;
  int64_t iterations;
  promise does;
} pinv_back;

static attn_status run(void *at, attn_ctx *ctx) {
  pinv_back *s = at;
  return attn_pinv_backward(s->d_a, s->d_z, s->a, s->iterations, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  pinv_back *s = at;
  return attn_pinv_backward_workspace(s->d_a, s->d_z, s->a, s->iterations, ctx);
}

static pinv_back *build(int64_t batch, int64_t heads, int64_t m, int64_t iterations,
                        attn_dtype type, test_rng *rng) {
  pinv_back *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->a = drawn(type, TEST_PADDED, batch, heads, m, m, 0.3, rng);
  for (int64_t n = 0; n < batch * heads * m; n++) /* near the identity, as a map of landmarks is */
    oracle_set(&s->a, n / m / heads, n / m % heads, n % m, n % m, 1 + 0.1 * test_normal(rng));
  s->d_z = drawn(type, TEST_BTHD, batch, heads, m, m, 1, rng);
  s->d_a = output(ATTN_F32, TEST_PADDED, batch, heads, m, m, &s->does.block[0]);
  s->iterations = iterations;
  s->does.out[0] = &s->d_a, s->does.call = run, s->does.ask = ask, s->does.scene = s;
  return s;
}

typedef struct square {
  double x[M][M];
} square;

static void times(square *y, const square *a, const square *b, int64_t m) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) {
      y->x[i][j] = 0;
      for (int64_t k = 0; k < m; k++) y->x[i][j] += a->x[i][k] * b->x[k][j];
    }
}

static void less(square *y, double plus, int64_t m) { /* plus I - y */
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) y->x[i][j] = (i == j ? plus : 0) - y->x[i][j];
}

static void inverse(const pinv_back *s, int64_t b, int64_t h, square *z) {
  const int64_t m = s->a.dim;
  square a, y, t, u;
  double rows = 0, columns = 0;
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) a.x[i][j] = oracle_get(&s->a, b, h, i, j);
  for (int64_t i = 0; i < m; i++) {
    double row = 0, column = 0;
    for (int64_t j = 0; j < m; j++) row += fabs(a.x[i][j]), column += fabs(a.x[j][i]);
    rows = fmax(rows, row), columns = fmax(columns, column);
  }
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) z->x[i][j] = rows > 0 ? a.x[j][i] / (rows * columns) : 0;
  for (int64_t n = 0; n < s->iterations; n++) {
    times(&y, &a, z, m), t = y;
    less(&t, 7, m), times(&u, &y, &t, m);
    less(&u, 15, m), times(&t, &y, &u, m);
    less(&t, 13, m), times(&u, z, &t, m);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < m; j++) z->x[i][j] = u.x[i][j] / 4;
  }
}

static double loss(const pinv_back *s, int64_t b, int64_t h) {
  square z;
  double sum = 0;
  inverse(s, b, h, &z);
  for (int64_t i = 0; i < s->a.dim; i++)
    for (int64_t j = 0; j < s->a.dim; j++) sum += z.x[i][j] * oracle_get(&s->d_z, b, h, i, j);
  return sum;
}

void N4_pinv_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9950);
  for (int64_t n = test_count(40, 14); n-- > 0; test_mem_release()) {
    const int64_t m = test_range(&rng, 1, n % 4 ? 9 : M), heads = test_range(&rng, 1, 2);
    pinv_back *s = build(test_range(&rng, 1, 2), heads, m, n % 8, ATTN_F32, &rng);
    promise_run(&s->does);
    for (int e = 0; e < 6; e++) {
      const int64_t b = test_range(&rng, 0, s->a.batch - 1), h = test_range(&rng, 0, heads - 1);
      const int64_t i = test_range(&rng, 0, m - 1), j = test_range(&rng, 0, m - 1);
      float *at = oracle_address(&s->a, b, h, i, j), step = 1.0f / 256;
      const float was = *at;
      double by = 0;
      const double got = oracle_get(&s->d_a, b, h, i, j);
      for (int fine = 0; fine < 3;
           fine++, step /= 8) { /* another sum may become the largest, not thrice */
        double slope[2];
        for (int far = 0; far < 2; far++) {
          const float up_at = was + step * (float)(1 + far),
                      down_at = was - step * (float)(1 + far);
          *at = up_at;
          const double up = loss(s, b, h);
          *at = down_at;
          slope[far] = (up - loss(s, b, h)) / ((double)up_at - (double)down_at);
          *at = was;
        }
        by = (4 * slope[0] - slope[1]) / 3;
        if (fabs(by - got) <= 2e-4 * (1 + fabs(by))) break;
        if (fine == 2) fail_msg("d_a[%d,%d]: %.9g, not %.9g", (int)i, (int)j, got, by);
      }
    }
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* Converged, the gradient is that of the inverse: -Z^T d_z Z^T. */
void N4_pinv_backward_converged(void **state) {
  (void)state;
  test_rng rng = test_seed(9951);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    pinv_back *s = build(1, 2, n % 2 ? 7 : M, 14, n < 2 ? ATTN_F32 : ATTN_F16, &rng);
    const int64_t m = s->a.dim;
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++)
          oracle_set(&s->a, 0, h, i, j, (i == j) + 0.05 * oracle_get(&s->a, 0, h, i, j));
    promise_run(&s->does);
    for (int64_t h = 0; h < 2; h++) {
      square z, t, d, y;
      inverse(s, 0, h, &z);
      for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++)
          t.x[i][j] = z.x[j][i], d.x[i][j] = oracle_get(&s->d_z, 0, h, i, j);
      times(&y, &t, &d, m), times(&d, &y, &t, m);
      double most = 0;
      for (int64_t e = 0; e < m * m; e++) most = fmax(most, fabs(d.x[e / m][e % m]));
      for (int64_t e = 0; e < m * m; e++)
        value_check(oracle_get(&s->d_a, 0, h, e / m, e % m), -d.x[e / m][e % m], 2e-5 * most,
                    ATTN_F32, "d_a", 0, h, e / m, e % m);
    }
  }
}

void N4_pinv_backward_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9952);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    pinv_back *s = build(1, 2, 6, 6, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->a.dim = 5, word = "square"; break;
      case 1: s->d_z.heads = 1, word = "d_z"; break;
      case 2: s->d_a.len = 5, word = "d_a"; break;
      case 3: s->iterations = -1, want = ATTN_E_RANGE, word = "iterations"; break;
      case 4: s->d_a.data = s->d_z.data, want = ATTN_E_OVERLAP, word = "d_a"; break;
      default: s->d_z.data = NULL, want = ATTN_E_NULL, word = "d_z"; break;
    }
    promise_reject(&s->does, want, word);
  }
  pinv_back *s = build(1, 1, 5, 6, ATTN_F32, &rng);
  test_fill_value(s->a, 0);
  promise_run(&s->does);
  for (int i = 0; i < 25; i++) assert_true(oracle_get(&s->d_a, 0, 0, i / 5, i % 5) == 0);
  test_mem_release();
}
