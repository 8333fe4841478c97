/* bench/calls/relu.cpp owns the entries of attention with ReLU in place of softmax. One head. */

#include "case.h"
#include "problem.h"

namespace {

/* attn_relu, in turn with softmax over the same shape. */
class ReluCase : public Case {
 public:
  ReluCase(attn_isa isa, const problem_shape &shape, attn_relu_kind kind) : Case(isa), isa_(isa) {
    if (!problem_init(&p_, &shape, &ctx_)) {
      failure = "out of memory";
      return;
    }
    params_.kind = kind;
    params_.attention = p_.params;
    size_t heads = (size_t)(shape.heads * shape.dk);
    if (kind == ATTN_RELU_RELA) {
      gain_.assign(heads, 1);
      gate_.assign(heads, 1);
      params_.gain = gain_.data();
      params_.gate = gate_.data();
    }
    workspace_.resize(attn_relu_workspace(p_.o, p_.q, p_.k, p_.v, &params_, &ctx_) + 1);
    contest.add("ours", p_.flops, [this] {
      ctx_.isa = isa_;
      ctx_.workspace = workspace_.data();
      ctx_.workspace_size = workspace_.size();
      attn_status st = attn_relu(p_.o, p_.q, p_.k, p_.v, &params_, &ctx_);
      failure = case_check(st, ctx_, isa_);
      return failure.empty();
    });
    contest.add("base", p_.flops, [this] {
      failure = case_check(problem_run(&p_, isa_, &ctx_), ctx_, isa_);
      return failure.empty();
    });
  }

  ~ReluCase() override { problem_free(&p_); }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    c["GFLOPS"] = contest[0].best() * 1e-9;
    c["percent"] = 100 * contest[0].best() * 1e-9 / contest.peak();
    c["base_ratio"] = contest[0].best() / contest[1].best();
    c["base_ratio_median"] = contest[0].median() / contest[1].median();
    c["rounds"] = (double)contest[0].rates.size();
  }

 private:
  attn_isa isa_;
  problem p_{};
  attn_relu_params params_{};
  Floats gain_, gate_;
  std::vector<char> workspace_;
};

}  // namespace

void register_relu(const Selection &s) {
  struct Relu {
    const char *name;
    attn_relu_kind kind;
  };
  static const Relu kinds[] = {{"raw", ATTN_RELU_RAW},
                               {"var", ATTN_RELU_VAR},
                               {"gau", ATTN_RELU_GAU},
                               {"norm", ATTN_RELU_NORM},
                               {"rela", ATTN_RELU_RELA}};
  for (const Relu &r : kinds)
    for (int causal = 0; causal < 2; causal++) {
      if (!s.full && (causal || r.kind != ATTN_RELU_RAW)) continue;
      const attn_isa isa = s.isa;
      const attn_relu_kind kind = r.kind;
      problem_shape shape = {};
      shape.heads = 1;
      shape.tq = 2048;
      shape.dk = 64;
      shape.causal = causal;
      case_register(
          std::string("relu/f32/") + attn_isa_name(isa) + "/" + r.name +
              "/causal:" + std::to_string(causal) + "/T:2048/d:64/h:1",
          [=] { return std::make_unique<ReluCase>(isa, shape, kind); }, s.seconds());
    }
}
