/* tests/families/linear/test_recurrent.c owns attention over decaying states: every rule against its recurrence, forms
 * that agree, and what rules become in special cases. */

#include "recurrent.h"

#include <stdio.h>

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* A rule's shape at random. */
static recurrent_shape draw(int64_t n, test_rng *rng) {
  const attn_recurrent_rule rule = (attn_recurrent_rule)(n % ATTN_RECURRENT_COUNT);
  const int64_t turn = n / ATTN_RECURRENT_COUNT, h = test_range(rng, 1, 2);
  recurrent_shape x = recurrent_plain(rule, h, 1, 1, 1);
  x.batch = test_range(rng, 1, 2);
  x.len = test_range(rng, 1, turn % 4 == 0 ? 4 : turn % 4 == 1 ? 70 : turn % 4 == 2 ? 20 : 200);
  x.dk = test_range(rng, 1, turn % 3 ? 20 : 70), x.dv = test_range(rng, 1, turn % 3 == 1 ? 50 : 17);
  if (turn % 5 == 0) x.dk = 16, x.dv = 32;
  x.v_heads = h * test_range(rng, 1, 3);
  if (turn % 7 == 3) x.q_heads = x.v_heads;
  if (turn % 7 == 4) x.k_heads = 1;
  x.more_heads = turn % 3 == 0 ? x.v_heads : turn % 3 == 1 ? h : 1;
  if (rule == ATTN_RECURRENT_HGRN2)
    x.decay = 3;
  else if (rule == ATTN_RECURRENT_MLSTM)
    x.decay = 1 + (int)(turn % 2);
  else if (x.decay)
    x.decay = turn % 5 == 3 ? 0 : turn % 5 == 4 ? 1 : turn % 5 == 2 ? 2 : x.decay;
  else if (rule != ATTN_RECURRENT_MAMBA2 && rule != ATTN_RECURRENT_DELTA && turn % 3 == 2)
    x.decay = 2;
  x.form = turn % 2 ? ATTN_RECURRENT_FACTOR : ATTN_RECURRENT_LOG;
  if (rule == ATTN_RECURRENT_MLSTM && turn % 3 == 0) x.form = ATTN_RECURRENT_LOGIT;
  x.keep = turn % 3 != 0, x.shared = turn % 4 == 3;
  x.slow = turn % 3 == 0 ? 4 : turn % 3 == 1 ? 0.25 : 0.02;
  x.mean = (double)(turn % 2);
  x.type = floats[turn % 5 == 1 ? 1 : turn % 5 == 3 ? 2 : 0], x.o_type = floats[turn % 7 % 3];
  x.layout = (test_layout)(turn % TEST_LAYOUTS);
  return x;
}

void M1_random(void **state) {
  (void)state;
  test_rng rng = test_seed(1900);
  for (int64_t n = test_count(480, 96); n-- > 0; test_mem_release()) {
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    const recurrent_shape x = draw(n, &rng);
    recurrent_scene *s = recurrent_build(&x, &rng);
    char what[80];
    test_where = TEST_HEAP;
    if (n % 5 == 2) s->p.len = test_lengths(x.batch, x.len, &rng);
    if (n % 7 == 2) {
      uint8_t *reset = test_mem((size_t)(x.batch * x.len));
      for (int64_t i = 0; i < x.batch * x.len; i++) reset[i] = test_range(&rng, 0, 9) == 0;
      s->p.reset = reset;
    }
    if (n % 4 == 1) s->p.chunk = test_range(&rng, 1, 64);
    if (n % 6 == 1) s->p.scale = 0.75f;
    if (n % 8 == 1) s->p.l2norm_qk = 1;
    sprintf(what, "rule %d, case %d", (int)x.rule, (int)n);
    recurrent_check(s, x.rule == ATTN_RECURRENT_RWKV7 ? 2e-5 : 2e-6, what); /* that one may grow */
    if (n % 3 == 0) promise_keep(&s->does);
  }
}

/* One token a call, a few, chunks of any length and the whole agree, states in place. */
void M1_forms_agree(void **state) {
  (void)state;
  test_rng rng = test_seed(1901);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 2, test_fast ? 45 : 150, 9, 20);
    x.keep = 1, x.slow = rule % 2 ? 0.02 : 1, x.v_heads = rule % 3 ? 4 : 2;
    recurrent_scene *s = recurrent_build(&x, &rng);
    const double fine = rule == ATTN_RECURRENT_RWKV7 ? 2e-5 : 4e-6;
    recurrent_check(s, fine, "whole");
    for (int64_t c = 1; c <= 64; c += c < 4 ? 1 : c % 2 ? 6 : 13) {
      s->p.chunk = c;
      recurrent_check(s, fine, "chunk");
    }
    s->p.chunk = 0;
    recurrent_check_steps(s, 1, 1e-5, "tokens");
    recurrent_check_steps(s, 3, 1e-5, "three tokens");
    recurrent_check_steps(s, 17, 1e-5, "pieces");
  }
}

/* 4096 tokens that hardly fade, values of mean one, whole and token by token. */
void M1_long(void **state) {
  (void)state;
  static const attn_recurrent_rule rules[] = {
      ATTN_RECURRENT_DPLR,      ATTN_RECURRENT_GLA,         ATTN_RECURRENT_DELTA,
      ATTN_RECURRENT_KDA,       ATTN_RECURRENT_GATED_DELTA, ATTN_RECURRENT_MLSTM,
      ATTN_RECURRENT_RETENTION, ATTN_RECURRENT_HGRN2,       ATTN_RECURRENT_LIGHTNING,
      ATTN_RECURRENT_MAMBA2,    ATTN_RECURRENT_RWKV6,       ATTN_RECURRENT_RWKV7,
      ATTN_RECURRENT_DPLR};
  enum { CASES = 2 * sizeof rules / sizeof *rules, SUMS = 2 }; /* DPLR without a and b first */
  test_rng rng = test_seed(1902);
  for (int n = 0; n < CASES; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(rules[n / 2], 1, test_fast ? 600 : 4096, 16, 17);
    x.keep = 1, x.slow = 0.002, x.mean = n % 2;
    if (rules[n / 2] == ATTN_RECURRENT_RETENTION) x.decay = 1; /* one rate, whose error adds up */
    recurrent_scene *s = recurrent_build(&x, &rng);
    if (x.decay) /* no token forgets */
      for (int64_t i = 0; i < s->p.decay.len; i++)
        for (int64_t c = 0; c < s->p.decay.dim; c++)
          if (!(oracle_get(&s->p.decay, 0, 0, i, c) > -0.01) || x.decay == 1)
            oracle_set(&s->p.decay, 0, 0, i, c, -0.0011);
    if (n < SUMS) s->p.a = s->p.b = absent();
    if (x.rule == ATTN_RECURRENT_MAMBA2) { /* one small step at a rate of 1/16 */
      static const float slow = -2.75f;
      s->p.a_log = &slow;
      test_fill_value(s->p.dt, -5);
    }
    if (x.rule == ATTN_RECURRENT_RWKV7) /* one rate for all channels of r r^T contracts */
      for (int64_t i = 0; i < x.len; i++)
        test_fill_row(s->p.b, 0, 0, i, oracle_get(&s->p.b, 0, 0, i, 0));
    const int solves = s->p.beta.data || s->p.a.data;
    char what[80];
    sprintf(what, "long, rule %d, mean %d", (int)x.rule, n % 2);
    recurrent_check(s, solves ? 5e-6 : 1e-6, what);
    recurrent_check_steps(s, 1, 1e-5, what);
    recurrent_check_steps(s, 1000, solves ? 5e-6 : 1e-6, what);
  }
}

/* Columns are divided among workers where heads are few; states transposed, in place. */
void M1_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(1903);
  for (int n = 0; n < 2 * ATTN_RECURRENT_COUNT; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)(n / 2), 1, n % 2 ? 3 : 70, 13, 130);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    recurrent_check(s, 1e-5, "columns");
    promise_keep(&s->does);
    promise_run(&s->does);
    attn_recurrent_params p = s->p;
    attn_tensor turned = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 130, 13);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x.len, 130);
    for (int64_t r = 0; r < 13; r++)
      for (int64_t c = 0; c < 130; c++)
        oracle_set(&turned, 0, 0, c, r, oracle_get(&p.initial_state, 0, 0, r, c));
    p.state_transposed = 1, p.initial_state = p.final_state = turned;
    attn_ctx ctx = test_ctx();
    if (attn_recurrent(o, s->q, s->k, s->v, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    test_assert_same(o, s->o, "transposed");
    for (int64_t r = 0; r < 13; r++)
      for (int64_t c = 0; c < 130; c++)
        assert_true(oracle_get(&turned, 0, 0, c, r) == oracle_get(&s->p.final_state, 0, 0, r, c));
  }
}

/* Sequences end to end are those sequences alone, bit for bit; an empty one returns what it began with. */
void M1_ragged(void **state) {
  (void)state;
  test_rng rng = test_seed(1904);
  static const int32_t marks[] = {0, 3, 3, 70, 71, 150};
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 2, 150, 10, 18);
    x.keep = 1, x.sequences = 5;
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.cu_seqlens = marks, s->p.sequences = 5;
    recurrent_check(s, 1e-5, "ragged");
    if (rule % 4 == 0) promise_keep(&s->does), promise_run(&s->does);
    for (int64_t i = 0; i < 5; i++) {
      attn_recurrent_params p = s->p;
      attn_ctx ctx = test_ctx();
      const int64_t t = marks[i], n = marks[i + 1] - t;
      p.cu_seqlens = NULL, p.sequences = 0;
      p.decay = recurrent_rows(p.decay, t, n), p.a = recurrent_rows(p.a, t, n),
      p.b = recurrent_rows(p.b, t, n);
      p.beta = recurrent_rows(p.beta, t, n), p.gate = recurrent_rows(p.gate, t, n),
      p.dt = recurrent_rows(p.dt, t, n);
      p.initial_state = test_one(p.initial_state, i, 1, 0, 2);
      p.final_state = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 10, 18);
      if (p.initial_n.data) {
        p.initial_n = test_one(p.initial_n, i, 1, 0, 2),
        p.initial_m = test_one(p.initial_m, i, 1, 0, 2);
        p.final_n = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 10),
        p.final_m = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 1);
      }
      attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 18);
      if (attn_recurrent(o, test_rows(s->q, t, n), s->k.data ? test_rows(s->k, t, n) : s->k,
                         test_rows(s->v, t, n), &p, &ctx) != ATTN_OK)
        fail_msg("%s", ctx.reason);
      test_assert_same(o, test_rows(s->o, t, n), "a sequence");
      test_assert_same(p.final_state, test_one(s->p.final_state, i, 1, 0, 2), "its state");
      if (n == 0) test_assert_same(p.final_state, p.initial_state, "no tokens");
    }
  }
}

/* ---- what rules are in special cases ------------------------------------------------------------*/

/* The same inputs by another rule. */
static void runs_as(recurrent_scene *s, attn_recurrent_params p, double tolerance,
                    const char *what) {
  attn_ctx ctx = test_ctx();
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
  attn_tensor end = test_tensor(ATTN_F32, TEST_BHTD, s->o.batch, s->o.heads, s->q.dim, s->o.dim);
  p.final_state = end;
  if (attn_recurrent(o, s->q, s->k, s->v, &p, &ctx) != ATTN_OK)
    fail_msg("%s: %s", what, ctx.reason);
  test_assert_near(o, s->o, tolerance, what);
  test_assert_near(end, s->p.final_state, tolerance, what);
}

void M1_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(1905);
  for (int64_t t = 4; t <= 200; t += 98, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_KDA, 2, t, 12, 18);
    x.keep = 1, x.slow = 0.3;
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_recurrent_params p = s->p;
    const attn_tensor each = p.decay, beta = p.beta;
    /* DPLR of KDA: a = alpha k, b = -beta k, and beta on the values */
    attn_tensor a = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 12),
                b = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 12);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 18), raw = s->v;
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < t; i++) {
        for (int64_t c = 0; c < 12; c++) {
          const double k = oracle_get(&s->k, 0, h, i, c);
          oracle_set(&a, 0, h, i, c, exp(oracle_get(&each, 0, h, i, c)) * k);
          oracle_set(&b, 0, h, i, c, -oracle_get(&beta, 0, h, i, 0) * k);
        }
        for (int64_t c = 0; c < 18; c++)
          oracle_set(&v, 0, h, i, c, oracle_get(&beta, 0, h, i, 0) * oracle_get(&raw, 0, h, i, c));
      }
    promise_run(&s->does);
    p.rule = ATTN_RECURRENT_DPLR, p.a = a, p.b = b, p.beta = absent();
    s->v = v;
    runs_as(s, p, 2e-5, "DPLR of KDA");
    s->v = raw;
    /* equal channels are GATED_DELTA, no decay is DELTA */
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < t; i++)
        for (int64_t c = 1; c < 12; c++)
          oracle_set(&each, 0, h, i, c, oracle_get(&each, 0, h, i, 0));
    attn_tensor one = each;
    one.dim = 1;
    promise_run(&s->does);
    p = s->p, p.rule = ATTN_RECURRENT_GATED_DELTA, p.decay = one;
    runs_as(s, p, 2e-5, "GATED_DELTA of KDA");
    test_fill_value(each, 0);
    promise_run(&s->does);
    p = s->p, p.rule = ATTN_RECURRENT_DELTA, p.decay = absent();
    runs_as(s, p, 2e-5, "DELTA of KDA");
    /* GLA without decay is the sum rule, attn_linear's */
    s->p.rule = ATTN_RECURRENT_GLA, s->p.beta = absent(), s->p.initial_state = absent();
    promise_run(&s->does);
    attn_linear_params sums;
    memset(&sums, 0, sizeof sums);
    sums.map.kind = ATTN_FEATURES_ACT, sums.map.activation = ATTN_ACT_NONE;
    sums.causal = ATTN_LINEAR_CAUSAL, sums.den = ATTN_LINEAR_DEN_NONE,
    sums.out_scale = (float)(1 / sqrt(12.0));
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 18);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_linear(o, s->q, s->k, s->v, &sums, &ctx), ATTN_OK);
    test_assert_near(o, s->o, 1e-5, "sums");
  }
}

/* RETENTION and MAMBA2 as matrices of decays; MLSTM with eps = 0 as a dense one, wherever m begins. */
void M1_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(1906);
  static const attn_recurrent_rule rules[] = {ATTN_RECURRENT_RETENTION, ATTN_RECURRENT_MAMBA2,
                                              ATTN_RECURRENT_MLSTM};
  for (int n = 0; n < 3; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(rules[n], 3, 90, 12, 7);
    x.form = n == 2 ? ATTN_RECURRENT_LOGIT : ATTN_RECURRENT_LOG;
    recurrent_scene *s = recurrent_build(&x, &rng);
    if (n == 2) s->p.eps = ATTN_ZERO;
    promise_run(&s->does);
    for (int64_t h = 0; h < 3; h++)
      for (int64_t i = 0; i < 90; i++)
        for (int64_t c = 0; c < 7; c++) {
          double o = 0, den = 0, size = 0, left = 0; /* log of what is left */
          for (int64_t j = i; j >= 0; j--) {
            double dot = 0, by = 1;
            const double dt =
                n == 1 ? log1p(exp(oracle_get(&s->p.dt, 0, h, j, 0) + (double)s->p.dt_bias[h])) : 0;
            for (int64_t r = 0; r < 12; r++)
              dot += oracle_get(&s->q, 0, h, i, r) * oracle_get(&s->k, 0, h, j, r);
            if (n == 1) by = dt;
            if (n == 2) by = exp(oracle_get(&s->p.gate, 0, h, j, 0));
            if (n != 1) dot /= sqrt(12.0);
            o += exp(left) * by * dot * oracle_get(&s->v, 0, h, j, c), den += exp(left) * by * dot;
            size += fabs(exp(left) * by * dot);
            if (n == 0) left += log(1 - pow(2, -5 - (double)h));
            if (n == 1) left -= exp((double)s->p.a_log[h]) * dt;
            if (n == 2) left -= log1p(exp(-oracle_get(&s->p.decay, 0, h, j, 0)));
          }
          if (n == 1) o += (double)s->p.skip[h] * oracle_get(&s->v, 0, h, i, c);
          const double by = n == 2 ? fmax(fabs(den), 1) : 1;
          value_check(oracle_get(&s->o, 0, h, i, c), o / by,
                      2e-6 * (1 + size / by) * (1 + size / by) * 4, ATTN_F32, "dense", 0, h, i, c);
        }
  }
}

/* DELTA with beta 1: a unit key that is written twice reads the second value. */
void M1_overwrites(void **state) {
  (void)state;
  test_rng rng = test_seed(1907);
  for (int64_t t = 2; t < 40; t += 11, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_DELTA, 1, t, 8, 6);
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.beta = absent(), s->p.scale = 1.0f;
    for (int64_t c = 0; c < 8; c++) {
      oracle_set(&s->k, 0, 0, t - 1, c, oracle_get(&s->k, 0, 0, 0, c));
      oracle_set(&s->q, 0, 0, t - 1, c, oracle_get(&s->k, 0, 0, 0, c));
    }
    promise_run(&s->does);
    for (int64_t c = 0; c < 6; c++)
      value_check(oracle_get(&s->o, 0, 0, t - 1, c), oracle_get(&s->v, 0, 0, t - 1, c), 4e-6,
                  ATTN_F32, "overwritten", 0, 0, t - 1, c);
  }
}

/* A reset is a fresh start, and so is a decay of nothing: what was before may be NaN. */
void M1_reset(void **state) {
  (void)state;
  test_rng rng = test_seed(1908);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++)
    for (int64_t t = 5; t <= 75; t += 35, test_mem_release()) {
      recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 2, t, 10, 18);
      x.keep = 1, x.slow = 0.1;
      const int64_t at = t / 2;
      recurrent_scene *s = recurrent_build(&x, &rng);
      uint8_t *reset = test_mem((size_t)t);
      memset(reset, 0, (size_t)t);
      reset[at] = 7, s->p.reset = reset;
      for (int64_t i = 0; i < at; i++) {
        test_fill_row(s->v, 0, 0, i, (double)NAN);
        if (s->k.data) test_fill_row(s->k, 0, 1, i, (double)NAN);
      }
      test_fill_value(s->p.initial_state, (double)INFINITY);
      promise_run(&s->does);
      recurrent_scene tail = *s;
      attn_recurrent_params *p = &tail.p;
      p->reset = NULL, p->initial_state = p->initial_n = p->initial_m = absent();
      const int64_t n = t - at;
      tail.q = test_rows(s->q, at, n), tail.k = s->k.data ? test_rows(s->k, at, n) : s->k;
      tail.v = test_rows(s->v, at, n), tail.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 18);
      p->decay = recurrent_rows(p->decay, at, n), p->a = recurrent_rows(p->a, at, n),
      p->b = recurrent_rows(p->b, at, n);
      p->beta = recurrent_rows(p->beta, at, n), p->gate = recurrent_rows(p->gate, at, n);
      p->dt = recurrent_rows(p->dt, at, n);
      p->final_state = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 10, 18);
      attn_ctx ctx = test_ctx();
      if (attn_recurrent(tail.o, tail.q, tail.k, tail.v, p, &ctx) != ATTN_OK)
        fail_msg("%s", ctx.reason);
      for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < n; i++)
          for (int64_t c = 0; c < 18; c++)
            value_check(oracle_get(&s->o, 0, h, at + i, c), oracle_get(&tail.o, 0, h, i, c),
                        4e-6 * (1 + fabs(oracle_get(&tail.o, 0, h, i, c))) *
                            (rule == ATTN_RECURRENT_RWKV7 ? 10 : 1),
                        ATTN_F32, "after a reset", rule, h, i, c);
      const int fades = x.decay && rule != ATTN_RECURRENT_DPLR && rule != ATTN_RECURRENT_RWKV6 &&
                        rule != ATTN_RECURRENT_RWKV7 && rule != ATTN_RECURRENT_MLSTM &&
                        rule != ATTN_RECURRENT_HGRN2;
      if (!fades) continue;
      attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 18);
      for (int64_t h = 0; h < 2; h++) test_fill_row(s->p.decay, 0, h, at, -(double)INFINITY);
      promise_run(&s->does);
      test_copy(want, s->o);
      s->p.reset = NULL;
      promise_run(&s->does);
      test_assert_same(want, s->o, "a decay of nothing");
    }
}

/* Decays by channel from 1 to e^-80 within a chunk, and no NaN from what is not there. */
void M1_steep(void **state) {
  (void)state;
  test_rng rng = test_seed(1909);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 1, 130, 24, 18);
    if (x.decay < 2) continue;
    recurrent_scene *s = recurrent_build(&x, &rng);
    for (int64_t i = 0; i < 130; i++)
      for (int64_t c = 0; c < s->p.decay.dim; c++)
        oracle_set(&s->p.decay, 0, 0, i, c,
                   c % 3 == 0   ? -80.0 / 64
                   : c % 3 == 1 ? i % 16 == 5 ? -80 : 0
                                : -1e-4);
    recurrent_check(s, rule == ATTN_RECURRENT_RWKV7 ? 2e-5 : 2e-6, "steep");
    for (int64_t i = 0; i < 130; i += 3) {
      if (s->k.data) test_fill_row(s->k, 0, 0, i, 0);
      test_fill_row(s->p.decay, 0, 0, i, -(double)INFINITY);
      if (s->p.beta.data) test_fill_row(s->p.beta, 0, 0, i, 0);
    }
    recurrent_check(s, rule == ATTN_RECURRENT_RWKV7 ? 2e-5 : 2e-6, "steep, with zeros");
  }
  /* only decays of one channel: what they leave alone stays exact */
  recurrent_shape x = recurrent_plain(ATTN_RECURRENT_GLA, 1, 64, 2, 1);
  recurrent_scene *s = recurrent_build(&x, &rng);
  for (int64_t i = 0; i < 64; i++) {
    oracle_set(&s->p.decay, 0, 0, i, 0, -80.0 / 63), oracle_set(&s->p.decay, 0, 0, i, 1, 0);
    oracle_set(&s->k, 0, 0, i, 0, i == 0), oracle_set(&s->k, 0, 0, i, 1, 0);
    oracle_set(&s->q, 0, 0, i, 0, 1);
  }
  const double v = oracle_get(&s->v, 0, 0, 0, 0);
  promise_run(&s->does);
  for (int64_t i = 0; i < 64; i++) {
    const double want = exp((double)(float)(-80.0 / 63) * (double)i) * v / sqrt(2);
    assert_true(fabs(oracle_get(&s->o, 0, 0, i, 0) - want) <= 6e-6 * fabs(want));
  }
}

/* No tokens: no row is written, states pass through. */
void M1_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(1910);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 2, 0, 10, 18);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    recurrent_check(s, 0, "no tokens");
    test_assert_same(s->p.final_state, s->p.initial_state, "no tokens");
    x.len = 9, x.batch = 2;
    s = recurrent_build(&x, &rng);
    int32_t len[] = {0, 9};
    s->p.len = len;
    recurrent_check(s, 1e-5, "an empty entry");
    test_assert_same(test_one(s->p.final_state, 0, 1, 0, 2),
                     test_one(s->p.initial_state, 0, 1, 0, 2), "an empty entry");
    s->p.initial_state = s->p.initial_n = s->p.initial_m = absent();
    recurrent_check(s, 1e-5, "no state before");
    s->p.final_state = s->p.final_n = s->p.final_m = absent();
    recurrent_check(s, 1e-5, "no state");
  }
}

/* ---- rejections ---------------------------------------------------------------------------------*/

#define BAD(what, status, word)                      \
  {                                                  \
    const recurrent_scene was = *s;                  \
    what;                                            \
    promise_reject(&s->does, ATTN_E_##status, word); \
    *s = was;                                        \
  }

static recurrent_scene *legal(attn_recurrent_rule rule, test_rng *rng) {
  recurrent_shape x = recurrent_plain(rule, 2, 9, 6, 5);
  x.keep = 1, x.batch = 2;
  recurrent_scene *s = recurrent_build(&x, rng);
  promise_run(&s->does);
  return s;
}

void M1_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(1911);
  recurrent_scene *s = legal(ATTN_RECURRENT_GLA, &rng);
  const attn_tensor row = drawn(ATTN_F32, TEST_BHTD, 2, 2, 9, 1, 1, &rng), rows = s->q;
  const float numbers[2] = {0, 0};
  BAD(s->p.rule = (attn_recurrent_rule)ATTN_RECURRENT_COUNT, RANGE, "rule")
  BAD(s->p.rule = (attn_recurrent_rule)-1, RANGE, "rule")
  BAD(s->p.form = (attn_recurrent_form)ATTN_RECURRENT_FORMS, RANGE, "form")
  BAD(s->p.form = ATTN_RECURRENT_LOGIT, RANGE, "form")
  BAD(s->p.decay = absent(); s->p.form = ATTN_RECURRENT_FACTOR, NULL, "decay")
  BAD(s->p.chunk = 65, RANGE, "chunk")
  BAD(s->p.chunk = -1, RANGE, "chunk")
  BAD(s->p.scale = NAN, VALUE, "scale")
  BAD(s->q.data = NULL, NULL, "q")
  BAD(s->k = absent(), NULL, "k")
  BAD(s->v.len = 8, SHAPE, "v")
  BAD(s->k.dim = 5, SHAPE, "k")
  BAD(s->o.dim = 4, SHAPE, "o")
  BAD(s->o.heads = 1, SHAPE, "o")
  BAD(s->q.heads = 1; s->v.heads = 2; s->k.heads = 0, HEADS, "heads")
  BAD(s->p.a = rows, RANGE, "params.a")
  BAD(s->p.beta = row, RANGE, "beta")
  BAD(s->p.bonus = rows, RANGE, "bonus")
  BAD(s->p.gate = row, RANGE, "gate")
  BAD(s->p.dt = row, RANGE, "dt")
  BAD(s->p.a_log = numbers, RANGE, "a_log")
  BAD(s->p.skip = numbers, RANGE, "skip")
  BAD(s->p.dt_max = 1, RANGE, "dt_max")
  BAD(s->p.layers = 2, RANGE, "layer")
  BAD(s->p.eps = 1, RANGE, "eps")
  BAD(s->p.initial_n = rows, RANGE, "n")
  BAD(s->p.initial_state.len = 5, SHAPE, "initial_state")
  BAD(s->p.initial_state.batch = 1, SHAPE, "initial_state")
  BAD(s->p.initial_state.dtype = ATTN_F16, DTYPE, "initial_state")
  BAD(s->p.final_state.heads = 1, SHAPE, "final_state")
  BAD(s->p.state_transposed = 1, SHAPE, "state")
  BAD(s->p.decay.dim = 5, SHAPE, "decay")
  BAD(s->p.decay.len = 8, SHAPE, "decay")
  BAD(s->p.decay.batch = 3, SHAPE, "decay")
  BAD(s->p.final_state.data = s->o.data, OVERLAP, "")
  BAD(s->o.data = s->v.data, OVERLAP, "o")
  int32_t len[] = {9, 10}, cu[] = {0, 4, 9};
  BAD(s->p.len = len, RANGE, "len")
  BAD(s->p.cu_seqlens = cu; s->p.sequences = 2, SHAPE, "batch")
  BAD(s->p.cu_seqlens = cu, RANGE, "sequences")
  BAD(s->p.sequences = 2, NULL, "cu_seqlens")
  BAD(s->p.sequences = -1, RANGE, "sequences")
  for (int n = 0; n < 3; n++) {
    const double bad[] = {(double)NAN, 1e-30, (double)INFINITY};
    const double was = oracle_get(&s->p.decay, 1, 1, 8, 5);
    oracle_set(&s->p.decay, 1, 1, 8, 5, bad[n]);
    promise_reject(&s->does, ATTN_E_VALUE, "decay");
    oracle_set(&s->p.decay, 1, 1, 8, 5, was);
  }
  test_fill_value(s->p.decay, 0.5), s->p.form = ATTN_RECURRENT_FACTOR;
  promise_run(&s->does);
  for (int n = 0; n < 3; n++) {
    const double bad[] = {(double)NAN, -1e-30, 1.0001};
    oracle_set(&s->p.decay, 1, 1, 8, 5, bad[n]);
    promise_reject(&s->does, ATTN_E_VALUE, "decay");
    oracle_set(&s->p.decay, 1, 1, 8, 5, 0.5);
  }
  s = legal(ATTN_RECURRENT_HGRN2, &rng);
  BAD(s->k = rows, RANGE, "k")
  BAD(s->p.decay = absent(), NULL, "decay")
  BAD(s->p.decay.dim = 1, SHAPE, "decay")
  s = legal(ATTN_RECURRENT_DPLR, &rng);
  BAD(s->p.a = absent(), NULL, "params.a")
  BAD(s->p.b = absent(), NULL, "params.b")
  BAD(s->p.b.len = 8, SHAPE, "params.b")
  s = legal(ATTN_RECURRENT_RWKV7, &rng);
  BAD(s->p.a = s->p.b = absent(), NULL, "params.a")
  s = legal(ATTN_RECURRENT_RWKV6, &rng);
  BAD(s->p.bonus = absent(), NULL, "bonus")
  BAD(s->p.bonus.dim = 5, SHAPE, "bonus")
  s = legal(ATTN_RECURRENT_DELTA, &rng);
  BAD(s->p.decay = row, RANGE, "decay")
  BAD(s->p.beta.dim = 2, SHAPE, "beta")
  s = legal(ATTN_RECURRENT_MAMBA2, &rng);
  BAD(s->p.decay = row, RANGE, "decay")
  BAD(s->p.dt = absent(), NULL, "dt")
  BAD(s->p.a_log = NULL, NULL, "a_log")
  BAD(s->p.dt_min = -1, VALUE, "dt_min")
  BAD(s->p.dt_min = 1; s->p.dt_max = 0.5f, VALUE, "dt_max")
  s = legal(ATTN_RECURRENT_LIGHTNING, &rng);
  BAD(s->p.layer = 4, RANGE, "layer")
  BAD(s->p.layer = -1, RANGE, "layer")
  s = legal(ATTN_RECURRENT_MLSTM, &rng);
  BAD(s->p.gate = absent(), NULL, "gate")
  BAD(s->p.decay = absent(), NULL, "decay")
  BAD(s->p.initial_m = absent(), NULL, "m")
  BAD(s->p.final_n = absent(), NULL, "n")
  BAD(s->p.eps = -1, VALUE, "eps")
  BAD(s->p.decay.dim = 2; s->p.decay.stride_len = 2, SHAPE, "decay")
  recurrent_shape x = recurrent_plain(ATTN_RECURRENT_GLA, 2, 9, 6, 5);
  s = recurrent_build(&x, &rng);
  int32_t bad[][3] = {{1, 4, 9}, {0, 5, 4}, {0, 4, 8}, {0, 10, 9}, {0, -1, 9}};
  for (int n = 0; n < 5; n++) BAD(s->p.cu_seqlens = bad[n]; s->p.sequences = 2, RANGE, "cu_seqlens")
  BAD(s->p.cu_seqlens = cu; s->p.sequences = 2; s->p.len = len, RANGE, "len")
  BAD(s->p.cu_seqlens = cu; s->p.sequences = INT64_MAX, OVERFLOW, "")
}
#undef BAD
