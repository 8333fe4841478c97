/* bench/families/heads.cpp owns the entries of what goes on between heads, and of spans that a
 * head predicts. */

#include "functions.h"

namespace {

void collaborative(Call &c, int64_t shared) {
  constexpr int64_t len = 512, wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), none = {};
  attn_collaborative_params p = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k}) *w = c.rows(1, wide, shared, 0.04f);
  for (attn_tensor *w : {&p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  p.w_c = c.rows(1, wide, heads, 0.04f);
  p.mix = c.rows(1, heads, shared);
  c.flops = 4.0 * (double)(len * wide * (wide + shared)) +
            2.0 * (double)(heads * len * len) * (double)(shared + kDim);
  c.run = [=](attn_ctx *ctx) { return attn_collaborative(y, x, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_collaborative_workspace(y, x, none, &p, ctx); };
}

/* Eight heads vote for eight capsules; the votes count, and three rounds. */
void capsules(Call &c, bool em) {
  constexpr int64_t len = 512, heads = 8, n = 8, rounds = 3;
  attn_tensor x = c.rows(heads, len, kDim), y = c.rows(1, len, n * kDim);
  attn_tensor w =
      attn_bhtd(c.numbers(heads * n * kDim * kDim, 0.1f), ATTN_F32, heads, n, kDim, kDim);
  attn_capsules_params p = {};
  attn_capsules_em_params q = {};
  p.w = q.w = w;
  q.eps = 0.1f;
  c.flops = (double)(len * heads * n * kDim) * (double)(2 * kDim + (em ? 10 : 4) * rounds);
  c.run = [=](attn_ctx *ctx) {
    return em ? attn_capsules_em(y, x, &q, ctx) : attn_capsules(y, x, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return em ? attn_capsules_em_workspace(y, x, &q, ctx) : attn_capsules_workspace(y, x, &p, ctx);
  };
}

/* Heads that meet: all multiply-adds count, those of the mixing too. */
void talking(Call &c, int64_t len, int causal) {
  constexpr int64_t heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  attn_tensor v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  attn_talking_params p = {};
  p.w_l = c.rows(1, heads, heads, 0.35f), p.w_w = c.rows(1, heads, heads, 0.35f);
  p.attention.causal = causal;
  double pairs = (double)len * (causal ? (double)(len + 1) / 2 : (double)len);
  c.flops = 4.0 * pairs * (double)(heads * (kDim + heads));
  c.run = [=](attn_ctx *ctx) { return attn_talking(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_talking_workspace(o, q, k, v, &p, ctx); };
}

/* Their gradients, counted as a gradient of attention is, three products of queries and keys and two of values, and three
 * of each mixing. */
void talking_backward(Call &c, int64_t len, int causal) {
  constexpr int64_t heads = 8;
  attn_tensor x[7];
  for (auto &t : x) t = c.rows(heads, len, kDim);
  attn_talking_params p = {};
  attn_talking_gradients g = {};
  p.w_l = c.rows(1, heads, heads, 0.35f), p.w_w = c.rows(1, heads, heads, 0.35f);
  g.d_w_l = c.rows(1, heads, heads), g.d_w_w = c.rows(1, heads, heads);
  p.attention.causal = causal;
  double pairs = (double)len * (causal ? (double)(len + 1) / 2 : (double)len);
  c.flops = 2.0 * pairs * (double)(heads * (5 * kDim + 6 * heads));
  c.run = [=](attn_ctx *ctx) {
    return attn_talking_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_talking_backward_workspace(x[0], x[1], x[2], x[3], x[4], x[5], x[6], &p, &g, ctx);
  };
}

/* Losses over heads: the scores count, which are what takes time. */
void disagreement(Call &c) {
  constexpr int64_t heads = 8, len = 1024;
  attn_disagreement_params p = {};
  p.v = c.rows(heads, len, kDim), p.o = c.rows(heads, len, kDim);
  p.q = c.rows(heads, len, kDim), p.k = c.rows(heads, len, kDim);
  double *d = (double *)(void *)c.numbers(6, 1);
  c.flops = 2.0 * (double)(heads * len * len * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_disagreement(d, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_disagreement_workspace(d, &p, ctx); };
}

void guided_loss(Call &c) {
  static const attn_target next = {ATTN_TARGET_OFFSET, 0, 1, nullptr, nullptr, 0, 0, 0};
  static const attn_target first = {ATTN_TARGET_FIRST, 0, 0, nullptr, nullptr, 0, 0, 0};
  static const int32_t head[] = {0, 1, 2, 3};
  static const attn_target_group group[] = {{&next, 1, head, 2}, {&first, 1, head + 2, 2}};
  constexpr int64_t heads = 8, len = 1024;
  attn_guided_params p = {};
  p.q = c.rows(heads, len, kDim), p.k = c.rows(heads, len, kDim);
  p.group = group, p.groups = 2;
  double *loss = (double *)(void *)c.numbers(2, 1);
  c.flops = 2.0 * (double)(heads * len * len * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_guided_loss(loss, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_guided_loss_workspace(loss, &p, ctx); };
}

void span_predict(Call &c) {
  constexpr int64_t len = 4096, width = 512, heads = 8;
  attn_tensor x = c.rows(1, len, width);
  float *z = c.numbers(heads * len, 1), *v = c.numbers(heads * width, 0.05f);
  c.flops = 2.0 * (double)(heads * len * width);
  c.run = [=](attn_ctx *ctx) { return attn_span_predict(z, x, v, nullptr, heads, 1024, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_span_predict_workspace(z, x, v, nullptr, heads, 1024, ctx);
  };
}

const CallEntry entries[] = {
    {"collaborative", "T:512/shared:256/d:64/h:8", [](Call &c) { collaborative(c, 256); }},
    {"capsules", "T:512/d:64/h:8/n:8", [](Call &c) { capsules(c, false); }},
    {"capsules_em", "T:512/d:64/h:8/n:8", [](Call &c) { capsules(c, true); }},
    {"talking", "T:1024/d:64/h:8", [](Call &c) { talking(c, 1024, 0); }},
    {"talking", "T:1024/d:64/h:8/causal", [](Call &c) { talking(c, 1024, 1); }},
    {"talking", "T:4096/d:64/h:8", [](Call &c) { talking(c, 4096, 0); }},
    {"talking_backward", "T:1024/d:64/h:8", [](Call &c) { talking_backward(c, 1024, 0); }},
    {"talking_backward", "T:1024/d:64/h:8/causal", [](Call &c) { talking_backward(c, 1024, 1); }},
    {"disagreement", "T:1024/d:64/h:8", disagreement},
    {"guided_loss", "T:1024/d:64/h:8", guided_loss},
    {"span_predict", "T:4096/d:512/h:8", span_predict},
};

}  // namespace

void register_heads(const Selection &s) { register_calls(s, entries); }
