/* bench/families/blocks.cpp owns the entries of Transformer blocks, where every multiply-add
 * counts: encoder, decoder and its step, feed-forward, experts, reversible residual; and of trajectories
 * as sequences. */

#include "functions.h"

namespace {

struct BlockShape {
  int64_t len, dm, heads, e_len;
  attn_sublayer sublayer;
  attn_compute compute;
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
  for (attn_multihead_params *m : {&p.self, &p.cross})
    m->compute = m->attention.compute = s.compute;
  p.ff.compute = s.compute;
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

/* Gradients of all matrices and rows: twice forward's products, 2 (3 dk + 2 dv) flops a pair. */
void learned(Call &c, attn_multihead_gradients &g, int64_t dm) {
  for (attn_tensor *w : {&g.d_w_q, &g.d_w_k, &g.d_w_v, &g.d_w_o}) *w = c.rows(1, dm, dm);
}

void block_backward(Call &c, const BlockShape &s) {
  attn_tensor d_x = c.rows(1, s.len, s.dm), d_y = c.rows(1, s.len, s.dm);
  attn_tensor x = c.rows(1, s.len, s.dm), e = {};
  attn_block_params p = block(c, s);
  attn_block_gradients g = {};
  const double n = (double)s.len, m = (double)s.e_len, wide = (double)s.dm;
  learned(c, g.self, s.dm);
  if (s.e_len) {
    e = c.rows(1, s.e_len, s.dm), g.d_e = c.rows(1, s.e_len, s.dm);
    learned(c, g.cross, s.dm);
  }
  g.ff.d_w_1 = c.rows(1, s.dm, 4 * s.dm), g.ff.d_w_2 = c.rows(1, 4 * s.dm, s.dm);
  c.flops = s.e_len
                ? 2 * (28 * n + 4 * m) * wide * wide + 5 * n * (n + 1) * wide + 10 * n * m * wide
                : 48 * n * wide * wide + 10 * n * n * wide;
  c.run = [=](attn_ctx *ctx) {
    return s.e_len ? attn_decoder_backward(d_x, d_y, x, e, &p, &g, ctx)
                   : attn_encoder_backward(d_x, d_y, x, &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return s.e_len ? attn_decoder_backward_workspace(d_x, d_y, x, e, &p, &g, ctx)
                   : attn_encoder_backward_workspace(d_x, d_y, x, &p, &g, ctx);
  };
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

/* All gradients, counted as twice forward: hidden rows made again are not. */
void feed_forward_backward(Call &c, int64_t len, int64_t dm) {
  attn_tensor d_x = c.rows(1, len, dm), d_y = c.rows(1, len, dm), x = c.rows(1, len, dm);
  attn_feed_forward ff = feed(c, dm);
  attn_feed_forward_gradients g = {};
  g.d_w_1 = c.rows(1, dm, 4 * dm), g.d_b_1 = c.rows(1, 1, 4 * dm);
  g.d_w_2 = c.rows(1, 4 * dm, dm), g.d_b_2 = c.rows(1, 1, dm);
  c.flops = 32.0 * (double)(len * dm * dm);
  c.run = [=](attn_ctx *ctx) { return attn_feed_forward_rows_backward(d_x, d_y, x, &ff, &g, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_feed_forward_rows_backward_workspace(d_x, d_y, x, &ff, &g, ctx);
  };
}

/* Two of eight gated experts a row; one row reads two of them once. */
void experts(Call &c, int64_t len, int64_t dm, int64_t dff) {
  constexpr int64_t count = 8, k = 2;
  attn_tensor x = c.rows(1, len, dm), y = c.rows(1, len, dm);
  attn_expert_rows_params p = {};
  p.k = k;
  p.w_gate = c.rows(1, dm, count);
  for (attn_tensor *w : {&p.experts.w_1, &p.experts.w_3}) *w = c.rows(count, dm, dff, 0.04f);
  p.experts.w_2 = c.rows(count, dff, dm, 0.04f);
  if (len > 1)
    c.flops = 6.0 * (double)(len * k * dm * dff) + 2.0 * (double)(len * dm * count);
  else
    c.bytes = 12.0 * (double)(k * dm * dff) + 4.0 * (double)(dm * count);
  c.run = [=](attn_ctx *ctx) { return attn_expert_rows(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_expert_rows_workspace(y, x, &p, ctx); };
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

/* The same of its gradients: eight streams and five temporary ones. */
void reversible_backward(Call &c) {
  constexpr int64_t len = 4096, dm = 512;
  attn_tensor s[8];
  for (attn_tensor &t : s) t = c.rows(1, len, dm);
  const attn_tensor x1 = s[0], x2 = s[1], d_x1 = s[2], d_x2 = s[3];
  const attn_tensor y1 = s[4], y2 = s[5], d_y1 = s[6], d_y2 = s[7];
  attn_reversible_params p = {};
  attn_reversible_gradients g = {};
  p.f = p.g = [](void *, attn_tensor, attn_tensor, attn_ctx *) { return ATTN_OK; };
  g.f = g.g = [](void *, attn_tensor, attn_tensor, attn_tensor, attn_ctx *) { return ATTN_OK; };
  c.bytes = 72.0 * (double)(len * dm);
  c.run = [=](attn_ctx *ctx) {
    return attn_reversible_backward(x1, x2, d_x1, d_x2, y1, y2, d_y1, d_y2, &p, &g, ctx);
  };
  c.size = [=](const attn_ctx *ctx) {
    return attn_reversible_backward_workspace(x1, x2, d_x1, d_x2, y1, y2, d_y1, d_y2, &p, &g, ctx);
  };
}

void stream_mean(Call &c) {
  constexpr int64_t len = 4096, dm = 512;
  attn_tensor x1 = c.rows(1, len, dm), x2 = c.rows(1, len, dm), y = c.rows(1, len, dm);
  c.bytes = 12.0 * (double)(len * dm);
  c.run = [=](attn_ctx *ctx) { return attn_stream_mean(y, x1, x2, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_stream_mean_workspace(y, x1, x2, ctx); };
}

/* --- Trajectories. */

/* Many episodes of a thousand steps. */
void returns(Call &c, float gamma) {
  constexpr int64_t batch = 64, steps = 1000;
  attn_tensor r = attn_bhtd(c.numbers(batch * steps, 1), ATTN_F32, batch, 1, steps, 1), y = r;
  y.data = c.numbers(batch * steps, 1);
  attn_returns_params p = {};
  p.gamma = gamma;
  c.bytes = 8.0 * (double)(batch * steps);
  c.run = [=](attn_ctx *ctx) { return attn_returns(y, r, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_returns_workspace(y, r, &p, ctx); };
}

/* Steps of a walking robot; time goes with the tokens, read as times and written. */
void trajectory_tokens(Call &c) {
  constexpr int64_t steps = 1024, ds = 17, da = 6, wide = 128;
  attn_tensor x = c.rows(1, steps, 1), s = c.rows(1, steps, ds), a = c.rows(1, steps, da);
  attn_tensor y = c.rows(1, 3 * steps, wide);
  attn_trajectory_params p = {};
  p.w_return = c.rows(1, 1, wide);
  p.w_state = c.rows(1, ds, wide);
  p.w_action = c.rows(1, da, wide);
  for (attn_tensor *b : {&p.b_return, &p.b_state, &p.b_action}) *b = c.rows(1, 1, wide);
  p.times = c.rows(1, steps, wide);
  p.timesteps = c.steps(steps, 1);
  c.flops = 2.0 * (double)(steps * (1 + ds + da) * wide);
  c.run = [=](attn_ctx *ctx) { return attn_trajectory_tokens(y, x, s, a, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) {
    return attn_trajectory_tokens_workspace(y, x, s, a, &p, ctx);
  };
}

/* Causal attention over the tokens of steps of which some do not exist, the mask made anew. */
void trajectory_mask(Call &c) {
  constexpr int64_t steps = 1024;
  attn_tensor q = c.rows(1, 3 * steps, kDim), k = c.rows(1, 3 * steps, kDim),
              v = c.rows(1, 3 * steps, kDim), o = c.rows(1, 3 * steps, kDim);
  auto valid = std::make_shared<std::vector<uint8_t>>(steps, 1);
  auto keys = std::make_shared<std::vector<uint8_t>>(3 * steps);
  for (int64_t i = 0; i < 100; i++) (*valid)[(size_t)i] = 0;
  attn_sdpa_params p = {};
  p.causal = 1;
  p.mask = attn_trajectory_mask(keys->data(), valid->data(), 1, steps);
  c.pairs(3 * steps * (3 * steps + 1) / 2);
  c.run = [=](attn_ctx *ctx) {
    attn_trajectory_mask(keys->data(), valid->data(), 1, steps);
    return attn_sdpa(o, q, k, v, &p, ctx);
  };
  c.size = [=](const attn_ctx *ctx) { return attn_sdpa_workspace(o, q, k, v, &p, ctx); };
}

void trajectory_predict(Call &c) {
  constexpr int64_t steps = 1024, da = 6, wide = 128;
  attn_tensor y = c.rows(1, 3 * steps, wide), o = c.rows(1, steps, da);
  attn_trajectory_predict_params p = {};
  p.w = c.rows(1, wide, da);
  p.bias = c.rows(1, 1, da);
  c.flops = 2.0 * (double)(steps * wide * da);
  c.run = [=](attn_ctx *ctx) { return attn_trajectory_predict(o, y, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_trajectory_predict_workspace(o, y, &p, ctx); };
}

const CallEntry entries[] = {
    {"encoder_backward", "T:512/dm:768/h:12",
     [](Call &c) {
       block_backward(c, {512, 768, 12, 0, ATTN_SUBLAYER_POST, ATTN_COMPUTE_F32});
     }},
    {"encoder_backward", "T:512/dm:768/h:12/pre",
     [](Call &c) {
       block_backward(c, {512, 768, 12, 0, ATTN_SUBLAYER_PRE, ATTN_COMPUTE_F32});
     }},
    {"decoder_backward", "T:512/dm:768/h:12/pre",
     [](Call &c) {
       block_backward(c, {512, 768, 12, 512, ATTN_SUBLAYER_PRE, ATTN_COMPUTE_F32});
     }},
    {"encoder", "T:128/dm:384/h:12",
     [](Call &c) {
       encoder(c, {128, 384, 12, 0, ATTN_SUBLAYER_POST, ATTN_COMPUTE_F32});
     }},
    {"encoder", "T:512/dm:768/h:12",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_POST, ATTN_COMPUTE_F32});
     }},
    {"encoder", "T:512/dm:768/h:12/compute:bf16",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_POST, ATTN_COMPUTE_BF16});
     }},
    {"encoder", "T:512/dm:768/h:12/pre",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_PRE, ATTN_COMPUTE_F32});
     }},
    {"encoder", "T:512/dm:768/h:12/sandwich",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_SANDWICH, ATTN_COMPUTE_F32});
     }},
    {"encoder", "T:512/dm:768/h:12/parallel",
     [](Call &c) {
       encoder(c, {512, 768, 12, 0, ATTN_SUBLAYER_PARALLEL, ATTN_COMPUTE_F32});
     }},
    {"decoder", "T:512/Te:512/dm:768/h:12",
     [](Call &c) {
       decoder(c, {512, 768, 12, 512, ATTN_SUBLAYER_PRE, ATTN_COMPUTE_F32});
     }},
    {"decoder_step", "T:512/Te:512/dm:768/h:12",
     [](Call &c) {
       decoder_step(c, {512, 768, 12, 512, ATTN_SUBLAYER_PRE, ATTN_COMPUTE_F32});
     }},
    {"decoder_start", "Te:512/dm:768/h:12",
     [](Call &c) {
       decoder_start(c, {1, 768, 12, 512, ATTN_SUBLAYER_PRE, ATTN_COMPUTE_F32});
     }},
    {"feed_forward", "T:128/dm:384/dff:1536", [](Call &c) { feed_forward(c, 128, 384, 1); }},
    {"feed_forward", "T:512/dm:768/dff:3072", [](Call &c) { feed_forward(c, 512, 768, 1); }},
    {"feed_forward_rows_backward", "T:512/dm:768/dff:3072",
     [](Call &c) { feed_forward_backward(c, 512, 768); }},
    {"feed_forward", "T:512/dm:768/dff:3072/chunks:16",
     [](Call &c) { feed_forward(c, 512, 768, 16); }},
    {"experts", "T:512/dm:512/dff:1024/E:8/k:2", [](Call &c) { experts(c, 512, 512, 1024); }},
    {"experts", "T:1/dm:2048/dff:2048/E:8/k:2", [](Call &c) { experts(c, 1, 2048, 2048); }},
    {"reversible", "T:4096/dm:512", [](Call &c) { reversible(c, false); }},
    {"reversible_backward", "T:4096/dm:512", [](Call &c) { reversible_backward(c); }},
    {"reversible", "T:4096/dm:512/inverse", [](Call &c) { reversible(c, true); }},
    {"stream_mean", "T:4096/dm:512", stream_mean},
    {"returns", "T:1000/B:64", [](Call &c) { returns(c, 1); }},
    {"returns", "T:1000/B:64/discount", [](Call &c) { returns(c, 0.99f); }},
    {"trajectory_tokens", "T:1024/d:128", trajectory_tokens},
    {"trajectory_mask", "T:1024/d:64", trajectory_mask},
    {"trajectory_predict", "T:1024/d:128", trajectory_predict},
};

}  // namespace

void register_blocks(const Selection &s) { register_calls(s, entries); }
