/* bench/families/memory.cpp owns the entries of layers behind a memory, with gates too, and of
 * memories that are searched. */

#include "functions.h"

namespace {

/* A ring that is full and has come round. */
attn_memory ring(Call &c, int64_t room, int64_t dim) {
  attn_memory m = {};
  if (room) m.rows = c.rows(1, room, dim);
  m.len = room;
  m.first = room / 3;
  return m;
}

/* The layer of Transformer-XL behind a memory, or behind two; its time follows the multiply-adds of
 * the pairs and of the projections. */
void segment_layer(Call &c, int64_t memory, int64_t compressed, bool relative, bool usage) {
  constexpr int64_t len = 512, wide = 512, heads = 8;
  int64_t past = memory + compressed;
  attn_tensor h = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_segment_layer_params p = {};
  p.heads = heads;
  p.memory = ring(c, memory, wide);
  p.compressed = ring(c, compressed, wide);
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  if (relative) {
    p.w_r = c.rows(1, wide, wide, 0.04f);
    p.attention.u = c.numbers(wide, 0.1f);
    p.attention.v = c.numbers(wide, 0.1f);
  }
  if (usage) p.attention.usage = c.rows(1, 1, memory + len);
  double pairs = (double)(heads * len) * ((double)past + (double)(len + 1) / 2);
  double rows = (double)(2 * len + 2 * (past + len) + (relative ? past + len : 0));
  c.flops = 2.0 * (double)(wide * wide) * rows + (relative ? 6.0 : 4.0) * pairs * (double)kDim +
            (usage ? 2.0 * pairs * (double)kDim : 0);
  c.run = [=](attn_ctx *ctx) { return attn_segment_layer(o, h, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_segment_layer_workspace(o, h, &p, ctx); };
}

/* Bytes of the segment, read and written: nothing of the memory moves. */
void memory_append(Call &c, int64_t room) {
  constexpr int64_t len = 512, wide = 512;
  attn_tensor h = c.rows(1, len, wide);
  auto m = std::make_shared<attn_memory>(ring(c, room, wide));
  c.bytes = 8.0 * (double)(len * wide);
  c.run = [=](attn_ctx *ctx) { return attn_memory_append(m.get(), h, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_memory_append_workspace(m.get(), h, ctx); };
}

void compressive_update(Call &c, attn_compress_kind kind) {
  constexpr int64_t len = 512, wide = 512, rate = 4;
  attn_tensor h = c.rows(1, len, wide);
  auto m = std::make_shared<attn_memory>(ring(c, len, wide));
  auto old = std::make_shared<attn_memory>(ring(c, len, wide));
  m->rows = c.rows(1, len + rate - 1, wide);
  attn_compressive_params p = {};
  p.length = len;
  p.compress.kind = kind;
  p.compress.rate = rate;
  if (kind == ATTN_COMPRESS_CONV) {
    p.compress.w = c.rows(rate, wide, wide, 0.02f);
    c.flops = 2.0 * (double)(len * wide * wide);
  } else {
    c.bytes = 4.0 * (double)(len * wide) * (3.0 + 1.0 / (double)rate);
  }
  if (kind == ATTN_COMPRESS_MOST_USED) p.compress.usage = c.rows(1, 1, 2 * len);
  c.run = [=](attn_ctx *ctx) { return attn_compressive_update(m.get(), old.get(), h, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_compressive_update_workspace(m.get(), old.get(), h, &p, ctx);
  };
}

/* A second pass over the scores. */
void usage(Call &c) {
  constexpr int64_t len = 1024, keys = 4096, heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, keys, kDim), y = c.rows(1, 1, keys);
  attn_sdpa_params p = {};
  p.causal = 1;
  p.lse = c.rows(heads, len, 1);
  for (int64_t i = 0; i < heads * len; i++) ((float *)p.lse.data)[i] = 8.5f;
  c.flops = 2.0 * (double)(heads * len * kDim) * (double)(keys - len + (len + 1) / 2);
  c.run = [=](attn_ctx *ctx) { return attn_usage(y, q, k, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_usage_workspace(y, q, k, &p, ctx); };
}

void attention_loss(Call &c) {
  constexpr int64_t len = 512, wide = 512, heads = 8, made = len / 4;
  attn_tensor h = c.rows(1, len, wide), old = c.rows(1, len, wide), few = c.rows(1, made, wide);
  float *norm = c.numbers(1, 1), *mean = c.numbers(1, 1);
  attn_attention_loss_params p = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v}) *w = c.rows(1, wide, wide, 0.04f);
  c.flops = 2.0 * (double)(wide * wide) * (double)(len + 2 * (len + made)) +
            4.0 * (double)(heads * len * kDim) * (double)(len + made);
  c.run = [=](attn_ctx *ctx) { return attn_attention_loss(norm, mean, h, old, few, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_attention_loss_workspace(norm, mean, h, old, few, &p, ctx);
  };
}

/* A segment behind a memory that it renews; all multiply-adds of the layer count. */
void recursive(Call &c, attn_recursive_rule rule) {
  constexpr int64_t len = 512, rows = 128, wide = 512, heads = 8;
  attn_tensor x = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_tensor memory = c.rows(1, rows, wide), next = c.rows(1, rows, wide);
  attn_recursive_params p = {};
  p.heads = heads;
  p.rule = rule;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, wide, wide, 0.04f);
  double again = rule == ATTN_RECURSIVE_ATTEND ? (double)rows : 0;
  double pairs =
      (double)len * ((double)rows + (double)(len + 1) / 2) + again * (double)(rows + len);
  c.flops = 4.0 * (double)(wide * wide) * ((double)(2 * len + rows) + again) +
            4.0 * (double)heads * pairs * (double)kDim;
  c.run = [=](attn_ctx *ctx) { return attn_recursive(o, next, x, memory, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_recursive_workspace(o, next, x, memory, &p, ctx);
  };
}

/* --- Gates in place of residual sums. */

attn_gtrxl_gate_params gate_weights(Call &c, attn_gtrxl_kind kind, int64_t wide) {
  attn_gtrxl_gate_params p = {};
  p.kind = kind;
  for (attn_tensor *w : {&p.w_r, &p.u_r, &p.w_z, &p.u_z, &p.w_g, &p.u_g})
    *w = c.rows(1, wide, wide, 1 / sqrtf((float)wide));
  return p;
}

/* The multiply-adds of so many products of dm by dm. */
void gtrxl_gate(Call &c, attn_gtrxl_kind kind, int64_t len, int64_t wide, int products) {
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_gtrxl_gate_params p = gate_weights(c, kind, wide);
  c.flops = 2.0 * products * (double)(len * wide * wide);
  c.run = [=](attn_ctx *ctx) { return attn_gtrxl_gate(o, x, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gtrxl_gate_workspace(o, x, y, &p, ctx); };
}

/* A segment behind as long a memory, with relative positions. */
void gtrxl(Call &c) {
  constexpr int64_t len = 512, wide = 512, heads = 8;
  attn_tensor h = c.rows(1, len, wide), o = c.rows(1, len, wide);
  attn_gtrxl_params p = {};
  attn_segment_layer_params &a = p.attention;
  a.heads = heads;
  a.memory.rows = c.rows(1, len, wide);
  a.memory.len = len;
  for (attn_tensor *w : {&a.w_q, &a.w_k, &a.w_v, &a.w_o, &a.w_r}) *w = c.rows(1, wide, wide, 0.04f);
  a.attention.u = c.numbers(wide, 0.1f);
  a.attention.v = c.numbers(wide, 0.1f);
  p.gate_1 = gate_weights(c, ATTN_GTRXL_GRU, wide);
  p.gate_2 = gate_weights(c, ATTN_GTRXL_GRU, wide);
  p.ff.w_1 = c.rows(1, wide, 4 * wide, 0.04f);
  p.ff.w_2 = c.rows(1, 4 * wide, wide, 0.02f);
  const double pairs = (double)(heads * len) * ((double)len + (double)(len + 1) / 2);
  /* rows times weights: q, o; k, v, r of twice the rows; gates; feed-forward */
  c.flops = 2.0 * (2 + 6 + 12 + 8) * (double)(len * wide * wide) + 6.0 * pairs * (double)kDim;
  c.run = [=](attn_ctx *ctx) { return attn_gtrxl(o, h, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gtrxl_workspace(o, h, &p, ctx); };
}

/* --- Memories that are searched: the multiply-adds of comparing all pairs. */

void knn_search(Call &c, int64_t k, attn_knn_metric metric) {
  constexpr int64_t n = 64, store = 65536;
  attn_tensor q = c.rows(1, n, kDim), keys = c.rows(1, store, kDim);
  int32_t *index = c.steps(n * k, 0);
  float *distance = c.numbers(n * k, 1);
  attn_knn_params p = {};
  p.k = k;
  p.metric = metric;
  c.flops = 2.0 * (double)(n * store * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_knn_search(index, distance, q, keys, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_knn_search_workspace(index, distance, q, keys, &p, ctx);
  };
}

/* The paper's 1024 neighbours. */
void knn_lm(Call &c) {
  constexpr int64_t n = 64, store = 65536, words = 32000;
  attn_tensor q = c.rows(1, n, kDim), keys = c.rows(1, store, kDim), log_lm = c.rows(1, n, words),
              log_p = c.rows(1, n, words);
  int32_t *values = c.steps(store, 0);
  for (int64_t j = 0; j < store; j++) values[j] = (int32_t)(j * 7919 % words);
  attn_knn_lm_params p = {};
  c.flops = 2.0 * (double)(n * store * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_knn_lm(log_p, log_lm, q, keys, values, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_knn_lm_workspace(log_p, log_lm, q, keys, values, &p, ctx);
  };
}

void spalm(Call &c) {
  constexpr int64_t n = 512, k = 4, words = 4096, width = 512;
  attn_tensor h = c.rows(1, n, width), z = c.rows(1, n, width), y = c.rows(n, k, width, 0.1f);
  attn_spalm_params p = {};
  p.emb = c.rows(1, words, width, 0.1f);
  p.log_p = c.rows(1, n, words);
  c.flops = (double)(n * width) * (4.0 * k + 2.0 * words);
  c.run = [=](attn_ctx *ctx) { return attn_spalm(z, h, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_spalm_workspace(z, h, y, &p, ctx); };
}

/* A full memory, whose every call makes room for the segment. */
void memorizing(Call &c) {
  constexpr int64_t len = 512, heads = 2, size = 32768, topk = 32;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim),
              v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  auto memory = std::make_shared<attn_kv_memory>();
  memory->k = c.rows(heads, size, kDim, 0.125f);
  memory->v = c.rows(heads, size, kDim);
  memory->len = size;
  attn_memorizing_params p = {};
  double local = (double)(len * (len + 1) / 2);
  c.flops = (double)heads * kDim * (2.0 * (double)(len * (size + topk)) + 4.0 * local);
  c.run = [=](attn_ctx *ctx) { return attn_memorizing(o, q, k, v, memory.get(), &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_memorizing_workspace(o, q, k, v, memory.get(), &p, ctx);
  };
}

/* Segments of L behind an empty memory; the multiply-adds of pairs and of the memory count. */
void infini(Call &c, int64_t len, int64_t segment, bool delta) {
  constexpr int64_t heads = 8;
  attn_tensor q = c.rows(heads, len, kDim), k = c.rows(heads, len, kDim);
  attn_tensor v = c.rows(heads, len, kDim), o = c.rows(heads, len, kDim);
  attn_infini_params p = {};
  p.segment = segment;
  p.delta = delta;
  const double pairs = (double)(heads * len) * (double)(segment + 1) / 2;
  c.flops = 4.0 * pairs * (double)kDim +
            (delta ? 6.0 : 4.0) * (double)(heads * len) * (double)(kDim * kDim);
  c.run = [=](attn_ctx *ctx) { return attn_infini(o, q, k, v, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_infini_workspace(o, q, k, v, &p, ctx); };
}

const CallEntry entries[] = {
    {"segment_layer", "T:512/mem:0/d:64/h:8",
     [](Call &c) { segment_layer(c, 0, 0, false, false); }},
    {"segment_layer", "T:512/mem:512/d:64/h:8",
     [](Call &c) { segment_layer(c, 512, 0, false, false); }},
    {"segment_layer", "T:512/mem:2048/d:64/h:8",
     [](Call &c) { segment_layer(c, 2048, 0, false, false); }},
    {"segment_layer", "T:512/mem:512/d:64/h:8/xl",
     [](Call &c) { segment_layer(c, 512, 0, true, false); }},
    {"segment_layer", "T:512/mem:512/compressed:512/d:64/h:8/xl/usage",
     [](Call &c) { segment_layer(c, 512, 512, true, true); }},
    {"memory_append", "T:512/mem:512/d:512", [](Call &c) { memory_append(c, 512); }},
    {"memory_append", "T:512/mem:16384/d:512", [](Call &c) { memory_append(c, 16384); }},
    {"compressive_update", "conv:4/T:512/d:512",
     [](Call &c) { compressive_update(c, ATTN_COMPRESS_CONV); }},
    {"compressive_update", "mean:4/T:512/d:512",
     [](Call &c) { compressive_update(c, ATTN_COMPRESS_MEAN); }},
    {"compressive_update", "most_used:4/T:512/d:512",
     [](Call &c) { compressive_update(c, ATTN_COMPRESS_MOST_USED); }},
    {"usage", "T:1024/Tk:4096/d:64/h:8", usage},
    {"attention_loss", "T:512/d:64/h:8", attention_loss},
    {"recursive", "T:512/mem:128/d:64/h:8", [](Call &c) { recursive(c, ATTN_RECURSIVE_EMA); }},
    {"recursive", "T:512/mem:128/d:64/h:8/rule:attend",
     [](Call &c) { recursive(c, ATTN_RECURSIVE_ATTEND); }},
    {"gtrxl_gate", "gru/T:2048/d:512",
     [](Call &c) { gtrxl_gate(c, ATTN_GTRXL_GRU, 2048, 512, 6); }},
    {"gtrxl_gate", "gru/T:8192/d:64", [](Call &c) { gtrxl_gate(c, ATTN_GTRXL_GRU, 8192, 64, 6); }},
    {"gtrxl_gate", "gru/T:1/d:512", [](Call &c) { gtrxl_gate(c, ATTN_GTRXL_GRU, 1, 512, 6); }},
    {"gtrxl_gate", "highway/T:2048/d:512",
     [](Call &c) { gtrxl_gate(c, ATTN_GTRXL_HIGHWAY, 2048, 512, 1); }},
    {"gtrxl", "T:512/mem:512/d:64/h:8/xl", gtrxl},
    {"knn_search", "n:64/N:65536/d:64/k:32", [](Call &c) { knn_search(c, 32, ATTN_KNN_SQ_L2); }},
    {"knn_search", "n:64/N:65536/d:64/k:32/ip", [](Call &c) { knn_search(c, 32, ATTN_KNN_IP); }},
    {"knn_search", "n:64/N:65536/d:64/k:1024",
     [](Call &c) { knn_search(c, 1024, ATTN_KNN_SQ_L2); }},
    {"knn_lm", "n:64/N:65536/d:64/k:1024/V:32000", knn_lm},
    {"spalm", "n:512/k:4/d:512/V:4096", spalm},
    {"memorizing", "T:512/size:32768/k:32/d:64/h:2", memorizing},
    {"infini", "T:4096/L:512/h:8", [](Call &c) { infini(c, 4096, 512, false); }},
    {"infini", "T:4096/L:512/h:8/delta", [](Call &c) { infini(c, 4096, 512, true); }},
};

}  // namespace

void register_memory(const Selection &s) { register_calls(s, entries); }
