/* bench/families/sparse.cpp owns the entries of attention composed of sparse pieces: stars,
 * global tokens, trees, segments and levels. One head; schedules are made beforehand. Patterns
 * alone are in calls/pattern.cpp. */

#include "functions.h"

namespace {

void star_satellites(Call &c) {
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim), k_relay = c.rows(1, 1, kDim),
              v_relay = c.rows(1, 1, kDim);
  attn_star_params p = {};
  p.k_own = c.rows(1, kLong, kDim);
  p.v_own = c.rows(1, kLong, kDim);
  c.pairs(kLong * 5);
  c.run = [=](attn_ctx *ctx) {
    return attn_star_satellites(o, q, k, v, k_relay, v_relay, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_star_satellites_workspace(o, q, k, v, k_relay, v_relay, &p, ctx);
  };
}

void star_relay(Call &c) {
  attn_tensor q = c.rows(8, 1, kDim), k_relay = c.rows(8, 1, kDim), v_relay = c.rows(8, 1, kDim),
              o = c.rows(8, 1, kDim), k = c.rows(8, 4096, kDim), v = c.rows(8, 4096, kDim);
  attn_star_params p = {};
  c.pairs(8 * (4096 + 1));
  c.run = [=](attn_ctx *ctx) { return attn_star_relay(o, q, k_relay, v_relay, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_star_relay_workspace(o, q, k_relay, v_relay, k, v, &p, ctx);
  };
}

/* Half of Longformer's 512 on each side, 16 global tokens with projections of their own. */
void longformer(Call &c) {
  constexpr int64_t n = 16, w = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_longformer_params p = {};
  c.ints.push_back({w});
  p.window = c.ints.back().data();
  p.global = c.steps(n, 1);
  p.globals = n;
  p.q_global = c.rows(1, n, kDim);
  p.k_global = c.rows(1, kLong, kDim);
  p.v_global = c.rows(1, kLong, kDim);
  if (attn_longformer_schedule(&c.schedule, &p, 1, kLong, 0, nullptr) != ATTN_OK) return;
  p.schedules = &c.schedule;
  attn_schedule_info info;
  attn_schedule_describe(&info, &c.schedule);
  c.pairs(info.pairs + n * kLong);
  c.run = [=](attn_ctx *ctx) { return attn_longformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_longformer_workspace(o, q, k, v, &p, ctx); };
}

/* All its gradients: 2 (3 dk + 2 dv) flops a pair. */
void longformer_backward(Call &c) {
  constexpr int64_t n = 16, w = 256;
  attn_tensor x[13];
  for (attn_tensor &t : x) t = c.rows(1, kLong, kDim);
  attn_tensor lse = c.rows(1, kLong, 1);
  attn_longformer_params p = {};
  attn_longformer_gradients g = {};
  c.ints.push_back({w});
  p.window = c.ints.back().data();
  p.global = c.steps(n, 1);
  p.globals = n;
  p.q_global = c.rows(1, n, kDim), p.k_global = x[8], p.v_global = x[9];
  g.d_q_global = c.rows(1, n, kDim), g.d_k_global = x[10], g.d_v_global = x[11];
  if (attn_longformer_schedule(&c.schedule, &p, 1, kLong, 0, nullptr) != ATTN_OK) return;
  p.schedules = &c.schedule;
  p.lse = lse;
  if (attn_longformer(x[7], x[4], x[5], x[6], &p, nullptr) != ATTN_OK) return;
  attn_schedule_info info;
  attn_schedule_describe(&info, &c.schedule);
  c.flops = 10.0 * (double)kDim * (double)(info.pairs + n * kLong);
  c.run = [=](attn_ctx *ctx) {
    return attn_longformer_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], lse, &p, &g,
                                    ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_longformer_backward_workspace(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], lse,
                                              &p, &g, ctx);
  };
}

void etc(Call &c) {
  constexpr int64_t longs = 4096, globals = 256, radius = 84;
  attn_tensor q_long = c.rows(1, longs, kDim), q_global = c.rows(1, globals, kDim),
              o_long = c.rows(1, longs, kDim), o_global = c.rows(1, globals, kDim);
  attn_tensor k_long = c.rows(1, longs, kDim), k_global = c.rows(1, globals, kDim),
              v_long = c.rows(1, longs, kDim), v_global = c.rows(1, globals, kDim);
  std::array<attn_tensor, ATTN_ETC_PIECES> k = {k_long, k_global, k_global, k_long},
                                           v = {v_long, v_global, v_global, v_long};
  attn_etc_params p = {};
  p.radius = radius;
  int64_t band = longs * (2 * radius + 1) - radius * (radius + 1);
  c.pairs(band + longs * globals + globals * (globals + longs));
  c.run = [=](attn_ctx *ctx) {
    return attn_etc(o_long, o_global, q_long, q_global, k.data(), v.data(), &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_etc_workspace(o_long, o_global, q_long, q_global, k.data(), v.data(), &p, ctx);
  };
}

void tree(Call &c, bool labels) {
  constexpr int64_t tokens = 4096, side = 4;
  int64_t n = attn_tree_nodes(tokens);
  attn_tensor q = c.rows(1, n, kDim), k = c.rows(1, n, kDim), v = c.rows(1, n, kDim),
              o = c.rows(1, n, kDim);
  attn_tree_params p = {};
  p.tokens = tokens;
  p.k = side;
  attn_pattern pattern = attn_pattern_tree(tokens, side);
  if (attn_schedule_build(&c.schedule, &pattern, 1, n, n, nullptr, nullptr) != ATTN_OK) return;
  p.schedule = &c.schedule;
  if (labels) p.table = c.rows(1, (2 * side + 1) * 14, kDim, 0.1f);
  attn_schedule_info info;
  attn_schedule_describe(&info, &c.schedule);
  c.pairs(info.pairs);
  c.run = [=](attn_ctx *ctx) { return attn_tree(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_tree_workspace(o, q, k, v, &p, ctx); };
}

void segmented(Call &c, attn_integrate integrate) {
  constexpr int64_t segment = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_segmented_params p = {};
  attn_pattern pattern = attn_pattern_blocks(segment, 0, 0);
  if (attn_schedule_build(&c.schedule, &pattern, 1, kLong, kLong, nullptr, nullptr) != ATTN_OK)
    return;
  p.length = segment;
  p.integrate = integrate;
  p.schedule = &c.schedule;
  c.pairs(kLong * segment + (integrate == ATTN_INTEGRATE_TOKEN ? kLong * kLong / segment : 0));
  c.run = [=](attn_ctx *ctx) { return attn_segmented(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_segmented_workspace(o, q, k, v, &p, ctx); };
}

/* Sentences of 64 tokens, paragraphs of 16 sentences, the whole. */
void hierarchy(Call &c) {
  constexpr int64_t units[] = {kLong, kLong / 64, kLong / 1024};
  attn_tensor x = c.rows(1, kLong, kDim), o = c.rows(1, kLong, kDim);
  auto shape = std::make_shared<std::vector<int64_t>>(units, units + 3);
  auto offsets = std::make_shared<std::vector<const int32_t *>>();
  offsets->push_back(c.steps(units[1] + 1, 64));
  offsets->push_back(c.steps(units[2] + 1, 16));
  attn_hierarchy_params p = {};
  p.levels = 3;
  p.units = shape->data();
  p.indptr = offsets->data();
  c.pairs(units[0] * 64 + units[1] * 16 + units[2] * units[2]);
  c.run = [=](attn_ctx *ctx) { return (void)shape, (void)offsets, attn_hierarchy(o, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_hierarchy_workspace(o, x, &p, ctx); };
}

/* Global rows of 16 tokens, whose distances have biases of their own; or the window alone, in attn_sdpa. */
void long_t5(Call &c, int64_t tokens) {
  constexpr int64_t radius = 127, block = 16;
  attn_tensor q = c.rows(1, tokens, kDim, 0.1f), k = c.rows(1, tokens, kDim),
              v = c.rows(1, tokens, kDim), o = c.rows(1, tokens, kDim),
              side_k = c.rows(1, tokens / block, kDim), side_v = c.rows(1, tokens / block, kDim);
  attn_long_t5_params p = {};
  p.table = static_cast<const float *>(c.rows(1, 1, 32).data);
  p.side_table = static_cast<const float *>(c.rows(1, 1, 32).data);
  c.pairs(tokens * (2 * radius + 1) - radius * (radius + 1) + tokens * (tokens / block));
  c.run = [=](attn_ctx *ctx) { return attn_long_t5(o, q, k, v, side_k, side_v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_long_t5_workspace(o, q, k, v, side_k, side_v, &p, ctx);
  };
}

void global_rows(Call &c) {
  attn_tensor x = c.rows(1, kLong, 512), y = c.rows(1, kLong / 16, 512);
  attn_global_rows_params p = {};
  c.bytes = 4.0 * 512 * (kLong + kLong / 16.0);
  c.run = [=](attn_ctx *ctx) { return attn_global_rows(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_global_rows_workspace(y, x, &p, ctx); };
}

/* Streams over the keys of one main stream, with 32 buckets or without. */
void ngram(Call &c, int64_t streams, bool biased) {
  constexpr int64_t tokens = 2048;
  attn_tensor q = c.rows(streams, tokens, kDim), k = c.rows(1, tokens, kDim),
              v = c.rows(1, tokens, kDim), own_k = c.rows(streams, tokens, kDim),
              own_v = c.rows(streams, tokens, kDim), o = c.rows(streams, tokens, kDim);
  attn_ngram_params p = {};
  if (biased) p.relative = c.rows(streams, tokens, 32);
  for (attn_tensor *t : {&q, &own_k, &own_v, &o, &p.relative})
    t->batch = t->heads, t->heads = 1, t->stride_batch = t->stride_head;
  c.pairs(streams * (tokens * (tokens + 1) / 2 + tokens));
  c.run = [=](attn_ctx *ctx) { return attn_ngram(o, q, k, v, own_k, own_v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_ngram_workspace(o, q, k, v, own_k, own_v, &p, ctx);
  };
}

const CallEntry entries[] = {
    {"star_satellites", "width:1/T:16384/d:64", star_satellites},
    {"star_relay", "T:4096/d:64/h:8", star_relay},
    {"longformer", "window:512/globals:16/T:16384/d:64", longformer},
    {"longformer_backward", "window:512/globals:16/T:16384/d:64", longformer_backward},
    {"etc", "radius:84/globals:256/T:4096/d:64", etc},
    {"tree", "k:4/tokens:4096/d:64", [](Call &c) { tree(c, false); }},
    {"tree", "k:4/tokens:4096/d:64/labels", [](Call &c) { tree(c, true); }},
    {"segmented", "length:256/T:16384/d:64", [](Call &c) { segmented(c, ATTN_INTEGRATE_NONE); }},
    {"segmented", "length:256/T:16384/d:64/integrate:token",
     [](Call &c) { segmented(c, ATTN_INTEGRATE_TOKEN); }},
    {"hierarchy", "levels:3/T:16384/d:64", hierarchy},
    {"long_t5", "radius:127/block:16/T:4096/d:64", [](Call &c) { long_t5(c, 4096); }},
    {"long_t5", "radius:127/block:16/T:16384/d:64", [](Call &c) { long_t5(c, kLong); }},
    {"global_rows", "block:16/T:16384/d:512", global_rows},
    {"ngram", "streams:2/T:2048/d:64", [](Call &c) { ngram(c, 2, false); }},
    {"ngram", "streams:2/T:2048/d:64/buckets:32", [](Call &c) { ngram(c, 2, true); }},
};

}  // namespace

void register_sparse(const Selection &s) { register_calls(s, entries); }
