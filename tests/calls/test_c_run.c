/* tests/calls/test_c_run.c owns attention over schedules: every pattern against the oracle, alone and
 * beside the other terms of a call, and what patterns promise about results. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "patterns.h"

static void check_runs(attn_pattern_kind kind, const char *what) {
  test_rng rng = test_seed(7100 + (uint64_t)kind);
  for (int64_t n = test_count(12, 4); n-- > 0;) {
    test_graph g = test_random_graph(kind, n % 3 == 0 ? 180 : 70, 1, &rng);
    test_graph_attend(&g, &rng, what);
    test_mem_release();
  }
}

#define RUN(name, what, kind) \
  void name(void **state) {   \
    (void)state;              \
    check_runs(kind, what);   \
  }
RUN(C1_run, "global", ATTN_PATTERN_GLOBAL)
RUN(C2_run, "band", ATTN_PATTERN_BAND)
RUN(C3_run, "dilated", ATTN_PATTERN_DILATED)
RUN(C5_run, "blocks", ATTN_PATTERN_BLOCKS)
RUN(C7_run, "longformer", ATTN_PATTERN_LONGFORMER)
RUN(C8_run, "etc", ATTN_PATTERN_ETC)
RUN(C9_run, "bigbird", ATTN_PATTERN_BIGBIRD)
RUN(C10_run, "sparse transformer, strided", ATTN_PATTERN_SPARSE_STRIDED)
RUN(C11_run, "sparse transformer, fixed", ATTN_PATTERN_SPARSE_FIXED)
RUN(C12_run, "blockwise", ATTN_PATTERN_BLOCKWISE)
RUN(C13_run, "image, one dimension", ATTN_PATTERN_IMAGE_1D)
RUN(C14_run, "image, two dimensions", ATTN_PATTERN_IMAGE_2D)
RUN(C15_run, "axial", ATTN_PATTERN_AXIAL)
RUN(C16_run, "tree", ATTN_PATTERN_TREE)
RUN(C17_run, "segments", ATTN_PATTERN_SEGMENTS)

void C4_run(void **state) {
  (void)state;
  check_runs(ATTN_PATTERN_RANDOM, "random keys");
  check_runs(ATTN_PATTERN_RANDOM_BLOCKS, "random blocks");
}

void C6_run(void **state) {
  (void)state;
  check_runs(ATTN_PATTERN_RING, "ring");
  check_runs(ATTN_PATTERN_STAR, "star");
}

void C19_run(void **state) {
  (void)state;
  for (int kind = ATTN_PATTERN_PREDICATE; kind < ATTN_PATTERN_COUNT; kind++) {
    check_runs((attn_pattern_kind)kind, "the user's own, and algebra");
  }
}

/* Radius 0 copies V, row by row. */
void I6_multiscale_run(void **state) {
  (void)state;
  test_rng rng = test_seed(82);
  const int32_t radius[] = {0, 2, 40, 1000}, wider[] = {0, 2, 50, 1000};
  test_graph g = test_graph_of(attn_pattern_multiscale(radius, 4), 4, 100, 100), h = g;
  test_spec spec = test_plain(4, 0, 0, 12, 10);
  test_call call = test_graph_call(&g, &spec, &rng), other = test_again(&call);
  test_graph_run(&call, &g, "one radius a head");
  test_assert_same(test_one(call.o, 0, 1, 0, 1), test_one(call.v, 0, 1, 0, 1), "radius 0");
  h.p = attn_pattern_multiscale(wider, 4);
  attn_schedule s = test_schedule(&h);
  other.params.schedule = &s;
  test_run(&other);
  for (int64_t head = 0; head < 4; head++) {
    if (head == 2) continue; /* the one that changed */
    test_assert_same(test_one(call.o, 0, 1, head, 1), test_one(other.o, 0, 1, head, 1),
                     "another head's radius");
  }
  call.params.schedule = NULL;
  test_run(&call);
  test_assert_same(test_one(call.o, 0, 1, 3, 1), test_one(other.o, 0, 1, 3, 1), "no window");
}

/* A schedule beside everything else a call can say, in any storage and any layout. */
void C19_run_combined(void **state) {
  (void)state;
  test_rng rng = test_seed(83);
  static const int64_t heads[] = {1, 2, 3, 4};
  for (int64_t n = test_count(150, 40); n-- > 0; test_mem_release()) {
    attn_pattern_kind kind = (attn_pattern_kind)(n % ATTN_PATTERN_COUNT);
    test_graph g = test_random_graph(kind, n % 4 ? 80 : 200, 1, &rng);
    int64_t h = g.heads, hk = h, hv = h;
    assert_in_range(h, heads[0], heads[3]);
    while (h % (hk = test_range(&rng, 1, h))) continue;
    while (h % (hv = test_range(&rng, 1, h))) continue;
    int64_t dk = test_range(&rng, 1, 20);
    test_spec spec = test_plain(h, 0, 0, dk, test_range(&rng, 1, 20));
    spec.batch = test_range(&rng, 1, 2);
    spec.k_heads = hk;
    spec.v_heads = hv;
    spec.q_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.k_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.v_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.o_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.q_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.k_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.v_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.o_layout = (test_layout)(test_u64(&rng) % TEST_SHARED);
    spec.lse = test_u64(&rng) & 1;
    spec.map = test_u64(&rng) & 1;
    test_call call = test_graph_call(&g, &spec, &rng);
    attn_sdpa_params *p = &call.params;
    uint64_t pick = test_u64(&rng);
    if (pick & 1) p->kv_len = test_lengths(spec.batch, g.k_len, &rng);
    if (pick & 2) p->q_len = test_lengths(spec.batch, g.q_len, &rng);
    if (pick & 4) {
      p->mask = test_mask(pick & 8 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32, spec.batch, h,
                          g.q_len, g.k_len, &rng);
    }
    if (pick & 16) {
      p->bias = test_mask(ATTN_MASK_ADD, (attn_dtype)(pick >> 5 & 1), spec.batch, h, g.q_len,
                          g.k_len, &rng);
    }
    if (pick & 64) p->alibi = test_floats(h, 0.3, &rng);
    if (pick & 128) p->softcap = 4;
    if (n % 2) p->softcap_at = ATTN_SOFTCAP_BIASED;
    if (pick & 256) p->sinks = test_floats(h, 1, &rng);
    p->softmax_one = pick >> 9 & 1;
    p->causal = (pick >> 10 & 3) == 0;
    if ((pick >> 12 & 3) == 0) test_left(p, test_range(&rng, -1, 100));
    if ((pick >> 14 & 3) == 0) test_right(p, test_range(&rng, -1, 100));
    char what[64];
    snprintf(what, sizeof what, "combination %d (features %x)", (int)n, (unsigned)(pick & 0xffff));
    test_graph_run(&call, &g, what);
  }
}

/* Runs a call's inputs under another pattern. */
static test_call rerun(const test_call *call, attn_pattern p) {
  test_graph g = test_graph_of(p, call->q.heads, call->q.len, call->k.len);
  test_call other = test_again(call);
  attn_schedule *s = test_mem((sizeof *s + 7) / 8 * 8);
  *s = test_schedule(&g);
  other.params.schedule = s;
  test_run(&other);
  return other;
}

static int64_t lists_of(const test_call *call) {
  attn_schedule_info info;
  assert_int_equal(attn_schedule_describe(&info, call->params.schedule), ATTN_OK);
  return info.lists;
}

/* A schedule that has all pairs, or those of causal, changes no bit of the result; where it chose
 * lists of keys, or has a window, whose blocks may begin elsewhere, no more than roundings. */
void C2_wide_equals_dense(void **state) {
  (void)state;
  static const int64_t extents[][2] = {{1, 1}, {1, 300}, {70, 70}, {64, 128}, {200, 331}, {300, 9}};
  test_rng rng = test_seed(84);
  int same = 0;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    int64_t tq = extents[n][0], tk = extents[n][1];
    test_spec spec = test_plain(4, tq, tk, 20, 18);
    spec.k_heads = spec.v_heads = n % 2 ? 4 : 2;
    spec.map = n & 1;
    test_call call = test_build(&spec, &rng);
    for (int k = 0; k < 4; k++) {
      test_call dense = test_again(&call);
      dense.params.one_order = 1;
      dense.params.causal = k == 2;
      test_left(&dense.params, k == 3 ? 37 : -1);
      test_right(&dense.params, k == 3 ? 5 : -1);
      test_run(&dense);
      test_call scheduled = rerun(&call, k == 0   ? attn_pattern_full()
                                         : k == 1 ? attn_pattern_band(tq + tk, tq + tk)
                                         : k == 2 ? attn_pattern_band(-1, 0)
                                                  : attn_pattern_band(37, 5));
      test_assert_near(scheduled.o, dense.o, 2e-6, "a schedule for a mask");
      test_assert_near(scheduled.params.lse, dense.params.lse, 2e-6, "a schedule for a mask");
      if (k == 3 || lists_of(&scheduled)) continue;
      test_assert_same_outputs(&scheduled, &dense, "a schedule of all pairs or the past");
      same++;
    }
  }
  assert_true(same >= 12);
}

/* Score terms by distance on blocks that begin anywhere: a schedule's window against the call's. */
void C2_band_and_distances(void **state) {
  (void)state;
  test_rng rng = test_seed(111);
  for (int64_t n = test_count(24, 8); n-- > 0; test_mem_release()) {
    int64_t left = test_range(&rng, 1, 120), right = test_range(&rng, 1, 60);
    int64_t tq = test_range(&rng, 60, 200), tk = tq + test_range(&rng, 0, 200);
    test_spec spec = test_plain(2, tq, tk, 6, 5);
    test_call call = test_build(&spec, &rng);
    call.params.alibi = test_floats(2, 0.2, &rng);
    if (n % 3 == 1) call.params.t5.table = test_floats(64, 1, &rng);
    if (n % 3 == 1) call.params.t5.bidirectional = 1;
    call.params.scale = 0.3f;
    if (n % 3 == 2) {
      float *w = test_floats(2, 0, &rng);
      w[0] = 0.001f;
      w[1] = 0.01f;
      call.params.parabola.w = w;
    }
    test_call dense = test_again(&call);
    test_left(&dense.params, left);
    test_right(&dense.params, right);
    test_run(&dense);
    test_call scheduled = rerun(&call, attn_pattern_band(left, right));
    test_assert_near(scheduled.o, dense.o, 1e-5, "distances");
    test_assert_near(scheduled.params.lse, dense.params.lse, 1e-5, "distances");
  }
}

/* Merges b into a and compares with whole. */
static void merged(test_call *a, const test_call *b, const test_call *whole, const char *what) {
  attn_ctx ctx = test_ctx();
  attn_status status =
      attn_merge(a->o, a->params.lse, a->o, a->params.lse, b->o, b->params.lse, &ctx);
  assert_int_equal(status, ATTN_OK);
  test_assert_near(a->o, whole->o, 1e-5, what);
  test_assert_near(a->params.lse, whole->params.lse, 1e-5, what);
}

/* Disjoint parts merge into the whole. */
void C19_merge_of_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(85);
  for (int64_t n = test_count(24, 8); n-- > 0; test_mem_release()) {
    int64_t tq = test_range(&rng, 1, 90);
    test_graph g = test_graph_of(attn_pattern_full(), 2, tq, test_range(&rng, 1, 140));
    attn_pattern p[2], turned[2];
    for (int c = 0; c < 2; c++) turned[1 - c] = p[c] = test_random_part(&g, 1, &rng);
    test_spec spec = test_plain(2, g.q_len, g.k_len, 9, 7);
    test_call call = test_build(&spec, &rng);
    test_call a = rerun(&call, p[0]), rest = rerun(&call, attn_pattern_complement(&p[0]));
    test_run(&call);
    merged(&a, &rest, &call, "a set and its complement");
    a = rerun(&call, p[0]);
    test_call b = rerun(&call, attn_pattern_diff(turned));
    test_call both = rerun(&call, attn_pattern_union(p, 2));
    merged(&a, &b, &both, "a union");
  }
}

/* Any schedule, written as CSR and built anew, gives the same result. */
void C19_csr_round_trip(void **state) {
  (void)state;
  test_rng rng = test_seed(86);
  for (int64_t n = test_count(60, 30); n-- > 0; test_mem_release()) {
    attn_pattern_kind kind = (attn_pattern_kind)(n % ATTN_PATTERN_COUNT);
    test_graph g = test_random_graph(kind, 120, 1, &rng);
    test_spec spec = test_plain(g.heads, 0, 0, 7, 9);
    test_call call = test_graph_call(&g, &spec, &rng), again = test_again(&call);
    attn_pattern *lists = test_mem((size_t)g.heads * sizeof *lists);
    for (int64_t h = 0; h < g.heads; h++) {
      int64_t *row = test_mem((size_t)(g.q_len + 1) * sizeof *row);
      assert_int_equal(attn_schedule_csr(row, NULL, call.params.schedule, h), ATTN_OK);
      int32_t *col = test_mem((size_t)row[g.q_len] * sizeof *col);
      assert_int_equal(attn_schedule_csr(row, col, call.params.schedule, h), ATTN_OK);
      lists[h] = attn_pattern_csr(row, col, row[g.q_len]);
    }
    test_graph listed = g;
    listed.p = attn_pattern_per_head(lists, g.heads);
    test_graphs_equal(&g, &listed, "lists");
    attn_schedule s = test_schedule(&listed);
    again.params.schedule = &s;
    test_run(&call);
    test_run(&again);
    test_assert_near(again.o, call.o, 2e-6, "lists");
    test_assert_near(again.params.lse, call.params.lse, 2e-6, "lists");
  }
}

/* For causal patterns by position, one query over t keys has the row t-1 of a call over all. */
void C2_decode_equals_prefill(void **state) {
  (void)state;
  const int32_t global[] = {0, 9, 40};
  attn_pattern p[9] = {attn_pattern_band(20, 0),
                       attn_pattern_dilated(4, 0, 7),
                       attn_pattern_random(6, 3),
                       attn_pattern_random_blocks(4, 3, 3),
                       attn_pattern_blocks(8, 1, 0),
                       attn_pattern_sparse_strided(8, ATTN_SPARSE_MERGED),
                       attn_pattern_sparse_fixed(8, 2, ATTN_SPARSE_MERGED),
                       attn_pattern_image_1d(8, 5),
                       attn_pattern_global(global, 3)};
  test_rng rng = test_seed(87);
  for (int c = 0; c < 9; c++, test_mem_release()) {
    p[c].causal = 1;
    test_spec spec = test_plain(2, 90, 90, 8, 8);
    test_call whole = test_build(&spec, &rng), all = rerun(&whole, p[c]);
    for (int64_t t = 41; t <= 90; t += 7) {
      test_call one = whole;
      int64_t m = t % 2 ? 1 : 5; /* also a few queries at once */
      one.q = test_rows(whole.q, t - m, m);
      one.k = test_rows(whole.k, 0, t);
      one.v = test_rows(whole.v, 0, t);
      one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, m, 8);
      one.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, m, 1);
      one = rerun(&one, p[c]);
      test_assert_near(one.o, test_rows(all.o, t - m, m), 3e-6, "decoding");
      test_assert_near(one.params.lse, test_rows(all.params.lse, t - m, m), 3e-6, "decoding");
    }
  }
}

/* Permuting keys, values and columns together changes nothing. */
void C19_permuted_keys(void **state) {
  (void)state;
  test_rng rng = test_seed(88);
  enum { TQ = 70, TK = 90 };
  int64_t row[TQ + 1];
  int32_t *col = test_mem(TQ * TK * sizeof *col), *moved = test_mem(TQ * TK * sizeof *moved);
  int32_t place[TK];
  oracle_stream s = oracle_stream_of(1, 2, 3, 4);
  oracle_permutation(&s, TK, place);
  row[0] = 0;
  for (int64_t i = 0; i < TQ; i++) {
    row[i + 1] = row[i];
    for (int32_t j = 0; j < TK; j++) {
      if (test_u64(&rng) % 4) continue;
      moved[row[i + 1]] = place[j];
      col[row[i + 1]++] = j;
    }
  }
  test_spec spec = test_plain(1, TQ, TK, 8, 8);
  test_call call = test_build(&spec, &rng), other = test_again(&call);
  other.k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, TK, 8);
  other.v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, TK, 8);
  for (int64_t j = 0; j < TK; j++) {
    test_copy(test_rows(other.k, place[j], 1), test_rows(call.k, j, 1));
    test_copy(test_rows(other.v, place[j], 1), test_rows(call.v, j, 1));
  }
  call = rerun(&call, attn_pattern_csr(row, col, row[TQ]));
  other = rerun(&other, attn_pattern_csr(row, moved, row[TQ]));
  test_assert_near(other.o, call.o, 3e-6, "permuted keys");
  test_assert_near(other.params.lse, call.params.lse, 3e-6, "permuted keys");
}

/* The n shifts of blockwise attention, one a head, merge into full attention. */
void C12_shifts_merge_to_full(void **state) {
  (void)state;
  test_rng rng = test_seed(89);
  test_spec spec = test_plain(3, 50, 71, 8, 8);
  test_call call = test_build(&spec, &rng);
  for (int64_t h = 1; h < 3; h++) { /* three heads alike */
    test_copy(test_one(call.q, 0, 1, h, 1), test_one(call.q, 0, 1, 0, 1));
    test_copy(test_one(call.k, 0, 1, h, 1), test_one(call.k, 0, 1, 0, 1));
    test_copy(test_one(call.v, 0, 1, h, 1), test_one(call.v, 0, 1, 0, 1));
  }
  test_call parts = rerun(&call, attn_pattern_blockwise(3, NULL));
  test_run(&call);
  test_call head[3], whole = call;
  for (int64_t h = 0; h < 3; h++) {
    head[h] = parts;
    head[h].o = test_one(parts.o, 0, 1, h, 1);
    head[h].params.lse = test_one(parts.params.lse, 0, 1, h, 1);
  }
  whole.o = test_one(call.o, 0, 1, 0, 1);
  whole.params.lse = test_one(call.params.lse, 0, 1, 0, 1);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_merge(head[0].o, head[0].params.lse, head[0].o, head[0].params.lse,
                              head[1].o, head[1].params.lse, &ctx),
                   ATTN_OK);
  merged(&head[0], &head[2], &whole, "the shifts");
}

/* Segment s of a tree's rows: a span node's row is attention over its tokens alone. */
void C16_span_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(90);
  const int64_t tokens = 43, nodes = oracle_tree_nodes(tokens);
  test_spec spec = test_plain(1, nodes, nodes, 8, 8);
  test_call call = test_build(&spec, &rng), tree = rerun(&call, attn_pattern_tree(tokens, 2));
  int64_t base = tokens, size = (tokens + 1) / 2, length = 2;
  for (;; base += size, size = (size + 1) / 2, length *= 2) {
    for (int64_t m = 0; m < size; m++) {
      int64_t from = m * length, to = from + length < tokens ? from + length : tokens;
      test_call one = call;
      one.q = test_rows(call.q, base + m, 1);
      one.k = test_rows(call.k, from, to - from);
      one.v = test_rows(call.v, from, to - from);
      one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 8);
      one.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 1);
      test_run(&one);
      test_assert_near(test_rows(tree.o, base + m, 1), one.o, 3e-6, "a span");
      test_assert_near(test_rows(tree.params.lse, base + m, 1), one.params.lse, 3e-6, "a span");
    }
    if (size == 1) break;
  }
}
