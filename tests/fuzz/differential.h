/* differential.h owns the decoding of bytes into calls of attn_differential. */

#ifndef FUZZ_DIFFERENTIAL_H
#define FUZZ_DIFFERENTIAL_H

#include "reshaped.h"

typedef struct differential_args {
  reshaped_args scores;
  attn_differential_params params;
} differential_args;

static attn_status call_differential(job *j, attn_ctx *ctx) {
  differential_args *a = (differential_args *)j->args;
  return attn_differential(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params, ctx);
}

static size_t workspace_differential(job *j, const attn_ctx *ctx) {
  differential_args *a = (differential_args *)j->args;
  return attn_differential_workspace(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view,
                                     &a->params, ctx);
}

static void fuzz_differential(input *in) {
  differential_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_differential",
           .outputs = 1,
           .runnable = 1,
           .unsteady = 1,
           .args = &a,
           .call = call_differential,
           .workspace = workspace_differential};
  attn_tensor view[JOB_TENSORS];
  attn_differential_params *p = &a.params;
  attn_sdpa_params *s = &a.scores.sdpa.params;
  int tame = 0;
  make_operands(in, &j, view);
  j.b[LSE].view.data = j.b[MAP].view.data = NULL;
  if (view[Q].heads % 2 == 0 && !chance(in, 16)) j.b[O].view.heads /= 2, view[O].heads /= 2;
  make_params(in, &j, &a.scores.sdpa.store, s, &view[O], view[K].len);
  make_extras(in, &j, view);
  if (!chance(in, 32)) s->q_offs = NULL, s->align_lengths = 0;
  if (below(in, 2))
    p->lambdas =
        reshaped_numbers(in, &a.scores, view[O].batch, view[O].heads, view[O].len, 1, -2, 2, &tame);
  else if (below(in, 2))
    p->has_lambda = 1, p->lambda = chance(in, 16) ? nasty_float(in) : (float)below(in, 4) / 2;
  if (chance(in, 4)) {
    p->lambda_dim = chance(in, 16) ? nasty_int(in) : 1 + below(in, 8);
    p->lambda_q1 = p->lambda_k1 = store_floats(in, &a.scores.sdpa.store, 8, -1, 1, &tame);
    p->lambda_q2 = p->lambda_k2 = store_floats(in, &a.scores.sdpa.store, 8, -1, 1, &tame);
    if (p->lambda_dim > 8 && p->lambda_dim < (int64_t)1 << 32) p->lambda_dim = 8;
  }
  if (below(in, 2)) p->layer = chance(in, 16) ? nasty_int(in) : below(in, 40);
  if (chance(in, 4)) p->init = nasty_float(in);
  if (chance(in, 4)) p->eps = nasty_float(in);
  p->no_norm = chance(in, 4);
  if (below(in, 2)) p->gain = store_floats(in, &a.scores.sdpa.store, view[V].dim, -2, 2, &tame);
  misplace(in, &j);
  p->attention = *s;
  j.runnable &= affordable(view);
  finish(in, &j);
}

#endif
