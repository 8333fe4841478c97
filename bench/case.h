/* case.h owns what every benchmark entry is: a contest, its counters, and how it is registered.
 * C++.
 *
 * Rates are the best turn's: on a machine shared with others noise only takes away. The median is
 * kept beside it in the JSON. */
#ifndef BENCH_CASE_H
#define BENCH_CASE_H

#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <string>

#include "contest.h"

/* The data of one entry, alive while the library calls it again and again with more iterations. */
struct Case {
  explicit Case(attn_isa isa) : contest(isa) {}
  virtual ~Case() = default;
  virtual void counters(benchmark::State &state) = 0;

  Contest contest;
  std::string failure; /* why the entry cannot run or went wrong */
};

using CaseMaker = std::function<std::unique_ptr<Case>()>;

/* Adds an entry; the maker runs when its turn comes, after the last entry's data is gone. */
void case_register(const std::string &name, CaseMaker make);

/* "" when the call went well in the tier named, else what to report. */
std::string case_check(attn_status status, const attn_ctx &ctx, attn_isa isa);

struct Selection {
  attn_isa isa;
  bool full; /* every case, not the short list */
};

void register_sdpa(const Selection &s);
void register_elementwise(const Selection &s); /* exp, rope, merge */
void register_bandwidth();

#endif
