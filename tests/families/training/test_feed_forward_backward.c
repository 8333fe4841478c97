/* tests/families/training/test_feed_forward_backward.c owns N6, the gradients of feed-forwards. */

#include "dense.h"
#include "layers.h"

typedef struct feed {
  attn_tensor d_x, d_y, x;
  attn_feed_forward ff;
  attn_feed_forward_gradients g;
  promise does;
} feed;

static attn_status run(void *at, attn_ctx *ctx) {
  feed *s = at;
  return attn_feed_forward_rows_backward(s->d_x, s->d_y, s->x, &s->ff, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  feed *s = at;
  return attn_feed_forward_rows_backward_workspace(s->d_x, s->d_y, s->x, &s->ff, &s->g, ctx);
}

enum { LEARNED = 6 };
static attn_tensor *learned(feed *s, int n) {
  attn_tensor *const all[LEARNED] = {&s->g.d_w_1, &s->g.d_w_2, &s->g.d_w_3,
                                     &s->g.d_b_1, &s->g.d_b_2, &s->g.d_b_3};
  return all[n];
}
static const attn_tensor *of(const feed *s, int n) {
  const attn_tensor *const all[LEARNED] = {&s->ff.w_1, &s->ff.w_2, &s->ff.w_3,
                                           &s->ff.b_1, &s->ff.b_2, &s->ff.b_3};
  return all[n];
}

/* din -> dff -> dout; dff 0: one product. */
static feed *build(int64_t batch, int64_t len, int64_t din, int64_t dff, int64_t dout, int gated,
                   int turned, attn_dtype type, test_rng *rng) {
  feed *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t wide = dff ? dff : dout;
  s->ff = drawn_feed(din, dff, dout, 1, ATTN_F32, rng);
  memset(&s->ff.form, 0, sizeof s->ff.form);
  s->ff.w_3 = s->ff.b_3 = absent();
  if (gated) {
    s->ff.w_3 = drawn(ATTN_F32, TEST_PADDED, 1, 1, din, wide, 0.5, rng);
    s->ff.b_3 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, wide, 0.5, rng);
  }
  attn_tensor *const w[] = {&s->ff.w_1, &s->ff.w_2, &s->ff.w_3};
  for (int i = 0; turned && i < 3; i++)
    if (w[i]->data) *w[i] = turned_weight(*w[i]);
  s->ff.w_transposed = turned;
  s->x = drawn(type, TEST_PADDED, batch, 1, len, din, 1, rng);
  s->d_y = drawn(type, TEST_BTHD, batch, 1, len, dout, 1, rng);
  s->d_x = output(type, TEST_PADDED, batch, 1, len, din, &s->does.block[0]);
  s->does.out[0] = &s->d_x;
  for (int n = 0; n < LEARNED; n++) {
    const attn_tensor *t = of(s, n);
    if (!t->data) continue;
    *learned(s, n) = test_tensor(type, TEST_PADDED, 1, 1, t->len, t->dim);
    test_fill_value(*learned(s, n), 5);
  }
  for (int n = 1; n < 4; n++) /* of the gradients that are there these are watched */
    if (learned(s, n == 3 ? 3 : n - 1)->data) {
      attn_tensor *t = learned(s, n == 3 ? 3 : n - 1);
      *t = output(type, TEST_PADDED, 1, 1, t->len, t->dim, &s->does.block[n]);
      s->does.out[n] = t;
    }
  s->does.call = run, s->does.ask = ask, s->does.scene = s;
  return s;
}

/* An element of a matrix [in, out], as it would lie untransposed. */
static double weight(const feed *s, const attn_tensor *w, int64_t r, int64_t c) {
  return s->ff.w_transposed ? oracle_get(w, 0, 0, c, r) : oracle_get(w, 0, 0, r, c);
}
static int64_t columns(const feed *s, const attn_tensor *w) {
  return s->ff.w_transposed ? w->len : w->dim;
}

static void hold(const dense_sum *w, const attn_tensor *got, const char *what) {
  if (got->data) dense_check(w, got, what);
}

/* From the formulas, row by row; each sum with 1e-6 of its magnitudes. */
static void check(feed *s) {
  const attn_feed_forward *ff = &s->ff;
  const int gated = ff->w_3.data != NULL, two = ff->w_2.data != NULL, turned = ff->w_transposed;
  const int64_t din = s->x.dim, dout = s->d_y.dim, dff = columns(s, &ff->w_1);
  const attn_activation act = ff->activation ? ff->activation
                              : gated        ? ATTN_ACT_SILU
                                             : ATTN_ACT_RELU;
  const double part = 2e-6;
  dense_sum d_x = dense_open(&s->x), d[LEARNED];
  double *z = test_mem((size_t)dff * 8), *u = test_mem((size_t)dff * 8),
         *zs = test_mem((size_t)dff * 8), *us = test_mem((size_t)dff * 8);
  for (int n = 0; n < LEARNED; n++) d[n] = dense_open(of(s, n)->data ? of(s, n) : &ff->w_1);
  for (int64_t row = 0; row < s->x.batch * s->x.len; row++) {
    const int64_t b = row / s->x.len, i = row % s->x.len;
    for (int64_t f = 0; f < dff; f++) {
      z[f] = ff->b_1.data ? oracle_get(&ff->b_1, 0, 0, 0, f) : 0, zs[f] = fabs(z[f]);
      u[f] = gated && ff->b_3.data ? oracle_get(&ff->b_3, 0, 0, 0, f) : !gated, us[f] = fabs(u[f]);
      for (int64_t c = 0; c < din; c++) {
        const double x = oracle_get(&s->x, b, 0, i, c);
        z[f] += x * weight(s, &ff->w_1, c, f), zs[f] += fabs(x * weight(s, &ff->w_1, c, f));
        if (gated) {
          const double y = x * weight(s, &ff->w_3, c, f);
          u[f] += y, us[f] += fabs(y);
        }
      }
    }
    for (int64_t f = 0; f < dff; f++) {
      const act_formed h = act_in_form(&ff->form, act, z[f], u[f], gated);
      double dh = 0, dh_size = 0;
      for (int64_t o = 0; o < dout; o++) {
        const double dy = oracle_get(&s->d_y, b, 0, i, o);
        if (!two && o != f) continue;
        const double y = two ? dy * weight(s, &ff->w_2, f, o) : dy;
        dh += y, dh_size += fabs(y);
        const double dw = h.y * dy;
        const double hs = fabs(h.z) * zs[f] + fabs(h.y) + fabs(h.u) * us[f];
        if (two) dense_add(&d[1], 0, 0, turned ? o : f, turned ? f : o, dw, part * hs * fabs(dy));
        if (two && f == 0 && ff->b_2.data) dense_add(&d[4], 0, 0, 0, o, dy, part * fabs(dy));
      }
      const double error = act_in_form_error(&ff->form, act, z[f], part * zs[f], us[f], gated);
      const double slope =
          fabs(act_slope(act, z[f] * (ff->form.slope != 0 ? (double)ff->form.slope : 1)));
      const double dz = dh * h.z, du = dh * h.u;
      const double by = us[f] + fabs((double)ff->form.gate_add);
      const double dz_off = dh_size * (part * by * slope + error + part);
      const double du_off = dh_size * part * (fabs(h.u) + (1 + slope) * zs[f] + 1);
      if (ff->b_1.data) dense_add(&d[3], 0, 0, 0, f, dz, dz_off);
      if (gated && ff->b_3.data) dense_add(&d[5], 0, 0, 0, f, du, du_off);
      for (int64_t c = 0; c < din; c++) {
        const double x = oracle_get(&s->x, b, 0, i, c), w = weight(s, &ff->w_1, c, f);
        dense_add(&d_x, b, 0, i, c, dz * w, dz_off * fabs(w));
        dense_add(&d[0], 0, 0, turned ? f : c, turned ? c : f, dz * x, dz_off * fabs(x));
        if (!gated) continue;
        const double w_3 = weight(s, &ff->w_3, c, f);
        dense_add(&d_x, b, 0, i, c, du * w_3, du_off * fabs(w_3));
        dense_add(&d[2], 0, 0, turned ? f : c, turned ? c : f, du * x, du_off * fabs(x));
      }
    }
  }
  static const char *const name[LEARNED] = {"d_w_1", "d_w_2", "d_w_3", "d_b_1", "d_b_2", "d_b_3"};
  hold(&d_x, &s->d_x, "d_x");
  for (int n = 0; n < LEARNED; n++)
    if (of(s, n)->data) hold(&d[n], learned(s, n), name[n]);
}

void N6_feed_forward(void **state) {
  (void)state;
  static const attn_activation act[] = {ATTN_ACT_DEFAULT, ATTN_ACT_GELU, ATTN_ACT_SILU,
                                        ATTN_ACT_TANH,    ATTN_ACT_NONE, ATTN_ACT_GELU_TANH};
  test_rng rng = test_seed(9600);
  for (int n = 0; n < test_count(36, 12); n++, test_mem_release()) {
    const int64_t dff = n % 4 == 3 ? 0 : test_range(&rng, 1, 40);
    feed *s =
        build(test_range(&rng, 1, 3), test_range(&rng, 1, 70), test_range(&rng, 1, 40), dff,
              test_range(&rng, 1, 20), n % 3 == 0, n % 2, n % 5 == 4 ? ATTN_BF16 : ATTN_F32, &rng);
    s->ff.activation = act[n % 6];
    if (n % 4 > 1) s->ff.form.slope = 1.702f;
    if (n % 5 > 2) s->ff.form.limit = 0.75f;
    if (n % 6 == 3) s->ff.form.gate_add = 1;
    promise_run(&s->does);
    check(s);
    if (n % 3 == 0) promise_keep(&s->does);
  }
}

/* Many rows, in one entry and in many short ones: runs of 512, and so no wider than those. */
void N6_feed_forward_runs(void **state) {
  (void)state;
  test_rng rng = test_seed(9601);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    feed *s = build(n == 1 ? 40 : 1,
                    n == 1   ? 30
                    : n == 2 ? 512
                             : 1300,
                    9, 12, 7, n == 2, 0, ATTN_F32, &rng);
    for (int64_t b = 0; b < s->x.batch; b++) /* sums that are not around 0 */
      for (int64_t i = 0; i < s->x.len; i++)
        for (int64_t c = 0; c < 7; c++)
          oracle_set(&s->d_y, b, 0, i, c, 1 + oracle_get(&s->d_y, b, 0, i, c));
    promise_run(&s->does);
    check(s);
  }
}

/* Outputs by themselves, those that are added to, and none at all. */
void N6_feed_forward_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9602);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    feed *s = build(2, 40, 9, 12, 7, n & 1, 0, n & 2 ? ATTN_BF16 : ATTN_F32, &rng), *t;
    promise_run(&s->does);
    for (int one = -1; one < LEARNED; one++) {
      if (one >= 0 && !of(s, one)->data) continue;
      t = test_mem(sizeof *t);
      *t = *s;
      memset(&t->g, 0, sizeof t->g), memset(&t->does, 0, sizeof t->does);
      attn_tensor *y = one < 0 ? &t->d_x : learned(t, one);
      const attn_tensor *was = one < 0 ? &s->d_x : learned(s, one);
      if (one >= 0) t->d_x = absent();
      *y = output(was->dtype, TEST_PADDED, was->batch, 1, was->len, was->dim, &t->does.block[0]);
      t->does.call = run, t->does.ask = ask, t->does.scene = t, t->does.out[0] = y;
      promise_run(&t->does);
      test_assert_same(*y, *was, "by itself");
      t->g.accumulate = 1;
      attn_ctx ctx = test_ctx();
      assert_int_equal(run(t, &ctx), ATTN_OK);
      const double got = oracle_get(y, 0, 0, was->len - 1, 0);
      value_check(got, 2 * oracle_get(was, 0, 0, was->len - 1, 0), 1e-5, y->dtype, "twice", 0, 0, 0,
                  0);
    }
  }
  feed *s = build(1, 0, 9, 12, 7, 1, 0, ATTN_F32, &rng);
  promise_run(&s->does);
  for (int n = 0; n < LEARNED; n++)
    if (of(s, n)->data) assert_true(oracle_get(learned(s, n), 0, 0, 0, 0) == 0);
  test_mem_release();
}

void N6_feed_forward_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9603);
  for (int n = 0; n < 13; n++, test_mem_release()) {
    feed *s = build(2, 10, 9, 12, 7, n == 8, n == 9, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->d_x.dim = 8, word = "d_x"; break;
      case 1: s->d_y.dim = 6, word = "w_2"; break;
      case 2: s->x.len = 9, word = "x"; break;
      case 3: s->g.d_w_1.len = 8, word = "d_w_1"; break;
      case 4: s->g.d_b_2.dim = 6, word = "d_b_2"; break;
      case 5: s->g.d_w_3 = s->g.d_w_1, want = ATTN_E_NULL, word = "w_3"; break;
      case 6: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 7: s->g.d_w_2.data = s->ff.w_2.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 8: s->ff.form.limit = -7, want = ATTN_E_VALUE, word = "form"; break;
      case 9: s->g.d_w_1.len = 9, s->g.d_w_1.dim = 12, word = "d_w_1"; break;
      case 10: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      case 11: s->d_x.data = s->x.data, want = ATTN_E_OVERLAP, word = "d_x"; break;
      default: s->ff.w_1.data = NULL, want = ATTN_E_NULL, word = "w_1"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
