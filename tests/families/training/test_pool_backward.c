/* tests/families/training/test_pool_backward.c owns N4, the gradients of pooling along the sequence. */

#include "dense.h"

typedef struct scene {
  attn_tensor d_x, d_y, x;
  attn_pool_params p;
  attn_pool_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_pool_backward(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_pool_backward_workspace(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx);
}

static void outputs(scene *s, attn_dtype type, test_layout layout) {
  const attn_tensor *x = &s->x, *w = &s->p.w, *bias = &s->p.bias;
  s->d_x = output(type, layout, x->batch, x->heads, x->len, x->dim, &s->does.block[0]);
  if (w->data) s->g.d_w = output(type, TEST_PADDED, 1, w->heads, w->len, w->dim, &s->does.block[1]);
  if (bias->data)
    s->g.d_bias = output(type, TEST_BHTD, 1, bias->heads, 1, bias->dim, &s->does.block[2]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->g.d_w, s->does.out[2] = &s->g.d_bias;
}

static scene *build(attn_pool_kind kind, int n, int64_t most, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t batch = test_range(rng, 1, 3), heads = test_range(rng, 1, 3);
  const int64_t rows = test_range(rng, 0, most), d = test_range(rng, 1, 30);
  s->p.kind = kind;
  if (kind == ATTN_POOL_DYNAMIC || n % 3) {
    s->p.kernel = test_range(rng, 1, 9), s->p.stride = test_range(rng, 0, s->p.kernel);
    if (n % 7 == 1) s->p.kernel = 150;
  }
  const int64_t segments = test_range(rng, 1, 12);
  const int64_t len = s->p.kernel ? attn_pool_len(rows, 0, &s->p) : segments;
  if (n % 2) s->p.x_len = test_lengths(batch, rows, rng);
  if (!s->p.kernel && n % 5 == 1) s->p.segments = test_lengths(batch, segments, rng);
  s->x = drawn((attn_dtype)(n % 3), (test_layout)(n % TEST_SHARED), batch, heads, rows, d, 1, rng);
  if (kind == ATTN_POOL_MAX && n % 2) /* many equal ones, -0 among them */
    for (int64_t i = 0; i < batch * heads * rows; i++)
      for (int64_t c = 0; c < d; c++)
        oracle_set(&s->x, i / rows / heads, i / rows % heads, i % rows, c,
                   (double)test_range(rng, -2, 0) * (c % 2 ? 0.5 : 1));
  s->d_y =
      drawn((attn_dtype)(n / 3 % 3), (test_layout)(n % TEST_LAYOUTS), batch, heads, len, d, 1, rng);
  if (kind == ATTN_POOL_DYNAMIC) {
    s->p.w = drawn((attn_dtype)(n / 2 % 3), TEST_PADDED, 1, n % 4 < 2 ? 1 : heads, d, s->p.kernel,
                   0.5, rng);
    if (n % 3) s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, s->p.w.heads, 1, s->p.kernel, 1, rng);
  }
  outputs(s, (attn_dtype)(n / 4 % 3), (test_layout)(n % TEST_SHARED));
  return s;
}

static void weighted(const scene *s, dense_sum *sum, int64_t b, int64_t h, int64_t m, int64_t start,
                     int64_t n) {
  const attn_tensor *w = &s->p.w, *bias = &s->p.bias;
  const int64_t d = s->x.dim, wh = w->heads > 1 ? h : 0;
  const int64_t middle = (s->p.kernel - 1) / 2, centre = start + (middle < n ? middle : n - 1);
  double *a = test_mem((size_t)n * 8), *d_a = test_mem((size_t)n * 8),
         *size = test_mem((size_t)n * 8);
  double total = 0, all = 0, top = -(double)INFINITY, most = 0;
  for (int64_t r = 0; r < n; r++) {
    a[r] = bias->data ? oracle_get(bias, 0, wh, 0, r) : 0;
    for (int64_t c = 0; c < d; c++)
      a[r] += oracle_get(&s->x, b, h, centre, c) * oracle_get(w, 0, wh, c, r);
    top = fmax(top, a[r]);
  }
  for (int64_t r = 0; r < n; r++) a[r] = exp(a[r] - top), total += a[r];
  for (int64_t r = 0; r < n; r++) {
    a[r] /= total, d_a[r] = size[r] = 0;
    for (int64_t c = 0; c < d; c++) {
      const double y = oracle_get(&s->d_y, b, h, m, c), x = oracle_get(&s->x, b, h, start + r, c);
      d_a[r] += y * x, size[r] += fabs(y * x);
      if (s->d_x.data) dense_add(&sum[0], b, h, start + r, c, a[r] * y, 2e-5 * fabs(a[r] * y));
    }
    all += a[r] * d_a[r], most += a[r] * size[r];
  }
  for (int64_t r = 0; r < n; r++) {
    const double d_z = a[r] * (d_a[r] - all), e = 2e-5 * a[r] * (size[r] + most) * (1 + fabs(top));
    if (s->g.d_bias.data) dense_add(&sum[2], 0, wh, 0, r, d_z, e);
    for (int64_t c = 0; c < d; c++) {
      const double by = oracle_get(w, 0, wh, c, r), x = oracle_get(&s->x, b, h, centre, c);
      if (s->d_x.data) dense_add(&sum[0], b, h, centre, c, d_z * by, e * fabs(by));
      if (s->g.d_w.data) dense_add(&sum[1], 0, wh, c, r, d_z * x, e * fabs(x));
    }
  }
}

static void check(const scene *s, const char *what) {
  dense_sum sum[3];
  for (int i = 0; i < 3; i++)
    if (s->does.out[i]->data) sum[i] = dense_open(s->does.out[i]);
  for (int64_t b = 0; b < s->x.batch; b++) {
    const int64_t n = s->p.x_len ? s->p.x_len[b] : s->x.len;
    const int64_t segments = s->p.segments ? s->p.segments[b] : s->d_y.len;
    const int64_t blocks = s->p.kernel ? attn_pool_len(n, 0, &s->p) : n < segments ? n : segments;
    const int64_t stride = s->p.stride ? s->p.stride : s->p.kernel;
    for (int64_t at = 0; at < s->x.heads * blocks; at++) {
      const int64_t h = at / blocks, m = at % blocks;
      const int64_t start = s->p.kernel ? m * stride : m * n / blocks;
      int64_t end = s->p.kernel ? start + s->p.kernel : (m + 1) * n / blocks;
      if (end > n) end = n;
      if (s->p.kind == ATTN_POOL_DYNAMIC) {
        weighted(s, sum, b, h, m, start, end - start);
        continue;
      }
      for (int64_t c = 0; c < s->x.dim && s->d_x.data; c++) {
        const double y = oracle_get(&s->d_y, b, h, m, c);
        int64_t first = start;
        for (int64_t i = start; i < end; i++) {
          if (oracle_get(&s->x, b, h, i, c) > oracle_get(&s->x, b, h, first, c)) first = i;
          if (s->p.kind == ATTN_POOL_MEAN)
            dense_add(&sum[0], b, h, i, c, y / (double)(end - start), 4e-6 * fabs(y));
        }
        if (s->p.kind == ATTN_POOL_MAX) dense_add(&sum[0], b, h, first, c, y, 4e-6 * fabs(y));
      }
    }
  }
  for (int i = 0; i < 3; i++)
    if (s->does.out[i]->data) dense_check(&sum[i], s->does.out[i], what);
}

void N4_pool_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9495);
  for (int n = 0; n < (int)test_count(150, 60); n++, test_mem_release()) {
    scene *s =
        build((attn_pool_kind)(n % ATTN_POOL_COUNT), n / ATTN_POOL_COUNT, n % 8 ? 30 : 300, &rng);
    promise_run(&s->does);
    check(s, n % 3 == 0 ? "means" : n % 3 == 1 ? "maxima" : "weighted sums");
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* Rows that do not exist are not read; each output alone has its bits; sums; rejections. */
void N4_pool_backward_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9496);
  for (int kind = 0; kind < ATTN_POOL_COUNT; kind++, test_mem_release()) {
    scene *s = test_mem(sizeof *s), *t = test_mem(sizeof *t);
    int32_t len[2] = {11, 24};
    memset(s, 0, sizeof *s);
    s->p.kind = (attn_pool_kind)kind, s->p.kernel = 5, s->p.stride = 2, s->p.x_len = len;
    const int64_t blocks = attn_pool_len(24, 0, &s->p);
    s->x = drawn(ATTN_F32, TEST_BHTD, 2, 2, 24, 7, 1, &rng);
    s->d_y = drawn(ATTN_F32, TEST_BHTD, 2, 2, blocks, 7, 1, &rng);
    if (kind == ATTN_POOL_DYNAMIC) {
      s->p.w = drawn(ATTN_F32, TEST_BHTD, 1, 1, 7, 5, 1, &rng);
      s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 5, 1, &rng);
    }
    outputs(s, ATTN_F32, TEST_BHTD);
    promise_run(&s->does);
    check(s, "lengths");
    *t = *s;
    outputs(t, ATTN_F32, TEST_BHTD), t->does.scene = t;
    for (int h = 0; h < 2; h++) {
      for (int64_t i = 11; i < 24; i++) test_fill_row(s->x, 0, h, i, (double)NAN);
      for (int64_t m = attn_pool_len(11, 0, &s->p); m < blocks; m++)
        test_fill_row(s->d_y, 0, h, m, (double)INFINITY);
    }
    promise_run(&t->does);
    for (int n = 0; n < (kind == ATTN_POOL_DYNAMIC ? 3 : 1); n++) {
      test_assert_same(*t->does.out[n], *s->does.out[n], "not read");
      *t = *s;
      outputs(t, ATTN_F32, TEST_PADDED), t->does.scene = t;
      for (int i = 0; i < 3; i++)
        if (i != n) *t->does.out[i] = absent();
      promise_run(&t->does);
      test_assert_same(*t->does.out[n], *s->does.out[n], "alone");
      test_fill_value(*t->does.out[n], 3), t->g.accumulate = 1;
      promise_run(&t->does);
      for (int64_t c = 0; c < t->does.out[n]->dim; c++)
        value_check(oracle_get(t->does.out[n], 0, 0, 0, c),
                    3 + oracle_get(s->does.out[n], 0, 0, 0, c), 1e-5, ATTN_F32, "added", 0, 0, n,
                    c);
      *t = *s;
      outputs(t, ATTN_F32, TEST_BHTD), t->does.scene = t;
      promise_run(&t->does);
    }
#define REFUSE_(status, word, change)       \
  {                                         \
    const scene was = *s;                   \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  }
    REFUSE_(ATTN_E_SHAPE, "d_x", s->d_x.len = 23)
    REFUSE_(ATTN_E_SHAPE, "y.len", s->d_y.len = blocks - 1)
    REFUSE_(ATTN_E_NULL, "x", s->x.data = NULL)
    REFUSE_(ATTN_E_NULL, "d_y", s->d_y.data = NULL)
    REFUSE_(ATTN_E_DTYPE, "d_x", s->d_x.dtype = ATTN_I8)
    REFUSE_(ATTN_E_RANGE, "kind", s->p.kind = ATTN_POOL_COUNT)
    REFUSE_(ATTN_E_RANGE, "stride", s->p.stride = 6)
    REFUSE_(ATTN_E_RANGE, "accumulate", s->g.accumulate = 3)
    REFUSE_(ATTN_E_RANGE, "x_len", len[0] = 25)
    len[0] = 11;
    REFUSE_(ATTN_E_OVERLAP, "d_x", s->d_x = s->x)
    if (kind != ATTN_POOL_DYNAMIC) {
      REFUSE_(ATTN_E_NULL, "d_w", s->g.d_w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 7, 5))
    } else {
      REFUSE_(ATTN_E_SHAPE, "d_w", s->g.d_w.len = 6)
      REFUSE_(ATTN_E_SHAPE, "d_bias", s->g.d_bias.dim = 4)
      REFUSE_(ATTN_E_NULL, "d_bias", s->p.bias = absent())
    }
  }
  static float x[4][1] = {{1}, {NAN}, {5}, {NAN}}, d[4][1], one[1] = {2}; /* a NaN is the maximum */
  attn_pool_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.kind = ATTN_POOL_MAX, p.kernel = 4;
  assert_int_equal(
      attn_pool_backward(attn_bhtd(d, ATTN_F32, 1, 1, 4, 1), attn_bhtd(one, ATTN_F32, 1, 1, 1, 1),
                         attn_bhtd(x, ATTN_F32, 1, 1, 4, 1), &p, NULL, &ctx),
      ATTN_OK);
  assert_true(d[0][0] == 0 && d[1][0] == 2 && d[2][0] == 0 && d[3][0] == 0);
}
