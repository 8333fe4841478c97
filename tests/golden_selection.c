/* tests/golden_selection.c owns the golden calls of learned selections of keys. */

#include "golden_calls.h"

static attn_status moba(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_moba_params p;
  memset(&p, 0, sizeof p);
  p.block = 9, p.k = 3, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_moba(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status quest(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_quest_params p;
  memset(&p, 0, sizeof p);
  p.page = 6, p.pages = 4, p.last_competes = 1, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_quest(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status dsa(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_dsa_params p;
  memset(&p, 0, sizeof p);
  p.k = 17, p.attention.lse = lse;
  p.qi = golden_exact(rng, 3, T, 8), p.ki = golden_exact(rng, 1, T, 8),
  p.wi = golden_exact(rng, 1, T, 3);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_dsa(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status nsa(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_nsa_params p;
  attn_nsa_compress_params c;
  memset(&p, 0, sizeof p), memset(&c, 0, sizeof c);
  p.block = c.block = 4, p.stride = c.stride = 2, p.select = 6, p.blocks = 5, p.window = 9;
  p.gate = golden_exact(rng, 2, T, 3);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK),
              v = golden_exact(rng, 1, T, DV);
  c.w = golden_weight(rng, 4 * DK, DK), c.e = golden_exact(rng, 1, 4, DK);
  p.k_cmp = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 34, DK);
  const attn_status s = attn_nsa_compress(p.k_cmp, k, &c, ctx);
  test_fill_value(lse, 0);
  return s ? s : attn_nsa(o, q, k, v, &p, ctx);
}

const golden_call golden_selection[] = {
    {"moba", moba}, {"quest", quest}, {"dsa", dsa}, {"nsa", nsa}, {NULL, NULL}};
