/* bench/compose/multihead.cpp owns the entries of attention from model rows to model rows. */

#include "functions.h"

namespace {

/* From model rows to model rows; projections and attention count. */
void multihead(Call &c, int64_t len) {
  constexpr int64_t wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), none = {};
  attn_multihead_params p = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  c.flops = 8.0 * (double)(len * wide * wide) + 4.0 * (double)(len * len * wide);
  c.run = [=](attn_ctx *ctx) { return attn_multihead(y, x, none, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_multihead_workspace(y, x, none, none, &p, ctx); };
}

const CallEntry entries[] = {
    {"multihead", "T:512/d:64/h:8", [](Call &c) { multihead(c, 512); }},
    {"multihead", "T:2048/d:64/h:8", [](Call &c) { multihead(c, 2048); }},
};

}  // namespace

void register_multihead(const Selection &s) { register_calls(s, entries); }
