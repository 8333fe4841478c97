/* bench/families/training_loss.cpp owns the entries of what a step of training has beside gradients: losses, norms,
 * steps of optimisers. */

#include <cstring>

#include "functions.h"

namespace {

/* w, g, m, v: seven touches of 4 bytes an element. Elements settle: what is timed does not hang on their values. */
void adamw(Call &c, int64_t n) {
  float *w = c.numbers(n, 1), *g = c.numbers(n, 0.1f), *m = c.numbers(n, 0.1f),
        *v = c.numbers(n, 0.1f);
  for (int64_t i = 0; i < n; i++) v[i] *= v[i];
  c.bytes = 28.0 * (double)n;
  c.run = [=](attn_ctx *ctx) {
    attn_adamw_params p = {};
    p.step = 10;
    return attn_adamw(w, g, m, v, n, &p, ctx);
  };
  c.size = [](const attn_ctx *) { return (size_t)0; };
}

void sgd(Call &c, int64_t n) {
  float *w = c.numbers(n, 1), *g = c.numbers(n, 0.1f), *b = c.numbers(n, 0.1f);
  c.bytes = 20.0 * (double)n;
  c.run = [=](attn_ctx *ctx) {
    attn_sgd_params p = {};
    p.momentum = 0.9;
    return attn_sgd(w, g, b, n, &p, ctx);
  };
  c.size = [](const attn_ctx *) { return (size_t)0; };
}

void norm(Call &c, int64_t n) {
  const attn_flat_array x = {c.numbers(n, 1), n};
  c.bytes = 4.0 * (double)n;
  c.run = [=](attn_ctx *ctx) {
    double y, clip;
    return attn_global_norm(&y, &clip, &x, 1, 1.0, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    double y, clip;
    return attn_global_norm_workspace(&y, &clip, &x, 1, 1.0, ctx);
  };
}

/* Loss and gradient: logits are read twice, the second time out of a cache, and written once. */
void cross_entropy(Call &c, int64_t rows, int64_t classes, attn_dtype type) {
  attn_tensor x = c.rows(1, rows, classes, 2), d = c.rows(1, rows, classes);
  if (type == ATTN_BF16) { /* the upper halves, in place */
    auto *bytes = static_cast<unsigned char *>(x.data);
    for (int64_t i = 0; i < rows * classes; i++) memcpy(bytes + 2 * i, bytes + 4 * i + 2, 2);
    x.dtype = d.dtype = type;
  }
  const int32_t *targets = c.steps(rows, classes / rows ? classes / rows : 1);
  c.bytes = 2.0 * (double)(rows * classes) * (type == ATTN_F32 ? 4.0 : 2.0);
  c.run = [=](attn_ctx *ctx) {
    double loss;
    return attn_cross_entropy(&loss, d, x, targets, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    double loss;
    return attn_cross_entropy_workspace(&loss, d, x, targets, nullptr, ctx);
  };
}

/* Loss and all gradients of a projection: the logits twice, d_x and d_w, 2 in V flops a row each. */
void head(Call &c, int64_t rows, int64_t in, int64_t classes) {
  attn_tensor x = c.rows(1, rows, in), w = c.rows(1, classes, in, 0.05f);
  attn_tensor d_x = c.rows(1, rows, in);
  attn_cross_entropy_head_params p = {};
  attn_cross_entropy_head_gradients g = {};
  p.w_transposed = 1, g.d_w = c.rows(1, classes, in);
  const int32_t *targets = c.steps(rows, classes / rows ? classes / rows : 1);
  c.flops = 8.0 * (double)rows * (double)(in * classes);
  c.run = [=](attn_ctx *ctx) {
    double loss;
    return attn_cross_entropy_head(&loss, d_x, x, w, targets, &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    double loss;
    return attn_cross_entropy_head_workspace(&loss, d_x, x, w, targets, &p, &g, ctx);
  };
}

const CallEntry entries[] = {
    {"adamw", "n:16384", [](Call &c) { adamw(c, 16384); }},
    {"adamw", "n:8388608", [](Call &c) { adamw(c, 8388608); }},
    {"sgd", "n:8388608", [](Call &c) { sgd(c, 8388608); }},
    {"global_norm", "n:16384", [](Call &c) { norm(c, 16384); }},
    {"global_norm", "n:16777216", [](Call &c) { norm(c, 16777216); }},
    {"cross_entropy", "T:64/V:4096", [](Call &c) { cross_entropy(c, 64, 4096, ATTN_F32); }},
    {"cross_entropy", "T:512/V:32000", [](Call &c) { cross_entropy(c, 512, 32000, ATTN_F32); }},
    {"cross_entropy", "T:512/V:32000/bf16",
     [](Call &c) { cross_entropy(c, 512, 32000, ATTN_BF16); }},
    {"cross_entropy_head", "T:512/d:256/V:8192", [](Call &c) { head(c, 512, 256, 8192); }},
    {"cross_entropy_head", "T:1024/d:768/V:32000", [](Call &c) { head(c, 1024, 768, 32000); }},
};

}  // namespace

void register_training_loss(const Selection &s) { register_calls(s, entries); }
