/* tests/families/depth/test_exits.c owns predictors of exits, scores spread over tokens, and targets, in float64. */

#include "compound.h"

typedef struct exits {
  attn_tensor q, x, shown; /* shown: the exits, as a tensor of their bits */
  int32_t *exit;
  attn_exits_params p;
  promise does;
} exits;

static attn_status exits_call(void *at, attn_ctx *ctx) {
  exits *s = at;
  return attn_exits(s->exit, s->q, s->x, &s->p, ctx);
}
static size_t exits_ask(void *at, const attn_ctx *ctx) {
  exits *s = at;
  return attn_exits_workspace(s->exit, s->q, s->x, &s->p, ctx);
}

typedef struct exits_shape {
  attn_exit_kind kind;
  int64_t batch, layers, len, dim;
  attn_dtype x_type, w_type, q_type;
  int shared, bias; /* GEOMETRIC: one w for all layers */
} exits_shape;

static exits *exits_of(const exits_shape *x, test_rng *rng) {
  exits *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int deep = x->kind == ATTN_EXIT_GEOMETRIC;
  const int64_t n = x->layers, heads = deep ? n - 1 : 1, of = deep && !x->shared ? n - 1 : 1;
  const double size = 1.5 / sqrt((double)x->dim);
  const int64_t rows = x->kind == ATTN_EXIT_SEQUENCE ? 1 : x->len;
  s->x = drawn(x->x_type, TEST_PADDED, x->batch, heads, x->len, x->dim, 1, rng);
  s->p.kind = x->kind, s->p.layers = n;
  if (!deep || n > 1)
    s->p.w =
        drawn(x->w_type, TEST_NEGATIVE, 1, of, deep ? 1 : x->dim, deep ? x->dim : n, size, rng);
  if (x->bias && (!deep || n > 1))
    s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, of, 1, deep ? 1 : n, 0.5, rng);
  s->q = output(x->q_type, TEST_PADDED, x->batch, 1, rows, n, &s->does.block[0]);
  s->shown = output(ATTN_F32, TEST_BHTD, 1, 1, 1, x->batch * rows + 1, &s->does.block[1]);
  s->exit = s->shown.data;
  s->does.call = exits_call, s->does.ask = exits_ask, s->does.scene = s;
  s->does.out[0] = &s->q;
  return s;
}

static double weight_of(const exits *s, int64_t head, int64_t i, int64_t c) {
  return oracle_get(&s->p.w, 0, s->p.w.heads > 1 ? head : 0, i, c);
}
static double bias_of(const exits *s, int64_t head, int64_t c) {
  return s->p.bias.data ? oracle_get(&s->p.bias, 0, s->p.bias.heads > 1 ? head : 0, 0, c) : 0;
}

/* q of one row; *margin: how far the exit is from being another. */
static int32_t exits_oracle(const exits *s, int64_t b, int64_t i, double *q, double *margin) {
  const int64_t n = s->p.layers, dim = s->x.dim;
  *margin = 1;
  if (s->p.kind == ATTN_EXIT_GEOMETRIC) {
    double left = 1;
    int32_t stop = 0;
    for (int64_t c = 0; c < n - 1; c++) {
      double z = bias_of(s, c, 0);
      for (int64_t d = 0; d < dim; d++) z += oracle_get(&s->x, b, c, i, d) * weight_of(s, c, 0, d);
      const double chi = 1 / (1 + exp(-z));
      const double tau = s->p.taus           ? (double)s->p.taus[c]
                         : s->p.tau != 0     ? (double)s->p.tau
                         : signbit(s->p.tau) ? 0
                                             : 0.5;
      q[c] = chi * left, left *= 1 - chi;
      if (!stop) *margin = fmin(*margin, fabs(chi - tau));
      if (!stop && chi > tau) stop = (int32_t)(c + 1);
    }
    q[n - 1] = left;
    return stop ? stop : (int32_t)n;
  }
  const int whole = s->p.kind == ATTN_EXIT_SEQUENCE;
  const int64_t len = whole ? (s->p.x_len ? s->p.x_len[b] : s->x.len) : 1;
  double top = -(double)INFINITY, sum = 0;
  int64_t best = 0;
  for (int64_t c = 0; c < n; c++) {
    q[c] = bias_of(s, 0, c);
    for (int64_t t = 0; t < len; t++)
      for (int64_t d = 0; d < dim; d++)
        q[c] += oracle_get(&s->x, b, 0, whole ? t : i, d) * weight_of(s, 0, d, c) / (double)len;
    if (q[c] > top) top = q[c], best = c;
  }
  for (int64_t c = 0; c < n; c++)
    if (c != best) *margin = fmin(*margin, top - q[c]);
  for (int64_t c = 0; c < n; c++) sum += q[c] = exp(q[c] - top);
  for (int64_t c = 0; c < n; c++) q[c] /= sum;
  return (int32_t)(best + 1);
}

static void exits_check(exits *s, const char *what) {
  const int64_t n = s->p.layers, rows = s->p.kind == ATTN_EXIT_SEQUENCE ? 1 : s->x.len;
  cube q = cube_of(s->x.batch, 1, rows, n);
  promise_run(&s->does);
  for (int64_t r = 0; r < s->x.batch * rows; r++) {
    double margin;
    const int32_t stop = exits_oracle(s, r / rows, r % rows, q.data + r * n, &margin);
    if (margin > 1e-4) assert_int_equal(s->exit[r], stop);
  }
  if (s->q.data) cube_check(&q, &s->q, 3e-6, what);
}

void K2_exits_random(void **state) {
  (void)state;
  for (int64_t n = test_count(60, 18); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(11000 + (uint64_t)n);
    exits_shape x;
    memset(&x, 0, sizeof x);
    x.kind = (attn_exit_kind)(n % 3);
    x.batch = test_range(&rng, 1, 3), x.layers = test_range(&rng, 1, 7);
    x.len = test_range(&rng, 1, n % 4 ? 9 : 150), x.dim = test_range(&rng, 1, n % 5 ? 40 : 300);
    x.x_type = (attn_dtype)(n / 3 % 3), x.w_type = (attn_dtype)(n / 2 % 3);
    x.q_type = (attn_dtype)(n / 4 % 3), x.shared = (int)(n % 2), x.bias = n % 7 != 0;
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    exits *s = exits_of(&x, &rng);
    test_where = TEST_HEAP;
    if (x.kind == ATTN_EXIT_SEQUENCE && n % 2) {
      int32_t *len = test_lengths(x.batch, x.len - 1, &rng);
      for (int64_t b = 0; b < x.batch; b++) len[b]++;
      s->p.x_len = len;
    }
    if (n % 5 == 1) s->p.tau = 0.7f;
    if (n % 5 == 2) s->p.tau = ATTN_ZERO;
    if (n % 5 == 3 && x.layers > 1) {
      float *taus = test_floats(x.layers - 1, 0, &rng);
      for (int64_t c = 0; c < x.layers - 1; c++) taus[c] = 0.3f + 0.1f * (float)(c % 4);
      s->p.taus = taus;
    }
    exits_check(s, "exits");
    if (n % 6 == 5) { /* the one without the other */
      int32_t *was = s->exit;
      s->exit = NULL, promise_run(&s->does);
      s->exit = was, s->q = absent();
      exits_check(s, "no q");
    }
  }
}

/* Chi of 0 and 1 make exact products; q sums to 1; equal logits go to the lower layer. */
void K2_exits_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(11100);
  exits_shape x;
  memset(&x, 0, sizeof x);
  x.kind = ATTN_EXIT_GEOMETRIC, x.batch = 2, x.layers = 6, x.len = 70, x.dim = 12, x.bias = 1;
  exits *s = exits_of(&x, &rng);
  promise_run(&s->does);
  for (int64_t r = 0; r < 140; r++) {
    double sum = 0;
    for (int64_t c = 0; c < 6; c++) sum += oracle_get(&s->q, r / 70, 0, r % 70, c);
    assert_true(fabs(sum - 1) < 1e-6);
  }
  test_fill_value(s->p.w, 0);
  test_fill_value(s->p.bias, -200);
  oracle_set(&s->p.bias, 0, 3, 0, 0, 40);
  promise_run(&s->does);
  for (int64_t r = 0; r < 140; r++) {
    assert_int_equal(s->exit[r], 4);
    for (int64_t c = 0; c < 6; c++)
      assert_true(oracle_get(&s->q, r / 70, 0, r % 70, c) == (c == 3 ? 1.0 : 0.0));
  }
  test_fill_value(s->p.bias, 0); /* chi = 0.5 is not above 0.5 */
  promise_run(&s->does);
  assert_int_equal(s->exit[0], 6);
  assert_true(oracle_get(&s->q, 0, 0, 0, 1) == 0.25 && oracle_get(&s->q, 0, 0, 0, 5) == 0.03125);
  s->p.tau = 0.4999f;
  promise_run(&s->does);
  assert_int_equal(s->exit[0], 1);
  for (int k = 0; k < 2; k++) {
    x.kind = k ? ATTN_EXIT_MULTINOMIAL : ATTN_EXIT_SEQUENCE;
    s = exits_of(&x, &rng);
    test_fill_value(s->p.w, 0);
    test_fill_value(s->p.bias, 0.5);
    promise_run(&s->does);
    assert_int_equal(s->exit[0], 1);
    oracle_set(&s->p.bias, 0, 0, 0, 0, 0.25);
    promise_run(&s->does);
    assert_int_equal(s->exit[1], 2);
  }
  x.kind = ATTN_EXIT_GEOMETRIC, x.layers = 1; /* nothing to choose */
  s = exits_of(&x, &rng);
  promise_run(&s->does);
  assert_true(s->exit[3] == 1 && oracle_get(&s->q, 1, 0, 7, 0) == 1);
}

/* Numbers that are none, in two rows: exits remain layers, and the other rows what they were. */
void K2_exits_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(11250);
  for (int kind = 0; kind < ATTN_EXIT_COUNT; kind++, test_mem_release()) {
    exits_shape x;
    memset(&x, 0, sizeof x);
    x.kind = (attn_exit_kind)kind, x.batch = 3, x.layers = 5, x.len = 3, x.dim = 19;
    exits *s = exits_of(&x, &rng);
    const int64_t rows = kind == ATTN_EXIT_SEQUENCE ? 1 : 3;
    attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, rows, 5);
    int32_t exit[9];
    promise_run(&s->does);
    test_copy(before, s->q), memcpy(exit, s->exit, (size_t)(3 * rows) * sizeof *exit);
    for (int64_t h = 0; h < s->x.heads; h++) {
      test_fill_row(s->x, 0, h, 0, NAN);
      test_fill_row(s->x, 1, h, rows - 1, INFINITY);
    }
    promise_run(&s->does);
    for (int64_t i = 0; i < 3 * rows; i++) {
      const int hit = i == 0 || i == 2 * rows - 1;
      assert_true(s->exit[i] >= 1 && s->exit[i] <= 5);
      assert_true(hit || s->exit[i] == exit[i]);
      for (int64_t c = 0; !hit && c < 5; c++)
        assert_true(oracle_get(&s->q, i / rows, 0, i % rows, c) ==
                    oracle_get(&before, i / rows, 0, i % rows, c));
    }
  }
}

void K2_exits_limits(void **state) {
  (void)state;
  static const int32_t none[2] = {3, 0};
  static const float high[4] = {0.5f, 0.5f, 1.5f, 0.5f};
  test_rng rng = test_seed(11200);
  for (int kind = 0; kind < ATTN_EXIT_COUNT; kind++, test_mem_release()) {
    exits_shape x;
    memset(&x, 0, sizeof x);
    x.kind = (attn_exit_kind)kind, x.batch = 2, x.layers = 5, x.len = 130, x.dim = 33, x.bias = 1;
    exits *s = exits_of(&x, &rng), keep = *s;
    const int deep = kind == ATTN_EXIT_GEOMETRIC;
    promise_keep(&s->does);
#define REJECT(change, status, word)        \
  do {                                      \
    *s = keep;                              \
    change;                                 \
    promise_reject(&s->does, status, word); \
  } while (0)
    REJECT(s->p.kind = ATTN_EXIT_COUNT, ATTN_E_RANGE, "kind");
    REJECT(s->p.layers = 0, ATTN_E_SHAPE, "layers");
    REJECT(s->p.layers = 4, ATTN_E_SHAPE, deep ? "x must" : "q must");
    REJECT(s->x.heads = deep ? 3 : 2; s->x.stride_head = 0, ATTN_E_SHAPE, "x must");
    REJECT(s->x.dim = 32, ATTN_E_SHAPE, "params.w");
    REJECT(s->p.w.dim = 4, ATTN_E_SHAPE, "params.w");
    REJECT(s->p.w.data = NULL, ATTN_E_NULL, "params.w");
    REJECT(s->p.bias.dim = 2, ATTN_E_SHAPE, "params.bias");
    REJECT(s->q.batch = 1, ATTN_E_SHAPE, "q must");
    REJECT(s->q.dtype = ATTN_I8, ATTN_E_DTYPE, "q.dtype");
    REJECT(s->q = s->x; s->q.heads = 1; s->q.dim = 5;
           s->q.len = kind ? 130 : 1, ATTN_E_OVERLAP, "q ");
    REJECT(s->exit = s->p.w.data, ATTN_E_OVERLAP, "must not share memory");
    REJECT(s->exit = (int32_t *)((char *)s->shown.data + 2), ATTN_E_ALIGN, "exits");
    REJECT(s->exit = NULL; s->q = absent(), ATTN_E_NULL, "exits and q");
    REJECT(s->p.tau = -0.5f, ATTN_E_RANGE, "tau");
    REJECT(s->p.tau = 1.5f, ATTN_E_RANGE, "tau");
    if (deep) REJECT(s->p.taus = high, ATTN_E_RANGE, "taus");
    REJECT(s->p.x_len = none, ATTN_E_RANGE, "x_len");
    if (kind == ATTN_EXIT_SEQUENCE) REJECT(s->x.len = 0, ATTN_E_SHAPE, "x.len");
    *s = keep, s->x.batch = s->q.batch = 0;
    promise_run(&s->does);
    if (kind != ATTN_EXIT_SEQUENCE) {
      *s = keep, s->x.len = s->q.len = 0;
      promise_run(&s->does);
    }
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_exits(keep.exit, keep.q, keep.x, NULL, &ctx), ATTN_E_NULL);
  }
}

/* ---- smoothing ------------------------------------------------------------------------------*/

typedef struct smooth {
  attn_tensor y, x;
  attn_exit_smooth_params p;
  promise does;
} smooth;

static attn_status smooth_call(void *at, attn_ctx *ctx) {
  smooth *s = at;
  return attn_exit_smooth(s->y, s->x, &s->p, ctx);
}
static size_t smooth_ask(void *at, const attn_ctx *ctx) {
  smooth *s = at;
  return attn_exit_smooth_workspace(s->y, s->x, &s->p, ctx);
}

static smooth *smooth_of(int64_t batch, int64_t layers, int64_t len, float sigma, attn_dtype type,
                         test_rng *rng) {
  smooth *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(type, TEST_PADDED, batch, 1, layers, len, 1, rng);
  s->y = output(type == ATTN_F16 ? ATTN_BF16 : ATTN_F32, TEST_NEGATIVE, batch, 1, layers, len,
                &s->does.block[0]);
  s->p.sigma = sigma;
  s->does.call = smooth_call, s->does.ask = smooth_ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

static void smooth_check(smooth *s, const char *what) {
  const int64_t n = s->x.len, t = s->x.dim;
  cube want = cube_of(s->x.batch, 1, n, t);
  promise_run(&s->does);
  for (int64_t e = 0; e < s->x.batch * n * t; e++) {
    const int64_t b = e / t / n, i = e / t % n, c = e % t, len = s->p.x_len ? s->p.x_len[b] : t;
    want.data[e] = 0;
    for (int64_t o = 0; c < len && o < len; o++)
      want.data[e] +=
          exp(-(double)((c - o) * (c - o)) / (double)s->p.sigma) * oracle_get(&s->x, b, 0, i, o);
  }
  cube_check(&want, &s->y, 2e-6, what);
}

void K2_smooth_random(void **state) {
  (void)state;
  static const float sigma[] = {1e-3f, 0.3f, 1, 7, 100, 5000, 1e9f};
  for (int64_t n = test_count(42, 14); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(11300 + (uint64_t)n);
    const int64_t batch = test_range(&rng, 1, 2), layers = test_range(&rng, 1, 5);
    const int64_t len = test_range(&rng, 1, n % 3 ? 30 : 200);
    smooth *s = smooth_of(batch, layers, len, sigma[n % 7], (attn_dtype)(n / 7 % 3), &rng);
    if (n % 4 == 1) s->p.x_len = test_lengths(batch, len, &rng);
    smooth_check(s, "smooth");
  }
}

/* Sigma tiny: the scores themselves; huge: their sum. */
void K2_smooth_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(11400);
  smooth *s = smooth_of(2, 3, 90, 1e-30f, ATTN_F32, &rng);
  promise_run(&s->does);
  test_assert_same(s->y, s->x, "identity");
  s->p.sigma = 3e38f;
  promise_run(&s->does);
  for (int64_t i = 0; i < 3; i++) {
    double sum = 0;
    for (int64_t c = 0; c < 90; c++) sum += oracle_get(&s->x, 1, 0, i, c);
    for (int64_t c = 0; c < 90; c++) assert_true(fabs(oracle_get(&s->y, 1, 0, i, c) - sum) < 2e-5);
  }
  s->p.sigma = 50;
  promise_keep(&s->does);
  smooth keep = *s;
  static const int32_t bad[2] = {90, 91};
  REJECT(s->p.sigma = 0, ATTN_E_RANGE, "sigma");
  REJECT(s->p.sigma = -1, ATTN_E_RANGE, "sigma");
  REJECT(s->p.sigma = NAN, ATTN_E_RANGE, "sigma");
  REJECT(s->p.x_len = bad, ATTN_E_RANGE, "len");
  REJECT(s->x.heads = 2, ATTN_E_SHAPE, "x must");
  REJECT(s->y.len = 2, ATTN_E_SHAPE, "y must");
  REJECT(s->y.dim = 89, ATTN_E_SHAPE, "y must");
  REJECT(s->y.data = s->x.data, ATTN_E_OVERLAP, "y is");
  *s = keep, s->x.len = s->y.len = 0;
  promise_run(&s->does);
}

/* ---- targets --------------------------------------------------------------------------------*/

void K2_target(void **state) {
  (void)state;
  for (int64_t n = test_count(40, 16); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(11500 + (uint64_t)n);
    const int64_t batch = test_range(&rng, 1, 3), layers = test_range(&rng, 1, 7);
    const int64_t len = test_range(&rng, 1, n % 3 ? 20 : 150);
    attn_tensor x = test_tensor((attn_dtype)(n % 3), TEST_PADDED, batch, 1, layers, len);
    if (n % 5) /* else halves, with many equal values */
      test_fill(x, &rng, test_exact);
    else
      for (int64_t e = 0; e < batch * layers * len; e++)
        oracle_set(&x, e / len / layers, 0, e / len % layers, e % len,
                   0.5 * (double)test_range(&rng, 0, 2));
    attn_exit_target_params p = {(int)(n % 2), n % 4 < 2 ? 0.5f : 0, NULL};
    if (n % 3 == 1) p.x_len = test_lengths(batch, len, &rng);
    int32_t *got = test_mem((size_t)(batch * len + 1) * sizeof *got);
    attn_ctx ctx = test_ctx();
    ctx.workers = 3, ctx.parallel_for = n % 2 ? test_parallel_backward : test_parallel_threads;
    assert_int_equal(attn_exit_target(got, x, &p, &ctx), ATTN_OK);
    for (int64_t r = 0; r < batch * (p.tokens ? len : 1); r++) {
      const int64_t b = p.tokens ? r / len : r, end = p.x_len ? p.x_len[b] : len;
      double best = -(double)INFINITY;
      int32_t want = 0;
      for (int64_t k = 1; k <= layers; k++) {
        double sum = -(double)p.lambda * (double)k;
        for (int64_t c = 0; c < end; c++)
          if (!p.tokens || c == r % len) sum += oracle_get(&x, b, 0, k - 1, c);
        if (sum > best) best = sum, want = (int32_t)k;
      }
      if (p.tokens && r % len >= end) want = 0;
      assert_int_equal(got[r], want);
    }
  }
}

void K2_target_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(11600);
  static const int32_t bad[1] = {9};
  int32_t got[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  for (int n = 0; n < 7; n++) {
    attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 3, 8, 1, &rng);
    attn_exit_target_params p = {1, 0, NULL};
    int32_t *to = got;
    attn_status want = ATTN_E_RANGE;
    switch (n) {
      case 0: p.lambda = -1; break;
      case 1: p.lambda = INFINITY; break;
      case 2: p.x_len = bad; break;
      case 3: to = NULL, want = ATTN_E_NULL; break;
      case 4: to = x.data, want = ATTN_E_OVERLAP; break;
      case 5: x.len = 0, want = ATTN_E_SHAPE; break;
      default: x.dtype = ATTN_I8, want = ATTN_E_DTYPE;
    }
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_exit_target(to, x, &p, &ctx), want);
    assert_non_null(ctx.reason);
    for (int i = 0; i < 8; i++) assert_int_equal(got[i], 7);
  }
}
