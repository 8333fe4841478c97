/* bench/families/priors.cpp owns the entries of what is known before the content: Gaussians,
 * averages, blocks of a task. */

#include "functions.h"

namespace {

void gaussian_window(Call &c) {
  constexpr int64_t len = 4096, heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  float *center = c.numbers(heads * len, 1), *precision = c.numbers(heads * len, 1);
  attn_gaussian_params p = {};
  p.w_p = c.numbers(heads * kDim * kDim, 0.1f);
  p.u_p = c.numbers(heads * kDim, 0.1f);
  p.u_d = c.numbers(heads * kDim, 0.1f);
  c.flops = (double)(heads * len) * (2.0 * kDim * kDim + 4.0 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_gaussian_window(center, precision, q, k, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_gaussian_window_workspace(center, precision, q, k, &p, ctx);
  };
}

/* A Gaussian of sigma 1 has 17 keys with weight; its flops are those of the values alone. */
void hard_gaussian(Call &c) {
  constexpr int64_t len = 16384;
  attn_tensor v = c.rows(1, len, kDim), o = c.rows(1, len, kDim);
  attn_hard_gaussian_params p = {};
  c.flops = 2.0 * 17 * (double)(len * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_hard_gaussian(o, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_hard_gaussian_workspace(o, v, &p, ctx); };
}

void average(Call &c) {
  constexpr int64_t len = 2048, wide = 512;
  attn_tensor y = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_average_params p = {};
  p.w_g = c.rows(1, 2 * wide, 2 * wide, 0.03f);
  c.flops = 8.0 * (double)(len * wide * wide);
  c.run = [=](attn_ctx *ctx) { return attn_average(o, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_average_workspace(o, y, &p, ctx); };
}

void film_blocks(Call &c) {
  constexpr int64_t m = 8, w = 128, dim = 64;
  attn_tensor a = c.rows(m, w, w), y = c.rows(m, w, w);
  attn_film_params p = {};
  p.z = c.rows(1, 1, dim);
  p.w_f = c.rows(1, dim, 2 * w, 0.1f);
  c.bytes = 8.0 * (double)(m * w * w);
  c.run = [=](attn_ctx *ctx) { return attn_film_blocks(y, a, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_film_blocks_workspace(y, a, &p, ctx); };
}

void camtl(Call &c) {
  constexpr int64_t len = 1024, heads = 8, w = 128;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  attn_tensor v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  attn_camtl_params p = {};
  p.blocks = c.rows(len / w, w, w);
  c.pairs(heads * len * len);
  c.run = [=](attn_ctx *ctx) { return attn_camtl(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_camtl_workspace(o, q, k, v, &p, ctx); };
}

const CallEntry entries[] = {
    {"gaussian_window", "T:4096/d:64/h:8", gaussian_window},
    {"hard_gaussian", "T:16384/d:64", hard_gaussian},
    {"average", "T:2048/d:512", average},
    {"film_blocks", "m:8/w:128/Dz:64", film_blocks},
    {"camtl", "T:1024/d:64/h:8/w:128", camtl},
};

}  // namespace

void register_priors(const Selection &s) { register_calls(s, entries); }
