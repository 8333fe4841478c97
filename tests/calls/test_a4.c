/* tests/calls/test_a4.c owns A4, attention with rectified weights. Its float64 formula stands here, over
 * the scores of the oracle. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "patterns.h"
#include "terms.h"

#define EPSILON 5.9604644775390625e-8

/* One call of attn_relu. */
typedef struct relu_call {
  attn_tensor o, q, k, v;
  attn_relu_params params;
} relu_call;

static attn_report run(relu_call *c) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_relu(c->o, c->q, c->k, c->v, &c->params, &ctx);
  if (status != ATTN_OK) {
    fail_msg("attn_relu: %s: %s", attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  }
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

/* What a row should be, and how well float32 can know it. */
typedef struct relu_row {
  double *o, *o_unsure; /* [dv] */
  double *w, *w_unsure; /* [Tk] */
  double sum, sum_unsure;
} relu_row;

static double or_default(float x, double fallback) {
  return x == 0 && !signbit(x) ? fallback : (double)x;
}

/* The allowed keys of a row, where they are needed: a pair whose score is -inf is not one. */
static int64_t count_keys(const relu_call *c, int64_t b, int64_t h, int64_t i) {
  int64_t n = 0;
  attn_relu_kind kind = c->params.kind;
  if (kind == ATTN_RELU_RAW || kind == ATTN_RELU_NORM || kind == ATTN_RELU_RELA) return 1;
  attn_sdpa_params p = c->params.attention;
  for (int64_t j = 0; j < c->k.len; j++) {
    if (!oracle_allowed(&c->q, &c->k, &p, b, h, i, j)) continue;
    if (oracle_score(&c->q, &c->k, &p, b, h, i, j).x != -(double)INFINITY) n++;
  }
  return n;
}

/* Everything but the norm of RELA. */
static void formula(const relu_call *c, int64_t b, int64_t h, int64_t i, relu_row *row) {
  const attn_relu_params *p = &c->params;
  attn_sdpa_params scores = p->attention;
  int64_t allowed = count_keys(c, b, h, i), hv = h * c->v.heads / c->q.heads;
  double n = (double)(p->by_keys ? c->k.len : allowed);
  if (n < 1) n = 1;
  int power = p->kind == ATTN_RELU_GAU || p->power == 2 ? 2 : 1;
  double factor = 1;
  if (p->kind == ATTN_RELU_LEN) factor = pow(n, -or_default(p->alpha, 1));
  if (p->kind == ATTN_RELU_VAR) factor = 1 / (or_default(p->gamma, 1) * sqrt(n / 2));
  if (p->kind == ATTN_RELU_GAU && scores.scale == 0 && !signbit(scores.scale)) {
    scores.scale = (float)(1 / n);
  }
  double total = 0, total_unsure = 0;
  for (int64_t j = 0; j < c->k.len; j++) {
    row->w[j] = row->w_unsure[j] = 0;
    if (!oracle_allowed(&c->q, &c->k, &scores, b, h, i, j)) continue;
    oracle_pair pair = oracle_score(&c->q, &c->k, &scores, b, h, i, j);
    if (pair.x == -(double)INFINITY) continue;
    double off = EPSILON * pair.size * (6 + sqrt((double)c->q.dim) / 4);
    double r = pair.x > 0 || isnan(pair.x) ? pair.x : 0;
    row->w[j] = power == 1 ? r : r * r;
    row->w_unsure[j] = pair.x < -off ? 0 : power == 1 ? off : (2 * r + off) * off;
    total += row->w[j];
    total_unsure += row->w_unsure[j];
  }
  if (p->kind == ATTN_RELU_NORM) {
    double below = or_default(p->eps, 0) + total;
    factor = below == 0 ? 0 : 1 / below;
  }
  row->sum = row->sum_unsure = 0;
  for (int64_t x = 0; x < c->v.dim; x++) row->o[x] = row->o_unsure[x] = 0;
  for (int64_t j = 0; j < c->k.len; j++) {
    int dropped = row->w[j] == 0 && row->w_unsure[j] == 0;
    double spread = p->kind == ATTN_RELU_NORM ? row->w[j] * total_unsure * factor : 0;
    row->w[j] *= factor;
    row->w_unsure[j] = (row->w_unsure[j] + spread) * factor + 12 * EPSILON * row->w[j];
    row->sum += row->w[j];
    row->sum_unsure += row->w_unsure[j];
    for (int64_t x = 0; x < c->v.dim; x++) {
      double value = oracle_get(&c->v, b, hv, j, x);
      /* weight 0 of an allowed key still reads its value */
      if (dropped && !isnan(value)) continue;
      if (dropped && !oracle_allowed(&c->q, &c->k, &scores, b, h, i, j)) continue;
      row->o[x] += row->w[j] * value;
      row->o_unsure[x] += row->w_unsure[j] * fabs(value);
    }
  }
  double chain = EPSILON * sqrt((double)c->k.len + 1);
  row->sum_unsure += chain * row->sum;
  for (int64_t x = 0; x < c->v.dim; x++) {
    double most = 0;
    for (int64_t j = 0; j < c->k.len; j++) {
      if (row->w[j] > 0) most += row->w[j] * fabs(oracle_get(&c->v, b, hv, j, x));
    }
    row->o_unsure[x] += chain * most;
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

static void compare(const relu_call *c, const char *what) {
  int64_t heads = c->q.heads, dv = c->v.dim;
  size_t columns = (size_t)(heads * dv) * sizeof(double), keys = (size_t)c->k.len * sizeof(double);
  double *o = test_mem(columns), *unsure = test_mem(columns);
  relu_row row = {NULL, NULL, test_mem(keys), test_mem(keys), 0, 0};
  int rela = c->params.kind == ATTN_RELU_RELA;
  for (int64_t b = 0; b < c->q.batch; b++) {
    for (int64_t i = 0; i < c->q.len; i++) {
      double square = 0, off = 0, eps = or_default(c->params.eps, rela ? (double)1e-8f : 0);
      for (int64_t h = 0; h < heads; h++) {
        row.o = o + h * dv;
        row.o_unsure = unsure + h * dv;
        formula(c, b, h, i, &row);
        for (int64_t x = 0; x < dv; x++) {
          square += row.o[x] * row.o[x];
          off = fmax(off, row.o_unsure[x]);
        }
        if (!c->params.sum.data) continue;
        double got = oracle_get(&c->params.sum, b, h, i, 0);
        judge(got, row.sum, row.sum_unsure + 1e-37, what, b, h, i, 0);
      }
      double root = sqrt(square / (double)(heads * dv) + eps);
      for (int64_t x = 0; x < heads * dv; x++) {
        if (rela && root > 0) {
          double gain = (double)c->params.gain[x], gate = (double)c->params.gate[x];
          double y = gain * o[x] / root / (1 + exp(-gate * o[x]));
          double part = fabs(gain) / root * (unsure[x] + fabs(o[x]) * off / root);
          unsure[x] =
              part * (1 + fabs(gate * o[x])) + 12 * EPSILON * fabs(y) * (1 + fabs(gate * o[x]));
          o[x] = y;
        }
        double got = oracle_get(&c->o, b, x / dv, i, x % dv);
        judge(got, o[x], unsure[x] + stored(c->o.dtype, o[x]), what, b, x / dv, i, x % dv);
      }
    }
  }
}

static void check(relu_call *c, const char *what) {
  run(c);
  compare(c, what);
}

/* What attn_relu takes over from a call of attn_sdpa. */
static relu_call from(const test_call *call) {
  relu_call c;
  memset(&c, 0, sizeof c);
  c.o = call->o;
  c.q = call->q;
  c.k = call->k;
  c.v = call->v;
  c.params.attention = call->params;
  memset(&c.params.attention.lse, 0, sizeof(attn_tensor));
  memset(&c.params.attention.map, 0, sizeof(attn_tensor));
  c.params.attention.sinks = NULL;
  c.params.attention.softmax_one = 0;
  c.params.sum = call->params.lse;
  return c;
}

static relu_call plain(int64_t heads, int64_t tq, int64_t tk, attn_relu_kind kind, uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, tq, tk, 12, 7);
  test_call call = test_build(&spec, &rng);
  relu_call c = from(&call);
  c.params.kind = kind;
  if (kind == ATTN_RELU_RELA) {
    c.params.gain = test_floats(heads * 7, 1, &rng);
    c.params.gate = test_floats(heads * 7, 1, &rng);
  }
  return c;
}

static relu_call again(const relu_call *c) {
  relu_call d = *c;
  d.o = test_tensor(c->o.dtype, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, c->o.dim);
  d.params.sum = test_tensor(ATTN_F32, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, 1);
  return d;
}

static void random_options(relu_call *c, attn_relu_kind kind, test_rng *rng) {
  attn_relu_params *p = &c->params;
  p->kind = kind;
  if (kind != ATTN_RELU_VAR && kind != ATTN_RELU_RELA) p->power = (int)test_range(rng, 0, 2);
  static const float alphas[] = {0, ATTN_ZERO, 0.5f, 2};
  if (kind == ATTN_RELU_LEN) p->alpha = alphas[test_u64(rng) % 4];
  if (kind == ATTN_RELU_VAR) p->gamma = test_u64(rng) & 1 ? 0 : 2.5f;
  if (kind == ATTN_RELU_NORM || kind == ATTN_RELU_RELA) p->eps = test_u64(rng) & 1 ? 0 : 0.25f;
  p->by_keys = test_u64(rng) % 3 == 0;
  if (kind == ATTN_RELU_GAU && p->attention.toeplitz.inside && p->attention.scale == 0) {
    p->attention.scale = 0.25f; /* that term needs one */
  }
  if (kind == ATTN_RELU_RELA) {
    int64_t n = c->q.heads * c->v.dim;
    p->gain = test_floats(n, 1, rng);
    p->gate = test_floats(n, 1, rng);
    c->o = test_tensor(ATTN_F32, TEST_PADDED, c->q.batch, c->q.heads, c->q.len, c->v.dim);
  }
}

static void check_random(int terms, uint64_t seed, int64_t count) {
  for (int64_t n = 0; n < count; n++) {
    test_rng rng = test_seed(seed * 1000 + (uint64_t)n);
    test_call call = test_terms_call(terms, 150, &rng);
    relu_call c = from(&call);
    char what[60];
    random_options(&c, (attn_relu_kind)(n % 6), &rng);
    snprintf(what, sizeof what, "rectified attention, terms %x, case %d", (unsigned)terms, (int)n);
    check(&c, what);
    test_mem_release();
  }
}

void A4_matches_oracle(void **state) {
  (void)state;
  check_random(0, 350, test_count(90, 24));
}

void A4_with_terms(void **state) {
  (void)state;
  static const int terms[] = {TERM_KEYS,     TERM_XL,       TERM_LABELS,
                              TERM_FACTOR,   TERM_TOEPLITZ, TERM_PARABOLA,
                              TERM_GAUSSIAN, TERM_MODIFY,   TERM_KEYS | TERM_MODIFY,
                              TERM_QUERIES};
  for (int n = 0; n < 10; n++) check_random(terms[n], 351 + (uint64_t)n, 6);
}

/* GAU divides scores by the keys of each row, products of keys with query vectors among them: in tiles, gathered
 * and in lists. */
void A4_factors_of_query_vectors(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(358 + (uint64_t)n);
    const attn_pattern patterns[] = {attn_pattern_random(9, 5), attn_pattern_strided(7)};
    relu_call c = plain(2, 90, 130, ATTN_RELU_GAU, 359 + (uint64_t)n);
    attn_sdpa_params *p = &c.params.attention;
    p->alibi = test_floats(2, 0.1, &rng); /* so that the keys are counted first */
    p->relative.queries = test_table(2, n & 1 ? 9 : 301, 12, TEST_BHTD, &rng);
    p->causal = n == 3;
    if (n % 3 == 2) {
      check(&c, "GAU with query vectors");
    } else {
      test_graph g = test_graph_of(patterns[n % 3], 2, 90, 130);
      attn_schedule s = test_schedule(&g);
      int64_t pairs;
      p->schedule = &s;
      run(&c);
      p->schedule = NULL, p->mask = attn_mask_bool(test_graph_mask(&g, &pairs), 1, 2, 90, 130);
      compare(&c, "GAU with query vectors over a schedule");
    }
    test_mem_release();
  }
}

/* All scores at or below 0, no keys, forbidden keys: zeros, and never a NaN. */
void A4_nothing_to_see(void **state) {
  (void)state;
  for (int n = 0; n < 36; n++) {
    relu_call c = plain(2, 70, n % 6 == 3 ? 0 : 90, (attn_relu_kind)(n / 6), 360);
    attn_sdpa_params *p = &c.params.attention;
    int32_t none = 0;
    float minus = -INFINITY;
    if (c.params.kind == ATTN_RELU_RELA) c.params.eps = n & 1 ? ATTN_ZERO : 0;
    if (n % 6 == 0) test_fill_value(c.k, 0);
    if (n % 6 == 1) test_fill_value(c.q, 1), test_fill_value(c.k, -1);
    if (n % 6 == 2) p->kv_len = &none;
    if (n % 6 == 4) p->bias = attn_mask_add(&minus, ATTN_F32, 1, 1, 1, 1);
    if (n % 6 == 5) p->q_len = &none;
    run(&c);
    for (int64_t row = 0; row < 140; row++) {
      assert_true(oracle_get(&c.params.sum, 0, row / 70, row % 70, 0) == 0);
      for (int64_t x = 0; x < 7; x++) {
        assert_true(oracle_get(&c.o, 0, row / 70, row % 70, x) == 0);
      }
    }
    test_mem_release();
  }
}

/* Scaling Q by c > 0 scales RAW, LEN and VAR by c^power and leaves NORM as it is. Powers of two
 * scale every rounding alike. */
void A4_homogeneous(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    static const attn_relu_kind kinds[] = {ATTN_RELU_RAW, ATTN_RELU_LEN, ATTN_RELU_VAR,
                                           ATTN_RELU_NORM};
    relu_call c = plain(2, 70, 90, kinds[n % 4], 361), d = again(&c);
    int power = n >= 4 && n % 4 != 2 ? 2 : 1;
    c.params.power = d.params.power = power;
    c.params.attention.causal = d.params.attention.causal = 1;
    d.q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 12);
    for (int64_t e = 0; e < 2 * 70 * 12; e++) ((float *)d.q.data)[e] = 4 * ((float *)c.q.data)[e];
    run(&c);
    run(&d);
    double factor = n % 4 == 3 ? 1 : power == 2 ? 16 : 4;
    for (int64_t row = 0; row < 140; row++) {
      for (int64_t x = 0; x < 7; x++) {
        double want = factor * oracle_get(&c.o, 0, row / 70, row % 70, x);
        double got = oracle_get(&d.o, 0, row / 70, row % 70, x);
        assert_true(fabs(got - want) <= 2e-6 * (factor + fabs(want)));
      }
    }
  }
}

/* The rows of NORM sum to 1, or to 0 when there is nothing. */
void A4_norm_sums(void **state) {
  (void)state;
  for (int power = 1; power <= 2; power++) {
    relu_call c = plain(2, 90, 70, ATTN_RELU_NORM, 362);
    c.params.power = power;
    c.params.attention.causal = 1; /* 20 empty rows */
    check(&c, "normalised rows");
    for (int64_t row = 0; row < 180; row++) {
      double sum = oracle_get(&c.params.sum, 0, row / 90, row % 90, 0);
      assert_true(sum == 0 || fabs(sum - 1) < 2e-6);
      if (row % 90 < 20) assert_true(sum == 0);
    }
  }
}

/* alpha = 0 is RAW; power 2 and alpha 2 at a scale of 1 is GAU without a bias. */
void A4_kinds_agree(void **state) {
  (void)state;
  relu_call c = plain(2, 70, 90, ATTN_RELU_LEN, 363), d = again(&c);
  c.params.attention.causal = d.params.attention.causal = 1;
  c.params.alpha = ATTN_ZERO;
  d.params.kind = ATTN_RELU_RAW;
  run(&c);
  run(&d);
  test_assert_near(c.o, d.o, 1e-6, "alpha = 0");
  c.params.alpha = 2;
  c.params.power = 2;
  c.params.attention.scale = 1;
  d.params.kind = ATTN_RELU_GAU;
  run(&c);
  run(&d);
  test_assert_near(c.o, d.o, 3e-6, "GAU");
  test_assert_near(c.params.sum, d.params.sum, 3e-6, "GAU");
}

/* Keys whose scores are not positive change nothing in RAW and NORM, and LEN through n alone. */
void A4_negative_keys(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    static const attn_relu_kind kinds[] = {ATTN_RELU_RAW, ATTN_RELU_NORM, ATTN_RELU_LEN};
    relu_call c = plain(1, 70, 90, kinds[n], 364), d = again(&c);
    test_fill_value(c.q, 1); /* shared by both */
    for (int64_t j = 60; j < 90; j++) test_fill_row(c.k, 0, 0, j, j % 3 ? -1 : 0);
    d.k = test_rows(c.k, 0, 60);
    d.v = test_rows(c.v, 0, 60);
    run(&c);
    run(&d);
    for (int64_t i = 0; i < 70; i++) {
      for (int64_t x = 0; x < 7; x++) {
        double want = oracle_get(&d.o, 0, 0, i, x) * (n == 2 ? 60.0 / 90 : 1);
        assert_true(fabs(oracle_get(&c.o, 0, 0, i, x) - want) <= 3e-6 * (1 + fabs(want)));
      }
    }
  }
}

/* n counts allowed keys: not those a bias or a modifier forbids, unless by_keys. */
static void forbid(void *user, const attn_score_tile *t) {
  (void)user;
  for (int64_t r = 0; r < t->queries; r++) {
    for (int64_t c = 0; c < t->keys; c++) {
      if (t->key[c] >= 60) t->score[c * t->key_stride + r * t->query_stride] = -INFINITY;
    }
  }
}

void A4_row_counts(void **state) {
  (void)state;
  for (int n = 0; n < 18; n++) {
    static const attn_relu_kind kinds[] = {ATTN_RELU_LEN, ATTN_RELU_VAR, ATTN_RELU_GAU};
    relu_call c = plain(2, 70, 90, kinds[n % 3], 365), d = again(&c);
    float bias[90];
    int32_t length = 60;
    uint8_t allowed[90];
    for (int j = 0; j < 90; j++) {
      bias[j] = j < 60 ? 0 : -INFINITY;
      allowed[j] = j < 60;
    }
    attn_sdpa_params *p = &c.params.attention;
    int by_keys = n / 3 == 5;
    if (n / 3 == 0) p->bias = attn_mask_add(bias, ATTN_F32, 1, 1, 1, 90);
    if (n / 3 == 1) p->modify = forbid;
    if (n / 3 == 2 || by_keys) p->kv_len = &length;
    if (n / 3 == 3) p->mask = attn_mask_bool(allowed, 1, 1, 1, 90);
    if (n / 3 == 4) { /* the query decides: 60 keys for each */
      p->has_q_off = 1;
      p->q_off = -500;
      test_right(p, -1);
      p->kv_len = &length;
    }
    c.params.by_keys = by_keys;
    check(&c, "counted keys");
    if (by_keys) continue;
    d.k = test_rows(d.k, 0, 60);
    d.v = test_rows(d.v, 0, 60);
    run(&d);
    test_assert_near(c.o, d.o, 2e-6, "as if the other keys were not there");
  }
}

/* RELA normalises over all heads of a query at once. */
void A4_rela_over_heads(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    relu_call c = plain(3, 100, 130, ATTN_RELU_RELA, 366);
    c.params.attention.causal = 1;
    test_layout layouts[] = {TEST_BHTD, TEST_BTHD, TEST_PADDED, TEST_NEGATIVE};
    c.o = test_tensor(ATTN_F32, layouts[n], 1, 3, 100, 7);
    check(&c, "RELA");
    /* heads of very different size */
    for (int64_t j = 0; j < 130; j++) test_fill_row(c.v, 0, 1, j, 1000);
    check(&c, "RELA with one large head");
  }
}

/* Neither f32's end nor large scores make a NaN of a row that has none. */
void A4_overflow(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    static const attn_relu_kind kinds[] = {ATTN_RELU_RAW, ATTN_RELU_LEN, ATTN_RELU_VAR,
                                           ATTN_RELU_GAU};
    relu_call c = plain(1, 20, 30, kinds[n], 367);
    c.params.attention.causal = 1;
    for (int64_t i = 0; i < 20; i++) test_fill_row(c.q, 0, 0, i, i % 2 ? 0 : 1e18);
    test_fill_value(c.k, 1e18);
    test_fill_value(c.v, 1e6);
    run(&c);
    for (int64_t i = 0; i < 20; i++) {
      double got = oracle_get(&c.o, 0, 0, i, 0);
      assert_true(i % 2 ? got == 0 : got > 1e30); /* infinite, perhaps */
    }
  }
}

/* NaN in a query, a key or a value reaches the rows that read it; forbidden keys reach none. */
void A4_nan(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    attn_relu_kind kind = (attn_relu_kind)(n % 6);
    relu_call clean = plain(2, 100, 150, kind, 368);
    uint8_t *allowed = test_mem(100 * 150);
    for (int k = 0; k < 100 * 150; k++) allowed[k] = k % 150 % 7 != 3;
    clean.params.attention.mask = attn_mask_bool(allowed, 1, 1, 100, 150);
    clean.params.attention.causal = 1; /* q_off 50 */
    run(&clean);
    relu_call c = again(&clean);
    for (int64_t j = 3; j < 150; j += 7) {
      test_fill_row(c.k, 0, 0, j, j & 1 ? (double)NAN : (double)INFINITY);
      test_fill_row(c.v, 0, 0, j, j & 2 ? (double)NAN : (double)INFINITY);
    }
    run(&c);
    test_assert_same(c.o, clean.o, "garbage under a mask");
    attn_tensor *t = n / 6 == 0 ? &c.q : n / 6 == 1 ? &c.k : &c.v;
    int64_t bad = n / 6 == 0 ? 37 : n / 6 == 1 ? 86 : 128;
    if (n / 6 == 3) continue;
    test_fill_row(*t, 0, 0, bad, (double)NAN);
    run(&c);
    for (int64_t row = 0; row < 200; row++) {
      int64_t i = row % 100, h = row / 100;
      int read = n / 6 == 0 ? i == bad : i + 50 >= bad;
      if (h == 1 && kind != ATTN_RELU_RELA) read = 0;
      double got = oracle_get(&c.o, 0, h, i, 2), want = oracle_get(&clean.o, 0, h, i, 2);
      if (read ? !isnan(got) : got != want) {
        fail_msg("kind %d, operand %d: row %d of head %d is %g", (int)kind, n / 6, (int)i, (int)h,
                 got);
      }
    }
    test_mem_release();
  }
}

/* The same bits for any workers and division of the queries. */
void A4_bits(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    relu_call c = plain(4, 150, 200, (attn_relu_kind)n, 369), d = again(&c);
    c.params.attention.causal = d.params.attention.causal = 1;
    c.params.attention.has_q_off = d.params.attention.has_q_off = 1;
    c.params.attention.q_off = d.params.attention.q_off = 50;
    run(&c);
    for (int workers = 2; workers <= 5; workers += 3) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = workers == 2 ? test_parallel_backward : test_parallel_threads;
      assert_int_equal(attn_relu(d.o, d.q, d.k, d.v, &d.params, &ctx), ATTN_OK);
      test_assert_same(d.o, c.o, "workers");
      test_assert_same(d.params.sum, c.params.sum, "workers");
    }
    for (int64_t i = 0; i < 150; i += 37) {
      int64_t len = 150 - i < 37 ? 150 - i : 37;
      relu_call part = c;
      part.q = test_rows(c.q, i, len);
      part.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, len, 7);
      part.params.sum = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, len, 1);
      part.params.attention.q_off += i;
      run(&part);
      test_assert_same(part.o, test_rows(c.o, i, len), "a chunk of queries");
    }
    test_mem_release();
  }
}

void A4_work_follows_structure(void **state) {
  (void)state;
  relu_call c = plain(1, 512, 512, ATTN_RELU_RAW, 370);
  assert_int_equal(run(&c).pairs, 512 * 512);
  c.params.attention.causal = 1;
  assert_in_range(run(&c).pairs, 512 * 513 / 2, 512 * 512 * 6 / 10);
}

void A4_workspace(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    relu_call c = plain(4, 70, 90, (attn_relu_kind)n, 371), want = again(&c);
    run(&want);
    for (int workers = 1; workers <= 3; workers += 2) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = test_parallel_forward;
      size_t size = attn_relu_workspace(c.o, c.q, c.k, c.v, &c.params, &ctx);
      assert_true(size > 0 && size < 1u << 26);
      unsigned char *memory = test_mem(size + 256);
      for (size_t at = 0; at < 70; at += 23) {
        memset(memory, 0xA5, size + 256);
        ctx.workspace = memory + at;
        ctx.workspace_size = size;
        test_malloc_fails = 1;
        attn_status status = attn_relu(c.o, c.q, c.k, c.v, &c.params, &ctx);
        test_malloc_fails = 0;
        if (status != ATTN_OK) fail_msg("%s", ctx.reason);
        test_assert_same(c.o, want.o, "with a workspace");
        for (size_t i = 0; i < 256; i++) {
          if (i < at) assert_int_equal(memory[i], 0xA5);
          if (at + size + i < size + 256) assert_int_equal(memory[at + size + i], 0xA5);
        }
      }
      ctx.workspace_size = size - 1;
      assert_int_equal(attn_relu(c.o, c.q, c.k, c.v, &c.params, &ctx), ATTN_E_WORKSPACE);
    }
  }
}

void A4_guard_pages(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 3, 17, 64, 65, 129};
  for (int n = 0; n < 24; n++) {
    test_where = n & 1 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    relu_call c = plain(2, sizes[n % 6], sizes[n / 2 % 6], (attn_relu_kind)(n / 4), 372);
    c.params.attention.causal = n >> 1 & 1;
    attn_ctx ctx = test_ctx();
    size_t size = attn_relu_workspace(c.o, c.q, c.k, c.v, &c.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    assert_int_equal(attn_relu(c.o, c.q, c.k, c.v, &c.params, &ctx), ATTN_OK);
    test_where = TEST_HEAP;
    compare(&c, "between guard pages");
    test_mem_release();
  }
}

/* Each rule: what spoils the call, the status, and a word of the reason. */
void A4_rejects(void **state) {
  (void)state;
  static const struct {
    attn_relu_kind kind;
    attn_status status;
    const char *word;
  } rules[] = {
      {(attn_relu_kind)6, ATTN_E_RANGE, "kind"},
      {(attn_relu_kind)-1, ATTN_E_RANGE, "kind"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "power"},
      {ATTN_RELU_NORM, ATTN_E_RANGE, "power"},
      {ATTN_RELU_VAR, ATTN_E_RANGE, "power"},
      {ATTN_RELU_RELA, ATTN_E_RANGE, "power"},
      {ATTN_RELU_LEN, ATTN_E_VALUE, "alpha"},
      {ATTN_RELU_LEN, ATTN_E_VALUE, "alpha"},
      {ATTN_RELU_VAR, ATTN_E_VALUE, "gamma"},
      {ATTN_RELU_VAR, ATTN_E_VALUE, "gamma"},
      {ATTN_RELU_NORM, ATTN_E_VALUE, "eps"},
      {ATTN_RELU_RELA, ATTN_E_VALUE, "eps"},
      {ATTN_RELU_RELA, ATTN_E_NULL, "gain"},
      {ATTN_RELU_RELA, ATTN_E_NULL, "gate"},
      {ATTN_RELU_RELA, ATTN_E_VALUE, "gain"},
      {ATTN_RELU_RELA, ATTN_E_VALUE, "gate"},
      {ATTN_RELU_RELA, ATTN_E_DTYPE, "o.dtype"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "sinks"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "softmax_one"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "span"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "relative"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "lse"},
      {ATTN_RELU_RAW, ATTN_E_RANGE, "map"},
      {ATTN_RELU_RAW, ATTN_E_SHAPE, "sum"},
      {ATTN_RELU_RAW, ATTN_E_DTYPE, "sum"},
      {ATTN_RELU_RAW, ATTN_E_OVERLAP, "o "},
      {ATTN_RELU_RAW, ATTN_E_OVERLAP, "o "},
      {ATTN_RELU_RAW, ATTN_E_SHAPE, "k.dim"},
      {ATTN_RELU_RAW, ATTN_E_VALUE, "scale"},
      {ATTN_RELU_RELA, ATTN_E_ALIGN, "gain"},
      {ATTN_RELU_RELA, ATTN_E_OVERLAP, "o "},
      {ATTN_RELU_GAU, ATTN_E_RANGE, "toeplitz.inside"},
  };
  int wrong = 0;
  for (int n = 0; n < (int)(sizeof rules / sizeof *rules); n++) {
    int known = (int)rules[n].kind >= 0 && rules[n].kind <= ATTN_RELU_RELA;
    relu_call c = plain(2, 6, 9, known ? rules[n].kind : ATTN_RELU_RAW, 373);
    attn_relu_params *p = &c.params;
    p->kind = rules[n].kind;
    test_block out;
    c.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 6, 7);
    out = test_last_block;
    float *spare = test_constant(64, 1);
    if (n == 2) p->power = 3;
    if (n == 3) p->power = -1;
    if (n == 4 || n == 5) p->power = 2;
    if (n == 6) p->alpha = -1;
    if (n == 7) p->alpha = NAN;
    if (n == 8) p->gamma = -1;
    if (n == 9) p->gamma = INFINITY;
    if (n == 10) p->eps = -1e-9f;
    if (n == 11) p->eps = NAN;
    if (n == 12) p->gain = NULL;
    if (n == 13) p->gate = NULL;
    if (n == 14) p->gain = spare, spare[13] = NAN;
    if (n == 15) p->gate = spare, spare[13] = INFINITY;
    if (n == 16) c.o.dtype = ATTN_F16;
    if (n == 17) p->attention.sinks = spare;
    if (n == 18) p->attention.softmax_one = 1;
    if (n == 19) p->attention.span.z = spare;
    if (n == 20) p->attention.relative.values = attn_bhtd(spare, ATTN_F32, 1, 1, 3, 7);
    if (n == 21) p->attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 6, 1);
    if (n == 22) p->attention.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 6, 9);
    if (n == 23) p->sum.len = 5;
    if (n == 24) p->sum.dtype = ATTN_F16;
    if (n == 25) p->sum.data = c.o.data;
    if (n == 26) c.o.data = c.q.data;
    if (n == 27) c.k.dim = 11;
    if (n == 28) p->attention.scale = NAN;
    if (n == 29) p->gain = (float *)(void *)((char *)spare + 1);
    if (n == 30) p->gate = c.o.data;
    if (n == 31) {
      p->attention.toeplitz.table = spare;
      p->attention.toeplitz.len = 9;
      p->attention.toeplitz.inside = 1;
    }
    unsigned char *before = test_mem(out.size);
    memcpy(before, out.data, out.size);
    attn_ctx ctx = test_ctx();
    attn_status got = attn_relu(c.o, c.q, c.k, c.v, p, &ctx);
    const char *reason = ctx.reason ? ctx.reason : "(no reason)";
    if (got != rules[n].status || !strstr(reason, rules[n].word)) {
      print_error("rule %d: got \"%s\" because \"%s\"; want \"%s\" naming \"%s\"\n", n,
                  attn_status_string(got), reason, attn_status_string(rules[n].status),
                  rules[n].word);
      wrong++;
    }
    if (memcmp(before, out.data, out.size)) {
      print_error("rule %d: the output was touched\n", n);
      wrong++;
    }
  }
  assert_int_equal(wrong, 0);
}
