/* depth.h owns the decoding of bytes into calls whose depth is no constant: one block that tokens leave
 * when they halt, and a stack of decoder blocks that they leave early. */

#ifndef FUZZ_DEPTH_H
#define FUZZ_DEPTH_H

#include "blocks.h"

enum { DEPTH_LAYERS = 3 };
enum {
  D_Y,
  D_WORDS, /* ran, or exits */
  D_REMAINDER,
  D_LAST,
  D_K,
  D_V = D_K + DEPTH_LAYERS,
  D_X = D_V + DEPTH_LAYERS,
  D_E, /* e_k and e_v */
  D_P,
  D_WEIGHTS,
  D_TENSORS = D_WEIGHTS + WEIGHTS
};

typedef struct depth_args {
  int stack, cross; /* decoder blocks rather than one; with cross attention */
  attn_universal_params universal;
  attn_exit_decoder_params params;
  attn_block_params layer[DEPTH_LAYERS];
  int64_t len, made[DEPTH_LAYERS]; /* tokens of the cache, and those that have keys */
  unsigned stop;     /* a token stops after layer m where bit (token + m) % 8 is set */
  int calls, refuse; /* of decide: the call that fails, 0 = none */
} depth_args;

static attn_status decide(void *user, const attn_exit_rows *rows, attn_ctx *ctx) {
  job *j = (job *)user;
  depth_args *a = (depth_args *)j->args;
  const attn_tensor *x = &j->b[D_X].view;
  promise(!ctx->workspace && !ctx->workspace_size, j, "decide has a workspace");
  promise(rows->layer >= 1 && rows->layer < a->params.count, j, "a layer that is none");
  promise(rows->h.dtype == ATTN_F32 && rows->h.len > 0 && rows->h.len == rows->before.len &&
              rows->h.stride_len == x->dim && rows->h.dim == x->dim,
          j, "states that decide cannot read");
  if (++a->calls == a->refuse) return ATTN_E_SCALE;
  for (int64_t i = 0; i < rows->h.len; i++) {
    promise(rows->token[i] >= 0 && rows->token[i] < x->batch * x->len, j, "a token that is none");
    promise(i == 0 || rows->token[i] > rows->token[i - 1], j, "tokens out of order");
    promise(rows->stop[i] == 0, j, "a token that has stopped before");
    rows->stop[i] = (unsigned char)(a->stop >> (rows->token[i] + rows->layer) % 8 & 1);
  }
  return ATTN_OK;
}

static attn_status depth_stack(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  depth_args *a = (depth_args *)j->args;
  const buffer *b = j->b;
  attn_decoder_cache layer[DEPTH_LAYERS];
  attn_exit_cache cache = {layer, b[D_LAST].view, a->len};
  memset(layer, 0, sizeof layer);
  for (int m = 0; m < DEPTH_LAYERS; m++) {
    block_weights(&a->layer[m], b + D_WEIGHTS, a->cross);
    layer[m].k = b[D_K + m].view, layer[m].v = b[D_V + m].view, layer[m].len = a->made[m];
    if (a->cross) layer[m].e_k = layer[m].e_v = b[D_E].view;
  }
  a->calls = 0;
  const attn_status status = EITHER(attn_exit_decoder, b[D_Y].view, (int32_t *)b[D_WORDS].view.data,
                                    b[D_X].view, &cache, &a->params);
  if (bytes) return status;
  const int64_t n = b[D_X].view.batch ? b[D_X].view.len : 0;
  promise(cache.len == a->len + (status ? 0 : n), j, "tokens that do not add up");
  for (int m = 0; m < DEPTH_LAYERS; m++) {
    promise(layer[m].len == a->made[m] || (!status && layer[m].len == cache.len), j,
            "keys that do not add up");
    /* behind the tokens that the cache holds a call may have written before it failed */
    if (status && a->refuse)
      for (int i = D_K; i <= D_V; i += DEPTH_LAYERS)
        rows_kept(&j->b[i + m], a->made[m], INT64_MAX, 1);
  }
  return status;
}

/* The call, or with bytes the workspace query. */
static attn_status depth_call(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  depth_args *a = (depth_args *)j->args;
  attn_universal_params *p = &a->universal;
  if (a->stack) return depth_stack(j, ctx, query, bytes);
  block_weights(&p->block, j->b + D_WEIGHTS, 0);
  p->w_p = j->b[D_P].view;
  p->ran = (int32_t *)j->b[D_WORDS].view.data, p->remainder = (float *)j->b[D_REMAINDER].view.data;
  return EITHER(attn_universal, j->b[D_Y].view, j->b[D_X].view, p);
}

static attn_status call_depth(job *j, attn_ctx *ctx) { return depth_call(j, ctx, NULL, NULL); }
static size_t workspace_depth(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  depth_call(j, NULL, ctx, &bytes);
  return bytes;
}

static void judge_depth(job *j) {
  const depth_args *a = (const depth_args *)j->args;
  const int32_t *words = (const int32_t *)j->b[D_WORDS].view.data;
  const int64_t n = buffer_full(&j->b[D_WORDS]) ? j->b[D_WORDS].view.dim : 0;
  for (int64_t i = 0; i < n; i++)
    promise(words[i] >= a->stack && words[i] <= (a->stack ? a->params.count : a->universal.steps),
            j, "a depth that is none");
  if (!a->stack) return;
  if (!a->params.decide) promise(buffer_unchanged(&j->b[D_WORDS]), j, "exits were written");
  promise(rows_kept(&j->b[D_LAST], 0, a->len, 0), j, "a last state was written anew");
  for (int m = 0; m < DEPTH_LAYERS; m++)
    for (int i = D_K; i <= D_V; i += DEPTH_LAYERS)
      promise(rows_kept(&j->b[i + m], 0, a->made[m], 0), j, "keys were written anew");
}

static void universal_params(input *in, attn_universal_params *p) {
  p->steps = chance(in, 12) ? nasty_int(in) : 1 + below(in, 6);
  if (p->steps > 100) p->steps = 7;
  if (chance(in, 6)) p->b_p = nasty_float(in);
  if (below(in, 2)) p->eps = chance(in, 4) ? nasty_float(in) : 0.25f;
  p->output = (attn_universal_output)some(in, ATTN_UNIVERSAL_COUNT);
  if (below(in, 2)) p->copy_halted = (attn_switch)some(in, 3);
  if (below(in, 2)) p->force_last = (attn_switch)some(in, 3);
  p->no_coord = chance(in, 4), p->has_start = chance(in, 4);
  p->pos0 = some(in, 9), p->step0 = some(in, 9);
}

static void stack_params(input *in, job *j, depth_args *a) {
  a->params.layers = a->layer, a->params.user = j;
  a->params.count = chance(in, 24) ? 0 : 1 + below(in, DEPTH_LAYERS);
  if (below(in, 2)) a->params.decide = decide;
  a->stop = take(in);
  if (a->params.decide && chance(in, 6)) a->refuse = 1 + below(in, 2);
  for (int m = 0; m < DEPTH_LAYERS; m++)
    a->made[m] = chance(in, 24) ? nasty_int(in) : below(in, (int)a->len + 1);
  if (chance(in, 24)) a->len = nasty_int(in);
}

static void depth_views(input *in, const depth_args *a, const block_size *n, attn_tensor *view) {
  const int64_t room = a->len + n->rows + below(in, 4);
  const int with = below(in, 4);
  view[D_Y] = any_view(in, n->batch, 1, n->rows, n->dm, 1);
  view[D_X] = any_view(in, n->batch, 1, n->rows, n->dm, 0);
  block_weight_views(in, view + D_WEIGHTS, n, a->cross, with & 1);
  if (!a->stack) {
    if (!chance(in, 4)) view[D_P] = any_view(in, 1, 1, 1, n->dm, 0);
    return;
  }
  view[D_LAST] = any_view(in, n->batch, 1, room, n->dm, 1);
  for (int m = 0; m < DEPTH_LAYERS; m++) {
    view[D_K + m] = any_view(in, n->batch, n->kv, room, n->width, 1);
    view[D_V + m] = any_view(in, n->batch, n->kv, room, n->width, 1);
  }
  if (a->cross) view[D_E] = any_view(in, n->batch, n->kv, n->keys, n->width, 0);
}

static void fuzz_depth(input *in) {
  depth_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  job j = {.name = "a stack",
           .outputs = D_X,
           .runnable = 1,
           .args = &a,
           .call = call_depth,
           .workspace = workspace_depth,
           .judge = judge_depth};
  a.stack = below(in, 2);
  a.cross = a.stack && below(in, 2);
  block_size n = make_block_size(in);
  n.rows %= 40;
  if (a.stack) a.len = below(in, 40);
  if (a.stack && chance(in, 16)) a.len += 250; /* tokens enough to be handled in runs */
  attn_tensor view[D_TENSORS];
  memset(view, 0, sizeof view);
  depth_views(in, &a, &n, view);
  make_buffers(in, &j, view, D_TENSORS);
  const attn_tensor *x = &j.b[D_X].view, *e = &j.b[D_E].view;
  if (a.stack)
    stack_params(in, &j, &a);
  else
    universal_params(in, &a.universal);
  attn_block_params *block = a.stack ? a.layer : &a.universal.block;
  make_block_params(in, &s, block, &n, x, e, &j.tame);
  if (!chance(in, 8)) {
    block->sublayer =
        a.stack && block->sublayer == ATTN_SUBLAYER_PRE ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST;
    if (a.stack) block->x_len = NULL;
  }
  const int64_t heads = block->self.heads;
  attn_sdpa_params *attend = &block->self.attention;
  attend->causal = !a.stack && below(in, 2);
  attend->scale = some_scale(in), attend->softmax_one = chance(in, 4);
  if (chance(in, 4)) attend->softcap = (float)below(in, 33) / 2.0f;
  if (chance(in, 3)) attend->sinks = make_per_head(in, &s, heads ? heads : 1, &j.tame);
  if (chance(in, 24)) attend->window = attn_window_of(3, -1);
  if (chance(in, 24)) attend->kv_len = make_lengths(in, &s, x->batch, x->len);
  for (int m = 1; m < DEPTH_LAYERS; m++) {
    a.layer[m] = a.layer[0];
    if (chance(in, 3)) a.layer[m].sublayer = (attn_sublayer)below(in, 2);
  }
  const int64_t tokens = array_size(x->batch, x->len, 1);
  if (a.stack && !chance(in, 16))
    make_ints(in, &j.b[D_WORDS], tokens, 1, a.params.count);
  else if (!a.stack && below(in, 2))
    make_words(&j.b[D_WORDS], tokens);
  if (!a.stack && below(in, 2)) make_words(&j.b[D_REMAINDER], tokens);
  if (chance(in, 3)) alias(&j.b[D_X], &j.b[D_Y]);
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
