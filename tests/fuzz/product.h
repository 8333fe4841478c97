/* product.h owns the decoding of bytes into calls of attn_gemm. */

#ifndef FUZZ_PRODUCT_H
#define FUZZ_PRODUCT_H

#include "job.h"
#include "store.h"
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

/* Strides that are no one's may be as long as there are. */
static int64_t twice(int64_t x) { return x > INT64_MAX / 2 || x < INT64_MIN / 2 ? x : 2 * x; }

/* Codes of 8 or 4 bits in the place of a matrix, with their scales. */
static void make_codes(input *in, job *j, store *all, buffer *b, int turned, attn_scales *s) {
  attn_tensor t = b->view;
  t.dtype = chance(in, 2) ? ATTN_I4 : ATTN_I8;
  if (t.dtype == ATTN_I4 && !chance(in, 16))
    t.stride_batch = twice(t.stride_batch), t.stride_head = twice(t.stride_head),
    t.stride_len = twice(t.stride_len);
  buffer_free(b);
  j->runnable &= buffer_make(b, t, below(in, 4));
  filler f = {take(in), 0};
  for (size_t i = 0; b->base && i < b->size; i++) b->base[i] = (uint8_t)filler_next(&f);
  s->group = 32 * below(in, 6);
  const int64_t k = turned ? t.dim : t.len, n = turned ? t.len : t.dim;
  const int64_t groups = s->group ? (k + s->group - 1) / s->group : 1;
  const int64_t count = array_size(t.batch * t.heads, groups, n);
  s->scale = store_floats(in, all, count, 0.5f, 1.0f, &j->tame);
  for (int64_t i = 0; s->scale && i < count; i++) s->scale[i] /= 128.0f;
  if (chance(in, 3)) s->zero = store_floats(in, all, count, -3.0f, 3.0f, &j->tame);
  s->stride_len = turned ? groups : n;
  s->stride_head = groups * n, s->stride_batch = t.heads * groups * n;
  if (chance(in, 16)) s->stride_head = s->stride_batch = 0;
  if (chance(in, 16)) s->group = nasty_int(in), s->stride_len = 1, j->runnable &= s->group >= k;
  if (chance(in, 16)) s->scale = NULL, j->tame = 0;
}

static void fuzz_gemm(input *in) {
  store all = {NULL, 0};
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
  if (chance(in, 6)) p.softcap = chance(in, 6) ? nasty_float(in) : (float)below(in, 50);
  make_form(in, &p.form);
  j.must_fail |= !(p.softcap >= 0 && p.softcap - p.softcap == 0) || p.form.gate_add != 0;
  if (f.specials) j.tame = 0;
  if (flaws <= 0 && buffer_full(&j.b[G_W]) && chance(in, 3))
    make_codes(in, &j, &all, &j.b[G_W], p.w_transposed, &p.w_scales);
  if (chance(in, 3)) make_compute(in, &j, &p.compute, &p.compute_prefer);
  j.must_fail |= p.compute >= ATTN_COMPUTE_COUNT;
  job_run(&j, in);
  store_free(&all);
}

#endif
