/* tests/golden_depth.c owns the golden calls of stacks: blocks, steps behind a cache, streams that can be
 * had back, depth that is no constant, exits. */

#include "golden_calls.h"

enum { TE = 33, DE = 27, LAYERS = 3 };

static attn_multihead_params heads(test_rng *rng, int64_t from) {
  attn_multihead_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.kv_heads = 1;
  p.w_q = golden_weight(rng, DV, 2 * DK), p.b_q = golden_weight(rng, 1, 2 * DK);
  p.w_k = golden_weight(rng, from, DK), p.w_v = golden_weight(rng, from, DV);
  p.w_o = golden_weight(rng, 2 * DV, DV), p.b_o = golden_weight(rng, 1, DV);
  return p;
}

static attn_block_params block(test_rng *rng, attn_sublayer sublayer, int cross) {
  attn_block_params p;
  memset(&p, 0, sizeof p);
  p.sublayer = sublayer, p.chunks = 3;
  p.self = heads(rng, DV);
  if (cross) p.cross = heads(rng, DE), p.norm_cross = golden_norm(rng, DV);
  p.norm_self = golden_norm(rng, DV), p.norm_ff = golden_norm(rng, DV);
  p.ff = golden_feed(rng, DV, 41, ATTN_ACT_GELU);
  return p;
}

/* Integers as the numbers of head h of lse. */
static void show(attn_tensor lse, int64_t h, const int32_t *n) {
  for (int64_t t = 0; t < T; t++) oracle_set(&lse, 0, h, t, 0, n[t]);
}

static attn_status encoder(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t len[1] = {61};
  attn_block_params post = block(rng, ATTN_SUBLAYER_POST, 0);
  attn_block_params pre = block(rng, ATTN_SUBLAYER_PRE, 0);
  const attn_tensor x = golden_exact(rng, 1, T, DV);
  post.x_len = len, pre.self.attention.causal = 1, pre.self.attention.lse = lse;
  attn_status status = attn_encoder(test_one(o, 0, 1, 0, 1), x, &post, ctx);
  return status == ATTN_OK ? attn_encoder(test_one(o, 0, 1, 1, 1), x, &pre, ctx) : status;
}

static attn_status decoder(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t len[1] = {29};
  attn_block_params post = block(rng, ATTN_SUBLAYER_POST, 1);
  attn_block_params pre = block(rng, ATTN_SUBLAYER_PRE, 0);
  const attn_tensor x = golden_exact(rng, 1, T, DV), e = golden_exact(rng, 1, TE, DE);
  post.e_len = len, post.cross.attention.lse = lse;
  attn_status status = attn_decoder(test_one(o, 0, 1, 0, 1), x, e, &post, ctx);
  if (status != ATTN_OK) return status;
  return attn_decoder(test_one(o, 0, 1, 1, 1), x, absent(), &pre, ctx);
}

/* An empty cache for T tokens, and those of e. */
static attn_decoder_cache cache_of(test_rng *rng, int cross) {
  attn_decoder_cache c;
  memset(&c, 0, sizeof c);
  c.k = golden_exact(rng, 1, T, DK), c.v = golden_exact(rng, 1, T, DV);
  if (cross) c.e_k = golden_exact(rng, 1, TE, DK), c.e_v = golden_exact(rng, 1, TE, DV);
  return c;
}

/* A prompt, then three tokens at a time; the other head its rows after a feed-forward. */
static attn_status decoder_step(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  const attn_block_params p = block(rng, ATTN_SUBLAYER_PRE, 1);
  const attn_tensor x = golden_exact(rng, 1, T, DV), e = golden_exact(rng, 1, TE, DE);
  const attn_tensor y = test_one(o, 0, 1, 0, 1);
  attn_decoder_cache c = cache_of(rng, 1);
  const attn_feed_forward ff = golden_feed(rng, DV, 150, ATTN_ACT_SILU);
  test_fill_value(lse, 0);
  attn_status status = attn_decoder_start(&c, e, &p, ctx);
  for (int64_t t = 0, n = 58; t < T && status == ATTN_OK; t += n, n = 3)
    status = attn_decoder_step(test_rows(y, t, n), test_rows(x, t, n), &c, &p, ctx);
  return status == ATTN_OK ? attn_feed_forward_rows(test_one(o, 0, 1, 1, 1), y, &ff, 5, ctx)
                           : status;
}

static attn_status attend(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx) {
  return attn_multihead(y, x, absent(), absent(), user, ctx);
}
static attn_status feed(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx) {
  return attn_feed_forward_rows(y, x, user, 2, ctx);
}

static attn_status residual(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                            int inverse) {
  attn_multihead_params f = heads(rng, DV);
  attn_feed_forward g = golden_feed(rng, DV, 41, ATTN_ACT_TANH);
  const attn_reversible_params p = {attend, feed, &f, &g};
  const attn_tensor a = golden_exact(rng, 1, T, DV), b = golden_exact(rng, 1, T, DV);
  const attn_tensor y1 = test_one(o, 0, 1, 0, 1), y2 = test_one(o, 0, 1, 1, 1);
  test_fill_value(lse, 0);
  return (inverse ? attn_reversible_inverse : attn_reversible)(y1, y2, a, b, &p, ctx);
}
static attn_status reversible(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return residual(o, lse, rng, ctx, 0);
}
static attn_status reversed(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return residual(o, lse, rng, ctx, 1);
}

/* The last states, with steps and remainders, beside their mean field. */
static attn_status universal(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  int32_t ran[T];
  attn_universal_params p;
  memset(&p, 0, sizeof p);
  p.block = block(rng, ATTN_SUBLAYER_POST, 0);
  p.w_p = golden_weight(rng, 1, DV), p.b_p = -0.5f, p.steps = 6, p.eps = 0.125f;
  p.ran = ran, p.remainder = lse.data; /* of head 0 */
  const attn_tensor x = golden_exact(rng, 1, T, DV);
  attn_status status = attn_universal(test_one(o, 0, 1, 0, 1), x, &p, ctx);
  if (status != ATTN_OK) return status;
  show(lse, 1, ran);
  p.ran = NULL, p.remainder = NULL, p.output = ATTN_UNIVERSAL_ACCUM;
  return attn_universal(test_one(o, 0, 1, 1, 1), x, &p, ctx);
}

/* As many layers as o has columns. */
static attn_status exits(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  int32_t exit[T];
  attn_exits_params p;
  memset(&p, 0, sizeof p);
  p.kind = ATTN_EXIT_MULTINOMIAL, p.layers = DV;
  p.w = golden_weight(rng, DK, DV), p.bias = golden_weight(rng, 1, DV);
  attn_tensor x = golden_exact(rng, 1, T, DK);
  attn_status status = attn_exits(exit, test_one(o, 0, 1, 0, 1), x, &p, ctx);
  if (status != ATTN_OK) return status;
  show(lse, 0, exit);
  p.kind = ATTN_EXIT_GEOMETRIC, p.w = golden_weight(rng, 1, DK);
  p.bias = golden_exact(rng, DV - 1, 1, 1), p.tau = 0.875f;
  x = golden_exact(rng, DV - 1, T, DK);
  status = attn_exits(exit, test_one(o, 0, 1, 1, 1), x, &p, ctx);
  show(lse, 1, exit);
  return status;
}

/* Smoothed scores of layers with their targets, and the exit of the whole sequence. */
static attn_status exit_targets(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  const attn_exit_smooth_params smooth = {30, NULL};
  const attn_exit_target_params each = {1, 0.25f, NULL};
  int32_t target[T], exit[1];
  attn_exits_params p;
  memset(&p, 0, sizeof p);
  p.kind = ATTN_EXIT_SEQUENCE, p.layers = DV, p.w = golden_weight(rng, DK, DV);
  const attn_tensor y = golden_rows(o, 0, DV, T), q = golden_rows(o, 1, 1, DV);
  test_fill_value(lse, 0);
  attn_status status = attn_exit_smooth(y, golden_exact(rng, 1, DV, T), &smooth, ctx);
  if (status == ATTN_OK) status = attn_exit_target(target, y, &each, ctx);
  if (status != ATTN_OK) return status;
  show(lse, 0, target);
  return attn_exits(exit, q, golden_exact(rng, 1, 300, DK), &p, ctx);
}

/* lse: of logits, more than one run of them. Columns of o: cosines, classifiers, thresholds and exits. */
static attn_status confidence(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { CLASSES = 8300 };
  float threshold[T];
  int32_t exit[T];
  attn_confidence_params p;
  attn_calm_threshold_params by;
  memset(&p, 0, sizeof p), memset(&by, 0, sizeof by);
  attn_tensor column[4], x = golden_exact(rng, 2, T, CLASSES), sure = golden_exact(rng, 2, T, 1);
  for (int64_t i = 0; i < 2 * T * CLASSES; i++) /* fewer ties */
    ((float *)x.data)[i] = 64 * ((float *)x.data)[i] + (float)test_exact(rng);
  for (int n = 0; n < 4; n++)
    column[n] = o, column[n].dim = 1, column[n].data = (float *)o.data + n;
  test_fill_value(o, 0);
  attn_status status = attn_confidence(lse, x, &p, ctx);
  x = golden_exact(rng, 2, T, DK);
  p.kind = ATTN_CONFIDENCE_COSINE, p.before = golden_exact(rng, 2, T, DK);
  if (status == ATTN_OK) status = attn_confidence(column[0], x, &p, ctx);
  p.kind = ATTN_CONFIDENCE_CLASSIFIER, p.w = golden_weight(rng, 1, DK);
  p.bias = golden_exact(rng, 2, 1, 1);
  if (status == ATTN_OK) status = attn_confidence(sure, x, &p, ctx);
  by.outputs = T;
  if (status == ATTN_OK) status = attn_calm_threshold(threshold, T, 0.5f, &by, ctx);
  const attn_tensor layers = attn_bhtd(sure.data, ATTN_F32, 1, 1, 2, T);
  if (status == ATTN_OK) status = attn_calm_exit(exit, layers, threshold, 0, ctx);
  test_copy(column[1], sure);
  for (int64_t t = 0; t < T && status == ATTN_OK; t++) {
    oracle_set(&column[2], 0, 0, t, 0, (double)threshold[t]);
    oracle_set(&column[3], 0, 0, t, 0, exit[t]);
  }
  return status;
}

/* Rows in which a number grew, another one for each token. */
static attn_status grew(void *user, const attn_exit_rows *rows, attn_ctx *ctx) {
  (void)user, (void)ctx;
  for (int64_t i = 0; i < rows->h.len; i++) {
    const int64_t c = rows->token[i] % DV;
    rows->stop[i] = oracle_get(&rows->h, 0, 0, i, c) > oracle_get(&rows->before, 0, 0, i, c);
  }
  return ATTN_OK;
}

/* Exits that are given, in chunks of tokens, and exits that the states decide. */
static attn_status exit_decoder(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  int32_t exit[T];
  attn_block_params layers[LAYERS];
  attn_decoder_cache keys[LAYERS];
  attn_exit_cache c;
  attn_exit_decoder_params p;
  memset(&c, 0, sizeof c), memset(&p, 0, sizeof p);
  for (int m = 0; m < LAYERS; m++)
    layers[m] = block(rng, ATTN_SUBLAYER_PRE, 0), keys[m] = cache_of(rng, 0);
  for (int t = 0; t < T; t++) exit[t] = 1 + t * 5 % LAYERS;
  p.layers = layers, p.count = LAYERS, c.layer = keys, c.last = golden_exact(rng, 1, T, DV);
  const attn_tensor x = golden_exact(rng, 1, T, DV), y = test_one(o, 0, 1, 0, 1);
  attn_status status = ATTN_OK;
  for (int64_t t = 0, n = 58; t < T && status == ATTN_OK; t += n, n = 3)
    status = attn_exit_decoder(test_rows(y, t, n), exit + t, test_rows(x, t, n), &c, &p, ctx);
  if (status != ATTN_OK) return status;
  show(lse, 0, exit);
  c.len = 0, p.decide = grew;
  for (int m = 0; m < LAYERS; m++) keys[m].len = 0;
  status = attn_exit_decoder(test_one(o, 0, 1, 1, 1), exit, x, &c, &p, ctx);
  show(lse, 1, exit);
  return status;
}

const golden_call golden_depth[] = {{"encoder", encoder},
                                    {"decoder", decoder},
                                    {"decoder step", decoder_step},
                                    {"reversible", reversible},
                                    {"reversible inverse", reversed},
                                    {"universal", universal},
                                    {"exits", exits},
                                    {"exit targets", exit_targets},
                                    {"confidence", confidence},
                                    {"exit decoder", exit_decoder},
                                    {NULL, NULL}};

/* Norms on both sides, gates that are cut and moved; parts in parallel, one norm left out, then capped logits. */
static attn_status around(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_block_params both = block(rng, ATTN_SUBLAYER_SANDWICH, 0);
  attn_block_params beside = block(rng, ATTN_SUBLAYER_PARALLEL, 0);
  attn_gemm_params logits;
  memset(&logits, 0, sizeof logits);
  const attn_tensor x = golden_exact(rng, 1, T, DV), w = golden_exact(rng, 1, DV, DV);
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, DV);
  both.after_self = golden_norm(rng, DV), both.after_ff = golden_norm(rng, DV);
  both.after_self.kind = both.norm_ff.kind = ATTN_NORM_RMS, both.after_ff.gain_less_one = 1;
  both.ff.w_3 = golden_weight(rng, DV, 41), both.ff.activation = ATTN_ACT_SILU;
  both.ff.form.slope = 1.5f, both.ff.form.limit = 0.5f, both.ff.form.gate_add = 1;
  both.self.attention.causal = 1, both.self.attention.lse = lse;
  beside.norm_ff.kind = ATTN_NORM_NONE, beside.norm_ff.gain = beside.norm_ff.bias = NULL;
  logits.softcap = 1.25f, logits.scale = 0.125f, logits.bias = golden_exact(rng, 1, 1, DV);
  attn_status status = attn_encoder(test_one(o, 0, 1, 0, 1), x, &both, ctx);
  if (status == ATTN_OK) status = attn_encoder(t, x, &beside, ctx);
  return status == ATTN_OK ? attn_gemm(test_one(o, 0, 1, 1, 1), t, w, &logits, ctx) : status;
}

const golden_call golden_today[] = {{"around", around}, {NULL, NULL}};
