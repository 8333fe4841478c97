/* bench/families/selection_prefill.cpp owns the entries of prompts that are not attended to as a whole: the estimate, its
 * schedule and attention over that, in turn with causal attention. One head; scores fall with distance, as rotated keys'
 * do, but for a few tokens that all look at. base_ratio is the gain, kept the part of the causal pairs computed. */

#include <cmath>

#include "beside.h"

namespace {

struct Prefill {
  int way; /* 0: XAttention, 1: vertical-slash, 2, 3: their estimates alone */
  std::vector<uint8_t> *mask;
};

attn_status prefill(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v, const Prefill *x,
                    attn_ctx *ctx) {
  attn_ctx own = *ctx;
  own.workspace = nullptr;
  own.workspace_size = 0;
  attn_status status = x->way % 2 ? attn_vertical_slash(x->mask->data(), q, k, nullptr, &own)
                                  : attn_xattention(x->mask->data(), q, k, nullptr, &own);
  if (status == ATTN_OK && x->way < 2) {
    const int64_t block = x->way ? 64 : 128;
    attn_pattern chosen = attn_pattern_block_mask(x->mask->data(), block, block);
    attn_schedule schedule = {};
    attn_sdpa_params p = {};
    chosen.causal = 1;
    chosen.bits_heads = q.heads;
    status = attn_schedule_build(&schedule, &chosen, q.heads, q.len, k.len, nullptr, &own);
    p.schedule = &schedule;
    if (status == ATTN_OK) status = attn_sdpa(o, q, k, v, &p, &own);
    attn_schedule_free(&schedule);
  }
  ctx->report = own.report;
  ctx->reason = own.reason;
  return status;
}

size_t nothing(attn_tensor, attn_tensor, attn_tensor, attn_tensor, const Prefill *,
               const attn_ctx *) {
  return 0;
}

class PrefillCase : public BesideCase {
 public:
  PrefillCase(attn_isa isa, const problem_shape &shape, int way) : BesideCase(isa, shape) {
    if (!failure.empty()) return;
    const int64_t t = shape.tq, d = shape.dk;
    mask_.resize((size_t)((t + 63) / 64 * ((t + 63) / 64)));
    for (int64_t i = 0; i < t; i++)
      for (int64_t c = 0; c < d; c++) {
        const double angle = (double)i * std::pow(10000.0, -(double)(c / 2 * 2) / (double)d);
        const float near = 1.35f * (float)(c % 2 ? std::sin(angle) : std::cos(angle));
        float *q = static_cast<float *>(p_.q.data) + i * d + c;
        float *k = static_cast<float *>(p_.k.data) + i * d + c;
        *q = c == d - 1 ? 3.0f : near + 0.6f * *q;
        *k = c == d - 1 ? (i % 1500 == 3 ? 12.0f : 0.0f) : near + 0.6f * *k;
      }
    params_ = {way, &mask_};
    Prefill once = params_;
    attn_ctx ctx = {};
    ctx.isa = isa;
    if (prefill(p_.o, p_.q, p_.k, p_.v, &once, &ctx) == ATTN_OK)
      kept_ = (double)ctx.report.pairs / p_.pairs;
    against(prefill, nothing, &params_);
  }

  void counters(benchmark::State &state) override {
    BesideCase::counters(state);
    state.counters["kept"] = kept_;
  }

 private:
  Prefill params_{};
  std::vector<uint8_t> mask_;
  double kept_ = 0;
};

}  // namespace

void register_selection_prefill(const Selection &s) {
  static const char *const names[] = {"xattention", "vertical_slash", "xattention/estimate",
                                      "vertical_slash/estimate"};
  for (int way = 0; way < 4; way++)
    for (int64_t t = 4096; t <= 16384; t *= 4) {
      if (!s.full && t > 4096) continue;
      const attn_isa isa = s.isa;
      problem_shape shape = {};
      shape.heads = 1;
      shape.tq = t;
      shape.dk = 128;
      shape.causal = 1;
      case_register(
          std::string("prefill/f32/") + attn_isa_name(isa) + "/" + names[way] +
              "/T:" + std::to_string(t) + "/d:128/h:1",
          [=] { return std::make_unique<PrefillCase>(isa, shape, way); }, s.seconds());
    }
}
