/* tests/calls/test_terms.c owns what holds for every score term: combinations, workers, divisions of the
 * queries, memory, guard pages. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* Two to four terms, or all, in random company. */
void api_terms_combined(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(150, 30); n++) {
    test_rng rng = test_seed(330000 + (uint64_t)n);
    int terms = 0;
    for (int64_t k = test_range(&rng, 2, 4); k-- > 0;) {
      terms |= 1 << test_range(&rng, 0, TERM_COUNT - 1);
    }
    if (n % 10 == 0) terms = TERM_ALL;
    test_call call = test_terms_call(terms, 180, &rng);
    char what[60];
    snprintf(what, sizeof what, "case %d, terms %x", (int)n, (unsigned)terms);
    test_check(&call, what);
    test_mem_release();
  }
}

/* A call with some terms over given extents; mask, bias and lengths on top when busy. */
static test_call some_call(int terms, int busy, int64_t batch, int64_t heads, int64_t tq,
                           int64_t tk, test_rng *rng) {
  test_spec spec = test_plain(heads, tq, tk, 11, 9);
  spec.batch = batch;
  if (heads % 2 == 0) spec.k_heads = spec.v_heads = heads / 2;
  test_call call = test_build(&spec, rng);
  attn_sdpa_params *p = &call.params;
  p->causal = 1;
  p->has_q_off = 1;
  p->q_off = tk / 2;
  if (busy) {
    p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, batch, heads, tq, tk, rng);
    p->alibi = test_floats(heads, 0.1, rng);
    p->kv_len = test_lengths(batch, tk, rng);
  }
  test_add_terms(&call, terms, rng);
  return call;
}

/* The n-th of the terms one by one, then all of them. */
static int nth(int n) { return n < TERM_COUNT ? 1 << n : TERM_ALL; }

void api_terms_any_workers(void **state) {
  (void)state;
  static const attn_parallel_fn loops[] = {test_parallel_forward, test_parallel_backward,
                                           test_parallel_threads};
  for (int n = 0; n <= TERM_COUNT; n++) {
    test_rng rng = test_seed(331);
    test_call call = some_call(nth(n), n & 1, 2, 2, 150, 170, &rng), want = test_again(&call);
    test_run(&want);
    for (int k = 0; k < 3; k++) {
      attn_ctx ctx = test_ctx();
      ctx.workers = k == 1 ? 2 : 5;
      ctx.parallel_for = loops[k];
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
      test_assert_same_outputs(&call, &want, "workers");
    }
    test_mem_release();
  }
}

/* Rows i .. i+len of an array [heads, rows]. */
static float *cut(const float *x, int64_t heads, int64_t rows, int64_t i, int64_t len) {
  float *part = test_mem((size_t)(heads * len) * sizeof *part);
  for (int64_t k = 0; k < heads * len; k++) part[k] = x[k / len * rows + i + k % len];
  return part;
}

void api_terms_any_chunks(void **state) {
  (void)state;
  static const int64_t chunks[] = {1, 7, 37, 64};
  for (int n = 0; n <= TERM_COUNT; n++) {
    test_rng rng = test_seed(332);
    test_call call = some_call(nth(n), 0, 1, 2, 140, 200, &rng);
    test_run(&call);
    int64_t step = chunks[n % 4], from = step == 1 ? 120 : 0;
    for (int64_t i = from; i < 140; i += step) {
      int64_t len = step < 140 - i ? step : 140 - i;
      test_call part = call;
      attn_sdpa_params *p = &part.params;
      part.q = test_rows(call.q, i, len);
      part.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, 9);
      p->lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, 1);
      p->q_off += i;
      p->one_order = 1;
      if (p->gaussian.center) {
        p->gaussian.center = cut(p->gaussian.center, 2, 140, i, len);
        p->gaussian.precision = cut(p->gaussian.precision, 2, 140, i, len);
      }
      if (p->span.per_query) p->span.z = cut(p->span.z, 2, 140, i, len);
      test_term_user user;
      if (p->labels.label) {
        user = *(test_term_user *)p->labels.user;
        user.i0 = i;
        p->labels.user = &user;
      }
      test_run(&part);
      test_assert_same(part.o, test_rows(call.o, i, len), "a chunk of queries");
      test_assert_same(p->lse, test_rows(call.params.lse, i, len), "a chunk of queries: LSE");
    }
    test_mem_release();
  }
}

/* A batch entry alone gives the bits it has among others. */
void api_terms_any_composition(void **state) {
  (void)state;
  for (int n = 0; n <= TERM_COUNT; n++) {
    test_rng rng = test_seed(333);
    test_call call = some_call(nth(n), 0, 2, 4, 70, 150, &rng);
    attn_sdpa_params *p = &call.params;
    /* b stands for 0 in a call of its own, so these two may not depend on it */
    if (n == TERM_COUNT) p->modify = NULL, p->labels.label = NULL, p->labels.table.data = NULL;
    if (n == TERM_COUNT) p->labels.bias = NULL;
    if (p->modify || p->modify_weights || p->labels.label) continue;
    test_run(&call);
    for (int64_t b = 0; b < 2; b++) {
      test_call one = call;
      one.q = test_one(call.q, b, 1, 0, 4);
      one.k = test_one(call.k, b, 1, 0, 2);
      one.v = test_one(call.v, b, 1, 0, 2);
      one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 70, 9);
      one.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 70, 1);
      if (p->gaussian.center) {
        one.params.gaussian.center += b * 280;
        one.params.gaussian.precision += b * 280;
      }
      if (p->span.per_query) one.params.span.z += b * 280;
      test_run(&one);
      test_assert_same(one.o, test_one(call.o, b, 1, 0, 4), "one batch entry alone");
      test_assert_same(one.params.lse, test_one(call.params.lse, b, 1, 0, 4), "its LSE");
    }
    test_mem_release();
  }
}

/* The workspace query is exact for every term: not a byte beyond it is written, none is allocated
 * and one less is refused. */
void api_terms_workspace(void **state) {
  (void)state;
  for (int n = 0; n <= TERM_COUNT; n++) {
    test_rng rng = test_seed(334);
    test_call call = some_call(nth(n), n & 1, 2, 4, 70, 90, &rng), want = test_again(&call);
    call.params.map = want.params.map = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 70, 90);
    test_run(&want);
    for (int workers = 1; workers <= 3; workers += 2) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = test_parallel_forward;
      size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
      assert_true(size > 0 && size < 1u << 28);
      unsigned char *memory = test_mem(size + 256);
      for (size_t at = 0; at < 80; at += 13) {
        memset(memory, 0xA5, size + 256);
        ctx.workspace = memory + at;
        ctx.workspace_size = size;
        test_malloc_fails = 1;
        attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
        test_malloc_fails = 0;
        if (status != ATTN_OK) fail_msg("%s", ctx.reason);
        test_assert_same(call.o, want.o, "with a workspace");
        for (size_t i = 0; i < 256; i++) {
          if (i < at) assert_int_equal(memory[i], 0xA5);
          if (at + size + i < size + 256) assert_int_equal(memory[at + size + i], 0xA5);
        }
      }
      ctx.workspace_size = size - 1;
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx),
                       ATTN_E_WORKSPACE);
    }
    test_mem_release();
  }
}

/* Memory does not grow with the lengths, but for what a table or a clipped distance needs. */
void api_terms_workspace_and_lengths(void **state) {
  (void)state;
  for (int n = 0; n <= TERM_COUNT; n++) {
    size_t sizes[2];
    for (int k = 0; k < 2; k++) {
      test_rng rng = test_seed(335);
      int64_t t = k ? 1 << 16 : 1 << 10;
      if (nth(n) & (TERM_GAUSSIAN | TERM_SPAN)) t /= 8; /* arrays over the queries */
      test_spec spec = test_plain(2, t, t, 4, 4);
      spec.q_layout = spec.k_layout = spec.v_layout = TEST_ONE_ROW;
      spec.lse = 0;
      test_call call;
      memset(&call, 0, sizeof call);
      call.q = test_tensor(ATTN_F32, TEST_ONE_ROW, 1, 2, t, 4);
      call.k = test_tensor(ATTN_F32, TEST_ONE_ROW, 1, 2, t, 4);
      call.v = test_tensor(ATTN_F32, TEST_ONE_ROW, 1, 2, t, 4);
      call.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, 4);
      call.params.causal = 1;
      test_add_terms(&call, nth(n), &rng);
      sizes[k] = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, NULL);
      assert_true(sizes[k] > 0);
      test_mem_release();
    }
    /* a vector of distances, [H, Tq + Tk], is allowed: linear, and small */
    if (sizes[1] > sizes[0] + ((size_t)1 << 22)) {
      fail_msg("terms %x: %zu bytes grow to %zu", (unsigned)nth(n), sizes[0], sizes[1]);
    }
  }
}

/* Every operand, the tables too, ends or begins at an unreadable page. */
static void check_guarded(test_place place) {
  static const int64_t sizes[] = {1, 3, 17, 63, 64, 65, 129};
  for (int64_t n = 0; n < test_count(36, 12); n++) {
    test_rng rng = test_seed(336000 + (uint64_t)n);
    int64_t tq = sizes[test_u64(&rng) % 7], tk = sizes[test_u64(&rng) % 7];
    test_where = place;
    test_call call = some_call(nth((int)(n % (TERM_COUNT + 1))), n & 1, 2, 2, tq, tk, &rng);
    attn_ctx ctx = test_ctx();
    size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    test_where = TEST_HEAP;
    test_compare(&call, "between guard pages");
    test_mem_release();
  }
}

void api_terms_guard_pages(void **state) {
  (void)state;
  check_guarded(TEST_BEFORE_GUARD);
  check_guarded(TEST_AFTER_GUARD);
}

/* Garbage in forbidden keys changes no bit, whatever terms there are. */
void api_terms_forbidden_garbage(void **state) {
  (void)state;
  for (int n = 0; n <= TERM_COUNT; n++) {
    test_rng rng = test_seed(337);
    test_call clean = some_call(nth(n), 0, 1, 2, 100, 180, &rng);
    uint8_t *allowed = test_mem(100 * 180);
    for (int k = 0; k < 100 * 180; k++) allowed[k] = k % 180 % 7 != 3;
    clean.params.mask = attn_mask_bool(allowed, 1, 1, 100, 180);
    test_run(&clean);
    test_call call = test_again(&clean);
    for (int64_t j = 3; j < 180; j += 7) {
      test_fill_row(call.k, 0, 0, j, j & 1 ? (double)NAN : (double)INFINITY);
      test_fill_row(call.v, 0, 0, j, j & 2 ? (double)NAN : -(double)INFINITY);
    }
    test_run(&call);
    test_assert_same_outputs(&call, &clean, "garbage under a mask");
    /* and in an allowed key it reaches exactly the rows that read it */
    test_fill_row(call.v, 0, 0, 111, (double)NAN);
    test_fill_row(call.k, 0, 0, 74, (double)NAN);
    test_run(&call);
    test_compare(&call, "NaN in allowed keys");
    test_mem_release();
  }
}

/* No queries, no keys, no batch: nothing is read, and nothing is wrong. */
void api_terms_empty(void **state) {
  (void)state;
  for (int n = 0; n <= TERM_COUNT; n++) {
    for (int k = 0; k < 3; k++) {
      test_rng rng = test_seed(338);
      test_call call =
          some_call(nth(n), 0, k == 0 ? 0 : 1, 2, k == 1 ? 0 : 20, k == 2 ? 0 : 30, &rng);
      test_check(&call, "an empty extent");
    }
    test_mem_release();
  }
}

/* The same call twice, and after another: nothing is remembered. */
void api_terms_stateless(void **state) {
  (void)state;
  for (int n = 0; n <= TERM_COUNT; n++) {
    test_rng rng = test_seed(339);
    test_call call = some_call(nth(n), 1, 1, 2, 70, 90, &rng), again = test_again(&call);
    test_call plain = call;
    plain.o = again.o;
    memset(&plain.params, 0, sizeof plain.params);
    test_run(&call);
    test_run(&plain);
    test_run(&again);
    test_assert_same_outputs(&call, &again, "the same call again");
    test_mem_release();
  }
}
