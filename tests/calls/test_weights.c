/* tests/calls/test_weights.c owns weights that the caller changes after the softmax. */

#include <math.h>
#include <string.h>

#include "list.h"
#include "patterns.h"
#include "terms.h"

void A2_weights_match_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_WEIGHTS, 7700, test_count(70, 14), 220, "changed weights");
}

void A2_weights_with_terms(void **state) {
  (void)state;
  for (int t = 0; t < TERM_SCORES; t++)
    test_terms_check(TERM_WEIGHTS | 1 << t, 7800 + (uint64_t)t, test_count(8, 2), 180,
                     "changed weights and a term");
  test_terms_check(TERM_WEIGHTS | TERM_ALL, 7850, test_count(20, 4), 180, "and all terms");
}

/* On schedules of every kind, of several phases too. */
void A2_weights_schedules(void **state) {
  (void)state;
  for (int n = 0; n < 2 * ATTN_PATTERN_COUNT; n++, test_mem_release()) {
    test_rng rng = test_seed(7870 + (uint64_t)n);
    test_graph g =
        test_random_graph((attn_pattern_kind)(n % ATTN_PATTERN_COUNT), 60 + 70 * (n & 1), 1, &rng);
    test_spec spec = test_plain(g.heads, g.q_len, g.k_len, 9, 7);
    spec.map = n % 3 != 1;
    spec.o_type = n % 4 == 3 ? ATTN_F16 : ATTN_F32;
    test_call call = test_graph_call(&g, &spec, &rng);
    test_term_user user = {0, 0, 77, 0};
    call.params.modify_weights = test_modify_weights, call.params.modify_weights_user = &user;
    call.params.sinks = n % 5 == 0 ? test_floats(g.heads, 1, &rng) : NULL;
    test_graph_run(&call, &g, test_graph_name(&g));
  }
}

/* What a function has seen, and the map of the same call without it. */
typedef struct seen {
  const attn_tensor *map;
  unsigned char *count;
  int wrong;
} seen;

static void look(void *user, const attn_score_tile *t) {
  seen *s = user;
  for (int64_t r = 0; r < t->queries; r++)
    for (int64_t c = 0; c < t->keys; c++) {
      const int64_t row = (t->batch * s->map->heads + t->head[r]) * s->map->len + t->query[r];
      const double got = (double)t->score[c * t->key_stride + r * t->query_stride];
      const double want = oracle_get(s->map, t->batch, t->head[r], t->query[r], t->key[c]);
      if (want == 0) continue;
      s->count[row * s->map->dim + t->key[c]]++;
      if (!(fabs(got - want) <= 3e-6 * want)) s->wrong++;
    }
}

/* It sees each weight once, normalised with sinks and all, also with few queries; and when it changes
 * nothing, the result is the plain one. */
void A2_weights_seen_once(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++, test_mem_release()) {
    test_rng rng = test_seed(7900 + (uint64_t)n);
    test_spec spec = test_plain(4, n % 2 ? 1 : 90, n < 4 ? 150 : 1100, 8, 7);
    spec.batch = 2, spec.k_heads = spec.v_heads = 2, spec.map = 1;
    test_call plain = test_build(&spec, &rng);
    plain.params.causal = 1;
    plain.params.sinks = n & 2 ? test_floats(4, 1, &rng) : NULL;
    test_call call = test_again(&plain);
    test_run(&plain);
    seen s = {&plain.params.map, NULL, 0};
    const size_t size = (size_t)(8 * spec.q_len * spec.k_len);
    s.count = test_mem(size);
    memset(s.count, 0, size);
    call.params.modify_weights = look, call.params.modify_weights_user = &s;
    const attn_report report = test_run(&call);
    assert_int_equal(s.wrong, 0);
    for (int64_t x = 0; x < (int64_t)size; x++) {
      const int64_t row = x / spec.k_len;
      const double w = oracle_get(&plain.params.map, row / spec.q_len / 4, row / spec.q_len % 4,
                                  row % spec.q_len, x % spec.k_len);
      assert_int_equal(s.count[x], w != 0);
    }
    test_assert_near(call.o, plain.o, 2e-6, "an idle function");
    test_assert_near(call.params.map, plain.params.map, 2e-6, "an idle function: map");
    test_assert_near(call.params.lse, plain.params.lse, 2e-6, "an idle function: LSE");
    if (n % 2 == 0) continue;
    call.params.map.data = NULL; /* one query takes the way of many, as the class says */
    s.count = test_mem(size);
    memset(s.count, 0, size);
    attn_tensor o = call.o;
    call.o = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 1, 7);
    assert_string_equal(test_run(&call).path, report.path);
    test_assert_same(call.o, o, "without a map");
  }
}

static void put(void *user, const attn_score_tile *t) {
  const float x = *(const float *)user;
  for (int64_t r = 0; r < t->queries; r++)
    for (int64_t c = 0; c < t->keys; c++)
      if (t->key[c] == 30 || t->key[c] > 60) t->score[c * t->key_stride + r * t->query_stride] = x;
}

/* What is written counts where a pair is allowed, NaN and infinities too, and nowhere else. */
void A2_weights_special_values(void **state) {
  (void)state;
  static const float values[] = {2, 0, -1, NAN, INFINITY};
  for (int n = 0; n < 15; n++, test_mem_release()) {
    float x = values[n % 5];
    test_rng rng = test_seed(7950);
    test_spec spec = test_plain(1, 50, 90, 8, 7);
    spec.map = 1;
    test_call call = test_build(&spec, &rng), clean = test_again(&call);
    test_fill_value(call.v, 1);
    uint8_t *allowed = test_mem(90);
    for (int j = 0; j < 90; j++) allowed[j] = j != 30 && j <= 60;
    int32_t keys = 61;
    attn_sdpa_params *p = &call.params;
    if (n / 5 == 0) p->mask = attn_mask_bool(allowed, 1, 1, 1, 90);
    if (n / 5 == 1) p->has_q_off = 1, p->q_off = 10, p->causal = 1; /* rows 0..49 see to 10..59 */
    if (n / 5 == 2) p->kv_len = &keys;
    clean.params = *p, clean.params.map.data = NULL;
    clean.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 50, 1);
    p->modify_weights = put, p->modify_weights_user = &x;
    test_run(&call), test_run(&clean);
    test_assert_near(call.params.lse, clean.params.lse, 1e-6, "the LSE is that of P");
    for (int64_t i = 0; i < 50; i++) {
      double sum = 0;
      for (int64_t j = 0; j < 90; j++) {
        const double w = oracle_get(&call.params.map, 0, 0, i, j);
        const int see = n / 5 == 0 ? allowed[j] : n / 5 == 1 ? j <= i + 10 : j < 61;
        if (!see) assert_true(w == 0);
        if (see && j == 30) assert_true(isnan(x) ? isnan(w) : w == (double)x);
        sum += w;
      }
      const double got = oracle_get(&call.o, 0, 0, i, 3);
      if (isnan(sum))
        assert_true(isnan(got));
      else if (isinf(sum))
        assert_true(got == sum);
      else
        assert_true(fabs(got - sum) < 1e-5);
    }
  }
}

/* NaN and infinities in keys and values that a row may not see never reach it. */
void A2_weights_garbage(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(7960);
    test_spec spec = test_plain(2, 100, 150, 8, 7);
    spec.map = 1;
    test_call clean = test_build(&spec, &rng);
    clean.params.causal = 1;
    test_term_user user = {0, 0, 5, 0};
    clean.params.modify_weights = test_modify_weights, clean.params.modify_weights_user = &user;
    test_run(&clean);
    test_call call = test_again(&clean);
    attn_tensor *t = n % 2 ? &call.v : &call.k;
    attn_tensor copy = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 150, t->dim);
    test_copy(copy, *t);
    test_fill_row(copy, 0, 1, 120, n / 2 ? (double)INFINITY : (double)NAN);
    *t = copy;
    test_run(&call);
    for (int64_t row = 0; row < 200; row++) { /* row i sees keys to i + 50 */
      const double got = oracle_get(&call.o, 0, row / 100, row % 100, 5);
      const double want = oracle_get(&clean.o, 0, row / 100, row % 100, 5);
      if (row < 170)
        assert_true(got == want);
      else if (n < 2)
        assert_true(isnan(got));
    }
  }
}

/* Calls whose weights are others refuse it. */
void A2_weights_refused(void **state) {
  (void)state;
  test_rng rng = test_seed(7970);
  test_spec spec = test_plain(2, 9, 9, 4, 4);
  test_call c = test_build(&spec, &rng);
  test_term_user user = {0, 0, 5, 0};
  attn_ctx ctx = test_ctx();
  attn_relu_params relu;
  attn_topk_params topk;
  attn_talking_params talking;
  attn_score_mix_params mix;
  memset(&relu, 0, sizeof relu);
  memset(&topk, 0, sizeof topk);
  memset(&talking, 0, sizeof talking);
  memset(&mix, 0, sizeof mix);
  attn_sdpa_params *inner[] = {&relu.attention, &topk.attention, &talking.attention,
                               &mix.attention};
  topk.k = 2;
  talking.w_l = talking.w_w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, 2);
  for (int n = 0; n < 4; n++) {
    attn_status got = ATTN_OK;
    inner[n]->modify_weights = test_modify_weights, inner[n]->modify_weights_user = &user;
    if (n == 0) got = attn_relu(c.o, c.q, c.k, c.v, &relu, &ctx);
    if (n == 1) got = attn_topk_sdpa(c.o, c.q, c.k, c.v, &topk, &ctx);
    if (n == 2) got = attn_talking(c.o, c.q, c.k, c.v, &talking, &ctx);
    if (n == 3) got = attn_score_mix(c.o, c.q, c.k, c.v, &mix, &ctx);
    assert_int_equal(got, ATTN_E_RANGE);
    assert_non_null(strstr(ctx.reason, "modify_weights"));
  }
}
