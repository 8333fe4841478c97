/* product.h owns the decoding of bytes into calls of attn_gemm. */

#ifndef FUZZ_PRODUCT_H
#define FUZZ_PRODUCT_H

#include "job.h"
#include "views.h"

enum { G_Y, G_X, G_W, G_BIAS, G_TENSORS };

static attn_gemm_params gemm_params(const job *j) {
  attn_gemm_params p = *(const attn_gemm_params *)j->args;
  p.bias = j->b[G_BIAS].view;
  return p;
}

static attn_status call_gemm(job *j, attn_ctx *ctx) {
  const attn_gemm_params p = gemm_params(j);
  return attn_gemm(j->b[G_Y].view, j->b[G_X].view, j->b[G_W].view, &p, ctx);
}

static size_t workspace_gemm(job *j, const attn_ctx *ctx) {
  const attn_gemm_params p = gemm_params(j);
  return attn_gemm_workspace(j->b[G_Y].view, j->b[G_X].view, j->b[G_W].view, &p, ctx);
}

static void fuzz_gemm(input *in) {
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  job j = {.name = "attn_gemm",
           .outputs = 1,
           .runnable = 1,
           .tame = 1,
           .args = &p,
           .call = call_gemm,
           .workspace = workspace_gemm};
  const int64_t batch = below(in, 3), heads = 1 + below(in, 3), k = 1 + below(in, 140);
  int64_t m = below(in, 30), n = 1 + below(in, 100), one = below(in, 64);
  if (chance(in, 6)) m += 190; /* panels */
  p.w_transposed = below(in, 2);
  p.activation = (attn_activation)below(in, ATTN_ACT_COUNT);
  p.scale = (float)(below(in, 9) - 4) / 8.0f;
  attn_tensor view[G_TENSORS];
  view[G_Y] = make_view(in, (attn_dtype)below(in, 3), batch, heads, m, n, 1);
  view[G_X] =
      make_view(in, (attn_dtype)below(in, 3), one & 1 ? 1 : batch, one & 2 ? 1 : heads, m, k, 0);
  view[G_W] = make_view(in, (attn_dtype)below(in, 3), one & 4 ? 1 : batch, one & 8 ? 1 : heads,
                        p.w_transposed ? n : k, p.w_transposed ? k : n, 0);
  view[G_BIAS] =
      make_view(in, (attn_dtype)below(in, 3), one & 16 ? 1 : batch, one & 32 ? 1 : heads, 1, n, 0);
  const int flaws = below(in, 8) - 4, bias = below(in, 2);
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, G_TENSORS)]);
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  for (int i = 0; i < G_BIAS + bias; i++) {
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[below(in, G_BIAS)].view.data = NULL;
  if (chance(in, 24)) p.scale = nasty_float(in), j.tame = 0;
  if (chance(in, 24)) p.activation = (attn_activation)(nasty_int(in) & 0xff);
  j.must_fail = (unsigned)p.activation >= ATTN_ACT_COUNT || p.scale - p.scale != 0;
  j.unsteady = p.activation == ATTN_ACT_EXP || p.activation == ATTN_ACT_RELU2;
  if (f.specials) j.tame = 0;
  job_run(&j, in);
}

#endif
