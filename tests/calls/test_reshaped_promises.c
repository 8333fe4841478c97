/* tests/calls/test_reshaped_promises.c owns what attn_reshaped promises: far keys, cuts, decoding, nothing to see,
 * workers and rejections. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reshaped.h"
#include "terms.h"

static double soft_plus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* What 65535 small shares leave for the first key. */
void M2_stick_far(void **state) {
  (void)state;
  enum { T = 65536 };
  float *k = test_mem(T * 4), *v = test_mem(T * 4), q[2] = {1, 1}, o[2];
  for (int64_t j = 0; j < T; j++) k[j] = -9, v[j] = j == 0;
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1;
  reshaped_run(&c);
  double want = exp(-soft_plus(9.0) - (T - 2) * soft_plus(-9.0));
  reshaped_judge((double)o[1], want, 4e-6 * want, "the first of many keys", 0, 0, 1, 0);
}

/* Differences of sums of log f are exact to 1e-6 at T = 65536. */
void M2_forgetting_far(void **state) {
  (void)state;
  enum { T = 65536 };
  float *k = test_mem(T * 4), *v = test_mem(T * 4), *f = test_mem(T * 4), q[2] = {0, 0}, o[2];
  double far = 0, weights_of = 0, want = 0;
  test_rng rng = test_seed(840);
  for (int64_t j = 0; j < T; j++) {
    k[j] = 0, v[j] = (float)test_normal(&rng), f[j] = (float)(-1.0 / 3 - 1e-3 * (double)(j % 7));
  }
  for (int64_t j = T - 1; j >= 0; j--) {
    double w = exp(far);
    weights_of += w, want += w * (double)v[j], far += (double)f[j];
  }
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.attention.causal = 1, c.p.forget.log_f = attn_bhtd(f, ATTN_F32, 1, 1, T, 1);
  reshaped_run(&c);
  reshaped_judge((double)o[1], want / weights_of, 1e-6, "far positions", 0, 0, 1, 0);
}

/* -inf cuts the past off: rows behind it are those of a call that begins there. */
void M2_forgetting_cuts(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 3), 2, 300, 300, 850 + (uint64_t)n),
                  d = reshaped_again(&c);
    test_rng rng = test_seed(855);
    c.p.attention.causal = d.p.attention.causal = 1;
    if (n % 3 == 1) c.p.has_bias = d.p.has_bias = 1;
    c.p.forget.log_f = reshaped_decays(ATTN_F32, 1, 2, 300, 0, &rng);
    for (int h = 0; h < 2; h++) oracle_set(&c.p.forget.log_f, 0, h, 130, 0, -(double)INFINITY);
    d.p.forget.log_f = test_rows(c.p.forget.log_f, 130, 170);
    d.q = test_rows(c.q, 130, 170), d.k = test_rows(c.k, 130, 170), d.v = test_rows(c.v, 130, 170);
    d.o = test_rows(d.o, 130, 170);
    reshaped_run(&c), reshaped_run(&d);
    test_assert_near(test_rows(c.o, 130, 170), d.o, 2e-6, "behind a cut");
    /* and what is stored before the cut reaches nobody there */
    for (int64_t j = 0; j < 130; j++)
      test_fill_row(c.v, 0, 0, j, NAN), test_fill_row(c.k, 0, 0, j, NAN);
    reshaped_call e = reshaped_again(&c);
    reshaped_run(&e);
    test_assert_same(test_rows(e.o, 130, 170), test_rows(c.o, 130, 170), "NaN before a cut");
    test_mem_release();
  }
}

/* Decoding with the sums kept beside the keys: the rows of one call, and its sums. All kinds of weights, a gate for
 * every head, for some, for one; entries of a batch whose sums differ. */
void M2_forgetting_decodes(void **state) {
  (void)state;
  enum { T = 140, H = 4, B = 2 };
  for (int n = 0; n < 30; n++) {
    static const int64_t gates[] = {H, 2, 1};
    const int64_t f = gates[n / 2 % 3], sums = B * f * T;
    test_rng rng = test_seed(861 + (uint64_t)n);
    test_spec spec = test_plain(H, T, T, 12, 7);
    spec.batch = B, spec.k_heads = spec.v_heads = n % 4 ? 2 : H;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call);
    attn_forget_sum whole[B * H * T], kept[B * H * T];
    memset(kept, 0xA5, sizeof kept);
    c.p.kind = (attn_reshape_kind)(n / 6);
    if (c.p.kind == ATTN_RESHAPE_SIGMOID) c.p.by_row = 1;
    c.p.attention.causal = 1, c.p.attention.one_order = 1;
    c.p.forget.log_f = reshaped_decays(ATTN_F32, B, f, T, n & 1, &rng);
    c.p.forget.sums = whole;
    reshaped_run(&c);
    if (n % 6 == 3) reshaped_compare(&c, "the whole"); /* sums of all heads and entries */
    reshaped_call step = reshaped_again(&c);
    step.p.forget.sums = kept;
    for (int32_t t = 0, rows; t < T; t += rows) {
      reshaped_call d = step;
      rows = n % 5 ? 1 : T - t < 19 ? T - t : 19;
      int32_t length[B] = {t + rows, t + rows};
      d.q = test_rows(c.q, t, rows), d.o = test_rows(step.o, t, rows);
      d.p.attention.kv_len = length, d.p.attention.has_q_off = 1, d.p.attention.q_off = t;
      d.p.forget.known = t;
      reshaped_run(&d);
    }
    test_assert_same(step.o, c.o, "token by token");
    for (int64_t e = 0; e < sums; e++) {
      assert_true(kept[e].sum == whole[e].sum);
      assert_true(kept[e].since == whole[e].since);
    }
    test_mem_release();
  }
}

/* No bit of a row depends on a later number of log f, nor on what a gate of another row is. */
void M2_sees_no_later(void **state) {
  (void)state;
  for (int n = 0; n < 15; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 5), 2, 200, 200, 870 + (uint64_t)n), d;
    test_rng rng = test_seed(875);
    c.p.attention.causal = 1;
    reshaped_add(&c, HAS_FORGET | HAS_GATE | (n / 5 ? HAS_SSMAX : 0), &rng);
    if (c.p.kind == ATTN_RESHAPE_SIGMOID) c.p.has_bias = 0, c.p.bias = 0, c.p.by_row = 1;
    d = reshaped_again(&c);
    reshaped_run(&c);
    for (int64_t j = 140; j < 200; j++)
      for (int64_t h = 0; h < c.p.forget.log_f.heads; h++)
        oracle_set(&c.p.forget.log_f, 0, h, j, 0, j % 5 ? -3 : -(double)INFINITY);
    for (int64_t j = 140; j < 200; j++)
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(c.p.gate, 0, h, j, NAN), test_fill_row(c.v, 0, h, j, NAN);
    reshaped_run(&d);
    test_assert_same(test_rows(c.o, 0, 140), test_rows(d.o, 0, 140), "earlier rows");
    test_mem_release();
  }
}

/* NaN of a gate reaches its numbers alone; rows without keys are 0 whatever their gate. */
void M2_gates(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    int few = n & 1, wide = n & 2;
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, few ? 4 : 70, 90, 880);
    int32_t rows = few ? 3 : 60;
    c.p.attention.q_len = &rows;
    c.p.gate = test_tensor(n & 4 ? ATTN_BF16 : ATTN_F32, TEST_PADDED, 1, 2, c.q.len, wide ? 7 : 1);
    test_fill_value(c.p.gate, 0);
    oracle_set(&c.p.gate, 0, 1, 2, wide ? 5 : 0, NAN);
    for (int64_t i = rows; i < c.q.len; i++) test_fill_row(c.p.gate, 0, 0, i, NAN);
    reshaped_run(&c);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < c.q.len; i++)
        for (int64_t x = 0; x < 7; x++) {
          double got = oracle_get(&c.o, 0, h, i, x);
          if (i >= rows)
            assert_true(got == 0);
          else
            assert_int_equal(isnan(got) != 0, h == 1 && i == 2 && (!wide || x == 5));
        }
    test_mem_release();
  }
}

static void no_rows(attn_tensor *t, int batch) {
  if (!t->data) return;
  if (batch)
    t->batch = 0;
  else
    *t = test_rows(*t, 0, 0);
}

/* No keys, forbidden keys, no queries, no batch: with every kind of weights and every mechanism. */
void M2_nothing_to_see(void **state) {
  (void)state;
  static const int with[] = {0, HAS_FORGET, HAS_COPE, HAS_SELECTIVE, HAS_PATH, 0};
  for (int n = 0; n < 180; n++) {
    const attn_reshape_kind kind = (attn_reshape_kind)(n % 5);
    const int scene = n / 5 % 6, few = n % 7 == 3;
    const int64_t rows = few ? 3 : 70;
    reshaped_call c = reshaped_plain(kind, 2, rows, scene == 3 ? 0 : 90, 890);
    test_rng rng = test_seed(891);
    attn_sdpa_params *p = &c.p.attention;
    attn_qk_norm norm;
    int32_t none = 0;
    float minus = -INFINITY;
    memset(&norm, 0, sizeof norm);
    norm.kind = n & 1 ? ATTN_QK_NORM_L2 : ATTN_QK_NORM_RMS;
    if (n / 30 == 5) c.p.norm = &norm;
    if (scene == 4) p->has_q_off = 1, p->q_off = -100, p->causal = 1;
    reshaped_add(&c, with[n / 30] | HAS_SSMAX | HAS_GATE | (scene == 2 ? 0 : HAS_COUNT), &rng);
    reshaped_show(&c, few ? -1 : n & 1 ? ATTN_MAP_SCORES : ATTN_MAP_WEIGHTS);
    c.p.remainder = 0;
    if (scene == 0) p->kv_len = &none;
    if (scene == 1) p->bias = attn_mask_add(&minus, ATTN_F32, 1, 1, 1, 1);
    if (scene == 2) p->q_len = &none;
    if (scene == 5) p->mask = attn_mask_bool((const uint8_t *)&none, 1, 1, 1, 1);
    reshaped_run(&c);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < rows; i++) {
        for (int64_t x = 0; x < 7; x++) assert_true(oracle_get(&c.o, 0, h, i, x) == 0);
        if (c.p.support.data) assert_true(oracle_get(&c.p.support, 0, h, i, 0) == 0);
        if (c.p.sum.data) assert_true(oracle_get(&c.p.sum, 0, h, i, 0) == 0);
        if (p->lse.data) assert_true(oracle_get(&p->lse, 0, h, i, 0) == -(double)INFINITY);
        for (int64_t j = 0; p->map.data && j < c.k.len; j++)
          assert_true(oracle_get(&p->map, 0, h, i, j) == (n & 1 ? -(double)INFINITY : 0));
      }
    for (int64_t j = 0; c.p.selective.sums && j < c.k.len; j++)
      assert_true(c.p.selective.sums[j] == 0);
    for (int batch = 0; batch < 2; batch++) {
      reshaped_call d = c;
      no_rows(&d.q, batch), no_rows(&d.o, batch), no_rows(&d.p.gate, batch);
      no_rows(&d.p.sum, batch), no_rows(&d.p.support, batch);
      no_rows(&d.p.attention.lse, batch), no_rows(&d.p.attention.map, batch);
      if (batch) d.k.batch = d.v.batch = d.p.forget.log_f.batch = 0;
      if (batch) d.p.path.w.batch = d.p.path.beta.batch = 0;
      assert_string_equal(reshaped_run(&d).path, "no-op");
    }
    test_mem_release();
  }
}

/* Workers and a workspace of exactly the bytes asked for change no bit. */
void M2_workers(void **state) {
  (void)state;
  for (int n = 0; n < 10; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 5), 4, n < 5 ? 200 : 5,
                                     n < 5 ? 200 : 2100, 895),
                  d;
    test_rng rng = test_seed(896);
    attn_ctx ctx = test_ctx();
    reshaped_add(&c, HAS_SSMAX | HAS_FORGET | HAS_GATE, &rng);
    d = reshaped_again(&c);
    reshaped_run(&c);
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_reshaped_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    assert_true(bytes != ATTN_WORKSPACE_REJECTED);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes;
    test_malloc_calls = 0;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    test_assert_same(c.o, d.o, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_E_WORKSPACE);
    test_mem_release();
  }
}

static void refuse(const reshaped_call *c, attn_status want, const char *word) {
  attn_ctx ctx = test_ctx();
  test_fill_value(c->o, 7);
  attn_status status = attn_reshaped(c->o, c->q, c->k, c->v, &c->p, &ctx);
  if (status != want || !ctx.reason || !strstr(ctx.reason, word))
    fail_msg("%s: %s, %s", word, attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  for (int64_t h = 0; h < c->o.heads; h++)
    for (int64_t i = 0; i < c->o.len; i++)
      for (int64_t x = 0; x < c->o.dim; x++) assert_true(oracle_get(&c->o, 0, h, i, x) == 7);
  if (want != ATTN_E_VALUE || !strstr(word, "contents"))
    (void)attn_reshaped_workspace(c->o, c->q, c->k, c->v, &c->p, &ctx);
}

void M2_rejects(void **state) {
  (void)state;
  const reshaped_call good = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, 20, 30, 899);
  float number[2] = {1, NAN}, fine[2] = {1, 1};
  attn_tensor log_f = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 1), wide;
  attn_tensor row = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 1);
  attn_forget_sum sums[60];
  test_fill_value(log_f, -1);
#define REFUSE_(status, word, ...) \
  do {                             \
    reshaped_call c = good;        \
    __VA_ARGS__;                   \
    refuse(&c, status, word);      \
  } while (0)
  REFUSE_(ATTN_E_RANGE, "params.kind", c.p.kind = (attn_reshape_kind)5);
  REFUSE_(ATTN_E_RANGE, "params.kind", c.p.kind = (attn_reshape_kind)-1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_SIGMOID", c.p.by_row = 1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_SIGMOID", c.p.has_bias = 1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_SIGMOID", c.p.sum = row);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_STICK", c.p.include_self = 1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_STICK", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.remainder = 1);
  REFUSE_(ATTN_E_RANGE, "causal", c.p.kind = ATTN_RESHAPE_STICK);
  REFUSE_(ATTN_E_RANGE, "keep", c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1,
          c.p.attention.keep = 2);
  REFUSE_(ATTN_E_RANGE, "xl", c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1,
          c.p.attention.xl.table = row);
  attn_schedule schedule = {0};
  const attn_pattern parts[2] = {attn_pattern_band(4, 0), attn_pattern_strided(3)};
  const attn_pattern both = attn_pattern_union(parts, 2);
  assert_int_equal(attn_schedule_build(&schedule, &both, 2, 20, 30, NULL, NULL), ATTN_OK);
  REFUSE_(ATTN_E_RANGE, "schedule", c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1,
          c.p.attention.schedule = &schedule);
  REFUSE_(ATTN_E_SCHEDULE, "one phase", c.p.kind = ATTN_RESHAPE_ENTMAX,
          c.p.attention.schedule = &schedule);
  attn_schedule_free(&schedule);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_ENTMAX", c.p.alpha = 1.5f);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_ENTMAX", c.p.alphas = fine);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_ENTMAX", c.p.support = row);
  REFUSE_(ATTN_E_RANGE, "params.alphas", c.p.kind = ATTN_RESHAPE_ENTMAX, c.p.alphas = fine,
          c.p.alpha = 2);
  REFUSE_(ATTN_E_VALUE, "params.alphas", c.p.kind = ATTN_RESHAPE_ENTMAX, c.p.alphas = fine);
  REFUSE_(ATTN_E_VALUE, "params.alphas", c.p.kind = ATTN_RESHAPE_ENTMAX, c.p.alphas = number);
  REFUSE_(ATTN_E_ALIGN, "params.alphas", c.p.kind = ATTN_RESHAPE_ENTMAX,
          c.p.alphas = (float *)((char *)number + 1));
  number[1] = 2.0001f, number[0] = 2;
  REFUSE_(ATTN_E_VALUE, "params.alphas", c.p.kind = ATTN_RESHAPE_ENTMAX, c.p.alphas = number);
  number[1] = NAN, number[0] = 1;
  for (int n = 0; n < 4; n++) {
    const float bad[] = {1, 2.0001f, NAN, -1.5f};
    REFUSE_(ATTN_E_VALUE, "params.alpha", c.p.kind = ATTN_RESHAPE_ENTMAX, c.p.alpha = bad[n]);
  }
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_ENTMAX, c.p.attention.lse = row);
  REFUSE_(ATTN_E_VALUE, "params.bias", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.bias = NAN);
  REFUSE_(ATTN_E_RANGE, "has_bias", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.bias = 1);
  REFUSE_(ATTN_E_RANGE, "by_row", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.has_bias = c.p.by_row = 1);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.attention.lse = row);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_SOFTPICK, c.p.attention.sinks = fine);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_SOFTPICK, c.p.attention.softmax_one = 1);
  REFUSE_(ATTN_E_RANGE, "map_stage", c.p.attention.map = row,
          c.p.attention.map_stage = ATTN_MAP_RAW);
  REFUSE_(ATTN_E_NULL, "ssmax", c.p.ssmax.bias = fine);
  REFUSE_(ATTN_E_VALUE, "ssmax", c.p.ssmax.scale = number);
  REFUSE_(ATTN_E_VALUE, "ssmax", c.p.ssmax.scale = fine, c.p.ssmax.bias = number);
  REFUSE_(ATTN_E_ALIGN, "ssmax", c.p.ssmax.scale = (float *)((char *)number + 1));
  REFUSE_(ATTN_E_VALUE, "beta", c.p.temperature.on = 1, c.p.temperature.beta = INFINITY);
  REFUSE_(ATTN_E_VALUE, "beta", c.p.temperature.on = 1, c.p.temperature.shift = NAN);
  REFUSE_(ATTN_E_VALUE, "interval", c.p.temperature.on = 1, c.p.temperature.interval = -1);
  REFUSE_(ATTN_E_VALUE, "interval", c.p.temperature.on = 1, c.p.temperature.interval = ATTN_ZERO);
  REFUSE_(ATTN_E_RANGE, "xl", c.p.temperature.on = 1, c.p.attention.xl.table = row);
  REFUSE_(ATTN_E_NULL, "log_f", c.p.forget.sums = sums);
  REFUSE_(ATTN_E_RANGE, "known", c.p.forget.log_f = log_f, c.p.forget.known = 1,
          c.p.attention.causal = 1);
  REFUSE_(ATTN_E_RANGE, "causal", c.p.forget.log_f = log_f);
  REFUSE_(ATTN_E_SHAPE, "log_f", c.p.forget.log_f = row, c.p.attention.causal = 1);
  wide = log_f, wide.heads = 3, wide.stride_head = 0;
  REFUSE_(ATTN_E_HEADS, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  wide.heads = 0;
  REFUSE_(ATTN_E_HEADS, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  wide = log_f, wide.dtype = ATTN_I8;
  REFUSE_(ATTN_E_DTYPE, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  REFUSE_(ATTN_E_RANGE, "q_off", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.attention.has_q_off = 1, c.p.attention.q_off = 11);
  REFUSE_(ATTN_E_RANGE, "known", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = sums, c.p.forget.known = 31);
  REFUSE_(ATTN_E_RANGE, "known", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = sums, c.p.forget.known = -1);
  REFUSE_(ATTN_E_OVERLAP, "sums", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = (attn_forget_sum *)(void *)log_f.data);
  REFUSE_(ATTN_E_OVERLAP, "sums", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = (attn_forget_sum *)(void *)c.o.data);
  wide = log_f;
  for (int n = 0; n < 3; n++) {
    test_fill_value(wide, -1);
    oracle_set(&wide, 0, 1, 29, 0, n == 0 ? 1e-30 : n == 1 ? NAN : (double)INFINITY);
    REFUSE_(ATTN_E_VALUE, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  }
  REFUSE_(ATTN_E_SHAPE, "gate", c.p.gate = log_f);
  wide = row, wide.dim = 2;
  REFUSE_(ATTN_E_SHAPE, "gate", c.p.gate = wide);
  wide = row, wide.dtype = ATTN_I8;
  REFUSE_(ATTN_E_DTYPE, "gate", c.p.gate = wide);
  wide = good.o;
  REFUSE_(ATTN_E_OVERLAP, "o is", c.p.gate = wide);
  REFUSE_(ATTN_E_RANGE, "modify_weights", c.p.attention.modify_weights = test_modify_weights);
  REFUSE_(ATTN_E_VALUE, "compute", c.p.attention.compute = ATTN_COMPUTE_BF16);
  {
    int64_t offs[1] = {0};
    REFUSE_(ATTN_E_RANGE, "q_offs", c.p.attention.q_offs = offs);
  }
  {
    attn_ctx ctx = test_ctx();
    ctx.workspace = log_f.data, ctx.workspace_size = 16;
    reshaped_call c = good;
    c.p.forget.log_f = log_f, c.p.attention.causal = 1;
    assert_int_equal(attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx), ATTN_E_OVERLAP);
  }
#undef REFUSE_
}
