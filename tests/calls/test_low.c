/* tests/calls/test_low.c owns products of numbers below f32 (O1, O2): the tests of attention once more with
 * them, by the processor's instructions and emulated; what their bounds are; that they hang on nothing
 * but the row; and every refusal. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "computes.h"
#include "harness.h"
#include "list.h"
#include "terms.h"

TESTS_OF_ATTENTION(O2, ATTN_COMPUTE_BF16)

void O2_head_widths(void **state) { TEST_IN_MODE(ATTN_COMPUTE_BF16, A6_head_widths); }

void O2_gemm(void **state) {
  TEST_IN_MODE(ATTN_COMPUTE_BF16, MM_gemm_random, MM_gemm_tails, MM_gemm_exact, MM_gemm_nan,
               MM_gemm_promises, MM_gemm_cuts, O5_few_rows, O5_cuts);
}

/* ---- what is bf16's own -----------------------------------------------------------------------*/

static test_call drawn(attn_dtype type, int64_t queries, int64_t keys, int64_t dk, int64_t dv,
                       test_rng *rng) {
  return test_two_heads(test_compute, type, queries, keys, dk, dv, rng);
}

/* Numbers that bf16 has not are rounded to it, to nearest even, whatever they are stored as: the bits of the
 * call on what they are rounded to. */
static void rounds(void **state) {
  (void)state;
  for (int type = ATTN_F32; type <= ATTN_F16; type++) {
    test_rng rng = test_seed(9100 + (uint64_t)type);
    test_compute = ATTN_COMPUTE_F32; /* numbers of all bits */
    test_call call = drawn((attn_dtype)type, 70, 150, 33, 21, &rng);
    test_compute = ATTN_COMPUTE_BF16;
    call.params.compute = ATTN_COMPUTE_BF16;
    test_call narrow = test_again(&call);
    narrow.q = test_tensor(ATTN_BF16, TEST_PADDED, 1, 2, 70, 33);
    narrow.k = test_tensor(ATTN_BF16, TEST_BTHD, 1, 2, 150, 33);
    narrow.v = test_tensor(ATTN_BF16, TEST_NEGATIVE, 1, 2, 150, 21);
    test_copy(narrow.q, call.q);
    test_copy(narrow.k, call.k);
    test_copy(narrow.v, call.v);
    test_run(&call);
    test_run(&narrow);
    test_assert_same_outputs(&call, &narrow, "numbers rounded before, and in the call");
    test_mem_release();
  }
}
void O2_rounds_its_inputs(void **state) { TEST_IN_MODE(ATTN_COMPUTE_BF16, rounds); }

/* The worst row and the root of the mean square over all, against the oracle on the given numbers. */
static void errors(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(9200 + (uint64_t)n);
    const int64_t d = n & 1 ? 128 : 64, keys = 512;
    test_call call = drawn(n & 2 ? ATTN_F32 : ATTN_BF16, 64, keys, d, d, &rng);
    for (int64_t i = 0; n == 3 && i < 2 * keys * d; i++) /* one-signed values */
      ((float *)call.v.data)[i] = fabsf(((float *)call.v.data)[i]);
    test_run(&call);
    const test_errors e = test_errors_of(&call);
    if (!(e.worst <= ldexp(1, -7)) || !(e.mean <= ldexp(1, -9)))
      fail_msg("case %d: worst %.3g, mean %.3g", n, e.worst, e.mean);
    test_mem_release();
  }
}
void O2_errors(void **state) { TEST_IN_MODE(ATTN_COMPUTE_BF16, errors); }

/* Weights add to 1: equal values come out as they are, for any scores. */
static void sums(void **state) {
  (void)state;
  for (int64_t keys = 1; keys < 300; keys += 37) {
    test_rng rng = test_seed(9300 + (uint64_t)keys);
    test_call call = drawn(ATTN_BF16, 20, keys, 16, 5, &rng);
    test_fill_value(call.v, 1.5);
    test_run(&call);
    for (int64_t i = 0; i < 20; i++) {
      const double x = oracle_get(&call.o, 0, 1, i, 3);
      if (fabs(x - 1.5) > 2e-6) fail_msg("%d keys: %.9g", (int)keys, x);
    }
    test_mem_release();
  }
}
void O2_weights_add_to_one(void **state) { TEST_IN_MODE(ATTN_COMPUTE_BF16, sums); }

/* A map's weights are not rounded, those in the sums are: with one key, on the ramp of a span, the only weight is
 * divided by itself rounded, and is 1 at most. */
static void map(void **state) {
  (void)state;
  test_rng rng = test_seed(9350);
  test_call call = drawn(ATTN_F32, 64, 1, 16, 5, &rng);
  call.params.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 64, 1);
  call.params.has_q_off = 1;
  call.params.causal = ATTN_CAUSAL_END;
  call.params.span.z = test_constant(2, 1);
  call.params.span.ramp = 80;
  call.params.span.include_self = 1;
  test_run(&call);
  for (int64_t i = 0; i < 64; i++) {
    const double x = oracle_get(&call.params.map, 0, 1, i, 0);
    if (x > 1 || x < 1 - ldexp(1, -8)) fail_msg("row %d: %.9g", (int)i, x);
  }
  test_mem_release();
}
void O2_map_is_a_weight(void **state) { TEST_IN_MODE(ATTN_COMPUTE_BF16, map); }

/* Values near the end of f32 that bf16 rounds to infinity: forbidden ones stay unseen, tiny ones are lost
 * at most. Scores that overflow are those of f32. */
static void edges(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    test_rng rng = test_seed(9400);
    test_call call = drawn(ATTN_F32, 70, 140, 12, 9, &rng), clean = test_again(&call);
    clean.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 140, 12);
    clean.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 140, 9);
    test_copy(clean.k, call.k);
    test_copy(clean.v, call.v);
    call.params.causal = clean.params.causal = ATTN_CAUSAL_START;
    for (int64_t j = 70; j < 140; j++) {
      test_fill_row(call.v, 0, 0, j, n == 1 ? -(double)FLT_MAX : (double)FLT_MAX);
      test_fill_row(call.k, 0, 1, j, (double)FLT_MAX);
    }
    test_fill_row(call.v, 0, 1, 69, n == 2 ? (double)FLT_MAX : 3.0e38); /* row 69 sees it */
    test_run(&call);
    test_run(&clean);
    for (int64_t i = 0; i < 69; i++)
      test_assert_same(test_rows(call.o, i, 1), test_rows(clean.o, i, 1), "huge and forbidden");
    test_mem_release();
  }
  /* BFDOT takes products below 2^-126 for 0: docs/numerics.md */
  const int least = test_feature(ATTN_COMPUTE_BF16) == ATTN_FEATURE_NEON_BF16 ? -110 : -120;
  test_rng rng = test_seed(9401);
  test_call call = drawn(ATTN_BF16, 20, 30, 8, 8, &rng);
  for (int64_t j = 0; j < 30; j++)
    test_fill_row(call.v, 0, 0, j, ldexp(1 + (double)(j % 3) / 4, least));
  for (int64_t j = 0; j < 30; j++)
    test_fill_row(call.v, 0, 1, j, ldexp(1 + (double)(j % 5) / 8, 120));
  test_check(&call, "tiny and large values");
}
void O2_ends_of_the_range(void **state) { TEST_IN_MODE(ATTN_COMPUTE_BF16, edges); }

/* ---- which arithmetic runs --------------------------------------------------------------------*/

void O1_report(void **state) { test_mode_report(ATTN_COMPUTE_BF16, state); }
void O1_workspace(void **state) { test_mode_workspace(ATTN_COMPUTE_BF16, state); }

static void refused(attn_status want, attn_status got, const attn_ctx *ctx, const test_call *call) {
  assert_int_equal(got, want);
  assert_non_null(ctx->reason);
  assert_non_null(strstr(ctx->reason, "params.compute"));
  const unsigned char *o = call->o.data;
  for (int64_t n = 0; n < 2 * 9 * 8 * 4; n++) assert_int_equal(o[n], 0xA5);
}

void O1_rejects(void **state) {
  (void)state;
  static const struct {
    int compute, prefer;
    attn_status status;
  } bad[] = {{-1, 0, ATTN_E_VALUE},
             {ATTN_COMPUTE_COUNT, 0, ATTN_E_VALUE},
             {ATTN_COMPUTE_COUNT, 1, ATTN_E_VALUE}};
  test_rng rng = test_seed(9600);
  test_call call = drawn(ATTN_F32, 9, 40, 8, 8, &rng);
  attn_ctx ctx = test_ctx();
  for (int n = 0; n < 3; n++) {
    call.params.compute = (attn_compute)bad[n].compute;
    call.params.compute_prefer = bad[n].prefer;
    refused(bad[n].status, attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), &ctx,
            &call);
    assert_true(attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx) ==
                ATTN_WORKSPACE_REJECTED);
  }
}
