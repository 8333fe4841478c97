/* tests/calls/qk_norm.c owns the definition of a norm of queries and keys in double, and random descriptions. */

#include "qk_norm.h"

#include <math.h>
#include <string.h>

attn_qk_norm qk_norm_described(test_rng *rng, int kind, int64_t heads, int64_t kv_heads,
                               int64_t dim) {
  attn_qk_norm p;
  memset(&p, 0, sizeof p);
  p.kind = (attn_qk_norm_kind)kind;
  p.gain_by_head = (int)test_range(rng, 0, 1), p.gain_less_one = (int)test_range(rng, 0, 1);
  const int by_head = p.gain_by_head || kind == ATTN_QK_NORM_RMS_ALL;
  if (test_range(rng, 0, 3)) p.q_gain = test_floats((by_head ? heads : 1) * dim, 0.5, rng);
  if (test_range(rng, 0, 3)) p.k_gain = test_floats((by_head ? kv_heads : 1) * dim, 0.5, rng);
  if (kind == ATTN_QK_NORM_L2 && test_range(rng, 0, 2)) p.temperature = test_floats(heads, 3, rng);
  const int64_t eps = test_range(rng, 0, 3);
  p.eps = eps == 0 ? 0 : eps == 1 ? ATTN_ZERO : eps == 2 ? 1e-5f : 0.5f;
  return p;
}

/* The rows of n numbers that are one norm. */
static void divide(double *x, int64_t n, const attn_qk_norm *p) {
  const double eps = p->eps == 0 && !signbit(p->eps) ? 1e-6 : (double)p->eps;
  double mean = 0, sum = 0;
  if (p->kind == ATTN_QK_NORM_LAYER)
    for (int64_t c = 0; c < n; c++) mean += x[c] / (double)n;
  for (int64_t c = 0; c < n; c++) x[c] -= mean, sum += x[c] * x[c];
  if (p->kind != ATTN_QK_NORM_L2) sum /= (double)n;
  const double size = sqrt(sum + eps);
  for (int64_t c = 0; c < n; c++) x[c] = size > 0 ? x[c] / size : 0;
}

void qk_norm_rows(double *x, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                  const attn_qk_norm *p, int keys) {
  const int all = p->kind == ATTN_QK_NORM_RMS_ALL;
  const float *gain = keys ? p->k_gain : p->q_gain;
  double *row = test_mem((size_t)(heads * dim) * sizeof *row + 1);
  for (int64_t b = 0; b < batch; b++)
    for (int64_t i = 0; i < len; i++) {
      for (int64_t h = 0; h < heads; h++)
        memcpy(row + h * dim, x + ((b * heads + h) * len + i) * dim, (size_t)dim * sizeof *x);
      for (int64_t h = 0; h < (all ? 1 : heads); h++)
        divide(row + h * dim, all ? heads * dim : dim, p);
      for (int64_t h = 0; h < heads; h++)
        for (int64_t c = 0; c < dim; c++) {
          double y = row[h * dim + c];
          if (gain)
            y *= (double)gain[(all || p->gain_by_head ? h * dim : 0) + c] + p->gain_less_one;
          if (!keys && p->temperature) y *= (double)p->temperature[h];
          x[((b * heads + h) * len + i) * dim + c] = y;
        }
    }
}

void qk_norm_to(attn_tensor y, attn_tensor x, const attn_qk_norm *p, int keys) {
  const int64_t n = x.batch * x.heads * x.len * x.dim;
  double *rows = test_mem((size_t)n * sizeof *rows + 1);
  int64_t at = 0;
  for (int64_t b = 0; b < x.batch; b++)
    for (int64_t h = 0; h < x.heads; h++)
      for (int64_t i = 0; i < x.len; i++)
        for (int64_t c = 0; c < x.dim; c++) rows[at++] = oracle_get(&x, b, h, i, c);
  qk_norm_rows(rows, x.batch, x.heads, x.len, x.dim, p, keys);
  at = 0;
  for (int64_t b = 0; b < x.batch; b++)
    for (int64_t h = 0; h < x.heads; h++)
      for (int64_t i = 0; i < x.len; i++)
        for (int64_t c = 0; c < x.dim; c++) oracle_set(&y, b, h, i, c, rows[at++]);
}
