/* tests/calls/test_selective.c owns M2's selective attention: what it says of itself, and what it promises. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reshaped.h"

/* Head 0 whose scores are not positive takes nothing: attn_sdpa. */
void M2_selective_of_nothing(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)n, 3, 200, 200, 1400), d;
    c.p.attention.causal = 1;
    for (int64_t i = 0; i < 200; i++)
      for (int64_t x = 0; x < 12; x++) {
        oracle_set(&c.q, 0, 0, i, x, fabs(oracle_get(&c.q, 0, 0, i, x)));
        oracle_set(&c.k, 0, 0, i, x, -fabs(oracle_get(&c.k, 0, 0, i, x)));
      }
    if (n == 2) test_fill_value(test_one(c.q, 0, 1, 0, 1), 0); /* and 0 is not positive */
    d = reshaped_again(&c);
    d.p.selective.on = 1, d.p.selective.first = n & 1;
    reshaped_run(&c), reshaped_run(&d);
    test_assert_same(d.o, c.o, "nothing is taken");
    test_mem_release();
  }
}

/* Rows in several tiles, values of mean 0 and of mean 1, kinds that it goes with, other mechanisms beside it. */
void M2_selective_long_rows(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(1420 + (uint64_t)n);
    const int64_t tk = n % 2 ? 130 : test_fast ? 260 : 390;
    reshaped_call c = reshaped_plain((attn_reshape_kind)n, 2, tk, tk, 1425 + (uint64_t)n);
    for (int64_t e = 0; n / 2 && e < 2 * tk * 7; e++) ((float *)c.v.data)[e] += 1;
    for (int64_t e = 0; e < 2 * tk * 12; e++)
      ((float *)c.q.data)[e] *= 0.1f; /* takes little a row */
    c.p.attention.causal = 1, c.p.selective.on = 1;
    if (n % 2) reshaped_add(&c, HAS_SSMAX | HAS_FORGET | HAS_GATE | HAS_TEMPERATURE, &rng);
    reshaped_show(&c, n % 2 ? ATTN_MAP_SCORES : ATTN_MAP_WEIGHTS);
    reshaped_check(&c, "long rows");
    test_mem_release();
  }
}

/* One key that all rows look at by x0 = 1: row i has lost i - 2 of it, whatever their number; exact. */
void M2_selective_far(void **state) {
  (void)state;
  enum { T = 600 };
  float *q = test_mem(T * 4), *k = test_mem(T * 4), *v = test_mem(T * 4), *o = test_mem(T * 4);
  double sums[T];
  for (int i = 0; i < T; i++) q[i] = 0.001f, k[i] = i == 1, v[i] = i == 1;
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.attention.causal = 1, c.p.selective.on = 1, c.p.selective.sums = sums;
  for (int i = 0; i < T; i++) sums[i] = NAN; /* not read */
  reshaped_run(&c);
  for (int i = 2; i < T; i++) {
    double w = exp((double)0.001f * (1 - (i - 2)));
    reshaped_judge(o[i], w / (w + i), 1e-7, "a key that fades", 0, 0, i, 0);
  }
  for (int i = 0; i < T; i++)
    reshaped_judge(sums[i], i == 1 ? (T - 2) * (double)0.001f : 0, 1e-7, "its sum", 0, 0, i, 0);
  test_mem_release();
}

/* Key 0 stays, or fades as others; the key of a row takes nothing from itself; the next row has lost it. */
void M2_selective_first(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    float q[3] = {1, 1, 1}, k[3] = {2, 3, 0}, v[3] = {1, 10, 100}, o[3];
    reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 3, 1),
                       attn_bhtd(q, ATTN_F32, 1, 1, 3, 1),
                       attn_bhtd(k, ATTN_F32, 1, 1, 3, 1),
                       attn_bhtd(v, ATTN_F32, 1, 1, 3, 1),
                       {0}};
    c.p.attention.causal = 1, c.p.selective.on = 1, c.p.selective.first = n;
    reshaped_run(&c);
    const double e0 = exp(2), e1 = exp(3),
                 f = n ? 1 : e0; /* row 1 takes 2 from key 0, row 0 nothing */
    reshaped_judge(o[0], 1, 1e-6, "row 0", 0, 0, 0, 0);
    reshaped_judge(o[1], (e0 + 10 * e1) / (e0 + e1), 1e-5, "row 1", 0, 0, 1, 0);
    reshaped_judge(o[2], (f + 10 * e1 + 100) / (f + e1 + 1), 1e-4, "row 2", 0, 0, 2, 0);
  }
}

/* Token by token and in chunks with the sums carried: the rows and the sums of one call. Workers, exact workspaces,
 * grouped heads, later keys that are NaN. */
void M2_selective_promises(void **state) {
  (void)state;
  enum { T = 150 };
  for (int n = 0; n < 4; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n == 3 ? 2 : n % 2), 4, T, T,
                                     1450 + (uint64_t)n),
                  d, e;
    attn_ctx ctx = test_ctx();
    double whole[T], kept[T];
    c.k.heads = c.v.heads = 2, c.k.stride_batch /= 2, c.v.stride_batch /= 2;
    c.p.attention.causal = 1, c.p.selective.on = 1, c.p.selective.sums = whole;
    if (n % 2 == 1 && c.p.kind == ATTN_RESHAPE_SIGMOID) c.p.by_row = 1;
    d = reshaped_again(&c), e = reshaped_again(&c);
    reshaped_check(&c, "grouped heads");
    d.p.selective.sums = NULL;
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_reshaped_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    assert_true(bytes != ATTN_WORKSPACE_REJECTED);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes, test_malloc_calls = 0;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    test_assert_same(c.o, d.o, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_E_WORKSPACE);
    memset(kept, 0xFF, sizeof kept);
    for (int32_t t = 0, step; t < T; t += step) {
      reshaped_call s = e;
      int32_t length;
      step = n < 2 ? 1 : 37;
      if (step > T - t) step = T - t;
      length = t + step;
      s.q = test_rows(c.q, t, step), s.o = test_rows(e.o, t, step);
      s.p.attention.kv_len = &length, s.p.attention.has_q_off = 1, s.p.attention.q_off = t;
      s.p.selective.sums = kept;
      reshaped_run(&s);
    }
    test_assert_same(e.o, c.o, "in steps");
    for (int j = 0; j < T; j++) assert_true(kept[j] == whole[j]);
    for (int64_t j = 100; j < T; j++)
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(c.k, 0, h, j, NAN), test_fill_row(c.v, 0, h, j, NAN);
    reshaped_run(&d);
    test_assert_same(test_rows(d.o, 0, 100), test_rows(c.o, 0, 100), "later keys");
    test_mem_release();
  }
}

/* Sums that other rows have left, apart for each entry of a batch: the rows of a second call, and what it leaves, are
 * those of one call over all, and of an entry by itself. */
void M2_selective_decodes(void **state) {
  (void)state;
  enum { T = 150, B = 2 };
  for (int n = 0; n < 8; n++) {
    const int64_t at = n % 4 == 0 ? 70 : n % 4 == 1 ? 64 : n % 4 == 2 ? 149 : 1;
    test_rng rng = test_seed(1455 + (uint64_t)n);
    test_spec spec = test_plain(4, T, T, 12, 7);
    spec.batch = B, spec.k_heads = spec.v_heads = 2;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call), d, e;
    double whole[B * T], kept[B * T];
    c.p.attention.causal = c.p.attention.one_order = 1;
    c.p.selective.on = 1, c.p.selective.first = n & 1, c.p.selective.sums = whole;
    if (n > 3) c.p.kind = ATTN_RESHAPE_SOFTPICK;
    d = reshaped_again(&c);
    reshaped_check(&c, "the whole");
    memset(kept, 0xFF, sizeof kept);
    for (int step = 0; step < 2; step++) {
      const int64_t from = step ? at : 0, rows = step ? T - at : at;
      e = d, e.p.selective.sums = kept;
      int32_t length[B] = {(int32_t)(from + rows), (int32_t)(from + rows)};
      e.q = test_rows(c.q, from, rows), e.o = test_rows(d.o, from, rows);
      e.p.attention.kv_len = length, e.p.attention.has_q_off = 1, e.p.attention.q_off = from;
      reshaped_run(&e);
      for (int64_t b = 0; !step && b < B; b++) { /* the second of them is for each what it left */
        double most = 0;
        for (int64_t j = 0; j < at; j++) most = fmax(most, kept[b * T + j]);
        assert_true(at < 2 || most > 0);
        assert_true(b == 0 || at < 2 || memcmp(kept, kept + T, (size_t)at * sizeof *kept) != 0);
      }
    }
    test_assert_same(d.o, c.o, "in two calls");
    assert_memory_equal(kept, whole, sizeof kept);
    for (int64_t b = 0; b < B; b++) {
      double own[T];
      e = reshaped_again(&c);
      e.q = test_one(c.q, b, 1, 0, 4), e.k = test_one(c.k, b, 1, 0, 2);
      e.v = test_one(c.v, b, 1, 0, 2), e.o = test_one(e.o, b, 1, 0, 4);
      e.p.selective.sums = own;
      reshaped_run(&e);
      test_assert_same(e.o, test_one(c.o, b, 1, 0, 4), "an entry by itself");
      assert_memory_equal(own, whole + b * T, sizeof own);
    }
    test_mem_release();
  }
}

/* A key that head 0 may not see takes nothing, whatever is stored there; nor does NaN reach rows that may not see it,
 * though an earlier row did. */
void M2_selective_masked(void **state) {
  (void)state;
  reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, 150, 150, 1460), d;
  uint8_t *mask = test_mem(2 * 150), *by_row = test_mem(150 * 150);
  for (int j = 0; j < 150; j++) mask[j] = j % 3 != 1, mask[150 + j] = 1;
  c.p.attention.causal = 1, c.p.selective.on = 1;
  c.p.attention.mask = attn_mask_bool(mask, 1, 2, 1, 150);
  reshaped_check(&c, "masked keys of head 0");
  d = reshaped_again(&c);
  for (int64_t j = 1; j < 150; j += 3) test_fill_row(c.k, 0, 0, j, NAN);
  reshaped_run(&d);
  test_assert_same(c.o, d.o, "NaN in keys that head 0 may not see");
  for (int64_t i = 0; i < 150; i++)
    for (int64_t j = 0; j < 150; j++) by_row[i * 150 + j] = j != 5 || i < 50;
  c.p.attention.mask = attn_mask_bool(by_row, 1, 1, 150, 150);
  test_fill_row(c.k, 0, 0, 5, NAN);
  for (int64_t j = 1; j < 150; j += 3) test_fill_row(c.k, 0, 0, j, 0);
  reshaped_run(&c);
  for (int64_t i = 0; i < 150; i++)
    assert_int_equal(isnan(oracle_get(&c.o, 0, 0, i, 2)) != 0, i >= 5 && i < 50);
  test_mem_release();
}

void M2_selective_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 15; n++) {
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, 20, 30, 1470);
    attn_ctx ctx = test_ctx();
    attn_schedule schedule = {0};
    const attn_pattern full = attn_pattern_full();
    attn_status want = ATTN_E_RANGE;
    attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 12);
    float z[2] = {9, 9};
    double sums[31] = {0};
    attn_selective *s = &c.p.selective;
    test_fill_value(table, 0);
    s->on = 1, s->sums = sums, c.p.attention.causal = 1;
    if (n == 0) c.p.attention.causal = 0;
    if (n == 1) want = ATTN_E_NULL, s->sums = NULL;
    if (n == 2) c.p.attention.keep = 2;
    if (n == 3) c.p.attention.span.z = z;
    if (n == 4) c.p.attention.xl.table = table;
    if (n == 5) c.p.cope.table = table;
    if (n == 6) want = ATTN_E_NULL, s->on = 0;
    if (n == 7) want = ATTN_E_NULL, s->on = 0, s->sums = NULL, s->first = 1;
    if (n == 8) want = ATTN_E_ALIGN, s->sums = (double *)(void *)((char *)sums + 4);
    if (n == 9) want = ATTN_E_OVERLAP, s->sums = c.o.data;
    if (n == 10) want = ATTN_E_OVERLAP, s->sums = c.k.data;
    if (n == 11) want = ATTN_E_OVERLAP, ctx.workspace = sums, ctx.workspace_size = 16;
    if (n == 12)
      want = ATTN_E_NULL, c.p.attention.has_q_off = 1, c.p.attention.q_off = 1, s->sums = NULL;
    if (n == 13) c.p.kind = ATTN_RESHAPE_ENTMAX;
    if (n == 14) {
      assert_int_equal(attn_schedule_build(&schedule, &full, 2, 20, 30, NULL, NULL), ATTN_OK);
      c.p.attention.schedule = &schedule;
    }
    if (n != 9) test_fill_value(c.o, 7);
    attn_status got = attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx);
    if (got != want || !ctx.reason || (n != 11 && !strstr(ctx.reason, "selective")))
      fail_msg("case %d: %s, %s", n, attn_status_string(got), ctx.reason ? ctx.reason : "(null)");
    for (int e = 0; n != 9 && e < 2 * 20 * 7; e++) assert_true(((float *)c.o.data)[e] == 7);
    for (int e = 0; e < 31; e++) assert_true(sums[e] == 0); /* they are an output too */
    attn_schedule_free(&schedule);
    if (n != 9 && n != 11)
      assert_true(attn_reshaped_workspace(c.o, c.q, c.k, c.v, &c.p, &ctx) ==
                  ATTN_WORKSPACE_REJECTED);
    test_mem_release();
  }
}
