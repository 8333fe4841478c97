/* tests/families/blocks/test_reversible_backward.c owns N6, the gradients of the reversible residual. */

#include "compound.h"

/* y_c = a tanh(x_c) + x_(c+1) / 2, of a row; the gradient by a is summed where it is asked for. */
typedef struct bend {
  double a, d_a;
  attn_status status, back_status; /* what it answers */
  int calls;
} bend;

static double bend_at(const bend *u, const double *x, int64_t c, int64_t d) {
  return u->a * tanh(x[c]) + (c + 1 < d ? x[c + 1] / 2 : 0);
}

static attn_status forward(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx) {
  bend *u = user;
  double *row = test_mem((size_t)(x.dim + 1) * sizeof *row);
  (void)ctx;
  u->calls++;
  for (int64_t r = 0; u->status == ATTN_OK && r < x.batch * x.len; r++) {
    for (int64_t c = 0; c < x.dim; c++) row[c] = oracle_get(&x, r / x.len, 0, r % x.len, c);
    for (int64_t c = 0; c < x.dim; c++)
      oracle_set(&y, r / x.len, 0, r % x.len, c, bend_at(u, row, c, x.dim));
  }
  return u->status;
}

static attn_status backward(void *user, attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                            attn_ctx *ctx) {
  bend *u = user;
  (void)ctx;
  for (int64_t r = 0; u->back_status == ATTN_OK && r < x.batch * x.len; r++)
    for (int64_t c = 0; c < x.dim; c++) {
      const int64_t b = r / x.len, i = r % x.len;
      const double t = tanh(oracle_get(&x, b, 0, i, c)), d = oracle_get(&d_y, b, 0, i, c);
      u->d_a += d * t;
      oracle_set(&d_x, b, 0, i, c,
                 d * u->a * (1 - t * t) + (c > 0 ? oracle_get(&d_y, b, 0, i, c - 1) / 2 : 0));
    }
  return u->back_status;
}

typedef struct streams {
  attn_tensor x[2], y[2], d_x[2], d_y[2];
  bend f, g;
  attn_reversible_params p;
  attn_reversible_gradients back;
  promise does;
} streams;

static attn_status run(void *at, attn_ctx *ctx) {
  streams *s = at;
  s->f.d_a = s->g.d_a = 0;
  return attn_reversible_backward(s->x[0], s->x[1], s->d_x[0], s->d_x[1], s->y[0], s->y[1],
                                  s->d_y[0], s->d_y[1], s->p.f ? &s->p : NULL, &s->back, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  streams *s = at;
  return attn_reversible_backward_workspace(s->x[0], s->x[1], s->d_x[0], s->d_x[1], s->y[0],
                                            s->y[1], s->d_y[0], s->d_y[1], &s->p, &s->back, ctx);
}

static streams *build(int64_t b, int64_t n, int64_t d, attn_dtype type, test_rng *rng) {
  streams *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  for (int k = 0; k < 2; k++) {
    s->y[k] = drawn(type, TEST_PADDED, b, 1, n, d, 1, rng);
    s->d_y[k] = drawn(type, TEST_BTHD, b, 1, n, d, 1, rng);
    s->x[k] = output(type, TEST_PADDED, b, 1, n, d, &s->does.block[k]);
    s->d_x[k] = output(type, TEST_PADDED, b, 1, n, d, &s->does.block[2 + k]);
    s->does.out[k] = &s->x[k], s->does.out[2 + k] = &s->d_x[k];
  }
  s->f.a = 0.75, s->g.a = -0.5;
  s->p.f = s->p.g = forward, s->p.f_user = &s->f, s->p.g_user = &s->g;
  s->back.f = s->back.g = backward;
  s->does.call = run, s->does.ask = ask, s->does.scene = s;
  return s;
}

/* The loss of streams that enter, in float64. */
static double loss(const streams *s, const cube *x1, const cube *x2) {
  const int64_t d = x1->dim;
  double *y1 = test_mem((size_t)(d + 1) * sizeof *y1), sum = 0;
  for (int64_t r = 0; r < x1->batch * x1->len; r++) {
    const int64_t b = r / x1->len, i = r % x1->len;
    const double *a = cube_at(x1, b, 0, i), *e = cube_at(x2, b, 0, i);
    for (int64_t c = 0; c < d; c++) y1[c] = a[c] + bend_at(&s->f, e, c, d);
    for (int64_t c = 0; c < d; c++)
      sum += y1[c] * oracle_get(&s->d_y[0], b, 0, i, c) +
             (e[c] + bend_at(&s->g, y1, c, d)) * oracle_get(&s->d_y[1], b, 0, i, c);
  }
  return sum;
}

void N6_reversible(void **state) {
  (void)state;
  test_rng rng = test_seed(9630);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    const attn_dtype type = n % 3 == 2 ? ATTN_BF16 : ATTN_F32;
    const int64_t B = 1 + n % 2, T = test_range(&rng, 1, 70), D = test_range(&rng, 1, 20);
    streams *s = build(B, T, D, type, &rng), *t;
    promise_run(&s->does);
    if (n < 3) promise_keep(&s->does), promise_run(&s->does);
    cube x[2] = {cube_from(&s->x[0]), cube_from(&s->x[1])};
    const double unit = type == ATTN_F32 ? 1 : 1e4;
    for (int k = 0; k < 2 * 8 + 2; k++) { /* numbers of both streams, and of F and G */
      double *at = k == 16   ? &s->f.a
                   : k == 17 ? &s->g.a
                             : cube_at(&x[k % 2], test_range(&rng, 0, B - 1), 0,
                                       test_range(&rng, 0, T - 1)) +
                                   test_range(&rng, 0, D - 1);
      const double was = *at, step = 1e-4;
      *at = was + step;
      const double up = loss(s, &x[0], &x[1]);
      *at = was - step;
      const double want = (up - loss(s, &x[0], &x[1])) / (2 * step);
      *at = was;
      const int64_t e = k < 16 ? at - x[k % 2].data : 0;
      const double got = k == 16   ? s->f.d_a
                         : k == 17 ? s->g.d_a
                                   : oracle_get(&s->d_x[k % 2], e / D / T, 0, e / D % T, e % D);
      if (fabs(got - want) > 3e-6 * unit * (1 + fabs(want) + (k > 15 ? 30 : 0)))
        fail_msg("%d of %d: %.9g, not %.9g", k, n, got, want);
    }
    /* and these streams are those that enter */
    attn_tensor y[2];
    attn_ctx ctx = test_ctx();
    for (int k = 0; k < 2; k++) y[k] = test_tensor(ATTN_F32, TEST_BHTD, B, 1, T, D);
    assert_int_equal(attn_reversible(y[0], y[1], s->x[0], s->x[1], &s->p, &ctx), ATTN_OK);
    for (int64_t i = 0; i < T; i++)
      for (int k = 0; k < 2; k++)
        value_check(oracle_get(&y[k], 0, 0, i, 0), oracle_get(&s->y[k], 0, 0, i, 0),
                    1e-6 * unit * 3, ATTN_F32, "streams", 0, k, i, 0);
    /* in place: the same bits */
    t = test_mem(sizeof *t);
    *t = *s;
    for (int k = 0; k < 2; k++) {
      const attn_tensor *const from[] = {&s->y[k], &s->d_y[k]};
      attn_tensor *const to[] = {&t->x[k], &t->d_x[k]}, *const in[] = {&t->y[k], &t->d_y[k]};
      for (int m = 0; m < 2; m++) {
        *to[m] = test_tensor(type, TEST_BHTD, B, 1, T, D);
        for (int64_t r = 0; r < B * T * D; r++)
          oracle_set(to[m], r / D / T, 0, r / D % T, r % D,
                     oracle_get(from[m], r / D / T, 0, r / D % T, r % D));
        *in[m] = *to[m];
      }
    }
    assert_int_equal(run(t, &ctx), ATTN_OK);
    for (int k = 0; k < 2; k++)
      test_assert_same(t->x[k], s->x[k], "x"), test_assert_same(t->d_x[k], s->d_x[k], "d_x");
  }
}

void N6_reversible_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9631);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    streams *s = build(2, 5, 4, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->d_x[1].dim = 3, word = "extents"; break;
      case 1: s->y[1].len = 4, word = "extents"; break;
      case 2: s->back.g = NULL, want = ATTN_E_NULL, word = "functions"; break;
      case 3: s->p.f = NULL, want = ATTN_E_NULL, word = "params"; break;
      case 4: s->x[0].data = s->y[1].data, want = ATTN_E_OVERLAP, word = "x1"; break;
      case 5: s->d_x[0].data = s->x[1].data, want = ATTN_E_OVERLAP, word = "x"; break;
      case 6: s->f.status = ATTN_E_VALUE, want = ATTN_E_VALUE, word = "params.f"; break;
      case 7: s->f.back_status = ATTN_E_INDEX, want = ATTN_E_INDEX, word = "gradients.f"; break;
      default: s->g.back_status = ATTN_E_VALUE, want = ATTN_E_VALUE, word = "gradients.g"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
