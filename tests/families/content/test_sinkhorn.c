/* tests/families/content/test_sinkhorn.c owns attention over sorted blocks and SortCut: every option against float64, the
 * identities of both, promises and rejections. */

#include "sinkhorn.h"

typedef struct scene {
  int cut;
  attn_tensor o, q, k, v, sort;
  attn_sinkhorn_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return (s->cut ? attn_sortcut : attn_sinkhorn)(s->o, s->q, s->k, s->v, s->sort, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return (s->cut ? attn_sortcut_workspace : attn_sinkhorn_workspace)(s->o, s->q, s->k, s->v,
                                                                     s->sort, &s->p, ctx);
}

/* Where P comes from. */
enum { GIVEN, LOGITS, NETWORK };

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, blocks, block, q_len, dk, dv;
  attn_dtype type[4]; /* q, k, v, o */
  int from;
} shape;

static shape plain(int64_t blocks, int64_t block) {
  shape x = {
      1,    2, 2, 2, blocks, block, blocks * block, 5, 7, {ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32},
      GIVEN};
  return x;
}

static double unit(test_rng *rng) { return (double)test_range(rng, 0, 1000) / 1000; }

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = x->batch, h = x->heads, nb = x->blocks, t = nb * x->block;
  s->q = drawn(x->type[0], TEST_PADDED, b, h, x->q_len, x->dk, 1, rng);
  s->k = drawn(x->type[1], TEST_NEGATIVE, b, x->k_heads, t, x->dk, 1, rng);
  s->v = drawn(x->type[2], TEST_BTHD, b, x->v_heads, t, x->dv, 1, rng);
  s->o = output(x->type[3], TEST_PADDED, b, h, x->q_len, x->dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BHTD, b, h, x->q_len, 1, &s->does.block[1]);
  s->p.block = x->block;
  if (x->from == GIVEN) {
    s->sort = test_tensor(ATTN_F32, TEST_PADDED, test_range(rng, 0, 1) ? b : 1,
                          test_range(rng, 0, 1) ? h : 1, nb, nb);
    test_fill(s->sort, rng, unit);
  } else if (x->from == LOGITS) {
    s->p.logits = drawn(ATTN_F32, TEST_PADDED, b, test_range(rng, 0, 1) ? h : 1, nb, nb, 1.5, rng);
  } else {
    const int64_t dx = test_range(rng, 1, 9), m = test_range(rng, 1, 9),
                  own = test_range(rng, 0, 1);
    if (own) s->p.x = drawn(ATTN_F16, TEST_PADDED, b, own > 0 ? 1 : h, t, dx, 0.5, rng);
    const int64_t in = own ? dx : x->dk, wide = test_range(rng, 0, 1) ? h : 1;
    s->p.w_1 = drawn(ATTN_F32, TEST_PADDED, 1, wide, in, m, 0.4, rng);
    s->p.w_2 = drawn(ATTN_F32, TEST_BHTD, 1, 1, m, nb, 0.4, rng);
    if (wide == h) s->p.b_1 = drawn(ATTN_F32, TEST_BHTD, 1, h, 1, m, 1, rng);
    if (wide == 1) s->p.b_2 = drawn(ATTN_BF16, TEST_BHTD, 1, 1, 1, nb, 1, rng);
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

/* P of the scene in float64; hard and made: the call's own, so that a near tie is no error. */
static cube matrix(const scene *s) {
  const int64_t nb = s->k.len / s->p.block, b = s->q.batch, h = s->q.heads;
  cube r;
  if (s->sort.data) {
    r = cube_of(b, h, nb, nb);
    for (int64_t n = 0; n < b * h * nb; n++)
      for (int64_t j = 0; j < nb; j++)
        cube_at(&r, n / nb / h, n / nb % h, n % nb)[j] =
            oracle_get(&s->sort, s->sort.batch > 1 ? n / nb / h : 0,
                       s->sort.heads > 1 ? n / nb % h : 0, n % nb, j);
    return r;
  }
  if (s->p.logits.data) {
    r = cube_from(&s->p.logits);
  } else {
    cube y = sinkhorn_blocks(s->p.x.data ? &s->p.x : &s->k, &s->p);
    r = sinkhorn_logits(&y, h, &s->p);
  }
  if (s->p.hard && s->p.logits.data) {
    attn_tensor p = test_tensor(ATTN_F32, TEST_BHTD, b, h, nb, nb);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sinkhorn_balance(p, s->p.logits, &s->p, &ctx), ATTN_OK);
    return cube_from(&p);
  }
  return sinkhorn_balance(&r, b, h, &s->p);
}

static void check(scene *s, double tolerance, const char *what) {
  cube p = matrix(s), o, lse;
  sinkhorn_attend(&o, &lse, &s->q, &s->k, &s->v, &p, &s->p, s->cut);
  cube_check(&o, &s->o, tolerance, what);
  if (s->p.lse.data) cube_check(&lse, &s->p.lse, tolerance, what);
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  check(s, tolerance, what);
}

static attn_dtype some_type(test_rng *rng) { return (attn_dtype)test_range(rng, 0, 2); }

static shape random_shape(test_rng *rng, int64_t n) {
  const int64_t kh = test_range(rng, 1, 2), vh = test_range(rng, 1, 2);
  shape x;
  memset(&x, 0, sizeof x);
  x.batch = test_range(rng, 1, 2);
  x.heads = 2 * test_range(rng, 1, 2);
  x.k_heads = kh, x.v_heads = vh;
  x.blocks = test_range(rng, 1, n % 5 == 4 ? 20 : 9);
  x.block = test_range(rng, 1, n % 6 == 5 ? 70 : 12);
  if (n % 11 == 10) x.blocks = 2, x.block = test_range(rng, 129, 140);
  if (n % 13 == 7) x.blocks = test_range(rng, 129, 140), x.block = 1 + n % 2;
  x.q_len = x.blocks * x.block;
  x.dk = test_range(rng, 1, 20), x.dv = test_range(rng, 1, 20);
  if (n % 4 == 3) x.dk = 16, x.dv = 32;
  for (int i = 0; i < 4; i++) x.type[i] = n % 3 ? ATTN_F32 : some_type(rng);
  return x;
}

/* ---- against float64 ------------------------------------------------------------------------*/

void D5_random(void **state) {
  (void)state;
  test_rng rng = test_seed(5500);
  for (int64_t n = test_count(72, 12); n-- > 0; test_mem_release()) {
    shape x = random_shape(&rng, n);
    x.from = x.blocks > 100 ? GIVEN : (int)(n % 3);
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    s->p.combine = (attn_sinkhorn_combine)test_range(&rng, 0, 3);
    s->p.causal = (int)test_range(&rng, 0, 1);
    s->p.diag = (int)test_range(&rng, 0, 1);
    s->p.hard = x.from != NETWORK && test_range(&rng, 0, 2) == 0;
    s->p.balance = (attn_sinkhorn_balancing)test_range(&rng, 0, 3);
    s->p.gumbel = x.from != GIVEN && n % 4 == 1, s->p.seed = (uint64_t)n;
    if (n % 7 == 3) s->p.scale = 0.7f, s->p.tau = 0.5f;
    if (n % 7 == 4) s->p.iterations = 3;
    if (s->p.combine == ATTN_SINKHORN_MIXTURE) {
      s->p.lse = absent();
      if (n % 2) s->p.alpha_sorted = 0.25f, s->p.alpha_local = n % 4 == 1 ? ATTN_ZERO : -0.5f;
    }
    run(s, 5e-5, "sinkhorn");
  }
}

/* The null block: what place 0 of a causal call reads, and any other whose row of P is 0. */
static void null_block(scene *s, test_rng *rng) {
  const int64_t h = s->q.heads;
  s->p.null_k =
      drawn(some_type(rng), TEST_BHTD, 1, test_range(rng, 0, 1) ? h : 1, 1, s->q.dim, 1, rng);
  s->p.null_v =
      drawn(some_type(rng), TEST_BHTD, 1, test_range(rng, 0, 1) ? h : 1, 1, s->v.dim, 1, rng);
}

void D5_null_block(void **state) {
  (void)state;
  test_rng rng = test_seed(5512);
  for (int64_t n = test_count(48, 12); n-- > 0; test_mem_release()) {
    shape x = random_shape(&rng, n);
    x.from = x.blocks > 100 ? GIVEN : (int)(n % 3);
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    null_block(s, &rng);
    test_where = TEST_HEAP;
    s->p.combine = (attn_sinkhorn_combine)(n % 4);
    s->p.causal = n % 5 != 4, s->p.diag = n % 7 == 6;
    s->p.hard = x.from != NETWORK && test_range(&rng, 0, 1);
    if (s->sort.data) test_fill_row(s->sort, 0, 0, x.blocks / 2, 0);
    if (s->p.combine == ATTN_SINKHORN_MIXTURE) s->p.lse = absent();
    run(s, 5e-5, "null block");
  }
  /* by number: place 1 reads the null block, b times the same key and value */
  shape x = plain(3, 4);
  scene *s = build(&x, &rng);
  static const int32_t choice[6] = {2, -1, 0, 2, -1, 0};
  null_block(s, &rng);
  s->sort.data = NULL, s->p.hard = 1, s->p.choice = choice, s->p.combine = ATTN_SINKHORN_SORTED;
  promise_run(&s->does);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 4; i < 8; i++)
      for (int64_t c = 0; c < s->v.dim; c++)
        value_check(oracle_get(&s->o, 0, h, i, c),
                    oracle_get(&s->p.null_v, 0, s->p.null_v.heads > 1 ? h : 0, 0, c), 1e-6,
                    s->o.dtype, "null value", 0, h, i, c);
  shape large = plain(5, 40);
  large.batch = 2;
  for (int n = 0; n < 4; n++) {
    scene *t = build(&large, &rng);
    null_block(t, &rng);
    t->p.causal = 1, t->p.hard = n % 2;
    t->p.combine = n < 2 ? ATTN_SINKHORN_CONCAT : ATTN_SINKHORN_SUM;
    promise_keep(&t->does);
  }
}

void D5_cut_random(void **state) {
  (void)state;
  test_rng rng = test_seed(5501);
  for (int64_t n = test_count(48, 10); n-- > 0; test_mem_release()) {
    shape x = random_shape(&rng, n);
    x.from = x.blocks > 100 ? GIVEN : (int)(n % 3);
    const int local = (int)test_range(&rng, 0, 1);
    if (!local) x.q_len = test_range(&rng, 1, 150);
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    s->cut = 1, s->p.local = local;
    s->p.cut = test_range(&rng, 1, x.blocks);
    s->p.hard = x.from != NETWORK && test_range(&rng, 0, 1);
    if (n % 6 == 0 && s->sort.data) test_fill_row(s->sort, 0, 0, 0, 0);
    run(s, 5e-5, "sortcut");
  }
}

/* ---- what the definitions say ---------------------------------------------------------------*/

/* A permutation in place of P. */
static void permute(scene *s, const int64_t *pi, int64_t n) {
  s->sort = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n, n);
  test_fill_value(s->sort, 0);
  for (int64_t i = 0; i < n; i++) oracle_set(&s->sort, 0, 0, i, pi[i], 1);
}

/* attn_sdpa under a block mask. */
static void masked(scene *s, const uint8_t *mask, attn_tensor o, attn_tensor lse) {
  attn_pattern pattern = attn_pattern_block_mask(mask, s->p.block, s->p.block);
  attn_schedule schedule;
  attn_sdpa_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  assert_int_equal(
      attn_schedule_build(&schedule, &pattern, s->q.heads, s->q.len, s->k.len, NULL, &ctx),
      ATTN_OK);
  p.schedule = &schedule, p.lse = lse;
  assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
  attn_schedule_free(&schedule);
}

void D5_permutations(void **state) {
  (void)state;
  enum { N = 4 };
  static const int64_t pi[N] = {2, 0, 3, 1};
  test_rng rng = test_seed(5505);
  shape x = plain(N, 6);
  scene *s = build(&x, &rng);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 24, 7);
  attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 24, 1);
  permute(s, pi, N);
  for (int kind = 0; kind < 6; kind++) {
    uint8_t mask[N * N] = {0};
    s->p.combine = kind & 1 ? ATTN_SINKHORN_SORTED : ATTN_SINKHORN_CONCAT;
    s->p.hard = kind / 2 > 0;
    s->cut = kind == 4;
    if (kind == 5) break;
    s->p.combine = s->cut ? ATTN_SINKHORN_CONCAT : s->p.combine, s->p.cut = N, s->p.local = 1;
    for (int64_t i = 0; i < N; i++) {
      mask[i * N + pi[i]] = 1;
      if (!(kind & 1)) mask[i * N + i] = 1;
      for (int64_t j = 0; s->cut && j < N; j++) mask[i * N + j] = 1;
    }
    masked(s, mask, o, lse);
    promise_run(&s->does);
    test_assert_near(s->o, o, 2e-6, "a permutation");
    test_assert_near(s->p.lse, lse, 2e-6, "a permutation");
  }
  /* the identity: soft counts own pairs twice, hard once */
  static const int64_t same[N] = {0, 1, 2, 3};
  uint8_t own[N * N] = {0};
  for (int i = 0; i < N; i++) own[i * N + i] = 1;
  s->cut = 0, s->p.combine = ATTN_SINKHORN_CONCAT;
  masked(s, own, o, lse);
  permute(s, same, N);
  for (int hard = 0; hard < 2; hard++) {
    s->p.hard = hard;
    promise_run(&s->does);
    test_assert_near(s->o, o, 2e-6, "the identity");
    for (int64_t i = 0; i < 24; i++)
      value_check(oracle_get(&s->p.lse, 0, 0, i, 0),
                  oracle_get(&lse, 0, 0, i, 0) + (hard ? 0 : log(2)), 1e-5, ATTN_F32, "own pairs",
                  0, 0, i, 0);
  }
}

/* The same bits whether P or the choice is handed over, and in one call. */
void D5_hard_choice(void **state) {
  (void)state;
  test_rng rng = test_seed(5506);
  for (int cut = 0; cut < 2; cut++)
    for (int64_t n = 0; n < 6; n++) {
      shape x = plain(5, n % 2 ? 20 : 3);
      x.batch = 2, x.from = LOGITS;
      scene *s = build(&x, &rng);
      attn_ctx ctx = test_ctx();
      s->cut = cut, s->p.cut = 3, s->p.local = (int)(n % 3), s->p.hard = 1;
      s->p.causal = !cut && n % 2, s->p.diag = n > 3;
      attn_tensor p = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 5, 5);
      attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, s->q.len, 7);
      int32_t choice[20];
      promise_run(&s->does);
      test_copy(first, s->o);
      assert_int_equal(attn_sinkhorn_balance(p, s->p.logits, &s->p, &ctx), ATTN_OK);
      s->sort = p;
      promise_run(&s->does);
      test_assert_same(s->o, first, "from P");
      assert_int_equal(attn_sinkhorn_choose(choice, p, &s->p, &ctx), ATTN_OK);
      s->sort = absent(), s->p.choice = choice;
      promise_run(&s->does);
      test_assert_same(s->o, first, "from choices");
    }
}

/* Later tokens never change earlier blocks, to the bit; the work follows the blocks. */
void D5_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(5507);
  for (int n = 0; n < 16; n++) {
    shape x = plain(6, n % 2 ? 5 : 17);
    x.from = NETWORK, x.dk = 16;
    scene *s = build(&x, &rng);
    s->p.causal = 1, s->p.diag = n / 2 % 2, s->p.hard = n / 4 % 2;
    s->p.balance = n / 8 ? ATTN_BALANCE_CUMULATIVE : ATTN_BALANCE_DEFAULT;
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, s->q.len, 7);
    promise_run(&s->does);
    test_copy(first, s->o);
    const int64_t at = 3 * x.block; /* block 3 and later ones change, and what they are made of */
    test_fill(test_rows(s->q, at, s->q.len - at), &rng, test_normal);
    test_fill(test_rows(s->k, at, s->q.len - at), &rng, test_normal);
    test_fill(test_rows(s->v, at, s->q.len - at), &rng, test_normal);
    if (s->p.x.data) test_fill(test_rows(s->p.x, at, s->q.len - at), &rng, test_normal);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, at), test_rows(first, 0, at), "earlier blocks");
    assert_false(test_same(test_rows(s->o, at, 1), test_rows(first, at, 1)));
  }
  shape x = plain(8, 64);
  scene *s = build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(call(s, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.pairs, 2 * 512 * 128);
  s->p.hard = s->p.causal = 1;
  assert_int_equal(call(s, &ctx), ATTN_OK);
  assert_true(ctx.report.pairs <= 2 * 512 * (64 + 48));
}

/* Nor do later tokens that are not finite; in reach they show. */
void D5_causal_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(5512);
  for (int n = 0; n < 64; n++, test_mem_release()) {
    shape x = plain(8, n % 3 ? 6 : 40);
    if (n / 32) x.type[1] = x.type[2] = ATTN_BF16;
    if (n % 5 == 4) x.dk = x.dv = 16;
    scene *s = build(&x, &rng);
    s->p.causal = 1, s->p.diag = n % 2, s->p.hard = n / 2 % 2;
    s->p.combine = (attn_sinkhorn_combine)(n / 4 % 4);
    if (s->p.combine == ATTN_SINKHORN_MIXTURE) s->p.lse = absent();
    const int64_t at = test_range(&rng, 1, s->q.len - 1), rest = s->q.len - at;
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, s->q.len, x.dv);
    promise_run(&s->does);
    test_copy(first, s->o);
    const double bad = n % 7 ? (double)NAN : (double)INFINITY;
    if (n % 3 != 1) test_fill_value(test_rows(s->v, at, rest), bad);
    if (n % 3 != 2) test_fill_value(test_rows(s->k, at, rest), bad);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, at), test_rows(first, 0, at), "earlier rows");
    if (s->p.combine == ATTN_SINKHORN_SORTED || s->p.combine == ATTN_SINKHORN_SUM) continue;
    for (int64_t i = at; bad != bad && i < s->q.len; i++) {
      const double y = oracle_get(&s->o, 0, 1, i, 0);
      assert_true(y != y);
    }
  }
}

void D5_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(5508);
  for (int n = 0; n < 8; n++) { /* a P of zeros: no sorted keys anywhere */
    shape x = plain(3, 4);
    scene *s = build(&x, &rng);
    test_fill_value(s->sort, 0);
    s->p.hard = n % 2, s->p.combine = (attn_sinkhorn_combine)(n / 2);
    if (s->p.combine == ATTN_SINKHORN_MIXTURE) s->p.lse = absent();
    run(s, 1e-6, "P of zeros");
    for (int64_t i = 0; s->p.lse.data && n > 1 && i < 12; i++) {
      assert_true(oracle_get(&s->o, 0, 1, i, 0) == 0);
      assert_true(oracle_get(&s->p.lse, 0, 1, i, 0) == -(double)INFINITY);
    }
    if (n > 3) continue;
    s->cut = 1, s->p.cut = 2, s->p.local = n / 2, s->p.combine = ATTN_SINKHORN_CONCAT;
    run(s, 1e-6, "P of zeros, cut");
  }
  for (int n = 0; n < 2; n++) { /* no batch, no rows */
    shape x = plain(3, 4);
    scene *s = build(&x, &rng);
    if (n == 0) s->q.batch = s->k.batch = s->v.batch = s->o.batch = s->p.lse.batch = 0;
    if (n == 1) s->q.len = s->k.len = s->v.len = s->o.len = s->p.lse.len = 0;
    s->sort.batch = 1, s->sort.stride_batch = 0;
    promise_run(&s->does);
    assert_int_equal(ask(s, NULL), 0);
  }
}

/* NaN anywhere ends the call all the same, and no index is made of it. */
void D5_not_finite(void **state) {
  (void)state;
  test_rng rng = test_seed(5509);
  for (int n = 0; n < 24; n++) {
    shape x = plain(4, 5);
    x.from = n % 3;
    scene *s = build(&x, &rng);
    const double bad = n / 12 ? (double)INFINITY : (double)NAN;
    s->p.hard = n % 2, s->cut = n / 6 % 2, s->p.cut = 3;
    s->p.balance = (attn_sinkhorn_balancing)(n % 4);
    if (x.from == GIVEN) test_fill_row(s->sort, 0, 0, 1, bad);
    if (x.from == LOGITS) test_fill_row(s->p.logits, 0, 0, 1, bad);
    test_fill_row(s->k, 0, 0, 7, bad);
    test_fill_row(s->v, 0, 1, 3, bad);
    promise_run(&s->does);
  }
}

void D5_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(5510);
  for (int n = 0; n < 8; n++) {
    shape x = plain(n % 2 ? 15 : 3, n % 2 ? 6 : 80);
    x.batch = 2, x.from = n % 3, x.type[3] = ATTN_F16;
    if (n / 4) x.type[1] = x.type[2] = ATTN_BF16;
    scene *s = build(&x, &rng);
    s->p.hard = n / 2 % 2, s->cut = n > 5, s->p.cut = 2, s->p.local = n % 2;
    promise_keep(&s->does);
    s->p.combine = ATTN_SINKHORN_MIXTURE, s->p.lse = absent(), s->cut = 0;
    promise_keep(&s->does);
  }
}

void D5_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(5511);
  for (int n = 0; n < 52; n++, test_mem_release()) {
    shape x = plain(4, 3);
    x.from = n < 20 ? GIVEN : n < 32 ? LOGITS : NETWORK;
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    int32_t choice[8] = {0, 1, 2, 3, 3, 2, 1, 0};
    switch (n) {
      case 0: s->p.block = 0, word = "block"; break;
      case 1: s->p.block = -3, word = "block"; break;
      case 2: s->p.block = 5, word = "block"; break;
      case 3: s->sort.dim = 3, word = "sort"; break;
      case 4: s->sort.len = 3, word = "sort"; break;
      case 5: s->sort.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "sort"; break;
      case 6: s->q.len = s->o.len = s->p.lse.len = 11, word = "q.len"; break;
      case 7: s->cut = 1, want = ATTN_E_RANGE, word = "cut"; break;
      case 8: s->cut = 1, s->p.cut = 5, want = ATTN_E_RANGE, word = "cut"; break;
      case 9: s->cut = s->p.causal = 1, s->p.cut = 1, want = ATTN_E_RANGE, word = "causal"; break;
      case 10:
        s->cut = s->p.local = 1, s->p.cut = 1, s->q.len = s->o.len = s->p.lse.len = 11;
        word = "local";
        break;
      case 11: s->p.combine = ATTN_SINKHORN_MIXTURE, want = ATTN_E_RANGE, word = "lse"; break;
      case 12:
        s->p.combine = (attn_sinkhorn_combine)4, want = ATTN_E_RANGE, word = "combine";
        break;
      case 13: s->p.alpha_local = (float)NAN, want = ATTN_E_VALUE, word = "alpha"; break;
      case 14: s->p.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 15:
        s->sort = s->o, s->sort.len = s->sort.dim = 4, want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 16: s->p.hard = 1, s->p.choice = choice, want = ATTN_E_RANGE, word = "choice"; break;
      case 17: s->k.heads = 3, s->k.stride_head = 0, want = ATTN_E_HEADS, word = "k must"; break;
      case 18: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o"; break;
      case 19:
        s->cut = 1, s->p.cut = 1, s->p.combine = ATTN_SINKHORN_SUM;
        want = ATTN_E_RANGE, word = "combine";
        break;
      case 20: s->p.logits.dim = 3, word = "logits"; break;
      case 21: s->p.tau = -1, want = ATTN_E_VALUE, word = "tau"; break;
      case 22: s->p.tau = ATTN_ZERO, want = ATTN_E_VALUE, word = "tau"; break;
      case 23: s->p.tau = (float)NAN, want = ATTN_E_VALUE, word = "tau"; break;
      case 24: s->p.iterations = -1, word = "iterations"; break;
      case 25:
        s->p.balance = (attn_sinkhorn_balancing)4, want = ATTN_E_RANGE, word = "balance";
        break;
      case 26:
        s->p.noise = s->p.logits, s->p.gumbel = 1;
        want = ATTN_E_RANGE, word = "noise";
        break;
      case 27: s->p.noise = s->p.logits, s->p.noise.len = 3, word = "noise"; break;
      case 28:
        s->p.hard = 1, s->p.choice = choice, choice[5] = 4;
        want = ATTN_E_INDEX, word = "choice";
        break;
      case 29:
        s->p.hard = 1, s->p.choice = choice, choice[5] = -2;
        want = ATTN_E_INDEX, word = "choice";
        break;
      case 30:
        s->p.hard = s->p.causal = s->p.diag = 1, s->p.choice = choice;
        want = ATTN_E_INDEX, word = "choice";
        break;
      case 31: s->p.logits.heads = 3, s->p.logits.stride_head = 0, word = "logits"; break;
      case 32: s->p.w_1.data = NULL, want = ATTN_E_NULL, word = "w_1"; break;
      case 33: s->p.w_1.len++, word = "w_1"; break;
      case 34: s->p.w_2.dim--, word = "w_2"; break;
      case 35: s->p.w_2.len++, word = "w_2"; break;
      case 36:
        s->p.b_1 = s->p.w_2, s->p.b_1.dim = s->p.w_1.dim, s->p.b_1.len = 2, word = "b_1";
        break;
      case 37: s->p.b_2 = s->p.w_2, s->p.b_2.dim = 3, s->p.b_2.len = 1, word = "b_2"; break;
      case 38: s->p.x = s->q, s->p.x.len = 11, word = "params.x"; break;
      case 39: s->q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 40: s->v.len = 11, word = "v must"; break;
      case 41: s->o.dim = 6, word = "o must"; break;
      case 42: s->p.lse.dim = 2, s->p.lse.stride_len = 2, word = "lse"; break;
      case 43: s->p.lse.dtype = ATTN_BF16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 45:
        s->p.null_k = test_rows(s->q, 0, 1), want = ATTN_E_NULL, word = "params.null_v";
        break;
      case 46:
        s->p.null_v = test_rows(s->v, 0, 1), want = ATTN_E_NULL, word = "params.null_k";
        break;
      case 47: null_block(s, &rng), s->p.null_k.len = 2, word = "params.null_k must"; break;
      case 48: null_block(s, &rng), s->p.null_v.dim = 6, word = "params.null_v must"; break;
      case 49:
        null_block(s, &rng), s->p.null_v.data = s->o.data, want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 50:
        null_block(s, &rng), s->cut = 1, s->p.cut = 1, want = ATTN_E_RANGE, word = "null_k";
        break;
      case 44: s->q.dim = 4, word = "k must"; break;
      default: s->k.dtype = (attn_dtype)9, want = ATTN_E_DTYPE, word = "k.dtype"; break;
    }
    promise_reject(&s->does, want, word);
  }
  /* the stages */
  attn_tensor a = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 4, 4), b = a;
  attn_tensor r = drawn(ATTN_F32, TEST_BHTD, 1, 2, 4, 4, 1, &rng);
  attn_sinkhorn_params p;
  attn_ctx ctx = test_ctx();
  int32_t choice[8];
  memset(&p, 0, sizeof p);
  assert_int_equal(attn_sinkhorn_blocks(a, r, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_sinkhorn_blocks(a, r, &p, &ctx), ATTN_E_SHAPE);
  p.block = 2;
  assert_int_equal(attn_sinkhorn_blocks(a, r, &p, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_sinkhorn_logits(a, r, &p, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_sinkhorn_balance(r, r, &p, &ctx), ATTN_E_OVERLAP);
  b.dim = 3;
  assert_int_equal(attn_sinkhorn_balance(b, r, &p, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_sinkhorn_choose(choice, b, &p, &ctx), ATTN_E_SHAPE);
  b.len = 1; /* one block wants one column */
  assert_int_equal(attn_sinkhorn_choose(choice, b, &p, &ctx), ATTN_E_SHAPE);
  b.len = a.len;
  assert_int_equal(attn_sinkhorn_choose(NULL, a, &p, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "choice"));
  b = a, b.dtype = ATTN_F16;
  assert_int_equal(attn_sinkhorn_balance(b, r, &p, &ctx), ATTN_E_DTYPE);
  ctx.isa = (attn_isa)77;
  assert_int_equal(attn_sinkhorn_choose(choice, a, &p, &ctx), ATTN_E_ISA);
}
