/* tests/golden_compound.c owns the compound calls whose bits are golden: one of each. */

#include "golden_calls.h"

attn_tensor golden_exact(test_rng *rng, int64_t heads, int64_t len, int64_t dim) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, len, dim);
  test_fill(t, rng, test_exact);
  return t;
}

attn_tensor golden_weight(test_rng *rng, int64_t len, int64_t dim) {
  attn_tensor t = golden_exact(rng, 1, len, dim);
  for (int64_t i = 0; i < len * dim; i++) ((float *)t.data)[i] *= 0.125f;
  return t;
}

attn_norm golden_norm(test_rng *rng, int64_t dim) {
  attn_norm norm;
  memset(&norm, 0, sizeof norm);
  norm.gain = golden_exact(rng, 1, 1, dim).data, norm.bias = golden_exact(rng, 1, 1, dim).data;
  norm.eps = 0.25f;
  return norm;
}

attn_feed_forward golden_feed(test_rng *rng, int64_t dim, int64_t hidden, attn_activation act) {
  attn_feed_forward ff;
  memset(&ff, 0, sizeof ff);
  ff.w_1 = golden_weight(rng, dim, hidden), ff.b_1 = golden_weight(rng, 1, hidden);
  ff.w_2 = golden_weight(rng, hidden, dim), ff.b_2 = golden_weight(rng, 1, dim);
  ff.activation = act;
  return ff;
}

attn_tensor golden_rows(attn_tensor o, int64_t h, int64_t len, int64_t dim) {
  const attn_tensor head = test_one(o, 0, 1, h, 1);
  assert_true(len * dim <= T * DV);
  test_fill_value(head, 0);
  return attn_bhtd(head.data, ATTN_F32, 1, 1, len, dim);
}

static attn_status star(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK),
              v = golden_exact(rng, 2, T, DV);
  attn_star_params p;
  memset(&p, 0, sizeof p);
  p.lse = lse, p.width = 5;
  p.k_own = golden_exact(rng, 2, T, DK), p.v_own = golden_exact(rng, 2, T, DV);
  attn_tensor k_relay = golden_exact(rng, 2, 1, DK), v_relay = golden_exact(rng, 1, 1, DV);
  return attn_star_satellites(o, q, k, v, k_relay, v_relay, &p, ctx);
}

static attn_status longformer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t window[2] = {7, 3}, dilation[2] = {1, 4}, global[3] = {0, 31, 69};
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK),
              v = golden_exact(rng, 2, T, DV);
  attn_longformer_params p;
  memset(&p, 0, sizeof p);
  p.lse = lse, p.window = window, p.dilation = dilation, p.global = global, p.globals = 3;
  p.q_global = golden_exact(rng, 2, 3, DK), p.k_global = k,
  p.v_global = golden_exact(rng, 2, T, DV);
  return attn_longformer(o, q, k, v, &p, ctx);
}

static attn_status etc(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_tensor q = golden_exact(rng, 2, T, DK), qg = golden_exact(rng, 2, 9, DK), k[4], v[4];
  attn_tensor other = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, DV);
  attn_etc_params p;
  memset(&p, 0, sizeof p);
  p.lse_long = lse, p.radius = 11, p.by_distance = 1, p.clip = 3;
  p.table_long = golden_exact(rng, 2, 8, DK), p.table_global = golden_exact(rng, 1, 8, DK);
  for (int n = 0; n < 4; n++) {
    int64_t rows = n == ATTN_ETC_L2G || n == ATTN_ETC_G2G ? 9 : T;
    k[n] = golden_exact(rng, 2, rows, DK), v[n] = golden_exact(rng, 1, rows, DV);
  }
  return attn_etc(o, other, q, qg, k, v, &p, ctx);
}

static attn_status tree(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK),
              v = golden_exact(rng, 2, T, DV);
  attn_tree_params p;
  memset(&p, 0, sizeof p);
  p.lse = lse, p.tokens = 33, p.k = 2; /* 33 + 17 + 9 + 5 + 3 + 2 + 1 = 70 nodes */
  p.table = golden_exact(rng, 1, 5 * 7, DK);
  return attn_tree(o, q, k, v, &p, ctx);
}

static attn_status segmented(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK),
              v = golden_exact(rng, 2, T, DV);
  attn_segmented_params p;
  memset(&p, 0, sizeof p);
  p.lse = lse, p.length = 12, p.causal = 1, p.integrate = ATTN_INTEGRATE_TOKEN;
  p.aggregate.kind = ATTN_AGGREGATE_ATTENTION;
  p.aggregate.w = golden_exact(rng, 2, DV, 5);
  p.aggregate.u = golden_exact(rng, 1, 1, 5).data;
  p.w_v = golden_exact(rng, 1, DV, DV);
  return attn_segmented(o, q, k, v, &p, ctx);
}

static attn_status hierarchy(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t offsets[6] = {0, 9, 30, 31, 50, T};
  static const int32_t *const all[1] = {offsets};
  static const int64_t units[2] = {T, 5};
  attn_hierarchy_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.levels = 2, p.units = units, p.indptr = all;
  return attn_hierarchy(o, golden_exact(rng, 2, T, DV), &p, ctx);
}

static attn_status xl(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_segment_layer_params p;
  memset(&p, 0, sizeof p);
  p.sublayer = ATTN_SUBLAYER_PLAIN, p.attention.lse = lse, p.attention.scale = 0.01f;
  p.heads = 2, p.memory.rows = golden_exact(rng, 1, 40, 150), p.memory.len = 40;
  p.w_q = golden_exact(rng, 1, 150, 2 * DK), p.w_k = golden_exact(rng, 1, 150, 2 * DK);
  p.w_r = golden_exact(rng, 1, 150, 2 * DK), p.w_v = golden_exact(rng, 1, 150, 2 * DV);
  return attn_segment_layer(o, golden_exact(rng, 1, T, 150), &p, ctx);
}

static attn_status recursive(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_recursive_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.kv_heads = 1, p.lse = lse, p.scale = 0.01f, p.alpha = 0.3f;
  p.w_q = golden_exact(rng, 1, DV, 2 * DK), p.w_k = golden_exact(rng, 1, DV, DK);
  p.w_v = golden_exact(rng, 1, DV, DV), p.w_o = golden_exact(rng, 1, 2 * DV, DV);
  /* o has two heads: one is the segment's output, the other its memory */
  attn_tensor next = test_one(o, 0, 1, 1, 1), own = test_one(o, 0, 1, 0, 1);
  attn_tensor x = golden_exact(rng, 1, T, DV), memory = golden_exact(rng, 1, T, DV);
  return attn_recursive(own, next, x, memory, &p, ctx);
}

/* The second head's matrix from panels of one that is stored transposed. */
static attn_status gemm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_gemm_params p;
  attn_tensor x = golden_exact(rng, 2, T, 150), w = golden_exact(rng, 1, 150, DV),
              turned = golden_exact(rng, 1, DV, 150);
  memset(&p, 0, sizeof p);
  p.scale = 0.01f, p.bias = golden_exact(rng, 1, 1, DV), p.activation = ATTN_ACT_GELU;
  attn_status status = attn_gemm(test_one(o, 0, 1, 0, 1), test_one(x, 0, 1, 0, 1), w, &p, ctx);
  p.w_transposed = 1, p.activation = ATTN_ACT_SILU;
  if (status == ATTN_OK)
    status = attn_gemm(test_one(o, 0, 1, 1, 1), test_one(x, 0, 1, 1, 1), turned, &p, ctx);
  memset(&p, 0, sizeof p);
  p.scale = 0.01f, p.activation = ATTN_ACT_TANH;
  return status == ATTN_OK ? attn_gemm(lse, x, golden_exact(rng, 2, 150, 1), &p, ctx) : status;
}

static attn_mab_params mab(test_rng *rng) {
  attn_mab_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.scale = 0.01f;
  p.w_q = golden_exact(rng, 1, DV, DV), p.w_k = golden_exact(rng, 1, DV, DV),
  p.w_v = golden_exact(rng, 1, DV, DV);
  p.w_o = golden_exact(rng, 1, DV, DV), p.ff.w_1 = golden_exact(rng, 1, DV, DV);
  return p;
}

/* One head the rows of an induced block, the other seeds that pool them in the other form. */
static attn_status sets(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_isab_params p;
  attn_pma_params pool;
  p.induce = mab(rng), p.restore = mab(rng);
  memset(&pool, 0, sizeof pool);
  pool.block = mab(rng), pool.block.form = ATTN_SET_REFERENCE, pool.block.w_o.data = NULL;
  attn_tensor x = golden_exact(rng, 1, T, DV), points = golden_exact(rng, 1, 7, DV),
              seeds = golden_exact(rng, 1, T, DV);
  test_fill_value(lse, 0);
  attn_status status = attn_isab(test_one(o, 0, 1, 0, 1), x, points, &p, ctx);
  if (status != ATTN_OK) return status;
  return attn_pma(test_one(o, 0, 1, 1, 1), x, seeds, &pool, ctx);
}

static attn_status luna(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_luna_layer_params p;
  memset(&p, 0, sizeof p);
  attn_luna_params *a = &p.attention;
  a->heads = 2, a->pack_heads = 4;
  a->w_pq = golden_exact(rng, 1, DV, DV), a->w_pk = a->w_pv = golden_exact(rng, 1, DV, DV);
  a->w_q = golden_exact(rng, 1, DV, DV), a->w_k = a->w_v = golden_exact(rng, 1, DV, DV);
  a->w_o = golden_exact(rng, 1, DV, DV);
  p.ff.w_1 = golden_exact(rng, 1, DV, 33), p.ff.w_2 = golden_exact(rng, 1, 33, DV);
  attn_tensor x = golden_exact(rng, 1, T, DV), few = golden_exact(rng, 1, T, DV);
  test_fill_value(lse, 0);
  return attn_luna_layer(test_one(o, 0, 1, 0, 1), test_one(o, 0, 1, 1, 1), x, few, absent(), &p,
                         ctx);
}

/* 67 tokens: a chunk, then three one by one; the rest has no tokens. */
static attn_status luna_causal(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t len[1] = {67};
  attn_luna_causal_params p;
  memset(&p, 0, sizeof p);
  p.q_len = len;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK),
              v = golden_exact(rng, 2, T, DV);
  attn_tensor few = golden_exact(rng, 2, 19, DK);
  test_fill_value(lse, 0);
  return attn_luna_causal(o, q, k, v, few, &p, ctx);
}

static const golden_call calls[] = {{"star", star},
                                    {"longformer", longformer},
                                    {"etc", etc},
                                    {"tree", tree},
                                    {"segmented", segmented},
                                    {"hierarchy", hierarchy},
                                    {"xl layer", xl},
                                    {"recursive", recursive},
                                    {"gemm", gemm},
                                    {"sets", sets},
                                    {"luna", luna},
                                    {"luna causal", luna_causal},
                                    {NULL, NULL}};

const char *golden_compound(int n, attn_tensor *o, attn_tensor *lse) {
  static const golden_call *const lists[] = {
      calls,          golden_content,   golden_heads,    golden_blocks, golden_depth,
      golden_options, golden_selection, golden_reshaped, golden_latent, golden_path,
      golden_hashes,  golden_sparse,    golden_levels,   golden_today,  golden_training};
  const golden_call *g = NULL;
  for (int at = n, l = 0; l < (int)(sizeof lists / sizeof *lists) && (!g || !g->name); l++)
    for (g = lists[l]; g->name && at > 0; g++) at--;
  if (!g->name) return NULL;
  test_rng rng = test_seed(4000 + (uint64_t)n);
  attn_ctx ctx = test_ctx();
  if (o) {
    *o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
    *lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 1);
    if (g->call(*o, *lse, &rng, &ctx) != ATTN_OK && !test_poison)
      fail_msg("%s: %s", g->name, ctx.reason);
  }
  return g->name;
}
