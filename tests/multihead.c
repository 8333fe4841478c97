/* tests/multihead.c owns the float64 answer of multi-head attention: projections in double, rows by
 * tests/oracle.c. */

#include "multihead.h"

static attn_collaborative_params as_shared(const multihead *s) {
  attn_collaborative_params p;
  memset(&p, 0, sizeof p);
  p.heads = s->p.heads, p.w_q = s->p.w_q, p.w_k = s->p.w_k, p.w_v = s->p.w_v, p.w_o = s->p.w_o;
  p.b_v = s->p.b_v, p.b_o = s->p.b_o, p.attention = s->p.attention, p.each = s->p.each;
  p.mix = s->mix, p.w_c = s->w_c;
  return p;
}

static attn_status call(void *at, attn_ctx *ctx) {
  multihead *s = at;
  attn_collaborative_params p = as_shared(s);
  if (s->mix.data) return attn_collaborative(s->y, s->x, s->x_k, &p, ctx);
  return attn_multihead(s->y, s->x, s->x_k, s->x_v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  multihead *s = at;
  attn_collaborative_params p = as_shared(s);
  if (s->mix.data) return attn_collaborative_workspace(s->y, s->x, s->x_k, &p, ctx);
  return attn_multihead_workspace(s->y, s->x, s->x_k, s->x_v, &s->p, ctx);
}

multihead_shape multihead_plain(int64_t queries, int64_t heads, int64_t dk, int64_t dv) {
  multihead_shape x;
  memset(&x, 0, sizeof x);
  x.batch = 1, x.queries = queries, x.dm = 11, x.dmk = 9, x.dmv = 7, x.dmo = 13;
  x.heads = x.kv_heads = heads, x.dk = dk, x.dv = dv, x.biases = 15, x.want = 15;
  return x;
}

multihead *multihead_build(const multihead_shape *x, test_rng *rng) {
  multihead *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = x->batch, h = x->heads, kv = x->shared ? h : x->kv_heads;
  const int self = x->keys == 0, cross = !self && x->dmv > 0 && !x->shared;
  const int64_t keys = self ? x->queries : x->keys, dmk = self ? x->dm : x->dmk;
  const int64_t dmv = cross ? x->dmv : dmk, qh = x->shared ? 1 : h, kh = x->shared ? 1 : kv;
  const double size = 1.3 / sqrt((double)x->dm);
  attn_multihead_params *p = &s->p;
  s->x = drawn(x->x_type, TEST_PADDED, b, 1, x->queries, x->dm, 1, rng);
  if (!self) s->x_k = drawn(ATTN_F32, TEST_NEGATIVE, b, 1, keys, dmk, 1, rng);
  if (cross) s->x_v = drawn(x->x_type, TEST_BHTD, b, 1, keys, dmv, 1, rng);
  p->heads = h, p->kv_heads = kv;
  p->w_q = drawn(x->w_type, TEST_PADDED, 1, 1, x->dm, qh * x->dk, size, rng);
  p->w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, dmk, kh * x->dk, size, rng);
  p->w_v = drawn(x->w_type, TEST_NEGATIVE, 1, 1, dmv, kv * x->dv, size, rng);
  if (x->want & WANT_Y) p->w_o = drawn(ATTN_F32, TEST_PADDED, 1, 1, h * x->dv, x->dmo, 0.5, rng);
  if (!x->shared && x->biases & BIAS_Q)
    p->b_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, qh * x->dk, 0.5, rng);
  if (!x->shared && x->biases & BIAS_K)
    p->b_k = drawn(x->w_type, TEST_BHTD, 1, 1, 1, kh * x->dk, 0.5, rng);
  if (x->biases & BIAS_V) p->b_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, kv * x->dv, 0.5, rng);
  if (x->want & WANT_Y && x->biases & BIAS_O)
    p->b_o = drawn(x->w_type, TEST_BHTD, 1, 1, 1, x->dmo, 0.5, rng);
  if (!x->shared && x->biases & BIAS_KV) {
    p->bias_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, kh * x->dk, 0.9, rng);
    p->bias_v = drawn(x->w_type, TEST_BHTD, 1, 1, 1, kv * x->dv, 0.9, rng);
  }
  if (x->shared) s->mix = drawn(x->w_type, TEST_PADDED, 1, 1, h, x->dk, 0.7, rng);
  if (x->content) s->w_c = drawn(ATTN_F32, TEST_PADDED, 1, 1, dmk, h, size, rng);
  if (x->want & WANT_Y)
    s->y = output(x->y_type, TEST_PADDED, b, 1, x->queries, x->dmo, &s->does.block[0]);
  if (x->want & WANT_EACH)
    p->each = output(x->each_type, b > 1 ? TEST_BTHD : TEST_NEGATIVE, b, h, x->queries, x->dv,
                     &s->does.block[1]);
  if (x->want & WANT_LSE)
    p->attention.lse = output(ATTN_F32, TEST_BHTD, b, h, x->queries, 1, &s->does.block[2]);
  if (x->want & WANT_MAP)
    p->attention.map = output(ATTN_F32, TEST_PADDED, b, h, x->queries, keys, &s->does.block[3]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y, s->does.out[1] = &p->each;
  s->does.out[2] = &p->attention.lse, s->does.out[3] = &p->attention.map;
  return s;
}

/* Rows of x times w plus bias, cut into heads. */
static cube project(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                    int64_t heads) {
  const int64_t d = w->dim / heads;
  cube y = cube_of(x->batch, heads, x->len, d);
  for (int64_t r = 0; r < y.batch * heads * y.len; r++) {
    const int64_t b = r / y.len / heads, h = r / y.len % heads, i = r % y.len;
    for (int64_t c = 0; c < d; c++) {
      double sum = bias->data ? oracle_get(bias, 0, 0, 0, h * d + c) : 0;
      for (int64_t n = 0; n < x->dim; n++)
        sum += oracle_get(x, b, 0, i, n) * oracle_get(w, 0, 0, n, h * d + c);
      cube_at(&y, b, h, i)[c] = sum;
    }
  }
  return y;
}

/* As a tensor of floats, times a row for each of `heads` heads if mix is there. */
static attn_tensor rounded(const cube *a, int64_t heads, const attn_tensor *mix) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, a->batch, heads, a->len, a->dim);
  for (int64_t r = 0; r < a->batch * heads * a->len; r++) {
    const int64_t b = r / a->len / heads, h = r / a->len % heads, i = r % a->len;
    for (int64_t c = 0; c < a->dim; c++) {
      const double by = mix ? oracle_get(mix, 0, 0, h, c) : 1;
      oracle_set(&t, b, h, i, c, by * cube_at(a, b, mix ? 0 : h, i)[c]);
    }
  }
  return t;
}

/* The bias of the call and s (x_k w_c)[h] as one mask. */
static attn_mask content_mask(const multihead *s, const attn_tensor *from, double scale) {
  const int64_t h = s->p.heads, tq = s->x.len, tk = from->len;
  const attn_tensor none = absent();
  cube c = project(from, &s->w_c, &none, 1);
  float *data = test_mem((size_t)(s->x.batch * h * tq * tk + 1) * sizeof *data);
  attn_mask m = attn_mask_add(data, ATTN_F32, s->x.batch, h, tq, tk);
  const attn_mask *own = &s->p.attention.bias;
  for (int64_t r = 0; r < s->x.batch * h * tq; r++) {
    const int64_t b = r / tq / h, n = r / tq % h, i = r % tq;
    for (int64_t j = 0; j < tk; j++) {
      double x = scale * cube_at(&c, b, 0, j)[n];
      if (own->kind)
        x += oracle_mask(own, own->batch > 1 ? b : 0, own->heads > 1 ? n : 0,
                         own->q_len > 1 ? i : 0, own->k_len > 1 ? j : 0);
      data[r * tk + j] = (float)x;
    }
  }
  return m;
}

/* A row with bias_k and bias_v as one more key. */
static void one_more(const multihead *s, const attn_tensor *q, int64_t b, int64_t h, int64_t i,
                     oracle_row *row, int64_t keys, int64_t dv) {
  const attn_sdpa_params *p = &s->p.attention;
  const int64_t heads = q->heads, g = h * (s->p.kv_heads ? s->p.kv_heads : heads) / heads;
  if (p->q_len && i >= p->q_len[b]) return;
  double x = 0;
  for (int64_t c = 0; c < q->dim; c++)
    x += oracle_get(q, b, h, i, c) * oracle_get(&s->p.bias_k, 0, 0, 0, g * q->dim + c);
  x *= scale_of(p->scale, q->dim);
  const double m = fmax(x, row->lse), all = m + log(exp(x - m) + exp(row->lse - m));
  const double w = exp(row->lse - all);
  for (int64_t j = 0; j < keys; j++) row->p[j] *= w;
  for (int64_t c = 0; c < dv; c++)
    row->o[c] = row->o[c] * w + exp(x - all) * oracle_get(&s->p.bias_v, 0, 0, 0, g * dv + c);
  row->lse = all;
}

void multihead_check(multihead *s, double tolerance, const char *what) {
  const attn_tensor *x_k = s->x_k.data ? &s->x_k : &s->x, *x_v = s->x_v.data ? &s->x_v : x_k;
  const int shared = s->mix.data != NULL;
  const int64_t h = s->p.heads ? s->p.heads : 1;
  const int64_t kv = s->p.kv_heads && !shared ? s->p.kv_heads : h, b = s->x.batch, t = s->x.len;
  const attn_tensor none = absent();
  promise_run(&s->does);
  cube q = project(&s->x, &s->p.w_q, shared ? &none : &s->p.b_q, shared ? 1 : h);
  cube k = project(x_k, &s->p.w_k, shared ? &none : &s->p.b_k, shared ? 1 : kv);
  cube v = project(x_v, &s->p.w_v, &s->p.b_v, kv);
  attn_tensor tq = rounded(&q, h, shared ? &s->mix : NULL), tk = rounded(&k, k.heads, NULL);
  attn_tensor tv = rounded(&v, kv, NULL);
  attn_sdpa_params p = s->p.attention;
  p.lse = p.map = none;
  if (shared && p.scale == 0 && !signbit(p.scale))
    p.scale = (float)(1 / sqrt((double)q.dim / (double)h));
  if (s->w_c.data) p.bias = content_mask(s, x_k, scale_of(p.scale, q.dim));
  cube o = cube_of(b, h, t, v.dim), lse = cube_of(b, h, t, 1), map = cube_of(b, h, t, k.len);
  oracle_row row;
  row.size = test_mem((size_t)(k.len + 1) * sizeof(double));
  for (int64_t r = 0; r < b * h * t; r++) {
    row.o = cube_at(&o, r / t / h, r / t % h, r % t), row.p = cube_at(&map, 0, 0, 0) + r * k.len;
    oracle_sdpa(&tq, &tk, &tv, &p, r / t / h, r / t % h, r % t, &row);
    if (s->p.bias_k.data) one_more(s, &tq, r / t / h, r / t % h, r % t, &row, k.len, v.dim);
    *cube_at(&lse, r / t / h, r / t % h, r % t) = row.lse;
  }
  if (s->p.each.data) cube_check(&o, &s->p.each, tolerance, what);
  if (s->p.attention.lse.data) cube_check(&lse, &s->p.attention.lse, tolerance, what);
  if (s->p.attention.map.data) cube_check(&map, &s->p.attention.map, tolerance, what);
  if (!s->y.data) return;
  cube y = cube_of(b, 1, t, s->y.dim);
  for (int64_t r = 0; r < b * t; r++) {
    for (int64_t c = 0; c < y.dim; c++) {
      double sum = s->p.b_o.data ? oracle_get(&s->p.b_o, 0, 0, 0, c) : 0;
      for (int64_t n = 0; n < h * v.dim; n++)
        sum += cube_at(&o, r / t, n / v.dim, r % t)[n % v.dim] * oracle_get(&s->p.w_o, 0, 0, n, c);
      cube_at(&y, r / t, 0, r % t)[c] = sum;
    }
  }
  cube_check(&y, &s->y, tolerance, what);
}
