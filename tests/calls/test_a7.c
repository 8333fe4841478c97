/* tests/calls/test_a7.c owns A7, attention over an explicit set of keys for each query. The oracle is that
 * of attn_sdpa with the mask and the bias that the sets stand for. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* One call of attn_edges. */
typedef struct edges_call {
  attn_tensor o, q, k, v;
  attn_edges_params params;
  int64_t sets_b, sets_h; /* sets over the batch and the heads */
} edges_call;

static attn_status try_call(edges_call *c, attn_ctx *ctx) {
  return attn_edges(c->o, c->q, c->k, c->v, &c->params, ctx);
}

static attn_report run(edges_call *c) {
  attn_ctx ctx = test_ctx();
  attn_status status = try_call(c, &ctx);
  if (status != ATTN_OK) {
    fail_msg("attn_edges: %s: %s", attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  }
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

/* The number of the set that (b, h) reads. */
static int64_t set_of(const edges_call *c, int64_t b, int64_t h) {
  return (c->sets_b > 1 ? b : 0) * c->sets_h + (c->sets_h > 1 ? h : 0);
}

/* Where the edges of row i begin: an index into col and bias. */
static int64_t first_edge(const edges_call *c, int64_t set, int64_t i) {
  return set * c->params.edges + c->params.indptr[set * (c->q.len + 1) + i];
}

static int64_t degree(const edges_call *c, int64_t set, int64_t i) {
  const int64_t *row = c->params.indptr + set * (c->q.len + 1) + i;
  return row[1] - row[0];
}

/* The call of attn_sdpa that means the same. */
static test_call dense(const edges_call *c) {
  test_call d;
  memset(&d, 0, sizeof d);
  int64_t b_n = c->sets_b, h_n = c->sets_h, tq = c->q.len, tk = c->k.len;
  d.o = c->o;
  d.q = c->q;
  d.k = c->k;
  d.v = c->v;
  attn_sdpa_params *p = &d.params;
  p->scale = c->params.scale;
  p->causal = c->params.causal;
  p->has_q_off = c->params.has_q_off;
  p->q_off = c->params.q_off;
  p->kv_len = c->params.kv_len;
  p->lse = c->params.lse;
  float *bias = test_mem((size_t)(b_n * h_n * tq * tk + 1) * sizeof *bias);
  for (int64_t n = 0; n < b_n * h_n * tq * tk; n++) bias[n] = -INFINITY;
  for (int64_t set = 0; set < b_n * h_n; set++) {
    for (int64_t i = 0; i < tq; i++) {
      for (int64_t n = 0; n < degree(c, set, i); n++) {
        int64_t e = first_edge(c, set, i) + n;
        bias[(set * tq + i) * tk + c->params.col[e]] = c->params.bias ? c->params.bias[e] : 0;
      }
    }
  }
  if (tq > 0 && tk > 0) p->bias = attn_mask_add(bias, ATTN_F32, b_n, h_n, tq, tk);
  return d;
}

static void compare(const edges_call *c, const char *what) {
  test_call d = dense(c);
  test_compare(&d, what);
  if (!c->params.weights) return;
  oracle_row row = {test_mem((size_t)c->v.dim * 8),
                    test_mem((size_t)c->k.len * 8 + 8),
                    test_mem((size_t)c->k.len * 8 + 8),
                    0,
                    0,
                    0,
                    0};
  for (int64_t b = 0; b < c->q.batch; b++) {
    for (int64_t h = 0; h < c->q.heads; h++) {
      int64_t set = set_of(c, b, h);
      for (int64_t i = 0; i < c->q.len; i++) {
        oracle_sdpa(&d.q, &d.k, &d.v, &d.params, b, h, i, &row);
        for (int64_t n = 0; n < degree(c, set, i); n++) {
          int64_t e = first_edge(c, set, i) + n, at = e - set * c->params.edges;
          double got = (double)c->params.weights[(b * c->q.heads + h) * c->params.edges + at];
          double want = row.p[c->params.col[e]];
          double size = want > 0 ? row.size[c->params.col[e]] + fabs(row.lse) + row.noise : 0;
          double unsure = (2e-6 + 1e-6 * size) * want + 1e-37;
          if (isnan(want) ? isnan(got) : fabs(got - want) <= unsure) continue;
          fail_msg("%s: edge %d of row %d has weight %g, not %g", what, (int)n, (int)i, got, want);
        }
      }
    }
  }
}

static void check(edges_call *c, const char *what) {
  run(c);
  compare(c, what);
}

/* Sets of random sizes: empty ones, single keys, most or all of them, in random order. */
static void draw_sets(edges_call *c, int density, test_rng *rng) {
  int64_t tq = c->q.len, tk = c->k.len, sets = c->sets_b * c->sets_h, edges = 0;
  int64_t *indptr = test_mem((size_t)(sets * (tq + 1)) * sizeof *indptr);
  int32_t *col = test_mem((size_t)(sets * tq * tk + 1) * sizeof *col);
  int32_t *order = test_mem((size_t)(tk + 1) * sizeof *order);
  /* the same sizes in every set, dealt to its rows in another order */
  int64_t *sizes = test_mem((size_t)(tq + 1) * sizeof *sizes);
  for (int64_t i = 0; i < tq; i++) {
    int64_t kind = test_range(rng, 0, 9);
    sizes[i] = kind == 0   ? 0
               : kind == 1 ? 1
               : kind == 2 ? tk
               : density   ? test_range(rng, 0, tk)
                           : test_range(rng, 0, 12);
    if (sizes[i] > tk) sizes[i] = tk;
    edges += sizes[i];
  }
  for (int64_t set = 0; set < sets; set++) {
    int64_t at = 0;
    for (int64_t i = 0; i < tq; i++) {
      indptr[set * (tq + 1) + i] = at;
      for (int64_t j = 0; j < tk; j++) order[j] = (int32_t)j;
      int64_t size = sizes[(i + 3 * set) % tq];
      for (int64_t n = 0; n < size; n++) {
        int64_t m = test_range(rng, n, tk - 1);
        int32_t key = order[m];
        order[m] = order[n];
        order[n] = key;
        col[set * edges + at++] = key;
      }
    }
    indptr[set * (tq + 1) + tq] = at;
  }
  c->params.indptr = indptr;
  c->params.col = col;
  c->params.edges = edges;
  c->params.per_batch = c->sets_b > 1;
  c->params.per_head = c->sets_h > 1;
}

static edges_call build(const test_spec *spec, int64_t sets_b, int64_t sets_h, int density,
                        int weights, test_rng *rng) {
  test_call call = test_build(spec, rng);
  edges_call c;
  memset(&c, 0, sizeof c);
  c.o = call.o;
  c.q = call.q;
  c.k = call.k;
  c.v = call.v;
  c.sets_b = sets_b;
  c.sets_h = sets_h;
  c.params.lse = call.params.lse;
  draw_sets(&c, density, rng);
  if (weights) {
    c.params.weights =
        test_mem((size_t)(spec->batch * spec->heads * c.params.edges + 1) * sizeof(float));
  }
  return c;
}

static edges_call plain(int64_t heads, int64_t tq, int64_t tk, uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, tq, tk, 12, 7);
  return build(&spec, 1, 1, 0, 1, &rng);
}

static edges_call again(const edges_call *c) {
  edges_call d = *c;
  d.o = test_tensor(c->o.dtype, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, c->o.dim);
  d.params.lse = test_tensor(ATTN_F32, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, 1);
  size_t n = (size_t)(c->o.batch * c->o.heads * c->params.edges + 1);
  if (c->params.weights) d.params.weights = test_mem(n * sizeof(float));
  return d;
}

void A7_matches_oracle(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(100, 25); n++) {
    test_rng rng = test_seed(380000 + (uint64_t)n);
    int64_t h = test_range(&rng, 1, 4), dense_sets = test_u64(&rng) % 4 == 0;
    int64_t most = dense_sets ? 70 : 200;
    test_spec spec = test_plain(h, test_range(&rng, 1, 130), test_range(&rng, 1, most),
                                test_range(&rng, 1, 40), test_range(&rng, 1, 40));
    spec.batch = test_range(&rng, 1, 2);
    while (h % (spec.k_heads = test_range(&rng, 1, h))) continue;
    while (h % (spec.v_heads = test_range(&rng, 1, h))) continue;
    spec.q_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.k_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.v_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.o_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.q_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.k_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.v_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.o_layout = (test_layout)(test_u64(&rng) % TEST_SHARED);
    spec.lse = test_u64(&rng) % 4 != 0;
    edges_call c = build(&spec, test_u64(&rng) & 1 ? spec.batch : 1, test_u64(&rng) & 1 ? h : 1,
                         (int)dense_sets, test_u64(&rng) & 1, &rng);
    attn_edges_params *p = &c.params;
    if (test_u64(&rng) & 1) {
      float *bias = test_floats(c.sets_b * c.sets_h * p->edges + 1, 1, &rng);
      for (int64_t e = 0; e < p->edges; e += 5) bias[e] = e % 2 ? -INFINITY : bias[e];
      p->bias = bias;
    }
    p->causal = test_u64(&rng) % 3 == 0;
    if (test_u64(&rng) % 3 == 0) {
      p->has_q_off = 1;
      p->q_off = test_range(&rng, -60, 150);
    }
    if (test_u64(&rng) % 3 == 0) p->kv_len = test_lengths(spec.batch, spec.k_len, &rng);
    if (test_u64(&rng) % 3 == 0) p->scale = (float)test_exact(&rng);
    char what[40];
    snprintf(what, sizeof what, "edges, case %d", (int)n);
    check(&c, what);
    test_mem_release();
  }
}

/* The same call through a boolean mask: LSE and output agree. */
void A7_equals_boolean_mask(void **state) {
  (void)state;
  edges_call c = plain(3, 100, 140, 381);
  test_call d = dense(&c);
  d.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 100, 7);
  d.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 100, 1);
  uint8_t *allowed = test_mem(100 * 140);
  for (int n = 0; n < 100 * 140; n++) {
    allowed[n] = ((const float *)d.params.bias.data)[n] == 0;
  }
  d.params.mask = attn_mask_bool(allowed, 1, 1, 100, 140);
  memset(&d.params.bias, 0, sizeof d.params.bias);
  run(&c);
  test_run(&d);
  test_assert_near(c.o, d.o, 3e-6, "a boolean mask");
  test_assert_near(c.params.lse, d.params.lse, 3e-6, "a boolean mask: LSE");
}

/* A set has no order. */
void A7_shuffled_sets(void **state) {
  (void)state;
  edges_call c = plain(2, 90, 200, 382), d = again(&c);
  int32_t *col = test_mem((size_t)c.params.edges * sizeof *col);
  for (int64_t i = 0; i < 90; i++) {
    int64_t from = c.params.indptr[i], to = c.params.indptr[i + 1];
    for (int64_t e = from; e < to; e++) col[e] = c.params.col[from + to - 1 - e];
  }
  d.params.col = col;
  run(&c);
  run(&d);
  test_assert_near(c.o, d.o, 3e-6, "reversed sets");
  test_assert_near(c.params.lse, d.params.lse, 3e-6, "reversed sets: LSE");
}

/* Each set cut in two and merged by LSE. */
void A7_split_and_merge(void **state) {
  (void)state;
  edges_call c = plain(2, 90, 200, 383), part[2];
  run(&c);
  for (int n = 0; n < 2; n++) {
    part[n] = again(&c);
    int64_t *indptr = test_mem(91 * sizeof *indptr), at = 0;
    int32_t *col = test_mem((size_t)(c.params.edges + 1) * sizeof *col);
    for (int64_t i = 0; i < 90; i++) {
      indptr[i] = at;
      for (int64_t e = c.params.indptr[i]; e < c.params.indptr[i + 1]; e++) {
        if (e % 3 == 0 ? n : !n) col[at++] = c.params.col[e];
      }
    }
    indptr[90] = at;
    part[n].params.indptr = indptr;
    part[n].params.col = col;
    part[n].params.edges = at;
    run(&part[n]);
  }
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 7);
  attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 1);
  attn_ctx ctx = test_ctx();
  assert_int_equal(
      attn_merge(o, lse, part[0].o, part[0].params.lse, part[1].o, part[1].params.lse, &ctx),
      ATTN_OK);
  test_assert_near(o, c.o, 4e-6, "two halves");
  test_assert_near(lse, c.params.lse, 4e-6, "two halves: LSE");
}

/* No key: zeros. One key: its value. Every key: plain attention. No edges at all. */
void A7_sizes(void **state) {
  (void)state;
  edges_call c = plain(2, 70, 90, 384);
  int64_t *indptr = test_mem(71 * sizeof *indptr);
  int32_t *col = test_mem(70 * 90 * sizeof *col);
  int64_t at = 0;
  for (int64_t i = 0; i < 70; i++) {
    indptr[i] = at;
    int64_t size = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 90;
    for (int64_t n = 0; n < size; n++) col[at++] = (int32_t)(size == 1 ? i : 89 - n);
  }
  indptr[70] = at;
  c.params.indptr = indptr;
  c.params.col = col;
  c.params.edges = at;
  c.params.weights = test_mem((size_t)(2 * at) * sizeof(float));
  check(&c, "sizes");
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t i = 0; i < 70; i++) {
      for (int64_t x = 0; x < 7 && i % 3 < 2; x++) {
        double want = i % 3 == 0 ? 0 : oracle_get(&c.v, 0, h, i, x);
        assert_true(oracle_get(&c.o, 0, h, i, x) == want);
      }
      if (i % 3 == 0) assert_true(oracle_get(&c.params.lse, 0, h, i, 0) == -(double)INFINITY);
    }
  }
  for (int n = 0; n < 2; n++) { /* nothing at all */
    for (int64_t i = 0; i <= 70; i++) indptr[i] = 0;
    c.params.edges = 0;
    c.params.col = n ? col : NULL;
    c.params.weights = NULL;
    run(&c);
    for (int64_t i = 0; i < 140; i++) {
      assert_true(oracle_get(&c.params.lse, 0, i / 70, i % 70, 0) == -(double)INFINITY);
      assert_true(oracle_get(&c.o, 0, i / 70, i % 70, 3) == 0);
    }
  }
}

/* One row sees all of many keys, the others one: sets of very different sizes. */
void A7_uneven_sets(void **state) {
  (void)state;
  int64_t tq = 200, tk = 3000, at = 0;
  test_rng rng = test_seed(385);
  test_spec spec = test_plain(1, tq, tk, 8, 5);
  edges_call c = build(&spec, 1, 1, 0, 0, &rng);
  int64_t *indptr = test_mem((size_t)(tq + 1) * sizeof *indptr);
  int32_t *col = test_mem((size_t)(2 * tk + tq) * sizeof *col);
  for (int64_t i = 0; i < tq; i++) {
    indptr[i] = at;
    if (i == 77 || i == 130) {
      for (int64_t j = 0; j < tk; j++) col[at++] = (int32_t)((j * 7 + i) % tk);
    } else {
      col[at++] = (int32_t)(i * 14);
    }
  }
  indptr[tq] = at;
  c.params.indptr = indptr;
  c.params.col = col;
  c.params.edges = at;
  check(&c, "sets of very different sizes");
}

/* NaN in an allowed key reaches the rows that list it; one that causal, kv_len or the bias removes
 * reaches none. */
void A7_nan(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    edges_call clean = plain(2, 100, 150, 386);
    attn_edges_params *p = &clean.params;
    int32_t length = 120;
    float *bias = test_mem((size_t)p->edges * sizeof *bias);
    for (int64_t e = 0; e < p->edges; e++) bias[e] = p->col[e] % 9 == 4 ? -INFINITY : 0.5f;
    p->causal = 1; /* q_off 50 */
    p->kv_len = &length;
    p->bias = bias;
    p->weights = NULL;
    run(&clean);
    edges_call c = again(&clean);
    attn_tensor *t = n & 1 ? &c.v : &c.k;
    for (int64_t j = 0; j < 150; j++) { /* what nobody may see */
      if (j % 9 == 4 || j >= 120)
        test_fill_row(*t, 0, 0, j, n & 2 ? (double)NAN : (double)INFINITY);
    }
    run(&c);
    test_assert_same(c.o, clean.o, "removed edges");
    test_assert_same(c.params.lse, clean.params.lse, "removed edges: LSE");
    int64_t bad = 87;
    test_fill_row(*t, 0, 0, bad, (double)NAN);
    run(&c);
    for (int64_t i = 0; i < 100; i++) {
      int read = 0;
      for (int64_t e = p->indptr[i]; e < p->indptr[i + 1]; e++) {
        read |= p->col[e] == bad && bad <= i + 50;
      }
      double got = oracle_get(&c.o, 0, 0, i, 2);
      assert_true(read ? isnan(got) : got == oracle_get(&clean.o, 0, 0, i, 2));
    }
    test_assert_same(test_one(c.o, 0, 1, 1, 1), test_one(clean.o, 0, 1, 1, 1), "another head");
    test_mem_release();
  }
}

/* A query that holds NaN; scores of +inf. */
void A7_nan_in_query(void **state) {
  (void)state;
  edges_call c = plain(1, 70, 90, 387), clean = again(&c);
  run(&clean);
  test_fill_row(c.q, 0, 0, 33, (double)NAN);
  run(&c);
  for (int64_t i = 0; i < 70; i++) {
    double got = oracle_get(&c.o, 0, 0, i, 0), want = oracle_get(&clean.o, 0, 0, i, 0);
    assert_true(i == 33 && c.params.indptr[34] > c.params.indptr[33] ? isnan(got) : got == want);
  }
}

void A7_bits_any_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(388);
  test_spec spec = test_plain(4, 200, 300, 17, 9);
  spec.batch = 2;
  spec.k_heads = spec.v_heads = 2;
  edges_call c = build(&spec, 1, 4, 0, 1, &rng), want = again(&c);
  run(&want);
  static const attn_parallel_fn loops[] = {test_parallel_forward, test_parallel_backward,
                                           test_parallel_threads};
  for (int n = 0; n < 6; n++) {
    attn_ctx ctx = test_ctx();
    ctx.workers = n < 3 ? 2 : 7;
    ctx.parallel_for = loops[n % 3];
    assert_int_equal(try_call(&c, &ctx), ATTN_OK);
    test_assert_same(c.o, want.o, "workers");
    test_assert_same(c.params.lse, want.params.lse, "workers");
    assert_memory_equal(c.params.weights, want.params.weights,
                        (size_t)(8 * c.params.edges) * sizeof(float));
  }
}

void A7_workspace(void **state) {
  (void)state;
  edges_call c = plain(4, 90, 200, 389), want = again(&c);
  run(&want);
  for (int workers = 1; workers <= 3; workers += 2) {
    attn_ctx ctx = test_ctx();
    ctx.workers = workers;
    ctx.parallel_for = test_parallel_forward;
    size_t size = attn_edges_workspace(c.o, c.q, c.k, c.v, &c.params, &ctx);
    assert_true(size > 0 && size < 1u << 24);
    unsigned char *memory = test_mem(size + 256);
    for (size_t at = 0; at < 80; at += 13) {
      memset(memory, 0xA5, size + 256);
      ctx.workspace = memory + at;
      ctx.workspace_size = size;
      test_malloc_fails = 1;
      attn_status status = try_call(&c, &ctx);
      test_malloc_fails = 0;
      if (status != ATTN_OK) fail_msg("%s", ctx.reason);
      test_assert_same(c.o, want.o, "with a workspace");
      for (size_t i = 0; i < 256; i++) {
        if (i < at) assert_int_equal(memory[i], 0xA5);
        if (at + size + i < size + 256) assert_int_equal(memory[at + size + i], 0xA5);
      }
    }
    ctx.workspace_size = size - 1;
    assert_int_equal(try_call(&c, &ctx), ATTN_E_WORKSPACE);
  }
}

void A7_guard_pages(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 3, 17, 64, 65, 129};
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(390);
    test_spec spec = test_plain(2, sizes[n % 6], sizes[n / 2 % 6], 1 + n, 25 - n);
    spec.k_type = (attn_dtype)(n % 3);
    spec.v_type = (attn_dtype)(n / 3 % 3);
    test_where = n & 1 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    edges_call c = build(&spec, 1, 1, 0, 0, &rng);
    /* lists and outputs of exactly their size */
    int32_t *col = test_mem((size_t)c.params.edges * sizeof *col);
    float *bias = test_constant(c.params.edges, 0.5);
    memcpy(col, c.params.col, (size_t)c.params.edges * sizeof *col);
    c.params.col = col;
    c.params.bias = bias;
    c.params.weights = test_mem((size_t)(2 * c.params.edges) * sizeof(float));
    attn_ctx ctx = test_ctx();
    size_t size = attn_edges_workspace(c.o, c.q, c.k, c.v, &c.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    assert_int_equal(try_call(&c, &ctx), ATTN_OK);
    test_where = TEST_HEAP;
    compare(&c, "between guard pages");
    test_mem_release();
  }
}

void A7_empty_extents(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    test_rng rng = test_seed(391);
    test_spec spec = test_plain(2, n == 1 ? 0 : 20, n == 2 ? 0 : 30, 8, 5);
    spec.batch = n == 0 ? 0 : 1;
    edges_call c = build(&spec, 1, 1, 0, 1, &rng);
    check(&c, "an empty extent");
  }
}

/* Each rule: what spoils the call, the status, and a word of the reason. */
void A7_rejects(void **state) {
  (void)state;
  static const struct {
    attn_status status;
    const char *word;
  } rules[] = {
      {ATTN_E_NULL, "indptr"},   {ATTN_E_NULL, "col"},     {ATTN_E_INDEX, "indptr"},
      {ATTN_E_INDEX, "indptr"},  {ATTN_E_INDEX, "indptr"}, {ATTN_E_INDEX, "indptr"},
      {ATTN_E_INDEX, "col"},     {ATTN_E_INDEX, "col"},    {ATTN_E_INDEX, "col"},
      {ATTN_E_ALIGN, "indptr"},  {ATTN_E_ALIGN, "col"},    {ATTN_E_ALIGN, "bias"},
      {ATTN_E_ALIGN, "weights"}, {ATTN_E_OVERLAP, "o "},   {ATTN_E_OVERLAP, "o "},
      {ATTN_E_OVERLAP, "o "},    {ATTN_E_OVERLAP, ""},     {ATTN_E_RANGE, "q_off"},
      {ATTN_E_RANGE, "q_off"},   {ATTN_E_RANGE, "kv_len"}, {ATTN_E_VALUE, "scale"},
      {ATTN_E_SHAPE, "lse"},     {ATTN_E_DTYPE, "lse"},    {ATTN_E_SHAPE, "k.dim"},
      {ATTN_E_HEADS, "k.heads"}, {ATTN_E_VALUE, "bias"},   {ATTN_E_NULL, "params"},
      {ATTN_E_SHAPE, "edges"},
  };
  int wrong = 0;
  for (int n = 0; n < (int)(sizeof rules / sizeof *rules); n++) {
    edges_call c = plain(2, 6, 9, 392);
    attn_edges_params *p = &c.params;
    int64_t indptr[8] = {0, 2, 2, 5, 6, 6, 8, 0};
    int32_t col[10] = {0, 8, 3, 1, 4, 2, 7, 5, 0, 0}, length = 10;
    float *bias = test_constant(9, 0.5);
    p->indptr = indptr;
    p->col = col;
    p->edges = 8;
    p->bias = bias;
    p->weights = test_mem(17 * sizeof(float));
    c.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 6, 7);
    test_block out = test_last_block;
    attn_ctx ctx = test_ctx();
    if (n == 0) p->indptr = NULL;
    if (n == 1) p->col = NULL;
    if (n == 2) indptr[0] = 1;
    if (n == 3) indptr[2] = 6;
    if (n == 4) p->edges = 7;
    if (n == 5) indptr[1] = -1;
    if (n == 6) col[7] = 9;
    if (n == 7) col[0] = -1;
    if (n == 8) col[4] = 1, ctx.validate = 1; /* twice in row 2 */
    if (n == 9) p->indptr = (int64_t *)(void *)((char *)indptr + 4);
    if (n == 10) p->col = (int32_t *)(void *)((char *)col + 1);
    if (n == 11) p->bias = (float *)(void *)((char *)bias + 2);
    if (n == 12) p->weights = (float *)(void *)((char *)p->weights + 1);
    if (n == 13) c.o.data = c.k.data;
    if (n == 14) memcpy(c.o.data, col, sizeof col), p->col = c.o.data;
    if (n == 15) p->bias = c.o.data;
    if (n == 16) p->weights = c.o.data;
    if (n == 17) p->has_q_off = 1, p->q_off = (int64_t)1 << 40;
    if (n == 18) p->q_off = 5;
    if (n == 19) p->kv_len = &length;
    if (n == 20) p->scale = INFINITY;
    if (n == 21) p->lse.len = 5;
    if (n == 22) p->lse.dtype = ATTN_BF16;
    if (n == 23) c.k.dim = 11;
    if (n == 24) c.k.heads = 3;
    if (n == 25) bias[6] = NAN, ctx.validate = 1;
    if (n == 27) p->edges = -1;
    unsigned char *before = test_mem(out.size);
    memcpy(before, out.data, out.size);
    attn_status got = attn_edges(c.o, c.q, c.k, c.v, n == 26 ? NULL : p, &ctx);
    const char *reason = ctx.reason ? ctx.reason : "(no reason)";
    if (got != rules[n].status || !strstr(reason, rules[n].word)) {
      print_error("rule %d: got \"%s\" because \"%s\"; want \"%s\" naming \"%s\"\n", n,
                  attn_status_string(got), reason, attn_status_string(rules[n].status),
                  rules[n].word);
      wrong++;
    }
    if (memcmp(before, out.data, out.size)) {
      print_error("rule %d: the output was touched\n", n);
      wrong++;
    }
  }
  assert_int_equal(wrong, 0);
}
