/* rows.c owns how ONNX's operators on rows are said to attn_layer_norm and attn_activate, and its
 * LinearAttention to attn_linear. */
#include "node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static node_result missing(node_case *node, const char *what) {
  snprintf(node->why, sizeof node->why, "%s", what);
  return NODE_NOT_EXPRESSED;
}

/* All numbers as rows of n. */
static attn_tensor rows_of(const void *data, const node_array *a, int64_t n) {
  return attn_bhtd(data, node_dtype(a), 1, 1, a->count / n, n);
}

static attn_activation activation(const node_case *node) {
  const char *op = node->operator_, *form = node_text(node, "approximate");
  if (!strcmp(op, "Relu")) return ATTN_ACT_RELU;
  if (!strcmp(op, "Sigmoid")) return ATTN_ACT_SIGMOID;
  if (!strcmp(op, "Tanh")) return ATTN_ACT_TANH;
  if (!strcmp(op, "Gelu"))
    return form && !strcmp(form, "tanh") ? ATTN_ACT_GELU_TANH : ATTN_ACT_GELU;
  return ATTN_ACT_SILU; /* Swish, SwiGLU */
}

node_result node_rows(node_case *node, attn_ctx *ctx) {
  const node_array *x = &node->input[0], *want = &node->output[0];
  attn_dtype dtype = node_dtype(want);
  void *y = node_new(dtype, want->count);
  int ok;
  if (!strcmp(node->operator_, "LayerNormalization")) {
    int axis = (int)node_number(node, "axis", -1);
    int64_t n = 1;
    for (int i = axis < 0 ? axis + x->rank : axis; i < x->rank; i++) n *= x->extent[i];
    attn_layer_norm_params p = {0};
    p.norm.gain = node_input(node, "W")->data;
    p.norm.bias = node_input(node, "B")->data;
    p.norm.eps = (float)node_number(node, "epsilon", 0);
    /* Mean and InvStdDev are no outputs of attn_layer_norm, and are not compared */
    ok = node_called(node, attn_layer_norm(rows_of(y, x, n), rows_of(x->data, x, n), &p, ctx), ctx);
  } else {
    if (node_number(node, "alpha", 1) != 1) {
      free(y);
      return missing(node, "a factor inside the sigmoid of SwiGLU");
    }
    attn_activate_params p = {0};
    p.activation = activation(node);
    if (node->inputs > 1) p.gate = rows_of(node->input[1].data, &node->input[1], x->count);
    ok = node_called(
        node, attn_activate(rows_of(y, x, x->count), rows_of(x->data, x, x->count), &p, ctx), ctx);
  }
  ok = ok && node_close(node, want, y, dtype);
  free(y);
  return ok ? NODE_PASSED : NODE_FAILED;
}

node_result node_linear(node_case *node, attn_ctx *ctx) {
  const node_array *q_in = node_input(node, "query"), *k_in = node_input(node, "key"),
                   *v_in = node_input(node, "value"), *decay = node_input(node, "decay"),
                   *beta = node_input(node, "beta"), *want = node_output(node, "output"),
                   *state = node_output(node, "present_state");
  const char *rule = node_text(node, "update_rule");
  if (!rule || !strcmp(rule, "gated_delta")) return missing(node, "a delta rule with a decay");
  int64_t heads = (int64_t)node_number(node, "q_num_heads", 1),
          kv_heads = (int64_t)node_number(node, "kv_num_heads", 1);
  if (decay && decay->extent[2] != kv_heads) return missing(node, "a decay for each channel");
  int64_t batch = q_in->extent[0], len = q_in->extent[1];
  int64_t dk = q_in->extent[2] / heads, dv = v_in->extent[2] / kv_heads;
  attn_dtype dtype = node_dtype(q_in);
  attn_linear_params p = {0};
  p.causal = 1;
  p.map.kind = ATTN_FEATURES_ACT; /* of no function: q and k as they are */
  p.map.norm = ATTN_FEATURE_NORM_NONE;
  p.den = ATTN_LINEAR_DEN_NONE;
  p.out_scale = (float)node_number(node, "scale", 0);
  if (p.out_scale == 0) p.out_scale = 1 / sqrtf((float)dk);
  float *rate = NULL;
  int ok = 1;
  if (decay) { /* ONNX has its logarithm */
    p.rule = ATTN_LINEAR_DECAY;
    rate = node_new(ATTN_F32, decay->count);
    attn_activate_params power = {0};
    power.activation = ATTN_ACT_EXP;
    ok = node_called(node,
                     attn_activate(attn_bhtd(rate, ATTN_F32, 1, 1, 1, decay->count),
                                   rows_of(decay->data, decay, decay->count), &power, ctx),
                     ctx);
    p.rate = attn_bthd(rate, ATTN_F32, batch, len, kv_heads, 1);
  } else if (beta) {
    p.rule = ATTN_LINEAR_DELTA;
    p.rate = attn_bthd(beta->data, node_dtype(beta), batch, len, kv_heads, 1);
  }
  p.state_bytes = attn_linear_state_bytes(&p, batch, heads, kv_heads, dk, dv);
  p.state = malloc(p.state_bytes + 8);
  void *y = node_new(dtype, want->count), *s = node_new(ATTN_F32, state->count);
  attn_tensor sums;
  ok = ok &&
       node_called(
           node, attn_linear_begin(p.state, p.state_bytes, &p, batch, heads, kv_heads, dk, dv, ctx),
           ctx) &&
       node_called(node,
                   attn_linear(attn_bthd(y, dtype, batch, len, heads, dv),
                               attn_bthd(q_in->data, dtype, batch, len, heads, dk),
                               attn_bthd(k_in->data, dtype, batch, len, kv_heads, dk),
                               attn_bthd(v_in->data, dtype, batch, len, kv_heads, dv), &p, ctx),
                   ctx) &&
       node_called(node, attn_linear_view(p.state, p.state_bytes, &sums, NULL, ctx), ctx) &&
       node_called(node,
                   attn_activate(attn_bhtd(s, ATTN_F32, batch, kv_heads, dk, dv), sums, NULL, ctx),
                   ctx) &&
       node_close(node, want, y, dtype) && node_close(node, state, s, ATTN_F32);
  free(rate);
  free(p.state);
  free(y);
  free(s);
  return ok ? NODE_PASSED : NODE_FAILED;
}
