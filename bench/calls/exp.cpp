/* bench/calls/exp.cpp owns the entry of the exponential: speed and error, against SLEEF or libm. */

#include "case.h"
#include "peers.h"
#include "ulp.h"

namespace {

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

  explicit ExpCase(attn_isa isa)
      : Case(isa), isa_(isa), x_(random_floats(kCount, -80, 0)), y_(kCount) {
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
  ulp_record ulp_ours_, ulp_theirs_;
};

}  // namespace

void register_exp(const Selection &s) {
  if (s.sparse) return;
  const attn_isa isa = s.isa;
  case_register(
      std::string("exp/f32/") + attn_isa_name(isa) + "/n:" + std::to_string(ExpCase::kCount),
      [isa] { return std::make_unique<ExpCase>(isa); });
}
