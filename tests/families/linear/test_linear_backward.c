/* tests/families/linear/test_linear_backward.c owns N5, gradients of attention over a linear state: the recurrence in
 * reverse in float64, key after key, and differences of forward's. */

#include <stdio.h>

#include "linear.h"
#include "maps.h"

typedef struct scene {
  linear_scene *f;
  attn_tensor d_q, d_k, d_v, d_o;
  attn_linear_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  const linear_scene *f = s->f;
  return attn_linear_backward(s->d_q, s->d_k, s->d_v, s->d_o, f->q, f->k, f->v, &f->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  const linear_scene *f = s->f;
  return attn_linear_backward_workspace(s->d_q, s->d_k, s->d_v, s->d_o, f->q, f->k, f->v, &f->p,
                                        &s->g, ctx);
}

static void outputs(scene *s, attn_dtype type, test_layout layout) {
  const linear_scene *f = s->f;
  const attn_tensor *t[4] = {&f->q, &f->k, &f->v, &f->p.rate};
  attn_tensor *d[4] = {&s->d_q, &s->d_k, &s->d_v, &s->g.d_rate};
  for (int i = 0; i < 4; i++) {
    int64_t batch = t[i]->batch, heads = t[i]->heads, len = t[i]->len, dim = t[i]->dim;
    if (i == 3 && f->p.rule == ATTN_LINEAR_SUM) continue;
    if (i == 3 && !t[i]->data) batch = 1, heads = f->p.rate_head ? f->k.heads : 1, len = dim = 1;
    *d[i] = output(type, layout, batch, heads, len, dim, &s->does.block[i]);
    s->does.out[i] = d[i];
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
}

static scene *build(linear_scene *f, attn_dtype type, test_layout layout, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->f = f;
  s->d_o = drawn(ATTN_F32, TEST_PADDED, f->q.batch, f->q.heads, f->q.len, f->v.dim, 1, rng);
  outputs(s, type, layout);
  return s;
}

/* ---- the recurrence in reverse ---------------------------------------------------------------*/

static double usual(float x, double otherwise) {
  return x != 0 ? (double)x : signbit(x) ? 0 : otherwise;
}

/* One state head with all it has seen: features, and states before and behind each key. */
typedef struct past {
  const scene *s;
  attn_feature_map map; /* with its norm */
  int64_t b, head, kv, heads, m, dv, dk, keys;
  double c, eps; /* of keys */
  double *p, *state, *z, *kappa;
  double *d_s, *d_z;
  double *most; /* the largest sums of magnitudes behind the elements of each gradient */
} past;

static int powers(const attn_feature_map *f) {
  return f->kind == ATTN_FEATURES_SOFTMAX || f->kind == ATTN_FEATURES_HYPERBOLIC;
}

/* phi(x) with a stabiliser that is held: of keys c, of queries their own where eps is added. */
static void features(const past *a, double *y, const double *x, int64_t h, int key, double c) {
  double *slack = test_mem((size_t)a->m * sizeof *slack);
  map_row(y, slack, &a->map, x, a->dk, h, key || powers(&a->map), c, a->eps);
}
static double held(const past *a, const double *x, int64_t h, int key) {
  return key || !powers(&a->map) || a->eps == 0 ? a->c : map_top(&a->map, x, a->dk, h);
}

/* d_x of d_p, which is a sum of numbers of this size. */
static void through(const past *a, double *d_x, const double *d_p, const double *size, double *x,
                    int64_t h, int key) {
  const double c = held(a, x, h, key), step = 1e-6;
  double *up = test_mem((size_t)a->m * sizeof *up), *down = test_mem((size_t)a->m * sizeof *down);
  for (int64_t k = 0; k < a->dk; k++) {
    const double was = x[k];
    double sum = 0;
    x[k] = was + step, features(a, up, x, h, key, c);
    x[k] = was - step, features(a, down, x, h, key, c);
    x[k] = was;
    for (int64_t r = 0; r < a->m; r++) {
      const double slope = (up[r] - down[r]) / (2 * step);
      d_x[k] += d_p[r] * slope, sum += size[r] * fabs(slope);
    }
    a->most[key] = fmax(a->most[key], sum);
  }
}

static double rate_at(const past *a, int64_t t) {
  const attn_linear_params *p = &a->s->f->p;
  if (p->rate.data)
    return oracle_get(&p->rate, p->rate.batch > 1 ? a->b : 0, p->rate.heads > 1 ? a->kv : 0, t, 0);
  return p->rate_head ? (double)p->rate_head[a->kv] : usual(p->rate_const, 1);
}

static double *zeros(int64_t n) {
  double *x = test_mem((size_t)(n + 1) * sizeof *x);
  for (int64_t i = 0; i <= n; i++) x[i] = 0;
  return x;
}

static past walk(const scene *s, int64_t b, int64_t head, int64_t heads, double *most) {
  const linear_scene *f = s->f;
  const attn_linear_rule rule = f->p.rule;
  past a;
  memset(&a, 0, sizeof a);
  a.most = most;
  a.s = s, a.b = b, a.head = head, a.heads = heads, a.kv = head / (heads / f->k.heads);
  a.map = f->p.map, a.dk = f->k.dim, a.dv = f->v.dim;
  if (a.map.norm == ATTN_FEATURE_NORM_DEFAULT && rule >= ATTN_LINEAR_DELTA)
    a.map.norm = ATTN_FEATURE_NORM_SUM;
  a.m = map_count(&a.map, a.dk), a.keys = f->p.kv_len ? f->p.kv_len[b] : f->k.len;
  const int bare = a.map.norm <= ATTN_FEATURE_NORM_NONE;
  if (powers(&a.map) && a.map.key_stab == ATTN_STAB_CONST)
    a.c = (double)a.map.key_const, a.eps = usual(a.map.eps, 1e-4);
  else if (powers(&a.map) && bare && !linear_causal(&f->p) && a.map.key_stab <= ATTN_STAB_GLOBAL) {
    a.eps = usual(a.map.eps, 1e-4), a.c = -(double)INFINITY;
    for (int64_t t = 0; t < a.keys; t++)
      a.c = fmax(a.c, map_top(&a.map, map_x(&f->k, b, a.kv, t), a.dk, head));
  }
  const int64_t m = a.m, dv = a.dv;
  a.p = zeros(a.keys * m), a.state = zeros((a.keys + 1) * m * dv), a.z = zeros((a.keys + 1) * m);
  a.kappa = zeros(a.keys), a.d_s = zeros(m * dv), a.d_z = zeros(m);
  for (int64_t t = 0; t < a.keys; t++) {
    double *p = a.p + t * m, *st = a.state + t * m * dv, *z = a.z + t * m, kappa = 0;
    features(&a, p, map_x(&f->k, b, a.kv, t), head, 1, a.c);
    for (int64_t r = 0; r < m; r++) kappa += z[r] * p[r];
    if (rule != ATTN_LINEAR_DELTA_ATTN) kappa = 1;
    a.kappa[t] = t == 0 && rule == ATTN_LINEAR_DELTA_ATTN ? 0 : kappa;
    const double rate = rule ? rate_at(&a, t) : 1;
    const double keep = rule == ATTN_LINEAR_DECAY || rule == ATTN_LINEAR_GATED ? rate : 1;
    const double by = rule == ATTN_LINEAR_GATED ? 1 - rate : 1;
    for (int64_t c = 0; c < dv; c++) {
      double v = oracle_get(&f->v, b, a.kv, t, c), read = 0;
      for (int64_t r = 0; r < m; r++) read += p[r] * st[r * dv + c];
      if (rule >= ATTN_LINEAR_DELTA) v = rate * (v - (a.kappa[t] == 0 ? 0 : read / a.kappa[t]));
      for (int64_t r = 0; r < m; r++)
        st[m * dv + r * dv + c] = keep * st[r * dv + c] + by * p[r] * v;
    }
    for (int64_t r = 0; r < m; r++) z[m + r] = keep * z[r] + by * p[r];
  }
  return a;
}

/* Row i of head h reads the state behind key t. */
static void read_back(past *a, int64_t h, int64_t i, int64_t t, const cube *d_q) {
  const linear_scene *f = a->s->f;
  const attn_linear_params *q = &f->p;
  const double *st = a->state + (t + 1) * a->m * a->dv, *z = a->z + (t + 1) * a->m;
  double *x = map_x(&f->q, a->b, h, i), *p = zeros(a->m), *d_p = zeros(a->m), *n = zeros(a->dv);
  double *size = zeros(a->m), around = 0;
  double den = 0, dot = 0, slope = 1, scale = usual(q->out_scale, 1);
  int kind = (int)q->den;
  if (kind == ATTN_LINEAR_DEN_DEFAULT)
    kind = q->rule == ATTN_LINEAR_DELTA       ? ATTN_LINEAR_DEN_NONE
           : q->map.kind == ATTN_FEATURES_RFA ? ATTN_LINEAR_DEN_CLAMP
                                              : ATTN_LINEAR_DEN_ADD;
  const double eps = usual(q->eps, kind == ATTN_LINEAR_DEN_CLAMP       ? 1e-4
                                   : q->map.kind == ATTN_FEATURES_ELU1 ? 1e-6
                                                                       : 0);
  features(a, p, x, h, 0, held(a, x, h, 0));
  for (int64_t r = 0; r < a->m; r++) {
    den += p[r] * z[r];
    for (int64_t c = 0; c < a->dv; c++) n[c] += p[r] * st[r * a->dv + c];
  }
  if (kind == ATTN_LINEAR_DEN_ADD) den += eps;
  if (kind == ATTN_LINEAR_DEN_CLAMP && den <= eps) den = eps, slope = 0;
  if (kind == ATTN_LINEAR_DEN_NONE) den = 1, slope = 0;
  if (den == 0) return;
  for (int64_t c = 0; c < a->dv; c++) {
    dot += oracle_get(&a->s->d_o, a->b, h, i, c) * n[c];
    around += fabs(oracle_get(&a->s->d_o, a->b, h, i, c) * n[c]);
  }
  const double d_d = -slope * scale * dot / den / den;
  for (int64_t r = 0; r < a->m; r++) {
    d_p[r] = d_d * z[r], a->d_z[r] += d_d * p[r];
    size[r] = slope * fabs(scale * around / den / den * z[r]);
    for (int64_t c = 0; c < a->dv; c++) {
      const double d_n = scale * oracle_get(&a->s->d_o, a->b, h, i, c) / den;
      d_p[r] += d_n * st[r * a->dv + c], a->d_s[r * a->dv + c] += d_n * p[r];
      size[r] += fabs(d_n * st[r * a->dv + c]);
    }
  }
  through(a, cube_at(d_q, a->b, h, i), d_p, size, x, h, 0);
}

static void key_back(past *a, int64_t t, const cube *d_k, const cube *d_v, const cube *d_rate) {
  const linear_scene *f = a->s->f;
  const attn_linear_rule rule = f->p.rule;
  const int64_t m = a->m, dv = a->dv;
  const double *p = a->p + t * m, *st = a->state + t * m * dv, *z = a->z + t * m;
  const double rate = rule ? rate_at(a, t) : 1, kappa = a->kappa[t];
  const double by = rule == ATTN_LINEAR_GATED ? 1 - rate : 1, reads = kappa == 0 ? 0 : 1 / kappa;
  double *d_p = zeros(m), *y = zeros(dv), *read = zeros(dv), *v = map_x(&f->v, a->b, a->kv, t);
  double d_a = 0, e = 0, *size = zeros(m), of_rate = 0;
  for (int64_t c = 0; c < dv; c++) {
    double of_v = 0;
    for (int64_t r = 0; r < m; r++) {
      y[c] += p[r] * a->d_s[r * dv + c], read[c] += p[r] * st[r * dv + c];
      of_v += fabs(p[r] * a->d_s[r * dv + c]);
    }
    a->most[2] = fmax(a->most[2], of_v);
  }
  for (int64_t c = 0; c < dv; c++) {
    if (rule < ATTN_LINEAR_DELTA) {
      cube_at(d_v, a->b, a->kv, t)[c] += by * y[c];
      for (int64_t r = 0; r < m; r++) {
        d_p[r] += by * a->d_s[r * dv + c] * v[c];
        d_a += a->d_s[r * dv + c] * (st[r * dv + c] - (rule == ATTN_LINEAR_GATED) * p[r] * v[c]);
        size[r] += fabs(a->d_s[r * dv + c] * v[c]);
        of_rate += fabs(a->d_s[r * dv + c]) * (fabs(st[r * dv + c]) + fabs(p[r] * v[c]));
      }
      continue;
    }
    const double left = v[c] - read[c] * reads;
    cube_at(d_v, a->b, a->kv, t)[c] += rate * y[c], d_a += y[c] * left;
    e += rate * y[c] * read[c] * reads * reads;
    for (int64_t r = 0; r < m; r++)
      d_p[r] += rate * a->d_s[r * dv + c] * left - rate * reads * st[r * dv + c] * y[c];
    for (int64_t r = 0; r < m; r++) {
      const double d_s = a->d_s[r * dv + c], size_v = fabs(v[c]) + fabs(read[c] * reads);
      size[r] += fabs(d_s) * size_v + fabs(reads * st[r * dv + c] * y[c]);
      of_rate += fabs(d_s * p[r]) * size_v;
    }
  }
  for (int64_t r = 0; r < m; r++) {
    d_p[r] += by * a->d_z[r];
    size[r] += fabs(a->d_z[r]) + fabs(e * z[r]), of_rate += fabs(a->d_z[r]) * (z[r] + fabs(p[r]));
    if (rule < ATTN_LINEAR_DELTA) d_a += a->d_z[r] * (z[r] - (rule == ATTN_LINEAR_GATED) * p[r]);
    if (rule == ATTN_LINEAR_DELTA_ATTN) d_p[r] += e * z[r];
  }
  for (int64_t r = 0; r < m; r++) {
    const double keep = rule == ATTN_LINEAR_DECAY || rule == ATTN_LINEAR_GATED ? rate : 1;
    a->d_z[r] = keep * a->d_z[r] + (rule == ATTN_LINEAR_DELTA_ATTN ? e * p[r] : 0);
    for (int64_t c = 0; c < dv; c++) {
      a->d_s[r * dv + c] *= keep;
      if (rule >= ATTN_LINEAR_DELTA) a->d_s[r * dv + c] -= rate * reads * p[r] * y[c];
    }
  }
  cube_at(d_rate, a->b, a->kv, t)[0] += d_a;
  a->most[3] = fmax(a->most[3], of_rate);
  through(a, cube_at(d_k, a->b, a->kv, t), d_p, size, map_x(&f->k, a->b, a->kv, t), a->head, 1);
}

typedef struct answer {
  cube d[4]; /* of q, k, v and rates, each of all extents */
  double most[4];
} answer;

static answer oracle(const scene *s) {
  const linear_scene *f = s->f;
  const attn_tensor *q = &f->q, *k = &f->k;
  const int64_t heads = f->p.map.w.data && f->p.map.w.heads > 1 ? q->heads : k->heads;
  const int64_t off = f->p.has_q_off ? f->p.q_off : k->len - q->len, group = q->heads / heads;
  answer r = {
      {cube_of(q->batch, q->heads, q->len, q->dim), cube_of(k->batch, k->heads, k->len, k->dim),
       cube_of(k->batch, k->heads, k->len, f->v.dim), cube_of(k->batch, k->heads, k->len, 1)},
      {0}};
  for (int i = 0; i < 4; i++)
    memset(r.d[i].data, 0,
           (size_t)(r.d[i].batch * r.d[i].heads * r.d[i].len * r.d[i].dim) * sizeof(double));
  for (int64_t u = 0; u < q->batch * heads; u++) {
    past a = walk(s, u / heads, u % heads, heads, r.most);
    const int64_t rows = f->p.q_len ? f->p.q_len[a.b] : q->len;
    for (int64_t t = a.keys - 1; t >= 0; t--) {
      for (int64_t h = a.head * group; h < (a.head + 1) * group; h++)
        for (int64_t i = 0; i < rows; i++) {
          const int64_t at = linear_causal(&f->p) ? i + off : a.keys - 1;
          if ((at < a.keys ? at : a.keys - 1) == t) read_back(&a, h, i, t, &r.d[0]);
        }
      key_back(&a, t, &r.d[1], &r.d[2], &r.d[3]);
    }
  }
  return r;
}

/* Sums where an output has an extent of 1; errors in units of the largest sum of magnitudes. */
static void check(const scene *s, const answer *r, double more, double tolerance,
                  const char *what) {
  static const char *const name[4] = {"d_q", "d_k", "d_v", "d_rate"};
  for (int n = 0; n < 4; n++) {
    const attn_tensor *d = s->does.out[n];
    const cube *x = &r->d[n];
    if (!d || !d->data) continue;
    cube sum = cube_of(d->batch, d->heads, d->len, d->dim);
    memset(sum.data, 0, (size_t)(d->batch * d->heads * d->len * d->dim) * sizeof(double));
    for (int64_t i = 0; i < x->batch * x->heads * x->len; i++) {
      const int64_t b = i / x->len / x->heads, h = i / x->len % x->heads, t = i % x->len;
      for (int64_t c = 0; c < x->dim; c++)
        cube_at(&sum, d->batch > 1 ? b : 0, d->heads > 1 ? h : 0, d->len > 1 ? t : 0)[c] +=
            cube_at(x, b, h, t)[c];
    }
    for (int64_t i = 0; i < d->batch * d->heads * d->len; i++) {
      const int64_t b = i / d->len / d->heads, h = i / d->len % d->heads, t = i % d->len;
      for (int64_t c = 0; c < d->dim; c++) {
        char text[120];
        snprintf(text, sizeof text, "%s, %s", what, name[n]);
        value_check(oracle_get(d, b, h, t, c), more + cube_at(&sum, b, h, t)[c],
                    tolerance * r->most[n] + 1e-9 + 4e-7 * fabs(more), d->dtype, text, b, h, t, c);
      }
    }
  }
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void back_of_user(void *user, float *d_x, const float *d_y, const float *y, const float *x,
                         int64_t n, int64_t m, int64_t dk, int64_t head, int is_key) {
  (void)user, (void)head, (void)is_key, (void)y;
  for (int64_t i = 0; i < n; i++, d_x += dk, x += dk, d_y += m)
    for (int64_t c = 0; c < dk; c++) d_x[c] = d_y[c] + 2 * x[c] * d_y[dk + c];
}

/* Maps whose sums stay away from 0, or which do not divide. */
static void some_params(linear_scene *f, int kind, int n, test_rng *rng) {
  attn_linear_params *p = &f->p;
  const int64_t dk = f->k.dim, directions = test_range(rng, 1, 14);
  const int64_t heads = n % 3 == 1 ? f->q.heads : 1;
  p->rule = (attn_linear_rule)(n % ATTN_LINEAR_COUNT);
  const int delta = p->rule >= ATTN_LINEAR_DELTA;
  p->map = map_of((attn_feature_kind)kind, heads,
                  kind == ATTN_FEATURES_ACT && n % 2 ? 0 : directions, dk, test_u64(rng), ATTN_F32);
  p->map.activation = n % 4 < 2 ? ATTN_ACT_SIGMOID : ATTN_ACT_EXP;
  if (kind == ATTN_FEATURES_USER) p->map.back = back_of_user;
  if (kind == ATTN_FEATURES_ELU1 && n % 4 == 1) p->map.scale = 0.5f, p->map.query_scale = 1.5f;
  p->map.keep_norm = kind == ATTN_FEATURES_RFA && n % 4 == 3 && !delta;
  if (delta) p->map.norm = n % 2 ? ATTN_FEATURE_NORM_L2 : ATTN_FEATURE_NORM_DEFAULT;
  if (delta && (kind == ATTN_FEATURES_RFA || kind == ATTN_FEATURES_USER))
    p->map.norm = ATTN_FEATURE_NORM_L2, p->rule = ATTN_LINEAR_DELTA; /* sums may vanish */
  if (!delta && n % 6 == 5) p->map.norm = ATTN_FEATURE_NORM_L2;
  if (powers(&p->map) && n % 5 == 3) p->map.key_stab = ATTN_STAB_CONST, p->map.key_const = 0.5f;
  p->causal = n % 7 == 6                   ? ATTN_LINEAR_BIDIRECTIONAL
              : p->rule == ATTN_LINEAR_SUM ? ATTN_LINEAR_CAUSAL
                                           : ATTN_LINEAR_CAUSAL_DEFAULT;
  if (p->rule == ATTN_LINEAR_GATED && kind == ATTN_FEATURES_RFA) p->causal = ATTN_LINEAR_CAUSAL;
  if (kind == ATTN_FEATURES_RFA || kind == ATTN_FEATURES_USER)
    p->den = ATTN_LINEAR_DEN_CLAMP, p->eps = 3;
  if (p->map.keep_norm) /* cosines of small angles do not vanish */
    p->map.sigma = 5, p->den = ATTN_LINEAR_DEN_ADD, p->eps = ATTN_ZERO;
  if (p->rule == ATTN_LINEAR_DELTA && n % 2) p->den = ATTN_LINEAR_DEN_ADD;
  if (p->rule == ATTN_LINEAR_DELTA && kind >= ATTN_FEATURES_RFA) p->den = ATTN_LINEAR_DEN_NONE;
  if (n % 3 == 0) p->out_scale = 0.75f;
  if (p->rule == ATTN_LINEAR_SUM) return;
  if (n % 5 < 3)
    p->rate = linear_rates(f, (attn_dtype)(n % 3), n % 2, rng);
  else if (n % 5 == 3) {
    float *rates = test_floats(f->k.heads, 0, rng);
    for (int64_t h = 0; h < f->k.heads; h++) rates[h] = 0.5f + 0.4f / (float)(h + 1);
    p->rate_head = rates;
  } else {
    p->rate_const = 0.875f;
  }
}

static scene *some_scene(int n, int64_t most, test_rng *rng) {
  linear_shape x = linear_plain(1, 1, 1, test_range(rng, 1, 7), test_range(rng, 1, 18));
  x.batch = test_range(rng, 1, 2), x.kv_heads = test_range(rng, 1, 2);
  x.heads = x.kv_heads * test_range(rng, 1, 3);
  x.keys = test_range(rng, 1, most), x.rows = n % 4 ? x.keys : test_range(rng, 1, most);
  x.q_type = (attn_dtype)(n % 3), x.k_type = (attn_dtype)(n / 3 % 3),
  x.v_type = (attn_dtype)(n % 2);
  x.q_layout = (test_layout)(n % TEST_SHARED), x.k_layout = (test_layout)(n / 2 % TEST_SHARED);
  linear_scene *f = linear_build(&x, rng);
  some_params(f, n / ATTN_LINEAR_COUNT % ATTN_FEATURES_COUNT, n, rng);
  if (n % 5 == 2) f->p.kv_len = test_lengths(x.batch, x.keys, rng);
  if (n % 5 == 3) f->p.q_len = test_lengths(x.batch, x.rows, rng);
  if (n % 6 == 4)
    f->p.has_q_off = 1, f->p.q_off = test_range(rng, 0, x.keys) - test_range(rng, 0, x.rows);
  return build(f, n % 4 == 3 ? (attn_dtype)(n % 3) : ATTN_F32, (test_layout)(n % TEST_SHARED), rng);
}

static void label(char *what, size_t size, const scene *s, int n) {
  const attn_linear_params *p = &s->f->p;
  snprintf(what, size, "%d: rule %d, map %d, norm %d, causal %d, den %d, T %d", n, (int)p->rule,
           (int)p->map.kind, (int)p->map.norm, p->causal, (int)p->den, (int)s->f->k.len);
}

void N5_linear_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9510);
  for (int n = 0; n < (int)test_count(210, 70); n++, test_mem_release()) {
    scene *s = some_scene(n, n % 9 ? 24 : 150, &rng);
    const answer want = oracle(s);
    char what[100];
    label(what, sizeof what, s, n);
    promise_run(&s->does);
    check(s, &want, 0, 1e-5, what);
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* More chunks than lie between two marks, and many rows behind the last key. */
void N5_linear_backward_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9511);
  for (int n = 0; n < ATTN_LINEAR_COUNT; n++, test_mem_release()) {
    linear_shape x = linear_plain(1, n == 2 ? 300 : 1300, n == 3 ? 90 : 1300, 3, 4);
    linear_scene *f = linear_build(&x, &rng);
    some_params(f, n == 1 ? ATTN_FEATURES_SOFTMAX : ATTN_FEATURES_ELU1, n, &rng);
    f->p.out_scale = 0, f->p.causal = ATTN_LINEAR_CAUSAL;
    if (n == 3) f->p.has_q_off = 1;
    scene *s = build(f, ATTN_F32, TEST_BHTD, &rng);
    const answer want = oracle(s);
    promise_run(&s->does);
    check(s, &want, 0, 1e-5, "long");
  }
}

/* The loss by forward's own recurrence along random directions: four points on lines of exact numbers. */
void N5_linear_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9512);
  for (int n = 0; n < 4 * ATTN_LINEAR_COUNT; n++, test_mem_release()) {
    linear_shape x = linear_plain(2, 7, 9, 4, 3);
    linear_scene *f = linear_build(&x, &rng);
    some_params(f, n < 2 * ATTN_LINEAR_COUNT ? ATTN_FEATURES_ELU1 : ATTN_FEATURES_ACT, n, &rng);
    attn_tensor *in[4] = {&f->q, &f->k, &f->v, &f->p.rate};
    if (f->p.rule != ATTN_LINEAR_SUM) {
      f->p.rate_head = NULL, f->p.rate_const = 0;
      f->p.rate = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, 1);
      for (int i = 0; i < 18; i++)
        oracle_set(&f->p.rate, 0, i / 9, i % 9, 0, (double)test_range(&rng, 8, 56) / 64);
    }
    for (int i = 0; i < 3; i++) {
      *in[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, i ? 9 : 7, i == 2 ? 3 : 4);
      for (int64_t at = 0; at < 2 * in[i]->len * in[i]->dim; at++) {
        const double t = (double)(2 * test_range(&rng, -80, 80) + 1) / 64; /* none is 0 */
        oracle_set(in[i], 0, at / in[i]->dim / in[i]->len, at / in[i]->dim % in[i]->len,
                   at % in[i]->dim, t);
      }
    }
    scene *s = build(f, ATTN_F32, TEST_BHTD, &rng);
    promise_run(&s->does);
    for (int which = 0; which < (f->p.rate.data ? 4 : 3); which++) {
      const attn_tensor *t = in[which];
      double loss[5] = {0}, slope = 0, size = 0;
      attn_tensor was = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t->len, t->dim);
      attn_tensor way = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t->len, t->dim);
      test_copy(was, *t);
      for (int64_t at = 0; at < 2 * t->len * t->dim; at++) {
        const int64_t h = at / t->dim / t->len, i = at / t->dim % t->len, c = at % t->dim;
        oracle_set(&way, 0, h, i, c, (double)test_range(&rng, -1, 1));
        const double d = oracle_get(s->does.out[which], 0, h, i, c);
        slope += d * oracle_get(&way, 0, h, i, c), size += d * d;
      }
      for (int step = -2; step <= 2; step++) {
        cube unused;
        for (int64_t at = 0; at < 2 * t->len * t->dim; at++) {
          const int64_t h = at / t->dim / t->len, i = at / t->dim % t->len, c = at % t->dim;
          oracle_set(t, 0, h, i, c,
                     oracle_get(&was, 0, h, i, c) + step * oracle_get(&way, 0, h, i, c) / 256);
        }
        const cube o = linear_oracle(f, &unused);
        for (int64_t at = 0; at < 2 * 7 * 3; at++)
          loss[step + 2] += cube_at(&o, 0, at / 21, at / 3 % 7)[at % 3] *
                            oracle_get(&s->d_o, 0, at / 21, at / 3 % 7, at % 3);
      }
      test_copy(*t, was);
      const double want = (8 * (loss[3] - loss[1]) - (loss[4] - loss[0])) * 256 / 12;
      if (!(fabs(slope - want) <= 2e-4 * (sqrt(size) + 1e-2)))
        fail_msg("%d: rule %d, along %d: %g, by differences %g", n, (int)f->p.rule, which, slope,
                 want);
    }
  }
}

/* What is added to, sums over what is shared, each output alone, other chunks and a batch around: the same bits. */
void N5_linear_backward_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9513);
  for (int n = 0; n < 2 * ATTN_LINEAR_COUNT; n++, test_mem_release()) {
    linear_shape x = linear_plain(4, 70, 70, 5, 6);
    x.batch = 2, x.kv_heads = 2;
    x.k_layout = TEST_SHARED;
    linear_scene *f = linear_build(&x, &rng);
    some_params(f, n < ATTN_LINEAR_COUNT ? ATTN_FEATURES_ELU1 : ATTN_FEATURES_SOFTMAX, n, &rng);
    scene *s = build(f, ATTN_F32, TEST_BHTD, &rng), *t = test_mem(sizeof *t);
    const answer want = oracle(s);
    promise_run(&s->does);
    check(s, &want, 0, 1e-5, "whole");
    f->p.chunk = 17;
    for (int only = 0; only < 4; only++) {
      if (!s->does.out[only]) continue;
      *t = *s;
      outputs(t, ATTN_F32, TEST_PADDED), t->does.scene = t;
      attn_tensor *d[4] = {&t->d_q, &t->d_k, &t->d_v, &t->g.d_rate};
      for (int i = 0; i < 4; i++)
        if (i != only) *d[i] = absent();
      promise_run(&t->does);
      test_assert_same(*d[only], *s->does.out[only], "alone");
      test_fill_value(*d[only], 3), t->g.accumulate = 1;
      promise_run(&t->does);
      check(t, &want, 3, 1e-5, "added");
    }
    *t = *s;
    t->does.scene = t, t->does.out[1] = &t->d_k; /* keys that all heads and entries share */
    t->d_k = output(ATTN_F32, TEST_BHTD, 1, 1, 70, 5, &t->does.block[1]);
    t->does.out[0] = &t->d_q, t->does.out[2] = &t->d_v;
    if (s->does.out[3]) t->does.out[3] = &t->g.d_rate;
    promise_run(&t->does);
    check(t, &want, 0, 4e-5, "shared");
  }
}

/* NaN reaches what sees it, or is seen by what sees it, and nothing else; rows and keys that do not exist are not read. */
void N5_linear_backward_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9514);
  for (int n = 0; n < 4 * ATTN_LINEAR_COUNT; n++, test_mem_release()) {
    enum { T = 100, AT = 41 };
    linear_shape x = linear_plain(1, T, T, 4, 5);
    linear_scene *f = linear_build(&x, &rng);
    some_params(f, ATTN_FEATURES_ELU1, n, &rng);
    f->p.causal = ATTN_LINEAR_CAUSAL, f->p.rate_head = NULL;
    scene *s = build(f, ATTN_F32, TEST_BHTD, &rng), *t = test_mem(sizeof *t);
    int32_t len[1] = {T - 7};
    if (n >= 3 * ATTN_LINEAR_COUNT) f->p.kv_len = f->p.q_len = len, f->p.has_q_off = 1;
    promise_run(&s->does);
    *t = *s;
    outputs(t, ATTN_F32, TEST_BHTD), t->does.scene = t;
    if (n >= 3 * ATTN_LINEAR_COUNT) {
      for (int i = T - 7; i < T; i++) {
        test_fill_row(f->q, 0, 0, i, (double)NAN), test_fill_row(f->k, 0, 0, i, (double)NAN);
        test_fill_row(f->v, 0, 0, i, (double)INFINITY);
        test_fill_row(s->d_o, 0, 0, i, (double)NAN);
      }
      promise_run(&t->does);
      for (int i = 0; i < 3; i++) test_assert_same(*t->does.out[i], *s->does.out[i], "not read");
      for (int i = T - 7; i < T; i++) assert_true(oracle_get(&t->d_k, 0, 0, i, 1) == 0);
      continue;
    }
    const int row = n < ATTN_LINEAR_COUNT, value = n < 2 * ATTN_LINEAR_COUNT;
    test_fill_row(row     ? s->d_o
                  : value ? f->v
                          : f->k,
                  0, 0, AT, row ? (double)NAN : (double)INFINITY);
    promise_run(&t->does);
    for (int i = 0; i < T; i++) {
      double q[2], k[2];
      for (int w = 0; w < 2; w++) {
        q[w] = oracle_get(w ? &s->d_q : &t->d_q, 0, 0, i, 1);
        k[w] = oracle_get(w ? &s->d_k : &t->d_k, 0, 0, i, 1);
      }
      if (row) { /* rows do not meet; keys after it are not seen by it */
        assert_true(i == AT ? isnan(q[0]) : fabs(q[0] - q[1]) <= 1e-4 * (1 + fabs(q[1])));
        assert_true(i <= AT || fabs(k[0] - k[1]) <= 1e-4 * (1 + fabs(k[1])));
      } else if (i < AT) { /* rows before the key do not see it */
        assert_true(fabs(q[0] - q[1]) <= 1e-4 * (1 + fabs(q[1])));
      }
    }
  }
}

/* Two calls that hand over a state and its gradient are one; a state of single tokens, and what is added to. */
void N5_linear_backward_state(void **state) {
  (void)state;
  test_rng rng = test_seed(9516);
  for (int n = 0; n < 3 * ATTN_LINEAR_COUNT; n++, test_mem_release()) {
    enum { T = 90 };
    const int64_t cut = n % 2 ? 7 : 41, heads = 2;
    linear_shape x = linear_plain(4, T, T, 5, 6);
    x.kv_heads = 2;
    linear_scene *f = linear_build(&x, &rng);
    attn_linear_params *p = &f->p;
    some_params(f, n < ATTN_LINEAR_COUNT ? ATTN_FEATURES_ELU1 : ATTN_FEATURES_SOFTMAX, n, &rng);
    p->causal = ATTN_LINEAR_CAUSAL, p->rate_head = NULL;
    if (p->map.w.data) p->map.w = linear_w(1, 9, 5, &rng);
    if (p->rule) p->rate = linear_rates(f, ATTN_F32, 0, &rng);
    scene *s = build(f, ATTN_F32, TEST_BHTD, &rng), *t = test_mem(sizeof *t);
    promise_run(&s->does);
    linear_keep(f); /* empty */
    attn_ctx ctx = test_ctx();
    const attn_tensor q = f->q, k = f->k, v = f->v, rate = p->rate, d_o = s->d_o;
    void *const empty = f->start, *const mid = test_mem(p->state_bytes);
    memcpy(mid, empty, p->state_bytes), p->state = mid;
    for (int64_t i = 0, some; i < cut; i += some) { /* forward, token by token */
      some = cut - i < 3 ? cut - i : 3;
      if (p->rule) p->rate = test_rows(rate, i, some);
      assert_int_equal(attn_linear(test_rows(f->o, i, some), test_rows(q, i, some),
                                   test_rows(k, i, some), test_rows(v, i, some), p, &ctx),
                       ATTN_OK);
    }
    const int64_t m = f->s_view.len;
    attn_tensor d_s = absent(), d_z = absent();
    for (int half = 1; half >= 0; half--) {
      const int64_t from = half ? cut : 0, len = half ? T - cut : cut;
      void *const was = test_mem(p->state_bytes);
      f->q = test_rows(q, from, len), f->k = test_rows(k, from, len),
      f->v = test_rows(v, from, len);
      if (p->rule) p->rate = test_rows(rate, from, len);
      p->state = half ? mid : empty;
      memcpy(was, p->state, p->state_bytes);
      *t = *s, t->d_o = test_rows(d_o, from, len);
      outputs(t, ATTN_F32, TEST_BHTD), t->does.scene = t;
      t->g.d_s_end = d_s, t->g.d_z_end = d_z;
      t->g.d_s = test_tensor(half ? ATTN_F32 : ATTN_BF16, TEST_PADDED, 1, heads, m, 6);
      t->g.d_z = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, 1, m);
      test_fill_value(t->g.d_s, 9), test_fill_value(t->g.d_z, 9);
      if (half) promise_keep(&t->does);
      promise_run(&t->does);
      assert_memory_equal(was, p->state, p->state_bytes);
      d_s = t->g.d_s, d_z = t->g.d_z;
      for (int i = 0; i < 4; i++) {
        const attn_tensor *got = t->does.out[i];
        if (!got || !got->data) continue;
        for (int64_t at = 0; at < got->heads * len * got->dim; at++) {
          const int64_t h = at / got->dim / len, r = at / got->dim % len, c = at % got->dim;
          const double want = oracle_get(s->does.out[i], 0, h, from + r, c);
          value_check(oracle_get(got, 0, h, r, c), want, 2e-5 * (1 + fabs(want)), ATTN_F32,
                      half ? "second" : "first", i, h, r, c);
        }
      }
    }
    t->g.accumulate = 1; /* added to; and no keys: what comes goes */
    f->q = test_rows(q, 0, 0), f->k = test_rows(k, 0, 0), f->v = test_rows(v, 0, 0);
    if (p->rule) p->rate = test_rows(rate, 0, 0);
    t->d_o = test_rows(d_o, 0, 0), t->d_q = t->d_k = t->d_v = t->g.d_rate = absent();
    t->g.d_s_end = drawn(ATTN_F32, TEST_BHTD, 1, heads, m, 6, 1, &rng);
    t->g.d_z_end = absent(), t->g.d_s = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, m, 6);
    test_fill_value(t->g.d_s, 3), test_fill_value(t->g.d_z, 9);
    promise_run(&t->does);
    for (int64_t r = 0; r < m; r++) {
      assert_true(oracle_get(&t->g.d_s, 0, 1, r, 2) ==
                  (double)(3 + (float)oracle_get(&t->g.d_s_end, 0, 1, r, 2)));
      assert_true(oracle_get(&t->g.d_z, 0, 1, 0, r) == 9);
    }
    t->d_q = f->q; /* of no rows */
    t->g.d_s = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, m, 5);
    promise_reject(&t->does, ATTN_E_SHAPE, "d_s");
    t->g.d_s = f->s_view;
    p->state = f->start;
    promise_run(&t->does);
  }
}

void N5_linear_backward_refused(void **state) {
  (void)state;
  test_rng rng = test_seed(9515);
  linear_shape x = linear_plain(2, 5, 6, 4, 3);
  linear_scene *f = linear_build(&x, &rng);
  f->p.rule = ATTN_LINEAR_DECAY, f->p.rate = linear_rates(f, ATTN_F32, 0, &rng);
  scene *s = build(f, ATTN_F32, TEST_BHTD, &rng);
#define REFUSE_(status, word, change)       \
  {                                         \
    const scene was = *s;                   \
    const linear_scene then = *f;           \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was, *f = then;                    \
  }
  REFUSE_(ATTN_E_SHAPE, "d_q", s->d_q.len = 4)
  REFUSE_(ATTN_E_SHAPE, "d_k", s->d_k.dim = 3)
  REFUSE_(ATTN_E_SHAPE, "d_v", s->d_v.heads = 1)
  REFUSE_(ATTN_E_SHAPE, "d_rate", s->g.d_rate.len = 5)
  REFUSE_(ATTN_E_SHAPE, "d_o", s->d_o.dim = 2)
  REFUSE_(ATTN_E_NULL, "d_o", s->d_o.data = NULL)
  REFUSE_(ATTN_E_NULL, "q", f->q.data = NULL)
  REFUSE_(ATTN_E_NULL, "d_rate", f->p.rule = ATTN_LINEAR_SUM; f->p.rate = absent())
  REFUSE_(ATTN_E_SHAPE, "d_rate", f->p.rate = absent(); f->p.rate_const = 0.5f)
  REFUSE_(ATTN_E_DTYPE, "d_k", s->d_k.dtype = ATTN_I8)
  REFUSE_(ATTN_E_RANGE, "accumulate", s->g.accumulate = 2)
  REFUSE_(ATTN_E_RANGE, "rule", f->p.rule = ATTN_LINEAR_COUNT)
  REFUSE_(ATTN_E_RANGE, "chunk", f->p.chunk = 65)
  REFUSE_(ATTN_E_SHAPE, "state", f->p.state = &x; f->p.state_bytes = 8)
  REFUSE_(ATTN_E_NULL, "state", s->g.d_s = s->d_k)
  REFUSE_(ATTN_E_VALUE, "rate", oracle_set(&f->p.rate, 0, 1, 2, 0, 1.5))
  oracle_set(&f->p.rate, 0, 1, 2, 0, 0.5);
  REFUSE_(ATTN_E_OVERLAP, "d_q", s->d_q = f->q)
  REFUSE_(ATTN_E_OVERLAP, "d_rate", s->g.d_rate = f->p.rate)
  REFUSE_(ATTN_E_NULL, "map.back", f->p.map = map_of(ATTN_FEATURES_USER, 1, 0, 4, 0, ATTN_F32))
}
