/* experts.h owns the decoding of bytes into rows that are sent through mixtures of experts. */

#ifndef FUZZ_EXPERTS_H
#define FUZZ_EXPERTS_H

#include "arrays.h"
#include "product.h"

enum {
  R_Y,
  R_WEIGHT,
  R_LOGITS,
  R_EXPERT,
  R_X,
  R_GATE,
  R_GATE_BIAS,
  R_CHOICE,
  R_W1,
  R_B1,
  R_W2,
  R_B2,
  R_W3,
  R_B3,
  R_S1,
  R_S2,
  R_SG,
  R_TENSORS
};

static const attn_expert_rows_params *experts_params(job *j) {
  attn_expert_rows_params *p = (attn_expert_rows_params *)j->args;
  const buffer *b = j->b;
  p->weight = b[R_WEIGHT].view, p->logits = b[R_LOGITS].view;
  p->expert = (int32_t *)b[R_EXPERT].view.data;
  p->w_gate = b[R_GATE].view, p->b_gate = b[R_GATE_BIAS].view;
  p->choice_bias = b[R_CHOICE].view;
  p->experts.w_1 = b[R_W1].view, p->experts.b_1 = b[R_B1].view;
  p->experts.w_2 = b[R_W2].view, p->experts.b_2 = b[R_B2].view;
  p->experts.w_3 = b[R_W3].view, p->experts.b_3 = b[R_B3].view;
  p->shared.w_1 = b[R_S1].view, p->shared.w_2 = b[R_S2].view, p->w_shared = b[R_SG].view;
  return p;
}

static attn_status call_experts(job *j, attn_ctx *ctx) {
  const attn_expert_rows_params *p = experts_params(j);
  return attn_expert_rows(j->b[R_Y].view, j->b[R_X].view, p, ctx);
}

static size_t workspace_experts(job *j, const attn_ctx *ctx) {
  const attn_expert_rows_params *p = experts_params(j);
  return attn_expert_rows_workspace(j->b[R_Y].view, j->b[R_X].view, p, ctx);
}

/* Experts of a row are different ones, and their numbers those of experts. */
static void judge_experts(job *j) {
  const attn_expert_rows_params *p = (const attn_expert_rows_params *)j->args;
  const buffer *y = &j->b[R_Y];
  const int64_t count = p->w_transposed ? p->w_gate.len : p->w_gate.dim;
  if (!p->expert || y->view.batch < 1 || y->view.len < 1) return;
  for (int64_t r = 0; r < y->view.batch * y->view.len; r++)
    for (int64_t i = 0; i < p->k; i++) {
      const int32_t *to = p->expert + r * p->k;
      promise(to[i] >= 0 && to[i] < count, j, "an expert that is none");
      for (int64_t e = 0; e < i; e++) promise(to[e] != to[i], j, "an expert twice");
    }
}

static void fuzz_experts(input *in) {
  store all = {NULL, 0};
  attn_expert_rows_params p;
  memset(&p, 0, sizeof p);
  job j = {.name = "attn_expert_rows",
           .outputs = R_X,
           .runnable = 1,
           .args = &p,
           .call = call_experts,
           .workspace = workspace_experts,
           .judge = judge_experts};
  const int64_t batch = below(in, 3), rows = below(in, chance(in, 4) ? 300 : 20);
  const int64_t din = 1 + below(in, 40), dff = 1 + below(in, 80), dout = 1 + below(in, 40);
  const int64_t groups = 1 + below(in, 4), count = groups * (1 + below(in, 6));
  const int with = below(in, 256), gate = below(in, 2), turned = below(in, 2);
  const int64_t mid = with & 1 ? dff : dout;
  p.k = chance(in, 12) ? nasty_int(in) : 1 + below(in, count < 5 ? (int)count : 5);
  p.groups = chance(in, 2) ? 0 : chance(in, 16) ? nasty_int(in) : groups;
  p.group_k = p.groups == groups ? some(in, (int)groups + 1) : chance(in, 24);
  p.group_by = (attn_experts_group)some(in, ATTN_EXPERTS_GROUP_COUNT);
  p.score = (attn_experts_score)some(in, ATTN_EXPERTS_SCORE_COUNT);
  p.no_renormalize = below(in, 2), p.weigh_input = chance(in, 4), p.scale = some_scale(in);
  p.w_transposed = gate, p.experts.w_transposed = p.shared.w_transposed = turned;
  p.experts.activation = (attn_activation)some(in, ATTN_ACT_COUNT);
  make_form(in, &p.experts.form);
  attn_tensor view[R_TENSORS];
  memset(view, 0, sizeof view);
  view[R_Y] = any_view(in, batch, 1, rows, dout, 1);
  view[R_X] = any_view(in, batch, 1, rows, din, 0);
  view[R_GATE] = weight_view(in, din, count, gate);
  view[R_W1] = weights_view(in, count, din, mid, turned);
  if (with & 1) view[R_W2] = weights_view(in, count, mid, dout, turned);
  if (with & 2) view[R_W3] = weights_view(in, count, din, mid, turned);
  if (with & 4) view[R_B1] = any_view(in, 1, count, 1, mid, 0);
  if (with & 4 && with & 1) view[R_B2] = any_view(in, 1, count, 1, dout, 0);
  if (with & 4 && with & 2) view[R_B3] = any_view(in, 1, count, 1, mid, 0);
  if (with & 8) view[R_GATE_BIAS] = any_view(in, 1, 1, 1, count, 0);
  if (with & 16) view[R_CHOICE] = any_view(in, 1, 1, 1, count, 0);
  if (with & 32) view[R_S1] = weight_view(in, din, dff, turned);
  if (with & 32) view[R_S2] = weight_view(in, dff, dout, turned);
  if (with & 32 && chance(in, 2)) view[R_SG] = weight_view(in, din, 1, gate);
  if (with & 64) view[R_WEIGHT] = f32_view(in, batch, 1, rows, p.k > 0 && p.k < 9 ? p.k : 2, 1);
  if (with & 128) view[R_LOGITS] = f32_view(in, batch, 1, rows, count, 1);
  make_buffers(in, &j, view, R_TENSORS);
  if (chance(in, 2) && p.k > 0 && p.k < 9) {
    const attn_tensor *y = &j.b[R_Y].view;
    const int64_t n = array_size(y->batch, y->len, p.k);
    make_words(&j.b[R_EXPERT], n);
    j.runnable &= j.b[R_EXPERT].base != NULL || n == 0;
  }
  buffer *const w[] = {&j.b[R_W1], &j.b[R_W2], &j.b[R_W3]};
  attn_scales *const scales[] = {&p.experts.w_1_scales, &p.experts.w_2_scales,
                                 &p.experts.w_3_scales};
  for (int i = 0; i < 3; i++)
    if (buffer_full(w[i]) && chance(in, 4)) make_codes(in, &j, &all, w[i], turned, scales[i]);
  if (chance(in, 3)) make_compute(in, &j, &p.experts.compute, &p.experts.compute_prefer);
  j.tame = 0;
  job_run(&j, in);
  store_free(&all);
}

#endif
