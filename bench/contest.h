/* contest.h owns the fair comparison: contenders take turns, with a probe of the FMA peak after
 * each, so that whatever else the machine does falls on all of them alike. C++. */
#ifndef BENCH_CONTEST_H
#define BENCH_CONTEST_H

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "clock.h"
#include "peak.h"

/* One way to do the work. `work` is what a call does, in the unit that rates are wanted in. */
struct Contender {
  std::string name;
  double work;
  std::function<bool()> call;
  int most_rounds = 1 << 30; /* a slow peer is content with a few */
  bool wall = false;         /* by the clock on the wall: work of several threads */
  int calls = 0;             /* per turn; found at the first turn */
  std::vector<double> rates; /* work per second, turn by turn, the first one left out */

  double best() const { return rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end()); }
  double worst() const { return rates.empty() ? 0 : *std::min_element(rates.begin(), rates.end()); }
  double median() const { return quantile(0.5); }
  /* the rate that a part `p` of the turns stayed below */
  double quantile(double p) const {
    if (rates.empty()) return 0;
    std::vector<double> r = rates;
    long at = std::min((long)(p * (double)r.size()), (long)r.size() - 1);
    std::nth_element(r.begin(), r.begin() + at, r.end());
    return r[(size_t)at];
  }
};

class Contest {
 public:
  explicit Contest(attn_isa isa) : isa_(isa) {}

  Contender &add(const std::string &name, double work, std::function<bool()> call) {
    contenders_.push_back({name, work, std::move(call), 1 << 30, false, 0, {}});
    return contenders_.back();
  }

  /* Everybody's turn once, each round beginning with another contender. Returns the seconds of
   * contender 0, or a negative number when a call failed. */
  double round() {
    double first = 0;
    size_t n = contenders_.size();
    for (size_t i = 0; i < n; i++) {
      size_t who = (i + (size_t)rounds_) % n;
      double seconds = turn(contenders_[who]);
      if (seconds < 0) return seconds;
      if (who == 0) first = seconds;
      probes_.push_back(peak_probe(isa_));
    }
    rounds_++;
    return first;
  }

  const Contender &operator[](size_t i) const { return contenders_[i]; }
  const Contender *find(const std::string &name) const {
    for (const Contender &c : contenders_)
      if (c.name == name) return &c;
    return nullptr;
  }
  attn_isa isa() const { return isa_; }
  const Contender *last() const { return &contenders_.back(); }
  int rounds() const { return rounds_; }
  /* Seconds of processor a second on the clock during the turns: below 1 others were served too. */
  double core_share() const { return clock_ > 0 ? busy_ / clock_ : 1; }
  /* GFLOP/s of the probes between the turns: largest, mean, smallest. */
  double peak() const { return *std::max_element(probes_.begin(), probes_.end()); }
  double peak_min() const { return *std::min_element(probes_.begin(), probes_.end()); }
  double peak_mean() const {
    return std::accumulate(probes_.begin(), probes_.end(), 0.0) / (double)probes_.size();
  }

 private:
  static constexpr double kTurnSeconds = 3e-3;

  double turn(Contender &c) {
    if ((int)c.rates.size() >= c.most_rounds) return 0;
    bool warm = c.calls > 0;
    int calls = warm ? c.calls : 1;
    double clock = clock_now(), busy = clock_busy();
    for (int i = 0; i < calls; i++)
      if (!c.call()) return -1;
    clock = clock_now() - clock, busy = clock_busy() - busy;
    clock_ += clock, busy_ += busy;
    double t = c.wall ? clock : busy;
    if (warm)
      c.rates.push_back(c.work * calls / t);
    else
      c.calls = std::max(1, (int)(kTurnSeconds / std::max(t, 1e-8)));
    return t;
  }

  attn_isa isa_;
  std::vector<Contender> contenders_;
  int rounds_ = 0;
  double clock_ = 0, busy_ = 0;
  std::vector<double> probes_;
};

#endif
