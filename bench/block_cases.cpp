/* block_cases.cpp owns the entries of Transformer blocks: encoder, decoder and its step, feed-forward,
 * reversible residual. Every multiply-add counts. */

#include "functions.h"

namespace {

struct BlockShape {
  int64_t len, dm, heads, e_len;
  attn_sublayer sublayer;
};

attn_multihead_params attention(Call &c, int64_t dm, int64_t heads) {
  attn_multihead_params p = {};
  p.heads = heads;
  for (attn_tensor *w : {&p.w_q, &p.w_k, &p.w_v, &p.w_o}) *w = c.rows(1, dm, dm, 0.04f);
  for (attn_tensor *b : {&p.b_q, &p.b_k, &p.b_v, &p.b_o}) *b = c.rows(1, 1, dm, 0.04f);
  return p;
}

attn_feed_forward feed(Call &c, int64_t dm) {
  attn_feed_forward ff = {};
  ff.w_1 = c.rows(1, dm, 4 * dm, 0.04f);
  ff.b_1 = c.rows(1, 1, 4 * dm, 0.04f);
  ff.w_2 = c.rows(1, 4 * dm, dm, 0.04f);
  ff.b_2 = c.rows(1, 1, dm, 0.04f);
  ff.activation = ATTN_ACT_RELU;
  return ff;
}

attn_block_params block(Call &c, const BlockShape &s) {
  attn_block_params p = {};
  p.self = attention(c, s.dm, s.heads);
  if (s.e_len) p.cross = attention(c, s.dm, s.heads);
  p.ff = feed(c, s.dm);
  p.sublayer = s.sublayer;
  return p;
}

void encoder(Call &c, const BlockShape &s) {
  attn_tensor x = c.rows(1, s.len, s.dm), y = c.rows(1, s.len, s.dm);
  attn_block_params p = block(c, s);
  c.flops = 24.0 * (double)(s.len * s.dm * s.dm) + 4.0 * (double)(s.len * s.len * s.dm);
  c.run = [=](attn_ctx *ctx) { return attn_encoder(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_encoder_workspace(y, x, &p, ctx); };
}

void decoder(Call &c, const BlockShape &s) {
  attn_tensor x = c.rows(1, s.len, s.dm), y = c.rows(1, s.len, s.dm), e = c.rows(1, s.e_len, s.dm);
  attn_block_params p = block(c, s);
  c.flops = (28.0 * (double)s.len + 4.0 * (double)s.e_len) * (double)(s.dm * s.dm) +
            2.0 * (double)(s.len * (s.len + 1) * s.dm) + 4.0 * (double)(s.len * s.e_len * s.dm);
  c.run = [=](attn_ctx *ctx) { return attn_decoder(y, x, e, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_decoder_workspace(y, x, e, &p, ctx); };
}

attn_decoder_cache cache_of(Call &c, const BlockShape &s) {
  attn_decoder_cache cache = {};
  const int64_t d = s.dm / s.heads;
  cache.k = c.rows(s.heads, s.len, d), cache.v = c.rows(s.heads, s.len, d);
  cache.e_k = c.rows(s.heads, s.e_len, d), cache.e_v = c.rows(s.heads, s.e_len, d);
  return cache;
}

/* The last token of len: weights and cache are read once. */
void decoder_step(Call &c, const BlockShape &s) {
  attn_tensor x = c.rows(1, 1, s.dm), y = c.rows(1, 1, s.dm);
  attn_block_params p = block(c, s);
  attn_decoder_cache cache = cache_of(c, s);
  cache.len = s.len - 1;
  c.bytes = 4.0 * (14.0 * (double)(s.dm * s.dm) + 2.0 * (double)((s.len + s.e_len) * s.dm));
  c.run = [=](attn_ctx *ctx) {
    attn_decoder_cache now = cache;
    return attn_decoder_step(y, x, &now, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) { return attn_decoder_step_workspace(y, x, &cache, &p, ctx); };
}

void decoder_start(Call &c, const BlockShape &s) {
  attn_tensor e = c.rows(1, s.e_len, s.dm);
  attn_block_params p = block(c, s);
  attn_decoder_cache cache = cache_of(c, s);
  c.flops = 4.0 * (double)(s.e_len * s.dm * s.dm);
  c.run = [=](attn_ctx *ctx) {
    attn_decoder_cache now = cache;
    return attn_decoder_start(&now, e, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) { return attn_decoder_start_workspace(&cache, e, &p, ctx); };
}

void feed_forward(Call &c, int64_t len, int64_t dm, int64_t chunks) {
  attn_tensor x = c.rows(1, len, dm), y = c.rows(1, len, dm);
  attn_feed_forward ff = feed(c, dm);
  c.flops = 16.0 * (double)(len * dm * dm);
  c.run = [=](attn_ctx *ctx) { return attn_feed_forward_rows(y, x, &ff, chunks, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_feed_forward_rows_workspace(y, x, &ff, chunks, ctx);
  };
}

/* F and G do nothing: what is left is the reading and writing of four streams and two temporary ones. */
void reversible(Call &c, bool inverse) {
  constexpr int64_t len = 4096, dm = 512;
  attn_tensor x1 = c.rows(1, len, dm), x2 = c.rows(1, len, dm), y1 = c.rows(1, len, dm),
              y2 = c.rows(1, len, dm);
  attn_reversible_params p = {};
  p.f = p.g = [](void *, attn_tensor, attn_tensor, attn_ctx *) { return ATTN_OK; };
  c.bytes = 32.0 * (double)(len * dm);
  c.run = [=](attn_ctx *ctx) {
    return inverse ? attn_reversible_inverse(x1, x2, y1, y2, &p, ctx)
                   : attn_reversible(y1, y2, x1, x2, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) { return attn_reversible_workspace(y1, y2, x1, x2, &p, ctx); };
}

void stream_mean(Call &c) {
  constexpr int64_t len = 4096, dm = 512;
  attn_tensor x1 = c.rows(1, len, dm), x2 = c.rows(1, len, dm), y = c.rows(1, len, dm);
  c.bytes = 12.0 * (double)(len * dm);
  c.run = [=](attn_ctx *ctx) { return attn_stream_mean(y, x1, x2, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_stream_mean_workspace(y, x1, x2, ctx); };
}

const CallEntry entries[] = {
    {"encoder", "T:128/dm:384/h:12",
     [](Call &c) {
       encoder(c, {128, 384, 12, 0, ATTN_SUBLAYER_POST});
     }},
    {"encoder", "T:512/dm:768/h:12",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_POST});
     }},
    {"encoder", "T:512/dm:768/h:12/pre",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_PRE});
     }},
    {"decoder", "T:512/Te:512/dm:768/h:12",
     [](Call &c) {
       decoder(c, {512, 768, 12, 512, ATTN_SUBLAYER_PRE});
     }},
    {"decoder_step", "T:512/Te:512/dm:768/h:12",
     [](Call &c) {
       decoder_step(c, {512, 768, 12, 512, ATTN_SUBLAYER_PRE});
     }},
    {"decoder_start", "Te:512/dm:768/h:12",
     [](Call &c) {
       decoder_start(c, {1, 768, 12, 512, ATTN_SUBLAYER_PRE});
     }},
    {"feed_forward", "T:128/dm:384/dff:1536", [](Call &c) { feed_forward(c, 128, 384, 1); }},
    {"feed_forward", "T:512/dm:768/dff:3072", [](Call &c) { feed_forward(c, 512, 768, 1); }},
    {"feed_forward", "T:512/dm:768/dff:3072/chunks:16",
     [](Call &c) { feed_forward(c, 512, 768, 16); }},
    {"reversible", "T:4096/dm:512", [](Call &c) { reversible(c, false); }},
    {"reversible", "T:4096/dm:512/inverse", [](Call &c) { reversible(c, true); }},
    {"stream_mean", "T:4096/dm:512", stream_mean},
};

}  // namespace

void register_block_calls(const Selection &sel) { register_calls(sel, entries); }
