/* functions.cpp owns how a call is measured: against dense attention, or by its bytes where it has no
 * multiply-adds. */

#include "functions.h"

#include "problem.h"

namespace {

/* Calls with multiply-adds take turns with dense attention at T = 4096. */
class CallCase : public Case {
 public:
  CallCase(attn_isa isa, const CallMaker &make) : Case(isa), isa_(isa) {
    make(call_);
    call_.flops *= (double)call_.heads;
    if (!call_.run) {
      failure = "no schedule";
      return;
    }
    workspace_.resize(call_.size(&ctx_) + 1);
    contest.add("ours", call_.flops > 0 ? call_.flops : call_.bytes, [this] {
      ctx_.workspace = workspace_.data();
      ctx_.workspace_size = workspace_.size();
      failure = case_check(call_.run(&ctx_), ctx_, isa_);
      return failure.empty();
    });
    if (call_.flops <= 0) return;
    if (call_.peer) contest.add("openblas", call_.flops, [this] { return call_.peer(), true; });
    problem_shape dense = {};
    dense.heads = 1;
    dense.tq = 4096;
    dense.dk = kDim;
    if (!problem_init(&base_, &dense, &base_ctx_)) failure = "out of memory";
    contest.add("base", base_.flops, [this] {
      failure = case_check(problem_run(&base_, isa_, &base_ctx_), base_ctx_, isa_);
      return failure.empty();
    });
  }

  ~CallCase() override { problem_free(&base_); }

  void counters(benchmark::State &state) override {
    const Contender &us = contest[0];
    auto &c = state.counters;
    c["ms"] = 1e3 * us.work / us.best();
    c["rounds"] = (double)us.rates.size();
    if (call_.flops <= 0) {
      c["GB_per_second"] = us.best() * 1e-9;
      c["bytes"] = call_.bytes;
      return;
    }
    c["GFLOPS"] = us.best() * 1e-9;
    c["percent"] = 100 * us.best() * 1e-9 / contest.peak();
    c["peak"] = contest.peak();
    if (call_.bytes > 0) c["flops_per_byte"] = call_.flops / call_.bytes;
    c["base_ratio"] = us.best() / contest.find("base")->best();
    c["base_ratio_median"] = us.median() / contest.find("base")->median();
    if (call_.peer) c["openblas_ratio"] = us.best() / contest.find("openblas")->best();
  }

 private:
  attn_isa isa_;
  Call call_;
  problem base_{};
  std::vector<char> workspace_;
  attn_ctx base_ctx_{};
};

}  // namespace

void register_calls(const Selection &s, const CallEntry *entries, size_t count) {
  const attn_isa isa = s.isa;
  for (size_t i = 0; i < count; i++) {
    const CallEntry &e = entries[i];
    case_register(
        std::string(e.name) + "/f32/" + attn_isa_name(isa) + "/" + e.shape,
        [isa, &e] { return std::make_unique<CallCase>(isa, e.make); }, s.seconds());
  }
}
