/* tests/families/priors/test_average.c owns the average attention network: against float64, states, long sequences,
 * what follows from the formula, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, y;
  attn_average_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_average(s->o, s->y, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_average_workspace(s->o, s->y, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, tokens, dm, hidden; /* 0: no feed-forward part */
  int gate, biases, mask;
  attn_average_out out;
  attn_dtype y_type, o_type, w_type;
} shape;

static shape plain(int64_t tokens, int64_t dm) {
  shape z = {1, tokens, dm, 0, 1, 1, 0, ATTN_AVERAGE_PLAIN, ATTN_F32, ATTN_F32, ATTN_F32};
  return z;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, d = z->dm;
  const double size = 1 / sqrt((double)d);
  s->y = drawn(z->y_type, TEST_PADDED, b, 1, z->tokens, d, 1, rng);
  if (z->gate) s->p.w_g = drawn(z->w_type, TEST_PADDED, 1, 1, 2 * d, 2 * d, size, rng);
  if (z->gate && z->biases) s->p.b_g = drawn(z->w_type, TEST_BHTD, 1, 1, 1, 2 * d, 1, rng);
  if (z->hidden) {
    s->p.w_1 = drawn(z->w_type, TEST_NEGATIVE, 1, 1, d, z->hidden, size, rng);
    s->p.w_2 = drawn(ATTN_F32, TEST_PADDED, 1, 1, z->hidden, d, 0.3, rng);
    if (z->biases) s->p.b_1 = drawn(z->w_type, TEST_BHTD, 1, 1, 1, z->hidden, 1, rng);
    if (z->biases) s->p.b_2 = drawn(z->w_type, TEST_BHTD, 1, 1, 1, d, 1, rng);
  }
  if (z->mask) {
    uint8_t *real = test_mem((size_t)(b * z->tokens + 1));
    for (int64_t i = 0; i < b * z->tokens; i++) real[i] = (uint8_t)(test_range(rng, 0, 3) * 85);
    if (z->tokens) real[0] = 0;
    s->p.valid = real;
  }
  s->p.out = z->out;
  if (z->out == ATTN_AVERAGE_NORM && z->biases)
    s->p.gain = test_floats(d, 1, rng), s->p.bias = test_floats(d, 1, rng);
  s->o = output(z->o_type, TEST_NEGATIVE, b, 1, z->tokens, d, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

/* y = x w + b of one row. */
static void times(double *y, const double *x, const attn_tensor *w, const attn_tensor *b) {
  for (int64_t j = 0; j < w->dim; j++) {
    y[j] = b->data ? oracle_get(b, 0, 0, 0, j) : 0;
    for (int64_t c = 0; c < w->len; c++) y[j] += x[c] * oracle_get(w, 0, 0, c, j);
  }
}

static void check(const scene *s, double tolerance, const char *what) {
  const int64_t d = s->y.dim, f = s->p.w_1.data ? s->p.w_1.dim : 1;
  double *sum = test_mem((size_t)d * 8), *both = test_mem((size_t)(2 * d) * 8);
  double *hidden = test_mem((size_t)f * 8), *gate = test_mem((size_t)(2 * d) * 8);
  double *h = test_mem((size_t)d * 8), *avg = test_mem((size_t)d * 8);
  for (int64_t b = 0; b < s->y.batch; b++) {
    int64_t count = 0;
    for (int64_t c = 0; c < d; c++) sum[c] = 0;
    for (int64_t t = 0; t < s->y.len; t++) {
      const int real = !s->p.valid || s->p.valid[b * s->y.len + t];
      count += real;
      for (int64_t c = 0; c < d; c++) {
        both[c] = oracle_get(&s->y, b, 0, t, c);
        if (real) sum[c] += both[c];
        avg[c] = sum[c] / (double)(count < 1 ? 1 : count);
      }
      double *g = both + d;
      if (s->p.w_1.data) {
        times(hidden, avg, &s->p.w_1, &s->p.b_1);
        for (int64_t c = 0; c < f; c++) hidden[c] = fmax(0, hidden[c]);
        times(g, hidden, &s->p.w_2, &s->p.b_2);
      } else {
        memcpy(g, avg, (size_t)d * 8);
      }
      memcpy(h, g, (size_t)d * 8);
      if (s->p.w_g.data) {
        times(gate, both, &s->p.w_g, &s->p.b_g);
        for (int64_t c = 0; c < d; c++)
          h[c] = both[c] / (1 + exp(-gate[c])) + g[c] / (1 + exp(-gate[d + c]));
      }
      double mean = 0, var = 0;
      for (int64_t c = 0; c < d && s->p.out; c++) h[c] += both[c];
      for (int64_t c = 0; c < d; c++) mean += h[c] / (double)d;
      for (int64_t c = 0; c < d; c++) var += (h[c] - mean) * (h[c] - mean) / (double)d;
      const double eps = s->p.eps != 0 ? (double)s->p.eps : 1e-6;
      for (int64_t c = 0; c < d && s->p.out == ATTN_AVERAGE_NORM; c++)
        h[c] = (h[c] - mean) / sqrt(var + eps) * (s->p.gain ? (double)s->p.gain[c] : 1) +
               (s->p.bias ? (double)s->p.bias[c] : 0);
      /* the norm of a narrow row magnifies */
      const double more = s->p.out == ATTN_AVERAGE_NORM ? fmin(1 / sqrt(var + eps), 1e3) : 1;
      for (int64_t c = 0; c < d; c++)
        value_check(oracle_get(&s->o, b, 0, t, c), h[c], tolerance * fmax(1, more) * 4, s->o.dtype,
                    what, b, 0, t, c);
    }
  }
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static shape draw(int64_t n, test_rng *rng) {
  shape z = plain(test_range(rng, 0, n % 9 ? 20 : 300), test_range(rng, 1, n % 5 ? 20 : 70));
  z.batch = test_range(rng, 1, 3);
  if (n % 3) z.hidden = test_range(rng, 1, 30);
  z.gate = n % 4 != 0, z.biases = n / 2 % 2 == 1, z.mask = n / 3 % 2 == 1;
  z.out = (attn_average_out)(n / 2 % 3);
  z.y_type = floats[n % 3], z.o_type = floats[n / 2 % 3], z.w_type = floats[n / 3 % 3];
  if (n % 9 == 0) z.dm = 1 + z.dm % 12;
  return z;
}

void H7_random(void **state) {
  (void)state;
  test_rng rng = test_seed(9500);
  for (int64_t n = test_count(60, 18); n-- > 0; test_mem_release()) {
    shape z = draw(n, &rng);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    if (n % 7 == 0) s->p.eps = 0.25f;
    promise_run(&s->does);
    check(s, 3e-6, "average");
  }
}

/* Bytes of a fresh state. */
static void *begin(scene *s) {
  s->p.state_bytes = attn_average_state_bytes(s->y.batch, s->y.dim);
  s->p.state = test_mem(s->p.state_bytes);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_average_begin(s->p.state, s->p.state_bytes, s->y.batch, s->y.dim, &ctx),
                   ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
  return s->p.state;
}

/* A token at a time, and segments, give the bits of the whole; a saved state goes on as if nothing had
 * happened since. */
void H7_states(void **state) {
  (void)state;
  test_rng rng = test_seed(9501);
  for (int64_t n = test_count(12, 5); n-- > 0; test_mem_release()) {
    shape z = draw(n, &rng);
    z.tokens = n % 3 ? 23 : 270, z.mask = n % 2 == 1, z.batch = 2;
    scene *s = build(&z, &rng);
    for (int64_t i = 0; z.mask && i < 2 * z.tokens; i += 4) /* of padding, it is in no sum */
      if (!s->p.valid[i]) test_fill_row(s->y, i / z.tokens, 0, i % z.tokens, (double)NAN);
    promise_run(&s->does);
    attn_tensor all = test_tensor(z.o_type, TEST_BHTD, 2, 1, z.tokens, z.dm);
    test_copy(all, s->o);
    for (int64_t i = 0; z.mask && i < 2 * z.tokens; i++)
      if (s->p.valid[i]) assert_true(isfinite(oracle_get(&s->o, i / z.tokens, 0, i % z.tokens, 0)));
    uint8_t *real = test_mem((size_t)(2 * z.tokens));
    void *at = begin(s);
    promise_run(&s->does);
    test_assert_same(s->o, all, "all in one call");
    void *end = test_mem(s->p.state_bytes), *saved = test_mem(s->p.state_bytes);
    memcpy(end, at, s->p.state_bytes);
    begin(s);
    for (int64_t t = 0, len; t < z.tokens; t += len) {
      len = t < 9 || t > z.tokens - 4 ? 1 : z.tokens - 3 - t;
      scene part = *s;
      part.y = test_rows(s->y, t, len), part.o = test_rows(s->o, t, len);
      for (int64_t i = 0; z.mask && i < 2 * len; i++)
        real[i] = s->p.valid[i / len * z.tokens + t + i % len];
      if (z.mask) part.p.valid = real;
      memcpy(saved, s->p.state, s->p.state_bytes);
      for (int again = 0; again < 2; again++) {
        attn_ctx ctx = test_ctx();
        if (again) memcpy(s->p.state, saved, s->p.state_bytes);
        assert_int_equal(call(&part, &ctx), ATTN_OK);
        test_assert_same(part.o, test_rows(all, t, len), "a part");
      }
    }
    assert_memory_equal(s->p.state, end, s->p.state_bytes);
  }
}

/* The mean of 10^5 tokens far from 0; constant tokens; weights of 0; leading padding. */
void H7_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(9502);
  const int64_t many = test_fast ? 5000 : 100000;
  shape z = plain(many, 1);
  z.gate = 0;
  scene *s = build(&z, &rng);
  double sum = 0;
  for (int64_t t = 0; t < many; t++)
    oracle_set(&s->y, 0, 0, t, 0, 1000 + oracle_get(&s->y, 0, 0, t, 0));
  promise_run(&s->does);
  for (int64_t t = 0; t < many; t++) {
    sum += oracle_get(&s->y, 0, 0, t, 0);
    const double want = sum / (double)(t + 1);
    assert_true(fabs(oracle_get(&s->o, 0, 0, t, 0) - want) < 1e-7 * want);
  }
  z = plain(100, 7);
  z.gate = 0;
  s = build(&z, &rng);
  for (int64_t t = 0; t < 100; t++)
    for (int64_t c = 0; c < 7; c++) oracle_set(&s->y, 0, 0, t, c, 0.1 * (double)(c + 1));
  promise_run(&s->does);
  test_assert_same(s->o, s->y, "constant tokens");
  z = plain(30, 6);
  z.biases = 0;
  s = build(&z, &rng);
  test_fill_value(s->p.w_g, 0);
  promise_run(&s->does);
  for (int64_t c = 0; c < 6; c++) {
    double mean = 0;
    for (int64_t t = 0; t < 30; t++) {
      const double y = oracle_get(&s->y, 0, 0, t, c);
      mean += (y - mean) / (double)(t + 1);
      value_check(oracle_get(&s->o, 0, 0, t, c), (y + mean) / 2, 1e-6, ATTN_F32, "half and half", 0,
                  0, t, c);
    }
  }
  s->p.w_g = absent();
  uint8_t *real = test_mem(30);
  for (int i = 0; i < 30; i++) real[i] = i > 4;
  s->p.valid = real;
  test_fill_row(s->y, 0, 0, 2, (double)NAN); /* of padding, it is not looked at */
  promise_run(&s->does);
  for (int64_t t = 0; t < 5; t++) assert_true(oracle_get(&s->o, 0, 0, t, 1) == 0);
  test_assert_same(test_rows(s->o, 5, 1), test_rows(s->y, 5, 1), "the first real token");
}

/* The average is causal attention without queries and keys. */
void H7_is_attention_of_zeros(void **state) {
  (void)state;
  test_rng rng = test_seed(9503);
  shape z = plain(90, 11);
  z.gate = 0, z.batch = 2;
  scene *s = build(&z, &rng);
  promise_run(&s->does);
  attn_tensor zero = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 90, 4);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 90, 11);
  test_fill_value(zero, 0);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.causal = 1;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, zero, zero, s->y, &p, &ctx), ATTN_OK);
  test_assert_near(s->o, o, 2e-6, "causal attention");
}

void H7_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(9504);
  for (int n = 0; n < 4; n++) {
    shape z = plain(n % 2 ? 300 : 40, 24);
    z.batch = 2, z.hidden = n > 1 ? 20 : 0, z.out = (attn_average_out)(n % 3), z.mask = n == 3;
    z.y_type = floats[n % 3], z.gate = n != 2;
    promise_keep(&build(&z, &rng)->does);
  }
  for (int n = 0; n < 2; n++) {
    shape z = plain(n ? 3 : 0, 4);
    z.batch = n == 0;
    promise_run(&build(&z, &rng)->does);
  }
  shape z = plain(9, 5);
  z.gate = 0;
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_average(s->o, s->y, NULL, &ctx), ATTN_OK);
  check(s, 1e-6, "no parameters");
}

void H7_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9505);
  for (int n = 0; n < 28; n++) {
    shape z = plain(9, 6);
    z.batch = 2, z.hidden = 8, z.out = ATTN_AVERAGE_NORM;
    scene *s = build(&z, &rng);
    void *at = begin(s), *copy = test_mem(s->p.state_bytes);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.w_g.dim = 11, word = "params.w_g"; break;
      case 1: s->p.w_g.len = 6, word = "params.w_g"; break;
      case 2: s->p.b_g.dim = 6, word = "params.b_g"; break;
      case 3: s->p.w_1.len = 5, word = "params.w_1"; break;
      case 4: s->p.b_1.dim = 7, word = "params.b_1"; break;
      case 5: s->p.w_2.len = 7, word = "params.w_2"; break;
      case 6: s->p.b_2.dim = 5, word = "params.b_2"; break;
      case 7: s->p.w_2.data = NULL, want = ATTN_E_NULL, word = "params.w_1"; break;
      case 8: s->p.w_g.data = NULL, want = ATTN_E_NULL, word = "bias"; break;
      case 9: s->p.out = ATTN_AVERAGE_COUNT, want = ATTN_E_RANGE, word = "params.out"; break;
      case 10: s->p.out = (attn_average_out)-1, want = ATTN_E_RANGE, word = "params.out"; break;
      case 11: s->p.eps = -1, want = ATTN_E_VALUE, word = "params.eps"; break;
      case 12: s->p.eps = NAN, want = ATTN_E_VALUE, word = "params.eps"; break;
      case 13: s->p.eps = ATTN_ZERO, want = ATTN_E_VALUE, word = "params.eps"; break;
      case 14: s->p.state_bytes--, word = "state"; break;
      case 15: *(int64_t *)at = 0, want = ATTN_E_VALUE, word = "params.state"; break;
      case 16: ((int64_t *)at)[1] = 1, want = ATTN_E_VALUE, word = "params.state"; break;
      case 17: ((int64_t *)at)[2] = 5, want = ATTN_E_VALUE, word = "params.state"; break;
      case 18: ((int64_t *)at)[4] = -1, want = ATTN_E_VALUE, word = "params.state"; break;
      case 19: s->p.state = s->y.data, want = ATTN_E_OVERLAP, word = "state"; break;
      case 20: s->p.state = (char *)at + 4, want = ATTN_E_ALIGN, word = "params.state"; break;
      case 21: s->y.heads = 2, word = "y "; break;
      case 22: s->o.len = 8, word = "o "; break;
      case 23: s->o = s->y, want = ATTN_E_OVERLAP, word = "o "; break;
      case 24: s->y.data = NULL, want = ATTN_E_NULL, word = "y.data"; break;
      case 25:
        s->p.gain = (const float *)(const void *)((const char *)s->p.gain + 1), want = ATTN_E_ALIGN;
        word = "params.gain";
        break;
      case 26:
        ((int64_t *)at)[5] = ((int64_t)1 << 48) + 1, want = ATTN_E_VALUE, word = "count";
        break;
      default: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o ";
    }
    memcpy(copy, at, attn_average_state_bytes(2, 6));
    promise_reject(&s->does, want, word);
    assert_memory_equal(copy, at, attn_average_state_bytes(2, 6));
  }
  attn_ctx ctx = test_ctx();
  int64_t room[20];
  assert_int_equal(attn_average_begin(NULL, 400, 1, 4, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_average_begin(room, 16, 1, 4, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_average_begin(room, 160, -1, 4, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_average_begin(room, 160, 1, 0, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_average_state_bytes(INT64_MAX / 4, INT64_MAX / 4), 0);
}
