/* tests/families/training/test_multihead_backward.c owns N6, the gradients of multi-head attention. */

#include "dense.h"

typedef struct heads_back {
  attn_tensor d_x, d_y, x, x_k, x_v;
  attn_multihead_params p;
  attn_multihead_gradients g;
  promise does;
} heads_back;

static attn_status run(void *at, attn_ctx *ctx) {
  heads_back *s = at;
  return attn_multihead_backward(s->d_x, s->d_y, s->x, s->x_k, s->x_v, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  heads_back *s = at;
  return attn_multihead_backward_workspace(s->d_x, s->d_y, s->x, s->x_k, s->x_v, &s->p, &s->g, ctx);
}

enum { DM = 11, DMK = 9, DMV = 7, DMO = 13, DK = 6, DV = 5 };

/* own: x_k of its own, and x_v too if 2. */
static heads_back *build(int64_t batch, int64_t tq, int64_t tk, int64_t heads, int64_t kv_heads,
                         int own, attn_dtype type, test_rng *rng) {
  heads_back *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t dmk = own ? DMK : DM, dmv = own > 1 ? DMV : dmk;
  attn_multihead_params *p = &s->p;
  s->x = drawn(type, TEST_PADDED, batch, 1, tq, DM, 1, rng);
  if (own) s->x_k = drawn(ATTN_F32, TEST_BHTD, batch, 1, tk, DMK, 1, rng);
  if (own > 1) s->x_v = drawn(type, TEST_BHTD, batch, 1, tk, DMV, 1, rng);
  p->heads = heads, p->kv_heads = kv_heads;
  p->w_q = drawn(ATTN_F32, TEST_PADDED, 1, 1, DM, heads * DK, 0.4, rng);
  p->w_k = drawn(type, TEST_BHTD, 1, 1, dmk, kv_heads * DK, 0.4, rng);
  p->w_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, dmv, kv_heads * DV, 0.4, rng);
  p->w_o = drawn(ATTN_F32, TEST_PADDED, 1, 1, heads * DV, DMO, 0.4, rng);
  p->b_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, heads * DK, 0.4, rng);
  p->b_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, kv_heads * DK, 0.4, rng);
  p->b_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, kv_heads * DV, 0.4, rng);
  p->b_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, DMO, 0.4, rng);
  s->d_y = drawn(type, TEST_BHTD, batch, 1, tq, DMO, 1, rng);
  s->d_x = output(type, TEST_PADDED, batch, 1, tq, DM, &s->does.block[0]);
  if (own) s->g.d_x_k = test_tensor(type, TEST_PADDED, batch, 1, tk, DMK);
  if (own > 1) s->g.d_x_v = test_tensor(type, TEST_PADDED, batch, 1, tk, DMV);
  s->g.d_w_q = output(type, TEST_PADDED, 1, 1, DM, heads * DK, &s->does.block[1]);
  s->g.d_w_k = output(type, TEST_PADDED, 1, 1, dmk, kv_heads * DK, &s->does.block[2]);
  s->g.d_w_v = test_tensor(type, TEST_BHTD, 1, 1, dmv, kv_heads * DV);
  s->g.d_w_o = output(type, TEST_BHTD, 1, 1, heads * DV, DMO, &s->does.block[3]);
  s->g.d_b_q = test_tensor(type, TEST_BHTD, 1, 1, 1, heads * DK);
  s->g.d_b_k = test_tensor(type, TEST_BHTD, 1, 1, 1, kv_heads * DK);
  s->g.d_b_v = test_tensor(type, TEST_BHTD, 1, 1, 1, kv_heads * DV);
  s->g.d_b_o = test_tensor(type, TEST_BHTD, 1, 1, 1, DMO);
  s->does.call = run, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->g.d_w_q, s->does.out[2] = &s->g.d_w_k;
  s->does.out[3] = &s->g.d_w_o;
  return s;
}

/* ---- in float64 -----------------------------------------------------------------------------*/

static cube zero(int64_t b, int64_t h, int64_t t, int64_t d) {
  cube c = cube_of(b, h, t, d);
  memset(c.data, 0, (size_t)(b * h * t * d) * sizeof *c.data);
  return c;
}

/* x w + bias, in one head. */
static cube project(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias) {
  const cube rows = cube_from(x);
  cube y = cube_times(&rows, w);
  for (int64_t r = 0; bias->data && r < y.batch * y.len; r++)
    for (int64_t c = 0; c < y.dim; c++)
      cube_at(&y, r / y.len, 0, r % y.len)[c] += oracle_get(bias, 0, 0, 0, c);
  return y;
}

/* d_x += d_y w^T, d_w += x^T d_y, d_b += sums of d_y. */
static void back(const cube *d_y, const cube *x, const attn_tensor *w, cube *d_x, cube *d_w,
                 cube *d_b) {
  for (int64_t r = 0; r < x->batch * x->len; r++) {
    const double *dy = cube_at(d_y, r / x->len, 0, r % x->len),
                 *from = cube_at(x, r / x->len, 0, r % x->len);
    double *to = cube_at(d_x, r / x->len, 0, r % x->len);
    for (int64_t c = 0; c < d_y->dim; c++) {
      cube_at(d_b, 0, 0, 0)[c] += dy[c];
      for (int64_t k = 0; k < x->dim; k++)
        to[k] += dy[c] * oracle_get(w, 0, 0, k, c), cube_at(d_w, 0, 0, k)[c] += from[k] * dy[c];
    }
  }
}

static void hold(const cube *want, const attn_tensor *got, const char *what) {
  if (got->data) cube_check(want, got, 1e-5, what);
}

/* The norm of a token's heads and their rotation, in halves; gain and temperature by what they are of. */
typedef struct turned {
  const attn_rope_params *rope;
  int keys;
  int64_t heads;
  double *gain, *temperature; /* [heads][DK], [heads] */
} turned;

static void norm_heads(const turned *t, double *x) {
  const attn_qk_norm *n = t->rope->norm;
  const double eps = n->eps == 0 && !signbit(n->eps) ? 1e-6 : (double)n->eps;
  for (int64_t h = 0; h < t->heads; h++) {
    double mean = 0, squares = 0, *row = x + h * DK;
    for (int c = 0; c < DK; c++) mean += row[c] / DK;
    if (n->kind != ATTN_QK_NORM_LAYER) mean = 0;
    for (int c = 0; c < DK; c++) squares += (row[c] - mean) * (row[c] - mean);
    const double by = n->kind == ATTN_QK_NORM_L2 ? t->temperature[h] / sqrt(squares + eps)
                                                 : 1 / sqrt(squares / DK + eps);
    for (int c = 0; c < DK; c++) row[c] = (row[c] - mean) * by * t->gain[h * DK + c];
  }
}

static void norm_all(const turned *t, double *x) {
  const double eps = t->rope->norm->eps == 0 ? 1e-6 : (double)t->rope->norm->eps;
  double squares = 0;
  for (int64_t c = 0; c < t->heads * DK; c++) squares += x[c] * x[c];
  for (int64_t c = 0; c < t->heads * DK; c++)
    x[c] *= t->gain[c] / sqrt(squares / (double)(t->heads * DK) + eps);
}

static void turn(const turned *t, const double *x, double position, double *y) {
  const attn_qk_norm *n = t->rope->norm;
  memmove(y, x, (size_t)(t->heads * DK) * sizeof *y);
  for (int pass = 0; pass < 2; pass++) {
    if (n && pass == n->after) (n->kind == ATTN_QK_NORM_RMS_ALL ? norm_all : norm_heads)(t, y);
    for (int64_t h = 0; pass == !(n && n->after) && h < t->heads; h++)
      for (int m = 0; m < DK / 2 && !t->rope->has_rotary_dim; m++) {
        const double phi = position * pow(10000.0, -2.0 * m / DK);
        double *a = y + h * DK + m, *b = a + DK / 2, u = *a;
        *a = u * cos(phi) - *b * sin(phi), *b = u * sin(phi) + *b * cos(phi);
      }
  }
}

/* Its arrays in double; d: 0 everywhere. */
static turned turned_of(const attn_rope_params *rope, int keys, int64_t heads, int zero) {
  turned t = {rope, keys, heads, test_mem((size_t)(heads * DK + 1) * 8),
              test_mem((size_t)(heads + 1) * 8)};
  const attn_qk_norm *n = rope->norm;
  const float *gain = n ? keys ? n->k_gain : n->q_gain : NULL;
  for (int64_t c = 0; c < heads * DK; c++) {
    const int own = n && (n->gain_by_head || n->kind == ATTN_QK_NORM_RMS_ALL);
    t.gain[c] = gain ? (double)gain[own ? c : c % DK] + n->gain_less_one : 1;
    if (zero) t.gain[c] = 0;
  }
  for (int64_t h = 0; h < heads; h++)
    t.temperature[h] = zero ? 0 : n && n->temperature && !keys ? (double)n->temperature[h] : 1;
  return t;
}

/* Rows as attention reads them; d, of these, becomes that of x and is added to what `to` has; by differences of turn. */
static void turn_rows(const turned *t, cube *x, int64_t first, const cube *raw, cube *d,
                      turned *to) {
  const int64_t n = t->heads * DK;
  double *y = test_mem((size_t)(3 * n) * 8), *z = y + n, *sum = z + n;
  for (int64_t r = 0; r < x->batch * x->len; r++) {
    const double at = (double)(first + r % x->len);
    if (!d) {
      double *row = cube_at(x, r / x->len, 0, r % x->len);
      turn(t, row, at, y), memcpy(row, y, (size_t)n * 8);
      continue;
    }
    double *row = cube_at(raw, r / x->len, 0, r % x->len),
           *dy = cube_at(d, r / x->len, 0, r % x->len);
    turned more = *t;
    for (int64_t c = 0; c < 3 * n; c++) {
      double *const place = c < n       ? &row[c]
                            : c < 2 * n ? &more.gain[c - n]
                                        : &more.temperature[c - 2 * n];
      if (c >= 2 * n + t->heads) break;
      static const double by[5] = {1, -8, 0, 8, -1};
      const double was = *place, step = 1e-3;
      double slope = 0;
      for (int k = 0; k < 5; k++) {
        *place = was + (k - 2) * step;
        turn(&more, row, at, z);
        for (int64_t e = 0; e < n; e++) slope += by[k] * z[e] * dy[e] / (12 * step);
      }
      *place = was;
      if (c < n)
        sum[c] = slope;
      else if (c < 2 * n)
        to->gain[c - n] += slope;
      else
        to->temperature[c - 2 * n] += slope;
    }
    memcpy(dy, sum, (size_t)n * 8);
  }
}

static void hold_floats(const double *want, const float *got, int64_t n, int64_t fold,
                        const char *what) {
  for (int64_t c = 0; got && c < fold; c++) {
    double sum = 0, size = 0;
    for (int64_t k = c; k < n; k += fold) sum += want[k], size += fabs(want[k]);
    value_check((double)got[c], sum, 1e-5 * (10 + size), ATTN_F32, what, 0, 0, 0, c);
  }
}

static void hold_turned(const turned *d, const attn_multihead_gradients *g) {
  const attn_qk_norm *n = d->rope->norm;
  const int64_t all = d->heads * DK;
  const int own = n && (n->gain_by_head || n->kind == ATTN_QK_NORM_RMS_ALL);
  hold_floats(d->gain, d->keys ? g->norm.d_k_gain : g->norm.d_q_gain, all, own ? all : DK,
              "d_gain");
  if (!d->keys)
    hold_floats(d->temperature, g->norm.d_temperature, d->heads, d->heads, "d_temperature");
}

/* Scores with a mask and ALiBi, a key of one's own, norms; all formulas one after another. */
static void check(const heads_back *s) {
  const attn_multihead_params *p = &s->p;
  const attn_sdpa_params *a = &p->attention;
  const attn_multihead_gradients *g = &s->g;
  const attn_tensor *xk = s->x_k.data ? &s->x_k : &s->x, *xv = s->x_v.data ? &s->x_v : xk;
  const int64_t B = s->x.batch, T = s->x.len, Tk = xk->len, H = p->heads, group = H / p->kv_heads;
  const int l2 = p->rope && p->rope->norm && p->rope->norm->kind == ATTN_QK_NORM_L2;
  const double scale = l2 && a->scale == 0 ? 1 : scale_of(a->scale, DK);
  cube q = project(&s->x, &p->w_q, &p->b_q), k = project(xk, &p->w_k, &p->b_k);
  const cube raw_q = project(&s->x, &p->w_q, &p->b_q), raw_k = project(xk, &p->w_k, &p->b_k);
  const cube v = project(xv, &p->w_v, &p->b_v), dy = cube_from(&s->d_y);
  turned of[2], back_of[2];
  const cube one_k = p->bias_k.data ? cube_from(&p->bias_k) : zero(1, 1, 1, 1);
  const cube one_v = p->bias_v.data ? cube_from(&p->bias_v) : zero(1, 1, 1, 1);
  const int64_t all = Tk + (p->bias_k.data != NULL);
  cube more_k = zero(1, 1, 1, p->kv_heads * DK), more_v = zero(1, 1, 1, p->kv_heads * DV);
  const attn_tensor qt = attn_bhtd(NULL, ATTN_F32, B, H, T, DK),
                    kt = attn_bhtd(NULL, ATTN_F32, B, p->kv_heads, Tk, DK);
  const int64_t first = B * T > 0 ? oracle_position(&qt, &kt, a, 0, 0) : 0;
  for (int i = 0; p->rope && i < 2; i++) {
    of[i] = turned_of(p->rope, i, i ? p->kv_heads : H, 0);
    back_of[i] = turned_of(p->rope, i, i ? p->kv_heads : H, 1);
    turn_rows(&of[i], i ? &k : &q, i ? 0 : first, NULL, NULL, NULL);
  }
  cube o = zero(B, 1, T, H * DV), d_o = zero(B, 1, T, H * DV), d_q = zero(B, 1, T, H * DK);
  cube d_k = zero(B, 1, Tk, p->kv_heads * DK), d_v = zero(B, 1, Tk, p->kv_heads * DV);
  cube w_o = zero(1, 1, H * DV, DMO), b_o = zero(1, 1, 1, DMO);
  double *w = test_mem((size_t)(Tk + 1) * sizeof *w), *alibi = test_mem((size_t)H * sizeof *alibi);
  for (int64_t h = 0; h < H; h++) alibi[h] = 0;
  for (int pass = 0; pass < 2; pass++) {
    if (pass) back(&dy, &o, &p->w_o, &d_o, &w_o, &b_o);
    for (int64_t n = 0; n < B * H * T; n++) {
      const int64_t b = n / T / H, h = n / T % H, i = n % T;
      double *to = cube_at(&o, b, 0, i) + h * DV, *go = cube_at(&d_o, b, 0, i) + h * DV;
      const double *qi = cube_at(&q, b, 0, i) + h * DK;
      double top = -(double)INFINITY, sum = 0, d = 0;
      for (int64_t j = 0; j < all; j++) {
        w[j] = -(double)INFINITY;
        if (j < Tk ? !oracle_allowed(&qt, &kt, a, b, h, i, j) : a->q_len && i >= a->q_len[b])
          continue;
        w[j] = 0;
        const double *kj = j < Tk ? cube_at(&k, b, 0, j) : cube_at(&one_k, 0, 0, 0);
        for (int64_t c = 0; c < DK; c++) w[j] += scale * qi[c] * kj[h / group * DK + c];
        if (a->alibi && j < Tk)
          w[j] -= (double)a->alibi[h] * fabs((double)(j - oracle_position(&qt, &kt, a, b, i)));
        top = fmax(top, w[j]);
      }
      if (top == -(double)INFINITY) continue;
      for (int64_t j = 0; j < all; j++) sum += w[j] = exp(w[j] - top);
      if (!pass) {
        for (int64_t j = 0; j < all; j++)
          for (int64_t c = 0; c < DV; c++)
            to[c] += w[j] / sum *
                     (j < Tk ? cube_at(&v, b, 0, j) : cube_at(&one_v, 0, 0, 0))[h / group * DV + c];
        continue;
      }
      for (int64_t c = 0; c < DV; c++) {
        if (g->d_each.data) go[c] += oracle_get(&g->d_each, b, h, i, c);
        d += go[c] * to[c];
      }
      if (g->attention.d_lse.data) d -= oracle_get(&g->attention.d_lse, b, h, i, 0);
      for (int64_t j = 0; j < all; j++) {
        const int64_t at = h / group;
        const double weight = w[j] / sum;
        const double *kj = (j < Tk ? cube_at(&k, b, 0, j) : cube_at(&one_k, 0, 0, 0)) + at * DK;
        const double *vj = (j < Tk ? cube_at(&v, b, 0, j) : cube_at(&one_v, 0, 0, 0)) + at * DV;
        double *dkj = (j < Tk ? cube_at(&d_k, b, 0, j) : cube_at(&more_k, 0, 0, 0)) + at * DK;
        double *dvj = (j < Tk ? cube_at(&d_v, b, 0, j) : cube_at(&more_v, 0, 0, 0)) + at * DV;
        double pull = 0;
        for (int64_t c = 0; c < DV; c++) pull += go[c] * vj[c], dvj[c] += weight * go[c];
        const double dx = weight * (pull - d);
        if (weight > 0 && j < Tk)
          alibi[h] -= dx * fabs((double)(j - oracle_position(&qt, &kt, a, b, i)));
        for (int64_t c = 0; c < DK; c++) {
          cube_at(&d_q, b, 0, i)[h * DK + c] += scale * dx * kj[c];
          dkj[c] += scale * dx * qi[c];
        }
      }
    }
  }
  for (int i = 0; p->rope && i < 2; i++) {
    turn_rows(&of[i], i ? &k : &q, i ? 0 : first, i ? &raw_k : &raw_q, i ? &d_k : &d_q,
              &back_of[i]);
    hold_turned(&back_of[i], g);
  }
  hold(&more_k, &g->d_bias_k, "d_bias_k"), hold(&more_v, &g->d_bias_v, "d_bias_v");
  const cube x = cube_from(&s->x), x_k = cube_from(xk), x_v = cube_from(xv);
  cube d_x = zero(B, 1, T, DM), own_k = zero(B, 1, Tk, x_k.dim), own_v = zero(B, 1, Tk, x_v.dim);
  cube w_q = zero(1, 1, DM, H * DK), w_k = zero(1, 1, x_k.dim, d_k.dim),
       w_v = zero(1, 1, x_v.dim, d_v.dim);
  cube b_q = zero(1, 1, 1, H * DK), b_k = zero(1, 1, 1, d_k.dim), b_v = zero(1, 1, 1, d_v.dim);
  cube *to_k = s->x_k.data ? &own_k : &d_x, *to_v = s->x_v.data ? &own_v : to_k;
  back(&d_q, &x, &p->w_q, &d_x, &w_q, &b_q);
  back(&d_k, &x_k, &p->w_k, to_k, &w_k, &b_k), back(&d_v, &x_v, &p->w_v, to_v, &w_v, &b_v);
  hold(&d_x, &s->d_x, "d_x"), hold(&own_k, &g->d_x_k, "d_x_k"), hold(&own_v, &g->d_x_v, "d_x_v");
  hold(&w_q, &g->d_w_q, "d_w_q"), hold(&w_k, &g->d_w_k, "d_w_k"), hold(&w_v, &g->d_w_v, "d_w_v");
  hold(&w_o, &g->d_w_o, "d_w_o"), hold(&b_q, &g->d_b_q, "d_b_q"), hold(&b_k, &g->d_b_k, "d_b_k");
  hold(&b_v, &g->d_b_v, "d_b_v"), hold(&b_o, &g->d_b_o, "d_b_o");
  for (int64_t h = 0; g->attention.d_alibi && h < H; h++)
    value_check((double)g->attention.d_alibi[h], alibi[h], 1e-5 * (10 + fabs(alibi[h])), ATTN_F32,
                "d_alibi", 0, h, 0, 0);
}

void N6_multihead(void **state) {
  (void)state;
  test_rng rng = test_seed(9610);
  for (int n = 0; n < test_count(30, 12); n++, test_mem_release()) {
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
    const int own = n % 3;
    const int64_t B = test_range(&rng, 1, 2), T = test_range(&rng, 1, 70), *h = heads[n % 4];
    heads_back *s = build(B, T, own ? test_range(&rng, 1, 90) : T, h[0], h[1], own,
                          n % 5 == 4 ? ATTN_BF16 : ATTN_F32, &rng);
    attn_sdpa_params *a = &s->p.attention;
    if (n & 1) a->causal = 1;
    if (n % 4 == 2) a->kv_len = test_lengths(B, s->x_k.data ? s->x_k.len : T, &rng);
    if (n % 4 == 1) a->alibi = test_floats(h[0], 0.1, &rng), s->g.attention.d_alibi = test_mem(64);
    if (n % 3 == 1) s->g.d_each = drawn(ATTN_F32, TEST_PADDED, B, h[0], T, DV, 1, &rng);
    if (n % 6 == 3) s->g.attention.d_lse = drawn(ATTN_F32, TEST_BHTD, B, h[0], T, 1, 1, &rng);
    promise_run(&s->does);
    check(s);
    if (n % 3 == 0) promise_keep(&s->does);
  }
}

/* A key that all rows see: each of the losses goes through it, with and without what forward kept. */
void N6_multihead_bias_k(void **state) {
  (void)state;
  test_rng rng = test_seed(9614);
  for (int n = 0; n < test_count(16, 8); n++, test_mem_release()) {
    const int64_t B = n % 3 ? 2 : 1, T = n == 5 ? 1 : test_range(&rng, 2, 70), H = 4,
                  KV = n & 1 ? 2 : 4;
    heads_back *s =
        build(B, T, n & 2 ? 90 : T, H, KV, n & 2 ? 1 : 0, n % 4 == 3 ? ATTN_BF16 : ATTN_F32, &rng);
    attn_sdpa_params *a = &s->p.attention;
    s->p.bias_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, KV * DK, 1, &rng);
    s->p.bias_v = drawn(n & 1 ? ATTN_BF16 : ATTN_F32, TEST_BHTD, 1, 1, 1, KV * DV, 1, &rng);
    s->g.d_bias_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, KV * DK);
    s->g.d_bias_v = test_tensor(n == 3 ? ATTN_F16 : ATTN_F32, TEST_BHTD, 1, 1, 1, KV * DV);
    if (n & 1) a->causal = 1;
    if (n & 4) a->kv_len = test_lengths(B, s->x_k.data ? s->x_k.len : T, &rng);
    if (n % 4 == 2) a->q_len = test_lengths(B, T, &rng);
    if (n % 4 == 1) s->g.attention.d_lse = drawn(ATTN_F32, TEST_BHTD, B, H, T, 1, 1, &rng);
    if (n % 3 == 1) a->alibi = test_floats(H, 0.1, &rng), s->g.attention.d_alibi = test_mem(64);
    promise_run(&s->does);
    check(s);
    attn_ctx ctx = test_ctx();
    const attn_tensor d_x = s->d_x, d_w = s->g.d_w_q, d_k = s->g.d_bias_k;
    s->d_x = test_tensor(d_x.dtype, TEST_BHTD, B, 1, T, DM);
    s->g.d_w_q = test_tensor(d_w.dtype, TEST_BHTD, 1, 1, DM, H * DK);
    s->g.d_bias_k = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 1, KV * DK);
    s->p.each = test_tensor(ATTN_F32, TEST_BTHD, B, H, T, DV);
    a->lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, 1);
    const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, B, 1, T, DMO);
    assert_int_equal(attn_multihead(y, s->x, s->x_k, s->x_v, &s->p, &ctx), ATTN_OK);
    s->g.kept = 1;
    assert_int_equal(run(s, &ctx), ATTN_OK);
    test_assert_same(s->d_x, d_x, "d_x"), test_assert_same(s->g.d_w_q, d_w, "d_w_q");
    test_assert_same(s->g.d_bias_k, d_k, "d_bias_k");
    s->d_x = d_x, s->g.d_w_q = d_w;
    if (n < 4) promise_keep(&s->does);
  }
}

/* Norms of queries and keys, with and without a rotation, before it and behind it. */
void N6_multihead_qk_norm(void **state) {
  (void)state;
  test_rng rng = test_seed(9615);
  for (int n = 0; n < test_count(32, 16); n++, test_mem_release()) {
    const int64_t B = n % 3 ? 2 : 1, T = test_range(&rng, 1, 40), H = 4, KV = n & 1 ? 2 : 4;
    heads_back *s =
        build(B, T, n % 5 ? T : 50, H, KV, n % 5 ? 0 : 1, n % 7 == 6 ? ATTN_BF16 : ATTN_F32, &rng);
    attn_qk_norm norm;
    attn_rope_params rope;
    memset(&norm, 0, sizeof norm), memset(&rope, 0, sizeof rope);
    rope.norm = &norm, rope.layout = ATTN_ROPE_HALF, s->p.rope = &rope;
    norm.kind = (attn_qk_norm_kind)(n % 4), norm.after = n / 4 & 1, norm.gain_less_one = n / 8 & 1;
    norm.gain_by_head = norm.kind != ATTN_QK_NORM_RMS_ALL && n / 4 % 3 == 1;
    if (n / 2 & 1) norm.eps = 0.25f;
    const int own = norm.gain_by_head || norm.kind == ATTN_QK_NORM_RMS_ALL;
    if (n % 9)
      norm.q_gain = test_floats((own ? H : 1) * DK, 1, &rng),
      s->g.norm.d_q_gain = test_mem((size_t)H * DK * 4);
    if (n % 7)
      norm.k_gain = test_floats((own ? KV : 1) * DK, 1, &rng),
      s->g.norm.d_k_gain = test_mem((size_t)KV * DK * 4);
    if (norm.kind == ATTN_QK_NORM_L2 && n & 4) {
      float *temperature = test_floats(H, 3, &rng);
      temperature[1] = 0;
      norm.temperature = temperature, s->g.norm.d_temperature = test_mem((size_t)H * 4);
    }
    if (n % 6 == 5) rope.has_rotary_dim = 1; /* rotary_dim 0: norms alone */
    if (n & 1) s->p.attention.causal = 1;
    if (n % 8 == 2 || n % 10 == 5)
      s->p.attention.kv_len = test_lengths(B, s->x_k.data ? s->x_k.len : T, &rng);
    promise_run(&s->does);
    check(s);
    if (n % 5 == 0) promise_keep(&s->does);
    if (!s->x_k.data || !s->p.attention.kv_len) continue;
    const attn_tensor d_w = s->g.d_w_v, d_k = s->g.d_w_k; /* rows that nobody reads */
    s->g.d_w_v = test_tensor(d_w.dtype, TEST_PADDED, 1, 1, d_w.len, d_w.dim);
    promise_run(&s->does);
    const double was = oracle_get(&d_k, 0, 0, 1, 1);
    for (int64_t b = 0; b < B; b++)
      for (int64_t i = s->p.attention.kv_len[b]; i < s->x_k.len; i++)
        test_fill_row(s->x_k, b, 0, i, (double)NAN);
    promise_run(&s->does);
    test_assert_same(s->g.d_w_v, d_w, "d_w_v"), assert_true(oracle_get(&d_k, 0, 0, 1, 1) == was);
  }
}

/* What its parts have: products, rope, attention and their gradients as calls of their own. Bit by bit. */
void N6_multihead_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(9611);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    const int64_t B = n & 1 ? 1 : 2, T = 75, H = 4, KV = 2;
    static const int64_t at[] = {0, 30, 30, 71};
    heads_back *s = build(B, T, T, H, KV, 0, ATTN_F32, &rng);
    attn_sdpa_params *a = &s->p.attention;
    attn_rope_params rope;
    attn_ctx ctx = test_ctx();
    memset(&rope, 0, sizeof rope);
    a->causal = 1, a->sinks = test_floats(H, 1, &rng), s->g.attention.d_sinks = test_mem(64);
    if (n & 1) a->ragged.sequences = 3, a->ragged.q_indptr = a->ragged.kv_indptr = at;
    if (n & 2) a->dropout.p = 0.2, a->dropout.seed = 5;
    if (!(n & 1)) s->p.rope = &rope;
    promise_run(&s->does);
    attn_tensor q = test_tensor(ATTN_F32, TEST_BTHD, B, H, T, DK),
                o = test_tensor(ATTN_F32, TEST_BTHD, B, H, T, DV);
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, B, KV, T, DK),
                v = test_tensor(ATTN_F32, TEST_BTHD, B, KV, T, DV);
    attn_tensor dq = test_tensor(ATTN_F32, TEST_BTHD, B, H, T, DK),
                d_o = test_tensor(ATTN_F32, TEST_BTHD, B, H, T, DV);
    attn_tensor dk = test_tensor(ATTN_F32, TEST_BTHD, B, KV, T, DK),
                dv = test_tensor(ATTN_F32, TEST_BTHD, B, KV, T, DV);
    const attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, 1);
    attn_tensor *const heads[] = {&q, &k, &v, &o, &dq, &dk, &dv, &d_o};
    attn_tensor flat[8];
    for (int i = 0; i < 8; i++) {
      flat[i] = *heads[i], flat[i].dim *= flat[i].heads, flat[i].heads = 1;
      test_fill_value(*heads[i], 0);
    }
    const attn_tensor w[] = {s->p.w_q, s->p.w_k, s->p.w_v, s->p.w_o},
                      bias[] = {s->p.b_q, s->p.b_k, s->p.b_v, s->p.b_o};
    for (int i = 0; i < 3; i++) {
      attn_gemm_params g;
      memset(&g, 0, sizeof g);
      g.bias = bias[i];
      assert_int_equal(attn_gemm(flat[i], s->x, w[i], &g, &ctx), ATTN_OK);
    }
    if (s->p.rope) {
      assert_int_equal(attn_rope(q, q, &rope, &ctx), ATTN_OK);
      rope.keys = 1;
      assert_int_equal(attn_rope(k, k, &rope, &ctx), ATTN_OK);
    }
    attn_sdpa_params own = *a;
    attn_sdpa_gradients g;
    float sinks[4];
    memset(&g, 0, sizeof g);
    own.lse = lse, g.d_sinks = sinks;
    assert_int_equal(attn_sdpa(o, q, k, v, &own, &ctx), ATTN_OK);
    const attn_tensor none = absent();
    assert_int_equal(attn_gemm_backward(flat[7], none, s->d_y, flat[3], w[3], NULL, NULL, &ctx),
                     ATTN_OK);
    assert_int_equal(attn_sdpa_backward(dq, dk, dv, d_o, q, k, v, o, lse, &own, &g, &ctx), ATTN_OK);
    if (s->p.rope) {
      rope.inverse = 1;
      assert_int_equal(attn_rope(dk, dk, &rope, &ctx), ATTN_OK);
      rope.keys = 0;
      assert_int_equal(attn_rope(dq, dq, &rope, &ctx), ATTN_OK);
    }
    const attn_tensor *const want[] = {&s->g.d_w_q, &s->g.d_w_k, &s->g.d_w_v, &s->g.d_w_o};
    const attn_tensor *const want_b[] = {&s->g.d_b_q, &s->g.d_b_k, &s->g.d_b_v, &s->g.d_b_o};
    for (int i = 0; i < 4; i++) {
      attn_tensor d_w = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, want[i]->len, want[i]->dim);
      attn_gemm_params p;
      attn_gemm_gradients more;
      memset(&p, 0, sizeof p), memset(&more, 0, sizeof more);
      p.bias = bias[i], more.d_bias = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 1, want_b[i]->dim);
      assert_int_equal(attn_gemm_backward(none, d_w, i == 3 ? s->d_y : flat[4 + i],
                                          i == 3 ? flat[3] : s->x, w[i], &p, &more, &ctx),
                       ATTN_OK);
      test_assert_same(*want[i], d_w, "d_w"), test_assert_same(*want_b[i], more.d_bias, "d_b");
    }
    assert_memory_equal(sinks, s->g.attention.d_sinks, sizeof sinks);
  }
}

/* What forward kept changes no bit, nor do other outputs; what is added to is. */
void N6_multihead_kept(void **state) {
  (void)state;
  test_rng rng = test_seed(9612);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    const int64_t B = 2, T = n & 1 ? 9 : 80, H = 2;
    heads_back *s = build(B, T, T, H, 1, 0, ATTN_F32, &rng), *t = test_mem(sizeof *t);
    s->p.attention.causal = 1;
    promise_run(&s->does);
    *t = *s;
    memset(&t->does, 0, sizeof t->does), memset(&t->g, 0, sizeof t->g);
    attn_ctx ctx = test_ctx();
    t->p.each = test_tensor(ATTN_F32, n & 2 ? TEST_BHTD : TEST_BTHD, B, H, T, DV);
    t->p.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, 1);
    const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, B, 1, T, DMO);
    assert_int_equal(attn_multihead(y, t->x, t->x_k, t->x_v, &t->p, &ctx), ATTN_OK);
    t->g.kept = n < 4;
    t->d_x = output(ATTN_F32, TEST_BHTD, B, 1, T, DM, &t->does.block[0]);
    t->g.d_w_o = output(ATTN_F32, TEST_BHTD, 1, 1, H * DV, DMO, &t->does.block[1]);
    t->does.call = run, t->does.ask = ask, t->does.scene = t;
    t->does.out[0] = &t->d_x, t->does.out[1] = &t->g.d_w_o;
    promise_run(&t->does);
    test_assert_same(t->d_x, s->d_x, "d_x"), test_assert_same(t->g.d_w_o, s->g.d_w_o, "d_w_o");
    t->g.accumulate = 1;
    assert_int_equal(run(t, &ctx), ATTN_OK);
    for (int64_t i = 0; i < T; i++)
      value_check(oracle_get(&t->d_x, 1, 0, i, 3), 2 * oracle_get(&s->d_x, 1, 0, i, 3), 1e-5,
                  ATTN_F32, "twice", 1, 0, i, 3);
  }
  heads_back *s = build(2, 0, 5, 2, 1, 1, ATTN_F32, &rng); /* no queries */
  test_fill_value(s->g.d_w_k, 3), test_fill_value(s->g.d_x_k, 3), test_fill_value(s->g.d_b_o, 3);
  promise_run(&s->does);
  assert_true(oracle_get(&s->g.d_w_k, 0, 0, 2, 1) == 0 && oracle_get(&s->g.d_x_k, 1, 0, 4, 1) == 0);
  assert_true(oracle_get(&s->g.d_b_o, 0, 0, 0, 1) == 0);
  test_mem_release();
}

void N6_multihead_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9613);
  for (int n = 0; n < 25; n++, test_mem_release()) {
    heads_back *s = build(2, 10, 12, 2, 1, 1, ATTN_F32, &rng);
    attn_multihead_gradients *g = &s->g;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    attn_qk_norm norm;
    attn_rope_params rope;
    memset(&norm, 0, sizeof norm), memset(&rope, 0, sizeof rope);
    switch (n) {
      case 0: s->d_x.dim = 8, word = "d_x"; break;
      case 1: s->d_y.dim = 6, word = "d_y"; break;
      case 2: g->d_x_k.len = 9, word = "d_x_k"; break;
      case 3: g->d_x_v = g->d_x_k, want = ATTN_E_NULL, word = "d_x_v"; break;
      case 4: g->d_w_q.len = 8, word = "d_w_q"; break;
      case 5: g->d_b_o.dim = 6, word = "d_b_o"; break;
      case 6: g->accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 7: g->attention.accumulate = 1, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 8: g->d_w_o.data = s->p.w_o.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 9: g->kept = 1, want = ATTN_E_NULL, word = "kept"; break;
      case 10: s->p.w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 11:
        s->p.bias_k = s->p.b_k, s->p.bias_v = s->p.b_v, want = ATTN_E_RANGE, word = "bias_k";
        g->attention.d_map = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 10, 12);
        break;
      case 12:
        rope.norm = &norm, s->p.rope = &rope, g->norm.d_q_gain = test_floats(DK, 1, &rng);
        want = ATTN_E_NULL, word = "q_gain";
        break;
      case 20: g->d_bias_v = g->d_b_v, want = ATTN_E_NULL, word = "bias_v"; break;
      case 21:
      case 22:
        norm.k_gain = test_floats(DK, 1, &rng), rope.norm = &norm, s->p.rope = &rope;
        g->norm.d_k_gain = n == 21 ? s->d_x.data : (float *)(uintptr_t)norm.k_gain;
        want = ATTN_E_OVERLAP, word = "share";
        break;
      case 23:
        norm.kind = ATTN_QK_NORM_L2, norm.temperature = test_floats(2, 1, &rng);
        rope.norm = &norm, s->p.rope = &rope, want = ATTN_E_ALIGN, word = "norm";
        g->norm.d_temperature = (float *)(void *)((char *)test_floats(3, 1, &rng) + 2);
        break;
      case 13:
        g->attention.d_alibi = test_floats(2, 1, &rng), want = ATTN_E_NULL, word = "alibi";
        break;
      case 14:
        s->p.attention.alibi = test_floats(2, 1, &rng), want = ATTN_E_OVERLAP, word = "share";
        g->attention.d_alibi = s->d_x.data;
        break;
      case 15: g->d_each = drawn(ATTN_F32, TEST_BHTD, 2, 2, 9, DV, 1, &rng), word = "d_each"; break;
      case 16: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      case 17: s->p.heads = 3, s->p.kv_heads = 2, want = ATTN_E_HEADS, word = "heads"; break;
      case 18: s->d_x.data = s->x.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
      default: s->p.attention.scale = NAN, want = ATTN_E_VALUE, word = "scale"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
