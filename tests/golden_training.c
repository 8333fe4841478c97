/* tests/golden_training.c owns the golden calls of gradients. */

#include "golden_calls.h"

/* The gradient that is asked for goes to o, forward's LSE to lse. */
static attn_status backward(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                            int which) {
  attn_sdpa_params p;
  attn_sdpa_gradients g;
  attn_tensor y[3];
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  memset(y, 0, sizeof y);
  p.lse = lse, p.causal = 1, p.alibi = test_floats(2, 0.02, rng), p.sinks = test_floats(2, 1, rng);
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, which == 2 ? 2 : 1, T, DV),
                    out = golden_exact(rng, 2, T, DV);
  attn_status status = attn_sdpa(out, q, k, v, &p, ctx);
  if (status != ATTN_OK) return status;
  g.d_lse = golden_exact(rng, 2, T, 1);
  y[which] = o;
  return attn_sdpa_backward(y[0], y[1], y[2], golden_exact(rng, 2, T, DV), q, k, v, out, lse, &p,
                            &g, ctx);
}

static attn_status backward_q(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return backward(o, lse, rng, ctx, 0);
}
static attn_status backward_k(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return backward(o, lse, rng, ctx, 1);
}
static attn_status backward_v(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return backward(o, lse, rng, ctx, 2);
}

/* Steps of an optimiser on 2 T DV weights: these to o, the first numbers of what is kept to lse. */
enum { N = 2 * T * DV };
static void put(attn_tensor o, attn_tensor lse, const float *w, const float *kept) {
  for (int64_t i = 0; i < N; i++) oracle_set(&o, 0, i / (T * DV), i / DV % T, i % DV, (double)w[i]);
  for (int64_t i = 0; i < 2 * T; i++) oracle_set(&lse, 0, i / T, i % T, 0, (double)kept[i]);
}
static float *exact(test_rng *rng) { return golden_exact(rng, 2, T, DV).data; }

static attn_status adamw(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  float *w = exact(rng), *m = exact(rng), *v = exact(rng);
  attn_adamw_params p;
  attn_status status = ATTN_OK;
  memset(&p, 0, sizeof p);
  p.decay = 0.125, p.lr = 0.0625, p.clip = 0.3, p.beta1 = 0.75;
  for (int i = 0; i < N; i++) m[i] = v[i] = 0;
  for (p.step = 1; p.step <= 3 && !status; p.step++)
    status = attn_adamw(w, exact(rng), m, v, N, &p, ctx);
  put(o, lse, w, v);
  return status;
}
static attn_status sgd(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  float *w = exact(rng), *b = exact(rng);
  attn_sgd_params p;
  attn_status status = ATTN_OK;
  memset(&p, 0, sizeof p);
  p.decay = 0.125, p.lr = 0.0625, p.clip = 0.3, p.momentum = 0.7, p.nesterov = 1;
  for (int i = 0; i < 3 && !status; i++)
    p.first = i == 0, status = attn_sgd(w, exact(rng), b, N, &p, ctx);
  put(o, lse, w, b);
  return status;
}
static attn_status norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  const float *a = exact(rng), *b = exact(rng);
  const attn_flat_array x[] = {{a, N}, {b, 1234}};
  double y[2] = {0, 0};
  const attn_status status = attn_global_norm(y, y + 1, x, 2, 3, ctx);
  test_fill_value(o, y[0]), test_fill_value(lse, y[1]);
  return status;
}

/* 140 rows of 20 classes; the loss to lse. */
static attn_status entropy(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_cross_entropy_params p;
  int32_t y[2 * T];
  double loss = 0;
  memset(&p, 0, sizeof p);
  p.smoothing = 0.1f, p.z_loss = 0.01f, p.has_ignore_index = 1, p.ignore_index = 7;
  const attn_tensor x = golden_exact(rng, 2, T, DV);
  for (int i = 0; i < 2 * T; i++) y[i] = i * 7 % DV;
  const attn_status status = attn_cross_entropy(&loss, o, x, y, &p, ctx);
  test_fill_value(lse, loss);
  return status;
}

/* 70 rows of width 20, 600 classes: d_x and the first rows of d_w to o, the loss and d_bias to lse. */
static attn_status head(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { V = 600 };
  attn_cross_entropy_head_params p;
  attn_cross_entropy_head_gradients g;
  int32_t y[T];
  double loss = 0;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
  const attn_tensor x = golden_exact(rng, 1, T, DV), w = golden_weight(rng, V, DV);
  for (int i = 0; i < T; i++) y[i] = i * 17 % V;
  p.w_transposed = 1, p.bias = golden_weight(rng, 1, V);
  g.d_w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, V, DV);
  g.d_bias = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, V);
  const attn_tensor d_x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, DV);
  p.loss.sum = 1;
  const attn_status status = attn_cross_entropy_head(&loss, d_x, x, w, y, &p, &g, ctx);
  test_copy(test_one(o, 0, 1, 0, 1), d_x);
  test_copy(test_one(o, 0, 1, 1, 1), test_rows(g.d_w, 0, T));
  for (int i = 0; i < 2 * T; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, i ? oracle_get(&g.d_bias, 0, 0, 0, i) : loss);
  return status;
}

/* The gradient of a product of dense rows by x, w or bias. */
static attn_status gemm(attn_tensor o, test_rng *rng, attn_ctx *ctx, int which, float softcap) {
  attn_gemm_params p;
  attn_gemm_gradients g;
  attn_tensor y[3];
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  memset(y, 0, sizeof y);
  const int64_t rows = which == 0 ? T : 600;
  const attn_tensor x = golden_exact(rng, 2, rows, DV), w = golden_weight(rng, DV, DV);
  p.bias = golden_weight(rng, 1, DV), p.activation = ATTN_ACT_GELU, p.scale = 0.75f,
  p.softcap = softcap;
  y[which] = which == 0 ? o : golden_rows(o, 0, which == 1 ? DV : 1, DV);
  g.d_bias = y[2];
  return attn_gemm_backward(y[0], y[1], golden_exact(rng, 2, rows, DV), x, w, &p, &g, ctx);
}

static attn_status gemm_x(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 0, 0);
}
static attn_status talking(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_talking_params p;
  attn_talking_gradients g;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
  test_fill_value(lse, 0);
  p.w_l = golden_exact(rng, 1, 2, 3), p.w_w = golden_exact(rng, 1, 3, 2);
  g.d_w_l = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, 3);
  g.d_w_w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 2);
  p.attention.causal = 1;
  const attn_tensor d_o = golden_exact(rng, 2, T, 5), q = golden_exact(rng, 2, T, DV);
  const attn_tensor k = golden_exact(rng, 2, T, DV), v = golden_exact(rng, 1, T, 5);
  const attn_tensor d_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  const attn_tensor d_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, 5);
  const attn_status status = attn_talking_backward(o, d_k, d_v, d_o, q, k, v, &p, &g, ctx);
  for (int i = 0; i < 2 * T && !status; i++)
    oracle_set(&lse, 0, i / T, i % T, 0,
               i < 6    ? oracle_get(&g.d_w_l, 0, 0, i / 3, i % 3)
               : i < 12 ? oracle_get(&g.d_w_w, 0, 0, (i - 6) / 2, i % 2)
               : i % 2  ? oracle_get(&d_k, 0, i / T, i % T, i % DV)
                        : oracle_get(&d_v, 0, 0, i % T, i % 5));
  return status;
}
static attn_status gemm_capped(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 0, 2);
}
static attn_status gemm_w(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 1, 0);
}
static attn_status gemm_bias(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  test_fill_value(lse, 0);
  return gemm(o, rng, ctx, 2, 0);
}

/* The gradients of a norm of the rows of both heads: the last rows of o are those of gain and bias. */
static attn_status norms(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx, int rms) {
  attn_layer_norm_params p;
  attn_layer_norm_gradients g;
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  test_fill_value(lse, 0);
  p.norm = golden_norm(rng, DV), p.residual = golden_exact(rng, 2, 60, DV);
  g.d_sum = golden_exact(rng, 2, 60, DV);
  g.d_gain = (float *)o.data + (T + 68) * DV, g.d_bias = g.d_gain + DV;
  test_fill_value(o, 0);
  const attn_tensor d_y = golden_exact(rng, 2, 60, DV), x = golden_exact(rng, 2, 60, DV);
  return rms ? attn_rms_norm_backward(test_rows(o, 0, 60), d_y, x, &p, &g, ctx)
             : attn_layer_norm_backward(test_rows(o, 0, 60), d_y, x, &p, &g, ctx);
}
static attn_status layer_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return norms(o, lse, rng, ctx, 0);
}
static attn_status rms_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return norms(o, lse, rng, ctx, 1);
}

/* Gradients of a gated activation: of x to o's first head, of the gate to the second. */
static attn_status activate(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_activate_params p;
  attn_activate_gradients g;
  memset(&p, 0, sizeof p);
  memset(&g, 0, sizeof g);
  test_fill_value(lse, 0);
  p.activation = ATTN_ACT_GELU, p.gate = golden_exact(rng, 1, T, DV);
  g.d_gate = test_one(o, 0, 1, 1, 1);
  const attn_tensor d_y = golden_exact(rng, 1, T, DV), x = golden_exact(rng, 1, T, DV);
  return attn_activate_backward(test_one(o, 0, 1, 0, 1), d_y, x, &p, &g, ctx);
}

/* The gradient of a table of 80 rows from 140 tokens: the first 70 to both heads of o. */
static attn_status learned(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_learned_params p;
  int64_t ids[2 * T];
  memset(&p, 0, sizeof p);
  for (int i = 0; i < 2 * T; i++) ids[i] = i * i % 80;
  p.positions = ids, p.positions_per_batch = 1;
  attn_tensor d_y = golden_exact(rng, 2, T, DV);
  d_y.batch = d_y.heads, d_y.stride_batch = d_y.stride_head, d_y.heads = 1;
  const attn_tensor d_table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 80, DV);
  const attn_status status = attn_learned_position_backward(d_table, d_y, &p, NULL, ctx);
  for (int64_t h = 0; h < 2; h++) test_copy(test_one(o, 0, 1, h, 1), test_rows(d_table, 10 * h, T));
  test_fill_value(lse, 0);
  return status;
}

/* Dropout of the elements of o's first head, and of the weights of both: the second head's o is that. */
static attn_status dropout(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_drop drop = {0.25, 77, 5, 3, 2};
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.lse = lse, p.dropout = drop, p.window = attn_window_of(40, -1);
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 1, T, DV);
  const attn_tensor x = golden_exact(rng, 2, T, DV);
  const attn_status status = attn_sdpa(o, q, k, x, &p, ctx);
  if (status) return status;
  return attn_dropout(test_one(o, 0, 1, 0, 1), test_one(x, 0, 1, 0, 1), &drop, ctx);
}
static attn_status backward_dropped(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sdpa_params p;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&none, 0, sizeof none);
  p.lse = lse, p.dropout.p = 0.5, p.dropout.seed = 9, p.causal = 1;
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, 2, T, DV), out = golden_exact(rng, 2, T, DV);
  const attn_status status = attn_sdpa(out, q, k, v, &p, ctx);
  if (status) return status;
  return attn_sdpa_backward(none, o, none, golden_exact(rng, 2, T, DV), q, k, v, out, lse, &p, NULL,
                            ctx);
}

/* Every table that pairs read a row of, a factor, a span and a function: d_k to o, d_scale and a row of the first table's
 * gradient to lse. */
static void halve_and_add(void *user, const attn_score_tile *t) {
  (void)user;
  for (int64_t c = 0; c < t->keys * t->queries; c++) {
    float *x = t->score + c / t->queries * t->key_stride + c % t->queries * t->query_stride;
    *x = *x / 2 + 1;
  }
}
static void halve(void *user, const attn_score_tile *t, const float *before, const float *after) {
  (void)user, (void)before, (void)after;
  for (int64_t c = 0; c < t->keys * t->queries; c++)
    t->score[c / t->queries * t->key_stride + c % t->queries * t->query_stride] /= 2;
}
static int64_t label(void *user, int64_t b, int64_t h, int64_t i, int64_t j) {
  (void)user, (void)b;
  return (3 * i + j + h) % 5 - 1;
}
static attn_status backward_tables(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_sdpa_params p;
  attn_sdpa_gradients g;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  p.lse = lse, p.modify = halve_and_add, g.modify_back = halve, p.causal = 1;
  p.relative.keys = golden_exact(rng, 2, 9, DV), p.relative.queries = golden_exact(rng, 1, 9, DV);
  p.relative.values = golden_exact(rng, 1, 9, DV);
  p.xl.table = golden_exact(rng, 1, 2 * T, DV), p.xl.first = -T;
  p.xl.u = golden_exact(rng, 2, 1, DV).data, p.xl.v = golden_exact(rng, 2, 1, DV).data;
  p.labels.label = label, p.labels.table = golden_exact(rng, 1, 4, DV);
  p.factor.alpha = golden_exact(rng, 1, 1, 2).data, p.factor.beta = p.factor.alpha;
  p.span.z = test_floats(2, 0, rng), p.span.ramp = 40, p.softcap = 3;
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, 2, T, DV), out = golden_exact(rng, 2, T, DV);
  const attn_tensor d_o = golden_exact(rng, 2, T, DV);
  float scale[2];
  attn_status status = attn_sdpa(out, q, k, v, &p, ctx);
  if (status != ATTN_OK) return status;
  g.d_scale = scale;
  g.d_relative.keys = golden_exact(rng, 2, 9, DV),
  g.d_relative.queries = golden_exact(rng, 1, 9, DV);
  g.d_xl_table = golden_exact(rng, 1, 2 * T, DV), g.d_label_table = golden_exact(rng, 1, 4, DV);
  status = attn_sdpa_backward(none, o, none, d_o, q, k, v, out, lse, &p, &g, ctx);
  for (int h = 0; h < 2; h++) oracle_set(&lse, 0, h, 0, 0, (double)scale[h]);
  for (int c = 0; c < DV; c++) {
    oracle_set(&lse, 0, 0, 1 + c, 0, oracle_get(&g.d_relative.keys, 0, 1, 3, c));
    oracle_set(&lse, 0, 1, 1 + c, 0, oracle_get(&g.d_xl_table, 0, 0, T - 2, c));
    oracle_set(&lse, 0, 0, 1 + DV + c, 0, oracle_get(&g.d_relative.queries, 0, 0, 4, c));
    oracle_set(&lse, 0, 1, 1 + DV + c, 0, oracle_get(&g.d_label_table, 0, 0, 2, c));
  }
  return status;
}

/* The gradients of a merge: of the first part to o, of its LSE to lse. */
static attn_status merge(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_merge_gradients g;
  attn_tensor none;
  memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  g.d_lse1 = lse;
  const attn_tensor d_o = golden_exact(rng, 2, T, DV), o1 = golden_exact(rng, 2, T, DV);
  const attn_tensor lse1 = golden_exact(rng, 2, T, 1), o2 = golden_exact(rng, 2, T, DV);
  const attn_tensor lse2 = golden_exact(rng, 2, T, 1);
  return attn_merge_backward(o, none, d_o, o1, lse1, o2, lse2, &g, ctx);
}

/* The gradients of a convolution of lengths: of x to o, of the first rows of w to lse. */
static attn_status convolve(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_convolve_params p;
  static const int32_t len[1] = {T - 3};
  memset(&p, 0, sizeof p);
  p.pad = ATTN_PAD_LEFT, p.dilation = 2, p.x_len = len;
  const attn_tensor d_y = golden_exact(rng, 2, T, 5), x = golden_exact(rng, 2, T, DV);
  const attn_tensor w = golden_exact(rng, 1, 4 * DV, 5);
  const attn_tensor d_w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 4 * DV, 5);
  const attn_status status = attn_convolve_backward(o, d_w, d_y, x, w, &p, NULL, ctx);
  for (int i = 0; i < 2 * T && !status; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, oracle_get(&d_w, 0, 0, i / 5 % (4 * DV), i % 5));
  return status;
}

/* The gradients of a convolution by columns: of x to o, of w to the first of lse. */
static attn_status depthwise(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_convolve_params p;
  memset(&p, 0, sizeof p);
  p.pad = ATTN_PAD_LEFT, p.dilation = 2;
  const attn_tensor d_y = golden_exact(rng, 2, T, DV), x = golden_exact(rng, 2, T, DV);
  const attn_tensor w = golden_exact(rng, 1, 4, DV);
  const attn_tensor d_w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 4, DV);
  const attn_status status = attn_convolve_depthwise_backward(o, d_w, d_y, x, w, &p, NULL, ctx);
  for (int i = 0; i < 2 * T && !status; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, oracle_get(&d_w, 0, 0, i % 4, i / 4 % DV));
  return status;
}

/* The gradient of rows of dynamic weights, in blocks that share them. */
static attn_status pool(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_pool_params p;
  memset(&p, 0, sizeof p);
  (void)lse;
  p.kind = ATTN_POOL_DYNAMIC, p.kernel = 5, p.stride = 2;
  const attn_tensor x = golden_exact(rng, 2, T, DV);
  const attn_tensor d_y = golden_exact(rng, 2, attn_pool_len(T, 0, &p), DV);
  p.w = golden_exact(rng, 1, DV, 5);
  return attn_pool_backward(o, d_y, x, &p, NULL, ctx);
}

/* The gradient of keys' features by x, by directions that are products of small numbers. */
static attn_status features(attn_tensor o, test_rng *rng, attn_ctx *ctx, attn_feature_kind kind,
                            attn_feature_norm norm) {
  attn_feature_map f;
  memset(&f, 0, sizeof f);
  f.kind = kind, f.norm = norm;
  if (kind != ATTN_FEATURES_ELU1) f.w = golden_exact(rng, 1, 9, DV);
  const attn_tensor d_y = golden_exact(rng, 2, T, attn_feature_count(&f, DV));
  const attn_tensor x = golden_exact(rng, 2, T, DV);
  return attn_features_backward(o, d_y, x, &f, 1, NULL, ctx);
}
static attn_status features_powers(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  (void)lse;
  return features(o, rng, ctx, ATTN_FEATURES_HYPERBOLIC, ATTN_FEATURE_NORM_NONE);
}
static attn_status features_waves(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  (void)lse;
  return features(o, rng, ctx, ATTN_FEATURES_RFA, ATTN_FEATURE_NORM_L2);
}
static attn_status features_elu(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  (void)lse;
  return features(o, rng, ctx, ATTN_FEATURES_ELU1, ATTN_FEATURE_NORM_SUM);
}

/* The gradients of attention over a linear state: of q to o, of the first column of k and v to lse. */
static attn_status linear(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                          attn_linear_rule rule, attn_feature_kind kind) {
  attn_linear_params p;
  memset(&p, 0, sizeof p);
  p.rule = rule, p.causal = ATTN_LINEAR_CAUSAL, p.map.kind = kind;
  if (kind != ATTN_FEATURES_ELU1) p.map.w = golden_exact(rng, 1, 9, DV);
  if (rule) p.rate_const = 0.75f;
  const attn_tensor d_o = golden_exact(rng, 2, T, 5), q = golden_exact(rng, 2, T, DV);
  const attn_tensor k = golden_exact(rng, 2, T, DV), v = golden_exact(rng, 2, T, 5);
  const attn_tensor d_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  const attn_tensor d_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 5);
  const attn_status status = attn_linear_backward(o, d_k, d_v, d_o, q, k, v, &p, NULL, ctx);
  for (int i = 0; i < 2 * T && !status; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, oracle_get(i % 2 ? &d_k : &d_v, 0, i / T, i % T, 0));
  return status;
}
static attn_status pinv(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  (void)lse;
  const attn_tensor a = golden_exact(rng, 2, DV, DV), d_z = golden_exact(rng, 2, DV, DV);
  const attn_tensor d_a = golden_exact(rng, 2, DV, DV);
  for (int i = 0; i < DV; i++) oracle_set(&a, 0, i % 2, i, i, 4);
  const attn_status status = attn_pinv_backward(d_a, d_z, a, 3, ctx);
  for (int i = 0; i < 2 * DV * DV; i++)
    oracle_set(&o, 0, i / DV / DV, i / DV % DV, i % DV,
               oracle_get(&d_a, 0, i / DV / DV, i / DV % DV, i % DV));
  return status;
}

/* The same over a decaying state. */
static attn_status fading(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                          attn_recurrent_rule rule, int levels) {
  attn_recurrent_params p;
  attn_recurrent_gradients g;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
  const int counts = rule == ATTN_RECURRENT_MLSTM;
  const int64_t rates = counts ? 1 : DV;
  p.rule = rule, p.form = ATTN_RECURRENT_FACTOR, p.decay = golden_exact(rng, 2, T, rates);
  for (int64_t i = 0; i < 2 * T * rates; i++) {
    float *w = (float *)p.decay.data + i;
    *w = 1 - (*w < 0 ? -*w : *w) / 64;
  }
  if (rule == ATTN_RECURRENT_KDA) p.beta = golden_weight(rng, T, 1);
  const attn_tensor d_o = golden_exact(rng, 2, T, 5), q = golden_exact(rng, 2, T, DV);
  const attn_tensor k = golden_exact(rng, 2, T, DV), v = golden_exact(rng, 2, T, 5);
  const attn_tensor d_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, DV);
  const attn_tensor d_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 5);
  for (int64_t i = 0; i < 2 * T * DV; i++) ((float *)k.data)[i] *= 0.0625f;
  g.d_decay = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, rates);
  if (counts)
    p.gate = golden_exact(rng, 2, T, 1), g.d_gate = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 1);
  if (levels)
    p.lambda = golden_exact(rng, 2, T, levels),
    g.d_lambda = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, levels);
  const attn_status status = attn_recurrent_backward(o, d_k, d_v, d_o, q, k, v, &p, &g, ctx);
  for (int i = 0; i < 2 * T && !status; i++)
    oracle_set(&lse, 0, i / T, i % T, 0,
               oracle_get(i % 3 == 0        ? &d_k
                          : i % 3 == 1      ? &d_v
                          : counts && i % 2 ? &g.d_gate
                          : levels && i % 2 ? &g.d_lambda
                                            : &g.d_decay,
                          0, i / T, i % T, 0));
  return status;
}
static attn_status fading_gla(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return fading(o, lse, rng, ctx, ATTN_RECURRENT_GLA, 0);
}
static attn_status fading_levels(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return fading(o, lse, rng, ctx, ATTN_RECURRENT_GLA, 10);
}
static attn_status fading_kda(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return fading(o, lse, rng, ctx, ATTN_RECURRENT_KDA, 0);
}
static attn_status fading_mlstm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return fading(o, lse, rng, ctx, ATTN_RECURRENT_MLSTM, 0);
}

static attn_status linear_sum(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return linear(o, lse, rng, ctx, ATTN_LINEAR_SUM, ATTN_FEATURES_SOFTMAX);
}
static attn_status linear_gated(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return linear(o, lse, rng, ctx, ATTN_LINEAR_GATED, ATTN_FEATURES_ELU1);
}
static attn_status linear_delta(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return linear(o, lse, rng, ctx, ATTN_LINEAR_DELTA_ATTN, ATTN_FEATURES_ELU1);
}

/* The gradients of a feed-forward: of its rows to o, of a matrix and a bias to lse. */
static attn_status feed_forward(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_feed_forward ff = golden_feed(rng, DV, 24, ATTN_ACT_SILU);
  attn_feed_forward_gradients g;
  memset(&g, 0, sizeof g);
  ff.w_3 = golden_weight(rng, DV, 24);
  ff.form.slope = 1.5f, ff.form.limit = 2, ff.form.gate_add = 1;
  g.d_w_2 = golden_exact(rng, 1, 24, DV), g.d_w_3 = golden_exact(rng, 1, DV, 24);
  const attn_tensor d_x = golden_rows(o, 0, T, DV), d_y = golden_exact(rng, 1, T, DV);
  const attn_tensor x = golden_exact(rng, 1, T, DV);
  const attn_status status = attn_feed_forward_rows_backward(d_x, d_y, x, &ff, &g, ctx);
  for (int i = 0; i < T; i++) {
    for (int c = 0; c < DV; c++)
      oracle_set(&o, 0, 1, i, c, oracle_get(&g.d_w_2, 0, 0, i % 24, (i / 24 + c) % DV));
    oracle_set(&lse, 0, 0, i, 0, oracle_get(&g.d_w_2, 0, 0, i % 24, i / 4));
    oracle_set(&lse, 0, 1, i, 0, oracle_get(&g.d_w_3, 0, 0, i % DV, i / 3));
  }
  return status;
}

/* The gradients of multi-head attention: of its rows to o, of two matrices to lse. */
static attn_status multihead(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_multihead_params p;
  attn_multihead_gradients g;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  p.heads = 2, p.kv_heads = 1, p.attention.causal = 1;
  p.w_q = golden_weight(rng, DV, 12), p.w_k = golden_weight(rng, DV, 6);
  p.w_v = golden_weight(rng, DV, 5), p.w_o = golden_weight(rng, 10, DV);
  g.d_w_k = golden_exact(rng, 1, DV, 6), g.d_w_o = golden_exact(rng, 1, 10, DV);
  const attn_tensor d_x = golden_rows(o, 0, T, DV), d_y = golden_exact(rng, 1, T, DV);
  const attn_tensor x = golden_exact(rng, 1, T, DV);
  const attn_status status = attn_multihead_backward(d_x, d_y, x, none, none, &p, &g, ctx);
  for (int i = 0; i < T; i++) {
    for (int c = 0; c < DV; c++) oracle_set(&o, 0, 1, i, c, oracle_get(&g.d_w_k, 0, 0, c, i % 6));
    oracle_set(&lse, 0, 0, i, 0, oracle_get(&g.d_w_o, 0, 0, i % 10, i % DV));
    oracle_set(&lse, 0, 1, i, 0, oracle_get(&g.d_w_o, 0, 0, i % 10, i / 4));
  }
  return status;
}

/* The gradients of a decoder block with a norm of queries and keys and one more key: of x to o, of e, gains and that key to
 * lse. */
static attn_status decoder(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { DM = 10, DFF = 12, TE = 9 };
  attn_block_params p;
  attn_block_gradients g;
  attn_qk_norm qk;
  attn_rope_params rope;
  float gain[DM], q_gain[6], temperature[2];
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
  memset(&qk, 0, sizeof qk), memset(&rope, 0, sizeof rope);
  qk.kind = ATTN_QK_NORM_L2, qk.q_gain = golden_weight(rng, 1, 6).data;
  qk.temperature = golden_weight(rng, 1, 2).data, rope.norm = &qk, p.self.rope = &rope;
  p.cross.bias_k = golden_weight(rng, 1, 12), p.cross.bias_v = golden_weight(rng, 1, 8);
  g.self.norm.d_q_gain = q_gain, g.self.norm.d_temperature = temperature;
  g.cross.d_bias_k = golden_exact(rng, 1, 1, 12);
  p.sublayer = ATTN_SUBLAYER_SANDWICH, p.self.heads = p.cross.heads = 2;
  attn_multihead_params *const m[] = {&p.self, &p.cross};
  for (int i = 0; i < 2; i++) {
    m[i]->w_q = golden_weight(rng, DM, 12), m[i]->w_k = golden_weight(rng, DM, 12);
    m[i]->w_v = golden_weight(rng, DM, 8), m[i]->w_o = golden_weight(rng, 8, DM);
  }
  p.ff = golden_feed(rng, DM, DFF, ATTN_ACT_GELU);
  attn_norm *const norm[] = {&p.norm_self,  &p.norm_cross,  &p.norm_ff,
                             &p.after_self, &p.after_cross, &p.after_ff};
  for (int i = 0; i < 6; i++) *norm[i] = golden_norm(rng, DM);
  g.norm_cross.d_gain = gain, g.d_e = golden_exact(rng, 1, TE, DM);
  const attn_tensor d_x = golden_rows(o, 0, T, DM), d_y = golden_exact(rng, 1, T, DM);
  const attn_tensor x = golden_exact(rng, 1, T, DM), e = golden_exact(rng, 1, TE, DM);
  const attn_status status = attn_decoder_backward(d_x, d_y, x, e, &p, &g, ctx);
  golden_rows(o, 1, T, 1);
  for (int i = 0; i < T; i++) {
    oracle_set(&o, 0, 1, i, 0, oracle_get(&g.d_e, 0, 0, i % TE, i % DM));
    oracle_set(&lse, 0, 0, i, 0, (double)gain[i % DM]);
    oracle_set(&lse, 0, 1, i, 0, oracle_get(&g.d_e, 0, 0, i % TE, i / TE));
  }
  for (int i = 0; i < 12; i++) {
    oracle_set(&lse, 0, 0, DM + i, 0, oracle_get(&g.cross.d_bias_k, 0, 0, 0, i));
    oracle_set(&lse, 0, 0, DM + 12 + i, 0, (double)(i < 6 ? q_gain[i] : temperature[i % 2]));
  }
  return status;
}

/* Those of Longformer, of keys, and of global keys to lse. */
static attn_status longformer(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t window[2] = {5, 9}, dilation[2] = {1, 3}, global[2] = {4, 40};
  attn_longformer_params p;
  attn_longformer_gradients g;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  p.window = window, p.dilation = dilation, p.global = global, p.globals = 2;
  p.q_global = golden_exact(rng, 2, 2, DV), p.k_global = golden_exact(rng, 2, T, DV);
  p.v_global = golden_exact(rng, 2, T, DV), p.lse = lse;
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, 2, T, DV), out = golden_exact(rng, 2, T, DV);
  const attn_tensor d_o = golden_exact(rng, 2, T, DV), d_k = golden_exact(rng, 2, T, DV);
  attn_status status = attn_longformer(out, q, k, v, &p, ctx);
  if (status != ATTN_OK) return status;
  g.d_k_global = d_k;
  status = attn_longformer_backward(none, o, none, d_o, q, k, v, out, lse, &p, &g, ctx);
  for (int i = 0; i < 2 * T; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, oracle_get(&d_k, 0, i / T, i % T, 3));
  return status;
}

/* The gradients of rectified attention, of keys; a gate's to lse. */
static attn_status relu_of(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx,
                           attn_relu_kind kind) {
  attn_relu_params p;
  attn_relu_gradients g;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  p.kind = kind, p.attention.causal = 1;
  p.gain = golden_exact(rng, 1, 2, DV).data, p.gate = golden_exact(rng, 1, 2, DV).data;
  g.d_sum = golden_exact(rng, 2, T, 1);
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, 2, T, DV), d_o = golden_exact(rng, 2, T, DV);
  const attn_tensor learned = golden_exact(rng, 1, 2, DV);
  if (kind == ATTN_RELU_RELA) g.d_gate = learned.data;
  attn_status status = attn_relu_backward(none, o, none, d_o, q, k, v, &p, &g, ctx);
  for (int i = 0; i < 2 * T && kind == ATTN_RELU_RELA; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, oracle_get(&learned, 0, 0, i / T, i % T % DV));
  return status;
}
static attn_status relu_norm(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return relu_of(o, lse, rng, ctx, ATTN_RELU_NORM);
}
static attn_status relu_gau(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return relu_of(o, lse, rng, ctx, ATTN_RELU_GAU);
}
static attn_status relu_rela(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  return relu_of(o, lse, rng, ctx, ATTN_RELU_RELA);
}

/* The gradients of attention over edges: of keys to o, of biases to lse. */
static attn_status edges(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  enum { DEGREE = 9 };
  static int64_t ptr[T + 1];
  static int32_t col[T * DEGREE];
  attn_edges_params p;
  attn_edges_gradients g;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&none, 0, sizeof none);
  for (int i = 0; i <= T; i++) ptr[i] = i * DEGREE;
  for (int e = 0; e < T * DEGREE; e++) col[e] = (e / DEGREE * 3 + e % DEGREE * 11) % T;
  const attn_tensor bias = golden_exact(rng, 1, T, DEGREE);
  p.indptr = ptr, p.col = col, p.edges = T * DEGREE, p.lse = lse, p.bias = bias.data;
  const attn_tensor q = golden_exact(rng, 2, T, DV), k = golden_exact(rng, 2, T, DV);
  const attn_tensor v = golden_exact(rng, 2, T, DV), out = golden_exact(rng, 2, T, DV);
  const attn_tensor d_o = golden_exact(rng, 2, T, DV), d_bias = golden_exact(rng, 1, T, DEGREE);
  attn_status status = attn_edges(out, q, k, v, &p, ctx);
  if (status != ATTN_OK) return status;
  g.d_bias = d_bias.data;
  status = attn_edges_backward(none, o, none, d_o, q, k, v, out, lse, &p, &g, ctx);
  for (int i = 0; i < 2 * T; i++)
    oracle_set(&lse, 0, i / T, i % T, 0, oracle_get(&d_bias, 0, 0, i % T, i / T * 4));
  return status;
}

/* The gradients of a reversible residual: of its streams, by halves and thirds, to o, a stream to lse. */
static attn_status third(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx) {
  (void)user, (void)ctx;
  for (int64_t i = 0; i < x.len; i++)
    for (int64_t c = 0; c < x.dim; c++)
      oracle_set(&y, 0, 0, i, c, 0.375 * oracle_get(&x, 0, 0, i, x.dim - 1 - c));
  return ATTN_OK;
}
static attn_status third_back(void *user, attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                              attn_ctx *ctx) {
  (void)x;
  return third(user, d_x, d_y, ctx);
}
static attn_status reversible(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_reversible_params p;
  attn_reversible_gradients g = {third_back, third_back};
  memset(&p, 0, sizeof p);
  p.f = p.g = third;
  const attn_tensor d_x1 = golden_rows(o, 0, T, DV), d_x2 = golden_rows(o, 1, T, DV);
  const attn_tensor x1 = golden_exact(rng, 1, T, DV), x2 = golden_exact(rng, 1, T, DV);
  const attn_tensor y1 = golden_exact(rng, 1, T, DV), y2 = golden_exact(rng, 1, T, DV);
  const attn_tensor d_y1 = golden_exact(rng, 1, T, DV), d_y2 = golden_exact(rng, 1, T, DV);
  const attn_status status =
      attn_reversible_backward(x1, x2, d_x1, d_x2, y1, y2, d_y1, d_y2, &p, &g, ctx);
  for (int i = 0; i < T; i++) {
    oracle_set(&lse, 0, 0, i, 0, oracle_get(&x1, 0, 0, i, 3));
    oracle_set(&lse, 0, 1, i, 0, oracle_get(&x2, 0, 0, i, 4));
  }
  return status;
}

const golden_call golden_training[] = {{"sdpa backward q", backward_q},
                                       {"sdpa backward k", backward_k},
                                       {"sdpa backward v", backward_v},
                                       {"adamw", adamw},
                                       {"sgd", sgd},
                                       {"global norm", norm},
                                       {"cross entropy", entropy},
                                       {"cross entropy head", head},
                                       {"gemm backward x", gemm_x},
                                       {"gemm backward w", gemm_w},
                                       {"gemm backward bias", gemm_bias},
                                       {"layer norm backward", layer_norm},
                                       {"rms norm backward", rms_norm},
                                       {"activate backward", activate},
                                       {"learned position backward", learned},
                                       {"dropout", dropout},
                                       {"sdpa backward with dropout", backward_dropped},
                                       {"sdpa backward of tables", backward_tables},
                                       {"merge backward", merge},
                                       {"convolve backward", convolve},
                                       {"features backward, powers", features_powers},
                                       {"features backward, waves", features_waves},
                                       {"features backward, elu", features_elu},
                                       {"linear backward, sum", linear_sum},
                                       {"linear backward, gated", linear_gated},
                                       {"linear backward, delta", linear_delta},
                                       {"recurrent backward, gla", fading_gla},
                                       {"pinv backward", pinv},
                                       {"recurrent backward, kda", fading_kda},
                                       {"depthwise backward", depthwise},
                                       {"pool backward", pool},
                                       {"feed forward backward", feed_forward},
                                       {"multihead backward", multihead},
                                       {"decoder backward", decoder},
                                       {"reversible backward", reversible},
                                       {"edges backward", edges},
                                       {"longformer backward", longformer},
                                       {"relu backward, normalised", relu_norm},
                                       {"relu backward, squared", relu_gau},
                                       {"relu backward, gated", relu_rela},
                                       {"recurrent backward, mlstm", fading_mlstm},
                                       {"recurrent backward, levels", fading_levels},
                                       {"gemm backward, softcap", gemm_capped},
                                       {"talking backward", talking},
                                       {NULL, NULL}};
