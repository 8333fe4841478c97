/* beside.h owns entries of a call that has other weights than a softmax, in turn with attn_sdpa over the same
 * shape. C++. */
#ifndef BENCH_BESIDE_H
#define BENCH_BESIDE_H

#include "case.h"
#include "problem.h"

class BesideCase : public Case {
 public:
  BesideCase(attn_isa isa, const problem_shape &shape) : Case(isa), isa_(isa) {
    if (!problem_init(&p_, &shape, &ctx_)) failure = "out of memory";
    o_ = p_.o, v_ = p_.v;
  }
  ~BesideCase() override { problem_free(&p_); }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c["GFLOPS"] = contest[0].best() * 1e-9;
    c["percent"] = 100 * contest[0].best() * 1e-9 / contest.peak();
    c["base_ratio"] = contest[0].best() / contest[1].best();
    c["base_ratio_median"] = contest[0].median() / contest[1].median();
    c["rounds"] = (double)contest[0].rates.size();
  }

 protected:
  /* A call with its workspace query, whose params the entry has set. */
  template <typename Params>
  void against(attn_status (*call)(attn_tensor, attn_tensor, attn_tensor, attn_tensor,
                                   const Params *, attn_ctx *),
               size_t (*bytes)(attn_tensor, attn_tensor, attn_tensor, attn_tensor, const Params *,
                               const attn_ctx *),
               const Params *params) {
    workspace_.resize(bytes(o_, p_.q, p_.k, v_, params, &ctx_) + 1);
    contest.add("ours", p_.flops, [=] {
      ctx_.isa = isa_;
      ctx_.workspace = workspace_.data();
      ctx_.workspace_size = workspace_.size();
      failure = case_check(call(o_, p_.q, p_.k, v_, params, &ctx_), ctx_, isa_);
      return failure.empty();
    });
    contest.add("base", p_.flops, [this] {
      failure = case_check(problem_run(&p_, isa_, &ctx_), ctx_, isa_);
      return failure.empty();
    });
  }

  problem p_{};
  attn_tensor o_{}, v_{}; /* of the call, where it has fewer heads of these */

 private:
  attn_isa isa_;
  std::vector<char> workspace_;
};

#endif
