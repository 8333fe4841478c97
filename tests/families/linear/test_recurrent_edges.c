/* tests/families/linear/test_recurrent_edges.c owns attn_recurrent at its edges: no tokens, no keys, denominators that no float
 * divides, steps of nothing, states in place that a reset empties, and what the report says. */

#include "recurrent.h"

#include <float.h>

/* A key without numbers is refused but of HGRN2; of no tokens all arrays by token may be null, and the state passes. */
void M1_null_arrays(void **state) {
  (void)state;
  test_rng rng = test_seed(1930);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 2, 6, 5, 7);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor k = s->k;
    if (k.data) {
      k.data = NULL;
      test_fill_value(s->o, 3);
      assert_int_equal(attn_recurrent(s->o, s->q, k, s->v, &s->p, &ctx), ATTN_E_NULL);
      assert_non_null(ctx.reason);
      assert_true(oracle_get(&s->o, 0, 1, 5, 6) == 3);
    }
    attn_tensor *by_token[] = {&s->o,   &s->q,      &s->k,      &s->v,    &s->p.a,
                               &s->p.b, &s->p.beta, &s->p.gate, &s->p.dt, &s->p.decay};
    for (int n = 0; n < 10; n++)
      if (by_token[n]->data && by_token[n]->len == 6)
        by_token[n]->data = NULL, by_token[n]->len = 0;
    if (!s->p.decay.data) s->p.form = ATTN_RECURRENT_LOG;
    if (attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx))
      fail_msg("rule %d: %s", rule, ctx.reason);
    test_assert_same(s->p.final_state, s->p.initial_state, "the state");
  }
}

/* exp(-m) and q . n of mLSTM may lie below what floats can be divided by, or both be 0. */
void M1_tiny_denominator(void **state) {
  (void)state;
  for (int n = 0; n < 36; n++, test_mem_release()) {
    const int64_t len = n % 3 == 0 ? 1 : n % 3 == 1 ? 3 : 70;
    const double gate = n / 3 % 4 == 0 ? 80 : n / 3 % 4 == 1 ? 95 : n / 3 % 4 == 2 ? 103 : 200;
    const double query = n < 12 ? 0 : n < 24 ? 1e-30 : 1e-33;
    attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, 3), k = q, v = q, o = q, g = q,
                f = q;
    attn_tensor *t[] = {&q, &k, &v, &o, &g, &f};
    const double fill[] = {query, 1, 2, 0, gate, 0};
    for (int j = 0; j < 6; j++) {
      *t[j] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, j < 4 ? 3 : 1);
      test_fill_value(*t[j], fill[j]);
    }
    attn_recurrent_params p = {0};
    attn_ctx ctx = test_ctx();
    p.rule = ATTN_RECURRENT_MLSTM, p.decay = f, p.gate = g, p.eps = ATTN_ZERO, p.scale = 1;
    if (attn_recurrent(o, q, k, v, &p, &ctx)) fail_msg("%s", ctx.reason);
    /* equal keys and values: 2 where the sum is the denominator */
    for (int64_t i = 0; i < len; i++)
      for (int64_t c = 0; c < 3; c++) {
        const double y = oracle_get(&o, 0, 0, i, c), top = 3 * query * (double)(i + 1);
        const double den = fmax(top, exp(-gate));
        assert_true(fabs(y - 2 * top / den) <= 1e-5 * (2 * top / den));
      }
  }
}

/* A step of 0 leaves the state as it is, whatever the rate. */
void M1_step_of_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(1931);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_MAMBA2, 1, n ? 70 : 2, 4, 5);
    float *rate = test_mem(sizeof *rate);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_ctx ctx = test_ctx();
    *rate = 800, s->p.a_log = rate, s->p.dt_bias = s->p.skip = NULL, s->p.dt_min = s->p.dt_max = 0;
    test_fill_value(s->p.dt, -INFINITY);
    if (attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx)) fail_msg("%s", ctx.reason);
    test_assert_same(s->p.final_state, s->p.initial_state, "the state");
    s->p.dt_min = INFINITY;
    assert_int_equal(attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx), ATTN_E_VALUE);
  }
}

/* In place, a level whose tokens a reset took is 0, also where it held none when the call began. */
void M5_levels_emptied(void **state) {
  (void)state;
  enum { T = 90, L = 8, D = 3 };
  test_rng rng = test_seed(1932);
  for (int n = 0; n < 40; n++, test_mem_release()) {
    attn_tensor x[3], lambda, o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), w = o;
    attn_tensor s = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, L * D, D);
    uint8_t *reset = test_mem(T);
    int64_t position = 0;
    attn_recurrent_params p = {0};
    attn_ctx ctx = test_ctx();
    for (int j = 0; j < 3; j++) x[j] = drawn(ATTN_F32, TEST_BHTD, 1, 1, T, D, 1, &rng);
    lambda = drawn(ATTN_F32, TEST_BHTD, 1, 1, T, L, 1, &rng);
    w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    memset(reset, 0, T);
    reset[test_range(&rng, 0, T - 1)] = reset[test_range(&rng, 0, T - 1)] = 1;
    p.rule = n % 3 ? ATTN_RECURRENT_GLA : ATTN_RECURRENT_DELTA, p.state_transposed = n % 2,
    p.l2norm_qk = 1;
    p.lambda = lambda, p.reset = reset;
    if (attn_recurrent(w, x[0], x[1], x[2], &p, &ctx)) fail_msg("%s", ctx.reason);
    test_fill_value(s, 1000); /* not read at position 0 */
    p.initial_state = p.final_state = s, p.position = &position;
    for (int64_t some; position < T; position += some) {
      some = test_range(&rng, 1, T - position);
      p.lambda = test_rows(lambda, position, some), p.reset = reset + position;
      if (attn_recurrent(test_rows(o, position, some), test_rows(x[0], position, some),
                         test_rows(x[1], position, some), test_rows(x[2], position, some), &p,
                         &ctx))
        fail_msg("%s", ctx.reason);
    }
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < D; c++)
        assert_true(fabs(oracle_get(&o, 0, 0, i, c) - oracle_get(&w, 0, 0, i, c)) < 1e-4);
  }
}

/* Subnormal numbers are 0 while a state fades, and the caller's again behind the call. */
void M1_caller_modes(void **state) {
  (void)state;
  test_rng rng = test_seed(1934);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_GLA, 3, n % 2 ? 70 : 3, 4, 5);
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_ctx ctx = test_ctx();
    volatile float least = FLT_MIN, half = 0.5f;
    if (n > 1)
      ctx.workers = 3, ctx.parallel_for = n == 2 ? test_parallel_backward : test_parallel_threads;
    if (attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx)) fail_msg("%s", ctx.reason);
    assert_true(least * half != 0.0f);
    test_fill_value(s->v, (double)FLT_MIN / 4);
    if (attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx)) fail_msg("%s", ctx.reason);
#if defined(__x86_64__) || defined(__aarch64__)
    for (int64_t i = 0; i < 3 * x.len; i++)
      assert_true(oracle_get(&s->o, 0, i / x.len, i % x.len, 4) == 0);
#endif
    assert_true(least * half != 0.0f);
  }
}

/* The report says which way the sequences went, not how long the call was. */
void M1_report(void **state) {
  (void)state;
  test_rng rng = test_seed(1933);
  static const int32_t ends[4] = {0, 3, 6, 10};
  for (int n = 0; n < 4; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_GLA, 1, n == 1 ? 3 : 10, 4, 5);
    int32_t *len = test_mem(sizeof *len);
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_ctx ctx = test_ctx();
    *len = 4;
    if (n == 0) s->p.cu_seqlens = ends, s->p.sequences = 3;
    if (n == 1) s->p.lambda = drawn(ATTN_F32, TEST_BHTD, 1, 1, 3, 3, 1, &rng);
    if (n == 2) s->p.len = len;
    if (attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx)) fail_msg("%s", ctx.reason);
    assert_string_equal(ctx.report.path,
                        n % 2 ? "decaying state, chunks" : "decaying state, tokens");
  }
}
