/* tests/families/linear/test_linear.c owns attention over a linear state: the Linear Transformer, rules, given
 * factors. */

#include "linear.h"

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* Maps whose directions and callback need nothing else. */
static void squares(void *user, float *y, const float *x, int64_t n, int64_t m, int64_t dk,
                    int64_t head, int is_key) {
  (void)user, (void)is_key;
  for (int64_t i = 0; i < n; i++)
    for (int64_t r = 0; r < m; r++) {
      const float t = x[i * dk + r % dk] + 0.25f * (float)(r / dk) + 0.125f * (float)(head % 2);
      y[i * m + r] = t * t;
    }
}

static void draw_map(linear_scene *s, int64_t n, test_rng *rng) {
  attn_feature_map *f = &s->p.map;
  const int64_t dk = s->k.dim, kinds = ATTN_FEATURES_COUNT, d = test_range(rng, 1, 20);
  const int shared = n % 4 != 0;
  f->kind = (attn_feature_kind)(n % kinds);
  if (f->kind == ATTN_FEATURES_ACT) {
    static const attn_activation some[] = {ATTN_ACT_RELU, ATTN_ACT_EXP, ATTN_ACT_SIGMOID};
    f->activation = some[n / kinds % 3];
    f->scale = 0.5f;
    if (n / kinds % 2) f->w = linear_w(shared ? 1 : s->q.heads, d, dk, rng);
  }
  if (f->kind == ATTN_FEATURES_DPFP) f->order = dk > 1 ? test_range(rng, 1, 3) : 1;
  if (f->kind >= ATTN_FEATURES_RFA && f->kind <= ATTN_FEATURES_HYPERBOLIC)
    f->w = linear_w(shared ? 1 : s->q.heads, d, dk, rng);
  if (f->kind == ATTN_FEATURES_USER) {
    f->fn = squares, f->features = test_range(rng, 1, 2 * dk);
    if (f->features > 100) f->features = 100;
  }
}

void E4_rule_random(void **state) {
  (void)state;
  test_rng rng = test_seed(700);
  for (int64_t n = test_count(210, 42); n-- > 0; test_mem_release()) {
    const int64_t kv = test_range(&rng, 1, 2), big = n % 9 == 0;
    linear_shape x = linear_plain(1, 0, 0, 1, 1);
    x.batch = test_range(&rng, 1, 2), x.kv_heads = kv, x.heads = kv * test_range(&rng, 1, 3);
    x.rows = test_range(&rng, 0, n % 5 == 1 ? 4 : big ? 150 : 40);
    x.keys = test_range(&rng, 0, n % 5 == 1 ? 4 : big ? 300 : 90);
    x.dk = test_range(&rng, 1, n % 6 ? 12 : 40), x.dv = test_range(&rng, 1, n % 4 ? 12 : 40);
    if (n % 3 == 0) x.dv = 16;
    x.q_type = floats[n / 2 % 4 % 3], x.k_type = floats[n / 3 % 4 % 3];
    x.v_type = floats[n / 5 % 4 % 3], x.o_type = floats[n / 7 % 4 % 3];
    x.q_layout = (test_layout)(n % TEST_LAYOUTS), x.k_layout = (test_layout)(n / 2 % TEST_LAYOUTS);
    x.v_layout = (test_layout)(n / 3 % TEST_LAYOUTS), x.o_layout = (test_layout)(n % 4);
    if (n % ATTN_FEATURES_COUNT == ATTN_FEATURES_RFA) x.o_type = ATTN_F32; /* small denominators */
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    linear_scene *s = linear_build(&x, &rng);
    const int64_t rule = n / 7 % ATTN_LINEAR_COUNT;
    s->p.rule = (attn_linear_rule)rule;
    s->p.causal = linear_order(n % 4 != 3 && !(n % 11 == 1));
    draw_map(s, n, &rng);
    const int rfa = s->p.map.kind == ATTN_FEATURES_RFA, gated = rule == ATTN_LINEAR_GATED;
    if (rfa && rule >= ATTN_LINEAR_DELTA) s->p.map.norm = ATTN_FEATURE_NORM_L2;
    if (rfa && gated) s->p.causal = ATTN_LINEAR_CAUSAL;
    if (n % 5 == 4) s->p.causal = ATTN_LINEAR_CAUSAL_DEFAULT;
    if (rfa && rule == ATTN_LINEAR_DELTA_ATTN) s->p.rule = ATTN_LINEAR_DELTA;
    if (rule != ATTN_LINEAR_SUM && (gated || n % 3))
      s->p.rate = linear_rates(s, floats[n % 3], n % 2 != 0, &rng);
    else if (rule != ATTN_LINEAR_SUM && n % 2)
      s->p.rate_head = test_floats(kv, 0, &rng);
    for (int64_t h = 0; s->p.rate_head && h < kv; h++)
      ((float *)(uintptr_t)s->p.rate_head)[h] = 0.75f + 0.125f * (float)h;
    test_where = TEST_HEAP;
    if (n % 4 == 0) s->p.has_q_off = 1, s->p.q_off = test_range(&rng, -20, x.keys + 5);
    if (n % 5 == 2) s->p.kv_len = test_lengths(x.batch, x.keys, &rng);
    if (n % 6 == 2) s->p.q_len = test_lengths(x.batch, x.rows, &rng);
    if (n % 3 == 0) s->p.chunk = test_range(&rng, 1, 64);
    if (n % 7 == 0) s->p.out_scale = -1.5f;
    /* where a stabiliser is in the features, only quotients are defined */
    if (s->p.map.kind != ATTN_FEATURES_SOFTMAX && s->p.map.kind != ATTN_FEATURES_HYPERBOLIC) {
      if (n % 10 == 3) s->p.den = ATTN_LINEAR_DEN_NONE;
      if (n % 10 == 4) s->p.den = ATTN_LINEAR_DEN_CLAMP, s->p.eps = 0.5f;
    }
    linear_check(s, 4e-6, "rule");
  }
}

/* ---- the Linear Transformer -----------------------------------------------------------------*/

static double one(test_rng *rng) {
  (void)rng;
  return 1;
}

void E1_random(void **state) {
  (void)state;
  test_rng rng = test_seed(701);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    linear_shape x = linear_plain(1, 0, 0, 1, 1);
    x.batch = test_range(&rng, 1, 2), x.kv_heads = test_range(&rng, 1, 2);
    x.heads = x.kv_heads * test_range(&rng, 1, 2);
    x.rows = test_range(&rng, 1, n % 4 ? 100 : 300),
    x.keys = test_range(&rng, 1, n % 3 ? 100 : 300);
    x.dk = test_range(&rng, 1, 70), x.dv = test_range(&rng, 1, 70);
    linear_scene *s = linear_build(&x, &rng);
    s->p.causal = linear_order(n % 2 != 0);
    if (n % 5 == 3) s->p.map.query_scale = 0.25f;
    if (n % 10 == 3) s->p.map.scale = 0.7f, s->p.map.query_scale = -1.5f;
    if (n % 7 == 3) s->p.eps = 0.5f;
    linear_check(s, 4e-6, "linear transformer");
  }
}

/* Chunks of any length, key by key through a state, and all in one agree. */
void E1_forms_agree(void **state) {
  (void)state;
  test_rng rng = test_seed(702);
  const int64_t t = test_fast ? 40 : 100;
  linear_shape x = linear_plain(2, t, t, 9, 20);
  linear_scene *s = linear_build(&x, &rng);
  s->p.causal = ATTN_LINEAR_CAUSAL;
  linear_check(s, 2e-6, "whole");
  attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 20);
  test_copy(want, s->o);
  for (int64_t c = 1; c <= 64; c += c < 8 ? 1 : 7) {
    s->p.chunk = c;
    promise_run(&s->does);
    test_assert_near(s->o, want, 2e-6, "chunk");
  }
  linear_scene step = *s;
  step.p.chunk = 0;
  linear_keep(&step);
  for (int64_t i = 0, n; i < t; i += n) { /* 1, 2, 3, 4, 5, 1, .. keys a call */
    attn_ctx ctx = test_ctx();
    n = 1 + i % 5 < t - i ? 1 + i % 5 : t - i;
    assert_int_equal(attn_linear(test_rows(s->o, i, n), test_rows(s->q, i, n),
                                 test_rows(s->k, i, n), test_rows(s->v, i, n), &step.p, &ctx),
                     ATTN_OK);
  }
  test_assert_near(s->o, want, 2e-6, "steps");
  s->p.chunk = 0, s->p.causal = ATTN_LINEAR_BIDIRECTIONAL;
  promise_run(&s->does);
  test_assert_near(test_rows(s->o, t - 1, 1), test_rows(want, t - 1, 1), 2e-6, "last row");
}

void E1_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(703);
  linear_shape x = linear_plain(2, 70, 90, 8, 5);
  linear_scene *s = linear_build(&x, &rng);
  for (int causal = 0; causal < 2; causal++) { /* a constant value comes back */
    test_fill_value(s->v, 3);
    s->p.causal = linear_order(causal), s->p.eps = ATTN_ZERO;
    promise_run(&s->does);
    for (int64_t i = 0; i < 70; i++)
      value_check(oracle_get(&s->o, 0, 1, i, 2), 3, 1e-5, ATTN_F32, "constant", 0, 1, i, 2);
  }
  s->p.causal = ATTN_LINEAR_BIDIRECTIONAL, s->p.eps = 0;
  test_fill(s->v, &rng, test_normal);
  promise_run(&s->does);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 5);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 8);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 5);
  test_copy(first, s->o);
  for (int64_t j = 0; j < 90; j++) { /* keys and values in another order */
    test_copy(test_rows(k, j * 7 % 90, 1), test_rows(s->k, j, 1));
    test_copy(test_rows(v, j * 7 % 90, 1), test_rows(s->v, j, 1));
  }
  s->k = k, s->v = v;
  promise_run(&s->does);
  test_assert_near(s->o, first, 1e-5, "order");
  /* a = 1 is the plain sum */
  for (int causal = 0; causal < 2; causal++) {
    s->p.causal = linear_order(causal), s->p.rule = ATTN_LINEAR_SUM;
    promise_run(&s->does);
    test_copy(first, s->o);
    s->p.rule = ATTN_LINEAR_DECAY;
    promise_run(&s->does);
    test_assert_near(s->o, first, 1e-6, "decay of 1");
  }
}

void E1_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(704);
  linear_shape x = linear_plain(1, 1, 1, 4, 3); /* v den / (den + eps) */
  linear_scene *s = linear_build(&x, &rng);
  linear_check(s, 2e-6, "one token");
  test_fill_value(s->k, -200); /* features vanish, eps rules */
  for (int causal = 0; causal < 2; causal++) {
    s->p.causal = linear_order(causal);
    promise_run(&s->does);
    assert_true(fabs(oracle_get(&s->o, 0, 0, 0, 0)) < 1e-20);
    s->p.eps = ATTN_ZERO;
    promise_run(&s->does);
    assert_true(oracle_get(&s->o, 0, 0, 0, 0) == 0); /* a denominator of 0 */
    s->p.eps = 0;
  }
  for (int64_t rows = 0; rows < 80; rows += 70)
    for (int64_t keys = 0; keys < 80; keys += 35)
      for (int causal = 0; causal < 2; causal++) {
        x = linear_plain(2, rows, keys, 5, 7);
        s = linear_build(&x, &rng);
        s->p.causal = linear_order(causal); /* fewer keys than rows: the first see none */
        linear_check(s, 4e-6, "lengths");
      }
  /* nothing to do: no memory, also for many workers and segments of keys */
  attn_ctx ctx = test_ctx();
  ctx.workers = 8, ctx.parallel_for = test_parallel_backward;
  for (int causal = 0; causal < 2; causal++) {
    x = linear_plain(2, 5, 5000, 3, 3);
    x.batch = 0;
    s = linear_build(&x, &rng);
    s->p.causal = linear_order(causal);
    assert_int_equal(s->does.ask(s, &ctx), 0);
    promise_run(&s->does);
  }
}

/* What has no bound reaches what reads it and no more: neither rows before, nor beyond lengths. */
void E1_not_finite(void **state) {
  (void)state;
  test_rng rng = test_seed(705);
  linear_shape x = linear_plain(1, 60, 60, 6, 16);
  for (int rule = 0; rule < 5; rule++)
    for (int which = 0; which < 2; which++) {
      linear_scene *s = linear_build(&x, &rng);
      s->p.causal = ATTN_LINEAR_CAUSAL, s->p.rule = (attn_linear_rule)rule;
      if (rule) s->p.rate_const = 0.5f;
      promise_run(&s->does);
      attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 60, 16);
      test_copy(first, s->o);
      test_fill_row(which ? s->v : s->k, 0, 0, 37, (double)NAN);
      promise_run(&s->does);
      test_assert_same(test_rows(s->o, 0, 37), test_rows(first, 0, 37), "rows before NaN");
      for (int64_t i = 37; i < 60; i++) assert_true(isnan(oracle_get(&s->o, 0, 0, i, 0)));
      int32_t len = 37;
      s->p.kv_len = &len;
      promise_run(&s->does);
      for (int64_t i = 37; i < 60; i++) assert_true(!isnan(oracle_get(&s->o, 0, 0, i, 0)));
    }
}

/* Cut to its lengths, an entry has the bits of a call of its own. */
void E1_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(706);
  static const int32_t kv[3] = {3, 90, 40}, q[3] = {2, 70, 77};
  for (int causal = 0; causal < 2; causal++) {
    linear_shape x = linear_plain(2, 80, 100, 6, 10);
    x.batch = 3, x.kv_heads = 1;
    linear_scene *s = linear_build(&x, &rng);
    s->p.causal = linear_order(causal), s->p.kv_len = kv, s->p.q_len = q;
    linear_check(s, 4e-6, "lengths");
    for (int64_t b = 0; b < 3; b++) {
      attn_linear_params p;
      attn_ctx ctx = test_ctx();
      memset(&p, 0, sizeof p);
      p.causal = linear_order(causal), p.has_q_off = 1, p.q_off = 20;
      attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, q[b], 10);
      assert_int_equal(attn_linear(o, test_rows(test_one(s->q, b, 1, 0, 2), 0, q[b]),
                                   test_rows(test_one(s->k, b, 1, 0, 1), 0, kv[b]),
                                   test_rows(test_one(s->v, b, 1, 0, 1), 0, kv[b]), &p, &ctx),
                       ATTN_OK);
      test_assert_same(o, test_rows(test_one(s->o, b, 1, 0, 2), 0, q[b]), "a call of its own");
    }
  }
}

/* ---- given factors --------------------------------------------------------------------------*/

void G4_random(void **state) {
  (void)state;
  test_rng rng = test_seed(710);
  for (int64_t n = test_count(30, 8); n-- > 0; test_mem_release()) {
    linear_shape x = linear_plain(1, test_range(&rng, 1, 90), test_range(&rng, 1, 90),
                                  test_range(&rng, 1, 30), test_range(&rng, 1, 30));
    x.heads = 2, x.kv_heads = 1 + n % 2;
    linear_scene *s = linear_build(&x, &rng);
    s->p.map.kind = ATTN_FEATURES_ACT;
    s->p.causal = linear_order(n % 2 != 0);
    s->p.den = n % 3 ? ATTN_LINEAR_DEN_NONE : ATTN_LINEAR_DEN_ADD;
    linear_check(s, 4e-6, "factors");
  }
}

/* W = I: U V; normalised with V = 1: 1 where the denominator is not 0. */
void G4_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(711);
  linear_shape x = linear_plain(1, 33, 40, 40, 7);
  linear_scene *s = linear_build(&x, &rng);
  s->p.map.kind = ATTN_FEATURES_ACT, s->p.den = ATTN_LINEAR_DEN_NONE;
  test_fill_value(s->k, 0);
  for (int64_t j = 0; j < 40; j++) oracle_set(&s->k, 0, 0, j, j, 1);
  promise_run(&s->does);
  for (int64_t i = 0; i < 33; i++)
    for (int64_t c = 0; c < 7; c++) {
      double sum = 0;
      for (int64_t j = 0; j < 40; j++)
        sum += oracle_get(&s->q, 0, 0, i, j) * oracle_get(&s->v, 0, 0, j, c);
      value_check(oracle_get(&s->o, 0, 0, i, c), sum, 1e-5, ATTN_F32, "U V", 0, 0, i, c);
    }
  test_fill(s->k, &rng, test_normal);
  test_fill(s->v, &rng, one);
  s->p.den = ATTN_LINEAR_DEN_ADD;
  for (int causal = 0; causal < 2; causal++) {
    s->p.causal = linear_order(causal);
    promise_run(&s->does);
    for (int64_t i = 0; i < 33; i++)
      value_check(oracle_get(&s->o, 0, 0, i, 3), 1, 1e-3, ATTN_F32, "ones", 0, 0, i, 3);
  }
  test_fill_value(s->q, 0); /* denominators of 0 */
  promise_run(&s->does);
  for (int64_t i = 0; i < 33; i++) assert_true(oracle_get(&s->o, 0, 0, i, 3) == 0);
}
