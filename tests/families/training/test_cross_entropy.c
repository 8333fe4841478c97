/* tests/families/training/test_cross_entropy.c owns N7, the loss over classes and its gradient by logits. */

#include "loss.h"

typedef struct scene {
  double *loss;
  attn_tensor words, d, x;
  const int32_t *targets;
  attn_cross_entropy_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_cross_entropy(s->loss, s->d, s->x, s->targets, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_cross_entropy_workspace(s->loss, s->d, s->x, s->targets, &s->p, ctx);
}

static scene *scene_of(attn_dtype type, attn_dtype d_type, int64_t B, int64_t H, int64_t T,
                       int64_t V, double size, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->words = loss_words(&s->loss);
  s->does.block[1] = test_last_block;
  s->x = drawn(type, (test_layout)(test_u64(rng) % TEST_LAYOUTS), B, H, T, V, size, rng);
  s->d = output(d_type, (test_layout)(test_u64(rng) % TEST_SHARED), B, H, T, V, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d, s->does.out[1] = &s->words;
  return s;
}

/* Gradients within what p can be known to, rows by rows; so the loss. */
static void check(const scene *s, const loss_want *w, const cube *x, const char *what) {
  const int64_t V = s->x.dim;
  for (int64_t r = 0; r < x->batch * x->heads * x->len; r++) {
    const int64_t b = r / x->len / x->heads, h = r / x->len % x->heads, i = r % x->len;
    double top = -(double)INFINITY;
    for (int64_t c = 0; c < V; c++) top = fmax(top, x->data[r * V + c]);
    for (int64_t c = 0; c < V; c++) {
      const double away = c == s->targets[r] ? 20 : fmin(top - x->data[r * V + c], 90);
      value_check(oracle_get(&s->d, b, h, i, c), w->d.data[r * V + c],
                  (1e-6 + 2e-7 * away) * w->size.data[r * V + c] + 1e-37, s->d.dtype, what, b, h, i,
                  c);
    }
  }
  if (!(fabs(*s->loss - w->loss) <= 1e-6 * (1 + fabs(w->loss))))
    fail_msg("%s: loss %.9g, not %.9g", what, *s->loss, w->loss);
}

void N7_cross_entropy(void **state) {
  (void)state;
  static const int64_t classes[] = {1, 2, 17, 64, 100, 512, 513, 575, 1500, 3};
  test_rng rng = test_seed(9720);
  for (int64_t n = test_count(120, 30); n-- > 0; test_mem_release()) {
    const int64_t B = test_range(&rng, 1, 2), H = test_range(&rng, 1, 3),
                  T = test_range(&rng, 1, 12), V = classes[n % 10];
    const attn_dtype type = (attn_dtype)(n % 4 ? test_u64(&rng) % 3 : 0);
    scene *s = scene_of(type, (attn_dtype)(n % 3 ? 0 : test_u64(&rng) % 3), B, H, T, V,
                        n % 5 ? 3 : 30, &rng);
    loss_options(&s->p, &rng);
    s->targets = loss_targets(B * H * T, V, &s->p, &rng);
    const cube x = cube_from(&s->x);
    const loss_want w = loss_oracle(&x, s->targets, &s->p);
    promise_run(&s->does);
    check(s, &w, &x, "a loss");
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* The oracle's gradient against differences of its loss. */
void N7_cross_entropy_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9721);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    const int64_t T = test_range(&rng, 1, 4), V = test_range(&rng, 1, 9);
    cube x = cube_of(1, 1, T, V);
    attn_cross_entropy_params p;
    loss_options(&p, &rng);
    p.grad = 0;
    for (int64_t i = 0; i < T * V; i++) x.data[i] = 2 * test_normal(&rng);
    const int32_t *y = loss_targets(T, V, &p, &rng);
    const loss_want w = loss_oracle(&x, y, &p);
    for (int64_t i = 0; i < T * V; i++) {
      const double was = x.data[i], h = 1e-5;
      x.data[i] = was + h;
      const double up = loss_oracle(&x, y, &p).loss;
      x.data[i] = was - h;
      const double got = (up - loss_oracle(&x, y, &p).loss) / (2 * h);
      x.data[i] = was;
      if (!(fabs(got - w.d.data[i]) <= 1e-6 * (1 + fabs(got))))
        fail_msg("%.9g, not %.9g", w.d.data[i], got);
    }
  }
}

/* In place, one output alone, one row alone, added: the same bits, or a sum rounded once. */
void N7_cross_entropy_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9722);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    const attn_dtype type = (attn_dtype)(n % 3);
    const int64_t V = n % 2 ? 700 : 1024;
    scene *s = scene_of(type, type, 2, 2, 5, V, 2, &rng);
    s->x = drawn(type, (test_layout)(n % TEST_SHARED), 2, 2, 5, V, 2, &rng);
    loss_options(&s->p, &rng);
    s->p.count = 0, s->p.sum = 1;
    s->targets = loss_targets(20, V, &s->p, &rng);
    promise_run(&s->does);
    scene t = *s;
    t.does.scene = &t;
    t.words = loss_words(&t.loss);
    t.d = output(type, TEST_PADDED, 2, 2, 5, V, NULL);
    if (n % 4 == 0) { /* without the loss; the loss alone */
      t.loss = NULL;
      promise_run(&t.does);
      test_assert_same(s->d, t.d, "without a loss");
      t = *s;
      t.d = absent(), t.does.scene = &t;
      t.words = loss_words(&t.loss);
      promise_run(&t.does);
      assert_true(*t.loss == *s->loss);
    }
    if (n % 4 == 1) { /* one batch entry */
      t.x = test_one(s->x, 1, 1, 0, 2), t.d = test_one(t.d, 1, 1, 0, 2), t.targets += 10;
      promise_run(&t.does);
      test_assert_same(test_one(s->d, 1, 1, 0, 2), t.d, "an entry by itself");
    }
    if (n % 4 == 2) {
      t.x = drawn(type, (test_layout)(n % TEST_SHARED), 2, 2, 5, V, 2, &rng);
      test_copy(t.x, s->x);
      t.d = t.x;
      promise_run(&t.does);
      test_assert_same(s->d, t.d, "in place");
      assert_true(*t.loss == *s->loss);
    }
    if (n % 4 == 3) {
      test_fill(t.d, &rng, test_exact);
      cube want = cube_from(&t.d);
      t.p.accumulate = 1;
      promise_run(&t.does);
      const cube x = cube_from(&s->x), more = loss_oracle(&x, s->targets, &s->p).d;
      for (int64_t i = 0; i < 20 * V; i++) want.data[i] += more.data[i];
      cube_check(&want, &t.d, 1e-6, "added");
    }
  }
}

/* Rows learned by heart: losses and gradients far below what rounding of p would leave; sums of a row are 0 without
 * a z-loss. */
void N7_cross_entropy_sure(void **state) {
  (void)state;
  test_rng rng = test_seed(9723);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    enum { V = 600 };
    scene *s = scene_of(ATTN_F32, ATTN_F32, 1, 1, 3, V, 1, &rng);
    s->x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 3, V, 1, &rng);
    s->targets = loss_targets(3, V, &s->p, &rng);
    for (int64_t i = 0; i < 3; i++) oracle_set(&s->x, 0, 0, i, s->targets[i], 10.0 + 5 * n);
    const cube x = cube_from(&s->x);
    promise_run(&s->does);
    for (int64_t i = 0; i < 3; i++) {
      double others = 0, sum = 0, most = 0;
      for (int64_t c = 0; c < V; c++)
        if (c != s->targets[i]) others += exp(x.data[i * V + c] - 10.0 - 5 * n);
      for (int64_t c = 0; c < V; c++) {
        const double d = oracle_get(&s->d, 0, 0, i, c);
        sum += d, most = fmax(most, fabs(d));
      }
      const double want = -others / (1 + others) / 3;
      value_check(oracle_get(&s->d, 0, 0, i, s->targets[i]), want, 1e-5 * fabs(want), ATTN_F32,
                  "the target", 0, 0, i, -1);
      assert_true(fabs(sum) <= 1e-5 * most);
      others = log1p(others);
      s->p.sum = 1;
    }
    const loss_want w = loss_oracle(&x, s->targets, &s->p);
    double all = 0;
    for (int64_t i = 0; i < 3; i++) {
      double others = 0;
      for (int64_t c = 0; c < V; c++)
        if (c != s->targets[i]) others += exp(x.data[i * V + c] - 10.0 - 5 * n);
      all += log1p(others) / 3;
    }
    assert_true(w.counted == 3);
    if (!(fabs(*s->loss - all) <= 1e-5 * all)) fail_msg("loss %.9g, not %.9g", *s->loss, all);
  }
}

/* Logits of -inf, and of any size; NaN and +inf stay in their row. */
void N7_cross_entropy_ends(void **state) {
  (void)state;
  enum { T = 6, V = 70, AT = 2 };
  test_rng rng = test_seed(9724);
  for (int n = 0; n < 14; n++, test_mem_release()) {
    scene *s = scene_of(ATTN_F32, ATTN_F32, 1, 1, T, V, 2, &rng);
    s->x = drawn(ATTN_F32, TEST_BHTD, 1, 1, T, V, 2, &rng);
    s->targets = loss_targets(T, V, &s->p, &rng);
    const int32_t y = s->targets[AT], other = (y + 1) % V;
    promise_run(&s->does);
    scene t = *s;
    t.does.scene = &t;
    t.d = output(ATTN_F32, TEST_PADDED, 1, 1, T, V, NULL), t.words = loss_words(&t.loss);
    const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    if (n < 6) oracle_set(&t.x, 0, 0, AT, n % 2 ? y : other, bad[n / 2]);
    if (n == 6) oracle_set(&t.x, 0, 0, AT, other, bad[2]), t.p.smoothing = 0.1f;
    if (n == 7) test_fill_row(t.x, 0, 0, AT, bad[2]);
    if (n == 8) test_fill_row(t.x, 0, 0, AT, bad[2]), t.p.smoothing = 0.5f, t.p.z_loss = 0.1f;
    if (n == 9) test_fill_row(t.x, 0, 0, AT, -(double)FLT_MAX);
    if (n == 10) oracle_set(&t.x, 0, 0, AT, other, (double)FLT_MAX);
    if (n == 11) test_fill_row(t.x, 0, 0, AT, (double)NAN);
    if (n == 12) /* only the target is there */
      test_fill_row(t.x, 0, 0, AT, bad[2]), oracle_set(&t.x, 0, 0, AT, y, 1);
    if (n == 13) oracle_set(&t.x, 0, 0, AT, y, bad[2]), t.p.smoothing = 1;
    promise_run(&t.does);
    const int nan = n < 4 || n == 11, inf = (n > 3 && n < 9 && n != 4) || n == 13;
    if (nan ? !isnan(*t.loss) : inf ? *t.loss != (double)INFINITY : !(fabs(*t.loss) < 1e39))
      fail_msg("%d: loss %g", n, *t.loss);
    for (int64_t c = 0; c < V; c++) {
      const double d = oracle_get(&t.d, 0, 0, AT, c);
      if (nan != isnan(d) || isinf(d)) fail_msg("%d: [%d] is %g", n, (int)c, d);
      const double part = n == 6 ? 0.1 / V : n == 8 ? 0.5 / V : 0;
      if (n == 4 && c == other) assert_true(d == 0);
      if (n == 6 && c == other) value_check(d, -part / T, 1e-8, ATTN_F32, "p 0", 0, 0, AT, c);
      if (n == 7 || n == 8)
        value_check(d, (-(c == y) * (n == 8 ? 0.5 : 1) - part) / T, 1e-8, ATTN_F32, "all -inf", 0,
                    0, AT, c);
      if (n == 9) value_check(d, (1.0 / V - (c == y)) / T, 1e-8, ATTN_F32, "alike", 0, 0, AT, c);
      if (n == 10)
        value_check(d, ((c == other) - (c == y)) / (double)T, 1e-8, ATTN_F32, "far", 0, 0, AT, c);
      if (n == 12) assert_true(d == 0);
    }
    if (n == 12) assert_true(fabs(*t.loss) < fabs(*s->loss));
    if (n == 6 || n == 8 || n == 13) continue; /* other rows are others */
    for (int64_t i = 0; i < T; i++)
      if (i != AT) test_assert_same(test_rows(s->d, i, 1), test_rows(t.d, i, 1), "another row");
  }
}

/* Rows that are ignored are not read; none that counts; no rows at all. */
void N7_cross_entropy_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9725);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    const int64_t T = n < 2 ? 0 : 4;
    scene *s =
        scene_of(n % 2 ? ATTN_BF16 : ATTN_F32, n % 2 ? ATTN_F16 : ATTN_F32, 1, 2, T, 9, 1, &rng);
    int32_t y[8];
    for (int i = 0; i < 8; i++) y[i] = -7;
    s->targets = n == 1 ? NULL : y;
    s->p.has_ignore_index = 1, s->p.ignore_index = -7, s->p.count = n == 4 ? 3 : 0;
    s->p.sum = n == 5;
    if (T) {
      s->x = test_tensor(s->x.dtype, TEST_PADDED, 1, 2, T, 9);
      test_fill_value(s->x, (double)NAN);
    }
    if (n > 5) {
      y[6] = 3; /* one row counts */
      for (int c = 0; c < 9; c++) oracle_set(&s->x, 0, 1, 2, c, 0);
    }
    promise_run(&s->does);
    if (n > 5)
      assert_true(fabs(*s->loss - log(9)) < 1e-6);
    else
      assert_true(*s->loss == 0);
    for (int64_t r = 0; r < 2 * T; r++)
      for (int c = 0; c < 9; c++)
        if (r != 6 || n < 6) assert_true(oracle_get(&s->d, 0, r / T, r % T, c) == 0);
    s->loss = NULL, s->d = absent();
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(s, &ctx), ATTN_OK);
    assert_string_equal(ctx.report.path, "no-op");
  }
}

void N7_cross_entropy_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9726);
  for (int n = 0; n < 30; n++, test_mem_release()) {
    scene *s = scene_of(ATTN_F32, ATTN_F32, 2, 1, 3, 9, 1, &rng);
    attn_cross_entropy_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    s->x = drawn(ATTN_F32, TEST_BHTD, 2, 1, 3, 9, 1, &rng);
    int32_t *y = loss_targets(7, 9, p, &rng);
    s->targets = y;
    switch (n) {
      case 0: s->d.dim = 8, word = "d_logits"; break;
      case 1: s->d.len = 2, word = "d_logits"; break;
      case 2: s->d.heads = 2, word = "d_logits"; break;
      case 3: s->d.batch = 1, word = "d_logits"; break;
      case 4: s->x.data = NULL, want = ATTN_E_NULL, word = "logits.data"; break;
      case 5: s->targets = NULL, want = ATTN_E_NULL, word = "targets"; break;
      case 6: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "logits.dtype"; break;
      case 7: s->d.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "d_logits.dtype"; break;
      case 8: y[5] = 9, want = ATTN_E_INDEX, word = "targets"; break;
      case 9: y[5] = -1, want = ATTN_E_INDEX, word = "targets"; break;
      case 10: y[0] = -100, p->ignore_index = -100, want = ATTN_E_INDEX, word = "targets"; break;
      case 11: p->smoothing = 1.01f, want = ATTN_E_RANGE, word = "smoothing"; break;
      case 12: p->smoothing = -0.01f, want = ATTN_E_RANGE, word = "smoothing"; break;
      case 13: p->smoothing = NAN, want = ATTN_E_RANGE, word = "smoothing"; break;
      case 14: p->z_loss = -1, want = ATTN_E_VALUE, word = "z_loss"; break;
      case 15: p->z_loss = INFINITY, want = ATTN_E_VALUE, word = "z_loss"; break;
      case 16: p->grad = NAN, want = ATTN_E_VALUE, word = "grad"; break;
      case 17: p->sum = 2, want = ATTN_E_RANGE, word = "sum"; break;
      case 18: p->has_ignore_index = -1, want = ATTN_E_RANGE, word = "has_ignore"; break;
      case 19: p->accumulate = 3, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 20: p->count = -1, want = ATTN_E_RANGE, word = "count"; break;
      case 21: p->count = 1, p->sum = 1, want = ATTN_E_RANGE, word = "count"; break;
      case 22: s->d = s->x, p->accumulate = 1, want = ATTN_E_OVERLAP, word = "accumulate"; break;
      case 23: s->d.data = (float *)s->x.data + 1, want = ATTN_E_OVERLAP, word = "d_logits"; break;
      case 24: s->loss = s->x.data, want = ATTN_E_OVERLAP, word = "loss"; break;
      case 25:
        s->loss = (double *)(void *)((char *)s->loss + 4), want = ATTN_E_ALIGN, word = "loss";
        break;
      case 26:
        s->targets = (const int32_t *)(const void *)((char *)y + 2);
        want = ATTN_E_ALIGN, word = "targets";
        break;
      case 27: s->targets = s->d.data, want = ATTN_E_OVERLAP, word = "d_logits"; break;
      case 28: s->d.stride_len = 1, want = ATTN_E_STRIDE, word = "d_logits"; break;
      default: s->x.dim = 0, word = "logits.dim"; break;
    }
    const attn_tensor words = s->words;
    s->does.out[1] = NULL;
    promise_reject(&s->does, want, word);
    (void)words;
    assert_true(ask(s, NULL) == ATTN_WORKSPACE_REJECTED);
  }
}
