/* bench/families/lowrank.cpp owns the entries of attention of low rank. One head. */

#include "functions.h"

namespace {

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
  attn_tensor q = c.rows(c.heads, len, kDim), k = c.rows(c.heads, len, kDim),
              v = c.rows(c.heads, len, kDim), o = c.rows(c.heads, len, kDim);
  attn_nystrom_params p = {};
  if (kernel > 0) p.conv = attn_bhtd(c.numbers(kernel, 0.2f), ATTN_F32, 1, 1, kernel, 1);
  c.flops = landmark_flops((double)len, 6 * 8 * m * m * m) + 2.0 * (double)(len * kernel * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_nystrom(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_nystrom_workspace(o, q, k, v, &p, ctx); };
}

void csalr(Call &c, int64_t len) {
  constexpr double m = 64;
  attn_tensor q = c.rows(c.heads, len, kDim), k = c.rows(c.heads, len, kDim),
              v = c.rows(c.heads, len, kDim), o = c.rows(c.heads, len, kDim);
  c.flops = landmark_flops((double)len, 2.0 / 3 * m * m * m + 2 * m * m * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_csalr(o, q, k, v, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_csalr_workspace(o, q, k, v, nullptr, ctx); };
}

const CallEntry entries[] = {
    {"low_rank_band", "r:16/width:64/T:4096/d:64", low_rank_band},
    {"nystrom", "m:64/T:4096/d:64", [](Call &c) { nystrom(c, 4096, 0); }},
    {"nystrom", "m:64/T:16384/d:64", [](Call &c) { nystrom(c, 16384, 0); }},
    {"nystrom", "m:64/T:4096/d:64/h:8", [](Call &c) { c.heads = 8, nystrom(c, 4096, 0); }},
    {"nystrom", "m:64/T:4096/d:64/conv:33", [](Call &c) { nystrom(c, 4096, 33); }},
    {"csalr", "m:64/T:4096/d:64", [](Call &c) { csalr(c, 4096); }},
    {"csalr", "m:64/T:4096/d:64/h:8", [](Call &c) { c.heads = 8, csalr(c, 4096); }},
};

}  // namespace

void register_lowrank(const Selection &s) { register_calls(s, entries); }
