/* tests/golden_heads.c owns the golden calls over maps of scores and between heads, and of
 * rows by themselves. */

#include "golden_calls.h"

static attn_status score_mix(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_score_mix_params p;
  memset(&p, 0, sizeof p);
  p.previous = golden_exact(rng, 2, T, T), p.attention.lse = lse;
  p.fresh_weight = 0.75f, p.previous_weight = 0.25f;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_score_mix(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

static attn_status realformer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_realformer_params p;
  memset(&p, 0, sizeof p);
  p.previous = p.scores = golden_exact(rng, 2, T, T);
  p.mean = p.attention.causal = 1, p.layers_below = 2, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  attn_tensor v = golden_exact(rng, 1, T, DV);
  attn_status status = attn_realformer(o, q, k, v, &p, ctx);
  return status == ATTN_OK ? attn_realformer(o, k, q, v, &p, ctx) : status;
}

static attn_status predictive(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const float bias[2] = {0.25f, -1};
  attn_predictive_params p;
  memset(&p, 0, sizeof p);
  p.kernel = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 3, 5);
  test_fill(p.kernel, rng, test_exact);
  p.previous = golden_exact(rng, 2, T, T), p.bias = bias, p.attention.lse = lse;
  p.alpha = 0.75f, p.rule = ATTN_PREDICTIVE_CAUSAL, p.attention.causal = 1;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_predictive(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

static attn_status evolving(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_predictive_params p;
  memset(&p, 0, sizeof p);
  p.kernel = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 5, 3);
  test_fill(p.kernel, rng, test_exact);
  p.previous = golden_exact(rng, 2, T, T), p.scores = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, T);
  p.evolving = 1, p.activation = ATTN_ACT_RELU, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_status status = attn_predictive(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
  if (status == ATTN_OK) memcpy(o.data, p.scores.data, T * DV * sizeof(float)); /* of head 0 */
  return status;
}

static attn_status map_apply(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_map_apply_params p;
  memset(&p, 0, sizeof p);
  p.causal = p.has_q_off = 1, p.q_off = 3;
  test_fill_value(lse, 0);
  attn_tensor map = golden_exact(rng, 2, T, 90);
  return attn_map_apply(o, map, golden_exact(rng, 1, 90, DV), &p, ctx);
}

/* Two layers, a head of the output each. */
static attn_status lazyformer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_lazyformer_params p;
  memset(&p, 0, sizeof p);
  p.attention.window = attn_window_of(30, -1);
  attn_tensor out[2], v[2], q = golden_exact(rng, 1, T, DK), k = golden_exact(rng, 1, T, DK);
  for (int n = 0; n < 2; n++) out[n] = test_one(o, 0, 1, n, 1), v[n] = golden_exact(rng, 1, T, DV);
  test_fill_value(lse, 0);
  return attn_lazyformer(out, &q, &k, v, 2, &p, ctx);
}

static attn_status camtl(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_film_params f;
  attn_camtl_params p;
  memset(&f, 0, sizeof f), memset(&p, 0, sizeof p);
  f.z = golden_exact(rng, 1, 1, 4), f.w_f = golden_exact(rng, 1, 4, 20);
  f.b_f = golden_exact(rng, 1, 1, 20);
  p.blocks = test_tensor(ATTN_F32, TEST_BHTD, 1, 7, 10, 10), p.attention.lse = lse;
  attn_status status = attn_film_blocks(p.blocks, golden_exact(rng, 7, 10, 10), &f, ctx);
  if (status != ATTN_OK) return status;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_camtl(o, q, k, golden_exact(rng, 2, T, DV), &p, ctx);
}

/* Every kind of source at once. */
static attn_status synthesizer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const float logits[ATTN_SYNTHESIZER_COUNT] = {0.5f, -0.25f, 0, 1, 0.75f};
  attn_synthesizer_source s[ATTN_SYNTHESIZER_COUNT];
  attn_synthesizer_params p;
  memset(s, 0, sizeof s), memset(&p, 0, sizeof p);
  for (int n = 0; n < ATTN_SYNTHESIZER_COUNT; n++) {
    s[n].kind = (attn_synthesizer_kind)n;
    s[n].x = golden_exact(rng, 2, T, 9), s[n].net.w_1 = golden_exact(rng, 2, 9, 5);
  }
  s[ATTN_SYNTHESIZER_RANDOM].r = golden_exact(rng, 2, T, T);
  s[ATTN_SYNTHESIZER_RANDOM_FACTORED].r1 = golden_exact(rng, 1, T, 6);
  s[ATTN_SYNTHESIZER_RANDOM_FACTORED].r2 = golden_exact(rng, 2, T, 6);
  s[ATTN_SYNTHESIZER_DENSE].net.w_2 = golden_exact(rng, 2, 5, T);
  s[ATTN_SYNTHESIZER_DENSE_FACTORED].net.w_2 = golden_exact(rng, 2, 5, 10);
  s[ATTN_SYNTHESIZER_DENSE_FACTORED].net_b.w_1 = golden_exact(rng, 2, 9, 4);
  s[ATTN_SYNTHESIZER_DENSE_FACTORED].net_b.w_2 = golden_exact(rng, 2, 4, 7);
  s[ATTN_SYNTHESIZER_DOT].q = golden_exact(rng, 2, T, DK);
  s[ATTN_SYNTHESIZER_DOT].k = golden_exact(rng, 1, T, DK);
  p.sources = s, p.count = p.weights = ATTN_SYNTHESIZER_COUNT, p.logits = logits;
  p.causal = 1, p.lse = lse;
  return attn_synthesizer(o, golden_exact(rng, 2, T, DV), &p, ctx);
}

static attn_status multihead(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_multihead_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.kv_heads = 1, p.attention.lse = lse, p.attention.scale = 0.01f,
  p.attention.causal = 1;
  p.w_q = golden_exact(rng, 1, 30, 2 * DK), p.w_k = golden_exact(rng, 1, 30, DK);
  p.w_v = golden_exact(rng, 1, 30, DV), p.w_o = golden_exact(rng, 1, 2 * DV, DV);
  p.b_q = golden_exact(rng, 1, 1, 2 * DK), p.b_o = golden_exact(rng, 1, 1, DV);
  p.each = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  attn_tensor x = golden_exact(rng, 1, T, 30), none = absent();
  attn_status status = attn_multihead(test_one(o, 0, 1, 0, 1), x, none, none, &p, ctx);
  if (status != ATTN_OK) return status;
  memcpy((float *)o.data + T * DV, p.each.data, T * DV * sizeof(float));
  return ATTN_OK;
}

static attn_status collaborative(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_collaborative_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.attention.lse = lse, p.attention.scale = 0.01f, p.each = o;
  p.w_q = golden_exact(rng, 1, 30, 19), p.w_k = golden_exact(rng, 1, 30, 19);
  p.mix = golden_exact(rng, 1, 2, 19), p.w_c = golden_exact(rng, 1, 30, 2);
  p.w_v = golden_exact(rng, 1, 30, 2 * DV);
  return attn_collaborative(absent(), golden_exact(rng, 1, T, 30), absent(), &p, ctx);
}

/* Dynamic routing beside EM routing: four capsules of five numbers. */
static attn_status capsules(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_capsules_params p;
  attn_capsules_em_params em;
  memset(&p, 0, sizeof p), memset(&em, 0, sizeof em);
  p.w = em.w = test_tensor(ATTN_F32, TEST_BHTD, 3, 4, 6, 5);
  test_fill(p.w, rng, test_exact);
  em.eps = 0.25f;
  attn_tensor x = golden_exact(rng, 3, T, 6);
  test_fill_value(lse, 0);
  attn_status status = attn_capsules(test_one(o, 0, 1, 0, 1), x, &p, ctx);
  return status == ATTN_OK ? attn_capsules_em(test_one(o, 0, 1, 1, 1), x, &em, ctx) : status;
}

static attn_status talking(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_talking_params p;
  memset(&p, 0, sizeof p);
  p.w_l = golden_exact(rng, 1, 4, 2), p.w_w = golden_exact(rng, 1, 2, 2);
  p.attention.causal = 1, p.attention.lse = lse;
  attn_tensor q = golden_exact(rng, 4, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_talking(o, q, k, golden_exact(rng, 1, T, DV), &p, ctx);
}

/* Four losses: their bits become numbers of o. */
static attn_status losses(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const attn_target target[2] = {{ATTN_TARGET_OFFSET, 0.25f, -1, NULL, NULL, 0, 0, 0},
                                        {ATTN_TARGET_UNIFORM, 0.75f, 0, NULL, NULL, 0, 0, 0}};
  static const int32_t heads[3] = {0, 3, 2};
  static const attn_target_group group[1] = {{target, 2, heads, 3}};
  attn_disagreement_params d;
  attn_guided_params g;
  double got[4];
  memset(&d, 0, sizeof d), memset(&g, 0, sizeof g);
  d.v = golden_exact(rng, 4, T, DV), d.o = golden_exact(rng, 4, T, DV);
  d.q = g.q = golden_exact(rng, 4, T, DK), d.k = g.k = golden_exact(rng, 2, T, DK);
  d.attention.causal = 1, g.group = group, g.groups = 1, g.reduction = ATTN_GUIDED_FRO;
  test_fill_value(o, 0), test_fill_value(lse, 0);
  attn_status status = attn_disagreement(got, &d, ctx);
  if (status == ATTN_OK) status = attn_guided_loss(got + 3, &g, ctx);
  if (status == ATTN_OK) memcpy(o.data, got, sizeof got);
  return status;
}

/* Rows with a residual, of which the second head's are far from 0; then a gate. */
static attn_status layer_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_layer_norm_params p;
  attn_tensor x = golden_exact(rng, 2, T, DV), far = golden_exact(rng, 2, T, DV);
  memset(&p, 0, sizeof p);
  p.norm.eps = 0.5f, p.residual = far;
  for (int64_t i = 0; i < T; i++) test_fill_row(far, 0, 1, i, 77);
  attn_activate_params gate = {ATTN_ACT_GELU, x, {0, 0, 0}};
  test_fill_value(lse, 0);
  attn_status status = attn_layer_norm(o, x, &p, ctx);
  return status == ATTN_OK ? attn_activate(o, o, &gate, ctx) : status;
}

const golden_call golden_heads[] = {{"score mix", score_mix},
                                    {"realformer", realformer},
                                    {"predictive", predictive},
                                    {"evolving", evolving},
                                    {"map apply", map_apply},
                                    {"lazyformer", lazyformer},
                                    {"camtl", camtl},
                                    {"synthesizer", synthesizer},
                                    {"multihead", multihead},
                                    {"collaborative", collaborative},
                                    {"capsules", capsules},
                                    {"talking", talking},
                                    {"losses", losses},
                                    {"layer norm", layer_norm},
                                    {NULL, NULL}};
