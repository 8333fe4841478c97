/* tests/families/training/backward.c owns the gradients of attention in float64, pair by pair from their formulas. */

#include "backward.h"

#include <stdio.h>
#include <stdlib.h>

static attn_status run(void *scene, attn_ctx *ctx) {
  backward *s = scene;
  return attn_sdpa_backward(s->d_q, s->d_k, s->d_v, s->d_o, s->call.q, s->call.k, s->call.v,
                            s->call.o, s->call.params.lse, &s->call.params, &s->g, ctx);
}

static size_t ask(void *scene, const attn_ctx *ctx) {
  backward *s = scene;
  return attn_sdpa_backward_workspace(s->d_q, s->d_k, s->d_v, s->d_o, s->call.q, s->call.k,
                                      s->call.v, s->call.o, s->call.params.lse, &s->call.params,
                                      &s->g, ctx);
}

static void outputs(backward *s, attn_dtype type, test_layout layout) {
  const test_call *c = &s->call;
  attn_tensor *const y[] = {&s->d_q, &s->d_k, &s->d_v};
  const attn_tensor *const x[] = {&c->q, &c->k, &c->v};
  for (int n = 0; n < 3; n++) {
    *y[n] = output(type, layout, x[n]->batch, x[n]->heads, x[n]->len, x[n]->dim, &s->does.block[n]);
    s->does.out[n] = y[n];
  }
  s->does.call = run, s->does.ask = ask, s->does.scene = s;
  s->does.out[3] = &s->sinks;
}

backward *backward_build(const test_spec *spec, attn_dtype type, test_layout layout,
                         test_rng *rng) {
  backward *s = test_mem(sizeof *s);
  test_spec with = *spec;
  memset(s, 0, sizeof *s);
  with.lse = 1;
  s->call = test_build(&with, rng);
  s->d_o =
      drawn(spec->o_type, spec->v_layout, spec->batch, spec->heads, spec->q_len, spec->dv, 1, rng);
  outputs(s, type, layout);
  return s;
}

void backward_lse(backward *s, test_rng *rng) {
  const attn_tensor *q = &s->call.q;
  s->g.d_lse = drawn(ATTN_F32, TEST_PADDED, q->batch, q->heads, q->len, 1, 1, rng);
}

void backward_sinks(backward *s) {
  s->sinks = output(ATTN_F32, TEST_BHTD, 1, 1, 1, s->call.q.heads, &s->does.block[3]);
  s->g.d_sinks = s->sinks.data;
}

void backward_terms(backward *s) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  const attn_sdpa_params *p = &s->call.params;
  const size_t head = (size_t)q->heads * 4, rows = (size_t)(q->batch * q->len) * head;
  if (p->alibi) s->g.d_alibi = test_mem(head);
  if (p->t5.table) s->g.d_t5 = test_mem((size_t)(p->t5.buckets ? p->t5.buckets : 32) * head);
  if (p->toeplitz.table) s->g.d_toeplitz = test_mem((size_t)p->toeplitz.len * head);
  if (p->parabola.w) s->g.d_parabola_w = test_mem(head);
  if (p->parabola.bias) s->g.d_parabola_bias = test_mem(head);
  if (p->gaussian.center) s->g.d_center = test_mem(rows), s->g.d_precision = test_mem(rows);
  if (p->bias.kind)
    s->g.d_bias = test_tensor(ATTN_F32, TEST_PADDED, p->bias.batch, p->bias.heads, q->len, k->len);
}

backward *backward_again(const backward *s) {
  backward *t = test_mem(sizeof *t);
  *t = *s;
  outputs(t, s->d_q.dtype, TEST_PADDED);
  if (s->sinks.data) backward_sinks(t);
  return t;
}

static double size_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  double sum = 0;
  for (int64_t c = 0; c < t->dim; c++) sum += pow(oracle_get(t, b, h, i, c), 2);
  return sqrt(sum);
}

static double dot(const attn_tensor *x, int64_t b, int64_t h, int64_t i, const attn_tensor *y,
                  int64_t hy, int64_t j) {
  double sum = 0;
  for (int64_t c = 0; c < x->dim; c++)
    sum += oracle_get(x, b, h, i, c) * oracle_get(y, b, hy, j, c);
  return sum;
}

static void clear(cube *a) {
  memset(a->data, 0, (size_t)(a->batch * a->heads * a->len * a->dim) * sizeof(double));
}

/* The scores of a row, -inf where a pair is forbidden; its LSE, and the largest sum of absolute terms. */
static double scores(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i,
                     double *x, double *size) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  const int exists = !p->q_len || i < p->q_len[b];
  double top = -(double)INFINITY, sum = 0;
  *size = 0;
  for (int64_t j = 0; j < k->len; j++) {
    x[j] = -(double)INFINITY;
    if (!oracle_allowed(q, k, p, b, h, i, j)) continue;
    const oracle_pair pair = oracle_score(q, k, p, b, h, i, j);
    x[j] = pair.x, top = fmax(top, x[j]);
    if (x[j] > -(double)INFINITY) *size = fmax(*size, pair.size);
  }
  const double sink = p->sinks && exists ? (double)p->sinks[h] : -(double)INFINITY;
  top = fmax(top, sink);
  if (p->softmax_one && exists) top = fmax(top, 0);
  if (top == -(double)INFINITY) return top;
  for (int64_t j = 0; j < k->len; j++) sum += exp(x[j] - top);
  sum += exp(sink - top) + (p->softmax_one && exists ? exp(-top) : 0);
  return top + log(sum);
}

/* The derivative of the soft-cap: 1 - (y/c)^2 of what it left. */
static double slope(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i,
                    int64_t j) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k;
  const double c = (double)p->softcap;
  double y;
  if (p->softcap == 0.0f) return 1;
  if (p->softcap_at == ATTN_SOFTCAP_BIASED)
    y = oracle_score(q, k, p, b, h, i, j).x / c;
  else
    y = tanh(scale_of(p->scale, q->dim) * dot(q, b, h, i, k, head_of(k, h, q->heads), j) / c);
  return 1 - y * y;
}

backward_want backward_oracle(const backward *s, const attn_sdpa_params *params) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k, *v = &s->call.v;
  const attn_sdpa_params *p = params ? params : &s->call.params;
  const int64_t H = q->heads;
  const double scale = scale_of(p->scale, q->dim);
  double *x = test_mem((size_t)(k->len + 1) * sizeof *x),
         *w = test_mem((size_t)(k->len + 1) * sizeof *w),
         *keep = test_mem((size_t)(k->len + 1) * sizeof *keep);
  backward_want y;
  y.q = cube_of(q->batch, H, q->len, q->dim), y.q_bound = cube_of(q->batch, H, q->len, 1);
  y.k = cube_of(k->batch, k->heads, k->len, k->dim);
  y.k_bound = cube_of(k->batch, k->heads, k->len, 1);
  y.v = cube_of(v->batch, v->heads, v->len, v->dim);
  y.v_bound = cube_of(v->batch, v->heads, v->len, 1);
  y.sinks = test_mem((size_t)H * sizeof *y.sinks);
  y.sinks_bound = test_mem((size_t)H * sizeof *y.sinks_bound);
  cube *const all[] = {&y.q, &y.k, &y.v, &y.q_bound, &y.k_bound, &y.v_bound};
  y.x = cube_of(q->batch, H, q->len, k->len), y.x_bound = cube_of(q->batch, H, q->len, k->len);
  clear(&y.x), clear(&y.x_bound);
  for (int n = 0; n < 6; n++) clear(all[n]);
  for (int64_t h = 0; h < H; h++) y.sinks[h] = y.sinks_bound[h] = 0;
  for (int64_t row = 0; row < q->batch * H * q->len; row++) {
    const int64_t b = row / q->len / H, h = row / q->len % H, i = row % q->len;
    const int64_t hk = head_of(k, h, H), hv = head_of(v, h, H);
    double size, d = 0;
    const double lse = scores(s, p, b, h, i, x, &size);
    if (lse == -(double)INFINITY) continue;
    const double d_o = size_of(&s->d_o, b, h, i), bound = 2e-6 + size / 8388608;
    double parts = 0; /* of what is taken off, which may cancel */
    for (int64_t j = 0; j < k->len; j++) {
      x[j] = exp(x[j] - lse);
      keep[j] = oracle_drop(&p->dropout, b, h, i, j);
      w[j] = x[j] > 0 ? keep[j] * dot(&s->d_o, b, h, i, v, hv, j) : 0;
      d += x[j] * w[j];
      if (p->dropout.p > 0) parts += x[j] * keep[j] * d_o * size_of(v, b, hv, j);
    }
    if (s->g.d_lse.data) d -= oracle_get(&s->g.d_lse, b, h, i, 0);
    parts = fmax(parts, fabs(d));
    if (p->sinks) {
      const double share = exp((double)p->sinks[h] - lse);
      double most = fabs(d);
      for (int64_t j = 0; j < k->len; j++)
        if (x[j] > 0) most += x[j] * keep[j] * d_o * size_of(v, b, hv, j);
      y.sinks[h] -= share * d, y.sinks_bound[h] += bound * share * most;
    }
    for (int64_t j = 0; j < k->len; j++) {
      if (!(x[j] > 0)) continue;
      const double by = slope(s, p, b, h, i, j), ds = x[j] * (w[j] - d) * by;
      const double pulls = keep[j] * d_o * size_of(v, b, hv, j);
      const double most = scale * x[j] * (pulls + parts);
      cube_at(&y.x, b, h, i)[j] = p->softcap_at == ATTN_SOFTCAP_BIASED ? ds : x[j] * (w[j] - d);
      cube_at(&y.x_bound, b, h, i)[j] = bound * x[j] * (pulls + parts);
      for (int64_t c = 0; c < q->dim; c++) {
        cube_at(&y.q, b, h, i)[c] += scale * ds * oracle_get(k, b, hk, j, c);
        cube_at(&y.k, b, hk, j)[c] += scale * ds * oracle_get(q, b, h, i, c);
      }
      for (int64_t c = 0; c < v->dim; c++)
        cube_at(&y.v, b, hv, j)[c] += x[j] * keep[j] * oracle_get(&s->d_o, b, h, i, c);
      *cube_at(&y.q_bound, b, h, i) += fabs(bound * most) * size_of(k, b, hk, j);
      *cube_at(&y.k_bound, b, hk, j) += fabs(bound * most) * size_of(q, b, h, i);
      *cube_at(&y.v_bound, b, hv, j) += bound * x[j] * keep[j] * d_o;
    }
  }
  return y;
}

static void compare(const cube *want, const cube *bound, const attn_tensor *got, const char *what,
                    const char *which) {
  char text[120];
  if (!got->data) return;
  snprintf(text, sizeof text, "%s: %s", what, which);
  for (int64_t n = 0; n < want->batch * want->heads * want->len; n++) {
    const int64_t b = n / want->len / want->heads, h = n / want->len % want->heads,
                  i = n % want->len;
    for (int64_t c = 0; c < want->dim; c++)
      value_check(oracle_get(got, b, h, i, c), cube_at(want, b, h, i)[c],
                  *cube_at(bound, b, h, i) + 1e-30, got->dtype, text, b, h, i, c);
  }
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

static void entries_check(const float *got, const entry *want, int64_t n, const char *what) {
  for (int64_t c = 0; got && c < n; c++)
    value_check((double)got[c], want[c].sum, want[c].bound + 1e-30, ATTN_F32, what, 0, 0, 0, c);
}

/* Gradients of terms, from dX pair by pair. */
static void compare_terms(const backward *s, const backward_want *w) {
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
  cube bias = cube_of(y->data ? y->batch : 1, y->data ? y->heads : 1, q->len, k->len), bound = bias;
  bound.data = cube_of(bias.batch, bias.heads, q->len, k->len).data;
  clear(&bias), clear(&bound);
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
    const int64_t bb = bias.batch > 1 ? b : 0, hb = bias.heads > 1 ? h : 0;
    cube_at(&bias, bb, hb, i)[j] += cube_at(&w->x, b, h, i)[j];
    cube_at(&bound, bb, hb, i)[j] += cube_at(&w->x_bound, b, h, i)[j];
  }
  entries_check(g->d_alibi, alibi, H, "d_alibi"), entries_check(g->d_t5, t5, H * buckets, "d_t5");
  entries_check(g->d_toeplitz, table, rows * len, "d_toeplitz");
  entries_check(g->d_parabola_w, pw, H, "d_parabola_w"),
      entries_check(g->d_parabola_bias, pb, H, "d_parabola_bias");
  entries_check(g->d_center, center, most, "d_center"),
      entries_check(g->d_precision, precision, most, "d_precision");
  for (int64_t n = 0; y->data && n < y->batch * y->heads * q->len; n++) {
    const int64_t b = n / q->len / y->heads, h = n / q->len % y->heads, i = n % q->len;
    for (int64_t j = 0; j < k->len; j++)
      value_check(oracle_get(y, b, h, i, j), cube_at(&bias, b, h, i)[j],
                  cube_at(&bound, b, h, i)[j] + 1e-30, ATTN_F32, "d_bias", b, h, i, j);
  }
}

void backward_compare(const backward *s, const backward_want *w, const char *what) {
  compare(&w->q, &w->q_bound, &s->d_q, what, "d_q");
  compare(&w->k, &w->k_bound, &s->d_k, what, "d_k");
  compare(&w->v, &w->v_bound, &s->d_v, what, "d_v");
  for (int64_t h = 0; s->g.d_sinks && h < s->call.q.heads; h++)
    value_check((double)s->g.d_sinks[h], w->sinks[h], w->sinks_bound[h] + 1e-30, ATTN_F32, what, 0,
                h, -1, -1);
  compare_terms(s, w);
}

void backward_check(backward *s, const char *what) {
  test_run(&s->call);
  promise_run(&s->does);
  const backward_want w = backward_oracle(s, NULL);
  backward_compare(s, &w, what);
}

double backward_loss(const backward *s) {
  const attn_tensor *q = &s->call.q, *v = &s->call.v;
  double *x = test_mem((size_t)(v->len + 1) * sizeof *x), loss = 0, size;
  for (int64_t row = 0; row < q->batch * q->heads * q->len; row++) {
    const int64_t b = row / q->len / q->heads, h = row / q->len % q->heads, i = row % q->len;
    const double lse = scores(s, &s->call.params, b, h, i, x, &size);
    if (lse == -(double)INFINITY) continue;
    for (int64_t j = 0; j < v->len; j++)
      if (x[j] > -(double)INFINITY)
        loss += exp(x[j] - lse) * oracle_drop(&s->call.params.dropout, b, h, i, j) *
                dot(&s->d_o, b, h, i, v, head_of(v, h, q->heads), j);
    if (s->g.d_lse.data) loss += lse * oracle_get(&s->g.d_lse, b, h, i, 0);
  }
  return loss;
}
