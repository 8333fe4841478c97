/* tests/families/blocks/test_trajectory.c owns trajectories as sequences (K6): returns, tokens, mask and predictions
 * from their formulas, and a model made of them. */

#include "layers.h"

static attn_dtype some_type(test_rng *rng) {
  return test_range(rng, 0, 2) ? ATTN_F32 : (attn_dtype)test_range(rng, 1, 2);
}

/* ---- returns --------------------------------------------------------------------------------*/

typedef struct returns_scene {
  attn_tensor y, r;
  attn_returns_params p;
  promise does;
} returns_scene;

static attn_status returns_call(void *at, attn_ctx *ctx) {
  returns_scene *s = at;
  return attn_returns(s->y, s->r, &s->p, ctx);
}
static size_t returns_ask(void *at, const attn_ctx *ctx) {
  returns_scene *s = at;
  return attn_returns_workspace(s->y, s->r, &s->p, ctx);
}

static returns_scene *returns_build(int64_t batch, int64_t steps, int target, test_rng *rng) {
  returns_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const attn_dtype tr = some_type(rng), ty = some_type(rng);
  s->r = drawn(tr, (test_layout)test_range(rng, 0, TEST_SHARED), batch, 1, steps, 1, 1, rng);
  s->y = output(ty, (test_layout)test_range(rng, 0, TEST_NEGATIVE), batch, 1, steps, 1,
                &s->does.block[0]);
  if (target) s->p.target = test_floats(batch, 10, rng);
  s->does.call = returns_call, s->does.ask = returns_ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

static void returns_check(const returns_scene *s, double gamma, double tolerance) {
  cube want = cube_of(s->r.batch, 1, s->r.len, 1);
  for (int64_t b = 0; b < s->r.batch; b++) {
    for (int64_t t = 0; t < s->r.len; t++) {
      double sum = 0, power = 1; /* straight from the sum, not from the recursion */
      const int64_t first = s->p.target ? 0 : t, end = s->p.target ? t : s->r.len;
      for (int64_t i = first; i < end; i++, power *= gamma)
        sum += power * oracle_get(&s->r, b, 0, i, 0);
      if (s->p.target) sum = ((double)s->p.target[b] - sum) / power;
      *cube_at(&want, b, 0, t) = sum;
    }
  }
  cube_check(&want, &s->y, tolerance, "returns");
}

void K6_returns_random(void **state) {
  (void)state;
  test_rng rng = test_seed(6001);
  static const float gamma[] = {0, 0.9f, ATTN_ZERO, 1, -0.5f};
  for (int64_t n = test_count(40, 12); n-- > 0;) {
    const int target = n % 5 < 2 && n % 3 == 0;
    const int64_t batch = test_range(&rng, 1, 3);
    const int64_t steps = test_range(&rng, 1, target || n % 4 ? 20 : 200);
    returns_scene *s = returns_build(batch, steps, target, &rng);
    s->p.gamma = gamma[n % 5];
    promise_run(&s->does);
    returns_check(s, n % 5 == 0 ? 1 : (double)s->p.gamma, 2e-6);
  }
}

/* Without a discount R_t - R_{t+1} = r_t, and the wanted return that shrinks by what came is the same
 * sequence. */
void K6_returns_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(6002);
  returns_scene *s = returns_build(2, 150, 0, &rng);
  s->r = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 150, 1);
  test_fill(s->r, &rng, test_exact);
  s->y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 150, 1);
  promise_run(&s->does);
  for (int64_t b = 0; b < 2; b++)
    for (int64_t t = 0; t < 150; t++) {
      const double next = t < 149 ? oracle_get(&s->y, b, 0, t + 1, 0) : 0;
      assert_true(oracle_get(&s->y, b, 0, t, 0) - next == oracle_get(&s->r, b, 0, t, 0));
    }
  attn_tensor forward = s->y;
  float target[2] = {(float)oracle_get(&s->y, 0, 0, 0, 0), (float)oracle_get(&s->y, 1, 0, 0, 0)};
  s->p.target = target;
  s->y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 150, 1);
  promise_run(&s->does);
  test_assert_same(s->y, forward, "a rollout");
  attn_tensor before = s->y; /* in place */
  s->y = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, 150, 1);
  test_copy(s->y, s->r), s->r = s->y;
  promise_run(&s->does);
  test_assert_same(s->y, before, "in place, forward");
  s->p.target = NULL;
}

void K6_returns_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(6003);
  returns_scene *s = returns_build(3, 70, 0, &rng);
  promise_run(&s->does);
  attn_tensor one = test_tensor(s->y.dtype, TEST_BHTD, 3, 1, 70, 1);
  test_copy(one, s->y);
  for (int n = 2; n < 5; n++) {
    attn_ctx ctx = test_ctx();
    ctx.workers = n, ctx.parallel_for = test_parallel_threads;
    assert_int_equal(returns_ask(s, &ctx), 0);
    assert_int_equal(returns_call(s, &ctx), ATTN_OK);
    test_assert_same(s->y, one, "workers");
  }
  for (int n = 0; n < 2; n++) {
    s = returns_build(n ? 0 : 2, n ? 4 : 0, 0, &rng);
    promise_run(&s->does);
  }
  for (int n = 0; n < 8; n++) {
    s = returns_build(2, 4, n > 4, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->r.len = 3, word = "r must"; break;
      case 1: s->y.dim = 2, word = "y must"; break;
      case 2: s->r.batch = 1, word = "r must"; break;
      case 3: s->p.gamma = (float)NAN, want = ATTN_E_VALUE, word = "params.gamma"; break;
      case 4: s->r.data = NULL, want = ATTN_E_NULL, word = "r.data"; break;
      case 5: s->p.gamma = ATTN_ZERO, want = ATTN_E_VALUE, word = "params.gamma"; break;
      case 6:
        s->y = output(ATTN_F32, TEST_BHTD, 2, 1, 4, 1, &s->does.block[0]);
        test_fill_value(s->y, 1);
        s->p.target = s->y.data, want = ATTN_E_OVERLAP, word = "y is";
        break;
      default: {
        static const float infinite[2] = {0, INFINITY};
        s->p.target = infinite, want = ATTN_E_VALUE, word = "params.target";
      }
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- tokens ---------------------------------------------------------------------------------*/

typedef struct tokens_scene {
  attn_tensor y, x[3];
  attn_trajectory_params p;
  int32_t *times;
  promise does;
} tokens_scene;

static attn_status tokens_call(void *at, attn_ctx *ctx) {
  tokens_scene *s = at;
  return attn_trajectory_tokens(s->y, s->x[0], s->x[1], s->x[2], &s->p, ctx);
}
static size_t tokens_ask(void *at, const attn_ctx *ctx) {
  tokens_scene *s = at;
  return attn_trajectory_tokens_workspace(s->y, s->x[0], s->x[1], s->x[2], &s->p, ctx);
}

static tokens_scene *tokens_build(int64_t batch, int64_t steps, int64_t ds, int64_t da, int64_t dm,
                                  int plain, test_rng *rng) {
  tokens_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  attn_tensor *w[3] = {&s->p.w_return, &s->p.w_state, &s->p.w_action};
  attn_tensor *bias[3] = {&s->p.b_return, &s->p.b_state, &s->p.b_action};
  const int64_t d[3] = {1, ds, da}, episode = steps + 9;
  for (int i = 0; i < 3; i++) {
    const attn_dtype tx = plain ? ATTN_F32 : some_type(rng), tw = plain ? ATTN_F32 : some_type(rng);
    const test_layout at = plain ? TEST_BHTD : (test_layout)test_range(rng, 0, TEST_ONE_ROW);
    s->x[i] = drawn(tx, at, batch, 1, steps, d[i], 1, rng);
    *w[i] = drawn(tw, i ? TEST_PADDED : TEST_BHTD, 1, 1, d[i], dm, 1 / sqrt((double)d[i]), rng);
    if (plain || test_range(rng, 0, 1))
      *bias[i] = drawn(some_type(rng), TEST_BHTD, 1, 1, 1, dm, 0.5, rng);
  }
  s->p.times = drawn(plain ? ATTN_F32 : some_type(rng), TEST_NEGATIVE, 1, 1, episode, dm, 1, rng);
  s->times = test_mem((size_t)(batch * steps + 1) * sizeof(int32_t));
  for (int64_t i = 0; i < batch * steps; i++)
    s->times[i] = (int32_t)test_range(rng, 0, episode - 1);
  s->p.timesteps = s->times;
  s->p.norm = drawn_norm(dm, rng);
  const attn_dtype ty = plain ? ATTN_F32 : some_type(rng);
  const test_layout at = plain ? TEST_BHTD : (test_layout)test_range(rng, 0, TEST_NEGATIVE);
  s->y = output(ty, at, batch, 1, 3 * steps, dm, &s->does.block[0]);
  s->does.call = tokens_call, s->does.ask = tokens_ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

static void tokens_check(const tokens_scene *s, double tolerance) {
  const attn_tensor *w[3] = {&s->p.w_return, &s->p.w_state, &s->p.w_action};
  const attn_tensor *bias[3] = {&s->p.b_return, &s->p.b_state, &s->p.b_action};
  const int64_t steps = s->x[0].len, dm = s->y.dim;
  cube sum = cube_of(s->y.batch, 1, 3 * steps, dm);
  for (int64_t n = 0; n < sum.batch * sum.len * dm; n++) {
    const int64_t b = n / dm / sum.len, p = n / dm % sum.len, t = p / 3, c = n % dm, i = p % 3;
    double x = oracle_get(&s->p.times, 0, 0, s->times[b * steps + t], c);
    if (bias[i]->data) x += oracle_get(bias[i], 0, 0, 0, c);
    for (int64_t d = 0; d < s->x[i].dim; d++)
      x += oracle_get(&s->x[i], b, 0, t, d) * oracle_get(w[i], 0, 0, d, c);
    sum.data[n] = x;
  }
  const cube want = rows_norm(&sum, NULL, &s->p.norm);
  cube_check(&want, &s->y, tolerance, "tokens");
}

void K6_tokens_random(void **state) {
  (void)state;
  test_rng rng = test_seed(6010);
  for (int64_t n = test_count(40, 10); n-- > 0;) {
    const int64_t batch = test_range(&rng, 1, 3), steps = test_range(&rng, 1, n % 4 ? 12 : 70);
    const int64_t ds = test_range(&rng, 1, n % 5 ? 20 : 150), da = test_range(&rng, 1, 9);
    const int64_t dm = test_range(&rng, 2, n % 7 ? 30 : 130);
    tokens_scene *s = tokens_build(batch, steps, ds, da, dm, 0, &rng);
    if (n % 3 == 0) s->p.norm.gain = NULL;
    if (n % 6 == 0) s->p.norm.bias = NULL;
    promise_run(&s->does);
    tokens_check(s, 2e-5);
  }
}

/* With weights and biases of 0 the three tokens of a step are its time. */
void K6_tokens_share_the_time(void **state) {
  (void)state;
  test_rng rng = test_seed(6011);
  tokens_scene *s = tokens_build(2, 9, 3, 2, 14, 1, &rng);
  test_fill_value(s->p.w_return, 0), test_fill_value(s->p.w_state, 0);
  test_fill_value(s->p.w_action, 0);
  s->p.b_return = s->p.b_state = s->p.b_action = absent();
  s->times[4] = s->times[5];
  promise_run(&s->does);
  for (int64_t t = 0; t < 9; t++)
    for (int64_t i = 1; i < 3; i++)
      test_assert_same(test_rows(s->y, 3 * t + i, 1), test_rows(s->y, 3 * t, 1), "one time");
  test_assert_same(test_one(test_rows(s->y, 12, 3), 0, 1, 0, 1),
                   test_one(test_rows(s->y, 15, 3), 0, 1, 0, 1), "a repeated time");
}

void K6_tokens_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(6012);
  for (int n = 0; n < 2; n++) {
    tokens_scene *s = tokens_build(2, 70, 11, 5, 21, n, &rng);
    s->y = output(n ? ATTN_F32 : ATTN_F16, TEST_PADDED, 2, 1, 210, 21, &s->does.block[0]);
    promise_keep(&s->does);
  }
  for (int n = 0; n < 2; n++) {
    tokens_scene *s = tokens_build(n ? 0 : 2, n ? 3 : 0, 4, 5, 6, 1, &rng);
    promise_run(&s->does);
  }
}

void K6_tokens_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(6013);
  for (int n = 0; n < 19; n++) {
    tokens_scene *s = tokens_build(2, 5, 4, 3, 6, 1, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->y.len = 14, word = "y.len must be 3"; break;
      case 1: s->x[1].len = 4, word = "states must"; break;
      case 2: s->x[2].batch = 1, word = "actions must"; break;
      case 3: s->x[0].dim = 2, word = "returns must"; break;
      case 4: s->p.w_return.len = 2, word = "params.w_return"; break;
      case 5: s->p.w_state.len = 3, word = "params.w_state"; break;
      case 6: s->p.w_action.dim = 5, word = "params.w_action"; break;
      case 7: s->p.b_state.dim = 5, word = "params.b_state"; break;
      case 8: s->p.times.dim = 5, word = "params.times"; break;
      case 9: s->p.times.data = NULL, want = ATTN_E_NULL, word = "params.times.data"; break;
      case 10: s->times[9] = -1, want = ATTN_E_RANGE, word = "params.timesteps"; break;
      case 11: s->times[3] = 14, want = ATTN_E_RANGE, word = "params.timesteps"; break;
      case 12: s->p.timesteps = NULL, want = ATTN_E_NULL, word = "params.timesteps"; break;
      case 13: s->p.norm.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 14: s->x[1].data = s->y.data, want = ATTN_E_OVERLAP, word = "y is"; break;
      case 15: s->p.norm.gain = s->y.data, want = ATTN_E_OVERLAP, word = "y is"; break;
      case 16: s->y.heads = 2, word = "y must"; break;
      case 17: s->p.w_state.data = NULL, want = ATTN_E_NULL, word = "params.w_state.data"; break;
      default: s->y.stride_len = 2, want = ATTN_E_STRIDE, word = "y is"; break;
    }
    promise_reject(&s->does, want, word);
  }
  tokens_scene *s = tokens_build(1, 2, 4, 3, 6, 1, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_trajectory_tokens(s->y, s->x[0], s->x[1], s->x[2], NULL, &ctx),
                   ATTN_E_NULL);
  assert_int_equal(attn_trajectory_tokens_workspace(s->y, s->x[0], s->x[1], s->x[2], NULL, &ctx),
                   ATTN_WORKSPACE_REJECTED);
}

/* ---- mask and predictions -------------------------------------------------------------------*/

void K6_mask(void **state) {
  (void)state;
  static const uint8_t valid[6] = {0, 1, 1, 0, 0, 9};
  uint8_t keys[18];
  const attn_mask m = attn_trajectory_mask(keys, valid, 2, 3);
  for (int i = 0; i < 18; i++) assert_int_equal(keys[i], valid[i / 3] != 0);
  assert_int_equal(m.kind, ATTN_MASK_BOOL);
  assert_true(m.batch == 2 && m.heads == 1 && m.q_len == 1 && m.k_len == 9 && m.data == keys);
  assert_int_equal(attn_trajectory_mask(keys, NULL, 2, 3).kind, ATTN_MASK_NONE);
  assert_int_equal(attn_trajectory_mask(NULL, valid, 2, 3).kind, ATTN_MASK_NONE);
  assert_int_equal(attn_trajectory_mask(keys, valid, 0, 3).kind, ATTN_MASK_NONE);
  /* products that do not fit */
  assert_int_equal(attn_trajectory_mask(keys, valid, 1, INT64_MAX / 2).kind, ATTN_MASK_NONE);
  assert_int_equal(attn_trajectory_mask(keys, valid, INT64_MAX, INT64_MAX).kind, ATTN_MASK_NONE);
  for (int i = 0; i < 18; i++) assert_int_equal(keys[i], valid[i / 3] != 0);
}

typedef struct predict_scene {
  attn_tensor o, y;
  attn_trajectory_predict_params p;
  promise does;
} predict_scene;

static attn_status predict_call(void *at, attn_ctx *ctx) {
  predict_scene *s = at;
  return attn_trajectory_predict(s->o, s->y, &s->p, ctx);
}
static size_t predict_ask(void *at, const attn_ctx *ctx) {
  predict_scene *s = at;
  return attn_trajectory_predict_workspace(s->o, s->y, &s->p, ctx);
}

static predict_scene *predict_build(int64_t batch, int64_t steps, int64_t dm, int64_t d, int head,
                                    test_rng *rng) {
  predict_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const attn_dtype ty = some_type(rng), tw = some_type(rng), to = some_type(rng);
  const test_layout at = (test_layout)test_range(rng, 0, TEST_ONE_ROW);
  s->y = drawn(ty, at, batch, 1, 3 * steps, dm, 1, rng);
  s->p.head = (attn_trajectory_head)head;
  s->p.w = drawn(tw, TEST_PADDED, 1, 1, dm, d, 1 / sqrt((double)dm), rng);
  if (test_range(rng, 0, 1)) s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, d, 0.5, rng);
  s->o = output(to, TEST_NEGATIVE, batch, 1, steps, d, &s->does.block[0]);
  s->does.call = predict_call, s->does.ask = predict_ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

void K6_predict(void **state) {
  (void)state;
  test_rng rng = test_seed(6020);
  for (int64_t n = test_count(24, 8); n-- > 0;) {
    const int64_t batch = test_range(&rng, 1, 3), steps = test_range(&rng, 1, 40);
    const int64_t dm = test_range(&rng, 1, 30), d = test_range(&rng, 1, 12);
    predict_scene *s = predict_build(batch, steps, dm, d, (int)(n % 3), &rng);
    s->p.linear = n % 2 == 0;
    promise_run(&s->does);
    cube want = cube_of(batch, 1, steps, d);
    for (int64_t i = 0; i < batch * steps * d; i++) {
      const int64_t b = i / d / steps, t = i / d % steps, c = i % d;
      double sum = s->p.bias.data ? oracle_get(&s->p.bias, 0, 0, 0, c) : 0;
      for (int64_t e = 0; e < dm; e++)
        sum +=
            oracle_get(&s->y, b, 0, 3 * t + (n % 3 ? 2 : 1), e) * oracle_get(&s->p.w, 0, 0, e, c);
      want.data[i] = n % 3 == 0 && !s->p.linear ? tanh(sum) : sum;
    }
    cube_check(&want, &s->o, 1e-5, "prediction");
  }
  predict_scene *s = predict_build(2, 120, 9, 4, 0, &rng);
  s->p.w = drawn(ATTN_F16, TEST_BHTD, 1, 1, 9, 4, 1, &rng); /* so that it wants memory */
  promise_keep(&s->does);
  s = predict_build(2, 0, 9, 4, 0, &rng);
  promise_run(&s->does);
}

void K6_predict_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(6021);
  for (int n = 0; n < 7; n++) {
    predict_scene *s = predict_build(2, 4, 6, 3, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->y.len = 11, word = "y.len must be 3"; break;
      case 1: s->p.w.len = 5, word = "params.w must"; break;
      case 2: s->p.w.data = NULL, want = ATTN_E_NULL, word = "params.w.data"; break;
      case 3: s->p.head = (attn_trajectory_head)3, want = ATTN_E_RANGE, word = "params.head"; break;
      case 4: s->y.batch = 1, word = "y must"; break;
      case 5: s->p.bias = s->p.w, word = "params.bias"; break;
      default: s->y.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
    }
    if (n == 6) s->y.dtype = s->o.dtype, s->y.stride_len = s->o.stride_len;
    promise_reject(&s->does, want, word);
  }
  predict_scene *s = predict_build(2, 4, 6, 3, 0, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_trajectory_predict(s->o, s->y, NULL, &ctx), ATTN_E_NULL);
}

/* ---- a model --------------------------------------------------------------------------------*/

/* Tokens, one layer of causal attention with a residual, the next actions: [B,1,T,da]. */
typedef struct model {
  tokens_scene *s;
  attn_multihead_params layer;
  attn_trajectory_predict_params head;
} model;

static model model_of(int64_t batch, int64_t steps, test_rng *rng) {
  enum { DM = 16, DA = 3 };
  model m;
  memset(&m, 0, sizeof m);
  m.s = tokens_build(batch, steps, 5, DA, DM, 1, rng);
  m.layer.heads = 2;
  attn_tensor *w[4] = {&m.layer.w_q, &m.layer.w_k, &m.layer.w_v, &m.layer.w_o};
  for (int i = 0; i < 4; i++) *w[i] = drawn(ATTN_F32, TEST_BHTD, 1, 1, DM, DM, 0.3, rng);
  m.layer.attention.causal = 1;
  m.head.w = drawn(ATTN_F32, TEST_BHTD, 1, 1, DM, DA, 0.3, rng);
  return m;
}

static attn_tensor model_run(model *m, const uint8_t *valid) {
  const int64_t batch = m->s->y.batch, steps = m->s->x[0].len, dm = m->s->y.dim;
  attn_ctx ctx = test_ctx();
  m->s->y = test_tensor(ATTN_F32, TEST_BHTD, batch, 1, 3 * steps, dm);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, batch, 1, 3 * steps, dm);
  attn_tensor a = test_tensor(ATTN_F32, TEST_BHTD, batch, 1, steps, m->head.w.dim);
  uint8_t *keys = test_mem((size_t)(3 * batch * steps));
  promise_run(&m->s->does);
  m->layer.attention.mask = attn_trajectory_mask(keys, valid, batch, steps);
  assert_int_equal(attn_multihead(y, m->s->y, absent(), absent(), &m->layer, &ctx), ATTN_OK);
  for (int64_t n = 0; n < batch * 3 * steps * dm; n++)
    ((float *)y.data)[n] += ((const float *)m->s->y.data)[n];
  assert_int_equal(attn_trajectory_predict(a, y, &m->head, &ctx), ATTN_OK);
  return a;
}

/* a_t changes later predictions alone, s_t those from step t on. */
void K6_model_sees_the_past(void **state) {
  (void)state;
  test_rng rng = test_seed(6030);
  for (int i = 0; i < 3; i++) {
    model m = model_of(1, 14, &rng);
    const int64_t at = 6, first = i == 2 ? at + 1 : at;
    const attn_tensor before = model_run(&m, NULL);
    oracle_set(&m.s->x[i], 0, 0, at, 0, 5);
    const attn_tensor after = model_run(&m, NULL);
    test_assert_same(test_rows(after, 0, first), test_rows(before, 0, first), "before");
    for (int64_t t = first; t < 14; t++)
      assert_false(test_same(test_rows(after, t, 1), test_rows(before, t, 1)));
  }
}

/* Steps that are not valid, on the left, are as if they were not; all of them: no attention. */
void K6_model_padding(void **state) {
  (void)state;
  test_rng rng = test_seed(6031);
  model m = model_of(1, 20, &rng);
  uint8_t valid[20];
  for (int i = 0; i < 20; i++) valid[i] = i >= 7;
  const attn_tensor padded = model_run(&m, valid);
  for (int i = 0; i < 3; i++) /* whatever the padding holds */
    for (int64_t t = 0; t < 7; t++) test_fill_row(m.s->x[i], 0, 0, t, 8);
  for (int64_t t = 0; t < 7; t++) m.s->times[t] = 0;
  const attn_tensor other = model_run(&m, valid);
  test_assert_same(test_rows(other, 7, 13), test_rows(padded, 7, 13), "contents of padding");
  model part = m;
  tokens_scene s = *m.s;
  part.s = &s, s.does.scene = &s, s.does.out[0] = &s.y;
  for (int i = 0; i < 3; i++) s.x[i] = test_rows(s.x[i], 7, 13);
  s.p.timesteps = s.times = m.s->times + 7;
  const attn_tensor alone = model_run(&part, NULL);
  test_assert_near(test_rows(padded, 7, 13), alone, 1e-5, "the shorter sequence");
  memset(valid, 0, sizeof valid);
  const attn_tensor nothing = model_run(&m, valid);
  attn_ctx ctx = test_ctx();
  attn_tensor bare = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 3);
  assert_int_equal(attn_trajectory_predict(bare, m.s->y, &m.head, &ctx), ATTN_OK);
  test_assert_near(nothing, bare, 1e-6, "no attention");
}

/* Views of the tokens of one kind. */
void K6_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(6032);
  for (int n = 0; n < 4; n++) {
    const attn_tensor y = drawn((attn_dtype)(n % 3), (test_layout)n, 2, 2, 12, 5, 1, &rng);
    for (int i = 0; i < ATTN_TRAJECTORY_TOKENS; i++) {
      const attn_tensor rows = attn_trajectory_rows(y, (attn_trajectory_token)i);
      assert_true(rows.len == 4 && rows.dim == 5 && rows.heads == 2);
      for (int64_t t = 0; t < 4; t++)
        test_assert_same(test_rows(rows, t, 1), test_rows(y, 3 * t + i, 1), "rows");
    }
  }
}

/* No call reads or writes beyond its operands. */
void K6_guards(void **state) {
  (void)state;
  test_rng rng = test_seed(6040);
  for (int n = 0; n < 6; n++) {
    test_where = n % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    returns_scene *r = returns_build(2, 60 + n, n % 3 == 0, &rng);
    tokens_scene *t = tokens_build(2, 33 + n, 5, 3, 9 + n, 0, &rng);
    predict_scene *p = predict_build(2, 33 + n, 9, 2 + n, n % 3, &rng);
    promise_run(&r->does);
    promise_run(&t->does);
    promise_run(&p->does);
    test_where = TEST_HEAP;
  }
}
