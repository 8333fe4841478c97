/* tests/families/content/sac.c owns the oracle of the network that draws edges. */

#include "sac.h"

attn_dtype sac_type(test_rng *rng) { return (attn_dtype)test_range(rng, 0, 2); }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Row n of a weight of head h. */
static double times(const attn_tensor *w, int64_t b, int64_t h, int64_t n, const double *x) {
  double sum = 0;
  for (int64_t c = 0; c < w->dim; c++)
    sum += oracle_get(w, w->batch > 1 ? b : 0, w->heads > 1 ? h : 0, n, c) * x[c];
  return sum;
}

void sac_step(const attn_lstm_params *p, int64_t head, const double *x, double *h, double *c) {
  const int64_t n = p->w_hh.dim;
  double *a = test_mem((size_t)(4 * n) * sizeof *a);
  for (int64_t k = 0; k < 4 * n; k++) {
    a[k] = times(&p->w_ih, 0, head, k, x) + times(&p->w_hh, 0, head, k, h);
    if (p->bias.data) a[k] += oracle_get(&p->bias, 0, p->bias.heads > 1 ? head : 0, 0, k);
  }
  for (int64_t k = 0; k < n; k++) {
    c[k] = sigmoid(a[n + k]) * c[k] + sigmoid(a[k]) * tanh(a[2 * n + k]);
    h[k] = sigmoid(a[3 * n + k]) * tanh(c[k]);
  }
}

void sac_point(double *y, const attn_sac_params *p, const attn_tensor *e, int64_t b, int64_t head,
               const double *h, int64_t source) {
  double *u = test_mem((size_t)e->dim * sizeof *u);
  const int64_t d = p->dist.len / 2;
  for (int64_t c = 0; c < e->dim; c++) u[c] = times(&p->w_p, 0, head, c, h);
  for (int64_t n = 0; n < e->len; n++) {
    y[n] = times(e, b, head, n, u);
    if (source < 0 || !p->dist.data) continue;
    int64_t at = n - source < -d ? -d : n - source > d ? d : n - source;
    y[n] += times(&p->dist, 0, head, at + d, u);
  }
}

double sac_uniform(uint64_t seed, int64_t head, int64_t m) {
  oracle_stream s = oracle_stream_of(seed, 8, (uint64_t)head, (uint64_t)m);
  return ((double)(oracle_next64(&s) >> 12) + 0.5) / 4503599627370496.0;
}

/* Whether `pick` is what greedy (u < 0) or sampled choice may take, and with this log_p. */
void sac_judge(const double *y, const char *allowed, int64_t n, double u, int64_t pick,
               double log_p, const char *what) {
  double top = -(double)INFINITY, sum = 0, before = 0;
  assert_true(pick >= 0 && pick < n && allowed[pick]);
  for (int64_t t = 0; t < n; t++)
    if (allowed[t]) top = fmax(top, y[t]);
  for (int64_t t = 0; t < n; t++)
    if (allowed[t]) sum += exp(y[t] - top);
  for (int64_t t = 0; t < pick; t++)
    if (allowed[t]) before += exp(y[t] - top) / sum;
  const double p = exp(y[pick] - top) / sum;
  if (u < 0) {
    assert_true(y[pick] >= top - 1e-4);
  } else {
    assert_true(before <= u + 1e-5);
    assert_true(before + p >= u - 1e-5);
  }
  value_check(log_p, log(p), 1e-4, ATTN_F32, what, 0, 0, pick, 0);
}

network sac_network(int64_t batch, int64_t heads, int64_t nodes, int64_t de, int64_t dh,
                    int64_t reach, test_rng *rng) {
  network x;
  memset(&x, 0, sizeof x);
  const double size = 1.2 / sqrt((double)de), wide = 1.2 / sqrt((double)dh);
  const int64_t own = test_range(rng, 0, 1) ? heads : 1;
  x.e = drawn(sac_type(rng), TEST_PADDED, batch, own, nodes, de, 1, rng);
  x.p.lstm.w_ih = drawn(ATTN_F32, TEST_NEGATIVE, 1, own, 4 * dh, de, size, rng);
  x.p.lstm.w_hh = drawn(sac_type(rng), TEST_PADDED, 1, 1, 4 * dh, dh, wide, rng);
  if (test_range(rng, 0, 1))
    x.p.lstm.bias = drawn(ATTN_F16, TEST_BHTD, 1, own, 1, 4 * dh, 0.5, rng);
  x.p.w_p = drawn(ATTN_F32, TEST_PADDED, 1, heads, de, dh, 2 * wide, rng);
  if (reach >= 0) x.p.dist = drawn(ATTN_BF16, TEST_BHTD, 1, 1, 2 * reach + 1, de, 1, rng);
  if (test_range(rng, 0, 1)) x.p.sos = drawn(ATTN_F32, TEST_BHTD, 1, own, 1, de, 1, rng);
  x.p.heads = heads;
  return x;
}
