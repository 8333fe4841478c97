/* tests/families/compression/test_linformer.c owns Linformer: its four ways to shorten keys against float64, and what follows
 * from their formulas. */

#include "shortened.h"

typedef struct scene {
  trio x;
  attn_linformer_params p;
  int64_t width; /* CONV: w */
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_linformer(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_linformer_workspace(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}

static void bind(scene *s) {
  s->p.lse = s->x.lse, s->p.kv_len = s->x.kv_len, s->p.q_len = s->x.q_len;
  s->does.block[0] = s->x.o_block, s->does.block[1] = s->x.lse_block;
}

/* To r rows; share: 0 = weights a head, 1 = for all heads, 2 = for keys and values too. */
static scene *build(const trio_shape *x, attn_linformer_kind kind, int64_t r, int share,
                    test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t hk = share ? 1 : x->k_heads, hv = share ? 1 : x->v_heads, w = 1 + r % 5;
  const int64_t n = x->k_len + r % 3 + (x->k_len == 0);
  s->x = trio_of(x, rng);
  s->p.kind = kind;
  if (kind == ATTN_LINFORMER_MATRIX) {
    const double size = 1 / sqrt((double)n);
    s->p.e = drawn(x->v_type, TEST_PADDED, 1, hk, r, n, size, rng);
    if (share < 2) s->p.f = drawn(ATTN_F32, TEST_NEGATIVE, 1, hv, r, n + 1, size, rng);
  } else if (kind == ATTN_LINFORMER_CONV) {
    s->width = w;
    s->p.w_k = drawn(x->q_type, TEST_PADDED, 1, hk, w * x->dk, x->dk,
                     1.2 / sqrt((double)(w * x->dk)), rng);
    s->p.w_v =
        drawn(ATTN_F32, TEST_PADDED, 1, hv, w * x->dv, x->dv, 1.2 / sqrt((double)(w * x->dv)), rng);
    if (r % 2) s->p.b_k = drawn(ATTN_F32, TEST_PADDED, 1, hk, 1, x->dk, 0.5, rng);
    if (r % 3) s->p.b_v = drawn(ATTN_F32, TEST_PADDED, 1, hv, 1, x->dv, 0.5, rng);
  } else {
    s->p.rank = r;
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->x.o, s->does.out[1] = &s->p.lse;
  bind(s);
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* Row m of what n rows of x become, or null. */
static double *short_row(const scene *s, int value, int64_t b, int64_t h, int64_t m, int64_t n) {
  const attn_linformer_params *p = &s->p;
  const attn_tensor *x = value ? &s->x.v : &s->x.k;
  double *y = test_mem((size_t)x->dim * sizeof *y);
  if (p->kind == ATTN_LINFORMER_MATRIX) {
    const attn_tensor *e = value && p->f.data ? &p->f : &p->e;
    if (m >= e->len || n == 0) return NULL;
    for (int64_t c = 0; c < x->dim; c++) {
      y[c] = 0;
      for (int64_t j = 0; j < n; j++)
        y[c] += oracle_get(e, 0, e->heads > 1 ? h : 0, m, j) * oracle_get(x, b, h, j, c);
    }
    return y;
  }
  if (p->kind == ATTN_LINFORMER_CONV) {
    const double *rows[8];
    if (m * s->width >= n) return NULL;
    for (int64_t r = 0; r < s->width; r++)
      rows[r] = m * s->width + r < n ? row_of(x, b, h, m * s->width + r) : NULL;
    return conv_row(value ? &p->w_v : &p->w_k, value ? &p->b_v : &p->b_k, h, rows, s->width,
                    x->dim);
  }
  int64_t r = p->rank ? p->rank : 256, segments = r < n ? r : n;
  if (m >= segments) return NULL;
  int64_t from = m * n / segments, to = (m + 1) * n / segments;
  for (int64_t c = 0; c < x->dim; c++) {
    double sum = 0, top = -(double)INFINITY;
    for (int64_t j = from; j < to; j++) {
      sum += oracle_get(x, b, h, j, c);
      top = fmax(top, oracle_get(x, b, h, j, c));
    }
    y[c] = p->kind == ATTN_LINFORMER_MAX ? top : sum / (double)(to - from);
  }
  return y;
}

static void check(const scene *s, double tolerance, const char *what) {
  const trio *x = &s->x;
  for (int64_t b = 0; b < x->q.batch; b++) {
    for (int64_t h = 0; h < x->q.heads; h++) {
      const int64_t hk = head_of(&x->k, h, x->q.heads), hv = head_of(&x->v, h, x->q.heads);
      const int64_t n = trio_keys(x, b);
      keys list = keys_of(x->k.len + 300), none = keys_of(0);
      const double *k;
      for (int64_t m = 0; (k = short_row(s, 0, b, hk, m, n)) != NULL; m++)
        keys_add(&list, k, short_row(s, 1, b, hv, m, n));
      for (int64_t i = 0; i < x->q.len; i++)
        keys_check(i < trio_rows(x, b) ? &list : &none, x, b, h, i, s->p.scale, tolerance, what);
    }
  }
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  check(s, tolerance, what);
}

/* Full attention into o. */
static void full(const scene *s, attn_tensor o) {
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, s->x.q, s->x.k, s->x.v, NULL, &ctx), ATTN_OK);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void F6_random(void **state) {
  (void)state;
  test_rng rng = test_seed(6600);
  for (int64_t n = test_count(64, 16); n-- > 0; test_mem_release()) {
    trio_shape x = trio_random(&rng, n / 4, n % 9 ? 24 : 150);
    const int64_t r = test_range(&rng, 1, n % 12 ? 12 : 140);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, (attn_linformer_kind)(n % 4), r, (int)(n / 4 % 3), &rng);
    test_where = TEST_HEAP;
    if (n % 6 == 5) s->p.scale = n % 12 == 5 ? 0.4f : ATTN_ZERO;
    run(s, 3e-5, "linformer");
  }
}

/* A width that needs no copy, and more rows and keys than one piece of the product. */
void F6_wide(void **state) {
  (void)state;
  test_rng rng = test_seed(6601);
  for (int n = 0; n < 2; n++) {
    trio_shape x = trio_plain(20, n ? 257 : 130);
    x.dk = 80, x.dv = n ? 64 : 65, x.heads = x.k_heads = x.v_heads = 1;
    run(build(&x, ATTN_LINFORMER_MATRIX, n ? 98 : 5, 1, &rng), 3e-5, "wide");
  }
}

/* A matrix that adds up many keys: values of mean one, where a single chain of sums would drift. */
void F6_many_keys(void **state) {
  (void)state;
  test_rng rng = test_seed(7607);
  trio_shape x = trio_plain(2, test_fast ? 9000 : 32768);
  x.dk = 4, x.dv = 5;
  scene *s = build(&x, ATTN_LINFORMER_MATRIX, 2, 2, &rng);
  test_fill_value(s->x.k, 0), test_fill_value(s->p.e, 1e-4);
  for (int64_t j = 0; j < x.k_len; j++)
    for (int64_t c = 0; c < 5; c++)
      oracle_set(&s->x.v, 0, 0, j, c, 1 + 0.1 * oracle_get(&s->x.v, 0, 0, j, c));
  run(s, 2e-6, "many keys");
}

/* E = F = the identity: full attention. */
void F6_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(6602);
  trio_shape x = trio_plain(140, 130);
  scene *s = build(&x, ATTN_LINFORMER_MATRIX, 130, 2, &rng);
  s->p.e = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 130, 130);
  test_fill_value(s->p.e, 0);
  for (int64_t i = 0; i < 130; i++) oracle_set(&s->p.e, 0, 0, i, i, 1);
  promise_run(&s->does);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 140, x.dv);
  full(s, o);
  test_assert_same(s->x.o, o, "identity");
}

/* Means and maxima of as many segments as rows, or more: full attention. */
void F6_rank_is_length(void **state) {
  (void)state;
  test_rng rng = test_seed(6603);
  for (int n = 0; n < 4; n++) {
    trio_shape x = trio_plain(140, 130);
    scene *s = build(&x, n % 2 ? ATTN_LINFORMER_MAX : ATTN_LINFORMER_MEAN, 130, 0, &rng);
    if (n / 2) s->p.rank = 0; /* 256 */
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 140, x.dv);
    full(s, o);
    test_assert_same(s->x.o, o, "a row a segment");
  }
}

/* Means are a matrix of 1 / length of the segment. */
void F6_mean_is_matrix(void **state) {
  (void)state;
  test_rng rng = test_seed(6604);
  trio_shape x = trio_plain(20, 23);
  scene *s = build(&x, ATTN_LINFORMER_MEAN, 5, 0, &rng);
  promise_run(&s->does);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, x.dv);
  test_copy(o, s->x.o);
  static const int64_t from[] = {0, 4, 9, 13, 18, 23};
  s->p.e = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 23);
  test_fill_value(s->p.e, 0);
  for (int64_t m = 0; m < 5; m++) {
    for (int64_t j = from[m]; j < from[m + 1]; j++)
      oracle_set(&s->p.e, 0, 0, m, j, 1.0 / (double)(from[m + 1] - from[m]));
  }
  s->p.kind = ATTN_LINFORMER_MATRIX;
  promise_run(&s->does);
  test_assert_near(s->x.o, o, 1e-5, "means");
}

/* Keys, values and columns of E and F in another order. */
void F6_permuted(void **state) {
  (void)state;
  test_rng rng = test_seed(6605);
  trio_shape x = trio_plain(9, 17);
  scene *s = build(&x, ATTN_LINFORMER_MATRIX, 6, 0, &rng);
  promise_run(&s->does);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, x.dv);
  test_copy(o, s->x.o);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 17, x.dk);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 17, x.dv);
  attn_tensor e = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 6, 17);
  attn_tensor f = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 6, 17);
  for (int64_t j = 0; j < 17; j++) {
    const int64_t from = 5 * j % 17;
    test_copy(test_rows(k, j, 1), test_rows(s->x.k, from, 1));
    test_copy(test_rows(v, j, 1), test_rows(s->x.v, from, 1));
    for (int64_t m = 0; m < 12; m++) {
      oracle_set(&e, 0, m / 6, m % 6, j, oracle_get(&s->p.e, 0, m / 6, m % 6, from));
      oracle_set(&f, 0, m / 6, m % 6, j, oracle_get(&s->p.f, 0, m / 6, m % 6, from));
    }
  }
  s->x.k = k, s->x.v = v, s->p.e = e, s->p.f = f;
  promise_run(&s->does);
  test_assert_near(s->x.o, o, 1e-5, "another order");
}

/* What is shared gives the bits of copies; one row gives all queries the same. */
void F6_sharing(void **state) {
  (void)state;
  test_rng rng = test_seed(6606);
  trio_shape x = trio_plain(30, 40);
  for (int64_t r = 1; r < 8; r += 6) {
    scene *s = build(&x, ATTN_LINFORMER_MATRIX, r, 2, &rng);
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, x.dv);
    test_copy(o, s->x.o);
    attn_tensor e = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, r, 40);
    attn_tensor one = s->p.e;
    one.dim = 40;
    for (int64_t h = 0; h < 2; h++) test_copy(test_one(e, 0, 1, h, 1), one);
    s->p.e = e, s->p.f = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, r, 40);
    test_copy(s->p.f, e);
    promise_run(&s->does);
    test_assert_same(s->x.o, o, "shared");
    for (int64_t i = 1; i < 30 && r == 1; i++)
      test_assert_same(test_rows(s->x.o, i, 1), test_rows(s->x.o, 0, 1), "one row");
  }
}

/* Lengths give the bits of the call on tensors cut to them; what lies behind is not read. */
void F6_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(6607);
  for (int n = 0; n < 12; n++) {
    trio_shape x = trio_plain(40, 150);
    x.batch = 3, x.lens = 1, x.k_type = n % 3 ? ATTN_F32 : ATTN_F16;
    scene *s = build(&x, (attn_linformer_kind)(n % 4), 9, n % 2, &rng);
    for (int64_t b = 0; b < 3; b++) {
      for (int64_t j = s->x.kv_len[b]; j < 150; j++)
        test_fill_row(s->x.k, b, 1, j, (double)NAN), test_fill_row(s->x.v, b, 0, j, (double)NAN);
    }
    promise_run(&s->does);
    for (int64_t b = 0; b < 3; b++) {
      scene one = *s;
      one.x = trio_cut(&s->x, b);
      bind(&one);
      attn_ctx ctx = test_ctx();
      assert_int_equal(call(&one, &ctx), ATTN_OK);
      const int64_t rows = trio_rows(&s->x, b);
      attn_tensor o = test_one(s->x.o, b, 1, 0, 2);
      if (rows > 16)
        test_assert_same(test_rows(o, 0, rows), one.x.o, "cut");
      else
        test_assert_near(test_rows(o, 0, rows), one.x.o, 1e-5, "cut");
    }
  }
}

void F6_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(6608);
  for (int n = 0; n < 4; n++) {
    trio_shape x = trio_plain(3, 0);
    run(build(&x, (attn_linformer_kind)n, 4, 0, &rng), 3e-5, "no keys");
    x = trio_plain(0, 5);
    run(build(&x, (attn_linformer_kind)n, 4, 0, &rng), 3e-5, "no queries");
    x = trio_plain(2, 1);
    run(build(&x, (attn_linformer_kind)n, 4, 0, &rng), 3e-5, "one key");
    x.batch = 0;
    promise_run(&build(&x, (attn_linformer_kind)n, 4, 0, &rng)->does);
  }
}

/* A NaN in a value reaches all queries of its heads and no others. */
void F6_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(6609);
  for (int n = 0; n < 4; n++) {
    trio_shape x = trio_plain(20, 30);
    scene *s = build(&x, (attn_linformer_kind)n, 6, 1, &rng);
    oracle_set(&s->x.v, 0, 1, 29, 2, (double)NAN);
    promise_run(&s->does);
    for (int64_t i = 0; i < 20; i++) {
      for (int64_t c = 0; c < x.dv; c++) {
        assert_true(!isnan(oracle_get(&s->x.o, 0, 0, i, c)));
        if (n != ATTN_LINFORMER_CONV)
          assert_int_equal(isnan(oracle_get(&s->x.o, 0, 1, i, c)) != 0, c == 2);
      }
    }
  }
}

/* Few keys are all that is kept: the memory of a matrix does not grow with Tk. */
void F6_memory(void **state) {
  (void)state;
  float x[64] = {0};
  size_t bytes[2];
  for (int n = 0; n < 2; n++) {
    const int64_t t = n ? 1000000 : 1000;
    attn_tensor q = attn_bhtd(x, ATTN_F32, 1, 1, t, 64), e = attn_bhtd(x, ATTN_F32, 1, 1, 256, t);
    attn_linformer_params p;
    memset(&p, 0, sizeof p);
    q.stride_len = 0, e.stride_len = 0, p.e = e;
    attn_tensor o = attn_bhtd((void *)(uintptr_t)(1 << 20), ATTN_F32, 1, 1, t, 64);
    attn_ctx ctx = test_ctx();
    bytes[n] = attn_linformer_workspace(o, q, q, q, &p, &ctx);
  }
  assert_true(bytes[0] > 0);
  assert_int_equal(bytes[0], bytes[1]);
}

void F6_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(6610);
  for (int n = 0; n < 4; n++) {
    trio_shape x = trio_plain(n % 2 ? 70 : 5, 140);
    x.batch = 2, x.lens = n > 1, x.k_heads = 1, x.o_type = ATTN_BF16, x.v_type = ATTN_F16;
    promise_keep(&build(&x, (attn_linformer_kind)n, 20, 0, &rng)->does);
  }
}

void F6_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(6611);
  int32_t lens[1] = {10};
  for (int n = 0; n < 27; n++) {
    trio_shape x = trio_plain(9, 9);
    const int conv = n >= 20;
    scene *s = build(&x, conv ? ATTN_LINFORMER_CONV : ATTN_LINFORMER_MATRIX, 7, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.e.dim = 8, word = "params.e"; break;
      case 1: s->p.f.dim = 8, word = "params.f"; break;
      case 2: s->p.e.len = 0, word = "params.e"; break;
      case 3: s->p.f.len = 6, word = "params.f"; break;
      case 4: s->p.e.heads = 3, word = "params.e"; break;
      case 5: s->p.e.batch = 2, s->p.e.stride_batch = 0, word = "params.e"; break;
      case 6: s->p.e = absent(), s->p.f = absent(), want = ATTN_E_NULL, word = "params.e"; break;
      case 7: s->p.kind = ATTN_LINFORMER_COUNT, want = ATTN_E_RANGE, word = "kind"; break;
      case 8:
        s->p.kind = ATTN_LINFORMER_MEAN, s->p.rank = -1, want = ATTN_E_RANGE, word = "rank";
        break;
      case 9: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 10: s->p.kv_len = lens, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 11: s->p.q_len = lens, want = ATTN_E_RANGE, word = "q_len"; break;
      case 12: s->x.k.dim--, word = "k must"; break;
      case 13: s->x.v.len--, word = "v must"; break;
      case 14: s->x.o.len--, word = "o must"; break;
      case 15: s->p.lse.len--, word = "lse"; break;
      case 16:
        s->p.e = s->x.o, s->p.e.heads = 1, s->p.e.len = 7, s->p.e.dim = 5,
        s->x.k.len = s->x.v.len = 5, want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 17: s->p.e.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "params.e"; break;
      case 18:
        s->p.kv_len = (const int32_t *)(const void *)((const char *)lens + 1), want = ATTN_E_ALIGN,
        word = "kv_len";
        break;
      case 19: s->x.q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 20: s->p.w_k.len--, word = "w_k"; break;
      case 21: s->p.w_v.len += 5, word = "w_v"; break;
      case 22: s->p.w_v = absent(), want = ATTN_E_NULL, word = "w_v"; break;
      case 23: s->p.w_k = absent(), want = ATTN_E_NULL, word = "w_k"; break;
      case 24: s->p.b_k.dim++, word = "b_k"; break;
      case 25: s->p.b_v.heads = 3, word = "b_v"; break;
      default: s->p.w_k.len = 0, word = "w_k"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
