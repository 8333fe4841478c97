/* content_cases.cpp owns the entries of attention whose pairs are chosen by content. */

#include "functions.h"

namespace {

/* --- Fewer queries or keys than there are: the multiply-adds of the pairs. */

void cluster_queries(Call &c) {
  constexpr int64_t t = 4096;
  attn_tensor q = c.rows(1, t, kDim);
  int32_t *place = c.steps(t, 0);
  attn_cluster_params p = {};
  p.clusters = 64;
  c.flops = 2.0 * (double)(t * 32 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_cluster_queries(place, q, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_cluster_queries_workspace(place, q, &p, ctx); };
}

void clustered(Call &c, int64_t len, int64_t clusters, int64_t topk) {
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  int32_t *place = c.steps(len, 0);
  attn_cluster_params p = {};
  p.clusters = clusters;
  p.topk = topk;
  if (attn_cluster_queries(place, q, &p, nullptr) != ATTN_OK) return;
  c.pairs(clusters * len + len * topk);
  c.run = [=](attn_ctx *ctx) { return attn_clustered(o, q, k, v, place, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_clustered_workspace(o, q, k, v, place, &p, ctx);
  };
}

void topk_sdpa(Call &c, attn_topk_mode mode) {
  constexpr int64_t t = 4096, best = 32;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  attn_topk_params p = {};
  p.mode = mode;
  p.k = best;
  p.bound = 2.5f;
  c.flops = 2.0 * (double)kDim * (double)(t * t + t * best);
  c.run = [=](attn_ctx *ctx) { return attn_topk_sdpa(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_topk_sdpa_workspace(o, q, k, v, &p, ctx); };
}

void topk_select(Call &c) {
  constexpr int64_t t = 4096, best = 32;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim);
  attn_topk_params p = {};
  p.k = best;
  p.row_ptr = reinterpret_cast<int64_t *>(c.steps(2 * (t + 1), 0));
  p.col = c.steps(t * best, 0);
  p.edges = t * best;
  c.flops = 2.0 * (double)(t * t * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_topk_select(q, k, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_topk_select_workspace(q, k, &p, ctx); };
}

/* --- Buckets: the multiply-adds of the rotations, and of the pairs in reach. */

void lsh(Call &c, int64_t b1, int64_t b2, int hash) {
  constexpr int64_t t = 16384, rounds = 4;
  attn_tensor x = c.rows(1, t, kDim), v = c.rows(1, t, kDim), o = c.rows(1, t, kDim);
  int32_t *factors = c.steps(2, 0), *place = c.steps(rounds * t, 0);
  factors[0] = (int32_t)b1;
  factors[1] = (int32_t)b2;
  attn_lsh_params p = {};
  p.rounds = rounds;
  p.factors = factors;
  p.factor_count = 2;
  if (hash) {
    c.flops = 2.0 * (double)(t * rounds * kDim * (b1 + b2) / 2);
    c.run = [=](attn_ctx *ctx) { return attn_lsh_hash(place, x, &p, ctx); };
    c.size = [=](const attn_ctx *ctx) { return attn_lsh_hash_workspace(place, x, &p, ctx); };
    return;
  }
  if (attn_lsh_hash(place, x, &p, nullptr) != ATTN_OK) return;
  attn_ctx once = {};
  if (attn_lsh(o, x, v, place, &p, &once) != ATTN_OK) return;
  c.pairs(once.report.pairs); /* those of a bucket: fewer than its two chunks hold */
  c.run = [=](attn_ctx *ctx) { return attn_lsh(o, x, v, place, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_lsh_workspace(o, x, v, place, &p, ctx); };
}

void lsh_qk(Call &c) {
  constexpr int64_t t = 16384;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  int32_t *factors = c.steps(2, 0);
  factors[0] = factors[1] = 16;
  attn_lsh_params p = {};
  p.rounds = 4;
  p.factors = factors;
  p.factor_count = 2;
  attn_ctx once = {};
  if (attn_lsh_qk(o, q, k, v, nullptr, nullptr, &p, &once) != ATTN_OK) return;
  c.pairs(once.report.pairs);
  c.run = [=](attn_ctx *ctx) { return attn_lsh_qk(o, q, k, v, nullptr, nullptr, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_lsh_qk_workspace(o, q, k, v, nullptr, nullptr, &p, ctx);
  };
}

/* --- Clusters of queries and keys. */

struct Clusters {
  attn_tensor q, k, v, o, mu;
  attn_members queries, keys;
  attn_routing_params p;
};

Clusters clusters(Call &c, int64_t len, int64_t count) {
  Clusters x = {};
  x.q = c.rows(1, len, kDim), x.k = c.rows(1, len, kDim), x.v = c.rows(1, len, kDim);
  x.o = c.rows(1, len, kDim), x.mu = c.rows(1, count, kDim);
  const int64_t n = attn_routing_entries(len, count, 0, ATTN_ROUTING_TOPW);
  x.queries = {c.steps(n, 0), c.steps(count + 1, 0), n, count};
  x.keys = {c.steps(n, 0), c.steps(count + 1, 0), n, count};
  return x;
}

void routing_select(Call &c) {
  constexpr int64_t len = 4096, count = 64;
  const Clusters x = clusters(c, len, count);
  c.flops = 4.0 * (double)(len * count * kDim);
  c.run = [=](attn_ctx *ctx) {
    return attn_routing_select(x.queries, x.keys, x.q, x.k, x.mu, &x.p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_routing_select_workspace(x.queries, x.keys, x.q, x.k, x.mu, &x.p, ctx);
  };
}

void routing_attend(Call &c) {
  constexpr int64_t len = 4096, count = 64;
  const Clusters x = clusters(c, len, count);
  if (attn_routing_select(x.queries, x.keys, x.q, x.k, x.mu, &x.p, nullptr) != ATTN_OK) return;
  c.pairs(len * len / count);
  c.run = [=](attn_ctx *ctx) {
    return attn_routing_attend(x.o, x.q, x.k, x.v, x.queries, x.keys, &x.p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_routing_attend_workspace(x.o, x.q, x.k, x.v, x.queries, x.keys, &x.p, ctx);
  };
}

void routing(Call &c, int shared) {
  constexpr int64_t len = 16384, count = 128;
  Clusters x = clusters(c, len, count);
  x.p.shared = x.p.causal = shared;
  if (shared) x.k = {};
  c.pairs(len * len / count / (shared ? 2 : 1));
  c.run = [=](attn_ctx *ctx) { return attn_routing(x.o, x.q, x.k, x.v, x.mu, &x.p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_routing_workspace(x.o, x.q, x.k, x.v, x.mu, &x.p, ctx);
  };
}

void routing_update(Call &c) {
  constexpr int64_t len = 4096, count = 64;
  const Clusters x = clusters(c, len, count);
  const attn_tensor next = c.rows(1, count, kDim);
  c.flops = 4.0 * (double)(len * count * kDim);
  c.run = [=](attn_ctx *ctx) {
    return attn_routing_update(next, x.q, x.k, x.mu, &x.p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_routing_update_workspace(next, x.q, x.k, x.mu, &x.p, nullptr, ctx);
  };
}

void routing_start(Call &c) {
  constexpr int64_t len = 65536, count = 256;
  const attn_tensor q = c.rows(1, len, kDim), mu = c.rows(1, count, kDim);
  c.bytes = 8.0 * (double)(count * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_routing_start(mu, q, ATTN_ROUTING_LAYERNORM, 1, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_routing_start_workspace(mu, q, ATTN_ROUTING_LAYERNORM, 1, ctx);
  };
}

/* --- The queries that differ most. */

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
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  const int64_t u = attn_probsparse_rows(len, nullptr);
  int32_t *pick = c.steps(u, len / u);
  attn_probsparse_params p = {};
  p.causal = causal;
  c.pairs(u * len / (causal ? 2 : 1));
  c.run = [=](attn_ctx *ctx) { return attn_probsparse(o, q, k, v, pick, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_workspace(o, q, k, v, pick, &p, ctx);
  };
}

const CallEntry entries[] = {
    {"cluster_queries", "T:4096/C:64/d:64", cluster_queries},
    {"clustered", "T:4096/C:64/d:64", [](Call &c) { clustered(c, 4096, 64, 0); }},
    {"clustered", "T:16384/C:256/topk:32/d:64", [](Call &c) { clustered(c, 16384, 256, 32); }},
    {"topk_sdpa", "T:4096/k:32/d:64", [](Call &c) { topk_sdpa(c, ATTN_TOPK_EXACT); }},
    {"topk_sdpa", "T:4096/k:32/d:64/ties", [](Call &c) { topk_sdpa(c, ATTN_TOPK_TIES); }},
    {"topk_sdpa", "T:4096/d:64/abs", [](Call &c) { topk_sdpa(c, ATTN_TOPK_ABS); }},
    {"topk_sdpa", "T:4096/d:64/rel", [](Call &c) { topk_sdpa(c, ATTN_TOPK_REL); }},
    {"topk_select", "T:4096/k:32/d:64", topk_select},
    {"lsh_hash", "T:16384/b:16,32/n:4/d:64", [](Call &c) { lsh(c, 16, 32, 1); }},
    {"lsh", "T:16384/m:64/n:4/d:64", [](Call &c) { lsh(c, 16, 32, 0); }},
    {"lsh", "T:16384/m:128/n:4/d:64", [](Call &c) { lsh(c, 16, 16, 0); }},
    {"lsh_qk", "T:16384/b:256/n:4/d:64", lsh_qk},
    {"routing_select", "C:64/T:4096/d:64", routing_select},
    {"routing_attend", "C:64/T:4096/d:64", routing_attend},
    {"routing", "C:128/T:16384/d:64", [](Call &c) { routing(c, 0); }},
    {"routing", "C:128/T:16384/d:64/shared/causal", [](Call &c) { routing(c, 1); }},
    {"routing_update", "C:64/T:4096/d:64", routing_update},
    {"routing_start", "C:256/T:65536/d:64", routing_start},
    {"probsparse_measure", "T:4096/d:64", probsparse_measure},
    {"probsparse_select", "T:16384", probsparse_select},
    {"probsparse", "T:16384/d:64", [](Call &c) { probsparse(c, 16384, 0); }},
    {"probsparse", "T:16384/d:64/causal", [](Call &c) { probsparse(c, 16384, 1); }},
};

}  // namespace

void register_content_calls(const Selection &sel) { register_calls(sel, entries); }
