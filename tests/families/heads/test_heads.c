/* tests/families/heads/test_heads.c owns A5, grouped heads, and A6, free head widths. */

#include <math.h>
#include <stdio.h>

#include "harness.h"
#include "list.h"

void A5_grouped_heads(void **state) {
  (void)state;
  static const int64_t divisors[] = {1, 2, 3, 4, 6, 12};
  test_rng rng = test_seed(60);
  for (int n = 0; n < 36; n++) {
    test_spec spec = test_plain(12, test_range(&rng, 1, 20), test_range(&rng, 1, 20), 7, 5);
    spec.batch = 2;
    spec.k_heads = divisors[n % 6];
    spec.v_heads = divisors[n / 6];
    spec.map = n & 1;
    test_call call = test_build(&spec, &rng);
    call.params.causal = (n & 2) != 0;
    char what[40];
    snprintf(what, sizeof what, "Hk=%d Hv=%d", (int)spec.k_heads, (int)spec.v_heads);
    test_check(&call, what);
  }
}

/* Decoding: one query of every head of a group against the shared keys. */
void A5_grouped_decode(void **state) {
  (void)state;
  for (int64_t tq = 1; tq <= 5; tq += 2) {
    test_spec spec = test_plain(8, tq, 333, 40, 24);
    spec.batch = 2;
    spec.k_heads = spec.v_heads = 2;
    test_rng rng = test_seed(61);
    test_call call = test_build(&spec, &rng);
    call.params.causal = 1;
    call.params.kv_len = test_lengths(2, 333, &rng);
    test_check(&call, "grouped decoding");
  }
}

void A5_equals_repeated_heads(void **state) {
  (void)state;
  test_spec spec = test_plain(6, 66, 70, 12, 10);
  spec.k_heads = 2;
  spec.v_heads = 3;
  test_rng rng = test_seed(62);
  test_call call = test_build(&spec, &rng), repeated = test_again(&call);
  repeated.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 6, 70, 12);
  repeated.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 6, 70, 10);
  for (int64_t h = 0; h < 6; h++) {
    test_copy(test_one(repeated.k, 0, 1, h, 1), test_one(call.k, 0, 1, h / 3, 1));
    test_copy(test_one(repeated.v, 0, 1, h, 1), test_one(call.v, 0, 1, h / 2, 1));
  }
  test_run(&call);
  test_run(&repeated);
  test_assert_same_outputs(&call, &repeated, "repeated heads");
}

void A5_permuted_within_group(void **state) {
  (void)state;
  test_spec spec = test_plain(6, 66, 70, 12, 10);
  spec.k_heads = spec.v_heads = 2;
  test_rng rng = test_seed(63);
  test_call call = test_build(&spec, &rng), moved = test_again(&call);
  static const int64_t order[] = {2, 0, 1, 3, 5, 4};
  moved.q = test_tensor(ATTN_F32, TEST_BHTD, 1, 6, 66, 12);
  for (int64_t h = 0; h < 6; h++) {
    test_copy(test_one(moved.q, 0, 1, h, 1), test_one(call.q, 0, 1, order[h], 1));
  }
  test_run(&call);
  test_run(&moved);
  for (int64_t h = 0; h < 6; h++) {
    test_assert_same(test_one(moved.o, 0, 1, h, 1), test_one(call.o, 0, 1, order[h], 1), "group");
  }
}

void A6_head_widths(void **state) {
  (void)state;
  static const int64_t widths[][2] = {{1, 1},     {1, 70},   {70, 1},   {300, 5},
                                      {5, 300},   {1030, 2}, {2, 1030}, {257, 255},
                                      {128, 128}, {80, 40},  {72, 40},  {1030, 1030}};
  for (int n = 0; n < 12; n++) {
    for (int type = 0; type < 3; type++) {
      test_spec spec = test_plain(1, 66, 20 + n, widths[n][0], widths[n][1]);
      if (test_fast) spec.q_len = 9;
      spec.k_type = spec.v_type = (attn_dtype)type;
      test_rng rng = test_seed(64);
      test_call call = test_build(&spec, &rng);
      call.params.causal = n & 1;
      test_check(&call, "head width");
    }
  }
}

/* Zero columns, at a held scale, change no bit. */
void A6_zero_columns(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 66, 90, 31, 12);
  test_rng rng = test_seed(65);
  test_call call = test_build(&spec, &rng), wide = test_again(&call);
  call.params.scale = wide.params.scale = 0.25f;
  wide.q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 66, 77);
  wide.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 77);
  test_fill_value(wide.q, 0);
  test_fill_value(wide.k, 0);
  attn_tensor q = wide.q, k = wide.k;
  q.dim = k.dim = 31;
  test_copy(q, call.q);
  test_copy(k, call.k);
  test_run(&call);
  test_run(&wide);
  test_assert_same_outputs(&call, &wide, "zero columns");
}

void A6_zero_query_of_width_one(void **state) {
  (void)state;
  test_spec spec = test_plain(3, 40, 67, 1, 9);
  test_rng rng = test_seed(66);
  test_call call = test_build(&spec, &rng);
  test_fill_value(call.q, 0);
  test_check(&call, "the mean of the values");
  for (int64_t i = 0; i < 40; i++) {
    assert_true(fabs(oracle_get(&call.params.lse, 0, 0, i, 0) - log(67)) < 1e-6 * 5);
  }
}
