/* function_cases.cpp owns one entry for each function beside attn_sdpa that is not a single pass
 * over data of elementwise_cases.cpp: position encodings, predicted priors, compositions. */
#include <array>
#include <deque>
#include <random>
#include <vector>

#include "case.h"
#include "peers.h"
#include "problem.h"

namespace {

constexpr int64_t kDim = 64;

/* A call with its data and its work: multiply-adds, or bytes where nothing else counts. */
struct Call {
  std::deque<std::vector<float>> floats;
  std::deque<std::vector<int32_t>> ints;
  std::mt19937 random{1};
  double flops = 0, bytes = 0;
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

/* Calls with multiply-adds take turns with dense attention at T = 4096. */
class CallCase : public Case {
 public:
  CallCase(attn_isa isa, const CallMaker &make) : Case(isa), isa_(isa) {
    make(call_);
    if (!call_.run) {
      failure = "no schedule";
      return;
    }
    ctx_.isa = isa;
    workspace_.resize(call_.size(&ctx_) + 1);
    contest.add("ours", call_.flops > 0 ? call_.flops : call_.bytes, [this] {
      ctx_.workspace = workspace_.data();
      ctx_.workspace_size = workspace_.size();
      failure = case_check(call_.run(&ctx_), ctx_, isa_);
      return failure.empty();
    });
    if (call_.flops <= 0) return;
    if (call_.peer) contest.add("openblas", call_.flops, [this] { return call_.peer(), true; });
    problem_shape dense = {};
    dense.heads = 1;
    dense.tq = 4096;
    dense.dk = kDim;
    if (!problem_init(&base_, &dense, &base_ctx_)) failure = "out of memory";
    contest.add("base", base_.flops, [this] {
      failure = case_check(problem_run(&base_, isa_, &base_ctx_), base_ctx_, isa_);
      return failure.empty();
    });
  }

  ~CallCase() override { problem_free(&base_); }

  void counters(benchmark::State &state) override {
    const Contender &us = contest[0];
    auto &c = state.counters;
    c["ms"] = 1e3 * us.work / us.best();
    c["rounds"] = (double)us.rates.size();
    if (call_.flops <= 0) {
      c["GB_per_second"] = us.best() * 1e-9;
      c["bytes"] = call_.bytes;
      return;
    }
    c["GFLOPS"] = us.best() * 1e-9;
    c["percent"] = 100 * us.best() * 1e-9 / contest.peak();
    c["base_ratio"] = us.best() / contest.find("base")->best();
    c["base_ratio_median"] = us.median() / contest.find("base")->median();
    if (call_.peer) c["openblas_ratio"] = us.best() / contest.find("openblas")->best();
  }

 private:
  attn_isa isa_;
  Call call_;
  problem base_{};
  std::vector<char> workspace_;
  attn_ctx ctx_{}, base_ctx_{};
};

/* --- Position encodings: bytes of x and y. */

void sinusoid(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512);
  attn_sinusoid_params p = {};
  c.bytes = 8.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_sinusoid(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinusoid_workspace(y, x, &p, ctx); };
}

void universal_signal(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512);
  attn_universal_params p = {};
  p.step = 3;
  c.bytes = 8.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_universal_signal(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_universal_signal_workspace(y, x, &p, ctx); };
}

void learned_position(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512), table = c.rows(1, len, 512);
  attn_learned_params p = {};
  c.bytes = 12.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_learned_position(y, x, table, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_learned_position_workspace(y, x, table, &p, ctx);
  };
}

/* --- Priors and spans from the content. */

void gaussian_window(Call &c) {
  constexpr int64_t len = 4096, heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  float *center = c.numbers(heads * len, 1), *precision = c.numbers(heads * len, 1);
  attn_gaussian_params p = {};
  p.w_p = c.numbers(heads * kDim * kDim, 0.1f);
  p.u_p = c.numbers(heads * kDim, 0.1f);
  p.u_d = c.numbers(heads * kDim, 0.1f);
  c.flops = (double)(heads * len) * (2.0 * kDim * kDim + 4.0 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_gaussian_window(center, precision, q, k, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_gaussian_window_workspace(center, precision, q, k, &p, ctx);
  };
}

/* A Gaussian of sigma 1 has 17 keys with weight; its flops are those of the values alone. */
void hard_gaussian(Call &c) {
  constexpr int64_t len = 16384;
  attn_tensor v = c.rows(1, len, kDim), o = c.rows(1, len, kDim);
  attn_hard_gaussian_params p = {};
  c.flops = 2.0 * 17 * (double)(len * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_hard_gaussian(o, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_hard_gaussian_workspace(o, v, &p, ctx); };
}

void span_predict(Call &c) {
  constexpr int64_t len = 4096, width = 512, heads = 8;
  attn_tensor x = c.rows(1, len, width);
  float *z = c.numbers(heads * len, 1), *v = c.numbers(heads * width, 0.05f);
  c.flops = 2.0 * (double)(heads * len * width);
  c.run = [=](attn_ctx *ctx) { return attn_span_predict(z, x, v, nullptr, heads, 1024, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_span_predict_workspace(z, x, v, nullptr, heads, 1024, ctx);
  };
}

/* --- Compositions, one head; schedules are made beforehand. */

constexpr int64_t kLong = 16384;

void star_satellites(Call &c) {
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim), k_relay = c.rows(1, 1, kDim),
              v_relay = c.rows(1, 1, kDim);
  attn_star_params p = {};
  p.k_own = c.rows(1, kLong, kDim);
  p.v_own = c.rows(1, kLong, kDim);
  c.pairs(kLong * 5);
  c.run = [=](attn_ctx *ctx) {
    return attn_star_satellites(o, q, k, v, k_relay, v_relay, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_star_satellites_workspace(o, q, k, v, k_relay, v_relay, &p, ctx);
  };
}

void star_relay(Call &c) {
  attn_tensor q = c.rows(8, 1, kDim), k_relay = c.rows(8, 1, kDim), v_relay = c.rows(8, 1, kDim),
              o = c.rows(8, 1, kDim), k = c.rows(8, 4096, kDim), v = c.rows(8, 4096, kDim);
  attn_star_params p = {};
  c.pairs(8 * (4096 + 1));
  c.run = [=](attn_ctx *ctx) { return attn_star_relay(o, q, k_relay, v_relay, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_star_relay_workspace(o, q, k_relay, v_relay, k, v, &p, ctx);
  };
}

/* Half of Longformer's 512 on each side, 16 global tokens with projections of their own. */
void longformer(Call &c) {
  constexpr int64_t n = 16, w = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_longformer_params p = {};
  c.ints.push_back({w});
  p.window = c.ints.back().data();
  p.global = c.steps(n, 1);
  p.globals = n;
  p.q_global = c.rows(1, n, kDim);
  p.k_global = c.rows(1, kLong, kDim);
  p.v_global = c.rows(1, kLong, kDim);
  if (attn_longformer_schedule(&c.schedule, &p, 1, kLong, 0, nullptr) != ATTN_OK) return;
  p.schedules = &c.schedule;
  attn_schedule_info info;
  attn_schedule_describe(&info, &c.schedule);
  c.pairs(info.pairs + n * kLong);
  c.run = [=](attn_ctx *ctx) { return attn_longformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_longformer_workspace(o, q, k, v, &p, ctx); };
}

void etc(Call &c) {
  constexpr int64_t longs = 4096, globals = 256, radius = 84;
  attn_tensor q_long = c.rows(1, longs, kDim), q_global = c.rows(1, globals, kDim),
              o_long = c.rows(1, longs, kDim), o_global = c.rows(1, globals, kDim);
  attn_tensor k_long = c.rows(1, longs, kDim), k_global = c.rows(1, globals, kDim),
              v_long = c.rows(1, longs, kDim), v_global = c.rows(1, globals, kDim);
  std::array<attn_tensor, ATTN_ETC_PIECES> k = {k_long, k_global, k_global, k_long},
                                           v = {v_long, v_global, v_global, v_long};
  attn_etc_params p = {};
  p.radius = radius;
  int64_t band = longs * (2 * radius + 1) - radius * (radius + 1);
  c.pairs(band + longs * globals + globals * (globals + longs));
  c.run = [=](attn_ctx *ctx) {
    return attn_etc(o_long, o_global, q_long, q_global, k.data(), v.data(), &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_etc_workspace(o_long, o_global, q_long, q_global, k.data(), v.data(), &p, ctx);
  };
}

void tree(Call &c, bool labels) {
  constexpr int64_t tokens = 4096, side = 4;
  int64_t n = attn_tree_nodes(tokens);
  attn_tensor q = c.rows(1, n, kDim), k = c.rows(1, n, kDim), v = c.rows(1, n, kDim),
              o = c.rows(1, n, kDim);
  attn_tree_params p = {};
  p.tokens = tokens;
  p.k = side;
  attn_pattern pattern = attn_pattern_tree(tokens, side);
  if (attn_schedule_build(&c.schedule, &pattern, 1, n, n, nullptr, nullptr) != ATTN_OK) return;
  p.schedule = &c.schedule;
  if (labels) p.table = c.rows(1, (2 * side + 1) * 14, kDim, 0.1f);
  attn_schedule_info info;
  attn_schedule_describe(&info, &c.schedule);
  c.pairs(info.pairs);
  c.run = [=](attn_ctx *ctx) { return attn_tree(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_tree_workspace(o, q, k, v, &p, ctx); };
}

void segmented(Call &c, attn_integrate integrate) {
  constexpr int64_t segment = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_segmented_params p = {};
  attn_pattern pattern = attn_pattern_blocks(segment, 0, 0);
  if (attn_schedule_build(&c.schedule, &pattern, 1, kLong, kLong, nullptr, nullptr) != ATTN_OK)
    return;
  p.length = segment;
  p.integrate = integrate;
  p.schedule = &c.schedule;
  c.pairs(kLong * segment + (integrate == ATTN_INTEGRATE_TOKEN ? kLong * kLong / segment : 0));
  c.run = [=](attn_ctx *ctx) { return attn_segmented(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_segmented_workspace(o, q, k, v, &p, ctx); };
}

/* Sentences of 64 tokens, paragraphs of 16 sentences, the whole. */
void hierarchy(Call &c) {
  constexpr int64_t units[] = {kLong, kLong / 64, kLong / 1024};
  attn_tensor x = c.rows(1, kLong, kDim), o = c.rows(1, kLong, kDim);
  auto shape = std::make_shared<std::vector<int64_t>>(units, units + 3);
  auto offsets = std::make_shared<std::vector<const int32_t *>>();
  offsets->push_back(c.steps(units[1] + 1, 64));
  offsets->push_back(c.steps(units[2] + 1, 16));
  attn_hierarchy_params p = {};
  p.levels = 3;
  p.units = shape->data();
  p.offsets = offsets->data();
  c.pairs(units[0] * 64 + units[1] * 16 + units[2] * units[2]);
  c.run = [=](attn_ctx *ctx) { return (void)shape, (void)offsets, attn_hierarchy(o, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_hierarchy_workspace(o, x, &p, ctx); };
}

/* A segment behind a memory of the same length; all multiply-adds of the layer count. */
void xl_layer(Call &c) {
  constexpr int64_t len = 512, wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_xl_layer_params p = {};
  p.heads = heads;
  p.mem = c.rows(1, len, wide);
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_r, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  p.u = c.numbers(wide, 0.1f);
  p.v = c.numbers(wide, 0.1f);
  double pairs = (double)(heads * len) * ((double)len + (double)(len + 1) / 2);
  c.flops = 2.0 * (double)(wide * wide) * (double)(8 * len) + 6.0 * pairs * (double)kDim;
  c.run = [=](attn_ctx *ctx) { return attn_xl_layer(o, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_xl_layer_workspace(o, x, &p, ctx); };
}

/* A ring that is full and has come round. */
attn_memory ring(Call &c, int64_t room, int64_t dim) {
  attn_memory m = {};
  if (room) m.rows = c.rows(1, room, dim);
  m.len = room;
  m.first = room / 3;
  return m;
}

/* The layer of Transformer-XL behind a memory, or behind two; its time follows the multiply-adds of
 * the pairs and of the projections. */
void segment_layer(Call &c, int64_t memory, int64_t compressed, bool relative, bool usage) {
  constexpr int64_t len = 512, wide = 512, heads = 8;
  int64_t past = memory + compressed;
  attn_tensor h = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_segment_layer_params p = {};
  p.heads = heads;
  p.memory = ring(c, memory, wide);
  p.compressed = ring(c, compressed, wide);
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  if (relative) {
    p.w_r = c.rows(1, wide, wide, 0.04f);
    p.attention.u = c.numbers(wide, 0.1f);
    p.attention.v = c.numbers(wide, 0.1f);
  }
  if (usage) p.attention.usage = c.rows(1, 1, memory + len);
  double pairs = (double)(heads * len) * ((double)past + (double)(len + 1) / 2);
  double rows = (double)(2 * len + 2 * (past + len) + (relative ? past + len : 0));
  c.flops = 2.0 * (double)(wide * wide) * rows + (relative ? 6.0 : 4.0) * pairs * (double)kDim +
            (usage ? 2.0 * pairs * (double)kDim : 0);
  c.run = [=](attn_ctx *ctx) { return attn_segment_layer(o, h, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_segment_layer_workspace(o, h, &p, ctx); };
}

/* Bytes of the segment, read and written: nothing of the memory moves. */
void memory_append(Call &c, int64_t room) {
  constexpr int64_t len = 512, wide = 512;
  attn_tensor h = c.rows(1, len, wide);
  auto m = std::make_shared<attn_memory>(ring(c, room, wide));
  c.bytes = 8.0 * (double)(len * wide);
  c.run = [=](attn_ctx *ctx) { return attn_memory_append(m.get(), h, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_memory_append_workspace(m.get(), h, ctx); };
}

void compressive_update(Call &c, attn_compress_kind kind) {
  constexpr int64_t len = 512, wide = 512, rate = 4;
  attn_tensor h = c.rows(1, len, wide);
  auto m = std::make_shared<attn_memory>(ring(c, len, wide));
  auto old = std::make_shared<attn_memory>(ring(c, len, wide));
  m->rows = c.rows(1, len + rate - 1, wide);
  attn_compressive_params p = {};
  p.length = len;
  p.compress.kind = kind;
  p.compress.rate = rate;
  if (kind == ATTN_COMPRESS_CONV) {
    p.compress.w = c.rows(rate, wide, wide, 0.02f);
    c.flops = 2.0 * (double)(len * wide * wide);
  } else {
    c.bytes = 4.0 * (double)(len * wide) * (3.0 + 1.0 / (double)rate);
  }
  if (kind == ATTN_COMPRESS_MOST_USED) p.compress.usage = c.rows(1, 1, 2 * len);
  c.run = [=](attn_ctx *ctx) { return attn_compressive_update(m.get(), old.get(), h, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_compressive_update_workspace(m.get(), old.get(), h, &p, ctx);
  };
}

/* A second pass over the scores. */
void usage(Call &c) {
  constexpr int64_t len = 1024, keys = 4096, heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, keys, kDim), y = c.rows(1, 1, keys);
  attn_sdpa_params p = {};
  p.causal = 1;
  p.lse = c.rows(heads, len, 1);
  for (int64_t i = 0; i < heads * len; i++) ((float *)p.lse.data)[i] = 8.5f;
  c.flops = 2.0 * (double)(heads * len * kDim) * (double)(keys - len + (len + 1) / 2);
  c.run = [=](attn_ctx *ctx) { return attn_usage(y, q, k, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_usage_workspace(y, q, k, &p, ctx); };
}

void attention_loss(Call &c) {
  constexpr int64_t len = 512, wide = 512, heads = 8, made = len / 4;
  attn_tensor h = c.rows(1, len, wide), old = c.rows(1, len, wide), few = c.rows(1, made, wide);
  float *norm = c.numbers(1, 1), *mean = c.numbers(1, 1);
  attn_attention_loss_params p = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v}) *w = c.rows(1, wide, wide, 0.04f);
  c.flops = 2.0 * (double)(wide * wide) * (double)(len + 2 * (len + made)) +
            4.0 * (double)(heads * len * kDim) * (double)(len + made);
  c.run = [=](attn_ctx *ctx) { return attn_attention_loss(norm, mean, h, old, few, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_attention_loss_workspace(norm, mean, h, old, few, &p, ctx);
  };
}

/* A segment behind a memory that it renews; all multiply-adds of the layer count. */
void recursive(Call &c, attn_recursive_rule rule) {
  constexpr int64_t len = 512, rows = 128, wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_tensor memory = c.rows(1, rows, wide), next = c.rows(1, rows, wide);
  attn_recursive_params p = {};
  p.heads = heads;
  p.rule = rule;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  double again = rule == ATTN_RECURSIVE_ATTEND ? (double)rows : 0;
  double pairs =
      (double)len * ((double)rows + (double)(len + 1) / 2) + again * (double)(rows + len);
  c.flops = 4.0 * (double)(wide * wide) * ((double)(2 * len + rows) + again) +
            4.0 * (double)heads * pairs * (double)kDim;
  c.run = [=](attn_ctx *ctx) { return attn_recursive(o, next, x, memory, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_recursive_workspace(o, next, x, memory, &p, ctx);
  };
}

/* Sets and Luna: all multiply-adds count, those of the weights too. 64 inducing points, seeds or packed
 * rows. */

constexpr int64_t kFew = 64, kModel = 512;

attn_mab_params mab_weights(Call &c) {
  attn_mab_params p = {};
  p.heads = 8;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o, &p.ff.w_1})
    *w = c.rows(1, kModel, kModel, 0.04f);
  return p;
}

/* A block of n rows that reads m. */
double mab_flops(int64_t n, int64_t m) {
  return 2.0 * (double)(3 * n + 2 * m) * (double)(kModel * kModel) +
         4.0 * (double)(n * m) * (double)kModel;
}

void mab(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), o = c.rows(1, len, kModel);
  attn_mab_params p = mab_weights(c);
  c.flops = mab_flops(len, len);
  c.run = [=](attn_ctx *ctx) { return attn_mab(o, x, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_mab_workspace(o, x, x, &p, ctx); };
}

void isab(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), o = c.rows(1, len, kModel);
  attn_tensor points = c.rows(1, kFew, kModel);
  attn_isab_params p = {mab_weights(c), mab_weights(c)};
  c.flops = mab_flops(kFew, len) + mab_flops(len, kFew);
  c.run = [=](attn_ctx *ctx) { return attn_isab(o, x, points, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_isab_workspace(o, x, points, &p, ctx); };
}

void pma(Call &c, int64_t len) {
  attn_tensor z = c.rows(1, len, kModel), seeds = c.rows(1, kFew, kModel);
  attn_tensor o = c.rows(1, kFew, kModel);
  attn_pma_params p = {};
  p.block = mab_weights(c);
  c.flops = mab_flops(kFew, len);
  c.run = [=](attn_ctx *ctx) { return attn_pma(o, z, seeds, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_pma_workspace(o, z, seeds, &p, ctx); };
}

attn_luna_params luna_weights(Call &c) {
  attn_luna_params p = {};
  p.heads = 8;
  for (attn_tensor *w : {&p.w_pq, &p.w_pk, &p.w_q, &p.w_k, &p.w_o})
    *w = c.rows(1, kModel, kModel, 0.04f);
  p.w_pv = p.w_pk;
  p.w_v = p.w_k;
  return p;
}

double luna_flops(int64_t len) {
  return 2.0 * (double)(3 * len + 2 * kFew) * (double)(kModel * kModel) +
         8.0 * (double)(len * kFew) * (double)kModel;
}

void luna(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), y_x = c.rows(1, len, kModel), none = {};
  attn_tensor few = c.rows(1, kFew, kModel), y_p = c.rows(1, kFew, kModel);
  attn_luna_params p = luna_weights(c);
  c.flops = luna_flops(len);
  c.run = [=](attn_ctx *ctx) { return attn_luna(y_x, y_p, x, few, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_luna_workspace(y_x, y_p, x, few, none, &p, ctx);
  };
}

void luna_layer(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, kModel), x_next = c.rows(1, len, kModel), none = {};
  attn_tensor few = c.rows(1, kFew, kModel), p_next = c.rows(1, kFew, kModel);
  attn_luna_layer_params p = {};
  p.attention = luna_weights(c);
  p.ff.w_1 = c.rows(1, kModel, 4 * kModel, 0.04f);
  p.ff.w_2 = c.rows(1, 4 * kModel, kModel, 0.02f);
  c.flops = luna_flops(len) + 16.0 * (double)len * (double)(kModel * kModel);
  c.run = [=](attn_ctx *ctx) { return attn_luna_layer(x_next, p_next, x, few, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_luna_layer_workspace(x_next, p_next, x, few, none, &p, ctx);
  };
}

/* Work as the paper counts it: two products with each of KA and VA, and alpha. */
void luna_causal(Call &c, int64_t heads, int64_t len) {
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim),
              v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim),
              few = c.rows(heads, kFew, kDim);
  attn_luna_causal_params p = {};
  c.flops = (double)(heads * len * kFew) * (4.0 * 2 * kDim + 2.0 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_luna_causal(o, q, k, v, few, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_luna_causal_workspace(o, q, k, v, few, &p, ctx);
  };
}

/* A dense product of m rows of k by k x n. */
void gemm(Call &c, int64_t m, int64_t k, int64_t n, attn_gemm_params p) {
  attn_tensor x = c.rows(1, m, k), y = c.rows(1, m, n);
  attn_tensor w = p.w_transposed ? c.rows(1, n, k) : c.rows(1, k, n);
  if (p.activation) p.bias = c.rows(1, 1, n);
  c.flops = 2.0 * (double)(m * k * n);
  c.run = [=](attn_ctx *ctx) { return attn_gemm(y, x, w, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gemm_workspace(y, x, w, &p, ctx); };
  if (p.activation) return;
  float *other = c.numbers(m * n, 0);
  c.peer = [=] { peer_gemm(other, (float *)x.data, (float *)w.data, m, k, n, p.w_transposed); };
}

/* --- Feature maps. */

/* Orthogonal directions: Gram-Schmidt twice within blocks of kDim rows. */
void random_features(Call &c, int64_t m) {
  attn_tensor w = c.rows(1, m, kDim);
  c.flops = 4.0 * (double)(m * kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_random_features(w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_random_features_workspace(w, nullptr, ctx); };
}

/* The multiply-adds of the projection, or the bytes of a map without one. */
void features(Call &c, attn_feature_kind kind, int64_t directions, int is_key) {
  constexpr int64_t t = 4096;
  attn_feature_map map = {};
  map.kind = kind;
  if (directions) map.w = c.rows(1, directions, kDim);
  const int64_t m = attn_feature_count(&map, kDim);
  attn_tensor x = c.rows(1, t, kDim), y = c.rows(1, t, m);
  c.flops = 2.0 * (double)(t * directions * kDim);
  c.bytes = 4.0 * (double)(t * (kDim + m));
  c.run = [=](attn_ctx *ctx) { return attn_features(y, x, &map, is_key, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_features_workspace(y, x, &map, is_key, ctx); };
}

/* Attention over random features: projections, and the state written and read. */
void random_attention(Call &c, attn_feature_kind kind, int64_t directions, int causal) {
  constexpr int64_t t = 16384;
  attn_linear_params p = {};
  p.map.kind = kind;
  p.map.w = c.rows(1, directions, kDim);
  p.causal = causal;
  const int64_t m = attn_feature_count(&p.map, kDim);
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim);
  attn_tensor o = c.rows(1, t, kDim);
  c.flops = 4.0 * (double)(t * kDim) * (double)(directions + m);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

/* The Linear Transformer and the rules beside it: the state written and read, and the triangles of
 * chunks. */
void linear(Call &c, int64_t t, attn_linear_rule rule, int causal) {
  attn_linear_params p = {};
  p.rule = rule;
  p.causal = causal;
  if (rule != ATTN_LINEAR_SUM) p.rate_const = 0.5f;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), v = c.rows(1, t, kDim);
  attn_tensor o = c.rows(1, t, kDim);
  c.flops = 4.0 * (double)(t * kDim * kDim);
  if (causal) c.flops += 65.0 * (double)(t * 2 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

/* One token: the bytes of S, read and written. */
void linear_step(Call &c, int64_t heads) {
  attn_linear_params p = {};
  p.causal = 1;
  p.state_bytes = attn_linear_state_bytes(&p, 1, heads, heads, kDim, kDim);
  p.state = c.numbers((int64_t)(p.state_bytes / sizeof(float)), 1);
  attn_ctx plain = {};
  attn_linear_begin(p.state, p.state_bytes, &p, 1, heads, heads, kDim, kDim, &plain);
  attn_tensor q = c.rows(heads, 1, kDim), k = c.rows(heads, 1, kDim), v = c.rows(heads, 1, kDim);
  attn_tensor o = c.rows(heads, 1, kDim);
  c.bytes = 8.0 * (double)(heads * kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_linear(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linear_workspace(o, q, k, v, &p, ctx); };
}

/* --- Memories that are searched: the multiply-adds of comparing all pairs. */

void knn_search(Call &c, int64_t k, attn_knn_metric metric) {
  constexpr int64_t n = 64, store = 65536;
  attn_tensor q = c.rows(1, n, kDim), keys = c.rows(1, store, kDim);
  int32_t *index = c.steps(n * k, 0);
  float *distance = c.numbers(n * k, 1);
  attn_knn_params p = {};
  p.k = k;
  p.metric = metric;
  c.flops = 2.0 * (double)(n * store * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_knn_search(index, distance, q, keys, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_knn_search_workspace(index, distance, q, keys, &p, ctx);
  };
}

/* The paper's 1024 neighbours. */
void knn_lm(Call &c) {
  constexpr int64_t n = 64, store = 65536, words = 32000;
  attn_tensor q = c.rows(1, n, kDim), keys = c.rows(1, store, kDim), log_lm = c.rows(1, n, words),
              log_p = c.rows(1, n, words);
  int32_t *values = c.steps(store, 0);
  for (int64_t j = 0; j < store; j++) values[j] = (int32_t)(j * 7919 % words);
  attn_knn_lm_params p = {};
  c.flops = 2.0 * (double)(n * store * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_knn_lm(log_p, log_lm, q, keys, values, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_knn_lm_workspace(log_p, log_lm, q, keys, values, &p, ctx);
  };
}

void spalm(Call &c) {
  constexpr int64_t n = 512, k = 4, words = 4096, width = 512;
  attn_tensor h = c.rows(1, n, width), z = c.rows(1, n, width), y = c.rows(n, k, width, 0.1f);
  attn_spalm_params p = {};
  p.emb = c.rows(1, words, width, 0.1f);
  p.log_p = c.rows(1, n, words);
  c.flops = (double)(n * width) * (4.0 * k + 2.0 * words);
  c.run = [=](attn_ctx *ctx) { return attn_spalm(z, h, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_spalm_workspace(z, h, y, &p, ctx); };
}

/* A full memory, whose every call makes room for the segment. */
void memorizing(Call &c) {
  constexpr int64_t len = 512, heads = 2, size = 32768, topk = 32;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim),
              v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  auto memory = std::make_shared<attn_recall>();
  memory->k = c.rows(heads, size, kDim, 0.125f);
  memory->v = c.rows(heads, size, kDim);
  memory->len = size;
  attn_memorizing_params p = {};
  double local = (double)(len * (len + 1) / 2);
  c.flops = (double)heads * kDim * (2.0 * (double)(len * (size + topk)) + 4.0 * local);
  c.run = [=](attn_ctx *ctx) { return attn_memorizing(o, q, k, v, memory.get(), &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_memorizing_workspace(o, q, k, v, memory.get(), &p, ctx);
  };
}

/* --- Fewer keys than rows, one head. */

void linformer(Call &c, attn_linformer_kind kind) {
  constexpr int64_t rank = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_linformer_params p = {};
  p.kind = kind;
  p.rank = rank;
  if (kind == ATTN_LINFORMER_MATRIX) p.e = c.rows(1, rank, kLong, 0.01f);
  c.flops = 4.0 * (double)(kLong * rank * kDim) * (kind == ATTN_LINFORMER_MATRIX ? 2 : 1);
  c.run = [=](attn_ctx *ctx) { return attn_linformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_linformer_workspace(o, q, k, v, &p, ctx); };
}

void memory_compressed(Call &c) {
  constexpr int64_t len = 4096, kernel = 3;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  attn_memory_compressed_params p = {};
  p.causal = 1;
  p.w_k = c.rows(1, kernel * kDim, kDim, 0.1f);
  p.w_v = c.rows(1, kernel * kDim, kDim, 0.1f);
  c.flops = 4.0 * (double)(len * kDim) * ((double)kDim + (double)(len / kernel) / 2);
  c.run = [=](attn_ctx *ctx) { return attn_memory_compressed(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_memory_compressed_workspace(o, q, k, v, &p, ctx);
  };
}

void local(Call &c, int causal) {
  constexpr int64_t block = 256;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_local_params p = {};
  p.causal = causal;
  c.pairs(causal ? kLong * (block + 1) / 2 : kLong * block);
  c.run = [=](attn_ctx *ctx) { return attn_local(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_local_workspace(o, q, k, v, &p, ctx); };
}

/* Windows of 128 and 512 to a side, blocks of 5 every 4 rows; edges are counted as if they went on. */
void poolingformer(Call &c, attn_poolingformer_align align, attn_pool_kind pool) {
  constexpr int64_t kernel = 5;
  attn_tensor q = c.rows(1, kLong, kDim), k = c.rows(1, kLong, kDim), v = c.rows(1, kLong, kDim),
              o = c.rows(1, kLong, kDim);
  attn_poolingformer_params p = {};
  p.align = align;
  p.pool = pool;
  if (pool == ATTN_POOL_DYNAMIC) {
    p.pool_k = c.rows(1, kDim, kernel, 0.1f);
    p.pool_v = c.rows(1, kDim, kernel, 0.1f);
  }
  c.pairs(kLong * (2 * 128 + 1 + 2 * 512 / 4));
  c.run = [=](attn_ctx *ctx) { return attn_poolingformer(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_poolingformer_workspace(o, q, k, v, &p, ctx); };
}

/* --- Fewer queries than there are: the multiply-adds of the pairs. */

void cluster_queries(Call &c) {
  constexpr int64_t t = 4096;
  attn_tensor q = c.rows(1, t, kDim);
  int32_t *place = c.steps(t, 0);
  attn_cluster_params p = {};
  p.clusters = 64;
  c.flops = 2.0 * (double)(t * 32 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_cluster_queries(place, q, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_cluster_queries_workspace(place, q, &p, ctx); };
}

void clustered(Call &c, int64_t len, int64_t clusters, int64_t topk) {
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  int32_t *place = c.steps(len, 0);
  attn_cluster_params p = {};
  p.clusters = clusters;
  p.topk = topk;
  if (attn_cluster_queries(place, q, &p, nullptr) != ATTN_OK) return;
  c.pairs(clusters * len + len * topk);
  c.run = [=](attn_ctx *ctx) { return attn_clustered(o, q, k, v, place, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_clustered_workspace(o, q, k, v, place, &p, ctx);
  };
}

void probsparse_measure(Call &c) {
  constexpr int64_t t = 4096;
  attn_tensor q = c.rows(1, t, kDim), k = c.rows(1, t, kDim), m = c.rows(1, t, 1);
  c.flops = 2.0 * (double)(t * attn_probsparse_samples(t, nullptr) * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_probsparse_measure(m, q, k, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_measure_workspace(m, q, k, nullptr, ctx);
  };
}

void probsparse_select(Call &c) {
  constexpr int64_t t = 16384;
  attn_tensor m = c.rows(1, t, 1);
  int32_t *pick = c.steps(attn_probsparse_rows(t, nullptr), 0);
  c.bytes = 4.0 * (double)t;
  c.run = [=](attn_ctx *ctx) { return attn_probsparse_select(pick, m, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_select_workspace(pick, m, nullptr, ctx);
  };
}

/* Selected rows are evenly spread, so that causal ones see half of the keys. */
void probsparse(Call &c, int64_t len, int causal) {
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  const int64_t u = attn_probsparse_rows(len, nullptr);
  int32_t *pick = c.steps(u, len / u);
  attn_probsparse_params p = {};
  p.causal = causal;
  c.pairs(u * len / (causal ? 2 : 1));
  c.run = [=](attn_ctx *ctx) { return attn_probsparse(o, q, k, v, pick, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_probsparse_workspace(o, q, k, v, pick, &p, ctx);
  };
}

/* --- Low rank, one head of 64. */

/* 64 landmarks. The flops are those of the two softmaxes over landmarks and of the small matrices. */
double landmark_flops(double len, double inverse) {
  constexpr double m = 64, d = kDim;
  return 2 * len * m * 2 * d * 2 + 2 * m * m * 2 * d + inverse;
}

void low_rank_band(Call &c) {
  constexpr int64_t len = 4096, rank = 16, width = 64;
  attn_tensor ql = c.rows(1, len, rank), kl = c.rows(1, len, rank), q = c.rows(1, len, kDim),
              k = c.rows(1, len, kDim), v = c.rows(1, len, kDim), o = c.rows(1, len, kDim);
  attn_low_rank_band_params p = {};
  p.half_width = width;
  c.flops = 2.0 * (double)len * (len * (rank + kDim) + (2 * width + 1) * 2 * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_low_rank_band(o, ql, kl, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_low_rank_band_workspace(o, ql, kl, q, k, v, &p, ctx);
  };
}

void nystrom(Call &c, int64_t len, int64_t kernel) {
  constexpr double m = 64;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  attn_nystrom_params p = {};
  if (kernel > 0) p.conv = attn_bhtd(c.numbers(kernel, 0.2f), ATTN_F32, 1, 1, kernel, 1);
  c.flops = landmark_flops((double)len, 6 * 8 * m * m * m) + 2.0 * (double)(len * kernel * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_nystrom(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_nystrom_workspace(o, q, k, v, &p, ctx); };
}

void csalr(Call &c, int64_t len) {
  constexpr double m = 64;
  attn_tensor q = c.rows(1, len, kDim), k = c.rows(1, len, kDim), v = c.rows(1, len, kDim),
              o = c.rows(1, len, kDim);
  c.flops = landmark_flops((double)len, 2.0 / 3 * m * m * m + 2 * m * m * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_csalr(o, q, k, v, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_csalr_workspace(o, q, k, v, nullptr, ctx); };
}

/* --- Parts of compressed and low-rank attention. */

void pool(Call &c, attn_pool_kind kind, int64_t kernel) {
  int64_t out = kernel ? kLong / kernel : 64;
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, out, kDim);
  attn_pool_params p = {};
  p.kind = kind;
  p.kernel = kernel;
  if (kind == ATTN_POOL_DYNAMIC) p.w = c.rows(1, kDim, kernel, 0.1f);
  c.bytes = 4.0 * (double)((kLong + out) * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_pool(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_pool_workspace(y, x, &p, ctx); };
}

void convolve(Call &c, int64_t kernel) {
  int64_t out = (kLong + kernel - 1) / kernel;
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, out, kDim);
  attn_tensor w = c.rows(1, kernel * kDim, kDim, 0.1f);
  c.flops = 2.0 * (double)(out * kernel * kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_convolve(y, x, w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_convolve_workspace(y, x, w, nullptr, ctx); };
}

void convolve_depthwise(Call &c, int64_t kernel, bool columns) {
  attn_tensor x = c.rows(1, kLong, kDim), y = c.rows(1, kLong, kDim);
  attn_tensor w = c.rows(1, kernel, columns ? kDim : 1, 0.1f);
  c.flops = 2.0 * (double)(kLong * kernel * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_convolve_depthwise(y, x, w, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_convolve_depthwise_workspace(y, x, w, nullptr, ctx);
  };
}

void top_k(Call &c, int64_t k) {
  constexpr int64_t rows = 256, n = 4096;
  attn_tensor x = c.rows(1, rows, n), values = c.rows(1, rows, k);
  int32_t *index = c.steps(rows * k, 0);
  c.bytes = 4.0 * (double)(rows * n);
  c.run = [=](attn_ctx *ctx) { return attn_top_k(values, index, x, k, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_top_k_workspace(values, index, x, k, nullptr, ctx);
  };
}

void kmeans_step(Call &c) {
  constexpr int64_t many = 256;
  attn_tensor x = c.rows(1, kLong, kDim), from = c.rows(1, many, kDim), to = c.rows(1, many, kDim);
  int32_t *of = c.steps(kLong, 0), *counts = c.steps(many, 0);
  c.flops = 2.0 * (double)(kLong * many * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_kmeans_step(to, of, counts, from, x, nullptr, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_kmeans_step_workspace(to, of, counts, from, x, nullptr, ctx);
  };
}

/* Matrices of equal rows but for the diagonal: they are far from singular. */
void inverse(Call &c, int64_t m, bool solve) {
  attn_tensor a = c.rows(8, m, m, 0), z = c.rows(8, m, solve ? kDim : m), b = c.rows(8, m, kDim);
  for (int64_t i = 0; i < 8 * m * m; i++)
    ((float *)a.data)[i] = 0.5f / (float)m + (i % (m * m) % (m + 1) == 0 ? 0.5f : 0);
  double cube = 8.0 * (double)(m * m * m);
  c.flops = solve ? cube * 2 / 3 + 16.0 * (double)(m * m * kDim) : cube * 48;
  c.run = [=](attn_ctx *ctx) {
    return solve ? attn_solve(z, a, b, 1, ctx) : attn_pinv(z, a, 6, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return solve ? attn_solve_workspace(z, a, b, 1, ctx) : attn_pinv_workspace(z, a, 6, ctx);
  };
}

void average(Call &c) {
  constexpr int64_t len = 2048, wide = 512;
  attn_tensor y = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_average_params p = {};
  p.w_g = c.rows(1, 2 * wide, 2 * wide, 0.03f);
  c.flops = 8.0 * (double)(len * wide * wide);
  c.run = [=](attn_ctx *ctx) { return attn_average(o, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_average_workspace(o, y, &p, ctx); };
}

struct Entry {
  const char *name; /* before the tier */
  const char *shape;
  CallMaker make;
};

}  // namespace

void register_functions(const Selection &sel) {
  attn_isa isa = sel.isa;
  const Entry entries[] = {
      {"sinusoid", "T:512/d:512", [](Call &c) { sinusoid(c, 512); }},
      {"sinusoid", "T:16384/d:512", [](Call &c) { sinusoid(c, 16384); }},
      {"universal_signal", "T:512/d:512", [](Call &c) { universal_signal(c, 512); }},
      {"learned_position", "T:512/d:512", [](Call &c) { learned_position(c, 512); }},
      {"gaussian_window", "T:4096/d:64/h:8", gaussian_window},
      {"hard_gaussian", "T:16384/d:64", hard_gaussian},
      {"span_predict", "T:4096/d:512/h:8", span_predict},
      {"star_satellites", "width:1/T:16384/d:64", star_satellites},
      {"star_relay", "T:4096/d:64/h:8", star_relay},
      {"longformer", "window:512/globals:16/T:16384/d:64", longformer},
      {"etc", "radius:84/globals:256/T:4096/d:64", etc},
      {"tree", "k:4/tokens:4096/d:64", [](Call &c) { tree(c, false); }},
      {"tree", "k:4/tokens:4096/d:64/labels", [](Call &c) { tree(c, true); }},
      {"segmented", "length:256/T:16384/d:64", [](Call &c) { segmented(c, ATTN_INTEGRATE_NONE); }},
      {"segmented", "length:256/T:16384/d:64/integrate:token",
       [](Call &c) { segmented(c, ATTN_INTEGRATE_TOKEN); }},
      {"hierarchy", "levels:3/T:16384/d:64", hierarchy},
      {"xl_layer", "T:512/mem:512/d:64/h:8", xl_layer},
      {"segment_layer", "T:512/mem:0/d:64/h:8",
       [](Call &c) { segment_layer(c, 0, 0, false, false); }},
      {"segment_layer", "T:512/mem:512/d:64/h:8",
       [](Call &c) { segment_layer(c, 512, 0, false, false); }},
      {"segment_layer", "T:512/mem:2048/d:64/h:8",
       [](Call &c) { segment_layer(c, 2048, 0, false, false); }},
      {"segment_layer", "T:512/mem:512/d:64/h:8/xl",
       [](Call &c) { segment_layer(c, 512, 0, true, false); }},
      {"segment_layer", "T:512/mem:512/compressed:512/d:64/h:8/xl/usage",
       [](Call &c) { segment_layer(c, 512, 512, true, true); }},
      {"pool", "segments:64/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_MEAN, 0); }},
      {"pool", "kernel:4/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_MEAN, 4); }},
      {"pool", "max:4/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_MAX, 4); }},
      {"pool", "dynamic:4/T:16384/d:64", [](Call &c) { pool(c, ATTN_POOL_DYNAMIC, 4); }},
      {"convolve", "kernel:3/T:16384/d:64", [](Call &c) { convolve(c, 3); }},
      {"convolve_depthwise", "kernel:33/T:16384/d:64",
       [](Call &c) { convolve_depthwise(c, 33, false); }},
      {"convolve_depthwise", "kernel:4/T:16384/d:64/columns",
       [](Call &c) { convolve_depthwise(c, 4, true); }},
      {"top_k", "k:32/n:4096/rows:256", [](Call &c) { top_k(c, 32); }},
      {"kmeans_step", "C:256/T:16384/d:64", kmeans_step},
      {"pinv", "m:64/h:8", [](Call &c) { inverse(c, 64, false); }},
      {"solve", "m:64/n:64/h:8", [](Call &c) { inverse(c, 64, true); }},
      {"average", "T:2048/d:512", average},
      {"gemm", "m:512/n:512/k:64", [](Call &c) { gemm(c, 512, 64, 512, {}); }},
      {"gemm", "m:2048/n:256/k:128", [](Call &c) { gemm(c, 2048, 128, 256, {}); }},
      {"gemm", "m:2048/n:256/k:128/transposed",
       [](Call &c) {
         attn_gemm_params p = {};
         p.w_transposed = 1;
         gemm(c, 2048, 128, 256, p);
       }},
      {"gemm", "m:512/n:2048/k:512/gelu",
       [](Call &c) {
         attn_gemm_params p = {};
         p.activation = ATTN_ACT_GELU;
         gemm(c, 512, 512, 2048, p);
       }},
      {"gemm", "m:1/n:512/k:512", [](Call &c) { gemm(c, 1, 512, 512, {}); }},
      {"random_features", "m:256/d:64", [](Call &c) { random_features(c, 256); }},
      {"features", "elu1/T:4096/d:64", [](Call &c) { features(c, ATTN_FEATURES_ELU1, 0, 1); }},
      {"features", "softmax/m:256/T:4096/d:64",
       [](Call &c) { features(c, ATTN_FEATURES_SOFTMAX, 256, 0); }},
      {"features", "softmax/m:256/T:4096/d:64/keys",
       [](Call &c) { features(c, ATTN_FEATURES_SOFTMAX, 256, 1); }},
      {"features", "rfa/D:128/T:4096/d:64",
       [](Call &c) { features(c, ATTN_FEATURES_RFA, 128, 0); }},
      {"linear", "T:2048/d:64", [](Call &c) { linear(c, 2048, ATTN_LINEAR_SUM, 0); }},
      {"linear", "T:16384/d:64", [](Call &c) { linear(c, 16384, ATTN_LINEAR_SUM, 0); }},
      {"linear", "T:16384/d:64/causal", [](Call &c) { linear(c, 16384, ATTN_LINEAR_SUM, 1); }},
      {"linear", "T:16384/d:64/causal/decay",
       [](Call &c) { linear(c, 16384, ATTN_LINEAR_DECAY, 1); }},
      {"linear", "T:16384/d:64/causal/delta",
       [](Call &c) { linear(c, 16384, ATTN_LINEAR_DELTA, 1); }},
      {"linear_step", "d:64/h:8", [](Call &c) { linear_step(c, 8); }},
      {"performer", "m:256/T:16384/d:64",
       [](Call &c) { random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 0); }},
      {"performer", "m:256/T:16384/d:64/causal",
       [](Call &c) { random_attention(c, ATTN_FEATURES_SOFTMAX, 256, 1); }},
      {"rfa", "D:128/T:16384/d:64",
       [](Call &c) { random_attention(c, ATTN_FEATURES_RFA, 128, 0); }},
      {"rfa", "D:128/T:16384/d:64/causal",
       [](Call &c) { random_attention(c, ATTN_FEATURES_RFA, 128, 1); }},
      {"memory_append", "T:512/mem:512/d:512", [](Call &c) { memory_append(c, 512); }},
      {"memory_append", "T:512/mem:16384/d:512", [](Call &c) { memory_append(c, 16384); }},
      {"compressive_update", "conv:4/T:512/d:512",
       [](Call &c) { compressive_update(c, ATTN_COMPRESS_CONV); }},
      {"compressive_update", "mean:4/T:512/d:512",
       [](Call &c) { compressive_update(c, ATTN_COMPRESS_MEAN); }},
      {"compressive_update", "most_used:4/T:512/d:512",
       [](Call &c) { compressive_update(c, ATTN_COMPRESS_MOST_USED); }},
      {"usage", "T:1024/Tk:4096/d:64/h:8", usage},
      {"attention_loss", "T:512/d:64/h:8", attention_loss},
      {"recursive", "T:512/mem:128/d:64/h:8", [](Call &c) { recursive(c, ATTN_RECURSIVE_EMA); }},
      {"recursive", "T:512/mem:128/d:64/h:8/rule:attend",
       [](Call &c) { recursive(c, ATTN_RECURSIVE_ATTEND); }},
      {"mab", "T:1024/dm:512/h:8", [](Call &c) { mab(c, 1024); }},
      {"isab", "T:4096/m:64/dm:512/h:8", [](Call &c) { isab(c, 4096); }},
      {"pma", "T:4096/k:64/dm:512/h:8", [](Call &c) { pma(c, 4096); }},
      {"luna", "T:4096/l:64/dm:512/h:8", [](Call &c) { luna(c, 4096); }},
      {"luna_layer", "T:4096/l:64/dm:512/h:8", [](Call &c) { luna_layer(c, 4096); }},
      {"luna_causal", "T:16384/l:64/d:64", [](Call &c) { luna_causal(c, 1, 16384); }},
      {"cluster_queries", "T:4096/C:64/d:64", cluster_queries},
      {"clustered", "T:4096/C:64/d:64", [](Call &c) { clustered(c, 4096, 64, 0); }},
      {"clustered", "T:16384/C:256/topk:32/d:64", [](Call &c) { clustered(c, 16384, 256, 32); }},
      {"probsparse_measure", "T:4096/d:64", probsparse_measure},
      {"probsparse_select", "T:16384", probsparse_select},
      {"probsparse", "T:16384/d:64", [](Call &c) { probsparse(c, 16384, 0); }},
      {"probsparse", "T:16384/d:64/causal", [](Call &c) { probsparse(c, 16384, 1); }},
      {"knn_search", "n:64/N:65536/d:64/k:32", [](Call &c) { knn_search(c, 32, ATTN_KNN_SQ_L2); }},
      {"knn_search", "n:64/N:65536/d:64/k:32/ip", [](Call &c) { knn_search(c, 32, ATTN_KNN_IP); }},
      {"knn_search", "n:64/N:65536/d:64/k:1024",
       [](Call &c) { knn_search(c, 1024, ATTN_KNN_SQ_L2); }},
      {"knn_lm", "n:64/N:65536/d:64/k:1024/V:32000", knn_lm},
      {"spalm", "n:512/k:4/d:512/V:4096", spalm},
      {"low_rank_band", "r:16/width:64/T:4096/d:64", low_rank_band},
      {"linformer", "r:256/T:16384/d:64", [](Call &c) { linformer(c, ATTN_LINFORMER_MATRIX); }},
      {"linformer", "r:256/T:16384/d:64/mean", [](Call &c) { linformer(c, ATTN_LINFORMER_MEAN); }},
      {"memory_compressed", "c:3/T:4096/d:64/causal", memory_compressed},
      {"local", "block:256/T:16384/d:64", [](Call &c) { local(c, 0); }},
      {"local", "block:256/T:16384/d:64/causal", [](Call &c) { local(c, 1); }},
      {"poolingformer", "T:16384/d:64",
       [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_GRID, ATTN_POOL_MEAN); }},
      {"poolingformer", "T:16384/d:64/dynamic",
       [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_GRID, ATTN_POOL_DYNAMIC); }},
      {"poolingformer", "T:16384/d:64/window",
       [](Call &c) { poolingformer(c, ATTN_POOLINGFORMER_WINDOW, ATTN_POOL_MEAN); }},
      {"nystrom", "m:64/T:4096/d:64", [](Call &c) { nystrom(c, 4096, 0); }},
      {"nystrom", "m:64/T:16384/d:64", [](Call &c) { nystrom(c, 16384, 0); }},
      {"nystrom", "m:64/T:4096/d:64/conv:33", [](Call &c) { nystrom(c, 4096, 33); }},
      {"csalr", "m:64/T:4096/d:64", [](Call &c) { csalr(c, 4096); }},
      {"memorizing", "T:512/size:32768/k:32/d:64/h:2", memorizing},
  };
  for (const Entry &e : entries)
    case_register(
        std::string(e.name) + "/f32/" + attn_isa_name(isa) + "/" + e.shape,
        [isa, e] { return std::make_unique<CallCase>(isa, e.make); }, sel.seconds());
}
