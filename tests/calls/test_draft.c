/* tests/calls/test_draft.c owns trees of drafts: what their nodes see against a mask of all keys and against
 * the definition, in pages and end to end, what is left when some are accepted, and a decode that drafts. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

enum { H = 4, HK = 2, DK = 12, DV = 10 };

/* shape: 0 any tree, 1 a chain, 2 all roots, 3 a fan under one root. */
static int32_t *some_parents(int64_t n, int shape, test_rng *rng) {
  int32_t *parent = test_mem((size_t)n * sizeof *parent);
  for (int64_t i = 0; i < n; i++) {
    int64_t from = i < 12 ? -1 : i - 12;
    parent[i] = (int32_t)(shape == 1   ? i - 1
                          : shape == 2 ? -1
                          : shape == 3 ? (i ? 0 : -1)
                                       : test_range(rng, from, i - 1));
  }
  return parent;
}

/* By its definition: j is i or one of its ancestors. */
static int sees(const int32_t *parent, int64_t i, int64_t j) {
  for (; i >= 0; i = parent[i]) {
    if (i == j) return 1;
  }
  return 0;
}

static attn_tensor rows_of(attn_dtype type, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                           test_rng *rng) {
  attn_tensor t = test_tensor(type, TEST_BHTD, batch, heads, len, dim);
  test_fill(t, rng, test_normal);
  return t;
}

static attn_mask tree_mask(const int32_t *parent, int64_t n) {
  uint8_t *bits = test_mem((size_t)(n * ((n + 7) / 8)));
  assert_int_equal(attn_draft_mask(bits, (n + 7) / 8, parent, n), ATTN_OK);
  return attn_mask_bits(bits, 1, 1, n, n);
}

/* The same pairs over all keys. */
static attn_mask whole_mask(const int32_t *parent, int64_t prefix, int64_t n, int bits) {
  int64_t keys = prefix + n, step = bits ? (keys + 7) / 8 : keys;
  uint8_t *m = test_mem((size_t)(n * step));
  memset(m, 0, (size_t)(n * step));
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < keys; j++) {
      if (j >= prefix && !sees(parent, i, j - prefix)) continue;
      if (bits)
        m[i * step + j / 8] = (uint8_t)(m[i * step + j / 8] | 1 << (j & 7));
      else
        m[i * step + j] = 1;
    }
  }
  return bits ? attn_mask_bits(m, 1, 1, n, keys) : attn_mask_bool(m, 1, 1, n, keys);
}

static attn_tensor outputs(int64_t heads, int64_t len, int64_t dim) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, len, dim);
  test_fill_value(t, 7);
  return t;
}

/* Prefixes and trees around the marks of blocks, tiles and splits; few queries and many. */
void M3_tree_is_its_mask(void **state) {
  (void)state;
  static const int64_t nodes[] = {1, 2, 5, 13, 16, 17, 33, 64, 65, 131},
                       fewer[] = {1, 9, 16, 17, 70};
  static const int64_t prefixes[] = {0, 1, 7, 100, 121, 128, 250, 1020, 1024, 2049};
  test_rng rng = test_seed(9500);
  for (int n = 0; n < test_count(40, 14); n++, test_mem_release()) {
    int64_t count = n < 10 ? nodes[n] : n & 1 ? fewer[n / 2 % 5] : test_range(&rng, 1, 40);
    int64_t prefix = prefixes[(n * 7 + n / 10) % 10], keys = prefix + count;
    int32_t *parent = some_parents(count, n % 5 == 4 ? 2 + (n & 1) : 0, &rng);
    attn_dtype type = n % 3 == 2 ? ATTN_F16 : ATTN_F32;
    attn_tensor q = rows_of(type, 1, H, count, DK, &rng), k = rows_of(type, 1, HK, keys, DK, &rng);
    attn_tensor v = rows_of(type, 1, n & 1 ? HK : 1, keys, DV, &rng);
    attn_tensor o[3], lse[3];
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.causal = n % 4 != 3; /* without it the mask alone forbids the later nodes */
    if (n % 6 == 5) p.alibi = test_floats(H, 0.2, &rng), p.softcap = 3;
    p.one_order = n % 7 == 6;
    for (int way = 0; way < 3; way++) {
      attn_ctx ctx = test_ctx();
      if (way) ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
      p.lse = lse[way] = outputs(H, count, 1), o[way] = outputs(H, count, DV);
      p.mask_new = way == 0;
      p.mask = way == 0 ? tree_mask(parent, count) : whole_mask(parent, prefix, count, way == 1);
      attn_status status = attn_sdpa(o[way], q, k, v, &p, &ctx);
      if (status != ATTN_OK) fail_msg("case %d: %s", n, ctx.reason);
      assert_int_equal(ctx.report.isa, test_isa);
      if (way) test_assert_same(o[0], o[way], "a tree and its mask");
      if (way) test_assert_same(lse[0], lse[way], "a tree and its mask, lse");
    }
    for (int64_t i = 0; i < count && n < 30; i++) { /* and by the definition */
      double top = -INFINITY, sum = 0, out[DV] = {0};
      for (int pass = 0; pass < 2 && !p.alibi; pass++) {
        for (int64_t j = 0; j < keys; j++) {
          double x = 0;
          if (j >= prefix && !sees(parent, i, j - prefix)) continue;
          for (int c = 0; c < DK; c++)
            x += oracle_get(&q, 0, 3, i, c) * oracle_get(&k, 0, 1, j, c) / sqrt((double)DK);
          if (!pass) top = fmax(top, x);
          if (pass) sum += exp(x - top);
          for (int c = 0; pass && c < DV; c++)
            out[c] += exp(x - top) * oracle_get(&v, 0, v.heads - 1, j, c);
        }
      }
      for (int c = 0; c < DV && !p.alibi; c++) {
        double e = fabs(oracle_get(&o[0], 0, 3, i, c) - out[c] / sum);
        if (!(e < 2e-5)) fail_msg("case %d, node %d: %g", n, (int)i, e);
      }
    }
  }
}

/* Any mask of the new tokens, no tree: bytes or bits, spread over heads or queries, one token that does not see
 * itself; keys behind the new ones, offsets of each sequence, schedules. The bits are those of a mask of all keys. */
void M3_mask_of_new(void **state) {
  (void)state;
  static const int64_t news[] = {1, 2, 9, 16, 17, 40, 70, 128, 131, 200};
  test_rng rng = test_seed(9507);
  for (int n = 0; n < test_count(60, 30); n++, test_mem_release()) {
    int64_t count = news[n % 10];
    int64_t keys = count + (n % 8 == 5   ? 127
                            : n % 8 == 7 ? 129
                                         : test_range(&rng, 0, n % 3 ? 300 : 20));
    const int bits = n / 3 % 2, where = n % 5, own_heads = n / 2 % 2, one_row = n % 7 == 2;
    attn_tensor q = rows_of(ATTN_F32, 2, H, count, DK, &rng);
    attn_tensor k = rows_of(ATTN_F32, 2, HK, keys, DK, &rng);
    attn_tensor v = rows_of(ATTN_F32, 2, HK, keys, DV, &rng), o[2], lse[2];
    int64_t off[2] = {keys - count, keys - count}, step = bits ? (count + 7) / 8 : count;
    int32_t lengths[2] = {(int32_t)keys, (int32_t)(keys - keys / 3)};
    attn_sdpa_params p;
    attn_schedule s;
    memset(&p, 0, sizeof p);
    p.causal = n % 3 == 2;
    if (where == 1) {
      p.has_q_off = 1, p.q_off = off[0] = off[1] = test_range(&rng, -20, keys - count);
    } else if (where == 2) {
      off[0] = test_range(&rng, -count - 3, keys + 3),
      off[1] = n & 1 ? keys - count : test_range(&rng, 0, keys - count);
      p.q_offs = off;
    } else if (where == 3) {
      p.kv_len = lengths, p.align_lengths = 1;
      for (int b = 0; b < 2; b++) off[b] = lengths[b] - count;
    } else if (where == 4) {
      attn_pattern pattern = n & 1 ? attn_pattern_random(7, 3) : attn_pattern_strided(3);
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_schedule_build(&s, &pattern, H, count, keys, NULL, &ctx), ATTN_OK);
      p.schedule = &s;
    }
    const int64_t heads = own_heads ? H : 1, rows = one_row ? 1 : count;
    uint8_t *few = test_mem((size_t)(2 * heads * rows * step)),
            *all = test_mem((size_t)(2 * heads * rows * keys));
    memset(few, 0, (size_t)(2 * heads * rows * step));
    memset(all, 1, (size_t)(2 * heads * rows * keys));
    for (int64_t r = 0; r < 2 * heads * rows; r++)
      for (int64_t c = 0; c < count; c++) {
        const int on = test_u64(&rng) % 3 == 0;
        const int64_t j = off[r / (heads * rows)] + c;
        if (on && bits) few[r * step + c / 8] = (uint8_t)(few[r * step + c / 8] | 1 << (c & 7));
        if (on && !bits) few[r * step + c] = 1;
        if (j >= 0 && j < keys) all[r * keys + j] = (uint8_t)on;
      }
    for (int way = 0; way < 2; way++) {
      attn_ctx ctx = test_ctx();
      p.lse = lse[way] = test_tensor(ATTN_F32, TEST_BHTD, 2, H, count, 1);
      o[way] = test_tensor(ATTN_F32, TEST_BHTD, 2, H, count, DV);
      p.mask_new = way == 0;
      p.mask = way    ? attn_mask_bool(all, 2, heads, rows, keys)
               : bits ? attn_mask_bits(few, 2, heads, rows, count)
                      : attn_mask_bool(few, 2, heads, rows, count);
      attn_status status = attn_sdpa(o[way], q, k, v, &p, &ctx);
      if (status != ATTN_OK) fail_msg("case %d: %s", n, ctx.reason);
    }
    char what[60];
    snprintf(what, sizeof what, "a mask of new tokens, case %d", n);
    test_assert_same(o[0], o[1], what);
    test_assert_same(lse[0], lse[1], what);
    if (where == 4) attn_schedule_free(&s);
  }
}

/* A chain is causal attention, to the bit, the way of few queries included. */
void M3_tree_of_a_chain(void **state) {
  (void)state;
  static const int64_t nodes[] = {1, 6, 8, 16, 17, 63, 90};
  test_rng rng = test_seed(9501);
  for (int n = 0; n < 14; n++, test_mem_release()) {
    int64_t count = nodes[n % 7], prefix = n < 7 ? 1100 + n : 3 * n, keys = prefix + count;
    attn_tensor q = rows_of(ATTN_F32, 1, HK, count, DK, &rng);
    attn_tensor k = rows_of(ATTN_F32, 1, HK, keys, DK, &rng);
    attn_tensor v = rows_of(ATTN_F32, 1, HK, keys, DV, &rng), o[2];
    attn_report report[2];
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.causal = 1;
    for (int way = 0; way < 2; way++) {
      attn_ctx ctx = test_ctx();
      o[way] = outputs(HK, count, DV);
      p.mask_new = way;
      if (way) p.mask = tree_mask(some_parents(count, 1, &rng), count);
      assert_int_equal(attn_sdpa(o[way], q, k, v, &p, &ctx), ATTN_OK);
      report[way] = ctx.report;
    }
    test_assert_same(o[0], o[1], "a chain");
    assert_string_equal(report[0].path, report[1].path);
    assert_true(report[1].pairs <= report[0].pairs + 128 * 64 * HK);
  }
}

/* A node reaches its own row and those below it, and NaN no other. */
void M3_tree_changed_node(void **state) {
  (void)state;
  test_rng rng = test_seed(9502);
  for (int n = 0; n < test_count(16, 8); n++, test_mem_release()) {
    int64_t count = n % 4 == 3 ? 80 : test_range(&rng, 2, 20), prefix = test_range(&rng, 0, 300);
    int64_t keys = prefix + count, node = test_range(&rng, 0, count - 1);
    int32_t *parent = some_parents(count, 0, &rng);
    attn_tensor q = rows_of(ATTN_F32, 1, H, count, DK, &rng);
    attn_tensor k = rows_of(ATTN_F32, 1, HK, keys, DK, &rng);
    attn_tensor v = rows_of(ATTN_F32, 1, HK, keys, DV, &rng), o[2];
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.causal = 1, p.mask_new = 1, p.mask = tree_mask(parent, count);
    for (int way = 0; way < 2; way++) {
      attn_ctx ctx = test_ctx();
      o[way] = outputs(H, count, DV);
      for (int h = 0; way && h < HK; h++) {
        test_fill_row(k, 0, h, prefix + node, n & 1 ? (double)NAN : 0.25);
        test_fill_row(v, 0, h, prefix + node, n & 2 ? (double)NAN : 4);
      }
      assert_int_equal(attn_sdpa(o[way], q, k, v, &p, &ctx), ATTN_OK);
    }
    for (int64_t i = 0; i < count; i++) {
      int same = test_same(test_rows(o[0], i, 1), test_rows(o[1], i, 1));
      if (same == sees(parent, i, node)) fail_msg("case %d: node %d, row %d", n, (int)node, (int)i);
    }
  }
}

typedef struct drafted {
  attn_cache cache;
  attn_sequence s[3];
  unsigned char *memory;
  size_t size;
} drafted;

enum { TABLE = 600 };

static drafted open_drafted(const attn_cache_params *p) {
  drafted d;
  attn_ctx ctx = test_ctx();
  memset(&d, 0, sizeof d);
  d.size = attn_cache_size(p);
  assert_true(d.size > 0);
  d.memory = test_mem(d.size + 64);
  d.memory += (64 - (uintptr_t)d.memory % 64) % 64;
  memset(d.memory, 0x5a, d.size);
  assert_int_equal(attn_cache_open(&d.cache, d.memory, d.size, p, &ctx), ATTN_OK);
  for (int b = 0; b < 3; b++) {
    d.s[b].table = test_mem(TABLE * 4);
    memset(d.s[b].table, 0, TABLE * 4);
    d.s[b].table_len = TABLE;
  }
  return d;
}

/* Trees of unequal size behind prefixes of unequal length, in pages: each has the bits of a call of its own. */
void M3_tree_in_pages(void **state) {
  (void)state;
  test_rng rng = test_seed(9503);
  for (int n = 0; n < test_count(12, 6); n++, test_mem_release()) {
    attn_cache_params x;
    memset(&x, 0, sizeof x);
    x.k_dtype = x.v_dtype = n % 3 ? ATTN_F32 : ATTN_BF16;
    x.k_heads = HK, x.dk = DK, x.dv = DV, x.page = n & 1 ? 16 : test_range(&rng, 1, 9),
    x.pages = 1500;
    drafted d = open_drafted(&x);
    int64_t most = n % 4 == 3 ? 40 : 14, prefix[3], count[3], start[4] = {0}, widest = 0;
    int32_t *parent[3];
    attn_tensor k[3], v[3];
    for (int b = 0; b < 3; b++) {
      attn_ctx ctx = test_ctx();
      prefix[b] = b == 2 && n & 1 ? 0 : test_range(&rng, 0, 500),
      count[b] = test_range(&rng, b == 1 ? 0 : 1, most);
      parent[b] = some_parents(count[b], 0, &rng);
      start[b + 1] = start[b] + count[b];
      if (count[b] > widest) widest = count[b];
      k[b] = rows_of(x.k_dtype, 1, HK, prefix[b] + count[b], DK, &rng);
      v[b] = rows_of(x.k_dtype, 1, HK, prefix[b] + count[b], DV, &rng);
      assert_int_equal(attn_cache_append(&d.cache, &d.s[b], 1, k[b], v[b], NULL, &ctx), ATTN_OK);
    }
    int64_t step = (widest + 7) / 8 + n % 2;
    uint8_t *bits = test_mem((size_t)(3 * widest * step));
    memset(bits, 0xff, (size_t)(3 * widest * step)); /* rows of no node say nothing */
    for (int b = 0; b < 3; b++)
      assert_int_equal(attn_draft_mask(bits + b * widest * step, step, parent[b], count[b]),
                       ATTN_OK);
    attn_tensor q = rows_of(ATTN_F32, 1, H, start[3], DK, &rng), o = outputs(H, start[3], DV);
    attn_sdpa_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.causal = 1, p.mask_new = 1;
    p.mask = attn_mask_bits(bits, 3, 1, widest, widest);
    p.mask.stride_q = step, p.mask.stride_batch = widest * step;
    p.ragged.sequences = 3, p.ragged.q_indptr = start;
    attn_status status = attn_cache_sdpa(o, q, &d.cache, d.s, 3, &p, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    for (int b = 0; b < 3; b++) {
      if (!count[b]) continue;
      attn_tensor one = outputs(H, count[b], DV);
      attn_sdpa_params own;
      memset(&own, 0, sizeof own);
      own.causal = 1, own.mask = whole_mask(parent[b], prefix[b], count[b], n & 1);
      ctx = test_ctx();
      assert_int_equal(attn_sdpa(one, test_rows(q, start[b], count[b]), k[b], v[b], &own, &ctx),
                       ATTN_OK);
      test_assert_same(test_rows(o, start[b], count[b]), one, "a tree in pages");
    }
    p.mask.k_len = widest + 1; /* neither of all keys nor of one */
    if (widest > 1)
      assert_int_equal(attn_cache_sdpa(o, q, &d.cache, d.s, 3, &p, &ctx), ATTN_E_MASK);
    p.mask.k_len = 1;
    if (widest > 1)
      assert_int_equal(attn_cache_sdpa(o, q, &d.cache, d.s, 3, &p, &ctx), ATTN_E_MASK);
  }
}

void M3_draft_functions(void **state) {
  (void)state;
  const int32_t parent[] = {-1, 0, 0, -1, 2, 3, 5, 4, 7, 1}, late[] = {-1, 1}, low[] = {-1, -2};
  static const int64_t depth[] = {0, 1, 1, 0, 2, 1, 2, 3, 4, 2};
  int64_t positions[11];
  uint8_t bits[40];
  memset(bits, 0xa5, sizeof bits);
  assert_int_equal(attn_draft_mask(bits, 3, parent, 10), ATTN_OK);
  for (int i = 0; i < 10; i++) {
    for (int j = 0; j < 10; j++)
      assert_int_equal(bits[i * 3 + j / 8] >> j % 8 & 1, sees(parent, i, j));
    assert_int_equal(bits[i * 3 + 1] >> 2, 0);
    assert_int_equal(bits[i * 3 + 2], 0xa5);
  }
  positions[10] = 77;
  assert_int_equal(attn_draft_positions(positions, parent, 10, 1000), ATTN_OK);
  for (int i = 0; i < 10; i++) assert_int_equal(positions[i], 1000 + depth[i]);
  assert_int_equal(positions[10], 77);
  assert_int_equal(attn_draft_positions(NULL, NULL, 0, 0), ATTN_OK);
  assert_int_equal(attn_draft_mask(NULL, 0, NULL, 0), ATTN_OK);
  memset(bits, 0xa5, sizeof bits), positions[0] = 5;
#define REFUSE(status, call) assert_int_equal(call, ATTN_E_##status)
  REFUSE(SHAPE, attn_draft_mask(bits, 1, parent, 10));
  REFUSE(SHAPE, attn_draft_mask(bits, -1, parent, 10));
  REFUSE(SHAPE, attn_draft_mask(bits, 2, parent, -1));
  REFUSE(NULL, attn_draft_mask(bits, 2, NULL, 2));
  REFUSE(NULL, attn_draft_mask(NULL, 2, parent, 2));
  REFUSE(INDEX, attn_draft_mask(bits, 2, late, 2));
  REFUSE(INDEX, attn_draft_mask(bits, 2, low, 2));
  REFUSE(OVERFLOW, attn_draft_mask(bits, INT64_MAX, parent, 10));
  REFUSE(SHAPE, attn_draft_positions(positions, parent, INT64_MIN, 0));
  REFUSE(NULL, attn_draft_positions(NULL, parent, 2, 0));
  REFUSE(NULL, attn_draft_positions(positions, NULL, 2, 0));
  REFUSE(INDEX, attn_draft_positions(positions, late, 2, 0));
  REFUSE(RANGE, attn_draft_positions(positions, parent, 2, INT64_MAX));
  REFUSE(RANGE, attn_draft_positions(positions, parent, 2, INT64_MIN));
  REFUSE(OVERLAP, attn_draft_positions((int64_t *)(void *)(uintptr_t)parent, parent, 2, 0));
#undef REFUSE
  for (size_t i = 0; i < sizeof bits; i++) assert_int_equal(bits[i], 0xa5);
  assert_int_equal(positions[0], 5);
}

/* Every row of a sequence, as it is stored, with its scales. */
static void read_rows(const drafted *d, int b, int64_t token, unsigned char *to) {
  const attn_cache *c = &d->cache;
  const int64_t page = d->s[b].table[token / c->k.len], row = token % c->k.len;
  const attn_tensor *t[2] = {&c->k, &c->v};
  const attn_scales *s[2] = {&c->k_scales, &c->v_scales};
  memset(to, 0, 512);
  for (int w = 0; w < 2; w++) {
    for (int64_t h = 0; t[w]->data && h < t[w]->heads; h++) {
      const int64_t off =
          page * t[w]->stride_batch + h * t[w]->stride_head + row * t[w]->stride_len;
      const int64_t size = t[w]->dtype == ATTN_F32                              ? 8
                           : t[w]->dtype == ATTN_I4                             ? 1
                           : t[w]->dtype == ATTN_I8 || t[w]->dtype == ATTN_E4M3 ? 2
                                                                                : 4;
      const size_t n = (size_t)((t[w]->dim * size + 1) / 2); /* size: of two numbers */
      memcpy(to, (const char *)t[w]->data + off * size / 2, n);
      to += n;
      const int64_t at = page * s[w]->stride_batch + h * s[w]->stride_head + row * s[w]->stride_len;
      const size_t groups = s[w]->group ? (size_t)((t[w]->dim - 1) / s[w]->group + 1) : 1;
      if (s[w]->scale) memcpy(to, s[w]->scale + at, groups * 4);
      if (s[w]->zero) memcpy(to + 16, s[w]->zero + at, groups * 4);
      to += 32;
    }
  }
}

void M3_cache_accept(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_F32, ATTN_I8, ATTN_BF16, ATTN_I4, ATTN_F16, ATTN_E4M3};
  test_rng rng = test_seed(9504);
  for (int n = 0; n < test_count(60, 24); n++, test_mem_release()) {
    attn_cache_params x;
    attn_ctx ctx = test_ctx();
    memset(&x, 0, sizeof x);
    x.k_dtype = types[n % 6], x.v_dtype = types[n / 6 % 6], x.k_heads = HK, x.v_heads = 1;
    x.dk = DK, x.dv = DV, x.page = n % 5 ? test_range(&rng, 1, 7) : 32, x.pages = 400;
    if (n % 11 == 10) x.latent = 1, x.v_dtype = x.k_dtype, x.v_heads = 0;
    x.k_zero = x.k_dtype == ATTN_I8 && n & 1;
    if (n % 12 == 1) x.dk = 70, x.k_group = 32;
    drafted d = open_drafted(&x);
    int64_t prefix = test_range(&rng, 0, 40), count = n % 9 == 8 ? 150 : test_range(&rng, 1, 25);
    int32_t *parent = some_parents(count, n % 6 == 5, &rng);
    if (n % 9 == 8 && n & 1) /* a long path over a side branch */
      for (int64_t i = 2; i < count; i++) parent[i] = (int32_t)(i == 2 ? 0 : i - 1);
    int64_t leaf = n % 7 == 6 ? -1 : n & 1 ? count - 1 : test_range(&rng, 0, count - 1), kept = 0;
    attn_tensor k = rows_of(ATTN_F32, 1, HK, prefix + count, x.dk, &rng);
    attn_tensor v = rows_of(ATTN_F32, 1, 1, prefix + count, DV, &rng);
    if (x.latent) v.data = NULL;
    assert_int_equal(attn_cache_append(&d.cache, &d.s[0], 1, k, v, NULL, &ctx), ATTN_OK);
    const int shared = n % 3 == 1;
    if (shared) assert_int_equal(attn_cache_fork(&d.cache, &d.s[1], &d.s[0], &ctx), ATTN_OK);
    unsigned char(*was)[512] = test_mem((size_t)(prefix + count) * sizeof *was), is[512];
    for (int64_t j = 0; j < prefix + count; j++) read_rows(&d, 0, j, was[j]);
    ctx = test_ctx();
    attn_status status = attn_cache_accept(&d.cache, &d.s[0], parent, count, leaf, &ctx);
    if (status != ATTN_OK) fail_msg("case %d: %s", n, ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    for (int64_t i = leaf; i >= 0; i = parent[i]) kept++;
    assert_int_equal(d.s[0].len, prefix + kept);
    assert_int_equal(d.s[0].high, prefix + kept);
    for (int64_t j = 0; j < prefix; j++) {
      read_rows(&d, 0, j, is);
      assert_memory_equal(is, was[j], 512);
    }
    for (int64_t i = leaf, j = prefix + kept; i >= 0; i = parent[i]) {
      read_rows(&d, 0, --j, is);
      assert_memory_equal(is, was[prefix + i], 512);
    }
    for (int64_t j = 0; shared && j < prefix + count; j++) { /* the fork keeps what it had */
      read_rows(&d, 1, j, is);
      assert_memory_equal(is, was[j], 512);
    }
    /* each page is held as often as it is named */
    for (int64_t page = 0; page < x.pages; page++) {
      int64_t named = 0;
      for (int b = 0; b < 2; b++)
        for (int64_t t = 0; t * x.page < d.s[b].len; t++) named += d.s[b].table[t] == page;
      assert_int_equal(d.cache.holders[page], named);
    }
    attn_tensor more = rows_of(ATTN_F32, 1, HK, 3, x.dk, &rng),
                values = rows_of(ATTN_F32, 1, 1, 3, DV, &rng);
    if (x.latent) values.data = NULL;
    assert_int_equal(attn_cache_append(&d.cache, &d.s[0], 1, more, values, NULL, &ctx), ATTN_OK);
  }
}

static attn_status accept_ring(attn_cache *c, attn_sequence *s, const int32_t *parent,
                               attn_ctx *ctx) {
  c->window = 3;
  attn_status status = attn_cache_accept(c, s, parent, 4, 3, ctx);
  c->window = 0;
  return status;
}

void M3_cache_accept_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9505);
  const int32_t parent[] = {-1, 0, 0, 2}, late[] = {-1, 0, 2, 2}, low[] = {-1, 0, -2, 2};
  attn_cache_params x;
  attn_ctx ctx = test_ctx();
  memset(&x, 0, sizeof x);
  x.k_heads = HK, x.dk = DK, x.dv = DV, x.page = 2, x.pages = 4;
  drafted d = open_drafted(&x);
  attn_tensor k = rows_of(ATTN_F32, 1, HK, 8, DK, &rng), v = rows_of(ATTN_F32, 1, HK, 8, DV, &rng);
  memset(oracle_address(&k, 0, 0, 0, 0), 0xff, 4); /* a parent of -1 */
  assert_int_equal(attn_cache_append(&d.cache, &d.s[0], 1, k, v, NULL, &ctx), ATTN_OK);
  assert_int_equal(attn_cache_fork(&d.cache, &d.s[1], &d.s[0], &ctx), ATTN_OK);
  unsigned char *before = test_mem(d.size);
  memcpy(before, d.memory, d.size);
  drafted then = d;
#define REFUSE(status, call)                                    \
  do {                                                          \
    ctx = test_ctx();                                           \
    assert_int_equal(call, ATTN_E_##status);                    \
    assert_non_null(ctx.reason);                                \
    assert_memory_equal(before, d.memory, d.size);              \
    assert_memory_equal(d.s, then.s, sizeof d.s);               \
    assert_memory_equal(&d.cache, &then.cache, sizeof d.cache); \
  } while (0)
  attn_cache *c = &d.cache;
  attn_sequence *s = &d.s[0];
  REFUSE(NULL, attn_cache_accept(NULL, s, parent, 4, 3, &ctx));
  REFUSE(NULL, attn_cache_accept(c, NULL, parent, 4, 3, &ctx));
  REFUSE(NULL, attn_cache_accept(c, s, NULL, 4, 3, &ctx));
  REFUSE(SHAPE, attn_cache_accept(c, s, parent, -1, -1, &ctx));
  REFUSE(RANGE, attn_cache_accept(c, s, parent, 4, 4, &ctx));
  REFUSE(RANGE, attn_cache_accept(c, s, parent, 4, -2, &ctx));
  REFUSE(RANGE, attn_cache_accept(c, s, parent, 4, INT64_MIN, &ctx));
  REFUSE(RANGE, attn_cache_accept(c, &d.s[2], parent, 4, 3, &ctx));
  REFUSE(OVERFLOW, attn_cache_accept(c, s, parent, INT64_MAX, 3, &ctx));
  REFUSE(INDEX, attn_cache_accept(c, s, late, 4, 3, &ctx));
  REFUSE(INDEX, attn_cache_accept(c, s, low, 4, 3, &ctx));
  REFUSE(FULL, attn_cache_accept(c, s, parent, 4, 3, &ctx)); /* a shared page and none free */
  REFUSE(OVERLAP, attn_cache_accept(c, s, oracle_address(&c->k, 0, 0, 0, 0), 1, 0, &ctx));
  s->table[TABLE - 1] = -1; /* a parent again */
  REFUSE(OVERLAP, attn_cache_accept(c, s, s->table + TABLE - 1, 1, 0, &ctx));
  d.s[0].table[3] = 4, ctx = test_ctx();
  assert_int_equal(attn_cache_accept(c, s, parent, 4, 1, &ctx), ATTN_E_PAGE);
  d.s[0].table[3] = 3;
  REFUSE(RANGE, accept_ring(c, s, parent, &ctx));
#undef REFUSE
  /* what needs no copy is served */
  assert_int_equal(attn_cache_accept(c, s, parent, 4, 1, &ctx), ATTN_OK);
  assert_int_equal(s->len, 6);
}

/* ---- a decode -------------------------------------------------------------------------------*/

enum { WORDS = 23, WIDE = 16, TOKENS = 90 };

/* A model of one layer: heads of half the width, rotary keys, greedy. */
typedef struct model {
  float word[WORDS * WIDE], q[WIDE * WIDE], k[WIDE * WIDE], v[WIDE * WIDE], out[WIDE * WORDS];
  drafted d;
} model;

static void fill(float *x, int64_t n, double scale, test_rng *rng) {
  for (int64_t i = 0; i < n; i++) x[i] = (float)(test_normal(rng) * scale);
}

/* [1, 2, n, WIDE / 2] of the words times a matrix. */
static attn_tensor project(const model *m, const float *w, const int32_t *word, int64_t n) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, WIDE / 2);
  for (int64_t i = 0; i < n; i++) {
    for (int c = 0; c < WIDE; c++) {
      double x = 0;
      for (int e = 0; e < WIDE; e++) x += (double)m->word[word[i] * WIDE + e] * w[e * WIDE + c];
      oracle_set(&t, 0, c / (WIDE / 2), i, c % (WIDE / 2), x);
    }
  }
  return t;
}

/* The words of the tree go into the cache; next[i] is what the model says behind node i. */
static void verify(model *m, int seq, const int32_t *word, const int32_t *parent, int64_t n,
                   int32_t *next) {
  attn_ctx ctx = test_ctx();
  attn_rope_params rope;
  attn_append_params append;
  attn_sdpa_params p;
  int64_t positions[TOKENS];
  memset(&rope, 0, sizeof rope), memset(&append, 0, sizeof append), memset(&p, 0, sizeof p);
  assert_int_equal(attn_draft_positions(positions, parent, n, m->d.s[seq].len), ATTN_OK);
  rope.positions = positions;
  append.rope = &rope;
  attn_tensor q = project(m, m->q, word, n), k = project(m, m->k, word, n),
              v = project(m, m->v, word, n);
  assert_int_equal(attn_rope(q, q, &rope, &ctx), ATTN_OK);
  assert_int_equal(attn_cache_append(&m->d.cache, &m->d.s[seq], 1, k, v, &append, &ctx), ATTN_OK);
  p.causal = 1, p.mask_new = 1, p.mask = tree_mask(parent, n);
  attn_tensor o = outputs(2, n, WIDE / 2);
  assert_int_equal(attn_cache_sdpa(o, q, &m->d.cache, &m->d.s[seq], 1, &p, &ctx), ATTN_OK);
  for (int64_t i = 0; i < n; i++) {
    double best = -INFINITY;
    for (int w = 0; w < WORDS; w++) {
      double x = 0;
      for (int c = 0; c < WIDE; c++)
        x += (m->word[word[i] * WIDE + c] +
              2 * oracle_get(&o, 0, c / (WIDE / 2), i, c % (WIDE / 2))) *
             m->out[c * WORDS + w];
      if (x > best) best = x, next[i] = w;
    }
  }
}

/* Drafting, verifying and accepting gives the words of plain greedy decoding, in fewer steps. */
void M3_speculative_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(9506);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    model *m = test_mem(sizeof *m);
    attn_cache_params x;
    int32_t plain[TOKENS + 1], told[TOKENS + 40];
    memset(&x, 0, sizeof x);
    x.k_heads = 2, x.dk = WIDE / 2, x.page = n == 1 ? 16 : 3, x.pages = 100;
    x.k_dtype = x.v_dtype = n == 2 ? ATTN_F16 : ATTN_F32;
    fill(m->word, WORDS * WIDE, 1, &rng), fill(m->q, WIDE * WIDE, 0.5, &rng),
        fill(m->k, WIDE * WIDE, 0.5, &rng);
    fill(m->v, WIDE * WIDE, 0.4, &rng), fill(m->out, WIDE * WORDS, 1, &rng);
    m->d = open_drafted(&x);
    const int32_t root = -1;
    plain[0] = told[0] = 5;
    for (int t = 0; t < TOKENS; t++) verify(m, 0, &plain[t], &root, 1, &plain[t + 1]);
    int64_t have = 1, steps = 0; /* words told; all but the last are in the cache */
    for (; have <= TOKENS; steps++) {
      int32_t word[20], parent[20], next[20];
      int64_t nodes = 1, leaf = 0;
      word[0] = told[have - 1], parent[0] = -1;
      for (; nodes < 1 + (steps * 5) % 19; nodes++) { /* guesses, some of them right */
        int64_t at = test_range(&rng, 0, nodes - 1), depth = have;
        for (int64_t a = at; parent[a] >= 0; a = parent[a]) depth++;
        parent[nodes] = (int32_t)at;
        word[nodes] = test_u64(&rng) % 2 && depth <= TOKENS
                          ? plain[depth]
                          : (int32_t)test_range(&rng, 0, WORDS - 1);
      }
      verify(m, 1, word, parent, nodes, next);
      for (int64_t i = 1; i < nodes; i++) /* the child that says what the model says */
        if (parent[i] == leaf && word[i] == next[leaf]) told[have++] = word[i], leaf = i;
      told[have++] = next[leaf];
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_cache_accept(&m->d.cache, &m->d.s[1], parent, nodes, leaf, &ctx),
                       ATTN_OK);
      assert_int_equal(m->d.s[1].len, have - 1);
    }
    for (int t = 0; t <= TOKENS; t++)
      if (told[t] != plain[t]) fail_msg("case %d: word %d is %d, not %d", n, t, told[t], plain[t]);
    assert_true(steps < TOKENS / 2);
    /* and the cache is that of plain decoding */
    unsigned char a[512], b[512];
    for (int64_t j = 0; j < TOKENS; j++) {
      read_rows(&m->d, 0, j, a), read_rows(&m->d, 1, j, b);
      assert_memory_equal(a, b, 512);
    }
  }
}
