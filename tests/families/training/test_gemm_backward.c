/* tests/families/training/test_gemm_backward.c owns N4, the gradients of dense products. */

#include "dense.h"

typedef struct scene {
  attn_tensor d_x, d_w, d_y, x, w;
  attn_gemm_params p;
  attn_gemm_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_gemm_backward(s->d_x, s->d_w, s->d_y, s->x, s->w, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_gemm_backward_workspace(s->d_x, s->d_w, s->d_y, s->x, s->w, &s->p, &s->g, ctx);
}

typedef struct shape {
  int64_t batch, heads, m, k, n;
  int one_x, one_w, one_bias; /* bits: a batch of 1, one head */
  int transposed, bias;
  attn_dtype x_type, w_type, y_type, d_type;
  test_layout x_layout, w_layout, y_layout, d_layout;
} shape;

static shape plain(int64_t m, int64_t k, int64_t n) {
  shape z = {1, 1, m, k, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  return z;
}

/* An output for x; some: 1 where x has one batch entry or head for all. */
static attn_tensor like(const attn_tensor *x, int some, attn_dtype type, test_layout layout,
                        test_block *block) {
  const int one = some && x->stride_batch == 0 && x->stride_head == 0;
  return output(type, layout, one ? 1 : x->batch, one ? 1 : x->heads, x->len, x->dim, block);
}

static void outputs(scene *s, const shape *z, int some) {
  s->d_x = like(&s->x, some, z->d_type, z->d_layout, &s->does.block[0]);
  s->d_w = like(&s->w, some, z->d_type, z->d_layout, &s->does.block[1]);
  if (z->bias) s->g.d_bias = like(&s->p.bias, some, z->d_type, z->d_layout, &s->does.block[2]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->d_w, s->does.out[2] = &s->g.d_bias;
}

static scene *build(const shape *z, int some, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->x =
      drawn(z->x_type, z->x_layout, z->one_x & 1 ? 1 : b, z->one_x & 2 ? 1 : h, z->m, z->k, 1, rng);
  s->w = drawn(z->w_type, z->w_layout, z->one_w & 1 ? 1 : b, z->one_w & 2 ? 1 : h,
               z->transposed ? z->n : z->k, z->transposed ? z->k : z->n, 0.4, rng);
  s->d_y = drawn(z->y_type, z->y_layout, b, h, z->m, z->n, 1, rng);
  s->p.w_transposed = z->transposed;
  if (z->bias)
    s->p.bias = drawn(ATTN_F32, z->x_layout == TEST_ONE_ROW ? TEST_BHTD : z->x_layout,
                      z->one_bias & 1 ? 1 : b, z->one_bias & 2 ? 1 : h, 1, z->n, 1, rng);
  outputs(s, z, some);
  return s;
}

static scene *again(const scene *s, const shape *z, int some) {
  scene *t = test_mem(sizeof *t);
  *t = *s;
  outputs(t, z, some);
  return t;
}

static double weight(const scene *s, int64_t b, int64_t h, int64_t c, int64_t j) {
  return s->p.w_transposed ? dense_get(&s->w, b, h, s->w.len > 1 ? j : 0, c)
                           : dense_get(&s->w, b, h, s->w.len > 1 ? c : 0, j);
}

static double scale_in(const scene *s) {
  return s->p.scale != 0 || signbit(s->p.scale) ? (double)s->p.scale : 1;
}

/* z, and how well f32 knows it. */
static double before(const scene *s, int64_t b, int64_t h, int64_t i, int64_t j, double *e) {
  double sum = 0, size = 0, bias = 0;
  for (int64_t c = 0; c < s->x.dim; c++) {
    const double t = dense_get(&s->x, b, h, i, c) * weight(s, b, h, c, j);
    sum += t, size += fabs(t);
  }
  if (s->p.bias.data) bias = dense_get(&s->p.bias, b, h, 0, j);
  const double z = scale_in(s) * sum + bias;
  *e = 6e-8 * ((2 + sqrt((double)s->x.dim) / 2) * fabs(scale_in(s)) * size + fabs(bias) + fabs(z));
  return z;
}

/* c tanh(z / c), its slope, and how far f32 is from that where z is known to within e; without a cap z itself. */
static double capped(const scene *s, double z, double e, double *slope, double *error) {
  const double c = (double)s->p.softcap;
  *slope = 1, *error = 0;
  if (c == 0) return z;
  const double t = tanh(z / c);
  *slope = 1 - t * t;
  *error = 2 * fabs(t) * (*slope + e / c) * e / c + 5e-7;
  return c * t;
}

typedef struct wanted {
  dense_sum x, w, bias;
} wanted;

static wanted oracle(const scene *s) {
  wanted y = {dense_open(&s->d_x), dense_open(&s->d_w), dense_open(&s->g.d_bias)};
  const double scale = scale_in(s), u = 6e-8 * (3 + sqrt((double)s->d_y.dim) / 2);
  const double v = 6e-8 * (3 + sqrt(512) / 2);
  const int64_t H = s->d_y.heads, m = s->d_y.len;
  for (int64_t r = 0; r < s->d_y.batch * H * m; r++) {
    const int64_t b = r / m / H, h = r / m % H, i = r % m;
    for (int64_t j = 0; j < s->d_y.dim; j++) {
      double e, d = oracle_get(&s->d_y, b, h, i, j);
      double cap, cap_error, z = before(s, b, h, i, j, &e);
      z = capped(s, z, e, &cap, &cap_error);
      if (s->p.softcap > 0) e = e * cap + (cap_error * e + 2e-7 * fabs(z));
      const double slope = act_in_form(&s->p.form, s->p.activation, z, 1, 0).z;
      const int acts = (s->p.activation != ATTN_ACT_NONE && s->p.activation != ATTN_ACT_DEFAULT) ||
                       s->p.form.limit != 0;
      e = acts ? fabs(d) * act_in_form_error(&s->p.form, s->p.activation, z, e, 1, 0) : 0;
      e = e * (cap + cap_error) + fabs(d * slope) * cap_error;
      d *= slope * cap;
      if (s->p.bias.data && s->g.d_bias.data) dense_add(&y.bias, b, h, 0, j, d, e + v * fabs(d));
      for (int64_t c = 0; c < s->x.dim; c++) {
        const double w = scale * weight(s, b, h, c, j), x = scale * dense_get(&s->x, b, h, i, c);
        if (s->d_x.data) dense_add(&y.x, b, h, i, c, d * w, fabs(w) * (e + u * fabs(d)));
        if (s->d_w.data)
          dense_add(&y.w, b, h, s->p.w_transposed ? j : c, s->p.w_transposed ? c : j, d * x,
                    fabs(x) * (e + v * fabs(d)));
      }
    }
  }
  return y;
}

static void check(const scene *s, const char *what) {
  const wanted y = oracle(s);
  if (s->d_x.data) dense_check(&y.x, &s->d_x, what);
  if (s->d_w.data) dense_check(&y.w, &s->d_w, what);
  if (s->g.d_bias.data) dense_check(&y.bias, &s->g.d_bias, what);
}

static shape some_shape(int64_t n, test_rng *rng) {
  const int64_t most = n % 4 ? 24 : 90;
  shape z = plain(test_range(rng, 1, most), test_range(rng, 1, n % 5 ? 30 : 140),
                  test_range(rng, 1, n % 3 ? 30 : 100));
  z.batch = test_range(rng, 1, 3), z.heads = test_range(rng, 1, n % 3 ? 1 : 3);
  z.one_x = n % 7 == 1 ? 3 : n % 7 == 2, z.one_w = (int)(n % 4), z.one_bias = (int)(n / 4 % 4);
  z.transposed = n % 2 == 1, z.bias = n % 3 != 0;
  if (n % 2) {
    z.x_type = (attn_dtype)test_range(rng, 0, 2), z.w_type = (attn_dtype)test_range(rng, 0, 2);
    z.y_type = (attn_dtype)test_range(rng, 0, 2), z.d_type = (attn_dtype)test_range(rng, 0, 2);
  }
  z.x_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.w_layout = (test_layout)test_range(rng, 0, TEST_SHARED);
  z.y_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.d_layout = (test_layout)test_range(rng, 0, TEST_NEGATIVE);
  return z;
}

void N4_gemm_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9400);
  for (int64_t n = test_count(120, 24); n-- > 0; test_mem_release()) {
    const shape z = some_shape(n, &rng);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, (int)(n / 2 % 2), &rng);
    test_where = TEST_HEAP;
    s->p.activation = (attn_activation)(n % ATTN_ACT_COUNT);
    if (n % 4 == 2) s->p.scale = -0.25f;
    if (s->p.activation == ATTN_ACT_EXP) s->p.scale = 0.1f;
    if (n % 25 == 24) s->p.scale = ATTN_ZERO;
    if (n % 5 == 3) s->p.form.slope = 1.702f;
    if (n % 7 == 3) s->p.form.limit = 0.75f;
    if (n % 4 == 1) s->p.softcap = n % 8 == 1 ? 0.5f : 3;
    promise_run(&s->does);
    check(s, "gradients of a product");
    if (n % 6 == 0) promise_keep(&s->does);
  }
}

/* More rows than a run, in one entry and in many of one row; values of mean one, whose sums would drift. */
void N4_gemm_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9401);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    shape z = plain(n == 1 ? 1 : n == 4 ? 700 : 2100, n == 2 ? 70 : 9, n == 3 ? 75 : 17);
    z.bias = 1, z.one_w = z.one_bias = 3, z.transposed = n % 2, z.y_layout = TEST_PADDED;
    if (n == 1) z.batch = 300, z.heads = 5;
    if (n == 4) z.heads = 3;
    scene *s = build(&z, 0, &rng);
    attn_tensor *const t[] = {&s->x, &s->d_y};
    for (int a = 0; a < 2; a++)
      for (int64_t r = 0; r < t[a]->batch * t[a]->heads * t[a]->len; r++)
        for (int64_t c = 0; c < t[a]->dim; c++) {
          const int64_t b = r / t[a]->len / t[a]->heads, h = r / t[a]->len % t[a]->heads,
                        i = r % t[a]->len;
          oracle_set(t[a], b, h, i, c, 1 + 0.1 * oracle_get(t[a], b, h, i, c));
        }
    if (n % 2) s->p.activation = ATTN_ACT_SILU;
    promise_run(&s->does);
    check(s, "many rows");
    if (n < 2) promise_keep(&s->does), promise_run(&s->does);
    for (int64_t c = 0; s->p.activation == ATTN_ACT_DEFAULT && c < z.n;
         c++) { /* the order that is promised */
      const int64_t all = z.batch * z.heads * z.m;
      float far = 0, run = 0, chains = 0, chain = 0;
      for (int64_t r = 0; r < all; r++) {
        const int64_t b = r / z.m / z.heads, h = r / z.m % z.heads, i = r % z.m;
        const float d = (float)oracle_get(&s->d_y, b, h, i, c);
        run += d, chain = fmaf((float)oracle_get(&s->x, b, h, i, 0), d, chain);
        if (r % 512 == 511 || r == all - 1) far += run, chains += chain, run = chain = 0;
      }
      assert_true(oracle_get(&s->g.d_bias, 0, 0, 0, c) == (double)far);
      if (test_isa != ATTN_ISA_SCALAR)
        assert_true(oracle_get(&s->d_w, 0, 0, 0, c) == (double)chains);
    }
    /* the same rows lying otherwise: the same bits */
    scene *u = again(s, &z, 0);
    u->x = test_tensor(ATTN_F32, TEST_BTHD, s->x.batch, s->x.heads, s->x.len, s->x.dim);
    u->d_y =
        test_tensor(ATTN_F32, TEST_NEGATIVE, s->d_y.batch, s->d_y.heads, s->d_y.len, s->d_y.dim);
    test_copy(u->x, s->x), test_copy(u->d_y, s->d_y);
    u->does.scene = u;
    promise_run(&u->does);
    test_assert_same(u->d_w, s->d_w, "d_w of other strides");
    test_assert_same(u->g.d_bias, s->g.d_bias, "d_bias of other strides");
    test_assert_same(u->d_x, s->d_x, "d_x of other strides");
  }
}

/* <d_y, y> in float64. */
static double loss(const scene *s) {
  double sum = 0, e, unused;
  const int64_t H = s->d_y.heads, m = s->d_y.len;
  for (int64_t r = 0; r < s->d_y.batch * H * m; r++)
    for (int64_t j = 0; j < s->d_y.dim; j++)
      sum += oracle_get(&s->d_y, r / m / H, r / m % H, r % m, j) *
             act_of(s->p.activation,
                    capped(s, before(s, r / m / H, r / m % H, r % m, j, &e), 0, &e, &unused));
  return sum;
}

/* The oracle's gradients against differences of the loss; numbers and steps are exact in f32. */
void N4_gemm_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9402);
  const double step = 1.0 / 8192;
  for (int64_t n = test_count(44, 11); n-- > 0; test_mem_release()) {
    shape z = some_shape(n, &rng);
    z.m %= 6, z.k %= 6, z.n %= 6, z.m++, z.k++, z.n++, z.bias = 1;
    z.x_layout = z.w_layout = z.y_layout = z.d_layout = TEST_PADDED;
    z.x_type = z.w_type = z.y_type = z.d_type = ATTN_F32;
    scene *s = build(&z, 0, &rng);
    s->p.activation = (attn_activation)(n % ATTN_ACT_COUNT), s->p.scale = 0.75f;
    test_fill(s->x, &rng, test_exact), test_fill(s->w, &rng, test_exact);
    test_fill(s->p.bias, &rng, test_exact);
    if (s->p.activation == ATTN_ACT_EXP) s->p.scale = 0.0625f;
    if (n % 3 == 1) s->p.softcap = 1.5f;
    const wanted w = oracle(s);
    attn_tensor *const at[] = {&s->x, &s->w, &s->p.bias};
    const dense_sum *const y[] = {&w.x, &w.w, &w.bias};
    for (int a = 0; a < 3; a++) {
      const attn_tensor *t = at[a];
      const int64_t b = test_range(&rng, 0, t->batch - 1), h = test_range(&rng, 0, t->heads - 1);
      const int64_t i = test_range(&rng, 0, t->len - 1), c = test_range(&rng, 0, t->dim - 1);
      const double x = oracle_get(t, b, h, i, c);
      double norm = 0;
      for (int64_t k = 0; k < t->batch * t->heads * t->len * t->dim; k++)
        norm += pow(y[a]->want.data[k], 2);
      oracle_set(t, b, h, i, c, x + step);
      const double up = loss(s);
      oracle_set(t, b, h, i, c, x - step);
      const double down = loss(s);
      oracle_set(t, b, h, i, c, x);
      const double got = (up - down) / (2 * step), want = cube_at(&y[a]->want, b, h, i)[c];
      /* at the corner of relu the loss has no derivative */
      if (s->p.activation == ATTN_ACT_RELU && fabs(got - want) > 1e-3) continue;
      value_check(got, want, 3e-6 * (1e-3 + sqrt(norm)), ATTN_F32, "difference", b, h, i, c);
    }
  }
}

/* <d_y, x w> = <d_x, x> = <d_w, w>, through the library both ways. */
void N4_gemm_adjoint(void **state) {
  (void)state;
  test_rng rng = test_seed(9403);
  for (int64_t n = 0; n < 24; n++, test_mem_release()) {
    shape z = some_shape(n, &rng);
    z.bias = 0, z.x_type = z.w_type = z.y_type = z.d_type = ATTN_F32;
    scene *s = build(&z, 0, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, z.batch, z.heads, z.m, z.n);
    if (n % 3 == 1) s->p.scale = 0.5f;
    promise_run(&s->does);
    assert_int_equal(attn_gemm(y, s->x, s->w, &s->p, &ctx), ATTN_OK);
    const double want = dense_dot(&s->d_y, &y);
    const double size = sqrt(dense_dot(&s->d_y, &s->d_y) * dense_dot(&y, &y));
    assert_true(fabs(dense_dot(&s->x, &s->d_x) - want) <= 1e-5 * size);
    assert_true(fabs(dense_dot(&s->w, &s->d_w) - want) <= 1e-5 * size);
  }
}

/* What stands for all gets the sum over explicit copies. */
void N4_gemm_copies(void **state) {
  (void)state;
  test_rng rng = test_seed(9404);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    shape z = plain(19, 13, 21), all;
    z.batch = 3, z.heads = 2, z.bias = 1, z.transposed = n & 1;
    z.one_x = n % 4, z.one_w = 3 - n % 4, z.one_bias = n / 2 % 4;
    scene *s = build(&z, 0, &rng);
    all = z, all.one_x = all.one_w = all.one_bias = 0;
    scene *t = build(&all, 0, &rng);
    s->p.activation = t->p.activation = n > 3 ? ATTN_ACT_GELU : ATTN_ACT_NONE;
    attn_tensor *const one[] = {&s->x, &s->w, &s->p.bias}, *const full[] = {&t->x, &t->w,
                                                                            &t->p.bias};
    for (int a = 0; a < 3; a++)
      for (int64_t r = 0; r < 6 * full[a]->len; r++) {
        const int64_t i = r % full[a]->len, b = r / full[a]->len / 2, h = r / full[a]->len % 2;
        for (int64_t c = 0; c < full[a]->dim; c++)
          oracle_set(
              full[a], b, h, i, c,
              oracle_get(one[a], one[a]->batch > 1 ? b : 0, one[a]->heads > 1 ? h : 0, i, c));
      }
    t->d_y = s->d_y;
    promise_run(&s->does), promise_run(&t->does);
    attn_tensor *const sum[] = {&s->d_x, &s->d_w, &s->g.d_bias}, *const part[] = {&t->d_x, &t->d_w,
                                                                                  &t->g.d_bias};
    for (int a = 0; a < 3; a++) {
      dense_sum want = dense_open(sum[a]);
      for (int64_t r = 0; r < 6 * part[a]->len; r++) {
        const int64_t i = r % part[a]->len, b = r / part[a]->len / 2, h = r / part[a]->len % 2;
        for (int64_t c = 0; c < part[a]->dim; c++) {
          const double x = oracle_get(part[a], b, h, i, c);
          cube_at(&want.want, want.want.batch > 1 ? b : 0, want.want.heads > 1 ? h : 0, i)[c] += x;
          cube_at(&want.size, want.want.batch > 1 ? b : 0, want.want.heads > 1 ? h : 0, i)[c] +=
              2e-6 * (1 + fabs(x));
        }
      }
      dense_check(&want, sum[a], "a sum of copies");
    }
  }
}

/* What is added to: the sum is rounded once. */
void N4_gemm_accumulate(void **state) {
  (void)state;
  test_rng rng = test_seed(9405);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    shape z = plain(600, 11, 18);
    z.bias = 1, z.transposed = n & 1, z.one_w = 3, z.batch = n > 2 ? 2 : 1, z.one_bias = 3;
    scene *s = build(&z, 0, &rng);
    s->p.activation = n & 2 ? ATTN_ACT_TANH : ATTN_ACT_NONE;
    promise_run(&s->does);
    z.d_type = (attn_dtype)(n % 3), z.d_layout = TEST_PADDED;
    scene *t = again(s, &z, 0);
    attn_tensor *const from[] = {&s->d_x, &s->d_w, &s->g.d_bias}, *const to[] = {&t->d_x, &t->d_w,
                                                                                 &t->g.d_bias};
    cube old[3];
    for (int i = 0; i < 3; i++) test_fill(*to[i], &rng, test_exact), old[i] = cube_from(to[i]);
    t->g.accumulate = 1;
    promise_run(&t->does);
    for (int i = 0; i < 3; i++) {
      const cube more = cube_from(from[i]);
      for (int64_t c = 0; c < more.batch * more.heads * more.len * more.dim; c++)
        old[i].data[c] += more.data[c];
      cube_check(&old[i], to[i], 2e-7, "added");
    }
  }
}

/* An output has the same bits whichever others are asked for, and with the z that forward has left. */
void N4_gemm_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9406);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    shape z = plain(130, 37, 66);
    z.batch = 2, z.bias = 1, z.one_w = z.one_bias = 3, z.transposed = n / 8;
    scene *s = build(&z, 0, &rng);
    s->p.activation = n & 1 ? ATTN_ACT_GELU_TANH : ATTN_ACT_RELU, s->p.scale = 0.5f;
    if (n / 4 % 2) s->p.softcap = 2;
    promise_run(&s->does);
    scene *t = again(s, &z, 0);
    if (n % 8 < 7) {
      if (n & 1) t->d_x = absent();
      if (n & 2) t->d_w = absent();
      if (n & 4) t->g.d_bias = absent();
    }
    if (n % 8 == 7 || n % 8 == 3) {
      attn_gemm_params p = s->p;
      attn_ctx ctx = test_ctx();
      p.activation = ATTN_ACT_NONE, p.softcap = 0;
      t->g.z = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, 130, 66);
      assert_int_equal(attn_gemm(t->g.z, s->x, s->w, &p, &ctx), ATTN_OK);
    }
    promise_run(&t->does);
    if (t->d_x.data) test_assert_same(t->d_x, s->d_x, "d_x");
    if (t->d_w.data) test_assert_same(t->d_w, s->d_w, "d_w");
    if (t->g.d_bias.data) test_assert_same(t->g.d_bias, s->g.d_bias, "d_bias");
  }
}

/* NaN reaches the row that holds it and the sums. */
void N4_gemm_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9407);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(40, 9, 20);
    z.bias = 1;
    scene *s = build(&z, 0, &rng);
    s->p.activation = n & 1 ? ATTN_ACT_RELU : ATTN_ACT_NONE;
    promise_run(&s->does);
    scene *t = again(s, &z, 0);
    oracle_set(n & 2 ? &t->x : &t->d_y, 0, 0, 23, 4, (double)NAN);
    promise_run(&t->does);
    for (int64_t i = 0; i < 40; i++)
      if (i != 23) test_assert_same(test_rows(t->d_x, i, 1), test_rows(s->d_x, i, 1), "a row");
    if (n == 0) assert_true(isnan(oracle_get(&t->d_x, 0, 0, 23, 0)));
    if (n == 3) assert_true(isnan(oracle_get(&t->d_x, 0, 0, 23, 0)));
    if (n & 2) assert_true(isnan(oracle_get(&t->d_w, 0, 0, 4, 7)));
    if (n == 0) assert_true(isnan(oracle_get(&t->d_w, 0, 0, 3, 4)));
    if (n == 0) assert_true(isnan(oracle_get(&t->g.d_bias, 0, 0, 0, 4)));
    if (n == 0) assert_true(!isnan(oracle_get(&t->g.d_bias, 0, 0, 0, 5)));
  }
}

/* No rows, or nothing asked for. */
void N4_gemm_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9408);
  for (int n = 0; n < 10; n++, test_mem_release()) {
    shape z = plain(n % 5 == 0 ? 0 : 3, 4, 5);
    if (n % 5 == 1) z.batch = 0;
    if (n % 5 == 2) z.heads = 0;
    z.one_w = z.one_bias = z.one_x = 3, z.bias = 1, z.transposed = n & 1;
    z.d_type = n & 1 ? ATTN_BF16 : ATTN_F32;
    scene *s = build(&z, 0, &rng);
    s->p.activation = n & 1 ? ATTN_ACT_SILU : ATTN_ACT_NONE;
    if (n % 5 == 4) s->d_x = s->d_w = s->g.d_bias = absent();
    attn_tensor *const out[] = {&s->d_x, &s->d_w, &s->g.d_bias};
    for (int i = 0; i < 3; i++)
      if (out[i]->data && out[i]->len) test_fill_value(*out[i], 7);
    s->g.accumulate = n % 5 == 2 && n > 5;
    promise_run(&s->does);
    for (int i = 0; i < 3 && n % 5 < 3; i++)
      for (int64_t r = 0; r < out[i]->len; r++)
        assert_true(oracle_get(out[i], 0, 0, r, 1) == (s->g.accumulate ? 7 : 0));
  }
}

void N4_gemm_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9409);
  for (int n = 0; n < 26; n++, test_mem_release()) {
    shape z = plain(6, 4, 5);
    z.batch = 2, z.bias = 1, z.one_w = z.one_bias = 1;
    scene *s = build(&z, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->d_x.dim = 3, word = "d_x"; break;
      case 1: s->d_x.batch = 1, word = "d_x"; break;
      case 2: s->d_w.len = 3, word = "d_w"; break;
      case 3: s->d_w.batch = 2, word = "d_w"; break;
      case 4: s->g.d_bias.dim = 4, word = "d_bias"; break;
      case 5: s->p.bias = absent(), want = ATTN_E_NULL, word = "params.bias"; break;
      case 6: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      case 7: s->x.len = 5, word = "x.len"; break;
      case 8: s->w.len = 3, word = "w.len"; break;
      case 9: s->w.dim = 4, word = "w.dim"; break;
      case 10: s->w.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 11: s->p.softcap = -1, want = ATTN_E_VALUE, word = "softcap"; break;
      case 12: s->p.form.gate_add = 1, want = ATTN_E_RANGE, word = "form"; break;
      case 13: s->p.scale = INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 14: s->p.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 15: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 16: s->d_x.data = s->x.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
      case 17: s->d_w.data = s->d_y.data, want = ATTN_E_OVERLAP, word = "d_w"; break;
      case 18: s->g.d_bias.data = s->d_x.data, want = ATTN_E_OVERLAP, word = "d_"; break;
      case 19: s->d_w.stride_len = 1, want = ATTN_E_STRIDE, word = "d_w"; break;
      case 20: s->d_x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_x"; break;
      case 21: s->g.z = drawn(ATTN_F32, TEST_BHTD, 2, 1, 6, 4, 1, &rng), word = "z"; break;
      case 22: s->x.batch = 3, word = "x.batch"; break;
      case 23: s->p.bias.len = 2, word = "bias"; break;
      case 24: s->w.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      default: s->d_x.data = s->w.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
