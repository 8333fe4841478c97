/* tests/families/heads/test_span_functions.c owns the functions around I5's adaptive span: prediction, penalty,
 * reach. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

static void predict_ok(float *z, attn_tensor x, const float *v, const float *b, int64_t heads,
                       int64_t most) {
  attn_ctx ctx = test_ctx();
  if (attn_span_predict(z, x, v, b, heads, most, &ctx) != ATTN_OK) {
    fail_msg("attn_span_predict: %s", ctx.reason);
  }
  assert_int_equal(ctx.report.isa, test_isa);
}

static void predict_compare(const float *z, attn_tensor x, const float *v, const float *b,
                            int64_t heads, int64_t most) {
  for (int64_t n = 0; n < x.batch; n++) {
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t i = 0; i < x.len; i++) {
        double s = b ? (double)b[h] : 0, size = fabs(s);
        for (int64_t c = 0; c < x.dim; c++) {
          double term = (double)v[h * x.dim + c] * oracle_get(&x, n, 0, i, c);
          s += term;
          size += fabs(term);
        }
        double want = (double)most / (1 + exp(-s)), got = (double)z[(n * heads + h) * x.len + i];
        /* rounding of the sum times the sigmoid's slope, and 3 roundings of the result */
        if (fabs(got - want) <= want * (4e-7 + size * 3e-7) && got <= (double)most) continue;
        fail_msg("z[%d,%d,%d] is %.9g, not %.9g", (int)n, (int)h, (int)i, got, want);
      }
    }
  }
}

void I5_predict_random(void **state) {
  (void)state;
  test_rng rng = test_seed(1000);
  for (int64_t n = test_count(40, 12); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 150), d = test_range(&rng, 1, 60);
    int64_t heads = n % 9 ? test_range(&rng, 1, 9) : 140, most = test_range(&rng, 1, 5000);
    attn_tensor x = test_tensor((attn_dtype)(n % 3), (test_layout)(n % TEST_LAYOUTS), 2, 1, t, d);
    float *z = test_mem((size_t)(2 * heads * t) * sizeof *z);
    float *v = test_floats(heads * d, 1 / sqrt((double)d), &rng);
    float *b = n & 1 ? test_floats(heads, 2, &rng) : NULL;
    test_fill(x, &rng, test_normal);
    predict_ok(z, x, v, b, heads, most);
    predict_compare(z, x, v, b, heads, most);
  }
}

/* v = 0, b = 0 gives S/2; saturated heads give 0 and S, never more. */
void I5_predict_limits(void **state) {
  (void)state;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 2);
  static const float v[6] = {0}, b[3] = {0, -1000, 1000};
  static const int64_t spans[] = {1, 7, 1024, 16777217, 16777219, INT64_MAX};
  float z[15];
  test_fill_value(x, 1);
  for (int n = 0; n < 6; n++) {
    predict_ok(z, x, v, b, 3, spans[n]);
    for (int i = 0; i < 5; i++) {
      assert_true(fabs((double)z[i] / ((double)spans[n] / 2) - 1) < 1e-7);
      assert_true(z[5 + i] == 0);
      assert_true((double)z[10 + i] <= (double)spans[n] &&
                  (double)z[10 + i] >= (double)spans[n] * (1 - 1.2e-7));
    }
  }
}

/* An infinite number in a token saturates its spans. */
void I5_predict_infinite(void **state) {
  (void)state;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, 3);
  static const float v[3] = {1, 2, -1};
  float z[2];
  test_fill_value(x, 1);
  oracle_set(&x, 0, 0, 0, 1, (double)INFINITY);
  oracle_set(&x, 0, 0, 1, 2, (double)INFINITY);
  predict_ok(z, x, v, NULL, 1, 9);
  assert_true(z[0] == 9 && z[1] == 0);
}

/* Nothing outside the operands is touched. */
void I5_predict_guard_pages(void **state) {
  (void)state;
  for (int place = TEST_BEFORE_GUARD; place <= TEST_AFTER_GUARD; place++) {
    for (int64_t n = 1; n < 40; n++) {
      test_rng rng = test_seed(1003);
      test_where = (test_place)place;
      attn_tensor x = test_tensor((attn_dtype)(n % 3), TEST_BHTD, 1, 1, n, 41 - n);
      test_fill(x, &rng, test_normal);
      float *z = test_mem((size_t)(3 * n) * sizeof *z);
      predict_ok(z, x, test_floats(3 * x.dim, 1, &rng), test_floats(3, 1, &rng), 3, 50);
      test_mem_release();
    }
  }
}

void I5_predict_nan_and_bits(void **state) {
  (void)state;
  enum { T = 150, D = 9, H = 3 };
  test_rng rng = test_seed(1001);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, T, D);
  float *z = test_mem(2 * H * T * sizeof *z), *y = test_mem(2 * H * T * sizeof *y);
  float *v = test_floats(H * D, 1, &rng);
  test_fill(x, &rng, test_normal);
  oracle_set(&x, 1, 0, 70, 4, (double)NAN);
  predict_ok(z, x, v, NULL, H, 100);
  for (int64_t n = 0; n < 2 * H * T; n++) {
    assert_int_equal(isnan(z[n]) != 0, n / T / H == 1 && n % T == 70);
  }
  attn_ctx ctx = test_ctx();
  ctx.parallel_for = test_parallel_threads;
  ctx.workers = 4;
  size_t size = attn_span_predict_workspace(y, x, v, NULL, H, 100, &ctx);
  assert_true(size > 0);
  ctx.workspace = (char *)test_mem(size + 1) + 1;
  ctx.workspace_size = size;
  int64_t calls = test_malloc_calls;
  assert_int_equal(attn_span_predict(y, x, v, NULL, H, 100, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.workers, 4);
  assert_int_equal(test_malloc_calls, calls);
  assert_memory_equal(y, z, 2 * H * T * sizeof *y);
  ctx.workspace_size = size - 1;
  assert_int_equal(attn_span_predict(y, x, v, NULL, H, 100, &ctx), ATTN_E_WORKSPACE);
  for (int64_t i = 0; i < T; i += 31) {
    predict_ok(y, test_rows(test_one(x, 0, 1, 0, 1), i, 1), v, NULL, H, 100);
    for (int h = 0; h < H; h++) assert_memory_equal(y + h, z + h * T + i, sizeof *y);
  }
  x.len = 0;
  predict_ok(NULL, x, v, NULL, H, 100);
  assert_int_equal(attn_span_predict_workspace(y, x, v, NULL, H, 100, &ctx), 0);
  x.len = T;
  predict_ok(NULL, x, NULL, NULL, 0, 100);
  ctx = test_ctx(); /* nothing to do takes one worker, the caller */
  assert_int_equal(attn_span_predict(NULL, x, NULL, NULL, 0, 100, &ctx), ATTN_OK);
  assert_string_equal(ctx.report.path, "no-op");
  assert_int_equal(ctx.report.workers, 1);
}

void I5_predict_rejects(void **state) {
  (void)state;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 6, 8);
  float v[24] = {0}, b[3] = {0}, *z = test_mem(36 * sizeof *z);
  unsigned char before[144];
  memset(before, 0xA5, sizeof before);
  test_fill_value(x, 0);
  for (int n = 0; n < 11; n++) {
    attn_tensor from = x;
    float *to = z;
    const float *weights = v, *bias = b;
    int64_t heads = 3, most = 10;
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_NULL;
    const char *word = "";
    switch (n) {
      case 0: to = NULL, word = "z"; break;
      case 1: weights = NULL, word = "v"; break;
      case 2: from.data = NULL, word = "x"; break;
      case 3: from.heads = 2, from.batch = 1, want = ATTN_E_SHAPE, word = "x.heads"; break;
      case 4: heads = -1, want = ATTN_E_SHAPE, word = "heads"; break;
      case 5: most = 0, want = ATTN_E_RANGE, word = "max_span"; break;
      case 6: most = -5, want = ATTN_E_RANGE, word = "max_span"; break;
      case 7: weights = z + 5, want = ATTN_E_OVERLAP, word = "z"; break;
      case 8: bias = z, want = ATTN_E_OVERLAP, word = "z"; break;
      case 9: heads = INT64_MAX / 2, want = ATTN_E_OVERFLOW; break;
      default: to = (float *)(void *)((char *)z + 1), want = ATTN_E_ALIGN, word = "z";
    }
    attn_status got = attn_span_predict(to, from, weights, bias, heads, most, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word)) {
      fail_msg("rule %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    }
    assert_memory_equal(before, z, sizeof before);
  }
}

void I5_penalty(void **state) {
  (void)state;
  float z[1000];
  double sum = 0;
  for (int i = 0; i < 1000; i++) {
    z[i] = 1e6f + (float)i / 7;
    sum += (double)z[i];
  }
  assert_true(fabs(attn_span_penalty(z, 1000, 2e-6) - 2e-6 * sum / 1000) < 1e-12);
  assert_true(attn_span_penalty(z, 1, 0.5) == 0.5 * (double)z[0]);
  assert_true(attn_span_penalty(z, 0, 3) == 0);
  assert_true(attn_span_penalty(z, -4, 3) == 0);
  assert_true(attn_span_penalty(NULL, 10, 3) == 0);
  z[500] = NAN;
  assert_true(isnan(attn_span_penalty(z, 1000, 1)));
}

/* The largest distance with weight, found by trying them all. */
void I5_reach(void **state) {
  (void)state;
  test_rng rng = test_seed(1002);
  for (int n = 0; n < 3000; n++) {
    float z = (float)test_range(&rng, 0, 4000) / (n & 1 ? 64 : 32);
    float ramp = (float)test_range(&rng, 1, 2000) / (n & 2 ? 64 : 32);
    int64_t shift = test_range(&rng, -3, 3), most = n % 3 ? 0 : test_range(&rng, 1, 150), want = -1;
    for (int64_t t = 0; t < 300 && (most == 0 || t <= most); t++) {
      if (((double)ramp + (double)z - (double)(t + shift)) / (double)ramp > 0) want = t;
    }
    assert_int_equal(attn_span_reach(z, ramp, shift, most), want);
  }
}

void I5_reach_edges(void **state) {
  (void)state;
  assert_int_equal(attn_span_reach(0, 0, 0, 0), 31); /* ramp 0 = 32 */
  assert_int_equal(attn_span_reach(0, 1, 0, 0), 0);
  assert_int_equal(attn_span_reach(0, 0.5f, 0, 0), 0);
  assert_int_equal(attn_span_reach(0, 1, 1, 0), -1);
  assert_int_equal(attn_span_reach(0, 1, -1, 0), 1);
  /* a tiny ramp: the keys with x <= z, also where z + ramp rounds to z */
  assert_int_equal(attn_span_reach(100, 1e-30f, 0, 0), 100);
  assert_int_equal(attn_span_reach(100.5f, 1e-30f, 0, 0), 100);
  assert_int_equal(attn_span_reach(0, FLT_MIN, 0, 0), 0);
  assert_int_equal(attn_span_reach(16777216, 1e-30f, 0, 0), 16777216);
  assert_int_equal(attn_span_reach(1 - FLT_EPSILON / 2, FLT_EPSILON / 2, 0, 0), 0);
  assert_int_equal(attn_span_reach(1 - FLT_EPSILON / 2, FLT_EPSILON, 0, 0), 1);
  assert_int_equal(attn_span_reach(FLT_MAX, FLT_MAX, 0, 77), 77);
  assert_true(attn_span_reach(FLT_MAX, FLT_MAX, INT64_MIN, 0) > 1000);
  assert_int_equal(attn_span_reach(5, 5, INT64_MAX, 0), -1);
  assert_int_equal(attn_span_reach(-1, 5, 0, 0), -1);
  assert_int_equal(attn_span_reach(NAN, 5, 0, 0), -1);
  assert_int_equal(attn_span_reach(5, NAN, 0, 0), -1);
  assert_int_equal(attn_span_reach(5, -1, 0, 0), -1);
  assert_int_equal(attn_span_reach(INFINITY, 5, 0, 0), -1);
  assert_int_equal(attn_span_reach(5, 5, 0, -1), -1);
}
