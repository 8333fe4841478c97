/* tests/families/blocks/test_decoder.c owns a decoder block's step behind its cache. */

#include "block.h"
#include "calls/qk_norm.h"

/* Token by token, or a prompt first, is the causal pass over all tokens: in its bits where attention is
 * told to keep one order, else up to rounding. */
void K7_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(7200);
  for (int n = 0; n < test_count(16, 8); n++, test_mem_release()) {
    static const int32_t e_len[2] = {2, 5};
    block_shape x = block_plain(BLOCK_DECODER, 2, n % 8 == 7 ? 70 : test_range(&rng, 2, 12));
    if (n % 4 == 2) x.e_rows = -1;
    if (n % 8 == 5) x.e_rows = 0;
    x.sublayer = block_sublayer(n % 8 == 6 ? 3 : n, x.e_rows >= 0);
    x.x_type = (attn_dtype)(n % 3), x.biases = n % 5 != 1, x.bias_kv = n % 4 != 1;
    const attn_dtype type = n % 4 == 3 ? ATTN_BF16 : ATTN_F32;
    const int exact = n % 3 != 1 && type == ATTN_F32;
    block *s = block_build(&x, &rng);
    s->p.self.attention.one_order = s->p.cross.attention.one_order = exact;
    if (x.e_rows > 0 && n % 8 > 3) s->p.e_len = e_len;
    if (n % 8 == 6) test_left(&s->p.self.attention, 3);
    attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, x.rows, x.dm);
    attn_decoder_cache c =
        block_cache(s, x.rows + n % 2, type, n / 2 % 2 ? TEST_BTHD : TEST_PADDED);
    promise_run(&s->does);
    block_decode(s, &c, y, n % 3 == 0 ? 1 : test_range(&rng, 1, x.rows));
    if (exact) test_assert_same(y, s->y, "steps");
    if (!exact) test_assert_near(y, s->y, type == ATTN_F32 ? 3e-5 : 0.1, "steps");
    /* back by one, and once more */
    const attn_tensor last = test_rows(y, x.rows - 1, 1);
    attn_tensor again = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 1, x.dm);
    attn_ctx ctx = test_ctx();
    c.len--;
    assert_int_equal(attn_decoder_step(again, test_rows(s->x, x.rows - 1, 1), &c, &s->p, &ctx),
                     ATTN_OK);
    if (exact) test_assert_same(again, last, "once more");
  }
}

/* Steps through weights of codes, into heads side by side and apart, whose columns are then cut from the matrix;
 * of heads of odd width every second one begins within a byte of nibbles. */
void O5_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(7220);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_DECODER, 2, 9);
    x.dm = 40, x.dk = n < 8 ? 6 : 5, x.dv = n < 8 ? 4 : 3, x.dff = 70, x.de = 36,
    x.sublayer = block_sublayer(n / 4, 1);
    block *s = block_build(&x, &rng), wide;
    block_code(s, &wide, n / 2 % 2 ? ATTN_I4 : ATTN_I8, 32, n % 2, n % 3 > 0, &rng);
    s->p.self.attention.one_order = s->p.cross.attention.one_order = 1;
    attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, x.rows, x.dm);
    attn_decoder_cache c = block_cache(&wide, x.rows, ATTN_F32, n % 4 ? TEST_BHTD : TEST_BTHD);
    promise_run(&s->does);
    block_decode(s, &c, y, 4);
    test_assert_same(y, s->y, "steps");
    block_near(&wide, y, 6e-5, "steps");
  }
}

/* The same where queries and keys are rotated, by positions that go on from the cache; and a cache of 16 bits
 * rounds keys once, after their rotation. */
void M4_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(7210);
  for (int n = 0; n < test_count(12, 8); n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_DECODER, 2, n % 8 == 7 ? 70 : test_range(&rng, 2, 12));
    x.sublayer = n % 2 ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST;
    if (n % 4 == 2) x.e_rows = -1;
    x.x_type = (attn_dtype)(n % 3), x.bias_kv = 0, x.dk = 6;
    const attn_dtype type = n % 4 == 3 ? ATTN_BF16 : ATTN_F32;
    int64_t at[70];
    attn_rope_params rope;
    memset(&rope, 0, sizeof rope);
    rope.start = n * 5 - 20, rope.layout = n % 3 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    for (int i = 0; i < 70; i++) at[i] = i * i % 23;
    if (n % 5 == 3) rope.positions = at;
    if (n % 5 == 4) rope.xpos = 512;
    block *s = block_build(&x, &rng);
    s->p.self.attention.one_order = s->p.cross.attention.one_order = 1, s->p.self.rope = &rope;
    attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, x.rows, x.dm);
    attn_decoder_cache c =
        block_cache(s, x.rows + n % 2, type, n / 2 % 2 ? TEST_BTHD : TEST_PADDED);
    promise_run(&s->does);
    const attn_tensor plain = s->y;
    block_decode(s, &c, y, n % 3 == 0 ? 1 : test_range(&rng, 1, x.rows));
    if (type == ATTN_F32) test_assert_same(y, plain, "steps");
    if (type != ATTN_F32) test_assert_near(y, plain, 0.1, "steps");
    promise_keep(&s->does);
    /* it does something */
    s->p.self.rope = NULL, s->y = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, x.rows, x.dm);
    promise_run(&s->does);
    double most = 0;
    for (int64_t i = 0; i < 2 * x.rows * x.dm; i++) {
      const int64_t b = i / x.dm / x.rows, r = i / x.dm % x.rows, col = i % x.dm;
      most = fmax(most, fabs(oracle_get(&s->y, b, 0, r, col) - oracle_get(&plain, b, 0, r, col)));
    }
    assert_true(most > 1e-4);
  }
}

/* Norms of queries and keys, of self attention with a rotation, of cross attention without. */
void M2_qk_norm_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(2660);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_DECODER, 2, n == 7 ? 70 : test_range(&rng, 2, 12));
    x.sublayer = n % 2 ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST, x.bias_kv = 0, x.dk = 6;
    block *s = block_build(&x, &rng);
    const int64_t h = s->p.self.heads, kv = s->p.self.kv_heads ? s->p.self.kv_heads : h;
    const int64_t hc = s->p.cross.heads, kvc = s->p.cross.kv_heads ? s->p.cross.kv_heads : hc;
    attn_qk_norm norm = qk_norm_described(&rng, n % 4, h, kv, 6);
    attn_qk_norm other = qk_norm_described(&rng, n / 2, hc, kvc, 6);
    attn_rope_params rope, cross;
    memset(&rope, 0, sizeof rope), memset(&cross, 0, sizeof cross);
    rope.start = n * 5 - 20, rope.norm = &norm, cross.norm = &other, cross.has_rotary_dim = 1;
    s->p.self.attention.one_order = s->p.cross.attention.one_order = 1;
    s->p.self.rope = &rope, s->p.cross.rope = &cross;
    attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, x.rows, x.dm);
    attn_decoder_cache c = block_cache(s, x.rows + 1, ATTN_F32, n % 2 ? TEST_BTHD : TEST_PADDED);
    promise_run(&s->does);
    const attn_tensor plain = s->y;
    block_decode(s, &c, y, n % 3 == 0 ? 1 : test_range(&rng, 1, x.rows));
    test_assert_same(y, plain, "steps");
    promise_keep(&s->does);
    attn_ctx ctx = test_ctx();
    attn_gemm_params g;
    memset(&g, 0, sizeof g);
    g.bias = s->p.cross.b_k;
    const int64_t te = s->e.len;
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, 2, kvc, te, 6);
    assert_int_equal(
        attn_gemm(attn_bhtd(k.data, ATTN_F32, 2, 1, te, kvc * 6), s->e, s->p.cross.w_k, &g, &ctx),
        ATTN_OK);
    cross.keys = 1;
    assert_int_equal(attn_rope(k, k, &cross, &ctx), ATTN_OK);
    test_assert_same(c.e_k, k, "keys of cross attention");
  }
}

/* The key that a step stores is the rotated one, rounded once. */
void M4_decode_keys(void **state) {
  (void)state;
  test_rng rng = test_seed(7211);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_DECODER, 2, 5);
    x.bias_kv = 0, x.dk = 6, x.e_rows = -1, x.sublayer = ATTN_SUBLAYER_POST;
    const attn_dtype type = n % 2 ? ATTN_F16 : ATTN_F32;
    block *s = block_build(&x, &rng);
    attn_rope_params rope;
    memset(&rope, 0, sizeof rope);
    rope.start = 1000, rope.xpos = n / 2 ? 512 : 0, rope.keys = 1;
    s->p.self.rope = &rope;
    attn_decoder_cache c = block_cache(s, 7, type, TEST_BHTD);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 5, x.dm);
    block_decode(s, &c, y, 3);
    attn_ctx ctx = test_ctx();
    attn_gemm_params g;
    memset(&g, 0, sizeof g);
    g.bias = s->p.self.b_k;
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, 2, c.k.heads, 5, 6);
    attn_tensor want = test_tensor(type, TEST_BHTD, 2, c.k.heads, 5, 6);
    assert_int_equal(attn_gemm(attn_bhtd(k.data, ATTN_F32, 2, 1, 5, c.k.heads * 6), s->x,
                               s->p.self.w_k, &g, &ctx),
                     ATTN_OK);
    assert_int_equal(attn_rope(want, k, &rope, &ctx), ATTN_OK);
    test_assert_same(test_rows(c.k, 0, 5), want, "keys of the cache");
  }
}

void M4_decode_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7212);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_STEP, 1, 3);
    x.bias_kv = 0, x.dk = 6;
    block *s = block_build(&x, &rng);
    attn_decoder_cache *c = &s->cache;
    attn_rope_params rope;
    memset(&rope, 0, sizeof rope);
    *c = block_cache(s, 8, ATTN_F32, TEST_BHTD);
    c->len = 5;
    test_fill(c->e_k, &rng, test_normal), test_fill(c->e_v, &rng, test_normal);
    promise_run(&s->does);
    switch (n) {
      case 0: s->p.cross.rope = &rope; break;
      case 1: s->p.self.rope = &rope, rope.rotary_dim = 5; break;
      case 2: s->p.self.rope = &rope, rope.xpos = 512, rope.start = 32762; break;
      case 3:
        s->p.self.rope = &rope,
        rope.positions = (const int64_t *)(((uintptr_t)c->k.data + 7) / 8 * 8);
        promise_reject(&s->does, ATTN_E_OVERLAP, "rope");
        continue;
      default: {
        s->p.cross.rope = &rope;
        attn_ctx ctx = test_ctx();
        assert_int_equal(attn_decoder_start(c, s->e, &s->p, &ctx), ATTN_E_RANGE);
        assert_int_equal(c->len, 5);
        continue;
      }
    }
    promise_reject(&s->does, ATTN_E_RANGE, n ? n == 1 ? "rotary_dim" : "xpos" : "cross.rope");
  }
}

/* Rows of the cache that have no token yet are neither read nor written. */
void K7_decode_room(void **state) {
  (void)state;
  test_rng rng = test_seed(7201);
  block_shape x = block_plain(BLOCK_DECODER, 1, 6);
  block *s = block_build(&x, &rng);
  attn_decoder_cache c = block_cache(s, 9, ATTN_F32, TEST_BHTD);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, x.dm);
  block_decode(s, &c, y, 2);
  for (int64_t r = 0; r < 2 * 9; r++) {
    assert_int_equal(isnan(oracle_get(&c.k, 0, r / 9, r % 9, 0)) != 0, r % 9 >= 6);
    assert_int_equal(isnan(oracle_get(&c.v, 0, r / 9, r % 9, 0)) != 0, r % 9 >= 6);
  }
  for (int64_t i = 0; i < 6; i++) assert_int_equal(isnan(oracle_get(&y, 0, 0, i, 0)) != 0, 0);
  /* no tokens at all */
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_decoder_step(test_rows(y, 0, 0), test_rows(s->x, 0, 0), &c, &s->p, &ctx),
                   ATTN_OK);
  assert_int_equal(c.len, 6);
}

void K7_decode_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7202);
  static int32_t some[1] = {1};
  static const int64_t at[2] = {0, 2};
  for (int n = 0; n < 24; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_STEP, 1, 3);
    block *s = block_build(&x, &rng);
    attn_sdpa_params *a = &s->p.self.attention;
    attn_decoder_cache *c = &s->cache;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    *c = block_cache(s, 8, ATTN_F32, TEST_BHTD);
    c->len = 5;
    test_fill(c->e_k, &rng, test_normal), test_fill(c->e_v, &rng, test_normal);
    promise_run(&s->does);
    switch (n) {
      case 0: c->len = 6, want = ATTN_E_FULL, word = "room"; break;
      case 1: c->len = -1, want = ATTN_E_RANGE, word = "cache.len"; break;
      case 2: c->len = 9, want = ATTN_E_RANGE, word = "cache.len"; break;
      case 3: c->k.dim = 4, word = "cache.k"; break;
      case 4: c->v.len = 7, word = "cache.v"; break;
      case 5: c->v.heads = 1, word = "cache.v"; break;
      case 6: c->k.data = NULL, want = ATTN_E_NULL, word = "cache.k"; break;
      case 7: c->k.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "cache.k"; break;
      case 8: c->e_v.len = 6, word = "cache.e_v"; break;
      case 9: c->e_k.dim = 4, word = "cache.e_k"; break;
      case 10: c->e_k.data = NULL, want = ATTN_E_NULL, word = "cross"; break;
      case 11: s->p.cross.w_q.data = NULL, want = ATTN_E_NULL, word = "cross"; break;
      case 12: s->p.x_len = some, want = ATTN_E_RANGE, word = "x_len"; break;
      case 13: a->kv_len = some, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 14: a->q_len = some, want = ATTN_E_RANGE, word = "q_len"; break;
      case 15: a->has_q_off = 1, want = ATTN_E_RANGE, word = "has_q_off"; break;
      case 16:
        a->ragged.sequences = 1, a->ragged.q_indptr = at, want = ATTN_E_RANGE, word = "ragged";
        break;
      case 17: c->v = c->k, c->v.dim = 3, want = ATTN_E_OVERLAP, word = "cache"; break;
      case 18: s->x.dim = 5, word = "y must"; break;
      case 19: s->y.data = c->e_k.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 20: /* a mask where keys will be written */
        a->mask = attn_mask_bool(c->k.data, 1, 1, 3, 8);
        want = ATTN_E_OVERLAP, word = "output";
        break;
      case 21:
        a->mask = attn_mask_bool(s->x.data, 1, 1, 3, 7), want = ATTN_E_MASK, word = "mask";
        break;
      case 22: s->p.e_len = (int32_t *)c->v.data, want = ATTN_E_OVERLAP, word = "cache"; break;
      default: c->k.stride_len = 2, want = ATTN_E_STRIDE, word = "cache.k"; break;
    }
    if (n == 22) test_fill_value(c->v, 0);
    s->does.out[1] = s->does.out[2] = NULL;
    const attn_tensor k = c->k, v = c->v;
    cube k_was, v_was;
    const int whole = n == 0 || (n >= 10 && n <= 16) || n == 19 || n == 21;
    if (whole) k_was = cube_from(&k), v_was = cube_from(&v);
    promise_reject(&s->does, want, word);
    if (whole) { /* the cache stays, NaN or not */
      const cube k_is = cube_from(&k), v_is = cube_from(&v);
      assert_memory_equal(k_was.data, k_is.data, (size_t)(2 * 8 * 5) * sizeof(double));
      assert_memory_equal(v_was.data, v_is.data, (size_t)(2 * 8 * 3) * sizeof(double));
    }
  }
  block_shape x = block_plain(BLOCK_STEP, 1, 3);
  block *s = block_build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_decoder_step(s->y, s->x, NULL, &s->p, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "cache"));
}

void K7_start(void **state) {
  (void)state;
  test_rng rng = test_seed(7203);
  block_shape x = block_plain(BLOCK_DECODER, 2, 3);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    block *s = block_build(&x, &rng);
    attn_decoder_cache c = block_cache(s, 4, ATTN_F32, n ? TEST_BHTD : TEST_BTHD);
    attn_multihead_params *p = &s->p.cross;
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    c.len = 4;
    switch (n) {
      case 0: want = ATTN_OK; break;
      case 1: c.e_k.len = 6, word = "cache.e_k"; break;
      case 2: c.e_v.batch = 1, word = "cache.e_v"; break;
      case 3: p->w_k.data = NULL, want = ATTN_E_NULL, word = "w_k"; break;
      case 4: p->w_v.len = 8, word = "w_v"; break;
      case 5: p->heads = 8, p->kv_heads = 4, want = ATTN_E_HEADS, word = "kv_heads"; break;
      case 6: p->b_k.dim = 9, word = "b_k"; break;
      case 7: c.e_k.data = s->e.data, want = ATTN_E_OVERLAP, word = "cache.e_k"; break;
      default: s->e.data = NULL, want = ATTN_E_NULL, word = "cross"; break;
    }
    assert_int_equal(attn_decoder_start(&c, s->e, &s->p, &ctx), want);
    if (n) assert_non_null(strstr(ctx.reason, word));
    assert_int_equal(c.len, n ? 4 : 0);
    if (n) continue;
    const cube e = cube_from(&s->e), k = rows_dense(&e, &p->w_k, &p->b_k);
    for (int64_t r = 0; r < 2 * 2 * 7 * 5; r++) {
      const int64_t b = r / 70, h = r / 35 % 2, i = r / 5 % 7, d = r % 5;
      value_check(oracle_get(&c.e_k, b, h, i, d), cube_at(&k, b, 0, i)[h * 5 + d], 1e-5, ATTN_F32,
                  "start", b, h, i, d);
    }
    memset(&s->p.cross, 0, sizeof s->p.cross), s->e.data = NULL, c.len = 4;
    assert_int_equal(attn_decoder_start(&c, s->e, &s->p, &ctx), ATTN_OK);
    assert_int_equal(c.len, 0);
  }
}
