/* tests/families/linear/test_linear_state.c owns states that a caller keeps, delta rules, promises and rejections of
 * attn_linear. */

#include "linear.h"

static void scale_values(attn_tensor t, double by) {
  for (int64_t j = 0; j < t.len; j++)
    for (int64_t c = 0; c < t.dim; c++) oracle_set(&t, 0, 0, j, c, by * oracle_get(&t, 0, 0, j, c));
}

/* A stream in calls of any length, with every rule: o and state are those of the recurrence. */
void E4_state_stream(void **state) {
  (void)state;
  test_rng rng = test_seed(720);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t kv = test_range(&rng, 1, 2);
    linear_shape x = linear_plain(1, 0, 0, 1, 1);
    x.batch = test_range(&rng, 1, 2), x.kv_heads = kv, x.heads = kv * test_range(&rng, 1, 2);
    x.dk = test_range(&rng, 1, 9), x.dv = n % 3 ? test_range(&rng, 1, 20) : 16;
    x.rows = x.keys = test_range(&rng, 1, n % 4 ? 6 : 90);
    x.v_type = n % 4 == 1 ? ATTN_F16 : ATTN_F32;
    linear_scene *s = linear_build(&x, &rng);
    s->p.rule = (attn_linear_rule)(n % 5), s->p.causal = ATTN_LINEAR_CAUSAL;
    s->p.map.kind = n % 2 ? ATTN_FEATURES_ELU1 : ATTN_FEATURES_SOFTMAX;
    if (n % 10 == 4) s->p.map.kind = ATTN_FEATURES_DPFP;
    s->p.map.key_stab = ATTN_STAB_RUNNING;
    if (s->p.map.kind == ATTN_FEATURES_SOFTMAX)
      s->p.map.w = linear_w(n % 4 ? 1 : x.heads, 7, x.dk, &rng);
    s->p.map.seed = 5, s->p.map.draw = n;
    if (s->p.rule) s->p.rate = linear_rates(s, ATTN_F32, 0, &rng);
    linear_keep(s);
    for (int call = 0; call < 4; call++) {
      linear_check(s, 6e-6, "stream");
      linear_go_on(s);
      test_fill(s->k, &rng, test_normal);
      test_fill(s->v, &rng, test_normal);
      if (call == 1) /* no order: all rows read the end */
        s->p.causal = ATTN_LINEAR_BIDIRECTIONAL;
      if (call == 2) s->p.causal = ATTN_LINEAR_CAUSAL;
    }
  }
}

/* Copied, a state goes on as the first did; rolled back, it does so again. */
void E4_state_is_bytes(void **state) {
  (void)state;
  test_rng rng = test_seed(721);
  linear_shape x = linear_plain(2, 30, 30, 6, 10);
  linear_scene *s = linear_build(&x, &rng);
  s->p.causal = ATTN_LINEAR_CAUSAL, s->p.rule = ATTN_LINEAR_DELTA;
  linear_keep(s);
  promise_run(&s->does);
  linear_go_on(s);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 10);
  promise_run(&s->does);
  test_copy(first, s->o);
  promise_run(&s->does); /* call copies the start again */
  test_assert_same(s->o, first, "rolled back");
  void *moved = test_mem(s->p.state_bytes);
  memcpy(moved, s->start, s->p.state_bytes);
  linear_scene other = *s;
  attn_ctx ctx = test_ctx();
  other.p.state = moved;
  assert_int_equal(attn_linear(other.o, other.q, other.k, other.v, &other.p, &ctx), ATTN_OK);
  test_assert_same(s->o, first, "elsewhere");
  assert_memory_equal(moved, s->p.state, s->p.state_bytes);
}

/* Keys alone, then rows alone. */
void E4_state_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(722);
  linear_shape x = linear_plain(2, 9, 70, 6, 10);
  linear_scene *s = linear_build(&x, &rng);
  linear_check(s, 4e-6, "at once");
  attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, 10);
  test_copy(want, s->o);
  linear_keep(s);
  for (int causal = 0; causal < 2; causal++) {
    attn_ctx ctx = test_ctx();
    memcpy(s->p.state, s->start, s->p.state_bytes);
    s->p.causal = linear_order(causal);
    assert_int_equal(
        attn_linear(test_rows(s->o, 0, 0), test_rows(s->q, 0, 0), s->k, s->v, &s->p, &ctx),
        ATTN_OK);
    s->p.causal = ATTN_LINEAR_BIDIRECTIONAL;
    test_fill_value(s->o, 7);
    assert_int_equal(
        attn_linear(s->o, s->q, test_rows(s->k, 0, 0), test_rows(s->v, 0, 0), &s->p, &ctx),
        ATTN_OK);
    test_assert_near(s->o, want, 2e-6, "keys, then rows");
  }
}

/* ---- delta rules ----------------------------------------------------------------------------*/

/* Chunks of every length against the recurrence, with keys that are alike. */
void E4_rule_delta_chunks(void **state) {
  (void)state;
  test_rng rng = test_seed(730);
  for (int rule = ATTN_LINEAR_DELTA; rule <= ATTN_LINEAR_DELTA_ATTN; rule++) {
    linear_shape x = linear_plain(2, 100, 100, 6, 9);
    x.kv_heads = 1;
    linear_scene *s = linear_build(&x, &rng);
    s->p.rule = (attn_linear_rule)rule, s->p.causal = ATTN_LINEAR_CAUSAL;
    s->p.rate = linear_rates(s, ATTN_F32, 0, &rng);
    for (int64_t c = 1; c <= 64; c += test_fast ? 21 : 7) {
      s->p.chunk = c;
      linear_check(s, 4e-6, "delta");
    }
  }
}

/* b = 1 and keys of length 1: what is written last is what is read. b = 0 leaves the state. */
void E4_rule_delta_overwrites(void **state) {
  (void)state;
  test_rng rng = test_seed(731);
  for (int64_t t = 2; t <= 70; t += 34) {
    linear_shape x = linear_plain(1, t, t, 8, 5);
    linear_scene *s = linear_build(&x, &rng);
    s->p.rule = ATTN_LINEAR_DELTA, s->p.causal = ATTN_LINEAR_CAUSAL;
    s->p.map.kind = ATTN_FEATURES_ACT, s->p.map.norm = ATTN_FEATURE_NORM_L2;
    test_copy(test_rows(s->k, t - 1, 1), test_rows(s->k, 0, 1)); /* the first key again */
    test_copy(test_rows(s->q, t - 1, 1), test_rows(s->k, 0, 1));
    promise_run(&s->does);
    for (int64_t c = 0; c < 5; c++)
      value_check(oracle_get(&s->o, 0, 0, t - 1, c), oracle_get(&s->v, 0, 0, t - 1, c), 2e-5,
                  ATTN_F32, "overwritten", 0, 0, t - 1, c);
    s->p.rate_const = ATTN_ZERO;
    promise_run(&s->does);
    for (int64_t c = 0; c < 5; c++) assert_true(oracle_get(&s->o, 0, 0, t - 1, c) == 0);
  }
}

/* Features of 0 (DPFP of width 1) give zeros with every rule. */
void E4_rule_zero_features(void **state) {
  (void)state;
  test_rng rng = test_seed(732);
  for (int rule = 0; rule < ATTN_LINEAR_COUNT; rule++)
    for (int64_t t = 3; t < 40; t += 30) {
      linear_shape x = linear_plain(1, t, t, 1, 5);
      linear_scene *s = linear_build(&x, &rng);
      s->p.rule = (attn_linear_rule)rule, s->p.causal = ATTN_LINEAR_CAUSAL;
      s->p.map.kind = ATTN_FEATURES_DPFP;
      if (rule) s->p.rate_const = 0.5f;
      promise_run(&s->does);
      for (int64_t i = 0; i < t; i++) assert_true(oracle_get(&s->o, 0, 0, i, 4) == 0);
    }
}

/* Rates of 0 and 1: all is forgotten, nothing is. Gates of g are decay with weights (1 - g) g^n. */
void E4_rule_rates(void **state) {
  (void)state;
  test_rng rng = test_seed(733);
  for (int64_t t = 4; t < 120; t += 96) {
    linear_shape x = linear_plain(1, t, t, 4, 6);
    linear_scene *s = linear_build(&x, &rng);
    s->p.causal = ATTN_LINEAR_CAUSAL, s->p.rule = ATTN_LINEAR_DECAY, s->p.rate_const = ATTN_ZERO;
    s->p.eps = ATTN_ZERO;
    promise_run(&s->does);
    test_assert_near(s->o, s->v, 1e-6, "only its own key");
    s->p.rule = ATTN_LINEAR_GATED;
    s->p.rate_const = 1;
    promise_run(&s->does);
    for (int64_t i = 0; i < t; i++) assert_true(oracle_get(&s->o, 0, 0, i, 0) == 0);
    s->p.rate_const = 0.75f;
    linear_check(s, 4e-6, "gates");
    attn_tensor gated = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, 6);
    test_copy(gated, s->o);
    s->p.rule = ATTN_LINEAR_DECAY;
    promise_run(&s->does);
    test_assert_near(s->o, gated, 1e-5, "1 - g cancels");
  }
}

/* ---- promises -------------------------------------------------------------------------------*/

/* By default rows read what their rule's paper has them read: SUM all keys, the others those before. */
void E4_rule_default_order(void **state) {
  (void)state;
  for (int rule = 0; rule < ATTN_LINEAR_COUNT; rule++, test_mem_release()) {
    test_rng rng = test_seed(779);
    linear_shape x = linear_plain(2, 70, 70, 8, 5);
    linear_scene *s = linear_build(&x, &rng);
    attn_tensor own = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 5);
    s->p.rule = (attn_linear_rule)rule;
    if (rule != ATTN_LINEAR_SUM) s->p.rate_const = 0.75f;
    promise_run(&s->does);
    test_copy(own, s->o);
    s->p.causal = rule ? ATTN_LINEAR_CAUSAL : ATTN_LINEAR_BIDIRECTIONAL;
    promise_run(&s->does);
    test_assert_same(s->o, own, "the default order");
    s->p.causal = rule ? ATTN_LINEAR_BIDIRECTIONAL : ATTN_LINEAR_CAUSAL;
    promise_run(&s->does);
    assert_true(oracle_get(&s->o, 0, 1, 3, 2) != oracle_get(&own, 0, 1, 3, 2));
    s->does.block[0].data = NULL; /* o has been written */
    s->p.causal = ATTN_LINEAR_CAUSALS;
    promise_reject(&s->does, ATTN_E_RANGE, "causal");
    s->p.causal = -1;
    promise_reject(&s->does, ATTN_E_RANGE, "causal");
  }
}

void E4_rule_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(740);
  for (int rule = 0; rule < ATTN_LINEAR_COUNT; rule++)
    for (int form = 0; form < 4; form++, test_mem_release()) { /* causal or not, state or not */
      const int64_t t = form % 2 ? 1100 : test_fast ? 4100 : 4500;
      if (form % 2 == 0 && rule == ATTN_LINEAR_DELTA_ATTN) continue;
      if (form % 2 && form / 2 == rule % 2) continue;
      linear_shape x = linear_plain(1, 70, t, 3, form == 0 ? 40 : form == 1 ? 8 : 64);
      if (form % 2) x.rows = t - 20;
      linear_scene *s = linear_build(&x, &rng);
      s->p.rule = (attn_linear_rule)rule, s->p.causal = linear_order(form % 2);
      if (form % 2) s->p.chunk = 13; /* 1027 keys between marks */
      if (rule) s->p.rate = linear_rates(s, ATTN_BF16, 0, &rng);
      if (form >= 2) linear_keep(s);
      promise_keep(&s->does);
    }
}

/* A running stabiliser on the way from part to part, and one for all keys. */
void E4_rule_stabiliser_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(741);
  for (int form = 0; form < 3; form++, test_mem_release()) {
    linear_shape x = linear_plain(1, form ? 20 : 1050, form ? 4200 : 1060, 3, 16);
    linear_scene *s = linear_build(&x, &rng);
    s->p.map.kind = ATTN_FEATURES_SOFTMAX;
    s->p.map.w = linear_w(1, 5, 3, &rng);
    s->p.causal = linear_order(form == 0);
    if (form == 2) s->p.map.key_stab = ATTN_STAB_RUNNING;
    scale_values(s->k, 3);
    if (!form) linear_check(s, 2e-5, "running");
    promise_keep(&s->does);
  }
}

void E4_rule_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(742);
  for (int n = 0; n < 40; n++) {
    linear_shape x = linear_plain(4, 9, 9, 4, 6);
    x.kv_heads = 2;
    linear_scene *s = linear_build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    static float half[2] = {0.5f, 1.5f};
    static int32_t ten[1] = {10};
    s->p.causal = ATTN_LINEAR_CAUSAL;
    switch (n) {
      case 0: s->k.dim = 3, word = "k must"; break;
      case 1: s->v.len = 8, word = "v must"; break;
      case 2: s->v.heads = 1, word = "v must"; break;
      case 3: s->k.heads = s->v.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 4: s->o.dim = 5, word = "o must"; break;
      case 5: s->o.len = 8, word = "o must"; break;
      case 6: s->p.rule = (attn_linear_rule)9, want = ATTN_E_RANGE, word = "rule"; break;
      case 7: s->p.den = (attn_linear_den)9, want = ATTN_E_RANGE, word = "den"; break;
      case 8: s->p.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 9: s->p.eps = (float)NAN, want = ATTN_E_VALUE, word = "eps"; break;
      case 10: s->p.out_scale = (float)INFINITY, want = ATTN_E_VALUE, word = "out_scale"; break;
      case 11: s->p.chunk = 65, want = ATTN_E_RANGE, word = "chunk"; break;
      case 12: s->p.chunk = -1, want = ATTN_E_RANGE, word = "chunk"; break;
      case 13: s->p.q_off = 1, want = ATTN_E_RANGE, word = "q_off"; break;
      case 14:
        s->p.has_q_off = 1, s->p.q_off = INT64_MAX, want = ATTN_E_RANGE, word = "q_off";
        break;
      case 15: s->p.rate_const = 0.5f, want = ATTN_E_RANGE, word = "rate"; break;
      case 16: s->p.rule = ATTN_LINEAR_GATED, want = ATTN_E_NULL, word = "rate"; break;
      case 17:
        s->p.rule = ATTN_LINEAR_DECAY, s->p.rate_const = 1.5f;
        want = ATTN_E_VALUE, word = "rate_const";
        break;
      case 18:
        s->p.rule = ATTN_LINEAR_DECAY, s->p.rate_const = (float)NAN;
        want = ATTN_E_VALUE, word = "rate_const";
        break;
      case 19:
        s->p.rule = ATTN_LINEAR_DECAY, s->p.rate_head = half;
        want = ATTN_E_VALUE, word = "rate_head";
        break;
      case 20:
        s->p.rule = ATTN_LINEAR_GATED, s->p.rate = linear_rates(s, ATTN_F32, 0, &rng);
        oracle_set(&s->p.rate, 0, 1, 8, 0, -0.25);
        want = ATTN_E_VALUE, word = "rate";
        break;
      case 21:
        s->p.rule = ATTN_LINEAR_DECAY, s->p.rate = linear_rates(s, ATTN_F32, 0, &rng);
        s->p.rate.len = 8, word = "rate";
        break;
      case 22: s->p.kv_len = ten, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 23: s->p.q_len = ten, want = ATTN_E_RANGE, word = "q_len"; break;
      case 24: s->p.map.kind = (attn_feature_kind)99, want = ATTN_E_RANGE, word = "map"; break;
      case 25: s->p.map.kind = ATTN_FEATURES_USER, want = ATTN_E_NULL, word = "map.fn"; break;
      case 26: s->p.map.kind = ATTN_FEATURES_RFA, want = ATTN_E_NULL, word = "map.w"; break;
      case 27:
        s->p.map.kind = ATTN_FEATURES_RFA, s->p.map.w = linear_w(1, 3, 4, &rng);
        s->p.rule = ATTN_LINEAR_GATED, s->p.rate_const = 0.5f,
        s->p.causal = ATTN_LINEAR_BIDIRECTIONAL;
        want = ATTN_E_RANGE, word = "causal";
        break;
      case 28:
        s->p.map.kind = ATTN_FEATURES_SOFTMAX, s->p.map.w = linear_w(1, 3, 4, &rng);
        s->p.den = ATTN_LINEAR_DEN_NONE, want = ATTN_E_VALUE, word = "den";
        break;
      case 29:
        s->o = s->v, s->o.heads = 4, want = ATTN_E_STRIDE, word = "o ";
        s->o.stride_head = 0;
        break;
      case 30: s->q = s->o, s->q.dim = 4, want = ATTN_E_OVERLAP, word = "o "; break;
      case 31: s->q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 32: s->k.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "k.dtype"; break;
      default: /* states */
        linear_keep(s);
        if (n == 33) s->p.state_bytes -= 1, word = "state_bytes";
        if (n == 34) s->p.rule = ATTN_LINEAR_DELTA, want = ATTN_E_VALUE, word = "rule";
        if (n == 35) s->p.map.seed = 3, want = ATTN_E_VALUE, word = "seed";
        if (n == 36) s->p.map.draw = 3, want = ATTN_E_VALUE, word = "draw";
        if (n == 37) ((unsigned char *)s->start)[0] ^= 1, want = ATTN_E_VALUE, word = "begin";
        if (n == 38) s->k.heads = s->v.heads = 1, word = "sizes";
        if (n == 39)
          s->v = s->s_view, s->v.batch = 1, s->v.heads = 2, s->v.len = 9, s->v.stride_len = 0,
          want = ATTN_E_OVERLAP, word = "state";
        if (n == 37) memcpy(s->p.state, s->start, s->p.state_bytes);
        s->does.block[0].data = NULL;
    }
    promise_reject(&s->does, want, word);
  }
}

void E4_state_rejects(void **state) {
  (void)state;
  attn_linear_params p;
  attn_ctx ctx = test_ctx();
  attn_tensor s, z;
  memset(&p, 0, sizeof p);
  const size_t bytes = attn_linear_state_bytes(&p, 2, 4, 2, 8, 10);
  assert_true(bytes > 2 * 2 * (8 * 10 + 8) * sizeof(float));
  assert_true(attn_linear_state_bytes(NULL, 2, 4, 2, 8, 10) == bytes);
  assert_true(attn_linear_state_bytes(&p, 1, 1, 1, 1, 1) > 0);
  void *memory = test_mem(bytes);
  assert_int_equal(attn_linear_begin(NULL, bytes, &p, 2, 4, 2, 8, 10, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_linear_begin(memory, bytes - 1, &p, 2, 4, 2, 8, 10, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_linear_begin((char *)memory + 4, bytes, &p, 1, 4, 2, 8, 10, &ctx),
                   ATTN_E_ALIGN);
  assert_int_equal(attn_linear_begin(memory, bytes, &p, 2, 4, 3, 8, 10, &ctx), ATTN_E_HEADS);
  assert_int_equal(attn_linear_begin(memory, bytes, &p, 0, 4, 2, 8, 10, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_linear_begin(memory, bytes, &p, 2, 4, 2, 8, 0, &ctx), ATTN_E_SHAPE);
  assert_true(attn_linear_state_bytes(&p, 2, 4, 2, 8, INT64_MAX / 8) == 0);
  assert_true(attn_linear_state_bytes(&p, INT64_MAX / 8, 4, 2, 8, 8) == 0);
  assert_int_equal(attn_linear_view(memory, bytes, &s, &z, &ctx), ATTN_E_VALUE);
  assert_int_equal(attn_linear_begin(memory, bytes, &p, 2, 4, 2, 8, 10, &ctx), ATTN_OK);
  assert_int_equal(attn_linear_view(memory, bytes - 1, &s, &z, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_linear_view(NULL, bytes, &s, &z, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_linear_view(memory, 8, &s, &z, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_linear_view(memory, bytes, &s, &z, &ctx), ATTN_OK);
  assert_true(s.batch == 2 && s.heads == 2 && s.len == 8 && s.dim == 10 && z.dim == 8);
  for (int64_t n = 0; n < 2 * 2 * 8; n++) {
    assert_true(oracle_get(&z, n / 16, n / 8 % 2, 0, n % 8) == 0);
    for (int64_t c = 0; c < 10; c++) assert_true(oracle_get(&s, n / 16, n / 8 % 2, n % 8, c) == 0);
  }
  /* a stabiliser that waits for the last key, which a stream has not */
  p.map.kind = ATTN_FEATURES_SOFTMAX;
  test_rng rng = test_seed(750);
  p.map.w = linear_w(1, 5, 8, &rng);
  assert_int_equal(attn_linear_begin(memory, bytes, &p, 2, 4, 2, 8, 10, &ctx), ATTN_E_VALUE);
  p.causal = ATTN_LINEAR_CAUSAL;
  assert_true(attn_linear_state_bytes(&p, 2, 4, 2, 8, 10) > 0);
}
