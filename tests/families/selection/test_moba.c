/* tests/families/selection/test_moba.c owns mixtures of block attention, and the means of blocks. */

#include "selected.h"

typedef struct moba_call {
  selected_call c;
  attn_moba_params p;
} moba_call;

static moba_call moba_of(selected_call c, int64_t block, int64_t k) {
  moba_call m;
  memset(&m, 0, sizeof m);
  m.c = c, m.p.block = block, m.p.k = k, m.p.attention = c.softmax;
  m.p.index = selected_lists(c.base.q.batch * c.base.q.heads * c.base.q.len * k);
  return m;
}

static attn_status moba_call_of(void *scene, attn_ctx *ctx) {
  moba_call *m = scene;
  return attn_moba(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}
static size_t moba_ask(void *scene, const attn_ctx *ctx) {
  moba_call *m = scene;
  return attn_moba_workspace(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}

static attn_report moba_run(moba_call *m) {
  attn_ctx ctx = test_ctx();
  const attn_status s = moba_call_of(m, &ctx);
  if (s) fail_msg("attn_moba: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

/* The choice by the definition. */
static void moba_judge(const moba_call *m, double slack, const char *what) {
  const test_call *d = &m->c.base;
  const int64_t tq = d->q.len, size = m->p.block, candidates = d->k.len / size + 1;
  double *score = test_mem((size_t)candidates * 8);
  unsigned char *may = test_mem((size_t)candidates);
  for (int64_t b = 0; b < d->q.batch; b++)
    for (int64_t h = 0; h < d->q.heads; h++)
      for (int64_t i = 0; i < tq; i++) {
        const int64_t p = selected_position(&m->c, i), keys = selected_keys(&m->c, b);
        const int64_t blocks = (keys + size - 1) / size, own = p < 0 ? -1 : p / size;
        for (int64_t j = 0; j < candidates; j++) {
          const int64_t from = j * size, to = keys < from + size ? keys : from + size;
          may[j] = j < own && j < blocks, score[j] = 0;
          for (int64_t x = from; may[j] && x < to; x++)
            score[j] += dot_rows(&d->q, &d->k, b, h, i, x) / (double)(to - from);
        }
        selected_judge(m->p.index + ((b * d->q.heads + h) * tq + i) * m->p.k, m->p.k, &own,
                       own >= 0 && own < blocks, score, may, candidates, m->p.k - (own >= blocks),
                       slack, what);
      }
}

static void moba_check(moba_call *m, double slack, const char *what) {
  moba_run(m);
  moba_judge(m, slack, what);
  selected_attended(&m->c, m->p.index, m->c.base.q.heads, m->p.k, m->p.block, what);
}

void M3_moba_random(void **state) {
  (void)state;
  test_rng rng = test_seed(30100);
  static const int64_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}, {6, 2}};
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t *h = heads[n % 5], tk = test_range(&rng, 1, n % 4 ? 60 : 300);
    const int64_t tq = n % 3 ? test_range(&rng, 1, tk) : test_range(&rng, 1, 7);
    selected_call c =
        selected_of(1 + n % 2, h[0], h[1], tq, tk, test_range(&rng, 1, 20), (int)(n % 16), &rng);
    moba_call m = moba_of(c, test_range(&rng, 1, n % 2 ? 9 : 40), test_range(&rng, 1, 6));
    moba_check(&m, 1e-4, "random");
  }
}

/* Several tiles, blocks past the marks of 128 and 1024 keys, rows of a chunk that wait more than once. */
void M3_moba_long(void **state) {
  (void)state;
  test_rng rng = test_seed(30200);
  static const int64_t shape[][4] = {
      {1100, 1100, 130, 4}, {70, 2300, 1030, 2}, {3, 700, 64, 5}, {1300, 1310, 17, 7}};
  for (int n = 0; n < 4; n++, test_mem_release()) {
    if (test_fast && n == 3) continue;
    selected_call c =
        selected_of(1, n == 2 ? 4 : 1, n == 2 ? 2 : 1, shape[n][0], shape[n][1], 8, 0, &rng);
    moba_call m = moba_of(c, shape[n][2], shape[n][3]);
    moba_check(&m, 1e-4, "long");
  }
}

/* Whole numbers and blocks of powers of two: equal scores are equal, and go to the lower block. */
void M3_moba_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(30300);
  for (int64_t n = test_count(8, 4); n-- > 0; test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, 70, 90, 2 + n % 3, n & SELECTED_HALF, &rng);
    selected_whole(&c, &rng);
    moba_call m = moba_of(c, n % 2 ? 2 : 4, 2 + n % 4);
    moba_check(&m, 0, "ties");
  }
}

/* All blocks are causal attention; one block is the own one. What is computed follows what was chosen. */
void M3_moba_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(30400);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    selected_call c = selected_of(2, 4, 2, n % 2 ? 5 : 200, 200, 16, n & SELECTED_LENGTHS, &rng);
    moba_call m = moba_of(c, 32, 7 + n);
    moba_run(&m);
    test_compare(&c.base, "all blocks");
    moba_call one = moba_of(c, 32, 1);
    moba_run(&one);
    for (int64_t r = 0; r < 8 * c.base.q.len; r++) {
      const int64_t own = selected_position(&c, r % c.base.q.len) / 32,
                    keys = selected_keys(&c, r / 4 / c.base.q.len);
      assert_int_equal(one.p.index[r], own * 32 < keys ? own : -1);
    }
    selected_attended(&c, one.p.index, 4, 1, 32, "own block");
  }
  selected_call c = selected_of(1, 1, 1, 2048, 2048, 8, 0, &rng);
  moba_call m = moba_of(c, 128, 3);
  const attn_report r = moba_run(&m);
  /* 2048 rows, 2 blocks of others, the own one by half and the corners of its groups; rows of a tile that none is in */
  assert_true(r.pairs <= 2048 * (2 * 128 + 64 + 16));
}

/* The own block alone is attention in chunks, by a schedule of them. */
void M3_moba_chunked(void **state) {
  (void)state;
  test_rng rng = test_seed(30420);
  static const int64_t blocks[] = {1, 7, 16, 64, 100, 128, 130, 300};
  static const int64_t extents[][2] = {{259, 259}, {70, 259}, {5, 131}};
  for (int n = 0; n < 24; n++, test_mem_release()) {
    const int64_t tq = extents[n % 3][0], tk = extents[n % 3][1], block = blocks[n / 3];
    selected_call c =
        selected_of(2, 4, n % 2 ? 1 : 4, tq, tk, 16, n % 4 == 3 ? SELECTED_LENGTHS : 0, &rng);
    moba_call m = moba_of(c, block, 1);
    const attn_pattern chunks = attn_pattern_chunked(block);
    attn_schedule schedule = {0};
    test_call dense = test_again(&c.base);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_schedule_build(&schedule, &chunks, 4, tq, tk, NULL, &ctx), ATTN_OK);
    dense.params.schedule = &schedule, dense.params.causal = 0;
    test_run(&dense);
    attn_schedule_free(&schedule);
    moba_run(&m);
    test_assert_near(c.base.o, dense.o, 2e-6, "chunks");
    test_assert_near(c.softmax.lse, dense.params.lse, 2e-6, "LSE of chunks");
  }
}

/* Two thousand blocks of one row, values of mean one: nothing is lost where blocks are joined. */
void M3_moba_accuracy(void **state) {
  (void)state;
  enum { T = 8192 };
  test_rng rng = test_seed(30450);
  selected_call c = selected_of(1, 1, 1, 2, T, 8, 0, &rng);
  for (int64_t j = 0; j < T; j++)
    for (int64_t e = 0; e < c.base.v.dim; e++)
      oracle_set(&c.base.v, 0, 0, j, e, 1 + 0.25 * oracle_get(&c.base.v, 0, 0, j, e));
  moba_call m = moba_of(c, 4, T / 4);
  moba_run(&m);
  for (int64_t i = 0; i < 2; i++) {
    bag a = bag_of(T, c.base.v.dim);
    for (int64_t j = 0; j < T - 1 + i; j++)
      bag_add(&a, dot_rows(&c.base.q, &c.base.k, 0, 0, i, j) / sqrt(8.0), &c.base.v, 0, 0, j);
    bag_close(&a);
    for (int64_t e = 0; e < c.base.v.dim; e++)
      assert_true(fabs(a.o[e] - oracle_get(&c.base.o, 0, 0, i, e)) < 4e-7);
    assert_true(fabs(a.lse - oracle_get(&c.base.params.lse, 0, 0, i, 0)) < 2e-6);
  }
}

/* Rows one after the other or in parts, over a growing cache, with kept means and without: the same bits. */
void M3_moba_decode(void **state) {
  (void)state;
  enum { T = 150, B = 16 };
  static const int32_t parts[] = {1, 2, 7, 65};
  test_rng rng = test_seed(30500);
  selected_call c = selected_of(1, 4, 2, T, T, 12, 0, &rng);
  moba_call whole = moba_of(c, B, 3);
  moba_run(&whole);
  attn_tensor means = test_tensor(ATTN_F32, TEST_PADDED, 1, 2, (T + B - 1) / B, 12);
  for (int x = 0; x < 4; x++)
    for (int32_t i = 0, n, kept = 0; i < T; i += x == 0 && i < 120 ? 33 : n) {
      int32_t len;
      attn_ctx ctx = test_ctx();
      attn_key_blocks_params kp = {0};
      n = parts[x] < T - i ? parts[x] : T - i;
      moba_call m = moba_of(selected_part(&c, i, n, &len), B, 3);
      kp.kind = ATTN_KEY_BLOCK_MEAN, kp.size = B, kp.first = kept, kp.kv_len = &len;
      assert_int_equal(attn_key_blocks(means, c.base.k, &kp, &ctx), ATTN_OK);
      kept = len;
      for (int given = 0; given < 2; given++) {
        if (given) m.p.means = means;
        moba_run(&m);
        selected_same_part(&m.c, &c, i, m.p.index, whole.p.index, 4, 3);
      }
    }
}

/* Keys that a row does not choose, and later ones, never reach it; a block of NaN comes last. */
void M3_moba_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(30600);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, 96, 96, 8, 0, &rng);
    moba_call m = moba_of(c, 16, 2);
    for (int64_t i = n == 3 ? 40 : 32; i < 48; i++) { /* 3: later keys of the own block */
      if (n != 1) test_fill_row(c.base.v, 0, 0, i, NAN);
      if (n < 2) test_fill_row(c.base.k, 0, 0, i, n ? NAN : INFINITY);
    }
    moba_run(&m);
    for (int64_t r = 0; r < 2 * 96; r++) {
      int bad = 0;
      for (int e = 0; e < 2; e++) bad |= m.p.index[2 * r + e] == 2 && (n < 3 || r % 96 >= 40);
      if (n < 2 && r % 96 >= 64 && n == 1) assert_false(bad); /* others are numbers */
      for (int64_t x = 0; x < c.base.o.dim && !bad; x++) {
        const double y = oracle_get(&c.base.o, 0, r / 96, r % 96, x);
        if (!(y - y == 0)) fail_msg("case %d: row %d has NaN", n, (int)r);
      }
    }
  }
}

void M3_moba_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(30700);
  static const int64_t shape[][3] = {{0, 5, 3}, {5, 0, 3}, {0, 0, 3}};
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, shape[n][0], shape[n][1], shape[n][2], 0, &rng);
    moba_call m = moba_of(c, 4, 2);
    moba_check(&m, 0, "empty");
  }
}

/* Rows of codes: what their numbers stand for. */
void M3_moba_quantised(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3, ATTN_I8};
  test_rng rng = test_seed(30650);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    selected_call c = selected_of(2, 4, 2, n % 2 ? 70 : 3, 150, 40, 0, &rng);
    const selected_call d =
        selected_codes(&c, types[n / 2], n > 3 ? 32 : 0, types[n / 2] != ATTN_E4M3 && n % 2);
    moba_call plain = moba_of(c, 20, 3), codes = moba_of(d, 20, 3);
    moba_check(&plain, 1e-4, "plain");
    moba_run(&codes);
    test_assert_same(d.base.o, c.base.o, "codes");
    test_assert_same(d.softmax.lse, c.softmax.lse, "LSE of codes");
    assert_memory_equal(plain.p.index, codes.p.index, (size_t)(2 * 4 * c.base.q.len * 3) * 4);
  }
}

void M3_moba_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(30800);
  selected_call c = selected_of(2, 4, 2, 130, 140, 9, SELECTED_HALF | SELECTED_LENGTHS, &rng);
  moba_call m = moba_of(c, 20, 3);
  const int64_t n = 2 * 4 * 130 * 3;
  attn_tensor lists = attn_bhtd(m.p.index, ATTN_F32, 1, 1, 1, n);
  promise p = {moba_call_of, moba_ask, &m, {&m.c.base.o, &lists}, {{0}}, 0};
  p.block[0].data = m.c.base.o.data, p.block[0].size = (size_t)(2 * 4 * 130 * 12 * 4);
  p.block[1].data = (unsigned char *)m.p.index, p.block[1].size = (size_t)n * 4;
  m.p.attention.lse = absent();
  promise_keep(&p);
}

void M3_key_blocks(void **state) {
  (void)state;
  test_rng rng = test_seed(30900);
  for (int64_t n = test_count(24, 8); n-- > 0; test_mem_release()) {
    const int64_t tk = test_range(&rng, 0, 50), d = test_range(&rng, 1, 20),
                  size = test_range(&rng, 1, 12);
    const int bounds = (int)(n % 2);
    const int64_t blocks = (tk + size - 1) / size, first = n % 3 ? 0 : test_range(&rng, 0, tk);
    attn_tensor k = drawn(n % 5 ? ATTN_F32 : ATTN_BF16, (test_layout)(n % 4), 2, 2, tk, d, 1, &rng);
    attn_tensor y =
        test_tensor(ATTN_F32, (test_layout)(n / 2 % 4), 2, 2, blocks, bounds ? 2 * d : d);
    int32_t *len = n % 4 == 3 ? test_lengths(2, tk, &rng) : NULL;
    attn_key_blocks_params p = {0};
    attn_ctx ctx = test_ctx();
    p.kind = bounds ? ATTN_KEY_BLOCK_BOUNDS : ATTN_KEY_BLOCK_MEAN, p.size = size, p.first = first;
    p.kv_len = len;
    test_fill_value(y, 7.5);
    if (attn_key_blocks(y, k, &p, &ctx)) fail_msg("%s", ctx.reason);
    for (int64_t u = 0; u < 4 * blocks; u++) {
      const int64_t b = u / blocks / 2, h = u / blocks % 2, j = u % blocks, from = j * size,
                    keys = len ? len[b] : tk;
      const int64_t to = keys < from + size ? keys : from + size;
      for (int64_t x = 0; x < y.dim; x++) {
        double want = 0;
        for (int64_t i = from; i < to; i++) {
          const double z = oracle_get(&k, b, h, i, x % d);
          if (!bounds) want += z / (double)(to - from);
          if (bounds && (i == from || (x < d ? z < want : z > want))) want = z;
        }
        if (j < first / size) want = 7.5;
        if (!(fabs(want - oracle_get(&y, b, h, j, x)) < 1e-6)) fail_msg("block %d", (int)j);
      }
    }
  }
}

void M3_moba_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(31000);
  selected_call c = selected_of(1, 2, 1, 6, 12, 4, 0, &rng);
  attn_tensor means = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 4);
  for (int n = 0; n < 14; n++) {
    attn_ctx ctx = test_ctx();
    moba_call m = moba_of(c, 4, 2);
    attn_key_blocks_params kp = {0};
    attn_status want = ATTN_E_RANGE, got;
    kp.size = 4;
    test_fill_value(c.base.o, 3), test_fill_value(means, 3);
    if (n == 0) m.p.block = 0;
    if (n == 1) m.p.k = 0;
    if (n == 2) m.p.means = means, m.p.means.len = 2, want = ATTN_E_SHAPE;
    if (n == 3) m.p.means = means, m.p.means.dtype = ATTN_F16, want = ATTN_E_DTYPE;
    if (n == 4) m.p.attention.scale = NAN, want = ATTN_E_VALUE;
    if (n == 5) m.p.index = (int32_t *)c.base.o.data, want = ATTN_E_OVERLAP;
    if (n == 6) m.p.index = (int32_t *)((char *)m.p.index + 1), want = ATTN_E_ALIGN;
    if (n == 7) m.c.base.k.dim = 3, want = ATTN_E_SHAPE;
    if (n == 8)
      m.p.means = c.base.o, m.p.means.heads = 1, m.p.means.len = 3, m.p.means.dim = 4,
      want = ATTN_E_OVERLAP;
    if (n == 9) kp.size = 0;
    if (n == 10) kp.kind = ATTN_KEY_BLOCK_KINDS;
    if (n == 11) kp.first = 13;
    if (n == 12) kp.kind = ATTN_KEY_BLOCK_BOUNDS, want = ATTN_E_SHAPE;
    if (n == 13) want = ATTN_E_NULL;
    if (n < 9)
      got = moba_call_of(&m, &ctx);
    else if (n < 13)
      got = attn_key_blocks(means, c.base.k, &kp, &ctx);
    else
      got = attn_moba(c.base.o, c.base.q, c.base.k, c.base.v, NULL, &ctx);
    if (got != want) fail_msg("case %d: %d, %s", n, (int)got, ctx.reason ? ctx.reason : "");
    assert_non_null(ctx.reason);
    for (int64_t x = 0; x < 7; x++) assert_true(oracle_get(&c.base.o, 0, 1, 5, x) == 3);
    assert_true(oracle_get(&means, 0, 0, 2, 3) == 3);
  }
  test_mem_release();
}
