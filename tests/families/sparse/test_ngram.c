/* tests/families/sparse/test_ngram.c owns ProphetNet's n-gram attention. */

#include "compound.h"

enum { H = 4 };

typedef struct scene {
  attn_tensor o, q, k, v, own_k, own_v;
  attn_ngram_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_ngram(s->o, s->q, s->k, s->v, s->own_k, s->own_v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_ngram_workspace(s->o, s->q, s->k, s->v, s->own_k, s->own_v, &s->p, ctx);
}

/* What the bucket of distance t adds to row i: exact buckets, then logarithmic ones. */
static double bias(const scene *s, int64_t b, int64_t h, int64_t i, int64_t t) {
  const int64_t most = s->p.max_distance ? s->p.max_distance : 128;
  if (!s->p.relative.data) return 0;
  return oracle_get(&s->p.relative, b, h, i, oracle_t5_bucket(-t, 0, s->p.relative.dim, most));
}

/* Every row over all keys of the main stream and of its own, those allowed that the rule names. */
static void check(const scene *s, double tolerance, const char *what) {
  const int64_t tokens = s->k.len, rows = s->q.len, n = s->k.batch ? s->q.batch / s->k.batch : 1;
  const int own = s->own_k.data != NULL;
  const double scale = scale_of(s->p.scale, s->q.dim);
  bag a = bag_of(tokens + 1, s->v.dim);
  for (int64_t r = 0; r < s->q.batch * s->q.heads * rows; r++) {
    int64_t i = r % rows, h = r / rows % s->q.heads, e = r / rows / s->q.heads;
    int64_t b = e / n, g = s->p.together ? 0 : e % n, at = tokens - rows + i;
    attn_tensor q = test_one(s->q, e, 1, 0, s->q.heads), k = test_one(s->k, b, 1, 0, s->k.heads);
    bag_empty(&a);
    if (at < (s->p.len ? s->p.len[b] : tokens)) {
      for (int64_t j = 0; j < tokens; j++)
        if (j == 0 || j <= at - g)
          bag_add(&a, scale * dot_rows(&q, &k, 0, h, i, j) + bias(s, e, h, i, at + own - j), &s->v,
                  b, head_of(&s->v, h, s->q.heads), j);
      if (own)
        bag_add(&a, scale * dot_rows(&s->q, &s->own_k, e, h, i, i) + bias(s, e, h, i, 0), &s->own_v,
                e, head_of(&s->own_v, h, s->q.heads), i);
    }
    bag_close(&a);
    bag_check(&a, &s->o, &s->p.lse, e, h, i, tolerance, what);
  }
}

static scene *build(int64_t batch, int64_t n, int64_t rows, int64_t tokens, int64_t dk, int64_t dv,
                    int types, test_rng *rng) {
  static const attn_dtype type[3] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  attn_dtype in = type[types % 3], out = type[types / 3 % 3];
  s->q = drawn(in, TEST_BTHD, batch * n, H, rows, dk, 0.7, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, batch, 2, tokens, dk, 1, rng);
  s->v = drawn(in, TEST_BHTD, batch, types % 2 ? 1 : H, tokens, dv, 1, rng);
  s->own_k = drawn(in, TEST_PADDED, batch * n, 2, rows, dk, 1, rng);
  s->own_v = drawn(ATTN_F32, TEST_BTHD, batch * n, types % 2 ? 2 : H, rows, dv, 1, rng);
  s->p.relative = drawn(ATTN_F32, TEST_PADDED, batch * n, H, rows, 32, 1, rng);
  s->o = output(out, TEST_BTHD, batch * n, H, rows, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_PADDED, batch * n, H, rows, 1, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

void C21_ngram_random(void **state) {
  (void)state;
  test_rng rng = test_seed(210);
  for (int64_t n = test_count(45, 18); n-- > 0;) {
    int64_t batch = test_range(&rng, 1, 3), streams = 1 + n % 3;
    int64_t rows = test_range(&rng, 1, n % 5 ? 30 : 150),
            before = n % 2 ? 0 : test_range(&rng, 0, 90);
    scene *s = build(batch, streams, rows, rows + before, test_range(&rng, 1, 17),
                     test_range(&rng, 1, 17), (int)(n % 9), &rng);
    s->p.together = n % 4 == 3;
    if (n % 4 == 1) s->p.relative.dim = 7, s->p.max_distance = 4 + n;
    if (n % 4 == 2) s->p.scale = n % 8 == 2 ? ATTN_ZERO : -0.25f;
    if (n % 6 == 5) s->p.relative = absent();
    if (n % 7 == 6) s->own_k = s->own_v = absent();
    if (n % 3 == 1) s->p.len = test_lengths(batch, rows + before, &rng);
    if (n % 11 == 4) memset(&s->p.lse, 0, sizeof s->p.lse), s->does.out[1] = NULL;
    promise_run(&s->does);
    check(s, 5e-6, "ngram");
  }
}

/* Marks of tiles and of blocks of keys; no rows, no sequences; values of mean one. */
void C21_ngram_marks(void **state) {
  (void)state;
  test_rng rng = test_seed(211);
  static const int64_t rows[5] = {1, 129, 70, 0, 3}, tokens[5] = {1, 129, 1100, 4, 3};
  for (int n = 0; n < 5; n++) {
    scene *s = build(n != 4, 2, rows[n], tokens[n], 5, 3, 0, &rng);
    for (int64_t i = 0; n == 2 && i < tokens[n]; i++)
      for (int64_t h = 0; h < s->v.heads; h++) test_fill_row(s->v, 0, h, i, 1);
    promise_run(&s->does);
    check(s, 4e-6, "marks");
  }
}

/* The last rows alone, a cache, are the last rows of the whole; one sequence of a batch is a call of its own. */
void C21_ngram_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(212);
  static const int64_t last[4] = {1, 2, 20, 70};
  scene *s = build(2, 3, 100, 100, 9, 6, 0, &rng);
  promise_run(&s->does);
  attn_tensor whole = s->o;
  for (int n = 0; n < 4; n++) {
    scene x = *s;
    x.q = test_rows(s->q, 100 - last[n], last[n]);
    x.own_k = test_rows(s->own_k, 100 - last[n], last[n]);
    x.own_v = test_rows(s->own_v, 100 - last[n], last[n]);
    x.p.relative = test_rows(s->p.relative, 100 - last[n], last[n]);
    x.o = output(ATTN_F32, TEST_BHTD, 6, H, last[n], 6, NULL);
    memset(&x.p.lse, 0, sizeof x.p.lse), x.does.out[1] = NULL;
    x.does.scene = &x, x.does.out[0] = &x.o;
    promise_run(&x.does);
    test_assert_near(x.o, test_rows(whole, 100 - last[n], last[n]), 3e-6, "last rows");
  }
  scene x = *s;
  x.q = test_one(s->q, 3, 3, 0, H), x.k = test_one(s->k, 1, 1, 0, 2);
  x.v = test_one(s->v, 1, 1, 0, H), x.own_k = test_one(s->own_k, 3, 3, 0, 2);
  x.own_v = test_one(s->own_v, 3, 3, 0, H), x.p.relative = test_one(s->p.relative, 3, 3, 0, H);
  x.o = output(ATTN_F32, TEST_BHTD, 3, H, 100, 6, NULL);
  memset(&x.p.lse, 0, sizeof x.p.lse), x.does.out[1] = NULL;
  x.does.scene = &x, x.does.out[0] = &x.o;
  promise_run(&x.does);
  test_assert_same(x.o, test_one(whole, 3, 3, 0, H), "one sequence");
}

/* The first stream does not lag, whichever rule; streams that lag share the first stream's other rows. */
void C21_ngram_first(void **state) {
  (void)state;
  test_rng rng = test_seed(213);
  scene *s = build(1, 2, 40, 40, 8, 5, 0, &rng);
  promise_run(&s->does);
  attn_tensor lagging = s->o;
  s->o = output(ATTN_F32, TEST_BHTD, 2, H, 40, 5, NULL), s->p.together = 1;
  promise_run(&s->does);
  check(s, 5e-6, "together");
  test_assert_same(test_one(s->o, 0, 1, 0, H), test_one(lagging, 0, 1, 0, H), "first stream");
  assert_false(test_same(test_one(s->o, 1, 1, 0, H), test_one(lagging, 1, 1, 0, H)));
}

/* NaN at main key 7, at an own key, and in a number of relative reaches the rows that read it and no others. */
void C21_ngram_sees(void **state) {
  (void)state;
  test_rng rng = test_seed(214);
  static const int32_t len[2] = {40, 25};
  for (int n = 0; n < 5; n++) {
    scene *s = build(2, 3, 40, 40, 8, 5, 0, &rng);
    s->p.len = len;
    if (n == 0) test_fill_row(s->k, 0, 0, 7, (double)NAN);
    if (n == 1) test_fill_row(s->v, 0, 0, 7, (double)NAN);
    if (n == 2) test_fill_row(s->own_v, 1, 0, 7, (double)NAN);
    if (n == 3) oracle_set(&s->p.relative, 1, 0, 7, 9, (double)NAN); /* keys 8 - 9 < 0: none */
    for (int64_t i = 25; n == 4 && i < 40; i++)
      for (int64_t e = 3; e < 6; e++) {
        test_fill_row(s->q, e, 0, i, (double)NAN), test_fill_row(s->own_k, e, 0, i, (double)NAN);
        test_fill_row(s->own_v, e, 0, i, (double)NAN);
        test_fill_row(s->p.relative, e, 0, i, (double)NAN);
        test_fill_row(s->k, 1, 0, i, (double)NAN), test_fill_row(s->v, 1, 0, i, (double)NAN);
      }
    promise_run(&s->does);
    for (int64_t e = 0; e < 6; e++)
      for (int64_t i = 0; i < 40; i++) {
        const int bad = n <= 1 ? e < 3 && i - e >= 7 : n == 2 ? e == 1 && i == 7 : 0;
        assert_int_equal(isnan(oracle_get(&s->o, e, 0, i, 0)) != 0, bad);
        if (e >= 3 && i >= 25) assert_true(oracle_get(&s->o, e, 0, i, 0) == 0);
      }
  }
}

void C21_ngram_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(215);
  for (int n = 0; n < 3; n++) {
    scene *s = build(2, 2, n == 1 ? 3 : 130, 130, 8, 6, n ? 4 : 0, &rng);
    if (n) s->p.len = test_lengths(2, 130, &rng);
    if (n == 2) s->own_k = s->own_v = absent();
    promise_keep(&s->does);
  }
}

/* Without own keys and biases the main stream is causal attention, bit for bit. */
void C21_ngram_main(void **state) {
  (void)state;
  test_rng rng = test_seed(216);
  scene *s = build(2, 1, 50, 90, 8, 6, 0, &rng);
  attn_sdpa_params p;
  attn_ctx ctx = test_ctx();
  attn_tensor o = output(ATTN_F32, TEST_BHTD, 2, H, 50, 6, NULL);
  memset(&p, 0, sizeof p);
  p.causal = 1;
  s->own_k = s->own_v = s->p.relative = absent();
  promise_run(&s->does);
  assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
  test_assert_same(s->o, o, "main stream");
}

void C21_ngram_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(217);
  for (int n = 0; n < 27; n++) {
    scene *s = build(2, 2, 20, 40, 8, 6, 0, &rng);
    static const int32_t low[2] = {3, -1}, high[2] = {41, 0};
    attn_status want = ATTN_E_SHAPE;
    const char *word = "params.len";
    switch (n) {
      case 0: s->p.len = low, want = ATTN_E_RANGE; break;
      case 1: s->p.len = high, want = ATTN_E_RANGE; break;
      case 2: s->p.max_distance = -1, want = ATTN_E_RANGE, word = "max_distance"; break;
      case 3: s->p.max_distance = 16, want = ATTN_E_RANGE, word = "max_distance"; break;
      case 4: s->p.max_distance = INT64_MAX, want = ATTN_E_RANGE, word = "max_distance"; break;
      case 5: s->p.relative.dim = 1, want = ATTN_E_RANGE, word = "relative.dim"; break;
      case 6: s->p.relative.len = 19, word = "params.relative"; break;
      case 7: s->p.relative.heads = 2, word = "params.relative"; break;
      case 8: s->p.relative.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "params.relative"; break;
      case 9: s->p.scale = INFINITY, want = ATTN_E_VALUE, word = "params.scale"; break;
      case 10: s->own_k.data = NULL, want = ATTN_E_NULL, word = "own_k and own_v"; break;
      case 11: s->own_v.data = NULL, want = ATTN_E_NULL, word = "own_k and own_v"; break;
      case 12: s->own_k.len = 19, word = "own_k must"; break;
      case 13: s->own_v.len = 19, word = "own_v must"; break;
      case 14: s->own_k.dim = 7, word = "own_k must"; break;
      case 15: s->own_v.dim = 5, word = "own_v must"; break;
      case 16: s->own_k.batch = 2, word = "own_k must"; break;
      case 17: s->own_v.heads = 3, want = ATTN_E_HEADS, word = "own_v must"; break;
      case 18: s->k.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 19: s->v.len = 39, word = "v must"; break;
      case 20: s->k.dim = 7, word = "k must"; break;
      case 21: s->v.batch = 1, word = "v must"; break;
      case 22: s->k.len = s->v.len = 19, word = "k.len"; break;
      case 23: s->k.batch = s->v.batch = 0, word = "q.batch"; break;
      case 24: s->o.dim = 5, word = "o must"; break;
      case 25: s->p.lse.heads = 1, word = "params.lse"; break;
      default: s->p.len = s->o.data, want = ATTN_E_OVERLAP, word = "o "; break;
    }
    promise_reject(&s->does, want, word);
  }
  scene *s = build(2, 2, 5, 5, 8, 6, 0, &rng);
  s->q.batch = s->o.batch = s->p.lse.batch = s->own_k.batch = s->own_v.batch = 3;
  s->p.relative.batch = 3;
  promise_reject(&s->does, ATTN_E_SHAPE, "q.batch");
  s = build(1, 1, 5, 5, 8, 6, 0, &rng);
  s->q.heads = 0;
  promise_reject(&s->does, ATTN_E_SHAPE, "q.heads");
}
