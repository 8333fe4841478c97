/* tests/families/heads/test_talking_backward.c owns N6 of talking heads: gradients of attn_talking against the formulas in
 * float64, these against differences of the float64 loss, and the promises of the call. */

#include "families/training/dense.h"
#include "talking.h"

enum { OUTPUTS = 5 };

typedef struct scene {
  attn_tensor d_o, q, k, v;
  attn_tensor d[OUTPUTS]; /* of q, k, v, w_l, w_w */
  attn_talking_params p;
  attn_talking_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  s->g.d_w_l = s->d[3], s->g.d_w_w = s->d[4];
  return attn_talking_backward(s->d[0], s->d[1], s->d[2], s->d_o, s->q, s->k, s->v, &s->p, &s->g,
                               ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  s->g.d_w_l = s->d[3], s->g.d_w_w = s->d[4];
  return attn_talking_backward_workspace(s->d[0], s->d[1], s->d[2], s->d_o, s->q, s->k, s->v, &s->p,
                                         &s->g, ctx);
}

static const attn_tensor *given(const scene *s, int n) {
  const attn_tensor *const x[OUTPUTS] = {&s->q, &s->k, &s->v, &s->p.w_l, &s->p.w_w};
  return x[n];
}

static void outputs(scene *s, attn_dtype type) {
  for (int n = 0; n < OUTPUTS; n++) {
    const attn_tensor *x = given(s, n);
    s->d[n] = output(type, n % 2 ? TEST_PADDED : TEST_NEGATIVE, x->batch, x->heads, x->len, x->dim,
                     n < 4 ? &s->does.block[n] : NULL);
    if (n < 4) s->does.out[n] = &s->d[n];
  }
}

static scene *build(const talking_shape *x, attn_dtype d_type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(x->q_type, TEST_BTHD, x->batch, x->hk, x->tq, x->dk, 1.2, rng);
  s->k = drawn(x->kv_type, TEST_NEGATIVE, x->batch, x->k_heads, x->tk, x->dk, 1.2, rng);
  s->v = drawn(x->kv_type, TEST_PADDED, x->batch, x->v_heads, x->tk, x->dv, 1, rng);
  s->d_o = drawn(x->o_type, TEST_BTHD, x->batch, x->hv, x->tq, x->dv, 1, rng);
  s->p.w_transposed = x->transposed;
  s->p.w_l = drawn(x->w_type, TEST_PADDED, 1, 1, x->transposed ? x->h : x->hk,
                   x->transposed ? x->hk : x->h, 0.8, rng);
  s->p.w_w = drawn(x->w_type, TEST_NEGATIVE, 1, 1, x->transposed ? x->hv : x->h,
                   x->transposed ? x->h : x->hv, 0.8, rng);
  outputs(s, d_type);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* Row (b, i) of all heads: scores J [hk][Tk], weights W [H][Tk] with their LSE. */
typedef struct row {
  double *j, *w, *lse;
} row;

static row row_of(const scene *s, const attn_tensor *zero, int64_t b, int64_t i) {
  const int64_t H = talking_heads(&s->p), tk = s->k.len, hk = s->q.heads;
  const double scale = scale_of(s->p.attention.scale, s->q.dim);
  row y = {test_mem((size_t)(hk * tk + 1) * sizeof(double)),
           test_mem((size_t)(H * tk + 1) * sizeof(double)), test_mem((size_t)H * sizeof(double))};
  for (int64_t c = 0; c < hk; c++)
    for (int64_t j = 0; j < tk; j++) y.j[c * tk + j] = scale * dot_rows(&s->q, &s->k, b, c, i, j);
  for (int64_t h = 0; h < H; h++)
    y.lse[h] = talking_weights(&s->q, &s->k, &s->p, zero, b, h, i, y.w + h * tk);
  return y;
}

static int64_t rows_of(const scene *s, int64_t b) {
  return s->p.attention.q_len ? s->p.attention.q_len[b] : s->q.len;
}

static double loss(const scene *s) {
  const attn_tensor zero = talking_nothing(&s->q, &s->p);
  const int64_t H = talking_heads(&s->p), tk = s->k.len, hv = s->d_o.heads;
  double sum = 0;
  for (int64_t b = 0; b < s->q.batch; b++)
    for (int64_t i = 0; i < rows_of(s, b); i++) {
      const row y = row_of(s, &zero, b, i);
      for (int64_t g = 0; g < hv; g++)
        for (int64_t j = 0; j < tk; j++) {
          double u = 0;
          for (int64_t h = 0; h < H; h++)
            u += y.w[h * tk + j] * talking_mixed(&s->p, &s->p.w_w, h, g);
          for (int64_t c = 0; u != 0 && c < s->v.dim; c++)
            sum += u * oracle_get(&s->v, b, head_of(&s->v, g, hv), j, c) *
                   oracle_get(&s->d_o, b, g, i, c);
        }
      for (int64_t h = 0; s->g.d_lse.data && h < H; h++)
        if (y.lse[h] > -(double)INFINITY) sum += y.lse[h] * oracle_get(&s->g.d_lse, b, h, i, 0);
    }
  return sum;
}

typedef struct wanted {
  dense_sum d[OUTPUTS];
} wanted;

/* The formulas of the documentation; bounds from sums of magnitudes. */
static wanted oracle(const scene *s) {
  const attn_tensor zero = talking_nothing(&s->q, &s->p);
  const int64_t H = talking_heads(&s->p), tk = s->k.len, hk = s->q.heads, hv = s->d_o.heads;
  const double scale = scale_of(s->p.attention.scale, s->q.dim), u = 1e-5;
  double *d_u = test_mem((size_t)(hv * tk + 1) * sizeof *d_u);
  wanted y;
  for (int n = 0; n < OUTPUTS; n++) y.d[n] = dense_open(given(s, n));
  for (int64_t b = 0; b < s->q.batch; b++)
    for (int64_t i = 0; i < rows_of(s, b); i++) {
      const row r = row_of(s, &zero, b, i);
      for (int64_t g = 0; g < hv; g++)
        for (int64_t j = 0; j < tk; j++) {
          d_u[g * tk + j] = 0;
          for (int64_t c = 0; c < s->v.dim; c++)
            d_u[g * tk + j] +=
                oracle_get(&s->d_o, b, g, i, c) * oracle_get(&s->v, b, head_of(&s->v, g, hv), j, c);
        }
      for (int64_t h = 0; h < H; h++) {
        double d = 0, d_size = 0;
        const double more = s->g.d_lse.data && r.lse[h] > -(double)INFINITY
                                ? oracle_get(&s->g.d_lse, b, h, i, 0)
                                : 0;
        for (int way = 0; way < 2; way++) /* D, then what needs it */
          for (int64_t j = 0; j < tk; j++) {
            const double w = r.w[h * tk + j];
            double d_w = 0, size = 0;
            if (w == 0) continue;
            for (int64_t g = 0; g < hv; g++) {
              const double by = talking_mixed(&s->p, &s->p.w_w, h, g), du = d_u[g * tk + j];
              d_w += du * by, size += fabs(du * by);
              if (!way) continue;
              dense_add(&y.d[4], 0, 0, s->p.w_transposed ? g : h, s->p.w_transposed ? h : g, w * du,
                        u * w * (fabs(du) + 1));
              for (int64_t c = 0; c < s->v.dim; c++) {
                const double o = oracle_get(&s->d_o, b, g, i, c);
                dense_add(&y.d[2], b, head_of(&s->v, g, hv), j, c, w * by * o,
                          u * w * fabs(by * o));
              }
            }
            if (!way) {
              d += w * d_w, d_size += w * size;
              continue;
            }
            const double l = w * (d_w - d + more), e = u * w * (size + d_size + fabs(more));
            for (int64_t g = 0; g < hk; g++) {
              const double by = talking_mixed(&s->p, &s->p.w_l, g, h) * scale;
              dense_add(&y.d[3], 0, 0, s->p.w_transposed ? h : g, s->p.w_transposed ? g : h,
                        r.j[g * tk + j] * l, e * (fabs(r.j[g * tk + j]) + 1));
              for (int64_t c = 0; c < s->q.dim; c++) {
                const int64_t kh = head_of(&s->k, g, hk);
                const double k = oracle_get(&s->k, b, kh, j, c), q = oracle_get(&s->q, b, g, i, c);
                dense_add(&y.d[0], b, g, i, c, by * l * k, e * fabs(by * k));
                dense_add(&y.d[1], b, kh, j, c, by * l * q, e * fabs(by * q));
              }
            }
          }
      }
    }
  return y;
}

static const char *const names[OUTPUTS] = {"d_q", "d_k", "d_v", "d_w_l", "d_w_w"};

static void check(const scene *s) {
  const wanted y = oracle(s);
  for (int n = 0; n < OUTPUTS; n++)
    if (s->d[n].data) dense_check(&y.d[n], &s->d[n], names[n]);
}

/* What a softmax is of: masks, lengths and terms. */
static void dress(scene *s, int64_t n, test_rng *rng) {
  attn_sdpa_params *p = &s->p.attention;
  const int64_t h = talking_heads(&s->p), b = s->q.batch, tq = s->q.len, tk = s->k.len;
  if (n % 3 == 0) p->causal = 1;
  if (n % 6 == 5) p->has_q_off = 1, p->q_off = test_range(rng, -5, 5);
  if (n % 7 == 2) p->scale = 0.3f;
  if (n % 4 == 3) p->window = attn_window_of(test_range(rng, 1, 9), 0);
  if (n % 5 == 2) p->kv_len = test_lengths(b, tk, rng);
  if (n % 5 == 3) p->q_len = test_lengths(b, tq, rng);
  if (n % 4 == 2) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, b, h, tq, tk, rng);
  if (n % 6 == 1) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, b, h, tq, tk, rng);
  if (n % 7 == 3) p->alibi = test_floats(h, 0.1, rng);
  if (n % 3 == 1) s->g.d_lse = drawn(ATTN_F32, TEST_NEGATIVE, b, h, tq, 1, 1, rng);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void N6_talking(void **state) {
  (void)state;
  test_rng rng = test_seed(9950);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    const int64_t kh = test_range(&rng, 1, 3), vh = test_range(&rng, 1, 3);
    talking_shape x = talking_plain(
        kh * test_range(&rng, 1, 2), test_range(&rng, 1, 8), vh * test_range(&rng, 1, 3),
        test_range(&rng, 1, n % 4 ? 24 : 150), test_range(&rng, 1, n % 3 ? 40 : 300));
    x.batch = test_range(&rng, 1, 2), x.k_heads = kh, x.v_heads = vh;
    x.dk = test_range(&rng, 1, 12), x.dv = test_range(&rng, 1, 12), x.transposed = (int)(n / 2 % 2);
    x.q_type = x.kv_type = x.o_type = x.w_type = n % 5 == 1   ? ATTN_F16
                                                 : n % 5 == 2 ? ATTN_BF16
                                                              : ATTN_F32;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, n % 6 == 1 ? ATTN_BF16 : ATTN_F32, &rng);
    test_where = TEST_HEAP;
    dress(s, n, &rng);
    promise_run(&s->does);
    check(s);
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* More tiles and blocks than are joined at once; values of one sign, whose sums would drift; many heads. */
void N6_talking_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9951);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    /* more blocks, more tiles, more heads */
    const int64_t more = test_fast ? 0 : 500;
    talking_shape x =
        talking_plain(2, n == 2 ? 34 : 3, n == 1 ? 1 : 2, n == 1 ? 560 + more : 70 + more / 2,
                      n == 0 ? 1400 : 150 + more);
    x.dk = 3, x.dv = 2;
    scene *s = build(&x, ATTN_F32, &rng);
    attn_tensor *const t[] = {&s->v, &s->d_o};
    for (int a = 0; a < 2; a++)
      for (int64_t h = 0; h < t[a]->heads; h++)
        for (int64_t i = 0; i < t[a]->len; i++)
          for (int64_t c = 0; c < t[a]->dim; c++)
            oracle_set(t[a], 0, h, i, c, 1 + 0.25 * oracle_get(t[a], 0, h, i, c));
    s->p.attention.causal = n == 2;
    promise_run(&s->does);
    check(s);
  }
}

/* The formulas against differences of the loss in float64. */
void N6_talking_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9952);
  for (int64_t n = test_count(24, 8); n-- > 0; test_mem_release()) {
    talking_shape x =
        talking_plain(test_range(&rng, 1, 3), test_range(&rng, 1, 3), test_range(&rng, 1, 3),
                      test_range(&rng, 1, 5), test_range(&rng, 1, 6));
    x.transposed = (int)(n % 2), x.dk = 3, x.dv = 2;
    scene *s = build(&x, ATTN_F32, &rng);
    dress(s, n, &rng);
    const wanted want = oracle(s);
    for (int a = 0; a < OUTPUTS; a++) {
      const attn_tensor *t = given(s, a);
      const int64_t h = test_range(&rng, 0, t->heads - 1), i = test_range(&rng, 0, t->len - 1);
      const int64_t c = test_range(&rng, 0, t->dim - 1);
      const double was = oracle_get(t, 0, h, i, c), step = 1.0 / 256;
      double slope[2];
      for (int far = 1; far <= 2; far++) {
        oracle_set(t, 0, h, i, c, was + far * step);
        const double up = loss(s), up_at = oracle_get(t, 0, h, i, c);
        oracle_set(t, 0, h, i, c, was - far * step);
        slope[far - 1] = (up - loss(s)) / (up_at - oracle_get(t, 0, h, i, c));
        oracle_set(t, 0, h, i, c, was);
      }
      const double by = (4 * slope[0] - slope[1]) / 3, got = cube_at(&want.d[a].want, 0, h, i)[c];
      value_check(got, by, 1e-5 * (1 + fabs(by)), ATTN_F32, names[a], 0, h, i, c);
    }
  }
}

/* Matrices that mix nothing: attn_sdpa_backward. */
void N6_talking_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(9953);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    talking_shape x = talking_plain(3, 3, 3, 70, 200);
    scene *s = build(&x, ATTN_F32, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor *const w[] = {&s->p.w_l, &s->p.w_w};
    for (int a = 0; a < 2; a++) {
      test_fill_value(*w[a], 0);
      for (int64_t i = 0; i < 3; i++) oracle_set(w[a], 0, 0, i, i, 1);
    }
    s->p.attention.causal = n;
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 70, x.dv), d[3];
    attn_sdpa_params p = s->p.attention;
    p.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 70, 1);
    assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
    for (int i = 0; i < 3; i++)
      d[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, given(s, i)->len, given(s, i)->dim);
    assert_int_equal(
        attn_sdpa_backward(d[0], d[1], d[2], s->d_o, s->q, s->k, s->v, o, p.lse, &p, NULL, &ctx),
        ATTN_OK);
    promise_run(&s->does);
    for (int i = 0; i < 3; i++) test_assert_near(s->d[i], d[i], 1e-5, names[i]);
  }
}

/* Outputs by themselves, with the LSE that forward left, twice, and by more workers: the same bits. */
void N6_talking_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9954);
  for (int n = 0; n < 10; n++, test_mem_release()) {
    talking_shape x = talking_plain(2, 4, 2, 140, 300);
    x.batch = 1 + n % 2;
    scene *s = build(&x, ATTN_F32, &rng);
    attn_ctx ctx = test_ctx();
    s->p.attention.causal = n % 3 == 0;
    promise_run(&s->does);
    scene t = *s;
    t.g.accumulate = 0;
    if (n % 2) {
      const attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, x.batch, x.hv, x.tq, x.dv);
      t.p.attention.lse = test_tensor(ATTN_F32, TEST_PADDED, x.batch, x.h, x.tq, 1);
      assert_int_equal(attn_talking(o, t.q, t.k, t.v, &t.p, &ctx), ATTN_OK);
    }
    const int only = n / 2;
    for (int i = 0; i < OUTPUTS; i++) {
      const attn_tensor *of = given(s, i);
      t.d[i] = i == only
                   ? test_tensor(ATTN_F32, TEST_PADDED, of->batch, of->heads, of->len, of->dim)
                   : absent();
    }
    assert_int_equal(call(&t, &ctx), ATTN_OK);
    test_assert_same(t.d[only], s->d[only], "by itself");
    t.g.accumulate = 1;
    assert_int_equal(call(&t, &ctx), ATTN_OK);
    for (int64_t i = 0; i < t.d[only].len; i++)
      value_check(oracle_get(&t.d[only], 0, 0, i, 0), 2 * oracle_get(&s->d[only], 0, 0, i, 0), 1e-6,
                  ATTN_F32, "twice", 0, 0, i, 0);
  }
}

/* NaN reaches what some softmax head lets meet, and nothing else. */
void N6_talking_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9955);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    talking_shape x = talking_plain(2, 2, 2, 90, 90);
    scene *s = build(&x, ATTN_F32, &rng);
    const int64_t at = 28; /* a lane that the last tile has no row in */
    attn_tensor *const t[] = {&s->d_o, &s->q, &s->k, &s->v};
    s->p.attention.causal = 1;
    if (n > 3) { /* one head sees less; the other decides */
      s->p.attention.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 2, 90, 90, &rng);
      s->p.attention.causal = 0;
    }
    oracle_set(t[n % 4], 0, 1, at, 1, n & 1 ? (double)NAN : (double)INFINITY);
    promise_run(&s->does);
    const attn_tensor zero = talking_nothing(&s->q, &s->p);
    for (int o = 0; o < 3; o++)
      for (int64_t i = 0; i < 90; i++) {
        int meets = 0, sees_bad = 0;
        for (int64_t h = 0; h < 2; h++) {
          const int query = n % 4 < 2; /* the bad row is a query's */
          /* row i of the output and the bad row: who sees whom */
          if (o == 0 && query) meets |= i == at;
          if (o == 0 && !query) meets |= oracle_allowed(&zero, &s->k, &s->p.attention, 0, h, i, at);
          if (o && query) meets |= oracle_allowed(&zero, &s->k, &s->p.attention, 0, h, at, i);
          /* another key of a query that sees the bad key */
          for (int64_t r = 0; o && !query && r < 90; r++) {
            int both = 0, other = 0;
            for (int64_t g = 0; g < 2; g++) {
              both |= oracle_allowed(&zero, &s->k, &s->p.attention, 0, g, r, at);
              other |= oracle_allowed(&zero, &s->k, &s->p.attention, 0, g, r, i);
            }
            sees_bad |= both && other;
          }
        }
        for (int64_t c = 0; c < s->d[o].dim && !meets && !sees_bad; c++)
          for (int64_t h = 0; h < s->d[o].heads; h++)
            assert_true(isfinite(oracle_get(&s->d[o], 0, h, i, c)));
      }
    if (n == 0) assert_false(isfinite(oracle_get(&s->d[2], 0, 1, at, 1)) != 0);
  }
}

/* What a mask hides from all holds anything: a key, a query. */
void N6_talking_hidden(void **state) {
  (void)state;
  test_rng rng = test_seed(9958);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    talking_shape x = talking_plain(2, 3, 2, 70, 90);
    scene *s = build(&x, ATTN_F32, &rng);
    const int64_t at = 8; /* likewise */
    attn_tensor *const t[] = {&s->d_o, &s->q, &s->k, &s->v};
    uint8_t *seen = test_mem(70 * 90);
    for (int64_t i = 0; i < 70 * 90; i++) seen[i] = (n < 2 ? i / 90 : i % 90) != at;
    s->p.attention.mask = attn_mask_bool(seen, 1, 1, 70, 90);
    s->g.d_lse = drawn(ATTN_F32, TEST_PADDED, 1, 3, 70, 1, 1, &rng);
    if (n < 2) oracle_set(&s->g.d_lse, 0, 1, at, 0, (double)NAN);
    test_fill_row(*t[n], 0, 1, at, n & 1 ? (double)NAN : (double)INFINITY);
    promise_run(&s->does);
    for (int o = 0; o < OUTPUTS; o++)
      for (int64_t h = 0; h < s->d[o].heads; h++)
        for (int64_t i = 0; i < s->d[o].len; i++)
          for (int64_t c = 0; c < s->d[o].dim; c++)
            assert_true(isfinite(oracle_get(&s->d[o], 0, h, i, c)));
  }
}

/* No query, no key; rows that nobody reads hold anything. */
void N6_talking_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(9956);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    talking_shape x = talking_plain(2, 3, 2, n == 0 ? 0 : 20, n == 1 ? 0 : 30);
    if (n == 2) x.batch = 0;
    scene *s = build(&x, ATTN_F32, &rng);
    static const int32_t q_len[] = {11}, kv_len[] = {13};
    if (n == 3) {
      s->p.attention.q_len = q_len, s->p.attention.kv_len = kv_len;
      for (int64_t h = 0; h < 2; h++) {
        for (int64_t i = 11; i < 20; i++)
          test_fill_row(s->q, 0, h, i, (double)NAN), test_fill_row(s->d_o, 0, h, i, (double)NAN);
        for (int64_t j = 13; j < 30; j++)
          test_fill_row(s->k, 0, h, j, (double)NAN), test_fill_row(s->v, 0, h, j, (double)NAN);
      }
    }
    if (n == 3) {
      s->g.d_lse = drawn(ATTN_F32, TEST_PADDED, 1, 3, 20, 1, 1, &rng);
      for (int64_t h = 0; h < 3; h++)
        for (int64_t i = 11; i < 20; i++) oracle_set(&s->g.d_lse, 0, h, i, 0, (double)NAN);
    }
    promise_run(&s->does);
    for (int o = 0; o < OUTPUTS; o++)
      for (int64_t h = 0; h < s->d[o].batch * s->d[o].heads; h++)
        for (int64_t i = 0; i < s->d[o].len; i++)
          for (int64_t c = 0; c < s->d[o].dim; c++) {
            const double y = oracle_get(&s->d[o], 0, h, i, c);
            const int rest = n < 3 || (o == 0 ? i >= 11 : o < 3 && i >= 13);
            assert_true(rest ? y == 0 : isfinite(y));
          }
  }
}

void N6_talking_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9957);
  for (int n = 0; n < 14; n++, test_mem_release()) {
    talking_shape x = talking_plain(2, 3, 2, 20, 30);
    scene *s = build(&x, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "gradient";
    switch (n) {
      case 0: s->d[0].dim = 3; break;
      case 1: s->d[1].len = 19; break;
      case 2: s->d[2].heads = 1; break;
      case 3: s->d[3].dim = 2, word = "d_w_l"; break;
      case 4: s->d[4].len = 2, word = "d_w_w"; break;
      case 5: s->d_o.data = NULL, want = ATTN_E_NULL, word = "d_o"; break;
      case 6: s->d_o.len = 19, word = "d_o"; break;
      case 7: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 8: s->d[0].data = s->q.data, want = ATTN_E_OVERLAP, word = "d_q"; break;
      case 9: s->d[3].data = s->p.w_l.data, want = ATTN_E_OVERLAP, word = "d_w_l"; break;
      case 10:
        s->g.d_lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 1);
        word = "d_lse";
        break;
      case 11:
        s->p.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 19, 1);
        word = "lse";
        break;
      case 12: s->p.attention.softcap = 3, want = ATTN_E_RANGE, word = "softcap"; break;
      default: s->p.w_l.len = 3, word = "w_l"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
