/* tests/golden_hashes.c owns the golden calls of attention by hashes that meet, and at two resolutions. */

#include "golden_calls.h"

static attn_status yoso(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_yoso_params p;
  memset(&p, 0, sizeof p);
  p.attention.causal = 1;
  test_fill_value(lse, 0);
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_yoso(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

static attn_status yoso_sample(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_yoso_params p;
  memset(&p, 0, sizeof p);
  p.code_len = 5, p.draws = 7, p.seed = 3, p.raw = 1;
  test_fill_value(lse, 0);
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_yoso_sample(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

static attn_status mra(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_mra_params p;
  memset(&p, 0, sizeof p);
  p.block = 9, p.exact = 20, p.diagonal = 1, p.lse = lse;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_mra(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

const golden_call golden_hashes[] = {
    {"yoso", yoso}, {"yoso sample", yoso_sample}, {"mra", mra}, {NULL, NULL}};
