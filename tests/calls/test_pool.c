/* tests/calls/test_pool.c owns pooling along the sequence: against float64, segments and blocks at their edges,
 * NaN, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor y, x;
  attn_pool_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_pool(s->y, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_pool_workspace(s->y, s->x, &s->p, ctx);
}

typedef struct shape {
  attn_pool_kind kind;
  int64_t batch, heads, rows, width, segments, kernel, stride; /* kernel 0: segments */
  int lengths, own_w, bias;
  attn_dtype x_type, y_type, w_type;
  test_layout x_layout, y_layout;
} shape;

static shape plain(attn_pool_kind kind, int64_t rows, int64_t segments, int64_t kernel,
                   int64_t stride) {
  shape z = {kind, 1, 1, rows,     5,        segments, kernel,    stride,
             0,    0, 0, ATTN_F32, ATTN_F32, ATTN_F32, TEST_BHTD, TEST_BHTD};
  return z;
}

/* Blocks of n rows, in the words of the specification. */
static int64_t blocks_of(const shape *z, int64_t n, int64_t segments) {
  const int64_t stride = z->stride ? z->stride : z->kernel;
  if (n == 0) return 0;
  if (!z->kernel) return n < segments ? n : segments;
  return 1 + (int64_t)ceil(fmax(0, (double)(n - z->kernel)) / (double)stride);
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, h = z->heads;
  s->p.kind = z->kind, s->p.kernel = z->kernel, s->p.stride = z->stride;
  s->x = drawn(z->x_type, z->x_layout, b, h, z->rows, z->width, 1, rng);
  if (z->kind == ATTN_POOL_DYNAMIC) {
    const int64_t wh = z->own_w ? h : 1;
    s->p.w = drawn(z->w_type, TEST_PADDED, 1, wh, z->width, z->kernel, 0.5, rng);
    if (z->bias) s->p.bias = drawn(z->y_type, TEST_BHTD, 1, z->own_w ? 1 : h, 1, z->kernel, 1, rng);
  }
  if (z->lengths) s->p.x_len = test_lengths(b, z->rows, rng);
  const int64_t m = z->kernel ? blocks_of(z, z->rows, 0) : z->segments;
  if (z->lengths == 2 && !z->kernel) s->p.segments = test_lengths(b, m, rng);
  s->y = output(z->y_type, z->y_layout, b, h, m, z->width, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

/* Column c of row m of block start .. end - 1. */
static double pooled(const scene *s, int64_t b, int64_t h, int64_t start, int64_t end, int64_t c) {
  double top = -(double)INFINITY, sum = 0, all = 0, z[600];
  if (s->p.kind == ATTN_POOL_DYNAMIC) {
    int64_t centre = start + (s->p.kernel - 1) / 2;
    if (centre > end - 1) centre = end - 1;
    for (int64_t r = 0; r < end - start; r++) {
      z[r] = s->p.bias.data ? oracle_get(&s->p.bias, 0, s->p.bias.heads > 1 ? h : 0, 0, r) : 0;
      for (int64_t k = 0; k < s->x.dim; k++)
        z[r] += oracle_get(&s->x, b, h, centre, k) *
                oracle_get(&s->p.w, 0, s->p.w.heads > 1 ? h : 0, k, r);
    }
  }
  for (int64_t i = start; i < end; i++) {
    const double x = oracle_get(&s->x, b, h, i, c);
    const double w = s->p.kind == ATTN_POOL_DYNAMIC ? exp(z[i - start]) : 1;
    top = fmax(top, x), sum += w * x, all += w;
  }
  return s->p.kind == ATTN_POOL_MAX ? top : sum / all;
}

static void check(const shape *z, const scene *s, const char *what) {
  for (int64_t r = 0; r < s->y.batch * s->y.heads * s->y.len; r++) {
    const int64_t b = r / s->y.len / s->y.heads, h = r / s->y.len % s->y.heads, m = r % s->y.len;
    const int64_t n = s->p.x_len ? s->p.x_len[b] : s->x.len;
    const int64_t count = blocks_of(z, n, s->p.segments ? s->p.segments[b] : s->y.len);
    int64_t start = m * s->p.stride, end;
    if (z->kernel) {
      start = m * (z->stride ? z->stride : z->kernel);
      end = start + z->kernel < n ? start + z->kernel : n;
    } else {
      start = count ? m * n / count : 0, end = count ? (m + 1) * n / count : 0;
    }
    for (int64_t c = 0; c < s->y.dim; c++)
      value_check(oracle_get(&s->y, b, h, m, c), m < count ? pooled(s, b, h, start, end, c) : 0,
                  4e-6, s->y.dtype, what, b, h, m, c);
  }
}

static void run(const shape *z, scene *s, const char *what) {
  promise_run(&s->does);
  check(z, s, what);
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void PC_pool_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9100);
  for (int64_t n = test_count(150, 30); n-- > 0; test_mem_release()) {
    const int64_t rows = test_range(&rng, 0, n % 6 ? 40 : 300);
    shape z = plain((attn_pool_kind)(n % 3), rows, test_range(&rng, 0, 40), 0, 0);
    if (n % 3 == 2 || n % 2) z.kernel = test_range(&rng, 1, n % 8 ? 9 : 150);
    if (z.kernel && n % 5) z.stride = test_range(&rng, 1, z.kernel);
    z.batch = test_range(&rng, 1, 3), z.heads = test_range(&rng, 1, 3);
    z.width = test_range(&rng, 1, n % 7 ? 20 : 140);
    z.lengths = (int)(n / 2 % 3), z.own_w = n / 3 % 2 == 1, z.bias = n / 5 % 2 == 1;
    z.x_type = floats[n / 2 % 3], z.y_type = floats[n / 4 % 3], z.w_type = floats[n / 5 % 3];
    z.x_layout = (test_layout)(n % TEST_LAYOUTS), z.y_layout = (test_layout)(n / 3 % 4);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    run(&z, s, "pool");
  }
}

/* Every number of rows and of segments; sizes differ by one at most. Every kernel and stride. */
void PC_pool_every_cut(void **state) {
  (void)state;
  test_rng rng = test_seed(9101);
  for (int64_t n = 0; n <= test_count(24, 11); n++, test_mem_release()) {
    for (int64_t m = 0; m <= n + 2; m++) {
      shape z = plain(ATTN_POOL_MEAN, n, m, 0, 0);
      attn_pool_params p;
      memset(&p, 0, sizeof p);
      assert_int_equal(attn_pool_len(n, m, &p), m < n ? m : n);
      run(&z, build(&z, &rng), "segments");
    }
    for (int64_t kernel = 1; kernel <= 6; kernel++)
      for (int64_t stride = 1; stride <= kernel; stride++) {
        shape z = plain(ATTN_POOL_MAX, n, 0, kernel, stride);
        attn_pool_params p;
        memset(&p, 0, sizeof p);
        p.kernel = kernel, p.stride = stride;
        assert_int_equal(attn_pool_len(n, 0, &p), blocks_of(&z, n, 0));
        run(&z, build(&z, &rng), "blocks");
      }
  }
}

/* Long sums stay exact enough; rows of ones give ones; as many segments as rows give the rows. */
void PC_pool_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9102);
  for (int64_t rows = 127; rows <= 1100; rows += rows < 130 ? 1 : 485) {
    shape z = plain(ATTN_POOL_MEAN, rows, 2, 0, 0);
    scene *s = build(&z, &rng);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t c = 0; c < 5; c++)
        oracle_set(&s->x, 0, 0, i, c, 1000 + oracle_get(&s->x, 0, 0, i, c));
    promise_run(&s->does);
    for (int64_t m = 0; m < 2; m++)
      for (int64_t c = 0; c < 5; c++)
        value_check(oracle_get(&s->y, 0, 0, m, c),
                    pooled(s, 0, 0, m * rows / 2, (m + 1) * rows / 2, c), 4e-4, ATTN_F32, "long", 0,
                    0, m, c);
    test_fill_value(s->x, 1);
    promise_run(&s->does);
    for (int64_t m = 0; m < 2; m++) assert_true(oracle_get(&s->y, 0, 0, m, 3) == 1.0);
  }
  shape wide = plain(ATTN_POOL_DYNAMIC, 300, 0, 200, 170);
  wide.bias = 1;
  run(&wide, build(&wide, &rng), "long, with weights");
  for (int kind = 0; kind < 2; kind++) {
    shape z = plain((attn_pool_kind)kind, 70, 70, 0, 0);
    scene *s = build(&z, &rng);
    promise_run(&s->does);
    test_assert_same(s->y, s->x, "a segment a row");
  }
}

/* Weights of 0 are the mean, whatever the bias; a large one picks its row; ones stay ones. */
void PC_pool_dynamic(void **state) {
  (void)state;
  test_rng rng = test_seed(9103);
  shape z = plain(ATTN_POOL_DYNAMIC, 50, 0, 7, 3), mean = plain(ATTN_POOL_MEAN, 50, 0, 7, 3);
  scene *s = build(&z, &rng), *t = build(&mean, &rng);
  t->x = s->x;
  test_fill_value(s->p.w, 0);
  promise_run(&s->does);
  promise_run(&t->does);
  test_assert_same(s->y, t->y, "weights of 0");
  s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 7, 0, &rng);
  oracle_set(&s->p.bias, 0, 0, 0, 2, 1e30);
  promise_run(&s->does);
  for (int64_t m = 0; m < s->y.len; m++)
    test_assert_same(test_rows(s->y, m, 1), test_rows(s->x, 3 * m + 2, 1), "a large weight");
  test_fill_value(s->x, 1);
  s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 7, 2, &rng);
  promise_run(&s->does);
  for (int64_t m = 0; m < s->y.len; m++) assert_true(oracle_get(&s->y, 0, 0, m, 1) == 1.0);
}

/* A NaN reaches the blocks that have its row, in its column, and no more. */
void PC_pool_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9104);
  for (int n = 0; n < 4; n++) {
    shape z = plain(n < 2 ? ATTN_POOL_MEAN : ATTN_POOL_MAX, 30, 0, 5, 2);
    z.width = 19, z.x_type = n % 2 ? ATTN_F16 : ATTN_F32;
    scene *s = build(&z, &rng);
    promise_run(&s->does);
    attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, s->y.len, 19);
    test_copy(before, s->y);
    oracle_set(&s->x, 0, 0, 11, 17, (double)NAN);
    promise_run(&s->does);
    for (int64_t m = 0; m < s->y.len; m++)
      for (int64_t c = 0; c < 19; c++) {
        if (c == 17 && 2 * m <= 11 && 11 < 2 * m + 5)
          assert_true(isnan(oracle_get(&s->y, 0, 0, m, c)));
        else
          assert_true(oracle_get(&s->y, 0, 0, m, c) == oracle_get(&before, 0, 0, m, c));
      }
  }
}

void PC_pool_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9105);
  for (int n = 0; n < 6; n++) {
    shape z = plain((attn_pool_kind)(n % 3), 160, 9, n % 3 == 2 || n > 2 ? 5 : 0, 0);
    z.batch = 2, z.heads = 2, z.lengths = n % 3, z.bias = 1, z.own_w = n % 2;
    if (n > 2) z.x_type = ATTN_F16, z.y_type = ATTN_BF16;
    promise_keep(&build(&z, &rng)->does);
  }
  for (int n = 0; n < 3; n++) {
    shape z = plain(ATTN_POOL_MEAN, n ? 4 : 0, n == 1 ? 0 : 3, 0, 0);
    z.batch = n != 2;
    scene *s = build(&z, &rng);
    run(&z, s, "nothing to do");
  }
  shape z = plain(ATTN_POOL_MEAN, 10, 3, 0, 0); /* no parameters: segments */
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_pool(s->y, s->x, NULL, &ctx), ATTN_OK);
  check(&z, s, "no parameters");
}

void PC_pool_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9106);
  static int32_t lens[2] = {3, 50}, odd[2] = {3, -1};
  for (int n = 0; n < 24; n++) {
    shape z = plain(n < 14 ? ATTN_POOL_DYNAMIC : ATTN_POOL_MEAN, 40, 6, n < 17 ? 5 : 0, 0);
    z.batch = z.heads = 2, z.bias = 1;
    scene *s = build(&z, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.kind = ATTN_POOL_COUNT, want = ATTN_E_RANGE, word = "params.kind"; break;
      case 1: s->p.kind = (attn_pool_kind)-1, want = ATTN_E_RANGE, word = "params.kind"; break;
      case 2: s->p.kernel = -1, want = ATTN_E_RANGE, word = "params.kernel"; break;
      case 3: s->p.stride = 6, want = ATTN_E_RANGE, word = "params.stride"; break;
      case 4: s->p.stride = -1, want = ATTN_E_RANGE, word = "params.stride"; break;
      case 5: s->p.kernel = 0, want = ATTN_E_RANGE, word = "params.kernel"; break;
      case 6: s->p.w.data = NULL, want = ATTN_E_NULL, word = "params.w"; break;
      case 7: s->p.w.dim = 4, word = "params.w"; break;
      case 8: s->p.w.heads = 3, s->p.w.stride_head = 0, word = "params.w"; break;
      case 9: s->p.bias.dim = 4, word = "params.bias"; break;
      case 10: s->p.w.len = 4, word = "params.w"; break;
      case 11: s->p.w.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "params.w"; break;
      case 12: s->y = s->x, s->y.len = 8, want = ATTN_E_OVERLAP, word = "y "; break;
      case 13: s->y.len = 7, word = "y.len"; break;
      case 14: s->p.segments = lens, want = ATTN_E_RANGE, word = "params.segments"; break;
      case 15: s->p.x_len = lens, want = ATTN_E_RANGE, word = "params.x_len"; break;
      case 16: s->p.x_len = odd, want = ATTN_E_RANGE, word = "params.x_len"; break;
      case 17: s->p.segments = lens, want = ATTN_E_RANGE, word = "params.segments"; break;
      case 18: s->p.stride = 1, want = ATTN_E_RANGE, word = "params.stride"; break;
      case 19: s->x.heads = 1, word = "x "; break;
      case 20: s->x.dim = 4, word = "x "; break;
      case 21: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 22: s->y.stride_len = 0, want = ATTN_E_STRIDE, word = "y "; break;
      default: s->y.stride_head = INT64_MAX, want = ATTN_E_OVERFLOW, word = "y ";
    }
    promise_reject(&s->does, want, word);
  }
  attn_pool_params p;
  memset(&p, 0, sizeof p);
  assert_int_equal(attn_pool_len(-1, 1, &p), -1);
  assert_int_equal(attn_pool_len(4, -1, &p), -1);
  p.kernel = 3, p.stride = 4;
  assert_int_equal(attn_pool_len(4, 1, &p), -1);
}
