/* tests/layers.c owns float64 pieces of layers over rows. */

#include "layers.h"

cube rows_dense(const cube *x, const attn_tensor *w, const attn_tensor *b) {
  cube y = cube_of(x->batch, 1, x->len, w->dim);
  for (int64_t r = 0; r < x->batch * x->len; r++)
    for (int64_t c = 0; c < w->dim; c++) {
      double sum = b->data ? oracle_get(b, 0, 0, 0, c) : 0;
      for (int64_t d = 0; d < x->dim; d++)
        sum += x->data[r * x->dim + d] * oracle_get(w, 0, 0, d, c);
      y.data[r * y.dim + c] = sum;
    }
  return y;
}

cube rows_attend(const cube *q, const cube *k, const cube *v, int64_t heads, double scale,
                 const int32_t *len) {
  const int64_t batch = k->batch, n = q->len, dk = q->dim / heads, dv = v->dim / heads;
  cube y = cube_of(batch, 1, n, v->dim);
  double *x = test_mem((size_t)(k->len + 1) * sizeof *x);
  for (int64_t b = 0; b < batch; b++)
    for (int64_t r = 0; r < heads * n; r++) {
      const int64_t h = r / n, i = r % n, keys = len ? len[b] : k->len;
      const double *query = cube_at(q, q->batch > 1 ? b : 0, 0, i) + h * dk;
      double *o = cube_at(&y, b, 0, i) + h * dv, top = -(double)INFINITY, sum = 0;
      for (int64_t c = 0; c < dv; c++) o[c] = 0;
      for (int64_t j = 0; j < keys; j++) {
        x[j] = 0;
        for (int64_t c = 0; c < dk; c++) x[j] += query[c] * cube_at(k, b, 0, j)[h * dk + c];
        x[j] *= scale, top = fmax(top, x[j]);
      }
      for (int64_t j = 0; j < keys; j++) sum += exp(x[j] - top);
      for (int64_t j = 0; j < keys; j++)
        for (int64_t c = 0; c < dv; c++)
          o[c] += exp(x[j] - top) / sum * cube_at(v, b, 0, j)[h * dv + c];
    }
  return y;
}

cube rows_norm(const cube *a, const cube *b, const attn_norm *norm) {
  const int64_t batch = b && b->batch > a->batch ? b->batch : a->batch, dm = a->dim;
  cube y = cube_of(batch, 1, a->len, dm);
  for (int64_t r = 0; r < batch * a->len; r++) {
    const int64_t n = r / a->len, i = r % a->len;
    const double *left = cube_at(a, a->batch > 1 ? n : 0, 0, i);
    const double *right = b ? cube_at(b, b->batch > 1 ? n : 0, 0, i) : NULL;
    double *o = cube_at(&y, n, 0, i), mean = 0, variance = 0;
    for (int64_t c = 0; c < dm; c++) o[c] = left[c] + (b ? right[c] : 0), mean += o[c];
    if (!norm || norm->kind == ATTN_NORM_NONE) continue;
    const int rms = norm->kind == ATTN_NORM_RMS;
    const double eps = norm->eps != 0 ? (double)norm->eps : rms ? 1e-6 : 1e-5;
    mean = rms ? 0 : mean / (double)dm;
    for (int64_t c = 0; c < dm; c++) variance += (o[c] - mean) * (o[c] - mean) / (double)dm;
    for (int64_t c = 0; c < dm; c++) {
      o[c] = (o[c] - mean) / sqrt(variance + eps);
      if (norm->gain) o[c] *= (double)norm->gain[c] + norm->gain_less_one;
      if (norm->bias) o[c] += (double)norm->bias[c];
    }
  }
  return y;
}

static double activation(double t, attn_activation act) {
  const double cubic = t + 0.044715 * t * t * t;
  switch (act) {
    case ATTN_ACT_GELU: return t * erfc(-t / sqrt(2)) / 2;
    case ATTN_ACT_GELU_TANH: return t / 2 * (1 + tanh(sqrt(2 / acos(-1)) * cubic));
    case ATTN_ACT_SILU: return t / (1 + exp(-t));
    case ATTN_ACT_TANH: return tanh(t);
    case ATTN_ACT_NONE: return t;
    default: return t > 0 ? t : 0;
  }
}

cube rows_feed(const cube *x, const attn_feed_forward *ff) {
  const int gated = ff->w_3.data != NULL;
  attn_activation act = ff->activation;
  cube y = rows_dense(x, &ff->w_1, &ff->b_1), up = y;
  if (gated) up = rows_dense(x, &ff->w_3, &ff->b_3);
  if (gated && act == ATTN_ACT_DEFAULT) act = ATTN_ACT_SILU;
  const double slope = ff->form.slope > 0 ? (double)ff->form.slope : 1;
  const double limit = ff->form.limit > 0 ? (double)ff->form.limit : (double)INFINITY;
  for (int64_t n = 0; n < y.batch * y.len * y.dim; n++) {
    const double t = y.data[n] > limit ? limit : y.data[n], f = activation(slope * t, act) / slope;
    const double gate = fabs(up.data[n]) > limit ? copysign(limit, up.data[n]) : up.data[n];
    y.data[n] = gated ? f * (gate + (double)ff->form.gate_add) : f;
  }
  return ff->w_2.data ? rows_dense(&y, &ff->w_2, &ff->b_2) : y;
}

attn_feed_forward drawn_feed(int64_t din, int64_t dff, int64_t dout, int bias, attn_dtype type,
                             test_rng *rng) {
  attn_feed_forward ff;
  memset(&ff, 0, sizeof ff);
  const int64_t mid = dff ? dff : dout;
  ff.w_1 = drawn(type, TEST_PADDED, 1, 1, din, mid, 1 / sqrt((double)din), rng);
  if (bias) ff.b_1 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, mid, 0.5, rng);
  if (dff) ff.w_2 = drawn(ATTN_F32, TEST_NEGATIVE, 1, 1, dff, dout, 1 / sqrt((double)dff), rng);
  if (dff && bias) ff.b_2 = drawn(type, TEST_BHTD, 1, 1, 1, dout, 0.5, rng);
  if (test_range(rng, 0, 3) == 0) ff.form.slope = 1.702f;
  if (test_range(rng, 0, 3) == 0) ff.form.limit = 0.7f;
  if (test_range(rng, 0, 2)) return ff;
  if (test_range(rng, 0, 1)) ff.form.gate_add = (float)test_range(rng, -2, 2);
  ff.w_3 = drawn(type, TEST_NEGATIVE, 1, 1, din, mid, 1 / sqrt((double)din), rng);
  if (bias) ff.b_3 = drawn(ATTN_BF16, TEST_PADDED, 1, 1, 1, mid, 0.5, rng);
  return ff;
}

attn_norm drawn_norm(int64_t dm, test_rng *rng) {
  attn_norm n;
  memset(&n, 0, sizeof n);
  if (test_range(rng, 0, 1)) n.kind = ATTN_NORM_RMS, n.gain_less_one = (int)test_range(rng, 0, 1);
  n.gain = test_floats(dm, 1, rng);
  n.bias = test_floats(dm, 0.5, rng);
  n.eps = 0.01f;
  return n;
}

attn_tensor reordered(attn_tensor x, const int64_t *order) {
  attn_tensor y = test_tensor(x.dtype, TEST_BHTD, x.batch, x.heads, x.len, x.dim);
  for (int64_t i = 0; i < x.len; i++) test_copy(test_rows(y, i, 1), test_rows(x, order[i], 1));
  return y;
}

int64_t *shuffled(int64_t n, test_rng *rng) {
  int64_t *a = test_mem((size_t)(n + 1) * sizeof *a);
  for (int64_t i = 0; i < n; i++) {
    const int64_t j = test_range(rng, 0, i);
    a[i] = a[j], a[j] = i;
  }
  return a;
}
