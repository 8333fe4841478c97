/* dense.c owns how ONNX's products, convolutions and selections are said to attn_gemm,
 * attn_convolve_depthwise and attn_top_k. */
#include "node.h"

#include <stdlib.h>
#include <string.h>

static node_result missing(node_case *node, const char *what) {
  snprintf(node->why, sizeof node->why, "%s", what);
  return NODE_NOT_EXPRESSED;
}

/* [.., len, dim] as [batch, heads, len, dim]; a vector is a row or, as the right factor, a column. */
static attn_tensor matrix(const node_array *a, int column) {
  int64_t n[4] = {1, 1, 1, 1};
  for (int i = 0; i < a->rank; i++) n[4 - a->rank + i] = a->extent[i];
  if (a->rank == 1 && column) n[2] = n[3], n[3] = 1;
  return attn_bhtd(a->data, node_dtype(a), n[0], n[1], n[2], n[3]);
}

node_result node_product(node_case *node, attn_ctx *ctx) {
  const node_array *want = &node->output[0], *c = node->inputs > 2 ? &node->input[2] : NULL;
  attn_tensor a = matrix(&node->input[0], 0), b = matrix(&node->input[1], 1);
  attn_gemm_params p = {0};
  p.w_transposed = node_number(node, "transB", 0) != 0;
  p.scale = (float)node_number(node, "alpha", 0);
  int64_t n = p.w_transposed ? b.len : b.dim;
  if (node_number(node, "transA", 0) != 0) return missing(node, "a left factor by columns");
  if (c && node_number(node, "beta", 1) != 1) return missing(node, "a factor of the bias");
  if (c && c->count != n) return missing(node, "a bias that is not one number a column");
  if (c) p.bias = attn_bhtd(c->data, node_dtype(c), 1, 1, 1, n);
  float *y = node_new(ATTN_F32, want->count);
  attn_tensor out = attn_bhtd(y, ATTN_F32, a.batch > b.batch ? a.batch : b.batch,
                              a.heads > b.heads ? a.heads : b.heads, a.len, n);
  int ok =
      node_called(node, attn_gemm(out, a, b, &p, ctx), ctx) && node_close(node, want, y, ATTN_F32);
  free(y);
  return ok ? NODE_PASSED : NODE_FAILED;
}

/* Channels are heads of width 1. The rows before the first are those of the past, in one buffer with the new
 * ones: what convolves is a view of all, without padding. */
node_result node_convolution(node_case *node, attn_ctx *ctx) {
  const node_array *x_in = node_input(node, "input"), *w_in = node_input(node, "weight"),
                   *bias = node_input(node, "bias"), *past = node_input(node, "past_state"),
                   *want = node_output(node, "output"),
                   *present = node_output(node, "present_state");
  int64_t batch = x_in->extent[0], channels = x_in->extent[1], len = x_in->extent[2];
  int64_t kernel = w_in->extent[2], all = len + kernel - 1, rows = batch * channels;
  attn_dtype dtype = node_dtype(x_in);
  size_t size = dtype == ATTN_F32 ? 4 : 2;
  char *joined = calloc((size_t)(rows * all), size);
  float *sum = node_new(ATTN_F32, rows * len);
  for (int64_t r = 0; r < rows; r++) {
    char *row = joined + (size_t)(r * all) * size;
    size_t before = (size_t)(kernel - 1) * size, bytes = (size_t)len * size;
    if (past) memcpy(row, (const char *)past->data + (size_t)r * before, before);
    memcpy(row + before, (const char *)x_in->data + (size_t)r * bytes, bytes);
  }
  attn_tensor x = attn_bhtd(joined, dtype, batch, channels, all, 1);
  attn_tensor w = attn_bhtd(w_in->data, dtype, 1, channels, kernel, 1);
  attn_tensor y = attn_bhtd(sum, ATTN_F32, batch, channels, len, 1);
  attn_convolve_params p = {0};
  attn_activate_params silu = {0};
  p.pad = ATTN_PAD_DROP;
  int ok = 1;
  if (bias) { /* what is accumulated to */
    attn_tensor each = attn_bhtd(bias->data, dtype, batch, channels, len, 1);
    each.stride_batch = each.stride_len = 0;
    each.stride_head = 1;
    p.accumulate = 1;
    ok = node_called(node, attn_activate(y, each, NULL, ctx), ctx);
  }
  ok = ok && node_called(node, attn_convolve_depthwise(y, x, w, &p, ctx), ctx);
  if (node_text(node, "activation")) {
    silu.activation = ATTN_ACT_SILU;
    ok = ok && node_called(node, attn_activate(y, y, &silu, ctx), ctx);
  }
  /* the state is the end of the buffer */
  char *last = malloc((size_t)(rows * kernel) * size + 1);
  for (int64_t r = 0; r < rows && last; r++)
    memcpy(last + (size_t)(r * (kernel - 1)) * size, joined + (size_t)(r * all + len) * size,
           (size_t)(kernel - 1) * size);
  ok = ok && node_close(node, want, sum, ATTN_F32) && node_close(node, present, last, dtype);
  free(joined);
  free(sum);
  free(last);
  return ok ? NODE_PASSED : NODE_FAILED;
}

node_result node_selection(node_case *node, attn_ctx *ctx) {
  const node_array *x = node_input(node, "x"), *indices = node_output(node, "indices"),
                   *want = node_output(node, "values");
  if (x->type != NODE_FLOAT) return missing(node, "numbers that are not floats");
  int64_t n = x->extent[x->rank - 1], k = want->extent[want->rank - 1], rows = x->count / n;
  attn_top_k_params p = {0};
  p.smallest = node_number(node, "largest", 1) == 0;
  float *values = node_new(ATTN_F32, want->count);
  int32_t *index = malloc((size_t)want->count * sizeof *index + 1);
  int ok = node_called(node,
                       attn_top_k(attn_bhtd(values, ATTN_F32, 1, 1, rows, k), index,
                                  attn_bhtd(x->data, ATTN_F32, 1, 1, rows, n), k, &p, ctx),
                       ctx) &&
           node_close(node, want, values, ATTN_F32);
  for (int64_t i = 0; ok && i < want->count; i++)
    if (index[i] != ((const int64_t *)indices->data)[i]) {
      snprintf(node->why, sizeof node->why, "index %lld is %d", (long long)i, (int)index[i]);
      ok = 0;
    }
  free(values);
  free(index);
  return ok ? NODE_PASSED : NODE_FAILED;
}
