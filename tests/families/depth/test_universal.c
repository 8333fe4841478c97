/* tests/families/depth/test_universal.c owns the Universal Transformer against its definition in float64. */

#include "computes.h"
#include "depth.h"

typedef struct universal {
  attn_tensor y, x, count,
      rest; /* count, rest: params.ran and .remainder as tensors of their bits */
  attn_universal_params p;
  promise does;
} universal;

static attn_status universal_call(void *at, attn_ctx *ctx) {
  universal *s = at;
  return attn_universal(s->y, s->x, &s->p, ctx);
}
static size_t universal_ask(void *at, const attn_ctx *ctx) {
  universal *s = at;
  return attn_universal_workspace(s->y, s->x, &s->p, ctx);
}

static universal *universal_of(const depth_shape *shape, int64_t batch, int64_t len, int64_t steps,
                               attn_dtype y_type, test_rng *rng) {
  universal *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->p.block = depth_weights(shape, rng);
  s->x = drawn(shape->type, TEST_PADDED, batch, 1, len, shape->dm, 1, rng);
  s->y = output(y_type, TEST_NEGATIVE, batch, 1, len, shape->dm, &s->does.block[0]);
  s->p.steps = steps;
  s->p.w_p = drawn(shape->type, TEST_BHTD, 1, 1, 1, shape->dm, 1 / sqrt((double)shape->dm), rng);
  s->p.b_p = -0.6f;
  s->count = output(ATTN_F32, TEST_BHTD, 1, 1, 1, batch * len + 1, &s->does.block[1]);
  s->rest = output(ATTN_F32, TEST_BHTD, 1, 1, 1, batch * len + 1, &s->does.block[2]);
  s->p.ran = s->count.data, s->p.remainder = s->rest.data;
  s->does.call = universal_call, s->does.ask = universal_ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

/* What the definition gives; *margin: how far any decision was from being another. */
typedef struct answer {
  cube y;
  int32_t *n;
  double *r, margin;
} answer;

static answer universal_oracle(const universal *s) {
  const attn_universal_params *p = &s->p;
  const int64_t batch = s->x.batch, len = s->x.len, dm = s->x.dim, rows = batch * len;
  const int act = p->w_p.data != NULL, out = act ? (int)p->output : ATTN_UNIVERSAL_LAST;
  const int copy = p->copy_halted == ATTN_SWITCH_DEFAULT ? out == ATTN_UNIVERSAL_LAST
                                                         : p->copy_halted == ATTN_SWITCH_ON;
  const int force = p->force_last == ATTN_SWITCH_DEFAULT ? out == ATTN_UNIVERSAL_ACCUM
                                                         : p->force_last == ATTN_SWITCH_ON;
  const double eps = p->eps == 0 ? (double)0.01f : (double)p->eps;
  answer a = {cube_of(batch, 1, len, dm), NULL, NULL, 1};
  cube state = cube_from(&s->x), u = cube_of(batch, 1, len, dm);
  a.n = test_mem((size_t)(rows + 1) * sizeof *a.n);
  a.r = test_mem((size_t)(rows + 1) * sizeof *a.r);
  double *h = test_mem((size_t)(rows + 1) * sizeof *h),
         *w = test_mem((size_t)(rows + 1) * sizeof *w);
  unsigned char *done = test_mem((size_t)rows + 1);
  memset(a.y.data, 0, (size_t)(rows * dm) * sizeof(double));
  for (int64_t i = 0; i < rows; i++) {
    a.n[i] = 0, a.r[i] = h[i] = 0;
    done[i] = p->block.x_len && i % len >= p->block.x_len[i / len];
  }
  const depth_case block = {&p->block, p->block.self.attention.causal, p->block.x_len, NULL, NULL,
                            NULL};
  for (int64_t n = 0; n < p->steps; n++) {
    int live = 0;
    for (int64_t i = 0; i < rows; i++) live |= !done[i];
    if (!live) break;
    for (int64_t e = 0; e < rows * dm; e++) {
      const int64_t t = e / dm % len, c = e % dm;
      const double f = pow(10000, -2.0 * (double)(c / 2) / (double)dm);
      const double pos = (double)(t + (p->has_start ? p->pos0 : 1)) * f;
      const double step = (double)(n + (p->has_start ? p->step0 : 1)) * f;
      u.data[e] = state.data[e];
      if (!p->no_coord) u.data[e] += c % 2 ? cos(pos) + cos(step) : sin(pos) + sin(step);
    }
    for (int64_t i = 0; i < rows; i++) {
      double z = (double)p->b_p;
      w[i] = 0;
      if (done[i]) continue;
      a.n[i]++;
      if (!act) continue;
      for (int64_t c = 0; c < dm; c++) z += u.data[i * dm + c] * oracle_get(&p->w_p, 0, 0, 0, c);
      const double prob = 1 / (1 + exp(-z));
      a.margin = fmin(a.margin, fabs(h[i] + prob - (1 - eps)));
      if (h[i] + prob > 1 - eps || (force && n == p->steps - 1))
        w[i] = a.r[i] = 1 - h[i], done[i] = 2;
      else
        w[i] = prob, h[i] += prob;
    }
    const cube next = depth_block(&block, &u);
    for (int64_t e = 0; e < rows * dm; e++) {
      const double part = w[e / dm], s1 = next.data[e];
      if (out == ATTN_UNIVERSAL_INTERP) a.y.data[e] = part * s1 + (1 - part) * a.y.data[e];
      if (out == ATTN_UNIVERSAL_ACCUM) a.y.data[e] += part * s1;
      if (!copy || done[e / dm] != 1) state.data[e] = s1;
    }
    for (int64_t i = 0; i < rows; i++) done[i] = done[i] != 0;
  }
  for (int64_t e = 0; e < rows * dm; e++) {
    const int64_t i = e / dm;
    if (out == ATTN_UNIVERSAL_LAST) a.y.data[e] = state.data[e];
    if (p->block.x_len && i % len >= p->block.x_len[i / len]) a.y.data[e] = 0;
  }
  return a;
}

/* Runs it; 0 when a decision was too close for floats to be judged. */
static int universal_check(universal *s, const char *what) {
  answer a = universal_oracle(s);
  promise_run(&s->does);
  if (a.margin < 1e-4) return 0;
  cube_check(&a.y, &s->y, 1e-4, what);
  for (int64_t i = 0; i < s->x.batch * s->x.len; i++) {
    if (s->p.ran) assert_int_equal(s->p.ran[i], a.n[i]);
    if (s->p.remainder && s->p.w_p.data)
      assert_true(fabs((double)s->p.remainder[i] - a.r[i]) < 1e-5);
  }
  return 1;
}

void K1_random(void **state) {
  (void)state;
  int judged = 0;
  const int64_t count = test_count(48, 14);
  for (int64_t n = count; n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(10000 + (uint64_t)n);
    depth_shape x = depth_plain(1, 1, 1);
    x.dm = test_range(&rng, 2, 20), x.kv_heads = test_range(&rng, 1, 2);
    x.heads = x.kv_heads * test_range(&rng, 1, 2);
    x.dk = test_range(&rng, 1, 6), x.dv = test_range(&rng, 1, 6);
    x.dff = test_range(&rng, 1, 30), x.biases = n % 3 != 1, x.plain_norm = n % 4 != 1;
    x.type = (attn_dtype)(n % 7 == 3 ? 1 : n % 7 == 5 ? 2 : 0);
    const int64_t batch = test_range(&rng, 1, 3), len = test_range(&rng, 1, n % 8 ? 9 : 70);
    const int64_t steps = test_range(&rng, 1, 5);
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    universal *s = universal_of(&x, batch, len, steps, n % 9 == 4 ? ATTN_BF16 : ATTN_F32, &rng);
    test_where = TEST_HEAP;
    s->p.output = (attn_universal_output)(n % 3);
    if (n % 3) s->p.copy_halted = (attn_switch)(n / 3 % 3);
    s->p.force_last = (attn_switch)(n / 9 % 3);
    s->p.block.self.attention.causal = n % 5 == 4;
    if (n % 4 == 2) s->p.block.x_len = test_lengths(batch, len, &rng);
    if (n % 6 == 1) s->p.eps = 0.4f;
    if (n % 6 == 2) s->p.b_p = 1;
    if (n % 6 == 3) s->p.b_p = -3;
    if (n % 7 == 1) s->p.no_coord = 1;
    if (n % 7 == 2) s->p.has_start = 1, s->p.pos0 = 0, s->p.step0 = 0;
    if (n % 7 == 4) s->p.has_start = 1, s->p.pos0 = 100, s->p.step0 = -2;
    if (n % 11 == 6) s->p.w_p = absent();
    if (n % 11 == 7) s->p.ran = NULL, s->p.remainder = NULL;
    if (n % 8 == 5) s->p.block.ff.activation = ATTN_ACT_GELU, s->p.block.chunks = 3;
    if (n % 8 == 6) s->p.block.self.attention.softmax_one = 1;
    judged += universal_check(s, "universal");
  }
  assert_true(judged > count * 2 / 3);
}

/* b_p large: one step; very small: all of them. */
void K1_fixed(void **state) {
  (void)state;
  test_rng rng = test_seed(10100);
  depth_shape x = depth_plain(12, 2, 4);
  universal *s = universal_of(&x, 2, 9, 4, ATTN_F32, &rng);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 9, 12), w = s->p.w_p;
  for (int n = 0; n < 2; n++) {
    s->p.w_p = w, s->p.steps = 4;
    s->p.b_p = n ? -60 : 60;
    promise_run(&s->does);
    for (int i = 0; i < 18; i++) {
      assert_int_equal(s->p.ran[i], n ? 4 : 1);
      assert_true(s->p.remainder[i] == (n ? 0.0f : 1.0f));
    }
    test_copy(y, s->y);
    s->p.w_p = absent(), s->p.steps = n ? 4 : 1;
    promise_run(&s->does);
    test_assert_same(s->y, y, "fixed");
    assert_int_equal(s->p.ran[7], n ? 4 : 1);
  }
  /* by hand: signal and block */
  attn_tensor u = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 9, 12);
  test_copy(y, s->x);
  s->p.block.self.attention.one_order = 0;
  attn_block_params block = s->p.block;
  block.self.attention.one_order = 1;
  for (int64_t n = 0; n < 4; n++) {
    attn_universal_signal_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.step = n + 1, p.position.start = 1;
    assert_int_equal(attn_universal_signal(u, y, &p, &ctx), ATTN_OK);
    assert_int_equal(attn_encoder(y, u, &block, &ctx), ATTN_OK);
  }
  promise_run(&s->does);
  test_assert_same(s->y, y, "by hand");
}

/* Constant p = 0.4: weights 0.4, 0.4, 0.2 of the states of three fixed steps. */
void K1_weights(void **state) {
  (void)state;
  test_rng rng = test_seed(10200);
  depth_shape x = depth_plain(10, 2, 5);
  universal *s = universal_of(&x, 1, 6, 9, ATTN_F32, &rng);
  attn_tensor fixed[3], w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 10);
  test_fill_value(w, 0);
  for (int n = 0; n < 3; n++) {
    fixed[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, 10);
    s->p.w_p = absent(), s->p.steps = n + 1;
    promise_run(&s->does);
    test_copy(fixed[n], s->y);
  }
  s->p.w_p = w, s->p.steps = 9, s->p.b_p = (float)log(0.4 / 0.6);
  static const double by[2][3] = {{0.4 * 0.6 * 0.8, 0.4 * 0.8, 0.2}, {0.4, 0.4, 0.2}};
  for (int n = 0; n < 2; n++) {
    s->p.output = n ? ATTN_UNIVERSAL_ACCUM : ATTN_UNIVERSAL_INTERP;
    promise_run(&s->does);
    for (int64_t e = 0; e < 60; e++) {
      double want = 0;
      for (int k = 0; k < 3; k++) want += by[n][k] * oracle_get(&fixed[k], 0, 0, e / 10, e % 10);
      assert_true(fabs(oracle_get(&s->y, 0, 0, e / 10, e % 10) - want) < 2e-6);
    }
    for (int i = 0; i < 6; i++) {
      assert_int_equal(s->p.ran[i], 3);
      assert_true(fabs((double)s->p.remainder[i] - 0.2) < 1e-6);
    }
  }
  /* 1/2 is not above 1 - 1/2: nobody halts in the first step */
  s->p.b_p = 0, s->p.eps = 0.5f;
  promise_run(&s->does);
  assert_true(s->p.ran[0] == 2 && s->p.remainder[0] == 0.5f);
  /* cut off after two steps: weights 0.4, 0.4, or with force_last 0.4, 0.6 */
  s->p.b_p = (float)log(0.4 / 0.6), s->p.eps = 0, s->p.steps = 2;
  for (int n = 0; n < 2; n++) {
    s->p.force_last = n ? ATTN_SWITCH_DEFAULT : ATTN_SWITCH_OFF;
    promise_run(&s->does);
    for (int64_t e = 0; e < 60; e++) {
      const double want = 0.4 * oracle_get(&fixed[0], 0, 0, e / 10, e % 10) +
                          (n ? 0.6 : 0.4) * oracle_get(&fixed[1], 0, 0, e / 10, e % 10);
      assert_true(fabs(oracle_get(&s->y, 0, 0, e / 10, e % 10) - want) < 2e-6);
    }
  }
}

/* An entry is a call of its own, and padding is not there: to the bit. */
void K1_entries(void **state) {
  (void)state;
  static const int32_t lens[] = {40, 0, 17, 1};
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(10300 + (uint64_t)n);
    depth_shape x = depth_plain(16, 2, 8);
    universal *s = universal_of(&x, 4, 40, 5, ATTN_F32, &rng);
    s->p.output = (attn_universal_output)(n % 3), s->p.block.x_len = lens;
    s->p.block.self.attention.causal = n > 2;
    s->p.block.ff.w_1 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 16, 33, 0.3, &rng);
    for (int64_t b = 0; b < 4; b++)
      for (int64_t i = lens[b]; i < 40; i++) test_fill_row(s->x, b, 0, i, NAN);
    promise_run(&s->does);
    for (int64_t b = 0; b < 4; b++) {
      universal one = *s;
      if (!lens[b]) continue;
      one.does.scene = &one, one.p.block.x_len = NULL, one.p.ran = NULL;
      one.x = test_rows(test_one(s->x, b, 1, 0, 1), 0, lens[b]);
      one.y = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, lens[b], 16);
      one.p.remainder = NULL;
      promise_run(&one.does);
      test_assert_same(one.y, test_rows(test_one(s->y, b, 1, 0, 1), 0, lens[b]), "entry");
      for (int64_t i = lens[b]; i < 40; i++) {
        assert_int_equal(s->p.ran[b * 40 + i], 0);
        for (int64_t c = 0; c < 16; c++) assert_true(oracle_get(&s->y, b, 0, i, c) == 0);
      }
    }
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 4, 1, 40, 16);
    test_copy(y, s->y);
    s->y = s->x; /* in place */
    promise_run(&s->does);
    test_assert_same(s->y, y, "in place");
  }
}

void K1_promises(void **state) {
  (void)state;
  for (int n = 1; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(10400 + (uint64_t)n);
    depth_shape x = depth_plain(32, 2, 16);
    x.type = n == 1 ? ATTN_F16 : ATTN_F32;
    universal *s = universal_of(&x, n == 3 ? 9 : 2, n == 3 ? 1 : 66, 3, ATTN_F16, &rng);
    s->p.output = (attn_universal_output)(n % 3), s->p.block.self.attention.causal = n == 1;
    promise_keep(&s->does);
  }
}

void K1_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(10500);
  depth_shape x = depth_plain(12, 2, 4);
  universal *s = universal_of(&x, 2, 9, 4, ATTN_F32, &rng);
  static const int32_t bad[2] = {9, 10};
  universal keep = *s;
#define REJECT(change, status, word)        \
  do {                                      \
    *s = keep;                              \
    change;                                 \
    promise_reject(&s->does, status, word); \
  } while (0)
  REJECT(s->p.eps = -0.5f, ATTN_E_RANGE, "eps");
  REJECT(s->p.eps = 1, ATTN_E_RANGE, "eps");
  REJECT(s->p.eps = ATTN_ZERO, ATTN_E_RANGE, "eps");
  REJECT(s->p.eps = NAN, ATTN_E_RANGE, "eps");
  REJECT(s->p.steps = 0, ATTN_E_RANGE, "steps");
  REJECT(s->p.b_p = INFINITY, ATTN_E_VALUE, "b_p");
  REJECT(s->p.output = ATTN_UNIVERSAL_COUNT, ATTN_E_RANGE, "output");
  REJECT(s->p.copy_halted = ATTN_SWITCH_OFF, ATTN_E_RANGE, "copy_halted");
  REJECT(s->p.force_last = (attn_switch)3, ATTN_E_RANGE, "force_last");
  REJECT(s->p.has_start = 1; s->p.pos0 = INT64_MIN, ATTN_E_RANGE, "pos0");
  REJECT(s->p.block.sublayer = ATTN_SUBLAYER_PRE, ATTN_E_RANGE, "sublayer");
  REJECT(s->p.block.x_len = bad, ATTN_E_RANGE, "x_len");
  REJECT(s->p.block.self.attention.window = attn_window_of(3, -1), ATTN_E_RANGE, "attend");
  REJECT(s->p.block.self.attention.alibi = s->rest.data, ATTN_E_RANGE, "attend");
  REJECT(s->p.block.self.heads = 3, ATTN_E_HEADS, "heads");
  REJECT(s->p.block.self.w_o.data = NULL, ATTN_E_NULL, "w_o");
  REJECT(s->p.block.ff.w_1.len = 11, ATTN_E_SHAPE, "w_1");
  REJECT(s->p.w_p.dim = 11, ATTN_E_SHAPE, "w_p");
  REJECT(s->p.w_p.len = 2; s->p.w_p.stride_len = 0, ATTN_E_SHAPE, "w_p");
  REJECT(s->y.dim = 11, ATTN_E_SHAPE, "y must");
  REJECT(s->y.batch = 1, ATTN_E_SHAPE, "y must");
  REJECT(s->y.data = s->p.block.self.w_q.data, ATTN_E_OVERLAP, "y ");
  REJECT(s->p.ran = s->p.block.ff.w_2.data, ATTN_E_OVERLAP, "ran");
  REJECT(s->p.w_p.data = s->p.remainder, ATTN_E_OVERLAP, "remainder");
  REJECT(s->p.block.self.attention.sinks = s->p.remainder, ATTN_E_OVERLAP, "remainder");
  REJECT(s->p.remainder = (float *)(void *)s->p.ran, ATTN_E_OVERLAP, "ran");
  REJECT(s->p.ran = (int32_t *)((char *)s->count.data + 1), ATTN_E_ALIGN, "ran");
  *s = keep;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_universal(s->y, s->x, NULL, &ctx), ATTN_E_NULL);
  s->x.len = s->y.len = 0;
  promise_run(&s->does);
  *s = keep, s->x.batch = s->y.batch = 0;
  promise_run(&s->does);
}

/* Products below f32; causal attention has ranges of its own and stays in f32. */
void O1_universal(void **state) {
  (void)state;
  test_rng rng = test_seed(10600);
  depth_shape x = depth_plain(32, 2, 16);
  universal *s = universal_of(&x, 2, 66, 2, ATTN_F32, &rng);
  attn_multihead_params *self = &s->p.block.self;
  attn_feed_forward *ff = &s->p.block.ff;
  s->p.w_p = absent(), s->p.ran = NULL, s->p.remainder = NULL;
  test_layer(&s->does, &self->compute, &self->compute_prefer, 0, 0.05, "params.compute");
  test_layer(&s->does, &ff->compute, &ff->compute_prefer, 0, 0.05, "ff.compute");
  test_layer(&s->does, &self->attention.compute, &self->attention.compute_prefer, 1, 0.05,
             "params.compute");
  self->attention.compute = ATTN_COMPUTE_BF16, self->attention.causal = 1;
  promise_reject(&s->does, ATTN_E_VALUE, "params.compute must be ATTN_COMPUTE_F32 in this call");
}
