/* tests/golden_reshaped.c owns the golden calls of differential attention and entmax. */

#include "golden_calls.h"

/* Two maps a head, two heads of k for two of q's. */
static attn_status differential(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_differential_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.attention.causal = 1, p.lambdas = golden_exact(rng, 2, T, 1), p.layer = 3;
  const attn_tensor q = golden_exact(rng, 4, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_differential(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status entmax(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const float alphas[2] = {1.5f, 1.25f};
  attn_reshaped_params p;
  memset(&p, 0, sizeof p);
  p.kind = ATTN_RESHAPE_ENTMAX, p.alphas = alphas, p.support = lse, p.attention.causal = 1;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_reshaped(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

const golden_call golden_reshaped[] = {
    {"differential", differential}, {"entmax", entmax}, {NULL, NULL}};
