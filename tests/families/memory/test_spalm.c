/* tests/families/memory/test_spalm.c owns SPALM: attention over retrieved vectors, its gate, its distribution. */

#include "compound.h"

typedef struct scene {
  attn_tensor z, h, y;
  attn_spalm_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_spalm(s->z, s->h, s->y, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_spalm_workspace(s->z, s->h, s->y, &s->p, ctx);
}

typedef struct shape {
  int64_t n, k, dim, rows, words; /* rows > 0: picked by index; words > 0: with log_p */
  attn_dtype type;
  int valid;
} shape;

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  double size = 1 / sqrt(sqrt((double)x->dim));
  s->h = drawn(x->type, TEST_PADDED, 1, 1, x->n, x->dim, size, rng);
  s->y = x->rows ? drawn(x->type, TEST_NEGATIVE, 1, 1, x->rows, x->dim, size, rng)
                 : drawn(ATTN_F32, TEST_PADDED, 1, x->n, x->k, x->dim, size, rng);
  if (x->rows) {
    int32_t *index = test_mem((size_t)(x->n * x->k + 1) * sizeof *index);
    for (int64_t e = 0; e < x->n * x->k; e++) index[e] = (int32_t)test_range(rng, -1, x->rows - 1);
    s->p.index = index, s->p.k = x->k == 4 ? 0 : x->k;
  }
  if (x->valid) {
    uint8_t *valid = test_mem((size_t)(x->n * x->k + 1));
    for (int64_t e = 0; e < x->n * x->k; e++) valid[e] = (uint8_t)test_range(rng, 0, 2);
    s->p.valid = valid;
  }
  s->p.w_g = test_floats(x->dim, 0.4, rng), s->p.b_g = (float)test_normal(rng);
  s->z = output(x->type, TEST_PADDED, 1, 1, x->n, x->dim, &s->does.block[0]);
  s->p.gate = output(ATTN_F32, TEST_PADDED, 1, 1, x->n, 1, &s->does.block[1]);
  s->does.out[0] = &s->z, s->does.out[1] = &s->p.gate;
  if (x->words) {
    s->p.emb = drawn(x->type, TEST_PADDED, 1, 1, x->words, x->dim, size, rng);
    s->p.log_p = output(ATTN_F32, TEST_NEGATIVE, 1, 1, x->n, x->words, &s->does.block[2]);
    s->does.out[2] = &s->p.log_p;
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  return s;
}

static int64_t entries(const scene *s) { return !s->p.index ? s->y.len : s->p.k ? s->p.k : 4; }

/* The row of y of entry i of position t, -1 = it is not there. */
static int64_t row_of(const scene *s, int64_t t, int64_t i) {
  int64_t k = entries(s);
  if (s->p.valid && !s->p.valid[t * k + i]) return -1;
  return s->p.index ? s->p.index[t * k + i] : i;
}

static void check(const scene *s, double tolerance, const char *what) {
  int64_t k = entries(s), d = s->h.dim;
  double scale = s->p.scale != 0 ? (double)s->p.scale : signbit(s->p.scale) ? 0 : 1;
  double *x = test_mem((size_t)(k + 1) * sizeof *x), *z = test_mem((size_t)d * sizeof *z);
  for (int64_t t = 0; t < s->h.len; t++) {
    double top = -(double)INFINITY, sum = 0, g = (double)s->p.b_g;
    int64_t at = s->p.index ? 0 : t;
    for (int64_t i = 0; i < k; i++) {
      if (row_of(s, t, i) < 0) continue;
      x[i] = 0;
      for (int64_t c = 0; c < d; c++)
        x[i] +=
            scale * oracle_get(&s->y, 0, at, row_of(s, t, i), c) * oracle_get(&s->h, 0, 0, t, c);
      top = fmax(top, x[i]);
    }
    for (int64_t i = 0; i < k; i++)
      if (row_of(s, t, i) >= 0) sum += exp(x[i] - top);
    for (int64_t c = 0; c < d; c++)
      if (s->p.w_g) g += (double)s->p.w_g[c] * oracle_get(&s->h, 0, 0, t, c);
    g = sum > 0 ? 1 / (1 + exp(-g)) : 1;
    for (int64_t c = 0; c < d; c++) {
      double m = 0;
      for (int64_t i = 0; i < k; i++)
        if (row_of(s, t, i) >= 0)
          m += exp(x[i] - top) / sum * oracle_get(&s->y, 0, at, row_of(s, t, i), c);
      z[c] = (1 - g) * m + g * oracle_get(&s->h, 0, 0, t, c);
      value_check(oracle_get(&s->z, 0, 0, t, c), z[c], tolerance, s->z.dtype, what, 0, 0, t, c);
    }
    if (s->p.gate.data)
      value_check(oracle_get(&s->p.gate, 0, 0, t, 0), g, 1e-6, ATTN_F32, "gate", 0, 0, t, 0);
    if (!s->p.log_p.data) continue;
    double most = -(double)INFINITY, all = 0;
    double *logit = test_mem((size_t)s->p.emb.len * sizeof *logit);
    for (int64_t w = 0; w < s->p.emb.len; w++) {
      logit[w] = 0;
      for (int64_t c = 0; c < d; c++) logit[w] += z[c] * oracle_get(&s->p.emb, 0, 0, w, c);
      most = fmax(most, logit[w]);
    }
    for (int64_t w = 0; w < s->p.emb.len; w++) all += exp(logit[w] - most);
    for (int64_t w = 0; w < s->p.emb.len; w++)
      value_check(oracle_get(&s->p.log_p, 0, 0, t, w), logit[w] - most - log(all), tolerance * 10,
                  ATTN_F32, "log_p", 0, 0, t, w);
  }
}

void J4_random(void **state) {
  (void)state;
  test_rng rng = test_seed(401);
  for (int64_t n = test_count(40, 10); n > 0; n--) {
    shape x = {test_range(&rng, 1, n % 5 ? 9 : 70),
               n % 4 ? test_range(&rng, 0, 20) : 4,
               test_range(&rng, 1, 70),
               n % 2 ? test_range(&rng, 1, 40) : 0,
               n % 3 ? 0 : test_range(&rng, 1, 300),
               (attn_dtype)test_range(&rng, 0, 2),
               n % 3 == 1};
    scene *s = build(&x, &rng);
    if (n % 6 == 0) s->p.w_g = NULL;
    if (n % 6 == 1) s->p.scale = -0.3f;
    if (n % 6 == 2) s->p.scale = ATTN_ZERO;
    promise_run(&s->does);
    check(s, 1e-5, "random");
  }
}

/* Without an entry z is h and g is 1; what is not valid is not read. */
void J4_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(402);
  shape none = {7, 0, 20, 0, 0, ATTN_F32, 0}, some = {7, 5, 20, 0, 0, ATTN_F32, 1};
  scene *s = build(&none, &rng);
  promise_run(&s->does);
  test_assert_same(s->z, s->h, "no entries");
  s = build(&some, &rng);
  uint8_t *valid = test_mem(35);
  memset(valid, 0, 35);
  valid[3 * 5 + 1] = valid[3 * 5 + 4] = 1;
  s->p.valid = valid;
  for (int64_t t = 0; t < 7; t++) {
    for (int64_t i = 0; i < 5; i++)
      if (!valid[t * 5 + i]) test_fill_row(s->y, 0, t, i, (double)NAN);
  }
  promise_run(&s->does);
  for (int64_t t = 0; t < 7; t++) {
    if (t == 3) continue;
    test_assert_same(test_rows(s->z, t, 1), test_rows(s->h, t, 1), "no valid entry");
    assert_true(oracle_get(&s->p.gate, 0, 0, t, 0) == 1);
  }
  check(s, 1e-5, "two valid entries");
  shape empty = {0, 3, 4, 0, 5, ATTN_F32, 0};
  promise_run(&build(&empty, &rng)->does);
}

/* y = h gives h; a wide gate gives h or m; the order of the entries does not matter; large h. */
void J4_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(403);
  shape x = {6, 8, 24, 0, 0, ATTN_F32, 0};
  scene *s = build(&x, &rng);
  for (int64_t t = 0; t < 6; t++)
    for (int64_t i = 0; i < 8; i++)
      for (int64_t c = 0; c < 24; c++) oracle_set(&s->y, 0, t, i, c, oracle_get(&s->h, 0, 0, t, c));
  promise_run(&s->does);
  test_assert_near(s->z, s->h, 1e-6, "y = h");

  s = build(&x, &rng);
  s->p.w_g = NULL, s->p.b_g = 200;
  promise_run(&s->does);
  test_assert_same(s->z, s->h, "g = 1");
  s->p.b_g = -200;
  promise_run(&s->does);
  for (int64_t t = 0; t < 6; t++) assert_true(oracle_get(&s->p.gate, 0, 0, t, 0) < 1e-30);
  check(s, 1e-5, "g = 0");

  s->p.b_g = 0.3f;
  promise_run(&s->does);
  scene *turned = test_mem(sizeof *turned);
  *turned = *s;
  turned->y = test_tensor(ATTN_F32, TEST_BHTD, 1, 6, 8, 24);
  turned->z = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, 24);
  for (int64_t i = 0; i < 8; i++)
    test_copy(test_rows(turned->y, (i * 3 + 5) % 8, 1), test_rows(s->y, i, 1));
  attn_ctx ctx = test_ctx();
  assert_int_equal(call(turned, &ctx), ATTN_OK);
  test_assert_near(turned->z, s->z, 1e-6, "order of the entries");

  s = build(&x, &rng);
  for (int64_t t = 0; t < 6; t++) test_fill_row(s->h, 0, 0, t, 3e4);
  s->p.w_g = NULL;
  promise_run(&s->does);
  for (int64_t t = 0; t < 6; t++) assert_true(isfinite(oracle_get(&s->z, 0, 0, t, 0)));
}

void J4_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(404);
  shape x = {140, 5, 19, 0, 150, ATTN_F16, 1}, y = {3, 6, 8, 9, 0, ATTN_F32, 0};
  promise_keep(&build(&x, &rng)->does);
  promise_keep(&build(&y, &rng)->does);
}

void J4_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(405);
  shape x = {5, 4, 8, 0, 12, ATTN_F32, 1}, y = {5, 3, 8, 9, 0, ATTN_F32, 0};
  scene *s = build(&x, &rng), was = *s;
  int32_t low[15] = {-2}, high[15] = {9};
#define REJECTED(change, status, word)      \
  do {                                      \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  } while (0)
  REJECTED(s->p.k = -1, ATTN_E_SHAPE, "k");
  REJECTED(s->p.k = 3, ATTN_E_SHAPE, "k");
  REJECTED(s->y.dim = 7, ATTN_E_SHAPE, "y");
  REJECTED(s->y.heads = 4, ATTN_E_SHAPE, "y");
  REJECTED(s->z.dim = 9, ATTN_E_SHAPE, "z");
  REJECTED(s->h.heads = 2, ATTN_E_SHAPE, "h");
  REJECTED(s->h.data = NULL, ATTN_E_NULL, "h");
  REJECTED(s->p.emb.dim = 7, ATTN_E_SHAPE, "emb");
  REJECTED(s->p.emb = absent(), ATTN_E_SHAPE, "emb");
  REJECTED(s->p.log_p = absent(), ATTN_E_SHAPE, "emb");
  REJECTED(s->p.log_p.dtype = ATTN_BF16, ATTN_E_DTYPE, "log_p");
  REJECTED(s->p.log_p.dim = 11, ATTN_E_SHAPE, "log_p");
  REJECTED(s->p.b_g = INFINITY, ATTN_E_VALUE, "b_g");
  REJECTED(s->p.scale = NAN, ATTN_E_VALUE, "scale");
  REJECTED(s->z.stride_len = 3, ATTN_E_STRIDE, "z");
  REJECTED(s->z = s->h, ATTN_E_OVERLAP, "z");
  REJECTED(s->p.w_g = s->z.data, ATTN_E_OVERLAP, "z");
  s = build(&y, &rng), was = *s;
  REJECTED(s->p.index = low, ATTN_E_INDEX, "index");
  REJECTED(s->p.index = high, ATTN_E_INDEX, "index");
#undef REJECTED
}
