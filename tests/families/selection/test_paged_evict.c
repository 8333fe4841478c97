/* tests/families/selection/test_paged_evict.c owns what a cache of pages forgets: scores as of rows in one piece, rows that move
 * inside pages, the pages that this frees, and those that others share. */

#include <string.h>

#include "../../calls/pages.h"
#include "selected.h"

/* Sums and scores have the bits of those of each sequence alone; nothing is read behind its end. */
void M3_paged_scores(void **state) {
  (void)state;
  test_rng rng = test_seed(37100);
  for (int64_t n = 0; n < test_count(30, 10); n++, test_mem_release()) {
    pages_spec z = pages_some(&rng);
    z.window = z.sinks = 0, z.n = test_range(&rng, 1, 3), z.most = n % 5 ? 60 : 200;
    z.page = test_range(&rng, 1, 20), z.k_heads = test_range(&rng, 1, 2);
    if (z.latent) z.v_heads = z.k_heads;
    pages c = pages_make(&z, &rng);
    const int64_t tk = c.longest + n % 3, tq = test_range(&rng, 0, 40), h = 2 * z.k_heads;
    attn_tensor q = drawn(ATTN_F32, TEST_BTHD, z.n, h, tq, z.dk, 1, &rng);
    attn_tensor to[2] = {test_tensor(ATTN_F32, TEST_BHTD, z.n, z.k_heads, tk, 1),
                         test_tensor(ATTN_F32, TEST_BHTD, z.n, z.k_heads, tk, 2)};
    attn_tensor no = absent();
    attn_snapkv_params snap = {0};
    attn_h2o_params sums = {0};
    attn_ctx ctx = test_ctx();
    test_fill_value(to[1], 0);
    snap.window = 7, snap.cache = sums.cache = &c.cache, snap.sequences = sums.sequences = c.seq;
    if (n % 2) ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    if (attn_snapkv(to[0], q, no, &snap, &ctx) || attn_h2o(to[1], q, no, &sums, &ctx))
      fail_msg("%s", ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    assert_true(attn_snapkv_workspace(to[0], q, no, &snap, &ctx) != ATTN_WORKSPACE_REJECTED);
    for (int64_t b = 0; b < z.n; b++) {
      const kept k = kept_slice(c.own_k[b], 0, c.seq[b].len);
      attn_tensor one = q, alone[2] = {test_tensor(ATTN_F32, TEST_BHTD, 1, z.k_heads, k.t.len, 1),
                                       test_tensor(ATTN_F32, TEST_BHTD, 1, z.k_heads, k.t.len, 2)};
      one.data = (char *)oracle_address(&q, b, 0, 0, 0), one.batch = 1;
      test_fill_value(alone[1], 0);
      snap.cache = sums.cache = NULL, snap.sequences = sums.sequences = NULL;
      snap.k_scales = sums.k_scales = k.s;
      ctx = test_ctx();
      if (attn_snapkv(alone[0], one, k.t, &snap, &ctx) || attn_h2o(alone[1], one, k.t, &sums, &ctx))
        fail_msg("%s", ctx.reason);
      for (int x = 0; x < 2; x++)
        for (int64_t i = 0; i < z.k_heads * tk; i++)
          for (int64_t y = 0; y < 1 + x; y++)
            assert_true(oracle_get(&to[x], b, i / tk, i % tk, y) ==
                        (i % tk < k.t.len ? oracle_get(&alone[x], 0, i / tk, i % tk, y) : 0));
    }
  }
}

/* Row i of a sequence is row j of the rows that it had. */
static void same_row(const attn_cache *c, const attn_sequence *s, const kept *was, int value,
                     int64_t h, int64_t i, int64_t j) {
  const attn_tensor *t = value ? &c->v : &c->k;
  const attn_scales *x = value ? &c->v_scales : &c->k_scales;
  const int64_t page = s->table[i / c->k.len], row = i % c->k.len;
  const int64_t groups = x->group ? (t->dim + x->group - 1) / x->group : 1;
  for (int64_t e = 0; e < t->dim; e++)
    assert_true(kept_code(t, page, h, row, e) == kept_code(&was->t, 0, h, j, e));
  for (int64_t g = 0; g < groups; g++) {
    const int64_t at = page * x->stride_batch + h * x->stride_head + row * x->stride_len + g;
    const int64_t then = h * was->s.stride_head + j * was->s.stride_len + g;
    if (x->scale) assert_true(x->scale[at] == was->s.scale[then]);
    if (x->zero) assert_true(x->zero[at] == was->s.zero[then]);
  }
}

/* Any storage type and layout, shared pages, some sequences and not others. */
void M3_paged_evict(void **state) {
  (void)state;
  test_rng rng = test_seed(37200);
  int64_t copied = 0;
  for (int64_t n = 0; n < test_count(90, 30); n++, test_mem_release()) {
    pages_spec z = pages_some(&rng);
    z.window = z.sinks = 0, z.n = test_range(&rng, 1, 4), z.most = n % 5 ? 60 : 300;
    z.page = test_range(&rng, 1, 20), z.v_heads = z.k_heads, z.share = n % 3 > 0;
    pages c = pages_make(&z, &rng);
    const int64_t some = test_range(&rng, 0, z.n), capacity = test_range(&rng, 1, 80);
    const int64_t heads = z.k_heads, tk = c.longest + 1;
    int32_t *kept_rows = test_mem((size_t)(z.n * heads * capacity) * 4 + 4);
    int32_t *places = test_mem((size_t)(z.n * heads * tk) * 4);
    int64_t freed[4] = {-7, -7, -7, -7}, rows[4] = {0}, held[4], shared = 0;
    attn_cache_evict_params p = {0};
    attn_ctx ctx = test_ctx();
    p.more = drawn(ATTN_F32, TEST_NEGATIVE, some, heads, tk, 2, 1, &rng);
    attn_tensor more = test_tensor(ATTN_F32, TEST_BHTD, some, heads, tk, 2);
    test_copy(more, p.more);
    for (int64_t i = 0; i < z.n * heads * tk; i++) places[i] = (int32_t)(i % tk * 3);
    if (n % 4) p.positions = places, p.places = tk, p.freed = freed;
    if (n % 4 == 2) p.more = absent();
    for (int64_t b = 0; b < some; b++) {
      const int64_t len = c.seq[b].len;
      rows[b] = test_range(&rng, 0, len < capacity ? len : capacity);
      for (int64_t h = 0; h < heads; h++) { /* a random part, or the first rows as they are */
        int32_t *to = kept_rows + (b * heads + h) * capacity;
        const int64_t still = n % 7 ? 0 : rows[b] / 2;
        int64_t at = 0;
        for (int64_t j = 0; j < len && at < rows[b]; j++)
          if (j < still || test_range(&rng, 1, len - j) <= rows[b] - at) to[at++] = (int32_t)j;
        for (; at < capacity; at++) to[at] = -1;
      }
    }
    for (int64_t b = 0; b < z.n; b++) held[b] = (c.seq[b].len + z.page - 1) / z.page;
    for (int64_t i = 0; i < c.cache.k.batch; i++) shared += c.cache.holders[i] > 1;
    if (n % 2) ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    const attn_status s = attn_cache_evict(&c.cache, c.seq, some, kept_rows, capacity, &p, &ctx);
    if (s && s != ATTN_E_FULL) fail_msg("%s", ctx.reason);
    if (s) {
      memset(rows, 0, sizeof rows);
    } else {
      assert_int_equal(ctx.report.isa, test_isa);
    }
    int32_t *names = test_mem((size_t)c.cache.k.batch * 4 + 4);
    memset(names, 0, (size_t)c.cache.k.batch * 4);
    for (int64_t b = 0; b < z.n; b++) {
      const attn_sequence *x = &c.seq[b];
      const int done = s == ATTN_OK && b < some;
      const int64_t len = done ? rows[b] : c.own_k[b].t.len;
      assert_int_equal(x->len, len), assert_int_equal(x->high, len);
      if (p.freed && done) assert_int_equal(freed[b], held[b] - (len + z.page - 1) / z.page);
      for (int64_t t = 0; t < (len + z.page - 1) / z.page; t++) names[x->table[t]]++;
      for (int64_t i = 0; i < heads * len; i++) {
        const int64_t h = i / len, r = i % len,
                      j = done ? kept_rows[(b * heads + h) * capacity + r] : r;
        same_row(&c.cache, x, &c.own_k[b], 0, h, r, j);
        if (!z.latent) same_row(&c.cache, x, &c.own_v[b], 1, h, r, j);
        if (p.positions) assert_int_equal(places[(b * heads + h) * tk + r], j * 3);
        if (p.more.data && b < some)
          assert_true(oracle_get(&p.more, b, h, r, 1) == oracle_get(&more, b, h, j, 1));
      }
    }
    for (int64_t i = 0; i < c.cache.k.batch; i++) {
      assert_true(c.cache.holders[i] == names[i] || (c.cache.holders[i] >= names[i] && z.share));
      assert_true(c.cache.holders[i] > 0 || i >= c.cache.next_free || s);
    }
    copied += s == ATTN_OK && shared > 0;
  }
  assert_true(copied > 0);
}

/* A prompt in pages, half of which goes; tokens follow in the pages that are left, and attention is that over the rows in
 * one piece. */
void M3_paged_evict_then_decode(void **state) {
  (void)state;
  enum { T = 100, P = 8, D = 16, KEEP = 41 };
  test_rng rng = test_seed(37300);
  attn_cache_params z = {0};
  attn_cache cache;
  attn_sequence s, other;
  attn_ctx ctx = test_ctx();
  int32_t table[20], more[20], kept_rows[2 * KEEP];
  int64_t freed = 0;
  attn_tensor q = drawn(ATTN_F32, TEST_BHTD, 1, 4, T, D, 1, &rng);
  attn_tensor k = drawn(ATTN_F32, TEST_BHTD, 1, 2, T + 9, D, 1, &rng);
  attn_tensor v = drawn(ATTN_F32, TEST_BHTD, 1, 2, T + 9, D, 1, &rng);
  attn_tensor scores = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 1);
  z.k_heads = 2, z.dk = D, z.pages = 20, z.page = P;
  const size_t size = attn_cache_size(&z);
  assert_int_equal(attn_cache_open(&cache, test_mem(size), size, &z, &ctx), ATTN_OK);
  assert_int_equal(attn_sequence_init(&s, table, 20, &ctx), ATTN_OK);
  assert_int_equal(attn_sequence_init(&other, more, 20, &ctx), ATTN_OK);
  assert_int_equal(
      attn_cache_append(&cache, &s, 1, test_rows(k, 0, T), test_rows(v, 0, T), NULL, &ctx),
      ATTN_OK);
  attn_snapkv_params snap = {0};
  attn_evict_choose_params choose = {0};
  attn_cache_evict_params p = {0};
  snap.cache = &cache, snap.sequences = &s, snap.window = 8;
  choose.capacity = KEEP, choose.has_recent = 1, choose.recent = 8, p.freed = &freed;
  assert_int_equal(attn_snapkv(scores, q, absent(), &snap, &ctx), ATTN_OK);
  assert_int_equal(attn_evict_choose(kept_rows, scores, &choose, &ctx), ATTN_OK);
  /* someone holds the whole prompt: there is no room for copies until he has gone */
  assert_int_equal(attn_cache_fork(&cache, &other, &s, &ctx), ATTN_OK);
  for (int64_t t = 13; t < 20; t++) cache.holders[t]++;
  attn_status st = attn_cache_evict(&cache, &s, 1, kept_rows, KEEP, &p, &ctx);
  for (int64_t t = 13; t < 20; t++) cache.holders[t]--;
  assert_int_equal(st, ATTN_E_FULL);
  assert_int_equal(s.len, T), assert_int_equal(freed, 0);
  assert_int_equal(attn_cache_release(&cache, &other, &ctx), ATTN_OK);
  assert_int_equal(attn_cache_evict(&cache, &s, 1, kept_rows, KEEP, &p, &ctx), ATTN_OK);
  assert_int_equal(freed, 13 - 6), assert_int_equal(s.len, KEEP);
  attn_tensor kc = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, KEEP + 9, D),
              vc = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, KEEP + 9, D);
  for (int64_t i = 0; i < 2 * (KEEP + 9); i++)
    for (int64_t c = 0; c < D; c++) {
      const int64_t h = i / (KEEP + 9), r = i % (KEEP + 9),
                    j = r < KEEP ? kept_rows[h * KEEP + r] : T + r - KEEP;
      oracle_set(&kc, 0, h, r, c, oracle_get(&k, 0, h, j, c));
      oracle_set(&vc, 0, h, r, c, oracle_get(&v, 0, h, j, c));
    }
  for (int64_t i = 0; i < 9; i++) {
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 1, D),
                w = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 1, D);
    assert_int_equal(attn_cache_append(&cache, &s, 1, test_rows(k, T + i, 1),
                                       test_rows(v, T + i, 1), NULL, &ctx),
                     ATTN_OK);
    assert_int_equal(attn_cache_sdpa(o, test_rows(q, i, 1), &cache, &s, 1, NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_sdpa(w, test_rows(q, i, 1), test_rows(kc, 0, KEEP + i + 1),
                               test_rows(vc, 0, KEEP + i + 1), NULL, &ctx),
                     ATTN_OK);
    test_assert_same(o, w, "behind it");
  }
  test_mem_release();
}

/* A page that one sequence gives back and another writes to is still shared when the other copies it. */
void M3_paged_evict_shared(void **state) {
  (void)state;
  for (int64_t room = 3; room < 6; room++, test_mem_release()) {
    attn_cache_params z = {0};
    attn_cache cache;
    attn_sequence s[2];
    attn_ctx ctx = test_ctx();
    int32_t table[2][4];
    static const int32_t kept_rows[2][5] = {{5, -1, -1, -1, -1}, {0, 1, 2, 3, 5}};
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 8, 1);
    for (int64_t i = 0; i < 8; i++) oracle_set(&k, 0, 0, i, 0, (double)i);
    z.k_heads = 1, z.dk = z.dv = 1, z.page = 4, z.pages = room;
    const size_t size = attn_cache_size(&z);
    assert_int_equal(attn_cache_open(&cache, test_mem(size), size, &z, &ctx), ATTN_OK);
    for (int i = 0; i < 2; i++)
      assert_int_equal(attn_sequence_init(&s[i], table[i], 4, &ctx), ATTN_OK);
    assert_int_equal(attn_cache_append(&cache, s, 1, k, k, NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_cache_fork(&cache, &s[1], &s[0], &ctx), ATTN_OK);
    const attn_status st = attn_cache_evict(&cache, s, 2, kept_rows[0], 5, NULL, &ctx);
    assert_int_equal(st, room < 4 ? ATTN_E_FULL : ATTN_OK);
    for (int i = 0; i < 2; i++) {
      const int64_t rows = st ? 8 : i ? 5 : 1;
      assert_int_equal(s[i].len, rows);
      for (int64_t r = 0; r < rows; r++)
        assert_true(oracle_get(&cache.k, table[i][r / 4], 0, r % 4, 0) ==
                    (double)(st ? r : kept_rows[i][r]));
    }
  }
}

void M3_paged_evict_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(37400);
  pages_spec z = {0};
  z.n = 2, z.page = 4, z.most = 40, z.k_heads = z.v_heads = 2, z.dk = 6, z.dv = 6;
  pages c;
  do c = pages_make(&z, &rng);
  while (c.seq[0].len < 9 || c.seq[1].len < 9);
  int32_t list[2 * 2 * 3];
  attn_tensor q = drawn(ATTN_F32, TEST_BHTD, 2, 2, 3, 6, 1, &rng),
              scores = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, c.longest, 1);
  const size_t bytes = (size_t)c.cache.k.batch * 4;
  int32_t *holders = test_mem(bytes);
  memcpy(holders, c.cache.holders, bytes);
  for (int n = 0; n < 25; n++) {
    attn_cache cache = c.cache;
    attn_sequence seq[2] = {c.seq[0], c.seq[1]};
    attn_cache_evict_params p = {0};
    attn_snapkv_params snap = {0};
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_INDEX, got;
    attn_tensor k = absent(), to = scores;
    int32_t table[64], *kept_rows = list;
    int64_t capacity = 3;
    memcpy(table, seq[1].table, (size_t)seq[1].table_len * 4), seq[1].table = table;
    for (int i = 0; i < 12; i++) list[i] = 2 * (i % 3) + 1;
    if (n == 0) list[4] = 1;
    if (n == 1) list[11] = (int32_t)seq[1].len;
    if (n == 2) list[11] = -1;
    if (n == 3) list[0] = -2;
    if (n == 4) list[6] = list[9] = -1;
    if (n == 5) capacity = 0, want = ATTN_E_RANGE;
    if (n == 6) cache.window = 5, want = ATTN_E_RANGE;
    if (n == 7) cache.v.heads = 1, want = ATTN_E_HEADS;
    if (n == 8) table[0] = -1, want = ATTN_E_PAGE;
    if (n == 9) table[0] = table[1], want = ATTN_E_PAGE; /* named twice, held once */
    if (n == 10) seq[1] = seq[0], want = ATTN_E_PAGE;
    if (n == 11) kept_rows = NULL, want = ATTN_E_NULL;
    if (n == 12) kept_rows = cache.holders, want = ATTN_E_OVERLAP;
    if (n == 13)
      p.freed = (int64_t *)(void *)((char *)cache.k.data + 8 - (uintptr_t)cache.k.data % 8),
      want = ATTN_E_OVERLAP;
    if (n == 14) p.positions = table, p.places = 1, want = ATTN_E_SHAPE;
    if (n == 15) p.positions = cache.holders, p.places = c.longest, want = ATTN_E_OVERLAP;
    if (n == 16) p.more = q, want = ATTN_E_SHAPE;
    if (n == 17) seq[0].len = -1, want = ATTN_E_RANGE;
    if (n == 18) cache.k.batch = 0, want = ATTN_E_SHAPE;
    snap.cache = &cache, snap.sequences = seq;
    if (n == 19) k = q, want = ATTN_E_SHAPE;
    if (n == 20) snap.sequences = NULL, want = ATTN_E_NULL;
    if (n == 21) snap.kv_len = table, want = ATTN_E_RANGE;
    if (n == 22) to.len = c.longest - 1, want = ATTN_E_SHAPE;
    if (n == 23) table[0] = -1, want = ATTN_E_PAGE;
    if (n == 24) cache.window = 5, want = ATTN_E_RANGE;
    test_fill_value(scores, 3);
    got = n < 19 ? attn_cache_evict(&cache, seq, 2, kept_rows, capacity, &p, &ctx)
                 : attn_snapkv(to, q, k, &snap, &ctx);
    if (got != want) fail_msg("case %d: %d, %s", n, (int)got, ctx.reason ? ctx.reason : "");
    assert_non_null(ctx.reason);
    assert_true(oracle_get(&scores, 1, 1, 3, 0) == 3);
    assert_memory_equal(holders, c.cache.holders, bytes);
    for (int64_t i = 0; i < 18; i++)
      same_row(&c.cache, &c.seq[0], &c.own_k[0], 0, i / 9, i % 9, i % 9);
  }
  test_mem_release();
}
