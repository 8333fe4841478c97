/* mixer_cases.cpp owns the entries of blocks that mix tokens by learned matrices. */

#include "functions.h"

namespace {

attn_tensor entries_of(Call &c, int64_t batch, int64_t len, int64_t dim) {
  return attn_bhtd(c.numbers(batch * len * dim, 1), ATTN_F32, batch, 1, len, dim);
}

/* Multiply-adds of all products; of a causal one those up to the diagonal. */
void gmlp(Call &c, int64_t batch, bool causal, int64_t tiny) {
  constexpr int64_t len = 512, dm = 512, e = 1536;
  attn_tensor x = entries_of(c, batch, len, dm), o = entries_of(c, batch, len, dm);
  attn_gmlp_params p = {};
  p.w_1 = c.rows(1, dm, 2 * e, 0.04f);
  p.w_2 = c.rows(1, e, dm, 0.03f);
  p.w_s = c.rows(1, len, len, 0.01f);
  p.b_s = c.rows(1, 1, len);
  p.causal = causal;
  double pairs = (double)(causal ? len * (len + 1) / 2 : len * len);
  c.flops = 6.0 * (double)(len * dm * e) + 2.0 * pairs * (double)e;
  if (tiny) {
    p.w_qkv = c.rows(1, dm, 3 * tiny, 0.04f);
    p.w_o = c.rows(1, tiny, e, 0.1f);
    c.flops += (double)(len * tiny) * (6.0 * (double)dm + 2.0 * (double)e);
    c.flops += 4.0 * pairs * (double)tiny;
  }
  c.flops *= (double)batch;
  c.run = [=](attn_ctx *ctx) { return attn_gmlp(o, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gmlp_workspace(o, x, &p, ctx); };
}

void mixer(Call &c, int64_t batch, attn_activation activation) {
  constexpr int64_t len = 256, dm = 512, ds = 256, dc = 2048;
  attn_tensor x = entries_of(c, batch, len, dm), o = entries_of(c, batch, len, dm);
  attn_mixer_params p = {};
  p.token.w_1 = c.rows(1, len, ds, 0.06f);
  p.token.w_2 = c.rows(1, ds, len, 0.06f);
  p.channel.w_1 = c.rows(1, dm, dc, 0.04f);
  p.channel.w_2 = c.rows(1, dc, dm, 0.02f);
  p.token.activation = p.channel.activation = activation;
  c.flops = 4.0 * (double)(batch * len * dm * (ds + dc));
  c.run = [=](attn_ctx *ctx) { return attn_mixer(o, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_mixer_workspace(o, x, &p, ctx); };
}

const CallEntry entries[] = {
    {"gmlp", "T:512/dm:512/e:1536", [](Call &c) { gmlp(c, 1, false, 0); }},
    {"gmlp", "T:512/dm:512/e:1536/batch:4", [](Call &c) { gmlp(c, 4, false, 0); }},
    {"gmlp", "T:512/dm:512/e:1536/batch:4/causal", [](Call &c) { gmlp(c, 4, true, 0); }},
    {"gmlp", "T:512/dm:512/e:1536/batch:4/tiny:64", [](Call &c) { gmlp(c, 4, false, 64); }},
    {"mixer", "T:256/dm:512/ds:256/dc:2048", [](Call &c) { mixer(c, 1, ATTN_ACT_NONE); }},
    {"mixer", "T:256/dm:512/ds:256/dc:2048/batch:8", [](Call &c) { mixer(c, 8, ATTN_ACT_NONE); }},
    {"mixer", "T:256/dm:512/ds:256/dc:2048/batch:8/tanh",
     [](Call &c) { mixer(c, 8, ATTN_ACT_GELU_TANH); }},
};

}  // namespace

void register_mixer_calls(const Selection &sel) { register_calls(sel, entries); }
