/* tests/calls/test_map_stage.c owns what a map holds beside weights: scores without terms, capped ones,
 * and those that enter the softmax. */

#include <math.h>
#include <string.h>

#include "list.h"
#include "patterns.h"
#include "terms.h"

/* Random calls with a map of a stage; raw scores ignore every term. */
static void random_calls(attn_map_stage stage, int terms, uint64_t seed) {
  for (int64_t n = 0; n < test_count(60, 12); n++, test_mem_release()) {
    test_rng rng = test_seed(seed + (uint64_t)n);
    test_call call = test_terms_call(n % 2 ? (int)test_u64(&rng) & terms : 0, 200, &rng);
    if (n % 3 == 0) call.params.modify_weights = NULL;
    if (!call.params.map.data)
      call.params.map = test_tensor(ATTN_F32, n % 5 ? TEST_BTHD : TEST_NEGATIVE, call.q.batch,
                                    call.q.heads, call.q.len, call.k.len);
    call.params.map_stage = stage;
    if (stage == ATTN_MAP_CAPPED && (call.params.modify || call.params.span.z))
      call.params.softcap_at = ATTN_SOFTCAP_SCORES;
    test_check(&call, "a map of scores");
  }
}

void A1_map_raw(void **state) {
  (void)state;
  random_calls(ATTN_MAP_RAW, TERM_ALL & ~TERM_XL, 7100);
}

void A1_map_capped(void **state) {
  (void)state;
  const int inside = TERM_KEYS | TERM_QUERIES | TERM_XL | TERM_LABELS | TERM_FACTOR;
  random_calls(ATTN_MAP_CAPPED, TERM_ALL & ~inside, 7200);
}

void A1_map_scores(void **state) {
  (void)state;
  random_calls(ATTN_MAP_SCORES, TERM_ALL & ~TERM_XL, 7300);
}

/* The same bits for any workers, the workspace query is exact, and o is that with a map of weights. */
void A1_map_stage_promises(void **state) {
  (void)state;
  for (int n = 1; n < ATTN_MAP_STAGES; n++) {
    test_rng rng = test_seed(7400);
    test_spec spec = test_plain(4, 150, 300, 24, 20);
    spec.k_heads = 2, spec.v_heads = 1, spec.map = 1, spec.k_type = ATTN_F16;
    test_call plain = test_build(&spec, &rng), one = test_again(&plain), many = test_again(&plain);
    plain.params.causal = one.params.causal = many.params.causal = 1;
    plain.params.softcap = one.params.softcap = many.params.softcap = 1.5f;
    one.params.map_stage = many.params.map_stage = (attn_map_stage)n;
    test_run(&plain);
    test_run(&one);
    test_assert_same(one.o, plain.o, "o beside a map of scores");
    test_assert_same(one.params.lse, plain.params.lse, "LSE beside a map of scores");
    attn_ctx ctx = test_ctx();
    ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    const size_t size = attn_sdpa_workspace(many.o, many.q, many.k, many.v, &many.params, &ctx);
    ctx.workspace = test_mem(size), ctx.workspace_size = size;
    const int64_t calls = test_malloc_calls;
    assert_int_equal(attn_sdpa(many.o, many.q, many.k, many.v, &many.params, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, calls);
    test_assert_same_outputs(&many, &one, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_sdpa(many.o, many.q, many.k, many.v, &many.params, &ctx),
                     ATTN_E_WORKSPACE);
  }
}

/* Pairs that a schedule leaves out have a raw score, and no score that enters the softmax. */
void A1_map_stage_schedules(void **state) {
  (void)state;
  const attn_pattern_kind kinds[] = {ATTN_PATTERN_BAND, ATTN_PATTERN_RANDOM, ATTN_PATTERN_DILATED,
                                     ATTN_PATTERN_SPARSE_STRIDED};
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_rng rng = test_seed(7500 + (uint64_t)n);
    test_graph g = test_random_graph(kinds[n % 4], 90, 0, &rng);
    test_spec spec = test_plain(g.heads, g.q_len, g.k_len, 9, 7);
    spec.map = 1;
    test_call call = test_graph_call(&g, &spec, &rng);
    call.params.map_stage = n / 4 == 0   ? ATTN_MAP_RAW
                            : n / 4 == 1 ? ATTN_MAP_CAPPED
                                         : ATTN_MAP_SCORES;
    call.params.softcap = 2;
    test_graph_run(&call, &g, "a map of scores on a schedule");
  }
}

/* Rows beyond kv_len are not read; NaN elsewhere is the default NaN, in its cells alone. */
void A1_map_stage_not_finite(void **state) {
  (void)state;
  for (int n = 1; n < ATTN_MAP_DROPPED; n++) {
    test_rng rng = test_seed(7600);
    test_spec spec = test_plain(2, 70, 90, 9, 7);
    spec.map = 1;
    test_call call = test_build(&spec, &rng);
    int32_t keys = 60;
    call.params.kv_len = &keys, call.params.map_stage = (attn_map_stage)n;
    test_fill_row(call.k, 0, 0, 70, (double)NAN);
    test_fill_row(call.k, 0, 1, 20, -(double)NAN);
    test_run(&call);
    for (int64_t x = 0; x < 2 * 70 * 90; x++) {
      const int64_t h = x / 90 / 70, i = x / 90 % 70, j = x % 90;
      const void *cell = oracle_address(&call.params.map, 0, h, i, j);
      uint32_t bits;
      memcpy(&bits, cell, sizeof bits);
      const double got = oracle_get(&call.params.map, 0, h, i, j);
      if (j >= 60)
        assert_true(got == -(double)INFINITY);
      else if (h == 1 && j == 20)
        assert_int_equal(bits, 0x7fc00000u);
      else
        assert_true(isfinite(got));
    }
  }
}
