/* tests/families/memory/segment.c owns rings with any contents and the layer behind memories in float64, straight
 * from the definition: rows, weights and pairs one by one. */

#include "segment.h"

attn_memory ring_drawn(attn_dtype type, test_layout layout, int64_t batch, int64_t room,
                       int64_t len, int64_t dm, test_rng *rng) {
  attn_memory m;
  memset(&m, 0, sizeof m);
  if (room == 0 && test_range(rng, 0, 1)) return m;
  m.rows = drawn(type, layout, batch, 1, room, dm, 1, rng);
  m.len = len;
  m.first = room > 0 ? test_range(rng, 0, room - 1) : 0;
  return m;
}

double ring_get(const attn_memory *m, int64_t b, int64_t i, int64_t c) {
  return oracle_get(&m->rows, b, 0, (m->first + i) % m->rows.len, c);
}

segment_shape segment_random(test_rng *rng) {
  segment_shape x;
  memset(&x, 0, sizeof x);
  x.batch = test_range(rng, 1, 2);
  x.tokens = test_range(rng, 1, test_range(rng, 0, 3) ? 24 : 90);
  x.memory = test_range(rng, 0, 2) ? test_range(rng, 0, 50) : 0;
  x.dm = test_range(rng, 1, 24);
  x.kv_heads = test_range(rng, 1, 2);
  x.heads = x.kv_heads * test_range(rng, 1, 2);
  x.dk = test_range(rng, 1, 10), x.dv = test_range(rng, 1, 10);
  x.sublayer = (attn_sublayer)test_range(rng, 0, 2);
  x.out = test_range(rng, 0, 1) * test_range(rng, 1, 20);
  x.window = test_range(rng, 0, 1) * test_range(rng, 1, 60);
  x.relative = (int)test_range(rng, 0, 2);
  x.norm = (int)test_range(rng, 0, 3);
  x.type = test_range(rng, 0, 4) ? ATTN_F32 : (attn_dtype)test_range(rng, 1, 2);
  x.bidirectional = test_range(rng, 0, 3) == 0;
  x.bare = test_range(rng, 0, 2) ? 0 : (int)test_range(rng, 1, 3);
  return x;
}

void segment_outputs(segment_scene *s, attn_dtype type) {
  int64_t heads = s->p.heads ? s->p.heads : 1, kv = s->p.kv_heads ? s->p.kv_heads : heads;
  int whole = s->p.w_o.data != NULL;
  s->o = output(type, TEST_PADDED, s->h.batch, whole ? 1 : heads, s->h.len,
                whole ? s->p.w_o.dim : s->p.w_v.dim / kv, &s->does.block[0]);
  s->p.attention.lse =
      output(ATTN_F32, TEST_BHTD, s->h.batch, heads, s->h.len, 1, &s->does.block[1]);
  s->p.attention.usage =
      output(ATTN_F32, TEST_BHTD, s->h.batch, 1, 1,
             (s->p.compressed.len / 2) + s->p.memory.len + s->h.len, &s->does.block[2]);
}

static attn_status call(void *at, attn_ctx *ctx) {
  segment_scene *s = at;
  return attn_segment_layer(s->o, s->h, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  segment_scene *s = at;
  return attn_segment_layer_workspace(s->o, s->h, &s->p, ctx);
}

/* Distances below 0. */
static int64_t segment_ahead(const segment_scene *s) {
  return s->p.attention.bidirectional && s->h.len ? s->h.len - 1 : 0;
}

segment_scene *segment_build(const segment_shape *x, test_rng *rng) {
  segment_scene *s = test_mem(sizeof *s);
  attn_segment_layer_params *p = &s->p;
  double size = 1 / sqrt((double)x->dm);
  memset(s, 0, sizeof *s);
  s->h = drawn(x->type, TEST_PADDED, x->batch, 1, x->tokens, x->dm, 1, rng);
  p->attention.bidirectional = x->bidirectional;
  p->heads = x->heads, p->kv_heads = x->kv_heads, p->sublayer = x->sublayer;
  p->memory = ring_drawn(ATTN_F32, TEST_NEGATIVE, x->batch, x->memory + test_range(rng, 0, 9),
                         x->memory, x->dm, rng);
  p->compressed = ring_drawn(x->type, TEST_PADDED, x->batch, x->compressed + test_range(rng, 0, 9),
                             x->compressed, x->dm, rng);
  p->w_q = drawn(x->type, TEST_PADDED, 1, 1, x->dm, x->heads * x->dk, size, rng);
  p->w_k = drawn(ATTN_F32, TEST_NEGATIVE, 1, 1, x->dm, x->kv_heads * x->dk, size, rng);
  p->w_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, x->dm, x->kv_heads * x->dv, size, rng);
  if (x->sublayer != ATTN_SUBLAYER_PLAIN || x->out)
    p->w_o = drawn(x->type, TEST_BHTD, 1, 1, x->heads * x->dv,
                   x->sublayer == ATTN_SUBLAYER_PLAIN ? x->out : x->dm, 0.4, rng);
  if (x->relative == 1)
    p->w_r = drawn(x->type, TEST_NEGATIVE, 1, 1, x->dm, x->heads * x->dk, size, rng);
  if (x->relative == 2) {
    int64_t keys = x->compressed + x->memory + x->tokens;
    p->attention.r =
        drawn(ATTN_F32, TEST_PADDED, 1, test_range(rng, 0, 1) ? x->heads : 1,
              (x->window && x->window < keys ? x->window : keys) + segment_ahead(s), x->dk, 1, rng);
  }
  if (x->relative & 3) {
    if (!(x->bare & 1)) p->attention.u = test_floats(x->heads * x->dk, 0.5, rng);
    if (!(x->bare & 2)) p->attention.v = test_floats(x->heads * x->dk, 0.5, rng);
  }
  p->attention.window = x->window;
  if (x->norm & 1) p->norm.gain = test_floats(x->dm, 1, rng);
  if (x->norm & 2) p->norm.bias = test_floats(x->dm, 1, rng);
  segment_outputs(s, x->type);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &p->attention.lse, s->does.out[2] = &p->attention.usage;
  return s;
}

static void norm_row(double *x, int64_t n, const attn_norm *norm) {
  double mean = 0, var = 0, eps = norm->eps != 0.0f ? (double)norm->eps : 1e-5;
  for (int64_t c = 0; c < n; c++) mean += x[c] / (double)n;
  for (int64_t c = 0; c < n; c++) var += (x[c] - mean) * (x[c] - mean) / (double)n;
  for (int64_t c = 0; c < n; c++) {
    x[c] = (x[c] - mean) / sqrt(var + eps) * (norm->gain ? (double)norm->gain[c] : 1);
    x[c] += norm->bias ? (double)norm->bias[c] : 0;
  }
}

/* x w of columns h d .. h d + d - 1 */
static double product(const double *x, const attn_tensor *w, int64_t column) {
  double sum = 0;
  for (int64_t c = 0; c < w->len; c++) sum += x[c] * oracle_get(w, 0, 0, c, column);
  return sum;
}

static double encoding(const attn_segment_layer_params *p, int64_t distance, int64_t c,
                       int64_t dm) {
  int64_t half = (dm + 1) / 2, t = p->interleaved ? c / 2 : c % half;
  double base = p->base == 0 ? 10000 : p->base;
  double phi = (double)distance * pow(base, -2.0 * (double)t / (double)dm);
  return (p->interleaved ? c % 2 == 0 : c < half) ? sin(phi) : cos(phi);
}

/* [compressed ; memory ; h], normalised where the layer does it. */
static cube everything(const segment_scene *s) {
  const attn_segment_layer_params *p = &s->p;
  int64_t n = p->compressed.len, m = p->memory.len, dm = s->h.dim;
  cube c = cube_of(s->h.batch, 1, n + m + s->h.len, dm);
  for (int64_t b = 0; b < c.batch; b++) {
    for (int64_t i = 0; i < c.len; i++) {
      double *row = cube_at(&c, b, 0, i);
      for (int64_t d = 0; d < dm; d++) {
        row[d] = i < n       ? ring_get(&p->compressed, b, i, d)
                 : i < n + m ? ring_get(&p->memory, b, i - n, d)
                             : oracle_get(&s->h, b, 0, i - n - m, d);
      }
      if (p->sublayer == ATTN_SUBLAYER_PRE) norm_row(row, dm, &p->norm);
    }
  }
  return c;
}

void segment_check(const segment_scene *s, double tolerance, const char *what) {
  const attn_segment_layer_params *p = &s->p;
  int64_t heads = p->heads ? p->heads : 1, kv = p->kv_heads ? p->kv_heads : heads;
  int64_t dk = p->w_q.dim / heads, dv = p->w_v.dim / kv, dm = s->h.dim, t = s->h.len;
  cube c = everything(s);
  int64_t keys = c.len, m = keys - t, batch = c.batch;
  cube k = cube_of(batch, kv, keys, dk), v = cube_of(batch, kv, keys, dv);
  int64_t ahead = segment_ahead(s); /* row j of r: distance j - ahead */
  cube r = cube_of(1, heads, keys + ahead, dk), out = cube_of(batch, heads, t, dv);
  cube lse = cube_of(batch, heads, t, 1), usage = cube_of(batch, 1, 1, keys);
  double *q = test_mem((size_t)dk * sizeof *q), *x = test_mem((size_t)keys * sizeof *x);
  double scale = scale_of(p->attention.scale, dk);
  int relative = p->w_r.data || p->attention.r.data;
  memset(usage.data, 0, (size_t)(batch * keys) * sizeof(double));
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t h = 0; h < kv; h++) {
      for (int64_t j = 0; j < keys; j++) {
        for (int64_t d = 0; d < dk; d++)
          cube_at(&k, b, h, j)[d] = product(cube_at(&c, b, 0, j), &p->w_k, h * dk + d);
        for (int64_t d = 0; d < dv; d++)
          cube_at(&v, b, h, j)[d] = product(cube_at(&c, b, 0, j), &p->w_v, h * dv + d);
      }
    }
  }
  double *pe = test_mem((size_t)dm * sizeof *pe);
  for (int64_t j = 0; j < r.len && relative; j++) {
    for (int64_t e = 0; e < dm; e++) pe[e] = encoding(p, j - ahead, e, dm);
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t d = 0; d < dk; d++) {
        const attn_tensor *given = &p->attention.r;
        cube_at(&r, 0, h, j)[d] = p->w_r.data ? product(pe, &p->w_r, h * dk + d)
                                  : j < given->len
                                      ? oracle_get(given, 0, given->heads > 1 ? h : 0, j, d)
                                      : 0;
      }
    }
  }
  for (int64_t n = 0; n < batch * heads * t; n++) {
    int64_t b = n / t / heads, h = n / t % heads, i = n % t, g = h / (heads / kv);
    int64_t end = p->attention.bidirectional ? keys : i + m + 1;
    double top = -(double)INFINITY, sum = 0, *o = cube_at(&out, b, h, i);
    int64_t from = p->attention.window ? i + m - p->attention.window + 1 : 0;
    if (from < 0) from = 0;
    for (int64_t d = 0; d < dk; d++) q[d] = product(cube_at(&c, b, 0, m + i), &p->w_q, h * dk + d);
    for (int64_t j = from; j < end; j++) {
      x[j] = 0;
      for (int64_t d = 0; d < dk; d++) {
        const float *u = p->attention.u, *w = p->attention.v;
        x[j] += (q[d] + (u ? (double)u[h * dk + d] : 0)) * cube_at(&k, b, g, j)[d];
        if (relative)
          x[j] +=
              (q[d] + (w ? (double)w[h * dk + d] : 0)) * cube_at(&r, 0, h, i + m - j + ahead)[d];
      }
      x[j] *= scale;
      top = fmax(top, x[j]);
    }
    for (int64_t j = from; j < end; j++) sum += exp(x[j] - top);
    for (int64_t d = 0; d < dv; d++) o[d] = 0;
    for (int64_t j = from; j < end; j++) {
      double weight = exp(x[j] - top) / sum;
      cube_at(&usage, b, 0, 0)[j] += weight / (double)(heads * t);
      for (int64_t d = 0; d < dv; d++) o[d] += weight * cube_at(&v, b, g, j)[d];
    }
    *cube_at(&lse, b, h, i) = top + log(sum);
  }
  if (p->attention.lse.data) cube_check(&lse, &p->attention.lse, tolerance, what);
  for (int64_t b = 0; b < batch && p->attention.usage.data; b++) {
    const attn_tensor *u = &p->attention.usage;
    for (int64_t j = 0; j < u->dim; j++)
      value_check(oracle_get(u, b, 0, 0, j), cube_at(&usage, b, 0, 0)[keys - u->dim + j], tolerance,
                  ATTN_F32, "usage", b, 0, 0, j);
  }
  if (!p->w_o.data) {
    cube_check(&out, &s->o, tolerance, what);
    return;
  }
  cube all = cube_of(batch, 1, t, p->w_o.dim);
  double *side = test_mem((size_t)(heads * dv) * sizeof *side);
  for (int64_t n = 0; n < batch * t; n++) {
    int64_t b = n / t, i = n % t;
    double *y = cube_at(&all, b, 0, i);
    for (int64_t h = 0; h < heads; h++)
      memcpy(side + h * dv, cube_at(&out, b, h, i), (size_t)dv * sizeof *side);
    for (int64_t d = 0; d < p->w_o.dim; d++) {
      y[d] = product(side, &p->w_o, d);
      if (p->b_o.data) y[d] += oracle_get(&p->b_o, 0, 0, 0, d);
      if (p->sublayer != ATTN_SUBLAYER_PLAIN) y[d] += oracle_get(&s->h, b, 0, i, d);
    }
    if (p->sublayer == ATTN_SUBLAYER_POST) norm_row(y, dm, &p->norm);
  }
  cube_check(&all, &s->o, tolerance, what);
}
