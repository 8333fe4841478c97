/* bench/calls/norm.cpp owns the entries of work on rows between products: norms and activations. */

#include <cstring>

#include "case.h"

namespace {

/* Rows between dense products, from one array to another: rates are bytes read and written, against those of
 * a plain copy of as much that takes turns with ours. act: -1 = layer norm, with a residual -2, RMS norm with one -3. */
class RowsCase : public Case {
 public:
  RowsCase(attn_isa isa, int64_t len, int64_t dim, int act)
      : Case(isa),
        isa_(isa),
        x_(random_floats((size_t)(len * dim), -3, 3)),
        y_(x_.size()),
        more_(act <= -2 ? x_ : Floats()),
        gain_(random_floats((size_t)dim, -1, 1)),
        bias_(gain_) {
    auto view = [&](const Floats &v) { return attn_bhtd(v.data(), ATTN_F32, 1, 1, len, dim); };
    attn_tensor y = view(y_), x = view(x_), more = view(more_);
    const size_t bytes = sizeof(float) * x_.size();
    contest.add("ours", (double)bytes * (act <= -2 ? 3 : 2), [=] {
      attn_status st;
      if (act < 0) {
        attn_layer_norm_params p = {};
        p.norm.gain = gain_.data(), p.norm.bias = bias_.data();
        if (act <= -2) p.residual = more;
        if (act == -3) p.norm.bias = nullptr;
        st = act == -3 ? attn_rms_norm(y, x, &p, &ctx_) : attn_layer_norm(y, x, &p, &ctx_);
      } else {
        attn_activate_params p = {};
        p.activation = (attn_activation)act;
        st = attn_activate(y, x, &p, &ctx_);
      }
      failure = case_check(st, ctx_, isa_);
      return failure.empty();
    });
    contest.add("copy", (double)bytes * 2, [=] {
      std::memmove(y_.data(), x_.data(), bytes);
      return true;
    });
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c["GB_per_second"] = contest[0].best() * 1e-9;
    c["copy_GB_per_second"] = contest[1].best() * 1e-9;
    c["of_copy"] = contest[0].best() / contest[1].best();
    c["ns_per_16"] = 128e9 / contest[0].best();
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  attn_isa isa_;
  Floats x_, y_, more_, gain_, bias_;
};

}  // namespace

void register_norm(const Selection &s) {
  if (s.sparse) return;
  const attn_isa isa = s.isa;
  const std::string tier = attn_isa_name(isa);
  /* 400 KB, in the second cache, and 25 MB */
  for (int64_t numbers : {50000, 3200000})
    for (int64_t dim : {64, 384, 768, 1000, 1024})
      for (int form = -1; form >= -3; form--)
        case_register((form == -3 ? "rms_norm/f32/" : "layer_norm/f32/") + tier +
                          (form == -1 ? "" : "/residual") + "/T:" + std::to_string(numbers / dim) +
                          "/d:" + std::to_string(dim),
                      [=] { return std::make_unique<RowsCase>(isa, numbers / dim, dim, form); });
  static const char *const acts[] = {"relu",    "relu2", "gelu", "gelu_tanh", "silu",
                                     "sigmoid", "tanh",  "exp",  "elu1",      "none"};
  for (int64_t len : {64, 4096})
    for (int act = ATTN_ACT_RELU; act < ATTN_ACT_COUNT; act++)
      case_register("activate/" + std::string(acts[act - ATTN_ACT_RELU]) + "/" + tier +
                        "/T:" + std::to_string(len) + "/d:768",
                    [=] { return std::make_unique<RowsCase>(isa, len, 768, act); });
}
