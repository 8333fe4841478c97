/* patterns.h owns the list of sparse patterns that are measured: their names, lengths and data.
 * C++. */
#ifndef BENCH_PATTERNS_H
#define BENCH_PATTERNS_H

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "header.h"

/* A pattern with what it points to. */
struct PatternData {
  attn_pattern pattern{};
  std::deque<std::vector<int32_t>> lists;
  std::deque<std::vector<attn_pattern>> parts;
  std::vector<attn_axis> axes; /* of a grid */
  std::vector<int64_t> indptr; /* of scattered pairs, whose columns are lists[0]; else empty */
};

struct PatternSpec {
  std::string name; /* e.g. "pattern:band/window:512" */
  int64_t len;      /* queries and keys */
  bool brief;       /* also in the short list */
  std::function<void(PatternData &)> make;

  std::string label() const { return name + "/T:" + std::to_string(len) + "/d:64"; }
};

std::vector<PatternSpec> pattern_list();

/* Each pair with the probability percent/100, as CSR; its entries are edges too. */
std::vector<PatternSpec> scattered_list();

/* A band of 512 keys around the own position. */
PatternSpec pattern_band_of(int64_t len);

#endif
