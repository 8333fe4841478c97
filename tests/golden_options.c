/* tests/golden_options.c owns the golden calls of options that the calls in the other lists leave alone,
 * and of decaying states. */

#include "golden_calls.h"

static attn_status lsh_wrap(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_lsh_params p;
  memset(&p, 0, sizeof p);
  p.rounds = 2, p.lse = lse, p.chunk = 8, p.across = p.wrap = 1, p.causal = 1;
  const attn_tensor v = golden_exact(rng, 1, T, DV), q = golden_exact(rng, 2, T, DK);
  return attn_lsh(o, q, v, NULL, &p, ctx);
}

static attn_status routing_learned(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_routing_params p;
  memset(&p, 0, sizeof p);
  p.w = p.wk = 20, p.causal = 1, p.combine = ATTN_ROUTING_UNION, p.lse = lse;
  p.mem_k = golden_exact(rng, 2, 15, DK), p.mem_v = golden_exact(rng, 2, 15, DV);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_tensor v = golden_exact(rng, 1, T, DV), mu = golden_exact(rng, 2, 5, DK);
  return attn_routing(o, q, k, v, mu, &p, ctx);
}

static attn_status sinkhorn_null(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sinkhorn_params p;
  memset(&p, 0, sizeof p);
  p.block = 10, p.causal = 1, p.hard = 1, p.lse = lse, p.logits = golden_exact(rng, 1, 7, 7);
  p.null_k = golden_exact(rng, 2, 1, DK), p.null_v = golden_exact(rng, 1, 1, DV);
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  return attn_sinkhorn(o, q, k, golden_exact(rng, 1, T, DV), absent(), &p, ctx);
}

static attn_status clustered_causal(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_cluster_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.clusters = 5, p.k = 30, p.causal = 1;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_clustered(o, q, k, golden_exact(rng, 2, T, DV), NULL, &p, ctx);
}

static attn_status probsparse_samples(attn_tensor o, attn_tensor lse, test_rng *rng,
                                      attn_ctx *ctx) {
  int32_t samples[T * T];
  attn_probsparse_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  for (int32_t i = 0; i < T * T; i++) samples[i] = i * 29 % T;
  p.factor = 3, p.causal = 1, p.samples = samples;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_probsparse(o, q, k, golden_exact(rng, 2, T, DV), NULL, &p, ctx);
}

static attn_status nystrom(attn_tensor o, test_rng *rng, attn_nystrom_params *p, attn_ctx *ctx) {
  p->landmarks = 9, p->scale = 0.01f;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  return attn_nystrom(o, q, k, golden_exact(rng, 2, T, DV), p, ctx);
}

static attn_status nystrom_by_batch(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_nystrom_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.by_batch = 1;
  return nystrom(o, rng, &p, ctx);
}

static attn_status nystrom_valid(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  uint8_t valid[T];
  attn_nystrom_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  for (int i = 0; i < T; i++) valid[i] = i % 5 != 2 && i / 8 != 4; /* a segment has none */
  p.valid = valid, p.conv = golden_weight(rng, 5, 1);
  return nystrom(o, rng, &p, ctx);
}

static attn_status multihead_bias_kv(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_multihead_params p;
  attn_tensor none = absent();
  memset(&p, 0, sizeof p);
  p.heads = 2, p.kv_heads = 1, p.attention.lse = lse, p.attention.causal = 1;
  p.w_q = golden_weight(rng, DV, 2 * DK), p.w_k = golden_weight(rng, DV, DK);
  p.w_v = golden_weight(rng, DV, DV), p.w_o = golden_weight(rng, 2 * DV, DV);
  p.bias_k = golden_weight(rng, 1, DK), p.bias_v = golden_weight(rng, 1, DV);
  attn_tensor x = golden_exact(rng, 1, T, DV);
  attn_status status = attn_multihead(test_one(o, 0, 1, 0, 1), x, none, none, &p, ctx);
  test_copy(test_one(o, 0, 1, 1, 1), test_one(o, 0, 1, 0, 1));
  return status;
}

/* Both ways, with a bias behind the heads. */
static attn_status segment_bias(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_segment_layer_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.memory.rows = golden_exact(rng, 1, 40, DV), p.memory.len = 40;
  p.attention.bidirectional = p.interleaved = 1, p.base = 500, p.attention.lse = lse;
  p.w_q = golden_weight(rng, DV, 2 * DK), p.w_k = golden_weight(rng, DV, 2 * DK);
  p.w_r = golden_weight(rng, DV, 2 * DK), p.w_v = golden_weight(rng, DV, 2 * DV);
  p.w_o = golden_weight(rng, 2 * DV, DV), p.b_o = golden_weight(rng, 1, DV);
  attn_tensor h = golden_exact(rng, 1, T, DV);
  attn_status status = attn_segment_layer(test_one(o, 0, 1, 0, 1), h, &p, ctx);
  test_copy(test_one(o, 0, 1, 1, 1), test_one(o, 0, 1, 0, 1));
  return status;
}

/* Codes of w in the given order of numbers: [groups][n], or [n][groups] of a transposed one. */
static attn_tensor coded(test_rng *rng, attn_dtype type, int64_t len, int64_t dim, int64_t numbers,
                         attn_scales *s) {
  attn_tensor w = attn_bhtd(test_mem((size_t)(len * dim)), type, 1, 1, len, dim);
  unsigned char *code = w.data;
  for (int64_t i = 0; i < len * dim; i++) code[i] = (unsigned char)test_u64(rng);
  s->scale = test_mem((size_t)numbers * sizeof(float));
  s->zero = test_mem((size_t)numbers * sizeof(float));
  for (int64_t i = 0; i < numbers; i++) {
    s->scale[i] = (float)test_range(rng, 1, 200) / 16384.0f;
    s->zero[i] = (float)test_range(rng, -20, 20) / 4;
  }
  return w;
}

/* Weights of 8 bits, transposed, and of 4 bits; a few rows of the latter by themselves. */
static attn_status gemm_codes(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_gemm_params p;
  attn_tensor x = golden_exact(rng, 2, T, 150), y = test_one(o, 0, 1, 1, 1);
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.w_transposed = 1, p.w_scales.group = 32, p.w_scales.stride_len = 5;
  attn_tensor w = coded(rng, ATTN_I8, DV, 150, 5 * DV, &p.w_scales);
  attn_status status = attn_gemm(test_one(o, 0, 1, 0, 1), test_one(x, 0, 1, 0, 1), w, &p, ctx);
  p.w_transposed = 0, p.w_scales.group = 64, p.w_scales.stride_len = DV;
  x = test_one(x, 0, 1, 1, 1), w = coded(rng, ATTN_I4, 150, DV + DV % 2, 3 * DV, &p.w_scales);
  w.dim = DV;
  if (status == ATTN_OK) status = attn_gemm(y, x, w, &p, ctx);
  p.bias = golden_exact(rng, 1, 1, DV);
  return status == ATTN_OK ? attn_gemm(test_rows(y, 3, 5), test_rows(x, 3, 5), w, &p, ctx) : status;
}

/* The same codes by rows of x as codes: many rows, and few where w lies. */
static attn_status gemm_int8(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_gemm_params p;
  attn_tensor x = golden_exact(rng, 2, T, 150), y = test_one(o, 0, 1, 1, 1),
              few = test_one(x, 0, 1, 1, 1);
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.compute = ATTN_COMPUTE_I8, p.w_transposed = 1;
  p.w_scales.group = 32, p.w_scales.stride_len = 5;
  attn_tensor w = coded(rng, ATTN_I4, DV, 150, 5 * DV, &p.w_scales);
  attn_status status = attn_gemm(test_one(o, 0, 1, 0, 1), test_one(x, 0, 1, 0, 1), w, &p, ctx);
  p.w_transposed = 0, p.w_scales.group = 64, p.w_scales.stride_len = DV;
  w = coded(rng, ATTN_I8, 150, DV, 3 * DV, &p.w_scales);
  if (status == ATTN_OK) status = attn_gemm(y, few, w, &p, ctx);
  return status == ATTN_OK ? attn_gemm(test_rows(y, 3, 5), test_rows(few, 3, 5), w, &p, ctx)
                           : status;
}

/* Products of f16: rows of ordinary size, and keys and values that are divided; a product of rows. Each product is
 * rounded into its sum once, in one order, by the instruction and emulated. */
static attn_status compute_f16(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sdpa_params p;
  attn_gemm_params m;
  memset(&p, 0, sizeof p);
  memset(&m, 0, sizeof m);
  p.compute = m.compute = ATTN_COMPUTE_F16, p.causal = 1, p.lse = lse;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  attn_tensor v = golden_exact(rng, 2, T, DV), w = golden_exact(rng, 1, DV, DV);
  for (int64_t j = 3; j < T; j += 5)
    for (int64_t c = 0; c < DV; c++)
      oracle_set(&v, 0, 1, j, c, oracle_get(&v, 0, 1, j, c) * (j % 2 ? 0x1p40 : 0x1p-40));
  for (int64_t j = 0; j < T; j += 9) oracle_set(&k, 0, 1, j, j % DK, 0x1p17);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  const attn_status status = attn_sdpa(x, q, k, v, &p, ctx);
  return status == ATTN_OK ? attn_gemm(o, x, w, &m, ctx) : status;
}

/* Rotary families, one after the other over the same rows; keys of a layer that are rotated. */
static attn_status rope_families(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static double by[DV];
  static int64_t at[3 * T];
  attn_tensor x = golden_exact(rng, 2, T, DV);
  attn_status status = ATTN_OK;
  for (int i = 0; i < DV; i++) by[i] = 1 + i * 0.25;
  for (int i = 0; i < 3 * T; i++) at[i] = i * i % 509 - 100;
  for (int type = 0; type < ATTN_ROPE_TYPES && status == ATTN_OK; type++) {
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.type = (attn_rope_type)type, p.factor = 4, p.start = 1000 * type;
    p.max_position_embeddings = 4096, p.original_max_position_embeddings = 1024;
    p.low_freq_factor = 1, p.high_freq_factor = 4, p.sequence_len = 5000;
    p.short_factor = by, p.long_factor = by + DV / 2, p.factors = DV / 2;
    p.layout = type % 2 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    if (type == 2) p.xpos = 512, p.keys = 1;
    if (type == 3) p.mrope_section[0] = 4, p.mrope_section[1] = p.mrope_section[2] = 3;
    if (type == 4) p.axial = 1, p.inverse = 1;
    p.mrope_interleaved = type == 3, p.positions = type == 3 || type == 4 ? at : NULL;
    status = attn_rope(o, type ? o : x, &p, ctx);
  }
  test_fill_value(lse, 0);
  return status;
}

/* Decays by channel as logs and a delta rule; a token at a time behind many. */
static attn_status recurrent_kda(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.rule = ATTN_RECURRENT_KDA, p.l2norm_qk = 1;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_tensor v = golden_exact(rng, 2, T, DV), w = golden_exact(rng, 2, T, DK);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < DK; c++)
        oracle_set(&w, 0, h, i, c, -fabs(oracle_get(&w, 0, h, i, c)) / (i % 3 ? 16 : 1));
  p.decay = w, p.beta = golden_exact(rng, 2, T, 1);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < T; i++)
      oracle_set(&p.beta, 0, h, i, 0, fabs(oracle_get(&p.beta, 0, h, i, 0)) / 2);
  attn_tensor s = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, DK, DV);
  test_fill_value(s, 0), test_fill_value(lse, 0);
  p.initial_state = p.final_state = s;
  for (int64_t i = 0, n; i < T; i += n) {
    n = i ? 1 : T - 3;
    attn_recurrent_params now = p;
    now.decay = test_rows(w, i, n), now.beta = test_rows(p.beta, i, n);
    const attn_status status = attn_recurrent(test_rows(o, i, n), test_rows(q, i, n),
                                              test_rows(k, i, n), test_rows(v, i, n), &now, ctx);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Factors by channel and vectors of their own. */
static attn_status recurrent_dplr(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.form = ATTN_RECURRENT_FACTOR;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  attn_tensor v = golden_exact(rng, 1, T, DV), w = golden_exact(rng, 1, T, DK);
  p.a = golden_exact(rng, 1, T, DK), p.b = golden_exact(rng, 2, T, DK);
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < DK; c++) {
      oracle_set(&w, 0, 0, i, c, 1 - fabs(oracle_get(&w, 0, 0, i, c)) / 8);
      oracle_set(&p.a, 0, 0, i, c, oracle_get(&p.a, 0, 0, i, c) / 32);
    }
  p.decay = w;
  test_fill_value(lse, 0);
  return attn_recurrent(o, q, k, v, &p, ctx);
}

static attn_status recurrent_mamba2(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const float a_log[2] = {0.25f, -1.5f}, skip[2] = {1, -0.5f};
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.rule = ATTN_RECURRENT_MAMBA2, p.a_log = p.dt_bias = a_log, p.skip = skip;
  attn_tensor q = golden_exact(rng, 1, T, DK), k = golden_exact(rng, 1, T, DK);
  attn_tensor v = golden_exact(rng, 2, T, DV);
  p.dt = golden_exact(rng, 2, T, 1);
  test_fill_value(lse, 0);
  return attn_recurrent(o, q, k, v, &p, ctx);
}

static attn_status recurrent_mlstm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_recurrent_params p;
  memset(&p, 0, sizeof p);
  p.rule = ATTN_RECURRENT_MLSTM, p.form = ATTN_RECURRENT_LOGIT;
  attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  attn_tensor v = golden_exact(rng, 2, T, DV);
  p.decay = golden_exact(rng, 2, T, 1), p.gate = golden_exact(rng, 2, T, 1);
  test_fill_value(lse, 0);
  return attn_recurrent(o, q, k, v, &p, ctx);
}

/* The convolution, the logs of decays and the norm of a layer around a state. */
static attn_status recurrent_parts(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const float rates[2] = {0.25f, -1.5f};
  attn_log_decay_params p;
  memset(&p, 0, sizeof p);
  p.a_log = p.dt_bias = rates;
  attn_tensor x = golden_exact(rng, 2, T, DV), z = golden_exact(rng, 2, T, DV);
  attn_tensor u = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  const attn_status status = attn_short_convolve(u, x, golden_exact(rng, 1, 4, DV), NULL, ctx);
  if (status != ATTN_OK || attn_gated_norm(o, u, z, NULL, ctx) != ATTN_OK) return ATTN_E_VALUE;
  return attn_log_decay(lse, golden_exact(rng, 2, T, 1), &p, ctx);
}

/* Sigmoids, the rectified softmax, and a softmax that is sharpened, forgets and has gates. */
static attn_status reshaped_call(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                                 int kind) {
  static const float scale[2] = {0.5f, 0.25f}, slope[2] = {0.125f, 0.5f};
  attn_reshaped_params p;
  memset(&p, 0, sizeof p);
  test_fill_value(lse, 0);
  p.kind = (attn_reshape_kind)kind;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  const attn_tensor v = golden_exact(rng, 2, T, DV);
  p.attention.causal = 1;
  if (kind == ATTN_RESHAPE_SIGMOID) p.by_row = 1, p.sum = lse;
  if (kind == ATTN_RESHAPE_STICK) p.remainder = 1, p.sum = lse;
  if (kind == ATTN_RESHAPE_SOFTMAX) {
    attn_tensor f = golden_exact(rng, 1, T, 1);
    for (int64_t i = 0; i < T; i++) oracle_set(&f, 0, 0, i, 0, -fabs(oracle_get(&f, 0, 0, i, 0)));
    oracle_set(&f, 0, 0, T / 2, 0, -(double)INFINITY);
    p.forget.log_f = f, p.gate = golden_exact(rng, 2, T, DV), p.attention.lse = lse;
    p.ssmax.scale = scale, p.attention.alibi = slope;
    p.temperature.on = 1, p.temperature.interval = 16;
  }
  return attn_reshaped(o, q, k, v, &p, ctx);
}
static attn_status sigmoid_weights(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return reshaped_call(o, lse, rng, ctx, ATTN_RESHAPE_SIGMOID);
}
static attn_status softpick_weights(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return reshaped_call(o, lse, rng, ctx, ATTN_RESHAPE_SOFTPICK);
}
static attn_status forgetting(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return reshaped_call(o, lse, rng, ctx, ATTN_RESHAPE_SOFTMAX);
}

static attn_status stick_weights(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return reshaped_call(o, lse, rng, ctx, ATTN_RESHAPE_STICK);
}

static attn_status rms_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  (void)lse;
  attn_layer_norm_params p;
  memset(&p, 0, sizeof p);
  p.norm.gain = test_floats(200, 1, rng), p.norm.gain_less_one = 1;
  p.residual = golden_exact(rng, 1, 7, 200);
  return attn_rms_norm(golden_rows(o, 0, 7, 200), golden_exact(rng, 1, 7, 200), &p, ctx);
}

/* O of dense keys, LSE of a schedule of lists. */
static attn_status relative_queries(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_pattern stride = attn_pattern_strided(9);
  attn_schedule schedule;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  memset(&schedule, 0, sizeof schedule);
  p.causal = 1, p.relative.keys = p.relative.queries = golden_exact(rng, 2, 41, DK);
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK);
  const attn_tensor v = golden_exact(rng, 2, T, DV);
  attn_status status = attn_sdpa(o, q, k, v, &p, ctx);
  p.lse = lse;
  if (status != ATTN_OK || attn_schedule_build(&schedule, &stride, 2, T, T, NULL, NULL) != ATTN_OK)
    return ATTN_E_VALUE;
  p.schedule = &schedule;
  status = attn_sdpa(golden_exact(rng, 2, T, DV), q, k, v, &p, ctx);
  attn_schedule_free(&schedule);
  return status;
}

const golden_call golden_options[] = {{"lsh wrap", lsh_wrap},
                                      {"routing learned", routing_learned},
                                      {"sinkhorn null", sinkhorn_null},
                                      {"clustered causal", clustered_causal},
                                      {"probsparse samples", probsparse_samples},
                                      {"nystrom by batch", nystrom_by_batch},
                                      {"nystrom valid", nystrom_valid},
                                      {"multihead bias_kv", multihead_bias_kv},
                                      {"segment bias", segment_bias},
                                      {"gemm codes", gemm_codes},
                                      {"gemm int8", gemm_int8},
                                      {"compute f16", compute_f16},
                                      {"rope families", rope_families},
                                      {"recurrent kda", recurrent_kda},
                                      {"recurrent dplr", recurrent_dplr},
                                      {"recurrent mamba2", recurrent_mamba2},
                                      {"recurrent mlstm", recurrent_mlstm},
                                      {"recurrent parts", recurrent_parts},
                                      {"sigmoid weights", sigmoid_weights},
                                      {"softpick weights", softpick_weights},
                                      {"forgetting", forgetting},
                                      {"stick weights", stick_weights},
                                      {"rms norm", rms_norm},
                                      {"relative queries", relative_queries},
                                      {NULL, NULL}};
