/* tests/calls/test_path.c owns M2's transitions between queries and keys, and the keys that attn_path_turn turns. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reshaped.h"

static reshaped_call path_call(attn_reshape_kind kind, int64_t heads, int64_t tq, int64_t tk,
                               uint64_t seed) {
  test_rng rng = test_seed(seed + 77);
  reshaped_call c = reshaped_plain(kind, heads, tq, tk, seed);
  c.p.attention.causal = 1;
  c.p.path = reshaped_path(&c, &rng);
  return c;
}

/* Lengths around the marks of halves, blocks and stretches, of all and of the last rows; values of mean 0 and of mean 1. */
void M2_path_recurrence(void **state) {
  (void)state;
  static const int tk[] = {1, 2, 63, 64, 65, 127, 128, 129, 192, 200, 257, 300, 1030, 2048};
  for (int n = 0; n < 14; n++) {
    const int64_t rows = tk[n] > 300 ? 9 : tk[n] > 128 ? 70 : tk[n];
    reshaped_call c = path_call((attn_reshape_kind)(n == 12 ? 3
                                                    : n > 8 ? 0
                                                            : n % 5),
                                1, rows, tk[n], 1500 + (uint64_t)n);
    for (int64_t e = 0; n % 2 && e < tk[n] * 7; e++) ((float *)c.v.data)[e] += 1;
    reshaped_check(&c, "path");
    test_mem_release();
  }
}

/* The scores themselves and their LSE, by the plain recurrence: the query past one token after the other. */
void M2_path_scores(void **state) {
  (void)state;
  enum { T = 333, D = 12 };
  reshaped_call c = path_call(ATTN_RESHAPE_SOFTMAX, 2, T, T, 1515);
  attn_sdpa_params *s = &c.p.attention;
  s->map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, T), s->map_stage = ATTN_MAP_SCORES;
  s->lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 1), s->scale = 0.4f;
  reshaped_run(&c);
  for (int h = 0; h < 2; h++)
    for (int i = 0; i < T; i++) {
      double x[D], sum = 0;
      for (int e = 0; e < D; e++) x[e] = oracle_get(&c.q, 0, h, i, e);
      for (int j = T - 1; j >= 0; j--) {
        double dot = 0, z = 0;
        for (int e = 0; e < D; e++)
          dot += x[e] * oracle_get(&c.k, 0, h, j, e),
              z += x[e] * oracle_get(&c.p.path.w, 0, h, j, e);
        dot *= (double)0.4f;
        if (j > i) assert_true(oracle_get(&s->map, 0, h, i, j) == -(double)INFINITY);
        if (j > i) continue;
        reshaped_judge(oracle_get(&s->map, 0, h, i, j), dot, 4e-6, "score", 0, h, i, j);
        sum += exp(dot), z *= oracle_get(&c.p.path.beta, 0, h, j, 0);
        for (int e = 0; e < D; e++) x[e] -= z * oracle_get(&c.p.path.w, 0, h, j, e);
      }
      reshaped_judge(oracle_get(&s->lse, 0, h, i, 0), log(sum), 3e-6, "LSE", 0, h, i, 0);
    }
  test_mem_release();
}

/* Wide heads, whose product of a block is made of several chunks. */
void M2_path_wide(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    test_rng rng = test_seed(1520);
    test_spec spec = test_plain(2, 150, n ? 400 : 260, n ? 70 : 128, 5);
    spec.k_heads = spec.v_heads = 1, spec.k_type = n ? ATTN_BF16 : ATTN_F16;
    test_call t = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&t);
    c.p.attention.causal = 1, c.p.path = reshaped_path(&c, &rng);
    if (n) test_left(&c.p.attention, 100);
    reshaped_check(&c, "wide heads");
    test_mem_release();
  }
}

/* beta = 0, and w = 0, are attn_sdpa. */
void M2_path_of_nothing(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    reshaped_call c = path_call((attn_reshape_kind)(n / 2), 2, 300, 300, 1530), d;
    attn_path none;
    test_fill_value(n % 2 ? c.p.path.w : c.p.path.beta, 0);
    d = reshaped_again(&c);
    memset(&none, 0, sizeof none);
    d.p.path = none;
    reshaped_run(&c), reshaped_run(&d);
    test_assert_near(c.o, d.o, 1e-6, "no transitions");
    test_mem_release();
  }
}

/* One reflection for all tokens is undone by the next: keys at even distances are as given, the others reflected. */
void M2_path_reflections(void **state) {
  (void)state;
  enum { T = 2048, D = 3 };
  float *q = test_mem(T * D * 4), *k = test_mem(T * D * 4), *o = test_mem(8 * 4);
  float *v = test_mem(T * 4), w[D] = {0.6f, 0, 0.8f}, beta[1] = {2};
  test_rng rng = test_seed(1540);
  for (int i = 0; i < T * D; i++) q[i] = (float)test_normal(&rng), k[i] = (float)test_normal(&rng);
  for (int i = 0; i < T; i++) v[i] = 1 + (float)test_normal(&rng);
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 8, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, 8, D),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, D),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.attention.causal = 1, c.p.attention.scale = 0.3f;
  c.p.path.w = attn_bhtd(w, ATTN_F32, 1, 1, T, D), c.p.path.w.stride_len = 0;
  c.p.path.beta = attn_bhtd(beta, ATTN_F32, 1, 1, T, 1), c.p.path.beta.stride_len = 0;
  reshaped_run(&c);
  for (int i = 0; i < 8; i++) {
    double sum = 0, all = 0;
    for (int j = 0; j <= T - 8 + i; j++) {
      double dot = 0, qw = 0, kw = 0;
      for (int x = 0; x < D; x++) {
        dot += (double)q[i * D + x] * k[j * D + x];
        qw += (double)q[i * D + x] * w[x], kw += (double)k[j * D + x] * w[x];
      }
      double p = exp((double)0.3f * ((T - 8 + i - j) % 2 ? dot - 2 * qw * kw : dot));
      sum += p, all += p * (double)v[j];
    }
    reshaped_judge((double)o[i], all / sum, 4e-6, "reflections", 0, 0, i, 0);
  }
  test_mem_release();
}

/* Workers, workspaces, grouped heads, token by token, parts of the rows; no later token reaches a row, whatever is there. */
void M2_path_promises(void **state) {
  (void)state;
  enum { T = 300 };
  for (int n = 0; n < 3; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n ? n + 1 : 0), 4, T, T,
                                     1550 + (uint64_t)n),
                  d, e;
    test_rng rng = test_seed(1551);
    attn_ctx ctx = test_ctx();
    c.k.heads = c.v.heads = 2, c.k.stride_batch /= 2, c.v.stride_batch /= 2;
    c.p.attention.causal = 1, c.p.attention.one_order = 1, c.p.path = reshaped_path(&c, &rng);
    if (n == 1) reshaped_add(&c, HAS_FORGET | HAS_TEMPERATURE | HAS_GATE, &rng);
    if (n == 1) c.p.gate.data = NULL;
    d = reshaped_again(&c), e = reshaped_again(&c);
    reshaped_check(&c, "grouped heads");
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_reshaped_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    assert_true(bytes != ATTN_WORKSPACE_REJECTED);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes, test_malloc_calls = 0;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    test_assert_same(c.o, d.o, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_E_WORKSPACE);
    static const int32_t at[] = {0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 190, 255, 256, 299};
    for (int i = 0; i < 14; i++) {
      reshaped_call s = e;
      const int32_t t = at[i], length = t + 1, rows = t > 40 && i % 3 == 0 ? 37 : 1;
      s.q = test_rows(c.q, length - rows, rows), s.o = test_rows(e.o, length - rows, rows);
      s.p.sum.data = s.p.support.data = NULL;
      s.p.attention.kv_len = &length;
      s.p.attention.has_q_off = 1, s.p.attention.q_off = length - rows;
      reshaped_run(&s);
      test_assert_same(s.o, test_rows(c.o, length - rows, rows), "rows by themselves");
    }
    for (int64_t j = 200; j < T; j++)
      for (int64_t h = 0; h < 2; h++) {
        const double x = j % 3 == 0 ? NAN : j % 3 == 1 ? INFINITY : 1e30;
        test_fill_row(c.k, 0, h, j, x), test_fill_row(c.v, 0, h, j, x);
        test_fill_row(c.p.path.w, 0, h, j, x), test_fill_row(c.p.path.beta, 0, h, j, 1.5);
      }
    reshaped_run(&d);
    test_assert_same(test_rows(d.o, 0, 200), test_rows(c.o, 0, 200), "later tokens");
    test_mem_release();
  }
}

/* A token whose w is NaN, infinite or too long: rows from it on that see a key before it are NaN; no others, and none of
 * them elsewhere. */
void M2_path_broken(void **state) {
  (void)state;
  static const int where[] = {0, 5, 63, 64, 100, 127, 128, 140, 191};
  for (int n = 0; n < 9; n++) {
    enum { T = 300 };
    const int at = where[n];
    reshaped_call c = path_call(ATTN_RESHAPE_SOFTMAX, 1, T, T, 1560), d, e;
    for (int x = 0; x < 12; x++) oracle_set(&c.p.path.w, 0, 0, at, x, x == 3 ? 1.2 : 0);
    e = reshaped_again(&c);
    reshaped_check(&e, "1.2 is no unit vector, but not too long");
    oracle_set(&c.p.path.w, 0, 0, at, 3, n % 3 == 0 ? NAN : n % 3 == 1 ? (double)INFINITY : 1.3);
    d = reshaped_again(&c);
    test_left(&d.p.attention, 20);
    reshaped_run(&c), reshaped_run(&d);
    test_assert_same(test_rows(c.o, 0, at), test_rows(e.o, 0, at), "rows before it");
    test_left(&e.p.attention, 20);
    reshaped_run(&e);
    for (int64_t i = 0; i < T; i++)
      assert_int_equal(isnan(oracle_get(&c.o, 0, 0, i, 2)), at > 0 && i >= at);
    for (int64_t i = 0; i < T; i++) {
      const int broken = at > 0 && i >= at && i - 20 < at;
      const double got = oracle_get(&d.o, 0, 0, i, 2), want = oracle_get(&e.o, 0, 0, i, 2);
      if (broken ? !isnan(got) : fabs(got - want) > 2e-6)
        fail_msg("token %d, row %d: %g, %g without it", at, (int)i, got, want);
    }
    test_mem_release();
  }
}

/* A masked key is no key, but its token's transition counts; nothing behind kv_len is read. */
void M2_path_masked(void **state) {
  (void)state;
  reshaped_call c = path_call(ATTN_RESHAPE_SOFTMAX, 2, 200, 300, 1570), d;
  uint8_t *mask = test_mem(300);
  const int32_t length = 270;
  for (int j = 0; j < 300; j++) mask[j] = j % 3 != 1 && (j < 128 || j >= 256);
  c.p.attention.mask = attn_mask_bool(mask, 1, 1, 1, 300), c.p.attention.kv_len = &length;
  d = reshaped_again(&c);
  reshaped_check(&c, "masked keys");
  for (int64_t j = 0; j < 300; j++)
    for (int h = 0; h < 2; h++) {
      if (!mask[j] || j >= length)
        test_fill_row(c.k, 0, h, j, NAN), test_fill_row(c.v, 0, h, j, INFINITY);
      if (j >= length)
        test_fill_row(c.p.path.w, 0, h, j, NAN), test_fill_row(c.p.path.beta, 0, h, j, NAN);
    }
  reshaped_run(&d);
  test_assert_same(c.o, d.o, "NaN in forbidden keys, and behind the length");
  test_mem_release();
}

/* Keys of 8 bits are the numbers that they stand for. */
void M2_path_codes(void **state) {
  (void)state;
  reshaped_call c = path_call(ATTN_RESHAPE_SOFTMAX, 2, 100, 200, 1580), d;
  signed char *code = test_mem(2 * 200 * 12);
  float *scale = test_mem(2 * 200 * sizeof *scale);
  test_rng rng = test_seed(1581);
  for (int e = 0; e < 2 * 200 * 12; e++) code[e] = (signed char)test_range(&rng, -120, 120);
  for (int e = 0; e < 2 * 200; e++) scale[e] = 1.0f / (float)(1 << test_range(&rng, 5, 7));
  for (int e = 0; e < 2 * 200 * 12; e++)
    oracle_set(&c.k, 0, e / 2400, e / 12 % 200, e % 12, (double)code[e] * (double)scale[e / 12]);
  d = reshaped_again(&c);
  d.k = attn_bhtd(code, ATTN_I8, 1, 2, 200, 12);
  d.p.attention.k_scales.scale = scale;
  d.p.attention.k_scales.stride_batch = 400, d.p.attention.k_scales.stride_head = 200;
  d.p.attention.k_scales.stride_len = 1;
  reshaped_check(&c, "numbers"), reshaped_run(&d);
  test_assert_same(c.o, d.o, "codes");
  test_mem_release();
}

static attn_status turn(attn_tensor k, attn_path p, attn_path_turn_params *params, attn_ctx *ctx) {
  return attn_path_turn(k, p.w, p.beta, params, ctx);
}
static attn_path tokens(attn_path p, int64_t from, int64_t n) {
  p.w = test_rows(p.w, from, n), p.beta = test_rows(p.beta, from, n);
  return p;
}

/* A prompt's keys turned at once, then token by token with plain attention over them: the rows of one call. Token by token the
 * same bits as at once; reflections leave lengths alone. */
void M2_path_decode(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    enum { T = 180, PROMPT = 70 };
    reshaped_call c = path_call(ATTN_RESHAPE_SOFTMAX, 4, T, T, 1590 + (uint64_t)n);
    test_rng rng = test_seed(1591);
    c.k.heads = c.v.heads = 2, c.k.stride_batch /= 2, c.v.stride_batch /= 2;
    c.p.path = reshaped_path(&c, &rng);
    if (n == 2) { /* lengths of w to f32 */
      attn_tensor w = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 12);
      test_fill_value(c.p.path.beta, 2), test_copy(w, c.p.path.w);
      for (int64_t e = 0; e < 2 * T; e++) {
        double sum = 0;
        for (int64_t x = 0; x < 12; x++) sum += pow(oracle_get(&w, 0, e / T, e % T, x), 2);
        for (int64_t x = 0; x < 12; x++)
          oracle_set(&w, 0, e / T, e % T, x, oracle_get(&w, 0, e / T, e % T, x) / sqrt(sum));
      }
      c.p.path.w = w;
    }
    attn_tensor o = reshaped_again(&c).o;
    attn_tensor k = test_tensor(ATTN_F32, n ? TEST_PADDED : TEST_BTHD, 1, 2, T, 12);
    attn_tensor all = test_tensor(ATTN_F32, TEST_NEGATIVE, 1, 2, T, 12);
    attn_ctx ctx = test_ctx();
    int32_t length = PROMPT;
    attn_path_turn_params prompt = {&length, 1}, step = {&length, 0};
    reshaped_check(&c, "one call");
    test_copy(k, c.k), test_copy(all, c.k);
    assert_int_equal(turn(k, tokens(c.p.path, 0, PROMPT), &prompt, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    for (int64_t t = PROMPT; t < T; t++) {
      length = (int32_t)t;
      assert_int_equal(turn(k, tokens(c.p.path, t, 1), &step, NULL), ATTN_OK);
      attn_sdpa_params p = {0};
      const int32_t keys = length + 1;
      p.kv_len = &keys, p.causal = 0;
      attn_ctx own = test_ctx();
      assert_int_equal(attn_sdpa(test_rows(o, t, 1), test_rows(c.q, t, 1), k, c.v, &p, &own),
                       ATTN_OK);
    }
    test_assert_near(test_rows(o, PROMPT, T - PROMPT), test_rows(c.o, PROMPT, T - PROMPT), 5e-6,
                     "turned keys");
    prompt.kv_len = NULL;
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_path_turn_workspace(all, c.p.path.w, c.p.path.beta, &prompt, &ctx);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes, test_malloc_calls = 0;
    assert_int_equal(turn(all, c.p.path, &prompt, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    if (test_isa == attn_isa_best()) test_assert_same(k, all, "at once");
    test_assert_near(k, all, 1e-5, "at once");
    for (int64_t t = 0; n == 2 && t < T; t++) {
      double from = 0, to = 0;
      for (int64_t x = 0; x < 12; x++)
        from += pow(oracle_get(&c.k, 0, 1, t, x), 2), to += pow(oracle_get(&all, 0, 1, t, x), 2);
      reshaped_judge(sqrt(to), sqrt(from), 2e-5 * sqrt(from), "lengths", 0, 1, t, 0);
    }
    test_mem_release();
  }
}

/* Lengths, storage of 16 bits, w that breaks; what is not a key stays as it is. */
void M2_path_turn(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(1600 + (uint64_t)n);
    test_spec spec = test_plain(2, 4, 150, 19, 3);
    spec.batch = 3, spec.k_type = (attn_dtype)(n % 3), spec.k_layout = (test_layout)(n % 4);
    test_call t = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&t);
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 3, 2, 150, 19);
    const attn_path p = reshaped_path(&c, &rng);
    const int32_t lengths[3] = {150, 70, 3};
    attn_path_turn_params params = {lengths, n / 3};
    attn_ctx ctx = test_ctx();
    const int64_t tokens_n = 3;
    test_copy(k, t.k);
    if (n == 4) oracle_set(&p.w, 1, 0, 1, 4, NAN);
    assert_int_equal(turn(t.k, tokens(p, 0, tokens_n), &params, &ctx), ATTN_OK);
    for (int64_t b = 0; b < 3; b++)
      for (int64_t h = 0; h < 2; h++)
        for (int64_t j = 0; j < 150; j++) {
          double x[19], size = 0;
          for (int e = 0; e < 19; e++) x[e] = oracle_get(&k, b, h, j, e), size += fabs(x[e]);
          for (int64_t i = 0; i < tokens_n; i++) {
            const int64_t at = lengths[b] - (n / 3 ? tokens_n - i : 0);
            double z = 0;
            if (j >= at) continue;
            for (int e = 0; e < 19; e++) z += x[e] * oracle_get(&p.w, b, h, i, e);
            for (int e = 0; e < 19; e++)
              x[e] -= z * oracle_get(&p.beta, b, h, i, 0) * oracle_get(&p.w, b, h, i, e);
          }
          const double off = ldexp(1, n % 3 == 0 ? -20 : n % 3 == 1 ? -10 : -7);
          for (int e = 0; e < 19; e++)
            reshaped_judge(oracle_get(&t.k, b, h, j, e), x[e],
                           (j >= lengths[b] - n / 3) ? 0 : off * (0.1 * size + fabs(x[e])),
                           "turned", b, h, j, e);
        }
    test_mem_release();
  }
}

void M2_path_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 20; n++) {
    reshaped_call c = path_call(ATTN_RESHAPE_SOFTMAX, 2, 20, 30, 1610);
    attn_ctx ctx = test_ctx();
    attn_schedule schedule = {0};
    const attn_pattern full = attn_pattern_full();
    attn_status want = ATTN_E_RANGE;
    attn_tensor *w = &c.p.path.w, *beta = &c.p.path.beta;
    float z[2] = {9, 9}, ones[60];
    *w = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 12);
    for (int i = 0; i < 60; i++) ones[i] = 1;
    test_fill_value(*w, 0.25), *beta = attn_bhtd(ones, ATTN_F32, 1, 2, 30, 1);
    if (n == 0) c.p.attention.causal = 0;
    if (n == 1) c.p.selective.on = 1;
    if (n == 2) c.p.attention.keep = 2;
    if (n == 3) c.p.attention.span.z = z;
    if (n == 4) c.p.attention.xl.table = *w;
    if (n == 5) c.p.attention.has_q_off = 1, c.p.attention.q_off = 11;
    if (n == 6) want = ATTN_E_NULL, w->data = NULL;
    if (n == 7) want = ATTN_E_NULL, beta->data = NULL;
    if (n == 8) want = ATTN_E_SHAPE, w->len = 29;
    if (n == 9) want = ATTN_E_SHAPE, w->dim = 11;
    if (n == 10) want = ATTN_E_SHAPE, w->heads = 1;
    if (n == 11) want = ATTN_E_SHAPE, beta->len = 29;
    if (n == 12) want = ATTN_E_SHAPE, beta->dim = 2, beta->len = 15;
    if (n == 13) want = ATTN_E_DTYPE, w->dtype = ATTN_I8;
    if (n == 14) want = ATTN_E_ALIGN, w->data = (char *)w->data + 1, w->stride_len = 0;
    if (n == 15) want = ATTN_E_VALUE, ones[59] = 2.0001f;
    if (n == 16) want = ATTN_E_VALUE, ones[40] = -1e-30f;
    if (n == 17) want = ATTN_E_VALUE, ones[0] = NAN;
    if (n == 18) want = ATTN_E_OVERLAP, w->data = c.o.data, w->stride_len = w->stride_head = 0;
    if (n == 19) {
      assert_int_equal(attn_schedule_build(&schedule, &full, 2, 20, 30, NULL, NULL), ATTN_OK);
      c.p.attention.schedule = &schedule;
    }
    test_fill_value(c.o, 7);
    attn_status got = attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx);
    if (got != want || !ctx.reason || (n != 18 && !strstr(ctx.reason, "path")))
      fail_msg("case %d: %s, %s", n, attn_status_string(got), ctx.reason ? ctx.reason : "(null)");
    for (int e = 0; e < 2 * 20 * 7; e++) assert_true(((float *)c.o.data)[e] == 7);
    attn_schedule_free(&schedule);
    if (n < 15 || n > 17)
      assert_true(attn_reshaped_workspace(c.o, c.q, c.k, c.v, &c.p, &ctx) ==
                  ATTN_WORKSPACE_REJECTED);
    test_mem_release();
  }
}

void M2_path_turn_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 20; n++) {
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 30, 12), from;
    attn_tensor w = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 5, 12);
    float beta_at[20];
    attn_tensor beta = attn_bhtd(beta_at, ATTN_F32, 2, 2, 5, 1);
    int32_t lengths[2] = {30, 20};
    attn_path_turn_params p = {lengths, 1};
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_SHAPE;
    for (int i = 0; i < 20; i++) beta_at[i] = 1;
    test_fill_value(k, 3), test_fill_value(w, 0.25);
    from = k;
    if (n == 0) w.batch = 1;
    if (n == 1) w.heads = 1;
    if (n == 2) w.dim = 11;
    if (n == 3) beta.len = 4;
    if (n == 4) beta.heads = 1;
    if (n == 5) beta.dim = 2;
    if (n == 6) want = ATTN_E_DTYPE, k.dtype = ATTN_I8;
    if (n == 7) want = ATTN_E_STRIDE, k.stride_len = 0;
    if (n == 8) want = ATTN_E_RANGE, lengths[1] = 31;
    if (n == 9) want = ATTN_E_RANGE, lengths[0] = -1;
    if (n == 10) want = ATTN_E_RANGE, lengths[1] = 4;
    if (n == 11) want = ATTN_E_VALUE, beta_at[19] = 2.01f;
    if (n == 12) want = ATTN_E_VALUE, beta_at[3] = NAN;
    if (n == 13) want = ATTN_E_VALUE, beta_at[3] = -0.1f;
    if (n == 14) want = ATTN_E_OVERLAP, w.data = k.data;
    if (n == 15) want = ATTN_E_OVERLAP, beta.data = k.data;
    if (n == 16) want = ATTN_E_OVERLAP, p.kv_len = k.data;
    if (n == 17) want = ATTN_E_NULL, memset(&w, 0, sizeof w);
    if (n == 18) want = ATTN_E_NULL, k.data = NULL;
    if (n == 19) want = ATTN_E_ALIGN, p.kv_len = (int32_t *)(void *)((char *)lengths + 1);
    attn_status got = attn_path_turn(k, w, beta, &p, &ctx);
    if (got != want || !ctx.reason)
      fail_msg("case %d: %s, %s", n, attn_status_string(got), ctx.reason ? ctx.reason : "(null)");
    for (int64_t i = 0; i < 30; i++) assert_true(oracle_get(&from, 1, 1, i, 7) == 3);
    const int rule = (n < 8 || n > 13);
    if (rule)
      assert_true(attn_path_turn_workspace(k, w, beta, &p, &ctx) == ATTN_WORKSPACE_REJECTED);
    test_mem_release();
  }
  /* no key and no token are nothing to do */
  attn_tensor none = attn_bhtd(NULL, ATTN_F32, 2, 2, 0, 12);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 30, 12);
  attn_tensor w = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 1, 12);
  attn_tensor beta = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 1, 1);
  attn_tensor no_beta = attn_bhtd(NULL, ATTN_F32, 2, 2, 0, 1);
  test_fill_value(k, 3), test_fill_value(w, 0), test_fill_value(beta, 1);
  assert_int_equal(attn_path_turn(none, w, beta, NULL, NULL), ATTN_OK);
  assert_int_equal(attn_path_turn(k, none, no_beta, NULL, NULL), ATTN_OK);
  assert_true(oracle_get(&k, 1, 1, 4, 7) == 3);
  test_mem_release();
}
