/* tests/families/content/test_mra.c owns attention at two resolutions against its definition in float64. */

#include <stdlib.h>

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_mra_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_mra(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_mra_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv;
  attn_dtype type;
  test_layout layout;
} shape;

static shape plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv) {
  shape x = {1, heads, heads, heads, q_len, k_len, dk, dv, ATTN_F32, TEST_BHTD};
  return x;
}

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(x->type, x->layout, x->batch, x->heads, x->q_len, x->dk, 1, rng);
  s->k = drawn(x->type, TEST_PADDED, x->batch, x->k_heads, x->k_len, x->dk, 1, rng);
  s->v = drawn(x->type, x->layout, x->batch, x->v_heads, x->k_len, x->dv, 1, rng);
  s->o = output(x->type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BTHD, x->batch, x->heads, x->q_len, 1, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

static scene *again(const scene *s) {
  scene *y = test_mem(sizeof *y);
  *y = *s;
  y->o = test_tensor(s->o.dtype, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
  y->p.lse = test_tensor(ATTN_F32, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, 1);
  y->does.scene = y, y->does.out[0] = &y->o, y->does.out[1] = &y->p.lse;
  return y;
}

/* ---- the definition -------------------------------------------------------------------------*/

static int64_t block_of(const scene *s) { return s->p.block ? s->p.block : 32; }
static int64_t len_of(const int32_t *len, int64_t b, int64_t n) { return len ? len[b] : n; }
static int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* The means of the blocks of a head. */
static double *means(const attn_tensor *t, int64_t b, int64_t h, int64_t rows, int64_t size) {
  double *m = test_mem((size_t)(blocks_of(t->len, size) * t->dim + 1) * sizeof *m);
  for (int64_t x = 0; x * size < rows; x++) {
    const int64_t n = rows - x * size < size ? rows - x * size : size;
    for (int64_t c = 0; c < t->dim; c++) {
      m[x * t->dim + c] = 0;
      for (int64_t i = 0; i < n; i++)
        m[x * t->dim + c] += oracle_get(t, b, h, x * size + i, c) / (double)n;
    }
  }
  return m;
}

/* Pairs are chosen one after the other, the best of those that are left. */
static uint8_t *choice(const scene *s, const double *mu, int64_t nx, int64_t ny) {
  uint8_t *in = test_mem((size_t)(nx * ny + 1));
  double *x = test_mem((size_t)(nx * ny + 1) * sizeof *x);
  int64_t left = s->p.exact || s->p.has_exact ? s->p.exact : 4 * blocks_of(s->q.len, block_of(s));
  for (int64_t n = 0; n < nx * ny; n++) {
    double top = -(double)INFINITY;
    const int64_t away = n / ny > n % ny ? n / ny - n % ny : n % ny - n / ny;
    for (int64_t y = 0; y < ny; y++) top = fmax(top, mu[n / ny * ny + y]);
    x[n] = mu[n] - (s->p.by_score ? 0 : top), in[n] = 0;
    if (n / ny < s->p.first || n % ny < s->p.first || (s->p.diagonal && away <= s->p.diagonal / 2))
      x[n] += 1e6;
  }
  for (; left > 0; left--) {
    int64_t best = -1;
    for (int64_t n = 0; n < nx * ny; n++)
      if (!in[n] && (best < 0 || x[n] > x[best])) best = n;
    if (best < 0) break;
    in[best] = 1;
  }
  return in;
}

static void check(const scene *s, double tolerance, const char *what) {
  const int64_t size = block_of(s), heads = s->q.heads, dk = s->q.dim, dv = s->v.dim;
  const double scale = scale_of(s->p.scale, dk);
  double *x = test_mem((size_t)(s->k.len + 1) * sizeof *x);
  double *sum = test_mem((size_t)dv * sizeof *sum);
  for (int64_t u = 0; u < s->q.batch * heads; u++) {
    const int64_t b = u / heads, h = u % heads;
    const int64_t hk = head_of(&s->k, h, heads), hv = head_of(&s->v, h, heads);
    const int64_t rows = len_of(s->p.q_len, b, s->q.len), keys = len_of(s->p.kv_len, b, s->k.len);
    const int64_t nx = blocks_of(rows, size), ny = blocks_of(keys, size);
    const double *q = means(&s->q, b, h, rows, size), *k = means(&s->k, b, hk, keys, size);
    const double *v = means(&s->v, b, hv, keys, size);
    double *mu = test_mem((size_t)(nx * ny + 1) * sizeof *mu), most = 0;
    for (int64_t n = 0; n < nx * ny; n++) {
      mu[n] = 0;
      for (int64_t c = 0; c < dk; c++) mu[n] += scale * q[n / ny * dk + c] * k[n % ny * dk + c];
    }
    const uint8_t *in = choice(s, mu, nx, ny);
    for (int64_t j = 0; j < keys; j++)
      for (int64_t c = 0; c < dv; c++) most = fmax(most, fabs(oracle_get(&s->v, b, hv, j, c)));
    for (int64_t i = 0; i < s->q.len; i++) {
      double top = -(double)INFINITY, z = 0;
      for (int64_t c = 0; c < dv; c++) sum[c] = 0;
      for (int64_t j = 0; i < rows && j < keys; j++) {
        const int64_t at = i / size * ny + j / size;
        x[j] = in[at] ? scale * dot_rows(&s->q, &s->k, b, h, i, j) : mu[at];
        if (in[at] || !s->p.sparse) top = fmax(top, x[j]);
      }
      for (int64_t j = 0; i < rows && j < keys; j++) {
        const int64_t at = i / size * ny + j / size;
        if (!in[at] && s->p.sparse) continue;
        const double w = exp(x[j] - top);
        z += w;
        for (int64_t c = 0; c < dv; c++)
          sum[c] += w * (in[at] ? oracle_get(&s->v, b, hv, j, c) : v[j / size * dv + c]);
      }
      for (int64_t c = 0; c < dv; c++)
        value_check(oracle_get(&s->o, b, h, i, c), z > 0 ? sum[c] / z : 0, tolerance * most,
                    s->o.dtype, what, b, h, i, c);
      const double lse = z > 0 ? top + log(z) : -(double)INFINITY;
      value_check(oracle_get(&s->p.lse, b, h, i, 0), lse, tolerance * fmax(1, fabs(lse)), ATTN_F32,
                  what, b, h, i, -1);
    }
  }
}

/* ---- tests ----------------------------------------------------------------------------------*/

static void any_rules(scene *s, int64_t t, test_rng *rng) {
  static const float scale[] = {0, 0, 1, -0.7f, ATTN_ZERO};
  const int64_t nx = blocks_of(s->q.len, block_of(s)), ny = blocks_of(s->k.len, block_of(s));
  s->p.scale = scale[test_range(rng, 0, 4)];
  s->p.exact = t % 4 ? test_range(rng, 0, nx * ny + 2) : 0, s->p.has_exact = t % 3 == 0;
  s->p.sparse = t % 5 == 2, s->p.by_score = (int)test_range(rng, 0, 1);
  if (t % 4 == 1) s->p.first = test_range(rng, 0, 2), s->p.diagonal = test_range(rng, 0, 4);
  if (t % 3 == 1) s->p.kv_len = test_lengths(s->q.batch, s->k.len, rng);
  if (t % 7 == 2) s->p.q_len = test_lengths(s->q.batch, s->q.len, rng);
}

void D8_random(void **state) {
  (void)state;
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  test_rng rng = test_seed(8100);
  for (int64_t t = 0; t < test_count(80, 16); t++, test_mem_release()) {
    shape x;
    x.batch = test_range(&rng, 1, 2), x.k_heads = test_range(&rng, 1, 2);
    x.heads = x.k_heads * test_range(&rng, 1, 2), x.v_heads = test_range(&rng, 0, 1) ? x.heads : 1;
    x.q_len = test_range(&rng, 1, 150), x.k_len = test_range(&rng, 1, 150);
    x.dk = test_range(&rng, 1, 20), x.dv = test_range(&rng, 1, 40);
    x.type = type[t % 4], x.layout = (test_layout)test_range(&rng, 0, 3);
    scene *s = build(&x, &rng);
    s->p.block = t % 3 ? test_range(&rng, 5, 80) : t % 2 ? 16 : 0;
    any_rules(s, t, &rng);
    promise_run(&s->does);
    check(s, 1e-5, "random");
  }
}

/* Past the marks of 128 and 1024 keys, values of mean one, blocks of one row and of more than a tile. */
void D8_long(void **state) {
  (void)state;
  static const int64_t size[5] = {32, 64, 100, 1, 7};
  test_rng rng = test_seed(8101);
  for (int t = 0; t < 5; t++, test_mem_release()) {
    shape x = plain(1, t < 3 ? 200 : 40, t < 3 ? (test_fast ? 600 : 1300) : 150, 17, 5);
    scene *s = build(&x, &rng);
    s->p.block = size[t], s->p.by_score = t & 1, s->p.exact = t == 3 ? 900 : 0;
    for (int64_t j = 0; j < s->v.len; j++)
      for (int64_t c = 0; c < 5; c++)
        oracle_set(&s->v, 0, 0, j, c, 1 + 0.1 * oracle_get(&s->v, 0, 0, j, c));
    promise_run(&s->does);
    check(s, 1e-5, "long");
  }
}

/* Scores of some hundred: exact ones and approximations take turns as the largest. */
void D8_steep(void **state) {
  (void)state;
  test_rng rng = test_seed(8102);
  for (int t = 0; t < 4; t++) {
    shape x = plain(1, 70, 90, 6, 4);
    scene *s = build(&x, &rng);
    s->p.block = 8, s->p.exact = 20, s->p.scale = t & 1 ? 60 : -60, s->p.by_score = t >> 1;
    for (int64_t j = 0; j < 90;
         j++) /* rows of a block are near each other: its mean is as large as they are */
      for (int64_t c = 0; c < 6; c++) {
        const double y = oracle_get(&s->k, 0, 0, j, c);
        oracle_set(&s->k, 0, 0, j, c,
                   (j % 8 ? 0.2 * y + oracle_get(&s->k, 0, 0, j / 8 * 8, c) : y));
        if (j < 70) oracle_set(&s->q, 0, 0, j, c, 1 + 0.3 * oracle_get(&s->q, 0, 0, j, c));
      }
    promise_run(&s->does);
    check(s, 5e-4, "steep");
  }
}

/* All pairs chosen, or blocks of one row: dense attention. */
void D8_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(8103);
  for (int t = 0; t < 6; t++) {
    shape x = plain(4, 130, 170, 12, 9);
    x.k_heads = 2;
    scene *s = build(&x, &rng);
    static const int32_t len[1] = {141};
    attn_sdpa_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    scene *y = again(s);
    s->p.block = t < 3 ? 1 + 31 * t : 1, s->p.exact = t < 3    ? (int64_t)1 << 40
                                                      : t == 3 ? 0
                                                               : 9000 * t;
    s->p.has_exact = 1, s->p.sparse = t == 2;
    if (t & 1) s->p.kv_len = p.kv_len = len;
    p.lse = y->p.lse;
    promise_run(&s->does);
    assert_int_equal(attn_sdpa(y->o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
    test_assert_near(s->o, y->o, 1e-5, "dense");
    test_assert_near(s->p.lse, y->p.lse, 1e-5, "dense");
  }
}

/* Equal scores: pairs in their order. Priors come before better ones. */
void D8_choice(void **state) {
  (void)state;
  test_rng rng = test_seed(8104);
  for (int t = 0; t < 12; t++) {
    shape x = plain(1, 60, 80, 5, 3);
    scene *s = build(&x, &rng);
    s->p.block = 6, s->p.has_exact = 1, s->p.sparse = t & 1;
    s->p.exact = t % 3 == 1 ? 22 + t / 3 : 11 * t; /* 23 pairs are of the first blocks */
    if (t % 3 == 0) s->p.scale = ATTN_ZERO;
    if (t % 3 == 1) s->p.first = 1;
    if (t % 3 == 2) s->p.diagonal = t / 3;
    promise_run(&s->does);
    check(s, 1e-5, "choice");
  }
}

/* What is computed: the chosen pairs and one for each pair of blocks. */
void D8_work(void **state) {
  (void)state;
  test_rng rng = test_seed(8105);
  for (int sparse = 0; sparse < 2; sparse++) {
    shape x = plain(2, 256, 512, 8, 8);
    scene *s = build(&x, &rng);
    attn_ctx ctx = test_ctx();
    s->p.exact = 10, s->p.sparse = sparse;
    assert_int_equal(call(s, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.pairs, 2 * (10 * 32 * 32 + (sparse ? 0 : 8 * 16)));
    s->p.exact = 0, s->p.has_exact = 1;
    assert_int_equal(call(s, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.pairs, sparse ? 0 : 2 * 8 * 16);
  }
}

void D8_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(8106);
  for (int t = 0; t < 4; t++) {
    shape x = plain(1, 90, 70, 5, 9);
    scene *s = build(&x, &rng), *y;
    static const int32_t keys[1] = {50}, rows[1] = {66};
    s->p.block = t & 1 ? 16 : 24, s->p.kv_len = keys, s->p.q_len = rows, s->p.exact = 6,
    s->p.sparse = t >> 1;
    y = again(s);
    promise_run(&s->does);
    check(s, 1e-5, "lengths");
    for (int64_t j = 50; j < 70; j++) {
      test_fill_row(s->k, 0, 0, j, (double)NAN);
      test_fill_row(s->v, 0, 0, j, j % 2 ? (double)NAN : (double)INFINITY);
    }
    for (int64_t i = 66; i < 90; i++) test_fill_row(s->q, 0, 0, i, (double)NAN);
    promise_run(&y->does);
    test_assert_same(s->o, y->o, "beyond the lengths");
    test_assert_same(s->p.lse, y->p.lse, "beyond the lengths");
    oracle_set(&s->v, 0, 0, 7, 3, (double)NAN); /* a value: its column, whatever reads it */
    promise_run(&y->does);
    for (int64_t i = 0; i < 90; i++)
      for (int64_t c = 0; c < 9; c++) {
        const double z = oracle_get(&y->o, 0, 0, i, c);
        assert_true(c == 3 && i < 66 ? isnan(z) || s->p.sparse
                                     : z == oracle_get(&s->o, 0, 0, i, c));
      }
    oracle_set(&s->v, 0, 0, 7, 3, 0), test_fill_row(s->q, 0, 0, 20, (double)NAN);
    promise_run(&y->does); /* a query: its row, and at most its block */
    for (int64_t i = 0; i < 66; i++) {
      if (i == 20) assert_true(isnan(oracle_get(&y->o, 0, 0, i, 0)) || s->p.sparse);
      if (i / s->p.block != 20 / s->p.block)
        assert_true(oracle_get(&y->o, 0, 0, i, 0) == oracle_get(&y->o, 0, 0, i, 0));
    }
  }
}

void D8_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(8107);
  for (int t = 0; t < 4; t++, test_mem_release()) {
    shape x = plain(4, 150, 130, 9, 20);
    x.batch = 2, x.k_heads = 2;
    if (t & 1) x.type = ATTN_F16;
    scene *s = build(&x, &rng);
    s->p.block = t < 2 ? 16 : 20, s->p.sparse = t == 3;
    promise_keep(&s->does);
    promise_run(&s->does);
    scene *y = again(s); /* a batch entry by itself */
    y->q = test_one(s->q, 1, 1, 0, 4), y->k = test_one(s->k, 1, 1, 0, 2);
    y->v = test_one(s->v, 1, 1, 0, 4);
    y->o = test_tensor(x.type, TEST_BHTD, 1, 4, 150, 20), y->p.lse = absent();
    promise_run(&y->does);
    test_assert_same(y->o, test_one(s->o, 1, 1, 0, 4), "an entry");
  }
}

void D8_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(8108);
  for (int t = 0; t < 5; t++) {
    static const int32_t none[1] = {0};
    shape x = plain(2, t == 0 ? 0 : 35, t == 1 ? 0 : 40, 3, 4);
    if (t == 2) x.batch = 0;
    scene *s = build(&x, &rng);
    if (t == 3) s->p.kv_len = none;
    if (t == 4) s->p.q_len = none;
    promise_run(&s->does);
    for (int64_t n = 0; n < s->o.batch * 2 * s->o.len * 4; n++) {
      assert_true(oracle_get(&s->o, 0, n / 4 / s->o.len, n / 4 % s->o.len, n % 4) == 0);
      assert_true(oracle_get(&s->p.lse, 0, n / 4 / s->o.len, n / 4 % s->o.len, 0) ==
                  -(double)INFINITY);
    }
  }
}

void D8_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(8109);
  shape x = plain(2, 40, 50, 4, 6);
  static const int32_t beyond[1] = {51};
  scene *s = build(&x, &rng), keep = *s;
#define REJECT(change, status, word)                            \
  do {                                                          \
    change;                                                     \
    promise_reject(&s->does, status, word);                     \
    s->p = keep.p, s->q = keep.q, s->k = keep.k, s->v = keep.v; \
  } while (0)
  REJECT(s->p.block = -1, ATTN_E_RANGE, "block");
  REJECT(s->p.exact = -1, ATTN_E_RANGE, "exact");
  REJECT(s->p.first = -1, ATTN_E_RANGE, "first");
  REJECT(s->p.diagonal = -1, ATTN_E_RANGE, "diagonal");
  REJECT(s->p.scale = INFINITY, ATTN_E_VALUE, "scale");
  REJECT(s->p.kv_len = beyond, ATTN_E_RANGE, "kv_len");
  REJECT(s->p.q_len = beyond, ATTN_E_RANGE, "q_len");
  REJECT(s->k.dim = 3, ATTN_E_SHAPE, "k.dim");
  REJECT(s->v.len = 49, ATTN_E_SHAPE, "v.len");
  REJECT(s->q.data = NULL, ATTN_E_NULL, "q");
  REJECT(s->v = test_tensor(ATTN_E4M3, TEST_BHTD, 1, 2, 50, 6), ATTN_E_DTYPE, "v");
  REJECT(s->k = s->o; s->k.len = 50; s->k.dim = 4, ATTN_E_OVERLAP, "o");
#undef REJECT
}
