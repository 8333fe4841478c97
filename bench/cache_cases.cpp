/* cache_cases.cpp owns the entries of sequences that are not alike: end to end against a call for each,
 * in the pages of a cache against the same keys in one piece. */
#include <cstring>
#include <random>
#include <vector>

#include "case.h"

namespace {

Floats noise(int64_t n) {
  Floats x((size_t)n);
  std::minstd_rand rng(1);
  std::uniform_real_distribution<float> draw(-1.7f, 1.7f);
  for (float &v : x) v = draw(rng);
  return x;
}

/* "ours" against one other way to the same result. */
class RatioCase : public Case {
 public:
  using Case::Case;
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
  bool done(attn_status status, attn_isa isa) {
    if (failure.empty()) failure = case_check(status, ctx_, isa);
    return failure.empty();
  }
  /* a workspace for either way */
  void room(size_t one, size_t other) {
    workspace_.resize(one > other ? one : other);
    ctx_.workspace = workspace_.data(), ctx_.workspace_size = workspace_.size();
  }

  attn_ctx ctx_{};
  std::vector<char> workspace_;
};

/* 32 causal sequences of 8 to 700 tokens. */
class RaggedCase : public RatioCase {
 public:
  explicit RaggedCase(attn_isa isa) : RatioCase(isa) {
    ctx_.isa = isa;
    indptr_.push_back(0);
    double flops = 0;
    for (int b = 0; b < kN; b++) {
      const int64_t t = 8 + (b * 37 % kN) * (b * 37 % kN) * 18 / 25;
      indptr_.push_back(indptr_.back() + t);
      flops += 4.0 * kD * kH * (double)(t * (t + 1) / 2);
    }
    const int64_t rows = indptr_.back();
    q_ = noise(rows * kH * kD), k_ = noise(rows * kH * kD), o_.resize(q_.size());
    params_.causal = 1;
    params_.ragged.sequences = kN;
    params_.ragged.q = params_.ragged.kv = indptr_.data();
    const attn_tensor o = view(o_, 0, rows), q = view(q_, 0, rows), k = view(k_, 0, rows);
    room(attn_sdpa_workspace(o, q, k, k, &params_, &ctx_), 4 << 20);
    contest.add("ours", flops,
                [this, isa, o, q, k] { return done(attn_sdpa(o, q, k, k, &params_, &ctx_), isa); });
    contest.add("separate", flops, [this, isa] {
      attn_sdpa_params p{};
      p.causal = 1;
      for (size_t b = 0; b < kN; b++) {
        const int64_t i = indptr_[b], n = indptr_[b + 1] - i;
        if (!done(attn_sdpa(view(o_, i, n), view(q_, i, n), view(k_, i, n), view(k_, i, n), &p,
                            &ctx_),
                  isa))
          return false;
      }
      return true;
    });
  }

 private:
  static constexpr int kN = 32;
  static constexpr int64_t kH = 8, kD = 64;
  static attn_tensor view(Floats &x, int64_t i, int64_t n) {
    return attn_bthd(x.data() + i * kH * kD, ATTN_F32, 1, n, kH, kD);
  }
  std::vector<int64_t> indptr_;
  Floats q_, k_, o_;
  attn_sdpa_params params_{};
};

/* The last tq tokens of 4 sequences, whose pages lie in no order. */
class PagedCase : public RatioCase {
 public:
  PagedCase(attn_isa isa, int64_t tq, int64_t tk, int64_t page) : RatioCase(isa) {
    ctx_.isa = isa;
    const int64_t each = tk / page, pages = kN * each, rows = kN * tk;
    const double seen = (double)tq * (double)(tk - tq) + (double)(tq * (tq + 1) / 2);
    const double flops = 4.0 * kD * kH * kN * seen;
    q_ = noise(kN * kH * tq * kD), k_ = noise(rows * kHk * kD), v_ = noise(rows * kHk * kD);
    o_.resize(q_.size());
    table_.resize((size_t)pages), holders_.assign((size_t)pages, 1);
    for (int64_t n = 0; n < pages; n++) table_[(size_t)n] = (int32_t)(n * 7919 % pages);
    cache_.k = attn_bhtd(k_.data(), ATTN_F32, pages, kHk, page, kD);
    cache_.v = attn_bhtd(v_.data(), ATTN_F32, pages, kHk, page, kD);
    cache_.holders = holders_.data();
    for (int64_t b = 0; b < kN; b++) {
      attn_sequence s{};
      s.table = table_.data() + b * each, s.table_len = each, s.len = s.high = tk;
      sequences_.push_back(s);
    }
    params_.causal = 1;
    const attn_tensor o = attn_bhtd(o_.data(), ATTN_F32, kN, kH, tq, kD);
    const attn_tensor q = attn_bhtd(q_.data(), ATTN_F32, kN, kH, tq, kD);
    const attn_tensor k = attn_bhtd(k_.data(), ATTN_F32, kN, kHk, tk, kD);
    const attn_tensor v = attn_bhtd(v_.data(), ATTN_F32, kN, kHk, tk, kD);
    room(attn_cache_sdpa_workspace(o, q, &cache_, sequences_.data(), kN, &params_, &ctx_),
         attn_sdpa_workspace(o, q, k, v, &params_, &ctx_));
    contest.add("ours", flops, [this, isa, o, q] {
      return done(attn_cache_sdpa(o, q, &cache_, sequences_.data(), kN, &params_, &ctx_), isa);
    });
    contest.add("contiguous", flops, [this, isa, o, q, k, v] {
      return done(attn_sdpa(o, q, k, v, &params_, &ctx_), isa);
    });
  }

 private:
  static constexpr int64_t kN = 4, kH = 16, kHk = 4, kD = 128;
  Floats q_, k_, v_, o_;
  std::vector<int32_t> table_, holders_;
  std::vector<attn_sequence> sequences_;
  attn_cache cache_{};
  attn_sdpa_params params_{};
};

}  // namespace

void register_cache(const Selection &s) {
  const attn_isa isa = s.isa;
  case_register("sdpa/ragged/32x8..700", [isa] { return std::make_unique<RaggedCase>(isa); });
  for (int64_t tq : {1, 256})
    for (int64_t page : {16, 128}) {
      const int64_t tk = tq == 1 ? 4096 : 2048;
      const std::string name = std::string("cache_sdpa/") + (tq == 1 ? "decode" : "prefill") +
                               "/pages_of_" + std::to_string(page);
      case_register(name, [=] { return std::make_unique<PagedCase>(isa, tq, tk, page); });
    }
}
