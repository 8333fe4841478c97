/* tests/families/compression/shortened.c owns the float64 softmax over keys that a test has made, and random arguments of
 * attention over fewer keys. */

#include "shortened.h"

trio_shape trio_plain(int64_t q_len, int64_t k_len) {
  trio_shape x = {1, 2, 2, 2, q_len, k_len, 6, 5, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, 0, 1};
  return x;
}

static attn_dtype type_of(int64_t n) {
  return n % 4 == 1 ? ATTN_F16 : n % 4 == 3 ? ATTN_BF16 : ATTN_F32;
}

trio_shape trio_random(test_rng *rng, int64_t n, int64_t most) {
  trio_shape x = trio_plain(0, 0);
  x.batch = test_range(rng, 1, 2);
  x.k_heads = test_range(rng, 1, 2);
  x.v_heads = n % 3 ? x.k_heads : test_range(rng, 1, 2);
  x.heads = 2 * test_range(rng, 1, 2);
  x.q_len = test_range(rng, 1, most);
  x.k_len = n % 2 ? x.q_len : test_range(rng, 0, most);
  x.dk = test_range(rng, 1, 20);
  x.dv = n % 4 ? test_range(rng, 1, 20) : x.dk;
  x.q_type = type_of(n), x.k_type = type_of(n / 2), x.v_type = type_of(n / 3);
  x.o_type = type_of(n / 5);
  x.lens = n % 3 == 1, x.lse = n % 4 != 3;
  return x;
}

trio trio_of(const trio_shape *x, test_rng *rng) {
  trio a;
  memset(&a, 0, sizeof a);
  a.q = drawn(x->q_type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dk, 1, rng);
  a.k = drawn(x->k_type, TEST_NEGATIVE, x->batch, x->k_heads, x->k_len, x->dk, 1, rng);
  a.v = drawn(x->v_type, TEST_BTHD, x->batch, x->v_heads, x->k_len, x->dv, 1, rng);
  a.o = output(x->o_type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dv, &a.o_block);
  if (x->lse) a.lse = output(ATTN_F32, TEST_BHTD, x->batch, x->heads, x->q_len, 1, &a.lse_block);
  if (x->lens) {
    a.kv_len = test_lengths(x->batch, x->k_len, rng);
    a.q_len = test_lengths(x->batch, x->q_len, rng);
  }
  a.q_off = x->k_len - x->q_len;
  return a;
}

void trio_again(trio *x) {
  x->o = output(x->o.dtype, TEST_PADDED, x->o.batch, x->o.heads, x->o.len, x->o.dim, &x->o_block);
  if (x->lse.data)
    x->lse = output(ATTN_F32, TEST_BHTD, x->o.batch, x->o.heads, x->o.len, 1, &x->lse_block);
}

int64_t trio_keys(const trio *x, int64_t b) { return x->kv_len ? x->kv_len[b] : x->k.len; }
int64_t trio_rows(const trio *x, int64_t b) { return x->q_len ? x->q_len[b] : x->q.len; }

double *row_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  double *x = test_mem((size_t)t->dim * sizeof *x);
  for (int64_t c = 0; c < t->dim; c++) x[c] = oracle_get(t, b, h, i, c);
  return x;
}

keys keys_of(int64_t room) {
  keys a = {0, room, NULL, NULL};
  a.k = test_mem((size_t)(room + 1) * sizeof *a.k);
  a.v = test_mem((size_t)(room + 1) * sizeof *a.v);
  return a;
}

void keys_add(keys *a, const double *k, const double *v) {
  assert_true(a->n < a->room);
  a->k[a->n] = k, a->v[a->n] = v, a->n++;
}

double keys_row(const keys *a, const double *q, int64_t dk, double scale, double *o, int64_t dv,
                double *size) {
  double *x = test_mem((size_t)(a->n + 1) * sizeof *x), top = -(double)INFINITY, sum = 0;
  *size = 0;
  for (int64_t c = 0; c < dv; c++) o[c] = 0;
  for (int64_t j = 0; j < a->n; j++) {
    x[j] = 0;
    for (int64_t c = 0; c < dk; c++) x[j] += q[c] * a->k[j][c];
    x[j] *= scale;
    top = fmax(top, x[j]);
  }
  for (int64_t j = 0; j < a->n; j++) sum += exp(x[j] - top);
  for (int64_t j = 0; j < a->n; j++) {
    for (int64_t c = 0; c < dv; c++) {
      o[c] += exp(x[j] - top) / sum * a->v[j][c];
      *size = fmax(*size, fabs(a->v[j][c]));
    }
  }
  return a->n ? top + log(sum) : -(double)INFINITY;
}

void keys_check(const keys *a, const trio *x, int64_t b, int64_t h, int64_t i, float scale,
                double tolerance, const char *what) {
  double *o = test_mem((size_t)x->v.dim * sizeof *o), size;
  double lse =
      keys_row(a, row_of(&x->q, b, h, i), x->q.dim, scale_of(scale, x->q.dim), o, x->v.dim, &size);
  for (int64_t c = 0; c < x->v.dim; c++) {
    value_check(oracle_get(&x->o, b, h, i, c), o[c], tolerance * fmax(1, size), x->o.dtype, what, b,
                h, i, c);
  }
  if (!x->lse.data) return;
  value_check(oracle_get(&x->lse, b, h, i, 0), lse, tolerance * fmax(1, fabs(lse)), ATTN_F32, what,
              b, h, i, -1);
}

double *conv_row(const attn_tensor *w, const attn_tensor *bias, int64_t h, const double *const *x,
                 int64_t c, int64_t d) {
  double *y = test_mem((size_t)w->dim * sizeof *y);
  for (int64_t j = 0; j < w->dim; j++) {
    y[j] = bias->data ? oracle_get(bias, 0, bias->heads > 1 ? h : 0, 0, j) : 0;
    for (int64_t r = 0; r < c; r++) {
      for (int64_t e = 0; x[r] && e < d; e++)
        y[j] += x[r][e] * oracle_get(w, 0, w->heads > 1 ? h : 0, r * d + e, j);
    }
  }
  return y;
}

trio trio_cut(const trio *x, int64_t b) {
  trio a = *x;
  const int64_t n = trio_keys(x, b), m = trio_rows(x, b);
  a.q = test_rows(test_one(x->q, b, 1, 0, x->q.heads), 0, m);
  a.k = test_rows(test_one(x->k, b, 1, 0, x->k.heads), 0, n);
  a.v = test_rows(test_one(x->v, b, 1, 0, x->v.heads), 0, n);
  a.o.batch = 1, a.o.len = m, a.lse.batch = 1, a.lse.len = m;
  a.kv_len = a.q_len = NULL;
  trio_again(&a);
  return a;
}
