/* tests/families/training/loss.c owns the loss over classes in float64. */

#include "loss.h"

loss_want loss_oracle(const cube *x, const int32_t *targets, const attn_cross_entropy_params *p) {
  const int64_t rows = x->batch * x->heads * x->len, V = x->dim;
  const double e = (double)p->smoothing, z = (double)p->z_loss;
  double g = p->grad != 0.0f ? (double)p->grad : signbit(p->grad) ? 0 : 1, count = 1;
  loss_want w = {cube_of(x->batch, x->heads, x->len, V), cube_of(x->batch, x->heads, x->len, V), 0,
                 test_mem((size_t)(rows + 1) * 8), 0};
  for (int64_t r = 0; r < rows; r++)
    w.counted += !(p->has_ignore_index && targets[r] == p->ignore_index);
  if (!p->sum) count = p->count ? (double)p->count : (double)w.counted;
  for (int64_t r = 0; r < rows; r++) {
    const double *row = x->data + r * V;
    double *d = w.d.data + r * V, top = -(double)INFINITY, sum = 0, mean = 0;
    const int32_t y = targets[r];
    w.row[r] = 0;
    for (int64_t c = 0; c < V; c++) d[c] = w.size.data[r * V + c] = 0;
    if (p->has_ignore_index && y == p->ignore_index) continue;
    for (int64_t c = 0; c < V; c++) top = fmax(top, row[c]);
    for (int64_t c = 0; c < V; c++) sum += exp(row[c] - top), mean += row[c] / (double)V;
    const double L = top + log(sum);
    w.row[r] = z * L * L;
    if (e < 1) w.row[r] += (1 - e) * (L - row[y]);
    if (e > 0) w.row[r] += e * (L - mean);
    w.loss += w.row[r] / count;
    for (int64_t c = 0; c < V; c++) {
      const double up = (1 + 2 * z * L) * exp(row[c] - L),
                   less = (1 - e) * (c == y) + e / (double)V;
      d[c] = g / count * (up - less);
      w.size.data[r * V + c] = fabs(g / count) * (fabs(up) + less);
    }
  }
  return w;
}

int32_t *loss_targets(int64_t n, int64_t classes, attn_cross_entropy_params *p, test_rng *rng) {
  int32_t *y = test_mem((size_t)(n + 1) * sizeof(int32_t));
  for (int64_t r = 0; r < n; r++) {
    y[r] = (int32_t)test_range(rng, 0, classes - 1);
    if (p->has_ignore_index && test_u64(rng) % 4 == 0) y[r] = p->ignore_index;
  }
  return y;
}

void loss_options(attn_cross_entropy_params *p, test_rng *rng) {
  const uint64_t pick = test_u64(rng);
  memset(p, 0, sizeof *p);
  if (pick & 1) p->smoothing = pick & 2 ? 0.1f : pick & 4 ? 1.0f : 0.4f;
  if (pick & 8) p->z_loss = pick & 16 ? 1e-3f : 0.1f;
  if (pick & 32) p->grad = pick & 64 ? -2.5f : 0.125f;
  if (pick & 128) p->sum = 1;
  if (!p->sum && (pick & 256)) p->count = 1 + (int64_t)(pick >> 20) % 30;
  if (pick & 512) p->has_ignore_index = 1, p->ignore_index = pick & 1024 ? -100 : 0;
}

attn_tensor loss_words(double **loss) {
  const attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 2);
  *loss = t.data;
  return t;
}
