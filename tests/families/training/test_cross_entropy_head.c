/* tests/families/training/test_cross_entropy_head.c owns N7, the loss over classes whose logits are a product. */

#include "loss.h"

typedef struct scene {
  double *loss;
  attn_tensor words, d_x, x, w;
  const int32_t *targets;
  attn_cross_entropy_head_params p;
  attn_cross_entropy_head_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_cross_entropy_head(s->loss, s->d_x, s->x, s->w, s->targets, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_cross_entropy_head_workspace(s->loss, s->d_x, s->x, s->w, s->targets, &s->p, &s->g,
                                           ctx);
}

/* types: of x, w, d_x, d_w, two bits each. */
static scene *scene_of(int64_t B, int64_t H, int64_t T, int64_t in, int64_t V, int turned,
                       unsigned types, test_rng *rng) {
  const double size = 1 / sqrt((double)in);
  scene *s = test_mem(sizeof *s);
  attn_dtype type[4];
  memset(s, 0, sizeof *s);
  for (int i = 0; i < 4; i++) type[i] = (attn_dtype)((types >> 2 * i & 3) % 3);
  s->words = loss_words(&s->loss);
  s->does.block[3] = test_last_block;
  s->x = drawn(type[0], (test_layout)(test_u64(rng) % TEST_LAYOUTS), B, H, T, in, 1, rng);
  s->w = drawn(type[1], (test_layout)(test_u64(rng) % TEST_SHARED), 1, 1, turned ? V : in,
               turned ? in : V, size, rng);
  s->d_x =
      output(type[2], (test_layout)(test_u64(rng) % TEST_SHARED), B, H, T, in, &s->does.block[0]);
  s->g.d_w = output(type[3], (test_layout)(test_u64(rng) % TEST_SHARED), 1, 1, s->w.len, s->w.dim,
                    &s->does.block[1]);
  s->g.d_bias = output(type[2], TEST_BHTD, 1, 1, 1, V, &s->does.block[2]);
  s->p.w_transposed = turned;
  if (test_u64(rng) % 2) s->p.bias = drawn(type[1], TEST_BHTD, 1, 1, 1, V, 1, rng);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d_x, s->does.out[1] = &s->g.d_w, s->does.out[2] = &s->g.d_bias;
  s->does.out[3] = &s->words;
  return s;
}

/* What a call should leave, by all logits at once. */
typedef struct head_want {
  double loss;
  cube d_x, d_w, d_bias;
} head_want;

static double weight(const scene *s, int64_t i, int64_t c) {
  return s->p.w_transposed ? oracle_get(&s->w, 0, 0, c, i) : oracle_get(&s->w, 0, 0, i, c);
}

static head_want oracle(const scene *s) {
  const int64_t in = s->x.dim, V = s->p.w_transposed ? s->w.len : s->w.dim;
  const cube x = cube_from(&s->x);
  cube z = cube_of(x.batch, x.heads, x.len, V);
  const int64_t rows = x.batch * x.heads * x.len;
  double *w = test_mem((size_t)(in * V) * sizeof(double));
  for (int64_t i = 0; i < in * V; i++) w[i] = weight(s, i / V, i % V);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < V; c++)
      z.data[r * V + c] = s->p.bias.data ? oracle_get(&s->p.bias, 0, 0, 0, c) : 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < in; i++)
      for (int64_t c = 0; c < V; c++) z.data[r * V + c] += x.data[r * in + i] * w[i * V + c];
  const loss_want l = loss_oracle(&z, s->targets, &s->p.loss);
  head_want a = {l.loss, cube_of(x.batch, x.heads, x.len, in), cube_of(1, 1, s->w.len, s->w.dim),
                 cube_of(1, 1, 1, V)};
  const int add = s->p.loss.accumulate;
  const int turned = s->p.w_transposed;
  if (add)
    a.d_x = cube_from(&s->d_x), a.d_w = cube_from(&s->g.d_w), a.d_bias = cube_from(&s->g.d_bias);
  for (int64_t i = 0; !add && i < rows * in; i++) a.d_x.data[i] = 0;
  for (int64_t i = 0; !add && i < in * V; i++) a.d_w.data[i] = 0;
  for (int64_t c = 0; !add && c < V; c++) a.d_bias.data[c] = 0;
  for (int64_t r = 0; r < rows; r++) {
    const double *dz = l.d.data + r * V;
    if (s->p.loss.has_ignore_index && s->targets[r] == s->p.loss.ignore_index) continue;
    for (int64_t c = 0; c < V; c++) a.d_bias.data[c] += dz[c];
    for (int64_t i = 0; i < in; i++) {
      double sum = 0;
      for (int64_t c = 0; c < V; c++) sum += dz[c] * w[i * V + c];
      a.d_x.data[r * in + i] += sum;
      for (int64_t c = 0; c < V; c++)
        a.d_w.data[turned ? c * in + i : i * V + c] += dz[c] * x.data[r * in + i];
    }
  }
  return a;
}

static void near_to(const cube *want, const attn_tensor *got, const char *what) {
  double size = 0;
  if (!got->data) return;
  const int64_t rows = want->batch * want->heads * want->len;
  for (int64_t i = 0; i < rows * want->dim; i++) size = fmax(size, fabs(want->data[i]));
  for (int64_t r = 0; r < rows; r++) {
    const int64_t b = r / want->len / want->heads, h = r / want->len % want->heads,
                  i = r % want->len;
    for (int64_t c = 0; c < want->dim; c++)
      value_check(oracle_get(got, b, h, i, c), want->data[r * want->dim + c], 1e-5 * size + 1e-12,
                  got->dtype, what, b, h, i, c);
  }
}

static void check(const scene *s, const head_want *w) {
  near_to(&w->d_x, &s->d_x, "d_x");
  near_to(&w->d_w, &s->g.d_w, "d_w");
  near_to(&w->d_bias, &s->g.d_bias, "d_bias");
  if (s->loss && !(fabs(*s->loss - w->loss) <= 2e-6 * (1 + fabs(w->loss))))
    fail_msg("loss %.9g, not %.9g", *s->loss, w->loss);
}

void N7_head(void **state) {
  (void)state;
  static const int64_t widths[] = {1, 7, 40, 100, 300}, classes[] = {1, 9, 500, 512, 513, 1100};
  test_rng rng = test_seed(9730);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    const int64_t B = test_range(&rng, 1, 2), H = test_range(&rng, 1, 2),
                  T = n % 10 == 9 ? 140 : test_range(&rng, 1, 20);
    const int64_t V = classes[n % 6], in = widths[(n / 6) % 5];
    scene *s = scene_of(B, H, T, in, V, (int)(n / 3 % 2),
                        n % 3 ? 0 : (unsigned)(test_u64(&rng) & 255), &rng);
    loss_options(&s->p.loss, &rng);
    if (s->p.loss.z_loss > 0.01f) s->p.loss.z_loss = 0.01f;
    s->targets = loss_targets(B * H * T, V, &s->p.loss, &rng);
    head_want w = oracle(s);
    promise_run(&s->does);
    check(s, &w);
    if (n % 5 == 0) promise_keep(&s->does);
    if (n % 5 != 1) continue;
    s->p.loss.accumulate = 1;
    w = oracle(s);
    promise_run(&s->does);
    check(s, &w);
  }
}

/* More rows than one sum has, of a mean that is not 0. */
void N7_head_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9731);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    scene *s = scene_of(1, 1, 1300, 20, n ? 70 : 600, n, 0, &rng);
    for (int64_t r = 0; s->x.stride_len && r < 1300; r++)
      for (int64_t c = 0; c < 20; c++)
        oracle_set(&s->x, 0, 0, r, c, 1 + oracle_get(&s->x, 0, 0, r, c) / 2);
    if (n) s->p.loss.has_ignore_index = 1, s->p.loss.ignore_index = -1;
    s->targets = loss_targets(1300, n ? 70 : 600, &s->p.loss, &rng);
    const head_want w = oracle(s);
    promise_run(&s->does);
    check(s, &w);
    promise_keep(&s->does);
  }
}

/* The loss of all logits made by attn_gemm; an output alone has the bits it has beside others. */
void N7_head_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9732);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    const int64_t V = n % 2 ? 1100 : 300;
    scene *s = scene_of(1, 2, 60, 33, V, n / 2 % 2, n % 3 ? 0 : 0x19, &rng);
    s->p.loss.has_ignore_index = n % 4 == 1, s->p.loss.ignore_index = 5;
    s->targets = loss_targets(120, V, &s->p.loss, &rng);
    promise_run(&s->does);
    attn_ctx ctx = test_ctx();
    attn_gemm_params product;
    memset(&product, 0, sizeof product);
    product.w_transposed = s->p.w_transposed, product.bias = s->p.bias;
    const attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 60, V);
    double loss = 0;
    assert_int_equal(attn_gemm(z, s->x, s->w, &product, &ctx), ATTN_OK);
    assert_int_equal(attn_cross_entropy(&loss, absent(), z, s->targets, &s->p.loss, &ctx), ATTN_OK);
    assert_true(loss == *s->loss);
    scene t = *s;
    t.does.scene = &t;
    t.words = loss_words(&t.loss);
    t.d_x = test_tensor(s->d_x.dtype, TEST_PADDED, 1, 2, 60, 33);
    t.g.d_w = test_tensor(s->g.d_w.dtype, TEST_PADDED, 1, 1, s->w.len, s->w.dim);
    t.g.d_bias = test_tensor(s->g.d_bias.dtype, TEST_BHTD, 1, 1, 1, V);
    if (n & 1) t.d_x = absent();
    if (n & 2) t.g.d_w = absent();
    if (n & 4) t.g.d_bias = absent();
    if (n & 8) t.loss = NULL;
    if (n == 15) continue;
    promise_run(&t.does);
    if (t.d_x.data) test_assert_same(t.d_x, s->d_x, "d_x alone");
    if (t.g.d_w.data) test_assert_same(t.g.d_w, s->g.d_w, "d_w alone");
    if (t.g.d_bias.data) test_assert_same(t.g.d_bias, s->g.d_bias, "d_bias alone");
    if (t.loss) assert_true(*t.loss == *s->loss);
  }
}

/* Rows that are ignored are not read; a workspace asked for does not hang on how many count; NaN of a row that
 * counts. */
void N7_head_unread(void **state) {
  (void)state;
  test_rng rng = test_seed(9733);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    enum { T = 40, V = 530 };
    scene *s = scene_of(1, 1, T, 24, V, n % 2, 0, &rng);
    int32_t y[T];
    s->x = drawn(ATTN_F32, TEST_PADDED, 1, 1, T, 24, 1, &rng);
    s->p.loss.has_ignore_index = 1, s->p.loss.ignore_index = -100, s->targets = y;
    for (int i = 0; i < T; i++) y[i] = i % 3 ? i : -100;
    promise_run(&s->does);
    scene t = *s;
    t.does.scene = &t;
    t.words = loss_words(&t.loss);
    t.d_x = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, T, 24);
    t.g.d_w = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, s->w.len, s->w.dim);
    t.g.d_bias = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, V);
    for (int i = 0; i < T; i += 3) test_fill_row(t.x, 0, 0, i, (double)NAN);
    if (n < 3) {
      promise_run(&t.does);
      test_assert_same(t.d_x, s->d_x, "d_x beside NaN");
      test_assert_same(t.g.d_w, s->g.d_w, "d_w beside NaN");
      test_assert_same(t.g.d_bias, s->g.d_bias, "d_bias beside NaN");
      assert_true(*t.loss == *s->loss);
      for (int c = 0; c < 24; c++) assert_true(oracle_get(&t.d_x, 0, 0, 3, c) == 0);
      const size_t size = ask(&t, NULL);
      for (int i = 0; i < T; i++) y[i] = -100;
      assert_true(ask(&t, NULL) == size);
      promise_run(&t.does); /* none that counts */
      assert_true(*t.loss == 0);
      for (int64_t r = 0; r < t.w.len; r++)
        for (int64_t c = 0; c < t.w.dim; c++) assert_true(oracle_get(&t.g.d_w, 0, 0, r, c) == 0);
      for (int64_t c = 0; c < V; c++) assert_true(oracle_get(&t.g.d_bias, 0, 0, 0, c) == 0);
      for (int i = 0; i < T * 24; i++) assert_true(oracle_get(&t.d_x, 0, 0, i / 24, i % 24) == 0);
      continue;
    }
    oracle_set(&t.x, 0, 0, 7, 3, n % 2 ? (double)NAN : (double)INFINITY);
    promise_run(&t.does);
    assert_true(isnan(*t.loss));
    for (int i = 0; i < T; i++)
      if (i != 7)
        test_assert_same(test_rows(t.d_x, i, 1), test_rows(s->d_x, i, 1), "another row of d_x");
    for (int c = 0; c < 24; c++) assert_true(isnan(oracle_get(&t.d_x, 0, 0, 7, c)));
    assert_true(isnan(oracle_get(&t.g.d_w, 0, 0, 2, 2)));
  }
}

void N7_head_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9734);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    scene *s = scene_of(n == 1 ? 0 : 2, 1, n == 1 ? 3 : 0, 5, 9, n % 2, n == 3 ? 0x59 : 0, &rng);
    if (n == 2) s->g.d_w = absent(), s->does.out[1] = NULL;
    *s->loss = 7;
    promise_run(&s->does);
    assert_true(*s->loss == 0);
    for (int64_t r = 0; s->g.d_w.data && r < s->w.len; r++)
      for (int64_t c = 0; c < s->w.dim; c++) assert_true(oracle_get(&s->g.d_w, 0, 0, r, c) == 0);
    for (int c = 0; c < 9; c++) assert_true(oracle_get(&s->g.d_bias, 0, 0, 0, c) == 0);
    s->d_x = s->g.d_w = s->g.d_bias = absent(), s->loss = NULL;
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(s, &ctx), ATTN_OK);
    assert_string_equal(ctx.report.path, "no-op");
  }
}

void N7_head_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9735);
  for (int n = 0; n < 46; n++, test_mem_release()) {
    const int turned = n % 2;
    scene *s = scene_of(2, 1, 3, 5, 9, turned, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    int32_t *y = loss_targets(7, 9, &s->p.loss, &rng);
    s->x = drawn(ATTN_F32, TEST_BHTD, 2, 1, 3, 5, 1, &rng);
    s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 9, 1, &rng);
    s->targets = y, s->does.out[3] = NULL;
    switch (n / 2) {
      case 0: s->d_x.dim = 4, word = "d_x"; break;
      case 1: s->d_x.len = 2, word = "d_x"; break;
      case 2: s->g.d_w.len--, word = "d_w"; break;
      case 3: s->g.d_w.dim--, word = "d_w"; break;
      case 4: s->g.d_bias.dim = 8, word = "d_bias"; break;
      case 5: s->g.d_bias.len = 2, word = "d_bias"; break;
      case 6: s->p.bias.dim = 8, word = "params.bias"; break;
      case 7: s->w.heads = 2, word = "w must"; break;
      case 8: *(turned ? &s->w.dim : &s->w.len) = 4, word = "w must"; break;
      case 9: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 10: s->w.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      case 11: s->targets = NULL, want = ATTN_E_NULL, word = "targets"; break;
      case 12: s->w.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 13: s->g.d_w.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_w.dtype"; break;
      case 14: y[2] = 9, want = ATTN_E_INDEX, word = "targets"; break;
      case 15: s->p.w_transposed = 2, want = ATTN_E_RANGE, word = "w_transposed"; break;
      case 16: s->p.loss.smoothing = 2, want = ATTN_E_RANGE, word = "smoothing"; break;
      case 17: s->d_x.data = s->x.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
      case 18: s->g.d_w.data = s->w.data, want = ATTN_E_OVERLAP, word = "d_w"; break;
      case 19: s->g.d_bias.data = s->p.bias.data, want = ATTN_E_OVERLAP, word = "d_bias"; break;
      case 20: s->loss = s->x.data, want = ATTN_E_OVERLAP, word = "loss"; break;
      case 21: s->g.d_w.data = s->d_x.data, want = ATTN_E_OVERLAP, word = "d_"; break;
      default: s->d_x.stride_len = 1, want = ATTN_E_STRIDE, word = "d_x"; break;
    }
    promise_reject(&s->does, want, word);
    assert_true(ask(s, NULL) == ATTN_WORKSPACE_REJECTED);
  }
}
