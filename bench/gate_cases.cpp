/* gate_cases.cpp owns the entries of gates in place of residual sums and of trajectories as sequences. */

#include "functions.h"

namespace {

attn_gtrxl_gate_params gate_weights(Call &c, attn_gtrxl_kind kind, int64_t wide) {
  attn_gtrxl_gate_params p = {};
  p.kind = kind;
  for (attn_tensor *w : {&p.w_r, &p.u_r, &p.w_z, &p.u_z, &p.w_g, &p.u_g})
    *w = c.rows(1, wide, wide, 1 / sqrtf((float)wide));
  return p;
}

/* The multiply-adds of so many products of dm by dm. */
void gate(Call &c, attn_gtrxl_kind kind, int64_t len, int64_t wide, int products) {
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_gtrxl_gate_params p = gate_weights(c, kind, wide);
  c.flops = 2.0 * products * (double)(len * wide * wide);
  c.run = [=](attn_ctx *ctx) { return attn_gtrxl_gate(o, x, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gtrxl_gate_workspace(o, x, y, &p, ctx); };
}

/* A segment behind as long a memory, with relative positions. */
void block(Call &c) {
  constexpr int64_t len = 512, wide = 512, heads = 8;
  attn_tensor h = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_gtrxl_params p = {};
  attn_segment_layer_params &a = p.attention;
  a.heads = heads;
  a.memory.rows = c.rows(1, len, wide);
  a.memory.len = len;
  for (attn_tensor *w : {&a.w_q, &a.w_k, &a.w_v, &a.w_o, &a.w_r}) *w = c.rows(1, wide, wide, 0.04f);
  a.attention.u = c.numbers(wide, 0.1f);
  a.attention.v = c.numbers(wide, 0.1f);
  p.gate_1 = gate_weights(c, ATTN_GTRXL_GRU, wide);
  p.gate_2 = gate_weights(c, ATTN_GTRXL_GRU, wide);
  p.ff.w_1 = c.rows(1, wide, 4 * wide, 0.04f);
  p.ff.w_2 = c.rows(1, 4 * wide, wide, 0.02f);
  const double pairs = (double)(heads * len) * ((double)len + (double)(len + 1) / 2);
  /* rows times weights: q, o; k, v, r of twice the rows; gates; feed-forward */
  c.flops = 2.0 * (2 + 6 + 12 + 8) * (double)(len * wide * wide) + 6.0 * pairs * (double)kDim;
  c.run = [=](attn_ctx *ctx) { return attn_gtrxl(o, h, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gtrxl_workspace(o, h, &p, ctx); };
}

/* Many episodes of a thousand steps. */
void returns(Call &c, float gamma) {
  constexpr int64_t batch = 64, steps = 1000;
  attn_tensor r = attn_bhtd(c.numbers(batch * steps, 1), ATTN_F32, batch, 1, steps, 1), y = r;
  y.data = c.numbers(batch * steps, 1);
  attn_returns_params p = {};
  p.gamma = gamma;
  c.bytes = 8.0 * (double)(batch * steps);
  c.run = [=](attn_ctx *ctx) { return attn_returns(y, r, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_returns_workspace(y, r, &p, ctx); };
}

/* Steps of a walking robot; time goes with the tokens, read as times and written. */
void tokens(Call &c) {
  constexpr int64_t steps = 1024, ds = 17, da = 6, wide = 128;
  attn_tensor x = c.rows(1, steps, 1), s = c.rows(1, steps, ds), a = c.rows(1, steps, da);
  attn_tensor y = c.rows(1, 3 * steps, wide);
  attn_trajectory_params p = {};
  p.w_return = c.rows(1, 1, wide);
  p.w_state = c.rows(1, ds, wide);
  p.w_action = c.rows(1, da, wide);
  for (attn_tensor *b : {&p.b_return, &p.b_state, &p.b_action}) *b = c.rows(1, 1, wide);
  p.times = c.rows(1, steps, wide);
  p.timesteps = c.steps(steps, 1);
  c.flops = 2.0 * (double)(steps * (1 + ds + da) * wide);
  c.run = [=](attn_ctx *ctx) { return attn_trajectory_tokens(y, x, s, a, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_trajectory_tokens_workspace(y, x, s, a, &p, ctx);
  };
}

/* Causal attention over the tokens of steps of which some do not exist, the mask made anew. */
void masked(Call &c) {
  constexpr int64_t steps = 1024;
  attn_tensor q = c.rows(1, 3 * steps, kDim), k = c.rows(1, 3 * steps, kDim),
              v = c.rows(1, 3 * steps, kDim), o = c.rows(1, 3 * steps, kDim);
  auto valid = std::make_shared<std::vector<uint8_t>>(steps, 1);
  auto keys = std::make_shared<std::vector<uint8_t>>(3 * steps);
  for (int64_t i = 0; i < 100; i++) (*valid)[(size_t)i] = 0;
  attn_sdpa_params p = {};
  p.causal = 1;
  p.mask = attn_trajectory_mask(keys->data(), valid->data(), 1, steps);
  c.pairs(3 * steps * (3 * steps + 1) / 2);
  c.run = [=](attn_ctx *ctx) {
    attn_trajectory_mask(keys->data(), valid->data(), 1, steps);
    return attn_sdpa(o, q, k, v, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) { return attn_sdpa_workspace(o, q, k, v, &p, ctx); };
}

void predict(Call &c) {
  constexpr int64_t steps = 1024, da = 6, wide = 128;
  attn_tensor y = c.rows(1, 3 * steps, wide), o = c.rows(1, steps, da);
  attn_trajectory_predict_params p = {};
  p.w = c.rows(1, wide, da);
  p.bias = c.rows(1, 1, da);
  c.flops = 2.0 * (double)(steps * wide * da);
  c.run = [=](attn_ctx *ctx) { return attn_trajectory_predict(o, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_trajectory_predict_workspace(o, y, &p, ctx); };
}

const CallEntry entries[] = {
    {"gtrxl_gate", "gru/T:2048/d:512", [](Call &c) { gate(c, ATTN_GTRXL_GRU, 2048, 512, 6); }},
    {"gtrxl_gate", "gru/T:8192/d:64", [](Call &c) { gate(c, ATTN_GTRXL_GRU, 8192, 64, 6); }},
    {"gtrxl_gate", "gru/T:1/d:512", [](Call &c) { gate(c, ATTN_GTRXL_GRU, 1, 512, 6); }},
    {"gtrxl_gate", "highway/T:2048/d:512",
     [](Call &c) { gate(c, ATTN_GTRXL_HIGHWAY, 2048, 512, 1); }},
    {"gtrxl", "T:512/mem:512/d:64/h:8/xl", block},
    {"returns", "T:1000/B:64", [](Call &c) { returns(c, 1); }},
    {"returns", "T:1000/B:64/discount", [](Call &c) { returns(c, 0.99f); }},
    {"trajectory_tokens", "T:1024/d:128", tokens},
    {"trajectory_mask", "T:1024/d:64", masked},
    {"trajectory_predict", "T:1024/d:128", predict},
};

}  // namespace

void register_gate_calls(const Selection &sel) { register_calls(sel, entries); }
