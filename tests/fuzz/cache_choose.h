/* cache_choose.h owns the decoding of bytes into calls that choose among the tokens of a cache, or score them: each has the
 * bits of the call on the same rows in one piece. */

#ifndef FUZZ_CACHE_CHOOSE_H
#define FUZZ_CACHE_CHOOSE_H

#include "cache_model.h"

enum { PAGED_QUEST, PAGED_MOBA, PAGED_DSA, PAGED_SNAPKV, PAGED_H2O, PAGED_STANDS, PAGED_KINDS };

/* A call that chooses among the tokens of a sequence. */
typedef struct paged_call {
  int kind, given; /* given: vectors for pages, or keys of the indexer in pages */
  attn_tensor o, q, sums, stands, ki;
  int32_t *index;
  int64_t lists;
  attn_quest_params quest;
  attn_moba_params moba;
  attn_dsa_params dsa;
  attn_snapkv_params snap;
  attn_h2o_params h2o;
} paged_call;

static attn_status paged_run(paged_call *p, attn_tensor k, attn_tensor v, attn_selected softmax,
                             attn_ctx *ctx) {
  p->quest.attention = p->moba.attention = p->dsa.attention = softmax;
  p->quest.index = p->moba.index = p->dsa.index = p->index;
  p->snap.cache = p->h2o.cache = softmax.cache;
  p->snap.sequences = p->h2o.sequences = softmax.sequences;
  p->snap.k_scales = p->h2o.k_scales = softmax.k_scales;
  switch (p->kind) {
    case PAGED_MOBA: return attn_moba(p->o, p->q, k, v, &p->moba, ctx);
    case PAGED_DSA: return attn_dsa(p->o, p->q, k, v, &p->dsa, ctx);
    case PAGED_SNAPKV: return attn_snapkv(p->sums, p->q, k, &p->snap, ctx);
    case PAGED_H2O: return attn_h2o(p->sums, p->q, k, &p->h2o, ctx);
    default: return attn_quest(p->o, p->q, k, v, &p->quest, ctx);
  }
}

static attn_tensor paged_numbers(store *st, filler *f, int64_t heads, int64_t len, int64_t dim) {
  const int64_t n = heads * len * dim;
  float *x = (float *)store_take(st, (size_t)n * sizeof *x);
  for (int64_t i = 0; i < n && f; i++) x[i] = filler_number(f);
  return attn_bhtd(x, ATTN_F32, 1, heads, len, dim);
}

static int paged_same(attn_tensor a, attn_tensor b, int64_t heads, int64_t rows) {
  for (int64_t h = 0; h < heads; h++)
    if (memcmp((const float *)a.data + h * a.stride_head, (const float *)b.data + h * b.stride_head,
               (size_t)(rows * a.dim) * sizeof(float)))
      return 0;
  return 1;
}

/* Vectors for the pages of a sequence: each full page has that of its rows in one piece, and is left alone by tokens that
 * come behind it. 0: refused. */
static int paged_stands(cache_model *m, input *in, store *st, int a, attn_key_block_kind kind,
                        attn_tensor *y, attn_ctx *ctx, int spoilt) {
  const int64_t heads = m->p.k_heads, wide = kind == ATTN_KEY_BLOCK_BOUNDS ? 2 * m->p.dk : m->p.dk;
  attn_key_blocks_params p;
  attn_tensor none;
  memset(&p, 0, sizeof p), memset(&none, 0, sizeof none);
  p.kind = kind, p.cache = &m->cache, p.sequences = &m->s[a], p.n = 1;
  float *x = (float *)store_take(st, (size_t)(m->p.pages * heads * wide) * sizeof *x);
  memset(x, 0xFF, (size_t)(m->p.pages * heads * wide) * sizeof *x); /* NaN */
  *y = attn_bhtd(x, ATTN_F32, m->p.pages, heads, 1, wide);
  const int64_t fresh = below(in, 12);
  cache_remember(m);
  if (!cache_judge(m, attn_key_blocks(*y, none, &p, ctx), ctx)) return 0;
  promise(cache_unchanged(m), &m->j, "attn_key_blocks wrote to the cache");
  if (spoilt || m->s[a].len == 0) return 1; /* without rows a rotation has not been judged */
  const int64_t len = m->s[a].len, page = m->p.page, full = len / page;
  cache_rows k = cache_expected(m, 0, m->id[a][0], 0, len);
  attn_tensor whole = paged_numbers(st, NULL, heads, (len + page - 1) / page, wide);
  p.cache = NULL, p.sequences = NULL, p.n = 0, p.size = page, p.k_scales = k.s;
  promise(attn_key_blocks(whole, k.t, &p, ctx) == ATTN_OK, &m->j, "rows in one piece are refused");
  cache_free_rows(&k);
  for (int again = 0; again < 2; again++) {
    for (int64_t t = 0; t < full; t++)
      for (int64_t h = 0; h < heads; h++)
        promise(!memcmp(x + (m->s[a].table[t] * heads + h) * wide,
                        (const float *)whole.data + (h * whole.len + t) * wide,
                        (size_t)wide * sizeof *x),
                &m->j, "a page's vector is not that of its rows");
    if (again || fresh > len) break;
    for (int64_t t = (len - fresh) / page; t < full; t++) /* those are made anew */
      memset(x + m->s[a].table[t] * heads * wide, 0xFF, (size_t)(heads * wide) * sizeof *x);
    memset(&p, 0, sizeof p);
    p.kind = kind, p.cache = &m->cache, p.sequences = &m->s[a], p.n = 1, p.fresh = fresh;
    promise(attn_key_blocks(*y, none, &p, ctx) == ATTN_OK, &m->j, "fresh tokens are refused");
  }
  return 1;
}

/* The bits of the call on the same rows in one piece. */
static void cache_choose(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  store st = {NULL, 0};
  paged_call c;
  attn_selected softmax;
  attn_tensor none;
  memset(&c, 0, sizeof c), memset(&softmax, 0, sizeof softmax), memset(&none, 0, sizeof none);
  const int a = below(in, CACHE_SEQS);
  const int64_t n = 1 + below(in, 20), kv = m->p.k_heads, dk = m->p.dk, dv = cache_dim(m, 1);
  filler f = {take(in), 0};
  c.quest.page = below(in, 2) ? m->p.page : 1 + below(in, 8), c.quest.pages = 1 + below(in, 6);
  c.quest.last_competes = below(in, 2);
  c.kind = below(in, PAGED_KINDS), c.given = below(in, 2);
  const int64_t heads = kv * (1 + below(in, 4)), spare = below(in, 3);
  const int64_t len = m->s[a].len < 0 || m->s[a].len > CACHE_TOKENS ? 9 : m->s[a].len;
  c.moba.block = c.quest.page, c.moba.k = c.quest.pages, c.dsa.k = 2 * c.quest.pages;
  c.snap.window = c.quest.page * 3, c.snap.kernel = 2 * c.quest.pages - 1;
  c.snap.maximum = c.quest.last_competes;
  softmax.cache = &m->cache, softmax.sequences = &m->s[a];
  c.q = paged_numbers(&st, &f, heads, n, dk);
  c.o = paged_numbers(&st, NULL, heads, n, dv);
  c.sums = paged_numbers(&st, NULL, kv, len + spare, c.kind == PAGED_H2O ? 2 : 1);
  c.lists = heads * n * 12, c.index = (int32_t *)store_take(&st, (size_t)c.lists * sizeof *c.index);
  c.dsa.qi = paged_numbers(&st, &f, 2, n, c.given ? dk : 5);
  c.dsa.wi = paged_numbers(&st, &f, 1, n, 2);
  c.ki = paged_numbers(&st, &f, 1, len, 5);
  int ready = 1;
  if (c.kind == PAGED_STANDS || (c.given && c.kind < PAGED_DSA)) {
    ready = paged_stands(m, in, &st, a,
                         c.kind == PAGED_MOBA || (c.kind == PAGED_STANDS && c.given)
                             ? ATTN_KEY_BLOCK_MEAN
                             : ATTN_KEY_BLOCK_BOUNDS,
                         &c.stands, ctx, spoilt) &&
            c.kind != PAGED_STANDS;
    c.quest.page = c.moba.block = m->p.page, c.quest.bounds = c.moba.means = c.stands;
  }
  if (c.given)
    c.dsa.ki_cache = &m->cache, c.dsa.ki_sequences = &m->s[a];
  else
    c.dsa.ki = c.ki;
  cache_remember(m);
  const int ok = ready && cache_judge(m, paged_run(&c, none, none, softmax, ctx), ctx);
  promise(cache_unchanged(m), &m->j, "attention wrote to the cache");
  if (ok && !spoilt && len > 0) {
    paged_call w = c;
    cache_rows k = cache_expected(m, 0, m->id[a][0], 0, len);
    cache_rows v = m->p.latent ? k : cache_expected(m, 1, m->id[a][0], 0, len);
    v.t.dim = dv;
    memset(&softmax, 0, sizeof softmax);
    softmax.k_scales = k.s, softmax.v_scales = v.s;
    w.o = paged_numbers(&st, NULL, heads, n, dv),
    w.sums = paged_numbers(&st, NULL, kv, len, c.sums.dim);
    w.index = (int32_t *)store_take(&st, (size_t)c.lists * sizeof *c.index);
    w.quest.bounds = w.moba.means = none;
    if (c.given)
      w.dsa.ki_cache = NULL, w.dsa.ki_sequences = NULL, w.dsa.ki = k.t, w.dsa.ki_scales = k.s;
    promise(paged_run(&w, k.t, v.t, softmax, ctx) == ATTN_OK, &m->j,
            "the rows in one piece are refused");
    promise(paged_same(c.o, w.o, heads, n) && paged_same(c.sums, w.sums, kv, len), &m->j,
            "pages change bits");
    promise(!memcmp(c.index, w.index, (size_t)c.lists * sizeof *c.index), &m->j,
            "pages change a choice");
    for (int64_t h = 0; h < kv; h++)
      for (int64_t i = len * c.sums.dim; i < c.sums.stride_head; i++)
        promise(((const float *)c.sums.data)[h * c.sums.stride_head + i] == 0, &m->j,
                "scores of tokens that are not there");
    cache_free_rows(&k);
    if (!m->p.latent) cache_free_rows(&v);
  }
  store_free(&st);
}

#endif
