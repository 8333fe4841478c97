/* tests/families/content/test_pointer.c owns the step of the LSTM, the logits and the choice of nodes, against float64. */

#include "sac.h"

/* ---- the step -------------------------------------------------------------------------------*/

typedef struct cell {
  attn_tensor h_next, c_next, x, h, c;
  attn_lstm_params p;
  promise does;
} cell;

static attn_status cell_call(void *at, attn_ctx *ctx) {
  cell *s = at;
  return attn_lstm_step(s->h_next, s->c_next, s->x, s->h, s->c, &s->p, ctx);
}
static size_t cell_ask(void *at, const attn_ctx *ctx) {
  cell *s = at;
  return attn_lstm_step_workspace(s->h_next, s->c_next, s->x, s->h, s->c, &s->p, ctx);
}

static cell *cell_of(int64_t b, int64_t h, int64_t n, int64_t dx, int64_t dh, test_rng *rng) {
  cell *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(sac_type(rng), TEST_PADDED, b, h, n, dx, 1, rng);
  s->h = drawn(sac_type(rng), TEST_NEGATIVE, b, h, n, dh, 1, rng);
  s->c = drawn(ATTN_F32, TEST_BTHD, b, h, n, dh, 1, rng);
  s->p.w_ih = drawn(sac_type(rng), TEST_PADDED, 1, h, 4 * dh, dx, 0.5, rng);
  s->p.w_hh = drawn(ATTN_F32, TEST_NEGATIVE, 1, 1, 4 * dh, dh, 0.5, rng);
  s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 4 * dh, 0.5, rng);
  s->h_next = output(ATTN_F32, TEST_PADDED, b, h, n, dh, &s->does.block[0]);
  s->c_next = output(ATTN_F32, TEST_BHTD, b, h, n, dh, &s->does.block[1]);
  s->does.call = cell_call, s->does.ask = cell_ask, s->does.scene = s;
  s->does.out[0] = &s->h_next, s->does.out[1] = &s->c_next;
  return s;
}

void D4_lstm(void **state) {
  (void)state;
  test_rng rng = test_seed(4400);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 2);
    const int64_t rows = test_range(&rng, 1, 3), dx = test_range(&rng, 1, n % 4 ? 20 : 70);
    const int64_t dh = test_range(&rng, 1, n % 5 ? 12 : 40);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : TEST_HEAP;
    cell *s = cell_of(b, heads, rows, dx, dh, &rng);
    test_where = TEST_HEAP;
    if (n % 4 == 1) s->p.bias = absent();
    if (n % 5 == 1) s->h = absent();
    if (n % 5 == 2) s->c = absent();
    promise_run(&s->does);
    cube h = cube_of(b, heads, rows, dh), c = cube_of(b, heads, rows, dh), x = cube_from(&s->x);
    memset(h.data, 0, (size_t)(b * heads * rows * dh) * sizeof(double));
    memset(c.data, 0, (size_t)(b * heads * rows * dh) * sizeof(double));
    if (s->h.data) h = cube_from(&s->h);
    if (s->c.data) c = cube_from(&s->c);
    for (int64_t u = 0; u < b * heads * rows; u++) {
      const int64_t ub = u / rows / heads, uh = u / rows % heads, i = u % rows;
      sac_step(&s->p, uh, cube_at(&x, ub, uh, i), cube_at(&h, ub, uh, i), cube_at(&c, ub, uh, i));
    }
    cube_check(&h, &s->h_next, 3e-6, "h");
    cube_check(&c, &s->c_next, 3e-6, "c");
    if (!s->h.data || !s->c.data || s->h.dtype != ATTN_F32) continue;
    attn_tensor h2 = test_tensor(ATTN_F32, TEST_BHTD, b, heads, rows, dh), c2 = s->c_next;
    attn_ctx ctx = test_ctx(); /* in place */
    test_copy(h2, s->h);
    c2 = test_tensor(ATTN_F32, TEST_BHTD, b, heads, rows, dh);
    test_copy(c2, s->c);
    assert_int_equal(attn_lstm_step(h2, c2, s->x, h2, c2, &s->p, &ctx), ATTN_OK);
    test_assert_same(h2, s->h_next, "in place");
    test_assert_same(c2, s->c_next, "in place");
  }
}

/* The input gate shut and the forget gate open: c stays as it is. */
void D4_lstm_gates(void **state) {
  (void)state;
  test_rng rng = test_seed(4401);
  cell *s = cell_of(1, 1, 2, 6, 5, &rng);
  for (int64_t k = 0; k < 20; k++)
    oracle_set(&s->p.bias, 0, 0, 0, k,
               k < 5    ? -200
               : k < 10 ? 200
                        : oracle_get(&s->p.bias, 0, 0, 0, k));
  promise_run(&s->does);
  attn_tensor c = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, 5);
  test_copy(c, s->c);
  test_assert_near(s->c_next, c, 1e-6, "c");
  promise_keep(&cell_of(2, 2, 3, 6, 5, &rng)->does);
  s = cell_of(1, 1, 2, 6, 5, &rng);
  s->x.len = s->h.len = s->c.len = s->h_next.len = s->c_next.len = 0;
  promise_run(&s->does);
  for (int n = 0; n < 10; n++) {
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    s = cell_of(1, 2, 2, 6, 5, &rng);
    switch (n) {
      case 0: s->p.w_ih.len = 16, word = "w_ih"; break;
      case 1: s->p.w_ih.dim = 5, word = "w_ih"; break;
      case 2: s->p.w_hh.len = 19, word = "w_hh"; break;
      case 3: s->p.w_hh.dim = 4, word = "w_hh"; break;
      case 4: s->p.bias.dim = 19, word = "params.b"; break;
      case 5: s->h.dim = 4, word = "h must"; break;
      case 6: s->c.len = 1, word = "c must"; break;
      case 7: s->c_next.dim = 4, word = "c"; break;
      case 8: s->h_next = s->c_next, want = ATTN_E_OVERLAP, word = "output"; break;
      default: s->p.w_hh.data = NULL, want = ATTN_E_NULL, word = "w_hh"; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- pointing and choosing ------------------------------------------------------------------*/

void D4_pointer(void **state) {
  (void)state;
  test_rng rng = test_seed(4402);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 3);
    const int64_t nodes = test_range(&rng, 1, n % 4 ? 12 : 70), m = test_range(&rng, 1, 3);
    const int64_t de = test_range(&rng, 1, 20), dh = test_range(&rng, 1, 20);
    network x = sac_network(b, heads, nodes, de, dh, test_range(&rng, -1, 5), &rng);
    attn_tensor h = drawn(sac_type(&rng), TEST_PADDED, b, heads, m, dh, 1, &rng);
    attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, b, heads, m, nodes);
    int32_t *source = test_mem((size_t)(b * heads * m) * sizeof *source);
    for (int64_t i = 0; i < b * heads * m; i++) source[i] = (int32_t)test_range(&rng, 0, nodes - 1);
    if (n % 3 == 0) source = NULL;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_pointer_logits(y, h, x.e, source, &x.p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    cube want = cube_of(b, heads, m, nodes), in = cube_from(&h);
    for (int64_t u = 0; u < b * heads * m; u++) {
      const int64_t ub = u / m / heads, uh = u / m % heads;
      sac_point(cube_at(&want, ub, uh, u % m), &x.p, &x.e, ub, uh, cube_at(&in, ub, uh, u % m),
                source ? source[u] : -1);
    }
    cube_check(&want, &y, 1e-5, "logits");
    if (!source) continue;
    source[0] = (int32_t)nodes;
    assert_int_equal(attn_pointer_logits(y, h, x.e, source, &x.p, &ctx), ATTN_E_INDEX);
  }
}

void D4_choose(void **state) {
  (void)state;
  test_rng rng = test_seed(4403);
  for (int64_t n = test_count(60, 12); n-- > 0; test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 3);
    const int64_t nodes = test_range(&rng, 1, n % 4 ? 9 : 60), m = test_range(&rng, 1, 4);
    attn_tensor y = drawn(ATTN_F32, TEST_NEGATIVE, b, heads, m, nodes, 2, &rng);
    const int64_t rows = b * heads * m;
    int32_t *choice = test_mem((size_t)rows * sizeof *choice);
    float *log_p = test_mem((size_t)rows * sizeof *log_p);
    uint8_t *permitted = test_mem((size_t)(rows * nodes));
    double *u = test_mem((size_t)rows * sizeof *u);
    char *allowed = test_mem((size_t)nodes);
    attn_sac_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.sampled = n % 3 == 1, p.seed = (uint64_t)n;
    for (int64_t i = 0; i < rows; i++) {
      u[i] = (double)test_range(&rng, 1, 999) / 1000;
      for (int64_t t = 0; t < nodes; t++)
        permitted[i * nodes + t] = (uint8_t)(3 * test_range(&rng, 0, 1));
      permitted[i * nodes + test_range(&rng, 0, nodes - 1)] = 1;
    }
    if (n % 5 == 0) permitted = NULL;
    if (n % 3 != 2) u = NULL;
    assert_int_equal(attn_choose(choice, log_p, y, permitted, u, &p, &ctx), ATTN_OK);
    for (int64_t i = 0; i < rows; i++) {
      double row[70];
      for (int64_t t = 0; t < nodes; t++) {
        row[t] = oracle_get(&y, i / m / heads, i / m % heads, i % m, t);
        allowed[t] = !permitted || permitted[i * nodes + t];
      }
      sac_judge(row, allowed, nodes,
                u           ? u[i]
                : p.sampled ? sac_uniform(p.seed, i / m % heads, i % m)
                            : -1,
                choice[i], (double)log_p[i], "choice");
    }
    if (!permitted) continue;
    memset(permitted, 0, (size_t)nodes);
    assert_int_equal(attn_choose(choice, log_p, y, permitted, u, &p, &ctx), ATTN_E_VALUE);
    assert_non_null(strstr(ctx.reason, "permitted"));
  }
  /* ties go to the lowest, NaN to nobody, u must lie inside */
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 5);
  const double row[5] = {(double)NAN, 1, 3, 3, (double)NAN};
  const uint8_t ends[5] = {1, 0, 0, 0, 1};
  int32_t choice[1] = {-7};
  double u[1] = {1};
  attn_ctx ctx = test_ctx();
  for (int64_t t = 0; t < 5; t++) oracle_set(&y, 0, 0, 0, t, row[t]);
  assert_int_equal(attn_choose(choice, NULL, y, NULL, NULL, NULL, &ctx), ATTN_OK);
  assert_int_equal(choice[0], 2);
  assert_int_equal(attn_choose(choice, NULL, y, ends, NULL, NULL, &ctx), ATTN_OK);
  assert_int_equal(choice[0], 0);
  assert_int_equal(attn_choose(choice, NULL, y, NULL, u, NULL, &ctx), ATTN_E_VALUE);
  /* of a probability that is none: the one NaN */
  for (int n = 0; n < 3; n++) {
    float log_p[1] = {7};
    uint32_t bits;
    if (n) test_fill_value(y, n == 1 ? (double)INFINITY : -(double)INFINITY);
    assert_int_equal(attn_choose(choice, log_p, y, NULL, NULL, NULL, &ctx), ATTN_OK);
    memcpy(&bits, log_p, sizeof bits);
    assert_int_equal(bits, 0x7fc00000u);
  }
  u[0] = 0.4;
  assert_int_equal(attn_choose(choice, NULL, y, ends, u, NULL, &ctx), ATTN_OK);
  assert_true(choice[0] == 0 || choice[0] == 4);
  assert_int_equal(attn_choose(NULL, NULL, y, NULL, NULL, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_choose((int32_t *)y.data, NULL, y, NULL, NULL, NULL, &ctx), ATTN_E_OVERLAP);
}
