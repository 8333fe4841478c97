/* bench/families/compression.cpp owns the entries of attention over fewer queries or keys than
 * there are: shortened keys, clusters and samples of queries, few learned rows (Set Transformer,
 * Luna). */

#include "functions.h"

namespace {

/* --- Fewer keys. One head. */

void linformer(Call &c, attn_linformer_kind kind) {
  constexpr int64_t rank = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_linformer_params p = {};
  p.kind = kind;
  p.rank = rank;
  if (kind == ATTN_LINFORMER_MATRIX) p.e = c.rows(1, rank, kLong, 0.01f);
  c.flops = 4.0 * (double)(kLong * rank * kDim) * (kind == ATTN_LINFORMER_MATRIX ? 2 : 1);
  c.run = [=](attn_ctx *ctx) { return attn_linformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linformer_workspace(o, q, k, v, &p, ctx); };
}

void memory_compressed(Call &c) {
  constexpr int64_t len = 4096, kernel = 3;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  attn_memory_compressed_params p = {};
  p.causal = 1;
  p.w_k = c.rows(1, kernel * kDim, kDim, 0.1f);
  p.w_v = c.rows(1, kernel * kDim, kDim, 0.1f);
  c.flops = 4.0 * (double)(len * kDim) * ((double)kDim + (double)(len / kernel) / 2);
  c.run = [=](attn_ctx *ctx) { return attn_memory_compressed(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_memory_compressed_workspace(o, q, k, v, &p, ctx);
  };
}

void local(Call &c, int causal) {
  constexpr int64_t block = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_local_params p = {};
  p.causal = causal;
  c.pairs(causal ? kLong * (block + 1) / 2 : kLong * block);
  c.run = [=](attn_ctx *ctx) { return attn_local(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_local_workspace(o, q, k, v, &p, ctx); };
}

/* Windows of 128 and 512 to a side, blocks of 5 every 4 rows; edges are counted as if they went on. */
void poolingformer(Call &c, attn_poolingformer_align align, attn_pool_kind pool) {
  constexpr int64_t kernel = 5;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_poolingformer_params p = {};
  p.align = align;
  p.pool = pool;
  if (pool == ATTN_POOL_DYNAMIC) {
    p.pool_k = c.rows(1, kDim, kernel, 0.1f);
    p.pool_v = c.rows(1, kDim, kernel, 0.1f);
  }
  c.pairs(kLong * (2 * 128 + 1 + 2 * 512 / 4));
  c.run = [=](attn_ctx *ctx) { return attn_poolingformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_poolingformer_workspace(o, q, k, v, &p, ctx); };
}

/* --- Fewer queries: the multiply-adds of the pairs. */

void cluster_queries(Call &c) {
  constexpr int64_t t = 4096;
  attn_tensor q = c.rows(c.heads, t, kDim);
  int32_t *place = c.steps(c.heads * t, 0);
  attn_cluster_params p = {};
  p.clusters = 64;
  c.flops = 2.0 * (double)(t * 32 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_cluster_queries(place, q, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_cluster_queries_workspace(place, q, &p, ctx); };
}

void clustered(Call &c, int64_t len, int64_t clusters, int64_t topk) {
  attn_tensor q = c.rows(c.heads, len, kDim), k = c.rows(c.heads, len, kDim),
              v = c.rows(c.heads, len, kDim), o = c.rows(c.heads, len, kDim);
  int32_t *place = c.steps(c.heads * len, 0);
  attn_cluster_params p = {};
  p.clusters = clusters;
  p.k = topk;
  if (attn_cluster_queries(place, q, &p, nullptr) != ATTN_OK) return;
  c.pairs(clusters * len + len * topk);
  c.run = [=](attn_ctx *ctx) { return attn_clustered(o, q, k, v, place, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_clustered_workspace(o, q, k, v, place, &p, ctx);
  };
}

void probsparse_measure(Call &c) {
  constexpr int64_t t = 4096;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), m = c.rows(1, t, 1);
  c.flops = 2.0 * (double)(t * attn_probsparse_samples(t, nullptr) * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_probsparse_measure(m, q, k, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_measure_workspace(m, q, k, nullptr, ctx);
  };
}

void probsparse_select(Call &c) {
  constexpr int64_t t = 16384;
  attn_tensor m = c.rows(1, t, 1);
  int32_t *pick = c.steps(attn_probsparse_rows(t, nullptr), 0);
  c.bytes = 4.0 * (double)t;
  c.run = [=](attn_ctx *ctx) { return attn_probsparse_select(pick, m, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_select_workspace(pick, m, nullptr, ctx);
  };
}

/* Selected rows are evenly spread, so that causal ones see half of the keys. */
void probsparse(Call &c, int64_t len, int causal) {
  attn_tensor q = c.rows(c.heads, len, kDim), k = c.rows(c.heads, len, kDim),
              v = c.rows(c.heads, len, kDim), o = c.rows(c.heads, len, kDim);
  const int64_t u = attn_probsparse_rows(len, nullptr);
  int32_t *pick = c.steps(c.heads * u, 0);
  for (int64_t i = 0; i < c.heads * u; i++) pick[i] = (int32_t)(i % u * (len / u));
  attn_probsparse_params p = {};
  p.causal = causal;
  c.pairs(u * len / (causal ? 2 : 1));
  c.run = [=](attn_ctx *ctx) { return attn_probsparse(o, q, k, v, pick, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_workspace(o, q, k, v, pick, &p, ctx);
  };
}

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

const CallEntry entries[] = {
    {"linformer", "r:256/T:16384/d:64", [](Call &c) { linformer(c, ATTN_LINFORMER_MATRIX); }},
    {"linformer", "r:256/T:16384/d:64/mean", [](Call &c) { linformer(c, ATTN_LINFORMER_MEAN); }},
    {"memory_compressed", "c:3/T:4096/d:64/causal", memory_compressed},
    {"local", "block:256/T:16384/d:64", [](Call &c) { local(c, 0); }},
    {"local", "block:256/T:16384/d:64/causal", [](Call &c) { local(c, 1); }},
    {"poolingformer", "T:16384/d:64",
     [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_GRID, ATTN_POOL_MEAN); }},
    {"poolingformer", "T:16384/d:64/dynamic",
     [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_GRID, ATTN_POOL_DYNAMIC); }},
    {"poolingformer", "T:16384/d:64/window",
     [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_WINDOW, ATTN_POOL_MEAN); }},
    {"cluster_queries", "T:4096/C:64/d:64", cluster_queries},
    {"cluster_queries", "T:4096/C:64/d:64/h:8", [](Call &c) { c.heads = 8, cluster_queries(c); }},
    {"clustered", "T:4096/C:64/d:64", [](Call &c) { clustered(c, 4096, 64, 0); }},
    {"clustered", "T:4096/C:64/d:64/h:8", [](Call &c) { c.heads = 8, clustered(c, 4096, 64, 0); }},
    {"clustered", "T:16384/C:256/topk:32/d:64", [](Call &c) { clustered(c, 16384, 256, 32); }},
    {"probsparse_measure", "T:4096/d:64", probsparse_measure},
    {"probsparse_select", "T:16384", probsparse_select},
    {"probsparse", "T:16384/d:64", [](Call &c) { probsparse(c, 16384, 0); }},
    {"probsparse", "T:4096/d:64/h:8", [](Call &c) { c.heads = 8, probsparse(c, 4096, 0); }},
    {"probsparse", "T:16384/d:64/causal", [](Call &c) { probsparse(c, 16384, 1); }},
    {"mab", "T:1024/dm:512/h:8", [](Call &c) { mab(c, 1024); }},
    {"isab", "T:4096/m:64/dm:512/h:8", [](Call &c) { isab(c, 4096); }},
    {"pma", "T:4096/k:64/dm:512/h:8", [](Call &c) { pma(c, 4096); }},
    {"luna", "T:4096/l:64/dm:512/h:8", [](Call &c) { luna(c, 4096); }},
    {"luna_layer", "T:4096/l:64/dm:512/h:8", [](Call &c) { luna_layer(c, 4096); }},
    {"luna_causal", "T:16384/l:64/d:64", [](Call &c) { luna_causal(c, 1, 16384); }},
    {"luna_causal", "T:2048/l:64/d:64/h:8", [](Call &c) { luna_causal(c, 8, 2048); }},
};

}  // namespace

void register_compression(const Selection &s) { register_calls(s, entries); }
