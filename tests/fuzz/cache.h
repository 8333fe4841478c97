/* cache.h owns the decoding of bytes into operations on a cache of pages: append, fork, roll back, let
 * go, accept drafts, forget, attend, also to what is chosen, and fields that are spoilt. */

#ifndef FUZZ_CACHE_H
#define FUZZ_CACHE_H

#include "cache_choose.h"

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
      for (int h = 0; h < CACHE_HEADS; h++) m->id[first + b][h][j] = m->next + b * 16 + (int)i;
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
  const int64_t old = m->s[a].len; /* which may be spoilt */
  const int64_t len = chance(in, 8) || old < 0 ? nasty_int(in) : old - below(in, 12);
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
    int64_t path[CACHE_TOKENS], depth = 0;
    for (int64_t i = leaf; i >= 0; i = parent[i]) depth++;
    promise(m->s[a].len == first + depth, &m->j, "a path of another length");
    int64_t d = depth;
    for (int64_t i = leaf; i >= 0; i = parent[i]) path[--d] = first + i;
    for (d = 0; d < depth; d++) {
      for (int h = 0; h < CACHE_HEADS; h++) m->id[a][h][first + d] = m->id[a][h][path[d]];
      m->at[a][first + d] = first + d;
    }
    for (int64_t i = first + depth; i < m->room; i++) m->at[a][i] = -1;
  }
  store_free(&st);
}

/* Rows beside those of the cache: each says where it was. */
static void cache_label(float *more, int32_t *places, int64_t heads, int64_t rows) {
  for (int64_t i = 0; i < heads * rows; i++) {
    places[i] = (int32_t)(7 * i);
    for (int64_t c = 0; c < 3; c++) more[3 * i + c] = (float)(4 * i + c);
  }
}

/* Some tokens stay, the same in all heads or not. */
static void cache_forget(cache_model *m, input *in, attn_ctx *ctx, int spoilt) {
  if (m->turns) return;
  store st = {NULL, 0};
  const int a = below(in, CACHE_SEQS);
  const int64_t capacity = 1 + below(in, 20), heads = m->p.k_heads;
  int64_t n = below(in, 24) < capacity ? capacity : capacity / 2, freed = -1;
  attn_cache_evict_params p;
  memset(&p, 0, sizeof p);
  p.freed = &freed;
  const int64_t len = m->s[a].len < 0 || m->s[a].len > CACHE_TOKENS ? 9 : m->s[a].len;
  const int32_t *rows = store_ascending(in, &st, &n, len);
  int32_t *kept = (int32_t *)store_take(&st, (size_t)(heads * capacity) * sizeof *kept);
  const int nasty = chance(in, 12) ? 1 + below(in, (int)(heads * capacity)) : 0;
  const int32_t bad = nasty ? (int32_t)nasty_int(in) : 0;
  const int with = below(in, 8); /* 1: other rows in the other head, 2: more, 4: positions */
  const int64_t room = len + below(in, 3);
  for (int64_t i = 0; i < heads * capacity; i++) {
    const int64_t at = i % capacity;
    kept[i] = at >= n                     ? -1
              : with & 1 && i >= capacity ? (int32_t)(len - 1 - rows[n - 1 - at])
                                          : rows[at];
  }
  if (nasty) kept[nasty - 1] = bad;
  float *more = (float *)store_take(&st, (size_t)(heads * room * 3) * sizeof *more);
  int32_t *places = (int32_t *)store_take(&st, (size_t)(heads * room) * sizeof *places);
  cache_label(more, places, heads, room);
  if (with & 2) p.more = attn_bhtd(more, ATTN_F32, 1, heads, room, 3);
  if (with & 4) p.positions = places, p.places = room;
  cache_remember(m);
  if (cache_judge(m, attn_cache_evict(&m->cache, &m->s[a], 1, kept, capacity, &p, ctx), ctx) &&
      !spoilt) {
    for (n = 0; n < capacity && kept[n] >= 0;) n++;
    promise(m->s[a].len == n && freed >= 0, &m->j, "other rows than those that stay");
    for (int64_t h = 0; h < heads; h++)
      for (int64_t r = 0; r < room; r++) {
        const int64_t from = h * room + (r < n ? kept[h * capacity + r] : r), to = h * room + r;
        if (r < n) m->id[a][h][r] = m->id[a][h][kept[h * capacity + r]];
        promise(!(with & 2) || (more[3 * to] == (float)(4 * from) &&
                                more[3 * to + 2] == (float)(4 * from + 2)),
                &m->j, "numbers beside a row that moved are not its own");
        promise(!(with & 4) || places[to] == 7 * from, &m->j, "a row that moved is misplaced");
      }
    for (int64_t i = 0; i < m->room; i++) m->at[a][i] = i < n ? i : -1;
  } else if (!spoilt) {
    for (int64_t i = 0; i < heads * room; i++)
      promise(places[i] == 7 * i && more[3 * i] == (float)(4 * i), &m->j, "a rejected call wrote");
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
    cache_rows k = cache_expected(m, 0, m->id[a][0], 0, m->s[a].len);
    cache_rows v = m->p.latent ? k : cache_expected(m, 1, m->id[a][0], 0, m->s[a].len);
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
  const int byte = (int)take(in), what = byte < 240   ? byte % 10
                                         : byte < 246 ? 10
                                         : byte < 251 ? 11
                                                      : 12;
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
  else if (what == 10)
    cache_accept(m, in, &ctx, spoilt);
  else if (what == 11)
    cache_forget(m, in, &ctx, spoilt);
  else
    cache_choose(m, in, &ctx, spoilt);
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
    if (below(in, 2)) {
      make_qk_norm(in, &s, &m->norm, p->k_heads, p->k_heads, p->dk, &m->j.tame);
      m->rope.norm = &m->norm;
    }
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
