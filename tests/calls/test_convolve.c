/* tests/calls/test_convolve.c owns both convolutions: against float64, paddings and their lengths, what follows
 * from the formulas, NaN, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor y, x, w, old; /* what accumulate adds to */
  attn_convolve_params p;
  int depthwise;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->depthwise ? attn_convolve_depthwise(s->y, s->x, s->w, &s->p, ctx)
                      : attn_convolve(s->y, s->x, s->w, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->depthwise ? attn_convolve_depthwise_workspace(s->y, s->x, s->w, &s->p, ctx)
                      : attn_convolve_workspace(s->y, s->x, s->w, &s->p, ctx);
}

typedef struct shape {
  int depthwise; /* 2: a weight a column */
  int64_t batch, heads, rows, in, out, kernel, stride, dilation;
  attn_pad pad;
  int lengths, own_w, bias, accumulate;
  attn_dtype x_type, y_type, w_type;
  test_layout x_layout, y_layout;
} shape;

static shape plain(int depthwise, int64_t rows, int64_t kernel, attn_pad pad) {
  shape z = {depthwise, 1, 1, rows, 5,        depthwise ? 5 : 7, kernel,   0,         0,        pad,
             0,         0, 0, 0,    ATTN_F32, ATTN_F32,          ATTN_F32, TEST_BHTD, TEST_BHTD};
  return z;
}

/* Output rows of n rows and the first row of block m, in the words of the specification. */
static int64_t start_of(const shape *z, int64_t n, int64_t m, int64_t *count) {
  const int64_t stride = z->stride ? z->stride : 1;
  const int64_t dilation = z->dilation ? z->dilation : 1, reach = (z->kernel - 1) * dilation + 1;
  attn_pad pad = z->pad;
  if (pad == ATTN_PAD_DEFAULT) pad = ATTN_PAD_DROP;
  *count = (n + stride - 1) / stride;
  if (pad == ATTN_PAD_DROP) {
    for (*count = 0; *count * stride + reach <= n;) ++*count;
    return m * stride;
  }
  if (pad == ATTN_PAD_RIGHT) return m * stride;
  if (pad == ATTN_PAD_SAME) return m * stride - (z->kernel - 1) / 2 * dilation;
  return m * stride - ((*count - 1) * stride + reach - n); /* the last block ends with the rows */
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads, wh = z->own_w ? h : 1;
  int64_t m;
  (void)start_of(z, z->rows, 0, &m);
  s->depthwise = z->depthwise;
  s->p.pad = z->pad, s->p.stride = z->stride, s->p.dilation = z->dilation;
  s->p.accumulate = z->accumulate;
  s->x = drawn(z->x_type, z->x_layout, b, h, z->rows, z->in, 1, rng);
  s->w = z->depthwise ? drawn(z->w_type, TEST_PADDED, 1, wh, z->kernel,
                              z->depthwise == 2 ? z->in : 1, 1, rng)
                      : drawn(z->w_type, TEST_PADDED, 1, wh, z->kernel * z->in, z->out, 0.5, rng);
  if (z->bias) s->p.bias = drawn(z->y_type, TEST_BHTD, 1, z->own_w ? 1 : h, 1, z->out, 1, rng);
  if (z->lengths) s->p.x_len = test_lengths(b, z->rows, rng);
  s->y = output(z->y_type, z->y_layout, b, h, m, z->out, &s->does.block[0]);
  s->old = drawn(z->y_type, TEST_BHTD, b, h, m, z->out, 1, rng);
  if (z->accumulate) test_copy(s->y, s->old);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

static double tap(const scene *s, int64_t b, int64_t h, int64_t i, int64_t r, int64_t j,
                  double *size) {
  const int64_t wh = s->w.heads > 1 ? h : 0, d = s->x.dim;
  double sum = 0;
  for (int64_t c = s->depthwise ? j : 0; c < (s->depthwise ? j + 1 : d); c++) {
    const double t = oracle_get(&s->x, b, h, i, c) *
                     (s->depthwise ? oracle_get(&s->w, 0, wh, r, s->w.dim > 1 ? j : 0)
                                   : oracle_get(&s->w, 0, wh, r * d + c, j));
    sum += t, *size += fabs(t);
  }
  return sum;
}

static void check(const shape *z, const scene *s, const char *what) {
  const int64_t dilation = z->dilation ? z->dilation : 1;
  for (int64_t row = 0; row < s->y.batch * s->y.heads * s->y.len; row++) {
    const int64_t b = row / s->y.len / s->y.heads, h = row / s->y.len % s->y.heads;
    const int64_t m = row % s->y.len, n = s->p.x_len ? s->p.x_len[b] : s->x.len;
    int64_t count, start = start_of(z, n, m, &count);
    for (int64_t j = 0; j < s->y.dim; j++) {
      double size = 0, want = 0;
      if (m < count) {
        if (s->p.bias.data) want = oracle_get(&s->p.bias, 0, s->p.bias.heads > 1 ? h : 0, 0, j);
        for (int64_t r = 0; r < z->kernel; r++) {
          const int64_t i = start + r * dilation;
          if (i >= 0 && i < n) want += tap(s, b, h, i, r, j, &size);
        }
      }
      if (z->accumulate) want += oracle_get(&s->old, b, h, m, j);
      value_check(oracle_get(&s->y, b, h, m, j), want, 1e-6 * (size + fabs(want)) + 1e-12,
                  s->y.dtype, what, b, h, m, j);
    }
  }
}

static void run(const shape *z, scene *s, const char *what) {
  if (z->accumulate) test_copy(s->y, s->old);
  promise_run(&s->does);
  check(z, s, what);
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static void draw(shape *z, int64_t n, test_rng *rng) {
  z->pad = (attn_pad)(n % ATTN_PAD_COUNT);
  z->rows = test_range(rng, 0, n % 7 ? 40 : 250), z->kernel = test_range(rng, 1, n % 6 ? 6 : 40);
  if (n % 3) z->stride = test_range(rng, 1, n % 2 ? 3 : z->kernel);
  if (n % 4 == 1) z->dilation = test_range(rng, 1, 4);
  z->batch = test_range(rng, 1, 3), z->heads = test_range(rng, 1, 3);
  z->in = test_range(rng, 1, n % 5 ? 20 : 140), z->out = z->in;
  z->lengths = n / 2 % 2 == 1, z->own_w = n / 3 % 2 == 1;
  z->x_type = floats[n / 2 % 3], z->y_type = floats[n / 4 % 3], z->w_type = floats[n / 5 % 3];
  z->x_layout = (test_layout)(n % TEST_LAYOUTS), z->y_layout = (test_layout)(n / 3 % 4);
}

void PC_convolve_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9200);
  for (int64_t n = test_count(110, 25); n-- > 0; test_mem_release()) {
    shape z = plain(0, 0, 1, ATTN_PAD_DEFAULT);
    draw(&z, n, &rng);
    if (z.kernel > 6) z.rows %= 60, z.in = 1 + z.in % 8;
    z.out = test_range(&rng, 1, n % 9 ? 30 : 300), z.bias = n / 5 % 2 == 1;
    if (n % 4 == 2) z.stride = z.kernel; /* blocks */
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    run(&z, s, "convolve");
  }
}

void PC_depthwise_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9201);
  for (int64_t n = test_count(160, 40); n-- > 0; test_mem_release()) {
    shape z = plain(1 + (n % 8 > 4), 0, 1, ATTN_PAD_DEFAULT);
    draw(&z, n, &rng);
    if (n % 2) z.stride = z.dilation = 0;
    if (n % 16 == 3) z.in = z.out = 64, z.x_layout = TEST_BTHD;
    z.accumulate = n / 2 % 3 == 1;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    run(&z, s, "depthwise");
  }
}

/* Every number of rows, kernel, stride and padding, with a dilation. */
void PC_convolve_every_pad(void **state) {
  (void)state;
  test_rng rng = test_seed(9202);
  for (int64_t rows = 0; rows <= test_count(9, 5); rows++, test_mem_release())
    for (int64_t kernel = 1; kernel <= 4; kernel++)
      for (int64_t stride = 1; stride <= 4; stride++)
        for (int pad = 0; pad < ATTN_PAD_COUNT; pad++)
          for (int depthwise = 0; depthwise < 2; depthwise++) {
            shape z = plain(depthwise, rows, kernel, (attn_pad)pad);
            z.stride = stride, z.dilation = 1 + (rows + kernel) % 2, z.in = 2;
            z.out = depthwise ? 2 : 3;
            scene *s = build(&z, &rng);
            int64_t count;
            (void)start_of(&z, rows, 0, &count);
            assert_int_equal(attn_convolve_len(rows, kernel, &s->p), count);
            run(&z, s, "pads");
          }
}

/* One row a block with the unit matrix is the rows; the unit matrix over c is the mean; LEFT with stride 1
 * does not look ahead; an impulse in the centre adds x; heads do not mix. */
void PC_convolve_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(9203);
  shape z = plain(0, 30, 1, ATTN_PAD_LEFT);
  z.out = 5;
  scene *s = build(&z, &rng);
  for (int64_t r = 0; r < 5; r++)
    for (int64_t c = 0; c < 5; c++) oracle_set(&s->w, 0, 0, r, c, r == c);
  promise_run(&s->does);
  test_assert_same(s->y, s->x, "the unit matrix");
  z.kernel = z.stride = 3;
  s = build(&z, &rng);
  for (int64_t r = 0; r < 15; r++)
    for (int64_t c = 0; c < 5; c++) oracle_set(&s->w, 0, 0, r, c, r % 5 == c ? 1.0 / 3 : 0);
  promise_run(&s->does);
  for (int64_t m = 0; m < 10; m++)
    for (int64_t c = 0; c < 5; c++) {
      double sum = 0;
      for (int64_t i = 3 * m; i < 3 * m + 3; i++) sum += oracle_get(&s->x, 0, 0, i, c) / 3;
      value_check(oracle_get(&s->y, 0, 0, m, c), sum, 1e-6, ATTN_F32, "means", 0, 0, m, c);
    }
  for (int depthwise = 0; depthwise < 2; depthwise++) {
    z = plain(depthwise, 40, 5, ATTN_PAD_LEFT);
    z.stride = 1, z.in = z.out = 16;
    s = build(&z, &rng);
    promise_run(&s->does);
    attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 40, 16);
    test_copy(before, s->y);
    for (int64_t i = 22; i < 40; i++) test_fill_row(s->x, 0, 0, i, i % 2 ? 3 : (double)INFINITY);
    promise_run(&s->does);
    test_assert_same(test_rows(s->y, 0, 22), test_rows(before, 0, 22), "causal");
  }
  z = plain(1, 50, 33, ATTN_PAD_SAME);
  z.in = z.out = 32, z.accumulate = 1;
  s = build(&z, &rng);
  test_fill_value(s->w, 0);
  oracle_set(&s->w, 0, 0, 16, 0, 1);
  promise_run(&s->does);
  for (int64_t i = 0; i < 50; i++)
    for (int64_t c = 0; c < 32; c++)
      assert_true(oracle_get(&s->y, 0, 0, i, c) ==
                  (double)(float)(oracle_get(&s->old, 0, 0, i, c) + oracle_get(&s->x, 0, 0, i, c)));
}

/* The same numbers by any layout, width of the cut, and by the path for NaN. */
void PC_convolve_same_bits(void **state) {
  (void)state;
  test_rng rng = test_seed(9204);
  for (int depthwise = 0; depthwise < 2; depthwise++) {
    shape z = plain(depthwise, 230, 9, ATTN_PAD_SAME);
    z.in = 48, z.out = depthwise ? 48 : 70, z.stride = 1, z.heads = 2;
    scene *s = build(&z, &rng), *t = build(&z, &rng);
    t->w = s->w, t->x = test_tensor(ATTN_F32, TEST_BTHD, 1, 2, 230, 48);
    test_copy(t->x, s->x);
    promise_run(&s->does);
    promise_run(&t->does);
    test_assert_same(s->y, t->y, "layouts");
    test_fill_row(t->x, 0, 1, 100, (double)NAN);
    promise_run(&t->does);
    for (int64_t m = 0; m < 230; m++) {
      const int hit = m >= 96 && m <= 104;
      attn_tensor a = test_rows(t->y, m, 1), b = test_rows(s->y, m, 1);
      test_assert_same(test_one(a, 0, 1, 0, 1), test_one(b, 0, 1, 0, 1), "the other head");
      if (hit)
        assert_true(isnan(oracle_get(&t->y, 0, 1, m, 3)));
      else
        test_assert_same(a, b, "rows beside a NaN");
    }
  }
}

void PC_convolve_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9205);
  for (int n = 0; n < 6; n++) {
    shape z = plain(n % 3, 300, n < 3 ? 3 : 5, (attn_pad)(n % ATTN_PAD_COUNT));
    z.batch = z.heads = 2, z.lengths = n % 2, z.own_w = n / 2 % 2, z.bias = n % 3 == 0;
    if (n > 2) z.x_type = ATTN_F16, z.y_type = ATTN_BF16;
    promise_keep(&build(&z, &rng)->does);
  }
  for (int n = 0; n < 4; n++) { /* nothing to do; no rows */
    shape z = plain(n % 2, n < 2 ? 0 : 4, 3, ATTN_PAD_LEFT);
    z.batch = n < 2;
    run(&z, build(&z, &rng), "nothing to do");
  }
  shape z = plain(1, 10, 3, ATTN_PAD_DEFAULT);
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_convolve_depthwise(s->y, s->x, s->w, NULL, &ctx), ATTN_OK);
  check(&z, s, "no parameters");
  z = plain(0, 10, 3, ATTN_PAD_DEFAULT); /* PyTorch's conv1d: eight outputs of ten rows */
  s = build(&z, &rng);
  assert_int_equal(s->y.len, 8);
  assert_int_equal(attn_convolve(s->y, s->x, s->w, NULL, &ctx), ATTN_OK);
  check(&z, s, "no parameters");
}

void PC_convolve_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9206);
  static int32_t lens[2] = {3, 50};
  for (int n = 0; n < 48; n++) {
    shape z = plain(n % 2, 40, 4, ATTN_PAD_DEFAULT);
    z.batch = z.heads = 2, z.bias = !z.depthwise;
    scene *s = build(&z, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n / 2) {
      case 0: s->p.pad = ATTN_PAD_COUNT, want = ATTN_E_RANGE, word = "params.pad"; break;
      case 1: s->p.pad = (attn_pad)-1, want = ATTN_E_RANGE, word = "params.pad"; break;
      case 2: s->p.stride = -1, want = ATTN_E_RANGE, word = "params.stride"; break;
      case 3: s->p.dilation = -1, want = ATTN_E_RANGE, word = "params.dilation"; break;
      case 4:
        s->p.dilation = (int64_t)1 << 40, want = ATTN_E_RANGE, word = "params.dilation";
        break;
      case 5: s->y.len -= 1, word = "y.len"; break;
      case 6: s->w.dim = 4, word = "w.dim"; break;
      case 7:
        if (!z.depthwise)
          s->w.len = 19, word = "w.len";
        else
          s->x.dim = 4, word = "x.dim";
        break;
      case 8: s->w.heads = 3, s->w.stride_head = 0, word = "w.heads"; break;
      case 9: s->w.batch = 2, s->w.stride_batch = 0, word = "w.batch"; break;
      case 10: s->w.len = 0, word = "w.len"; break;
      case 11:
        s->p.accumulate = 1, s->p.bias = z.depthwise ? s->x : s->p.bias, want = ATTN_E_VALUE;
        word = z.depthwise ? "params.bias" : "params.accumulate";
        break;
      case 12: s->p.x_len = lens, want = ATTN_E_RANGE, word = "params.x_len"; break;
      case 13:
        s->p.x_len = (int32_t *)((char *)lens + 1), want = ATTN_E_ALIGN, word = "x_len";
        break;
      case 14: s->x.batch = 1, word = "x "; break;
      case 15: s->x.heads = 1, word = "x "; break;
      case 16: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 17: s->w.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      case 18: s->w.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 19: s->x.data = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 20: s->y.stride_len = 0, want = ATTN_E_STRIDE, word = "y "; break;
      case 21: s->y.stride_head = INT64_MAX, want = ATTN_E_OVERFLOW, word = "y "; break;
      case 22:
        if (z.depthwise) continue;
        s->p.bias.dim = 6, word = "params.bias";
        break;
      default:
        if (z.depthwise) continue;
        s->p.bias.heads = 3, s->p.bias.stride_head = 0, word = "params.bias";
    }
    promise_reject(&s->does, want, word);
  }
  assert_int_equal(attn_convolve_len(-1, 1, NULL), -1);
  assert_int_equal(attn_convolve_len(5, 0, NULL), -1);
}
