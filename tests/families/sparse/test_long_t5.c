/* tests/families/sparse/test_long_t5.c owns LongT5's global rows and its transient global attention. */

#include "compound.h"

enum { H = 4 };

typedef struct scene {
  attn_tensor o, q, k, v, side_k, side_v;
  attn_long_t5_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_long_t5(s->o, s->q, s->k, s->v, s->side_k, s->side_v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_long_t5_workspace(s->o, s->q, s->k, s->v, s->side_k, s->side_v, &s->p, ctx);
}

/* Block of token i of n: those behind the last whole one belong to it; -1 = there is none. */
static int64_t block_of(int64_t i, int64_t n, int64_t block) {
  int64_t whole = n / block;
  return i / block < whole ? i / block : whole - 1;
}

static double bias(const scene *s, const float *table, int64_t d, int64_t h) {
  int64_t buckets = s->p.buckets ? s->p.buckets : 32,
          most = s->p.max_distance ? s->p.max_distance : 128;
  return table ? (double)table[oracle_t5_bucket(d, 1, buckets, most) * s->q.heads + h] : 0;
}

static void check(const scene *s, double tolerance, const char *what) {
  const attn_long_t5_params *p = &s->p;
  int64_t radius = p->radius || p->has_radius ? p->radius : 127, block = p->block ? p->block : 16;
  double scale = p->scale != 0.0f ? (double)p->scale : signbit(p->scale) ? 0 : 1;
  bag a = bag_of(s->q.len + s->side_k.len, s->v.dim);
  for (int64_t r = 0; r < s->q.batch * s->q.heads * s->q.len; r++) {
    int64_t i = r % s->q.len, h = r / s->q.len % s->q.heads, b = r / s->q.len / s->q.heads;
    int64_t n = p->len ? p->len[b] : s->q.len;
    bag_empty(&a);
    for (int64_t j = 0; i < n && j < n; j++) {
      if (i - j > radius || j - i > radius) continue;
      bag_add(&a, scale * dot_rows(&s->q, &s->k, b, h, i, j) + bias(s, p->table, j - i, h), &s->v,
              b, head_of(&s->v, h, s->q.heads), j);
    }
    for (int64_t g = 0; i < n && g < n / block; g++)
      bag_add(&a,
              scale * dot_rows(&s->q, &s->side_k, b, h, i, g) +
                  bias(s, p->side_table, g - block_of(i, n, block), h),
              &s->side_v, b, head_of(&s->side_v, h, s->q.heads), g);
    bag_close(&a);
    bag_check(&a, &s->o, &p->lse, b, h, i, tolerance, what);
  }
}

static scene *build(int64_t batch, int64_t n, int64_t block, int64_t dk, int64_t dv, int types,
                    test_rng *rng) {
  static const attn_dtype type[3] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  int64_t side = n / (block ? block : 16);
  attn_dtype in = type[types % 3], out = type[types / 3 % 3];
  s->q = drawn(in, TEST_BTHD, batch, H, n, dk, 0.5, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, batch, 2, n, dk, 0.5, rng);
  s->v = drawn(in, TEST_BHTD, batch, H, n, dv, 1, rng);
  s->side_k = drawn(ATTN_F32, TEST_BTHD, batch, 2, side, dk, 0.5, rng);
  s->side_v = drawn(in, TEST_PADDED, batch, types % 2 ? 2 : H, side, dv, 1, rng);
  s->o = output(out, TEST_BHTD, batch, H, n, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_PADDED, batch, H, n, 1, &s->does.block[1]);
  s->p.block = block;
  s->p.table = test_floats(32 * H, 1, rng), s->p.side_table = test_floats(32 * H, 1, rng);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

static int32_t *lengths(int64_t batch, int64_t n, test_rng *rng) {
  int32_t *len = test_mem((size_t)(batch + 1) * sizeof *len);
  for (int64_t b = 0; b < batch; b++) len[b] = (int32_t)test_range(rng, 0, n);
  return len;
}

void C20_long_t5_random(void **state) {
  (void)state;
  test_rng rng = test_seed(200);
  static const int64_t blocks[5] = {0, 1, 3, 7, 50};
  for (int64_t n = test_count(40, 14); n-- > 0;) {
    int64_t t = test_range(&rng, 1, n % 5 ? 45 : 200), batch = test_range(&rng, 1, 3);
    scene *s = build(batch, t, blocks[n % 5], test_range(&rng, 1, 17), test_range(&rng, 1, 17),
                     (int)(n % 9), &rng);
    s->p.radius = n % 3 ? test_range(&rng, 1, 20) : 0, s->p.has_radius = n % 6 == 3;
    if (n % 4 == 1) s->p.buckets = 8, s->p.max_distance = 20;
    if (n % 4 == 2) s->p.scale = n % 8 == 2 ? ATTN_ZERO : -0.25f;
    if (n % 7 == 3) s->p.table = NULL;
    if (n % 7 == 5) s->p.side_table = NULL;
    if (n % 2) s->p.len = lengths(batch, t, &rng);
    if (n % 11 == 4) memset(&s->p.lse, 0, sizeof s->p.lse), s->does.out[1] = NULL;
    promise_run(&s->does);
    check(s, 5e-6, "long t5");
  }
}

/* Marks of blocks of keys and of tiles; values of mean zero and of mean one. */
void C20_long_t5_marks(void **state) {
  (void)state;
  test_rng rng = test_seed(201);
  static const int64_t tokens[3] = {1, 129, 1100};
  for (int n = 0; n < 3; n++) {
    scene *s = build(1, tokens[n], n == 1 ? 1 : 4, 5, 3, 0, &rng);
    for (int64_t e = 0; n == 2 && e < s->side_v.len; e++)
      for (int64_t h = 0; h < H; h++) oracle_set(&s->side_v, 0, h, e, 0, 1);
    for (int64_t i = 0; n == 2 && i < tokens[n]; i++)
      for (int64_t h = 0; h < H; h++) oracle_set(&s->v, 0, h, i, 0, 1);
    promise_run(&s->does);
    check(s, 3e-6, "marks");
  }
}

/* A radius beyond all tokens, and no whole block: T5's attention over all pairs. */
void C20_long_t5_local(void **state) {
  (void)state;
  test_rng rng = test_seed(202);
  for (int n = 0; n < 4; n++) {
    int64_t t = n % 2 ? 150 : 40;
    scene *s = build(2, t, t + 1, 8, 6, 0, &rng);
    s->p.radius = n < 2 ? t : 9;
    promise_run(&s->does);
    attn_sdpa_params p;
    attn_ctx ctx = test_ctx();
    attn_tensor o = output(ATTN_F32, TEST_BHTD, 2, H, t, 6, NULL);
    memset(&p, 0, sizeof p);
    p.scale = 1, p.t5.table = s->p.table, p.t5.bidirectional = 1;
    if (n >= 2) p.window = attn_window_of(9, 9);
    assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    if (n < 2)
      test_assert_near(s->o, o, 1e-5, "all pairs");
    else
      test_assert_same(s->o, o, "window");
  }
}

/* A sequence in a longer batch is a call of its own; what stands behind it reaches nothing. */
void C20_long_t5_padding(void **state) {
  (void)state;
  test_rng rng = test_seed(203);
  static const int32_t len[3] = {53, 3, 0};
  scene *s = build(3, 90, 8, 8, 6, 0, &rng);
  s->p.len = len, s->p.radius = 5;
  promise_run(&s->does);
  check(s, 5e-6, "padding");
  attn_tensor o = s->o;
  for (int64_t b = 0; b < 3; b++) {
    int64_t n = len[b], g = n / 8;
    for (int64_t h = 0; h < H; h++)
      for (int64_t c = 0; c < 8; c++)
        for (int64_t i = n; i < 90; i++) {
          oracle_set(&s->q, b, h, i, c, (double)NAN);
          if (h < 2) oracle_set(&s->k, b, h, i, c, (double)NAN);
          if (c < 6) oracle_set(&s->v, b, h, i, c, (double)NAN);
          if (i - n >= 11 - g) continue;
          if (h < 2) oracle_set(&s->side_k, b, h, g + i - n, c, (double)NAN);
          if (c < 6) oracle_set(&s->side_v, b, h, g + i - n, c, (double)NAN);
        }
  }
  s->o = output(ATTN_F32, TEST_BHTD, 3, H, 90, 6, NULL);
  promise_run(&s->does);
  test_assert_same(s->o, o, "tokens that do not exist");
  oracle_set(&s->side_k, 0, 1, 2, 3, (double)NAN); /* a row that all tokens of two heads see */
  promise_run(&s->does);
  for (int64_t h = 0; h < H; h++)
    for (int64_t i = 0; i < 53; i++)
      assert_int_equal(isnan(oracle_get(&s->o, 0, h, i, 0)) != 0, h >= 2);
}

void C20_long_t5_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(204);
  for (int n = 0; n < 3; n++) {
    scene *s = build(n != 0, n == 1 ? 0 : 5, 16, 4, 3, 0, &rng);
    promise_run(&s->does);
    check(s, 5e-6, "empty");
  }
}

void C20_long_t5_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(205);
  for (int n = 0; n < 2; n++) {
    scene *s = build(2, 150, 16, 8, 6, n ? 4 : 0, &rng);
    s->p.radius = 20;
    if (n) s->p.len = lengths(2, 150, &rng);
    promise_keep(&s->does);
  }
}

void C20_long_t5_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(206);
  for (int n = 0; n < 25; n++) {
    scene *s = build(2, 40, 8, 8, 6, 0, &rng);
    float *bad = test_floats(32 * H, 1, &rng);
    static const int32_t low[2] = {3, -1}, high[2] = {41, 0};
    attn_status want = ATTN_E_RANGE;
    const char *word = "params.len";
    switch (n) {
      case 0: s->p.len = low; break;
      case 1: s->p.len = high; break;
      case 2: s->p.block = -1, word = "params.block"; break;
      case 3: s->p.radius = -1, word = "params.radius"; break;
      case 4: s->p.buckets = 3, word = "buckets"; break;
      case 5: s->p.buckets = 1026, word = "buckets"; break;
      case 6: s->p.max_distance = 8, word = "max_distance"; break;
      case 7: s->p.max_distance = -1, word = "max_distance"; break;
      case 8: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "params.scale"; break;
      case 9: bad[127] = (float)NAN, s->p.table = bad, want = ATTN_E_VALUE, word = "table"; break;
      case 10:
        bad[127] = INFINITY, s->p.side_table = bad, want = ATTN_E_VALUE, word = "side_table";
        break;
      case 11: s->p.block = 6, want = ATTN_E_SHAPE, word = "side_k must"; break;
      case 12: s->side_k.len--, want = ATTN_E_SHAPE, word = "side_k must"; break;
      case 13: s->side_v.len--, want = ATTN_E_SHAPE, word = "side_v must"; break;
      case 14: s->side_k.dim = 7, want = ATTN_E_SHAPE, word = "side_k must"; break;
      case 15: s->side_v.dim = 5, want = ATTN_E_SHAPE, word = "side_v must"; break;
      case 16: s->side_k.heads = 3, want = ATTN_E_HEADS, word = "side_k must"; break;
      case 17: s->side_v.heads = 3, want = ATTN_E_HEADS, word = "side_v must"; break;
      case 18: s->k.len = 39, want = ATTN_E_SHAPE, word = "k must"; break;
      case 19: s->v.heads = 3, want = ATTN_E_HEADS, word = "v must"; break;
      case 20: s->o.dim = 5, want = ATTN_E_SHAPE, word = "o must"; break;
      case 21: s->p.lse.heads = 1, want = ATTN_E_SHAPE, word = "params.lse"; break;
      case 22: s->p.table = s->o.data, want = ATTN_E_OVERLAP, word = "o "; break;
      case 23: s->side_k.data = NULL, want = ATTN_E_NULL, word = "side_k"; break;
      default: s->side_v.data = NULL, want = ATTN_E_NULL, word = "side_v"; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- global rows ----------------------------------------------------------------------------*/

typedef struct sums {
  attn_tensor y, x;
  attn_global_rows_params p;
  promise does;
} sums;

static attn_status call_sums(void *at, attn_ctx *ctx) {
  sums *s = at;
  return attn_global_rows(s->y, s->x, &s->p, ctx);
}
static size_t ask_sums(void *at, const attn_ctx *ctx) {
  sums *s = at;
  return attn_global_rows_workspace(s->y, s->x, &s->p, ctx);
}

static sums *build_sums(int64_t batch, int64_t heads, int64_t n, int64_t d, int64_t block,
                        int types, test_rng *rng) {
  static const attn_dtype type[3] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  sums *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(type[types % 3], types % 2 ? TEST_BTHD : TEST_PADDED, batch, heads, n, d, 1, rng);
  s->y = output(type[types / 3], types % 2 ? TEST_PADDED : TEST_BTHD, batch, heads,
                n / (block ? block : 16), d, &s->does.block[0]);
  s->p.block = block;
  s->does.call = call_sums, s->does.ask = ask_sums, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

static void check_sums(const sums *s) {
  int64_t block = s->p.block ? s->p.block : 16, d = s->x.dim;
  double eps = s->p.eps != 0.0f ? (double)s->p.eps : signbit(s->p.eps) ? 0 : (double)1e-6f;
  double *z = test_mem((size_t)d * sizeof *z);
  for (int64_t r = 0; r < s->y.batch * s->y.heads * s->y.len; r++) {
    int64_t g = r % s->y.len, h = r / s->y.len % s->y.heads, b = r / s->y.len / s->y.heads;
    int64_t n = s->p.len ? s->p.len[b] : s->x.len;
    double square = 0;
    for (int64_t c = 0; c < d; c++) {
      z[c] = 0;
      for (int64_t i = 0; i < n; i++)
        if (block_of(i, n, block) == g) z[c] += oracle_get(&s->x, b, h, i, c);
      square += z[c] * z[c] / (double)d;
    }
    for (int64_t c = 0; c < d; c++) {
      double gain = s->p.gain ? (double)s->p.gain[c] : 1, root = sqrt(square + eps);
      value_check(oracle_get(&s->y, b, h, g, c), root > 0 ? gain * z[c] / root : 0,
                  1e-6 * fabs(gain) * sqrt((double)d), s->y.dtype, "global rows", b, h, g, c);
    }
  }
}

void C20_global_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(207);
  static const int64_t blocks[4] = {0, 1, 3, 7};
  for (int64_t n = test_count(24, 12); n-- > 0;) {
    int64_t batch = test_range(&rng, 1, 3), t = test_range(&rng, n < 2 ? 16 : 0, n % 4 ? 40 : 150),
            d = test_range(&rng, 1, 70);
    sums *s = build_sums(batch, test_range(&rng, 1, 2), t, d, blocks[n % 4], (int)(n % 9), &rng);
    if (n % 2) s->p.len = lengths(batch, t, &rng);
    if (n % 3) s->p.gain = test_floats(d, 1, &rng);
    if (n % 5 == 1) s->p.eps = n % 10 == 1 ? ATTN_ZERO : 0.5f;
    promise_run(&s->does);
    check_sums(s);
    if (n < 2) promise_keep(&s->does);
  }
  sums *s = build_sums(2, 1, 21, 5, 4, 0,
                       &rng); /* NaN stays in its block, and is not read behind a length */
  static const int32_t len[2] = {21, 13};
  s->p.len = len, s->p.eps = ATTN_ZERO;
  oracle_set(&s->x, 0, 0, 20, 3, (double)NAN), oracle_set(&s->x, 1, 0, 13, 3, (double)NAN);
  test_fill_value(test_rows(s->x, 4, 4), 0);
  promise_run(&s->does);
  for (int64_t g = 0; g < 5; g++)
    assert_int_equal(isnan(oracle_get(&s->y, 0, 0, g, 1)) != 0, g == 4);
  for (int64_t g = 0; g < 5; g++) {
    double y = oracle_get(&s->y, 1, 0, g, 1);
    assert_true(g == 1 || g >= 3 ? y == 0 : fabs(y) > 0);
  }
}

void C20_global_rows_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(208);
  for (int n = 0; n < 11; n++) {
    sums *s = build_sums(2, 1, 20, 5, 4, 0, &rng);
    static const int32_t low[2] = {3, -1}, high[2] = {21, 0};
    float *bad = test_floats(5, 1, &rng);
    attn_status want = ATTN_E_RANGE;
    const char *word = "params.len";
    switch (n) {
      case 0: s->p.len = low; break;
      case 1: s->p.len = high; break;
      case 2: s->p.block = -3, word = "params.block"; break;
      case 3: s->p.block = 5, want = ATTN_E_SHAPE, word = "y must"; break;
      case 4: s->y.heads = 0, want = ATTN_E_SHAPE, word = "y must"; break;
      case 5: s->y.dim = 4, want = ATTN_E_SHAPE, word = "y must"; break;
      case 6: s->p.eps = -1, want = ATTN_E_VALUE, word = "params.eps"; break;
      case 7: s->p.eps = INFINITY, want = ATTN_E_VALUE, word = "params.eps"; break;
      case 8:
        bad[4] = (float)NAN, s->p.gain = bad, want = ATTN_E_VALUE, word = "params.gain";
        break;
      case 9: s->p.gain = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      default: s->x.data = NULL, want = ATTN_E_NULL, word = "x."; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- another implementation -----------------------------------------------------------------*/

static float made(int64_t i, int64_t j, int64_t step) {
  return (float)((i * step + j * 5 + i * j % 7) % 13 - 6) / 8;
}
static attn_tensor matrix(int64_t rows, int64_t columns, int64_t step) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, rows, columns);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) oracle_set(&t, 0, 0, i, j, (double)made(i, j, step));
  return t;
}

/* Heads of 4 columns of x w^T. */
static attn_tensor project(attn_tensor x, int64_t step) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, x.len, 4);
  for (int64_t i = 0; i < x.len; i++)
    for (int64_t c = 0; c < 8; c++) {
      double sum = 0;
      for (int64_t e = 0; e < 8; e++) sum += oracle_get(&x, 0, 0, i, e) * (double)made(c, e, step);
      oracle_set(&t, 0, c / 4, i, c % 4, sum);
    }
  return t;
}

/* Outputs of LongT5TransientGlobalAttention of transformers 4.40.0 (torch 2.15.0, float32): d_model 8, 2 heads of 4,
 * local_radius 3, global_block_size 4, 8 buckets, max_distance 16, the output's matrix the identity, inputs and
 * weights as in `made` with steps 2 (x), 3, 4, 6 (q, k, v), 5, 7 (tables), the norm's gain 1 + made(0, j, 1) / 4; 15
 * tokens, and of these the first 10 with an attention mask. */
void C20_long_t5_transformers(void **state) {
  (void)state;
  static const int32_t tokens[2] = {15, 10}, rows[2][3] = {{0, 6, 14}, {0, 6, 9}};
  static const double want[2][3][8] = {
      {{1.711325, 0.6354524, -1.68229, 0.525786, -0.2335683, -0.04606788, 0.03346321, -0.1377882},
       {-0.3695129, -0.5298927, 0.4673335, 0.211099, -0.1441718, -0.3011905, 0.170367, -0.01398632},
       {0.1540515, -0.2286118, -0.05422946, 0.0300569, -0.7383927, -0.1453598, 0.01966057,
        0.08349625}},
      {{1.712571, 0.6376715, -1.683075, 0.525174, -0.3162712, -0.0006539822, 0.0350948, -0.1850127},
       {-0.3553496, -0.2467763, 0.4165649, 0.2073148, -0.201214, -0.2389438, 0.1603793,
        -0.05297683},
       {1.059065, 1.245396, -1.353497, 0.7822013, -0.3685968, -0.360807, 0.2156988, -0.01411378}}};
  attn_tensor x = matrix(15, 8, 2), table = matrix(8, 2, 5), side_table = matrix(8, 2, 7);
  attn_tensor gain = matrix(1, 8, 1);
  for (int64_t c = 0; c < 8; c++)
    oracle_set(&gain, 0, 0, 0, c, 1 + oracle_get(&gain, 0, 0, 0, c) / 4);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 8),
              o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 15, 4);
  for (int n = 0; n < 2; n++) {
    attn_global_rows_params sum;
    attn_long_t5_params p;
    attn_ctx ctx = test_ctx();
    memset(&sum, 0, sizeof sum), memset(&p, 0, sizeof p);
    sum.block = 4, sum.len = &tokens[n], sum.gain = gain.data;
    assert_int_equal(attn_global_rows(y, x, &sum, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    p.radius = 3, p.block = 4, p.buckets = 8, p.max_distance = 16, p.len = &tokens[n];
    p.table = table.data, p.side_table = side_table.data;
    assert_int_equal(attn_long_t5(o, project(x, 3), project(x, 4), project(x, 6), project(y, 4),
                                  project(y, 6), &p, &ctx),
                     ATTN_OK);
    for (int r = 0; r < 3; r++)
      for (int64_t c = 0; c < 8; c++)
        value_check(oracle_get(&o, 0, c / 4, rows[n][r], c % 4), want[n][r][c], 2e-6, ATTN_F32,
                    "transformers", 0, c / 4, rows[n][r], c % 4);
  }
}
