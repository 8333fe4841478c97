/* bench/families/mixers.cpp owns the entries of blocks that mix tokens without attention: by
 * Fourier transforms and by learned matrices. */

#include "functions.h"

namespace {

/* x is read and y written; the products count as such. */
void fourier(Call &c, int64_t len, int64_t dm, attn_fourier_form form) {
  const attn_tensor x = c.rows(1, len, dm), y = c.rows(1, len, dm);
  attn_fourier_params p = {};
  p.form = form;
  c.bytes = 8.0 * (double)(len * dm);
  if (form == ATTN_FOURIER_GEMM) c.flops = 4.0 * (double)(len * dm) * (double)(len + dm);
  c.run = [=](attn_ctx *ctx) { return attn_fourier(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_fourier_workspace(y, x, &p, ctx); };
}

/* The feed-forward counts. */
void fnet(Call &c, int64_t len) {
  constexpr int64_t dm = 512, dff = 2048;
  const attn_tensor x = c.rows(1, len, dm), y = c.rows(1, len, dm);
  attn_fnet_params p = {};
  p.ff.w_1 = c.rows(1, dm, dff, 0.04f);
  p.ff.w_2 = c.rows(1, dff, dm, 0.04f);
  c.flops = 4.0 * (double)(len * dm * dff);
  c.run = [=](attn_ctx *ctx) { return attn_fnet(y, x, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_fnet_workspace(y, x, &p, ctx); };
}

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
    {"fourier", "T:512/dm:768/fft", [](Call &c) { fourier(c, 512, 768, ATTN_FOURIER_FFT); }},
    {"fourier", "T:4096/dm:512/fft", [](Call &c) { fourier(c, 4096, 512, ATTN_FOURIER_FFT); }},
    {"fourier", "T:4096/dm:512/gemm", [](Call &c) { fourier(c, 4096, 512, ATTN_FOURIER_GEMM); }},
    {"fnet", "T:1024/dm:512/dff:2048", [](Call &c) { fnet(c, 1024); }},
    {"gmlp", "T:512/dm:512/e:1536", [](Call &c) { gmlp(c, 1, false, 0); }},
    {"gmlp", "T:512/dm:512/e:1536/batch:4", [](Call &c) { gmlp(c, 4, false, 0); }},
    {"gmlp", "T:512/dm:512/e:1536/batch:4/causal", [](Call &c) { gmlp(c, 4, true, 0); }},
    {"gmlp", "T:512/dm:512/e:1536/batch:4/tiny:64", [](Call &c) { gmlp(c, 4, false, 64); }},
    {"mixer", "T:256/dm:512/ds:256/dc:2048", [](Call &c) { mixer(c, 1, ATTN_ACT_DEFAULT); }},
    {"mixer", "T:256/dm:512/ds:256/dc:2048/batch:8",
     [](Call &c) { mixer(c, 8, ATTN_ACT_DEFAULT); }},
    {"mixer", "T:256/dm:512/ds:256/dc:2048/batch:8/tanh",
     [](Call &c) { mixer(c, 8, ATTN_ACT_GELU_TANH); }},
};

}  // namespace

void register_mixers(const Selection &s) { register_calls(s, entries); }
