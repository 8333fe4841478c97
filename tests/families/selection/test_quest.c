/* tests/families/selection/test_quest.c owns attention to pages by bounds of their scores. */

#include "selected.h"

typedef struct quest_call {
  selected_call c;
  attn_quest_params p;
} quest_call;

static quest_call quest_of(selected_call c, int64_t page, int64_t pages) {
  quest_call m;
  memset(&m, 0, sizeof m);
  m.c = c, m.p.page = page, m.p.pages = pages, m.p.attention = c.softmax;
  m.p.index = selected_lists(c.base.q.batch * c.base.q.heads * c.base.q.len * pages);
  return m;
}

static attn_status quest_call_of(void *scene, attn_ctx *ctx) {
  quest_call *m = scene;
  return attn_quest(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}
static size_t quest_ask(void *scene, const attn_ctx *ctx) {
  quest_call *m = scene;
  return attn_quest_workspace(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}

static attn_report quest_run(quest_call *m) {
  attn_ctx ctx = test_ctx();
  const attn_status s = quest_call_of(m, &ctx);
  if (s) fail_msg("attn_quest: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

static void quest_judge(const quest_call *m, double slack, const char *what) {
  const test_call *d = &m->c.base;
  const int64_t tq = d->q.len, size = m->p.page, candidates = d->k.len / size + 1;
  double *score = test_mem((size_t)candidates * 8);
  unsigned char *may = test_mem((size_t)candidates);
  for (int64_t b = 0; b < d->q.batch; b++)
    for (int64_t h = 0; h < d->q.heads; h++)
      for (int64_t i = 0; i < tq; i++) {
        const int64_t keys = selected_keys(&m->c, b), p = selected_position(&m->c, i);
        const int64_t sees = p + 1 < keys ? p + 1 : keys, last = sees > 0 ? (sees - 1) / size : -1;
        const int64_t hk = head_of(&d->k, h, d->q.heads);
        for (int64_t j = 0; j < candidates; j++) {
          const int64_t to = sees < (j + 1) * size ? sees : (j + 1) * size;
          may[j] = j <= last, score[j] = 0;
          for (int64_t x = 0; may[j] && x < d->q.dim; x++) {
            double most = -1e30;
            for (int64_t y = j * size; y < to; y++) {
              const double z = oracle_get(&d->q, b, h, i, x) * oracle_get(&d->k, b, hk, y, x);
              if (z > most) most = z;
            }
            score[j] += most;
          }
        }
        selected_judge(m->p.index + ((b * d->q.heads + h) * tq + i) * m->p.pages, m->p.pages, &last,
                       last >= 0 && !m->p.last_competes, score, may, candidates, m->p.pages, slack,
                       what);
      }
}

static void quest_check(quest_call *m, double slack, const char *what) {
  quest_run(m);
  quest_judge(m, slack, what);
  selected_attended(&m->c, m->p.index, m->c.base.q.heads, m->p.pages, m->p.page, what);
}

void M3_quest_random(void **state) {
  (void)state;
  test_rng rng = test_seed(32100);
  static const int64_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}, {6, 2}};
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t *h = heads[n % 5], tk = test_range(&rng, 1, n % 4 ? 60 : 300);
    const int64_t tq = n % 3 ? test_range(&rng, 1, tk < 20 ? tk : 20) : 1;
    selected_call c =
        selected_of(1 + n % 2, h[0], h[1], tq, tk, test_range(&rng, 1, 20), (int)(n % 16), &rng);
    quest_call m = quest_of(c, test_range(&rng, 1, n % 2 ? 5 : 20), test_range(&rng, 1, 6));
    m.p.last_competes = n % 3 == 1;
    quest_check(&m, 1e-4, "random");
  }
}

/* A long cache; more than one tile of rows and block of pages. */
void M3_quest_long(void **state) {
  (void)state;
  test_rng rng = test_seed(32200);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, 4, n ? 1 : 4, n == 2 ? 20 : 1, 1500, 8, 0, &rng);
    quest_call m = quest_of(c, 16, n == 2 ? 5 : 80);
    quest_check(&m, 1e-4, "long");
  }
}

void M3_quest_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(32300);
  for (int64_t n = test_count(8, 4); n-- > 0; test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, n % 3 ? 1 : 40, 90, 2 + n % 3, n & SELECTED_HALF, &rng);
    selected_whole(&c, &rng);
    quest_call m = quest_of(c, 1 + n % 4, 2 + n % 4);
    m.p.last_competes = n > 3;
    quest_check(&m, 0, "ties");
  }
}

/* All pages are causal attention; a page of one key has its score for a bound, so its choice is that of the best keys. */
void M3_quest_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(32400);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    selected_call c = selected_of(2, 4, 2, n ? 3 : 40, 60, 16, n ? SELECTED_LENGTHS : 0, &rng);
    quest_call m = quest_of(c, 7, 9);
    quest_run(&m);
    test_compare(&c.base, "all pages");
  }
  selected_call c = selected_of(1, 2, 2, 40, 40, 5, 0, &rng);
  selected_whole(&c, &rng);
  quest_call m = quest_of(c, 1, 6);
  m.p.last_competes = 1;
  const attn_report r = quest_run(&m);
  assert_int_equal(r.pairs, 2 * (15 + 35 * 6)); /* min(i + 1, 6) keys of each row */
  attn_topk_params p;
  int64_t ptr[2][41];
  int32_t col[2][240];
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.k = 6, p.attention.causal = 1, p.indptr = ptr[0], p.col = col[0], p.edges = 240;
  assert_int_equal(attn_topk_select(c.base.q, c.base.k, &p, &ctx), ATTN_OK);
  for (int64_t row = 0; row < 80; row++) {
    const int32_t *list = col[row / 40] + ptr[row / 40][row % 40];
    for (int64_t e = 0; e < ptr[row / 40][row % 40 + 1] - ptr[row / 40][row % 40]; e++)
      assert_int_equal(list[e], m.p.index[row * 6 + e]);
  }
}

/* Rows one after the other or in parts, over a growing cache, with kept bounds and without: the bits of one call. */
void M3_quest_decode(void **state) {
  (void)state;
  enum { T = 150, B = 8 };
  static const int32_t parts[] = {1, 2, 7, 65};
  test_rng rng = test_seed(32500);
  for (int competes = 0; competes < 2; competes++) {
    selected_call c = selected_of(1, 4, 2, T, T, 12, 0, &rng);
    quest_call whole = quest_of(c, B, 3);
    whole.p.last_competes = competes;
    quest_run(&whole);
    attn_tensor bounds = test_tensor(ATTN_F32, TEST_PADDED, 1, 2, (T + B - 1) / B, 24);
    for (int x = 0; x < 4; x++)
      for (int32_t i = 0, n, kept = 0; i < T; i += x == 0 && i < 120 ? 33 : n) {
        int32_t len;
        attn_ctx ctx = test_ctx();
        attn_key_blocks_params kp = {0};
        n = parts[x] < T - i ? parts[x] : T - i;
        quest_call m = quest_of(selected_part(&c, i, n, &len), B, 3);
        m.p.last_competes = competes;
        kp.kind = ATTN_KEY_BLOCK_BOUNDS, kp.size = B, kp.first = kept, kp.kv_len = &len;
        assert_int_equal(attn_key_blocks(bounds, c.base.k, &kp, &ctx), ATTN_OK);
        kept = len;
        for (int given = 0; given < 2; given++) {
          if (given) m.p.bounds = bounds;
          quest_run(&m);
          selected_same_part(&m.c, &c, i, m.p.index, whole.p.index, 4, 3);
        }
      }
  }
}

void M3_quest_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(32600);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, 96, 96, 8, 0, &rng);
    quest_call m = quest_of(c, 16, 2);
    for (int64_t i = 32; i < 48; i++) {
      if (n != 1) test_fill_row(c.base.v, 0, 0, i, NAN);
      if (n != 2) test_fill_row(c.base.k, 0, 0, i, NAN);
    }
    quest_run(&m);
    for (int64_t r = 0; r < 2 * 96; r++) {
      int bad = 0;
      for (int e = 0; e < 2; e++) bad |= m.p.index[2 * r + e] == 2;
      if (n < 2 && r % 96 >= 48) assert_false(bad); /* others are numbers */
      for (int64_t x = 0; x < c.base.o.dim && !bad; x++) {
        const double y = oracle_get(&c.base.o, 0, r / 96, r % 96, x);
        if (!(y - y == 0)) fail_msg("case %d: row %d has NaN", n, (int)r);
      }
    }
  }
}

void M3_quest_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(32700);
  static const int64_t shape[][3] = {{0, 5, 3}, {5, 0, 3}, {0, 0, 3}};
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, shape[n][0], shape[n][1], shape[n][2], 0, &rng);
    quest_call m = quest_of(c, 4, 2);
    quest_check(&m, 0, "empty");
  }
}

/* Rows of codes: what their numbers stand for. */
void M3_quest_quantised(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3, ATTN_I8};
  test_rng rng = test_seed(32750);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    selected_call c = selected_of(2, 4, 2, n % 2 ? 30 : 2, 70, 40, 0, &rng);
    const selected_call d =
        selected_codes(&c, types[n / 2], n > 3 ? 32 : 0, types[n / 2] != ATTN_E4M3 && n % 2);
    quest_call plain = quest_of(c, 8, 3), codes = quest_of(d, 8, 3);
    quest_check(&plain, 1e-4, "plain");
    quest_run(&codes);
    test_assert_same(d.base.o, c.base.o, "codes");
    test_assert_same(d.softmax.lse, c.softmax.lse, "LSE of codes");
    assert_memory_equal(plain.p.index, codes.p.index, (size_t)(2 * 4 * c.base.q.len * 3) * 4);
  }
}

void M3_quest_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(32800);
  selected_call c = selected_of(2, 4, 2, 70, 90, 9, SELECTED_HALF | SELECTED_LENGTHS, &rng);
  quest_call m = quest_of(c, 6, 3);
  const int64_t n = 2 * 4 * 70 * 3;
  attn_tensor lists = attn_bhtd(m.p.index, ATTN_F32, 1, 1, 1, n);
  promise p = {quest_call_of, quest_ask, &m, {&m.c.base.o, &lists}, {{0}}, 0};
  p.block[0].data = m.c.base.o.data, p.block[0].size = (size_t)(2 * 4 * 70 * 12 * 4);
  p.block[1].data = (unsigned char *)m.p.index, p.block[1].size = (size_t)n * 4;
  m.p.attention.lse = absent();
  promise_keep(&p);
}

void M3_quest_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(32900);
  selected_call c = selected_of(1, 2, 1, 6, 12, 4, 0, &rng);
  attn_tensor bounds = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 8);
  for (int n = 0; n < 7; n++) {
    attn_ctx ctx = test_ctx();
    quest_call m = quest_of(c, 4, 2);
    attn_status want = ATTN_E_RANGE;
    test_fill_value(c.base.o, 3);
    if (n == 0) m.p.page = 0;
    if (n == 1) m.p.pages = 0;
    if (n == 2) m.p.bounds = bounds, m.p.bounds.dim = 4, want = ATTN_E_SHAPE;
    if (n == 3) m.p.index = (int32_t *)c.base.o.data, want = ATTN_E_OVERLAP;
    if (n == 4)
      m.p.bounds = c.base.o, m.p.bounds.heads = 1, m.p.bounds.len = 3, m.p.bounds.dim = 8,
      want = ATTN_E_SHAPE;
    if (n == 4) m.p.bounds.stride_len = 8, want = ATTN_E_OVERLAP;
    if (n == 5) m.p.attention.q_off = 4;
    if (n == 6) want = ATTN_E_NULL;
    const attn_status got = n < 6 ? quest_call_of(&m, &ctx)
                                  : attn_quest(c.base.o, c.base.q, c.base.k, c.base.v, NULL, &ctx);
    if (got != want) fail_msg("case %d: %d, %s", n, (int)got, ctx.reason ? ctx.reason : "");
    assert_non_null(ctx.reason);
    for (int64_t x = 0; x < 7; x++) assert_true(oracle_get(&c.base.o, 0, 1, 5, x) == 3);
  }
  test_mem_release();
}
