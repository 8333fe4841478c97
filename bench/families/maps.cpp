/* bench/families/maps.cpp owns the entries of score maps that come from elsewhere than the pairs
 * at hand. */

#include "functions.h"

namespace {

/* Layer after layer: previous scores in, scores out. H heads, all pairs. */
void score_map_call(Call &c, int kind, int causal) {
  constexpr int64_t len = 1024, heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  attn_tensor v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  attn_tensor before = c.rows(heads, len, len), after = c.rows(heads, len, len);
  c.pairs(heads * len * len);
  if (kind == 0) {
    attn_score_mix_params p = {};
    p.previous = before;
    p.scores = after;
    p.previous_weight = 0.5f;
    p.attention.causal = causal;
    c.run = [=](attn_ctx *ctx) { return attn_score_mix(o, q, k, v, &p, ctx); };
    c.size = [=](const attn_ctx *ctx) { return attn_score_mix_workspace(o, q, k, v, &p, ctx); };
  } else if (kind == 1) {
    attn_realformer_params p = {};
    p.previous = before;
    p.scores = after;
    p.attention.causal = causal;
    c.run = [=](attn_ctx *ctx) { return attn_realformer(o, q, k, v, &p, ctx); };
    c.size = [=](const attn_ctx *ctx) { return attn_realformer_workspace(o, q, k, v, &p, ctx); };
  } else {
    attn_predictive_params p = {};
    p.previous = before;
    p.scores = after;
    p.kernel = attn_bhtd(c.numbers(heads * heads * 9, 0.1f), ATTN_F32, heads, heads, 3, 3);
    p.attention.causal = causal;
    p.rule = causal ? ATTN_PREDICTIVE_CAUSAL : ATTN_PREDICTIVE_SAME;
    p.evolving = kind == 3;
    c.flops += 2.0 * 9 * (double)(heads * heads) * (double)(len * len);
    c.run = [=](attn_ctx *ctx) { return attn_predictive(o, q, k, v, &p, ctx); };
    c.size = [=](const attn_ctx *ctx) { return attn_predictive_workspace(o, q, k, v, &p, ctx); };
  }
}

void map_apply(Call &c, int causal) {
  constexpr int64_t len = 1024, heads = 8;
  attn_tensor map = c.rows(heads, len, len), v = c.rows(heads, len, kDim);
  attn_tensor o = c.rows(heads, len, kDim);
  attn_map_apply_params p = {};
  p.causal = causal;
  c.flops = 2.0 * (double)(heads * len * kDim) * (double)(causal ? (len + 1) / 2 : len);
  c.run = [=](attn_ctx *ctx) { return attn_map_apply(o, map, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_map_apply_workspace(o, map, v, &p, ctx); };
}

/* Two layers of one map. */
void lazyformer(Call &c) {
  constexpr int64_t len = 1024, heads = 8;
  const attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  const std::array<attn_tensor, 2> v = {c.rows(heads, len, kDim), c.rows(heads, len, kDim)};
  const std::array<attn_tensor, 2> o = {c.rows(heads, len, kDim), c.rows(heads, len, kDim)};
  attn_lazyformer_params p = {};
  c.flops = 6.0 * (double)(heads * len * len * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_lazyformer(o.data(), &q, &k, v.data(), 2, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_lazyformer_workspace(o.data(), &q, &k, v.data(), 2, &p, ctx);
  };
}

/* Scores without pairs of tokens; all multiply-adds count, the networks' too. */
void synthesizer(Call &c, const std::vector<attn_synthesizer_kind> &kinds) {
  constexpr int64_t len = 2048, heads = 4, parts = 64;
  attn_tensor v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  std::vector<attn_synthesizer_source> sources;
  const double rows = (double)(heads * len), pairs = rows * (double)len;
  c.flops = 2.0 * pairs * kDim;
  auto net = [&](int64_t n) {
    attn_synthesizer_net f = {};
    f.w_1 = c.rows(heads, kDim, kDim, 0.1f);
    f.w_2 = c.rows(heads, kDim, n, 0.1f);
    c.flops += 2.0 * rows * kDim * (double)(kDim + n);
    return f;
  };
  for (attn_synthesizer_kind kind : kinds) {
    attn_synthesizer_source s = {};
    s.kind = kind;
    if (kind == ATTN_SYNTHESIZER_RANDOM) {
      s.r = c.rows(heads, len, len);
    } else if (kind == ATTN_SYNTHESIZER_RANDOM_FACTORED) {
      s.r1 = c.rows(heads, len, 8);
      s.r2 = c.rows(heads, len, 8);
      c.flops += 2.0 * pairs * 8;
    } else if (kind == ATTN_SYNTHESIZER_DOT) {
      s.q = c.rows(heads, len, kDim);
      s.k = c.rows(heads, len, kDim);
      c.flops += 2.0 * pairs * kDim;
    } else {
      const bool factored = kind == ATTN_SYNTHESIZER_DENSE_FACTORED;
      s.x = c.rows(heads, len, kDim);
      s.net = net(factored ? parts : len);
      if (factored) s.net_b = net(len / parts);
    }
    sources.push_back(s);
  }
  float *alpha = c.numbers((int64_t)kinds.size(), 0);
  for (size_t i = 0; i < kinds.size(); i++) alpha[i] = 1.0f / (float)kinds.size();
  c.run = [=](attn_ctx *ctx) {
    attn_synthesizer_params p = {};
    p.sources = sources.data(), p.count = p.weights = (int64_t)sources.size();
    p.alpha = alpha;
    return attn_synthesizer(o, v, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    attn_synthesizer_params p = {};
    p.sources = sources.data(), p.count = p.weights = (int64_t)sources.size();
    p.alpha = alpha;
    return attn_synthesizer_workspace(o, v, &p, ctx);
  };
}

const CallEntry entries[] = {
    {"synthesizer", "T:2048/d:64/h:4/random",
     [](Call &c) { synthesizer(c, {ATTN_SYNTHESIZER_RANDOM}); }},
    {"synthesizer", "T:2048/d:64/h:4/random_factored",
     [](Call &c) { synthesizer(c, {ATTN_SYNTHESIZER_RANDOM_FACTORED}); }},
    {"synthesizer", "T:2048/d:64/h:4/dense",
     [](Call &c) { synthesizer(c, {ATTN_SYNTHESIZER_DENSE}); }},
    {"synthesizer", "T:2048/d:64/h:4/dense_factored",
     [](Call &c) { synthesizer(c, {ATTN_SYNTHESIZER_DENSE_FACTORED}); }},
    {"synthesizer", "T:2048/d:64/h:4/dense+dot",
     [](Call &c) {
       synthesizer(c, {ATTN_SYNTHESIZER_DENSE, ATTN_SYNTHESIZER_DOT});
     }},
    {"score_mix", "T:1024/d:64/h:8", [](Call &c) { score_map_call(c, 0, 0); }},
    {"realformer", "T:1024/d:64/h:8", [](Call &c) { score_map_call(c, 1, 0); }},
    {"realformer", "T:1024/d:64/h:8/causal", [](Call &c) { score_map_call(c, 1, 1); }},
    {"predictive", "T:1024/d:64/h:8", [](Call &c) { score_map_call(c, 2, 0); }},
    {"predictive", "T:1024/d:64/h:8/causal", [](Call &c) { score_map_call(c, 2, 1); }},
    {"predictive", "T:1024/d:64/h:8/evolving", [](Call &c) { score_map_call(c, 3, 0); }},
    {"map_apply", "T:1024/d:64/h:8", [](Call &c) { map_apply(c, 0); }},
    {"map_apply", "T:1024/d:64/h:8/causal", [](Call &c) { map_apply(c, 1); }},
    {"lazyformer", "T:1024/d:64/h:8/r:2", lazyformer},
};

}  // namespace

void register_maps(const Selection &s) { register_calls(s, entries); }
