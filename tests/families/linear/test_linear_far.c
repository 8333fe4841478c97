/* tests/families/linear/test_linear_far.c owns attention over a linear state where keys are far larger than those before
 * them or not finite, and where workers outnumber the heads of many keys. */

#include "linear.h"

static void scale_row(attn_tensor t, int64_t j, double by) {
  for (int64_t c = 0; c < t.dim; c++) oracle_set(&t, 0, 0, j, c, by * oracle_get(&t, 0, 0, j, c));
}

static linear_scene *stabilised(int kind, int64_t rows, int64_t keys, int64_t dv, test_rng *rng) {
  const linear_shape x = linear_plain(1, rows, keys, 5, dv);
  linear_scene *s = linear_build(&x, rng);
  s->p.map.kind = (attn_feature_kind)kind, s->p.map.w = linear_w(1, 8, 5, rng);
  s->p.map.keep_norm = kind == ATTN_FEATURES_RFA;
  if (kind == ATTN_FEATURES_RFA) s->p.den = ATTN_LINEAR_DEN_ADD;
  s->p.causal = 1;
  return s;
}

/* A key of any size in the middle of a chunk, and within four keys: nothing happens to rows before. */
void E3_large_key(void **state) {
  (void)state;
  test_rng rng = test_seed(760);
  static const double by[] = {4, 12, 40, 1e3, 1e17, 1e30, INFINITY, NAN};
  for (int kind = ATTN_FEATURES_RFA; kind <= ATTN_FEATURES_HYPERBOLIC; kind++)
    for (int64_t t = 4; t < 50; t += 40, test_mem_release()) {
      const int64_t at = t / 2;
      linear_scene *s = stabilised(kind, t, t, 6, &rng);
      promise_run(&s->does);
      attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, 6);
      attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, 5);
      test_copy(first, s->o), test_copy(k, s->k);
      for (int n = 0; n < (int)(sizeof by / sizeof *by); n++) {
        scale_row(s->k, at, by[n]);
        promise_run(&s->does);
        test_assert_same(test_rows(s->o, 0, at), test_rows(first, 0, at), "rows before");
        for (int64_t i = at; n > 5 && i < t; i++) assert_true(isnan(oracle_get(&s->o, 0, 0, i, 0)));
        test_copy(s->k, k);
      }
    }
}

/* Keys and queries whose weights are e^100 apart, rising and falling, against the recurrence. */
void E3_large_keys(void **state) {
  (void)state;
  test_rng rng = test_seed(761);
  for (int kind = ATTN_FEATURES_RFA; kind <= ATTN_FEATURES_HYPERBOLIC; kind++)
    for (int n = 0; n < 4; n++, test_mem_release()) {
      linear_scene *s = stabilised(kind, n == 3 ? 4 : 90, n == 3 ? 4 : 150, 6, &rng);
      for (int64_t j = 0; j < s->k.len; j++) {
        const int64_t from = n == 1 ? s->k.len - 1 - j : j;
        scale_row(s->k, j, n == 2 ? (double)(1 + j % 7) : 1 + 8 * (double)from / (double)s->k.len);
      }
      if (n == 3) linear_keep(s);
      linear_check(s, 2e-4, "far apart");
    }
}

/* The last row stands in the middle of a chunk that a state absorbs to its end, where the largest key
 * is. */
void E4_state_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(762);
  for (int kind = ATTN_FEATURES_RFA; kind <= ATTN_FEATURES_HYPERBOLIC; kind++, test_mem_release()) {
    linear_scene *s = stabilised(kind, 1030, 1120, kind == ATTN_FEATURES_SOFTMAX ? 64 : 32, &rng);
    s->p.has_q_off = 1, s->p.chunk = kind == ATTN_FEATURES_HYPERBOLIC ? 60 : 0;
    scale_row(s->k, 1050, 3);
    linear_keep(s);
    promise_keep(&s->does);
  }
}

/* Without order the delta rules have no segments, whatever the keys. */
void E4_rule_delta_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(763);
  for (int rule = ATTN_LINEAR_DELTA; rule <= ATTN_LINEAR_DELTA_ATTN; rule++, test_mem_release()) {
    const linear_shape x = linear_plain(2, 3, 3 * 4096 + 5, 2, 3);
    linear_scene *s = linear_build(&x, &rng);
    s->p.rule = (attn_linear_rule)rule, s->p.rate_const = 0.25f, s->p.den = ATTN_LINEAR_DEN_ADD;
    promise_keep(&s->does);
  }
}
