/* bench/families/linear.cpp owns the entries of attention over feature maps. */

#include "functions.h"

namespace {

/* Orthogonal directions: Gram-Schmidt twice within blocks of kDim rows. */
void random_features(Call &c, int64_t m) {
  attn_tensor w = c.rows(1, m, kDim);
  c.flops = 4.0 * (double)(m * kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_random_features(w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_random_features_workspace(w, nullptr, ctx); };
}

/* The multiply-adds of the projection, or the bytes of a map without one. */
void features(Call &c, attn_feature_kind kind, int64_t directions, int is_key) {
  constexpr int64_t t = 4096;
  attn_feature_map map = {};
  map.kind = kind;
  if (directions) map.w = c.rows(1, directions, kDim);
  const int64_t m = attn_feature_count(&map, kDim);
  attn_tensor x = c.rows(1, t, kDim), y = c.rows(1, t, m);
  c.flops = 2.0 * (double)(t * directions * kDim);
  c.bytes = 4.0 * (double)(t * (kDim + m));
  c.run = [=](attn_ctx *ctx) { return attn_features(y, x, &map, is_key, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_features_workspace(y, x, &map, is_key, ctx); };
}

/* Attention over random features: projections, and the state written and read. */
void random_attention(Call &c, attn_feature_kind kind, int64_t directions, int causal) {
  const int64_t t = kLong / c.heads;
  attn_linear_params p = {};
  p.map.kind = kind;
  p.map.w = c.rows(1, directions, kDim);
  p.causal = causal ? ATTN_LINEAR_CAUSAL : ATTN_LINEAR_BIDIRECTIONAL;
  const int64_t m = attn_feature_count(&p.map, kDim);
  attn_tensor q = c.rows(c.heads, t, kDim), k = c.rows(c.heads, t, kDim),
              v = c.rows(c.heads, t, kDim);
  attn_tensor o = c.rows(c.heads, t, kDim);
  c.flops = 4.0 * (double)(t * kDim) * (double)(directions + m);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

/* The Linear Transformer and the rules beside it: the state written and read, and the triangles of
 * chunks. */
void linear(Call &c, int64_t t, attn_linear_rule rule, int causal) {
  attn_linear_params p = {};
  p.rule = rule;
  p.causal = causal ? ATTN_LINEAR_CAUSAL : ATTN_LINEAR_BIDIRECTIONAL;
  if (rule != ATTN_LINEAR_SUM) p.rate_const = 0.5f;
  attn_tensor q = c.rows(c.heads, t, kDim), k = c.rows(c.heads, t, kDim),
              v = c.rows(c.heads, t, kDim);
  attn_tensor o = c.rows(c.heads, t, kDim);
  c.flops = 4.0 * (double)(t * kDim * kDim);
  if (causal) c.flops += 65.0 * (double)(t * 2 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

/* One token: the bytes of S, read and written. */
void linear_step(Call &c, int64_t heads) {
  attn_linear_params p = {};
  p.causal = 1;
  p.state_bytes = attn_linear_state_bytes(&p, 1, heads, heads, kDim, kDim);
  p.state = c.numbers((int64_t)(p.state_bytes / sizeof(float)), 1);
  attn_ctx plain = {};
  attn_linear_begin(p.state, p.state_bytes, &p, 1, heads, heads, kDim, kDim, &plain);
  attn_tensor q = c.rows(heads, 1, kDim), k = c.rows(heads, 1, kDim), v = c.rows(heads, 1, kDim);
  attn_tensor o = c.rows(heads, 1, kDim);
  c.bytes = 8.0 * (double)(heads * kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

const CallEntry entries[] = {
    {"random_features", "m:256/d:64", [](Call &c) { random_features(c, 256); }},
    {"features", "elu1/T:4096/d:64", [](Call &c) { features(c, ATTN_FEATURES_ELU1, 0, 1); }},
    {"features", "softmax/m:256/T:4096/d:64",
     [](Call &c) { features(c, ATTN_FEATURES_SOFTMAX, 256, 0); }},
    {"features", "softmax/m:256/T:4096/d:64/keys",
     [](Call &c) { features(c, ATTN_FEATURES_SOFTMAX, 256, 1); }},
    {"features", "rfa/D:128/T:4096/d:64", [](Call &c) { features(c, ATTN_FEATURES_RFA, 128, 0); }},
    {"linear", "T:2048/d:64", [](Call &c) { linear(c, 2048, ATTN_LINEAR_SUM, 0); }},
    {"linear", "T:16384/d:64", [](Call &c) { linear(c, 16384, ATTN_LINEAR_SUM, 0); }},
    {"linear", "T:16384/d:64/causal", [](Call &c) { linear(c, 16384, ATTN_LINEAR_SUM, 1); }},
    {"linear", "T:16384/d:64/causal/decay",
     [](Call &c) { linear(c, 16384, ATTN_LINEAR_DECAY, 1); }},
    {"linear", "T:16384/d:64/causal/delta",
     [](Call &c) { linear(c, 16384, ATTN_LINEAR_DELTA, 1); }},
    /* one head's chain is divided at the price of work done twice, heads are not */
    {"linear", "T:2048/d:64/h:8",
     [](Call &c) { c.heads = 8, linear(c, 2048, ATTN_LINEAR_SUM, 0); }},
    {"linear", "T:2048/d:64/h:8/causal",
     [](Call &c) { c.heads = 8, linear(c, 2048, ATTN_LINEAR_SUM, 1); }},
    {"linear", "T:2048/d:64/h:8/causal/decay",
     [](Call &c) { c.heads = 8, linear(c, 2048, ATTN_LINEAR_DECAY, 1); }},
    {"linear", "T:2048/d:64/h:8/causal/delta",
     [](Call &c) { c.heads = 8, linear(c, 2048, ATTN_LINEAR_DELTA, 1); }},
    {"linear_step", "d:64/h:8", [](Call &c) { linear_step(c, 8); }},
    {"performer", "m:256/T:16384/d:64",
     [](Call &c) { random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 0); }},
    {"performer", "m:256/T:16384/d:64/causal",
     [](Call &c) { random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 1); }},
    {"performer", "m:256/T:2048/d:64/h:8/causal",
     [](Call &c) { c.heads = 8, random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 1); }},
    {"rfa", "D:128/T:16384/d:64", [](Call &c) { random_attention(c, ATTN_FEATURES_RFA, 128, 0); }},
    {"rfa", "D:128/T:16384/d:64/causal",
     [](Call &c) { random_attention(c, ATTN_FEATURES_RFA, 128, 1); }},
};

}  // namespace

void register_linear(const Selection &s) { register_calls(s, entries); }
