/* sdpa.h owns the decoding of bytes into calls of attn_sdpa, attn_relu and attn_edges. */

#ifndef FUZZ_SDPA_H
#define FUZZ_SDPA_H

#include "gradients.h"
#include "params.h"
#include "stored.h"
#include "terms.h"
#include "tree.h"

/* Multiply-adds a call may cost: the slowest tier under sanitizers needs to end in a moment. */
#define WORK_MAX 1e6

typedef struct sdpa_args {
  attn_sdpa_params params;
  attn_relu_params relu;
  attn_edges_params edges;
  attn_schedule schedule;
  limits limits;
  store store; /* the parameter arrays */
} sdpa_args;

static attn_status call_sdpa(job *j, attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_sdpa(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params, ctx);
}

static size_t workspace_sdpa(job *j, const attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_sdpa_workspace(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params,
                             ctx);
}

static void judge_sdpa(job *j) {
  sdpa_args *a = (sdpa_args *)j->args;
  judge_gradients(j, &a->params, NULL);
}

static attn_status call_relu(job *j, attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_relu(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->relu, ctx);
}

static size_t workspace_relu(job *j, const attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_relu_workspace(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->relu, ctx);
}

static attn_status call_edges(job *j, attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_edges(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->edges, ctx);
}

static size_t workspace_edges(job *j, const attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_edges_workspace(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->edges,
                              ctx);
}

/* Every element within its bound: |O| <= max |v|, 0 <= P <= 1, LSE < inf. */
static void sane_row(const buffer *b, size_t place, void *user) {
  job *j = (job *)user;
  const sdpa_args *a = (const sdpa_args *)j->args;
  const float most = a->params.relative.values.data ? 3.92f : 1.96f;
  for (int64_t c = 0; c < b->view.dim; c++) {
    float x = element(b->view.dtype, b->base + place, c);
    promise(x == x, j, "NaN from numbers");
    if (b == &j->b[O]) promise(fabsf(x) <= most, j, "an output beyond its values");
    if (b == &j->b[LSE]) promise(x < INFINITY, j, "an infinite denominator");
    if (b == &j->b[MAP] && a->params.map_stage == ATTN_MAP_WEIGHTS)
      promise(x >= 0 && x <= 1.00001f, j, "a weight outside 0..1");
  }
}

/* Rectified weights have no bound but that numbers give numbers. */
static void sane_relu_row(const buffer *b, size_t place, void *user) {
  for (int64_t c = 0; c < b->view.dim; c++) {
    float x = element(b->view.dtype, b->base + place, c);
    promise(x == x, (job *)user, "NaN from numbers");
  }
}

/* Tensors of sound shapes, with a flaw or three in some of them; view keeps the plan. */
static void make_operands(input *in, job *j, attn_tensor view[JOB_TENSORS]) {
  int64_t key_heads = 1 + below(in, 3), value_heads = 1 + below(in, 2);
  int64_t heads = key_heads * value_heads * (1 + below(in, 2));
  int64_t batch = chance(in, 32) ? 0 : 1 + below(in, 2);
  int64_t queries = below(in, 8) ? 1 + below(in, 140) : below(in, 3);
  int64_t keys = below(in, 8) ? 1 + (take(in) + take(in) * 2) % 400 : below(in, 3);
  int64_t dk = 1 + below(in, 40), dv = 1 + below(in, 40);
  unsigned types = take(in), more = take(in);

  view[Q] = make_view(in, (attn_dtype)(types % 3), batch, heads, queries, dk, 0);
  view[K] = make_view(in, (attn_dtype)(types / 3 % 3), batch, key_heads, keys, dk, 0);
  view[V] = make_view(in, (attn_dtype)(types / 9 % 3), batch, value_heads, keys, dv, 0);
  view[O] = make_view(in, (attn_dtype)(types / 27 % 3), batch, heads, queries, dv, 1);
  view[LSE] = make_view(in, ATTN_F32, batch, heads, queries, 1, 1);
  view[MAP] = make_view(in, ATTN_F32, batch, heads, queries, keys, 1);

  int flaws = below(in, 8) - 4;
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, JOB_TENSORS)]);
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  if (f.specials) j->tame = 0;
  for (int i = 0; i < JOB_TENSORS; i++) {
    int absent = (i == LSE && !(more & 1)) || (i == MAP && (more & 6) != 6);
    if (absent) {
      /* with a shape or without: a null pointer alone says "absent" */
      if (more & 8) j->b[i].view = view[i];
      continue;
    }
    j->runnable &= buffer_make(&j->b[i], view[i], below(in, 4));
    if (i >= Q) buffer_fill(&j->b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j->b[below(in, JOB_TENSORS)].view.data = NULL;
}

/* An output that lies where it must not. */
static void misplace(input *in, job *j) {
  /* Overlap: an output on top of another operand. Both must hold something to overlap. */
  int on = 1 + below(in, JOB_TENSORS - 1);
  if (chance(in, 32) && j->runnable && buffer_full(&j->b[O]) && buffer_full(&j->b[on])) {
    j->b[O].view.data = j->b[on].view.data;
    j->must_fail = 1;
  }

  /* Data between two elements. */
  on = below(in, JOB_TENSORS);
  if (chance(in, 32) && j->runnable && !j->must_fail && buffer_full(&j->b[on]) &&
      type_size(j->b[on].view.dtype) > 1) {
    j->b[on].view.data = (uint8_t *)j->b[on].view.data + 1;
    j->must_fail = 1;
  }
}

/* The schedule of a random pattern, mostly for the lengths of this call. */
static void make_schedule(input *in, sdpa_args *a, const limits *l) {
  const int64_t heads = l->heads + (chance(in, 32) ? 1 : 0);
  forest f = forest_of(in, &a->store, heads, l->queries, l->keys);
  attn_pattern p = make_pattern(&f);
  attn_schedule_params sp;
  memset(&sp, 0, sizeof sp);
  sp.has_q_off = 1, sp.q_off = l->q_off + (chance(in, 32) ? 1 : 0);
  if (attn_schedule_build(&a->schedule, &p, heads, l->queries, l->keys, &sp, NULL) == ATTN_OK)
    a->params.schedule = &a->schedule;
}

static int usual(int64_t n) { return n >= 0 && n <= 4096; }

/* Quantised keys or values in the place of those that there are, with their scales. */
static void make_stored(input *in, job *j, const attn_tensor *view, int which) {
  sdpa_args *a = (sdpa_args *)j->args;
  attn_scales *s = which == K ? &a->params.k_scales : &a->params.v_scales;
  store_codes(in, j, &a->store, &j->b[which], view[which], s);
}

static void make_extras(input *in, job *j, const attn_tensor *view) {
  sdpa_args *a = (sdpa_args *)j->args;
  limits *l = &a->limits;
  l->j = j, l->batch = view[Q].batch, l->heads = view[Q].heads;
  l->queries = view[Q].len, l->keys = view[K].len;
  if (!usual(view[Q].dim) || !usual(view[V].dim)) return;
  if (!usual(l->batch) || !usual(l->heads) || !usual(l->queries) || !usual(l->keys)) return;
  l->params = &a->params;
  l->q_off = a->params.has_q_off                     ? a->params.q_off
             : a->params.causal == ATTN_CAUSAL_START ? 0
                                                     : l->keys - l->queries;
  if (l->q_off < -((int64_t)1 << 40) || l->q_off > (int64_t)1 << 40) return;
  if (below(in, 4)) make_terms(in, j, &a->store, &a->params, l);
  /* distances whose squares or products leave the range of float are no tame input */
  if (l->q_off > 1000 || l->q_off < -1000) j->tame = 0;
  const int small = l->heads <= 64 && l->q_off <= INT32_MAX && l->q_off >= -INT32_MAX;
  if (below(in, 2) && small) make_schedule(in, a, l);
  if (chance(in, 3)) make_stored(in, j, view, K);
  if (chance(in, 3)) make_stored(in, j, view, V);
}

static int affordable(const attn_tensor *view) {
  return (double)view[Q].batch * (double)view[Q].heads * ((double)view[Q].len + 1) *
             ((double)view[K].len + 1) * ((double)view[Q].dim + (double)view[V].dim + 8) <=
         WORK_MAX;
}

static void finish(input *in, job *j) {
  sdpa_args *a = (sdpa_args *)j->args;
  /* An offset that puts scores out of the range of float is no tame input with slopes. */
  if (a->params.alibi && a->params.has_q_off) j->tame = 0;
  if (j->must_fail) j->tame = 0;
  job_run(j, in);
  attn_schedule_free(&a->schedule);
  store_free(&a->store);
}

static void fuzz_sdpa(input *in, int extras) {
  sdpa_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_sdpa",
           .outputs = 3,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_sdpa,
           .workspace = workspace_sdpa,
           .sane_row = sane_row,
           .judge = judge_sdpa};
  attn_tensor view[JOB_TENSORS];
  make_operands(in, &j, view);
  make_params(in, &j, &a.store, &a.params, &view[Q], view[K].len);
  if (extras) make_extras(in, &j, view);
  misplace(in, &j);
  a.params.lse = j.b[LSE].view, a.params.map = j.b[MAP].view;
  if (extras) make_outputs(in, &j, &a.params, &a.limits);
  j.runnable &= affordable(view);
  finish(in, &j);
}

/* ---- attn_relu -------------------------------------------------------------------------------*/

/* Without the scale's where it may be that of each row. */
static void judge_relu(job *j) {
  const attn_relu_params *p = &((sdpa_args *)j->args)->relu;
  attn_relu_params scaled = *p;
  if (scaled.kind == ATTN_RELU_GAU && scaled.attention.scale == 0)
    scaled.attention.scale = ATTN_ZERO;
  judge_gradients(j, &scaled.attention, p);
}

static void fuzz_relu(input *in) {
  sdpa_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_relu",
           .outputs = 3,
           .runnable = 1,
           .tame = 1,
           .unsteady = 1,
           .args = &a,
           .call = call_relu,
           .workspace = workspace_relu,
           .judge = judge_relu,
           .sane_row = sane_relu_row};
  attn_tensor view[JOB_TENSORS];
  attn_relu_params *p = &a.relu;
  make_operands(in, &j, view);
  make_params(in, &j, &a.store, &a.params, &view[Q], view[K].len);
  make_extras(in, &j, view);
  if (!chance(in, 32)) a.params.sinks = NULL;
  if (!chance(in, 32)) a.params.softmax_one = 0;
  if (!chance(in, 32)) a.params.span.z = NULL;
  if (!chance(in, 32)) a.params.relative.values.data = NULL;
  if (!chance(in, 32)) a.params.q_offs = NULL, a.params.align_lengths = 0;
  p->kind = (attn_relu_kind)below(in, 6);
  if (chance(in, 32)) p->kind = (attn_relu_kind)(nasty_int(in) & 0xff);
  p->power = p->kind == ATTN_RELU_VAR || p->kind == ATTN_RELU_RELA ? below(in, 2) : below(in, 3);
  if (chance(in, 32)) p->power = (int)nasty_int(in);
  if (chance(in, 3)) p->alpha = (float)below(in, 16) / 8.0f;
  if (chance(in, 3)) p->gamma = (float)below(in, 16) / 8.0f;
  if (chance(in, 3)) p->eps = (float)below(in, 16) / 8.0f;
  if (chance(in, 16)) {
    float *number[3] = {&p->alpha, &p->gamma, &p->eps};
    *number[below(in, 3)] = nasty_float(in);
    j.tame = 0;
  }
  p->by_keys = below(in, 2);
  if (p->kind == ATTN_RELU_RELA || chance(in, 16)) {
    const int64_t n = array_size(view[Q].heads, view[O].dim, 1);
    p->gain = store_floats(in, &a.store, n, -2, 2, &j.tame);
    p->gate = store_floats(in, &a.store, n, -2, 2, &j.tame);
  }
  const int with_map = chance(in, 32);
  if (!with_map) j.b[MAP].view.data = NULL;
  misplace(in, &j);
  p->sum = j.b[LSE].view;
  if (with_map) a.params.map = j.b[MAP].view;
  p->attention = a.params;
  j.runnable &= affordable(view);
  finish(in, &j);
}

/* ---- attn_edges ------------------------------------------------------------------------------*/

/* Sets of edges: row pointers that end with `edges`, columns ascending by row, shuffled a bit. */
static void make_sets(input *in, store *s, attn_edges_params *p, int64_t sets, int64_t rows,
                      int64_t keys) {
  if (!usual(rows)) return;
  const int64_t pointers = array_size(sets, rows + 1, 1), all = array_size(sets, p->edges, 1);
  if (pointers < 0 || all < 0) return;
  int64_t *at = (int64_t *)store_take(s, (size_t)pointers * sizeof *at);
  int32_t *col = (int32_t *)store_take(s, (size_t)all * sizeof *col);
  filler f = {take(in), 0};
  const int64_t usually = rows > 0 ? p->edges / rows : 0;
  for (int64_t x = 0; x < sets; x++) {
    int64_t *ptr = at + x * (rows + 1);
    for (int64_t i = 0; i < rows; i++) {
      int64_t n = usually + (int64_t)(filler_next(&f) % 3) - 1;
      ptr[i + 1] = ptr[i] + (n > 0 ? n : 0);
      if (ptr[i + 1] > p->edges || i == rows - 1) ptr[i + 1] = p->edges;
      int64_t step = 1 + (int64_t)(filler_next(&f) % 3), c = (int64_t)filler_next(&f);
      for (int64_t e = ptr[i]; e < ptr[i + 1]; e++, c += step)
        col[x * p->edges + e] = (int32_t)(keys > 0 ? c % keys : 0);
    }
  }
  if (pointers > 0 && chance(in, 16)) at[take(in) % (uint64_t)pointers] = nasty_int(in);
  if (all > 0 && chance(in, 16)) col[take(in) % (uint64_t)all] = (int32_t)nasty_int(in);
  p->indptr = at, p->col = all > 0 || below(in, 2) ? col : NULL;
}

static void fuzz_edges(input *in) {
  sdpa_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_edges",
           .outputs = 3,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_edges,
           .workspace = workspace_edges,
           .sane_row = sane_row};
  attn_tensor view[JOB_TENSORS];
  attn_edges_params *p = &a.edges;
  make_operands(in, &j, view);
  p->per_head = below(in, 2), p->per_batch = below(in, 2);
  const int64_t heads = view[Q].heads, batch = view[Q].batch, rows = view[Q].len;
  const int64_t sets = array_size(p->per_head ? heads : 1, p->per_batch ? batch : 1, 1);
  p->edges = view[K].len == 0 || rows == 0 ? 0 : take(in) * (1 + (int64_t)below(in, 4));
  make_sets(in, &a.store, p, sets, rows, view[K].len);
  if (chance(in, 3))
    p->bias = store_floats(in, &a.store, array_size(sets, p->edges, 1), -2, 2, &j.tame);
  buffer_free(&j.b[MAP]);
  memset(&j.b[MAP], 0, sizeof j.b[MAP]);
  if (below(in, 2) && array_size(batch, heads, p->edges) >= 0)
    buffer_make(&j.b[MAP], attn_bhtd(NULL, ATTN_F32, 1, 1, 1, array_size(batch, heads, p->edges)),
                0);
  if (chance(in, 32)) p->edges = nasty_int(in);
  make_params(in, &j, &a.store, &a.params, &view[Q], view[K].len);
  p->causal = a.params.causal, p->has_q_off = a.params.has_q_off, p->q_off = a.params.q_off;
  p->scale = a.params.scale, p->kv_len = a.params.kv_len;
  misplace(in, &j);
  p->lse = j.b[LSE].view, p->weights = (float *)j.b[MAP].view.data;
  j.runnable &= affordable(view);
  finish(in, &j);
}

#endif
