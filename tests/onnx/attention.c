/* attention.c owns how Attention and FlexAttention of ONNX are said to attn_sdpa. Nothing here computes
 * attention. */
#include "node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A [B, T, H d] array (ONNX's 3-D form) or a [B, H, T, d] one. */
static attn_tensor view(const node_array *a, const void *data, double heads) {
  attn_dtype dtype = node_dtype(a);
  if (a->rank == 4)
    return attn_bhtd(data, dtype, a->extent[0], a->extent[1], a->extent[2], a->extent[3]);
  int64_t h = (int64_t)heads;
  return attn_bthd(data, dtype, a->extent[0], a->extent[1], h, a->extent[2] / h);
}

/* A mask aligned with the right end of [B, H, Tq, Tk]. */
static attn_mask mask_view(const node_array *a) {
  int64_t n[4] = {1, 1, 1, 1};
  for (int i = 0; i < a->rank; i++) n[4 - a->rank + i] = a->extent[i];
  return a->type == NODE_BOOL ? attn_mask_bool(a->data, n[0], n[1], n[2], n[3])
                              : attn_mask_add(a->data, node_dtype(a), n[0], n[1], n[2], n[3]);
}

static void *entry(const void *data, attn_dtype dtype, int64_t elements) {
  return (char *)(uintptr_t)data + elements * (dtype == ATTN_F32 ? 4 : 2);
}

/* present = past, then the new rows. An attn_activate without parameters copies rows. */
static attn_tensor joined(node_case *node, const node_array *past, attn_tensor rows,
                          attn_ctx *ctx) {
  int64_t before = past->extent[2];
  attn_tensor all =
      attn_bhtd(node_new(rows.dtype, rows.batch * rows.heads * (before + rows.len) * rows.dim),
                rows.dtype, rows.batch, rows.heads, before + rows.len, rows.dim);
  attn_tensor first = all, last = all;
  first.len = before, last.len = rows.len;
  last.data = entry(all.data, all.dtype, before * all.stride_len);
  if (!node_called(node, attn_activate(first, view(past, past->data, 0), NULL, ctx), ctx) ||
      !node_called(node, attn_activate(last, rows, NULL, ctx), ctx))
    all.len = -1;
  return all;
}

/* x += c, x += j - i and x = -inf for j > i as a user writes them. */
static void add(void *user, const attn_score_tile *t) {
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t i = 0; i < t->queries; i++)
      t->score[c * t->key_stride + i * t->query_stride] += *(const float *)user;
}

static void add_distance(void *user, const attn_score_tile *t) {
  (void)user;
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t i = 0; i < t->queries; i++)
      t->score[c * t->key_stride + i * t->query_stride] += (float)(t->query[i] - t->key[c]);
}

/* P *= c likewise. */
static void multiply(void *user, const attn_score_tile *t) {
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t i = 0; i < t->queries; i++)
      t->score[c * t->key_stride + i * t->query_stride] *= *(const float *)user;
}

/* FlexAttention's subgraphs: the parameter that says the same. 0 for one that is not known. */
static int subgraphs(const node_case *node, attn_sdpa_params *p, float *number, float *weight) {
  const node_graph *score = node_subgraph(node, "score_mod"),
                   *weights = node_subgraph(node, "prob_mod");
  if (weights) {
    if (strcmp(weights->operators, "Mul")) return 0;
    *weight = (float)weights->number[0];
    p->modify_weights = multiply, p->modify_weights_user = weight;
  }
  if (!score) return 1;
  *number = (float)score->number[0];
  if (!strcmp(score->operators, "Add")) {
    p->modify = add, p->modify_user = number;
  } else if (!strcmp(score->operators, "Sub,Cast,Add")) {
    p->modify = add_distance;
  } else if (!strcmp(score->operators, "Div,Tanh,Mul")) {
    p->softcap = *number;
  } else if (!strcmp(score->operators, "GreaterOrEqual,Where")) {
    p->causal = ATTN_CAUSAL_START;
  } else {
    return 0;
  }
  return 1;
}

/* qk_matmul_output: 0 scaled products, 1 after the soft-cap, 2 after masks and bias, 3 weights. The first
 * two are those of all pairs, whatever the lengths. */
static int scores(node_case *node, attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                  attn_sdpa_params p, attn_ctx *ctx) {
  static const attn_map_stage stage[] = {ATTN_MAP_RAW, ATTN_MAP_CAPPED, ATTN_MAP_SCORES,
                                         ATTN_MAP_WEIGHTS};
  const node_array *want = node_output(node, "qk_matmul_output");
  if (!want) return 1;
  if (want->count != q.batch * q.heads * q.len * k.len) {
    snprintf(node->why, sizeof node->why, "scores of keys that the mask leaves out");
    return 0;
  }
  int mode = (int)node_number(node, "qk_matmul_output_mode", 0), ok;
  float *map = node_new(ATTN_F32, want->count);
  p.map = attn_bhtd(map, ATTN_F32, q.batch, q.heads, q.len, k.len), p.map_stage = stage[mode];
  if (mode < 2) p.kv_len = NULL, p.align_lengths = 0;
  ok = node_called(node, attn_sdpa(o, q, k, v, &p, ctx), ctx) &&
       node_close(node, want, map, ATTN_F32);
  free(map);
  return ok;
}

node_result node_attention(node_case *node, attn_ctx *ctx) {
  const node_array *q_in = node_input(node, "Q"), *k_in = node_input(node, "K"),
                   *v_in = node_input(node, "V"), *mask = node_input(node, "attn_mask"),
                   *past_k = node_input(node, "past_key"), *past_v = node_input(node, "past_value"),
                   *lengths = node_input(node, "nonpad_kv_seqlen"), *want = node_output(node, "Y");
  double q_heads = node_number(node, "q_num_heads", 0),
         k_heads = node_number(node, "kv_num_heads", 0);
  attn_tensor q = view(q_in, q_in->data, q_heads), k = view(k_in, k_in->data, k_heads);
  attn_tensor v = view(v_in, v_in->data, k_heads);
  attn_tensor o = view(want, node_new(node_dtype(want), want->count), q_heads);
  void *present_k = NULL, *present_v = NULL;
  int64_t past = 0, q_offs[16];
  int32_t kv_len[16];
  float number = 0, weight = 0;
  int ok = 1;

  if (past_k) {
    past = past_k->extent[2];
    k = joined(node, past_k, k, ctx), v = joined(node, past_v, v, ctx);
    present_k = k.data, present_v = v.data;
    ok = k.len >= 0 && v.len >= 0;
  }
  attn_sdpa_params p = {0};
  p.scale = (float)node_number(node, "scale", 0);
  p.softcap = (float)node_number(node, "softcap", 0);
  p.causal = node_number(node, "is_causal", 0) != 0 ? ATTN_CAUSAL_START : ATTN_CAUSAL_NONE;
  p.has_q_off = 1;
  p.q_off = past; /* starts aligned, behind the past */
  double left = node_number(node, "left_window_size", -1),
         right = node_number(node, "right_window_size", -1);
  p.window = attn_window_of((int64_t)left, (int64_t)right);
  if (lengths && lengths->count <= 16) {
    for (int64_t b = 0; b < lengths->count; b++) {
      int64_t length = ((const int64_t *)lengths->data)[b];
      if (mask && mask->extent[mask->rank - 1] < length) length = mask->extent[mask->rank - 1];
      kv_len[b] = (int32_t)length;
      q_offs[b] = ((const int64_t *)lengths->data)[b] - q.len;
    }
    p.kv_len = kv_len;
    p.q_offs = q_offs, p.has_q_off = 0, p.q_off = 0;
  }
  if (mask) {
    attn_mask m = mask_view(mask);
    /* keys beyond the mask are forbidden */
    if (k.len > m.k_len) k.len = v.len = m.k_len;
    if (m.kind == ATTN_MASK_BOOL)
      p.mask = m;
    else
      p.bias = m;
  }
  node_result result = NODE_FAILED;
  if (!subgraphs(node, &p, &number, &weight)) {
    snprintf(node->why, sizeof node->why, "a subgraph that no parameter says");
    result = NODE_NOT_EXPRESSED;
  } else if (ok) {
    ok = node_called(node, attn_sdpa(o, q, k, v, &p, ctx), ctx);
  }
  if (result == NODE_FAILED && ok && node_close(node, want, o.data, o.dtype) &&
      (!node_output(node, "present_key") ||
       (node_close(node, node_output(node, "present_key"), present_k, k.dtype) &&
        node_close(node, node_output(node, "present_value"), present_v, v.dtype))) &&
      scores(node, o, q, k, v, p, ctx))
    result = NODE_PASSED;
  free(o.data);
  free(present_k);
  free(present_v);
  return result;
}
