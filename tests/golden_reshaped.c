/* tests/golden_reshaped.c owns the golden calls of differential attention, entmax, contextual positions and selective attention. */

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

/* Positions by gates, which end with the table in some rows. */
static attn_status contextual(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_reshaped_params p;
  memset(&p, 0, sizeof p);
  p.attention.causal = 1, p.attention.lse = lse;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  const attn_tensor v = golden_exact(rng, 2, T, DV);
  p.cope.table = golden_exact(rng, 2, 20, DK);
  return attn_reshaped(o, q, k, v, &p, ctx);
}

/* What rows of head 0 take from keys, before rows that have given some away. */
static attn_status selective(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_reshaped_params p;
  double sums[T];
  memset(&p, 0, sizeof p);
  p.attention.causal = 1, p.attention.lse = lse, p.attention.scale = 0.015625f;
  p.selective.on = 1, p.selective.sums = sums;
  for (int i = 0; i < T; i++) sums[i] = 0;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_reshaped(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

const golden_call golden_reshaped[] = {{"differential", differential},
                                       {"entmax", entmax},
                                       {"contextual positions", contextual},
                                       {"selective attention", selective},
                                       {NULL, NULL}};
