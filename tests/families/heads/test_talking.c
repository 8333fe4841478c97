/* tests/families/heads/test_talking.c owns talking heads: the formula in float64, what follows from it, and the promises
 * of the call. */

#include "talking.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_talking_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_talking(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_talking_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

static scene *build(const talking_shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(x->q_type, TEST_BTHD, x->batch, x->hk, x->tq, x->dk, 1.5, rng);
  s->k = drawn(x->kv_type, TEST_NEGATIVE, x->batch, x->k_heads, x->tk, x->dk, 1.5, rng);
  s->v = drawn(x->kv_type, TEST_PADDED, x->batch, x->v_heads, x->tk, x->dv, 1, rng);
  s->p.w_l = drawn(x->w_type, TEST_PADDED, 1, 1, x->hk, x->h, 0.8, rng);
  s->p.w_w = drawn(x->w_type, TEST_NEGATIVE, 1, 1, x->h, x->hv, 0.8, rng);
  s->o = output(x->o_type, TEST_PADDED, x->batch, x->hv, x->tq, x->dv, &s->does.block[0]);
  s->p.attention.lse = output(ATTN_F32, TEST_NEGATIVE, x->batch, x->h, x->tq, 1, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.attention.lse;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static void check(const scene *s, double tolerance, const char *what) {
  int64_t heads = s->p.w_l.dim, tk = s->k.len, dv = s->v.dim;
  const attn_tensor zero = talking_nothing(&s->q, &s->p);
  double *w = test_mem((size_t)(heads * tk + 1) * sizeof *w), *o = test_mem((size_t)dv * sizeof *o);
  for (int64_t n = 0; n < s->q.batch * s->q.len; n++) {
    int64_t b = n / s->q.len, i = n % s->q.len;
    for (int64_t h = 0; h < heads; h++) {
      double lse = talking_weights(&s->q, &s->k, &s->p, &zero, b, h, i, w + h * tk);
      if (!s->p.attention.lse.data) continue;
      value_check(oracle_get(&s->p.attention.lse, b, h, i, 0), lse, tolerance * fmax(1, fabs(lse)),
                  ATTN_F32, what, b, h, i, -1);
    }
    for (int64_t g = 0; g < s->o.heads; g++) {
      double size = 1; /* what sums of both signs are made of */
      for (int64_t c = 0; c < dv; c++) o[c] = 0;
      for (int64_t j = 0; j < tk; j++) {
        double u = 0;
        for (int64_t h = 0; h < heads; h++) {
          u += w[h * tk + j] * oracle_get(&s->p.w_w, 0, 0, h, g);
          size += fabs(w[h * tk + j] * oracle_get(&s->p.w_w, 0, 0, h, g));
        }
        for (int64_t c = 0; c < dv && u != 0; c++)
          o[c] += u * oracle_get(&s->v, b, head_of(&s->v, g, s->o.heads), j, c);
      }
      for (int64_t c = 0; c < dv; c++)
        value_check(oracle_get(&s->o, b, g, i, c), o[c], tolerance * 4 * size, s->o.dtype, what, b,
                    g, i, c);
    }
  }
}

static void run(scene *s, const char *what) {
  promise_run(&s->does);
  check(s, 2e-5, what);
}

/* Weights in which m[i][i] = x for all of a square. */
static void diagonal(attn_tensor w, double x) {
  test_fill_value(w, 0);
  for (int64_t i = 0; i < w.len && i < w.dim; i++) oracle_set(&w, 0, 0, i, i, x);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void I3_random(void **state) {
  (void)state;
  test_rng rng = test_seed(300);
  for (int64_t n = test_count(48, 12); n-- > 0; test_mem_release()) {
    int64_t kh = test_range(&rng, 1, 3), vh = test_range(&rng, 1, 3);
    int64_t tq = test_range(&rng, 1, n % 4 ? 24 : 150), tk = test_range(&rng, 1, n % 3 ? 40 : 300);
    talking_shape x = {test_range(&rng, 1, 2),
                       kh * test_range(&rng, 1, 2),
                       test_range(&rng, 1, 8),
                       vh * test_range(&rng, 1, 3),
                       kh,
                       vh,
                       tq,
                       tk,
                       test_range(&rng, 1, 12),
                       test_range(&rng, 1, 12),
                       n % 4 == 1 ? ATTN_F16 : ATTN_F32,
                       n % 5 == 1 ? ATTN_BF16 : ATTN_F32,
                       n % 4 == 2 ? ATTN_BF16 : ATTN_F32,
                       n % 6 == 3 ? ATTN_F16 : ATTN_F32,
                       0};
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    attn_sdpa_params *p = &s->p.attention;
    if (n % 5 == 4) p->lse = absent();
    if (n % 3 == 0) p->causal = 1;
    if (n % 6 == 5) p->has_q_off = 1, p->q_off = test_range(&rng, -5, 5);
    if (n % 7 == 2) p->scale = 0.3f;
    if (n % 4 == 3) p->window = attn_window_of(test_range(&rng, 1, 9), 0);
    if (n % 5 == 2) p->kv_len = test_lengths(x.batch, tk, &rng);
    if (n % 5 == 3) p->q_len = test_lengths(x.batch, tq, &rng);
    if (n % 4 == 2) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, x.batch, x.h, tq, tk, &rng);
    if (n % 8 == 1) p->mask = test_mask(ATTN_MASK_BITS, ATTN_F32, x.batch, x.h, tq, tk, &rng);
    if (n % 6 == 1) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, x.batch, x.h, tq, tk, &rng);
    if (n % 7 == 3) p->alibi = test_floats(x.h, 0.1, &rng);
    if (n % 7 == 5) {
      p->toeplitz.table = test_floats(x.h * 9, 1, &rng);
      p->toeplitz.len = 9, p->toeplitz.first = -4, p->toeplitz.heads = x.h;
    }
    run(s, "talking");
  }
}

/* More keys than weights wait for in memory. */
void I3_long(void **state) {
  (void)state;
  test_rng rng = test_seed(301);
  talking_shape x = talking_plain(2, 70, 2, 3, 330);
  for (int causal = 0; causal < 2; causal++) {
    scene *s = build(&x, &rng);
    s->p.attention.causal = causal;
    if (causal) test_left(&s->p.attention, 200);
    run(s, "long");
  }
}

/* Weights that mix nothing: attn_sdpa, also with a mask that says of the new tokens alone. */
void I3_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(302);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    talking_shape x = talking_plain(3, 3, 3, 70, n == 1 ? 70 : 200);
    scene *s = build(&x, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 70, x.dv);
    attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 70, 1);
    s->p.attention.causal = 1;
    if (n) {
      s->p.attention.mask_new = 1;
      do
        s->p.attention.mask =
            test_mask(n == 1 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32, 1, 3, 70, 70, &rng);
      while (s->p.attention.mask.k_len != 70);
    }
    diagonal(s->p.w_l, 1), diagonal(s->p.w_w, 1);
    promise_run(&s->does);
    attn_sdpa_params p = s->p.attention;
    p.lse = lse;
    assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
    test_assert_near(s->o, o, 1e-5, "identity");
    test_assert_near(s->p.attention.lse, lse, 1e-5, "identity");
  }
}

/* The terms that have arrays of the softmax heads: as attn_sdpa has them. */
void I3_terms(void **state) {
  (void)state;
  test_rng rng = test_seed(310);
  for (int n = 0; n < 4; n++) {
    talking_shape x = talking_plain(3, 3, 3, 70, 200);
    x.batch = 2;
    scene *s = build(&x, &rng);
    attn_sdpa_params *p = &s->p.attention;
    const int64_t rows = 2 * 3 * 70;
    float *w = test_floats(rows, 0.02, &rng), *b = test_floats(rows, 30, &rng);
    for (int64_t i = 0; i < rows; i++) w[i] = fabsf(w[i]), b[i] = -fabsf(b[i]);
    if (n == 0) p->t5.table = test_floats(32 * 3, 1, &rng), p->t5.bidirectional = 1;
    if (n == 1) p->parabola.w = w, p->parabola.bias = b;
    if (n == 2) p->gaussian.precision = w, p->gaussian.center = b;
    if (n == 3) { /* a table of each head, too short */
      p->toeplitz.table = test_floats(3 * 50, 1, &rng);
      p->toeplitz.len = 50, p->toeplitz.first = -40, p->toeplitz.heads = 3;
    }
    p->causal = n % 2, p->has_q_off = 1, p->q_off = 120;
    diagonal(s->p.w_l, 1), diagonal(s->p.w_w, 1);
    promise_run(&s->does);
    attn_ctx ctx = test_ctx();
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 70, x.dv);
    attn_sdpa_params same = *p;
    same.lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 70, 1);
    assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &same, &ctx), ATTN_OK);
    test_assert_near(s->o, o, 1e-5, "terms");
    test_assert_near(p->lse, same.lse, 1e-5, "terms");
  }
}

/* P_l moves score head c to softmax head c + 1, P_w moves that one to value head c + 2. */
/* A mask of the new tokens alone is the mask of all keys that allows the others. */
void I3_mask_of_new(void **state) {
  (void)state;
  test_rng rng = test_seed(3390);
  for (int64_t n = 0; n < 12; n++, test_mem_release()) {
    const int64_t tq = test_range(&rng, 1, 20), tk = tq + n * 13 - 1;
    talking_shape x = talking_plain(2, 3, 2, tq, tk > 0 ? tk : 1);
    scene *s = build(&x, &rng);
    attn_mask *m = &s->p.attention.mask;
    uint8_t *all = test_mem((size_t)(tq * s->k.len)), *some = test_mem((size_t)(tq * tq));
    for (int64_t i = 0; i < tq * tq; i++) some[i] = test_range(&rng, 0, 3) > 0;
    for (int64_t i = 0; i < tq * s->k.len; i++) {
      const int64_t c = i % s->k.len - (s->k.len - tq);
      all[i] = c < 0 || some[i / s->k.len * tq + c];
    }
    m->kind = ATTN_MASK_BOOL, m->batch = m->heads = 1, m->q_len = tq, m->k_len = s->k.len;
    m->data = all, m->stride_q = s->k.len;
    attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, tq, 5);
    promise_run(&s->does);
    test_copy(want, s->o);
    m->data = some, m->k_len = m->stride_q = tq, s->p.attention.mask_new = 1;
    promise_run(&s->does);
    test_assert_same(s->o, want, "a mask of new tokens");
    attn_ctx ctx = test_ctx();
    m->k_len = tq + 1;
    assert_int_equal(call(s, &ctx), ATTN_E_MASK);
    assert_true(ctx.reason && ctx.reason[0]);
  }
}

void I3_permutation(void **state) {
  (void)state;
  test_rng rng = test_seed(303);
  talking_shape x = talking_plain(3, 3, 3, 9, 20);
  x.v_heads = 1;
  scene *s = build(&x, &rng);
  diagonal(s->p.w_l, 1), diagonal(s->p.w_w, 1);
  promise_run(&s->does);
  attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 9, x.dv);
  test_copy(before, s->o);
  test_fill_value(s->p.w_l, 0), test_fill_value(s->p.w_w, 0);
  for (int64_t h = 0; h < 3; h++) {
    oracle_set(&s->p.w_l, 0, 0, h, (h + 1) % 3, 1);
    oracle_set(&s->p.w_w, 0, 0, h, (h + 1) % 3, 1);
  }
  promise_run(&s->does);
  for (int64_t h = 0; h < 3; h++)
    test_assert_near(test_one(s->o, 0, 1, (h + 2) % 3, 1), test_one(before, 0, 1, h, 1), 1e-6,
                     "moved");
}

void I3_zero(void **state) {
  (void)state;
  test_rng rng = test_seed(304);
  talking_shape x = talking_plain(2, 3, 2, 5, 17);
  scene *s = build(&x, &rng);
  test_fill_value(s->p.w_w, 0);
  promise_run(&s->does);
  attn_tensor none = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 5, x.dv);
  test_fill_value(none, 0);
  test_assert_near(s->o, none, 0, "P_w = 0");
  for (int64_t c = 0; c < 2; c++) oracle_set(&s->p.w_l, 0, 0, c, 1, 0); /* a column of P_l */
  diagonal(s->p.w_w, 0), oracle_set(&s->p.w_w, 0, 0, 1, 0, 1);
  run(s, "uniform");
  for (int64_t i = 0; i < 5; i++) {
    value_check(oracle_get(&s->p.attention.lse, 0, 1, i, 0), log(17), 1e-6, ATTN_F32, "uniform", 0,
                1, i, 0);
    for (int64_t c = 0; c < x.dv; c++) {
      double mean = 0;
      for (int64_t j = 0; j < 17; j++) mean += oracle_get(&s->v, 0, 0, j, c) / 17;
      value_check(oracle_get(&s->o, 0, 0, i, c), mean, 1e-5, ATTN_F32, "mean", 0, 0, i, c);
    }
  }
}

void I3_linear(void **state) {
  (void)state;
  test_rng rng = test_seed(305);
  talking_shape x = talking_plain(2, 4, 3, 7, 30);
  scene *s = build(&x, &rng);
  attn_tensor a = drawn(ATTN_F32, TEST_BHTD, 1, 1, 4, 3, 1, &rng), sum[3];
  attn_tensor b = drawn(ATTN_F32, TEST_BHTD, 1, 1, 4, 3, 1, &rng);
  for (int n = 0; n < 3; n++) {
    for (int64_t h = 0; h < 4; h++)
      for (int64_t g = 0; g < 3; g++)
        oracle_set(&s->p.w_w, 0, 0, h, g,
                   (n == 1 ? 0 : oracle_get(&a, 0, 0, h, g)) +
                       (n == 0 ? 0 : 2 * oracle_get(&b, 0, 0, h, g)));
    promise_run(&s->does);
    sum[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 7, x.dv);
    test_copy(sum[n], s->o);
  }
  for (int64_t n = 0; n < 3 * 7 * x.dv; n++) {
    int64_t h = n / x.dv / 7, i = n / x.dv % 7, c = n % x.dv;
    value_check(oracle_get(&sum[2], 0, h, i, c),
                oracle_get(&sum[0], 0, h, i, c) + oracle_get(&sum[1], 0, h, i, c), 1e-5, ATTN_F32,
                "linear", 0, h, i, c);
  }
}

/* Rows that one softmax head, or all of them, may not use. */
void I3_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(306);
  talking_shape x = talking_plain(2, 2, 3, 6, 4);
  scene *s = build(&x, &rng);
  uint8_t *mask = test_mem(2 * 6 * 4);
  memset(mask, 1, 2 * 6 * 4);
  memset(mask, 0, 4);     /* head 0, row 0 */
  memset(mask + 4, 0, 4); /* row 1, both */
  memset(mask + 6 * 4 + 4, 0, 4);
  s->p.attention.mask = attn_mask_bool(mask, 1, 2, 6, 4);
  run(s, "mask");
  for (int64_t c = 0; c < x.dv; c++) assert_true(oracle_get(&s->o, 0, 2, 1, c) == 0);
  s->p.attention.mask.kind = ATTN_MASK_NONE;
  s->p.attention.causal = 1; /* the first two rows see nothing */
  run(s, "causal");
  talking_shape none[] = {talking_plain(2, 2, 3, 6, 0), talking_plain(2, 2, 3, 0, 4),
                          talking_plain(1, 1, 1, 1, 1)};
  for (int n = 0; n < 3; n++) {
    s = build(&none[n], &rng);
    run(s, "extents");
  }
  none[1].batch = 0;
  s = build(&none[1], &rng);
  run(s, "no batch");
}

/* NaN and infinities in keys and values that nobody may see, and that some rows may. */
void I3_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(307);
  talking_shape x = talking_plain(2, 3, 2, 80, 80);
  for (int n = 0; n < 3; n++) {
    scene *s = build(&x, &rng);
    attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 80, x.dv);
    s->p.attention.causal = 1;
    promise_run(&s->does);
    test_copy(want, s->o);
    if (n == 0) test_fill_row(s->k, 0, 1, 40, NAN);
    if (n == 1) test_fill_row(s->v, 0, 1, 40, INFINITY);
    if (n == 2) test_fill_row(s->q, 0, 0, 40, NAN);
    promise_run(&s->does);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 80; i++) {
        double got = oracle_get(&s->o, 0, h, i, 0);
        int hit = n == 2 ? i == 40 : i >= 40 && (n == 0 || h == 1);
        assert_int_equal(got - got != 0, hit);
        if (!hit) assert_true(got == oracle_get(&want, 0, h, i, 0));
      }
    if (n == 2) continue;
    /* beyond kv_len */
    int32_t kv_len = 40;
    s->p.attention.kv_len = &kv_len, s->p.attention.causal = 0;
    run(s, "kv_len");
  }
}

void I3_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(308);
  talking_shape x = talking_plain(4, 3, 2, 140, 150);
  x.batch = 2, x.k_heads = 2, x.kv_type = ATTN_F16;
  scene *s = build(&x, &rng);
  s->p.attention.causal = 1;
  promise_keep(&s->does);
}

void I3_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(309);
  talking_shape x = talking_plain(4, 3, 2, 5, 6);
  scene *s = build(&x, &rng), was = *s;
  float number[8] = {0};
  int32_t bad = 7;
#define REJECT(change, status, word)          \
  do {                                        \
    change;                                   \
    promise_reject(&s->does, status, word);   \
    s->o = was.o, s->q = was.q, s->k = was.k; \
    s->v = was.v, s->p = was.p;               \
  } while (0)
  REJECT(s->p.w_l.len = 3, ATTN_E_SHAPE, "w_l");
  REJECT(s->p.w_l.dim = 2, ATTN_E_SHAPE, "w_w");
  REJECT(s->p.w_w.dim = 1, ATTN_E_SHAPE, "w_w");
  REJECT(s->p.w_l.data = NULL, ATTN_E_NULL, "w_l");
  REJECT(s->k.heads = 3, ATTN_E_HEADS, "k");
  REJECT(s->k.dim = 5, ATTN_E_SHAPE, "k");
  REJECT(s->v.len = 5, ATTN_E_SHAPE, "v");
  REJECT(s->p.attention.scale = NAN, ATTN_E_VALUE, "scale");
  REJECT(s->p.attention.softcap = 1, ATTN_E_RANGE, "softcap");
  REJECT(s->p.attention.softmax_one = 1, ATTN_E_RANGE, "softmax_one");
  REJECT(s->p.attention.sinks = number, ATTN_E_RANGE, "sinks");
  REJECT(s->p.attention.kv_len = &bad, ATTN_E_RANGE, "kv_len");
  REJECT(s->p.attention.q_len = &bad, ATTN_E_RANGE, "q_len");
  REJECT(s->p.attention.mask = attn_mask_bool((uint8_t *)number, 1, 4, 1, 1), ATTN_E_MASK, "mask");
  REJECT(s->q = s->o, ATTN_E_SHAPE, "");
  REJECT(s->k.dtype = ATTN_I8, ATTN_E_DTYPE, "k");
#undef REJECT
}
