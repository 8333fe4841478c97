/* bench/calls/cache.cpp owns the entries of a cache of pages: one token appended at the end of a
 * short and of a long sequence, many at once, and a fork; attention over pages against the same
 * keys in one piece. */

#include <string>
#include <vector>

#include "kinds.h"

namespace {

constexpr int64_t kHeads = 8, kDim = 64, kPage = 16;

/* Each turn undoes what it did, so that the length stays. */
class AppendCase : public Case {
 public:
  /* rows > 0: an append of so many and a rollback; 0: a fork and a release */
  AppendCase(attn_isa isa, attn_dtype type, int64_t len, int64_t rows)
      : Case(isa), isa_(isa), len_(len), rows_(rows), x_((size_t)(kHeads * kDim), 0.5f) {
    attn_cache_params p = {};
    p.k_dtype = p.v_dtype = type;
    p.k_heads = kHeads, p.dk = kDim;
    p.page = kPage, p.pages = (len + rows) / kPage + 2;
    table_.resize((size_t)(2 * p.pages));
    memory_.resize(attn_cache_size(&p) + 64);
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
};

/* The last tq tokens of 4 sequences, whose pages lie in no order; or, against the same tokens in a row, a tree of
 * that many drafts. */
class PagedCase : public RatioCase {
 public:
  PagedCase(attn_isa isa, int64_t tq, int64_t tk, int64_t page, bool tree = false)
      : RatioCase(isa) {
    const int64_t each = tk / page, pages = kN * each, rows = kN * tk;
    const double seen = (double)tq * (double)(tk - tq) + (double)(tq * (tq + 1) / 2);
    const double flops = 4.0 * kD * kH * kN * seen;
    q_ = random_floats((size_t)(kN * kH * tq * kD), -1.7f, 1.7f);
    k_ = v_ = random_floats((size_t)(rows * kHk * kD), -1.7f, 1.7f);
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
    contest.add("ours", flops, [this, o, q] {
      return done(attn_cache_sdpa(o, q, &cache_, sequences_.data(), kN, &params_, &ctx_));
    });
    if (tree) {
      std::vector<int32_t> parent;
      for (int64_t i = 0; i < tq; i++) parent.push_back((int32_t)(i + 2) / 3 - 1);
      bits_.resize((size_t)(tq * ((tq + 7) / 8)));
      (void)attn_draft_mask(bits_.data(), (tq + 7) / 8, parent.data(), tq);
      row_ = params_;
      params_.mask_new = 1, params_.mask = attn_mask_bits(bits_.data(), 1, 1, tq, tq);
      contest.add("causal", flops, [this, o, q] {
        return done(attn_cache_sdpa(o, q, &cache_, sequences_.data(), kN, &row_, &ctx_));
      });
      return;
    }
    contest.add("contiguous", flops,
                [this, o, q, k, v] { return done(attn_sdpa(o, q, k, v, &params_, &ctx_)); });
  }

 private:
  static constexpr int64_t kN = 4, kH = 16, kHk = 4, kD = 128;
  Floats q_, k_, v_, o_;
  std::vector<int32_t> table_, holders_;
  std::vector<attn_sequence> sequences_;
  attn_cache cache_{};
  attn_sdpa_params params_{}, row_{};
  std::vector<uint8_t> bits_;
};

void add_appends(const Selection &sel) {
  attn_isa isa = sel.isa;
  const std::string tier = attn_isa_name(isa), shape = "/d:64/h:8/page:16";
  auto add = [&](const char *name, attn_dtype type, const char *word, int64_t len, int64_t rows) {
    case_register(
        std::string(name) + "/" + word + "/" + tier + "/T:" + std::to_string(len) +
            (rows ? "/rows:" + std::to_string(rows) : "") + shape,
        [=] { return std::make_unique<AppendCase>(isa, type, len, rows); }, sel.seconds());
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

}  // namespace

void register_cache(const Selection &s) {
  const attn_isa isa = s.isa;
  if (!s.sparse) add_appends(s);
  for (int64_t tq : {1, 256})
    for (int64_t page : {16, 128}) {
      const int64_t tk = tq == 1 ? 4096 : 2048;
      const std::string name = std::string("cache_sdpa/") + (tq == 1 ? "decode" : "prefill") +
                               "/pages_of_" + std::to_string(page);
      case_register(name, [=] { return std::make_unique<PagedCase>(isa, tq, tk, page); });
    }
  for (int64_t nodes : {4, 16, 64})
    case_register("cache_tree/nodes:" + std::to_string(nodes) + "/T:8192",
                  [=] { return std::make_unique<PagedCase>(isa, nodes, 8192, 64, true); });
}
