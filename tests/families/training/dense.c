/* tests/families/training/dense.c owns activations, their derivatives and sums of gradients in float64. */

#include "dense.h"

static const double pi = 3.14159265358979323846;

double act_of(attn_activation f, double x) {
  switch (f) {
    case ATTN_ACT_RELU: return x > 0 ? x : 0;
    case ATTN_ACT_RELU2: return x > 0 ? x * x : 0;
    case ATTN_ACT_GELU: return x * erfc(-x / sqrt(2)) / 2;
    case ATTN_ACT_GELU_TANH: return x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x))) / 2;
    case ATTN_ACT_SILU: return x / (1 + exp(-x));
    case ATTN_ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ATTN_ACT_TANH: return tanh(x);
    case ATTN_ACT_EXP: return exp(x);
    case ATTN_ACT_ELU1: return x > 0 ? x + 1 : exp(x);
    default: return x;
  }
}

double act_slope(attn_activation f, double x) {
  const double a = sqrt(2 / pi), far = fmin(fmax(x, -700), 700), g = 1 / (1 + exp(-far));
  double t;
  switch (f) {
    case ATTN_ACT_RELU: return x > 0;
    case ATTN_ACT_RELU2: return x > 0 ? 2 * x : 0;
    case ATTN_ACT_GELU: return erfc(-far / sqrt(2)) / 2 + far * exp(-far * far / 2) / sqrt(2 * pi);
    case ATTN_ACT_GELU_TANH:
      t = tanh(a * (far + 0.044715 * far * far * far));
      return (1 + t) / 2 + far * (1 - t * t) * a * (1 + 0.134145 * far * far) / 2;
    case ATTN_ACT_SILU: return g * (1 + far * (1 - g));
    case ATTN_ACT_SIGMOID: return g * (1 - g);
    case ATTN_ACT_TANH: return 1 - tanh(x) * tanh(x);
    case ATTN_ACT_EXP: return exp(x);
    case ATTN_ACT_ELU1: return x > 0 ? 1 : exp(x);
    default: return 1;
  }
}

double act_slope_error(attn_activation f, double x, double e) {
  const double at = act_slope(f, x);
  return fmax(fabs(act_slope(f, x + e) - at), fabs(act_slope(f, x - e) - at)) +
         5e-7 * (1 + fabs(at));
}

act_formed act_in_form(const attn_act_form *m, attn_activation f, double z, double u, int gated) {
  const double s = m->slope != 0 ? (double)m->slope : 1;
  const double most = m->limit != 0 ? (double)m->limit : (double)INFINITY;
  const double in = s * fmin(z, most);
  const double by = (gated ? fmax(-most, fmin(u, most)) + (double)m->gate_add : 1) / s;
  const act_formed y = {act_of(f, in) * by, z < most ? act_slope(f, in) * s * by : 0,
                        gated && fabs(u) < most ? act_of(f, in) / s : 0};
  return y;
}

double act_in_form_error(const attn_act_form *m, attn_activation f, double z, double e, double u,
                         int gated) {
  const double s = m->slope != 0 ? (double)m->slope : 1;
  const double most = m->limit != 0 ? (double)m->limit : (double)INFINITY;
  const double by = gated ? fmin(fabs(u), most) + fabs((double)m->gate_add) : 1;
  const double slope = fabs(act_slope(f, s * fmin(z, most)));
  return z < most - e   ? by * act_slope_error(f, s * z, s * e)
         : z < most + e ? by * (slope + 1) /* on either side of the limit */
                        : 0;
}

double dense_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
  return oracle_get(t, t->batch > 1 ? b : 0, t->heads > 1 ? h : 0, t->len > 1 ? i : 0, c);
}

dense_sum dense_open(const attn_tensor *d) {
  dense_sum s = {cube_of(d->batch, d->heads, d->len, d->dim),
                 cube_of(d->batch, d->heads, d->len, d->dim)};
  const int64_t n = d->batch * d->heads * d->len * d->dim;
  for (int64_t i = 0; i < n; i++) s.want.data[i] = s.size.data[i] = 0;
  return s;
}

void dense_add(dense_sum *s, int64_t b, int64_t h, int64_t i, int64_t c, double x, double size) {
  const cube *w = &s->want;
  b = w->batch > 1 ? b : 0, h = w->heads > 1 ? h : 0, i = w->len > 1 ? i : 0;
  cube_at(&s->want, b, h, i)[c] += x;
  cube_at(&s->size, b, h, i)[c] += size;
}

void dense_check(const dense_sum *s, const attn_tensor *got, const char *what) {
  const cube *w = &s->want;
  for (int64_t n = 0; n < w->batch * w->heads * w->len; n++) {
    const int64_t b = n / w->len / w->heads, h = n / w->len % w->heads, i = n % w->len;
    for (int64_t c = 0; c < w->dim; c++)
      value_check(oracle_get(got, b, h, i, c), cube_at(w, b, h, i)[c],
                  cube_at(&s->size, b, h, i)[c] + 1e-30, got->dtype, what, b, h, i, c);
  }
}

double dense_dot(const attn_tensor *x, const attn_tensor *y) {
  double sum = 0;
  for (int64_t n = 0; n < x->batch * x->heads * x->len; n++) {
    const int64_t b = n / x->len / x->heads, h = n / x->len % x->heads, i = n % x->len;
    for (int64_t c = 0; c < x->dim; c++)
      sum += oracle_get(x, b, h, i, c) * dense_get(y, b, h, i, c);
  }
  return sum;
}
