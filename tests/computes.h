/* tests/computes.h owns tests in products of numbers below f32 (O1): the tests of attention once more in
 * such a mode, by the processor's instructions and emulated. */

#ifndef TESTS_COMPUTES_H
#define TESTS_COMPUTES_H

#include "harness.h"
#include "list.h"

/* The feature whose instructions a mode has on the tier under test, if the machine has it. */
attn_feature test_feature(attn_compute mode);

/* Runs tests in a mode with all features, then without each that it uses. Random cases are fewer: the
 * tests run in f32 as well; in small scale all but one of these runs are the first test alone. */
void test_in_mode(attn_compute mode, void (*const *tests)(void **), int n, void **state);
#define TEST_IN_MODE(mode, ...)                            \
  do {                                                     \
    static void (*const tests[])(void **) = {__VA_ARGS__}; \
    const int n = (int)(sizeof tests / sizeof *tests);     \
    test_in_mode(mode, tests, n, state);                   \
  } while (0)

/* The tests of attention: what is forbidden never shows, what is allowed and not a number shows in its rows
 * alone; the same bits for any workers, composition and cut, and beside guard pages. */
#define TESTS_OF_ATTENTION(id, mode)                                                               \
  void id##_shapes(void **state) {                                                                 \
    TEST_IN_MODE(mode, A1_random_shapes, A1_every_tail, A1_tile_edges, A1_layouts,                 \
                 A1_storage_types, A1_scale, A1_no_keys, A1_empty_extents, A1_sinks, A1_softcap);  \
  }                                                                                                \
  void id##_groups(void **state) {                                                                 \
    TEST_IN_MODE(mode, A5_grouped_heads, A5_equals_repeated_heads, A6_mla_wide);                   \
  }                                                                                                \
  void id##_masks(void **state) {                                                                  \
    TEST_IN_MODE(mode, A2_causal, A2_causal_offset, A2_window, A2_huge_offset_and_window,          \
                 A2_boolean_mask, A2_bit_mask, A2_additive_mask, A2_lengths,                       \
                 A2_everything_combined, A2_empty_rows, A2_causal_start);                          \
  }                                                                                                \
  void id##_terms(void **state) {                                                                  \
    TEST_IN_MODE(mode, B3_matches_oracle, B4_matches_oracle, B7_matches_oracle, B8_matches_oracle, \
                 B6_random_shapes, H1_matches_oracle, I5_matches_oracle, A2_modify_matches_oracle, \
                 A2_weights_match_oracle, api_labels_match_oracle, api_terms_combined);            \
  }                                                                                                \
  void id##_schedules(void **state) {                                                              \
    TEST_IN_MODE(mode, api_terms_on_schedules, A2_weights_schedules);                              \
  }                                                                                                \
  void id##_sequences(void **state) {                                                              \
    TEST_IN_MODE(mode, A2_ragged_terms, A2_ragged_masks, A2_offsets_terms);                        \
  }                                                                                                \
  void id##_caches(void **state) {                                                                 \
    TEST_IN_MODE(mode, A1_cache_model, A1_cache_ring, A1_cache_attend);                            \
  }                                                                                                \
  void id##_not_finite(void **state) {                                                             \
    TEST_IN_MODE(mode, A2_forbidden_garbage, A2_garbage_on_the_diagonal, A1_nan_in_query,          \
                 A1_nan_in_allowed_key, A1_nan_payloads, api_terms_on_schedules_nan,               \
                 api_terms_forbidden_garbage);                                                     \
  }                                                                                                \
  void id##_bits(void **state) {                                                                   \
    TEST_IN_MODE(mode, api_terms_any_workers, api_terms_any_chunks, api_terms_any_composition,     \
                 api_terms_guard_pages, api_terms_workspace, api_terms_on_schedules_workers);      \
  }

/* A call of two heads, plain but for its mode. */
test_call test_two_heads(attn_compute mode, attn_dtype type, int64_t queries, int64_t keys,
                         int64_t dk, int64_t dv, test_rng *rng);

/* The largest difference from the oracle on the given numbers, and the root of the mean of their squares, as
 * shares of the largest value of the row. */
typedef struct test_errors {
  double worst, mean;
} test_errors;
test_errors test_errors_of(const test_call *call);

/* The report names the mode and the feature that ran, with the feature and without; a preference that cannot
 * be met has the bits of f32; the next call knows nothing of it. */
void test_mode_report(attn_compute mode, void **state);

struct promise;
/* A layer whose products are what *compute says: its first output is near that of f32 and not the same, the report
 * names mode and feature, promises are kept; a preference that cannot be met has the bits of f32, and what is no
 * mode is refused with this word. codes: the mode of codes of 8 bits is one of them. */
void test_layer(const struct promise *p, attn_compute *compute, int *prefer, int codes,
                double bound, const char *word);

/* The memory of a call is what the query says, no byte less. */
void test_mode_workspace(attn_compute mode, void **state);

#endif
