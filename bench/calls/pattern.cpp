/* bench/calls/pattern.cpp owns the entries of patterns: attention with the schedule of each, the
 * building of schedules, and growth with the length. */

#include "pattern_case.h"

namespace {

class ScheduledCase : public PatternCase {
 public:
  ScheduledCase(attn_isa isa, const PatternSpec &spec) : PatternCase(isa, spec) { verify(); }

 private:
  attn_status attend(attn_ctx *ctx) override { return problem_run(&head_.p, isa_, ctx); }
};

/* Building a schedule, against one forward pass of one head with it. */
class ScheduleCase : public Case {
 public:
  ScheduleCase(attn_isa isa, const PatternSpec &spec) : Case(isa), isa_(isa) {
    failure = head_.init(spec, ctx_);
    if (!failure.empty()) return;
    contest.add("forward", 1, [this] {
      failure = head_.run(isa_, &ctx_);
      return failure.empty();
    });
    contest.add("build", 1, [this] { return build(); });
  }

  void counters(benchmark::State &state) override {
    const attn_schedule_info &info = head_.info;
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
    int64_t len = head_.p.shape.tq;
    attn_status st = attn_schedule_build(&s, &head_.data.pattern, 1, len, len, nullptr, &ctx_);
    attn_schedule_free(&s);
    if (st != ATTN_OK) failure = attn_status_string(st);
    return st == ATTN_OK;
  }

  attn_isa isa_;
  PatternHead head_;
};

/* The same band over longer and longer sequences, in turns. */
class GrowthCase : public Case {
 public:
  GrowthCase(attn_isa isa, const std::vector<int64_t> &lengths) : Case(isa) {
    for (size_t n = 0; n < lengths.size() && failure.empty(); n++) {
      heads_.push_back(std::make_unique<PatternHead>());
      failure = heads_[n]->init(pattern_band_of(lengths[n]), ctx_);
      contest.add(std::to_string(lengths[n]), 1, [this, n, isa] {
        failure = heads_[n]->run(isa, &ctx_);
        return failure.empty();
      });
    }
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    for (size_t n = 0; n < heads_.size(); n++) {
      c["ms_" + contest[n].name] = 1e3 / contest[n].best();
      if (n) c["growth_" + contest[n].name] = contest[n - 1].best() / contest[n].best();
    }
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  std::vector<std::unique_ptr<PatternHead>> heads_;
};

}  // namespace

void register_pattern(const Selection &s) {
  const attn_isa isa = s.isa;
  const std::string tier = std::string("f32/") + attn_isa_name(isa) + "/";
  for (const auto &list : {pattern_list(), scattered_list()})
    for (const PatternSpec &spec : list)
      if (s.full || spec.brief)
        case_register(
            "sdpa/" + tier + spec.label(),
            [=] { return std::make_unique<ScheduledCase>(isa, spec); }, s.seconds());
  for (const PatternSpec &spec : pattern_list())
    if (s.full || spec.brief)
      case_register(
          "schedule/" + tier + spec.label(),
          [=] { return std::make_unique<ScheduleCase>(isa, spec); }, s.seconds());
  std::vector<int64_t> lengths = {4096, 8192, 16384, 32768, 65536};
  case_register(
      "growth/" + tier + "pattern:band/window:512/T:4096..65536/d:64",
      [=] { return std::make_unique<GrowthCase>(isa, lengths); }, s.seconds());
}
