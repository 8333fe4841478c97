/* tests/families/mixers/test_mixer.c owns MLP-Mixer: the block against float64, what follows from its formula, promises
 * and rejections. */

#include "layers.h"

typedef struct scene {
  attn_tensor o, x;
  attn_mixer_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_mixer(s->o, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_mixer_workspace(s->o, s->x, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, len, dm, ds, dc;
  int bias, norms;
  attn_dtype type, w_type, o_type;
} shape;

static shape plain(int64_t len, int64_t dm) {
  shape z = {1, len, dm, 7, 15, 1, 1, ATTN_F32, ATTN_F32, ATTN_F32};
  return z;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(z->type, TEST_PADDED, z->batch, 1, z->len, z->dm, 1, rng);
  s->p.token = drawn_feed(z->len, z->ds, z->len, z->bias, z->w_type, rng);
  s->p.channel = drawn_feed(z->dm, z->dc, z->dm, z->bias, z->w_type, rng);
  s->p.token.w_3 = s->p.token.b_3 = s->p.channel.w_3 = s->p.channel.b_3 = absent();
  memset(&s->p.token.form, 0, sizeof s->p.token.form);
  memset(&s->p.channel.form, 0, sizeof s->p.channel.form);
  if (z->norms)
    s->p.norm_token = drawn_norm(z->dm, rng), s->p.norm_channel = drawn_norm(z->dm, rng);
  s->o = output(z->o_type, TEST_PADDED, z->batch, 1, z->len, z->dm, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static double activation(double x, attn_activation act) {
  const double root = 0.79788456080286535588; /* sqrt(2 / pi) */
  if (act == ATTN_ACT_NONE) return x;
  if (act == ATTN_ACT_RELU) return x > 0 ? x : 0;
  if (act == ATTN_ACT_GELU_TANH) return x / 2 * (1 + tanh(root * (x + 0.044715 * x * x * x)));
  return x * erfc(-x / sqrt(2.0)) / 2;
}

/* f(x w_1 + b_1) w_2 + b_2 of each row of x. */
static cube network(const cube *x, const attn_feed_forward *p) {
  cube h = rows_dense(x, &p->w_1, &p->b_1);
  for (int64_t n = 0; n < h.batch * h.len * h.dim; n++)
    h.data[n] = activation(h.data[n], p->activation);
  return rows_dense(&h, &p->w_2, &p->b_2);
}

static cube turned(const cube *x) {
  cube y = cube_of(x->batch, 1, x->dim, x->len);
  for (int64_t b = 0; b < x->batch; b++)
    for (int64_t i = 0; i < x->len; i++)
      for (int64_t c = 0; c < x->dim; c++) cube_at(&y, b, 0, c)[i] = cube_at(x, b, 0, i)[c];
  return y;
}

static cube want_of(const scene *s) {
  cube x = cube_from(&s->x), t = rows_norm(&x, NULL, &s->p.norm_token);
  t = turned(&t), t = network(&t, &s->p.token), t = turned(&t);
  cube x1 = rows_norm(&x, &t, NULL);
  t = rows_norm(&x1, NULL, &s->p.norm_channel), t = network(&t, &s->p.channel);
  return rows_norm(&x1, &t, NULL);
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  cube want = want_of(s);
  cube_check(&want, &s->o, tolerance, what);
}

static attn_tensor copy_of(attn_tensor t) {
  attn_tensor y = test_tensor(t.dtype, TEST_BHTD, t.batch, t.heads, t.len, t.dim);
  test_copy(y, t);
  return y;
}

/* ---- tests ----------------------------------------------------------------------------------*/

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
static const attn_activation acts[] = {ATTN_ACT_DEFAULT, ATTN_ACT_GELU_TANH, ATTN_ACT_GELU,
                                       ATTN_ACT_RELU, ATTN_ACT_NONE};

void L3_random(void **state) {
  (void)state;
  test_rng rng = test_seed(1300);
  for (int64_t n = test_count(48, 12); n-- > 0; test_mem_release()) {
    shape z = plain(test_range(&rng, 1, 20), test_range(&rng, 1, 20));
    z.batch = test_range(&rng, 1, 3), z.ds = test_range(&rng, 1, n % 4 ? 9 : 40);
    z.dc = test_range(&rng, 1, n % 5 ? 20 : 70);
    z.bias = n % 3 != 0, z.norms = n % 4 != 1;
    z.type = floats[test_range(&rng, 0, 2)], z.w_type = floats[test_range(&rng, 0, 2)];
    z.o_type = floats[test_range(&rng, 0, 2)];
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    s->p.token.activation = acts[test_range(&rng, 0, 4)];
    s->p.channel.activation = acts[test_range(&rng, 0, 4)];
    run(s, 2e-5, "mixer");
  }
}

/* Beyond the rows, columns and depth that a product takes at once. */
void L3_large(void **state) {
  (void)state;
  static const int64_t size[][3] = {{140, 70, 30}, {20, 290, 101}, {101, 18, 150}};
  for (int n = 0; n < 3; n++, test_mem_release()) {
    test_rng rng = test_seed(1310 + (uint64_t)n);
    shape z = plain(size[n][0], size[n][1]);
    z.ds = size[n][2], z.w_type = floats[n], z.type = floats[n * 2 % 3], z.batch = 1 + n / 2;
    run(build(&z, &rng), 2e-5, "mixer, large");
  }
}

/* The two forms of GELU are what they say, and not each other. */
void L3_gelu(void **state) {
  (void)state;
  test_rng rng = test_seed(1320);
  shape z = plain(12, 9);
  scene *s = build(&z, &rng);
  s->p.token.activation = s->p.channel.activation = ATTN_ACT_GELU_TANH;
  run(s, 4e-6, "tanh");
  attn_tensor was = copy_of(s->o);
  s->p.token.activation = s->p.channel.activation = ATTN_ACT_DEFAULT;
  run(s, 4e-6, "exact");
  assert_false(test_same(s->o, was));
}

/* Networks without a last layer change nothing. */
void L3_identity(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    test_rng rng = test_seed(1330 + (uint64_t)n);
    shape z = plain(11, 13);
    z.type = z.o_type = floats[n], z.batch = 2;
    scene *s = build(&z, &rng);
    test_fill_value(s->p.token.w_2, 0), test_fill_value(s->p.channel.w_2, 0);
    s->p.token.b_2 = s->p.channel.b_2 = absent();
    promise_run(&s->does);
    test_assert_same(s->o, s->x, "identity");
  }
}

/* Tokens in another order, with the rows and columns of the token weights and b_2. */
void L3_permutation(void **state) {
  (void)state;
  test_rng rng = test_seed(1340);
  shape z = plain(17, 10);
  scene *s = build(&z, &rng);
  promise_run(&s->does);
  int64_t *order = shuffled(17, &rng);
  attn_tensor was = reordered(s->o, order);
  attn_feed_forward *p = &s->p.token;
  attn_tensor w = copy_of(p->w_2), b = copy_of(p->b_2);
  for (int64_t t = 0; t < 17; t++) {
    for (int64_t c = 0; c < z.ds; c++)
      oracle_set(&w, 0, 0, c, t, oracle_get(&p->w_2, 0, 0, c, order[t]));
    oracle_set(&b, 0, 0, 0, t, oracle_get(&p->b_2, 0, 0, 0, order[t]));
  }
  p->w_1 = reordered(p->w_1, order), p->w_2 = w, p->b_2 = b;
  s->x = reordered(s->x, order);
  promise_run(&s->does);
  test_assert_near(s->o, was, 1e-5, "another order");
}

/* The channel network alone works on each token by itself. */
void L3_channels(void **state) {
  (void)state;
  test_rng rng = test_seed(1350);
  shape z = plain(14, 12);
  scene *s = build(&z, &rng);
  test_fill_value(s->p.token.w_2, 0), s->p.token.b_2 = absent();
  promise_run(&s->does);
  attn_tensor was = copy_of(s->o);
  for (int64_t i = 0; i < 14; i++)
    if (i != 5)
      for (int64_t c = 0; c < 12; c++) oracle_set(&s->x, 0, 0, i, c, test_normal(&rng));
  promise_run(&s->does);
  test_assert_same(test_rows(s->o, 5, 1), test_rows(was, 5, 1), "its own token");
  assert_false(test_same(s->o, was));
}

/* One token, one channel, entries and rows in groups; none; in place. */
void L3_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(1360);
  shape z = plain(1, 1);
  run(build(&z, &rng), 1e-5, "one number");
  z = plain(1, 20), z.ds = 1, z.dc = 1;
  run(build(&z, &rng), 1e-5, "one token");
  z = plain(900, 2), z.batch = 3, z.ds = 2, z.dc = 3;
  run(build(&z, &rng), 2e-5, "entries in groups");
  z = plain(2100, 2), z.ds = 1, z.dc = 1, z.o_type = ATTN_F16;
  run(build(&z, &rng), 2e-5, "rows in groups");
  scene *s = NULL;
  for (int n = 0; n < 3; n++) {
    z = plain(9, 5), z.batch = 2, z.type = z.o_type = floats[n];
    s = build(&z, &rng);
    test_copy(s->o, s->x);
    attn_tensor x = s->x;
    s->x = s->o;
    promise_run(&s->does);
    attn_tensor was = copy_of(s->o);
    s->x = x;
    promise_run(&s->does);
    test_assert_same(s->o, was, "in place");
  }
  attn_tensor was = copy_of(s->o);
  const attn_tensor o = s->o;
  s->x.batch = s->o.batch = 0;
  promise_run(&s->does);
  test_assert_same(o, was, "nothing");
}

/* NaN reaches all rows of its entry and no other entry. */
void L3_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(1365);
  shape z = plain(8, 6);
  z.batch = 2;
  scene *s = build(&z, &rng);
  promise_run(&s->does);
  attn_tensor was = copy_of(s->o);
  test_fill_row(s->x, 1, 0, 3, (double)NAN);
  promise_run(&s->does);
  test_assert_same(test_one(s->o, 0, 1, 0, 1), test_one(was, 0, 1, 0, 1), "the other entry");
  for (int64_t i = 0; i < 48; i++) assert_true(isnan(oracle_get(&s->o, 1, 0, i / 6, i % 6)));
}

/* Only o must lie apart: what is read may share memory, weights with x and with each other. */
void L3_shared_inputs(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(1390 + (uint64_t)n);
    shape z = plain(8, 8);
    z.ds = z.dc = 8, z.bias = z.norms = 0;
    scene *s = build(&z, &rng);
    attn_tensor *of[] = {&s->p.token.w_1, &s->p.token.w_2, &s->p.channel.w_1, &s->p.channel.w_2};
    *of[n] = n % 2 ? *of[(n + 1) % 4] : s->x;
    run(s, 1e-4, "shared inputs");
  }
}

void L3_promises(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++, test_mem_release()) {
    test_rng rng = test_seed(1370 + (uint64_t)n);
    shape z = plain(n ? 110 : 1, n == 1 ? 300 : 24);
    z.batch = 2, z.o_type = n == 2 ? ATTN_BF16 : ATTN_F32, z.w_type = floats[n];
    z.ds = n == 2 ? 120 : 20;
    promise_keep(&build(&z, &rng)->does);
  }
}

void L3_rejects(void **state) {
  static float some = 1;
  (void)state;
  for (int n = 0; n < 28; n++, test_mem_release()) {
    test_rng rng = test_seed(1380 + (uint64_t)n);
    shape z = plain(9, 8);
    scene *s = build(&z, &rng);
    attn_feed_forward *token = &s->p.token, *channel = &s->p.channel;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: token->w_1.len = 8, word = "token.w_1"; break;
      case 1: token->w_2.dim = 8, word = "token.w_2"; break;
      case 2: token->w_2.len = 6, word = "token.w_2"; break;
      case 3: token->b_1.dim = 6, word = "token.b_1"; break;
      case 4: token->b_2.dim = 8, word = "token.b_2"; break;
      case 5: channel->w_1.len = 7, word = "channel.w_1"; break;
      case 6: channel->w_2.len = 14, word = "channel.w_2"; break;
      case 7: channel->w_2.dim = 7, word = "channel.w_2"; break;
      case 8: channel->b_1.dim = 14, word = "channel.b_1"; break;
      case 9: channel->b_2.dim = 7, word = "channel.b_2"; break;
      case 10: token->w_1.data = NULL, want = ATTN_E_NULL, word = "token.w_1"; break;
      case 11: token->w_2.data = NULL, want = ATTN_E_NULL, word = "token.w_2"; break;
      case 12: channel->w_1.data = NULL, want = ATTN_E_NULL, word = "channel.w_1"; break;
      case 13: channel->w_2.data = NULL, want = ATTN_E_NULL, word = "channel.w_2"; break;
      case 14: s->x.len = s->o.len = 8, word = "token.w_1"; break;
      case 15: s->o.dim = 7, word = "x must"; break;
      case 16:
        token->activation = (attn_activation)-1, want = ATTN_E_RANGE, word = "token.activation";
        break;
      case 17:
        channel->activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "channel.activation";
        break;
      case 18: s->p.norm_token.eps = (float)NAN, want = ATTN_E_VALUE, word = "eps"; break;
      case 19: s->o = s->x, s->o.stride_len--, want = ATTN_E_OVERLAP, word = "o "; break;
      case 20: channel->w_1.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "channel.w_1"; break;
      case 21: s->p.norm_channel.bias = s->o.data, want = ATTN_E_OVERLAP, word = "o "; break;
      case 22: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 23:
        token->compute = ATTN_COMPUTE_BF16, want = ATTN_E_VALUE;
        word = "params.token.compute must be ATTN_COMPUTE_F32";
        break;
      case 24:
        channel->compute = (attn_compute)-1, want = ATTN_E_VALUE;
        word = "params.channel.compute must be an attn_compute";
        break;
      case 25:
        channel->w_3 = channel->w_1, want = ATTN_E_RANGE;
        word = "params.channel.w_3, .b_3, .form and scales must be absent";
        break;
      case 26:
        token->w_2_scales.scale = &some, want = ATTN_E_RANGE;
        word = "params.token.w_3, .b_3, .form and scales must be absent";
        break;
      default: s->o.stride_len = 1, want = ATTN_E_STRIDE, word = "o "; break;
    }
    promise_reject(&s->does, want, word);
  }
  test_rng rng = test_seed(1379);
  shape z = plain(3, 2);
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_mixer(s->o, s->x, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}
