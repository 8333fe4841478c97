/* tests/families/blocks/test_block.c owns the feed-forward in runs, and the encoder and decoder block. */

#include "block.h"
#include "calls/qk_norm.h"
#include "computes.h"

static const attn_activation acts[] = {ATTN_ACT_DEFAULT,   ATTN_ACT_GELU, ATTN_ACT_RELU,
                                       ATTN_ACT_GELU_TANH, ATTN_ACT_SILU, ATTN_ACT_NONE};

/* ---- feed-forward ---------------------------------------------------------------------------*/

typedef struct feed {
  attn_tensor y, x;
  attn_feed_forward ff;
  int64_t chunks;
  promise does;
} feed;

static attn_status feed_call(void *at, attn_ctx *ctx) {
  feed *s = at;
  return attn_feed_forward_rows(s->y, s->x, &s->ff, s->chunks, ctx);
}
static size_t feed_ask(void *at, const attn_ctx *ctx) {
  feed *s = at;
  return attn_feed_forward_rows_workspace(s->y, s->x, &s->ff, s->chunks, ctx);
}

static feed *feed_build(int64_t batch, int64_t rows, int64_t din, int64_t dff, int64_t dout, int n,
                        test_rng *rng) {
  feed *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn((attn_dtype)(n % 3), n % 2 ? TEST_BHTD : TEST_PADDED, batch, 1, rows, din, 1, rng);
  s->ff = drawn_feed(din, dff, dout, n % 4 != 1, (attn_dtype)(n / 3 % 3), rng);
  s->ff.activation = acts[n % 6];
  s->y = output((attn_dtype)(n / 2 % 3), n % 2 ? TEST_BHTD : TEST_NEGATIVE, batch, 1, rows, dout,
                &s->does.block[0]);
  s->does.call = feed_call, s->does.ask = feed_ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

void K7_feed_forward(void **state) {
  (void)state;
  test_rng rng = test_seed(7100);
  for (int n = 0; n < test_count(24, 10); n++, test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 3), rows = test_range(&rng, 1, n % 4 ? 20 : 120);
    const int64_t din = test_range(&rng, 1, n % 5 ? 30 : 140), dout = test_range(&rng, 1, 70);
    const int64_t dff = n % 6 == 5 ? 0 : test_range(&rng, 1, n % 5 ? 40 : 150);
    feed *s = feed_build(batch, rows, din, dff, dout, n, &rng);
    if (n % 8 == 6) { /* nothing but the gate follows the first product */
      s->ff.w_3 = s->ff.w_1, s->ff.b_1 = absent(), s->ff.activation = ATTN_ACT_NONE;
    }
    promise_run(&s->does);
    const cube x = cube_from(&s->x), want = rows_feed(&x, &s->ff);
    cube_check(&want, &s->y, 2e-5, "feed-forward");
  }
}

/* K4: any number of chunks has the same bits, and so has the call in place; the workspace gets less. */
void K4_chunks(void **state) {
  (void)state;
  static const int64_t chunks[] = {1, 2, 7, 40, 1000};
  test_rng rng = test_seed(7101);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    feed *s = feed_build(1 + n % 2, n == 3 ? 230 : 41, 33, n == 2 ? 0 : 67, 33, n, &rng);
    attn_tensor y = test_tensor(s->y.dtype, TEST_BHTD, s->y.batch, 1, s->y.len, 33);
    attn_ctx ctx = test_ctx();
    promise_run(&s->does);
    test_copy(y, s->y);
    const size_t most = feed_ask(s, &ctx);
    for (int k = 0; k < 5; k++) {
      s->chunks = chunks[k];
      test_fill_value(s->y, 3);
      promise_run(&s->does);
      test_assert_same(s->y, y, "chunks");
      if (k > 1 && n < 2) assert_true(feed_ask(s, &ctx) < most);
      feed here = *s;
      if (s->x.dtype != s->y.dtype) continue;
      here.y = here.x = test_tensor(s->y.dtype, TEST_PADDED, s->y.batch, 1, s->y.len, 33);
      test_copy(here.x, s->x);
      here.does.scene = &here;
      promise_run(&here.does);
      test_assert_same(here.y, y, "in place");
    }
  }
}

void K7_feed_forward_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7102);
  for (int n = 0; n < 4; n++)
    promise_keep(&feed_build(2, 70, 20, n == 3 ? 0 : 300, 31, n, &rng)->does);
}

void K7_feed_forward_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7103);
  for (int n = 0; n < 15; n++, test_mem_release()) {
    feed *s = feed_build(1, 6, 5, 8, 5, 0, &rng);
    s->ff.w_3 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 5, 8, 1, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "ff.w_1";
    switch (n) {
      case 0: s->ff.w_1.data = NULL, want = ATTN_E_NULL; break;
      case 1: s->ff.w_1.len = 4; break;
      case 2: s->ff.b_1.dim = 7, word = "ff.b_1"; break;
      case 3: s->ff.w_2.dim = 4, word = "ff.w_2"; break;
      case 4: s->ff.w_2.data = NULL, s->ff.b_1.data = NULL; break;
      case 5: s->ff.b_2.dim = 4, word = "ff.b_2"; break;
      case 6: s->chunks = -1, want = ATTN_E_RANGE, word = "chunks"; break;
      case 7: s->x.len = 5, word = "x must"; break;
      case 8: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      case 9: s->ff.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 10:
        s->x = s->y, s->x.data = (char *)s->y.data + 4, want = ATTN_E_OVERLAP, word = "y ";
        break;
      case 12: s->ff.w_3.dim = 7, word = "ff.w_3"; break;
      case 13:
        s->ff.b_3 = s->ff.b_1, s->ff.w_3 = absent(), want = ATTN_E_NULL, word = "ff.w_3";
        break;
      case 14: s->ff.b_3 = s->ff.b_1, s->ff.b_3.dim = 7, word = "ff.b_3"; break;
      default: s->ff.w_2 = s->y, s->ff.w_2.len = 8, want = ATTN_E_OVERLAP, word = "y "; break;
    }
    if (n == 11) {
      s->ff.w_2 = attn_bhtd(s->y.data, ATTN_F32, 1, 1, 8, 5);
      s->ff.w_2.stride_len = 0;
    }
    promise_reject(&s->does, want, word);
  }
  feed *s = feed_build(1, 6, 5, 8, 5, 0, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_feed_forward_rows(s->y, s->x, NULL, 0, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "ff"));
}

/* ---- blocks ---------------------------------------------------------------------------------*/

static void random_blocks(block_kind kind, uint64_t seed) {
  test_rng rng = test_seed(seed);
  for (int n = 0; n < test_count(24, 8); n++, test_mem_release()) {
    block_shape x = block_plain(kind, 1, 1);
    x.batch = test_range(&rng, 1, 3), x.rows = test_range(&rng, 1, n % 6 ? 14 : 75);
    x.kv_heads = test_range(&rng, 1, 3), x.heads = x.kv_heads * test_range(&rng, 1, 2);
    x.dm = test_range(&rng, 2, n % 7 ? 24 : 140), x.dk = test_range(&rng, 1, 9);
    x.dv = test_range(&rng, 1, 9), x.dff = n % 5 == 4 ? 0 : test_range(&rng, 1, 40);
    x.act = acts[n / 2 % 5], x.biases = n % 5 != 3, x.bias_kv = n % 3 == 0;
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
    x.y_type = (attn_dtype)(n / 2 % 3);
    if (kind == BLOCK_DECODER)
      x.e_rows = n % 4 == 3 ? -1 : test_range(&rng, 0, 20), x.de = test_range(&rng, 1, 15);
    x.sublayer = block_sublayer(n / 2, x.e_rows >= 0);
    block *s = block_build(&x, &rng);
    attn_norm *const norm[] = {&s->p.norm_self,  &s->p.norm_ff,  &s->p.norm_cross,
                               &s->p.after_self, &s->p.after_ff, &s->p.after_cross};
    if (n % 3 == 0) {
      attn_norm *left_out = norm[n / 3 % 6];
      left_out->kind = ATTN_NORM_NONE, left_out->gain = left_out->bias = NULL;
    }
    if (n % 3 == 1) s->p.x_len = test_lengths(x.batch, x.rows, &rng);
    if (n % 3 == 2 && x.e_rows >= 0) s->p.e_len = test_lengths(x.batch, x.e_rows, &rng);
    if (kind == BLOCK_ENCODER) s->p.self.attention.causal = n % 5 == 2;
    s->p.chunks = n % 4;
    block_check(s, 6e-5, kind == BLOCK_ENCODER ? "encoder" : "decoder");
  }
}

void K7_encoder_random(void **state) {
  (void)state;
  random_blocks(BLOCK_ENCODER, 7110);
}

void K7_decoder_random(void **state) {
  (void)state;
  random_blocks(BLOCK_DECODER, 7111);
}

/* One token, no rows of e, no existing rows, a hidden layer of one column; no rows, no batch. */
void K7_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(7112);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    static const int32_t nothing[2] = {0, 0};
    block_shape x = block_plain(n % 2 ? BLOCK_ENCODER : BLOCK_DECODER, 2, 5);
    x.sublayer = block_sublayer(n / 2, x.e_rows >= 0);
    x.x_type = ATTN_F32;
    if (n / 4 == 0) x.rows = 1, x.dff = 1;
    if (n / 4 == 1 && n % 2 == 0) x.e_rows = 0;
    block *s = block_build(&x, &rng);
    if (n / 4 == 2) s->p.x_len = nothing;
    block_check(s, 5e-5, "edge");
    s->x.len = s->y.len = 0;
    attn_ctx ctx = test_ctx();
    s->p.x_len = NULL;
    assert_int_equal(s->does.call(s, &ctx), ATTN_OK);
    s->x.len = s->y.len = x.rows, s->x.batch = s->y.batch = s->e.batch = 0;
    assert_int_equal(s->does.call(s, &ctx), ATTN_OK);
  }
}

/* Rows of an encoder in any order; no weights, no change; entries of a batch by themselves. */
void K7_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(7113);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    /* rows of an encoder in another order */
    block_shape x = block_plain(BLOCK_ENCODER, 2, 19);
    x.sublayer = n ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST;
    block *s = block_build(&x, &rng);
    promise_run(&s->does);
    const int64_t *order = shuffled(19, &rng);
    const attn_tensor y = reordered(s->y, order);
    s->x = reordered(s->x, order);
    promise_run(&s->does);
    test_assert_near(s->y, y, 2e-5, "rows in another order");
    /* no weights behind attention and feed-forward: nothing is added */
    x.biases = 0, x.sublayer = ATTN_SUBLAYER_PRE;
    x.kind = n ? BLOCK_ENCODER : BLOCK_DECODER, x.e_rows = n ? -1 : 6;
    s = block_build(&x, &rng);
    test_fill_value(s->p.self.w_o, 0);
    if (!n) test_fill_value(s->p.cross.w_o, 0);
    test_fill_value(s->p.ff.w_2, 0);
    promise_run(&s->does);
    test_assert_same(s->y, s->x, "identity");
    /* an entry of a batch is a call of its own */
    x.biases = 1;
    s = block_build(&x, &rng);
    promise_run(&s->does);
    block own = *s;
    own.does.scene = &own, own.does.out[0] = &own.y;
    own.x = test_one(s->x, 1, 1, 0, 1), own.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 19, x.dm);
    if (s->e.data) own.e = test_one(s->e, 1, 1, 0, 1);
    promise_run(&own.does);
    test_assert_same(own.y, test_one(s->y, 1, 1, 0, 1), "one entry");
  }
}

/* What lies behind x_len and e_len is never seen, and rows there are 0. */
void K7_padding(void **state) {
  (void)state;
  test_rng rng = test_seed(7114);
  static const int32_t x_len[2] = {11, 4}, e_len[2] = {3, 6};
  for (int n = 0; n < 8; n++, test_mem_release()) {
    block_shape x = block_plain(n % 2 ? BLOCK_ENCODER : BLOCK_DECODER, 2, 17);
    x.sublayer = block_sublayer(n / 2, x.e_rows >= 0);
    block *s = block_build(&x, &rng);
    s->p.x_len = x_len, s->p.e_len = n % 2 ? NULL : e_len;
    for (int b = 0; b < 2; b++) {
      for (int64_t i = x_len[b]; i < 17; i++) test_fill_row(s->x, b, 0, i, (double)NAN);
      for (int64_t i = e_len[b]; s->e.data && i < 7; i++) test_fill_row(s->e, b, 0, i, (double)NAN);
    }
    promise_run(&s->does);
    for (int b = 0; b < 2; b++) {
      block own = *s;
      own.does.scene = &own, own.p.x_len = own.p.e_len = NULL;
      own.x = test_rows(test_one(s->x, b, 1, 0, 1), 0, x_len[b]);
      if (s->e.data) own.e = test_rows(test_one(s->e, b, 1, 0, 1), 0, e_len[b]);
      own.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x_len[b], x.dm);
      promise_run(&own.does);
      test_assert_near(test_rows(test_one(s->y, b, 1, 0, 1), 0, x_len[b]), own.y, 1e-5, "padding");
      for (int64_t i = x_len[b]; i < 17; i++)
        for (int64_t c = 0; c < x.dm; c++) assert_true(oracle_get(&s->y, b, 0, i, c) == 0);
    }
  }
}

/* y may be x. Outputs of the attentions are those of the calls by themselves. */
void K7_in_place(void **state) {
  (void)state;
  test_rng rng = test_seed(7115);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    block_shape x = block_plain(n % 2 ? BLOCK_ENCODER : BLOCK_DECODER, 2, 13);
    x.sublayer = block_sublayer(n / 2, x.e_rows >= 0);
    x.x_type = x.y_type = n / 8 ? ATTN_BF16 : ATTN_F32;
    block *s = block_build(&x, &rng);
    promise_run(&s->does);
    attn_tensor y = test_tensor(x.y_type, TEST_BHTD, 2, 1, 13, x.dm);
    test_copy(y, s->y);
    s->p.self.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 13, 1);
    s->p.self.attention.map = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 13, 13);
    s->p.self.each = test_tensor(ATTN_F32, TEST_PADDED, 2, 4, 13, x.dv);
    s->y = s->x;
    promise_run(&s->does);
    test_assert_same(s->y, y, "in place");
    for (int64_t r = 0; r < 2 * 4 * 13; r++) { /* rows of the map sum to 1 */
      double sum = 0;
      for (int64_t j = 0; j < 13; j++)
        sum += oracle_get(&s->p.self.attention.map, r / 52, r / 13 % 4, r % 13, j);
      assert_true(fabs(sum - 1) < 1e-5);
      if (n % 2 == 0 && r % 13 < 12)
        assert_true(oracle_get(&s->p.self.attention.map, r / 52, r / 13 % 4, r % 13, 12) == 0);
    }
  }
}

/* Sequences end to end are calls of their own, and rows that none has attend to nothing. */
void K7_ragged(void **state) {
  (void)state;
  static const int64_t at[] = {0, 5, 5, 18}, e_at[] = {0, 3, 4, 7};
  static const int32_t no_keys[1] = {0}, all[1] = {20};
  test_rng rng = test_seed(7119);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    block_shape x = block_plain(n % 2 ? BLOCK_ENCODER : BLOCK_DECODER, 1, 20);
    x.sublayer = block_sublayer(n / 2, x.e_rows >= 0);
    block *s = block_build(&x, &rng), own = *s;
    attn_sdpa_params *self = &s->p.self.attention, *cross = &s->p.cross.attention;
    self->ragged.sequences = cross->ragged.sequences = 3;
    self->ragged.q_indptr = self->ragged.kv_indptr = cross->ragged.q_indptr = at,
    cross->ragged.kv_indptr = e_at;
    promise_run(&s->does);
    own.does.scene = &own;
    for (int k = 0; k < 3; k += 2) {
      own.x = test_rows(s->x, at[k], at[k + 1] - at[k]);
      if (s->e.data) own.e = test_rows(s->e, e_at[k], e_at[k + 1] - e_at[k]);
      own.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, own.x.len, x.dm);
      promise_run(&own.does);
      test_assert_same(own.y, test_rows(s->y, at[k], own.x.len), "sequence");
    }
    own.p.self.attention.kv_len = own.p.cross.attention.kv_len = no_keys;
    own.x = test_rows(s->x, 18, 2), own.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, x.dm);
    promise_run(&own.does);
    test_assert_same(own.y, test_rows(s->y, 18, 2), "no sequence");
    s->p.x_len = all;
    promise_reject(&s->does, ATTN_E_RANGE, "ragged");
  }
}

/* A NaN stays in its row and in those that see it. */
void K7_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(7116);
  block_shape x = block_plain(BLOCK_DECODER, 1, 20);
  block *s = block_build(&x, &rng);
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, x.dm);
  test_copy(y, s->y);
  test_fill_row(s->x, 0, 0, 9, (double)NAN);
  promise_run(&s->does);
  test_assert_same(test_rows(s->y, 0, 9), test_rows(y, 0, 9), "rows before NaN");
  for (int64_t i = 9; i < 20; i++) assert_true(isnan(oracle_get(&s->y, 0, 0, i, 0)));
}

void K7_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7117);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    static const block_kind kinds[] = {BLOCK_ENCODER, BLOCK_DECODER, BLOCK_STEP, BLOCK_ENCODER,
                                       BLOCK_DECODER};
    block_shape x = block_plain(kinds[n], 2, n == 2 ? 3 : 100);
    x.dm = 40, x.dff = 300, x.y_type = n ? ATTN_F32 : ATTN_F16, x.w_type = ATTN_F16;
    x.sublayer = n == 2 ? ATTN_SUBLAYER_PRE : block_sublayer(n < 2 ? n : 6 - n, 0);
    if (n == 3) x.e_rows = -1;
    x.bias_kv = n > 0;
    block *s = block_build(&x, &rng);
    if (n == 2) {
      s->cache = block_cache(s, 9, ATTN_F32, TEST_BTHD), s->cache.len = 4;
      test_fill(s->cache.e_k, &rng, test_normal), test_fill(s->cache.e_v, &rng, test_normal);
      s->does.out[1] = &s->cache.k, s->does.out[2] = &s->cache.v;
    }
    promise_keep(&s->does);
  }
}

void K7_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7118);
  static int32_t bad[1] = {99}, good[1] = {3};
  for (int n = 0; n < 41; n++, test_mem_release()) {
    block_shape x = block_plain(n < 5 ? BLOCK_ENCODER : BLOCK_DECODER, 1, 6);
    block *s = block_build(&x, &rng);
    attn_block_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: p->self.w_q.data = NULL, want = ATTN_E_NULL, word = "w_q"; break;
      case 1: p->self.heads = 3, p->self.kv_heads = 0, want = ATTN_E_HEADS, word = "heads"; break;
      case 2: p->ff.w_1.data = NULL, want = ATTN_E_NULL, word = "ff.w_1"; break;
      case 3: p->x_len = bad, want = ATTN_E_RANGE, word = "x_len"; break;
      case 4: s->y.dim = 11, word = "y must"; break;
      case 5: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 6: p->sublayer = ATTN_SUBLAYER_PLAIN, want = ATTN_E_RANGE, word = "sublayer"; break;
      case 7: p->chunks = -1, want = ATTN_E_RANGE, word = "chunks"; break;
      case 8: p->self.w_o.dim = 11, p->self.b_o.data = NULL, word = "y must"; break;
      case 9: p->self.w_k.len = 11, word = "w_k"; break;
      case 10: p->self.b_v.dim = 5, word = "b_v"; break;
      case 11: p->cross.w_k.len = 8, word = "w_k"; break;
      case 12: p->cross.w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 13: p->ff.w_2.dim = 11, word = "ff.w_2"; break;
      case 14: p->norm_self.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 15: p->norm_cross.eps = NAN, want = ATTN_E_VALUE, word = "eps"; break;
      case 16: p->norm_ff.eps = INFINITY, want = ATTN_E_VALUE, word = "eps"; break;
      case 17: p->e_len = bad, want = ATTN_E_RANGE, word = "e_len"; break;
      case 18: s->e.data = NULL, want = ATTN_E_NULL, word = "cross"; break;
      case 19: p->cross.w_q.data = NULL, want = ATTN_E_NULL, word = "cross"; break;
      case 20:
        p->x_len = good, p->self.attention.kv_len = good, want = ATTN_E_RANGE,
        word = "self.attention";
        break;
      case 21:
        p->e_len = good, p->cross.attention.kv_len = good, want = ATTN_E_RANGE,
        word = "cross.attention";
        break;
      case 22: s->y.data = s->e.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 23: s->y.data = p->self.w_k.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 24:
        s->y = s->x, s->y.data = (char *)s->x.data + 4, want = ATTN_E_OVERLAP, word = "y ";
        break;
      case 25: p->norm_cross.gain = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 26: p->self.attention.scale = INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 27:
        p->cross.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 5, 1), word = "lse";
        break;
      case 28:
        p->cross.attention.mask = attn_mask_bool(s->y.data, 1, 1, 6, 7);
        want = ATTN_E_OVERLAP, word = "output";
        break;
      case 29: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      case 30: s->e.batch = 2, s->e.stride_batch = 0, word = "e must"; break;
      case 31: p->ff.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 32: /* in place, but not quite */
        s->y = s->x, s->y.stride_len++, want = ATTN_E_OVERLAP, word = "y ";
        break;
      case 33:
        p->sublayer = ATTN_SUBLAYER_PARALLEL, want = ATTN_E_RANGE, word = "cross attention";
        break;
      case 34: p->sublayer = ATTN_SUBLAYER_COUNT, want = ATTN_E_RANGE, word = "sublayer"; break;
      case 35:
        p->sublayer = ATTN_SUBLAYER_SANDWICH, p->after_cross.eps = -1;
        want = ATTN_E_VALUE, word = "eps";
        break;
      case 36: p->norm_ff.kind = ATTN_NORM_COUNT, want = ATTN_E_RANGE, word = "_NONE"; break;
      case 37:
        p->sublayer = ATTN_SUBLAYER_SANDWICH, p->after_ff.gain = s->y.data;
        want = ATTN_E_OVERLAP, word = "y ";
        break;
      case 38: p->ff.form.slope = -1, want = ATTN_E_VALUE, word = "form"; break;
      case 39:
        p->ff.w_3.data = p->ff.b_3.data = NULL, p->ff.form.gate_add = 1;
        want = ATTN_E_RANGE, word = "form.gate_add";
        break;
      default:
        p->self.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 6, 1);
        p->cross.attention.lse = p->self.attention.lse, want = ATTN_E_OVERLAP, word = "lse";
        break;
    }
    promise_reject(&s->does, want, word);
  }
  block_shape x = block_plain(BLOCK_ENCODER, 1, 6);
  block *s = block_build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_encoder(s->y, s->x, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}

/* ---- products below f32 -----------------------------------------------------------------------*/

void O1_feed_forward(void **state) {
  (void)state;
  test_rng rng = test_seed(7130);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    feed *s = feed_build(2, n ? 30 : 250, 33, n == 1 ? 0 : 70, 50, 3 * n, &rng);
    attn_feed_forward *ff = &s->ff;
    s->y = output(ATTN_F32, TEST_PADDED, 2, 1, s->x.len, 50, &s->does.block[0]);
    s->chunks = n, ff->activation = ATTN_ACT_GELU, ff->w_3 = ff->b_3 = absent();
    ff->form.gate_add = 0;
    test_layer(&s->does, &ff->compute, &ff->compute_prefer, 0, 0.03, "ff.compute");
    /* the bits are those of two products */
    for (int mode = ATTN_COMPUTE_BF16; mode <= ATTN_COMPUTE_F16; mode++) {
      attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, s->x.len, 50);
      attn_tensor middle = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, s->x.len, 70);
      attn_gemm_params g;
      attn_ctx ctx = test_ctx();
      memset(&g, 0, sizeof g);
      g.compute = ff->compute = (attn_compute)mode, g.bias = ff->b_1, g.activation = ATTN_ACT_GELU;
      g.form = ff->form;
      promise_run(&s->does);
      assert_int_equal(attn_gemm(n == 1 ? y : middle, s->x, ff->w_1, &g, &ctx), ATTN_OK);
      g.bias = ff->b_2, g.activation = ATTN_ACT_NONE, g.form.slope = g.form.limit = 0;
      if (n != 1) assert_int_equal(attn_gemm(y, middle, ff->w_2, &g, &ctx), ATTN_OK);
      test_assert_same(s->y, y, "product by product");
    }
  }
}

/* ---- weights of codes --------------------------------------------------------------------------*/

/* Weights of 8 and 4 bits in every matrix of a block, as they lie in files too: by the oracle of what they stand for. */
void O5_blocks(void **state) {
  (void)state;
  test_rng rng = test_seed(7140);
  for (int n = 0; n < test_count(16, 8); n++, test_mem_release()) {
    block_shape x = block_plain(n % 2 ? BLOCK_ENCODER : BLOCK_DECODER, 2, n % 4 < 2 ? 3 : 30);
    x.dm = 40, x.dk = 6, x.dv = 4, x.dff = 70, x.de = 36, x.biases = n % 3 > 0;
    x.sublayer = block_sublayer(n / 2, x.e_rows >= 0);
    block *s = block_build(&x, &rng), wide;
    block_code(s, &wide, n / 4 % 2 ? ATTN_I4 : ATTN_I8, n % 3 == 2 ? 0 : 32, n / 2 % 2, n % 3 == 1,
               &rng);
    promise_run(&s->does);
    block_near(&wide, s->y, 6e-5, "a block of codes");
    if (n < 2) promise_keep(&s->does);
  }
}

/* What is wrong with scales is said before anything is written. */
void O5_blocks_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7141);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_DECODER, 1, 5);
    x.dm = 40, x.dk = 6, x.dv = 4, x.dff = 70, x.de = 36;
    block *s = block_build(&x, &rng), wide;
    attn_block_params *p = &s->p;
    block_code(s, &wide, ATTN_I8, 32, n % 2 && n != 5, 1, &rng);
    attn_status want = ATTN_E_NULL;
    const char *word = "";
    switch (n) {
      case 0: p->self.w_q_scales.scale = NULL, word = "w_q_scales"; break;
      case 1: p->cross.w_v_scales.scale = NULL, word = "w_v_scales"; break;
      case 2: p->ff.w_2_scales.scale = NULL, word = "ff.w_2_scales"; break;
      case 3: p->self.w_o_scales.group = 31, want = ATTN_E_SHAPE, word = "w_o_scales"; break;
      case 4: p->ff.w_1_scales.group = -32, want = ATTN_E_SHAPE, word = "ff.w_1_scales"; break;
      case 5: p->self.w_k = wide.p.self.w_k, want = ATTN_E_DTYPE, word = "w_k_scales"; break;
      case 6: p->cross.w_q_scales.zero = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 7: p->ff.w_1_scales.scale = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      default: p->self.w_v.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "w_v"; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- rotations and norms of queries and keys ------------------------------------------------*/

static void norm_rows(attn_tensor y, attn_tensor x, const attn_layer_norm_params *p) {
  attn_ctx ctx = test_ctx();
  assert_int_equal(
      p->norm.kind == ATTN_NORM_RMS ? attn_rms_norm(y, x, p, &ctx) : attn_layer_norm(y, x, p, &ctx),
      ATTN_OK);
}

/* The encoder as the calls that it is made of: norms of rows, products, rotations and norms of heads, attention,
 * feed-forward. */
static void encoder_by_hand(const block *s, const char *what) {
  const attn_block_params *p = &s->p;
  const attn_multihead_params *self = &p->self;
  const int64_t b = s->x.batch, len = s->x.len, dm = s->x.dim;
  const int64_t h = self->heads, kv = self->kv_heads ? self->kv_heads : h;
  const int64_t dk = self->w_q.dim / h, dv = self->w_v.dim / kv;
  const int pre = p->sublayer == ATTN_SUBLAYER_PRE;
  attn_tensor rows = test_tensor(ATTN_F32, TEST_BHTD, b, 1, len, dm), normed = rows;
  attn_tensor heads[4] = {test_tensor(ATTN_F32, TEST_BTHD, b, h, len, dk),
                          test_tensor(ATTN_F32, TEST_BTHD, b, kv, len, dk),
                          test_tensor(ATTN_F32, TEST_BTHD, b, kv, len, dv),
                          test_tensor(ATTN_F32, TEST_BTHD, b, h, len, dv)};
  attn_tensor sum = test_tensor(ATTN_F32, TEST_BHTD, b, 1, len, dm);
  attn_tensor fed = test_tensor(ATTN_F32, TEST_BHTD, b, 1, len, dm);
  attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, b, 1, len, dm);
  const attn_tensor w[3] = {self->w_q, self->w_k, self->w_v};
  const attn_tensor bias[3] = {self->b_q, self->b_k, self->b_v};
  attn_layer_norm_params first, last;
  attn_gemm_params g;
  attn_ctx ctx = test_ctx();
  memset(&first, 0, sizeof first), memset(&last, 0, sizeof last), memset(&g, 0, sizeof g);
  first.norm = p->norm_self, last.norm = p->norm_ff;
  test_copy(rows, s->x);
  if (pre) {
    normed = test_tensor(ATTN_F32, TEST_BHTD, b, 1, len, dm);
    norm_rows(normed, rows, &first);
  }
  for (int n = 0; n < 3; n++) {
    const attn_tensor side =
        attn_bhtd(heads[n].data, ATTN_F32, b, 1, len, heads[n].heads * heads[n].dim);
    g.bias = bias[n];
    assert_int_equal(attn_gemm(side, normed, w[n], &g, &ctx), ATTN_OK);
    if (n == 2) continue;
    attn_rope_params turn = *self->rope;
    turn.keys = n;
    assert_int_equal(attn_rope(heads[n], heads[n], &turn, &ctx), ATTN_OK);
  }
  attn_sdpa_params a = self->attention;
  a.kv_len = a.q_len = p->x_len;
  if (self->rope->norm && self->rope->norm->kind == ATTN_QK_NORM_L2 && a.scale == 0) a.scale = 1;
  assert_int_equal(attn_sdpa(heads[3], heads[0], heads[1], heads[2], &a, &ctx), ATTN_OK);
  g.bias = self->b_o;
  assert_int_equal(
      attn_gemm(sum, attn_bhtd(heads[3].data, ATTN_F32, b, 1, len, h * dv), self->w_o, &g, &ctx),
      ATTN_OK);
  if (pre) {
    last.residual = rows, last.sum = test_tensor(ATTN_F32, TEST_BHTD, b, 1, len, dm);
    norm_rows(normed, sum, &last);
    assert_int_equal(attn_feed_forward_rows(fed, normed, &p->ff, 0, &ctx), ATTN_OK);
    rows = last.sum;
    for (int64_t e = 0; e < b * len * dm; e++)
      ((float *)want.data)[e] = ((float *)rows.data)[e] + ((float *)fed.data)[e];
  } else {
    first.residual = rows;
    norm_rows(sum, sum, &first);
    assert_int_equal(attn_feed_forward_rows(fed, sum, &p->ff, 0, &ctx), ATTN_OK);
    last.residual = sum;
    norm_rows(want, fed, &last);
  }
  for (int64_t e = 0; p->x_len && e < b; e++)
    for (int64_t i = p->x_len[e]; i < len; i++) test_fill_row(want, e, 0, i, 0);
  if (s->y.dtype == ATTN_F32)
    test_assert_same(s->y, want, what);
  else
    test_assert_near(s->y, want, 0.01, what);
}

/* What the block makes, and that its rows differ from those without rotation or norm. */
static void check_turned(block *s, const char *what) {
  promise_run(&s->does);
  encoder_by_hand(s, what);
  const attn_tensor y = s->y;
  promise_keep(&s->does);
  s->p.self.rope = NULL, s->y = test_tensor(y.dtype, TEST_BHTD, y.batch, 1, y.len, y.dim);
  promise_run(&s->does);
  assert_false(test_same(s->y, y));
}

void M4_encoder_by_hand(void **state) {
  (void)state;
  test_rng rng = test_seed(7140);
  for (int n = 0; n < test_count(16, 8); n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_ENCODER, 2, n % 5 == 4 ? 70 : test_range(&rng, 2, 14));
    x.sublayer = n % 2 ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST, x.dk = 6;
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
    x.y_type = (attn_dtype)(n / 4 % 3);
    block *s = block_build(&x, &rng);
    int64_t *at = test_mem((size_t)(2 * 3 * x.rows) * sizeof *at);
    attn_rope_params rope;
    memset(&rope, 0, sizeof rope);
    rope.start = n * 5 - 20, rope.layout = n % 3 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    for (int64_t i = 0; i < 2 * 3 * x.rows; i++) at[i] = test_range(&rng, -50, 200);
    if (n % 8 == 1) rope.type = ATTN_ROPE_LINEAR, rope.factor = 4;
    if (n % 8 == 2) rope.xpos = 512;
    if (n % 8 == 3) rope.rotary_dim = 4;
    if (n % 8 == 4) rope.positions = at, rope.positions_per_batch = 1;
    if (n % 8 == 5)
      rope.positions = at,
      rope.mrope_section[0] = rope.mrope_section[1] = rope.mrope_section[2] = 1;
    if (n % 8 == 6) rope.positions = at, rope.rotary_dim = 4, rope.axial = 1;
    s->p.self.rope = &rope, s->p.self.attention.causal = n % 4 == 3;
    if (n % 4 == 1) s->p.x_len = test_lengths(2, x.rows, &rng);
    check_turned(s, "an encoder whose heads turn");
  }
}

void M2_qk_norm_encoder(void **state) {
  (void)state;
  test_rng rng = test_seed(7141);
  for (int n = 0; n < test_count(16, 8); n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_ENCODER, 2, n % 5 == 4 ? 70 : test_range(&rng, 2, 14));
    x.sublayer = n / 2 % 2 ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST, x.dk = 6;
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
    block *s = block_build(&x, &rng);
    attn_qk_norm norm = qk_norm_described(&rng, n % 4, x.heads, x.kv_heads, x.dk);
    attn_rope_params rope;
    memset(&rope, 0, sizeof rope);
    rope.norm = &norm, rope.has_rotary_dim = n / 4 % 2, norm.after = n % 3 == 2;
    s->p.self.rope = &rope, s->p.self.attention.causal = n % 5 == 3;
    if (n % 4 == 1) s->p.x_len = test_lengths(2, x.rows, &rng);
    check_turned(s, "an encoder with norms of queries and keys");
  }
}

void O1_blocks(void **state) {
  (void)state;
  test_rng rng = test_seed(7131);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    block_shape x = block_plain((block_kind)n, 2, n == 2 ? 3 : 40);
    x.dm = 40, x.dff = 80, x.sublayer = n ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST;
    block *s = block_build(&x, &rng);
    attn_multihead_params *self = &s->p.self;
    if (n == 2) {
      s->cache = block_cache(s, 9, ATTN_F32, TEST_BTHD), s->cache.len = 4;
      test_fill(s->cache.k, &rng, test_normal), test_fill(s->cache.v, &rng, test_normal);
      test_fill(s->cache.e_k, &rng, test_normal), test_fill(s->cache.e_v, &rng, test_normal);
    }
    test_layer(&s->does, &self->compute, &self->compute_prefer, 0, 0.03, "params.compute");
    test_layer(&s->does, &self->attention.compute, &self->attention.compute_prefer, 1, 0.03,
               "params.compute");
    test_layer(&s->does, &s->p.ff.compute, &s->p.ff.compute_prefer, 0, 0.03, "ff.compute");
    if (n)
      test_layer(&s->does, &s->p.cross.compute, &s->p.cross.compute_prefer, 0, 0.03,
                 "params.compute");
  }
}
