/* bench/families/latent.cpp owns the entries of layers whose cache holds latent rows. */

#include "functions.h"

namespace {

/* A prompt of len tokens behind `past` of them; multiply-adds of the form that runs count. len 1 is decoding: the
 * sequence goes back afterwards. */
void mla(Call &c, int64_t heads, int64_t past, int64_t len, attn_mla_form form, int64_t wide) {
  constexpr int64_t dc = 512, dr = 64, dn = 128, dv = 128, page = 128;
  struct Held {
    attn_cache cache;
    attn_sequence sequence;
    std::vector<int32_t> table;
  };
  const int64_t pages = (past + len) / page + 1;
  auto held = std::make_shared<Held>();
  held->table.resize((size_t)pages);
  attn_cache_params of = {};
  of.k_heads = 1;
  of.dk = dc + dr;
  of.dv = dc;
  of.latent = 1;
  of.pages = pages;
  of.page = page;
  const size_t size = attn_cache_size(&of);
  attn_cache_open(&held->cache, c.numbers((int64_t)(size / 4), 1), size, &of, nullptr);
  attn_sequence_init(&held->sequence, held->table.data(), pages, nullptr);
  attn_tensor x = c.rows(1, len, wide), y = c.rows(1, len, wide), none = {};
  if (past)
    attn_cache_append(&held->cache, &held->sequence, 1, c.rows(1, past, dc + dr), none, nullptr,
                      nullptr);
  attn_mla_params p = {};
  p.heads = heads;
  p.rope_dim = dr;
  p.w_uq = c.rows(1, wide, heads * (dn + dr), 0.03f);
  p.w_dkv = c.rows(1, wide, dc + dr, 0.03f);
  p.w_ukv = c.rows(1, dc, heads * (dn + dv), 0.03f);
  p.w_o = c.rows(1, heads * dv, wide, 0.03f);
  p.form = form;
  p.cache = &held->cache;
  p.held = &held->sequence;
  const double all = (double)(past + len), rows = (double)len;
  const double pairs = (double)heads * rows * (all - (rows - 1) / 2);
  c.flops = 2.0 * rows * (double)(wide * (heads * (dn + dr + dv) + dc + dr));
  if (form == ATTN_MLA_EXPANDED)
    c.flops += 2.0 * pairs * (double)(dn + dr + dv) + 2.0 * all * (double)(heads * dc * (dn + dv));
  else
    c.flops += 2.0 * pairs * (double)(2 * dc + dr) + 2.0 * rows * (double)(heads * dc * (dn + dv));
  if (len == 1) c.bytes = 4.0 * all * (double)(dc + dr);
  c.run = [=](attn_ctx *ctx) {
    const attn_status status = attn_mla(y, x, &p, ctx);
    attn_cache_rollback(&held->cache, &held->sequence, past, nullptr);
    return status;
  };
  c.size = [=](const attn_ctx *ctx) { return attn_mla_workspace(y, x, &p, ctx); };
}

/* Ranks of the paper; len 1 is decoding, which reads what is kept. */
void tpa(Call &c, int64_t heads, int64_t past, int64_t len) {
  constexpr int64_t d = 64, page = 128, rank[3] = {6, 2, 2};
  struct Held {
    attn_cache cache;
    attn_sequence sequence;
    std::vector<int32_t> table;
    attn_factors x[3];
  };
  const int64_t pages = (past + len) / page + 1;
  auto held = std::make_shared<Held>();
  held->table.resize((size_t)pages);
  attn_cache_params of = {};
  of.k_heads = 1;
  of.dk = of.dv = 2 * (heads + d);
  of.pages = pages;
  of.page = page;
  const size_t size = attn_cache_size(&of);
  attn_cache_open(&held->cache, c.numbers((int64_t)(size / 4), 1), size, &of, nullptr);
  attn_sequence_init(&held->sequence, held->table.data(), pages, nullptr);
  if (past)
    attn_cache_append(&held->cache, &held->sequence, 1, c.rows(1, past, of.dk),
                      c.rows(1, past, of.dv), nullptr, nullptr);
  for (int i = 0; i < 3; i++) {
    held->x[i].a = attn_bthd(c.numbers(len * rank[i] * heads, 1), ATTN_F32, 1, len, rank[i], heads);
    held->x[i].b = attn_bthd(c.numbers(len * rank[i] * d, 1), ATTN_F32, 1, len, rank[i], d);
  }
  attn_tensor o = c.rows(heads, len, d);
  attn_tpa_params p = {};
  p.cache = &held->cache;
  p.held = &held->sequence;
  const double all = (double)(past + len), rows = (double)len;
  const double pairs = rows * (all - (rows - 1) / 2);
  c.flops = 4.0 * (double)(heads * d) * (len == 1 ? 2 * all : pairs + 2 * all);
  if (len == 1) c.bytes = 4.0 * all * (double)(of.dk + of.dv);
  c.run = [=](attn_ctx *ctx) {
    const attn_status status = attn_tpa(o, &held->x[0], &held->x[1], &held->x[2], &p, ctx);
    attn_cache_rollback(&held->cache, &held->sequence, past, nullptr);
    return status;
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_tpa_workspace(o, &held->x[0], &held->x[1], &held->x[2], &p, ctx);
  };
}

const CallEntry entries[] = {
    {"mla", "T:512/dm:512/h:16/expanded",
     [](Call &c) { mla(c, 16, 0, 512, ATTN_MLA_EXPANDED, 512); }},
    {"mla", "T:512/dm:512/h:16/absorbed",
     [](Call &c) { mla(c, 16, 0, 512, ATTN_MLA_ABSORBED, 512); }},
    {"mla", "T:2048/dm:512/h:16/expanded",
     [](Call &c) { mla(c, 16, 0, 2048, ATTN_MLA_EXPANDED, 512); }},
    {"mla", "T:1/cache:8192/dm:256/h:16/absorbed",
     [](Call &c) { mla(c, 16, 8191, 1, ATTN_MLA_ABSORBED, 256); }},
    {"mla", "T:1/cache:8192/dm:256/h:16/expanded",
     [](Call &c) { mla(c, 16, 8191, 1, ATTN_MLA_EXPANDED, 256); }},
    {"mla", "T:1/cache:8192/dm:256/h:128/absorbed",
     [](Call &c) { mla(c, 128, 8191, 1, ATTN_MLA_ABSORBED, 256); }},
    {"tpa", "T:1024/d:64/h:32", [](Call &c) { tpa(c, 32, 0, 1024); }},
    {"tpa", "T:1/cache:4096/d:64/h:32", [](Call &c) { tpa(c, 32, 4095, 1); }},
};

}  // namespace

void register_latent(const Selection &s) { register_calls(s, entries); }
