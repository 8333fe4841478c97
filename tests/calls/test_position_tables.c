/* tests/calls/test_position_tables.c owns the encodings that are added to token vectors: B1 sinusoids,
 * B2 learned positions, B9 the signal of the Universal Transformer; and B8's buckets. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

static const attn_tensor none; /* an absent tensor */

/* PE(p, c) of width d, from the formula of each layout. */
static double encoding(attn_sinusoid_layout layout, int64_t d, double base, double p, int64_t c) {
  int64_t m = c / 2, s = (d + 1) / 2;
  int sine = c % 2 == 0;
  double power = 2.0 * (double)m / (double)d;
  if (layout == ATTN_SINUSOID_HALVES) {
    sine = c < s;
    m = sine ? c : c - s;
    power = 2.0 * (double)m / (double)d;
  }
  if (layout == ATTN_SINUSOID_T2T) {
    s = d / 2;
    if (c == 2 * s) return 0;
    sine = c < s;
    m = sine ? c : c - s;
    power = (double)m / (double)(s > 2 ? s - 1 : 1);
  }
  long double angle = (long double)p * powl((long double)base, -(long double)power);
  return (double)(sine ? sinl(angle) : cosl(angle));
}

static attn_sinusoid_params plain(void) {
  attn_sinusoid_params p;
  memset(&p, 0, sizeof p);
  return p;
}

static void sinusoid_ok(attn_tensor y, attn_tensor x, const attn_sinusoid_params *p) {
  attn_ctx ctx = test_ctx();
  if (attn_sinusoid(y, x, p, &ctx) != ATTN_OK) fail_msg("attn_sinusoid: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
}

static void signal_ok(attn_tensor y, attn_tensor x, const attn_universal_signal_params *p) {
  attn_ctx ctx = test_ctx();
  if (attn_universal_signal(y, x, p, &ctx) != ATTN_OK) {
    fail_msg("attn_universal_signal: %s", ctx.reason);
  }
  assert_int_equal(ctx.report.isa, test_isa);
}

static void learned_ok(attn_tensor y, attn_tensor x, attn_tensor table,
                       const attn_learned_params *p) {
  attn_ctx ctx = test_ctx();
  if (attn_learned_position(y, x, table, p, &ctx) != ATTN_OK) {
    fail_msg("attn_learned_position: %s", ctx.reason);
  }
  assert_int_equal(ctx.report.isa, test_isa);
}

static double half_unit(attn_dtype type, double x) {
  return type == ATTN_F16    ? fabs(x) * 4.9e-4 + 3e-8
         : type == ATTN_BF16 ? fabs(x) * 3.92e-3
                             : fabs(x) * 1.2e-7;
}

/* Every element of y against the formula; step null = B1. */
static void compare(attn_tensor y, attn_tensor x, const attn_sinusoid_params *p,
                    const int64_t *step, double tolerance) {
  double base = p->base > 0 ? p->base : 10000, scale = (double)p->x_scale;
  if (p->x_scale == 0 && !signbit(p->x_scale)) scale = 1;
  for (int64_t b = 0; b < y.batch; b++) {
    for (int64_t i = 0; i < y.len; i++) {
      double at = (double)(p->start + i);
      const int64_t place = p->positions_per_batch ? b * y.len + i : i;
      if (p->positions) at = (double)p->positions[place];
      if (p->real_positions) at = p->real_positions[place];
      for (int64_t c = 0; c < y.dim; c++) {
        double pe = encoding(p->layout, y.dim, base, at, c);
        if (step) pe += encoding(p->layout, y.dim, base, (double)*step, c);
        for (int64_t h = 0; h < y.heads; h++) {
          double want = pe + (x.data ? scale * oracle_get(&x, b, h, i, c) : 0);
          double got = oracle_get(&y, b, h, i, c);
          if (fabs(got - want) <= tolerance + half_unit(y.dtype, want)) continue;
          fail_msg("layout %d, position %.12g, column %d of %d: %.9g, not %.9g", (int)p->layout, at,
                   (int)c, (int)y.dim, got, want);
        }
      }
    }
  }
}

void B1_random_tables(void **state) {
  (void)state;
  test_rng rng = test_seed(800);
  for (int64_t n = test_count(90, 30); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 40), d = test_range(&rng, 1, 90), b = 2, h = 1 + n % 2;
    attn_tensor x = test_tensor((attn_dtype)(n % 3), (test_layout)(n % TEST_LAYOUTS), b, h, t, d);
    attn_tensor y = test_tensor((attn_dtype)(n / 3 % 3), (test_layout)(n % 4), b, h, t, d);
    attn_sinusoid_params p = plain();
    double *positions = test_mem((size_t)(b * t) * sizeof *positions);
    int64_t *whole = test_mem((size_t)(b * t) * sizeof *whole);
    test_fill(x, &rng, test_normal);
    for (int64_t i = 0; i < b * t; i++) {
      whole[i] = test_range(&rng, -100000, 100000);
      positions[i] = (double)whole[i] / (n & 8 ? 1 : 7);
    }
    p.layout = (attn_sinusoid_layout)(n / 2 % 3);
    p.start = test_range(&rng, -1000, 1000);
    p.base = n % 5 ? 0 : 333;
    p.x_scale = n % 3 ? 0 : 7.5f;
    if (n % 4 >= 2 && n % 3) p.real_positions = positions;
    if (n % 4 >= 2 && n % 3 == 0) p.positions = whole;
    p.positions_per_batch = n % 4 == 3;
    if (n % 7 == 0) x = none;
    sinusoid_ok(y, x, &p);
    compare(y, x, &p, NULL, 1e-6);
  }
}

void B1_every_width(void **state) {
  (void)state;
  for (int layout = 0; layout < 3; layout++) {
    for (int64_t d = 1; d <= 70; d++) {
      attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 19, d);
      attn_sinusoid_params p = plain();
      p.layout = (attn_sinusoid_layout)layout;
      p.start = -9;
      sinusoid_ok(y, none, &p);
      compare(y, none, &p, NULL, 5e-7);
    }
  }
}

/* A float32 angle would be wrong by 0.03 here. */
void B1_far_positions(void **state) {
  (void)state;
  static const int64_t starts[] = {99990, 999983, -1000001, 123456789};
  for (int n = 0; n < 8; n++) {
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 33, 64);
    attn_sinusoid_params p = plain();
    double positions[33];
    p.start = starts[n % 4];
    for (int i = 0; i < 33; i++) positions[i] = (double)p.start + i * 0.5;
    if (n >= 4) p.real_positions = positions;
    sinusoid_ok(y, none, &p);
    compare(y, none, &p, NULL, 1e-6);
  }
}

void B1_position_zero(void **state) {
  (void)state;
  for (int layout = 0; layout < 2; layout++) {
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 37);
    attn_sinusoid_params p = plain();
    p.layout = (attn_sinusoid_layout)layout;
    sinusoid_ok(y, none, &p);
    for (int64_t c = 0; c < 37; c++) {
      int sine = layout ? c < 19 : c % 2 == 0;
      assert_true(oracle_get(&y, 0, 0, 0, c) == (sine ? 0 : 1));
    }
  }
}

/* |PE(p)|^2 = d/2, and PE(p).PE(q) depends on p - q alone. */
void B1_norm_and_products(void **state) {
  (void)state;
  enum { D = 48, T = 40 };
  for (int layout = 0; layout < 2; layout++) {
    double products[2][T];
    for (int n = 0; n < 2; n++) {
      attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
      attn_sinusoid_params p = plain();
      p.layout = (attn_sinusoid_layout)layout;
      p.start = n * 54321;
      sinusoid_ok(y, none, &p);
      for (int64_t i = 0; i < T; i++) {
        products[n][i] = 0;
        for (int64_t c = 0; c < D; c++) {
          products[n][i] += oracle_get(&y, 0, 0, 0, c) * oracle_get(&y, 0, 0, i, c);
        }
      }
      assert_true(fabs(products[n][0] - D / 2) < 1e-5);
    }
    for (int i = 0; i < T; i++) assert_true(fabs(products[0][i] - products[1][i]) < 2e-5);
  }
}

/* halves is a permutation of the columns of interleaved, bit for bit. */
void B1_layouts_agree(void **state) {
  (void)state;
  for (int64_t d = 23; d <= 24; d++) {
    attn_tensor a = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 50, d);
    attn_tensor b = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 50, d);
    attn_sinusoid_params p = plain();
    sinusoid_ok(a, none, &p);
    p.layout = ATTN_SINUSOID_HALVES;
    sinusoid_ok(b, none, &p);
    for (int64_t i = 0; i < 50; i++) {
      for (int64_t c = 0; c < d; c++) {
        assert_true(oracle_get(&a, 0, 0, i, c) ==
                    oracle_get(&b, 0, 0, i, c / 2 + c % 2 * ((d + 1) / 2)));
      }
    }
  }
}

/* A row depends on its position alone: not on the start, the list, the batch or the workers. */
void B1_bits_by_position(void **state) {
  (void)state;
  enum { T = 75, D = 41 };
  for (int form = 0; form < 6; form++) {
    attn_tensor all = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), y;
    attn_sinusoid_params p = plain();
    double positions[2 * T];
    int64_t whole[2 * T];
    p.start = -30;
    sinusoid_ok(all, none, &p);
    if (form == 0) {
      for (int64_t i = 0; i < T; i += 13) {
        p.start = i - 30;
        y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, D);
        sinusoid_ok(y, none, &p);
        test_assert_same(y, test_rows(all, i, 1), "one row");
      }
      continue;
    }
    for (int i = 0; i < 2 * T; i++) positions[i] = (double)(whole[i] = i % T - 30);
    if (form >= 2 && form < 4) p.positions = whole;
    if (form >= 4) p.real_positions = positions;
    p.positions_per_batch = form % 2;
    y = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
    attn_ctx ctx = test_ctx();
    ctx.parallel_for = test_parallel_threads;
    ctx.workers = 3;
    assert_int_equal(attn_sinusoid(y, none, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.workers, 3);
    for (int64_t b = 0; b < 2; b++) {
      for (int64_t h = 0; h < 2; h++) test_assert_same(test_one(y, b, 1, h, 1), all, "form");
    }
  }
}

void B1_in_place(void **state) {
  (void)state;
  for (int type = 0; type < 3; type++) {
    test_rng rng = test_seed(801);
    attn_tensor x = test_tensor((attn_dtype)type, TEST_PADDED, 2, 2, 37, 29);
    attn_tensor y = test_tensor((attn_dtype)type, TEST_PADDED, 2, 2, 37, 29);
    attn_sinusoid_params p = plain();
    test_fill(x, &rng, test_normal);
    p.start = 4;
    p.x_scale = 3;
    sinusoid_ok(y, x, &p);
    sinusoid_ok(x, x, &p);
    test_assert_same(x, y, "in place");
  }
}

void B1_x_scale(void **state) {
  (void)state;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 18);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 18);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 18);
  attn_sinusoid_params p = plain();
  test_fill_value(x, (double)NAN);
  p.x_scale = ATTN_ZERO;
  sinusoid_ok(y, x, &p);
  sinusoid_ok(z, none, NULL);
  test_assert_same(y, z, "x is not read");
}

void B1_nan_stays(void **state) {
  (void)state;
  test_rng rng = test_seed(802);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 18), y;
  y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 18);
  test_fill(x, &rng, test_normal);
  oracle_set(&x, 0, 0, 5, 7, (double)NAN);
  sinusoid_ok(y, x, NULL);
  for (int64_t i = 0; i < 20; i++) {
    for (int64_t c = 0; c < 18; c++) {
      assert_int_equal(isnan(oracle_get(&y, 0, 0, i, c)) != 0, i == 5 && c == 7);
    }
  }
}

void B1_empty(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, n != 0, n != 1, n == 2 ? 0 : 5, 8);
    attn_universal_signal_params p;
    memset(&p, 0, sizeof p);
    sinusoid_ok(y, none, NULL);
    signal_ok(y, none, &p);
    assert_int_equal(attn_sinusoid_workspace(y, none, NULL, NULL), 0);
  }
}

/* The bytes asked for are enough, and one byte less is not. */
void B1_workspace(void **state) {
  (void)state;
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 100, 33);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 100, 33);
  attn_universal_signal_params u;
  memset(&u, 0, sizeof u);
  u.step = 3;
  for (int n = 0; n < 2; n++) {
    for (int workers = 1; workers <= 4; workers += 3) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = test_parallel_backward;
      size_t size = n ? attn_universal_signal_workspace(y, none, &u, &ctx)
                      : attn_sinusoid_workspace(y, none, NULL, &ctx);
      assert_true(size > 0);
      ctx.workspace = (char *)test_mem(size + 1) + 1;
      ctx.workspace_size = size;
      int64_t calls = test_malloc_calls;
      assert_int_equal(
          n ? attn_universal_signal(y, none, &u, &ctx) : attn_sinusoid(y, none, NULL, &ctx),
          ATTN_OK);
      assert_int_equal(test_malloc_calls, calls);
      if (n) {
        signal_ok(z, none, &u);
      } else {
        sinusoid_ok(z, none, NULL);
      }
      test_assert_same(y, z, "workspace");
      ctx.workspace_size = size - 1;
      assert_int_equal(
          n ? attn_universal_signal(y, none, &u, &ctx) : attn_sinusoid(y, none, NULL, &ctx),
          ATTN_E_WORKSPACE);
    }
  }
}

/* Nothing outside the operands is touched: B1, B9 and B2. */
void B1_guard_pages(void **state) {
  (void)state;
  for (int place = TEST_BEFORE_GUARD; place <= TEST_AFTER_GUARD; place++) {
    for (int64_t n = 1; n < 40; n++) {
      test_rng rng = test_seed(803);
      test_where = (test_place)place;
      attn_tensor x = test_tensor((attn_dtype)(n % 3), TEST_BHTD, 1, 1, 17, n), y, table;
      y = test_tensor((attn_dtype)(n / 3 % 3), TEST_BHTD, 1, 1, 17, n);
      table = test_tensor((attn_dtype)(n / 9 % 3), TEST_BHTD, 1, 1, 17, n);
      double *positions = test_mem(17 * sizeof *positions);
      int64_t *ids = test_mem(17 * sizeof *ids);
      test_fill(x, &rng, test_normal);
      test_fill(table, &rng, test_normal);
      for (int i = 0; i < 17; i++) {
        positions[i] = (double)i * 1.5;
        ids[i] = 16 - i;
      }
      attn_universal_signal_params u;
      memset(&u, 0, sizeof u);
      u.position.layout = (attn_sinusoid_layout)(n % 3);
      u.position.real_positions = positions;
      attn_learned_params l;
      memset(&l, 0, sizeof l);
      l.positions = ids;
      sinusoid_ok(y, x, &u.position);
      signal_ok(y, x, &u);
      learned_ok(y, x, table, &l);
      test_mem_release();
    }
  }
}

static void untouched(const test_block *block) {
  for (size_t n = 0; n < block->size; n++) assert_int_equal(block->data[n], 0xA5);
}

void B1_rejects(void **state) {
  (void)state;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 6, 8), y;
  test_fill_value(x, 0);
  y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 6, 8);
  test_block block = test_last_block;
  double positions[12] = {0};
  int64_t whole[12] = {0};
  for (int n = 0; n < 19; n++) {
    attn_sinusoid_params p = plain();
    attn_tensor to = y, from = x;
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_VALUE;
    const char *word = "";
    memset(positions, 0, sizeof positions);
    switch (n) {
      case 0: to.data = NULL, want = ATTN_E_NULL, word = "y"; break;
      case 1: to.dim = from.dim = 0, want = ATTN_E_SHAPE, word = "y.dim"; break;
      case 2: from.len = 5, want = ATTN_E_SHAPE, word = "x"; break;
      case 3: p.base = -1, word = "base"; break;
      case 4: p.base = (double)NAN, word = "base"; break;
      case 5: p.base = HUGE_VAL, word = "base"; break;
      case 6: p.layout = (attn_sinusoid_layout)3, want = ATTN_E_RANGE, word = "layout"; break;
      case 7: p.start = INT64_MIN, want = ATTN_E_RANGE, word = "start"; break;
      case 8: p.x_scale = INFINITY, word = "x_scale"; break;
      case 9: p.real_positions = positions, positions[5] = (double)NAN, word = "real"; break;
      case 10:
        p.real_positions = positions, p.positions_per_batch = 1, positions[11] = HUGE_VAL;
        word = "real_positions";
        break;
      case 11: from = to, from.data = (float *)to.data + 8, want = ATTN_E_OVERLAP; break;
      case 12:
        to.data = positions, to.len = from.len = 1, to.batch = from.batch = 1;
        p.real_positions = positions, want = ATTN_E_OVERLAP, word = "positions";
        break;
      case 13: to.stride_len = 7, want = ATTN_E_STRIDE, word = "y"; break;
      case 14: to.dtype = ATTN_DTYPE_COUNT, want = ATTN_E_DTYPE, word = "y.dtype"; break;
      case 15:
        p.real_positions = (const double *)(const void *)((char *)positions + 1);
        want = ATTN_E_ALIGN, word = "real_positions";
        break;
      case 16:
        p.positions = (const int64_t *)(const void *)((char *)whole + 1);
        want = ATTN_E_ALIGN, word = "params.positions";
        break;
      case 17:
        p.positions = whole, p.real_positions = positions, want = ATTN_E_NULL, word = "exclude";
        break;
      default: ctx.workers = -1, want = ATTN_E_CTX, word = "workers";
    }
    attn_status got = attn_sinusoid(to, from, &p, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word)) {
      fail_msg("rule %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    }
    attn_universal_signal_params u;
    u.position = p;
    u.step = 1;
    assert_int_equal(attn_universal_signal(to, from, &u, &ctx), want);
    if (n != 12) untouched(&block);
  }
  attn_universal_signal_params u;
  memset(&u, 0, sizeof u);
  u.step = INT64_MAX;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_universal_signal(y, x, &u, &ctx), ATTN_E_RANGE);
  assert_true(strstr(ctx.reason, "step") != NULL);
  untouched(&block);
}

/* ---- B9 -------------------------------------------------------------------------------------*/

void B9_random_signals(void **state) {
  (void)state;
  test_rng rng = test_seed(810);
  for (int64_t n = test_count(40, 15); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 40), d = test_range(&rng, 1, 70);
    attn_tensor x = test_tensor((attn_dtype)(n % 3), (test_layout)(n % 4), 2, 1, t, d);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BTHD, 2, 1, t, d);
    attn_universal_signal_params p;
    memset(&p, 0, sizeof p);
    test_fill(x, &rng, test_normal);
    p.step = test_range(&rng, -3, 40);
    p.position.start = test_range(&rng, -50, 50);
    p.position.layout = (attn_sinusoid_layout)(n % 3);
    p.position.x_scale = n & 1 ? 2.0f : 0;
    if (n % 5 == 0) x = none;
    signal_ok(y, x, &p);
    compare(y, x, &p.position, &p.step, 2e-6);
  }
}

/* P^t(i) = P^i(t), and P^t - P^u is one row for all positions. */
void B9_symmetric_and_constant(void **state) {
  (void)state;
  enum { T = 24, D = 30 };
  attn_tensor signal[T];
  for (int t = 0; t < T; t++) {
    attn_universal_signal_params p;
    memset(&p, 0, sizeof p);
    p.step = t;
    signal[t] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    signal_ok(signal[t], none, &p);
  }
  for (int64_t t = 0; t < T; t++) {
    for (int64_t i = 0; i < T; i++) {
      test_assert_same(test_rows(signal[t], i, 1), test_rows(signal[i], t, 1), "exchanged");
      for (int64_t c = 0; c < D; c++) {
        double here = oracle_get(&signal[t], 0, 0, i, c) - oracle_get(&signal[3], 0, 0, i, c);
        double first = oracle_get(&signal[t], 0, 0, 0, c) - oracle_get(&signal[3], 0, 0, 0, c);
        assert_true(fabs(here - first) < 1e-6);
      }
    }
  }
}

/* Step 0 is not neutral: it adds 1 to every cosine. */
void B9_step_zero(void **state) {
  (void)state;
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, 12);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, 12);
  signal_ok(y, none, NULL);
  sinusoid_ok(z, none, NULL);
  for (int64_t i = 0; i < 9; i++) {
    for (int64_t c = 0; c < 12; c++) {
      double more = oracle_get(&y, 0, 0, i, c) - oracle_get(&z, 0, 0, i, c);
      assert_true(fabs(more - (double)(c % 2)) < 2e-7);
    }
  }
}

/* ---- B2 -------------------------------------------------------------------------------------*/

void B2_random_tables(void **state) {
  (void)state;
  test_rng rng = test_seed(820);
  for (int64_t n = test_count(60, 20); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 40), d = test_range(&rng, 1, 70);
    int64_t rows = t + test_range(&rng, 0, 9);
    attn_tensor x = test_tensor((attn_dtype)(n % 3), (test_layout)(n % TEST_LAYOUTS), 2, 2, t, d);
    attn_tensor y = test_tensor((attn_dtype)(n / 3 % 3), (test_layout)(n % 4), 2, 2, t, d);
    attn_tensor table = test_tensor((attn_dtype)(n / 9 % 3), (test_layout)(n % 4), 1, 1, rows, d);
    int64_t *ids = test_mem((size_t)(2 * t) * sizeof *ids);
    attn_learned_params p;
    memset(&p, 0, sizeof p);
    test_fill(x, &rng, test_normal);
    test_fill(table, &rng, test_normal);
    for (int64_t i = 0; i < 2 * t; i++) ids[i] = test_range(&rng, 0, rows - 1);
    p.start = n % 2 ? rows - t : 0; /* the last row exactly */
    if (n % 4 >= 2) p.positions = ids;
    p.positions_per_batch = n % 4 == 3;
    if (n % 6 == 0) x = none;
    learned_ok(y, x, table, &p);
    for (int64_t b = 0; b < 2; b++) {
      for (int64_t h = 0; h < 2; h++) {
        for (int64_t i = 0; i < t; i++) {
          int64_t id = p.positions ? ids[p.positions_per_batch ? b * t + i : i] : p.start + i;
          for (int64_t c = 0; c < d; c++) {
            double want = oracle_get(&table, 0, 0, id, c);
            if (x.data) want += oracle_get(&x, b, h, i, c);
            assert_true(fabs(oracle_get(&y, b, h, i, c) - want) <= half_unit(y.dtype, want));
          }
        }
      }
    }
  }
}

void B2_equals_sinusoid(void **state) {
  (void)state;
  test_rng rng = test_seed(821);
  attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 60, 24);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 30, 24);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 30, 24);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 30, 24);
  attn_sinusoid_params p = plain();
  attn_learned_params l;
  int64_t ids[30];
  memset(&l, 0, sizeof l);
  test_fill(x, &rng, test_normal);
  sinusoid_ok(table, none, &p);
  p.start = l.start = 30;
  sinusoid_ok(y, x, &p);
  learned_ok(z, x, table, &l);
  test_assert_same(z, y, "the sinusoidal table");
  for (int i = 0; i < 30; i++) ids[i] = 30 + i;
  l.positions = ids;
  learned_ok(z, x, table, &l);
  test_assert_same(z, y, "positions = start ..");
}

void B2_zero_table_in_place(void **state) {
  (void)state;
  test_rng rng = test_seed(822);
  attn_tensor table = test_tensor(ATTN_F16, TEST_BHTD, 1, 1, 20, 11);
  attn_tensor x = test_tensor(ATTN_F32, TEST_PADDED, 2, 3, 20, 11);
  attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 2, 3, 20, 11);
  test_fill(x, &rng, test_normal);
  test_copy(y, x);
  test_fill_value(table, 0);
  learned_ok(y, y, table, NULL);
  test_assert_same(y, x, "zero table");
}

void B2_workers_and_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(823);
  attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 100, 7);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 100, 7);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 100, 7);
  test_fill(table, &rng, test_normal);
  learned_ok(y, none, table, NULL);
  attn_ctx ctx = test_ctx();
  ctx.parallel_for = test_parallel_threads;
  ctx.workers = 4;
  assert_int_equal(attn_learned_position(z, none, table, NULL, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.workers, 4);
  test_assert_same(z, y, "workers");
  y.len = 0;
  table.len = 0;
  attn_learned_params p;
  memset(&p, 0, sizeof p);
  p.start = 55;
  learned_ok(y, none, table, &p);
  assert_int_equal(attn_learned_position_workspace(y, none, table, &p, NULL), 0);
}

/* Nothing is clamped, and nothing is written before the last id is known to be good. */
void B2_rejects(void **state) {
  (void)state;
  attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, 8);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 6, 8), y;
  test_fill_value(x, 0);
  test_fill_value(table, 0);
  y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 6, 8);
  test_block block = test_last_block;
  for (int n = 0; n < 13; n++) {
    attn_learned_params p;
    attn_tensor to = y, from = x, e = table;
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_RANGE;
    const char *word = "positions";
    int64_t ids[12] = {0};
    memset(&p, 0, sizeof p);
    switch (n) {
      case 0: p.start = 4, word = "start"; break;
      case 1: p.start = -1, word = "start"; break;
      case 2: p.start = INT64_MAX, word = "start"; break;
      case 3: p.positions = ids, ids[5] = 9; break;
      case 4: p.positions = ids, ids[0] = -1; break;
      case 5: p.positions = ids, p.positions_per_batch = 1, ids[11] = 100; break;
      case 6: e.dim = 7, want = ATTN_E_SHAPE, word = "table"; break;
      case 7: e.data = NULL, want = ATTN_E_NULL, word = "table"; break;
      case 8: from.heads = 2, want = ATTN_E_SHAPE, word = "x"; break;
      case 9: e.batch = 2, e.len = 4, want = ATTN_E_SHAPE, word = "table"; break;
      case 10: e.data = to.data, want = ATTN_E_OVERLAP, word = "table"; break;
      case 11: e.len = 5, word = "start"; break;
      default: to.data = NULL, want = ATTN_E_NULL, word = "y";
    }
    attn_status got = attn_learned_position(to, from, e, &p, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word)) {
      fail_msg("rule %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    }
    untouched(&block);
  }
}

/* ---- B8, the buckets ------------------------------------------------------------------------*/

/* The default thresholds of the paper's code, and both halves of the table. */
void B8_bucket_defaults(void **state) {
  (void)state;
  static const int64_t both[] = {8, 12, 16, 23, 32, 46, 64, 91};
  static const int64_t past[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int64_t d = -1000; d <= 1000; d++) {
    int64_t a = d < 0 ? -d : d, want = a < 8 ? a : 7, back = d > 0 ? 0 : a < 16 ? a : 15;
    for (int k = 0; k < 8; k++) want += a >= both[k];
    for (int k = 0; k < 16; k++) back += d < 0 && a >= past[k];
    assert_int_equal(attn_t5_bucket(d, 1, 32, 128), want + (d > 0 ? 16 : 0));
    assert_int_equal(attn_t5_bucket(d, 0, 32, 128), back);
    assert_int_equal(attn_t5_bucket(d, 1, 0, 0), want + (d > 0 ? 16 : 0));
    assert_int_equal(attn_t5_bucket(d, 0, 0, 0), back);
  }
}

/* a^E >= m^(E-k) M^k in whole numbers, where 128 bits hold them; else in long double, away from
 * ties. */
void B8_bucket_rule(void **state) {
  (void)state;
  test_rng rng = test_seed(830);
  for (int64_t n = test_count(4000, 600); n-- > 0;) {
    int both = (int)(n & 1);
    int64_t buckets = test_range(&rng, 2, n % 5 ? 70 : 1024);
    int64_t most = test_range(&rng, 1, n % 3 ? 3000 : INT32_MAX);
    int64_t d = test_range(&rng, -most - 5, most + 5), got = attn_t5_bucket(d, both, buckets, most);
    int64_t side = both ? buckets / 2 : buckets, m = side / 2, logs = side - m;
    if (m < 1 || most <= m) {
      assert_int_equal(got, -1);
      continue;
    }
    int64_t a = d < 0 ? -d : both ? d : 0, base = both && d > 0 ? side : 0, want = a;
    if (a >= m) {
      long double x = (long double)logs * logl((long double)a / (long double)m) /
                      logl((long double)most / (long double)m);
      if (fabsl(x - floorl(x + 0.5L)) < 1e-12L) x = floorl(x + 0.5L); /* a tie: it has begun */
      want = m + (int64_t)floorl(x);
    }
    if (want > side - 1) want = side - 1;
    if (got != base + want) {
      fail_msg("distance %d, %d buckets, most %d: %d, not %d", (int)d, (int)buckets, (int)most,
               (int)got, (int)(base + want));
    }
  }
}

/* Exact powers begin their bucket: m 2^k for max_distance = m 2^E. A float logarithm misses some. */
void B8_bucket_exact_powers(void **state) {
  (void)state;
  for (int64_t m = 1; m <= 12; m++) {
    for (int64_t root = 2; root <= 5; root++) {
      int64_t most = m, a = m;
      for (int64_t k = 0; k < m; k++) most *= root;
      if (most > INT32_MAX) continue;
      for (int64_t k = 1; k < m; k++) { /* side = 2m: E = m */
        a *= root;
        assert_int_equal(attn_t5_bucket(-a, 0, 2 * m, most), m + k);
        assert_int_equal(attn_t5_bucket(-a + 1, 0, 2 * m, most), a - 1 < m ? a - 1 : m + k - 1);
        assert_int_equal(attn_t5_bucket(a, 1, 4 * m, most), 2 * m + m + k);
      }
    }
  }
}

void B8_bucket_edges(void **state) {
  (void)state;
  int64_t last = 0;
  for (int64_t a = 0; a < 5000; a++) { /* nondecreasing on each side */
    int64_t bucket = attn_t5_bucket(-a, 1, 1024, 4000);
    assert_true(bucket >= last && bucket < 512);
    last = bucket;
  }
  assert_int_equal(attn_t5_bucket(INT64_MIN, 1, 32, 128), 15);
  assert_int_equal(attn_t5_bucket(INT64_MAX, 1, 32, 128), 31);
  assert_int_equal(attn_t5_bucket(INT64_MIN, 0, 32, 128), 31);
  assert_int_equal(attn_t5_bucket(INT64_MAX, 0, 32, 128), 0);
  assert_int_equal(attn_t5_bucket(-1, 0, 2, 2), 1);
  assert_int_equal(attn_t5_bucket(1, 1, 4, 2), 3);
  /* too few buckets, a distance within the exact part, too many */
  assert_int_equal(attn_t5_bucket(0, 0, 1, 128), -1);
  assert_int_equal(attn_t5_bucket(0, 1, 3, 128), -1);
  assert_int_equal(attn_t5_bucket(0, 0, -5, 128), -1);
  assert_int_equal(attn_t5_bucket(0, 0, 32, 16), -1);
  assert_int_equal(attn_t5_bucket(0, 1, 32, 8), -1);
  assert_int_equal(attn_t5_bucket(0, 0, 32, -1), -1);
  assert_int_equal(attn_t5_bucket(0, 0, 1025, 5000), -1);
  assert_int_equal(attn_t5_bucket(0, 0, 32, INT64_MAX), -1);
}
