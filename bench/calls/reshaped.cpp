/* bench/calls/reshaped.cpp owns the entries of attention with reshaped weights. One head. */

#include "case.h"
#include "problem.h"

namespace {

enum Way {
  kSigmoid,
  kSoftpick,
  kStick,
  kSsmax,
  kSsmaxBiased,
  kTemperature,
  kForgetting,
  kGate,
  kWays
};
const char *const kNames[kWays] = {"sigmoid",     "softpick",    "stick",      "ssmax",
                                   "ssmax-alibi", "temperature", "forgetting", "gate"};

/* attn_reshaped, in turn with softmax over the same shape. */
class ReshapedCase : public Case {
 public:
  ReshapedCase(attn_isa isa, const problem_shape &shape, Way way) : Case(isa), isa_(isa) {
    if (!problem_init(&p_, &shape, &ctx_)) {
      failure = "out of memory";
      return;
    }
    params_.attention = p_.params;
    const int64_t t = shape.tq, h = shape.heads;
    if (way == kSigmoid) params_.kind = ATTN_RESHAPE_SIGMOID;
    if (way == kSoftpick) params_.kind = ATTN_RESHAPE_SOFTPICK;
    if (way == kStick) params_.kind = ATTN_RESHAPE_STICK;
    if (way == kSsmax || way == kSsmaxBiased)
      numbers_.assign((size_t)h, 0.43f), params_.ssmax.scale = numbers_.data();
    slopes_.assign((size_t)h, 0.01f);
    if (way == kSsmaxBiased) params_.attention.alibi = slopes_.data();
    params_.temperature.on = way == kTemperature;
    if (way == kForgetting) {
      numbers_ = random_floats((size_t)(h * t), -0.1f, 0.0f);
      params_.forget.log_f = attn_bhtd(numbers_.data(), ATTN_F32, 1, h, t, 1);
    }
    if (way == kGate) {
      numbers_ = random_floats((size_t)(h * t * shape.dk), -4.0f, 4.0f);
      params_.gate = attn_bhtd(numbers_.data(), ATTN_F32, 1, h, t, shape.dk);
    }
    workspace_.resize(attn_reshaped_workspace(p_.o, p_.q, p_.k, p_.v, &params_, &ctx_) + 1);
    contest.add("ours", p_.flops, [this] {
      ctx_.isa = isa_;
      ctx_.workspace = workspace_.data();
      ctx_.workspace_size = workspace_.size();
      attn_status st = attn_reshaped(p_.o, p_.q, p_.k, p_.v, &params_, &ctx_);
      failure = case_check(st, ctx_, isa_);
      return failure.empty();
    });
    contest.add("base", p_.flops, [this] {
      failure = case_check(problem_run(&p_, isa_, &ctx_), ctx_, isa_);
      return failure.empty();
    });
  }

  ~ReshapedCase() override { problem_free(&p_); }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c["GFLOPS"] = contest[0].best() * 1e-9;
    c["percent"] = 100 * contest[0].best() * 1e-9 / contest.peak();
    c["base_ratio"] = contest[0].best() / contest[1].best();
    c["base_ratio_median"] = contest[0].median() / contest[1].median();
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  attn_isa isa_;
  problem p_{};
  attn_reshaped_params params_{};
  Floats numbers_, slopes_;
  std::vector<char> workspace_;
};

}  // namespace

void register_reshaped(const Selection &s) {
  for (int way = 0; way < kWays; way++)
    for (int64_t d = 64; d <= 128; d += 64) {
      if (!s.full && (d > 64 || (way != kSigmoid && way != kForgetting))) continue;
      const attn_isa isa = s.isa;
      problem_shape shape = {};
      shape.heads = 1;
      shape.tq = s.full ? 4096 : 2048;
      shape.dk = d;
      shape.causal = 1;
      case_register(
          std::string("reshaped/f32/") + attn_isa_name(isa) + "/" + kNames[way] +
              "/causal:1/T:" + std::to_string(shape.tq) + "/d:" + std::to_string(d) + "/h:1",
          [=] { return std::make_unique<ReshapedCase>(isa, shape, (Way)way); }, s.seconds());
    }
}
