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

backward *backward_again(const backward *s) {
  backward *t = test_mem(sizeof *t);
  *t = *s;
  outputs(t, s->d_q.dtype, TEST_PADDED);
  if (s->sinks.data) backward_sinks(t);
  return t;
}

void backward_options(backward *s, test_rng *rng) {
  const test_call *c = &s->call;
  attn_sdpa_params *p = &s->call.params;
  const uint64_t pick = test_u64(rng);
  const int64_t B = c->q.batch, H = c->q.heads, Tq = c->q.len, Tk = c->k.len;
  if (pick & 1) p->causal = pick & 2 ? 1 : ATTN_CAUSAL_START;
  if (pick % 7 == 1) p->has_q_off = 1, p->q_off = test_range(rng, -20, 20);
  if (pick & 4) p->window = attn_window_of(test_range(rng, -1, 90), test_range(rng, -1, 40));
  if ((pick & 24) == 24) p->keep = test_range(rng, 0, 4);
  if (pick & 32) p->kv_len = test_lengths(B, Tk, rng);
  if (pick & 64) p->q_len = test_lengths(B, Tq, rng);
  if (pick & 128)
    p->mask = test_mask(pick & 256 ? ATTN_MASK_BITS : ATTN_MASK_BOOL, ATTN_F32, B, H, Tq, Tk, rng);
  if (pick & 512)
    p->bias = test_mask(ATTN_MASK_ADD, pick & 1024 ? ATTN_BF16 : ATTN_F32, B, H, Tq, Tk, rng);
  if (pick & 2048) p->alibi = test_floats(H, 0.1, rng);
  if (pick & 4096) p->sinks = test_floats(H, 1, rng);
  if (pick & 8192) p->softmax_one = 1;
  if ((pick >> 14) % 4 == 0) p->scale = pick & 65536 ? 0.3f : -0.2f;
  if (pick & 131072) backward_lse(s, rng);
  if (p->sinks && (pick & 262144)) backward_sinks(s);
  if ((pick >> 20) % 4 == 0)
    p->softcap = pick & 0x400000 ? 1.5f : 6, p->softcap_at = (attn_softcap_at)(pick >> 23 & 1);
  if ((pick >> 24) % 4 == 0)
    p->t5.table = test_floats(32 * H, 1, rng), p->t5.bidirectional = (int)(pick >> 26 & 1);
  if ((pick >> 27) % 4 == 0)
    p->toeplitz.table = test_floats(11 * H, 1, rng), p->toeplitz.len = 11, p->toeplitz.first = -7;
  if (p->toeplitz.table)
    p->toeplitz.heads = pick >> 29 & 1 ? H : 1, p->toeplitz.inside = (int)(pick >> 30 & 1);
  if ((pick >> 34) % 4 == 0) p->parabola.w = test_floats(H, 0.001, rng);
  for (int64_t h = 0; p->parabola.w && h < H; h++)
    *((float *)(uintptr_t)p->parabola.w + h) = fabsf(p->parabola.w[h]);
  if (p->parabola.w && (pick >> 36 & 1)) {
    p->parabola.bias = test_floats(H, 1, rng);
    for (int64_t h = 0; h < H; h++)
      *((float *)(uintptr_t)p->parabola.bias + h) =
          pick >> 37 & 1 ? -fabsf(p->parabola.bias[h]) : 0;
  }
  if ((pick >> 40) % 4 == 0) {
    p->dropout.p = pick >> 42 & 1 ? 0.1 : 0.6;
    p->dropout.seed = pick, p->dropout.offset = pick >> 7, p->dropout.head0 = 3;
    p->dropout.batch0 = (int64_t)(pick >> 43 & 7);
  }
  if ((pick >> 31) % 8 == 0)
    p->gaussian.center = test_floats(B * H * Tq, 20, rng),
    p->gaussian.precision = test_floats(B * H * Tq, 0.01, rng);
}

test_spec backward_spec(test_rng *rng, int64_t most) {
  static const int64_t heads[][3] = {{1, 1, 1}, {2, 2, 2}, {4, 2, 1},
                                     {6, 2, 3}, {3, 1, 1}, {6, 3, 2}};
  const int64_t *h = heads[test_u64(rng) % 6];
  test_spec spec = test_plain(h[0], test_range(rng, 1, most), test_range(rng, 1, most),
                              test_range(rng, 1, 40), test_range(rng, 1, 40));
  spec.k_heads = h[1], spec.v_heads = h[2], spec.batch = test_range(rng, 1, 2);
  spec.q_layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
  spec.k_layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
  spec.v_layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
  spec.o_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  return spec;
}

static double size_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  double sum = 0;
  for (int64_t c = 0; c < t->dim; c++) sum += pow(oracle_get(t, b, h, i, c), 2);
  return sqrt(sum);
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
    const oracle_pair pair = backward_score(s, p, b, h, i, j);
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

/* What value j has with the row of relative.values that a pair reads, times d_o. */
static double pull(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i,
                   int64_t j, double *size) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k, *v = &s->call.v;
  const int64_t delta = j - oracle_position(q, k, p, b, i);
  double sum = 0, all = 0;
  for (int64_t c = 0; c < v->dim; c++) {
    const double y =
        oracle_get(v, b, head_of(v, h, q->heads), j, c) + oracle_relative_value(p, h, delta, c);
    sum += oracle_get(&s->d_o, b, h, i, c) * y, all += y * y;
  }
  *size = sqrt(all);
  return sum;
}

backward_want backward_oracle(const backward *s, const attn_sdpa_params *params) {
  const attn_tensor *q = &s->call.q, *k = &s->call.k, *v = &s->call.v;
  const attn_sdpa_params *p = params ? params : &s->call.params;
  const int64_t H = q->heads;
  const double scale = scale_of(p->scale, q->dim);
  double *x = test_mem((size_t)(k->len + 1) * sizeof *x),
         *w = test_mem((size_t)(k->len + 1) * sizeof *w),
         *keep = test_mem((size_t)(k->len + 1) * sizeof *keep),
         *size_v = test_mem((size_t)(k->len + 1) * sizeof *size_v);
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
  y.top = cube_of(q->batch, H, q->len, k->len), y.y = cube_of(q->batch, H, q->len, k->len);
  y.s = cube_of(q->batch, H, q->len, k->len), y.s_bound = cube_of(q->batch, H, q->len, k->len);
  y.a = cube_of(q->batch, H, q->len, k->len), y.w = cube_of(q->batch, H, q->len, k->len);
  y.w_bound = cube_of(q->batch, H, q->len, k->len);
  cube *const pairs[] = {&y.x, &y.x_bound, &y.top, &y.y, &y.s, &y.s_bound, &y.a, &y.w, &y.w_bound};
  for (int n = 0; n < 9; n++) clear(pairs[n]);
  double *query = test_mem((size_t)q->dim * sizeof *query),
         *key = test_mem((size_t)q->dim * sizeof *key);
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
      double value;
      w[j] = x[j] > 0 ? keep[j] * pull(s, p, b, h, i, j, &value) : 0;
      size_v[j] = x[j] > 0 ? keep[j] * d_o * value : 0;
      if (s->g.d_map.data && p->map_stage != ATTN_MAP_SCORES && x[j] > 0) {
        const double map =
            oracle_get(&s->g.d_map, b, h, i, j) * (p->map_stage == ATTN_MAP_DROPPED ? keep[j] : 1);
        w[j] += map, size_v[j] += fabs(map);
      }
      d += x[j] * w[j];
      if (p->dropout.p > 0 || s->g.d_map.data || p->relative.values.data) parts += x[j] * size_v[j];
    }
    if (s->g.d_lse.data) d -= oracle_get(&s->g.d_lse, b, h, i, 0);
    parts = fmax(parts, fabs(d));
    if (p->sinks) {
      const double share = exp((double)p->sinks[h] - lse);
      double most = fabs(d);
      for (int64_t j = 0; j < k->len; j++)
        if (x[j] > 0) most += x[j] * size_v[j];
      y.sinks[h] -= share * d, y.sinks_bound[h] += bound * share * most;
    }
    for (int64_t j = 0; j < k->len; j++) {
      if (!(x[j] > 0)) continue;
      double top = x[j] * (w[j] - d), most = bound * x[j] * (size_v[j] + parts);
      if (s->g.d_map.data && p->map_stage == ATTN_MAP_SCORES) {
        const double map = oracle_get(&s->g.d_map, b, h, i, j);
        top += map, most += bound * fabs(map);
      }
      const backward_pair pair = backward_chain(s, p, b, h, i, j, top);
      const double ds = pair.s, off = most * pair.s_by + pair.s_more * fabs(pair.y);
      cube_at(&y.top, b, h, i)[j] = top, cube_at(&y.x, b, h, i)[j] = pair.x;
      cube_at(&y.y, b, h, i)[j] = pair.y, cube_at(&y.a, b, h, i)[j] = pair.a;
      cube_at(&y.s, b, h, i)[j] = ds, cube_at(&y.w, b, h, i)[j] = x[j] * keep[j];
      cube_at(&y.x_bound, b, h, i)[j] = most, cube_at(&y.s_bound, b, h, i)[j] = off;
      cube_at(&y.w_bound, b, h, i)[j] = bound * x[j] * keep[j];
      backward_sides(s, p, b, h, i, j, query, key);
      double query_size = 0, key_size = 0;
      for (int64_t c = 0; c < q->dim; c++) {
        cube_at(&y.q, b, h, i)[c] += scale * ds * key[c];
        cube_at(&y.k, b, hk, j)[c] += scale * ds * query[c];
        query_size += query[c] * query[c], key_size += key[c] * key[c];
      }
      for (int64_t c = 0; c < v->dim; c++)
        cube_at(&y.v, b, hv, j)[c] += x[j] * keep[j] * oracle_get(&s->d_o, b, h, i, c);
      *cube_at(&y.q_bound, b, h, i) += fabs(scale) * off * sqrt(key_size);
      *cube_at(&y.k_bound, b, hk, j) += fabs(scale) * off * sqrt(query_size);
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

void backward_compare(const backward *s, const backward_want *w, const char *what) {
  compare(&w->q, &w->q_bound, &s->d_q, what, "d_q");
  compare(&w->k, &w->k_bound, &s->d_k, what, "d_k");
  compare(&w->v, &w->v_bound, &s->d_v, what, "d_v");
  for (int64_t h = 0; s->g.d_sinks && h < s->call.q.heads; h++)
    value_check((double)s->g.d_sinks[h], w->sinks[h], w->sinks_bound[h] + 1e-30, ATTN_F32, what, 0,
                h, -1, -1);
  backward_compare_terms(s, w);
}

void backward_check(backward *s, const char *what) {
  test_run(&s->call);
  promise_run(&s->does);
  const backward_want w = backward_oracle(s, NULL);
  backward_compare(s, &w, what);
}

double backward_loss(const backward *s) {
  const attn_tensor *q = &s->call.q, *v = &s->call.v;
  const attn_sdpa_params *p = &s->call.params;
  double *x = test_mem((size_t)(v->len + 1) * sizeof *x), loss = 0, size;
  for (int64_t row = 0; row < q->batch * q->heads * q->len; row++) {
    const int64_t b = row / q->len / q->heads, h = row / q->len % q->heads, i = row % q->len;
    const double lse = scores(s, p, b, h, i, x, &size);
    if (lse == -(double)INFINITY) continue;
    for (int64_t j = 0; j < v->len; j++)
      if (x[j] > -(double)INFINITY) {
        const double keep = oracle_drop(&p->dropout, b, h, i, j), weight = exp(x[j] - lse);
        double value;
        loss += weight * keep * pull(s, p, b, h, i, j, &value);
        if (s->g.d_map.data)
          loss += (p->map_stage == ATTN_MAP_SCORES    ? x[j]
                   : p->map_stage == ATTN_MAP_DROPPED ? weight * keep
                                                      : weight) *
                  oracle_get(&s->g.d_map, b, h, i, j);
      }
    if (s->g.d_lse.data) loss += lse * oracle_get(&s->g.d_lse, b, h, i, 0);
  }
  return loss;
}
