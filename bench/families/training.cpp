/* bench/families/training.cpp owns the entries of gradients. */

#include <memory>
#include <vector>

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

enum Terms { KEYS_VALUES, KEYS_QUERIES, XL, LABELS, FACTOR };

int64_t label_of(void *, int64_t, int64_t, int64_t i, int64_t j) { return (i ^ j) % 24; }

/* The same with terms that read rows of tables; learn: their gradients besides. Counted as without. */
void tables(Call &c, Terms kind, bool learn) {
  const int64_t len = 1024, dim = 64, heads = 8, clip = kind == KEYS_QUERIES ? 256 : 16;
  attn_tensor q = c.rows(heads, len, dim), k = c.rows(heads, len, dim);
  attn_tensor v = c.rows(heads, len, dim), o = c.rows(heads, len, dim);
  attn_tensor d_o = c.rows(heads, len, dim), lse = c.rows(heads, len, 1);
  attn_tensor d_q = c.rows(heads, len, dim), d_k = c.rows(heads, len, dim);
  attn_tensor d_v = c.rows(heads, len, dim);
  attn_sdpa_params p = {};
  attn_sdpa_gradients g = {};
  if (kind <= KEYS_QUERIES) {
    p.relative.keys = c.rows(1, 2 * clip + 1, dim),
    g.d_relative.keys = c.rows(1, 2 * clip + 1, dim);
    attn_tensor &other = kind == KEYS_VALUES ? p.relative.values : p.relative.queries;
    attn_tensor &d_other = kind == KEYS_VALUES ? g.d_relative.values : g.d_relative.queries;
    other = c.rows(1, 2 * clip + 1, dim), d_other = c.rows(1, 2 * clip + 1, dim);
  }
  if (kind == XL) {
    p.xl.table = c.rows(heads, 2 * len, dim), g.d_xl_table = c.rows(heads, 2 * len, dim);
    p.xl.first = -len, p.xl.u = c.numbers(heads * dim, 1), p.xl.v = c.numbers(heads * dim, 1);
    g.d_xl_u = c.numbers(heads * dim, 1), g.d_xl_v = c.numbers(heads * dim, 1);
  }
  if (kind == LABELS) {
    p.labels.label = label_of, p.labels.table = c.rows(1, 24, dim);
    g.d_label_table = c.rows(1, 24, dim);
  }
  if (kind == FACTOR) {
    p.factor.alpha = c.numbers(heads, 0.1f), p.factor.beta = c.numbers(heads, 1);
    g.d_alpha = c.numbers(heads, 1), g.d_beta = c.numbers(heads, 1);
  }
  p.lse = lse;
  attn_sdpa(o, q, k, v, &p, nullptr);
  if (!learn) g = {};
  c.flops = 2.0 * 5.0 * (double)(heads * dim) * (double)(len * len);
  c.run = [=](attn_ctx *ctx) {
    return attn_sdpa_backward(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_sdpa_backward_workspace(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, &g, ctx);
  };
}

/* All gradients over edges, so many a row wherever they are: 2 (3 dk + 2 dv) flops an edge. */
void edges(Call &c, int64_t len, int64_t degree) {
  const int64_t dim = 64, heads = 8;
  attn_tensor q = c.rows(heads, len, dim), k = c.rows(heads, len, dim);
  attn_tensor v = c.rows(heads, len, dim), o = c.rows(heads, len, dim);
  attn_tensor d_o = c.rows(heads, len, dim), lse = c.rows(heads, len, 1);
  attn_tensor d_q = c.rows(heads, len, dim), d_k = c.rows(heads, len, dim);
  attn_tensor d_v = c.rows(heads, len, dim);
  std::vector<int64_t> ptr;
  std::vector<int32_t> col;
  for (int64_t i = 0; i <= len; i++) ptr.push_back(i * degree);
  for (int64_t e = 0; e < len * degree; e++)
    col.push_back(static_cast<int32_t>((e / degree * 7919 + e % degree * 104729) % len));
  auto indptr = std::make_shared<std::vector<int64_t>>(std::move(ptr));
  auto keys = std::make_shared<std::vector<int32_t>>(std::move(col));
  attn_edges_params p = {};
  p.indptr = indptr->data(), p.col = keys->data(), p.edges = len * degree, p.lse = lse;
  attn_edges(o, q, k, v, &p, nullptr);
  c.flops = 2.0 * 5.0 * (double)(heads * dim) * (double)(len * degree);
  c.run = [=, hold = indptr, more = keys](attn_ctx *ctx) {
    return attn_edges_backward(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_edges_backward_workspace(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, nullptr, ctx);
  };
}

/* Gradients of rectified attention, counted as those of attn_sdpa. */
void rectified(Call &c, int64_t len, int64_t dim, int64_t heads, attn_relu_kind kind) {
  attn_tensor q = c.rows(heads, len, dim), k = c.rows(heads, len, dim);
  attn_tensor v = c.rows(heads, len, dim), d_o = c.rows(heads, len, dim);
  attn_tensor d_q = c.rows(heads, len, dim), d_k = c.rows(heads, len, dim);
  attn_tensor d_v = c.rows(heads, len, dim), learned = c.rows(2, heads, dim);
  attn_relu_params p = {};
  p.kind = kind;
  p.gain = static_cast<float *>(learned.data), p.gate = p.gain + heads * dim;
  c.flops = 2.0 * 5.0 * (double)(heads * dim) * (double)(len * len);
  c.run = [=](attn_ctx *ctx) {
    return attn_relu_backward(d_q, d_k, d_v, d_o, q, k, v, &p, nullptr, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_relu_backward_workspace(d_q, d_k, d_v, d_o, q, k, v, &p, nullptr, ctx);
  };
}

/* 15 products an iteration. */
void pinv(Call &c, int64_t m) {
  const int64_t heads = 8;
  attn_tensor a = c.rows(heads, m, m), d_z = c.rows(heads, m, m), d_a = c.rows(heads, m, m);
  c.flops = 30.0 * 6.0 * (double)(heads * m * m * m);
  c.run = [=](attn_ctx *ctx) { return attn_pinv_backward(d_a, d_z, a, 6, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_pinv_backward_workspace(d_a, d_z, a, 6, ctx); };
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
    {"relu_backward", "T:1024/d:64/h:8/raw",
     [](Call &c) { rectified(c, 1024, 64, 8, ATTN_RELU_RAW); }},
    {"relu_backward", "T:1024/d:64/h:8/length",
     [](Call &c) { rectified(c, 1024, 64, 8, ATTN_RELU_LEN); }},
    {"relu_backward", "T:1024/d:64/h:8/squared",
     [](Call &c) { rectified(c, 1024, 64, 8, ATTN_RELU_GAU); }},
    {"relu_backward", "T:1024/d:64/h:8/normalised",
     [](Call &c) { rectified(c, 1024, 64, 8, ATTN_RELU_NORM); }},
    {"relu_backward", "T:1024/d:64/h:8/gated",
     [](Call &c) { rectified(c, 1024, 64, 8, ATTN_RELU_RELA); }},
    {"pinv_backward", "m:64/h:8", [](Call &c) { pinv(c, 64); }},
    {"edges_backward", "T:4096/d:64/h:8/degree:64", [](Call &c) { edges(c, 4096, 64); }},
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
    {"sdpa_backward", "T:1024/d:64/h:8", [](Call &c) { backward(c, 1024, 64, 8, 8, 0, 0); }},
    {"sdpa_backward", "T:1024/relative:16", [](Call &c) { tables(c, KEYS_VALUES, false); }},
    {"sdpa_backward", "T:1024/relative:16/learn", [](Call &c) { tables(c, KEYS_VALUES, true); }},
    {"sdpa_backward", "T:1024/deberta:256", [](Call &c) { tables(c, KEYS_QUERIES, false); }},
    {"sdpa_backward", "T:1024/deberta:256/learn", [](Call &c) { tables(c, KEYS_QUERIES, true); }},
    {"sdpa_backward", "T:1024/xl", [](Call &c) { tables(c, XL, false); }},
    {"sdpa_backward", "T:1024/xl/learn", [](Call &c) { tables(c, XL, true); }},
    {"sdpa_backward", "T:1024/labels:24", [](Call &c) { tables(c, LABELS, false); }},
    {"sdpa_backward", "T:1024/labels:24/learn", [](Call &c) { tables(c, LABELS, true); }},
    {"sdpa_backward", "T:1024/factor/learn", [](Call &c) { tables(c, FACTOR, true); }},
    {"sdpa_backward", "T:2048/d:64/h:8/alibi", [](Call &c) { backward(c, 2048, 64, 8, 8, 0, 1); }},
};

}  // namespace

void register_training(const Selection &s) { register_calls(s, entries); }
