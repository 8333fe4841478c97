/* tests/calls/test_cache_reject.c owns what the cache refuses: each rule broken once, with every byte of the
 * cache, its tables and its sequences left as it was. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "paged.h"

/* One call about a cache whose sequence 0 has 7 rows in pages of 3. */
typedef struct scene {
  paged *m;
  attn_tensor k, v;
  attn_append_params p;
  int64_t n;
  attn_ctx ctx;
} scene;

static scene scene_of(attn_dtype type, int64_t window, test_rng *rng) {
  scene s;
  paged_shape x = paged_plain(8, 3);
  x.p.k_dtype = x.p.v_dtype = type;
  x.table_len = 5, x.p.window = window, x.p.keep = window ? 2 : 0;
  memset(&s, 0, sizeof s);
  s.m = paged_open(&x, rng);
  for (int n = 0; n < 7; n++) paged_append_rows(s.m, 0, 1, rng);
  s.k = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 2, 5);
  s.v = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 2, 3);
  test_fill(s.k, rng, test_normal);
  test_fill(s.v, rng, test_normal);
  s.n = 2, s.ctx = test_ctx();
  return s;
}

static void refuse(scene *s, attn_status want, const char *word, attn_status got) {
  if (got != want || !s->ctx.reason || !strstr(s->ctx.reason, word))
    fail_msg("%s (%s), not %s (%s)", attn_status_string(got), s->ctx.reason ? s->ctx.reason : "-",
             attn_status_string(want), word);
  paged_unchanged(s->m);
}

static void refuse_append(scene *s, attn_status want, const char *word) {
  paged_remember(s->m);
  refuse(s, want, word, attn_cache_append(&s->m->cache, s->m->s, s->n, s->k, s->v, &s->p, &s->ctx));
}

/* Rules of the rows that are appended. */
void A1_cache_rejects_rows(void **state) {
  (void)state;
  static const int64_t minus[] = {1, -1}, many[] = {1, 3}, fall[] = {0, 2, 1}, late[] = {1, 2, 2},
                       beyond[] = {0, 1, 3};
  test_rng rng = test_seed(720);
  for (int n = 0; n < 19; n++) {
    scene s = scene_of(n == 17 ? ATTN_I8 : n == 18 ? ATTN_E4M3 : ATTN_F32, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s.n = -1, word = "n must"; break;
      case 1: s.n = 1, word = "batch"; break;
      case 2: s.k.heads = 1, want = ATTN_E_HEADS, word = "k.heads"; break;
      case 3: s.v.heads = 2, want = ATTN_E_HEADS, word = "v.heads"; break;
      case 4: s.k.dim = 4, word = "k.dim"; break;
      case 5: s.v.dim = 2, word = "v.dim"; break;
      case 6: s.v.len = 1, word = "len"; break;
      case 7: s.k.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "k.dtype"; break;
      case 8: s.v.data = NULL, want = ATTN_E_NULL, word = "v.data"; break;
      case 9: s.p.rows = minus, want = ATTN_E_RANGE, word = "rows"; break;
      case 10: s.p.rows = many, want = ATTN_E_RANGE, word = "rows"; break;
      case 11: s.p.rows = s.p.indptr = many, want = ATTN_E_RANGE, word = "indptr"; break;
      case 12:
      case 13:
      case 14:
        s.k.batch = s.v.batch = 1;
        s.p.indptr = n == 12 ? fall : n == 13 ? late : beyond;
        want = ATTN_E_INDEX, word = "indptr";
        break;
      case 15: s.k.data = s.m->cache.k.data, want = ATTN_E_OVERLAP, word = "memory"; break;
      case 16: s.k.data = (char *)s.k.data + 1, want = ATTN_E_ALIGN, word = "k.data"; break;
      default: /* NaN, in one row only, of a type that cannot hold it */
        test_fill_row(s.k, 1, 1, 1, n == 17 ? (double)NAN : (double)INFINITY);
        want = ATTN_E_VALUE, word = "NaN";
    }
    refuse_append(&s, want, word);
  }
  scene s = scene_of(ATTN_F32, 0, &rng); /* floats keep what they are given */
  test_fill_row(s.k, 1, 1, 1, (double)NAN);
  assert_int_equal(attn_cache_append(&s.m->cache, s.m->s, 2, s.k, s.v, NULL, &s.ctx), ATTN_OK);
  s = scene_of(ATTN_F32, 11, &rng); /* 13 rows go round, 11 are shown: 3 at once */
  s.k.len = s.v.len = 4, s.k.stride_len = s.v.stride_len = 0;
  refuse_append(&s, ATTN_E_RANGE, "ring");
}

/* Rules of the cache and of its sequences, in every call that they have part in. */
void A1_cache_rejects_structs(void **state) {
  (void)state;
  test_rng rng = test_seed(721);
  for (int n = 0; n < 34; n++) {
    const int ring = n >= 28;
    scene s = scene_of(n == 11 || n == 12 ? ATTN_I8 : ATTN_F32, ring ? 5 : 0, &rng);
    attn_cache *c = &s.m->cache;
    attn_sequence *x = &s.m->s[0];
    attn_status want = ATTN_E_RANGE;
    const char *word = "";
    int only_append = 0;
    float scale = 1;
    switch (n) {
      case 0: c->k.dtype = (attn_dtype)9, want = ATTN_E_DTYPE, word = "cache.k"; break;
      case 1: c->k.data = NULL, want = ATTN_E_NULL, word = "cache.k"; break;
      case 2: c->v.len = 2, want = ATTN_E_SHAPE, word = "cache.v"; break;
      case 3: c->v.batch = 7, want = ATTN_E_SHAPE, word = "cache.v"; break;
      case 4: c->v.data = NULL, c->v.dim = 6, want = ATTN_E_SHAPE, word = "latent"; break;
      case 5: c->holders = NULL, want = ATTN_E_NULL, word = "holders"; break;
      case 6:
        c->holders = (int32_t *)(void *)((char *)c->holders + 2);
        want = ATTN_E_ALIGN, word = "holders";
        break;
      case 7: c->next_free = 9, word = "next_free"; break;
      case 8: c->next_free = -1, word = "next_free"; break;
      case 9: c->window = -1, word = "window"; break;
      case 10: c->keep = 1, word = "keep"; break;
      case 11: c->k_scales.scale = NULL, want = ATTN_E_NULL, word = "k_scales"; break;
      case 12: c->v_scales.group = 3, want = ATTN_E_SHAPE, word = "v_scales"; break;
      case 13: c->k_scales.scale = &scale, want = ATTN_E_DTYPE, word = "k_scales"; break;
      case 14: c->k.heads = 0, want = ATTN_E_SHAPE, word = "heads"; break;
      case 15: c->k.len = 0, want = ATTN_E_SHAPE, word = "len"; break;
      case 16: x->len = -1, word = "len"; break;
      case 17: x->len = x->high = 16, word = "len"; break;
      case 18: x->high = 6, word = "high"; break;
      case 19: x->high = 8, word = "high"; break;
      case 20: x->table_len = -1, word = "table_len"; break;
      case 21: x->table = NULL, want = ATTN_E_NULL, word = "table"; break;
      case 22:
        x->table = (int32_t *)(void *)((char *)x->table + 2);
        want = ATTN_E_ALIGN, word = "table";
        break;
      case 23: x->table = (int32_t *)c->k.data, want = ATTN_E_OVERLAP, word = "table"; break;
      case 24: x->table[2] = 8, want = ATTN_E_PAGE, word = "page"; break;
      case 25: x->table[2] = -1, want = ATTN_E_PAGE, word = "page"; break;
      case 26: c->holders[x->table[2]] = 0, want = ATTN_E_PAGE, word = "page"; break;
      case 27: c->holders[x->table[2]] = -3, want = ATTN_E_PAGE, word = "page"; break;
      case 28: c->keep = 15, word = "keep"; break;
      case 29: x->len = x->high = 16, c->window = 14, word = "window"; break;
      case 30: x->high = 20, word = "high"; break;
      case 31: x->len = 17, x->high = 26, word = "high"; break;
      case 32: x->len = x->high = INT64_MAX / 2, word = "len"; break;
      default: c->k.stride_len = 0, want = ATTN_E_STRIDE, word = "cache.k"; only_append = 1;
    }
    refuse_append(&s, want, word);
    if (only_append) continue;
    refuse(&s, want, word, attn_cache_fork(c, &s.m->s[1], x, &s.ctx));
    refuse(&s, want, word, attn_cache_release(c, x, &s.ctx));
    refuse(&s, want, word, attn_cache_rollback(c, x, 4, &s.ctx));
  }
}

/* Two sequences that are one; pages that more name than hold. */
void A1_cache_rejects_doubles(void **state) {
  (void)state;
  test_rng rng = test_seed(722);
  for (int n = 0; n < 5; n++) {
    scene s = scene_of(ATTN_F32, 0, &rng);
    attn_sequence *x = s.m->s;
    attn_status want = ATTN_E_PAGE;
    if (n == 0) x[1] = x[0];                           /* copied by hand */
    if (n == 1) memset(&x[0].len, 0, 16), x[1] = x[0]; /* empty, with one table */
    if (n == 2) x[1].table = x[0].table + 4;           /* tables that overlap */
    if (n == 3) {                                      /* a page in two tables, held once */
      x[1].table[0] = x[0].table[2];
      x[1].len = x[1].high = 1;
    }
    if (n == 4) s.p.rows = (const int64_t *)(const void *)x[1].table, want = ATTN_E_OVERLAP;
    if (n == 4 && (uintptr_t)s.p.rows % 8)
      s.p.rows = (const int64_t *)(const void *)(x[1].table - 1);
    refuse_append(&s, want, n == 3 ? "page" : "share");
  }
}

/* Rules of fork, rollback and attn_cache_open. */
void A1_cache_rejects_calls(void **state) {
  (void)state;
  test_rng rng = test_seed(723);
  scene s = scene_of(ATTN_F32, 0, &rng);
  attn_cache *c = &s.m->cache;
  attn_sequence *x = s.m->s;
  paged_remember(s.m);
  refuse(&s, ATTN_E_NULL, "cache", attn_cache_fork(NULL, x + 1, x, &s.ctx));
  refuse(&s, ATTN_E_NULL, "child", attn_cache_fork(c, NULL, x, &s.ctx));
  refuse(&s, ATTN_E_NULL, "parent", attn_cache_fork(c, x + 1, NULL, &s.ctx));
  refuse(&s, ATTN_E_NULL, "sequence", attn_cache_rollback(c, NULL, 0, &s.ctx));
  refuse(&s, ATTN_E_NULL, "sequence", attn_cache_release(c, NULL, &s.ctx));
  refuse(&s, ATTN_E_NULL, "cache", attn_cache_append(NULL, x, 2, s.k, s.v, NULL, &s.ctx));
  refuse(&s, ATTN_E_NULL, "sequences", attn_cache_append(c, NULL, 2, s.k, s.v, NULL, &s.ctx));
  refuse(&s, ATTN_E_RANGE, "child", attn_cache_fork(c, x, x, &s.ctx));
  refuse(&s, ATTN_E_OVERLAP, "table", attn_cache_fork(c, x + 2, x + 2, &s.ctx));
  refuse(&s, ATTN_E_ROLLBACK, "len", attn_cache_rollback(c, x, 8, &s.ctx));
  refuse(&s, ATTN_E_ROLLBACK, "len", attn_cache_rollback(c, x, -1, &s.ctx));
  s.ctx.isa = (attn_isa)77;
  refuse(&s, ATTN_E_ISA, "isa", attn_cache_release(c, x, &s.ctx));
  s.ctx = test_ctx(), s.ctx.workers = -1;
  refuse(&s, ATTN_E_CTX, "workers", attn_cache_append(c, x, 2, s.k, s.v, NULL, &s.ctx));
  s.ctx = test_ctx();
  x[1].table_len = 2, paged_remember(s.m);
  refuse(&s, ATTN_E_FULL, "child", attn_cache_fork(c, x + 1, x, &s.ctx));
  x[1].table_len = 5, c->window = 3, x[1].table_len = 4, paged_remember(s.m);
  refuse(&s, ATTN_E_RANGE, "child.table_len", attn_cache_fork(c, x + 1, x, &s.ctx));
}

void A1_cache_rejects_open(void **state) {
  (void)state;
  const int64_t huge = (int64_t)1 << 60;
  attn_ctx ctx = test_ctx();
  for (int n = 0; n < 24; n++) {
    attn_cache_params p = paged_plain(3, 4).p;
    size_t size = attn_cache_size(&p), bytes = size;
    unsigned char *memory = test_mem(size + 8);
    attn_cache c, copy;
    attn_status want = ATTN_E_SHAPE;
    void *at = memory;
    memset(&c, 0xA5, sizeof c), copy = c;
    switch (n) {
      case 0: p.k_dtype = (attn_dtype)6, want = ATTN_E_DTYPE; break;
      case 1: p.v_dtype = (attn_dtype)-1, want = ATTN_E_DTYPE; break;
      case 2: p.pages = 0; break;
      case 3: p.page = 0; break;
      case 4: p.pages = (int64_t)1 << 31; break;
      case 5: p.k_heads = 0; break;
      case 6: p.v_heads = -1; break;
      case 7: p.dk = 0; break;
      case 8: p.dv = -1; break;
      case 9: p.latent = 1, p.v_heads = 3; break;
      case 10: p.latent = 1, p.v_heads = 0, p.dv = 6; break;
      case 11: p.k_group = 32; break;
      case 12: p.k_dtype = ATTN_I8, p.k_group = 33; break;
      case 13: p.v_zero = 1; break;
      case 14: p.v_dtype = ATTN_E4M3, p.v_zero = 1; break;
      case 15: p.window = -1, want = ATTN_E_RANGE; break;
      case 16: p.keep = 1, want = ATTN_E_RANGE; break;
      case 17: p.page = huge, want = ATTN_E_OVERFLOW; break;
      case 18: p.k_dtype = ATTN_I4, p.page = huge, want = ATTN_E_OVERFLOW; break;
      case 19: p.dk = huge, p.v_heads = 0, p.k_heads = huge, want = ATTN_E_OVERFLOW; break;
      case 20: bytes--, want = ATTN_E_WORKSPACE; break;
      case 21: at = memory + 2, want = ATTN_E_ALIGN; break;
      case 22: at = NULL, want = ATTN_E_NULL; break;
      default: p.keep = INT64_MAX, p.window = 1, want = ATTN_E_RANGE;
    }
    if (n < 20 || n == 23) assert_int_equal(attn_cache_size(&p), 0);
    const attn_status got = attn_cache_open(&c, at, bytes, &p, &ctx);
    if (got != want) fail_msg("case %d: %s", n, attn_status_string(got));
    assert_non_null(ctx.reason);
    assert_memory_equal(&c, &copy, sizeof c);
    for (size_t i = 0; i < size + 8; i++) assert_int_equal(memory[i], 0xA5);
  }
  assert_int_equal(attn_cache_size(NULL), 0);
  assert_int_equal(attn_cache_open(NULL, &ctx, 9, NULL, &ctx), ATTN_E_NULL);
}

/* What attention over a cache refuses; o stays as it was. */
void A1_cache_rejects_attention(void **state) {
  (void)state;
  enum {
    PLAIN,
    NO_CACHE,
    NO_SEQUENCES,
    NEGATIVE,
    BATCH,
    WIDTH,
    TYPES,
    MANY,
    EMPTY,
    PAGE,
    FREED,
    PAGE_SCALES,
    KV_LEN,
    Q_OFF,
    WINDOW,
    SCALE,
    NAN_SCALE,
    LENGTH,
    ROWS
  };
  static const struct {
    attn_status want;
    const char *word;
  } rules[ROWS] = {{ATTN_OK, ""},
                   {ATTN_E_NULL, "cache"},
                   {ATTN_E_NULL, "sequences"},
                   {ATTN_E_SHAPE, "n must"},
                   {ATTN_E_SHAPE, "q.batch"},
                   {ATTN_E_SHAPE, "k.dim"},
                   {ATTN_E_DTYPE, "dtype"},
                   {ATTN_E_RANGE, "more queries"},
                   {ATTN_E_RANGE, "more queries"},
                   {ATTN_E_PAGE, "table"},
                   {ATTN_E_PAGE, "table"},
                   {ATTN_E_PAGE, "table"},
                   {ATTN_E_RANGE, "kv_len"},
                   {ATTN_E_RANGE, "has_q_off"},
                   {ATTN_E_RANGE, "window"},
                   {ATTN_E_SCALE, "scale"},
                   {ATTN_E_SCALE, "scale"},
                   {ATTN_E_RANGE, "len"}};
  for (int rule = 0; rule < ROWS; rule++) {
    test_rng rng = test_seed(724);
    scene s = scene_of(ATTN_I8, rule == WINDOW ? 4 : 0, &rng);
    attn_cache cache = s.m->cache;
    attn_sequence *x = s.m->s;
    attn_sdpa_params p;
    int32_t keys[2] = {7, 7};
    attn_tensor q =
        test_tensor(rule == TYPES ? ATTN_I8 : ATTN_F32, TEST_BHTD, rule == BATCH ? 2 : 1, 2,
                    rule == MANY ? 8 : 2, rule == WIDTH ? 4 : 5);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, q.batch, 2, q.len, 3);
    int64_t n = 1;
    if (rule != TYPES) test_fill(q, &rng, test_normal);
    test_fill_row(o, 0, 1, 1, 123.0);
    memset(&p, 0, sizeof p);
    if (rule == NEGATIVE) n = -1;
    if (rule == EMPTY) x++;
    if (rule == PAGE || rule == PAGE_SCALES) x->table[1] = 100000000;
    if (rule == FREED) cache.holders[x->table[1]] = 0;
    if (rule == PAGE_SCALES || rule == SCALE || rule == NAN_SCALE) s.ctx.validate = 1;
    if (rule == SCALE) cache.k_scales.scale[x->table[1] * cache.k_scales.stride_batch] = 0.0f;
    if (rule == NAN_SCALE) cache.v_scales.scale[x->table[2] * cache.v_scales.stride_batch] = NAN;
    if (rule == KV_LEN) p.kv_len = keys;
    if (rule == Q_OFF) p.has_q_off = 1;
    if (rule == WINDOW) p.window = attn_window_of(3, -1);
    if (rule == LENGTH) x->len = x->high = 16;
    paged_remember(s.m);
    attn_status got = attn_cache_sdpa(o, q, rule == NO_CACHE ? NULL : &cache,
                                      rule == NO_SEQUENCES ? NULL : x, n, &p, &s.ctx);
    if (rule == PLAIN) {
      assert_int_equal(got, ATTN_OK);
      assert_true(((const float *)o.data)[o.stride_head + o.stride_len] != 123.0);
    } else {
      if (got != rules[rule].want || !s.ctx.reason || !strstr(s.ctx.reason, rules[rule].word))
        fail_msg("rule %d: %s (%s), not %s (%s)", rule, attn_status_string(got),
                 s.ctx.reason ? s.ctx.reason : "-", attn_status_string(rules[rule].want),
                 rules[rule].word);
      assert_true(((const float *)o.data)[o.stride_head + o.stride_len] == 123.0);
    }
    paged_unchanged(s.m);
    test_mem_release();
  }
}

/* An empty sequence is its table and zeros; a bad argument leaves it as it was. */
void A1_sequence_init(void **state) {
  (void)state;
  attn_ctx ctx = test_ctx();
  int32_t table[6];
  memset(table, 0x5A, sizeof table);
  attn_sequence s, before, want;
  memset(&s, 0xA5, sizeof s);
  memset(&want, 0, sizeof want);
  want.table = table, want.table_len = 6;
  before = s;
  static const struct {
    attn_status status;
    const char *word;
  } rule[] = {{ATTN_E_NULL, "sequence"},   {ATTN_E_NULL, "table"},  {ATTN_E_SHAPE, "table_len"},
              {ATTN_E_SHAPE, "table_len"}, {ATTN_E_ALIGN, "table"}, {ATTN_E_OVERFLOW, "array"},
              {ATTN_E_OVERLAP, "table"},   {ATTN_E_CTX, "workers"}};
  for (int n = 0; n < 8; n++) {
    const int64_t len = n == 2 ? 0 : n == 3 ? INT64_MIN : n == 5 ? INT64_MAX : 6;
    int32_t *t = n == 1   ? NULL
                 : n == 4 ? (int32_t *)(void *)((char *)table + 2)
                 : n == 6 ? (int32_t *)(void *)&s
                          : table;
    ctx.workers = n == 7 ? -1 : 0;
    assert_int_equal(attn_sequence_init(n ? &s : NULL, t, len, &ctx), rule[n].status);
    assert_non_null(strstr(ctx.reason, rule[n].word));
    assert_memory_equal(&s, &before, sizeof s);
  }
  ctx.workers = 0;
  assert_int_equal(attn_sequence_init(&s, table, 6, &ctx), ATTN_OK);
  assert_ptr_equal(s.table, table);
  assert_true(s.table_len == 6 && s.len == 0 && s.high == 0);
  for (int n = 0; n < 6; n++) assert_int_equal(table[n], 0x5A5A5A5A);
}
