/* tests/calls/test_decode.c owns few queries against many keys: numbers, against the oracle. What such a
 * call promises beside numbers is in tests/calls/test_decode_promises.c. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "few.h"
#include "list.h"

void A1_decode_plain(void **state) {
  (void)state;
  few_check(0, 700, test_count(60, 12), 1 << 18, "few queries");
}

void A1_decode_storage_types(void **state) {
  (void)state;
  few_check(FEW_TYPES, 701, test_count(60, 12), 1 << 18, "storage types");
}

void A1_decode_layouts(void **state) {
  (void)state;
  few_check(FEW_TYPES | FEW_LAYOUTS, 702, test_count(60, 12), 1 << 18, "layouts");
}

void A1_decode_bounds(void **state) {
  (void)state;
  few_check(FEW_BOUNDS, 703, test_count(120, 20), 1 << 17, "bounds");
}

void A1_decode_masks(void **state) {
  (void)state;
  few_check(FEW_MASKS, 704, test_count(80, 16), 1 << 17, "masks");
}

void A1_decode_scores(void **state) {
  (void)state;
  few_check(FEW_SCORES | FEW_SINKS, 705, test_count(80, 16), 1 << 17, "scores and sinks");
}

void A1_decode_terms(void **state) {
  (void)state;
  few_check(FEW_TERMS, 706, test_count(60, 12), 1 << 17, "terms");
}

void A1_decode_all_combined(void **state) {
  (void)state;
  few_check(FEW_ALL & ~FEW_QUANTISED, 707, test_count(100, 24), 1 << 17, "all features");
}

/* All 81 types, beside one and several rows a group. */
void A1_decode_every_type(void **state) {
  (void)state;
  for (int n = 0; n < 162; n++) {
    if (n % 3 && test_fast) continue;
    test_rng rng = test_seed(708);
    test_spec z = test_plain(n < 81 ? 2 : 6, 1 + n % 2, 131, 35, 21);
    z.k_heads = z.v_heads = n < 81 ? 2 : 1;
    z.q_type = (attn_dtype)(n % 3), z.k_type = (attn_dtype)(n / 3 % 3);
    z.v_type = (attn_dtype)(n / 9 % 3), z.o_type = (attn_dtype)(n / 27 % 3);
    test_call call = test_build(&z, &rng);
    test_check(&call, "all storage types");
    test_mem_release();
  }
}

/* Every number of keys around the marks, for one, few and many rows a group. */
void A1_decode_lengths(void **state) {
  (void)state;
  static const int64_t marks[] = {1, 8, 16, 32, 64, 128, 256, 1024, 2048, 3072, 4096, 5000};
  static const int64_t groups[] = {1, 3, 8, 9, 64};
  for (int n = 0; n < 12 * 5 * 3; n++) {
    test_rng rng = test_seed(709);
    int64_t keys = marks[n % 12] + n / 60 - 1, heads = groups[n / 12 % 5];
    if (test_fast && keys > 2100) continue;
    if (keys < 1) continue;
    test_spec z = test_plain(heads, 1, keys, 3, 5);
    z.k_heads = z.v_heads = 1;
    test_call call = test_build(&z, &rng);
    char text[64];
    snprintf(text, sizeof text, "%d rows, %d keys", (int)heads, (int)keys);
    test_check(&call, text);
    test_mem_release();
  }
}

/* Every limit of the keys a step to either side of the marks where they are split. */
void A1_decode_edges(void **state) {
  (void)state;
  enum { WINDOW, CAUSAL, RIGHT, KEEP, LENGTH, LIMITS };
  for (int n = 0; n < LIMITS * 2 * 2 * 5; n++, test_mem_release()) {
    test_rng rng = test_seed(712);
    int limit = n % LIMITS, many = n / LIMITS % 2;
    int64_t mark = 1024 * (1 + n / LIMITS / 2 % 2) + n / LIMITS / 4 - 2, keys = 3000;
    int64_t queries = many ? 3 : 1, off = keys - queries;
    test_spec z = test_plain(many ? 9 : 1, queries, keys, 3, 2);
    z.k_heads = z.v_heads = 1;
    test_call call = test_build(&z, &rng);
    int32_t *length = test_mem(sizeof *length);
    *length = (int32_t)mark;
    call.params.has_q_off = 1;
    switch (limit) {
      case WINDOW: test_left(&call.params, off - mark); break;
      case CAUSAL: call.params.causal = 1, off = mark - queries; break;
      case RIGHT: test_right(&call.params, 5), off = mark - queries - 5; break;
      case KEEP: test_left(&call.params, 40), call.params.keep = mark; break;
      default: call.params.kv_len = length; break;
    }
    call.params.q_off = off;
    char text[64];
    snprintf(text, sizeof text, "limit %d at %d, %d queries", limit, (int)mark, (int)queries);
    test_check(&call, text);
  }
}

/* Every width of a row, so every tail. */
void A1_decode_widths(void **state) {
  (void)state;
  static const int64_t wide[] = {80, 96, 127, 128, 129, 160, 192, 200, 256, 300, 512, 576, 1030};
  for (int n = 0; n < 140 + 26; n++) {
    if (test_fast && n % 5) continue;
    test_rng rng = test_seed(710);
    int64_t dk = n < 140 ? 1 + n / 2 : wide[(n - 140) / 2], dv = n < 140 ? 71 - n / 2 : dk;
    for (int type = 0; type < 3; type++) {
      if (n / 2 % 3 != type && type) continue; /* f32 always */
      test_spec z = test_plain(n & 1 ? 3 : 1, 1, 19 + n % 9, dk, dv);
      z.k_heads = z.v_heads = 1;
      z.k_type = z.v_type = (attn_dtype)type;
      test_call call = test_build(&z, &rng);
      test_check(&call, "widths");
    }
    test_mem_release();
  }
}

void A5_decode_groups(void **state) {
  (void)state;
  static const int64_t groups[] = {1, 2, 3, 4, 5, 8, 16};
  for (int n = 0; n < 7 * 16; n++) {
    int64_t group = groups[n / 16], tq = 1 + n % 16;
    if (test_fast && n % 5) continue;
    test_rng rng = test_seed(711 + (uint64_t)n);
    test_spec z = test_plain(2 * group, tq, few_keys(&rng, 300), 24, 17);
    z.k_heads = 2;
    z.v_heads = n % 3 ? 2 : 1;
    test_call call = test_build(&z, &rng);
    call.params.causal = n & 1;
    test_check(&call, "groups");
    test_mem_release();
  }
}

/* Rows without a key, whatever takes the keys away, among rows that have some. */
void A1_decode_empty_rows(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(712);
    test_spec z = test_plain(n < 12 ? 2 : 12, 6, n & 1 ? 70 : 2100, 8, 9);
    z.k_heads = z.v_heads = n < 12 ? 2 : 1;
    z.batch = 2;
    test_call call = test_build(&z, &rng);
    attn_sdpa_params *p = &call.params;
    static const int32_t kv_len[] = {0, 5}, q_len[] = {3, 0};
    uint8_t *zeros = test_mem((size_t)(6 * z.k_len));
    memset(zeros, 0, (size_t)(6 * z.k_len));
    memset(zeros + z.k_len, 1, (size_t)z.k_len);
    float *minus = test_mem((size_t)(6 * z.k_len) * sizeof *minus);
    for (int64_t j = 0; j < 6 * z.k_len; j++) minus[j] = j / z.k_len == 4 ? 0.5f : -INFINITY;
    if (n / 2 % 6 == 0) p->kv_len = kv_len;
    if (n / 2 % 6 == 1) p->q_len = q_len;
    if (n / 2 % 6 == 2) p->mask = attn_mask_bool(zeros, 1, 1, 6, z.k_len);
    if (n / 2 % 6 == 3) p->bias = attn_mask_add(minus, ATTN_F32, 1, 1, 6, z.k_len);
    if (n / 2 % 6 >= 4) p->causal = p->has_q_off = 1, p->q_off = -3;
    if (n / 2 % 6 == 5) p->sinks = test_floats(z.heads, 1, &rng);
    test_check(&call, "empty rows");
    for (int64_t i = 0; i < 3 && n / 2 % 6 == 4; i++) {
      assert_true(oracle_get(&p->lse, 1, 1, i, 0) == -(double)INFINITY);
      assert_true(oracle_get(&call.o, 1, 1, i, 3) == 0);
    }
  }
}

/* No keys at all, no queries, no batch. */
void A1_decode_empty_extents(void **state) {
  (void)state;
  static const int64_t extents[][3] = {{1, 1, 0}, {1, 0, 9}, {0, 1, 9}, {2, 3, 0}};
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(713);
    const int64_t *e = extents[n / 2];
    test_spec z = test_plain(4, e[1], e[2], 8, 9);
    z.batch = e[0];
    z.k_heads = z.v_heads = 2;
    test_call call = test_build(&z, &rng);
    if (n & 1) call.params.softmax_one = 1;
    test_check(&call, "empty extents");
  }
}

/* Scores of 1e4 and more: one key takes all the weight; equal scores: a plain mean. */
void A1_decode_extreme_logits(void **state) {
  (void)state;
  for (int n = 0; n < 16; n++) {
    test_rng rng = test_seed(714);
    test_spec z = test_plain(n & 1 ? 3 : 1, 1 + n / 8, n & 2 ? 300 : 2300, 16, 12);
    z.k_heads = z.v_heads = 1;
    test_call call = test_build(&z, &rng);
    if (n & 4) {
      test_fill_value(call.q, 0);
    } else {
      call.params.scale = 1e5f;
    }
    test_check(&call, "extreme logits");
    if (n & 4) continue;
    call.params.scale = 1e38f; /* scores overflow: +inf makes NaN, -inf weighs nothing */
    test_fill_value(call.q, 4);
    test_fill_value(call.k, 1);
    test_run(&call);
    assert_true(isnan(oracle_get(&call.o, 0, 0, 0, 0)));
    assert_true(isnan(oracle_get(&call.params.lse, 0, 0, 0, 0)));
    test_fill_row(call.q, 0, 0, 0, -4);
    test_run(&call);
    assert_true(oracle_get(&call.o, 0, 0, 0, 0) == 0);
    assert_true(oracle_get(&call.params.lse, 0, 0, 0, 0) == -(double)INFINITY);
  }
}

/* The largest score comes first, last, or rises all the way: the running maximum moves at every
 * block, and parts with the least weight come before and after the others. */
void A1_decode_rising_scores(void **state) {
  (void)state;
  for (int n = 0; n < 16; n++) {
    test_rng rng = test_seed(715);
    int64_t keys = 3000 + n;
    test_spec z = test_plain(n & 1 ? 2 : 1, 1, keys, 4, 6);
    z.k_heads = z.v_heads = 1;
    test_call call = test_build(&z, &rng);
    test_fill_value(call.q, 1);
    call.params.scale = 0.25f;
    double slope = n & 8 ? 0.004 : 0.4;
    for (int64_t j = 0; j < keys; j++) {
      double x = slope * (double)(n & 2 ? keys - j : j);
      if (n & 4) x = j == keys / 2 ? 200 : -300;
      test_fill_row(call.k, 0, 0, j, x);
    }
    test_check(&call, "rising scores");
  }
}

/* The constant values of a mean come back. */
void A1_decode_constant_values(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(716);
    test_spec z = test_plain(n & 1 ? 4 : 1, 2, n & 2 ? 4999 : 200, 24, 20);
    z.k_heads = z.v_heads = 1;
    z.v_type = (attn_dtype)(n / 2 % 3);
    test_call call = test_build(&z, &rng);
    test_fill_value(call.v, 1.5);
    test_run(&call);
    for (int64_t c = 0; c < 20; c++) {
      assert_true(fabs(oracle_get(&call.o, 0, 0, 1, c) - 1.5) < 3e-6);
    }
  }
}

/* A call over two halves of the keys, merged, is the call over all. */
void A1_decode_split_and_merge(void **state) {
  (void)state;
  test_rng rng = test_seed(717);
  for (int n = 0; n < 6; n++) {
    int64_t keys = n & 1 ? 2500 : 300, cut = test_range(&rng, 1, keys - 1);
    test_spec z = test_plain(4, 3, keys, 16, 16);
    z.k_heads = z.v_heads = 2;
    test_call whole = test_build(&z, &rng), part[2] = {test_again(&whole), test_again(&whole)};
    whole.params.alibi = test_floats(4, 0.01, &rng);
    whole.params.has_q_off = 1;
    whole.params.q_off = keys - 3;
    test_left(&whole.params, keys / 2);
    test_check(&whole, "both halves");
    for (int k = 0; k < 2; k++) {
      attn_tensor lse = part[k].params.lse;
      part[k].params = whole.params;
      part[k].params.lse = lse;
      part[k].params.q_off -= k ? cut : 0;
      part[k].k = test_rows(whole.k, k ? cut : 0, k ? keys - cut : cut);
      part[k].v = test_rows(whole.v, k ? cut : 0, k ? keys - cut : cut);
      test_run(&part[k]);
    }
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_merge(part[0].o, part[0].params.lse, part[0].o, part[0].params.lse,
                                part[1].o, part[1].params.lse, &ctx),
                     ATTN_OK);
    test_assert_near(part[0].o, whole.o, 3e-6, "halves");
    test_assert_near(part[0].params.lse, whole.params.lse, 3e-6, "halves");
  }
}
