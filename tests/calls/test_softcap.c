/* tests/calls/test_softcap.c owns the place of the soft-cap: before the added terms, or behind them. */

#include <math.h>
#include <string.h>

#include "list.h"
#include "terms.h"

enum { H = 2, TQ = 70, TK = 150, D = 12 };

static test_call build(int64_t queries, uint64_t seed, test_rng *rng) {
  *rng = test_seed(seed);
  test_spec spec = test_plain(H, queries, TK, D, D);
  spec.lse = 1;
  test_call call = test_build(&spec, rng);
  call.params.softcap = 1.5f;
  call.params.softcap_at = ATTN_SOFTCAP_BIASED;
  return call;
}

/* Few queries, tiles and lists; each added term, and all of them. */
void A1_softcap_biased(void **state) {
  (void)state;
  static const int terms[] = {0,           TERM_TOEPLITZ, TERM_T5, TERM_PARABOLA, TERM_GAUSSIAN,
                              TERM_MODIFY, TERM_XL,       TERM_ALL};
  for (int n = 0; n < 24; n++, test_mem_release()) {
    test_rng rng;
    test_call call = build(n < 8 ? 3 : TQ, 7800 + (uint64_t)n, &rng);
    attn_sdpa_params *p = &call.params;
    p->causal = n % 2;
    if (n % 3 == 0) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 1, H, call.q.len, TK, &rng);
    if (n % 3 == 1) p->alibi = test_floats(H, 0.3, &rng);
    if (n % 3 == 2) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, H, call.q.len, TK, &rng);
    test_add_terms(&call, terms[n % 8], &rng);
    test_check(&call, "a cap behind the added terms");
  }
}

/* Without an added term the two places are one, bit for bit. */
void A1_softcap_places_agree(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng;
    test_call call = build(n % 2 ? 4 : TQ, 7830, &rng), plain = test_again(&call);
    if (n > 1) call.params.causal = plain.params.causal = 1;
    plain.params.softcap_at = ATTN_SOFTCAP_SCORES;
    test_run(&call);
    test_run(&plain);
    test_assert_same_outputs(&call, &plain, "no added term");
  }
}

/* A bias of -inf forbids its key still: it is not a score of -c. Large biases saturate. */
void A1_softcap_biased_forbids(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng;
    const int64_t rows = n < 2 ? TQ : 5;
    test_call call = build(rows, 7840 + (uint64_t)n, &rng), few = test_again(&call);
    float *bias = test_mem((size_t)(rows * TK) * sizeof *bias);
    uint8_t *allowed = test_mem((size_t)(rows * TK));
    for (int64_t x = 0; x < rows * TK; x++) {
      allowed[x] = (uint8_t)(x % 3 != 0 && x / TK != 2);
      bias[x] = allowed[x] ? 1e30f : -INFINITY;
    }
    call.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, rows, TK);
    few.params.mask = attn_mask_bool(allowed, 1, 1, rows, TK);
    few.params.scale = ATTN_ZERO; /* all capped to c: the mean of what is allowed */
    for (int64_t i = 0; n % 2 && i < rows; i++) bias[i * TK] = -INFINITY, allowed[i * TK] = 0;
    if (n % 2) test_fill_row(call.v, 0, 0, 0, (double)NAN); /* never read */
    test_run(&call);
    test_run(&few);
    test_assert_near(call.o, few.o, 4e-6, "biases of 1e30 and -inf");
    for (int64_t c = 0; c < D; c++) assert_true(oracle_get(&call.o, 0, 1, 2, c) == 0);
    assert_true(oracle_get(&call.params.lse, 0, 0, 2, 0) == -(double)INFINITY);
    assert_true(fabs(oracle_get(&call.params.lse, 0, 0, 1, 0) -
                     oracle_get(&few.params.lse, 0, 0, 1, 0) - 1.5) < 1e-5);
  }
}

/* A map of ATTN_MAP_CAPPED holds what the cap leaves: here what enters the softmax. */
void A1_softcap_biased_map(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_rng rng = test_seed(7850 + (uint64_t)n);
    test_spec spec = test_plain(H, TQ, TK, D, D);
    spec.map = 1;
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    p->softcap = n % 4 == 3 ? 0 : 1.5f;
    p->softcap_at = ATTN_SOFTCAP_BIASED;
    p->map_stage = n % 2 ? ATTN_MAP_CAPPED : ATTN_MAP_SCORES;
    if (n % 3) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 1, H, TQ, TK, &rng);
    test_add_terms(&call, TERM_KEYS | TERM_TOEPLITZ, &rng);
    test_check(&call, "a map behind the cap");
  }
}
