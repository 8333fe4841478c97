/* tests/calls/pages.c owns the caches of tests/calls/pages.h. */

#include <math.h>
#include <string.h>

#include "pages.h"

static int64_t rounded_up(int64_t x, int64_t page) { return (x + page - 1) / page; }

/* Row of the table's pages that token j is in, by the rule of attn_sequence. */
static int64_t slot(const pages_spec *z, int64_t table_len, int64_t j) {
  if (!z->window || j < z->sinks) return j;
  return z->sinks + (j - z->sinks) % (table_len * z->page - z->sinks);
}

static kept_spec of_pages(const pages_spec *z, int values, int64_t count, test_rng *rng) {
  kept_spec s = kept_some(values ? z->v_type : z->k_type, count, values ? z->v_heads : z->k_heads,
                          z->page, values ? z->dv : z->dk, rng);
  s.layout = z->layout;
  s.scaling = (kept_scaling)(test_u64(rng) % SCALE_BY_HEAD);
  return s;
}

static kept one_piece(const kept *x, int64_t len, test_rng *rng) {
  kept_spec s = {
      x->t.dtype,        TEST_BHTD,          1,          x->t.heads, len, x->t.dim, x->s.group,
      x->s.zero != NULL, x->s.scale == NULL, SCALE_DENSE};
  kept y = kept_rows(&s, rng);
  for (int64_t h = 0; h < x->t.heads; h++) {
    for (int64_t i = 0; i < len; i++) kept_poison(&y, 0, h, i);
  }
  return y;
}

/* The first dv columns of keys, as values. */
static kept columns(kept x, int64_t dv) {
  x.t.dim = x.plain.dim = dv;
  return x;
}

pages pages_make(const pages_spec *z, test_rng *rng) {
  pages c;
  memset(&c, 0, sizeof c);
  c.n = z->n;
  int64_t rooms = 0, *room = test_mem((size_t)(z->n + 1) * sizeof *room);
  c.seq = test_mem((size_t)(z->n + 1) * sizeof *c.seq);
  memset(c.seq, 0, (size_t)(z->n + 1) * sizeof *c.seq);
  for (int64_t b = 0; b < z->n; b++) {
    attn_sequence *s = c.seq + b;
    s->high = test_u64(rng) % 4 ? test_range(rng, 1, z->most) : z->most;
    if (!z->window && test_u64(rng) % 8 == 0) s->high = 0;
    s->len = s->high;
    if (z->window) {
      int64_t least = z->sinks + z->window + z->queries - 1;
      s->table_len = rounded_up(least, z->page) + test_range(rng, 0, 2);
      int64_t slack = s->table_len * z->page - least;
      if (s->high <= s->table_len * z->page) slack = s->high - 1;
      s->len -= test_u64(rng) & 1 ? test_range(rng, 0, slack < s->high ? slack : s->high - 1) : 0;
      if (s->high <= s->table_len * z->page) s->high = s->len;
    } else {
      s->table_len = rounded_up(s->len, z->page) + test_range(rng, 0, 2);
    }
    if (s->len > c.longest) c.longest = s->len;
    room[b] = s->table_len;
    rooms += room[b];
  }
  int64_t count = rooms + 3;
  kept_spec ks = of_pages(z, 0, count, rng), vs = of_pages(z, 1, count, rng);
  c.k = kept_rows(&ks, rng);
  c.v = z->latent ? columns(c.k, z->dv) : kept_rows(&vs, rng);
  int32_t *free_pages = test_mem((size_t)count * sizeof *free_pages);
  for (int64_t n = 0; n < count; n++) free_pages[n] = (int32_t)n;
  for (int64_t n = count - 1; n > 0; n--) { /* in any order */
    int64_t m = test_range(rng, 0, n);
    int32_t t = free_pages[n];
    free_pages[n] = free_pages[m], free_pages[m] = t;
  }
  c.cache.k = c.k.t, c.cache.k_scales = c.k.s;
  c.cache.v = c.v.t;
  if (!z->latent) c.cache.v_scales = c.v.s;
  if (z->latent) c.cache.v.data = NULL;
  c.cache.holders = test_mem((size_t)count * sizeof(int32_t));
  memset(c.cache.holders, 0, (size_t)count * sizeof(int32_t));
  c.cache.window = z->window, c.cache.keep = z->sinks;

  unsigned char *used = test_mem((size_t)(count * z->page));
  memset(used, 0, (size_t)(count * z->page));
  c.own_k = test_mem((size_t)(z->n + 1) * sizeof *c.own_k);
  c.own_v = test_mem((size_t)(z->n + 1) * sizeof *c.own_v);
  int64_t taken = 0;
  for (int64_t b = 0; b < z->n; b++) {
    attn_sequence *s = c.seq + b;
    s->table = test_mem((size_t)s->table_len * sizeof(int32_t));
    for (int64_t p = 0; p < s->table_len; p++) s->table[p] = -1;
    int64_t live = z->window && s->high > s->table_len * z->page ? s->table_len * z->page : s->high;
    int64_t held = rounded_up(live, z->page), common = 0;
    if (z->share && b > 0 && !z->window) {
      common = c.seq[0].len / z->page < held ? c.seq[0].len / z->page : held;
    }
    for (int64_t p = 0; p < held; p++) {
      s->table[p] = p < common ? c.seq[0].table[p] : free_pages[taken++];
      c.cache.holders[s->table[p]]++;
    }
    c.own_k[b] = one_piece(&c.k, s->len, rng);
    c.own_v[b] = z->latent ? columns(c.own_k[b], z->dv) : one_piece(&c.v, s->len, rng);
    for (int64_t j = 0; j < s->len; j++) {
      int64_t at = slot(z, s->table_len, j);
      /* a token of before the ring came round is lost */
      if (z->window && j >= z->sinks && j + s->table_len * z->page - z->sinks < s->high) continue;
      int32_t page = s->table[at / z->page];
      used[page * z->page + at % z->page] = 1;
      kept_move(&c.own_k[b], 0, j, &c.k, page, at % z->page);
      if (!z->latent) kept_move(&c.own_v[b], 0, j, &c.v, page, at % z->page);
    }
  }
  for (int64_t n = 0; n < count * z->page; n++) {
    for (int64_t h = 0; h < z->k_heads && !used[n]; h++)
      kept_poison(&c.k, n / z->page, h, n % z->page);
    for (int64_t h = 0; h < z->v_heads && !used[n] && !z->latent; h++) {
      kept_poison(&c.v, n / z->page, h, n % z->page);
    }
  }
  return c;
}

pages_spec pages_some(test_rng *rng) {
  static const int64_t sizes[] = {1, 2, 3, 8, 16, 31, 64, 128, 200};
  static const attn_dtype types[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16,
                                     ATTN_I8,  ATTN_I4,  ATTN_E4M3};
  pages_spec z;
  memset(&z, 0, sizeof z);
  z.n = test_range(rng, 1, 4);
  z.page = sizes[test_u64(rng) % 9];
  z.most = test_u64(rng) % 4 ? test_range(rng, 1, 300) : test_range(rng, 1, 1400);
  z.k_heads = test_range(rng, 1, 3);
  z.v_heads = test_u64(rng) % 3 ? z.k_heads : 1;
  z.dk = test_range(rng, 1, 40);
  z.dv = test_range(rng, 1, 40);
  z.k_type = types[test_u64(rng) % 7];
  z.v_type = test_u64(rng) & 1 ? z.k_type : types[test_u64(rng) % 7];
  z.layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  z.share = test_u64(rng) % 3 == 0;
  if (test_u64(rng) % 4 == 0) {
    z.latent = 1;
    z.v_heads = z.k_heads, z.v_type = z.k_type;
    z.dv = test_range(rng, 1, z.dk);
  }
  z.queries = test_u64(rng) & 1 ? 1 : test_range(rng, 1, 40);
  if (test_u64(rng) % 3 == 0) {
    z.window = test_range(rng, 1, 150);
    z.sinks = test_u64(rng) & 1 ? test_range(rng, 0, 9) : 0;
  }
  return z;
}

kept_call pages_dense(const pages *c, const test_call *call, int64_t b, attn_tensor q,
                      attn_tensor o, attn_tensor lse) {
  kept_call d;
  memset(&d, 0, sizeof d);
  d.call = *call;
  d.call.q = q, d.call.o = o, d.call.params.lse = lse;
  d.call.params.q_len = NULL;
  memset(&d.call.params.ragged, 0, sizeof d.call.params.ragged);
  kept_put(&d, c->own_k[b], c->own_v[b]);
  if (c->cache.window) {
    int64_t w = c->cache.window;
    d.call.params.causal = 1;
    test_left(&d.call.params, w - 1);
    d.call.params.keep = c->cache.keep;
  }
  return d;
}
