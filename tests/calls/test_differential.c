/* tests/calls/test_differential.c owns M2's differential attention: its formula in float64, what it says of itself, what
 * it refuses. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

#define EPSILON 5.9604644775390625e-8

typedef struct differential_call {
  attn_tensor o, q, k, v;
  attn_differential_params p;
} differential_call;

static attn_report run(const differential_call *c) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_differential(c->o, c->q, c->k, c->v, &c->p, &ctx);
  if (status != ATTN_OK)
    fail_msg("attn_differential: %s: %s", attn_status_string(status),
             ctx.reason ? ctx.reason : "(null)");
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

/* The heads of a map. */
static attn_tensor half(attn_tensor t, int map) {
  attn_tensor one = test_one(t, 0, t.batch, map, 1);
  one.heads = t.heads / 2, one.stride_head = 2 * t.stride_head;
  return one;
}

static double weight_of(const differential_call *c, int64_t b, int64_t h, int64_t i, double *init) {
  const attn_differential_params *p = &c->p;
  double layer = p->layer ? (double)p->layer : 1, one = 0, two = 0;
  *init = 0.8 - 0.6 * exp(-0.3 * (layer - 1));
  if (p->init != 0 || signbit(p->init)) *init = (double)p->init;
  if (p->lambdas.data) return oracle_get(&p->lambdas, b, h, i, 0);
  if (p->has_lambda) return (double)p->lambda;
  for (int64_t x = 0; p->lambda_q1 && x < p->lambda_dim; x++) {
    one += (double)p->lambda_q1[x] * (double)p->lambda_k1[x];
    two += (double)p->lambda_q2[x] * (double)p->lambda_k2[x];
  }
  return exp(one) - exp(two) + *init;
}

static void compare(const differential_call *c, const char *what) {
  const attn_sdpa_params *s = &c->p.attention;
  const int64_t tk = c->k.len, dv = c->v.dim, heads = c->o.heads;
  double *x = test_mem((size_t)(tk + 1) * sizeof *x), *dx = test_mem((size_t)(tk + 1) * sizeof *x);
  double *d = test_mem((size_t)dv * sizeof *d), *off = test_mem((size_t)dv * sizeof *d);
  for (int64_t b = 0; b < c->o.batch; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < c->o.len; i++) {
        double init, lambda = weight_of(c, b, h, i, &init);
        for (int64_t e = 0; e < dv; e++) d[e] = off[e] = 0;
        for (int map = 0; map < 2; map++) {
          attn_tensor q = half(c->q, map), k = half(c->k, map);
          double none = -(double)INFINITY, top = none, sum = 0, loose = 0, by = map ? -lambda : 1;
          const int live = !s->q_len || i < s->q_len[b];
          const int64_t at = oracle_position(&q, &k, s, b, i);
          double sink = live && s->sinks ? (double)s->sinks[h] : none;
          double one = live && s->softmax_one ? 0 : none;
          for (int64_t j = 0; j < tk; j++) {
            x[j] = -(double)INFINITY, dx[j] = 0;
            if (!oracle_allowed(&q, &k, s, b, h, i, j)) continue;
            oracle_pair pair = oracle_score(&q, &k, s, b, h, i, j);
            if (pair.x == none) continue;
            x[j] = pair.x, dx[j] = EPSILON * (pair.size * (7 + sqrt((double)q.dim) / 4) + 8);
            if (x[j] > top) top = x[j];
          }
          top = fmax(top, fmax(sink, one));
          if (top > none) sum = exp(sink - top) + exp(one - top);
          for (int64_t j = 0; j < tk; j++) {
            x[j] = x[j] > none ? exp(x[j] - top) : 0;
            sum += x[j], loose += x[j] * dx[j];
          }
          for (int64_t j = 0; j < tk && sum > 0; j++) {
            if (x[j] == 0) continue;
            double w = x[j] / sum;
            for (int64_t e = 0; e < dv; e++) {
              double v = oracle_get(&c->v, b, h * c->v.heads / heads, j, e), size = fabs(v);
              if (s->relative.values.data) {
                const double more = oracle_relative_value(s, h, j - at, e);
                v += more, size += fabs(more);
              }
              d[e] += by * w * v;
              off[e] +=
                  fabs(by * w) * size * (dx[j] + loose / sum + EPSILON * (4 + sqrt((double)tk)));
            }
          }
        }
        double squares = 0, worst = 0, root = 1, factor = 1;
        for (int64_t e = 0; e < dv; e++) squares += d[e] * d[e], worst = fmax(worst, off[e]);
        if (!c->p.no_norm) {
          double eps = c->p.eps == 0 && !signbit(c->p.eps) ? (double)1e-5f : (double)c->p.eps;
          root = sqrt(squares / (double)dv + eps), factor = 1 - init;
          if (squares == 0) root = 1;
        }
        for (int64_t e = 0; e < dv; e++) {
          double gain = c->p.gain && !c->p.no_norm ? (double)c->p.gain[e] : 1;
          double want = factor * gain * d[e] / root, got = oracle_get(&c->o, b, h, i, e);
          double may = fabs(factor * gain / root) *
                       (off[e] + (c->p.no_norm ? 0 : fabs(d[e]) / root * 1.5 * worst));
          may += 6 * EPSILON * fabs(want) + 1e-12;
          may += fabs(want) * (c->o.dtype == ATTN_F32   ? 0
                               : c->o.dtype == ATTN_F16 ? ldexp(1, -10)
                                                        : ldexp(1, -7)) +
                 (c->o.dtype == ATTN_F16 ? 1e-7 : 0);
          if (!(fabs(got - want) <= may))
            fail_msg("%s: [%d,%d,%d,%d] is %.9g, not %.9g (%.3g allowed)", what, (int)b, (int)h,
                     (int)i, (int)e, got, want, may);
        }
      }
}

static attn_tensor drawn(attn_dtype type, test_layout layout, int64_t b, int64_t h, int64_t t,
                         int64_t d, test_rng *rng) {
  attn_tensor x = test_tensor(type, layout, b, h, t, d);
  test_fill(x, rng, test_normal);
  return x;
}

static differential_call plain(int64_t heads, int64_t groups, int64_t tq, int64_t tk, uint64_t n) {
  test_rng rng = test_seed(n);
  differential_call c;
  memset(&c, 0, sizeof c);
  c.o = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, tq, 10);
  c.q = drawn(ATTN_F32, TEST_BHTD, 1, 2 * heads, tq, 5, &rng);
  c.k = drawn(ATTN_F32, TEST_BHTD, 1, 2 * groups, tk, 5, &rng);
  c.v = drawn(ATTN_F32, TEST_BHTD, 1, groups, tk, 10, &rng);
  return c;
}

static differential_call again(const differential_call *c) {
  differential_call d = *c;
  d.o = test_tensor(c->o.dtype, TEST_BHTD, c->o.batch, c->o.heads, c->o.len, c->o.dim);
  return d;
}

/* Where lambda, l0 and the norm come from. */
static void add_numbers(differential_call *c, int n, test_rng *rng) {
  attn_differential_params *p = &c->p;
  const int64_t b = c->o.batch, h = c->o.heads, t = c->o.len;
  if (n % 4 == 1) p->has_lambda = 1, p->lambda = (float)test_exact(rng);
  if (n % 4 == 2) {
    p->lambda_dim = test_range(rng, 1, 9);
    p->lambda_q1 = test_floats(p->lambda_dim, 0.3, rng);
    p->lambda_k1 = test_floats(p->lambda_dim, 0.3, rng);
    p->lambda_q2 = test_floats(p->lambda_dim, 0.3, rng);
    p->lambda_k2 = test_floats(p->lambda_dim, 0.3, rng);
  }
  if (n % 4 == 3) {
    p->lambdas = drawn((attn_dtype)(n / 4 % 3), TEST_PADDED, b, h, t, 1, rng);
    if (n / 4 % 2) p->lambdas.stride_len = p->lambdas.stride_batch = 0; /* one a head */
  }
  if (n % 3 == 1) p->layer = test_range(rng, 1, 30);
  if (n % 3 == 2) p->init = n % 2 ? 0.5f : ATTN_ZERO;
  if (n % 5 == 1) p->eps = 0.25f;
  if (n % 5 == 4) p->no_norm = 1;
  if (n % 2) p->gain = test_floats(c->o.dim, 1, rng);
}

void M2_differential(void **state) {
  (void)state;
  for (int n = 0; n < test_count(120, 30); n++) {
    test_rng rng = test_seed(7100 + (uint64_t)n);
    int64_t b = test_range(&rng, 1, 2), groups = test_range(&rng, 1, 3);
    int64_t h = groups * test_range(&rng, 1, 4), tk = test_range(&rng, 1, 150);
    int64_t tq = n % 3 ? test_range(&rng, 1, 90) : test_range(&rng, 1, 6);
    int64_t d = test_range(&rng, 1, 9), dv = test_range(&rng, 1, 20);
    attn_dtype type = (attn_dtype)(n / 2 % 3);
    differential_call c = plain(1, 1, 1, 1, 1);
    attn_sdpa_params *s = &c.p.attention;
    c.q = drawn(type, (test_layout)(n % TEST_SHARED), b, 2 * h, tq, d, &rng);
    c.k = drawn(type, (test_layout)(n / 3 % TEST_SHARED), b, 2 * groups, tk, d, &rng);
    c.v =
        drawn((attn_dtype)(n / 5 % 3), (test_layout)(n / 2 % TEST_SHARED), b, groups, tk, dv, &rng);
    c.o = test_tensor((attn_dtype)(n / 7 % 3), (test_layout)(n / 4 % TEST_SHARED), b, h, tq, dv);
    add_numbers(&c, n, &rng);
    if (n % 2) s->causal = 1;
    if (n % 7 == 2) s->window = attn_window_of(test_range(&rng, 0, 40), -1), s->keep = n % 2;
    if (n % 5 == 3) s->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, b, h, tq, tk, &rng);
    if (n % 6 == 4) s->kv_len = test_lengths(b, tk, &rng);
    if (n % 8 == 5) s->alibi = test_floats(h, 0.1, &rng);
    if (n % 9 == 1) s->scale = 0.7f;
    char what[40];
    snprintf(what, sizeof what, "case %d", n);
    run(&c);
    compare(&c, what);
    test_mem_release();
  }
}

/* Rows beyond a stretch and a split, values of mean 0 and of mean 1; few queries are split as those of attn_sdpa. */
void M2_differential_long(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(7300 + (uint64_t)n);
    differential_call c =
        plain(4, n % 2 ? 1 : 2, n < 4 ? 1 + n : 33, test_fast ? 1100 : 2100, 7301);
    add_numbers(&c, n, &rng);
    c.p.attention.causal = 1;
    if (n % 2)
      for (int64_t e = 0; e < c.v.len * c.v.heads * 10; e++) ((float *)c.v.data)[e] += 1;
    if (n == 2 || n == 5) c.o = test_tensor(ATTN_BF16, TEST_BHTD, 1, 4, c.o.len, 10);
    attn_report report = run(&c);
    assert_int_equal(strncmp(report.path, "few queries", 11) == 0, n < 4);
    compare(&c, "long rows");
    test_mem_release();
  }
}

/* A schedule is the mask that it stands for, in one phase and in several. */
void M2_differential_schedules(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    differential_call c = plain(2, 2, 150, 150, 7400 + (uint64_t)n), d = again(&c);
    attn_schedule schedule = {0};
    uint8_t *mask = test_mem(150 * 150);
    attn_pattern parts[2] = {attn_pattern_band(20, 0), attn_pattern_strided(9)}, both;
    for (int64_t e = 0; e < 150 * 150; e++) {
      int64_t back = e / 150 - e % 150;
      mask[e] = (uint8_t)(n % 3 == 0   ? back >= 0 && back <= 20
                          : n % 3 == 1 ? back >= 0 && back % 9 == 0
                                       : back >= 0 && (back <= 20 || back % 9 == 0));
    }
    both = n % 3 == 2 ? attn_pattern_union(parts, 2) : parts[n % 3];
    both.causal = 1;
    if (n > 2) c.o = test_tensor(ATTN_F16, TEST_BHTD, 1, 2, 150, 10), d = again(&c);
    assert_int_equal(attn_schedule_build(&schedule, &both, 2, 150, 150, NULL, NULL), ATTN_OK);
    c.p.attention.schedule = &schedule, d.p.attention.mask = attn_mask_bool(mask, 1, 1, 150, 150);
    run(&c);
    d.o = c.o;
    compare(&d, "schedule");
    attn_schedule_free(&schedule);
    test_mem_release();
  }
}

/* lambda = 0 leaves the first softmax, two equal maps and 1 nothing; a row without keys is 0. */
void M2_differential_equalities(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    differential_call c = plain(4, 2, n % 2 ? 3 : 70, 140, 7500), d = again(&c);
    attn_sdpa_params s;
    attn_ctx ctx = test_ctx();
    memset(&s, 0, sizeof s);
    s.causal = c.p.attention.causal = n / 2;
    c.p.no_norm = c.p.has_lambda = 1;
    run(&c);
    assert_int_equal(attn_sdpa(d.o, half(c.q, 0), half(c.k, 0), c.v, &s, &ctx), ATTN_OK);
    test_assert_near(c.o, d.o, 1e-7, "lambda 0");
    c.p.lambda = 1;
    for (int64_t h = 0; h < 8; h += 2) {
      test_copy(test_one(c.q, 0, 1, h + 1, 1), test_one(c.q, 0, 1, h, 1));
      if (h < 4) test_copy(test_one(c.k, 0, 1, h + 1, 1), test_one(c.k, 0, 1, h, 1));
    }
    run(&c);
    for (int64_t i = 0; i < c.o.len; i++)
      for (int64_t e = 0; e < 10; e++) assert_true(fabs(oracle_get(&c.o, 0, 1, i, e)) < 3e-7);
    c.p.attention.has_q_off = c.p.attention.causal = 1, c.p.attention.q_off = -2;
    c.p.no_norm = 0, c.p.lambda = 0.5f;
    run(&c);
    for (int64_t e = 0; e < 10; e++) assert_true(oracle_get(&c.o, 0, 3, 1, e) == 0);
    assert_true(oracle_get(&c.o, 0, 3, 2, 0) != 0);
    test_mem_release();
  }
}

/* Terms of scores stand in both maps, a number for each head of o; sinks and softmax_one in both sums; rows from q_len on
 * are 0. Many rows, and few of them against many keys. */
void M2_differential_terms(void **state) {
  (void)state;
  enum { CAPPED = TERM_COUNT - 1, SINKS, ONE, ROWS, CASES };
  for (int n = 0; n < 3 * CASES; n++) {
    const int what_of = n / 3, few = n % 3 == 2;
    test_rng rng = test_seed(7750 + (uint64_t)n);
    differential_call c =
        plain(4, n % 3 ? 2 : 4, few ? 3 : 70, few ? 1100 : 90, 7750 + (uint64_t)n);
    attn_sdpa_params *s = &c.p.attention;
    add_numbers(&c, n, &rng);
    test_call first = {c.o, half(c.q, 0), half(c.k, 0), c.v, *s};
    first.params.causal = n & 1;
    if (what_of < CAPPED) { /* all but weights that a caller changes */
      const int term = 1 << (what_of < 11 ? what_of : 12);
      test_add_terms(&first, term, &rng);
    }
    *s = first.params;
    if (what_of == CAPPED) s->softcap = 0.5f, s->softcap_at = n % 3 ? ATTN_SOFTCAP_BIASED : 0;
    if (what_of == CAPPED) s->alibi = test_floats(4, 0.1, &rng);
    if (what_of == SINKS) s->sinks = test_floats(4, 1, &rng);
    if (what_of == ONE) s->softmax_one = 1;
    if (what_of == ROWS) {
      int32_t *rows = test_mem(sizeof *rows);
      *rows = few ? 2 : 41, s->q_len = rows, s->sinks = n & 1 ? test_floats(4, 1, &rng) : NULL;
    }
    char what[40];
    snprintf(what, sizeof what, "term %d, case %d", what_of, n % 3);
    run(&c);
    compare(&c, what);
    if (what_of == ROWS)
      for (int64_t h = 0; h < 4; h++)
        for (int64_t e = 0; e < 10; e++) assert_true(oracle_get(&c.o, 0, h, c.o.len - 1, e) == 0);
    /* the term does something */
    differential_call d = again(&c);
    memset(&d.p.attention, 0, sizeof d.p.attention), d.p.attention.causal = s->causal;
    run(&d);
    assert_false(test_same(d.o, c.o));
    test_mem_release();
  }
}

/* A wide head whose first and last columns are its maps: heads of a view that are so many columns apart. Where wide
 * heads lie side by side in a row one view has all; where they lie apart, each is an entry of a batch. */
void M2_differential_two_views(void **state) {
  (void)state;
  enum { H = 3, T = 70, D = 5 };
  for (int n = 0; n < 4; n++) {
    const int apart = n & 1;
    test_rng rng = test_seed(7760 + (uint64_t)n);
    const test_layout layout = apart ? TEST_BHTD : TEST_BTHD;
    attn_tensor q = drawn((attn_dtype)n / 2, layout, 1, H, T, 2 * D, &rng);
    attn_tensor k = drawn(ATTN_F32, layout, 1, H, T, 2 * D, &rng);
    attn_tensor v = drawn(ATTN_F32, TEST_BHTD, 1, H, T, 2 * D, &rng), each[2];
    differential_call c;
    attn_ctx ctx = test_ctx();
    memset(&c, 0, sizeof c);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, H, T, 2 * D);
    c.o = o, c.q = q, c.k = k, c.v = v;
    c.p.attention.causal = 1, c.p.has_lambda = c.p.no_norm = 1, c.p.lambda = 0.75f;
    for (int map = 0; map < 2; map++) {
      attn_tensor mq = q, mk = k;
      mq.data = oracle_address(&q, 0, 0, 0, map * D),
      mk.data = oracle_address(&k, 0, 0, 0, map * D);
      mq.dim = mk.dim = D, each[map] = test_tensor(ATTN_F32, TEST_BHTD, 1, H, T, 2 * D);
      assert_int_equal(attn_sdpa(each[map], mq, mk, v, &c.p.attention, &ctx), ATTN_OK);
    }
    c.q.dim = c.k.dim = D;
    if (apart) {
      c.q.batch = c.k.batch = c.v.batch = c.o.batch = H;
      c.q.heads = c.k.heads = 2, c.v.heads = c.o.heads = 1;
      c.q.stride_batch = q.stride_head, c.k.stride_batch = k.stride_head;
      c.v.stride_batch = v.stride_head, c.o.stride_batch = o.stride_head;
    } else {
      c.q.heads = c.k.heads = 2 * H;
    }
    c.q.stride_head = c.k.stride_head = D;
    run(&c);
    for (int64_t h = 0; h < H; h++)
      for (int64_t i = 0; i < T; i++)
        for (int64_t e = 0; e < 2 * D; e++) {
          const double want =
              oracle_get(&each[0], 0, h, i, e) - 0.75 * oracle_get(&each[1], 0, h, i, e);
          assert_true(fabs(oracle_get(&o, 0, h, i, e) - want) < 1e-6);
        }
    test_mem_release();
  }
}

/* NaN in lambdas reaches all of its row and head, and no other; a number for each head reaches that head. */
void M2_differential_nan(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    const int few = n & 1, by_head = n / 2 % 2;
    differential_call c = plain(3, 3, few ? 4 : 70, few ? 1200 : 70, 7770), d;
    test_rng rng = test_seed(7771);
    c.p.lambdas = drawn((attn_dtype)(n / 4), TEST_PADDED, 1, 3, c.o.len, 1, &rng);
    if (by_head) c.p.lambdas.stride_len = 0;
    c.p.no_norm = n == 3 || n == 8, c.p.attention.causal = 1;
    d = again(&c);
    run(&c);
    oracle_set(&c.p.lambdas, 0, 1, 2, 0, n % 3 ? (double)NAN : (double)INFINITY);
    run(&d);
    for (int64_t h = 0; h < 3; h++)
      for (int64_t i = 0; i < c.o.len; i++)
        for (int64_t e = 0; e < 10; e++) {
          const double got = oracle_get(&d.o, 0, h, i, e);
          if (h == 1 && (by_head || i == 2)) {
            if (n % 3) assert_true(isnan(got));
          } else {
            assert_true(got == oracle_get(&c.o, 0, h, i, e));
          }
        }
    test_mem_release();
  }
}

/* No keys, no rows, no batch, forbidden keys: rows of 0 or nothing, without eps too. */
void M2_differential_empty(void **state) {
  (void)state;
  for (int n = 0; n < 42; n++) {
    const int scene = n % 7;
    const attn_dtype type = (attn_dtype)(n / 7 % 3);
    differential_call c = plain(2, 2, n / 21 ? 3 : 70, n / 21 ? 1100 : 90, 7780);
    test_rng rng = test_seed(7781);
    attn_sdpa_params *s = &c.p.attention;
    int32_t none = 0;
    float minus = -INFINITY;
    const int nothing = scene < 2;
    c.o = test_tensor(type, TEST_BHTD, 1, 2, c.o.len, 10);
    add_numbers(&c, n, &rng);
    if (n % 2) c.p.eps = ATTN_ZERO;
    test_fill_value(c.o, 7);
    attn_tensor o = c.o;
    if (scene == 0) c.q = test_rows(c.q, 0, 0), c.o = test_rows(c.o, 0, 0);
    if (scene == 0 && c.p.lambdas.data) c.p.lambdas = test_rows(c.p.lambdas, 0, 0);
    if (scene == 1) c.q.batch = c.k.batch = c.v.batch = c.o.batch = c.p.lambdas.batch = 0;
    if (scene == 2) c.k = test_rows(c.k, 0, 0), c.v = test_rows(c.v, 0, 0);
    if (scene == 3) s->kv_len = &none;
    if (scene == 4) s->mask = attn_mask_bool((const uint8_t *)&none, 1, 1, 1, 1);
    if (scene == 5) s->bias = attn_mask_add(&minus, ATTN_F32, 1, 1, 1, 1);
    if (scene == 6) s->q_len = &none;
    const attn_report report = run(&c);
    assert_int_equal(strcmp(report.path, "no-op") == 0, nothing);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < o.len; i++)
        for (int64_t e = 0; e < 10; e++) {
          const double got = oracle_get(&o, 0, h, i, e);
          if (got != (nothing ? 7 : 0))
            fail_msg("case %d: [%d,%d,%d] is %g", n, (int)h, (int)i, (int)e, got);
        }
    attn_ctx ctx = test_ctx();
    if (nothing) assert_true(attn_differential_workspace(c.o, c.q, c.k, c.v, &c.p, &ctx) == 0);
    test_mem_release();
  }
}

/* Quantised keys: each map its own scales. */
void M2_differential_codes(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    differential_call c = plain(2, 2, n % 2 ? 2 : 70, 90, 7600), d = again(&c);
    float scale[4 * 90], zero[4 * 90];
    test_rng rng = test_seed(7601);
    d.k = test_tensor(ATTN_I8, TEST_BHTD, 1, 4, 90, 5);
    for (int64_t h = 0; h < 4; h++)
      for (int64_t j = 0; j < 90; j++) {
        scale[h * 90 + j] = (float)(1 + h) / 64,
                       zero[h * 90 + j] = n / 2 ? (float)((h + 1) * j % 5) : 0;
        for (int64_t e = 0; e < 5; e++) {
          int code = (int)test_range(&rng, -100, 100);
          ((int8_t *)d.k.data)[(h * 90 + j) * 5 + e] = (int8_t)code;
          oracle_set(&c.k, 0, h, j, e,
                     ((double)code - (double)zero[h * 90 + j]) * (double)(1 + h) / 64);
        }
      }
    d.p.attention.k_scales.scale = scale, d.p.attention.k_scales.stride_head = 90;
    d.p.attention.k_scales.stride_len = 1;
    if (n / 2) d.p.attention.k_scales.zero = zero;
    run(&c), run(&d);
    test_assert_near(d.o, c.o, 2e-5, "codes");
    test_mem_release();
  }
}

/* A later token reaches no bit of earlier rows, and NaN there its own row; workers and workspaces change no bit. */
void M2_differential_promises(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    differential_call c = plain(4, 2, n % 3 ? 130 : 5, n % 3 ? 130 : 2100, 7700), d;
    attn_ctx ctx = test_ctx();
    if (n == 4) c.o = test_tensor(ATTN_F16, TEST_BHTD, 1, 4, c.o.len, 10);
    const int64_t last = c.k.len - 1, row = c.o.len - 1;
    c.p.attention.causal = 1;
    d = again(&c);
    run(&c);
    ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    size_t bytes = attn_differential_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    assert_true(bytes != ATTN_WORKSPACE_REJECTED);
    ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes;
    test_malloc_calls = 0;
    assert_int_equal(attn_differential(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, 0);
    test_assert_same(c.o, d.o, "workers");
    ctx.workspace_size--;
    assert_int_equal(attn_differential(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_E_WORKSPACE);
    for (int64_t h = 0; h < 4; h++)
      test_fill_row(c.k, 0, h, last, NAN), test_fill_row(c.v, 0, h % 2, last, NAN);
    run(&d);
    test_assert_same(test_rows(c.o, 0, row), test_rows(d.o, 0, row), "earlier rows");
    for (int64_t h = 0; h < 4; h++) assert_true(isnan(oracle_get(&d.o, 0, h, row, 3)));
    test_mem_release();
  }
}

static void refuse(const differential_call *c, attn_status want, const char *word) {
  attn_ctx ctx = test_ctx();
  if (c->o.data) test_fill_value(c->o, 7);
  attn_status status = attn_differential(c->o, c->q, c->k, c->v, &c->p, &ctx);
  if (status != want || !ctx.reason || !strstr(ctx.reason, word))
    fail_msg("%s: %s, %s", word, attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  for (int64_t i = 0; c->o.data && i < c->o.len; i++)
    assert_true(oracle_get(&c->o, 0, 0, i, 0) == 7);
  (void)attn_differential_workspace(c->o, c->q, c->k, c->v, &c->p, &ctx);
}

void M2_differential_rejects(void **state) {
  (void)state;
  const differential_call good = plain(2, 2, 20, 30, 7800);
  float fine[4] = {1, 1, 1, 1}, huge[4] = {1e30f, 1, 1, 1};
  attn_tensor row = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 1), wide = row;
  int64_t offs[1] = {0};
#define REFUSE_(status, word, ...) \
  do {                             \
    differential_call c = good;    \
    __VA_ARGS__;                   \
    refuse(&c, status, word);      \
  } while (0)
#define VECTORS_(x)                                                              \
  c.p.lambda_dim = 4, c.p.lambda_q1 = c.p.lambda_k1 = (x), c.p.lambda_q2 = fine, \
  c.p.lambda_k2 = fine
  REFUSE_(ATTN_E_HEADS, "even", c.q = test_one(c.q, 0, 1, 0, 3));
  REFUSE_(ATTN_E_HEADS, "even", c.k = test_one(c.k, 0, 1, 0, 3));
  REFUSE_(ATTN_E_SHAPE, "half", c.q = test_one(c.q, 0, 1, 0, 2));
  REFUSE_(ATTN_E_HEADS, "v.heads", c.v.heads = 3, c.v.stride_head = 0);
  REFUSE_(ATTN_E_NULL, "q.data", c.q.data = NULL);
  REFUSE_(ATTN_E_NULL, "go together", c.p.lambda_k2 = fine, c.p.lambda_dim = 4);
  REFUSE_(ATTN_E_RANGE, "lambda_dim", c.p.lambda_dim = 4);
  REFUSE_(ATTN_E_RANGE, "lambda_dim", VECTORS_(fine), c.p.lambda_dim = 0);
  REFUSE_(ATTN_E_RANGE, "exclude", VECTORS_(fine), c.p.has_lambda = 1);
  REFUSE_(ATTN_E_RANGE, "exclude", c.p.lambdas = row, c.p.has_lambda = 1);
  REFUSE_(ATTN_E_RANGE, "has_lambda", c.p.lambda = 1);
  REFUSE_(ATTN_E_VALUE, "lambda", c.p.has_lambda = 1, c.p.lambda = NAN);
  REFUSE_(ATTN_E_VALUE, "finite lambda", VECTORS_(huge));
  REFUSE_(ATTN_E_ALIGN, "lambda_q1", VECTORS_((float *)((char *)fine + 1)), c.p.lambda_dim = 1);
  REFUSE_(ATTN_E_VALUE, "init", c.p.init = INFINITY);
  REFUSE_(ATTN_E_RANGE, "layer", c.p.layer = -1);
  REFUSE_(ATTN_E_VALUE, "eps", c.p.eps = -1);
  REFUSE_(ATTN_E_VALUE, "eps", c.p.eps = NAN);
  REFUSE_(ATTN_E_RANGE, "lse", c.p.attention.lse = row);
  REFUSE_(ATTN_E_RANGE, "map", c.p.attention.map = row);
  REFUSE_(ATTN_E_RANGE, "q_offs", c.p.attention.q_offs = offs);
  REFUSE_(ATTN_E_VALUE, "compute", c.p.attention.compute = ATTN_COMPUTE_BF16);
  REFUSE_(ATTN_E_RANGE, "modify_weights", c.p.attention.modify_weights = test_modify_weights);
  wide.len = 19;
  REFUSE_(ATTN_E_SHAPE, "lambdas", c.p.lambdas = wide);
  wide = row, wide.dtype = ATTN_I8;
  REFUSE_(ATTN_E_DTYPE, "lambdas", c.p.lambdas = wide);
  wide = good.o, wide.dim = 1;
  REFUSE_(ATTN_E_OVERLAP, "o is", c.p.lambdas = wide);
  REFUSE_(ATTN_E_OVERLAP, "o is", c.p.gain = c.o.data);
  wide = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 10); /* o is the second map of q */
  attn_tensor keys = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 10);
  REFUSE_(ATTN_E_OVERLAP, "o", c.q = wide, c.k = keys, c.v = test_one(keys, 0, 1, 0, 1),
          c.o = test_one(wide, 0, 1, 1, 1));
#undef VECTORS_
#undef REFUSE_
}
