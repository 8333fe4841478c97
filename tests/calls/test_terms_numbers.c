/* tests/calls/test_terms_numbers.c owns terms that give each pair a number by its distance: B7, the
 * distance-aware factor; B8, Toeplitz tables and T5 buckets; H1 and H2, Gaussian and parabola. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* The same call with and without what a test then changes. */
typedef struct pair {
  test_call a, b;
} pair;

static pair two_calls(int64_t heads, int64_t tq, int64_t tk, uint64_t seed, int map) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, tq, tk, 16, 9);
  spec.map = map;
  pair two;
  two.a = test_build(&spec, &rng);
  two.b = test_again(&two.a);
  return two;
}

static void assert_near(pair *two, double tolerance, const char *what) {
  test_run(&two->a);
  test_run(&two->b);
  test_assert_near(two->a.o, two->b.o, tolerance, what);
  test_assert_near(two->a.params.lse, two->b.params.lse, tolerance, what);
  if (two->a.params.map.data) {
    test_assert_near(two->a.params.map, two->b.params.map, tolerance, what);
  }
}

/* ---- B7 -------------------------------------------------------------------------------------*/

void B7_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_FACTOR, 230, test_count(70, 14), 220, "distance factor");
}

/* alpha = 0 is constant 1, for every beta: equal to the rectified scores. Where all of them are
 * positive that is plain attention. */
void B7_flat_is_rectified(void **state) {
  (void)state;
  static const float betas[] = {0, 3, -5, 79, -600, 1e30f};
  for (int n = 0; n < 6; n++) {
    pair two = two_calls(2, 70, 90, 231, 1);
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t r = 0; r < 160; r++) {
        attn_tensor t = r < 70 ? two.a.q : two.a.k;
        for (int64_t c = 0; c < 16; c++) {
          int64_t row = r < 70 ? r : r - 70;
          oracle_set(&t, 0, h, row, c, fabs(oracle_get(&t, 0, h, row, c)));
        }
      }
    }
    two.a.params.factor.alpha = test_constant(2, 0);
    two.a.params.factor.beta = test_constant(2, (double)betas[n]);
    assert_near(&two, 2e-6, "a flat factor on positive scores");
    test_mem_release();
  }
}

/* Scores at or below 0 become 0: a mean over all ALLOWED keys, not an empty row. K = 0 likewise. */
void B7_rectified_zeros_count(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    pair two = two_calls(2, 70, 90, 232, 1);
    test_rng rng = test_seed(233);
    if (n) {
      test_fill_value(two.a.k, 0);
    } else { /* q all ones, k negative */
      test_fill_value(two.a.q, 1);
      for (int64_t j = 0; j < 180; j++) {
        for (int64_t c = 0; c < 16; c++) {
          oracle_set(&two.a.k, 0, j / 90, j % 90, c,
                     -fabs(oracle_get(&two.a.k, 0, j / 90, j % 90, c)));
        }
      }
    }
    two.b.params.scale = ATTN_ZERO;
    two.a.params.causal = two.b.params.causal = 1;
    two.a.params.factor.alpha = test_floats(2, 0.1, &rng);
    two.a.params.factor.beta = test_floats(2, 2, &rng);
    assert_near(&two, 1e-6, "rectified scores");
    test_mem_release();
  }
}

/* Equal positive dot products: weights do not fall with the distance for alpha > 0, nor rise for
 * alpha < 0. */
void B7_monotone(void **state) {
  (void)state;
  pair two = two_calls(2, 5, 200, 234, 1);
  test_call call = two.a;
  test_fill_value(call.q, 0.5);
  test_fill_value(call.k, 0.25);
  float alpha[2] = {0.05f, -0.07f}, beta[2] = {2, 1.5f};
  call.params.factor.alpha = alpha;
  call.params.factor.beta = beta;
  call.params.causal = 1;
  test_check(&call, "equal dot products");
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t i = 0; i < 5; i++) {
      for (int64_t j = 0; j < i + 195; j++) {
        double far = oracle_get(&call.params.map, 0, h, i, j);
        double near = oracle_get(&call.params.map, 0, h, i, j + 1);
        assert_true(h ? far <= near * (1 + 1e-6) : far >= near * (1 - 1e-6));
      }
    }
  }
}

/* Neither f nor its parts overflow before f itself does. */
void B7_large_parameters(void **state) {
  (void)state;
  static const float values[][2] = {{0, 80},  {1, 80},   {-1, 80},   {0.01f, 60}, {-50, 80},
                                    {50, 80}, {5, -600}, {-5, -600}, {1e30f, -1}, {-1e30f, 1}};
  for (int n = 0; n < 10; n++) {
    pair two = two_calls(2, 40, 150, 235, 1);
    test_call call = two.a;
    call.params.factor.alpha = test_constant(2, (double)values[n][0]);
    call.params.factor.beta = test_constant(2, (double)values[n][1]);
    call.params.causal = n & 1;
    if (n < 3) test_fill_value(call.k, 1e-30); /* f of 1e34 meets scores of 1e-30 */
    test_run(&call);
    for (int64_t i = 0; i < 80; i++) {
      assert_true(!isnan(oracle_get(&call.o, 0, i / 40, i % 40, 0)));
      assert_true(!isnan(oracle_get(&call.params.lse, 0, i / 40, i % 40, 0)));
    }
    test_compare(&call, "large parameters");
    test_mem_release();
  }
}

/* ---- B8: tables -----------------------------------------------------------------------------*/

void B8_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_TOEPLITZ, 240, test_count(60, 12), 220, "a Toeplitz table");
}

/* A constant, and a table of one entry, change no O and add their value to the LSE. */
void B8_constant_table(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    pair two = two_calls(2, 70, 110, 241, 1);
    two.a.params.causal = two.b.params.causal = 1;
    two.a.params.toeplitz.table = test_constant(7, 1.5);
    two.a.params.toeplitz.len = n ? 7 : 1;
    two.a.params.toeplitz.first = n ? -3 : 40;
    test_run(&two.a);
    test_run(&two.b);
    test_assert_near(two.a.o, two.b.o, 3e-6, "a constant table");
    test_assert_near(two.a.params.map, two.b.params.map, 3e-6, "a constant table");
    for (int64_t i = 0; i < 140; i++) {
      double want = oracle_get(&two.b.params.lse, 0, i / 70, i % 70, 0) + 1.5;
      assert_true(fabs(oracle_get(&two.a.params.lse, 0, i / 70, i % 70, 0) - want) < 3e-6);
    }
  }
}

/* `inside` with T equals after with s T. */
void B8_inside(void **state) {
  (void)state;
  pair two = two_calls(3, 80, 130, 242, 1);
  test_rng rng = test_seed(243);
  float *table = test_floats(3 * 50, 3, &rng), *scaled = test_mem(150 * sizeof *scaled);
  for (int n = 0; n < 150; n++) scaled[n] = table[n] * 0.25f;
  attn_toeplitz t = {table, 50, -44, 3, 0, 1};
  two.a.params.toeplitz = two.b.params.toeplitz = t;
  two.b.params.toeplitz.table = scaled;
  two.b.params.toeplitz.inside = 0;
  assert_near(&two, 2e-6, "inside the scale");
  two.a.params.scale = -1.5f;
  for (int n = 0; n < 150; n++) scaled[n] = table[n] * -1.5f;
  two.b.params.scale = -1.5f;
  assert_near(&two, 2e-6, "inside a negative scale");
}

/* ALiBi and the parabola are tables; a shared row is the same row for each head. */
void B8_equals_alibi_and_parabola(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    pair two = two_calls(4, 80, 130, 244, 1);
    float *t = test_mem(4 * 209 * sizeof *t), slope[4], w[4], b[4];
    two.a.params.causal = two.b.params.causal = n & 1;
    for (int64_t h = 0; h < 4; h++) {
      slope[h] = (float)oracle_slope(h, 4);
      w[h] = 0.001f * (float)(h + 1);
      b[h] = -0.5f * (float)h;
      for (int64_t r = 0; r < 209; r++) {
        double d = (double)(r - 129);
        double x = n == 0   ? (double)slope[h] * fabs(d)
                   : n == 1 ? fabs((double)w[h] * d * d + (double)b[h])
                            : 0.01 * d * d;
        t[h * 209 + r] = (float)-x;
      }
    }
    if (n == 0) two.b.params.alibi = slope;
    if (n == 1) two.b.params.parabola.w = w, two.b.params.parabola.bias = b;
    attn_toeplitz each = {t, 209, -129, 4, 1, 0}, shared = {t, 209, -129, 0, 1, 0};
    two.a.params.toeplitz = each;
    if (n == 2) two.b.params.toeplitz = shared;
    assert_near(&two, 3e-6, "a table of another mechanism");
  }
}

/* The table of Transformer-XL may just cover what the lengths leave; one row less is refused. */
void B4_xl_covers_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(3811);
  static int32_t keys[2] = {40, 50}, queries[2] = {9, 30}, none[2] = {0, 0};
  for (int n = 0; n < 10; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 40, 60, 8, 5);
    spec.batch = 2;
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    /* j - p of query i is j - i - 20 */
    int64_t low = n & 2 ? -49 : -59, high = n & 1 ? 29 : 39;
    if (n & 1) p->kv_len = keys;
    if (n & 2) p->q_len = queries;
    if (n & 4) p->causal = 1, high = 0;
    if (n >= 8) p->kv_len = none, low = high = 0;
    p->xl.table =
        attn_bhtd(test_floats((high - low + 1) * 8, 1, &rng), ATTN_F32, 1, 1, high - low + 1, 8);
    p->xl.first = low;
    test_check(&call, "a table that just covers");
    for (int side = 0; side < 2 && n < 8; side++) {
      test_call less = test_again(&call);
      attn_ctx ctx = test_ctx();
      less.params.xl.table.len--;
      if (side) less.params.xl.first++;
      assert_int_equal(attn_sdpa(less.o, less.q, less.k, less.v, &less.params, &ctx), ATTN_E_RANGE);
      assert_non_null(strstr(ctx.reason, "params.xl.table"));
    }
  }
}

/* Under `reject` the table may just cover the allowed pairs, and one entry less is refused. */
void B8_reject_is_exact(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    pair two = two_calls(1, 40, 60, 245, 0);
    attn_sdpa_params *p = &two.a.params;
    int64_t low = -59, high = 39; /* q_off 20: d = j - i - 20 */
    if (n == 1) p->causal = 1, high = 0;
    if (n == 2) test_left(p, 7), low = -7;
    if (n == 3) test_right(p, 5), high = 5;
    if (n == 4) test_left(p, 0), low = 0;
    if (n == 5) p->has_q_off = 1, p->q_off = -10, low = -29, high = 69;
    float *table = test_constant(200, 0.5);
    attn_toeplitz t = {table, high - low + 1, low, 1, 1, 0};
    p->toeplitz = t;
    test_check(&two.a, "a table that just covers");
    for (int side = 0; side < 2; side++) {
      p->toeplitz = t;
      p->toeplitz.len--;
      if (side) p->toeplitz.first++;
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_sdpa(two.a.o, two.a.q, two.a.k, two.a.v, p, &ctx), ATTN_E_RANGE);
      assert_non_null(ctx.reason);
      assert_non_null(strstr(ctx.reason, "toeplitz"));
    }
  }
}

/* Distances far beyond a table, and at the limit of q_off. */
void B8_far_away(void **state) {
  (void)state;
  static const int64_t far = ((int64_t)1 << 40) - 1;
  for (int n = 0; n < 8; n++) {
    pair two = two_calls(2, 70, 66, 246, 0);
    attn_sdpa_params *p = &two.a.params;
    test_rng rng = test_seed(247);
    p->has_q_off = 1;
    p->q_off = n & 1 ? far : -far;
    if (n < 4) {
      attn_toeplitz t = {test_floats(10, 1, &rng), 5, n & 2 ? -far : 3, 2, 0, 0};
      p->toeplitz = t;
    } else {
      p->t5.table = test_floats(64, 1, &rng);
      p->t5.bidirectional = n >> 1 & 1;
    }
    test_check(&two.a, "far away");
  }
}

/* ---- B8: T5 ---------------------------------------------------------------------------------*/

void B8_t5_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_T5, 250, test_count(50, 10), 330, "T5 buckets");
}

/* The oracle's own rule against the specification's list. */
void B8_t5_oracle_buckets(void **state) {
  (void)state;
  static const int two_sided[] = {8, 12, 16, 23, 32, 46, 64, 91};
  static const int causal[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int k = 0; k < 8; k++) {
    assert_int_equal(oracle_t5_bucket(two_sided[k], 1, 32, 128), 16 + 8 + k);
    assert_int_equal(oracle_t5_bucket(two_sided[k] - 1, 1, 32, 128), 16 + 7 + k);
    assert_int_equal(oracle_t5_bucket(-two_sided[k], 1, 32, 128), 8 + k);
  }
  for (int k = 0; k < 16; k++) {
    assert_int_equal(oracle_t5_bucket(-causal[k], 0, 32, 128), 16 + k);
    assert_int_equal(oracle_t5_bucket(1 - causal[k], 0, 32, 128), 15 + k);
    assert_int_equal(oracle_t5_bucket(causal[k], 0, 32, 128), 0);
  }
  assert_int_equal(oracle_t5_bucket(0, 1, 32, 128), 0);
  assert_int_equal(oracle_t5_bucket(-100000, 0, 32, 128), 31);
  assert_int_equal(oracle_t5_bucket(100000, 1, 32, 128), 31);
}

/* T5 is the Toeplitz table of its buckets, with a scale of 1 where none is given. Exact powers are
 * where a logarithm in floats errs: 64 buckets up to 2^k. */
void B8_t5_equals_toeplitz(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{0, 0}, {32, 128}, {4, 3}, {64, 1024}, {20, 640}, {9, 243}};
  for (int n = 0; n < 12; n++) {
    int64_t buckets = shapes[n / 2][0], most = shapes[n / 2][1];
    int64_t count = buckets ? buckets : 32;
    pair two = two_calls(2, 60, 1100, 248, 1);
    test_rng rng = test_seed(249);
    float *table = test_floats(2 * count, 1, &rng), *t = test_mem(2 * 1159 * sizeof *t);
    for (int64_t k = 0; k < 2 * 1159; k++) {
      t[k] =
          table[oracle_t5_bucket(k % 1159 - 1099, n & 1, count, most ? most : 128) * 2 + k / 1159];
    }
    two.a.params.t5.table = table;
    two.a.params.t5.buckets = buckets;
    two.a.params.t5.max_distance = most;
    two.a.params.t5.bidirectional = n & 1;
    attn_toeplitz full = {t, 1159, -1099, 2, 1, 0};
    two.b.params.toeplitz = full;
    if (n % 3 == 1) two.a.params.scale = two.b.params.scale = 1; /* T5's */
    if (n % 3 == 0) two.a.params.scale = two.b.params.scale = 0.25f;
    assert_near(&two, 3e-6, "T5 as a table");
    test_mem_release();
  }
}

/* T5's table leaves the default scale as it is, 1/sqrt(dk); its models ask for 1. */
void B8_t5_scale(void **state) {
  (void)state;
  static const float scales[] = {0, ATTN_ZERO, 0.25f, 1, -2};
  for (int n = 0; n < 5; n++) {
    pair two = two_calls(2, 40, 50, 251, 0);
    test_rng rng = test_seed(252);
    two.a.params.t5.table = test_floats(64, 1, &rng);
    two.a.params.scale = scales[n];
    test_check(&two.a, "T5 and a scale");
  }
}

/* NaN in one bucket reaches the rows whose distances fall into it. */
void B8_nan_in_tables(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    pair two = two_calls(2, 90, 100, 253, 0);
    test_rng rng = test_seed(254);
    attn_sdpa_params *p = &two.a.params;
    float *table = test_floats(2 * 64, 1, &rng);
    p->causal = n & 1;
    if (n & 2) {
      p->t5.table = table;
      table[2 * 20 + 1] = NAN; /* bucket 20, head 1 */
    } else {
      attn_toeplitz t = {table, 64, -40, 2, 0, 0};
      p->toeplitz = t;
      table[5] = NAN; /* 35 back, head 0 */
      table[64 + 50] = NAN;
    }
    attn_ctx ctx = test_ctx();
    attn_status status = attn_sdpa(two.a.o, two.a.q, two.a.k, two.a.v, p, &ctx);
    if (status == ATTN_E_VALUE) continue; /* a table may be checked */
    assert_int_equal(status, ATTN_OK);
    test_compare(&two.a, "NaN in a table");
  }
}

/* ---- H1 -------------------------------------------------------------------------------------*/

void H1_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_GAUSSIAN, 260, test_count(60, 12), 220, "a Gaussian bump");
}

static void set_gaussian(test_call *call, double center, double precision) {
  int64_t n = call->q.batch * call->q.heads * call->q.len;
  call->params.gaussian.center = test_constant(n, center);
  call->params.gaussian.precision = test_constant(n, precision);
}

/* A window that is very wide, and a precision of 0, tend to plain attention. */
void H1_wide_window_is_plain(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    pair two = two_calls(2, 80, 120, 261, 1);
    set_gaussian(&two.a, 50, n ? 0 : 1e-12);
    assert_near(&two, 1e-6, "a wide window");
  }
}

/* A window that is very narrow picks the key next to the centre, without overflow or NaN, also
 * where the centre lies between two keys or outside. */
void H1_narrow_window(void **state) {
  (void)state;
  static const double centers[] = {40, 39.875, 40.25, -3.5, 0, 119, 130};
  static const int64_t keys[] = {40, 40, 40, 0, 0, 119, 119};
  for (int n = 0; n < 14; n++) {
    pair two = two_calls(2, 80, 120, 262, 1);
    set_gaussian(&two.a, centers[n / 2], n & 1 ? 5e11 : 1e5);
    test_run(&two.a);
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t i = 0; i < 80; i++) {
        for (int64_t c = 0; c < 9; c++) {
          double want = oracle_get(&two.a.v, 0, h, keys[n / 2], c);
          assert_true(fabs(oracle_get(&two.a.o, 0, h, i, c) - want) <= 1e-6);
        }
      }
    }
    test_mem_release();
  }
}

/* The map is the plain map times exp(G), renormalised per row; one key feels nothing. */
void H1_map_times_gaussian(void **state) {
  (void)state;
  pair two = two_calls(2, 40, 70, 263, 1);
  test_rng rng = test_seed(264);
  two.a.params.causal = two.b.params.causal = 1;
  test_add_terms(&two.a, TERM_GAUSSIAN, &rng);
  test_run(&two.a);
  test_run(&two.b);
  for (int64_t r = 0; r < 80; r++) {
    double w[70], sum = 0;
    for (int64_t j = 0; j < 70; j++) {
      double off = (double)j - (double)two.a.params.gaussian.center[r];
      w[j] = oracle_get(&two.b.params.map, 0, r / 40, r % 40, j) *
             exp(-(double)two.a.params.gaussian.precision[r] * off * off);
      sum += w[j];
    }
    for (int64_t j = 0; j < 70 && sum > 1e-25; j++) {
      double got = oracle_get(&two.a.params.map, 0, r / 40, r % 40, j);
      assert_true(fabs(got - w[j] / sum) <= 2e-5);
    }
  }
  pair one = two_calls(2, 40, 1, 265, 0);
  set_gaussian(&one.a, 3, 0.5);
  test_run(&one.a);
  test_run(&one.b);
  test_assert_same(one.a.o, one.b.o, "one key");
}

/* Padding cut off by kv_len equals shorter tensors: the bump counts keys from 0. */
void H1_kv_len_equals_shorter(void **state) {
  (void)state;
  pair two = two_calls(2, 60, 200, 266, 0);
  test_rng rng = test_seed(267);
  test_add_terms(&two.a, TERM_GAUSSIAN, &rng);
  two.b.params.gaussian = two.a.params.gaussian;
  int32_t length = 90;
  two.a.params.kv_len = &length;
  two.b.k = test_rows(two.b.k, 0, 90);
  two.b.v = test_rows(two.b.v, 0, 90);
  test_run(&two.a);
  test_run(&two.b);
  test_assert_same_outputs(&two.a, &two.b, "padding");
}

/* NaN in a centre or a precision stays in its row. */
void H1_nan_stays_in_its_row(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    pair two = two_calls(2, 80, 150, 268, 0);
    set_gaussian(&two.a, 70, 0.01);
    set_gaussian(&two.b, 70, 0.01);
    float *x = (float *)(n ? two.a.params.gaussian.precision : two.a.params.gaussian.center);
    x[80 + 33] = NAN;
    attn_ctx ctx = test_ctx();
    attn_status status = attn_sdpa(two.a.o, two.a.q, two.a.k, two.a.v, &two.a.params, &ctx);
    if (status == ATTN_E_VALUE) continue;
    assert_int_equal(status, ATTN_OK);
    test_run(&two.b);
    for (int64_t r = 0; r < 160; r++) {
      double got = oracle_get(&two.a.o, 0, r / 80, r % 80, 4);
      double want = oracle_get(&two.b.o, 0, r / 80, r % 80, 4);
      assert_true(r == 80 + 33 ? isnan(got) : got == want);
    }
  }
}

/* ---- H2 -------------------------------------------------------------------------------------*/

void H2_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_PARABOLA, 270, test_count(50, 10), 220, "a parabola");
}

void H2_zero_is_plain(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    pair two = two_calls(2, 80, 120, 271, 1);
    two.a.params.parabola.w = test_constant(2, 0);
    if (n) two.a.params.parabola.bias = test_constant(2, n == 1 ? -0.0 : 0);
    assert_near(&two, 1e-6, "w = b = 0");
  }
}

/* w = 0 moves every LSE by b and no O. */
void H2_flat(void **state) {
  (void)state;
  pair two = two_calls(2, 80, 120, 272, 0);
  two.a.params.parabola.w = test_constant(2, 0);
  two.a.params.parabola.bias = test_constant(2, -2.5);
  test_run(&two.a);
  test_run(&two.b);
  test_assert_near(two.a.o, two.b.o, 3e-6, "w = 0");
  for (int64_t r = 0; r < 160; r++) {
    double want = oracle_get(&two.b.params.lse, 0, r / 80, r % 80, 0) - 2.5;
    assert_true(fabs(oracle_get(&two.a.params.lse, 0, r / 80, r % 80, 0) - want) <= 3e-6);
  }
}

/* Very large w: only the distance whose bias is smallest survives; b = -4 w puts it at 2. */
void H2_sharp(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    pair two = two_calls(1, 60, 60, 273, 0);
    two.a.params.causal = 1;
    two.a.params.parabola.w = test_constant(1, n == 2 ? 1e30 : 1e4);
    two.a.params.parabola.bias = test_constant(1, n == 0 ? -4e4 : 0);
    test_run(&two.a);
    for (int64_t i = n == 0 ? 2 : 0; i < 60; i++) {
      int64_t j = n == 0 ? i - 2 : i;
      for (int64_t c = 0; c < 9; c++) {
        double got = oracle_get(&two.a.o, 0, 0, i, c), want = oracle_get(&two.a.v, 0, 0, j, c);
        assert_true(fabs(got - want) <= 1e-6);
      }
    }
  }
}

/* Reversing time reverses the output. */
void H2_symmetric(void **state) {
  (void)state;
  pair two = two_calls(2, 130, 130, 274, 0);
  two.a.params.parabola.w = two.b.params.parabola.w = test_constant(2, 0.01);
  two.a.params.parabola.bias = two.b.params.parabola.bias = test_constant(2, -1);
  attn_tensor *inputs[3] = {&two.b.q, &two.b.k, &two.b.v};
  for (int n = 0; n < 3; n++) {
    *inputs[n] = test_rows(*inputs[n], 129, 130);
    inputs[n]->stride_len = -inputs[n]->stride_len;
  }
  test_run(&two.a);
  test_run(&two.b);
  attn_tensor back = test_rows(two.b.o, 129, 130);
  back.stride_len = -back.stride_len;
  test_assert_near(two.a.o, back, 3e-6, "reversed time");
}
