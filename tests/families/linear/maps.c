/* tests/families/linear/maps.c owns the feature maps in float64: formulas straight from their papers. */

#include "maps.h"

static double or_default(float x, double otherwise) {
  return x != 0 ? (double)x : signbit(x) ? 0 : otherwise;
}

static int exponential(const attn_feature_map *f) {
  return f->kind == ATTN_FEATURES_SOFTMAX || f->kind == ATTN_FEATURES_HYPERBOLIC;
}

int map_stabilised(const attn_feature_map *f) {
  return exponential(f) || (f->kind == ATTN_FEATURES_RFA && f->keep_norm);
}

int64_t map_count(const attn_feature_map *f, int64_t dk) {
  switch (f->kind) {
    case ATTN_FEATURES_ACT: return f->w.data ? f->w.len : dk;
    case ATTN_FEATURES_DPFP: return 2 * dk * (f->order ? f->order : 1);
    case ATTN_FEATURES_SOFTMAX: return f->w.len;
    case ATTN_FEATURES_RFA:
    case ATTN_FEATURES_HYPERBOLIC: return 2 * f->w.len;
    case ATTN_FEATURES_USER: return f->features;
    default: return dk;
  }
}

static double scale_of_map(const attn_feature_map *f, int64_t dk) {
  return sqrt(or_default(f->scale, exponential(f) ? pow((double)dk, -0.5) : 1));
}

double map_eps(const attn_feature_map *f, attn_key_stab stab) {
  return or_default(f->eps, stab == ATTN_STAB_RUNNING ? 0 : 1e-4);
}

double *map_x(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  double *x = test_mem((size_t)t->dim * sizeof *x);
  for (int64_t c = 0; c < t->dim; c++) x[c] = oracle_get(t, b, h, i, c);
  return x;
}

double map_act(attn_activation f, double x, double dx, double *moves) {
  const double pi = 3.14159265358979323846, slope = sqrt(2 / pi);
  *moves = dx * 1.2;
  switch (f) {
    case ATTN_ACT_DEFAULT: return x;
    case ATTN_ACT_NONE: return x;
    case ATTN_ACT_RELU: return fmax(x, 0);
    case ATTN_ACT_RELU2: *moves = 2 * dx * (fabs(x) + dx); return fmax(x, 0) * fmax(x, 0);
    case ATTN_ACT_GELU: return x * erfc(-x / sqrt(2)) / 2;
    case ATTN_ACT_GELU_TANH: return x / (1 + exp(-2 * slope * (x + 0.044715 * x * x * x)));
    case ATTN_ACT_SILU: return x / (1 + exp(-x));
    case ATTN_ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ATTN_ACT_TANH: return tanh(x);
    case ATTN_ACT_EXP: *moves = exp(x + dx) * dx; return exp(x);
    default: return x > 0 ? x + 1 : exp(x);
  }
}

/* u_r = w_r . x / sigma, and the rounding of a float chain. */
static double direction(const attn_feature_map *f, const double *x, int64_t dk, int64_t head,
                        int64_t r, double *slack) {
  double u = 0, size = 0;
  for (int64_t c = 0; c < dk; c++) {
    double t = x[c] * oracle_get(&f->w, 0, f->w.heads > 1 ? head : 0, r, c);
    if (f->kind == ATTN_FEATURES_RFA)
      t /= f->sigmas ? (double)f->sigmas[c] : or_default(f->sigma, 1);
    u += t, size += fabs(t);
  }
  *slack = 6e-8 * (4 + sqrt((double)dk) / 2) * size;
  return u;
}

static double squares(const double *x, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; c++) sum += x[c] * x[c];
  return sum;
}

/* x as the directions see it: scaled, of RFA on the unit sphere. */
static double *seen(const attn_feature_map *f, const double *x, int64_t dk, int is_key) {
  double *t = test_mem((size_t)dk * sizeof *t), s = scale_of_map(f, dk);
  if (!is_key) s *= or_default(f->query_scale, 1);
  for (int64_t c = 0; c < dk; c++) t[c] = s * x[c];
  if (f->kind == ATTN_FEATURES_RFA && !f->keep_norm) {
    s = fmax(sqrt(squares(t, dk)), 1e-6);
    for (int64_t c = 0; c < dk; c++) t[c] /= s;
  }
  return t;
}

double map_top(const attn_feature_map *f, const double *x, int64_t dk, int64_t head) {
  const double *t = seen(f, x, dk, 1);
  double top = -(double)INFINITY, slack;
  if (f->kind == ATTN_FEATURES_RFA) {
    const double sigma = or_default(f->sigma, 1);
    return squares(t, dk) / (2 * sigma * sigma);
  }
  for (int64_t r = 0; r < f->w.len; r++) {
    const double u = direction(f, t, dk, head, r, &slack);
    top = fmax(top, f->kind == ATTN_FEATURES_HYPERBOLIC ? fabs(u) : u);
  }
  return top;
}

/* m^-1/2 (exp(u - n - c) + eps) */
static void exponentials(double *y, double *slack, const attn_feature_map *f, const double *x,
                         int64_t dk, int64_t head, int is_key, double c, double eps) {
  const int64_t d = f->w.len, m = map_count(f, dk);
  const double n = squares(x, dk) / 2, root = 1 / sqrt((double)m);
  double *du = test_mem((size_t)d * sizeof *du), top = -(double)INFINITY, worst = 0;
  for (int64_t r = 0; r < d; r++) {
    y[r] = direction(f, x, dk, head, r, &du[r]);
    top = fmax(top, m > d ? fabs(y[r]) : y[r]), worst = fmax(worst, du[r]);
  }
  if (!is_key) c = top;
  const double common = worst + 3e-7 * (n + fabs(c) + fabs(top)) + 2e-6;
  for (int64_t r = 0; r < d; r++) {
    const double u = y[r];
    for (int sign = 0; sign < m / d; sign++) {
      const double e = exp((sign ? -u : u) - n - c);
      y[r + sign * d] = root * (e + eps);
      slack[r + sign * d] =
          root * e * (du[r] + common + 1e-7 * fabs(u)) + 3e-7 * root * eps + 2e-37;
    }
  }
}

static void normalise(double *y, double *slack, int64_t m, int sum) {
  double all = 0, wrong = 0;
  for (int64_t r = 0; r < m; r++) {
    all += sum ? y[r] : y[r] * y[r];
    wrong += sum ? slack[r] + 3e-7 * fabs(y[r]) : slack[r] * slack[r];
  }
  if (!sum) all = sqrt(all), wrong = sqrt(wrong) + 1e-6 * all;
  for (int64_t r = 0; r < m; r++) {
    if (all == 0) {
      y[r] = slack[r] = 0;
      continue;
    }
    if (wrong > 0.5 * fabs(all)) { /* a difference of nearly equal numbers: nothing is known */
      slack[r] = (double)INFINITY;
      continue;
    }
    y[r] /= all;
    slack[r] = 2 * (slack[r] + fabs(y[r]) * wrong) / fabs(all) + 3e-7 * fabs(y[r]);
  }
}

void map_row(double *y, double *slack, const attn_feature_map *f, const double *x0, int64_t dk,
             int64_t head, int is_key, double c, double eps) {
  const double *x = seen(f, x0, dk, is_key);
  const int64_t m = map_count(f, dk), d = f->w.len;
  const double add = or_default(f->kernel_eps, f->w.data ? 1e-3 : 0);
  switch (f->kind) {
    case ATTN_FEATURES_ELU1:
      for (int64_t r = 0; r < m; r++) {
        y[r] = x[r] > 0 ? x[r] + 1 : exp(x[r]);
        slack[r] = (1e-6 + 2e-7 * fmin(fabs(x[r]), 100)) * y[r] + 2e-38;
      }
      break;
    case ATTN_FEATURES_ACT:
      for (int64_t r = 0; r < m; r++) {
        double du, u = f->w.data ? direction(f, x, dk, head, r, &du) : x[r];
        if (!f->w.data) du = 2e-7 * fabs(u);
        y[r] = map_act(f->activation, u, du + 1e-7 * fabs(u), &slack[r]);
        slack[r] += 1e-5 * fabs(y[r]) + 2e-37, y[r] += add;
      }
      break;
    case ATTN_FEATURES_DPFP:
      for (int64_t r = 0; r < m; r++) {
        const int64_t i = r % (2 * dk), j = (i + 2 * dk - r / (2 * dk) - 1) % (2 * dk);
        const double a = i < dk ? fmax(x[i], 0) : fmax(-x[i - dk], 0);
        const double b = j < dk ? fmax(x[j], 0) : fmax(-x[j - dk], 0);
        y[r] = a * b, slack[r] = 4e-7 * y[r] + 1e-37;
      }
      break;
    case ATTN_FEATURES_RFA: {
      const double sigma = or_default(f->sigma, 1), root = 1 / sqrt((double)d);
      double by = root, more = 0;
      if (f->keep_norm && is_key) {
        const double n = squares(x, dk) / (2 * sigma * sigma);
        by *= exp(n - c), more = 3e-7 * (n + fabs(c));
      }
      for (int64_t r = 0; r < d; r++) {
        double du;
        const double u = direction(f, x, dk, head, r, &du);
        y[r] = by * sin(u), y[d + r] = by * cos(u);
        slack[r] = slack[d + r] = by * (du + 4e-7 * fabs(u) + 5e-7 + more);
      }
      break;
    }
    case ATTN_FEATURES_USER:
      for (int64_t r = 0; r < dk; r++) y[r] = x[r], y[dk + r] = x[r] * x[r];
      y[2 * dk] = 1;
      for (int64_t r = 0; r < m; r++) slack[r] = 4e-7 * fabs(y[r]);
      break;
    default: exponentials(y, slack, f, x, dk, head, is_key, c, eps);
  }
  if (f->norm == ATTN_FEATURE_NORM_SUM || f->norm == ATTN_FEATURE_NORM_L2)
    normalise(y, slack, m, f->norm == ATTN_FEATURE_NORM_SUM);
}

void map_callback(void *user, float *y, const float *x, int64_t n, int64_t m, int64_t dk,
                  int64_t head, int is_key) {
  (void)user, (void)head, (void)is_key;
  for (int64_t i = 0; i < n; i++, x += dk, y += m) {
    for (int64_t c = 0; c < dk; c++) y[c] = x[c], y[dk + c] = x[c] * x[c];
    y[2 * dk] = 1;
  }
}

attn_feature_map map_of(attn_feature_kind kind, int64_t heads, int64_t directions, int64_t dk,
                        uint64_t seed, attn_dtype type) {
  attn_feature_map f;
  memset(&f, 0, sizeof f);
  f.kind = kind;
  if (kind == ATTN_FEATURES_USER) f.features = 2 * dk + 1, f.fn = map_callback;
  if (kind == ATTN_FEATURES_ELU1 || kind == ATTN_FEATURES_DPFP || kind == ATTN_FEATURES_USER ||
      directions == 0)
    return f;
  attn_random_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.seed = f.seed = seed, p.gaussian = kind == ATTN_FEATURES_RFA;
  f.w = test_tensor(ATTN_F32, TEST_PADDED, 1, heads, directions, dk);
  assert_int_equal(attn_random_features(f.w, &p, &ctx), ATTN_OK);
  if (type == ATTN_F32) return f;
  const attn_tensor w = f.w;
  f.w = test_tensor(type, TEST_PADDED, 1, heads, directions, dk);
  test_copy(f.w, w);
  return f;
}
