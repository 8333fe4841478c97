/* tests/golden_blocks.c owns the golden calls of blocks around attention: gates, trajectories,
 * mixing of tokens without attention, rows between dense products. */

#include "golden_calls.h"

static attn_gtrxl_gate_params gate(test_rng *rng, attn_gtrxl_kind kind) {
  attn_gtrxl_gate_params p;
  memset(&p, 0, sizeof p);
  attn_tensor *w[6] = {&p.w_r, &p.u_r, &p.w_z, &p.u_z, &p.w_g, &p.u_g};
  p.kind = kind;
  for (int i = 0; i < 6; i++) *w[i] = golden_exact(rng, 1, DV, DV);
  return p;
}

/* One head a gate by itself, the other the block. */
static attn_status gtrxl(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_gtrxl_params p;
  memset(&p, 0, sizeof p);
  attn_segment_layer_params *a = &p.attention;
  a->memory.rows = golden_exact(rng, 1, 33, DV), a->memory.len = 30, a->memory.first = 9;
  a->heads = 2, a->attention.lse = lse;
  a->w_q = golden_exact(rng, 1, DV, DV), a->w_k = golden_exact(rng, 1, DV, DV);
  a->w_v = golden_exact(rng, 1, DV, DV), a->w_o = golden_exact(rng, 1, DV, DV);
  p.gate_1 = gate(rng, ATTN_GTRXL_GRU), p.gate_2 = gate(rng, ATTN_GTRXL_HIGHWAY);
  p.ff.w_1 = golden_exact(rng, 1, DV, 33), p.ff.w_2 = golden_exact(rng, 1, 33, DV);
  const attn_tensor h = golden_exact(rng, 1, T, DV);
  attn_status status = attn_gtrxl(test_one(o, 0, 1, 1, 1), h, &p, ctx);
  if (status != ATTN_OK) return status;
  return attn_gtrxl_gate(test_one(o, 0, 1, 0, 1), h, golden_exact(rng, 1, T, DV), &p.gate_1, ctx);
}

/* 23 steps, of which three do not exist; the rest of the rows is 0. */
static attn_status trajectory(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { STEPS = 23 };
  static const uint8_t valid[STEPS] = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                       1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  int32_t times[STEPS];
  uint8_t keys[3 * STEPS];
  attn_returns_params r;
  attn_trajectory_params p;
  attn_sdpa_params s;
  memset(&r, 0, sizeof r), memset(&p, 0, sizeof p), memset(&s, 0, sizeof s);
  for (int t = 0; t < STEPS; t++) times[t] = t * 5 % STEPS;
  r.gamma = 0.875f;
  p.w_return = golden_exact(rng, 1, 1, DV), p.w_state = golden_exact(rng, 1, 7, DV);
  p.w_action = golden_exact(rng, 1, 3, DV), p.b_state = golden_exact(rng, 1, 1, DV);
  p.times = golden_exact(rng, 1, STEPS, DV), p.timesteps = times;
  attn_tensor returns = golden_exact(rng, 1, STEPS, 1), states = golden_exact(rng, 1, STEPS, 7);
  attn_tensor y = test_rows(test_one(o, 0, 1, 0, 1), 0, 3 * STEPS);
  attn_tensor z = test_rows(test_one(o, 0, 1, 1, 1), 0, 3 * STEPS);
  test_fill_value(o, 0), test_fill_value(lse, 0);
  attn_status status = attn_returns(returns, returns, &r, ctx);
  if (status == ATTN_OK)
    status = attn_trajectory_tokens(y, returns, states, golden_exact(rng, 1, STEPS, 3), &p, ctx);
  if (status != ATTN_OK) return status;
  s.causal = 1, s.mask = attn_trajectory_mask(keys, valid, 1, STEPS);
  return attn_sdpa(z, y, y, y, &s, ctx);
}

/* Lengths of small factors, then those of large primes. */
static attn_status fourier(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  attn_status status =
      attn_fourier(golden_rows(o, 0, T, DV), golden_exact(rng, 1, T, DV), NULL, ctx);
  if (status != ATTN_OK) return status;
  return attn_fourier(golden_rows(o, 1, 37, 37), golden_exact(rng, 1, 37, 37), NULL, ctx);
}

/* A length that is cut, and products in place of fast transforms. */
static attn_status fnet(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t len[1] = {61};
  attn_fnet_params p;
  memset(&p, 0, sizeof p);
  p.norm_1 = golden_norm(rng, DV), p.norm_2 = golden_norm(rng, DV);
  p.ff = golden_feed(rng, DV, 33, ATTN_ACT_DEFAULT);
  p.mix.x_len = len;
  const attn_tensor x = golden_exact(rng, 1, T, DV);
  test_fill_value(lse, 0);
  attn_status status = attn_fnet(test_one(o, 0, 1, 0, 1), x, &p, ctx);
  p.mix.x_len = NULL, p.mix.form = ATTN_FOURIER_GEMM;
  return status == ATTN_OK ? attn_fnet(test_one(o, 0, 1, 1, 1), x, &p, ctx) : status;
}

/* Causal with tiny attention, then all positions without. */
static attn_status gmlp(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { N = 73, E = 34, A = 9 };
  static const int32_t len[1] = {67};
  attn_gmlp_params p;
  memset(&p, 0, sizeof p);
  p.norm = golden_norm(rng, DV), p.norm_gate = golden_norm(rng, E);
  p.w_1 = golden_weight(rng, DV, 2 * E), p.b_1 = golden_weight(rng, 1, 2 * E);
  p.w_2 = golden_weight(rng, E, DV), p.b_2 = golden_weight(rng, 1, DV);
  p.w_s = golden_exact(rng, 2, N, N), p.b_s = golden_exact(rng, 2, 1, N);
  const attn_tensor x = golden_exact(rng, 1, T, DV);
  test_fill_value(lse, 0);
  attn_status status = attn_gmlp(test_one(o, 0, 1, 1, 1), x, &p, ctx);
  if (status != ATTN_OK) return status;
  p.w_qkv = golden_weight(rng, DV, 3 * A), p.b_qkv = golden_weight(rng, 1, 3 * A);
  p.w_o = golden_weight(rng, A, E), p.b_o = golden_weight(rng, 1, E);
  p.causal = 1, p.x_len = len, p.activation = ATTN_ACT_SILU;
  return attn_gmlp(test_one(o, 0, 1, 0, 1), x, &p, ctx);
}

/* Many tokens of few channels, and the other way round. */
static attn_status mixer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_status status = ATTN_OK;
  test_fill_value(lse, 0);
  for (int h = 0; h < 2 && status == ATTN_OK; h++) {
    const int64_t len = h ? DV : T, dim = h ? T : DV;
    attn_mixer_params p;
    p.norm_token = golden_norm(rng, dim), p.norm_channel = golden_norm(rng, dim);
    p.token = golden_feed(rng, len, 33, h ? ATTN_ACT_GELU_TANH : ATTN_ACT_DEFAULT);
    p.channel = golden_feed(rng, dim, 31, h ? ATTN_ACT_GELU_TANH : ATTN_ACT_DEFAULT);
    status = attn_mixer(golden_rows(o, h, len, dim), golden_exact(rng, 1, len, dim), &p, ctx);
  }
  return status;
}

/* Wide rows with a residual, and its sum. */
static attn_status norm_sum(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_layer_norm_params p;
  p.norm = golden_norm(rng, 200), p.residual = golden_exact(rng, 1, 7, 200);
  p.sum = golden_rows(o, 1, 7, 200);
  test_fill_value(lse, 0);
  return attn_layer_norm(golden_rows(o, 0, 7, 200), golden_exact(rng, 1, 7, 200), &p, ctx);
}

/* Seven rows of each function: by itself from -8 to 8, and with a gate from -2 to 2. */
static attn_status activations(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { KINDS = ATTN_ACT_NONE, EACH = T / KINDS };
  attn_activate_params p;
  memset(&p, 0, sizeof p);
  const attn_tensor x = golden_exact(rng, 2, T, DV), gate = golden_exact(rng, 1, T, DV);
  for (int64_t i = 0; i < T * DV; i++) ((float *)x.data)[i] *= 4; /* of head 0 */
  test_fill_value(o, 0), test_fill_value(lse, 0);
  attn_status status = ATTN_OK;
  for (int a = 0; a < 2 * KINDS && status == ATTN_OK; a++) {
    const int64_t h = a % 2, at = a / 2 * EACH;
    p.activation = (attn_activation)(a / 2);
    p.gate = h ? test_rows(gate, at, EACH) : absent();
    status = attn_activate(test_rows(test_one(o, 0, 1, h, 1), at, EACH),
                           test_rows(test_one(x, 0, 1, h, 1), at, EACH), &p, ctx);
  }
  return status;
}

const golden_call golden_blocks[] = {{"gtrxl", gtrxl},
                                     {"trajectory", trajectory},
                                     {"fourier", fourier},
                                     {"fnet", fnet},
                                     {"gmlp", gmlp},
                                     {"mixer", mixer},
                                     {"norm sum", norm_sum},
                                     {"activations", activations},
                                     {NULL, NULL}};
