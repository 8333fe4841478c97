/* tests/golden_latent.c owns the golden calls of latent rows, factors of heads, and memories of segments. */

#include "golden_calls.h"

/* Expanded for a prompt, absorbed for the tokens behind it, with pages. */
static attn_status latent_layer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_mla_params p;
  attn_cache cache;
  attn_sequence held;
  const attn_cache_params c = {
      .k_dtype = ATTN_BF16, .k_heads = 1, .dk = 12, .dv = 8, .latent = 1, .pages = T, .page = 4};
  const size_t size = attn_cache_size(&c);
  memset(&p, 0, sizeof p);
  p.heads = 2, p.rope_dim = 4, p.cache = &cache, p.held = &held;
  const attn_tensor x = golden_exact(rng, 1, T, DV), all = o;
  p.w_uq = golden_exact(rng, 1, DV, 2 * 9), p.w_dkv = golden_exact(rng, 1, DV, 12);
  p.w_ukv = golden_exact(rng, 1, 8, 2 * 8), p.w_o = golden_exact(rng, 1, 2 * 3, DV);
  if (attn_cache_open(&cache, test_mem(size), size, &c, ctx) != ATTN_OK) return ATTN_E_VALUE;
  if (attn_sequence_init(&held, test_mem(4 * T), T, ctx) != ATTN_OK) return ATTN_E_VALUE;
  test_fill_value(all, 0);
  o.heads = 1;
  for (int64_t i = 0, n; i < T; i += n) {
    attn_mla_params now = p;
    n = i ? 1 : T - 3;
    now.lse = test_rows(lse, i, n);
    const attn_status status = attn_mla(test_rows(o, i, n), test_rows(x, i, n), &now, ctx);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Factors of a prompt, and of tokens behind it, whose heads are rotated. */
static attn_status factor_heads(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_tpa_params p;
  attn_rope_params rope;
  attn_cache cache;
  attn_sequence held;
  attn_factors x[3];
  const attn_cache_params c = {.k_dtype = ATTN_F16,
                               .v_dtype = ATTN_BF16,
                               .k_heads = 1,
                               .dk = 2 * (2 + DK),
                               .dv = 3 * (2 + DV),
                               .pages = T,
                               .page = 5};
  const size_t size = attn_cache_size(&c);
  memset(&p, 0, sizeof p), memset(&rope, 0, sizeof rope);
  p.rope = &rope, p.cache = &cache, p.held = &held;
  for (int i = 0; i < 3; i++) {
    const int64_t rank = i ? 1 + i : 4;
    x[i].a = golden_exact(rng, rank, T, 2), x[i].b = golden_exact(rng, rank, T, i < 2 ? DK : DV);
  }
  if (attn_cache_open(&cache, test_mem(size), size, &c, ctx) != ATTN_OK) return ATTN_E_VALUE;
  if (attn_sequence_init(&held, test_mem(4 * T), T, ctx) != ATTN_OK) return ATTN_E_VALUE;
  for (int64_t i = 0, n; i < T; i += n) {
    attn_tpa_params now = p;
    attn_factors some[3];
    n = i ? 1 : T - 3, now.lse = test_rows(lse, i, n);
    for (int w = 0; w < 3; w++)
      some[w].a = test_rows(x[w].a, i, n), some[w].b = test_rows(x[w].b, i, n);
    const attn_status status =
        attn_tpa(test_rows(o, i, n), &some[0], &some[1], &some[2], &now, ctx);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Segments of two calls, the second with the delta rule, and their memory. */
static attn_status infini_segments(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const float beta[2] = {0.5f, -1.25f};
  attn_infini_params p;
  memset(&p, 0, sizeof p);
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  const attn_tensor v = golden_exact(rng, 1, T, DV);
  p.segment = 20, p.beta = beta, p.memory = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, DK, DV);
  p.z = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, DK);
  test_fill_value(p.memory, 0), test_fill_value(p.z, 0), test_fill_value(lse, 0);
  for (int64_t i = 0; i < T; i += 40) {
    const int64_t n = T - i < 40 ? T - i : 40;
    p.delta = i > 0;
    const attn_status status = attn_infini(test_rows(o, i, n), test_rows(q, i, n),
                                           test_rows(k, i, n), test_rows(v, i, n), &p, ctx);
    if (status != ATTN_OK) return status;
  }
  for (int64_t i = 0; i < DK; i++) oracle_set(&lse, 0, 0, i, 0, oracle_get(&p.z, 0, 0, 0, i));
  for (int64_t i = 0; i < DK; i++) oracle_set(&lse, 0, 1, i, 0, oracle_get(&p.memory, 0, 0, i, 3));
  return ATTN_OK;
}

const golden_call golden_latent[] = {{"latent layer", latent_layer},
                                     {"factor heads", factor_heads},
                                     {"infini segments", infini_segments},
                                     {NULL, NULL}};
