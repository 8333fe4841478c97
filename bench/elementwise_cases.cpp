/* elementwise_cases.cpp owns the entries that move data: exp, rope, merge, norms, activations, and
 * the bandwidth to hold them against. */
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "case.h"
#include "peers.h"
#include "ulp.h"

namespace {

Floats numbers(size_t n, float low, float high) {
  Floats x(n);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> d(low, high);
  for (float &f : x) f = d(random);
  return x;
}

int exp_ours(float *y, const float *x, int64_t n, attn_isa isa) {
  attn_ctx ctx = {};
  ctx.isa = isa;
  return attn_exp(y, x, n, &ctx) == ATTN_OK;
}

int exp_theirs(float *y, const float *x, int64_t n, attn_isa isa) {
  peer_exp(y, x, n, isa);
  return 1;
}

class ExpCase : public Case {
 public:
  static constexpr int64_t kCount = 4096; /* 16 KB in, 16 KB out: inside L1 */

  explicit ExpCase(attn_isa isa) : Case(isa), isa_(isa), x_(numbers(kCount, -80, 0)), y_(kCount) {
    ctx_.isa = isa;
    contest.add("ours", kCount, [this] {
      failure = case_check(attn_exp(y_.data(), x_.data(), kCount, &ctx_), ctx_, isa_);
      return failure.empty();
    });
    contest.add("base", kCount, [this] {
      peer_exp(y_.data(), x_.data(), kCount, isa_);
      return true;
    });
    ulp_ours_ = ulp_exp(exp_ours, isa);
    ulp_theirs_ = ulp_exp(exp_theirs, isa);
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c["elements_per_second"] = contest[0].best();
    c["GB_per_second"] = contest[0].best() * 8e-9;
    c["base_elements_per_second"] = contest[1].best();
    c["base_ratio"] = contest[0].best() / contest[1].best();
    c["ulp"] = ulp_ours_.worst;
    c["ulp_at"] = (double)ulp_ours_.at;
    c["ulp_points"] = (double)ulp_ours_.points;
    c["base_ulp"] = ulp_theirs_.worst;
    c["base_ulp_at"] = (double)ulp_theirs_.at;
    c["rounds"] = (double)contest[0].rates.size();
    state.SetLabel(peer_exp_name(isa_));
  }

 private:
  attn_isa isa_;
  Floats x_, y_;
  attn_ctx ctx_{};
  ulp_record ulp_ours_, ulp_theirs_;
};

/* One pass over tensors of B = 1, H = 8: rates are bytes read and written. */
class PassCase : public Case {
 public:
  static constexpr int64_t kHeads = 8;

  PassCase(attn_isa isa, int64_t len, int64_t dim, bool merge)
      : Case(isa),
        isa_(isa),
        merge_(merge),
        a_(numbers((size_t)(kHeads * len * dim), -1, 1)),
        b_(merge ? a_ : Floats()),
        out_(a_.size()),
        lse_(numbers((size_t)(kHeads * len), -1, 1)),
        lse_out_(lse_.size()) {
    auto view = [&](const Floats &v, int64_t d) {
      return attn_bhtd(v.data(), ATTN_F32, 1, kHeads, len, d);
    };
    attn_tensor a = view(a_, dim), b = view(b_, dim), o = view(out_, dim), l = view(lse_, 1),
                lo = view(lse_out_, 1);
    ctx_.isa = isa;
    bytes_ = 4.0 * (double)(a_.size() + b_.size() + out_.size());
    if (!merge) workspace_.resize(attn_rope_workspace(o, a, nullptr, &ctx_) + 1);
    ctx_.workspace = workspace_.data();
    ctx_.workspace_size = workspace_.size();
    contest.add("ours", bytes_, [=] {
      attn_status st =
          merge_ ? attn_merge(o, lo, a, l, b, l, &ctx_) : attn_rope(o, a, nullptr, &ctx_);
      failure = case_check(st, ctx_, isa_);
      return failure.empty();
    });
  }

  void counters(benchmark::State &state) override {
    state.counters["GB_per_second"] = contest[0].best() * 1e-9;
    state.counters["bytes"] = bytes_;
    state.counters["rounds"] = (double)contest[0].rates.size();
  }

 private:
  attn_isa isa_;
  bool merge_;
  Floats a_, b_, out_, lse_, lse_out_;
  std::vector<char> workspace_;
  attn_ctx ctx_{};
  double bytes_ = 0;
};

/* Rows between dense products, from one array to another: rates are bytes read and written, against those of
 * a plain copy of as much that takes turns with ours. act: -1 = layer norm, with a residual -2. */
class RowsCase : public Case {
 public:
  RowsCase(attn_isa isa, int64_t len, int64_t dim, int act)
      : Case(isa),
        isa_(isa),
        x_(numbers((size_t)(len * dim), -3, 3)),
        y_(x_.size()),
        more_(act == -2 ? x_ : Floats()),
        gain_(numbers((size_t)dim, -1, 1)),
        bias_(gain_) {
    auto view = [&](const Floats &v) { return attn_bhtd(v.data(), ATTN_F32, 1, 1, len, dim); };
    attn_tensor y = view(y_), x = view(x_), more = view(more_);
    const size_t bytes = sizeof(float) * x_.size();
    ctx_.isa = isa;
    contest.add("ours", (double)bytes * (act == -2 ? 3 : 2), [=] {
      attn_status st;
      if (act < 0) {
        attn_layer_norm_params p = {};
        p.norm.gain = gain_.data(), p.norm.bias = bias_.data();
        if (act == -2) p.residual = more;
        st = attn_layer_norm(y, x, &p, &ctx_);
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
  attn_ctx ctx_{};
};

/* Rows of K into quantised storage, and back: rates are bytes of f32. */
class QuantizeCase : public Case {
 public:
  QuantizeCase(attn_isa isa, attn_dtype dtype, int64_t len, int64_t dim, bool back)
      : Case(isa),
        isa_(isa),
        x_(numbers((size_t)(len * dim), -1, 1)),
        codes_(x_.size()),
        scale_((size_t)len) {
    attn_tensor x = attn_bhtd(x_.data(), ATTN_F32, 1, 1, len, dim);
    attn_tensor y = attn_bhtd(codes_.data(), dtype, 1, 1, len, dim);
    attn_scales s = attn_scales_dense(scale_.data(), nullptr, 0, &y);
    ctx_.isa = isa;
    if (attn_quantize(y, s, x, &ctx_) != ATTN_OK) failure = ctx_.reason;
    bytes_ = 4.0 * (double)x_.size();
    contest.add("ours", bytes_, [=] {
      attn_status st = back ? attn_dequantize(x, y, s, &ctx_) : attn_quantize(y, s, x, &ctx_);
      failure = case_check(st, ctx_, isa_);
      return failure.empty();
    });
  }

  void counters(benchmark::State &state) override {
    state.counters["GB_per_second"] = contest[0].best() * 1e-9;
    state.counters["bytes"] = bytes_;
    state.counters["rounds"] = (double)contest[0].rates.size();
  }

 private:
  attn_isa isa_;
  Floats x_;
  std::vector<unsigned char> codes_;
  Floats scale_;
  attn_ctx ctx_{};
  double bytes_ = 0;
};

class BandwidthCase : public Case {
 public:
  BandwidthCase(int level, int threads)
      : Case(ATTN_ISA_AUTO), bytes_(peak_level_bytes(level, threads)) {
    rate_ = peak_read_bandwidth(bytes_, threads);
    contest.add("probe", 1, [] { return true; });
  }

  void counters(benchmark::State &state) override {
    state.counters["GB_per_second"] = rate_;
    state.counters["bytes_per_thread"] = (double)bytes_;
  }

 private:
  size_t bytes_;
  double rate_;
};

}  // namespace

void register_elementwise(const Selection &sel) {
  attn_isa isa = sel.isa;
  std::string tier = attn_isa_name(isa);
  case_register("exp/f32/" + tier + "/n:" + std::to_string(ExpCase::kCount),
                [isa] { return std::make_unique<ExpCase>(isa); });
  for (int64_t len : {512, 16384})
    for (bool merge : {false, true})
      case_register(std::string(merge ? "merge" : "rope") + "/f32/" + tier +
                        "/T:" + std::to_string(len) + "/d:64/h:8",
                    [=] { return std::make_unique<PassCase>(isa, len, 64, merge); });
  /* 400 KB, in the second cache, and 25 MB */
  for (int64_t numbers : {50000, 3200000})
    for (int64_t dim : {64, 384, 768, 1000, 1024})
      for (bool residual : {false, true})
        case_register("layer_norm/f32/" + tier + (residual ? "/residual" : "") +
                          "/T:" + std::to_string(numbers / dim) + "/d:" + std::to_string(dim),
                      [=] {
                        return std::make_unique<RowsCase>(isa, numbers / dim, dim,
                                                          residual ? -2 : -1);
                      });
  static const char *const acts[] = {"none", "relu",    "relu2", "gelu", "gelu_tanh",
                                     "silu", "sigmoid", "tanh",  "exp",  "elu1"};
  for (int64_t len : {64, 4096})
    for (int act = 0; act < ATTN_ACT_COUNT; act++)
      case_register("activate/" + std::string(acts[act]) + "/" + tier +
                        "/T:" + std::to_string(len) + "/d:768",
                    [=] { return std::make_unique<RowsCase>(isa, len, 768, act); });
  static const char *const types[] = {"i8", "i4", "e4m3"};
  for (int type = 0; type < 3; type++)
    for (bool back : {false, true})
      case_register(std::string(back ? "dequantize" : "quantize") + "/" + types[type] + "/" + tier +
                        "/T:4096/d:128",
                    [=] {
                      return std::make_unique<QuantizeCase>(isa, (attn_dtype)(ATTN_I8 + type), 4096,
                                                            128, back);
                    });
}

void register_bandwidth() {
  static const char *const levels[] = {"L2", "L3", "DRAM"};
  for (int level = 2; level <= 4; level++)
    for (int threads = 1; threads <= clock_cores(); threads *= 2)
      case_register(
          std::string("read/") + levels[level - 2] + "/threads:" + std::to_string(threads),
          [=] { return std::make_unique<BandwidthCase>(level, threads); });
}
