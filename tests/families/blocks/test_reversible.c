/* tests/families/blocks/test_reversible.c owns the reversible residual and the mean of its streams. */

#include "layers.h"

/* F or G: y = tanh(x w), w [d,d], which counts its calls and may refuse. */
typedef struct map {
  attn_tensor w;
  int calls, refuse;
} map;

static attn_status mapped(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx) {
  map *m = user;
  m->calls++;
  assert_int_equal(ctx->isa, test_isa);
  assert_null(ctx->workspace);
  assert_int_equal(y.dtype, ATTN_F32);
  if (m->refuse) {
    ctx->reason = "not today";
    return ATTN_E_NUMERIC;
  }
  for (int64_t r = 0; r < x.batch * x.len; r++)
    for (int64_t c = 0; c < x.dim; c++) {
      double sum = 0;
      for (int64_t d = 0; d < x.dim; d++)
        sum += oracle_get(&x, r / x.len, 0, r % x.len, d) * oracle_get(&m->w, 0, 0, d, c);
      oracle_set(&y, r / x.len, 0, r % x.len, c, tanh(sum));
    }
  return ATTN_OK;
}

typedef struct streams {
  int inverse;
  attn_tensor a_out, b_out, a, b; /* y1, y2, x1, x2, or x1, x2, y1, y2 */
  attn_reversible_params p;
  map f, g;
  promise does;
} streams;

static attn_status call(void *at, attn_ctx *ctx) {
  streams *s = at;
  return (s->inverse ? attn_reversible_inverse : attn_reversible)(s->a_out, s->b_out, s->a, s->b,
                                                                  &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  streams *s = at;
  return (s->inverse ? attn_reversible_inverse_workspace : attn_reversible_workspace)(
      s->a_out, s->b_out, s->a, s->b, &s->p, ctx);
}

static streams *build(int64_t batch, int64_t n, int64_t d, attn_dtype in, attn_dtype out,
                      test_rng *rng) {
  streams *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->a = drawn(in, TEST_PADDED, batch, 1, n, d, 1, rng);
  s->b = drawn(in, TEST_NEGATIVE, batch, 1, n, d, 1, rng);
  s->f.w = drawn(ATTN_F32, TEST_BHTD, 1, 1, d, d, 1, rng);
  s->g.w = drawn(ATTN_F32, TEST_BHTD, 1, 1, d, d, 1, rng);
  s->p.f = s->p.g = mapped, s->p.f_user = &s->f, s->p.g_user = &s->g;
  s->a_out = output(out, TEST_BHTD, batch, 1, n, d, &s->does.block[0]);
  s->b_out = output(out, TEST_PADDED, batch, 1, n, d, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->a_out, s->does.out[1] = &s->b_out;
  return s;
}

/* a + sign tanh(b w) */
static cube sum(const cube *a, const cube *b, const attn_tensor *w, double sign) {
  cube t = cube_times(b, w), y = cube_of(a->batch, 1, a->len, a->dim);
  for (int64_t n = 0; n < a->batch * a->len * a->dim; n++)
    y.data[n] = a->data[n] + sign * tanh(t.data[n]);
  return y;
}

void K4_reversible(void **state) {
  (void)state;
  test_rng rng = test_seed(7300);
  for (int n = 0; n < test_count(18, 9); n++, test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 3), rows = test_range(&rng, 1, n % 4 ? 9 : 70);
    const int64_t d = test_range(&rng, 1, 20);
    streams *s = build(batch, rows, d, (attn_dtype)(n % 3), (attn_dtype)(n / 3 % 3), &rng);
    s->inverse = n % 2;
    promise_run(&s->does);
    assert_int_equal(s->f.calls, 1);
    assert_int_equal(s->g.calls, 1);
    const cube a = cube_from(&s->a), b = cube_from(&s->b);
    cube first, second;
    if (s->inverse) {
      second = sum(&b, &a, &s->g.w, -1); /* x2 = y2 - G(y1) */
      first = sum(&a, &second, &s->f.w, -1);
    } else {
      first = sum(&a, &b, &s->f.w, 1); /* y1 = x1 + F(x2) */
      second = sum(&b, &first, &s->g.w, 1);
    }
    const double tolerance = s->a_out.dtype == ATTN_F32 ? 2e-6 : 0.1;
    cube_check(s->inverse ? &second : &first, s->inverse ? &s->b_out : &s->a_out, 2e-6, "first");
    cube_check(s->inverse ? &first : &second, s->inverse ? &s->a_out : &s->b_out, tolerance,
               "second");
  }
}

/* Back where it came from; in place too, with the same bits. */
void K4_inverse(void **state) {
  (void)state;
  test_rng rng = test_seed(7301);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    const attn_dtype type = (attn_dtype)(n % 3);
    streams *s = build(2, 11, 8, type, type, &rng), back;
    promise_run(&s->does);
    back = *s;
    back.inverse = 1, back.does.scene = &back;
    back.a = s->a_out, back.b = s->b_out;
    back.a_out = test_tensor(type, TEST_BHTD, 2, 1, 11, 8);
    back.b_out = test_tensor(type, TEST_BHTD, 2, 1, 11, 8);
    promise_run(&back.does);
    const double unit = type == ATTN_F32 ? 1.2e-7 : type == ATTN_F16 ? 1e-3 : 8e-3;
    for (int64_t r = 0; r < 2 * 11 * 8; r++) {
      for (int k = 0; k < 2; k++) {
        const attn_tensor *got = k ? &back.b_out : &back.a_out, *want = k ? &s->b : &s->a;
        const attn_tensor *y = k ? &s->b_out : &s->a_out;
        const double x = oracle_get(want, r / 88, 0, r / 8 % 11, r % 8);
        const double out = fabs(oracle_get(y, r / 88, 0, r / 8 % 11, r % 8));
        const double error = fabs(oracle_get(got, r / 88, 0, r / 8 % 11, r % 8) - x);
        /* x1 also through F, which sees x2 as it came back */
        assert_true(error <= (k ? 2 : 30) * unit * fmax(fmax(fabs(x), out), 1));
      }
    }
    streams here = *s;
    here.does.scene = &here, here.a_out = s->a, here.b_out = s->b;
    promise_run(&here.does);
    test_assert_same(here.a_out, s->a_out, "in place, first");
    test_assert_same(here.b_out, s->b_out, "in place, second");
  }
}

/* F = G = 0 changes nothing; no rows call no one. */
void K4_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(7302);
  for (int inverse = 0; inverse < 2; inverse++, test_mem_release()) {
    streams *s = build(2, 70, 7, ATTN_F32, ATTN_F32, &rng);
    s->inverse = inverse;
    test_fill_value(s->f.w, 0), test_fill_value(s->g.w, 0);
    promise_run(&s->does);
    test_assert_same(s->a_out, s->a, "first");
    test_assert_same(s->b_out, s->b, "second");
    s->a.len = s->b.len = s->a_out.len = s->b_out.len = 0;
    attn_ctx ctx = test_ctx();
    assert_int_equal(s->does.call(s, &ctx), ATTN_OK);
    assert_int_equal(s->f.calls, 1);
  }
}

void K4_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7303);
  for (int n = 0; n < 4; n++) {
    streams *s = build(2, 90, 6, ATTN_F32, n / 2 ? ATTN_F16 : ATTN_F32, &rng);
    s->inverse = n % 2;
    promise_keep(&s->does);
  }
}

void K4_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7304);
  for (int n = 0; n < 22; n++, test_mem_release()) {
    streams *s = build(2, 5, 4, ATTN_F32, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "streams";
    s->inverse = n % 2;
    switch (n / 2) {
      case 0: s->b.dim = 3; break;
      case 1: s->a.len = 4; break;
      case 2: s->b_out.batch = 1; break;
      case 3: s->a_out.dim = 3; break;
      case 4: s->p.f = NULL, want = ATTN_E_NULL, word = "params.f"; break;
      case 5: s->p.g = NULL, want = ATTN_E_NULL, word = "params.g"; break;
      case 6: s->f.refuse = 1, want = ATTN_E_NUMERIC, word = "not today"; break;
      case 7: s->g.refuse = 1, want = ATTN_E_NUMERIC, word = "not today"; break;
      case 8: s->a_out = s->b_out, want = ATTN_E_OVERLAP, word = "output"; break;
      case 9: s->a_out = s->b, want = ATTN_E_OVERLAP, word = "output"; break;
      default: s->a.dtype = ATTN_I4, want = ATTN_E_DTYPE, word = ".dtype"; break;
    }
    promise_reject(&s->does, want, word);
  }
  streams *s = build(1, 5, 4, ATTN_F32, ATTN_F32, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_reversible(s->a_out, s->b_out, s->a, s->b, NULL, &ctx), ATTN_E_NULL);
}

void K4_mean(void **state) {
  (void)state;
  test_rng rng = test_seed(7305);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    attn_tensor x1 = drawn((attn_dtype)(n % 3), TEST_PADDED, 2, 3, 67, 5, 1, &rng);
    attn_tensor x2 = drawn(ATTN_F32, TEST_NEGATIVE, 2, 3, 67, 5, 1, &rng);
    attn_tensor y = test_tensor((attn_dtype)(n / 3), TEST_BHTD, 2, 3, 67, 5);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_stream_mean_workspace(y, x1, x2, &ctx), 0);
    assert_int_equal(attn_stream_mean(y, x1, x2, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    for (int64_t r = 0; r < 2 * 3 * 67 * 5; r++) {
      const int64_t b = r / 1005, h = r / 335 % 3, i = r / 5 % 67, c = r % 5;
      const double want = (oracle_get(&x1, b, h, i, c) + oracle_get(&x2, b, h, i, c)) / 2;
      value_check(oracle_get(&y, b, h, i, c), want, 3e-7, y.dtype, "mean", b, h, i, c);
    }
    assert_int_equal(attn_stream_mean(x2, x1, x2, &ctx), ATTN_OK);
    if (n / 3 == 0) test_assert_same(x2, y, "in place");
    assert_int_equal(
        attn_stream_mean(test_rows(x2, 1, 9), test_rows(x1, 0, 9), test_rows(x2, 0, 9), &ctx),
        ATTN_E_OVERLAP);
    assert_int_equal(attn_stream_mean(y, x1, test_rows(x2, 0, 9), &ctx), ATTN_E_SHAPE);
  }
}
