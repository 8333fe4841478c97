/* blocks.h owns the decoding of bytes into calls of blocks: the feed-forward in runs, encoder and decoder,
 * a decoder's step behind a cache, and the reversible residual. */

#ifndef FUZZ_BLOCKS_H
#define FUZZ_BLOCKS_H

#include "arrays.h"

/* The weights of a block, one set of which serves self and cross attention. */
enum { W_Q, W_KV, W_CROSS, W_O, W_1, W_2, W_BIAS, WEIGHTS };
enum { B_Y, B_MORE, B_K, B_V, B_X, B_E, B_EK, B_EV, B_WEIGHTS, B_TENSORS = B_WEIGHTS + WEIGHTS };
enum { FEED, ENCODER, DECODER, STEP, START, REVERSIBLE, INVERSE, STREAM_MEAN, BLOCK_KINDS };

typedef struct block_args {
  int kind, cross, each;
  attn_block_params p;
  int64_t len; /* of the cache of a step */
  attn_reversible_params reversible;
  int calls, refuse; /* of f and g: the call that fails, 0 = none */
} block_args;

typedef struct block_size {
  int64_t batch, rows, keys, dm, de, heads, kv, width, dff;
  int turned; /* its weights are [out, in] */
} block_size;

static block_size make_block_size(input *in) {
  block_size n = {below(in, 3),     below(in, 70),    below(in, 40),     1 + below(in, 20), 0, 0,
                  1 + below(in, 2), 1 + below(in, 9), 1 + below(in, 40), chance(in, 3)};
  n.heads = n.kv * (1 + below(in, 2));
  n.de = below(in, 2) ? n.dm : 1 + below(in, 20);
  return n;
}

static void block_weight_views(input *in, attn_tensor *view, const block_size *n, int cross,
                               int bias) {
  view[W_Q] = weight_view(in, n->dm, n->heads * n->width, n->turned);
  view[W_KV] = weight_view(in, n->dm, n->kv * n->width, n->turned);
  if (cross) view[W_CROSS] = weight_view(in, n->de, n->kv * n->width, n->turned);
  view[W_O] = weight_view(in, n->heads * n->width, n->dm, n->turned);
  view[W_1] = weight_view(in, n->dm, n->dff, n->turned);
  view[W_2] = weight_view(in, n->dff, n->dm, n->turned);
  if (bias) view[W_BIAS] = any_view(in, 1, 1, 1, n->dm, 0);
}

static void block_weights(attn_block_params *p, const buffer *w, int cross) {
  attn_multihead_params *m[2] = {&p->self, &p->cross};
  for (int i = 0; i < 1 + cross; i++) {
    m[i]->w_q = w[W_Q].view, m[i]->w_o = w[W_O].view, m[i]->b_o = w[W_BIAS].view;
    m[i]->w_k = m[i]->w_v = w[i ? W_CROSS : W_KV].view;
  }
  p->ff.w_1 = w[W_1].view, p->ff.w_2 = w[W_2].view, p->ff.b_2 = w[W_BIAS].view;
  if (w[W_1].view.len % 3 == 0) p->ff.w_3 = w[W_1].view; /* any will do */
}

/* What a block says beside its weights and its attention. x, e: as they are, flaws included. */
static void make_block_params(input *in, store *s, attn_block_params *p, const block_size *n,
                              const attn_tensor *x, const attn_tensor *e, int *tame) {
  attn_norm *norm[6] = {&p->norm_self,  &p->norm_cross,  &p->norm_ff,
                        &p->after_self, &p->after_cross, &p->after_ff};
  const int64_t dm = array_size(x->dim, 1, 1);
  p->self.heads = p->cross.heads = some(in, 20) > 17 ? nasty_int(in) : n->heads;
  p->self.kv_heads = p->cross.kv_heads = n->kv;
  p->self.w_transposed = p->cross.w_transposed = p->ff.w_transposed = n->turned;
  p->ff.activation = (attn_activation)some(in, ATTN_ACT_COUNT);
  p->chunks = some(in, 9);
  p->sublayer = (attn_sublayer)(chance(in, 16) ? some(in, 6) : below(in, 2));
  if (chance(in, 3)) p->sublayer = below(in, 2) ? ATTN_SUBLAYER_SANDWICH : ATTN_SUBLAYER_PARALLEL;
  make_form(in, &p->ff.form);
  for (int i = 0; i < (p->sublayer == ATTN_SUBLAYER_SANDWICH ? 6 : 3); i++) {
    if (chance(in, 12)) norm[i]->kind = (attn_norm_kind)some(in, ATTN_NORM_COUNT + 1);
    if (below(in, 2)) norm[i]->gain = store_floats(in, s, dm, -1, 2, tame);
    if (below(in, 2)) norm[i]->bias = store_floats(in, s, dm, -1, 1, tame);
    if (chance(in, 12)) norm[i]->eps = nasty_float(in);
  }
  if (chance(in, 3)) p->x_len = make_lengths(in, s, x->batch, x->len);
  if (chance(in, 3)) p->e_len = make_lengths(in, s, x->batch, e->len);
}

/* Sequences end to end, for rows that have them and in number what their array holds. */
static void make_ragged(input *in, store *s, attn_ragged *r, int64_t rows, int64_t keys) {
  const int64_t n = 1 + below(in, 4);
  int64_t *at[2];
  for (int i = 0; i < 2; i++) {
    const int64_t limit = i ? keys : rows;
    at[i] = (int64_t *)store_take(s, (size_t)(n + 1) * sizeof *at[i]);
    for (int64_t k = 1; k <= n; k++)
      at[i][k] = at[i][k - 1] + (limit > 0 && limit < 1000 ? take(in) % (limit / n + 1) : 0);
    if (chance(in, 24)) at[i][below(in, (int)n + 1)] = nasty_int(in);
  }
  r->sequences = chance(in, 24) ? n - 2 : n;
  r->q_indptr = at[0], r->kv_indptr = chance(in, 12) ? NULL : at[1];
}

/* ---- the call ------------------------------------------------------------------------------*/

/* F and G of a residual; they hold the caller to what it promises them. */
static attn_status residual(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx) {
  job *j = (job *)user;
  block_args *a = (block_args *)j->args;
  promise(!ctx->workspace && !ctx->workspace_size, j, "f has a workspace");
  promise(y.dtype == ATTN_F32 && y.batch == x.batch && y.heads == 1 && x.heads == 1 &&
              y.len == x.len && y.dim == x.dim && y.stride_len == y.dim &&
              (y.batch == 1 || y.stride_batch == y.len * y.dim),
          j, "rows that f cannot write as they are");
  if (++a->calls == a->refuse) return ATTN_E_SCALE;
  for (int64_t b = 0; b < x.batch; b++)
    for (int64_t i = 0; i < x.len; i++) {
      const int64_t at = b * x.stride_batch + i * x.stride_len;
      const uint8_t *row = (const uint8_t *)x.data + at * (int64_t)type_size(x.dtype);
      float *to = (float *)(uintptr_t)y.data + (b * y.len + i) * y.dim;
      for (int64_t c = 0; c < x.dim; c++) to[c] = 0.5f * element(x.dtype, row, x.dim - 1 - c);
    }
  return ATTN_OK;
}

static attn_status block_step(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  block_args *a = (block_args *)j->args;
  const buffer *b = j->b;
  attn_decoder_cache cache = {b[B_K].view, b[B_V].view, b[B_EK].view, b[B_EV].view, a->len};
  attn_status status;
  if (a->kind == STEP) {
    status = EITHER(attn_decoder_step, b[B_Y].view, b[B_X].view, &cache, &a->p);
    if (!bytes)
      promise(cache.len == a->len + (status ? 0 : b[B_X].view.len), j, "tokens that do not add up");
  } else { /* keys and values of cross attention are what is written */
    cache.e_k = b[B_K].view, cache.e_v = b[B_V].view;
    status = EITHER(attn_decoder_start, &cache, b[B_E].view, &a->p);
    if (!bytes) promise(cache.len == (status ? a->len : 0), j, "a start that is none");
  }
  return status;
}

/* The call, or with bytes the workspace query. */
static attn_status block_call(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  block_args *a = (block_args *)j->args;
  attn_block_params *p = &a->p;
  const attn_tensor y = j->b[B_Y].view, x = j->b[B_X].view, e = j->b[B_E].view,
                    more = j->b[B_MORE].view;
  block_weights(p, j->b + B_WEIGHTS, a->cross);
  if (a->kind != REVERSIBLE && a->kind != INVERSE) {
    if (a->each)
      p->self.each = more;
    else
      p->self.attention.lse = more;
  }
  a->calls = 0;
  switch (a->kind) {
    case FEED: return EITHER(attn_feed_forward_rows, y, x, &p->ff, p->chunks);
    case ENCODER: return EITHER(attn_encoder, y, x, p);
    case DECODER: return EITHER(attn_decoder, y, x, e, p);
    case STEP:
    case START: return block_step(j, ctx, query, bytes);
    case REVERSIBLE: return EITHER(attn_reversible, y, more, x, e, &a->reversible);
    case INVERSE: return EITHER(attn_reversible_inverse, y, more, x, e, &a->reversible);
    default: return EITHER(attn_stream_mean, y, x, e);
  }
}

static attn_status call_block(job *j, attn_ctx *ctx) { return block_call(j, ctx, NULL, NULL); }
static size_t workspace_block(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  block_call(j, NULL, ctx, &bytes);
  return bytes;
}

/* ---- promises ------------------------------------------------------------------------------*/

/* Rows first .. end - 1 of every head are what they were before the call; put = 1: they are made so. */
static int rows_kept(buffer *b, int64_t first, int64_t end, int put) {
  const attn_tensor *t = &b->view;
  const size_t size = type_size(t->dtype);
  int kept = 1;
  if (!buffer_full(b)) return 1;
  for (int64_t i = 0; i < t->batch; i++)
    for (int64_t h = 0; h < t->heads; h++)
      for (int64_t n = first < 0 ? 0 : first; n < end && n < t->len; n++) {
        const int64_t at = i * t->stride_batch + h * t->stride_head + n * t->stride_len;
        const size_t place = (size_t)((int64_t)b->zero + at * (int64_t)size);
        const size_t bytes = (size_t)t->dim * size;
        if (put) memcpy(b->base + place, b->image + place, bytes);
        kept &= !memcmp(b->base + place, b->image + place, bytes);
      }
  return kept;
}

static void judge_block(job *j) {
  const block_args *a = (const block_args *)j->args;
  if (a->kind != STEP) return;
  const int64_t n = j->b[B_X].view.len, end = a->len + (j->b[B_X].view.batch ? n : 0);
  for (int i = B_K; i <= B_V; i++)
    promise(rows_kept(&j->b[i], 0, a->len, 0) && rows_kept(&j->b[i], end, j->b[i].view.len, 0), j,
            "rows of the cache that are not the step's");
}

/* Rows `in` become those of `out` where both have one shape: in place. */
static void alias(buffer *in, const buffer *out) {
  const attn_tensor *x = &in->view, *y = &out->view;
  if (!out->base || !in->base || x->batch != y->batch || x->heads != y->heads || x->len != y->len ||
      x->dim != y->dim)
    return;
  buffer_free(in);
  memset(in, 0, sizeof *in);
  in->view = *y;
}

/* ---- the bytes -----------------------------------------------------------------------------*/

static void block_views(input *in, const block_args *a, const block_size *n, attn_tensor *view) {
  const int with = below(in, 16);
  const int64_t room = a->len + n->rows + below(in, 4), wide = 1 + below(in, 20);
  const int64_t out = a->kind == FEED ? wide : n->dm;
  const int streams = a->kind >= REVERSIBLE;
  if (a->kind != START) {
    view[B_Y] = any_view(in, n->batch, 1, n->rows, out, 1);
    view[B_X] = any_view(in, n->batch, 1, n->rows, n->dm, 0);
  }
  if (streams) view[B_E] = any_view(in, n->batch, 1, n->rows, n->dm, 0);
  if (a->kind == REVERSIBLE || a->kind == INVERSE)
    view[B_MORE] = any_view(in, n->batch, 1, n->rows, n->dm, 1);
  if (streams) return;
  block_weight_views(in, view + B_WEIGHTS, n, a->cross, with & 1);
  if (a->kind == FEED) {
    view[B_WEIGHTS + W_2] = any_view(in, 1, 1, n->dff, out, 0);
    if (with & 1) view[B_WEIGHTS + W_BIAS] = any_view(in, 1, 1, 1, out, 0);
    return;
  }
  if (a->cross && a->kind != STEP) view[B_E] = any_view(in, n->batch, 1, n->keys, n->de, 0);
  if (a->kind == START) {
    if (a->cross) view[B_K] = any_view(in, n->batch, n->kv, n->keys, n->width, 1);
    if (a->cross) view[B_V] = any_view(in, n->batch, n->kv, n->keys, n->width, 1);
    return;
  }
  if (a->each)
    view[B_MORE] = any_view(in, n->batch, n->heads, n->rows, n->width, 1);
  else if (with & 2)
    view[B_MORE] = f32_view(in, n->batch, n->heads, n->rows, 1, 1);
  if (a->kind != STEP) return;
  view[B_K] = any_view(in, n->batch, n->kv, room, n->width, 1);
  view[B_V] = any_view(in, n->batch, n->kv, room, n->width, 1);
  if (a->cross) view[B_EK] = any_view(in, n->batch, n->kv, n->keys, n->width, 0);
  if (a->cross) view[B_EV] = any_view(in, n->batch, n->kv, n->keys, n->width, 0);
}

static void fuzz_block(input *in) {
  block_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  job j = {.name = "a block",
           .outputs = B_X,
           .runnable = 1,
           .args = &a,
           .call = call_block,
           .workspace = workspace_block,
           .judge = judge_block};
  a.kind = below(in, BLOCK_KINDS);
  a.cross = a.kind == DECODER || a.kind == STEP || a.kind == START ? below(in, 2) : 0;
  a.each = a.kind >= ENCODER && a.kind <= STEP && chance(in, 4);
  block_size n = make_block_size(in);
  if (a.kind == STEP) a.len = chance(in, 16) ? nasty_int(in) : below(in, 60);
  const int ragged = (a.kind == ENCODER || a.kind == DECODER) && chance(in, 4);
  if (ragged) n.batch = 1;
  attn_tensor view[B_TENSORS];
  memset(view, 0, sizeof view);
  const int64_t len = a.len;
  if (a.len < 0 || a.len > 100) a.len = 5; /* of a cache that fits in memory */
  block_views(in, &a, &n, view);
  a.len = len;
  make_buffers(in, &j, view, B_TENSORS);
  attn_tensor q = j.b[B_X].view;
  const attn_tensor *e = &j.b[a.kind == STEP ? B_EK : B_E].view;
  make_block_params(in, &s, &a.p, &n, &q, e, &j.tame);
  if (a.kind == STEP && !chance(in, 8)) a.p.x_len = NULL;
  const int held = a.kind == STEP && a.len >= 0 && a.len <= 100 && q.len < 1000;
  const int64_t keys = q.len + (held ? a.len : 0);
  const int64_t heads = a.p.self.heads;
  q.heads = heads > 0 && heads < 64 ? heads : n.heads;
  if (below(in, 2)) make_params(in, &j, &s, &a.p.self.attention, &q, keys);
  if (a.cross && chance(in, 3)) make_params(in, &j, &s, &a.p.cross.attention, &q, e->len);
  if (a.kind == STEP && !chance(in, 8))
    a.p.self.attention.kv_len = a.p.self.attention.q_len = NULL, a.p.self.attention.has_q_off = 0;
  if (ragged) {
    make_ragged(in, &s, &a.p.self.attention.ragged, q.len, q.len);
    if (!chance(in, 8)) a.p.self.attention.ragged.kv_indptr = a.p.self.attention.ragged.q_indptr;
    a.p.self.attention.q_offs = a.p.cross.attention.q_offs = NULL; /* one for each sequence */
    if (a.cross) make_ragged(in, &s, &a.p.cross.attention.ragged, q.len, e->len);
    if (!chance(in, 8)) a.p.x_len = a.p.e_len = NULL;
  }
  a.reversible.f = a.reversible.g = residual;
  a.reversible.f_user = a.reversible.g_user = &j;
  if (chance(in, 8)) a.refuse = 1 + below(in, 2);
  if (chance(in, 24)) a.reversible.g = NULL;
  if (chance(in, 3)) alias(&j.b[B_X], &j.b[B_Y]);
  if (a.kind >= REVERSIBLE && chance(in, 3))
    alias(&j.b[B_E], &j.b[a.kind == STREAM_MEAN ? B_Y : B_MORE]);
  if (chance(in, 3)) make_compute(in, &j, &a.p.self.compute, &a.p.self.compute_prefer);
  if (chance(in, 3)) make_compute(in, &j, &a.p.cross.compute, &a.p.cross.compute_prefer);
  if (chance(in, 3)) make_compute(in, &j, &a.p.ff.compute, &a.p.ff.compute_prefer);
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
