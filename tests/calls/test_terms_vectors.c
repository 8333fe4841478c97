/* tests/calls/test_terms_vectors.c owns terms that meet the query with a vector: B3, relative positions
 * on keys and values; B4, Transformer-XL; and labels. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* ---- B3 -------------------------------------------------------------------------------------*/

void B3_matches_oracle(void **state) {
  (void)state;
  int64_t n = test_count(30, 8);
  test_terms_check(TERM_KEYS, 200, n, 200, "vectors on keys");
  test_terms_check(TERM_VALUES, 201, n, 200, "vectors on values");
  test_terms_check(TERM_KEYS | TERM_VALUES, 202, n, 220, "vectors on keys and values");
}

/* Every clipping distance around the block and tile edges, with both tables. */
void B3_every_clipping(void **state) {
  (void)state;
  for (int64_t c = 0; c < 12; c++) {
    static const int64_t clips[] = {0, 1, 2, 3, 7, 15, 16, 31, 63, 64, 127, 200};
    test_rng rng = test_seed(203);
    test_spec spec = test_plain(2, 70, 150, 9, 11);
    spec.k_heads = spec.v_heads = 1;
    spec.map = 1;
    test_call call = test_build(&spec, &rng);
    call.params.causal = c & 1;
    call.params.relative.keys = test_table(1, 2 * clips[c] + 1, 9, TEST_BHTD, &rng);
    call.params.relative.values = test_table(2, 2 * clips[c] + 1, 11, TEST_PADDED, &rng);
    test_check(&call, "a clipping distance");
    test_mem_release();
  }
}

void B3_zero_tables_equal_plain(void **state) {
  (void)state;
  test_rng rng = test_seed(204);
  test_spec spec = test_plain(3, 100, 140, 24, 20);
  spec.map = 1;
  test_call call = test_build(&spec, &rng), plain = test_again(&call);
  call.params.causal = plain.params.causal = 1;
  call.params.relative.keys = test_table(1, 9, 24, TEST_BHTD, &rng);
  call.params.relative.values = test_table(1, 9, 20, TEST_BHTD, &rng);
  test_fill_value(call.params.relative.keys, 0);
  test_fill_value(call.params.relative.values, 0);
  test_run(&call);
  test_run(&plain);
  test_assert_near(call.o, plain.o, 1e-6, "zero tables");
  test_assert_near(call.params.lse, plain.params.lse, 1e-6, "zero tables: LSE");
  test_assert_near(call.params.map, plain.params.map, 1e-6, "zero tables: map");
}

/* One vector for all distances: on keys it moves the LSE by s q.r alone, on values O by r, but for
 * empty rows. c = 0 is the shortest such table. */
void B3_equal_vectors(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    int64_t rows = n ? 15 : 1;
    test_rng rng = test_seed(205);
    test_spec spec = test_plain(2, 90, 70, 12, 10); /* causal: 20 empty rows */
    test_call plain = test_build(&spec, &rng), key = test_again(&plain), value = test_again(&plain);
    plain.params.causal = key.params.causal = value.params.causal = 1;
    attn_tensor keys = test_table(1, rows, 12, TEST_BHTD, &rng);
    attn_tensor values = test_table(1, rows, 10, TEST_BHTD, &rng);
    for (int64_t r = 1; r < rows; r++) {
      test_copy(test_rows(keys, r, 1), test_rows(keys, 0, 1));
      test_copy(test_rows(values, r, 1), test_rows(values, 0, 1));
    }
    key.params.relative.keys = keys;
    value.params.relative.values = values;
    test_run(&plain);
    test_run(&key);
    test_run(&value);
    test_assert_near(key.o, plain.o, 3e-6, "one vector for all keys");
    test_assert_same(value.params.lse, plain.params.lse, "value vectors and the LSE");
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t i = 0; i < 90; i++) {
        double lse = oracle_get(&plain.params.lse, 0, h, i, 0), dot = 0;
        for (int64_t c = 0; c < 12; c++) {
          dot += oracle_get(&plain.q, 0, h, i, c) * oracle_get(&keys, 0, 0, 0, c);
        }
        lse += dot / sqrt(12);
        double got = oracle_get(&key.params.lse, 0, h, i, 0);
        assert_true(got == lse || fabs(got - lse) <= 3e-6 * (1 + fabs(lse)));
        for (int64_t c = 0; c < 10; c++) {
          double want = oracle_get(&plain.o, 0, h, i, c);
          if (i >= 20) want += oracle_get(&values, 0, 0, 0, c);
          assert_true(fabs(oracle_get(&value.o, 0, h, i, c) - want) <= 3e-6);
          if (i < 20) assert_true(oracle_get(&value.o, 0, h, i, c) == 0);
        }
      }
    }
  }
}

/* With K = 0 the weights of a row depend on the clipped distance alone, and with V = 0 the output
 * is the weighted mean of the value vectors. */
void B3_distance_only(void **state) {
  (void)state;
  int64_t tq = 80, tk = 110, c = 6;
  test_rng rng = test_seed(206);
  test_spec spec = test_plain(1, tq, tk, 8, 8);
  spec.map = 1;
  test_call call = test_build(&spec, &rng);
  test_fill_value(call.k, 0);
  test_fill_value(call.v, 0);
  call.params.relative.keys = test_table(1, 2 * c + 1, 8, TEST_BHTD, &rng);
  call.params.relative.values = test_table(1, 2 * c + 1, 8, TEST_BHTD, &rng);
  test_check(&call, "distances alone");
  for (int64_t i = 0; i < tq; i++) {
    for (int64_t j = 1; j < tk; j++) {
      int64_t d = j - (i + tk - tq);
      if (d > -c && d <= c) continue; /* the neighbours have the same clipped distance */
      assert_true(oracle_get(&call.params.map, 0, 0, i, j) ==
                  oracle_get(&call.params.map, 0, 0, i, j - 1));
    }
  }
}

/* One query at a time against a growing cache gives the rows of one causal call. */
void B3_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(207);
  test_spec spec = test_plain(4, 140, 140, 16, 12);
  spec.k_heads = spec.v_heads = 2;
  test_call whole = test_build(&spec, &rng);
  whole.params.causal = 1;
  whole.params.relative.keys = test_table(4, 41, 16, TEST_BHTD, &rng);
  whole.params.relative.values = test_table(1, 41, 12, TEST_BHTD, &rng);
  test_run(&whole);
  for (int64_t i = 0; i < 140; i += test_count(7, 23)) {
    test_call step = whole;
    step.q = test_rows(whole.q, i, 1);
    step.k = test_rows(whole.k, 0, i + 1);
    step.v = test_rows(whole.v, 0, i + 1);
    step.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 1, 12);
    step.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 1, 1);
    test_run(&step);
    test_assert_near(step.o, test_rows(whole.o, i, 1), 3e-6, "a step of decoding");
    test_assert_near(step.params.lse, test_rows(whole.params.lse, i, 1), 3e-6, "its LSE");
  }
}

/* NaN in a row of a table reaches the rows that read it, and no other. */
void B3_nan_in_tables(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    int in_values = n & 1;
    test_rng rng = test_seed(208);
    test_spec spec = test_plain(2, 100, 150, 9, 7);
    test_call clean = test_build(&spec, &rng);
    attn_sdpa_params *p = &clean.params;
    p->causal = n >> 1 & 1;
    test_left(p, n & 4 ? 30 : -1);
    p->relative.keys = test_table(2, 2 * 40 + 1, 9, TEST_BHTD, &rng);
    p->relative.values = test_table(1, 2 * 40 + 1, 7, TEST_BHTD, &rng);
    test_run(&clean);
    test_call call = test_again(&clean);
    attn_tensor *table = in_values ? &call.params.relative.values : &call.params.relative.keys;
    attn_tensor copy = test_tensor(ATTN_F32, TEST_BHTD, 1, table->heads, 81, table->dim);
    test_copy(copy, *table);
    *table = copy;
    /* distance 60 - c: never read under causal; -37: outside the window; clipped end -40 */
    static const int64_t rows[] = {60, 3, 0, 80, 40, 30};
    int64_t bad = rows[n % 6];
    test_fill_row(*table, 0, 0, bad, (double)NAN);
    test_run(&call);
    char what[48];
    snprintf(what, sizeof what, "NaN in a relative table, case %d", n);
    test_compare(&call, what);
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t i = 0; i < 100; i++) {
        int read = 0;
        for (int64_t j = 0; j < 150; j++) {
          int64_t d = j - (i + 50), e = (d < -40 ? -40 : d > 40 ? 40 : d) + 40;
          read |= e == bad && (h == 0 || in_values) &&
                  oracle_allowed(&call.q, &call.k, &call.params, 0, h, i, j);
        }
        assert_int_equal(isnan(oracle_get(&call.o, 0, h, i, 3)) != 0, read);
        if (read) continue;
        test_assert_same(test_rows(test_one(call.o, 0, 1, h, 1), i, 1),
                         test_rows(test_one(clean.o, 0, 1, h, 1), i, 1),
                         "rows that do not read it");
      }
    }
    test_mem_release();
  }
}

/* A forbidden key holds garbage: value vectors are still added for the others. */
void B3_forbidden_garbage(void **state) {
  (void)state;
  test_rng rng = test_seed(209);
  test_spec spec = test_plain(1, 70, 70, 9, 7);
  test_call clean = test_build(&spec, &rng);
  uint8_t *allowed = test_mem(70 * 70);
  for (int n = 0; n < 70 * 70; n++) allowed[n] = n % 70 % 5 != 2 && n / 70 != 33;
  clean.params.mask = attn_mask_bool(allowed, 1, 1, 70, 70);
  clean.params.relative.keys = test_table(1, 21, 9, TEST_BHTD, &rng);
  clean.params.relative.values = test_table(1, 21, 7, TEST_BHTD, &rng);
  test_check(&clean, "a mask");
  test_call call = test_again(&clean);
  for (int64_t j = 2; j < 70; j += 5) {
    test_fill_row(call.k, 0, 0, j, j % 2 ? (double)NAN : (double)INFINITY);
    test_fill_row(call.v, 0, 0, j, (double)NAN);
  }
  test_run(&call);
  test_assert_same_outputs(&call, &clean, "garbage under the mask");
}

/* ---- B4 -------------------------------------------------------------------------------------*/

void B4_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_XL, 210, test_count(70, 14), 220, "Transformer-XL");
}

/* A memory ahead of the queries, as the layer has it: Tk = M + L, exactly the distances 1-Tk..0. */
void B4_memory(void **state) {
  (void)state;
  static const int64_t memory[] = {0, 1, 3, 64, 200};
  for (int n = 0; n < 15; n++) {
    int64_t m = memory[n % 5], l = n / 5 == 0 ? 1 : n / 5 == 1 ? 60 : 130;
    test_rng rng = test_seed(211);
    test_spec spec = test_plain(2, l, m + l, 15, 9);
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    p->causal = 1;
    p->xl.table = test_table(2, m + l, 15, TEST_BHTD, &rng);
    p->xl.first = 1 - (m + l);
    p->xl.u = test_floats(30, 1, &rng);
    p->xl.v = test_floats(30, 1, &rng);
    test_check(&call, "a memory");
    /* without causal the future counts too, up to L-1 */
    p->causal = 0;
    p->xl.table = test_table(1, m + 2 * l - 1, 15, TEST_BHTD, &rng);
    test_check(&call, "both directions");
    test_mem_release();
  }
}

/* With the memory equal to the inputs before, the last queries get what one long call gives. */
void B4_memory_continues(void **state) {
  (void)state;
  test_rng rng = test_seed(212);
  test_spec spec = test_plain(2, 150, 150, 16, 8);
  test_call whole = test_build(&spec, &rng);
  attn_sdpa_params *p = &whole.params;
  p->causal = 1;
  p->xl.table = test_table(2, 150, 16, TEST_BHTD, &rng);
  p->xl.first = -149;
  p->xl.u = test_floats(32, 1, &rng);
  p->xl.v = test_floats(32, 1, &rng);
  test_run(&whole);
  test_call part = whole;
  part.q = test_rows(whole.q, 110, 40);
  part.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 8);
  part.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 1);
  test_run(&part);
  test_assert_near(part.o, test_rows(whole.o, 110, 40), 3e-6, "the last segment");
  test_assert_near(part.params.lse, test_rows(whole.params.lse, 110, 40), 3e-6, "its LSE");
}

/* KR = 0 and u = 0 leave plain attention, whatever v is. */
void B4_zero_tables_equal_plain(void **state) {
  (void)state;
  test_rng rng = test_seed(213);
  test_spec spec = test_plain(2, 90, 120, 16, 8);
  test_call call = test_build(&spec, &rng), plain = test_again(&call);
  call.params.causal = plain.params.causal = 1;
  call.params.xl.table = test_table(1, 120, 16, TEST_BHTD, &rng);
  call.params.xl.first = -119;
  test_fill_value(call.params.xl.table, 0);
  call.params.xl.u = test_constant(32, 0);
  call.params.xl.v = test_floats(32, 1, &rng);
  test_run(&call);
  test_run(&plain);
  test_assert_near(call.o, plain.o, 2e-6, "no distances");
  test_assert_near(call.params.lse, plain.params.lse, 2e-6, "no distances: LSE");
}

/* Q = 0 and u = 0 leave a Toeplitz table: s v_h . kR_t. */
void B4_equals_toeplitz(void **state) {
  (void)state;
  test_rng rng = test_seed(214);
  test_spec spec = test_plain(2, 70, 120, 16, 8);
  test_call call = test_build(&spec, &rng), flat = test_again(&call);
  test_fill_value(call.q, 0);
  attn_tensor table = test_table(2, 190, 16, TEST_BHTD, &rng); /* -119 .. 69 and one more */
  float *v = test_floats(32, 1, &rng), *t = test_mem(2 * 190 * sizeof *t);
  call.params.xl.table = table;
  call.params.xl.first = -119;
  call.params.xl.v = v;
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t r = 0; r < 190; r++) {
      double dot = 0;
      for (int64_t c = 0; c < 16; c++) {
        dot += (double)v[h * 16 + c] * oracle_get(&table, 0, h, r, c);
      }
      t[h * 190 + r] = (float)(dot / 4);
    }
  }
  flat.params.toeplitz.table = t;
  flat.params.toeplitz.len = 190;
  flat.params.toeplitz.heads = 2;
  flat.params.toeplitz.first = -119; /* the same distances */
  flat.params.toeplitz.reject = 1;
  test_fill_value(flat.q, 0);
  test_run(&call);
  test_run(&flat);
  test_assert_near(call.o, flat.o, 3e-6, "distances alone");
  test_assert_near(call.params.lse, flat.params.lse, 3e-6, "distances alone: LSE");
}

/* Only j - p enters: another q_off with first moved alike gives the same bits. */
void B4_positions_may_shift(void **state) {
  (void)state;
  test_rng rng = test_seed(215);
  test_spec spec = test_plain(1, 70, 90, 12, 8);
  test_call call = test_build(&spec, &rng), moved = test_again(&call);
  call.params.has_q_off = moved.params.has_q_off = 1;
  call.params.q_off = 20;
  moved.params.q_off = 20 + 1000;
  call.params.xl.table = moved.params.xl.table = test_table(1, 159, 12, TEST_BHTD, &rng);
  call.params.xl.first = -89;
  moved.params.xl.first = -89 - 1000;
  test_run(&call);
  test_run(&moved);
  test_assert_same_outputs(&call, &moved, "shifted positions");
}

/* A table of no more rows than there are distances, and one with rows around them, key lists included. */
void B4_tight_tables(void **state) {
  (void)state;
  test_rng rng = test_seed(218);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    const int64_t tq = n < 2 ? 70 : 3, tk = 90;
    test_spec spec = test_plain(1, tq, tk, 12, 8);
    test_call call = test_build(&spec, &rng), wide = test_again(&call);
    int64_t indptr[71];
    int32_t col[71 * 3];
    for (int64_t i = 0; i <= tq; i++) { /* the first key and the last, and one between */
      indptr[i] = 3 * i;
      col[3 * i] = 0, col[3 * i + 1] = (int32_t)(1 + i % (tk - 2)),
              col[3 * i + 2] = (int32_t)tk - 1;
    }
    const attn_pattern pattern = attn_pattern_csr(indptr, col, 3 * tq);
    attn_schedule schedule;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_schedule_build(&schedule, &pattern, 1, tq, tk, NULL, &ctx), ATTN_OK);
    if (n % 2) call.params.schedule = wide.params.schedule = &schedule;
    attn_tensor rows = test_table(1, tq + tk + 19, 12, TEST_BHTD, &rng);
    wide.params.xl.table = rows, wide.params.xl.first = 1 - tk - 10;
    call.params.xl.table = test_rows(rows, 10, tq + tk - 1), call.params.xl.first = 1 - tk;
    test_run(&call);
    test_run(&wide);
    test_assert_same_outputs(&call, &wide, "tight table");
    attn_schedule_free(&schedule);
  }
}

/* u and v alone: each may be absent. */
void B4_one_bias(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(216);
    test_spec spec = test_plain(4, 66, 130, 10, 8);
    spec.k_heads = 2;
    test_call call = test_build(&spec, &rng);
    call.params.causal = 1;
    call.params.scale = 0.75f;
    call.params.xl.table = test_table(4, 130, 10, TEST_NEGATIVE, &rng);
    call.params.xl.first = -129;
    if (n & 1) call.params.xl.u = test_floats(40, 2, &rng);
    if (n & 2) call.params.xl.v = test_floats(40, 2, &rng);
    test_check(&call, "one bias");
  }
}

void B4_nan_in_table(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(217);
    test_spec spec = test_plain(2, 100, 140, 9, 7);
    test_call clean = test_build(&spec, &rng);
    clean.params.causal = n & 1;
    test_left(&clean.params, n & 2 ? 50 : -1);
    attn_tensor table = test_table(2, 240, 9, TEST_BHTD, &rng);
    clean.params.xl.table = table;
    clean.params.xl.first = -139;
    test_run(&clean);
    test_call call = test_again(&clean);
    attn_tensor bad = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 240, 9);
    test_copy(bad, table);
    test_fill_row(bad, 0, 0, 139 - 45, (double)NAN); /* 45 back */
    test_fill_row(bad, 0, 0, 139 + 30, (double)NAN); /* 30 ahead: forbidden when causal */
    test_fill_row(bad, 0, 0, 139 - 70, (double)NAN); /* 70 back: beyond the window */
    call.params.xl.table = bad;
    test_run(&call);
    test_compare(&call, "NaN in a distance");
    for (int64_t i = 0; i < 100; i++) {
      int64_t position = i + 40;
      int read = position >= 45 || (n % 2 == 0 && position + 30 < 140);
      assert_int_equal(isnan(oracle_get(&call.o, 0, 0, i, 0)) != 0, read);
      if (!read) assert_true(oracle_get(&call.o, 0, 0, i, 0) == oracle_get(&clean.o, 0, 0, i, 0));
    }
    test_assert_same(test_one(call.o, 0, 1, 1, 1), test_one(clean.o, 0, 1, 1, 1), "another head");
  }
}

/* ---- labels ---------------------------------------------------------------------------------*/

void api_labels_match_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_LABELS, 220, test_count(50, 10), 200, "labels");
}

static int64_t clipped_distance(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  (void)batch, (void)head;
  int64_t d = j - i - *(const int64_t *)user;
  return (d < -7 ? -7 : d > 7 ? 7 : d) + 7;
}

/* Labels that are clipped distances are relative vectors on keys. */
void api_labels_equal_relative(void **state) {
  (void)state;
  test_rng rng = test_seed(221);
  test_spec spec = test_plain(2, 90, 130, 12, 8);
  test_call call = test_build(&spec, &rng), other = test_again(&call);
  int64_t *q_off = test_mem(sizeof *q_off);
  *q_off = 40;
  call.params.labels.label = clipped_distance;
  call.params.labels.user = q_off;
  call.params.labels.table = test_table(2, 15, 12, TEST_BHTD, &rng);
  other.params.relative.keys = call.params.labels.table;
  test_run(&call);
  test_run(&other);
  test_assert_near(call.o, other.o, 2e-6, "labels or distances");
  test_assert_near(call.params.lse, other.params.lse, 2e-6, "labels or distances");
}

static int64_t no_label(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  (void)user, (void)batch, (void)head;
  return (i + j) % 3 == 0 ? -1 : (i + j) % 3 == 1 ? 4 : INT64_MIN;
}

/* Anything but 0 .. n-1 is no label, and NaN in the table then reaches nobody. */
void api_labels_none(void **state) {
  (void)state;
  test_rng rng = test_seed(222);
  test_spec spec = test_plain(2, 90, 130, 12, 8);
  test_call plain = test_build(&spec, &rng), call = test_again(&plain);
  call.params.labels.label = no_label;
  call.params.labels.table = test_table(1, 4, 12, TEST_BHTD, &rng);
  test_fill_value(call.params.labels.table, (double)NAN);
  call.params.labels.bias = test_constant(8, 3);
  test_run(&plain);
  test_run(&call);
  test_assert_near(call.o, plain.o, 1e-6, "no labels");
  test_assert_near(call.params.lse, plain.params.lse, 1e-6, "no labels");
}

static int64_t one_label(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  const int64_t *at = user;
  (void)batch;
  return head == at[0] && i == at[1] && j == at[2] ? 1 : 0;
}

void api_labels_nan_in_table(void **state) {
  (void)state;
  test_rng rng = test_seed(223);
  test_spec spec = test_plain(2, 90, 130, 12, 8);
  test_call clean = test_build(&spec, &rng);
  static int64_t at[3] = {1, 37, 66};
  clean.params.labels.label = one_label;
  clean.params.labels.user = at;
  clean.params.labels.table = test_table(1, 2, 12, TEST_BHTD, &rng);
  test_run(&clean);
  test_call call = test_again(&clean);
  test_fill_row(call.params.labels.table, 0, 0, 1, (double)NAN);
  test_run(&call);
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t i = 0; i < 90; i++) {
      double got = oracle_get(&call.o, 0, h, i, 0);
      if (h == at[0] && i == at[1]) {
        assert_true(isnan(got));
      } else {
        assert_true(got == oracle_get(&clean.o, 0, h, i, 0));
      }
    }
  }
}
