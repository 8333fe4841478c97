/* streams.h owns the decoding of bytes into calls whose rows read a second set of keys, into moving averages, and into what
 * stands around a decaying state: a window beside sums of blocks and those sums, streams with keys of their own, damped
 * averages; logs of decays, the short convolution, norms with a gate. */

#ifndef FUZZ_STREAMS_H
#define FUZZ_STREAMS_H

#include "arrays.h"
#include "linear.h"

enum { ST_O, ST_LSE, ST_Q, ST_K, ST_V, ST_OWN_K, ST_OWN_V, ST_RELATIVE, ST_TENSORS };
enum {
  LONG_T5,
  GLOBAL_ROWS,
  NGRAM,
  DAMPED_EMA,
  LOG_DECAY,
  SHORT_CONVOLVE,
  GATED_NORM,
  STREAM_KINDS
};
static const int stream_outputs[STREAM_KINDS] = {2, 1, 2, 2, 1, 2, 1};

typedef struct stream_args {
  int kind;
  attn_long_t5_params long_t5;
  attn_global_rows_params rows;
  attn_ngram_params ngram;
  attn_damped_ema_params ema;
  attn_log_decay_params decay;
  attn_short_convolve_params conv;
  attn_gated_norm_params norm;
  int in_place, plain; /* of the last three: which input is an output; no params */
} stream_args;

/* The call, or with bytes the workspace query. */
static attn_status stream(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  stream_args *a = (stream_args *)j->args;
  const attn_tensor o = j->b[ST_O].view, q = j->b[ST_Q].view, k = j->b[ST_K].view,
                    v = j->b[ST_V].view, own_k = j->b[ST_OWN_K].view, own_v = j->b[ST_OWN_V].view;
  a->long_t5.lse = a->ngram.lse = j->b[ST_LSE].view, a->ngram.relative = j->b[ST_RELATIVE].view;
  a->ema.final_state = j->b[ST_LSE].view, a->ema.initial_state = k;
  const attn_tensor x = a->in_place == 1 ? o : q, z = a->in_place == 2 ? o : k;
  a->conv.bias = v, a->conv.final_rows = j->b[ST_LSE].view;
  a->conv.initial = a->in_place ? j->b[ST_LSE].view : own_k;
  switch (a->kind) {
    case LOG_DECAY: return EITHER(attn_log_decay, o, x, a->plain ? NULL : &a->decay);
    case SHORT_CONVOLVE: return EITHER(attn_short_convolve, o, q, k, a->plain ? NULL : &a->conv);
    case GATED_NORM: return EITHER(attn_gated_norm, o, x, z, a->plain ? NULL : &a->norm);
    case LONG_T5: return EITHER(attn_long_t5, o, q, k, v, own_k, own_v, &a->long_t5);
    case GLOBAL_ROWS: return EITHER(attn_global_rows, o, q, &a->rows);
    case NGRAM: return EITHER(attn_ngram, o, q, k, v, own_k, own_v, &a->ngram);
    default: return EITHER(attn_damped_ema, o, q, &a->ema);
  }
}

static attn_status call_stream(job *j, attn_ctx *ctx) { return stream(j, ctx, NULL, NULL); }
static size_t workspace_stream(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  stream(j, NULL, ctx, &bytes);
  return bytes;
}

/* Numbers in 0 .. 1, seldom another. */
static float *make_shares(input *in, store *s, int64_t n) {
  float *x = (float *)store_take(s, (size_t)n * sizeof *x);
  filler f = {take(in), 0};
  for (int64_t i = 0; i < n; i++) x[i] = (float)(filler_next(&f) % 65) / 64;
  if (n > 0 && chance(in, 16)) x[take(in) % (uint64_t)n] = nasty_float(in);
  return x;
}

static void make_ema(input *in, stream_args *a, store *s, int64_t dim) {
  attn_damped_ema_set *set[2] = {&a->ema.forward, &a->ema.backward};
  for (int i = 0; i < 1 + chance(in, 3); i++) {
    set[i]->alpha = make_shares(in, s, dim * a->ema.dims);
    set[i]->delta = make_shares(in, s, dim * a->ema.dims);
    set[i]->beta = make_shares(in, s, dim * a->ema.dims);
    set[i]->eta = chance(in, 16) ? NULL : make_shares(in, s, dim * a->ema.dims);
  }
  if (below(in, 2)) a->ema.omega = make_shares(in, s, dim);
  if (chance(in, 16)) a->ema.dims = -(int64_t)below(in, 3);
  a->ema.scale = some_scale(in);
}

/* Views of what stands around a decaying state. */
static void view_around(input *in, stream_args *a, attn_tensor *view, int64_t batch, int64_t heads,
                        int64_t t, int64_t dim) {
  const int conv = a->kind == SHORT_CONVOLVE;
  const int64_t taps = chance(in, 24) ? nasty_int(in) % 80 : 1 + below(in, 9);
  if (conv && batch == 1 && below(in, 2)) a->conv.sequences = 1 + below(in, 4);
  const int64_t n = a->conv.sequences ? a->conv.sequences : batch;
  a->in_place = chance(in, 3) ? 1 + below(in, 2) : 0;
  view[ST_O] = any_view(in, batch, heads, t, dim, 1);
  if (conv || a->in_place != 1) view[ST_Q] = any_view(in, batch, heads, t, dim, 0);
  if (a->kind == GATED_NORM && a->in_place != 2) view[ST_K] = any_view(in, batch, heads, t, dim, 0);
  if (!conv) return;
  view[ST_K] = any_view(in, 1, below(in, 2) ? heads : 1, taps, dim, 0);
  if (below(in, 2)) view[ST_V] = any_view(in, 1, below(in, 2) ? heads : 1, 1, dim, 0);
  if (below(in, 2)) view[ST_LSE] = any_view(in, n, heads, taps - 1, dim, 1);
  if (below(in, 2)) view[ST_OWN_K] = any_view(in, n, heads, taps - 1, dim, 0);
}

/* Their parameters. */
static void make_around(input *in, stream_args *a, store *s, const attn_tensor *y, int64_t t) {
  int tame = 0;
  const int64_t all = array_size(y->heads, y->dim, 1);
  a->plain = chance(in, 16);
  a->decay.channels = below(in, 2), a->decay.bounded = below(in, 2);
  a->decay.lower = chance(in, 16) ? nasty_float(in) : a->decay.bounded ? -(float)below(in, 9) : 0;
  a->norm.kind = (attn_gated_norm_kind)some(in, ATTN_GATED_NORM_COUNT);
  const int before = a->norm.kind == ATTN_GATED_NORM_BEFORE;
  const int64_t n = a->decay.channels ? all : array_size(y->heads, 1, 1);
  if (below(in, 2)) a->decay.a_log = store_floats(in, s, n, -2, 2, &tame);
  if (below(in, 2)) a->decay.dt_bias = store_floats(in, s, n, -2, 2, &tame);
  if (below(in, 2))
    a->norm.gain = store_floats(in, s, before ? all : array_size(y->dim, 1, 1), -2, 2, &tame);
  a->norm.eps = chance(in, 4) ? nasty_float(in) : 0;
  if (before) a->norm.groups = some(in, 4);
  a->conv.activation = (attn_activation)(below(in, 2) ? 0 : some(in, ATTN_ACT_COUNT));
  if (a->conv.sequences) {
    a->conv.cu_seqlens = make_marks(in, s, a->conv.sequences, t);
    a->conv.len = chance(in, 24) ? a->conv.len : NULL;
  }
}

static void fuzz_stream(input *in) {
  stream_args a;
  store s = {0};
  memset(&a, 0, sizeof a);
  job j = {.name = "streams",
           .runnable = 1,
           .args = &a,
           .call = call_stream,
           .workspace = workspace_stream};
  a.kind = below(in, STREAM_KINDS), j.outputs = stream_outputs[a.kind];
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 3));
  const int64_t n = a.kind == NGRAM ? 1 + below(in, 3) : 1, t = below(in, 150);
  const int64_t keys = a.kind == NGRAM ? t + below(in, 40) : t;
  const int64_t dk = 1 + below(in, 20), dv = 1 + below(in, 20), block = 1 + below(in, 20);
  const int64_t side = a.kind == NGRAM ? t : t / block, buckets = 2 * (1 + below(in, 17));
  const int own = a.kind == LONG_T5 || !chance(in, 4), lse = below(in, 2);
  attn_tensor view[ST_TENSORS];
  memset(view, 0, sizeof view);
  a.ema.dims = 1 + below(in, 19);
  if (a.kind >= LOG_DECAY) {
    view_around(in, &a, view, batch, heads, t, chance(in, 8) ? 300 : dk);
  } else if (a.kind == DAMPED_EMA) {
    const int64_t kept = below(in, 2) ? a.ema.dims : 2 * a.ema.dims;
    view[ST_Q] = any_view(in, batch, 1, t, dk, 0), view[ST_O] = any_view(in, batch, 1, t, dk, 1);
    if (lse) view[ST_LSE] = f32_view(in, batch, 1, dk, kept, 1);
    if (below(in, 2)) view[ST_K] = f32_view(in, batch, 1, dk, kept, 0);
  } else if (a.kind == GLOBAL_ROWS) {
    view[ST_Q] = any_view(in, batch, heads, t, dk, 0);
    view[ST_O] = any_view(in, batch, heads, side, dk, 1);
  } else {
    view[ST_Q] = any_view(in, batch * n, heads, t, dk, 0);
    view[ST_K] = any_view(in, batch, kv, keys, dk, 0),
    view[ST_V] = any_view(in, batch, kv, keys, dv, 0);
    view[ST_O] = any_view(in, batch * n, heads, t, dv, 1);
    if (own) view[ST_OWN_K] = any_view(in, batch * n, kv, side, dk, 0);
    if (own) view[ST_OWN_V] = any_view(in, batch * n, kv, side, dv, 0);
    if (lse) view[ST_LSE] = f32_view(in, batch * n, heads, t, 1, 1);
    if (a.kind == NGRAM && below(in, 2))
      view[ST_RELATIVE] = f32_view(in, batch * n, heads, t, buckets, 0);
  }
  make_buffers(in, &j, view, ST_TENSORS);
  const int64_t entries = a.kind == NGRAM ? j.b[ST_K].view.batch : j.b[ST_Q].view.batch;
  const int32_t *len = chance(in, 3) ? make_lengths(in, &s, entries, keys) : NULL;
  a.long_t5.len = a.rows.len = a.ngram.len = a.ema.len = a.conv.len = len;
  a.long_t5.block = a.rows.block = chance(in, 24) ? nasty_int(in) : block;
  a.long_t5.scale = a.ngram.scale = some_scale(in);
  a.long_t5.radius = some(in, 40), a.long_t5.has_radius = chance(in, 3);
  a.long_t5.max_distance = a.ngram.max_distance =
      chance(in, 12) ? nasty_int(in) : 1 + below(in, 200);
  a.long_t5.buckets = buckets, a.ngram.together = below(in, 2);
  int tame = 0;
  const int64_t h = j.b[ST_Q].view.heads;
  if (h >= 0 && h <= 64 && below(in, 2))
    a.long_t5.table = store_floats(in, &s, buckets * h, -1, 2, &tame);
  if (h >= 0 && h <= 64 && below(in, 2))
    a.long_t5.side_table = store_floats(in, &s, buckets * h, -1, 2, &tame);
  if (a.kind == GLOBAL_ROWS) {
    const int64_t dim = j.b[ST_Q].view.dim;
    if (dim >= 0 && dim <= 1000 && below(in, 2))
      a.rows.gain = store_floats(in, &s, dim, -1, 2, &tame);
    a.rows.eps = some_scale(in);
  }
  if (a.kind == DAMPED_EMA) {
    const int64_t dim = j.b[ST_Q].view.dim;
    if (dim >= 0 && dim <= 1000) make_ema(in, &a, &s, dim);
  }
  if (a.kind >= LOG_DECAY) make_around(in, &a, &s, &j.b[ST_O].view, t);
  job_run(&j, in);
  store_free(&s);
}

#endif
