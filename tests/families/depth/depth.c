/* tests/families/depth/depth.c owns the block of an encoder or decoder in double, row by row as it is defined. */

#include "depth.h"

depth_shape depth_plain(int64_t dm, int64_t heads, int64_t dk) {
  depth_shape x;
  memset(&x, 0, sizeof x);
  x.dm = dm, x.heads = x.kv_heads = heads, x.dk = x.dv = dk, x.dff = 2 * dm + 1, x.biases = 1;
  return x;
}

static attn_tensor bias_of(int64_t n, int on, test_rng *rng) {
  return on ? drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, n, 0.3, rng) : absent();
}

static attn_multihead_params heads_of(const depth_shape *x, int64_t from, test_rng *rng) {
  attn_multihead_params p;
  const double size = 1.2 / sqrt((double)x->dm);
  const int64_t q = x->heads * x->dk, k = x->kv_heads * x->dk, v = x->kv_heads * x->dv;
  memset(&p, 0, sizeof p);
  p.heads = x->heads, p.kv_heads = x->kv_heads;
  p.w_q = drawn(x->type, TEST_PADDED, 1, 1, x->dm, q, size, rng);
  p.w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, from, k, size, rng);
  p.w_v = drawn(x->type, TEST_BHTD, 1, 1, from, v, size, rng);
  p.w_o = drawn(ATTN_F32, TEST_PADDED, 1, 1, x->heads * x->dv, x->dm, size, rng);
  p.b_q = bias_of(q, x->biases, rng), p.b_k = bias_of(k, x->biases, rng);
  p.b_v = bias_of(v, x->biases, rng), p.b_o = bias_of(x->dm, x->biases, rng);
  return p;
}

static attn_norm norm_of(const depth_shape *x, test_rng *rng) {
  attn_norm n = {NULL, NULL, 0, ATTN_NORM_LAYER, 0};
  if (x->plain_norm) return n;
  n.gain = test_floats(x->dm, 1, rng), n.bias = test_floats(x->dm, 0.3, rng), n.eps = 1e-4f;
  return n;
}

attn_block_params depth_weights(const depth_shape *x, test_rng *rng) {
  attn_block_params p;
  memset(&p, 0, sizeof p);
  p.self = heads_of(x, x->dm, rng);
  if (x->de) p.cross = heads_of(x, x->de, rng);
  p.ff.w_1 = drawn(x->type, TEST_BHTD, 1, 1, x->dm, x->dff, 1.2 / sqrt((double)x->dm), rng);
  p.ff.w_2 = drawn(ATTN_F32, TEST_BHTD, 1, 1, x->dff, x->dm, 1.2 / sqrt((double)x->dff), rng);
  p.ff.b_1 = bias_of(x->dff, x->biases, rng), p.ff.b_2 = bias_of(x->dm, x->biases, rng);
  p.sublayer = x->pre ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST;
  p.norm_self = norm_of(x, rng), p.norm_ff = norm_of(x, rng), p.norm_cross = norm_of(x, rng);
  return p;
}

void depth_norm(double *x, int64_t n, const attn_norm *norm) {
  double mean = 0, var = 0;
  for (int64_t c = 0; c < n; c++) mean += x[c] / (double)n;
  for (int64_t c = 0; c < n; c++) var += (x[c] - mean) * (x[c] - mean) / (double)n;
  const double eps = norm->eps == 0 ? 1e-5 : (double)norm->eps;
  for (int64_t c = 0; c < n; c++) {
    x[c] = (x[c] - mean) / sqrt(var + eps) * (norm->gain ? (double)norm->gain[c] : 1);
    if (norm->bias) x[c] += (double)norm->bias[c];
  }
}

static cube product(const cube *x, const attn_tensor *w, const attn_tensor *bias) {
  cube y = cube_times(x, w);
  for (int64_t e = 0; bias->data && e < y.batch * y.len * y.dim; e++)
    y.data[e] += oracle_get(bias, 0, 0, 0, e % y.dim);
  return y;
}

/* Heads of one row over the first `keys` keys, through w_o, into y. */
static void attend(double *y, const attn_multihead_params *p, const double *q, const cube *k,
                   const cube *v, int64_t b, int64_t keys) {
  const int64_t h = p->heads ? p->heads : 1, kv = p->kv_heads ? p->kv_heads : h;
  const int64_t dk = k->dim / kv, dv = v->dim / kv, dm = p->w_o.dim;
  const double s = scale_of(p->attention.scale, dk);
  double *o = test_mem((size_t)(h * dv) * sizeof *o), *x = test_mem((size_t)(keys + 1) * sizeof *x);
  for (int64_t n = 0; n < h; n++) {
    const int64_t g = n / (h / kv);
    double top = -(double)INFINITY, sum = p->attention.softmax_one ? 1 : 0;
    for (int64_t j = 0; j < keys; j++) {
      x[j] = 0;
      for (int64_t c = 0; c < dk; c++) x[j] += s * q[n * dk + c] * cube_at(k, b, 0, j)[g * dk + c];
      top = fmax(top, x[j]);
    }
    if (keys) sum *= exp(-top);
    for (int64_t j = 0; j < keys; j++) sum += exp(x[j] - top);
    for (int64_t c = 0; c < dv; c++) {
      o[n * dv + c] = 0;
      for (int64_t j = 0; j < keys; j++)
        o[n * dv + c] += exp(x[j] - top) / sum * cube_at(v, b, 0, j)[g * dv + c];
    }
  }
  for (int64_t c = 0; c < dm; c++) {
    y[c] = p->b_o.data ? oracle_get(&p->b_o, 0, 0, 0, c) : 0;
    for (int64_t n = 0; n < h * dv; n++) y[c] += o[n] * oracle_get(&p->w_o, 0, 0, n, c);
  }
}

static double gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }

static void feed(double *y, const attn_feed_forward *f, const double *x) {
  double *z = test_mem((size_t)f->w_1.dim * sizeof *z);
  for (int64_t c = 0; c < f->w_1.dim; c++) {
    z[c] = f->b_1.data ? oracle_get(&f->b_1, 0, 0, 0, c) : 0;
    for (int64_t n = 0; n < f->w_1.len; n++) z[c] += x[n] * oracle_get(&f->w_1, 0, 0, n, c);
    z[c] = f->activation == ATTN_ACT_GELU ? gelu(z[c]) : fmax(z[c], 0);
  }
  for (int64_t c = 0; c < f->w_2.dim; c++) {
    y[c] = f->b_2.data ? oracle_get(&f->b_2, 0, 0, 0, c) : 0;
    for (int64_t n = 0; n < f->w_1.dim; n++) y[c] += z[n] * oracle_get(&f->w_2, 0, 0, n, c);
  }
}

static cube queries(const cube *x, const attn_multihead_params *p) {
  return product(x, &p->w_q, &p->b_q);
}

cube depth_block(const depth_case *d, const cube *x) {
  const attn_block_params *p = d->p;
  const int pre = p->sublayer == ATTN_SUBLAYER_PRE;
  const int64_t dm = x->dim, rows = x->batch * x->len;
  cube n = cube_of(x->batch, 1, x->len, dm), y = cube_of(x->batch, 1, x->len, dm);
  memcpy(n.data, x->data, (size_t)(rows * dm) * sizeof(double));
  for (int64_t r = 0; pre && r < rows; r++) depth_norm(n.data + r * dm, dm, &p->norm_self);
  const cube q = queries(&n, &p->self), k = product(&n, &p->self.w_k, &p->self.b_k);
  const cube v = product(&n, &p->self.w_v, &p->self.b_v);
  cube ek = {0, 0, 0, 0, NULL}, ev = ek;
  if (d->e) {
    const cube e = cube_from(d->e);
    ek = product(&e, &p->cross.w_k, &p->cross.b_k), ev = product(&e, &p->cross.w_v, &p->cross.b_v);
  }
  double *a = test_mem((size_t)dm * sizeof *a), *f = test_mem((size_t)dm * sizeof *f);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t b = r / x->len, t = r % x->len, len = d->len ? d->len[b] : x->len;
    double *to = y.data + r * dm;
    memcpy(to, x->data + r * dm, (size_t)dm * sizeof(double));
    if (t >= len || (d->run && !d->run[r])) continue;
    attend(a, &p->self, q.data + r * q.dim, &k, &v, b, d->causal ? t + 1 : len);
    for (int64_t c = 0; c < dm; c++) to[c] += a[c];
    if (!pre) depth_norm(to, dm, &p->norm_self);
    if (d->e) {
      cube row = {1, 1, 1, dm, f};
      memcpy(f, to, (size_t)dm * sizeof(double));
      if (pre) depth_norm(f, dm, &p->norm_cross);
      const cube one = queries(&row, &p->cross);
      attend(a, &p->cross, one.data, &ek, &ev, b, d->e_len ? d->e_len[b] : d->e->len);
      for (int64_t c = 0; c < dm; c++) to[c] += a[c];
      if (!pre) depth_norm(to, dm, &p->norm_cross);
    }
    memcpy(f, to, (size_t)dm * sizeof(double));
    if (pre) depth_norm(f, dm, &p->norm_ff);
    feed(a, &p->ff, f);
    for (int64_t c = 0; c < dm; c++) to[c] += a[c];
    if (!pre) depth_norm(to, dm, &p->norm_ff);
  }
  return y;
}
