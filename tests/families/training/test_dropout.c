/* tests/families/training/test_dropout.c owns N1, dropout of weights and of elements. */

#include "backward.h"
#include "dense.h"
#include "terms.h"

static attn_drop some_drop(test_rng *rng) {
  static const double p[] = {0.1, 0.5, 0.25, 0.9, 0.013};
  attn_drop d = {p[test_u64(rng) % 5], test_u64(rng), test_u64(rng), test_range(rng, 0, 9),
                 test_range(rng, 0, 9)};
  return d;
}

/* The oracle's numbers are those that the paper's authors published. */
void N1_philox(void **state) {
  (void)state;
  static const uint32_t zero[4], ones[4] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
  static const uint32_t pi[4] = {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u};
  static const uint32_t more[2] = {0xa4093822u, 0x299f31d0u};
  static const uint32_t want[3][4] = {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
                                      {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
                                      {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}};
  uint32_t w[4];
  oracle_philox(w, zero, zero);
  assert_memory_equal(w, want[0], sizeof w);
  oracle_philox(w, ones, ones);
  assert_memory_equal(w, want[1], sizeof w);
  oracle_philox(w, pi, more);
  assert_memory_equal(w, want[2], sizeof w);
}

/* ---- elements -------------------------------------------------------------------------------*/

typedef struct scene {
  attn_tensor y, x;
  attn_drop drop;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_dropout(s->y, s->x, &s->drop, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_dropout_workspace(s->y, s->x, &s->drop, ctx);
}

static scene *build(attn_tensor x, attn_dtype type, test_layout layout, attn_drop drop) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = x, s->drop = drop;
  s->y = output(type, layout, x.batch, x.heads, x.len, x.dim, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

static void check(const scene *s, const attn_tensor *x, const char *what) {
  for (int64_t b = 0; b < x->batch; b++)
    for (int64_t h = 0; h < x->heads; h++)
      for (int64_t i = 0; i < x->len; i++)
        for (int64_t c = 0; c < x->dim; c++) {
          const double want = oracle_get(x, b, h, i, c) * oracle_drop(&s->drop, b, h, i, c);
          value_check(oracle_get(&s->y, b, h, i, c), want, 1.3e-7 * fabs(want), s->y.dtype, what, b,
                      h, i, c);
        }
}

void N1_elements(void **state) {
  (void)state;
  static const int64_t widths[] = {1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 128, 200, 2047, 2049};
  test_rng rng = test_seed(9100);
  for (int64_t n = test_count(150, 45); n-- > 0; test_mem_release()) {
    const attn_dtype type = (attn_dtype)(test_u64(&rng) % 3);
    const attn_tensor x =
        drawn((attn_dtype)(test_u64(&rng) % 3), (test_layout)(test_u64(&rng) % TEST_LAYOUTS),
              test_range(&rng, 1, 3), test_range(&rng, 1, 3), test_range(&rng, 0, n % 9 ? 9 : 150),
              widths[n % 15], 1, &rng);
    scene *s = build(x, type, (test_layout)(test_u64(&rng) % TEST_SHARED), some_drop(&rng));
    promise_run(&s->does);
    check(s, &x, "elements");
    if (n % 5 == 0 && type != ATTN_F32 && x.len) promise_keep(&s->does);
  }
}

/* Over its input; p of both ends, and without any. */
void N1_in_place(void **state) {
  (void)state;
  static const double p[] = {0, 1e-30, 0.5, 1 - 1e-9};
  test_rng rng = test_seed(9101);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    const attn_dtype type = (attn_dtype)(n % 3);
    const attn_tensor x = drawn(type, TEST_PADDED, 2, 2, 33, 70, 1, &rng);
    const attn_tensor was = test_tensor(type, TEST_BHTD, 2, 2, 33, 70);
    attn_drop drop = some_drop(&rng);
    drop.p = p[n / 3], drop.seed = ~(uint64_t)0, drop.offset = 5; /* the sum goes round */
    test_copy(was, x);
    scene s = {x, x, drop, {0}};
    s.does.call = call, s.does.ask = ask, s.does.scene = &s;
    promise_run(&s.does);
    check(&s, &was, "in place");
    attn_ctx ctx = test_ctx();
    if (n < 3) assert_int_equal(attn_dropout(x, was, NULL, &ctx), ATTN_OK);
    if (n < 3) test_assert_same(x, was, "a copy");
  }
}

/* The share that stays, over many, and no two layers, rows or heads alike. */
void N1_share(void **state) {
  (void)state;
  enum { T = 200, D = 256 };
  const attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
  attn_drop drop = {0.3, 42, 0, 0, 0};
  test_fill_value(x, 1);
  int64_t same[3] = {0, 0, 0}, kept = 0;
  attn_tensor y[2];
  for (int n = 0; n < 2; n++) {
    scene *s = build(x, ATTN_F32, TEST_BHTD, drop);
    promise_run(&s->does);
    y[n] = s->y, drop.offset++;
  }
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) {
      const int a = oracle_get(&y[0], 0, 0, i, c) > 0;
      kept += a;
      same[0] += a == (oracle_get(&y[1], 0, 0, i, c) > 0);
      same[1] += a == (oracle_get(&y[0], 0, 1, i, c) > 0);
      same[2] += a == (oracle_get(&y[0], 0, 0, (i + 1) % T, c) > 0);
    }
  /* five standard deviations */
  const double all = (double)T * D, off = 5 * sqrt(0.3 * 0.7 / all), chance = 0.7 * 0.7 + 0.3 * 0.3;
  assert_true(fabs((double)kept / all - 0.7) < off);
  for (int n = 0; n < 3; n++)
    if (!(fabs((double)same[n] / all - chance) < 5 * sqrt(chance * (1 - chance) / all)))
      fail_msg("%d: %g of the elements are alike, not %g", n, (double)same[n] / all, chance);
}

/* A part of a tensor by itself, its place named. */
void N1_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(9102);
  const attn_tensor x = drawn(ATTN_F32, TEST_BTHD, 4, 3, 20, 77, 1, &rng);
  const attn_drop drop = some_drop(&rng);
  scene *whole = build(x, ATTN_F32, TEST_BHTD, drop);
  promise_run(&whole->does);
  scene *part = build(test_one(x, 1, 2, 2, 1), ATTN_F32, TEST_BHTD, drop);
  part->drop.batch0 += 1, part->drop.head0 += 2;
  promise_run(&part->does);
  test_assert_same(part->y, test_one(whole->y, 1, 2, 2, 1), "a part");
  part->drop.seed += 7, part->drop.offset -= 7;
  promise_run(&part->does);
  test_assert_same(part->y, test_one(whole->y, 1, 2, 2, 1), "the same sum");
  part->drop.offset++;
  promise_run(&part->does);
  assert_false(test_same(part->y, test_one(whole->y, 1, 2, 2, 1)));
}

void N1_elements_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(9103);
  const attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 2, 2, 5, 9, 1, &rng);
  scene *s = build(x, ATTN_F32, TEST_BHTD, some_drop(&rng));
#define REFUSE_(status, word, change)       \
  {                                         \
    const scene was = *s;                   \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  }
  REFUSE_(ATTN_E_VALUE, "dropout.p", s->drop.p = 1);
  REFUSE_(ATTN_E_VALUE, "dropout.p", s->drop.p = -1e-9);
  REFUSE_(ATTN_E_VALUE, "dropout.p", s->drop.p = (double)NAN);
  REFUSE_(ATTN_E_RANGE, "batch0", s->drop.batch0 = -1);
  REFUSE_(ATTN_E_RANGE, "batch0", s->drop.batch0 = (int64_t)0xffffffff);
  REFUSE_(ATTN_E_RANGE, "batch0", s->drop.batch0 = INT64_MAX);
  REFUSE_(ATTN_E_RANGE, "head0", s->drop.head0 = -1);
  REFUSE_(ATTN_E_RANGE, "head0", s->drop.head0 = (int64_t)0xffffffff);
  REFUSE_(ATTN_E_RANGE, "head0", s->drop.head0 = INT64_MIN);
  REFUSE_(ATTN_E_SHAPE, "y", s->x.len = 4);
  REFUSE_(ATTN_E_SHAPE, "y", s->x.dim = 8);
  REFUSE_(ATTN_E_NULL, "x", s->x.data = NULL);
  REFUSE_(ATTN_E_DTYPE, "x", s->x.dtype = ATTN_I8);
  REFUSE_(ATTN_E_OVERLAP, "y", s->x = s->y; s->x.data = (float *)s->y.data + 9; s->x.len = 4;
          s->y.len = 4);
  s->drop.batch0 = (int64_t)0xfffffffe; /* the last there is */
  promise_run(&s->does);
  check(s, &x, "the last entries");
}

/* ---- weights --------------------------------------------------------------------------------*/

/* Every form of attn_sdpa against the oracle; LSE and P have the bits that they have without. */
void N1_weights(void **state) {
  (void)state;
  test_rng rng = test_seed(9110);
  for (int64_t n = test_count(150, 45); n-- > 0; test_mem_release()) {
    const int terms = n % 3 ? 0 : (int)(test_u64(&rng) & (TERM_ALL - TERM_MODIFY));
    test_call c = test_terms_call(n % 6 == 1 ? TERM_VALUES : terms, n % 5 ? 70 : 260, &rng), plain;
    if (n % 4 == 0)
      c.params.map = test_tensor(ATTN_F32, TEST_PADDED, c.q.batch, c.q.heads, c.q.len, c.k.len);
    if (n % 8 == 0) c.params.map_stage = ATTN_MAP_DROPPED;
    c.params.dropout = some_drop(&rng);
    test_check(&c, "weights");
    plain = test_again(&c);
    c.params.one_order = plain.params.one_order = 1;
    memset(&plain.params.dropout, 0, sizeof plain.params.dropout);
    test_run(&plain);
    if (c.params.lse.data) test_assert_same(c.params.lse, plain.params.lse, "LSE");
    if (n % 8 == 4) test_assert_same(c.params.map, plain.params.map, "P");
  }
}

/* Rows of many blocks and splits, a few queries, heads that share keys. */
void N1_weights_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9111);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    test_spec spec = test_plain(n % 2 ? 6 : 1, n < 2 ? 1 + n : 70, n < 2 ? 2100 : 530, 8, 6);
    if (n % 2) spec.k_heads = 2, spec.v_heads = n == 1 ? 2 : 3;
    test_call c = test_build(&spec, &rng);
    c.params.dropout = some_drop(&rng);
    if (n == 4) c.params.causal = 1, c.params.window = attn_window_of(131, 0);
    test_check(&c, "long rows");
  }
}

/* Weights rounded to 16 bits after dropout, codes of keys, and storage of 8 bits. */
void N1_weights_narrow(void **state) {
  (void)state;
  static const attn_compute computes[] = {ATTN_COMPUTE_BF16, ATTN_COMPUTE_F16, ATTN_COMPUTE_I8};
  test_rng rng = test_seed(9112);
  for (int n = 0; n < test_count(18, 6); n++, test_mem_release()) {
    test_spec spec = test_plain(2, test_range(&rng, 1, 80), test_range(&rng, 1, 300), 24, 20);
    test_call c = test_build(&spec, &rng);
    c.params.compute = computes[n % 3], c.params.causal = n & 1;
    c.params.dropout = some_drop(&rng);
    test_check(&c, "products of narrow numbers");
  }
}

/* A batch entry, some heads, a sequence: each by itself, its place named; and any workers. */
void N1_weights_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(9113);
  static const int64_t q_at[] = {0, 70, 70, 75, 150}, kv_at[] = {0, 90, 100, 100, 190};
  test_spec spec = test_plain(4, 90, 140, 9, 7);
  spec.batch = 3;
  test_call c = test_build(&spec, &rng), part;
  c.params.dropout = some_drop(&rng), c.params.causal = 1;
  test_run(&c);
  part = test_again(&c);
  part.q = test_one(c.q, 2, 1, 1, 2), part.k = test_one(c.k, 2, 1, 1, 2);
  part.v = test_one(c.v, 2, 1, 1, 2), part.o = test_one(part.o, 2, 1, 1, 2);
  part.params.lse = test_one(part.params.lse, 2, 1, 1, 2);
  part.params.dropout.batch0 += 2, part.params.dropout.head0 += 1;
  test_run(&part);
  test_assert_same(part.o, test_one(c.o, 2, 1, 1, 2), "a part");
  spec.batch = 1, spec.q_len = 160, spec.k_len = 200;
  c = test_build(&spec, &rng);
  c.params.dropout = some_drop(&rng), c.params.one_order = 1;
  c.params.ragged.sequences = 4, c.params.ragged.q_indptr = q_at, c.params.ragged.kv_indptr = kv_at;
  test_run(&c);
  for (int b = 0; b < 4; b++) {
    part = test_again(&c);
    const int64_t m = q_at[b + 1] - q_at[b], n = kv_at[b + 1] - kv_at[b];
    part.q = test_rows(c.q, q_at[b], m), part.o = test_rows(part.o, q_at[b], m);
    part.params.lse = test_rows(part.params.lse, q_at[b], m);
    part.k = test_rows(c.k, kv_at[b], n), part.v = test_rows(c.v, kv_at[b], n);
    memset(&part.params.ragged, 0, sizeof part.params.ragged);
    part.params.dropout.batch0 += b;
    test_run(&part);
    test_assert_same(part.o, test_rows(c.o, q_at[b], m), "a sequence");
  }
}

/* A schedule and key lists drop what a mask of the same pairs drops. */
void N1_weights_scheduled(void **state) {
  (void)state;
  test_rng rng = test_seed(9114);
  const int64_t T = 200;
  for (int n = 0; n < 3; n++, test_mem_release()) {
    static const int32_t global[] = {0, 131};
    attn_pattern part[2] = {attn_pattern_band(20, 3), attn_pattern_global(global, 2)};
    attn_pattern some = n < 2 ? attn_pattern_union(part, 2) : attn_pattern_random(9, 5);
    test_spec spec = test_plain(2, T, T, 9, 7);
    test_call c = test_build(&spec, &rng), masked;
    attn_schedule schedule = {NULL, 0, NULL};
    assert_int_equal(attn_schedule_build(&schedule, &some, 2, T, T, NULL, NULL), ATTN_OK);
    uint8_t *mask = test_mem((size_t)(2 * T * T));
    int64_t *indptr = test_mem((size_t)(2 * T + 2) * sizeof *indptr), edges = 0;
    int32_t *col = test_mem((size_t)(2 * T * T) * sizeof *col);
    const attn_tensor map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, T);
    c.params.schedule = &schedule, c.params.map = map;
    test_run(&c);
    for (int64_t i = 0; i < 2 * T * T; i++)
      mask[i] = oracle_get(&map, 0, i / T / T, i / T % T, i % T) > 0;
    memset(&c.params.map, 0, sizeof c.params.map);
    c.params.dropout = some_drop(&rng);
    test_run(&c);
    masked = c;
    masked.params.schedule = NULL, masked.params.mask = attn_mask_bool(mask, 1, 2, T, T);
    test_compare(&masked, "a schedule");
    if (n == 2) { /* the first head's pairs as lists */
      for (int64_t i = 0; i < T; i++) {
        indptr[i] = edges;
        for (int64_t j = 0; j < T; j++)
          if (mask[i * T + (j * 7 + 3) % T]) col[edges++] = (int32_t)((j * 7 + 3) % T);
      }
      indptr[T] = edges;
      test_call one = test_again(&c);
      attn_edges_params p;
      memset(&p, 0, sizeof p);
      p.indptr = indptr, p.col = col, p.edges = edges, p.dropout = c.params.dropout;
      p.weights = test_mem((size_t)edges * sizeof(float));
      one.q = test_one(c.q, 0, 1, 0, 1), one.o = test_one(one.o, 0, 1, 0, 1);
      one.k = test_one(c.k, 0, 1, 0, 1), one.v = test_one(c.v, 0, 1, 0, 1);
      one.params = masked.params, one.params.mask = attn_mask_bool(mask, 1, 1, T, T);
      memset(&one.params.lse, 0, sizeof one.params.lse);
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_edges(one.o, one.q, one.k, one.v, &p, &ctx), ATTN_OK);
      test_compare(&one, "lists");
      for (int64_t i = 0; i < T; i++) { /* those before dropout */
        double sum = 0;
        for (int64_t x = indptr[i]; x < indptr[i + 1]; x++) sum += (double)p.weights[x];
        assert_true(fabs(sum - 1) < 1e-5);
      }
    }
    attn_schedule_free(&schedule);
  }
}

/* NaN in the value of a dropped pair shows in the rows that may see it, and in no other. */
void N1_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9115);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    test_spec spec = test_plain(1, 100, 150, 9, 7);
    test_call c = test_build(&spec, &rng), was;
    uint8_t *mask = test_mem(100 * 150);
    for (int64_t i = 0; i < 100 * 150; i++) mask[i] = i % 150 != 77 || i / 150 % 3;
    if (n) c.params.mask = attn_mask_bool(mask, 1, 1, 100, 150);
    c.params.dropout = some_drop(&rng);
    test_run(&c);
    was = c, c = test_again(&was);
    test_fill_row(c.v, 0, 0, 77, (double)NAN);
    test_run(&c);
    for (int64_t i = 0; i < 100; i++)
      for (int64_t x = 0; x < 7; x++) {
        const double y = oracle_get(&c.o, 0, 0, i, x);
        if (!n || i % 3)
          assert_true(isnan(y));
        else
          assert_true(y == oracle_get(&was.o, 0, 0, i, x));
      }
  }
}

/* Calls of several heads in one: the same as their parts. */
void N1_multihead(void **state) {
  (void)state;
  test_rng rng = test_seed(9116);
  enum { T = 40, D = 12, H = 3 };
  const attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 2, 1, T, D, 1, &rng);
  attn_multihead_params p;
  memset(&p, 0, sizeof p);
  p.heads = H;
  p.w_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, D, D, 0.3, &rng);
  p.w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, D, D, 0.3, &rng);
  p.w_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, D, D, 0.3, &rng);
  p.w_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, D, D, 0.3, &rng);
  p.attention.causal = 1, p.attention.dropout = some_drop(&rng);
  const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, T, D);
  const attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, T, D);
  attn_tensor part[4];
  attn_ctx ctx = test_ctx();
  const attn_tensor w[3] = {p.w_q, p.w_k, p.w_v};
  assert_int_equal(attn_multihead(y, x, x, x, &p, &ctx), ATTN_OK);
  for (int i = 0; i < 4; i++) {
    part[i] = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, T, D);
    if (i < 3) assert_int_equal(attn_gemm(part[i], x, w[i], NULL, &ctx), ATTN_OK);
  }
  attn_tensor heads[4];
  for (int i = 0; i < 4; i++) {
    heads[i] = part[i];
    heads[i].heads = H, heads[i].dim = D / H, heads[i].stride_head = D / H;
  }
  assert_int_equal(attn_sdpa(heads[3], heads[0], heads[1], heads[2], &p.attention, &ctx), ATTN_OK);
  assert_int_equal(attn_gemm(want, part[3], p.w_o, NULL, &ctx), ATTN_OK);
  test_assert_near(y, want, 1e-6, "heads");
}

/* An encoder block is its parts, each with the same pairs dropped; lengths leave the places of rows as they are. */
void N1_encoder(void **state) {
  (void)state;
  test_rng rng = test_seed(9119);
  enum { T = 30, D = 12, H = 2, F = 20 };
  for (int n = 0; n < 2; n++, test_mem_release()) {
    int32_t len[3] = {30, 7, 22};
    const attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 3, 1, T, D, 1, &rng);
    attn_tensor part[3], y = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, T, D);
    attn_block_params p;
    attn_layer_norm_params norm;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p), memset(&norm, 0, sizeof norm);
    p.self.heads = H;
    attn_tensor *const w[] = {&p.self.w_q, &p.self.w_k, &p.self.w_v, &p.self.w_o};
    for (int i = 0; i < 4; i++) *w[i] = drawn(ATTN_F32, TEST_BHTD, 1, 1, D, D, 0.3, &rng);
    p.ff.w_1 = drawn(ATTN_F32, TEST_BHTD, 1, 1, D, F, 0.3, &rng);
    p.ff.w_2 = drawn(ATTN_F32, TEST_BHTD, 1, 1, F, D, 0.3, &rng);
    p.self.attention.dropout = some_drop(&rng);
    if (n) p.x_len = len;
    assert_int_equal(attn_encoder(y, x, &p, &ctx), ATTN_OK);
    for (int i = 0; i < 3; i++) part[i] = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, T, D);
    attn_multihead_params self = p.self;
    if (n) self.attention.kv_len = len;
    assert_int_equal(attn_multihead(part[0], x, x, x, &self, &ctx), ATTN_OK);
    norm.residual = x;
    assert_int_equal(attn_layer_norm(part[1], part[0], &norm, &ctx), ATTN_OK);
    assert_int_equal(attn_feed_forward_rows(part[0], part[1], &p.ff, 0, &ctx), ATTN_OK);
    norm.residual = part[1];
    assert_int_equal(attn_layer_norm(part[2], part[0], &norm, &ctx), ATTN_OK);
    for (int b = 0; b < 3; b++) {
      const int64_t rows = n ? len[b] : T;
      test_assert_near(test_rows(test_one(y, b, 1, 0, 1), 0, rows),
                       test_rows(test_one(part[2], b, 1, 0, 1), 0, rows), 1e-5, "a block");
    }
  }
}

/* Calls whose weights are others, or whose rows are not the caller's, refuse; so do values out of range. */
void N1_refused(void **state) {
  (void)state;
  test_rng rng = test_seed(9117);
  test_spec spec = test_plain(2, 20, 20, 8, 8);
  test_call c = test_build(&spec, &rng);
  const attn_tensor o = c.o, q = c.q, k = c.k, v = c.v;
  const attn_tensor d_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 8);
  const attn_drop drop = some_drop(&rng);
  attn_ctx ctx = test_ctx();
#define WITHOUT_(name, word)                                              \
  {                                                                       \
    attn_##name##_params p;                                               \
    memset(&p, 0, sizeof p);                                              \
    p.attention.dropout = drop;                                           \
    assert_int_equal(attn_##name(o, q, k, v, &p, &ctx), ATTN_E_RANGE);    \
    if (!strstr(ctx.reason, word)) fail_msg("%s: %s", #name, ctx.reason); \
  }
  WITHOUT_(relu, "dropout")
  WITHOUT_(reshaped, "dropout")
  WITHOUT_(yoso, "terms")
  attn_topk_params top;
  memset(&top, 0, sizeof top);
  top.k = 3, top.attention.dropout = drop;
  assert_int_equal(attn_topk_sdpa(o, q, k, v, &top, &ctx), ATTN_E_RANGE);
  assert_non_null(strstr(ctx.reason, "dropout"));
  for (int64_t i = 0; i < 2 * 20 * 8; i++)
    assert_int_equal(((const unsigned char *)o.data)[i], 0xA5);
  const struct {
    attn_status status;
    attn_drop drop;
  } bad[] = {{ATTN_E_VALUE, {1, 0, 0, 0, 0}},
             {ATTN_E_VALUE, {-0.1, 0, 0, 0, 0}},
             {ATTN_E_VALUE, {(double)NAN, 0, 0, 0, 0}},
             {ATTN_E_RANGE, {0.5, 0, 0, -1, 0}},
             {ATTN_E_RANGE, {0.5, 0, 0, (int64_t)1 << 32, 0}},
             {ATTN_E_RANGE, {0.5, 0, 0, 0, 0xffffffff}}};
  for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
    attn_edges_params p;
    static const int64_t indptr[21];
    memset(&p, 0, sizeof p);
    p.indptr = indptr, p.dropout = c.params.dropout = bad[n].drop;
    assert_int_equal(attn_sdpa(o, q, k, v, &c.params, &ctx), bad[n].status);
    assert_int_equal(attn_sdpa_workspace(o, q, k, v, &c.params, &ctx), ATTN_WORKSPACE_REJECTED);
    assert_int_equal(attn_edges(o, q, k, v, &p, &ctx), bad[n].status);
    assert_int_equal(attn_sdpa_backward(absent(), absent(), d_v, v, q, k, v, v, c.params.lse,
                                        &c.params, NULL, &ctx),
                     bad[n].status);
  }
  for (int64_t i = 0; i < 2 * 20 * 8; i++)
    assert_int_equal(((const unsigned char *)o.data)[i], 0xA5);
}

/* Gradients where all pairs of a row, or of a block, are dropped, and of long rows. */
void N1_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9118);
  for (int n = 0; n < test_count(9, 4); n++, test_mem_release()) {
    test_spec spec = test_plain(n % 2 ? 4 : 1, n == 2 ? 700 : 130, n == 3 ? 900 : 150, 8, 6);
    if (n % 2) spec.k_heads = spec.v_heads = 2;
    backward *s = backward_build(&spec, ATTN_F32, TEST_BHTD, &rng);
    s->call.params.dropout = some_drop(&rng);
    if (n % 3 == 1) s->call.params.dropout.p = 0.99;
    s->call.params.causal = n & 1;
    backward_check(s, "gradients with dropout");
    promise_keep(&s->does);
  }
}
