/* part_cases.cpp owns the entries of parts of other calls: products, pooling, convolutions, choices,
 * inverses. */

#include "functions.h"
#include "peers.h"

namespace {

/* A dense product of m rows of k by k x n. */
void gemm(Call &c, int64_t m, int64_t k, int64_t n, attn_gemm_params p) {
  attn_tensor x = c.rows(1, m, k), y = c.rows(1, m, n);
  attn_tensor w = p.w_transposed ? c.rows(1, n, k) : c.rows(1, k, n);
  if (p.activation) p.bias = c.rows(1, 1, n);
  c.flops = 2.0 * (double)(m * k * n);
  c.run = [=](attn_ctx *ctx) { return attn_gemm(y, x, w, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gemm_workspace(y, x, w, &p, ctx); };
  if (p.activation) return;
  float *other = c.numbers(m * n, 0);
  c.peer = [=] { peer_gemm(other, (float *)x.data, (float *)w.data, m, k, n, p.w_transposed); };
}

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
  c.run = [=](attn_ctx *ctx) { return attn_convolve(y, x, w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_convolve_workspace(y, x, w, nullptr, ctx); };
}

void convolve_depthwise(Call &c, int64_t kernel, bool columns) {
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, kLong, kDim);
  attn_tensor w = c.rows(1, kernel, columns ? kDim : 1, 0.1f);
  c.flops = 2.0 * (double)(kLong * kernel * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_convolve_depthwise(y, x, w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_convolve_depthwise_workspace(y, x, w, nullptr, ctx);
  };
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

void average(Call &c) {
  constexpr int64_t len = 2048, wide = 512;
  attn_tensor y = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_average_params p = {};
  p.w_g = c.rows(1, 2 * wide, 2 * wide, 0.03f);
  c.flops = 8.0 * (double)(len * wide * wide);
  c.run = [=](attn_ctx *ctx) { return attn_average(o, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_average_workspace(o, y, &p, ctx); };
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
    {"average", "T:2048/d:512", average},
    {"gemm", "m:512/n:512/k:64", [](Call &c) { gemm(c, 512, 64, 512, {}); }},
    {"gemm", "m:2048/n:256/k:128", [](Call &c) { gemm(c, 2048, 128, 256, {}); }},
    {"gemm", "m:2048/n:256/k:128/transposed",
     [](Call &c) {
       attn_gemm_params p = {};
       p.w_transposed = 1;
       gemm(c, 2048, 128, 256, p);
     }},
    {"gemm", "m:512/n:2048/k:512/gelu",
     [](Call &c) {
       attn_gemm_params p = {};
       p.activation = ATTN_ACT_GELU;
       gemm(c, 512, 512, 2048, p);
     }},
    {"gemm", "m:1/n:512/k:512", [](Call &c) { gemm(c, 1, 512, 512, {}); }},
};

}  // namespace

void register_part_calls(const Selection &sel) { register_calls(sel, entries); }
