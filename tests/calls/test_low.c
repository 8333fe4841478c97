/* tests/calls/test_low.c owns products of numbers below f32 (O1, O2): the tests of attention once more with
 * them, by the processor's instructions and emulated; what their bounds are; that they hang on nothing
 * but the row; and every refusal. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* Runs tests in bf16, by the instructions that there are and without. On emulators and with sanitizers one of the two
 * is the first test alone: that with instructions under qemu for ARM, which takes five times as long for them. */
static void both(void (*const *tests)(void **), int n, void **state) {
  const attn_feature feature = test_feature(ATTN_COMPUTE_BF16);
  for (int off = 0; off < (feature ? 2 : 1); off++) {
    test_compute = ATTN_COMPUTE_BF16;
    if (off) assert_int_equal(attn_feature_off(feature, 1), ATTN_OK);
    const int all = !test_fast || off == (feature && test_isa == ATTN_ISA_NEON);
    for (int i = 0; i < (all ? n : 1); i++) tests[i](state);
    if (off) assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
    test_compute = ATTN_COMPUTE_F32;
  }
}
#define BOTH(...)                                        \
  static void (*const tests[])(void **) = {__VA_ARGS__}; \
  both(tests, (int)(sizeof tests / sizeof *tests), state)

void O2_shapes(void **state) {
  BOTH(A1_random_shapes, A1_every_tail, A1_tile_edges, A1_layouts, A1_storage_types, A1_scale,
       A1_no_keys, A1_empty_extents, A1_sinks, A1_softcap, A6_head_widths);
}

void O2_groups(void **state) { BOTH(A5_grouped_heads, A5_equals_repeated_heads, A6_mla_wide); }

void O2_masks(void **state) {
  BOTH(A2_causal, A2_causal_offset, A2_window, A2_huge_offset_and_window, A2_boolean_mask,
       A2_bit_mask, A2_additive_mask, A2_lengths, A2_everything_combined, A2_empty_rows,
       A2_causal_start);
}

void O2_terms(void **state) {
  BOTH(B3_matches_oracle, B4_matches_oracle, B7_matches_oracle, B8_matches_oracle, B6_random_shapes,
       H1_matches_oracle, I5_matches_oracle, A2_modify_matches_oracle, A2_weights_match_oracle,
       api_labels_match_oracle, api_terms_combined);
}

void O2_schedules(void **state) { BOTH(api_terms_on_schedules, A2_weights_schedules); }

void O2_sequences(void **state) { BOTH(A2_ragged_terms, A2_ragged_masks, A2_offsets_terms); }

void O2_caches(void **state) { BOTH(A1_cache_model, A1_cache_ring, A1_cache_attend); }

/* What is forbidden never shows, what is allowed and not a number shows in its rows alone. */
void O2_not_finite(void **state) {
  BOTH(A2_forbidden_garbage, A2_garbage_on_the_diagonal, A1_nan_in_query, A1_nan_in_allowed_key,
       A1_nan_payloads, api_terms_on_schedules_nan, api_terms_forbidden_garbage);
}

/* The same bits for any workers, composition and cut, and beside guard pages. */
void O2_bits(void **state) {
  BOTH(api_terms_any_workers, api_terms_any_chunks, api_terms_any_composition,
       api_terms_guard_pages, api_terms_workspace, api_terms_on_schedules_workers);
}

void O2_gemm(void **state) {
  BOTH(MM_gemm_random, MM_gemm_tails, MM_gemm_exact, MM_gemm_nan, MM_gemm_promises, MM_gemm_cuts,
       O5_random, O5_few_rows, O5_cuts, O5_promises);
}

/* ---- what is bf16's own -----------------------------------------------------------------------*/

static test_call drawn(attn_dtype type, int64_t queries, int64_t keys, int64_t dk, int64_t dv,
                       test_rng *rng) {
  test_spec spec = test_plain(2, queries, keys, dk, dv);
  spec.q_type = spec.k_type = spec.v_type = type;
  return test_build(&spec, rng);
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
void O2_rounds_its_inputs(void **state) { BOTH(rounds); }

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
    oracle_row row;
    row.o = test_mem((size_t)d * sizeof(double));
    row.p = test_mem((size_t)keys * sizeof(double));
    row.size = test_mem((size_t)keys * sizeof(double));
    double sum = 0, worst = 0;
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t i = 0; i < 64; i++) {
        oracle_sdpa(&call.q, &call.k, &call.v, &call.params, 0, h, i, &row);
        for (int64_t c = 0; c < d; c++) {
          const double e = fabs(oracle_get(&call.o, 0, h, i, c) - row.o[c]) / row.value;
          sum += e * e, worst = e > worst ? e : worst;
        }
      }
    }
    if (worst > ldexp(1, -7) || sqrt(sum / (double)(128 * d)) > ldexp(1, -9))
      fail_msg("case %d: worst %.3g, mean %.3g", n, worst, sqrt(sum / (double)(128 * d)));
    test_mem_release();
  }
}
void O2_errors(void **state) { BOTH(errors); }

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
void O2_weights_add_to_one(void **state) { BOTH(sums); }

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
  test_rng rng = test_seed(9401);
  test_call call = drawn(ATTN_BF16, 20, 30, 8, 8, &rng);
  for (int64_t j = 0; j < 30; j++)
    test_fill_row(call.v, 0, 0, j, ldexp(1 + (double)(j % 3) / 4, -110));
  for (int64_t j = 0; j < 30; j++)
    test_fill_row(call.v, 0, 1, j, ldexp(1 + (double)(j % 5) / 8, 120));
  test_check(&call, "tiny and large values");
}
void O2_ends_of_the_range(void **state) { BOTH(edges); }

/* ---- which arithmetic runs --------------------------------------------------------------------*/

void O1_report(void **state) {
  (void)state;
  const attn_feature feature = test_feature(ATTN_COMPUTE_BF16);
  for (int off = 0; off < 2; off++) {
    for (int prefer = 0; prefer < 2; prefer++) {
      test_rng rng = test_seed(9500);
      test_call call = drawn(ATTN_F32, 9, 40, 8, 8, &rng), plain = test_again(&call);
      attn_ctx ctx = test_ctx();
      call.params.compute = ATTN_COMPUTE_BF16, call.params.compute_prefer = prefer;
      if (off && feature) assert_int_equal(attn_feature_off(feature, 1), ATTN_OK);
      const attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
      if (off && feature) assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
      assert_int_equal(status, ATTN_OK);
      const int there = feature && !off;
      assert_int_equal(ctx.report.feature, there ? feature : ATTN_FEATURE_NONE);
      assert_int_equal(ctx.report.compute, there || !prefer ? ATTN_COMPUTE_BF16 : ATTN_COMPUTE_F32);
      attn_report report = test_run(&plain);
      assert_int_equal(report.compute, ATTN_COMPUTE_F32);
      assert_int_equal(report.feature, ATTN_FEATURE_NONE);
      if (ctx.report.compute == ATTN_COMPUTE_F32)
        test_assert_same_outputs(&call, &plain, "a preference that cannot be met");
      else
        assert_false(test_same(call.o, plain.o));
      /* the field is forgotten by the next call */
      assert_int_equal(attn_sdpa(plain.o, call.q, call.k, call.v, NULL, &ctx), ATTN_OK);
      assert_int_equal(ctx.report.compute, ATTN_COMPUTE_F32);
      test_mem_release();
    }
  }
}

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
             {ATTN_COMPUTE_COUNT, 1, ATTN_E_VALUE},
             {ATTN_COMPUTE_F16, 0, ATTN_E_ISA}};
  test_rng rng = test_seed(9600);
  test_call call = drawn(ATTN_F32, 9, 40, 8, 8, &rng), plain = test_again(&call);
  attn_ctx ctx = test_ctx();
  for (int n = 0; n < 4; n++) {
    call.params.compute = (attn_compute)bad[n].compute;
    call.params.compute_prefer = bad[n].prefer;
    refused(bad[n].status, attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), &ctx,
            &call);
    assert_true(attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx) ==
                ATTN_WORKSPACE_REJECTED);
  }
  /* calls that compute in f32 alone, which is what a preference gets */
  test_run(&plain);
  call.params.compute = ATTN_COMPUTE_F16, call.params.compute_prefer = 1;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.compute, ATTN_COMPUTE_F32);
  test_assert_same_outputs(&call, &plain, "a preference for what is not there");
}

/* The memory of a call: what the query says, no byte less. */
void O1_workspace(void **state) {
  (void)state;
  test_rng rng = test_seed(9700);
  test_call call = drawn(ATTN_BF16, 70, 140, 20, 30, &rng);
  attn_ctx ctx = test_ctx();
  call.params.compute = ATTN_COMPUTE_BF16;
  const size_t bytes = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
  call.params.compute = ATTN_COMPUTE_F32;
  assert_true(bytes > attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx));
  call.params.compute = ATTN_COMPUTE_BF16;
  ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes - 1;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_E_WORKSPACE);
  ctx.workspace_size = bytes;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.compute, ATTN_COMPUTE_BF16);
}
