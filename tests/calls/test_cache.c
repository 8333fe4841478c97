/* tests/calls/test_cache.c owns the pages of a cache: what append, fork, rollback and release do to rows,
 * tables and holders, against a model that keeps the rows of each sequence in one piece. Rejections
 * are in tests/calls/test_cache_reject.c. */

#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "paged.h"

/* What the model makes of an append: the status, then the rows. */
static void step_append(paged *m, test_rng *rng) {
  const int64_t first = test_range(rng, 0, PAGED_SEQUENCES - 1);
  const int64_t n = test_range(rng, 0, PAGED_SEQUENCES - first);
  paged_append(m, first, n, (int)(test_u64(rng) % 3), test_u64(rng) % 5 ? 3 : m->most, rng);
}

static void step(paged *m, test_rng *rng) {
  const int64_t a = test_range(rng, 0, PAGED_SEQUENCES - 1),
                b = test_range(rng, 0, PAGED_SEQUENCES - 1);
  const int64_t len = m->s[a].len;
  switch (test_u64(rng) % 12) {
    case 0:
    case 1: paged_fork(m, a, b); break;
    case 2: paged_rollback(m, a, test_range(rng, len < 4 ? 0 : len - 4, len + 1)); break;
    case 3: paged_rollback(m, a, test_range(rng, -1, len)); break;
    case 4: paged_release(m, a); break;
    default: step_append(m, rng);
  }
  paged_check(m);
}

static void walk(const paged_shape *shape, int64_t steps, test_rng *rng) {
  paged *m = paged_open(shape, rng);
  while (steps-- > 0) step(m, rng);
  for (int64_t a = 0; a < PAGED_SEQUENCES; a++) paged_release(m, a);
  paged_check(m);
  for (int64_t p = 0; p < m->cache.k.batch; p++) assert_int_equal(m->cache.holders[p], 0);
}

/* Random operations over page sizes, with too few pages for all. */
void A1_cache_model(void **state) {
  (void)state;
  static const int64_t pages[] = {1, 3, 16, 40};
  test_rng rng = test_seed(700);
  for (int64_t n = 0; n < test_count(24, 8); n++) {
    paged_shape x = paged_plain(test_range(&rng, 4, 30), pages[n % 4]);
    x.table_len = n % 4 == 3 ? 1 : 40 / pages[n % 4] + 1;
    x.byhand = (int)(n / 4 % 3);
    x.p.k_dtype = (attn_dtype)(n % 3), x.p.v_dtype = (attn_dtype)(n / 2 % 3);
    x.from = (attn_dtype)(n / 3 % 3);
    x.p.latent = n % 5 == 4;
    if (x.p.latent) x.p.v_heads = x.p.k_heads, x.p.dv = x.p.dk - 1;
    walk(&x, test_count(120, 40), &rng);
  }
}

/* Quantised rows: the codes and scales are those of attn_quantize. */
void A1_cache_quantised(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3, ATTN_F32};
  test_rng rng = test_seed(701);
  for (int64_t n = 0; n < test_count(16, 8); n++) {
    paged_shape x = paged_plain(12, n % 3 + 1);
    x.table_len = 14;
    x.p.dk = n & 1 ? 71 : 5, x.p.dv = n & 2 ? 33 : 64;
    x.p.k_dtype = types[n % 4], x.p.v_dtype = types[(n / 4 + n) % 4];
    if (x.p.k_dtype != ATTN_F32) x.p.k_group = n & 1 ? 32 : 0;
    if (x.p.v_dtype != ATTN_F32) x.p.v_group = n & 2 ? 64 : 0;
    x.p.k_zero = x.p.k_dtype >= ATTN_I8 && x.p.k_dtype <= ATTN_I4 && n / 4 % 2;
    x.p.v_zero = x.p.v_dtype >= ATTN_I8 && x.p.v_dtype <= ATTN_I4 && n / 8 % 2;
    x.from = (attn_dtype)(n % 3);
    x.p.latent = n == 5;
    if (x.p.latent) x.p.v_heads = 0, x.p.dv = 9, x.p.v_group = 0, x.p.v_zero = 0;
    walk(&x, test_count(60, 20), &rng);
  }
}

/* Rings: the keys a window shows are there, however often it has come round or gone back. */
void A1_cache_ring(void **state) {
  (void)state;
  static const int64_t page[] = {1, 3, 16};
  test_rng rng = test_seed(702);
  for (int64_t n = 0; n < test_count(36, 12); n++) {
    paged_shape x = paged_plain(test_range(&rng, 6, 30), page[n % 3]);
    x.table_len = n % 3 == 2 ? test_range(&rng, 1, 2) : test_range(&rng, 2, 9);
    const int64_t room = x.table_len * page[n % 3];
    x.p.keep = n % 4 ? test_range(&rng, 0, room / 2) : 0;
    x.p.window = test_range(&rng, 1, room - x.p.keep);
    walk(&x, test_count(150, 50), &rng);
  }
}

/* A last page that two hold is copied, once; the last holder writes where it is. */
void A1_cache_copy_on_write(void **state) {
  (void)state;
  test_rng rng = test_seed(703);
  paged_shape x = paged_plain(8, 4);
  x.table_len = 4;
  paged *m = paged_open(&x, &rng);
  paged_append_rows(m, 0, 6, &rng);
  paged_fork(m, 0, 1), paged_fork(m, 0, 2);
  assert_int_equal(m->cache.holders[m->s[0].table[1]], 3);
  const int32_t shared = m->s[0].table[1];
  paged_append(m, 0, 3, 0, 1, &rng); /* all three in one call: two copies */
  paged_check(m);
  assert_int_equal(m->s[2].table[1], shared);
  assert_int_not_equal(m->s[0].table[1], shared);
  assert_int_not_equal(m->s[1].table[1], shared);
  assert_int_equal(m->s[0].table[0], m->s[2].table[0]);
  assert_int_equal(m->cache.holders[m->s[0].table[0]], 3);
  /* going back into a shared page, and on from there */
  paged_fork(m, 0, 3);
  paged_rollback(m, 3, 2);
  paged_append_rows(m, 3, 1, &rng);
  paged_check(m);
  assert_int_not_equal(m->s[3].table[0], m->s[0].table[0]);
}

/* With exactly the pages that are needed an append succeeds; with one less nothing changes. */
void A1_cache_full(void **state) {
  (void)state;
  test_rng rng = test_seed(704);
  for (int64_t pages = 4; pages <= 5; pages++) {
    paged_shape x = paged_plain(pages, 4);
    x.table_len = 4;
    paged *m = paged_open(&x, &rng);
    paged_append_rows(m, 0, 5, &rng);
    paged_fork(m, 0, 1), paged_fork(m, 0, 2);
    /* two copies, and the sequence that keeps its page needs another one: three more */
    int64_t rows[] = {1, 3, 4};
    attn_status status = paged_append_each(m, 0, 3, rows, &rng);
    assert_int_equal(status, pages == 4 ? ATTN_E_FULL : ATTN_OK);
    paged_check(m);
    assert_int_equal(m->s[2].len, pages == 4 ? 5 : 9);
  }
  paged_shape x = paged_plain(9, 4); /* the table, not the cache, has no room */
  x.table_len = 2;
  paged *m = paged_open(&x, &rng);
  paged_append_rows(m, 0, 8, &rng);
  int64_t one[] = {1};
  assert_int_equal(paged_append_each(m, 0, 1, one, &rng), ATTN_E_FULL);
}

/* Appending token by token stores what appending all at once does, and looks at little: the holders
 * and tables of pages that are full may say what they like. */
void A1_cache_token_by_token(void **state) {
  (void)state;
  test_rng rng = test_seed(705);
  paged_shape x = paged_plain(8, 3);
  x.table_len = 8;
  paged *m = paged_open(&x, &rng);
  for (int n = 0; n < 20; n++) paged_append_rows(m, 0, 1, &rng);
  paged_check(m);
  const int32_t kept = m->s[0].table[2];
  m->s[0].table[2] = -5;
  paged_append_rows(m, 0, 1, &rng);
  m->s[0].table[2] = kept;
  paged_check(m);
}

/* Several workers store what one does, in the caches of three sequences, two of which share a page, one of them a
 * ring's: the same bytes of rows, scales, tables and holders. */
void A1_cache_append_workers(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_I8, ATTN_I4};
  enum { N = 3, FIRST = 21, ROWS = 90, PAGES = 64, PAGE = 16, DK = 66, DV = 40 };
  for (int n = 0; n < 8; n++) {
    attn_cache_params p;
    memset(&p, 0, sizeof p);
    p.k_heads = 3, p.v_heads = 3, p.dk = DK, p.dv = DV, p.pages = PAGES, p.page = PAGE;
    p.k_dtype = p.v_dtype = types[n % 4], p.k_zero = n % 4 > 1;
    if (n > 3) p.window = 4;
    const size_t size = attn_cache_size(&p);
    const int64_t part = n > 3 ? 108 / PAGE : PAGES / N; /* a ring comes round */
    unsigned char *memory[2];
    int32_t *tables[2];
    attn_sequence s[2][N];
    attn_cache c[2];
    for (int way = 0; way < 2; way++) {
      test_rng rng = test_seed(706);
      attn_ctx ctx = test_ctx();
      memory[way] = test_mem(size), tables[way] = test_mem(sizeof(int32_t) * N * (size_t)part);
      assert_int_equal(attn_cache_open(&c[way], memory[way], size, &p, &ctx), ATTN_OK);
      for (int b = 0; b < N; b++)
        assert_int_equal(attn_sequence_init(&s[way][b], tables[way] + b * part, part, &ctx),
                         ATTN_OK);
      for (int turn = 0; turn < 2; turn++) {
        const int64_t rows = turn ? ROWS : FIRST, many = turn ? N : 1;
        const attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, many, 3, rows, DK);
        const attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, many, 3, rows, DV);
        test_fill(k, &rng, test_normal), test_fill(v, &rng, test_normal);
        ctx.workers = way ? 3 : 0;
        ctx.parallel_for = n % 2 ? test_parallel_threads : test_parallel_backward;
        assert_int_equal(attn_cache_append(&c[way], s[way], many, k, v, NULL, &ctx), ATTN_OK);
        assert_int_equal(ctx.report.workers, way && turn ? 3 : 1);
        if (turn == 0)
          assert_int_equal(attn_cache_fork(&c[way], &s[way][1], &s[way][0], &ctx), ATTN_OK);
      }
    }
    assert_int_equal(c[0].next_free, c[1].next_free);
    assert_memory_equal(memory[0], memory[1], size);
    assert_memory_equal(tables[0], tables[1], sizeof(int32_t) * N * (size_t)part);
    for (int b = 0; b < N; b++)
      assert_true(s[0][b].len == s[1][b].len && s[0][b].high == s[1][b].high);
  }
}

/* Sizes: a row of each part counts, and the parts lie apart. */
void A1_cache_layout(void **state) {
  (void)state;
  attn_cache_params p;
  attn_cache c;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.k_heads = 2, p.dk = 33, p.dv = 7, p.v_heads = 3, p.pages = 5, p.page = 4;
  p.k_dtype = ATTN_I4, p.v_dtype = ATTN_E4M3, p.k_zero = 1, p.k_group = 32;
  const size_t size = attn_cache_size(&p), rows = 5 * 2 * 4;
  assert_true(size >= rows * (17 + 16) + 5 * 3 * 4 * (7 + 4) + 20);
  unsigned char *memory = test_mem(size);
  assert_int_equal(attn_cache_open(&c, memory, size, &p, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
  for (size_t i = 0; i < size; i++) {
    const int holder =
        memory + i >= (unsigned char *)c.holders && memory + i < (unsigned char *)(c.holders + 5);
    assert_int_equal(memory[i], holder ? 0 : 0xA5);
  }
  assert_int_equal(c.k.stride_len, 34);
  assert_int_equal(c.k.stride_batch, 2 * 4 * 34);
  assert_int_equal(c.k_scales.stride_batch, 2 * 4 * 2);
  assert_non_null(c.k_scales.zero);
  assert_null(c.v_scales.zero);
  assert_non_null(c.v_scales.scale);
  assert_int_equal(c.v.heads, 3);
  assert_int_equal(c.v.dim, 7);
  p.latent = 1, p.v_heads = 0;
  assert_true(attn_cache_size(&p) < size);
  assert_int_equal(attn_cache_open(&c, memory, size, &p, &ctx), ATTN_OK);
  assert_null(c.v.data);
  assert_int_equal(c.v.dim, 7);
}

/* After any operations, attention over the pages has the bits of attention over the rows in one
 * piece. */
void A1_cache_attend(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_F32, ATTN_I8, ATTN_BF16, ATTN_I4, ATTN_E4M3};
  test_rng rng = test_seed(707);
  for (int64_t n = 0; n < test_count(15, 5); n++) {
    paged_shape x = paged_plain(20, n % 3 == 2 ? 16 : n % 3 + 1);
    x.table_len = n % 3 == 2 ? 2 : 15;
    x.p.dk = x.p.dv = 32 + n % 2, x.p.k_dtype = types[n % 5], x.p.v_dtype = types[n / 2 % 5];
    if (n % 4 == 1) x.p.window = 5, x.p.keep = n % 3;
    if (n % 4 == 3) x.p.latent = 1, x.p.v_heads = x.p.k_heads, x.p.dv = 20;
    paged *m = paged_open(&x, &rng);
    for (int i = 0; i < 8; i++) {
      for (int j = 0; j < 6; j++) step(m, &rng);
      paged_attend(m, i % 2 ? 1 : test_range(&rng, 1, 20), &rng);
    }
  }
}

/* No byte outside the arguments is touched. */
void A1_cache_guard_pages(void **state) {
  (void)state;
  test_rng rng = test_seed(706);
  for (int n = 0; n < 4; n++) {
    test_where = n & 1 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    paged_shape x = paged_plain(9, 3);
    x.table_len = 4;
    x.p.dk = 3, x.p.dv = 5, x.p.k_dtype = n & 2 ? ATTN_I4 : ATTN_F16;
    x.p.k_zero = n & 2 ? 1 : 0;
    walk(&x, 30, &rng);
  }
}
