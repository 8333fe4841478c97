/* tests/families/maps/test_synthesizer.c owns synthesizer attention: every source and mixtures against float64, what
 * follows from their formulas, promises and rejections. */

#include "synthesizer.h"

/* ---- random shapes --------------------------------------------------------------------------*/

static void random_calls(uint64_t seed, int64_t times, int kinds, int sources) {
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  test_rng rng = test_seed(seed);
  for (int64_t n = times; n-- > 0; test_mem_release()) {
    const int64_t keys = test_range(&rng, 1, n % 6 ? 30 : 290);
    synth_shape x = synth_plain(test_range(&rng, 1, n % 5 ? 20 : 90), keys);
    x.off = test_range(&rng, 0, 4);
    if (x.queries <= keys && n % 3) x.off = keys - x.queries;
    x.batch = test_range(&rng, 1, 3), x.v_heads = test_range(&rng, 1, 2);
    x.heads = x.v_heads * test_range(&rng, 1, 2), x.dv = test_range(&rng, 1, n % 7 ? 9 : 70);
    x.type = types[n % 4 % 3], x.v_type = types[n / 2 % 4 % 3], x.o_type = types[n / 3 % 4 % 3];
    x.outputs = (int)(n / 2 % 4), x.vary = (int)test_range(&rng, 0, 63);
    attn_synthesizer_kind kind[ATTN_SYNTHESIZER_MOST];
    const int count = (int)test_range(&rng, sources > 1 ? 2 : 1, sources);
    for (int i = 0; i < count; i++)
      kind[i] = (attn_synthesizer_kind)(kinds + (int)test_range(&rng, 0, sources > 1 ? 4 : 1));
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    synth_scene *s = synth_build(&x, count, kind, &rng);
    test_where = TEST_HEAP;
    s->p.causal = n % 4 == 1;
    if (n % 5 == 1) s->p.window = attn_window_of(test_range(&rng, -1, 9), -1);
    if (n % 5 == 2) s->p.window = attn_window_of(-1, test_range(&rng, -1, 9));
    if (n % 5 == 3) s->p.kv_len = test_lengths(x.batch, keys, &rng);
    if (n % 7 == 3) s->p.q_len = test_lengths(x.batch, x.queries, &rng);
    if (n % 3 == 2)
      s->p.mask = test_mask(n % 2 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32, x.batch, x.heads,
                            x.queries, keys, &rng);
    if (n % 4 == 3)
      s->p.bias = test_mask(ATTN_MASK_ADD, x.type, x.batch, x.heads, x.queries, keys, &rng);
    synth_run(s, "synthesizer");
  }
}

void H9_random(void **state) {
  (void)state;
  random_calls(9000, test_count(60, 12), ATTN_SYNTHESIZER_RANDOM, 1);
}

void H10_random(void **state) {
  (void)state;
  random_calls(9001, test_count(60, 12), ATTN_SYNTHESIZER_DENSE, 1);
}

void H10_mixtures(void **state) {
  (void)state;
  random_calls(9002, test_count(60, 12), 0, 5);
}

/* ---- what follows from the formulas ---------------------------------------------------------*/

static const attn_synthesizer_kind random_kind = ATTN_SYNTHESIZER_RANDOM;

void H9_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(9010);
  synth_shape x = synth_plain(20, 20);
  x.v_heads = 1, x.outputs = 1;
  synth_scene *s = synth_build(&x, 1, &random_kind, &rng);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 5);
  promise_run(&s->does);
  test_copy(first, s->o);
  /* a constant added to a row of r changes no output */
  for (int64_t h = 0; h < s->source[0].r.heads; h++)
    for (int64_t i = 0; i < 20; i++)
      for (int64_t j = 0; j < 20; j++)
        oracle_set(&s->source[0].r, 0, h, i, j,
                   synth_get(&s->source[0].r, 0, h, i, j) + (double)(i % 3) - 1);
  promise_run(&s->does);
  test_assert_near(s->o, first, 1e-5, "rows plus constants");
  /* linear in v */
  test_copy(first, s->o);
  for (int64_t j = 0; j < 20; j++)
    for (int64_t c = 0; c < 5; c++)
      oracle_set(&s->v, 0, 0, j, c, -4 * synth_get(&s->v, 0, 0, j, c));
  promise_run(&s->does);
  for (int64_t n = 0; n < 2 * 20 * 5; n++)
    assert_true(synth_get(&s->o, 0, n / 100, n / 5 % 20, n % 5) ==
                -4 * synth_get(&first, 0, n / 100, n / 5 % 20, n % 5));
  /* zeros give the mean */
  test_fill_value(s->source[0].r, 0);
  promise_run(&s->does);
  for (int64_t c = 0; c < 5; c++) {
    double mean = 0;
    for (int64_t j = 0; j < 20; j++) mean += synth_get(&s->v, 0, 0, j, c) / 20;
    value_check(synth_get(&s->o, 0, 1, 3, c), mean, 1e-5, ATTN_F32, "mean", 0, 1, 3, c);
  }
  /* factors give what their product gives */
  synth_scene *f = synth_one(&x, ATTN_SYNTHESIZER_RANDOM_FACTORED, &rng);
  f->v = s->v;
  promise_run(&f->does);
  attn_synthesizer_source *c = &f->source[0];
  for (int64_t n = 0; n < 2 * 20 * 20; n++) {
    double sum = 0;
    for (int64_t d = 0; d < c->r1.dim; d++)
      sum +=
          synth_get(&c->r1, 0, n / 400, n / 20 % 20, d) * synth_get(&c->r2, 0, n / 400, n % 20, d);
    oracle_set(&s->source[0].r, 0, n / 400, n / 20 % 20, n % 20, sum);
  }
  promise_run(&s->does);
  test_assert_near(s->o, f->o, 1e-5, "factors");
}

/* Positions: the last query alone, any query alone, and columns that are too many. A batch entry alone
 * has the bits of the batch. */
void H9_parts(void **state) {
  (void)state;
  for (int kind = 0; kind < ATTN_SYNTHESIZER_COUNT; kind++) {
    test_rng rng = test_seed(9020);
    synth_shape x = synth_plain(30, 150);
    x.batch = 3, x.outputs = 1, x.vary = 5;
    synth_scene *s = synth_one(&x, (attn_synthesizer_kind)kind, &rng);
    promise_run(&s->does);
    for (int64_t i = 0; i < 30; i += 29) {
      synth_scene part = *s;
      attn_synthesizer_source *c = &part.source[0];
      if (c->x.data) c->x = test_rows(c->x, i, 1);
      if (c->q.data) c->q = test_rows(c->q, i, 1);
      part.p.sources = part.source, part.p.lse = absent();
      part.p.has_q_off = i != 29, part.p.q_off = i != 29 ? 120 + i : 0;
      part.o = test_tensor(ATTN_F32, TEST_BHTD, 3, 2, 1, x.dv);
      attn_ctx ctx = test_ctx();
      assert_int_equal(synth_call(&part, &ctx), ATTN_OK);
      test_assert_near(part.o, test_rows(s->o, i, 1), 1e-5, "one query");
    }
    for (int64_t b = 0; b < 3; b++) {
      synth_scene part = *s;
      attn_synthesizer_source *c = &part.source[0];
      if (c->x.data) c->x = test_one(c->x, b, 1, 0, c->x.heads);
      if (c->q.data) c->q = test_one(c->q, b, 1, 0, 2), c->k = test_one(c->k, b, 1, 0, 2);
      part.p.sources = part.source, part.v = test_one(s->v, b, 1, 0, 2);
      part.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, x.dv);
      part.p.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 1);
      attn_ctx ctx = test_ctx();
      assert_int_equal(synth_call(&part, &ctx), ATTN_OK);
      test_assert_same(part.o, test_one(s->o, b, 1, 0, 2), "a batch entry alone");
      test_assert_same(part.p.lse, test_one(s->p.lse, b, 1, 0, 2), "a batch entry alone, lse");
    }
  }
}

/* Batch entries of equal maps, and what makes them unequal; widths from which on each is by itself. */
void H9_batches(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(9110);
    synth_shape x = synth_plain(33, 140);
    x.batch = 3, x.outputs = n == 5 ? 3 : 1, x.dv = n == 4 ? 130 : n == 3 ? 90 : 5;
    x.o_type = n % 2 ? ATTN_BF16 : ATTN_F32;
    synth_scene *s = synth_one(&x, (attn_synthesizer_kind)(n % 2), &rng);
    static const int32_t queries[3] = {33, 7, 0}, keys[3] = {140, 3, 0};
    if (n == 0) s->p.q_len = queries;
    if (n == 1) s->p.kv_len = keys;
    if (n == 2) s->p.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 3, 1, 33, 140, &rng);
    if (n == 2) s->p.bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 3, 1, 33, 140, &rng);
    synth_run(s, "batches");
  }
}

/* -inf in r or in the bias forbids a pair, whatever the other and the values hold. */
void H9_minus_infinity(void **state) {
  (void)state;
  test_rng rng = test_seed(9120);
  synth_shape x = synth_plain(40, 40);
  synth_scene *s = synth_one(&x, random_kind, &rng);
  float bias[40] = {0};
  bias[5] = -(float)INFINITY;
  s->p.bias = attn_mask_add(bias, ATTN_F32, 1, 1, 1, 40);
  for (int pair = 0; pair < 3; pair++) {
    if (pair == 2) memset(&s->p.bias, 0, sizeof s->p.bias);
    if (pair == 1) s->p.bias.q_len = 40, s->p.bias.stride_q = 0;
    attn_tensor *r = &s->source[0].r;
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 40; i++) {
        oracle_set(r, 0, h, i, 3, -(double)INFINITY);
        oracle_set(r, 0, h, i, 5, pair == 2 ? -(double)INFINITY : pair ? (double)NAN : 1);
      }
    for (int64_t j = 3; j < 6; j += 2) {
      test_fill_row(s->v, 0, 0, j, (double)NAN);
      test_fill_row(s->v, 0, 1, j, (double)INFINITY);
    }
    promise_run(&s->does);
    for (int64_t i = 0; i < 40; i++)
      for (int64_t h = 0; h < 2; h++) {
        assert_true(isfinite(synth_get(&s->o, 0, h, i, 0)));
        assert_true(synth_get(&s->p.map, 0, h, i, 3) == 0 && synth_get(&s->p.map, 0, h, i, 5) == 0);
      }
  }
}

void H9_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(9030);
  for (int kind = 0; kind < ATTN_SYNTHESIZER_COUNT; kind++) {
    synth_shape x = synth_plain(3, 0);
    x.off = 0, x.outputs = 1;
    synth_scene *s = synth_one(&x, (attn_synthesizer_kind)kind, &rng);
    s->p.has_q_off = 0;
    synth_run(s, "no keys");
    x = synth_plain(1, 1);
    synth_run(synth_one(&x, (attn_synthesizer_kind)kind, &rng), "one pair");
    x = synth_plain(0, 4);
    x.outputs = 1;
    s = synth_one(&x, (attn_synthesizer_kind)kind, &rng);
    promise_run(&s->does);
    /* without a query no row is asked for */
    s->source[0].r.len = s->source[0].r1.len = 1, s->p.has_q_off = 0, s->p.q_off = 0;
    promise_run(&s->does);
    x = synth_plain(4, 4);
    x.batch = 0;
    promise_run(&synth_one(&x, (attn_synthesizer_kind)kind, &rng)->does);
    x = synth_plain(70, 70);
    x.batch = 2;
    s = synth_one(&x, (attn_synthesizer_kind)kind, &rng);
    static const int32_t keys[2] = {0, 70}, queries[2] = {70, 1};
    s->p.kv_len = keys, s->p.q_len = queries;
    synth_run(s, "empty rows");
  }
}

/* Row i depends on x_i alone; W2 = 0 leaves b2; a transposed W2 changes no bit. */
void H10_dense(void **state) {
  (void)state;
  for (int kind = ATTN_SYNTHESIZER_DENSE; kind <= ATTN_SYNTHESIZER_DENSE_FACTORED; kind++) {
    test_rng rng = test_seed(9040);
    synth_shape x = synth_plain(70, 140);
    x.vary = 0;
    synth_scene *s = synth_one(&x, (attn_synthesizer_kind)kind, &rng);
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 5);
    synth_run(s, "dense");
    test_copy(first, s->o);
    test_fill_row(s->source[0].x, 0, 0, 8, 3.5);
    test_fill_row(s->source[0].x, 0, 1, 66, (double)NAN);
    promise_run(&s->does);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 70; i++) {
        attn_tensor now = test_one(test_rows(s->o, i, 1), 0, 1, h, 1);
        attn_tensor was = test_one(test_rows(first, i, 1), 0, 1, h, 1);
        if (h == 1 && i == 66)
          assert_true(isnan(synth_get(&now, 0, 0, 0, 0)));
        else if (h == 1 || i != 8)
          test_assert_same(now, was, "a row of its own");
      }
    test_fill_row(s->source[0].x, 0, 1, 66, 1);
    promise_run(&s->does);
    test_copy(first, s->o);
    attn_tensor *const w[] = {&s->source[0].net.w_1, &s->source[0].net.w_2};
    attn_tensor turned = absent();
    for (int n = 0; n < 2; n++) {
      turned = test_tensor(ATTN_F32, TEST_PADDED, 1, w[n]->heads, w[n]->dim, w[n]->len);
      for (int64_t h = 0; h < turned.heads; h++)
        for (int64_t i = 0; i < turned.len; i++)
          for (int64_t c = 0; c < turned.dim; c++)
            oracle_set(&turned, 0, h, i, c, synth_get(w[n], 0, h, c, i));
      *w[n] = turned;
    }
    s->source[0].net.w_transposed = 1;
    promise_run(&s->does);
    test_assert_same(s->o, first, "w1 and w2 transposed");
    test_fill_value(turned, 0);
    if (kind == ATTN_SYNTHESIZER_DENSE_FACTORED) test_fill_value(s->source[0].net_b.w_2, 0);
    synth_run(s, "w2 = 0");
    for (int64_t i = 1; i < 70; i++)
      test_assert_same(test_rows(s->o, i, 1), test_rows(s->o, 0, 1), "b2 alone");
  }
}

/* Bv = 1 leaves Av; the two tilings of coprime lengths are each other's order. */
void H10_tilings(void **state) {
  (void)state;
  test_rng rng = test_seed(9050);
  synth_shape x = synth_plain(9, 35);
  synth_scene *d = synth_one(&x, ATTN_SYNTHESIZER_DENSE, &rng), *f;
  f = synth_one(&x, ATTN_SYNTHESIZER_DENSE_FACTORED, &rng);
  f->v = d->v, f->source[0].x = d->source[0].x, f->source[0].net = d->source[0].net;
  attn_synthesizer_net *ones = &f->source[0].net_b;
  const int64_t din = d->source[0].x.dim;
  memset(ones, 0, sizeof *ones);
  ones->w_1 = drawn(ATTN_F32, TEST_BHTD, 1, 1, din, 3, 1, &rng);
  ones->w_2 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 3, 1, 0, &rng);
  ones->b_2 = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 1);
  test_fill_value(ones->b_2, 1);
  for (int tiling = 0; tiling < 2; tiling++) {
    f->source[0].tiling = (attn_synthesizer_tiling)tiling;
    promise_run(&d->does);
    promise_run(&f->does);
    test_assert_near(f->o, d->o, 1e-5, "b = 1");
  }
  /* 5 x 7 keys: tile visits every pair once, so the LSE of all keys is that of outer */
  f->source[0].net = synth_net(&x, din, 5, &rng), *ones = synth_net(&x, din, 7, &rng);
  f->source[0].tiling = ATTN_SYNTHESIZER_OUTER;
  synth_run(f, "outer");
  attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, 1);
  test_copy(lse, f->p.lse);
  f->source[0].tiling = ATTN_SYNTHESIZER_TILE;
  synth_run(f, "tile");
  test_assert_near(f->p.lse, lse, 1e-5, "every pair once");
}

/* A weight of 1 is the source alone, bit for bit, whatever the others hold; equal logits the mean. */
void H10_weights(void **state) {
  (void)state;
  static const attn_synthesizer_kind kinds[] = {
      ATTN_SYNTHESIZER_DOT, ATTN_SYNTHESIZER_RANDOM, ATTN_SYNTHESIZER_DENSE,
      ATTN_SYNTHESIZER_DENSE_FACTORED, ATTN_SYNTHESIZER_RANDOM_FACTORED};
  test_rng rng = test_seed(9060);
  synth_shape x = synth_plain(20, 40);
  synth_scene *s = synth_build(&x, 5, kinds, &rng);
  float alpha[5];
  s->p.logits = NULL, s->p.alpha = alpha;
  for (int n = 0; n < 5; n++) {
    for (int i = 0; i < 5; i++) alpha[i] = i == n;
    attn_synthesizer_source kept[5];
    memcpy(kept, s->source, sizeof kept);
    for (int i = 0; i < 5; i++) {
      attn_tensor *t = &s->source[i].r;
      if (i == n) continue;
      if (kinds[i] == ATTN_SYNTHESIZER_DOT) t = &s->source[i].q;
      if (kinds[i] == ATTN_SYNTHESIZER_RANDOM_FACTORED) t = &s->source[i].r2;
      if (!t->data) t = &s->source[i].x;
      attn_tensor nan = test_tensor(ATTN_F32, TEST_BHTD, t->batch, t->heads, t->len, t->dim);
      test_fill_value(nan, (double)NAN);
      *t = nan;
    }
    promise_run(&s->does);
    synth_scene alone = *s;
    alone.source[0] = s->source[n];
    alone.p.sources = alone.source, alone.p.count = 1, alone.p.alpha = NULL;
    alone.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 5);
    alone.p.lse = absent(), alone.p.map = absent();
    attn_ctx ctx = test_ctx();
    assert_int_equal(synth_call(&alone, &ctx), ATTN_OK);
    test_assert_same(alone.o, s->o, "one-hot");
    memcpy(s->source, kept, sizeof kept);
  }
  for (int i = 0; i < 5; i++) alpha[i] = 0.2f, s->weight[i] = 3;
  synth_run(s, "equal weights");
  attn_tensor mean = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 5);
  test_copy(mean, s->o);
  s->p.logits = s->weight, s->p.alpha = NULL;
  promise_run(&s->does);
  test_assert_near(s->o, mean, 1e-6, "equal logits");
}

/* What a forbidden key holds, in v or in parameters, reaches nothing; keys from kv_len on are not read. */
void H10_forbidden(void **state) {
  (void)state;
  for (int kind = 0; kind < ATTN_SYNTHESIZER_COUNT; kind++) {
    if (kind == ATTN_SYNTHESIZER_DENSE_FACTORED) continue; /* its numbers serve several keys */
    test_rng rng = test_seed(9070);
    synth_shape x = synth_plain(40, 40);
    x.vary = 2;
    synth_scene *s = synth_one(&x, (attn_synthesizer_kind)kind, &rng);
    s->p.causal = 1;
    promise_run(&s->does);
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 5);
    test_copy(first, s->o);
    attn_synthesizer_source *c = &s->source[0];
    test_fill_row(s->v, 0, 0, 30, (double)INFINITY);
    for (int64_t i = 0; c->r.data && i < 40; i++) oracle_set(&c->r, 0, 0, i, 31, (double)NAN);
    if (c->r2.data) test_fill_row(c->r2, 0, 0, 31, (double)NAN);
    if (c->k.data) test_fill_row(c->k, 0, 0, 31, (double)NAN);
    if (c->net.w_2.data) test_fill_row(c->net.w_2, 0, 0, 31, (double)NAN);
    promise_run(&s->does);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 40; i++) {
        attn_tensor now = test_one(test_rows(s->o, i, 1), 0, 1, h, 1);
        if (h == 1 || i < 30)
          test_assert_same(now, test_one(test_rows(first, i, 1), 0, 1, h, 1), "beside a NaN");
        else
          assert_true(!isfinite(synth_get(&now, 0, 0, 0, 0)));
      }
  }
}

/* What one source or the bias forbids with -inf stays forbidden, whatever the others hold there and
 * in which order they are. */
void H10_minus_infinity(void **state) {
  (void)state;
  static const attn_synthesizer_kind kinds[] = {ATTN_SYNTHESIZER_DENSE, ATTN_SYNTHESIZER_RANDOM,
                                                ATTN_SYNTHESIZER_DENSE, ATTN_SYNTHESIZER_RANDOM};
#ifdef __arm__ /* takes a subnormal weight, or its second half, for 0 */
  static const float tiny[] = {0, 0, -60, -60};
#else
  static const float tiny[] = {0, 0, -103.28f, -103.28f};
#endif
  const double other[] = {(double)NAN, (double)INFINITY, 1};
  for (int n = 0; n < 6 * 6 * 3; n++, test_mem_release()) {
    const int who = n % 6,
              whose = n / 6 % 6; /* the source that forbids, and that with x; 4, 5: bias */
    const double x = other[n / 36];
    if (who == whose || whose > 3) continue;
    test_rng rng = test_seed(9130);
    synth_shape shape = synth_plain(n % 2 ? 40 : 3, 40);
    synth_scene *s = synth_build(&shape, 4, kinds, &rng);
    if (x == 1) s->p.logits = tiny; /* weights that are hardly numbers */
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 40; i++)
        for (int c = 0; c < 4; c++) {
          attn_tensor *t = c % 2 ? &s->source[c].r : &s->source[c].net.b_2;
          if (h >= t->heads || i >= t->len) continue;
          if (c == whose) oracle_set(t, 0, h, i, 7, x);
          if (c == who) oracle_set(t, 0, h, i, 7, -(double)INFINITY);
        }
    float *bias = test_mem(40 * 40 * sizeof *bias);
    for (int e = 0; e < 40 * 40; e++) bias[e] = e % 40 == 7 ? -(float)INFINITY : 0;
    if (who > 3) s->p.bias = attn_mask_add(bias, ATTN_F32, 1, 1, who == 4 ? s->o.len : 1, 40);
    test_fill_row(s->v, 0, 0, 7, (double)NAN);
    test_fill_row(s->v, 0, 1, 7, (double)NAN);
    promise_run(&s->does);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < s->o.len; i++)
        if (!isfinite(synth_get(&s->o, 0, h, i, 0)) || synth_get(&s->p.map, 0, h, i, 7) != 0)
          fail_msg("%d forbids, %d holds %g", who, whose, x);
  }
}

void H10_promises(void **state) {
  (void)state;
  static const attn_synthesizer_kind kinds[] = {
      ATTN_SYNTHESIZER_DENSE, ATTN_SYNTHESIZER_RANDOM, ATTN_SYNTHESIZER_DOT,
      ATTN_SYNTHESIZER_DENSE_FACTORED, ATTN_SYNTHESIZER_RANDOM_FACTORED};
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(9080);
    synth_shape x = synth_plain(70, 140);
    x.batch = 2, x.v_heads = 1, x.o_type = ATTN_F16;
    promise_keep(
        &(n < 5 ? synth_build(&x, 1, kinds + n, &rng) : synth_build(&x, 5, kinds, &rng))->does);
  }
}

void H9_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(9090);
  for (int n = 0; n < 25; n++) {
    synth_shape x = synth_plain(6, 9);
    synth_scene *s =
        synth_one(&x, n % 2 ? ATTN_SYNTHESIZER_RANDOM_FACTORED : ATTN_SYNTHESIZER_RANDOM, &rng);
    attn_synthesizer_source *c = &s->source[0];
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: c->r.dim = 8, word = "fewer keys"; break;
      case 1: c->r2.len = 8, word = "fewer keys"; break;
      case 2: c->r.len = 8, want = ATTN_E_RANGE, word = "position"; break;
      case 3: c->r1.len = 8, want = ATTN_E_RANGE, word = "position"; break;
      case 4: s->p.has_q_off = 1, s->p.q_off = -1, want = ATTN_E_RANGE, word = "position"; break;
      case 5: c->r2.dim = c->r1.dim + 1, word = "r2"; break;
      case 6: c->r.heads = 3, word = "r must"; break;
      case 7: c->r1.batch = 2, word = "r1"; break;
      case 8: c->r.data = NULL, want = ATTN_E_NULL, word = "r.data"; break;
      case 9: s->p.sources = NULL, want = ATTN_E_NULL, word = "sources"; break;
      case 10: s->p.count = 0, want = ATTN_E_RANGE, word = "count"; break;
      case 11: s->p.count = 9, want = ATTN_E_RANGE, word = "count"; break;
      case 12:
        c->kind = (attn_synthesizer_kind)ATTN_SYNTHESIZER_COUNT, want = ATTN_E_RANGE, word = "kind";
        break;
      case 13: s->v.heads = 3, want = ATTN_E_HEADS, word = "v must"; break;
      case 14: s->v.dim = 4, word = "v must"; break;
      case 15: s->p.q_off = 2, want = ATTN_E_RANGE, word = "has_q_off"; break;
      case 16: s->p.window = attn_window_of(-2, 0), want = ATTN_E_RANGE, word = "window"; break;
      case 17: s->p.lse.len = 5, word = "lse"; break;
      case 18: s->p.map.dim = 8, word = "map"; break;
      case 19: s->p.lse.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 20:
        s->p.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 2, 6, 9, &rng);
        s->p.mask.q_len = 5, want = ATTN_E_MASK, word = "mask";
        break;
      case 21: {
        static const int32_t len[1] = {10};
        s->p.kv_len = len, want = ATTN_E_RANGE, word = "kv_len";
        break;
      }
      case 22: s->v = s->o, s->p.map = absent(), want = ATTN_E_OVERLAP, word = "o "; break;
      case 23: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      default: c->r.dtype = (attn_dtype)9, want = ATTN_E_DTYPE, word = "r.dtype"; break;
    }
    promise_reject(&s->does, want, word);
  }
  synth_shape x = synth_plain(6, 9);
  synth_scene *s = synth_one(&x, ATTN_SYNTHESIZER_RANDOM, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_synthesizer(s->o, s->v, NULL, &ctx), ATTN_E_NULL);
}

void H10_reject(void **state) {
  (void)state;
  static const attn_synthesizer_kind kinds[] = {
      ATTN_SYNTHESIZER_DENSE, ATTN_SYNTHESIZER_DENSE_FACTORED, ATTN_SYNTHESIZER_DOT};
  test_rng rng = test_seed(9100);
  for (int n = 0; n < 24; n++) {
    synth_shape x = synth_plain(6, 9);
    x.vary = 0;
    synth_scene *s = synth_build(&x, 3, kinds, &rng);
    attn_synthesizer_source *d = &s->source[0], *f = &s->source[1], *q = &s->source[2];
    float alpha[3] = {0.5f, 0.25f, 0.25f};
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    if (n >= 13) s->p.alpha = alpha, s->p.logits = NULL;
    switch (n) {
      case 0: d->net.w_2.dim = 8, d->net.b_2 = absent(), word = "fewer keys"; break;
      case 1:
        f->net.w_2.dim = f->net_b.w_2.dim = 1, f->net.b_2 = f->net_b.b_2 = absent();
        word = "fewer keys";
        break;
      case 2: d->net.w_1.len++, word = "w_1"; break;
      case 3: d->net.w_2.len++, word = "w_2"; break;
      case 4: f->net.w_transposed = 1, word = "w_1"; break;
      case 5: d->net.b_2.dim++, word = "b_2"; break;
      case 6: f->net_b.b_2.dim++, word = "b_2"; break;
      case 7: d->x.len = 5, word = "x must"; break;
      case 8: f->tiling = (attn_synthesizer_tiling)2, want = ATTN_E_RANGE, word = "tiling"; break;
      case 9: q->q.len = 5, word = "q must"; break;
      case 10: q->k.len = 8, word = "k must"; break;
      case 11: q->k.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 12: q->scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 13: alpha[1] = 0.2501f, want = ATTN_E_VALUE, word = "sum"; break;
      case 14: alpha[0] = -0.5f, alpha[1] = 1.25f, want = ATTN_E_VALUE, word = "negative"; break;
      case 15: alpha[2] = (float)NAN, want = ATTN_E_VALUE, word = "finite"; break;
      case 16: s->p.logits = s->weight, want = ATTN_E_VALUE, word = "exclude"; break;
      case 17: s->p.weights = 2, word = "weights"; break;
      case 18: s->p.alpha = NULL, want = ATTN_E_NULL, word = "alpha"; break;
      case 19:
        s->weight[0] = (float)INFINITY, s->p.logits = s->weight, s->p.alpha = NULL;
        want = ATTN_E_VALUE, word = "finite";
        break;
      case 20: d->net.w_1.data = NULL, want = ATTN_E_NULL, word = "w_1"; break;
      case 21:
        d->x = s->o, d->net.w_1 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 5, d->net.w_1.dim, 1, &rng);
        want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 22: q->q.dim++, word = "k must"; break;
      default: d->x.batch = 2, word = "x must"; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* The gradients of the factorised form by parts: those of scores as a bias, and products of theirs with the other factor,
 * a head a query. Against differences of the loss in float64. */
void H10_gradients(void **state) {
  (void)state;
  enum { T = 9, KA = 4, KB = 5, TK = KA * KB, DV = 3, DQ = 2 };
  test_rng rng = test_seed(7795);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    const attn_tensor a = drawn(ATTN_F32, TEST_BHTD, 1, T, 1, KA, 1, &rng);
    const attn_tensor b = drawn(ATTN_F32, TEST_BHTD, 1, T, 1, KB, 1, &rng);
    const attn_tensor v = drawn(ATTN_F32, TEST_BHTD, 1, 1, TK, DV, 1, &rng);
    const attn_tensor d_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, T, DV, 1, &rng);
    attn_tensor s = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, TK), d_s = s, none = absent();
    attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, DQ), o, lse;
    attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, TK, DQ);
    attn_ctx ctx = test_ctx();
    attn_sdpa_params p;
    attn_sdpa_gradients g;
    memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
    test_fill_value(q, 0), test_fill_value(k, 0);
    for (int i = 0; i < T; i++)
      for (int j = 0; j < TK; j++)
        oracle_set(&s, 0, 0, i, j,
                   oracle_get(&a, 0, i, 0, j % KA) * oracle_get(&b, 0, i, 0, j / KA));
    o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, DV);
    lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, 1);
    d_s = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, TK);
    p.bias = attn_mask_add(s.data, ATTN_F32, 1, 1, T, TK), p.lse = lse, p.causal = n;
    g.d_bias = d_s;
    assert_int_equal(attn_sdpa(o, q, k, v, &p, &ctx), ATTN_OK);
    assert_int_equal(attn_sdpa_backward(none, none, none, d_o, q, k, v, o, lse, &p, &g, &ctx),
                     ATTN_OK);
    /* d_a_i = b_i dS_i, dS_i a matrix [KB, KA]; d_b_i the same turned */
    attn_tensor d_a = test_tensor(ATTN_F32, TEST_BHTD, 1, T, 1, KA);
    attn_tensor d_b = test_tensor(ATTN_F32, TEST_BHTD, 1, T, 1, KB);
    const attn_tensor w = attn_bhtd(d_s.data, ATTN_F32, 1, T, KB, KA);
    attn_gemm_params turned;
    memset(&turned, 0, sizeof turned), turned.w_transposed = 1;
    assert_int_equal(attn_gemm(d_a, b, w, NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_gemm(d_b, a, w, &turned, &ctx), ATTN_OK);
    for (int i = 0; i < T; i++)
      for (int c = 0; c < KA + KB; c++) {
        static const double by[5] = {1, -8, 0, 8, -1};
        const double step = 1e-3;
        double slope = 0;
        for (int m = 0; m < 5; m++) {
          double sum = 0, top = 0, loss = 0, x[TK];
          for (int j = 0; j < TK; j++) {
            double u = oracle_get(&a, 0, i, 0, j % KA), t = oracle_get(&b, 0, i, 0, j / KA);
            if (c == j % KA) u += (m - 2) * step;
            if (c == KA + j / KA) t += (m - 2) * step;
            x[j] = u * t, top = fmax(top, x[j]);
          }
          for (int j = 0; j < TK; j++) sum += x[j] = n && j > i + TK - T ? 0 : exp(x[j] - top);
          for (int j = 0; j < TK; j++)
            for (int e = 0; e < DV; e++)
              loss += x[j] / sum * oracle_get(&v, 0, 0, j, e) * oracle_get(&d_o, 0, 0, i, e);
          slope += by[m] * loss / (12 * step);
        }
        value_check(c < KA ? oracle_get(&d_a, 0, i, 0, c) : oracle_get(&d_b, 0, i, 0, c - KA),
                    slope, 1e-5 * (1 + fabs(slope)), ATTN_F32, "d_a, d_b", 0, i, 0, c);
      }
  }
}
