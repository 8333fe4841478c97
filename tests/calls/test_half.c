/* tests/calls/test_half.c owns products of f16 (O3): the tests of attention once more with them, by the
 * processor's instructions and emulated; their bounds, also for numbers that f16 cannot hold; and which of
 * them runs. */

#include <float.h>
#include <math.h>
#include <string.h>

#include "computes.h"
#include "harness.h"
#include "list.h"

void O3_shapes(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, A1_random_shapes, A1_every_tail, A1_storage_types,
               A1_empty_extents, A1_sinks, A1_softcap, A5_grouped_heads);
}

void O3_masks(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, A2_causal_offset, A2_boolean_mask, A2_everything_combined,
               A2_empty_rows);
}

void O3_terms(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, B3_matches_oracle, B4_matches_oracle, H1_matches_oracle,
               A2_weights_match_oracle, api_terms_combined);
}

void O3_schedules(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, api_terms_on_schedules, A2_weights_schedules);
}

void O3_sequences(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, A2_ragged_masks, A1_cache_model, A1_cache_ring);
}

/* What is forbidden never shows, what is allowed and not a number shows in its rows alone. */
void O3_not_finite(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, A2_forbidden_garbage, A1_nan_in_query, A1_nan_in_allowed_key,
               api_terms_forbidden_garbage);
}

/* The same bits for any workers, composition and cut, and beside guard pages. */
void O3_bits(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, api_terms_any_workers, api_terms_any_chunks,
               api_terms_guard_pages);
}

void O3_gemm(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_F16, MM_gemm_random, MM_gemm_nan, MM_gemm_cuts);
}

/* ---- what is f16's own ------------------------------------------------------------------------*/

static test_call drawn(attn_dtype type, int64_t queries, int64_t keys, int64_t d, test_rng *rng) {
  return test_two_heads(ATTN_COMPUTE_F16, type, queries, keys, d, d, rng);
}

/* x times, row by row. */
static void scale_rows(attn_tensor t, int64_t first, int64_t step, double by) {
  for (int64_t h = 0; h < t.heads; h++)
    for (int64_t i = first; i < t.len; i += step)
      for (int64_t c = 0; c < t.dim; c++)
        oracle_set(&t, 0, h, i, c, oracle_get(&t, 0, h, i, c) * by);
}

/* The worst row, as a share of the largest value that it may see. */
static void judge(test_call *call, double most, const char *what) {
  test_run(call);
  const double worst = test_errors_of(call).worst;
  if (!(worst <= most)) fail_msg("%s: %.3g of max |v|", what, worst);
}

/* Numbers of every size, right to 2^-10 of max |v|: q and k whose product is of ordinary size though |q| |k| or
 * one of them is beyond 65504 or below 2^-24; values of any size beside each other, of which rows see some. */
static void errors(void **state) {
  (void)state;
  static const double q[] = {1, 0x1p-17, 0x1p80, 0x1p-115}, v[] = {1, 1e30, 1e-34, 300};
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(10500 + (uint64_t)n);
    test_compute = ATTN_COMPUTE_F32; /* numbers of all bits */
    test_call call = drawn(ATTN_F32, test_fast ? 20 : 70, 300, n & 1 ? 128 : 64, &rng);
    test_compute = ATTN_COMPUTE_F16;
    call.params.causal = n & 4 ? ATTN_CAUSAL_START : ATTN_CAUSAL_NONE;
    for (int64_t i = 0; n >= 8 && i < 2 * 300 * call.v.dim; i++) /* one-signed values */
      ((float *)call.v.data)[i] = fabsf(((float *)call.v.data)[i]);
    const double size = q[n & 3];
    scale_rows(call.q, 0, 1, size);
    scale_rows(call.k, 0, 1, 1 / size);
    scale_rows(call.q, 3, 5, 0x1p-20); /* rows of other sizes */
    scale_rows(call.k, 2, 7, 0x1p-20);
    scale_rows(call.v, 0, 1, v[n & 3]);
    if (n & 4) scale_rows(call.v, 40, 9, 1e3);
    judge(&call, 0x1p-10, "numbers of any size");
    test_mem_release();
  }
}
void O3_errors(void **state) { TEST_IN_MODE(ATTN_COMPUTE_F16, errors); }

/* Values of a row may differ by all that f32 has: the largest alone counts, and weights still add to 1. */
static void mixed(void **state) {
  (void)state;
  test_rng rng = test_seed(10600);
  test_call call = drawn(ATTN_F32, 20, 200, 8, &rng);
  for (int64_t j = 0; j < 200; j++) {
    test_fill_row(call.v, 0, 0, j, j % 2 ? 1e30 : 1e-10);
    test_fill_row(call.v, 0, 1, j, 1.5e-20);
  }
  judge(&call, 0x1p-10, "values of two sizes");
  for (int64_t i = 0; i < 20; i++) {
    const double x = oracle_get(&call.o, 0, 1, i, 3);
    if (fabs(x / 1.5e-20 - 1) > 0x1p-11) fail_msg("weights do not add to 1: %.9g", x);
  }
}
void O3_values_of_two_sizes(void **state) { TEST_IN_MODE(ATTN_COMPUTE_F16, mixed); }

/* Many small weights beside a large one keep their share. */
static void shares(void **state) {
  (void)state;
  enum { KEYS = 20000 };
  test_rng rng = test_seed(10650);
  test_call call = drawn(ATTN_F32, 3, KEYS, 2, &rng);
  call.params.scale = 1;
  test_fill_value(call.q, 1);
  test_fill_value(call.k, -9); /* e^-18 each, 3e-4 in all: below all that f16 has */
  test_fill_value(call.v, 1);
  for (int64_t h = 0; h < 2; h++) {
    test_fill_row(call.k, 0, h, 77, 0);
    test_fill_row(call.v, 0, h, 77, 0);
  }
  test_run(&call);
  const double all = (KEYS - 1) * exp(-18.0), want = all / (1 + all);
  const double got = oracle_get(&call.o, 0, 1, 2, 1);
  if (fabs(got / want - 1) > 0x1p-9) fail_msg("%.9g instead of %.9g", got, want);
}
void O3_small_weights(void **state) { TEST_IN_MODE(ATTN_COMPUTE_F16, shares); }

/* Products of numbers that f16 has are exact: scores are those of f32 to the order of their sums. */
static void exact(void **state) {
  (void)state;
  for (int type = ATTN_F32; type <= ATTN_F16; type++) {
    test_rng rng = test_seed(10700);
    test_call call = drawn((attn_dtype)type, 20, 150, 64, &rng), plain;
    for (int64_t c = 0; c < 64; c++) {
      oracle_set(&call.k, 0, 0, 5, c, c ? 0.25 : 65504); /* ends of f16 */
      oracle_set(&call.q, 0, 1, 7, c, ldexp(1 + (double)(c % 8), -24));
    }
    call.params.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 150);
    call.params.map_stage = ATTN_MAP_SCORES;
    plain = test_again(&call);
    plain.params.compute = ATTN_COMPUTE_F32;
    test_run(&call);
    test_run(&plain);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 20; i++)
        for (int64_t j = 0; j < 150; j++) {
          double size = 0;
          for (int64_t c = 0; c < 64; c++)
            size += fabs(oracle_get(&call.q, 0, h, i, c) * oracle_get(&call.k, 0, h, j, c)) / 8;
          const double x = oracle_get(&call.params.map, 0, h, i, j);
          const double y = oracle_get(&plain.params.map, 0, h, i, j);
          if (fabs(x - y) > 64 * 0x1p-24 * size)
            fail_msg("score[%d,%d,%d] is %.9g, of f32 %.9g", (int)h, (int)i, (int)j, x, y);
        }
    test_mem_release();
  }
}
void O3_scores_of_f16(void **state) { TEST_IN_MODE(ATTN_COMPUTE_F16, exact); }

/* Later keys and values of any size change no bit of earlier rows. */
static void later(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(10800 + (uint64_t)n);
    test_call call = drawn(ATTN_F32, 140, 140, 24, &rng), dirty = test_again(&call);
    const int64_t from = n & 1 ? 77 : 9;
    call.params.causal = dirty.params.causal = ATTN_CAUSAL_START;
    dirty.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 140, 24);
    dirty.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 140, 24);
    if (n & 2) scale_rows(call.v, 5, 3, 1e-30);
    test_copy(dirty.k, call.k);
    test_copy(dirty.v, call.v);
    for (int64_t j = from; j < 140; j++) {
      test_fill_row(dirty.k, 0, j & 1, j, j % 3 ? 1e9 : j % 5 ? (double)NAN : (double)FLT_MAX);
      test_fill_row(dirty.v, 0, j & 1, j,
                    j % 3   ? 1e-30
                    : j % 4 ? (double)INFINITY
                            : -(double)FLT_MAX);
    }
    test_run(&call);
    test_run(&dirty);
    test_assert_same(test_rows(call.o, 0, from), test_rows(dirty.o, 0, from), "later keys");
    test_mem_release();
  }
}
void O3_sees_no_later_key(void **state) { TEST_IN_MODE(ATTN_COMPUTE_F16, later); }

/* Rows of x and columns of w of any size in attn_gemm. */
static void sizes(void **state) {
  (void)state;
  enum { M = 70, K = 300, N = 100 };
  test_rng rng = test_seed(10900);
  test_compute = ATTN_COMPUTE_F32;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, M, K);
  attn_tensor w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, K, N);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, M, N);
  test_fill(x, &rng, test_normal);
  test_fill(w, &rng, test_normal);
  test_compute = ATTN_COMPUTE_F16;
  scale_rows(x, 2, 5, 1e28);
  scale_rows(x, 3, 5, 1e-20);
  for (int64_t c = 0; c < K; c++)
    for (int64_t j = 0; j < N; j += 3)
      oracle_set(&w, 0, 0, c, j, oracle_get(&w, 0, 0, c, j) * (j % 2 ? 1e7 : 1e-12));
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  p.compute = ATTN_COMPUTE_F16;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_gemm(y, x, w, &p, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.compute, ATTN_COMPUTE_F16);
  for (int64_t i = 0; i < M; i++)
    for (int64_t j = 0; j < N; j++) {
      double sum = 0, size = 0;
      for (int64_t c = 0; c < K; c++) {
        const double t = oracle_get(&x, 0, 0, i, c) * oracle_get(&w, 0, 0, c, j);
        sum += t, size += fabs(t);
      }
      if (!(fabs(oracle_get(&y, 0, 0, i, j) - sum) <= 0x1p-10 * size))
        fail_msg("y[%d,%d] is %.9g, not %.9g", (int)i, (int)j, oracle_get(&y, 0, 0, i, j), sum);
    }
}
void O3_gemm_of_any_size(void **state) { TEST_IN_MODE(ATTN_COMPUTE_F16, sizes); }

/* ---- which arithmetic runs --------------------------------------------------------------------*/

void O3_report(void **state) { test_mode_report(ATTN_COMPUTE_F16, state); }
void O3_workspace(void **state) { test_mode_workspace(ATTN_COMPUTE_F16, state); }
