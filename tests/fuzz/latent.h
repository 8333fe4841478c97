/* latent.h owns the decoding of bytes into calls over what stands for keys and values: latent rows and
 * factors, with and without a cache of them, and a memory of segments. */

#ifndef FUZZ_LATENT_H
#define FUZZ_LATENT_H

#include "arrays.h"
#include "rope.h"

/* A call that is made again must find the cache as it was, so its memory and tables are outputs. */
enum { LATENT_SEQS = 4 };
enum {
  LATENT_Y,
  LATENT_LSE,
  LATENT_CACHE,
  LATENT_TABLE,
  LATENT_X = LATENT_TABLE + LATENT_SEQS, /* and five more: weights or factors */
  LATENT_TENSORS = LATENT_X + 6
};
enum { MLA, TPA, INFINI, LATENT_KINDS };

typedef struct latent_args {
  int kind;
  attn_mla_params mla;
  attn_tpa_params tpa;
  attn_infini_params infini;
  attn_rope_params rope;
  attn_cache *cache, cache_image;
  attn_sequence *held, held_image[LATENT_SEQS];
  int64_t sequences; /* of the cache */
  int spoilt;
} latent_args;

static attn_factors latent_factors(const job *j, int at) {
  attn_factors f = {j->b[LATENT_X + at].view, j->b[LATENT_X + at + 1].view};
  return f;
}

/* The call, or with bytes the workspace query. */
static attn_status latent_made(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  latent_args *a = (latent_args *)j->args;
  const attn_tensor y = j->b[LATENT_Y].view, x = j->b[LATENT_X].view, lse = j->b[LATENT_LSE].view;
  const attn_tensor w[5] = {j->b[LATENT_X + 1].view, j->b[LATENT_X + 2].view,
                            j->b[LATENT_X + 3].view, j->b[LATENT_X + 4].view,
                            j->b[LATENT_X + 5].view};
  if (a->kind == MLA) {
    a->mla.w_dq = w[0], a->mla.w_uq = w[1], a->mla.w_dkv = w[2], a->mla.w_ukv = w[3];
    a->mla.w_o = w[4], a->mla.lse = lse;
    return EITHER(attn_mla, y, x, &a->mla);
  }
  if (a->kind == TPA) {
    const attn_factors q = latent_factors(j, 0), k = latent_factors(j, 2), v = latent_factors(j, 4);
    a->tpa.lse = lse;
    return EITHER(attn_tpa, y, &q, &k, &v, &a->tpa);
  }
  a->infini.memory = j->b[LATENT_LSE].view, a->infini.z = j->b[LATENT_CACHE].view;
  a->infini.q_plain = w[2], a->infini.k_plain = w[3];
  return EITHER(attn_infini, y, x, w[0], w[1], &a->infini);
}

/* What describes the cache is as before the call, and stays so unless it goes well. */
static attn_status latent(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  latent_args *a = (latent_args *)j->args;
  const size_t size = (size_t)a->sequences * sizeof *a->held;
  if (a->cache) {
    *a->cache = a->cache_image;
    memcpy(a->held, a->held_image, size);
  }
  const attn_status status = latent_made(j, ctx, query, bytes);
  if (a->cache && (bytes || status != ATTN_OK))
    promise(!memcmp(a->cache, &a->cache_image, sizeof *a->cache) &&
                !memcmp(a->held, a->held_image, size),
            j, "a rejected call changed the cache");
  return status;
}

static attn_status call_latent(job *j, attn_ctx *ctx) { return latent(j, ctx, NULL, NULL); }
static size_t workspace_latent(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  latent(j, NULL, ctx, &bytes);
  return bytes;
}

/* Every page is held by as many tables as its count says. */
static void judge_latent(job *j) {
  const latent_args *a = (const latent_args *)j->args;
  if (!a->cache || a->spoilt || a->cache->window) return;
  int32_t holders[32] = {0};
  for (int64_t b = 0; b < a->sequences; b++)
    for (int64_t t = 0; t * a->cache->k.len < a->held[b].len; t++) {
      const int32_t page = a->held[b].table[t];
      promise(page >= 0 && page < a->cache->k.batch, j, "a page that is not there");
      holders[page]++;
    }
  promise(!memcmp(holders, a->cache->holders, (size_t)a->cache->k.batch * sizeof *holders), j,
          "holders that do not add up");
}

/* ---- the cache -------------------------------------------------------------------------------*/

/* Tokens that are there before the call: one append, and now and then a fork of it. */
static void fill_cache(input *in, latent_args *a) {
  const attn_cache *c = a->cache;
  int64_t rows[LATENT_SEQS] = {0};
  const int64_t len = below(in, 20), wide = c->k.dim + (c->v.data ? c->v.dim : 0);
  const int fork = chance(in, 3) && a->sequences > 1;
  for (int64_t b = 0; b < a->sequences; b++) rows[b] = fork && b == 1 ? 0 : below(in, (int)len + 1);
  const int64_t count = a->sequences * len;
  float *x = (float *)must(malloc((size_t)(count * wide) * sizeof *x + 1));
  filler f = {take(in), 0};
  for (int64_t i = 0; i < count * wide; i++) x[i] = filler_number(&f);
  attn_append_params p;
  memset(&p, 0, sizeof p);
  p.rows = rows;
  attn_tensor k = attn_bhtd(x, ATTN_F32, a->sequences, 1, len, c->k.dim), v = {0};
  if (a->kind == TPA) v = attn_bhtd(x + count * c->k.dim, ATTN_F32, a->sequences, 1, len, c->v.dim);
  (void)attn_cache_append(a->cache, a->held, a->sequences, k, v, &p, NULL);
  if (fork) (void)attn_cache_fork(a->cache, &a->held[1], &a->held[0], NULL);
  free(x);
}

/* A call must see it, or do something that stays within the cache. */
static void spoil_latent(input *in, latent_args *a) {
  attn_sequence *s = &a->held[below(in, (int)a->sequences)];
  const int64_t bad = nasty_int(in);
  a->spoilt = 1;
  switch (below(in, 10)) {
    case 0: s->len = bad; break;
    case 1: s->high = bad; break;
    case 2: s->table_len = bad < s->table_len ? bad : -bad; break;
    case 3: s->table = NULL; break;
    case 4: s->table[take(in) % (uint64_t)s->table_len] = (int32_t)bad; break;
    case 5: a->cache->holders[take(in) % (uint64_t)a->cache->k.batch] = (int32_t)bad; break;
    case 6: a->cache->next_free = bad; break;
    case 7: a->cache->window = bad; break;
    case 8: a->cache->keep = bad; break;
    default: flaw_view(in, &a->cache->k); break;
  }
}

/* A cache of rows of dk and dv columns for n sequences; latent ones hold v within k. */
static void make_cache(input *in, job *j, store *s, int64_t n, int64_t dk, int64_t dv) {
  latent_args *a = (latent_args *)j->args;
  attn_cache_params p;
  memset(&p, 0, sizeof p);
  p.k_heads = 1, p.dk = dk, p.dv = dv, p.latent = a->kind == MLA;
  if (chance(in, 24)) p.dk += below(in, 3) - 1;
  if (chance(in, 24)) p.dv += below(in, 3) - 1;
  p.k_dtype = (attn_dtype)some(in, 3), p.v_dtype = (attn_dtype)some(in, 3);
  if (p.latent) p.v_dtype = p.k_dtype;
  p.page = 1 + below(in, 9), p.pages = 1 + below(in, 24);
  const int64_t entries = 1 + below(in, 12), room = entries * p.page;
  if (chance(in, 6)) {
    p.keep = below(in, (int)room);
    p.window = 1 + below(in, (int)(room - p.keep));
  }
  const size_t size = attn_cache_size(&p);
  if (n < 1 || n > LATENT_SEQS || !size || size > (size_t)SPAN_MAX) return;
  buffer *b = &j->b[LATENT_CACHE];
  if (!buffer_make(b, attn_bhtd(NULL, ATTN_I8, 1, 1, 1, (int64_t)size), 0)) return;
  a->cache = (attn_cache *)store_take(s, sizeof *a->cache);
  a->held = (attn_sequence *)store_take(s, (size_t)n * sizeof *a->held);
  a->sequences = n;
  promise(attn_cache_open(a->cache, b->base, size, &p, NULL) == ATTN_OK, j, "open");
  for (int64_t i = 0; i < n; i++) {
    a->held[i].table = (int32_t *)make_words(&j->b[LATENT_TABLE + i], entries);
    a->held[i].table_len = entries;
  }
  fill_cache(in, a);
  if (chance(in, 8)) spoil_latent(in, a);
  a->cache_image = *a->cache;
  memcpy(a->held_image, a->held, (size_t)n * sizeof *a->held);
}

/* ---- latent rows and factors -----------------------------------------------------------------*/

/* Sequences within one batch entry: pointers that rise to at most len. */
static const int64_t *make_sequences(input *in, store *s, int64_t n, int64_t len) {
  int64_t *at = (int64_t *)store_take(s, (size_t)(n + 1) * sizeof *at);
  if (len > 1000) len = 1000;
  for (int64_t i = 0; i < n; i++)
    at[i + 1] = at[i] + (len > 0 ? (int64_t)take(in) % (len - at[i] + 1) : 0);
  if (chance(in, 16)) at[below(in, (int)n + 1)] = nasty_int(in);
  return at;
}

static void fuzz_sequences(input *in, job *j, store *s) {
  latent_args *a = (latent_args *)j->args;
  attn_mla_params *m = &a->mla;
  attn_tpa_params *t = &a->tpa;
  const int packed = chance(in, 3), with = below(in, 32);
  const int64_t batch = packed ? 1 : below(in, 4), heads = 1 + below(in, 10);
  const int64_t len = chance(in, 4) ? below(in, 90) : below(in, 14);
  const int64_t dm = 1 + below(in, 16), dq = 1 + below(in, 10), dc = 1 + below(in, 20);
  const int64_t dn = 1 + below(in, 9), dv = 1 + below(in, 9), back = 1 + below(in, 16);
  const int64_t dr = a->kind == TPA || with & 1 ? 2 * (1 + below(in, 4)) : 0;
  const int64_t rq = 1 + below(in, 6), rk = 1 + below(in, 3), rv = 1 + below(in, 3);
  attn_tensor view[LATENT_TENSORS], *x = &view[LATENT_X];
  memset(view, 0, sizeof view);
  if (a->kind == MLA) {
    const int turned = m->w_transposed = chance(in, 3);
    x[0] = any_view(in, batch, 1, len, dm, 0);
    if (with & 2) x[1] = weight_view(in, dm, dq, turned);
    x[2] = weight_view(in, with & 2 ? dq : dm, heads * (dn + dr), turned);
    x[3] = weight_view(in, dm, dc + dr, turned);
    x[4] = weight_view(in, dc, heads * (dn + dv), turned);
    x[5] = weight_view(in, heads * dv, back, turned);
    view[LATENT_Y] = any_view(in, batch, 1, len, back, 1);
  } else {
    const int64_t rank[3] = {rq, rk, rv}, wide[3] = {dr, dr, dv};
    for (int i = 0; i < 3; i++) {
      x[2 * i] = any_view(in, batch, rank[i], len, heads, 0);
      x[2 * i + 1] = any_view(in, batch, rank[i], len, wide[i], 0);
    }
    view[LATENT_Y] = any_view(in, batch, heads, len, dv, 1);
  }
  if (with & 4) view[LATENT_LSE] = f32_view(in, batch, heads, len, 1, 1);
  make_buffers(in, j, view, LATENT_TENSORS);

  const attn_tensor *rows = &j->b[LATENT_X].view;
  m->heads = chance(in, 16) ? nasty_int(in) : heads;
  m->rope_dim = chance(in, 16) ? nasty_int(in) : dr;
  int fault = 0;
  if (with & 2 && chance(in, 2)) m->q_gain = store_floats(in, s, dq, -2, 2, &fault);
  if (chance(in, 2)) m->kv_gain = store_floats(in, s, dc, -2, 2, &fault);
  m->eps = some_scale(in), m->scale = t->scale = some_scale(in);
  m->bidirectional = t->bidirectional = chance(in, 3);
  if (chance(in, 4)) m->window = attn_window_of(some(in, 20), some(in, 2) ? some(in, 20) : -1);
  t->window = m->window;
  m->form = (attn_mla_form)some(in, ATTN_MLA_FORMS);
  int64_t n = rows->batch;
  if (packed) {
    n = chance(in, 12) ? below(in, 2) - 1 : 1 + below(in, LATENT_SEQS);
    m->indptr = t->indptr = make_sequences(in, s, n > 0 ? n : 0, rows->len);
    m->sequences = t->sequences = n;
  } else if (chance(in, 24)) {
    m->sequences = t->sequences = nasty_int(in);
  }
  if (with & 8)
    make_cache(in, j, s, n, a->kind == MLA ? dc + dr : rk * (heads + dr),
               a->kind == MLA ? dc : rv * (heads + dv));
  m->cache = t->cache = a->cache, m->held = t->held = a->held;
  if (chance(in, 32)) m->held = t->held = NULL;
  if (chance(in, 3)) {
    make_rope(in, j, s, &a->rope, rows->batch, rows->len, dr);
    m->rope = t->rope = &a->rope;
  }
}

/* ---- a memory of segments --------------------------------------------------------------------*/

static void fuzz_infini(input *in, job *j, store *s) {
  attn_infini_params *p = &((latent_args *)j->args)->infini;
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2));
  const int64_t tk = below(in, 150), tq = chance(in, 2) ? below(in, (int)tk + 1) : tk;
  const int64_t dk = 1 + below(in, 20), dv = 1 + below(in, 20);
  const int with = below(in, 8);
  attn_tensor view[LATENT_TENSORS], *x = &view[LATENT_X];
  memset(view, 0, sizeof view);
  view[LATENT_Y] = any_view(in, batch, heads, tq, dv, 1);
  if (with & 1) view[LATENT_LSE] = f32_view(in, batch, kv, dk, dv, 1);
  if (with & 1) view[LATENT_CACHE] = f32_view(in, batch, kv, 1, dk, 1);
  x[0] = any_view(in, batch, heads, tq, dk, 0);
  x[1] = any_view(in, batch, kv, tk, dk, 0);
  x[2] = any_view(in, batch, kv, tk, dv, 0);
  if (with & 2) x[3] = any_view(in, batch, heads, tq, dk, 0);
  if (with & 2) x[4] = any_view(in, batch, kv, tk, dk, 0);
  make_buffers(in, j, view, LATENT_TENSORS);
  p->segment = chance(in, 12) ? nasty_int(in) : 1 + below(in, 90);
  int fault = 0;
  if (with & 4) p->beta = store_floats(in, s, array_size(x[0].heads, 1, 1), -2, 2, &fault);
  p->delta = below(in, 2), p->open = below(in, 2), p->scale = some_scale(in);
  if (chance(in, 3)) p->len = make_lengths(in, s, x[0].batch, tk);
}

static void fuzz_latent(input *in) {
  latent_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, LATENT_KINDS);
  job j = {.name = "what stands for keys and values",
           .outputs = LATENT_X,
           .runnable = 1,
           .args = &a,
           .call = call_latent,
           .workspace = workspace_latent,
           .judge = judge_latent};
  if (a.kind == INFINI)
    fuzz_infini(in, &j, &s);
  else
    fuzz_sequences(in, &j, &s);
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
