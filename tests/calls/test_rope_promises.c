/* tests/calls/test_rope_promises.c owns what M4, rotary families, promise: what is neutral, far positions, transposes,
 * shifts, tables, workers, and what is refused. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "rope.h"

static attn_rope_params plain(void) {
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  return p;
}

/* factor 1 (dynamic: a short sequence; LongRoPE: factors of 1), equal positions, and a section of all pairs
 * leave the default, bit for bit. */
void M4_neutral_is_default(void **state) {
  (void)state;
  test_rng rng = test_seed(1803);
  enum { T = 67, D = 48 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, D);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, D);
  double one[D / 2];
  int64_t same[3 * T];
  for (int i = 0; i < D / 2; i++) one[i] = 1;
  for (int i = 0; i < 3 * T; i++) same[i] = 1000 + i % T;
  test_fill(x, &rng, test_normal);
  attn_rope_params p = plain();
  p.start = 1000;
  rope_turns(z, x, &p);
  for (int n = 0; n < ATTN_ROPE_TYPES + 6; n++) {
    p = plain();
    p.start = 1000, p.factor = 1;
    p.max_position_embeddings = p.original_max_position_embeddings = 1024;
    p.low_freq_factor = 1, p.high_freq_factor = 4;
    p.short_factor = p.long_factor = one, p.factors = D / 2;
    if (n < ATTN_ROPE_TYPES) p.type = (attn_rope_type)n, p.sequence_len = 1024;
    if (n == ATTN_ROPE_DYNAMIC) p.factor = 4;
    if (n >= ATTN_ROPE_TYPES) {
      p.mrope_section[0] = 8, p.mrope_section[1] = 9, p.mrope_section[2] = 7;
      p.mrope_interleaved = n & 1;
    }
    if (n >= ATTN_ROPE_TYPES + 2) p.positions = same;
    if (n >= ATTN_ROPE_TYPES + 4)
      p.mrope_section[0] = 24, p.mrope_section[1] = p.mrope_section[2] = 0;
    rope_turns(y, x, &p);
    char what[32];
    snprintf(what, sizeof what, "neutral %d", n);
    test_assert_same(y, z, what);
  }
}

/* Pairs (1, 0) show cosine and sine: their error at far positions. */
void M4_far_positions(void **state) {
  (void)state;
  test_rng rng = test_seed(1804);
  enum { T = 33, D = 128 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) oracle_set(&x, 0, 0, i, c, c % 2 ? 0 : 1);
  for (int type = 0; type < ATTN_ROPE_TYPES; type++)
    for (int n = 0; n < 4; n++) {
      attn_rope_params p = rope_described(&rng, type, D);
      double f[D / 2], a = 0, real[T];
      p.start = n == 0 ? 999990 : n == 1 ? -1000001 : 123457;
      for (int i = 0; i < T; i++) real[i] = 1e6 - i / 3.0;
      if (n == 3) p.real_positions = real;
      assert_int_equal(attn_rope_frequencies(f, &a, &p, D), ATTN_OK);
      rope_turns(y, x, &p);
      for (int64_t i = 0; i < T; i++)
        for (int64_t m = 0; m < D / 2; m++) {
          long double phi = (long double)rope_place(&p, &x, 0, 0, i) * (long double)f[m];
          double co = (double)cosl(phi), si = (double)sinl(phi);
          double away = fmax(fabs(oracle_get(&y, 0, 0, i, 2 * m) / a - co),
                             fabs(oracle_get(&y, 0, 0, i, 2 * m + 1) / a - si));
          if (!(away < 2e-7)) fail_msg("type %d, row %d, pair %d: %g", type, (int)i, (int)m, away);
        }
    }
}

static double dot(attn_tensor a, attn_tensor b, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t c = 0; c < a.dim; c++)
    sum += oracle_get(&a, 0, 0, i, c) * oracle_get(&b, 0, 0, j, c);
  return sum;
}

/* <R x, y> = <x, inverse y>, and back and forth is the square of the factor. */
void M4_inverse_is_transpose(void **state) {
  (void)state;
  test_rng rng = test_seed(1805);
  enum { T = 9, D = 32 };
  attn_tensor x[2], y[2];
  for (int i = 0; i < 2; i++) {
    x[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    y[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    test_fill(x[i], &rng, test_normal);
  }
  for (int n = 0; n < 2 * ATTN_ROPE_TYPES; n++) {
    attn_rope_params p = rope_described(&rng, n / 2, D);
    double a = 0;
    p.start = 77, p.attention_factor = 1.5;
    if (n & 1) p.xpos = 512, p.mrope_section[0] = 4, p.mrope_section[2] = 12;
    rope_turns(y[0], x[0], &p);
    p.inverse = 1;
    rope_turns(y[1], x[1], &p);
    for (int64_t i = 0; i < T; i++)
      assert_true(fabs(dot(y[0], x[1], i, i) - dot(x[0], y[1], i, i)) < 1e-4);
    if (n & 1) continue;
    assert_int_equal(attn_rope_frequencies(NULL, &a, &p, D), ATTN_OK);
    rope_turns(y[1], y[0], &p);
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < D; c++)
        assert_true(fabs(oracle_get(&y[1], 0, 0, i, c) - a * a * oracle_get(&x[0], 0, 0, i, c)) <
                    5e-6);
  }
}

/* Scores of xPos go by distance: they decay as z^(distance/512), and a shift of all positions leaves them. */
void M4_xpos_scores(void **state) {
  (void)state;
  test_rng rng = test_seed(1806);
  enum { T = 40, D = 64 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
  attn_tensor q[3], k[3];
  static const int64_t start[3] = {0, -20, 7000};
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) oracle_set(&x, 0, 0, i, c, test_exact(&rng));
  for (int n = 0; n < 3; n++) {
    attn_rope_params p = plain();
    p.xpos = 512, p.start = start[n], p.layout = ATTN_ROPE_HALF;
    q[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    k[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    rope_turns(q[n], x, &p);
    p.keys = 1;
    rope_turns(k[n], x, &p);
  }
  for (int64_t i = 0; i < T; i++)
    for (int64_t j = 0; j <= i; j++)
      for (int n = 1; n < 3; n++)
        assert_true(fabs(dot(q[0], k[0], i, j) - dot(q[n], k[n], i, j)) < 2e-4);
  /* one pair alone: its decay */
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) oracle_set(&x, 0, 0, i, c, c == 5 ? 1 : 0);
  attn_rope_params p = plain();
  p.xpos = 512, p.layout = ATTN_ROPE_HALF;
  rope_turns(q[0], x, &p);
  p.keys = 1;
  rope_turns(k[0], x, &p);
  double z = (2 * 5 / 64.0 + 0.4) / 1.4, f = pow(10000, -10 / 64.0);
  for (int64_t i = 0; i < T; i++)
    assert_true(fabs(dot(q[0], k[0], i, 0) - pow(z, (double)i / 512) * cos((double)i * f)) < 1e-6);
}

/* The length of the whole sequence decides, not the position of a row. */
void M4_whole_length_decides(void **state) {
  (void)state;
  test_rng rng = test_seed(1807);
  enum { T = 20, D = 24 };
  static const int types[2] = {ATTN_ROPE_DYNAMIC, ATTN_ROPE_LONGROPE};
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
  test_fill(x, &rng, test_normal);
  for (int n = 0; n < 2; n++)
    for (int64_t len = 1023; len <= 1025; len++) {
      attn_rope_params p = rope_described(&rng, types[n], D);
      double f[D / 2], start[D / 2];
      p.max_position_embeddings = p.original_max_position_embeddings = 1024, p.factor = 3;
      p.sequence_len = len;
      p.start = n ? 0 : 5000;
      rope_turns(y, x, &p);
      rope_compare(y, x, &p);
      attn_rope_frequencies(f, NULL, &p, D);
      p.sequence_len = 1;
      attn_rope_frequencies(start, NULL, &p, D);
      assert_int_equal(memcmp(f, start, sizeof f) != 0, len > 1024);
    }
}

/* Given tables: any strides, repeated and far rows, several positions a row; what no row names is not read. */
void M4_tables(void **state) {
  (void)state;
  test_rng rng = test_seed(1808);
  for (int64_t n = test_count(60, 20); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 20), d = test_range(&rng, 2, 70), rows = t + 30;
    int64_t r = 2 * test_range(&rng, 1, d / 2), axes = n % 3 == 2 ? 3 : 1;
    attn_tensor x = test_tensor(ATTN_F32, TEST_BTHD, 2, 3, t, d);
    attn_tensor y = test_tensor((attn_dtype)(n % 3), TEST_BHTD, 2, 3, t, d);
    attn_rope_params p = plain();
    p.rotary_dim = r, p.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    p.inverse = (int)(n >> 2 & 1);
    p.cos = test_tensor(ATTN_F32, (test_layout)(n % 3), 1, 1, rows, r / 2);
    p.sin = test_tensor(ATTN_F32, (test_layout)((n + 1) % 3), 1, 1, rows, r / 2);
    test_fill(x, &rng, test_normal), test_fill(p.cos, &rng, test_normal);
    test_fill(p.sin, &rng, test_normal);
    for (int64_t c = 0; c < r / 2; c++) {
      oracle_set(&p.cos, 0, 0, rows - 1, c, (double)NAN);
      oracle_set(&p.sin, 0, 0, 0, c, (double)NAN);
    }
    p.start = 1 + test_range(&rng, 0, 28);
    if (axes == 3)
      p.mrope_section[0] = r / 2 - r / 4, p.mrope_section[1] = r / 4, p.mrope_interleaved = 1;
    if (axes == 3 || n % 2) {
      int64_t *at = test_mem((size_t)(axes * t) * sizeof *at);
      for (int64_t i = 0; i < axes * t; i++) at[i] = test_range(&rng, 1, rows - 2);
      p.positions = at;
    }
    rope_turns(y, x, &p);
    rope_compare(y, x, &p);
    test_mem_release();
  }
}

/* Rows by themselves, all at once, any number of workers, the workspace of the query: the same bits. */
void M4_rows_and_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(1809);
  enum { T = 131, D = 40 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
  int64_t at[3 * T];
  test_fill(x, &rng, test_normal);
  for (int i = 0; i < 3 * T; i++) at[i] = test_range(&rng, 0, 500);
  for (int n = 0; n < 2 * ATTN_ROPE_TYPES; n++) {
    attn_rope_params p = rope_described(&rng, n / 2, D);
    p.start = -300, p.xpos = n & 1 ? 512 : 0;
    if (n & 1) {
      p.mrope_section[0] = 8, p.mrope_section[1] = p.mrope_section[2] = 6;
      p.mrope_interleaved = 1, p.positions = at;
    }
    rope_turns(z, x, &p);
    for (int workers = 1; workers <= 7; workers += 2) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers, ctx.parallel_for = test_parallel_threads;
      ctx.workspace_size = attn_rope_workspace(y, x, &p, &ctx);
      ctx.workspace = test_mem(ctx.workspace_size);
      assert_int_equal(attn_rope(y, x, &p, &ctx), ATTN_OK);
      test_assert_same(y, z, "workers");
      ctx.workspace_size--;
      assert_int_equal(attn_rope(y, x, &p, &ctx), ATTN_E_WORKSPACE);
    }
    for (int64_t i = 0; i < T; i += 13) {
      attn_rope_params one = p;
      int64_t here[3] = {at[i], at[T + i], at[2 * T + i]};
      one.start += i;
      if (p.positions) one.positions = here;
      rope_turns(test_rows(y, i, 1), test_rows(x, i, 1), &one);
    }
    test_assert_same(y, z, "rows by themselves");
  }
}

void M4_rejects(void **state) {
  (void)state;
  enum { T = 7, D = 16, CASES = 59 };
  for (int n = 0; n < CASES; n++) {
    test_rng rng = test_seed(1810);
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    test_block out = test_last_block;
    attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, D / 2);
    test_fill(x, &rng, test_normal), test_fill(table, &rng, test_normal);
    double one[D / 2];
    int64_t at[3 * T] = {0};
    for (int i = 0; i < D / 2; i++) one[i] = 1;
    attn_rope_params p = plain();
    attn_status want = ATTN_E_VALUE;
    p.factor = 2, p.max_position_embeddings = 4096, p.original_max_position_embeddings = 1024;
    p.low_freq_factor = 1, p.high_freq_factor = 4, p.sequence_len = 2000;
    p.short_factor = p.long_factor = one, p.factors = D / 2;
    const int low = n / 6; /* types 1 .. 6 lack a good factor */
    if (n < 24) p.type = (attn_rope_type)(1 + n % 6);
    if (low == 0) p.factor = 0.5;
    if (low == 1) p.factor = (double)NAN;
    if (low == 2) p.factor = (double)INFINITY;
    if (low == 3) p.factor = -2;
    if (n == 24) p.type = ATTN_ROPE_LINEAR, p.factor = 0;
    if (n == 25) p.type = ATTN_ROPE_NTK, p.factor = 0;
    if (n == 26) p.type = ATTN_ROPE_DYNAMIC, p.factor = 0;
    if (n == 27) p.type = ATTN_ROPE_LLAMA3, p.factor = 0;
    if (n == 28) p.type = ATTN_ROPE_YARN, p.factor = 0, p.max_position_embeddings = 0;
    if (n == 29) p.type = ATTN_ROPE_YARN, p.factor = 0, p.max_position_embeddings = 1023;
    if (n == 30) p.type = ATTN_ROPE_LONGROPE, p.factor = 0, p.max_position_embeddings = 0;
    if (n == 31) p.type = ATTN_ROPE_DYNAMIC, p.max_position_embeddings = 0;
    if (n == 32) p.type = ATTN_ROPE_DYNAMIC, p.sequence_len = 0;
    if (n == 33) p.type = ATTN_ROPE_LONGROPE, p.sequence_len = 0;
    if (n == 34) p.type = ATTN_ROPE_LLAMA3, p.original_max_position_embeddings = 0;
    if (n == 35) p.type = ATTN_ROPE_YARN, p.original_max_position_embeddings = 0;
    if (n == 36) p.type = ATTN_ROPE_LONGROPE, p.original_max_position_embeddings = 1;
    if (n == 37) p.type = ATTN_ROPE_LLAMA3, p.low_freq_factor = 0;
    if (n == 38) p.type = ATTN_ROPE_LLAMA3, p.high_freq_factor = 1;
    if (n == 39) p.type = ATTN_ROPE_YARN, p.beta_slow = 33;
    if (n == 40) p.type = ATTN_ROPE_YARN, p.mscale = -1;
    if (n == 41) p.type = ATTN_ROPE_LONGROPE, one[3] = 0;
    if (n == 42) p.attention_factor = -1;
    if (n == 43) p.xpos = -1;
    if (n == 44) p.type = ATTN_ROPE_TYPES, want = ATTN_E_RANGE;
    if (n == 45) p.type = (attn_rope_type)-1, want = ATTN_E_RANGE;
    if (n == 46) p.mrope_section[0] = p.mrope_section[2] = 3, want = ATTN_E_RANGE;
    if (n == 47) p.mrope_section[0] = 9, p.mrope_section[1] = -1, want = ATTN_E_RANGE;
    if (n == 48)
      p.mrope_section[0] = INT64_MAX, p.mrope_section[1] = INT64_MAX, want = ATTN_E_RANGE;
    if (n == 49) p.mrope_interleaved = 1, want = ATTN_E_RANGE;
    if (n == 50) p.axial = 1, p.rotary_dim = 14, p.positions = at, want = ATTN_E_RANGE;
    if (n == 51) p.axial = 1, want = ATTN_E_NULL;
    if (n == 52) p.type = ATTN_ROPE_LONGROPE, p.factors = D / 2 - 1, want = ATTN_E_SHAPE;
    if (n == 53) p.type = ATTN_ROPE_LONGROPE, p.long_factor = NULL, want = ATTN_E_NULL;
    if (n == 54) p.xpos = 512, p.start = 32763, want = ATTN_E_RANGE;
    if (n == 55) p.axial = 1, p.mrope_section[0] = 8, p.positions = at, want = ATTN_E_RANGE;
    if (n == 56) p.type = ATTN_ROPE_YARN, p.base = 1;
    if (n == 57)
      p.type = ATTN_ROPE_LONGROPE, p.short_factor = (double *)y.data, want = ATTN_E_OVERLAP;
    if (n == 58) {
      p.type = ATTN_ROPE_LONGROPE, want = ATTN_E_ALIGN;
      p.long_factor = (const double *)(const void *)((const char *)one + 4);
      assert_int_equal(attn_rope_frequencies(NULL, NULL, &p, D), ATTN_E_ALIGN);
    }
    attn_ctx ctx = test_ctx();
    attn_status got = attn_rope(y, x, &p, &ctx);
    if (n == 57 && got == ATTN_E_VALUE) got = want; /* what is there may be no factor */
    if (got != want || !ctx.reason)
      fail_msg("case %d: %s, not %s (%s)", n, attn_status_string(got), attn_status_string(want),
               ctx.reason ? ctx.reason : "no reason");
    for (size_t i = 0; i < out.size; i++) assert_int_equal(out.data[i], 0xA5);
    test_mem_release();
  }
}

void M4_table_rejects(void **state) {
  (void)state;
  enum { T = 7, D = 16, CASES = 19 };
  for (int n = 0; n < CASES; n++) {
    test_rng rng = test_seed(1811);
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    test_block out = test_last_block;
    int64_t at[T] = {0, 9, 1, 2, 3, 4, 5};
    double real[T] = {0};
    attn_rope_params p = plain();
    attn_status want = ATTN_E_RANGE;
    test_fill(x, &rng, test_normal);
    p.cos = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, D / 2);
    p.sin = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, D / 2);
    test_fill(p.cos, &rng, test_normal), test_fill(p.sin, &rng, test_normal);
    if (n == 0) p.cos.data = NULL, want = ATTN_E_NULL;
    if (n == 1) p.sin.data = NULL, want = ATTN_E_NULL;
    if (n == 2) p.cos.dim = 7, want = ATTN_E_SHAPE;
    if (n == 3) p.sin.len = 9, want = ATTN_E_SHAPE;
    if (n == 4) p.cos.heads = 2, want = ATTN_E_SHAPE;
    if (n == 5) p.cos.dtype = ATTN_F16, want = ATTN_E_DTYPE;
    if (n == 6) p.base = 10000;
    if (n == 7) p.type = ATTN_ROPE_LINEAR, p.factor = 2;
    if (n == 8) p.xpos = 512;
    if (n == 9) p.attention_factor = 1;
    if (n == 10) p.real_positions = real;
    if (n == 11) p.start = -1;
    if (n == 12) p.start = 4;
    if (n == 13) p.positions = at, at[1] = 10;
    if (n == 14) p.positions = at, at[6] = -1;
    if (n == 15)
      p.sin = y, p.sin.heads = 1, p.sin.dim = D / 2, p.sin.len = 10, want = ATTN_E_OVERLAP;
    if (n == 16) p.rotary_dim = 0, p.has_rotary_dim = 1, want = ATTN_E_SHAPE;
    if (n == 17) p.cos.batch = 2, want = ATTN_E_SHAPE;
    if (n == 18) p.start = INT64_MAX / 4;
    attn_ctx ctx = test_ctx();
    attn_status got = attn_rope(y, x, &p, &ctx);
    if (got != want || !ctx.reason)
      fail_msg("case %d: %s, not %s (%s)", n, attn_status_string(got), attn_status_string(want),
               ctx.reason ? ctx.reason : "no reason");
    if (n == 6) assert_int_equal(attn_rope_frequencies(NULL, NULL, &p, D), ATTN_E_RANGE);
    for (size_t i = 0; i < out.size; i++) assert_int_equal(out.data[i], 0xA5);
    test_mem_release();
  }
}
