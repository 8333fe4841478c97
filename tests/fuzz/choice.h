/* choice.h owns the decoding of bytes into calls in which a small network chooses: paths of a mixture,
 * sorted blocks, and edges that are drawn. */

#ifndef FUZZ_CHOICE_H
#define FUZZ_CHOICE_H

#include "arrays.h"

/* LIST is an array of integers; the first outputs are written. */
enum { X_O, X_LSE, X_LIST, X_Q, X_K, X_V, X_P, X_X, X_W, X_W2, X_NK, X_NV, X_TENSORS };
enum {
  GATE,
  MIXTURE,
  DISPATCH_SELECT,
  DISPATCH,
  GATED,
  SINKHORN,
  SORTCUT,
  SINKHORN_BLOCKS,
  SINKHORN_LOGITS,
  SINKHORN_BALANCE,
  SINKHORN_CHOOSE,
  LSTM_STEP,
  POINTER_LOGITS,
  CHOOSE,
  SAC_EDGES,
  SAC_CSR,
  SAC,
  CHOICE_KINDS
};
static const int choice_outputs[CHOICE_KINDS] = {1, 1, 3, 1, 1, 2, 2, 1, 1, 1, 3, 2, 1, 3, 3, 3, 2};

enum { PATHS = 3 };

typedef struct choice_args {
  int kind;
  attn_mixture_params mixture;
  attn_sdpa_params attend; /* of the first path */
  attn_expert path[PATHS];
  int64_t paths;
  attn_sinkhorn_params sinkhorn;
  attn_sac_params sac;
  const int32_t *edges, *count; /* of the calls that read them */
  int64_t n, sets, nodes;
  const uint8_t *permitted;
  const double *u;
} choice_args;

/* The call, or with bytes the workspace query. */
static attn_status choice(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  choice_args *a = (choice_args *)j->args;
  const attn_tensor o = j->b[X_O].view, lse = j->b[X_LSE].view, q = j->b[X_Q].view,
                    k = j->b[X_K].view, v = j->b[X_V].view, p = j->b[X_P].view, x = j->b[X_X].view,
                    w = j->b[X_W].view, w2 = j->b[X_W2].view;
  int32_t *list = (int32_t *)j->b[X_LIST].view.data;
  a->sinkhorn.null_k = j->b[X_NK].view, a->sinkhorn.null_v = j->b[X_NV].view;
  a->sinkhorn.w_1 = a->sac.lstm.w_ih = w, a->sinkhorn.w_2 = a->sac.lstm.w_hh = w2;
  if (a->kind == SINKHORN || a->kind == SORTCUT) a->sinkhorn.lse = lse;
  if (a->kind == SAC) a->sac.lse = lse;
  for (int i = 0; i < PATHS; i++) a->path[i] = (attn_expert){q, k, v, i == 0 ? &a->attend : NULL};
  switch (a->kind) {
    case GATE: return EITHER(attn_gate, o, x, w, &a->mixture);
    case MIXTURE: return EITHER(attn_mixture, o, a->path, a->paths, p);
    case DISPATCH_SELECT: return EITHER(attn_dispatch_select, list, lse, p, &a->mixture);
    case DISPATCH: return EITHER(attn_dispatch, o, a->path, a->paths, list, p);
    case GATED: return EITHER(attn_gated, o, a->path, a->paths, x, w, &a->mixture);
    case SINKHORN:
      a->sinkhorn.choice = list;
      return EITHER(attn_sinkhorn, o, q, k, v, p, &a->sinkhorn);
    case SORTCUT:
      a->sinkhorn.choice = list;
      return EITHER(attn_sortcut, o, q, k, v, p, &a->sinkhorn);
    case SINKHORN_BLOCKS: return EITHER(attn_sinkhorn_blocks, o, x, &a->sinkhorn);
    case SINKHORN_LOGITS: return EITHER(attn_sinkhorn_logits, o, x, &a->sinkhorn);
    case SINKHORN_BALANCE:
      a->sinkhorn.noise = x;
      return EITHER(attn_sinkhorn_balance, o, p, &a->sinkhorn);
    case SINKHORN_CHOOSE: return EITHER(attn_sinkhorn_choose, list, p, &a->sinkhorn);
    case LSTM_STEP:
      a->sac.lstm.bias = v;
      return EITHER(attn_lstm_step, o, lse, x, q, k, &a->sac.lstm);
    case POINTER_LOGITS:
      a->sac.w_p = w, a->sac.dist = w2;
      return EITHER(attn_pointer_logits, o, q, x, a->count, &a->sac);
    case CHOOSE:
      return EITHER(attn_choose, list, (float *)lse.data, p, a->permitted, a->u, &a->sac);
    case SAC_EDGES:
      a->sac.w_p = v, a->sac.dist = q, a->sac.sos = k;
      return EITHER(attn_sac_edges, list, (int32_t *)lse.data, (float *)o.data, x, &a->sac);
    case SAC_CSR:
      return EITHER(attn_sac_csr, (int64_t *)o.data, list, a->edges, a->count, a->sets, a->n,
                    a->nodes, &a->sac);
    default:
      a->sac.w_p = p;
      return EITHER(attn_sac, o, q, k, v, a->edges, a->count, a->n, x, &a->sac);
  }
}

static attn_status call_choice(job *j, attn_ctx *ctx) { return choice(j, ctx, NULL, NULL); }
static size_t workspace_choice(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  choice(j, NULL, ctx, &bytes);
  return bytes;
}

/* ---- mixtures of paths -----------------------------------------------------------------------*/

static void fuzz_mixture(input *in, job *j, store *s) {
  choice_args *a = (choice_args *)j->args;
  const int64_t batch = below(in, 3), heads = 1 + below(in, 2), gates = below(in, 2) ? heads : 1;
  const int64_t t = below(in, 80), tk = below(in, 80), dk = 1 + below(in, 20),
                dv = 1 + below(in, 20);
  const int64_t dx = 1 + below(in, 12), paths = 1 + below(in, PATHS);
  attn_tensor view[X_TENSORS];
  memset(view, 0, sizeof view);
  a->paths = paths;
  a->mixture.k = a->kind == GATED && below(in, 2) ? 0 : 1 + below(in, (int)paths);
  if (chance(in, 12)) a->mixture.k = nasty_int(in);
  a->mixture.temperature = chance(in, 12) ? nasty_float(in) : (float)below(in, 4);
  a->mixture.capacity = chance(in, 2) ? 0 : some(in, 80);
  a->mixture.no_renormalize = below(in, 2);
  const int64_t k = a->mixture.k > 0 && a->mixture.k <= PATHS ? a->mixture.k : 1;
  if (a->kind == MIXTURE || a->kind == DISPATCH || a->kind == GATED) {
    view[X_O] = any_view(in, batch, heads, t, dv, 1);
    view[X_Q] = any_view(in, batch, heads, t, dk, 0);
    view[X_K] = any_view(in, batch, 1, tk, dk, 0);
    view[X_V] = any_view(in, batch, 1, tk, dv, 0);
  }
  if (a->kind == GATE) view[X_O] = f32_view(in, batch, gates, t, paths, 1);
  if (a->kind == MIXTURE) view[X_P] = any_view(in, batch, gates, t, paths, 0);
  if (a->kind == DISPATCH_SELECT) {
    view[X_P] = any_view(in, batch, gates, t, paths, 0);
    view[X_LSE] = f32_view(in, batch, gates, t, k, 1);
  }
  if (a->kind == DISPATCH) view[X_P] = f32_view(in, batch, gates, t, k, 0);
  if (a->kind == GATE || a->kind == GATED) {
    view[X_X] = any_view(in, batch, below(in, 2) ? gates : 1, t, dx, 0);
    a->mixture.w_transposed = chance(in, 3);
    view[X_W] = weights_view(in, gates, dx, paths, a->mixture.w_transposed);
  }
  make_buffers(in, j, view, X_TENSORS);
  if (a->kind == DISPATCH || a->kind == DISPATCH_SELECT) {
    const attn_tensor *w = &j->b[a->kind == DISPATCH ? X_P : X_LSE].view;
    const int64_t rows = array_size(w->batch, w->heads, w->len), n = array_size(rows, w->dim, 1);
    int32_t *list = make_ints(in, &j->b[X_LIST], n, 0, 1);
    if (!list) j->runnable = 0;
    /* neighbours differ, mostly */
    for (int64_t i = 0; list && i < n; i++)
      if (list[i] == 0 && w->dim > 0) list[i] = (int32_t)(i % w->dim % (paths + 1)) - 1;
  }
  if (below(in, 2)) make_params(in, j, s, &a->attend, &j->b[X_Q].view, j->b[X_K].view.len);
  if (chance(in, 24)) a->paths = nasty_int(in) % (PATHS + 1);
}

/* ---- sorted blocks ---------------------------------------------------------------------------*/

static void fuzz_sinkhorn(input *in, job *j) {
  choice_args *a = (choice_args *)j->args;
  attn_sinkhorn_params *p = &a->sinkhorn;
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2));
  const int64_t block = 1 + below(in, 40), nb = below(in, 6), t = block * nb;
  const int64_t dk = 1 + below(in, 20), dv = 1 + below(in, 20), m = 1 + below(in, 12);
  const int whole = a->kind == SINKHORN || a->kind == SORTCUT, chained = whole && below(in, 2);
  attn_tensor view[X_TENSORS];
  memset(view, 0, sizeof view);
  p->block = chance(in, 12) ? nasty_int(in) : block;
  p->causal = a->kind != SORTCUT && below(in, 2);
  p->diag = p->causal && below(in, 2);
  p->hard = below(in, 2);
  p->balance = (attn_sinkhorn_balancing)some(in, ATTN_BALANCE_COUNT);
  p->has_iterations = below(in, 2), p->iterations = below(in, 6) - chance(in, 12);
  p->tau = chance(in, 12) ? nasty_float(in) : (float)below(in, 4) / 2;
  p->gumbel = below(in, 2), p->seed = take(in);
  p->combine = (attn_sinkhorn_combine)some(in, ATTN_SINKHORN_COUNT);
  p->alpha_sorted = some_scale(in), p->alpha_local = some_scale(in);
  p->cut = a->kind == SORTCUT ? 1 + some(in, (int)nb + 1) : 0, p->local = below(in, 2);
  p->scale = some_scale(in);
  if (whole) {
    const int64_t tq = a->kind == SORTCUT && !p->local ? below(in, 80) : t;
    view[X_O] = any_view(in, batch, heads, tq, dv, 1);
    view[X_Q] = any_view(in, batch, heads, tq, dk, 0);
    view[X_K] = any_view(in, batch, kv, t, dk, 0);
    view[X_V] = any_view(in, batch, kv, t, dv, 0);
    if (below(in, 2)) view[X_LSE] = f32_view(in, batch, heads, tq, 1, 1);
    if (a->kind == SINKHORN && chance(in, 3)) {
      view[X_NK] = any_view(in, 1, below(in, 2) ? heads : 1, 1, dk, 0);
      view[X_NV] = any_view(in, 1, below(in, 2) ? heads : 1, 1, dv, 0);
    }
  }
  const int64_t wide = below(in, 2) ? batch : 1, high = below(in, 2) ? heads : 1;
  const int given = p->hard && whole && below(in, 2);
  if (a->kind == SINKHORN_CHOOSE) view[X_P] = f32_view(in, batch, heads, nb, nb, 0);
  if (a->kind == SINKHORN_BALANCE || (whole && !chained && !given))
    view[X_P] = f32_view(in, wide, high, nb, nb, 0);
  if (chained || a->kind == SINKHORN_LOGITS) {
    p->w_transposed = chance(in, 3);
    view[X_W] = weights_view(in, high, dk, m, p->w_transposed);
    view[X_W2] = weights_view(in, high, m, nb, p->w_transposed);
  }
  if (a->kind == SINKHORN_LOGITS) view[X_X] = any_view(in, batch, heads, nb, dk, 0);
  if (a->kind == SINKHORN_BLOCKS) view[X_X] = any_view(in, batch, heads, t, dk, 0);
  if (a->kind == SINKHORN_BALANCE && !p->gumbel) view[X_X] = f32_view(in, wide, high, nb, nb, 0);
  if (a->kind == SINKHORN_BLOCKS) view[X_O] = any_view(in, batch, heads, nb, dk, 1);
  if (a->kind == SINKHORN_LOGITS) view[X_O] = any_view(in, batch, heads, nb, nb, 1);
  if (a->kind == SINKHORN_BALANCE) view[X_O] = f32_view(in, batch, heads, nb, nb, 1);
  make_buffers(in, j, view, X_TENSORS);
  const attn_tensor *of = &j->b[a->kind == SINKHORN_CHOOSE ? X_P : X_Q].view;
  if (a->kind == SINKHORN_CHOOSE || given) {
    /* as long as the call may think it is: the block that it is told says so */
    int64_t places = of->len;
    if (given && p->block > 1) places = j->b[X_K].view.len / p->block;
    make_ints(in, &j->b[X_LIST], array_size(of->batch, of->heads, places), -1, nb);
    if (!j->b[X_LIST].base) j->runnable = 0;
  }
}

/* ---- edges that are drawn --------------------------------------------------------------------*/

static void fuzz_sac(input *in, job *j, store *s) {
  choice_args *a = (choice_args *)j->args;
  attn_sac_params *p = &a->sac;
  const int64_t batch = 1 + below(in, 2), heads = 1 + below(in, 2), high = below(in, 2) ? heads : 1;
  const int64_t t = below(in, 24), m = below(in, 9), dk = 1 + below(in, 9), dv = 1 + below(in, 9);
  const int64_t de = 1 + below(in, 9), dh = 1 + below(in, 9), dist = 2 * below(in, 5) + 1;
  const int weights = a->kind == SAC_EDGES || (a->kind == SAC && below(in, 2));
  attn_tensor view[X_TENSORS];
  memset(view, 0, sizeof view);
  p->heads = below(in, 2) ? heads : 0;
  p->alpha = chance(in, 12) ? (double)nasty_float(in) : (double)below(in, 9) / 4;
  p->forced = below(in, 2), p->causal = below(in, 2), p->no_self = below(in, 2);
  p->repeat = below(in, 2), p->sampled = below(in, 2), p->seed = take(in);
  p->symmetric = below(in, 2), p->no_add_self = below(in, 2), p->scale = some_scale(in);
  if (a->kind == LSTM_STEP) {
    view[X_O] = any_view(in, batch, heads, m, dh, 1);
    view[X_LSE] = any_view(in, batch, heads, m, dh, 1);
    view[X_X] = any_view(in, batch, heads, m, de, 0);
    if (below(in, 2)) view[X_Q] = any_view(in, batch, heads, m, dh, 0);
    if (below(in, 2)) view[X_K] = any_view(in, batch, heads, m, dh, 0);
    if (below(in, 2)) view[X_V] = any_view(in, 1, high, 1, 4 * dh, 0);
  }
  if (a->kind == POINTER_LOGITS) {
    view[X_O] = any_view(in, batch, heads, m, t, 1);
    view[X_Q] = any_view(in, batch, heads, m, dh, 0);
    view[X_W] = any_view(in, 1, high, de, dh, 0);
    if (below(in, 2)) view[X_W2] = any_view(in, 1, high, dist, de, 0);
  }
  if (a->kind == CHOOSE) view[X_P] = f32_view(in, batch, heads, m, t, 0);
  if (a->kind == SAC) {
    view[X_O] = any_view(in, batch, heads, t, dv, 1);
    view[X_Q] = any_view(in, batch, heads, t, dk, 0);
    view[X_K] = any_view(in, batch, 1, t, dk, 0);
    view[X_V] = any_view(in, batch, 1, t, dv, 0);
    if (below(in, 2)) view[X_LSE] = f32_view(in, batch, heads, t, 1, 1);
  }
  if (weights || a->kind == POINTER_LOGITS)
    view[X_X] = any_view(in, batch, below(in, 2) ? heads : 1, t, de, 0);
  if (weights || a->kind == LSTM_STEP) {
    view[X_W] = any_view(in, 1, high, 4 * dh, de, 0);
    view[X_W2] = any_view(in, 1, high, 4 * dh, dh, 0);
  }
  if (weights) view[a->kind == SAC ? X_P : X_V] = any_view(in, 1, high, de, dh, 0);
  if (a->kind == SAC_EDGES && below(in, 2)) view[X_Q] = any_view(in, 1, high, dist, de, 0);
  if (a->kind == SAC_EDGES && below(in, 2)) view[X_K] = any_view(in, 1, high, 1, de, 0);
  make_buffers(in, j, view, X_TENSORS);

  const attn_tensor *e = &j->b[X_X].view, *q = &j->b[X_Q].view, *l = &j->b[X_P].view;
  const int64_t some_heads = p->heads ? p->heads : 1;
  if (a->kind == POINTER_LOGITS && below(in, 2))
    a->count = store_ints(in, s, array_size(q->batch, q->heads, q->len), 0, t);
  if (a->kind == CHOOSE) {
    const int64_t rows = array_size(l->batch, l->heads, l->len), all = array_size(rows, l->dim, 1);
    if (!make_words(&j->b[X_LIST], rows)) j->runnable = 0;
    if (below(in, 2)) make_words(&j->b[X_LSE], rows);
    if (all >= 0 && below(in, 2)) {
      uint8_t *on = (uint8_t *)store_take(s, (size_t)all);
      filler f = {take(in), 0};
      for (int64_t i = 0; i < all; i++) on[i] = filler_next(&f) % 3 != 0;
      a->permitted = on;
    }
    if (rows >= 0 && chance(in, 3)) {
      double *u = (double *)store_take(s, (size_t)rows * sizeof *u);
      filler f = {take(in), 0};
      for (int64_t i = 0; i < rows; i++) u[i] = (double)(1 + filler_next(&f) % 63) / 64;
      if (rows > 0 && chance(in, 12)) u[take(in) % (uint64_t)rows] = (double)nasty_float(in);
      a->u = u;
    }
  }
  if (weights) {
    const int64_t nodes = e->len, b = a->kind == SAC ? q->batch : e->batch;
    const int64_t n = attn_sac_count(nodes, p), sets = array_size(b, some_heads, 1);
    const int64_t valid = array_size(b, nodes, 1), sources = array_size(sets, n, 1);
    if (chance(in, 3)) p->valid = store_valid(in, s, valid);
    /* with sources of its own the count of edges is another */
    if (p->forced && chance(in, 3)) {
      static const int32_t none;
      p->sources = &none;
      const int64_t own = attn_sac_count(nodes, p), count = array_size(sets, own, 1);
      p->sources = store_ints(in, s, count, 0, nodes);
    }
    const int64_t edges = p->sources ? array_size(sets, attn_sac_count(nodes, p), 1) : sources;
    if (a->kind == SAC_EDGES) {
      if (!make_words(&j->b[X_LIST], array_size(edges, 2, 1))) j->runnable = 0;
      if (!make_words(&j->b[X_LSE], sets)) j->runnable = 0;
      if (below(in, 2)) make_words(&j->b[X_O], array_size(edges, 2, 1));
    }
    if (n > 4096) j->runnable = 0;
  }
  if (a->kind == SAC_CSR || (a->kind == SAC && !weights)) {
    a->nodes = a->kind == SAC ? q->len : t;
    a->sets = a->kind == SAC ? array_size(q->batch, some_heads, 1) : below(in, 4);
    a->n = below(in, 40);
    a->edges = store_ints(in, s, array_size(a->sets, a->n, 2), 0, a->nodes);
    a->count = store_ints(in, s, array_size(a->sets, 1, 1), 0, a->n + 1);
    if (a->kind == SAC_CSR) {
      const int64_t room = attn_sac_room(t, a->n, p);
      make_words(&j->b[X_O], array_size(a->sets, t + 1, 2));
      make_words(&j->b[X_LIST], array_size(a->sets, room, 1));
      if (chance(in, 12)) a->sets = -1 - below(in, 3);
      if (chance(in, 12)) a->nodes = -1 - below(in, 3);
      if (chance(in, 12)) a->n = -1 - below(in, 3);
    }
  }
}

static void fuzz_choice(input *in) {
  choice_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, CHOICE_KINDS);
  job j = {.name = "attention by choice",
           .outputs = choice_outputs[a.kind],
           .runnable = 1,
           .args = &a,
           .call = call_choice,
           .workspace = workspace_choice};
  if (a.kind <= GATED)
    fuzz_mixture(in, &j, &s);
  else if (a.kind <= SINKHORN_CHOOSE)
    fuzz_sinkhorn(in, &j);
  else
    fuzz_sac(in, &j, &s);
  job_run(&j, in);
  store_free(&s);
}

#endif
