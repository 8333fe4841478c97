/* bench/calls/relu.cpp owns the entries of attention with ReLU in place of softmax. One head. */

#include "beside.h"

namespace {

/* attn_relu, in turn with softmax over the same shape. */
class ReluCase : public BesideCase {
 public:
  ReluCase(attn_isa isa, const problem_shape &shape, attn_relu_kind kind) : BesideCase(isa, shape) {
    if (!failure.empty()) return;
    params_.kind = kind;
    params_.attention = p_.params;
    size_t heads = (size_t)(shape.heads * shape.dk);
    if (kind == ATTN_RELU_RELA) {
      gain_.assign(heads, 1);
      gate_.assign(heads, 1);
      params_.gain = gain_.data();
      params_.gate = gate_.data();
    }
    against(attn_relu, attn_relu_workspace, &params_);
  }

 private:
  attn_relu_params params_{};
  Floats gain_, gate_;
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
