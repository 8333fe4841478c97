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
#include <new>
#include <random>
#include <string>
#include <vector>

#include "contest.h"

/* Numbers at a cache line's beginning, as a user who counts time would have them. */
template <typename T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U> &) {}
  T *allocate(size_t n) {
    return static_cast<T *>(::operator new (n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T *p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  bool operator==(const LineAllocator &) const { return true; }
  bool operator!=(const LineAllocator &) const { return false; }
};
using Floats = std::vector<float, LineAllocator<float>>;

/* Evenly drawn, the same ones every time. */
inline Floats random_floats(size_t n, float low, float high) {
  Floats x(n);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> d(low, high);
  for (float &f : x) f = d(random);
  return x;
}

/* What a context of an entry begins as: one worker, or those of --threads. */
attn_ctx case_ctx(attn_isa isa);

/* The data of one entry, alive while the library calls it again and again with more iterations. */
struct Case {
  explicit Case(attn_isa isa) : contest(isa), ctx_(case_ctx(isa)) {}
  virtual ~Case() = default;
  virtual void counters(benchmark::State &state) = 0;

  /* The first contender's call, by so many workers. */
  bool call_with(int workers, attn_parallel_fn parallel_for) {
    ctx_.workers = workers;
    ctx_.parallel_for = parallel_for;
    return contest[0].call() && failure.empty();
  }

  Contest contest;
  std::string failure; /* why the entry cannot run or went wrong */

 protected:
  attn_ctx ctx_; /* of every call of ours that is measured */
};

using CaseMaker = std::function<std::unique_ptr<Case>()>;

/* Adds an entry; the maker runs when its turn comes, after the last entry's data is gone. seconds
 * > 0 stands in for --benchmark_min_time. */
void case_register(const std::string &name, CaseMaker make, double seconds = 0);

/* In the short list: for the many entries that are judged by a ratio between turns. */
constexpr double kBrief = 0.03;

/* "" when the call went well in the tier named, else what to report. */
std::string case_check(attn_status status, const attn_ctx &ctx, attn_isa isa);

struct Selection {
  attn_isa isa;
  bool full;    /* every case, not the short list */
  bool sparse;  /* without plain attention and the small calls around it */
  bool threads; /* how calls scale: ours alone, without peers */

  double seconds() const { return full ? 0 : kBrief; }
};

/* One for each file of entries: the machine, then by floor and room as in attn/api. */
void register_read();
void register_exp(const Selection &s);
void register_gemm(const Selection &s);
void register_norm(const Selection &s);
void register_position(const Selection &s);
void register_quantize(const Selection &s);
void register_sequence(const Selection &s);
void register_sdpa(const Selection &s);
void register_relu(const Selection &s);
void register_reshaped(const Selection &s);
void register_cache(const Selection &s);
void register_pattern(const Selection &s);
void register_edges(const Selection &s);
void register_multihead(const Selection &s);
void register_sparse(const Selection &s);
void register_content(const Selection &s);
void register_linear(const Selection &s);
void register_compression(const Selection &s);
void register_lowrank(const Selection &s);
void register_priors(const Selection &s);
void register_maps(const Selection &s);
void register_heads(const Selection &s);
void register_memory(const Selection &s);
void register_depth(const Selection &s);
void register_blocks(const Selection &s);
void register_mixers(const Selection &s);
void register_latent(const Selection &s);
void register_training(const Selection &s);
void register_training_loss(const Selection &s);
void register_training_dense(const Selection &s);
void register_selection(const Selection &s);
void register_selection_prefill(const Selection &s);
void register_selection_evict(const Selection &s);

#endif
