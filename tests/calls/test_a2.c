/* tests/calls/test_a2.c owns A2, masks: causal, windows, boolean, bit and additive masks, lengths, and
 * what forbidden keys may hold. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

/* A number in 1..n, with the edges of a tile likely. */
static int64_t some_length(test_rng *rng, int64_t n) {
  static const int64_t edges[] = {1, 63, 64, 65, 127, 128, 129};
  int64_t x = test_u64(rng) % 3 ? test_range(rng, 1, n) : edges[test_u64(rng) % 7];
  return x > n ? n : x;
}

void A2_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(40);
  for (int64_t n = test_count(60, 15); n-- > 0;) {
    test_spec spec = test_plain(1, some_length(&rng, 150), some_length(&rng, 150), 9, 7);
    test_call call = test_build(&spec, &rng);
    call.params.causal = 1;
    test_check(&call, "causal");
  }
}

void A2_causal_offset(void **state) {
  (void)state;
  static const int64_t offsets[] = {0, 1, -1, 5, -40, 63, 64, 65, 200, -200, 1 << 30};
  for (int n = 0; n < 11; n++) {
    test_spec spec = test_plain(1, 70, 90, 9, 7);
    spec.map = n & 1;
    test_rng rng = test_seed(41);
    test_call call = test_build(&spec, &rng);
    call.params.causal = 1;
    call.params.has_q_off = 1;
    call.params.q_off = offsets[n];
    test_check(&call, "causal with an offset");
  }
}

/* Rows of bits that are read from any bit on: windows and scheduled runs begin anywhere in a byte. */
void A2_bits_from_anywhere(void **state) {
  (void)state;
  test_rng rng = test_seed(48);
  for (int n = 0; n < 64; n++, test_mem_release()) {
    const int scheduled = n & 1, wide = n / 16;
    attn_schedule s = {NULL, 0, NULL};
    test_spec spec = test_plain(1, 40, 300, 4, 3);
    test_call call = test_build(&spec, &rng);
    call.params.mask = test_mask(ATTN_MASK_BITS, ATTN_F32, 1, 1, 40, 300, &rng);
    if (call.params.mask.q_len != 40 || call.params.mask.k_len != 300) {
      n--;
      continue;
    }
    call.params.has_q_off = 1, call.params.q_off = 100 + n / 2 % 8;
    call.params.window = attn_window_of(60 + wide, 70);
    test_run(&call);
    test_compare(&call, "bits in a window");
    if (!scheduled) continue;
    test_call again = test_again(&call);
    attn_schedule_params at = {.has_q_off = 1, .q_off = call.params.q_off};
    attn_pattern band = attn_pattern_band(60 + wide, 70);
    assert_int_equal(attn_schedule_build(&s, &band, 1, 40, 300, &at, NULL), ATTN_OK);
    again.params.schedule = &s;
    test_run(&again);
    test_compare(&again, "bits in runs");
    attn_schedule_free(&s);
  }
}

/* A row of bits ends with its last byte, in use or not: an output may not begin there. */
void A2_bits_end(void **state) {
  (void)state;
  test_rng rng = test_seed(49);
  for (int64_t keys = 1; keys < 34; keys++, test_mem_release()) {
    test_spec spec = test_plain(1, 3, keys, 4, 3);
    test_call call = test_build(&spec, &rng);
    const int64_t bytes = (keys + 7) / 8;
    uint8_t *memory = test_mem(64);
    memset(memory, 0xff, 64);
    for (int over = 0; over < 2; over++) {
      attn_ctx ctx = test_ctx();
      call.params.mask = attn_mask_bits(memory + 16 - bytes + over, 1, 1, 1, keys);
      call.o.data = memory + 16;
      call.o.stride_len = 3;
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx),
                       over ? ATTN_E_OVERLAP : ATTN_OK);
    }
  }
}

/* The stride of an extent of 1 is never looked at. */
void A2_strides_of_one(void **state) {
  (void)state;
  test_rng rng = test_seed(50);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    test_spec spec = test_plain(1, n & 1 ? 1 : 20, n & 2 ? 1 : 20, 4, 3);
    test_call call = test_build(&spec, &rng), again = test_again(&call);
    attn_tensor *all[] = {&again.q, &again.k, &again.v, &again.o};
    test_run(&call);
    for (int i = 0; i < 4; i++) {
      all[i]->stride_batch = all[i]->stride_head = n & 4 ? INT64_MAX : INT64_MIN;
      if (all[i]->len == 1) all[i]->stride_len = n & 4 ? INT64_MAX : INT64_MIN;
    }
    test_run(&again);
    for (int i = 0; i < 4; i++) all[i]->stride_batch = all[i]->stride_head = 0;
    if (again.o.len == 1) again.o.stride_len = call.o.stride_len;
    again.o.stride_batch = call.o.stride_batch, again.o.stride_head = call.o.stride_head;
    test_assert_same_outputs(&again, &call, "strides of extents of 1");
  }
}

void A2_window(void **state) {
  (void)state;
  test_rng rng = test_seed(42);
  for (int64_t n = test_count(120, 30); n-- > 0;) {
    test_spec spec = test_plain(1, some_length(&rng, 260), some_length(&rng, 260), 5, 6);
    test_call call = test_build(&spec, &rng);
    int64_t left = test_range(&rng, -1, 3), right = test_range(&rng, -1, 3);
    test_left(&call.params, left == 3 ? test_range(&rng, 1, 300) : left);
    test_right(&call.params, right == 3 ? test_range(&rng, 1, 300) : right);
    call.params.causal = test_u64(&rng) % 3 == 0;
    call.params.has_q_off = test_u64(&rng) & 1;
    call.params.q_off = test_range(&rng, -100, 100) * call.params.has_q_off;
    test_check(&call, "window");
  }
}

/* Offsets and windows at the ends of their range must not wrap around. */
void A2_huge_offset_and_window(void **state) {
  (void)state;
  static const int64_t far = ((int64_t)1 << 40) - 1;
  for (int n = 0; n < 6; n++) {
    test_spec spec = test_plain(1, 70, 66, 5, 6);
    test_rng rng = test_seed(43);
    test_call call = test_build(&spec, &rng);
    call.params.causal = n & 1;
    call.params.has_q_off = 1;
    call.params.q_off = n < 2 ? far : n < 4 ? -far : 0;
    test_left(&call.params, n < 2 ? far : n < 4 ? 5 : INT64_MAX);
    test_right(&call.params, n < 2 ? 0 : n < 4 ? -1 : INT64_MAX);
    attn_ctx ctx = test_ctx();
    attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
    if (n >= 4 && status == ATTN_E_RANGE) continue; /* a window has a range as well */
    assert_int_equal(status, ATTN_OK);
    test_compare(&call, "far away");
  }
}

static void check_mask(attn_mask_kind kind, uint64_t seed, int64_t count) {
  test_rng rng = test_seed(seed);
  while (count-- > 0) {
    test_spec spec = test_plain(3, some_length(&rng, 140), some_length(&rng, 140), 6, 7);
    spec.batch = 2;
    spec.map = (int)(count & 1);
    test_call call = test_build(&spec, &rng);
    attn_mask m = test_mask(kind, (attn_dtype)(count % 3), 2, 3, spec.q_len, spec.k_len, &rng);
    *(kind == ATTN_MASK_ADD ? &call.params.bias : &call.params.mask) = m;
    test_check(&call, "mask");
  }
}

void A2_boolean_mask(void **state) {
  (void)state;
  check_mask(ATTN_MASK_BOOL, 44, test_count(40, 10));
}

void A2_bit_mask(void **state) {
  (void)state;
  check_mask(ATTN_MASK_BITS, 45, test_count(40, 10));
}

/* Masks that allow all or nothing but for a few entries: where whole blocks are judged at once, one
 * entry must not be overlooked. */
void A2_nearly_uniform_mask(void **state) {
  (void)state;
  static const uint8_t yes[] = {1, 2, 0x80, 0xFF};
  test_rng rng = test_seed(56);
  for (int64_t n = 0; n < test_count(48, 16); n++) {
    int64_t tq = some_length(&rng, 140), tk = test_range(&rng, 2, 300), row = (tk + 7) / 8;
    test_spec spec = test_plain(1, tq, tk, 4, 3);
    test_call call = test_build(&spec, &rng);
    int allow = (int)(n & 1), bits = (int)(n >> 1 & 1);
    uint8_t *cells = test_mem((size_t)(tq * tk)), *packed = test_mem((size_t)(tq * row));
    memset(cells, allow ? yes[n / 4 % 4] : 0, (size_t)(tq * tk));
    for (int64_t flips = test_range(&rng, 0, 4); flips-- > 0;) {
      cells[test_range(&rng, 0, tq * tk - 1)] = allow ? 0 : yes[test_u64(&rng) % 4];
    }
    memset(packed, 0, (size_t)(tq * row));
    for (int64_t c = 0; c < tq * tk; c++) {
      if (cells[c]) packed[c / tk * row + c % tk / 8] |= (uint8_t)(1 << c % tk % 8);
    }
    call.params.mask =
        bits ? attn_mask_bits(packed, 1, 1, tq, tk) : attn_mask_bool(cells, 1, 1, tq, tk);
    call.params.causal = (int)(n / 8 % 2);
    test_check(&call, "a nearly uniform mask");
  }
}

void A2_additive_mask(void **state) {
  (void)state;
  check_mask(ATTN_MASK_ADD, 46, test_count(40, 10));
}

void A2_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(47);
  for (int64_t n = test_count(40, 10); n-- > 0;) {
    test_spec spec = test_plain(2, some_length(&rng, 140), some_length(&rng, 140), 6, 7);
    spec.batch = 3;
    spec.map = (int)(n & 1);
    test_call call = test_build(&spec, &rng);
    if (n % 3 != 0) call.params.kv_len = test_lengths(3, spec.k_len, &rng);
    if (n % 3 != 1) call.params.q_len = test_lengths(3, spec.q_len, &rng);
    call.params.causal = n % 5 == 0;
    test_check(&call, "lengths");
  }
}

/* Every feature at once, in random company. */
void A2_everything_combined(void **state) {
  (void)state;
  test_rng rng = test_seed(48);
  static const int64_t heads[] = {1, 2, 3, 4};
  for (int64_t n = test_count(150, 30); n-- > 0;) {
    int64_t h = heads[test_u64(&rng) % 4], hk = h, hv = h;
    while (h % (hk = test_range(&rng, 1, h))) continue;
    while (h % (hv = test_range(&rng, 1, h))) continue;
    test_spec spec = test_plain(h, some_length(&rng, 140), some_length(&rng, 400),
                                test_range(&rng, 1, 24), test_range(&rng, 1, 24));
    spec.batch = test_range(&rng, 1, 2);
    spec.k_heads = hk;
    spec.v_heads = hv;
    spec.q_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.k_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.v_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.o_type = (attn_dtype)(test_u64(&rng) % 3);
    spec.q_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.k_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.v_layout = (test_layout)(test_u64(&rng) % TEST_LAYOUTS);
    spec.o_layout = (test_layout)(test_u64(&rng) % TEST_SHARED);
    spec.lse = test_u64(&rng) & 1;
    spec.map = test_u64(&rng) & 1;
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    uint64_t pick = test_u64(&rng);
    p->causal = pick & 1;
    p->has_q_off = pick >> 1 & 1;
    p->q_off = test_range(&rng, -20, 300) * p->has_q_off;
    if (pick & 4) test_left(p, test_range(&rng, -1, 200));
    if (pick & 8) test_right(p, test_range(&rng, -1, 200));
    if (pick & 16) p->kv_len = test_lengths(spec.batch, spec.k_len, &rng);
    if (pick & 32) p->q_len = test_lengths(spec.batch, spec.q_len, &rng);
    if (pick & 64) {
      p->mask = test_mask(pick & 128 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32, spec.batch, h,
                          spec.q_len, spec.k_len, &rng);
    }
    if (pick & 256) {
      p->bias = test_mask(ATTN_MASK_ADD, (attn_dtype)(pick >> 9 & 1), spec.batch, h, spec.q_len,
                          spec.k_len, &rng);
    }
    if (pick & 1024) p->alibi = test_floats(h, 0.3, &rng);
    if (pick & 2048) p->softcap = 4;
    if (n % 3 == 0) p->softcap_at = ATTN_SOFTCAP_BIASED;
    if (pick & 4096) p->sinks = test_floats(h, 1, &rng);
    p->softmax_one = pick >> 13 & 1;
    if (pick & 16384) p->scale = 0.5f;
    char what[64];
    snprintf(what, sizeof what, "combination %d (features %x)", (int)n, (unsigned)(pick & 0x7fff));
    test_check(&call, what);
  }
}

/* 1, 0 against 0, -inf, against bits: the same allowed set gives the same bits. */
void A2_boolean_equals_additive_equals_bits(void **state) {
  (void)state;
  test_rng rng = test_seed(49);
  for (int64_t n = test_count(12, 4); n-- > 0;) {
    int64_t tq = some_length(&rng, 140), tk = some_length(&rng, 140), row = (tk + 7) / 8;
    test_spec spec = test_plain(2, tq, tk, 10, 11);
    spec.map = 1;
    test_call call = test_build(&spec, &rng), add = test_again(&call), bits = test_again(&call);
    uint8_t *allowed = test_mem((size_t)(2 * tq * tk)), *packed = test_mem((size_t)(2 * tq * row));
    float *bias = test_mem((size_t)(2 * tq * tk) * sizeof *bias);
    memset(packed, 0, (size_t)(2 * tq * row));
    for (int64_t i = 0; i < 2 * tq; i++) {
      for (int64_t j = 0; j < tk; j++) {
        int ok = i % 7 == 3 ? 0 : (int)(test_u64(&rng) % 2);
        allowed[i * tk + j] = (uint8_t)(ok ? 1 + j % 255 : 0);
        bias[i * tk + j] = ok ? 0 : -INFINITY;
        if (ok) packed[i * row + j / 8] |= (uint8_t)(1 << j % 8);
      }
    }
    call.params.mask = attn_mask_bool(allowed, 1, 2, tq, tk);
    bits.params.mask = attn_mask_bits(packed, 1, 2, tq, tk);
    add.params.bias = attn_mask_add(bias, ATTN_F32, 1, 2, tq, tk);
    test_run(&call);
    test_run(&bits);
    test_run(&add);
    test_compare(&call, "boolean mask");
    test_assert_same_outputs(&bits, &call, "bits");
    test_assert_same_outputs(&add, &call, "additive 0 and -inf");
  }
}

/* Rows without a key give exact zeros and -inf, whichever mask empties them. */
void A2_empty_rows(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_spec spec = test_plain(1, 70, 66, 8, 9);
    spec.map = 1;
    test_rng rng = test_seed(50);
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    int32_t none = 0;
    uint8_t *zeros = test_mem(66);
    float *minus = test_mem(66 * sizeof *minus);
    memset(zeros, 0, 66);
    for (int j = 0; j < 66; j++) minus[j] = -INFINITY;
    if (n == 0) p->kv_len = &none;
    if (n == 1) p->q_len = &none;
    if (n == 2) p->mask = attn_mask_bool(zeros, 1, 1, 1, 66);
    if (n == 3) p->mask = attn_mask_bits(zeros, 1, 1, 1, 66);
    if (n == 4) p->bias = attn_mask_add(minus, ATTN_F32, 1, 1, 1, 66);
    if (n == 5) {
      p->causal = p->has_q_off = 1;
      p->q_off = -70;
    }
    test_run(&call);
    for (int64_t i = 0; i < 70; i++) {
      assert_true(oracle_get(&p->lse, 0, 0, i, 0) == -(double)INFINITY);
      for (int64_t c = 0; c < 9; c++) assert_true(oracle_get(&call.o, 0, 0, i, c) == 0);
      for (int64_t j = 0; j < 66; j++) assert_true(oracle_get(&p->map, 0, 0, i, j) == 0);
    }
  }
}

/* Equal finite numbers, however negative, forbid nothing. */
void A2_additive_constant_row(void **state) {
  (void)state;
  static const float shifts[] = {3.5f, -100, -1e30f};
  for (int n = 0; n < 3; n++) {
    test_spec spec = test_plain(1, 30, 75, 8, 9);
    test_rng rng = test_seed(51);
    test_call call = test_build(&spec, &rng), plain = test_again(&call);
    float *bias = test_mem(75 * sizeof *bias);
    for (int j = 0; j < 75; j++) bias[j] = shifts[n];
    call.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, 1, 75);
    test_run(&call);
    test_run(&plain);
    for (int64_t i = 0; i < 30; i++) {
      double lse = oracle_get(&call.params.lse, 0, 0, i, 0);
      double want = oracle_get(&plain.params.lse, 0, 0, i, 0) + (double)shifts[n];
      assert_true(fabs(lse - want) <= 1e-5 + 3e-7 * fabs(want));
    }
    if (n < 2) {
      test_assert_near(call.o, plain.o, 1e-4, "a constant row of bias");
    } else {
      test_fill_value(call.k, 0);
      test_call mean = test_again(&call);
      test_run(&mean);
      test_assert_near(mean.o, call.o, 4e-6, "-1e30 absorbs the scores: a plain mean");
    }
  }
}

/* The lowest finite number, a popular "almost -inf", forbids nothing: a row of it is a plain mean,
 * and beside ordinary biases it leaves no weight. One row for all queries, or a row for each. */
void A2_lowest_bias(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    const int64_t rows = n & 1 ? 30 : 1;
    test_spec spec = test_plain(1, 30, 150, 8, 9);
    test_rng rng = test_seed(53);
    test_call call = test_build(&spec, &rng), mean = test_again(&call);
    float *bias = test_mem((size_t)rows * 150 * sizeof *bias);
    for (int64_t j = 0; j < rows * 150; j++) bias[j] = n & 2 && j % 150 >= 100 ? 0 : -FLT_MAX;
    call.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, rows, 150);
    test_run(&call);
    if (n & 2) { /* as if the first hundred keys were not there */
      mean.k = test_rows(mean.k, 100, 50);
      mean.v = test_rows(mean.v, 100, 50);
    } else {
      test_fill_value(mean.k, 0);
    }
    test_run(&mean);
    test_assert_near(call.o, mean.o, 4e-6, "-FLT_MAX as a bias");
  }
}

/* The same bias as one row for all queries or as a row for each: the same bits, at every size. With
 * one key and q = 0 the LSE is the bias, so that its own rounding shows. */
void A2_bias_per_key_or_pair(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 2, 1, 8, 9);
  test_rng rng = test_seed(54);
  test_call key = test_build(&spec, &rng), pair = test_again(&key);
  test_fill_value(key.q, 0);
  test_fill_value(pair.q, 0);
  float bias[2];
  key.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, 1, 1);
  pair.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, 2, 1);
  for (int64_t n = 0; n < test_count(4000, 400); n++) {
    bias[0] = bias[1] =
        ldexpf((float)test_normal(&rng), (int)test_range(&rng, -118, n % 2 ? 100 : -104));
    test_run(&key);
    test_run(&pair);
    test_assert_same_outputs(&key, &pair, "a bias per key or per pair");
  }
}

/* Extents beside an empty one may be as large as they like. */
void A2_empty_and_huge(void **state) {
  (void)state;
  const int64_t huge = (int64_t)1 << 40;
  float x[4] = {0};
  attn_ctx ctx = test_ctx();
  attn_tensor none = attn_bhtd(x, ATTN_F32, huge, huge, 0, 1);
  attn_tensor far = attn_bhtd(x, ATTN_F32, 0, 1, INT64_MAX, 1);
  none.stride_batch = none.stride_head = far.stride_batch = far.stride_head = 0;
  assert_int_equal(attn_sdpa_workspace(none, none, none, none, NULL, &ctx), 0);
  assert_int_equal(attn_sdpa(none, none, none, none, NULL, &ctx), ATTN_OK);
  assert_int_equal(attn_merge(none, none, none, none, none, none, &ctx), ATTN_OK);
  assert_int_equal(attn_merge(far, far, far, far, far, far, &ctx), ATTN_OK);
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  p.has_rotary_dim = 1;
  p.positions_per_batch = 1;
  assert_int_equal(attn_rope_workspace(far, far, &p, &ctx), 0);
  assert_int_equal(attn_rope(far, far, &p, &ctx), ATTN_OK);
}

/* One query at a time over a growing prefix gives the rows of one causal call. */
void A2_growing_prefix(void **state) {
  (void)state;
  test_spec spec = test_plain(2, 140, 140, 24, 17);
  test_rng rng = test_seed(52);
  test_call whole = test_build(&spec, &rng);
  whole.params.causal = 1;
  test_run(&whole);
  for (int64_t i = 0; i < 140; i += test_count(1, 9)) {
    test_call step = whole;
    step.q = test_rows(whole.q, i, 1);
    step.k = test_rows(whole.k, 0, i + 1);
    step.v = test_rows(whole.v, 0, i + 1);
    step.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 17);
    step.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 1);
    test_run(&step);
    test_assert_near(step.o, test_rows(whole.o, i, 1), 3e-6, "a step of decoding");
    test_assert_near(step.params.lse, test_rows(whole.params.lse, i, 1), 3e-6, "its LSE");
  }
}

/* Forbidden keys hold NaN and infinities, in whole rows or in the last column alone: the result is
 * that of clean data, bit for bit. */
static void check_garbage(int kind, int last_column) {
  test_spec spec = test_plain(4, 135, 200, 13, 21);
  spec.k_heads = spec.v_heads = 2;
  spec.map = 1;
  test_rng rng = test_seed(53);
  test_call clean = test_build(&spec, &rng);
  attn_sdpa_params *p = &clean.params;
  int32_t lengths[1] = {150};
  uint8_t *allowed = test_mem(135 * 200);
  float *bias = test_mem(135 * 200 * sizeof *bias);
  for (int n = 0; n < 135 * 200; n++) {
    allowed[n] = n % 200 % 5 != 2 && n % 200 < 190;
    bias[n] = allowed[n] ? 0.25f : -INFINITY;
  }
  int64_t first_bad = 0, last_bad = 199;
  if (kind == 0) p->kv_len = lengths, first_bad = 150;
  if (kind == 1) p->mask = attn_mask_bool(allowed, 1, 1, 135, 200);
  if (kind == 2) p->bias = attn_mask_add(bias, ATTN_F32, 1, 1, 135, 200);
  if (kind == 3) {
    p->causal = p->has_q_off = 1; /* keys 135.. are in nobody's sight */
    first_bad = 135;
  }
  if (kind == 4) {
    p->has_q_off = 1; /* keys 0..49 lie behind every window */
    p->q_off = 60;
    test_left(p, 10);
    last_bad = 49;
  }
  test_run(&clean);
  test_call call = test_again(&clean);
  double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 3e38};
  for (int64_t j = first_bad; j <= last_bad; j++) {
    if ((kind == 1 || kind == 2) && allowed[j]) continue;
    for (int64_t h = 0; h < 2; h++) {
      if (last_column) {
        oracle_set(&call.k, 0, h, j, 12, bad[j % 4]);
        oracle_set(&call.v, 0, h, j, 20, bad[j / 4 % 4]);
      } else {
        test_fill_row(call.k, 0, h, j, bad[j % 4]);
        test_fill_row(call.v, 0, h, j, bad[j / 4 % 4]);
      }
    }
  }
  test_run(&call);
  char what[48];
  snprintf(what, sizeof what, "garbage in forbidden keys, mask %d", kind);
  test_assert_same_outputs(&call, &clean, what);
}

void A2_forbidden_garbage(void **state) {
  (void)state;
  for (int kind = 0; kind < 10; kind++) check_garbage(kind / 2, kind & 1);
}

/* Inside a tile the diagonal crosses: key 70 is forbidden to rows before 70 only. */
void A2_garbage_on_the_diagonal(void **state) {
  (void)state;
  for (int kind = 0; kind < 4; kind++) {
    test_spec spec = test_plain(1, 130, 130, 12, 9);
    test_rng rng = test_seed(54);
    test_call clean = test_build(&spec, &rng);
    attn_sdpa_params *p = &clean.params;
    uint8_t *allowed = test_mem(130 * 130);
    for (int n = 0; n < 130 * 130; n++) allowed[n] = n % 130 <= n / 130;
    p->causal = kind <= 1;
    if (kind == 1) test_left(p, 20);
    if (kind == 2) p->mask = attn_mask_bool(allowed, 1, 1, 130, 130);
    if (kind == 3) test_right(p, 0);
    test_run(&clean);
    for (int in_value = 0; in_value < 2; in_value++) {
      test_call call = test_again(&clean);
      attn_tensor bad = in_value ? call.v : call.k;
      attn_tensor copy = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 130, bad.dim);
      test_copy(copy, bad);
      for (int64_t j = 70; j < 76; j++) {
        test_fill_row(copy, 0, 0, j, j & 1 ? (double)NAN : (double)INFINITY);
      }
      *(in_value ? &call.v : &call.k) = copy;
      test_run(&call);
      test_assert_same(test_rows(call.o, 0, 70), test_rows(clean.o, 0, 70), "rows before it");
      if (kind == 1) {
        test_assert_same(test_rows(call.o, 96, 34), test_rows(clean.o, 96, 34), "rows past it");
      }
      for (int64_t i = 71; i < 90; i++) assert_true(isnan(oracle_get(&call.o, 0, 0, i, 3)));
      for (int64_t i = 0; i < (in_value ? 130 : 70); i++) {
        test_assert_same(test_rows(call.params.lse, i, 1), test_rows(clean.params.lse, i, 1),
                         "LSE");
      }
    }
  }
}

/* Work follows the allowed pairs. */
void A2_work_follows_structure(void **state) {
  (void)state;
  int64_t t = 512;
  test_spec spec = test_plain(1, t, t, 8, 8);
  test_rng rng = test_seed(55);
  test_call call = test_build(&spec, &rng);
  assert_int_equal(test_run(&call).pairs, t * t);
  call.params.causal = 1;
  int64_t pairs = test_run(&call).pairs;
  assert_in_range(pairs, t * (t + 1) / 2, t * t * 6 / 10);
  call.params.causal = 0;
  int32_t length = 100;
  call.params.kv_len = &length;
  assert_in_range(test_run(&call).pairs, 100 * t, 164 * t);
  call.params.kv_len = NULL;
  call.params.q_len = &length;
  assert_in_range(test_run(&call).pairs, 100 * t, 128 * t);

  t = test_count(4096, 1024);
  spec = test_plain(1, t, t, 8, 8);
  call = test_build(&spec, &rng);
  call.params.causal = 1;
  test_left(&call.params, 64);
  assert_in_range(test_run(&call).pairs, 60 * t, 200 * t);
  call.params.causal = 0;
  test_right(&call.params, 64);
  assert_in_range(test_run(&call).pairs, 120 * t, 264 * t);
}

/* Keys that an additive mask forbids to a whole tile are skipped as those of a boolean one are: the same
 * work and the same bits, whatever a forbidden key holds. */
void A2_bias_skips_blocks(void **state) {
  (void)state;
  test_rng rng = test_seed(56);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    const int64_t tq = n & 1 ? 200 : 3, tk = 700, per_key = n >> 1 & 1, heads = n >> 2 & 1 ? 2 : 1;
    const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    const attn_dtype dtype = types[n / 8];
    const int64_t rows = per_key ? 1 : tq;
    test_spec spec = test_plain(2, tq, tk, 10, 11);
    spec.map = 1;
    test_call call = test_build(&spec, &rng), add = test_again(&call);
    uint8_t *allowed = test_mem((size_t)(heads * rows * tk));
    float *bias = test_mem((size_t)(heads * rows * tk) * sizeof *bias);
    uint16_t *half = test_mem((size_t)(heads * rows * tk) * sizeof *half);
    const uint16_t minus = dtype == ATTN_F16 ? 0xfc00 : 0xff80;
    for (int64_t i = 0; i < heads * rows * tk; i++) { /* blocks of 128 keys: some, none, none, .. */
      const int64_t key = i % tk, block = key / 128;
      const int ok = block == 0 ? test_u64(&rng) % 2 : block == 3 || (block == 5 && key % 3 == 0);
      allowed[i] = (uint8_t)ok, bias[i] = ok ? 0 : -INFINITY, half[i] = ok ? 0 : minus;
    }
    for (int64_t j = 128; j < 256; j++)
      oracle_set(&call.k, 0, 0, j, 1, NAN), oracle_set(&call.v, 0, 0, j, 1, NAN);
    call.params.mask = attn_mask_bool(allowed, 1, heads, rows, tk);
    add.params.bias =
        attn_mask_add(dtype == ATTN_F32 ? (void *)bias : half, dtype, 1, heads, rows, tk);
    const int64_t pairs = test_run(&call).pairs;
    assert_true(pairs <= 2 * tq * (128 + 128 + 60));
    assert_int_equal(test_run(&add).pairs, pairs);
    test_compare(&call, "a boolean mask");
    test_assert_same_outputs(&add, &call, "an additive mask with the same keys");
  }
}
