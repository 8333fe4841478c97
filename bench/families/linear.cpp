/* bench/families/linear.cpp owns the entries of attention over feature maps and over decaying states. */

#include <cmath>

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

/* Their gradient: the projection and the way back, or the bytes. */
void features_backward(Call &c, attn_feature_kind kind, int64_t directions,
                       attn_feature_norm norm) {
  constexpr int64_t t = 4096;
  attn_feature_map map = {};
  map.kind = kind, map.norm = norm;
  if (directions) map.w = c.rows(1, directions, kDim);
  const int64_t m = attn_feature_count(&map, kDim);
  attn_tensor x = c.rows(1, t, kDim), d_x = c.rows(1, t, kDim), d_y = c.rows(1, t, m);
  c.flops = 4.0 * (double)(t * directions * kDim);
  c.bytes = 4.0 * (double)(t * (2 * kDim + m));
  c.run = [=](attn_ctx *ctx) { return attn_features_backward(d_x, d_y, x, &map, 1, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_features_backward_workspace(d_x, d_y, x, &map, 1, nullptr, ctx);
  };
}

/* Gradients of attention over a linear state: 12 m dv flops a token, and 64 a column of six triangles. */
void linear_backward(Call &c, attn_linear_rule rule, int64_t directions, int causal) {
  constexpr int64_t t = 4096;
  attn_linear_params p = {};
  attn_linear_gradients g = {};
  p.rule = rule;
  p.causal = causal ? ATTN_LINEAR_CAUSAL : ATTN_LINEAR_BIDIRECTIONAL;
  if (directions) p.map.kind = ATTN_FEATURES_SOFTMAX, p.map.w = c.rows(1, directions, kDim);
  if (rule != ATTN_LINEAR_SUM) p.rate_const = 0.9f, g.d_rate = c.rows(1, 1, 1);
  const int64_t m = attn_feature_count(&p.map, kDim);
  attn_tensor q = c.rows(c.heads, t, kDim), k = c.rows(c.heads, t, kDim);
  attn_tensor v = c.rows(c.heads, t, kDim), d_o = c.rows(c.heads, t, kDim);
  attn_tensor d_q = c.rows(c.heads, t, kDim), d_k = c.rows(c.heads, t, kDim);
  attn_tensor d_v = c.rows(c.heads, t, kDim);
  c.flops = (double)(c.heads * t) *
            (12.0 * (double)(m * kDim) + (causal ? 64.0 * 3 * (double)(m + kDim) : 0.0));
  c.run = [=](attn_ctx *ctx) {
    return attn_linear_backward(d_q, d_k, d_v, d_o, q, k, v, &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_linear_backward_workspace(d_q, d_k, d_v, d_o, q, k, v, &p, &g, ctx);
  };
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

/* Decays of 0.9 to 1 and what a rule reads beside q, k, v. */
attn_recurrent_params recurrent_params(Call &c, attn_recurrent_rule rule, int64_t t, int64_t dk) {
  attn_recurrent_params p = {};
  p.rule = rule;
  p.l2norm_qk = rule == ATTN_RECURRENT_DELTA || rule == ATTN_RECURRENT_GATED_DELTA ||
                rule == ATTN_RECURRENT_KDA; /* whose keys are unit vectors in their papers */
  const int each = rule == ATTN_RECURRENT_GLA || rule == ATTN_RECURRENT_KDA ||
                   rule == ATTN_RECURRENT_RWKV6 || rule == ATTN_RECURRENT_RWKV7;
  const int64_t width = each ? dk : 1;
  if (each || rule == ATTN_RECURRENT_GATED_DELTA || rule == ATTN_RECURRENT_MLSTM) {
    p.decay = c.rows(c.heads, t, width);
    p.form = ATTN_RECURRENT_FACTOR;
    auto *w = static_cast<float *>(p.decay.data);
    for (int64_t i = 0; i < c.heads * t * width; i++)
      w[i] = 1.0f - 0.1f * std::fabs(w[i]) / (1.0f + std::fabs(w[i]));
  }
  if (rule == ATTN_RECURRENT_MAMBA2) {
    p.dt = c.rows(c.heads, t, 1);
    p.a_log = c.numbers(c.heads, 1);
  }
  if (rule == ATTN_RECURRENT_RWKV6) p.bonus = c.rows(c.heads, 1, dk);
  if (rule == ATTN_RECURRENT_MLSTM) p.gate = c.rows(c.heads, t, 1);
  if (rule == ATTN_RECURRENT_RWKV7) {
    p.a = c.rows(c.heads, t, dk), p.b = c.rows(c.heads, t, dk);
    auto *a = static_cast<float *>(p.a.data), *b = static_cast<float *>(p.b.data);
    for (int64_t i = 0; i < c.heads * t * dk; i++) a[i] *= 0.05f, b[i] *= 0.1f;
  }
  return p;
}

/* The products of a chunk of 64: S read and written, triangles of 65 / 2 keys a row; a delta rule reads S once more and
 * has a triangle of keys and one of values beside that, DPLR's form writes a second rank. */
void recurrent(Call &c, attn_recurrent_rule rule, int64_t t) {
  constexpr int64_t d = 128;
  const attn_recurrent_params p = recurrent_params(c, rule, t, d);
  attn_tensor q = c.rows(c.heads, t, d), k = c.rows(c.heads, t, d), v = c.rows(c.heads, t, d);
  attn_tensor o = c.rows(c.heads, t, d);
  const int delta = rule == ATTN_RECURRENT_DELTA || rule == ATTN_RECURRENT_GATED_DELTA ||
                    rule == ATTN_RECURRENT_KDA;
  const double states = rule == ATTN_RECURRENT_RWKV7 ? 4 : delta ? 3 : 2;
  const double triangles = rule == ATTN_RECURRENT_RWKV7 ? 4 : delta ? 2 : 1;
  c.flops = 2.0 * (double)t * (states * d * d + triangles * 65.0 / 2 * 2 * d);
  c.run = [=](attn_ctx *ctx) { return attn_recurrent(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_recurrent_workspace(o, q, k, v, &p, ctx); };
}

/* All gradients but of what a rule reads beside q, k, v, token by token: 9 products a state, with a and b 17; by levels each
 * has a state. */
void recurrent_backward(Call &c, attn_recurrent_rule rule, int64_t t, int64_t d,
                        int64_t levels = 0) {
  attn_recurrent_params p = recurrent_params(c, rule, t, d);
  if (levels) p.lambda = c.rows(c.heads, t, levels);
  attn_tensor q = c.rows(c.heads, t, d), k = c.rows(c.heads, t, d), v = c.rows(c.heads, t, d);
  attn_tensor d_q = c.rows(c.heads, t, d), d_k = c.rows(c.heads, t, d);
  attn_tensor d_v = c.rows(c.heads, t, d), d_o = c.rows(c.heads, t, d);
  const int reads = rule == ATTN_RECURRENT_GATED_DELTA || rule == ATTN_RECURRENT_KDA;
  c.flops = 2.0 * (double)(c.heads * t) * (reads ? 17.0 : 9.0) * (double)(d * d) *
            (levels ? (double)levels : 1.0);
  c.run = [=](attn_ctx *ctx) {
    return attn_recurrent_backward(d_q, d_k, d_v, d_o, q, k, v, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_recurrent_backward_workspace(d_q, d_k, d_v, d_o, q, k, v, &p, nullptr, ctx);
  };
}

/* The same by levels, whose weights are near 1, beside the products of the plain rule: each level before a chunk is read,
 * a delta rule's read and written too; of T / 64 chunks half have a level of a size. */
void log_linear(Call &c, attn_recurrent_rule rule, int64_t t) {
  constexpr int64_t d = 128;
  attn_recurrent_params p = recurrent_params(c, rule, t, d);
  int64_t levels = 2;
  while ((t - 1) >> (levels - 1)) levels++;
  p.lambda = c.rows(c.heads, t, levels);
  attn_tensor q = c.rows(c.heads, t, d), k = c.rows(c.heads, t, d), v = c.rows(c.heads, t, d);
  attn_tensor o = c.rows(c.heads, t, d);
  const int delta = rule == ATTN_RECURRENT_GATED_DELTA || rule == ATTN_RECURRENT_KDA;
  const double read = (double)(levels - 7) / 2;
  c.flops =
      2.0 * (double)t * ((1 + (delta ? 3 : 1) * read) * d * d + (delta ? 5 : 1) * 65.0 / 2 * 2 * d);
  c.run = [=](attn_ctx *ctx) { return attn_recurrent(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_recurrent_workspace(o, q, k, v, &p, ctx); };
}

/* One token of 32 heads, in place: the bytes of S, read and written. */
void recurrent_token(Call &c, attn_recurrent_rule rule) {
  constexpr int64_t d = 128;
  c.heads = 32;
  attn_recurrent_params p = recurrent_params(c, rule, 1, d);
  p.initial_state = p.final_state = c.rows(c.heads, d, d);
  if (rule == ATTN_RECURRENT_MLSTM) {
    p.initial_n = p.final_n = c.rows(c.heads, 1, d);
    p.initial_m = p.final_m = c.rows(c.heads, 1, 1);
  }
  attn_tensor q = c.rows(c.heads, 1, d), k = c.rows(c.heads, 1, d), v = c.rows(c.heads, 1, d);
  attn_tensor o = c.rows(c.heads, 1, d);
  c.bytes = 8.0 * (double)(c.heads * d * d);
  c.run = [=](attn_ctx *ctx) { return attn_recurrent(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_recurrent_workspace(o, q, k, v, &p, ctx); };
}

/* What stands around a state: the bytes that are read and written. */
void log_decay(Call &c) {
  constexpr int64_t t = 4096;
  attn_log_decay_params p = {};
  p.channels = 1;
  p.a_log = c.numbers(kDim, 1), p.dt_bias = c.numbers(kDim, 1);
  attn_tensor x = c.rows(1, t, kDim), y = c.rows(1, t, kDim);
  c.bytes = 8.0 * (double)(t * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_log_decay(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_log_decay_workspace(y, x, &p, ctx); };
}

void short_convolve(Call &c) {
  constexpr int64_t t = 4096, n = 256;
  attn_tensor x = c.rows(1, t, n), y = c.rows(1, t, n), w = c.rows(1, 4, n);
  c.flops = 8.0 * (double)(t * n);
  c.bytes = 8.0 * (double)(t * n);
  c.run = [=](attn_ctx *ctx) { return attn_short_convolve(y, x, w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_short_convolve_workspace(y, x, w, nullptr, ctx);
  };
}

/* The bytes of rows; a state is 7 operations. */
void damped_ema(Call &c, int64_t dims, int both) {
  constexpr int64_t t = 4096, n = 256;
  attn_tensor x = c.rows(1, t, n), y = c.rows(1, t, n);
  attn_damped_ema_params p = {};
  float *alpha = c.numbers(n * dims, 1), *delta = c.numbers(n * dims, 1);
  for (int64_t i = 0; i < n * dims; i++)
    alpha[i] = 1 / (1 + std::exp(-alpha[i])), delta[i] = 1 / (1 + std::exp(-delta[i]));
  p.dims = dims, p.forward.alpha = alpha, p.forward.delta = delta;
  p.forward.beta = c.numbers(n * dims, 1), p.forward.eta = c.numbers(n * dims, 1);
  p.omega = c.numbers(n, 1);
  if (both) p.backward = p.forward;
  c.flops = (both ? 20.0 : 10.0) * (double)(t * n * dims);
  c.bytes = 8.0 * (double)(t * n);
  c.run = [=](attn_ctx *ctx) { return attn_damped_ema(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_damped_ema_workspace(y, x, &p, ctx); };
}

void gated_norm(Call &c) {
  constexpr int64_t t = 4096, n = 128;
  attn_tensor x = c.rows(1, t, n), y = c.rows(1, t, n), z = c.rows(1, t, n);
  c.bytes = 12.0 * (double)(t * n);
  c.run = [=](attn_ctx *ctx) { return attn_gated_norm(y, x, z, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gated_norm_workspace(y, x, z, nullptr, ctx); };
}

const CallEntry entries[] = {
    {"random_features", "m:256/d:64", [](Call &c) { random_features(c, 256); }},
    {"linear_backward", "sum/causal/T:4096/d:64",
     [](Call &c) { linear_backward(c, ATTN_LINEAR_SUM, 0, 1); }},
    {"linear_backward", "sum/T:4096/d:64",
     [](Call &c) { linear_backward(c, ATTN_LINEAR_SUM, 0, 0); }},
    {"linear_backward", "decay/causal/T:4096/d:64",
     [](Call &c) { linear_backward(c, ATTN_LINEAR_DECAY, 0, 1); }},
    {"linear_backward", "delta/causal/T:4096/d:64",
     [](Call &c) { linear_backward(c, ATTN_LINEAR_DELTA, 0, 1); }},
    {"linear_backward", "softmax/m:256/causal/T:4096/d:64",
     [](Call &c) { linear_backward(c, ATTN_LINEAR_SUM, 256, 1); }},
    {"features_backward", "elu1/T:4096/d:64",
     [](Call &c) { features_backward(c, ATTN_FEATURES_ELU1, 0, ATTN_FEATURE_NORM_NONE); }},
    {"features_backward", "softmax/m:256/T:4096/d:64",
     [](Call &c) { features_backward(c, ATTN_FEATURES_SOFTMAX, 256, ATTN_FEATURE_NORM_NONE); }},
    {"features_backward", "softmax/m:256/T:4096/d:64/sum",
     [](Call &c) { features_backward(c, ATTN_FEATURES_SOFTMAX, 256, ATTN_FEATURE_NORM_SUM); }},
    {"features_backward", "rfa/D:128/T:4096/d:64",
     [](Call &c) { features_backward(c, ATTN_FEATURES_RFA, 128, ATTN_FEATURE_NORM_NONE); }},
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
    {"recurrent", "retention/T:4096/d:128",
     [](Call &c) { recurrent(c, ATTN_RECURRENT_RETENTION, 4096); }},
    {"recurrent_backward", "gla/T:2048/d:128",
     [](Call &c) { recurrent_backward(c, ATTN_RECURRENT_GLA, 2048, 128); }},
    {"recurrent_backward", "gla/T:2048/d:64",
     [](Call &c) { recurrent_backward(c, ATTN_RECURRENT_GLA, 2048, 64); }},
    {"recurrent_backward", "gated_delta/T:2048/d:128",
     [](Call &c) { recurrent_backward(c, ATTN_RECURRENT_GATED_DELTA, 2048, 128); }},
    {"recurrent_backward", "mlstm/T:2048/d:128",
     [](Call &c) { recurrent_backward(c, ATTN_RECURRENT_MLSTM, 2048, 128); }},
    {"recurrent_backward", "gla/T:2048/d:128/levels:12",
     [](Call &c) { recurrent_backward(c, ATTN_RECURRENT_GLA, 2048, 128, 12); }},
    {"recurrent", "gla/T:2048/d:128", [](Call &c) { recurrent(c, ATTN_RECURRENT_GLA, 2048); }},
    {"recurrent", "gla/T:4096/d:128", [](Call &c) { recurrent(c, ATTN_RECURRENT_GLA, 4096); }},
    {"recurrent", "mamba2/T:4096/d:128",
     [](Call &c) { recurrent(c, ATTN_RECURRENT_MAMBA2, 4096); }},
    {"recurrent", "gated_delta/T:2048/d:128",
     [](Call &c) { recurrent(c, ATTN_RECURRENT_GATED_DELTA, 2048); }},
    {"recurrent", "gated_delta/T:4096/d:128",
     [](Call &c) { recurrent(c, ATTN_RECURRENT_GATED_DELTA, 4096); }},
    {"recurrent", "kda/T:4096/d:128", [](Call &c) { recurrent(c, ATTN_RECURRENT_KDA, 4096); }},
    {"recurrent", "rwkv6/T:4096/d:128", [](Call &c) { recurrent(c, ATTN_RECURRENT_RWKV6, 4096); }},
    {"recurrent", "rwkv7/T:4096/d:128", [](Call &c) { recurrent(c, ATTN_RECURRENT_RWKV7, 4096); }},
    {"recurrent", "mlstm/T:4096/d:128", [](Call &c) { recurrent(c, ATTN_RECURRENT_MLSTM, 4096); }},
    {"log_linear", "gla/T:1024/d:128", [](Call &c) { log_linear(c, ATTN_RECURRENT_GLA, 1024); }},
    {"log_linear", "gla/T:2048/d:128", [](Call &c) { log_linear(c, ATTN_RECURRENT_GLA, 2048); }},
    {"log_linear", "gla/T:4096/d:128", [](Call &c) { log_linear(c, ATTN_RECURRENT_GLA, 4096); }},
    {"log_linear", "gla/T:8192/d:128", [](Call &c) { log_linear(c, ATTN_RECURRENT_GLA, 8192); }},
    {"log_linear", "mamba2/T:4096/d:128",
     [](Call &c) { log_linear(c, ATTN_RECURRENT_MAMBA2, 4096); }},
    {"log_linear", "gated_delta/T:4096/d:128",
     [](Call &c) { log_linear(c, ATTN_RECURRENT_GATED_DELTA, 4096); }},
    {"recurrent_token", "gla/d:128/h:32", [](Call &c) { recurrent_token(c, ATTN_RECURRENT_GLA); }},
    {"recurrent_token", "gated_delta/d:128/h:32",
     [](Call &c) { recurrent_token(c, ATTN_RECURRENT_GATED_DELTA); }},
    {"recurrent_token", "kda/d:128/h:32", [](Call &c) { recurrent_token(c, ATTN_RECURRENT_KDA); }},
    {"recurrent_token", "mlstm/d:128/h:32",
     [](Call &c) { recurrent_token(c, ATTN_RECURRENT_MLSTM); }},
    {"log_decay", "channels/T:4096/d:64", log_decay},
    {"short_convolve", "kernel:4/T:4096/n:256", short_convolve},
    {"damped_ema", "N:16/T:4096/n:256", [](Call &c) { damped_ema(c, 16, 0); }},
    {"damped_ema", "N:16/T:4096/n:256/both", [](Call &c) { damped_ema(c, 16, 1); }},
    {"gated_norm", "silu/T:4096/d:128", gated_norm},
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
