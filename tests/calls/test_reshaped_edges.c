/* tests/calls/test_reshaped_edges.c owns M2 where scores are large, what lse and map say of every mechanism that leaves a
 * softmax, and decoding by the kinds of weights alone. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "qk_norm.h"
#include "reshaped.h"

/* What stands around the weights, one mechanism at a time. */
enum { ALONE, SSMAX, TEMPERATURE, FORGET, COPE, SELECTIVE, PATH, NORM, MECHANISMS };

static int allowed(attn_reshape_kind kind, int mechanism) {
  if (kind == ATTN_RESHAPE_ENTMAX) return mechanism != COPE && mechanism != SELECTIVE;
  return kind != ATTN_RESHAPE_STICK || mechanism != COPE;
}

static void add_mechanism(reshaped_call *c, int mechanism, attn_qk_norm *norm, test_rng *rng) {
  static const int bits[] = {0,        HAS_SSMAX,     HAS_TEMPERATURE, HAS_FORGET,
                             HAS_COPE, HAS_SELECTIVE, HAS_PATH,        0};
  reshaped_add(c, bits[mechanism], rng);
  if (mechanism != NORM) return;
  *norm = qk_norm_described(rng, (int)test_range(rng, 0, 1) * ATTN_QK_NORM_L2, c->q.heads,
                            c->k.heads, c->q.dim);
  norm->eps = 0, c->p.norm = norm;
}

static void finite(const attn_tensor *t, const char *what, int n) {
  for (int64_t h = 0; t->data && h < t->heads; h++)
    for (int64_t i = 0; i < t->len; i++)
      for (int64_t x = 0; x < t->dim; x++)
        if (!isfinite(oracle_get(t, 0, h, i, x)))
          fail_msg("%s, case %d: [%d,%d,%d] is %g", what, n, (int)h, (int)i, (int)x,
                   oracle_get(t, 0, h, i, x));
}

/* Two columns alone count: the scores of row i are 1e4, -1e4, or both by turns. */
static void make_large(attn_tensor q, attn_tensor k) {
  test_fill_value(q, 0), test_fill_value(k, 0);
  for (int64_t h = 0; h < q.heads; h++)
    for (int64_t i = 0; i < q.len; i++) {
      oracle_set(&q, 0, h, i, 0, i % 3 == 1 ? -1000 : 1000);
      if (i % 3 == 2) oracle_set(&q, 0, h, i, 0, 0), oracle_set(&q, 0, h, i, 1, 1000);
    }
  for (int64_t h = 0; h < k.heads; h++)
    for (int64_t j = 0; j < k.len; j++)
      oracle_set(&k, 0, h, j, 0, 10), oracle_set(&k, 0, h, j, 1, j % 2 ? 10 : -10);
}

/* Scores of 1e4 and -1e4, all of a row alike or both beside each other: what comes out is finite, and right. */
void M2_large_scores(void **state) {
  (void)state;
  const float alphas[] = {0, 2, 1.25f, 1.7f, 1.001f}, mixed[] = {1.05f, 1.9f};
  for (int n = 0; n < 10 * MECHANISMS; n++) {
    const attn_reshape_kind kind = (attn_reshape_kind)(n / 2 / MECHANISMS);
    const int mechanism = n / 2 % MECHANISMS;
    if (!allowed(kind, mechanism)) continue;
    const int ways = kind == ATTN_RESHAPE_ENTMAX && mechanism == ALONE ? 6 : 1;
    for (int way = 0; way < ways; way++) {
      const int few = n & 1;
      char what[60];
      reshaped_call c = reshaped_plain(kind, 2, few ? 3 : 70, few ? 150 : 70, 822);
      test_rng rng = test_seed(823 + (uint64_t)n);
      attn_qk_norm norm;
      c.p.attention.causal = 1, c.p.attention.scale = 1;
      add_mechanism(&c, mechanism, &norm, &rng);
      if (kind == ATTN_RESHAPE_ENTMAX) {
        c.p.alpha = way < 5 ? alphas[(way + mechanism) % 5] : 0,
        c.p.alphas = way < 5 ? NULL : mixed;
      }
      reshaped_show(&c, n % 4 < 2 ? ATTN_MAP_WEIGHTS : ATTN_MAP_SCORES);
      make_large(c.q, c.k);
      snprintf(what, sizeof what, "kind %d with mechanism %d, way %d", (int)kind, mechanism, way);
      if (mechanism == NORM) { /* normed rows, whose scores the scale makes large again */
        reshaped_call by_hand = c;
        c.p.attention.scale = by_hand.p.attention.scale = 1e4f;
        by_hand.q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, c.q.len, c.q.dim);
        by_hand.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, c.k.len, c.k.dim);
        qk_norm_to(by_hand.q, c.q, &norm, 0), qk_norm_to(by_hand.k, c.k, &norm, 1);
        by_hand.p.norm = NULL;
        reshaped_run(&c), reshaped_compare(&by_hand, what);
      } else {
        reshaped_check(&c, what);
      }
      finite(&c.o, what, n), finite(&c.p.sum, what, n), finite(&c.p.support, what, n);
      finite(&c.p.attention.lse, what, n);
      test_mem_release();
    }
  }
  for (int few = 0; few < 2; few++) { /* DIFFERENTIAL: of two softmaxes, each by itself */
    const int64_t tq = few ? 3 : 70, tk = few ? 300 : 70;
    test_rng rng = test_seed(829);
    attn_tensor q = test_tensor(ATTN_F32, TEST_BTHD, 1, 4, tq, 6);
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, 1, 4, tk, 6);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, tk, 9);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, tq, 9);
    attn_tensor each[2];
    attn_differential_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    make_large(q, k), test_fill(v, &rng, test_normal);
    for (int64_t i = 0; i < tq; i++) /* the second map the other way round */
      for (int64_t h = 1; h < 4; h += 2)
        for (int64_t x = 0; x < 2; x++) oracle_set(&q, 0, h, i, x, -oracle_get(&q, 0, h, i, x));
    p.attention.causal = 1, p.attention.scale = 1, p.no_norm = p.has_lambda = 1, p.lambda = 0.5f;
    for (int map = 0; map < 2; map++) {
      attn_tensor mq = q, mk = k;
      mq.data = (float *)q.data + map * q.stride_head, mq.heads = 2, mq.stride_head *= 2;
      mk.data = (float *)k.data + map * k.stride_head, mk.heads = 2, mk.stride_head *= 2;
      each[map] = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, tq, 9);
      assert_int_equal(attn_sdpa(each[map], mq, mk, v, &p.attention, &ctx), ATTN_OK);
    }
    assert_int_equal(attn_differential(o, q, k, v, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    finite(&o, "difference", few);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < tq; i++)
        for (int64_t x = 0; x < 9; x++)
          reshaped_judge(oracle_get(&o, 0, h, i, x),
                         oracle_get(&each[0], 0, h, i, x) - oracle_get(&each[1], 0, h, i, x) / 2,
                         1e-6, "difference", 0, h, i, x);
    p.no_norm = 0;
    assert_int_equal(attn_differential(o, q, k, v, &p, &ctx), ATTN_OK);
    finite(&o, "normed difference", few);
    test_mem_release();
  }
}

/* LSE and map are those of the scores that the mechanism leaves, of many rows and of few, with sinks too. */
void M2_lse_and_map(void **state) {
  (void)state;
  for (int n = 0; n < 4 * MECHANISMS; n++) {
    const int mechanism = n / 4, few = n % 4 == 3;
    test_rng rng = test_seed(825 + (uint64_t)n);
    test_spec spec = test_plain(4, few ? 3 : 70, few ? 300 : 70, 12, 7);
    spec.k_heads = spec.v_heads = 2, spec.batch = 2;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call);
    attn_qk_norm norm;
    char what[40];
    c.p.attention.causal = 1;
    if (n % 4 == 1) c.p.attention.sinks = test_floats(4, 1, &rng);
    if (n % 4 == 2) c.p.attention.softmax_one = 1;
    if (n % 2) c.p.attention.q_len = test_lengths(2, spec.q_len, &rng);
    if (n % 2) c.p.attention.alibi = test_floats(4, 0.1, &rng);
    add_mechanism(&c, mechanism, &norm, &rng);
    snprintf(what, sizeof what, "mechanism %d, case %d", mechanism, n % 4);
    for (int stage = 0; stage < 3; stage++) { /* weights, scores, neither */
      reshaped_show(&c, stage == 0 ? ATTN_MAP_WEIGHTS : stage == 1 ? ATTN_MAP_SCORES : -1);
      if (stage == 2) memset(&c.p.attention.map, 0, sizeof c.p.attention.map);
      reshaped_call by_hand = c;
      if (mechanism == NORM) {
        by_hand.q = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, c.q.len, c.q.dim);
        by_hand.k = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, c.k.len, c.k.dim);
        qk_norm_to(by_hand.q, c.q, &norm, 0), qk_norm_to(by_hand.k, c.k, &norm, 1);
        if (norm.kind == ATTN_QK_NORM_L2) by_hand.p.attention.scale = 1;
        by_hand.p.norm = NULL;
      }
      reshaped_run(&c), reshaped_compare(&by_hand, what);
      /* sums of the rows before are as they were, for the next stage */
      for (int64_t e = 0; c.p.selective.sums && e < 2 * c.k.len; e++) c.p.selective.sums[e] = 0;
    }
    test_mem_release();
  }
}

/* Token by token and in chunks: the bits of one call, the sums and the supports too. A bias of SIGMOID by the number of
 * all keys is the one thing that knows later tokens. */
void M2_decodes(void **state) {
  (void)state;
  enum { T = 100 };
  for (int n = 0; n < 28; n++) {
    static const attn_reshape_kind kinds[] = {
        ATTN_RESHAPE_SIGMOID, ATTN_RESHAPE_SIGMOID, ATTN_RESHAPE_SOFTPICK, ATTN_RESHAPE_STICK,
        ATTN_RESHAPE_STICK,   ATTN_RESHAPE_ENTMAX,  ATTN_RESHAPE_ENTMAX};
    const int way = n % 7;
    const float alphas[4] = {1.5f, 2, 1.3f, 1.05f};
    test_rng rng = test_seed(865 + (uint64_t)n);
    test_spec spec = test_plain(4, T, T, 12, 7);
    spec.batch = 2, spec.k_heads = spec.v_heads = 2;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call);
    c.p.kind = kinds[way];
    c.p.attention.causal = 1, c.p.attention.one_order = 1;
    if (way == 0) c.p.by_row = 1;
    if (way == 1) c.p.has_bias = 1, c.p.bias = -3;
    if (way == 3 || way == 4) c.p.include_self = way == 4, c.p.remainder = n / 7 & 1;
    if (way == 5) c.p.alpha = alphas[n / 7];
    if (way == 6) c.p.alphas = alphas;
    if (way == 5 || way == 6) c.p.support = test_tensor(ATTN_F32, TEST_PADDED, 2, 4, T, 1);
    if (way < 2 || way == 3 || way == 4) c.p.sum = test_tensor(ATTN_F32, TEST_PADDED, 2, 4, T, 1);
    if (n / 14) c.p.attention.alibi = test_floats(4, 0.05, &rng);
    const reshaped_call step = reshaped_again(&c);
    reshaped_run(&c);
    for (int32_t t = 0, rows; t < T; t += rows) {
      reshaped_call d = step;
      rows = n / 7 % 2 == 0 ? 1 : t == 0 ? 37 : T - t < 21 ? T - t : 21;
      int32_t length[2] = {t + rows, t + rows};
      d.q = test_rows(c.q, t, rows), d.o = test_rows(step.o, t, rows);
      if (d.p.sum.data) d.p.sum = test_rows(step.p.sum, t, rows);
      if (d.p.support.data) d.p.support = test_rows(step.p.support, t, rows);
      d.p.attention.kv_len = length, d.p.attention.has_q_off = 1, d.p.attention.q_off = t;
      if (n / 14) /* as a cache that has no more keys */
        d.k = test_rows(c.k, 0, t + rows), d.v = test_rows(c.v, 0, t + rows),
        d.p.attention.kv_len = NULL;
      reshaped_run(&d);
    }
    test_assert_same(step.o, c.o, "in steps");
    if (c.p.sum.data) test_assert_same(step.p.sum, c.p.sum, "sums in steps");
    if (c.p.support.data) test_assert_same(step.p.support, c.p.support, "supports in steps");
    test_mem_release();
  }
}
