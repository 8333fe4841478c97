/* tests/calls/test_codes.c owns scores from codes of 8 bits (O4): the tests of attention once more with them, by
 * the processor's instructions and emulated; their bounds; that all tiers agree on them; that they hang on
 * nothing that a row may not see. */

#include <float.h>
#include <math.h>
#include <string.h>

#include "computes.h"
#include "harness.h"
#include "list.h"

TESTS_OF_ATTENTION(O4, ATTN_COMPUTE_I8)

/* ---- what is int8's own -----------------------------------------------------------------------*/

static test_call drawn(attn_dtype type, int64_t queries, int64_t keys, int64_t d, test_rng *rng) {
  return test_two_heads(ATTN_COMPUTE_I8, type, queries, keys, d, d, rng);
}

/* The worst difference of two outputs as a share of the largest value. */
static double apart(attn_tensor x, attn_tensor y, attn_tensor v) {
  double most = 0, worst = 0;
  for (int64_t h = 0; h < v.heads; h++)
    for (int64_t j = 0; j < v.len; j++)
      for (int64_t c = 0; c < v.dim; c++) {
        const double a = fabs(oracle_get(&v, 0, h, j, c));
        most = a > most ? a : most;
      }
  for (int64_t h = 0; h < x.heads; h++)
    for (int64_t i = 0; i < x.len; i++)
      for (int64_t c = 0; c < x.dim; c++) {
        const double e = fabs(oracle_get(&x, 0, h, i, c) - oracle_get(&y, 0, h, i, c));
        worst = e > worst || e != e ? e : worst;
      }
  return worst / most;
}

/* Standard normal rows are right to 1e-2 of max |v|: full, causal, under a window and with a shift of all keys. */
static void errors(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(9800 + (uint64_t)n);
    const int64_t d = n & 1 ? 128 : 64;
    test_call call = drawn(n & 2 ? ATTN_BF16 : ATTN_F32, test_fast ? 16 : 64, 400, d, &rng);
    test_fill(call.q, &rng, test_normal);
    test_fill(call.k, &rng, test_normal);
    test_fill(call.v, &rng, test_normal);
    call.params.causal = n / 4 > 0;
    if (n / 4 == 2) call.params.window.on = 1, call.params.window.left = 200;
    test_run(&call);
    const double worst = test_errors_of(&call).worst;
    if (!(worst <= 1e-2)) fail_msg("case %d: %.3g of max |v|", n, worst);
    test_mem_release();
  }
}
void O4_errors(void **state) { TEST_IN_MODE(ATTN_COMPUTE_I8, errors); }

/* A vector that is added to all keys moves nothing, whatever its size in codes would be. */
static void shifted(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(9900 + (uint64_t)n);
    const int64_t d = n & 1 ? 128 : 64, keys = n & 2 ? 300 : 100;
    test_call call = drawn(ATTN_F32, 70, keys, d, &rng), moved = test_again(&call);
    test_fill(call.q, &rng, test_normal);
    test_fill(call.k, &rng, test_normal);
    test_fill(call.v, &rng, test_normal);
    call.params.causal = moved.params.causal = n & 4 ? ATTN_CAUSAL_START : 0;
    moved.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, keys, d);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t c = 0; c < d; c++) {
        const double by = 8 * sin((double)(3 * c + h));
        for (int64_t j = 0; j < keys; j++)
          oracle_set(&moved.k, 0, h, j, c, oracle_get(&call.k, 0, h, j, c) + by);
      }
    test_run(&call);
    test_run(&moved);
    const double moves = apart(call.o, moved.o, call.v);
    if (!(moves < 1e-3)) fail_msg("case %d: a shift moves rows by %.3g of max |v|", n, moves);
    test_mem_release();
  }
}
void O4_shift(void **state) { TEST_IN_MODE(ATTN_COMPUTE_I8, shifted); }

/* Scores are the same bits on all tiers and features that fuse: sums of codes are exact. */
void O4_scores_agree(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(10000 + (uint64_t)n);
    const int64_t d = n % 3 == 0 ? 64 : n % 3 == 1 ? 37 : 130, keys = 290;
    test_call call = drawn(n > 2 ? ATTN_BF16 : ATTN_F32, 90, keys, d, &rng);
    call.params.map_stage = ATTN_MAP_SCORES, call.params.causal = n & 1;
    attn_tensor first = {0};
    for (int isa = ATTN_ISA_SCALAR + 1; isa < ATTN_ISA_COUNT; isa++)
      for (int off = 0; off < 2; off++) {
        attn_ctx ctx = {0};
        ctx.isa = (attn_isa)isa;
        if (attn_isa_status(ctx.isa) != ATTN_ISA_OK) continue;
        test_isa = ctx.isa;
        const attn_feature feature = test_feature(ATTN_COMPUTE_I8);
        if (off && !feature) continue;
        if (off) assert_int_equal(attn_feature_off(feature, 1), ATTN_OK);
        call.params.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, keys);
        assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
        if (off) assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
        if (first.data)
          test_assert_same(first, call.params.map, "scores of two tiers");
        else
          first = call.params.map;
      }
    test_mem_release();
  }
}

/* A row's bits hang on no key that it does not see, huge or none. */
static void later(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(10100 + (uint64_t)n);
    test_call call = drawn(ATTN_F32, 200, 200, 24, &rng), dirty = test_again(&call);
    const int64_t from = n % 3 == 0 ? 9 : n % 3 == 1 ? 77 : 150;
    call.params.causal = dirty.params.causal = ATTN_CAUSAL_START;
    if (n > 2) {
      call.params.window.on = 1, call.params.window.left = 40;
      dirty.params.window = call.params.window;
    }
    dirty.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 200, 24);
    test_copy(dirty.k, call.k);
    for (int64_t j = from; j < 200; j++)
      test_fill_row(dirty.k, 0, j & 1, j, j % 3 ? 1e9 : j % 5 ? (double)NAN : (double)FLT_MAX);
    test_run(&call);
    test_run(&dirty);
    test_assert_same(test_rows(call.o, 0, from), test_rows(dirty.o, 0, from), "later keys");
    for (int64_t j = 0; j < 9; j++) test_fill_row(dirty.k, 0, j & 1, j, 1 + (double)j);
    test_run(&dirty);
    if (n > 3) /* rows whose window begins behind them */
      test_assert_same(test_rows(call.o, 50, from - 50), test_rows(dirty.o, 50, from - 50),
                       "earlier keys");
    test_mem_release();
  }
}
void O4_sees_no_later_key(void **state) { TEST_IN_MODE(ATTN_COMPUTE_I8, later); }

/* Queries and keys that codes cannot hold are computed in f32, and change no other row. */
static void beyond(void **state) {
  (void)state;
  static const double bad[] = {1e-20, 1e15, 3e37};
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(10200 + (uint64_t)n);
    test_call call = drawn(ATTN_F32, 70, 150, 16, &rng), plain = test_again(&call);
    for (int64_t c = 0; c < 16; c++) /* the product stays what it would be */
      for (int64_t j = 0; j < 150; j += 7)
        if (n < 3) oracle_set(&call.k, 0, 0, j + 3 < 150 ? j + 3 : j, c, bad[n] * (c < 1 ? 1 : 0));
    if (n > 2) {
      test_fill_row(call.q, 0, 1, 5, bad[n - 3] * 1e-3);
      test_run(&call);
      plain.q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 16);
      test_copy(plain.q, call.q);
      test_fill_row(plain.q, 0, 1, 5, 0.5);
      test_run(&plain);
      test_assert_same(test_rows(call.o, 0, 5), test_rows(plain.o, 0, 5), "beside a huge query");
      test_assert_same(test_rows(call.o, 6, 64), test_rows(plain.o, 6, 64), "below a huge query");
    }
    test_check(&call, "numbers that codes cannot hold");
    test_mem_release();
  }
}
void O4_beyond_codes(void **state) { TEST_IN_MODE(ATTN_COMPUTE_I8, beyond); }

/* Codes of an int8 cache are taken as they are: with queries that are codes, scores are exact. */
static void stored(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(10300 + (uint64_t)n);
    const int64_t d = n & 1 ? 37 : 64, keys = 200;
    test_call call = drawn(ATTN_F32, 40, keys, d, &rng);
    float *scale = test_mem((size_t)(2 * keys) * sizeof *scale);
    float *zero = test_mem((size_t)(2 * keys) * sizeof *zero);
    call.k = test_tensor(ATTN_I8, TEST_BHTD, 1, 2, keys, d);
    for (int64_t i = 0; i < 2 * keys * d; i++)
      ((signed char *)call.k.data)[i] = (signed char)test_range(&rng, -128, 127);
    for (int64_t j = 0; j < 2 * keys; j++)
      scale[j] = ldexpf(1, (int)(j % 3) - 9), zero[j] = (float)(j % 9 - 4);
    call.params.k_scales = attn_scales_dense(scale, n & 2 ? zero : NULL, 0, &call.k);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 40; i++)
        for (int64_t c = 0; c < d; c++) {
          const double x = c == 0 ? 127 : (double)test_range(&rng, -127, 127);
          oracle_set(&call.q, 0, h, i, c, ldexp(x, -5));
        }
    call.params.scale = 0.125f;
    call.params.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, keys);
    call.params.map_stage = ATTN_MAP_SCORES;
    test_run(&call);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 40; i++)
        for (int64_t j = 0; j < keys; j++) {
          double want = 0, size = 0;
          for (int64_t c = 0; c < d; c++) {
            const double x = ((signed char *)call.k.data)[(h * keys + j) * d + c];
            const double y = oracle_get(&call.q, 0, h, i, c) *
                             (x - (n & 2 ? (double)zero[h * keys + j] : 0)) *
                             (double)scale[h * keys + j] * 0.125;
            want += y, size += fabs(y);
          }
          const double got = oracle_get(&call.params.map, 0, h, i, j);
          if (!(fabs(got - want) <= 2e-6 * size))
            fail_msg("score %d,%d,%d: %.9g, not %.9g", (int)h, (int)i, (int)j, got, want);
        }
    test_mem_release();
  }
}
void O4_codes_of_a_cache(void **state) { TEST_IN_MODE(ATTN_COMPUTE_I8, stored); }

/* ---- which arithmetic runs --------------------------------------------------------------------*/

void O4_report(void **state) { test_mode_report(ATTN_COMPUTE_I8, state); }
void O4_workspace(void **state) { test_mode_workspace(ATTN_COMPUTE_I8, state); }

void O4_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(10500);
  test_call call = drawn(ATTN_F32, 3, 5, 1025, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_E_VALUE);
  assert_non_null(strstr(ctx.reason, "q.dim up to 1024"));
  const unsigned char *o = call.o.data;
  for (int64_t n = 0; n < 2 * 3 * 1025 * 4; n++) assert_int_equal(o[n], 0xA5);
  assert_true(attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx) ==
              ATTN_WORKSPACE_REJECTED);
  call.params.compute_prefer = 1;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.compute, ATTN_COMPUTE_F32);
}
