/* tests/golden_path.c owns the golden calls of transitions between queries and keys. */

#include "golden_calls.h"

/* Unit vectors of four halves, strengths from none to reflections. */
static attn_path path_of(test_rng *rng, int64_t len) {
  attn_path p = {test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, DK),
                 test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, 1)};
  test_fill_value(p.w, 0);
  for (int64_t e = 0; e < 2 * len; e++) {
    for (int x = 0; x < 4; x++) {
      const int64_t at = 6 * x + test_range(rng, 0, 5);
      oracle_set(&p.w, 0, e / len, e % len, at, test_range(rng, 0, 1) ? 0.5 : -0.5);
    }
    oracle_set(&p.beta, 0, e / len, e % len, 0, (double)test_range(rng, 0, 64) / 32);
  }
  return p;
}

/* The last rows of three blocks of keys. */
static attn_status transitions(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_reshaped_params p;
  memset(&p, 0, sizeof p);
  p.attention.causal = 1, p.attention.lse = lse, p.path = path_of(rng, 300);
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, 300, DK);
  return attn_reshaped(o, q, k, golden_exact(rng, 2, 300, DV), &p, ctx);
}

static attn_status turned_keys(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  const attn_path p = path_of(rng, T);
  const attn_path_turn_params turn = {NULL, 1};
  attn_sdpa_params s;
  memset(&s, 0, sizeof s);
  s.lse = lse;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  const attn_status status = attn_path_turn(k, p.w, p.beta, &turn, ctx);
  return status != ATTN_OK ? status : attn_sdpa(o, q, k, golden_exact(rng, 2, T, DV), &s, ctx);
}

const golden_call golden_path[] = {
    {"transitions", transitions}, {"turned keys", turned_keys}, {NULL, NULL}};
