/* tests/families/memory/test_recursive.c owns recursive memory: its three rules against float64, what follows from
 * their formulas, the update in place. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, next, x, memory;
  attn_recursive_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_recursive(s->o, s->next, s->x, s->memory, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_recursive_workspace(s->o, s->next, s->x, s->memory, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, tokens, rows, next, dm, heads, kv_heads, dk, dv; /* next -1: not wanted */
  attn_dtype x_type, m_type, o_type, next_type;
  attn_recursive_rule rule;
} shape;

static shape plain(attn_recursive_rule rule, int64_t tokens, int64_t rows, int64_t next) {
  shape x = {1, tokens, rows, next, 12, 2, 2, 5, 7, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, rule};
  return x;
}

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = x->batch, dm = x->dm;
  const double size = 1.5 / sqrt((double)dm);
  s->x = drawn(x->x_type, TEST_PADDED, b, 1, x->tokens, dm, 1, rng);
  if (x->rows) s->memory = drawn(x->m_type, TEST_NEGATIVE, b, 1, x->rows, dm, 1, rng);
  s->p.heads = x->heads, s->p.kv_heads = x->kv_heads, s->p.rule = x->rule;
  s->p.w_q = drawn(x->x_type, TEST_PADDED, 1, 1, dm, x->heads * x->dk, size, rng);
  s->p.w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, dm, x->kv_heads * x->dk, size, rng);
  s->p.w_v = drawn(x->m_type, TEST_NEGATIVE, 1, 1, dm, x->kv_heads * x->dv, size, rng);
  s->p.w_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, x->heads * x->dv, dm, 0.4, rng);
  s->o = output(x->o_type, TEST_PADDED, b, 1, x->tokens, dm, &s->does.block[0]);
  if (x->next >= 0)
    s->next = output(x->next_type, TEST_NEGATIVE, b, 1, x->next, dm, &s->does.block[1]);
  s->p.lse = output(ATTN_F32, TEST_BHTD, b, x->heads, x->tokens, 1, &s->does.block[2]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->next, s->does.out[2] = &s->p.lse;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* Column h d + c of row i times w. */
static double product(const double *row, const attn_tensor *w, int64_t column) {
  double sum = 0;
  for (int64_t c = 0; c < w->len; c++) sum += row[c] * oracle_get(w, 0, 0, c, column);
  return sum;
}

/* All rows of `from` in all heads of w. */
static cube project(const cube *from, const attn_tensor *w, int64_t heads) {
  cube y = cube_of(from->batch, heads, from->len, w->dim / heads);
  for (int64_t r = 0; r < y.batch * heads * y.len; r++) {
    int64_t b = r / y.len / heads, h = r / y.len % heads, i = r % y.len;
    for (int64_t c = 0; c < y.dim; c++)
      cube_at(&y, b, h, i)[c] = product(cube_at(from, b, 0, i), w, h * y.dim + c);
  }
  return y;
}

/* Multi-head attention of rows i0 .. of `all` over all of it, row i0 + i up to itself if causal. */
static cube attend(const scene *s, const cube *all, int64_t i0, int64_t n, int causal, cube *lse) {
  int64_t heads = s->p.heads ? s->p.heads : 1, kv = s->p.kv_heads ? s->p.kv_heads : heads;
  cube q = project(all, &s->p.w_q, heads), k = project(all, &s->p.w_k, kv);
  cube v = project(all, &s->p.w_v, kv);
  cube side = cube_of(all->batch, 1, n, heads * v.dim);
  int64_t *keys = test_mem((size_t)(all->len + 1) * sizeof *keys);
  for (int64_t j = 0; j < all->len; j++) keys[j] = j;
  if (lse) *lse = cube_of(all->batch, heads, n, 1);
  for (int64_t r = 0; r < all->batch * heads * n; r++) {
    int64_t b = r / n / heads, h = r / n % heads, i = r % n;
    double sum;
    cube_row(cube_at(&side, b, 0, i) + h * v.dim, &sum, cube_at(&q, b, h, i0 + i), &k, &v, b,
             h * kv / heads, keys, causal ? i0 + i + 1 : all->len, scale_of(s->p.scale, q.dim));
    if (lse) *cube_at(lse, b, h, i) = sum;
  }
  return project(&side, &s->p.w_o, 1);
}

/* [memory ; x], memory as it was before the call. */
static cube both(const cube *memory, const attn_tensor *x) {
  cube own = cube_from(x), all = cube_of(x->batch, 1, memory->len + x->len, x->dim);
  for (int64_t r = 0; r < all.batch * all.len; r++) {
    int64_t b = r / all.len, i = r % all.len, n = memory->len;
    memcpy(cube_at(&all, b, 0, i), i < n ? cube_at(memory, b, 0, i) : cube_at(&own, b, 0, i - n),
           (size_t)all.dim * sizeof(double));
  }
  return all;
}

static cube memory_of(const scene *s) {
  return s->memory.data ? cube_from(&s->memory) : cube_of(s->x.batch, 1, 0, s->x.dim);
}

static void check(const scene *s, const cube *memory, double tolerance, const char *what) {
  cube all = both(memory, &s->x), lse, want;
  int64_t n = memory->len, l = s->x.len, dm = s->x.dim, rows = s->next.data ? s->next.len : 0;
  cube o = attend(s, &all, n, l, 1, &lse);
  cube_check(&o, &s->o, tolerance, what);
  if (s->p.lse.data) cube_check(&lse, &s->p.lse, tolerance, what);
  if (!s->next.data) return;
  double alpha = s->p.alpha != 0 ? (double)s->p.alpha : signbit(s->p.alpha) ? 0 : 0.5;
  want = cube_of(s->x.batch, 1, rows, dm);
  if (s->p.rule == ATTN_RECURSIVE_ATTEND) want = attend(s, &all, 0, n, 0, NULL);
  for (int64_t r = 0; r < want.batch * rows && s->p.rule != ATTN_RECURSIVE_ATTEND; r++) {
    int64_t b = r / rows, i = r % rows, from = n + l - rows + i;
    for (int64_t c = 0; c < dm; c++) {
      double sum = 0, count = 0;
      for (int64_t t = 0; t < l && s->p.rule == ATTN_RECURSIVE_EMA; t++) {
        if (t < i * l / n || t >= (i + 1) * l / n) continue;
        sum += cube_at(&o, b, 0, t)[c], count++;
      }
      cube_at(&want, b, 0, i)[c] =
          s->p.rule == ATTN_RECURSIVE_EMA
              ? alpha * cube_at(memory, b, 0, i)[c] + (1 - alpha) * sum / count
          : from < n ? cube_at(memory, b, 0, from)[c]
                     : cube_at(&o, b, 0, from - n)[c];
    }
  }
  cube_check(&want, &s->next, tolerance, what);
}

static void run(scene *s, double tolerance, const char *what) {
  cube memory = memory_of(s);
  promise_run(&s->does);
  check(s, &memory, tolerance, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void J6_random(void **state) {
  (void)state;
  test_rng rng = test_seed(600);
  for (int64_t n = test_count(45, 12); n-- > 0; test_mem_release()) {
    attn_recursive_rule rule = (attn_recursive_rule)(n % 3);
    int64_t tokens = test_range(&rng, 1, n % 5 ? 20 : 80), kv = test_range(&rng, 1, 2);
    int64_t rows = rule == ATTN_RECURSIVE_EMA ? test_range(&rng, 0, tokens)
                                              : test_range(&rng, 0, n % 4 ? 20 : 150);
    int64_t next = rule == ATTN_RECURSIVE_REPLACE ? test_range(&rng, 0, rows + tokens) : rows;
    shape x = {test_range(&rng, 1, 2),
               tokens,
               rows,
               n % 7 == 6 ? -1 : next,
               test_range(&rng, 1, n % 6 ? 20 : 150),
               kv * test_range(&rng, 1, 2),
               kv,
               test_range(&rng, 1, 10),
               test_range(&rng, 1, 10),
               n % 4 == 1 ? ATTN_F16 : ATTN_F32,
               n % 5 == 1 ? ATTN_BF16 : ATTN_F32,
               n % 4 == 2 ? ATTN_BF16 : ATTN_F32,
               n % 8 == 2 ? ATTN_F16 : ATTN_F32, /* narrow o, wide memory, and the reverse */
               rule};
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    if (x.heads == 1) s->p.heads = 0;
    if (x.kv_heads == x.heads) s->p.kv_heads = 0;
    if (n % 3 == 0) s->p.alpha = (float)(n % 2) * 0.75f; /* or the default */
    if (n % 6 == 5) s->p.scale = 0.4f;
    if (n % 8 == 3) s->p.lse = absent();
    run(s, 3e-5, "recursive");
  }
}

/* Four segments, each handing its memory to the next, in another tensor and in place: the same
 * bits, and those of the formula. */
void J6_segments(void **state) {
  (void)state;
  for (int rule = 0; rule < 3; rule++) {
    test_rng rng = test_seed(601 + (uint64_t)rule);
    const int64_t l = rule == ATTN_RECURSIVE_REPLACE ? 4 : 11; /* some of the memory stays */
    shape x = plain((attn_recursive_rule)rule, l, 6, 6);
    x.batch = 2, x.m_type = x.next_type = rule == 1 ? ATTN_F16 : ATTN_F32;
    scene *s = build(&x, &rng);
    attn_tensor in_place = test_tensor(x.m_type, TEST_PADDED, 2, 1, 6, x.dm), start = s->memory;
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, l, x.dm);
    test_copy(in_place, start);
    for (int t = 0; t < 4; t++) {
      run(s, 3e-5, "segments");
      scene alias = *s;
      attn_ctx ctx = test_ctx();
      alias.memory = alias.next = in_place, alias.o = o;
      assert_int_equal(call(&alias, &ctx), ATTN_OK);
      test_assert_same(in_place, s->next, "in place");
      test_assert_same(o, s->o, "in place");
      test_copy(s->memory, s->next);
      test_fill(s->x, &rng, test_normal);
    }
  }
}

void J6_ema_alpha(void **state) {
  (void)state;
  test_rng rng = test_seed(605);
  shape x = plain(ATTN_RECURSIVE_EMA, 9, 9, 9);
  scene *s = build(&x, &rng);
  s->p.alpha = 1;
  promise_run(&s->does);
  test_assert_same(s->next, s->memory, "alpha 1");
  s->p.alpha = ATTN_ZERO;
  promise_run(&s->does);
  test_assert_same(s->next, s->o, "alpha 0, a row a segment");
  /* 10 rows in 4 segments: 2, 3, 2, 3 */
  x = plain(ATTN_RECURSIVE_EMA, 10, 4, 4);
  s = build(&x, &rng);
  s->p.alpha = ATTN_ZERO;
  promise_run(&s->does);
  static const int64_t from[] = {0, 2, 5, 7, 10};
  for (int64_t i = 0; i < 4; i++) {
    for (int64_t c = 0; c < x.dm; c++) {
      double sum = 0;
      for (int64_t t = from[i]; t < from[i + 1]; t++) sum += oracle_get(&s->o, 0, 0, t, c);
      double want = sum / (double)(from[i + 1] - from[i]);
      value_check(oracle_get(&s->next, 0, 0, i, c), want, 1e-6, ATTN_F32, "pooled", 0, 0, i, c);
    }
  }
}

void J6_replace_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(606);
  for (int64_t next = 0; next <= 12; next += 3) {
    shape x = plain(ATTN_RECURSIVE_REPLACE, 7, 5, next);
    scene *s = build(&x, &rng);
    promise_run(&s->does);
    for (int64_t r = 0; r < next; r++) {
      int64_t i = 12 - next + r;
      attn_tensor want = i < 5 ? test_rows(s->memory, i, 1) : test_rows(s->o, i - 5, 1);
      test_assert_same(test_rows(s->next, r, 1), want, "last rows");
    }
  }
  shape x = plain(ATTN_RECURSIVE_REPLACE, 7, 0, 7); /* no memory: all of o is kept */
  scene *s = build(&x, &rng);
  promise_run(&s->does);
  test_assert_same(s->next, s->o, "all of o");
}

/* The rows of x in another order leave the memory as it is; those of the memory take it along. */
void J6_attend_order(void **state) {
  (void)state;
  test_rng rng = test_seed(607);
  shape x = plain(ATTN_RECURSIVE_ATTEND, 13, 6, 6);
  scene *s = build(&x, &rng);
  promise_run(&s->does);
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, x.dm);
  attn_tensor rows = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 13, x.dm);
  test_copy(first, s->next);
  test_copy(rows, s->x);
  for (int64_t i = 0; i < 13; i++) test_copy(test_rows(s->x, i, 1), test_rows(rows, 5 * i % 13, 1));
  promise_run(&s->does);
  test_assert_near(s->next, first, 1e-5, "x in another order");
  test_copy(test_rows(rows, 0, 6), s->memory);
  for (int64_t i = 0; i < 6; i++)
    test_copy(test_rows(s->memory, i, 1), test_rows(rows, (i + 4) % 6, 1));
  promise_run(&s->does);
  for (int64_t i = 0; i < 6; i++)
    test_assert_near(test_rows(s->next, i, 1), test_rows(first, (i + 4) % 6, 1), 1e-5,
                     "memory in another order");
}

/* No row of o depends on later rows of x, and none on whether the memory is renewed. NaN reaches what
 * reads it and no more. */
void J6_reads(void **state) {
  (void)state;
  for (int rule = 0; rule < 3; rule++) {
    test_rng rng = test_seed(608);
    shape x = plain((attn_recursive_rule)rule, 10, 5, 5);
    scene *s = build(&x, &rng);
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, x.dm);
    attn_tensor next = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, x.dm);
    test_copy(o, s->o);
    test_copy(next, s->next);
    attn_tensor wanted = s->next;
    s->next = absent();
    promise_run(&s->does);
    test_assert_same(s->o, o, "memory not renewed");
    s->next = wanted;
    test_fill_row(s->x, 0, 0, 7, (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, 7), test_rows(o, 0, 7), "rows before NaN");
    for (int64_t i = 7; i < 10; i++) assert_true(isnan(oracle_get(&s->o, 0, 0, i, 0)));
    /* ema: rows 6, 7 are segment 3; replace: the last five rows of o */
    static const int spoilt[3][5] = {{0, 0, 0, 1, 1}, {0, 0, 1, 1, 1}, {1, 1, 1, 1, 1}};
    for (int64_t i = 0; i < 5; i++) {
      if (spoilt[rule][i])
        assert_true(isnan(oracle_get(&s->next, 0, 0, i, 0)));
      else
        test_assert_same(test_rows(s->next, i, 1), test_rows(next, i, 1), "memory beside NaN");
    }
    if (rule) continue;
    s->p.alpha = 1; /* weight 0: the NaN is dropped */
    promise_run(&s->does);
    test_assert_same(s->next, s->memory, "alpha 1 beside NaN");
  }
}

void J6_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(609);
  for (int rule = 0; rule < 3; rule++) {
    const int ema = rule == ATTN_RECURSIVE_EMA, replace = rule == ATTN_RECURSIVE_REPLACE;
    for (int64_t l = 0; l < 2; l++) {
      for (int64_t n = 0; n < 4; n += 3) {
        if (ema && n > l) continue;
        shape x = plain((attn_recursive_rule)rule, l, n, replace ? (n + l) / 2 : n);
        run(build(&x, &rng), 3e-5, "empty");
        x.next = n;
        run(build(&x, &rng), 3e-5, "empty, all kept");
      }
    }
    shape x = plain((attn_recursive_rule)rule, 4, 3, 3);
    x.batch = 0;
    promise_run(&build(&x, &rng)->does);
  }
}

void J6_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(610);
  for (int rule = 0; rule < 3; rule++) {
    shape x = plain((attn_recursive_rule)rule, 70, 20, rule == 1 ? 85 : 20);
    x.batch = 2, x.o_type = ATTN_F16, x.next_type = ATTN_BF16, x.kv_heads = 1;
    promise_keep(&build(&x, &rng)->does);
  }
}

void J6_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(611);
  for (int n = 0; n < 32; n++) {
    shape x = plain(n % 2 ? ATTN_RECURSIVE_EMA : ATTN_RECURSIVE_ATTEND, 9, 4, 4);
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 1: s->memory.dim = 11, word = "memory must"; break;
      case 2: s->memory.batch = 2, s->memory.stride_batch = 0, word = "memory must"; break;
      case 3: s->p.w_q.len = 11, word = "w_q"; break;
      case 4: s->p.w_k.dim = 8, word = "w_k"; break;
      case 5: s->p.w_v.len = 11, word = "w_v"; break;
      case 6: s->p.w_o.len = 12, word = "w_o"; break;
      case 7: s->p.w_o.dim = 11, word = "w_o"; break;
      case 8: s->o.dim = 11, word = "o must"; break;
      case 9: s->o.len = 8, word = "o must"; break;
      case 10: s->next.len = 3, word = "next.len"; break;
      case 11: s->next.len = 3, word = "next.len"; break;
      case 12: s->p.rule = ATTN_RECURSIVE_REPLACE, s->next.len = 14, word = "next"; break;
      case 13: s->x.len = s->o.len = s->p.lse.len = 3, word = "memory.len"; break;
      case 14: s->p.heads = 3, want = ATTN_E_HEADS, word = "heads"; break;
      case 15: s->p.kv_heads = 3, want = ATTN_E_HEADS, word = "kv_heads"; break;
      case 16: s->p.heads = -1, word = "heads"; break;
      case 17: s->p.kv_heads = -1, word = "heads"; break;
      case 18: s->p.rule = (attn_recursive_rule)3, want = ATTN_E_RANGE, word = "rule"; break;
      case 19: s->p.alpha = -0.25f, want = ATTN_E_VALUE, word = "alpha"; break;
      case 20: s->p.alpha = 1.25f, want = ATTN_E_VALUE, word = "alpha"; break;
      case 21: s->p.alpha = (float)NAN, want = ATTN_E_VALUE, word = "alpha"; break;
      case 22: s->p.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 23: s->p.w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 24: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
      case 25: s->next = s->o, s->next.len = 4, want = ATTN_E_OVERLAP, word = "o "; break;
      case 26: /* the memory, a row further */
        s->memory = output(ATTN_F32, TEST_BHTD, 1, 1, 5, 12, &s->does.block[1]);
        s->next = test_rows(s->memory, 1, 4), s->memory.len = 4;
        want = ATTN_E_OVERLAP, word = "next";
        break;
      case 27: s->x = test_rows(s->o, 0, 9), want = ATTN_E_OVERLAP, word = "o "; break;
      case 28: s->next.stride_len = 0, want = ATTN_E_STRIDE, word = "next"; break;
      case 29: s->p.lse.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 30: s->x.dtype = (attn_dtype)9, want = ATTN_E_DTYPE, word = "x.dtype"; break;
      default: s->next.len = -1, word = "next"; break;
    }
    promise_reject(&s->does, want, word);
  }
  shape x = plain(ATTN_RECURSIVE_EMA, 5, 2, 2);
  scene *s = build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_recursive(s->o, s->next, s->x, s->memory, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}
