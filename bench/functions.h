/* functions.h owns what an entry of one function is: a call with its data and its work, and how
 * a list of them is registered. C++. */
#ifndef BENCH_FUNCTIONS_H
#define BENCH_FUNCTIONS_H

#include <array>
#include <deque>
#include <random>
#include <vector>

#include "case.h"

constexpr int64_t kDim = 64, kLong = 16384;

/* A call with its data and its work: flops, or bytes where nothing else counts. */
struct Call {
  std::deque<Floats> floats;
  std::deque<std::vector<int32_t>> ints;
  std::mt19937 random{1};
  int64_t heads = 1; /* for calls that say so */
  double flops = 0;  /* of one such head */
  double bytes = 0;  /* beside flops: of operands and result, each touched once */
  std::function<attn_status(attn_ctx *)> run;
  std::function<size_t(const attn_ctx *)> size;
  std::function<void()> peer; /* OpenBLAS doing the same */
  attn_schedule schedule{};

  ~Call() { attn_schedule_free(&schedule); }

  float *numbers(int64_t n, float size) {
    std::uniform_real_distribution<float> d(-1.73f * size, 1.73f * size);
    floats.emplace_back((size_t)n);
    for (float &f : floats.back()) f = d(random);
    return floats.back().data();
  }

  attn_tensor rows(int64_t heads, int64_t len, int64_t dim, float size = 1) {
    return attn_bhtd(numbers(heads * len * dim, size), ATTN_F32, 1, heads, len, dim);
  }

  /* 0, step, 2 step, .. */
  int32_t *steps(int64_t n, int64_t step) {
    ints.emplace_back();
    for (int64_t i = 0; i < n; i++) ints.back().push_back((int32_t)(i * step));
    return ints.back().data();
  }

  /* So many pairs of width kDim. */
  void pairs(int64_t n) { flops = 4.0 * (double)n * (double)kDim; }
};

using CallMaker = std::function<void(Call &)>;

struct CallEntry {
  const char *name; /* before the tier */
  const char *shape;
  CallMaker make;
};

void register_calls(const Selection &s, const CallEntry *entries, size_t count);

template <size_t N>
void register_calls(const Selection &s, const CallEntry (&entries)[N]) {
  register_calls(s, entries, N);
}

#endif
