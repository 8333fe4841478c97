/* tests/calls/test_position.c owns B5, rotary position embedding, and B6, ALiBi. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

static void rope_ok(attn_tensor y, attn_tensor x, const attn_rope_params *params) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_rope(y, x, params, &ctx);
  if (status != ATTN_OK) fail_msg("attn_rope: %s", ctx.reason ? ctx.reason : "(null)");
  if (ctx.report.isa != test_isa) fail_msg("rope ran on %s", attn_isa_name(ctx.report.isa));
}

static void compare_rope(attn_tensor y, attn_tensor x, const attn_rope_params *p) {
  double *in = test_mem((size_t)x.dim * sizeof *in), *out = test_mem((size_t)x.dim * sizeof *out);
  int64_t rot = p->has_rotary_dim || p->rotary_dim ? p->rotary_dim : x.dim;
  double base = p->base > 0 ? p->base : 10000;
  for (int64_t b = 0; b < x.batch; b++) {
    for (int64_t h = 0; h < x.heads; h++) {
      for (int64_t i = 0; i < x.len; i++) {
        const int64_t place = p->positions_per_batch ? b * x.len + i : i;
        double at = (double)(p->start + i);
        if (p->positions) at = (double)p->positions[place];
        if (p->real_positions) at = p->real_positions[place];
        for (int64_t c = 0; c < x.dim; c++) in[c] = oracle_get(&x, b, h, i, c);
        oracle_rope(out, in, x.dim, rot, base, p->layout, p->inverse, at);
        for (int64_t c = 0; c < x.dim; c++) {
          double got = oracle_get(&y, b, h, i, c), unit = 0;
          if (y.dtype == ATTN_F16) unit = fabs(out[c]) * 4.9e-4 + 3e-8;
          if (y.dtype == ATTN_BF16) unit = fabs(out[c]) * 3.92e-3;
          int64_t mate =
              p->layout == ATTN_ROPE_HALF ? (c < rot / 2 ? c + rot / 2 : c - rot / 2) : c ^ 1;
          double size = c < rot ? hypot(in[c], in[mate]) * 5e-7 : 0;
          if (fabs(got - out[c]) <= size + unit) continue;
          fail_msg("rope: position %g, column %d of %d (rot %d): %.9g, not %.9g", at, (int)c,
                   (int)x.dim, (int)rot, got, out[c]);
        }
      }
    }
  }
}

void B5_random_rotations(void **state) {
  (void)state;
  test_rng rng = test_seed(70);
  for (int64_t n = test_count(120, 40); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 40), d = test_range(&rng, 1, 140);
    attn_dtype from = (attn_dtype)(n % 3), to = (attn_dtype)(n / 3 % 3);
    attn_tensor x = test_tensor(from, (test_layout)(n % TEST_LAYOUTS), 2, 3, t, d);
    attn_tensor y = test_tensor(to, (test_layout)(n % 4), 2, 3, t, d);
    test_fill(x, &rng, test_normal);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.rotary_dim = test_range(&rng, 0, d / 2) * 2;
    if ((p.rotary_dim == 0 && d & 1) || n & 8) p.has_rotary_dim = 1;
    p.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    p.inverse = (int)(n >> 1 & 1);
    p.base = n % 5 ? 0 : 500000;
    p.start = test_range(&rng, -1000, 1000);
    int64_t *positions = test_mem((size_t)(2 * t) * sizeof *positions);
    for (int64_t i = 0; i < 2 * t; i++) positions[i] = test_range(&rng, -200000, 200000);
    if (n % 4 >= 2) p.positions = positions;
    p.positions_per_batch = n % 4 == 3;
    rope_ok(y, x, &p);
    compare_rope(y, x, &p);
  }
}

/* Position interpolation: real positions, whole or not, one set or a set an entry, near and far; and by
 * many workers the bits of one. */
void B5_real_positions(void **state) {
  (void)state;
  enum { T = 70 };
  for (int n = 0; n < 16; n++, test_mem_release()) {
    test_rng rng = test_seed(81 + (uint64_t)n);
    attn_tensor x = test_tensor(ATTN_F32, TEST_PADDED, 2, 3, T, 44);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, 44);
    attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, 44);
    double at[2 * T];
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    test_fill(x, &rng, test_normal);
    for (int i = 0; i < 2 * T; i++)
      at[i] = n % 4 == 3 ? 1e6 * (double)test_normal(&rng) : (i - 9) * (n % 2 ? 0.25 : 1 / 3.0);
    p.real_positions = at, p.positions_per_batch = n / 4 % 2, p.inverse = n / 8;
    p.layout = n % 3 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    rope_ok(y, x, &p);
    compare_rope(y, x, &p);
    attn_ctx ctx = test_ctx();
    ctx.parallel_for = test_parallel_threads, ctx.workers = 3;
    assert_int_equal(attn_rope(z, x, &p, &ctx), ATTN_OK);
    test_assert_same(z, y, "workers");
  }
}

/* Real positions that are whole have the bits of whole ones. */
void B5_whole_real_positions(void **state) {
  (void)state;
  enum { T = 50 };
  test_rng rng = test_seed(98);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 32);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 32);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 32);
  double at[T];
  attn_rope_params p, real;
  memset(&p, 0, sizeof p);
  memset(&real, 0, sizeof real);
  test_fill(x, &rng, test_normal);
  for (int i = 0; i < T; i++) at[i] = i - 20;
  p.start = -20, real.real_positions = at;
  rope_ok(y, x, &p);
  rope_ok(z, x, &real);
  test_assert_same(z, y, "whole numbers");
}

void B5_far_positions(void **state) {
  (void)state;
  static const int64_t starts[] = {100000, 1000000, -1000000, 123456789};
  for (int n = 0; n < 4; n++) {
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, 64), y = x;
    y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, 64);
    test_rng rng = test_seed(71);
    test_fill(x, &rng, test_normal);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.start = starts[n];
    rope_ok(y, x, &p);
    compare_rope(y, x, &p);
  }
}

void B5_defaults_and_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(72);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 11, 20);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 11, 20);
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  test_fill(x, &rng, test_normal);
  assert_int_equal(attn_rope(y, x, NULL, NULL), ATTN_OK);
  compare_rope(y, x, &p);
  test_assert_same(test_rows(y, 0, 1), test_rows(x, 0, 1), "position 0");
  p.has_rotary_dim = 1;
  rope_ok(y, x, &p);
  test_assert_same(y, x, "no rotation");
}

/* No batch, no head, no row: nothing is read or written, with every kind of positions, and no workspace wanted. */
void B5_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(79);
  for (int n = 0; n < 18; n++, test_mem_release()) {
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 5, 8);
    attn_tensor y = test_tensor(ATTN_F16, TEST_BHTD, 2, 3, 5, 8), all = y;
    attn_qk_norm norm;
    attn_rope_params p;
    int64_t whole[10] = {0};
    double real[10] = {0};
    memset(&p, 0, sizeof p), memset(&norm, 0, sizeof norm);
    test_fill(x, &rng, test_normal), test_fill_value(y, 7);
    if (n / 3 == 1) p.positions = whole;
    if (n / 3 == 2) p.positions = whole, p.positions_per_batch = 1;
    if (n / 3 == 3) p.real_positions = real;
    if (n / 3 == 4) p.norm = &norm, norm.kind = n % 2 ? ATTN_QK_NORM_RMS_ALL : ATTN_QK_NORM_L2;
    if (n / 3 == 5) { /* rows that are not there need no memory */
      x.data = n % 3 == 1 ? x.data : NULL;
      p.start = 5;
    }
    int64_t *extents[3][2] = {{&x.batch, &y.batch}, {&x.heads, &y.heads}, {&x.len, &y.len}};
    *extents[n % 3][0] = *extents[n % 3][1] = 0;
    attn_ctx ctx = test_ctx();
    assert_true(attn_rope_workspace(y, x, &p, &ctx) == 0);
    const int64_t mallocs = test_malloc_calls;
    const attn_status status = attn_rope(y, x, &p, &ctx);
    if (status != ATTN_OK) fail_msg("case %d: %s", n, ctx.reason);
    assert_string_equal(ctx.report.path, "no-op");
    assert_int_equal(ctx.report.isa, test_isa);
    assert_int_equal(test_malloc_calls, mallocs);
    for (int64_t h = 0; h < 3; h++)
      for (int64_t i = 0; i < 5; i++)
        for (int64_t c = 0; c < 8; c++)
          assert_true(oracle_get(&all, 1, h, i, c) == 7 && oracle_get(&all, 0, h, i, c) == 7);
  }
}

void B5_in_place(void **state) {
  (void)state;
  for (int layout = 0; layout < 2; layout++) {
    test_rng rng = test_seed(73);
    attn_tensor x = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 17, 37);
    attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 17, 37);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    test_fill(x, &rng, test_normal);
    p.rotary_dim = 30;
    p.start = 5;
    p.layout = (attn_rope_layout)layout;
    rope_ok(y, x, &p);
    rope_ok(x, x, &p);
    test_assert_same(x, y, "in place");
  }
}

void B5_inverse_and_norm(void **state) {
  (void)state;
  test_rng rng = test_seed(74);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 21, 48), y = x, z = x;
  y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 21, 48);
  z = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 21, 48);
  test_fill(x, &rng, test_normal);
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  p.start = 777;
  rope_ok(y, x, &p);
  p.inverse = 1;
  rope_ok(z, y, &p);
  test_assert_near(z, x, 1e-6, "there and back");
  for (int64_t i = 0; i < 21; i++) {
    double before = 0, after = 0;
    for (int64_t c = 0; c < 48; c++) {
      before += pow(oracle_get(&x, 0, 1, i, c), 2);
      after += pow(oracle_get(&y, 0, 1, i, c), 2);
    }
    assert_true(fabs(after / before - 1) < 1e-6);
  }
}

/* Scores depend on the difference of positions only. */
void B5_relative_scores(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 20, 33, 16, 8);
  test_rng rng = test_seed(75);
  test_call base = test_build(&spec, &rng), call[2];
  for (int n = 0; n < 2; n++) {
    call[n] = test_again(&base);
    call[n].q = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 16);
    call[n].k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 33, 16);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.start = n * 100000;
    rope_ok(call[n].k, base.k, &p);
    p.start += 13;
    rope_ok(call[n].q, base.q, &p);
    call[n].params.causal = 1;
    test_run(&call[n]);
  }
  test_assert_near(call[1].o, call[0].o, 1e-5, "moved positions");
  test_assert_near(call[1].params.lse, call[0].params.lse, 1e-5, "moved positions");
}

/* half(x P) = interleaved(x) P, with P sending even columns first. */
void B5_layouts_agree(void **state) {
  (void)state;
  test_rng rng = test_seed(76);
  attn_tensor t[4];
  for (int n = 0; n < 4; n++) t[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 15, 24);
  test_fill(t[0], &rng, test_normal);
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  rope_ok(t[1], t[0], &p);
  for (int64_t i = 0; i < 15; i++) {
    for (int64_t c = 0; c < 24; c++) {
      oracle_set(&t[2], 0, 0, i, c % 2 * 12 + c / 2, oracle_get(&t[0], 0, 0, i, c));
    }
  }
  p.layout = ATTN_ROPE_HALF;
  rope_ok(t[3], t[2], &p);
  for (int64_t i = 0; i < 15; i++) {
    for (int64_t c = 0; c < 24; c++) {
      assert_true(oracle_get(&t[3], 0, 0, i, c % 2 * 12 + c / 2) == oracle_get(&t[1], 0, 0, i, c));
    }
  }
}

void B5_nan_stays_in_its_pair(void **state) {
  (void)state;
  for (int layout = 0; layout < 2; layout++) {
    test_rng rng = test_seed(77);
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 40), y;
    y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 40);
    test_fill(x, &rng, test_normal);
    oracle_set(&x, 0, 0, 2, 9, (double)NAN);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.start = 1;
    p.layout = (attn_rope_layout)layout;
    rope_ok(y, x, &p);
    for (int64_t i = 0; i < 5; i++) {
      for (int64_t c = 0; c < 40; c++) {
        int hit = i == 2 && (c == 9 || c == (layout == ATTN_ROPE_HALF ? 29 : 8));
        assert_int_equal(isnan(oracle_get(&y, 0, 0, i, c)) != 0, hit);
      }
    }
  }
}

/* inf - inf and given payloads alike; columns that do not rotate keep theirs. */
void B5_default_nan(void **state) {
  (void)state;
  static const uint32_t payload = 0xffc12345u, out = 0x7fc00000u;
  for (int layout = 0; layout < 2; layout++) {
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 20), y;
    y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 20);
    float *from = x.data, *to = y.data;
    for (int c = 0; c < 20; c++) from[c] = (float)INFINITY;
    memcpy(&from[0], &payload, 4);
    memcpy(&from[19], &payload, 4);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.start = 1;
    p.rotary_dim = 18;
    p.layout = (attn_rope_layout)layout;
    rope_ok(y, x, &p);
    assert_memory_equal(&to[0], &out, 4);
    assert_memory_equal(&to[layout == ATTN_ROPE_HALF ? 9 : 1], &out, 4);
    assert_memory_equal(&to[2], &out, 4); /* inf cos - inf sin, position 1 */
    assert_true(to[18] == (float)INFINITY);
    assert_memory_equal(&to[19], &payload, 4);
  }
}

void B5_workspace(void **state) {
  (void)state;
  test_rng rng = test_seed(78);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 70, 64);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 70, 64);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 70, 64);
  test_fill(x, &rng, test_normal);
  rope_ok(z, x, NULL);
  attn_ctx ctx = test_ctx();
  size_t size = attn_rope_workspace(y, x, NULL, &ctx);
  for (int at = 0; at < 17; at++) {
    ctx.workspace = (char *)test_mem(size + 32) + at;
    ctx.workspace_size = size;
    test_malloc_fails = 1;
    assert_int_equal(attn_rope(y, x, NULL, &ctx), ATTN_OK);
    test_malloc_fails = 0;
    assert_int_equal(((unsigned char *)ctx.workspace)[size], 0xA5);
    test_assert_same(y, z, "with a workspace");
  }
  if (size == 0) return;
  ctx.workspace_size = size - 1;
  assert_int_equal(attn_rope(y, x, NULL, &ctx), ATTN_E_WORKSPACE);
}

void B5_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(79);
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 300, 64);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 300, 64);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 300, 64);
  test_fill(x, &rng, test_normal);
  rope_ok(z, x, NULL);
  static const int workers[] = {2, 3, 7};
  for (int n = 0; n < 3; n++) {
    attn_ctx ctx = test_ctx();
    ctx.workers = workers[n];
    ctx.parallel_for = test_parallel_threads;
    assert_int_equal(attn_rope(y, x, NULL, &ctx), ATTN_OK);
    test_assert_same(y, z, "workers");
  }
}

void B5_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 21; n++) {
    test_rng rng = test_seed(80);
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 7, 16);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 7, 16);
    test_block out = test_last_block;
    test_fill(x, &rng, test_normal);
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    attn_ctx ctx = test_ctx();
    double real[14] = {0};
    int64_t whole[7] = {0};
    attn_status want = ATTN_OK;
    if (n == 0) x.data = NULL, want = ATTN_E_NULL;
    if (n == 1) y.data = NULL, want = ATTN_E_NULL;
    if (n == 2) p.rotary_dim = 7, want = ATTN_E_RANGE;
    if (n == 3) p.rotary_dim = 18, want = ATTN_E_RANGE;
    if (n == 4) p.rotary_dim = -2, want = ATTN_E_RANGE;
    if (n == 5) p.base = -1, want = ATTN_E_VALUE;
    if (n == 6) p.base = (double)NAN, want = ATTN_E_VALUE;
    if (n == 7) y.len = 6, want = ATTN_E_SHAPE;
    if (n == 8) y.heads = 1, want = ATTN_E_SHAPE;
    if (n == 9) x.dim = 15, want = ATTN_E_SHAPE;
    if (n == 10) x.dtype = (attn_dtype)-1, want = ATTN_E_DTYPE;
    if (n == 11) y.stride_len = 15, want = ATTN_E_STRIDE;
    if (n == 12) x.data = (float *)y.data + 4, want = ATTN_E_OVERLAP;
    if (n == 13) x.data = y.data, x.stride_len = 32, want = ATTN_E_OVERLAP;
    if (n == 14) x.dim = y.dim = 15, want = ATTN_E_RANGE;
    if (n == 15) p.base = (double)INFINITY, want = ATTN_E_VALUE;
    if (n == 16) p.real_positions = real, p.positions = whole, want = ATTN_E_NULL;
    if (n == 17) p.real_positions = real, real[6] = (double)NAN, want = ATTN_E_VALUE;
    if (n == 18) p.real_positions = real, real[0] = -(double)INFINITY, want = ATTN_E_VALUE;
    if (n == 19) p.real_positions = (double *)(void *)((char *)real + 4), want = ATTN_E_ALIGN;
    if (n == 20) p.real_positions = y.data, want = ATTN_E_OVERLAP;
    attn_status got = attn_rope(y, x, &p, &ctx);
    if (n == 14 && got == ATTN_E_SHAPE) got = want; /* an odd dim breaks both rules */
    if (got != want || !ctx.reason) {
      fail_msg("rope case %d: %s, not %s (%s)", n, attn_status_string(got),
               attn_status_string(want), ctx.reason ? ctx.reason : "no reason");
    }
    for (size_t at = 0; at < out.size; at++) assert_int_equal(out.data[at], 0xA5);
  }
}

void B6_slopes(void **state) {
  (void)state;
  float slopes[130];
  for (int64_t n = 1; n <= 128; n++) {
    memset(slopes, 0xA5, sizeof slopes);
    float guard = slopes[n];
    assert_int_equal(attn_alibi_slopes(slopes, n), ATTN_OK);
    for (int64_t h = 0; h < n; h++) {
      double want = oracle_slope(h, n);
      if (fabs((double)slopes[h] / want - 1) > 1.2e-7) {
        fail_msg("slope %d of %d is %.9g, not %.9g", (int)h, (int)n, (double)slopes[h], want);
      }
    }
    assert_memory_equal(&slopes[n], &guard, sizeof guard);
  }
  for (int h = 0; h < 8; h++) {
    attn_alibi_slopes(slopes, 8);
    assert_true(slopes[h] == 1.0f / (float)(2 << h));
  }
  assert_int_equal(attn_alibi_slopes(NULL, 4), ATTN_E_NULL);
  assert_int_equal(attn_alibi_slopes(slopes, 0), ATTN_E_SHAPE);
  assert_int_equal(attn_alibi_slopes(slopes, -3), ATTN_E_SHAPE);
}

void B6_random_shapes(void **state) {
  (void)state;
  test_rng rng = test_seed(81);
  for (int64_t n = test_count(50, 12); n-- > 0;) {
    int64_t heads = test_range(&rng, 1, 5);
    test_spec spec = test_plain(heads, test_range(&rng, 1, 140), test_range(&rng, 1, 140), 6, 5);
    spec.map = (int)(n & 1);
    test_call call = test_build(&spec, &rng);
    float *slopes = test_floats(heads, 0.5, &rng);
    if (n % 3) assert_int_equal(attn_alibi_slopes(slopes, heads), ATTN_OK);
    call.params.alibi = slopes;
    call.params.causal = n % 4 < 2;
    call.params.has_q_off = n % 5 == 0;
    call.params.q_off = test_range(&rng, -30, 60) * call.params.has_q_off;
    test_check(&call, "ALiBi");
  }
}

void B6_zero_slopes(void **state) {
  (void)state;
  static const float zeros[2];
  test_spec spec = test_plain(2, 90, 70, 12, 5);
  test_rng rng = test_seed(82);
  test_call call = test_build(&spec, &rng), plain = test_again(&call);
  call.params.alibi = zeros;
  test_run(&call);
  test_run(&plain);
  test_assert_same_outputs(&call, &plain, "zero slopes");
}

void B6_geometric_weights(void **state) {
  (void)state;
  float slope = 0.25f;
  test_spec spec = test_plain(1, 70, 70, 4, 3);
  spec.map = 1;
  test_rng rng = test_seed(83);
  test_call call = test_build(&spec, &rng);
  test_fill_value(call.k, 0);
  call.params.alibi = &slope;
  call.params.causal = 1;
  test_run(&call);
  for (int64_t i = 1; i < 70; i++) {
    for (int64_t j = 0; j < i; j++) {
      double ratio =
          oracle_get(&call.params.map, 0, 0, i, j) / oracle_get(&call.params.map, 0, 0, i, j + 1);
      assert_true(fabs(ratio - exp(-0.25)) < 1e-5);
    }
  }
}
