/* tests/calls/reshaped.c owns the float64 formula of attn_reshaped, and scenes of it. */

#include "reshaped.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "terms.h"

#define EPSILON 5.9604644775390625e-8

attn_report reshaped_run(const reshaped_call *c) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_reshaped(c->o, c->q, c->k, c->v, &c->p, &ctx);
  if (status != ATTN_OK)
    fail_msg("attn_reshaped: %s: %s", attn_status_string(status),
             ctx.reason ? ctx.reason : "(null)");
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

static double or_default(float x, double fallback) {
  return x == 0 && !signbit(x) ? fallback : (double)x;
}

/* The rows of one (batch, head, query): scores, weights, and how well float32 can know them. */
typedef struct reshaped_row {
  double *x, *dx, *w, *dw;             /* [Tk]; dx < 0: no key */
  double sum, sum_off, left, left_off; /* what sticks leave, and for whom */
  double shift;                        /* in x, but no score */
  double lse, lse_off;
  int64_t own;
  int live; /* before q_len, so that sinks count */
} reshaped_row;

/* Contextual positions: gates are summed from the last key back; shift is no part of their scores. */
static void positions(const reshaped_call *c, int64_t b, int64_t h, int64_t i, double shift,
                      reshaped_row *row) {
  const attn_tensor *e = &c->p.cope.table;
  double at = 0, off = 0, n = 0, last = (double)(e->len - 1);
  for (int64_t j = c->k.len - 1; j >= 0; j--) {
    if (row->dx[j] < 0) continue;
    double g = 1 / (1 + exp(shift - row->x[j])), z[2] = {0, 0}, size = 0;
    at += g, off += g * (1 - g) * row->dx[j] + 4 * EPSILON * g, n++;
    double p = at < last ? at : last, t = p - floor(p);
    for (int64_t x = 0; x < c->q.dim; x++) {
      double q = oracle_get(&c->q, b, h, i, x);
      double from = q * oracle_get(e, 0, e->heads > 1 ? h : 0, (int64_t)floor(p), x);
      double to = q * oracle_get(e, 0, e->heads > 1 ? h : 0, (int64_t)ceil(p), x);
      z[0] += from, z[1] += to, size += fabs(from) + fabs(to);
    }
    double slope = fabs(z[1] - z[0]);
    if (at - off < last) { /* a position that may lie on either side of a whole one */
      double next = 0, before = 0;
      for (int64_t x = 0; x < c->q.dim; x++) {
        double q = oracle_get(&c->q, b, h, i, x);
        int64_t whole = (int64_t)floor(p + 0.5);
        double here = oracle_get(e, 0, e->heads > 1 ? h : 0, whole, x);
        if (whole < e->len - 1)
          next += q * (oracle_get(e, 0, e->heads > 1 ? h : 0, whole + 1, x) - here);
        if (whole > 0) before += q * (oracle_get(e, 0, e->heads > 1 ? h : 0, whole - 1, x) - here);
      }
      slope = fmax(slope, fmax(fabs(next), fabs(before)));
      row->dx[j] += slope * (off + EPSILON * at * 8);
    }
    row->x[j] += (1 - t) * z[0] + t * z[1];
    row->dx[j] += EPSILON * (size * (9 + sqrt((double)c->q.dim) / 4) + fabs(row->x[j]));
  }
}

/* x becomes H_t x of head h. */
static void turn(const attn_path *p, int64_t b, int64_t h, int64_t t, double *x) {
  double z = 0;
  for (int64_t c = 0; c < p->w.dim; c++) z += x[c] * oracle_get(&p->w, b, h, t, c);
  z *= oracle_get(&p->beta, b, h, t, 0);
  for (int64_t c = 0; c < p->w.dim; c++) x[c] -= z * oracle_get(&p->w, b, h, t, c);
}

static double length_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  double sum = 0;
  for (int64_t c = 0; c < t->dim; c++) sum += pow(oracle_get(t, b, h, i, c), 2);
  return sqrt(sum);
}

/* What stands in the place of a row for every index. */
static attn_tensor in_place_of(const attn_tensor *t, const double *x, float *row) {
  attn_tensor one = *t;
  for (int64_t c = 0; c < t->dim; c++) row[c] = (float)x[c];
  one.data = row, one.dtype = ATTN_F32;
  one.stride_batch = one.stride_head = one.stride_len = 0;
  return one;
}

/* A score of PaTH, the query carried key by key: x is at key j already. Terms that take the query as given have the key carried
 * forwards instead. */
static oracle_pair path_score(const reshaped_call *c, const attn_sdpa_params *s, int64_t b,
                              int64_t h, int64_t i, int64_t j, int64_t last, double *x,
                              float *row) {
  const int64_t head = h * c->k.heads / c->q.heads;
  const double scale =
      s->scale == 0 && !signbit(s->scale) ? 1 / sqrt((double)c->q.dim) : (double)s->scale;
  oracle_pair pair;
  if (s->relative.keys.data || s->labels.label) {
    for (int64_t e = 0; e < c->k.dim; e++) x[e] = oracle_get(&c->k, b, head, j, e);
    for (int64_t t = j + 1; t <= last; t++) turn(&c->p.path, b, head, t, x);
    attn_tensor k = in_place_of(&c->k, x, row);
    pair = oracle_score(&c->q, &k, s, b, h, i, j);
  } else {
    attn_tensor q = in_place_of(&c->q, x, row);
    pair = oracle_score(&q, &c->k, s, b, h, i, j);
  }
  pair.size += fabs(scale) * length_of(&c->q, b, h, i) * length_of(&c->k, b, head, j) *
               (2 + 2 / sqrt((double)c->q.dim) + (double)((last - j) / 128) / 2);
  return pair;
}

/* Final scores; a key that is forbidden, or whose score is -inf, is none. */
static void scores(const reshaped_call *c, int64_t b, int64_t h, int64_t i, reshaped_row *row) {
  const attn_reshaped_params *p = &c->p;
  attn_sdpa_params s = p->attention;
  int64_t at = oracle_position(&c->q, &c->k, &s, b, i), n = 0;
  double most = (double)c->k.len;
  if (s.kv_len) most = s.kv_len[b];
  if (p->temperature.on) {
    double scale = s.scale == 0 && !signbit(s.scale) ? 1 / sqrt((double)c->q.dim) : (double)s.scale;
    double place = fmax((double)at + or_default(p->temperature.shift, 1), 0);
    double beta = or_default(p->temperature.beta, (double)0.1f);
    double by = 1 + beta * log(floor(place / or_default(p->temperature.interval, 8192)) + 1);
    s.scale = (float)(scale * by);
    if (s.scale == 0) s.scale = -0.0f;
  }
  const int path = p->path.w.data != NULL;
  const int64_t end = at < (int64_t)most - 1 ? at : (int64_t)most - 1;
  double *x = path ? test_mem((size_t)c->q.dim * sizeof *x) : NULL;
  float *one = path ? test_mem((size_t)c->q.dim * sizeof *one) : NULL;
  for (int64_t e = 0; path && e < c->q.dim; e++) x[e] = oracle_get(&c->q, b, h, i, e);
  const attn_tensor *log_f = &p->forget.log_f;
  double later = 0; /* what keys after j up to the own one forget */
  for (int64_t j = c->k.len - 1; j >= 0; j--) {
    if (path && j < end) turn(&p->path, b, h * c->k.heads / c->q.heads, j + 1, x);
    double forgotten = later;
    row->x[j] = 0, row->dx[j] = -1;
    if (log_f->data && j <= at && (double)j < most)
      later += oracle_get(log_f, b, h * log_f->heads / c->q.heads, j, 0);
    if (!oracle_allowed(&c->q, &c->k, &s, b, h, i, j)) continue;
    oracle_pair pair = path ? path_score(c, &s, b, h, i, j, end, x, one)
                            : oracle_score(&c->q, &c->k, &s, b, h, i, j);
    if (p->kind == ATTN_RESHAPE_STICK && !p->include_self && j >= at) continue;
    if (pair.x == -(double)INFINITY || forgotten == -(double)INFINITY) continue;
    if (s.span.z) { /* it multiplies weights, whatever becomes of scores */
      const double m = log(oracle_span(&s, &c->q, b, h, i, j - at));
      pair.x -= m, forgotten += m;
    }
    row->x[j] = pair.x, row->w[j] = forgotten, n++;
    row->dx[j] = EPSILON * pair.size * (7 + sqrt((double)c->q.dim) / 4);
  }
  int64_t rows = s.q_len ? s.q_len[b] : c->q.len;
  row->live = i < rows;
  row->own = i < rows && at >= 0 && (double)at < most ? at : -1;
  double factor = 1, shift = 0;
  if (p->ssmax.scale)
    factor = (double)p->ssmax.scale[h] * log((double)(n ? n : 1)) +
             (p->ssmax.bias ? (double)p->ssmax.bias[h] : 0);
  if (p->kind == ATTN_RESHAPE_SIGMOID)
    shift = p->has_bias ? (double)p->bias : -log(fmax(p->by_row ? (double)n : most, 1));
  for (int64_t j = 0; j < c->k.len; j++) {
    if (row->dx[j] < 0) continue;
    double forgotten = row->w[j];
    row->x[j] = row->x[j] * factor + forgotten + shift;
    row->dx[j] =
        row->dx[j] * fabs(factor) + EPSILON * 3 * (fabs(row->x[j]) + fabs(forgotten) + fabs(shift));
  }
  row->shift = shift;
  if (p->cope.table.data) positions(c, b, h, i, shift, row);
}

/* [Tq][Tk] what rows before each take from keys, and how well that is known, by the scores of head 0. */
static void fade(const reshaped_call *c, int64_t b, double *f, double *off, reshaped_row *row) {
  const attn_selective *s = &c->p.selective;
  const int64_t n = c->k.len;
  for (int64_t j = 0; j < n; j++) f[j] = off[j] = 0;
  for (int64_t i = 0; i < c->q.len; i++) {
    double *now = f + i * n, *sure = off + i * n;
    int64_t at = oracle_position(&c->q, &c->k, &c->p.attention, b, i);
    scores(c, b, 0, i, row);
    for (int64_t j = 0; j < n && i + 1 < c->q.len; j++) {
      double x = row->dx[j] < 0 || j == at || (j == 0 && !s->first) ? 0 : row->x[j] - row->shift;
      now[n + j] = now[j] + (x > 0 ? x : 0);
      sure[n + j] = sure[j] + (x > -row->dx[j] && row->dx[j] > 0 ? row->dx[j] : 0);
    }
  }
}

static double soft_plus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* Keys from the last to the first. */
static void break_stick(const reshaped_call *c, reshaped_row *row) {
  double taken = 0, off = 0;
  row->sum = row->sum_off = 0;
  for (int64_t j = c->k.len - 1; j >= 0; j--) {
    double x = row->x[j];
    row->w[j] = row->dw[j] = 0;
    if (row->dx[j] < 0) continue;
    double own = soft_plus(-x), share = x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
    row->w[j] = exp(-own - taken);
    row->dw[j] = row->w[j] * (row->dx[j] * (1 - share) + off + 4 * EPSILON * (own + taken + 3));
    taken += soft_plus(x), off += share * row->dx[j] + 3 * EPSILON * soft_plus(x);
    row->sum += row->w[j], row->sum_off += row->dw[j];
  }
  row->left = exp(-taken), row->left_off = row->left * (off + 4 * EPSILON * (taken + 3));
}

/* The threshold by bisection. low, high: keys that have a weight for sure, and at most. */
static void entmax(const reshaped_call *c, int64_t h, reshaped_row *row, double *low,
                   double *high) {
  double alpha = c->p.alphas ? (double)c->p.alphas[h] : c->p.alpha != 0 ? (double)c->p.alpha : 1.5;
  double power = 1 / (alpha - 1), top = -(double)INFINITY, worst = 0, lo = -1, hi = 0, sum = 0;
  *low = *high = row->sum = row->sum_off = 0;
  for (int64_t j = 0; j < c->k.len; j++)
    if (row->dx[j] >= 0 && row->x[j] > top) top = row->x[j];
  for (int64_t j = 0; j < c->k.len; j++)
    if (row->dx[j] > worst && (alpha - 1) * (row->x[j] - top) > -1.01) worst = row->dx[j];
  for (int n = 0; n < 90; n++) {
    double mid = lo + (hi - lo) / 2;
    sum = 0;
    for (int64_t j = 0; j < c->k.len; j++) {
      double u = row->dx[j] < 0 ? 0 : (alpha - 1) * (row->x[j] - top) - mid;
      if (u > 0) sum += pow(u, power);
    }
    if (sum >= 1)
      lo = mid;
    else
      hi = mid;
  }
  for (int64_t j = 0; j < c->k.len; j++) {
    row->w[j] = row->dw[j] = 0;
    if (row->dx[j] < 0) continue;
    double u = (alpha - 1) * (row->x[j] - top) - lo, off = 2 * (alpha - 1) * worst + 12 * EPSILON;
    row->w[j] = isnan(row->x[j]) ? row->x[j] : u > 0 ? pow(u, power) : 0;
    row->dw[j] = (u + off > 0 ? pow(u + off, power) : 0) - (u > off ? pow(u - off, power) : 0) +
                 row->w[j] * EPSILON * 16 * power;
    *low += u > off && pow(u - off, power) > 1e-36,
        *high += u > -off; /* a weight that floats have */
  }
}

static void weights(const reshaped_call *c, int64_t h, reshaped_row *row) {
  double top = 0, total = 0, loose = 0;
  const attn_reshaped_params *p = &c->p;
  attn_reshape_kind kind = p->kind;
  if (kind == ATTN_RESHAPE_STICK) {
    break_stick(c, row);
    return;
  }
  if (kind == ATTN_RESHAPE_ENTMAX) {
    double low, high;
    entmax(c, h, row, &low, &high);
    return;
  }
  if (kind == ATTN_RESHAPE_SOFTMAX) top = -(double)INFINITY;
  for (int64_t j = 0; j < c->k.len; j++)
    if (row->dx[j] >= 0 && row->x[j] > top) top = row->x[j];
  double sink = -(double)INFINITY, one = p->attention.softmax_one ? 0 : sink;
  if (p->attention.sinks) sink = (double)p->attention.sinks[h];
  if (!row->live) sink = one = -(double)INFINITY;
  top = fmax(top, fmax(sink, one));
  if (sink > -(double)INFINITY) total += exp(sink - top);
  if (one == 0) total += exp(-top);
  for (int64_t j = 0; j < c->k.len; j++) {
    double x = row->x[j], e = 0, off = 0;
    row->w[j] = row->dw[j] = 0;
    if (row->dx[j] < 0) continue;
    if (kind == ATTN_RESHAPE_SIGMOID) {
      e = x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
      off = e * (1 - e) * row->dx[j];
    } else if (kind == ATTN_RESHAPE_SOFTPICK) {
      e = exp(-top) * expm1(x < 300 ? x : 300);
      if (top > 30) e = exp(x - top) - exp(-top);
      off = exp(x - top) * row->dx[j];
    } else {
      e = exp(x - top), off = e * row->dx[j];
    }
    if (isnan(x)) e = x;
    total += fabs(e), loose += off + 4 * EPSILON * fabs(e);
    row->w[j] = e > 0 || isnan(e) ? e : 0, row->dw[j] = e > -off ? off : 0;
  }
  if (kind == ATTN_RESHAPE_SOFTPICK) total += 1e-8;
  row->lse = top + log(total), row->lse_off = loose / total + 3 * EPSILON * (1 + fabs(row->lse));
  row->sum = row->sum_off = 0;
  for (int64_t j = 0; j < c->k.len; j++) {
    if (row->dx[j] < 0) continue;
    double spread = 0;
    if (kind != ATTN_RESHAPE_SIGMOID) {
      row->w[j] /= total, row->dw[j] /= total;
      spread = row->w[j] * loose / total;
    }
    row->dw[j] += spread + 12 * EPSILON * row->w[j];
    row->sum += row->w[j], row->sum_off += row->dw[j];
  }
}

static double stored(attn_dtype type, double x) {
  return fabs(x) * ldexp(1, type == ATTN_F16    ? -11
                            : type == ATTN_BF16 ? -8
                                                : -24) +
         (type == ATTN_F16 ? ldexp(1, -24) : 1e-37);
}

void reshaped_judge(double got, double want, double unsure, const char *what, int64_t b, int64_t h,
                    int64_t i, int64_t x) {
  if (isnan(want) ? isnan(got) : fabs(got - want) <= unsure) return;
  fail_msg("%s: [%d,%d,%d,%d] is %.9g, not %.9g (%.3g allowed)", what, (int)b, (int)h, (int)i,
           (int)x, got, want, unsure);
}

/* LSE and map of a row, whose weights are a softmax. */
static void compare_shown(const reshaped_call *c, const reshaped_row *row, int64_t b, int64_t h,
                          int64_t i, const char *what) {
  const attn_sdpa_params *s = &c->p.attention;
  const double none = s->map_stage == ATTN_MAP_SCORES ? -(double)INFINITY : 0;
  char text[120];
  if (s->lse.data) {
    const double got = oracle_get(&s->lse, b, h, i, 0);
    snprintf(text, sizeof text, "LSE, %s", what);
    if (got != row->lse) reshaped_judge(got, row->lse, row->lse_off, text, b, h, i, 0);
  }
  for (int64_t j = 0; s->map.data && j < c->k.len; j++) {
    const double got = oracle_get(&s->map, b, h, i, j);
    snprintf(text, sizeof text, "map of %s, %s", none == 0 ? "weights" : "scores", what);
    if (row->dx[j] < 0) {
      if (got != none)
        fail_msg("%s: [%d,%d,%d,%d] is %g without a pair", text, (int)b, (int)h, (int)i, (int)j,
                 got);
    } else if (none == 0) {
      reshaped_judge(got, row->w[j], row->dw[j] + 1e-37, text, b, h, i, j);
    } else {
      reshaped_judge(got, row->x[j], row->dx[j] + 3 * EPSILON * fabs(row->x[j]) + 1e-37, text, b, h,
                     i, j);
    }
  }
}

void reshaped_compare(const reshaped_call *c, const char *what) {
  size_t keys = (size_t)(c->k.len + 1) * sizeof(double);
  reshaped_row row = {
      test_mem(keys), test_mem(keys), test_mem(keys), test_mem(keys), 0, 0, 0, 0, 0, 0, 0, 0, 0};
  double *faded = NULL, *sure = NULL;
  const attn_sdpa_params *s = &c->p.attention;
  const attn_tensor *gate = &c->p.gate;
  if (c->p.selective.on) {
    faded = test_mem(keys * (size_t)(c->q.len + 1)), sure = test_mem(keys * (size_t)(c->q.len + 1));
  }
  for (int64_t b = 0; b < c->q.batch; b++)
    for (int64_t h = 0; h < c->q.heads; h++)
      for (int64_t i = 0; i < c->q.len; i++) {
        if (faded && h + i == 0) fade(c, b, faded, sure, &row);
        scores(c, b, h, i, &row);
        for (int64_t j = 0; faded && j < c->k.len; j++) {
          double less = faded[i * c->k.len + j];
          row.x[j] -= less;
          if (row.dx[j] >= 0)
            row.dx[j] += sure[i * c->k.len + j] + EPSILON * (2 * less + fabs(row.x[j]));
        }
        weights(c, h, &row);
        if (c->p.kind == ATTN_RESHAPE_SOFTMAX) compare_shown(c, &row, b, h, i, what);
        double chain = EPSILON * (4 + sqrt((double)c->k.len)), any = 0;
        for (int64_t j = 0; j < c->k.len; j++) any += row.dx[j] >= 0;
        if (c->p.sum.data)
          reshaped_judge(oracle_get(&c->p.sum, b, h, i, 0), row.sum,
                         row.sum_off + chain * row.sum + 1e-37, what, b, h, i, -1);
        if (c->p.support.data) {
          double low, high, got = oracle_get(&c->p.support, b, h, i, 0);
          entmax(c, h, &row, &low, &high);
          if (!(got >= low && got <= high))
            fail_msg("%s: support %g, not %g..%g", what, got, low, high);
        }
        for (int64_t x = 0; x < c->v.dim; x++) {
          double o = 0, off = 0, most = 0;
          for (int64_t j = 0; j < c->k.len; j++) {
            if (row.dx[j] < 0) continue;
            double value = oracle_get(&c->v, b, h * c->v.heads / c->q.heads, j, x);
            double size = fabs(value);
            if (s->relative.values.data) {
              const double more =
                  oracle_relative_value(s, h, j - oracle_position(&c->q, &c->k, s, b, i), x);
              value += more, size += fabs(more);
            }
            o += row.w[j] * value, off += row.dw[j] * size;
            if (row.w[j] > 0) most += row.w[j] * size;
          }
          off += chain * most;
          if (c->p.remainder && row.own >= 0) {
            double value = oracle_get(&c->v, b, h * c->v.heads / c->q.heads, row.own, x);
            if (row.left > 0) o += row.left * value, off += row.left_off * fabs(value);
            off += 2 * EPSILON * fabs(row.left * value), any = 1;
          }
          if (gate->data && any > 0) {
            double y = 1 / (1 + exp(-oracle_get(gate, b, h, i, gate->dim == 1 ? 0 : x)));
            o *= y, off = off * y + 6 * EPSILON * fabs(o);
          }
          reshaped_judge(oracle_get(&c->o, b, h, i, x), o, off + 2 * stored(c->o.dtype, o), what, b,
                         h, i, x);
        }
      }
}

attn_report reshaped_check(const reshaped_call *c, const char *what) {
  attn_report report = reshaped_run(c);
  reshaped_compare(c, what);
  return report;
}

/* ---- calls ----------------------------------------------------------------------------------*/

static double log_sigmoid(test_rng *rng) {
  double x = test_normal(rng) * 2 + 2;
  return (double)(float)-log1p(exp(-x));
}

reshaped_call reshaped_from(const test_call *t) {
  reshaped_call c = {t->o, t->q, t->k, t->v, {0}};
  c.p.attention = t->params;
  memset(&c.p.attention.lse, 0, sizeof c.p.attention.lse);
  memset(&c.p.attention.map, 0, sizeof c.p.attention.map);
  return c;
}

reshaped_call reshaped_plain(attn_reshape_kind kind, int64_t heads, int64_t tq, int64_t tk,
                             uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, tq, tk, 12, 7);
  test_call t = test_build(&spec, &rng);
  reshaped_call c = reshaped_from(&t);
  c.p.kind = kind;
  return c;
}

void reshaped_show(reshaped_call *c, int stage) {
  attn_sdpa_params *s = &c->p.attention;
  const int64_t b = c->q.batch, h = c->q.heads;
  if (c->p.kind != ATTN_RESHAPE_SOFTMAX) return;
  s->lse = test_tensor(ATTN_F32, TEST_PADDED, b, h, c->q.len, 1);
  if (stage < 0) return;
  s->map = test_tensor(ATTN_F32, TEST_PADDED, b, h, c->q.len, c->k.len);
  s->map_stage = (attn_map_stage)stage;
}

reshaped_call reshaped_again(const reshaped_call *c) {
  reshaped_call d = *c;
  if (c->p.attention.lse.data)
    reshaped_show(&d, c->p.attention.map.data ? (int)c->p.attention.map_stage : -1);
  d.o = test_tensor(c->o.dtype, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, c->o.dim);
  if (c->p.sum.data)
    d.p.sum = test_tensor(ATTN_F32, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, 1);
  if (c->p.support.data)
    d.p.support = test_tensor(ATTN_F32, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, 1);
  return d;
}

attn_tensor reshaped_decays(attn_dtype type, int64_t batch, int64_t heads, int64_t tk, int cuts,
                            test_rng *rng) {
  attn_tensor f = test_tensor(type, TEST_PADDED, batch, heads, tk, 1);
  test_fill(f, rng, log_sigmoid);
  for (int64_t b = 0; cuts && b < batch; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = test_range(rng, 0, 40); i < tk; i += test_range(rng, 1, 90))
        oracle_set(&f, b, h, i, 0, -(double)INFINITY);
  return f;
}

attn_path reshaped_path(const reshaped_call *c, test_rng *rng) {
  const attn_tensor *k = &c->k;
  const int64_t n = k->batch * k->heads * k->len;
  attn_path p = {
      test_tensor((attn_dtype)(test_u64(rng) % 3), TEST_PADDED, k->batch, k->heads, k->len,
                  c->q.dim),
      test_tensor((attn_dtype)(test_u64(rng) % 3), TEST_PADDED, k->batch, k->heads, k->len, 1)};
  for (int64_t e = 0; e < n; e++) {
    const int64_t b = e / k->len / k->heads, h = e / k->len % k->heads, t = e % k->len;
    double sum = 0;
    for (int64_t x = 0; x < c->q.dim; x++) oracle_set(&p.w, b, h, t, x, test_normal(rng));
    for (int64_t x = 0; x < c->q.dim; x++) sum += pow(oracle_get(&p.w, b, h, t, x), 2);
    for (int64_t x = 0; x < c->q.dim; x++)
      oracle_set(&p.w, b, h, t, x, oracle_get(&p.w, b, h, t, x) / sqrt(sum + 1e-9));
    oracle_set(&p.beta, b, h, t, 0,
               e % 7 == 1   ? 0
               : e % 7 == 2 ? 2
                            : (double)test_range(rng, 0, 128) / 64);
  }
  return p;
}

void reshaped_add(reshaped_call *c, int what, test_rng *rng) {
  int64_t heads = c->q.heads, batch = c->q.batch;
  attn_sdpa_params *s = &c->p.attention;
  if (what & HAS_SSMAX) {
    c->p.ssmax.scale = test_floats(heads, 0.4, rng);
    if (test_u64(rng) & 1) c->p.ssmax.bias = test_floats(heads, 1, rng);
  }
  if (what & HAS_TEMPERATURE) {
    c->p.temperature.on = 1;
    c->p.temperature.interval = (float)test_range(rng, 1, 30);
    if (test_u64(rng) & 1) c->p.temperature.beta = 0.5f;
    if (test_u64(rng) & 1) c->p.temperature.shift = ATTN_ZERO;
    s->labels.bias = NULL;
    s->toeplitz.inside = 0; /* the oracle would scale it with the query */
    memset(&s->xl, 0, sizeof s->xl);
  }
  if (what & HAS_FORGET) {
    int64_t f;
    while (heads % (f = test_range(rng, 1, heads))) continue;
    if (!s->causal) s->causal = 1;
    memset(&s->xl, 0, sizeof s->xl); /* tables are for the distances that were there before */
    s->toeplitz.reject = 0;
    int64_t last = c->k.len - c->q.len;
    if (s->has_q_off && s->q_off > last) s->q_off = last;
    if (!s->has_q_off && s->causal == ATTN_CAUSAL_START && last < 0) s->causal = ATTN_CAUSAL_END;
    c->p.forget.log_f = reshaped_decays((attn_dtype)(test_u64(rng) % 3), batch, f, c->k.len,
                                        test_u64(rng) & 1, rng);
  }
  if (what & HAS_COPE && c->p.kind != ATTN_RESHAPE_STICK && c->p.kind != ATTN_RESHAPE_ENTMAX) {
    if (!s->causal) s->causal = 1;
    s->keep = 0, s->span.z = NULL;
    memset(&s->xl, 0, sizeof s->xl);
    s->toeplitz.reject = 0;
    int64_t n = test_range(rng, 1, 3) == 1 ? test_range(rng, 1, 3) : test_range(rng, 4, 90);
    c->p.cope.table =
        test_tensor(ATTN_F32, TEST_PADDED, 1, test_u64(rng) & 1 ? heads : 1, n, c->q.dim);
    test_fill(c->p.cope.table, rng, test_normal);
  }
  if (what & HAS_SELECTIVE && !c->p.cope.table.data && c->p.kind != ATTN_RESHAPE_ENTMAX) {
    if (!s->causal) s->causal = 1;
    s->keep = 0, s->span.z = NULL;
    memset(&s->xl, 0, sizeof s->xl);
    s->toeplitz.reject = 0;
    c->p.selective.on = 1, c->p.selective.first = (int)(test_u64(rng) & 1);
    int64_t off = s->has_q_off ? s->q_off : c->k.len - c->q.len;
    if (off > 0) { /* the rows before have taken nothing */
      int64_t n = batch * c->k.len;
      c->p.selective.sums = test_mem((size_t)n * sizeof(double) + 8);
      for (int64_t e = 0; e < n; e++) c->p.selective.sums[e] = 0;
    }
  }
  if (what & HAS_PATH && !c->p.selective.on) {
    if (!s->causal) s->causal = 1;
    s->keep = 0, s->span.z = NULL;
    memset(&s->xl, 0, sizeof s->xl);
    s->toeplitz.reject = 0;
    int64_t last = c->k.len - c->q.len;
    if (s->has_q_off && s->q_off > last) s->q_off = last;
    if (!s->has_q_off && s->causal == ATTN_CAUSAL_START && last < 0) s->causal = ATTN_CAUSAL_END;
    c->p.path = reshaped_path(c, rng);
  }
  if (what & HAS_GATE) {
    c->p.gate = test_tensor((attn_dtype)(test_u64(rng) % 3), TEST_PADDED, batch, heads, c->q.len,
                            test_u64(rng) & 1 ? 1 : c->v.dim);
    test_fill(c->p.gate, rng, test_normal);
  }
  if (c->p.kind == ATTN_RESHAPE_STICK) {
    if (!s->causal) s->causal = 1;
    s->keep = 0;
    memset(&s->xl, 0, sizeof s->xl);
    c->p.include_self = (int)(test_u64(rng) & 1), c->p.remainder = (int)(test_u64(rng) & 1);
    c->p.sum = test_tensor(ATTN_F32, TEST_PADDED, batch, heads, c->q.len, 1);
  }
  if (c->p.kind == ATTN_RESHAPE_ENTMAX) {
    const uint64_t way = test_u64(rng) % 5;
    c->p.support = test_tensor(ATTN_F32, TEST_PADDED, batch, heads, c->q.len, 1);
    if (way == 1) c->p.alpha = 2;
    if (way == 2) c->p.alpha = 1.25f;
    if (way == 3) c->p.alpha = 1.7f;
    if (way == 4) {
      float *alphas = test_mem((size_t)heads * sizeof *alphas);
      for (int64_t h = 0; h < heads; h++) alphas[h] = h % 3 == 0 ? 2.0f : h % 3 == 1 ? 1.5f : 1.3f;
      c->p.alphas = alphas;
    }
  }
  if (c->p.kind == ATTN_RESHAPE_SIGMOID) {
    if (what & HAS_COUNT)
      c->p.by_row = 1;
    else if (test_u64(rng) % 3 == 0)
      c->p.has_bias = 1, c->p.bias = (float)test_exact(rng);
    c->p.sum = test_tensor(ATTN_F32, TEST_PADDED, batch, heads, c->q.len, 1);
  }
}
