/* tests/calls/test_select.c owns the choice of elements of rows, and k-means: against sorting and loops in
 * float64, ties, NaN, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor values, index, x; /* numbers of 4 bytes in the place of int32_t */
  int64_t k;
  attn_top_k_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_top_k(s->values, s->index.data, s->x, s->k, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_top_k_workspace(s->values, s->index.data, s->x, s->k, &s->p, ctx);
}

static scene *build(int64_t batch, int64_t heads, int64_t rows, int64_t n, int64_t k,
                    attn_dtype x_type, attn_dtype v_type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->k = k;
  s->x = drawn(x_type, TEST_PADDED, batch, heads, rows, n, 1, rng);
  s->values = output(v_type, TEST_NEGATIVE, batch, heads, rows, k, &s->does.block[0]);
  s->index = output(ATTN_F32, TEST_BHTD, batch, heads, rows, k, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->values, s->does.out[1] = &s->index;
  return s;
}

/* 1 if column i of a row comes before column j. */
static int before(const double *x, int64_t i, int64_t j, int smallest) {
  if (isnan(x[i]) || isnan(x[j])) return isnan(x[i]) == isnan(x[j]) ? i < j : isnan(x[j]);
  if (x[i] == x[j]) return i < j;
  return smallest ? x[i] < x[j] : x[i] > x[j];
}

static void check(const scene *s, const char *what) {
  double *x = test_mem((size_t)s->x.dim * sizeof *x);
  const int32_t *index = s->index.data;
  for (int64_t row = 0; row < s->x.batch * s->x.heads * s->x.len; row++) {
    const int64_t b = row / s->x.len / s->x.heads, h = row / s->x.len % s->x.heads;
    const int64_t t = row % s->x.len, n = s->p.x_len ? s->p.x_len[b] : s->x.dim;
    for (int64_t c = 0; c < n; c++) x[c] = oracle_get(&s->x, b, h, t, c);
    for (int64_t e = 0; e < s->k; e++) {
      const double got = s->values.data ? oracle_get(&s->values, b, h, t, e) : 0;
      const int64_t at = index ? index[row * s->k + e] : -2;
      if (e >= n) {
        if (index && at != -1) fail_msg("%s: %d beyond the columns", what, (int)at);
        if (s->values.data) assert_true(isinf(got) && (got > 0) == (s->p.smallest != 0));
        continue;
      }
      int64_t want = 0, rank;
      for (want = 0; want < n; want++) { /* the column that e others come before */
        rank = 0;
        for (int64_t c = 0; c < n; c++) rank += c != want && before(x, c, want, s->p.smallest);
        if (rank == e) break;
      }
      if (index && at != want)
        fail_msg("%s: place %d of row %d is column %d, not %d", what, (int)e, (int)row, (int)at,
                 (int)want);
      if (!s->values.data) continue;
      if (isnan(x[want]))
        assert_true(isnan(got));
      else
        value_check(got, x[want], 0, s->values.dtype, what, b, h, t, e);
    }
  }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void TK_top_k_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9300);
  for (int64_t n = test_count(80, 20); n-- > 0; test_mem_release()) {
    const int64_t cols = test_range(&rng, 1, n % 6 ? 60 : 300);
    const int64_t k = test_range(&rng, 1, n % 3 ? (cols < 9 ? cols : 9) : cols);
    const int64_t batch = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 2);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(batch, heads, test_range(&rng, 1, 4), cols, k, floats[n % 3],
                     n % 2 ? ATTN_F32 : floats[n % 3], &rng);
    test_where = TEST_HEAP;
    s->p.smallest = n / 2 % 2 == 1;
    if (n % 5 == 1) s->p.x_len = test_lengths(batch, cols, &rng);
    if (n % 7 == 1) s->values = absent();
    if (n % 7 == 2) s->index = absent();
    promise_run(&s->does);
    check(s, "top k");
  }
}

/* Few different numbers, NaN, infinities and both zeros, in every place. */
void TK_top_k_ties(void **state) {
  (void)state;
  static const double of[] = {0, -0.0, 1, -1, 2, (double)INFINITY, -(double)INFINITY, (double)NAN};
  test_rng rng = test_seed(9301);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    const int64_t cols = test_range(&rng, 1, 70), k = test_range(&rng, 1, cols);
    scene *s = build(1, 1, 3, cols, n % 2 ? k : (k + 7) / 8, floats[n % 3], ATTN_F32, &rng);
    s->p.smallest = n / 2 % 2 == 1;
    const int64_t kinds = test_range(&rng, 1, 8);
    for (int64_t t = 0; t < 3; t++)
      for (int64_t c = 0; c < cols; c++)
        oracle_set(&s->x, 0, 0, t, c, of[8 - kinds + test_range(&rng, 0, kinds - 1)]);
    promise_run(&s->does);
    check(s, "ties");
  }
  scene *zeros = build(1, 1, 1, 3, 1, ATTN_F32, ATTN_F32, &rng);
  oracle_set(&zeros->x, 0, 0, 0, 0, -1);
  for (int64_t c = 1; c < 3; c++) oracle_set(&zeros->x, 0, 0, 0, c, -0.0);
  promise_run(&zeros->does);
  assert_false(signbit(oracle_get(&zeros->values, 0, 0, 0, 0))); /* -0 comes out as 0 */
  for (int smallest = 0; smallest < 2; smallest++) { /* rising and falling, all of one kind */
    for (int n = 0; n < 3; n++) {
      scene *s = build(1, 1, 1, 200, 5, ATTN_F32, ATTN_F32, &rng);
      s->p.smallest = smallest;
      for (int64_t c = 0; c < 200; c++) oracle_set(&s->x, 0, 0, 0, c, (double)((n - 1) * c));
      promise_run(&s->does);
      check(s, "sorted");
    }
  }
  for (int n = 0; n < 4; n++) { /* nothing but NaN for a while, with both signs, then numbers */
    scene *s = build(1, 1, 1, 60, 5, floats[n % 3], ATTN_F32, &rng);
    s->p.smallest = n % 2;
    for (int64_t c = 0; c < 40; c++)
      oracle_set(&s->x, 0, 0, 0, c, n < 2 ? (double)NAN : -(double)NAN);
    promise_run(&s->does);
    check(s, "NaN first");
  }
}

void TK_top_k_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9302);
  for (int n = 0; n < 3; n++) {
    scene *s = build(2, 2, 150, 250, 7, floats[n], ATTN_F32, &rng);
    s->p.smallest = n == 1;
    promise_keep(&s->does);
  }
  for (int n = 0; n < 3; n++)
    promise_run(&build(n != 0, n != 1, n != 2, 5, 3, ATTN_F32, ATTN_F32, &rng)->does);
  scene *s = build(1, 1, 4, 9, 3, ATTN_F32, ATTN_F32, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_top_k(s->values, s->index.data, s->x, 3, NULL, &ctx), ATTN_OK);
  check(s, "no parameters");
}

void TK_top_k_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9303);
  static int32_t lens[2] = {3, 50};
  for (int n = 0; n < 12; n++) {
    scene *s = build(2, 1, 4, 20, 5, ATTN_F32, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->k = 0, want = ATTN_E_RANGE, word = "k "; break;
      case 1: s->k = 21, want = ATTN_E_RANGE, word = "k "; break;
      case 2: s->values.dim = 4, word = "values"; break;
      case 3: s->values.len = 3, word = "values"; break;
      case 4: s->values.data = s->index.data = NULL, want = ATTN_E_NULL, word = "index"; break;
      case 5: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 6: s->p.x_len = lens, want = ATTN_E_RANGE, word = "params.x_len"; break;
      case 7: s->values = s->x, s->values.dim = 5, want = ATTN_E_OVERLAP, word = "values"; break;
      case 8: s->index.data = s->x.data, want = ATTN_E_OVERLAP, word = "index"; break;
      case 9: s->values.stride_len = 0, want = ATTN_E_STRIDE, word = "values"; break;
      case 10:
        s->index.data = (char *)s->index.data + 2, want = ATTN_E_ALIGN, word = "index";
        break;
      default: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype";
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- k-means --------------------------------------------------------------------------------*/

typedef struct means {
  attn_tensor next, assignment, counts, centroids, x;
  attn_kmeans_params p;
  promise does;
} means;

static attn_status step(void *at, attn_ctx *ctx) {
  means *s = at;
  return attn_kmeans_step(s->next, s->assignment.data, s->counts.data, s->centroids, s->x, &s->p,
                          ctx);
}
static size_t step_ask(void *at, const attn_ctx *ctx) {
  means *s = at;
  return attn_kmeans_step_workspace(s->next, s->assignment.data, s->counts.data, s->centroids, s->x,
                                    &s->p, ctx);
}

static means *group(int64_t batch, int64_t heads, int64_t rows, int64_t d, int64_t c,
                    attn_dtype x_type, attn_dtype next_type, test_rng *rng) {
  means *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(x_type, TEST_PADDED, batch, heads, rows, d, 1, rng);
  s->centroids = drawn(ATTN_F32, TEST_NEGATIVE, batch, heads, c, d, 1, rng);
  s->next = output(next_type, TEST_PADDED, batch, heads, c, d, &s->does.block[0]);
  s->assignment = output(ATTN_F32, TEST_BHTD, batch, heads, rows, 1, &s->does.block[1]);
  s->counts = output(ATTN_F32, TEST_BHTD, batch, heads, c, 1, &s->does.block[2]);
  s->does.call = step, s->does.ask = step_ask, s->does.scene = s;
  s->does.out[0] = &s->next, s->does.out[1] = &s->assignment, s->does.out[2] = &s->counts;
  return s;
}

/* How well centroid c suits row i, larger is better, and the noise of f32 in it. */
static double suits(const means *s, int64_t b, int64_t h, int64_t i, int64_t c, double *noise) {
  double sum = 0;
  for (int64_t k = 0; k < s->x.dim; k++) {
    const double x = oracle_get(&s->x, b, h, i, k), m = oracle_get(&s->centroids, b, h, c, k);
    sum += s->p.dot ? x * m : -(x - m) * (x - m);
    *noise += 4e-7 * (s->p.dot ? fabs(x * m) : (x - m) * (x - m));
  }
  return sum;
}

static void judge(const means *s, const char *what) {
  const int32_t *of = s->assignment.data, *counts = s->counts.data;
  const int64_t c = s->centroids.len, d = s->x.dim, rows = s->x.len;
  double *sum = test_mem((size_t)d * sizeof *sum);
  for (int64_t u = 0; u < s->x.batch * s->x.heads; u++) {
    const int64_t b = u / s->x.heads, h = u % s->x.heads, n = s->p.x_len ? s->p.x_len[b] : rows;
    for (int64_t i = 0; i < rows; i++) {
      const int64_t got = of[u * rows + i];
      if (i >= n) {
        assert_int_equal(got, -1);
        continue;
      }
      assert_true(got >= 0 && got < c);
      double noise = 0;
      const double mine = suits(s, b, h, i, got, &noise);
      for (int64_t j = 0; j < c; j++) {
        double own = noise;
        const double other = suits(s, b, h, i, j, &own);
        if (other > mine + own || (j < got && other == mine && own == 0))
          fail_msg("%s: row %d takes %d, not %d", what, (int)i, (int)got, (int)j);
      }
    }
    for (int64_t j = 0; j < c; j++) {
      int64_t count = 0;
      for (int64_t k = 0; k < d; k++) sum[k] = 0;
      for (int64_t i = 0; i < n; i++) {
        if (of[u * rows + i] != j) continue;
        for (int64_t k = 0; k < d; k++) sum[k] += oracle_get(&s->x, b, h, i, k);
        count++;
      }
      if (counts) assert_int_equal(counts[u * c + j], count);
      for (int64_t k = 0; k < d && s->next.data; k++)
        value_check(oracle_get(&s->next, b, h, j, k),
                    count ? sum[k] / (double)count : oracle_get(&s->centroids, b, h, j, k), 1e-6,
                    s->next.dtype, what, b, h, j, k);
    }
  }
}

void TK_kmeans_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9310);
  for (int64_t n = test_count(50, 14); n-- > 0; test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 2);
    const int64_t rows = test_range(&rng, 0, n % 5 ? 40 : 200);
    const int64_t d = test_range(&rng, 1, n % 4 ? 12 : 70), c = test_range(&rng, 1, 12);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    means *s = group(batch, heads, rows, d, c, floats[n % 3], floats[n / 2 % 3], &rng);
    test_where = TEST_HEAP;
    s->p.dot = n / 2 % 2 == 1;
    if (n % 4 == 1) s->p.x_len = test_lengths(batch, rows, &rng);
    if (n % 5 == 2) s->p.keep = 1, s->next = absent();
    if (n % 7 == 3) s->counts = absent();
    promise_run(&s->does);
    judge(s, "k-means");
  }
}

/* Equal centroids: the first takes all. In place: the same bits. Steps never make the sum of squared
 * distances larger, and end. */
void TK_kmeans_steps(void **state) {
  (void)state;
  test_rng rng = test_seed(9311);
  means *s = group(1, 1, 90, 6, 7, ATTN_F32, ATTN_F32, &rng);
  for (int64_t c = 0; c < 7; c++) test_fill_row(s->centroids, 0, 0, c, c < 3 ? 50 : 0.25);
  promise_run(&s->does);
  judge(s, "equal centroids");
  for (int64_t i = 0; i < 90; i++) assert_int_equal(((int32_t *)s->assignment.data)[i], 3);
  test_assert_same(test_rows(s->next, 4, 3), test_rows(s->centroids, 4, 3), "without rows");
  test_fill(s->centroids, &rng, test_normal);
  double old = (double)INFINITY;
  for (int t = 0; t < 20; t++) {
    double sum = 0, noise = 0;
    promise_run(&s->does);
    judge(s, "steps");
    for (int64_t i = 0; i < 90; i++)
      sum -= suits(s, 0, 0, i, ((int32_t *)s->assignment.data)[i], &noise);
    assert_true(sum <= old + noise);
    old = sum;
    means place = *s;
    place.centroids = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 7, 6);
    test_copy(place.centroids, s->centroids);
    place.next = place.centroids;
    attn_ctx ctx = test_ctx();
    assert_int_equal(step(&place, &ctx), ATTN_OK);
    test_assert_same(place.next, s->next, "in place");
    test_copy(s->centroids, s->next);
  }
}

void TK_kmeans_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9312);
  for (int n = 0; n < 3; n++) {
    means *s = group(2, 2, 200, 40, 9, floats[n], ATTN_F32, &rng);
    s->p.dot = n == 1;
    promise_keep(&s->does);
  }
  means *s = group(1, 1, 5, 3, 2, ATTN_F32, ATTN_F32, &rng); /* NaN: some centroid */
  test_fill_row(s->x, 0, 0, 2, (double)NAN);
  promise_run(&s->does);
  const int32_t got = ((int32_t *)s->assignment.data)[2];
  assert_true(got == 0 || got == 1);
  assert_true(isnan(oracle_get(&s->next, 0, 0, got, 0)));
}

void TK_kmeans_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9313);
  static int32_t lens[2] = {3, 50};
  for (int n = 0; n < 15; n++) {
    means *s = group(2, 1, 20, 4, 5, ATTN_F32, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->centroids.len = 0, word = "centroids.len"; break;
      case 1: s->centroids.dim = 3, word = "centroids"; break;
      case 2: s->centroids.heads = 2, s->centroids.stride_head = 0, word = "centroids"; break;
      case 3: s->centroids.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "centroids"; break;
      case 4: s->next.len = 4, word = "next"; break;
      case 5: s->next.data = NULL, want = ATTN_E_NULL, word = "next"; break;
      case 6: s->p.keep = 1, want = ATTN_E_VALUE, word = "next"; break;
      case 7: s->assignment.data = NULL, want = ATTN_E_NULL, word = "assignment"; break;
      case 8: s->assignment.data = s->x.data, want = ATTN_E_OVERLAP, word = "assignment"; break;
      case 9: s->counts.data = s->assignment.data, want = ATTN_E_OVERLAP, word = "assign"; break;
      case 10: s->next.data = s->x.data, want = ATTN_E_OVERLAP, word = "next"; break;
      case 11: s->p.x_len = lens, want = ATTN_E_RANGE, word = "params.x_len"; break;
      case 12: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 13: s->next = s->centroids, s->next.dim = 3, word = "next"; break;
      default: s->next.stride_len = 0, want = ATTN_E_STRIDE, word = "next";
    }
    promise_reject(&s->does, want, word);
  }
}
