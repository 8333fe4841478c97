/* maps.h owns the decoding of bytes into calls over maps of scores: those that pass from layer to layer,
 * shared ones, block-diagonal priors, and scores that are synthesised. */

#ifndef FUZZ_MAPS_H
#define FUZZ_MAPS_H

#include "arrays.h"

enum { S_O, S_SCORES, S_LSE, S_MAP, S_Q, S_K, S_V, S_BEFORE, S_W, S_W2, S_TENSORS };
enum {
  SCORE_MIX,
  REALFORMER,
  PREDICTIVE,
  MAP_APPLY,
  LAZYFORMER,
  FILM_BLOCKS,
  CAMTL,
  SYNTHESIZER,
  MAP_KINDS
};
enum { SOURCES = 3 };

typedef struct map_args {
  int kind, given; /* FILM: gamma and beta are */
  attn_sdpa_params attend;
  attn_score_mix_params score_mix;
  attn_realformer_params realformer;
  attn_predictive_params predictive;
  attn_map_apply_params apply;
  attn_lazyformer_params lazyformer;
  int64_t layers;
  attn_film_params film;
  attn_camtl_params camtl;
  attn_synthesizer_params synthesizer;
  attn_synthesizer_source source[SOURCES];
} map_args;

static void map_tensors(job *j) {
  map_args *a = (map_args *)j->args;
  const attn_tensor none = {0}, before = j->b[S_BEFORE].view, scores = j->b[S_SCORES].view,
                    w = j->b[S_W].view, w2 = j->b[S_W2].view;
  attn_sdpa_params p = a->attend;
  p.lse = j->b[S_LSE].view, p.map = j->b[S_MAP].view;
  a->score_mix.attention = a->realformer.attention = a->predictive.attention = p;
  a->camtl.attention = a->lazyformer.attention = p;
  a->score_mix.previous = a->realformer.previous = a->predictive.previous = before;
  a->score_mix.scores = a->realformer.scores = a->predictive.scores = scores;
  a->predictive.kernel = a->camtl.blocks = w;
  a->film.gamma = a->given ? w : none, a->film.beta = a->given ? w2 : none;
  a->film.z = a->given ? none : j->b[S_K].view, a->film.w_f = a->given ? none : w;
  a->film.b_f = a->given ? none : w2;
  attn_synthesizer_params *y = &a->synthesizer;
  y->causal = p.causal, y->has_q_off = p.has_q_off, y->q_off = p.q_off;
  y->window = p.window;
  y->kv_len = p.kv_len, y->q_len = p.q_len, y->mask = p.mask, y->bias = p.bias;
  y->lse = p.lse, y->map = p.map, y->sources = a->source;
  for (int n = 0; n < SOURCES; n++) {
    attn_synthesizer_source *s = &a->source[n];
    s->r = s->r1 = before, s->r2 = w2;
    s->x = s->q = j->b[S_Q].view, s->k = j->b[S_K].view;
    s->net.w_1 = s->net_b.w_1 = w, s->net.w_2 = s->net_b.w_2 = w2;
  }
}

/* The call, or with bytes the workspace query. */
static attn_status map(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  map_args *a = (map_args *)j->args;
  map_tensors(j);
  const attn_tensor o = j->b[S_O].view, q = j->b[S_Q].view, k = j->b[S_K].view, v = j->b[S_V].view;
  const attn_tensor outs[2] = {o, j->b[S_SCORES].view}, values[2] = {v, j->b[S_W].view};
  const attn_tensor queries[2] = {q, q}, keys[2] = {k, k};
  switch (a->kind) {
    case SCORE_MIX: return EITHER(attn_score_mix, o, q, k, v, &a->score_mix);
    case REALFORMER: return EITHER(attn_realformer, o, q, k, v, &a->realformer);
    case PREDICTIVE: return EITHER(attn_predictive, o, q, k, v, &a->predictive);
    case MAP_APPLY: return EITHER(attn_map_apply, o, j->b[S_BEFORE].view, v, &a->apply);
    case LAZYFORMER:
      return EITHER(attn_lazyformer, outs, queries, keys, values, a->layers, &a->lazyformer);
    case FILM_BLOCKS: return EITHER(attn_film_blocks, o, q, &a->film);
    case CAMTL: return EITHER(attn_camtl, o, q, k, v, &a->camtl);
    default: return EITHER(attn_synthesizer, o, v, &a->synthesizer);
  }
}

static attn_status call_map(job *j, attn_ctx *ctx) { return map(j, ctx, NULL, NULL); }
static size_t workspace_map(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  map(j, NULL, ctx, &bytes);
  return bytes;
}

static void make_sources(input *in, map_args *a, store *s, int *tame, int first) {
  attn_synthesizer_params *p = &a->synthesizer;
  p->count = 1 + below(in, SOURCES);
  for (int n = 0; n < SOURCES; n++) {
    a->source[n].kind = (attn_synthesizer_kind)(n ? some(in, ATTN_SYNTHESIZER_COUNT) : first);
    a->source[n].tiling = (attn_synthesizer_tiling)some(in, ATTN_SYNTHESIZER_TILING_COUNT);
    a->source[n].net.w_transposed = chance(in, 4), a->source[n].scale = some_scale(in);
  }
  if (p->count > 1 || chance(in, 4)) {
    p->weights = p->count;
    float *numbers = store_floats(in, s, p->count, 0, 1, tame);
    if (below(in, 2)) {
      p->logits = numbers;
    } else {
      for (int64_t n = 1; n < p->count; n++) numbers[0] -= numbers[n]; /* may become negative */
      if (p->count > 0) numbers[0] = 1;
      for (int64_t n = 1; n < p->count; n++) numbers[n] = 0.25f, numbers[0] -= 0.25f;
      p->alpha = numbers;
    }
  }
  if (chance(in, 16)) p->weights = some(in, 4);
  if (chance(in, 16)) p->count = p->count < 2 ? 0 : 1;
}

static void fuzz_map(input *in) {
  map_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, MAP_KINDS);
  job j = {.name = "a map of scores",
           .outputs = 4,
           .runnable = 1,
           .args = &a,
           .call = call_map,
           .workspace = workspace_map};
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2));
  const int64_t tq = below(in, 80), tk = chance(in, 2) ? tq : below(in, 80);
  const int64_t dk = 1 + below(in, 20), dv = 1 + below(in, 20), width = 1 + below(in, 20);
  const int scores = a.kind <= PREDICTIVE, kernel = 1 + below(in, 5), rows = 1 + below(in, 5);
  const int64_t blocks = below(in, 2) ? (tk + width - 1) / width : below(in, 5);
  const int source = below(in, ATTN_SYNTHESIZER_COUNT), with = below(in, 16);
  attn_tensor view[S_TENSORS];
  memset(view, 0, sizeof view);
  view[S_O] = any_view(in, batch, heads, tq, dv, 1);
  view[S_Q] = any_view(in, batch, heads, tq, dk, 0);
  view[S_K] = any_view(in, batch, kv, tk, dk, 0);
  view[S_V] = any_view(in, batch, kv, tk, dv, 0);
  if (with & 1 && a.kind != LAZYFORMER) view[S_LSE] = f32_view(in, batch, heads, tq, 1, 1);
  if (with & 2 && a.kind != LAZYFORMER) view[S_MAP] = f32_view(in, batch, heads, tq, tk, 1);
  if (scores && with & 4) view[S_SCORES] = any_view(in, batch, heads, tq, tk, 1);
  if ((scores && with & 8) || a.kind == MAP_APPLY)
    view[S_BEFORE] = any_view(in, batch, heads, tq, tk, 0);
  a.given = with & 4;
  switch (a.kind) {
    case PREDICTIVE: view[S_W] = any_view(in, heads, heads, rows, kernel, 0); break;
    case LAZYFORMER: /* the second layer */
      view[S_SCORES] = any_view(in, batch, heads, tq, dk, 1);
      view[S_W] = any_view(in, batch, kv, tk, dk, 0);
      break;
    case FILM_BLOCKS: {
      const int64_t f = width * (with & 1 ? 1 : with & 2 ? blocks : blocks * width);
      view[S_O] = any_view(in, batch, blocks, width, width, 1);
      view[S_Q] = any_view(in, 1, blocks, width, width, 0);
      memset(&view[S_V], 0, sizeof view[S_V]);
      view[S_LSE] = view[S_MAP] = view[S_V];
      view[S_K] = any_view(in, batch, 1, 1, dk, 0);
      a.film.w_transposed = !a.given && chance(in, 3);
      view[S_W] = a.given ? any_view(in, batch, 1, 1, f, 0)
                          : weight_view(in, dk, 2 * f, a.film.w_transposed);
      view[S_W2] = any_view(in, a.given ? batch : 1, 1, 1, a.given ? f : 2 * f, 0);
      break;
    }
    case CAMTL: view[S_W] = f32_view(in, below(in, 2) ? batch : 1, blocks, width, width, 0); break;
    case SYNTHESIZER:
      if (source == ATTN_SYNTHESIZER_RANDOM)
        view[S_BEFORE] = any_view(in, 1, heads, tq + below(in, 9), tk + below(in, 9), 0);
      if (source == ATTN_SYNTHESIZER_RANDOM_FACTORED) {
        view[S_BEFORE] = any_view(in, 1, heads, tq + below(in, 9), width, 0);
        view[S_W2] = any_view(in, 1, heads, tk, width, 0);
      }
      if (source == ATTN_SYNTHESIZER_DENSE || source == ATTN_SYNTHESIZER_DENSE_FACTORED) {
        view[S_W] = any_view(in, 1, heads, dk, width, 0);
        view[S_W2] = any_view(in, 1, below(in, 2) ? heads : 1, width,
                              source == ATTN_SYNTHESIZER_DENSE ? tk + below(in, 9) : 9, 0);
      }
      break;
    default: break;
  }
  make_buffers(in, &j, view, S_TENSORS);
  /* the sum may take the place of what it is added to */
  if ((a.kind == SCORE_MIX || a.kind == REALFORMER) && j.b[S_BEFORE].base && j.b[S_SCORES].base &&
      chance(in, 3)) {
    buffer_free(&j.b[S_BEFORE]);
    memset(&j.b[S_BEFORE], 0, sizeof j.b[S_BEFORE]);
    j.b[S_BEFORE].view = j.b[S_SCORES].view;
  }
  if (a.kind == FILM_BLOCKS || a.kind == MAP_APPLY) {
    a.apply.causal = below(in, 2), a.apply.has_q_off = chance(in, 4);
    a.apply.q_off = a.apply.has_q_off ? some(in, 60) - 30 : 0;
    a.film.plain = below(in, 2);
  } else {
    make_params(in, &j, &s, &a.attend, &j.b[S_Q].view, j.b[S_K].view.len);
  }
  a.score_mix.fresh_weight = some_scale(in), a.score_mix.previous_weight = some_scale(in);
  a.realformer.layers_below = some(in, 5), a.realformer.mean = below(in, 2);
  a.predictive.alpha = chance(in, 12) ? nasty_float(in) : (float)below(in, 5) / 4;
  a.predictive.previous_share = (float)below(in, 5) / 4;
  a.predictive.convolved_share = chance(in, 12) ? nasty_float(in) : (float)below(in, 5) / 4;
  a.predictive.activation = (attn_activation)(below(in, 2) ? ATTN_ACT_RELU : some(in, 2));
  a.predictive.rule = (attn_predictive_rule)some(in, 2), a.predictive.evolving = below(in, 2);
  if (below(in, 2)) a.predictive.bias = make_per_head(in, &s, j.b[S_Q].view.heads, &j.tame);
  a.layers = chance(in, 12) ? -1 : below(in, 3), a.lazyformer.period = some(in, 4);
  if (a.kind == SYNTHESIZER) make_sources(in, &a, &s, &j.tame, source);
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
