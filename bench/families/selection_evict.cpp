/* bench/families/selection_evict.cpp owns the entries of what a cache forgets: scores of keys, the choice, the moving. */

#include "functions.h"

namespace {

constexpr int64_t kHeads = 8; /* query heads to two key heads */

void snapkv(Call &c, int64_t t) {
  attn_tensor q = c.rows(kHeads, 64, kDim), k = c.rows(2, t, kDim), scores = c.rows(2, t, 1);
  c.flops = 2.0 * (double)(kHeads * 64 * t * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_snapkv(scores, q, k, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_snapkv_workspace(scores, q, k, nullptr, ctx); };
}

void h2o(Call &c, int64_t rows, int64_t t) {
  attn_tensor q = c.rows(kHeads, rows, kDim), k = c.rows(2, t, kDim), sums = c.rows(2, t, 2);
  const int64_t pairs = rows == t ? t * (t + 1) / 2 : rows * t;
  c.flops = 2.0 * (double)(kHeads * pairs * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_h2o(sums, q, k, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_h2o_workspace(sums, q, k, nullptr, ctx); };
}

void choose(Call &c, int64_t t, int move) {
  constexpr int64_t capacity = 2048;
  attn_tensor scores = c.rows(2, t, 1), k = c.rows(2, t, kDim), v = c.rows(2, t, kDim);
  int32_t *kept = c.steps(2 * capacity, 0);
  attn_evict_choose_params p = {};
  p.capacity = capacity;
  if (attn_evict_choose(kept, scores, &p, nullptr) != ATTN_OK) return;
  c.bytes = 4.0 * (double)(move ? 2 * 2 * 2 * capacity * kDim : 2 * t);
  if (move) {
    c.run = [=](attn_ctx *ctx) { return attn_evict(k, v, kept, capacity, nullptr, ctx); };
    c.size = [=](const attn_ctx *ctx) {
      return attn_evict_workspace(k, v, kept, capacity, nullptr, ctx);
    };
    return;
  }
  c.run = [=](attn_ctx *ctx) { return attn_evict_choose(kept, scores, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_evict_choose_workspace(kept, scores, &p, ctx); };
}

const CallEntry entries[] = {
    {"snapkv", "w:64/T:16384/d:64/h:8,2", [](Call &c) { snapkv(c, 16384); }},
    {"h2o", "T:4096/d:64/h:8,2", [](Call &c) { h2o(c, 4096, 4096); }},
    {"h2o", "rows:1/T:4096/d:64/h:8,2", [](Call &c) { h2o(c, 1, 4096); }},
    {"evict_choose", "n:2048/T:16384/h:2", [](Call &c) { choose(c, 16384, 0); }},
    {"evict", "n:2048/T:16384/d:64/h:2", [](Call &c) { choose(c, 16384, 1); }},
};

}  // namespace

void register_selection_evict(const Selection &s) { register_calls(s, entries); }
