/* tests/golden_training.c owns the golden calls of gradients. */

#include "golden_calls.h"

/* The gradient that is asked for goes to o, forward's LSE to lse. */
static attn_status backward(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                            int which) {
  attn_sdpa_params p;
  attn_sdpa_gradients g;
  attn_tensor y[3];
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  memset(y, 0, sizeof y);
  p.lse = lse, p.causal = 1, p.alibi = test_floats(2, 0.02, rng), p.sinks = test_floats(2, 1, rng);
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, which == 2 ? 2 : 1, T, DV),
                    out = golden_exact(rng, 2, T, DV);
  attn_status status = attn_sdpa(out, q, k, v, &p, ctx);
  if (status != ATTN_OK) return status;
  g.d_lse = golden_exact(rng, 2, T, 1);
  y[which] = o;
  return attn_sdpa_backward(y[0], y[1], y[2], golden_exact(rng, 2, T, DV), q, k, v, out, lse, &p,
                            &g, ctx);
}

static attn_status backward_q(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return backward(o, lse, rng, ctx, 0);
}
static attn_status backward_k(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return backward(o, lse, rng, ctx, 1);
}
static attn_status backward_v(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return backward(o, lse, rng, ctx, 2);
}

/* The gradient of a product of dense rows by x, w or bias. */
static attn_status gemm(attn_tensor o, test_rng *rng, attn_ctx *ctx, int which) {
  attn_gemm_params p;
  attn_gemm_gradients g;
  attn_tensor y[3];
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  memset(y, 0, sizeof y);
  const int64_t rows = which == 0 ? T : 600;
  const attn_tensor x = golden_exact(rng, 2, rows, DV), w = golden_weight(rng, DV, DV);
  p.bias = golden_weight(rng, 1, DV), p.activation = ATTN_ACT_GELU, p.scale = 0.75f;
  y[which] = which == 0 ? o : golden_rows(o, 0, which == 1 ? DV : 1, DV);
  g.d_bias = y[2];
  return attn_gemm_backward(y[0], y[1], golden_exact(rng, 2, rows, DV), x, w, &p, &g, ctx);
}

static attn_status gemm_x(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 0);
}
static attn_status gemm_w(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 1);
}
static attn_status gemm_bias(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 2);
}

/* The gradients of a norm of the rows of both heads: the last rows of o are those of gain and bias. */
static attn_status norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx, int rms) {
  attn_layer_norm_params p;
  attn_layer_norm_gradients g;
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  test_fill_value(lse, 0);
  p.norm = golden_norm(rng, DV), p.residual = golden_exact(rng, 2, 60, DV);
  g.d_sum = golden_exact(rng, 2, 60, DV);
  g.d_gain = (float *)o.data + 68 * DV, g.d_bias = g.d_gain + DV;
  test_fill_value(o, 0);
  const attn_tensor d_y = golden_exact(rng, 2, 60, DV), x = golden_exact(rng, 2, 60, DV);
  return rms ? attn_rms_norm_backward(test_rows(o, 0, 60), d_y, x, &p, &g, ctx)
             : attn_layer_norm_backward(test_rows(o, 0, 60), d_y, x, &p, &g, ctx);
}
static attn_status layer_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return norm(o, lse, rng, ctx, 0);
}
static attn_status rms_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return norm(o, lse, rng, ctx, 1);
}

const golden_call golden_training[] = {{"sdpa backward q", backward_q},
                                       {"sdpa backward k", backward_k},
                                       {"sdpa backward v", backward_v},
                                       {"gemm backward x", gemm_x},
                                       {"gemm backward w", gemm_w},
                                       {"gemm backward bias", gemm_bias},
                                       {"layer norm backward", layer_norm},
                                       {"rms norm backward", rms_norm},
                                       {NULL, NULL}};
