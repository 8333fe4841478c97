/* tests/oracle_terms.c owns the score of a pair in float64: the scaled dot product and every term
 * that attn_sdpa_params may add, in the order of the specification. */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "oracle.h"

/* Tables and vectors may be shared by the heads. */
static const void *table_row(const attn_tensor *t, int64_t h, int64_t row) {
  return oracle_address(t, 0, t->heads == 1 ? 0 : h, row, 0);
}

static int64_t clip(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/* Row of a relative table for a distance. */
static int64_t relative_row(const attn_tensor *t, int64_t delta) {
  int64_t c = (t->len - 1) / 2;
  return clip(delta, -c, c) + c;
}

double oracle_relative_value(const attn_sdpa_params *params, int64_t h, int64_t delta, int64_t c) {
  const attn_tensor *t = &params->relative.values;
  return t->data ? oracle_number(table_row(t, h, relative_row(t, delta)), t->dtype, c) : 0;
}

/* log(1 + exp(x)) */
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

double oracle_distance_factor(double alpha, double beta, double t) {
  return exp(softplus(beta) - softplus(beta - alpha * t));
}

/* Numbers of up to 16 * 32 bits, least significant word first. */
typedef struct wide {
  uint32_t word[16];
} wide;

static wide times_power(wide x, int64_t base, int64_t exponent) {
  assert(base >= 0 && base <= 0xffffffff);
  while (exponent-- > 0) {
    uint64_t carry = 0;
    for (int n = 0; n < 16; n++) {
      carry += (uint64_t)x.word[n] * (uint64_t)base;
      x.word[n] = (uint32_t)carry;
      carry >>= 32;
    }
    assert(carry == 0);
  }
  return x;
}

static int at_least(const wide *x, const wide *y) {
  for (int n = 16; n-- > 0;) {
    if (x->word[n] != y->word[n]) return x->word[n] > y->word[n];
  }
  return 1;
}

/* Whether the log bucket me + k has begun at a: a^E >= me^(E-k) max^k. */
static int begun(int64_t a, int64_t k, int64_t e, int64_t me, int64_t max_distance) {
  wide one = {{1}};
  wide left = times_power(one, a, e);
  wide right = times_power(times_power(one, me, e - k), max_distance, k);
  return at_least(&left, &right);
}

int64_t oracle_t5_bucket(int64_t delta, int bidirectional, int64_t buckets, int64_t max_distance) {
  /* The last answers, since the numbers are wide. */
  static struct { int64_t nb, max_distance, a, bucket; } known[1024];
  int64_t nb = bidirectional ? buckets / 2 : buckets, me = nb / 2, e = nb - me;
  int64_t a = bidirectional || delta < 0 ? (delta < 0 ? -delta : delta) : 0;
  int64_t base = bidirectional && delta > 0 ? nb : 0, k = 0;
  if (a < me) return base + a;
  if (a >= max_distance) return base + nb - 1;
  int slot = (int)(a % 1024);
  if (known[slot].nb == nb && known[slot].max_distance == max_distance && known[slot].a == a) {
    return base + known[slot].bucket;
  }
  while (k + 1 < e && begun(a, k + 1, e, me, max_distance)) k++;
  known[slot].nb = nb;
  known[slot].max_distance = max_distance;
  known[slot].a = a;
  known[slot].bucket = me + k;
  return base + me + k;
}

/* (R + z - x)/R, unclipped, for an R of any size. */
static double ramp(const attn_span *s, const attn_tensor *q, int64_t b, int64_t h, int64_t i,
                   int64_t t) {
  int64_t at = s->per_query ? (b * q->heads + h) * q->len + i : h;
  double r = s->ramp == 0 ? 32 : (double)s->ramp;
  return 1 + ((double)s->z[at] - (double)(t + s->shift)) / r;
}

double oracle_span(const attn_sdpa_params *params, const attn_tensor *q, int64_t b, int64_t h,
                   int64_t i, int64_t delta) {
  const attn_span *s = &params->span;
  int64_t t = -delta;
  if (!s->z) return 1;
  if (t < (s->include_self ? 0 : 1) || (s->max_span > 0 && t > s->max_span)) return 0;
  return fmin(fmax(ramp(s, q, b, h, i, t), 0), 1);
}

/* Adds a term of a given size. */
static void add(oracle_pair *p, double x, double size) {
  p->x += x;
  p->size += size;
}

/* Adds the dot product of two rows. */
static void add_dot(oracle_pair *sum, const attn_tensor *x, const void *x_row, const attn_tensor *y,
                    const void *y_row) {
  for (int64_t c = 0; c < x->dim; c++) {
    double term = oracle_number(x_row, x->dtype, c) * oracle_number(y_row, y->dtype, c);
    add(sum, term, fabs(term));
  }
}

/* q_i . (k_j + ...) with everything that stands inside the scale. */
static oracle_pair inner(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *p,
                         int64_t b, int64_t h, int64_t i, int64_t j) {
  int64_t hk = h * k->heads / q->heads, delta = j - oracle_position(q, k, p, b, i);
  const attn_tensor *keys = &p->relative.keys, *xl = &p->xl.table, *table = &p->labels.table;
  const void *query = oracle_address(q, b, h, i, 0), *key = oracle_address(k, b, hk, j, 0);
  oracle_pair sum = {0, 0};
  add_dot(&sum, q, query, k, key);
  if (keys->data) add_dot(&sum, q, query, keys, table_row(keys, h, relative_row(keys, delta)));
  if (p->relative.queries.data) {
    const attn_tensor *turned = &p->relative.queries;
    add_dot(&sum, k, key, turned, table_row(turned, h, relative_row(turned, delta)));
  }
  if (p->labels.label) {
    int64_t label = p->labels.label(p->labels.user, b, h, i, j);
    if (label >= 0 && label < table->len) {
      add_dot(&sum, q, query, table, table_row(table, h, label));
      double bias = p->labels.bias ? (double)p->labels.bias[label * q->heads + h] : 0;
      add(&sum, bias, fabs(bias));
    }
  }
  if (xl->data) { /* (q + v) . r, and u . k */
    const void *r = table_row(xl, h, delta - p->xl.first);
    attn_tensor bias = attn_bhtd(p->xl.u, ATTN_F32, 1, 1, q->heads, q->dim);
    add_dot(&sum, q, query, xl, r);
    if (bias.data) add_dot(&sum, &bias, oracle_address(&bias, 0, 0, h, 0), k, key);
    bias.data = (void *)p->xl.v;
    if (bias.data) add_dot(&sum, &bias, oracle_address(&bias, 0, 0, h, 0), xl, r);
  }
  return sum;
}

/* The terms that are added to the scaled score. */
static void additive(oracle_pair *sum, const attn_tensor *q, const attn_sdpa_params *p,
                     double scale, int64_t b, int64_t h, int64_t i, int64_t j, int64_t delta) {
  double distance = (double)delta, term;
  const attn_toeplitz *table = &p->toeplitz;
  if (table->table) {
    int64_t row = table->heads > 1 ? h * table->len : 0;
    term = (double)table->table[row + clip(delta - table->first, 0, table->len - 1)];
    if (table->inside) term *= scale;
    add(sum, term, fabs(term));
  }
  if (p->t5.table) {
    int64_t buckets = p->t5.buckets ? p->t5.buckets : 32;
    int64_t most = p->t5.max_distance ? p->t5.max_distance : 128;
    int64_t bucket = oracle_t5_bucket(delta, p->t5.bidirectional, buckets, most);
    term = (double)p->t5.table[bucket * q->heads + h];
    add(sum, term, fabs(term));
  }
  if (p->parabola.w) {
    double square = (double)p->parabola.w[h] * distance * distance;
    double b0 = p->parabola.bias ? (double)p->parabola.bias[h] : 0;
    add(sum, -fabs(square + b0), square + fabs(b0));
  }
  if (p->gaussian.center) {
    int64_t at = (b * q->heads + h) * q->len + i;
    double off = (double)j - (double)p->gaussian.center[at];
    term = (double)p->gaussian.precision[at] * off * off;
    add(sum, -term, 3 * fabs(term)); /* the difference is squared */
  }
  double bias = oracle_mask(&p->bias, b, h, i, j);
  if (p->bias.kind) add(sum, bias, fabs(bias));
  if (p->alibi) {
    term = (double)p->alibi[h] * fabs(distance);
    add(sum, -term, fabs(term));
  }
}

/* The adaptive span multiplies the weight, that is, it adds log m to the final score. */
static void add_span(oracle_pair *sum, const attn_tensor *q, const attn_sdpa_params *p, int64_t b,
                     int64_t h, int64_t i, int64_t delta) {
  double m = oracle_span(p, q, b, h, i, delta);
  /* m is right to a few roundings of itself, however short the ramp */
  add(sum, log(m), fabs(log(m)) + (m < 1 && m > 0 ? 2 : 0));
}

double oracle_hand(attn_score_fn function, void *user, int64_t b, int64_t h, int64_t i, int64_t j,
                   int64_t position, double x) {
  float value = (float)x;
  attn_score_tile tile;
  memset(&tile, 0, sizeof tile);
  tile.score = &value;
  tile.key_stride = tile.query_stride = 1;
  tile.batch = b;
  tile.keys = tile.queries = 1;
  tile.key = &j;
  tile.query = &i;
  tile.position = &position;
  tile.head = &h;
  function(user, &tile);
  return (double)value;
}

/* What the user's function makes of one score. Functions of the tests have a slope of at most 2. */
static void modify(oracle_pair *sum, const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i,
                   int64_t j, int64_t position) {
  const double x = oracle_hand(p->modify, p->modify_user, b, h, i, j, position, sum->x);
  sum->size = 2 * sum->size + 2 * fabs(sum->x) + fabs(x);
  sum->x = x;
}

static void cap_score(oracle_pair *sum, double cap) {
  double t = tanh(sum->x / cap); /* its slope is 1 - t^2 */
  sum->x = cap * t;
  sum->size = sum->size * (1 - t * t) + 2 * fabs(sum->x);
}

oracle_pair oracle_score(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *p,
                         int64_t b, int64_t h, int64_t i, int64_t j) {
  int64_t position = oracle_position(q, k, p, b, i), delta = j - position;
  double scale = (double)p->scale, cap = (double)p->softcap;
  if (scale == 0 && !signbit(scale)) scale = 1 / sqrt((double)q->dim);
  oracle_pair sum = inner(q, k, p, b, h, i, j);
  sum.x *= scale;
  sum.size *= fabs(scale);
  if (p->factor.alpha) {
    double t = fabs((double)delta);
    double f = oracle_distance_factor((double)p->factor.alpha[h], (double)p->factor.beta[h], t);
    sum.x = (sum.x < 0 ? 0 : sum.x) * f;
    sum.size = sum.size * f + (f > 0 ? fabs(sum.x) * (2 + fabs(log(f))) : 0);
  }
  if (cap > 0 && p->softcap_at == ATTN_SOFTCAP_SCORES) cap_score(&sum, cap);
  additive(&sum, q, p, scale, b, h, i, j, delta);
  if (cap > 0 && p->softcap_at == ATTN_SOFTCAP_BIASED) cap_score(&sum, cap);
  if (p->modify) modify(&sum, p, b, h, i, j, position);
  if (p->span.z) add_span(&sum, q, p, b, h, i, delta);
  return sum;
}
