/* tests/test_shift.c owns a promise of every softmax: what all logits of a row have in common changes nothing. The
 * logits and what is added are such that their sums are exact, so results must be the same bits. */

#include "compound.h"

enum { N = 70, ROWS = 3 };

/* Logits of a case, ROWS rows of N. */
static attn_tensor logits_of(double shift) {
  test_rng rng = test_seed(5100);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, ROWS, N);
  for (int64_t i = 0; i < ROWS; i++) {
    for (int64_t c = 0; c < N; c++) oracle_set(&x, 0, 0, i, c, shift + 4 * test_exact(&rng));
  }
  return x;
}

/* The first row of them, as a bias, and its product with nothing. */
static attn_tensor first(double shift) { return test_rows(logits_of(shift), 0, 1); }
static attn_tensor zeros(int64_t len, int64_t dim) {
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, dim);
  test_fill_value(x, 0);
  return x;
}
static attn_tensor room(int64_t len, int64_t dim) {
  return test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, dim);
}
static attn_tensor values(int64_t len, int64_t dim) {
  test_rng rng = test_seed(5101);
  return drawn(ATTN_F32, TEST_BHTD, 1, 1, len, dim, 1, &rng);
}

static attn_tensor confidence(double shift, attn_ctx *ctx) {
  attn_tensor y = room(ROWS, 1);
  assert_int_equal(attn_confidence(y, logits_of(shift), NULL, ctx), ATTN_OK);
  return y;
}

static attn_tensor exits(double shift, attn_ctx *ctx) {
  attn_exits_params p = {.kind = ATTN_EXIT_MULTINOMIAL, .layers = N};
  attn_tensor q = room(ROWS, N);
  p.w = zeros(2, N), p.bias = first(shift);
  assert_int_equal(attn_exits(NULL, q, values(ROWS, 2), &p, ctx), ATTN_OK);
  return q;
}

static attn_tensor gate(double shift, attn_ctx *ctx) {
  attn_mixture_params p = {.temperature = 0.7f};
  attn_tensor pi = room(ROWS, N);
  p.bias = first(shift);
  assert_int_equal(attn_gate(pi, values(ROWS, 2), zeros(2, N), &p, ctx), ATTN_OK);
  return pi;
}

static attn_tensor choose(double shift, attn_ctx *ctx) {
  attn_tensor y = room(ROWS, 1);
  int32_t choice[ROWS];
  static const double u[ROWS] = {0.3, 0.5, 0.9};
  assert_int_equal(attn_choose(choice, y.data, logits_of(shift), NULL, u, NULL, ctx), ATTN_OK);
  return y;
}

static attn_tensor pool(double shift, attn_ctx *ctx) {
  attn_pool_params p = {.kind = ATTN_POOL_DYNAMIC, .kernel = N};
  attn_tensor y = room(2, 5);
  p.w = zeros(5, N), p.bias = first(shift);
  assert_int_equal(attn_pool(y, values(2 * N, 5), &p, ctx), ATTN_OK);
  return y;
}

static attn_tensor balance(double shift, attn_ctx *ctx) {
  attn_sinkhorn_params p = {.block = 1};
  attn_tensor y = room(ROWS, ROWS), r = logits_of(shift);
  r.dim = ROWS;
  assert_int_equal(attn_sinkhorn_balance(y, r, &p, ctx), ATTN_OK);
  return y;
}

/* Scores of a retrieved vector and logits of a word: a column in which all keys agree. */
static attn_tensor keyed(double shift) {
  test_rng rng = test_seed(5102);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, N, 4);
  for (int64_t i = 0; i < N; i++) {
    oracle_set(&y, 0, 0, i, 0, shift);
    for (int64_t c = 1; c < 4; c++) oracle_set(&y, 0, 0, i, c, 4 * test_exact(&rng));
  }
  return y;
}

static attn_tensor words(double shift, attn_ctx *ctx) {
  attn_spalm_params p = {0};
  attn_tensor h = room(ROWS, 4);
  test_fill_value(h, 1);
  p.emb = keyed(shift), p.log_p = room(ROWS, N);
  attn_tensor none = h;
  none.heads = ROWS, none.len = 0;
  assert_int_equal(attn_spalm(room(ROWS, 4), h, none, &p, ctx), ATTN_OK);
  return p.log_p;
}

static attn_tensor recalled(double shift, attn_ctx *ctx) {
  attn_memorizing_params p = {.k = N, .raw = 1};
  attn_tensor o = room(1, 3), q = room(1, 4);
  attn_kv_memory memory = {keyed(shift), values(N, 3), N, 0};
  test_fill_value(q, 2);
  assert_int_equal(attn_memorizing(o, q, zeros(1, 4), zeros(1, 3), &memory, &p, ctx), ATTN_OK);
  return o;
}

static attn_tensor merge(double shift, attn_ctx *ctx) {
  attn_tensor o = room(ROWS, 3), one = logits_of(shift), two = one;
  one.dim = two.dim = 1;
  two.data = (float *)one.data + 1;
  assert_int_equal(attn_merge(o, absent(), values(ROWS, 3), one, values(ROWS, 3), two, ctx),
                   ATTN_OK);
  return o;
}

void api_shift_changes_no_softmax(void **state) {
  (void)state;
  static const struct {
    const char *what;
    attn_tensor (*run)(double shift, attn_ctx *ctx);
  } all[] = {{"confidence", confidence}, {"exits", exits},       {"gate", gate},
             {"choose", choose},         {"pool", pool},         {"balance", balance},
             {"words", words},           {"recalled", recalled}, {"merge", merge}};
  static const double shifts[] = {1024, -4096, 65536};
  for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
    for (int k = 0; k < 3; k++) {
      attn_ctx ctx = test_ctx();
      attn_tensor plain = all[n].run(0, &ctx), moved = all[n].run(shifts[k], &ctx);
      test_assert_same(moved, plain, all[n].what);
    }
  }
}
