/* ours.c owns the calls that peers.py times beside other libraries: plain arguments for ctypes. Returns
 * are 1 when the call went well on the tier named. */
#include <stdlib.h>
#include <string.h>

#include "peak.h"

typedef struct room {
  void *data;
  size_t size;
} room;

/* One workspace for all calls, which are of one thread. */
static int fit(attn_ctx *ctx, size_t size) {
  static room all;
  if (size > all.size) {
    free(all.data);
    all.size = size;
    all.data = malloc(size);
  }
  ctx->workspace = all.data, ctx->workspace_size = all.size;
  return size == 0 || all.data != NULL;
}

int ours_isa(const char *name) {
  for (int i = 1; i < ATTN_ISA_COUNT; i++)
    if (strcmp(name, attn_isa_name((attn_isa)i)) == 0) return i;
  return 0;
}

int ours_best(void) { return (int)attn_isa_best(); }
double ours_peak(int isa) { return peak_probe((attn_isa)isa); }
double ours_bandwidth(int level) { return peak_read_bandwidth(peak_level_bytes(level, 1), 1); }

int ours_sdpa(int isa, float *o, const float *q, const float *k, const float *v, int64_t batch,
              int64_t heads, int64_t len, int64_t dim, int causal) {
  attn_ctx ctx = {.isa = (attn_isa)isa};
  const attn_sdpa_params params = {.causal = causal};
  const attn_tensor to = attn_bhtd(o, ATTN_F32, batch, heads, len, dim),
                    tq = attn_bhtd(q, ATTN_F32, batch, heads, len, dim),
                    tk = attn_bhtd(k, ATTN_F32, batch, heads, len, dim),
                    tv = attn_bhtd(v, ATTN_F32, batch, heads, len, dim);
  return fit(&ctx, attn_sdpa_workspace(to, tq, tk, tv, &params, &ctx)) &&
         attn_sdpa(to, tq, tk, tv, &params, &ctx) == ATTN_OK && (int)ctx.report.isa == isa;
}

/* Gradients, of o and lse [batch, heads, len] that forward left; with `forward` these are made, and nothing else. */
int ours_sdpa_backward(int isa, void *d_q, void *d_k, void *d_v, const void *d_o, const void *q,
                       const void *k, const void *v, void *o, float *lse, int64_t batch,
                       int64_t heads, int64_t len, int64_t dim, int causal, int bf16, int forward) {
  attn_ctx ctx = {.isa = (attn_isa)isa};
  const attn_dtype type = bf16 ? ATTN_BF16 : ATTN_F32;
  attn_sdpa_params params = {.causal = causal};
  const void *const at[] = {d_q, d_k, d_v, d_o, q, k, v, o};
  attn_tensor t[8], l = attn_bhtd(lse, ATTN_F32, batch, heads, len, 1);
  for (int i = 0; i < 8; i++)
    t[i] = attn_bhtd((void *)(uintptr_t)at[i], type, batch, heads, len, dim);
  if (forward) {
    params.lse = l;
    return attn_sdpa(t[7], t[4], t[5], t[6], &params, &ctx) == ATTN_OK;
  }
  return fit(&ctx, attn_sdpa_backward_workspace(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], l,
                                                &params, NULL, &ctx)) &&
         attn_sdpa_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], l, &params, NULL,
                            &ctx) == ATTN_OK &&
         (int)ctx.report.isa == isa;
}

int ours_gemm(int isa, float *y, const float *x, const float *w, int64_t m, int64_t n, int64_t k) {
  attn_ctx ctx = {.isa = (attn_isa)isa};
  const attn_tensor ty = attn_bhtd(y, ATTN_F32, 1, 1, m, n),
                    tx = attn_bhtd(x, ATTN_F32, 1, 1, m, k),
                    tw = attn_bhtd(w, ATTN_F32, 1, 1, k, n);
  return fit(&ctx, attn_gemm_workspace(ty, tx, tw, NULL, &ctx)) &&
         attn_gemm(ty, tx, tw, NULL, &ctx) == ATTN_OK && (int)ctx.report.isa == isa;
}

/* Post-norm with ReLU; w: of q, k, v, o, and the two of the feed-forward, [in, out]; b: their biases. */
int ours_encoder(int isa, float *y, const float *x, const float *const *w, const float *const *b,
                 int64_t len, int64_t dim, int64_t heads, int64_t hidden) {
  attn_ctx ctx = {.isa = (attn_isa)isa};
  attn_tensor tw[6], tb[6];
  for (int i = 0; i < 6; i++) {
    const int64_t in = i == 5 ? hidden : dim, out = i == 4 ? hidden : dim;
    tw[i] = attn_bhtd((void *)(uintptr_t)w[i], ATTN_F32, 1, 1, in, out);
    tb[i] = attn_bhtd((void *)(uintptr_t)b[i], ATTN_F32, 1, 1, 1, out);
  }
  const attn_block_params params = {
      .self = {.heads = heads,
               .w_q = tw[0],
               .w_k = tw[1],
               .w_v = tw[2],
               .w_o = tw[3],
               .b_q = tb[0],
               .b_k = tb[1],
               .b_v = tb[2],
               .b_o = tb[3]},
      .ff = {.w_1 = tw[4], .b_1 = tb[4], .w_2 = tw[5], .b_2 = tb[5], .activation = ATTN_ACT_RELU},
      .sublayer = ATTN_SUBLAYER_POST};
  const attn_tensor ty = attn_bhtd(y, ATTN_F32, 1, 1, len, dim),
                    tx = attn_bhtd(x, ATTN_F32, 1, 1, len, dim);
  return fit(&ctx, attn_encoder_workspace(ty, tx, &params, &ctx)) &&
         attn_encoder(ty, tx, &params, &ctx) == ATTN_OK && (int)ctx.report.isa == isa;
}

/* S = diag(exp(decay)) S + k v^T, or the delta rule of it; decay [heads, len, wide], beta [heads, len, 1]. */
int ours_recurrent(int isa, float *o, float *q, float *k, float *v, float *decay, float *beta,
                   int64_t heads, int64_t len, int64_t dim, int64_t wide, int delta) {
  attn_ctx ctx = {.isa = (attn_isa)isa};
  attn_recurrent_params params = {.rule = delta ? ATTN_RECURRENT_KDA : ATTN_RECURRENT_GLA,
                                  .decay = attn_bhtd(decay, ATTN_F32, 1, heads, len, wide)};
  if (delta) params.beta = attn_bhtd(beta, ATTN_F32, 1, heads, len, 1);
  const attn_tensor to = attn_bhtd(o, ATTN_F32, 1, heads, len, dim),
                    tq = attn_bhtd(q, ATTN_F32, 1, heads, len, dim),
                    tk = attn_bhtd(k, ATTN_F32, 1, heads, len, dim),
                    tv = attn_bhtd(v, ATTN_F32, 1, heads, len, dim);
  return fit(&ctx, attn_recurrent_workspace(to, tq, tk, tv, &params, &ctx)) &&
         attn_recurrent(to, tq, tk, tv, &params, &ctx) == ATTN_OK && (int)ctx.report.isa == isa;
}
