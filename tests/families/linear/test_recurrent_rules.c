/* tests/families/linear/test_recurrent_rules.c owns what one rule of attn_recurrent is to another, and what rules do with
 * numbers at their ends: nothing written, nothing left, rates beyond 1, defaults. */

#include "recurrent.h"

#include <stdio.h>

/* Within tolerance of what the row's largest number is. */
static void near_rows(attn_tensor got, attn_tensor want, double tolerance, const char *what) {
  for (int64_t n = 0; n < want.batch * want.heads * want.len; n++) {
    const int64_t b = n / want.len / want.heads, h = n / want.len % want.heads, i = n % want.len;
    double most = 1;
    for (int64_t c = 0; c < want.dim; c++) most = fmax(most, fabs(oracle_get(&want, b, h, i, c)));
    for (int64_t c = 0; c < want.dim; c++)
      value_check(oracle_get(&got, b, h, i, c), oracle_get(&want, b, h, i, c), tolerance * most,
                  ATTN_F32, what, b, h, i, c);
  }
}

static void finite(attn_tensor t) {
  for (int64_t n = 0; n < t.batch * t.heads * t.len; n++)
    for (int64_t c = 0; c < t.dim; c++)
      assert_true(isfinite(oracle_get(&t, n / t.len / t.heads, n / t.len % t.heads, n % t.len, c)));
}

static void run(attn_tensor o, const recurrent_scene *s, const attn_recurrent_params *p) {
  attn_ctx ctx = test_ctx();
  if (attn_recurrent(o, s->q, s->k, s->v, p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
}

/* Every rule but RWKV6, which reads too early, and MLSTM, as DPLR with its w, a, b, keys and values. */
void M1_dplr_of_rules(void **state) {
  (void)state;
  enum { H = 2, DK = 12, DV = 18 };
  test_rng rng = test_seed(1930);
  for (int n = 0; n < 3 * ATTN_RECURRENT_RWKV6 + 3; n++, test_mem_release()) {
    const attn_recurrent_rule rule =
        n / 3 == ATTN_RECURRENT_RWKV6 ? ATTN_RECURRENT_RWKV7 : (attn_recurrent_rule)(n / 3);
    const int64_t t = n % 3 == 0 ? 3 : n % 3 == 1 ? 70 : 130;
    recurrent_shape x = recurrent_plain(rule, H, t, DK, DV);
    x.keep = 1, x.slow = 0.3;
    recurrent_scene *s = recurrent_build(&x, &rng);
    promise_run(&s->does);
    recurrent_scene as = *s;
    attn_recurrent_params *p = &as.p;
    memset(p, 0, sizeof *p);
    p->initial_state = s->p.initial_state, p->decay = s->p.decay;
    p->scale = rule == ATTN_RECURRENT_LIGHTNING || rule == ATTN_RECURRENT_MAMBA2 ||
                       rule == ATTN_RECURRENT_RWKV7
                   ? 1.0f
                   : 0;
    const int delta = rule == ATTN_RECURRENT_DELTA || rule == ATTN_RECURRENT_GATED_DELTA ||
                      rule == ATTN_RECURRENT_KDA;
    attn_tensor a = test_tensor(ATTN_F32, TEST_BHTD, 1, H, t, DK),
                b = test_tensor(ATTN_F32, TEST_BHTD, 1, H, t, DK),
                k = test_tensor(ATTN_F32, TEST_BHTD, 1, H, t, DK),
                v = test_tensor(ATTN_F32, TEST_BHTD, 1, H, t, DV),
                w = test_tensor(ATTN_F32, TEST_BHTD, 1, H, t, 1);
    if (delta || rule == ATTN_RECURRENT_RWKV7) p->a = a, p->b = b;
    if (rule == ATTN_RECURRENT_DPLR) p->a = s->p.a, p->b = s->p.b;
    if (rule == ATTN_RECURRENT_RETENTION || rule == ATTN_RECURRENT_LIGHTNING ||
        rule == ATTN_RECURRENT_MAMBA2)
      p->decay = w;
    if (rule == ATTN_RECURRENT_HGRN2) as.k = k;
    if (delta || rule == ATTN_RECURRENT_MAMBA2) as.v = v;
    for (int64_t h = 0; h < H; h++)
      for (int64_t i = 0; i < t; i++) {
        const double beta = delta ? oracle_get(&s->p.beta, 0, h, i, 0) : 1;
        double by = beta, log_w = 0;
        if (rule == ATTN_RECURRENT_RETENTION) log_w = log1p(-pow(2, -5 - (double)h));
        if (rule == ATTN_RECURRENT_LIGHTNING)
          log_w = -pow(2, -4 * (double)(h + 1)) *
                  (1 - (double)s->p.layer / ((double)s->p.layers - 1 + 1e-5) + 1e-5);
        if (rule == ATTN_RECURRENT_MAMBA2) {
          by = log1p(exp(oracle_get(&s->p.dt, 0, h, i, 0) + (double)s->p.dt_bias[h]));
          by = fmax(by, (double)s->p.dt_min);
          if (s->p.dt_max > 0) by = fmin(by, (double)s->p.dt_max);
          log_w = -exp((double)s->p.a_log[h]) * by;
        }
        oracle_set(&w, 0, h, i, 0, log_w);
        for (int64_t c = 0; c < DV; c++)
          oracle_set(&v, 0, h, i, c, by * oracle_get(&s->v, 0, h, i, c));
        for (int64_t c = 0; c < DK; c++) {
          const double g =
              s->p.decay.data ? oracle_get(&s->p.decay, 0, h, i, s->p.decay.dim > 1 ? c : 0) : 0;
          const double key = s->k.data ? oracle_get(&s->k, 0, h, i, c) : -expm1(g);
          double of[2] = {key, -beta * key};
          if (rule == ATTN_RECURRENT_GATED_DELTA) of[1] *= exp(g);
          if (rule == ATTN_RECURRENT_KDA) of[0] *= exp(g);
          if (rule == ATTN_RECURRENT_RWKV7) {
            const double r = oracle_get(&s->p.a, 0, h, i, c);
            of[0] = -r, of[1] = r * oracle_get(&s->p.b, 0, h, i, c);
          }
          oracle_set(&k, 0, h, i, c, key);
          oracle_set(&a, 0, h, i, c, of[0]), oracle_set(&b, 0, h, i, c, of[1]);
        }
      }
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, H, t, DV);
    p->final_state = test_tensor(ATTN_F32, TEST_BHTD, 1, H, DK, DV);
    run(o, &as, p);
    for (int64_t h = 0; h < H && s->p.skip; h++)
      for (int64_t i = 0; i < t; i++)
        for (int64_t c = 0; c < DV; c++)
          oracle_set(
              &s->o, 0, h, i, c,
              oracle_get(&s->o, 0, h, i, c) - (double)s->p.skip[h] * oracle_get(&s->v, 0, h, i, c));
    char what[40];
    sprintf(what, "DPLR of rule %d", (int)rule);
    const double fine = rule == ATTN_RECURRENT_RWKV7 ? 1e-4 : 2e-5; /* that one may grow */
    near_rows(o, s->o, fine, what);
    near_rows(p->final_state, s->p.final_state, fine, what);
  }
}

/* With eps = 0 and nothing in S and n, where m begins is where it is counted from, and nothing else. */
void M1_mlstm_start(void **state) {
  (void)state;
  static const double starts[] = {-20, 0, 20, -(double)INFINITY};
  test_rng rng = test_seed(1931);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_MLSTM, 2, n % 2 ? 130 : 4, 9, 20);
    x.keep = 1, x.slow = 0.1, x.form = (attn_recurrent_form)(n / 2);
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.eps = ATTN_ZERO;
    const attn_tensor first = s->p.initial_state, first_n = s->p.initial_n,
                      first_m = s->p.initial_m;
    s->p.initial_state = s->p.initial_n = s->p.initial_m = absent();
    const recurrent_truth want = recurrent_oracle(s);
    recurrent_check(s, 4e-6, "no state");
    s->p.initial_state = first, s->p.initial_n = first_n, s->p.initial_m = first_m;
    test_fill_value(first, 0), test_fill_value(first_n, 0);
    for (int j = 0; j < 4; j++)
      for (int64_t step = 1; step <= 150; step += 74) {
        test_fill_value(first_m, starts[j]);
        recurrent_check_steps(s, step, 1e-5, "a start of m");
        for (int64_t h = 0; h < 2; h++)
          for (int64_t i = 0; i < x.len; i++) {
            double row = 0;
            for (int64_t c = 0; c < 20; c++) row = fmax(row, cube_at(&want.size, 0, h, i)[c]);
            for (int64_t c = 0; c < 20; c++)
              value_check(oracle_get(&s->o, 0, h, i, c), cube_at(&want.o, 0, h, i)[c], 1e-5 * row,
                          ATTN_F32, "from any m", j, h, i, c);
          }
      }
  }
}

/* m is -inf where nothing is left and nothing comes: the row is 0, and what comes next is as if it were the first. */
void M1_mlstm_nothing(void **state) {
  (void)state;
  static const double none[] = {-(double)INFINITY, 0, -(double)INFINITY}; /* w = 0 in each form */
  static const int64_t steps[] = {150, 1, 3, 17};
  test_rng rng = test_seed(1932);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_MLSTM, 2, n % 2 ? 100 : 4, 9, 20);
    x.keep = 1, x.slow = 0.1, x.form = (attn_recurrent_form)(n / 4);
    recurrent_scene *s = recurrent_build(&x, &rng);
    if (n % 4 < 2) s->p.eps = ATTN_ZERO;
    const int64_t last = n % 4 > 1 ? x.len - 1 : -1; /* the state ends with it */
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < x.len; i++)
        if (i % 7 == h || i % 7 == h + 1 || i == last) {
          test_fill_row(s->p.gate, 0, h, i, -(double)INFINITY);
          test_fill_row(s->p.decay, 0, h, i, none[n / 4]);
        }
    for (int j = 0; j < 4; j++) {
      recurrent_check_steps(s, steps[j], 1e-5, "m of -inf");
      finite(s->o), finite(s->p.final_state), finite(s->p.final_n);
      for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < x.len; i++)
          for (int64_t c = 0; c < 20; c++)
            if (i % 7 == h || i % 7 == h + 1 || i == last)
              assert_true(oracle_get(&s->o, 0, h, i, c) == 0);
            else
              assert_true(oracle_get(&s->o, 0, h, i, c) != 0);
    }
    /* a gate that is NaN is no gate of nothing */
    test_fill_row(s->p.gate, 0, 1, 1, (double)NAN);
    promise_run(&s->does);
    for (int64_t i = 0; i < x.len; i++) {
      const double got = oracle_get(&s->o, 0, 1, i, 3);
      assert_true((got != got) == (i == 1));
    }
  }
}

/* A decay of nothing is a reset, for every rule with a decay that keeps nothing beside it: whatever was before, in
 * states, keys, values and gates. */
void M1_nothing_left(void **state) {
  (void)state;
  test_rng rng = test_seed(1933);
  static const int64_t lens[] = {3, 5, 40, 75};
  for (int n = 0; n < 4 * 3 * ATTN_RECURRENT_COUNT; n++, test_mem_release()) {
    const attn_recurrent_rule rule = (attn_recurrent_rule)(n / 12);
    const int64_t t = lens[n % 4], at = n / 4 % 3 ? t / 2 : t - 1;
    if (rule == ATTN_RECURRENT_MAMBA2 || rule == ATTN_RECURRENT_DELTA ||
        rule == ATTN_RECURRENT_RWKV7)
      continue;
    recurrent_shape x = recurrent_plain(rule, 2, t, 10, 18);
    x.keep = 1, x.slow = 0.1;
    const int mlstm = rule == ATTN_RECURRENT_MLSTM, early = rule == ATTN_RECURRENT_RWKV6;
    if (rule != ATTN_RECURRENT_HGRN2 && (!x.decay || n / 4 % 3 == 1)) x.decay = 2;
    x.form = mlstm && n / 4 % 3 ? ATTN_RECURRENT_LOGIT : ATTN_RECURRENT_LOG;
    recurrent_scene *s = recurrent_build(&x, &rng);
    if (rule == ATTN_RECURRENT_DPLR) s->p.a = s->p.b = absent();
    uint8_t *reset = test_mem((size_t)t);
    memset(reset, 0, (size_t)t);
    reset[at] = 1;
    for (int64_t h = 0; h < 2; h++) test_fill_row(s->p.decay, 0, h, at, -(double)INFINITY);
    for (int64_t i = 0; i < at; i++)
      if (i % 3 != 1 || t < 10) {
        test_fill_row(s->v, 0, 0, i, (double)NAN);
        if (s->k.data) test_fill_row(s->k, 0, 1, i, (double)NAN);
        if (s->p.beta.data) test_fill_row(s->p.beta, 0, 1, i, (double)NAN);
        if (mlstm) test_fill_row(s->p.gate, 0, 0, i, (double)(i % 2 ? INFINITY : NAN));
        if (mlstm && x.form == ATTN_RECURRENT_LOGIT)
          test_fill_row(s->p.decay, 0, 1, i, (double)NAN);
      }
    test_fill_value(s->p.initial_state, (double)(n % 2 ? INFINITY : NAN));
    if (mlstm && n % 2) test_fill_value(s->p.initial_n, (double)NAN);
    if (mlstm) test_fill_value(s->p.initial_m, (double)(n % 3 ? INFINITY : NAN));
    attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 18),
                end = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 10, 18);
    s->p.reset = reset;
    promise_run(&s->does);
    test_copy(want, s->o), test_copy(end, s->p.final_state);
    s->p.reset = NULL;
    promise_run(&s->does);
    const int64_t first = at + early, rows = t - first; /* RWKV6 reads before it fades */
    finite(s->p.final_state), finite(test_rows(s->o, first, rows));
    near_rows(test_rows(s->o, first, rows), test_rows(want, first, rows), 4e-6, "nothing left");
    near_rows(s->p.final_state, end, 4e-6, "nothing left");
    if (early) continue;
    test_assert_same(test_rows(s->o, first, rows), test_rows(want, first, rows), "nothing left");
    test_assert_same(s->p.final_state, end, "nothing left");
  }
}

/* Rates beyond 0 .. 1 are the recurrence too; 2 and a unit key are a reflection, which keeps the size of S. */
void M1_any_beta(void **state) {
  (void)state;
  static const attn_recurrent_rule rules[] = {ATTN_RECURRENT_DELTA, ATTN_RECURRENT_GATED_DELTA,
                                              ATTN_RECURRENT_KDA};
  static const double betas[] = {2, -0.25, 2.25, -2};
  test_rng rng = test_seed(1934);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(rules[n % 3], 2, n / 3 ? 50 : 150, 12, 18);
    x.keep = 1, x.slow = 0.05;
    recurrent_scene *s = recurrent_build(&x, &rng);
    test_fill_value(s->p.beta, betas[n / 3]);
    recurrent_check(s, n / 3 ? 2e-5 : 5e-6, "a beta");
    recurrent_check_steps(s, 1, 2e-5, "a beta, tokens");
    recurrent_check_steps(s, 17, 2e-5, "a beta, pieces");
    if (n) continue;
    double size[2] = {0, 0};
    test_fill_value(s->v, 0);
    promise_run(&s->does);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t r = 0; r < 12; r++)
        for (int64_t c = 0; c < 18; c++) {
          const double a = oracle_get(&s->p.initial_state, 0, h, r, c),
                       b = oracle_get(&s->p.final_state, 0, h, r, c);
          size[0] += a * a, size[1] += b * b;
        }
    assert_true(fabs(size[1] / size[0] - 1) < 2e-5);
  }
}

/* Zero keys (normed or not), rates and steps of nothing write nothing: tokens that do are as good as not there. */
void M1_nothing_written(void **state) {
  (void)state;
  static const double still[] = {-60, -1e30, -(double)INFINITY};
  test_rng rng = test_seed(1935);
  for (int n = 0; n < 4 * ATTN_RECURRENT_COUNT; n++, test_mem_release()) {
    const attn_recurrent_rule rule = (attn_recurrent_rule)(n / 4);
    const int64_t t = n % 2 ? 100 : 4;
    recurrent_shape x = recurrent_plain(rule, 2, t, 10, 18);
    x.keep = 1;
    if (rule == ATTN_RECURRENT_HGRN2) continue; /* its keys are its decays */
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.l2norm_qk = n % 4 < 2;
    const int mamba = rule == ATTN_RECURRENT_MAMBA2;
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 1; i < t; i += 1 + i % 3) {
        if (mamba && n % 4 < 3) test_fill_row(s->p.dt, 0, h, i, still[i % 3]);
        if (!mamba || n % 4 == 3) test_fill_row(s->k, 0, h, i, 0);
        if (i % 2 && s->p.beta.data) test_fill_row(s->p.beta, 0, h, i, 0);
        if (i % 4 == 2) test_fill_row(s->q, 0, h, i, 0);
        if (i % 4 == 2 && mamba) test_fill_row(s->k, 0, h, i, 0);
      }
    const double fine = rule == ATTN_RECURRENT_RWKV7 ? 2e-5 : 4e-6;
    recurrent_check(s, fine, "nothing written");
    finite(s->o), finite(s->p.final_state);
    recurrent_check_steps(s, 1, 2e-5, "nothing written, tokens");
    finite(s->o), finite(s->p.final_state);
    if (rule != ATTN_RECURRENT_DELTA && !mamba)
      continue; /* no decay, or none where nothing comes */
    test_fill_value(mamba ? s->p.dt : s->p.beta, mamba ? -(double)INFINITY : 0);
    s->p.dt_min = 0;
    promise_run(&s->does);
    test_assert_same(s->p.final_state, s->p.initial_state, "nothing written at all");
    test_fill_value(mamba ? s->p.dt : s->p.beta, 0.5), test_fill_value(s->k, 0);
    if (mamba) continue;
    promise_run(&s->does);
    test_assert_same(s->p.final_state, s->p.initial_state, "no key at all");
  }
}

/* Every length of chunks, once for each way that decays and corrections are done. */
void M1_every_chunk(void **state) {
  (void)state;
  static const struct {
    attn_recurrent_rule rule;
    int decay;
  } ways[] = {{ATTN_RECURRENT_GLA, 0},   {ATTN_RECURRENT_RETENTION, 2}, {ATTN_RECURRENT_GLA, 3},
              {ATTN_RECURRENT_DELTA, 0}, {ATTN_RECURRENT_KDA, 3},       {ATTN_RECURRENT_DPLR, 2},
              {ATTN_RECURRENT_DPLR, 3},  {ATTN_RECURRENT_RWKV6, 3},     {ATTN_RECURRENT_MLSTM, 2}};
  test_rng rng = test_seed(1936);
  for (size_t n = 0; n < sizeof ways / sizeof *ways; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ways[n].rule, 1, 70, 5, 6);
    x.keep = 1, x.slow = 0.1, x.decay = ways[n].decay;
    recurrent_scene *s = recurrent_build(&x, &rng);
    for (int64_t c = 1; c <= 64; c++) {
      s->p.chunk = c;
      char what[40];
      sprintf(what, "way %d, chunk %d", (int)n, (int)c);
      recurrent_check(s, 4e-6, what);
    }
  }
}

/* LIGHTNING without numbers is the first layer of one; MiniMax-01's first head of 64, in layers 1 and 79 of its 80, by
 * hand: 2^(-8/64) = 0.9170040432, times 1 - 1/79.00001 + 1e-5 = 0.9873517736 or 1.0127e-5 (79 of 79.00001, and 1e-5). */
void M1_lightning_rates(void **state) {
  (void)state;
  static const struct {
    int64_t heads, layer, layers;
    double log_w;
  } cases[] = {{2, 0, 0, -0.06250062500}, /* 2^-4 (1 + 1e-5) */
               {2, 0, 1, -0.06250062500},
               {64, 0, 80, -0.9170132132},
               {64, 1, 80, -0.9054055685},
               {64, 79, 80, -9.2861168e-6}};
  test_rng rng = test_seed(1937);
  for (size_t n = 0; n < 2 * sizeof cases / sizeof *cases; n++, test_mem_release()) {
    const int64_t t = n % 2 ? 9 : 4;
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_LIGHTNING, cases[n / 2].heads, t, 1, 1);
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.layer = cases[n / 2].layer, s->p.layers = cases[n / 2].layers;
    test_fill_value(s->q, 1), test_fill_value(s->k, 1), test_fill_value(s->v, 0);
    test_fill_row(s->v, 0, 0, 0, 1);
    promise_run(&s->does);
    for (int64_t i = 0; i < t; i++) {
      const double want = exp(cases[n / 2].log_w * (double)i);
      value_check(oracle_get(&s->o, 0, 0, i, 0), want, 3e-7 * want, ATTN_F32, "a rate", (int64_t)n,
                  0, i, 0);
    }
  }
}
