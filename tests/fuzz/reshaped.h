/* reshaped.h owns the decoding of bytes into calls of attn_reshaped. */

#ifndef FUZZ_RESHAPED_H
#define FUZZ_RESHAPED_H

#include "rope.h"
#include "sdpa.h"

typedef struct reshaped_args {
  sdpa_args sdpa;
  attn_reshaped_params params;
  attn_qk_norm norm;
  int64_t faded; /* numbers in params.selective.sums, which a call changes */
} reshaped_args;

static attn_status call_reshaped(job *j, attn_ctx *ctx) {
  reshaped_args *a = (reshaped_args *)j->args;
  for (int64_t i = 0; i < a->faded; i++) a->params.selective.sums[i] = 0.25 * (double)(i % 9);
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
      a.faded = p->selective.sums ? n : 0;
    }
    if (!chance(in, 8)) s->causal = 1, s->schedule = NULL, s->keep = 0, s->span.z = NULL;
    if (!chance(in, 8)) memset(&s->xl, 0, sizeof s->xl), memset(&p->cope, 0, sizeof p->cope);
  }
  if (below(in, 2))
    p->gate = reshaped_numbers(in, &a, batch, heads, view[Q].len, below(in, 2) ? 1 : view[V].dim,
                               -9, 9, &tame);
  if (chance(in, 4)) {
    const int64_t kh = view[K].heads, tk = view[K].len;
    p->path.w = reshaped_numbers(in, &a, batch, kh, tk, view[Q].dim, -0.3f, 0.3f, &tame);
    if (!chance(in, 16)) p->path.beta = reshaped_numbers(in, &a, batch, kh, tk, 1, 0, 2, &tame);
    if (!chance(in, 8)) s->causal = 1, s->schedule = NULL, s->keep = 0, s->span.z = NULL;
    if (!chance(in, 8))
      memset(&s->xl, 0, sizeof s->xl), memset(&p->selective, 0, sizeof p->selective), a.faded = 0;
    if (s->has_q_off && !chance(in, 8)) s->has_q_off = 0, s->q_off = 0;
  }
  if (chance(in, 4)) {
    make_qk_norm(in, &a.sdpa.store, &a.norm, heads, view[K].heads, view[Q].dim, &tame);
    p->norm = &a.norm;
    if (!chance(in, 8)) s->schedule = NULL, memset(&p->cope, 0, sizeof p->cope);
    if (!chance(in, 8)) memset(&p->path, 0, sizeof p->path);
    if (!chance(in, 8)) memset(&s->xl, 0, sizeof s->xl), s->labels.label = NULL;
    if (!chance(in, 8)) s->relative.keys.data = s->relative.queries.data = NULL;
  }
  a.sdpa.limits.q_off = s->has_q_off                     ? s->q_off
                        : s->causal == ATTN_CAUSAL_START ? 0
                                                         : view[K].len - view[Q].len;
  const int with_map = p->kind == ATTN_RESHAPE_SOFTMAX || chance(in, 32);
  if (!with_map) j.b[MAP].view.data = NULL;
  misplace(in, &j);
  if (p->kind == ATTN_RESHAPE_SIGMOID || p->kind == ATTN_RESHAPE_STICK || chance(in, 32))
    p->sum = j.b[LSE].view;
  else if (p->kind == ATTN_RESHAPE_ENTMAX)
    p->support = j.b[LSE].view;
  else
    s->lse = j.b[LSE].view;
  if (with_map) s->map = j.b[MAP].view;
  p->attention = *s;
  j.runnable &= affordable(view);
  finish(in, &j);
}

/* ---- attn_path_turn --------------------------------------------------------------------------*/

static attn_status call_path_turn(job *j, attn_ctx *ctx) {
  return attn_path_turn(j->b[0].view, j->b[1].view, j->b[2].view,
                        (const attn_path_turn_params *)j->args, ctx);
}

static size_t workspace_path_turn(job *j, const attn_ctx *ctx) {
  return attn_path_turn_workspace(j->b[0].view, j->b[1].view, j->b[2].view,
                                  (const attn_path_turn_params *)j->args, ctx);
}

/* Strengths that are legal, beside vectors that are not too long; what is no number stays. */
static void path_row(const buffer *b, size_t place, void *user) {
  for (int64_t c = 0; c < b->view.dim; c++) {
    const float x = filler_number((filler *)user);
    set_element(b->view.dtype, b->base + place, c, b->view.dim == 1 ? fabsf(x) : x / 16);
  }
}

static void fuzz_path_turn(input *in) {
  attn_path_turn_params p;
  memset(&p, 0, sizeof p);
  job j = {.name = "attn_path_turn",
           .outputs = 1,
           .runnable = 1,
           .unsteady = 1,
           .args = &p,
           .call = call_path_turn,
           .workspace = workspace_path_turn};
  const int64_t batch = below(in, 3), heads = 1 + below(in, 3), tokens = below(in, 6);
  const int64_t dim = 1 + below(in, 70), len = below(in, 200);
  attn_tensor view[3];
  for (int i = 0; i < 3; i++)
    view[i] = make_view(in, (attn_dtype)below(in, 3), batch, heads, i ? tokens : len,
                        i < 2 ? dim : 1, i == 0);
  const int flaws = below(in, 8) - 5;
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, 3)]);
  filler f = {take(in), chance(in, 4) ? 40 : 0};
  for (int i = 0; i < 3; i++) {
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    if (i == 0 || chance(in, 8))
      buffer_fill(&j.b[i], &f);
    else
      each_row(&j.b[i], path_row, &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[below(in, 3)].view.data = NULL;
  store s = {NULL, 0};
  int32_t *lengths = NULL;
  p.stored = below(in, 2);
  if (view[0].batch >= 0 && view[0].batch < 8 && below(in, 2)) {
    lengths = (int32_t *)store_take(&s, (size_t)view[0].batch * sizeof *lengths);
    for (int64_t b = 0; lengths && b < view[0].batch; b++)
      lengths[b] = chance(in, 16) ? (int32_t)nasty_int(in) : (int32_t)below(in, (int)len + 1);
    p.kv_len = lengths;
  }
  job_run(&j, in);
  store_free(&s);
}

#endif
