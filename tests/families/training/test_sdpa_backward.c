/* tests/families/training/test_sdpa_backward.c owns N2, the gradients of softmax attention. */

#include "backward.h"

void N2_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9200);
  for (int64_t n = test_count(160, 30); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, n % 5 ? 80 : 200);
    spec.q_type = (attn_dtype)(test_u64(&rng) % 3), spec.k_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.v_type = (attn_dtype)(test_u64(&rng) % 3);
    const attn_dtype type = n % 3 ? ATTN_F32 : (attn_dtype)(test_u64(&rng) % 3);
    backward *s = backward_build(&spec, type, (test_layout)(test_u64(&rng) % TEST_SHARED), &rng);
    backward_options(s, &rng);
    backward_check(s, "gradients");
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* Rows of many blocks, tiles and stretches; values of mean one. */
void N2_backward_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9201);
  for (int n = 0; n < test_count(3, 1); n++, test_mem_release()) {
    test_spec spec = test_plain(2, 1100, n == 1 ? 2300 : 1200, 8, 6);
    spec.k_heads = spec.v_heads = 1;
    backward *s = backward_build(&spec, ATTN_F32, TEST_BTHD, &rng);
    s->call.params.causal = n != 1;
    for (int64_t i = 0; i < s->call.v.len; i++)
      for (int64_t c = 0; c < 6; c++)
        oracle_set(&s->call.v, 0, 0, i, c, 1 + oracle_get(&s->call.v, 0, 0, i, c));
    for (int64_t i = 0; i < 2 * 1100; i++)
      for (int64_t c = 0; c < 6; c++)
        oracle_set(&s->d_o, 0, i / 1100, i % 1100, c,
                   1 + oracle_get(&s->d_o, 0, i / 1100, i % 1100, c));
    if (n == 2) s->call.params.window = attn_window_of(300, 0);
    backward_check(s, "long rows");
  }
}

/* Sums of so many equal numbers drift in one chain: d_v over queries, d_q over keys. */
void N2_backward_drift(void **state) {
  (void)state;
  test_rng rng = test_seed(9213);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    const int64_t most = n ? 99999 : 65536;
    test_spec spec = test_plain(1, n ? 2 : most, n ? most : 2, 4, 4);
    backward *s = backward_build(&spec, ATTN_F32, TEST_BHTD, &rng);
    test_fill_value(s->call.q, 0), test_fill_value(s->d_o, 1.1);
    for (int64_t j = 0; j < s->call.k.len; j++) {
      const double x = j % 2 ? 1.1 : -1.1;
      test_fill_row(s->call.v, 0, 0, j, x), test_fill_row(s->call.k, 0, 0, j, x);
    }
    backward_check(s, n ? "d_q of many keys" : "d_v of many queries");
  }
}

/* A row of which LSE says that it is empty is not read, whatever its scores. */
void N2_said_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(9214);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_spec spec = test_plain(1, 70, 140, 9, 7);
    uint8_t *mask = test_mem(70 * 140);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng), *t;
    for (int64_t i = 0; i < 70 * 140; i++) mask[i] = i / 140 != 40;
    s->call.params.mask = attn_mask_bool(mask, 1, 1, 70, 140);
    test_run(&s->call);
    promise_run(&s->does);
    t = backward_again(s);
    memset(&t->call.params.mask, 0, sizeof t->call.params.mask);
    test_fill_row(t->call.q, 0, 0, 40, n & 1 ? (double)NAN : (double)INFINITY);
    test_fill_row(t->d_o, 0, 0, 40, n & 2 ? (double)NAN : (double)INFINITY);
    t->does.scene = t;
    promise_run(&t->does);
    test_assert_same(t->d_q, s->d_q, "d_q"), test_assert_same(t->d_k, s->d_k, "d_k");
    test_assert_same(t->d_v, s->d_v, "d_v");
  }
}

/* The oracle's gradients against differences of its loss. Inputs are whole 64ths and steps whole 2^-12ths, so that
 * what is stored is exact. */
void N2_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9202);
  const double step = 1.0 / 4096;
  for (int64_t n = test_count(40, 8); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, 9);
    spec.q_layout = spec.k_layout = spec.v_layout = spec.o_layout = TEST_PADDED;
    backward *s = backward_build(&spec, ATTN_F32, TEST_BHTD, &rng);
    attn_tensor *const x[] = {&s->call.q, &s->call.k, &s->call.v};
    for (int i = 0; i < 3; i++) test_fill(*x[i], &rng, test_exact);
    backward_options(s, &rng);
    if (s->call.params.sinks) backward_sinks(s);
    const backward_want w = backward_oracle(s, NULL);
    const cube *const y[] = {&w.q, &w.k, &w.v};
    for (int i = 0; i < 3; i++) {
      const int64_t b = test_range(&rng, 0, x[i]->batch - 1),
                    h = test_range(&rng, 0, x[i]->heads - 1);
      const int64_t r = test_range(&rng, 0, x[i]->len - 1), c = test_range(&rng, 0, x[i]->dim - 1);
      const double at = oracle_get(x[i], b, h, r, c);
      oracle_set(x[i], b, h, r, c, at + step);
      const double up = backward_loss(s);
      oracle_set(x[i], b, h, r, c, at - step);
      const double down = backward_loss(s), got = (up - down) / (2 * step),
                   want = cube_at(y[i], b, h, r)[c];
      oracle_set(x[i], b, h, r, c, at);
      if (fabs(got - want) > 2e-5 * (1 + fabs(want)))
        fail_msg("%d of %d: %.9g, not %.9g", i, (int)n, want, got);
    }
    for (int64_t h = 0; s->g.d_sinks && h < s->call.q.heads; h++) {
      float *sink = (float *)(uintptr_t)s->call.params.sinks + h;
      const float was = *sink, up_at = was + 1.0f / 1024, down_at = was - 1.0f / 1024;
      *sink = up_at;
      const double up = backward_loss(s);
      *sink = down_at;
      const double got = (up - backward_loss(s)) / ((double)up_at - (double)down_at);
      *sink = was;
      if (fabs(got - w.sinks[h]) > 2e-5 * (1 + fabs(got)))
        fail_msg("sink: %.9g, not %.9g", w.sinks[h], got);
    }
  }
}

/* Sequences end to end, or at positions of their own, have the bits of calls of their own; what no sequence has
 * is 0. */
void N2_sequences(void **state) {
  (void)state;
  test_rng rng = test_seed(9203);
  for (int n = 0; n < test_count(12, 6); n++, test_mem_release()) {
    static const int64_t q_at[] = {0, 70, 70, 75, 150}, kv_at[] = {0, 90, 100, 100, 190};
    const int padded = n % 3 == 1, offs = n % 3 == 2;
    test_spec spec = test_plain(4, offs ? 40 : 160, padded ? 90 : offs ? 50 : 200, 9, 7);
    static const int64_t at[] = {-3, 0, 14, 31};
    static const int32_t len[] = {90, 10, 0, 77};
    spec.k_heads = spec.v_heads = 2, spec.batch = offs ? 4 : 1;
    backward *s = backward_build(&spec, n % 2 ? ATTN_F32 : ATTN_BF16, TEST_PADDED, &rng);
    attn_sdpa_params *p = &s->call.params;
    if (padded) { /* four entries of keys beside rows end to end */
      test_spec keys = spec;
      keys.batch = 4, keys.q_len = 1, keys.lse = 0;
      const test_call other = test_build(&keys, &rng);
      s->call.k = other.k, s->call.v = other.v;
      s->d_k = test_tensor(s->d_k.dtype, TEST_PADDED, 4, 2, 90, 9);
      s->d_v = test_tensor(s->d_v.dtype, TEST_PADDED, 4, 2, 90, 7);
      p->kv_len = len;
    }
    p->causal = 1, p->sinks = test_floats(4, 1, &rng), p->one_order = 1;
    backward_lse(s, &rng), backward_sinks(s);
    if (offs) p->q_offs = at;
    if (!offs) p->ragged.sequences = 4, p->ragged.q_indptr = q_at;
    if (!offs && !padded) p->ragged.kv_indptr = kv_at;
    test_run(&s->call);
    promise_keep(&s->does);
    promise_run(&s->does);
    double sinks[4] = {0};
    for (int b = 0; b < 4; b++) {
      backward one = *s;
      attn_tensor *const rows[] = {&one.call.q, &one.call.o,  &one.call.params.lse,
                                   &one.d_o,    &one.g.d_lse, &one.d_q};
      attn_tensor *const keys[] = {&one.call.k, &one.call.v, &one.d_k, &one.d_v};
      for (int x = 0; x < 6; x++)
        *rows[x] = offs ? test_one(*rows[x], b, 1, 0, 4)
                        : test_rows(*rows[x], q_at[b], q_at[b + 1] - q_at[b]);
      for (int x = 0; x < 4; x++)
        *keys[x] = offs || padded ? test_one(*keys[x], b, 1, 0, 2)
                                  : test_rows(*keys[x], kv_at[b], kv_at[b + 1] - kv_at[b]);
      const attn_tensor want[] = {one.d_q, one.d_k, one.d_v};
      one.d_q = test_tensor(want[0].dtype, TEST_BHTD, 1, 4, want[0].len, 9);
      one.d_k = test_tensor(want[1].dtype, TEST_BHTD, 1, 2, want[1].len, 9);
      one.d_v = test_tensor(want[2].dtype, TEST_BHTD, 1, 2, want[2].len, 7);
      memset(&one.call.params.ragged, 0, sizeof one.call.params.ragged);
      one.call.params.q_offs = NULL, one.sinks = absent();
      backward_sinks(&one);
      if (padded) one.call.params.kv_len = len + b;
      if (offs) one.call.params.has_q_off = 1, one.call.params.q_off = at[b];
      one.does.scene = &one;
      promise_run(&one.does);
      test_assert_same(want[0], one.d_q, "d_q of a sequence");
      test_assert_same(want[1], one.d_k, "d_k of a sequence");
      test_assert_same(want[2], one.d_v, "d_v of a sequence");
      for (int h = 0; h < 4; h++) sinks[h] += (double)one.g.d_sinks[h];
    }
    for (int h = 0; h < 4; h++)
      value_check((double)s->g.d_sinks[h], sinks[h], 1e-5, ATTN_F32, "sinks", 0, h, -1, -1);
    for (int64_t i = 150; !offs && i < 160; i++)
      for (int64_t h = 0; h < 4; h++) assert_true(oracle_get(&s->d_q, 0, h, i, 3) == 0);
    for (int64_t j = 190; !offs && !padded && j < 200; j++)
      assert_true(oracle_get(&s->d_v, 0, 1, j, 2) == 0);
  }
}

/* Schedules of runs, of lists and of several phases against masks that say the same. */
void N2_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(9204);
  const int64_t T = 300;
  for (int n = 0; n < 10; n++, test_mem_release()) {
    static const int32_t global[] = {0, 131, 299};
    attn_pattern part[2] = {attn_pattern_band(20, n & 1 ? 0 : 9), attn_pattern_global(global, 3)};
    attn_pattern some = n < 2   ? attn_pattern_band(50, 3)
                        : n < 4 ? attn_pattern_strided(7)
                        : n < 6 ? attn_pattern_union(part, 2)
                        : n < 8 ? attn_pattern_random(11, 5)
                                : attn_pattern_blocks(32, 1, 0);
    test_spec spec = test_plain(2, T, T, 9, 7);
    spec.k_heads = spec.v_heads = 1;
    if (n == 5) spec.k_type = ATTN_BF16;
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_schedule schedule = {NULL, 0, NULL};
    assert_int_equal(attn_schedule_build(&schedule, &some, 2, T, T, NULL, NULL), ATTN_OK);
    s->call.params.schedule = &schedule;
    s->call.params.causal = n & 1;
    backward_lse(s, &rng);
    test_run(&s->call);
    promise_keep(&s->does);
    promise_run(&s->does);
    /* the mask, by asking forward: a map of uniform weights */
    uint8_t *mask = test_mem((size_t)(2 * T * T));
    attn_tensor map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, T);
    test_call ask = test_again(&s->call);
    ask.params.map = map;
    test_run(&ask);
    for (int64_t i = 0; i < 2 * T * T; i++)
      mask[i] = oracle_get(&map, 0, i / T / T, i / T % T, i % T) != 0;
    attn_sdpa_params masked = s->call.params;
    masked.schedule = NULL, masked.mask = attn_mask_bool(mask, 1, 2, T, T);
    const backward_want w = backward_oracle(s, &masked);
    backward_compare(s, &w, "a schedule");
    attn_schedule_free(&schedule);
  }
}

/* What is added to: the sum is rounded once. */
void N2_accumulate(void **state) {
  (void)state;
  test_rng rng = test_seed(9205);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 70, 140, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    s->call.params.sinks = test_floats(2, 1, &rng);
    if (n == 3) s->call.params.causal = 1;
    backward_sinks(s);
    test_run(&s->call);
    promise_run(&s->does);
    backward *t = backward_again(s);
    attn_tensor *const from[] = {&s->d_q, &s->d_k, &s->d_v}, *const to[] = {&t->d_q, &t->d_k,
                                                                            &t->d_v};
    for (int i = 0; i < 3; i++) {
      *to[i] = test_tensor((attn_dtype)(n % 3), TEST_BTHD, 1, from[i]->heads, from[i]->len,
                           from[i]->dim);
      test_fill(*to[i], &rng, test_exact);
    }
    cube old[3];
    for (int i = 0; i < 3; i++) old[i] = cube_from(to[i]);
    for (int h = 0; h < 2; h++) t->g.d_sinks[h] = 3;
    t->g.accumulate = 1;
    t->does.scene = t;
    promise_run(&t->does);
    for (int i = 0; i < 3; i++) {
      cube more = cube_from(from[i]);
      for (int64_t c = 0; c < more.heads * more.len * more.dim; c++) old[i].data[c] += more.data[c];
      cube_check(&old[i], to[i], 1e-6, "added");
    }
    for (int h = 0; h < 2; h++)
      value_check((double)t->g.d_sinks[h], 3 + (double)s->g.d_sinks[h], 1e-5, ATTN_F32, "sink", 0,
                  h, -1, -1);
  }
}

/* Keys and values read for all entries and heads: the sum of the shares. */
void N2_broadcast(void **state) {
  (void)state;
  test_rng rng = test_seed(9212);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    test_spec spec = test_plain(4, 70, 140, 9, 7);
    spec.batch = 3, spec.k_heads = 2, spec.v_heads = n & 4 ? 4 : 2;
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng), *t;
    s->call.k.stride_batch = 0, s->call.v.stride_head = 0;
    if (n & 1) s->call.k.stride_head = 0, s->call.v.stride_batch = 0;
    test_run(&s->call);
    promise_run(&s->does);
    t = backward_again(s);
    attn_tensor *const one[] = {&t->d_k, &t->d_v}, *const all[] = {&s->d_k, &s->d_v};
    cube want[2];
    for (int i = 0; i < 2; i++) {
      const attn_tensor *x = i ? &s->call.v : &s->call.k;
      const int64_t b = x->stride_batch ? 3 : 1, h = x->stride_head ? x->heads : 1;
      *one[i] = test_tensor(ATTN_F32, TEST_BTHD, b, h, 140, x->dim);
      want[i] = cube_of(b, h, 140, x->dim);
      for (int64_t c = 0; c < b * h * 140 * x->dim; c++) want[i].data[c] = n & 2 ? 3 : 0;
      if (n & 2) test_fill_value(*one[i], 3);
      for (int64_t r = 0; r < 3 * x->heads * 140; r++)
        for (int64_t c = 0; c < x->dim; c++)
          cube_at(&want[i], b > 1 ? r / 140 / x->heads : 0, h > 1 ? r / 140 % x->heads : 0,
                  r % 140)[c] +=
              oracle_get(all[i], r / 140 / x->heads, r / 140 % x->heads, r % 140, c);
    }
    if (n & 2) test_fill_value(t->d_q, 0);
    t->g.accumulate = n >> 1 & 1, t->does.scene = t;
    promise_run(&t->does);
    cube_check(&want[0], &t->d_k, 2e-6, "d_k of all"),
        cube_check(&want[1], &t->d_v, 2e-6, "d_v of all");
  }
}

/* An output has the same bits whichever others are asked for, and whatever the batch. */
void N2_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9206);
  for (int n = 0; n < 10; n++, test_mem_release()) {
    test_spec spec = test_plain(4, 90, 170, 9, 7);
    spec.k_heads = 2, spec.v_heads = 1, spec.batch = 2;
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    s->call.params.sinks = test_floats(4, 1, &rng), s->call.params.causal = n % 2;
    backward_sinks(s);
    test_run(&s->call);
    promise_run(&s->does);
    backward *t = backward_again(s);
    if (n < 8) {
      if (n & 1) t->d_q = absent();
      if (n & 2) t->d_k = absent();
      if (n & 4) t->d_v = absent();
      if (n & 3) t->g.d_sinks = NULL;
    } else {
      attn_tensor *const all[] = {
          &t->call.q, &t->call.k, &t->call.v, &t->call.o,          &t->d_o, &t->d_q, &t->d_k,
          &t->d_v,    &s->d_q,    &s->d_k,    &t->call.params.lse, &s->d_v};
      t->g.d_sinks = NULL;
      for (int i = 0; i < 12; i++) *all[i] = test_one(*all[i], 1, 1, 0, all[i]->heads);
    }
    t->does.scene = t;
    promise_run(&t->does);
    if (t->d_q.data) test_assert_same(t->d_q, s->d_q, "d_q");
    if (t->d_k.data) test_assert_same(t->d_k, s->d_k, "d_k");
    if (t->d_v.data) test_assert_same(t->d_v, s->d_v, "d_v");
    for (int h = 0; t->g.d_sinks && h < 4; h++)
      assert_memory_equal(&t->g.d_sinks[h], &s->g.d_sinks[h], sizeof(float));
  }
}

/* NaN where nothing is read changes no bit: forbidden keys, rows that do not exist or are empty. */
void N2_unread(void **state) {
  (void)state;
  test_rng rng = test_seed(9207);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    const int64_t Tq = 100, Tk = n & 1 ? 150 : 300;
    static const int32_t q_len[] = {90}, kv_len[] = {140};
    test_spec spec = test_plain(2, Tq, Tk, 9, 7);
    spec.k_heads = spec.v_heads = 1;
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_sdpa_params *p = &s->call.params;
    uint8_t *mask = test_mem((size_t)(Tq * Tk));
    for (int64_t i = 0; i < Tq * Tk; i++) mask[i] = i % Tk != 17 && i / Tk != 33;
    p->q_len = q_len, p->kv_len = kv_len, p->mask = attn_mask_bool(mask, 1, 1, Tq, Tk);
    if (n & 2) p->softmax_one = 1;
    if (n & 4) p->causal = 1;
    backward_lse(s, &rng);
    test_run(&s->call);
    promise_run(&s->does);
    backward *t = backward_again(s);
    for (int h = 0; h < 2; h++) {
      for (int64_t i = 90; i < Tq; i++) {
        test_fill_row(t->call.q, 0, h, i, (double)NAN), test_fill_row(t->d_o, 0, h, i, (double)NAN);
        test_fill_row(t->g.d_lse, 0, h, i, (double)INFINITY);
      }
      if (n & 2) continue; /* row 33 has an LSE then */
      test_fill_row(t->call.q, 0, h, 33, (double)NAN),
          test_fill_row(t->d_o, 0, h, 33, (double)INFINITY);
      test_fill_row(t->g.d_lse, 0, h, 33, (double)NAN);
    }
    for (int64_t j = 140; j < Tk; j++)
      test_fill_row(t->call.k, 0, 0, j, (double)NAN),
          test_fill_row(t->call.v, 0, 0, j, (double)INFINITY);
    test_fill_row(t->call.k, 0, 0, 17, (double)NAN),
        test_fill_row(t->call.v, 0, 0, 17, (double)NAN);
    t->does.scene = t;
    promise_run(&t->does);
    test_assert_same(t->d_q, s->d_q, "d_q beside NaN");
    test_assert_same(t->d_k, s->d_k, "d_k beside NaN");
    test_assert_same(t->d_v, s->d_v, "d_v beside NaN");
    for (int64_t c = 0; c < 9; c++) assert_true(oracle_get(&t->d_q, 0, 1, 95, c) == 0);
    for (int64_t c = 0; c < 9; c++) assert_true(oracle_get(&t->d_k, 0, 0, 17, c) == 0);
  }
}

/* NaN reaches what reads it and nothing else. */
void N2_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9208);
  const int64_t Tq = 100, Tk = 160, at = 41, key = 70;
  for (int n = 0; n < 10; n++, test_mem_release()) {
    test_spec spec = test_plain(1, Tq, Tk, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    uint8_t *mask = test_mem((size_t)(Tq * Tk));
    for (int64_t i = 0; i < Tq * Tk; i++) mask[i] = (i / Tk + i % Tk) % 3 != 0;
    s->call.params.mask = attn_mask_bool(mask, 1, 1, Tq, Tk);
    test_run(&s->call);
    promise_run(&s->does);
    backward *t = backward_again(s);
    const double bad = n & 1 ? (double)NAN : (double)INFINITY;
    const int what = n / 2; /* d_o, q, k, v, d_lse */
    if (what == 4)
      backward_lse(t, &rng), test_fill_value(t->g.d_lse, 0),
          test_fill_row(t->g.d_lse, 0, 0, at, bad);
    if (what == 0) oracle_set(&t->d_o, 0, 0, at, 3, bad);
    if (what == 1) oracle_set(&t->call.q, 0, 0, at, 3, bad);
    if (what == 2) oracle_set(&t->call.k, 0, 0, key, 3, bad);
    if (what == 3) oracle_set(&t->call.v, 0, 0, key, 3, bad);
    if (what < 4) test_run(&t->call);
    t->does.scene = t;
    promise_run(&t->does);
    int reached = 0;
    for (int64_t i = 0; i < Tq; i++) {
      const int hit = what == 2 || what == 3 ? mask[i * Tk + key] : i == at;
      if (!hit)
        test_assert_same(test_rows(t->d_q, i, 1), test_rows(s->d_q, i, 1),
                         "a row of d_q that reads none");
      else
        reached += !(fabs(oracle_get(&t->d_q, 0, 0, i, 3)) < (double)INFINITY);
    }
    assert_true(what == 2 || what == 3 ? reached > 10 : reached == 1);
    for (int64_t j = 0; j < Tk; j++) {
      const int seen = mask[at * Tk + j];
      if (what == 2 || what == 3) continue;
      if (!seen)
        test_assert_same(test_rows(t->d_k, j, 1), test_rows(s->d_k, j, 1), "d_k that reads none");
      if (!seen)
        test_assert_same(test_rows(t->d_v, j, 1), test_rows(s->d_v, j, 1), "d_v that reads none");
      if (seen) assert_false(fabs(oracle_get(&t->d_k, 0, 0, j, 3)) < (double)INFINITY);
      if (seen && what < 2) assert_false(fabs(oracle_get(&t->d_v, 0, 0, j, 3)) < (double)INFINITY);
    }
  }
}

/* Quantised keys and values: the bits of the rows that they stand for. */
void N2_quantised(void **state) {
  (void)state;
  test_rng rng = test_seed(9209);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    const attn_dtype type = n == 0 ? ATTN_I8 : n == 1 ? ATTN_I4 : ATTN_E4M3;
    test_spec spec = test_plain(2, 70, 140, 8, 6);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_tensor *const x[] = {&s->call.k, &s->call.v};
    attn_tensor code[2];
    attn_scales scales[2];
    attn_ctx ctx = test_ctx();
    for (int i = 0; i < 2; i++) {
      code[i] = attn_bhtd(test_mem(2 * 140 * 8), type, 1, 2, 140, x[i]->dim);
      scales[i] = attn_scales_dense(test_mem(2 * 140 * 4), NULL, 0, x[i]);
      assert_int_equal(attn_quantize(code[i], scales[i], *x[i], &ctx), ATTN_OK);
      assert_int_equal(attn_dequantize(*x[i], code[i], scales[i], &ctx), ATTN_OK);
    }
    test_run(&s->call);
    promise_run(&s->does);
    backward *t = backward_again(s);
    t->call.k = code[0], t->call.v = code[1];
    t->call.params.k_scales = scales[0], t->call.params.v_scales = scales[1];
    t->does.scene = t;
    promise_run(&t->does);
    test_assert_same(t->d_q, s->d_q, "d_q of codes");
    test_assert_same(t->d_k, s->d_k, "d_k of codes");
    test_assert_same(t->d_v, s->d_v, "d_v of codes");
  }
}

/* No queries, no keys, nothing asked for. */
void N2_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9210);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_spec spec = test_plain(2, n % 3 == 0 ? 0 : 5, n % 3 == 1 ? 0 : 7, 4, 3);
    backward *s = backward_build(&spec, n < 3 ? ATTN_F32 : ATTN_F16, TEST_PADDED, &rng);
    s->call.params.sinks = test_floats(2, 1, &rng);
    backward_sinks(s);
    attn_tensor *const out[] = {&s->d_q, &s->d_k, &s->d_v};
    for (int i = 0; i < 3; i++)
      if (out[i]->len) test_fill_value(*out[i], 7);
    if (n % 3 != 2) test_run(&s->call);
    if (n % 3 == 2) s->d_q = s->d_k = s->d_v = s->sinks = absent(), s->g.d_sinks = NULL;
    promise_run(&s->does);
    if (n % 3 == 2) continue;
    for (int i = 0; i < 3; i++)
      for (int64_t r = 0; r < 2 * out[i]->len; r++)
        assert_true(oracle_get(out[i], 0, r / out[i]->len, r % out[i]->len, 1) == 0);
    for (int h = 0; n % 3 == 0 && h < 2; h++) assert_true(s->g.d_sinks[h] == 0.0f);
  }
}

void N2_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9211);
  for (int n = 0; n < 31; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 20, 30, 4, 3);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_sdpa_params *p = &s->call.params;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    test_run(&s->call);
    switch (n) {
      case 0: s->d_q.dim = 3, word = "d_q"; break;
      case 1: s->d_k.len = 29, word = "d_k"; break;
      case 2: s->d_v.heads = 1, word = "d_v"; break;
      case 3: s->d_o.dim = 4, word = "d_o"; break;
      case 4: s->d_o.data = NULL, want = ATTN_E_NULL, word = "d_o"; break;
      case 5: p->lse = absent(), want = ATTN_E_NULL, word = "lse"; break;
      case 6: p->lse.dim = 2, word = "lse"; break;
      case 7: backward_lse(s, &rng), s->g.d_lse.len = 3, word = "d_lse"; break;
      case 8:
        backward_lse(s, &rng), s->g.d_lse.dtype = ATTN_BF16, want = ATTN_E_DTYPE, word = "d_lse";
        break;
      case 9: s->d_q.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_q.dtype"; break;
      case 10: s->d_k.data = s->d_v.data, want = ATTN_E_OVERLAP, word = "d_"; break;
      case 11: s->d_q = s->call.q, want = ATTN_E_OVERLAP, word = "gradient"; break;
      case 12: s->d_q.data = s->call.o.data, want = ATTN_E_OVERLAP, word = "must not share"; break;
      case 13: s->d_o.data = s->d_v.data, want = ATTN_E_OVERLAP, word = "d_v"; break;
      case 14: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 15: s->g.d_sinks = test_floats(2, 1, &rng), want = ATTN_E_NULL, word = "sinks"; break;
      case 16: p->scale = NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 17: s->call.k.len = 29, word = "d_k"; break;
      case 18: s->d_o.heads = 1, word = "d_o"; break;
      case 19: s->call.q.dim = 3, word = "d_q"; break;
      case 20: s->call.v.len = 29, word = "d_v"; break;
      case 21: p->scale = INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 22: s->d_k.stride_len = 1, want = ATTN_E_STRIDE, word = "d_k"; break;
      case 23:
        p->sinks = test_floats(2, 1, &rng), s->g.d_sinks = (float *)(uintptr_t)p->sinks;
        want = ATTN_E_OVERLAP, word = "gradient";
        break;
      case 24: s->g.d_alibi = test_floats(2, 1, &rng), want = ATTN_E_NULL, word = "alibi"; break;
      case 25:
        s->g.d_bias = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 30), want = ATTN_E_NULL,
        word = "bias";
        break;
      case 26:
        p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 1, 2, 20, 30, &rng);
        s->g.d_bias = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 29), word = "d_bias";
        break;
      case 28: s->d_k.heads = 1, word = "d_k"; break;
      case 29:
        s->call.k.stride_head = 0, s->d_k.heads = 1, s->d_k.dtype = ATTN_BF16;
        want = ATTN_E_DTYPE, word = "sum over k";
        break;
      case 27:
        p->alibi = test_floats(2, 1, &rng), s->g.d_alibi = s->d_v.data;
        want = ATTN_E_OVERLAP, word = "d_v";
        break;
      default: p->xl.u = test_floats(8, 1, &rng), want = ATTN_E_NULL, word = "xl"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
