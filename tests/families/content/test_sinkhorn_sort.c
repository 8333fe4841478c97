/* tests/families/content/test_sinkhorn_sort.c owns how blocks get their order: block sums, the sorting network, balancing
 * and the hard choice, against float64, and what the definition of balancing says. */

#include "sinkhorn.h"

static attn_dtype some_type(test_rng *rng) { return (attn_dtype)test_range(rng, 0, 2); }

/* Logits, descriptors, choices by themselves. */
void D5_stages(void **state) {
  (void)state;
  test_rng rng = test_seed(5502);
  for (int64_t n = test_count(40, 8); n-- > 0; test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), h = 2 * test_range(&rng, 1, 2);
    const int64_t nb = test_range(&rng, 1, 20), size = test_range(&rng, 1, 9);
    const int64_t dx = test_range(&rng, 1, 12), m = test_range(&rng, 1, 12), xh = n % 2 ? 2 : 1;
    attn_sinkhorn_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.block = size, p.causal = n % 3 == 1;
    attn_tensor x = drawn(some_type(&rng), TEST_NEGATIVE, b, xh, nb * size, dx, 1, &rng);
    attn_tensor y = test_tensor(some_type(&rng), TEST_PADDED, b, xh, nb, dx);
    assert_int_equal(attn_sinkhorn_blocks(y, x, &p, &ctx), ATTN_OK);
    cube want = sinkhorn_blocks(&x, &p);
    cube_check(&want, &y, 1e-6, "blocks");
    p.w_1 = drawn(some_type(&rng), TEST_PADDED, 1, n % 3 ? h : 1, dx, m, 0.4, &rng);
    p.w_2 = drawn(ATTN_F32, TEST_NEGATIVE, 1, n % 4 ? 1 : h, m, nb, 0.4, &rng);
    if (n % 5 > 1) p.b_1 = drawn(ATTN_F32, TEST_BHTD, 1, n % 5 == 2 ? 1 : h, 1, m, 1, &rng);
    if (n % 5 > 2) p.b_2 = drawn(ATTN_F16, TEST_BHTD, 1, n % 5 == 3 ? 1 : h, 1, nb, 1, &rng);
    attn_tensor r = test_tensor(some_type(&rng), TEST_PADDED, b, h, nb, nb);
    assert_int_equal(attn_sinkhorn_logits(r, y, &p, &ctx), ATTN_OK);
    cube from = cube_from(&y);
    want = sinkhorn_logits(&from, h, &p);
    cube_check(&want, &r, 1e-5, "logits");
  }
}

void D5_balance(void **state) {
  (void)state;
  test_rng rng = test_seed(5503);
  for (int64_t n = test_count(80, 16); n-- > 0; test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), h = test_range(&rng, 1, 3);
    const int64_t nb = test_range(&rng, 1, n % 5 ? 9 : 40);
    attn_sinkhorn_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.causal = (int)test_range(&rng, 0, 1), p.diag = (int)test_range(&rng, 0, 1);
    p.balance = (attn_sinkhorn_balancing)(n % 4);
    if (n % 3 == 0) p.has_iterations = 1, p.iterations = test_range(&rng, 0, 12);
    if (n % 5 == 1) p.tau = 0.05f;
    if (n % 3 == 1) p.gumbel = 1, p.seed = (uint64_t)n;
    if (n % 3 == 2)
      p.noise = drawn(ATTN_F32, TEST_PADDED, n % 2 ? b : 1, n % 4 ? 1 : h, nb, nb, 1, &rng);
    attn_tensor r = drawn(ATTN_F32, TEST_NEGATIVE, n % 4 ? b : 1, n % 2 ? h : 1, nb, nb, 2, &rng);
    /* holes, now and then a whole row and a whole column */
    for (int64_t e = 0; n % 4 > 1 && e < nb; e++)
      oracle_set(&r, 0, 0, test_range(&rng, 0, nb - 1), e, -(double)INFINITY);
    if (n % 8 == 7) test_fill_row(r, 0, 0, nb / 2, -(double)INFINITY);
    for (int64_t e = 0; n % 8 == 6 && e < nb; e++) oracle_set(&r, 0, 0, e, 0, -(double)INFINITY);
    if (p.has_iterations && p.iterations == 0)
      for (int64_t e = 0; e < nb; e++) oracle_set(&r, 0, 0, e, 0, -0.5);
    attn_tensor out = test_tensor(ATTN_F32, TEST_PADDED, b, h, nb, nb);
    assert_int_equal(attn_sinkhorn_balance(out, r, &p, &ctx), ATTN_OK);
    cube in = cube_from(&r), want = sinkhorn_balance(&in, b, h, &p);
    cube_check(&want, &out, 3e-6, "balance");
    int32_t *choice = test_mem((size_t)(b * h * nb) * sizeof *choice);
    assert_int_equal(attn_sinkhorn_choose(choice, out, &p, &ctx), ATTN_OK);
    cube got = cube_from(&out);
    for (int64_t u = 0; u < b * h * nb; u++)
      assert_int_equal(choice[u], sinkhorn_choice(cube_at(&got, u / nb / h, u / nb % h, u % nb),
                                                  u % nb, nb, &p));
  }
}

static attn_tensor small(const double *x, int64_t n) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n, n);
  for (int64_t e = 0; e < n * n; e++) oracle_set(&t, 0, 0, e / n, e % n, x[e]);
  return t;
}

static void balanced(const double *want, const double *in, int64_t n,
                     const attn_sinkhorn_params *p) {
  attn_ctx ctx = test_ctx();
  attn_tensor out = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n, n);
  assert_int_equal(attn_sinkhorn_balance(out, small(in, n), p, &ctx), ATTN_OK);
  for (int64_t e = 0; e < n * n; e++)
    value_check(oracle_get(&out, 0, 0, e / n, e % n), want[e], 1e-6, ATTN_F32, "example", 0, 0,
                e / n, e % n);
}

void D5_balance_examples(void **state) {
  (void)state;
  const double inf = (double)INFINITY;
  const double r[4] = {0, log(3), log(2), log(2)};
  const double both[4] = {1.0 / 3, 3.0 / 5, 2.0 / 3, 2.0 / 5}, so_far[4] = {1, 1, 2.0 / 3, 2.0 / 5};
  const double rows[4] = {0.25, 0.75, 0.5, 0.5}, none[4] = {1, 3, 2, 2};
  attn_sinkhorn_params p;
  memset(&p, 0, sizeof p);
  p.tau = 1, p.has_iterations = 1, p.iterations = 1;
  balanced(both, r, 2, &p);
  p.balance = ATTN_BALANCE_CUMULATIVE;
  balanced(so_far, r, 2, &p);
  p.balance = ATTN_BALANCE_ROWS;
  balanced(rows, r, 2, &p);
  p.balance = ATTN_BALANCE_SINKHORN, p.iterations = 0;
  balanced(none, r, 2, &p);
  /* nothing at all, a row, a column, and logits that cannot be balanced */
  const double empty[4] = {-inf, -inf, -inf, -inf}, zeros[4] = {0, 0, 0, 0};
  const double row[4] = {-inf, -inf, 0, 0}, row_to[4] = {0, 0, 1, 1};
  const double column[4] = {-inf, 0, -inf, 0}, column_to[4] = {0, 0.5, 0, 0.5};
  for (int kind = 1; kind < 4; kind += 2) {
    p.balance = (attn_sinkhorn_balancing)kind, p.has_iterations = 0, p.iterations = 0;
    balanced(zeros, empty, 2, &p);
    if (kind == ATTN_BALANCE_CUMULATIVE) continue;
    balanced(row_to, row, 2, &p);
    balanced(column_to, column, 2, &p);
  }
  const double huge[4] = {3e38, -3e38, -3e38, 3e38}, one[4] = {1, 0, 0, 1};
  p.balance = ATTN_BALANCE_SINKHORN, p.tau = 1e-30f;
  balanced(one, huge, 2, &p);
}

/* NaN shows in all that is summed with it. */
void D5_balance_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(5513);
  const int64_t n = 5;
  for (int kind = 1; kind < 4; kind++) {
    attn_sinkhorn_params p;
    attn_ctx ctx = test_ctx();
    attn_tensor r = drawn(ATTN_F32, TEST_BHTD, 1, 1, n, n, 1, &rng);
    attn_tensor out = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n, n);
    memset(&p, 0, sizeof p);
    p.balance = (attn_sinkhorn_balancing)kind, p.has_iterations = 1, p.iterations = 1;
    oracle_set(&r, 0, 0, 2, 3, (double)NAN);
    oracle_set(&r, 0, 0, 0, 3, -(double)INFINITY), oracle_set(&r, 0, 0, 1, 3, -(double)INFINITY);
    assert_int_equal(attn_sinkhorn_balance(out, r, &p, &ctx), ATTN_OK);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n; j++) {
        const double y = oracle_get(&out, 0, 0, i, j);
        const int row = i == 2, below = i >= 2;
        assert_int_equal(y != y,
                         kind == ATTN_BALANCE_ROWS ? row : kind == ATTN_BALANCE_SINKHORN || below);
      }
  }
}

/* Columns sum to 1, rows in the limit; constants of rows and columns do not matter there. */
void D5_balance_limit(void **state) {
  (void)state;
  test_rng rng = test_seed(5504);
  const int64_t n = 7;
  attn_tensor r = drawn(ATTN_F32, TEST_BHTD, 1, 1, n, n, 1, &rng);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n, n);
  attn_tensor p1 = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n, n);
  attn_sinkhorn_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.has_iterations = 1;
  for (int limit = 0; limit < 2; limit++) {
    p.iterations = limit ? 300 : 2;
    assert_int_equal(attn_sinkhorn_balance(first, r, &p, &ctx), ATTN_OK);
    for (int64_t i = 0; i < n; i++) {
      double row = 0, column = 0;
      for (int64_t j = 0; j < n; j++) {
        row += oracle_get(&first, 0, 0, i, j);
        column += oracle_get(&first, 0, 0, j, i);
      }
      assert_true(fabs(column - 1) < 1e-6);
      if (limit) assert_true(fabs(row - 1) < 1e-6);
    }
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      oracle_set(&r, 0, 0, i, j, oracle_get(&r, 0, 0, i, j) + (double)i - 0.5 * (double)(j * j));
  assert_int_equal(attn_sinkhorn_balance(p1, r, &p, &ctx), ATTN_OK);
  test_assert_near(p1, first, 2e-6, "constants");
}
