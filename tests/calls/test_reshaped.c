/* tests/calls/test_reshaped.c owns M2, attention with reshaped weights. Its float64 formula stands here, over the
 * scores of the oracle. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

#define EPSILON 5.9604644775390625e-8

/* One call of attn_reshaped. */
typedef struct reshaped_call {
  attn_tensor o, q, k, v;
  attn_reshaped_params p;
} reshaped_call;

static attn_report run(const reshaped_call *c) {
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
  int64_t own;
} reshaped_row;

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
  for (int64_t j = 0; j < c->k.len; j++) {
    row->x[j] = 0, row->dx[j] = -1;
    if (!oracle_allowed(&c->q, &c->k, &s, b, h, i, j)) continue;
    oracle_pair pair = oracle_score(&c->q, &c->k, &s, b, h, i, j);
    double forgotten = 0;
    if (p->forget.log_f.data)
      for (int64_t l = j + 1; l <= at && l < most; l++)
        forgotten += oracle_get(&p->forget.log_f, b, h * p->forget.log_f.heads / c->q.heads, l, 0);
    if (p->kind == ATTN_RESHAPE_STICK && !p->include_self && j >= at) continue;
    if (pair.x == -(double)INFINITY || forgotten == -(double)INFINITY) continue;
    row->x[j] = pair.x, row->w[j] = forgotten, n++;
    row->dx[j] = EPSILON * pair.size * (7 + sqrt((double)c->q.dim) / 4);
  }
  int64_t rows = s.q_len ? s.q_len[b] : c->q.len;
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

static void weights(const reshaped_call *c, int64_t h, reshaped_row *row) {
  double top = 0, total = 0, loose = 0;
  const attn_reshaped_params *p = &c->p;
  attn_reshape_kind kind = p->kind;
  if (kind == ATTN_RESHAPE_STICK) {
    break_stick(c, row);
    return;
  }
  if (kind == ATTN_RESHAPE_SOFTMAX) top = -(double)INFINITY;
  for (int64_t j = 0; j < c->k.len; j++)
    if (row->dx[j] >= 0 && row->x[j] > top) top = row->x[j];
  double sink = -(double)INFINITY, one = p->attention.softmax_one ? 0 : sink;
  if (p->attention.sinks) sink = (double)p->attention.sinks[h];
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

static void judge(double got, double want, double unsure, const char *what, int64_t b, int64_t h,
                  int64_t i, int64_t x) {
  if (isnan(want) ? isnan(got) : fabs(got - want) <= unsure) return;
  fail_msg("%s: [%d,%d,%d,%d] is %.9g, not %.9g (%.3g allowed)", what, (int)b, (int)h, (int)i,
           (int)x, got, want, unsure);
}

static void compare(const reshaped_call *c, const char *what) {
  size_t keys = (size_t)(c->k.len + 1) * sizeof(double);
  reshaped_row row = {
      test_mem(keys), test_mem(keys), test_mem(keys), test_mem(keys), 0, 0, 0, 0, 0};
  const attn_tensor *gate = &c->p.gate;
  for (int64_t b = 0; b < c->q.batch; b++)
    for (int64_t h = 0; h < c->q.heads; h++)
      for (int64_t i = 0; i < c->q.len; i++) {
        scores(c, b, h, i, &row);
        weights(c, h, &row);
        double chain = EPSILON * (4 + sqrt((double)c->k.len)), any = 0;
        for (int64_t j = 0; j < c->k.len; j++) any += row.dx[j] >= 0;
        if (c->p.sum.data)
          judge(oracle_get(&c->p.sum, b, h, i, 0), row.sum, row.sum_off + chain * row.sum + 1e-37,
                what, b, h, i, -1);
        for (int64_t x = 0; x < c->v.dim; x++) {
          double o = 0, off = 0, most = 0;
          for (int64_t j = 0; j < c->k.len; j++) {
            if (row.dx[j] < 0) continue;
            double value = oracle_get(&c->v, b, h * c->v.heads / c->q.heads, j, x);
            o += row.w[j] * value, off += row.dw[j] * fabs(value);
            if (row.w[j] > 0) most += row.w[j] * fabs(value);
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
          judge(oracle_get(&c->o, b, h, i, x), o, off + 2 * stored(c->o.dtype, o), what, b, h, i,
                x);
        }
      }
}

static attn_report check(const reshaped_call *c, const char *what) {
  attn_report report = run(c);
  compare(c, what);
  return report;
}

/* ---- calls ----------------------------------------------------------------------------------*/

static double log_sigmoid(test_rng *rng) {
  double x = test_normal(rng) * 2 + 2;
  return (double)(float)-log1p(exp(-x));
}

static reshaped_call from(const test_call *t) {
  reshaped_call c = {t->o, t->q, t->k, t->v, {0}};
  c.p.attention = t->params;
  memset(&c.p.attention.lse, 0, sizeof c.p.attention.lse);
  memset(&c.p.attention.map, 0, sizeof c.p.attention.map);
  return c;
}

static reshaped_call plain(attn_reshape_kind kind, int64_t heads, int64_t tq, int64_t tk,
                           uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, tq, tk, 12, 7);
  test_call t = test_build(&spec, &rng);
  reshaped_call c = from(&t);
  c.p.kind = kind;
  return c;
}

static reshaped_call again(const reshaped_call *c) {
  reshaped_call d = *c;
  d.o = test_tensor(c->o.dtype, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, c->o.dim);
  if (c->p.sum.data)
    d.p.sum = test_tensor(ATTN_F32, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, 1);
  return d;
}

enum { HAS_SSMAX = 1, HAS_TEMPERATURE = 2, HAS_FORGET = 4, HAS_GATE = 8, HAS_COUNT = 16 };

static attn_tensor decays(attn_dtype type, int64_t batch, int64_t heads, int64_t tk, int cuts,
                          test_rng *rng) {
  attn_tensor f = test_tensor(type, TEST_PADDED, batch, heads, tk, 1);
  test_fill(f, rng, log_sigmoid);
  for (int64_t b = 0; cuts && b < batch; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = test_range(rng, 0, 40); i < tk; i += test_range(rng, 1, 90))
        oracle_set(&f, b, h, i, 0, -(double)INFINITY);
  return f;
}

static void add(reshaped_call *c, int what, test_rng *rng) {
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
    c->p.forget.log_f =
        decays((attn_dtype)(test_u64(rng) % 3), batch, f, c->k.len, test_u64(rng) & 1, rng);
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
  if (c->p.kind == ATTN_RESHAPE_SIGMOID) {
    if (what & HAS_COUNT)
      c->p.by_row = 1;
    else if (test_u64(rng) % 3 == 0)
      c->p.has_bias = 1, c->p.bias = (float)test_exact(rng);
    c->p.sum = test_tensor(ATTN_F32, TEST_PADDED, batch, heads, c->q.len, 1);
  }
}

static void check_random(int terms, uint64_t seed, int64_t count) {
  for (int64_t n = 0; n < count; n++) {
    test_rng rng = test_seed(seed * 1000 + (uint64_t)n);
    test_call call = test_terms_call(terms, 150, &rng);
    reshaped_call c = from(&call);
    char what[80];
    int with = (int)(test_u64(&rng) % 32);
    c.p.kind = (attn_reshape_kind)(n % 4);
    if (n % 4) c.p.attention.sinks = NULL, c.p.attention.softmax_one = 0;
    if (c.p.attention.window.on && c.p.attention.window.left >= 0)
      c.p.attention.keep = test_range(&rng, 0, 12);
    add(&c, with, &rng);
    snprintf(what, sizeof what, "kind %d with %d, terms %x, case %d", (int)(n % 4), with,
             (unsigned)terms, (int)n);
    check(&c, what);
    test_mem_release();
  }
}

void M2_matches_oracle(void **state) {
  (void)state;
  check_random(0, 700, test_count(240, 36));
}

void M2_with_terms(void **state) {
  (void)state;
  static const int terms[] = {TERM_KEYS,     TERM_XL,       TERM_LABELS,
                              TERM_FACTOR,   TERM_TOEPLITZ, TERM_PARABOLA,
                              TERM_GAUSSIAN, TERM_MODIFY,   TERM_KEYS | TERM_MODIFY};
  for (int n = 0; n < 9; n++) check_random(terms[n], 701 + (uint64_t)n, test_count(18, 6));
}

/* Few queries against many keys: parts, rows and lanes, heads that share keys. */
void M2_few_queries(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(720 + (uint64_t)n);
    test_spec spec = test_plain(n % 2 ? 4 : 12, 1 + n % 5, test_fast ? 1100 : 2200, 16, 9);
    spec.k_heads = spec.v_heads = n % 2 ? 2 : 1;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = from(&call);
    char what[60];
    c.p.kind = (attn_reshape_kind)(n % 3 == 2 ? n / 3 % 4 : 0);
    add(&c, 1 + n % 15, &rng);
    if (n % 4 == 1) test_left(&c.p.attention, 700);
    if (n % 4 == 2) c.p.attention.alibi = test_floats(spec.heads, 0.01, &rng);
    snprintf(what, sizeof what, "few queries, case %d", n);
    attn_report report = check(&c, what);
    assert_int_equal(strncmp(report.path, "few queries", 11) == 0,
                     c.p.kind == ATTN_RESHAPE_SOFTMAX);
    test_mem_release();
  }
}

/* A schedule, of runs and of lists, is the mask that it stands for. */
void M2_schedules(void **state) {
  (void)state;
  for (int n = 0; n < 36; n++) {
    reshaped_call c = plain((attn_reshape_kind)(n % 3), 2, 150, 150, 740 + (uint64_t)n), d;
    test_rng rng = test_seed(780 + (uint64_t)n);
    const int form = n / 3 % 3; /* a band, a stride, scattered keys */
    int64_t indptr[151] = {0}, edges = 0;
    int32_t *col = test_mem(150 * 150 * sizeof *col);
    attn_schedule schedule = {0};
    c.p.attention.causal = 1;
    add(&c, n % 16, &rng);
    d = again(&c);
    if (n % 4 == 1) {
      float *slopes = test_floats(2, 0.05, &rng);
      c.p.attention.alibi = d.p.attention.alibi = slopes;
    }
    uint8_t *mask = test_mem(150 * 150);
    for (int64_t i = 0; i < 150; i++)
      for (int64_t j = 0; j < 150; j++) {
        const int64_t back = i - j;
        const int seen = form == 0   ? back >= 0 && back <= 40
                         : form == 1 ? back % 7 == 0
                                     : back >= 0 && (j * 7919 + i * i * 31) % 11 == 0;
        mask[i * 150 + j] = (uint8_t)seen;
        if (seen) col[edges++] = (int32_t)j;
        indptr[i + 1] = edges;
      }
    attn_pattern pattern = form == 0   ? attn_pattern_band(40, 0)
                           : form == 1 ? attn_pattern_strided(7)
                                       : attn_pattern_csr(indptr, col, edges);
    assert_int_equal(attn_schedule_build(&schedule, &pattern, 2, 150, 150, NULL, NULL), ATTN_OK);
    c.p.attention.schedule = &schedule;
    d.p.attention.mask = attn_mask_bool(mask, 1, 1, 150, 150);
    run(&c);
    check(&d, "mask of a schedule");
    d.o = c.o;
    if (c.p.sum.data) d.p.sum = c.p.sum;
    compare(&d, "schedule");
    attn_schedule_free(&schedule);
    test_mem_release();
  }
}

/* Rows longer than a stretch, with values of mean 0 and of mean 1. */
void M2_long_rows(void **state) {
  (void)state;
  int64_t tk = test_fast ? 1300 : 2700;
  for (int n = 0; n < 16; n++) {
    test_rng rng = test_seed(790 + (uint64_t)n);
    reshaped_call c = plain((attn_reshape_kind)(n % 4), 1, 70, tk, 795 + (uint64_t)n);
    if (n / 4 % 2)
      for (int64_t e = 0; e < tk * 7; e++) ((float *)c.v.data)[e] += 1;
    add(&c, n < 8 ? 0 : HAS_SSMAX | HAS_FORGET | HAS_GATE, &rng);
    c.p.attention.causal = 1;
    check(&c, "long rows");
    test_mem_release();
  }
}

/* ---- what the mechanisms say of themselves --------------------------------------------------*/

/* {0} is attn_sdpa, bit for bit; so are f = 1 and gates that are open. */
void M2_is_attention(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(800 + (uint64_t)n);
    test_spec spec = test_plain(4, n % 2 ? 3 : 150, n % 2 ? 1500 : 150, 20, 11);
    spec.k_heads = 2, spec.v_heads = 2, spec.map = n % 2 == 0;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = from(&call);
    call.params.causal = n % 3 != 2;
    c.p.attention = call.params;
    attn_tensor o = c.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, spec.q_len, 11);
    attn_tensor lse = c.p.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, spec.q_len, 1);
    if (spec.map)
      c.p.attention.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, spec.q_len, spec.k_len);
    if (n % 3 == 1) {
      c.p.forget.log_f = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, spec.k_len, 1);
      test_fill_value(c.p.forget.log_f, 0);
    }
    if (n / 3 % 2) {
      c.p.gate = test_tensor(ATTN_F16, TEST_BHTD, 1, 4, spec.q_len, n / 6 ? 1 : 11);
      test_fill_value(c.p.gate, 100);
    }
    run(&c);
    test_run(&call);
    test_assert_same(o, call.o, "as attn_sdpa");
    test_assert_same(lse, call.params.lse, "LSE as attn_sdpa");
    if (spec.map) test_assert_same(c.p.attention.map, call.params.map, "map as attn_sdpa");
    test_mem_release();
  }
}

/* What all scores of a row have in common changes nothing of a softmax, whatever stands around it. */
void M2_shift(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(805 + (uint64_t)n);
    reshaped_call c = plain(ATTN_RESHAPE_SOFTMAX, 2, n & 1 ? 3 : 150, n & 1 ? 1200 : 150, 806), d;
    float shift = 900;
    add(&c, HAS_FORGET | HAS_GATE | (n & 2 ? HAS_SSMAX : 0) | (n & 4 ? HAS_TEMPERATURE : 0), &rng);
    d = again(&c);
    d.p.attention.bias = attn_mask_add(&shift, ATTN_F32, 1, 1, 1, 1);
    run(&c), run(&d);
    test_assert_near(d.o, c.o, 3e-3,
                     "a shift of all scores"); /* they have 14 bits behind the point */
    test_mem_release();
  }
}

/* Zero scores weigh 1 / (n + 1); n is Tk, kv_len or the keys of the row. */
void M2_sigmoid_of_zero(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    reshaped_call c = plain(ATTN_RESHAPE_SIGMOID, 2, 70, 90, 810);
    int32_t length = 50;
    test_fill_value(c.q, 0), test_fill_value(c.v, 1);
    c.p.sum = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 1);
    c.p.attention.causal = n % 3 == 2;
    if (n % 3) c.p.attention.kv_len = &length;
    c.p.by_row = n / 3;
    run(&c);
    for (int64_t i = 0; i < 70; i++) {
      double keys = n % 3 ? 50 : 90;
      if (n % 3 == 2 && i + 21 < 50) keys = (double)i + 21;
      double count = c.p.by_row ? keys : n % 3 ? 50 : 90;
      double want = keys / (count + 1);
      judge(oracle_get(&c.o, 0, 1, i, 3), want, 2e-6, "zero scores", 0, 1, i, 3);
      judge(oracle_get(&c.p.sum, 0, 1, i, 0), want, 2e-6, "sum of zero scores", 0, 1, i, 0);
    }
    test_mem_release();
  }
}

/* Small weights keep their bits: a sigmoid is not 1 less another. */
void M2_sigmoid_is_exact(void **state) {
  (void)state;
  float q[1], k[41], v[41], o[41];
  for (int j = 0; j < 41; j++) {
    reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 1, 1),
                       attn_bhtd(q, ATTN_F32, 1, 1, 1, 1),
                       attn_bhtd(k, ATTN_F32, 1, 1, 1, 1),
                       attn_bhtd(v, ATTN_F32, 1, 1, 1, 1),
                       {0}};
    q[0] = 1, k[0] = (float)(4 * j - 80), v[0] = 1;
    c.p.kind = ATTN_RESHAPE_SIGMOID;
    run(&c);
    double want = 1 / (1 + exp(80.0 - 4 * j));
    judge(o[0], want, want * 1.5e-5 + 1e-37, "one key", 0, 0, 0, j); /* the score itself rounds */
  }
}

/* A row with one key has its value, whatever the score; scores of +-1e4 stay finite. */
void M2_one_key(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    reshaped_call c = plain((attn_reshape_kind)(n % 4), 2, 70, 70, 820);
    float scale[2] = {0.43f, -2}, bias[2] = {0, 0};
    c.p.ssmax.scale = scale, c.p.ssmax.bias = bias;
    c.p.attention.causal = 1;
    c.p.attention.scale = n % 8 < 4 ? 1.0f : 3000.0f;
    c.p.attention.softcap = n < 12 ? 0.0f : 1e4f;
    run(&c);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 70; i++)
        for (int64_t x = 0; x < 7; x++) {
          double got = oracle_get(&c.o, 0, h, i, x);
          assert_true(isfinite(got));
          if (i == 0 && n % 4 == 0)
            judge(got, oracle_get(&c.v, 0, h, 0, x), 1e-6, "one key", 0, h, i, x);
        }
    test_mem_release();
  }
}

/* Scores that are not positive make zero rows; a masked key is a deleted one; scores near 0 are not lost, and
 * eps is added after the shift. */
void M2_softpick(void **state) {
  (void)state;
  reshaped_call c = plain(ATTN_RESHAPE_SOFTPICK, 2, 70, 90, 830), d;
  test_fill_value(c.q, 1), test_fill_value(c.k, -1);
  for (int64_t j = 0; j < 90; j += 3) test_fill_row(c.k, 0, 0, j, 0);
  run(&c);
  for (int64_t e = 0; e < 2 * 70 * 7; e++) assert_true(((float *)c.o.data)[e] == 0);
  c = plain(ATTN_RESHAPE_SOFTPICK, 2, 70, 90, 831), d = again(&c);
  uint8_t mask[90];
  for (int j = 0; j < 90; j++) mask[j] = j < 60;
  c.p.attention.mask = attn_mask_bool(mask, 1, 1, 1, 90);
  d.k = test_rows(d.k, 0, 60), d.v = test_rows(d.v, 0, 60);
  run(&c), run(&d);
  test_assert_near(c.o, d.o, 1e-6, "a masked key is a deleted key");
  for (int n = 1; n < 30; n++) { /* x down to 1e-8, beside which eps counts */
    float q[1] = {1}, k[2], v[2] = {1, 0}, o[1];
    k[0] = ldexpf(1, -n), k[1] = -k[0] / 2;
    c.o = attn_bhtd(o, ATTN_F32, 1, 1, 1, 1), c.q = attn_bhtd(q, ATTN_F32, 1, 1, 1, 1);
    c.k = attn_bhtd(k, ATTN_F32, 1, 1, 2, 1), c.v = attn_bhtd(v, ATTN_F32, 1, 1, 2, 1);
    memset(&c.p.attention, 0, sizeof c.p.attention);
    run(&c);
    double m = (double)k[0], e = exp(-m) * expm1(m), f = exp(-m) * -expm1((double)k[1]);
    double want = e / (e + f + 1e-8);
    judge((double)o[0], want, want * 1e-6, "scores near 0", 0, 0, 0, n);
  }
  for (int n = 0; n < 60; n++) { /* large scores beside 0 and small ones */
    float q[1] = {1}, k[3], v[3] = {0, 1, 0}, o[1];
    k[0] = (float)n, k[1] = (float)n / 2, k[2] = -3;
    c.o = attn_bhtd(o, ATTN_F32, 1, 1, 1, 1), c.q = attn_bhtd(q, ATTN_F32, 1, 1, 1, 1);
    c.k = attn_bhtd(k, ATTN_F32, 1, 1, 3, 1), c.v = attn_bhtd(v, ATTN_F32, 1, 1, 3, 1);
    run(&c);
    double m = n, e0 = exp(-m) * expm1(m), e1 = exp(-m) * expm1(m / 2), e2 = exp(-m) * -expm1(-3);
    double want = e1 / (e0 + e1 + e2 + 1e-8);
    judge((double)o[0], want, want * 1e-5, "large scores", 0, 0, 0, n);
  }
}

/* Weights and what is left add to 1; the first row is 0, or its value with the remainder; forbidden keys take
 * nothing; equal scores of 0 halve what is left. */
void M2_stick(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    reshaped_call c = plain(ATTN_RESHAPE_STICK, 2, 300, 300, 835), d;
    c.p.attention.causal = 1, c.p.include_self = n & 1, c.p.remainder = n >> 1 & 1;
    c.p.sum = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 300, 1);
    if (n & 4) test_fill_value(c.q, 0);
    test_fill_value(c.v, 1);
    run(&c);
    for (int64_t i = 0; i < 300; i++) {
      double sum = oracle_get(&c.p.sum, 0, 1, i, 0), o = oracle_get(&c.o, 0, 1, i, 3);
      judge(o, c.p.remainder ? 1 : sum, 3e-6, "a stick", 0, 1, i, 3);
      assert_true(sum <= 1 + 3e-6);
      if (n & 4) judge(sum, 1 - ldexp(1, -(int)(i + (n & 1))), 3e-6, "halves", 0, 1, i, 0);
      if (i == 0 && !(n & 1)) assert_true(sum == 0 && o == (c.p.remainder ? 1 : 0));
    }
    d = again(&c);
    uint8_t *mask = test_mem(300);
    for (int j = 0; j < 300; j++) mask[j] = j % 3 != 1;
    c.p.attention.mask = attn_mask_bool(mask, 1, 1, 1, 300);
    check(&c, "masked keys of a stick");
    for (int64_t j = 1; j < 300; j += 3) test_fill_row(c.k, 0, 0, j, NAN);
    d.p.attention = c.p.attention;
    run(&d);
    test_assert_same(c.o, d.o, "NaN in a forbidden key");
    test_mem_release();
  }
}

/* What 65535 small shares leave for the first key. */
void M2_stick_far(void **state) {
  (void)state;
  enum { T = 65536 };
  float *k = test_mem(T * 4), *v = test_mem(T * 4), q[2] = {1, 1}, o[2];
  for (int64_t j = 0; j < T; j++) k[j] = -9, v[j] = j == 0;
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1;
  run(&c);
  double want = exp(-soft_plus(9.0) - (T - 2) * soft_plus(-9.0));
  judge((double)o[1], want, 4e-6 * want, "the first of many keys", 0, 0, 1, 0);
}

/* Differences of sums of log f are exact to 1e-6 at T = 65536. */
void M2_forgetting_far(void **state) {
  (void)state;
  enum { T = 65536 };
  float *k = test_mem(T * 4), *v = test_mem(T * 4), *f = test_mem(T * 4), q[2] = {0, 0}, o[2];
  double far = 0, weights_of = 0, want = 0;
  test_rng rng = test_seed(840);
  for (int64_t j = 0; j < T; j++) {
    k[j] = 0, v[j] = (float)test_normal(&rng), f[j] = (float)(-1.0 / 3 - 1e-3 * (double)(j % 7));
  }
  for (int64_t j = T - 1; j >= 0; j--) {
    double w = exp(far);
    weights_of += w, want += w * (double)v[j], far += (double)f[j];
  }
  reshaped_call c = {attn_bhtd(o, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(q, ATTN_F32, 1, 1, 2, 1),
                     attn_bhtd(k, ATTN_F32, 1, 1, T, 1),
                     attn_bhtd(v, ATTN_F32, 1, 1, T, 1),
                     {0}};
  c.p.attention.causal = 1, c.p.forget.log_f = attn_bhtd(f, ATTN_F32, 1, 1, T, 1);
  run(&c);
  judge((double)o[1], want / weights_of, 1e-6, "far positions", 0, 0, 1, 0);
}

/* -inf cuts the past off: rows behind it are those of a call that begins there. */
void M2_forgetting_cuts(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    reshaped_call c = plain((attn_reshape_kind)(n % 3), 2, 300, 300, 850 + (uint64_t)n),
                  d = again(&c);
    test_rng rng = test_seed(855);
    c.p.attention.causal = d.p.attention.causal = 1;
    if (n % 3 == 1) c.p.has_bias = d.p.has_bias = 1;
    c.p.forget.log_f = decays(ATTN_F32, 1, 2, 300, 0, &rng);
    for (int h = 0; h < 2; h++) oracle_set(&c.p.forget.log_f, 0, h, 130, 0, -(double)INFINITY);
    d.p.forget.log_f = test_rows(c.p.forget.log_f, 130, 170);
    d.q = test_rows(c.q, 130, 170), d.k = test_rows(c.k, 130, 170), d.v = test_rows(c.v, 130, 170);
    d.o = test_rows(d.o, 130, 170);
    run(&c), run(&d);
    test_assert_near(test_rows(c.o, 130, 170), d.o, 2e-6, "behind a cut");
    /* and what is stored before the cut reaches nobody there */
    for (int64_t j = 0; j < 130; j++)
      test_fill_row(c.v, 0, 0, j, NAN), test_fill_row(c.k, 0, 0, j, NAN);
    reshaped_call e = again(&c);
    run(&e);
    test_assert_same(test_rows(e.o, 130, 170), test_rows(c.o, 130, 170), "NaN before a cut");
    test_mem_release();
  }
}

/* Decoding with the sums kept beside the keys: the rows of one call, and its sums. */
void M2_forgetting_decodes(void **state) {
  (void)state;
  enum { T = 140, H = 2 };
  for (int n = 0; n < 2; n++) {
    reshaped_call c = plain(ATTN_RESHAPE_SOFTMAX, H, T, T, 860);
    test_rng rng = test_seed(861);
    attn_forget_sum whole[H * T], kept[H * T];
    memset(kept, 0xA5, sizeof kept);
    c.p.attention.causal = 1, c.p.attention.one_order = 1;
    c.p.forget.log_f = decays(ATTN_F32, 1, H, T, n, &rng);
    c.p.forget.sums = whole;
    run(&c);
    reshaped_call step = again(&c);
    step.p.forget.sums = kept;
    for (int32_t t = 0; t < T; t++) {
      reshaped_call d = step;
      int32_t length = t + 1;
      d.q = test_rows(c.q, t, 1), d.o = test_rows(step.o, t, 1);
      d.p.attention.kv_len = &length, d.p.attention.has_q_off = 1, d.p.attention.q_off = t;
      d.p.forget.known = t;
      run(&d);
    }
    test_assert_same(step.o, c.o, "token by token");
    for (int e = 0; e < H * T; e++) {
      assert_true(kept[e].sum == whole[e].sum);
      assert_true(kept[e].since == whole[e].since);
    }
    test_mem_release();
  }
}

/* No bit of a row depends on a later number of log f, nor on what a gate of another row is. */
void M2_sees_no_later(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    reshaped_call c = plain((attn_reshape_kind)(n % 4), 2, 200, 200, 870 + (uint64_t)n), d;
    test_rng rng = test_seed(875);
    c.p.attention.causal = 1;
    add(&c, HAS_FORGET | HAS_GATE | (n / 4 ? HAS_SSMAX : 0), &rng);
    if (c.p.kind == ATTN_RESHAPE_SIGMOID) c.p.has_bias = 0, c.p.bias = 0, c.p.by_row = 1;
    d = again(&c);
    run(&c);
    for (int64_t j = 140; j < 200; j++)
      for (int64_t h = 0; h < c.p.forget.log_f.heads; h++)
        oracle_set(&c.p.forget.log_f, 0, h, j, 0, j % 5 ? -3 : -(double)INFINITY);
    for (int64_t j = 140; j < 200; j++)
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(c.p.gate, 0, h, j, NAN), test_fill_row(c.v, 0, h, j, NAN);
    run(&d);
    test_assert_same(test_rows(c.o, 0, 140), test_rows(d.o, 0, 140), "earlier rows");
    test_mem_release();
  }
}

/* NaN of a gate reaches its numbers alone; rows without keys are 0 whatever their gate. */
void M2_gates(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    int few = n & 1, wide = n & 2;
    reshaped_call c = plain(ATTN_RESHAPE_SOFTMAX, 2, few ? 4 : 70, 90, 880);
    int32_t rows = few ? 3 : 60;
    c.p.attention.q_len = &rows;
    c.p.gate = test_tensor(n & 4 ? ATTN_BF16 : ATTN_F32, TEST_PADDED, 1, 2, c.q.len, wide ? 7 : 1);
    test_fill_value(c.p.gate, 0);
    oracle_set(&c.p.gate, 0, 1, 2, wide ? 5 : 0, NAN);
    for (int64_t i = rows; i < c.q.len; i++) test_fill_row(c.p.gate, 0, 0, i, NAN);
    run(&c);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < c.q.len; i++)
        for (int64_t x = 0; x < 7; x++) {
          double got = oracle_get(&c.o, 0, h, i, x);
          if (i >= rows)
            assert_true(got == 0);
          else
            assert_int_equal(isnan(got) != 0, h == 1 && i == 2 && (!wide || x == 5));
        }
    test_mem_release();
  }
}

/* No keys, forbidden keys, no queries. */
void M2_nothing_to_see(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    reshaped_call c = plain((attn_reshape_kind)(n % 4), 2, 70, n / 4 == 3 ? 0 : 90, 890);
    test_rng rng = test_seed(891);
    attn_sdpa_params *p = &c.p.attention;
    int32_t none = 0;
    float minus = -INFINITY;
    add(&c, n / 4 == 2 ? HAS_SSMAX | HAS_GATE : HAS_SSMAX | HAS_GATE | HAS_COUNT, &rng);
    c.p.remainder = 0;
    if (n / 4 == 0) p->kv_len = &none;
    if (n / 4 == 1) p->bias = attn_mask_add(&minus, ATTN_F32, 1, 1, 1, 1);
    if (n / 4 == 2) p->q_len = &none;
    if (n / 4 == 4) p->has_q_off = 1, p->q_off = -100, p->causal = 1;
    if (n / 4 == 5) p->mask = attn_mask_bool((const uint8_t *)&none, 1, 1, 1, 1);
    run(&c);
    for (int64_t row = 0; row < 140; row++)
      for (int64_t x = 0; x < 7; x++) assert_true(oracle_get(&c.o, 0, row / 70, row % 70, x) == 0);
    for (int64_t row = 0; c.p.sum.data && row < 140; row++)
      assert_true(oracle_get(&c.p.sum, 0, row / 70, row % 70, 0) == 0);
    c.q = test_rows(c.q, 0, 0), c.o = test_rows(c.o, 0, 0);
    if (c.p.gate.data) c.p.gate = test_rows(c.p.gate, 0, 0);
    if (c.p.sum.data) c.p.sum = test_rows(c.p.sum, 0, 0);
    assert_string_equal(run(&c).path, "no-op");
    test_mem_release();
  }
}

/* Workers and a workspace of exactly the bytes asked for change no bit. */
void M2_workers(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    reshaped_call c = plain((attn_reshape_kind)(n % 4), 4, n < 4 ? 200 : 5, n < 4 ? 200 : 2100,
                            895),
                  d;
    test_rng rng = test_seed(896);
    attn_ctx ctx = test_ctx();
    add(&c, HAS_SSMAX | HAS_FORGET | HAS_GATE, &rng);
    d = again(&c);
    run(&c);
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_reshaped_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    assert_true(bytes != ATTN_WORKSPACE_REJECTED);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes;
    test_malloc_calls = 0;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    test_assert_same(c.o, d.o, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_E_WORKSPACE);
    test_mem_release();
  }
}

static void refuse(const reshaped_call *c, attn_status want, const char *word) {
  attn_ctx ctx = test_ctx();
  test_fill_value(c->o, 7);
  attn_status status = attn_reshaped(c->o, c->q, c->k, c->v, &c->p, &ctx);
  if (status != want || !ctx.reason || !strstr(ctx.reason, word))
    fail_msg("%s: %s, %s", word, attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  for (int64_t i = 0; i < c->o.len; i++) assert_true(oracle_get(&c->o, 0, 0, i, 0) == 7);
  if (want != ATTN_E_VALUE || !strstr(word, "contents"))
    (void)attn_reshaped_workspace(c->o, c->q, c->k, c->v, &c->p, &ctx);
}

void M2_rejects(void **state) {
  (void)state;
  const reshaped_call good = plain(ATTN_RESHAPE_SOFTMAX, 2, 20, 30, 899);
  float number[2] = {1, NAN}, fine[2] = {1, 1};
  attn_tensor log_f = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 1), wide;
  attn_tensor row = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 1);
  attn_forget_sum sums[60];
  test_fill_value(log_f, -1);
#define REFUSE_(status, word, ...) \
  do {                             \
    reshaped_call c = good;        \
    __VA_ARGS__;                   \
    refuse(&c, status, word);      \
  } while (0)
  REFUSE_(ATTN_E_RANGE, "params.kind", c.p.kind = (attn_reshape_kind)4);
  REFUSE_(ATTN_E_RANGE, "params.kind", c.p.kind = (attn_reshape_kind)-1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_SIGMOID", c.p.by_row = 1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_SIGMOID", c.p.has_bias = 1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_SIGMOID", c.p.sum = row);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_STICK", c.p.include_self = 1);
  REFUSE_(ATTN_E_RANGE, "ATTN_RESHAPE_STICK", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.remainder = 1);
  REFUSE_(ATTN_E_RANGE, "causal", c.p.kind = ATTN_RESHAPE_STICK);
  REFUSE_(ATTN_E_RANGE, "keep", c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1,
          c.p.attention.keep = 2);
  REFUSE_(ATTN_E_RANGE, "xl", c.p.kind = ATTN_RESHAPE_STICK, c.p.attention.causal = 1,
          c.p.attention.xl.table = row);
  REFUSE_(ATTN_E_VALUE, "params.bias", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.bias = NAN);
  REFUSE_(ATTN_E_RANGE, "has_bias", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.bias = 1);
  REFUSE_(ATTN_E_RANGE, "by_row", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.has_bias = c.p.by_row = 1);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_SIGMOID, c.p.attention.lse = row);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_SOFTPICK, c.p.attention.sinks = fine);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.kind = ATTN_RESHAPE_SOFTPICK, c.p.attention.softmax_one = 1);
  REFUSE_(ATTN_E_RANGE, "map_stage", c.p.attention.map = row,
          c.p.attention.map_stage = ATTN_MAP_RAW);
  REFUSE_(ATTN_E_NULL, "ssmax", c.p.ssmax.bias = fine);
  REFUSE_(ATTN_E_VALUE, "ssmax", c.p.ssmax.scale = number);
  REFUSE_(ATTN_E_VALUE, "ssmax", c.p.ssmax.scale = fine, c.p.ssmax.bias = number);
  REFUSE_(ATTN_E_ALIGN, "ssmax", c.p.ssmax.scale = (float *)((char *)number + 1));
  REFUSE_(ATTN_E_VALUE, "beta", c.p.temperature.on = 1, c.p.temperature.beta = INFINITY);
  REFUSE_(ATTN_E_VALUE, "beta", c.p.temperature.on = 1, c.p.temperature.shift = NAN);
  REFUSE_(ATTN_E_VALUE, "interval", c.p.temperature.on = 1, c.p.temperature.interval = -1);
  REFUSE_(ATTN_E_VALUE, "interval", c.p.temperature.on = 1, c.p.temperature.interval = ATTN_ZERO);
  REFUSE_(ATTN_E_RANGE, "xl", c.p.temperature.on = 1, c.p.attention.xl.table = row);
  REFUSE_(ATTN_E_NULL, "log_f", c.p.forget.sums = sums);
  REFUSE_(ATTN_E_RANGE, "known", c.p.forget.log_f = log_f, c.p.forget.known = 1,
          c.p.attention.causal = 1);
  REFUSE_(ATTN_E_RANGE, "causal", c.p.forget.log_f = log_f);
  REFUSE_(ATTN_E_SHAPE, "log_f", c.p.forget.log_f = row, c.p.attention.causal = 1);
  wide = log_f, wide.heads = 3, wide.stride_head = 0;
  REFUSE_(ATTN_E_HEADS, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  wide.heads = 0;
  REFUSE_(ATTN_E_HEADS, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  wide = log_f, wide.dtype = ATTN_I8;
  REFUSE_(ATTN_E_DTYPE, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  REFUSE_(ATTN_E_RANGE, "q_off", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.attention.has_q_off = 1, c.p.attention.q_off = 11);
  REFUSE_(ATTN_E_RANGE, "known", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = sums, c.p.forget.known = 31);
  REFUSE_(ATTN_E_RANGE, "known", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = sums, c.p.forget.known = -1);
  REFUSE_(ATTN_E_OVERLAP, "sums", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = (attn_forget_sum *)(void *)log_f.data);
  REFUSE_(ATTN_E_OVERLAP, "sums", c.p.forget.log_f = log_f, c.p.attention.causal = 1,
          c.p.forget.sums = (attn_forget_sum *)(void *)c.o.data);
  wide = log_f;
  for (int n = 0; n < 3; n++) {
    test_fill_value(wide, -1);
    oracle_set(&wide, 0, 1, 29, 0, n == 0 ? 1e-30 : n == 1 ? NAN : (double)INFINITY);
    REFUSE_(ATTN_E_VALUE, "log_f", c.p.forget.log_f = wide, c.p.attention.causal = 1);
  }
  REFUSE_(ATTN_E_SHAPE, "gate", c.p.gate = log_f);
  wide = row, wide.dim = 2;
  REFUSE_(ATTN_E_SHAPE, "gate", c.p.gate = wide);
  wide = row, wide.dtype = ATTN_I8;
  REFUSE_(ATTN_E_DTYPE, "gate", c.p.gate = wide);
  wide = good.o;
  REFUSE_(ATTN_E_OVERLAP, "o is", c.p.gate = wide);
  REFUSE_(ATTN_E_RANGE, "modify_weights", c.p.attention.modify_weights = test_modify_weights);
  REFUSE_(ATTN_E_VALUE, "compute", c.p.attention.compute = ATTN_COMPUTE_BF16);
  {
    int64_t offs[1] = {0};
    REFUSE_(ATTN_E_RANGE, "q_offs", c.p.attention.q_offs = offs);
  }
  {
    attn_ctx ctx = test_ctx();
    ctx.workspace = log_f.data, ctx.workspace_size = 16;
    reshaped_call c = good;
    c.p.forget.log_f = log_f, c.p.attention.causal = 1;
    assert_int_equal(attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx), ATTN_E_OVERLAP);
  }
#undef REFUSE_
}
