/* tests/calls/test_ragged.c owns what sequences of unequal length promise beyond single numbers (those are in
 * tests/calls/test_cached.c): terms and masks count within a sequence, rows of nobody stay, work follows the
 * sequences; the kept keys of a window; and every rule of both. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

enum { N = 5, HEADS = 4 };

/* A ragged call; keys end to end too with `ends`. */
typedef struct bundle {
  test_call call;
  int64_t q[N + 1], kv[N + 1], rows, keys; /* the longest */
  test_block o, lse;
} bundle;

static bundle *make(const int64_t *queries, const int64_t *keys, int ends, test_rng *rng) {
  bundle *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  for (int b = 0; b < N; b++) {
    s->q[b + 1] = s->q[b] + queries[b], s->kv[b + 1] = s->kv[b] + keys[b];
    if (queries[b] > s->rows) s->rows = queries[b];
    if (keys[b] > s->keys) s->keys = keys[b];
  }
  test_spec spec = test_plain(HEADS, s->q[N] + 3, ends ? s->kv[N] + 2 : s->keys, 20, 9);
  spec.k_heads = spec.v_heads = 2;
  s->call = test_build(&spec, rng);
  if (!ends) {
    s->call.k = test_tensor(ATTN_F16, TEST_PADDED, N, 2, s->keys, 20);
    s->call.v = test_tensor(ATTN_F32, TEST_BTHD, N, 2, s->keys, 9);
    test_fill(s->call.k, rng, test_normal);
    test_fill(s->call.v, rng, test_normal);
  }
  s->call.o = test_tensor(ATTN_F32, TEST_BHTD, 1, HEADS, s->q[N] + 3, 9), s->o = test_last_block;
  s->call.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, HEADS, s->q[N] + 3, 1);
  s->lse = test_last_block;
  attn_ragged r = {N, s->q, ends ? s->kv : NULL};
  s->call.params.ragged = r;
  return s;
}

static attn_mask mask_of(attn_mask m, int64_t b, int64_t rows, int64_t keys) {
  const int64_t size = m.kind == ATTN_MASK_ADD && m.dtype == ATTN_F32 ? 4
                       : m.kind == ATTN_MASK_ADD                      ? 2
                                                                      : 1;
  if (!m.kind) return m;
  if (m.batch > 1) m.data = (const char *)m.data + b * m.stride_batch * size;
  m.batch = 1;
  if (m.q_len > 1) m.q_len = rows;
  if (m.k_len > 1) m.k_len = keys;
  return m;
}

/* Sequence b as a call of its own, with fresh outputs. */
static test_call alone(const bundle *s, int64_t b) {
  test_call c = s->call;
  attn_sdpa_params *p = &c.params;
  const int ends = p->ragged.kv_indptr != NULL;
  const int64_t rows = s->q[b + 1] - s->q[b], keys = ends ? s->kv[b + 1] - s->kv[b] : c.k.len;
  memset(&p->ragged, 0, sizeof p->ragged);
  c.q = test_rows(c.q, s->q[b], rows);
  c.o = test_rows(c.o, s->q[b], rows);
  p->lse = test_rows(p->lse, s->q[b], rows);
  c.k = ends ? test_rows(c.k, s->kv[b], keys) : test_one(c.k, b, 1, 0, 2);
  c.v = ends ? test_rows(c.v, s->kv[b], keys) : test_one(c.v, b, 1, 0, 2);
  if (p->kv_len) p->kv_len += b;
  p->mask = mask_of(p->mask, b, rows, keys), p->bias = mask_of(p->bias, b, rows, keys);
  return c;
}

/* Runs the bundle and each sequence alone: the same bits, the same pairs. */
static void check(bundle *s, const char *what) {
  attn_report report = test_run(&s->call);
  int64_t pairs = 0;
  for (int64_t b = 0; b < N; b++) {
    char text[96];
    snprintf(text, sizeof text, "%s, sequence %d", what, (int)b);
    if (s->q[b] == s->q[b + 1]) continue;
    test_call have = alone(s, b), want = test_again(&have);
    pairs += test_run(&want).pairs;
    test_assert_same_outputs(&have, &want, text);
  }
  assert_int_equal(report.pairs, pairs);
  for (int64_t h = 0; h < HEADS; h++) {
    for (int64_t i = s->q[N]; i < s->call.o.len; i++) {
      const unsigned char *row = oracle_address(&s->call.o, 0, h, i, 0);
      for (int n = 0; n < 36; n++) assert_int_equal(row[n], 0xA5);
    }
  }
}

static const int64_t some_queries[N] = {70, 0, 1, 9, 20}, some_keys[N] = {90, 12, 1300, 9, 0};

/* A sequence has another batch index when it is alone. */
static int64_t label(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  assert_in_range((uint64_t)batch, 0, N - 1);
  return test_label(user, 0, head, i, j);
}
static void modify(void *user, const attn_score_tile *tile) {
  attn_score_tile same = *tile;
  assert_in_range((uint64_t)tile->batch, 0, N - 1);
  same.batch = 0;
  test_modify(user, &same);
}

static void modify_weights(void *user, const attn_score_tile *tile) {
  attn_score_tile same = *tile;
  assert_in_range((uint64_t)tile->batch, 0, N - 1);
  same.batch = 0;
  test_modify_weights(user, &same);
}

void A2_ragged_terms(void **state) {
  (void)state;
  static const int terms[] = {0,
                              TERM_LABELS,
                              TERM_FACTOR,
                              TERM_TOEPLITZ,
                              TERM_T5,
                              TERM_PARABOLA,
                              TERM_MODIFY,
                              TERM_WEIGHTS,
                              TERM_MODIFY | TERM_WEIGHTS,
                              TERM_TOEPLITZ | TERM_T5,
                              TERM_FACTOR | TERM_PARABOLA};
  for (int64_t n = 0; n < test_count(22, 11); n++) {
    test_rng rng = test_seed(700 + (uint64_t)n);
    bundle *s = make(some_queries, some_keys, n & 1, &rng);
    attn_sdpa_params *p = &s->call.params;
    if (terms[n / 2]) test_add_terms(&s->call, terms[n / 2], &rng);
    if (p->labels.label) p->labels.label = label;
    if (p->modify) p->modify = modify;
    if (p->modify_weights) p->modify_weights = modify_weights;
    p->causal = n % 3 == 0;
    test_left(p, n % 4 == 1 ? 30 : -1), p->keep = n % 8 == 1 ? 4 : 0;
    if (n % 5 == 2) p->has_q_off = 1, p->q_off = 3;
    p->alibi = n % 4 == 2 ? test_floats(HEADS, 0.1, &rng) : NULL;
    p->sinks = n % 4 == 3 ? test_floats(HEADS, 1.0, &rng) : NULL;
    check(s, "terms");
    test_mem_release();
  }
}

/* Extents of masks are those of the padded call. */
void A2_ragged_masks(void **state) {
  (void)state;
  static const attn_mask_kind kinds[] = {ATTN_MASK_BOOL, ATTN_MASK_BITS, ATTN_MASK_NONE};
  for (int64_t n = 0; n < test_count(24, 8); n++) {
    test_rng rng = test_seed(740 + (uint64_t)n);
    bundle *s = make(some_queries, some_keys, n & 1, &rng);
    attn_sdpa_params *p = &s->call.params;
    if (kinds[n % 3]) p->mask = test_mask(kinds[n % 3], ATTN_F32, N, HEADS, s->rows, s->keys, &rng);
    if (n % 3 == 2 || n & 4)
      p->bias =
          test_mask(ATTN_MASK_ADD, n & 8 ? ATTN_F16 : ATTN_F32, N, HEADS, s->rows, s->keys, &rng);
    p->causal = n & 1;
    check(s, "masks");
    test_mem_release();
  }
}

/* Nobody, or nobody with a query. */
void A2_ragged_empty(void **state) {
  (void)state;
  static const int64_t none[N] = {0, 0, 0, 0, 0};
  test_rng rng = test_seed(760);
  bundle *s = make(none, some_keys, 1, &rng);
  check(s, "no queries");
  s->call.params.ragged.sequences = 0;
  assert_string_equal(test_run(&s->call).path, "no-op");
  for (size_t n = 0; n < s->o.size; n++) assert_int_equal(s->o.data[n], 0xA5);
  s = make(some_queries, none, 1, &rng);
  check(s, "no keys");
  int32_t lengths[N] = {0, 5, 1300, 1, 2};
  s = make(some_queries, some_keys, 0, &rng);
  s->call.params.kv_len = lengths;
  check(s, "lengths");
}

/* The same bits for any workers, in exactly the memory that was asked for. */
void A2_ragged_workers(void **state) {
  (void)state;
  static const int workers[] = {1, 2, 3, 7};
  test_call first;
  memset(&first, 0, sizeof first);
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(770);
    bundle *s = make(some_queries, some_keys, 1, &rng);
    attn_ctx ctx = test_ctx();
    test_call *c = &s->call;
    c->params.causal = 1;
    ctx.workers = workers[n], ctx.parallel_for = test_parallel_threads;
    ctx.workspace_size = attn_sdpa_workspace(c->o, c->q, c->k, c->v, &c->params, &ctx);
    assert_true(ctx.workspace_size > 0);
    ctx.workspace_size--;
    ctx.workspace = test_mem(ctx.workspace_size + 1);
    assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &ctx), ATTN_E_WORKSPACE);
    ctx.workspace_size++;
    assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &ctx), ATTN_OK);
    assert_string_equal(ctx.report.path, "sequences end to end");
    assert_int_equal(ctx.report.workers, workers[n]);
    if (n) test_assert_same_outputs(c, &first, "workers");
    if (!n) first = *c;
  }
}

/* ---- rules ----------------------------------------------------------------------------------*/

typedef struct rule {
  attn_status status;
  const char *word;
  void (*spoil)(bundle *s);
} rule;

#define RULE(name, body) \
  static void name(bundle *s) { body }
RULE(negative, s->call.params.ragged.sequences = -1;)
RULE(no_q, s->call.params.ragged.q_indptr = NULL;)
RULE(not_from_0, s->q[0] = 1;)
RULE(q_falls, s->q[2] = s->q[3] + 1;)
RULE(q_beyond, s->q[N] = s->call.q.len + 1;)
RULE(q_negative, s->q[1] = -1;)
RULE(kv_falls, s->kv[1] = s->kv[3] + 1;)
RULE(kv_beyond, s->kv[N] = s->call.k.len + 1;)
RULE(q_batch, s->call.q.batch = s->call.o.batch = s->call.params.lse.batch = 0;)
RULE(k_batch, s->call.params.ragged.kv_indptr = NULL;)
RULE(v_batch, s->call.v.batch = 2;)
RULE(q_len, s->call.params.q_len = (const int32_t *)(const void *)s->kv;)
RULE(kv_len, s->call.params.kv_len = (const int32_t *)(const void *)s->kv;)
RULE(misaligned,
     s->call.params.ragged.q_indptr = (const int64_t *)(const void *)((const char *)s->q + 4);)
RULE(map, s->call.params.map = s->call.params.lse;)
RULE(schedule, static attn_schedule x; s->call.params.schedule = &x;)
RULE(relative, s->call.params.relative.keys = s->call.q;)
RULE(relative_values, s->call.params.relative.values = s->call.q;)
RULE(xl, s->call.params.xl.table = s->call.q;)
RULE(gaussian, s->call.params.gaussian.center = (const float *)s->call.q.data;)
RULE(span, s->call.params.span.z = (const float *)s->call.q.data;)
RULE(mask_rows, s->call.params.mask = attn_mask_bool(s->call.q.data, 1, 1, s->call.q.len, 1);)
RULE(mask_batch, s->call.params.mask = attn_mask_bool(s->call.q.data, N + 1, 1, 1, 1);)
RULE(keep_negative, s->call.params.keep = -1;)
RULE(o_is_offsets, s->call.o.data = s->q; s->call.o.stride_head = 0; s->call.o.stride_len = 0;
     s->call.o.heads = s->call.q.heads = 1; s->call.k.heads = s->call.v.heads = 1;
     s->call.params.lse.heads = 1; s->call.o.len = s->call.q.len = s->call.params.lse.len = 1;
     memset(s->q, 0, sizeof s->q);)

static const rule rules[] = {
    {ATTN_E_RANGE, "ragged.sequences", negative},
    {ATTN_E_NULL, "ragged.q_indptr", no_q},
    {ATTN_E_INDEX, "ragged.q_indptr", not_from_0},
    {ATTN_E_INDEX, "ragged.q_indptr", q_falls},
    {ATTN_E_INDEX, "ragged.q_indptr", q_beyond},
    {ATTN_E_INDEX, "ragged.q_indptr", q_negative},
    {ATTN_E_INDEX, "ragged.kv_indptr", kv_falls},
    {ATTN_E_INDEX, "ragged.kv_indptr", kv_beyond},
    {ATTN_E_SHAPE, "q.batch", q_batch},
    {ATTN_E_SHAPE, "k.batch", k_batch},
    {ATTN_E_SHAPE, "v.batch", v_batch},
    {ATTN_E_RANGE, "q_len", q_len},
    {ATTN_E_RANGE, "kv_len", kv_len},
    {ATTN_E_ALIGN, "ragged.q_indptr", misaligned},
    {ATTN_E_RANGE, "map", map},
    {ATTN_E_RANGE, "schedule", schedule},
    {ATTN_E_RANGE, "relative", relative},
    {ATTN_E_RANGE, "relative", relative_values},
    {ATTN_E_RANGE, "xl", xl},
    {ATTN_E_RANGE, "gaussian", gaussian},
    {ATTN_E_RANGE, "span", span},
    {ATTN_E_MASK, "mask", mask_rows},
    {ATTN_E_MASK, "mask", mask_batch},
    {ATTN_E_RANGE, "keep", keep_negative},
    {ATTN_E_OVERLAP, "o ", o_is_offsets},
};

void A2_ragged_rejects(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof rules / sizeof *rules; n++) {
    test_rng rng = test_seed(780);
    bundle *s = make(some_queries, some_keys, 1, &rng);
    attn_ctx ctx = test_ctx();
    rules[n].spoil(s);
    const test_call *c = &s->call;
    attn_status got = attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &ctx);
    if (got != rules[n].status || !ctx.reason || !strstr(ctx.reason, rules[n].word))
      fail_msg("rule %d: %s because %s", (int)n, attn_status_string(got), ctx.reason);
    for (size_t i = 0; i < s->o.size; i++) assert_int_equal(s->o.data[i], 0xA5);
    for (size_t i = 0; i < s->lse.size; i++) assert_int_equal(s->lse.data[i], 0xA5);
    test_mem_release();
  }
  /* rectified weights know no sequences */
  test_rng rng = test_seed(781);
  bundle *s = make(some_queries, some_keys, 1, &rng);
  attn_relu_params relu;
  memset(&relu, 0, sizeof relu);
  relu.attention.ragged = s->call.params.ragged;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_relu(s->call.o, s->call.q, s->call.k, s->call.v, &relu, &ctx),
                   ATTN_E_RANGE);
}

/* ---- kept keys ------------------------------------------------------------------------------*/

/* Many queries, few of them, and every modifier. */
void A2_keep_judged(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(90, 24); n++) {
    test_rng rng = test_seed(800 + (uint64_t)n);
    const int64_t rows = n % 3 ? test_range(&rng, 1, 16) : test_range(&rng, 17, 150);
    test_spec spec = test_plain(2, rows, test_range(&rng, 1, n % 4 ? 400 : 2500), 7, 5);
    spec.k_heads = 1 + (n & 1), spec.v_heads = 1;
    spec.map = n % 5 == 0 && spec.k_len < 500;
    spec.v_type = (attn_dtype)(n % 3);
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    p->keep = test_u64(&rng) & 1 ? test_range(&rng, 1, 5) : test_range(&rng, 1, 300);
    test_left(p, test_u64(&rng) % 5 ? test_range(&rng, 1, 200) : 0);
    test_right(p, test_u64(&rng) % 3 ? -1 : test_range(&rng, 1, 40));
    p->causal = n % 7 < 4;
    if (n % 6 == 1) p->has_q_off = 1, p->q_off = test_range(&rng, -50, 300);
    if (n % 4 == 1) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 2, rows, spec.k_len, &rng);
    if (n % 4 == 2) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 1, 2, rows, spec.k_len, &rng);
    p->one_order = n % 9 == 8;
    const int terms[] = {
        0, TERM_KEYS | TERM_VALUES, TERM_XL, TERM_T5, TERM_MODIFY, TERM_SPAN, TERM_GAUSSIAN};
    if (n % 11 < 7 && terms[n % 11]) test_add_terms(&call, terms[n % 11], &rng);
    char what[48];
    snprintf(what, sizeof what, "keep, case %d", (int)n);
    test_check(&call, what);
    test_mem_release();
  }
}

/* What lies between the kept keys and the window is never read, and costs nothing. */
void A2_keep_reads_no_more(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    test_rng rng = test_seed(900);
    test_spec spec = test_plain(2, n ? 4 : 90, 3000, 16, 8);
    test_call call = test_build(&spec, &rng);
    call.params.causal = 1, test_left(&call.params, 127), call.params.keep = 4;
    for (int64_t j = 4; j < 3000 - spec.q_len - 127; j++) {
      for (int64_t h = 0; h < 2; h++) {
        test_fill_row(call.k, 0, h, j, NAN);
        test_fill_row(call.v, 0, h, j, INFINITY);
      }
    }
    attn_report report = test_run(&call);
    test_compare(&call, "kept keys");
    assert_true(report.pairs < 2 * spec.q_len * (128 + 4 + 128));
  }
}

/* Without a window, or with one that reaches everything, it changes nothing. */
void A2_keep_without_a_window(void **state) {
  (void)state;
  test_rng rng = test_seed(901);
  test_spec spec = test_plain(2, 40, 300, 16, 8);
  test_call call = test_build(&spec, &rng), again = test_again(&call);
  again.params.keep = 7;
  test_run(&call), test_run(&again);
  test_assert_same_outputs(&call, &again, "keep without a window");
  attn_ctx ctx = test_ctx();
  attn_schedule schedule;
  memset(&schedule, 0, sizeof schedule);
  again.params.schedule = &schedule;
  assert_int_equal(attn_sdpa(again.o, again.q, again.k, again.v, &again.params, &ctx),
                   ATTN_E_RANGE);
  assert_non_null(strstr(ctx.reason, "keep"));
}
