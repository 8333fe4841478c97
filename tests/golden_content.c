/* tests/golden_content.c owns the golden calls of attention whose pairs depend on content. */

#include "golden_calls.h"

static attn_status topk(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_topk_params p;
  memset(&p, 0, sizeof p);
  p.k = 7, p.attention.causal = 1, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_topk_sdpa(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

/* The keys near the best one, as lists that another call attends. */
static attn_status topk_lists(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_topk_params p;
  attn_edges_params e;
  memset(&p, 0, sizeof p), memset(&e, 0, sizeof e);
  p.mode = ATTN_TOPK_REL, p.bound = 1.5f, p.edges = T * T;
  p.indptr = test_mem((size_t)(2 * (T + 1)) * sizeof *p.indptr);
  p.col = test_mem((size_t)(2 * p.edges) * sizeof *p.col);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_status status = attn_topk_select(q, k, &p, ctx);
  if (status != ATTN_OK) return status;
  e.indptr = p.indptr, e.col = p.col, e.edges = p.edges, e.lse = lse;
  e.per_head = e.slack = 1;
  return attn_edges(o, q, k, golden_exact(rng, 2, T, DV), &e, ctx);
}

static attn_status lsh(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t factors[2] = {2, 4};
  attn_lsh_params p;
  memset(&p, 0, sizeof p);
  p.rounds = 3, p.factors = factors, p.factor_count = 2, p.seed = 5;
  p.causal = p.keep_duplicates = 1, p.lse = lse;
  attn_tensor x = golden_exact(rng, 2, T, DK);
  return attn_lsh(o, x, golden_exact(rng, 1, T, DV), NULL, &p, ctx);
}

static attn_status lsh_qk(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t factors[1] = {6};
  attn_lsh_params p;
  memset(&p, 0, sizeof p);
  p.rounds = 2, p.factors = factors, p.factor_count = 1, p.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_lsh_qk(o, q, k, golden_exact(rng, 2, T, DV), NULL, NULL, &p, ctx);
}

static attn_status routing(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_routing_params p;
  memset(&p, 0, sizeof p);
  p.w = p.wk = 20, p.causal = 1, p.combine = ATTN_ROUTING_UNION, p.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  attn_tensor v = golden_exact(rng, 1, T, DV), mu = golden_exact(rng, 2, 5, DK);
  return attn_routing(o, q, k, v, mu, &p, ctx);
}

static attn_status routing_update(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_routing_params p;
  attn_routing_update_params u;
  memset(&p, 0, sizeof p), memset(&u, 0, sizeof u);
  u.decay = 0.5f, u.renormalize = 1;
  attn_tensor q = golden_exact(rng, 2, 90, DV), k = golden_exact(rng, 2, 80, DV);
  test_fill_value(lse, 0);
  return attn_routing_update(o, q, k, golden_exact(rng, 2, T, DV), &p, &u, ctx);
}

static attn_status gated(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_mixture_params p;
  attn_sdpa_params causal;
  attn_expert path[3];
  memset(&p, 0, sizeof p), memset(&causal, 0, sizeof causal), memset(path, 0, sizeof path);
  p.k = 2, p.capacity = 50, p.temperature = 0.5f, causal.causal = 1;
  for (int n = 0; n < 3; n++) {
    path[n].q = golden_exact(rng, 2, T, DK), path[n].k = golden_exact(rng, 1, T + n, DK);
    path[n].v = golden_exact(rng, 2, T + n, DV);
  }
  path[1].params = &causal;
  attn_tensor x = golden_exact(rng, 1, T, 9), w = golden_exact(rng, 2, 9, 3);
  test_fill_value(lse, 0);
  return attn_gated(o, path, 3, x, w, &p, ctx);
}

static attn_status sinkhorn(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sinkhorn_params p;
  memset(&p, 0, sizeof p);
  p.block = 10, p.gumbel = 1, p.seed = 3, p.lse = lse;
  p.logits = golden_exact(rng, 2, 7, 7);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_sinkhorn(o, q, k, golden_exact(rng, 2, T, DV), absent(), &p, ctx);
}

/* Logits of the network, balanced without looking ahead. */
static attn_status sinkhorn_causal(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sinkhorn_params p;
  memset(&p, 0, sizeof p);
  p.block = 10, p.causal = p.diag = 1, p.balance = ATTN_BALANCE_CUMULATIVE, p.lse = lse;
  p.w_1 = golden_exact(rng, 2, DK, 6), p.w_2 = golden_exact(rng, 1, 6, 7);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_sinkhorn(o, q, k, golden_exact(rng, 2, T, DV), absent(), &p, ctx);
}

static attn_status sortcut(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sinkhorn_params p;
  memset(&p, 0, sizeof p);
  p.block = 10, p.hard = p.local = 1, p.cut = 3, p.lse = lse;
  p.logits = golden_exact(rng, 1, 7, 7);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_sortcut(o, q, k, golden_exact(rng, 1, T, DV), absent(), &p, ctx);
}

static attn_status sac(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sac_params p;
  memset(&p, 0, sizeof p);
  p.lstm.w_ih = golden_exact(rng, 1, 20, 6), p.lstm.w_hh = golden_exact(rng, 1, 20, 5);
  p.w_p = golden_exact(rng, 1, 6, 5), p.dist = golden_exact(rng, 2, 9, 6);
  p.heads = 2, p.alpha = 2.5, p.sampled = 1, p.seed = 9, p.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_tensor v = golden_exact(rng, 2, T, DV);
  return attn_sac(o, q, k, v, NULL, NULL, 0, golden_exact(rng, 1, T, 6), &p, ctx);
}

const golden_call golden_content[] = {{"topk", topk},
                                      {"topk lists", topk_lists},
                                      {"lsh", lsh},
                                      {"lsh qk", lsh_qk},
                                      {"routing", routing},
                                      {"routing update", routing_update},
                                      {"gated", gated},
                                      {"sinkhorn", sinkhorn},
                                      {"sinkhorn causal", sinkhorn_causal},
                                      {"sortcut", sortcut},
                                      {"sac", sac},
                                      {NULL, NULL}};
