/* bench/calls/position.cpp owns the entries of position encodings: bytes of x and y. */

#include "functions.h"
#include "kinds.h"

namespace {

/* The families: what a call of each prepares, and what its rows cost. */
struct RopeKind {
  const char *name;
  void (*set)(attn_rope_params &);
};

const attn_qk_norm head_norm = {};

const RopeKind rope_kinds[] = {
    {"", [](attn_rope_params &) {}},
    {"llama3",
     [](attn_rope_params &p) {
       p.type = ATTN_ROPE_LLAMA3, p.base = 500000, p.factor = 8, p.low_freq_factor = 1,
       p.high_freq_factor = 4, p.original_max_position_embeddings = 8192, p.layout = ATTN_ROPE_HALF;
     }},
    {"yarn",
     [](attn_rope_params &p) {
       p.type = ATTN_ROPE_YARN, p.factor = 40, p.mscale = p.mscale_all_dim = 1,
       p.original_max_position_embeddings = 4096;
     }},
    {"mrope",
     [](attn_rope_params &p) {
       p.mrope_section[0] = 8, p.mrope_section[1] = p.mrope_section[2] = 12,
       p.layout = ATTN_ROPE_HALF;
     }},
    {"mrope_interleaved",
     [](attn_rope_params &p) {
       p.mrope_section[0] = 12, p.mrope_section[1] = p.mrope_section[2] = 10,
       p.mrope_interleaved = 1, p.layout = ATTN_ROPE_HALF;
     }},
    {"xpos", [](attn_rope_params &p) { p.xpos = 512; }},
    {"qk_norm", [](attn_rope_params &p) { p.norm = &head_norm; }},
};

class RopeCase : public PassCase {
 public:
  RopeCase(attn_isa isa, int64_t len, int64_t dim, const RopeKind &kind)
      : PassCase(isa), x_(random_floats((size_t)(kHeads * len * dim), -1, 1)), y_(x_.size()) {
    attn_tensor x = attn_bhtd(x_.data(), ATTN_F32, 1, kHeads, len, dim);
    attn_tensor y = attn_bhtd(y_.data(), ATTN_F32, 1, kHeads, len, dim);
    kind.set(p_);
    workspace_.resize(attn_rope_workspace(y, x, &p_, &ctx_) + 1);
    ctx_.workspace = workspace_.data();
    ctx_.workspace_size = workspace_.size();
    pass(8.0 * (double)x_.size(), [=] { return attn_rope(y, x, &p_, &ctx_); });
  }

 private:
  static constexpr int64_t kHeads = 8;
  Floats x_, y_;
  attn_rope_params p_ = {};
  std::vector<char> workspace_;
};

/* Angles that are given. */
void rope_tables(Call &c, int64_t len) {
  attn_tensor x = c.rows(8, len, 64), y = c.rows(8, len, 64);
  attn_rope_params p = {};
  p.cos = c.rows(1, len, 32), p.sin = c.rows(1, len, 32);
  c.bytes = 8.0 * (double)(8 * len * 64);
  c.run = [=](attn_ctx *ctx) { return attn_rope(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_rope_workspace(y, x, &p, ctx); };
}

void sinusoid(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512);
  attn_sinusoid_params p = {};
  c.bytes = 8.0 * (double)(len * 512);
  c.run = [=](attn_ctx *ctx) { return attn_sinusoid(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sinusoid_workspace(y, x, &p, ctx); };
}

void universal_signal(Call &c, int64_t len) {
  attn_tensor x = c.rows(1, len, 512), y = c.rows(1, len, 512);
  attn_universal_signal_params p = {};
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

const CallEntry entries[] = {
    {"sinusoid", "T:512/d:512", [](Call &c) { sinusoid(c, 512); }},
    {"sinusoid", "T:16384/d:512", [](Call &c) { sinusoid(c, 16384); }},
    {"universal_signal", "T:512/d:512", [](Call &c) { universal_signal(c, 512); }},
    {"learned_position", "T:512/d:512", [](Call &c) { learned_position(c, 512); }},
    {"rope_tables", "T:512/d:64/h:8", [](Call &c) { rope_tables(c, 512); }},
};

}  // namespace

void register_position(const Selection &s) {
  const attn_isa isa = s.isa;
  if (!s.sparse)
    for (const RopeKind &kind : rope_kinds)
      for (int64_t len : {512, 16384}) {
        if (*kind.name && len != 512) continue;
        case_register(std::string("rope/") + (*kind.name ? kind.name : "f32") + "/" +
                          attn_isa_name(isa) + "/T:" + std::to_string(len) + "/d:64/h:8",
                      [=] { return std::make_unique<RopeCase>(isa, len, 64, kind); });
      }
  register_calls(s, entries);
}
