/* pattern_case.h owns attention restricted to a pattern, as entries measure it: one head of
 * data, against dense attention of the same tier. C++. */
#ifndef BENCH_PATTERN_CASE_H
#define BENCH_PATTERN_CASE_H

#include "case.h"
#include "patterns.h"
#include "problem.h"

/* A pattern, its schedule and one head of data. */
struct PatternHead {
  PatternData data;
  attn_schedule schedule{};
  attn_schedule_info info{};
  problem p{};

  ~PatternHead();

  /* "" or what went wrong; the workspace is for the workers of ctx. */
  std::string init(const PatternSpec &spec, attn_ctx ctx);
  std::string run(attn_isa isa, attn_ctx *ctx);

  /* The largest difference between the outputs of a few rows and the formula, computed from the
   * pairs that the schedule lists: a wrong answer is fast and worth nothing. */
  double difference() const;
};

/* One pattern against plain dense attention. Scattered pairs also meet dense attention with a
 * boolean mask of them. */
class PatternCase : public Case {
 public:
  PatternCase(attn_isa isa, const PatternSpec &spec);
  ~PatternCase() override;
  void counters(benchmark::State &state) override;

 protected:
  /* What is measured: head_.p.o from the pairs of the pattern. */
  virtual attn_status attend(attn_ctx *ctx) = 0;
  /* Compares the first result with the formula; for the constructor of the kind. */
  void verify();

  attn_isa isa_;
  PatternHead head_;

 private:
  bool check(const std::string &what);
  bool ours();
  bool dense(problem *p);
  bool init_masked(int64_t len);

  problem base_{}, masked_{};
  std::vector<uint8_t> mask_;
  attn_report report_{};
};

#endif
