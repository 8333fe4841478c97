/* tests/families/mixers/test_fourier.c owns Fourier mixing and the FNet block: the sums of the definition in float64,
 * what follows from them, promises and rejections. */

#include "computes.h"
#include "layers.h"

typedef struct scene {
  attn_tensor y, x;
  attn_fnet_params par;
  int block;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->block ? attn_fnet(s->y, s->x, &s->par, ctx)
                  : attn_fourier(s->y, s->x, &s->par.mix, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->block ? attn_fnet_workspace(s->y, s->x, &s->par, ctx)
                  : attn_fourier_workspace(s->y, s->x, &s->par.mix, ctx);
}

static scene *build(int64_t batch, int64_t len, int64_t dm, attn_dtype x_type, attn_dtype y_type,
                    test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(x_type, TEST_PADDED, batch, 1, len, dm, 1, rng);
  s->y = output(y_type, TEST_NEGATIVE, batch, 1, len, dm, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static double *wave(int64_t n, double (*of)(double)) {
  double *w = test_mem((size_t)n * sizeof *w);
  for (int64_t k = 0; k < n; k++) w[k] = of(2 * acos(-1.0) * (double)k / (double)n);
  return w;
}

/* Rows t0, t0 + step, .. of the transform of entry b of x, of which there are n rows: first the sums over
 * n, then those over m. */
static void transform(cube *y, const cube *x, int64_t b, int64_t n, int64_t step) {
  const int64_t dm = x->dim;
  double *re = test_mem((size_t)dm * sizeof *re), *im = test_mem((size_t)dm * sizeof *im);
  double *cn = wave(n ? n : 1, cos), *sn = wave(n ? n : 1, sin), *cd = wave(dm, cos);
  double *sd = wave(dm, sin);
  for (int64_t t = 0; t < n; t += step) {
    for (int64_t m = 0; m < dm; m++) re[m] = im[m] = 0;
    for (int64_t i = 0; i < n; i++) {
      const double *row = cube_at(x, b, 0, i), c = cn[t * i % n], s = sn[t * i % n];
      for (int64_t m = 0; m < dm; m++) re[m] += row[m] * c, im[m] += row[m] * s;
    }
    for (int64_t k = 0; k < dm; k++) {
      double sum = 0;
      for (int64_t m = 0; m < dm; m++) sum += re[m] * cd[k * m % dm] - im[m] * sd[k * m % dm];
      cube_at(y, b, 0, t)[k] = sum;
    }
  }
}

static cube fourier(const cube *x, const int32_t *x_len) {
  cube y = cube_of(x->batch, 1, x->len, x->dim);
  for (int64_t n = 0; n < y.batch * y.len * y.dim; n++) y.data[n] = 0;
  for (int64_t b = 0; b < x->batch; b++) transform(&y, x, b, x_len ? x_len[b] : x->len, 1);
  return y;
}

/* norm_2(h + ff(h)), h = norm_1(x + y), in the rows that exist; ff with gelu unless it says otherwise. */
static cube block(const cube *x, const attn_fnet_params *par) {
  cube y = fourier(x, par->mix.x_len), h = rows_norm(x, &y, &par->norm_1);
  attn_feed_forward ff = par->ff;
  if (ff.activation == ATTN_ACT_DEFAULT) ff.activation = ATTN_ACT_GELU;
  cube made = rows_feed(&h, &ff);
  cube o = rows_norm(&h, &made, &par->norm_2);
  for (int64_t n = 0; par->mix.x_len && n < o.batch * o.len; n++)
    for (int64_t c = 0; n % o.len >= par->mix.x_len[n / o.len] && c < o.dim; c++)
      o.data[n * o.dim + c] = 0;
  return o;
}

static void check(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  cube x = cube_from(&s->x);
  cube want = s->block ? block(&x, &s->par) : fourier(&x, s->par.mix.x_len);
  cube_check(&want, &s->y, tolerance, what);
}

/* sqrt(sum (y - want)^2 / sum want^2) over every step-th row. */
static double error(const scene *s, const cube *want, int64_t step) {
  double off = 0, all = 0;
  for (int64_t t = 0; t < s->y.len; t += step)
    for (int64_t c = 0; c < s->y.dim; c++) {
      const double w = cube_at(want, 0, 0, t)[c], d = oracle_get(&s->y, 0, 0, t, c) - w;
      off += d * d, all += w * w;
    }
  return sqrt(off / all);
}

/* ---- mixing ---------------------------------------------------------------------------------*/

/* Every length by every path: all radices, and Bluestein's from 37 on. */
void L1_lengths_all(void **state) {
  (void)state;
  test_rng rng = test_seed(1200);
  const int64_t most = test_count(80, 40);
  for (int64_t n = 1; n <= most; n++, test_mem_release()) {
    const int64_t other = test_range(&rng, 1, 5);
    check(build(1, n, other, ATTN_F32, ATTN_F32, &rng), 1e-6, "rows");
    check(build(1, other, n, ATTN_F32, ATTN_F32, &rng), 1e-6, "columns");
  }
}

void L1_random(void **state) {
  (void)state;
  test_rng rng = test_seed(1201);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 3), len = test_range(&rng, 1, n % 4 ? 40 : 150);
    const int64_t dm = test_range(&rng, 1, n % 5 ? 40 : 200);
    const attn_dtype x_type = (attn_dtype)(n % 3), y_type = (attn_dtype)(n / 3 % 3);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(batch, len, dm, x_type, y_type, &rng);
    test_where = TEST_HEAP;
    if (n % 2) s->par.mix.x_len = test_lengths(batch, len, &rng);
    s->par.mix.form = n % 4 == 1 ? ATTN_FOURIER_GEMM : ATTN_FOURIER_FFT;
    check(s, 2e-6, "random");
  }
}

/* The errors that attn_fourier states, over small sizes: numbers of mean 0, and of mean 1. */
void L1_errors(void **state) {
  (void)state;
  static const int64_t other[] = {1, 2, 5, 13, 36, 47};
  test_rng rng = test_seed(1207);
  const int64_t most = test_count(70, 24);
  for (int64_t n = 0; n < 24 * most; n++, test_mem_release()) {
    const int64_t a = n / 24 + 1, b = other[n / 4 % 6], len = n & 1 ? a : b, dm = n & 1 ? b : a;
    const int mean = (int)((a + b) % 2), form = (int)(n / 2 % 2);
    scene *s = build(1, len, dm, ATTN_F32, ATTN_F32, &rng);
    s->par.mix.form = form ? ATTN_FOURIER_GEMM : ATTN_FOURIER_FFT;
    for (int64_t e = 0; mean && e < len * dm; e++)
      oracle_set(&s->x, 0, 0, e / dm, e % dm, 1 + oracle_get(&s->x, 0, 0, e / dm, e % dm));
    cube x = cube_from(&s->x), want = fourier(&x, NULL);
    promise_run(&s->does);
    double size = 0, top = 0, all = 0, worst = 0;
    for (int64_t e = 0; e < len * dm; e++) {
      size += x.data[e] * x.data[e], top = fmax(top, fabs(want.data[e]));
    }
    size = sqrt(size);
    for (int64_t e = 0; e < len * dm; e++) {
      const double d = oracle_get(&s->y, 0, 0, e / dm, e % dm) - want.data[e];
      all += d * d / (double)(len * dm);
      worst = fmax(worst, fabs(d) / (size + (mean ? top : fabs(want.data[e]))));
    }
    const double unit =
        form ? 5e-8 * sqrt((double)(len + dm)) : 1e-7 * sqrt(log2((double)(len * dm)));
    if (!(sqrt(all) <= unit * size && worst <= 3 * unit)) {
      fail_msg("%d x %d, form %d: %g and %g, not below %g", (int)len, (int)dm, form,
               sqrt(all) / size, worst, unit);
    }
  }
}

/* Lengths of layers, and of one prime. */
void L1_large(void **state) {
  (void)state;
  static const int64_t size[][2] = {{4096, 16}, {2000, 48}, {1021, 20}, {20, 1021}, {24, 1536}};
  test_rng rng = test_seed(1202);
  for (size_t i = 0; i < (test_fast ? 2 : 5); i++, test_mem_release()) {
    const int64_t len = size[i][0], dm = size[i][1], step = len > 100 ? len / 7 : 1;
    scene *s = build(1, len, dm, ATTN_F32, ATTN_F32, &rng);
    cube x = cube_from(&s->x), want = cube_of(1, 1, len, dm);
    transform(&want, &x, 0, len, step);
    promise_run(&s->does);
    const double most = 1e-7 * sqrt(log2((double)(len * dm))), off = error(s, &want, step);
    if (!(off < most)) fail_msg("%d x %d: error %g, not below %g", (int)len, (int)dm, off, most);
  }
}

/* Both forms, and any length of a batch, say the same. */
void L1_forms(void **state) {
  (void)state;
  test_rng rng = test_seed(1203);
  scene *s = build(1, 130, 70, ATTN_F32, ATTN_F32, &rng);
  cube x = cube_from(&s->x), want = fourier(&x, NULL);
  for (int form = 0; form < 2; form++) {
    s->par.mix.form = (attn_fourier_form)form;
    promise_run(&s->does);
    assert_true(error(s, &want, 1) < (form ? 1e-6 : 4e-7));
  }
}

void L1_invariants(void **state) {
  (void)state;
  static const int64_t size[][2] = {{12, 20}, {7, 9}, {1, 16}, {37, 1}, {41, 38}, {64, 64}};
  test_rng rng = test_seed(1204);
  for (size_t i = 0; i < 6; i++, test_mem_release()) {
    const int64_t len = size[i][0], dm = size[i][1];
    scene *s = build(1, len, dm, ATTN_F32, ATTN_F32, &rng);
    double sum = 0, even = 0, all = 0;
    promise_run(&s->does);
    for (int64_t n = 0; n < len * dm; n++) {
      const int64_t r = n / dm, c = n % dm;
      const double v = oracle_get(&s->x, 0, 0, r, c), y = oracle_get(&s->y, 0, 0, r, c);
      const double e = (v + oracle_get(&s->x, 0, 0, (len - r) % len, (dm - c) % dm)) / 2;
      sum += v, even += e * e, all += y * y;
      value_check(y, oracle_get(&s->y, 0, 0, (len - r) % len, (dm - c) % dm), 1e-4, ATTN_F32,
                  "even", 0, 0, r, c);
    }
    value_check(oracle_get(&s->y, 0, 0, 0, 0), sum, 1e-4, ATTN_F32, "sum", 0, 0, 0, 0);
    value_check(all / ((double)(len * dm) * even), 1, 1e-5, ATTN_F32, "energy", 0, 0, 0, 0);
    /* twice is the even part again */
    attn_tensor once = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, dm), x = s->x;
    test_copy(once, s->y);
    s->x = once;
    promise_run(&s->does);
    for (int64_t n = 0; n < len * dm; n++) {
      const int64_t r = n / dm, c = n % dm;
      const double e =
          oracle_get(&x, 0, 0, r, c) + oracle_get(&x, 0, 0, (len - r) % len, (dm - c) % dm);
      value_check(oracle_get(&s->y, 0, 0, r, c) / (double)(len * dm), e / 2, 1e-5, ATTN_F32,
                  "twice", 0, 0, r, c);
    }
    /* an impulse */
    test_fill_value(once, 0);
    oracle_set(&once, 0, 0, 0, 0, 1);
    promise_run(&s->does);
    for (int64_t n = 0; n < len * dm; n++)
      value_check(oracle_get(&s->y, 0, 0, n / dm, n % dm), 1, 1e-6, ATTN_F32, "impulse", 0, 0,
                  n / dm, n % dm);
  }
}

/* Rows behind the length are not read; an entry is as if it were alone. */
void L1_lengths(void **state) {
  (void)state;
  static const int32_t some[5] = {30, 0, 37, 37, 1};
  test_rng rng = test_seed(1205);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    scene *s = build(5, 40, n < 2 ? 34 : 70, ATTN_F32, n < 2 ? ATTN_F32 : ATTN_F16, &rng);
    s->par.mix.form = (attn_fourier_form)(n % 2);
    s->par.mix.x_len = some;
    for (int64_t b = 0; b < 5; b++)
      for (int64_t i = some[b]; i < 40; i++) test_fill_row(s->x, b, 0, i, (double)NAN);
    promise_run(&s->does);
    scene one = *s;
    one.does.scene = &one, one.par.mix.x_len = NULL;
    for (int64_t b = 0; b < 5; b++) {
      for (int64_t i = some[b]; i < 40; i++)
        for (int64_t c = 0; c < s->y.dim; c++) assert_true(oracle_get(&s->y, b, 0, i, c) == 0);
      if (!some[b]) continue;
      one.x = test_rows(test_one(s->x, b, 1, 0, 1), 0, some[b]);
      one.y = test_tensor(s->y.dtype, TEST_BHTD, 1, 1, some[b], s->y.dim);
      promise_run(&one.does);
      test_assert_same(test_rows(test_one(s->y, b, 1, 0, 1), 0, some[b]), one.y, "alone");
    }
  }
}

void L1_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(1206);
  scene *s = build(3, 24, 30, ATTN_F32, ATTN_F32, &rng);
  promise_run(&s->does);
  attn_tensor was = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, 24, 30);
  test_copy(was, s->y);
  oracle_set(&s->x, 1, 0, 5, 7, (double)NAN);
  promise_run(&s->does);
  for (int64_t b = 0; b < 3; b += 2)
    test_assert_same(test_one(s->y, b, 1, 0, 1), test_one(was, b, 1, 0, 1), "other entries");
  int64_t bad = 0;
  for (int64_t n = 0; n < 24 * 30; n++) bad += isnan(oracle_get(&s->y, 1, 0, n / 30, n % 30)) != 0;
  assert_true(bad > 24 * 30 / 2);
  s->y.batch = s->x.batch = 0;
  promise_run(&s->does);
}

/* ---- the block ------------------------------------------------------------------------------*/

static scene *build_block(int64_t batch, int64_t len, int64_t dm, int64_t dff, int64_t n,
                          test_rng *rng) {
  scene *s = build(batch, len, dm, (attn_dtype)(n % 3), (attn_dtype)(n / 2 % 3), rng);
  s->block = 1;
  s->par.ff = drawn_feed(dm, dff, dm, (int)(n % 2), (attn_dtype)(n / 4 % 3), rng);
  s->par.norm_1 = drawn_norm(dm, rng), s->par.norm_2 = drawn_norm(dm, rng);
  return s;
}

void L1_block(void **state) {
  (void)state;
  test_rng rng = test_seed(1207);
  for (int64_t n = test_count(18, 6); n-- > 0; test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 3), len = test_range(&rng, 1, 50);
    const int64_t dm = test_range(&rng, 2, 30), dff = n % 5 ? test_range(&rng, 1, 40) : 0;
    scene *s = build_block(batch, len, dm, dff, n, &rng);
    if (n % 3 == 1) s->par.mix.x_len = test_lengths(batch, len, &rng);
    if (n % 4 == 1) s->par.ff.activation = ATTN_ACT_TANH;
    if (n % 4 == 2) s->par.ff.activation = ATTN_ACT_GELU;
    if (n % 4 == 3) s->par.ff.activation = ATTN_ACT_NONE;
    if (n % 6 == 2) s->par.mix.form = ATTN_FOURIER_GEMM;
    if (n % 6 == 4) s->par.norm_1.gain = s->par.norm_1.bias = NULL;
    check(s, 2e-5, "block");
  }
  scene *s = build_block(1, 1100, 6, 9, 0, &rng); /* more rows than go through the steps together */
  check(s, 2e-5, "many rows");
}

/* ---- promises and rejections ----------------------------------------------------------------*/

void L1_promises(void **state) {
  (void)state;
  static const int32_t some[3] = {74, 1, 30};
  test_rng rng = test_seed(1208);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    scene *s = n < 4 ? build(3, n == 3 ? 1 : 74, n == 2 ? 37 : 150, ATTN_F16,
                             n % 2 ? ATTN_BF16 : ATTN_F32, &rng)
                     : build_block(3, 74, 34, 20, n, &rng);
    if (n % 3 == 2) s->par.mix.x_len = some;
    if (n == 1) s->par.mix.form = ATTN_FOURIER_GEMM;
    promise_keep(&s->does);
  }
}

/* A shorter entry that is cut into more blocks than the longest one stays inside the workspace: a convolution
 * of 4096 rows in place of a transform of 1050. */
void L1_workspace(void **state) {
  (void)state;
  static const int32_t some[1] = {1049};
  test_rng rng = test_seed(1211);
  scene *s = build(1, 1050, 702, ATTN_F32, ATTN_F32, &rng);
  attn_ctx ctx = test_ctx();
  s->par.mix.x_len = some;
  ctx.workers = 11, ctx.parallel_for = test_parallel_backward;
  const size_t size = ask(s, &ctx);
  test_where = TEST_BEFORE_GUARD;
  ctx.workspace = test_mem(size), ctx.workspace_size = size;
  test_where = TEST_HEAP;
  assert_int_equal(call(s, &ctx), ATTN_OK);
  attn_tensor was = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1050, 702);
  test_copy(was, s->y);
  promise_run(&s->does);
  test_assert_same(s->y, was, "one worker");
}

void L1_rejects(void **state) {
  (void)state;
  static int32_t over[2] = {9, 10}, under[2] = {-1, 9};
  test_rng rng = test_seed(1209);
  for (int n = 0; n < 19; n++, test_mem_release()) {
    scene *s = n < 12 ? build(2, 9, 6, ATTN_F32, ATTN_F32, &rng) : build_block(2, 9, 6, 5, 1, &rng);
    attn_fnet_params *p = &s->par;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->x.len = s->y.len = 0, word = "x.len"; break;
      case 1: s->x.dim = s->y.dim = 0, word = "x.dim"; break;
      case 2: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 3: s->y.len = 8, word = "y must"; break;
      case 4: s->y.dim = 5, word = "y must"; break;
      case 5: s->x.batch = 1, word = "y must"; break;
      case 6: p->mix.form = ATTN_FOURIER_COUNT, want = ATTN_E_RANGE, word = "form"; break;
      case 7: p->mix.x_len = over, want = ATTN_E_RANGE, word = "x_len"; break;
      case 8: p->mix.x_len = under, want = ATTN_E_RANGE, word = "x_len"; break;
      case 9: s->y = s->x, want = ATTN_E_OVERLAP, word = "y "; break;
      case 10: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 11: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      case 12: p->ff.w_1.len = 5, word = "w_1"; break;
      case 13: p->ff.w_2.dim = 5, word = "w_2"; break;
      case 14: p->ff.w_1.data = NULL, want = ATTN_E_NULL, word = "w_1"; break;
      case 15: p->norm_1.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 16: p->norm_2.eps = INFINITY, want = ATTN_E_VALUE, word = "eps"; break;
      case 17: p->norm_2.gain = (float *)s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      default: p->mix.x_len = over, want = ATTN_E_RANGE, word = "x_len"; break;
    }
    promise_reject(&s->does, want, word);
  }
  scene *s = build(1, 3, 2, ATTN_F32, ATTN_F32, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_fnet(s->y, s->x, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
  assert_int_equal(attn_fourier(s->y, s->x, NULL, &ctx), ATTN_OK);
  s->x.dim = s->y.dim = ((int64_t)1 << 27) + 1, s->x.len = s->y.len = 1;
  assert_int_equal(attn_fourier(s->y, s->x, NULL, &ctx), ATTN_E_OVERFLOW);
}

/* <d_y, A x> = <A d_y, x> with lengths and in both forms: the gradient is the call itself. */
void N4_fourier_transpose(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{1, 1}, {16, 8}, {37, 12}, {60, 35}, {64, 97}, {130, 20}};
  test_rng rng = test_seed(9470);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    const int64_t T = shapes[n % 6][0], D = shapes[n % 6][1];
    attn_tensor x[2], y[2];
    attn_fourier_params p;
    attn_ctx ctx = test_ctx();
    double dot[2] = {0, 0}, size = 0;
    memset(&p, 0, sizeof p);
    p.form = n / 6 % 2 ? ATTN_FOURIER_GEMM : ATTN_FOURIER_FFT;
    if (n / 12) p.x_len = test_lengths(2, T, &rng);
    for (int i = 0; i < 2; i++) {
      x[i] = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, T, D);
      y[i] = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, T, D);
      test_fill(x[i], &rng, test_normal);
      assert_int_equal(attn_fourier(y[i], x[i], &p, &ctx), ATTN_OK);
    }
    for (int64_t e = 0; e < 2 * T * D; e++) {
      const int64_t b = e / D / T, t = e / D % T, c = e % D;
      for (int i = 0; i < 2; i++) {
        const double z = oracle_get(&y[i], b, 0, t, c) * oracle_get(&x[1 - i], b, 0, t, c);
        dot[i] += z, size += fabs(z);
      }
    }
    if (!(fabs(dot[0] - dot[1]) <= 1e-6 * size)) fail_msg("%d: %g, not %g", n, dot[0], dot[1]);
  }
}

/* Its feed-forward in products below f32. */
void O1_fnet(void **state) {
  (void)state;
  test_rng rng = test_seed(1230);
  scene *s = build_block(2, 74, 34, 20, 4, &rng);
  attn_feed_forward *ff = &s->par.ff;
  test_layer(&s->does, &ff->compute, &ff->compute_prefer, 0, 0.03, "ff.compute");
}
