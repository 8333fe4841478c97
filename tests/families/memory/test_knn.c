/* tests/families/memory/test_knn.c owns the exact search for nearest contexts and kNN-LM. */

#include <stdlib.h>

#include "compound.h"

/* ---- search ---------------------------------------------------------------------------------*/

typedef struct scene {
  attn_tensor q, keys, distance; /* distance [1,1,n,k], dense */
  int32_t *index;
  attn_knn_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_knn_search(s->index, s->distance.data, s->q, s->keys, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_knn_search_workspace(s->index, s->distance.data, s->q, s->keys, &s->p, ctx);
}

/* Numbers of 1/64 that f32 sums exactly, beside an offset. */
static attn_tensor exact(attn_dtype type, test_layout layout, int64_t len, int64_t dim,
                         double offset, int64_t most, test_rng *rng) {
  attn_tensor t = test_tensor(type, layout, 1, 1, len, dim);
  for (int64_t i = 0; i < len; i++) {
    for (int64_t c = 0; c < dim; c++)
      oracle_set(&t, 0, 0, i, c, offset + (double)test_range(rng, -most, most) / 64);
  }
  return t;
}

static scene *build(int64_t n, int64_t keys, int64_t dim, int64_t k, attn_knn_metric metric,
                    double offset, int64_t most, attn_dtype type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = exact(ATTN_F32, TEST_PADDED, n, dim, offset, most, rng);
  s->keys = exact(type, rng->state & 1 ? TEST_NEGATIVE : TEST_PADDED, keys, dim, offset, most, rng);
  s->p.k = k, s->p.metric = metric;
  s->distance = output(ATTN_F32, TEST_BHTD, 1, 1, n, k, &s->does.block[0]);
  s->index = test_mem((size_t)(n * k) * sizeof *s->index);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->distance;
  return s;
}

typedef struct found {
  double d;
  int64_t j;
} found;

static int nearer(const void *a, const void *b) {
  const found *x = a, *y = b;
  int xn = isnan(x->d), yn = isnan(y->d);
  if (xn != yn) return xn ? 1 : -1;
  if (!xn && x->d != y->d) return x->d < y->d ? -1 : 1;
  return x->j < y->j ? -1 : 1;
}

/* All keys of query i, the nearest first. */
static found *ranked(const scene *s, int64_t i) {
  found *all = test_mem((size_t)(s->keys.len + 1) * sizeof *all);
  for (int64_t j = 0; j < s->keys.len; j++) {
    double sum = 0;
    for (int64_t c = 0; c < s->q.dim; c++) {
      double q = oracle_get(&s->q, 0, 0, i, c), k = oracle_get(&s->keys, 0, 0, j, c);
      sum += s->p.metric == ATTN_KNN_IP ? -q * k : (q - k) * (q - k);
    }
    all[j].d = sum, all[j].j = j;
  }
  qsort(all, (size_t)s->keys.len, sizeof *all, nearer);
  return all;
}

/* The very keys, in the very order. */
static void check(const scene *s, const char *what) {
  for (int64_t i = 0; i < s->q.len; i++) {
    const found *all = ranked(s, i);
    for (int64_t e = 0; e < s->p.k; e++) {
      int64_t got = s->index[i * s->p.k + e];
      double d = oracle_get(&s->distance, 0, 0, i, e);
      int64_t want = e < s->keys.len ? all[e].j : -1;
      double far = e < s->keys.len ? all[e].d : (double)INFINITY;
      if (s->p.metric == ATTN_KNN_L2) far = sqrt(far);
      if (got != want ||
          !(fabs(d - far) <= 1e-7 * fabs(far) || d == far || (isnan(d) && isnan(far))))
        fail_msg("%s: query %d, entry %d: key %d at %g, not %d at %g", what, (int)i, (int)e,
                 (int)got, d, (int)want, far);
    }
  }
}

void J3_search_exact(void **state) {
  (void)state;
  test_rng rng = test_seed(301);
  for (int64_t n = test_count(60, 12); n > 0; n--) {
    attn_knn_metric metric = (attn_knn_metric)test_range(&rng, 0, 2);
    int64_t dim = test_range(&rng, 1, 40), keys = test_range(&rng, 1, test_count(700, 300));
    int64_t k = n % 3 ? test_range(&rng, 1, 20) : test_range(&rng, 1, keys + 9);
    /* small numbers: many ties */
    scene *s = build(test_range(&rng, 1, n % 7 ? 20 : 70), keys, dim, k, metric, 0, n % 4 ? 2 : 127,
                     (attn_dtype)test_range(&rng, 0, 2), &rng);
    promise_run(&s->does);
    check(s, "random");
  }
}

/* Far from the origin |q|^2 + |k|^2 - 2 q.k has lost the distances that are asked for. */
void J3_search_cancellation(void **state) {
  (void)state;
  test_rng rng = test_seed(302);
  for (int64_t n = test_count(12, 4); n > 0; n--) {
    scene *s =
        build(9, test_count(900, 400), 1 + n * 3, 7, ATTN_KNN_SQ_L2, 1024, 40, ATTN_F32, &rng);
    promise_run(&s->does);
    check(s, "cancellation");
  }
}

/* Sorted keys: every one is nearer than all before it, or none is. */
void J3_search_sorted(void **state) {
  (void)state;
  test_rng rng = test_seed(303);
  for (int way = 0; way < 3; way++) {
    int64_t keys = test_count(3000, 600);
    scene *s = build(3, keys, 1, 17, ATTN_KNN_SQ_L2, 0, 0, ATTN_F32, &rng);
    for (int64_t j = 0; j < keys; j++)
      oracle_set(&s->keys, 0, 0, j, 0, (double)(way == 0 ? keys - j : way == 1 ? j : 5));
    promise_run(&s->does);
    check(s, "sorted");
  }
}

void J3_search_special(void **state) {
  (void)state;
  test_rng rng = test_seed(304);
  double inf = (double)INFINITY, nan = (double)NAN;
  /* NaN comes after everything, infinity before it; so does it when most are NaN */
  for (int m = 0; m < 3; m++) {
    scene *s = build(4, 300, 5, 12, (attn_knn_metric)m, 0, 9, ATTN_F32, &rng);
    for (int64_t j = 0; j < 300; j++) {
      if (j % 60 != 7) oracle_set(&s->keys, 0, 0, j, j % 5, j % 2 ? nan : inf);
    }
    promise_run(&s->does);
    for (int64_t i = 0; i < 4; i++) {
      int order = 0; /* numbers, infinity, NaN */
      for (int64_t e = 0; e < 12; e++) {
        double d = oracle_get(&s->distance, 0, 0, i, e);
        int kind = isnan(d) ? 2 : isinf(d) ? 1 : 0;
        if (m == ATTN_KNN_IP) kind = isnan(d) ? 2 : 0;
        assert_true(kind >= order);
        order = kind;
        int64_t j = s->index[i * 12 + e];
        assert_true(j >= 0 && j < 300);
        for (int64_t x = 0; x < e; x++) assert_true(s->index[i * 12 + x] != j);
        if (e < 5 && m != ATTN_KNN_IP) assert_int_equal(j % 60, 7);
      }
    }
  }
  /* squares beyond f32: neighbours of what is far away are found all the same */
  scene *s = build(2, 200, 3, 2, ATTN_KNN_SQ_L2, 0, 90, ATTN_F32, &rng);
  for (int64_t c = 0; c < 3; c++) {
    oracle_set(&s->q, 0, 0, 1, c, 1e25), oracle_set(&s->keys, 0, 0, 150, c, 1e25);
    oracle_set(&s->keys, 0, 0, 20, c, 1.0000001e25);
  }
  promise_run(&s->does);
  assert_int_equal(s->index[2], 150);
  assert_true(oracle_get(&s->distance, 0, 0, 1, 0) == 0);
  check(build(0, 4, 3, 2, ATTN_KNN_L2, 0, 9, ATTN_F32, &rng), "no queries");
  s = build(3, 0, 3, 2, ATTN_KNN_L2, 0, 9, ATTN_F32, &rng);
  promise_run(&s->does);
  check(s, "no keys");
  s = build(3, 9, 3, 2, ATTN_KNN_L2, 0, 9, ATTN_F32, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_knn_search(NULL, NULL, s->q, s->keys, &s->p, &ctx), ATTN_OK);
}

/* One query and a large store are cut by keys: the same bits for any number of workers. */
void J3_search_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(305);
  promise_keep(&build(70, 300, 7, 5, ATTN_KNN_SQ_L2, 0, 3, ATTN_BF16, &rng)->does);
  for (int m = 0; m < 3; m++) {
    scene *s = build(2, 13000, 3, 9, (attn_knn_metric)m, 0, 3, ATTN_F32, &rng);
    promise_run(&s->does);
    int32_t *one = s->index;
    for (int w = 2; w < 7; w++) {
      attn_ctx ctx = test_ctx();
      ctx.workers = w, ctx.parallel_for = w % 2 ? test_parallel_threads : test_parallel_backward;
      s->index = test_mem(18 * sizeof *one);
      assert_int_equal(call(s, &ctx), ATTN_OK);
      assert_memory_equal(one, s->index, 18 * sizeof *one);
    }
    if (m == 0 && !test_fast) check(s, "workers");
    promise_keep(&s->does);
  }
}

/* What a query finds does not depend on the others, nor, with different distances, on the order of
 * the store. */
void J3_search_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(306);
  scene *s = build(40, 500, 16, 11, ATTN_KNN_SQ_L2, 0, 1, ATTN_F32, &rng);
  test_fill(s->q, &rng, test_normal), test_fill(s->keys, &rng, test_normal);
  promise_run(&s->does);
  scene *l2 = test_mem(sizeof *l2), *one = test_mem(sizeof *one), *turned = test_mem(sizeof *one);
  *l2 = *s, *one = *s, *turned = *s;
  l2->p.metric = ATTN_KNN_L2;
  l2->index = test_mem(440 * 4), one->index = test_mem(44), turned->index = test_mem(440 * 4);
  l2->distance = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 40, 11);
  one->distance = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 11);
  turned->distance = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 40, 11);
  one->q = test_rows(s->q, 33, 1);
  turned->keys = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 500, 16);
  for (int64_t j = 0; j < 500; j++)
    test_copy(test_rows(turned->keys, 499 - j, 1), test_rows(s->keys, j, 1));
  attn_ctx ctx = test_ctx();
  assert_int_equal(call(l2, &ctx), ATTN_OK);
  assert_int_equal(call(one, &ctx), ATTN_OK);
  assert_int_equal(call(turned, &ctx), ATTN_OK);
  assert_memory_equal(s->index, l2->index, 440 * 4);
  assert_memory_equal(s->index + 33 * 11, one->index, 44);
  test_assert_same(test_rows(s->distance, 33, 1), one->distance, "one query");
  test_assert_same(s->distance, turned->distance, "order of the store");
  for (int e = 0; e < 440; e++) assert_int_equal(s->index[e], 499 - turned->index[e]);
}

void J3_search_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(307);
  scene *s = build(3, 20, 8, 4, ATTN_KNN_SQ_L2, 0, 9, ATTN_F32, &rng), was = *s;
  promise *does = &s->does;
#define REJECTED(change, status, word)  \
  do {                                  \
    change;                             \
    promise_reject(does, status, word); \
    promise keep = s->does;             \
    *s = was, s->does = keep;           \
  } while (0)
  REJECTED(s->p.k = -1, ATTN_E_SHAPE, "k");
  REJECTED(s->p.metric = (attn_knn_metric)3, ATTN_E_RANGE, "metric");
  REJECTED(s->keys.dim = 7, ATTN_E_SHAPE, "keys");
  REJECTED(s->keys.batch = 2, ATTN_E_SHAPE, "keys");
  REJECTED(s->q.heads = 2, ATTN_E_SHAPE, "q");
  REJECTED(s->q.data = NULL, ATTN_E_NULL, "q");
  REJECTED(s->keys.data = NULL, ATTN_E_NULL, "keys");
  REJECTED(s->keys.dtype = ATTN_I8, ATTN_E_DTYPE, "keys");
  REJECTED(s->keys.len = INT64_C(1) << 31, ATTN_E_OVERFLOW, "keys");
  REJECTED(s->keys.data = s->distance.data, ATTN_E_OVERLAP, "share");
  REJECTED(s->index = s->distance.data, ATTN_E_OVERLAP, "share");
  REJECTED(s->index = (int32_t *)((char *)s->index + 2), ATTN_E_ALIGN, "index");
  REJECTED(s->p.k = INT64_MAX / 2, ATTN_E_OVERFLOW, "k");
#undef REJECTED
}

/* ---- the mixture ----------------------------------------------------------------------------*/

typedef struct mixture {
  attn_tensor log_p, log_lm, q, keys;
  int32_t *values;
  attn_knn_lm_params p;
  promise does;
} mixture;

static attn_status mix(void *at, attn_ctx *ctx) {
  mixture *s = at;
  return attn_knn_lm(s->log_p, s->log_lm, s->q, s->keys, s->values, &s->p, ctx);
}
static size_t mix_ask(void *at, const attn_ctx *ctx) {
  mixture *s = at;
  return attn_knn_lm_workspace(s->log_p, s->log_lm, s->q, s->keys, s->values, &s->p, ctx);
}

/* Normalised rows; with holes some tokens are impossible. */
static mixture *mixed(int64_t n, int64_t keys, int64_t dim, int64_t words, int64_t k, int target,
                      attn_dtype type, test_rng *rng) {
  mixture *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(ATTN_F32, TEST_PADDED, 1, 1, n, dim, 1, rng);
  s->keys = drawn(ATTN_F32, TEST_BHTD, 1, 1, keys, dim, 1, rng);
  s->values = test_mem((size_t)(keys + 1) * sizeof *s->values);
  for (int64_t j = 0; j < keys; j++) s->values[j] = (int32_t)test_range(rng, 0, words - 1);
  s->log_lm = test_tensor(type, TEST_PADDED, 1, 1, n, target ? 1 : words);
  double *x = test_mem((size_t)words * sizeof *x);
  int32_t *wanted = test_mem((size_t)(n + 1) * sizeof *wanted);
  for (int64_t i = 0; i < n; i++) {
    double sum = 0;
    for (int64_t y = 0; y < words; y++) sum += x[y] = exp(test_normal(rng) * 2);
    if (words > 3) sum -= x[1], x[1] = 0;
    wanted[i] = (int32_t)test_range(rng, 0, words - 1);
    if (target)
      oracle_set(&s->log_lm, 0, 0, i, 0, log(x[wanted[i]] / sum));
    else
      for (int64_t y = 0; y < words; y++) oracle_set(&s->log_lm, 0, 0, i, y, log(x[y] / sum));
  }
  if (target) s->p.target = wanted, s->p.vocabulary = words;
  s->p.knn.k = k;
  s->log_p = output(type, TEST_PADDED, 1, 1, n, target ? 1 : words, &s->does.block[0]);
  s->does.call = mix, s->does.ask = mix_ask, s->does.scene = s;
  s->does.out[0] = &s->log_p;
  return s;
}

/* log p(y) of query i, in logarithms throughout. */
static double wanted_log(const mixture *s, int64_t i, int64_t y, double lm) {
  double lambda = s->p.lambda != 0 ? (double)s->p.lambda : signbit(s->p.lambda) ? 0 : 0.25;
  double t = s->p.temperature != 0 ? (double)s->p.temperature : 1;
  int64_t k = s->p.knn.k ? s->p.knn.k : 1024, n = s->keys.len;
  if (n == 0) return lm;
  scene search;
  memset(&search, 0, sizeof search);
  search.q = s->q, search.keys = s->keys, search.p = s->p.knn;
  const found *all = ranked(&search, i);
  double top = 0, sum = 0, best = (double)INFINITY, part = 0;
  for (int64_t e = 0; e < k && e < n; e++) {
    double d = s->p.knn.metric == ATTN_KNN_L2 ? sqrt(all[e].d) : all[e].d;
    if (e == 0) top = d;
    sum += exp((top - d) / t);
    if (s->values[all[e].j] != y) continue;
    if (isinf(best)) best = d;
    part += exp((best - d) / t);
  }
  double near = log(lambda) + (top - best) / t + log(part) - log(sum), own = log(1 - lambda) + lm;
  if (isinf(best) || lambda == 0) near = -(double)INFINITY;
  double high = fmax(near, own), low = fmin(near, own);
  return isinf(high) ? high : high + log1p(exp(low - high));
}

static void mix_check(const mixture *s, double tolerance, const char *what) {
  for (int64_t i = 0; i < s->q.len; i++) {
    for (int64_t c = 0; c < s->log_p.dim; c++) {
      double lm = oracle_get(&s->log_lm, 0, 0, i, c);
      double want = wanted_log(s, i, s->p.target ? s->p.target[i] : c, lm);
      double got = oracle_get(&s->log_p, 0, 0, i, c);
      if (isinf(want) && got == want) continue;
      value_check(got, want, tolerance * (1 + fabs(want)), s->log_p.dtype, what, 0, 0, i, c);
    }
  }
}

void J3_lm_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(310);
  for (int64_t n = test_count(30, 8); n > 0; n--) {
    int64_t keys = test_range(&rng, 1, 200);
    mixture *s =
        mixed(test_range(&rng, 1, 6), keys, test_range(&rng, 1, 20), test_range(&rng, 1, 300),
              n % 3 ? test_range(&rng, 1, 30) : 0, 0, n % 5 ? ATTN_F32 : ATTN_F16, &rng);
    s->p.knn.metric = (attn_knn_metric)(n % 3);
    s->p.lambda = n % 4 == 0 ? 1.0f : n % 4 == 1 ? 0.0f : 0.7f;
    s->p.temperature = n % 2 ? 0.0f : 3.0f;
    promise_run(&s->does);
    mix_check(s, 1e-5, "dense");
    if (s->log_p.dtype != ATTN_F32) continue;
    for (int64_t i = 0; i < s->q.len; i++) { /* probabilities sum to 1 */
      double sum = 0;
      for (int64_t y = 0; y < s->log_p.dim; y++) sum += exp(oracle_get(&s->log_p, 0, 0, i, y));
      assert_true(fabs(sum - 1) < 1e-5);
    }
  }
}

void J3_lm_target(void **state) {
  (void)state;
  test_rng rng = test_seed(311);
  for (int64_t n = test_count(20, 6); n > 0; n--) {
    mixture *s = mixed(test_range(&rng, 1, 90), test_range(&rng, 0, 150), test_range(&rng, 1, 9),
                       test_range(&rng, 1, 12), test_range(&rng, 1, 40), 1, ATTN_F32, &rng);
    if (n % 3 == 0) s->p.lambda = 1;
    promise_run(&s->does);
    mix_check(s, 1e-5, "target");
  }
}

/* Far neighbours keep their mass: exp(-600) has no float, its logarithm has. */
void J3_lm_far(void **state) {
  (void)state;
  test_rng rng = test_seed(312);
  mixture *s = mixed(2, 40, 3, 5, 0, 0, ATTN_F32, &rng);
  for (int64_t j = 0; j < 40; j++) {
    s->values[j] = j < 20 ? 2 : 4;
    for (int64_t c = 0; c < 3; c++)
      oracle_set(&s->keys, 0, 0, j, c, oracle_get(&s->keys, 0, 0, j, c) + (j < 20 ? 20 : 0));
  }
  s->p.lambda = 1;
  promise_run(&s->does);
  mix_check(s, 1e-5, "far");
  assert_true(oracle_get(&s->log_p, 0, 0, 0, 2) < -200);
  assert_true(isinf(oracle_get(&s->log_p, 0, 0, 0, 0)));
}

/* lambda 0 and an empty store give the model's numbers, bit for bit; one neighbour and lambda 1 give
 * one token; a huge temperature gives frequencies. */
void J3_lm_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(313);
  for (int n = 0; n < 4; n++) {
    mixture *s = mixed(3, n < 2 ? 30 : 0, 4, 50, 8, 0, n % 2 ? ATTN_BF16 : ATTN_F32, &rng);
    if (n < 2) s->p.lambda = ATTN_ZERO;
    if (n > 1) s->p.lambda = 1, s->values = NULL;
    promise_run(&s->does);
    test_assert_same(s->log_p, s->log_lm, "the model alone");
  }
  mixture *s = mixed(5, 60, 4, 30, 1, 0, ATTN_F32, &rng);
  s->p.lambda = 1;
  promise_run(&s->does);
  for (int64_t i = 0; i < 5; i++) {
    int ones = 0;
    for (int64_t y = 0; y < 30; y++) {
      double x = oracle_get(&s->log_p, 0, 0, i, y);
      assert_true(x == 0 || x == -(double)INFINITY);
      ones += x == 0;
    }
    assert_int_equal(ones, 1);
  }
  s->p.knn.k = 60, s->p.temperature = 1e30f;
  promise_run(&s->does);
  for (int64_t y = 0; y < 30; y++) {
    int count = 0;
    for (int64_t j = 0; j < 60; j++) count += s->values[j] == y;
    assert_true(fabs(exp(oracle_get(&s->log_p, 0, 0, 2, y)) - count / 60.0) < 1e-6);
  }
}

void J3_lm_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(314);
  promise_keep(&mixed(67, 90, 5, 40, 12, 0, ATTN_F32, &rng)->does);
  promise_keep(&mixed(3, 90, 5, 40, 12, 1, ATTN_F16, &rng)->does);
  /* in place */
  mixture *s = mixed(9, 50, 5, 33, 6, 0, ATTN_F32, &rng);
  promise_run(&s->does);
  attn_tensor apart = s->log_p;
  s->log_p = s->log_lm;
  promise_run(&s->does);
  test_assert_same(s->log_p, apart, "in place");
}

void J3_lm_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(315);
  mixture *s = mixed(3, 20, 8, 10, 4, 0, ATTN_F32, &rng), was = *s;
  int32_t low[3] = {0, -1, 2}, high[3] = {0, 1, 10};
#define REJECTED(change, status, word)      \
  do {                                      \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  } while (0)
  REJECTED(s->p.knn.k = -1, ATTN_E_SHAPE, "k");
  REJECTED(s->p.lambda = 1.5f, ATTN_E_VALUE, "lambda");
  REJECTED(s->p.lambda = -0.5f, ATTN_E_VALUE, "lambda");
  REJECTED(s->p.lambda = NAN, ATTN_E_VALUE, "lambda");
  REJECTED(s->p.temperature = -1, ATTN_E_VALUE, "temperature");
  REJECTED(s->p.temperature = INFINITY, ATTN_E_VALUE, "temperature");
  REJECTED(s->p.temperature = NAN, ATTN_E_VALUE, "temperature");
  REJECTED(s->values = NULL, ATTN_E_NULL, "values");
  REJECTED(s->p.vocabulary = 11, ATTN_E_RANGE, "vocabulary");
  REJECTED(s->log_lm.dim = 9, ATTN_E_SHAPE, "log_p");
  REJECTED(s->log_lm.len = 2, ATTN_E_SHAPE, "log_lm");
  REJECTED(s->log_p.data = s->keys.data, ATTN_E_OVERLAP, "log_p");
  REJECTED(s->log_p.stride_len = 0, ATTN_E_STRIDE, "log_p");
  s->values[7] = 10;
  REJECTED((void)0, ATTN_E_INDEX, "values");
  s->values[7] = -1;
  REJECTED((void)0, ATTN_E_INDEX, "values");
  s->values[7] = 0;
  promise_run(&s->does);
  s = mixed(3, 20, 8, 10, 4, 1, ATTN_F32, &rng), was = *s;
  REJECTED(s->p.target = low, ATTN_E_INDEX, "target");
  REJECTED(s->p.target = high, ATTN_E_INDEX, "target");
  REJECTED(s->p.vocabulary = 0, ATTN_E_RANGE, "vocabulary");
#undef REJECTED
}
