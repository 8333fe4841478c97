/* position_cases.cpp owns the entries of position encodings, of priors and of spans predicted from
 * the content. */

#include "functions.h"

namespace {

/* --- Position encodings: bytes of x and y. */

void sinusoid(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512);
  attn_sinusoid_params p = {};
  c.bytes = 8.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_sinusoid(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinusoid_workspace(y, x, &p, ctx); };
}

void universal_signal(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512);
  attn_universal_signal_params p = {};
  p.step = 3;
  c.bytes = 8.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_universal_signal(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_universal_signal_workspace(y, x, &p, ctx); };
}

void learned_position(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512), table = c.rows(1, len, 512);
  attn_learned_params p = {};
  c.bytes = 12.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_learned_position(y, x, table, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_learned_position_workspace(y, x, table, &p, ctx);
  };
}

/* --- Priors and spans. */

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

void span_predict(Call &c) {
  constexpr int64_t len = 4096, width = 512, heads = 8;
  attn_tensor x = c.rows(1, len, width);
  float *z = c.numbers(heads * len, 1), *v = c.numbers(heads * width, 0.05f);
  c.flops = 2.0 * (double)(heads * len * width);
  c.run = [=](attn_ctx *ctx) { return attn_span_predict(z, x, v, nullptr, heads, 1024, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_span_predict_workspace(z, x, v, nullptr, heads, 1024, ctx);
  };
}

const CallEntry entries[] = {
    {"sinusoid", "T:512/d:512", [](Call &c) { sinusoid(c, 512); }},
    {"sinusoid", "T:16384/d:512", [](Call &c) { sinusoid(c, 16384); }},
    {"universal_signal", "T:512/d:512", [](Call &c) { universal_signal(c, 512); }},
    {"learned_position", "T:512/d:512", [](Call &c) { learned_position(c, 512); }},
    {"gaussian_window", "T:4096/d:64/h:8", gaussian_window},
    {"hard_gaussian", "T:16384/d:64", hard_gaussian},
    {"span_predict", "T:4096/d:512/h:8", span_predict},
};

}  // namespace

void register_position_calls(const Selection &sel) { register_calls(sel, entries); }
