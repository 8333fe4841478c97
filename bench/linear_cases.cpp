/* linear_cases.cpp owns the entries of attention over feature maps and of layers with few learned rows
 * (Set Transformer, Luna). */

#include "functions.h"

namespace {

/* --- Sets and Luna: all multiply-adds count, those of the weights too. 64 inducing points, seeds or
 * packed rows. */

constexpr int64_t kFew = 64, kModel = 512;

attn_mab_params mab_weights(Call &c) {
  attn_mab_params p = {};
  p.heads = 8;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o, &p.ff.w_1})
    *w = c.rows(1, kModel, kModel, 0.04f);
  return p;
}

/* A block of n rows that reads m. */
double mab_flops(int64_t n, int64_t m) {
  return 2.0 * (double)(3 * n + 2 * m) * (double)(kModel * kModel) +
         4.0 * (double)(n * m) * (double)kModel;
}

void mab(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), o = c.rows(1, len, kModel);
  attn_mab_params p = mab_weights(c);
  c.flops = mab_flops(len, len);
  c.run = [=](attn_ctx *ctx) { return attn_mab(o, x, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_mab_workspace(o, x, x, &p, ctx); };
}

void isab(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), o = c.rows(1, len, kModel);
  attn_tensor points = c.rows(1, kFew, kModel);
  attn_isab_params p = {mab_weights(c), mab_weights(c)};
  c.flops = mab_flops(kFew, len) + mab_flops(len, kFew);
  c.run = [=](attn_ctx *ctx) { return attn_isab(o, x, points, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_isab_workspace(o, x, points, &p, ctx); };
}

void pma(Call &c, int64_t len) {
  attn_tensor z = c.rows(1, len, kModel), seeds = c.rows(1, kFew, kModel);
  attn_tensor o = c.rows(1, kFew, kModel);
  attn_pma_params p = {};
  p.block = mab_weights(c);
  c.flops = mab_flops(kFew, len);
  c.run = [=](attn_ctx *ctx) { return attn_pma(o, z, seeds, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_pma_workspace(o, z, seeds, &p, ctx); };
}

attn_luna_params luna_weights(Call &c) {
  attn_luna_params p = {};
  p.heads = 8;
  for (attn_tensor *w : {&p.w_pq, &p.w_pk, &p.w_q, &p.w_k, &p.w_o})
    *w = c.rows(1, kModel, kModel, 0.04f);
  p.w_pv = p.w_pk;
  p.w_v = p.w_k;
  return p;
}

double luna_flops(int64_t len) {
  return 2.0 * (double)(3 * len + 2 * kFew) * (double)(kModel * kModel) +
         8.0 * (double)(len * kFew) * (double)kModel;
}

void luna(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), y_x = c.rows(1, len, kModel), none = {};
  attn_tensor few = c.rows(1, kFew, kModel), y_p = c.rows(1, kFew, kModel);
  attn_luna_params p = luna_weights(c);
  c.flops = luna_flops(len);
  c.run = [=](attn_ctx *ctx) { return attn_luna(y_x, y_p, x, few, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_luna_workspace(y_x, y_p, x, few, none, &p, ctx);
  };
}

void luna_layer(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), x_next = c.rows(1, len, kModel), none = {};
  attn_tensor few = c.rows(1, kFew, kModel), p_next = c.rows(1, kFew, kModel);
  attn_luna_layer_params p = {};
  p.attention = luna_weights(c);
  p.ff.w_1 = c.rows(1, kModel, 4 * kModel, 0.04f);
  p.ff.w_2 = c.rows(1, 4 * kModel, kModel, 0.02f);
  c.flops = luna_flops(len) + 16.0 * (double)len * (double)(kModel * kModel);
  c.run = [=](attn_ctx *ctx) { return attn_luna_layer(x_next, p_next, x, few, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_luna_layer_workspace(x_next, p_next, x, few, none, &p, ctx);
  };
}

/* Work as the paper counts it: two products with each of KA and VA, and alpha. */
void luna_causal(Call &c, int64_t heads, int64_t len) {
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim),
              v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim),
              few = c.rows(heads, kFew, kDim);
  attn_luna_causal_params p = {};
  c.flops = (double)(heads * len * kFew) * (4.0 * 2 * kDim + 2.0 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_luna_causal(o, q, k, v, few, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_luna_causal_workspace(o, q, k, v, few, &p, ctx);
  };
}

/* --- Feature maps. */

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
  constexpr int64_t t = 16384;
  attn_linear_params p = {};
  p.map.kind = kind;
  p.map.w = c.rows(1, directions, kDim);
  p.causal = causal;
  const int64_t m = attn_feature_count(&p.map, kDim);
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim);
  attn_tensor o = c.rows(1, t, kDim);
  c.flops = 4.0 * (double)(t * kDim) * (double)(directions + m);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

/* The Linear Transformer and the rules beside it: the state written and read, and the triangles of
 * chunks. */
void linear(Call &c, int64_t t, attn_linear_rule rule, int causal) {
  attn_linear_params p = {};
  p.rule = rule;
  p.causal = causal;
  if (rule != ATTN_LINEAR_SUM) p.rate_const = 0.5f;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim);
  attn_tensor o = c.rows(1, t, kDim);
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
    {"linear_step", "d:64/h:8", [](Call &c) { linear_step(c, 8); }},
    {"performer", "m:256/T:16384/d:64",
     [](Call &c) { random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 0); }},
    {"performer", "m:256/T:16384/d:64/causal",
     [](Call &c) { random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 1); }},
    {"rfa", "D:128/T:16384/d:64", [](Call &c) { random_attention(c, ATTN_FEATURES_RFA, 128, 0); }},
    {"rfa", "D:128/T:16384/d:64/causal",
     [](Call &c) { random_attention(c, ATTN_FEATURES_RFA, 128, 1); }},
    {"mab", "T:1024/dm:512/h:8", [](Call &c) { mab(c, 1024); }},
    {"isab", "T:4096/m:64/dm:512/h:8", [](Call &c) { isab(c, 4096); }},
    {"pma", "T:4096/k:64/dm:512/h:8", [](Call &c) { pma(c, 4096); }},
    {"luna", "T:4096/l:64/dm:512/h:8", [](Call &c) { luna(c, 4096); }},
    {"luna_layer", "T:4096/l:64/dm:512/h:8", [](Call &c) { luna_layer(c, 4096); }},
    {"luna_causal", "T:16384/l:64/d:64", [](Call &c) { luna_causal(c, 1, 16384); }},
};

}  // namespace

void register_linear_calls(const Selection &sel) { register_calls(sel, entries); }
