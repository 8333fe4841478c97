/* bench/calls/sequence.cpp owns the entries of calls along a sequence: pooling, convolutions,
 * the largest, k-means; and of small inverses. */

#include "functions.h"

namespace {

void pool(Call &c, attn_pool_kind kind, int64_t kernel) {
  int64_t out = kernel ? kLong / kernel : 64;
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, out, kDim);
  attn_pool_params p = {};
  p.kind = kind;
  p.kernel = kernel;
  if (kind == ATTN_POOL_DYNAMIC) p.w = c.rows(1, kDim, kernel, 0.1f);
  c.bytes = 4.0 * (double)((kLong + out) * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_pool(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_pool_workspace(y, x, &p, ctx); };
}

void convolve(Call &c, int64_t kernel) {
  int64_t out = (kLong + kernel - 1) / kernel;
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, out, kDim);
  attn_tensor w = c.rows(1, kernel * kDim, kDim, 0.1f);
  c.flops = 2.0 * (double)(out * kernel * kDim * kDim);
  attn_convolve_params p = {};
  p.pad = ATTN_PAD_LEFT, p.stride = kernel;
  c.run = [=](attn_ctx *ctx) { return attn_convolve(y, x, w, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_convolve_workspace(y, x, w, &p, ctx); };
}

void convolve_depthwise(Call &c, int64_t kernel, bool columns) {
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, kLong, kDim);
  attn_tensor w = c.rows(1, kernel, columns ? kDim : 1, 0.1f);
  c.flops = 2.0 * (double)(kLong * kernel * kDim);
  attn_convolve_params p = {};
  p.pad = ATTN_PAD_SAME;
  c.run = [=](attn_ctx *ctx) { return attn_convolve_depthwise(y, x, w, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_convolve_depthwise_workspace(y, x, w, &p, ctx); };
}

void top_k(Call &c, int64_t k) {
  constexpr int64_t rows = 256, n = 4096;
  attn_tensor x = c.rows(1, rows, n), values = c.rows(1, rows, k);
  int32_t *index = c.steps(rows * k, 0);
  c.bytes = 4.0 * (double)(rows * n);
  c.run = [=](attn_ctx *ctx) { return attn_top_k(values, index, x, k, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_top_k_workspace(values, index, x, k, nullptr, ctx);
  };
}

void kmeans_step(Call &c) {
  constexpr int64_t many = 256;
  attn_tensor x = c.rows(1, kLong, kDim), from = c.rows(1, many, kDim), to = c.rows(1, many, kDim);
  int32_t *of = c.steps(kLong, 0), *counts = c.steps(many, 0);
  c.flops = 2.0 * (double)(kLong * many * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_kmeans_step(to, of, counts, from, x, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_kmeans_step_workspace(to, of, counts, from, x, nullptr, ctx);
  };
}

/* Matrices of equal rows but for the diagonal: they are far from singular. */
void inverse(Call &c, int64_t m, bool solve) {
  attn_tensor a = c.rows(8, m, m, 0), z = c.rows(8, m, solve ? kDim : m), b = c.rows(8, m, kDim);
  for (int64_t i = 0; i < 8 * m * m; i++)
    ((float *)a.data)[i] = 0.5f / (float)m + (i % (m * m) % (m + 1) == 0 ? 0.5f : 0);
  double cube = 8.0 * (double)(m * m * m);
  c.flops = solve ? cube * 2 / 3 + 16.0 * (double)(m * m * kDim) : cube * 48;
  c.run = [=](attn_ctx *ctx) {
    return solve ? attn_solve(z, a, b, 1, ctx) : attn_pinv(z, a, 6, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return solve ? attn_solve_workspace(z, a, b, 1, ctx) : attn_pinv_workspace(z, a, 6, ctx);
  };
}

const CallEntry entries[] = {
    {"pool", "segments:64/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_MEAN, 0); }},
    {"pool", "kernel:4/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_MEAN, 4); }},
    {"pool", "max:4/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_MAX, 4); }},
    {"pool", "dynamic:4/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_DYNAMIC, 4); }},
    {"convolve", "kernel:3/T:16384/d:64", [](Call &c) { convolve(c, 3); }},
    {"convolve_depthwise", "kernel:33/T:16384/d:64",
     [](Call &c) { convolve_depthwise(c, 33, false); }},
    {"convolve_depthwise", "kernel:4/T:16384/d:64/columns",
     [](Call &c) { convolve_depthwise(c, 4, true); }},
    {"top_k", "k:32/n:4096/rows:256", [](Call &c) { top_k(c, 32); }},
    {"kmeans_step", "C:256/T:16384/d:64", kmeans_step},
    {"pinv", "m:64/h:8", [](Call &c) { inverse(c, 64, false); }},
    {"solve", "m:64/n:64/h:8", [](Call &c) { inverse(c, 64, true); }},
};

}  // namespace

void register_sequence(const Selection &s) { register_calls(s, entries); }
