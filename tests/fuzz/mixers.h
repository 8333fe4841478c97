/* mixers.h owns the decoding of bytes into calls that stand beside attention or in its place: norms and
 * activations, Fourier transforms, mixing by learned matrices. */

#ifndef FUZZ_MIXERS_H
#define FUZZ_MIXERS_H

#include "arrays.h"

/* Two pairs of weights with their biases; what a kind has no use for is absent. */
enum {
  N_Y,
  N_SUM,
  N_X,
  N_MORE,
  N_W1,
  N_B1,
  N_W2,
  N_B2,
  N_V1,
  N_C1,
  N_V2,
  N_C2,
  N_WS,
  N_BS,
  N_TENSORS
};
enum { LAYER_NORM, ACTIVATE, FOURIER, FNET, GMLP, MIXER, MIXER_KINDS };

typedef struct mixer_args {
  int kind, bare, turned; /* bare: params are null */
  const int32_t *x_len;
  attn_layer_norm_params norm;
  attn_activate_params activate;
  attn_fnet_params fnet;
  attn_gmlp_params gmlp;
  attn_mixer_params mixer;
} mixer_args;

static void mixer_tensors(job *j) {
  mixer_args *a = (mixer_args *)j->args;
  const buffer *b = j->b;
  attn_feed_forward first = a->mixer.token, second = a->mixer.channel;
  first.w_1 = b[N_W1].view, first.b_1 = b[N_B1].view;
  first.w_2 = b[N_W2].view, first.b_2 = b[N_B2].view;
  second.w_1 = b[N_V1].view, second.b_1 = b[N_C1].view;
  second.w_2 = b[N_V2].view, second.b_2 = b[N_C2].view;
  a->norm.residual = a->activate.gate = b[N_MORE].view, a->norm.sum = b[N_SUM].view;
  first.w_transposed = second.w_transposed = a->gmlp.w_transposed = a->turned;
  a->fnet.ff = a->mixer.token = first, a->mixer.channel = second;
  attn_gmlp_params *g = &a->gmlp;
  g->w_1 = first.w_1, g->b_1 = first.b_1, g->w_2 = first.w_2, g->b_2 = first.b_2;
  g->w_qkv = second.w_1, g->b_qkv = second.b_1, g->w_o = second.w_2, g->b_o = second.b_2;
  g->w_s = b[N_WS].view, g->b_s = b[N_BS].view;
  a->fnet.mix.x_len = g->x_len = a->x_len;
}

/* The call, or with bytes the workspace query. */
static attn_status mixer(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  mixer_args *a = (mixer_args *)j->args;
  mixer_tensors(j);
  const attn_tensor y = j->b[N_Y].view, x = j->b[N_X].view;
  switch (a->kind) {
    case LAYER_NORM: return EITHER(attn_layer_norm, y, x, a->bare ? NULL : &a->norm);
    case ACTIVATE: return EITHER(attn_activate, y, x, a->bare ? NULL : &a->activate);
    case FOURIER: return EITHER(attn_fourier, y, x, a->bare ? NULL : &a->fnet.mix);
    case FNET: return EITHER(attn_fnet, y, x, a->bare ? NULL : &a->fnet);
    case GMLP: return EITHER(attn_gmlp, y, x, a->bare ? NULL : &a->gmlp);
    default: return EITHER(attn_mixer, y, x, a->bare ? NULL : &a->mixer);
  }
}

static attn_status call_mixer(job *j, attn_ctx *ctx) { return mixer(j, ctx, NULL, NULL); }
static size_t workspace_mixer(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  mixer(j, NULL, ctx, &bytes);
  return bytes;
}

/* Rows beyond an entry's length are 0, whatever the others are. */
static void judge_lengths(job *j) {
  const mixer_args *a = (const mixer_args *)j->args;
  const buffer *b = &j->b[N_Y];
  const attn_tensor *t = &b->view;
  if (!a->x_len || a->bare || !buffer_full(b)) return;
  for (int64_t i = 0; i < t->batch; i++)
    for (int64_t n = a->x_len[i]; n < t->len; n++) {
      const int64_t at = i * t->stride_batch + n * t->stride_len;
      const uint8_t *row = b->base + (int64_t)b->zero + at * (int64_t)type_size(t->dtype);
      for (int64_t c = 0; c < t->dim; c++)
        promise(element(t->dtype, row, c) == 0.0f, j, "a row that does not exist is not 0");
    }
}

static attn_norm make_norm(input *in, store *s, int64_t dim, int *tame) {
  attn_norm n = {NULL, NULL, some_scale(in), (attn_norm_kind)some(in, ATTN_NORM_COUNT), 0};
  n.gain_less_one = chance(in, 24) ? 2 : below(in, 2);
  const int with = below(in, 4);
  const int64_t count = array_size(1, dim, 1);
  if (n.eps != 0) *tame = 0;
  if (with & 1) n.gain = store_floats(in, s, count, -1, 1, tame);
  if (with & 2) n.bias = store_floats(in, s, count, -1, 1, tame);
  return n;
}

static void find_special(const buffer *b, size_t place, void *special) {
  for (int64_t c = 0; c < b->view.dim; c++) {
    const float x = element(b->view.dtype, b->base + place, c);
    if (!(x - x == 0.0f)) *(int *)special = 1;
  }
}

/* 1 when all tensors hold numbers alone. */
static int all_finite(const job *j) {
  int special = 0;
  for (int i = 0; i < JOB_BUFFERS; i++)
    if (j->b[i].base && (unsigned)j->b[i].view.dtype <= ATTN_BF16)
      each_row(&j->b[i], find_special, &special);
  return !special;
}

/* In place: the view of a becomes that of b, an output. */
static void same_view(job *j, int a, int b) {
  if (!j->b[b].base) return;
  buffer_free(&j->b[a]);
  memset(&j->b[a], 0, sizeof j->b[a]);
  j->b[a].view = j->b[b].view;
}

/* [1,1,in,out], a bias [1,1,1,out] */
static void weight_views(input *in, attn_tensor *w, attn_tensor *bias, int64_t len, int64_t dim,
                         int turned) {
  *w = weight_view(in, len, dim, turned);
  if (below(in, 2)) *bias = any_view(in, 1, 1, 1, dim, 0);
}

static void mixer_views(input *in, const mixer_args *a, attn_tensor *view) {
  const int64_t batch = below(in, 3), wide = 1 + below(in, 30), split = 1 + below(in, 3);
  const int64_t heads = a->kind <= ACTIVATE ? 1 + below(in, 3) : 1;
  const int64_t dim = a->kind == ACTIVATE && chance(in, 8) ? 2030 + below(in, 40)
                      : a->kind <= FOURIER                 ? 1 + below(in, 80)
                                                           : 1 + below(in, 30);
  const int64_t rows = dim > 2000 ? below(in, 6) : below(in, 200), e = wide * split;
  view[N_Y] = any_view(in, batch, heads, rows, dim, 1);
  const int whole = a->kind > ACTIVATE || below(in, 4);
  view[N_X] = any_view(in, whole ? batch : 1, whole ? heads : 1, rows, dim, 0);
  switch (a->kind) {
    case LAYER_NORM:
    case ACTIVATE: {
      const int spread = below(in, 4), with = below(in, 4);
      if (with & 1)
        view[N_MORE] = any_view(in, spread & 1 ? 1 : batch, spread & 2 ? 1 : heads, rows, dim, 0);
      if (with & 2 && a->kind == LAYER_NORM) view[N_SUM] = any_view(in, batch, heads, rows, dim, 1);
      break;
    }
    case FNET:
      weight_views(in, &view[N_W1], &view[N_B1], dim, e, a->turned);
      weight_views(in, &view[N_W2], &view[N_B2], e, dim, a->turned);
      break;
    case GMLP: {
      const int64_t n = rows + below(in, 4);
      weight_views(in, &view[N_W1], &view[N_B1], dim, 2 * e, a->turned);
      weight_views(in, &view[N_W2], &view[N_B2], e, dim, a->turned);
      view[N_WS] = any_view(in, 1, split, n, n, 0);
      if (below(in, 2)) view[N_BS] = any_view(in, 1, below(in, 2) ? split : 1, 1, n, 0);
      if (below(in, 2)) {
        const int64_t tiny = 1 + below(in, 12);
        weight_views(in, &view[N_V1], &view[N_C1], dim, 3 * tiny, a->turned);
        weight_views(in, &view[N_V2], &view[N_C2], tiny, e, a->turned);
      }
      break;
    }
    case MIXER:
      weight_views(in, &view[N_W1], &view[N_B1], rows, e, a->turned);
      weight_views(in, &view[N_W2], &view[N_B2], e, rows, a->turned);
      weight_views(in, &view[N_V1], &view[N_C1], dim, wide, a->turned);
      weight_views(in, &view[N_V2], &view[N_C2], wide, dim, a->turned);
      break;
    default: break;
  }
}

static void fuzz_mixer(input *in) {
  mixer_args a;
  store s = {NULL, 0};
  attn_tensor view[N_TENSORS];
  memset(&a, 0, sizeof a);
  memset(view, 0, sizeof view);
  a.kind = below(in, MIXER_KINDS), a.turned = chance(in, 3);
  job j = {.name = "a mixer",
           .outputs = 2,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_mixer,
           .workspace = workspace_mixer,
           .unsteady = a.kind >= FNET}; /* a norm of what is computed */
  mixer_views(in, &a, view);
  make_buffers(in, &j, view, N_TENSORS);
  const attn_tensor *x = &j.b[N_X].view;
  const int place = below(in, 6);
  if (place == 1 && a.kind != FOURIER && a.kind != FNET) same_view(&j, N_X, N_Y);
  if (place == 2) same_view(&j, N_MORE, a.kind == LAYER_NORM ? N_SUM : N_Y);
  if (place == 3 && a.kind == LAYER_NORM) same_view(&j, N_X, N_SUM);
  if (a.kind >= FOURIER && a.kind <= GMLP && chance(in, 3)) {
    a.x_len = make_lengths(in, &s, x->batch, x->len);
    j.judge = judge_lengths;
  }
  const attn_norm norm = make_norm(in, &s, x->dim, &j.tame);
  a.norm.norm = a.fnet.norm_1 = a.gmlp.norm = a.mixer.norm_token = norm;
  if (a.kind > FOURIER) {
    const attn_tensor *w = &j.b[N_W2].view;
    const int64_t gated = a.kind != GMLP ? x->dim : a.turned ? w->dim : w->len;
    const attn_norm other = make_norm(in, &s, gated, &j.tame);
    a.fnet.norm_2 = a.gmlp.norm_gate = a.mixer.norm_channel = other;
  }
  a.activate.activation = (attn_activation)some(in, ATTN_ACT_COUNT);
  make_form(in, &a.activate.form);
  a.gmlp.activation = a.mixer.token.activation = a.activate.activation;
  a.mixer.channel.activation = (attn_activation)some(in, ATTN_ACT_COUNT);
  a.fnet.mix.form = (attn_fourier_form)some(in, ATTN_FOURIER_COUNT);
  a.gmlp.causal = below(in, 2);
  a.bare = chance(in, 16);
  j.tame = j.tame && all_finite(&j);
  job_run(&j, in);
  store_free(&s);
}

#endif
