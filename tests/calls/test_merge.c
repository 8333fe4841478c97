/* tests/calls/test_merge.c owns attn_merge: splitting the keys of A1 and putting the parts together. */

#include <math.h>
#include <string.h>

#include "harness.h"
#include "list.h"

static void merge_ok(attn_tensor o, attn_tensor lse, attn_tensor o1, attn_tensor lse1,
                     attn_tensor o2, attn_tensor lse2) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_merge(o, lse, o1, lse1, o2, lse2, &ctx);
  if (status != ATTN_OK) fail_msg("attn_merge: %s", ctx.reason ? ctx.reason : "(null)");
  assert_int_equal(ctx.report.isa, test_isa);
  assert_int_equal(attn_merge_workspace(o, lse, o1, lse1, o2, lse2, &ctx), 0);
}

void A1_split_and_merge(void **state) {
  (void)state;
  test_rng rng = test_seed(30);
  for (int64_t n = test_count(20, 5); n-- > 0;) {
    int64_t tk = test_range(&rng, 2, 200), cut = test_range(&rng, 0, tk);
    test_spec spec = test_plain(2, test_range(&rng, 1, 90), tk, 10, test_range(&rng, 1, 20));
    test_call whole = test_build(&spec, &rng), left = test_again(&whole), right = left;
    right = test_again(&whole);
    whole.params.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 2, spec.q_len, tk, &rng);
    if (whole.params.mask.k_len == 1) whole.params.mask.kind = ATTN_MASK_NONE;
    left.params.mask = right.params.mask = whole.params.mask;
    if (whole.params.mask.kind) {
      left.params.mask.k_len = cut;
      right.params.mask.k_len = tk - cut;
      right.params.mask.data = (const uint8_t *)right.params.mask.data + cut;
    }
    /* An extent of 1 means broadcast, so such a part cannot carry the mask. */
    if (whole.params.mask.kind && (cut <= 1 || tk - cut <= 1)) continue;
    left.k = test_rows(whole.k, 0, cut);
    left.v = test_rows(whole.v, 0, cut);
    right.k = test_rows(whole.k, cut, tk - cut);
    right.v = test_rows(whole.v, cut, tk - cut);
    test_run(&whole);
    test_run(&left);
    test_run(&right);
    test_call merged = test_again(&whole);
    merge_ok(merged.o, merged.params.lse, left.o, left.params.lse, right.o, right.params.lse);
    test_compare(&merged, "split and merged");
  }
}

void A1_merge_matches_formula(void **state) {
  (void)state;
  test_rng rng = test_seed(31);
  double x1[70], x2[70], want[70];
  for (int64_t n = test_count(54, 18); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 70), dv = test_range(&rng, 1, 70);
    attn_dtype types[3] = {(attn_dtype)(n % 3), (attn_dtype)(n / 3 % 3), (attn_dtype)(n / 9 % 3)};
    attn_tensor o1 = test_tensor(types[0], (test_layout)(n % 6), 2, 2, t, dv);
    attn_tensor o2 = test_tensor(types[1], (test_layout)(n % 5), 2, 2, t, dv);
    attn_tensor o = test_tensor(types[2], (test_layout)(n % 4), 2, 2, t, dv);
    attn_tensor lse1 = test_tensor(ATTN_F32, (test_layout)(n % 4), 2, 2, t, 1);
    attn_tensor lse2 = test_tensor(ATTN_F32, TEST_BTHD, 2, 2, t, 1);
    attn_tensor lse = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, t, 1);
    attn_tensor none = lse;
    none.data = NULL;
    test_fill(o1, &rng, test_normal);
    test_fill(o2, &rng, test_normal);
    test_fill(lse1, &rng, test_normal);
    test_fill(lse2, &rng, test_normal);
    test_fill_row(lse1, 0, 0, t / 2, -(double)INFINITY);
    test_fill_row(lse2, 1, 1, t / 3, -(double)INFINITY);
    test_fill_row(lse2, 1, 0, t / 3, 300);
    test_fill_row(lse1, 0, 1, t / 3, -(double)INFINITY);
    test_fill_row(lse2, 0, 1, t / 3, -(double)INFINITY);
    merge_ok(o, n & 1 ? none : lse, o1, lse1, o2, lse2);
    for (int64_t row = 0; row < 4 * t; row++) {
      int64_t b = row / (2 * t), h = row / t % 2, i = row % t;
      for (int64_t c = 0; c < dv; c++) {
        x1[c] = oracle_get(&o1, b, h, i, c);
        x2[c] = oracle_get(&o2, b, h, i, c);
      }
      double l = oracle_merge(want, x1, oracle_get(&lse1, b, h, i, 0), x2,
                              oracle_get(&lse2, b, h, i, 0), dv);
      for (int64_t c = 0; c < dv; c++) {
        double got = oracle_get(&o, b, h, i, c);
        double unit = types[2] == ATTN_BF16 ? 4e-3 : types[2] == ATTN_F16 ? 5e-4 : 5e-7;
        if (fabs(got - want[c]) > unit * (fabs(x1[c]) + fabs(x2[c])) + 1e-7) {
          fail_msg("merge: row %d column %d is %.9g, not %.9g", (int)row, (int)c, got, want[c]);
        }
      }
      if (n & 1) continue;
      double got = oracle_get(&lse, b, h, i, 0);
      if (!(got == l || fabs(got - l) <= 1e-6 * (1 + fabs(l)))) {
        fail_msg("merge: lse is %.9g, not %.9g", got, l);
      }
    }
  }
}

/* A part with LSE -inf leaves the other bit for bit, whatever its O holds. */
void A1_merge_empty_is_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(32);
  for (int type = 0; type < 3; type++) {
    for (int swap = 0; swap < 2; swap++) {
      attn_tensor part = test_tensor((attn_dtype)type, TEST_BHTD, 1, 2, 33, 19);
      attn_tensor junk = test_tensor((attn_dtype)type, TEST_PADDED, 1, 2, 33, 19);
      attn_tensor o = test_tensor((attn_dtype)type, TEST_BHTD, 1, 2, 33, 19);
      attn_tensor part_lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 33, 1);
      attn_tensor junk_lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 33, 1);
      attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 33, 1);
      test_fill(part, &rng, test_normal);
      test_fill(part_lse, &rng, test_normal);
      test_fill_row(part_lse, 0, 0, 1, 1e30);
      test_fill_row(part_lse, 0, 0, 2, -1e30);
      test_fill_value(junk, (double)NAN);
      test_fill_value(junk_lse, -(double)INFINITY);
      if (swap) {
        merge_ok(o, lse, junk, junk_lse, part, part_lse);
      } else {
        merge_ok(o, lse, part, part_lse, junk, junk_lse);
      }
      test_assert_same(o, part, "merge with an empty part");
      test_assert_same(lse, part_lse, "merge with an empty part");
      merge_ok(o, lse, junk, junk_lse, junk, junk_lse);
      test_fill_value(part, 0);
      test_assert_same(o, part, "merge of two empty parts");
      test_assert_same(lse, junk_lse, "merge of two empty parts");
    }
  }
}

void A1_merge_in_place(void **state) {
  (void)state;
  test_rng rng = test_seed(33);
  attn_tensor t[6];
  for (int n = 0; n < 6; n++) {
    t[n] = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 29, n % 2 ? 1 : 21);
    test_fill(t[n], &rng, test_normal);
  }
  merge_ok(t[4], t[5], t[0], t[1], t[2], t[3]);
  attn_tensor first = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 29, 21);
  attn_tensor first_lse = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 29, 1);
  test_copy(first, t[0]);
  test_copy(first_lse, t[1]);
  merge_ok(first, first_lse, first, first_lse, t[2], t[3]);
  test_assert_same(first, t[4], "merge into the first part");
  test_assert_same(first_lse, t[5], "merge into the first part");
  merge_ok(t[2], t[3], t[0], t[1], t[2], t[3]);
  test_assert_same(t[2], t[4], "merge into the second part");
  test_assert_same(t[3], t[5], "merge into the second part");
}

void A1_merge_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(34);
  attn_tensor t[6];
  for (int n = 0; n < 6; n++) {
    t[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, n % 2 ? 1 : 21);
    test_fill(t[n], &rng, test_normal);
  }
  test_fill_row(t[1], 0, 0, 7, (double)NAN);
  test_fill_row(t[3], 0, 0, 9, (double)NAN);
  test_fill_row(t[1], 0, 0, 9, -(double)INFINITY);
  merge_ok(t[4], t[5], t[0], t[1], t[2], t[3]);
  for (int64_t i = 0; i < 20; i++) {
    int want = i == 7 || i == 9;
    assert_int_equal(isnan(oracle_get(&t[5], 0, 0, i, 0)) != 0, want);
    for (int64_t c = 0; c < 21; c++) {
      assert_int_equal(isnan(oracle_get(&t[4], 0, 0, i, c)) != 0, want);
    }
  }
}

void A1_merge_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 14; n++) {
    test_rng rng = test_seed(35);
    attn_tensor t[6];
    test_block out[2];
    for (int k = 0; k < 6; k++) {
      t[k] = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, k % 2 ? 1 : 21);
      if (k < 4) test_fill(t[k], &rng, test_normal);
      if (k >= 4) out[k - 4] = test_last_block;
    }
    attn_status want = ATTN_E_SHAPE;
    if (n == 0) t[0].data = NULL;
    if (n == 1) t[3].data = NULL;
    if (n == 2) t[4].data = NULL;
    if (n <= 2) want = ATTN_E_NULL;
    if (n == 3) t[2].len = 19;
    if (n == 4) t[2].dim = 20;
    if (n == 5) t[0].heads = 1;
    if (n == 6) t[1].dim = 2;
    if (n == 7) t[5].batch = 2;
    if (n == 8) t[1].dtype = ATTN_F16;
    if (n == 9) t[2].dtype = (attn_dtype)9;
    if (n == 8 || n == 9) want = ATTN_E_DTYPE;
    if (n == 10) t[4].stride_len = 20;
    if (n == 11) t[5].stride_head = 0;
    if (n == 10 || n == 11) want = ATTN_E_STRIDE;
    if (n == 12) t[0].data = (float *)t[4].data + 1;
    if (n == 13) t[1].data = t[4].data;
    if (n >= 12) want = ATTN_E_OVERLAP;
    attn_ctx ctx = test_ctx();
    attn_status got = attn_merge(t[4], t[5], t[0], t[1], t[2], t[3], &ctx);
    if (got != want || !ctx.reason) {
      fail_msg("merge case %d: %s, not %s (%s)", n, attn_status_string(got),
               attn_status_string(want), ctx.reason ? ctx.reason : "no reason");
    }
    for (int k = 0; k < 2; k++) {
      for (size_t at = 0; at < out[k].size; at++) assert_int_equal(out[k].data[at], 0xA5);
    }
  }
}
