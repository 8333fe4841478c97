/* append_cases.cpp owns the entries of a cache of pages: one token appended at the end of a short and of
 * a long sequence, many at once, and a fork. Each turn undoes what it did, so that the length stays. */
#include <string>
#include <vector>

#include "case.h"

namespace {

constexpr int64_t kHeads = 8, kDim = 64, kPage = 16;

class CacheCase : public Case {
 public:
  /* rows > 0: an append of so many and a rollback; 0: a fork and a release */
  CacheCase(attn_isa isa, attn_dtype type, int64_t len, int64_t rows)
      : Case(isa), isa_(isa), len_(len), rows_(rows), x_((size_t)(kHeads * kDim), 0.5f) {
    attn_cache_params p = {};
    p.k_dtype = p.v_dtype = type;
    p.k_heads = kHeads, p.dk = kDim;
    p.page = kPage, p.pages = (len + rows) / kPage + 2;
    table_.resize((size_t)(2 * p.pages));
    memory_.resize(attn_cache_size(&p) + 64);
    ctx_.isa = isa;
    failure =
        case_check(attn_cache_open(&cache_, memory_.data(), memory_.size(), &p, &ctx_), ctx_, isa);
    for (int i = 0; i < 2; i++)
      s_[i].table = table_.data() + i * p.pages, s_[i].table_len = p.pages;
    if (failure.empty()) append(len);
    contest.add("ours", rows ? (double)rows : 1.0, [this] {
      if (!failure.empty()) return false;
      if (rows_) {
        append(rows_);
        check(attn_cache_rollback(&cache_, &s_[0], len_, &ctx_));
      } else {
        check(attn_cache_fork(&cache_, &s_[1], &s_[0], &ctx_));
        check(attn_cache_release(&cache_, &s_[1], &ctx_));
      }
      return failure.empty();
    });
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c[rows_ ? "tokens_per_second" : "forks_per_second"] = contest[0].best();
    c["microseconds"] = 1e6 / contest[0].best();
    /* f32 rows read and written in the cache's type; table and holders, read and written */
    const double bytes = rows_ ? 2 * kHeads * kDim * (4 + width()) : 24.0 * (double)(len_ / kPage);
    c["GB_per_second"] = contest[0].best() * 1e-9 * bytes;
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  double width() const {
    return cache_.k.dtype == ATTN_F32 ? 4 : cache_.k.dtype <= ATTN_BF16 ? 2 : 1;
  }
  void check(attn_status status) {
    if (failure.empty()) failure = case_check(status, ctx_, isa_);
  }
  void append(int64_t n) { /* one row again and again */
    attn_tensor x = attn_bhtd(x_.data(), ATTN_F32, 1, kHeads, n, kDim);
    x.stride_head = kDim, x.stride_len = 0;
    check(attn_cache_append(&cache_, &s_[0], 1, x, x, nullptr, &ctx_));
  }

  attn_isa isa_;
  int64_t len_, rows_;
  Floats x_;
  std::vector<int32_t> table_;
  std::vector<char> memory_;
  attn_cache cache_{};
  attn_sequence s_[2] = {};
  attn_ctx ctx_{};
};

}  // namespace

void register_append(const Selection &sel) {
  attn_isa isa = sel.isa;
  const std::string tier = attn_isa_name(isa), shape = "/d:64/h:8/page:16";
  auto add = [&](const char *name, attn_dtype type, const char *word, int64_t len, int64_t rows) {
    case_register(
        std::string(name) + "/" + word + "/" + tier + "/T:" + std::to_string(len) +
            (rows ? "/rows:" + std::to_string(rows) : "") + shape,
        [=] { return std::make_unique<CacheCase>(isa, type, len, rows); }, sel.seconds());
  };
  for (int64_t len : {1000, 100008}) { /* eight rows into a page, both */
    add("cache_append", ATTN_F16, "f16", len, 1);
    add("cache_append", ATTN_I8, "i8", len, 1);
    add("cache_fork", ATTN_I8, "i8", len, 0);
  }
  add("cache_append", ATTN_F32, "f32", 1000, 1024);
  add("cache_append", ATTN_F16, "f16", 1000, 1024);
  add("cache_append", ATTN_I8, "i8", 1000, 1024);
}
