/* tests/families/content/test_topk_promises.c owns what D1 promises: edge cases, identities, rejects. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "terms.h"
#include "topk.h"

/* ---- edge cases and identities --------------------------------------------------------------*/

/* k >= Tk is attention over the base set, bit for bit; so are bounds below every score. */
void D1_topk_all(void **state) {
  (void)state;
  test_rng rng = test_seed(42000);
  for (int n = 0; n < 8; n++) {
    test_spec spec = test_plain(2, 37, n < 4 ? 200 : 12, 16, 9);
    test_call base = test_build(&spec, &rng);
    base.params.causal = n & 1, base.params.one_order = 1;
    test_call full = test_again(&base);
    test_run(&full);
    best_call c =
        best_of(&base, (attn_topk_mode)(n % 4), spec.k_len + n, n % 4 == 2 ? -1e30f : 1e30f);
    best_run(&c);
    test_assert_same_outputs(&full, &base, "all keys");
  }
}

/* k = 1: the value of the best key, and its score. */
void D1_topk_one(void **state) {
  (void)state;
  test_rng rng = test_seed(42100);
  test_spec spec = test_plain(1, 20, 150, 16, 9);
  test_call base = test_build(&spec, &rng);
  best_call c = best_of(&base, ATTN_TOPK_EXACT, 1, 0);
  best_check(&c, 0, "one");
  for (int64_t i = 0; i < 20; i++) {
    int64_t n;
    const int32_t *list = best_list(&c, 0, 0, i, &n);
    assert_int_equal(n, 1);
    for (int64_t d = 0; d < 9; d++)
      assert_true(oracle_get(&base.o, 0, 0, i, d) == oracle_get(&base.v, 0, 0, list[0], d));
    double x = oracle_score(&base.q, &base.k, &base.params, 0, 0, i, list[0]).x;
    assert_true(fabs(oracle_get(&base.params.lse, 0, 0, i, 0) - x) < 1e-5);
  }
}

/* Rows without keys, bounds above every score, one token, no keys and no queries. */
void D1_topk_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(42200);
  for (int mode = 0; mode < 4; mode++)
    for (int n = 0; n < 6; n++) {
      test_spec spec = test_plain(2,
                                  n == 2   ? 0
                                  : n == 3 ? 1
                                           : 9,
                                  n == 1   ? 0
                                  : n == 3 ? 1
                                           : 6,
                                  4, 3);
      if (n == 5) spec.batch = 0;
      test_call base = test_build(&spec, &rng);
      if (n == 4) base.params.causal = 1; /* the first three rows see nothing */
      float bound = n == 0 ? INFINITY : 0.5f;
      best_call c = best_of(&base, (attn_topk_mode)mode, 2, bound);
      best_check(&c, 0, "empty");
      if (n == 0 && mode == ATTN_TOPK_ABS)
        for (int64_t i = 0; i < 9; i++) {
          assert_true(oracle_get(&base.o, 0, 0, i, 0) == 0);
          assert_true(oracle_get(&base.params.lse, 0, 0, i, 0) == -(double)INFINITY);
        }
    }
}

/* LSE grows with k up to that of all keys; selection and the rest merge to the whole. */
void D1_topk_merge(void **state) {
  (void)state;
  test_rng rng = test_seed(42300);
  test_spec spec = test_plain(2, 33, 140, 16, 9);
  test_call base = test_build(&spec, &rng), full = test_again(&base);
  test_run(&full);
  double *last = test_mem(66 * 8);
  for (int64_t n = 0; n < 66; n++) last[n] = -(double)INFINITY;
  for (int64_t k = 1; k < 200; k = k * 3 / 2 + 1) {
    best_call c = best_of(&base, ATTN_TOPK_EXACT, k, 0);
    best_lists(&c);
    best_run(&c);
    for (int64_t n = 0; n < 66; n++) {
      double lse = oracle_get(&base.params.lse, 0, n / 33, n % 33, 0);
      assert_true(lse >= last[n] - 1e-6);
      assert_true(lse <= oracle_get(&full.params.lse, 0, n / 33, n % 33, 0) + 1e-6);
      last[n] = lse;
    }
    test_call d = best_chosen(&c), rest = test_again(&d), both = test_again(&d);
    uint8_t *mask = test_mem(2 * 33 * 140);
    for (int64_t n = 0; n < 2 * 33 * 140; n++) mask[n] = !((const uint8_t *)d.params.mask.data)[n];
    rest.params.mask.data = mask;
    test_run(&rest);
    attn_ctx ctx = test_ctx();
    assert_int_equal(
        attn_merge(both.o, both.params.lse, base.o, base.params.lse, rest.o, rest.params.lse, &ctx),
        ATTN_OK);
    test_assert_near(both.o, full.o, 1e-5, "merge");
    test_assert_near(both.params.lse, full.params.lse, 1e-5, "merge");
  }
}

/* Permuted keys and values permute the selection. */
void D1_topk_permuted(void **state) {
  (void)state;
  test_rng rng = test_seed(42400);
  test_spec spec = test_plain(1, 40, 150, 16, 9);
  test_call base = test_build(&spec, &rng), other = test_again(&base);
  other.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 150, 16);
  other.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 150, 9);
  for (int64_t j = 0; j < 150; j++) { /* 7 and 150 have no common divisor */
    test_copy(test_rows(other.k, j * 7 % 150, 1), test_rows(base.k, j, 1));
    test_copy(test_rows(other.v, j * 7 % 150, 1), test_rows(base.v, j, 1));
  }
  best_call a = best_of(&base, ATTN_TOPK_EXACT, 11, 0), b = best_of(&other, ATTN_TOPK_EXACT, 11, 0);
  best_lists(&a), best_lists(&b);
  best_run(&a), best_run(&b);
  for (int64_t i = 0; i < 40; i++) {
    int64_t n, m, found = 0;
    const int32_t *x = best_list(&a, 0, 0, i, &n), *y = best_list(&b, 0, 0, i, &m);
    assert_int_equal(n, m);
    for (int64_t e = 0; e < n; e++)
      for (int64_t f = 0; f < m; f++) found += x[e] * 7 % 150 == y[f];
    assert_int_equal(found, n);
  }
  test_assert_near(other.o, base.o, 1e-6, "permuted");
}

/* The queries in parts, one by one too, give the same bits and lists. */
void D1_topk_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(42500);
  for (int mode = 0; mode < 4; mode++) {
    test_spec spec = test_plain(1, 70, 300, 16, 9);
    test_call base = test_build(&spec, &rng), whole = test_again(&base);
    base.params.causal = whole.params.causal = 1;
    base.params.has_q_off = whole.params.has_q_off = 1;
    base.params.q_off = whole.params.q_off = 230;
    best_call c = best_of(&whole, (attn_topk_mode)mode, 13, mode == ATTN_TOPK_REL ? 1.0f : 0.5f);
    best_run(&c);
    for (int64_t i = 0, n; i < 70; i += n) {
      n = i < 3 ? 1 : i == 3 ? 50 : 70 - i;
      test_call part = base;
      part.q = test_rows(base.q, i, n), part.o = test_rows(base.o, i, n);
      part.params.lse = test_rows(base.params.lse, i, n), part.params.q_off += i;
      c = best_of(&part, (attn_topk_mode)mode, 13, mode == ATTN_TOPK_REL ? 1.0f : 0.5f);
      best_run(&c);
    }
    test_assert_same_outputs(&base, &whole, best_mode[mode]);
  }
}

/* The lists given to attn_edges are the same attention. */
void D1_topk_lists_attend(void **state) {
  (void)state;
  test_rng rng = test_seed(42600);
  for (int mode = 0; mode < 4; mode++) {
    test_spec spec = test_plain(2, 33, 150, 16, 9);
    spec.batch = 2;
    test_call base = test_build(&spec, &rng), other = test_again(&base);
    base.params.kv_len = test_lengths(2, 150, &rng);
    best_call c = best_of(&base, (attn_topk_mode)mode, 13, 0.75f);
    best_lists(&c);
    best_run(&c);
    attn_edges_params p;
    memset(&p, 0, sizeof p);
    p.indptr = c.params.indptr, p.col = c.params.col, p.edges = c.params.edges;
    p.per_batch = p.per_head = p.slack = 1;
    p.lse = other.params.lse;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_edges(other.o, base.q, base.k, base.v, &p, &ctx), ATTN_OK);
    test_assert_near(other.o, base.o, 2e-5, best_mode[mode]);
    test_assert_near(other.params.lse, base.params.lse, 1e-5, best_mode[mode]);
    p.slack = 0; /* the sets have room for more than they hold */
    assert_int_equal(attn_edges(other.o, base.q, base.k, base.v, &p, &ctx), ATTN_E_INDEX);
    p.slack = 1, p.edges = p.indptr[33] - 1;
    assert_int_equal(attn_edges(other.o, base.q, base.k, base.v, &p, &ctx), ATTN_E_INDEX);
  }
}

/* What is not selected never reaches an output; NaN scores come last, and end. */
void D1_topk_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(42700);
  test_graph g = test_graph_of(attn_pattern_random(40, 77), 1, 20, 300);
  for (int n = 0; n < 8; n++) {
    int mode = n % 4;
    test_spec spec = test_plain(1, 20, 300, 8, 5);
    test_call base = n < 4 ? test_build(&spec, &rng) : test_graph_call(&g, &spec, &rng);
    test_call clean = test_again(&base);
    float bound = mode == ATTN_TOPK_REL ? 0.5f : 1.0f;
    best_call c = best_of(&clean, (attn_topk_mode)mode, 5, bound);
    best_lists(&c);
    best_run(&c);
    uint8_t used[300] = {0};
    for (int64_t i = 0; i < 20; i++) {
      int64_t many;
      const int32_t *list = best_list(&c, 0, 0, i, &many);
      for (int64_t e = 0; e < many; e++) used[list[e]] = 1;
    }
    for (int64_t j = 0; j < 300; j++)
      if (!used[j]) test_fill_row(base.v, 0, 0, j, (double)NAN);
    best_call again = best_of(&base, (attn_topk_mode)mode, 5, bound);
    best_lists(&again);
    best_run(&again);
    test_assert_same_outputs(&clean, &base, best_mode[mode]);
    assert_memory_equal(again.params.indptr, c.params.indptr, c.blocks[0].size);
    assert_memory_equal(again.params.col, c.params.col, (size_t)c.params.indptr[20] * 4);
    test_fill_row(base.k, 0, 0, 7, (double)NAN);
    test_fill_row(base.q, 0, 0, 3, (double)NAN);
    base.params.kv_len = test_lengths(1, 250, &rng);
    c = best_of(&base, (attn_topk_mode)mode, 5, bound);
    best_lists(&c);
    best_run(&c);
    for (int64_t i = 0; i < 20; i++) {
      int64_t many;
      const int32_t *list = best_list(&c, 0, 0, i, &many);
      for (int64_t e = 0; e < many; e++)
        assert_true(list[e] >= 0 && list[e] < base.params.kv_len[0]);
      for (int64_t e = 0; e < many; e++)
        assert_false(n == ATTN_TOPK_EXACT && i != 3 && list[e] == 7 && base.params.kv_len[0] > 5);
    }
  }
}

/* TIES: NaN ties with no number, and a list is the same whatever the other rows of the tile are: here one
 * whose k-th score is met again. */
void D1_topk_ties_far(void **state) {
  (void)state;
  static const float keys[2][5] = {{5, 4, 3, NAN, 1}, {5, INFINITY, 3, 2, 1}};
  static const int32_t want[2][8] = {{0, 1, 0, 1, 2, 4, -1, -1}, {0, 1, 0, 2, 3, 4, -1, -1}};
  test_rng rng = test_seed(42900);
  for (int n = 0; n < 8; n++) {
    test_spec spec = test_plain(1, 2, 5, 2, 3);
    test_call base = test_build(&spec, &rng);
    base.params.scale = 1;
    for (int64_t j = 0; j < 5; j++) { /* infinity times 0 is NaN in the other row */
      oracle_set(&base.k, 0, 0, j, 0, (double)keys[n % 2][j]);
      oracle_set(&base.k, 0, 0, j, 1, isnan(keys[n % 2][j]) ? (double)NAN : j == 0 ? 5 : 4);
    }
    for (int64_t i = 0; i < 2; i++)
      for (int64_t d = 0; d < 2; d++) oracle_set(&base.q, 0, 0, i, d, i == d);
    best_call c = best_of(&base, ATTN_TOPK_TIES, 2, 0), plain;
    best_lists(&c);
    memset(c.params.col, 0xff, 10 * sizeof *c.params.col);
    attn_ctx ctx = test_ctx();
    if (n / 2 % 2) {
      c.params.attention.lse = absent();
      assert_int_equal(attn_topk_select(base.q, base.k, &c.params, &ctx), ATTN_OK);
    } else {
      best_run(&c);
      plain = c;
      plain.base = test_again(&base);
      plain.params.attention.lse = plain.base.params.lse;
      plain.params.indptr = NULL, plain.params.col = NULL;
      best_run(&plain);
      for (int64_t i = 0; i < 2; i++) {
        double x = oracle_get(&base.o, 0, 0, i, 0);
        assert_true((x != x) == (n % 2 && i == 0));
      }
      for (int64_t i = n % 2; i < 2; i++)
        test_assert_same(test_rows(plain.base.o, i, 1), test_rows(base.o, i, 1), "without lists");
    }
    assert_int_equal(c.params.indptr[1], 2);
    assert_int_equal(c.params.indptr[2], 6);
    assert_memory_equal(c.params.col, want[n % 2], sizeof want[0]);
  }
}

/* REL: NaN is above the bound, and hides no maximum beside it. */
void D1_topk_rel_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(42950);
  for (int64_t bad = 0; bad < 140; bad += 7) {
    test_spec spec = test_plain(1, 70, 140, 4, 3);
    test_call base = test_build(&spec, &rng);
    best_call c = best_of(&base, ATTN_TOPK_REL, 0, 0.5f), clean;
    best_lists(&c);
    clean = c;
    best_lists(&clean);
    best_run(&clean);
    test_fill_row(base.k, 0, 0, bad, (double)NAN);
    best_run(&c);
    for (int64_t i = 0; i < 70; i++) {
      int64_t n, m, at = 0, had = 0;
      const int32_t *list = best_list(&c, 0, 0, i, &n), *want = best_list(&clean, 0, 0, i, &m);
      for (int64_t e = 0; e < m; e++) had |= want[e] == bad;
      if (had) continue; /* it was perhaps the largest */
      assert_int_equal(n, m + 1);
      for (int64_t e = 0; e < n; e++)
        if (list[e] != bad) assert_int_equal(list[e], want[at++]);
    }
  }
}

/* Work follows the base pairs; a bound above all leaves values out but not scores. */
void D1_topk_work(void **state) {
  (void)state;
  test_rng rng = test_seed(42800);
  test_spec spec = test_plain(1, 512, 512, 8, 4);
  test_call base = test_build(&spec, &rng);
  base.params.causal = 1;
  best_call c = best_of(&base, ATTN_TOPK_EXACT, 8, 0);
  assert_true(best_run(&c).pairs <= 512 * 512 * 6 / 10);
}

/* ---- promises -------------------------------------------------------------------------------*/

typedef struct best_scene {
  best_call c;
  int select;
  attn_tensor indptr, col; /* as numbers */
} best_scene;

static attn_status scene_call(void *scene, attn_ctx *ctx) {
  best_scene *s = scene;
  if (s->select) return attn_topk_select(s->c.base.q, s->c.base.k, &s->c.params, ctx);
  return best_attend(&s->c, ctx);
}

static size_t scene_ask(void *scene, const attn_ctx *ctx) {
  best_scene *s = scene;
  const test_call *t = &s->c.base;
  if (s->select) return attn_topk_select_workspace(t->q, t->k, &s->c.params, ctx);
  return attn_topk_sdpa_workspace(t->o, t->q, t->k, t->v, &s->c.params, ctx);
}

static best_scene scene_of(attn_topk_mode mode, int select, const test_call *base) {
  best_scene s;
  memset(&s, 0, sizeof s);
  s.c = best_of(base, mode, 9, 0.5f);
  s.select = select;
  if (select) s.c.params.attention.lse = absent();
  best_lists(&s.c);
  s.indptr = attn_bhtd(s.c.params.indptr, ATTN_F32, 1, 1, 1, (int64_t)s.c.blocks[0].size / 4);
  s.col = attn_bhtd(s.c.params.col, ATTN_F32, 1, 1, 1, (int64_t)s.c.blocks[1].size / 4);
  return s;
}

static promise promise_of(best_scene *s) {
  promise p = {scene_call,
               scene_ask,
               s,
               {s->select ? NULL : &s->c.base.o, s->select ? NULL : &s->c.base.params.lse,
                &s->indptr, &s->col},
               {{0}, {0}, s->c.blocks[0], s->c.blocks[1]},
               0};
  return p;
}

void D1_topk_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(43000);
  for (int n = 0; n < 10; n++) {
    attn_pattern part[2] = {attn_pattern_dilated(40, 40, 3), attn_pattern_random(6, 77)};
    test_graph g = test_graph_of(attn_pattern_union(part, 2), 2, 140, 140);
    test_spec spec = test_plain(2, 140, 140, 8, 5);
    test_call base = n < 8 ? test_build(&spec, &rng) : test_graph_call(&g, &spec, &rng);
    best_scene s = scene_of((attn_topk_mode)(n % 4), n / 4 % 2, &base);
    promise p = promise_of(&s);
    promise_keep(&p);
    test_mem_release();
  }
}

void D1_topk_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(43100);
  test_spec spec = test_plain(2, 7, 20, 8, 5);
  test_call base = test_build(&spec, &rng);
  float z = 3;
  int64_t q_ptr[2] = {0, 7};
#define REJECT(kind, select, status, word, ...)       \
  do {                                                \
    best_scene s = scene_of((kind), (select), &base); \
    attn_topk_params *p = &s.c.params;                \
    __VA_ARGS__;                                      \
    promise x = promise_of(&s);                       \
    promise_reject(&x, (status), (word));             \
  } while (0)
  for (int select = 0; select < 2; select++) {
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_RANGE, "params.k", p->k = 0);
    REJECT(ATTN_TOPK_TIES, select, ATTN_E_RANGE, "params.k", p->k = -1);
    REJECT(ATTN_TOPK_ABS, select, ATTN_E_VALUE, "params.bound", p->bound = NAN);
    REJECT(ATTN_TOPK_REL, select, ATTN_E_VALUE, "params.bound", p->bound = NAN);
    REJECT(ATTN_TOPK_REL, select, ATTN_E_VALUE, "params.bound", p->bound = -1e-30f);
    REJECT(ATTN_TOPK_REL, select, ATTN_E_RANGE, "params.mode", p->mode = ATTN_TOPK_MODES);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_SHAPE, "params.edges", p->edges = 7 * 9 - 1);
    REJECT(ATTN_TOPK_ABS, select, ATTN_E_SHAPE, "params.edges", p->edges = -1);
    REJECT(ATTN_TOPK_ABS, select, ATTN_E_FULL, "params.edges", p->edges = 20 * 7 - 1,
           p->bound = -1e30f);
    REJECT(ATTN_TOPK_TIES, select, ATTN_E_FULL, "params.edges", p->edges = 9 * 7 - 1);
    REJECT(ATTN_TOPK_REL, select, ATTN_E_RANGE, "ragged", p->attention.ragged.sequences = 1,
           p->attention.ragged.q_indptr = q_ptr);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_RANGE, "span", p->attention.span.z = &z);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_RANGE, "map", p->attention.map = base.o);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_RANGE, "relative.values",
           p->attention.relative.values = base.v);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_VALUE, "params.scale", p->attention.scale = INFINITY);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_ALIGN, "params.indptr",
           p->indptr = (int64_t *)(void *)((char *)p->indptr + 4));
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_ALIGN, "params.col",
           p->col = (int32_t *)(void *)((char *)p->col + 2));
    REJECT(ATTN_TOPK_ABS, select, ATTN_E_OVERLAP, "params.col", p->edges = 1,
           p->col = (int32_t *)base.q.data);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_OVERLAP, "params.indptr",
           p->indptr = (int64_t *)(void *)p->col);
    REJECT(ATTN_TOPK_EXACT, select, ATTN_E_NULL, "params.indptr", p->indptr = NULL);
  }
  REJECT(ATTN_TOPK_EXACT, 0, ATTN_E_OVERLAP, "params.indptr", p->indptr = (int64_t *)base.o.data);
  REJECT(ATTN_TOPK_EXACT, 1, ATTN_E_RANGE, "lse", p->attention.lse = base.params.lse);
#undef REJECT
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_topk_sdpa(base.o, base.q, base.k, base.v, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_topk_select(base.q, base.k, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_topk_sdpa_workspace(base.o, base.q, base.k, base.v, NULL, &ctx),
                   ATTN_WORKSPACE_REJECTED);
}
