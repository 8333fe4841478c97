/* head_cases.cpp owns the entries of what goes on between heads. */

#include "functions.h"

namespace {

/* From model rows to model rows; projections and attention count. */
void multihead(Call &c, int64_t len) {
  constexpr int64_t wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), none = {};
  attn_multihead_params p = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  c.flops = 8.0 * (double)(len * wide * wide) + 4.0 * (double)(len * len * wide);
  c.run = [=](attn_ctx *ctx) { return attn_multihead(y, x, none, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_multihead_workspace(y, x, none, none, &p, ctx); };
}

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
  p.scores.causal = causal;
  double pairs = (double)len * (causal ? (double)(len + 1) / 2 : (double)len);
  c.flops = 4.0 * pairs * (double)(heads * (kDim + heads));
  c.run = [=](attn_ctx *ctx) { return attn_talking(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_talking_workspace(o, q, k, v, &p, ctx); };
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

const CallEntry entries[] = {
    {"multihead", "T:512/d:64/h:8", [](Call &c) { multihead(c, 512); }},
    {"multihead", "T:2048/d:64/h:8", [](Call &c) { multihead(c, 2048); }},
    {"collaborative", "T:512/shared:256/d:64/h:8", [](Call &c) { collaborative(c, 256); }},
    {"capsules", "T:512/d:64/h:8/n:8", [](Call &c) { capsules(c, false); }},
    {"capsules_em", "T:512/d:64/h:8/n:8", [](Call &c) { capsules(c, true); }},
    {"talking", "T:1024/d:64/h:8", [](Call &c) { talking(c, 1024, 0); }},
    {"talking", "T:1024/d:64/h:8/causal", [](Call &c) { talking(c, 1024, 1); }},
    {"talking", "T:4096/d:64/h:8", [](Call &c) { talking(c, 4096, 0); }},
    {"disagreement", "T:1024/d:64/h:8", disagreement},
    {"guided_loss", "T:1024/d:64/h:8", guided_loss},
};

}  // namespace

void register_head_calls(const Selection &sel) { register_calls(sel, entries); }
