/* compressed_cases.cpp owns the entries of attention over fewer keys than rows and of low rank.
 * One head. */

#include "functions.h"

namespace {

void linformer(Call &c, attn_linformer_kind kind) {
  constexpr int64_t rank = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_linformer_params p = {};
  p.kind = kind;
  p.rank = rank;
  if (kind == ATTN_LINFORMER_MATRIX) p.e = c.rows(1, rank, kLong, 0.01f);
  c.flops = 4.0 * (double)(kLong * rank * kDim) * (kind == ATTN_LINFORMER_MATRIX ? 2 : 1);
  c.run = [=](attn_ctx *ctx) { return attn_linformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linformer_workspace(o, q, k, v, &p, ctx); };
}

void memory_compressed(Call &c) {
  constexpr int64_t len = 4096, kernel = 3;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  attn_memory_compressed_params p = {};
  p.causal = 1;
  p.w_k = c.rows(1, kernel * kDim, kDim, 0.1f);
  p.w_v = c.rows(1, kernel * kDim, kDim, 0.1f);
  c.flops = 4.0 * (double)(len * kDim) * ((double)kDim + (double)(len / kernel) / 2);
  c.run = [=](attn_ctx *ctx) { return attn_memory_compressed(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_memory_compressed_workspace(o, q, k, v, &p, ctx);
  };
}

void local(Call &c, int causal) {
  constexpr int64_t block = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_local_params p = {};
  p.causal = causal;
  c.pairs(causal ? kLong * (block + 1) / 2 : kLong * block);
  c.run = [=](attn_ctx *ctx) { return attn_local(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_local_workspace(o, q, k, v, &p, ctx); };
}

/* Windows of 128 and 512 to a side, blocks of 5 every 4 rows; edges are counted as if they went on. */
void poolingformer(Call &c, attn_poolingformer_align align, attn_pool_kind pool) {
  constexpr int64_t kernel = 5;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_poolingformer_params p = {};
  p.align = align;
  p.pool = pool;
  if (pool == ATTN_POOL_DYNAMIC) {
    p.pool_k = c.rows(1, kDim, kernel, 0.1f);
    p.pool_v = c.rows(1, kDim, kernel, 0.1f);
  }
  c.pairs(kLong * (2 * 128 + 1 + 2 * 512 / 4));
  c.run = [=](attn_ctx *ctx) { return attn_poolingformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_poolingformer_workspace(o, q, k, v, &p, ctx); };
}

/* --- Low rank. */

/* 64 landmarks. The flops are those of the two softmaxes over landmarks and of the small matrices. */
double landmark_flops(double len, double inverse) {
  constexpr double m = 64, d = kDim;
  return 2 * len * m * 2 * d * 2 + 2 * m * m * 2 * d + inverse;
}

void low_rank_band(Call &c) {
  constexpr int64_t len = 4096, rank = 16, width = 64;
  attn_tensor ql = c.rows(1, len, rank), kl = c.rows(1, len, rank), q = c.rows(1, len, kDim),
              k = c.rows(1, len, kDim), v = c.rows(1, len, kDim), o = c.rows(1, len, kDim);
  attn_low_rank_band_params p = {};
  p.half_width = width;
  c.flops = 2.0 * (double)len * (len * (rank + kDim) + (2 * width + 1) * 2 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_low_rank_band(o, ql, kl, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_low_rank_band_workspace(o, ql, kl, q, k, v, &p, ctx);
  };
}

void nystrom(Call &c, int64_t len, int64_t kernel) {
  constexpr double m = 64;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  attn_nystrom_params p = {};
  if (kernel > 0) p.conv = attn_bhtd(c.numbers(kernel, 0.2f), ATTN_F32, 1, 1, kernel, 1);
  c.flops = landmark_flops((double)len, 6 * 8 * m * m * m) + 2.0 * (double)(len * kernel * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_nystrom(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_nystrom_workspace(o, q, k, v, &p, ctx); };
}

void csalr(Call &c, int64_t len) {
  constexpr double m = 64;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  c.flops = landmark_flops((double)len, 2.0 / 3 * m * m * m + 2 * m * m * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_csalr(o, q, k, v, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_csalr_workspace(o, q, k, v, nullptr, ctx); };
}

const CallEntry entries[] = {
    {"low_rank_band", "r:16/width:64/T:4096/d:64", low_rank_band},
    {"linformer", "r:256/T:16384/d:64", [](Call &c) { linformer(c, ATTN_LINFORMER_MATRIX); }},
    {"linformer", "r:256/T:16384/d:64/mean", [](Call &c) { linformer(c, ATTN_LINFORMER_MEAN); }},
    {"memory_compressed", "c:3/T:4096/d:64/causal", memory_compressed},
    {"local", "block:256/T:16384/d:64", [](Call &c) { local(c, 0); }},
    {"local", "block:256/T:16384/d:64/causal", [](Call &c) { local(c, 1); }},
    {"poolingformer", "T:16384/d:64",
     [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_GRID, ATTN_POOL_MEAN); }},
    {"poolingformer", "T:16384/d:64/dynamic",
     [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_GRID, ATTN_POOL_DYNAMIC); }},
    {"poolingformer", "T:16384/d:64/window",
     [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_WINDOW, ATTN_POOL_MEAN); }},
    {"nystrom", "m:64/T:4096/d:64", [](Call &c) { nystrom(c, 4096, 0); }},
    {"nystrom", "m:64/T:16384/d:64", [](Call &c) { nystrom(c, 16384, 0); }},
    {"nystrom", "m:64/T:4096/d:64/conv:33", [](Call &c) { nystrom(c, 4096, 33); }},
    {"csalr", "m:64/T:4096/d:64", [](Call &c) { csalr(c, 4096); }},
};

}  // namespace

void register_compressed_calls(const Selection &sel) { register_calls(sel, entries); }
