/* tests/calls/test_codes.c owns scores from codes of 8 bits (O4): the tests of attention once more with them, by
 * the processor's instructions and emulated; their bounds; that all tiers agree on them; that they hang on
 * nothing that a row may not see. */

#include <float.h>
#include <math.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* Runs tests in int8, by the instructions that there are and without: of codes, and of values. On emulators and with
 * sanitizers one of these is all of them, the others the first: see test_low.c. */
static void each(void (*const *tests)(void **), int n, void **state) {
  const attn_feature codes = test_feature(ATTN_COMPUTE_I8),
                     values = test_feature(ATTN_COMPUTE_BF16);
  for (int off = 0; off < 3; off++) {
    if ((off == 1 && !codes) || (off == 2 && !values)) continue;
    if (off) assert_int_equal(attn_feature_off(off == 1 ? codes : values, 1), ATTN_OK);
    test_compute = ATTN_COMPUTE_I8;
    const int all = !test_fast || off == (values && test_isa == ATTN_ISA_NEON ? 2 : 0);
    for (int i = 0; i < (all ? n : 1); i++) tests[i](state);
    test_compute = ATTN_COMPUTE_F32;
    if (off) assert_int_equal(attn_feature_off(off == 1 ? codes : values, 0), ATTN_OK);
  }
}
#define EACH(...)                                        \
  static void (*const tests[])(void **) = {__VA_ARGS__}; \
  each(tests, (int)(sizeof tests / sizeof *tests), state)

void O4_shapes(void **state) {
  EACH(A1_random_shapes, A1_every_tail, A1_tile_edges, A1_layouts, A1_storage_types, A1_scale,
       A1_no_keys, A1_empty_extents, A1_sinks, A1_softcap);
}

void O4_groups(void **state) { EACH(A5_grouped_heads, A5_equals_repeated_heads, A6_mla_wide); }

void O4_masks(void **state) {
  EACH(A2_causal, A2_causal_offset, A2_window, A2_huge_offset_and_window, A2_boolean_mask,
       A2_bit_mask, A2_additive_mask, A2_lengths, A2_everything_combined, A2_empty_rows,
       A2_causal_start);
}

void O4_terms(void **state) {
  EACH(B3_matches_oracle, B4_matches_oracle, B7_matches_oracle, B8_matches_oracle, B6_random_shapes,
       H1_matches_oracle, I5_matches_oracle, A2_modify_matches_oracle, A2_weights_match_oracle,
       api_labels_match_oracle, api_terms_combined);
}

void O4_schedules(void **state) { EACH(api_terms_on_schedules, A2_weights_schedules); }

void O4_sequences(void **state) { EACH(A2_ragged_terms, A2_ragged_masks, A2_offsets_terms); }

void O4_caches(void **state) { EACH(A1_cache_model, A1_cache_ring, A1_cache_attend); }

/* What is forbidden never shows, what is allowed and not a number shows in its rows alone. */
void O4_not_finite(void **state) {
  EACH(A2_forbidden_garbage, A2_garbage_on_the_diagonal, A1_nan_in_query, A1_nan_in_allowed_key,
       A1_nan_payloads, api_terms_on_schedules_nan, api_terms_forbidden_garbage);
}

/* The same bits for any workers, composition and cut, and beside guard pages. */
void O4_bits(void **state) {
  EACH(api_terms_any_workers, api_terms_any_chunks, api_terms_any_composition,
       api_terms_guard_pages, api_terms_workspace, api_terms_on_schedules_workers);
}

/* ---- what is int8's own -----------------------------------------------------------------------*/

static test_call drawn(attn_dtype type, int64_t queries, int64_t keys, int64_t d, test_rng *rng) {
  test_spec spec = test_plain(2, queries, keys, d, d);
  spec.q_type = spec.k_type = spec.v_type = type;
  test_call call = test_build(&spec, rng);
  call.params.compute = ATTN_COMPUTE_I8;
  return call;
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

static void compare_errors(test_call *call, const char *what) {
  const int64_t keys = call->k.len, d = call->v.dim;
  oracle_row row;
  row.o = test_mem((size_t)d * sizeof(double));
  row.p = test_mem((size_t)keys * sizeof(double));
  row.size = test_mem((size_t)keys * sizeof(double));
  double worst = 0;
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < call->q.len; i++) {
      oracle_sdpa(&call->q, &call->k, &call->v, &call->params, 0, h, i, &row);
      for (int64_t c = 0; c < d; c++) {
        const double e = fabs(oracle_get(&call->o, 0, h, i, c) - row.o[c]) / row.value;
        worst = e > worst || e != e ? e : worst;
      }
    }
  if (!(worst <= 1e-2)) fail_msg("%s: %.3g of max |v|", what, worst);
}

/* Standard normal rows are right to 1e-2 of max |v|: full, causal, under a window and with a shift of all keys. */
static void errors(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(9800 + (uint64_t)n);
    const int64_t d = n & 1 ? 128 : 64;
    test_call call = drawn(n & 2 ? ATTN_BF16 : ATTN_F32, 64, 400, d, &rng);
    test_fill(call.q, &rng, test_normal);
    test_fill(call.k, &rng, test_normal);
    test_fill(call.v, &rng, test_normal);
    call.params.causal = n / 4 > 0;
    if (n / 4 == 2) call.params.window.on = 1, call.params.window.left = 200;
    test_run(&call);
    compare_errors(&call, "normal rows");
    test_mem_release();
  }
}
void O4_errors(void **state) { EACH(errors); }

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
void O4_shift(void **state) { EACH(shifted); }

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
    test_mem_release();
  }
}
void O4_sees_no_later_key(void **state) { EACH(later); }

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
void O4_beyond_codes(void **state) { EACH(beyond); }

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
void O4_codes_of_a_cache(void **state) { EACH(stored); }

/* ---- which arithmetic runs --------------------------------------------------------------------*/

void O4_report(void **state) {
  (void)state;
  const attn_feature feature = test_feature(ATTN_COMPUTE_I8);
  for (int off = 0; off < (feature ? 2 : 1); off++)
    for (int prefer = 0; prefer < 2; prefer++) {
      test_rng rng = test_seed(10400);
      test_call call = drawn(ATTN_F32, 9, 40, 8, &rng), plain = test_again(&call);
      attn_ctx ctx = test_ctx();
      plain.params.compute = ATTN_COMPUTE_F32;
      call.params.compute_prefer = prefer;
      if (off) assert_int_equal(attn_feature_off(feature, 1), ATTN_OK);
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
      if (off) assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
      const int here = feature && !off;
      assert_int_equal(ctx.report.feature, here ? feature : ATTN_FEATURE_NONE);
      assert_int_equal(ctx.report.compute, here || !prefer ? ATTN_COMPUTE_I8 : ATTN_COMPUTE_F32);
      test_run(&plain);
      if (ctx.report.compute == ATTN_COMPUTE_F32)
        test_assert_same_outputs(&call, &plain, "a preference that cannot be met");
      else
        assert_false(test_same(call.o, plain.o));
      test_mem_release();
    }
}

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

/* The memory of a call: what the query says, no byte less. */
void O4_workspace(void **state) {
  (void)state;
  test_rng rng = test_seed(10600);
  test_call call = drawn(ATTN_BF16, 70, 140, 20, &rng);
  attn_ctx ctx = test_ctx();
  const size_t bytes = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
  ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes - 1;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_E_WORKSPACE);
  ctx.workspace_size = bytes;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.compute, ATTN_COMPUTE_I8);
}
