/* kinds.h owns the kinds of entry that several rooms have: one pass over numbers, and one way
 * against another. C++. */
#ifndef BENCH_KINDS_H
#define BENCH_KINDS_H

#include <vector>

#include "case.h"

/* A call whose rate is the bytes it reads and writes. */
class PassCase : public Case {
 public:
  explicit PassCase(attn_isa isa) : Case(isa), isa_(isa) {}

  void counters(benchmark::State &state) override {
    state.counters["GB_per_second"] = contest[0].best() * 1e-9;
    state.counters["bytes"] = bytes_;
    state.counters["rounds"] = (double)contest[0].rates.size();
  }

 protected:
  void pass(double bytes, std::function<attn_status()> call) {
    bytes_ = bytes;
    contest.add("ours", bytes, [=] {
      failure = case_check(call(), ctx_, isa_);
      return failure.empty();
    });
  }

 private:
  attn_isa isa_;
  double bytes_ = 0;
};

/* "ours" against one other way to the same result. */
class RatioCase : public Case {
 public:
  explicit RatioCase(attn_isa isa) : Case(isa), isa_(isa) {}

  void counters(benchmark::State &state) override {
    const Contender &us = contest[0], &them = contest[1];
    auto &c = state.counters;
    c["GFLOPS"] = us.best() * 1e-9;
    c["GFLOPS_median"] = us.median() * 1e-9;
    c["peak"] = contest.peak();
    c["percent"] = 100e-9 * us.best() / contest.peak();
    c[them.name + "_GFLOPS"] = them.best() * 1e-9;
    c[them.name + "_ratio"] = us.best() / them.best();
    c[them.name + "_ratio_median"] = us.median() / them.median();
    c["rounds"] = (double)us.rates.size();
  }

 protected:
  bool done(attn_status status) {
    if (failure.empty()) failure = case_check(status, ctx_, isa_);
    return failure.empty();
  }
  /* a workspace for either way */
  void room(size_t one, size_t other) {
    workspace_.resize(one > other ? one : other);
    ctx_.workspace = workspace_.data(), ctx_.workspace_size = workspace_.size();
  }

 private:
  attn_isa isa_;
  std::vector<char> workspace_;
};

#endif
