/* tests/families/lowrank/landmarks.c owns the float64 formulas of attention through landmarks. */

#include "landmarks.h"

static attn_status call(void *at, attn_ctx *ctx) {
  landmarks *s = at;
  return s->solve ? attn_csalr(s->o, s->q, s->k, s->v, &s->c, ctx)
                  : attn_nystrom(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  landmarks *s = at;
  return s->solve ? attn_csalr_workspace(s->o, s->q, s->k, s->v, &s->c, ctx)
                  : attn_nystrom_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

landmarks_shape landmarks_plain(int64_t queries, int64_t keys, int64_t dk, int64_t dv) {
  landmarks_shape x = {1,  2,        2,        2,        queries,  keys,      dk,
                       dv, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, TEST_BHTD, 1};
  return x;
}

landmarks *landmarks_build(const landmarks_shape *x, int solve, test_rng *rng) {
  landmarks *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = x->batch;
  s->q = drawn(x->q_type, x->layout, b, x->heads, x->queries, x->dk, x->size, rng);
  s->k = drawn(x->k_type, TEST_PADDED, b, x->k_heads, x->keys, x->dk, x->size, rng);
  s->v = drawn(x->v_type, TEST_NEGATIVE, b, x->v_heads, x->keys, x->dv, 1, rng);
  s->o = output(x->o_type, TEST_PADDED, b, x->heads, x->queries, x->dv, &s->does.block[0]);
  s->solve = solve;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

void landmarks_set(landmarks *s, int64_t m, float scale, const int32_t *kv_len,
                   const int32_t *q_len) {
  s->p.landmarks = s->c.landmarks = m, s->p.scale = s->c.scale = scale;
  s->p.kv_len = s->c.kv_len = kv_len, s->p.q_len = s->c.q_len = q_len;
}

void landmarks_peaked(landmarks *s, test_rng *rng) {
  for (int64_t n = 0; n < s->q.batch * s->q.heads * s->q.len; n++) {
    const int64_t b = n / s->q.len / s->q.heads, h = n / s->q.len % s->q.heads, i = n % s->q.len;
    for (int64_t c = 0; c < s->q.dim; c++) {
      const double x = (c == i % s->q.dim ? 3 : 0) + 0.1 * test_normal(rng);
      oracle_set(&s->q, b, h, i, c, x);
      oracle_set(&s->k, b, h, i, c, x);
    }
  }
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* y[n][p] = x[n][m] w[m][p] */
static void times(double *y, const double *x, const double *w, int64_t n, int64_t m, int64_t p) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < p; j++) {
      double sum = 0;
      for (int64_t c = 0; c < m; c++) sum += x[i * m + c] * w[c * p + j];
      y[i * p + j] = sum;
    }
}

/* p[n] = softmax of s q . k_j for keys [n][dk], of those that exist */
static void weights(double *p, const double *q, const double *k, const uint8_t *there, int64_t n,
                    int64_t dk, double s) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t j = 0; j < n; j++) {
    p[j] = 0;
    for (int64_t c = 0; c < dk; c++) p[j] += s * q[c] * k[j * dk + c];
    if (there && !there[j]) p[j] = -(double)INFINITY;
    top = fmax(top, p[j]);
  }
  for (int64_t j = 0; j < n; j++) sum += p[j] = p[j] > -(double)INFINITY ? exp(p[j] - top) : 0;
  for (int64_t j = 0; j < n && sum > 0; j++) p[j] /= sum;
}

static double *room(int64_t n) { return test_mem((size_t)(n + 1) * sizeof(double)); }

/* The first n rows of one head. */
static double *rows(const attn_tensor *t, int64_t b, int64_t h, int64_t n) {
  double *x = room(n * t->dim);
  for (int64_t i = 0; i < n * t->dim; i++) x[i] = oracle_get(t, b, h, i / t->dim, i % t->dim);
  return x;
}

/* Of the rows that exist; some[a]: segment a has one. */
static double *means(const double *x, const uint8_t *there, uint8_t *some, int64_t n, int64_t m,
                     int64_t d) {
  double *y = room(m * d);
  for (int64_t a = 0; a < m; a++)
    for (int64_t c = 0; c < d; c++) {
      const int64_t from = a * n / m, to = (a + 1) * n / m;
      double sum = 0, count = 0;
      for (int64_t i = from; i < to; i++)
        if (!there || there[i]) sum += x[i * d + c], count++;
      y[a * d + c] = count > 0 ? sum / count : 0, some[a] = count > 0;
    }
  return y;
}

/* by_batch: the largest column and row sums are looked for, then given. */
static struct {
  int look, have;
  double across, down;
} batch;

static void inverse(double *z, const double *a, int64_t m, int64_t iterations) {
  double across = 0, down = 0, *y = room(m * m), *t = room(m * m), *u = room(m * m);
  for (int64_t i = 0; i < m; i++) {
    double row = 0, column = 0;
    for (int64_t j = 0; j < m; j++) row += fabs(a[i * m + j]), column += fabs(a[j * m + i]);
    across = fmax(across, row), down = fmax(down, column);
  }
  if (batch.look) batch.across = fmax(batch.across, across), batch.down = fmax(batch.down, down);
  if (batch.have) across = batch.across, down = batch.down;
  for (int64_t i = 0; i < m * m; i++)
    z[i] = across > 0 ? a[i % m * m + i / m] / (across * down) : 0;
  while (iterations-- > 0) {
    static const double steps[] = {15, 13};
    times(y, a, z, m, m, m);
    for (int64_t i = 0; i < m * m; i++) t[i] = (i / m == i % m ? 7 : 0) - y[i];
    for (int n = 0; n < 2; n++) {
      times(u, y, t, m, m, m);
      for (int64_t i = 0; i < m * m; i++) t[i] = (i / m == i % m ? steps[n] : 0) - u[i];
    }
    times(u, z, t, m, m, m);
    for (int64_t i = 0; i < m * m; i++) z[i] = u[i] / 4;
  }
}

/* x[m][n] = (a + lambda I)^-1 b: Gauss and Jordan, the largest of all pivots left each time. */
static void solve(double *x, const double *a, const double *b, double lambda, int64_t m,
                  int64_t n) {
  const int64_t w = m + n;
  double *t = room(m * w);
  int64_t *done = test_mem((size_t)(m + 1) * sizeof *done), *of = test_mem((size_t)(m + 1) * 8);
  for (int64_t i = 0; i < m; i++) {
    done[i] = 0;
    for (int64_t j = 0; j < w; j++)
      t[i * w + j] = j < m ? a[i * m + j] + (i == j ? lambda : 0) : b[i * n + j - m];
  }
  for (int64_t step = 0; step < m; step++) {
    int64_t pi = -1, pj = 0;
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < m && !done[i]; j++)
        if (pi < 0 || fabs(t[i * w + j]) > fabs(t[pi * w + pj])) pi = i, pj = j;
    done[pi] = 1, of[pj] = pi;
    for (int64_t i = 0; i < m; i++) {
      const double f = i == pi ? 0 : t[i * w + pj] / t[pi * w + pj];
      for (int64_t j = 0; j < w && f != 0; j++) t[i * w + j] -= f * t[pi * w + j];
    }
  }
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) x[i * n + j] = t[of[i] * w + m + j] / t[of[i] * w + i];
}

/* x[m][dv], what F is multiplied by, for a map between landmarks. */
static void values(const landmarks *s, double *x, const double *a, const double *bv, int64_t m) {
  const float l = s->c.lambda;
  const double lambda = l != 0 ? (double)l : signbit(l) ? 0 : 1;
  const int64_t iterations = s->p.has_iterations || s->p.iterations ? s->p.iterations : 6;
  double *z = room(m * m);
  if (s->solve) {
    solve(x, a, bv, lambda, m, s->v.dim);
    for (int64_t i = 0; i < m * s->v.dim && s->c.renormalize; i++) x[i] *= 1 + lambda;
    return;
  }
  inverse(z, a, m, iterations);
  times(x, z, bv, m, m, s->v.dim);
}

/* The rows of one head, and by how much rounding may move them. */
static double head(const landmarks *s, int64_t b, int64_t h, double *o) {
  const int64_t dk = s->q.dim, dv = s->v.dim, n_max = s->q.len;
  const int64_t nq = s->p.q_len ? s->p.q_len[b] : s->q.len;
  const int64_t nk = s->p.kv_len ? s->p.kv_len[b] : s->k.len;
  const int64_t wanted = s->p.landmarks ? s->p.landmarks : 64, most = nq > nk ? nq : nk;
  const int64_t m = wanted < nq && wanted < nk ? wanted : nq < nk ? nq : nk;
  const double scale = scale_of(s->p.scale, dk);
  for (int64_t i = 0; i < n_max * dv; i++) o[i] = 0;
  if (m == 0) return 0;
  const double *q = rows(&s->q, b, h, nq), *k = rows(&s->k, b, head_of(&s->k, h, s->q.heads), nk);
  const double *v = rows(&s->v, b, head_of(&s->v, h, s->q.heads), nk);
  const uint8_t *there = s->p.valid && !s->solve ? s->p.valid + b * s->k.len : NULL;
  double *p = room(nk), moved = 0, size = 1;
  if (!s->solve && !s->p.always && wanted >= most) {
    for (int64_t i = 0; i < nq; i++) {
      weights(p, q + i * dk, k, there, nk, dk, scale);
      times(o + i * dv, p, v, 1, nk, dv);
    }
  } else {
    uint8_t *seen_q = test_mem((size_t)m), *seen_k = test_mem((size_t)m);
    const double *qt = means(q, there, seen_q, nq, m, dk);
    const double *kt = means(k, there, seen_k, nk, m, dk);
    double *a = room(m * m), *bv = room(m * dv), *x = room(m * dv), *y = room(m * dv);
    for (int64_t i = 0; i < m; i++) {
      weights(a + i * m, qt + i * dk, kt, seen_k, m, dk, scale);
      for (int64_t e = 0; e < m && !seen_q[i]; e++) a[i * m + e] = 0;
      weights(p, qt + i * dk, k, there, nk, dk, scale);
      times(bv + i * dv, p, v, 1, nk, dv);
    }
    values(s, x, a, bv, m);
    if (batch.look) return 0;
    for (int64_t i = 0; i < nq; i++) {
      weights(p, q + i * dk, kt, seen_k, m, dk, scale);
      times(o + i * dv, p, x, 1, m, dv);
    }
    for (int64_t i = 0; i < m * m; i++) a[i] *= 1 + (i * 7 % 5 < 2 ? 5e-7 : -5e-7);
    for (int64_t i = 0; i < m * dv; i++) bv[i] += (i * 5 % 7 < 3 ? 3e-7 : -3e-7);
    values(s, y, a, bv, m);
    for (int64_t i = 0; i < m * dv; i++)
      moved = fmax(moved, fabs(y[i] - x[i])), size = fmax(size, fabs(x[i]));
  }
  const attn_tensor *conv = &s->p.conv;
  for (int64_t i = 0; i < nq * dv && conv->data && !s->solve; i++)
    for (int64_t r = 0; r < conv->len; r++) {
      const int64_t t = i / dv + r - conv->len / 2;
      if (t < 0 || t >= nk || (there && !there[t])) continue;
      o[i] += oracle_get(conv, 0, conv->heads > 1 ? h : 0, r, 0) * v[t * dv + i % dv];
    }
  for (int64_t i = 0; i < nq * dv && there; i++)
    if (!there[i / dv]) o[i] = 0;
  return 1e-5 * size + 4 * moved;
}

void landmarks_check(const landmarks *s, const char *what) {
  double *o = room(s->q.len * s->v.dim);
  memset(&batch, 0, sizeof batch);
  batch.look = s->p.by_batch;
  for (int64_t n = 0; batch.look && n < s->q.batch * s->q.heads; n++)
    head(s, n / s->q.heads, n % s->q.heads, o);
  batch.have = batch.look, batch.look = 0;
  for (int64_t n = 0; n < s->q.batch * s->q.heads; n++) {
    const int64_t b = n / s->q.heads, h = n % s->q.heads, dv = s->v.dim;
    const double tolerance = head(s, b, h, o);
    for (int64_t i = 0; i < s->q.len * dv; i++)
      value_check(oracle_get(&s->o, b, h, i / dv, i % dv), o[i], tolerance, s->o.dtype, what, b, h,
                  i / dv, i % dv);
  }
}

void landmarks_run(landmarks *s, const char *what) {
  promise_run(&s->does);
  landmarks_check(s, what);
}
