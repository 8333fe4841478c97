/* tests/calls/test_offsets.c owns where queries sit: starts aligned, an offset for each batch entry, ends
 * aligned to lengths. Every entry is judged by the oracle and has the bits of a call of its own. */

#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* An entry has another batch index when it is alone. */
static int64_t label(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  (void)batch;
  return test_label(user, 0, head, i, j);
}
static void modify(void *user, const attn_score_tile *tile) {
  attn_score_tile same = *tile;
  same.batch = 0;
  test_modify(user, &same);
}
static void modify_weights(void *user, const attn_score_tile *tile) {
  attn_score_tile same = *tile;
  same.batch = 0;
  test_modify_weights(user, &same);
}

static attn_mask mask_of(attn_mask m, int64_t b) {
  const int64_t size = m.kind == ATTN_MASK_ADD && m.dtype == ATTN_F32 ? 4
                       : m.kind == ATTN_MASK_ADD                      ? 2
                                                                      : 1;
  if (m.kind && m.batch > 1) m.data = (const char *)m.data + b * m.stride_batch * size;
  m.batch = 1;
  return m;
}

/* Entry b as a call of its own at its offset; its outputs are those of the whole. */
static test_call alone(const test_call *whole, int64_t b) {
  test_call c = *whole;
  attn_sdpa_params *p = &c.params;
  const int64_t h = c.q.heads, rows = h * c.q.len;
  p->q_off = oracle_position(&c.q, &c.k, p, b, 0), p->has_q_off = 1;
  p->q_offs = NULL, p->align_lengths = 0;
  c.q = test_one(c.q, b, 1, 0, h), c.o = test_one(c.o, b, 1, 0, h);
  c.k = test_one(c.k, b, 1, 0, c.k.heads), c.v = test_one(c.v, b, 1, 0, c.v.heads);
  if (p->lse.data) p->lse = test_one(p->lse, b, 1, 0, h);
  if (p->map.data) p->map = test_one(p->map, b, 1, 0, h);
  if (p->kv_len) p->kv_len += b;
  if (p->q_len) p->q_len += b;
  p->mask = mask_of(p->mask, b), p->bias = mask_of(p->bias, b);
  if (p->gaussian.center) p->gaussian.center += b * rows, p->gaussian.precision += b * rows;
  if (p->span.z && p->span.per_query) p->span.z += b * rows;
  return c;
}

static void check(test_call *call, const char *what) {
  attn_sdpa_params *p = &call->params;
  int64_t pairs = 0;
  if (p->labels.label) p->labels.label = label;
  if (p->modify) p->modify = modify;
  if (p->modify_weights) p->modify_weights = modify_weights;
  const attn_report report = test_run(call);
  if (p->map_stage == ATTN_MAP_WEIGHTS) test_compare(call, what);
  for (int64_t b = 0; b < call->q.batch; b++) {
    char text[96];
    snprintf(text, sizeof text, "%s, entry %d", what, (int)b);
    test_call have = alone(call, b), want = test_again(&have);
    pairs += test_run(&want).pairs;
    test_assert_same_outputs(&have, &want, text);
  }
  assert_int_equal(report.pairs, pairs);
}

/* Offsets near the keys, or lengths that say where ends are. */
static void place(test_call *c, test_rng *rng) {
  attn_sdpa_params *p = &c->params;
  const int64_t b = c->q.batch, far = test_u64(rng) % 5 ? 0 : 100000;
  p->has_q_off = 0, p->q_off = 0;
  if (test_u64(rng) & 1) {
    int64_t *offs = test_mem((size_t)b * sizeof *offs);
    for (int64_t n = 0; n < b; n++) offs[n] = test_range(rng, -c->q.len - 3 - far, c->k.len + 5);
    p->q_offs = offs;
    p->causal = (int)(test_u64(rng) % ATTN_CAUSALS);
    return;
  }
  p->align_lengths = 1, p->causal = test_u64(rng) % 3 != 0;
  if (test_u64(rng) % 4) p->kv_len = test_lengths(b, c->k.len, rng);
  p->q_len = test_u64(rng) & 1 ? test_lengths(b, c->q.len, rng) : NULL;
}

void A2_offsets_terms(void **state) {
  (void)state;
  static const attn_map_stage stages[] = {ATTN_MAP_WEIGHTS, ATTN_MAP_RAW, ATTN_MAP_SCORES};
  for (int64_t n = 0; n < test_count(140, 56); n++) {
    test_rng rng = test_seed(81000 + (uint64_t)n);
    const int term = (int)(n % (TERM_COUNT + 2));
    const int terms = term < TERM_COUNT ? 1 << term : term == TERM_COUNT ? 0 : TERM_ALL;
    char what[48];
    snprintf(what, sizeof what, "offsets, case %d", (int)n);
    test_call call = test_terms_call(0, term == TERM_COUNT + 1 ? 70 : 140, &rng);
    place(&call, &rng);
    test_add_terms(&call, terms, &rng);
    if (call.params.map.data && !(terms & TERM_WEIGHTS))
      call.params.map_stage = stages[test_u64(&rng) % 3];
    check(&call, what);
    test_mem_release();
  }
}

/* Few queries: keys by row, in lanes, and split. */
void A2_offsets_few(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(30, 12); n++) {
    test_rng rng = test_seed(82000 + (uint64_t)n);
    test_spec spec = test_plain(n & 1 ? 8 : 2, test_range(&rng, 1, 5), n % 3 ? 2500 : 1024, 12, 7);
    spec.batch = 3;
    spec.k_heads = spec.v_heads = n & 2 ? 1 : 2;
    spec.k_type = n & 4 ? ATTN_BF16 : ATTN_F32;
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    place(&call, &rng);
    if (n % 3 == 0) p->alibi = test_floats(call.q.heads, 0.01, &rng);
    if (n % 2) test_left(p, test_range(&rng, 0, 1500)), p->keep = test_range(&rng, 0, 5);
    if (n % 5 == 1) test_right(p, test_range(&rng, 0, 20));
    if (n % 4 == 1) test_add_terms(&call, TERM_TOEPLITZ, &rng);
    if (n % 4 == 2) test_add_terms(&call, TERM_T5 | TERM_PARABOLA, &rng);
    check(&call, "few queries");
    test_mem_release();
  }
}

/* Rows end to end with keys by batch entry: ends aligned to kv_len, and offsets. */
void A2_offsets_ragged(void **state) {
  (void)state;
  static const int64_t begin[4] = {0, 70, 70, 73}, offs[3] = {5, -2, 240};
  static const int32_t lengths[3] = {90, 3, 250};
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(83000 + (uint64_t)n);
    test_spec spec = test_plain(2, 73, 260, 12, 7);
    test_call call = test_build(&spec, &rng);
    call.k = test_tensor(ATTN_F32, TEST_BHTD, 3, 2, 260, 12);
    call.v = test_tensor(ATTN_F32, TEST_BHTD, 3, 2, 260, 7);
    test_fill(call.k, &rng, test_normal), test_fill(call.v, &rng, test_normal);
    attn_sdpa_params *p = &call.params;
    p->ragged.sequences = 3, p->ragged.q_indptr = begin, p->kv_len = lengths;
    p->causal = 1, p->align_lengths = n & 1, p->q_offs = n & 1 ? NULL : offs;
    p->alibi = n & 2 ? test_floats(2, 0.1, &rng) : NULL;
    if (n & 4) test_left(p, 20), test_add_terms(&call, TERM_T5, &rng);
    test_run(&call);
    for (int64_t b = 0; b < 3; b++) {
      test_call have = call, want;
      if (begin[b] == begin[b + 1]) continue;
      have.q = test_rows(call.q, begin[b], begin[b + 1] - begin[b]);
      have.o = test_rows(call.o, begin[b], have.q.len);
      if (p->lse.data) have.params.lse = test_rows(p->lse, begin[b], have.q.len);
      have.k = test_one(call.k, b, 1, 0, 2), have.v = test_one(call.v, b, 1, 0, 2);
      memset(&have.params.ragged, 0, sizeof have.params.ragged);
      have.params.kv_len = lengths + b, have.params.q_offs = NULL, have.params.align_lengths = 0;
      have.params.has_q_off = 1, have.params.q_off = n & 1 ? lengths[b] - have.q.len : offs[b];
      want = test_again(&have);
      test_run(&want);
      test_compare(&want, "a sequence alone");
      test_assert_same_outputs(&have, &want, "a sequence among others");
    }
    test_mem_release();
  }
}

/* The same as q_off = 0, and what is given wins. */
void A2_causal_start(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(84000 + (uint64_t)n);
    test_spec spec = test_plain(2, n & 1 ? 90 : 3, 150, 12, 7);
    test_call start = test_build(&spec, &rng);
    start.params.alibi = test_floats(2, 0.1, &rng);
    if (n & 2) test_left(&start.params, 11);
    start.params.causal = ATTN_CAUSAL_START;
    if (n >= 4) start.params.has_q_off = 1, start.params.q_off = 9;
    test_call want = test_again(&start);
    want.params.causal = ATTN_CAUSAL_END;
    want.params.has_q_off = 1, want.params.q_off = n >= 4 ? 9 : 0;
    test_check(&start, "starts aligned");
    test_run(&start), test_run(&want);
    test_assert_same_outputs(&start, &want, "starts aligned");
    test_mem_release();
  }
}

/* One call of a family that has attn_sdpa_params within. */
static void within(int kind, test_call *c, attn_tensor scores) {
  attn_ctx ctx = test_ctx();
  attn_relu_params relu;
  attn_topk_params topk;
  attn_realformer_params real;
  attn_status status;
  memset(&relu, 0, sizeof relu), memset(&topk, 0, sizeof topk), memset(&real, 0, sizeof real);
  if (kind == 0) {
    relu.attention = c->params;
    status = attn_relu(c->o, c->q, c->k, c->v, &relu, &ctx);
  } else if (kind == 1) {
    topk.attention = c->params, topk.k = 7;
    status = attn_topk_sdpa(c->o, c->q, c->k, c->v, &topk, &ctx);
  } else { /* scores of all pairs are wanted */
    real.attention = c->params, real.scores = scores;
    status = attn_realformer(c->o, c->q, c->k, c->v, &real, &ctx);
  }
  assert_int_equal(status, ATTN_OK);
}

void A2_causal_start_within(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    test_rng rng = test_seed(84100 + (uint64_t)kind);
    test_spec spec = test_plain(2, 90, 150, 12, 7);
    test_call start = test_build(&spec, &rng), want, end;
    attn_tensor scores[3];
    for (int n = 0; n < 3; n++) scores[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 150);
    start.params.alibi = test_floats(2, 0.1, &rng);
    start.params.causal = ATTN_CAUSAL_START;
    start.params.lse.data = NULL;
    want = test_again(&start), end = test_again(&start);
    end.params.causal = want.params.causal = ATTN_CAUSAL_END, want.params.has_q_off = 1;
    within(kind, &start, scores[0]), within(kind, &want, scores[1]), within(kind, &end, scores[2]);
    test_assert_same_outputs(&start, &want, "starts aligned");
    test_assert_same(scores[0], scores[1], "scores, starts aligned");
    assert_memory_not_equal(oracle_address(&start.o, 0, 0, 80, 0),
                            oracle_address(&end.o, 0, 0, 80, 0), 28);
    test_mem_release();
  }
}

/* The same bits for any workers, in exactly the memory that was asked for. */
void A2_offsets_workers(void **state) {
  (void)state;
  static const int64_t offs[3] = {700, -3, 20000};
  test_rng rng = test_seed(85000);
  test_spec spec = test_plain(4, 3, 2100, 12, 7);
  spec.batch = 3;
  test_call first = test_build(&spec, &rng);
  first.params.causal = 1, first.params.q_offs = offs;
  test_add_terms(&first, TERM_TOEPLITZ, &rng);
  test_run(&first);
  for (int workers = 1; workers < 5; workers++) {
    test_call c = test_again(&first);
    attn_ctx ctx = test_ctx();
    ctx.workers = workers, ctx.parallel_for = test_parallel_threads;
    ctx.workspace_size = attn_sdpa_workspace(c.o, c.q, c.k, c.v, &c.params, &ctx);
    assert_true(ctx.workspace_size > 0 && ctx.workspace_size != ATTN_WORKSPACE_REJECTED);
    ctx.workspace_size--;
    ctx.workspace = test_mem(ctx.workspace_size + 1);
    assert_int_equal(attn_sdpa(c.o, c.q, c.k, c.v, &c.params, &ctx), ATTN_E_WORKSPACE);
    ctx.workspace_size++;
    assert_int_equal(attn_sdpa(c.o, c.q, c.k, c.v, &c.params, &ctx), ATTN_OK);
    assert_string_equal(ctx.report.path, "entries at their own positions");
    test_assert_same_outputs(&c, &first, "workers");
  }
}

void A2_offsets_reject(void **state) {
  (void)state;
  static const int64_t good[2] = {3, 4}, far[2] = {0, (int64_t)1 << 40}, below[2] = {INT64_MIN, 0};
  attn_schedule schedule;
  memset(&schedule, 0, sizeof schedule);
  for (int n = 0; n < 9; n++) {
    test_rng rng = test_seed(86000);
    test_spec spec = test_plain(2, 5, 9, 4, 4);
    spec.batch = 2;
    test_call c = test_build(&spec, &rng), untouched;
    attn_sdpa_params *p = &c.params;
    attn_status want = ATTN_E_RANGE;
    const char *word = "q_offs";
    p->q_offs = good;
    switch (n) {
      case 0: p->has_q_off = 1; break;
      case 1: p->q_offs = far; break;
      case 2: p->q_offs = below; break;
      case 3:
        p->q_offs = (const int64_t *)(const void *)((const char *)good + 1);
        want = ATTN_E_ALIGN;
        break;
      case 4: p->schedule = &schedule; break;
      case 5: p->align_lengths = 1, word = "align_lengths"; break;
      case 6:
        p->q_offs = NULL, p->align_lengths = 1, p->causal = ATTN_CAUSAL_START;
        word = "align_lengths";
        break;
      case 7:
        p->q_offs = NULL, p->align_lengths = 1, p->has_q_off = 1, word = "align_lengths";
        break;
      default: p->q_offs = (const int64_t *)c.o.data, want = ATTN_E_OVERLAP, word = "o "; break;
    }
    if (n == 8) memset(c.o.data, 0, 16);
    untouched = test_again(&c);
    if (n == 8) memset(untouched.o.data, 0, 16);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(c.o, c.q, c.k, c.v, p, &ctx), want);
    assert_non_null(strstr(ctx.reason, word));
    test_assert_same_outputs(&c, &untouched, "rejected");
  }
  /* a table that must cover all distances: -8 .. 5 with offsets of 3 and 4 */
  for (int n = 0; n < 3; n++) {
    test_rng rng = test_seed(86002);
    test_spec spec = test_plain(2, 5, 9, 4, 4);
    spec.batch = 2;
    test_call c = test_build(&spec, &rng);
    attn_toeplitz *t = &c.params.toeplitz;
    c.params.q_offs = good;
    t->table = test_constant(14, 0.5), t->reject = 1;
    t->first = n == 2 ? -7 : -8, t->len = n == 0 ? 14 : 13;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(c.o, c.q, c.k, c.v, &c.params, &ctx), n ? ATTN_E_RANGE : ATTN_OK);
    if (n) assert_non_null(strstr(ctx.reason, "toeplitz"));
  }
  /* calls that have one offset alone */
  test_rng rng = test_seed(86001);
  test_spec spec = test_plain(2, 5, 9, 4, 4);
  spec.batch = 2;
  test_call c = test_build(&spec, &rng);
  attn_relu_params relu;
  attn_topk_params topk;
  memset(&relu, 0, sizeof relu), memset(&topk, 0, sizeof topk);
  relu.attention.q_offs = topk.attention.q_offs = good, topk.k = 2;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_relu(c.o, c.q, c.k, c.v, &relu, &ctx), ATTN_E_RANGE);
  assert_non_null(strstr(ctx.reason, "q_offs"));
  assert_int_equal(attn_topk_sdpa(c.o, c.q, c.k, c.v, &topk, &ctx), ATTN_E_RANGE);
  assert_non_null(strstr(ctx.reason, "q_offs"));
}
