/* bench/calls/sdpa.cpp owns the entries of exact attention: which shapes, against whom, and
 * their counters; each term of the score; sequences of unequal length; merging of results. */

#include "kinds.h"
#include "peers.h"
#include "docs/examples/pool.h"

namespace {

enum class Workers { kSerial, kPool, kOpenMP };

struct SdpaSpec {
  problem_shape shape;
  bool peers;    /* against the composite and the plain loop */
  bool has_base; /* against ours on `base`, serial */
  problem_shape base;
  Workers workers;
  int threads;
};

/* Work a peer does in one call, so that its turns last about as long as ours. */
constexpr double kPeerFlops = 2e9;
constexpr int kNaiveRounds = 3;

class SdpaCase : public Case {
 public:
  SdpaCase(attn_isa isa, const SdpaSpec &spec) : Case(isa), spec_(spec), isa_(isa) {
    if (spec.workers == Workers::kPool) {
      pool_ = std::make_unique<pool>();
      clock_pin(-1);
      pool_open(pool_.get(), spec.threads);
      clock_pin(clock_cores() - 1);
      ctx_.parallel_for = pool_run;
      ctx_.parallel_user = pool_.get();
    }
    if (spec.workers == Workers::kOpenMP) {
#ifdef _OPENMP
      ctx_.parallel_for = attn_parallel_openmp;
#else
      failure = "compiled without OpenMP";
#endif
    }
    if (spec.threads > 1) ctx_.workers = spec.threads;
    if (!problem_init(&ours_, &spec.shape, &ctx_) ||
        (spec.has_base && !problem_init(&base_, &spec.base, &base_ctx_)) ||
        (spec.peers &&
         (!peer_init(&composite_, &ours_, isa) || !peer_init(&naive_, &ours_, isa)))) {
      failure = "out of memory";
      return;
    }
    bool wall = spec.threads > 1;
    contest.add("ours", ours_.flops, [this] { return call_ours(); }).wall = wall;
    if (spec.has_base)
      contest.add("base", base_.flops, [this] { return call(&base_, &base_ctx_); }).wall = wall;
    if (spec.peers) add_peers();
  }

  ~SdpaCase() override {
    if (pool_) pool_close(pool_.get());
    peer_free(&composite_);
    peer_free(&naive_);
    problem_free(&base_);
    problem_free(&ours_);
  }

  void counters(benchmark::State &state) override {
    const Contender &us = contest[0];
    double best = us.best() * 1e-9;
    auto &c = state.counters;
    c["GFLOPS"] = best;
    c["GFLOPS_median"] = us.median() * 1e-9;
    c["peak"] = contest.peak();
    c["peak_mean"] = contest.peak_mean();
    c["peak_min"] = contest.peak_min();
    c["percent"] = 100 * best / (contest.peak() * spec_.threads);
    if (ctx_.report.feature != ATTN_FEATURE_NONE) { /* of its own products */
      double peak = 0;
      for (int n = 0; n < 100; n++) peak = std::max(peak, peak_feature_probe(ctx_.report.feature));
      c["feature_peak"] = peak;
      c["percent"] = 100 * best / (peak * spec_.threads);
    }
    c["pairs_per_second"] = us.best() * (ours_.pairs / ours_.flops);
    c["computed_per_allowed"] = (double)ctx_.report.pairs / ours_.pairs;
    c["rounds"] = (double)us.rates.size();
    const problem_shape &s = ours_.shape;
    const double size = s.dtype == ATTN_F32 ? 4 : 2, width = (double)(s.dk + s.dv);
    const double rows = (double)(s.batch * s.kv_heads * s.tk) * width;
    c["flops_per_byte"] = /* of q, k, v and o, each touched once */
        ours_.flops / (size * (rows + (double)(s.batch * s.heads * s.tq) * width));
    if (s.tq == 1) c["GB_per_second"] = best * 4.0 * rows / ours_.flops;
    for (const char *name : {"base", "composite", "naive"}) {
      const Contender *them = contest.find(name);
      if (!them || them->best() <= 0) continue;
      c[std::string(name) + "_GFLOPS"] = them->best() * 1e-9;
      c[std::string(name) + "_ratio"] = us.best() / them->best();
      c[std::string(name) + "_ratio_median"] = us.median() / them->median();
    }
    if (contest.find("composite")) c["composite_block"] = composite_.block;
  }

 private:
  bool call(problem *p, attn_ctx *ctx) {
    attn_status status = problem_run(p, isa_, ctx);
    if (failure.empty()) failure = case_check(status, *ctx, isa_);
    return failure.empty();
  }

  /* OpenMP threads go where the main thread may go. */
  bool call_ours() {
    if (spec_.workers == Workers::kOpenMP) clock_pin(-1);
    bool ok = call(&ours_, &ctx_);
    if (spec_.workers == Workers::kOpenMP) clock_pin(clock_cores() - 1);
    return ok;
  }

  /* Every peer must first agree with ours: a wrong answer is fast and worth nothing. OpenBLAS has
   * no scalar kernels to set against the scalar tier. */
  void add_peers() {
    int64_t all = ours_.shape.batch * ours_.shape.heads;
    double per_head = ours_.flops / (double)all;
    int64_t heads = std::clamp((int64_t)(kPeerFlops / per_head), (int64_t)1, all);
    if (!call(&ours_, &ctx_)) return;
    if (isa_ != ATTN_ISA_SCALAR) {
      composite_tune(&composite_);
      composite_run(&composite_, 1);
      if (!(peer_difference(&composite_, 1) < 1e-4)) failure = "the composite's result differs";
      contest.add("composite", per_head * (double)heads, [this, heads] {
        composite_run(&composite_, heads);
        return true;
      });
    }
    naive_run(&naive_, 1);
    if (!(peer_difference(&naive_, 1) < 1e-4)) failure = "the plain loop's result differs";
    Contender &naive = contest.add("naive", per_head, [this] {
      naive_run(&naive_, 1);
      return true;
    });
    naive.most_rounds = kNaiveRounds;
  }

  SdpaSpec spec_;
  attn_isa isa_;
  problem ours_{}, base_{};
  peer composite_{}, naive_{};
  attn_ctx base_ctx_{};
  std::unique_ptr<pool> pool_;
};

/* 32 causal sequences of 8 to 700 tokens. */
class RaggedCase : public RatioCase {
 public:
  explicit RaggedCase(attn_isa isa) : RatioCase(isa) {
    indptr_.push_back(0);
    double flops = 0;
    for (int b = 0; b < kN; b++) {
      const int64_t t = 8 + (b * 37 % kN) * (b * 37 % kN) * 18 / 25;
      indptr_.push_back(indptr_.back() + t);
      flops += 4.0 * kD * kH * (double)(t * (t + 1) / 2);
    }
    const int64_t rows = indptr_.back();
    q_ = k_ = random_floats((size_t)(rows * kH * kD), -1.7f, 1.7f);
    o_.resize(q_.size());
    params_.causal = 1;
    params_.ragged.sequences = kN;
    params_.ragged.q_indptr = params_.ragged.kv_indptr = indptr_.data();
    const attn_tensor o = view(o_, 0, rows), q = view(q_, 0, rows), k = view(k_, 0, rows);
    room(attn_sdpa_workspace(o, q, k, k, &params_, &ctx_), 4 << 20);
    contest.add("ours", flops,
                [this, o, q, k] { return done(attn_sdpa(o, q, k, k, &params_, &ctx_)); });
    contest.add("separate", flops, [this] {
      attn_sdpa_params p{};
      p.causal = 1;
      for (size_t b = 0; b < kN; b++) {
        const int64_t i = indptr_[b], n = indptr_[b + 1] - i;
        if (!done(attn_sdpa(view(o_, i, n), view(q_, i, n), view(k_, i, n), view(k_, i, n), &p,
                            &ctx_)))
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

/* Bytes of two partial results and of the whole. */
class MergeCase : public PassCase {
 public:
  MergeCase(attn_isa isa, int64_t len, int64_t dim)
      : PassCase(isa),
        a_(random_floats((size_t)(kHeads * len * dim), -1, 1)),
        b_(a_),
        out_(a_.size()),
        lse_(random_floats((size_t)(kHeads * len), -1, 1)),
        lse_out_(lse_.size()) {
    auto view = [&](const Floats &v, int64_t d) {
      return attn_bhtd(v.data(), ATTN_F32, 1, kHeads, len, d);
    };
    attn_tensor a = view(a_, dim), b = view(b_, dim), o = view(out_, dim), l = view(lse_, 1),
                lo = view(lse_out_, 1);
    pass(12.0 * (double)a_.size(), [=] { return attn_merge(o, lo, a, l, b, l, &ctx_); });
  }

 private:
  static constexpr int64_t kHeads = 8;
  Floats a_, b_, out_, lse_, lse_out_;
};

const char *dtype_name(attn_dtype d) {
  return d == ATTN_F16 ? "f16" : d == ATTN_BF16 ? "bf16" : "f32";
}

/* The feature beside a tier that has the products of a compute. */
attn_feature feature_of(attn_isa isa, attn_compute compute) {
  static const struct {
    attn_compute compute;
    attn_feature feature;
  } rows[] = {
      {ATTN_COMPUTE_BF16, ATTN_FEATURE_AVX512_BF16}, {ATTN_COMPUTE_BF16, ATTN_FEATURE_NEON_BF16},
      {ATTN_COMPUTE_F16, ATTN_FEATURE_NEON_FP16FML}, {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX512_VNNI},
      {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX_VNNI},      {ATTN_COMPUTE_I8, ATTN_FEATURE_NEON_DOTPROD}};
  for (const auto &r : rows)
    if (r.compute == compute && attn_feature_isa(r.feature) == isa &&
        attn_feature_status(r.feature) == ATTN_ISA_OK)
      return r.feature;
  return ATTN_FEATURE_NONE;
}

std::string name_of(attn_isa isa, const SdpaSpec &spec) {
  const problem_shape &s = spec.shape;
  const attn_feature feature = feature_of(isa, s.compute);
  std::string n = std::string("sdpa/") + dtype_name(s.dtype) + "/" +
                  (feature ? attn_feature_name(feature) : attn_isa_name(isa)) +
                  "/causal:" + (s.causal ? "1" : "0") + "/T:" + std::to_string(s.tq) +
                  "/d:" + std::to_string(s.dk) + "/h:" + std::to_string(s.heads);
  if (s.batch > 1) n += "/b:" + std::to_string(s.batch);
  if (s.kv_heads) n += "/hkv:" + std::to_string(s.kv_heads);
  if (s.tk && s.tk != s.tq) n += "/Tk:" + std::to_string(s.tk);
  if (s.dv && s.dv != s.dk) n += "/dv:" + std::to_string(s.dv);
  if (s.compute == ATTN_COMPUTE_BF16) n += "/compute:bf16";
  if (s.compute == ATTN_COMPUTE_F16) n += "/compute:f16";
  if (s.compute == ATTN_COMPUTE_I8) n += "/compute:i8";
  n += problem_extra_name(s.extra);
  if (s.bthd) n += "/bthd";
  if (spec.threads > 1) n += "/threads:" + std::to_string(spec.threads);
  if (spec.workers == Workers::kPool) n += "/pool";
  if (spec.workers == Workers::kOpenMP) n += "/openmp";
  return n;
}

void add(const Selection &sel, const SdpaSpec &spec, double seconds = 0) {
  attn_isa isa = sel.isa;
  case_register(
      name_of(isa, spec), [isa, spec] { return std::make_unique<SdpaCase>(isa, spec); }, seconds);
}

/* Short sequences come in batches that keep the data near 4 MB, as a small model has it. */
problem_shape dense(int64_t t, int64_t d, int causal) {
  problem_shape s = {};
  s.batch = t < 512 ? 512 / t : 1;
  s.heads = 8;
  s.tq = t;
  s.dk = d;
  s.causal = causal;
  return s;
}

/* Not where calls only meet themselves. */
SdpaSpec against_peers(const Selection &sel, const problem_shape &s) {
  return {s, !sel.threads, false, {}, Workers::kSerial, 1};
}

SdpaSpec against_base(const problem_shape &s, const problem_shape &base) {
  return {s, false, true, base, Workers::kSerial, 1};
}

void add_shapes(const Selection &sel) {
  bool slow = sel.isa == ATTN_ISA_SCALAR; /* its short list leaves out what takes long */
  for (int causal = 0; causal < 2; causal++)
    for (int64_t d : {64, 128})
      for (int64_t t : {64, 128, 256, 512, 1024, 2048, 4096})
        if (sel.full || !slow || t <= 512) add(sel, against_peers(sel, dense(t, d, causal)));

  problem_shape odd = dense(777, 72, 0);
  odd.dv = 40;
  for (int causal = 0; causal < 2; causal++) {
    odd.causal = causal;
    add(sel, against_peers(sel, dense(1000, 80, causal)));
    add(sel, against_peers(sel, odd));
  }
  if (slow && !sel.full) return;

  problem_shape plain = dense(2048, 64, 0), s;
  for (int64_t d : {64, 128})
    for (attn_dtype dtype : {ATTN_F16, ATTN_BF16}) {
      s = dense(2048, d, 0);
      s.dtype = dtype;
      add(sel, against_base(s, dense(2048, d, 0)));
    }
  /* products of bf16, of codes and of f16 against those of f32 */
  for (int64_t d : {64, 128})
    for (int64_t t : {512, 2048})
      for (attn_dtype dtype : {ATTN_BF16, ATTN_F32})
        for (int causal = 0; causal < 2; causal++) {
          if (!sel.full && (causal || (dtype == ATTN_F32 && t == 512))) continue;
          s = dense(t, d, causal);
          s.dtype = dtype;
          problem_shape base = s;
          s.compute = ATTN_COMPUTE_BF16;
          add(sel, against_base(s, base));
          s.compute = ATTN_COMPUTE_I8;
          add(sel, against_base(s, base));
          if (!sel.full && feature_of(sel.isa, ATTN_COMPUTE_F16) == ATTN_FEATURE_NONE && t > 512)
            continue; /* emulated */
          if (dtype == ATTN_BF16) s.dtype = base.dtype = ATTN_F16;
          s.compute = ATTN_COMPUTE_F16;
          add(sel, against_base(s, base));
        }
  for (problem_extra e : {PROBLEM_WINDOW, PROBLEM_BOOL, PROBLEM_ADD, PROBLEM_SINKS}) {
    s = plain;
    s.extra = e;
    s.causal = e == PROBLEM_WINDOW;
    add(sel, against_base(s, dense(2048, 64, s.causal)));
  }
  for (int64_t kv : {2, 1}) {
    s = plain;
    s.kv_heads = kv;
    add(sel, against_base(s, plain));
  }
  s = plain;
  s.bthd = 1;
  add(sel, against_base(s, plain));
  s = dense(256, 64, 0); /* cross attention, and a chunk behind a cache */
  s.batch = 1;
  s.tk = 2048;
  add(sel, against_base(s, plain));
  s.causal = 1;
  add(sel, against_base(s, plain));
  s.causal = 0;
  s.tk = 4096;
  for (int64_t tq : {16, 1}) { /* a few tokens, then one, against a cache */
    s.tq = tq;
    add(sel, against_base(s, plain));
  }

  if (sel.threads || clock_cores() < 2) return;
  for (int causal = 0; causal < 2; causal++)
    for (int64_t t : {512, 2048})
      for (Workers w : {Workers::kPool, Workers::kOpenMP})
        if (sel.full || t == 2048) {
          s = dense(t, 64, causal);
          add(sel, {s, false, true, s, w, 2});
        }
}

/* One head, in turn with the same head without the term; adaptive span with the window it ends at. */
void add_terms(const Selection &sel) {
  for (problem_extra e :
       {PROBLEM_ALIBI, PROBLEM_SOFTCAP, PROBLEM_TOEPLITZ, PROBLEM_T5, PROBLEM_PARABOLA,
        PROBLEM_GAUSSIAN, PROBLEM_FACTOR, PROBLEM_SPAN, PROBLEM_SHAW, PROBLEM_DEBERTA, PROBLEM_XL,
        PROBLEM_LABELS, PROBLEM_MODIFY})
    for (int causal = e == PROBLEM_SPAN; causal < 2; causal++)
      for (int64_t t : {2048, 4096}) {
        if (!sel.full && (t > 2048 || (causal && e != PROBLEM_SPAN))) continue;
        if (sel.isa == ATTN_ISA_SCALAR && t > 2048) continue; /* takes long, says the same */
        problem_shape s = dense(t, 64, causal), base;
        s.heads = 1;
        base = s;
        s.extra = e;
        if (e == PROBLEM_SPAN) base.extra = PROBLEM_WINDOW;
        add(sel, against_base(s, base), sel.seconds());
      }
}

}  // namespace

void register_sdpa(const Selection &s) {
  const attn_isa isa = s.isa;
  if (!s.sparse) {
    add_shapes(s);
    for (int64_t len : {512, 16384})
      case_register(std::string("merge/f32/") + attn_isa_name(isa) + "/T:" + std::to_string(len) +
                        "/d:64/h:8",
                    [=] { return std::make_unique<MergeCase>(isa, len, 64); });
  }
  add_terms(s);
  case_register("sdpa/ragged/32x8..700", [isa] { return std::make_unique<RaggedCase>(isa); });
}
