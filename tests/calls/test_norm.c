/* tests/calls/test_norm.c owns what stands between dense products: layer norm and RMS norm with their residual sum
 * against float64, rows that floats cannot square, views, in place, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor y, x;
  attn_layer_norm_params p;
  int rms;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->rms ? attn_rms_norm(s->y, s->x, &s->p, ctx) : attn_layer_norm(s->y, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->rms ? attn_rms_norm_workspace(s->y, s->x, &s->p, ctx)
                : attn_layer_norm_workspace(s->y, s->x, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, len, n;
  int residual, sum, gain, bias, shared; /* shared 1: one residual for all, 2: one x */
  int rms, less;
  attn_dtype x_type, r_type, s_type, y_type;
  test_layout x_layout, r_layout, y_layout;
} shape;

static shape plain(int64_t len, int64_t n) {
  shape z = {1, 1, len, n, 0, 0, 0, 0, 0, 0, 0, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, 0, 0, 0};
  return z;
}

/* Rows about means of any size, or of those that f16 holds too. */
static void fill(attn_tensor t, int all, test_rng *rng) {
  static const double means[] = {0, 0, 0.5, -3, 100, 1e5, 3e6, -1e4};
  for (int64_t b = 0; b < t.batch; b++)
    for (int64_t h = 0; h < t.heads; h++)
      for (int64_t i = 0; i < t.len; i++) {
        const double mean = means[test_range(rng, 0, all ? 7 : 4)];
        const double size = test_range(rng, 0, 3) ? 1 : 0.02;
        for (int64_t c = 0; c < t.dim; c++)
          oracle_set(&t, b, h, i, c, mean + size * test_normal(rng));
      }
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->x = test_tensor(z->x_type, z->x_layout, z->shared == 2 ? 1 : b, z->shared == 2 ? 1 : h, z->len,
                     z->n);
  fill(s->x, z->x_type == ATTN_F32 && z->s_type != ATTN_F16, rng);
  if (z->residual) {
    s->p.residual = test_tensor(z->r_type, z->r_layout, z->shared == 1 ? 1 : b,
                                z->shared == 1 ? 1 : h, z->len, z->n);
    test_fill(s->p.residual, rng, test_normal);
  }
  if (z->gain) s->p.norm.gain = test_floats(z->n, 1, rng);
  if (z->bias) s->p.norm.bias = test_floats(z->n, 1, rng);
  s->rms = z->rms, s->p.norm.gain_less_one = z->less;
  s->p.norm.kind = (attn_norm_kind)test_range(rng, 0, 1); /* what nobody reads */
  s->y = output(z->y_type, z->y_layout, b, h, z->len, z->n, &s->does.block[0]);
  if (z->sum) s->p.sum = output(z->s_type, z->y_layout, b, h, z->len, z->n, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  if (z->sum) s->does.out[1] = &s->p.sum;
  return s;
}

static double get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
  return t->data ? oracle_get(t, t->batch == 1 ? 0 : b, t->heads == 1 ? 0 : h, i, c) : 0;
}

/* The formula. s is rounded to float, which is part of it; the rest is exact here. */
static void check(const scene *s, const char *what) {
  const double u = 1.0 / (1 << 24), plain = s->rms ? 1e-6 : 1e-5;
  const double eps = s->p.norm.eps != 0 ? (double)s->p.norm.eps : plain;
  const int64_t n = s->y.dim;
  double *row = test_mem((size_t)n * sizeof *row);
  for (int64_t b = 0; b < s->y.batch; b++)
    for (int64_t h = 0; h < s->y.heads; h++)
      for (int64_t i = 0; i < s->y.len; i++) {
        double mean = 0, v = 0;
        for (int64_t c = 0; c < n; c++) {
          row[c] = (double)(float)(get(&s->x, b, h, i, c) + get(&s->p.residual, b, h, i, c));
          mean += row[c];
        }
        mean = s->rms ? 0 : mean / (double)n;
        for (int64_t c = 0; c < n; c++) v += (row[c] - mean) * (row[c] - mean);
        v /= (double)n;
        for (int64_t c = 0; c < n; c++) {
          const double g =
              s->p.norm.gain ? (double)(s->p.norm.gain[c] + (float)s->p.norm.gain_less_one) : 1;
          const double bias = s->p.norm.bias ? (double)s->p.norm.bias[c] : 0;
          const double z = (row[c] - mean) / sqrt(v + eps), want = z * g + bias;
          const double tolerance =
              u * (8 * fabs(g) * (!s->rms + fabs(z)) + fabs(bias) + fabs(want));
          value_check(oracle_get(&s->y, b, h, i, c), want, tolerance, s->y.dtype, what, b, h, i, c);
          if (s->p.sum.data)
            value_check(oracle_get(&s->p.sum, b, h, i, c), row[c], 0, s->p.sum.dtype, "sum", b, h,
                        i, c);
        }
      }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static shape draw(int64_t k, test_rng *rng) {
  static const int64_t edges[] = {1, 2, 3, 15, 16, 17, 31, 64, 100, 257, 384, 513};
  shape z = plain(test_range(rng, 0, 40), edges[k % 12]);
  if (k % 5 == 0) z.len = 70, z.n = test_range(rng, 1, 40);
  z.batch = test_range(rng, 1, 3);
  z.heads = test_range(rng, 1, 2);
  if (z.n > 100) z.len %= 9;
  z.residual = k % 2 == 1, z.sum = k % 3 != 0, z.gain = k / 2 % 2 == 1, z.bias = k / 3 % 2 == 1;
  z.rms = k / 5 % 2 == 1, z.less = k / 7 % 2 == 1;
  z.shared = k % 4 == 3 ? 1 : k % 7 == 0 ? 2 : 0;
  if (k % 3) {
    z.x_type = floats[test_range(rng, 0, 2)];
    z.r_type = floats[test_range(rng, 0, 2)];
    z.s_type = floats[test_range(rng, 0, 2)];
    z.y_type = floats[test_range(rng, 0, 2)];
  }
  z.x_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.r_layout = (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1);
  z.y_layout = (test_layout)test_range(rng, 0, TEST_NEGATIVE);
  return z;
}

void K7_norm_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7700);
  for (int64_t k = test_count(90, 24); k-- > 0; test_mem_release()) {
    shape z = draw(k, &rng);
    test_where = k % 3 == 1 ? TEST_AFTER_GUARD : k % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    if (k % 8 == 0) s->p.norm.eps = 0.25f;
    promise_run(&s->does);
    check(s, "layer norm");
  }
}

/* f32 asks for no memory, and params may be null. */
void K7_norm_no_memory(void **state) {
  (void)state;
  test_rng rng = test_seed(7701);
  shape z = plain(67, 33);
  z.residual = z.sum = 1;
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(ask(s, &ctx), 0);
  test_malloc_fails = 1;
  attn_status status = call(s, &ctx);
  test_malloc_fails = 0;
  assert_int_equal(status, ATTN_OK);
  check(s, "without memory");
  memset(&s->p, 0, sizeof s->p);
  assert_int_equal(attn_layer_norm(s->y, s->x, NULL, &ctx), ATTN_OK);
  check(s, "without parameters");
}

/* Equal numbers have no variance, whatever their size: bias, or nearly. One column is such a row. */
void K7_norm_constant_rows(void **state) {
  (void)state;
  static const double values[] = {0, 1, -0.1, 1e-30, 3e5, 1e7 + 1, 1.2345e20, -3e38};
  test_rng rng = test_seed(7702);
  for (int64_t n = 1; n < 800; n = n * 3 + 1) {
    shape z = plain(8, n);
    z.bias = z.gain = 1;
    scene *s = build(&z, &rng);
    for (int64_t i = 0; i < 8; i++) test_fill_row(s->x, 0, 0, i, values[i]);
    promise_run(&s->does);
    for (int64_t i = 0; i < 8; i++)
      for (int64_t c = 0; c < n; c++) {
        const double g = (double)s->p.norm.gain[c], want = (double)s->p.norm.bias[c];
        value_check(oracle_get(&s->y, 0, 0, i, c), want, 2e-7 * (fabs(g) + fabs(want)), ATTN_F32,
                    "constant", 0, 0, i, c);
      }
  }
}

/* Rows whose squares, or whose sum, are beyond floats, and rows far below eps or above a small one. */
void K7_norm_extreme_rows(void **state) {
  (void)state;
  static const double sizes[] = {1e-38, 1e-25, 1e-12, 1e-3, 1e4, 1e14, 1e18, 1e30, 3e37};
  test_rng rng = test_seed(7703);
  for (int n = 0; n < 6; n++) {
    const int e = n % 3;
    shape z = plain(27, e == 1 ? 129 : 40);
    z.gain = z.bias = 1, z.rms = n > 2, z.less = n % 2;
    scene *s = build(&z, &rng);
    s->p.norm.eps = e == 0 ? 0 : e == 1 ? 1e-30f : 1e30f;
    for (int64_t i = 0; i < 27; i++)
      for (int64_t c = 0; c < z.n; c++) {
        const double base = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : -100;
        double x = sizes[i / 3] * (base + test_normal(&rng));
        oracle_set(&s->x, 0, 0, i, c, fmin(fmax(x, -3e38), 3e38));
      }
    promise_run(&s->does);
    check(s, "extreme");
  }
}

/* A row's bits depend on nothing but the row: not on its neighbours, its place, or how many there are. */
void K7_norm_rows_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(7704);
  for (int k = 0; k < 6; k++) {
    shape z = plain(37, k % 3 == 0 ? 48 : k % 3 == 1 ? 301 : 530);
    z.gain = z.bias = 1, z.residual = k > 2, z.rms = k % 2;
    scene *s = build(&z, &rng), *one = test_mem(sizeof *one);
    test_fill_row(s->x, 0, 0, 5, NAN);
    test_fill_row(s->x, 0, 0, 9, 7);
    test_fill_row(s->x, 0, 0, 36, 1e30);
    promise_run(&s->does);
    for (int64_t i = 0; i < 37; i++) {
      *one = *s;
      one->does.scene = one;
      one->x = test_rows(s->x, i, 1);
      if (z.residual) one->p.residual = test_rows(s->p.residual, i, 1);
      one->y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, z.n);
      promise_run(&one->does);
      test_assert_same(one->y, test_rows(s->y, i, 1), "a row by itself");
    }
  }
}

/* Whether a number of a row of y is the default NaN, bit for bit. */
static void check_default_nan(const scene *s, int64_t row, int64_t column) {
  uint32_t bits;
  memcpy(&bits, (const float *)s->y.data + row * s->y.dim + column, sizeof bits);
  assert_int_equal(bits, 0x7fc00000u);
}

/* NaN and infinity make their own row the default NaN, and no other (of RMS infinity itself alone); those of gain and bias, whatever their
 * sign and payload, their own column. */
void K7_norm_nan_rows(void **state) {
  (void)state;
  static const double marks[] = {NAN, INFINITY, -INFINITY};
  test_rng rng = test_seed(7705);
  for (int k = 0; k < 12; k++) {
    shape z = plain(21, k % 2 ? 50 : 300);
    z.gain = z.bias = k % 3 != 0, z.residual = k > 5, z.rms = k / 2 % 2;
    scene *s = build(&z, &rng);
    attn_tensor clean = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 21, z.n);
    promise_run(&s->does);
    test_copy(clean, s->y);
    const attn_tensor *in = k % 4 == 3 && z.residual ? &s->p.residual : &s->x;
    oracle_set(in, 0, 0, 6, z.n - 1, marks[k % 3]);
    promise_run(&s->does);
    for (int64_t i = 0; i < 21; i++) {
      if (i != 6) {
        test_assert_same(test_rows(s->y, i, 1), test_rows(clean, i, 1), "beside NaN");
        continue;
      }
      /* x / infinity is 0 */
      const int zero = z.rms && k % 3 != 0;
      for (int64_t c = 0; c < z.n - zero; c++)
        if (zero)
          assert_true(oracle_get(&s->y, 0, 0, 6, c) ==
                      (s->p.norm.bias ? (double)s->p.norm.bias[c] : 0.0));
        else
          check_default_nan(s, 6, c);
      check_default_nan(s, 6, z.n - 1);
    }
    if (!z.gain) continue;
    const uint32_t odd[] = {0xffc12345u, 0x7fe54321u};
    memcpy((float *)(uintptr_t)s->p.norm.gain + 3, &odd[0], sizeof odd[0]);
    memcpy((float *)(uintptr_t)s->p.norm.bias + z.n - 1, &odd[1], sizeof odd[1]);
    promise_run(&s->does);
    for (int64_t i = 0; i < 21; i++) {
      check_default_nan(s, i, 3), check_default_nan(s, i, z.n - 1);
      for (int64_t c = 0; c < z.n - 1 && i != 6; c++)
        if (c != 3) assert_true(oracle_get(&s->y, 0, 0, i, c) == oracle_get(&clean, 0, 0, i, c));
    }
  }
}

/* An output in the place of an input has the bits it has elsewhere. */
void K7_norm_in_place(void **state) {
  (void)state;
  test_rng rng = test_seed(7706);
  for (int k = 0; k < 12; k++) {
    shape z = plain(35, k % 3 == 0 ? 19 : k % 3 == 1 ? 260 : 64);
    const attn_dtype type = floats[k / 3 % 3];
    z.x_type = z.y_type = z.r_type = z.s_type = type;
    z.x_layout = z.y_layout = z.r_layout = TEST_PADDED;
    z.batch = 2, z.residual = z.sum = 1, z.gain = 1, z.rms = k % 2;
    scene *s = build(&z, &rng), *other = test_mem(sizeof *other);
    promise_run(&s->does);
    for (int way = 0; way < 5; way++) {
      *other = *s;
      other->does.scene = other;
      other->x = test_tensor(type, TEST_PADDED, 2, 1, 35, z.n);
      other->p.residual = test_tensor(type, TEST_PADDED, 2, 1, 35, z.n);
      other->y = test_tensor(type, TEST_PADDED, 2, 1, 35, z.n);
      other->p.sum = test_tensor(type, TEST_PADDED, 2, 1, 35, z.n);
      test_copy(other->x, s->x);
      test_copy(other->p.residual, s->p.residual);
      if (way == 0 || way == 4) other->y = other->x;
      if (way == 1) other->y = other->p.residual, other->p.sum = other->x;
      if (way == 2 || way == 4) other->p.sum = other->p.residual;
      if (way == 3) other->y = other->p.residual, other->p.sum = absent();
      promise_run(&other->does);
      test_assert_same(other->y, s->y, "in place");
      if (other->p.sum.data) test_assert_same(other->p.sum, s->p.sum, "sum in place");
    }
  }
}

void K7_norm_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(7707);
  for (int k = 0; k < 3; k++) {
    shape z = plain(k == 0 ? 0 : 4, 12);
    if (k == 1) z.batch = 0;
    if (k == 2) z.heads = 0;
    scene *s = build(&z, &rng);
    promise_run(&s->does);
  }
}

void K7_norm_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7708);
  for (int n = 0; n < 2; n++) {
    shape z = plain(150, 40);
    z.batch = 2, z.residual = z.sum = z.gain = z.bias = 1, z.rms = z.less = n;
    z.y_type = ATTN_F16, z.r_type = ATTN_BF16;
    promise_keep(&build(&z, &rng)->does);
  }
}

/* One wrong argument; the word its reason must have. */
static attn_status spoil(scene *s, int n, const char **word) {
  attn_layer_norm_params *p = &s->p;
  switch (n) {
    case 0: s->x.data = NULL, *word = "x.data"; return ATTN_E_NULL;
    case 1: s->y.data = NULL, *word = "y.data"; return ATTN_E_NULL;
    case 2: s->x.dtype = ATTN_I8, *word = "x.dtype"; return ATTN_E_DTYPE;
    case 3: s->x.len++, *word = "x must"; return ATTN_E_SHAPE;
    case 4: s->x.dim--, *word = "x must"; return ATTN_E_SHAPE;
    case 5: s->x.batch = 3, *word = "x must"; return ATTN_E_SHAPE;
    case 6: p->residual.dim--, *word = "params.residual must"; return ATTN_E_SHAPE;
    case 7: p->residual.heads = 3, *word = "params.residual must"; return ATTN_E_SHAPE;
    case 8: p->sum.batch = 1, *word = "params.sum must"; return ATTN_E_SHAPE;
    case 9: s->y.stride_len = 3, *word = "y is an output"; return ATTN_E_STRIDE;
    case 10: p->sum.stride_batch = 0, *word = "params.sum is an output"; return ATTN_E_STRIDE;
    case 11: p->norm.eps = -1, *word = "eps"; return ATTN_E_VALUE;
    case 12: p->norm.eps = NAN, *word = "eps"; return ATTN_E_VALUE;
    case 13: p->norm.eps = INFINITY, *word = "eps"; return ATTN_E_VALUE;
    case 14: s->y.data = (float *)s->x.data + 1, *word = "y is an output"; return ATTN_E_OVERLAP;
    case 15: p->sum = s->y, *word = "y is an output"; return ATTN_E_OVERLAP;
    case 16: s->y = s->x, s->y.stride_batch *= 2, *word = "y is an"; return ATTN_E_OVERLAP;
    case 17: p->norm.gain = s->y.data, *word = "y is an output"; return ATTN_E_OVERLAP;
    case 18:
      p->norm.bias = (const float *)(const void *)((const char *)p->norm.gain + 1);
      *word = "gain and bias";
      return ATTN_E_ALIGN;
    case 19: s->x.data = (char *)s->x.data + 2, *word = "x.data"; return ATTN_E_ALIGN;
    case 20: s->y.dim = 0, *word = "y.dim"; return ATTN_E_SHAPE;
    case 21: s->x.stride_len = INT64_MAX / 2, *word = "x spans"; return ATTN_E_OVERFLOW;
    case 22: p->norm.gain_less_one = 2, *word = "gain_less_one"; return ATTN_E_RANGE;
    case 23: s->y.len = -1, *word = "y."; return ATTN_E_SHAPE;
    default: return ATTN_OK;
  }
}

void K7_norm_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7709);
  for (int n = 0;; n++, test_mem_release()) {
    shape z = plain(5, 9);
    z.batch = z.heads = 2, z.residual = z.sum = z.gain = z.bias = 1, z.rms = n % 2;
    scene *s = build(&z, &rng);
    const char *word = "";
    const attn_status status = spoil(s, n, &word);
    if (status == ATTN_OK) break;
    promise_reject(&s->does, status, word);
    attn_ctx ctx = test_ctx();
    assert_int_equal(ask(s, &ctx), ATTN_WORKSPACE_REJECTED);
  }
}
