/* bench/families/content.cpp owns the entries of attention whose pairs, rows or paths are chosen
 * by content: by scores, hashes, clusters, gates, a sorted order or drawn edges. */

#include "functions.h"

namespace {

/* --- The best keys: the multiply-adds of the pairs. */

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
  p.indptr = reinterpret_cast<int64_t *>(c.steps(2 * (t + 1), 0));
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

/* --- Hashes that meet: the multiply-adds of the pairs; of the planes and of the sums. kind 0: attn_sdpa, 2: rows of length 1. */

void yoso(Call &c, int64_t t, int kind) {
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  attn_yoso_params p = {};
  p.unit = kind == 2;
  c.pairs(t * t);
  if (kind == 0) {
    c.run = [=](attn_ctx *ctx) { return attn_sdpa(o, q, k, v, nullptr, ctx); };
    c.size = [=](const attn_ctx *ctx) { return attn_sdpa_workspace(o, q, k, v, nullptr, ctx); };
    return;
  }
  c.run = [=](attn_ctx *ctx) { return attn_yoso(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_yoso_workspace(o, q, k, v, &p, ctx); };
}

void yoso_sample(Call &c, int64_t t, int64_t draws) {
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  attn_yoso_params p = {};
  p.draws = draws;
  c.flops = (double)(2 * t * draws) * (double)(2 * 9 * kDim + 4 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_yoso_sample(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_yoso_sample_workspace(o, q, k, v, &p, ctx); };
}

/* --- Two resolutions: the multiply-adds of the pairs; share: one of so many pairs of blocks is exact. */

void mra(Call &c, int64_t block, int64_t share, int sparse) {
  constexpr int64_t t = 4096;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  attn_mra_params p = {};
  p.block = block;
  p.exact = t / block * (t / block) / share;
  p.sparse = sparse;
  attn_ctx once = {};
  if (attn_mra(o, q, k, v, &p, &once) != ATTN_OK) return;
  c.pairs(once.report.pairs);
  c.run = [=](attn_ctx *ctx) { return attn_mra(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_mra_workspace(o, q, k, v, &p, ctx); };
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

/* --- Paths. */

struct Paths {
  static constexpr int64_t len = 1024, count = 4, dx = 64;
  attn_expert path[count];
  attn_tensor x, w, pi, weight, o;
  int32_t *list;
  attn_mixture_params p;
};

Paths paths(Call &c) {
  Paths y = {};
  for (attn_expert &p : y.path)
    p = {c.rows(1, Paths::len, kDim), c.rows(1, Paths::len, kDim), c.rows(1, Paths::len, kDim),
         nullptr};
  y.x = c.rows(1, Paths::len, Paths::dx), y.w = c.rows(1, Paths::dx, Paths::count);
  y.pi = c.rows(1, Paths::len, Paths::count), y.weight = c.rows(1, Paths::len, 1);
  y.o = c.rows(1, Paths::len, kDim);
  y.list = c.steps(Paths::len, 0);
  y.p.k = 1;
  return y;
}

void gate(Call &c) {
  const Paths y = paths(c);
  c.flops = 2.0 * (double)(Paths::len * Paths::dx * Paths::count);
  c.run = [=](attn_ctx *ctx) { return attn_gate(y.pi, y.x, y.w, &y.p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gate_workspace(y.pi, y.x, y.w, &y.p, ctx); };
}

void dispatch_select(Call &c) {
  const Paths y = paths(c);
  c.bytes = 4.0 * (double)(Paths::len * (Paths::count + 2));
  c.run = [=](attn_ctx *ctx) { return attn_dispatch_select(y.list, y.weight, y.pi, &y.p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_dispatch_select_workspace(y.list, y.weight, y.pi, &y.p, ctx);
  };
}

void dispatch(Call &c) {
  const Paths y = paths(c);
  if (attn_dispatch_select(y.list, y.weight, y.pi, &y.p, nullptr) != ATTN_OK) return;
  c.pairs(Paths::len * Paths::len);
  c.run = [=](attn_ctx *ctx) {
    return attn_dispatch(y.o, y.path, Paths::count, y.list, y.weight, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_dispatch_workspace(y.o, y.path, Paths::count, y.list, y.weight, ctx);
  };
}

void mixture(Call &c) {
  const Paths y = paths(c);
  c.pairs(Paths::count * Paths::len * Paths::len);
  c.run = [=](attn_ctx *ctx) { return attn_mixture(y.o, y.path, Paths::count, y.pi, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_mixture_workspace(y.o, y.path, Paths::count, y.pi, ctx);
  };
}

void gated(Call &c) {
  const Paths y = paths(c);
  c.pairs(Paths::len * Paths::len);
  c.run = [=](attn_ctx *ctx) { return attn_gated(y.o, y.path, Paths::count, y.x, y.w, &y.p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_gated_workspace(y.o, y.path, Paths::count, y.x, y.w, &y.p, ctx);
  };
}

/* --- Blocks in a sorted order. */

void sinkhorn(Call &c, int64_t len, int64_t block, int hard, int causal) {
  const int64_t nb = len / block;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim), r = c.rows(1, nb, nb), sort = c.rows(1, nb, nb);
  attn_sinkhorn_params p = {};
  p.block = block, p.hard = hard, p.causal = causal;
  if (attn_sinkhorn_balance(sort, r, &p, nullptr) != ATTN_OK) return;
  const int64_t own = causal ? (block + 1) / 2 : block;
  c.pairs(len * (block + own));
  if (!hard) c.flops += 4.0 * (double)(len * (causal ? nb / 2 : nb) * kDim); /* the mixing */
  c.run = [=](attn_ctx *ctx) { return attn_sinkhorn(o, q, k, v, sort, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinkhorn_workspace(o, q, k, v, sort, &p, ctx); };
}

void sortcut(Call &c, int64_t len, int64_t block, int64_t cut) {
  const int64_t nb = len / block;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim), r = c.rows(1, nb, nb), sort = c.rows(1, nb, nb);
  attn_sinkhorn_params p = {};
  p.block = block, p.cut = cut, p.local = 1;
  if (attn_sinkhorn_balance(sort, r, &p, nullptr) != ATTN_OK) return;
  c.pairs(len * block * (cut + 1) + len * cut);
  c.run = [=](attn_ctx *ctx) { return attn_sortcut(o, q, k, v, sort, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sortcut_workspace(o, q, k, v, sort, &p, ctx); };
}

/* Bytes: each iteration reads and writes the logarithms twice. */
void sinkhorn_balance(Call &c) {
  constexpr int64_t nb = 256;
  attn_tensor r = c.rows(c.heads, nb, nb), p = c.rows(c.heads, nb, nb);
  c.bytes = 8.0 * 4 * 8 * (double)(c.heads * nb * nb);
  c.run = [=](attn_ctx *ctx) { return attn_sinkhorn_balance(p, r, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinkhorn_balance_workspace(p, r, nullptr, ctx); };
}

void sinkhorn_choose(Call &c) {
  constexpr int64_t nb = 256;
  attn_tensor p = c.rows(8, nb, nb);
  int32_t *choice = c.steps(8 * nb, 0);
  c.bytes = 4.0 * 8 * (double)(nb * nb);
  c.run = [=](attn_ctx *ctx) { return attn_sinkhorn_choose(choice, p, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_sinkhorn_choose_workspace(choice, p, nullptr, ctx);
  };
}

void sinkhorn_logits(Call &c) {
  constexpr int64_t nb = 256, dm = 512, m = 256;
  attn_tensor r = c.rows(8, nb, nb), y = c.rows(1, nb, dm);
  attn_sinkhorn_params p = {};
  p.w_1 = c.rows(8, dm, m, 0.1f), p.w_2 = c.rows(8, m, nb, 0.1f);
  c.flops = 2.0 * 8 * (double)(nb * m * (dm + nb));
  c.run = [=](attn_ctx *ctx) { return attn_sinkhorn_logits(r, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinkhorn_logits_workspace(r, y, &p, ctx); };
}

void sinkhorn_blocks(Call &c) {
  constexpr int64_t t = 16384, dm = 512;
  attn_tensor x = c.rows(1, t, dm), y = c.rows(1, t / 64, dm);
  attn_sinkhorn_params p = {};
  p.block = 64;
  c.bytes = 4.0 * (double)(t * dm);
  c.run = [=](attn_ctx *ctx) { return attn_sinkhorn_blocks(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinkhorn_blocks_workspace(y, x, &p, ctx); };
}

/* --- Edges. */

/* The network that draws edges, with weights of one head. */
attn_sac_params sac_network(Call &c, int64_t de, int64_t dh) {
  attn_sac_params p = {};
  p.lstm.w_ih = c.rows(1, 4 * dh, de, 0.1f), p.lstm.w_hh = c.rows(1, 4 * dh, dh, 0.1f);
  p.w_p = c.rows(1, de, dh, 0.1f);
  p.dist = c.rows(1, 33, de);
  return p;
}

void lstm_step(Call &c) {
  constexpr int64_t n = 64, dx = 512, dh = 512;
  attn_tensor x = c.rows(1, n, dx), h = c.rows(1, n, dh), m = c.rows(1, n, dh),
              h2 = c.rows(1, n, dh), m2 = c.rows(1, n, dh);
  attn_lstm_params p = sac_network(c, dx, dh).lstm;
  c.flops = 8.0 * (double)(n * dh * (dx + dh));
  c.run = [=](attn_ctx *ctx) { return attn_lstm_step(h2, m2, x, h, m, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_lstm_step_workspace(h2, m2, x, h, m, &p, ctx); };
}

void pointer_logits(Call &c) {
  constexpr int64_t m = 16, t = 4096, de = 128, dh = 256;
  attn_tensor h = c.rows(1, m, dh), e = c.rows(1, t, de), y = c.rows(1, m, t);
  attn_sac_params p = sac_network(c, de, dh);
  c.flops = 2.0 * (double)(m * de * (t + dh));
  c.run = [=](attn_ctx *ctx) { return attn_pointer_logits(y, h, e, nullptr, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_pointer_logits_workspace(y, h, e, nullptr, &p, ctx);
  };
}

void choose(Call &c) {
  constexpr int64_t m = 64, t = 4096;
  attn_tensor y = c.rows(1, m, t);
  int32_t *choice = c.steps(m, 0);
  c.bytes = 4.0 * (double)(m * t);
  c.run = [=](attn_ctx *ctx) {
    return attn_choose(choice, nullptr, y, nullptr, nullptr, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_choose_workspace(choice, nullptr, y, nullptr, nullptr, nullptr, ctx);
  };
}

void sac_edges(Call &c) {
  constexpr int64_t t = 512, de = 128, dh = 128;
  attn_tensor e = c.rows(1, t, de);
  attn_sac_params p = sac_network(c, de, dh);
  p.alpha = 1;
  int32_t *edges = c.steps(2 * t, 0), *count = c.steps(1, 0);
  c.flops = 4.0 * (double)(t * (4 * dh * (de + dh) + de * (t + dh)));
  c.run = [=](attn_ctx *ctx) { return attn_sac_edges(edges, count, nullptr, e, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_sac_edges_workspace(edges, count, nullptr, e, &p, ctx);
  };
}

/* Edges to random targets, in lists and attended. */
void sac(Call &c, int attend) {
  constexpr int64_t t = 16384, n = 16 * t;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim),
              o = c.rows(1, t, kDim);
  int32_t *edges = c.steps(2 * n, 0), *count = c.steps(1, 0);
  attn_sac_params p = {};
  std::uniform_int_distribution<int32_t> node(0, (int32_t)t - 1);
  for (int64_t i = 0; i < n; i++)
    edges[2 * i] = (int32_t)(i % t), edges[2 * i + 1] = node(c.random);
  *count = (int32_t)n;
  if (attend) {
    c.pairs(n + t);
    c.run = [=](attn_ctx *ctx) { return attn_sac(o, q, k, v, edges, count, n, q, &p, ctx); };
    c.size = [=](const attn_ctx *ctx) {
      return attn_sac_workspace(o, q, k, v, edges, count, n, q, &p, ctx);
    };
    return;
  }
  int64_t *ptr = (int64_t *)(void *)c.numbers(2 * (t + 1), 1);
  int32_t *col = c.steps(attn_sac_room(t, n, &p), 0);
  c.bytes = 12.0 * (double)n;
  c.run = [=](attn_ctx *ctx) { return attn_sac_csr(ptr, col, edges, count, 1, n, t, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_sac_csr_workspace(ptr, col, edges, count, 1, n, t, &p, ctx);
  };
}

const CallEntry entries[] = {
    {"topk_sdpa", "T:4096/k:32/d:64", [](Call &c) { topk_sdpa(c, ATTN_TOPK_EXACT); }},
    {"topk_sdpa", "T:4096/k:32/d:64/ties", [](Call &c) { topk_sdpa(c, ATTN_TOPK_TIES); }},
    {"topk_sdpa", "T:4096/d:64/abs", [](Call &c) { topk_sdpa(c, ATTN_TOPK_ABS); }},
    {"topk_sdpa", "T:4096/d:64/rel", [](Call &c) { topk_sdpa(c, ATTN_TOPK_REL); }},
    {"topk_select", "T:4096/k:32/d:64", topk_select},
    {"lsh_hash", "T:16384/b:16,32/n:4/d:64", [](Call &c) { lsh(c, 16, 32, 1); }},
    {"lsh", "T:16384/m:64/n:4/d:64", [](Call &c) { lsh(c, 16, 32, 0); }},
    {"lsh", "T:16384/m:128/n:4/d:64", [](Call &c) { lsh(c, 16, 16, 0); }},
    {"lsh_qk", "T:16384/b:256/n:4/d:64", lsh_qk},
    {"mra", "b:32/exact:8/T:4096/d:64", [](Call &c) { mra(c, 32, 8, 0); }},
    {"mra", "b:32/exact:8/T:4096/d:64/sparse", [](Call &c) { mra(c, 32, 8, 1); }},
    {"mra", "b:64/exact:8/T:4096/d:64", [](Call &c) { mra(c, 64, 8, 0); }},
    {"yoso_dense", "T:4096/d:64", [](Call &c) { yoso(c, 4096, 0); }},
    {"yoso", "T:4096/d:64", [](Call &c) { yoso(c, 4096, 1); }},
    {"yoso", "T:4096/d:64/unit", [](Call &c) { yoso(c, 4096, 2); }},
    {"yoso_sample", "m:64/T:1024/d:64", [](Call &c) { yoso_sample(c, 1024, 64); }},
    {"yoso_sample", "m:64/T:4096/d:64", [](Call &c) { yoso_sample(c, 4096, 64); }},
    {"yoso_sample", "m:32/T:16384/d:64", [](Call &c) { yoso_sample(c, 16384, 32); }},
    {"routing_select", "C:64/T:4096/d:64", routing_select},
    {"routing_attend", "C:64/T:4096/d:64", routing_attend},
    {"routing", "C:128/T:16384/d:64", [](Call &c) { routing(c, 0); }},
    {"routing", "C:128/T:16384/d:64/shared/causal", [](Call &c) { routing(c, 1); }},
    {"routing_update", "C:64/T:4096/d:64", routing_update},
    {"routing_start", "C:256/T:65536/d:64", routing_start},
    {"gate", "P:4/T:1024/dx:64", gate},
    {"dispatch_select", "P:4/k:1/T:1024", dispatch_select},
    {"dispatch", "P:4/k:1/T:1024/d:64", dispatch},
    {"mixture", "P:4/T:1024/d:64", mixture},
    {"gated", "P:4/k:1/T:1024/d:64", gated},
    {"sinkhorn", "b:64/T:16384/d:64", [](Call &c) { sinkhorn(c, 16384, 64, 0, 0); }},
    {"sinkhorn", "b:64/T:16384/d:64/causal", [](Call &c) { sinkhorn(c, 16384, 64, 0, 1); }},
    {"sinkhorn", "b:64/T:16384/d:64/hard", [](Call &c) { sinkhorn(c, 16384, 64, 1, 0); }},
    {"sortcut", "n:4/b:64/T:16384/d:64", [](Call &c) { sortcut(c, 16384, 64, 4); }},
    {"sinkhorn_balance", "NB:256", sinkhorn_balance},
    {"sinkhorn_balance", "NB:256/h:8", [](Call &c) { c.heads = 8, sinkhorn_balance(c); }},
    {"sinkhorn_choose", "NB:256/h:8", sinkhorn_choose},
    {"sinkhorn_logits", "NB:256/dm:512/m:256/h:8", sinkhorn_logits},
    {"sinkhorn_blocks", "b:64/T:16384/d:512", sinkhorn_blocks},
    {"lstm_step", "n:64/dx:512/dh:512", lstm_step},
    {"pointer_logits", "n:16/T:4096/d:128", pointer_logits},
    {"choose", "n:64/T:4096", choose},
    {"sac_edges", "alpha:1/T:512/d:128", sac_edges},
    {"sac_csr", "alpha:16/T:16384", [](Call &c) { sac(c, 0); }},
    {"sac", "alpha:16/T:16384/d:64", [](Call &c) { sac(c, 1); }},
};

}  // namespace

void register_content(const Selection &s) { register_calls(s, entries); }
