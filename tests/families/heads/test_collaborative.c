/* tests/families/heads/test_collaborative.c owns collaborative heads: shared projections, mixed for each head. */

#include "multihead.h"

static multihead_shape shared(int64_t queries, int64_t heads, int64_t width, int64_t dv,
                              int content) {
  multihead_shape x = multihead_plain(queries, heads, width, dv);
  x.shared = 1, x.content = content, x.dmv = 0;
  return x;
}

void I4_random(void **state) {
  (void)state;
  test_rng rng = test_seed(400);
  for (int64_t n = test_count(36, 12); n-- > 0; test_mem_release()) {
    multihead_shape x = shared(1, 1, 1, 1, n % 2 == 0);
    x.batch = test_range(&rng, 1, 2);
    x.queries = test_range(&rng, 1, n % 5 ? 20 : 90);
    x.keys = n % 3 ? test_range(&rng, 1, n % 4 ? 25 : 140) : 0;
    x.dm = test_range(&rng, 1, 24), x.dmk = test_range(&rng, 1, 24);
    x.dmo = test_range(&rng, 1, 30), x.heads = test_range(&rng, 1, 5);
    x.dk = test_range(&rng, 1, n % 6 ? 20 : 90), x.dv = test_range(&rng, 1, 12);
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
    x.y_type = (attn_dtype)(n / 2 % 3), x.each_type = (attn_dtype)(n / 4 % 3);
    x.biases = (int)test_range(&rng, 0, 15), x.want = (int)test_range(&rng, 1, 15);
    if (!(x.want & (WANT_Y | WANT_EACH))) x.want |= WANT_Y;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    multihead *s = multihead_build(&x, &rng);
    test_where = TEST_HEAP;
    if (n % 7 == 3) s->p.attention.scale = 0.3f;
    if (n % 7 == 5) s->p.attention.scale = ATTN_ZERO;
    multihead_check(s, 4e-5, "collaborative");
  }
}

/* Few queries by row and in lanes, many, and a schedule of lists; masks beside the content bias. */
void I4_options(void **state) {
  (void)state;
  for (int n = 0; n < 9; n++, test_mem_release()) {
    test_rng rng = test_seed(420 + (uint64_t)n);
    multihead_shape x = shared(n < 3 ? 3 : 37, 3, 20, 6, n % 2);
    x.batch = 2, x.keys = 40;
    if (n < 3) x.want = WANT_Y | WANT_EACH | WANT_LSE; /* a map is not for few queries */
    multihead *s = multihead_build(&x, &rng);
    attn_sdpa_params *a = &s->p.attention;
    if (n % 3 == 0) a->causal = 1;
    if (n % 3 == 1) a->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 2, 1, x.queries, 40, &rng);
    if (n % 3 == 2) a->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 3, x.queries, 40, &rng);
    if (n > 5) a->kv_len = test_lengths(2, 40, &rng);
    if (n == 4 || n == 7) a->alibi = test_floats(3, 0.1, &rng);
    multihead_check(s, 4e-5, "options");
  }
}

/* Key lists and runs of a schedule: what a mask of the same pairs gives. */
void I4_schedule(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    test_rng rng = test_seed(440 + (uint64_t)n);
    multihead_shape x = shared(80, 3, 20, 6, 1);
    multihead *s = multihead_build(&x, &rng);
    attn_mask pairs = test_mask(ATTN_MASK_BITS, ATTN_F32, 1, 1, 80, 80, &rng);
    uint8_t *bits = test_mem(800);
    for (int64_t i = 0; i < 80; i++) {
      for (int64_t j = 0; j < 80; j++) {
        const int on = n ? j / 16 == i / 16 : test_range(&rng, 0, 15) == 0;
        bits[10 * i + j / 8] = (uint8_t)(j % 8 ? bits[10 * i + j / 8] | on << j % 8 : on);
      }
    }
    pairs = attn_mask_bits(bits, 1, 1, 80, 80);
    const attn_pattern same = attn_pattern_bitmap(bits, 10);
    attn_schedule schedule;
    attn_ctx ctx = test_ctx();
    memset(&schedule, 0, sizeof schedule);
    assert_int_equal(attn_schedule_build(&schedule, &same, 3, 80, 80, NULL, &ctx), ATTN_OK);
    s->p.attention.schedule = &schedule;
    promise_run(&s->does);
    attn_schedule_free(&schedule);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 80, x.dmo);
    attn_tensor each = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 80, 6);
    test_copy(y, s->y);
    test_copy(each, s->p.each);
    s->p.attention.schedule = NULL, s->p.attention.mask = pairs;
    multihead_check(s, 4e-5, "mask");
    test_assert_near(s->y, y, 2e-5, "schedule");
    test_assert_near(s->p.each, each, 2e-5, "schedule");
  }
}

/* With the block indicator as mix it is attn_multihead, and with W_c = W_k,h b_q,h its query bias. */
void I4_multihead(void **state) {
  (void)state;
  test_rng rng = test_seed(430);
  const int64_t h = 3, dk = 5;
  multihead_shape x = shared(21, h, h * dk, 4, 1);
  multihead *s = multihead_build(&x, &rng);
  attn_tensor b_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, h * dk, 1, &rng);
  for (int64_t n = 0; n < h; n++) {
    for (int64_t c = 0; c < h * dk; c++) oracle_set(&s->mix, 0, 0, n, c, c / dk == n ? 1 : 0);
    for (int64_t i = 0; i < s->w_c.len; i++) {
      double sum = 0;
      for (int64_t c = n * dk; c < (n + 1) * dk; c++)
        sum += oracle_get(&s->p.w_k, 0, 0, i, c) * oracle_get(&b_q, 0, 0, 0, c);
      oracle_set(&s->w_c, 0, 0, i, n, sum);
    }
  }
  promise_run(&s->does);
  multihead whole = *s;
  whole.does.scene = &whole, whole.mix = whole.w_c = absent();
  whole.p.b_q = b_q;
  whole.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 21, x.dmo);
  whole.p.each = test_tensor(ATTN_F32, TEST_BHTD, 1, h, 21, 4);
  whole.p.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, h, 21, 1);
  whole.p.attention.map = test_tensor(ATTN_F32, TEST_BHTD, 1, h, 21, 21);
  promise_run(&whole.does);
  test_assert_near(s->y, whole.y, 2e-5, "y");
  test_assert_near(s->p.each, whole.p.each, 2e-5, "each");
  test_assert_near(s->p.attention.map, whole.p.attention.map, 2e-5, "map");
  test_assert_near(s->p.attention.lse, whole.p.attention.lse, 2e-5, "lse");
}

/* A channel's factor may move from w_q to mix; channels may change places; mix = 0 is uniform. */
void I4_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(431);
  multihead_shape x = shared(18, 4, 3, 5, 0); /* Dk below H */
  multihead *s = multihead_build(&x, &rng);
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 18, x.dmo);
  test_copy(y, s->y);
  for (int64_t i = 0; i < x.dm; i++)
    oracle_set(&s->p.w_q, 0, 0, i, 1, 4 * oracle_get(&s->p.w_q, 0, 0, i, 1));
  for (int64_t h = 0; h < 4; h++)
    oracle_set(&s->mix, 0, 0, h, 1, oracle_get(&s->mix, 0, 0, h, 1) / 4);
  promise_run(&s->does);
  test_assert_same(s->y, y, "a power of 2 moved");
  attn_tensor *all[3] = {&s->p.w_q, &s->p.w_k, &s->mix};
  for (int n = 0; n < 3; n++) {
    for (int64_t i = 0; i < all[n]->len; i++) {
      const double c0 = oracle_get(all[n], 0, 0, i, 0);
      oracle_set(all[n], 0, 0, i, 0, oracle_get(all[n], 0, 0, i, 2));
      oracle_set(all[n], 0, 0, i, 2, c0);
    }
  }
  promise_run(&s->does);
  test_assert_near(s->y, y, 1e-5, "channels in another order");
  test_fill_value(s->mix, 0);
  promise_run(&s->does);
  for (int64_t r = 0; r < 4 * 18; r++) {
    value_check(oracle_get(&s->p.attention.lse, 0, r / 18, r % 18, 0), log(18.0), 1e-6, ATTN_F32,
                "uniform", 0, r / 18, r % 18, 0);
    value_check(oracle_get(&s->p.attention.map, 0, r / 18, r % 18, r % 7), 1.0 / 18, 1e-7, ATTN_F32,
                "uniform", 0, r / 18, r % 18, r % 7);
  }
}

/* Sequences end to end are calls of their own, with a query each or many. */
void I4_ragged(void **state) {
  (void)state;
  static const int64_t at[] = {0, 3, 3, 22}, keys[] = {0, 9, 11, 40};
  test_rng rng = test_seed(434);
  multihead_shape x = shared(25, 3, 7, 5, 1);
  x.keys = 44, x.want = WANT_Y | WANT_EACH;
  multihead *s = multihead_build(&x, &rng);
  s->p.attention.ragged.sequences = 3, s->p.attention.ragged.q_indptr = at,
  s->p.attention.ragged.kv_indptr = keys;
  promise_run(&s->does);
  multihead own = *s;
  memset(&own.p.attention.ragged, 0, sizeof own.p.attention.ragged);
  own.does.scene = &own, own.p.each = absent();
  for (int n = 0; n < 3; n += 2) {
    own.x = test_rows(s->x, at[n], at[n + 1] - at[n]);
    own.x_k = test_rows(s->x_k, keys[n], keys[n + 1] - keys[n]);
    own.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, own.x.len, x.dmo);
    promise_run(&own.does);
    test_assert_same(own.y, test_rows(s->y, at[n], own.x.len), "sequence");
  }
  for (int64_t i = 22; i < 25; i++)
    test_assert_same(test_rows(s->y, i, 1), s->p.b_o, "no sequence");
}

void I4_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(432);
  for (int n = 0; n < 2; n++) {
    multihead_shape x = shared(n ? 2 : 100, 4, 30, 12, 1);
    x.batch = 2, x.keys = 70, x.y_type = ATTN_F16, x.each_type = ATTN_BF16;
    promise_keep(&multihead_build(&x, &rng)->does);
  }
}

void I4_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(433);
  for (int n = 0; n < 13; n++, test_mem_release()) {
    multihead_shape x = shared(9, 4, 6, 5, 1);
    x.keys = 8;
    multihead *s = multihead_build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->mix.len = 3, word = "mix"; break;
      case 1: s->mix.dim = 5, word = "mix"; break;
      case 2: s->p.w_k.dim = 5, word = "w_k must be [1, 1, x_k.dim, the width of w_q]"; break;
      case 3: s->w_c.dim = 3, word = "w_c"; break;
      case 4: s->w_c.len = 8, word = "w_c"; break;
      case 5: s->p.w_v.dim = 19, want = ATTN_E_HEADS, word = "must divide the width of w_v"; break;
      case 6: s->p.w_o.len = 19, word = "w_o"; break;
      case 7: s->y = s->mix, s->y.len = 9, want = ATTN_E_SHAPE, word = "y"; break;
      case 8:
        s->p.attention.relative.keys = drawn(ATTN_F32, TEST_BHTD, 1, 1, 3, 6, 1, &rng);
        want = ATTN_E_RANGE, word = "w_c";
        break;
      case 9: s->p.w_v.len = 8, word = "w_v must be [1, 1, x_k.dim, heads * dv]"; break;
      case 10: s->p.heads = -1, word = "params.heads must"; break;
      case 11:
        s->p.attention.compute = ATTN_COMPUTE_F16, want = ATTN_E_VALUE, word = "params.compute";
        break;
      default: s->p.attention.softcap = -1, want = ATTN_E_VALUE, word = "softcap"; break;
    }
    promise_reject(&s->does, want, word);
  }
  multihead_shape x = shared(3, 2, 2, 2, 0);
  multihead *s = multihead_build(&x, &rng);
  attn_ctx ctx = test_ctx();
  attn_collaborative_params p;
  assert_int_equal(attn_collaborative(s->y, s->x, absent(), NULL, &ctx), ATTN_E_NULL);
  memset(&p, 0, sizeof p);
  assert_int_equal(attn_collaborative(s->y, s->x, absent(), &p, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "mix"));
}
