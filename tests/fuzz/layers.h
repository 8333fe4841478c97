/* layers.h owns the decoding of bytes into calls over rows and weights: parts of layers (feature maps,
 * pooling, convolutions) and layers with few learned rows (Set Transformer, Luna). */

#ifndef FUZZ_LAYERS_H
#define FUZZ_LAYERS_H

#include "linear.h"

enum { Y_OUT, Y_OUT2, Y_X, Y_POINTS, Y_W, Y_BIAS, Y_TENSORS };
enum { FEATURES, POOL, CONVOLVE, DEPTHWISE, MAB, ISAB, LUNA, LUNA_CAUSAL, LAYER_KINDS };

typedef struct layer_args {
  int kind, is_key;
  attn_feature_map map;
  attn_pool_params pool;
  attn_convolve_params convolve;
  attn_isab_params isab;
  attn_luna_params luna;
  attn_luna_causal_params causal;
} layer_args;

static void layer_weights(attn_mab_params *p, attn_tensor w, attn_tensor bias, int form) {
  p->w_q = p->w_k = p->w_v = p->ff.w_1 = w;
  p->w_o = p->ff.w_2 = w;
  if (form) p->w_o.data = p->ff.w_2.data = NULL;
  p->b_q = p->b_v = p->ff.b_1 = bias;
}

/* The call, or with bytes the workspace query. */
static attn_status layer(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  layer_args *a = (layer_args *)j->args;
  const attn_tensor y = j->b[Y_OUT].view, other = j->b[Y_OUT2].view, x = j->b[Y_X].view;
  const attn_tensor points = j->b[Y_POINTS].view, w = j->b[Y_W].view, bias = j->b[Y_BIAS].view;
  attn_tensor none;
  memset(&none, 0, sizeof none);
  a->map.w = a->pool.w = w;
  a->pool.bias = a->convolve.bias = bias;
  layer_weights(&a->isab.induce, w, bias, a->isab.induce.form != ATTN_SET_PAPER);
  layer_weights(&a->isab.restore, w, bias, a->isab.restore.form != ATTN_SET_PAPER);
  a->luna.w_pq = a->luna.w_pk = a->luna.w_pv = a->luna.w_q = a->luna.w_k = a->luna.w_v = w;
  a->luna.w_o = w, a->luna.b_q = a->luna.b_k = a->luna.b_v = bias;
  switch (a->kind) {
    case FEATURES:
      return bytes ? (*bytes = attn_features_workspace(y, x, &a->map, a->is_key, query), ATTN_OK)
                   : attn_features(y, x, &a->map, a->is_key, ctx);
    case POOL:
      return bytes ? (*bytes = attn_pool_workspace(y, x, &a->pool, query), ATTN_OK)
                   : attn_pool(y, x, &a->pool, ctx);
    case CONVOLVE:
      return bytes ? (*bytes = attn_convolve_workspace(y, x, w, &a->convolve, query), ATTN_OK)
                   : attn_convolve(y, x, w, &a->convolve, ctx);
    case DEPTHWISE:
      a->convolve.bias = none;
      return bytes ? (*bytes = attn_convolve_depthwise_workspace(y, x, w, &a->convolve, query),
                      ATTN_OK)
                   : attn_convolve_depthwise(y, x, w, &a->convolve, ctx);
    case MAB:
      return bytes ? (*bytes = attn_mab_workspace(y, x, points, &a->isab.induce, query), ATTN_OK)
                   : attn_mab(y, x, points, &a->isab.induce, ctx);
    case ISAB:
      return bytes ? (*bytes = attn_isab_workspace(y, x, points, &a->isab, query), ATTN_OK)
                   : attn_isab(y, x, points, &a->isab, ctx);
    case LUNA:
      return bytes ? (*bytes = attn_luna_workspace(y, other, x, points, none, &a->luna, query),
                      ATTN_OK)
                   : attn_luna(y, other, x, points, none, &a->luna, ctx);
    default:
      return bytes ? (*bytes = attn_luna_causal_workspace(y, x, x, x, points, &a->causal, query),
                      ATTN_OK)
                   : attn_luna_causal(y, x, x, x, points, &a->causal, ctx);
  }
}

static attn_status call_layer(job *j, attn_ctx *ctx) { return layer(j, ctx, NULL, NULL); }
static size_t workspace_layer(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  layer(j, NULL, ctx, &bytes);
  return bytes;
}

/* Rows, columns and weights that fit each other for the kind at hand. */
static void layer_views(input *in, layer_args *a, attn_tensor *view, int64_t batch, int64_t heads) {
  const int64_t t = below(in, 150), few = 1 + below(in, 10), kernel = 1 + below(in, 5);
  int64_t dim = 1 + below(in, 40), out = dim, rows = t, w_len = dim, w_dim = dim, w_heads = 1;
  if (below(in, 2)) w_heads = heads;
  switch (a->kind) {
    case FEATURES:
      w_len = 1 + below(in, 40);
      view[Y_W] = make_view(in, (attn_dtype)below(in, 3), 1, w_heads, w_len, w_dim, 0);
      if (a->map.kind == ATTN_FEATURES_SOFTMAX || a->map.kind == ATTN_FEATURES_ACT) out = w_len;
      if (a->map.kind == ATTN_FEATURES_RFA || a->map.kind == ATTN_FEATURES_HYPERBOLIC)
        out = 2 * w_len;
      if (a->map.kind == ATTN_FEATURES_DPFP)
        out = 2 * dim * (a->map.order > 0 && a->map.order < 5 ? a->map.order : 1);
      if (a->map.kind == ATTN_FEATURES_USER && a->map.features > 0) out = a->map.features;
      break;
    case POOL:
      if (a->pool.kernel > 0 && a->pool.kernel < 9) w_dim = a->pool.kernel;
      rows = attn_pool_len(t, few, &a->pool);
      if (rows < 0) rows = few;
      break;
    case CONVOLVE:
      w_len = kernel * dim, out = w_dim = 1 + below(in, 40);
      rows = attn_convolve_len(t, kernel, &a->convolve);
      break;
    case DEPTHWISE:
      w_len = kernel, w_dim = below(in, 2) ? dim : 1;
      rows = attn_convolve_len(t, kernel, &a->convolve);
      break;
    case LUNA_CAUSAL: break;
    default: heads = w_heads = 1;
  }
  if (rows < 0) rows = t;
  view[Y_OUT] = make_view(in, (attn_dtype)below(in, 3), batch, heads, rows, out, 1);
  view[Y_OUT2] = make_view(in, (attn_dtype)below(in, 3), batch, heads, few, dim, 1);
  view[Y_X] = make_view(in, (attn_dtype)below(in, 3), batch, heads, t, dim, 0);
  view[Y_POINTS] =
      make_view(in, (attn_dtype)below(in, 3), below(in, 2) ? batch : 1, heads, few, dim, 0);
  if (a->kind != FEATURES)
    view[Y_W] = make_view(in, (attn_dtype)below(in, 3), 1, w_heads, w_len, w_dim, 0);
  view[Y_BIAS] = make_view(in, (attn_dtype)below(in, 3), 1, w_heads, 1, w_dim, 0);
}

static void fuzz_layer(input *in) {
  layer_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  job j = {.name = "a layer",
           .outputs = 2,
           .runnable = 1,
           .args = &a,
           .call = call_layer,
           .workspace = workspace_layer};
  const int64_t batch = below(in, 3), heads = 1 + below(in, 3);
  a.kind = below(in, LAYER_KINDS);
  a.is_key = below(in, 2);
  if (a.kind == FEATURES) a.map = make_map(in, &s, 40, &j.tame);
  a.pool.kind = (attn_pool_kind)below(in, 3);
  a.pool.kernel = chance(in, 12) ? nasty_int(in) : below(in, 9);
  a.pool.stride = chance(in, 12) ? nasty_int(in) : below(in, 6);
  a.convolve.pad = (attn_pad)below(in, 5);
  a.convolve.stride = chance(in, 12) ? nasty_int(in) : below(in, 5);
  a.convolve.dilation = chance(in, 12) ? nasty_int(in) : below(in, 4);
  a.convolve.accumulate = a.kind == DEPTHWISE && below(in, 2);
  a.isab.induce.form = (attn_set_form)below(in, ATTN_SET_COUNT);
  a.isab.restore.form = (attn_set_form)below(in, ATTN_SET_COUNT);
  a.isab.induce.heads = a.luna.pack_heads = below(in, 3);
  a.isab.restore.heads = a.luna.heads = below(in, 3);
  a.isab.induce.no_norm = below(in, 2);
  a.isab.restore.scale = chance(in, 12) ? nasty_float(in) : 0;
  if (chance(in, 3)) { /* the weights are square */
    a.isab.induce.w_transposed = a.isab.induce.ff.w_transposed = a.luna.w_transposed = 1;
    a.isab.restore.w_transposed = below(in, 2);
  }
  a.causal.omega = (attn_luna_omega)below(in, ATTN_LUNA_COUNT);
  a.causal.scale = chance(in, 12) ? nasty_float(in) : 0;
  attn_tensor view[Y_TENSORS];
  layer_views(in, &a, view, batch, heads);
  if (chance(in, 3)) {
    int32_t *len = make_lengths(in, &s, batch, view[Y_X].len);
    a.pool.x_len = a.convolve.x_len = a.causal.q_len = a.luna.c_len = a.isab.induce.y_len = len;
  }
  const int flaws = below(in, 8) - 5, with = below(in, 4);
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, Y_TENSORS)]);
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  for (int i = 0; i < Y_TENSORS; i++) {
    const int wanted = i == Y_OUT2     ? a.kind == LUNA && with & 1
                       : i == Y_POINTS ? a.kind >= MAB
                       : i == Y_W      ? a.kind != LUNA_CAUSAL && (a.kind != FEATURES || with & 1)
                       : i == Y_BIAS   ? with & 2 && a.kind != LUNA_CAUSAL
                                       : 1;
    if (!wanted) continue;
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[Y_X].view.data = NULL;
  job_run(&j, in);
  store_free(&s);
}

#endif
