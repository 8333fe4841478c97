/* tests/calls/paged.c owns the model of a cache, see paged.h. */

#include "paged.h"

#include <string.h>

paged_shape paged_plain(int64_t pages, int64_t page) {
  paged_shape x;
  memset(&x, 0, sizeof x);
  x.p.pages = pages, x.p.page = page;
  x.p.k_heads = 2, x.p.v_heads = 1, x.p.dk = 5, x.p.dv = 3;
  x.table_len = pages;
  return x;
}

static int quantised(attn_dtype dtype) { return dtype > ATTN_BF16; }

/* Bytes of a row. */
static size_t row_bytes(const attn_tensor *t) {
  return (size_t)(t->dtype == ATTN_F32    ? 4 * t->dim
                  : t->dtype <= ATTN_BF16 ? 2 * t->dim
                  : t->dtype == ATTN_I4   ? (t->dim + 1) / 2
                                          : t->dim);
}

static void *row_at(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  const int64_t e = b * t->stride_batch + h * t->stride_head + i * t->stride_len;
  const int64_t bytes = t->dtype == ATTN_F32    ? 4 * e
                        : t->dtype <= ATTN_BF16 ? 2 * e
                        : t->dtype == ATTN_I4   ? e / 2
                                                : e;
  return (char *)t->data + bytes;
}

static int64_t groups_of(const attn_scales *s, int64_t dim) {
  return s->group ? (dim + s->group - 1) / s->group : 1;
}

/* Rows in one piece for one sequence. */
static attn_tensor flat(attn_dtype dtype, int64_t heads, int64_t dim, attn_scales *s, int64_t group,
                        int zero) {
  attn_tensor t = attn_bhtd(NULL, dtype, 1, heads, PAGED_ROWS, dim + dim % 2);
  t.dim = dim;
  t.data = test_mem((size_t)(heads * PAGED_ROWS * (dim + 1) * 4));
  memset(s, 0, sizeof *s);
  if (!quantised(dtype)) return t;
  const size_t n = (size_t)(heads * PAGED_ROWS * (dim / 32 + 1)) * sizeof(float);
  *s = attn_scales_dense(test_mem(n), zero ? test_mem(n) : NULL, group, &t);
  return t;
}

/* The same memory with other strides. */
static void by_hand(attn_tensor *t, int how) {
  if (how == 1) t->stride_head = t->stride_len, t->stride_len *= t->heads;
  if (how == 2) {
    t->data = row_at(t, t->batch - 1, t->heads - 1, t->len - 1);
    t->stride_batch *= -1, t->stride_head *= -1, t->stride_len *= -1;
  }
}

paged *paged_open(const paged_shape *shape, test_rng *rng) {
  paged *m = test_mem(sizeof *m);
  const attn_cache_params *p = &shape->p;
  attn_ctx ctx = test_ctx();
  memset(m, 0, sizeof *m);
  m->shape = *shape;
  m->size = attn_cache_size(p);
  assert_true(m->size > 0);
  m->memory = test_mem(m->size), m->image = test_mem(m->size);
  assert_int_equal(attn_cache_open(&m->cache, m->memory, m->size, p, &ctx), ATTN_OK);
  by_hand(&m->cache.k, shape->byhand);
  if (!p->latent) by_hand(&m->cache.v, shape->byhand);
  const int64_t room = shape->table_len * p->page;
  int32_t *tables = m->tables =
      test_mem((size_t)(shape->table_len * PAGED_SEQUENCES) * sizeof *tables);
  const int upwards = (int)(test_u64(rng) % 2);
  for (int64_t a = 0; a < PAGED_SEQUENCES; a++) {
    paged_rows *r = &m->rows[a];
    m->s[a].table = tables + (upwards ? a : PAGED_SEQUENCES - 1 - a) * shape->table_len;
    m->s[a].table_len = shape->table_len;
    r->k = flat(p->k_dtype, p->k_heads, p->dk, &r->k_scales, p->k_group, p->k_zero);
    r->v = flat(p->v_dtype, p->v_heads ? p->v_heads : p->k_heads, p->dv ? p->dv : p->dk,
                &r->v_scales, p->v_group, p->v_zero);
    r->slot = test_mem((size_t)room * sizeof *r->slot);
    for (int64_t i = 0; i < room; i++) r->slot[i] = -1;
  }
  m->most = p->window ? room - p->keep - p->window + 2 : room + 1;
  if (m->most < 1) m->most = 1;
  return m;
}

/* ---- what the model knows --------------------------------------------------------------------*/

static int64_t slot_of(const paged *m, int64_t token) {
  const attn_cache_params *p = &m->shape.p;
  const int64_t room = m->shape.table_len * p->page;
  if (!p->window || token < p->keep) return token;
  return p->keep + (token - p->keep) % (room - p->keep);
}

/* Whether token j of a sequence has not been overwritten. */
static int intact(const paged *m, const paged_rows *r, int64_t j) {
  return r->slot[slot_of(m, j)] == j;
}

/* Entries of the table that name a page: those of rows ever written and not given back. */
static int64_t held(const paged *m, const paged_rows *r) {
  const int64_t page = m->shape.p.page;
  int64_t n = 0;
  for (int64_t i = 0; i < m->shape.table_len * page; i++)
    if (r->slot[i] >= 0) n = i / page + 1;
  return n;
}

/* The status of an append, by stepping through its tokens with a copy of the holders. */
static attn_status predict(const paged *m, int64_t first, int64_t n, const int64_t *rows) {
  const attn_cache_params *p = &m->shape.p;
  const int64_t room = m->shape.table_len * p->page;
  int32_t holders[64];
  int64_t unused = 0, need = 0;
  assert_true(p->pages <= 64 && m->shape.table_len <= 64);
  for (int64_t b = 0; b < n; b++) {
    if (p->window && rows[b] > room - p->keep - p->window + 1 && rows[b]) return ATTN_E_RANGE;
    if (!p->window && m->rows[first + b].len + rows[b] > room) return ATTN_E_FULL;
  }
  for (int64_t i = 0; i < p->pages; i++) {
    holders[i] = m->cache.holders[i];
    unused += holders[i] == 0;
  }
  for (int64_t b = 0; b < n; b++) {
    const paged_rows *r = &m->rows[first + b];
    char own[64] = {0};
    const int64_t have = held(m, r);
    for (int64_t j = r->len; j < r->len + rows[b]; j++) {
      const int64_t t = slot_of(m, j) / p->page;
      if (own[t]) continue;
      own[t] = 1;
      if (t >= have) {
        need++;
      } else if (holders[m->s[first + b].table[t]] > 1) {
        holders[m->s[first + b].table[t]]--;
        need++;
      }
    }
  }
  return need > unused ? ATTN_E_FULL : ATTN_OK;
}

/* Rows `from` of x as rows at, at + 1 ... of the model, in its type. */
static void convert(attn_tensor to, attn_scales s, attn_tensor x, int64_t at) {
  to.data = row_at(&to, 0, 0, at), to.len = x.len;
  if (s.scale) s.scale += at * s.stride_len;
  if (s.zero) s.zero += at * s.stride_len;
  if (quantised(to.dtype)) {
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_quantize(to, s, x, &ctx), ATTN_OK);
  } else if (to.dtype == x.dtype) {
    for (int64_t h = 0; h < x.heads; h++)
      for (int64_t i = 0; i < x.len; i++)
        memcpy(row_at(&to, 0, h, i), row_at(&x, 0, h, i), row_bytes(&x));
  } else {
    test_copy(to, x);
  }
}

/* ---- calls -----------------------------------------------------------------------------------*/

typedef struct image {
  attn_cache cache;
  attn_sequence s[PAGED_SEQUENCES];
  int32_t tables[PAGED_SEQUENCES * 64];
} image;
static image before;

static size_t table_bytes(const paged *m) {
  return (size_t)(m->shape.table_len * PAGED_SEQUENCES) * sizeof *m->tables;
}

void paged_remember(paged *m) {
  memcpy(m->image, m->memory, m->size);
  before.cache = m->cache;
  memcpy(before.s, m->s, sizeof m->s);
  memcpy(before.tables, m->tables, table_bytes(m));
}

void paged_unchanged(const paged *m) {
  assert_memory_equal(m->image, m->memory, m->size);
  assert_memory_equal(&before.cache, &m->cache, sizeof m->cache);
  assert_memory_equal(before.s, m->s, sizeof m->s);
  assert_memory_equal(before.tables, m->tables, table_bytes(m));
}

static void judge(paged *m, attn_status got, attn_status want, const attn_ctx *ctx) {
  if (got != want)
    fail_msg("%s (%s), not %s", attn_status_string(got), ctx->reason ? ctx->reason : "-",
             attn_status_string(want));
  if (got == ATTN_OK) {
    assert_int_equal(ctx->report.isa, test_isa);
    assert_null(ctx->reason);
  } else {
    assert_non_null(ctx->reason);
    paged_unchanged(m);
  }
}

static attn_status append(paged *m, int64_t first, int64_t n, const int64_t *rows, int mode,
                          int64_t len, test_rng *rng) {
  const attn_cache_params *p = &m->shape.p;
  const int64_t v_heads = p->v_heads ? p->v_heads : p->k_heads;
  attn_ctx ctx = test_ctx();
  attn_append_params params;
  int64_t at[PAGED_SEQUENCES + 1] = {0}, all = 0;
  memset(&params, 0, sizeof params);
  for (int64_t b = 0; b < n; b++) at[b + 1] = all += rows[b];
  const test_layout layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  const int64_t batch = mode == 2 ? 1 : n, length = mode == 2 ? all + (int64_t)(all % 2) : len;
  attn_tensor k = test_tensor(m->shape.from, layout, batch, p->k_heads, length, p->dk);
  attn_tensor v = attn_bhtd(NULL, ATTN_F32, 0, 0, 0, 0);
  test_fill(k, rng, test_normal);
  if (!p->latent) {
    v = test_tensor(m->shape.from, TEST_BTHD, batch, v_heads, length, p->dv ? p->dv : p->dk);
    test_fill(v, rng, test_normal);
  }
  if (mode == 1) params.rows = rows;
  if (mode == 2) params.indptr = at;
  const attn_status want = predict(m, first, n, rows);
  paged_remember(m);
  const attn_status got =
      attn_cache_append(&m->cache, m->s + first, n, k, v, mode ? &params : NULL, &ctx);
  judge(m, got, want, &ctx);
  for (int64_t b = 0; b < n && got == ATTN_OK; b++) {
    paged_rows *r = &m->rows[first + b];
    const int64_t i0 = mode == 2 ? at[b] : 0;
    assert_true(r->len + rows[b] <= PAGED_ROWS);
    convert(r->k, r->k_scales,
            test_rows(test_one(k, mode == 2 ? 0 : b, 1, 0, k.heads), i0, rows[b]), r->len);
    if (!p->latent)
      convert(r->v, r->v_scales,
              test_rows(test_one(v, mode == 2 ? 0 : b, 1, 0, v.heads), i0, rows[b]), r->len);
    for (int64_t i = 0; i < rows[b]; i++) r->slot[slot_of(m, r->len + i)] = r->len + i;
    r->len += rows[b];
  }
  return got;
}

/* Sequences that outgrow the model are let go. */
static void make_room(paged *m, int64_t first, int64_t n, int64_t most) {
  for (int64_t b = first; b < first + n; b++)
    if (m->rows[b].len + most > PAGED_ROWS) paged_release(m, b);
}

void paged_append(paged *m, int64_t first, int64_t n, int mode, int64_t most, test_rng *rng) {
  int64_t rows[PAGED_SEQUENCES];
  make_room(m, first, n, most);
  for (int64_t b = 0; b < n; b++) rows[b] = mode ? test_range(rng, 0, most) : most;
  append(m, first, n, rows, mode, most, rng);
}

attn_status paged_append_each(paged *m, int64_t first, int64_t n, const int64_t *rows,
                              test_rng *rng) {
  int64_t most = 0;
  for (int64_t b = 0; b < n; b++) most = rows[b] > most ? rows[b] : most;
  return append(m, first, n, rows, 1, most, rng);
}

void paged_append_rows(paged *m, int64_t a, int64_t rows, test_rng *rng) {
  assert_int_equal(append(m, a, 1, &rows, 1, rows, rng), ATTN_OK);
}

void paged_fork(paged *m, int64_t parent, int64_t child) {
  attn_ctx ctx = test_ctx();
  paged_remember(m);
  const attn_status got = attn_cache_fork(&m->cache, &m->s[child], &m->s[parent], &ctx);
  paged_rows *from = &m->rows[parent], *to = &m->rows[child];
  attn_status want = to->len ? ATTN_E_RANGE : parent == child ? ATTN_E_OVERLAP : ATTN_OK;
  judge(m, got, want, &ctx);
  if (got != ATTN_OK) return;
  /* whole rows of all heads, and their scales */
  const attn_tensor *x[] = {&from->k, &from->v}, *y[] = {&to->k, &to->v};
  const attn_scales *s[] = {&from->k_scales, &from->v_scales},
                    *d[] = {&to->k_scales, &to->v_scales};
  for (int w = 0; w < 2; w++)
    for (int64_t h = 0; h < x[w]->heads; h++)
      for (int64_t i = 0; i < from->len; i++) {
        memcpy(row_at(y[w], 0, h, i), row_at(x[w], 0, h, i), row_bytes(x[w]));
        const int64_t at = h * s[w]->stride_head + i * s[w]->stride_len;
        const size_t n = (size_t)groups_of(s[w], x[w]->dim) * sizeof(float);
        if (s[w]->scale) memcpy(d[w]->scale + at, s[w]->scale + at, n);
        if (s[w]->zero) memcpy(d[w]->zero + at, s[w]->zero + at, n);
      }
  memcpy(to->slot, from->slot, (size_t)(m->shape.table_len * m->shape.p.page) * sizeof *to->slot);
  to->len = from->len;
}

void paged_rollback(paged *m, int64_t a, int64_t len) {
  const attn_cache_params *p = &m->shape.p;
  paged_rows *r = &m->rows[a];
  attn_ctx ctx = test_ctx();
  attn_status want = len < 0 || len > r->len ? ATTN_E_ROLLBACK : ATTN_OK;
  for (int64_t j = 0; j < len && want == ATTN_OK; j++)
    if ((!p->window || j < p->keep || j >= len - p->window) && !intact(m, r, j))
      want = ATTN_E_ROLLBACK;
  paged_remember(m);
  judge(m, attn_cache_rollback(&m->cache, &m->s[a], len, &ctx), want, &ctx);
  if (want != ATTN_OK) return;
  const int64_t room = m->shape.table_len * p->page;
  int round = 0; /* a ring that has come round keeps its pages while it needs one of them */
  for (int64_t i = 0; i < room; i++) round |= r->slot[i] >= room;
  r->len = len;
  if (round && len > p->keep) return;
  for (int64_t i = len; i < room; i++) r->slot[i] = -1;
}

void paged_release(paged *m, int64_t a) {
  attn_ctx ctx = test_ctx();
  paged_remember(m);
  judge(m, attn_cache_release(&m->cache, &m->s[a], &ctx), ATTN_OK, &ctx);
  m->rows[a].len = 0;
  for (int64_t i = 0; i < m->shape.table_len * m->shape.p.page; i++) m->rows[a].slot[i] = -1;
}

void paged_attend(const paged *m, int64_t most, test_rng *rng) {
  const attn_cache_params *p = &m->shape.p;
  const int64_t room = m->shape.table_len * p->page, dv = p->dv ? p->dv : p->dk;
  const int64_t heads = p->k_heads * test_range(rng, 1, 2);
  attn_ctx ctx = test_ctx();
  int32_t q_len[PAGED_SEQUENCES];
  attn_tensor q = test_tensor(ATTN_F32, TEST_PADDED, PAGED_SEQUENCES, heads, most, p->dk);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BTHD, PAGED_SEQUENCES, heads, most, dv);
  attn_tensor dense = test_tensor(ATTN_F32, TEST_BTHD, PAGED_SEQUENCES, heads, most, dv);
  test_fill(q, rng, test_normal);
  attn_sdpa_params params;
  memset(&params, 0, sizeof params);
  params.compute = test_compute;
  for (int64_t a = 0; a < PAGED_SEQUENCES; a++) { /* what the ring still holds */
    int64_t n = m->rows[a].len < most ? m->rows[a].len : most;
    for (int ok = 0; p->window && n > 0 && !ok; n -= !ok) {
      ok = 1;
      for (int64_t j = m->rows[a].len - n - p->window + 1; j < m->rows[a].len; j++)
        ok &= j < p->keep || intact(m, &m->rows[a], j);
    }
    q_len[a] = (int32_t)n;
  }
  params.q_len = q_len, params.causal = 1;
  const attn_status got = attn_cache_sdpa(o, q, &m->cache, m->s, PAGED_SEQUENCES, &params, &ctx);
  if (got != ATTN_OK) fail_msg("%s: %s", attn_status_string(got), ctx.reason);
  for (int64_t a = 0; a < PAGED_SEQUENCES; a++) {
    const paged_rows *r = &m->rows[a];
    attn_tensor k = r->k, v = p->latent ? r->k : r->v;
    k.len = v.len = r->len, v.dim = dv;
    params.q_len = q_len + a, params.has_q_off = 1, params.q_off = r->len - q_len[a];
    params.k_scales = r->k_scales, params.v_scales = p->latent ? r->k_scales : r->v_scales;
    test_left(&params, p->window - 1);
    params.keep = p->keep;
    const attn_status one = attn_sdpa(test_one(dense, a, 1, 0, heads), test_one(q, a, 1, 0, heads),
                                      k, v, &params, &ctx);
    if (one != ATTN_OK)
      fail_msg("%s: %s (room %d)", attn_status_string(one), ctx.reason, (int)room);
  }
  test_assert_same(o, dense, "a cache and its rows in one piece");
}

/* ---- what must hold --------------------------------------------------------------------------*/

static void same_rows(const attn_tensor *store, const attn_scales *s, const attn_tensor *want,
                      const attn_scales *ws, int64_t page, int64_t row, int64_t j) {
  for (int64_t h = 0; h < want->heads; h++) {
    const int64_t at = page * s->stride_batch + h * s->stride_head + row * s->stride_len;
    const int64_t wat = h * ws->stride_head + j * ws->stride_len;
    const size_t n = (size_t)groups_of(ws, want->dim) * sizeof(float);
    assert_memory_equal(row_at(store, page, h, row), row_at(want, 0, h, j), row_bytes(want));
    if (ws->scale) assert_memory_equal(s->scale + at, ws->scale + wat, n);
    if (ws->zero) assert_memory_equal(s->zero + at, ws->zero + wat, n);
  }
}

void paged_check(const paged *m) {
  const attn_cache_params *p = &m->shape.p;
  int32_t holders[64] = {0};
  for (int64_t a = 0; a < PAGED_SEQUENCES; a++) {
    const paged_rows *r = &m->rows[a];
    const attn_sequence *s = &m->s[a];
    assert_int_equal(s->len, r->len);
    assert_int_equal(s->table_len, m->shape.table_len);
    for (int64_t t = 0, n = held(m, r); t < n; t++) {
      assert_true(s->table[t] >= 0 && s->table[t] < p->pages);
      holders[s->table[t]]++;
      for (int64_t u = 0; u < t; u++) assert_int_not_equal(s->table[t], s->table[u]);
    }
    for (int64_t j = 0; j < r->len; j++) {
      if (p->window && j >= p->keep && j < r->len - p->window) continue;
      const int64_t slot = slot_of(m, j), page = s->table[slot / p->page], row = slot % p->page;
      assert_true(intact(m, r, j));
      same_rows(&m->cache.k, &m->cache.k_scales, &r->k, &r->k_scales, page, row, j);
      if (!p->latent) same_rows(&m->cache.v, &m->cache.v_scales, &r->v, &r->v_scales, page, row, j);
    }
  }
  for (int64_t i = 0; i < p->pages; i++) assert_int_equal(m->cache.holders[i], holders[i]);
}
