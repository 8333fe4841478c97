/* tests/calls/test_gemm_codes.c owns dense products with weights of 8 and 4 bits, and of 16 that few rows read in
 * place: against float64 from the codes, cuts, NaN, promises and rejections. */

#include <math.h>

#include "compound.h"
#include "computes.h"
#include "stored.h"

typedef struct scene {
  attn_tensor y, x;
  stored w; /* its own scales are those of a transposed one */
  attn_gemm_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_gemm(s->y, s->x, s->w.x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_gemm_workspace(s->y, s->x, s->w.x, &s->p, ctx);
}

typedef struct shape {
  attn_dtype type;
  int64_t batch, heads, m, k, n, group;
  int shared, transposed, zero;
  attn_dtype x_type, y_type;
  test_layout layout;
} shape;

static shape plain(attn_dtype type, int64_t m, int64_t k, int64_t n, int64_t group) {
  shape z = {type, 1, 1, m, k, n, group, 0, 0, 0, ATTN_F32, ATTN_F32, TEST_BHTD};
  return z;
}

static int64_t groups_of(const attn_scales *s, int64_t k) {
  return s->group ? (k + s->group - 1) / s->group : 1;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->shared ? 1 : z->batch, h = z->shared ? 1 : z->heads;
  s->x = drawn(z->x_type, z->layout == TEST_ONE_ROW ? TEST_BHTD : z->layout, z->batch, z->heads,
               z->m, z->k, 1, rng);
  if (z->transposed) {
    s->w = stored_tensor(z->type, z->layout, b, h, z->n, z->k, z->group, z->zero);
  } else { /* the numbers lie as those of [groups][n], one for each */
    stored numbers;
    const attn_scales as = {NULL, NULL, z->group, 0, 0, 0};
    s->w = stored_tensor(z->type, z->layout, b, h, z->k, z->n, -1, 0);
    numbers = stored_tensor(ATTN_I8, z->layout, b, h, groups_of(&as, z->k), z->n * 32, 32, z->zero);
    s->w.s = numbers.s, s->w.scale = numbers.scale, s->w.zero = numbers.zero;
    s->w.s.group = z->group;
  }
  for (size_t i = 0; i < s->w.code.size; i++) s->w.code.data[i] = (unsigned char)test_u64(rng);
  for (size_t i = 0; i < s->w.scale.size / sizeof(float); i++) {
    ((float *)(void *)s->w.scale.data)[i] = (float)test_range(rng, -200, 200) / 12700;
    if (z->zero) ((float *)(void *)s->w.zero.data)[i] = (float)test_range(rng, -20, 20) / 4;
  }
  s->p.w_transposed = z->transposed, s->p.w_scales = s->w.s, s->p.compute = test_compute;
  s->y = output(z->y_type, z->layout == TEST_NEGATIVE ? TEST_PADDED : TEST_BHTD, z->batch, z->heads,
                z->m, z->n, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

/* What element k of column j stands for. */
static double weight(const scene *s, int64_t b, int64_t h, int64_t k, int64_t j) {
  const attn_tensor *w = &s->w.x;
  const attn_scales *q = &s->p.w_scales;
  const int t = s->p.w_transposed;
  b = w->batch > 1 ? b : 0, h = w->heads > 1 ? h : 0;
  const unsigned code = stored_code(w->dtype, stored_row(w, b, h, t ? j : k), t ? k : j);
  const int64_t g = q->group ? k / q->group : 0;
  const int64_t at =
      b * q->stride_batch + h * q->stride_head + (t ? j : g) * q->stride_len + (t ? g : j);
  return (stored_number(w->dtype, code) - (q->zero ? (double)q->zero[at] : 0)) *
         (double)q->scale[at];
}

/* What codes of a row of x may lose by column w: half a step of each run, and roundings of its sums and zeros. */
static double lost(const scene *s, const double *x, const double *w) {
  const attn_scales *q = &s->p.w_scales;
  const int64_t k = s->x.dim, group = q->group ? q->group : k;
  const int64_t run = group >= k || group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
  double all = 0;
  for (int64_t c = 0, end; c < k; c = end) {
    double top = 0, sum = 0;
    end = c + run < k ? c + run : k;
    for (int64_t e = c; e < end; e++) {
      top = fabs(x[e]) > top ? fabs(x[e]) : top, sum += fabs(w[e]);
      all += 6e-8 * (double)(k / run + 6) * fabs(x[e]) * (fabs(w[e]) + 1);
    }
    all += top * (0.5 + 1e-4) / 127 * sum;
  }
  return all;
}

static void check_head(const scene *s, int64_t b, int64_t h, const char *what) {
  const double scale = s->p.scale != 0 ? (double)s->p.scale : 1;
  const int64_t k = s->x.dim;
  double *w = test_mem((size_t)(k * s->y.dim) * sizeof *w), *x = test_mem((size_t)k * sizeof *x);
  for (int64_t j = 0; j < s->y.dim; j++)
    for (int64_t c = 0; c < k; c++) w[j * k + c] = weight(s, b, h, c, j);
  for (int64_t i = 0; i < s->y.len; i++) {
    for (int64_t c = 0; c < k; c++) x[c] = scale * oracle_get(&s->x, b, h, i, c);
    for (int64_t j = 0; j < s->y.dim; j++) {
      double sum = 0, size = 0, bias = 0;
      for (int64_t c = 0; c < k; c++) {
        const double t = x[c] * w[j * k + c];
        sum += t, size += fabs(t);
      }
      if (s->p.bias.data) bias = oracle_get(&s->p.bias, 0, 0, 0, j);
      sum += bias;
      double dx = 6e-8 * (8 * size + fabs(bias) + fabs(sum)) + 1e-30;
      if (s->p.compute == ATTN_COMPUTE_BF16) dx += ldexp(1, -7) * size;
      if (s->p.compute == ATTN_COMPUTE_F16) dx += ldexp(1, -10) * size;
      if (s->p.compute == ATTN_COMPUTE_I8) dx += lost(s, x, w + j * k);
      if (s->p.activation == ATTN_ACT_RELU && sum < 0) sum = 0;
      value_check(oracle_get(&s->y, b, h, i, j), sum, dx, s->y.dtype, what, b, h, i, j);
    }
  }
}
static void check(const scene *s, const char *what) {
  for (int64_t r = 0; r < s->y.batch * s->y.heads; r++)
    check_head(s, r / s->y.heads, r % s->y.heads, what);
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
static const int64_t group_sizes[] = {0, 32, 64, 96, 128, 160, 256, 1024};

void O5_random(void **state) {
  (void)state;
  test_rng rng = test_seed(5000);
  for (int64_t n = test_count(160, 48); n-- > 0; test_mem_release()) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, test_range(&rng, 1, n % 3 ? 9 : 40),
                    test_range(&rng, 1, n % 4 ? 150 : 400), test_range(&rng, 1, n % 5 ? 90 : 300),
                    group_sizes[n % 8]);
    if (n % 13 == 5) z.m += 190;
    z.batch = test_range(&rng, 1, 2), z.heads = test_range(&rng, 1, 2);
    z.transposed = n / 2 % 2 == 1, z.zero = n / 4 % 2 == 1, z.shared = n % 7 == 2;
    z.x_type = floats[n % 5 % 3], z.y_type = floats[n / 5 % 4 % 3];
    z.layout = (test_layout)(n / 3 % TEST_LAYOUTS);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    if (n % 4 == 2) s->p.scale = -0.25f, s->p.activation = ATTN_ACT_RELU;
    if (n % 3 == 0) s->p.bias = drawn(ATTN_F16, TEST_BHTD, 1, 1, 1, z.n, 1, &rng);
    promise_run(&s->does);
    check(s, "codes");
  }
}

/* Few rows of wide and deep matrices: whole lines, chunks and groups of them, and what is left. */
static const struct {
  attn_dtype type;
  int64_t m, k, n, group;
  int transposed, zero;
} few[] = {{ATTN_I8, 1, 740, 200, 32, 1, 1},  {ATTN_I4, 1, 740, 200, 32, 1, 1},
           {ATTN_I8, 3, 740, 200, 128, 1, 0}, {ATTN_I4, 1, 2180, 70, 64, 1, 1},
           {ATTN_I4, 1, 740, 200, 0, 1, 1},   {ATTN_I8, 1, 2180, 70, 256, 1, 1},
           {ATTN_I4, 2, 740, 200, 96, 1, 0},  {ATTN_I8, 1, 200, 4500, 32, 0, 1},
           {ATTN_I4, 1, 200, 4500, 64, 0, 1}, {ATTN_I4, 5, 740, 200, 128, 0, 0},
           {ATTN_I8, 2, 300, 1200, 0, 0, 1},  {ATTN_I8, 1, 4400, 64, 64, 1, 1},
           {ATTN_I4, 1, 2180, 70, 128, 1, 0}};
enum { FEW = sizeof few / sizeof *few };

static scene *few_scene(int n, test_rng *rng) {
  shape z = plain(few[n].type, few[n].m, few[n].k, few[n].n, few[n].group);
  z.transposed = few[n].transposed, z.zero = few[n].zero;
  test_where = n % 2 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
  scene *s = build(&z, rng);
  test_where = TEST_HEAP;
  return s;
}

void O5_few_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(5001);
  for (int n = 0; n < FEW; n++, test_mem_release()) {
    scene *s = few_scene(n, &rng);
    promise_run(&s->does);
    check(s, "few rows");
  }
}

/* A NaN that results may not show. */
static float payload(void) {
  const uint32_t bits = 0xffc12345u;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Rows, columns and workers of every cut have the bits of the whole, w transposed or not. */
static void same_cuts(scene *s, scene *turned, int64_t m, int64_t n) {
  static const int64_t cuts[] = {1, 2, 4, 5, 8, 9, 20, 97, 195};
  attn_ctx ctx = test_ctx();
  promise_run(&s->does);
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
    for (int t = 0; t < 2; t++) {
      scene some = t ? *turned : *s;
      const int64_t rows = cuts[i] < m ? cuts[i] : m;
      some.x = test_rows(s->x, m - rows, rows);
      some.y = test_tensor(ATTN_F32, i % 2 ? TEST_PADDED : TEST_BHTD, 1, 1, rows, n);
      if (i % 3 == 2) ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
      assert_int_equal(call(&some, &ctx), ATTN_OK);
      test_assert_same(some.y, test_rows(s->y, m - rows, rows), t ? "turned" : "some rows");
    }
  if (test_isa == ATTN_ISA_AVX512 && test_compute == ATTN_COMPUTE_F32) {
    scene other = *turned;
    ctx = test_ctx(), ctx.isa = ATTN_ISA_AVX2;
    other.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, m, n);
    for (int64_t rows = 1; rows <= m; rows += m - 1) {
      other.x = test_rows(s->x, 0, rows), other.y.len = rows;
      assert_int_equal(call(&other, &ctx), ATTN_OK);
      test_assert_same(other.y, test_rows(s->y, 0, rows), "avx2 and avx512");
    }
  }
}

void O5_cuts(void **state) {
  (void)state;
  test_rng rng = test_seed(5002);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, 203, n % 3 ? 300 : 611, n % 3 ? 171 : 97,
                    group_sizes[n / 2]);
    z.zero = n / 2 % 2;
    scene *s = build(&z, &rng), *turned;
    if (n < 4) ((float *)s->x.data)[201 * z.k + 3] = payload();
    z.transposed = 1;
    turned = build(&z, &rng);
    attn_scales *q = &turned->p.w_scales;
    for (int64_t j = 0; j < z.n; j++) {
      unsigned char *row = stored_row(&turned->w.x, 0, 0, j);
      memset(row, 0, (size_t)(z.type == ATTN_I4 ? (z.k + 1) / 2 : z.k));
      for (int64_t k = 0; k < z.k; k++) {
        const unsigned code = stored_code(z.type, stored_row(&s->w.x, 0, 0, k), j);
        if (z.type == ATTN_I8)
          row[k] = (unsigned char)code;
        else
          row[k / 2] = (unsigned char)(row[k / 2] | code << k % 2 * 4);
      }
      for (int64_t g = 0; g < groups_of(q, z.k); g++) {
        q->scale[j * q->stride_len + g] = s->p.w_scales.scale[g * s->p.w_scales.stride_len + j];
        if (q->zero)
          q->zero[j * q->stride_len + g] = s->p.w_scales.zero[g * s->p.w_scales.stride_len + j];
      }
    }
    same_cuts(s, turned, z.m, z.n);
  }
}

/* The same of 16 bits, which few rows read in place: the chain of f32. */
void O5_floats(void **state) {
  (void)state;
  test_rng rng = test_seed(5003);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    scene s, turned;
    memset(&s, 0, sizeof s);
    const int64_t m = 203, k = n / 3 == 1 ? 515 : 256, cols = n / 3 == 2 ? 160 : 171;
    s.x = drawn(floats[n / 3], TEST_BHTD, 1, 1, m, k, 1, &rng);
    s.w.x = drawn(floats[n % 3], n % 2 ? TEST_PADDED : TEST_BHTD, 1, 1, k, cols, 1, &rng);
    if (n < 3) ((float *)s.x.data)[201 * k + 3] = payload();
    s.p.compute = test_compute;
    s.y = output(ATTN_F32, TEST_BHTD, 1, 1, m, cols, &s.does.block[0]);
    s.does.call = call, s.does.ask = ask, s.does.scene = &s, s.does.out[0] = &s.y;
    turned = s;
    turned.w.x = test_tensor(floats[n % 3], TEST_PADDED, 1, 1, cols, k);
    turned.p.w_transposed = 1;
    for (int64_t c = 0; c < k; c++)
      for (int64_t j = 0; j < cols; j++)
        oracle_set(&turned.w.x, 0, 0, j, c, oracle_get(&s.w.x, 0, 0, c, j));
    same_cuts(&s, &turned, m, cols);
  }
}

/* NaN and infinity in x reach their row, in a scale or a zero their column. */
void O5_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(5004);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, n / 4 % 2 ? 3 : 30, 256, 128, 64);
    z.transposed = n / 2 % 2, z.zero = n / 8;
    scene *s = build(&z, &rng);
    attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, z.m, z.n);
    promise_run(&s->does);
    test_copy(before, s->y);
    ((float *)s->x.data)[1 * z.k + 70] = NAN;
    const attn_scales *q = &s->p.w_scales;
    float *number = z.zero ? q->zero : q->scale;
    number[z.transposed ? 77 * q->stride_len + 2 : 2 * q->stride_len + 77] = n % 3 ? NAN : INFINITY;
    promise_run(&s->does);
    for (int64_t i = 0; i < z.m; i++)
      for (int64_t j = 0; j < z.n; j++) {
        const double y = oracle_get(&s->y, 0, 0, i, j);
        if (i == 1)
          assert_true(isnan(y));
        else if (j == 77)
          assert_true(isnan(y) || isinf(y));
        else
          assert_true(y == oracle_get(&before, 0, 0, i, j));
      }
  }
}

void O5_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(5005);
  for (int n = 0; n < 8; n++) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, n / 4 ? 230 : 3, 260, 330, n % 3 * 32);
    z.transposed = n / 2 % 2, z.zero = n % 3 == 1, z.heads = 2, z.shared = n % 3 == 2;
    if (n % 4 > 1) z.x_type = ATTN_F16, z.y_type = ATTN_BF16;
    scene *s = build(&z, &rng);
    attn_ctx ctx = test_ctx();
    if (z.x_type == ATTN_F16 || test_compute != ATTN_COMPUTE_F32) {
      promise_keep(&s->does);
      continue;
    }
    assert_int_equal(ask(s, &ctx), 0); /* no copy of w */
    promise_run(&s->does);
  }
  shape none = plain(ATTN_I4, 0, 4, 6, 0);
  promise_run(&build(&none, &rng)->does);
}

/* ---- rows of x as codes: params.compute = ATTN_COMPUTE_I8 ---------------------------------------*/

/* The same call with other rows, other products: all bits agree, but on the scalar tier. */
static void same_codes(scene *s) {
  static const int64_t cuts[] = {1, 3, 9};
  attn_ctx ctx = test_ctx();
  scene some = *s;
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts && s->x.batch * s->x.heads == 1; i++) {
    const int64_t m = s->x.len, rows = cuts[i] < m ? cuts[i] : m;
    some.x = test_rows(s->x, m - rows, rows);
    some.y = test_tensor(s->y.dtype, TEST_PADDED, 1, 1, rows, s->y.dim);
    if (i == 1) ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    assert_int_equal(call(&some, &ctx), ATTN_OK);
    test_assert_same(some.y, test_rows(s->y, m - rows, rows), "some rows");
  }
  some.x = s->x,
  some.y = test_tensor(s->y.dtype, TEST_PADDED, s->y.batch, s->y.heads, s->y.len, s->y.dim);
  ctx = test_ctx();
  if (test_isa == ATTN_ISA_AVX512) {
    ctx.isa = ATTN_ISA_AVX2;
    assert_int_equal(call(&some, &ctx), ATTN_OK);
    test_assert_same(some.y, s->y, "avx2 and avx512");
    ctx.isa = test_isa;
  }
  const attn_feature feature = test_feature(ATTN_COMPUTE_I8);
  if (!feature) return;
  assert_int_equal(attn_feature_off(feature, 1), ATTN_OK);
  assert_int_equal(call(&some, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.feature, ATTN_FEATURE_NONE);
  assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
  test_assert_same(some.y, s->y, "emulated");
}

void O5_int8(void **state) {
  (void)state;
  static const int64_t rows[] = {30, 9, 4, 203}, deep[] = {130, 300, 37}, wide[] = {150, 64, 70};
  test_rng rng = test_seed(5007);
  for (int n = 0; n < FEW + (test_fast ? 12 : 24); n++, test_mem_release()) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, rows[n % 4], deep[n % 3], wide[n / 2 % 3],
                    group_sizes[n / 3 % 8]);
    z.transposed = n / 2 % 2, z.zero = n / 4 % 2, z.x_type = floats[n / 3 % 3];
    if (n % 5 == 1) z.batch = 2, z.heads = 2, z.shared = n / 5 % 2;
    if (n % 7 == 3) z.y_type = ATTN_F16;
    z.layout = (test_layout)(n / 3 % TEST_LAYOUTS);
    scene *s = n < FEW ? few_scene(n, &rng) : build(&z, &rng);
    s->p.compute = ATTN_COMPUTE_I8;
    if (n % 8 == 1) s->p.scale = -0.25f, s->p.activation = ATTN_ACT_RELU;
    for (int64_t c = 0; n % 8 == 3 && c < s->x.dim; c++) /* a row of zeros */
      oracle_set(&s->x, 0, 0, 0, c, 0);
    promise_run(&s->does);
    check(s, "rows of x as codes");
    if (n % 4 == 0) s->p.w_scales.scale[0] = payload(), promise_run(&s->does);
    same_codes(s);
  }
}

/* Normal rows lose what codes of 8 bits lose, on average; a row that has no codes has the product of f32. */
void O5_int8_rows(void **state) {
  (void)state;
  static const float odd[] = {NAN, INFINITY, 1e20f, 1e-20f, 3e38f};
  test_rng rng = test_seed(5008);
  for (int n = 0; n < 10; n++, test_mem_release()) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, n < 5 ? 3 : 25, 320, 192, 64);
    z.transposed = n / 2 % 2, z.zero = n / 4;
    scene *s = build(&z, &rng), plainly;
    test_fill(s->x, &rng, test_normal);
    s->p.compute = ATTN_COMPUTE_I8;
    promise_run(&s->does);
    double errors = 0, sizes = 0;
    for (int64_t i = 0; i < z.m; i++)
      for (int64_t j = 0; j < z.n; j++) {
        double sum = 0;
        for (int64_t c = 0; c < z.k; c++)
          sum += oracle_get(&s->x, 0, 0, i, c) * weight(s, 0, 0, c, j);
        errors += pow(oracle_get(&s->y, 0, 0, i, j) - sum, 2), sizes += sum * sum;
      }
    if (!(errors < 1e-4 * sizes)) fail_msg("case %d: %.3g of the size", n, sqrt(errors / sizes));
    const attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, z.m, z.n);
    test_copy(before, s->y);
    for (int64_t c = 64; n % 5 == 3 && c < 128; c++) oracle_set(&s->x, 0, 0, 1, c, 0);
    oracle_set(&s->x, 0, 0, 1, 70, (double)odd[n % 5]);
    promise_run(&s->does);
    plainly = *s, plainly.p.compute = ATTN_COMPUTE_F32;
    plainly.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, z.m, z.n);
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(&plainly, &ctx), ATTN_OK);
    test_assert_same(test_rows(s->y, 1, 1), test_rows(plainly.y, 1, 1), "in f32");
    test_assert_same(test_rows(s->y, 0, 1), test_rows(before, 0, 1), "another row");
    test_assert_same(test_rows(s->y, 2, z.m - 2), test_rows(before, 2, z.m - 2), "other rows");
  }
}

/* What runs, what is refused, and what is preferred. */
void O5_int8_modes(void **state) {
  (void)state;
  test_rng rng = test_seed(5009);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(n % 2 ? ATTN_I4 : ATTN_I8, 40, 70, 90, 32);
    scene *s = build(&z, &rng);
    attn_ctx ctx = test_ctx();
    s->p.compute = ATTN_COMPUTE_I8, s->p.compute_prefer = n / 2;
    assert_int_equal(call(s, &ctx), ATTN_OK);
    const attn_feature feature = test_feature(ATTN_COMPUTE_I8);
    const attn_compute want = n / 2 && !feature ? ATTN_COMPUTE_F32 : ATTN_COMPUTE_I8;
    assert_int_equal(ctx.report.compute, want);
    assert_int_equal(ctx.report.feature, feature);
    if (n < 2) promise_keep(&s->does);
    s->w.x = drawn(floats[n % 3], TEST_BHTD, 1, 1, z.k, z.n, 1, &rng);
    memset(&s->p.w_scales, 0, sizeof s->p.w_scales);
    if (n < 2) {
      promise_reject(&s->does, ATTN_E_VALUE, "params.compute");
      continue;
    }
    assert_int_equal(call(s, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.compute, ATTN_COMPUTE_F32);
  }
}

void O5_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(5006);
  for (int n = 0; n < 36; n++, test_mem_release()) {
    shape z = plain(n % 4 < 2 ? ATTN_I4 : ATTN_I8, 9, 70, 11, 32);
    z.batch = z.heads = 2, z.transposed = n % 2, z.zero = 1;
    scene *s = build(&z, &rng);
    attn_scales *q = &s->p.w_scales;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "params.w_scales";
    switch (n / 2) {
      case 0: q->scale = NULL, want = ATTN_E_NULL; break;
      case 1: q->group = -32; break;
      case 2: q->group = 16; break;
      case 3: q->group = INT64_MAX; break;
      case 4: s->w.x.dtype = ATTN_F32, s->w.x.data = s->x.data, want = ATTN_E_DTYPE; break;
      case 5: s->w.x.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 6: s->w.x.dtype = (attn_dtype)17, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 7: q->scale = (float *)(void *)((char *)q->scale + 1), want = ATTN_E_ALIGN; break;
      case 8: q->zero = (float *)(void *)((char *)q->zero + 2), want = ATTN_E_ALIGN; break;
      case 9: q->stride_len = INT64_MAX, want = ATTN_E_OVERFLOW; break;
      case 10: q->stride_batch = INT64_MIN, want = ATTN_E_OVERFLOW; break;
      case 11: q->scale = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 12: q->zero = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 13: s->w.x.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      case 14: s->w.x.len--, word = "w.len"; break;
      case 15:
        s->w.x.dtype = ATTN_I4, s->w.x.stride_len = 77, want = ATTN_E_STRIDE, word = "w";
        break;
      case 16: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      default: s->w.x.data = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
    }
    promise_reject(&s->does, want, word);
  }
}
