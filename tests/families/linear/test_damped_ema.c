/* tests/families/linear/test_damped_ema.c owns moving averages of channels: attn_damped_ema. */

#include <stdio.h>

#include "recurrent.h"

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

typedef struct scene {
  attn_tensor y, x;
  attn_damped_ema_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_damped_ema(s->y, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_damped_ema_workspace(s->y, s->x, &s->p, ctx);
}

/* Numbers in 0 .. 1, its ends among them; slow: most of them small. */
static const float *unit(int64_t n, int slow, test_rng *rng) {
  float *x = test_mem((size_t)n * sizeof *x + 1);
  for (int64_t i = 0; i < n; i++) {
    const int64_t kind = test_range(rng, 0, 9);
    const float u = (float)test_range(rng, 0, 1 << 20) / (float)(1 << 20);
    x[i] = kind == 0 ? 0.0f : kind == 1 ? 1.0f : slow ? u * 0.01f : u;
  }
  return x;
}

static attn_damped_ema_set set_of(int64_t n, int slow, test_rng *rng) {
  attn_damped_ema_set s;
  s.alpha = unit(n, slow, rng), s.delta = unit(n, slow, rng);
  s.beta = test_floats(n, 1, rng), s.eta = test_floats(n, 1, rng);
  return s;
}

static scene *build(int64_t n, int64_t batch, int64_t len, int64_t dim, int64_t dims,
                    test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
  s->x = drawn(floats[n % 4 % 3], (test_layout)(n % TEST_LAYOUTS), batch, 1, len, dim, 1, rng);
  s->y = output(floats[n / 3 % 4 % 3], (test_layout)(n / 2 % 4), batch, 1, len, dim,
                &s->does.block[0]);
  test_where = TEST_HEAP;
  s->p.dims = dims, s->p.forward = set_of(dim * dims, (int)(n / 2 % 2), rng);
  s->does.out[0] = &s->y, s->does.call = call, s->does.ask = ask, s->does.scene = s;
  return s;
}

/* One direction by the recurrence, added to y and the sizes of its terms, [T]; h [N] from and to. */
static void one_way(const scene *s, const attn_damped_ema_set *set, int64_t b, int64_t c,
                    int64_t len, int back, double *y, double *size, double *h) {
  const int64_t dims = s->p.dims;
  const double scale =
      s->p.scale == 0 ? (signbit(s->p.scale) ? 0 : 1 / sqrt((double)dims)) : (double)s->p.scale;
  for (int64_t n = 0; n < dims; n++) {
    const double alpha = (double)set->alpha[c * dims + n],
                 fade = 1 - alpha * (double)set->delta[c * dims + n];
    const double beta = (double)set->beta[c * dims + n], eta = (double)set->eta[c * dims + n];
    double all = fabs(h[n]);
    for (int64_t i = 0; i < len; i++) {
      const int64_t t = back ? len - 1 - i : i;
      const double u = alpha * beta * oracle_get(&s->x, b, 0, t, c);
      h[n] = u + fade * h[n], all = fabs(u) + fade * all;
      y[t] += scale * eta * h[n], size[t] += fabs(scale * eta) * all;
    }
  }
}

static void check(const scene *s, const attn_tensor *initial, const char *what) {
  const attn_damped_ema_params *p = &s->p;
  const int64_t dims = p->dims, len = s->x.len;
  double *y = test_mem((size_t)len * sizeof *y + 1), *size = test_mem((size_t)len * sizeof *y + 1),
         *h = test_mem((size_t)dims * sizeof *h);
  for (int64_t b = 0; b < s->x.batch; b++)
    for (int64_t c = 0; c < s->x.dim; c++) {
      const int64_t stop = p->len ? p->len[b] : len;
      for (int64_t t = 0; t < len; t++) {
        y[t] = p->omega && t < stop ? (double)p->omega[c] * oracle_get(&s->x, b, 0, t, c) : 0;
        size[t] = fabs(y[t]);
      }
      for (int64_t n = 0; n < dims; n++) h[n] = initial->data ? oracle_get(initial, b, 0, c, n) : 0;
      one_way(s, &p->forward, b, c, stop, 0, y, size, h);
      for (int64_t n = 0; n < dims && p->final_state.data; n++)
        value_check(oracle_get(&p->final_state, b, 0, c, n), h[n], 1e-6 * (1 + fabs(h[n])),
                    ATTN_F32, "state", b, 0, c, n);
      memset(h, 0, (size_t)dims * sizeof *h);
      if (p->backward.alpha) one_way(s, &p->backward, b, c, stop, 1, y, size, h);
      for (int64_t t = 0; t < len; t++)
        value_check(oracle_get(&s->y, b, 0, t, c), y[t],
                    (double)(dims + 8) * 0x1p-24 * size[t] + 1e-30, s->y.dtype, what, b, 0, t, c);
    }
}

/* Both directions, lengths, residuals, states, every tail of channels, states and rows; any number of workers. */
void M1_ema(void **state) {
  (void)state;
  test_rng rng = test_seed(1950);
  for (int64_t n = test_count(60, 24); n-- > 0; test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 2), len = n % 7 ? test_range(&rng, 0, 70) : n % 2,
                  dim = test_range(&rng, 1, n % 5 ? 21 : 150), dims = test_range(&rng, 1, 9);
    scene *s = build(n, batch, len, dim, dims, &rng);
    attn_damped_ema_params *p = &s->p;
    attn_tensor initial = absent();
    if (n % 3 == 0) p->backward = set_of(dim * dims, (int)(n % 2), &rng);
    if (n % 4) p->omega = test_floats(dim, 1, &rng);
    if (n % 5 == 1) p->scale = n % 2 ? ATTN_ZERO : 0.3f;
    if (n % 4 == 1) p->len = test_lengths(batch, len, &rng);
    if (n % 3 == 1) {
      initial = p->initial_state = drawn(ATTN_F32, TEST_PADDED, batch, 1, dim, dims, 1, &rng);
      p->final_state = output(ATTN_F32, TEST_PADDED, batch, 1, dim, dims, &s->does.block[1]);
      s->does.out[1] = &p->final_state;
    }
    promise_run(&s->does);
    check(s, &initial, "average");
    if (n % 4 == 0 && len) promise_keep(&s->does);
    for (int64_t b = 0; b < batch && p->final_state.data; b++) /* no token: the state as it was */
      for (int64_t c = 0; c < dim && (p->len ? p->len[b] : len) == 0; c++)
        for (int64_t d = 0; d < dims; d++)
          assert_true(oracle_get(&p->final_state, b, 0, c, d) == oracle_get(&initial, b, 0, c, d));
    if (s->x.dtype != s->y.dtype || n % 2 == 0) continue;
    attn_ctx ctx = test_ctx(); /* in place */
    attn_tensor same = test_tensor(s->x.dtype, TEST_BTHD, batch, 1, len, dim);
    test_copy(same, s->x);
    p->final_state = absent();
    assert_int_equal(attn_damped_ema(same, same, p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    test_assert_same(same, s->y, "in place");
  }
}

/* What fades at once leaves no trace, however large it was; both directions in place. */
void M1_ema_sudden(void **state) {
  (void)state;
  static const float ones[2] = {1, 1};
  float x[120], y[120];
  attn_damped_ema_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  for (int i = 0; i < 120; i++) x[i] = y[i] = i % 4 < 2 ? 3e7f : 0.7f + (float)i / 1024;
  p.dims = 1, p.scale = 1, p.forward.alpha = p.forward.delta = ones;
  p.forward.beta = p.forward.eta = ones, p.backward = p.forward;
  const attn_tensor t = attn_bhtd(y, ATTN_F32, 1, 1, 60, 2);
  assert_int_equal(attn_damped_ema(t, t, &p, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
  for (int i = 0; i < 120; i++) assert_true(y[i] == 2 * x[i]);
}

/* States with what rounding leaves: token by token, in pieces and whole are the same bits. */
void M1_ema_pieces(void **state) {
  (void)state;
  test_rng rng = test_seed(1951);
  for (int64_t n = 0; n < 4; n++, test_mem_release()) {
    const int64_t len = 77, dim = 19, dims = 1 + 2 * n;
    scene *s = build(n, 2, len, dim, dims, &rng);
    attn_damped_ema_params *p = &s->p;
    p->omega = test_floats(dim, 1, &rng);
    p->final_state = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, dim, 2 * dims);
    promise_run(&s->does);
    attn_tensor y = test_tensor(s->y.dtype, TEST_BHTD, 2, 1, len, dim);
    attn_tensor kept = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, dim, 2 * dims);
    test_fill_value(kept, 0);
    for (int64_t i = 0, some; i < len; i += some) {
      attn_damped_ema_params q = *p;
      attn_ctx ctx = test_ctx();
      some = n % 2 ? 1 : i % 41 + 1 < len - i ? i % 41 + 1 : len - i;
      q.initial_state = q.final_state = kept;
      if (attn_damped_ema(test_rows(y, i, some), test_rows(s->x, i, some), &q, &ctx) != ATTN_OK)
        fail_msg("%s", ctx.reason);
    }
    test_assert_same(y, s->y, "in pieces");
    test_assert_same(kept, p->final_state, "states");
  }
}

/* Values of mean one and decays near 1: the error does not grow with the tokens. */
void M1_ema_long(void **state) {
  (void)state;
  test_rng rng = test_seed(1952);
  enum { LEN = 2048, DIM = 5, DIMS = 5 };
  static float alpha[DIM * DIMS], delta[DIM * DIMS];
  scene *s = build(0, 1, LEN, DIM, DIMS, &rng);
  for (int64_t t = 0; t < LEN; t++)
    for (int64_t c = 0; c < DIM; c++)
      oracle_set(&s->x, 0, 0, t, c, 1 + 0.1 * oracle_get(&s->x, 0, 0, t, c));
  for (int i = 0; i < DIM * DIMS; i++)
    alpha[i] = 0.3f / (float)(1 + i), delta[i] = i % 3 ? 0.01f / (float)(1 + i % 4) : 0.0f;
  s->p.forward.alpha = alpha, s->p.forward.delta = delta;
  s->p.backward = s->p.forward, s->p.backward.eta = s->p.forward.beta;
  promise_run(&s->does);
  const attn_tensor none = absent();
  check(s, &none, "long");
}

/* attn_recurrent with heads for channels, dk = N, dv = 1. */
void M1_ema_recurrent(void **state) {
  (void)state;
  test_rng rng = test_seed(1953);
  const int64_t len = 40, dim = 7, dims = 6;
  scene *s = build(0, 1, len, dim, dims, &rng);
  const attn_damped_ema_set *set = &s->p.forward;
  promise_run(&s->does);
  attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, dim, len, dims);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, dim, len, dims);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, dim, len, 1);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, dim, len, 1);
  attn_recurrent_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.rule = ATTN_RECURRENT_GLA, p.form = ATTN_RECURRENT_FACTOR;
  p.scale = (float)(1 / sqrt((double)dims));
  p.decay = test_tensor(ATTN_F32, TEST_BHTD, 1, dim, len, dims);
  for (int64_t c = 0; c < dim; c++)
    for (int64_t t = 0; t < len; t++) {
      oracle_set(&v, 0, c, t, 0, oracle_get(&s->x, 0, 0, t, c));
      for (int64_t n = 0; n < dims; n++) {
        const int64_t at = c * dims + n;
        oracle_set(&q, 0, c, t, n, (double)set->eta[at]);
        oracle_set(&k, 0, c, t, n, (double)set->alpha[at] * (double)set->beta[at]);
        oracle_set(&p.decay, 0, c, t, n, 1 - (double)set->alpha[at] * (double)set->delta[at]);
      }
    }
  if (attn_recurrent(o, q, k, v, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
  for (int64_t c = 0; c < dim; c++)
    for (int64_t t = 0; t < len; t++) {
      const double want = oracle_get(&o, 0, c, t, 0);
      assert_true(fabs(oracle_get(&s->y, 0, 0, t, c) - want) < 2e-6 * (1 + fabs(want)));
    }
}

/* A NaN goes from its token on, in its channel; backwards in all of its channel; beyond len nowhere. */
void M1_ema_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(1954);
  const int64_t len = 70, dim = 20, at = 41;
  static const int32_t less[] = {41};
  for (int n = 0; n < 3; n++) {
    scene *s = build(0, 1, len, dim, 5, &rng);
    if (n == 1) s->p.backward = set_of(dim * 5, 0, &rng);
    if (n == 2) s->p.len = less;
    oracle_set(&s->x, 0, 0, at, 3, NAN);
    promise_run(&s->does);
    for (int64_t t = 0; t < len; t++)
      for (int64_t c = 0; c < dim; c++) {
        const double y = oracle_get(&s->y, 0, 0, t, c);
        assert_int_equal(isnan(y), n < 2 && c == 3 && (n == 1 || t >= at));
        if (n == 2 && t >= at) assert_true(y == 0);
      }
  }
}

#define BAD(what, status, word)                      \
  {                                                  \
    const scene was = *s;                            \
    what;                                            \
    promise_reject(&s->does, ATTN_E_##status, word); \
    *s = was;                                        \
  }

void M1_ema_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(1955);
  scene *s = build(0, 2, 9, 6, 3, &rng);
  attn_damped_ema_params *p = &s->p;
  float bad[18] = {0};
  int32_t len[] = {9, 10};
  attn_tensor h = drawn(ATTN_F32, TEST_BHTD, 2, 1, 6, 3, 1, &rng), half = h;
  half.dtype = ATTN_F16;
  const float *odd = (const float *)(const void *)((const char *)s->x.data + 2);
  BAD(memset(p, 0, sizeof *p), NULL, "forward")
  BAD(p->forward.alpha = NULL, NULL, "forward")
  BAD(p->forward.delta = NULL, NULL, "forward")
  BAD(p->forward.beta = NULL, NULL, "forward")
  BAD(p->forward.eta = NULL, NULL, "forward")
  BAD(p->backward.eta = bad, NULL, "backward")
  BAD(p->dims = 0, RANGE, "dims")
  BAD(p->dims = INT64_MAX, OVERFLOW, "array")
  BAD(s->x.data = NULL, NULL, "x")
  BAD(s->x.heads = 2, SHAPE, "x")
  BAD(s->x.dtype = ATTN_I8, DTYPE, "x")
  BAD(s->y.dim = 5, SHAPE, "y")
  BAD(s->y.len = 8, SHAPE, "y")
  BAD(p->initial_state = half, DTYPE, "initial_state")
  BAD(p->final_state = half, DTYPE, "final_state")
  BAD(p->initial_state = h; p->initial_state.dim = 4, SHAPE, "initial_state")
  BAD(p->final_state = h; p->final_state.dim = 2, SHAPE, "final_state")
  BAD(p->initial_state = h; p->initial_state.len = 5, SHAPE, "initial_state")
  BAD(p->initial_state = h; p->backward = p->forward, RANGE, "initial_state")
  BAD(p->final_state = h; p->backward = p->forward, RANGE, "final_state")
  BAD(p->scale = NAN, VALUE, "scale")
  BAD(p->forward.beta = odd, ALIGN, "forward")
  BAD(p->backward = p->forward; p->backward.eta = odd, ALIGN, "backward")
  BAD(p->omega = odd, ALIGN, "omega")
  BAD(p->len = (const int32_t *)(const void *)odd, ALIGN, "len")
  BAD(p->omega = s->y.data, OVERLAP, "y")
  BAD(p->forward.eta = s->y.data, OVERLAP, "y")
  BAD(s->y.data = (char *)s->x.data + 4, OVERLAP, "y")
  BAD(p->final_state = h;
      p->final_state.data = (void *)(uintptr_t)p->forward.eta, OVERLAP, "final_state")
  BAD(p->len = len, RANGE, "len")
  BAD(p->forward.alpha = bad; bad[17] = -0.1f, VALUE, "forward")
  BAD(p->forward.delta = bad; bad[17] = 1.1f, VALUE, "forward")
  BAD(p->backward = p->forward; p->backward.alpha = bad; bad[17] = NAN, VALUE, "backward")
}
#undef BAD
