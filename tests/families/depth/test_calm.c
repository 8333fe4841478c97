/* tests/families/depth/test_calm.c owns confidences, their thresholds, and the calibration, in float64. */

#include "compound.h"

typedef struct sure {
  attn_tensor y, x;
  attn_confidence_params p;
  promise does;
} sure;

static attn_status sure_call(void *at, attn_ctx *ctx) {
  sure *s = at;
  return attn_confidence(s->y, s->x, &s->p, ctx);
}
static size_t sure_ask(void *at, const attn_ctx *ctx) {
  sure *s = at;
  return attn_confidence_workspace(s->y, s->x, &s->p, ctx);
}

static sure *sure_of(attn_confidence_kind kind, int64_t batch, int64_t heads, int64_t len,
                     int64_t dim, attn_dtype type, attn_dtype y_type, test_rng *rng) {
  sure *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->p.kind = kind;
  s->x = drawn(type, TEST_PADDED, batch, heads, len, dim, 2, rng);
  if (kind == ATTN_CONFIDENCE_COSINE)
    s->p.before = drawn(ATTN_F32, TEST_NEGATIVE, batch, heads, len, dim, 1, rng);
  if (kind == ATTN_CONFIDENCE_CLASSIFIER) {
    s->p.w = drawn(type, TEST_PADDED, 1, len % 2 ? heads : 1, 1, dim, 1 / sqrt((double)dim), rng);
    if (dim % 2) s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, heads, 1, 1, 1, rng);
  }
  s->y = output(y_type, TEST_NEGATIVE, batch, heads, len, 1, &s->does.block[0]);
  s->does.call = sure_call, s->does.ask = sure_ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

static double sure_oracle(const sure *s, int64_t b, int64_t h, int64_t i) {
  const int64_t n = s->x.dim;
  if (s->p.kind == ATTN_CONFIDENCE_CLASSIFIER) {
    double z = s->p.bias.data ? oracle_get(&s->p.bias, 0, s->p.bias.heads > 1 ? h : 0, 0, 0) : 0;
    for (int64_t c = 0; c < n; c++)
      z += oracle_get(&s->x, b, h, i, c) * oracle_get(&s->p.w, 0, s->p.w.heads > 1 ? h : 0, 0, c);
    return 1 / (1 + exp(-z));
  }
  if (s->p.kind == ATTN_CONFIDENCE_COSINE) {
    double dot = 0, xx = 0, zz = 0;
    for (int64_t c = 0; c < n; c++) {
      const double x = oracle_get(&s->x, b, h, i, c), z = oracle_get(&s->p.before, b, h, i, c);
      dot += x * z, xx += x * x, zz += z * z;
    }
    return xx > 0 && zz > 0 ? dot / sqrt(xx) / sqrt(zz) : 0;
  }
  double top = -(double)INFINITY, second = top, sum = 0;
  for (int64_t c = 0; c < n; c++) {
    const double x = oracle_get(&s->x, b, h, i, c);
    if (x > top)
      second = top, top = x;
    else if (x > second)
      second = x;
  }
  for (int64_t c = 0; c < n; c++) sum += exp(oracle_get(&s->x, b, h, i, c) - top);
  return (1 - exp(second - top)) / sum;
}

static void sure_check(sure *s, const char *what) {
  cube want = cube_of(s->x.batch, s->x.heads, s->x.len, 1);
  promise_run(&s->does);
  for (int64_t r = 0; r < s->x.batch * s->x.heads * s->x.len; r++)
    want.data[r] =
        sure_oracle(s, r / s->x.len / s->x.heads, r / s->x.len % s->x.heads, r % s->x.len);
  cube_check(&want, &s->y, 2e-6, what);
}

void K3_confidence_random(void **state) {
  (void)state;
  for (int64_t n = test_count(60, 18); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(12000 + (uint64_t)n);
    const int64_t batch = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 3);
    const int64_t len = test_range(&rng, 1, n % 4 ? 5 : 70);
    const int64_t dim = test_range(&rng, 1, n % 3 ? 60 : n % 5 ? 300 : 2500);
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    sure *s = sure_of((attn_confidence_kind)(n / 2 % 3), batch, heads, len, dim,
                      (attn_dtype)(n % 3), (attn_dtype)(n / 6 % 3), &rng);
    test_where = TEST_HEAP;
    sure_check(s, "confidence");
  }
}

/* Vocabularies beyond one split; the two largest anywhere. */
void K3_confidence_wide(void **state) {
  (void)state;
  static const int64_t dims[] = {8191, 8192, 8193, 20011};
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(12100 + (uint64_t)n);
    sure *s = sure_of(ATTN_CONFIDENCE_SOFTMAX, 1, 1, 9, dims[n], ATTN_F32, ATTN_F32, &rng);
    for (int64_t i = 1; i < 9; i++) {
      const int64_t a = test_range(&rng, 0, dims[n] - 1), b = test_range(&rng, 0, dims[n] - 1);
      oracle_set(&s->x, 0, 0, i, a, 14);
      oracle_set(&s->x, 0, 0, i, b, 13.5);
      if (i > 5) oracle_set(&s->x, 0, 0, i, a ? a - 1 : dims[n] - 1, 14); /* equal ones */
      if (i == 5) oracle_set(&s->x, 0, 0, i, 0, 14.5), oracle_set(&s->x, 0, 0, i, dims[n] - 1, 13);
    }
    sure_check(s, "wide");
    for (int64_t i = 6; i < 9; i++) assert_true(oracle_get(&s->y, 0, 0, i, 0) < 1e-6);
  }
}

void K3_confidence_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(12200);
  sure *s = sure_of(ATTN_CONFIDENCE_SOFTMAX, 1, 2, 40, 130, ATTN_F32, ATTN_F32, &rng);
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 1);
  test_copy(y, s->y);
  for (int64_t e = 0; e < 80 * 130; e++)
    oracle_set(&s->x, 0, e / 130 / 40, e / 130 % 40, e % 130,
               oracle_get(&s->x, 0, e / 130 / 40, e / 130 % 40, e % 130) + 5);
  promise_run(&s->does);
  test_assert_near(s->y, y, 3e-6, "shifted logits");
  for (int64_t e = 0; e < 80; e++) {
    const double c = oracle_get(&s->y, 0, e / 40, e % 40, 0);
    assert_true(c >= 0 && c <= 1);
  }
  test_fill_value(s->x, -(double)INFINITY);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < 40; i++) oracle_set(&s->x, 0, h, i, 3 * i, (double)i);
  promise_run(&s->does);
  for (int64_t i = 0; i < 40; i++) assert_true(oracle_get(&s->y, 0, 1, i, 0) == 1);
  s = sure_of(ATTN_CONFIDENCE_SOFTMAX, 1, 1, 5, 1, ATTN_F32, ATTN_F32, &rng); /* one class */
  promise_run(&s->does);
  for (int64_t i = 0; i < 5; i++) assert_true(oracle_get(&s->y, 0, 0, i, 0) == 1);
  s = sure_of(ATTN_CONFIDENCE_SOFTMAX, 1, 1, 5, 77, ATTN_F32, ATTN_F32, &rng);
  test_fill_value(s->x, 3);
  promise_run(&s->does);
  for (int64_t i = 0; i < 5; i++) assert_true(oracle_get(&s->y, 0, 0, i, 0) == 0);
  /* parallel states, opposite, zero, and such as floats cannot square */
  static const double by[] = {1, 2, -4, 0, 1e25, 1e-30, -1e30};
  s = sure_of(ATTN_CONFIDENCE_COSINE, 1, 1, 7, 50, ATTN_F32, ATTN_F32, &rng);
  for (int64_t i = 0; i < 7; i++)
    for (int64_t c = 0; c < 50; c++)
      oracle_set(&s->p.before, 0, 0, i, c, by[i] * oracle_get(&s->x, 0, 0, i, c));
  promise_run(&s->does);
  for (int64_t i = 0; i < 7; i++) {
    const double want = by[i] > 0 ? 1 : by[i] < 0 ? -1 : 0;
    assert_true(fabs(oracle_get(&s->y, 0, 0, i, 0) - want) < (i < 4 ? 1e-30 : 1e-6));
  }
}

void K3_confidence_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(12300);
  for (int kind = 0; kind < ATTN_CONFIDENCE_COUNT; kind++, test_mem_release()) {
    sure *s = sure_of((attn_confidence_kind)kind, 1, 3, 3, 8199, ATTN_F16, ATTN_BF16, &rng);
    if (kind) s = sure_of((attn_confidence_kind)kind, 2, 3, 71, 41, ATTN_F16, ATTN_BF16, &rng);
    sure keep = *s;
    promise_keep(&s->does);
#define REJECT(change, status, word)        \
  do {                                      \
    *s = keep;                              \
    change;                                 \
    promise_reject(&s->does, status, word); \
  } while (0)
    REJECT(s->p.kind = ATTN_CONFIDENCE_COUNT, ATTN_E_RANGE, "kind");
    REJECT(s->y.heads = 2, ATTN_E_SHAPE, "y must");
    REJECT(s->y.len = 2, ATTN_E_SHAPE, "y must");
    REJECT(s->y.dim = 2, ATTN_E_SHAPE, "y must");
    REJECT(s->y.data = s->x.data, ATTN_E_OVERLAP, "y is");
    REJECT(s->x.dtype = ATTN_I4, ATTN_E_DTYPE, "x.dtype");
    if (kind == ATTN_CONFIDENCE_COSINE) {
      REJECT(s->p.before.data = NULL, ATTN_E_NULL, "before");
      REJECT(s->p.before.dim = 40, ATTN_E_SHAPE, "before");
    }
    if (kind == ATTN_CONFIDENCE_CLASSIFIER) {
      REJECT(s->p.w.data = NULL, ATTN_E_NULL, "params.w");
      REJECT(s->p.w.dim = 40, ATTN_E_SHAPE, "params.w");
      REJECT(s->p.bias.dim = 2, ATTN_E_SHAPE, "params.bias");
    }
    *s = keep, s->x.len = s->y.len = s->p.before.len = 0;
    promise_run(&s->does);
  }
}

/* ---- thresholds and exits -------------------------------------------------------------------*/

void K3_threshold(void **state) {
  (void)state;
  static const float lambdas[] = {0, 0.3f, 0.75f, 1};
  for (int n = 0; n < 3 * 4 * 3; n++) {
    attn_calm_threshold_params p = {(attn_calm_threshold_kind)(n % 3), 20, n % 4,
                                    n / 12 == 1   ? 2.5f
                                    : n / 12 == 2 ? ATTN_ZERO
                                                  : 0};
    const double tau = n / 12 == 1 ? 2.5 : n / 12 == 2 ? 0 : 4;
    const float l = lambdas[n / 3 % 4];
    float got[16];
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_calm_threshold(got, 16, l, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    for (int i = 0; i < 16; i++) {
      const double f = exp(-tau * (double)(i + n % 4) / 20), x = (double)l;
      const double want = n % 3 == 0   ? fmin(1, fmax(0, 0.9 * x + 0.1 * f))
                          : n % 3 == 1 ? x * (0.9 + 0.1 * f)
                                       : x;
      assert_true(fabs((double)got[i] - want) < 1e-6);
    }
  }
  struct bad {
    int64_t count, outputs, first;
    float lambda, tau;
    int kind;
    attn_status want;
  } bad[] = {{-1, 9, 0, 0.5f, 0, 0, ATTN_E_SHAPE},
             {3, 0, 0, 0.5f, 0, 0, ATTN_E_RANGE},
             {3, 9, -1, 0.5f, 0, 0, ATTN_E_RANGE},
             {3, 9, 7, 0.5f, 0, 0, ATTN_E_RANGE},
             {3, 9, 0, 1.5f, 0, 0, ATTN_E_RANGE},
             {3, 9, 0, -0.5f, 0, 0, ATTN_E_RANGE},
             {3, 9, 0, NAN, 0, 0, ATTN_E_RANGE},
             {3, 9, 0, 0.5f, -1, 0, ATTN_E_VALUE},
             {3, 9, 0, 0.5f, INFINITY, 0, ATTN_E_VALUE},
             {3, 9, 0, 0.5f, 0, 3, ATTN_E_RANGE},
             {3, INT64_MAX, INT64_MAX - 1, 0.5f, 0, 0, ATTN_E_RANGE}};
  for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
    attn_calm_threshold_params p = {(attn_calm_threshold_kind)bad[n].kind, bad[n].outputs,
                                    bad[n].first, bad[n].tau};
    float got[3] = {7, 7, 7};
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_calm_threshold(got, bad[n].count, bad[n].lambda, &p, &ctx), bad[n].want);
    assert_true(got[0] == 7 && got[1] == 7 && got[2] == 7 && ctx.reason);
  }
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_calm_threshold(NULL, 1, 0, NULL, &ctx), ATTN_E_NULL);
}

void K3_exit(void **state) {
  (void)state;
  for (int64_t n = test_count(40, 16); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(12400 + (uint64_t)n);
    const int64_t batch = test_range(&rng, 1, 3), layers = test_range(&rng, 1, 6);
    const int64_t len = test_range(&rng, 1, n % 3 ? 20 : 150), least = test_range(&rng, 0, layers);
    attn_tensor x = test_tensor((attn_dtype)(n % 3), TEST_PADDED, batch, 1, layers - 1, len);
    float *threshold = test_floats(len, 1, &rng);
    for (int64_t e = 0; e < batch * (layers - 1) * len; e++)
      oracle_set(&x, e / len / (layers - 1), 0, e / len % (layers - 1), e % len,
                 (double)test_range(&rng, 0, 8) / 8);
    for (int64_t c = 0; c < len; c++) threshold[c] = (float)test_range(&rng, 0, 8) / 8;
    int32_t *got = test_mem((size_t)(batch * len) * sizeof *got);
    int32_t *low = test_mem((size_t)(batch * len) * sizeof *low);
    attn_ctx ctx = test_ctx();
    ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    assert_int_equal(attn_calm_exit(got, x, threshold, least, &ctx), ATTN_OK);
    for (int64_t r = 0; r < batch * len; r++) {
      int32_t want = (int32_t)layers;
      for (int64_t k = layers - 1; k >= (least ? least : 1); k--)
        if (oracle_get(&x, r / len, 0, k - 1, r % len) >= (double)threshold[r % len])
          want = (int32_t)k; /* at the threshold is enough */
      assert_int_equal(got[r], want);
    }
    for (int64_t c = 0; c < len; c++) threshold[c] -= 0.25f;
    assert_int_equal(attn_calm_exit(low, x, threshold, least, &ctx), ATTN_OK);
    for (int64_t r = 0; r < batch * len; r++) assert_true(low[r] <= got[r]);
  }
  test_rng rng = test_seed(12450);
  attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 3, 4, 1, &rng);
  float threshold[4] = {0, 0, 0, 0};
  int32_t got[4];
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_calm_exit(got, x, threshold, 5, &ctx), ATTN_E_RANGE);
  assert_int_equal(attn_calm_exit(got, x, threshold, -1, &ctx), ATTN_E_RANGE);
  assert_int_equal(attn_calm_exit(NULL, x, threshold, 1, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_calm_exit(got, x, NULL, 1, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_calm_exit(x.data, x, threshold, 1, &ctx), ATTN_E_OVERLAP);
  test_fill_value(x, NAN);
  assert_int_equal(attn_calm_exit(got, x, threshold, 1, &ctx), ATTN_OK);
  for (int i = 0; i < 4; i++) assert_int_equal(got[i], 4);
}

/* ---- calibration ----------------------------------------------------------------------------*/

void K3_calibrate(void **state) {
  (void)state;
  for (int64_t n = test_count(40, 16); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(12500 + (uint64_t)n);
    const int64_t j = test_range(&rng, 0, 8), items = test_range(&rng, 1, 400);
    attn_tensor x = test_tensor((attn_dtype)(n % 3), TEST_PADDED, 1, 1, j, items);
    float *lambda = test_floats(j + 1, 1, &rng);
    const float delta = 0.3f, eps = n % 2 ? 0.05f : 0.3f;
    for (int64_t k = 0; k < j; k++) {
      const int64_t most = test_range(&rng, 0, 40);
      lambda[k] = 1 - 0.1f * (float)k;
      for (int64_t i = 0; i < items; i++)
        oracle_set(&x, 0, 0, k, i, (double)test_range(&rng, 0, most) / 64);
    }
    int64_t count = 0, got = -1;
    double want = 1, margin = 1;
    for (; count < j; count++) {
      double mean = 0;
      for (int64_t i = 0; i < items; i++) mean += oracle_get(&x, 0, 0, count, i) / (double)items;
      const double gap = fmax(0, (double)delta - mean), p = exp(-2 * (double)items * gap * gap);
      margin = fmin(margin, fabs(p - (double)eps));
      if (p > (double)eps) break;
      want = (double)lambda[count];
    }
    float best = 7;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_calm_calibrate(&best, &got, x, lambda, delta, eps, &ctx), ATTN_OK);
    if (margin < 1e-9) continue;
    assert_int_equal(got, count);
    assert_true((double)best == want);
    assert_int_equal(attn_calm_calibrate(&best, NULL, x, lambda, delta, eps, &ctx), ATTN_OK);
  }
}

/* The first failure ends it; few items prove nothing. */
void K3_calibrate_stops(void **state) {
  (void)state;
  static const float lambda[] = {0.9f, 0.8f, 0.7f};
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 100);
  float best = 0;
  int64_t n = 0;
  attn_ctx ctx = test_ctx();
  test_fill_value(x, 0);
  assert_int_equal(attn_calm_calibrate(&best, &n, x, lambda, 0.2f, 0.05f, &ctx), ATTN_OK);
  assert_true(best == 0.7f && n == 3);
  for (int64_t i = 0; i < 100; i++) oracle_set(&x, 0, 0, 1, i, 0.5);
  assert_int_equal(attn_calm_calibrate(&best, &n, x, lambda, 0.2f, 0.05f, &ctx), ATTN_OK);
  assert_true(best == 0.9f && n == 1);
  x.dim = 5; /* exp(-2 5 0.04) > 0.05 */
  assert_int_equal(attn_calm_calibrate(&best, &n, x, lambda, 0.2f, 0.05f, &ctx), ATTN_OK);
  assert_true(best == 1 && n == 0);
  static const float flat[] = {0.9f, 0.9f, 0.7f}, beyond[] = {1.1f, 0.9f, 0.7f};
  for (int k = 0; k < 11; k++) {
    attn_tensor y = x;
    const float *l = lambda;
    float delta = 0.2f, eps = 0.05f, *to = &best;
    attn_status want = ATTN_E_RANGE;
    best = 7, n = 7;
    oracle_set(&x, 0, 0, 2, 4, 0);
    switch (k) {
      case 0: l = flat; break;
      case 1: l = beyond; break;
      case 2: delta = 0; break;
      case 3: delta = 1; break;
      case 4: eps = 0; break;
      case 5: eps = 1; break;
      case 6: oracle_set(&x, 0, 0, 2, 4, 1.5); break;
      case 7: oracle_set(&x, 0, 0, 2, 4, NAN); break;
      case 8: y.heads = 2, want = ATTN_E_SHAPE; break;
      case 9: l = NULL, want = ATTN_E_NULL; break;
      default: to = NULL, want = ATTN_E_NULL;
    }
    assert_int_equal(attn_calm_calibrate(to, &n, y, l, delta, eps, &ctx), want);
    assert_true(best == 7 && n == 7 && ctx.reason);
  }
  int64_t *odd = (int64_t *)(void *)((char *)&n + 4);
  assert_int_equal(attn_calm_calibrate(&best, odd, x, lambda, 0.2f, 0.05f, &ctx), ATTN_E_ALIGN);
}
