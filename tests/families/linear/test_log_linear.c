/* tests/families/linear/test_log_linear.c owns decaying states by levels (log-linear attention): every rule against the
 * recurrence on all its levels, any cut into calls, and the plain rule. */

#include "recurrent.h"

#include <stdio.h>

/* The rules that have levels. */
static const attn_recurrent_rule rules[] = {ATTN_RECURRENT_DPLR,      ATTN_RECURRENT_RETENTION,
                                            ATTN_RECURRENT_LIGHTNING, ATTN_RECURRENT_GLA,
                                            ATTN_RECURRENT_HGRN2,     ATTN_RECURRENT_MAMBA2,
                                            ATTN_RECURRENT_DELTA,     ATTN_RECURRENT_GATED_DELTA,
                                            ATTN_RECURRENT_KDA,       ATTN_RECURRENT_RWKV7};
enum { RULES = sizeof rules / sizeof rules[0] };

static recurrent_shape shaped(attn_recurrent_rule rule, int64_t heads, int64_t len, int64_t dk,
                              int64_t dv, int64_t position) {
  recurrent_shape x = recurrent_plain(rule, heads, len, dk, dv);
  x.position = position, x.levels = recurrent_levels(position + len);
  return x;
}

/* RWKV7's transition may grow. */
static double fine(attn_recurrent_rule rule) { return rule == ATTN_RECURRENT_RWKV7 ? 2e-5 : 2e-6; }

void M5_levels_random(void **state) {
  (void)state;
  static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  test_rng rng = test_seed(2540);
  for (int64_t n = test_count(200, 60); n-- > 0; test_mem_release()) {
    const attn_recurrent_rule rule = rules[n % RULES];
    const int64_t turn = n / RULES, h = test_range(&rng, 1, 2);
    const int64_t position = turn % 3 == 0 ? 0 : test_range(&rng, 1, turn % 3 == 1 ? 9 : 300);
    recurrent_shape x = shaped(rule, h, test_range(&rng, 1, turn % 4 ? 60 : 200),
                               test_range(&rng, 1, turn % 3 ? 12 : 40),
                               test_range(&rng, 1, turn % 4 == 1 ? 40 : 17), position);
    if (turn % 6 == 5) x.dk = 16, x.dv = 32;
    x.batch = test_range(&rng, 1, 2), x.v_heads = h * test_range(&rng, 1, 2);
    x.more_heads = turn % 2 ? h : 1, x.levels += turn % 4;
    if (x.decay && rule != ATTN_RECURRENT_HGRN2) x.decay = turn % 5 == 3 ? 2 : x.decay;
    if (x.decay == 0 && rule == ATTN_RECURRENT_RETENTION && turn % 2) x.decay = 2;
    x.form = turn % 2 ? ATTN_RECURRENT_FACTOR : ATTN_RECURRENT_LOG;
    x.keep = turn % 5 != 4 || position, x.shared = turn % 4 == 3;
    x.slow = turn % 3 == 0 ? 4 : 0.02, x.mean = (double)(turn % 2);
    x.type = floats[turn % 5 == 1 ? 1 : turn % 5 == 3 ? 2 : 0], x.o_type = floats[turn % 7 % 3];
    x.layout = (test_layout)(turn % TEST_LAYOUTS);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    recurrent_scene *s = recurrent_build(&x, &rng);
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
    char what[80];
    sprintf(what, "rule %d, case %d", (int)rule, (int)n);
    recurrent_check(s, fine(rule), what);
    if (n % 3 == 0) promise_keep(&s->does);
  }
}

/* One token a call, a few, chunks of any length and the whole agree, states in place. */
void M5_levels_agree(void **state) {
  (void)state;
  test_rng rng = test_seed(2541);
  for (int n = 0; n < RULES; n++, test_mem_release()) {
    recurrent_shape x = shaped(rules[n], 1, test_fast ? 70 : 150, 9, 20, n % 3 * 29);
    x.keep = 1, x.slow = n % 2 ? 0.02 : 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    const double most = rules[n] == ATTN_RECURRENT_RWKV7 ? 2e-5 : 4e-6;
    for (int64_t c = 0; c <= 64; c += c < 2 ? 1 : c % 2 ? 25 : 15) {
      s->p.chunk = c;
      recurrent_check(s, most, "chunk");
    }
    s->p.chunk = 0;
    recurrent_check_steps(s, 1, 1e-5, "tokens");
    recurrent_check_steps(s, 3, 1e-5, "three tokens");
    recurrent_check_steps(s, 37, 1e-5, "pieces");
  }
}

/* Weights of 1 are the plain rule. */
void M5_levels_of_one(void **state) {
  (void)state;
  test_rng rng = test_seed(2542);
  for (int n = 0; n < RULES; n++, test_mem_release()) {
    recurrent_shape x = shaped(rules[n], 2, n % 2 ? 130 : 64, 12, 18, 0);
    x.slow = 0.2, x.mean = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.scale = 0.5f;
    test_fill_value(s->p.lambda, 1);
    promise_run(&s->does);
    attn_recurrent_params p = s->p;
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, x.len, 18);
    attn_ctx ctx = test_ctx();
    p.lambda = absent(), p.position = NULL;
    if (attn_recurrent(o, s->q, s->k, s->v, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    test_assert_near(o, s->o, 2e-5, "the plain rule");
  }
}

/* A weight of 1 at one level and 0 elsewhere reads that level's tokens: for sums those whose number differs from the
 * query's in that bit first. */
void M5_levels_apart(void **state) {
  (void)state;
  test_rng rng = test_seed(2543);
  const int64_t t = 150;
  recurrent_shape x = shaped(ATTN_RECURRENT_GLA, 1, t, 6, 5, 0);
  x.decay = 0;
  recurrent_scene *s = recurrent_build(&x, &rng);
  for (int64_t level = 0; level < x.levels; level++) {
    test_fill_value(s->p.lambda, 0);
    for (int64_t i = 0; i < t; i++) oracle_set(&s->p.lambda, 0, 0, i, level, 1);
    promise_run(&s->does);
    for (int64_t i = 0; i < t; i++)
      for (int64_t c = 0; c < 5; c++) {
        double want = 0;
        for (int64_t j = 0; j <= i; j++) {
          int64_t differs = 0;
          while ((i ^ j) >> differs) differs++;
          for (int64_t r = 0; r < 6 && differs == level; r++)
            want += oracle_get(&s->q, 0, 0, i, r) * oracle_get(&s->k, 0, 0, j, r) *
                    oracle_get(&s->v, 0, 0, j, c);
        }
        value_check(oracle_get(&s->o, 0, 0, i, c), want, 4e-5, ATTN_F32, "a level", level, 0, i, c);
      }
  }
}

/* 4096 tokens that hardly fade, values of mean one, whole, in pieces and token by token. */
void M5_levels_long(void **state) {
  (void)state;
  static const attn_recurrent_rule some[] = {ATTN_RECURRENT_GLA, ATTN_RECURRENT_KDA,
                                             ATTN_RECURRENT_RETENTION};
  test_rng rng = test_seed(2544);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    recurrent_shape x = shaped(some[n], 1, test_fast ? 600 : 4096, 8, 9, 0);
    x.keep = 1, x.slow = 0.002, x.mean = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    for (int64_t i = 0; x.decay && i < x.len; i++)
      for (int64_t c = 0; c < s->p.decay.dim; c++) oracle_set(&s->p.decay, 0, 0, i, c, -0.0011);
    recurrent_check(s, n == 1 ? 1e-5 : 1e-6, "long");
    recurrent_check_steps(s, 1000, n == 1 ? 1e-5 : 1e-6, "long, pieces");
    recurrent_check_steps(s, 1, 1e-5, "long, tokens");
  }
}

/* Columns are divided among workers where heads are few; states transposed, in place. */
void M5_levels_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(2545);
  for (int n = 0; n < 2 * RULES; n++, test_mem_release()) {
    recurrent_shape x = shaped(rules[n / 2], 1, n % 2 ? 3 : 70, 13, 130, 21);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    recurrent_check(s, 1e-5, "columns");
    promise_keep(&s->does);
    promise_run(&s->does);
    attn_recurrent_params p = s->p;
    attn_tensor turned = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, x.levels * 130, 13);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x.len, 130);
    for (int64_t r = 0; r < x.levels * 13; r++)
      for (int64_t c = 0; c < 130; c++) {
        const int64_t level = r / 13;
        const int has = !level || (20 >> (level - 1) & 1); /* what is in place may stay elsewhere */
        oracle_set(&turned, 0, 0, level * 130 + c, r % 13,
                   has ? oracle_get(&p.initial_state, 0, 0, r, c) : 0);
      }
    p.state_transposed = 1, p.initial_state = p.final_state = turned;
    attn_ctx ctx = test_ctx();
    if (attn_recurrent(o, s->q, s->k, s->v, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    test_assert_same(o, s->o, "transposed");
    for (int64_t r = 0; r < x.levels * 13; r++)
      for (int64_t c = 0; c < 130; c++)
        assert_true(oracle_get(&turned, 0, 0, r / 13 * 130 + c, r % 13) ==
                    oracle_get(&s->p.final_state, 0, 0, r, c));
  }
}

/* Sequences end to end, each at a position of its own, are those sequences; an empty one keeps what it began with. */
void M5_levels_ragged(void **state) {
  (void)state;
  test_rng rng = test_seed(2546);
  static const int32_t marks[] = {0, 3, 3, 70, 71, 150};
  for (int n = 0; n < RULES; n++, test_mem_release()) {
    recurrent_shape x = shaped(rules[n], 2, 150, 10, 18, 40);
    x.keep = 1, x.sequences = 5;
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.cu_seqlens = marks, s->p.sequences = 5;
    recurrent_check(s, 1e-5, "ragged");
    if (n % 4 == 0) promise_keep(&s->does);
    x.sequences = 0, x.len = 0;
    s = recurrent_build(&x, &rng);
    recurrent_check(s, 0, "no tokens");
    test_assert_same(s->p.final_state, s->p.initial_state, "no tokens");
  }
}

/* What is before a reset, and levels without tokens, may be NaN; the position goes on. */
void M5_levels_reset(void **state) {
  (void)state;
  test_rng rng = test_seed(2547);
  for (int n = 0; n < RULES; n++)
    for (int64_t t = 5; t <= 75; t += 70, test_mem_release()) {
      recurrent_shape x = shaped(rules[n], 1, t, 10, 18, 11);
      x.keep = 1, x.slow = 0.1;
      const int64_t at = t / 2;
      recurrent_scene *s = recurrent_build(&x, &rng);
      uint8_t *reset = test_mem((size_t)t);
      memset(reset, 0, (size_t)t);
      reset[at] = 7, s->p.reset = reset;
      for (int64_t i = 0; i < at; i++) {
        test_fill_row(s->v, 0, 0, i, (double)NAN);
        if (s->k.data) test_fill_row(s->k, 0, 0, i, (double)NAN);
      }
      test_fill_value(s->p.initial_state, (double)INFINITY);
      promise_run(&s->does);
      for (int64_t i = at; i < t; i++)
        for (int64_t c = 0; c < 18; c++) assert_true(isfinite(oracle_get(&s->o, 0, 0, i, c)));
      for (int64_t r = 0; r < s->p.final_state.len; r++)
        for (int64_t c = 0; c < 18; c++)
          assert_true(isfinite(oracle_get(&s->p.final_state, 0, 0, r, c)));
      attn_recurrent_params p = s->p;
      const int64_t position = 11 + at;
      attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t - at, 18);
      p.reset = NULL, p.initial_state = absent(), p.position = &position;
      p.decay = recurrent_rows(p.decay, at, t - at), p.a = recurrent_rows(p.a, at, t - at),
      p.b = recurrent_rows(p.b, at, t - at), p.beta = recurrent_rows(p.beta, at, t - at);
      p.dt = recurrent_rows(p.dt, at, t - at), p.lambda = test_rows(p.lambda, at, t - at);
      p.final_state = absent();
      attn_ctx ctx = test_ctx();
      if (attn_recurrent(o, test_rows(s->q, at, t - at), recurrent_rows(s->k, at, t - at),
                         test_rows(s->v, at, t - at), &p, &ctx) != ATTN_OK)
        fail_msg("%s", ctx.reason);
      test_assert_near(o, test_rows(s->o, at, t - at),
                       rules[n] == ATTN_RECURRENT_RWKV7 ? 4e-5 : 8e-6, "after a reset");
    }
  recurrent_shape x =
      shaped(ATTN_RECURRENT_KDA, 1, 9, 10, 18, 16); /* levels 0 .. 4 hold 16 tokens */
  x.keep = 1, x.levels = 7;
  recurrent_scene *s = recurrent_build(&x, &rng);
  for (int64_t r = 50; r < 70; r++) test_fill_row(s->p.initial_state, 0, 0, r, (double)NAN);
  recurrent_check(s, 1e-5, "levels without tokens");
}

#define BAD(what, status, word)                      \
  {                                                  \
    const recurrent_scene was = *s;                  \
    what;                                            \
    promise_reject(&s->does, ATTN_E_##status, word); \
    *s = was;                                        \
  }

void M5_levels_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(2548);
  recurrent_shape x = shaped(ATTN_RECURRENT_GLA, 2, 9, 6, 5, 8);
  x.keep = 1, x.batch = 2;
  recurrent_scene *s = recurrent_build(&x, &rng);
  int64_t bad[2] = {8, -1};
  int32_t len[2] = {9, 8};
  promise_run(&s->does);
  BAD(s->p.position = bad, RANGE, "position")
  bad[1] = INT64_MAX;
  BAD(s->p.position = bad, RANGE, "position")
  bad[1] = 24;
  BAD(s->p.position = bad, SHAPE, "lambda")
  s->p.position = bad, s->p.len = len;
  promise_run(&s->does);
  s->p.len = NULL;
  s = recurrent_build(&x, &rng);
  BAD(s->p.position = (const int64_t *)(const void *)((const char *)s->p.position + 4), ALIGN,
      "position")
  BAD(s->p.position = NULL, NULL, "position")
  BAD(s->p.lambda = absent(), RANGE, "position")
  BAD(s->p.lambda.len = 8, SHAPE, "lambda")
  BAD(s->p.lambda.dim = 0, SHAPE, "lambda")
  BAD(s->p.lambda.dim = -1, SHAPE, "lambda")
  BAD(s->p.lambda.dim = x.levels - 1, SHAPE, "state")
  BAD(s->p.lambda.heads = 3, HEADS, "heads")
  BAD(s->p.lambda.batch = 3, SHAPE, "lambda")
  BAD(s->p.initial_state.len -= 6, SHAPE, "initial_state")
  BAD(s->o.data = s->p.lambda.data, OVERLAP, "o")
  BAD(s->p.rule = ATTN_RECURRENT_RWKV6; s->p.bonus = s->q, RANGE, "lambda")
  x = shaped(ATTN_RECURRENT_GLA, 2, 9, 6, 5, 0);
  s = recurrent_build(&x, &rng);
  s->p.position = NULL;
  promise_run(&s->does);
  BAD(s->p.lambda.dim = x.levels - 1, SHAPE, "lambda")
  const attn_tensor lambda = s->p.lambda;
  x = recurrent_plain(ATTN_RECURRENT_MLSTM, 2, 9, 6, 5);
  s = recurrent_build(&x, &rng);
  BAD(s->p.lambda = lambda, RANGE, "lambda")
  /* no sequence wants a level, whatever the query is told of positions */
  x = shaped(ATTN_RECURRENT_GLA, 2, 9, 6, 5, 0);
  x.batch = 0;
  for (int n = 0; n < 2; n++) {
    s = recurrent_build(&x, &rng);
    if (n) s->p.position = NULL;
    s->p.lambda.dim = 1;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_recurrent_workspace(s->o, s->q, s->k, s->v, &s->p, &ctx), 0);
    assert_int_equal(attn_recurrent(s->o, s->q, s->k, s->v, &s->p, &ctx), ATTN_OK);
  }
}
#undef BAD
