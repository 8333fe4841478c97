/* tests/families/compression/test_sets.c owns the blocks of the Set Transformer: MAB, ISAB and PMA against float64, what
 * follows from their formulas, promises and rejections. */

#include "computes.h"
#include "layers.h"

typedef enum which { MAB, ISAB, PMA } which;

typedef struct scene {
  which kind;
  attn_tensor o, x, y, few; /* few: inducing points or seeds */
  attn_mab_params block, restore;
  attn_feed_forward before;
  promise does;
} scene;

static attn_isab_params isab_of(const scene *s) {
  attn_isab_params p = {s->block, s->restore};
  return p;
}
static attn_pma_params pma_of(const scene *s) {
  attn_pma_params p = {s->block, s->before};
  return p;
}
static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  const attn_isab_params isab = isab_of(s);
  const attn_pma_params pma = pma_of(s);
  if (s->kind == ISAB) return attn_isab(s->o, s->x, s->few, &isab, ctx);
  if (s->kind == PMA) return attn_pma(s->o, s->y, s->few, &pma, ctx);
  return attn_mab(s->o, s->x, s->y, &s->block, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  const attn_isab_params isab = isab_of(s);
  const attn_pma_params pma = pma_of(s);
  if (s->kind == ISAB) return attn_isab_workspace(s->o, s->x, s->few, &isab, ctx);
  if (s->kind == PMA) return attn_pma_workspace(s->o, s->y, s->few, &pma, ctx);
  return attn_mab_workspace(s->o, s->x, s->y, &s->block, ctx);
}

typedef struct shape {
  int64_t batch, n, m, dx, dy, dm, heads, dff; /* m: rows of Y, points or seeds */
  int reference, bias, norms, shared;          /* shared: one x, points or seeds for the batch */
  attn_dtype type, w_type, o_type;
} shape;

static shape plain(int64_t n, int64_t m) {
  shape z = {1, n, m, 12, 12, 12, 3, 0, 0, 1, 1, 0, ATTN_F32, ATTN_F32, ATTN_F32};
  return z;
}

static attn_mab_params weights(const shape *z, int64_t dx, int64_t dy, test_rng *rng) {
  attn_mab_params p;
  memset(&p, 0, sizeof p);
  const int64_t dm = z->dm;
  p.heads = z->heads, p.form = z->reference ? ATTN_SET_REFERENCE : ATTN_SET_PAPER;
  p.w_q = drawn(z->w_type, TEST_PADDED, 1, 1, dx, dm, 1.5 / sqrt((double)dx), rng);
  p.w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, dy, dm, 1.5 / sqrt((double)dy), rng);
  p.w_v = drawn(z->w_type, TEST_NEGATIVE, 1, 1, dy, dm, 1 / sqrt((double)dy), rng);
  if (!z->reference) p.w_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, dm, dm, 1 / sqrt((double)dm), rng);
  if (z->bias) {
    p.b_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, dm, 0.5, rng);
    p.b_k = drawn(z->w_type, TEST_BHTD, 1, 1, 1, dm, 0.5, rng);
    p.b_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, dm, 0.5, rng);
    if (!z->reference) p.b_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, dm, 0.5, rng);
  }
  p.ff = drawn_feed(dm, z->reference ? 0 : z->dff, dm, z->bias, z->w_type, rng);
  p.no_norm = !z->norms;
  if (z->norms > 1) p.norm_0 = drawn_norm(dm, rng), p.norm_1 = drawn_norm(dm, rng);
  return p;
}

static scene *build(which kind, const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch, some = z->shared ? 1 : b;
  s->kind = kind;
  if (kind == MAB) {
    s->x = drawn(z->type, TEST_PADDED, some, 1, z->n, z->dx, 1, rng);
    s->y = drawn(z->type, TEST_NEGATIVE, b, 1, z->m, z->dy, 1, rng);
    s->block = weights(z, z->dx, z->dy, rng);
  } else if (kind == ISAB) {
    s->x = drawn(z->type, TEST_PADDED, b, 1, z->n, z->dx, 1, rng);
    s->few = drawn(z->w_type, TEST_BHTD, some, 1, z->m, z->dm, 1, rng);
    s->block = weights(z, z->dm, z->dx, rng);
    s->restore = weights(z, z->dx, z->dm, rng);
  } else {
    s->y = drawn(z->type, TEST_PADDED, b, 1, z->n, z->dy, 1, rng);
    s->few = drawn(z->w_type, TEST_BHTD, some, 1, z->m, z->dm, 1, rng);
    if (z->dff) s->before = drawn_feed(z->dy, z->dff, z->dx, z->bias, z->w_type, rng);
    s->block = weights(z, z->dm, z->dff ? z->dx : z->dy, rng);
  }
  s->o = output(z->o_type, TEST_PADDED, b, 1, kind == PMA ? z->m : z->n, z->dm, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static cube mab(const cube *x, const cube *y, const attn_mab_params *p) {
  const int64_t heads = p->heads ? p->heads : 1;
  cube q = rows_dense(x, &p->w_q, &p->b_q), k = rows_dense(y, &p->w_k, &p->b_k);
  cube v = rows_dense(y, &p->w_v, &p->b_v), h, f;
  const double s = scale_of(p->scale, q.dim); /* the width of all heads */
  const attn_norm *n0 = p->no_norm ? NULL : &p->norm_0, *n1 = p->no_norm ? NULL : &p->norm_1;
  cube a = rows_attend(&q, &k, &v, heads, s, p->y_len);
  if (p->form == ATTN_SET_PAPER) {
    a = rows_dense(&a, &p->w_o, &p->b_o);
    h = rows_norm(x, &a, n0);
  } else {
    h = rows_norm(&q, &a, n0);
  }
  f = rows_feed(&h, &p->ff);
  return rows_norm(&h, &f, n1);
}

static cube want_of(const scene *s) {
  if (s->kind == MAB) {
    cube x = cube_from(&s->x), y = cube_from(&s->y);
    return mab(&x, &y, &s->block);
  }
  cube few = cube_from(&s->few);
  if (s->kind == PMA) {
    cube z = cube_from(&s->y);
    if (s->before.w_1.data) z = rows_feed(&z, &s->before);
    return mab(&few, &z, &s->block);
  }
  cube x = cube_from(&s->x), h = mab(&few, &x, &s->block);
  return mab(&x, &h, &s->restore);
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  cube want = want_of(s);
  cube_check(&want, &s->o, tolerance, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static void random_calls(which kind, uint64_t seed) {
  test_rng rng = test_seed(seed);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t rows = test_range(&rng, 1, n % 5 ? 20 : 150);
    shape z = plain(rows, test_range(&rng, 1, n % 4 ? 20 : 70));
    z.batch = test_range(&rng, 1, 3), z.heads = test_range(&rng, 1, 4);
    z.dm = z.heads * test_range(&rng, 2, n % 6 ? 6 : 30);
    z.reference = n % 3 == 2;
    z.dy = test_range(&rng, 1, 30), z.dx = test_range(&rng, 1, 30);
    if (!z.reference && kind != PMA) z.dx = z.dm;
    z.dff = n % 4 < 2 ? test_range(&rng, 1, 40) : 0;
    z.bias = n % 5 < 3, z.norms = (int)(n / 2 % 3), z.shared = n % 7 < 3;
    if (z.norms == 1 && z.dm < 6)
      z.norms = 2; /* a row of few numbers may vary by next to nothing */
    z.type = floats[n % 4 % 3], z.w_type = floats[n / 3 % 5 % 3], z.o_type = floats[n / 2 % 4 % 3];
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(kind, &z, &rng);
    test_where = TEST_HEAP;
    if (z.heads == 1) s->block.heads = s->restore.heads = 0;
    const int64_t cut = kind == MAB ? z.m : z.n;
    if (n % 4 == 1) s->block.y_len = test_lengths(z.batch, cut, &rng);
    if (n % 6 == 5) s->block.scale = s->restore.scale = 0.3f;
    if (n % 8 == 4) s->block.scale = ATTN_ZERO;
    if (n % 8 == 6) s->block.ff.activation = ATTN_ACT_TANH;
    if (n % 8 == 1 && s->before.w_1.data) s->before.activation = ATTN_ACT_TANH;
    if (n % 8 == 3) s->block.ff.activation = ATTN_ACT_NONE;
    run(s, 5e-5, kind == MAB ? "mab" : kind == ISAB ? "isab" : "pma");
  }
}

void F4_mab_random(void **state) {
  (void)state;
  random_calls(MAB, 7000);
}
void F4_isab_random(void **state) {
  (void)state;
  random_calls(ISAB, 7001);
}
void F4_pma_random(void **state) {
  (void)state;
  random_calls(PMA, 7002);
}

/* More rows than go through the products at once, and more keys than are read at once. */
void F4_many_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(7011);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    shape z = plain(n == 1 ? 3 : 1030, n == 0 ? 1027 : n == 1 ? 2049 : 3); /* n 0, 1: MAB */
    if (n == 4) z.n = 2050;
    z.dm = z.dx = z.dy = 4, z.heads = 2, z.reference = n == 2, z.batch = n == 0 ? 1 : 2;
    z.dff = n == 1 || n == 4 ? 5 : 0, z.norms = 2;
    scene *s = build(n < 2 ? MAB : n < 4 ? ISAB : PMA, &z, &rng);
    static const int32_t len[2][2] = {{2049, 7}, {1025, 1024}};
    if (n == 1 || n == 3) s->block.y_len = len[n / 2];
    run(s, 5e-5, "many rows");
    if (n != 3) continue;
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 1024, 4);
    test_copy(first, test_rows(s->o, 0, 1024));
    for (int64_t i = 1025; i < 1030; i++) test_fill_row(s->x, 0, 0, i, (double)NAN);
    for (int64_t i = 1024; i < 1030; i++) test_fill_row(s->x, 1, 0, i, (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, 1024), first, "padding in parts");
    promise_keep(&s->does);
  }
}

/* Entry 1 of a batch of calls with more rows than go together is the call by itself, bit for bit. */
void F4_batch(void **state) {
  (void)state;
  test_rng rng = test_seed(7012);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    static const int32_t len[2] = {3, 1100};
    const which kind = n < 2 ? MAB : n < 4 ? ISAB : PMA;
    shape z = plain(n == 1 ? 5 : 1200, n == 0 ? 7 : n == 1 ? 1200 : 3);
    z.batch = 2, z.dm = z.dx = z.dy = 4, z.heads = 2, z.dff = n % 2 ? 0 : 5;
    scene *s = build(kind, &z, &rng);
    if (n == 1 || n == 3) s->block.y_len = len;
    promise_run(&s->does);
    scene one = *s;
    if (s->x.data) one.x = test_one(s->x, 1, 1, 0, 1);
    if (s->y.data) one.y = test_one(s->y, 1, 1, 0, 1);
    if (s->few.data) one.few = test_one(s->few, 1, 1, 0, 1);
    if (s->block.y_len) one.block.y_len = len + 1;
    one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, s->o.len, 4);
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(&one, &ctx), ATTN_OK);
    test_assert_same(one.o, test_one(s->o, 1, 1, 0, 1), "an entry alone");
  }
}

/* Without a scale it is that of the model, not of a head. */
void F4_scale(void **state) {
  (void)state;
  test_rng rng = test_seed(7003);
  shape z = plain(9, 7);
  scene *s = build(MAB, &z, &rng);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, z.dm);
  promise_run(&s->does);
  test_copy(first, s->o);
  s->block.scale = (float)(1 / sqrt(12.0));
  promise_run(&s->does);
  test_assert_same(s->o, first, "1 / sqrt(dm)");
  s->block.scale = (float)(1 / sqrt(4.0));
  promise_run(&s->does);
  assert_false(test_same(s->o, first));
}

/* Weights of 0 leave the residuals: x itself, or normalised twice. */
void F4_residual_path(void **state) {
  (void)state;
  test_rng rng = test_seed(7004);
  for (int norms = 0; norms < 2; norms++)
    for (int n = 0; n < 3; n++) {
      shape z = plain(70, n == 2 ? 5 : 70);
      z.bias = 0, z.norms = norms, z.dff = n == 1 ? 9 : 0;
      scene *s = build(n == 2 ? ISAB : MAB, &z, &rng);
      test_fill_value(s->block.w_v, 0), test_fill_value(s->block.ff.w_1, 0);
      if (n == 2) test_fill_value(s->restore.w_v, 0), test_fill_value(s->restore.ff.w_1, 0);
      promise_run(&s->does);
      if (!norms) {
        test_assert_same(s->o, s->x, "x itself");
        continue;
      }
      const attn_norm none = {NULL, NULL, 0, ATTN_NORM_LAYER, 0};
      cube x = cube_from(&s->x), want = rows_norm(&x, NULL, &none);
      want = rows_norm(&want, NULL, &none);
      cube_check(&want, &s->o, 5e-6, "LN(LN(x))");
    }
}

/* Sets have no order: SAB and ISAB take rows along, PMA does not see it. */
void F4_order(void **state) {
  (void)state;
  test_rng rng = test_seed(7005);
  for (int kind = 0; kind < 3; kind++)
    for (int reference = 0; reference < 2; reference++) {
      shape z = plain(kind == MAB ? 30 : 41, kind == MAB ? 30 : 6);
      z.reference = reference;
      scene *s = build((which)kind, &z, &rng);
      if (kind == MAB) s->y = s->x;
      promise_run(&s->does);
      attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, s->o.len, z.dm);
      test_copy(first, s->o);
      const int64_t *order = shuffled(z.n, &rng);
      if (kind == PMA) {
        s->y = reordered(s->y, order);
      } else {
        s->x = reordered(s->x, order), first = reordered(first, order);
        if (kind == MAB) s->y = s->x;
      }
      promise_run(&s->does);
      test_assert_near(s->o, first, 2e-5, "another order");
    }
}

/* What lies behind y_len reaches no other row, and the result is that of the rows cut off. */
void F4_padding(void **state) {
  (void)state;
  test_rng rng = test_seed(7006);
  for (int kind = 0; kind < 3; kind++) {
    shape z = plain(kind == MAB ? 30 : 33, kind == MAB ? 33 : 6);
    scene *s = build((which)kind, &z, &rng);
    const int32_t len[1] = {19};
    attn_tensor *set = kind == ISAB ? &s->x : &s->y;
    if (kind == MAB) s->x = test_rows(s->y, 0, 30); /* SAB of a padded set */
    s->block.y_len = len;
    promise_run(&s->does);
    const int64_t rows = kind == PMA ? z.m : 19;
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, rows, z.dm);
    test_copy(first, test_rows(s->o, 0, rows));
    for (int64_t i = 19; i < 33; i++) test_fill_row(*set, 0, 0, i, (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, rows), first, "NaN in padding");
    if (kind == MAB) assert_true(isnan(oracle_get(&s->o, 0, 0, 19, 0)));
    scene cut = *s;
    cut.block.y_len = NULL;
    if (kind != PMA) cut.x = test_rows(s->x, 0, 19);
    if (kind != ISAB) cut.y = test_rows(s->y, 0, 19);
    cut.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, rows, z.dm);
    attn_ctx ctx = test_ctx();
    assert_int_equal(call(&cut, &ctx), ATTN_OK);
    test_assert_near(cut.o, first, 1e-5, "rows cut off");
  }
}

/* With one inducing point all rows get the same attention. */
void F4_one_point(void **state) {
  (void)state;
  test_rng rng = test_seed(7007);
  shape z = plain(21, 1);
  z.norms = 0;
  scene *s = build(ISAB, &z, &rng);
  test_fill_value(s->restore.ff.w_1, 0);
  memset(&s->restore.ff.b_1, 0, sizeof s->restore.ff.b_1);
  run(s, 2e-5, "one point");
  for (int64_t i = 1; i < 21; i++)
    for (int64_t c = 0; c < z.dm; c++)
      value_check(oracle_get(&s->o, 0, 0, i, c) - oracle_get(&s->x, 0, 0, i, c),
                  oracle_get(&s->o, 0, 0, 0, c) - oracle_get(&s->x, 0, 0, 0, c), 1e-5, ATTN_F32,
                  "the same attention", 0, 0, i, c);
}

void F4_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(7008);
  for (int kind = 0; kind < 3; kind++)
    for (int reference = 0; reference < 2; reference++) {
      shape z = plain(kind == MAB ? 5 : 1, kind == MAB ? 1 : 7); /* a single row; more seeds */
      z.reference = reference;
      run(build((which)kind, &z, &rng), 5e-5, "one row");
      z = plain(kind == PMA ? 0 : 5, kind == MAB ? 0 : 3); /* nothing to read */
      z.reference = reference;
      if (kind != ISAB) run(build((which)kind, &z, &rng), 5e-5, "no keys");
      const int32_t none[2] = {0, 3};
      z = plain(4, 4), z.batch = 2, z.reference = reference;
      scene *s = build((which)kind, &z, &rng);
      s->block.y_len = none;
      run(s, 5e-5, "y_len 0");
      z = plain(4, 4), z.batch = 0;
      promise_run(&build((which)kind, &z, &rng)->does);
      z = plain(kind == PMA ? 4 : 0, kind == PMA ? 0 : 4);
      promise_run(&build((which)kind, &z, &rng)->does);
    }
}

void F4_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7009);
  for (int n = 0; n < 6; n++) {
    shape z = plain(n % 3 == PMA ? 90 : 130, n % 3 == MAB ? 90 : 20);
    z.batch = 2, z.dff = n < 3 ? 30 : 0, z.reference = n > 3, z.o_type = floats[n % 3];
    z.type = floats[n / 2], z.shared = n % 2;
    promise_keep(&build((which)(n % 3), &z, &rng)->does);
    test_mem_release();
  }
}

void F4_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7010);
  static int32_t len[2] = {3, 99};
  for (int n = 0; n < 60; n++, test_mem_release()) {
    const which kind = n < 30 ? MAB : n < 38 || n > 51 ? ISAB : PMA;
    shape z = plain(9, 7);
    z.batch = 2, z.dff = 8, z.norms = 2;
    z.reference = n == 13 || n == 14 || n == 15 || n == 55;
    scene *s = build(kind, &z, &rng);
    attn_mab_params *p = &s->block;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: p->heads = 5, want = ATTN_E_HEADS, word = "heads"; break;
      case 1: p->heads = -1, word = "heads"; break;
      case 2: p->w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 3: p->w_q.len = 11, word = "w_q"; break;
      case 4: p->w_k.len = 11, word = "w_k"; break;
      case 5: p->w_v.dim = 11, word = "w_v"; break;
      case 6: p->w_o.dim = 11, word = "w_o"; break;
      case 7: p->b_v.dim = 11, word = "b_v"; break;
      case 8: p->b_o.len = 2, p->b_o.stride_len = 0, word = "b_o"; break;
      case 9: p->ff.w_1.len = 11, word = "ff.w_1"; break;
      case 10: p->ff.w_2.len = 7, word = "ff.w_2"; break;
      case 11: p->ff.b_1.dim = 7, word = "ff.b_1"; break;
      case 12: p->ff.b_2.dim = 11, word = "ff.b_2"; break;
      case 13: p->w_o = p->w_k, want = ATTN_E_RANGE, word = "REFERENCE"; break;
      case 14: p->ff.w_2 = p->w_k, want = ATTN_E_RANGE, word = "REFERENCE"; break;
      case 15: p->b_o = p->b_k, want = ATTN_E_RANGE, word = "REFERENCE"; break;
      case 16: p->form = (attn_set_form)2, want = ATTN_E_RANGE, word = "form"; break;
      case 17: p->scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 18: p->norm_1.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 19: p->y_len = len, want = ATTN_E_RANGE, word = "y_len"; break;
      case 20: s->x.dim = 11, word = "x.dim"; break;
      case 21: s->x.len = 8, word = "x must"; break;
      case 22: s->x.batch = 3, s->x.stride_batch = 0, word = "x must"; break;
      case 23: s->y.batch = 1, word = "y must"; break;
      case 24: s->y.heads = 2, s->y.stride_head = 0, word = "y must"; break;
      case 25: s->x = test_rows(s->o, 0, 9), want = ATTN_E_OVERLAP, word = "o "; break;
      case 26: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      case 27: p->ff.w_1.data = NULL, want = ATTN_E_NULL, word = "ff.w_1"; break;
      case 28: p->ff.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 29:
        p->ff.w_2.data = NULL, p->ff.w_1.dim = 12, p->ff.b_1.data = NULL;
        p->ff.w_3 = p->ff.b_3 = absent(), p->ff.form.gate_add = 0;
        want = ATTN_E_NULL, word = "ff.b_2";
        break;
      case 30: s->few.dim = 11, word = "points"; break;
      case 31: s->few.len = 0, word = "points"; break;
      case 32: s->few.batch = 3, s->few.stride_batch = 0, word = "points"; break;
      case 33: s->restore.y_len = len, want = ATTN_E_RANGE, word = "restore.y_len"; break;
      case 34: s->restore.w_k.len = 11, word = "params.restore.w_k"; break;
      case 35: s->x.batch = 1, word = "x must"; break;
      case 36: p->y_len = len, want = ATTN_E_RANGE, word = "params.induce.y_len"; break;
      case 37: s->few = test_rows(s->o, 0, 7), want = ATTN_E_OVERLAP, word = "o "; break;
      case 38: s->few.dim = 11, word = "seeds"; break;
      case 39: s->few.len = 6, word = "seeds"; break;
      case 40: s->before.w_1.data = NULL, want = ATTN_E_NULL, word = "params.before.w_1"; break;
      case 41: s->before.w_1.len = 11, word = "params.before.w_1"; break;
      case 42: s->y.batch = 1, word = "z must"; break;
      case 43: s->y.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "z.dtype"; break;
      case 44: s->before.w_2.len = 7, word = "params.before.w_2"; break;
      case 45:
        s->before.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE;
        word = "params.before.activation";
        break;
      case 46:
      case 47:
      case 48: { /* a part of it alone */
        const attn_feed_forward all = s->before;
        memset(&s->before, 0, sizeof s->before);
        if (n == 46) s->before.b_2 = all.b_2;
        if (n == 47) s->before.activation = ATTN_ACT_TANH;
        if (n == 48) s->before.b_1 = all.b_1;
        want = ATTN_E_NULL, word = "params.before.w_1";
        break;
      }
      case 49: p->ff.w_1.len = 11, word = "params.block.ff.w_1"; break;
      case 50: p->w_v.len = 11, word = "params.block.w_v"; break;
      case 51: p->b_o.dim = 11, word = "params.block.b_o"; break;
      case 52: p->w_k.len = 11, word = "params.induce.w_k"; break;
      case 53: s->restore.heads = 5, want = ATTN_E_HEADS, word = "params.restore.heads"; break;
      case 54: p->ff.b_2.dim = 11, word = "params.induce.ff.b_2"; break;
      case 55: s->restore.b_o = p->b_k, want = ATTN_E_RANGE, word = "params.restore.w_o"; break;
      case 56: s->restore.w_v.data = NULL, want = ATTN_E_NULL, word = "params.restore.w_v"; break;
      case 57:
        s->restore.ff.w_1_scales.scale = s->x.data, want = ATTN_E_DTYPE;
        word = "params.restore.ff.w_1_scales must be all zero unless params.restore.ff.w_1 is";
        break;
      case 58:
        s->restore.ff.compute = ATTN_COMPUTE_COUNT, want = ATTN_E_VALUE;
        word = "params.restore.ff.compute must";
        break;
      default:
        s->restore.ff.w_1.dtype = ATTN_DTYPE_COUNT;
        want = ATTN_E_DTYPE, word = "params.restore.ff.w_1";
        break;
    }
    promise_reject(&s->does, want, word);
  }
  shape z = plain(5, 4);
  scene *s = build(MAB, &z, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_mab(s->o, s->x, s->y, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
  assert_int_equal(attn_isab(s->o, s->x, s->y, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_pma(s->o, s->x, s->y, NULL, &ctx), ATTN_E_NULL);
}

/* Their feed-forwards in products below f32. */
void O1_sets(void **state) {
  (void)state;
  test_rng rng = test_seed(7030);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    shape z = plain(n == PMA ? 20 : 130, n == MAB ? 90 : 20);
    z.dff = 30;
    scene *s = build((which)n, &z, &rng);
    attn_feed_forward *ff = &s->block.ff;
    test_layer(&s->does, &ff->compute, &ff->compute_prefer, 0, 0.05, "ff.compute");
  }
}
