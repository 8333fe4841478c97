/* cache_model.h owns what the fuzzer knows of a cache of pages: which token lies where, what it holds, which follows from
 * its number, and what a call may have changed. */

#ifndef FUZZ_CACHE_MODEL_H
#define FUZZ_CACHE_MODEL_H

#include <float.h>

#include "draft.h"
#include "rope.h"

enum { CACHE_SEQS = 3, CACHE_HEADS = 2, CACHE_ROOM = 64, CACHE_TOKENS = 200, CACHE_DIM = 40 };

typedef struct cache_model {
  job j; /* its name, for promises */
  attn_cache_params p;
  attn_rope_params rope; /* of keys, where they are stored rotated */
  attn_qk_norm norm;
  int turns;
  attn_cache cache;
  attn_sequence s[CACHE_SEQS];
  /* the number of each token, by head: what is forgotten may differ */
  int id[CACHE_SEQS][CACHE_HEADS][CACHE_TOKENS];
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

/* What the cache must hold of n tokens from `first` on, in one piece: the caller frees all. id: their numbers in head 0,
 * those of the other heads lie CACHE_TOKENS further each. */
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
      for (int64_t c = 0; c < dim; c++)
        x[(h * n + i) * dim + c] = cache_number(id[h * CACHE_TOKENS + i], value, h, c);
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
    cache_rows want = cache_expected(m, value, &m->id[a][0][j], j, 1);
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

#endif
