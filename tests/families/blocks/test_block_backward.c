/* tests/families/blocks/test_block_backward.c owns N6, the gradients of encoder and decoder blocks. */

#include "block.h"

typedef struct block_back {
  block *of; /* forward */
  attn_tensor d_x, d_y;
  attn_block_gradients g;
  promise does;
} block_back;

static attn_status run(void *at, attn_ctx *ctx) {
  block_back *s = at;
  const block *b = s->of;
  if (b->kind == BLOCK_ENCODER)
    return attn_encoder_backward(s->d_x, s->d_y, b->x, &b->p, &s->g, ctx);
  return attn_decoder_backward(s->d_x, s->d_y, b->x, b->e, &b->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  block_back *s = at;
  const block *b = s->of;
  if (b->kind == BLOCK_ENCODER)
    return attn_encoder_backward_workspace(s->d_x, s->d_y, b->x, &b->p, &s->g, ctx);
  return attn_decoder_backward_workspace(s->d_x, s->d_y, b->x, b->e, &b->p, &s->g, ctx);
}

static attn_tensor like(const attn_tensor *t) {
  attn_tensor y = absent();
  if (!t->data) return y;
  y = test_tensor(ATTN_F32, TEST_PADDED, t->batch, 1, t->len, t->dim);
  test_fill_value(y, 7);
  return y;
}

static void heads(attn_multihead_gradients *g, const attn_multihead_params *p) {
  g->d_w_q = like(&p->w_q), g->d_w_k = like(&p->w_k), g->d_w_v = like(&p->w_v);
  g->d_w_o = like(&p->w_o), g->d_b_q = like(&p->b_q), g->d_b_k = like(&p->b_k);
  g->d_b_v = like(&p->b_v), g->d_b_o = like(&p->b_o);
  g->d_bias_k = like(&p->bias_k), g->d_bias_v = like(&p->bias_v);
}

static void norm(attn_norm_gradients *g, const attn_norm *n, int64_t dm) {
  if (n->gain) g->d_gain = test_mem((size_t)dm * 4);
  if (n->bias) g->d_bias = test_mem((size_t)dm * 4);
}

/* Gradients of all that it learns. */
static block_back *build(const block_shape *shape, test_rng *rng) {
  block_back *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  block *b = s->of = block_build(shape, rng);
  attn_block_params *p = &b->p;
  p->ff.form.limit = 0; /* has corners */
  attn_norm *const norms[] = {&p->norm_self, &p->norm_ff, &p->norm_cross};
  for (int i = 0; i < 3; i++) /* of some there are none */
    if (norms[i]->gain && shape->batch == 3)
      memset(norms[i], 0, sizeof *norms[i]), norms[i]->kind = ATTN_NORM_NONE;
  s->d_y = drawn(shape->x_type, TEST_BHTD, shape->batch, 1, shape->rows, shape->dm, 1, rng);
  s->d_x =
      output(ATTN_F32, TEST_PADDED, shape->batch, 1, shape->rows, shape->dm, &s->does.block[0]);
  heads(&s->g.self, &p->self);
  s->g.self.d_w_o =
      output(ATTN_F32, TEST_BHTD, 1, 1, p->self.w_o.len, p->self.w_o.dim, &s->does.block[1]);
  if (b->e.data) {
    heads(&s->g.cross, &p->cross);
    s->g.d_e =
        output(ATTN_F32, TEST_PADDED, shape->batch, 1, b->e.len, b->e.dim, &s->does.block[2]);
    s->does.out[2] = &s->g.d_e;
  }
  attn_feed_forward_gradients *f = &s->g.ff;
  f->d_w_1 = like(&p->ff.w_1), f->d_w_2 = like(&p->ff.w_2), f->d_w_3 = like(&p->ff.w_3);
  f->d_b_1 = like(&p->ff.b_1), f->d_b_2 = like(&p->ff.b_2), f->d_b_3 = like(&p->ff.b_3);
  f->d_w_1 = output(ATTN_F32, TEST_BHTD, 1, 1, p->ff.w_1.len, p->ff.w_1.dim, &s->does.block[3]);
  const int64_t dm = shape->dm;
  const attn_norm none = {0}, *const of[] = {&p->norm_self,  &p->norm_cross,  &p->norm_ff,
                                             &p->after_self, &p->after_cross, &p->after_ff};
  attn_norm_gradients *const d[] = {&s->g.norm_self,  &s->g.norm_cross,  &s->g.norm_ff,
                                    &s->g.after_self, &s->g.after_cross, &s->g.after_ff};
  for (int i = 0; i < 6; i++) {
    const int there = of[i]->kind != ATTN_NORM_NONE && (i % 3 != 1 || b->e.data) &&
                      (i < 3 || p->sublayer == ATTN_SUBLAYER_SANDWICH);
    norm(d[i], there ? of[i] : &none, dm);
  }
  s->does.call = run, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->g.self.d_w_o, s->does.out[3] = &f->d_w_1;
  return s;
}

static double loss(const block_back *s) {
  const block *b = s->of;
  const cube y = block_answer(b);
  double sum = 0;
  for (int64_t r = 0; r < y.batch * y.len; r++)
    for (int64_t c = 0; c < y.dim && !(b->p.x_len && r % y.len >= b->p.x_len[r / y.len]); c++)
      sum +=
          cube_at(&y, r / y.len, 0, r % y.len)[c] * oracle_get(&s->d_y, r / y.len, 0, r % y.len, c);
  return sum;
}

/* The loss moves by a number as its gradient says, by differences of the fourth order in float64. */
static void differ(const block_back *s, float *at, double got, const char *what) {
  const float was = *at, step = 1.0f / 256;
  double slope[2];
  for (int n = 0; n < 2; n++) {
    const float up = was + step * (float)(n + 1), down = was - step * (float)(n + 1);
    *at = up;
    const double high = loss(s);
    *at = down;
    slope[n] = (high - loss(s)) / ((double)up - (double)down);
    *at = was;
  }
  const double want = (4 * slope[0] - slope[1]) / 3;
  if (fabs(got - want) > 1e-4 * (1 + fabs(want))) fail_msg("%s: %.9g, not %.9g", what, got, want);
}

static void differ_in(const block_back *s, const attn_tensor *x, const attn_tensor *d,
                      test_rng *rng, const char *what) {
  if (!x->data || !d->data || x->len == 0 || x->dtype != ATTN_F32) return;
  const int64_t b = test_range(rng, 0, x->batch - 1), i = test_range(rng, 0, x->len - 1);
  const int64_t c = test_range(rng, 0, x->dim - 1);
  differ(s, oracle_address(x, b, 0, i, c), oracle_get(d, b, 0, i, c), what);
}

static void differ_heads(const block_back *s, const attn_multihead_params *p,
                         const attn_multihead_gradients *g, test_rng *rng) {
  differ_in(s, &p->w_q, &g->d_w_q, rng, "w_q"), differ_in(s, &p->w_k, &g->d_w_k, rng, "w_k");
  differ_in(s, &p->w_v, &g->d_w_v, rng, "w_v"), differ_in(s, &p->w_o, &g->d_w_o, rng, "w_o");
  differ_in(s, &p->b_q, &g->d_b_q, rng, "b_q"), differ_in(s, &p->b_k, &g->d_b_k, rng, "b_k");
  differ_in(s, &p->b_v, &g->d_b_v, rng, "b_v"), differ_in(s, &p->b_o, &g->d_b_o, rng, "b_o");
  differ_in(s, &p->bias_k, &g->d_bias_k, rng, "bias_k");
  differ_in(s, &p->bias_v, &g->d_bias_v, rng, "bias_v");
}

static void differ_norm(const block_back *s, const attn_norm *n, const attn_norm_gradients *g,
                        test_rng *rng, const char *what) {
  const int64_t c = test_range(rng, 0, s->d_x.dim - 1);
  if (g->d_gain) differ(s, (float *)(uintptr_t)n->gain + c, (double)g->d_gain[c], what);
  if (g->d_bias) differ(s, (float *)(uintptr_t)n->bias + c, (double)g->d_bias[c], what);
}

static void check(const block_back *s, test_rng *rng) {
  const block *b = s->of;
  const attn_block_params *p = &b->p;
  const attn_block_gradients *g = &s->g;
  differ_in(s, &b->x, &s->d_x, rng, "x"), differ_in(s, &b->x, &s->d_x, rng, "x");
  differ_in(s, &b->e, &g->d_e, rng, "e"), differ_in(s, &b->e, &g->d_e, rng, "e");
  differ_heads(s, &p->self, &g->self, rng);
  if (b->e.data) differ_heads(s, &p->cross, &g->cross, rng);
  differ_in(s, &p->ff.w_1, &g->ff.d_w_1, rng, "w_1"),
      differ_in(s, &p->ff.w_2, &g->ff.d_w_2, rng, "w_2");
  differ_in(s, &p->ff.w_3, &g->ff.d_w_3, rng, "w_3"),
      differ_in(s, &p->ff.b_1, &g->ff.d_b_1, rng, "b_1");
  differ_in(s, &p->ff.b_2, &g->ff.d_b_2, rng, "b_2"),
      differ_in(s, &p->ff.b_3, &g->ff.d_b_3, rng, "b_3");
  differ_norm(s, &p->norm_self, &g->norm_self, rng, "norm_self");
  differ_norm(s, &p->norm_cross, &g->norm_cross, rng, "norm_cross");
  differ_norm(s, &p->norm_ff, &g->norm_ff, rng, "norm_ff");
  differ_norm(s, &p->after_self, &g->after_self, rng, "after_self");
  differ_norm(s, &p->after_cross, &g->after_cross, rng, "after_cross");
  differ_norm(s, &p->after_ff, &g->after_ff, rng, "after_ff");
}

static block_shape some(int n, int decoder, int64_t rows, test_rng *rng) {
  static const attn_activation act[] = {ATTN_ACT_GELU, ATTN_ACT_SILU, ATTN_ACT_TANH};
  block_shape x = block_plain(decoder ? BLOCK_DECODER : BLOCK_ENCODER, 1 + n % 3, rows);
  if (decoder && n % 3 == 2) x.e_rows = -1;
  x.sublayer = block_sublayer(n, x.e_rows >= 0), x.act = act[test_u64(rng) % 3];
  x.bias_kv = n % 3 == 1;
  return x;
}

void N6_encoder(void **state) {
  (void)state;
  test_rng rng = test_seed(9620);
  for (int n = 0; n < test_count(24, 8); n++, test_mem_release()) {
    const block_shape x = some(n, 0, test_range(&rng, 1, 9), &rng);
    block_back *s = build(&x, &rng);
    static const int32_t len[] = {5, 0, 7};
    if (n % 4 == 2 && x.rows >= 7) s->of->p.x_len = len;
    promise_run(&s->does);
    check(s, &rng);
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

void N6_decoder(void **state) {
  (void)state;
  test_rng rng = test_seed(9621);
  for (int n = 0; n < test_count(24, 8); n++, test_mem_release()) {
    const block_shape x = some(n, 1, test_range(&rng, 1, 9), &rng);
    block_back *s = build(&x, &rng);
    static const int32_t len[] = {5, 0, 7}, e_len[] = {4, 7, 0};
    if (n % 4 == 2 && x.rows >= 7) s->of->p.x_len = len;
    if (n % 4 == 1 && x.e_rows >= 7) s->of->p.e_len = e_len;
    promise_run(&s->does);
    check(s, &rng);
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* Rows that do not exist reach nothing, whatever they hold; what is kept changes no bit, nor what else is asked for. */
void N6_blocks_unread(void **state) {
  (void)state;
  test_rng rng = test_seed(9622);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    block_shape x = some(n, n & 1, 70, &rng);
    static const int32_t len[] = {50, 70, 0}, e_len[] = {4, 7, 0};
    x.heads = x.kv_heads = 2;
    x.bias_kv = n == 3;
    block_back *s = build(&x, &rng), *t = test_mem(sizeof *t);
    attn_qk_norm norm_of;
    attn_rope_params rope;
    memset(&norm_of, 0, sizeof norm_of), memset(&rope, 0, sizeof rope);
    rope.has_rotary_dim = 1, rope.rotary_dim = 2;
    rope.norm = &norm_of, norm_of.kind = n & 1 ? ATTN_QK_NORM_RMS_ALL : ATTN_QK_NORM_LAYER;
    norm_of.after = n & 1, norm_of.q_gain = norm_of.k_gain = test_floats(2 * x.dk, 1, &rng);
    if (n % 4 == 1 || n % 4 == 2) s->of->p.self.rope = &rope;
    s->of->p.x_len = len, s->of->p.e_len = s->of->e.data ? e_len : NULL;
    promise_run(&s->does);
    *t = *s;
    memset(&t->does, 0, sizeof t->does);
    block *b = t->of = test_mem(sizeof *b);
    *b = *s->of;
    memset(&t->g, 0, sizeof t->g);
    for (int64_t k = 0; k < x.batch; k++) {
      for (int64_t i = len[k]; i < x.rows; i++)
        test_fill_row(b->x, k, 0, i, (double)NAN), test_fill_row(t->d_y, k, 0, i, (double)INFINITY);
      for (int64_t i = e_len[k]; b->e.data && i < 7; i++) test_fill_row(b->e, k, 0, i, (double)NAN);
    }
    if (n < 4) { /* what forward left */
      attn_ctx ctx = test_ctx();
      b->p.self.each = test_tensor(ATTN_F32, TEST_BHTD, x.batch, 2, x.rows, x.dv);
      b->p.self.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, x.batch, 2, x.rows, 1);
      if (b->kind == BLOCK_ENCODER)
        assert_int_equal(attn_encoder(b->y, b->x, &b->p, &ctx), ATTN_OK);
      else
        assert_int_equal(attn_decoder(b->y, b->x, b->e, &b->p, &ctx), ATTN_OK);
      t->g.self.kept = 1;
    }
    t->d_x = output(ATTN_F32, TEST_PADDED, x.batch, 1, x.rows, x.dm, &t->does.block[0]);
    t->g.self.d_w_o = output(ATTN_F32, TEST_BHTD, 1, 1, b->p.self.w_o.len, x.dm, &t->does.block[1]);
    t->g.ff.d_w_1 = output(ATTN_F32, TEST_PADDED, 1, 1, x.dm, b->p.ff.w_1.dim, &t->does.block[3]);
    t->does.out[0] = &t->d_x, t->does.out[1] = &t->g.self.d_w_o, t->does.out[3] = &t->g.ff.d_w_1;
    float gain[2][64];
    if (b->p.self.rope) s->g.self.norm.d_k_gain = gain[0], t->g.self.norm.d_k_gain = gain[1];
    if (b->p.self.rope) promise_run(&s->does);
    if (b->e.data) {
      t->g.cross.d_w_k =
          output(ATTN_F32, TEST_BHTD, 1, 1, x.de, b->p.cross.w_k.dim, &t->does.block[2]);
      t->does.out[2] = &t->g.cross.d_w_k;
    }
    t->does.call = run, t->does.ask = ask, t->does.scene = t;
    promise_run(&t->does);
    test_assert_same(t->d_x, s->d_x, "d_x"),
        test_assert_same(t->g.self.d_w_o, s->g.self.d_w_o, "d_w_o");
    test_assert_same(t->g.ff.d_w_1, s->g.ff.d_w_1, "d_w_1");
    if (b->p.self.rope) assert_memory_equal(gain[0], gain[1], (size_t)x.dk * sizeof **gain);
    if (b->e.data) test_assert_same(t->g.cross.d_w_k, s->g.cross.d_w_k, "d_w_k");
    for (int64_t i = len[0]; i < x.rows; i++) assert_true(oracle_get(&t->d_x, 0, 0, i, 3) == 0);
    attn_ctx ctx = test_ctx();
    t->g.accumulate = 1;
    assert_int_equal(run(t, &ctx), ATTN_OK);
    for (int64_t i = 0; i < x.rows; i += 9)
      value_check(oracle_get(&t->d_x, 0, 0, i, 3), 2 * oracle_get(&s->d_x, 0, 0, i, 3), 1e-5,
                  ATTN_F32, "twice", 0, 0, i, 3);
    value_check(oracle_get(&t->g.ff.d_w_1, 0, 0, 2, 3), 2 * oracle_get(&s->g.ff.d_w_1, 0, 0, 2, 3),
                1e-5, ATTN_F32, "twice", 0, 0, 2, 3);
  }
}

void N6_blocks_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9623);
  for (int n = 0; n < 18; n++, test_mem_release()) {
    block_shape x = block_plain(BLOCK_DECODER, 2, 6);
    x.sublayer = ATTN_SUBLAYER_PRE;
    block_back *s = build(&x, &rng);
    attn_block_gradients *g = &s->g;
    attn_block_params *p = &s->of->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    attn_qk_norm norm_of;
    attn_rope_params rope;
    memset(&norm_of, 0, sizeof norm_of), memset(&rope, 0, sizeof rope);
    rope.has_rotary_dim = 1;
    switch (n) {
      case 0: s->d_x.dim = 8, word = "d_x"; break;
      case 1: s->d_y.len = 5, word = "d_y"; break;
      case 2: g->d_e.len = 5, word = "d_e"; break;
      case 3: g->self.d_w_q.len = 8, word = "d_w_q"; break;
      case 4: g->ff.d_b_2.dim = 6, word = "d_b_2"; break;
      case 5: g->after_ff.d_gain = g->norm_ff.d_gain, want = ATTN_E_NULL, word = "norm"; break;
      case 6: g->accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 7: g->self.accumulate = 1, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 8: g->ff.accumulate = 1, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 9: g->norm_ff.d_gain = s->d_x.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 10: g->cross.d_w_k.data = p->ff.w_1.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 11: g->self.kept = 1, want = ATTN_E_NULL, word = "kept"; break;
      case 12: p->ff.form.limit = -3, want = ATTN_E_VALUE, word = "form"; break;
      case 15:
        g->self.norm.d_q_gain = test_floats(99, 1, &rng), want = ATTN_E_NULL, word = "q_gain";
        break;
      case 16:
      case 17:
        norm_of.q_gain = test_floats(99, 1, &rng), rope.norm = &norm_of, p->cross.rope = &rope;
        g->cross.norm.d_q_gain = n == 16 ? s->d_x.data : (float *)(uintptr_t)norm_of.q_gain;
        want = ATTN_E_OVERLAP, word = "share";
        break;
      case 13: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      default: s->of->e = absent(), want = ATTN_E_NULL, word = "cross"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
