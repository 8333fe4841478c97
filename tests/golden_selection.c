/* tests/golden_selection.c owns the golden calls of selections of keys, learned, by structure, and of caches. */

#include "golden_calls.h"

static attn_status moba(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_moba_params p;
  memset(&p, 0, sizeof p);
  p.block = 9, p.k = 3, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_moba(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status quest(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_quest_params p;
  memset(&p, 0, sizeof p);
  p.page = 6, p.pages = 4, p.last_competes = 1, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_quest(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status dsa(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_dsa_params p;
  memset(&p, 0, sizeof p);
  p.k = 17, p.attention.lse = lse;
  p.qi = golden_exact(rng, 3, T, 8), p.ki = golden_exact(rng, 1, T, 8),
  p.wi = golden_exact(rng, 1, T, 3);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_dsa(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

static attn_status nsa(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_nsa_params p;
  attn_nsa_compress_params c;
  memset(&p, 0, sizeof p), memset(&c, 0, sizeof c);
  p.block = c.block = 4, p.stride = c.stride = 2, p.select = 6, p.blocks = 5, p.window = 9;
  p.gate = golden_exact(rng, 2, T, 3);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK),
              v = golden_exact(rng, 1, T, DV);
  c.w = golden_weight(rng, 4 * DK, DK), c.e = golden_exact(rng, 1, 4, DK);
  p.k_cmp = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 34, DK);
  const attn_status s = attn_nsa_compress(p.k_cmp, k, &c, ctx);
  test_fill_value(lse, 0);
  return s ? s : attn_nsa(o, q, k, v, &p, ctx);
}

/* Attention over the blocks that an estimate chooses. */
static attn_status prefill_call(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                                int slash) {
  enum { BLOCK = 8, BLOCKS = (T + BLOCK - 1) / BLOCK };
  static uint8_t mask[2 * BLOCKS * BLOCKS];
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  const attn_tensor v = golden_exact(rng, 1, T, DV);
  attn_pattern chosen = attn_pattern_block_mask(mask, BLOCK, BLOCK);
  attn_schedule schedule = {0};
  attn_xattention_params x = {0};
  attn_vertical_slash_params y = {0};
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  x.block = y.block = BLOCK, x.stride = 4, x.gamma = y.gamma = 0.75f;
  x.scale = y.scale = 0.03125f, y.queries = 16, y.has_sink = y.has_near_by = 1,
  y.sink = y.near_by = 2;
  attn_status status =
      slash ? attn_vertical_slash(mask, q, k, &y, ctx) : attn_xattention(mask, q, k, &x, ctx);
  chosen.bits_heads = 2, chosen.causal = 1, p.schedule = &schedule, p.lse = lse;
  if (!status) status = attn_schedule_build(&schedule, &chosen, 2, T, T, NULL, ctx);
  if (!status) status = attn_sdpa(o, q, k, v, &p, ctx);
  attn_schedule_free(&schedule);
  return status;
}

static attn_status xattention(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return prefill_call(o, lse, rng, ctx, 0);
}

static attn_status vertical_slash(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return prefill_call(o, lse, rng, ctx, 1);
}

/* Scores of keys, and the values that stay. */
static attn_status snapkv(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static int32_t kept[2 * 30];
  const attn_tensor q = golden_exact(rng, 4, T, DK), k = golden_exact(rng, 2, T, DK);
  const attn_tensor none = {0};
  attn_snapkv_params p = {0};
  attn_evict_choose_params c = {0};
  p.window = 16, p.scale = 0.03125f, c.capacity = 30, c.has_recent = 1, c.recent = 16;
  test_copy(o, golden_exact(rng, 2, T, DV));
  attn_status status = attn_snapkv(lse, q, k, &p, ctx);
  if (!status) status = attn_evict_choose(kept, lse, &c, ctx);
  return status ? status : attn_evict(o, none, kept, 30, NULL, ctx);
}

static attn_status h2o(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  const attn_tensor q = golden_exact(rng, 4, T, DK), k = golden_exact(rng, 2, T, DK);
  attn_tensor sums = o;
  attn_h2o_params p = {0};
  p.scale = 0.03125f, sums.dim = 2;
  test_fill_value(o, 0), test_fill_value(lse, 0);
  return attn_h2o(sums, q, k, &p, ctx);
}

/* Pairs by structure: 70 rows are 35 noised and 35 clean tokens, or a grid of 7 x 10. */
static attn_status structure(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                             attn_pattern pattern) {
  attn_sdpa_params p;
  attn_schedule s;
  memset(&p, 0, sizeof p);
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  const attn_tensor v = golden_exact(rng, 1, T, DV);
  attn_status status = attn_schedule_build(&s, &pattern, 2, T, T, NULL, ctx);
  if (status != ATTN_OK) return status;
  p.schedule = &s, p.lse = lse;
  status = attn_sdpa(o, q, k, v, &p, ctx);
  attn_schedule_free(&s);
  return status;
}

static attn_status block_diffusion(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return structure(o, lse, rng, ctx, attn_pattern_block_diffusion(4));
}

static attn_status neighborhood(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const attn_axis grid[2] = {{7, 3, 2, 2, 0}, {10, 5, 1, 1, 0}};
  return structure(o, lse, rng, ctx, attn_pattern_neighborhood_axes(grid, 2));
}

/* A tree of 70 drafts behind 41 tokens. */
static attn_status draft_tree(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { PREFIX = 41 };
  int32_t parent[T];
  uint8_t bits[T * ((T + 7) / 8)];
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  for (int i = 0; i < T; i++) parent[i] = (i + 2) / 3 - 1;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, PREFIX + T, DK);
  const attn_tensor v = golden_exact(rng, 1, PREFIX + T, DV);
  const attn_status status = attn_draft_mask(bits, (T + 7) / 8, parent, T);
  if (status != ATTN_OK) return status;
  p.causal = 1, p.mask_new = 1, p.mask = attn_mask_bits(bits, 1, 1, T, T), p.lse = lse;
  return attn_sdpa(o, q, k, v, &p, ctx);
}

const golden_call golden_selection[] = {{"moba", moba},
                                        {"quest", quest},
                                        {"dsa", dsa},
                                        {"nsa", nsa},
                                        {"xattention", xattention},
                                        {"vertical slash", vertical_slash},
                                        {"snapkv", snapkv},
                                        {"h2o", h2o},
                                        {"block diffusion", block_diffusion},
                                        {"neighborhood", neighborhood},
                                        {"draft tree", draft_tree},
                                        {NULL, NULL}};
