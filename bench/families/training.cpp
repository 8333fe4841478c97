/* bench/families/training.cpp owns the entries of gradients. */

#include "functions.h"

namespace {

/* All gradients of attention: 2 (3 dk + 2 dv) flops a pair. */
void backward(Call &c, int64_t len, int64_t dim, int64_t heads, int64_t kv_heads, int causal,
              int alibi, double dropped = 0) {
  attn_tensor q = c.rows(heads, len, dim), k = c.rows(kv_heads, len, dim);
  attn_tensor v = c.rows(kv_heads, len, dim), o = c.rows(heads, len, dim);
  attn_tensor d_o = c.rows(heads, len, dim), lse = c.rows(heads, len, 1);
  attn_tensor d_q = c.rows(heads, len, dim), d_k = c.rows(kv_heads, len, dim);
  attn_tensor d_v = c.rows(kv_heads, len, dim);
  attn_sdpa_params p = {};
  p.causal = causal;
  if (alibi) p.alibi = c.numbers(heads, 0.05f);
  p.lse = lse, p.dropout.p = dropped;
  attn_sdpa(o, q, k, v, &p, nullptr);
  const double n = (double)len, pairs = causal ? n * (n + 1) / 2 : n * n;
  c.flops = 2.0 * 5.0 * (double)(heads * dim) * pairs;
  c.run = [=](attn_ctx *ctx) {
    return attn_sdpa_backward(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_sdpa_backward_workspace(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, nullptr, ctx);
  };
}

/* Forward with dropout: 2 (dk + dv) flops a pair, as without. */
void dropped(Call &c, int64_t len, int64_t dim, int64_t heads) {
  attn_tensor q = c.rows(heads, len, dim), k = c.rows(heads, len, dim);
  attn_tensor v = c.rows(heads, len, dim), o = c.rows(heads, len, dim);
  attn_sdpa_params p = {};
  p.dropout.p = 0.1;
  c.flops = 4.0 * (double)(heads * dim) * (double)(len * len);
  c.run = [=](attn_ctx *ctx) { return attn_sdpa(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_sdpa_workspace(o, q, k, v, &p, ctx); };
}

const CallEntry entries[] = {
    {"sdpa", "T:2048/d:64/h:8/dropout", [](Call &c) { dropped(c, 2048, 64, 8); }},
    {"sdpa", "T:2048/d:128/h:8/dropout", [](Call &c) { dropped(c, 2048, 128, 8); }},
    {"sdpa_backward", "T:2048/d:64/h:8/dropout",
     [](Call &c) { backward(c, 2048, 64, 8, 8, 0, 0, 0.1); }},
    {"sdpa_backward", "T:128/d:64/h:8", [](Call &c) { backward(c, 128, 64, 8, 8, 0, 0); }},
    {"sdpa_backward", "T:512/d:64/h:8", [](Call &c) { backward(c, 512, 64, 8, 8, 0, 0); }},
    {"sdpa_backward", "T:512/d:128/h:8", [](Call &c) { backward(c, 512, 128, 8, 8, 0, 0); }},
    {"sdpa_backward", "T:2048/d:64/h:8", [](Call &c) { backward(c, 2048, 64, 8, 8, 0, 0); }},
    {"sdpa_backward", "T:2048/d:128/h:8", [](Call &c) { backward(c, 2048, 128, 8, 8, 0, 0); }},
    {"sdpa_backward", "T:8192/d:64/h:2", [](Call &c) { backward(c, 8192, 64, 2, 2, 0, 0); }},
    {"sdpa_backward", "T:512/d:64/h:8/causal", [](Call &c) { backward(c, 512, 64, 8, 8, 1, 0); }},
    {"sdpa_backward", "T:2048/d:64/h:8/causal", [](Call &c) { backward(c, 2048, 64, 8, 8, 1, 0); }},
    {"sdpa_backward", "T:2048/d:64/h:32/hk:8/causal",
     [](Call &c) { backward(c, 2048, 64, 32, 8, 1, 0); }},
    {"sdpa_backward", "T:2048/d:64/h:8/alibi", [](Call &c) { backward(c, 2048, 64, 8, 8, 0, 1); }},
};

}  // namespace

void register_training(const Selection &s) { register_calls(s, entries); }
