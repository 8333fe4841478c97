/* tests/calls/test_terms_queries.c owns keys that meet query vectors by distance (B10, DeBERTa and BERT's
 * relative_key_query): against the oracle, at every clipping, in decoding, under NaN, and DeBERTa's own formula
 * with its buckets. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "patterns.h"
#include "stored.h"
#include "terms.h"

void B10_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_QUERIES, 1200, test_count(30, 8), 200, "queries by distance");
  test_terms_check(TERM_QUERIES | TERM_KEYS | TERM_VALUES, 1201, test_count(20, 6), 300,
                   "and keys, values");
  test_terms_check(TERM_QUERIES | TERM_XL, 1202, test_count(12, 4), 200, "and Transformer-XL");
}

/* Clipping distances around the edges of blocks and tiles; grouped heads, an offset, every type of keys. */
void B10_every_clipping(void **state) {
  (void)state;
  static const int64_t clips[] = {0, 1, 2, 15, 16, 17, 62, 63, 64, 65, 79, 127, 200};
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  for (int64_t c = 0; c < 13; c++) {
    test_rng rng = test_seed(1203);
    test_spec spec = test_plain(2, 70, 150, 9, 11);
    spec.k_heads = spec.v_heads = 1;
    spec.map = 1;
    spec.k_type = types[c % 3];
    test_call call = test_build(&spec, &rng);
    call.params.causal = c & 1;
    call.params.relative.queries =
        test_table(c % 3 ? 2 : 1, 2 * clips[c] + 1, 9, c & 2 ? TEST_NEGATIVE : TEST_PADDED, &rng);
    if (c % 4 == 3) call.params.has_q_off = 1, call.params.q_off = -20;
    test_check(&call, "a clipping distance");
    test_mem_release();
  }
}

/* One query at a time, and any division of the queries, give the bits of one causal call. */
void B10_divided(void **state) {
  (void)state;
  test_rng rng = test_seed(1204);
  test_spec spec = test_plain(4, 200, 200, 16, 12);
  spec.k_heads = spec.v_heads = 2;
  test_call whole = test_build(&spec, &rng);
  whole.params.causal = 1;
  whole.params.relative.queries = test_table(4, 61, 16, TEST_BHTD, &rng);
  test_run(&whole);
  static const int64_t parts[][2] = {{0, 1}, {63, 1}, {5, 70}, {130, 70}, {199, 1}};
  for (int n = 0; n < 5; n++) {
    int64_t i = parts[n][0], count = parts[n][1];
    test_call step = whole;
    step.q = test_rows(whole.q, i, count);
    step.k = test_rows(whole.k, 0, i + count);
    step.v = test_rows(whole.v, 0, i + count);
    step.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, count, 12);
    step.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, count, 1);
    test_run(&step);
    test_assert_same(step.o, test_rows(whole.o, i, count), "a part of the queries");
    test_assert_same(step.params.lse, test_rows(whole.params.lse, i, count), "its LSE");
  }
}

/* Garbage in forbidden keys changes no bit, and NaN in a vector reaches the rows that read it alone. */
void B10_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(1205);
  test_spec spec = test_plain(2, 100, 150, 9, 7);
  test_call clean = test_build(&spec, &rng);
  uint8_t *allowed = test_mem(100 * 150);
  for (int n = 0; n < 100 * 150; n++) allowed[n] = n % 150 % 5 != 2 && n % 150 <= n / 150 + 50;
  clean.params.mask = attn_mask_bool(allowed, 1, 1, 100, 150);
  clean.params.relative.queries = test_table(2, 81, 9, TEST_BHTD, &rng);
  test_check(&clean, "a mask");
  test_call call = test_again(&clean);
  for (int64_t j = 2; j < 150; j += 5)
    for (int64_t h = 0; h < 2; h++)
      test_fill_row(call.k, 0, h, j, j % 2 ? (double)NAN : (double)INFINITY);
  attn_tensor copy = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 81, 9);
  test_copy(copy, clean.params.relative.queries);
  test_fill_row(copy, 0, 0, 60, (double)NAN); /* ahead: no pair */
  call.params.relative.queries = copy;
  test_run(&call);
  test_assert_same_outputs(&call, &clean, "garbage that nothing reads");
  test_fill_row(copy, 0, 0, 3, (double)NAN); /* d = -37 */
  test_run(&call);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < 100; i++)
      assert_int_equal(isnan(oracle_get(&call.o, 0, h, i, 3)) != 0,
                       h == 0 && (i + 50 - 37) % 5 != 2);
}

/* Lower precision: products with vectors stay f32. */
void B10_compute(void **state) {
  (void)state;
  static const attn_compute modes[] = {ATTN_COMPUTE_BF16, ATTN_COMPUTE_F16, ATTN_COMPUTE_I8};
  for (int n = 0; n < 9; n++) {
    static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
    test_rng rng = test_seed(1206);
    test_spec spec = test_plain(2, 130, 190, 32, 16);
    spec.k_type = spec.v_type = types[n / 3];
    test_call call = test_build(&spec, &rng);
    call.params.relative.queries = test_table(2, 41, 32, TEST_BHTD, &rng);
    test_call want = test_again(&call);
    test_run(&want);
    call.params.compute = modes[n % 3];
    test_run(&call);
    test_assert_near(call.o, want.o, 0.06, "a mode of compute");
    test_mem_release();
  }
}

/* Keys that heads share are read once, but where others took their place between. */
void B10_compute_shared(void **state) {
  (void)state;
  static const int32_t far[] = {70, 75, 81, 90, 99, 104, 110, 119, 126};
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(1230 + (uint64_t)n);
    const attn_pattern parts[2] = {attn_pattern_band(5, 5), attn_pattern_global(far, 9)};
    test_graph g = test_graph_of(attn_pattern_union(parts, 2), 3, 64, 130);
    test_spec spec = test_plain(3, 64, 130, 32, 16);
    spec.k_heads = spec.v_heads = 1;
    test_call call = test_graph_call(&g, &spec, &rng);
    call.params.relative.queries = test_table(1, 11, 32, TEST_BHTD, &rng);
    call.params.compute = n % 2 ? ATTN_COMPUTE_F16 : ATTN_COMPUTE_BF16;
    test_call apart = test_again(&call);
    apart.k.heads = apart.v.heads = 3, apart.k.stride_head = apart.v.stride_head = 0;
    test_run(&call), test_run(&apart);
    test_assert_same_outputs(&call, &apart, "heads with keys of their own");
    test_mem_release();
  }
}

/* Quantised keys meet the vectors as what they stand for: in blocks, gathered and in lists, with few queries, to
 * the bit and against the oracle; codes' own mode within its bound. */
void B10_quantized(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(1208 + (uint64_t)n);
    const int64_t tq = n % 8 == 7 ? 3 : 100, tk = 140;
    attn_pattern p = n % 4 == 1   ? attn_pattern_random(9, 5)
                     : n % 4 == 2 ? attn_pattern_strided(7)
                                  : attn_pattern_full();
    test_graph g = test_graph_of(p, 2, tq, tk);
    test_spec spec = test_plain(2, tq, tk, 33, 12);
    if (n & 1) spec.k_heads = 1;
    test_call wide = n % 4 == 0 ? test_build(&spec, &rng) : test_graph_call(&g, &spec, &rng);
    stored k = stored_tensor(types[n % 3], (test_layout)(n % 5), 1, spec.k_heads, tk, 33,
                             32 * (n % 3), types[n % 3] != ATTN_E4M3 && n % 2);
    stored_fill(&k, &rng);
    wide.params.relative.queries = test_table(n % 3 ? 2 : 1, 2 * n + 1, 33, TEST_BHTD, &rng);
    if (n % 6 == 5) wide.params.relative.keys = test_table(1, 2 * n + 1, 33, TEST_BHTD, &rng);
    wide.params.causal = n % 5 == 4;
    wide.k = k.wide;
    test_call call = test_again(&wide);
    call.k = k.x, call.params.k_scales = k.s;
    test_run(&wide), test_run(&call);
    test_assert_same_outputs(&call, &wide, "quantised keys");
    if (n % 4 == 0)
      test_compare(&wide, "quantised keys");
    else
      test_graph_compare(&wide, &g, "quantised keys over a schedule");
    if (types[n % 3] == ATTN_I8) {
      call.params.compute = ATTN_COMPUTE_I8;
      test_run(&call);
      test_assert_near(call.o, wide.o, 0.06, "quantised keys by codes");
    }
    test_mem_release();
  }
}

/* The released code's bucket, in double. */
static int64_t bucket(int64_t d, int64_t buckets, int64_t most) {
  int64_t mid = buckets / 2, a = d < 0 ? -d : d;
  if (a <= mid) return d;
  double x =
      log((double)a / (double)mid) / log((double)(most - 1) / (double)mid) * (double)(mid - 1);
  int64_t k = mid + (int64_t)ceil(x - 1e-9);
  if (k > 2 * mid) k = 2 * mid;
  return d < 0 ? -k : k;
}

void B10_buckets(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{256, 512}, {4, 13},   {5, 40},
                                      {6, 13},    {32, 128}, {1024, 4000}};
  for (int s = 0; s < 6; s++)
    for (int64_t d = -shapes[s][1] - 9; d < shapes[s][1] + 9; d++)
      assert_int_equal(attn_deberta_bucket(d, shapes[s][0], shapes[s][1]),
                       bucket(d, shapes[s][0], shapes[s][1]));
  assert_int_equal(attn_deberta_bucket(6, 6, 13), 4); /* (6/3)^2 = 12/3: a tie */
  assert_int_equal(attn_deberta_bucket(7, 6, 13), 5);
  assert_int_equal(attn_deberta_bucket(INT64_MIN, 256, 512), -256);
  assert_int_equal(attn_deberta_bucket(INT64_MAX, 256, 512), 256);
  assert_true(attn_deberta_bucket(1, 3, 512) == INT64_MIN &&
              attn_deberta_bucket(1, 1025, 5000) == INT64_MIN &&
              attn_deberta_bucket(1, 256, 129) == INT64_MIN &&
              attn_deberta_bucket(1, 256, INT64_MAX) == INT64_MIN);
}

/* DeBERTa v2 as its code has it, over tables of 2 n rows, against the call over tables by distance. */
void B10_deberta(void **state) {
  (void)state;
  enum { T = 150, D = 8, N = 16, MOST = 60, ROWS = 2 * MOST + 1 };
  test_rng rng = test_seed(1207);
  test_spec spec = test_plain(1, T, T, D, D);
  test_call call = test_build(&spec, &rng);
  attn_tensor kr = test_table(1, 2 * N, D, TEST_BHTD, &rng),
              qr = test_table(1, 2 * N, D, TEST_BHTD, &rng);
  attn_tensor keys = test_table(1, ROWS, D, TEST_BHTD, &rng),
              queries = test_table(1, ROWS, D, TEST_BHTD, &rng);
  for (int64_t e = 0; e < ROWS; e++) {
    int64_t b = attn_deberta_bucket(MOST - e, N, MOST), row = N + (b < -N      ? -N
                                                                   : b > N - 1 ? N - 1
                                                                               : b);
    test_copy(test_rows(keys, e, 1), test_rows(kr, row, 1));
    test_copy(test_rows(queries, e, 1), test_rows(qr, row, 1));
  }
  call.params.relative.keys = keys, call.params.relative.queries = queries;
  call.params.scale = (float)(1 / sqrt(D * 3.0));
  test_run(&call);
  for (int64_t i = 0; i < T; i++) {
    double sum = 0, o[D] = {0};
    for (int64_t j = 0; j < T; j++) {
      int64_t c2p = N + bucket(i - j, N, MOST), p2c = N - bucket(j - i, N, MOST);
      double x = 0;
      if (c2p > 2 * N - 1) c2p = 2 * N - 1;
      if (p2c > 2 * N - 1) p2c = 2 * N - 1;
      for (int64_t c = 0; c < D; c++) {
        double q = oracle_get(&call.q, 0, 0, i, c), k = oracle_get(&call.k, 0, 0, j, c);
        x += q * k + q * oracle_get(&kr, 0, 0, c2p, c) + k * oracle_get(&qr, 0, 0, p2c, c);
      }
      x = exp(x / sqrt(D * 3.0));
      sum += x;
      for (int64_t c = 0; c < D; c++) o[c] += x * oracle_get(&call.v, 0, 0, j, c);
    }
    for (int64_t c = 0; c < D; c++)
      assert_true(fabs(o[c] / sum - oracle_get(&call.o, 0, 0, i, c)) < 1e-5);
  }
}

/* DeBERTa without buckets, as its code has it: distances up to the span of the sequences, of tables that are cut to
 * twice that; calls by tables of all distances. */
void B10_deberta_v1(void **state) {
  (void)state;
  enum { D = 8, MOST = 40, ROWS = 2 * MOST + 1 };
  static const int64_t lengths[][2] = {{30, 30}, {40, 40}, {41, 41}, {150, 150}, {20, 90}};
  for (int n = 0; n < 10; n++) {
    const int64_t tq = lengths[n / 2][0], tk = lengths[n / 2][1];
    const int p2c_too = n & 1;
    test_rng rng = test_seed(1240 + (uint64_t)n);
    test_spec spec = test_plain(1, tq, tk, D, D);
    test_call call = test_build(&spec, &rng);
    attn_tensor kr = test_table(1, 2 * MOST, D, TEST_BHTD, &rng);
    attn_tensor qr = test_table(1, 2 * MOST, D, TEST_BHTD, &rng);
    attn_tensor keys = test_table(1, ROWS, D, TEST_BHTD, &rng);
    attn_tensor queries = test_table(1, ROWS, D, TEST_BHTD, &rng);
    for (int64_t e = 0; e < ROWS; e++) {
      const int64_t row = MOST + (MOST - e > MOST - 1 ? MOST - 1 : MOST - e);
      test_copy(test_rows(keys, e, 1), test_rows(kr, row, 1));
      test_copy(test_rows(queries, e, 1), test_rows(qr, row, 1));
    }
    call.params.relative.keys = keys, call.params.has_q_off = 1;
    if (p2c_too) call.params.relative.queries = queries;
    call.params.scale = (float)(1 / sqrt(D * (2.0 + p2c_too)));
    test_run(&call);
    const int64_t longer = tq > tk ? tq : tk, span = longer < MOST ? longer : MOST;
    const int64_t cut = MOST - span; /* rel_embeddings[cut : MOST + span] */
    for (int64_t i = 0; i < tq; i++) {
      double sum = 0, o[D] = {0};
      for (int64_t j = 0; j < tk; j++) {
        int64_t at = i - j + span;
        at = at < 0 ? 0 : at > 2 * span - 1 ? 2 * span - 1 : at;
        double x = 0;
        for (int64_t c = 0; c < D; c++) {
          const double q = oracle_get(&call.q, 0, 0, i, c), k = oracle_get(&call.k, 0, 0, j, c);
          x += q * k + q * oracle_get(&kr, 0, 0, cut + at, c);
          if (p2c_too) x += k * oracle_get(&qr, 0, 0, cut + at, c);
        }
        x = exp(x / sqrt(D * (2.0 + p2c_too)));
        sum += x;
        for (int64_t c = 0; c < D; c++) o[c] += x * oracle_get(&call.v, 0, 0, j, c);
      }
      for (int64_t c = 0; c < D; c++)
        assert_true(fabs(o[c] / sum - oracle_get(&call.o, 0, 0, i, c)) < 1e-5);
    }
    test_mem_release();
  }
}

/* BERT's relative_key_query and relative_key: one table of 2 max_position_embeddings - 1 rows, of which row i - j + max
 * - 1 meets the query and the key, all of it over sqrt(d). The call has its rows the other way round: a view. */
void B10_bert(void **state) {
  (void)state;
  enum { D = 8, MOST = 70 };
  for (int n = 0; n < 8; n++) {
    const int64_t t = n / 2 == 0 ? 1 : n / 2 == 1 ? 23 : n / 2 == 2 ? 64 : MOST;
    const int query_only = n & 1;
    test_rng rng = test_seed(1250 + (uint64_t)n);
    test_spec spec = test_plain(2, t, t, D, D);
    test_call call = test_build(&spec, &rng);
    attn_tensor embedding = test_table(1, 2 * MOST - 1, D, TEST_BHTD, &rng), turned = embedding;
    turned.data = oracle_address(&embedding, 0, 0, 2 * MOST - 2, 0);
    turned.stride_len = -embedding.stride_len;
    call.params.relative.keys = turned;
    if (!query_only) call.params.relative.queries = turned;
    test_run(&call);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < t; i++) {
        double sum = 0, o[D] = {0};
        for (int64_t j = 0; j < t; j++) {
          double x = 0;
          for (int64_t c = 0; c < D; c++) {
            const double q = oracle_get(&call.q, 0, h, i, c), k = oracle_get(&call.k, 0, h, j, c);
            const double e = oracle_get(&embedding, 0, 0, i - j + MOST - 1, c);
            x += q * k + q * e + (query_only ? 0 : k * e);
          }
          x = exp(x / sqrt(D));
          sum += x;
          for (int64_t c = 0; c < D; c++) o[c] += x * oracle_get(&call.v, 0, h, j, c);
        }
        for (int64_t c = 0; c < D; c++)
          assert_true(fabs(o[c] / sum - oracle_get(&call.o, 0, h, i, c)) < 1e-5);
      }
    test_mem_release();
  }
}
