/* tests/families/training/test_activate_backward.c owns N4, the gradients of activations and gates. */

#include <float.h>

#include "dense.h"

typedef struct scene {
  attn_tensor d_x, d_y, x;
  attn_activate_params p;
  attn_activate_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_activate_backward(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_activate_backward_workspace(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx);
}

typedef struct shape {
  int64_t batch, heads, len, n;
  int gate, one_x, one_g; /* bits: a batch of 1, one head */
  attn_dtype x_type, g_type, y_type, d_type;
  test_layout x_layout, g_layout, y_layout, d_layout;
} shape;

static shape plain(int64_t len, int64_t n) {
  shape z = {1, 1, len, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  return z;
}

static attn_tensor like(const attn_tensor *x, int some, attn_dtype type, test_layout layout,
                        test_block *block) {
  const int one = some && x->stride_batch == 0 && x->stride_head == 0;
  return output(type, layout, one ? 1 : x->batch, one ? 1 : x->heads, x->len, x->dim, block);
}

static void outputs(scene *s, const shape *z, int some) {
  s->d_x = like(&s->x, some, z->d_type, z->d_layout, &s->does.block[0]);
  if (z->gate) s->g.d_gate = like(&s->p.gate, some, z->d_type, z->d_layout, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->g.d_gate;
}

static scene *build(const shape *z, int some, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->x = drawn(z->x_type, z->x_layout, z->one_x & 1 ? 1 : b, z->one_x & 2 ? 1 : h, z->len, z->n, 2,
               rng);
  if (z->gate)
    s->p.gate = drawn(z->g_type, z->g_layout, z->one_g & 1 ? 1 : b, z->one_g & 2 ? 1 : h, z->len,
                      z->n, 1, rng);
  s->d_y = drawn(z->y_type, z->y_layout, b, h, z->len, z->n, 1, rng);
  outputs(s, z, some);
  return s;
}

static scene *again(const scene *s, const shape *z, int some) {
  scene *t = test_mem(sizeof *t);
  *t = *s;
  outputs(t, z, some);
  return t;
}

static void check(const scene *s, const char *what) {
  dense_sum x = dense_open(&s->d_x), gate = dense_open(&s->g.d_gate);
  const int64_t H = s->d_y.heads, len = s->d_y.len;
  for (int64_t r = 0; r < s->d_y.batch * H * len; r++)
    for (int64_t c = 0; c < s->d_y.dim; c++) {
      const int64_t b = r / len / H, h = r / len % H, i = r % len;
      const double d = oracle_get(&s->d_y, b, h, i, c), z = dense_get(&s->x, b, h, i, c);
      const double by = s->p.gate.data ? dense_get(&s->p.gate, b, h, i, c) : 1;
      const act_formed y = act_in_form(&s->p.form, s->p.activation, z, by, s->p.gate.data != NULL);
      const double scale = s->p.form.slope != 0 ? (double)s->p.form.slope : 1;
      const double bound = fabs(by) + fabs((double)s->p.form.gate_add); /* they may cancel */
      const double slope = fabs(act_slope(s->p.activation, scale * z));
      if (s->d_x.data) dense_add(&x, b, h, i, c, d * y.z, 6e-7 * fabs(d) * bound * (1 + slope));
      if (s->g.d_gate.data)
        dense_add(&gate, b, h, i, c, d * y.u, fabs(d) * (2e-6 * fabs(y.u) + 1e-7));
    }
  if (s->d_x.data) dense_check(&x, &s->d_x, what);
  if (s->g.d_gate.data) dense_check(&gate, &s->g.d_gate, what);
}

static shape draw(int64_t k, test_rng *rng) {
  static const int64_t edges[] = {1, 2, 3, 15, 16, 17, 31, 64, 100, 257};
  shape z = plain(test_range(rng, 0, 40), edges[k % 10]);
  z.batch = test_range(rng, 1, 3), z.heads = test_range(rng, 1, 2);
  if (k % 13 == 12) z.n = 4500, z.len %= 5;
  z.gate = (int)(k % 2);
  z.one_x = k % 7 == 0 ? (int)test_range(rng, 1, 3) : 0;
  z.one_g = k % 4 == 3 ? (int)test_range(rng, 1, 3) : 0;
  if (k % 3) {
    z.x_type = (attn_dtype)test_range(rng, 0, 2), z.g_type = (attn_dtype)test_range(rng, 0, 2);
    z.y_type = (attn_dtype)test_range(rng, 0, 2), z.d_type = (attn_dtype)test_range(rng, 0, 2);
  }
  if (k % 2) {
    z.x_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
    z.g_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
    z.y_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
    z.d_layout = (test_layout)test_range(rng, 0, TEST_NEGATIVE);
  }
  return z;
}

void N4_activate_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9440);
  for (int64_t k = test_count(180, 36); k-- > 0; test_mem_release()) {
    const shape z = draw(k, &rng);
    test_where = k % 3 == 1 ? TEST_AFTER_GUARD : k % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, (int)(k / 3 % 2), &rng);
    test_where = TEST_HEAP;
    s->p.activation = (attn_activation)(k % ATTN_ACT_COUNT);
    if (k % 4 > 1) s->p.form.slope = 1.702f;
    if (k % 6 > 3) s->p.form.limit = 0.75f;
    if (k % 4 == 3 && z.gate) s->p.form.gate_add = 1;
    promise_run(&s->does);
    check(s, "gradients of an activation");
    if (k % 5 == 1 && z.len && z.d_type != ATTN_F32) promise_keep(&s->does);
  }
}

/* The derivatives in float64 against differences of the functions, step 1e-5. */
void N4_activate_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9441);
  const double step = 1e-5;
  for (int f = 0; f < ATTN_ACT_COUNT; f++)
    for (int n = 0; n < 200; n++) {
      const double x = 3 * test_normal(&rng);
      if (fabs(x) < 2 * step) continue;
      const double got =
          (act_of((attn_activation)f, x + step) - act_of((attn_activation)f, x - step)) /
          (2 * step);
      const double want = act_slope((attn_activation)f, x);
      value_check(got, want, 1e-9 * (1 + fabs(want) + fabs(act_of((attn_activation)f, x))),
                  ATTN_F32, "slope", f, 0, 0, n);
    }
}

/* Every x that is finite has a finite derivative, but for EXP and RELU2 where they overflow; 0 at corners; tails have
 * their size, and what is not finite stays in its element. */
void N4_activate_far(void **state) {
  (void)state;
  static const float far[] = {0,     -0.0f,  1e-45f, -1e-45f, 1e-38f, -1e-38f, 1e-8f, -1e-8f,
                              0.5f,  -0.5f,  3,      -3,      5,      -5,      8,     -8,
                              9.99f, -9.99f, 10.5f,  -10.5f,  13,     -13,     20,    -20,
                              50,    -50,    88,     -88,     104,    -104,    200,   -200,
                              1e4f,  -1e4f,  1e15f,  -1e15f,  1e30f,  -1e30f,  3e38f, -3e38f};
  enum { N = sizeof far / sizeof *far };
  for (int f = 0; f < ATTN_ACT_COUNT; f++, test_mem_release()) {
    const attn_activation act = (attn_activation)f;
    shape z = plain(3, N + 3);
    test_rng rng = test_seed(9442);
    scene *s = build(&z, 0, &rng);
    s->p.activation = act;
    test_fill_value(s->d_y, 1);
    for (int64_t i = 0; i < 3; i++)
      for (int64_t c = 0; c < N + 3; c++)
        oracle_set(&s->x, 0, 0, i, c,
                   c < N        ? (double)far[c]
                   : c == N     ? (double)INFINITY
                   : c == N + 1 ? -(double)INFINITY
                                : (double)NAN);
    promise_run(&s->does);
    for (int64_t c = 0; c < N; c++) {
      const double x = (double)far[c], got = oracle_get(&s->d_x, 0, 0, 1, c);
      const double want = act_slope(act, x);
      const int grows = act == ATTN_ACT_EXP || act == ATTN_ACT_RELU2;
      if (grows && want > (double)FLT_MAX) {
        assert_true(got > 0 && isinf(got));
        continue;
      }
      if (!(fabs(got) < (double)INFINITY)) fail_msg("act %d at %g is %g", f, x, got);
      value_check(got, want, 5e-7 * (1 + fabs(want)), ATTN_F32, "far", f, 0, 0, c);
      if (fabs(x) >= 3 && fabs(want) > 1e-30) /* far out relative as well */
        value_check(got, want, 4e-5 * fabs(want), ATTN_F32, "tail", f, 0, 0, c);
      if (x <= 0 && (act == ATTN_ACT_RELU || act == ATTN_ACT_RELU2)) assert_true(got == 0);
    }
    const double up = oracle_get(&s->d_x, 0, 0, 1, N), down = oracle_get(&s->d_x, 0, 0, 1, N + 1);
    if (act == ATTN_ACT_GELU || act == ATTN_ACT_GELU_TANH || act == ATTN_ACT_SILU)
      assert_true(up == 1 && fabs(down) < 1e-30);
    if (act != ATTN_ACT_NONE && act != ATTN_ACT_DEFAULT)
      assert_true(isnan(oracle_get(&s->d_x, 0, 0, 1, N + 2)));
    assert_true(fabs(oracle_get(&s->d_x, 0, 0, 2, 0)) <= 1);
    /* nothing comes through a corner, whatever d_y is */
    test_fill_value(s->d_y, (double)NAN);
    promise_run(&s->does);
    if (act == ATTN_ACT_RELU || act == ATTN_ACT_RELU2)
      for (int64_t c = 0; c < N; c++)
        assert_true(far[c] > 0 ? isnan(oracle_get(&s->d_x, 0, 0, 1, c))
                               : oracle_get(&s->d_x, 0, 0, 1, c) == 0);
  }
}

/* With NONE both outputs are linear maps: <d_y, x gate> = <d_x, x> = <d_gate, gate>. */
void N4_activate_adjoint(void **state) {
  (void)state;
  test_rng rng = test_seed(9443);
  for (int64_t k = 0; k < 14; k++, test_mem_release()) {
    shape z = draw(2 * k + 1, &rng);
    z.x_type = z.g_type = z.y_type = z.d_type = ATTN_F32, z.len++;
    scene *s = build(&z, 0, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, z.batch, z.heads, z.len, z.n);
    promise_run(&s->does);
    assert_int_equal(attn_activate(y, s->x, &s->p, &ctx), ATTN_OK);
    const double want = dense_dot(&s->d_y, &y);
    const double size = sqrt(dense_dot(&s->d_y, &s->d_y) * dense_dot(&y, &y));
    assert_true(fabs(dense_dot(&s->x, &s->d_x) - want) <= 1e-5 * size);
    assert_true(fabs(dense_dot(&s->p.gate, &s->g.d_gate) - want) <= 1e-5 * size);
  }
}

/* In place, alone, and added to. */
void N4_activate_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9444);
  for (int n = 0; n < 30; n++, test_mem_release()) {
    shape z = plain(70, n % 2 ? 37 : 130);
    z.gate = 1, z.batch = 2, z.one_g = n % 5 == 4, z.one_x = n % 7 == 6;
    z.y_type = z.d_type = (attn_dtype)(n % 3);
    scene *s = build(&z, 0, &rng);
    s->p.activation = (attn_activation)(n % ATTN_ACT_COUNT);
    promise_run(&s->does);
    scene *t = again(s, &z, 0);
    const int way = n / 3 % 3;
    if (way == 0) t->d_x = absent();
    if (way == 1) t->g.d_gate = absent();
    if (way == 2 && !z.one_x) t->d_y = t->d_x, test_copy(t->d_y, s->d_y);
    promise_run(&t->does);
    if (t->d_x.data) test_assert_same(t->d_x, s->d_x, "d_x");
    if (t->g.d_gate.data) test_assert_same(t->g.d_gate, s->g.d_gate, "d_gate");
  }
}

void N4_activate_accumulate(void **state) {
  (void)state;
  test_rng rng = test_seed(9445);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    shape z = plain(70, 37);
    z.gate = 1, z.batch = 2, z.one_g = n / 3 % 2, z.one_x = n / 6 % 2;
    scene *s = build(&z, 0, &rng);
    s->p.activation = ATTN_ACT_SILU;
    promise_run(&s->does);
    z.d_type = (attn_dtype)(n % 3);
    scene *t = again(s, &z, 0);
    attn_tensor *const from[] = {&s->d_x, &s->g.d_gate}, *const to[] = {&t->d_x, &t->g.d_gate};
    cube old[2];
    for (int i = 0; i < 2; i++) test_fill(*to[i], &rng, test_exact), old[i] = cube_from(to[i]);
    t->g.accumulate = 1;
    promise_run(&t->does);
    for (int i = 0; i < 2; i++) {
      const cube more = cube_from(from[i]);
      for (int64_t c = 0; c < more.batch * more.heads * more.len * more.dim; c++)
        old[i].data[c] += more.data[c];
      cube_check(&old[i], to[i], 2e-7, "added");
    }
  }
}

/* gpt-oss's clamps: nothing passes from a limit on, whatever d_y is there; NaN is no limit. */
void N4_activate_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(9448);
  shape z = plain(1, 7);
  z.gate = 1;
  scene *s = build(&z, 0, &rng);
  const attn_act_form form = {1.702f, 7, 1};
  s->p.activation = ATTN_ACT_SILU, s->p.form = form;
  static const float at[] = {6.9f, 7, 8, -8, -7, 1, NAN};
  for (int c = 0; c < 7; c++) {
    oracle_set(&s->x, 0, 0, 0, c, (double)at[c]), oracle_set(&s->p.gate, 0, 0, 0, c, (double)at[c]);
    oracle_set(&s->d_y, 0, 0, 0, c, c == 1 || c == 2 ? (double)NAN : 1);
  }
  promise_run(&s->does);
  for (int c = 0; c < 7; c++) {
    const double x = oracle_get(&s->d_x, 0, 0, 0, c), u = oracle_get(&s->g.d_gate, 0, 0, 0, c);
    if (c == 6)
      assert_true(isnan(x) && isnan(u));
    else
      assert_true((x == 0) == (c == 1 || c == 2) && (u == 0) == (c > 0 && c < 5));
  }
  test_mem_release();
}

void N4_activate_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9446);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(n == 0 ? 0 : 3, 5);
    if (n == 1) z.batch = 0;
    if (n == 2) z.heads = 0;
    z.gate = 1, z.one_g = 3;
    scene *s = build(&z, 0, &rng);
    if (s->g.d_gate.len) test_fill_value(s->g.d_gate, 7);
    if (n == 3) s->d_x = s->g.d_gate = absent();
    promise_run(&s->does);
    for (int64_t r = 0; n < 3 && r < s->g.d_gate.len; r++)
      assert_true(oracle_get(&s->g.d_gate, 0, 0, r, 1) == 0);
  }
}

void N4_activate_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9447);
  for (int n = 0; n < 18; n++, test_mem_release()) {
    shape z = plain(6, 5);
    z.gate = 1, z.batch = 2;
    scene *s = build(&z, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->d_x.dim = 4, word = "d_x"; break;
      case 1: s->d_x.batch = 1, word = "d_x"; break;
      case 2: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      case 3: s->x.len = 5, word = "x must"; break;
      case 4: s->p.gate.dim = 4, word = "gate"; break;
      case 5: s->p.gate = absent(), want = ATTN_E_NULL, word = "params.gate"; break;
      case 6: s->g.d_gate.len = 3, word = "d_gate"; break;
      case 7:
        s->p.activation = (attn_activation)-1, want = ATTN_E_RANGE, word = "activation";
        break;
      case 8: s->p.form.limit = -7, want = ATTN_E_VALUE, word = "form"; break;
      case 9: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 10: s->d_x.data = s->x.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
      case 11: s->d_x = s->d_y, s->g.accumulate = 1, want = ATTN_E_OVERLAP, word = "d_x"; break;
      case 12: s->d_x.data = s->g.d_gate.data, want = ATTN_E_OVERLAP, word = "d_"; break;
      case 13: s->g.d_gate = s->d_y, want = ATTN_E_OVERLAP, word = "d_gate"; break;
      case 14: s->d_x.stride_len = 1, want = ATTN_E_STRIDE, word = "d_x"; break;
      case 15: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      case 16:
        s->p.gate = s->g.d_gate = absent(), s->p.form.gate_add = 1;
        want = ATTN_E_RANGE, word = "gate_add";
        break;
      default: s->x.batch = 3, word = "x must"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
