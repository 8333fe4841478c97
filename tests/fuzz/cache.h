/* cache.h owns the decoding of bytes into operations on a cache of pages: append, fork, roll back, let
 * go, accept drafts, attend, and fields that are spoilt. A model knows which token lies where; what a token holds
 * follows from its number. */

#ifndef FUZZ_CACHE_H
#define FUZZ_CACHE_H

#include <float.h>

#include "draft.h"
#include "rope.h"

enum { CACHE_SEQS = 3, CACHE_ROOM = 64, CACHE_TOKENS = 200, CACHE_DIM = 40 };

typedef struct cache_model {
  job j; /* its name, for promises */
  attn_cache_params p;
  attn_rope_params rope; /* of keys, where they are stored rotated */
  int turns;
  attn_cache cache;
  attn_sequence s[CACHE_SEQS];
  int id[CACHE_SEQS][CACHE_TOKENS];   /* the number of each token */
  int64_t at[CACHE_SEQS][CACHE_ROOM]; /* which token was written last to each row, -1 none */
  int64_t room;
  uint8_t *memory, *image;
  size_t size;
  int32_t *table[CACHE_SEQS], *table_image[CACHE_SEQS];
  attn_cache cache_image;
  attn_sequence s_image[CACHE_SEQS];
  int next;
} cache_model;

static int64_t cache_dim(const cache_model *m, int value) {
  return value && m->p.dv ? m->p.dv : m->p.dk;
}

static int64_t cache_heads(const cache_model *m, int value) {
  return value && m->p.v_heads ? m->p.v_heads : m->p.k_heads;
}

static attn_dtype cache_type(const cache_model *m, int value) {
  return value ? m->p.v_dtype : m->p.k_dtype;
}

static float cache_number(int id, int value, int64_t h, int64_t c) {
  return (float)((id * 37 + value * 11 + (int)h * 23 + (int)c * 5 + (int)c * id) % 63 - 31) / 16.0f;
}

static int64_t cache_slot(const cache_model *m, int64_t j) {
  if (!m->p.window || j < m->p.keep) return j;
  return m->p.keep + (j - m->p.keep) % (m->room - m->p.keep);
}

/* ---- memory ----------------------------------------------------------------------------------*/

static void cache_remember(cache_model *m) {
  memcpy(m->image, m->memory, m->size);
  m->cache_image = m->cache;
  memcpy(m->s_image, m->s, sizeof m->s);
  for (int a = 0; a < CACHE_SEQS; a++)
    memcpy(m->table_image[a], m->table[a], (size_t)(m->room / m->p.page) * sizeof(int32_t));
}

static int cache_unchanged(const cache_model *m) {
  int same = !memcmp(m->image, m->memory, m->size) &&
             !memcmp(&m->cache_image, &m->cache, sizeof m->cache) &&
             !memcmp(m->s_image, m->s, sizeof m->s);
  for (int a = 0; a < CACHE_SEQS; a++)
    same &=
        !memcmp(m->table_image[a], m->table[a], (size_t)(m->room / m->p.page) * sizeof(int32_t));
  return same;
}

/* Judges a call: 1 when it went well. */
static int cache_judge(cache_model *m, attn_status got, const attn_ctx *ctx) {
  promise(got >= ATTN_OK && got < ATTN_STATUS_COUNT, &m->j, "unknown status");
  promise((got == ATTN_OK) == (ctx->reason == NULL), &m->j, "a reason that does not fit");
  promise(got == ATTN_OK || cache_unchanged(m), &m->j, "a rejected call wrote");
  return got == ATTN_OK;
}

/* ---- the rows --------------------------------------------------------------------------------*/

/* Rows of keys from token `first` on, rotated as they are stored. */
static void cache_turn(const cache_model *m, attn_tensor y, attn_tensor x, int64_t first) {
  attn_rope_params rope = m->rope;
  rope.keys = 1, rope.start += first;
  promise(attn_rope(y, x, &rope, NULL) == ATTN_OK, &m->j, "stored keys that attn_rope refuses");
}

/* What the cache must hold of n tokens from `first` on, in one piece: the caller frees all. */
typedef struct cache_rows {
  attn_tensor t;
  attn_scales s;
} cache_rows;

static cache_rows cache_expected(const cache_model *m, int value, const int *id, int64_t first,
                                 int64_t n) {
  const int turns = m->turns && !value;
  const int64_t heads = cache_heads(m, value), dim = cache_dim(m, value);
  const attn_dtype type = cache_type(m, value);
  const int quantised = type > ATTN_BF16, zero = value ? m->p.v_zero : m->p.k_zero;
  cache_rows r;
  memset(&r, 0, sizeof r);
  float *x = (float *)must(malloc((size_t)(heads * n * dim) * sizeof *x + 1));
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < dim; c++) x[(h * n + i) * dim + c] = cache_number(id[i], value, h, c);
  r.t = attn_bhtd(x, ATTN_F32, 1, heads, n, dim);
  if (quantised) {
    const attn_tensor from = r.t;
    if (turns) cache_turn(m, from, from, first);
    for (int64_t i = 0; i < heads * n * dim; i++) /* what a table may make of a number */
      x[i] = x[i] != x[i] ? 0 : fminf(fmaxf(x[i], -FLT_MAX), FLT_MAX);
    r.t = attn_bhtd(NULL, type, 1, heads, n, dim + dim % 2);
    r.t.dim = dim;
    r.t.data = must(malloc((size_t)(heads * n * (dim + 1)) + 1));
    const size_t numbers = (size_t)(heads * n * (dim / 32 + 1)) * sizeof(float) + 1;
    r.s = attn_scales_dense((float *)must(malloc(numbers)),
                            zero ? (float *)must(malloc(numbers)) : NULL,
                            value ? m->p.v_group : m->p.k_group, &r.t);
    promise(attn_quantize(r.t, r.s, from, NULL) == ATTN_OK, &m->j, "rows that cannot be quantised");
    free(x);
  } else if (type != ATTN_F32) { /* exact numbers */
    const attn_tensor from = r.t;
    uint8_t *y = (uint8_t *)must(malloc((size_t)(heads * n * dim) * 2 + 1));
    r.t = attn_bhtd(y, type, 1, heads, n, dim);
    for (int64_t c = 0; c < heads * n * dim; c++) set_element(type, y, c, x[c]);
    if (turns) cache_turn(m, r.t, from, first);
    free(x);
  } else if (turns) {
    cache_turn(m, r.t, r.t, first);
  }
  return r;
}

static void cache_free_rows(cache_rows *r) {
  free(r->t.data);
  free(r->s.scale);
  free(r->s.zero);
}

static size_t cache_bytes(attn_dtype type, int64_t n) {
  return (size_t)(type == ATTN_F32    ? 4 * n
                  : type <= ATTN_BF16 ? 2 * n
                  : type == ATTN_I4   ? (n + 1) / 2
                                      : n);
}

static const uint8_t *cache_row(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (const uint8_t *)t->data +
         cache_bytes(t->dtype, b * t->stride_batch + h * t->stride_head + i * t->stride_len);
}

/* Token j of a sequence lies where it should and is what it should be. */
static void cache_check_token(const cache_model *m, int a, int64_t j) {
  const int64_t slot = cache_slot(m, j), page = m->s[a].table[slot / m->p.page];
  promise(page >= 0 && page < m->p.pages, &m->j, "a table that leaves the cache");
  for (int value = 0; value < 2 - m->p.latent; value++) {
    const attn_tensor *t = value ? &m->cache.v : &m->cache.k;
    const attn_scales *s = value ? &m->cache.v_scales : &m->cache.k_scales;
    cache_rows want = cache_expected(m, value, &m->id[a][j], j, 1);
    for (int64_t h = 0; h < t->heads; h++) {
      const uint8_t *row = cache_row(t, page, h, slot % m->p.page);
      const int64_t at = page * s->stride_batch + h * s->stride_head +
                         slot % m->p.page * s->stride_len,
                    w = h * want.s.stride_head;
      promise(!memcmp(row, cache_row(&want.t, 0, h, 0), cache_bytes(t->dtype, t->dim)), &m->j,
              "a row is not what was appended");
      if (want.s.scale)
        promise(s->scale[at] == want.s.scale[w], &m->j, "a scale is not what it should be");
      if (want.s.zero)
        promise(s->zero[at] == want.s.zero[w], &m->j, "a zero is not what it should be");
    }
    cache_free_rows(&want);
  }
}

static void cache_check(const cache_model *m) {
  int32_t holders[32] = {0};
  for (int a = 0; a < CACHE_SEQS; a++) {
    const attn_sequence *s = &m->s[a];
    int64_t held = 0;
    for (int64_t i = 0; i < m->room; i++)
      if (m->at[a][i] >= 0) held = i / m->p.page + 1;
    for (int64_t t = 0; t < held; t++) {
      promise(s->table[t] >= 0 && s->table[t] < m->p.pages, &m->j, "a page that is not there");
      holders[s->table[t]]++;
    }
    for (int64_t j = 0; j < s->len; j++)
      if (!m->p.window || j < m->p.keep || j >= s->len - m->p.window) cache_check_token(m, a, j);
  }
  promise(!memcmp(holders, m->cache.holders, (size_t)m->p.pages * sizeof *holders), &m->j,
          "holders that do not add up");
}

/* ---- operations ------------------------------------------------------------------------------*/

static void cache_append(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  const int first = below(in, CACHE_SEQS), n = 1 + below(in, CACHE_SEQS - first);
  const int64_t len = below(in, 9);
  int64_t rows[CACHE_SEQS], at[CACHE_SEQS + 1] = {0};
  const int mode = below(in, 3);
  for (int b = 0; b < n; b++) rows[b] = mode ? below(in, (int)len + 1) : len;
  for (int b = 0; b < n; b++) at[b + 1] = at[b] + rows[b];
  for (int b = 0; b < n && !spoilt; b++)
    if (m->s[first + b].len + rows[b] > CACHE_TOKENS) return;
  attn_append_params params;
  memset(&params, 0, sizeof params);
  if (mode == 1) params.rows = rows;
  if (mode == 2) params.indptr = at;
  if (m->turns) params.rope = &m->rope;
  attn_tensor x[2];
  for (int value = 0; value < 2; value++) {
    const int64_t heads = cache_heads(m, value), dim = cache_dim(m, value);
    const int64_t batch = mode == 2 ? 1 : n, length = mode == 2 ? at[n] : len;
    float *data = (float *)must(malloc((size_t)(batch * heads * length * dim) * sizeof *data + 1));
    for (int b = 0; b < n; b++)
      for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < (mode == 2 ? rows[b] : len); i++)
          for (int64_t c = 0; c < dim; c++) {
            const int64_t row = mode == 2 ? h * length + at[b] + i : (b * heads + h) * length + i;
            data[row * dim + c] = cache_number(m->next + b * 16 + (int)i, value, h, c);
          }
    x[value] = attn_bhtd(data, ATTN_F32, batch, heads, length, dim);
  }
  if (m->p.latent) free(x[1].data), x[1].data = NULL;
  cache_remember(m);
  const int ok = cache_judge(m,
                             attn_cache_append(&m->cache, m->s + first, n, x[0], x[1],
                                               mode || m->turns ? &params : NULL, ctx),
                             ctx);
  for (int b = 0; b < n && ok && !spoilt; b++)
    for (int64_t i = 0; i < rows[b]; i++) {
      const int64_t j = m->s_image[first + b].len + i;
      m->id[first + b][j] = m->next + b * 16 + (int)i;
      m->at[first + b][cache_slot(m, j)] = j;
    }
  m->next = (m->next + 100) % 100000;
  free(x[0].data);
  free(x[1].data);
}

static void cache_fork(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  const int a = below(in, CACHE_SEQS), b = below(in, CACHE_SEQS);
  cache_remember(m);
  if (!cache_judge(m, attn_cache_fork(&m->cache, &m->s[b], &m->s[a], ctx), ctx) || spoilt) return;
  if (a == b) return;
  memcpy(m->id[b], m->id[a], sizeof m->id[a]);
  memcpy(m->at[b], m->at[a], sizeof m->at[a]);
}

static void cache_back(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  const int a = below(in, CACHE_SEQS);
  const int64_t len = chance(in, 8) ? nasty_int(in) : m->s[a].len - below(in, 12);
  int round = 0;
  for (int64_t i = 0; i < m->room; i++) round |= m->at[a][i] >= m->room;
  cache_remember(m);
  if (!cache_judge(m, attn_cache_rollback(&m->cache, &m->s[a], len, ctx), ctx) || spoilt) return;
  for (int64_t j = 0; j < len; j++)
    promise(
        (m->p.window && j >= m->p.keep && j < len - m->p.window) || m->at[a][cache_slot(m, j)] == j,
        &m->j, "gone back to keys that are overwritten");
  if (!round || len <= m->p.keep)
    for (int64_t i = len; i < m->room; i++) m->at[a][i] = -1;
}

/* The last tokens are a tree, of which a path stays. */
static void cache_accept(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  if (m->turns) return; /* rows that move would be turned for where they stood */
  store st = {NULL, 0};
  const int a = below(in, CACHE_SEQS);
  const int64_t n = chance(in, 12) ? 30 : below(in, 12),
                leaf = chance(in, 12) ? nasty_int(in) : below(in, (int)n + 1) - 1;
  const int32_t *parent = make_tree(in, &st, n);
  cache_remember(m);
  const int ok = cache_judge(m, attn_cache_accept(&m->cache, &m->s[a], parent, n, leaf, ctx), ctx);
  if (ok && !spoilt) {
    const int64_t first = m->s_image[a].len - n;
    int path[CACHE_TOKENS];
    int64_t depth = 0;
    for (int64_t i = leaf; i >= 0; i = parent[i]) depth++;
    promise(m->s[a].len == first + depth, &m->j, "a path of another length");
    int64_t d = depth;
    for (int64_t i = leaf; i >= 0; i = parent[i]) path[--d] = m->id[a][first + i];
    for (d = 0; d < depth; d++) {
      m->id[a][first + d] = path[d];
      m->at[a][first + d] = first + d;
    }
    for (int64_t i = first + depth; i < m->room; i++) m->at[a][i] = -1;
  }
  store_free(&st);
}

/* The bits of attn_sdpa on the same rows in one piece. */
static void cache_attend(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  const int a = below(in, CACHE_SEQS);
  const int64_t n = 1 + below(in, 20), heads = m->p.k_heads, dk = m->p.dk, dv = cache_dim(m, 1);
  const size_t size = (size_t)(heads * n * dv) * sizeof(float);
  float *q = (float *)must(malloc((size_t)(heads * n * dk) * sizeof *q));
  float *o = (float *)must(malloc(size)), *dense = (float *)must(malloc(size));
  filler f = {take(in), 0};
  for (int64_t i = 0; i < heads * n * dk; i++) q[i] = filler_number(&f);
  attn_sdpa_params params;
  memset(&params, 0, sizeof params);
  params.causal = 1;
  const attn_tensor qt = attn_bhtd(q, ATTN_F32, 1, heads, n, dk);
  cache_remember(m);
  const int ok = cache_judge(m,
                             attn_cache_sdpa(attn_bhtd(o, ATTN_F32, 1, heads, n, dv), qt, &m->cache,
                                             &m->s[a], 1, &params, ctx),
                             ctx);
  promise(cache_unchanged(m), &m->j, "attention wrote to the cache");
  if (ok && !spoilt && m->s[a].len > 0) {
    cache_rows k = cache_expected(m, 0, m->id[a], 0, m->s[a].len);
    cache_rows v = m->p.latent ? k : cache_expected(m, 1, m->id[a], 0, m->s[a].len);
    v.t.dim = dv;
    params.k_scales = k.s, params.v_scales = v.s;
    if (m->p.window) {
      params.window = attn_window_of(m->p.window - 1, -1);
      params.keep = m->p.keep;
    }
    promise(attn_sdpa(attn_bhtd(dense, ATTN_F32, 1, heads, n, dv), qt, k.t, v.t, &params, ctx) ==
                ATTN_OK,
            &m->j, "the rows in one piece are refused");
    promise(!memcmp(o, dense, size), &m->j, "pages change bits");
    cache_free_rows(&k);
    if (!m->p.latent) cache_free_rows(&v);
  }
  free(q);
  free(o);
  free(dense);
}

static void cache_step(cache_model *m, input *in, int spoilt) {
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  const int byte = (int)take(in), what = byte < 240 ? byte % 10 : 10;
  ctx.isa = (attn_isa)below(in, 3);
  /* rotations of the scalar tier have bits of their own */
  if (attn_isa_status(ctx.isa) != ATTN_ISA_OK || m->turns) ctx.isa = ATTN_ISA_AUTO;
  if (what < 5)
    cache_append(m, in, &ctx, spoilt);
  else if (what == 5)
    cache_fork(m, in, &ctx, spoilt);
  else if (what < 8)
    cache_back(m, in, &ctx, spoilt);
  else if (what < 10)
    cache_attend(m, in, &ctx, spoilt);
  else
    cache_accept(m, in, &ctx, spoilt);
}

/* Spoils one field: a call must see it, or do something that stays within the cache. */
static void cache_spoil(cache_model *m, input *in) {
  attn_sequence *s = &m->s[below(in, CACHE_SEQS)];
  const int64_t bad = nasty_int(in);
  switch (below(in, 9)) {
    case 0: s->len = bad; break;
    case 1: s->high = bad; break;
    case 2: s->table_len = bad < s->table_len ? bad : -bad; break;
    case 3: s->table = NULL; break;
    case 4: s->table[below(in, (int)(m->room / m->p.page))] = (int32_t)bad; break;
    case 5: m->cache.holders[below(in, (int)m->p.pages)] = (int32_t)bad; break;
    case 6: m->cache.next_free = bad; break;
    case 7: m->cache.window = bad; break;
    default: m->cache.keep = bad; break;
  }
}

static void fuzz_cache(input *in) {
  store s = {NULL, 0};
  cache_model *m = (cache_model *)must(calloc(1, sizeof *m));
  attn_cache_params *p = &m->p;
  m->j.name = "attn_cache";
  p->page = 1 + below(in, 5), p->pages = 1 + below(in, 12);
  const int64_t entries = 1 + below(in, 10);
  m->room = entries * p->page;
  p->k_heads = 1 + below(in, 2), p->v_heads = below(in, 2) ? 0 : p->k_heads;
  p->dk = 1 + below(in, CACHE_DIM), p->dv = below(in, CACHE_DIM + 1);
  p->k_dtype = (attn_dtype)below(in, ATTN_DTYPE_COUNT);
  p->v_dtype = (attn_dtype)below(in, ATTN_DTYPE_COUNT);
  p->latent = chance(in, 4);
  const int quantised = below(in, 16);
  if (p->k_dtype > ATTN_BF16 && quantised & 1) p->k_group = 32;
  if (p->v_dtype > ATTN_BF16 && quantised & 2) p->v_group = 32;
  if ((p->k_dtype == ATTN_I8 || p->k_dtype == ATTN_I4) && quantised & 4) p->k_zero = 1;
  if ((p->v_dtype == ATTN_I8 || p->v_dtype == ATTN_I4) && quantised & 8) p->v_zero = 1;
  if (p->latent) {
    p->v_heads = 0, p->v_dtype = p->k_dtype, p->v_group = 0, p->v_zero = 0;
    if (p->dv > p->dk) p->dv = 0;
  }
  if (chance(in, 3)) {
    p->keep = below(in, (int)m->room);
    p->window = 1 + below(in, (int)(m->room - p->keep));
  }
  if (chance(in, 3)) {
    make_rope(in, &m->j, &s, &m->rope, 1, 0, p->dk);
    m->rope.positions = NULL, m->rope.real_positions = NULL; /* those of the tokens */
    m->turns = 1;
  }
  m->size = attn_cache_size(p);
  promise(m->size > 0, &m->j, "sizes that are legal");
  m->memory = (uint8_t *)must(malloc(m->size)), m->image = (uint8_t *)must(malloc(m->size));
  memset(m->memory, 0xA5, m->size);
  promise(attn_cache_open(&m->cache, m->memory, m->size, p, NULL) == ATTN_OK, &m->j, "open");
  for (int a = 0; a < CACHE_SEQS; a++) {
    const size_t bytes = (size_t)entries * sizeof(int32_t);
    m->s[a].table = m->table[a] = (int32_t *)must(malloc(bytes));
    m->table_image[a] = (int32_t *)must(malloc(bytes));
    memset(m->table[a], 0xA5, bytes);
    m->s[a].table_len = entries;
    for (int i = 0; i < CACHE_ROOM; i++) m->at[a][i] = -1;
  }
  while (in->next < in->end) {
    if (chance(in, 32)) {
      cache_spoil(m, in);
      for (int i = 0; i < 4; i++) cache_step(m, in, 1);
      break;
    }
    cache_step(m, in, 0);
    cache_check(m);
  }
  for (int a = 0; a < CACHE_SEQS; a++) free(m->table[a]), free(m->table_image[a]);
  store_free(&s);
  free(m->memory);
  free(m->image);
  free(m);
}

#endif
