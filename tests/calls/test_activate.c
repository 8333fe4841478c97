/* tests/calls/test_activate.c owns activations with a gate against float64, views, in place, special values,
 * promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor y, x;
  attn_activate_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_activate(s->y, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_activate_workspace(s->y, s->x, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, len, n;
  int gate, shared; /* shared: one gate for all entries and heads */
  attn_dtype x_type, g_type, y_type;
  test_layout x_layout, g_layout, y_layout;
} shape;

static shape plain(int64_t len, int64_t n) {
  shape z = {1, 1, len, n, 0, 0, ATTN_F32, ATTN_F32, ATTN_F32, 0, 0, 0};
  return z;
}

static scene *build(const shape *z, attn_activation act, double size, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->x = drawn(z->x_type, z->x_layout, b, h, z->len, z->n, size, rng);
  if (z->gate)
    s->p.gate =
        drawn(z->g_type, z->g_layout, z->shared ? 1 : b, z->shared ? 1 : h, z->len, z->n, 1, rng);
  s->p.activation = act;
  s->y = output(z->y_type, z->y_layout, b, h, z->len, z->n, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

static double value(attn_activation f, double x) {
  const double slope = sqrt(2 / 3.14159265358979323846);
  switch (f) {
    case ATTN_ACT_RELU: return fmax(x, 0);
    case ATTN_ACT_RELU2: return fmax(x, 0) * fmax(x, 0);
    case ATTN_ACT_GELU: return x * erfc(-x / sqrt(2)) / 2;
    case ATTN_ACT_GELU_TANH: return x * (1 + tanh(slope * (x + 0.044715 * x * x * x))) / 2;
    case ATTN_ACT_SILU: return x / (1 + exp(-x));
    case ATTN_ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ATTN_ACT_TANH: return tanh(x);
    case ATTN_ACT_EXP: return exp(x);
    case ATTN_ACT_ELU1: return x > 0 ? x + 1 : exp(x);
    default: return x;
  }
}

static void check(const scene *s, const char *what) {
  /* near their zeros the first three are differences; fabs(x): where they vanish */
  const double loose = 3e-7;
  const attn_act_form *m = &s->p.form;
  for (int64_t b = 0; b < s->y.batch; b++)
    for (int64_t h = 0; h < s->y.heads; h++)
      for (int64_t i = 0; i < s->y.len; i++)
        for (int64_t c = 0; c < s->y.dim; c++) {
          const attn_tensor *g = &s->p.gate;
          const double slope = m->slope > 0 ? (double)m->slope : 1;
          const double limit = m->limit > 0 ? (double)m->limit : (double)INFINITY;
          const double x = fmin(oracle_get(&s->x, b, h, i, c), limit) * slope;
          const double f = value(s->p.activation, x) / slope;
          double gate =
              g->data ? oracle_get(g, g->batch > 1 ? b : 0, g->heads > 1 ? h : 0, i, c) : 1;
          if (g->data) gate = fmax(fmin(gate, limit), -limit) + (double)m->gate_add;
          double size = fabs(f) * 1.2e-6 + (x < 0 ? loose * fmin(fabs(x), 1) : 0) / slope;
          if (m->slope > 0) size += 6e-8 * fabs(x) * (fabs(f) + 2); /* that of slope x */
          double size_gate = fabs(gate) * size;
          if (g->data && m->gate_add != 0) size_gate += 1.5e-7 * fabs(f); /* they cancel */
          value_check(oracle_get(&s->y, b, h, i, c), f * gate, size_gate, s->y.dtype, what, b, h, i,
                      c);
        }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void K7_activate_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7750);
  for (int64_t k = test_count(80, 20); k-- > 0; test_mem_release()) {
    shape z = plain(test_range(&rng, 0, 30), 1);
    z.n = test_range(&rng, 1, k % 3 ? 40 : 200);
    z.batch = test_range(&rng, 1, 3);
    z.heads = test_range(&rng, 1, 2);
    z.gate = k % 2 == 1, z.shared = k % 4 == 3;
    if (k % 3) {
      z.x_type = floats[test_range(&rng, 0, 2)];
      z.g_type = floats[test_range(&rng, 0, 2)];
      z.y_type = floats[test_range(&rng, 0, 2)];
    }
    z.x_layout = (test_layout)test_range(&rng, 0, TEST_LAYOUTS - 1);
    z.g_layout = (test_layout)test_range(&rng, 0, TEST_LAYOUTS - 1);
    z.y_layout = (test_layout)test_range(&rng, 0, TEST_NEGATIVE);
    test_where = k % 3 == 1 ? TEST_AFTER_GUARD : k % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s =
        build(&z, (attn_activation)(k % ATTN_ACT_COUNT), z.y_type == ATTN_F16 ? 1.2 : 3, &rng);
    test_where = TEST_HEAP;
    if (k % 4 > 1) s->p.form.slope = k % 8 > 3 ? 1.702f : 0.5f;
    if (k % 5 > 2) s->p.form.limit = 0.75f;
    if (k % 5 > 1 && z.gate) s->p.form.gate_add = k % 10 > 4 ? 1.0f : -0.5f;
    promise_run(&s->does);
    check(s, "activation");
  }
}

/* A vector that is one long row, and rows that lie end to end, have the bits of single elements. */
void K7_activate_cuts(void **state) {
  (void)state;
  test_rng rng = test_seed(7751);
  for (int act = 0; act < ATTN_ACT_COUNT; act += 3) {
    shape z = plain(1, 5003);
    z.gate = 1;
    scene *s = build(&z, (attn_activation)act, 3, &rng), *rows = test_mem(sizeof *rows);
    promise_run(&s->does);
    check(s, "one row");
    *rows = *s;
    rows->does.scene = rows;
    rows->x = attn_bhtd(s->x.data, ATTN_F32, 1, 1, 5003, 1);
    rows->p.gate = attn_bhtd(s->p.gate.data, ATTN_F32, 1, 1, 5003, 1);
    rows->y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5003, 1);
    promise_run(&rows->does);
    test_assert_same(attn_bhtd(rows->y.data, ATTN_F32, 1, 1, 1, 5003), s->y, "many rows");
    rows->y = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 5003, 1);
    promise_run(&rows->does);
    test_assert_same(rows->y, attn_bhtd(s->y.data, ATTN_F32, 1, 1, 5003, 1), "rows apart");
  }
}

void K7_activate_in_place(void **state) {
  (void)state;
  test_rng rng = test_seed(7752);
  for (int k = 0; k < 12; k++) {
    shape z = plain(9, 77);
    z.x_type = z.g_type = z.y_type = floats[k % 3];
    z.gate = 1;
    scene *s = build(&z, ATTN_ACT_SILU, 2, &rng);
    if (k > 5) s->p.form.slope = 1.5f, s->p.form.limit = 1, s->p.form.gate_add = 1;
    promise_run(&s->does);
    attn_tensor apart = s->y;
    s->y = k % 6 < 3 ? s->x : s->p.gate;
    promise_run(&s->does);
    test_assert_same(s->y, apart, "in place");
  }
}

/* No params: y = x. ATTN_ACT_NONE with a gate: the product. f32 asks for no memory. */
void K7_activate_none(void **state) {
  (void)state;
  test_rng rng = test_seed(7753);
  shape z = plain(7, 13);
  z.gate = 1;
  scene *s = build(&z, ATTN_ACT_NONE, 2, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(ask(s, &ctx), 0);
  promise_run(&s->does);
  check(s, "product");
  assert_int_equal(attn_activate(s->y, s->x, NULL, &ctx), ATTN_OK);
  test_assert_same(s->y, s->x, "nothing");
}

/* NaN stays one, the default one; far out there are limits. */
void K7_activate_special(void **state) {
  (void)state;
  static const float x[] = {NAN, -NAN, INFINITY, -INFINITY, 0, -200, 200, 1e-30f};
  for (int act = 0; act < ATTN_ACT_COUNT; act++) {
    float y[8];
    attn_activate_params p = {(attn_activation)act, absent(), {0, 0, 0}};
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_activate(attn_bhtd(y, ATTN_F32, 1, 1, 1, 8),
                                   attn_bhtd(x, ATTN_F32, 1, 1, 1, 8), &p, &ctx),
                     ATTN_OK);
    for (int i = 0; i < 8; i++) {
      uint32_t bits;
      memcpy(&bits, &y[i], sizeof bits);
      if (i < 2) {
        assert_int_equal(bits, 0x7fc00000u);
        continue;
      }
      double want = value((attn_activation)act, (double)x[i]);
      if (x[i] < 0 && want != want) want = 0; /* -inf times 0 */
      if (fabs(want) > 3.5e38) want = INFINITY;
      if (!((double)y[i] == want || fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 1e-37))
        fail_msg("activation %d of %g is %g, not %g", act, (double)x[i], (double)y[i], want);
    }
  }
}

/* gpt-oss's gate by hand, and what is cut: infinities are, NaN is not. */
void K7_activate_form(void **state) {
  (void)state;
  static const float x[] = {9, -9, 2, NAN, INFINITY, -INFINITY}, g[] = {9, -9, 2, 1, NAN, INFINITY};
  float y[6];
  attn_ctx ctx = test_ctx();
  attn_activate_params p = {ATTN_ACT_SILU, attn_bhtd(g, ATTN_F32, 1, 1, 1, 6), {1.702f, 7, 1}};
  assert_int_equal(attn_activate(attn_bhtd(y, ATTN_F32, 1, 1, 1, 6),
                                 attn_bhtd(x, ATTN_F32, 1, 1, 1, 6), &p, &ctx),
                   ATTN_OK);
  const double want[] = {7 / (1 + exp(-1.702 * 7)) * 8, -9 / (1 + exp(1.702 * 9)) * -6,
                         2 / (1 + exp(-1.702 * 2)) * 3};
  for (int i = 0; i < 3; i++)
    if (!(fabs((double)y[i] - want[i]) <= 2e-6 * fabs(want[i])))
      fail_msg("%d: %g, not %g", i, (double)y[i], want[i]);
  assert_true(isnan(y[3]) && isnan(y[4]) && y[5] == 0);
}

void K7_activate_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7754);
  shape z = plain(200, 21);
  z.batch = 2, z.gate = 1, z.y_type = ATTN_BF16, z.g_type = ATTN_F16;
  promise_keep(&build(&z, ATTN_ACT_GELU, 2, &rng)->does);
}

void K7_activate_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7755);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    shape z = plain(5, 9);
    z.batch = z.heads = 2, z.gate = 1;
    scene *s = build(&z, ATTN_ACT_GELU, 1, &rng);
    const char *word = "";
    attn_status want = ATTN_E_SHAPE;
    switch (n) {
      case 0: s->p.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 1:
        s->p.activation = (attn_activation)-1, want = ATTN_E_RANGE, word = "activation";
        break;
      case 2: s->x.dim++, word = "x must"; break;
      case 3: s->p.gate.len--, word = "params.gate must"; break;
      case 4: s->p.gate.batch = 3, word = "params.gate must"; break;
      case 5: s->y.stride_len = 1, want = ATTN_E_STRIDE, word = "y is an output"; break;
      case 6: s->y.data = (float *)s->x.data + 1, want = ATTN_E_OVERLAP, word = "y is an"; break;
      case 7: s->p.gate.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "params.gate.dtype"; break;
      case 8: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 9: s->p.form.slope = INFINITY, want = ATTN_E_VALUE, word = "form"; break;
      case 10: s->p.form.slope = -1, want = ATTN_E_VALUE, word = "form"; break;
      case 11: s->p.form.limit = NAN, want = ATTN_E_VALUE, word = "form"; break;
      case 12: s->p.form.limit = -1, want = ATTN_E_VALUE, word = "form"; break;
      case 13: s->p.form.gate_add = INFINITY, want = ATTN_E_VALUE, word = "form"; break;
      case 14:
        s->p.gate = absent(), s->p.form.gate_add = 1, want = ATTN_E_RANGE, word = "form.gate_add";
        break;
      default: s->y.dim = 0, word = "y.dim"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
