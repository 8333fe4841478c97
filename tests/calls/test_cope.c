/* tests/calls/test_cope.c owns M2's contextual positions: what they say of themselves, and what they promise. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reshaped.h"

static attn_tensor table_of(int64_t heads, int64_t n, int64_t dim, uint64_t seed) {
  test_rng rng = test_seed(seed);
  attn_tensor e = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, n, dim);
  test_fill(e, &rng, test_normal);
  return e;
}

/* A table of zeros changes nothing but the order of blocks. */
void M2_cope_of_zero(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 3), 2, 300, 300, 1300), d;
    c.p.attention.causal = 1;
    d = reshaped_again(&c);
    d.p.cope.table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1 + n % 2, 20, 12);
    test_fill_value(d.p.cope.table, 0);
    reshaped_run(&c), reshaped_run(&d);
    test_assert_near(d.o, c.o, 3e-6, "a table of zeros");
    test_mem_release();
  }
}

/* Scores of 0 have gates of 1/2: positions are known. With queries of 0 but one column that k has not, the
 * weights are those of the table. */
void M2_cope_halves(void **state) {
  (void)state;
  enum { T = 300, N = 40 };
  reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 1, T, T, 1310);
  float e[N * 12] = {0};
  test_fill_value(c.q, 0);
  for (int64_t i = 0; i < T; i++)
    oracle_set(&c.q, 0, 0, i, 5, 1), oracle_set(&c.v, 0, 0, i, 0, (double)i);
  for (int64_t j = 0; j < T; j++) oracle_set(&c.k, 0, 0, j, 5, 0);
  for (int m = 0; m < N; m++) e[m * 12 + 5] = (float)(m * m % 7) - 3;
  c.p.attention.causal = 1, c.p.cope.table = attn_bhtd(e, ATTN_F32, 1, 1, N, 12);
  reshaped_run(&c);
  for (int i = 0; i < T; i += 13) {
    double sum = 0, o = 0;
    for (int j = 0; j <= i; j++) {
      const double p = fmin((i - j + 1) / 2.0, N - 1);
      const int lo = (int)floor(p), hi = (int)ceil(p);
      const double w = exp(((double)e[lo * 12 + 5] + (double)e[hi * 12 + 5]) / 2);
      sum += w, o += w * j;
    }
    reshaped_judge(oracle_get(&c.o, 0, 0, i, 0), o / sum, 3e-6 * T, "halves", 0, 0, i, 0);
  }
  test_mem_release();
}

/* Rows longer than a stretch, positions that reach the end of the table and that never do; values of mean 0 and 1. */
void M2_cope_long_rows(void **state) {
  (void)state;
  int64_t tk = test_fast ? 1300 : 2700;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(1320 + (uint64_t)n);
    reshaped_call c =
        reshaped_plain((attn_reshape_kind)(n % 3), 1, n < 2 ? 5 : 20, tk, 1325 + (uint64_t)n);
    for (int64_t e = 0; n / 2 && e < tk * 7; e++) ((float *)c.v.data)[e] += 1;
    c.p.attention.causal = 1;
    if (n % 2) reshaped_add(&c, HAS_SSMAX | HAS_FORGET | HAS_GATE | HAS_TEMPERATURE, &rng);
    c.p.cope.table = table_of(1, n % 2 ? 1500 : 64, 12, 1330);
    reshaped_show(&c, n % 2 ? ATTN_MAP_SCORES : ATTN_MAP_WEIGHTS);
    reshaped_check(&c, "long rows");
    test_mem_release();
  }
}

/* Small gates over many keys: their sum does not drift. e grows by 1 a position. */
void M2_cope_far(void **state) {
  (void)state;
  enum { T = 65536, N = 16 };
  float *k = test_mem(T * 4), *v = test_mem(T * 4), q[2] = {1, 1}, o[2], e[N];
  for (int64_t j = 0; j < T; j++) k[j] = -9, v[j] = (float)j / T;
  for (int m = 0; m < N; m++) e[m] = (float)m;
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.attention.causal = 1, c.p.cope.table = attn_bhtd(e, ATTN_F32, 1, 1, N, 1);
  reshaped_run(&c);
  double sum = 0, want = 0, g = 1 / (1 + exp(9));
  for (int64_t j = T - 1; j >= 0; j--) {
    double w = exp((double)(T - j) * g - 8);
    sum += w, want += w * (double)v[j];
  }
  reshaped_judge((double)o[1], want / sum, 2e-6, "many small gates", 0, 0, 1, 0);
  test_mem_release();
}

/* Forbidden keys have no gate, whatever is stored there, and are no keys: as without them. */
void M2_cope_masked(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 3), 2, 70, 300, 1340), d, e;
    uint8_t *mask = test_mem(300);
    c.p.attention.causal = 1, c.p.cope.table = table_of(2, 30, 12, 1341);
    if (n % 3 == 1) c.p.has_bias = 1;
    if (n == 3) { /* gates of 1: only forbidden keys are at position 0, where the table is NaN */
      test_fill_value(c.q, 4), test_fill_value(c.k, 4);
      for (int h = 0; h < 2; h++) oracle_set(&c.p.cope.table, 0, h, 0, 3, NAN);
    }
    for (int j = 0; j < 300; j++) mask[j] = j % 3 != 1;
    d = reshaped_again(&c), e = reshaped_again(&c);
    c.p.attention.mask = attn_mask_bool(mask, 1, 1, 1, 300);
    reshaped_run(&c);
    if (n < 3) reshaped_compare(&c, "masked keys");
    for (int64_t j = 1; j < 300; j += 3)
      for (int h = 0; h < 2; h++)
        test_fill_row(c.k, 0, h, j, NAN), test_fill_row(c.v, 0, h, j, INFINITY);
    d.p.attention = c.p.attention;
    reshaped_run(&d);
    test_assert_same(c.o, d.o, "NaN in forbidden keys");
    for (int64_t i = 0; n == 3 && i < 70; i++) assert_true(isfinite(oracle_get(&c.o, 0, 0, i, 0)));
    /* keys 0 and 2 of each three, deleted rather than masked: the last row */
    if (n < 3) {
      e.q = test_rows(c.q, 69, 1), e.o = test_rows(e.o, 69, 1);
      e.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 200, 12);
      e.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 200, 7);
      for (int64_t h = 0; h < 2; h++)
        for (int64_t j = 0; j < 200; j++) {
          const int64_t from = j / 2 * 3 + j % 2 * 2;
          for (int64_t x = 0; x < 12; x++)
            oracle_set(&e.k, 0, h, j, x, oracle_get(&c.k, 0, h, from, x));
          for (int64_t x = 0; x < 7; x++)
            oracle_set(&e.v, 0, h, j, x, oracle_get(&c.v, 0, h, from, x));
        }
      if (n != 1) {
        reshaped_run(&e);
        test_assert_near(e.o, test_rows(c.o, 69, 1), 4e-5, "a masked key is a deleted one");
      }
    }
    test_mem_release();
  }
}

/* Rows one at a time as decoding has them, one in 19 and around tiles, workers, grouped heads: the same bits; no later key
 * reaches a row. */
void M2_cope_promises(void **state) {
  (void)state;
  enum { T = 300 };
  for (int n = 0; n < 4; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 2 * 2), 4, T, T, 1350 + (uint64_t)n),
                  d, e;
    attn_ctx ctx = test_ctx();
    c.k.heads = c.v.heads = 2, c.k.stride_batch /= 2, c.v.stride_batch /= 2;
    c.p.attention.causal = 1, c.p.attention.one_order = 1;
    c.p.cope.table = table_of(n / 2 ? 4 : 1, n % 2 ? 8 : 400, 12, 1355);
    d = reshaped_again(&c), e = reshaped_again(&c);
    if (n == 3)
      reshaped_check(&c, "grouped heads");
    else
      reshaped_run(&c);
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_reshaped_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    assert_true(bytes != ATTN_WORKSPACE_REJECTED);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes, test_malloc_calls = 0;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    test_assert_same(c.o, d.o, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_E_WORKSPACE);
    for (int32_t t = 0; t < T; t += t % 64 ? 19 : 1) {
      reshaped_call s = e;
      int32_t length = t + 1;
      s.q = test_rows(c.q, t, 1), s.o = test_rows(e.o, t, 1);
      s.p.attention.kv_len = &length, s.p.attention.has_q_off = 1, s.p.attention.q_off = t;
      reshaped_run(&s);
      test_assert_same(s.o, test_rows(c.o, t, 1), "one token");
    }
    for (int64_t j = 200; j < T; j++)
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(c.k, 0, h, j, NAN), test_fill_row(c.v, 0, h, j, NAN);
    reshaped_run(&d);
    test_assert_same(test_rows(d.o, 0, 200), test_rows(c.o, 0, 200), "later keys");
    test_mem_release();
  }
}

void M2_cope_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 15; n++) {
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, 20, 30, 1360);
    attn_ctx ctx = test_ctx();
    attn_schedule schedule = {0};
    const attn_pattern full = attn_pattern_full();
    attn_status want = ATTN_E_RANGE;
    attn_tensor *e = &c.p.cope.table;
    float z[2] = {9, 9};
    *e = table_of(2, 5, 12, 1361), c.p.attention.causal = 1;
    if (n == 0) c.p.attention.causal = 0;
    if (n == 1) c.p.kind = ATTN_RESHAPE_STICK;
    if (n == 2) c.p.attention.keep = 2;
    if (n == 3) c.p.attention.span.z = z;
    if (n == 4) c.p.attention.xl.table = *e;
    if (n == 5) e->len = ((int64_t)1 << 22) + 1, e->stride_len = 0;
    if (n == 6) want = ATTN_E_SHAPE, e->len = 0;
    if (n == 7) want = ATTN_E_SHAPE, e->dim = 11;
    if (n == 8) want = ATTN_E_SHAPE, e->heads = 3, e->stride_head = 0;
    if (n == 9) want = ATTN_E_SHAPE, e->batch = 2, e->stride_batch = 0;
    if (n == 10) want = ATTN_E_DTYPE, e->dtype = ATTN_F16;
    if (n == 11) want = ATTN_E_OVERLAP, e->data = c.o.data;
    if (n == 12) want = ATTN_E_ALIGN, e->data = (char *)e->data + 1, e->len = 4;
    if (n == 13) c.p.kind = ATTN_RESHAPE_ENTMAX;
    if (n == 14) {
      assert_int_equal(attn_schedule_build(&schedule, &full, 2, 20, 30, NULL, NULL), ATTN_OK);
      c.p.attention.schedule = &schedule;
    }
    if (n != 11) test_fill_value(c.o, 7);
    attn_status got = attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx);
    if (got != want || !ctx.reason || (n != 11 && !strstr(ctx.reason, "cope")))
      fail_msg("case %d: %s, %s", n, attn_status_string(got), ctx.reason ? ctx.reason : "(null)");
    for (int x = 0; n != 11 && x < 2 * 20 * 7; x++) assert_true(((float *)c.o.data)[x] == 7);
    if (n != 11)
      assert_true(attn_reshaped_workspace(c.o, c.q, c.k, c.v, &c.p, &ctx) ==
                  ATTN_WORKSPACE_REJECTED);
    attn_schedule_free(&schedule);
    test_mem_release();
  }
}
