/* reshaped.h owns the decoding of bytes into calls of attn_reshaped. */

#ifndef FUZZ_RESHAPED_H
#define FUZZ_RESHAPED_H

#include "sdpa.h"

typedef struct reshaped_args {
  sdpa_args sdpa;
  attn_reshaped_params params;
} reshaped_args;

static attn_status call_reshaped(job *j, attn_ctx *ctx) {
  reshaped_args *a = (reshaped_args *)j->args;
  return attn_reshaped(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params, ctx);
}

static size_t workspace_reshaped(job *j, const attn_ctx *ctx) {
  reshaped_args *a = (reshaped_args *)j->args;
  return attn_reshaped_workspace(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params,
                                 ctx);
}

/* A tensor of parameters in the order of bhtd; one extent may be wrong. */
static attn_tensor reshaped_numbers(input *in, reshaped_args *a, int64_t batch, int64_t heads,
                                    int64_t len, int64_t dim, float lo, float hi, int *tame) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  const int64_t n = array_size(array_size(batch, heads, 1), len, dim);
  if (n < 0) return none;
  float *x = store_floats(in, &a->sdpa.store, n, lo, hi, tame);
  attn_tensor t = attn_bhtd(x, ATTN_F32, batch, heads, len, dim);
  if (chance(in, 32)) t.len = nasty_int(in);
  if (chance(in, 32)) t.heads = nasty_int(in);
  return t;
}

static void fuzz_reshaped(input *in) {
  reshaped_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_reshaped",
           .outputs = 3,
           .runnable = 1,
           .unsteady = 1,
           .args = &a,
           .call = call_reshaped,
           .workspace = workspace_reshaped,
           .sane_row = sane_relu_row};
  attn_tensor view[JOB_TENSORS];
  attn_reshaped_params *p = &a.params;
  attn_sdpa_params *s = &a.sdpa.params;
  int tame = 0;
  make_operands(in, &j, view);
  make_params(in, &j, &a.sdpa.store, s, &view[Q], view[K].len);
  make_extras(in, &j, view);
  p->kind = (attn_reshape_kind)below(in, 5);
  if (p->kind == ATTN_RESHAPE_STICK && !chance(in, 8)) {
    s->causal = 1, s->schedule = NULL, s->keep = 0, p->include_self = below(in, 2),
    p->remainder = below(in, 2);
    memset(&s->xl, 0, sizeof s->xl);
  }
  if (chance(in, 32)) p->kind = (attn_reshape_kind)(nasty_int(in) & 0xff);
  if (p->kind != ATTN_RESHAPE_SOFTMAX && !chance(in, 16)) {
    s->sinks = NULL, s->softmax_one = 0, s->span.z = NULL;
    memset(&s->relative.values, 0, sizeof s->relative.values);
  }
  if (!chance(in, 32)) s->q_offs = NULL, s->align_lengths = 0;
  if (p->kind == ATTN_RESHAPE_SIGMOID)
    p->by_row = below(in, 2), p->has_bias = !p->by_row && below(in, 2);
  if (p->has_bias || chance(in, 32))
    p->bias = chance(in, 16) ? nasty_float(in) : (float)below(in, 16) - 8.0f;
  if (p->kind == ATTN_RESHAPE_ENTMAX && below(in, 2))
    p->alpha = chance(in, 8) ? nasty_float(in) : 1.25f + (float)below(in, 4) / 4;
  if (p->kind == ATTN_RESHAPE_ENTMAX && !below(in, 3))
    p->alphas = store_floats(in, &a.sdpa.store, view[Q].heads, 1.1f, 2, &tame);
  const int64_t heads = view[Q].heads, batch = view[Q].batch;
  if (below(in, 2)) {
    p->ssmax.scale = store_floats(in, &a.sdpa.store, heads, -1, 1, &tame);
    if (below(in, 2)) p->ssmax.bias = store_floats(in, &a.sdpa.store, heads, -2, 2, &tame);
  }
  if (chance(in, 3)) {
    p->temperature.on = 1;
    p->temperature.interval = chance(in, 16) ? nasty_float(in) : (float)below(in, 40);
    if (chance(in, 4)) p->temperature.beta = chance(in, 16) ? nasty_float(in) : 0.25f;
    if (chance(in, 4)) p->temperature.shift = chance(in, 16) ? nasty_float(in) : 5.0f;
  }
  if (below(in, 2)) {
    const int64_t f = chance(in, 4) ? 1 : heads;
    p->forget.log_f = reshaped_numbers(in, &a, batch, f, view[K].len, 1, -2, 0, &tame);
    if (!s->causal && !chance(in, 8)) s->causal = 1;
    if (s->has_q_off && !chance(in, 8)) s->has_q_off = 0, s->q_off = 0;
    const int64_t n = array_size(array_size(batch, f, 1), view[K].len, 1);
    if (p->forget.log_f.data && n >= 0 && chance(in, 4)) {
      p->forget.sums =
          (attn_forget_sum *)store_take(&a.sdpa.store, (size_t)n * sizeof(attn_forget_sum));
      if (chance(in, 2)) p->forget.known = below(in, 8);
      if (chance(in, 16)) p->forget.known = nasty_int(in);
    }
  }
  if (chance(in, 4)) {
    const int64_t npos = chance(in, 16) ? nasty_int(in) : 1 + below(in, 20);
    p->cope.table =
        reshaped_numbers(in, &a, 1, chance(in, 2) ? 1 : heads, npos, view[Q].dim, -2, 2, &tame);
    if (!chance(in, 8)) s->causal = 1, s->schedule = NULL, s->keep = 0, s->span.z = NULL;
    if (!chance(in, 8)) memset(&s->xl, 0, sizeof s->xl);
  }
  if (chance(in, 4)) {
    const int64_t n = array_size(batch, view[K].len, 1);
    p->selective.on = !chance(in, 16), p->selective.first = below(in, 2);
    if (n >= 0 && below(in, 2)) {
      p->selective.sums = (double *)store_take(&a.sdpa.store, (size_t)n * sizeof(double));
      for (int64_t i = 0; p->selective.sums && i < n; i++)
        p->selective.sums[i] = 0.25 * (double)(i % 9);
    }
    if (!chance(in, 8)) s->causal = 1, s->schedule = NULL, s->keep = 0, s->span.z = NULL;
    if (!chance(in, 8)) memset(&s->xl, 0, sizeof s->xl), memset(&p->cope, 0, sizeof p->cope);
  }
  if (below(in, 2))
    p->gate = reshaped_numbers(in, &a, batch, heads, view[Q].len, below(in, 2) ? 1 : view[V].dim,
                               -9, 9, &tame);
  misplace(in, &j);
  if (p->kind == ATTN_RESHAPE_SIGMOID || p->kind == ATTN_RESHAPE_STICK || chance(in, 32))
    p->sum = j.b[LSE].view;
  else if (p->kind == ATTN_RESHAPE_ENTMAX)
    p->support = j.b[LSE].view;
  else
    s->lse = j.b[LSE].view;
  if (p->kind == ATTN_RESHAPE_SOFTMAX || chance(in, 32))
    s->map = j.b[MAP].view;
  else
    j.b[MAP].view.data = NULL;
  p->attention = *s;
  j.runnable &= affordable(view);
  finish(in, &j);
}

#endif
