/* gates.h owns the decoding of bytes into calls of the Gated Transformer-XL and on trajectories: gates and
 * their block, returns, tokens of steps, the mask of those that exist, predictions. */

#ifndef FUZZ_GATES_H
#define FUZZ_GATES_H

#include "mixers.h"

/* W and U stand for all weights of a gate; Y is also the compressed memory. */
enum {
  T_O,
  T_LSE,
  T_USAGE,
  T_X,
  T_Y,
  T_MEMORY,
  T_WQ,
  T_WK,
  T_WV,
  T_WO,
  T_WR,
  T_W,
  T_U,
  T_BIAS,
  T_F1,
  T_F2,
  T_TENSORS
};
enum { GTRXL_GATE, GTRXL, RETURNS, TRAJECTORY, TRAJECTORY_PREDICT, GATE_KINDS };

typedef struct gate_args {
  int kind, bare; /* bare: params are null */
  int projected, wide_bias, turned;
  attn_gtrxl_params gtrxl;
  attn_returns_params returns;
  attn_trajectory_params tokens;
  attn_trajectory_predict_params predict;
} gate_args;

static void gate_tensors(job *j) {
  gate_args *a = (gate_args *)j->args;
  const buffer *b = j->b;
  const attn_tensor w = b[T_W].view, u = b[T_U].view, bias = b[T_BIAS].view;
  attn_segment_layer_params *l = &a->gtrxl.attention;
  l->memory.rows = b[T_MEMORY].view, l->compressed.rows = b[T_Y].view;
  l->w_q = b[T_WQ].view, l->w_k = b[T_WK].view, l->w_v = b[T_WV].view, l->w_o = b[T_WO].view;
  if (l->w_o.len == 3) l->b_o = l->w_o, l->b_o.len = 1; /* any row will do */
  if (a->projected)
    l->w_r = b[T_WR].view;
  else
    l->attention.r = b[T_WR].view;
  l->attention.lse = b[T_LSE].view, l->attention.usage = b[T_USAGE].view;
  for (int i = 0; i < 2; i++) {
    attn_gtrxl_gate_params *g = i ? &a->gtrxl.gate_2 : &a->gtrxl.gate_1;
    g->w_transposed = a->turned;
    g->w_r = g->w_z = g->w_g = w, g->u_r = g->u_z = g->u_g = u, g->b_g = bias;
  }
  l->w_transposed = a->gtrxl.ff.w_transposed = a->tokens.w_transposed = a->turned;
  a->predict.w_transposed = a->turned;
  a->gtrxl.ff.w_1 = b[T_F1].view, a->gtrxl.ff.w_2 = b[T_F2].view, a->gtrxl.ff.b_2 = bias;
  if (a->wide_bias) a->gtrxl.ff.b_1 = bias;
  attn_trajectory_params *t = &a->tokens;
  t->w_return = w, t->w_state = b[T_WQ].view, t->w_action = b[T_WK].view, t->times = b[T_F1].view;
  t->b_return = t->b_state = t->b_action = bias;
  a->predict.w = w, a->predict.bias = bias;
}

/* The call, or with bytes the workspace query. */
static attn_status gate(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  gate_args *a = (gate_args *)j->args;
  gate_tensors(j);
  const attn_tensor o = j->b[T_O].view, x = j->b[T_X].view, y = j->b[T_Y].view;
  const attn_tensor actions = j->b[T_MEMORY].view;
  switch (a->kind) {
    case GTRXL_GATE: return EITHER(attn_gtrxl_gate, o, x, y, a->bare ? NULL : &a->gtrxl.gate_1);
    case GTRXL: return EITHER(attn_gtrxl, o, x, a->bare ? NULL : &a->gtrxl);
    case RETURNS: return EITHER(attn_returns, o, x, a->bare ? NULL : &a->returns);
    case TRAJECTORY:
      return EITHER(attn_trajectory_tokens, o, x, y, actions, a->bare ? NULL : &a->tokens);
    default: return EITHER(attn_trajectory_predict, o, y, a->bare ? NULL : &a->predict);
  }
}

static attn_status call_gate(job *j, attn_ctx *ctx) { return gate(j, ctx, NULL, NULL); }
static size_t workspace_gate(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  gate(j, NULL, ctx, &bytes);
  return bytes;
}

/* A ring of up to 20 rows, often full, now and then out of range. */
static attn_memory make_memory(input *in, attn_tensor *view, int64_t batch, int64_t dim) {
  attn_memory m;
  memset(&m, 0, sizeof m);
  const int64_t room = below(in, 20);
  *view = any_view(in, batch, 1, room, dim, 0);
  m.len = below(in, 2) ? room : below(in, (int)room + 1);
  m.first = room ? below(in, (int)room) : 0;
  if (chance(in, 24)) m.len = nasty_int(in);
  if (chance(in, 24)) m.first = nasty_int(in);
  return m;
}

/* Weights, memories and extra outputs of the block. */
static void gtrxl_views(input *in, gate_args *a, attn_tensor *view, int64_t batch, int64_t rows,
                        int64_t dim) {
  attn_segment_layer_params *l = &a->gtrxl.attention;
  const int64_t kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2)), hidden = 1 + below(in, 30);
  const int64_t dk = 1 + below(in, 9), dv = 1 + below(in, 9);
  const int with = below(in, 64);
  l->heads = chance(in, 12) ? nasty_int(in) : heads, l->kv_heads = kv;
  if (with & 1) l->memory = make_memory(in, &view[T_MEMORY], batch, dim);
  if (with & 2) l->compressed = make_memory(in, &view[T_Y], batch, dim);
  if (with & 4) view[T_LSE] = f32_view(in, batch, heads, rows, 1, 1);
  if (with & 8) view[T_USAGE] = f32_view(in, batch, 1, 1, below(in, (int)rows + 20), 1);
  view[T_WQ] = weight_view(in, dim, heads * dk, a->turned);
  view[T_WK] = weight_view(in, dim, kv * dk, a->turned);
  view[T_WV] = weight_view(in, dim, kv * dv, a->turned);
  view[T_WO] = weight_view(in, heads * dv, dim, a->turned);
  a->projected = below(in, 2);
  if (with & 16)
    view[T_WR] = a->projected
                     ? weight_view(in, dim, heads * dk, a->turned)
                     : f32_view(in, 1, below(in, 2) ? heads : 1, rows + below(in, 40), dk, 0);
  a->wide_bias = below(in, 2);
  view[T_F1] = weight_view(in, dim, a->wide_bias ? dim : hidden, a->turned);
  view[T_F2] = weight_view(in, a->wide_bias ? dim : hidden, dim, a->turned);
}

static void gate_views(input *in, gate_args *a, attn_tensor *view) {
  const int64_t batch = below(in, 3), dim = 1 + below(in, a->kind == GTRXL ? 24 : 40);
  const int64_t rows =
      a->kind == GTRXL ? below(in, 40) : below(in, a->kind == GTRXL_GATE ? 250 : 70);
  const int64_t wide = 1 + below(in, 30), other = 1 + below(in, 30);
  const int with = below(in, 2);
  a->turned = chance(in, 3);
  switch (a->kind) {
    case GTRXL_GATE: view[T_Y] = any_view(in, batch, 1, rows, dim, 0); /* fall through */
    case GTRXL:
      view[T_O] = any_view(in, batch, 1, rows, dim, 1);
      view[T_X] = any_view(in, batch, 1, rows, dim, 0);
      view[T_W] = any_view(in, 1, 1, dim, dim, 0), view[T_U] = any_view(in, 1, 1, dim, dim, 0);
      if (with) view[T_BIAS] = any_view(in, 1, 1, 1, dim, 0);
      if (a->kind == GTRXL) gtrxl_views(in, a, view, batch, rows, dim);
      break;
    case RETURNS:
      view[T_O] = any_view(in, batch, 1, rows, 1, 1);
      view[T_X] = any_view(in, batch, 1, rows, 1, 0);
      break;
    case TRAJECTORY:
      view[T_O] = any_view(in, batch, 1, 3 * rows, dim, 1);
      view[T_X] = any_view(in, batch, 1, rows, 1, 0);
      view[T_Y] = any_view(in, batch, 1, rows, wide, 0);
      view[T_MEMORY] = any_view(in, batch, 1, rows, other, 0);
      view[T_W] = weight_view(in, 1, dim, a->turned);
      view[T_WQ] = weight_view(in, wide, dim, a->turned);
      view[T_WK] = weight_view(in, other, dim, a->turned);
      view[T_F1] = any_view(in, 1, 1, 1 + below(in, 20), dim, 0);
      if (with) view[T_BIAS] = any_view(in, 1, 1, 1, dim, 0);
      break;
    default:
      view[T_O] = any_view(in, batch, 1, rows, wide, 1);
      view[T_Y] = any_view(in, batch, 1, 3 * rows, dim, 0);
      view[T_W] = weight_view(in, dim, wide, a->turned);
      if (with) view[T_BIAS] = any_view(in, 1, 1, 1, wide, 0);
      break;
  }
}

static void make_gate(input *in, attn_gtrxl_gate_params *p, int *tame) {
  p->kind = (attn_gtrxl_kind)some(in, ATTN_GTRXL_COUNT);
  p->b = below(in, 2) ? 0 : below(in, 2) ? ATTN_ZERO : (float)(below(in, 33) - 16) / 8;
  if (chance(in, 16)) p->b = nasty_float(in), *tame = 0;
}

static void make_gtrxl(input *in, gate_args *a, job *j, store *s) {
  attn_gtrxl_params *p = &a->gtrxl;
  attn_segment_params *t = &p->attention.attention;
  const int64_t dim = j->b[T_X].view.dim,
                biases = array_size(1, a->turned ? j->b[T_WQ].view.len : j->b[T_WQ].view.dim, 1);
  t->scale = some_scale(in);
  t->window = chance(in, 3) ? some(in, 30) : 0;
  if (j->b[T_WR].base || chance(in, 24)) {
    t->u = store_floats(in, s, biases, -1, 1, &j->tame);
    t->v = store_floats(in, s, biases, -1, 1, &j->tame);
    if (chance(in, 24)) t->v = NULL;
  }
  t->bidirectional = chance(in, 4), p->attention.interleaved = chance(in, 4);
  if (chance(in, 12)) p->attention.base = nasty_float(in);
  p->attention.norm = make_norm(in, s, dim, &j->tame);
  p->norm_ff = make_norm(in, s, dim, &j->tame);
  p->ff.activation = (attn_activation)some(in, ATTN_ACT_COUNT);
  make_gate(in, &p->gate_2, &j->tame);
}

static void fuzz_gate_call(input *in, int kind) {
  gate_args a;
  store s = {NULL, 0};
  attn_tensor view[T_TENSORS];
  memset(&a, 0, sizeof a);
  memset(view, 0, sizeof view);
  a.kind = kind;
  job j = {.name = "a gate or trajectory",
           .outputs = 3,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_gate,
           .workspace = workspace_gate,
           .unsteady = kind == GTRXL}; /* a norm of what is computed */
  gate_views(in, &a, view);
  make_buffers(in, &j, view, T_TENSORS);
  const attn_tensor *x = &j.b[T_X].view;
  make_gate(in, &a.gtrxl.gate_1, &j.tame);
  if (kind == GTRXL) make_gtrxl(in, &a, &j, &s);
  if (kind == RETURNS) {
    if (chance(in, 3)) same_view(&j, T_X, T_O);
    a.returns.gamma = below(in, 2) ? 0 : below(in, 3) ? (float)below(in, 17) / 16 : ATTN_ZERO;
    if (chance(in, 16)) a.returns.gamma = nasty_float(in);
    const int64_t entries = array_size(x->batch, 1, 1);
    if (below(in, 2)) a.returns.target = store_floats(in, &s, entries, -4, 4, &j.tame);
  }
  if (kind == TRAJECTORY) {
    const int64_t steps = array_size(x->batch, x->len, 1);
    a.tokens.timesteps = store_ints(in, &s, steps, 0, j.b[T_F1].view.len);
    a.tokens.norm = make_norm(in, &s, j.b[T_O].view.dim, &j.tame);
  }
  a.predict.head = (attn_trajectory_head)some(in, ATTN_TRAJECTORY_HEADS);
  a.predict.linear = below(in, 2);
  a.bare = chance(in, 16);
  j.tame = j.tame && kind != RETURNS && all_finite(&j);
  job_run(&j, in);
  store_free(&s);
}

/* It has no status: what it cannot say is no mask, and nothing is written then. */
static void fuzz_trajectory_mask(input *in) {
  const job j = {.name = "attn_trajectory_mask"};
  store s = {NULL, 0};
  const int64_t batch = some(in, 4), steps = some(in, 40), n = array_size(batch, steps, 1);
  const int none = chance(in, 12), few = batch < 1 || steps < 1;
  const int many = !few && batch > INT64_MAX / 3 / steps;
  if (n < 0 && !few && !many) return; /* more than there is memory */
  const int64_t room = few || many ? 0 : n;
  uint8_t *keys = (uint8_t *)store_take(&s, (size_t)(3 * room));
  uint8_t *valid = (uint8_t *)store_take(&s, (size_t)room);
  filler f = {take(in), 0};
  for (int64_t i = 0; i < room; i++)
    valid[i] = (uint8_t)(filler_next(&f) % 3 ? filler_next(&f) : 0);
  const attn_mask m = attn_trajectory_mask(keys, none ? NULL : valid, batch, steps);
  promise((m.kind == ATTN_MASK_NONE) == (none || few || many), &j, "the wrong kind of mask");
  for (int64_t i = 0; m.kind != ATTN_MASK_NONE && i < 3 * room; i++)
    promise(keys[i] == (valid[i / 3] != 0), &j, "a token of another step");
  store_free(&s);
}

static void fuzz_gate(input *in) {
  const int kind = below(in, GATE_KINDS + 1);
  if (kind == GATE_KINDS)
    fuzz_trajectory_mask(in);
  else
    fuzz_gate_call(in, kind);
}

#endif
