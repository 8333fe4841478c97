/* tests/families/linear/linear.c owns the scene of attn_linear and its recurrence in float64. */

#include "linear.h"

linear_shape linear_plain(int64_t heads, int64_t rows, int64_t keys, int64_t dk, int64_t dv) {
  linear_shape x = {1,        heads,     heads,     rows,      keys,
                    dk,       dv,        ATTN_F32,  ATTN_F32,  ATTN_F32,
                    ATTN_F32, TEST_BHTD, TEST_BHTD, TEST_BHTD, TEST_BHTD};
  return x;
}

static attn_status call(void *at, attn_ctx *ctx) {
  linear_scene *s = at;
  if (!s->p.state) return attn_linear(s->o, s->q, s->k, s->v, &s->p, ctx);
  void *now = test_mem(s->p.state_bytes);
  memcpy(now, s->p.state, s->p.state_bytes);
  memcpy(s->p.state, s->start, s->p.state_bytes);
  const attn_status status = attn_linear(s->o, s->q, s->k, s->v, &s->p, ctx);
  if (status != ATTN_OK) { /* rejected: what it began with stays, and goes */
    assert_memory_equal(s->p.state, s->start, s->p.state_bytes);
    memcpy(s->p.state, now, s->p.state_bytes);
  }
  return status;
}
static size_t ask(void *at, const attn_ctx *ctx) {
  linear_scene *s = at;
  return attn_linear_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

linear_scene *linear_build(const linear_shape *x, test_rng *rng) {
  linear_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(x->q_type, x->q_layout, x->batch, x->heads, x->rows, x->dk, 1, rng);
  s->k = drawn(x->k_type, x->k_layout, x->batch, x->kv_heads, x->keys, x->dk, 1, rng);
  s->v = drawn(x->v_type, x->v_layout, x->batch, x->kv_heads, x->keys, x->dv, 1, rng);
  s->o = output(x->o_type, x->o_layout, x->batch, x->heads, x->rows, x->dv, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

attn_tensor linear_w(int64_t heads, int64_t d, int64_t dk, test_rng *rng) {
  return drawn(ATTN_F32, TEST_BHTD, 1, heads, d, dk, 1, rng);
}

attn_tensor linear_rates(const linear_scene *s, attn_dtype type, int shared, test_rng *rng) {
  attn_tensor r =
      test_tensor(type, TEST_PADDED, shared ? 1 : s->k.batch, shared ? 1 : s->k.heads, s->k.len, 1);
  for (int64_t b = 0; b < r.batch; b++)
    for (int64_t h = 0; h < r.heads; h++)
      for (int64_t j = 0; j < r.len; j++) {
        const int64_t pick = test_range(rng, 0, 40);
        const double u = (double)test_range(rng, 0, 256) / 256;
        oracle_set(&r, b, h, j, 0, pick == 0 ? 0 : pick < 4 ? 1 : pick < 20 ? u : 1 - u / 16);
      }
  return r;
}

void linear_keep(linear_scene *s) {
  attn_ctx ctx = test_ctx();
  linear_scene *a = s;
  const int64_t dk = a->k.dim, dv = a->v.dim, b = a->q.batch;
  a->p.state_bytes = attn_linear_state_bytes(&a->p, b, a->q.heads, a->k.heads, dk, dv);
  assert_true(a->p.state_bytes > 0);
  a->p.state = test_mem(a->p.state_bytes);
  a->start = test_mem(a->p.state_bytes);
  assert_int_equal(
      attn_linear_begin(a->start, a->p.state_bytes, &a->p, b, a->q.heads, a->k.heads, dk, dv, &ctx),
      ATTN_OK);
  memcpy(a->p.state, a->start, a->p.state_bytes);
  assert_int_equal(attn_linear_view(a->p.state, a->p.state_bytes, &a->s_view, &a->z_view, &ctx),
                   ATTN_OK);
  a->does.out[1] = &a->s_view, a->does.out[2] = &a->z_view;
  a->does.block[1].data = a->p.state, a->does.block[1].size = a->p.state_bytes;
}

void linear_go_on(linear_scene *s) { memcpy(s->start, s->p.state, s->p.state_bytes); }

/* ---- the recurrence -------------------------------------------------------------------------*/

static double or_default(float x, double usual) {
  return x != 0.0f ? (double)x : signbit(x) ? 0.0 : usual;
}

/* The stabiliser of keys without which eps means nothing: the largest u of a batch entry and head. */
static double largest(const linear_scene *s, int64_t b, int64_t head, int64_t kv, int64_t keys) {
  const attn_feature_map *f = &s->p.map;
  const double scale = sqrt(or_default(f->scale, pow((double)s->k.dim, -0.5)));
  double top = -(double)INFINITY;
  for (int64_t j = 0; j < keys; j++)
    for (int64_t r = 0; r < f->w.len; r++) {
      double u = 0;
      for (int64_t c = 0; c < s->k.dim; c++)
        u += oracle_get(&f->w, 0, f->w.heads > 1 ? head : 0, r, c) * scale *
             oracle_get(&s->k, b, kv, j, c);
      top = fmax(top, f->kind == ATTN_FEATURES_HYPERBOLIC ? fabs(u) : u);
    }
  return top;
}

static double activated(attn_activation f, double x) {
  switch (f) {
    case ATTN_ACT_RELU: return x > 0 ? x : 0;
    case ATTN_ACT_EXP: return exp(x);
    case ATTN_ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ATTN_ACT_DEFAULT: return x;
    case ATTN_ACT_NONE: return x;
    default: fail_msg("no oracle for activation %d", (int)f); return 0;
  }
}

static int norm_of(const linear_scene *s) {
  const int kind = (int)s->p.map.norm, delta = s->p.rule >= ATTN_LINEAR_DELTA;
  if (kind != ATTN_FEATURE_NORM_DEFAULT) return kind;
  return delta ? ATTN_FEATURE_NORM_SUM : ATTN_FEATURE_NORM_NONE;
}

/* y = phi(x); c is the stabiliser to subtract, eps what is added. Where they cancel both are 0. */
static void phi(const linear_scene *s, double *y, int64_t m, const double *x, int64_t head, int key,
                double c, double eps) {
  const attn_feature_map *f = &s->p.map;
  const int64_t dk = s->k.dim;
  const int positive = f->kind == ATTN_FEATURES_SOFTMAX || f->kind == ATTN_FEATURES_HYPERBOLIC;
  const double scale = sqrt(or_default(f->scale, positive ? pow((double)dk, -0.5) : 1));
  double norm = 0, sum = 0, top = -(double)INFINITY, u[512];
  assert_true(m + 2 * dk <= 512);
  for (int64_t i = 0; i < dk; i++) norm += x[i] * x[i];
  for (int64_t r = 0; f->w.data && r < f->w.len; r++) {
    u[r] = 0;
    for (int64_t i = 0; i < dk; i++)
      u[r] += oracle_get(&f->w, 0, f->w.heads > 1 ? head : 0, r, i) * scale * x[i];
    top = fmax(top, f->kind == ATTN_FEATURES_HYPERBOLIC ? fabs(u[r]) : u[r]);
  }
  switch (f->kind) {
    case ATTN_FEATURES_ELU1:
      for (int64_t i = 0; i < dk; i++) {
        const double t = x[i] * scale * (key ? 1 : or_default(f->query_scale, 1));
        y[i] = t > 0 ? t + 1 : exp(t);
      }
      break;
    case ATTN_FEATURES_ACT:
      for (int64_t r = 0; r < m; r++)
        y[r] = activated(f->activation, f->w.data ? u[r] : x[r] * scale) +
               or_default(f->kernel_eps, f->w.data ? 1e-3 : 0);
      break;
    case ATTN_FEATURES_DPFP:
      for (int64_t i = 0; i < dk; i++) u[i] = fmax(x[i], 0), u[dk + i] = fmax(-x[i], 0);
      for (int64_t r = 1; r <= m / (2 * dk); r++)
        for (int64_t j = 0; j < 2 * dk; j++)
          y[(r - 1) * 2 * dk + j] = u[j] * u[(j - r + 2 * dk) % (2 * dk)];
      break;
    case ATTN_FEATURES_RFA: {
      const double sigma = or_default(f->sigma, 1), by = f->keep_norm ? 1 : fmax(sqrt(norm), 1e-6);
      const double grow = f->keep_norm && key ? exp(norm / (2 * sigma * sigma)) : 1;
      for (int64_t r = 0; r < m / 2; r++) {
        y[r] = sin(u[r] / by / sigma) * grow / sqrt((double)m / 2);
        y[m / 2 + r] = cos(u[r] / by / sigma) * grow / sqrt((double)m / 2);
      }
    } break;
    case ATTN_FEATURES_SOFTMAX:
    case ATTN_FEATURES_HYPERBOLIC: {
      const double n = norm * scale * scale / 2, stab = key ? c : eps > 0 ? top : 0;
      for (int64_t r = 0; r < f->w.len; r++) {
        y[r] = (exp(u[r] - n - stab) + eps) / sqrt((double)m);
        if (m > f->w.len) y[f->w.len + r] = (exp(-u[r] - n - stab) + eps) / sqrt((double)m);
      }
    } break;
    default: { /* the callback's results, which are exact enough */
      float from[64], to[128];
      for (int64_t i = 0; i < dk; i++) from[i] = (float)x[i];
      f->fn(f->user, to, from, 1, m, dk, head, key);
      for (int64_t i = 0; i < m; i++) y[i] = (double)to[i];
    }
  }
  const int kind = norm_of(s);
  if (kind == ATTN_FEATURE_NORM_NONE) return;
  for (int64_t r = 0; r < m; r++) sum += kind == ATTN_FEATURE_NORM_SUM ? y[r] : y[r] * y[r];
  if (kind == ATTN_FEATURE_NORM_L2) sum = sqrt(sum);
  for (int64_t r = 0; r < m; r++) y[r] = sum == 0 ? 0 : y[r] / sum;
}

static double rate_of(const linear_scene *s, int64_t b, int64_t kv, int64_t j) {
  const attn_tensor *t = &s->p.rate;
  if (t->data) return oracle_get(t, t->batch > 1 ? b : 0, t->heads > 1 ? kv : 0, j, 0);
  if (s->p.rate_head) return (double)s->p.rate_head[kv];
  return or_default(s->p.rate_const, 1);
}

/* One row reads: o and how large the sums are that may round. */
static void row_reads(const linear_scene *s, double *o, double *size, const double *p,
                      const double *st, const double *sa, const double *z, const double *za,
                      int64_t m) {
  const int64_t dv = s->v.dim;
  int den = (int)s->p.den;
  if (den == ATTN_LINEAR_DEN_DEFAULT)
    den = s->p.rule == ATTN_LINEAR_DELTA       ? ATTN_LINEAR_DEN_NONE
          : s->p.map.kind == ATTN_FEATURES_RFA ? ATTN_LINEAR_DEN_CLAMP
                                               : ATTN_LINEAR_DEN_ADD;
  const double eps = or_default(s->p.eps, den == ATTN_LINEAR_DEN_CLAMP          ? 1e-4
                                          : s->p.map.kind == ATTN_FEATURES_ELU1 ? 1e-6
                                                                                : 0);
  const double scale = or_default(s->p.out_scale, 1);
  double d = 0, da = 0;
  for (int64_t r = 0; r < m; r++) d += p[r] * z[r], da += fabs(p[r]) * za[r];
  if (den == ATTN_LINEAR_DEN_ADD) d += eps;
  if (den == ATTN_LINEAR_DEN_CLAMP) d = fmax(d, eps);
  if (den == ATTN_LINEAR_DEN_NONE) d = 1, da = 0;
  for (int64_t c = 0; c < dv; c++) {
    double num = 0, na = 0;
    for (int64_t r = 0; r < m; r++) num += p[r] * st[r * dv + c], na += fabs(p[r]) * sa[r * dv + c];
    o[c] = d == 0 ? 0 : num / d * scale;
    size[c] = d == 0 ? 0 : fabs(scale) * (na / fabs(d) + fabs(num / d) * da / fabs(d));
  }
}

/* One key: S and z, and the sums of magnitudes beside them. */
static void key_joins(const linear_scene *s, double *st, double *sa, double *z, double *za,
                      const double *p, int64_t m, const attn_tensor *v, int64_t b, int64_t kv,
                      int64_t j, int *seen) {
  const int64_t dv = v->dim;
  const double a = rate_of(s, b, kv, j);
  const int decays = s->p.rule == ATTN_LINEAR_DECAY || s->p.rule == ATTN_LINEAR_GATED;
  const double keep = decays ? a : 1, by = s->p.rule == ATTN_LINEAR_GATED ? 1 - a : 1;
  double kappa = 1;
  if (s->p.rule == ATTN_LINEAR_DELTA_ATTN && *seen) {
    kappa = 0;
    for (int64_t r = 0; r < m; r++) kappa += z[r] * p[r];
  }
  for (int64_t c = 0; c < dv; c++) {
    double value = oracle_get(v, b, kv, j, c), old = 0, size = fabs(value);
    if (s->p.rule >= ATTN_LINEAR_DELTA) {
      for (int64_t r = 0; r < m; r++) old += p[r] * st[r * dv + c];
      for (int64_t r = 0; r < m; r++)
        size += kappa == 0 ? 0 : fabs(p[r]) * sa[r * dv + c] / fabs(kappa);
      value = a * (value - (kappa == 0 ? 0 : old / kappa));
      size *= fabs(a);
    }
    for (int64_t r = 0; r < m; r++) {
      st[r * dv + c] = keep * st[r * dv + c] + by * p[r] * value;
      sa[r * dv + c] = keep * sa[r * dv + c] + by * fabs(p[r]) * size;
    }
  }
  for (int64_t r = 0; r < m; r++)
    z[r] = keep * z[r] + by * p[r], za[r] = keep * za[r] + by * fabs(p[r]);
  *seen = 1;
}

cube linear_oracle(linear_scene *s, cube *size) {
  const attn_feature_map *f = &s->p.map;
  const int64_t b_count = s->q.batch, heads = f->w.data && f->w.heads > 1 ? s->q.heads : s->k.heads;
  const int64_t m = attn_feature_count(f, s->k.dim), dv = s->v.dim, dk = s->k.dim;
  const int64_t group = s->q.heads / heads, units = b_count * heads, floats = m * dv;
  const int64_t off = s->p.has_q_off ? s->p.q_off : s->k.len - s->q.len;
  cube o = cube_of(b_count, s->q.heads, s->q.len, dv);
  *size = cube_of(b_count, s->q.heads, s->q.len, dv);
  assert_true(m > 0);
  if (!s->s || !s->p.state) {
    s->s = test_mem((size_t)(2 * units * floats + 1) * 8);
    s->z = test_mem((size_t)(2 * units * m + 1) * 8);
    s->seen = test_mem((size_t)(units + 1) * sizeof(int));
    for (int64_t i = 0; i < 2 * units * floats; i++) s->s[i] = 0;
    for (int64_t i = 0; i < 2 * units * m; i++) s->z[i] = 0;
    for (int64_t i = 0; i < units; i++) s->seen[i] = 0;
  }
  double *p = test_mem((size_t)m * 8), *x = test_mem((size_t)dk * 8);
  for (int64_t u = 0; u < units; u++) {
    const int64_t b = u / heads, head = u % heads, kv = head / (heads / s->k.heads);
    const int64_t keys = s->p.kv_len ? s->p.kv_len[b] : s->k.len;
    const int64_t rows = s->p.q_len ? s->p.q_len[b] : s->q.len;
    double *st = s->s + 2 * u * floats, *z = s->z + 2 * u * m, c = 0, eps = 0;
    const int positive = f->kind == ATTN_FEATURES_SOFTMAX || f->kind == ATTN_FEATURES_HYPERBOLIC;
    if (positive && f->key_stab == ATTN_STAB_CONST)
      c = (double)f->key_const, eps = or_default(f->eps, 1e-4);
    else if (positive && !linear_causal(&s->p) && f->key_stab <= ATTN_STAB_GLOBAL && !s->p.state &&
             norm_of(s) == ATTN_FEATURE_NORM_NONE)
      c = largest(s, b, head, kv, keys), eps = or_default(f->eps, 1e-4);
    for (int64_t j = -1; j < keys; j++) {
      if (j >= 0) {
        for (int64_t i = 0; i < dk; i++) x[i] = oracle_get(&s->k, b, kv, j, i);
        phi(s, p, m, x, head, 1, c, eps);
        key_joins(s, st, st + floats, z, z + m, p, m, &s->v, b, kv, j, &s->seen[u]);
      }
      for (int64_t i = 0; i < s->q.len; i++) {
        const int64_t at = linear_causal(&s->p) ? i + off : keys - 1,
                      stop = at < keys ? at : keys - 1;
        const int none =
            i >= rows || (linear_causal(&s->p) && at < 0) || (keys == 0 && !s->p.state);
        for (int64_t g = 0; g < group; g++) {
          double *to = cube_at(&o, b, head * group + g, i),
                 *by = cube_at(size, b, head * group + g, i);
          if (none && j < 0)
            for (int64_t n = 0; n < dv; n++) to[n] = by[n] = 0;
          if (none || stop != j) continue;
          for (int64_t n = 0; n < dk; n++) x[n] = oracle_get(&s->q, b, head * group + g, i, n);
          phi(s, p, m, x, head * group + g, 0, 0, eps);
          row_reads(s, to, by, p, st, st + floats, z, z + m, m);
        }
      }
    }
  }
  return o;
}

void linear_check(linear_scene *s, double tolerance, const char *what) {
  cube size, want = linear_oracle(s, &size);
  promise_run(&s->does);
  for (int64_t n = 0; n < want.batch * want.heads * want.len; n++) {
    const int64_t b = n / want.len / want.heads, h = n / want.len % want.heads, i = n % want.len;
    for (int64_t c = 0; c < want.dim; c++)
      value_check(oracle_get(&s->o, b, h, i, c), cube_at(&want, b, h, i)[c],
                  tolerance * cube_at(&size, b, h, i)[c], s->o.dtype, what, b, h, i, c);
  }
  const attn_feature_map *f = &s->p.map;
  const int stab = f->kind == ATTN_FEATURES_SOFTMAX || f->kind == ATTN_FEATURES_HYPERBOLIC ||
                   f->kind == ATTN_FEATURES_RFA;
  if (!s->p.state || stab) return;
  attn_ctx ctx = test_ctx(); /* brings S up to date */
  assert_int_equal(attn_linear_view(s->p.state, s->p.state_bytes, NULL, NULL, &ctx), ATTN_OK);
  const int64_t m = s->s_view.len, dv = s->s_view.dim;
  for (int64_t n = 0; n < s->s_view.batch * s->s_view.heads * m; n++) {
    const int64_t u = n / m, r = n % m, b = u / s->s_view.heads, h = u % s->s_view.heads;
    const double *st = s->s + 2 * u * m * dv, *z = s->z + 2 * u * m;
    for (int64_t c = 0; c < dv; c++)
      value_check(oracle_get(&s->s_view, b, h, r, c), st[r * dv + c],
                  tolerance * st[m * dv + r * dv + c], ATTN_F32, what, b, h, r, c);
    value_check(oracle_get(&s->z_view, b, h, 0, r), z[r], tolerance * z[m + r], ATTN_F32, what, b,
                h, -1, r);
  }
}
