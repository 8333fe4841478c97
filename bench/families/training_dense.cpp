/* bench/families/training_dense.cpp owns the entries of gradients of dense products and of the rows between them. */

#include <cstring>

#include "functions.h"

namespace {

/* d_x and d_w, with an activation z again: 2 m k n flops each. */
void gemm_backward(Call &c, int64_t m, int64_t k, int64_t n, attn_activation act) {
  attn_tensor x = c.rows(1, m, k), w = c.rows(1, k, n), d_y = c.rows(1, m, n);
  attn_tensor d_x = c.rows(1, m, k), d_w = c.rows(1, k, n);
  attn_gemm_params p = {};
  attn_gemm_gradients g = {};
  p.activation = act, p.bias = c.rows(1, 1, n), g.d_bias = c.rows(1, 1, n);
  c.flops = (act == ATTN_ACT_NONE ? 4.0 : 6.0) * (double)m * (double)k * (double)n;
  c.run = [=](attn_ctx *ctx) { return attn_gemm_backward(d_x, d_w, d_y, x, w, &p, &g, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_gemm_backward_workspace(d_x, d_w, d_y, x, w, &p, &g, ctx);
  };
}

const CallEntry entries[] = {
    {"gemm_backward", "128x512x512",
     [](Call &c) { gemm_backward(c, 128, 512, 512, ATTN_ACT_NONE); }},
    {"gemm_backward", "512x768x768",
     [](Call &c) { gemm_backward(c, 512, 768, 768, ATTN_ACT_NONE); }},
    {"gemm_backward", "2048x768x3072/gelu",
     [](Call &c) { gemm_backward(c, 2048, 768, 3072, ATTN_ACT_GELU); }},
    {"gemm_backward", "2048x3072x768",
     [](Call &c) { gemm_backward(c, 2048, 3072, 768, ATTN_ACT_NONE); }},
    {"gemm_backward", "4096x1024x1024",
     [](Call &c) { gemm_backward(c, 4096, 1024, 1024, ATTN_ACT_NONE); }},
};

}  // namespace

void register_training_dense(const Selection &s) { register_calls(s, entries); }
