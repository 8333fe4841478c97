/* tests/families/training/test_features_backward.c owns N5, gradients through feature maps: against central differences
 * of the maps in float64, with the stabiliser held. */

#include <stdio.h>

#include "dense.h"
#include "families/linear/maps.h"

typedef struct scene {
  attn_tensor d_x, d_y, x;
  attn_feature_map f;
  int is_key;
  attn_features_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_features_backward(s->d_x, s->d_y, s->x, &s->f, s->is_key, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_features_backward_workspace(s->d_x, s->d_y, s->x, &s->f, s->is_key, &s->g, ctx);
}

/* Of map_callback. */
static void back(void *user, float *d_x, const float *d_y, const float *y, const float *x,
                 int64_t n, int64_t m, int64_t dk, int64_t head, int is_key) {
  (void)user, (void)head, (void)is_key;
  for (int64_t i = 0; i < n; i++, d_x += dk, x += dk, d_y += m, y += m)
    for (int64_t c = 0; c < dk; c++) d_x[c] = d_y[c] + 2 * y[c] * d_y[dk + c] + 0 * x[c];
}

static void output_of(scene *s, attn_dtype type, test_layout layout, int64_t batch, int64_t heads,
                      int64_t len) {
  s->d_x = output(type, layout, batch, heads, len, s->x.dim, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->d_x;
}

static scene *build(attn_feature_map f, attn_tensor x, int is_key, attn_dtype type,
                    test_layout layout, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = x, s->f = f, s->is_key = is_key;
  if (f.kind == ATTN_FEATURES_USER) s->f.back = back;
  s->d_y = drawn(type, layout, x.batch, x.heads, x.len, map_count(&f, x.dim), 1, rng);
  return s;
}

static int normed(const attn_feature_map *f) { return f->norm > ATTN_FEATURE_NORM_NONE; }
static int powers(const attn_feature_map *f) {
  return f->kind == ATTN_FEATURES_SOFTMAX || f->kind == ATTN_FEATURES_HYPERBOLIC;
}
static attn_key_stab stab_of(const attn_feature_map *f) {
  return f->key_stab != ATTN_STAB_DEFAULT ? f->key_stab
         : normed(f)                      ? ATTN_STAB_RUNNING
                                          : ATTN_STAB_GLOBAL;
}

/* d_x of one row and what f32 may miss of it: differences on both sides, which a kink tells apart. Where features are
 * divided by their size, what they were before has slopes that cancel one another. */
static void row_back(double *want, double *bound, const scene *s, int64_t b, int64_t h, int64_t i,
                     double c, double eps) {
  const attn_feature_map *f = &s->f;
  const int64_t dk = s->x.dim, m = s->d_y.dim;
  const int key = powers(f) || s->is_key;
  attn_feature_map raw = *f;
  raw.norm = ATTN_FEATURE_NORM_NONE;
  double *x = map_x(&s->x, b, h, i), *y[5], *slack = test_mem((size_t)m * sizeof *slack);
  double step = 1e-6, all = 0, length = 0, sum = 0, sums = 0, squares = 0;
  for (int n = 0; n < 5; n++) y[n] = test_mem((size_t)m * sizeof(double));
  if (powers(f) && !s->is_key) c = map_top(f, x, dk, h);
  for (int64_t k = 0; k < dk; k++) length += x[k] * x[k];
  length = sqrt(length);
  if (f->kind == ATTN_FEATURES_RFA) step *= fmin(1, length);
  map_row(y[4], slack, &raw, x, dk, h, key, c, eps);
  for (int64_t r = 0; r < m; r++)
    sum += y[4][r], sums += fabs(y[4][r]) + slack[r], squares += y[4][r] * y[4][r];
  const double size = f->norm == ATTN_FEATURE_NORM_SUM ? fabs(sum) : sqrt(squares);
  map_row(y[0], slack, f, x, dk, h, key, c, eps);
  for (int64_t k = 0; k < dk; k++) {
    const double was = x[k];
    double wrong = 0, kink = 0, slopes = 0;
    for (int n = 0; n < 4; n++) {
      x[k] = was + (n % 2 ? step : -step);
      map_row(y[n < 2 ? 1 + n : n == 2 ? 3 : 4], slack, n < 2 ? f : &raw, x, dk, h, key, c, eps);
    }
    x[k] = was, want[k] = 0;
    for (int64_t r = 0; r < m; r++) slopes += fabs(y[4][r] - y[3][r]) / (2 * step);
    for (int64_t r = 0; r < m; r++) {
      const double d = oracle_get(&s->d_y, b, h, i, r), slope = (y[2][r] - y[1][r]) / (2 * step);
      const double own = fabs(y[4][r] - y[3][r]) / (2 * step);
      want[k] += d * slope;
      wrong += fabs(d) * (normed(f) ? (own + fabs(y[0][r]) * slopes) / size : own);
      kink += fabs(d) * fabs(y[2][r] + y[1][r] - 2 * y[0][r]) / step;
    }
    all = fmax(all, wrong), bound[k] = kink;
  }
  const double lost = f->norm == ATTN_FEATURE_NORM_SUM ? sums / fabs(sum) : 1;
  for (int64_t k = 0; k < dk; k++) {
    bound[k] += 2e-5 * all * (1 + length) * lost + 1e-8;
    if (!(bound[k] < 1e30)) bound[k] = (double)INFINITY; /* nothing is known */
  }
}

/* Each share of the gradient, added up where the output is shared. */
static void check(const scene *s, double more, const char *what) {
  const attn_feature_map *f = &s->f;
  const int64_t dk = s->x.dim;
  const attn_key_stab stab = stab_of(f);
  const double eps = normed(f) && stab == ATTN_STAB_GLOBAL ? 0 : map_eps(f, stab);
  double *want = test_mem((size_t)dk * sizeof *want), *bound = test_mem((size_t)dk * sizeof *want);
  dense_sum sum = dense_open(&s->d_x);
  for (int64_t b = 0; b < s->x.batch; b++)
    for (int64_t h = 0; h < s->x.heads; h++) {
      double c = stab == ATTN_STAB_CONST ? (double)f->key_const : -(double)INFINITY;
      for (int64_t i = 0; i < s->x.len && stab != ATTN_STAB_CONST && map_stabilised(f); i++)
        c = fmax(c, map_top(f, map_x(&s->x, b, h, i), dk, h));
      for (int64_t i = 0; i < s->x.len; i++) {
        row_back(want, bound, s, b, h, i, c, eps);
        for (int64_t k = 0; k < dk; k++) dense_add(&sum, b, h, i, k, want[k], bound[k]);
      }
    }
  for (int64_t b = 0; b < s->d_x.batch && more != 0; b++)
    for (int64_t h = 0; h < s->d_x.heads; h++)
      for (int64_t i = 0; i < s->d_x.len; i++)
        for (int64_t k = 0; k < dk; k++) {
          cube_at(&sum.want, b, h, i)[k] += more;
          cube_at(&sum.size, b, h, i)[k] += 4e-7 * more;
        }
  dense_check(&sum, &s->d_x, what);
}

static attn_feature_map some_map(int64_t kind, int64_t trial, int64_t heads, int64_t directions,
                                 int64_t dk, test_rng *rng) {
  static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  if (kind == ATTN_FEATURES_ACT && trial % 2) directions = 0;
  attn_feature_map f = map_of((attn_feature_kind)kind, trial % 2 ? heads : 1, directions, dk,
                              test_u64(rng), floats[trial % 5 % 3]);
  if (kind == ATTN_FEATURES_DPFP) f.order = test_range(rng, 0, dk > 3 ? 4 : 2 * dk - 1);
  f.norm = (attn_feature_norm)test_range(rng, 0, ATTN_FEATURE_NORM_COUNT - 1);
  f.activation = (attn_activation)test_range(rng, 0, ATTN_ACT_COUNT - 1);
  if (trial % 3 == 1) f.scale = 0.6f;
  if (kind == ATTN_FEATURES_ELU1 && trial % 2) f.query_scale = -1.25f;
  if (trial % 7 == 3) f.kernel_eps = ATTN_ZERO;
  if (trial % 7 == 4) f.kernel_eps = 0.25f;
  f.key_stab = (attn_key_stab)test_range(rng, 0, ATTN_STAB_COUNT - 1);
  f.key_const = 1.5f;
  if (f.key_stab != ATTN_STAB_RUNNING && trial % 4 > 1 && !normed(&f)) f.eps = 0.01f;
  if (trial % 6 == 5) f.eps = ATTN_ZERO;
  if (trial % 3 == 2) f.sigma = 1.7f;
  f.keep_norm = trial % 4 == 2;
  if (kind == ATTN_FEATURES_RFA && trial % 4 == 3) {
    float *sigmas = test_floats(dk, 0, rng);
    for (int64_t c = 0; c < dk; c++) sigmas[c] = 0.5f + (float)(c % 3);
    f.sigmas = sigmas;
  }
  return f;
}

void N5_features_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9500);
  for (int64_t n = test_count(280, 84); n-- > 0; test_mem_release()) {
    const int64_t kind = n % ATTN_FEATURES_COUNT, trial = n / ATTN_FEATURES_COUNT;
    const int64_t dk = test_range(&rng, 1, 20), batch = test_range(&rng, 1, 2);
    const int64_t heads = test_range(&rng, 1, 3), len = test_range(&rng, 1, trial % 5 ? 8 : 140);
    const int64_t directions = test_range(&rng, 1, len > 8 ? 12 : 40);
    const attn_feature_map f = some_map(kind, trial, heads, directions, dk, &rng);
    const attn_tensor x =
        drawn((attn_dtype)(test_u64(&rng) % 3), (test_layout)(test_u64(&rng) % TEST_LAYOUTS), batch,
              heads, len, dk, trial % 6 == 1 ? 0.05 : 1, &rng);
    scene *s = build(f, x, (int)(test_u64(&rng) % 2), (attn_dtype)(test_u64(&rng) % 3),
                     (test_layout)(test_u64(&rng) % TEST_LAYOUTS), &rng);
    output_of(s, (attn_dtype)(test_u64(&rng) % 3), (test_layout)(test_u64(&rng) % TEST_SHARED),
              batch, heads, len);
    promise_run(&s->does);
    char what[99];
    snprintf(what, sizeof what, "map %d, norm %d, act %d, key %d, stab %d, norm %d", f.kind, f.norm,
             f.activation, s->is_key, f.key_stab, f.keep_norm);
    check(s, 0, what);
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* What is read more than once has the sum of its shares; what was there is added to. */
void N5_features_backward_shared(void **state) {
  (void)state;
  test_rng rng = test_seed(9501);
  for (int n = 0; n < 2 * ATTN_FEATURES_COUNT; n++, test_mem_release()) {
    const attn_feature_map f = some_map(n / 2, n, 3, 9, 5, &rng);
    const attn_tensor x = drawn(ATTN_F32, n % 2 ? TEST_SHARED : TEST_ONE_ROW, 2, 3, 70, 5, 1, &rng);
    scene *s = build(f, x, n % 2, ATTN_F32, TEST_BHTD, &rng);
    for (int to = 0; to < 3; to++) {
      const int64_t one = to != 1;
      output_of(s, to == 2 ? ATTN_BF16 : ATTN_F32, TEST_PADDED, n % 2 && one ? 1 : 2,
                n % 2 && one ? 1 : 3, n % 2 || !one ? 70 : 1);
      s->g.accumulate = 0;
      promise_run(&s->does);
      check(s, 0, "shares");
      test_fill_value(s->d_x, 3), s->g.accumulate = 1;
      promise_run(&s->does);
      check(s, 3, "added");
      promise_keep(&s->does);
    }
  }
}

/* Sums and lengths of 0, kinks, rows near 0 and far from it; what features are blind to has no gradient. */
void N5_features_backward_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(9502);
  for (int n = 0; n < 2 * ATTN_FEATURES_COUNT; n++, test_mem_release()) {
    attn_feature_map f = some_map(n / 2, n, 1, 9, 6, &rng);
    const attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 9, 6, 1, &rng);
    attn_tensor was;
    f.eps = 0, f.key_stab = ATTN_STAB_DEFAULT;
    scene *s = build(f, x, n % 2, ATTN_F32, TEST_BHTD, &rng);
    output_of(s, ATTN_F32, TEST_BHTD, 1, 1, 9);
    promise_run(&s->does);
    was = s->d_x;
    test_fill_row(s->d_y, 0, 0, 4, (double)NAN);
    output_of(s, ATTN_F32, TEST_BHTD, 1, 1, 9);
    promise_run(&s->does);
    for (int i = 0; i < 9; i++)
      if (i != 4) test_assert_same(test_rows(s->d_x, i, 1), test_rows(was, i, 1), "a NaN's row");
    test_fill_row(s->x, 0, 0, 5, (double)NAN);
    output_of(s, ATTN_F32, TEST_BHTD, 1, 1, 9);
    promise_run(&s->does);
    for (int i = 0; i < 9; i++)
      if (i < 4 || i > 5) test_assert_same(test_rows(s->d_x, i, 1), test_rows(was, i, 1), "a NaN");
    test_fill_value(s->d_y, 2), test_fill_row(s->x, 0, 0, 5, 0.25); /* a sum of 1 stays 1 */
    s->f.norm = ATTN_FEATURE_NORM_SUM, s->f.activation = ATTN_ACT_SIGMOID;
    output_of(s, ATTN_F32, TEST_BHTD, 1, 1, 9);
    promise_run(&s->does);
    for (int i = 0; i < 9 && s->f.kind != ATTN_FEATURES_RFA && s->f.kind != ATTN_FEATURES_USER; i++)
      for (int c = 0; c < 6; c++)
        value_check(oracle_get(&s->d_x, 0, 0, i, c), 0, 1e-5, ATTN_F32, "a sum", 0, 0, i, c);
  }
  static float at[6][2] = {{-1, -2}, {0, 0}, {0, 3}, {1e-9f, 0}, {3e30f, -4e30f}, {3, -4}};
  static float d[6][2], one[6][2];
  attn_ctx ctx = test_ctx();
  attn_feature_map f;
  memset(&f, 0, sizeof f);
  f.kind = ATTN_FEATURES_ACT, f.activation = ATTN_ACT_RELU, f.norm = ATTN_FEATURE_NORM_SUM;
  for (int i = 0; i < 6; i++) one[i][0] = 1, one[i][1] = 3;
  const attn_tensor x = attn_bhtd(at, ATTN_F32, 1, 1, 6, 2),
                    d_x = attn_bhtd(d, ATTN_F32, 1, 1, 6, 2);
  const attn_tensor d_y = attn_bhtd(one, ATTN_F32, 1, 1, 6, 2);
  assert_int_equal(attn_features_backward(d_x, d_y, x, &f, 1, NULL, &ctx), ATTN_OK);
  for (int i = 0; i < 6; i++)
    if (i != 3) assert_true(d[i][0] == 0 && d[i][1] == 0); /* one feature, or none */
  f.norm = ATTN_FEATURE_NORM_NONE;
  assert_int_equal(attn_features_backward(d_x, d_y, x, &f, 1, NULL, &ctx), ATTN_OK);
  for (int i = 0; i < 6; i++)
    for (int c = 0; c < 2; c++) assert_true(d[i][c] == (at[i][c] > 0 ? one[i][c] : 0));
  f = map_of(ATTN_FEATURES_RFA, 1, 4, 2, 5, ATTN_F32);
  static float wide[6][8];
  for (int i = 0; i < 48; i++) wide[i / 8][i % 8] = (float)(i % 5) - 1.5f;
  assert_int_equal(
      attn_features_backward(d_x, attn_bhtd(wide, ATTN_F32, 1, 1, 6, 8), x, &f, 0, NULL, &ctx),
      ATTN_OK);
  for (int i = 0; i < 6; i++) {
    const double r = hypot((double)at[i][0], (double)at[i][1]);
    const double dot = ((double)at[i][0] * (double)d[i][0] + (double)at[i][1] * (double)d[i][1]);
    assert_true(isfinite(d[i][0]) && isfinite(d[i][1]));
    if (r > 1e-6) assert_true(fabs(dot) <= 2e-6 * r * hypot((double)d[i][0], (double)d[i][1]));
  }
  assert_true(fabs((double)d[1][0]) > 1e4); /* 0 / 1e-6 */
  assert_true(fabs((double)d[4][0]) < 1e-28 && d[4][0] != 0);
}

void N5_features_backward_refused(void **state) {
  (void)state;
  test_rng rng = test_seed(9503);
  const attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 2, 2, 5, 4, 1, &rng);
  scene *s =
      build(map_of(ATTN_FEATURES_SOFTMAX, 2, 7, 4, 3, ATTN_F32), x, 1, ATTN_F32, TEST_BHTD, &rng);
  output_of(s, ATTN_F32, TEST_BHTD, 2, 2, 5);
#define REFUSE_(status, word, change)       \
  {                                         \
    const scene was = *s;                   \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  }
  REFUSE_(ATTN_E_SHAPE, "d_x", s->d_x.len = 4)
  REFUSE_(ATTN_E_SHAPE, "d_x", s->d_x.heads = 1)
  REFUSE_(ATTN_E_SHAPE, "d_y", s->d_y.len = 4)
  REFUSE_(ATTN_E_SHAPE, "d_y.dim", s->d_y.dim = 6)
  REFUSE_(ATTN_E_NULL, "d_y", s->d_y.data = NULL)
  REFUSE_(ATTN_E_NULL, "x", s->x.data = NULL)
  REFUSE_(ATTN_E_NULL, "map.w", s->f.w.data = NULL)
  REFUSE_(ATTN_E_DTYPE, "d_x", s->d_x.dtype = ATTN_I8)
  REFUSE_(ATTN_E_RANGE, "accumulate", s->g.accumulate = 2)
  REFUSE_(ATTN_E_RANGE, "kind", s->f.kind = ATTN_FEATURES_COUNT)
  REFUSE_(ATTN_E_VALUE, "eps", s->f.eps = -1)
  REFUSE_(ATTN_E_OVERLAP, "d_x", s->d_x = s->x)
  REFUSE_(ATTN_E_OVERLAP, "d_x", s->d_x.data = s->f.w.data)
  REFUSE_(ATTN_E_NULL, "map.back", s->f = map_of(ATTN_FEATURES_USER, 1, 0, 4, 0, ATTN_F32);
          s->d_y.dim = 9)
}
