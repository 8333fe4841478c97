/* bench/calls/edges.cpp owns the entries of attention over lists of edges. */

#include "pattern_case.h"

namespace {

class EdgesCase : public PatternCase {
 public:
  EdgesCase(attn_isa isa, const PatternSpec &spec) : PatternCase(isa, spec) {
    if (!failure.empty()) return;
    problem &p = head_.p;
    params_.indptr = head_.data.indptr.data();
    params_.col = head_.data.lists[0].data();
    params_.edges = head_.data.indptr.back();
    workspace_.resize(attn_edges_workspace(p.o, p.q, p.k, p.v, &params_, &ctx_) + 1);
    verify();
  }

 private:
  attn_status attend(attn_ctx *ctx) override {
    const problem &p = head_.p;
    ctx->isa = isa_;
    ctx->workspace = workspace_.data();
    ctx->workspace_size = workspace_.size();
    return attn_edges(p.o, p.q, p.k, p.v, &params_, ctx);
  }

  attn_edges_params params_{};
  std::vector<char> workspace_;
};

}  // namespace

void register_edges(const Selection &s) {
  const attn_isa isa = s.isa;
  for (const PatternSpec &spec : scattered_list())
    if (s.full || spec.brief)
      case_register(
          std::string("edges/f32/") + attn_isa_name(isa) + "/" + spec.label(),
          [=] { return std::make_unique<EdgesCase>(isa, spec); }, s.seconds());
}
