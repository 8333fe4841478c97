/* tests/compose/test_multihead.c owns multi-head attention with projections. */

#include "computes.h"
#include "multihead.h"
#include "terms.h"

void A3_random(void **state) {
  (void)state;
  test_rng rng = test_seed(300);
  for (int64_t n = test_count(40, 12); n-- > 0; test_mem_release()) {
    multihead_shape x = multihead_plain(1, 1, 1, 1);
    x.batch = test_range(&rng, 1, 2);
    x.queries = test_range(&rng, 1, n % 5 ? 20 : 90);
    x.keys = n % 3 ? test_range(&rng, 1, n % 4 ? 25 : 140) : 0;
    x.dm = test_range(&rng, 1, n % 6 ? 24 : 140), x.dmk = test_range(&rng, 1, 24);
    x.dmv = n % 2 ? test_range(&rng, 1, 24) : 0, x.dmo = test_range(&rng, 1, 30);
    x.kv_heads = test_range(&rng, 1, 3), x.heads = x.kv_heads * test_range(&rng, 1, 3);
    x.dk = test_range(&rng, 1, 12), x.dv = test_range(&rng, 1, 12);
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
    x.y_type = (attn_dtype)(n / 2 % 3), x.each_type = (attn_dtype)(n / 4 % 3);
    x.biases = (int)test_range(&rng, 0, 15);
    x.want = (int)test_range(&rng, 0, 15);
    if (!(x.want & (WANT_Y | WANT_EACH))) x.want |= n % 2 ? WANT_Y : WANT_EACH;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    multihead *s = multihead_build(&x, &rng);
    test_where = TEST_HEAP;
    if (x.heads == 1) s->p.heads = 0;
    if (x.heads == x.kv_heads) s->p.kv_heads = 0;
    if (n % 7 == 3) s->p.attention.scale = 0.3f;
    if (n % 7 == 5) s->p.attention.scale = ATTN_ZERO;
    multihead_check(s, 3e-5, "multihead");
  }
}

/* One more key with its value, beside every option, and where a row has no other key. */
void A3_bias_kv(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(40, 14); n++, test_mem_release()) {
    test_rng rng = test_seed(3100 + (uint64_t)n);
    multihead_shape x = multihead_plain(n % 2 ? 33 : 5, 4, 5, 6);
    x.batch = 2, x.keys = n % 7 == 6 ? 1 : 40, x.kv_heads = 1 << n % 3;
    x.biases |= BIAS_KV, x.w_type = (attn_dtype)(n % 3);
    x.each_type = (attn_dtype)(n / 2 % 3);
    x.want = (int)(n % 5 == 4 ? WANT_EACH : n % 3 ? 15 : WANT_Y);
    multihead *s = multihead_build(&x, &rng);
    attn_sdpa_params *a = &s->p.attention;
    if (n % 7 == 0) a->causal = 1;
    if (n % 7 == 1) a->kv_len = test_lengths(2, 40, &rng), a->q_len = test_lengths(2, 5, &rng);
    if (n % 7 == 2) a->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 2, 4, x.queries, 40, &rng);
    if (n % 7 == 3) a->sinks = test_floats(4, 1, &rng), a->softmax_one = 1;
    if (n % 7 == 4) a->scale = n % 2 ? 0.3f : ATTN_ZERO;
    if (n % 7 == 5) a->has_q_off = 1, a->q_off = -100, a->causal = 1; /* no key of their own */
    multihead_check(s, 4e-5, "bias_k and bias_v");
  }
}

/* Rules of the same. */
void A3_bias_kv_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(3190);
  for (int n = 0; n < 7; n++, test_mem_release()) {
    multihead_shape x = multihead_plain(9, 4, 5, 6);
    x.keys = 8, x.kv_heads = 2, x.biases |= BIAS_KV;
    multihead *s = multihead_build(&x, &rng);
    attn_multihead_params *p = &s->p;
    test_term_user user = {0, 0, 77, 0};
    switch (n) {
      case 0: p->bias_k.dim = 9, promise_reject(&s->does, ATTN_E_SHAPE, "bias_k"); break;
      case 1: p->bias_v.dim = 11, promise_reject(&s->does, ATTN_E_SHAPE, "bias_v"); break;
      case 2: p->bias_v.data = NULL, promise_reject(&s->does, ATTN_E_NULL, "bias_k"); break;
      case 3: p->bias_k.data = NULL, promise_reject(&s->does, ATTN_E_NULL, "bias_k"); break;
      case 4:
        p->attention.modify_weights = test_modify_weights, p->attention.modify_weights_user = &user;
        promise_reject(&s->does, ATTN_E_RANGE, "bias_k");
        break;
      case 5:
        p->bias_v.dtype = ATTN_I8;
        promise_reject(&s->does, ATTN_E_DTYPE, "bias_v");
        break;
      default: p->bias_k.data = s->y.data; promise_reject(&s->does, ATTN_E_OVERLAP, "y ");
    }
  }
}

/* Options of attn_sdpa pass through: each alone, then some together. */
void A3_options(void **state) {
  (void)state;
  for (int n = 0; n < 15; n++, test_mem_release()) {
    test_rng rng = test_seed(320 + (uint64_t)n);
    multihead_shape x = multihead_plain(n % 2 ? 33 : 7, 4, 5, 6);
    x.batch = 2, x.keys = 40, x.kv_heads = 2;
    multihead *s = multihead_build(&x, &rng);
    attn_sdpa_params *a = &s->p.attention;
    if (n == 0 || n > 9) a->causal = 1;
    if (n == 1 || n == 11) a->kv_len = test_lengths(2, 40, &rng);
    if (n == 2 || n == 11) a->q_len = test_lengths(2, x.queries, &rng);
    if (n == 3 || n == 10) a->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 2, 4, x.queries, 40, &rng);
    if (n == 4 || n == 10) a->bias = test_mask(ATTN_MASK_ADD, ATTN_F16, 1, 4, x.queries, 40, &rng);
    if (n == 5 || n == 11) a->alibi = test_floats(4, 0.1, &rng);
    if (n == 6) a->sinks = test_floats(4, 1, &rng);
    if (n == 7) a->window = attn_window_of(9, 3), a->has_q_off = 1, a->q_off = 2;
    if (n == 8) a->softcap = 2, a->softmax_one = 1;
    if (n == 9)
      a->relative.keys = drawn(ATTN_F32, TEST_BHTD, 1, 4, 7, 5, 0.5, &rng),
      a->relative.values = drawn(ATTN_F32, TEST_BHTD, 1, 1, 7, 6, 0.5, &rng);
    test_term_user user = {0, 0, 77, 0};
    if (n > 11) a->modify_weights = test_modify_weights, a->modify_weights_user = &user;
    if (n == 14) a->causal = 1, a->map.data = NULL;
    multihead_check(s, 4e-5, "options");
  }
}

/* The same bits as the three calls it is made of, and whatever `each` looks like. */
void A3_by_hand(void **state) {
  (void)state;
  test_rng rng = test_seed(340);
  multihead_shape x = multihead_plain(70, 3, 8, 5);
  x.batch = 2, x.dmv = 0, x.want = WANT_Y;
  multihead *s = multihead_build(&x, &rng);
  promise_run(&s->does);
  attn_tensor q = test_tensor(ATTN_F32, TEST_BTHD, 2, 3, 70, 8), k = q, v, o, y;
  k = test_tensor(ATTN_F32, TEST_BTHD, 2, 3, 70, 8);
  v = test_tensor(ATTN_F32, TEST_BTHD, 2, 3, 70, 5);
  o = test_tensor(ATTN_F32, TEST_BTHD, 2, 3, 70, 5);
  y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 70, x.dmo);
  attn_tensor *to[4] = {&q, &k, &v, &y};
  const attn_tensor w[4] = {s->p.w_q, s->p.w_k, s->p.w_v, s->p.w_o};
  const attn_tensor bias[4] = {s->p.b_q, s->p.b_k, s->p.b_v, s->p.b_o};
  for (int n = 0; n < 4; n++) {
    attn_ctx ctx = test_ctx();
    attn_gemm_params g;
    memset(&g, 0, sizeof g);
    g.bias = bias[n];
    if (n == 3) assert_int_equal(attn_sdpa(o, q, k, v, NULL, &ctx), ATTN_OK);
    attn_tensor row = attn_bhtd(to[n]->data, ATTN_F32, 2, 1, 70, w[n].dim);
    const attn_tensor in = attn_bhtd(o.data, ATTN_F32, 2, 1, 70, 15);
    assert_int_equal(attn_gemm(row, n == 3 ? in : s->x, w[n], &g, &ctx), ATTN_OK);
  }
  test_assert_same(s->y, y, "by hand");
  for (int n = 0; n < 3; n++) {
    s->p.each =
        test_tensor(n == 2 ? ATTN_BF16 : ATTN_F32, n ? TEST_PADDED : TEST_BTHD, 2, 3, 70, 5);
    promise_run(&s->does);
    test_assert_same(s->y, y, "with each");
    if (n < 2) test_assert_same(s->p.each, o, "each");
    if (n == 2) test_assert_near(s->p.each, o, 0.01, "each");
  }
  s->y = s->p.w_o = s->p.b_o = absent();
  s->p.each = test_tensor(ATTN_F32, TEST_PADDED, 2, 3, 70, 5);
  promise_run(&s->does);
  test_assert_same(s->p.each, o, "each alone");
}

/* Columns of `heads` blocks of a tensor, block h taken from block order[h]. */
static attn_tensor blocks(attn_tensor t, int64_t heads, const int64_t *order, int by_row) {
  attn_tensor to = test_tensor(t.dtype, TEST_BHTD, 1, 1, t.len, t.dim);
  const int64_t d = (by_row ? t.len : t.dim) / heads;
  for (int64_t i = 0; i < t.len; i++) {
    for (int64_t c = 0; c < t.dim; c++) {
      const int64_t at = by_row ? i : c, from = order[at / d] * d + at % d;
      oracle_set(&to, 0, 0, i, c, oracle_get(&t, 0, 0, by_row ? from : i, by_row ? c : from));
    }
  }
  return to;
}

void A3_invariants(void **state) {
  (void)state;
  static const int64_t order[] = {2, 0, 3, 1};
  test_rng rng = test_seed(341);
  multihead_shape x = multihead_plain(19, 4, 5, 6);
  x.keys = 23;
  multihead *s = multihead_build(&x, &rng);
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 19, x.dmo);
  attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 19, 1);
  test_copy(y, s->y);
  test_copy(lse, s->p.attention.lse);
  const attn_multihead_params was = s->p;
  s->p.w_q = blocks(was.w_q, 4, order, 0), s->p.w_k = blocks(was.w_k, 4, order, 0);
  s->p.w_v = blocks(was.w_v, 4, order, 0), s->p.w_o = blocks(was.w_o, 4, order, 1);
  s->p.b_q = blocks(was.b_q, 4, order, 0), s->p.b_k = blocks(was.b_k, 4, order, 0);
  s->p.b_v = blocks(was.b_v, 4, order, 0);
  promise_run(&s->does);
  test_assert_near(s->y, y, 1e-5, "heads in another order");
  s->p = was, s->p.b_k = absent();
  promise_run(&s->does);
  test_assert_near(s->y, y, 1e-5, "no key bias");
  assert_false(test_same(s->p.attention.lse, lse));
  /* one token: the map is 1 */
  x = multihead_plain(1, 3, 4, 5);
  x.dmv = 0;
  s = multihead_build(&x, &rng);
  promise_run(&s->does);
  for (int64_t c = 0; c < x.dmo; c++) {
    double sum = oracle_get(&s->p.b_o, 0, 0, 0, c);
    for (int64_t n = 0; n < 15; n++) {
      double v = oracle_get(&s->p.b_v, 0, 0, 0, n);
      for (int64_t i = 0; i < x.dm; i++)
        v += oracle_get(&s->x, 0, 0, 0, i) * oracle_get(&s->p.w_v, 0, 0, i, n);
      sum += v * oracle_get(&s->p.w_o, 0, 0, n, c);
    }
    value_check(oracle_get(&s->y, 0, 0, 0, c), sum, 1e-5, ATTN_F32, "one token", 0, 0, 0, c);
  }
}

/* No keys, no rows, no batch; rows without keys are b_o. */
void A3_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(342);
  multihead_shape x = multihead_plain(6, 2, 3, 4);
  x.keys = 5;
  multihead *s = multihead_build(&x, &rng);
  s->x_k.len = s->x_v.len = 0;
  promise_run(&s->does);
  for (int64_t i = 0; i < 6; i++) {
    test_assert_same(test_rows(s->y, i, 1), s->p.b_o, "no keys");
    for (int64_t h = 0; h < 2; h++) {
      assert_true(oracle_get(&s->p.attention.lse, 0, h, i, 0) == -(double)INFINITY);
      for (int64_t c = 0; c < 4; c++) assert_true(oracle_get(&s->p.each, 0, h, i, c) == 0);
    }
  }
  x.want = WANT_Y, x.queries = 9, x.keys = 5;
  s = multihead_build(&x, &rng);
  s->p.attention.causal = 1; /* four rows before the first key */
  promise_run(&s->does);
  for (int64_t i = 0; i < 4; i++) test_assert_same(test_rows(s->y, i, 1), s->p.b_o, "before keys");
  x.queries = 0;
  multihead_check(multihead_build(&x, &rng), 1e-5, "no queries");
  x.queries = 4, x.batch = 0;
  multihead_check(multihead_build(&x, &rng), 1e-5, "no batch");
}

/* NaN in a row of x stays there; in a key it reaches those that see it. */
void A3_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(343);
  multihead_shape x = multihead_plain(30, 2, 4, 4);
  x.dmv = 0, x.want = WANT_Y;
  multihead *s = multihead_build(&x, &rng);
  s->p.attention.causal = 1;
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 30, x.dmo);
  test_copy(y, s->y);
  test_fill_row(s->x, 0, 0, 17, (double)NAN);
  promise_run(&s->does);
  test_assert_same(test_rows(s->y, 0, 17), test_rows(y, 0, 17), "rows before NaN");
  for (int64_t i = 17; i < 30; i++) assert_true(isnan(oracle_get(&s->y, 0, 0, i, 0)));
  static const int32_t keys[1] = {17};
  s->p.attention.kv_len = keys, s->p.attention.causal = 0;
  promise_run(&s->does);
  for (int64_t i = 0; i < 30; i++)
    assert_int_equal(isnan(oracle_get(&s->y, 0, 0, i, 0)) != 0, i == 17);
}

/* Sequences end to end are calls of their own. */
void A3_ragged(void **state) {
  (void)state;
  static const int64_t at[] = {0, 5, 5, 22};
  test_rng rng = test_seed(344);
  multihead_shape x = multihead_plain(25, 2, 4, 6);
  x.dmv = 0, x.want = WANT_Y | WANT_EACH;
  multihead *s = multihead_build(&x, &rng);
  s->p.attention.ragged.sequences = 3,
  s->p.attention.ragged.q_indptr = s->p.attention.ragged.kv_indptr = at;
  s->p.attention.causal = 1;
  promise_run(&s->does);
  multihead own = *s;
  memset(&own.p.attention.ragged, 0, sizeof own.p.attention.ragged);
  own.does.scene = &own, own.p.each = absent();
  for (int n = 0; n < 3; n += 2) {
    own.x = test_rows(s->x, at[n], at[n + 1] - at[n]);
    own.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, own.x.len, x.dmo);
    promise_run(&own.does);
    test_assert_same(own.y, test_rows(s->y, at[n], own.x.len), "sequence");
  }
  for (int64_t i = 22; i < 25; i++)
    test_assert_same(test_rows(s->y, i, 1), s->p.b_o, "no sequence");
  s->y = s->p.w_o = s->p.b_o = absent();
  for (int n = 0; n < 2; n++) { /* the heads' outputs alone */
    s->p.each = test_tensor(n ? ATTN_F16 : ATTN_F32, TEST_PADDED, 1, 2, 25, 6);
    promise_run(&s->does);
    for (int64_t e = 0; e < 2 * 3 * 6; e++)
      assert_true(oracle_get(&s->p.each, 0, e / 18, 22 + e / 6 % 3, e % 6) == 0);
  }
}

void A3_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(345);
  for (int n = 0; n < 2; n++) {
    multihead_shape x = multihead_plain(n ? 1 : 110, 4, 16, 12);
    x.batch = 2, x.keys = 70, x.kv_heads = 2, x.y_type = ATTN_F16, x.each_type = ATTN_BF16;
    x.w_type = ATTN_F16;
    promise_keep(&multihead_build(&x, &rng)->does);
  }
}

void A3_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(346);
  static int32_t bad[1] = {99};
  for (int n = 0; n < 34; n++, test_mem_release()) {
    multihead_shape x = multihead_plain(9, 4, 5, 6);
    x.keys = 8, x.kv_heads = 2;
    multihead *s = multihead_build(&x, &rng);
    attn_multihead_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 1: s->x_k.len = 7, word = "x_v"; break;
      case 2: s->x_k.batch = 2, s->x_k.stride_batch = 0, word = "x_k"; break;
      case 3: s->x_v.len = 7, word = "x_v"; break;
      case 4: p->w_q.len = 10, word = "w_q"; break;
      case 5: p->w_k.len = 8, word = "w_k"; break;
      case 6: p->w_k.dim = 8, word = "w_k"; break;
      case 7: p->w_v.len = 8, word = "w_v"; break;
      case 8: p->w_o.len = 23, word = "w_o"; break;
      case 9: p->b_q.dim = 19, word = "b_q"; break;
      case 10: p->b_k.dim = 9, word = "b_k"; break;
      case 11: p->b_v.dim = 11, word = "b_v"; break;
      case 12: p->b_o.dim = 12, word = "b_o"; break;
      case 13: p->heads = 3, want = ATTN_E_HEADS, word = "kv_heads"; break;
      case 14: p->kv_heads = 3, want = ATTN_E_HEADS, word = "kv_heads"; break;
      case 15: p->w_q.dim = 18, want = ATTN_E_HEADS, word = "w_q"; break;
      case 16: p->heads = -1, word = "heads"; break;
      case 17: s->y.dim = 12, word = "y must"; break;
      case 18: s->y.len = 8, word = "y must"; break;
      case 19: p->each.dim = 5, word = "each"; break;
      case 20: p->attention.lse.heads = 2, word = "lse"; break;
      case 21: p->attention.map.dim = 7, word = "map"; break;
      case 22: s->y = s->x, s->y.dim = 13, want = ATTN_E_OVERLAP, word = "y "; break;
      case 23: p->w_q.data = NULL, want = ATTN_E_NULL, word = "w_q"; break;
      case 24: p->w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 25: s->y.data = NULL, want = ATTN_E_NULL, word = "y"; break;
      case 26: p->attention.kv_len = bad, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 27: p->attention.scale = INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 28:
        p->attention.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 1, 9, 8, &rng);
        p->attention.mask.k_len = 7, want = ATTN_E_MASK, word = "mask";
        break;
      case 29: /* a mask inside y */
        p->attention.mask = attn_mask_bool((uint8_t *)s->y.data, 1, 1, 9, 8);
        want = ATTN_E_OVERLAP, word = "output";
        break;
      case 30: /* slopes inside each */
        p->attention.alibi = (float *)p->each.data, want = ATTN_E_OVERLAP, word = "output";
        break;
      case 31: p->attention.k_scales.scale = test_floats(8, 1, &rng), want = ATTN_E_SCALE; break;
      case 32: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      default: p->attention.lse.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse"; break;
    }
    if (n == 31) { /* whatever the status for scales of floats is */
      attn_ctx ctx = test_ctx();
      assert_int_not_equal(s->does.call(s, &ctx), ATTN_OK);
      continue;
    }
    promise_reject(&s->does, want, word);
  }
  multihead_shape x = multihead_plain(3, 1, 2, 2);
  multihead *s = multihead_build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_multihead(s->y, s->x, absent(), absent(), NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}

/* ---- products below f32 -----------------------------------------------------------------------*/

void O1_multihead(void **state) {
  (void)state;
  test_rng rng = test_seed(310);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    multihead_shape x = multihead_plain(n ? 5 : 150, 4, 18, 20);
    x.kv_heads = 2, x.dm = 37, x.w_type = n ? ATTN_BF16 : ATTN_F32, x.want = WANT_Y;
    multihead *s = multihead_build(&x, &rng);
    attn_multihead_params *p = &s->p;
    test_layer(&s->does, &p->compute, &p->compute_prefer, 0, 0.04, "params.compute");
    test_layer(&s->does, &p->attention.compute, &p->attention.compute_prefer, 1, 0.04,
               "params.compute");
  }
}

/* The bits are those of four products and an attention. */
void O1_multihead_bits(void **state) {
  (void)state;
  test_rng rng = test_seed(311);
  enum { T = 90, H = 3, DK = 8, DV = 12, DM = 40 };
  for (int n = 0; n < 4; n++, test_mem_release()) {
    multihead_shape x = multihead_plain(T, H, DK, DV);
    x.dm = x.dmo = DM, x.want = WANT_Y, x.w_type = n % 2 ? ATTN_F16 : ATTN_F32;
    multihead *s = multihead_build(&x, &rng);
    attn_multihead_params *p = &s->p;
    p->compute = n < 2 ? ATTN_COMPUTE_BF16 : ATTN_COMPUTE_F16;
    p->attention.compute = n == 1 ? ATTN_COMPUTE_I8 : n == 3 ? ATTN_COMPUTE_F32 : p->compute;
    promise_run(&s->does);
    const attn_tensor *w[3] = {&p->w_q, &p->w_k, &p->w_v}, *b[3] = {&p->b_q, &p->b_k, &p->b_v};
    attn_tensor t[4], y = test_tensor(s->y.dtype, TEST_BHTD, 1, 1, T, DM);
    attn_gemm_params g;
    memset(&g, 0, sizeof g);
    g.compute = p->compute;
    for (int i = 0; i < 4; i++) {
      const int64_t d = i < 2 ? DK : DV;
      attn_ctx ctx = test_ctx();
      t[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, H * d);
      g.bias = i < 3 ? *b[i] : absent();
      if (i < 3) assert_int_equal(attn_gemm(t[i], s->x, *w[i], &g, &ctx), ATTN_OK);
      t[i].heads = H, t[i].dim = d, t[i].stride_head = d;
    }
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(t[3], t[0], t[1], t[2], &p->attention, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.compute, p->attention.compute);
    t[3].heads = 1, t[3].dim = H * DV, g.bias = p->b_o;
    assert_int_equal(attn_gemm(y, t[3], p->w_o, &g, &ctx), ATTN_OK);
    test_assert_same(s->y, y, "call by call");
  }
}
