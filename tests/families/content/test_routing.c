/* tests/families/content/test_routing.c owns the Routing Transformer (D2): members of clusters, and attention inside them. */

#include "routing.h"

/* ---- selection ------------------------------------------------------------------------------*/

void D2_select(void **state) {
  (void)state;
  test_rng rng = test_seed(920);
  int64_t count = test_count(60, 8);
  for (int64_t t = 0; t < count; t++) {
    shape x = routing_any_shape(&rng);
    scene *s = routing_build(&x, &rng);
    routing_any_params(s, &rng);
    routing_selects(s);
    promise_run(&s->does);
    for (int side = 0; side < (x.shared ? 1 : 2); side++) routing_check_members(s, side, 0);
  }
}

/* More than a tile of centroids, of rows and of members. */
void D2_select_large(void **state) {
  (void)state;
  test_rng rng = test_seed(921);
  for (int t = 0; t < 4; t++) {
    shape x = routing_plain(1, 300, 170, 12, 3, t == 3 ? 3 : 70);
    scene *s = routing_build(&x, &rng);
    s->p.membership = (attn_routing_membership)(t == 1);
    s->p.w = t == 2 ? 80 : 0;
    routing_selects(s);
    promise_run(&s->does);
    for (int side = 0; side < 2; side++) routing_check_members(s, side, 0);
  }
}

/* So many rows that some are looked at first: as they come; these the best ones, or the worst; with NaN. */
void D2_select_many(void **state) {
  (void)state;
  test_rng rng = test_seed(935);
  for (int t = 0; t < 5; t++) {
    shape x = routing_plain(1, 2100, 3, 2, 2, 2);
    scene *s = routing_build(&x, &rng);
    s->p.norm = ATTN_ROUTING_NONE, s->p.w = t == 4 ? 30 : 100;
    for (int64_t i = 0; t && i < 2100; i++) {
      double at = i % 32 ? 0 : t == 1 ? 4 : -4; /* both centroids point the same way */
      for (int64_t c = 0; c < 2; c++)
        oracle_set(&s->q, 0, 0, i, c, at + (double)test_range(&rng, -40, 40) / 64);
    }
    for (int64_t c = 0; t && c < 2; c++)
      oracle_set(&s->mu, 0, 0, 0, c, 1), oracle_set(&s->mu, 0, 0, 1, c, t == 3 ? -1 : 2);
    routing_selects(s);
    promise_run(&s->does);
    routing_check_members(s, 0, t > 0);
    for (int64_t i = 0; i < 2100;
         i++) /* 60 numbers are left: all of them, then the first of the rest */
      if (i % 35) test_fill_row(s->q, 0, 0, i, (double)NAN);
    promise_run(&s->does);
    for (int64_t c = 0; c < 2 && t < 4; c++)
      for (int64_t i = 0; i < 2100; i += 35) assert_true(routing_has(&s->mq, 0, c, i));
  }
}

/* Small whole numbers: every score is exact and most are ties. */
void D2_select_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(922);
  for (int t = 0; t < 12; t++) {
    shape x = routing_plain(2, 90, 33, 3, 2, t % 2 ? 7 : 66);
    scene *s = routing_build(&x, &rng);
    s->p.norm = ATTN_ROUTING_NONE, s->p.membership = (attn_routing_membership)(t % 3 == 0);
    s->p.w = t % 4 ? 0 : 11;
    for (int64_t h = 0; h < 2; h++)
      for (int64_t c = 0; c < 3; c++) {
        for (int64_t i = 0; i < 90; i++)
          oracle_set(&s->q, 0, h, i, c, (double)test_range(&rng, -1, 1));
        for (int64_t i = 0; i < 33; i++)
          oracle_set(&s->k, 0, h, i, c, (double)test_range(&rng, -1, 1));
        for (int64_t i = 0; i < x.clusters; i++)
          oracle_set(&s->mu, 0, h, i, c, (double)test_range(&rng, -2, 2));
      }
    if (t == 5) test_fill_value(s->mu, 0);
    routing_selects(s);
    promise_run(&s->does);
    for (int side = 0; side < 2; side++) routing_check_members(s, side, 1);
  }
}

/* The example of the definition, both memberships, and its attention. */
void D2_example(void **state) {
  (void)state;
  test_rng rng = test_seed(923);
  static const float row[] = {3, -2, 1, -5, 0.5f};
  static const int32_t top[] = {0, 2, 4, 1, 3, 4}, arg[] = {0, 2, 4, 1, 3};
  for (int t = 0; t < 2; t++) {
    shape x = routing_plain(1, 5, 5, 1, 2, 2);
    x.shared = 1;
    scene *s = routing_build(&x, &rng);
    for (int64_t i = 0; i < 5; i++) oracle_set(&s->q, 0, 0, i, 0, (double)row[i]);
    oracle_set(&s->mu, 0, 0, 0, 0, 1), oracle_set(&s->mu, 0, 0, 1, 0, -1);
    s->p.norm = ATTN_ROUTING_NONE, s->p.membership = (attn_routing_membership)t;
    routing_selects(s);
    promise_run(&s->does);
    assert_memory_equal(s->mq.index, t ? arg : top, (size_t)(t ? 5 : 6) * 4);
    assert_int_equal(s->mq.indptr[1], 3);
    assert_int_equal(s->mq.indptr[2], t ? 5 : 6);
  }
}

/* ---- attention ------------------------------------------------------------------------------*/

void D2_attend(void **state) {
  (void)state;
  test_rng rng = test_seed(924);
  int64_t count = test_count(120, 12);
  for (int64_t t = 0; t < count; t++) {
    shape x = routing_any_shape(&rng);
    scene *s = routing_build(&x, &rng);
    routing_any_params(s, &rng);
    routing_attends(s, x.clusters, t % 4 == 0 ? 90 : t % 4 == 1 ? 10 : 40, &rng);
    promise_run(&s->does);
    routing_check_attend(s, 4e-6, "attend");
  }
}

/* Clusters of more than a tile of rows and a block of keys, members that need several rounds. */
void D2_attend_large(void **state) {
  (void)state;
  test_rng rng = test_seed(925);
  for (int t = 0; t < 8; t++) {
    shape x = routing_plain(1, 200, 300, 9, 7, 5);
    x.shared = t % 2;
    if (x.shared) x.k_len = 200;
    if (t == 6) x.type = ATTN_F16;
    scene *s = routing_build(&x, &rng);
    s->p.causal = t / 2 % 2, s->p.exclude_self = t == 3 || t == 5;
    if (t >= 4) routing_want_lse(s);
    routing_attends(s, 5, t < 2 ? 20 : 80, &rng);
    promise_run(&s->does);
    routing_check_attend(s, 5e-6, "large");
  }
}

/* The chain is the two calls, bit for bit, and both are the definition. */
void D2_chain(void **state) {
  (void)state;
  test_rng rng = test_seed(926);
  int64_t count = test_count(40, 6);
  for (int64_t t = 0; t < count; t++) {
    shape x = routing_any_shape(&rng);
    scene *s = routing_build(&x, &rng);
    routing_any_params(s, &rng);
    promise_run(&s->does);
    scene two = *s;
    two.does.out[0] = two.does.out[1] = NULL;
    routing_room(&two);
    attn_ctx ctx = test_ctx();
    two.o = output(x.type, TEST_BHTD, x.batch, x.heads, x.q_len, x.dv, NULL);
    if (s->p.lse.data) two.p.lse = output(ATTN_F32, TEST_BHTD, x.batch, x.heads, x.q_len, 1, NULL);
    assert_int_equal(routing_select_call(&two, &ctx), ATTN_OK);
    assert_int_equal(routing_attend_call(&two, &ctx), ATTN_OK);
    test_assert_same(two.o, s->o, "chain");
    if (s->p.lse.data) test_assert_same(two.p.lse, s->p.lse, "chain, lse");
    routing_check_attend(&two, 4e-6, "chain");
  }
}

/* Learned keys and values of each cluster. */
void D2_learned(void **state) {
  (void)state;
  test_rng rng = test_seed(937);
  int64_t count = test_count(80, 12);
  for (int64_t t = 0; t < count; t++) {
    shape x = routing_any_shape(&rng);
    if (t % 8 == 0) x.k_len = x.shared ? x.k_len : 0;
    if (t % 8 == 1) x = routing_plain(1, 200, 300, 9, 7, 4);
    scene *s = routing_build(&x, &rng);
    routing_any_params(s, &rng);
    routing_learn(s, x.clusters, t % 5 ? test_range(&rng, 0, 9) : 130, &rng);
    routing_attends(s, x.clusters, t % 4 == 0 ? 90 : t % 4 == 1 ? 10 : 40, &rng);
    promise_run(&s->does);
    routing_check_attend(s, 4e-6, "learned");
    if (s->q.len == 0) continue;
    s->does.call = routing_call, s->does.ask = routing_ask;
    promise_run(&s->does);
    routing_room(s);
    attn_ctx ctx = test_ctx();
    assert_int_equal(routing_select_call(s, &ctx), ATTN_OK);
    routing_check_attend(s, 4e-6, "learned, chained");
  }
  /* one cluster of everything: keys that stand before the others */
  for (int causal = 0; causal < 2; causal++) {
    shape x = routing_plain(2, 90, 150, 8, 6, 1);
    scene *s = routing_build(&x, &rng);
    s->p.norm = ATTN_ROUTING_NONE, s->p.causal = causal;
    attn_tensor k = drawn(ATTN_F32, TEST_BHTD, 1, 2, 157, 8, 1, &rng);
    attn_tensor v = drawn(ATTN_F32, TEST_BHTD, 1, 2, 157, 6, 1, &rng);
    s->p.w = 90, s->p.wk = 150;
    s->p.mem_k = test_rows(k, 0, 7), s->p.mem_v = test_rows(v, 0, 7);
    s->k = test_rows(k, 7, 150), s->v = test_rows(v, 7, 150);
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 6);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.causal = causal ? ATTN_CAUSAL_END : ATTN_CAUSAL_NONE;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(o, s->q, k, v, &p, &ctx), ATTN_OK);
    test_assert_near(s->o, o, 1e-5, "learned keys are keys");
  }
}

static void near_sdpa(scene *s, const attn_mask *mask, const char *what) {
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
  attn_tensor x[2];
  for (int side = 0; side < 2; side++) { /* normalised rows */
    const attn_tensor *from = side && !s->p.shared ? &s->k : &s->q;
    cube y = routing_normal(from, s->p.norm);
    x[side] = test_tensor(ATTN_F32, TEST_BHTD, y.batch, y.heads, y.len, y.dim);
    for (int64_t r = 0; r < y.batch * y.heads * y.len; r++)
      for (int64_t c = 0; c < y.dim; c++)
        oracle_set(&x[side], r / y.len / y.heads, r / y.len % y.heads, r % y.len, c,
                   y.data[r * y.dim + c]);
  }
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.causal = s->p.causal, p.scale = s->p.scale;
  if (mask) p.mask = *mask;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, x[0], x[1], s->v, &p, &ctx), ATTN_OK);
  test_assert_near(s->o, o, 1e-5, what);
}

void D2_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(927);
  for (int t = 0; t < 8; t++) { /* one cluster: full attention */
    shape x = routing_plain(2, 70, 90, 8, 6, 1);
    x.shared = t % 2;
    if (x.shared) x.k_len = 70;
    scene *s = routing_build(&x, &rng);
    s->p.causal = t / 2 % 2, s->p.membership = (attn_routing_membership)(t / 4);
    promise_run(&s->does);
    near_sdpa(s, NULL, "one cluster");
  }
  for (int t = 0; t < 4; t++) { /* argmax: a mask */
    shape x = routing_plain(1, 60, 80, 8, 6, 7);
    scene *s = routing_build(&x, &rng);
    s->p.causal = t % 2, s->p.membership = ATTN_ROUTING_ARGMAX;
    if (t / 2) routing_want_lse(s);
    promise_run(&s->does);
    routing_room(s);
    attn_ctx ctx = test_ctx();
    assert_int_equal(routing_select_call(s, &ctx), ATTN_OK);
    uint8_t *allowed = test_mem(60 * 80);
    memset(allowed, 0, 60 * 80);
    for (int64_t c = 0; c < 7; c++)
      for (int64_t i = 0; i < 60; i++)
        for (int64_t j = 0; j < 80; j++)
          if (routing_has(&s->mq, 0, c, i) && routing_has(&s->mk, 0, c, j)) allowed[i * 80 + j] = 1;
    attn_mask mask = attn_mask_bool(allowed, 1, 1, 60, 80);
    near_sdpa(s, &mask, "argmax");
  }
  for (int t = 0; t < 4; t++) { /* the order and the size of the centroids count for nothing */
    shape x = routing_plain(1, 60, 60, 8, 6, 5);
    scene *s = routing_build(&x, &rng);
    s->p.membership = (attn_routing_membership)(t % 2);
    if (t / 2) s->p.combine = ATTN_ROUTING_UNION;
    promise_run(&s->does);
    scene other = *s;
    other.mu = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 8);
    other.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 60, 6);
    for (int64_t c = 0; c < 5; c++)
      for (int64_t e = 0; e < 8; e++)
        oracle_set(&other.mu, 0, 0, 4 - c, e, 4 * oracle_get(&s->mu, 0, 0, c, e));
    attn_ctx ctx = test_ctx();
    assert_int_equal(routing_call(&other, &ctx), ATTN_OK);
    test_assert_near(other.o, s->o, 1e-6, "centroids in another order");
  }
}

/* Few rows, more clusters than rows, nothing to see, and rows that see only themselves. */
void D2_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(928);
  static const int64_t len[][3] = {{1, 1, 1}, {1, 1, 4}, {3, 2, 9},
                                   {5, 0, 2}, {2, 7, 3}, {9, 1, 2}};
  for (int t = 0; t < 24; t++) {
    const int64_t *n = len[t % 6];
    shape x = routing_plain(2, n[0], n[1], 3, 2, n[2]);
    scene *s = routing_build(&x, &rng);
    s->p.membership = (attn_routing_membership)(t / 12), s->p.causal = t % 2;
    s->p.w = t % 5 == 0 ? 100 : 0;
    if (t / 6 % 2) routing_want_lse(s);
    promise_run(&s->does);
    routing_room(s);
    attn_ctx ctx = test_ctx();
    assert_int_equal(routing_select_call(s, &ctx), ATTN_OK);
    routing_check_attend(s, 4e-6, "edges");
  }
  for (int t = 0; t < 4; t++) { /* lone rows keep themselves */
    shape x = routing_plain(1, 6, 6, 4, 3, 6);
    x.shared = 1;
    scene *s = routing_build(&x, &rng);
    s->p.exclude_self = 1, s->p.causal = t % 2;
    if (t / 2) routing_want_lse(s);
    routing_attends(s, 6, 0, &rng);
    for (int32_t c = 0; c < 6; c++) s->mq.index[c] = c, s->mq.indptr[c] = c;
    s->mq.indptr[6] = 6;
    promise_run(&s->does);
    for (int64_t i = 0; i < 6; i++)
      for (int64_t c = 0; c < 3; c++)
        assert_true(oracle_get(&s->o, 0, 0, i, c) == oracle_get(&s->v, 0, 0, i, c));
    routing_check_attend(s, 4e-6, "lone");
  }
  shape x = routing_plain(1, 0, 4, 3, 2, 2);
  scene *s = routing_build(&x, &rng);
  promise_run(&s->does);
  x.batch = 0, x.q_len = 4;
  s = routing_build(&x, &rng);
  promise_run(&s->does);
}

/* A row with NaN does not lead astray, and reaches only rows that read it. */
void D2_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(929);
  double nan = (double)NAN;
  for (int t = 0; t < 12; t++) {
    shape x = routing_plain(1, 50, 50, 5, 4, 4);
    scene *s = routing_build(&x, &rng);
    s->p.membership = (attn_routing_membership)(t % 2), s->p.causal = 1;
    s->p.norm = (attn_routing_norm)(t % 3);
    if (t >= 6) s->p.combine = ATTN_ROUTING_UNION;
    test_fill_row(s->q, 0, 0, 7, nan);
    test_fill_row(s->k, 0, 0, 20, nan);
    oracle_set(&s->v, 0, 0, 30, 1, nan);
    if (t > 8) test_fill_value(s->mu, nan);
    routing_selects(s);
    promise_run(&s->does);
    for (int side = 0; side < 2; side++) {
      const attn_members *m = side ? &s->mk : &s->mq;
      for (int64_t e = 0; e < m->indptr[4]; e++) assert_true(m->index[e] >= 0 && m->index[e] < 50);
    }
    attn_ctx ctx = test_ctx();
    assert_int_equal(routing_attend_call(s, &ctx), ATTN_OK);
    for (int64_t i = 0; i < 50; i++) {
      int bad = 0;
      for (int64_t c = 0; c < 4; c++) {
        if (!routing_has(&s->mq, 0, c, i)) continue;
        bad |= i == 7 && s->mk.indptr[c] < s->mk.indptr[c + 1] && s->mk.index[s->mk.indptr[c]] <= i;
        bad |= i >= 20 && routing_has(&s->mk, 0, c, 20);
        bad |= i >= 30 && routing_has(&s->mk, 0, c, 30);
      }
      assert_true(isnan(oracle_get(&s->o, 0, 0, i, 1)) == bad);
    }
  }
}

/* Rows beyond the lengths are not read: they are not even there. */
void D2_lengths_unread(void **state) {
  (void)state;
  test_rng rng = test_seed(936);
  static const int32_t have[] = {70, 5};
  for (int t = 0; t < 12; t++) {
    shape x = routing_plain(1, have[t % 2], 9, 6, 3, 3);
    if (t % 3 == 1) x.type = ATTN_F16;
    scene *s = routing_build(&x, &rng);
    s->v = drawn(x.type, TEST_BHTD, 1, 1, 140, 3, 1, &rng);
    test_where = TEST_BEFORE_GUARD;
    s->q = drawn(x.type, TEST_BHTD, 1, 1, x.q_len, 6, 1, &rng);
    s->k = drawn(x.type, TEST_BHTD, 1, 1, 9, 6, 1, &rng);
    test_where = TEST_HEAP;
    s->q.len = s->k.len = 140;
    s->o = output(x.type, TEST_BHTD, 1, 1, 140, 3, &s->does.block[0]);
    int32_t *len = test_mem(2 * sizeof *len);
    len[0] = have[t % 2], len[1] = 9;
    s->p.q_len = len, s->p.kv_len = len + 1;
    s->p.norm = (attn_routing_norm)(t % 3), s->p.membership = (attn_routing_membership)(t / 2 % 2);
    s->p.w = 4, s->p.causal = t / 4 % 2;
    if (t % 5 == 0) routing_want_lse(s);
    attn_ctx ctx = test_ctx();
    assert_int_equal(routing_call(s, &ctx), ATTN_OK);
    for (int64_t i = len[0]; i < 140; i++)
      for (int64_t c = 0; c < 3; c++) assert_true(oracle_get(&s->o, 0, 0, i, c) == 0);
  }
}
