/* tests/families/content/topk.c owns the judge of attn_topk_sdpa: see topk.h. */

#include "topk.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EPSILON 6e-8

best_call best_of(const test_call *base, attn_topk_mode mode, int64_t k, float bound) {
  best_call c;
  memset(&c, 0, sizeof c);
  c.base = *base;
  c.params.mode = mode, c.params.k = k, c.params.bound = bound;
  c.params.attention = base->params;
  return c;
}

/* Room for the lists of all keys. */
void best_lists(best_call *c) {
  int64_t sets = c->base.q.batch * c->base.q.heads;
  c->params.edges = c->base.q.len * c->base.k.len;
  c->blocks[0].size = (size_t)(sets * (c->base.q.len + 1)) * 8;
  c->blocks[1].size = (size_t)(sets * c->params.edges) * 4;
  c->params.indptr = test_mem(c->blocks[0].size + 8);
  c->params.col = test_mem(c->blocks[1].size + 8);
  c->blocks[0].data = (unsigned char *)c->params.indptr;
  c->blocks[1].data = (unsigned char *)c->params.col;
}

attn_status best_attend(best_call *c, attn_ctx *ctx) {
  return attn_topk_sdpa(c->base.o, c->base.q, c->base.k, c->base.v, &c->params, ctx);
}

attn_report best_run(best_call *c) {
  attn_ctx ctx = test_ctx();
  attn_status status = best_attend(c, &ctx);
  if (status != ATTN_OK) fail_msg("attn_topk_sdpa: %s: %s", attn_status_string(status), ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

static void run_select(best_call *c) {
  attn_ctx ctx = test_ctx();
  attn_topk_params p = c->params;
  p.attention.lse = absent();
  attn_status status = attn_topk_select(c->base.q, c->base.k, &p, &ctx);
  if (status != ATTN_OK)
    fail_msg("attn_topk_select: %s: %s", attn_status_string(status), ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
}

/* The list of row (b, h, i). */
const int32_t *best_list(const best_call *c, int64_t b, int64_t h, int64_t i, int64_t *n) {
  int64_t set = b * c->base.q.heads + h;
  const int64_t *ptr = c->params.indptr + set * (c->base.q.len + 1) + i;
  *n = ptr[1] - ptr[0];
  return c->params.col + set * c->params.edges + ptr[0];
}

/* What the scores of a row are: x with NaN for keys that are not allowed, and how far they are
 * known. */
static void score_row(const best_call *c, const uint8_t *pairs, int64_t b, int64_t h, int64_t i,
                      double *x, double *unsure) {
  const test_call *t = &c->base;
  const attn_sdpa_params *p = &t->params;
  for (int64_t j = 0; j < t->k.len; j++) {
    x[j] = (double)NAN;
    if (!oracle_allowed(&t->q, &t->k, p, b, h, i, j)) continue;
    if (pairs && !pairs[(h * t->q.len + i) * t->k.len + j]) continue;
    oracle_pair pair = oracle_score(&t->q, &t->k, p, b, h, i, j);
    if (pair.x == -(double)INFINITY) continue;
    x[j] = pair.x;
    unsure[j] = EPSILON * (pair.size * (6 + sqrt((double)t->q.dim) / 4) + fabs(pair.x));
  }
}

/* The k-th largest of n numbers, NaN apart; -inf if there are fewer. */
static double kth(const double *x, int64_t n, int64_t k) {
  for (int64_t j = 0; j < n; j++) {
    int64_t above = 0, same = 0;
    for (int64_t e = 0; e < n; e++) above += x[e] > x[j], same += x[e] == x[j];
    if (above < k && above + same >= k) return x[j];
  }
  return -(double)INFINITY;
}

/* Row (b, h, i)'s list against the definition. exact: scores are known without error, or the gaps
 * between different ones are wide. */
static void judge_row(const best_call *c, const double *x, const double *unsure, int exact,
                      const int32_t *list, int64_t n, const char *what) {
  int64_t tk = c->base.k.len, allowed = 0, at = 0;
  const attn_topk_params *p = &c->params;
  double most = -(double)INFINITY, bound = (double)p->bound, slack = 0;
  for (int64_t j = 0; j < tk; j++) {
    if (isnan(x[j])) continue;
    allowed++;
    most = fmax(most, x[j]);
    slack = fmax(slack, exact ? 0 : unsure[j]);
  }
  if (p->mode == ATTN_TOPK_REL) bound = most - bound;
  if (p->mode == ATTN_TOPK_EXACT || p->mode == ATTN_TOPK_TIES) bound = kth(x, tk, p->k);
  if (p->mode == ATTN_TOPK_ABS && !exact) slack += fabs(bound) * 2e-7;
  if (p->mode == ATTN_TOPK_REL && !exact) slack += ((double)p->bound + fabs(most)) * 2e-7;
  if (p->mode == ATTN_TOPK_EXACT && n != (p->k < allowed ? p->k : allowed))
    fail_msg("%s: %d keys of %d", what, (int)n, (int)allowed);
  int64_t room = 0; /* EXACT: equal scores that are in: the lowest indices */
  for (int64_t j = 0; j < tk; j++) room += x[j] > bound;
  room = p->k - room;
  for (int64_t j = 0; j < tk; j++) {
    int in = at < n && list[at] == j;
    if (in) at++;
    if (isnan(x[j])) {
      if (in) fail_msg("%s: key %d is not allowed", what, (int)j);
      continue;
    }
    if (x[j] < bound - 2 * slack && in)
      fail_msg("%s: key %d is in with %.9g below %.9g", what, (int)j, x[j], bound);
    if (x[j] > bound + 2 * slack && !in)
      fail_msg("%s: key %d is not in with %.9g above %.9g", what, (int)j, x[j], bound);
    if (!exact || x[j] != bound) continue;
    int want = p->mode != ATTN_TOPK_EXACT || room-- > 0;
    if (in != want) fail_msg("%s: key %d at the bound", what, (int)j);
  }
  if (at != n) fail_msg("%s: a list is not ascending, or passes the keys", what);
}

/* The lists of a call that has run. */
static void judge_lists(const best_call *c, int exact, const char *what) {
  const test_call *t = &c->base;
  double *x = test_mem((size_t)(t->k.len + 1) * 8), *unsure = test_mem((size_t)(t->k.len + 1) * 8);
  const uint8_t *pairs = NULL;
  int64_t n;
  if (c->graph) pairs = test_graph_mask(c->graph, &n);
  for (int64_t b = 0; b < t->q.batch; b++) {
    for (int64_t h = 0; h < t->q.heads; h++) {
      assert_int_equal(c->params.indptr[(b * t->q.heads + h) * (t->q.len + 1)], 0);
      for (int64_t i = 0; i < t->q.len; i++) {
        const int32_t *list = best_list(c, b, h, i, &n);
        assert_true(n >= 0);
        score_row(c, pairs, b, h, i, x, unsure);
        judge_row(c, x, unsure, exact, list, n, what);
      }
    }
  }
}

/* The call of attn_sdpa over what has been selected. */
test_call best_chosen(const best_call *c) {
  test_call d = c->base;
  int64_t nb = d.q.batch, nh = d.q.heads, tq = d.q.len, tk = d.k.len, n;
  uint8_t *mask = test_mem((size_t)(nb * nh * tq * tk) + 1);
  memset(mask, 0, (size_t)(nb * nh * tq * tk));
  for (int64_t r = 0; r < nb * nh * tq; r++) {
    const int32_t *list = best_list(c, r / tq / nh, r / tq % nh, r % tq, &n);
    for (int64_t e = 0; e < n; e++) mask[r * tk + list[e]] = 1;
  }
  memset(&d.params.mask, 0, sizeof d.params.mask);
  d.params.schedule = NULL;
  if (nb * nh * tq * tk > 0) d.params.mask = attn_mask_bool(mask, nb, nh, tq, tk);
  return d;
}

void best_check(best_call *c, int exact, const char *what) {
  int stored = c->base.k.dtype > ATTN_BF16 || c->base.v.dtype > ATTN_BF16;
  best_lists(c);
  best_run(c);
  judge_lists(c, exact, what);
  test_call d = best_chosen(c);
  if (stored)
    test_compare_stored(&d, what);
  else
    test_compare(&d, what);
  /* the selection alone is the same; without lists the output is */
  best_call s = *c, plain = *c;
  best_lists(&s);
  run_select(&s);
  assert_memory_equal(s.params.indptr, c->params.indptr, c->blocks[0].size);
  int64_t sets = c->base.q.batch * c->base.q.heads, n = c->base.q.len;
  for (int64_t set = 0; set < sets; set++)
    if (n > 0 && c->params.edges > 0)
      assert_memory_equal(s.params.col + set * s.params.edges,
                          c->params.col + set * c->params.edges,
                          (size_t)c->params.indptr[set * (n + 1) + n] * 4);
  plain.base = test_again(&c->base);
  plain.params.attention.lse = plain.base.params.lse;
  plain.params.indptr = NULL, plain.params.col = NULL, plain.params.edges = 0;
  best_run(&plain);
  test_assert_same_outputs(&plain.base, &c->base, what);
}

const char *const best_mode[ATTN_TOPK_MODES] = {"top-k", "ties", "abs", "rel"};

float best_bound(attn_topk_mode mode, test_rng *rng) {
  double x = (double)test_range(rng, -8, 16) / 8;
  return (float)(mode == ATTN_TOPK_REL ? fabs(x) : x);
}
