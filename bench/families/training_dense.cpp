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

/* Gradients of rows between products: rates are bytes read and written, against those of a plain copy that takes
 * turns with ours. act: -1 = layer norm, -2 = RMS norm, with the gradients of their parameters; -3 = dropout, which is
 * its own; else an activation with its gate. */
class RowGradients : public Case {
 public:
  RowGradients(attn_isa isa, int64_t len, int64_t dim, int act)
      : Case(isa),
        isa_(isa),
        x_(random_floats((size_t)(len * dim), -3, 3)),
        d_y_(x_),
        d_x_(x_.size()),
        gain_(random_floats((size_t)dim, -1, 1)),
        bias_(gain_),
        d_gain_(gain_),
        d_bias_(gain_),
        gate_(act >= 0 ? x_ : gain_),
        d_gate_(gate_) {
    auto view = [&](const Floats &v) { return attn_bhtd(v.data(), ATTN_F32, 1, 1, len, dim); };
    attn_tensor x = view(x_), d_y = view(d_y_), d_x = view(d_x_);
    const size_t bytes = sizeof(float) * x_.size();
    contest.add(
        "ours",
        (double)bytes * (act == -3 ? 2
                         : act < 0 ? 3
                                   : 5),
        [=] {
          if (act == -3) {
            attn_drop drop = {0.1, 1, 2, 0, 0};
            failure = case_check(attn_dropout(d_x, x, &drop, &ctx_), ctx_, isa_);
            return failure.empty();
          }
          if (act >= 0) {
            attn_activate_params q = {};
            attn_activate_gradients into = {};
            q.activation = (attn_activation)act, q.gate = view(gate_), into.d_gate = view(d_gate_);
            failure = case_check(attn_activate_backward(d_x, d_y, x, &q, &into, &ctx_), ctx_, isa_);
            return failure.empty();
          }
          attn_layer_norm_params p = {};
          attn_layer_norm_gradients g = {};
          p.norm.gain = gain_.data(), g.d_gain = d_gain_.data();
          if (act == -1) p.norm.bias = bias_.data(), g.d_bias = d_bias_.data();
          failure = case_check(act == -1 ? attn_layer_norm_backward(d_x, d_y, x, &p, &g, &ctx_)
                                         : attn_rms_norm_backward(d_x, d_y, x, &p, &g, &ctx_),
                               ctx_, isa_);
          return failure.empty();
        });
    contest.add("copy", (double)bytes * 2, [=] {
      std::memmove(d_x_.data(), x_.data(), bytes);
      return true;
    });
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c["GB_per_second"] = contest[0].best() * 1e-9;
    c["copy_GB_per_second"] = contest[1].best() * 1e-9;
    c["of_copy"] = contest[0].best() / contest[1].best();
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  attn_isa isa_;
  Floats x_, d_y_, d_x_, gain_, bias_, d_gain_, d_bias_, gate_, d_gate_;
};

/* The gradient of a vocabulary's rows: bytes read and written, none of it again. */
void learned_position_backward(Call &c, int64_t tokens, int64_t rows, int64_t dim) {
  attn_tensor d_y = c.rows(1, tokens, dim), d_table = c.rows(1, rows, dim);
  int64_t *ids = (int64_t *)(void *)c.numbers(2 * tokens, 1);
  for (int64_t i = 0; i < tokens; i++) ids[i] = i * 7919 % rows;
  c.bytes = 4.0 * (double)(tokens + rows) * (double)dim;
  c.run = [=](attn_ctx *ctx) {
    attn_learned_params p = {};
    p.positions = ids;
    return attn_learned_position_backward(d_table, d_y, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    attn_learned_params p = {};
    p.positions = ids;
    return attn_learned_position_backward_workspace(d_table, d_y, &p, nullptr, ctx);
  };
}

/* Both parts and their LSEs: bytes read and written. */
void merge_backward(Call &c, int64_t heads, int64_t len, int64_t dim) {
  attn_tensor d_o = c.rows(heads, len, dim), o1 = c.rows(heads, len, dim);
  attn_tensor o2 = c.rows(heads, len, dim), d_o1 = c.rows(heads, len, dim);
  attn_tensor d_o2 = c.rows(heads, len, dim), lse1 = c.rows(heads, len, 1);
  attn_tensor lse2 = c.rows(heads, len, 1);
  attn_merge_gradients g = {};
  g.d_lse1 = c.rows(heads, len, 1), g.d_lse2 = c.rows(heads, len, 1);
  c.bytes = 4.0 * (double)(heads * len) * (5 * (double)dim + 4);
  c.run = [=](attn_ctx *ctx) {
    return attn_merge_backward(d_o1, d_o2, d_o, o1, lse1, o2, lse2, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_merge_backward_workspace(d_o1, d_o2, d_o, o1, lse1, o2, lse2, &g, ctx);
  };
}

/* d_x and d_w: 4 M kernel d_in d_out flops. */
void convolve_backward(Call &c, int64_t len, int64_t kernel, int64_t dim) {
  attn_tensor x = c.rows(1, len, dim), d_y = c.rows(1, len, dim), d_x = c.rows(1, len, dim);
  attn_tensor w = c.rows(1, kernel * dim, dim), d_w = c.rows(1, kernel * dim, dim);
  attn_convolve_params p = {};
  p.pad = ATTN_PAD_LEFT;
  c.flops = 4.0 * (double)(len * kernel) * (double)(dim * dim);
  c.run = [=](attn_ctx *ctx) {
    return attn_convolve_backward(d_x, d_w, d_y, x, w, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_convolve_backward_workspace(d_x, d_w, d_y, x, w, &p, nullptr, ctx);
  };
}

/* d_x and d_w: bytes of x, d_y and d_x, twice d_y. */
void convolve_depthwise_backward(Call &c, int64_t len, int64_t kernel, int64_t dim) {
  attn_tensor x = c.rows(1, len, dim), d_y = c.rows(1, len, dim), d_x = c.rows(1, len, dim);
  attn_tensor w = c.rows(1, kernel, dim), d_w = c.rows(1, kernel, dim);
  attn_convolve_params p = {};
  p.pad = ATTN_PAD_LEFT;
  c.bytes = 16.0 * (double)(len * dim);
  c.run = [=](attn_ctx *ctx) {
    return attn_convolve_depthwise_backward(d_x, d_w, d_y, x, w, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_convolve_depthwise_backward_workspace(d_x, d_w, d_y, x, w, &p, nullptr, ctx);
  };
}

/* Blocks of four rows, two apart: bytes of x and d_x, twice, and of d_y. */
void pool_backward(Call &c, attn_pool_kind kind, int64_t len, int64_t dim) {
  attn_pool_params p = {};
  p.kind = kind, p.kernel = 4, p.stride = 2;
  if (kind == ATTN_POOL_DYNAMIC) p.w = c.rows(1, dim, 4);
  const int64_t blocks = attn_pool_len(len, 0, &p);
  attn_tensor x = c.rows(1, len, dim), d_x = c.rows(1, len, dim), d_y = c.rows(1, blocks, dim);
  c.bytes = 4.0 * (double)((4 * len + blocks) * dim);
  c.run = [=](attn_ctx *ctx) { return attn_pool_backward(d_x, d_y, x, &p, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_pool_backward_workspace(d_x, d_y, x, &p, nullptr, ctx);
  };
}

const CallEntry entries[] = {
    {"pool_backward", "mean/T:4096/d:512",
     [](Call &c) { pool_backward(c, ATTN_POOL_MEAN, 4096, 512); }},
    {"pool_backward", "max/T:4096/d:512",
     [](Call &c) { pool_backward(c, ATTN_POOL_MAX, 4096, 512); }},
    {"pool_backward", "dynamic/T:4096/d:512",
     [](Call &c) { pool_backward(c, ATTN_POOL_DYNAMIC, 4096, 512); }},
    {"convolve_depthwise_backward", "T:2048/kernel:4/d:1024",
     [](Call &c) { convolve_depthwise_backward(c, 2048, 4, 1024); }},
    {"convolve_backward", "T:2048/kernel:3/d:256",
     [](Call &c) { convolve_backward(c, 2048, 3, 256); }},
    {"merge_backward", "h:8/T:4096/d:64", [](Call &c) { merge_backward(c, 8, 4096, 64); }},
    {"learned_position_backward", "T:4096/rows:32000/d:768",
     [](Call &c) { learned_position_backward(c, 4096, 32000, 768); }},
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

void register_training_dense(const Selection &s) {
  struct {
    const char *name;
    int act;
  } const rows[] = {{"layer_norm_backward", -1},
                    {"rms_norm_backward", -2},
                    {"dropout", -3},
                    {"activate_backward", ATTN_ACT_SILU}};
  static const int64_t shapes[][2] = {{4096, 768}, {16384, 1024}};
  const attn_isa isa = s.isa;
  register_calls(s, entries);
  for (auto &row : rows)
    for (auto &shape : shapes) {
      const int64_t len = shape[0], dim = shape[1];
      const int act = row.act;
      case_register(
          std::string(row.name) + "/" + attn_isa_name(isa) + "/T:" + std::to_string(len) +
              "/d:" + std::to_string(dim),
          [=] { return std::make_unique<RowGradients>(isa, len, dim, act); }, s.seconds());
    }
}
