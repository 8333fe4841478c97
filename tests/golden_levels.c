/* tests/golden_levels.c owns the golden calls of decaying states by rule and by level, of what stands around
 * them, of moving averages, of streams and of experts. */

#include "golden_calls.h"

/* By levels: a delta rule with decays by channel, from a state behind 5 tokens, the last 3 tokens one by one. */
static attn_status log_linear(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.rule = ATTN_RECURRENT_KDA, p.l2norm_qk = 1;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_tensor v = golden_exact(rng, 2, T, DV), w = golden_exact(rng, 2, T, DK);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < DK; c++)
        oracle_set(&w, 0, h, i, c, -fabs(oracle_get(&w, 0, h, i, c)) / (i % 3 ? 16 : 1));
  const attn_tensor lambda = golden_exact(rng, 2, T, 10);
  attn_tensor s = golden_exact(rng, 2, 10 * DK, DV);
  test_fill_value(lse, 0);
  p.initial_state = p.final_state = s;
  for (int64_t i = 0, n; i < T; i += n) {
    const int64_t position = 5 + i;
    n = i ? 1 : T - 3;
    p.decay = test_rows(w, i, n), p.lambda = test_rows(lambda, i, n), p.position = &position;
    const attn_status status = attn_recurrent(test_rows(o, i, n), test_rows(q, i, n),
                                              test_rows(k, i, n), test_rows(v, i, n), &p, ctx);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Both directions; then forwards, 5 tokens and the others, with a state that keeps what rounding left. */
static attn_status damped_ema(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static float unit[2][DV * 3];
  attn_damped_ema_params p;
  memset(&p, 0, sizeof p);
  const attn_tensor beta = golden_exact(rng, 1, DV, 3), eta = golden_exact(rng, 1, DV, 3);
  const attn_tensor x = golden_exact(rng, 1, T, DV), s = golden_exact(rng, 1, DV, 6);
  for (int i = 0; i < DV * 3; i++)
    unit[0][i] = (float)(i % 17) / 16, unit[1][i] = (float)(i % 9) / (i % 2 ? 8 : 4096);
  p.dims = 3, p.forward.alpha = unit[0], p.forward.delta = unit[1];
  p.forward.beta = beta.data, p.forward.eta = eta.data, p.omega = beta.data;
  p.backward = p.forward, p.backward.alpha = unit[1], p.backward.eta = beta.data;
  test_fill_value(lse, 0), test_fill_value(o, 0);
  attn_tensor y = test_one(o, 0, 1, 0, 1), z = test_one(o, 0, 1, 1, 1);
  attn_status status = attn_damped_ema(y, x, &p, ctx);
  memset(&p.backward, 0, sizeof p.backward);
  p.initial_state = p.final_state = s;
  if (status == ATTN_OK) status = attn_damped_ema(test_rows(z, 0, 5), test_rows(x, 0, 5), &p, ctx);
  if (status == ATTN_OK)
    status = attn_damped_ema(test_rows(z, 5, T - 5), test_rows(x, 5, T - 5), &p, ctx);
  return status;
}

/* Heads as entries of a batch. */
static attn_tensor streams_of(attn_tensor t) {
  t.batch = t.heads, t.stride_batch = t.stride_head, t.heads = 1;
  return t;
}

/* N-gram attention: two streams over a main stream of one head; the second lags. */
static attn_status ngram(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_tensor in[4] = {golden_exact(rng, 2, T, DK), golden_exact(rng, 2, T, DK),
                       golden_exact(rng, 2, T, DV), golden_exact(rng, 2, T, 32)};
  const attn_tensor k = golden_exact(rng, 1, T, DK), v = golden_exact(rng, 1, T, DV);
  attn_ngram_params p;
  memset(&p, 0, sizeof p);
  for (int n = 0; n < 4; n++) in[n] = streams_of(in[n]);
  p.relative = in[3], p.lse = streams_of(lse);
  return attn_ngram(streams_of(o), in[0], k, v, in[1], in[2], &p, ctx);
}

/* A rule: logs of decays (one a head, a token, a channel) that fade at most half, unit keys where it corrects itself; all
 * but 4 tokens in chunks, those one by one. */
static attn_status recurrent(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                             attn_recurrent_rule rule, int64_t len, int64_t dim) {
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.rule = rule;
  const attn_tensor q = golden_exact(rng, 2, T, DK), v = golden_exact(rng, 2, T, DV);
  attn_tensor k = golden_exact(rng, 1, T, DK), w = golden_exact(rng, 2, len, dim);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < len; i++)
      for (int64_t c = 0; c < dim; c++)
        oracle_set(&w, 0, h, i, c, -fabs(oracle_get(&w, 0, h, i, c)) / (i % 5 ? 64 : 2));
  if (len) p.decay = w;
  if (rule == ATTN_RECURRENT_HGRN2) k = absent();
  if (rule == ATTN_RECURRENT_DELTA || rule == ATTN_RECURRENT_GATED_DELTA) {
    p.l2norm_qk = 1, p.beta = golden_exact(rng, 2, T, 1);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < T; i++)
        oracle_set(&p.beta, 0, h, i, 0, fabs(oracle_get(&p.beta, 0, h, i, 0)));
  }
  if (rule == ATTN_RECURRENT_RWKV6) p.bonus = golden_exact(rng, 2, 1, DK);
  if (rule == ATTN_RECURRENT_RWKV7) {
    p.a = golden_exact(rng, 1, T, DK), p.b = golden_exact(rng, 2, T, DK);
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < DK; c++) {
        oracle_set(&p.a, 0, 0, i, c, oracle_get(&p.a, 0, 0, i, c) / 8);
        for (int64_t h = 0; h < 2; h++)
          oracle_set(&p.b, 0, h, i, c, fabs(oracle_get(&p.b, 0, h, i, c)) / 2);
      }
  }
  if (rule == ATTN_RECURRENT_LIGHTNING) p.layers = 4, p.layer = 1;
  const attn_tensor s = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, DK, DV);
  test_fill_value(s, 0), test_fill_value(lse, 0);
  p.initial_state = p.final_state = s;
  for (int64_t i = 0, n; i < T; i += n) {
    attn_recurrent_params now = p;
    n = i ? 4 : T - 4;
    if (len > 1) now.decay = test_rows(w, i, n);
    if (p.beta.data) now.beta = test_rows(p.beta, i, n);
    if (p.a.data) now.a = test_rows(p.a, i, n), now.b = test_rows(p.b, i, n);
    const attn_status status =
        attn_recurrent(test_rows(o, i, n), test_rows(q, i, n), k.data ? test_rows(k, i, n) : k,
                       test_rows(v, i, n), &now, ctx);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

#define RULE(name, kind, len, dim)                                                        \
  static attn_status name(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) { \
    return recurrent(o, lse, rng, ctx, ATTN_RECURRENT_##kind, len, dim);                  \
  }
RULE(retention, RETENTION, 0, 1)
RULE(lightning, LIGHTNING, 0, 1)
RULE(gla, GLA, T, DK)
RULE(hgrn2, HGRN2, T, DK)
RULE(delta, DELTA, 0, 1)
RULE(gated_delta, GATED_DELTA, T, 1)
RULE(rwkv6, RWKV6, T, DK)
RULE(rwkv7, RWKV7, T, DK)
RULE(retention_by_head, RETENTION, 1, 1)
#undef RULE

/* By levels: plain sums that fade by a number a token, all in one call. */
static attn_status log_linear_sums(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.rule = ATTN_RECURRENT_GLA;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  const attn_tensor v = golden_exact(rng, 2, T, DV), w = golden_exact(rng, 2, T, 1);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < T; i++)
      oracle_set(&w, 0, h, i, 0, -fabs(oracle_get(&w, 0, h, i, 0)) / 16);
  p.decay = w, p.lambda = golden_exact(rng, 2, T, 8);
  test_fill_value(lse, 0);
  return attn_recurrent(o, q, k, v, &p, ctx);
}

/* Norms whose gate is a sigmoid, and whose gate comes before. */
static attn_status gated_norms(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static float gain[2 * DV];
  attn_gated_norm_params p;
  memset(&p, 0, sizeof p);
  const attn_tensor x = golden_exact(rng, 2, T, DV), z = golden_exact(rng, 2, T, DV);
  const attn_tensor u = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  for (int i = 0; i < 2 * DV; i++) gain[i] = (float)(i % 11 - 5) / 4;
  p.kind = ATTN_GATED_NORM_SIGMOID;
  test_fill_value(lse, 0);
  const attn_status status = attn_gated_norm(u, x, z, &p, ctx);
  p.kind = ATTN_GATED_NORM_BEFORE, p.gain = gain;
  return status == ATTN_OK ? attn_gated_norm(o, u, x, &p, ctx) : status;
}

/* Bounded and by channels; then by heads. */
static attn_status log_decays(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static float rates[2 * DV];
  attn_log_decay_params p;
  memset(&p, 0, sizeof p);
  for (int i = 0; i < 2 * DV; i++) rates[i] = (float)(i % 13 - 6) / 4;
  p.a_log = p.dt_bias = rates, p.channels = p.bounded = 1;
  const attn_tensor x = golden_exact(rng, 2, T, DV);
  const attn_status status = attn_log_decay(o, x, &p, ctx);
  p.channels = 0, p.lower = -3;
  return status == ATTN_OK ? attn_log_decay(lse, golden_exact(rng, 2, T, 1), &p, ctx) : status;
}

/* Sent by sigmoids, biases and groups; by a softmax, with an expert for all behind a gate. */
static attn_status experts(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_status status = ATTN_OK;
  for (int h = 0; h < 2 && status == ATTN_OK; h++) {
    attn_expert_rows_params p;
    memset(&p, 0, sizeof p);
    p.w_gate = golden_weight(rng, DV, 12), p.b_gate = golden_weight(rng, 1, 12);
    p.k = 2 + h, p.experts.activation = h ? ATTN_ACT_DEFAULT : ATTN_ACT_GELU;
    p.experts.w_1 = golden_exact(rng, 12, DV, 41), p.experts.w_2 = golden_exact(rng, 12, 41, DV);
    p.experts.b_1 = golden_exact(rng, 12, 1, 41);
    for (int64_t i = 0; i < 12 * 41 * DV; i++)
      ((float *)p.experts.w_1.data)[i] *= 0.125f, ((float *)p.experts.w_2.data)[i] *= 0.125f;
    if (h) {
      p.experts.w_3 = p.experts.w_1, p.shared = golden_feed(rng, DV, 37, ATTN_ACT_TANH);
      p.w_shared = golden_weight(rng, DV, 1), p.no_renormalize = 1;
    } else {
      p.score = ATTN_EXPERTS_SIGMOID, p.choice_bias = golden_weight(rng, 1, 12), p.scale = 2.5f;
      p.groups = 4, p.group_k = 2, p.group_by = ATTN_EXPERTS_GROUP_SUM;
      p.weight = attn_bhtd(lse.data, ATTN_F32, 1, 1, T, 2);
    }
    status = attn_expert_rows(test_one(o, 0, 1, h, 1), golden_exact(rng, 1, T, DV), &p, ctx);
  }
  return status;
}

const golden_call golden_levels[] = {{"log-linear", log_linear},
                                     {"damped average", damped_ema},
                                     {"ngram", ngram},
                                     {"retention", retention},
                                     {"lightning", lightning},
                                     {"gla", gla},
                                     {"hgrn2", hgrn2},
                                     {"delta", delta},
                                     {"gated delta", gated_delta},
                                     {"rwkv6", rwkv6},
                                     {"rwkv7", rwkv7},
                                     {"retention by head", retention_by_head},
                                     {"log-linear sums", log_linear_sums},
                                     {"gated norms", gated_norms},
                                     {"logs of decays", log_decays},
                                     {"experts", experts},
                                     {NULL, NULL}};
