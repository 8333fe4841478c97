/* bench/compose/multihead.cpp owns the entries of attention from model rows to model rows. */

#include "functions.h"

namespace {

/* From model rows to model rows; projections and attention count. */
void multihead(Call &c, int64_t len, const attn_rope_params *rope) {
  constexpr int64_t wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), none = {};
  attn_multihead_params p = {};
  p.heads = heads, p.rope = rope;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  c.flops = 8.0 * (double)(len * wide * wide) + 4.0 * (double)(len * len * wide);
  c.run = [=](attn_ctx *ctx) { return attn_multihead(y, x, none, none, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_multihead_workspace(y, x, none, none, &p, ctx); };
}

/* All gradients: twice forward's products, 2 (3 dk + 2 dv) flops a pair; what is made again does not count. */
void multihead_backward(Call &c, int64_t len) {
  constexpr int64_t wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), d_y = c.rows(1, len, wide), d_x = c.rows(1, len, wide);
  attn_tensor none = {};
  attn_multihead_params p = {};
  attn_multihead_gradients g = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  for (attn_tensor *w : {&g.d_w_q, &g.d_w_k, &g.d_w_v, &g.d_w_o}) *w = c.rows(1, wide, wide);
  c.flops = 16.0 * (double)(len * wide * wide) + 10.0 * (double)(len * len * wide);
  c.run = [=](attn_ctx *ctx) {
    return attn_multihead_backward(d_x, d_y, x, none, none, &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_multihead_backward_workspace(d_x, d_y, x, none, none, &p, &g, ctx);
  };
}

/* Queries and keys normed, and no more. */
const attn_qk_norm head_norm = {};
attn_rope_params normed() {
  attn_rope_params p = {};
  p.has_rotary_dim = 1, p.norm = &head_norm;
  return p;
}
const attn_rope_params norm_alone = normed();

const CallEntry entries[] = {
    {"multihead", "T:512/d:64/h:8", [](Call &c) { multihead(c, 512, nullptr); }},
    {"multihead", "T:2048/d:64/h:8", [](Call &c) { multihead(c, 2048, nullptr); }},
    {"multihead_backward", "T:512/d:64/h:8", [](Call &c) { multihead_backward(c, 512); }},
    {"multihead_backward", "T:2048/d:64/h:8", [](Call &c) { multihead_backward(c, 2048); }},
    {"multihead_qk_norm", "T:2048/d:64/h:8", [](Call &c) { multihead(c, 2048, &norm_alone); }},
};

}  // namespace

void register_multihead(const Selection &s) { register_calls(s, entries); }
