/* heads.h owns the decoding of bytes into calls about heads: layers that make and mix them, capsules that
 * aggregate them, and losses that compare them. */

#ifndef FUZZ_HEADS_H
#define FUZZ_HEADS_H

#include "arrays.h"
#include "gradients.h"
#include "rope.h"

enum { H_Y, H_LSE, H_EACH, H_X, H_XK, H_WQ, H_WK, H_WV, H_WO, H_MIX, H_TENSORS };
enum {
  MULTIHEAD,
  COLLABORATIVE,
  CAPSULES,
  CAPSULES_EM,
  TALKING,
  DISAGREEMENT,
  GUIDED_LOSS,
  HEAD_KINDS
};
enum { TARGETS = 4 };

typedef struct head_args {
  int kind;
  attn_sdpa_params attend;
  attn_multihead_params multihead;
  attn_collaborative_params collaborative;
  attn_capsules_params capsules;
  attn_capsules_em_params em;
  attn_talking_params talking;
  attn_disagreement_params disagreement;
  attn_guided_params guided;
  attn_rope_params rope;
  attn_qk_norm norm;
  attn_target target[TARGETS];
  attn_target_group group[2];
} head_args;

static void head_tensors(job *j) {
  head_args *a = (head_args *)j->args;
  const attn_tensor w_q = j->b[H_WQ].view, w_k = j->b[H_WK].view, w_v = j->b[H_WV].view,
                    w_o = j->b[H_WO].view, more = j->b[H_MIX].view, x = j->b[H_X].view,
                    x_k = j->b[H_XK].view, each = j->b[H_EACH].view;
  attn_sdpa_params p = a->attend;
  a->disagreement.attention = a->guided.attention = p;
  p.lse = j->b[H_LSE].view;
  a->multihead.attention = a->collaborative.attention = a->talking.attention = p;
  a->multihead.w_q = a->collaborative.w_q = w_q, a->multihead.w_k = a->collaborative.w_k = w_k;
  a->multihead.w_v = a->collaborative.w_v = w_v, a->multihead.w_o = a->collaborative.w_o = w_o;
  a->multihead.b_o = a->collaborative.mix = more;
  if (w_k.len % 2) { /* any row will do */
    a->multihead.bias_k = w_k, a->multihead.bias_v = w_v;
    a->multihead.bias_k.len = a->multihead.bias_v.len = 1;
  }
  a->multihead.each = a->collaborative.each = each;
  a->capsules.w = a->em.w = w_q, a->em.activation = x_k;
  a->talking.w_l = w_k, a->talking.w_w = w_o;
  a->disagreement.v = w_v, a->disagreement.o = w_o;
  a->disagreement.q = a->guided.q = x, a->disagreement.k = a->guided.k = x_k;
  a->disagreement.map = a->guided.map = more;
  a->guided.group = a->group;
}

/* The call, or with bytes the workspace query. */
static attn_status head(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  head_args *a = (head_args *)j->args;
  head_tensors(j);
  const attn_tensor none = {0}, y = j->b[H_Y].view, x = j->b[H_X].view, x_k = j->b[H_XK].view;
  switch (a->kind) {
    case MULTIHEAD: return EITHER(attn_multihead, y, x, x_k, none, &a->multihead);
    case COLLABORATIVE: return EITHER(attn_collaborative, y, x, x_k, &a->collaborative);
    case CAPSULES: return EITHER(attn_capsules, y, x, &a->capsules);
    case CAPSULES_EM: return EITHER(attn_capsules_em, y, x, &a->em);
    case TALKING: return EITHER(attn_talking, y, x, x_k, j->b[H_WV].view, &a->talking);
    case DISAGREEMENT: return EITHER(attn_disagreement, (double *)y.data, &a->disagreement);
    default: return EITHER(attn_guided_loss, (double *)y.data, &a->guided);
  }
}

static attn_status call_head(job *j, attn_ctx *ctx) { return head(j, ctx, NULL, NULL); }
static size_t workspace_head(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  head(j, NULL, ctx, &bytes);
  return bytes;
}

/* Two groups of one target or two. */
static void make_targets(input *in, head_args *a, store *s, int64_t batch, int64_t heads,
                         int64_t keys) {
  a->guided.groups = below(in, 3);
  a->guided.reduction = (attn_guided_reduction)some(in, ATTN_GUIDED_COUNT);
  for (int n = 0; n < TARGETS; n++) {
    attn_target *t = &a->target[n];
    t->kind = (attn_target_kind)some(in, ATTN_TARGET_COUNT);
    t->offset = chance(in, 12) ? nasty_int(in) : below(in, 9) - 4;
    t->per_batch = below(in, 2), t->raw = chance(in, 4);
    t->len = keys;
    const int64_t entries = array_size(t->per_batch ? batch : 1, keys, 1);
    if (entries >= 0 && t->kind == ATTN_TARGET_TOKENS) {
      uint8_t *on = (uint8_t *)store_take(s, (size_t)entries);
      filler f = {take(in), 0};
      for (int64_t i = 0; i < entries; i++) on[i] = filler_next(&f) % 3 == 0;
      t->marked = on;
    }
    if (t->kind == ATTN_TARGET_BLOCK) t->segment = store_ints(in, s, entries, 0, 5);
    if (chance(in, 16)) t->len = nasty_int(in);
    if (chance(in, 24)) t->weight = nasty_float(in);
  }
  for (int n = 0; n < 2; n++) {
    attn_target_group *g = &a->group[n];
    g->target = a->target + 2 * n, g->targets = 1 + below(in, 2);
    if (g->targets == 2 && !chance(in, 12)) a->target[2 * n].weight = 0.25f;
    if (g->targets == 2 && !chance(in, 12)) a->target[2 * n + 1].weight = 0.75f;
    g->heads = below(in, 4);
    g->head = store_ints(in, s, g->heads, 0, heads);
  }
}

/* Gradients of a call of attn_talking that has run, o in the place of what reaches it: the same bits from last to first as
 * alone. */
static void judge_head(job *j) {
  enum { COUNT = 5 };
  const head_args *a = (const head_args *)j->args;
  const attn_tensor *const x[COUNT] = {&j->b[H_X].view, &j->b[H_XK].view, &j->b[H_WV].view,
                                       &a->talking.w_l, &a->talking.w_w};
  attn_tensor y[2][COUNT];
  if (a->kind != TALKING) return;
  for (int n = 0; n < 2; n++) {
    attn_talking_gradients g;
    attn_ctx ctx;
    memset(&ctx, 0, sizeof ctx), memset(&g, 0, sizeof g);
    if (n) ctx.workers = 3, ctx.parallel_for = backwards;
    for (int i = 0; i < COUNT; i++) y[n][i] = gradient_of(x[i]);
    g.d_w_l = y[n][3], g.d_w_w = y[n][4];
    promise(attn_talking_backward(y[n][0], y[n][1], y[n][2], j->b[H_Y].view, *x[0], *x[1], *x[2],
                                  &a->talking, &g, &ctx) == ATTN_OK,
            j, "gradients of a call that ran are refused");
  }
  for (int i = 0; i < COUNT; i++) {
    const size_t n = (size_t)(x[i]->batch * x[i]->heads * x[i]->len * x[i]->dim);
    promise(!memcmp(y[0][i].data, y[1][i].data, n * sizeof(float)), j,
            "workers change the bits of gradients");
    free(y[0][i].data), free(y[1][i].data);
  }
}

static void fuzz_head(input *in) {
  head_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, HEAD_KINDS);
  job j = {.name = "heads",
           .outputs = 3,
           .runnable = 1,
           .args = &a,
           .call = call_head,
           .workspace = workspace_head,
           .judge = judge_head};
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2));
  const int64_t tq = below(in, 80), tk = chance(in, 2) ? tq : below(in, 80),
                wide = 1 + below(in, 20);
  const int64_t dk = 1 + below(in, 12), dv = 1 + below(in, 12), other = 1 + below(in, 4);
  const int with = below(in, 16), losses = a.kind == DISAGREEMENT || a.kind == GUIDED_LOSS;
  int64_t softmax = heads; /* heads of the softmax */
  attn_tensor view[H_TENSORS];
  memset(view, 0, sizeof view);
  switch (a.kind) {
    case MULTIHEAD:
    case COLLABORATIVE: {
      const int64_t groups = a.kind == MULTIHEAD ? kv : heads;
      const int64_t shared = a.kind == MULTIHEAD ? heads * dk : dk, back = 1 + below(in, 20);
      a.multihead.heads = a.collaborative.heads = some(in, 20) > 17 ? nasty_int(in) : heads;
      a.multihead.kv_heads = kv;
      view[H_X] = any_view(in, batch, 1, tq, wide, 0);
      if (with & 1) view[H_XK] = any_view(in, batch, 1, tk, wide, 0);
      const int turned = a.multihead.w_transposed = a.collaborative.w_transposed = chance(in, 3);
      view[H_WQ] = weight_view(in, wide, shared, turned);
      view[H_WK] = weight_view(in, wide, a.kind == MULTIHEAD ? kv * dk : dk, turned);
      view[H_WV] = weight_view(in, wide, groups * dv, turned);
      if (with & 2) view[H_EACH] = any_view(in, batch, heads, tq, dv, 1);
      if (!(with & 2) || with & 4) {
        view[H_WO] = weight_view(in, heads * dv, back, turned);
        view[H_Y] = any_view(in, batch, 1, tq, back, 1);
      }
      if (with & 8) view[H_LSE] = f32_view(in, batch, heads, tq, 1, 1);
      if (a.kind == COLLABORATIVE) view[H_MIX] = any_view(in, 1, 1, heads, dk, 0);
      if (a.kind == MULTIHEAD && below(in, 2)) view[H_MIX] = any_view(in, 1, 1, 1, back, 0);
      break;
    }
    case CAPSULES:
    case CAPSULES_EM:
      view[H_Y] = any_view(in, batch, 1, tq, other * dv, 1);
      view[H_X] = any_view(in, batch, heads, tq, with & 1 ? wide : other * dv, 0);
      if (with & 1) view[H_WQ] = any_view(in, heads, other, wide, dv, 0);
      if (a.kind == CAPSULES_EM && with & 2) view[H_XK] = any_view(in, batch, heads, tq, 1, 0);
      break;
    case TALKING:
      softmax = other;
      view[H_Y] = any_view(in, batch, kv * (1 + (with & 1)), tq, dv, 1);
      view[H_X] = any_view(in, batch, heads, tq, dk, 0);
      view[H_XK] = any_view(in, batch, kv, tk, dk, 0);
      view[H_WV] = any_view(in, batch, kv, tk, dv, 0);
      view[H_WK] = any_view(in, 1, 1, heads, other, 0);
      view[H_WO] = any_view(in, 1, 1, other, view[H_Y].heads, 0);
      if (with & 8) view[H_LSE] = f32_view(in, batch, other, tq, 1, 1);
      break;
    default:
      if (with & 1) {
        view[H_MIX] = any_view(in, batch, heads, tq, tk, 0);
      } else {
        view[H_X] = any_view(in, batch, heads, tq, dk, 0);
        view[H_XK] = any_view(in, batch, kv, tk, dk, 0);
      }
      if (with & 2) view[H_WV] = any_view(in, batch, kv, tk, dv, 0);
      if (with & 4) view[H_WO] = any_view(in, batch, heads, tq, dv, 0);
      break;
  }
  make_buffers(in, &j, view, H_TENSORS);
  if (losses) make_words(&j.b[H_Y], a.kind == DISAGREEMENT ? 6 : 2);
  /* what says how many rows there are */
  const attn_tensor *rows = &j.b[losses && with & 1 ? H_MIX : H_X].view;
  attn_tensor q = *rows;
  q.heads = losses ? q.heads : softmax;
  const int64_t keys = losses && with & 1    ? rows->dim
                       : j.b[H_XK].view.data ? j.b[H_XK].view.len
                                             : rows->len;
  if (a.kind != CAPSULES && a.kind != CAPSULES_EM) make_params(in, &j, &s, &a.attend, &q, keys);
  if (a.kind == GUIDED_LOSS) make_targets(in, &a, &s, q.batch, q.heads, keys);
  a.disagreement.flat = below(in, 2), a.disagreement.by_row = below(in, 2);
  a.capsules.iterations = a.em.iterations = some(in, 5);
  if (a.capsules.iterations > 100) a.capsules.iterations = a.em.iterations = 5;
  a.capsules.capsules = a.em.capsules = with & 1 ? 0 : chance(in, 12) ? nasty_int(in) : other;
  a.capsules.kind = (attn_capsules_kind)some(in, ATTN_CAPSULES_COUNT);
  a.capsules.over_heads = below(in, 2);
  a.em.eps = some_scale(in), a.em.no_act = below(in, 2);
  a.em.betas = below(in, 2) ? other : chance(in, 12) ? 2 : 1;
  if (below(in, 2)) a.em.beta_u = store_floats(in, &s, a.em.betas, -1, 1, &j.tame);
  if (below(in, 2)) a.em.beta_a = store_floats(in, &s, a.em.betas, -1, 1, &j.tame);
  if (!a.em.beta_u && !a.em.beta_a) a.em.betas = 0;
  if (below(in, 2))
    a.em.lambda = store_floats(in, &s, a.em.iterations > 0 ? a.em.iterations : 3, 0, 2, &j.tame);
  if (chance(in, 3)) make_compute(in, &j, &a.multihead.compute, &a.multihead.compute_prefer);
  if (a.kind == MULTIHEAD && chance(in, 3)) {
    make_rope(in, &j, &s, &a.rope, q.batch, keys, dk);
    a.multihead.rope = &a.rope;
    if (below(in, 2)) {
      const int64_t h = a.multihead.heads ? a.multihead.heads : 1;
      make_qk_norm(in, &s, &a.norm, h, a.multihead.kv_heads ? a.multihead.kv_heads : h, dk,
                   &j.tame);
      a.rope.norm = &a.norm;
    }
  }
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
