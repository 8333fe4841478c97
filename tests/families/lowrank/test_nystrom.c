/* tests/families/lowrank/test_nystrom.c owns the Nystromformer: against float64, what follows from its formula, the
 * independence of heads and entries, promises and rejections. */

#include "landmarks.h"

static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void G2_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7200);
  for (int64_t n = test_count(48, 14); n-- > 0; test_mem_release()) {
    const int64_t most = n % 8 == 7 ? 90 : 30, keys = test_range(&rng, 1, most);
    const int conv = n % 3 == 1;
    landmarks_shape x = landmarks_plain(conv ? keys : test_range(&rng, 1, most), keys,
                                        test_range(&rng, 1, 9), test_range(&rng, 1, 9));
    x.batch = test_range(&rng, 1, 3), x.heads = 2 * test_range(&rng, 1, 2);
    x.k_heads = n % 2 ? x.heads : 2, x.v_heads = n % 4 < 2 ? x.heads : 1;
    x.q_type = types[n % 4 % 3], x.k_type = types[n / 2 % 4 % 3];
    x.v_type = types[n / 3 % 4 % 3], x.o_type = types[n / 5 % 4 % 3];
    x.layout = (test_layout)(n / 3 % TEST_LAYOUTS), x.size = n % 5 ? 1 : 2.5;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    landmarks *s = landmarks_build(&x, 0, &rng);
    test_where = TEST_HEAP;
    const int32_t *lens = test_lengths(x.batch, x.keys, &rng);
    const int32_t *queries = conv ? lens : test_lengths(x.batch, x.queries, &rng);
    static const int64_t iterations[] = {0, 0, 1, 3, 8};
    landmarks_set(s, n % 9 == 8 ? 0 : test_range(&rng, 1, n % 8 == 7 ? 70 : 12),
                  n % 6 == 5 ? 0.4f : 0, n % 4 > 1 ? lens : NULL,
                  (conv ? n % 4 > 1 : n % 5 > 2) ? queries : NULL);
    s->p.iterations = iterations[n % 5], s->p.has_iterations = n % 5 == 1 || n % 3 == 0;
    s->p.always = n % 7 < 4;
    s->p.by_batch = n % 4 == 3;
    if (conv)
      s->p.conv = drawn(types[n / 3 % 3], TEST_PADDED, 1, n % 2 ? x.heads : 1,
                        2 * test_range(&rng, 0, 5) + 1, 1, 0.5, &rng);
    landmarks_run(s, "nystrom");
  }
}

/* Scaled by the whole batch: a head alone has another start, and without an iteration another result. */
void G2_by_batch(void **state) {
  (void)state;
  test_rng rng = test_seed(7209);
  landmarks_shape x = landmarks_plain(40, 40, 6, 5);
  x.batch = 3;
  landmarks *s = landmarks_build(&x, 0, &rng);
  int32_t lens[3] = {40, 23, 40}; /* runs of several sizes share the sums */
  attn_tensor each = test_tensor(ATTN_F32, TEST_BHTD, 3, 2, 40, 5);
  landmarks_set(s, 8, 0, lens, lens);
  s->p.has_iterations = 1;
  landmarks_run(s, "each by itself");
  test_copy(each, s->o);
  s->p.by_batch = 1;
  landmarks_run(s, "the whole batch");
  assert_false(test_same(s->o, each));
}

/* n tokens of some entries, `percent` of which exist; entry `none` has none, entry `all` has all. */
static uint8_t *tokens(int64_t batch, int64_t n, int percent, int64_t none, int64_t all,
                       test_rng *rng) {
  uint8_t *valid = test_mem((size_t)(batch * n + 1));
  for (int64_t i = 0; i < batch * n; i++)
    valid[i] = (uint8_t)(i / n == none                        ? 0
                         : i / n == all                       ? 255
                         : test_range(rng, 1, 100) <= percent ? 1 + i % 3
                                                              : 0);
  return valid;
}

/* Rows that do not exist, as NaN. */
static void spoil(attn_tensor t, const uint8_t *valid) {
  for (int64_t n = 0; n < t.batch * t.heads * t.len; n++)
    if (!valid[n / t.len / t.heads * t.len + n % t.len])
      test_fill_row(t, n / t.len / t.heads, n / t.len % t.heads, n % t.len, (double)NAN);
}

void G2_valid(void **state) {
  (void)state;
  test_rng rng = test_seed(7210);
  for (int64_t n = test_count(48, 14); n-- > 0; test_mem_release()) {
    const int64_t len = test_range(&rng, 1, n % 8 == 7 ? 300 : 40), conv = n % 3 == 1;
    landmarks_shape x = landmarks_plain(len, len, test_range(&rng, 1, 9), test_range(&rng, 1, 9));
    x.batch = test_range(&rng, 1, 4), x.heads = 2, x.v_heads = 1 + n % 2;
    x.q_type = types[n % 3], x.v_type = types[n / 3 % 3], x.o_type = types[n / 2 % 4 % 3];
    landmarks *s = landmarks_build(&x, 0, &rng);
    const int32_t *lens = test_lengths(x.batch, len, &rng);
    landmarks_set(s, test_range(&rng, 1, n % 8 == 7 ? 5 : 12), 0, n % 4 > 1 ? lens : NULL,
                  (conv ? n % 4 > 1 : n % 5 > 2) ? lens : NULL);
    s->p.always = n % 7 < 4, s->p.by_batch = n % 4 == 3;
    if (conv)
      s->p.conv = drawn(ATTN_F32, TEST_BHTD, 1, 2, 2 * test_range(&rng, 0, 5) + 1, 1, 0.5, &rng);
    s->p.valid = tokens(x.batch, len, n % 2 ? 30 : 80, n % 5 - 1, n % 3 - 1, &rng);
    landmarks_run(s, "valid");
    attn_tensor before = test_tensor(s->o.dtype, TEST_BHTD, x.batch, 2, len, x.dv);
    test_copy(before, s->o);
    spoil(s->q, s->p.valid), spoil(s->k, s->p.valid), spoil(s->v, s->p.valid);
    promise_run(&s->does);
    test_assert_same(s->o, before, "what does not exist is not used");
  }
  /* all of them: the call without */
  landmarks_shape x = landmarks_plain(50, 50, 6, 5);
  landmarks *s = landmarks_build(&x, 0, &rng);
  landmarks_set(s, 7, 0, NULL, NULL);
  promise_run(&s->does);
  attn_tensor plain = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 50, 5);
  test_copy(plain, s->o);
  s->p.valid = tokens(1, 50, 100, -1, 0, &rng);
  promise_run(&s->does);
  test_assert_same(s->o, plain, "all valid");
  /* whole segments: the call on the others */
  uint8_t *valid = tokens(1, 50, 100, -1, 0, &rng);
  memset(valid + 10, 0, 10);
  s->p.landmarks = 5, s->p.valid = valid;
  promise_run(&s->does);
  landmarks *t = landmarks_build(&x, 0, &rng);
  attn_tensor cut[3], *from[] = {&s->q, &s->k, &s->v};
  for (int i = 0; i < 3; i++) {
    cut[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, from[i]->dim);
    test_copy(test_rows(cut[i], 0, 10), test_rows(*from[i], 0, 10));
    test_copy(test_rows(cut[i], 10, 30), test_rows(*from[i], 20, 30));
  }
  t->q = cut[0], t->k = cut[1], t->v = cut[2];
  t->o = output(ATTN_F32, TEST_BHTD, 1, 2, 40, 5, &t->does.block[0]);
  landmarks_set(t, 4, 0, NULL, NULL);
  promise_run(&t->does);
  test_assert_near(test_rows(s->o, 0, 10), test_rows(t->o, 0, 10), 1e-5, "cut");
  test_assert_near(test_rows(s->o, 20, 30), test_rows(t->o, 10, 30), 1e-5, "cut");
}

/* The paper's sizes, and one row more. */
void G2_defaults(void **state) {
  (void)state;
  test_rng rng = test_seed(7201);
  for (int64_t more = 0; more < 2; more++) {
    landmarks_shape x = landmarks_plain(128 + more, 128 + more, 32, 8);
    x.heads = x.k_heads = x.v_heads = 1;
    landmarks *s = landmarks_build(&x, 0, &rng);
    s->p.conv = drawn(ATTN_F32, TEST_BHTD, 1, 1, 33, 1, 0.2, &rng);
    landmarks_run(s, "64 landmarks");
  }
}

/* As many landmarks as tokens: the shortcut has the bits of attn_sdpa, and without it the result comes
 * near it as the iterations go on. */
void G2_full(void **state) {
  (void)state;
  test_rng rng = test_seed(7202);
  landmarks_shape x = landmarks_plain(12, 12, 12, 5);
  landmarks *s = landmarks_build(&x, 0, &rng);
  attn_tensor exact = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 12, 5);
  attn_ctx ctx = test_ctx();
  landmarks_peaked(s, &rng);
  assert_int_equal(attn_sdpa(exact, s->q, s->k, s->v, NULL, &ctx), ATTN_OK);
  promise_run(&s->does);
  test_assert_same(s->o, exact, "64 landmarks, 12 tokens");
  double last = INFINITY;
  s->p.always = 1;
  for (int64_t n = 1; n < 8; n += 2) {
    double far = 0;
    s->p.iterations = n;
    landmarks_run(s, "12 landmarks");
    for (int64_t i = 0; i < 2 * 12 * 5; i++)
      far = fmax(far, fabs(oracle_get(&s->o, 0, i / 60, i / 5 % 12, i % 5) -
                           oracle_get(&exact, 0, i / 60, i / 5 % 12, i % 5)));
    assert_true(far < last / 2 || far < 2e-5);
    last = far;
  }
  assert_true(last < 2e-5);
}

/* Values of 1 give 1 when the inverse has converged; one landmark gives all rows what it sees; an
 * impulse adds v. */
void G2_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(7203);
  landmarks_shape x = landmarks_plain(24, 24, 8, 3);
  landmarks *s = landmarks_build(&x, 0, &rng);
  attn_tensor v = s->v, ones = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 24, 3), first = ones;
  test_fill_value(ones, 1);
  landmarks_peaked(s, &rng);
  s->v = ones;
  landmarks_set(s, 8, 2, NULL, NULL), s->p.iterations = 12;
  /* a segment is a token three times over, so that A is far from singular */
  for (int64_t i = 0; i < 24; i++) {
    test_copy(test_rows(s->q, i, 1), test_rows(s->q, i / 3, 1));
    test_copy(test_rows(s->k, i, 1), test_rows(s->q, i, 1));
  }
  landmarks_run(s, "values of 1");
  test_assert_near(s->o, ones, 1e-5, "values of 1");
  s = landmarks_build(&x, 0, &rng);
  s->v = v;
  landmarks_set(s, 1, 0, NULL, NULL);
  landmarks_run(s, "one landmark");
  for (int64_t i = 1; i < 24; i++)
    test_assert_same(test_rows(s->o, i, 1), test_rows(s->o, 0, 1), "one landmark");
  landmarks_set(s, 5, 0, NULL, NULL);
  landmarks_run(s, "no impulse");
  first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 24, 3);
  test_copy(first, s->o);
  s->p.conv = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 1);
  test_fill_value(s->p.conv, 0);
  oracle_set(&s->p.conv, 0, 0, 2, 0, 1);
  landmarks_run(s, "an impulse");
  for (int64_t i = 0; i < 24 * 3; i++)
    value_check(oracle_get(&s->o, 0, 1, i / 3, i % 3),
                oracle_get(&first, 0, 1, i / 3, i % 3) + oracle_get(&v, 0, 1, i / 3, i % 3), 2e-6,
                ATTN_F32, "an impulse", 0, 1, i / 3, i % 3);
}

/* A batch entry with lengths has the bits of the call on tensors cut to them, whatever stands beyond;
 * so have the entries and heads of a batch, whatever the others hold. */
void G2_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(7204);
  static const int32_t keys[] = {37, 37, 5, 50}, queries[] = {41, 41, 60, 3};
  for (int solve = 0; solve < 2; solve++) {
    landmarks_shape x = landmarks_plain(60, 50, 7, 5);
    x.batch = 4;
    landmarks *s = landmarks_build(&x, solve, &rng);
    landmarks_set(s, 9, 0, keys, queries);
    test_fill_row(s->q, 3, 1, 0, (double)NAN);
    test_fill_row(s->v, 1, 0, 3, 1e3);
    for (int64_t b = 0; b < 3; b++)
      for (int64_t h = 0; h < 2; h++) {
        test_fill_row(s->k, b, h, keys[b], (double)NAN);
        test_fill_row(s->v, b, h, keys[b], (double)NAN);
        if (queries[b] < 60) test_fill_row(s->q, b, h, queries[b], (double)NAN);
      }
    if (solve) test_fill_row(s->q, 3, 1, 0, 1); /* NaN has no solution */
    promise_run(&s->does);
    for (int64_t b = 0; b < 4; b++)
      for (int64_t h = 0; h < 2; h++) {
        landmarks one = *s;
        attn_ctx ctx = test_ctx();
        one.q = test_rows(test_one(s->q, b, 1, h, 1), 0, queries[b]);
        one.k = test_rows(test_one(s->k, b, 1, h, 1), 0, keys[b]);
        one.v = test_rows(test_one(s->v, b, 1, h, 1), 0, keys[b]);
        one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, queries[b], 5);
        landmarks_set(&one, 9, 0, NULL, NULL);
        assert_int_equal(s->does.call(&one, &ctx), ATTN_OK);
        const attn_tensor o = test_one(s->o, b, 1, h, 1);
        test_assert_same(test_rows(o, 0, queries[b]), one.o, "alone");
        assert_int_equal(isnan(oracle_get(&o, 0, 0, 0, 0)), !solve && b == 3 && h == 1);
        for (int64_t i = queries[b]; i < 60; i++)
          for (int64_t c = 0; c < 5; c++) assert_true(oracle_get(&o, 0, 0, i, c) == 0);
      }
  }
}

/* Rows that are all alike: A has rank one and no inverse, and the result is finite. */
void G2_singular(void **state) {
  (void)state;
  test_rng rng = test_seed(7205);
  landmarks_shape x = landmarks_plain(70, 50, 4, 3);
  landmarks *s = landmarks_build(&x, 0, &rng);
  for (int64_t i = 0; i < 70; i++) test_fill_row(s->q, 0, 0, i, 0.5);
  for (int64_t i = 0; i < 50; i++) test_fill_row(s->k, 0, 1, i, 0.25);
  landmarks_set(s, 30, 0, NULL, NULL);
  landmarks_run(s, "equal rows");
}

void G2_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(7206);
  static const int32_t none[] = {0, 4}, some[] = {6, 0};
  for (int solve = 0; solve < 2; solve++) {
    landmarks_shape x = landmarks_plain(6, 0, 3, 2);
    landmarks_run(landmarks_build(&x, solve, &rng), "no keys");
    x = landmarks_plain(0, 6, 3, 2);
    landmarks_run(landmarks_build(&x, solve, &rng), "no queries");
    x = landmarks_plain(6, 6, 3, 2), x.batch = 0;
    landmarks_run(landmarks_build(&x, solve, &rng), "no batch");
    x.batch = 2;
    landmarks *s = landmarks_build(&x, solve, &rng);
    landmarks_set(s, 2, 0, none, some);
    landmarks_run(s, "lengths of 0");
    if (solve) continue;
    landmarks_set(s, 2, 0, none, none);
    s->p.conv = drawn(ATTN_F32, TEST_BHTD, 1, 1, 9, 1, 1, &rng);
    landmarks_run(s, "lengths of 0, convolution");
  }
}

void G2_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7207);
  static const int32_t lens[] = {170, 20, 20};
  landmarks_shape x = landmarks_plain(170, 170, 6, 5);
  x.batch = 3, x.heads = 4, x.o_type = ATTN_F16;
  landmarks *s = landmarks_build(&x, 0, &rng);
  landmarks_set(s, 20, 0, lens, lens);
  s->p.conv = drawn(ATTN_F32, TEST_BHTD, 1, 4, 5, 1, 1, &rng);
  landmarks_run(s, "before the promises");
  promise_keep(&s->does);
  s->p.valid = tokens(3, 170, 60, -1, 2, &rng);
  promise_keep(&s->does);
}

void G2_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(7208);
  static const int32_t many[] = {10}, few[] = {8};
  for (int n = 0; n < 29; n++, test_mem_release()) {
    landmarks_shape x = landmarks_plain(9, 9, 4, 3);
    landmarks *s = landmarks_build(&x, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    landmarks_set(s, 4, 0, NULL, NULL);
    s->p.conv = drawn(ATTN_F32, TEST_BHTD, 1, 2, 3, 1, 1, &rng);
    switch (n) {
      case 0: s->p.landmarks = -1, want = ATTN_E_RANGE, word = "landmarks"; break;
      case 1: s->p.iterations = -1, want = ATTN_E_RANGE, word = "iterations"; break;
      case 2: s->p.conv.len = 2, word = "conv"; break;
      case 3: s->p.conv.len = 0, word = "conv"; break;
      case 4: s->p.conv.dim = 3, word = "conv"; break;
      case 5: s->p.conv.heads = 3, s->p.conv.stride_head = 0, word = "conv"; break;
      case 6: s->p.kv_len = few, word = "conv"; break;
      case 7: s->q.len = s->o.len = 8, word = "conv"; break;
      case 8: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 9: s->p.kv_len = many, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 10: s->p.q_len = many, want = ATTN_E_RANGE, word = "q_len"; break;
      case 11: s->k.dim = 3, word = "k must"; break;
      case 12: s->v.len = 8, word = "v must"; break;
      case 13: s->o.dim = 2, word = "o must"; break;
      case 14: s->o.len = 8, word = "o must"; break;
      case 15: s->k.batch = 2, s->k.stride_batch = 0, word = "k must"; break;
      case 16: s->k.heads = 3, s->k.stride_head = 0, want = ATTN_E_HEADS, word = "k must"; break;
      case 17: s->v.heads = 0, want = ATTN_E_HEADS, word = "v must"; break;
      case 18: s->q.heads = s->o.heads = 0, word = "heads"; break;
      case 19: s->q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 20: s->o.data = NULL, want = ATTN_E_NULL, word = "o.data"; break;
      case 21: s->k.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "k.dtype"; break;
      case 22: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      case 23: s->v = s->o, want = ATTN_E_OVERLAP, word = "o "; break;
      case 26:
        s->q.len = s->o.len = 8, s->p.conv.data = NULL, s->p.valid = (const uint8_t *)"12345678";
        word = "valid";
        break;
      case 27: s->p.valid = s->o.data, want = ATTN_E_OVERLAP, word = "o "; break;
      case 24:
        s->p.kv_len = (const int32_t *)((const char *)few + 1);
        want = ATTN_E_ALIGN, word = "kv_len";
        break;
      case 25:
        s->p.conv.len = ((int64_t)1 << 31) + 1, s->p.conv.stride_len = 0;
        want = ATTN_E_OVERFLOW, word = "conv.len";
        break;
      default:
        s->p.conv = s->o, s->p.conv.heads = 1, s->p.conv.len = 3, s->p.conv.dim = 1;
        want = ATTN_E_OVERLAP, word = "o ";
        break;
    }
    promise_reject(&s->does, want, word);
  }
}
