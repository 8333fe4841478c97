/* sparse_cases.cpp owns the entries of sparse attention: patterns against dense attention of the
 * same tier, key lists, the building of schedules, and growth with the length. */
#include <cmath>
#include <cstdlib>

#include "case.h"
#include "patterns.h"
#include "problem.h"

namespace {

constexpr int64_t kWidth = 64, kDense = 4096;

problem_shape one_head(int64_t len) {
  problem_shape s = {};
  s.heads = 1;
  s.tq = len;
  s.dk = kWidth;
  return s;
}

/* A pattern, its schedule and one head of data. */
struct Sparse {
  PatternData data;
  attn_schedule schedule{};
  attn_schedule_info info{};
  problem p{};

  ~Sparse() {
    problem_free(&p);
    attn_schedule_free(&schedule);
  }

  /* "" or what went wrong. */
  std::string init(const PatternSpec &spec) {
    attn_ctx ctx = {};
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

  std::string run(attn_isa isa, attn_ctx *ctx) {
    attn_status st = problem_run(&p, isa, ctx);
    return case_check(st, *ctx, isa);
  }

  /* The largest difference between the outputs of a few rows and the formula, computed from the
   * pairs that the schedule lists: a wrong answer is fast and worth nothing. */
  double difference() const {
    int64_t len = p.shape.tq;
    std::vector<int64_t> row_ptr((size_t)len + 1);
    std::vector<int32_t> col((size_t)info.pairs);
    attn_schedule_csr(row_ptr.data(), col.data(), &schedule, 0);
    auto at = [](const attn_tensor &t, int64_t i) { return (const float *)t.data + i * kWidth; };
    double worst = row_ptr.back() == info.pairs ? 0 : HUGE_VAL;
    for (int64_t i = 0; i < len; i += len / 13) {
      std::vector<double> sum(kWidth);
      double total = 0;
      for (int64_t e = row_ptr[(size_t)i]; e < row_ptr[(size_t)i + 1]; e++) {
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
};

/* One pattern against plain dense attention. Scattered pairs also meet dense attention with a
 * boolean mask of them, and may run as attn_edges instead of a schedule. */
class PatternCase : public Case {
 public:
  PatternCase(attn_isa isa, const PatternSpec &spec, bool edges)
      : Case(isa), isa_(isa), edges_(edges) {
    problem_shape dense = one_head(kDense);
    failure = us_.init(spec);
    if (!failure.empty()) return;
    bool scattered = !us_.data.row_ptr.empty();
    if (!problem_init(&base_, &dense, &ctx_) || (scattered && !init_scattered(spec.len))) {
      failure = "out of memory";
      return;
    }
    contest.add("ours", us_.p.flops, [this] { return ours(); });
    contest.add("base", base_.flops, [this] { return call(&base_); });
    if (scattered) contest.add("masked", us_.p.flops, [this] { return call(&masked_); });
    if (ours() && !(us_.difference() < 1e-4)) failure = "the result differs from the formula";
  }

  ~PatternCase() override {
    problem_free(&base_);
    problem_free(&masked_);
    std::free(edges_workspace_);
  }

  void counters(benchmark::State &state) override {
    const Contender &us = contest[0], &dense = contest[1];
    auto &c = state.counters;
    c["GFLOPS"] = us.best() * 1e-9;
    c["GFLOPS_median"] = us.median() * 1e-9;
    c["percent"] = 100 * us.best() * 1e-9 / contest.peak();
    c["peak"] = contest.peak();
    c["peak_mean"] = contest.peak_mean();
    c["peak_min"] = contest.peak_min();
    c["pairs_per_second"] = us.best() * us_.p.pairs / us_.p.flops;
    c["computed_per_allowed"] = (double)report_.pairs / us_.p.pairs;
    c["density"] = us_.p.pairs / ((double)us_.p.shape.tq * (double)us_.p.shape.tk);
    c["base_GFLOPS"] = dense.best() * 1e-9;
    c["base_ratio"] = us.best() / dense.best();
    c["base_ratio_median"] = us.median() / dense.median();
    if (const Contender *m = contest.find("masked")) {
      c["masked_ratio"] = us.best() / m->best();
      c["masked_ratio_median"] = us.median() / m->median();
    }
    c["rounds"] = (double)us.rates.size();
  }

 private:
  bool check(const std::string &what) {
    if (failure.empty()) failure = what;
    return failure.empty();
  }

  bool call(problem *p) { return check(case_check(problem_run(p, isa_, &ctx_), ctx_, isa_)); }

  bool ours() {
    bool ok = edges_ ? check(run_edges()) : call(&us_.p);
    report_ = ctx_.report;
    return ok;
  }

  std::string run_edges() {
    problem &p = us_.p;
    ctx_.isa = isa_;
    ctx_.workspace = edges_workspace_;
    ctx_.workspace_size = edges_size_;
    attn_status st = attn_edges(p.o, p.q, p.k, p.v, &edge_list_, &ctx_);
    return case_check(st, ctx_, isa_);
  }

  bool init_scattered(int64_t len) {
    const std::vector<int64_t> &row_ptr = us_.data.row_ptr;
    const std::vector<int32_t> &col = us_.data.lists[0];
    problem_shape shape = one_head(len);
    mask_.resize((size_t)(len * len));
    for (int64_t i = 0; i < len; i++)
      for (int64_t e = row_ptr[(size_t)i]; e < row_ptr[(size_t)i + 1]; e++)
        mask_[(size_t)(i * len + col[(size_t)e])] = 1;
    if (!problem_init(&masked_, &shape, &ctx_)) return false;
    attn_mask mask = attn_mask_bool(mask_.data(), 1, 1, len, len);
    if (!problem_mask(&masked_, &mask, us_.p.pairs, &ctx_)) return false;
    if (!edges_) return true;
    problem &p = us_.p;
    edge_list_.row_ptr = row_ptr.data();
    edge_list_.col = col.data();
    edge_list_.edges = row_ptr.back();
    edges_size_ = attn_edges_workspace(p.o, p.q, p.k, p.v, &edge_list_, &ctx_);
    return (edges_workspace_ = std::malloc(edges_size_ + 1)) != nullptr;
  }

  attn_isa isa_;
  bool edges_;
  Sparse us_;
  problem base_{}, masked_{};
  std::vector<uint8_t> mask_;
  attn_edges_params edge_list_{};
  void *edges_workspace_ = nullptr;
  size_t edges_size_ = 0;
  attn_ctx ctx_{};
  attn_report report_{};
};

/* Building a schedule, against one forward pass of one head with it. */
class ScheduleCase : public Case {
 public:
  ScheduleCase(attn_isa isa, const PatternSpec &spec) : Case(isa), isa_(isa) {
    failure = us_.init(spec);
    if (!failure.empty()) return;
    contest.add("forward", 1, [this] {
      failure = us_.run(isa_, &ctx_);
      return failure.empty();
    });
    contest.add("build", 1, [this] { return build(); });
  }

  void counters(benchmark::State &state) override {
    const attn_schedule_info &info = us_.info;
    const Contender &forward = contest[0], &build = contest[1];
    auto &c = state.counters;
    c["build_ms"] = 1e3 / build.best();
    c["forward_ms"] = 1e3 / forward.best();
    c["build_per_forward"] = forward.best() / build.best();
    c["build_per_forward_median"] = forward.median() / build.median();
    c["bytes"] = (double)info.bytes;
    c["tiles"] = (double)info.tiles;
    c["runs"] = (double)(info.full + info.partial);
    c["bytes_per_tile"] = info.tiles ? (double)info.bytes / (double)info.tiles : 0;
    c["bytes_per_pair"] = info.pairs ? (double)info.bytes / (double)info.pairs : 0;
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  bool build() {
    attn_schedule s = {};
    int64_t len = us_.p.shape.tq;
    attn_status st = attn_schedule_build(&s, &us_.data.pattern, 1, len, len, nullptr, &ctx_);
    attn_schedule_free(&s);
    if (st != ATTN_OK) failure = attn_status_string(st);
    return st == ATTN_OK;
  }

  attn_isa isa_;
  Sparse us_;
  attn_ctx ctx_{};
};

/* The same band over longer and longer sequences, in turns. */
class GrowthCase : public Case {
 public:
  GrowthCase(attn_isa isa, const std::vector<int64_t> &lengths) : Case(isa) {
    for (size_t n = 0; n < lengths.size() && failure.empty(); n++) {
      us_.push_back(std::make_unique<Sparse>());
      failure = us_[n]->init(pattern_band_of(lengths[n]));
      contest.add(std::to_string(lengths[n]), 1, [this, n, isa] {
        failure = us_[n]->run(isa, &ctx_);
        return failure.empty();
      });
    }
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    for (size_t n = 0; n < us_.size(); n++) {
      c["ms_" + contest[n].name] = 1e3 / contest[n].best();
      if (n) c["growth_" + contest[n].name] = contest[n - 1].best() / contest[n].best();
    }
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  std::vector<std::unique_ptr<Sparse>> us_;
  attn_ctx ctx_{};
};

}  // namespace

void register_sparse(const Selection &sel) {
  attn_isa isa = sel.isa;
  std::string tier = std::string("f32/") + attn_isa_name(isa) + "/";
  for (const PatternSpec &spec : pattern_list()) {
    if (!sel.full && !spec.brief) continue;
    case_register(
        "sdpa/" + tier + spec.label(),
        [=] { return std::make_unique<PatternCase>(isa, spec, false); }, sel.seconds());
  }
  for (const PatternSpec &spec : scattered_list()) {
    if (!sel.full && !spec.brief) continue;
    case_register(
        "sdpa/" + tier + spec.label(),
        [=] { return std::make_unique<PatternCase>(isa, spec, false); }, sel.seconds());
    case_register(
        "edges/" + tier + spec.label(),
        [=] { return std::make_unique<PatternCase>(isa, spec, true); }, sel.seconds());
  }
  for (const PatternSpec &spec : pattern_list()) {
    if (!sel.full && !spec.brief) continue;
    case_register(
        "schedule/" + tier + spec.label(),
        [=] { return std::make_unique<ScheduleCase>(isa, spec); }, sel.seconds());
  }
  std::vector<int64_t> lengths = {4096, 8192, 16384, 32768, 65536};
  case_register(
      "growth/" + tier + "pattern:band/window:512/T:4096..65536/d:64",
      [=] { return std::make_unique<GrowthCase>(isa, lengths); }, sel.seconds());
}
