/* tests/calls/test_terms_span.c owns I5, the adaptive span, and tests/terms.h's user modifiers, A2: a
 * function of the caller on tiles of scores. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

/* ---- I5 -------------------------------------------------------------------------------------*/

void I5_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_SPAN, 300, test_count(120, 24), 260, "a span");
}

static test_call span_call(int64_t heads, int64_t tq, int64_t tk, uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, tq, tk, 12, 7);
  spec.map = 1;
  return test_build(&spec, &rng);
}

/* A long span with the query itself is causal attention. */
void I5_long_span_is_causal(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    test_call call = span_call(3, 150, 200, 301), plain = test_again(&call);
    call.params.span.z = test_constant(3, n ? 1e30 : 250);
    call.params.span.include_self = 1;
    plain.params.causal = 1;
    test_run(&call);
    test_run(&plain);
    test_assert_near(call.o, plain.o, 1e-6, "a long span");
    test_assert_near(call.params.lse, plain.params.lse, 1e-6, "a long span: LSE");
    test_assert_near(call.params.map, plain.params.map, 1e-6, "a long span: map");
  }
}

/* The causal map times m, renormalised. */
void I5_map_times_ramp(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_call call = span_call(2, 60, 90, 302), plain = test_again(&call);
    attn_span *s = &call.params.span;
    float *z = test_constant(2, 10);
    z[1] = 3.25f;
    s->z = z;
    s->ramp = n & 1 ? 0 : 5.5f;
    s->include_self = n >> 1 & 1;
    s->shift = -(n & 1);
    plain.params.causal = 1;
    test_check(&call, "a span");
    test_run(&plain);
    double r = n & 1 ? 32 : 5.5;
    for (int64_t row = 0; row < 120; row++) {
      double w[90] = {0}, sum = 0;
      for (int64_t j = 0; j < 90; j++) {
        double t = (double)(row % 60 + 30 - j);
        double m = (r + (double)z[row / 60] - t - (double)s->shift) / r;
        if (t < (s->include_self ? 0 : 1) || m <= 0) continue;
        w[j] = fmin(m, 1) * oracle_get(&plain.params.map, 0, row / 60, row % 60, j);
        sum += w[j];
      }
      for (int64_t j = 0; j < 90; j++) {
        double got = oracle_get(&call.params.map, 0, row / 60, row % 60, j);
        assert_true(fabs(got - w[j] / sum) <= 5e-6);
        if (w[j] == 0) assert_true(got == 0);
      }
    }
  }
}

/* z = 0: a ramp alone, of R - 1 keys. R <= 1: no key at all, unless the query sees itself. */
void I5_zero_span(void **state) {
  (void)state;
  static const float ramps[] = {1, 0.5f, 1e-6f, 2, 8, 0};
  for (int n = 0; n < 12; n++) {
    test_call call = span_call(2, 70, 70, 303);
    attn_span *s = &call.params.span;
    s->z = test_constant(2, n & 1 ? -0.0 : 0);
    s->ramp = ramps[n / 2];
    test_check(&call, "a span of 0");
    for (int64_t i = 0; i < 70 && n < 6; i++) {
      assert_true(oracle_get(&call.params.lse, 0, 1, i, 0) == -(double)INFINITY);
      assert_true(oracle_get(&call.o, 0, 1, i, 3) == 0);
    }
    s->include_self = 1;
    test_check(&call, "a span of 0 with the query itself");
    for (int64_t i = 0; i < 70 && n < 6; i++) {
      double got = oracle_get(&call.o, 0, 1, i, 3), want = oracle_get(&call.v, 0, 1, i, 3);
      assert_true(fabs(got - want) <= 1e-6);
    }
    test_mem_release();
  }
}

/* z + R an integer: the key at that distance has m = 0 and is not seen, though it hold NaN. */
void I5_whole_reach(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    test_call clean = span_call(1, 60, 100, 304);
    attn_span *s = &clean.params.span;
    s->z = test_constant(1, n & 1 ? 11 : 12.5);
    s->ramp = n & 1 ? 8 : 6.5f; /* reach: distances up to 18 */
    s->shift = n & 2 ? -1 : 0;  /* 19 */
    s->include_self = n >> 2;
    test_check(&clean, "a whole reach");
    int64_t reach = 18 - s->shift;
    test_call call = test_again(&clean);
    test_fill_row(call.k, 0, 0, 50, (double)NAN);
    test_fill_row(call.v, 0, 0, 50, (double)NAN);
    test_run(&call);
    for (int64_t i = 0; i < 60; i++) {
      int64_t t = i + 40 - 50;
      int seen = t >= (s->include_self ? 0 : 1) && t <= reach;
      assert_int_equal(isnan(oracle_get(&call.o, 0, 0, i, 2)) != 0, seen);
      if (!seen) assert_true(oracle_get(&call.o, 0, 0, i, 2) == oracle_get(&clean.o, 0, 0, i, 2));
      double m = oracle_get(&clean.params.map, 0, 0, i, i + 40 - reach);
      assert_true(m > 0 && oracle_get(&clean.params.map, 0, 0, i, i + 39 - reach) == 0);
    }
    test_mem_release();
  }
}

/* However short the ramp, and however far away it is, the weight of the key on it is right to a few
 * roundings: scores and values are 0 but for one value of 1, so the output is m / (n + m). */
void I5_short_ramps(void **state) {
  (void)state;
  static const float ramps[] = {1, 0.25f, 0.01f, 0.001f, 1e-5f};
  for (int n = 0; n < 60; n++) {
    test_rng rng = test_seed(309 + (uint64_t)n);
    test_spec spec = test_plain(1, 1, 200, 4, 3);
    spec.map = n & 1;
    test_call call = test_build(&spec, &rng);
    const float r = ramps[n % 5], z = (float)(1 + n % 12 * 17) - (n % 7 == 0 ? 0 : 0.37f * r);
    const double t = ceil((double)z), m = fmin(1, ((double)z - t) / (double)r + 1);
    call.params.span.z = &z;
    call.params.span.ramp = r;
    test_fill_value(call.q, 0);
    test_fill_value(call.v, 0);
    test_fill_row(call.v, 0, 0, 199 - (int64_t)t, 1);
    test_run(&call);
    double got = oracle_get(&call.o, 0, 0, 0, 0), want = m / (t - 1 + m);
    if (!(fabs(got - want) <= 1e-6 * want)) {
      fail_msg("ramp %g, z = %.9g: %.9g, not %.9g", (double)r, (double)z, got, want);
    }
    test_mem_release();
  }
}

/* R -> 0 is a hard window: the keys with t + shift <= z. */
void I5_hard_window(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_call call = span_call(2, 100, 150, 305), plain = test_again(&call);
    call.params.span.z = test_constant(2, n % 3 == 0 ? 20 : n % 3 == 1 ? 20.5 : 1000);
    call.params.span.ramp = 1e-6f;
    call.params.span.include_self = n >= 3;
    if (n % 3 < 2) test_left(&plain.params, 20);
    if (n >= 3) {
      plain.params.causal = 1;
    } else { /* j <= p - 1 */
      plain.params.causal = 1;
      plain.params.has_q_off = 1;
      plain.params.q_off = 49;
      if (n % 3 < 2) test_left(&plain.params, 19);
    }
    test_run(&call);
    test_run(&plain);
    test_assert_near(call.o, plain.o, 2e-6, "a hard window");
    test_assert_near(call.params.lse, plain.params.lse, 2e-6, "a hard window: LSE");
  }
}

/* `most` hides keys farther away, whatever z and R say. */
void I5_most(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_call call = span_call(2, 100, 150, 306);
    call.params.span.z = test_constant(2, n & 1 ? 30 : 5);
    call.params.span.max_span = 30;
    call.params.span.shift = n & 2 ? -1 : 0;
    test_check(&call, "the most");
    assert_true(oracle_get(&call.params.map, 0, 0, 60, 110 - 30) > 0);
    assert_true(oracle_get(&call.params.map, 0, 0, 60, 110 - 31) == 0);
  }
}

/* One span per query equals one per head when they agree. */
void I5_per_query(void **state) {
  (void)state;
  test_call call = span_call(3, 100, 150, 307), each = test_again(&call);
  float *z = test_mem(300 * sizeof *z), *head = test_mem(3 * sizeof *head);
  for (int n = 0; n < 300; n++) z[n] = 7.5f * (float)(n / 100);
  for (int n = 0; n < 3; n++) head[n] = 7.5f * (float)n;
  call.params.span.z = head;
  each.params.span.z = z;
  each.params.span.per_query = 1;
  test_run(&call);
  test_run(&each);
  test_assert_same_outputs(&call, &each, "a span per query");
  z[250] = 100;
  test_check(&each, "one long span");
}

/* Truncating what lies beyond the reach changes no bit. */
void I5_truncation(void **state) {
  (void)state;
  test_call call = span_call(2, 64, 512, 308);
  call.params.map.data = NULL;
  call.params.span.z = test_constant(2, 40);
  test_run(&call);
  /* distances up to 71; blocks of keys start at multiples of 128 */
  test_call part = test_again(&call);
  part.k = test_rows(part.k, 256, 256);
  part.v = test_rows(part.v, 256, 256);
  test_run(&part);
  test_assert_near(part.o, call.o, 1e-6, "old keys cut off");
  test_assert_near(part.params.lse, call.params.lse, 1e-6, "old keys cut off: LSE");
}

/* Work stops at the reach of each head, and for dynamic spans at that of a tile. */
void I5_work_follows_the_reach(void **state) {
  (void)state;
  int64_t t = test_count(2048, 1024);
  test_rng rng = test_seed(309);
  test_spec spec = test_plain(2, t, t, 6, 5);
  test_call call = test_build(&spec, &rng);
  attn_span *s = &call.params.span;
  float *z = test_constant(2, 8);
  z[1] = 168;
  s->z = z;
  s->ramp = 32;
  assert_in_range(test_run(&call).pairs, t * (39 + 199) - 199 * 199, t * (39 + 199 + 2 * 90));
  s->max_span = 200;
  z[0] = z[1] = 20;
  s->ramp = 1e6f;
  assert_in_range(test_run(&call).pairs, t * 2 * 200 - 2 * 200 * 200, t * 2 * (200 + 90));
  s->max_span = 0;
  s->ramp = 8;
  z = test_constant(2 * t, 4);
  z[t / 2] = (float)t;
  s->z = z;
  s->per_query = 1;
  assert_in_range(test_run(&call).pairs, t * 2 * 11 - 500, t * 2 * (11 + 90) + 64 * t);
  test_compare(&call, "one query looks far back");
}

void I5_rejects_nothing_more(void **state) {
  (void)state;
  /* z = most, a tiny R, and arrays that nobody reads (no queries) are all legal */
  test_call call = span_call(2, 20, 30, 310);
  call.params.span.z = test_constant(2, 9);
  call.params.span.max_span = 9;
  call.params.span.ramp = 1e-30f;
  test_check(&call, "z at its most");
}

/* ---- A2: the caller's own modifier ----------------------------------------------------------*/

void A2_modify_matches_oracle(void **state) {
  (void)state;
  test_terms_check(TERM_MODIFY, 320, test_count(70, 14), 220, "a modifier");
}

/* What a modifier has seen. */
typedef struct seen {
  int64_t batch, heads, q_len, k_len, q_off;
  unsigned char *count; /* [B,H,Tq,Tk] */
  const attn_tensor *q, *k;
  int wrong;
} seen;

static void look(void *user, const attn_score_tile *t) {
  seen *s = user;
  if (t->batch < 0 || t->batch >= s->batch || t->keys < 1 || t->queries < 1) s->wrong++;
  for (int64_t r = 0; r < t->queries; r++) {
    if (t->head[r] < 0 || t->head[r] >= s->heads) s->wrong++;
    if (t->query[r] < 0 || t->query[r] >= s->q_len) s->wrong++;
    if (t->position[r] != t->query[r] + s->q_off) s->wrong++;
    for (int64_t c = 0; c < t->keys && !s->wrong; c++) {
      if (t->key[c] < 0 || t->key[c] >= s->k_len) {
        s->wrong++;
        return;
      }
      int64_t row = (t->batch * s->heads + t->head[r]) * s->q_len + t->query[r];
      unsigned char *n = &s->count[row * s->k_len + t->key[c]];
      if (*n < 255) ++*n;
      double got = (double)t->score[c * t->key_stride + r * t->query_stride], dot = 0;
      if (*n > 1) continue;
      for (int64_t d = 0; d < s->q->dim; d++) {
        int64_t hk = t->head[r] * s->k->heads / s->heads;
        dot += oracle_get(s->q, t->batch, t->head[r], t->query[r], d) *
               oracle_get(s->k, t->batch, hk, t->key[c], d);
      }
      dot /= sqrt((double)s->q->dim);
      /* entries of forbidden pairs may hold anything */
      if (t->key[c] <= t->position[r] && fabs(got - dot) > 1e-5) s->wrong++;
    }
  }
}

/* A modifier that changes nothing gives the plain result, sees every allowed pair once, and sees
 * scores in natural units. */
void A2_modify_sees_every_pair_once(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(321);
    test_spec spec = test_plain(4, n & 1 ? 1 : 90, 150, 8, 7);
    spec.batch = 2;
    spec.k_heads = spec.v_heads = 2;
    test_call plain = test_build(&spec, &rng), call = test_again(&plain);
    plain.params.causal = call.params.causal = n >> 1;
    if (!(n >> 1)) { /* causal in another way: all keys allowed */
      plain.params.has_q_off = call.params.has_q_off = 1;
      plain.params.q_off = call.params.q_off = 149;
    }
    seen s = {2, 4, spec.q_len, 150, 150 - spec.q_len, NULL, &call.q, &call.k, 0};
    if (!(n >> 1)) s.q_off = 149;
    size_t size = (size_t)(2 * 4 * spec.q_len * 150);
    s.count = test_mem(size);
    memset(s.count, 0, size);
    call.params.modify = look;
    call.params.modify_user = &s;
    test_run(&plain);
    test_run(&call);
    assert_int_equal(s.wrong, 0);
    for (int64_t row = 0; row < 8 * spec.q_len; row++) {
      for (int64_t j = 0; j < 150; j++) {
        int allowed = n >> 1 ? j <= row % spec.q_len + s.q_off : 1, count = s.count[row * 150 + j];
        if (allowed ? count != 1 : count > 1) fail_msg("%s", "a pair seen more than once or never");
      }
    }
    test_assert_near(call.o, plain.o, 2e-6, "an idle modifier");
    test_assert_near(call.params.lse, plain.params.lse, 2e-6, "an idle modifier: LSE");
  }
}

/* The places of one value: what a modifier writes where. */
typedef struct place {
  int64_t head, query, key;
  float value;
} place;

static void put(void *user, const attn_score_tile *t) {
  const place *p = user;
  for (int64_t r = 0; r < t->queries; r++) {
    for (int64_t c = 0; c < t->keys; c++) {
      if (t->head[r] != p->head || t->query[r] != p->query) continue;
      if (p->key >= 0 && t->key[c] != p->key) continue;
      t->score[c * t->key_stride + r * t->query_stride] = p->value;
    }
  }
}

/* NaN and +inf make their row NaN, and no other; -inf forbids the pair. In a key that is forbidden
 * anyway all of them are ignored. */
void A2_modify_special_values(void **state) {
  (void)state;
  static const float values[] = {NAN, INFINITY, -INFINITY};
  for (int n = 0; n < 12; n++) {
    int forbidden = n / 3 % 2, mask = n / 6;
    test_rng rng = test_seed(322);
    test_spec spec = test_plain(2, 100, 150, 8, 7);
    spec.map = 1;
    test_call clean = test_build(&spec, &rng), call = test_again(&clean);
    attn_mask causal = {0};
    uint8_t *allowed = test_mem(100 * 150);
    for (int k = 0; k < 100 * 150; k++) allowed[k] = k % 150 <= k / 150 + 50;
    causal = attn_mask_bool(allowed, 1, 1, 100, 150);
    clean.params.causal = call.params.causal = !mask;
    if (mask) clean.params.mask = call.params.mask = causal;
    place p = {1, 37, forbidden ? 90 : 60, values[n % 3]}; /* row 37 sees keys to 87 */
    call.params.modify = put;
    call.params.modify_user = &p;
    test_run(&clean);
    test_run(&call);
    for (int64_t row = 0; row < 200; row++) {
      double got = oracle_get(&call.o, 0, row / 100, row % 100, 0);
      double lse = oracle_get(&call.params.lse, 0, row / 100, row % 100, 0);
      if (row == 137 && !forbidden && n % 3 < 2) {
        assert_true(isnan(got) && isnan(lse));
      } else if (row != 137 || forbidden) {
        assert_true(fabs(got - oracle_get(&clean.o, 0, row / 100, row % 100, 0)) <= 2e-6);
      }
    }
    if (forbidden || n % 3 < 2) continue;
    test_compare(&call, "a pair forbidden by a modifier");
    assert_true(oracle_get(&call.params.map, 0, 1, 37, 60) == 0);
  }
}

/* A pair that a modifier forbids may hold NaN in its key and value: the modifier is asked again. */
void A2_modify_forbids_garbage(void **state) {
  (void)state;
  test_rng rng = test_seed(323);
  test_spec spec = test_plain(2, 100, 150, 8, 7);
  test_call clean = test_build(&spec, &rng);
  place p = {1, 37, 60, -INFINITY};
  clean.params.modify = put;
  clean.params.modify_user = &p;
  test_run(&clean);
  for (int in_value = 0; in_value < 2; in_value++) {
    test_call call = test_again(&clean);
    attn_tensor *t = in_value ? &call.v : &call.k;
    attn_tensor copy = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 150, t->dim);
    test_copy(copy, *t);
    test_fill_row(copy, 0, 1, 60, (double)NAN);
    *t = copy;
    test_run(&call);
    for (int64_t row = 0; row < 200; row++) {
      double got = oracle_get(&call.o, 0, row / 100, row % 100, 5);
      double want = oracle_get(&clean.o, 0, row / 100, row % 100, 5);
      if (row == 137 || row < 100) {
        assert_true(got == want);
      } else {
        assert_true(isnan(got));
      }
    }
  }
}

/* Every score -inf empties a row: zeros and -inf. */
void A2_modify_empty_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(324);
  test_spec spec = test_plain(2, 100, 150, 8, 7);
  spec.map = 1;
  test_call call = test_build(&spec, &rng);
  place p = {1, 37, -1, -INFINITY};
  call.params.modify = put;
  call.params.modify_user = &p;
  test_check(&call, "a row without keys");
  assert_true(oracle_get(&call.params.lse, 0, 1, 37, 0) == -(double)INFINITY);
  for (int64_t c = 0; c < 7; c++) assert_true(oracle_get(&call.o, 0, 1, 37, c) == 0);
}

/* ALiBi and a mask, written by hand. */
static void by_hand(void *user, const attn_score_tile *t) {
  const float *slope = user;
  for (int64_t r = 0; r < t->queries; r++) {
    for (int64_t c = 0; c < t->keys; c++) {
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      int64_t d = t->key[c] - t->position[r];
      *x -= slope[t->head[r]] * (float)(d < 0 ? -d : d);
      if (d > 0) *x = -INFINITY;
    }
  }
}

void A2_modify_equals_alibi(void **state) {
  (void)state;
  test_rng rng = test_seed(325);
  test_spec spec = test_plain(4, 100, 80, 8, 7); /* 20 empty rows */
  spec.k_heads = 2;
  spec.map = 1;
  test_call plain = test_build(&spec, &rng), call = test_again(&plain);
  float *slopes = test_mem(4 * sizeof *slopes);
  assert_int_equal(attn_alibi_slopes(slopes, 4), ATTN_OK);
  plain.params.alibi = slopes;
  plain.params.causal = 1;
  call.params.modify = by_hand;
  call.params.modify_user = slopes;
  test_run(&plain);
  test_run(&call);
  test_assert_near(call.o, plain.o, 3e-6, "ALiBi by hand");
  test_assert_near(call.params.lse, plain.params.lse, 3e-6, "ALiBi by hand: LSE");
  test_assert_near(call.params.map, plain.params.map, 3e-6, "ALiBi by hand: map");
}

/* Work still follows the causal structure. */
void A2_modify_work(void **state) {
  (void)state;
  test_rng rng = test_seed(326);
  test_spec spec = test_plain(1, 512, 512, 6, 5);
  test_call call = test_build(&spec, &rng);
  place p = {0, 0, 0, 1};
  call.params.modify = put;
  call.params.modify_user = &p;
  call.params.causal = 1;
  assert_in_range(test_run(&call).pairs, 512 * 513 / 2, 512 * 512 * 6 / 10);
}
