/* tests/families/selection/test_paged.c owns selection among keys in the pages of a cache: each sequence has the bits of a
 * call on its rows in one piece. */

#include "../../calls/pages.h"
#include "selected.h"

enum { MOBA, QUEST, DSA, CALLS };

typedef struct paged_case {
  pages c;
  attn_tensor q, o, lse;
  attn_moba_params moba;
  attn_quest_params quest;
  attn_dsa_params dsa;
  int32_t *index;
  int call;
} paged_case;

static attn_status paged_run(const paged_case *m, attn_tensor k, attn_tensor v, attn_ctx *ctx) {
  return m->call == MOBA    ? attn_moba(m->o, m->q, k, v, &m->moba, ctx)
         : m->call == QUEST ? attn_quest(m->o, m->q, k, v, &m->quest, ctx)
                            : attn_dsa(m->o, m->q, k, v, &m->dsa, ctx);
}
static attn_status paged_call(void *scene, attn_ctx *ctx) {
  return paged_run(scene, absent(), absent(), ctx);
}
static size_t paged_ask(void *scene, const attn_ctx *ctx) {
  const paged_case *m = scene;
  return m->call == MOBA    ? attn_moba_workspace(m->o, m->q, absent(), absent(), &m->moba, ctx)
         : m->call == QUEST ? attn_quest_workspace(m->o, m->q, absent(), absent(), &m->quest, ctx)
                            : attn_dsa_workspace(m->o, m->q, absent(), absent(), &m->dsa, ctx);
}

/* Rows of lists of each call. */
static int64_t paged_lists(const paged_case *m) {
  return m->call == MOBA    ? m->q.heads * m->moba.k
         : m->call == QUEST ? m->q.heads * m->quest.pages
                            : m->dsa.k;
}

static attn_selected paged_softmax(const paged_case *m, int whole) {
  attn_selected x;
  memset(&x, 0, sizeof x);
  x.lse = m->lse;
  if (whole) x.cache = &m->c.cache, x.sequences = m->c.seq;
  return x;
}

static void paged_of(paged_case *m, pages_spec z, int call, int64_t heads, int64_t tq,
                     test_rng *rng) {
  memset(m, 0, sizeof *m);
  z.window = z.sinks = 0, z.v_heads = z.latent ? z.k_heads : z.v_heads;
  m->call = call;
  int64_t least = 0;
  for (int n = 0; n < 4 && least == 0; n++) { /* most have queries */
    m->c = pages_make(&z, rng), least = tq;
    for (int64_t b = 0; b < z.n; b++)
      if (m->c.seq[b].len < least) least = m->c.seq[b].len;
  }
  tq = least;
  m->q = drawn(ATTN_F32, TEST_BTHD, z.n, heads, tq, z.dk, 1, rng);
  m->o = test_tensor(ATTN_F32, TEST_BHTD, z.n, heads, tq, z.dv);
  m->lse = test_tensor(ATTN_F32, TEST_BHTD, z.n, heads, tq, 1);
  m->moba.block = m->quest.page = z.page * test_range(rng, 1, 2);
  m->moba.k = m->quest.pages = test_range(rng, 1, 5), m->dsa.k = test_range(rng, 1, 40);
  m->quest.last_competes = (int)test_range(rng, 0, 1);
  m->dsa.qi = drawn(ATTN_F32, TEST_BHTD, z.n, 2, tq, 5, 1, rng);
  m->dsa.wi = drawn(ATTN_F32, TEST_BHTD, z.n, 1, tq, 2, 1, rng);
  m->index = selected_lists(z.n * tq * paged_lists(m));
  m->moba.index = m->quest.index = m->dsa.index = m->index;
  m->moba.attention = m->quest.attention = m->dsa.attention = paged_softmax(m, 1);
}

/* ki in pages of its own; own: the same in one piece. */
static pages paged_indexer(paged_case *m, int quantised, test_rng *rng) {
  pages_spec z = {0};
  z.n = m->c.n, z.page = 3, z.most = m->c.longest + 1, z.k_heads = z.v_heads = 1, z.dk = z.dv = 5;
  z.latent = 1, z.k_type = z.v_type = quantised ? ATTN_I8 : ATTN_F32;
  pages x = pages_make(&z, rng);
  for (int64_t b = 0; b < x.n; b++) /* as many tokens */
    if (x.seq[b].len > m->c.seq[b].len) {
      x.seq[b].len = x.seq[b].high = m->c.seq[b].len;
    } else {
      m->c.seq[b].len = m->c.seq[b].high = x.seq[b].len;
    }
  return x;
}

static attn_tensor entry(attn_tensor t, int64_t b) {
  t.data = (char *)oracle_address(&t, b, 0, 0, 0), t.batch = 1;
  return t;
}

/* The same of each sequence alone. */
static void paged_judge(const paged_case *m, const pages *ki, const char *what) {
  for (int64_t b = 0; b < m->c.n; b++) {
    paged_case one = *m;
    attn_ctx ctx = test_ctx();
    const int64_t len = m->c.seq[b].len, lists = m->q.len * paged_lists(m);
    const kept k = kept_slice(m->c.own_k[b], 0, len), v = kept_slice(m->c.own_v[b], 0, len);
    one.q = entry(m->q, b);
    one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, m->o.heads, m->o.len, m->o.dim);
    one.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, m->o.heads, m->o.len, 1);
    one.index = selected_lists(lists);
    one.moba.index = one.quest.index = one.dsa.index = one.index;
    attn_selected x = paged_softmax(&one, 0);
    x.k_scales = k.s, x.v_scales = v.s;
    one.moba.attention = one.quest.attention = one.dsa.attention = x;
    one.moba.means = one.quest.bounds = absent();
    if (!one.quest.page) one.quest.page = m->c.cache.k.len;
    one.dsa.qi = entry(m->dsa.qi, b), one.dsa.wi = entry(m->dsa.wi, b);
    one.dsa.ki_cache = NULL, one.dsa.ki_sequences = NULL;
    if (m->call == DSA) {
      const kept i = ki ? kept_slice(ki->own_k[b], 0, len) : k;
      one.dsa.ki = ki ? i.t : test_rows(entry(m->dsa.ki, b), 0, len), one.dsa.ki_scales = i.s;
      if (!ki) memset(&one.dsa.ki_scales, 0, sizeof one.dsa.ki_scales);
    }
    if (paged_run(&one, k.t, v.t, &ctx)) fail_msg("%s: %s", what, ctx.reason);
    test_assert_same(entry(m->o, b), one.o, what);
    test_assert_same(entry(m->lse, b), one.lse, what);
    assert_memory_equal(m->index + b * lists, one.index, (size_t)lists * 4);
  }
}

static void paged_check(paged_case *m, const pages *ki, const char *what) {
  for (int n = 0; n < 2; n++) {
    attn_ctx ctx = test_ctx();
    if (n) ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    const attn_status s = paged_call(m, &ctx);
    if (s) fail_msg("%s: %s", what, ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    paged_judge(m, ki, what);
  }
}

static attn_tensor paged_stands(const paged_case *m, attn_key_block_kind kind, int64_t fresh,
                                attn_tensor y) {
  const attn_cache *c = &m->c.cache;
  attn_key_blocks_params p = {0};
  attn_ctx ctx = test_ctx();
  p.kind = kind, p.cache = c, p.sequences = m->c.seq, p.n = m->c.n, p.fresh = fresh;
  if (!y.data) {
    y = test_tensor(ATTN_F32, TEST_PADDED, c->k.batch, c->k.heads, 1,
                    kind == ATTN_KEY_BLOCK_MEAN ? c->k.dim : 2 * c->k.dim);
    test_fill_value(y, (double)NAN); /* what is not a full page's is not read */
  }
  ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
  if (attn_key_blocks(y, absent(), &p, &ctx)) fail_msg("%s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  return y;
}

void M3_paged_random(void **state) {
  (void)state;
  test_rng rng = test_seed(36100);
  for (int64_t n = 0; n < test_count(60, 18); n++, test_mem_release()) {
    const int call = (int)(n % CALLS), given = (int)(n / 3 % 2);
    pages_spec z = pages_some(&rng);
    z.n = test_range(&rng, 1, 3), z.most = n % 7 == 0 ? 300 : 60,
    z.k_heads = test_range(&rng, 1, 2);
    z.v_heads = z.k_heads, z.page = test_range(&rng, 1, 20);
    paged_case m;
    paged_of(&m, z, call, z.k_heads * (n % 5 ? 2 : 4), test_range(&rng, 1, 9), &rng);
    pages ki;
    if (given) {
      m.moba.block = z.page, m.quest.page = n % 4 ? z.page : 0;
      if (call == MOBA) m.moba.means = paged_stands(&m, ATTN_KEY_BLOCK_MEAN, 0, absent());
      if (call == QUEST) m.quest.bounds = paged_stands(&m, ATTN_KEY_BLOCK_BOUNDS, 0, absent());
      if (call == DSA) {
        ki = paged_indexer(&m, n % 4 == 1, &rng);
        m.dsa.ki_cache = &ki.cache, m.dsa.ki_sequences = ki.seq;
        for (int64_t b = 0; b < m.c.n; b++)
          if (m.c.seq[b].len < m.q.len) m.q.len = m.c.seq[b].len;
        m.o.len = m.lse.len = m.dsa.qi.len = m.dsa.wi.len = m.q.len;
        m.dsa.attention.lse = m.lse;
      }
    } else if (call == DSA) {
      int64_t longest = 0;
      for (int64_t b = 0; b < m.c.n; b++)
        longest = m.c.seq[b].len > longest ? m.c.seq[b].len : longest;
      m.dsa.ki = drawn(ATTN_BF16, TEST_BHTD, z.n, 1, longest, 5, 1, &rng);
    }
    paged_check(&m, call == DSA && given ? &ki : NULL,
                call == MOBA    ? "moba"
                : call == QUEST ? "quest"
                                : "dsa");
  }
}

/* Workers, workspaces and what lies around the outputs. */
void M3_paged_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(36200);
  for (int call = 0; call < CALLS; call++, test_mem_release()) {
    pages_spec z = {0};
    z.n = 2, z.page = 4, z.most = 80, z.k_heads = z.v_heads = 2, z.dk = 9, z.dv = 12;
    z.k_type = ATTN_F16, z.v_type = ATTN_BF16;
    paged_case m;
    paged_of(&m, z, call, 4, 20, &rng);
    const int64_t n = z.n * m.q.len * paged_lists(&m);
    int64_t longest = 0;
    for (int64_t b = 0; b < 2; b++) longest = m.c.seq[b].len > longest ? m.c.seq[b].len : longest;
    m.dsa.ki = drawn(ATTN_F32, TEST_BHTD, 2, 1, longest, 5, 1, &rng);
    m.moba.attention.lse = m.quest.attention.lse = m.dsa.attention.lse = absent();
    attn_tensor lists = attn_bhtd(m.index, ATTN_F32, 1, 1, 1, n);
    promise p = {paged_call, paged_ask, &m, {&m.o, &lists}, {{0}}, 0};
    p.block[0].data = m.o.data, p.block[0].size = (size_t)(2 * 4 * m.q.len * 12 * 4);
    p.block[1].data = (unsigned char *)m.index, p.block[1].size = (size_t)n * 4;
    promise_keep(&p);
  }
}

/* A prompt, a fork of it, and tokens behind both: bounds that are kept page by page give what a call makes by itself. */
void M3_paged_decode(void **state) {
  (void)state;
  enum { P = 8, D = 12, T = 90 };
  test_rng rng = test_seed(36300);
  for (int call = MOBA; call <= QUEST; call++, test_mem_release()) {
    attn_cache_params z = {0};
    attn_cache cache;
    attn_sequence s[2];
    attn_ctx ctx = test_ctx();
    int32_t table[2][16];
    z.k_heads = 2, z.dk = D, z.pages = 30, z.page = P;
    const size_t size = attn_cache_size(&z);
    assert_int_equal(attn_cache_open(&cache, test_mem(size), size, &z, &ctx), ATTN_OK);
    for (int b = 0; b < 2; b++)
      assert_int_equal(attn_sequence_init(&s[b], table[b], 16, &ctx), ATTN_OK);
    paged_case m;
    memset(&m, 0, sizeof m);
    m.call = call, m.c.cache = cache, m.c.seq = s, m.c.n = 2;
    const attn_key_block_kind kind = call == MOBA ? ATTN_KEY_BLOCK_MEAN : ATTN_KEY_BLOCK_BOUNDS;
    attn_tensor stands = test_tensor(ATTN_F32, TEST_BHTD, z.pages, 2, 1, call == MOBA ? D : 2 * D);
    test_fill_value(stands, (double)NAN);
    for (int64_t i = 0, fresh = 0; i < T; i += fresh) {
      fresh = i == 0 ? 37 : i == 37 ? 21 : 1;
      const int n = i == 0 ? 1 : 2;
      attn_tensor k = drawn(ATTN_F32, TEST_BTHD, n, 2, fresh, D, 1, &rng);
      attn_tensor v = drawn(ATTN_F32, TEST_BTHD, n, 2, fresh, D, 1, &rng);
      assert_int_equal(attn_cache_append(&m.c.cache, s, n, k, v, NULL, &ctx), ATTN_OK);
      if (i == 0) assert_int_equal(attn_cache_fork(&m.c.cache, &s[1], &s[0], &ctx), ATTN_OK);
      (void)paged_stands(&m, kind, fresh, stands);
      m.q = drawn(ATTN_F32, TEST_BTHD, 2, 4, 1, D, 1, &rng);
      attn_tensor o[2];
      int32_t lists[2][2 * 4 * 3];
      for (int given = 0; given < 2; given++) {
        m.o = o[given] = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 1, D), m.lse = absent();
        m.moba.block = P, m.moba.k = m.quest.pages = 3, m.quest.last_competes = (int)(i % 2);
        m.moba.attention = m.quest.attention = paged_softmax(&m, 1);
        m.moba.index = m.quest.index = lists[given];
        m.moba.means = m.quest.bounds = given ? stands : absent();
        if (paged_call(&m, &ctx)) fail_msg("%s", ctx.reason);
      }
      test_assert_same(o[0], o[1], "kept");
      assert_memory_equal(lists[0], lists[1], sizeof lists[0]);
    }
    assert_int_equal(s[0].table[3], s[1].table[3]); /* full pages of the prompt are shared still */
  }
}

void M3_paged_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(36400);
  pages_spec z = {0};
  z.n = 2, z.page = 4, z.most = 40, z.k_heads = z.v_heads = 1, z.dk = 6, z.dv = 6;
  paged_case m;
  pages ki;
  do {
    paged_of(&m, z, DSA, 2, 3, &rng);
    ki = paged_indexer(&m, 0, &rng);
  } while (m.c.seq[0].len < 5 || m.c.seq[1].len < 5 || m.q.len < 3);
  attn_tensor means = test_tensor(ATTN_F32, TEST_BHTD, m.c.cache.k.batch, 1, 1, 6);
  m.dsa.ki_cache = &ki.cache, m.dsa.ki_sequences = ki.seq;
  for (int n = 0; n < 24; n++) {
    attn_ctx ctx = test_ctx();
    paged_case x = m;
    attn_cache cache = m.c.cache, other = ki.cache;
    attn_sequence seq[2] = {m.c.seq[0], m.c.seq[1]};
    attn_key_blocks_params kp = {0};
    attn_tensor k = absent(), v = absent(), y = means;
    attn_status want = ATTN_E_RANGE, got;
    attn_selected *s = &x.dsa.attention;
    int32_t table[64];
    test_fill_value(m.o, 3), test_fill_value(means, 3);
    memcpy(table, seq[1].table, (size_t)seq[1].table_len * 4);
    s->cache = &cache, s->sequences = seq, seq[1].table = table;
    kp.cache = &cache, kp.sequences = seq, kp.n = 2;
    if (n == 0) k = test_rows(m.q, 0, 1), want = ATTN_E_SHAPE;
    if (n == 1) s->sequences = NULL, want = ATTN_E_NULL;
    if (n == 2) s->cache = NULL, want = ATTN_E_NULL;
    if (n == 3) cache.window = 4;
    if (n == 4) s->has_q_off = 1;
    if (n == 5) s->kv_len = table;
    if (n == 6) table[0] = -1, want = ATTN_E_PAGE;
    if (n == 7) seq[0].len = seq[0].high = 2; /* three queries */
    if (n == 8) x.dsa.index = table, want = ATTN_E_OVERLAP;
    if (n == 9) x.dsa.ki_sequences = NULL, want = ATTN_E_NULL;
    if (n == 10) other.window = 3, x.dsa.ki_cache = &other;
    if (n == 11) seq[0].len--, seq[0].high--; /* the indexer has one more */
    if (n == 12) x.dsa.qi.dim = 4, want = ATTN_E_SHAPE;
    if (n == 13) x.dsa.ki = x.dsa.qi;
    if (n == 14 || n == 15)
      x.call = MOBA, x.moba.attention = *s, x.moba.means = means, want = ATTN_E_SHAPE;
    if (n == 14) x.moba.block = 5;
    if (n == 15) x.moba.block = 4, x.moba.means.batch--;
    if (n == 16) kp.size = 4;
    if (n == 17) kp.fresh = -1;
    if (n == 18) kp.sequences = NULL, want = ATTN_E_NULL;
    if (n == 19) y.dim = 5, want = ATTN_E_SHAPE;
    if (n == 20) table[0] = -1, want = ATTN_E_PAGE;
    if (n == 21) k = means, want = ATTN_E_SHAPE;
    if (n == 22) kp.cache = NULL, kp.sequences = NULL, kp.size = 4, k = means;
    if (n == 23) kp.n = -1, want = ATTN_E_SHAPE;
    got = n < 16 ? paged_run(&x, k, v, &ctx) : attn_key_blocks(y, k, &kp, &ctx);
    if (got != want) fail_msg("case %d: %d, %s", n, (int)got, ctx.reason ? ctx.reason : "");
    assert_non_null(ctx.reason);
    for (int64_t c = 0; c < 6; c++)
      assert_true(oracle_get(&m.o, 1, 1, 2, c) == 3 && oracle_get(&means, 0, 0, 0, c) == 3);
  }
  test_mem_release();
}
