/* bench/families/depth.cpp owns the entries of stacks of no fixed depth: halting, exits,
 * confidences. */

#include "functions.h"

namespace {

constexpr int64_t kWide = 512, kHidden = 2048, kHeads = 8;

/* A block of the usual shape; its multiply-adds for `rows` rows that attend to `keys` keys each are
 * block_flops. */
attn_block_params block(Call &c) {
  attn_block_params p = {};
  p.self.heads = kHeads;
  for (attn_tensor *w : {&p.self.w_q, &p.self.w_k, &p.self.w_v, &p.self.w_o})
    *w = c.rows(1, kWide, kWide, 0.04f);
  p.ff.w_1 = c.rows(1, kWide, kHidden, 0.04f);
  p.ff.w_2 = c.rows(1, kHidden, kWide, 0.02f);
  return p;
}

double block_flops(double rows, double keys, double projected) {
  return 4.0 * kWide * (kWide * (rows + projected) + kHidden * rows + keys * rows);
}

/* All tokens run for four steps, or half of them stop after the first: they stay keys. */
void universal(Call &c, bool halt) {
  constexpr int64_t len = 512, steps = 4;
  attn_tensor x = c.rows(1, len, kWide), y = c.rows(1, len, kWide);
  attn_universal_params p = {};
  p.block = block(c);
  p.steps = steps;
  p.w_p = c.rows(1, 1, kWide, halt ? 1.0f : 0.0f);
  p.b_p = -30.0f;
  if (halt) { /* the sign of one column decides */
    for (int64_t i = 0; i < kWide; i++) ((float *)p.w_p.data)[i] = i ? 0.0f : 1.0f;
    for (int64_t i = 0; i < len; i++) ((float *)x.data)[i * kWide] = i % 2 ? 60.0f : -60.0f;
  }
  double first = block_flops(len, len, len), rest = halt ? block_flops(len / 2, len, len) : first;
  c.flops = first + (steps - 1) * rest;
  c.run = [=](attn_ctx *ctx) { return attn_universal(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_universal_workspace(y, x, &p, ctx); };
}

/* One token after 512 others through some of six layers; bytes of the weights and keys it reads. */
struct Stack {
  std::vector<attn_block_params> layers;
  std::vector<attn_decoder_cache> keys, before;
  attn_exit_cache cache = {};
  int32_t exits[1];
};

void exit_decoder(Call &c, int32_t exit, int64_t skipped) {
  constexpr int64_t past = 512, room = past + 1, layers = 6;
  attn_tensor x = c.rows(1, 1, kWide), y = c.rows(1, 1, kWide);
  auto s = std::make_shared<Stack>();
  for (int64_t m = 0; m < layers; m++) {
    s->layers.push_back(block(c));
    attn_decoder_cache k = {};
    k.k = c.rows(kHeads, room, kWide / kHeads);
    k.v = c.rows(kHeads, room, kWide / kHeads);
    k.len = past - (m ? skipped : 0);
    s->before.push_back(k);
  }
  s->keys = s->before;
  s->cache.last = c.rows(1, room, kWide);
  s->exits[0] = exit;
  attn_exit_decoder_params p = {};
  p.layers = s->layers.data();
  p.count = layers;
  s->cache.layer = s->keys.data();
  s->cache.len = past;
  if (skipped)
    c.flops = exit * block_flops(1, past, 1) + (exit - 1) * 4.0 * kWide * kWide * (double)skipped;
  else
    c.bytes = 4.0 * exit * kWide * (4.0 * kWide + 2.0 * kHidden + 2.0 * past);
  c.run = [=](attn_ctx *ctx) {
    s->keys = s->before;
    s->cache.len = past;
    return attn_exit_decoder(y, s->exits, x, &s->cache, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_exit_decoder_workspace(y, s->exits, x, &s->cache, &p, ctx);
  };
}

void exits(Call &c, attn_exit_kind kind) {
  constexpr int64_t len = 4096, layers = 6;
  bool deep = kind == ATTN_EXIT_GEOMETRIC;
  attn_tensor x = c.rows(deep ? layers - 1 : 1, len, kWide);
  attn_tensor q = c.rows(1, kind == ATTN_EXIT_SEQUENCE ? 1 : len, layers);
  int32_t *exit = c.steps(len, 0);
  attn_exits_params p = {};
  p.kind = kind;
  p.layers = layers;
  p.w = deep ? c.rows(layers - 1, 1, kWide, 0.04f) : c.rows(1, kWide, layers, 0.04f);
  c.bytes = 4.0 * kWide * (double)(len * (deep ? layers - 1 : 1));
  c.run = [=](attn_ctx *ctx) { return attn_exits(exit, q, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_exits_workspace(exit, q, x, &p, ctx); };
}

void exit_smooth(Call &c, float sigma, double near) {
  constexpr int64_t len = 1024, layers = 6;
  attn_tensor x = c.rows(1, layers, len), y = c.rows(1, layers, len);
  attn_exit_smooth_params p = {};
  p.sigma = sigma;
  c.flops = 2.0 * (double)(layers * len) * near;
  c.run = [=](attn_ctx *ctx) { return attn_exit_smooth(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_exit_smooth_workspace(y, x, &p, ctx); };
}

void exit_target(Call &c) {
  constexpr int64_t len = 4096, layers = 12;
  attn_tensor x = c.rows(1, layers, len);
  int32_t *target = c.steps(len, 0);
  attn_exit_target_params p = {};
  p.tokens = 1;
  p.lambda = 0.1f;
  c.bytes = 4.0 * (double)(len * layers);
  c.run = [=](attn_ctx *ctx) { return attn_exit_target(target, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_exit_target_workspace(target, x, &p, ctx); };
}

void confidence(Call &c, attn_confidence_kind kind) {
  bool logits = kind == ATTN_CONFIDENCE_SOFTMAX;
  int64_t len = logits ? 64 : 4096, wide = logits ? 32000 : kWide;
  attn_tensor x = c.rows(1, len, wide, 2), y = c.rows(1, len, 1);
  attn_confidence_params p = {};
  p.kind = kind;
  if (kind == ATTN_CONFIDENCE_COSINE) p.before = c.rows(1, len, wide);
  if (kind == ATTN_CONFIDENCE_CLASSIFIER) p.w = c.rows(1, 1, wide, 0.04f);
  c.bytes = 4.0 * (double)(len * wide) * (kind == ATTN_CONFIDENCE_COSINE ? 2 : 1);
  c.run = [=](attn_ctx *ctx) { return attn_confidence(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_confidence_workspace(y, x, &p, ctx); };
}

void calm_threshold(Call &c) {
  constexpr int64_t steps = 1024;
  float *threshold = c.numbers(steps, 1);
  attn_calm_threshold_params p = {};
  p.outputs = steps;
  c.bytes = 4.0 * steps;
  c.run = [=](attn_ctx *ctx) { return attn_calm_threshold(threshold, steps, 0.8f, &p, ctx); };
  c.size = [](const attn_ctx *) { return (size_t)0; };
}

void calm_exit(Call &c) {
  constexpr int64_t len = 4096, layers = 12;
  attn_tensor x = c.rows(1, layers - 1, len);
  float *threshold = c.numbers(len, 1);
  int32_t *exit = c.steps(len, 0);
  c.bytes = 4.0 * (double)(len * (layers - 1));
  c.run = [=](attn_ctx *ctx) { return attn_calm_exit(exit, x, threshold, 0, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_calm_exit_workspace(exit, x, threshold, 0, ctx);
  };
}

void calm_calibrate(Call &c) {
  constexpr int64_t items = 4096, candidates = 10;
  attn_tensor losses = c.rows(1, candidates, items);
  float *lambdas = c.numbers(candidates, 1), *best = c.numbers(1, 1);
  for (int64_t i = 0; i < items * candidates; i++) ((float *)losses.data)[i] = 0.01f;
  for (int64_t j = 0; j < candidates; j++) lambdas[j] = 1.0f - 0.1f * (float)j;
  c.bytes = 4.0 * (double)(items * candidates);
  c.run = [=](attn_ctx *ctx) {
    return attn_calm_calibrate(best, nullptr, losses, lambdas, 0.1f, 0.05f, ctx);
  };
  c.size = [](const attn_ctx *) { return (size_t)0; };
}

const CallEntry entries[] = {
    {"universal", "T:512/steps:4/d:64/h:8", [](Call &c) { universal(c, false); }},
    {"universal", "T:512/steps:4/d:64/h:8/halted:half", [](Call &c) { universal(c, true); }},
    {"exit_decoder", "past:512/layers:6/d:512/exit:6", [](Call &c) { exit_decoder(c, 6, 0); }},
    {"exit_decoder", "past:512/layers:6/d:512/exit:2", [](Call &c) { exit_decoder(c, 2, 0); }},
    {"exit_decoder", "past:512/layers:6/d:512/exit:6/late:256",
     [](Call &c) { exit_decoder(c, 6, 256); }},
    {"exits", "sequence/T:4096/d:512", [](Call &c) { exits(c, ATTN_EXIT_SEQUENCE); }},
    {"exits", "multinomial/T:4096/d:512", [](Call &c) { exits(c, ATTN_EXIT_MULTINOMIAL); }},
    {"exits", "geometric/T:4096/d:512", [](Call &c) { exits(c, ATTN_EXIT_GEOMETRIC); }},
    {"exit_smooth", "sigma:100/T:1024/layers:6", [](Call &c) { exit_smooth(c, 100, 105); }},
    {"exit_smooth", "sigma:1e9/T:1024/layers:6", [](Call &c) { exit_smooth(c, 1e9f, 1024); }},
    {"exit_target", "T:4096/layers:12", exit_target},
    {"confidence", "softmax/n:64/V:32000", [](Call &c) { confidence(c, ATTN_CONFIDENCE_SOFTMAX); }},
    {"confidence", "cosine/n:4096/d:512", [](Call &c) { confidence(c, ATTN_CONFIDENCE_COSINE); }},
    {"confidence", "classifier/n:4096/d:512",
     [](Call &c) { confidence(c, ATTN_CONFIDENCE_CLASSIFIER); }},
    {"calm_threshold", "steps:1024", calm_threshold},
    {"calm_exit", "T:4096/layers:12", calm_exit},
    {"calm_calibrate", "n:4096/J:10", calm_calibrate},
};

}  // namespace

void register_depth(const Selection &s) { register_calls(s, entries); }
