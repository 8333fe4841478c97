/* tests/families/content/routing.c owns scenes of the Routing Transformer and its definitions. */

#include "routing.h"

attn_status routing_call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_routing(s->o, s->q, s->k, s->v, s->mu, &s->p, ctx);
}
size_t routing_ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_workspace(s->o, s->q, s->k, s->v, s->mu, &s->p, ctx);
}
attn_status routing_select_call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_select(s->mq, s->mk, s->q, s->k, s->mu, &s->p, ctx);
}
size_t routing_select_ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_select_workspace(s->mq, s->mk, s->q, s->k, s->mu, &s->p, ctx);
}
attn_status routing_attend_call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_attend(s->o, s->q, s->k, s->v, s->mq, s->mk, &s->p, ctx);
}
size_t routing_attend_ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_attend_workspace(s->o, s->q, s->k, s->v, s->mq, s->mk, &s->p, ctx);
}
attn_status routing_update_call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_update(s->next, s->q, s->k, s->mu, &s->p, &s->u, ctx);
}
size_t routing_update_ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_routing_update_workspace(s->next, s->q, s->k, s->mu, &s->p, &s->u, ctx);
}

shape routing_plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv,
                    int64_t clusters) {
  shape x = {1, heads, heads, heads, q_len, k_len, dk, dv, clusters, 0, ATTN_F32, TEST_BHTD};
  return x;
}

shape routing_any_shape(test_rng *rng) {
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  shape x;
  x.batch = test_range(rng, 1, 2), x.k_heads = test_range(rng, 1, 2);
  x.heads = x.k_heads * test_range(rng, 1, 2);
  x.v_heads = test_range(rng, 0, 1) ? x.heads : 1;
  x.q_len = test_range(rng, 1, 40), x.k_len = test_range(rng, 1, 50);
  x.dk = test_range(rng, 2, 19), x.dv = test_range(rng, 1, 19);
  x.clusters = test_range(rng, 1, 9);
  x.shared = test_range(rng, 0, 2) == 0;
  if (x.shared) x.k_len = x.q_len, x.k_heads = x.heads;
  x.type = type[test_range(rng, 0, 3)];
  x.layout = (test_layout)test_range(rng, 0, 3);
  return x;
}

/* An array of n words that the call writes. */
static int32_t *words(int64_t n, attn_tensor *t, test_block *block) {
  *t = output(ATTN_F32, TEST_BHTD, 1, 1, n, 1, block);
  return t->data;
}

scene *routing_build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(x->type, x->layout, x->batch, x->heads, x->q_len, x->dk, 1, rng);
  if (!x->shared) s->k = drawn(x->type, TEST_PADDED, x->batch, x->k_heads, x->k_len, x->dk, 1, rng);
  s->v = drawn(x->type, x->layout, x->batch, x->v_heads, x->k_len, x->dv, 1, rng);
  s->mu = drawn(ATTN_F32, TEST_PADDED, 1, x->heads, x->clusters, x->dk, 1, rng);
  s->o = output(x->type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dv, &s->does.block[0]);
  s->p.shared = x->shared;
  s->does.call = routing_call, s->does.ask = routing_ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

void routing_want_lse(scene *s) {
  s->p.combine = ATTN_ROUTING_UNION;
  s->p.lse = output(ATTN_F32, TEST_PADDED, s->q.batch, s->q.heads, s->q.len, 1, &s->does.block[1]);
  s->does.out[1] = &s->p.lse;
}

void routing_learn(scene *s, int64_t clusters, int64_t n, test_rng *rng) {
  const int64_t rows = clusters * n, heads = s->q.heads;
  s->p.mem_k = drawn(s->q.dtype, TEST_NEGATIVE, 1, heads, rows, s->q.dim, 1, rng);
  s->p.mem_v = drawn(ATTN_BF16, TEST_PADDED, 1, heads, rows, s->v.dim, 1, rng);
}

int64_t routing_length(const int32_t *len, int64_t b, int64_t all) { return len ? len[b] : all; }

/* Arrays for the members, of the size the selection wants. */
void routing_room(scene *s) {
  const int64_t units = s->q.batch * s->q.heads, c = s->mu.len;
  for (int side = 0; side < (s->p.shared ? 1 : 2); side++) {
    attn_members *m = side ? &s->mk : &s->mq;
    m->clusters = c;
    m->entries = attn_routing_entries(side ? s->k.len : s->q.len, c, side ? s->p.wk : s->p.w,
                                      s->p.membership);
    attn_tensor *t = test_mem(2 * sizeof *t);
    m->index = words(units * m->entries, &t[0], &s->does.block[2 * side]);
    m->indptr = words(units * (c + 1), &t[1], &s->does.block[2 * side + 1]);
  }
}

/* As outputs of the selection. */
void routing_selects(scene *s) {
  const int64_t units = s->q.batch * s->q.heads;
  attn_tensor *t = test_mem(4 * sizeof *t);
  routing_room(s);
  s->does.call = routing_select_call, s->does.ask = routing_select_ask;
  for (int i = 0; i < 4; i++) s->does.out[i] = NULL;
  for (int side = 0; side < (s->p.shared ? 1 : 2); side++) {
    attn_members *m = side ? &s->mk : &s->mq;
    t[2 * side] = attn_bhtd(m->index, ATTN_F32, 1, 1, units * m->entries, 1);
    t[2 * side + 1] = attn_bhtd(m->indptr, ATTN_F32, 1, 1, units * (m->clusters + 1), 1);
    s->does.out[2 * side] = &t[2 * side], s->does.out[2 * side + 1] = &t[2 * side + 1];
  }
}

/* ---- the definitions ------------------------------------------------------------------------*/

cube routing_normal(const attn_tensor *x, attn_routing_norm norm) {
  cube y = cube_from(x);
  for (int64_t r = 0; r < x->batch * x->heads * x->len; r++) {
    double *row = y.data + r * x->dim, mean = 0, sum = 0, n = (double)x->dim;
    if (norm == ATTN_ROUTING_NONE) continue;
    for (int64_t c = 0; c < x->dim; c++) mean += row[c] / n;
    if (norm == ATTN_ROUTING_L2) mean = 0;
    for (int64_t c = 0; c < x->dim; c++) sum += (row[c] - mean) * (row[c] - mean);
    double by = norm == ATTN_ROUTING_L2 ? fmax(sqrt(sum), 1e-12) : sqrt(sum / n + 1e-6);
    for (int64_t c = 0; c < x->dim; c++) row[c] = (row[c] - mean) / by;
  }
  return y;
}

double routing_dots(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; c++) sum += a[c] * b[c];
  return sum;
}

int routing_has(const attn_members *m, int64_t u, int64_t c, int64_t i) {
  const int32_t *start = m->indptr + u * (m->clusters + 1);
  for (int64_t e = start[c]; e < start[c + 1]; e++)
    if (m->index[u * m->entries + e] == i) return 1;
  return 0;
}

/* The selection property, with a tolerance for what float32 cannot tell; exact: ties as they are. */
void routing_check_members(const scene *s, int side, int exact) {
  const attn_tensor *x = side ? &s->k : &s->q;
  const attn_members *m = side ? &s->mk : &s->mq;
  const int32_t *len = side ? s->p.kv_len : s->p.q_len;
  int64_t heads = s->q.heads, n = x->len, C = s->mu.len, dk = x->dim;
  cube rows = routing_normal(x, s->p.norm), mu = cube_from(&s->mu);
  double *z = test_mem((size_t)(n * C + 1) * sizeof *z);
  for (int64_t u = 0; u < s->q.batch * heads; u++) {
    int64_t b = u / heads, h = u % heads, hx = head_of(x, h, heads),
            all = routing_length(len, b, n);
    int64_t given = side ? s->p.wk : s->p.w, w = given ? given : (n + C - 1) / C, total = 0;
    const int32_t *start = m->indptr + u * (C + 1), *index = m->index + u * m->entries;
    double eps = exact ? 0 : 1e-5;
    if (w > all) w = all;
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < C; c++) {
        z[i * C + c] = routing_dots(cube_at(&mu, 0, h, c), cube_at(&rows, b, hx, i), dk);
        if (!exact) eps = fmax(eps, 1e-6 * fabs(z[i * C + c]) * (double)dk);
      }
    assert_int_equal(start[0], 0);
    for (int64_t c = 0; c < C; c++) {
      assert_true(start[c + 1] >= start[c] && start[c + 1] <= m->entries);
      total += start[c + 1] - start[c];
      for (int64_t e = start[c]; e < start[c + 1]; e++) {
        assert_true(index[e] >= 0 && index[e] < all);
        assert_true(e == start[c] || index[e] > index[e - 1]);
      }
      if (s->p.membership == ATTN_ROUTING_TOPW) assert_int_equal(start[c + 1] - start[c], w);
      for (int64_t i = 0; i < all; i++) {
        int in = routing_has(m, u, c, i);
        if (s->p.membership == ATTN_ROUTING_TOPW) {
          int64_t above = 0, maybe = 0; /* rows that surely, and perhaps, come before i */
          for (int64_t j = 0; j < all; j++) {
            double d = z[j * C + c] - z[i * C + c];
            if (j == i) continue;
            above += d > eps || (exact && d == 0 && j < i);
            maybe += d >= -eps && (!exact || d > 0 || j < i);
          }
          if (above >= w) assert_false(in);
          if (maybe < w) assert_true(in);
        } else {
          int beaten = 0, wins = 1;
          for (int64_t x2 = 0; x2 < C; x2++) {
            double d = z[i * C + x2] - z[i * C + c];
            if (x2 == c) continue;
            beaten |= d > eps || (exact && d == 0 && x2 < c);
            wins &= d < -eps || (exact && d == 0 && x2 > c);
          }
          if (beaten) assert_false(in);
          if (wins) assert_true(in);
        }
      }
    }
    if (s->p.membership == ATTN_ROUTING_ARGMAX) assert_int_equal(total, all);
  }
}

/* Attention over the members as they are. */
void routing_check_attend(const scene *s, double tolerance, const char *what) {
  const attn_routing_params *p = &s->p;
  int64_t heads = s->q.heads, tq = s->q.len, tk = s->v.len, dv = s->v.dim, dk = s->q.dim;
  const attn_members *mq = &s->mq, *mk = p->shared ? &s->mq : &s->mk;
  double scale = scale_of(p->scale, dk), *sum = test_mem((size_t)dv * sizeof *sum);
  cube q = routing_normal(&s->q, p->norm), k = p->shared ? q : routing_normal(&s->k, p->norm);
  char *key = test_mem((size_t)tk + 1);
  const int64_t own = p->mem_k.data ? p->mem_k.len / mq->clusters : 0;
  cube mem_k = cube_of(1, heads, own * mq->clusters, dk);
  if (own) mem_k = cube_from(&p->mem_k);
  bag a = bag_of(tk + own * mq->clusters, dv);
  for (int64_t r = 0; r < s->q.batch * heads * tq; r++) {
    int64_t u = r / tq, i = r % tq, b = u / heads, h = u % heads;
    int64_t hk = k.heads * h / heads, hv = head_of(&s->v, h, heads), count = 0;
    double value = 0;
    memset(key, 0, (size_t)tk + 1);
    for (int64_t c = 0; c < dv; c++) sum[c] = 0;
    for (int64_t c = 0; c <= mq->clusters; c++) {
      int last = c == mq->clusters; /* the union */
      if (!last && !routing_has(mq, u, c, i)) continue;
      if (!last && p->combine == ATTN_ROUTING_MEAN) memset(key, 0, (size_t)tk + 1);
      for (int64_t j = 0; !last && j < tk; j++)
        if (routing_has(mk, u, c, j) && (!p->causal || j <= i + tk - tq)) key[j] = 1;
      if (last != (p->combine == ATTN_ROUTING_UNION)) continue;
      int64_t n = 0;
      for (int64_t j = 0; j < tk; j++) n += key[j];
      bag_empty(&a);
      for (int64_t j = 0; j < tk; j++)
        if (key[j] && !(p->exclude_self && j == i && (n > 1 || own)))
          bag_add(&a, scale * routing_dots(cube_at(&q, b, h, i), cube_at(&k, b, hk, j), dk), &s->v,
                  b, hv, j);
      for (int64_t j = 0; j < own * mq->clusters; j++)
        if (last ? routing_has(mq, u, j / own, i) : j / own == c)
          bag_add(&a, scale * routing_dots(cube_at(&q, b, h, i), cube_at(&mem_k, 0, h, j), dk),
                  &p->mem_v, 0, h, j);
      bag_close(&a);
      for (int64_t e = 0; e < dv; e++) sum[e] += a.o[e];
      if (a.n) count++, value = fmax(value, a.value);
    }
    for (int64_t c = 0; c < dv; c++)
      value_check(oracle_get(&s->o, b, h, i, c), count ? sum[c] / (double)count : 0,
                  tolerance * value, s->o.dtype, what, b, h, i, c);
    if (p->lse.data)
      value_check(oracle_get(&p->lse, b, h, i, 0), a.lse, tolerance * fmax(1, fabs(a.lse)),
                  ATTN_F32, what, b, h, i, -1);
  }
}

/* Random members: each row in each cluster with some chance. */
static void any_members(scene *s, attn_members *m, int64_t n, const int32_t *len, int64_t clusters,
                        int64_t percent, test_rng *rng) {
  int64_t units = s->q.batch * s->q.heads;
  m->clusters = clusters, m->entries = clusters * n;
  m->index = test_mem((size_t)(units * m->entries + 1) * 4);
  m->indptr = test_mem((size_t)(units * (clusters + 1)) * 4);
  for (int64_t u = 0; u < units; u++) {
    int32_t *start = m->indptr + u * (clusters + 1), at = 0;
    for (int64_t c = 0; c < clusters; c++) {
      start[c] = at;
      for (int64_t i = 0; i < routing_length(len, u / s->q.heads, n); i++)
        if (test_range(rng, 0, 99) < percent) m->index[u * m->entries + at++] = (int32_t)i;
    }
    start[clusters] = at;
  }
}

void routing_attends(scene *s, int64_t clusters, int64_t percent, test_rng *rng) {
  s->does.call = routing_attend_call, s->does.ask = routing_attend_ask;
  any_members(s, &s->mq, s->q.len, s->p.q_len, clusters, percent, rng);
  if (!s->p.shared) any_members(s, &s->mk, s->k.len, s->p.kv_len, clusters, percent, rng);
}

void routing_any_params(scene *s, test_rng *rng) {
  static const float scale[] = {0, 0, 1.5f, -0.7f, ATTN_ZERO};
  s->p.norm = (attn_routing_norm)test_range(rng, 0, 2);
  s->p.membership = (attn_routing_membership)test_range(rng, 0, 1);
  s->p.causal = (int)test_range(rng, 0, 1);
  s->p.scale = scale[test_range(rng, 0, 4)];
  if (s->p.shared) s->p.exclude_self = (int)test_range(rng, 0, 1);
  if (test_range(rng, 0, 1)) {
    s->p.w = test_range(rng, 1, 20);
    s->p.wk = test_range(rng, 1, 60);
  }
  if (test_range(rng, 0, 2) == 0) {
    s->p.q_len = test_lengths(s->q.batch, s->q.len, rng);
    if (!s->p.shared) s->p.kv_len = test_lengths(s->q.batch, s->k.len, rng);
  }
  if (test_range(rng, 0, 1)) routing_want_lse(s);
}
