/* tests/families/linear/test_features.c owns feature maps by themselves: against float64, what each map promises, far
 * arguments, promises and rejections. */

#include "maps.h"

typedef struct scene {
  attn_tensor y, x;
  attn_feature_map f;
  int is_key;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_features(s->y, s->x, &s->f, s->is_key, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_features_workspace(s->y, s->x, &s->f, s->is_key, ctx);
}

static scene *features(attn_feature_map f, attn_tensor x, int is_key, attn_dtype type,
                       test_layout layout) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = x, s->f = f, s->is_key = is_key;
  s->y = output(type, layout, x.batch, x.heads, x.len, map_count(&f, x.dim), &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

/* Every feature against float64. All keys of a (batch, head) share the largest stabiliser. */
static void check(const scene *s, const char *what) {
  const attn_feature_map *f = &s->f;
  const int64_t dk = s->x.dim, m = s->y.dim;
  const int normed = f->norm == ATTN_FEATURE_NORM_SUM || f->norm == ATTN_FEATURE_NORM_L2;
  const attn_key_stab stab = f->key_stab != ATTN_STAB_DEFAULT ? f->key_stab
                             : normed                         ? ATTN_STAB_RUNNING
                                                              : ATTN_STAB_GLOBAL;
  const double eps = normed && stab == ATTN_STAB_GLOBAL ? 0 : map_eps(f, stab);
  double *y = test_mem((size_t)m * sizeof *y), *slack = test_mem((size_t)m * sizeof *y);
  for (int64_t b = 0; b < s->x.batch; b++)
    for (int64_t h = 0; h < s->x.heads; h++) {
      double c = stab == ATTN_STAB_CONST ? (double)f->key_const : -(double)INFINITY;
      for (int64_t i = 0; i < s->x.len && stab != ATTN_STAB_CONST && map_stabilised(f); i++)
        c = fmax(c, map_top(f, map_x(&s->x, b, h, i), dk, h));
      for (int64_t i = 0; i < s->x.len; i++) {
        map_row(y, slack, f, map_x(&s->x, b, h, i), dk, h, s->is_key, c, eps);
        for (int64_t r = 0; r < m; r++)
          value_check(oracle_get(&s->y, b, h, i, r), y[r], slack[r], s->y.dtype, what, b, h, i, r);
      }
    }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void E4_map_random(void **state) {
  (void)state;
  test_rng rng = test_seed(4200);
  for (int64_t n = test_count(84, 28); n-- > 0; test_mem_release()) {
    const attn_feature_kind kind = (attn_feature_kind)(n % ATTN_FEATURES_COUNT);
    const int64_t trial = n / ATTN_FEATURES_COUNT, dk = test_range(&rng, 1, n % 3 ? 20 : 70);
    const int64_t batch = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 3);
    const int64_t len = test_range(&rng, 1, trial % 4 ? 20 : 140);
    int64_t directions = test_range(&rng, 1, trial % 3 ? 40 : 150);
    if (kind == ATTN_FEATURES_ACT && trial % 2) directions = 0;
    attn_feature_map f =
        map_of(kind, trial % 2 ? heads : 1, directions, dk, test_u64(&rng), floats[trial % 5 % 3]);
    if (kind == ATTN_FEATURES_DPFP) f.order = test_range(&rng, 0, dk > 3 ? 4 : 2 * dk - 1);
    f.norm = (attn_feature_norm)(trial % ATTN_FEATURE_NORM_COUNT);
    f.activation = (attn_activation)((n + trial) % ATTN_ACT_COUNT);
    if (trial % 3 == 1) f.scale = 0.6f;
    if (kind == ATTN_FEATURES_ELU1 && trial % 2) f.query_scale = -1.25f;
    if (trial % 7 == 3) f.kernel_eps = ATTN_ZERO;
    if (trial % 7 == 4) f.kernel_eps = 0.25f;
    const int normed = f.norm > ATTN_FEATURE_NORM_NONE;
    f.key_stab = (attn_key_stab)(trial % ATTN_STAB_COUNT);
    f.key_const = 1.5f;
    if (f.key_stab != ATTN_STAB_RUNNING && trial % 4 > 1 && !normed) f.eps = 0.01f;
    if (trial % 6 == 5) f.eps = ATTN_ZERO;
    if (trial % 3 == 2) f.sigma = 1.7f;
    f.keep_norm = trial % 4 == 2;
    if (kind == ATTN_FEATURES_RFA && trial % 4 == 3) {
      f.sigmas = test_floats(dk, 0, &rng);
      for (int64_t c = 0; c < dk; c++) ((float *)(uintptr_t)f.sigmas)[c] = 0.5f + (float)(c % 3);
    }
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    const attn_tensor x = drawn(floats[trial % 4 % 3], (test_layout)(n % TEST_LAYOUTS), batch,
                                heads, len, dk, 1, &rng);
    scene *s = features(f, x, (int)(trial % 2), floats[n % 5 % 3], (test_layout)(n % 4));
    test_where = TEST_HEAP;
    assert_int_equal(attn_feature_count(&f, dk), s->y.dim);
    promise_run(&s->does);
    check(s, "features");
  }
}

/* Far out: limits, subnormal results, NaN in its row alone. */
void E4_map_far(void **state) {
  (void)state;
  static const float at[] = {-INFINITY, -3e38f, -105,   -90,  -80, -20, -1, -1e-3f, -1e-30f, -0.0f,
                             0,         1e-30f, 1e-20f, 0.5f, 1,   20,  90, 3e38f,  INFINITY};
  enum { N = sizeof at / sizeof *at };
  static float x[N + 1], y[N + 1];
  memcpy(x, at, sizeof at), x[N] = NAN;
  attn_ctx ctx = test_ctx();
  attn_feature_map f = map_of(ATTN_FEATURES_ELU1, 1, 0, 1, 0, ATTN_F32);
  assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, N + 1, 1),
                                 attn_bhtd(x, ATTN_F32, 1, 1, N + 1, 1), &f, 1, &ctx),
                   ATTN_OK);
  for (int i = 0; i < N; i++) {
    const double want = x[i] > 0 ? (double)x[i] + 1 : exp((double)x[i]);
    if (isinf(want) ? (double)y[i] != want
                    : !(fabs((double)y[i] - want) <= 1.2e-5 * want + 1.2e-38))
      fail_msg("elu(%g) + 1 is %g, not %g", (double)x[i], (double)y[i], want);
  }
  assert_true(isnan(y[N]));
  test_rng rng = test_seed(4201);
  for (int kind = 0; kind < ATTN_FEATURES_COUNT; kind++) {
    f = map_of((attn_feature_kind)kind, 1, 20, 6, 1, ATTN_F32);
    scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 70, 6, 1, &rng), 1, ATTN_F32, 0);
    promise_run(&s->does);
    scene *t = features(f, test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 70, 6), 1, ATTN_F32, 0);
    test_copy(t->x, s->x);
    oracle_set(&t->x, 0, 0, 66, 2, NAN);
    promise_run(&t->does);
    for (int64_t r = 0; r < t->y.dim; r++)
      if (kind >= ATTN_FEATURES_RFA && kind != ATTN_FEATURES_USER)
        assert_true(isnan(oracle_get(&t->y, 0, 0, 66, r)));
    if (kind == ATTN_FEATURES_SOFTMAX || kind == ATTN_FEATURES_HYPERBOLIC)
      continue; /* c may move */
    test_assert_same(test_rows(t->y, 0, 66), test_rows(s->y, 0, 66), "rows before a NaN");
    test_assert_same(test_rows(t->y, 67, 3), test_rows(s->y, 67, 3), "rows after a NaN");
  }
}

/* The list of the paper's authors, in this order; no feature is negative; dk = 1 gives zeros. */
void E4_map_dpfp(void **state) {
  (void)state;
  static float x[] = {2, -3, 0, 5};                      /* u = 2 0 0 5 0 3 0 0 */
  static const float want[] = {0, 0, 0, 0,  0, 0,  0, 0, /* u_j u_(j-1) */
                               0, 0, 0, 0,  0, 15, 0, 0, /* u_j u_(j-2) */
                               6, 0, 0, 10, 0, 0,  0, 0};
  static float y[24];
  attn_ctx ctx = test_ctx();
  attn_feature_map f = map_of(ATTN_FEATURES_DPFP, 1, 0, 4, 0, ATTN_F32);
  f.order = 3;
  assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, 1, 24),
                                 attn_bhtd(x, ATTN_F32, 1, 1, 1, 4), &f, 0, &ctx),
                   ATTN_OK);
  for (int r = 0; r < 24; r++) assert_true(y[r] == want[r]);
  f.order = 0;
  static float small[3] = {-1, 0, 7}, out[6] = {1, 1, 1, 1, 1, 1};
  assert_int_equal(attn_features(attn_bhtd(out, ATTN_F32, 1, 1, 3, 2),
                                 attn_bhtd(small, ATTN_F32, 1, 1, 3, 1), &f, 1, &ctx),
                   ATTN_OK);
  for (int r = 0; r < 6; r++) assert_true(out[r] == 0);
  /* the kernel is that of the paper, whose list is u_i u_(i+r) */
  test_rng rng = test_seed(4202);
  f.order = 5;
  scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 2, 7, 1, &rng), 0, ATTN_F32, 0);
  promise_run(&s->does);
  double kernel = 0, paper = 0, u[2][14];
  for (int i = 0; i < 2; i++)
    for (int c = 0; c < 7; c++) {
      const double t = oracle_get(&s->x, 0, 0, i, c);
      u[i][c] = fmax(t, 0), u[i][7 + c] = fmax(-t, 0);
    }
  for (int r = 1; r <= 5; r++)
    for (int j = 0; j < 14; j++)
      paper += u[0][j] * u[0][(j + r) % 14] * u[1][j] * u[1][(j + r) % 14];
  for (int64_t r = 0; r < s->y.dim; r++) {
    assert_true(oracle_get(&s->y, 0, 0, 0, r) >= 0);
    kernel += oracle_get(&s->y, 0, 0, 0, r) * oracle_get(&s->y, 0, 0, 1, r);
  }
  assert_true(fabs(kernel - paper) <= 1e-5 * paper);
}

/* Sums and lengths are 1; zero stays zero; numbers whose squares leave the range of floats. */
void E4_map_norms(void **state) {
  (void)state;
  test_rng rng = test_seed(4203);
  for (int l2 = 0; l2 < 2; l2++) {
    attn_feature_map f = map_of(ATTN_FEATURES_ACT, 1, 0, 9, 0, ATTN_F32);
    f.activation = ATTN_ACT_RELU, f.norm = l2 ? ATTN_FEATURE_NORM_L2 : ATTN_FEATURE_NORM_SUM;
    scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 5, 9, 1, &rng), 1, ATTN_F32, 0);
    for (int64_t c = 0; c < 9; c++) {
      oracle_set(&s->x, 0, 0, 1, c, -1);
      oracle_set(&s->x, 0, 0, 2, c, 1e-30 * (double)(c + 1));
      oracle_set(&s->x, 0, 0, 3, c, 3e37 * (double)(c + 1) / 9);
      oracle_set(&s->x, 0, 0, 4, c, 3e38);
    }
    promise_run(&s->does);
    for (int64_t i = 0; i < 5; i++) {
      double sum = 0;
      for (int64_t c = 0; c < 9; c++) {
        const double y = oracle_get(&s->y, 0, 0, i, c);
        sum += l2 ? y * y : y;
        if (i == 1) assert_true(y == 0);
        if (i == 2 || i == 3) assert_true(fabs(y - (double)(c + 1) / (l2 ? sqrt(285) : 45)) < 1e-6);
      }
      if (i != 1) assert_true(fabs(sum - 1) < 1e-6);
    }
  }
  /* exponentials far below each other: the factors cancel before they vanish */
  attn_feature_map f = map_of(ATTN_FEATURES_SOFTMAX, 1, 16, 4, 3, ATTN_F32);
  f.norm = ATTN_FEATURE_NORM_SUM;
  scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 8, 4, 20, &rng), 1, ATTN_F32, 0);
  promise_run(&s->does);
  check(s, "far apart");
  for (int64_t i = 0; i < 8; i++) {
    double sum = 0;
    for (int64_t r = 0; r < 16; r++) sum += oracle_get(&s->y, 0, 0, i, r);
    assert_true(fabs(sum - 1) < 1e-6);
  }
}

typedef struct witness {
  int is_key, rows[3];
  double scale;
  const attn_tensor *x;
  int bad;
} witness;

static void watch(void *user, float *y, const float *x, int64_t n, int64_t m, int64_t dk,
                  int64_t head, int is_key) {
  witness *w = user;
  w->bad |= n < 1 || n > 64 || m != 2 || dk != 3 || head < 0 || head > 2 || is_key != w->is_key;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = (int64_t)w->rows[head]++;
    for (int64_t c = 0; c < 3; c++)
      w->bad |= !(fabs((double)x[3 * i + c] - w->scale * oracle_get(w->x, 0, head, at, c)) <= 1e-6);
    y[2 * i] = (float)head, y[2 * i + 1] = x[3 * i];
  }
}

/* The callback sees every row once, scaled, with its head. */
void E4_map_callback(void **state) {
  (void)state;
  test_rng rng = test_seed(4204);
  for (int n = 0; n < 3; n++) {
    attn_feature_map f = map_of(ATTN_FEATURES_USER, 1, 0, 3, 0, ATTN_F32);
    const attn_tensor x = drawn(n ? ATTN_F16 : ATTN_F32, TEST_PADDED, 1, 3, 130, 3, 1, &rng);
    witness w = {n % 2, {0, 0, 0}, n == 2 ? 2 : 1, &x, 0};
    f.features = 2, f.fn = watch, f.user = &w;
    if (n == 2) f.scale = 4;
    scene *s = features(f, x, n % 2, ATTN_F32, TEST_PADDED);
    promise_run(&s->does);
    assert_false(w.bad);
    for (int64_t h = 0; h < 3; h++) {
      assert_int_equal(w.rows[h], 130);
      for (int64_t i = 0; i < 130; i++) {
        assert_true(oracle_get(&s->y, 0, h, i, 0) == (double)h);
        assert_true(oracle_get(&s->y, 0, h, i, 1) == w.scale * oracle_get(&x, 0, h, i, 0));
      }
    }
  }
}

void E4_map_counts(void **state) {
  (void)state;
  attn_feature_map f;
  memset(&f, 0, sizeof f);
  static const int64_t usual[][2] = {
      {1, 1},     {2, 1},       {3, 3}, {5, 8},  {64, 266},      {80, 350},     {96, 438},
      {128, 621}, {1024, 7097}, {0, 0}, {-5, 0}, {INT64_MIN, 0}, {INT64_MAX, 0}};
  for (int n = 0; n < 13; n++)
    assert_int_equal(attn_random_feature_count(usual[n][0]), usual[n][1]);
  assert_true(attn_random_feature_count((int64_t)1 << 48) > (int64_t)1 << 53);
  assert_int_equal(attn_feature_count(&f, 5), 5);
  assert_int_equal(attn_feature_count(&f, 0), 0);
  assert_int_equal(attn_feature_count(NULL, 5), 0);
  f.kind = ATTN_FEATURES_SOFTMAX;
  assert_int_equal(attn_feature_count(&f, 5), 0); /* no directions */
  f = map_of(ATTN_FEATURES_SOFTMAX, 2, 11, 5, 0, ATTN_F32);
  assert_int_equal(attn_feature_count(&f, 5), 11);
  assert_int_equal(attn_feature_count(&f, 6), 0); /* of another width */
  f.kind = ATTN_FEATURES_HYPERBOLIC;
  assert_int_equal(attn_feature_count(&f, 5), 22);
  f.kind = ATTN_FEATURES_RFA;
  assert_int_equal(attn_feature_count(&f, 5), 22);
  f.kind = ATTN_FEATURES_ACT;
  assert_int_equal(attn_feature_count(&f, 5), 11);
  f.kind = ATTN_FEATURES_DPFP, f.order = 9;
  assert_int_equal(attn_feature_count(&f, 5), 90);
  f.order = 10;
  assert_int_equal(attn_feature_count(&f, 5), 0);
  f = map_of(ATTN_FEATURES_USER, 1, 0, 5, 0, ATTN_F32);
  assert_int_equal(attn_feature_count(&f, 5), 11);
}

/* ---- random Fourier features ----------------------------------------------------------------*/

/* phi(x) has length 1 for every x but 0, and does not see how long x is; 0 gives [0 .., D^-1/2 ..]. */
void E2_map_sphere(void **state) {
  (void)state;
  test_rng rng = test_seed(4210);
  const attn_feature_map f = map_of(ATTN_FEATURES_RFA, 1, 37, 10, 2, ATTN_F32);
  scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 12, 10, 1, &rng), 0, ATTN_F32, 0);
  scene *t = features(f, test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 12, 10), 1, ATTN_F32, 0);
  for (int64_t i = 0; i < 12; i++)
    for (int64_t c = 0; c < 10; c++)
      oracle_set(&t->x, 0, 0, i, c, ldexp(oracle_get(&s->x, 0, 0, i, c), (int)(8 * i - 12)));
  test_fill_row(s->x, 0, 0, 3, 0), test_fill_row(t->x, 0, 0, 3, 0);
  promise_run(&s->does), promise_run(&t->does);
  for (int64_t i = 0; i < 12; i++) {
    double length = 0;
    for (int64_t r = 0; r < 74; r++) {
      const double y = oracle_get(&s->y, 0, 0, i, r);
      length += y * y;
      if (i == 3) assert_true(fabs(y - (r < 37 ? 0 : 1 / sqrt(37))) < 1e-7);
      assert_true(fabs(y - oracle_get(&t->y, 0, 0, i, r)) < 2e-7);
    }
    assert_true(fabs(length - 1) < 2e-6);
  }
}

/* Averaged over directions, phi(x) . phi(y) = exp(-|x - y|^2 / (2 sigma^2)). */
void E2_map_kernel(void **state) {
  (void)state;
  test_rng rng = test_seed(4211);
  const int64_t d = test_count(20000, 4000);
  attn_feature_map f = map_of(ATTN_FEATURES_RFA, 1, d, 6, 4, ATTN_F32);
  f.sigma = 0.8f;
  scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 6, 1, &rng), 0, ATTN_F32, 0);
  promise_run(&s->does);
  for (int64_t i = 0; i < 6; i++)
    for (int64_t j = 0; j < i; j++) {
      const double *x = map_x(&s->x, 0, 0, i), *y = map_x(&s->x, 0, 0, j);
      double dot = 0, xx = 0, yy = 0, kernel = 0;
      for (int c = 0; c < 6; c++) dot += x[c] * y[c], xx += x[c] * x[c], yy += y[c] * y[c];
      for (int64_t r = 0; r < 2 * d; r++)
        kernel += oracle_get(&s->y, 0, 0, i, r) * oracle_get(&s->y, 0, 0, j, r);
      const double want = exp((dot / sqrt(xx * yy) - 1) / 0.64);
      assert_true(fabs(kernel - want) < 5 / sqrt((double)d));
    }
}

/* Arguments of any size, where floats are whole turns apart too. */
void E2_map_far(void **state) {
  (void)state;
  static float w[3] = {1, -2.5f, 0},
               x[] = {0,     1,    -3,    100,   8000,  -8190, 8200,    -20000,
                      65000, 1e6f, -3e7f, 1e20f, 0.25f, 3.1f,  1.5707f, -4.7123f};
  enum { N = sizeof x / sizeof *x };
  static float y[N * 6];
  attn_feature_map f;
  attn_ctx ctx = test_ctx();
  memset(&f, 0, sizeof f);
  f.kind = ATTN_FEATURES_RFA, f.keep_norm = 1, f.w = attn_bhtd(w, ATTN_F32, 1, 1, 3, 1);
  assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, N, 6),
                                 attn_bhtd(x, ATTN_F32, 1, 1, N, 1), &f, 0, &ctx),
                   ATTN_OK);
  for (int i = 0; i < N; i++)
    for (int r = 0; r < 3; r++) {
      const double u = (double)(x[i] * w[r]); /* one product: the float is exact to half a place */
      const double by = 1 / sqrt(3), slack = 2.1e-7 * by;
      if (!(fabs((double)y[6 * i + r] - by * sin(u)) <= slack &&
            fabs((double)y[6 * i + 3 + r] - by * cos(u)) <= slack))
        fail_msg("sin, cos of %g are %g, %g", u, (double)y[6 * i + r] / by,
                 (double)y[6 * i + 3 + r] / by);
    }
}

/* On the sphere no size of a row matters, were its square beyond floats, or its scale. */
void E2_map_sizes(void **state) {
  (void)state;
  test_rng rng = test_seed(4212);
  static const float size[] = {1, 3e38f, 1e20f, 1e-16f, 1e-18f};
  static float x[5][5 * 6], y[5 * 64], first[64];
  const attn_feature_map plain = map_of(ATTN_FEATURES_RFA, 1, 32, 6, 3, ATTN_F32);
  for (int c = 0; c < 6; c++) x[0][c] = (float)test_range(&rng, 128, 256) / (c % 2 ? 256 : -256);
  for (int n = 0; n < 5; n++) {
    attn_feature_map f = plain;
    attn_ctx ctx = test_ctx();
    if (size[n] < 1) f.scale = 1 / size[n] / size[n];
    for (int i = 0; i < 5; i++) /* one such row among others */
      for (int c = 0; c < 6; c++) x[n][6 * i + c] = x[0][c] * (i == 3 ? size[n] : 1);
    assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, 5, 64),
                                   attn_bhtd(x[n], ATTN_F32, 1, 1, 5, 6), &f, 0, &ctx),
                     ATTN_OK);
    if (n == 0) memcpy(first, y, sizeof first);
    for (int r = 0; r < 5 * 64; r++)
      if (!(fabs((double)(y[r] - first[r % 64])) < 2e-7))
        fail_msg("%g: %g is not %g", (double)size[n], (double)y[r], (double)first[r % 64]);
  }
}

/* ---- positive features ----------------------------------------------------------------------*/

/* Queries reach m^-1/2 (exp(-n) + eps) and no more; the largest key too; keys keep their ratios. */
void E3_map_bounds(void **state) {
  (void)state;
  test_rng rng = test_seed(4220);
  for (int n = 0; n < 8; n++) {
    const int hyperbolic = n % 2, running = n / 2 % 2, is_key = n / 4;
    attn_feature_map f = map_of(hyperbolic ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX, 1,
                                33, 8, 5, ATTN_F32);
    if (running) f.key_stab = ATTN_STAB_RUNNING;
    scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 150, 8, 2, &rng), is_key, ATTN_F32, 0);
    promise_run(&s->does);
    const double root = 1 / sqrt((double)s->y.dim), eps = running ? 0 : 1e-4;
    double most = 0;
    for (int64_t i = 0; i < 150; i++) {
      double top = 0, half = 0;
      for (int64_t c = 0; c < 8; c++) {
        const double x = oracle_get(&s->x, 0, 0, i, c);
        half += x * x / sqrt(8) / 2;
      }
      for (int64_t r = 0; r < s->y.dim; r++) top = fmax(top, oracle_get(&s->y, 0, 0, i, r));
      assert_true(top <= root * (1 + eps) * 1.000001);
      if (!is_key) assert_true(fabs(top - root * (exp(-half) + eps)) <= 1e-5 * top);
      most = fmax(most, (top - root * eps) * exp(half));
    }
    assert_true(fabs(most / root - 1) < 2e-3);
    check(s, "bounds");
  }
}

/* Averaged over seeds, phi(x) . phi(y) e^(c of both) = exp(s x . y): orthogonal rows of either length,
 * also where the last block is not whole, and pairs of signs with less variance. */
void E3_map_kernel(void **state) {
  (void)state;
  test_rng rng = test_seed(4221);
  const int64_t seeds = test_count(400, 100), dk = 6, m = 15;
  const attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 2, dk, 1, &rng);
  const double *a = map_x(&x, 0, 0, 0), *b = map_x(&x, 0, 0, 1);
  double dot = 0, spread[2];
  for (int64_t c = 0; c < dk; c++) dot += a[c] * b[c];
  const double want = exp(dot / sqrt((double)dk));
  for (int hyperbolic = 0; hyperbolic < 2; hyperbolic++) {
    double sum = 0, square = 0;
    static float data[2 * 30];
    for (int64_t n = 0; n < seeds; n++) {
      static float wdata[15 * 6];
      attn_random_params p;
      attn_feature_map f;
      attn_ctx ctx = test_ctx();
      memset(&p, 0, sizeof p), memset(&f, 0, sizeof f);
      p.seed = 77, p.draw = n;
      f.kind = hyperbolic ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX;
      f.w = attn_bhtd(wdata, ATTN_F32, 1, 1, m, dk);
      f.key_stab = ATTN_STAB_CONST, f.eps = ATTN_ZERO; /* c = 0: plain features of both */
      assert_int_equal(attn_random_features(f.w, &p, &ctx), ATTN_OK);
      const int64_t all = hyperbolic ? 2 * m : m;
      assert_int_equal(attn_features(attn_bhtd(data, ATTN_F32, 1, 1, 2, all), x, &f, 1, &ctx),
                       ATTN_OK);
      double k = 0;
      for (int64_t r = 0; r < all; r++) k += (double)data[r] * (double)data[all + r];
      sum += k, square += k * k;
    }
    const double mean = sum / (double)seeds;
    spread[hyperbolic] = sqrt(fmax(square / (double)seeds - mean * mean, 0));
    assert_true(fabs(mean - want) <= 5 * spread[hyperbolic] / sqrt((double)seeds));
  }
  assert_true(spread[1] < spread[0]);
}

/* Rows so long that their features vanish give eps alone, or zeros; never NaN. m below dk, and dk of
 * 1. */
void E3_map_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(4222);
  for (int n = 0; n < 12; n++) {
    const int64_t dk = n % 3 == 0 ? 1 : 9, m = n % 3 == 1 ? 4 : 20;
    attn_feature_map f =
        map_of(n % 2 ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX, 1, m, dk, 6, ATTN_F32);
    f.key_stab = n < 6 ? ATTN_STAB_GLOBAL : ATTN_STAB_RUNNING;
    scene *s =
        features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, dk, 1, &rng), n / 3 % 2, ATTN_F32, 0);
    test_fill_row(s->x, 0, 0, 1, 300), test_fill_row(s->x, 0, 0, 4, 0);
    promise_run(&s->does);
    check(s, "long rows");
    const double eps = n < 6 ? 1e-4 : 0, root = 1 / sqrt((double)s->y.dim);
    for (int64_t r = 0; r < s->y.dim; r++)
      assert_true(fabs(oracle_get(&s->y, 0, 0, 1, r) - root * eps) < 1e-11);
  }
  attn_feature_map f = map_of(ATTN_FEATURES_SOFTMAX, 1, 20, 4, 6, ATTN_F32);
  f.key_stab = ATTN_STAB_CONST, f.key_const = -200; /* too small a constant: infinity, as it says */
  scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 4, 1, &rng), 1, ATTN_F32, 0);
  promise_run(&s->does);
  for (int64_t r = 0; r < 20; r++) assert_true(oracle_get(&s->y, 0, 0, 0, r) > 3e38);
  /* exp(u - n - c) beyond the range of floats, the features not: 64 times less */
  static float w[4096], x[2] = {3, 0}, y[4096];
  w[0] = 10, w[2] = -30, w[5] = 1;
  f.w = attn_bhtd(w, ATTN_F32, 1, 1, 2048, 2), f.scale = 1, f.eps = ATTN_ZERO, f.key_const = -66;
  attn_ctx ctx = test_ctx();
  f.kind = ATTN_FEATURES_HYPERBOLIC;
  assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, 1, 4096),
                                 attn_bhtd(x, ATTN_F32, 1, 1, 1, 2), &f, 1, &ctx),
                   ATTN_OK);
  assert_true(isinf(y[2048 + 1])); /* exp(90 - 4.5 + 66) */
  w[2] = 0;
  assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, 1, 4096),
                                 attn_bhtd(x, ATTN_F32, 1, 1, 1, 2), &f, 1, &ctx),
                   ATTN_OK);
  for (int r = 0; r < 3; r++) {
    const double want = exp((r ? 0 : 30) - 4.5 + 66) / 64;
    if (!(fabs((double)y[r] - want) <= 1e-4 * want)) fail_msg("feature %g", (double)y[r]);
  }
}

/* ---- promises -------------------------------------------------------------------------------*/

void E4_map_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4230);
  for (int kind = 0; kind < ATTN_FEATURES_COUNT; kind++)
    for (int is_key = 0; is_key < 2; is_key++, test_mem_release()) {
      attn_feature_map f = map_of((attn_feature_kind)kind, is_key ? 3 : 1, 20, 12, 1, ATTN_F16);
      if (is_key && kind == ATTN_FEATURES_RFA) f.keep_norm = 1;
      if (!is_key) f.norm = ATTN_FEATURE_NORM_SUM;
      promise_keep(&features(f, drawn(ATTN_BF16, TEST_BTHD, 1, 3, 70, 12, 1, &rng), is_key,
                             is_key ? ATTN_F32 : ATTN_F16, TEST_PADDED)
                        ->does);
    }
  for (int n = 0; n < 3; n++) {
    attn_feature_map f = map_of(ATTN_FEATURES_SOFTMAX, 1, 7, 5, 1, ATTN_F32);
    attn_tensor x = drawn(ATTN_F32, TEST_BHTD, n != 0, n != 1, n == 2 ? 0 : 3, 5, 1, &rng);
    promise_run(&features(f, x, 1, ATTN_F32, TEST_BHTD)->does);
  }
}

/* avx2 and avx512 give the same bits; so do rows computed alone, where keys share nothing. */
void E4_map_bits(void **state) {
  (void)state;
  test_rng rng = test_seed(4231);
  for (int kind = 0; kind < ATTN_FEATURES_COUNT; kind++, test_mem_release()) {
    const attn_feature_map f = map_of((attn_feature_kind)kind, 2, 45, 19, 1, ATTN_F32);
    scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 1, 2, 71, 19, 1, &rng), 0, ATTN_F32, 0);
    promise_run(&s->does);
    scene *t = features(f, test_rows(s->x, 13, 3), 0, ATTN_F32, 0);
    promise_run(&t->does);
    test_assert_same(t->y, test_rows(s->y, 13, 3), "three rows");
    if (test_isa != ATTN_ISA_AVX512) continue;
    scene *u = features(f, s->x, 0, ATTN_F32, 0);
    attn_ctx ctx = test_ctx();
    ctx.isa = ATTN_ISA_AVX2;
    assert_int_equal(call(u, &ctx), ATTN_OK);
    test_assert_same(u->y, s->y, "avx2 and avx512");
  }
}

void E4_map_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(4232);
  static float bad[6] = {1, 1, 0, 1, 1, 1};
  static const attn_feature_kind kind_of[] = {
      ATTN_FEATURES_ELU1,    ATTN_FEATURES_ELU1,    ATTN_FEATURES_ELU1,    ATTN_FEATURES_ACT,
      ATTN_FEATURES_ACT,     ATTN_FEATURES_DPFP,    ATTN_FEATURES_DPFP,    ATTN_FEATURES_RFA,
      ATTN_FEATURES_RFA,     ATTN_FEATURES_RFA,     ATTN_FEATURES_RFA,     ATTN_FEATURES_RFA,
      ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_SOFTMAX,
      ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_SOFTMAX,
      ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_USER,    ATTN_FEATURES_USER,    ATTN_FEATURES_ELU1,
      ATTN_FEATURES_ELU1,    ATTN_FEATURES_ELU1,    ATTN_FEATURES_ELU1,    ATTN_FEATURES_ELU1,
      ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_ELU1,    ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_ACT,
      ATTN_FEATURES_ACT,     ATTN_FEATURES_ELU1,    ATTN_FEATURES_ELU1,    ATTN_FEATURES_ACT};
  for (int n = 0; n < (int)(sizeof kind_of / sizeof *kind_of); n++, test_mem_release()) {
    attn_feature_map f = map_of(kind_of[n], 2, 5, 6, 1, ATTN_F32);
    scene *s = features(f, drawn(ATTN_F32, TEST_BHTD, 2, 2, 4, 6, 1, &rng), 1, ATTN_F32, 0);
    attn_feature_map *p = &s->f;
    attn_status want = ATTN_E_VALUE;
    const char *word = "";
    switch (n) {
      case 0: p->kind = ATTN_FEATURES_COUNT, want = ATTN_E_RANGE, word = "map.kind"; break;
      case 1: p->norm = (attn_feature_norm)-1, want = ATTN_E_RANGE, word = "map.norm"; break;
      case 2: p->scale = NAN, word = "map.scale"; break;
      case 3: p->activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "map.activation"; break;
      case 4: p->kernel_eps = -1, word = "map.kernel_eps"; break;
      case 5: p->order = 12, want = ATTN_E_RANGE, word = "map.order"; break;
      case 6: p->order = -1, want = ATTN_E_RANGE, word = "map.order"; break;
      case 7: p->sigma = -1, word = "map.sigma "; break;
      case 8: p->sigma = ATTN_ZERO, word = "map.sigma "; break;
      case 9: p->sigmas = bad, word = "map.sigmas"; break;
      case 10: p->sigmas = bad, p->keep_norm = 1, word = "map.keep_norm"; break;
      case 11: p->w.data = NULL, want = ATTN_E_NULL, word = "map.w"; break;
      case 12: p->scale = ATTN_ZERO, word = "map.scale"; break;
      case 13: p->scale = -1, word = "map.scale"; break;
      case 14: p->eps = -1e-4f, word = "map.eps"; break;
      case 15: p->eps = INFINITY, word = "map.eps"; break;
      case 16: p->eps = 1e-4f, p->key_stab = ATTN_STAB_RUNNING, word = "RUNNING"; break;
      case 17: p->key_const = INFINITY, word = "map.key_const"; break;
      case 18: p->key_stab = ATTN_STAB_COUNT, want = ATTN_E_RANGE, word = "map.key_stab"; break;
      case 19: p->w.len = 0, want = ATTN_E_SHAPE, word = "map.w"; break;
      case 20: p->w.dim = 5, want = ATTN_E_SHAPE, word = "map.w"; break;
      case 21: p->fn = NULL, want = ATTN_E_NULL, word = "map.fn"; break;
      case 22: p->features = 0, want = ATTN_E_SHAPE, word = "map.features"; break;
      case 23: s->y.dim = 5, want = ATTN_E_SHAPE, word = "y.dim"; break;
      case 24: s->y.len = 3, want = ATTN_E_SHAPE, word = "y "; break;
      case 25: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 26: s->x = s->y, want = ATTN_E_OVERLAP, word = "y "; break;
      case 27: s->y.stride_len = 0, want = ATTN_E_STRIDE, word = "y "; break;
      case 28: p->w.heads = 3, want = ATTN_E_SHAPE, word = "map.w"; break;
      case 29: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      case 30: p->eps = 1e-3f, p->norm = ATTN_FEATURE_NORM_L2, word = "map.eps"; break;
      case 31: p->w.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "map.w"; break;
      case 32: p->scale = -1, word = "map.scale"; break;
      case 33: p->query_scale = INFINITY, word = "map.query_scale"; break;
      case 34: p->scale = -1e-9f, word = "map.scale"; break;
      default: p->query_scale = 2, word = "map.query_scale"; break;
    }
    promise_reject(&s->does, want, word);
  }
  attn_ctx ctx = test_ctx();
  static float y[4], x[4];
  assert_int_equal(attn_features(attn_bhtd(y, ATTN_F32, 1, 1, 1, 4),
                                 attn_bhtd(x, ATTN_F32, 1, 1, 1, 4), NULL, 0, &ctx),
                   ATTN_E_NULL);
}
