/* choice_cases.cpp owns the entries of attention whose rows, blocks or edges a small network chooses:
 * paths, Sinkhorn sorting, drawn edges. */

#include "functions.h"

namespace {

/* --- Paths. */

struct Paths {
  static constexpr int64_t len = 1024, count = 4, dx = 64;
  attn_path path[count];
  attn_tensor x, w, pi, weight, o;
  int32_t *list;
  attn_mixture_params p;
};

Paths paths(Call &c) {
  Paths y = {};
  for (attn_path &p : y.path)
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
  attn_tensor r = c.rows(1, nb, nb), p = c.rows(1, nb, nb);
  c.bytes = 8.0 * 4 * 8 * (double)(nb * nb);
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

void register_choice_calls(const Selection &sel) { register_calls(sel, entries); }
