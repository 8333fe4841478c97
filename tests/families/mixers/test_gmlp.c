/* tests/families/mixers/test_gmlp.c owns gMLP and aMLP: the block against float64, what follows from its formula,
 * promises and rejections. */

#include "layers.h"

typedef struct scene {
  attn_tensor o, x;
  attn_gmlp_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_gmlp(s->o, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_gmlp_workspace(s->o, s->x, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, len, most, dm, e, heads, tiny; /* most: N; tiny: a, 0 = none */
  int bias, norms, shared;                      /* shared: one b_s for all heads */
  attn_dtype type, w_type, o_type;
} shape;

static shape plain(int64_t len, int64_t e, int64_t heads) {
  shape z = {1, len, len + 3, 10, e, heads, 0, 1, 1, 0, ATTN_F32, ATTN_F32, ATTN_F32};
  return z;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  attn_gmlp_params *p = &s->p;
  const double in = 1 / sqrt((double)z->dm), mid = 1 / sqrt((double)z->e);
  s->x = drawn(z->type, TEST_PADDED, z->batch, 1, z->len, z->dm, 1, rng);
  p->w_1 = drawn(z->w_type, TEST_PADDED, 1, 1, z->dm, 2 * z->e, in, rng);
  p->w_2 = drawn(z->w_type, TEST_NEGATIVE, 1, 1, z->e, z->dm, mid, rng);
  p->w_s = drawn(z->w_type, TEST_PADDED, 1, z->heads, z->most, z->most,
                 1 / sqrt((double)z->len + 1), rng);
  if (z->bias) {
    p->b_1 = drawn(z->w_type, TEST_BHTD, 1, 1, 1, 2 * z->e, 0.5, rng);
    p->b_2 = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, z->dm, 0.5, rng);
    p->b_s = drawn(z->w_type, TEST_PADDED, 1, z->shared ? 1 : z->heads, 1, z->most, 0.7, rng);
  }
  if (z->norms) p->norm = drawn_norm(z->dm, rng), p->norm_gate = drawn_norm(z->e, rng);
  if (z->tiny) {
    p->w_qkv = drawn(z->w_type, TEST_PADDED, 1, 1, z->dm, 3 * z->tiny, 1.5 * in, rng);
    p->w_o = drawn(z->w_type, TEST_NEGATIVE, 1, 1, z->tiny, z->e, 1 / sqrt((double)z->tiny), rng);
    if (z->bias) {
      p->b_qkv = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 3 * z->tiny, 0.5, rng);
      p->b_o = drawn(z->w_type, TEST_BHTD, 1, 1, 1, z->e, 0.5, rng);
    }
  }
  s->o = output(z->o_type, TEST_PADDED, z->batch, 1, z->len, z->dm, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static double gelu(double x) { return x * erfc(-x / sqrt(2.0)) / 2; }

/* Columns c0 .. c0 + n - 1. */
static cube columns(const cube *x, int64_t c0, int64_t n) {
  cube y = cube_of(x->batch, 1, x->len, n);
  for (int64_t r = 0; r < x->batch * x->len; r++)
    for (int64_t c = 0; c < n; c++) y.data[r * n + c] = x->data[r * x->dim + c0 + c];
  return y;
}

/* The tiny attention of row i of entry b, before w_o. */
static void attend(double *o, const cube *qkv, int64_t b, int64_t i, int64_t keys) {
  const int64_t a = qkv->dim / 3;
  const double *q = cube_at(qkv, b, 0, i);
  double top = -(double)INFINITY, sum = 0;
  for (int64_t c = 0; c < a; c++) o[c] = 0;
  for (int pass = 0; pass < 3; pass++)
    for (int64_t j = 0; j < keys; j++) {
      const double *k = cube_at(qkv, b, 0, j) + a;
      double x = 0;
      for (int64_t c = 0; c < a; c++) x += q[c] * k[c] / sqrt((double)a);
      if (pass == 0) top = fmax(top, x);
      if (pass == 1) sum += exp(x - top);
      for (int64_t c = 0; pass == 2 && c < a; c++) o[c] += exp(x - top) / sum * k[a + c];
    }
}

static cube want_of(const scene *s) {
  const attn_gmlp_params *p = &s->p;
  const int64_t e = p->w_2.len, heads = p->w_s.heads;
  cube x = cube_from(&s->x), n = rows_norm(&x, NULL, &p->norm);
  cube z = rows_dense(&n, &p->w_1, &p->b_1), w = cube_from(&p->w_s), qkv = n, each = n;
  for (int64_t r = 0; r < z.batch * z.len * z.dim; r++)
    if (p->activation != ATTN_ACT_NONE)
      z.data[r] = p->activation == ATTN_ACT_TANH ? tanh(z.data[r]) : gelu(z.data[r]);
  cube z1 = columns(&z, 0, e), z2 = columns(&z, e, e);
  z2 = rows_norm(&z2, NULL, &p->norm_gate);
  if (p->w_qkv.data) {
    qkv = rows_dense(&n, &p->w_qkv, &p->b_qkv);
    each = cube_of(x.batch, 1, x.len, qkv.dim / 3);
    for (int64_t r = 0; r < x.batch * x.len; r++) {
      const int64_t b = r / x.len, i = r % x.len, len = p->x_len ? p->x_len[b] : x.len;
      attend(each.data + r * each.dim, &qkv, b, i, p->causal && i < len ? i + 1 : len);
    }
    each = rows_dense(&each, &p->w_o, &p->b_o);
  }
  cube gated = cube_of(x.batch, 1, x.len, e);
  for (int64_t r = 0; r < x.batch * x.len; r++) {
    const int64_t b = r / x.len, i = r % x.len, len = p->x_len ? p->x_len[b] : x.len;
    for (int64_t c = 0; c < e; c++) {
      const int64_t h = c * heads / e;
      double g = p->b_s.data ? oracle_get(&p->b_s, 0, p->b_s.heads > 1 ? h : 0, 0, i) : 0;
      for (int64_t j = 0; j < len && (!p->causal || j <= i); j++)
        g += cube_at(&w, 0, h, i)[j] * cube_at(&z2, b, 0, j)[c];
      if (p->w_qkv.data) g += each.data[r * e + c];
      gated.data[r * e + c] = z1.data[r * e + c] * g;
    }
  }
  cube y = rows_dense(&gated, &p->w_2, &p->b_2);
  for (int64_t r = 0; r < y.batch * y.len * y.dim; r++) {
    const int64_t i = r / y.dim, b = i / y.len;
    y.data[r] = p->x_len && i % y.len >= p->x_len[b] ? 0 : y.data[r] + x.data[r];
  }
  return y;
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

void L2_random(void **state) {
  (void)state;
  test_rng rng = test_seed(1200);
  for (int64_t n = test_count(48, 12); n-- > 0; test_mem_release()) {
    shape z = plain(test_range(&rng, 1, 20), 1, 1);
    z.batch = test_range(&rng, 1, 3), z.most = z.len + test_range(&rng, 0, 4);
    z.dm = test_range(&rng, 1, 12), z.heads = test_range(&rng, 1, 3);
    z.e = z.heads * test_range(&rng, 1, n % 4 ? 6 : 30);
    z.tiny = n % 3 ? 0 : test_range(&rng, 1, 9);
    z.bias = n % 5 != 0, z.norms = n % 4 != 1, z.shared = n % 2 != 0;
    z.type = floats[test_range(&rng, 0, 2)], z.w_type = floats[test_range(&rng, 0, 2)];
    z.o_type = floats[test_range(&rng, 0, 2)];
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    s->p.causal = (int)test_range(&rng, 0, 1);
    if (n % 4 == 2) s->p.x_len = test_lengths(z.batch, z.len, &rng);
    if (n % 7 == 0) s->p.activation = ATTN_ACT_TANH;
    if (n % 7 == 1) s->p.activation = ATTN_ACT_NONE;
    run(s, 2e-5, "gmlp");
  }
}

/* Beyond the rows, columns and depth that a product takes at once. */
void L2_large(void **state) {
  (void)state;
  static const int64_t size[][3] = {{150, 70, 1}, {27, 290, 1}, {133, 140, 2}, {101, 18, 6}};
  for (int n = 0; n < 8; n++, test_mem_release()) {
    test_rng rng = test_seed(1210 + (uint64_t)n);
    const int64_t *at = size[n / 2];
    shape z = plain(at[0], at[1], at[2]);
    z.batch = n == 5 ? 2 : 1, z.w_type = floats[n % 3], z.tiny = n / 2 == 1 ? 20 : 0;
    scene *s = build(&z, &rng);
    static const int32_t lens[2] = {97, 130};
    s->p.causal = n % 2;
    if (n == 5) s->p.x_len = lens;
    run(s, 2e-5, "gmlp, large");
  }
}

/* W = 0 and b = 1: G = 1. W = I and b = 0: G = LN_s(Z2). */
void L2_gates(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    test_rng rng = test_seed(1220 + (uint64_t)n);
    shape z = plain(13, 6, 2);
    z.most = 13;
    scene *s = build(&z, &rng);
    s->p.causal = n % 2;
    test_fill_value(s->p.w_s, 0), test_fill_value(s->p.b_s, n < 2 ? 1 : 0);
    for (int64_t i = 0; n >= 2 && i < 26; i++) oracle_set(&s->p.w_s, 0, i / 13, i % 13, i % 13, 1);
    promise_run(&s->does);
    cube x = cube_from(&s->x), t = rows_norm(&x, NULL, &s->p.norm);
    t = rows_dense(&t, &s->p.w_1, &s->p.b_1);
    for (int64_t r = 0; r < t.len * t.dim; r++) t.data[r] = gelu(t.data[r]);
    cube z1 = columns(&t, 0, 6), z2 = columns(&t, 6, 6);
    z2 = rows_norm(&z2, NULL, &s->p.norm_gate);
    for (int64_t r = 0; n >= 2 && r < 13 * 6; r++) z1.data[r] *= z2.data[r];
    z1 = rows_dense(&z1, &s->p.w_2, &s->p.b_2);
    cube want = rows_norm(&x, &z1, NULL);
    cube_check(&want, &s->o, 1e-5, n < 2 ? "G = 1" : "G = LN(Z2)");
  }
}

/* Rows do not change with later ones, W beyond the diagonal is not used, a prefix is a call of its own. */
void L2_causal(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(1230 + (uint64_t)n);
    shape z = plain(n < 3 ? 23 : 140, 12, 2);
    z.tiny = n % 3 == 1 ? 5 : 0, z.w_type = floats[n % 3];
    scene *s = build(&z, &rng);
    s->p.causal = 1;
    promise_run(&s->does);
    attn_tensor was = copy_of(s->o);
    const int64_t cut = test_range(&rng, 1, z.len - 1);
    for (int64_t i = 0; i < z.len; i++)
      for (int64_t j = i + 1; j < z.most; j++)
        for (int64_t h = 0; h < 2; h++) oracle_set(&s->p.w_s, 0, h, i, j, (double)NAN);
    promise_run(&s->does);
    test_assert_same(s->o, was, "beyond the diagonal");
    for (int64_t i = cut; i < z.len; i++) test_fill_row(s->x, 0, 0, i, (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, cut), test_rows(was, 0, cut), "later rows");
    assert_true(isnan(oracle_get(&s->o, 0, 0, cut, 0)));
    s->x.len = s->o.len = cut;
    promise_run(&s->does);
    if (z.tiny) /* few queries of attn_sdpa go another way */
      test_assert_near(s->o, test_rows(was, 0, cut), 1e-5, "prefix");
    else
      test_assert_same(s->o, test_rows(was, 0, cut), "prefix");
  }
}

/* Without an output product aMLP is gMLP. */
void L2_tiny_attention(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    test_rng rng = test_seed(1240 + (uint64_t)n);
    shape z = plain(19, 8, 1);
    z.tiny = 6;
    scene *s = build(&z, &rng);
    s->p.causal = n;
    test_fill_value(s->p.w_o, 0), s->p.b_o = absent();
    promise_run(&s->does);
    attn_tensor was = copy_of(s->o);
    s->p.w_qkv = s->p.b_qkv = s->p.w_o = absent();
    promise_run(&s->does);
    test_assert_same(s->o, was, "no tiny attention");
  }
}

/* Entries that are cut are calls of their own; what they do not have may be NaN. */
void L2_lengths(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(1250 + (uint64_t)n);
    static const int32_t lens[3] = {0, 7, 21};
    shape z = plain(21, 9, 3);
    z.batch = 3, z.tiny = n / 2 * 4, z.type = floats[n % 3], z.o_type = floats[n * 2 % 3];
    scene *s = build(&z, &rng);
    s->p.causal = n % 2, s->p.x_len = lens;
    for (int64_t i = 0; i < 21; i++)
      for (int64_t b = 0; b < 3; b++)
        if (i >= lens[b]) test_fill_row(s->x, b, 0, i, (double)NAN);
    promise_run(&s->does);
    attn_tensor was = copy_of(s->o);
    const attn_tensor x = s->x, o = s->o;
    s->p.x_len = NULL;
    for (int64_t b = 0; b < 3; b++) {
      s->x = test_one(test_rows(x, 0, lens[b]), b, 1, 0, 1);
      s->o = test_one(test_rows(o, 0, lens[b]), b, 1, 0, 1);
      if (b) promise_run(&s->does);
      attn_tensor part = test_one(test_rows(was, 0, lens[b]), b, 1, 0, 1);
      if (z.tiny)
        test_assert_near(part, s->o, 1e-5, "cut");
      else
        test_assert_same(part, s->o, "cut");
      for (int64_t i = lens[b]; i < 21; i++)
        for (int64_t c = 0; c < 10; c++) assert_true(oracle_get(&was, b, 0, i, c) == 0);
    }
  }
}

/* One row, one channel, more entries than go together; nothing; in place. */
void L2_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(1260);
  shape z = plain(1, 1, 1);
  scene *s = build(&z, &rng);
  run(s, 1e-5, "one row, one channel");
  z = plain(5, 1, 1), z.dm = 1;
  s = build(&z, &rng);
  run(s, 1e-5, "one channel"); /* Z2 is LN's bias */
  z = plain(700, 2, 1), z.batch = 3, z.dm = 3;
  s = build(&z, &rng);
  s->p.causal = 1;
  run(s, 2e-5, "entries in groups");
  for (int n = 0; n < 3; n++) {
    z = plain(9, 4, 2), z.batch = 2, z.type = z.o_type = floats[n];
    s = build(&z, &rng);
    promise_run(&s->does);
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
  const attn_tensor x = s->x, o = s->o;
  s->x.len = s->o.len = 0;
  promise_run(&s->does);
  s->x = x, s->o = o, s->x.batch = s->o.batch = 0;
  promise_run(&s->does);
  test_assert_same(o, was, "nothing");
}

void L2_promises(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++, test_mem_release()) {
    test_rng rng = test_seed(1270 + (uint64_t)n);
    shape z = plain(n ? 110 : 1, n == 1 ? 300 : 24, n == 2 ? 3 : 1);
    z.batch = 2, z.tiny = n == 2 ? 8 : 0;
    z.o_type = n == 2 ? ATTN_BF16 : ATTN_F32, z.w_type = floats[n];
    scene *s = build(&z, &rng);
    s->p.causal = n == 1;
    promise_keep(&s->does);
  }
}

void L2_rejects(void **state) {
  (void)state;
  static int32_t bad[1] = {10};
  for (int n = 0; n < 27; n++, test_mem_release()) {
    test_rng rng = test_seed(1280 + (uint64_t)n);
    shape z = plain(9, 6, 3);
    z.tiny = 4;
    scene *s = build(&z, &rng);
    attn_gmlp_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: p->w_1.dim = 11, word = "w_1"; break;
      case 1: p->w_1.len = 9, word = "w_1"; break;
      case 2: p->w_2.len = 5, word = "w_2"; break;
      case 3: p->w_2.dim = 9, word = "w_2"; break;
      case 4: p->w_s.len = p->w_s.dim = 8, p->b_s.dim = 8, word = "w_s"; break;
      case 5: p->w_s.len = 11, word = "w_s"; break;
      case 6: p->w_s.heads = 4, want = ATTN_E_HEADS, word = "w_s"; break;
      case 7: p->b_s.heads = 2, word = "b_s"; break;
      case 8: p->b_s.dim = 11, word = "b_s"; break;
      case 9: p->w_qkv.dim = 11, word = "w_qkv"; break;
      case 10: p->w_qkv.len = 9, word = "w_qkv"; break;
      case 11: p->w_o.len = 3, word = "w_o"; break;
      case 12: p->w_o.dim = 5, word = "w_o"; break;
      case 13: p->w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 14: p->w_qkv.data = NULL, want = ATTN_E_NULL, word = "w_qkv"; break;
      case 15: p->b_1.dim = 11, word = "b_1"; break;
      case 16: p->b_2.dim = 11, word = "b_2"; break;
      case 17: p->x_len = bad, want = ATTN_E_RANGE, word = "x_len"; break;
      case 18: p->activation = (attn_activation)99, want = ATTN_E_RANGE, word = "activation"; break;
      case 19: p->norm_gate.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 20: s->o.len = 8, word = "x must"; break;
      case 21: s->x.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      case 22: s->o = s->x, s->o.stride_len++, want = ATTN_E_OVERLAP, word = "o "; break;
      case 23: p->w_1.data = NULL, want = ATTN_E_NULL, word = "w_1"; break;
      case 24: p->norm.gain = s->o.data, want = ATTN_E_OVERLAP, word = "o "; break;
      case 25: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      default: s->o.stride_len = 1, want = ATTN_E_STRIDE, word = "o "; break;
    }
    promise_reject(&s->does, want, word);
  }
  test_rng rng = test_seed(1279);
  shape z = plain(3, 2, 1);
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_gmlp(s->o, s->x, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}
