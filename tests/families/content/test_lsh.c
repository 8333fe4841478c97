/* tests/families/content/test_lsh.c owns LSH attention against its definition in float64: ranks by counting, allowed
 * pairs round by round, one softmax over their union. */

#include <stdlib.h>

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v; /* k absent: shared */
  int32_t *q_place, *k_place;
  attn_lsh_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  if (s->k.data) return attn_lsh_qk(s->o, s->q, s->k, s->v, s->q_place, s->k_place, &s->p, ctx);
  return attn_lsh(s->o, s->q, s->v, s->k_place, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  if (s->k.data)
    return attn_lsh_qk_workspace(s->o, s->q, s->k, s->v, s->q_place, s->k_place, &s->p, ctx);
  return attn_lsh_workspace(s->o, s->q, s->v, s->k_place, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv; /* k_len 0: shared */
  attn_dtype type;
  test_layout layout;
} shape;

static shape plain(int64_t heads, int64_t len, int64_t dk, int64_t dv) {
  shape x = {1, heads, 1, heads, len, 0, dk, dv, ATTN_F32, TEST_BHTD};
  return x;
}

static int32_t *places(int64_t n, int64_t buckets, test_rng *rng) {
  int32_t *place = test_mem((size_t)(n + 1) * sizeof *place);
  for (int64_t i = 0; i < n; i++) place[i] = (int32_t)test_range(rng, 0, buckets - 1);
  return place;
}

static scene *build(const shape *x, int64_t rounds, int64_t buckets, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t keys = x->k_len ? x->k_len : x->q_len, units = x->batch * x->heads * rounds;
  s->q = drawn(x->type, x->layout, x->batch, x->heads, x->q_len, x->dk, 1, rng);
  if (x->k_len) {
    s->k = drawn(x->type, TEST_PADDED, x->batch, x->k_heads, keys, x->dk, 1, rng);
    s->q_place = places(units * x->q_len, buckets, rng);
  }
  s->v = drawn(x->type, x->layout, x->batch, x->v_heads, keys, x->dv, 1, rng);
  s->k_place = places(units * keys, buckets, rng);
  s->o = output(x->type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BTHD, x->batch, x->heads, x->q_len, 1, &s->does.block[1]);
  s->p.rounds = rounds, s->p.scale = 1;
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

/* ---- the definition -------------------------------------------------------------------------*/

static int exists(const scene *s, int64_t b, int64_t j) {
  const int64_t keys = s->k.data ? s->k.len : s->q.len;
  return (!s->p.kv_len || j < s->p.kv_len[b]) && (!s->p.valid || s->p.valid[b * keys + j]);
}

/* N_ij */
static int64_t rounds_of(const scene *s, const int32_t *q_place, const int32_t *k_place,
                         const int64_t *rank, int64_t m, int64_t chunks, int64_t i, int64_t j) {
  const attn_lsh_params *p = &s->p;
  const int64_t tq = s->q.len, tk = s->k.data ? s->k.len : tq;
  const int64_t before = p->has_before || p->before ? p->before : 1, after = p->after;
  int64_t n = 0;
  if (p->causal && j > i + tk - tq) return 0;
  for (int64_t r = 0; r < p->rounds; r++) {
    if (!p->across && q_place[r * tq + i] != k_place[r * tk + j]) continue;
    if (m > 0) {
      const int64_t away = rank[r * tk + j] / m - rank[r * tk + i] / m;
      int near = away >= -before && away <= after;
      for (int64_t d = -before; p->wrap && d <= after && d < 2 * chunks - before; d++)
        near |= (away - d) % chunks == 0; /* round the ring */
      if (!near) continue;
    }
    n++;
  }
  return n;
}

static void check(const scene *s, double tolerance, const char *what) {
  const attn_lsh_params *p = &s->p;
  const int shared = !s->k.data;
  const attn_tensor *k = shared ? &s->q : &s->k;
  const int64_t tq = s->q.len, tk = k->len, heads = s->q.heads, rounds = p->rounds;
  const double scale = scale_of(p->scale, s->q.dim);
  const double penalty = p->penalty != 0.0f ? (double)p->penalty : signbit(p->penalty) ? 0 : 1e5;
  int64_t m = shared ? p->chunk : 0;
  if (shared && p->chunk == 0 && !p->has_chunk) {
    const int64_t n = attn_lsh_buckets(tk, p);
    m = (2 * tk + n - 1) / n;
    if (m < 1) m = 1;
  }
  bag a = bag_of(tk, s->v.dim);
  int64_t *rank = test_mem((size_t)(rounds * tk + 1) * sizeof *rank);
  double *norm = test_mem((size_t)(tk + 1) * sizeof *norm);
  for (int64_t u = 0; u < s->q.batch * heads; u++) {
    const int64_t b = u / heads, h = u % heads, hv = head_of(&s->v, h, heads);
    const int32_t *k_place = s->k_place + u * rounds * tk;
    const int32_t *q_place = shared ? k_place : s->q_place + u * rounds * tq;
    for (int64_t j = 0; shared && j < tk; j++)
      norm[j] = fmax(sqrt(dot_rows(k, k, b, h, j, j)), 1e-6);
    for (int64_t n = 0; m > 0 && n < rounds * tk; n++) {
      const int32_t *place = k_place + n / tk * tk;
      rank[n] = 0;
      for (int64_t j = 0; j < tk; j++)
        rank[n] += exists(s, b, j) &&
                   (place[j] < place[n % tk] || (place[j] == place[n % tk] && j < n % tk));
    }
    int64_t there = 0;
    for (int64_t j = 0; j < tk; j++) there += exists(s, b, j);
    const int64_t chunks = m > 0 ? (there - 1) / m + 1 : 0;
    for (int64_t i = 0; i < tq; i++) {
      const int row = shared ? exists(s, b, i) : !p->q_len || i < p->q_len[b];
      bag_empty(&a);
      for (int64_t j = 0; row && j < tk; j++) {
        if (!exists(s, b, j) || (shared && i == j)) continue;
        const int64_t n = rounds_of(s, q_place, k_place, rank, m, chunks, i, j);
        if (n == 0) continue;
        double x = scale * dot_rows(&s->q, k, b, h, i, j) / (shared ? norm[j] : 1);
        if (p->keep_duplicates) x += log((double)n);
        bag_add(&a, x, &s->v, b, hv, j);
      }
      if (row && shared && (a.n == 0 || p->self == ATTN_LSH_SELF_PENALTY)) {
        double x = scale * dot_rows(&s->q, k, b, h, i, i) / norm[i];
        if (p->self == ATTN_LSH_SELF_PENALTY) x -= penalty;
        if (p->self == ATTN_LSH_SELF_PENALTY && p->keep_duplicates) x += log((double)rounds);
        bag_add(&a, x, &s->v, b, hv, i);
      }
      bag_close(&a);
      bag_check(&a, &s->o, &p->lse, b, h, i, tolerance, what);
    }
  }
}

/* ---- attention ------------------------------------------------------------------------------*/

static shape any_shape(test_rng *rng) {
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  shape x;
  x.batch = test_range(rng, 1, 2), x.v_heads = test_range(rng, 1, 2);
  x.heads = x.v_heads * test_range(rng, 1, 2), x.k_heads = 1;
  x.q_len = test_range(rng, 1, 50), x.k_len = 0;
  x.dk = test_range(rng, 1, 19), x.dv = test_range(rng, 1, 19);
  x.type = type[test_range(rng, 0, 3)];
  x.layout = (test_layout)test_range(rng, 0, 3);
  return x;
}

static void any_valid(scene *s, test_rng *rng) {
  const int64_t keys = s->k.data ? s->k.len : s->q.len;
  uint8_t *valid = test_mem((size_t)(s->q.batch * keys + 1));
  for (int64_t n = 0; n < s->q.batch * keys; n++) valid[n] = test_range(rng, 0, 3) ? 7 : 0;
  s->p.valid = valid;
}

static void any_rules(scene *s, int64_t t, test_rng *rng) {
  static const float scale[] = {0, 1, 2.5f, -0.7f, ATTN_ZERO};
  static const float penalty[] = {0, ATTN_ZERO, 1.5f, 1e5f};
  s->p.scale = scale[test_range(rng, 0, 4)];
  s->p.causal = (int)test_range(rng, 0, 1), s->p.keep_duplicates = (int)test_range(rng, 0, 1);
  if (!s->k.data) {
    s->p.self = test_range(rng, 0, 1) ? ATTN_LSH_SELF_PENALTY : ATTN_LSH_SELF_ALONE;
    s->p.penalty = penalty[test_range(rng, 0, 3)];
    s->p.chunk = t % 4 < 2 ? 0 : test_range(rng, 1, 12), s->p.has_chunk = t % 4 == 0;
    s->p.before = test_range(rng, -1, 3), s->p.after = test_range(rng, 0, 2);
    if (s->p.before < 0) s->p.has_before = 1, s->p.before = 0;
    if (!s->p.has_chunk) s->p.across = (int)test_range(rng, 0, 1);
    s->p.wrap = s->p.across && s->p.after % 2 == 0;
  }
  if (t % 3 == 0) any_valid(s, rng);
  if (t % 5 == 0) s->p.kv_len = test_lengths(s->q.batch, s->k.data ? s->k.len : s->q.len, rng);
  if (t % 5 == 1 && s->k.data) s->p.q_len = test_lengths(s->q.batch, s->q.len, rng);
}

/* The ring of chunks: the first look back to the last, the last ahead to the first, whatever the tiles. */
void D3_wrap(void **state) {
  (void)state;
  test_rng rng = test_seed(1391);
  for (int64_t t = 0; t < test_count(24, 8); t++, test_mem_release()) {
    shape x = any_shape(&rng);
    x.q_len = t % 2 ? test_range(&rng, 150, 420) : test_range(&rng, 1, 40);
    scene *s = build(&x, test_range(&rng, 1, 4), test_range(&rng, 1, 12), &rng);
    s->p.across = s->p.wrap = 1,
    s->p.chunk = t % 2 ? test_range(&rng, 1, 70) : test_range(&rng, 1, 9);
    s->p.before = t % 5 == 4 ? 0 : t % 3, s->p.has_before = t % 5 == 4, s->p.after = t % 4;
    s->p.causal = t % 6 == 5, s->p.keep_duplicates = t % 4 == 3;
    if (t % 7 == 3) any_valid(s, &rng);
    promise_run(&s->does);
    check(s, 3e-5, "a ring of chunks");
    if (t % 2 == 0 || s->p.has_before || s->p.causal) continue;
    attn_tensor ring =
        test_tensor(s->o.dtype, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
    test_copy(ring, s->o);
    s->p.wrap = 0;
    promise_run(&s->does);
    if (s->p.chunk * (2 + s->p.before + s->p.after) < s->o.len && !s->p.valid)
      assert_false(test_same(ring, s->o));
  }
}

void D3_shared(void **state) {
  (void)state;
  test_rng rng = test_seed(4010);
  int64_t count = test_count(120, 16);
  for (int64_t t = 0; t < count; t++) {
    shape x = any_shape(&rng);
    if (t % 10 == 9) x.batch = 1, x.q_len = test_range(&rng, 60, 200);
    const int64_t rounds = test_range(&rng, 1, 5);
    scene *s = build(&x, rounds, test_range(&rng, 1, 12), &rng);
    any_rules(s, t, &rng);
    promise_run(&s->does);
    check(s, 3e-6, "shared");
  }
}

void D3_apart(void **state) {
  (void)state;
  test_rng rng = test_seed(4011);
  int64_t count = test_count(80, 12);
  for (int64_t t = 0; t < count; t++) {
    shape x = any_shape(&rng);
    x.k_len = test_range(&rng, 1, 60);
    if (t % 10 == 9) x.batch = 1, x.q_len = test_range(&rng, 60, 200);
    if (t % 2) x.k_heads = x.heads;
    const int64_t rounds = test_range(&rng, 1, 5);
    scene *s = build(&x, rounds, test_range(&rng, 1, 12), &rng);
    any_rules(s, t, &rng);
    promise_run(&s->does);
    check(s, 3e-6, "apart");
  }
}

/* Several items of tiles, several blocks of keys, labels of more than one digit. */
void D3_large(void **state) {
  (void)state;
  test_rng rng = test_seed(4012);
  for (int t = 0; t < 6; t++) {
    shape x = plain(1, t == 5 ? 1100 : 330, 5, 3);
    if (t == 5 && test_fast) continue;
    scene *s = build(&x, t == 5 ? 2 : 3, t == 2 ? 2 : t == 5 ? 30 : 12, &rng);
    const int64_t all = s->p.rounds * x.q_len;
    s->p.chunk = t == 0 ? 64 : t == 1 ? 100 : t == 2 ? 0 : t == 3 ? 32 : 70;
    s->p.has_chunk = t == 2;
    if (t == 1) s->p.across = 1, s->p.after = 1;
    if (t == 3) s->p.causal = 1;
    if (t == 4) s->p.causal = s->p.across = 1;
    for (int64_t n = 0; t == 3 && n < all; n++) s->k_place[n] = s->k_place[n] * 170000000 + 5;
    for (int64_t n = 0; t == 4 && n < all; n++) s->k_place[n] *= 3001;
    promise_run(&s->does);
    check(s, 5e-6, "large");
  }
}

/* The example: buckets 1 0 1 0 0 1 and chunks of 2, seen through a scale of 0. */
void D3_example(void **state) {
  (void)state;
  static const int32_t place[6] = {1, 0, 1, 0, 0, 1};
  test_rng rng = test_seed(4013);
  shape x = plain(1, 6, 4, 6);
  scene *s = build(&x, 1, 2, &rng);
  memcpy(s->k_place, place, sizeof place);
  s->p.chunk = 2, s->p.scale = ATTN_ZERO;
  for (int64_t i = 0; i < 6; i++)
    for (int64_t c = 0; c < 6; c++) oracle_set(&s->v, 0, 0, i, c, i == c);
  promise_run(&s->does);
  check(s, 1e-6, "example");
  static const double rows[6][6] = {{1, 0, 0, 0, 0, 0}, {0, 0, 0, 1, 0, 0}, {1, 0, 0, 0, 0, 1},
                                    {0, 1, 0, 0, 0, 0}, {0, 1, 0, 1, 0, 0}, {1, 0, 1, 0, 0, 0}};
  for (int64_t i = 0; i < 6; i++) {
    double sum = 0;
    for (int64_t c = 0; c < 6; c++) sum += rows[i][c];
    for (int64_t c = 0; c < 6; c++)
      assert_true(fabs(oracle_get(&s->o, 0, 0, i, c) - rows[i][c] / sum) < 1e-6);
  }
}

/* Without buckets: those of the hash, bit for bit. */
void D3_chain(void **state) {
  (void)state;
  test_rng rng = test_seed(4014);
  for (int t = 0; t < 6; t++) {
    static const int32_t factors[2] = {2, 4};
    shape x = plain(4, 77, 7, 8);
    x.batch = 2, x.v_heads = 2, x.k_heads = 2;
    if (t == 3) x.type = ATTN_BF16;
    if (t >= 4) x.q_len = 40, x.k_len = 77;
    scene *s = build(&x, 3, 4, &rng), one;
    if (t % 2) s->p.factors = factors, s->p.factor_count = 2;
    if (t == 2) any_valid(s, &rng);
    s->p.seed = 5 + (uint64_t)t, s->p.heads = 4;
    attn_ctx ctx = test_ctx();
    attn_lsh_params p = s->p;
    int32_t n_b[1] = {(int32_t)attn_lsh_buckets(77, &s->p)};
    if (!p.factors) p.factors = n_b, p.factor_count = 1;
    if (t >= 4) assert_int_equal(attn_lsh_hash(s->q_place, s->q, &p, &ctx), ATTN_OK);
    assert_int_equal(attn_lsh_hash(s->k_place, t >= 4 ? s->k : s->q, &p, &ctx), ATTN_OK);
    promise_run(&s->does);
    check(s, 3e-6, "chain");
    one = *s;
    one.q_place = one.k_place = NULL;
    one.o = test_tensor(s->o.dtype, TEST_BHTD, 2, 4, s->o.len, 8);
    one.p.lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, s->o.len, 1);
    one.does.scene = &one, one.does.out[0] = &one.o, one.does.out[1] = &one.p.lse;
    promise_run(&one.does);
    test_assert_same(s->o, one.o, "chain");
    test_assert_same(s->p.lse, one.p.lse, "chain");
    if (t % 2 == 0) promise_keep(&one.does);
  }
}

static scene *again(const scene *s) {
  scene *y = test_mem(sizeof *y);
  *y = *s;
  y->o = test_tensor(s->o.dtype, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
  y->p.lse = test_tensor(ATTN_F32, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, 1);
  y->does.scene = y, y->does.out[0] = &y->o, y->does.out[1] = &y->p.lse;
  return y;
}
static void same(const scene *s, const scene *y, double tolerance, const char *what) {
  test_assert_near(s->o, y->o, tolerance, what);
  test_assert_near(s->p.lse, y->p.lse, tolerance, what);
}

void D3_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(4015);
  shape x = plain(2, 53, 6, 7);
  for (int causal = 0; causal < 2; causal++) {
    /* one bucket, or one chunk: full attention */
    scene *s = build(&x, 2, 1, &rng), *y;
    s->p.causal = causal, s->p.has_chunk = 1;
    promise_run(&s->does);
    y = again(s), y->p.chunk = 53;
    promise_run(&y->does);
    same(s, y, 2e-6, "one chunk");
    /* it is attention over x with unit keys and without the diagonal */
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 53, 6), o = y->o;
    for (int64_t n = 0; n < 106; n++) {
      const double norm = sqrt(dot_rows(&s->q, &s->q, 0, n / 53, n % 53, n % 53));
      for (int64_t c = 0; c < 6; c++)
        oracle_set(&k, 0, n / 53, n % 53, c, oracle_get(&s->q, 0, n / 53, n % 53, c) / norm);
    }
    uint8_t *mask = test_mem(53 * 53);
    for (int n = 0; n < 53 * 53; n++) mask[n] = n / 53 != n % 53 || (causal && n == 0);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.scale = 1, p.causal = causal, p.mask = attn_mask_bool(mask, 1, 1, 53, 53), p.lse = y->p.lse;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(o, s->q, k, s->v, &p, &ctx), ATTN_OK);
    same(s, y, 3e-6, "full attention");
  }
  /* a round that is repeated */
  scene *s = build(&x, 2, 5, &rng), *y;
  for (int64_t n = 0; n < 2 * 2 * 53; n++) s->k_place[n] = s->k_place[n / 106 * 106 + n % 53];
  s->p.chunk = 7;
  promise_run(&s->does);
  y = again(s), y->p.rounds = 1, y->k_place = test_mem(106 * sizeof(int32_t));
  for (int64_t n = 0; n < 106; n++) y->k_place[n] = s->k_place[n / 53 * 106 + n % 53];
  promise_run(&y->does);
  test_assert_same(s->o, y->o, "repeated");
  /* with all duplicates every score rises by ln 2: the same weights */
  y = again(s), y->p.keep_duplicates = 1;
  promise_run(&y->does);
  test_assert_near(s->o, y->o, 3e-6, "all twice");
  /* other names of the buckets, whole buckets */
  s = build(&x, 3, 5, &rng), s->p.has_chunk = 1;
  promise_run(&s->does);
  static const int32_t name[5] = {77777777, 0, 3000, 4, 2147483647};
  y = again(s), y->k_place = test_mem(2 * 3 * 53 * sizeof(int32_t));
  for (int64_t n = 0; n < 2 * 3 * 53; n++) y->k_place[n] = name[s->k_place[n]];
  promise_run(&y->does);
  same(s, y, 2e-6, "names");
  /* the paper's large penalty: the same outputs */
  s->p.chunk = y->p.chunk = 5, y->k_place = s->k_place, y->p.self = ATTN_LSH_SELF_PENALTY;
  promise_run(&s->does), promise_run(&y->does);
  test_assert_near(s->o, y->o, 2e-6, "penalty");
  /* tokens that do not exist are as good as not there */
  uint8_t *valid = test_mem(53);
  scene *z = test_mem(sizeof *z);
  int64_t n = 0;
  *z = *s;
  for (int64_t i = 0; i < 53; i++) n += valid[i] = i % 3 != 1;
  z->q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 6);
  z->v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 7);
  z->o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 7);
  z->p.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 1);
  z->k_place = test_mem((size_t)(6 * n) * sizeof(int32_t)), z->does.scene = z;
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0, e = 0; i < 53; i++) {
      if (!valid[i]) continue;
      test_copy(test_rows(test_one(z->q, 0, 1, h, 1), e, 1),
                test_rows(test_one(s->q, 0, 1, h, 1), i, 1));
      test_copy(test_rows(test_one(z->v, 0, 1, h, 1), e, 1),
                test_rows(test_one(s->v, 0, 1, h, 1), i, 1));
      for (int64_t r = 0; r < 3; r++)
        z->k_place[(h * 3 + r) * n + e] = s->k_place[(h * 3 + r) * 53 + i];
      e++;
    }
  s->p.valid = valid;
  for (int64_t i = 1; i < 53; i += 3) test_fill_row(s->q, 0, 0, i, (double)NAN);
  promise_run(&s->does), promise_run(&z->does);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0, e = 0; i < 53; i++) {
      if (valid[i])
        assert_true(test_same(test_rows(test_one(z->o, 0, 1, h, 1), e++, 1),
                              test_rows(test_one(s->o, 0, 1, h, 1), i, 1)));
      else
        assert_true(oracle_get(&s->o, 0, h, i, 3) == 0 &&
                    oracle_get(&s->p.lse, 0, h, i, 0) == -(double)INFINITY);
    }
}

/* Whole buckets, causal: outputs are those of a shorter sequence. */
void D3_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(4016);
  shape x = plain(1, 90, 6, 7);
  scene *s = build(&x, 2, 4, &rng), *y = again(s);
  s->p.has_chunk = y->p.has_chunk = 1, s->p.causal = y->p.causal = 1;
  promise_run(&s->does);
  y->q.len = y->v.len = y->o.len = y->p.lse.len = 40;
  y->k_place = test_mem(80 * sizeof(int32_t));
  for (int n = 0; n < 80; n++) y->k_place[n] = s->k_place[n / 40 * 90 + n % 40];
  promise_run(&y->does);
  test_assert_near(test_rows(s->o, 0, 40), y->o, 2e-6, "prefix");
}

void D3_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(4017);
  attn_ctx ctx = test_ctx();
  /* one token */
  shape x = plain(1, 1, 3, 4);
  scene *s = build(&x, 3, 2, &rng);
  promise_run(&s->does);
  check(s, 1e-6, "one token");
  test_assert_same(s->o, s->v, "one token");
  /* alone in one round, not in another */
  x = plain(1, 4, 3, 4), s = build(&x, 2, 1, &rng);
  for (int n = 0; n < 8; n++) s->k_place[n] = n < 4 ? n : n / 2;
  promise_run(&s->does);
  check(s, 1e-6, "alone once");
  for (int n = 0; n < 8; n++) s->k_place[n] = n % 4;
  promise_run(&s->does);
  test_assert_same(s->o, s->v, "all alone");
  check(s, 1e-6, "all alone");
  /* no token exists; one does */
  uint8_t valid[4] = {0, 0, 0, 0};
  s->p.valid = valid;
  promise_run(&s->does);
  check(s, 0, "none exists");
  valid[2] = 1;
  promise_run(&s->does);
  check(s, 1e-6, "one exists");
  /* zero vectors, tiny ones and huge ones */
  x = plain(1, 40, 5, 6), s = build(&x, 2, 3, &rng);
  test_fill_row(s->q, 0, 0, 3, 0), test_fill_row(s->q, 0, 0, 4, 1e-30);
  test_fill_row(s->q, 0, 0, 5, 1e-7), test_fill_row(s->q, 0, 0, 6, 1e18);
  s->p.scale = 1e-17f, s->p.chunk = 64;
  promise_run(&s->does);
  check(s, 3e-6, "zero vectors");
  test_fill_row(s->q, 0, 0, 6, 1e25);
  promise_run(&s->does);
  /* nothing to do */
  s->q.len = s->v.len = s->o.len = s->p.lse.len = 0;
  promise_run(&s->does);
  assert_int_equal(ask(s, &ctx), 0);
  /* huge numbers that mean: all */
  x = plain(1, 40, 5, 6), s = build(&x, 2, 3, &rng);
  s->p.chunk = INT64_MAX, s->p.before = INT64_MAX, s->p.after = INT64_MAX;
  promise_run(&s->does);
  check(s, 3e-6, "huge");
  s->p.chunk = 3;
  promise_run(&s->does);
  s->p.before = s->p.after = 1000;
  check(s, 3e-6, "huge");
  /* queries without any key, more queries than keys, causal */
  x.k_len = 9, s = build(&x, 2, 30, &rng), s->p.causal = 1;
  promise_run(&s->does);
  check(s, 3e-6, "more queries");
  s->k.len = s->v.len = 0;
  promise_run(&s->does);
  for (int64_t i = 0; i < 40; i++) assert_true(oracle_get(&s->o, 0, 0, i, 5) == 0);
}

/* NaN: no access out of bounds, another head does not notice. */
void D3_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(4018);
  for (int t = 0; t < 4; t++) {
    shape x = plain(2, 90, 6, 5);
    scene *s = build(&x, 3, 4, &rng), *clean = again(s);
    promise_run(&clean->does);
    if (t == 0) test_fill_row(s->q, 0, 1, 12, (double)NAN);
    if (t == 1) test_fill_row(s->v, 0, 1, 12, (double)NAN);
    if (t == 2) test_fill_row(s->q, 0, 1, 12, (double)INFINITY);
    if (t == 3) test_fill_value(test_one(s->q, 0, 1, 1, 1), (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_one(s->o, 0, 1, 0, 1), test_one(clean->o, 0, 1, 0, 1), "other head");
    s->k_place = NULL;
    promise_run(&s->does);
  }
}

/* A value that is not finite, or a key, spoils exactly the rows that see it. */
void D3_nan_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(4019);
  for (int t = 0; t < 24; t++) {
    shape x = plain(1, 150, 6, 5);
    x.type = t % 3 == 2 ? ATTN_F16 : ATTN_F32, x.k_len = t % 4 == 3 ? 140 : 0;
    scene *s = build(&x, 3, 6, &rng), *clean = again(s);
    s->p.has_chunk = t % 4 == 1 || x.k_len, s->p.chunk = s->p.has_chunk ? 0 : 16,
    s->p.causal = t / 4 % 2;
    s->p.across = t % 4 == 2, s->p.self = t % 4 ? ATTN_LSH_SELF_ALONE : ATTN_LSH_SELF_PENALTY;
    clean->p = s->p, clean->p.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 150, 1);
    promise_run(&clean->does);
    const int64_t j = 61 + t, tk = x.k_len ? x.k_len : 150;
    const int value = t / 8 % 2 == 0;
    if (value || x.k_len)
      test_fill_row(value ? s->v : s->k, 0, 0, j, t % 2 ? (double)NAN : -(double)INFINITY);
    else
      test_fill_row(s->q, 0, 0, j, (double)NAN);
    promise_run(&s->does);
    int64_t *rank = test_mem((size_t)(3 * tk) * sizeof *rank);
    for (int64_t n = 0; n < 3 * tk; n++) {
      const int32_t *place = s->k_place + n / tk * tk;
      rank[n] = 0;
      for (int64_t e = 0; e < tk; e++)
        rank[n] += place[e] < place[n % tk] || (place[e] == place[n % tk] && e < n % tk);
    }
    const int32_t *q_place = x.k_len ? s->q_place : s->k_place;
    const int64_t m = s->p.chunk;
    int64_t spoilt = 0;
    for (int64_t i = 0; i < 150; i++) {
      int sees = rounds_of(s, q_place, s->k_place, rank, m, 1, i, j) > 0;
      if (i == j && !x.k_len && s->p.self == ATTN_LSH_SELF_ALONE) {
        if (value) continue; /* alone or not */
        sees = 1;
      }
      spoilt += sees;
      if (!sees)
        test_assert_same(test_rows(s->o, i, 1), test_rows(clean->o, i, 1), "does not see it");
      else
        for (int64_t c = 0; c < 5; c++)
          assert_false(fabs(oracle_get(&s->o, 0, 0, i, c)) < (double)INFINITY);
      if (!sees || value)
        test_assert_same(test_rows(s->p.lse, i, 1), test_rows(clean->p.lse, i, 1), "LSE");
    }
    assert_true(spoilt > 0 && spoilt < 150);
  }
  /* alone with it: the one NaN */
  shape x = plain(1, 3, 4, 5);
  scene *s = build(&x, 1, 1, &rng);
  s->k_place[0] = 1, s->k_place[1] = 2, s->k_place[2] = 3;
  test_fill_row(s->q, 0, 0, 1, (double)INFINITY);
  promise_run(&s->does);
  uint32_t bits;
  memcpy(&bits, (const float *)s->p.lse.data + s->p.lse.stride_len, sizeof bits);
  assert_int_equal(bits, 0x7fc00000u);
}

/* ---- promises -------------------------------------------------------------------------------*/

void D3_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4020);
  for (int t = 0; t < 5; t++) {
    shape x = plain(2, t == 4 ? 1100 : 170, t == 4 ? 2 : 8, t == 4 ? 3 : 6);
    x.batch = 2, x.type = t % 2 ? ATTN_F16 : ATTN_F32, x.k_len = t == 3 ? 99 : 0;
    scene *s = build(&x, 3, 5, &rng);
    s->p.causal = t == 2;
    promise_keep(&s->does);
  }
}

void D3_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(4021);
  shape x = plain(4, 6, 5, 7);
  x.batch = 2;
  scene *s = build(&x, 2, 3, &rng), was = *s;
  x.k_len = 9;
  scene *y = build(&x, 2, 3, &rng), then = *y;
  int32_t less[2] = {-1, 6}, more[2] = {6, 10};
#define REJECTED(of, old, change, status, word) \
  do {                                          \
    change;                                     \
    promise_reject(&of->does, status, word);    \
    *of = old;                                  \
  } while (0)
#define SHARED(change, status, word) REJECTED(s, was, change, status, word)
#define APART(change, status, word) REJECTED(y, then, change, status, word)
  SHARED(s->p.rounds = -1, ATTN_E_RANGE, "rounds");
  SHARED(s->p.chunk = -1, ATTN_E_RANGE, "chunk");
  SHARED(s->p.before = -1, ATTN_E_RANGE, "before");
  SHARED(s->p.after = -1, ATTN_E_RANGE, "after");
  SHARED((s->p.across = 1, s->p.has_chunk = 1, s->p.chunk = 0), ATTN_E_RANGE, "across");
  SHARED((s->p.wrap = 1, s->p.across = 0), ATTN_E_RANGE, "wrap");
  SHARED(s->p.self = (attn_lsh_self)2, ATTN_E_RANGE, "self");
  SHARED(s->p.penalty = -1, ATTN_E_VALUE, "penalty");
  SHARED(s->p.penalty = (float)NAN, ATTN_E_VALUE, "penalty");
  SHARED(s->p.penalty = (float)INFINITY, ATTN_E_VALUE, "penalty");
  SHARED(s->p.scale = (float)NAN, ATTN_E_VALUE, "scale");
  SHARED(s->p.q_len = more, ATTN_E_RANGE, "q_len");
  SHARED(s->p.kv_len = less, ATTN_E_RANGE, "kv_len");
  SHARED(s->p.kv_len = more, ATTN_E_RANGE, "kv_len");
  SHARED(s->k_place[95] = -1, ATTN_E_INDEX, "buckets");
  s->k_place[95] = 0;
  SHARED(s->p.heads = -4, ATTN_E_RANGE, "heads");
  SHARED(s->v.heads = 3, ATTN_E_HEADS, "v must");
  SHARED(s->v.len = 5, ATTN_E_SHAPE, "v must");
  SHARED(s->v.batch = 1, ATTN_E_SHAPE, "v must");
  SHARED(s->o.dim = 6, ATTN_E_SHAPE, "o must");
  SHARED(s->o.heads = 2, ATTN_E_SHAPE, "o must");
  SHARED(s->p.lse.len = 5, ATTN_E_SHAPE, "lse");
  SHARED(s->p.lse.dtype = ATTN_F16, ATTN_E_DTYPE, "lse");
  SHARED(s->q.heads = 0, ATTN_E_SHAPE, "heads");
  SHARED(s->q.dim = 0, ATTN_E_SHAPE, "x.dim");
  SHARED(s->q.data = NULL, ATTN_E_NULL, "x.data");
  SHARED(s->v.data = NULL, ATTN_E_NULL, "v.data");
  SHARED(s->o.data = NULL, ATTN_E_NULL, "o.data");
  SHARED(s->q.dtype = ATTN_I8, ATTN_E_DTYPE, "x.dtype");
  SHARED(s->o.stride_len = 2, ATTN_E_STRIDE, "o ");
  SHARED(s->v.data = s->o.data, ATTN_E_OVERLAP, "o ");
  SHARED(s->k_place = s->o.data, ATTN_E_OVERLAP, "o ");
  SHARED(s->p.valid = s->o.data, ATTN_E_OVERLAP, "o ");
  SHARED(s->p.kv_len = s->o.data, ATTN_E_OVERLAP, "o ");
  SHARED(s->p.lse.data = s->o.data, ATTN_E_OVERLAP, "o ");
  SHARED(s->p.valid = (const uint8_t *)s->p.lse.data, ATTN_E_OVERLAP, "lse");
  SHARED(s->k_place = (int32_t *)(void *)((char *)s->k_place + 2), ATTN_E_ALIGN, "buckets");
  APART(y->p.chunk = 4, ATTN_E_RANGE, "chunk");
  APART(y->p.across = 1, ATTN_E_RANGE, "across");
  APART(y->p.self = ATTN_LSH_SELF_PENALTY, ATTN_E_RANGE, "self");
  APART(y->p.q_len = less, ATTN_E_RANGE, "q_len");
  APART(y->p.kv_len = more, ATTN_E_RANGE, "kv_len");
  APART(y->q_place[3] = -7, ATTN_E_INDEX, "buckets");
  y->q_place[3] = 0;
  APART(y->q_place = NULL, ATTN_E_NULL, "together");
  APART(y->k_place = NULL, ATTN_E_NULL, "together");
  APART(y->k.heads = 3, ATTN_E_HEADS, "k must");
  APART(y->k.dim = 4, ATTN_E_SHAPE, "k must");
  APART(y->k.batch = 1, ATTN_E_SHAPE, "k must");
  APART(y->v.len = 6, ATTN_E_SHAPE, "v must");
  APART(y->o.len = 9, ATTN_E_SHAPE, "o must");
#undef APART
#undef SHARED
#undef REJECTED
}
