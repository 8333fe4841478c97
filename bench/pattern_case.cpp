/* pattern_case.cpp owns the comparison of a pattern with dense attention and with the formula.
 * */

#include "pattern_case.h"

#include <cmath>

namespace {

constexpr int64_t kWidth = 64, kDense = 4096;

problem_shape one_head(int64_t len) {
  problem_shape s = {};
  s.heads = 1;
  s.tq = len;
  s.dk = kWidth;
  return s;
}

}  // namespace

PatternHead::~PatternHead() {
  problem_free(&p);
  attn_schedule_free(&schedule);
}

std::string PatternHead::init(const PatternSpec &spec, attn_ctx ctx) {
  problem_shape shape = one_head(spec.len);
  spec.make(data);
  attn_status st =
      attn_schedule_build(&schedule, &data.pattern, 1, spec.len, spec.len, nullptr, &ctx);
  if (st != ATTN_OK) return ctx.reason ? ctx.reason : attn_status_string(st);
  attn_schedule_describe(&info, &schedule);
  if (!problem_init(&p, &shape, &ctx) || !problem_schedule(&p, &schedule, &ctx))
    return "out of memory";
  return "";
}

std::string PatternHead::run(attn_isa isa, attn_ctx *ctx) {
  attn_status st = problem_run(&p, isa, ctx);
  return case_check(st, *ctx, isa);
}

double PatternHead::difference() const {
  int64_t len = p.shape.tq;
  std::vector<int64_t> indptr((size_t)len + 1);
  std::vector<int32_t> col((size_t)info.pairs);
  attn_schedule_csr(indptr.data(), col.data(), &schedule, 0);
  auto at = [](const attn_tensor &t, int64_t i) { return (const float *)t.data + i * kWidth; };
  double worst = indptr.back() == info.pairs ? 0 : HUGE_VAL;
  for (int64_t i = 0; i < len; i += len / 13) {
    std::vector<double> sum(kWidth);
    double total = 0;
    for (int64_t e = indptr[(size_t)i]; e < indptr[(size_t)i + 1]; e++) {
      const float *q = at(p.q, i), *k = at(p.k, col[(size_t)e]), *v = at(p.v, col[(size_t)e]);
      double x = 0;
      for (int64_t d = 0; d < kWidth; d++) x += (double)q[d] * (double)k[d];
      x = std::exp(x / std::sqrt((double)kWidth));
      total += x;
      for (int64_t d = 0; d < kWidth; d++) sum[(size_t)d] += x * (double)v[d];
    }
    for (int64_t d = 0; d < kWidth; d++) {
      double off = std::fabs((double)at(p.o, i)[d] - (total > 0 ? sum[(size_t)d] / total : 0));
      if (!(off <= worst)) worst = off;
    }
  }
  return worst;
}

PatternCase::PatternCase(attn_isa isa, const PatternSpec &spec) : Case(isa), isa_(isa) {
  problem_shape shape = one_head(kDense);
  failure = head_.init(spec, ctx_);
  if (!failure.empty()) return;
  bool scattered = !head_.data.indptr.empty();
  if (!problem_init(&base_, &shape, &ctx_) || (scattered && !init_masked(spec.len))) {
    failure = "out of memory";
    return;
  }
  contest.add("ours", head_.p.flops, [this] { return ours(); });
  contest.add("base", base_.flops, [this] { return dense(&base_); });
  if (scattered) contest.add("masked", head_.p.flops, [this] { return dense(&masked_); });
}

PatternCase::~PatternCase() {
  problem_free(&base_);
  problem_free(&masked_);
}

void PatternCase::counters(benchmark::State &state) {
  const Contender &us = contest[0], &dense = contest[1];
  auto &c = state.counters;
  c["GFLOPS"] = us.best() * 1e-9;
  c["GFLOPS_median"] = us.median() * 1e-9;
  c["percent"] = 100 * us.best() * 1e-9 / contest.peak();
  c["peak"] = contest.peak();
  c["peak_mean"] = contest.peak_mean();
  c["peak_min"] = contest.peak_min();
  c["pairs_per_second"] = us.best() * head_.p.pairs / head_.p.flops;
  c["computed_per_allowed"] = (double)report_.pairs / head_.p.pairs;
  c["density"] = head_.p.pairs / ((double)head_.p.shape.tq * (double)head_.p.shape.tk);
  c["base_GFLOPS"] = dense.best() * 1e-9;
  c["base_ratio"] = us.best() / dense.best();
  c["base_ratio_median"] = us.median() / dense.median();
  if (const Contender *m = contest.find("masked")) {
    c["masked_ratio"] = us.best() / m->best();
    c["masked_ratio_median"] = us.median() / m->median();
  }
  c["rounds"] = (double)us.rates.size();
}

void PatternCase::verify() {
  if (failure.empty() && ours() && !(head_.difference() < 1e-4))
    failure = "the result differs from the formula";
}

bool PatternCase::check(const std::string &what) {
  if (failure.empty()) failure = what;
  return failure.empty();
}

bool PatternCase::ours() {
  bool ok = check(case_check(attend(&ctx_), ctx_, isa_));
  report_ = ctx_.report;
  return ok;
}

bool PatternCase::dense(problem *p) {
  return check(case_check(problem_run(p, isa_, &ctx_), ctx_, isa_));
}

bool PatternCase::init_masked(int64_t len) {
  const std::vector<int64_t> &indptr = head_.data.indptr;
  const std::vector<int32_t> &col = head_.data.lists[0];
  problem_shape shape = one_head(len);
  mask_.resize((size_t)(len * len));
  for (int64_t i = 0; i < len; i++)
    for (int64_t e = indptr[(size_t)i]; e < indptr[(size_t)i + 1]; e++)
      mask_[(size_t)(i * len + col[(size_t)e])] = 1;
  if (!problem_init(&masked_, &shape, &ctx_)) return false;
  attn_mask mask = attn_mask_bool(mask_.data(), 1, 1, len, len);
  return problem_mask(&masked_, &mask, head_.p.pairs, &ctx_);
}
