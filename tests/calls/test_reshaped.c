/* tests/calls/test_reshaped.c owns M2, attention with reshaped weights, against its formula, and what the mechanisms
 * say of themselves. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reshaped.h"
#include "terms.h"

static void check_random(int terms, uint64_t seed, int64_t count) {
  for (int64_t n = 0; n < count; n++) {
    test_rng rng = test_seed(seed * 1000 + (uint64_t)n);
    test_call call = test_terms_call(terms, 150, &rng);
    reshaped_call c = reshaped_from(&call);
    char what[80];
    int with = (int)(test_u64(&rng) % 256);
    c.p.kind = (attn_reshape_kind)(n % 5);
    if (n % 5) { /* of a softmax alone */
      c.p.attention.sinks = NULL, c.p.attention.softmax_one = 0;
      c.p.attention.relative.values.data = NULL, c.p.attention.span.z = NULL;
    }
    if (c.p.attention.window.on && c.p.attention.window.left >= 0)
      c.p.attention.keep = test_range(&rng, 0, 12);
    reshaped_add(&c, with, &rng);
    reshaped_show(&c, n / 5 % 2 ? ATTN_MAP_SCORES : ATTN_MAP_WEIGHTS);
    snprintf(what, sizeof what, "kind %d with %d, terms %x, case %d", (int)(n % 5), with,
             (unsigned)terms, (int)n);
    reshaped_check(&c, what);
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
                              TERM_GAUSSIAN, TERM_MODIFY,   TERM_KEYS | TERM_MODIFY,
                              TERM_QUERIES,  TERM_SPAN,     TERM_VALUES};
  for (int n = 0; n < 12; n++)
    check_random(terms[n], n < 10 ? 701 + (uint64_t)n : 7010 + (uint64_t)n,
                 n < 10 ? test_count(18, 6) : test_count(50, 20));
}

/* Few queries against many keys: parts, rows and lanes, heads that share keys. */
void M2_few_queries(void **state) {
  (void)state;
  for (int n = 0; n < test_count(24, 12); n++) {
    test_rng rng = test_seed(720 + (uint64_t)n);
    test_spec spec = test_plain(n % 2 ? 4 : 12, 1 + n % 5, test_fast ? 1100 : 1500, 16, 9);
    spec.k_heads = spec.v_heads = n % 2 ? 2 : 1;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call);
    char what[60];
    c.p.kind = (attn_reshape_kind)(n % 3 == 2 ? n / 3 % 5 : 0);
    const int cope = n % 6 == 4 ? HAS_COPE : 0;
    const int path = n % 6 == 1 ? HAS_PATH : 0;
    reshaped_add(&c, (1 + n % 15) | cope | path, &rng);
    if (n % 4 == 1) test_left(&c.p.attention, 700);
    if (n % 4 == 2) c.p.attention.alibi = test_floats(spec.heads, 0.01, &rng);
    reshaped_show(&c, -1);
    snprintf(what, sizeof what, "few queries, case %d", n);
    attn_report report = reshaped_check(&c, what);
    assert_int_equal(strncmp(report.path, "few queries", 11) == 0,
                     c.p.kind == ATTN_RESHAPE_SOFTMAX && !cope && !path);
    test_mem_release();
  }
}

/* A schedule, of runs and of lists, is the mask that it stands for. */
void M2_schedules(void **state) {
  (void)state;
  for (int n = 0; n < 36; n++) {
    const int kinds[] = {ATTN_RESHAPE_SOFTMAX, ATTN_RESHAPE_SIGMOID, ATTN_RESHAPE_SOFTPICK,
                         ATTN_RESHAPE_ENTMAX};
    reshaped_call c = reshaped_plain((attn_reshape_kind)kinds[n % 4], 2, 150, 150,
                                     740 + (uint64_t)n),
                  d;
    test_rng rng = test_seed(780 + (uint64_t)n);
    const int form = n / 3 % 3; /* a band, a stride, scattered keys */
    int64_t indptr[151] = {0}, edges = 0;
    int32_t *col = test_mem(150 * 150 * sizeof *col);
    attn_schedule schedule = {0};
    c.p.attention.causal = 1;
    reshaped_add(&c, n % 16, &rng);
    reshaped_show(&c, n % 8 ? ATTN_MAP_SCORES : ATTN_MAP_WEIGHTS);
    d = reshaped_again(&c);
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
    reshaped_run(&c);
    reshaped_check(&d, "mask of a schedule");
    d.o = c.o;
    if (c.p.sum.data) d.p.sum = c.p.sum;
    d.p.support = c.p.support;
    d.p.attention.lse = c.p.attention.lse, d.p.attention.map = c.p.attention.map;
    reshaped_compare(&d, "schedule");
    attn_schedule_free(&schedule);
    test_mem_release();
  }
}

/* Rows longer than a stretch, with values of mean 0 and of mean 1. */
void M2_long_rows(void **state) {
  (void)state;
  int64_t tk = test_fast ? 1300 : 2700;
  for (int n = 0; n < 20; n++) {
    test_rng rng = test_seed(790 + (uint64_t)n);
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 5), 1, 17, tk, 795 + (uint64_t)n);
    if (n / 5 % 2)
      for (int64_t e = 0; e < tk * 7; e++) ((float *)c.v.data)[e] += 1;
    reshaped_add(&c, n < 8 ? 0 : HAS_SSMAX | HAS_FORGET | HAS_GATE, &rng);
    c.p.attention.causal = 1;
    reshaped_show(&c, n % 2 ? ATTN_MAP_SCORES : ATTN_MAP_WEIGHTS);
    reshaped_check(&c, "long rows");
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
    reshaped_call c = reshaped_from(&call);
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
    reshaped_run(&c);
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
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, n & 1 ? 3 : 150, n & 1 ? 1200 : 150,
                                     806),
                  d;
    float shift = 900;
    reshaped_add(
        &c, HAS_FORGET | HAS_GATE | (n & 2 ? HAS_SSMAX : 0) | (n & 4 ? HAS_TEMPERATURE : 0), &rng);
    d = reshaped_again(&c);
    d.p.attention.bias = attn_mask_add(&shift, ATTN_F32, 1, 1, 1, 1);
    reshaped_run(&c), reshaped_run(&d);
    test_assert_near(d.o, c.o, 3e-3,
                     "a shift of all scores"); /* they have 14 bits behind the point */
    test_mem_release();
  }
}

/* Zero scores weigh 1 / (n + 1); n is Tk, kv_len or the keys of the row. */
void M2_sigmoid_of_zero(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_SIGMOID, 2, 70, 90, 810);
    int32_t length = 50;
    test_fill_value(c.q, 0), test_fill_value(c.v, 1);
    c.p.sum = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 1);
    c.p.attention.causal = n % 3 == 2;
    if (n % 3) c.p.attention.kv_len = &length;
    c.p.by_row = n / 3;
    reshaped_run(&c);
    for (int64_t i = 0; i < 70; i++) {
      double keys = n % 3 ? 50 : 90;
      if (n % 3 == 2 && i + 21 < 50) keys = (double)i + 21;
      double count = c.p.by_row ? keys : n % 3 ? 50 : 90;
      double want = keys / (count + 1);
      reshaped_judge(oracle_get(&c.o, 0, 1, i, 3), want, 2e-6, "zero scores", 0, 1, i, 3);
      reshaped_judge(oracle_get(&c.p.sum, 0, 1, i, 0), want, 2e-6, "sum of zero scores", 0, 1, i,
                     0);
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
    reshaped_run(&c);
    double want = 1 / (1 + exp(80.0 - 4 * j));
    reshaped_judge(o[0], want, want * 1.5e-5 + 1e-37, "one key", 0, 0, 0,
                   j); /* the score itself rounds */
  }
}

/* A row with one key has its value, whatever the score, where weights sum to 1; large scores stay finite. */
void M2_one_key(void **state) {
  (void)state;
  for (int n = 0; n < 40; n++) {
    reshaped_call c = reshaped_plain((attn_reshape_kind)(n % 5), 2, 70, 70, 820);
    float scale[2] = {0.43f, -2}, bias[2] = {0, 0};
    c.p.ssmax.scale = scale, c.p.ssmax.bias = bias;
    c.p.attention.causal = 1;
    c.p.attention.scale = n / 5 % 2 ? 3000.0f : 1.0f;
    c.p.attention.softcap = n / 10 % 2 ? 1e4f : 0.0f;
    if (n / 20) c.p.ssmax.scale = c.p.ssmax.bias = NULL; /* else the one score is multiplied by 0 */
    reshaped_run(&c);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 70; i++)
        for (int64_t x = 0; x < 7; x++) {
          double got = oracle_get(&c.o, 0, h, i, x);
          assert_true(isfinite(got));
          if (i == 0 && (n % 5 == ATTN_RESHAPE_SOFTMAX || n % 5 == ATTN_RESHAPE_ENTMAX))
            reshaped_judge(got, oracle_get(&c.v, 0, h, 0, x), 1e-6, "one key", 0, h, i, x);
        }
    test_mem_release();
  }
}

/* Scores that are not positive make zero rows; a masked key is a deleted one; scores near 0 are not lost, and
 * eps is added after the shift. */
void M2_softpick(void **state) {
  (void)state;
  reshaped_call c = reshaped_plain(ATTN_RESHAPE_SOFTPICK, 2, 70, 90, 830), d;
  test_fill_value(c.q, 1), test_fill_value(c.k, -1);
  for (int64_t j = 0; j < 90; j += 3) test_fill_row(c.k, 0, 0, j, 0);
  reshaped_run(&c);
  for (int64_t e = 0; e < 2 * 70 * 7; e++) assert_true(((float *)c.o.data)[e] == 0);
  c = reshaped_plain(ATTN_RESHAPE_SOFTPICK, 2, 70, 90, 831), d = reshaped_again(&c);
  uint8_t mask[90];
  for (int j = 0; j < 90; j++) mask[j] = j < 60;
  c.p.attention.mask = attn_mask_bool(mask, 1, 1, 1, 90);
  d.k = test_rows(d.k, 0, 60), d.v = test_rows(d.v, 0, 60);
  reshaped_run(&c), reshaped_run(&d);
  test_assert_near(c.o, d.o, 1e-6, "a masked key is a deleted key");
  for (int n = 1; n < 30; n++) { /* x down to 1e-8, beside which eps counts */
    float q[1] = {1}, k[2], v[2] = {1, 0}, o[1];
    k[0] = ldexpf(1, -n), k[1] = -k[0] / 2;
    c.o = attn_bhtd(o, ATTN_F32, 1, 1, 1, 1), c.q = attn_bhtd(q, ATTN_F32, 1, 1, 1, 1);
    c.k = attn_bhtd(k, ATTN_F32, 1, 1, 2, 1), c.v = attn_bhtd(v, ATTN_F32, 1, 1, 2, 1);
    memset(&c.p.attention, 0, sizeof c.p.attention);
    reshaped_run(&c);
    double m = (double)k[0], e = exp(-m) * expm1(m), f = exp(-m) * -expm1((double)k[1]);
    double want = e / (e + f + 1e-8);
    reshaped_judge((double)o[0], want, want * 1e-6, "scores near 0", 0, 0, 0, n);
  }
  for (int n = 0; n < 60; n++) { /* large scores beside 0 and small ones */
    float q[1] = {1}, k[3], v[3] = {0, 1, 0}, o[1];
    k[0] = (float)n, k[1] = (float)n / 2, k[2] = -3;
    c.o = attn_bhtd(o, ATTN_F32, 1, 1, 1, 1), c.q = attn_bhtd(q, ATTN_F32, 1, 1, 1, 1);
    c.k = attn_bhtd(k, ATTN_F32, 1, 1, 3, 1), c.v = attn_bhtd(v, ATTN_F32, 1, 1, 3, 1);
    reshaped_run(&c);
    double m = n, e0 = exp(-m) * expm1(m), e1 = exp(-m) * expm1(m / 2), e2 = exp(-m) * -expm1(-3);
    double want = e1 / (e0 + e1 + e2 + 1e-8);
    reshaped_judge((double)o[0], want, want * 1e-5, "large scores", 0, 0, 0, n);
  }
}

/* Weights and what is left add to 1; the first row is 0, or its value with the remainder; forbidden keys take
 * nothing; equal scores of 0 halve what is left. */
void M2_stick(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_STICK, 2, 300, 300, 835), d;
    c.p.attention.causal = 1, c.p.include_self = n & 1, c.p.remainder = n >> 1 & 1;
    c.p.sum = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 300, 1);
    if (n & 4) test_fill_value(c.q, 0);
    test_fill_value(c.v, 1);
    reshaped_run(&c);
    for (int64_t i = 0; i < 300; i++) {
      double sum = oracle_get(&c.p.sum, 0, 1, i, 0), o = oracle_get(&c.o, 0, 1, i, 3);
      reshaped_judge(o, c.p.remainder ? 1 : sum, 3e-6, "a stick", 0, 1, i, 3);
      assert_true(sum <= 1 + 3e-6);
      if (n & 4) reshaped_judge(sum, 1 - ldexp(1, -(int)(i + (n & 1))), 3e-6, "halves", 0, 1, i, 0);
      if (i == 0 && !(n & 1)) assert_true(sum == 0 && o == (c.p.remainder ? 1 : 0));
    }
    d = reshaped_again(&c);
    uint8_t *mask = test_mem(300);
    for (int j = 0; j < 300; j++) mask[j] = j % 3 != 1;
    c.p.attention.mask = attn_mask_bool(mask, 1, 1, 1, 300);
    reshaped_check(&c, "masked keys of a stick");
    for (int64_t j = 1; j < 300; j += 3) test_fill_row(c.k, 0, 0, j, NAN);
    d.p.attention = c.p.attention;
    reshaped_run(&d);
    test_assert_same(c.o, d.o, "NaN in a forbidden key");
    test_mem_release();
  }
}

/* Weights sum to 1 and their support is counted; alpha near 1 is the softmax; what has no weight stays out, NaN too; scores
 * of any size. */
void M2_entmax(void **state) {
  (void)state;
  const float alphas[] = {2, 1.5f, 1.2f, 1.001f};
  for (int n = 0; n < 12; n++) {
    reshaped_call c = reshaped_plain(ATTN_RESHAPE_ENTMAX, 2, n % 3 ? 70 : 2, 300, 900), d;
    c.p.alpha = alphas[n % 4], c.p.attention.causal = n >= 4;
    c.p.support = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, c.q.len, 1);
    d = reshaped_again(&c);
    if (n % 4 == 3) {
      d.p.kind = ATTN_RESHAPE_SOFTMAX, d.p.alpha = 0, d.p.support.data = NULL;
      reshaped_run(&c), reshaped_run(&d);
      test_assert_near(c.o, d.o, 4e-3, "alpha near 1");
    }
    test_fill_value(c.v, 1);
    reshaped_run(&c);
    for (int64_t i = 0; i < c.o.len; i++)
      assert_true(fabs(oracle_get(&c.o, 0, 1, i, 3) - 1) < 1e-6);
    if (n % 4 < 2) { /* one key far above, another far below */
      d = reshaped_again(&c);
      for (int64_t i = 0; i < c.q.len; i++) test_fill_row(c.q, 0, 0, i, 1);
      test_fill_row(c.k, 0, 0, 5, 3e3), test_fill_row(c.k, 0, 0, 9, -3e3);
      test_fill_row(c.v, 0, 0, 5, 2), test_fill_row(c.v, 0, 0, 9, NAN);
      test_fill_row(c.v, 0, 0, 100, INFINITY);
      reshaped_run(&d);
      for (int64_t i = c.o.len - 1; i >= 0 && (n < 4 || i + 300 - c.o.len > 9); i--) {
        assert_true(oracle_get(&d.o, 0, 0, i, 3) == 2);
        assert_true(oracle_get(&d.p.support, 0, 0, i, 0) == 1);
      }
    }
    test_mem_release();
  }
}

/* By lists too no value without weight is read. */
void M2_entmax_lists(void **state) {
  (void)state;
  reshaped_call c = reshaped_plain(ATTN_RESHAPE_ENTMAX, 1, 150, 150, 905);
  int64_t indptr[151] = {0}, edges = 0;
  int32_t *col = test_mem(150 * 150 * sizeof *col);
  attn_schedule schedule = {0};
  for (int64_t i = 0; i < 150; i++) {
    for (int64_t j = 0; j < 150; j++)
      if (j == 5 || (j * 7919 + i * i * 31) % 11 == 0) col[edges++] = (int32_t)j;
    indptr[i + 1] = edges;
  }
  attn_pattern pattern = attn_pattern_csr(indptr, col, edges);
  assert_int_equal(attn_schedule_build(&schedule, &pattern, 1, 150, 150, NULL, NULL), ATTN_OK);
  c.p.attention.schedule = &schedule;
  for (int64_t i = 0; i < 150; i++)
    test_fill_row(c.q, 0, 0, i, 1), test_fill_row(c.v, 0, 0, i, NAN);
  test_fill_row(c.k, 0, 0, 5, 1e3), test_fill_row(c.v, 0, 0, 5, 2);
  reshaped_run(&c);
  for (int64_t i = 0; i < 150; i++) assert_true(oracle_get(&c.o, 0, 0, i, 3) == 2);
  attn_schedule_free(&schedule);
}
