/* tests/families/training/test_norm_backward.c owns N4, the gradients of layer norm and RMS norm. */

#include "dense.h"

typedef struct scene {
  attn_tensor d_x, d_y, x;
  attn_layer_norm_params p;
  attn_layer_norm_gradients g;
  attn_tensor gain, bias; /* [1,1,1,n] around g.d_gain and g.d_bias */
  int rms;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->rms ? attn_rms_norm_backward(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx)
                : attn_layer_norm_backward(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->rms ? attn_rms_norm_backward_workspace(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx)
                : attn_layer_norm_backward_workspace(s->d_x, s->d_y, s->x, &s->p, &s->g, ctx);
}

typedef struct shape {
  int64_t batch, heads, len, n;
  int residual, sum, gain, bias, one_x, one_r; /* bits: a batch of 1, one head */
  int rms, less;
  attn_dtype x_type, r_type, s_type, y_type, d_type;
  test_layout x_layout, r_layout, y_layout, d_layout;
} shape;

static shape plain(int64_t len, int64_t n) {
  shape z = {1, 1, len, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  return z;
}

static attn_tensor like(const attn_tensor *x, int some, attn_dtype type, test_layout layout,
                        test_block *block) {
  const int one = some && x->stride_batch == 0 && x->stride_head == 0;
  return output(type, layout, one ? 1 : x->batch, one ? 1 : x->heads, x->len, x->dim, block);
}

static void outputs(scene *s, const shape *z, int some) {
  s->d_x = like(&s->x, some, z->d_type, z->d_layout, &s->does.block[0]);
  if (z->residual)
    s->g.d_residual = like(&s->p.residual, some, z->d_type, z->d_layout, &s->does.block[1]);
  if (z->gain)
    s->gain = output(ATTN_F32, TEST_BHTD, 1, 1, 1, z->n, &s->does.block[2]),
    s->g.d_gain = s->gain.data;
  if (z->bias)
    s->bias = output(ATTN_F32, TEST_BHTD, 1, 1, 1, z->n, &s->does.block[3]),
    s->g.d_bias = s->bias.data;
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->g.d_residual;
  s->does.out[2] = &s->gain, s->does.out[3] = &s->bias;
}

static scene *build(const shape *z, int some, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->x =
      test_tensor(z->x_type, z->x_layout, z->one_x & 1 ? 1 : b, z->one_x & 2 ? 1 : h, z->len, z->n);
  for (int64_t r = 0; r < s->x.batch * s->x.heads * z->len; r++) {
    static const double means[] = {0, 0, 0.5, -3, 100, 1e4, 3e6};
    const double mean = means[test_range(rng, 0, z->x_type == ATTN_F32 ? 6 : 3)];
    const double size = test_range(rng, 0, 3) ? 1 : 0.02;
    for (int64_t c = 0; c < z->n; c++)
      oracle_set(&s->x, r / z->len / s->x.heads, r / z->len % s->x.heads, r % z->len, c,
                 mean + size * test_normal(rng));
  }
  if (z->residual)
    s->p.residual = drawn(z->r_type, z->r_layout, z->one_r & 1 ? 1 : b, z->one_r & 2 ? 1 : h,
                          z->len, z->n, 1, rng);
  s->d_y = drawn(z->y_type, z->y_layout, b, h, z->len, z->n, 1, rng);
  if (z->sum) s->g.d_sum = drawn(z->s_type, z->x_layout, b, h, z->len, z->n, 1, rng);
  if (z->gain) s->p.norm.gain = test_floats(z->n, 1, rng);
  if (z->bias) s->p.norm.bias = test_floats(z->n, 1, rng);
  s->rms = z->rms, s->p.norm.gain_less_one = z->less;
  s->p.norm.kind = (attn_norm_kind)test_range(rng, 0, 1); /* what nobody reads */
  outputs(s, z, some);
  return s;
}

static scene *again(const scene *s, const shape *z, int some) {
  scene *t = test_mem(sizeof *t);
  *t = *s;
  outputs(t, z, some);
  return t;
}

static double gain_of(const scene *s, int64_t c) {
  return s->p.norm.gain ? (double)(s->p.norm.gain[c] + (float)s->p.norm.gain_less_one) : 1;
}

/* h of a row, and its 1 / sqrt(..). */
static double rows(const scene *s, int64_t b, int64_t h, int64_t i, double *out) {
  const double eps = s->p.norm.eps != 0 ? (double)s->p.norm.eps : s->rms ? 1e-6 : 1e-5;
  const int64_t n = s->x.dim;
  double mean = 0, v = 0;
  for (int64_t c = 0; c < n; c++) {
    out[c] = dense_get(&s->x, b, h, i, c);
    if (s->p.residual.data)
      out[c] = (double)(float)(out[c] + dense_get(&s->p.residual, b, h, i, c));
    mean += out[c] / (double)n;
  }
  if (s->rms) mean = 0;
  for (int64_t c = 0; c < n; c++) v += (out[c] - mean) * (out[c] - mean) / (double)n;
  for (int64_t c = 0; c < n; c++) out[c] = (out[c] - mean) / sqrt(v + eps);
  return 1 / sqrt(v + eps);
}

typedef struct wanted {
  dense_sum x, residual, gain, bias;
} wanted;

static wanted oracle(const scene *s) {
  const attn_tensor one = attn_bhtd(NULL, ATTN_F32, 1, 1, 1, s->x.dim);
  wanted y = {dense_open(&s->d_x), dense_open(&s->g.d_residual), dense_open(&one),
              dense_open(&one)};
  const double u = 1.0 / (1 << 24);
  const int64_t H = s->d_y.heads, len = s->d_y.len, n = s->x.dim, all = s->d_y.batch * H * len;
  double *row = test_mem((size_t)n * sizeof *row);
  for (int64_t r = 0; r < all; r++) {
    const int64_t b = r / len / H, h = r / len % H, i = r % len;
    const double rho = rows(s, b, h, i, row), runs = 64 + 16 + (double)all / 64;
    double mean = 0, both = 0, size = 0, sizes = 0;
    for (int64_t c = 0; c < n; c++) {
      const double d = oracle_get(&s->d_y, b, h, i, c), g = d * gain_of(s, c);
      mean += g / (double)n, both += g * row[c] / (double)n;
      size += fabs(g) / (double)n, sizes += fabs(g) * (1 + fabs(row[c])) / (double)n;
      dense_add(&y.gain, 0, 0, 0, c, d * row[c], u * runs * fabs(d) * (1 + fabs(row[c])));
      dense_add(&y.bias, 0, 0, 0, c, d, u * runs * fabs(d));
    }
    if (s->rms) mean = 0;
    for (int64_t c = 0; c < n; c++) {
      const double g = oracle_get(&s->d_y, b, h, i, c) * gain_of(s, c);
      const double more = s->g.d_sum.data ? oracle_get(&s->g.d_sum, b, h, i, c) : 0;
      const double x = rho * (g - mean - row[c] * both) + more;
      const double e = 16 * u * rho * (fabs(g) + size + (1 + fabs(row[c])) * sizes) +
                       4 * u * (fabs(x) + fabs(more));
      if (s->d_x.data) dense_add(&y.x, b, h, i, c, x, e);
      if (s->g.d_residual.data) dense_add(&y.residual, b, h, i, c, x, e);
    }
  }
  return y;
}

static void check(const scene *s, const char *what) {
  const wanted y = oracle(s);
  if (s->d_x.data) dense_check(&y.x, &s->d_x, what);
  if (s->g.d_residual.data) dense_check(&y.residual, &s->g.d_residual, what);
  if (s->g.d_gain) dense_check(&y.gain, &s->gain, what);
  if (s->g.d_bias) dense_check(&y.bias, &s->bias, what);
}

static shape draw(int64_t k, test_rng *rng) {
  static const int64_t edges[] = {1, 2, 3, 15, 16, 17, 31, 64, 100, 257, 384, 513};
  shape z = plain(test_range(rng, 0, 40), edges[k % 12]);
  if (k % 5 == 0) z.len = 70, z.n = test_range(rng, 1, 40);
  z.batch = test_range(rng, 1, 3), z.heads = test_range(rng, 1, 2);
  if (z.n > 100) z.len %= 9;
  if (k % 29 == 0) z.n = 2100;
  z.residual = k % 2 == 1, z.sum = k % 3 != 0, z.gain = k / 2 % 2 == 1, z.bias = k / 3 % 2 == 1;
  z.rms = k / 5 % 2 == 1, z.less = k / 7 % 2 == 1;
  z.one_x = k % 7 == 0 ? (int)test_range(rng, 1, 3) : 0;
  z.one_r = k % 4 == 3 ? (int)test_range(rng, 1, 3) : 0;
  if (k % 3) {
    z.x_type = (attn_dtype)test_range(rng, 0, 2), z.r_type = (attn_dtype)test_range(rng, 0, 2);
    z.s_type = (attn_dtype)test_range(rng, 0, 2), z.y_type = (attn_dtype)test_range(rng, 0, 2);
    z.d_type = (attn_dtype)test_range(rng, 0, 2);
  }
  z.x_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.r_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.y_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.d_layout = (test_layout)test_range(rng, 0, TEST_NEGATIVE);
  return z;
}

void N4_norm_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9420);
  for (int64_t k = test_count(180, 36); k-- > 0; test_mem_release()) {
    const shape z = draw(k, &rng);
    test_where = k % 3 == 1 ? TEST_AFTER_GUARD : k % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, (int)(k / 3 % 2), &rng);
    test_where = TEST_HEAP;
    if (k % 8 == 0) s->p.norm.eps = 0.25f;
    promise_run(&s->does);
    check(s, "gradients of a norm");
    if (k % 5 == 1 && z.len && (z.gain || z.bias)) promise_keep(&s->does);
  }
}

/* Sums over more rows than a run of runs, in one entry and in many of one row; sums of f32 in the order that is
 * promised. */
void N4_norm_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9421);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(n == 1 ? 1 : n == 2 ? 50 : 5000, 5);
    z.gain = z.bias = 1, z.rms = n & 1;
    if (n == 1) z.batch = 400, z.heads = 5, z.y_layout = TEST_PADDED;
    if (n == 2) z.heads = 7, z.batch = 9, z.x_layout = TEST_BTHD;
    if (n == 3) z.len = 64 * 600, z.n = 3;
    scene *s = build(&z, 0, &rng);
    promise_run(&s->does);
    check(s, "many rows");
    const int64_t all = z.batch * z.heads * z.len;
    for (int64_t c = 0; c < z.n; c++) {
      float far = 0, near = 0, run = 0;
      for (int64_t r = 0; r < all; r++) {
        run += (float)oracle_get(&s->d_y, r / z.len / z.heads, r / z.len % z.heads, r % z.len, c);
        if (r % 64 == 63 || r == all - 1) near += run, run = 0;
        if (r % (64 * 512) == 64 * 512 - 1 || r == all - 1) far += near, near = 0;
      }
      assert_true(oracle_get(&s->bias, 0, 0, 0, c) == (double)far);
    }
  }
}

/* Rows that floats cannot square, and rows far below eps. */
void N4_norm_extreme(void **state) {
  (void)state;
  static const double sizes[] = {1e-38, 1e-25, 1e-12, 1e-3, 1e4, 1e14, 1e18, 1e30, 3e37};
  test_rng rng = test_seed(9422);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(27, n > 1 ? 129 : 40);
    z.gain = z.bias = 1, z.rms = n & 1, z.less = n > 1;
    scene *s = build(&z, 0, &rng);
    for (int64_t i = 0; i < 27; i++)
      for (int64_t c = 0; c < z.n; c++)
        oracle_set(&s->x, 0, 0, i, c,
                   sizes[i / 3] * ((i % 3 == 0   ? 0
                                    : i % 3 == 1 ? 1
                                                 : -100) /
                                       (i > 23 ? 32 : 1) +
                                   test_normal(&rng)));
    promise_run(&s->does);
    check(s, "extreme rows");
  }
}

/* One column passes d_sum alone; columns of d_x of layer norm sum to 0; rows of equal numbers are finite. */
void N4_norm_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(9423);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    shape z = plain(30, n < 2 ? 1 : 77);
    z.sum = n < 2, z.gain = 1, z.bias = 1;
    scene *s = build(&z, 0, &rng);
    if (n == 5) test_fill_value(s->x, 3.25);
    promise_run(&s->does);
    check(s, "identities");
    for (int64_t i = 0; i < 30; i++) {
      double sum = 0, size = 0;
      for (int64_t c = 0; c < z.n; c++)
        sum += oracle_get(&s->d_x, 0, 0, i, c), size += fabs(oracle_get(&s->d_x, 0, 0, i, c));
      if (n < 2)
        assert_true(oracle_get(&s->d_x, 0, 0, i, 0) == oracle_get(&s->g.d_sum, 0, 0, i, 0));
      else
        assert_true(fabs(sum) <= 1e-5 * size);
    }
  }
}

static double loss(const scene *s) {
  const int64_t H = s->d_y.heads, len = s->d_y.len, n = s->x.dim;
  double sum = 0, *row = test_mem((size_t)n * sizeof *row);
  for (int64_t r = 0; r < s->d_y.batch * H * len; r++) {
    const int64_t b = r / len / H, h = r / len % H, i = r % len;
    (void)rows(s, b, h, i, row);
    for (int64_t c = 0; c < n; c++) {
      const double bias = s->p.norm.bias ? (double)s->p.norm.bias[c] : 0;
      double x = dense_get(&s->x, b, h, i, c);
      if (s->p.residual.data) x += dense_get(&s->p.residual, b, h, i, c);
      sum += oracle_get(&s->d_y, b, h, i, c) * (row[c] * gain_of(s, c) + bias);
      if (s->g.d_sum.data) sum += oracle_get(&s->g.d_sum, b, h, i, c) * x;
    }
  }
  return sum;
}

/* The oracle's gradients against differences of its loss; numbers and steps are exact in f32. */
void N4_norm_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9424);
  const double step = 1.0 / 8192;
  for (int64_t k = test_count(40, 10); k-- > 0; test_mem_release()) {
    shape z = draw(k, &rng);
    z.len = test_range(&rng, 1, 4), z.n = test_range(&rng, 2, 9), z.gain = z.bias = 1;
    z.x_type = z.r_type = z.s_type = z.y_type = z.d_type = ATTN_F32;
    z.x_layout = z.r_layout = z.y_layout = TEST_PADDED;
    scene *s = build(&z, 0, &rng);
    s->p.norm.eps = 0.125f;
    test_fill(s->x, &rng, test_exact);
    if (z.residual) test_fill(s->p.residual, &rng, test_exact);
    const wanted w = oracle(s);
    attn_tensor gain = attn_bhtd(s->p.norm.gain, ATTN_F32, 1, 1, 1, z.n);
    attn_tensor bias = attn_bhtd(s->p.norm.bias, ATTN_F32, 1, 1, 1, z.n);
    test_fill(gain, &rng, test_exact);
    const wanted v = oracle(s);
    (void)w;
    attn_tensor *const at[] = {&s->x, &s->p.residual, &gain, &bias};
    const dense_sum *const y[] = {&v.x, &v.residual, &v.gain, &v.bias};
    test_fill(bias, &rng, test_exact);
    for (int a = 0; a < 4; a++) {
      const attn_tensor *t = at[a];
      if (!t->data) continue;
      const int64_t b = test_range(&rng, 0, t->batch - 1), h = test_range(&rng, 0, t->heads - 1);
      const int64_t i = test_range(&rng, 0, t->len - 1), c = test_range(&rng, 0, t->dim - 1);
      const double x = oracle_get(t, b, h, i, c);
      double norm = 0;
      for (int64_t e = 0; e < t->batch * t->heads * t->len * t->dim; e++)
        norm += pow(y[a]->want.data[e], 2);
      oracle_set(t, b, h, i, c, x + step);
      const double up = loss(s);
      oracle_set(t, b, h, i, c, x - step);
      const double down = loss(s);
      oracle_set(t, b, h, i, c, x);
      value_check((up - down) / (2 * step), cube_at(&y[a]->want, b, h, i)[c],
                  2e-6 * (1e-3 + sqrt(norm)), ATTN_F32, "difference", b, h, i, c);
    }
  }
}

/* d_x in the place of d_y; added to; and whichever others are asked for: the same bits. */
void N4_norm_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9425);
  for (int n = 0; n < 36; n++, test_mem_release()) {
    shape z = plain(75, n % 2 ? 37 : 300);
    z.gain = z.bias = 1, z.residual = n / 2 % 2, z.batch = 2, z.rms = n / 4 % 2, z.sum = n / 3 % 2;
    z.y_layout = z.d_layout = TEST_PADDED, z.one_r = n % 5 == 4 ? 1 : 0;
    z.y_type = z.d_type = (attn_dtype)(n % 3);
    scene *s = build(&z, 0, &rng);
    promise_run(&s->does);
    scene *t = again(s, &z, 0);
    const int way = n / 4 % 9;
    if (way < 5) {
      if (way & 1) t->d_x = absent();
      if (way & 2) t->g.d_residual = absent();
      if (way == 0) t->g.d_gain = NULL;
      if (way == 4) t->g.d_bias = NULL, t->g.d_gain = NULL;
    } else {
      t->d_y = t->d_x, test_copy(t->d_y, s->d_y);
      if (way == 6) t->g.d_gain = NULL;
    }
    promise_run(&t->does);
    if (t->d_x.data) test_assert_same(t->d_x, s->d_x, "d_x");
    if (t->g.d_residual.data) test_assert_same(t->g.d_residual, s->g.d_residual, "d_residual");
    if (t->g.d_gain) test_assert_same(t->gain, s->gain, "d_gain");
    if (t->g.d_bias) test_assert_same(t->bias, s->bias, "d_bias");
  }
}

void N4_norm_accumulate(void **state) {
  (void)state;
  test_rng rng = test_seed(9426);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    shape z = plain(75, 37);
    z.gain = z.bias = 1, z.residual = n / 2 % 2, z.batch = 2, z.rms = n & 1;
    z.one_x = n / 4 % 2, z.one_r = n / 5 % 2;
    scene *s = build(&z, 0, &rng);
    promise_run(&s->does);
    z.d_type = (attn_dtype)(n % 3);
    scene *t = again(s, &z, 0);
    attn_tensor *const from[] = {&s->d_x, &s->g.d_residual, &s->gain, &s->bias},
                       *const to[] = {&t->d_x, &t->g.d_residual, &t->gain, &t->bias};
    cube old[4];
    for (int i = 0; i < 4; i++)
      if (to[i]->data) test_fill(*to[i], &rng, test_exact), old[i] = cube_from(to[i]);
    t->g.accumulate = 1;
    promise_run(&t->does);
    for (int i = 0; i < 4; i++) {
      if (!to[i]->data) continue;
      const cube more = cube_from(from[i]);
      for (int64_t c = 0; c < more.batch * more.heads * more.len * more.dim; c++)
        old[i].data[c] += more.data[c];
      cube_check(&old[i], to[i], 2e-7, "added");
    }
  }
}

/* NaN and infinity reach their row and the sums, whatever the row stands beside. */
void N4_norm_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9427);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    shape z = plain(40, 33);
    z.gain = z.bias = z.sum = z.residual = 1, z.rms = n / 8;
    scene *s = build(&z, 0, &rng);
    promise_run(&s->does);
    scene *t = again(s, &z, 0);
    attn_tensor *const in[] = {&t->d_y, &t->x, &t->p.residual, &t->g.d_sum};
    oracle_set(in[n % 4], 0, 0, 23, 4, n / 4 % 2 ? (double)INFINITY : (double)NAN);
    promise_run(&t->does);
    for (int64_t i = 0; i < 40; i++)
      if (i != 23) test_assert_same(test_rows(t->d_x, i, 1), test_rows(s->d_x, i, 1), "a row");
    assert_false(fabs(oracle_get(&t->d_x, 0, 0, 23, 4)) < (double)INFINITY);
    if (n % 4 < 3) assert_false(fabs(oracle_get(&t->d_x, 0, 0, 23, 7)) < (double)INFINITY);
    if (n % 4 < 3) assert_false(fabs(oracle_get(&t->gain, 0, 0, 0, 4)) < (double)INFINITY);
    if (n % 4 == 0) assert_false(fabs(oracle_get(&t->bias, 0, 0, 0, 4)) < (double)INFINITY);
    if (n % 4) test_assert_same(t->bias, s->bias, "d_bias");
  }
}
/* All 64 rows of a tile, or the last of them, are none that floats can do. */
void N4_norm_nan_tile(void **state) {
  (void)state;
  test_rng rng = test_seed(9450);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(n & 2 ? 128 : 64, 20);
    z.rms = n & 1, z.gain = 1;
    scene *s = build(&z, 0, &rng);
    attn_ctx ctx = test_ctx();
    for (int64_t i = n & 1 ? 0 : 63; i < z.len; i++)
      oracle_set(&s->x, 0, 0, i, 7, i % 2 ? (double)NAN : (double)INFINITY);
    assert_int_equal(call(s, &ctx), ATTN_OK);
    for (int64_t i = 0; i < z.len; i++) {
      const int bad = !(fabs(oracle_get(&s->d_x, 0, 0, i, 3)) < (double)INFINITY);
      assert_int_equal(bad, i >= (n & 1 ? 0 : 63));
    }
  }
}

void N4_norm_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9428);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    shape z = plain(n % 4 == 0 ? 0 : 3, 5);
    if (n % 4 == 1) z.batch = 0;
    if (n % 4 == 2) z.heads = 0;
    z.gain = z.bias = z.residual = 1, z.one_r = 3, z.rms = n / 4;
    scene *s = build(&z, 0, &rng);
    attn_tensor *const out[] = {&s->g.d_residual, &s->gain, &s->bias};
    for (int i = 0; i < 3; i++)
      if (out[i]->len) test_fill_value(*out[i], 7);
    s->g.accumulate = n == 6;
    if (n % 4 == 3) s->d_x = s->g.d_residual = absent(), s->g.d_gain = s->g.d_bias = NULL;
    promise_run(&s->does);
    for (int i = 0; i < 3 && n % 4 < 3; i++)
      for (int64_t r = 0; r < out[i]->len; r++)
        assert_true(oracle_get(out[i], 0, 0, r, 1) == (s->g.accumulate ? 7 : 0));
  }
}

void N4_norm_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9429);
  for (int n = 0; n < 25; n++, test_mem_release()) {
    shape z = plain(6, 5);
    z.gain = z.bias = z.sum = z.residual = 1, z.batch = 2, z.rms = n & 1;
    scene *s = build(&z, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->d_x.dim = 4, word = "d_x"; break;
      case 1: s->d_x.batch = 1, word = "d_x"; break;
      case 2: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      case 3: s->x.len = 5, word = "x must"; break;
      case 4: s->p.residual.dim = 4, word = "residual"; break;
      case 5: s->p.residual = absent(), want = ATTN_E_NULL, word = "params.residual"; break;
      case 6: s->g.d_residual.len = 3, word = "d_residual"; break;
      case 7: s->g.d_sum.batch = 1, word = "d_sum"; break;
      case 8: s->p.norm.gain = NULL, want = ATTN_E_NULL, word = "norm.gain"; break;
      case 9: s->p.norm.bias = NULL, want = ATTN_E_NULL, word = "norm.bias"; break;
      case 10: s->p.norm.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 11: s->p.norm.gain_less_one = 2, want = ATTN_E_RANGE, word = "gain_less_one"; break;
      case 12: s->g.accumulate = -1, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 13: s->d_x.data = s->x.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
      case 14: s->d_x = s->d_y, s->g.accumulate = 1, want = ATTN_E_OVERLAP, word = "d_x"; break;
      case 15: s->d_x.data = s->g.d_residual.data, want = ATTN_E_OVERLAP, word = "d_"; break;
      case 16: s->g.d_gain = s->g.d_bias, want = ATTN_E_OVERLAP, word = "d_gain"; break;
      case 17: s->g.d_gain = s->x.data, want = ATTN_E_OVERLAP, word = "d_gain"; break;
      case 18:
        s->g.d_bias = (float *)(uintptr_t)s->p.norm.gain, want = ATTN_E_OVERLAP, word = "d_bias";
        break;
      case 19:
        s->g.d_gain = (float *)(void *)((char *)s->g.d_gain + 1), want = ATTN_E_ALIGN,
        word = "d_gain";
        break;
      case 20: s->d_x.stride_len = 1, want = ATTN_E_STRIDE, word = "d_x"; break;
      case 21: s->d_y.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_y"; break;
      case 22: s->x.batch = 3, word = "x must"; break;
      case 23:
        s->d_x = s->d_y, s->d_x.data = (float *)s->d_x.data + 1, want = ATTN_E_OVERLAP,
        word = "d_x";
        break;
      default: s->d_x.data = s->g.d_gain, want = ATTN_E_OVERLAP, word = "d_"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
