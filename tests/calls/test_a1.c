/* tests/calls/test_a1.c owns A1, scaled dot-product attention without masks: shapes, layouts, storage
 * types, limits and invariants. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

/* Names the shape in a failure. */
static const char *shape(const test_call *c) {
  static char text[160];
  snprintf(text, sizeof text, "B=%d H=%d/%d/%d Tq=%d Tk=%d dk=%d dv=%d types %d%d%d%d",
           (int)c->q.batch, (int)c->q.heads, (int)c->k.heads, (int)c->v.heads, (int)c->q.len,
           (int)c->k.len, (int)c->q.dim, (int)c->v.dim, c->q.dtype, c->k.dtype, c->v.dtype,
           c->o.dtype);
  return text;
}

static void check_spec(const test_spec *spec, uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_call call = test_build(spec, &rng);
  test_check(&call, shape(&call));
}

void A1_random_shapes(void **state) {
  (void)state;
  test_rng rng = test_seed(1);
  for (int64_t n = test_count(120, 25); n-- > 0;) {
    int64_t tq = test_range(&rng, 1, 70), tk = test_range(&rng, 1, 70);
    int64_t dk = test_range(&rng, 1, 70), dv = test_range(&rng, 1, 70);
    test_spec spec = test_plain(test_range(&rng, 1, 2), tq, tk, dk, dv);
    spec.batch = test_range(&rng, 1, 2);
    check_spec(&spec, test_u64(&rng));
  }
}

void A1_every_tail(void **state) {
  (void)state;
  for (int64_t n = 1; n <= 70; n += test_count(1, 5)) {
    test_spec specs[4] = {test_plain(1, n, 9, 7, 5), test_plain(1, 5, n, 7, 9),
                          test_plain(1, 7, 5, n, 3), test_plain(1, 3, 11, 5, n)};
    for (int s = 0; s < 4; s++) check_spec(&specs[s], (uint64_t)n);
  }
}

void A1_tile_edges(void **state) {
  (void)state;
  static const int64_t edges[] = {63, 64, 65, 127, 128, 129, 255, 257, 1, 513};
  const int count = sizeof edges / sizeof *edges;
  for (int n = 0; n < count; n += (int)test_count(1, 3)) {
    for (int k = 0; k < 3; k++) {
      test_spec spec = test_plain(1, edges[n], edges[(3 * n + k * 2 + 1) % count], 16, 24);
      check_spec(&spec, (uint64_t)n);
    }
  }
}

void A1_layouts(void **state) {
  (void)state;
  test_rng rng = test_seed(2);
  for (int64_t n = 0; n < test_count(108, 24); n++) {
    test_spec spec = test_plain(3, test_range(&rng, 1, 20), test_range(&rng, 1, 20), 6, 5);
    spec.batch = 2;
    spec.q_layout = (test_layout)(n % TEST_LAYOUTS);
    spec.k_layout = (test_layout)(n / 2 % TEST_LAYOUTS);
    spec.v_layout = (test_layout)(n / 3 % TEST_LAYOUTS);
    spec.o_layout = (test_layout)(n / 5 % TEST_SHARED);
    spec.map = (int)(n % 2);
    check_spec(&spec, (uint64_t)n);
  }
}

void A1_storage_types(void **state) {
  (void)state;
  for (int n = 0; n < 81; n++) {
    test_spec spec = test_plain(2, 7 + n % 11, 5 + n % 13, 19, 21);
    spec.q_type = (attn_dtype)(n % 3);
    spec.k_type = (attn_dtype)(n / 3 % 3);
    spec.v_type = (attn_dtype)(n / 9 % 3);
    spec.o_type = (attn_dtype)(n / 27);
    check_spec(&spec, (uint64_t)n);
  }
}

/* All 65536 patterns of a 16-bit type pass through a one-key call: O is V, rounded. */
void A1_storage_every_pattern(void **state) {
  (void)state;
  for (int type = ATTN_F16; type <= ATTN_BF16; type++) {
    test_spec spec = test_plain(1, 1, 1, 1, 65536);
    spec.v_type = (attn_dtype)type;
    spec.o_type = ATTN_F32;
    test_rng rng = test_seed(3);
    test_call wide = test_build(&spec, &rng);
    spec.o_type = (attn_dtype)type;
    test_call narrow = test_build(&spec, &rng);
    uint16_t *v = wide.v.data, *o = narrow.o.data;
    for (int n = 0; n < 65536; n++) v[n] = (uint16_t)n;
    narrow.v = wide.v;
    test_run(&wide);
    test_run(&narrow);
    for (int n = 0; n < 65536; n++) {
      double x = type == ATTN_F16 ? oracle_from_f16(v[n]) : oracle_from_bf16(v[n]);
      double y = oracle_get(&wide.o, 0, 0, 0, n);
      double z = oracle_get(&narrow.o, 0, 0, 0, n);
#if defined(__arm__)
      /* 32-bit NEON flushes subnormals. */
      if (fabs(x) < 1.18e-38) continue;
#endif
      int same = isnan(x) ? isnan(y) && isnan(z) : x == y && x == z;
      if (!same) fail_msg("type %d, bits %04x: %.9g became %.9g; stored %04x", type, n, x, y, o[n]);
    }
  }
}

/* Rounding on store, ties included: float32 values around every kind of 16-bit neighbour. */
void A1_storage_rounding(void **state) {
  (void)state;
  enum { N = 4096 };
  for (int type = ATTN_F16; type <= ATTN_BF16; type++) {
    test_spec spec = test_plain(1, 1, 1, 1, N);
    spec.o_type = (attn_dtype)type;
    test_rng rng = test_seed(4);
    test_call call = test_build(&spec, &rng);
    for (int n = 0; n < N; n++) {
      uint16_t bits = (uint16_t)test_u64(&rng);
      double low = type == ATTN_F16 ? oracle_from_f16(bits) : oracle_from_bf16(bits);
      double high = type == ATTN_F16 ? oracle_from_f16((uint16_t)(bits + 1))
                                     : oracle_from_bf16((uint16_t)(bits + 1));
      double x = n % 3 == 0 ? (low + high) / 2 : low + (high - low) * (double)(n % 7) / 7;
      if (!isfinite(low) || !isfinite(high)) x = n % 2 ? 65519.996 : 65520;
      if (fabs(x) < 1.2e-38) x = 0;
      oracle_set(&call.v, 0, 0, 0, n, x);
    }
    test_run(&call);
    for (int n = 0; n < N; n++) {
      double x = oracle_get(&call.v, 0, 0, 0, n);
      uint16_t want = type == ATTN_F16 ? oracle_to_f16(x) : oracle_to_bf16(x);
      uint16_t got = ((uint16_t *)call.o.data)[n];
#if defined(__arm__)
      if (type == ATTN_F16 && fabs(x) < 6.2e-5) continue;
#endif
      if (got != want && x != 0)
        fail_msg("type %d: %.12g stored as %04x, not %04x", type, x, got, want);
    }
  }
}

void A1_null_context_and_params(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 9, 12, 8, 8);
  spec.lse = 0;
  test_rng rng = test_seed(6);
  test_call call = test_build(&spec, &rng);
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, NULL, NULL), ATTN_OK);
  test_compare(&call, "no context, no parameters");
}

void A1_one_key(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 67, 1, 12, 33);
  test_rng rng = test_seed(7);
  test_call call = test_build(&spec, &rng);
  test_check(&call, "one key");
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t i = 0; i < 67; i++) {
      test_assert_same(test_one(test_rows(call.o, i, 1), 0, 1, h, 1), test_one(call.v, 0, 1, h, 1),
                       "O is V_0");
    }
  }
}

void A1_identical_keys(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 10, 77, 9, 6);
  spec.k_layout = TEST_ONE_ROW;
  check_spec(&spec, 8);
}

void A1_scale(void **state) {
  (void)state;
  static const float scales[] = {ATTN_ZERO, 1, -0.75f, 1e-30f, 3.5f};
  for (int n = 0; n < 5; n++) {
    test_spec spec = test_plain(1, 21, 34, 11, 7);
    test_rng rng = test_seed(9);
    test_call call = test_build(&spec, &rng);
    call.params.scale = scales[n];
    test_check(&call, "scale");
  }
}

/* Scores of 1e8 and far beyond: the greatest wins outright and nothing overflows. */
void A1_extreme_logits(void **state) {
  (void)state;
  static const float scales[] = {1e8f, -1e8f, 1e20f, 1e30f};
  for (int n = 0; n < 4; n++) {
    test_spec spec = test_plain(1, 66, 131, 16, 9);
    test_rng rng = test_seed(10);
    test_call call = test_build(&spec, &rng);
    call.params.scale = scales[n];
    test_run(&call);
    for (int64_t i = 0; i < 66; i++) {
      double best = -(double)INFINITY;
      int64_t at = 0;
      for (int64_t j = 0; j < 131; j++) {
        double x = 0;
        for (int64_t c = 0; c < 16; c++) {
          x +=
              (double)scales[n] * oracle_get(&call.q, 0, 0, i, c) * oracle_get(&call.k, 0, 0, j, c);
        }
        if (x > best) {
          best = x;
          at = j;
        }
      }
      test_assert_same(test_rows(call.o, i, 1), test_rows(call.v, at, 1),
                       "the greatest score wins");
      double lse = oracle_get(&call.params.lse, 0, 0, i, 0);
      assert_true(fabs(lse - best) <= 1e-5 * fabs(best));
    }
  }
}

void A1_no_keys(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 13, 0, 8, 9);
  spec.map = 1;
  check_spec(&spec, 11);
  test_rng rng = test_seed(11);
  test_call call = test_build(&spec, &rng);
  call.k.data = call.v.data = NULL;
  test_check(&call, "no keys, no data");
}

void A1_empty_extents(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    test_spec spec = test_plain(2, 13, 7, 8, 9);
    test_rng rng = test_seed(12);
    test_call call = test_build(&spec, &rng);
    attn_tensor *all[] = {&call.q, &call.k, &call.v, &call.o, &call.params.lse};
    for (int t = 0; t < 5; t++) {
      if (n == 0) all[t]->batch = 0;
      if (n == 1 && t != 1 && t != 2) all[t]->len = 0;
    }
    test_run(&call);
    assert_int_equal(((unsigned char *)call.o.data)[0], 0xA5);
    assert_int_equal(((unsigned char *)call.params.lse.data)[0], 0xA5);
    call.q.data = call.o.data = NULL;
    test_run(&call);
  }
}

/* No heads of queries, whatever heads there are of keys and values: nothing to do. */
void A1_no_heads(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 13, 7, 8, 9);
    test_rng rng = test_seed(12);
    test_call call = test_build(&spec, &rng);
    attn_tensor *rows[] = {&call.q, &call.o, &call.params.lse};
    int64_t indptr[14] = {0};
    attn_edges_params edges = {.indptr = indptr};
    attn_topk_params topk = {.k = 3};
    attn_relu_params relu = {.kind = ATTN_RELU_LEN};
    attn_ctx ctx = test_ctx();
    for (int t = 0; t < 3; t++) rows[t]->heads = 0;
    call.k.heads = n % 3, call.v.heads = n % 2;
    test_run(&call);
    assert_int_equal(((unsigned char *)call.o.data)[0], 0xA5);
    assert_int_equal(((unsigned char *)call.params.lse.data)[0], 0xA5);
    call.params.schedule = NULL, call.params.causal = n & 1;
    call.q.data = call.o.data = call.params.lse.data = NULL;
    test_run(&call);
    assert_int_equal(attn_edges(call.o, call.q, call.k, call.v, &edges, &ctx), ATTN_OK);
    assert_int_equal(attn_topk_sdpa(call.o, call.q, call.k, call.v, &topk, &ctx), ATTN_OK);
    assert_int_equal(attn_relu(call.o, call.q, call.k, call.v, &relu, &ctx), ATTN_OK);
    assert_int_equal(attn_sdpa_workspace(call.o, call.q, call.k, call.v, NULL, NULL), 0);
    assert_int_equal(attn_edges_workspace(call.o, call.q, call.k, call.v, &edges, NULL), 0);
    assert_int_equal(attn_topk_sdpa_workspace(call.o, call.q, call.k, call.v, &topk, NULL), 0);
    assert_int_equal(attn_relu_workspace(call.o, call.q, call.k, call.v, &relu, NULL), 0);
  }
}

void A1_map(void **state) {
  (void)state;
  test_rng rng = test_seed(13);
  for (int64_t n = test_count(30, 8); n-- > 0;) {
    test_spec spec = test_plain(2, test_range(&rng, 1, 140), test_range(&rng, 1, 140), 9, 4);
    spec.map = 1;
    test_call call = test_build(&spec, &rng);
    call.params.causal = (int)(n & 1);
    test_check(&call, shape(&call));
    for (int64_t i = 0; i < spec.q_len; i++) {
      double sum = 0;
      for (int64_t j = 0; j < spec.k_len; j++) {
        double p = oracle_get(&call.params.map, 0, 0, i, j);
        assert_true(p >= 0);
        sum += p;
      }
      assert_true(fabs(sum - 1) < 2e-6 || (call.params.causal && i < spec.q_len - spec.k_len));
    }
  }
}

void A1_convex_hull(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 70, 90, 24, 8);
  test_rng rng = test_seed(14);
  test_call call = test_build(&spec, &rng);
  test_run(&call);
  for (int64_t c = 0; c < 8; c++) {
    double low = (double)INFINITY, high = -low;
    for (int64_t j = 0; j < 90; j++) {
      low = fmin(low, oracle_get(&call.v, 0, 0, j, c));
      high = fmax(high, oracle_get(&call.v, 0, 0, j, c));
    }
    for (int64_t i = 0; i < 70; i++) {
      double o = oracle_get(&call.o, 0, 0, i, c);
      assert_true(o >= low - 1e-5 && o <= high + 1e-5);
    }
  }
}

void A1_permuted_keys_and_queries(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 80, 97, 20, 12);
  test_rng rng = test_seed(15);
  test_call call = test_build(&spec, &rng), keys = test_again(&call), queries = test_again(&call);
  keys.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 97, 20);
  keys.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 97, 12);
  queries.q = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 80, 20);
  for (int64_t j = 0; j < 97; j++) {
    test_copy(test_rows(keys.k, j, 1), test_rows(call.k, j * 31 % 97, 1));
    test_copy(test_rows(keys.v, j, 1), test_rows(call.v, j * 31 % 97, 1));
  }
  for (int64_t i = 0; i < 80; i++) {
    test_copy(test_rows(queries.q, i, 1), test_rows(call.q, i * 23 % 80, 1));
  }
  test_run(&call);
  test_run(&keys);
  test_run(&queries);
  test_assert_near(keys.o, call.o, 4e-6, "permuted keys");
  test_assert_near(keys.params.lse, call.params.lse, 4e-6, "permuted keys");
  for (int64_t i = 0; i < 80; i++) {
    test_assert_same(test_rows(queries.o, i, 1), test_rows(call.o, i * 23 % 80, 1), "queries");
  }
}

void A1_shifted_keys(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 30, 41, 10, 6);
  test_rng rng = test_seed(16);
  test_call call = test_build(&spec, &rng);
  test_fill(call.k, &rng, test_exact); /* so that the shift is exact */
  test_run(&call);
  test_call moved = test_again(&call);
  moved.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 41, 10);
  double shift[10];
  for (int64_t c = 0; c < 10; c++) shift[c] = test_exact(&rng);
  for (int64_t j = 0; j < 41; j++) {
    for (int64_t c = 0; c < 10; c++) {
      oracle_set(&moved.k, 0, 0, j, c, oracle_get(&call.k, 0, 0, j, c) + shift[c]);
    }
  }
  test_check(&moved, "shifted keys");
  test_assert_near(moved.o, call.o, 1e-5, "shifted keys");
  for (int64_t i = 0; i < 30; i++) {
    double x = 0;
    for (int64_t c = 0; c < 10; c++) x += oracle_get(&call.q, 0, 0, i, c) * shift[c] / sqrt(10);
    double lse = oracle_get(&call.params.lse, 0, 0, i, 0);
    assert_true(fabs(oracle_get(&moved.params.lse, 0, 0, i, 0) - lse - x) < 1e-5 * (1 + fabs(x)));
  }
}

void A1_value_is_slice_of_key(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 33, 50, 40, 24);
  test_rng rng = test_seed(17);
  test_call call = test_build(&spec, &rng);
  call.v = call.k;
  call.v.dim = 24;
  call.v.data = (float *)call.k.data + 8;
  test_check(&call, "V is a slice of K");
}

/* The stated bound on normal inputs at T = 4096, on rows spread over the tiles. */
void A1_long_rows(void **state) {
  (void)state;
  int64_t t = test_count(4096, 600);
  test_spec spec = test_plain(1, t, t, 64, 64);
  test_rng rng = test_seed(18);
  test_call call = test_build(&spec, &rng);
  test_run(&call);
  double o[64], worst = 0;
  double *p = test_mem((size_t)t * sizeof *p), *size = test_mem((size_t)t * sizeof *size);
  oracle_row row = {o, p, size, 0, 0, 0, 0};
  for (int64_t i = 0; i < t; i += t / 37) {
    oracle_sdpa(&call.q, &call.k, &call.v, &call.params, 0, 0, i, &row);
    for (int64_t c = 0; c < 64; c++) {
      worst = fmax(worst, fabs(oracle_get(&call.o, 0, 0, i, c) - o[c]) / row.value);
    }
  }
  print_message("           worst row error at T=%d: %.2g of max |v|\n", (int)t, worst);
  assert_true(worst <= 2e-6);
}

/* Which rows of the result may differ from the result for clean data: exactly those. */
static void assert_rows_spoilt(attn_tensor got, attn_tensor clean, int64_t h, int64_t i, int spoilt,
                               const char *what) {
  attn_tensor g = test_one(test_rows(got, i, 1), 0, 1, h, 1);
  attn_tensor c = test_one(test_rows(clean, i, 1), 0, 1, h, 1);
  if (!spoilt) {
    test_assert_same(g, c, what);
    return;
  }
  int any = 0;
  for (int64_t n = 0; n < g.dim; n++) any |= isnan(oracle_get(&g, 0, 0, 0, n)) != 0;
  if (!any) fail_msg("%s: row %d of head %d is not NaN", what, (int)i, (int)h);
}

void A1_nan_in_query(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 130, 70, 12, 9);
  test_rng rng = test_seed(19);
  test_call clean = test_build(&spec, &rng);
  test_run(&clean);
  test_call call = test_again(&clean);
  oracle_set(&call.q, 0, 1, 67, 5, (double)NAN);
  test_run(&call);
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t i = 0; i < 130; i++) {
      int spoilt = h == 1 && i == 67;
      assert_rows_spoilt(call.o, clean.o, h, i, spoilt, "NaN in q");
      assert_rows_spoilt(call.params.lse, clean.params.lse, h, i, spoilt, "NaN in q");
    }
  }
  test_compare(&call, "NaN in q");
}

void A1_nan_in_allowed_key(void **state) {
  (void)state;
  for (int in_value = 0; in_value < 2; in_value++) {
    test_spec spec = test_plain(2, 130, 140, 12, 9);
    test_rng rng = test_seed(20);
    test_call clean = test_build(&spec, &rng);
    clean.params.causal = 1;
    test_run(&clean);
    test_call call = test_again(&clean);
    oracle_set(in_value ? &call.v : &call.k, 0, 1, 80, 5, (double)NAN);
    test_run(&call);
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t i = 0; i < 130; i++) {
        int spoilt = h == 1 && i + 10 >= 80;
        assert_rows_spoilt(call.o, clean.o, h, i, spoilt, "NaN in an allowed key");
        assert_rows_spoilt(call.params.lse, clean.params.lse, h, i, spoilt && !in_value, "LSE");
      }
    }
    if (!in_value) test_compare(&call, "NaN in k");
  }
}

/* A NaN is a NaN whatever its payload and sign, signalling ones too: the exponential works on bits.
 */
void A1_nan_payloads(void **state) {
  (void)state;
  static const uint32_t nans[] = {0x7fc00001u, 0x7fc00101u, 0xffc00001u, 0x7f800001u, 0xff8000ffu};
  for (int n = 0; n < 5; n++) {
    for (int operand = 0; operand < 3; operand++) {
      test_spec spec = test_plain(1, 40, 150, 12, 9);
      test_rng rng = test_seed(20);
      test_call clean = test_build(&spec, &rng);
      test_run(&clean);
      test_call call = test_again(&clean);
      const attn_tensor *t[] = {&call.q, &call.k, &call.v};
      float *element = (float *)t[operand]->data + 7 * t[operand]->stride_len + 3;
      memcpy(element, &nans[n], sizeof *element);
      test_run(&call);
      for (int64_t i = 0; i < 40; i++)
        assert_rows_spoilt(call.o, clean.o, 0, i, operand || i == 7, "NaN with a payload");
    }
  }
}

/* A score of +inf gives NaN, one of -inf counts as forbidden. */
void A1_infinite_scores(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 70, 66, 1, 5);
  test_rng rng = test_seed(21);
  test_call call = test_build(&spec, &rng);
  for (int64_t i = 0; i < 70; i++) oracle_set(&call.q, 0, 0, i, 0, i % 2 ? 1 : -1);
  oracle_set(&call.k, 0, 0, 3, 0, (double)INFINITY);
  test_check(&call, "+inf for odd rows, -inf for even ones");
}

void A1_softcap(void **state) {
  (void)state;
  static const float caps[] = {0.5f, 5, 30, 50, 1000};
  for (int n = 0; n < 5; n++) {
    test_spec spec = test_plain(1, 70, 81, 16, 8);
    spec.map = n & 1;
    test_rng rng = test_seed(22);
    test_call call = test_build(&spec, &rng);
    call.params.softcap = caps[n];
    call.params.scale = 3;
    test_check(&call, "softcap");
  }
}

/* A cap whose reciprocal is infinite: every score becomes about 0, the row a plain mean. */
void A1_softcap_tiny(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 20, 66, 8, 8);
  test_rng rng = test_seed(24);
  test_call call = test_build(&spec, &rng), mean = test_again(&call);
  oracle_set(&call.q, 0, 0, 3, 0, 0);
  test_fill_value(mean.k, 0);
  call.params.softcap = 1e-40f;
  test_run(&call);
  test_run(&mean);
  test_assert_near(call.o, mean.o, 4e-6, "softcap 1e-40");
}

/* tanh saturates: huge scores of either sign stay within the cap. */
void A1_softcap_saturates(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 20, 66, 8, 8);
  test_rng rng = test_seed(23);
  test_call call = test_build(&spec, &rng);
  call.params.softcap = 10;
  call.params.scale = 1e20f;
  test_run(&call);
  for (int64_t i = 0; i < 20; i++) {
    double lse = oracle_get(&call.params.lse, 0, 0, i, 0);
    assert_true(lse >= 10 - 1e-3 && lse <= 10 + log(66));
  }
}

void A1_sinks(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_spec spec = test_plain(4, 66, 70, 12, 8);
    spec.batch = 2;
    spec.map = n & 1;
    test_rng rng = test_seed(24);
    test_call call = test_build(&spec, &rng);
    call.params.causal = (n & 2) != 0;
    call.params.has_q_off = 1;
    call.params.q_off = -5; /* rows without keys keep their sink */
    call.params.q_len = test_lengths(2, 66, &rng);
    if (n < 4) call.params.sinks = test_floats(4, 2, &rng);
    call.params.softmax_one = n >= 3;
    test_check(&call, "sinks");
  }
}

/* A sink is a key that is always allowed and has value 0. */
void A1_sink_is_a_key_without_value(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 20, 31, 4, 6);
  test_rng rng = test_seed(25);
  test_call with_key = test_build(&spec, &rng);
  float sink = 0.625f;
  test_call call = test_again(&with_key);
  call.k.len = call.v.len = 30;
  call.params.sinks = &sink;
  test_fill_row(with_key.v, 0, 0, 30, 0);
  test_fill_row(with_key.k, 0, 0, 30, 0);
  float *bias = test_mem(31 * sizeof *bias);
  for (int j = 0; j < 31; j++) bias[j] = j == 30 ? sink : 0;
  with_key.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, 1, 31);
  test_run(&call);
  test_run(&with_key);
  test_assert_near(call.o, with_key.o, 2e-6, "a sink");
  test_assert_near(call.params.lse, with_key.params.lse, 2e-6, "a sink");
}

static void leave_scores(void *user, const attn_score_tile *tile) {
  (void)user;
  (void)tile;
}

/* A NaN key that a row must not see changes nothing for that row, wherever it stands among the keys
 * that are capped side by side. */
void A1_softcap_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(25);
  for (int64_t bad = 8; bad < 12; bad++) {
    test_spec spec = test_plain(1, 16, 16, 8, 8);
    test_call call = test_build(&spec, &rng), clean = test_again(&call);
    for (int n = 0; n < 2; n++) {
      test_call *c = n ? &call : &clean;
      c->params.causal = c->params.one_order = 1;
      c->params.softcap = 2, c->params.modify = leave_scores;
      for (int64_t j = 8; j < 12 && n == 0; j++) /* far beyond the cap, the others near 0 */
        for (int64_t d = 0; d < 8; d++)
          oracle_set(&c->k, 0, 0, j, d, j == bad ? 0 : j == 8 + (bad + 3) % 4 ? 40 : 0.01);
      if (n) test_fill_row(c->k, 0, 0, bad, (double)NAN);
      test_run(c);
    }
    for (int64_t i = 0; i < bad; i++) {
      test_assert_same(test_rows(call.o, i, 1), test_rows(clean.o, i, 1), "softcap beside NaN");
      test_assert_same(test_rows(call.params.lse, i, 1), test_rows(clean.params.lse, i, 1), "lse");
    }
  }
}
