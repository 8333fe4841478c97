/* bench/calls/reshaped.cpp owns the entries of attention with reshaped weights. One head. */

#include <cmath>

#include "beside.h"

namespace {

enum Way {
  kSigmoid,
  kSoftpick,
  kStick,
  kSsmax,
  kSsmaxBiased,
  kTemperature,
  kForgetting,
  kGate,
  kSparsemax,
  kEntmax,
  kEntmaxAny,
  kCope,
  kCopeLong,
  kSelective,
  kPath,
  kQkNorm,
  kWays
};
const char *const kNames[kWays] = {"sigmoid",     "softpick",    "stick",      "ssmax",
                                   "ssmax-alibi", "temperature", "forgetting", "gate",
                                   "sparsemax",   "entmax",      "entmax-1.3", "cope-64",
                                   "cope-4096",   "selective",   "path",       "qk-norm"};

void unit(float *x, int64_t n) {
  float sum = 0;
  for (int64_t c = 0; c < n; c++) sum += x[c] * x[c];
  for (int64_t c = 0; c < n; c++) x[c] /= std::sqrt(sum);
}

/* attn_reshaped, in turn with softmax over the same shape. */
class ReshapedCase : public BesideCase {
 public:
  ReshapedCase(attn_isa isa, const problem_shape &shape, Way way) : BesideCase(isa, shape) {
    if (!failure.empty()) return;
    params_.attention = p_.params;
    const int64_t t = shape.tq, h = shape.heads;
    if (way == kSigmoid) params_.kind = ATTN_RESHAPE_SIGMOID;
    if (way == kSoftpick) params_.kind = ATTN_RESHAPE_SOFTPICK;
    if (way == kStick) params_.kind = ATTN_RESHAPE_STICK;
    if (way >= kSparsemax && way <= kEntmaxAny) params_.kind = ATTN_RESHAPE_ENTMAX;
    if (way >= kSparsemax && way <= kEntmaxAny)
      params_.alpha = way == kSparsemax ? 2.0f : way == kEntmax ? 1.5f : 1.3f;
    if (way == kSsmax || way == kSsmaxBiased)
      numbers_.assign((size_t)h, 0.43f), params_.ssmax.scale = numbers_.data();
    slopes_.assign((size_t)h, 0.01f);
    if (way == kSsmaxBiased) params_.attention.alibi = slopes_.data();
    params_.temperature.on = way == kTemperature;
    if (way == kForgetting) {
      numbers_ = random_floats((size_t)(h * t), -0.1f, 0.0f);
      params_.forget.log_f = attn_bhtd(numbers_.data(), ATTN_F32, 1, h, t, 1);
    }
    if (way == kGate) {
      numbers_ = random_floats((size_t)(h * t * shape.dk), -4.0f, 4.0f);
      params_.gate = attn_bhtd(numbers_.data(), ATTN_F32, 1, h, t, shape.dk);
    }
    if (way == kCope || way == kCopeLong) {
      const int64_t n = way == kCope ? 64 : 4096;
      numbers_ = random_floats((size_t)(n * shape.dk), -0.1f, 0.1f);
      params_.cope.table = attn_bhtd(numbers_.data(), ATTN_F32, 1, 1, n, shape.dk);
    }
    params_.selective.on = way == kSelective;
    if (way == kQkNorm) {
      numbers_ = random_floats((size_t)shape.dk, 0.5f, 1.5f);
      norm_.q_gain = norm_.k_gain = numbers_.data(), params_.norm = &norm_;
    }
    if (way == kPath) {
      numbers_ = random_floats((size_t)(h * t * shape.dk), -1.0f, 1.0f);
      slopes_ = random_floats((size_t)(h * t), 0.0f, 2.0f);
      for (int64_t i = 0; i < h * t; i++) unit(&numbers_[(size_t)(i * shape.dk)], shape.dk);
      params_.path.w = attn_bhtd(numbers_.data(), ATTN_F32, 1, h, t, shape.dk);
      params_.path.beta = attn_bhtd(slopes_.data(), ATTN_F32, 1, h, t, 1);
    }
    against(attn_reshaped, attn_reshaped_workspace, &params_);
  }

 private:
  attn_reshaped_params params_{};
  Floats numbers_, slopes_;
  attn_qk_norm norm_{};
};

/* A step of decoding over turned keys, attn_path_turn and attn_sdpa, in turn with attn_sdpa alone. */
class PathStepCase : public BesideCase {
 public:
  PathStepCase(attn_isa isa, const problem_shape &shape) : BesideCase(isa, shape) {
    if (!failure.empty()) return;
    const int64_t h = shape.heads;
    w_ = random_floats((size_t)(h * shape.dk), -1.0f, 1.0f), beta_.assign((size_t)h, 1.0f);
    for (int64_t i = 0; i < h; i++) unit(&w_[(size_t)(i * shape.dk)], shape.dk);
    room_.resize((size_t)shape.dk * 512 + 4096);
    contest.add("ours", p_.flops, [=] {
      const attn_tensor w = attn_bhtd(w_.data(), ATTN_F32, 1, h, 1, shape.dk);
      const attn_tensor beta = attn_bhtd(beta_.data(), ATTN_F32, 1, h, 1, 1);
      attn_ctx ctx{};
      ctx.isa = isa, ctx.workspace = room_.data(), ctx.workspace_size = room_.size();
      failure = case_check(attn_path_turn(p_.k, w, beta, nullptr, &ctx), ctx, isa);
      if (failure.empty()) failure = case_check(problem_run(&p_, isa, &ctx_), ctx_, isa);
      return failure.empty();
    });
    contest.add("base", p_.flops, [=] {
      failure = case_check(problem_run(&p_, isa, &ctx_), ctx_, isa);
      return failure.empty();
    });
  }

 private:
  Floats w_, beta_;
  std::vector<char> room_;
};

/* attn_differential, in turn with attn_sdpa of as many maps. */
class DifferentialCase : public BesideCase {
 public:
  DifferentialCase(attn_isa isa, const problem_shape &shape) : BesideCase(isa, shape) {
    if (!failure.empty()) return;
    params_.attention = p_.params;
    o_.heads /= 2, v_.heads /= 2;
    against(attn_differential, attn_differential_workspace, &params_);
  }

 private:
  attn_differential_params params_{};
};

}  // namespace

void register_reshaped(const Selection &s) {
  for (int way = 0; way < kWays; way++)
    for (int64_t d = 64; d <= 128; d += 64) {
      if (!s.full &&
          (d > 64 || (way != kSigmoid && way != kForgetting && way != kEntmax && way != kCope &&
                      way != kSelective && way != kPath && way != kQkNorm)))
        continue;
      const attn_isa isa = s.isa;
      problem_shape shape = {};
      shape.heads = 1;
      shape.tq = s.full ? 4096 : 2048;
      shape.dk = d;
      shape.causal = 1;
      case_register(
          std::string("reshaped/f32/") + attn_isa_name(isa) + "/" + kNames[way] +
              "/causal:1/T:" + std::to_string(shape.tq) + "/d:" + std::to_string(d) + "/h:1",
          [=] { return std::make_unique<ReshapedCase>(isa, shape, (Way)way); }, s.seconds());
    }
  for (int64_t d = 64; d <= 128; d += 64) {
    const attn_isa isa = s.isa;
    problem_shape shape = {};
    shape.heads = 1, shape.tq = 1, shape.tk = 4096, shape.dk = d;
    if (!s.full && d > 64) continue;
    case_register(
        std::string("path_turn/f32/") + attn_isa_name(isa) +
            "/decode/T:4096/d:" + std::to_string(d) + "/h:1",
        [=] { return std::make_unique<PathStepCase>(isa, shape); }, s.seconds());
  }
  for (int64_t tq = s.full ? 4096 : 2048; tq; tq = tq > 1 ? 1 : 0)
    for (int64_t d = 64; d <= 128; d += 64) {
      if (!s.full && d > 64) continue;
      const attn_isa isa = s.isa;
      problem_shape shape = {};
      shape.heads = 2;
      shape.tq = tq;
      shape.tk = tq > 1 ? tq : 16384;
      shape.dk = d;
      shape.dv = 2 * d;
      shape.causal = 1;
      case_register(
          std::string("differential/f32/") + attn_isa_name(isa) +
              (tq > 1 ? "/causal:1/T:" : "/decode/T:") + std::to_string(shape.tk) +
              "/d:" + std::to_string(d) + "/h:1",
          [=] { return std::make_unique<DifferentialCase>(isa, shape); }, s.seconds());
    }
}
