/* tests/families/training/backward_terms.c owns the gradients of what a score has beside its product, in float64, pair by
 * pair from their formulas. */

#include <stdlib.h>

#include "backward.h"
#include "terms.h"

/* x / (1 + |x| / 4): its slope is (1 + |x| / 4)^-2, or (1 - |y| / 4)^2. A pair in seven is forbidden. */
static double bend(double x) { return x / (1 + fabs(x) / 4); }
static int forbids(int64_t i, int64_t j) { return (3 * i + j) % 7 == 3; }

static void bend_tile(void *user, const attn_score_tile *t) {
  (void)user;
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      *x = forbids(t->query[r], t->key[c]) ? -INFINITY : (float)bend((double)*x);
    }
}

static void bend_back(void *user, const attn_score_tile *t, const float *before,
                      const float *after) {
  (void)user;
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      const int64_t at = c * t->key_stride + r * t->query_stride;
      const double x = fabs((double)before[at]), y = fabs((double)after[at]);
      const double by = t->key[c] % 2 ? pow(1 + x / 4, -2) : pow(1 - y / 4, 2);
      t->score[at] = (float)((double)t->score[at] * by); /* anything where it is forbidden */
    }
}

void backward_modify(backward *s) {
  s->call.params.modify = bend_tile, s->call.params.modify_user = NULL;
  s->g.modify_back = bend_back;
}

void backward_map(backward *s, attn_map_stage stage, test_rng *rng) {
  const attn_tensor *q = &s->call.q;
  s->call.params.map_stage = stage;
  s->g.d_map = drawn(ATTN_F32, TEST_PADDED, q->batch, q->heads, q->len, s->call.k.len, 1, rng);
}

static attn_tensor like(const attn_tensor *t) {
  return t->data ? test_tensor(ATTN_F32, TEST_PADDED, 1, t->heads, t->len, t->dim) : *t;
}

void backward_terms(backward *s) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  const attn_sdpa_params *p = &s->call.params;
  attn_sdpa_gradients *g = &s->g;
  const size_t head = (size_t)q->heads * 4, rows = (size_t)(q->batch * q->len) * head;
  if (p->alibi) g->d_alibi = test_mem(head);
  if (p->t5.table) g->d_t5 = test_mem((size_t)(p->t5.buckets ? p->t5.buckets : 32) * head);
  if (p->toeplitz.table) g->d_toeplitz = test_mem((size_t)p->toeplitz.len * head);
  if (p->parabola.w) g->d_parabola_w = test_mem(head);
  if (p->parabola.bias) g->d_parabola_bias = test_mem(head);
  if (p->gaussian.center) g->d_center = test_mem(rows), g->d_precision = test_mem(rows);
  if (p->bias.kind)
    g->d_bias = test_tensor(ATTN_F32, TEST_PADDED, p->bias.batch, p->bias.heads, q->len, k->len);
  if (p->bias.kind && p->bias.q_len == 1) g->d_bias.len = 1;
  g->d_scale = test_mem(head);
  g->d_relative.keys = like(&p->relative.keys), g->d_relative.values = like(&p->relative.values);
  g->d_relative.queries = like(&p->relative.queries);
  g->d_xl_table = like(&p->xl.table), g->d_label_table = like(&p->labels.table);
  if (p->xl.u) g->d_xl_u = test_mem(head * (size_t)q->dim);
  if (p->xl.v) g->d_xl_v = test_mem(head * (size_t)q->dim);
  if (p->labels.bias) g->d_label_bias = test_mem(head * (size_t)p->labels.table.len);
  if (p->factor.alpha) g->d_alpha = test_mem(head), g->d_beta = test_mem(head);
  if (p->span.z) g->d_span = test_mem(p->span.per_query ? rows : head);
}

/* ---- a pair ---------------------------------------------------------------------------------*/

/* Score terms of a call but for some. */
static attn_sdpa_params inner_of(const attn_sdpa_params *p) {
  attn_sdpa_params y = *p;
  memset(&y.toeplitz, 0, sizeof y.toeplitz), memset(&y.t5, 0, sizeof y.t5);
  memset(&y.parabola, 0, sizeof y.parabola), memset(&y.gaussian, 0, sizeof y.gaussian);
  memset(&y.bias, 0, sizeof y.bias), memset(&y.span, 0, sizeof y.span);
  y.alibi = NULL, y.modify = NULL, y.softcap = 0, y.factor.alpha = y.factor.beta = NULL;
  return y;
}

oracle_pair backward_score(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h,
                           int64_t i, int64_t j) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  attn_sdpa_params given = *p;
  if (!p->modify) return oracle_score(q, k, p, b, h, i, j);
  memset(&given.span, 0, sizeof given.span), given.modify = NULL;
  oracle_pair y = oracle_score(q, k, &given, b, h, i, j);
  y.x = forbids(i, j) ? -(double)INFINITY : bend(y.x), y.size += 2 * fabs(y.x);
  const double m = oracle_span(p, q, b, h, i, j - oracle_position(q, k, p, b, i));
  y.x += log(m), y.size += fabs(log(m)) + (m < 1 && m > 0 ? 2 : 0);
  return y;
}

backward_pair backward_chain(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h,
                             int64_t i, int64_t j, double top) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  const double c = (double)p->softcap;
  attn_sdpa_params given = *p, inside = inner_of(p);
  memset(&given.span, 0, sizeof given.span), given.modify = NULL;
  const double before = oracle_score(q, k, &given, b, h, i, j).x;
  const oracle_pair product = oracle_score(q, k, &inside, b, h, i, j);
  backward_pair y = {top, 0, 0, product.x, 1, 0};
  if (p->modify) y.x *= pow(1 + fabs(before) / 4, -2);
  if (c > 0 && p->softcap_at == ATTN_SOFTCAP_BIASED) y.x *= 1 - pow(before / c, 2);
  y.y = y.x;
  double factor = 1;
  if (p->factor.alpha) {
    const double far = fabs((double)(j - oracle_position(q, k, p, b, i)));
    factor = oracle_distance_factor((double)p->factor.alpha[h], (double)p->factor.beta[h], far);
    y.a = fmax(product.x, 0) * factor;
  }
  if (c > 0 && p->softcap_at == ATTN_SOFTCAP_SCORES) y.y *= 1 - pow(tanh(y.a / c), 2);
  y.s = y.y;
  if (p->factor.alpha) {
    y.s *= product.x > 0 ? factor : 0, y.s_by = factor;
    /* which side of 0 it is may be a rounding */
    if (fabs(product.x) < product.size / 2097152) y.s_more = factor;
  }
  return y;
}

static int64_t relative_row(const attn_tensor *t, int64_t delta) {
  const int64_t c = (t->len - 1) / 2;
  return (delta < -c ? -c : delta > c ? c : delta) + c;
}

static double number(const attn_tensor *t, int64_t h, int64_t row, int64_t c) {
  return oracle_get(t, 0, t->heads > 1 ? h : 0, row, c);
}

static int64_t label_of(const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t x = p->labels.label ? p->labels.label(p->labels.user, b, h, i, j) : -1;
  return x >= 0 && x < p->labels.table.len ? x : -1;
}

void backward_sides(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i,
                    int64_t j, double *query, double *key) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k, *rk = &p->relative.keys;
  const attn_tensor *rq = &p->relative.queries, *xl = &p->xl.table;
  const int64_t delta = j - oracle_position(q, k, p, b, i), label = label_of(p, b, h, i, j);
  for (int64_t c = 0; c < q->dim; c++) {
    query[c] = oracle_get(q, b, h, i, c);
    key[c] = oracle_get(k, b, head_of(k, h, q->heads), j, c);
    if (p->xl.u) query[c] += (double)p->xl.u[h * q->dim + c];
    if (rq->data) query[c] += number(rq, h, relative_row(rq, delta), c);
    if (rk->data) key[c] += number(rk, h, relative_row(rk, delta), c);
    if (label >= 0) key[c] += number(&p->labels.table, h, label, c);
    if (xl->data) key[c] += number(xl, h, delta - p->xl.first, c);
  }
}

/* ---- sums -----------------------------------------------------------------------------------*/

/* A table of gradients, and how well each row of it can be known. */
typedef struct wanted {
  cube sum, bound;
} wanted;

static void wipe(cube *a) {
  memset(a->data, 0, (size_t)(a->batch * a->heads * a->len * a->dim) * sizeof(double));
}

static wanted wanted_of(const attn_tensor *t) {
  wanted w = {cube_of(1, t->data ? t->heads : 1, t->data ? t->len : 1, t->data ? t->dim : 1),
              cube_of(1, t->data ? t->heads : 1, t->data ? t->len : 1, 1)};
  wipe(&w.sum), wipe(&w.bound);
  return w;
}

static void wanted_check(const wanted *w, const attn_tensor *got, const char *what) {
  for (int64_t n = 0; got->data && n < w->sum.heads * w->sum.len; n++) {
    const int64_t h = n / w->sum.len, i = n % w->sum.len;
    for (int64_t c = 0; c < w->sum.dim; c++)
      value_check(oracle_get(got, 0, h, i, c), cube_at(&w->sum, 0, h, i)[c],
                  *cube_at(&w->bound, 0, h, i) + 1e-30, ATTN_F32, what, 0, h, i, c);
  }
}

/* Tables of which a pair reads a row, and what stands beside them. */
static void compare_tables(const backward *s, const backward_want *w) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  const attn_sdpa_params *p = &s->call.params;
  const attn_sdpa_gradients *g = &s->g;
  const int64_t H = q->heads, dk = q->dim;
  const double scale = scale_of(p->scale, dk);
  const attn_tensor *const got[] = {&g->d_relative.keys, &g->d_relative.queries,
                                    &g->d_relative.values, &g->d_xl_table, &g->d_label_table};
  const attn_tensor u = attn_bhtd(g->d_xl_u, ATTN_F32, 1, 1, H, dk),
                    v_xl = attn_bhtd(g->d_xl_v, ATTN_F32, 1, 1, H, dk);
  const attn_tensor bias = attn_bhtd(g->d_label_bias, ATTN_F32, 1, 1, p->labels.table.len, H);
  wanted want[5], d_u = wanted_of(&u), d_v = wanted_of(&v_xl), d_bias = wanted_of(&bias);
  for (int n = 0; n < 5; n++) want[n] = wanted_of(got[n]);
  for (int64_t n = 0; n < q->batch * H * q->len * k->len; n++) {
    const int64_t j = n % k->len, row = n / k->len, b = row / q->len / H, h = row / q->len % H,
                  i = row % q->len, hk = head_of(k, h, H);
    const int64_t delta = j - oracle_position(q, k, p, b, i), label = label_of(p, b, h, i, j);
    const double ds = scale * cube_at(&w->s, b, h, i)[j],
                 off = fabs(scale) * cube_at(&w->s_bound, b, h, i)[j];
    const double weight = cube_at(&w->w, b, h, i)[j];
    if (weight == 0 && ds == 0 && off == 0) continue;
    const int64_t at[] = {got[0]->data ? relative_row(got[0], delta) : -1,
                          got[1]->data ? relative_row(got[1], delta) : -1,
                          got[2]->data ? relative_row(got[2], delta) : -1,
                          got[3]->data ? delta - p->xl.first : -1, got[4]->data ? label : -1};
    for (int t = 0; t < 5; t++) {
      const int64_t ht = at[t] >= 0 && got[t]->heads > 1 ? h : 0;
      double size = 0;
      for (int64_t c = 0; at[t] >= 0 && c < got[t]->dim; c++) {
        double x = oracle_get(q, b, h, i, t == 2 ? 0 : c);
        if (t == 1) x = oracle_get(k, b, hk, j, c);
        if (t == 2) x = oracle_get(&s->d_o, b, h, i, c);
        if (t == 3 && p->xl.v) x += (double)p->xl.v[h * dk + c];
        cube_at(&want[t].sum, 0, ht, at[t])[c] += (t == 2 ? weight : ds) * x;
        size += x * x;
      }
      if (at[t] >= 0)
        *cube_at(&want[t].bound, 0, ht, at[t]) +=
            (t == 2 ? cube_at(&w->w_bound, b, h, i)[j] : off) * sqrt(size);
    }
    for (int64_t c = 0; g->d_xl_u && c < dk; c++) {
      cube_at(&d_u.sum, 0, 0, h)[c] += ds * oracle_get(k, b, hk, j, c);
      *cube_at(&d_u.bound, 0, 0, h) += off * fabs(oracle_get(k, b, hk, j, c));
    }
    for (int64_t c = 0; g->d_xl_v && c < dk; c++) {
      const double x = number(&p->xl.table, h, delta - p->xl.first, c);
      cube_at(&d_v.sum, 0, 0, h)[c] += ds * x, *cube_at(&d_v.bound, 0, 0, h) += off * fabs(x);
    }
    if (g->d_label_bias && label >= 0)
      cube_at(&d_bias.sum, 0, 0, label)[h] += ds, *cube_at(&d_bias.bound, 0, 0, label) += off;
  }
  static const char *const name[] = {"d_relative.keys", "d_relative.queries", "d_relative.values",
                                     "d_xl_table", "d_label_table"};
  for (int t = 0; t < 5; t++) wanted_check(&want[t], got[t], name[t]);
  wanted_check(&d_u, &u, "d_xl_u"), wanted_check(&d_v, &v_xl, "d_xl_v");
  wanted_check(&d_bias, &bias, "d_label_bias");
}

/* A number of a table, the sum of dX by weight over the pairs that it serves. */
typedef struct entry {
  double sum, bound;
} entry;

static void entry_add(entry *e, const backward_want *w, int64_t b, int64_t h, int64_t i, int64_t j,
                      double by) {
  e->sum += by * cube_at(&w->x, b, h, i)[j],
      e->bound += fabs(by) * cube_at(&w->x_bound, b, h, i)[j];
}

static void entry_of(entry *e, double sum, double bound) { e->sum += sum, e->bound += bound; }

static void entries_check(const float *got, const entry *want, int64_t n, const char *what) {
  for (int64_t c = 0; got && c < n; c++)
    value_check((double)got[c], want[c].sum, want[c].bound + 1e-30, ATTN_F32, what, 0, 0, 0, c);
}

/* Gradients of terms, from dX pair by pair. */
void backward_compare_terms(const backward *s, const backward_want *w) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k, *y = &s->g.d_bias;
  const attn_sdpa_params *p = &s->call.params;
  const attn_sdpa_gradients *g = &s->g;
  const int64_t H = q->heads, buckets = p->t5.buckets ? p->t5.buckets : 32;
  const int64_t rows = p->toeplitz.heads > 1 ? H : 1, len = p->toeplitz.len,
                most = q->batch * H * q->len;
  const size_t size = sizeof(entry);
  entry *alibi = test_mem((size_t)H * size), *pw = test_mem((size_t)H * size),
        *pb = test_mem((size_t)H * size);
  entry *t5 = test_mem((size_t)(H * buckets) * size),
        *table = test_mem((size_t)(rows * len + 1) * size);
  entry *center = test_mem((size_t)most * size), *precision = test_mem((size_t)most * size);
  memset(alibi, 0, (size_t)H * size), memset(pw, 0, (size_t)H * size),
      memset(pb, 0, (size_t)H * size);
  memset(t5, 0, (size_t)(H * buckets) * size), memset(table, 0, (size_t)(rows * len) * size);
  memset(center, 0, (size_t)most * size), memset(precision, 0, (size_t)most * size);
  const int64_t spans = p->span.per_query ? most : H, T = y->data ? y->len : q->len;
  const double scale = scale_of(p->scale, q->dim);
  entry *of_scale = test_mem((size_t)H * size), *alpha = test_mem((size_t)H * size),
        *beta = test_mem((size_t)H * size), *span = test_mem((size_t)spans * size);
  memset(of_scale, 0, (size_t)H * size), memset(alpha, 0, (size_t)H * size);
  memset(beta, 0, (size_t)H * size), memset(span, 0, (size_t)spans * size);
  cube bias = cube_of(y->data ? y->batch : 1, y->data ? y->heads : 1, T, k->len), bound = bias;
  bound.data = cube_of(bias.batch, bias.heads, T, k->len).data;
  wipe(&bias), wipe(&bound);
  for (int64_t n = 0; n < most * k->len; n++) {
    const int64_t j = n % k->len, row = n / k->len, b = row / q->len / H, h = row / q->len % H,
                  i = row % q->len;
    const int64_t d = j - oracle_position(q, k, p, b, i);
    const double away = (double)llabs(d);
    entry_add(&alibi[h], w, b, h, i, j, -away);
    if (g->d_t5)
      entry_add(&t5[oracle_t5_bucket(d, p->t5.bidirectional, buckets,
                                     p->t5.max_distance ? p->t5.max_distance : 128) *
                        H +
                    h],
                w, b, h, i, j, 1);
    if (g->d_toeplitz) {
      int64_t at = d - p->toeplitz.first;
      at = at < 0 ? 0 : at >= len ? len - 1 : at;
      entry_add(&table[(rows > 1 ? h * len : 0) + at], w, b, h, i, j,
                p->toeplitz.inside ? scale_of(p->scale, q->dim) : 1);
    }
    if (g->d_parabola_w) {
      const double x = (double)p->parabola.w[h] * away * away +
                       (p->parabola.bias ? (double)p->parabola.bias[h] : 0);
      entry_add(&pw[h], w, b, h, i, j, (x > 0 ? -1 : x < 0 ? 1 : 0) * away * away);
      entry_add(&pb[h], w, b, h, i, j, x > 0 ? -1 : x < 0 ? 1 : 0);
    }
    if (g->d_center) {
      const double x = (double)j - (double)p->gaussian.center[row];
      entry_add(&center[row], w, b, h, i, j, 2 * (double)p->gaussian.precision[row] * x);
      entry_add(&precision[row], w, b, h, i, j, -x * x);
    }
    const double a = cube_at(&w->a, b, h, i)[j], dy = cube_at(&w->y, b, h, i)[j];
    const double off = cube_at(&w->x_bound, b, h, i)[j];
    entry_of(&of_scale[h], dy * a / scale, off * (fabs(a) + 1) / fabs(scale));
    if (p->toeplitz.table && p->toeplitz.inside) {
      int64_t at = d - p->toeplitz.first;
      at = at < 0 ? 0 : at >= len ? len - 1 : at;
      entry_add(&of_scale[h], w, b, h, i, j,
                (double)p->toeplitz.table[(rows > 1 ? h * len : 0) + at]);
    }
    if (p->factor.alpha) {
      const double al = (double)p->factor.alpha[h], be = (double)p->factor.beta[h];
      const double there = 1 / (1 + exp(al * away - be)), here = 1 / (1 + exp(-be));
      entry_of(&alpha[h], dy * a * away * there, off * (fabs(a) + 1) * away * there);
      entry_of(&beta[h], dy * a * (here - there), off * (fabs(a) + 1) * fabs(here - there));
    }
    if (p->span.z) {
      const double m = oracle_span(p, q, b, h, i, d);
      const double by = 1 / (m * (p->span.ramp > 0 ? (double)p->span.ramp : 32));
      if (m > 0 && m < 1 - 1e-6) /* where it is nearly 1 roundings choose */
        entry_of(&span[p->span.per_query ? row : h], by * cube_at(&w->top, b, h, i)[j], by * off);
      else if (m > 0 && m < 1 + 1e-6)
        entry_of(&span[p->span.per_query ? row : h], 0, by * fabs(cube_at(&w->top, b, h, i)[j]));
    }
    const int64_t bb = bias.batch > 1 ? b : 0, hb = bias.heads > 1 ? h : 0, ib = T > 1 ? i : 0;
    cube_at(&bias, bb, hb, ib)[j] += cube_at(&w->x, b, h, i)[j];
    cube_at(&bound, bb, hb, ib)[j] += off;
  }
  entries_check(g->d_scale, of_scale, H, "d_scale"), entries_check(g->d_alpha, alpha, H, "d_alpha");
  entries_check(g->d_beta, beta, H, "d_beta"), entries_check(g->d_span, span, spans, "d_span");
  entries_check(g->d_alibi, alibi, H, "d_alibi"), entries_check(g->d_t5, t5, H * buckets, "d_t5");
  entries_check(g->d_toeplitz, table, rows * len, "d_toeplitz");
  entries_check(g->d_parabola_w, pw, H, "d_parabola_w"),
      entries_check(g->d_parabola_bias, pb, H, "d_parabola_bias");
  entries_check(g->d_center, center, most, "d_center"),
      entries_check(g->d_precision, precision, most, "d_precision");
  for (int64_t n = 0; y->data && n < y->batch * y->heads * T; n++) {
    const int64_t b = n / T / y->heads, h = n / T % y->heads, i = n % T;
    for (int64_t j = 0; j < k->len; j++)
      value_check(oracle_get(y, b, h, i, j), cube_at(&bias, b, h, i)[j],
                  cube_at(&bound, b, h, i)[j] + 1e-30, ATTN_F32, "d_bias", b, h, i, j);
  }
  compare_tables(s, w);
}
