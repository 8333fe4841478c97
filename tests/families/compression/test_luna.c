/* tests/families/compression/test_luna.c owns Luna's pack and unpack and its layer against float64, what follows from their
 * formulas, promises and rejections. The causal core is judged in tests/families/compression/test_luna_causal.c. */

#include "computes.h"
#include "layers.h"

typedef struct scene {
  attn_tensor y_x, y_p, x, p, c;
  attn_luna_layer_params par;
  int layer;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  if (s->layer) return attn_luna_layer(s->y_x, s->y_p, s->x, s->p, s->c, &s->par, ctx);
  return attn_luna(s->y_x, s->y_p, s->x, s->p, s->c, &s->par.attention, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  if (s->layer) return attn_luna_layer_workspace(s->y_x, s->y_p, s->x, s->p, s->c, &s->par, ctx);
  return attn_luna_workspace(s->y_x, s->y_p, s->x, s->p, s->c, &s->par.attention, ctx);
}

typedef struct shape {
  int64_t batch, n, l, m, dc, dm, heads, pack_heads, dff; /* m -1: no context */
  int bias, tied, shared, layer, pre, no_y_p;
  attn_dtype type, w_type, o_type, p_type;
} shape;

static shape plain(int64_t n, int64_t l, int64_t m) {
  shape z = {1, n, l, m, 12, 12, 3, 2, 0, 1, 0, 0, 0, 0, 0, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32};
  return z;
}

static attn_tensor weight(const shape *z, int64_t in, test_rng *rng) {
  return drawn(z->w_type, TEST_PADDED, 1, 1, in, z->dm, 1.2 / sqrt((double)in), rng);
}

static attn_tensor bias(const shape *z, test_rng *rng) {
  return z->bias ? drawn(z->w_type, TEST_BHTD, 1, 1, 1, z->dm, 0.5, rng) : absent();
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  attn_luna_params *a = &s->par.attention;
  const int64_t b = z->batch, dm = z->dm, dc = z->m < 0 ? dm : z->dc;
  s->x = drawn(z->type, TEST_PADDED, b, 1, z->n, dm, 1, rng);
  s->p = drawn(z->p_type, TEST_NEGATIVE, z->shared ? 1 : b, 1, z->l, dm, 1, rng);
  if (z->m >= 0) s->c = drawn(z->type, TEST_PADDED, b, 1, z->m, dc, 1, rng);
  a->heads = z->heads, a->pack_heads = z->pack_heads;
  a->w_pq = weight(z, dm, rng), a->w_pk = weight(z, dc, rng), a->w_pv = weight(z, dc, rng);
  a->w_q = weight(z, dm, rng), a->w_k = weight(z, dm, rng), a->w_v = weight(z, dm, rng);
  a->w_o = weight(z, dm, rng);
  a->b_pq = bias(z, rng), a->b_pk = bias(z, rng), a->b_pv = bias(z, rng);
  a->b_q = bias(z, rng), a->b_k = bias(z, rng), a->b_v = bias(z, rng), a->b_o = bias(z, rng);
  if (z->tied) a->w_pv = a->w_pk, a->b_pv = a->b_pk, a->w_v = a->w_k, a->b_v = a->b_k;
  s->layer = z->layer, s->par.pre = z->pre;
  if (z->layer) {
    s->par.ff = drawn_feed(dm, z->dff, dm, z->bias, z->w_type, rng);
    s->par.norm_x = drawn_norm(dm, rng), s->par.norm_p = drawn_norm(dm, rng);
    s->par.norm_ff = drawn_norm(dm, rng);
  }
  s->y_x = output(z->o_type, TEST_PADDED, b, 1, z->n, dm, &s->does.block[0]);
  if (!z->no_y_p) s->y_p = output(z->p_type, TEST_NEGATIVE, b, 1, z->l, dm, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y_x, s->does.out[1] = &s->y_p;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static void luna(cube *y_x, cube *y_p, const cube *x, const cube *p, const cube *c,
                 const attn_luna_params *a) {
  const int64_t heads = a->heads ? a->heads : 1, pack = a->pack_heads ? a->pack_heads : heads;
  const double dm = (double)x->dim;
  cube q = rows_dense(p, &a->w_pq, &a->b_pq), k = rows_dense(c, &a->w_pk, &a->b_pk);
  cube v = rows_dense(c, &a->w_pv, &a->b_pv);
  *y_p = rows_attend(&q, &k, &v, pack, sqrt((double)pack / dm), a->c_len);
  q = rows_dense(x, &a->w_q, &a->b_q), k = rows_dense(y_p, &a->w_k, &a->b_k);
  v = rows_dense(y_p, &a->w_v, &a->b_v);
  cube o = rows_attend(&q, &k, &v, heads, sqrt((double)heads / dm), NULL);
  *y_x = rows_dense(&o, &a->w_o, &a->b_o);
}

static void check(const scene *s, double tolerance, const char *what) {
  const attn_luna_layer_params *par = &s->par;
  cube x = cube_from(&s->x), p = cube_from(&s->p), c = s->c.data ? cube_from(&s->c) : x;
  cube y_x, y_p, x_a, f;
  if (!s->layer) {
    luna(&y_x, &y_p, &x, &p, &c, &par->attention);
  } else if (par->pre) {
    cube nx = rows_norm(&x, NULL, &par->norm_x), np = rows_norm(&p, NULL, &par->norm_p);
    luna(&y_x, &y_p, &nx, &np, s->c.data ? &c : &nx, &par->attention);
    x_a = rows_norm(&x, &y_x, NULL), y_p = rows_norm(&p, &y_p, NULL);
    f = rows_norm(&x_a, NULL, &par->norm_ff), f = rows_feed(&f, &par->ff);
    y_x = rows_norm(&x_a, &f, NULL);
  } else {
    luna(&y_x, &y_p, &x, &p, &c, &par->attention);
    x_a = rows_norm(&x, &y_x, &par->norm_x), y_p = rows_norm(&p, &y_p, &par->norm_p);
    f = rows_feed(&x_a, &par->ff);
    y_x = rows_norm(&x_a, &f, &par->norm_ff);
  }
  cube_check(&y_x, &s->y_x, tolerance, what);
  if (s->y_p.data) cube_check(&y_p, &s->y_p, tolerance, what);
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  check(s, tolerance, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static void random_calls(int layer, uint64_t seed) {
  test_rng rng = test_seed(seed);
  for (int64_t n = test_count(36, 8); n-- > 0; test_mem_release()) {
    const int64_t rows = test_range(&rng, 1, n % 5 ? 20 : 150);
    const int64_t few = test_range(&rng, 1, n % 4 ? 8 : 70);
    shape z = plain(rows, few, n % 3 ? test_range(&rng, 0, n % 4 ? 20 : 150) : -1);
    z.batch = test_range(&rng, 1, 3), z.heads = test_range(&rng, 1, 3);
    z.pack_heads = n % 2 ? z.heads : 2 * z.heads;
    z.dm = 2 * z.heads * test_range(&rng, 2, n % 6 ? 6 : 20);
    z.dc = test_range(&rng, 1, 30);
    z.dff = n % 4 < 2 ? test_range(&rng, 1, 40) : 0;
    z.bias = n % 5 < 3, z.tied = n % 7 < 3, z.shared = n % 5 < 2;
    z.layer = layer, z.pre = (int)(n / 2 % 2), z.no_y_p = n % 9 == 4;
    z.type = floats[n % 4 % 3], z.w_type = floats[n / 3 % 5 % 3], z.o_type = floats[n / 2 % 4 % 3];
    z.p_type = floats[n / 4 % 4 % 3];
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    if (z.heads == 1) s->par.attention.heads = 0;
    if (z.heads == z.pack_heads) s->par.attention.pack_heads = 0;
    if (n % 4 == 1) s->par.attention.c_len = test_lengths(z.batch, z.m < 0 ? z.n : z.m, &rng);
    run(s, 5e-5, layer ? "luna layer" : "luna");
  }
}

void F5_luna_random(void **state) {
  (void)state;
  random_calls(0, 7100);
}
void F5_layer_random(void **state) {
  (void)state;
  random_calls(1, 7101);
}

/* More rows than go through the products at once, and more of the context than is read at once. */
void F5_luna_many_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(7108);
  static const int32_t len[2] = {1500, 1};
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(1026 + n, 3, n % 2 ? 2050 : -1);
    z.batch = n % 2 + 1, z.dm = z.dc = 4, z.heads = 2, z.pack_heads = 1, z.layer = n > 0;
    z.pre = n > 1, z.tied = n == 3, z.dff = 5, z.shared = n % 2;
    scene *s = build(&z, &rng);
    if (n == 1) s->par.attention.c_len = len;
    run(s, 5e-5, "many rows");
    if (n == 1) promise_keep(&s->does);
  }
}

/* Entry 1 of a batch of calls with more rows than go together is the call by itself, bit for bit. */
void F5_luna_batch(void **state) {
  (void)state;
  test_rng rng = test_seed(7109);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    static const int32_t len[2] = {5, 1100};
    shape z = plain(n ? 1030 : 40, 3, n < 2 ? 1200 : -1);
    z.batch = 2, z.dm = z.dc = 4, z.heads = 2, z.pack_heads = 1, z.layer = n > 0, z.dff = 5;
    z.pre = n > 1;
    scene *s = build(&z, &rng);
    if (n == 0) s->par.attention.c_len = len;
    promise_run(&s->does);
    scene one = *s;
    one.x = test_one(s->x, 1, 1, 0, 1), one.p = test_one(s->p, 1, 1, 0, 1);
    if (s->c.data) one.c = test_one(s->c, 1, 1, 0, 1);
    if (n == 0) one.par.attention.c_len = len + 1;
    one.y_x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, z.n, 4);
    one.y_p = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 4);
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(&one, &ctx), ATTN_OK);
    test_assert_same(one.y_x, test_one(s->y_x, 1, 1, 0, 1), "y_x alone");
    test_assert_same(one.y_p, test_one(s->y_p, 1, 1, 0, 1), "y_p alone");
  }
}

/* Keys and values of one projection are computed once, and are what two equal ones give. */
void F5_luna_tied(void **state) {
  (void)state;
  test_rng rng = test_seed(7102);
  shape z = plain(40, 9, 33);
  z.tied = 1;
  scene *s = build(&z, &rng);
  promise_run(&s->does);
  attn_ctx ctx = test_ctx();
  const size_t bytes = ask(s, &ctx);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 40, 12);
  test_copy(first, s->y_x);
  attn_tensor copy[2];
  for (int i = 0; i < 2; i++) copy[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 12, 12);
  test_copy(copy[0], s->par.attention.w_v), test_copy(copy[1], s->par.attention.w_pv);
  s->par.attention.w_v = copy[0], s->par.attention.w_pv = copy[1];
  promise_run(&s->does);
  test_assert_same(s->y_x, first, "untied copies");
  assert_true(ask(s, &ctx) > bytes);
}

/* The order of the context is nothing to either output; that of X is taken along. */
void F5_luna_order(void **state) {
  (void)state;
  test_rng rng = test_seed(7103);
  for (int self = 0; self < 2; self++) {
    shape z = plain(35, 6, self ? -1 : 35);
    scene *s = build(&z, &rng);
    promise_run(&s->does);
    attn_tensor y_x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 35, 12);
    attn_tensor y_p = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, 12);
    test_copy(y_x, s->y_x), test_copy(y_p, s->y_p);
    const int64_t *order = shuffled(35, &rng);
    if (self)
      s->x = reordered(s->x, order), y_x = reordered(y_x, order);
    else
      s->c = reordered(s->c, order);
    promise_run(&s->does);
    test_assert_near(s->y_x, y_x, 1e-5, "y_x");
    test_assert_near(s->y_p, y_p, 1e-5, "y_p");
  }
}

/* One packed row: every query gets it. */
void F5_luna_one_row(void **state) {
  (void)state;
  test_rng rng = test_seed(7104);
  shape z = plain(19, 1, 23);
  scene *s = build(&z, &rng);
  run(s, 2e-5, "l = 1");
  for (int64_t i = 1; i < 19; i++)
    test_assert_near(test_rows(s->y_x, i, 1), test_rows(s->y_x, 0, 1), 1e-6, "the same row");
}

/* Padding of the context is never seen; no context makes Y_P zero. */
void F5_luna_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(7105);
  static const int32_t len[2] = {0, 11};
  for (int layer = 0; layer < 2; layer++) {
    shape z = plain(9, 4, 20);
    z.batch = 2, z.layer = layer;
    scene *s = build(&z, &rng);
    s->par.attention.c_len = len;
    run(s, 5e-5, "c_len");
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 9, 12);
    test_copy(first, s->y_x);
    for (int64_t i = 0; i < 20; i++) {
      if (!layer && i < 4)
        for (int64_t c = 0; c < 12; c++) assert_true(oracle_get(&s->y_p, 0, 0, i, c) == 0);
      test_fill_row(s->c, 0, 0, i, (double)NAN);
      if (i >= 11) test_fill_row(s->c, 1, 0, i, (double)INFINITY);
    }
    promise_run(&s->does);
    test_assert_same(s->y_x, first, "padding");
    z.m = 0;
    s = build(&z, &rng);
    run(s, 5e-5, "no context");
    test_copy(first, s->y_x);
    s->c = attn_bhtd(NULL, ATTN_F32, 2, 1, 0, z.dc); /* empty, and not absent */
    promise_run(&s->does);
    test_assert_same(s->y_x, first, "no context at no address");
    for (int64_t c = 0; c < 12 && !layer; c++) assert_true(oracle_get(&s->y_p, 1, 0, 3, c) == 0);
    z.batch = 0;
    promise_run(&build(&z, &rng)->does);
    z = plain(0, 4, 20), z.layer = layer;
    run(build(&z, &rng), 5e-5, "no rows of x");
  }
}

void F5_luna_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7106);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(130, 20, n % 2 ? 70 : -1);
    z.batch = 2, z.layer = n > 1, z.pre = n > 2, z.dff = 30, z.shared = n % 2, z.tied = n % 2;
    z.o_type = floats[n % 3], z.p_type = floats[(n + 1) % 3], z.type = floats[(n + 2) % 3];
    promise_keep(&build(&z, &rng)->does);
  }
}

void F5_luna_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7107);
  static int32_t len[2] = {-1, 3};
  for (int n = 0; n < 39; n++, test_mem_release()) {
    shape z = plain(9, 5, 7);
    z.batch = 2, z.layer = n > 25 && n < 34, z.dff = 6;
    scene *s = build(&z, &rng);
    attn_luna_params *a = &s->par.attention;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.len = s->y_p.len = 0, word = "p.len"; break;
      case 1: a->heads = 5, want = ATTN_E_HEADS, word = "heads"; break;
      case 2: a->pack_heads = 5, want = ATTN_E_HEADS, word = "pack_heads"; break;
      case 3: a->heads = -1, word = "heads"; break;
      case 4: a->pack_heads = -2, word = "heads"; break;
      case 5: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 6: s->p.dim = 11, word = "p must"; break;
      case 7: s->p.batch = 3, s->p.stride_batch = 0, word = "p must"; break;
      case 8: s->c.batch = 1, word = "c must"; break;
      case 9: s->y_x.len = 8, word = "y_x"; break;
      case 10: s->y_p.len = 4, word = "y_p"; break;
      case 11: a->w_pq.len = 11, word = "w_pq"; break;
      case 12: a->w_pk.len = 11, word = "w_pk"; break;
      case 13: a->w_pv.dim = 11, word = "w_pv"; break;
      case 14: a->w_q.len = 11, word = "w_q"; break;
      case 15: a->w_k.dim = 11, word = "w_k"; break;
      case 16: a->w_v.len = 11, word = "w_v"; break;
      case 17: a->w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 18: a->b_o.dim = 11, word = "b_o must"; break;
      case 19: a->b_pq.len = 2, a->b_pq.stride_len = 0, word = "b_pq must"; break;
      case 20: a->c_len = len, want = ATTN_E_RANGE, word = "c_len"; break;
      case 21: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 22: s->y_p = test_rows(s->y_x, 0, 5), want = ATTN_E_OVERLAP, word = "y_x"; break;
      case 23: s->c = s->y_x, want = ATTN_E_OVERLAP, word = "y_x"; break;
      case 24: s->y_x.stride_len = 0, want = ATTN_E_STRIDE, word = "y_x"; break;
      case 25: s->c = absent(), a->w_pk.len = 11, word = "w_pk"; break;
      case 26: s->par.ff.w_1.data = NULL, want = ATTN_E_NULL, word = "ff.w_1"; break;
      case 27: s->par.ff.w_2.dim = 11, word = "ff.w_2"; break;
      case 28: s->par.ff.activation = (attn_activation)-1, want = ATTN_E_RANGE, word = "act"; break;
      case 29: s->par.norm_x.eps = (float)NAN, want = ATTN_E_VALUE, word = "eps"; break;
      case 30: s->par.norm_p.eps = (float)INFINITY, want = ATTN_E_VALUE, word = "eps"; break;
      case 31:
        s->par.norm_ff.gain = (const float *)s->y_x.data;
        want = ATTN_E_OVERLAP, word = "x_next";
        break;
      case 32: s->y_x = s->x, want = ATTN_E_OVERLAP, word = "x_next"; break;
      case 33: s->y_p.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "p_next"; break;
      case 34: a->b_pk.dim = 11, word = "b_pk must"; break;
      case 35: a->b_pv.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "b_pv.dtype"; break;
      case 36: a->b_q.dim = 11, word = "b_q must"; break;
      case 37: a->b_v.dtype = ATTN_DTYPE_COUNT, want = ATTN_E_DTYPE, word = "b_v.dtype"; break;
      default: s->c.data = NULL, want = ATTN_E_NULL, word = "c.data"; break;
    }
    promise_reject(&s->does, want, word);
  }
  shape z = plain(5, 4, 3);
  scene *s = build(&z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_luna(s->y_x, s->y_p, s->x, s->p, s->c, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
  assert_int_equal(attn_luna_layer(s->y_x, s->y_p, s->x, s->p, s->c, NULL, &ctx), ATTN_E_NULL);
}

/* Its feed-forward in products below f32. */
void O1_luna(void **state) {
  (void)state;
  test_rng rng = test_seed(7120);
  shape z = plain(130, 20, 40);
  z.layer = 1, z.dff = 30, z.dm = 24, z.no_y_p = 1;
  scene *s = build(&z, &rng);
  test_layer(&s->does, &s->par.ff.compute, &s->par.ff.compute_prefer, 0, 0.03, "ff.compute");
}
