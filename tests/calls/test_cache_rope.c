/* tests/calls/test_cache_rope.c owns M4 in a cache: keys that are rotated as they are stored, and those that may not
 * be. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "qk_norm.h"
#include "rope.h"

enum { N = 3, PAGES = 48, TABLE = 12 };

/* A cache with N sequences over memory of its own. */
typedef struct stored {
  attn_cache cache;
  attn_sequence s[N];
  unsigned char *memory;
  size_t size;
} stored;

static stored open_cache(const attn_cache_params *p) {
  stored c;
  attn_ctx ctx = test_ctx();
  memset(&c, 0, sizeof c);
  c.size = attn_cache_size(p);
  assert_true(c.size > 0);
  c.memory = test_mem(c.size + 64);
  c.memory += (64 - (uintptr_t)c.memory % 64) % 64;
  memset(c.memory, 0x5a, c.size);
  assert_int_equal(attn_cache_open(&c.cache, c.memory, c.size, p, &ctx), ATTN_OK);
  for (int b = 0; b < N; b++) c.s[b].table = test_mem(TABLE * 4), c.s[b].table_len = TABLE;
  for (int b = 0; b < N; b++) memset(c.s[b].table, 0, TABLE * 4);
  return c;
}

static void same_cache(const stored *a, const stored *b, const char *what) {
  for (int i = 0; i < N; i++) {
    assert_int_equal(a->s[i].len, b->s[i].len);
    assert_memory_equal(a->s[i].table, b->s[i].table, TABLE * 4);
  }
  for (size_t i = 0; i < a->size; i++)
    if (a->memory[i] != b->memory[i]) fail_msg("%s: byte %d", what, (int)i);
}

/* The same bytes as attn_rope, with a norm or without, with a position for every row, then an append: each step of some rows a sequence. */
void M4_append_is_rope_then_append(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8, ATTN_I4, ATTN_E4M3};
  test_rng rng = test_seed(1850);
  for (int n = 0; n < test_count(48, 24); n++, test_mem_release()) {
    attn_cache_params x;
    memset(&x, 0, sizeof x);
    x.k_dtype = types[n % 6], x.v_dtype = types[n / 2 % 3];
    x.k_heads = 2, x.dk = test_range(&rng, 2, 30) * 2, x.dv = 5, x.pages = PAGES;
    x.page = n % 4 ? test_range(&rng, 2, 7) : 16;
    if (n % 7 == 3) x.window = 9, x.keep = 1;
    if (n % 7 == 5) x.latent = 1, x.dv = 2;
    if (x.latent) x.v_dtype = x.k_dtype;
    stored a = open_cache(&x), b = open_cache(&x);
    attn_rope_params rope;
    memset(&rope, 0, sizeof rope);
    rope.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED, rope.start = n % 5 * 7 - 9;
    if (n % 3 == 1) rope.rotary_dim = x.dk / 4 * 2, rope.has_rotary_dim = 1;
    if (n % 4 == 2) rope.type = ATTN_ROPE_LINEAR, rope.factor = 3, rope.attention_factor = 1.5;
    if (n % 5 == 2) rope.xpos = 512;
    if (n % 11 == 4) {
      int64_t pairs = (rope.has_rotary_dim ? rope.rotary_dim : x.dk) / 2;
      if (pairs > 0) {
        rope.type = ATTN_ROPE_DEFAULT, rope.attention_factor = rope.xpos = 0;
        rope.cos = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 90, pairs);
        rope.sin = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 90, pairs), rope.start = 3;
        test_fill(rope.cos, &rng, test_normal), test_fill(rope.sin, &rng, test_normal);
      }
    }
    attn_qk_norm norm =
        qk_norm_described(&rng, n / 2 % 4, 2, 2, x.dk); /* before rotation or after */
    norm.after = n % 5 == 1;
    if (n % 2) rope.norm = &norm;
    if (x.latent) rope.norm = NULL; /* it has one head of keys */
    for (int step = 0; step < 4; step++) {
      const int ragged = (n + step) % 3 == 1, given = n % 4 == 3, each = !ragged && step & 1;
      int64_t rows[N], indptr[N + 1] = {0}, most = 0, total = 0;
      for (int i = 0; i < N; i++) {
        rows[i] = test_range(&rng, 0, n % 7 == 3 ? 3 : 8);
        if (step == 3) rows[i] = 1;
        most = rows[i] > most ? rows[i] : most, indptr[i + 1] = total += rows[i];
      }
      const int64_t batch = ragged ? 1 : N, len = ragged ? total : most;
      attn_tensor k = test_tensor((attn_dtype)(n / 3 % 3), TEST_BTHD, batch, 2, len, x.dk);
      attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, batch, 2, len, x.dv);
      test_fill(k, &rng, test_normal), test_fill(v, &rng, test_normal);
      if (x.latent) v.data = NULL;
      int64_t *at = test_mem((size_t)(batch * len) * sizeof *at + 1);
      int64_t *own = test_mem((size_t)(batch * len) * sizeof *own + 1);
      for (int64_t i = 0; i < batch * len; i++) own[i] = test_range(&rng, 0, 80), at[i] = 4;
      attn_rope_params turn = rope, by_hand = rope;
      if (given) turn.positions = own, turn.positions_per_batch = each;
      for (int s = 0; s < N; s++)
        for (int64_t i = 0; i < rows[s]; i++) {
          const int64_t place = ragged ? indptr[s] + i : s * len + i;
          at[place] = given ? own[ragged || !each ? (ragged ? place : i) : place]
                            : rope.start + a.s[s].len + i;
        }
      by_hand.positions = at, by_hand.positions_per_batch = 1, by_hand.keys = 1;
      const int coded = x.k_dtype >= ATTN_I8;
      attn_tensor turned =
          test_tensor(coded ? ATTN_F32 : x.k_dtype, TEST_BHTD, batch, 2, len, x.dk);
      attn_append_params p;
      memset(&p, 0, sizeof p);
      if (ragged)
        p.indptr = indptr;
      else
        p.rows = rows;
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_rope(turned, k, &by_hand, &ctx), ATTN_OK);
      attn_status status = attn_cache_append(&b.cache, b.s, N, turned, v, &p, &ctx);
      if (status != ATTN_OK) fail_msg("plain append: %s", ctx.reason);
      p.rope = &turn;
      ctx.workers = 1 + step, ctx.parallel_for = test_parallel_threads;
      ctx.workspace_size = attn_cache_append_workspace(&a.cache, a.s, N, k, v, &p, &ctx);
      ctx.workspace = test_mem(ctx.workspace_size);
      const int64_t mallocs = test_malloc_calls;
      status = attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx);
      if (status != ATTN_OK) fail_msg("rotated append: %s", ctx.reason);
      assert_int_equal(ctx.report.isa, test_isa);
      assert_int_equal(test_malloc_calls, mallocs);
      char what[40];
      snprintf(what, sizeof what, "case %d, step %d", n, step);
      same_cache(&a, &b, what);
    }
  }
}

/* Several positions a row (sections of M-RoPE, both ways round, axes of pictures) and real ones, of all sequences or
 * each its own, of rows of equal length or end to end: what is stored is the rotation of each row by its positions. */
void M4_append_several_positions(void **state) {
  (void)state;
  enum { D = 16, T = 7 };
  test_rng rng = test_seed(1853);
  for (int n = 0; n < 48; n++, test_mem_release()) {
    const int form = n % 4, real = n / 4 % 2, ragged = n / 8 % 2, each = n / 16 % 2;
    const int axes = form == 0 ? 1 : form == 3 ? 2 : 3;
    attn_cache_params x;
    memset(&x, 0, sizeof x);
    x.k_heads = 2, x.dk = D + 2, x.dv = 3, x.pages = PAGES, x.page = 5;
    x.k_dtype = n / 32 ? ATTN_F16 : ATTN_F32;
    stored a = open_cache(&x);
    attn_rope_params rope;
    attn_append_params p;
    int64_t rows[N] = {T, 3, 0}, indptr[N + 1] = {0};
    memset(&rope, 0, sizeof rope), memset(&p, 0, sizeof p);
    for (int s = 0; s < N; s++) indptr[s + 1] = indptr[s] + rows[s];
    const int64_t batch = ragged ? 1 : N, len = ragged ? indptr[N] : T;
    rope.rotary_dim = D, rope.layout = n % 3 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    if (axes == 3) rope.mrope_section[0] = 2, rope.mrope_section[1] = rope.mrope_section[2] = 3;
    rope.mrope_interleaved = form == 2, rope.axial = axes == 2;
    rope.positions_per_batch = each;
    int64_t *whole = test_mem((size_t)(axes * batch * len) * sizeof *whole);
    double *at = test_mem((size_t)(axes * batch * len) * sizeof *at);
    for (int64_t e = 0; e < axes * batch * len; e++)
      whole[e] = test_range(&rng, -300, 300), at[e] = (double)test_range(&rng, -3000, 3000) / 8;
    if (real)
      rope.real_positions = at;
    else
      rope.positions = whole;
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, batch, 2, len, D + 2);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, batch, 2, len, 3);
    attn_tensor got = test_tensor(x.k_dtype, TEST_BHTD, batch, 2, len, D + 2);
    test_fill(k, &rng, test_normal), test_fill(v, &rng, test_normal);
    if (ragged)
      p.indptr = indptr;
    else
      p.rows = rows;
    p.rope = &rope;
    attn_ctx ctx = test_ctx();
    const attn_status status = attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx);
    if (status != ATTN_OK) fail_msg("case %d: %s", n, ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    attn_rope_params keys = rope;
    keys.keys = 1;
    rope_turns(got, k, &keys); /* rows that no sequence has stay as they are here */
    for (int s = 0; s < N; s++)
      for (int64_t i = 0; i < rows[s]; i++)
        for (int64_t h = 0; h < 2; h++)
          for (int64_t c = 0; c < D + 2; c++)
            oracle_set(&got, ragged ? 0 : s, h, ragged ? indptr[s] + i : i, c,
                       oracle_get(&a.cache.k, a.s[s].table[i / 5], h, i % 5, c));
    rope_compare(got, k, &keys);
    /* an axis that is not there, a number that is none: nothing is stored */
    unsigned char *before = test_mem(a.size);
    memcpy(before, a.memory, a.size);
    attn_status want = ATTN_E_RANGE;
    if (axes == 3) rope.mrope_section[2] = 4; /* pairs of the width and one more */
    if (axes == 2) rope.rotary_dim = D - 2;   /* no multiple of 4 */
    if (axes == 1 && real) at[batch * len - 1] = at[0] = (double)INFINITY, want = ATTN_E_VALUE;
    if (axes == 1 && !real) rope.positions = NULL, rope.axial = 1, want = ATTN_E_NULL;
    const attn_status refused = attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx);
    if (refused != want) fail_msg("case %d: %s, %s", n, attn_status_string(refused), ctx.reason);
    assert_memory_equal(before, a.memory, a.size);
  }
}

/* Row `at` of attention over its `at` + 1 first keys, all rotated for a sequence of that length. */
static void attend_row(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                       const attn_rope_params *rope, int64_t at, int turn_keys) {
  attn_tensor one = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, q.dim);
  attn_tensor keys = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, at + 1, q.dim);
  attn_rope_params p = *rope;
  attn_ctx ctx = test_ctx();
  p.sequence_len = at + 1;
  if (turn_keys)
    rope_turns(keys, test_rows(k, 0, at + 1), &p);
  else
    test_copy(keys, test_rows(k, 0, at + 1));
  p.start = at;
  rope_turns(one, test_rows(q, at, 1), &p);
  assert_int_equal(attn_sdpa(o, one, keys, test_rows(v, 0, at + 1), NULL, &ctx), ATTN_OK);
}

/* DYNAMIC and LONGROPE across the length at which their frequencies change: keys that a cache holds unrotated, turned when
 * they are read, give the last row of the whole call at every length; keys that were rotated as they came do so up to
 * that length, and are stale from there on. */
void M4_append_stale_keys(void **state) {
  (void)state;
  enum { D = 12, T = 40, MARK = 24 };
  static const int types[2] = {ATTN_ROPE_DYNAMIC, ATTN_ROPE_LONGROPE};
  test_rng rng = test_seed(1854);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    attn_cache_params x;
    memset(&x, 0, sizeof x);
    x.k_heads = 2, x.dk = D, x.dv = 5, x.pages = N, x.page = T;
    stored bare = open_cache(&x), turned = open_cache(&x);
    attn_rope_params rope = rope_described(&rng, types[n % 2], D);
    rope.max_position_embeddings = n % 2 ? 4 * MARK : MARK, rope.factor = 4;
    rope.original_max_position_embeddings = MARK, rope.attention_factor = 0;
    rope.layout = n / 2 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED, rope.start = 0;
    attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 5);
    test_fill(q, &rng, test_normal), test_fill(k, &rng, test_normal);
    test_fill(v, &rng, test_normal);
    for (int64_t t = 0; t < T; t++) {
      attn_tensor all_q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t + 1, D);
      attn_tensor all_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t + 1, D);
      attn_tensor all_o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t + 1, 5);
      attn_tensor o[2] = {test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 5),
                          test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 5)};
      attn_rope_params now = rope;
      attn_append_params p;
      attn_sdpa_params causal;
      attn_ctx ctx = test_ctx();
      memset(&p, 0, sizeof p), memset(&causal, 0, sizeof causal);
      now.sequence_len = t + 1, causal.causal = 1;
      const attn_tensor key = test_rows(k, t, 1), value = test_rows(v, t, 1);
      assert_int_equal(attn_cache_append(&bare.cache, bare.s, 1, key, value, &p, &ctx), ATTN_OK);
      p.rope = &now;
      assert_int_equal(attn_cache_append(&turned.cache, turned.s, 1, key, value, &p, &ctx),
                       ATTN_OK);
      /* the whole call of t + 1 tokens */
      rope_turns(all_q, test_rows(q, 0, t + 1), &now);
      rope_turns(all_k, test_rows(k, 0, t + 1), &now);
      assert_int_equal(attn_sdpa(all_o, all_q, all_k, test_rows(v, 0, t + 1), &causal, &ctx),
                       ATTN_OK);
      for (int way = 0; way < 2; way++) {
        const stored *c = way ? &turned : &bare;
        attend_row(o[way], q, test_one(c->cache.k, c->s[0].table[0], 1, 0, 2),
                   test_one(c->cache.v, c->s[0].table[0], 1, 0, 2), &rope, t, !way);
      }
      const attn_tensor want = test_rows(all_o, t, 1);
      test_assert_near(o[0], want, 2e-6, "keys that are turned when they are read");
      double most = 0;
      for (int64_t h = 0; h < 2; h++)
        for (int64_t e = 0; e < 5; e++)
          most = fmax(most, fabs(oracle_get(&o[1], 0, h, 0, e) - oracle_get(&want, 0, h, 0, e)));
      if (t < MARK && most > 2e-6) fail_msg("row %d: %g before the mark", (int)t, most);
      if (t >= MARK && most < 1e-3) fail_msg("row %d: %g, no stale key", (int)t, most);
    }
  }
}

/* Enough rows for all workers; token by token stores what all at once does; without a workspace too. */
void M4_append_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(1851);
  enum { T = 300, D = 64 };
  attn_cache_params x;
  memset(&x, 0, sizeof x);
  x.k_heads = 2, x.dk = D, x.dv = 8, x.pages = PAGES, x.page = 33;
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, N, 2, T, D);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, N, 2, T, 8);
  test_fill(k, &rng, test_normal), test_fill(v, &rng, test_normal);
  attn_rope_params rope;
  attn_append_params p;
  memset(&rope, 0, sizeof rope), memset(&p, 0, sizeof p);
  rope.start = 1000, p.rope = &rope;
  stored one = open_cache(&x);
  attn_ctx plain = test_ctx();
  assert_int_equal(attn_cache_append(&one.cache, one.s, N, k, v, &p, &plain), ATTN_OK);
  for (int workers = 2; workers < 6; workers++) {
    stored many = open_cache(&x);
    attn_ctx ctx = test_ctx();
    ctx.workers = workers, ctx.parallel_for = test_parallel_threads;
    assert_int_equal(attn_cache_append(&many.cache, many.s, N, k, v, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.workers, workers);
    same_cache(&many, &one, "workers");
  }
  stored by = open_cache(&x);
  for (int64_t i = 0, rows; i < T; i += rows) {
    rows = i < 40 ? 1 : T - i;
    attn_status status = attn_cache_append(&by.cache, by.s, N, test_rows(k, i, rows),
                                           test_rows(v, i, rows), &p, &plain);
    assert_int_equal(status, ATTN_OK);
  }
  for (int64_t i = 0; i < N * 2 * T; i++) {
    const int64_t b = i / 2 / T, h = i / T % 2, t = i % T;
    const int32_t to = by.s[b].table[t / 33], from = one.s[b].table[t / 33];
    for (int64_t c = 0; c < D; c++)
      assert_true(oracle_get(&by.cache.k, to, h, t % 33, c) ==
                  oracle_get(&one.cache.k, from, h, t % 33, c));
  }
}

/* A rotated number that no float holds: the largest in a quantised type. */
void M4_append_saturates(void **state) {
  (void)state;
  attn_cache_params x;
  memset(&x, 0, sizeof x);
  x.k_dtype = ATTN_I8, x.k_heads = 1, x.dk = 4, x.dv = 4, x.pages = PAGES, x.page = 4;
  stored c = open_cache(&x);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, N, 1, 1, 4);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, N, 1, 1, 4);
  attn_rope_params rope;
  attn_append_params p;
  memset(&rope, 0, sizeof rope), memset(&p, 0, sizeof p);
  test_fill_value(k, 3e38), test_fill_value(v, 1);
  rope.attention_factor = 4, p.rope = &rope;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_cache_append(&c.cache, c.s, N, k, v, &p, &ctx), ATTN_OK);
  for (int b = 0; b < N; b++) {
    const int64_t at = c.s[b].table[0] * c.cache.k_scales.stride_batch;
    const int8_t *row = (const int8_t *)c.cache.k.data + c.s[b].table[0] * c.cache.k.stride_batch;
    assert_true(c.cache.k_scales.scale[at] < 3e36f && c.cache.k_scales.scale[at] > 2.6e36f);
    for (int i = 0; i < 4; i++) assert_int_equal(row[i], 127);
  }
}

void M4_append_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(1852);
  for (int n = 0; n < 13; n++, test_mem_release()) {
    attn_cache_params x;
    memset(&x, 0, sizeof x);
    x.k_heads = 2, x.dk = 8, x.dv = 5, x.pages = PAGES, x.page = 4;
    stored a = open_cache(&x);
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, N, 2, 3, 8);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, N, 2, 3, 5);
    attn_rope_params rope;
    attn_append_params p;
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_RANGE;
    memset(&rope, 0, sizeof rope), memset(&p, 0, sizeof p);
    test_fill(k, &rng, test_normal), test_fill(v, &rng, test_normal);
    p.rope = &rope, rope.start = 10;
    double real[9] = {0};
    assert_int_equal(attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx), ATTN_OK);
    char work[4096];
    if (n == 0) rope.rotary_dim = 9;
    if (n == 1) rope.rotary_dim = 10;
    if (n == 2) rope.xpos = 1, rope.start = 60; /* token 5 would be at 65 */
    if (n == 3) rope.type = ATTN_ROPE_YARN, want = ATTN_E_VALUE;
    if (n == 4)
      rope.real_positions = real, rope.positions_per_batch = 1, real[8] = (double)NAN,
      want = ATTN_E_VALUE;
    if (n == 5) rope.positions = (const int64_t *)(const void *)a.memory, want = ATTN_E_OVERLAP;
    if (n == 6) ctx.workspace = work, ctx.workspace_size = 64, want = ATTN_E_WORKSPACE;
    if (n == 7) ctx.workspace = a.memory, ctx.workspace_size = 4096, want = ATTN_E_OVERLAP;
    if (n == 8) ctx.workspace = k.data, ctx.workspace_size = 4096, want = ATTN_E_OVERLAP;
    if (n == 9)
      rope.cos = rope.sin = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 15, 4); /* token 5 is at 15 */
    if (n == 9) test_fill(rope.cos, &rng, test_normal);
    if (n == 10) test_malloc_fails = 1, want = ATTN_E_MEMORY;
    if (n == 11) ctx.workspace = a.s, ctx.workspace_size = sizeof a.s, want = ATTN_E_OVERLAP;
    if (n == 12) rope.start = INT64_MAX / 4 + 1;
    unsigned char *before = test_mem(a.size);
    attn_sequence s[N];
    attn_cache c = a.cache;
    memcpy(before, a.memory, a.size), memcpy(s, a.s, sizeof s);
    attn_status got = attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx);
    test_malloc_fails = 0;
    if (got != want || !ctx.reason)
      fail_msg("case %d: %s, not %s (%s)", n, attn_status_string(got), attn_status_string(want),
               ctx.reason ? ctx.reason : "no reason");
    assert_memory_equal(before, a.memory, a.size), assert_memory_equal(s, a.s, sizeof s);
    assert_memory_equal(&c, &a.cache, sizeof c);
    if (n == 2) {
      rope.start--;
      assert_int_equal(attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx), ATTN_OK);
    }
    if (n == 9) {
      rope.start--;
      assert_int_equal(attn_cache_append(&a.cache, a.s, N, k, v, &p, &ctx), ATTN_OK);
    }
  }
}
