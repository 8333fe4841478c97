/* tests/calls/test_exp.c owns attn_exp: its error against float64, its special values, and that body and
 * tail are the same function. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "modes.h"

#ifdef ATTN_TEST_SLEEF
#include <sleef.h>
#endif

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* The error of y for exp(x) in units of the last place of the exact result. libm's float64 exp
 * stands for the exact value: its own error is 1e-8 of such a unit. */
static double ulps(float x, float y) {
  double exact = exp((double)x), last = ldexp(1, 127);
  if (isnan(x)) return isnan(y) ? 0 : 1e9;
  if (isinf(y))
    return y > 0 && exact > (double)INFINITY - 1 ? 0 : exact >= last * 1.9999998 ? 0 : 1e9;
  if (exact >= 2 * last) return 1e9;
  int e;
  frexp(exact, &e);
  double unit = ldexp(1, e - 24 < -149 ? -149 : e - 24);
#if defined(__arm__)
  if (exact < 1.1754944e-38 && y == 0) return 0; /* 32-bit NEON flushes subnormals */
#endif
  if (isnan(y)) return 1e9;
  return fabs((double)y - exact) / unit;
}

enum { CHUNK = 4096 };

/* The worst error over every step-th float. */
static double worst_of(uint32_t step, float *where) {
  float x[CHUNK], y[CHUNK];
  double worst = 0;
  uint64_t bits = 0;
  while (bits <= UINT32_MAX) {
    int64_t n = 0;
    for (; n < CHUNK && bits <= UINT32_MAX; bits += step) x[n++] = from_bits((uint32_t)bits);
    attn_ctx ctx = test_ctx();
    if (attn_exp(y, x, n, &ctx) != ATTN_OK || ctx.report.isa != test_isa) return 1e9;
    for (int64_t i = 0; i < n; i++) {
      double u = ulps(x[i], y[i]);
      if (u > worst) {
        worst = u;
        *where = x[i];
      }
    }
  }
  return worst;
}

void exp_ulp(void **state) {
  (void)state;
  float where = 0;
  double worst = worst_of(test_fast ? 16411 : 257, &where);
  print_message("           worst error %.3f ULP at %.9g\n", worst, (double)where);
  assert_true(worst <= 2);
}

/* A second judge that shares nothing with libm: SLEEF's float exp of 1 ULP. */
void exp_against_sleef(void **state) {
  (void)state;
#ifdef ATTN_TEST_SLEEF
  float x[CHUNK], y[CHUNK];
  attn_ctx ctx = test_ctx();
  for (int n = 0; n < CHUNK; n++) x[n] = -87 + 175 * (float)n / CHUNK;
  assert_int_equal(attn_exp(y, x, CHUNK, &ctx), ATTN_OK);
  for (int n = 0; n < CHUNK; n++) {
    double want = (double)Sleef_expf_u10(x[n]);
    assert_true(fabs((double)y[n] - want) <= 3 * ldexp(1, -23) * want);
  }
#else
  test_skip("compiled without SLEEF (libsleef-dev)");
#endif
}

int exp_exhaustive(void) {
  int failed = 0;
  for (int t = 1; t < ATTN_ISA_COUNT; t++) {
    test_isa = (attn_isa)t;
    if (attn_isa_status(test_isa) != ATTN_ISA_OK) {
      printf("%-6s  NOT RUN: %s\n", attn_isa_name(test_isa), attn_isa_why(test_isa));
      continue;
    }
    float where = 0;
    double worst = worst_of(1, &where);
    printf("%-6s  all 2^32 floats: worst error %.4f ULP at %.9g\n", attn_isa_name(test_isa), worst,
           (double)where);
    failed |= worst > 2;
  }
  return failed;
}

void exp_special_values(void **state) {
  (void)state;
  float x[12] = {0,         -0.0f, INFINITY, -INFINITY, NAN,    88.72283f,
                 88.72284f, 3e38f, -104,     -3e38f,    1e-40f, -103.9f};
  float y[12];
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exp(y, x, 12, &ctx), ATTN_OK);
  assert_true(y[0] == 1 && y[1] == 1 && y[2] == INFINITY && y[3] == 0 && isnan(y[4]));
  assert_true(isfinite(y[5]) && y[6] == INFINITY && y[7] == INFINITY);
  assert_true(y[8] == 0 && y[9] == 0 && y[10] == 1 && y[11] <= 1e-44f);
  assert_false(signbit(y[3]) || signbit(y[8]));
}

/* What is stored for a NaN has one form on every machine. */
void exp_default_nan(void **state) {
  (void)state;
  static const uint32_t in[] = {0xffc12345u, 0x7f800001u, 0x7fc00001u};
  static const uint32_t out = 0x7fc00000u;
  float x[3], y[3];
  memcpy(x, in, sizeof x);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exp(y, x, 3, &ctx), ATTN_OK);
  for (int n = 0; n < 3; n++) assert_memory_equal(&y[n], &out, 4);
}

void exp_body_and_tail(void **state) {
  (void)state;
  enum { N = 150 };
  float x[N], whole[N], part[N + 1];
  test_rng rng = test_seed(120);
  for (int n = 0; n < N; n++) x[n] = (float)(30 * test_normal(&rng));
  x[3] = NAN;
  x[9] = -INFINITY;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exp(whole, x, N, &ctx), ATTN_OK);
  for (int from = 0; from < 20; from++) {
    for (int n = 0; n + from <= N; n++) {
      part[n] = 77;
      assert_int_equal(attn_exp(part, x + from, n, &ctx), ATTN_OK);
      assert_memory_equal(part, whole + from, (size_t)n * sizeof(float));
      assert_true(part[n] == 77);
    }
  }
}

void exp_in_place(void **state) {
  (void)state;
  float x[37], y[37];
  test_rng rng = test_seed(121);
  for (int n = 0; n < 37; n++) x[n] = (float)test_normal(&rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exp(y, x, 37, &ctx), ATTN_OK);
  assert_int_equal(attn_exp(x, x, 37, &ctx), ATTN_OK);
  assert_memory_equal(x, y, sizeof x);
}

void exp_rejects(void **state) {
  (void)state;
  float x[8] = {0}, y[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exp(NULL, x, 8, &ctx), ATTN_E_NULL);
  assert_non_null(ctx.reason);
  assert_int_equal(attn_exp(y, NULL, 8, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_exp(y, x, -1, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_exp(y, y + 1, 7, &ctx), ATTN_E_OVERLAP);
  assert_int_equal(attn_exp(NULL, NULL, 0, &ctx), ATTN_OK);
  assert_int_equal(attn_exp(y, x, 0, &ctx), ATTN_OK);
  for (int n = 0; n < 8; n++) assert_true(y[n] == 7);
}
