/* tests/families/content/test_topk.c owns D1, attention to the best keys of each query, against the oracle. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "stored.h"
#include "terms.h"
#include "topk.h"

void D1_topk_random(void **state) {
  (void)state;
  test_rng rng = test_seed(41000);
  for (int64_t n = test_count(48, 12); n-- > 0;) {
    test_call base = test_terms_call(0, n % 4 == 0 ? 200 : 40, &rng);
    base.params.map = absent();
    attn_topk_mode mode = (attn_topk_mode)(n % 4);
    int64_t k = test_range(&rng, 1, n % 3 ? 9 : 50);
    best_call c = best_of(&base, mode, k, best_bound(mode, &rng));
    best_check(&c, 0, best_mode[mode]);
    test_mem_release();
  }
}

/* Several blocks and tiles, and a list that is filled many times over. */
void D1_topk_long(void **state) {
  (void)state;
  test_rng rng = test_seed(41100);
  for (int n = 0; n < 4; n++) {
    test_spec spec = test_plain(2, 70, n % 2 ? 700 : 433, 24, 10);
    spec.k_heads = spec.v_heads = 1;
    test_call base = test_build(&spec, &rng);
    if (n == 1) base.params.causal = 1, base.params.has_q_off = 1, base.params.q_off = 500;
    if (n == 2) base.params.window = attn_window_of(150, 20), base.params.keep = 7;
    best_call c = best_of(&base, ATTN_TOPK_EXACT, n == 3 ? 150 : 20, 0);
    best_check(&c, 0, "long");
    test_mem_release();
  }
}

void D1_topk_terms(void **state) {
  (void)state;
  test_rng rng = test_seed(41200);
  for (int64_t n = test_count(33, 11); n-- > 0;) {
    int term = 1 << (n % TERM_SCORES);
    if (term == TERM_VALUES || term == TERM_SPAN) term = TERM_KEYS | TERM_LABELS | TERM_MODIFY;
    test_call base = test_terms_call(term, 40, &rng);
    base.params.map = absent();
    attn_topk_mode mode = (attn_topk_mode)(n / 3 % 4);
    int64_t k = test_range(&rng, 1, 9);
    best_call c = best_of(&base, mode, k, best_bound(mode, &rng));
    best_check(&c, 0, "terms");
    test_mem_release();
  }
}

/* Base patterns: runs, lists, and unions of several phases. */
void D1_topk_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(41300);
  for (int64_t n = test_count(40, 10); n-- > 0;) {
    attn_pattern_kind kind = (attn_pattern_kind)(n % (int)ATTN_PATTERN_COUNT);
    if (n % 2) kind = ATTN_PATTERN_UNION;
    test_graph g = test_random_graph(kind, n % 5 ? 50 : 150, 2, &rng);
    test_spec spec = test_plain(g.heads, g.q_len, g.k_len, 9, 6);
    test_call base = test_graph_call(&g, &spec, &rng);
    attn_topk_mode mode = (attn_topk_mode)(n / 2 % 4);
    int64_t k = test_range(&rng, 1, 9);
    best_call c = best_of(&base, mode, k, best_bound(mode, &rng));
    c.graph = &g;
    best_check(&c, 0, test_graph_name(&g));
    test_mem_release();
  }
}

/* Keys that are copies of a few: scores tie exactly, whatever the arithmetic. */
void D1_topk_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(41400);
  for (int64_t n = test_count(24, 8); n-- > 0;) {
    int64_t tk = test_range(&rng, 1, n % 3 ? 60 : 400), kinds = test_range(&rng, 1, 7);
    test_spec spec = test_plain(2, 5, tk, 8, 5);
    test_call base = test_build(&spec, &rng);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t j = kinds; j < tk; j++) {
        int64_t from = test_range(&rng, 0, kinds - 1);
        for (int64_t d = 0; d < 8; d++)
          oracle_set(&base.k, 0, h, j, d, oracle_get(&base.k, 0, h, from, d));
      }
    attn_topk_mode mode = n % 3 == 2 ? ATTN_TOPK_REL : (attn_topk_mode)(n % 3);
    best_call c = best_of(&base, mode, test_range(&rng, 1, tk + 2), 0);
    if (n % 2) base.params.causal = c.params.attention.causal = 1, c.base = base;
    best_check(&c, 1, "ties");
    test_mem_release();
  }
}

/* Small integers tie exactly, whatever the scale: keys that are not copies of one another, judged by
 * integer products. */
void D1_topk_ties_of_integers(void **state) {
  (void)state;
  enum { TQ = 70, TK = 300, K = 12 };
  test_rng rng = test_seed(41450);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    const int64_t d = 3 + n * 5 % 61;
    test_graph g = test_graph_of(n % 8 < 4   ? attn_pattern_random(100, 5)
                                 : n % 8 < 6 ? attn_pattern_band(200, 90)
                                             : attn_pattern_full(),
                                 1, TQ, TK);
    test_spec spec = test_plain(1, TQ, TK, d, 4);
    test_call base = test_graph_call(&g, &spec, &rng);
    if (n % 8 == 7) base.params.schedule = NULL, base.params.causal = 1;
    if (n % 3 == 1) base.params.scale = 0.37f;
    for (int64_t i = 0; i < TQ; i++)
      for (int64_t c = 0; c < d; c++)
        oracle_set(&base.q, 0, 0, i, c, (double)test_range(&rng, -3, 3));
    for (int64_t j = 0; j < TK; j++)
      for (int64_t c = 0; c < d; c++)
        oracle_set(&base.k, 0, 0, j, c, (double)test_range(&rng, -3, 3));
    const attn_topk_mode mode = n % 3 == 0   ? ATTN_TOPK_EXACT
                                : n % 3 == 1 ? ATTN_TOPK_TIES
                                             : ATTN_TOPK_REL;
    best_call c = best_of(&base, mode, K, 0);
    best_lists(&c);
    best_run(&c);
    for (int64_t i = 0; i < TQ; i++) {
      int64_t score[TK], count, at = 0;
      for (int64_t j = 0; j < TK; j++) {
        double x = 0;
        for (int64_t e = 0; e < d; e++)
          x += oracle_get(&base.q, 0, 0, i, e) * oracle_get(&base.k, 0, 0, j, e);
        int sees =
            n % 8 == 7 ? j <= i + TK - TQ : oracle_pattern(&g.p, 1, TQ, TK, TK - TQ, 0, i, j);
        score[j] = sees ? (int64_t)x : INT64_MIN;
      }
      const int32_t *list = best_list(&c, 0, 0, i, &count);
      for (int64_t j = 0; j < TK; j++) {
        int64_t above = 0, before = 0;
        for (int64_t m = 0; m < TK; m++)
          above += score[m] > score[j], before += score[m] == score[j] && m < j;
        int in = mode == ATTN_TOPK_EXACT  ? above + before < K
                 : mode == ATTN_TOPK_TIES ? above < K
                                          : above == 0;
        if (score[j] == INT64_MIN || !in) continue;
        if (at >= count || list[at++] != j)
          fail_msg("%s, case %d: row %d has not key %d", best_mode[mode], n, (int)i, (int)j);
      }
      assert_int_equal(at, count);
    }
  }
}

/* A union of phases takes keys out of order; equal scores still go to the lowest index. */
void D1_topk_ties_of_phases(void **state) {
  (void)state;
  test_rng rng = test_seed(41500);
  attn_pattern part[3] = {attn_pattern_dilated(200, 200, 2), attn_pattern_random(6, 77),
                          attn_pattern_band(4, 4)};
  test_graph g = test_graph_of(attn_pattern_union(part, 3), 1, 20, 400);
  test_spec spec = test_plain(1, 20, 400, 8, 5);
  for (int n = 0; n < 8; n++) {
    int mode = n % 4;
    test_call base = test_graph_call(&g, &spec, &rng);
    test_fill_value(base.q, 0.5);
    /* one product a key, since runs and lists add in different orders; the best ones are the last */
    for (int64_t j = 0; j < 400; j++)
      for (int64_t d = 0; d < 8; d++) oracle_set(&base.k, 0, 0, j, d, d > 0 ? 0 : j < 330 ? 1 : 2);
    best_call c =
        best_of(&base, (attn_topk_mode)mode, n < 4 ? 7 : 3, mode == ATTN_TOPK_ABS ? -1e9f : 0);
    c.graph = &g;
    best_check(&c, 1, best_mode[mode]);
  }
}

/* Keys that are copied together: each pass over them needs its own copy of the values. */
void D1_topk_gathered(void **state) {
  (void)state;
  test_rng rng = test_seed(41600);
  int32_t key[20];
  for (int32_t n = 0; n < 20; n++) key[n] = 3 * n;
  test_graph g = test_graph_of(attn_pattern_global(key, 20), 1, 40, 90);
  test_spec spec = test_plain(1, 40, 90, 8, 5);
  for (int mode = 0; mode < 4; mode++) {
    test_call base = test_graph_call(&g, &spec, &rng);
    best_call c = best_of(&base, (attn_topk_mode)mode, 5, 0.5f);
    c.graph = &g;
    best_check(&c, 0, best_mode[mode]);
  }
}

/* Quantised keys and values are what they stand for. */
void D1_topk_quantised(void **state) {
  (void)state;
  test_rng rng = test_seed(41700);
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};
  for (int n = 0; n < 12; n++) {
    test_spec spec = test_plain(2, 20, 150, 34, 10);
    test_call base = test_build(&spec, &rng);
    stored k = stored_tensor(types[n % 3], TEST_BHTD, 1, 2, 150, 34, 0, 0);
    stored v = stored_tensor(types[n / 3 % 3], TEST_BHTD, 1, 2, 150, 10, 0, 0);
    stored_fill(&k, &rng), stored_fill(&v, &rng);
    stored_widen(&k), stored_widen(&v);
    base.k = k.wide, base.v = v.wide;
    best_call wide = best_of(&base, (attn_topk_mode)(n % 4), 7, 0.5f);
    best_check(&wide, 0, "widened");
    test_call other = test_again(&base);
    other.k = k.x, other.v = v.x, other.params.k_scales = k.s, other.params.v_scales = v.s;
    best_call c = best_of(&other, (attn_topk_mode)(n % 4), 7, 0.5f);
    best_run(&c);
    test_assert_same_outputs(&other, &base, "quantised");
    attn_ctx ctx = test_ctx();
    best_lists(&c);
    c.params.attention.lse = absent();
    assert_int_equal(attn_topk_select(other.q, other.k, &c.params, &ctx), ATTN_OK);
    assert_memory_equal(c.params.indptr, wide.params.indptr, c.blocks[0].size);
  }
}

/* Nothing is touched beside the operands, nor keys from kv_len on. */
void D1_topk_guards(void **state) {
  (void)state;
  test_rng rng = test_seed(41800);
  for (int n = 0; n < 16; n++) {
    test_where = n & 1 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    test_spec spec = test_plain(2, 1 + n * 5, 13 + n * 11, 1 + n * 3, 1 + n * 2);
    test_call base = test_build(&spec, &rng);
    best_call c = best_of(&base, (attn_topk_mode)(n / 2 % 4), 6, 0.5f);
    best_lists(&c);
    attn_ctx ctx = test_ctx();
    ctx.workspace_size = attn_topk_sdpa_workspace(base.o, base.q, base.k, base.v, &c.params, &ctx);
    ctx.workspace = test_mem(ctx.workspace_size);
    test_where = TEST_HEAP;
    assert_int_equal(best_attend(&c, &ctx), ATTN_OK);
    test_call d = best_chosen(&c);
    test_compare(&d, "guards");
    test_mem_release();
  }
}
