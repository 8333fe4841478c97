/* content.h owns the decoding of bytes into calls whose pairs are chosen by content: the best keys of a
 * query, buckets of hashes, angles, blocks at two resolutions, clusters of queries and keys. */

#ifndef FUZZ_CONTENT_H
#define FUZZ_CONTENT_H

#include "arrays.h"

/* A to D are lists of integers; outputs come first, as many as the kind writes. */
enum { C_O, C_LSE, C_A, C_B, C_C, C_D, C_Q, C_K, C_V, C_MU, C_MK, C_MV, C_TENSORS };
enum {
  TOPK,
  TOPK_SELECT,
  LSH,
  LSH_QK,
  LSH_HASH,
  YOSO,
  YOSO_SAMPLE,
  MRA,
  ROUTING,
  ROUTING_ATTEND,
  ROUTING_SELECT,
  ROUTING_UPDATE,
  ROUTING_START,
  CONTENT_KINDS
};
static const int content_outputs[CONTENT_KINDS] = {4, 4, 2, 2, 3, 1, 1, 2, 2, 2, 6, 3, 1};

typedef struct content_args {
  int kind;
  attn_topk_params topk;
  attn_lsh_params lsh;
  attn_yoso_params yoso;
  attn_mra_params mra;
  attn_routing_params routing;
  attn_routing_update_params update;
  attn_members queries, keys;
  uint64_t seed;
} content_args;

/* The call, or with bytes the workspace query. */
static attn_status content(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  content_args *a = (content_args *)j->args;
  const attn_tensor o = j->b[C_O].view, lse = j->b[C_LSE].view, q = j->b[C_Q].view,
                    k = j->b[C_K].view, v = j->b[C_V].view, mu = j->b[C_MU].view;
  int32_t *list = (int32_t *)j->b[C_A].view.data, *other = (int32_t *)j->b[C_B].view.data;
  a->yoso.planes = j->b[C_MU].view;
  a->routing.mem_k = j->b[C_MK].view, a->routing.mem_v = j->b[C_MV].view;
  a->topk.attention.lse = a->lsh.lse = a->routing.lse = a->mra.lse = lse;
  switch (a->kind) {
    case TOPK:
    case TOPK_SELECT:
      a->topk.indptr = (int64_t *)j->b[C_A].view.data, a->topk.col = other;
      return a->kind == TOPK ? EITHER(attn_topk_sdpa, o, q, k, v, &a->topk)
                             : EITHER(attn_topk_select, q, k, &a->topk);
    case LSH: return EITHER(attn_lsh, o, q, v, list, &a->lsh);
    case LSH_QK: return EITHER(attn_lsh_qk, o, q, k, v, list, other, &a->lsh);
    case LSH_HASH: return EITHER(attn_lsh_hash, list, q, &a->lsh);
    case YOSO: return EITHER(attn_yoso, o, q, k, v, &a->yoso);
    case YOSO_SAMPLE: return EITHER(attn_yoso_sample, o, q, k, v, &a->yoso);
    case MRA: return EITHER(attn_mra, o, q, k, v, &a->mra);
    case ROUTING: return EITHER(attn_routing, o, q, k, v, mu, &a->routing);
    case ROUTING_ATTEND:
      return EITHER(attn_routing_attend, o, q, k, v, a->queries, a->keys, &a->routing);
    case ROUTING_SELECT:
      return EITHER(attn_routing_select, a->queries, a->keys, q, k, mu, &a->routing);
    case ROUTING_UPDATE:
      a->update.counts = (float *)lse.data, a->update.sums = j->b[C_A].view;
      a->routing.lse.data = NULL;
      return EITHER(attn_routing_update, o, q, k, mu, &a->routing, &a->update);
    default: return EITHER(attn_routing_start, o, q, a->routing.norm, a->seed);
  }
}

static attn_status call_content(job *j, attn_ctx *ctx) { return content(j, ctx, NULL, NULL); }
static size_t workspace_content(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  content(j, NULL, ctx, &bytes);
  return bytes;
}

static void make_topk(input *in, job *j, store *s) {
  attn_topk_params *p = &((content_args *)j->args)->topk;
  const attn_tensor *q = &j->b[C_Q].view;
  const int64_t keys = j->b[C_K].view.len;
  p->mode = (attn_topk_mode)some(in, ATTN_TOPK_MODES);
  p->k = chance(in, 12) ? nasty_int(in) : 1 + below(in, 40);
  p->bound = chance(in, 12) ? nasty_float(in) : (float)below(in, 9) / 4;
  make_params(in, j, s, &p->attention, q, keys);
  const int64_t sets = array_size(q->batch, q->heads, 1), rows = array_size(sets, q->len, 1);
  if (!below(in, 3) || rows < 0) return;
  make_words(&j->b[C_A], 2 * (rows + sets));
  if (chance(in, 3)) return;
  p->edges = below(in, 200);
  if (!chance(in, 4) && p->k > 0 && p->k < 100 && keys >= 0)
    p->edges = q->len * (p->k < keys ? p->k : keys);
  if (!make_words(&j->b[C_B], array_size(sets, p->edges, 1))) p->edges = 0;
  if (chance(in, 16)) p->edges = -1 - below(in, 3);
}

static void make_lsh(input *in, job *j, store *s) {
  content_args *a = (content_args *)j->args;
  attn_lsh_params *p = &a->lsh;
  const attn_tensor *q = &j->b[C_Q].view, *k = &j->b[C_K].view;
  p->rounds = 1 + below(in, 4);
  p->factor_count = chance(in, 2) ? 0 : 1 + below(in, 3);
  if (p->factor_count) {
    int32_t *factors = store_ints(in, s, p->factor_count, 1, 6);
    for (int64_t i = 0; i < p->factor_count; i++)
      if (factors[i] > 0 && factors[i] < 9) factors[i] *= 2;
    p->factors = factors;
  }
  p->seed = take(in);
  if (chance(in, 3)) p->heads = q->heads;
  p->causal = below(in, 2), p->keep_duplicates = below(in, 2);
  if (a->kind != LSH_QK) {
    p->has_chunk = chance(in, 3), p->chunk = p->has_chunk ? 0 : some(in, 20);
    p->has_before = below(in, 2), p->before = some(in, 4), p->after = some(in, 4);
    p->across = !p->has_chunk && below(in, 2);
    p->wrap = p->across && p->after % 2 == 0;
    p->self = (attn_lsh_self)some(in, 2);
    p->penalty = chance(in, 12) ? nasty_float(in) : (float)below(in, 3);
  }
  p->scale = some_scale(in);
  const int64_t sets = array_size(q->batch, q->heads, p->rounds);
  const int64_t nodes = a->kind == LSH_QK ? k->len : q->len, n = array_size(sets, q->len, 1),
                m = array_size(sets, k->len, 1), valid = array_size(q->batch, nodes, 1);
  if (chance(in, 4)) p->valid = store_valid(in, s, valid);
  if (chance(in, 4)) p->kv_len = make_lengths(in, s, q->batch, nodes);
  if (a->kind == LSH_QK && chance(in, 4)) p->q_len = make_lengths(in, s, q->batch, q->len);
  const int given = below(in, 2) || a->kind == LSH_HASH;
  if (given && !make_ints(in, &j->b[C_A], n, 0, 1 + below(in, 9))) j->runnable = 0;
  if (given && a->kind == LSH_QK && !make_ints(in, &j->b[C_B], m, 0, 1 + below(in, 9)))
    j->runnable = 0;
  /* beyond the arrays, which say nothing of their length */
  if (!given && chance(in, 12)) p->rounds = nasty_int(in);
  if (p->rounds > 100 && p->rounds <= 1 << 20) p->rounds = 9;
}

static void make_yoso(input *in, job *j, store *s) {
  attn_yoso_params *p = &((content_args *)j->args)->yoso;
  const attn_tensor *q = &j->b[C_Q].view;
  const int64_t keys = j->b[C_K].view.len;
  if (chance(in, 4)) p->code_len = some(in, 17), p->draws = some(in, 9);
  if (p->draws > 100 && p->draws <= 1 << 20) p->draws = 9; /* legal, and long */
  p->seed = take(in), p->unit = below(in, 2), p->raw = below(in, 2);
  if (chance(in, 6)) {
    make_params(in, j, s, &p->attention, q, keys);
    return;
  }
  p->attention.causal = below(in, 3);
  if (chance(in, 4)) p->attention.kv_len = make_lengths(in, s, q->batch, keys);
  if (chance(in, 4)) p->attention.q_len = make_lengths(in, s, q->batch, q->len);
}

static void make_mra(input *in, job *j, store *s) {
  attn_mra_params *p = &((content_args *)j->args)->mra;
  const attn_tensor *q = &j->b[C_Q].view;
  p->block = chance(in, 12) ? nasty_int(in) : 1 + below(in, 40);
  p->exact = some(in, 30), p->has_exact = below(in, 2), p->sparse = below(in, 2);
  p->by_score = below(in, 2), p->scale = some_scale(in);
  if (chance(in, 3)) p->first = some(in, 3), p->diagonal = some(in, 5);
  if (chance(in, 4)) p->kv_len = make_lengths(in, s, q->batch, j->b[C_K].view.len);
  if (chance(in, 4)) p->q_len = make_lengths(in, s, q->batch, q->len);
}

/* Ascending members, now and then one out of order. */
static void make_members(input *in, job *j, int at, attn_members *m, int64_t sets, int64_t rows) {
  m->index = (int32_t *)make_words(&j->b[at], array_size(sets, m->entries, 1));
  m->indptr = (int32_t *)make_words(&j->b[at + 1], array_size(sets, m->clusters + 1, 1));
  if (!m->index || !m->indptr) {
    j->runnable = 0;
    return;
  }
  filler f = {take(in), 0};
  for (int64_t s = 0; s < sets; s++) {
    int32_t *index = m->index + s * m->entries, *start = m->indptr + s * (m->clusters + 1);
    int64_t n = 0;
    for (int64_t c = 0; c < m->clusters; c++) {
      start[c] = (int32_t)n;
      int64_t row = (int64_t)filler_next(&f) % 5;
      for (; n < m->entries && row < rows && filler_next(&f) % 9; n++) {
        index[n] = (int32_t)row;
        row += 1 + (int64_t)filler_next(&f) % 5;
      }
    }
    start[m->clusters] = (int32_t)n;
    for (; n < m->entries; n++) index[n] = -7;
  }
  if (chance(in, 12) && m->entries > 0 && sets > 0)
    m->index[take(in) % (uint64_t)m->entries] = (int32_t)nasty_int(in);
  if (chance(in, 12) && sets > 0)
    m->indptr[take(in) % (uint64_t)(m->clusters + 1)] = (int32_t)nasty_int(in);
}

static void make_routing(input *in, job *j, store *s, int64_t clusters) {
  content_args *a = (content_args *)j->args;
  attn_routing_params *p = &a->routing;
  const attn_tensor *q = &j->b[C_Q].view, *k = &j->b[C_K].view;
  p->norm = (attn_routing_norm)some(in, ATTN_ROUTING_NORM_COUNT);
  p->membership = (attn_routing_membership)some(in, ATTN_ROUTING_MEMBERSHIP_COUNT);
  p->combine = (attn_routing_combine)some(in, ATTN_ROUTING_COMBINE_COUNT);
  p->w = chance(in, 2) ? 0 : some(in, 30);
  p->wk = chance(in, 2) ? 0 : some(in, 30);
  p->causal = below(in, 2);
  p->exclude_self = p->shared && below(in, 2);
  p->scale = some_scale(in);
  if (chance(in, 4)) p->q_len = make_lengths(in, s, q->batch, q->len);
  if (!p->shared && chance(in, 4)) p->kv_len = make_lengths(in, s, q->batch, k->len);
  a->seed = take(in);
  a->update.rule = (attn_routing_rule)some(in, ATTN_ROUTING_RULE_COUNT);
  a->update.decay = chance(in, 12) ? nasty_float(in) : (float)below(in, 5) / 4;
  a->update.renormalize = below(in, 2);
  const int64_t sets = array_size(q->batch, q->heads, 1);
  if (a->kind != ROUTING_ATTEND && a->kind != ROUTING_SELECT) return;
  const int lists = 1 + !p->shared;
  for (int side = 0; side < lists; side++) {
    attn_members *m = side ? &a->keys : &a->queries;
    const int64_t rows = side ? k->len : q->len;
    const int64_t least = attn_routing_entries(rows, clusters, side ? p->wk : p->w, p->membership);
    m->clusters = clusters;
    m->entries = least < 0 || chance(in, 6) ? below(in, 100) : least + below(in, 2);
    if (least > 4000) m->entries = 4000;
    make_members(in, j, side ? C_C : C_A, m, sets, rows);
    if (chance(in, 24)) m->index = NULL;
    if (chance(in, 24)) m->clusters = -below(in, 3);
    if (chance(in, 24)) m->entries = -below(in, 3);
  }
}

static void fuzz_content(input *in) {
  content_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, CONTENT_KINDS);
  job j = {.name = "attention by content",
           .outputs = content_outputs[a.kind],
           .runnable = 1,
           .args = &a,
           .call = call_content,
           .workspace = workspace_content};
  const int routing = a.kind >= ROUTING, hashes = a.kind >= LSH && a.kind <= LSH_HASH;
  const int yoso = a.kind == YOSO || a.kind == YOSO_SAMPLE;
  const int shared = a.kind == LSH || a.kind == LSH_HASH || (routing && below(in, 2));
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2));
  const int64_t tq = below(in, 150), tk = shared || below(in, 2) ? tq : below(in, 150);
  const int64_t dk = 1 + below(in, 40), dv = 1 + below(in, 40), clusters = 1 + below(in, 9);
  const int moves = a.kind == ROUTING_UPDATE || a.kind == ROUTING_START;
  const int lse = below(in, 2);
  attn_tensor view[C_TENSORS];
  memset(view, 0, sizeof view);
  view[C_Q] = any_view(in, batch, heads, tq, dk, 0);
  if (a.kind != LSH && a.kind != LSH_HASH && !(routing && shared) && a.kind != ROUTING_START)
    view[C_K] = any_view(in, batch, kv, tk, dk, 0);
  if (a.kind == TOPK || a.kind == LSH || a.kind == LSH_QK || a.kind == ROUTING || yoso ||
      a.kind == ROUTING_ATTEND || a.kind == MRA) {
    view[C_V] = any_view(in, batch, kv, tk, dv, 0);
    view[C_O] = any_view(in, batch, heads, tq, dv, 1);
    if (lse && !yoso) view[C_LSE] = f32_view(in, batch, heads, tq, 1, 1);
  }
  if (a.kind <= ROUTING_ATTEND && routing && chance(in, 3)) {
    const int64_t rows = clusters * below(in, 4);
    view[C_MK] = any_view(in, 1, heads, rows, dk, 0);
    view[C_MV] = any_view(in, 1, heads, rows, dv, 0);
  }
  if (routing && a.kind != ROUTING_ATTEND && a.kind != ROUTING_START)
    view[C_MU] = f32_view(in, 1, heads, clusters, dk, 0);
  a.yoso.draws = 1 + below(in, 9), a.yoso.code_len = 1 + below(in, 6);
  if (a.kind == YOSO_SAMPLE && chance(in, 2))
    view[C_MU] = f32_view(in, chance(in, 2) ? heads : 1, a.yoso.draws, dk, a.yoso.code_len, 0);
  if (moves) view[C_O] = f32_view(in, 1, heads, clusters, dk, 1);
  if (a.kind == ROUTING_UPDATE && lse) {
    view[C_LSE] = attn_bhtd(NULL, ATTN_F32, 1, heads, clusters, 1);
    view[C_A] = f32_view(in, 1, heads, clusters, dk, 1);
  }
  make_buffers(in, &j, view, C_TENSORS);
  /* the array that has no shape of its own */
  if (a.kind == ROUTING_UPDATE && lse)
    make_words(&j.b[C_LSE], array_size(1, j.b[C_MU].view.heads, j.b[C_MU].view.len));
  a.routing.shared = shared;
  if (routing)
    make_routing(in, &j, &s, clusters);
  else if (yoso)
    make_yoso(in, &j, &s);
  else if (a.kind == MRA)
    make_mra(in, &j, &s);
  else if (hashes)
    make_lsh(in, &j, &s);
  else
    make_topk(in, &j, &s);
  job_run(&j, in);
  store_free(&s);
}

#endif
