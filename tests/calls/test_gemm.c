/* tests/calls/test_gemm.c owns dense products of rows: against float64, views, cuts, activations far out,
 * promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor y, x, w;
  attn_gemm_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_gemm(s->y, s->x, s->w, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_gemm_workspace(s->y, s->x, s->w, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, m, k, n;
  int shared_x, shared_w, transposed, bias; /* bias 2: one for all heads */
  attn_dtype x_type, w_type, y_type, bias_type;
  test_layout x_layout, w_layout, y_layout;
} shape;

static shape plain(int64_t m, int64_t k, int64_t n) {
  shape z = {1, 1, m, k, n, 0, 0, 0, 0, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, 0, 0, 0};
  return z;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->x =
      drawn(z->x_type, z->x_layout, z->shared_x ? 1 : b, z->shared_x ? 1 : h, z->m, z->k, 1, rng);
  s->w = drawn(z->w_type, z->w_layout, z->shared_w ? 1 : b, z->shared_w ? 1 : h,
               z->transposed ? z->n : z->k, z->transposed ? z->k : z->n, 0.5, rng);
  s->p.w_transposed = z->transposed, s->p.compute = test_compute;
  if (z->bias)
    s->p.bias =
        drawn(z->bias_type, TEST_BHTD, z->bias == 2 ? 1 : b, z->bias == 2 ? 1 : h, 1, z->n, 1, rng);
  s->y = output(z->y_type, z->y_layout, b, h, z->m, z->n, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

/* The function, and how far its value moves when x moves by dx. */
static double act(attn_activation f, double x, double dx, double *moves) {
  const double pi = 3.14159265358979323846, slope = sqrt(2 / pi);
  *moves = dx * 1.2;
  switch (f) {
    case ATTN_ACT_DEFAULT: return x;
    case ATTN_ACT_NONE: return x;
    case ATTN_ACT_RELU: return x > 0 ? x : 0;
    case ATTN_ACT_RELU2: *moves = 2 * dx * (fabs(x) + dx); return x > 0 ? x * x : 0;
    case ATTN_ACT_GELU: return x * erfc(-x / sqrt(2)) / 2;
    case ATTN_ACT_GELU_TANH: return x / (1 + exp(-2 * slope * (x + 0.044715 * x * x * x)));
    case ATTN_ACT_SILU: return x / (1 + exp(-x));
    case ATTN_ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ATTN_ACT_TANH: return tanh(x);
    case ATTN_ACT_EXP: *moves = exp(x + dx) * dx; return exp(x);
    default: return x > 0 ? x + 1 : exp(x);
  }
}

static void check(const scene *s, const char *what) {
  const int64_t k = s->x.dim;
  const double scale = s->p.scale != 0 || signbit(s->p.scale) ? (double)s->p.scale : 1;
  for (int64_t r = 0; r < s->y.batch * s->y.heads * s->y.len; r++) {
    const int64_t b = r / s->y.len / s->y.heads, h = r / s->y.len % s->y.heads, i = r % s->y.len;
    const int64_t xb = s->x.batch > 1 ? b : 0, xh = s->x.heads > 1 ? h : 0;
    const int64_t wb = s->w.batch > 1 ? b : 0, wh = s->w.heads > 1 ? h : 0;
    for (int64_t j = 0; j < s->y.dim; j++) {
      double sum = 0, size = 0, bias = 0, moves;
      for (int64_t c = 0; c < k; c++) {
        const double t =
            oracle_get(&s->x, xb, xh, i, c) *
            (s->p.w_transposed ? oracle_get(&s->w, wb, wh, j, c) : oracle_get(&s->w, wb, wh, c, j));
        sum += t, size += fabs(t);
      }
      if (s->p.bias.data)
        bias =
            oracle_get(&s->p.bias, s->p.bias.batch > 1 ? b : 0, s->p.bias.heads > 1 ? h : 0, 0, j);
      const double cap = (double)s->p.softcap, z = scale * sum + bias;
      const attn_act_form *m = &s->p.form;
      const double slope = m->slope > 0 ? (double)m->slope : 1;
      const double limit = m->limit > 0 ? (double)m->limit : (double)INFINITY;
      const double x = slope * fmin(limit, cap > 0 ? cap * tanh(z / cap) : z);
      /* roundings of a chain grow like sqrt(k) */
      double dx = 6e-8 * ((2 + sqrt((double)k) / 2) * fabs(scale) * size + fabs(bias) + fabs(z));
      if (s->p.compute == ATTN_COMPUTE_BF16 &&
          (s->x.dtype != ATTN_BF16 || s->w.dtype != ATTN_BF16)) /* they are rounded */
        dx += ldexp(1, -7) * fabs(scale) * size;
      if (s->p.compute == ATTN_COMPUTE_F16 && (s->x.dtype != ATTN_F16 || s->w.dtype != ATTN_F16))
        dx += ldexp(1, -10) * fabs(scale) * size;
      if (cap > 0) dx += 5e-7 * fabs(z);
      const double want = act(s->p.activation, x, slope * dx + 1e-7 * fabs(x), &moves) / slope;
      value_check(oracle_get(&s->y, b, h, i, j), want, moves / slope + 1e-6 * fabs(want),
                  s->y.dtype, what, b, h, i, j);
    }
  }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void MM_gemm_random(void **state) {
  (void)state;
  test_rng rng = test_seed(4000);
  for (int64_t n = test_count(120, 30); n-- > 0; test_mem_release()) {
    shape z = plain(test_range(&rng, 1, n % 3 ? 60 : 200), test_range(&rng, 1, n % 4 ? 60 : 300),
                    test_range(&rng, 1, n % 5 ? 90 : 300));
    z.batch = test_range(&rng, 1, 2), z.heads = test_range(&rng, 1, n % 6 ? 1 : 3);
    z.shared_x = n % 7 == 1, z.shared_w = n % 7 == 2, z.transposed = n % 2 == 1,
    z.bias = (int)(n % 3);
    z.x_type = floats[n / 2 % 4 % 3], z.w_type = floats[n / 3 % 4 % 3];
    z.y_type = floats[n / 5 % 4 % 3], z.bias_type = floats[n / 4 % 3];
    z.x_layout = (test_layout)(n % TEST_LAYOUTS), z.w_layout = (test_layout)(n / 2 % TEST_LAYOUTS);
    z.y_layout = (test_layout)(n % 4);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    s->p.activation = (attn_activation)(n % ATTN_ACT_COUNT);
    if (n % 4 == 2) s->p.scale = -0.25f;
    if (s->p.activation == ATTN_ACT_EXP) s->p.scale = 0.1f; /* within the range of f16 */
    if (n % 20 == 19) s->p.scale = ATTN_ZERO;
    if (n % 5 == 3) s->p.softcap = n % 10 == 3 ? 1.5f : 30;
    if (n % 6 > 3) s->p.form.slope = n % 12 > 5 ? 1.702f : 0.5f;
    if (n % 7 > 4) s->p.form.limit = 1.25f;
    promise_run(&s->does);
    check(s, "gemm");
  }
}

/* Every residue of rows and columns, in panels, in place and turned. */
void MM_gemm_tails(void **state) {
  (void)state;
  test_rng rng = test_seed(4001);
  for (int64_t m = 1; m <= 13; m++)
    for (int64_t n = m % 3 + 1; n <= 70; n += test_fast ? 11 : 3, test_mem_release())
      for (int way = 0; way < 4; way++) {
        shape z = plain(m, 1 + (m * n) % (way < 2 ? 19 : 47), n);
        z.w_type = floats[way == 0 ? 2 : way == 3 ? m % 3 : 0], z.transposed = way >= 2;
        z.bias = n % 2 != 0;
        test_where = n % 2 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
        scene *s = build(&z, &rng);
        test_where = TEST_HEAP;
        promise_run(&s->does);
        check(s, way == 0 ? "panels" : way == 1 ? "in place" : "turned");
      }
}

/* Integers have one sum in any order: all paths, tiers and cuts give it exactly. */
void MM_gemm_exact(void **state) {
  (void)state;
  test_rng rng = test_seed(4002);
  shape z = plain(201, 150, 139);
  scene *s = build(&z, &rng);
  test_fill(s->x, &rng, test_exact);
  test_fill(s->w, &rng, test_exact);
  promise_run(&s->does);
  for (int64_t i = 0; i < 201; i++)
    for (int64_t j = 0; j < 139; j++) {
      double sum = 0;
      for (int64_t c = 0; c < 150; c++)
        sum += oracle_get(&s->x, 0, 0, i, c) * oracle_get(&s->w, 0, 0, c, j);
      assert_true(oracle_get(&s->y, 0, 0, i, j) == sum);
    }
}

/* Rows and columns computed alone, w transposed or not, have the bits of the whole; so do all tiers
 * with fused multiply-add. */
void MM_gemm_bits(void **state) {
  (void)state;
  test_rng rng = test_seed(4003);
  shape z = plain(213, 300, 171);
  z.bias = 1;
  scene *s = build(&z, &rng);
  s->p.activation = ATTN_ACT_GELU;
  promise_run(&s->does);
  attn_tensor turned = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 171, 300);
  for (int64_t c = 0; c < 300; c++)
    for (int64_t j = 0; j < 171; j++)
      ((float *)turned.data)[j * turned.stride_len + c] =
          ((const float *)s->w.data)[c * s->w.stride_len + j];
  scene other = *s;
  other.w = turned, other.p.w_transposed = 1;
  other.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 213, 171);
  attn_ctx ctx = test_ctx();
  assert_int_equal(call(&other, &ctx), ATTN_OK);
  test_assert_same(other.y, s->y, "w transposed");
  static const int64_t direct[] = {1, 2, 19, 20, 97, 191};
  for (size_t n = 0; n < sizeof direct / sizeof *direct; n++) { /* w in place, or strips of it */
    scene some = *s;
    some.x = test_rows(s->x, 7, direct[n]);
    some.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, direct[n], 171);
    assert_int_equal(call(&some, &ctx), ATTN_OK);
    test_assert_same(some.y, test_rows(s->y, 7, direct[n]), "few rows");
  }
  for (int n = 0; n < 3; n++) { /* rows of y that lie 4 KB apart */
    scene far = *s;
    const int64_t rows = n == 0 ? 213 : n == 1 ? 97 : 2;
    far.x = test_rows(s->x, 0, rows);
    far.y = test_rows(test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 213, 1024), 0, rows);
    far.y.dim = 171;
    assert_int_equal(call(&far, &ctx), ATTN_OK);
    test_assert_same(far.y, test_rows(s->y, 0, rows), "far rows");
  }
  static const int64_t few[] = {1, 2, 8, 9, 40, 190};
  for (size_t n = 0; n < sizeof few / sizeof *few; n++) { /* few rows: w turned in place */
    scene some = other;
    some.x = test_rows(s->x, 11, few[n]);
    some.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, few[n], 171);
    assert_int_equal(attn_gemm_workspace(some.y, some.x, some.w, &some.p, &ctx), 0);
    assert_int_equal(call(&some, &ctx), ATTN_OK);
    test_assert_same(some.y, test_rows(s->y, 11, few[n]), "few rows, w transposed");
  }
  if (test_isa == ATTN_ISA_AVX512) {
    ctx.isa = ATTN_ISA_AVX2;
    assert_int_equal(call(&other, &ctx), ATTN_OK);
    test_assert_same(other.y, s->y, "avx2 and avx512");
  }
}

/* The same in any arithmetic: parts, a transposed w, other strides and storage that loses nothing. */
void MM_gemm_cuts(void **state) {
  (void)state;
  test_rng rng = test_seed(4007);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    shape z = plain(n && test_fast ? 53 : 213, 600 + (n == 1), 171 - 11 * n);
    z.x_type = z.w_type = n ? ATTN_BF16 : ATTN_F32;
    z.bias = 1;
    scene *s = build(&z, &rng), turned = *s, wide = *s;
    promise_run(&s->does);
    turned.w = test_tensor(z.w_type, n == 2 ? TEST_BHTD : TEST_PADDED, 1, 1, z.n, z.k);
    wide.x = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, z.m, z.k);
    wide.w = test_tensor(ATTN_F32, TEST_NEGATIVE, 1, 1, z.k, z.n);
    test_copy(wide.x, s->x);
    test_copy(wide.w, s->w);
    for (int64_t c = 0; c < z.k; c++)
      for (int64_t j = 0; j < z.n; j++)
        oracle_set(&turned.w, 0, 0, j, c, oracle_get(&s->w, 0, 0, c, j));
    turned.p.w_transposed = 1;
    turned.y = wide.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, z.m, z.n);
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(&turned, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.compute, test_compute);
    test_assert_same(turned.y, s->y, "w transposed");
    assert_int_equal(call(&wide, &ctx), ATTN_OK);
    test_assert_same(wide.y, s->y, "the same numbers as f32");
    for (int64_t i = 0; i < z.m; i += 50) {
      scene some = *s;
      some.x = test_rows(s->x, i, 3), some.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, z.n);
      assert_int_equal(call(&some, &ctx), ATTN_OK);
      test_assert_same(some.y, test_rows(s->y, i, 3), "three rows");
    }
    scene left = *s;
    left.w.dim = left.p.bias.dim = 70;
    left.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, z.m, 70);
    assert_int_equal(call(&left, &ctx), ATTN_OK);
    attn_tensor part = s->y;
    part.dim = 70;
    test_assert_same(left.y, part, "the first columns");
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    assert_int_equal(call(&wide, &ctx), ATTN_OK);
    test_assert_same(wide.y, s->y, "three workers");
  }
}

/* Far from 0 every activation has its limit, and NaN stays NaN. */
void MM_gemm_activations(void **state) {
  (void)state;
  static const float at[] = {-INFINITY, -3e38f, -200,   -105,   -88,     -50,      -20,
                             -14.5f,    -13,    -10.5f, -9,     -6,      -3.5f,    -3.4999998f,
                             -3.3f,     -1,     -0.5f,  -1e-3f, -1e-20f, 0,        1e-20f,
                             1e-3f,     0.5f,   1,      3.3f,   6,       9,        13,
                             20,        50,     88,     105,    3e38f,   INFINITY, NAN};
  enum { N = sizeof at / sizeof *at };
  static float one = 1, x[N], y[N];
  memcpy(x, at, sizeof x);
  /* the vectors of 32-bit ARM flush a subnormal factor: 1.2e-38 times 105 at most */
  const double least = sizeof(void *) == 4 && test_isa == ATTN_ISA_NEON ? 1.3e-36 : 1.2e-37;
  for (int f = 0; f < ATTN_ACT_COUNT; f++) {
    attn_gemm_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.activation = (attn_activation)f;
    assert_int_equal(
        attn_gemm(attn_bhtd(y, ATTN_F32, 1, 1, N, 1), attn_bhtd(x, ATTN_F32, 1, 1, N, 1),
                  attn_bhtd(&one, ATTN_F32, 1, 1, 1, 1), &p, &ctx),
        ATTN_OK);
    for (int i = 0; i < N - 1; i++) {
      double moves, want = act(p.activation, (double)x[i], 0, &moves);
      /* x times its own vanishing factor */
      if (isinf(x[i]) && x[i] < 0 && f >= ATTN_ACT_GELU && f <= ATTN_ACT_SILU) want = 0;
      if (fabs(want) > 3.4028235e38) want = want > 0 ? (double)INFINITY : -(double)INFINITY;
      const double bound = (f == ATTN_ACT_GELU && test_isa == ATTN_ISA_SCALAR ? 1e-5
                            : f == ATTN_ACT_GELU_TANH || f == ATTN_ACT_SILU   ? 1e-5
                                                                              : 1.2e-6);
      if (isinf(want) ? (double)y[i] != want
                      : !(fabs((double)y[i] - want) <= bound * fabs(want) + least))
        fail_msg("activation %d of %g is %g, not %g", f, (double)x[i], (double)y[i], want);
    }
    assert_true(isnan(y[N - 1]));
  }
}

/* NaN and infinity reach the elements that read them, no others. */
void MM_gemm_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(4004);
  for (int transposed = 0; transposed < 2; transposed++) {
    shape z = plain(70, 40, 90);
    z.transposed = transposed;
    scene *s = build(&z, &rng);
    promise_run(&s->does);
    attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 70, 90);
    test_copy(before, s->y);
    ((float *)s->x.data)[3 * 40 + 7] = NAN;
    ((float *)s->x.data)[50 * 40 + 7] = INFINITY;
    promise_run(&s->does);
    for (int64_t j = 0; j < 90; j++) {
      assert_true(isnan(oracle_get(&s->y, 0, 0, 3, j)));
      assert_true(isinf(oracle_get(&s->y, 0, 0, 50, j)));
    }
    test_assert_same(test_rows(s->y, 0, 3), test_rows(before, 0, 3), "rows before");
    test_assert_same(test_rows(s->y, 51, 19), test_rows(before, 51, 19), "rows after");
  }
}

void MM_gemm_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4005);
  for (int n = 0; n < 6; n++) {
    shape z = plain(n % 2 ? 230 : 20, test_fast ? 70 : 150, test_fast ? 140 : 330);
    if (test_repeats && n % 3 != 1) continue;
    z.batch = 2, z.heads = 2, z.bias = 1, z.shared_w = n == 2, z.transposed = n > 3;
    if (n > 1) z.x_type = ATTN_F16, z.y_type = ATTN_BF16;
    promise_keep(&build(&z, &rng)->does);
  }
  for (int n = test_repeats; n < 2; n++) { /* y is made in memory of the workers */
    shape z = plain(n ? 100 : 230, 260, 1024);
    promise_keep(&build(&z, &rng)->does);
  }
  for (int n = 0; n < 3; n++) { /* nothing to do */
    shape z = plain(n == 0 ? 0 : 3, 4, 5);
    z.batch = n != 1, z.heads = n != 2;
    promise_run(&build(&z, &rng)->does);
  }
  attn_tensor none = attn_bhtd(NULL, ATTN_F32, 0, 1, INT64_MAX, 4); /* no batch, so no rows */
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_gemm(none, none, attn_bhtd(NULL, ATTN_F32, 0, 1, 4, 4), NULL, &ctx),
                   ATTN_OK);
}

void MM_gemm_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(4006);
  for (int n = 0; n < 29; n++) {
    shape z = plain(9, 7, 11);
    z.batch = z.heads = 2, z.bias = 1, z.transposed = n % 2;
    scene *s = build(&z, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->x.len = 8, word = "x.len"; break;
      case 1: s->w.dim = 6, word = "w.dim"; break;
      case 2: s->w.len = 6, word = "w.len"; break;
      case 3: s->w.len = 10, word = "w.len"; break;
      case 4: s->w.dim = 10, word = "w.dim"; break;
      case 5: s->x.heads = 3, s->x.stride_head = 0, word = "x.batch and x.heads"; break;
      case 6: s->w.batch = 3, s->w.stride_batch = 0, word = "w.batch and w.heads"; break;
      case 7: s->p.bias.len = 2, s->p.bias.stride_len = 0, word = "params.bias"; break;
      case 8: s->p.bias.dim = 10, word = "params.bias"; break;
      case 9: s->p.bias.heads = 3, s->p.bias.stride_head = 0, word = "params.bias"; break;
      case 10: s->p.scale = NAN, want = ATTN_E_VALUE, word = "params.scale"; break;
      case 11: s->p.scale = -INFINITY, want = ATTN_E_VALUE, word = "params.scale"; break;
      case 12: s->p.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 13:
        s->p.activation = (attn_activation)-1, want = ATTN_E_RANGE, word = "activation";
        break;
      case 14: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 15: s->w.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      case 16: s->w.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 17: s->x = s->y, s->x.dim = 7, want = ATTN_E_OVERLAP, word = "y "; break;
      case 18: s->y.stride_len = 0, want = ATTN_E_STRIDE, word = "y "; break;
      case 19: s->x.len = s->y.len = -1, word = "y.batch"; break;
      case 20: s->p.bias.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "params.bias"; break;
      case 21: s->p.compute = (attn_compute)-1, want = ATTN_E_VALUE, word = "compute"; break;
      case 22: s->p.compute = ATTN_COMPUTE_I8, want = ATTN_E_VALUE, word = "compute"; break;
      case 23: s->p.softcap = -1, want = ATTN_E_VALUE, word = "softcap"; break;
      case 24: s->p.softcap = INFINITY, want = ATTN_E_VALUE, word = "softcap"; break;
      case 25: s->p.form.slope = 1e-7f, want = ATTN_E_VALUE, word = "form.slope"; break;
      case 26: s->p.form.limit = INFINITY, want = ATTN_E_VALUE, word = "form"; break;
      case 27: s->p.form.gate_add = 1, want = ATTN_E_RANGE, word = "form.gate_add"; break;
      default: s->y.stride_head = INT64_MAX, want = ATTN_E_OVERFLOW, word = "y "; break;
    }
    promise_reject(&s->does, want, word);
  }
}
