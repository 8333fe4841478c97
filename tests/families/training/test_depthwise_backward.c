/* tests/families/training/test_depthwise_backward.c owns N4, the gradients of convolution of each column by itself. */

#include "dense.h"

typedef struct scene {
  attn_tensor d_x, d_w, d_y, x, w;
  attn_convolve_params p;
  attn_convolve_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_convolve_depthwise_backward(s->d_x, s->d_w, s->d_y, s->x, s->w, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_convolve_depthwise_backward_workspace(s->d_x, s->d_w, s->d_y, s->x, s->w, &s->p,
                                                    &s->g, ctx);
}

typedef struct shape {
  int64_t batch, heads, rows, dim, kernel, stride, dilation;
  attn_pad pad;
  int lengths, own_w, columns;
  attn_dtype x_type, y_type, w_type, d_type;
  test_layout x_layout, y_layout, d_layout;
} shape;

/* The first row of block m of n rows and how many blocks there are, in the words of the specification. */
static int64_t start_of(const shape *z, int64_t n, int64_t m, int64_t *count) {
  const int64_t reach = (z->kernel - 1) * z->dilation + 1;
  *count = (n + z->stride - 1) / z->stride;
  if (z->pad == ATTN_PAD_DROP)
    for (*count = 0; *count * z->stride + reach <= n;) ++*count;
  if (z->pad == ATTN_PAD_SAME) return m * z->stride - (z->kernel - 1) / 2 * z->dilation;
  if (z->pad == ATTN_PAD_LEFT) return m * z->stride - ((*count - 1) * z->stride + reach - n);
  return m * z->stride;
}

static void outputs(scene *s, const shape *z) {
  s->d_x =
      output(z->d_type, z->d_layout, s->x.batch, s->x.heads, s->x.len, s->x.dim, &s->does.block[0]);
  s->d_w = output(z->d_type, TEST_PADDED, 1, s->w.heads, s->w.len, s->w.dim, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->d_w;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  int64_t m;
  (void)start_of(z, z->rows, 0, &m);
  s->x = drawn(z->x_type, z->x_layout, z->batch, z->heads, z->rows, z->dim, 1, rng);
  s->w = drawn(z->w_type, TEST_PADDED, 1, z->own_w ? z->heads : 1, z->kernel,
               z->columns ? z->dim : 1, 1, rng);
  s->d_y = drawn(z->y_type, z->y_layout, z->batch, z->heads, m, z->dim, 1, rng);
  s->p.pad = z->pad, s->p.stride = z->stride, s->p.dilation = z->dilation;
  if (z->lengths) s->p.x_len = test_lengths(z->batch, z->rows, rng);
  outputs(s, z);
  return s;
}

static void check(const scene *s, const shape *z, const char *what) {
  dense_sum x = dense_open(&s->d_x), w = dense_open(&s->d_w);
  for (int64_t b = 0; b < z->batch; b++)
    for (int64_t h = 0; h < z->heads; h++) {
      const int64_t n = s->p.x_len ? s->p.x_len[b] : z->rows;
      int64_t count;
      (void)start_of(z, n, 0, &count);
      for (int64_t m = 0; m < count; m++)
        for (int64_t c = 0; c < z->dim; c++) {
          const double d = oracle_get(&s->d_y, b, h, m, c);
          for (int64_t r = 0; r < z->kernel; r++) {
            const int64_t i = start_of(z, n, m, &count) + r * z->dilation;
            if (i < 0 || i >= n) continue;
            const double by = oracle_get(&s->w, 0, z->own_w ? h : 0, r, z->columns ? c : 0);
            const double from = oracle_get(&s->x, b, h, i, c);
            if (s->d_x.data) dense_add(&x, b, h, i, c, d * by, 4e-6 * fabs(d * by));
            if (s->d_w.data)
              dense_add(&w, 0, h, r, z->columns ? c : 0, d * from, 4e-6 * fabs(d * from));
          }
        }
    }
  if (s->d_x.data) dense_check(&x, &s->d_x, what);
  if (s->d_w.data) dense_check(&w, &s->d_w, what);
}

static shape some_shape(test_rng *rng, int64_t most) {
  shape z;
  memset(&z, 0, sizeof z);
  z.batch = test_range(rng, 1, 3), z.heads = test_range(rng, 1, 3);
  z.rows = test_range(rng, 0, most), z.dim = test_range(rng, 1, 40);
  if (z.dim > 35) z.dim += 70; /* more than are worked on at once */
  z.kernel = test_range(rng, 1, 5), z.stride = test_range(rng, 1, 4);
  z.dilation = test_range(rng, 1, 3), z.pad = (attn_pad)test_range(rng, 1, 4);
  z.lengths = (int)test_range(rng, 0, 1), z.own_w = (int)test_range(rng, 0, 1);
  z.columns = (int)test_range(rng, 0, 1);
  z.x_type = (attn_dtype)(test_u64(rng) % 3), z.y_type = (attn_dtype)(test_u64(rng) % 3);
  z.w_type = (attn_dtype)(test_u64(rng) % 3), z.d_type = (attn_dtype)(test_u64(rng) % 3);
  z.x_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  z.y_layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
  z.d_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  return z;
}

void N4_depthwise_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9490);
  for (int64_t n = test_count(150, 50); n-- > 0; test_mem_release()) {
    const shape z = some_shape(&rng, n % 8 ? 30 : 250);
    scene *s = build(&z, &rng);
    promise_run(&s->does);
    check(s, &z, "by columns");
    if (n % 4 == 0 && z.rows > 0) promise_keep(&s->does);
  }
}

/* Rows enough for several runs of a sum, and more taps than are joined at once. */
void N4_depthwise_backward_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9491);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = some_shape(&rng, 10);
    z.rows = 1300, z.batch = n == 2 ? 2 : 1, z.heads = 1, z.dim = 18, z.columns = n % 2;
    z.d_type = ATTN_F32, z.lengths = n == 2, z.kernel = n < 2 ? 150 : 4, z.stride = n < 2 ? 1 : 2;
    scene *s = build(&z, &rng);
    promise_run(&s->does);
    check(s, &z, "many rows");
  }
}

/* <d_y, A x> = <A^T d_y, x>, with forward as the map. */
void N4_depthwise_backward_adjoint(void **state) {
  (void)state;
  test_rng rng = test_seed(9492);
  for (int n = 0; n < 20; n++, test_mem_release()) {
    shape z = some_shape(&rng, 60);
    z.d_type = z.x_type = z.y_type = z.w_type = ATTN_F32;
    scene *s = build(&z, &rng);
    const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, z.batch, z.heads, s->d_y.len, z.dim);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_convolve_depthwise(y, s->x, s->w, &s->p, &ctx), ATTN_OK);
    promise_run(&s->does);
    const double a = dense_dot(&y, &s->d_y), b = dense_dot(&s->d_x, &s->x);
    const double c = dense_dot(&s->d_w, &s->w);
    if (!(fabs(a - b) <= 1e-4 * (1 + fabs(a))) || !(fabs(a - c) <= 1e-4 * (1 + fabs(a))))
      fail_msg("%d: %g, %g and %g", n, a, b, c);
  }
}

/* Rows that do not exist are not read; each output alone has its bits; sums; rejections. */
void N4_depthwise_backward_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9493);
  for (int columns = 0; columns < 2; columns++, test_mem_release()) {
    shape z = some_shape(&rng, 9);
    z.batch = 2, z.heads = 2, z.rows = 24, z.dim = 21, z.kernel = 3, z.stride = 1;
    z.dilation = 1, z.pad = ATTN_PAD_LEFT, z.lengths = 1, z.own_w = 0, z.columns = columns;
    z.x_type = z.y_type = z.w_type = z.d_type = ATTN_F32;
    z.x_layout = z.y_layout = TEST_BHTD;
    scene *s = build(&z, &rng), *t = test_mem(sizeof *t);
    int32_t len[2] = {11, 24};
    s->p.x_len = len, s->p.accumulate = 1;
    promise_run(&s->does);
    check(s, &z, "lengths");
    *t = *s;
    outputs(t, &z), t->does.scene = t;
    for (int64_t i = 11; i < 24; i++)
      for (int h = 0; h < 2; h++) {
        test_fill_row(s->x, 0, h, i, (double)NAN), test_fill_row(s->d_y, 0, h, i, (double)INFINITY);
      }
    promise_run(&t->does);
    for (int n = 0; n < 2; n++) test_assert_same(*t->does.out[n], *s->does.out[n], "not read");
    for (int n = 0; n < 4; n++) {
      *t = *s;
      outputs(t, &z), t->does.scene = t;
      *t->does.out[!(n % 2)] = absent();
      if (n > 1) t->does.out[n % 2]->dtype = ATTN_BF16;
      promise_run(&t->does);
      if (n < 2) test_assert_same(*t->does.out[n], *s->does.out[n], "alone");
      test_fill_value(*t->does.out[n % 2], 3), t->g.accumulate = 1;
      promise_run(&t->does);
      for (int64_t c = 0; c < t->does.out[n % 2]->dim; c++)
        value_check(oracle_get(t->does.out[n % 2], 0, 0, 0, c),
                    3 + oracle_get(s->does.out[n % 2], 0, 0, 0, c), 1e-5, t->does.out[n % 2]->dtype,
                    "added", 0, 0, n, c);
    }
#define REFUSE_(status, word, change)       \
  {                                         \
    const scene was = *s;                   \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  }
    REFUSE_(ATTN_E_SHAPE, "d_x", s->d_x.len = 23)
    REFUSE_(ATTN_E_SHAPE, "d_w", s->d_w.len = 2)
    REFUSE_(ATTN_E_SHAPE, "y.len", s->d_y.len = 23)
    REFUSE_(ATTN_E_SHAPE, "y.dim", s->d_y.dim = 20)
    REFUSE_(ATTN_E_NULL, "x", s->x.data = NULL)
    REFUSE_(ATTN_E_NULL, "w", s->w.data = NULL)
    REFUSE_(ATTN_E_NULL, "params.bias", s->g.d_bias = s->d_w)
    REFUSE_(ATTN_E_VALUE, "params.bias", s->p.bias = s->w)
    REFUSE_(ATTN_E_DTYPE, "d_w", s->d_w.dtype = ATTN_I8)
    REFUSE_(ATTN_E_RANGE, "pad", s->p.pad = ATTN_PAD_COUNT)
    REFUSE_(ATTN_E_RANGE, "dilation", s->p.dilation = -1)
    REFUSE_(ATTN_E_RANGE, "accumulate", s->g.accumulate = -1)
    REFUSE_(ATTN_E_RANGE, "x_len", len[0] = 25)
    len[0] = 11;
    REFUSE_(ATTN_E_OVERLAP, "d_x", s->d_x = s->x)
  }
}
