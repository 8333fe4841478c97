/* tests/families/training/test_learned_backward.c owns N4, the gradient of rows that are picked from a table. */

#include "dense.h"

typedef struct scene {
  attn_tensor d_table, d_y;
  attn_learned_params p;
  attn_learned_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_learned_position_backward(s->d_table, s->d_y, &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_learned_position_backward_workspace(s->d_table, s->d_y, &s->p, &s->g, ctx);
}

typedef struct shape {
  int64_t batch, heads, len, n, rows;
  int kind; /* 0: from start on, 1: positions, 2: positions per batch entry */
  attn_dtype y_type, d_type;
  test_layout y_layout, d_layout;
} shape;

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->d_y = drawn(z->y_type, z->y_layout, z->batch, z->heads, z->len, z->n, 1, rng);
  const int64_t count = (z->kind == 2 ? z->batch : 1) * z->len;
  if (z->kind) {
    int64_t *ids = test_mem((size_t)(count + 1) * sizeof *ids);
    /* some rows often, some never, the first and the last among them */
    for (int64_t i = 0; i < count; i++) {
      const int64_t r = test_range(rng, 0, z->rows - 1);
      ids[i] = i % 5 == 0 ? z->rows - 1 : i % 7 == 0 ? 0 : r - (r & 1);
    }
    s->p.positions = ids, s->p.positions_per_batch = z->kind == 2;
  } else {
    s->p.start = z->rows - z->len;
  }
  s->d_table = output(z->d_type, z->d_layout, 1, 1, z->rows, z->n, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->d_table;
  return s;
}

static int64_t row_of(const scene *s, int64_t b, int64_t i) {
  if (!s->p.positions) return s->p.start + i;
  return s->p.positions[s->p.positions_per_batch ? b * s->d_y.len + i : i];
}

static void check(const scene *s, const char *what) {
  dense_sum sum = dense_open(&s->d_table);
  for (int64_t b = 0; b < s->d_y.batch; b++)
    for (int64_t h = 0; h < s->d_y.heads; h++)
      for (int64_t i = 0; i < s->d_y.len; i++)
        for (int64_t c = 0; c < s->d_y.dim; c++) {
          const double d = oracle_get(&s->d_y, b, h, i, c);
          dense_add(&sum, 0, 0, row_of(s, b, i), c, d, 3e-6 * fabs(d));
        }
  dense_check(&sum, &s->d_table, what);
}

void N4_learned_backward(void **state) {
  (void)state;
  static const int64_t widths[] = {1, 2, 15, 16, 17, 100, 127, 128, 129, 300};
  test_rng rng = test_seed(9460);
  for (int64_t k = test_count(150, 36); k-- > 0; test_mem_release()) {
    shape z = {test_range(&rng, 1, 3),
               test_range(&rng, 1, 2),
               test_range(&rng, 0, 60),
               widths[k % 10],
               test_range(&rng, 1, 40),
               (int)(k % 3),
               ATTN_F32,
               ATTN_F32,
               TEST_BHTD,
               TEST_BHTD};
    if (z.kind == 0) z.rows += z.len;
    if (k % 2) {
      z.y_type = (attn_dtype)test_range(&rng, 0, 2), z.d_type = (attn_dtype)test_range(&rng, 0, 2);
      z.y_layout = (test_layout)test_range(&rng, 0, TEST_LAYOUTS - 1);
      z.d_layout = (test_layout)test_range(&rng, 0, TEST_NEGATIVE);
    }
    test_where = k % 3 == 1 ? TEST_AFTER_GUARD : k % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    promise_run(&s->does);
    check(s, "gradient of a table");
    if (k % 5 == 1) promise_keep(&s->does);
  }
}

/* One row of a million tokens of one value: a sum in one chain would be off by a thousandth. */
void N4_learned_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9461);
  const shape z = {2,         1,        test_count(300000, 30000), 3, 2, 1, ATTN_F32, ATTN_F32,
                   TEST_BHTD, TEST_BHTD};
  scene *s = build(&z, &rng);
  int64_t *ids = test_mem((size_t)z.len * sizeof *ids);
  memset(ids, 0, (size_t)z.len * sizeof *ids);
  s->p.positions = ids;
  test_fill_value(s->d_y, 0.1);
  promise_run(&s->does);
  const double want = 2 * (double)z.len * (double)0.1f;
  for (int64_t c = 0; c < 3; c++) {
    value_check(oracle_get(&s->d_table, 0, 0, 0, c), want, 2e-5 * want, ATTN_F32, "sum", 0, 0, 0,
                c);
    assert_true(oracle_get(&s->d_table, 0, 0, 1, c) == 0);
  }
}

/* <d_y, gathered rows> = <d_table, table>. */
void N4_learned_adjoint(void **state) {
  (void)state;
  test_rng rng = test_seed(9462);
  for (int k = 0; k < 12; k++, test_mem_release()) {
    const shape z = {2, 1 + k % 2, 50, 33, 70, k % 3, ATTN_F32, ATTN_F32, TEST_BHTD, TEST_BHTD};
    scene *s = build(&z, &rng);
    attn_ctx ctx = test_ctx();
    const attn_tensor table = drawn(ATTN_F32, TEST_BHTD, 1, 1, z.rows, z.n, 1, &rng);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, z.batch, z.heads, z.len, z.n);
    assert_int_equal(attn_learned_position(y, absent(), table, &s->p, &ctx), ATTN_OK);
    promise_run(&s->does);
    const double want = dense_dot(&s->d_y, &y), got = dense_dot(&table, &s->d_table);
    assert_true(fabs(got - want) <= 1e-5 * sqrt(dense_dot(&s->d_y, &s->d_y) * dense_dot(&y, &y)));
  }
}

/* Added to; rows without tokens are not touched then, and are 0 otherwise. */
void N4_learned_accumulate(void **state) {
  (void)state;
  test_rng rng = test_seed(9463);
  for (int k = 0; k < 9; k++, test_mem_release()) {
    const shape z = {2, 1, 20, 40, 64, k % 3, ATTN_F32, (attn_dtype)(k / 3), TEST_BHTD, TEST_BHTD};
    scene *s = build(&z, &rng), *t = build(&z, &rng);
    t->d_y = s->d_y, t->p = s->p, t->g.accumulate = 1;
    shape wide = z;
    wide.d_type = ATTN_F32;
    scene *w = build(&wide, &rng);
    w->d_y = s->d_y, w->p = s->p;
    promise_run(&w->does);
    test_fill(t->d_table, &rng, test_exact);
    oracle_set(&t->d_table, 0, 0, 1, 0, (double)NAN);
    cube old = cube_from(&t->d_table);
    const cube more = cube_from(&w->d_table);
    promise_run(&t->does);
    for (int64_t c = 0; c < z.rows * z.n; c++) old.data[c] += more.data[c];
    assert_true(z.kind == 0 || isnan(oracle_get(&t->d_table, 0, 0, 1, 0)));
    oracle_set(&t->d_table, 0, 0, 1, 0, 0), *cube_at(&old, 0, 0, 1) = 0;
    cube_check(&old, &t->d_table, 2e-7, "added");
    promise_run(&s->does);
    for (int64_t c = 0; c < z.n && z.kind; c++)
      assert_true(oracle_get(&s->d_table, 0, 0, 1, c) == 0);
  }
}

/* A NaN reaches its row of the table alone. */
void N4_learned_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9464);
  const shape z = {2, 2, 30, 20, 24, 2, ATTN_F32, ATTN_F32, TEST_BHTD, TEST_BHTD};
  scene *s = build(&z, &rng);
  test_fill_value(test_one(s->d_y, 1, 1, 1, 1), 1);
  oracle_set(&s->d_y, 1, 1, 7, 3, (double)NAN);
  promise_run(&s->does);
  for (int64_t r = 0; r < z.rows; r++)
    for (int64_t c = 0; c < z.n; c++)
      assert_true(isnan(oracle_get(&s->d_table, 0, 0, r, c)) == (r == row_of(s, 1, 7) && c == 3));
}

void N4_learned_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9465);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    shape z = {2, 2, 6, 5, 9, 1, ATTN_F32, ATTN_F32, TEST_BHTD, TEST_BHTD};
    if (n == 0) z.batch = 0;
    if (n == 1) z.heads = 0;
    if (n == 2) z.len = 0;
    scene *s = build(&z, &rng);
    test_fill_value(s->d_table, 7);
    if (n == 3) s->d_table = absent();
    s->g.accumulate = n == 4;
    if (n == 4) s->d_y.len = 0;
    promise_run(&s->does);
    for (int64_t r = 0; n != 3 && r < z.rows; r++)
      assert_true(oracle_get(&s->d_table, 0, 0, r, 1) == (n == 4 ? 7 : 0));
  }
}

void N4_learned_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9466);
  for (int n = 0; n < 13; n++, test_mem_release()) {
    shape z = {2, 1, 6, 5, 9, 1, ATTN_F32, ATTN_F32, TEST_BHTD, TEST_BHTD};
    if (n == 4) z.kind = 0;
    scene *s = build(&z, &rng);
    int64_t *ids = test_mem(12 * sizeof *ids);
    memset(ids, 0, 12 * sizeof *ids);
    if (n != 4) s->p.positions = ids;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->d_table.dim = 4, word = "d_table"; break;
      case 1: s->d_table.batch = 2, word = "d_table"; break;
      case 2: s->d_y.data = NULL, want = ATTN_E_NULL, word = "d_y"; break;
      case 3: ids[5] = 9, want = ATTN_E_RANGE, word = "params.positions"; break;
      case 4: s->p.start = 4, want = ATTN_E_RANGE, word = "params.start"; break;
      case 5: ids[0] = -1, want = ATTN_E_RANGE, word = "params.positions"; break;
      case 6: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 7: s->d_table.data = s->d_y.data, want = ATTN_E_OVERLAP, word = "d_table"; break;
      case 8: s->d_table.stride_len = 1, want = ATTN_E_STRIDE, word = "d_table"; break;
      case 9: s->d_y.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_y"; break;
      case 10:
        s->p.positions_per_batch = 1, ids[11] = 12, want = ATTN_E_RANGE, word = "params.positions";
        break;
      case 11:
        s->p.positions = (const int64_t *)s->d_table.data, want = ATTN_E_OVERLAP, word = "d_table";
        memset(s->d_table.data, 0, 9 * 5 * 4);
        break;
      default: s->d_table.heads = 0, word = "d_table"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
