/* bench/families/selection.cpp owns the entries of learned selections of keys: the multiply-adds of the pairs that are
 * chosen, so that a percentage is held against dense attention's. */

#include <memory>
#include <vector>

#include "functions.h"

namespace {

/* Pairs of rows with their own block, up to themselves, and others before it. */
int64_t chosen(int64_t t, int64_t block, int64_t k) {
  int64_t n = 0;
  for (int64_t i = 0; i < t; i++) {
    const int64_t own = i / block;
    n += (own < k - 1 ? own : k - 1) * block + i % block + 1;
  }
  return n;
}

void dense(Call &c, int64_t t, int64_t heads, int64_t kv_heads) {
  attn_tensor q = c.rows(heads, t, kDim), k = c.rows(kv_heads, t, kDim),
              v = c.rows(kv_heads, t, kDim), o = c.rows(heads, t, kDim);
  attn_sdpa_params p = {};
  p.causal = 1;
  c.pairs(heads * t * (t + 1) / 2);
  c.run = [=](attn_ctx *ctx) { return attn_sdpa(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sdpa_workspace(o, q, k, v, &p, ctx); };
}

void moba(Call &c, int64_t t, int64_t block, int64_t best) {
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  attn_moba_params p = {};
  p.block = block, p.k = best;
  c.pairs(chosen(t, block, best));
  c.run = [=](attn_ctx *ctx) { return attn_moba(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_moba_workspace(o, q, k, v, &p, ctx); };
}

/* A token against a cache; pages = 0: dense. */
void quest(Call &c, int64_t t, int64_t pages) {
  constexpr int64_t heads = 8, kv_heads = 2, page = 16;
  attn_tensor q = c.rows(heads, 1, kDim), k = c.rows(kv_heads, t, kDim),
              v = c.rows(kv_heads, t, kDim), o = c.rows(heads, 1, kDim),
              bounds = c.rows(kv_heads, t / page, 2 * kDim);
  attn_key_blocks_params b = {};
  b.kind = ATTN_KEY_BLOCK_BOUNDS, b.size = page;
  if (attn_key_blocks(bounds, k, &b, nullptr) != ATTN_OK) return;
  attn_quest_params p = {};
  p.page = page, p.pages = pages, p.bounds = bounds;
  c.pairs(heads * (pages ? pages * page : t));
  if (!pages) {
    c.run = [=](attn_ctx *ctx) { return attn_sdpa(o, q, k, v, nullptr, ctx); };
    c.size = [=](const attn_ctx *ctx) { return attn_sdpa_workspace(o, q, k, v, nullptr, ctx); };
    return;
  }
  c.run = [=](attn_ctx *ctx) { return attn_quest(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_quest_workspace(o, q, k, v, &p, ctx); };
}

/* The same in the pages of a cache, which lie in another order than their tokens. */
void quest_paged(Call &c, int64_t t, int64_t pages) {
  constexpr int64_t heads = 8, kv_heads = 2, page = 16;
  struct Cache {
    attn_cache cache;
    attn_sequence sequence;
    std::vector<int32_t> table, holders;
  };
  const auto x = std::make_shared<Cache>();
  attn_tensor q = c.rows(heads, 1, kDim), k = c.rows(kv_heads, t, kDim),
              v = c.rows(kv_heads, t, kDim), o = c.rows(heads, 1, kDim),
              bounds = c.rows(kv_heads, t / page, 2 * kDim), none = {};
  attn_tensor *stores[] = {&k, &v, &bounds};
  for (attn_tensor *s : stores) { /* [pages][heads][rows] in the same memory */
    s->batch = t / page, s->len = s == &bounds ? 1 : page, s->stride_len = s->dim;
    s->stride_head = s->len * s->dim, s->stride_batch = kv_heads * s->stride_head;
  }
  for (int64_t i = 0; i < t / page; i++) x->table.push_back((int32_t)(i * 1597 % (t / page)));
  x->holders.assign((size_t)(t / page), 1);
  x->cache = {}, x->cache.k = k, x->cache.v = v, x->cache.holders = x->holders.data();
  x->sequence = {x->table.data(), t / page, t, t};
  attn_key_blocks_params b = {};
  b.kind = ATTN_KEY_BLOCK_BOUNDS, b.cache = &x->cache, b.sequences = &x->sequence, b.n = 1;
  if (attn_key_blocks(bounds, none, &b, nullptr) != ATTN_OK) return;
  attn_quest_params p = {};
  p.pages = pages, p.bounds = bounds;
  p.attention.cache = &x->cache, p.attention.sequences = &x->sequence;
  c.pairs(heads * pages * page);
  c.run = [=](attn_ctx *ctx) { return x ? attn_quest(o, q, none, none, &p, ctx) : ATTN_E_NULL; };
  c.size = [=](const attn_ctx *ctx) { return attn_quest_workspace(o, q, none, none, &p, ctx); };
}

void dsa(Call &c, int64_t t, int64_t best, int64_t heads) {
  attn_tensor q = c.rows(heads, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(heads, t, kDim);
  attn_dsa_params p = {};
  p.k = best, p.qi = c.rows(4, t, 32), p.ki = c.rows(1, t, 32), p.wi = c.rows(1, t, 4);
  c.pairs(heads * (best * (best + 1) / 2 + (t - best) * best));
  c.run = [=](attn_ctx *ctx) { return attn_dsa(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_dsa_workspace(o, q, k, v, &p, ctx); };
}

void nsa(Call &c, int64_t t) {
  constexpr int64_t heads = 16;
  attn_tensor q = c.rows(heads, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(heads, t, kDim);
  attn_nsa_params p = {};
  p.gate = c.rows(heads, t, 3);
  int64_t pairs = 512 * 513 / 2 + (t - 512) * 512 + chosen(t, 64, 16);
  for (int64_t i = 31; i < t; i++) pairs += (i - 31) / 16 + 1;
  c.pairs(heads * pairs);
  c.run = [=](attn_ctx *ctx) { return attn_nsa(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_nsa_workspace(o, q, k, v, &p, ctx); };
}

void key_blocks(Call &c) {
  constexpr int64_t t = 65536;
  attn_tensor k = c.rows(1, t, kDim), y = c.rows(1, t / 16, 2 * kDim);
  attn_key_blocks_params p = {};
  p.kind = ATTN_KEY_BLOCK_BOUNDS, p.size = 16;
  c.bytes = 4.0 * (double)(t * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_key_blocks(y, k, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_key_blocks_workspace(y, k, &p, ctx); };
}

void nsa_compress(Call &c) {
  constexpr int64_t t = 4096, n = (t - 32) / 16 + 1;
  attn_tensor x = c.rows(1, t, kDim), y = c.rows(1, n, kDim);
  attn_nsa_compress_params p = {};
  p.w = c.rows(1, 32 * kDim, kDim);
  c.flops = 2.0 * (double)(n * 32 * kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_nsa_compress(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_nsa_compress_workspace(y, x, &p, ctx); };
}

const CallEntry entries[] = {
    {"selection_dense", "T:4096/d:64", [](Call &c) { dense(c, 4096, 1, 1); }},
    {"moba", "B:512/k:3/T:4096/d:64", [](Call &c) { moba(c, 4096, 512, 3); }},
    {"moba", "B:512/k:3/T:16384/d:64", [](Call &c) { moba(c, 16384, 512, 3); }},
    {"moba", "B:128/k:8/T:16384/d:64", [](Call &c) { moba(c, 16384, 128, 8); }},
    {"selection_dense", "h:8/Tq:1/T:65536/d:64", [](Call &c) { quest(c, 65536, 0); }},
    {"quest", "pages:128/h:8/Tq:1/T:65536/d:64", [](Call &c) { quest(c, 65536, 128); }},
    {"quest_paged", "pages:128/h:8/Tq:1/T:65536/d:64", [](Call &c) { quest_paged(c, 65536, 128); }},
    {"selection_dense", "h:16/T:4096/d:64", [](Call &c) { dense(c, 4096, 16, 1); }},
    {"dsa", "k:2048/h:16/T:4096/d:64", [](Call &c) { dsa(c, 4096, 2048, 16); }},
    {"dsa", "k:256/h:16/T:4096/d:64", [](Call &c) { dsa(c, 4096, 256, 16); }},
    {"nsa", "h:16/T:4096/d:64", [](Call &c) { nsa(c, 4096); }},
    {"key_blocks", "B:16/T:65536/d:64", key_blocks},
    {"nsa_compress", "T:4096/d:64", nsa_compress},
};

}  // namespace

void register_selection(const Selection &s) { register_calls(s, entries); }
