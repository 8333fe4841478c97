/* tests/families/selection/test_dsa.c owns attention to keys that an indexer chooses. */

#include "selected.h"

typedef struct dsa_call {
  selected_call c;
  attn_dsa_params p;
} dsa_call;

/* An indexer of hi heads and width di; whole: of whole numbers, many of whose scores are 0. */
static dsa_call dsa_of(selected_call c, int64_t k, int64_t hi, int64_t di, int whole,
                       attn_dtype type, test_rng *rng) {
  dsa_call m;
  const attn_tensor *q = &c.base.q;
  memset(&m, 0, sizeof m);
  m.c = c, m.p.k = k, m.p.attention = c.softmax;
  m.p.qi = drawn(type, TEST_BTHD, q->batch, hi, q->len, di, 1, rng);
  m.p.ki = drawn(type, TEST_PADDED, q->batch, 1, c.base.k.len, di, 1, rng);
  m.p.wi = drawn(type, TEST_BHTD, q->batch, 1, q->len, hi, 1, rng);
  attn_tensor *t[3] = {&m.p.qi, &m.p.ki, &m.p.wi};
  for (int n = 0; whole && n < 3; n++)
    for (int64_t x = 0; x < t[n]->batch * t[n]->heads * t[n]->len * t[n]->dim; x++)
      oracle_set(t[n], x / t[n]->dim / t[n]->len / t[n]->heads,
                 x / t[n]->dim / t[n]->len % t[n]->heads, x / t[n]->dim % t[n]->len, x % t[n]->dim,
                 (double)test_range(rng, -2, 2));
  m.p.index = selected_lists(q->batch * q->len * k);
  return m;
}

static attn_status dsa_call_of(void *scene, attn_ctx *ctx) {
  dsa_call *m = scene;
  return attn_dsa(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}
static size_t dsa_ask(void *scene, const attn_ctx *ctx) {
  dsa_call *m = scene;
  return attn_dsa_workspace(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}

static attn_report dsa_run(dsa_call *m) {
  attn_ctx ctx = test_ctx();
  const attn_status s = dsa_call_of(m, &ctx);
  if (s) fail_msg("attn_dsa: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

static void dsa_judge(const dsa_call *m, const float *by, double slack, const char *what) {
  const test_call *d = &m->c.base;
  const int64_t tq = d->q.len, tk = d->k.len;
  double *score = test_mem((size_t)tk * 8 + 8);
  unsigned char *may = test_mem((size_t)tk + 1);
  for (int64_t b = 0; b < d->q.batch; b++)
    for (int64_t i = 0; i < tq; i++) {
      const int64_t p = selected_position(&m->c, i), keys = selected_keys(&m->c, b);
      for (int64_t j = 0; j < tk; j++) {
        may[j] = j <= p && j < keys, score[j] = 0;
        for (int64_t h = 0; h < m->p.qi.heads; h++) {
          double x = 0;
          for (int64_t c = 0; c < m->p.qi.dim; c++)
            x += oracle_get(&m->p.qi, b, h, i, c) * oracle_get(&m->p.ki, b, 0, j, c);
          if (x > 0) score[j] += x * oracle_get(&m->p.wi, b, 0, i, h);
        }
        if (by) score[j] *= by[j];
      }
      selected_judge(m->p.index + (b * tq + i) * m->p.k, m->p.k, NULL, 0, score, may, tk, m->p.k,
                     slack, what);
    }
}

static void dsa_check(dsa_call *m, double slack, const char *what) {
  dsa_run(m);
  dsa_judge(m, NULL, slack, what);
  selected_attended(&m->c, m->p.index, 1, m->p.k, 1, what);
}

void M3_dsa_random(void **state) {
  (void)state;
  test_rng rng = test_seed(33100);
  static const int64_t heads[][2] = {{1, 1}, {4, 1}, {4, 2}, {70, 1}, {8, 2}};
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t *h = heads[n % 5], tk = test_range(&rng, 1, n % 4 || n % 5 == 3 ? 40 : 260);
    const int64_t tq = n % 3 ? test_range(&rng, 1, tk < 30 ? tk : 30) : 1;
    selected_call c =
        selected_of(1 + n % 2, h[0], h[1], tq, tk, test_range(&rng, 1, 20), (int)(n % 16), &rng);
    dsa_call m = dsa_of(c, test_range(&rng, 1, 20), test_range(&rng, 1, 4), test_range(&rng, 1, 12),
                        0, n % 4 == 1 ? ATTN_BF16 : ATTN_F32, &rng);
    dsa_check(&m, 1e-4, "random");
  }
}

/* Lists that are filled many times over, longer than a block, by tiles of heads and by rows. */
void M3_dsa_long(void **state) {
  (void)state;
  test_rng rng = test_seed(33200);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, n == 1 ? 2 : 8, n == 1 ? 2 : 1, n == 2 ? 2 : 130,
                                  n == 2 ? 2500 : 400, 8, 0, &rng);
    dsa_call m = dsa_of(c, n == 2 ? 1200 : 150, 3, 8, 0, ATTN_F32, &rng);
    dsa_check(&m, 1e-4, "long");
  }
}

/* Zeros are common: they go to the lower key. Weights of any sign, after the ReLU. */
void M3_dsa_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(33300);
  for (int64_t n = test_count(8, 4); n-- > 0; test_mem_release()) {
    selected_call c = selected_of(2, 2, 1, n % 3 ? 1 : 70, 150, 4, 0, &rng);
    dsa_call m =
        dsa_of(c, 5 + 9 * (n % 3), 1 + n % 3, 1 + n % 4, 1, n % 2 ? ATTN_F16 : ATTN_F32, &rng);
    dsa_check(&m, 0, "ties");
  }
}

void M3_dsa_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(33400);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    selected_call c = selected_of(2, n < 2 ? 8 : 2, 2, n % 2 ? 3 : 70, 70, 16,
                                  n % 2 ? SELECTED_LENGTHS : 0, &rng);
    dsa_call m = dsa_of(c, 70 + n, 2, 4, 0, ATTN_F32, &rng);
    dsa_run(&m);
    test_compare(&c.base, "all keys");
  }
  selected_call c = selected_of(1, 8, 1, 300, 300, 8, 0, &rng);
  dsa_call m = dsa_of(c, 10, 2, 4, 0, ATTN_F32, &rng);
  assert_int_equal(dsa_run(&m).pairs,
                   8 * (45 + 291 * 10)); /* min(i + 1, 10) keys of each row and head */
}

/* Rows alone or in parts have the bits of all rows. */
void M3_dsa_decode(void **state) {
  (void)state;
  enum { T = 150 };
  static const int32_t parts[] = {1, 2, 7, 65};
  test_rng rng = test_seed(33500);
  for (int g = 0; g < 2; g++) {
    selected_call c = selected_of(1, 8, g ? 8 : 2, T, T, 12, 0, &rng);
    dsa_call whole = dsa_of(c, 12, 3, 6, 0, ATTN_F32, &rng);
    dsa_run(&whole);
    for (int x = 0; x < 4; x++)
      for (int32_t i = 0, n; i < T; i += x == 0 ? 7 : n) {
        int32_t len;
        dsa_call m = whole;
        n = parts[x] < T - i ? parts[x] : T - i;
        m.c = selected_part(&c, i, n, &len);
        m.p.attention = m.c.softmax, m.p.index = selected_lists(n * 12);
        m.p.qi = test_rows(whole.p.qi, i, n), m.p.wi = test_rows(whole.p.wi, i, n);
        dsa_run(&m);
        selected_same_part(&m.c, &c, i, m.p.index, whole.p.index, 1, 12);
      }
  }
}

/* Latents: values are the beginning of their keys. Keys of the indexer of 8 bits, with a scale each. */
void M3_dsa_latent(void **state) {
  (void)state;
  test_rng rng = test_seed(33550);
  selected_call c = selected_of(1, 16, 1, 30, 90, 20, 0, &rng);
  c.base.v = c.base.k, c.base.v.dim = 15;
  c.base.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 16, 30, 15);
  dsa_call m = dsa_of(c, 17, 3, 8, 0, ATTN_F32, &rng);
  dsa_check(&m, 1e-4, "latents");
  signed char *x = test_mem(90 * 8);
  float *by = test_mem(90 * 4);
  attn_tensor codes = attn_bhtd(x, ATTN_I8, 1, 1, 90, 8);
  for (int j = 0; j < 90; j++) by[j] = 0.5f + 0.25f * (float)(j % 3);
  for (int j = 0; j < 720; j++) x[j] = (signed char)test_range(&rng, -3, 3);
  for (int64_t j = 0; j < 720; j++) oracle_set(&m.p.ki, 0, 0, j / 8, j % 8, x[j]);
  dsa_call q = m;
  q.p.ki = codes, q.p.ki_scales.scale = by, q.p.ki_scales.stride_len = 1;
  dsa_run(&q);
  q.p.ki = m.p.ki;
  dsa_judge(&q, by, 1e-4, "codes");
}

void M3_dsa_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(33600);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    selected_call c = selected_of(1, n % 2 ? 4 : 2, 1, 96, 96, 8, 0, &rng);
    dsa_call m = dsa_of(c, 9, 2, 4, 0, ATTN_F32, &rng);
    for (int64_t i = 32; i < 35; i++) {
      test_fill_row(c.base.v, 0, 0, i, NAN), test_fill_row(c.base.k, 0, 0, i, INFINITY);
      if (n > 1) test_fill_row(m.p.ki, 0, 0, i, NAN);
    }
    dsa_run(&m);
    for (int64_t r = 0; r < 96; r++) {
      int bad = 0;
      for (int e = 0; e < 9; e++) bad |= m.p.index[9 * r + e] >= 32 && m.p.index[9 * r + e] < 35;
      if (n > 1 && r > 12) assert_false(bad); /* others are numbers */
      for (int64_t x = 0; x < c.base.o.dim && !bad; x++) {
        const double y = oracle_get(&c.base.o, 0, 0, r, x);
        if (!(y - y == 0)) fail_msg("case %d: row %d has NaN", n, (int)r);
      }
    }
  }
}

void M3_dsa_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(33700);
  static const int64_t shape[][3] = {{0, 5, 3}, {5, 0, 3}, {0, 0, 3}};
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, 4, 1, shape[n][0], shape[n][1], shape[n][2], 0, &rng);
    dsa_call m = dsa_of(c, 4, 2, 3, 0, ATTN_F32, &rng);
    dsa_check(&m, 0, "empty");
  }
}

/* Rows of codes: what their numbers stand for, gathered for the heads that share them and one by one. */
void M3_dsa_quantised(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3, ATTN_I8};
  test_rng rng = test_seed(33650);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    selected_call c = selected_of(2, 8, n < 8 ? 1 : 4, n % 2 ? 30 : 2, 90, 40, 0, &rng);
    const attn_dtype type = types[n / 2 % 4];
    const selected_call d =
        selected_codes(&c, type, n % 8 > 3 ? 32 : 0, type != ATTN_E4M3 && n % 2);
    dsa_call plain = dsa_of(c, 13, 2, 4, 0, ATTN_F32, &rng), codes = plain;
    codes.c = d, codes.p.attention = d.softmax,
    codes.p.index = selected_lists(2 * c.base.q.len * 13);
    dsa_check(&plain, 1e-4, "plain");
    dsa_run(&codes);
    test_assert_same(d.base.o, c.base.o, "codes");
    test_assert_same(d.softmax.lse, c.softmax.lse, "LSE of codes");
    assert_memory_equal(plain.p.index, codes.p.index, (size_t)(2 * c.base.q.len * 13) * 4);
  }
}

void M3_dsa_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(33800);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    selected_call c =
        selected_of(2, 4, n ? 1 : 4, 70, 90, 9, SELECTED_HALF | SELECTED_LENGTHS, &rng);
    dsa_call m = dsa_of(c, 13, 2, 5, 0, ATTN_BF16, &rng);
    const int64_t lists = 2 * 70 * 13;
    attn_tensor list = attn_bhtd(m.p.index, ATTN_F32, 1, 1, 1, lists);
    promise p = {dsa_call_of, dsa_ask, &m, {&m.c.base.o, &list}, {{0}}, 0};
    p.block[0].data = m.c.base.o.data, p.block[0].size = (size_t)(2 * 4 * 70 * 12 * 4);
    p.block[1].data = (unsigned char *)m.p.index, p.block[1].size = (size_t)lists * 4;
    m.p.attention.lse = absent();
    promise_keep(&p);
  }
}

void M3_dsa_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(33900);
  selected_call c = selected_of(1, 2, 1, 6, 12, 4, 0, &rng);
  for (int n = 0; n < 11; n++) {
    attn_ctx ctx = test_ctx();
    dsa_call m = dsa_of(c, 4, 2, 4, 0, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    test_fill_value(c.base.o, 3);
    if (n == 0) m.p.k = 0, want = ATTN_E_RANGE;
    if (n == 1) m.p.qi.len = 5;
    if (n == 2) m.p.ki.dim = 3;
    if (n == 3) m.p.ki.heads = 2, m.p.ki.stride_head = 0;
    if (n == 4) m.p.wi.dim = 1;
    if (n == 5) m.p.index = (int32_t *)c.base.o.data, want = ATTN_E_OVERLAP;
    if (n == 6) m.p.wi = c.base.o, m.p.wi.heads = 1, m.p.wi.dim = 2, want = ATTN_E_OVERLAP;
    if (n == 7) m.p.qi = absent(), want = ATTN_E_NULL;
    if (n == 8) m.p.attention.scale = INFINITY, want = ATTN_E_VALUE;
    if (n == 9) m.p.ki.dtype = (attn_dtype)99, want = ATTN_E_DTYPE;
    if (n == 10) want = ATTN_E_NULL;
    const attn_status got = n < 10 ? dsa_call_of(&m, &ctx)
                                   : attn_dsa(c.base.o, c.base.q, c.base.k, c.base.v, NULL, &ctx);
    if (got != want) fail_msg("case %d: %d, %s", n, (int)got, ctx.reason ? ctx.reason : "");
    assert_non_null(ctx.reason);
    for (int64_t x = 0; x < 7; x++) assert_true(oracle_get(&c.base.o, 0, 1, 5, x) == 3);
  }
  test_mem_release();
}

/* One key of thousands: more of them than the room of a list has bits. */
void M3_dsa_few_of_many(void **state) {
  (void)state;
  test_rng rng = test_seed(33950);
  selected_call c = selected_of(1, 4, 1, 3, 4000, 3, 0, &rng);
  for (int64_t k = 1; k < 4; k += 2) {
    dsa_call m = dsa_of(c, k, 1, 3, 0, ATTN_F32, &rng);
    dsa_check(&m, 1e-4, "few of many");
  }
  test_mem_release();
}
