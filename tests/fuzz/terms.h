/* terms.h owns the decoding of the score terms (attn/api/calls/score.h) and the callbacks they need. */

#ifndef FUZZ_TERMS_H
#define FUZZ_TERMS_H

#include "job.h"
#include "store.h"
#include "views.h"

/* The tensors of a call as the job holds them. */
enum { O, LSE, MAP, Q, K, V, REL_KEYS, REL_VALUES, REL_QUERIES, XL, LABELS };

/* What callbacks may be asked about. */
typedef struct limits {
  job *j;
  int64_t batch, heads, queries, keys, q_off, labels;
  unsigned seed;
  const attn_sdpa_params *params;
} limits;

static uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  return x ^ x >> 15;
}

static int64_t label_of(void *user, int64_t batch, int64_t head, int64_t i, int64_t k) {
  const limits *l = (const limits *)user;
  promise(batch >= 0 && batch < l->batch && head >= 0 && head < l->heads, l->j, "label: a head");
  promise(i >= 0 && i < l->queries && k >= 0 && k < l->keys, l->j, "label: a pair");
  uint32_t r = mix(l->seed + (uint32_t)(batch * 1009 + head * 31 + i * 70001 + k * 13));
  if (l->seed % 4 == 3 && r % 16 == 0) return r % 32 ? INT64_MIN : INT64_MAX;
  return (int64_t)(r % (uint32_t)(l->labels + 2)) - 1; /* also one too low, one too high */
}

/* Where query 0 of an entry sits. */
static int64_t offset_of(const limits *l, int64_t batch) {
  const attn_sdpa_params *p = l->params;
  if (p->q_offs) return p->q_offs[batch];
  if (!p->align_lengths) return l->q_off;
  return (p->kv_len ? p->kv_len[batch] : l->keys) - (p->q_len ? p->q_len[batch] : l->queries);
}

/* A tile of scores or weights has what the call has. */
static void promise_tile(const limits *l, const attn_score_tile *t) {
  promise(t->batch >= 0 && t->batch < l->batch, l->j, "modify: a batch entry");
  promise(t->keys > 0 && t->queries > 0, l->j, "modify: an empty tile");
  for (int64_t c = 0; c < t->keys; c++)
    promise(t->key[c] >= 0 && t->key[c] < l->keys, l->j, "modify: a key");
  for (int64_t r = 0; r < t->queries; r++) {
    promise(t->query[r] >= 0 && t->query[r] < l->queries, l->j, "modify: a query");
    promise(t->position[r] == t->query[r] + offset_of(l, t->batch), l->j, "modify: a position");
    promise(t->head[r] >= 0 && t->head[r] < l->heads, l->j, "modify: a head");
  }
}

static void change_weights(void *user, const attn_score_tile *t) {
  const limits *l = (const limits *)user;
  promise_tile(l, t);
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++)
      if ((t->key[c] + t->query[r] + (int64_t)l->seed) % 3 == 0)
        t->score[c * t->key_stride + r * t->query_stride] *= 0.5f;
}

static void change_scores(void *user, const attn_score_tile *t) {
  const limits *l = (const limits *)user;
  promise_tile(l, t);
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      uint32_t k = mix(l->seed + (uint32_t)(t->key[c] * 70001 + t->query[r] * 13 + t->head[r]));
      *x = k % 16 == 0 ? -INFINITY : *x * 0.5f + (float)(k % 9) / 8.0f;
    }
}

/* A table [1, 1 or heads, len, dim]. */
static attn_tensor make_table(input *in, job *j, int at, int64_t heads, int64_t len, int64_t dim) {
  attn_tensor t = make_view(in, ATTN_F32, 1, below(in, 2) ? heads : 1, len, dim, 0);
  filler f = {take(in), chance(in, 16) ? 40 : 0};
  if (f.specials) j->tame = 0;
  if (chance(in, 24)) flaw_view(in, &t);
  if (!buffer_make(&j->b[at], t, below(in, 4))) j->runnable = 0;
  buffer_fill(&j->b[at], &f);
  return j->b[at].view;
}

static void make_xl(input *in, job *j, store *s, attn_xl *x, const limits *l, int64_t dim) {
  const int64_t before = below(in, 4), after = below(in, 4);
  int64_t n = l->queries + l->keys - 1 + before + after;
  x->first = 1 - l->q_off - l->queries - before;
  if (chance(in, 8)) x->first = nasty_int(in);
  if (chance(in, 8)) n = below(in, 200), x->first = 0;
  x->table = make_table(in, j, XL, l->heads, n, dim);
  if (below(in, 2)) x->u = store_floats(in, s, array_size(l->heads, dim, 1), -2, 2, &j->tame);
  if (below(in, 2)) x->v = store_floats(in, s, array_size(l->heads, dim, 1), -2, 2, &j->tame);
}

static void make_toeplitz(input *in, job *j, store *s, attn_toeplitz *z, const limits *l) {
  z->heads = chance(in, 3) ? l->heads : below(in, 2);
  z->len = 1 + take(in) * 2;
  z->first = (int64_t)take(in) * 2 - 400;
  z->reject = chance(in, 8), z->inside = below(in, 2);
  z->table =
      store_floats(in, s, array_size(z->heads > 1 ? z->heads : 1, z->len, 1), -2, 2, &j->tame);
  if (chance(in, 16)) z->first = nasty_int(in);
  if (chance(in, 32)) z->len = -(int64_t)take(in);
}

static void make_t5(input *in, job *j, store *s, attn_t5 *t, const limits *l) {
  t->buckets = below(in, 3) ? 2 + below(in, 60) : 0;
  t->max_distance = below(in, 3) ? take(in) * 2 : 0;
  t->bidirectional = below(in, 2);
  t->table =
      store_floats(in, s, array_size(t->buckets ? t->buckets : 32, l->heads, 1), -2, 2, &j->tame);
  if (chance(in, 16)) t->max_distance = nasty_int(in);
  if (chance(in, 32)) t->buckets = -(int64_t)take(in) - 1;
}

static void make_span(input *in, job *j, store *s, attn_span *x, const limits *l) {
  x->per_query = below(in, 2);
  x->z = store_floats(
      in, s, x->per_query ? array_size(l->batch, l->heads, l->queries) : array_size(l->heads, 1, 1),
      0, 100, &j->tame);
  if (below(in, 2)) x->ramp = (float)(1 + take(in)) / 4.0f;
  if (chance(in, 16)) x->ramp = nasty_float(in);
  if (chance(in, 3)) x->max_span = chance(in, 6) ? nasty_int(in) : take(in);
  x->include_self = below(in, 2);
  x->shift = chance(in, 16) ? nasty_int(in) : -(int64_t)below(in, 2);
}

/* Some terms. l, which must outlive the call, has been filled but for the labels. */
static void make_terms(input *in, job *j, store *s, attn_sdpa_params *p, limits *l) {
  const unsigned some = take(in), more = take(in);
  const int64_t heads = l->heads, dk = j->b[Q].view.dim, dv = j->b[V].view.dim;
  const int64_t rows = array_size(l->batch, heads, l->queries);
  l->seed = take(in);
  if (some & 1) {
    const int64_t len = 2 * below(in, 30) + (chance(in, 32) ? 0 : 1);
    if (below(in, 4)) p->relative.keys = make_table(in, j, REL_KEYS, heads, len, dk);
    if (below(in, 4)) p->relative.values = make_table(in, j, REL_VALUES, heads, len, dv);
    if (below(in, 4) == 3) p->relative.queries = make_table(in, j, REL_QUERIES, heads, len, dk);
  }
  if (some & 2) make_xl(in, j, s, &p->xl, l, dk);
  if (some & 4) {
    l->labels = 1 + below(in, 9);
    p->labels.label = chance(in, 32) ? NULL : label_of, p->labels.user = l;
    p->labels.table = make_table(in, j, LABELS, heads, l->labels, dk);
    if (below(in, 2))
      p->labels.bias =
          store_floats(in, s, array_size(p->labels.table.len, heads, 1), -2, 2, &j->tame);
  }
  if (some & 8) {
    p->factor.alpha = store_floats(in, s, array_size(heads, 1, 1), -1, 1, &j->tame);
    p->factor.beta = store_floats(in, s, array_size(heads, 1, 1), -2, 2, &j->tame);
    if (chance(in, 32)) p->factor.beta = NULL;
    j->unsteady = 1; /* exp(alpha t) */
  }
  if (some & 16) make_toeplitz(in, j, s, &p->toeplitz, l);
  if (some & 32) make_t5(in, j, s, &p->t5, l);
  if (some & 64) {
    p->parabola.w = store_floats(in, s, array_size(heads, 1, 1), 0, 1, &j->tame);
    p->parabola.bias = store_floats(in, s, array_size(heads, 1, 1), -4, 0, &j->tame);
    if (chance(in, 8)) p->parabola.bias = NULL;
    if (chance(in, 32)) p->parabola.w = NULL;
    j->unsteady = 1; /* squares of distances */
  }
  if (some & 128) {
    p->gaussian.center = store_floats(in, s, rows, -10, 400, &j->tame);
    p->gaussian.precision = store_floats(in, s, rows, 0, 1, &j->tame);
    if (chance(in, 32)) p->gaussian.center = NULL;
    j->unsteady = 1;
  }
  if (more & 1) make_span(in, j, s, &p->span, l);
  if (more & 2) p->modify = change_scores, p->modify_user = l;
  if (more & 4) j->unsteady = 1;
}

/* What is told of outputs: another stage of the map, changed weights. */
static void make_outputs(input *in, job *j, attn_sdpa_params *p, limits *l) {
  if (chance(in, 3)) p->map_stage = (attn_map_stage)below(in, ATTN_MAP_STAGES);
  if (chance(in, 64)) p->map_stage = (attn_map_stage)(nasty_int(in) & 0xff);
  if (chance(in, 4)) p->softcap_at = (attn_softcap_at)below(in, ATTN_SOFTCAP_COUNT + 1);
  if (chance(in, 4)) p->modify_weights = change_weights, p->modify_weights_user = l;
  if (p->modify_weights) j->unsteady = 1;
}

#endif
