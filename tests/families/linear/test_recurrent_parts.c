/* tests/families/linear/test_recurrent_parts.c owns what stands around a decaying state: logs of decays, the short
 * convolution, norms with a gate. */

#include <stdio.h>

#include "recurrent.h"

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

typedef struct parts {
  attn_tensor y, x, z;
  attn_log_decay_params decay;
  attn_short_convolve_params conv;
  attn_gated_norm_params norm;
  int kind;
  promise does;
} parts;

static attn_status call(void *at, attn_ctx *ctx) {
  parts *s = at;
  if (s->kind == 0) return attn_log_decay(s->y, s->x, &s->decay, ctx);
  if (s->kind == 1) return attn_short_convolve(s->y, s->x, s->z, &s->conv, ctx);
  return attn_gated_norm(s->y, s->x, s->z, &s->norm, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  parts *s = at;
  if (s->kind == 0) return attn_log_decay_workspace(s->y, s->x, &s->decay, ctx);
  if (s->kind == 1) return attn_short_convolve_workspace(s->y, s->x, s->z, &s->conv, ctx);
  return attn_gated_norm_workspace(s->y, s->x, s->z, &s->norm, ctx);
}

static parts *build(int kind, int64_t n, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                    test_rng *rng) {
  parts *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
  s->x = drawn(floats[n % 4 % 3], (test_layout)(n % TEST_LAYOUTS), batch, heads, len, dim, 2, rng);
  if (kind == 2)
    s->z = drawn(floats[n / 2 % 4 % 3], (test_layout)(n / 3 % TEST_LAYOUTS), batch, heads, len, dim,
                 2, rng);
  s->y = output(floats[n / 3 % 4 % 3], (test_layout)(n / 2 % 4), batch, heads, len, dim,
                &s->does.block[0]);
  test_where = TEST_HEAP;
  s->does.out[0] = &s->y;
  s->kind = kind, s->does.call = call, s->does.ask = ask, s->does.scene = s;
  return s;
}

/* The promises of calls that may want no memory. */
static void keeps(parts *s) {
  attn_ctx ctx = test_ctx();
  if (ask(s, &ctx) > 0) {
    promise_keep(&s->does);
    promise_run(&s->does);
    return;
  }
  attn_tensor want = test_tensor(s->y.dtype, TEST_BHTD, s->y.batch, s->y.heads, s->y.len, s->y.dim);
  test_copy(want, s->y);
  test_fill_value(s->y, 7);
  ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
  assert_int_equal(call(s, &ctx), ATTN_OK);
  test_assert_same(want, s->y, "workers");
}

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

void M1_log_decay(void **state) {
  (void)state;
  test_rng rng = test_seed(1920);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    const int64_t heads = test_range(&rng, 1, 3),
                  dim = n % 3 ? test_range(&rng, 1, n % 7 ? 40 : 600) : 1;
    parts *s = build(0, n, test_range(&rng, 1, 2), heads, test_range(&rng, 0, 150), dim, &rng);
    attn_log_decay_params *p = &s->decay;
    p->bounded = (int)(n % 2), p->channels = (int)(n / 2 % 2);
    if (n % 5) p->a_log = test_floats(heads * (p->channels ? dim : 1), 1, &rng);
    if (n % 4) p->dt_bias = test_floats(heads * (p->channels ? dim : 1), 1, &rng);
    if (p->bounded && n % 3) p->lower = -3;
    promise_run(&s->does);
    for (int64_t u = 0; u < s->x.batch * heads * s->x.len; u++) {
      const int64_t b = u / s->x.len / heads, h = u / s->x.len % heads, i = u % s->x.len;
      for (int64_t c = 0; c < dim; c++) {
        const int64_t at = p->channels ? h * dim + c : h;
        const double rate = p->a_log ? exp((double)p->a_log[at]) : 1;
        const double x = oracle_get(&s->x, b, h, i, c) + (p->dt_bias ? (double)p->dt_bias[at] : 0);
        const double want = p->bounded
                                ? (p->lower < 0 ? (double)p->lower : -5.0) * sigmoid(rate * x)
                                : -rate * (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
        value_check(oracle_get(&s->y, b, h, i, c), want,
                    2e-6 * fabs(want) * (1 + fabs(x) * (p->bounded ? rate : 1)), s->y.dtype,
                    "log of a decay", b, h, i, c);
      }
    }
    if (n % 5 == 0) keeps(s);
  }
}

void M1_gated_norm(void **state) {
  (void)state;
  test_rng rng = test_seed(1921);
  for (int64_t n = test_count(90, 30); n-- > 0; test_mem_release()) {
    const int64_t heads = n % 2 ? 4 : 3, dim = test_range(&rng, 1, n % 7 ? 40 : 300);
    parts *s = build(2, n, test_range(&rng, 1, 2), heads, test_range(&rng, 0, 90), dim, &rng);
    attn_gated_norm_params *p = &s->norm;
    p->kind = (attn_gated_norm_kind)(n % 3);
    const int before = p->kind == ATTN_GATED_NORM_BEFORE;
    if (before && n % 2) p->groups = n % 4 == 1 ? 2 : 4;
    if (n % 5) p->gain = test_floats(before ? heads * dim : dim, 1, &rng);
    if (n % 4 == 0) p->eps = 0.5f;
    const double eps = p->eps > 0 ? (double)p->eps : p->kind == ATTN_GATED_NORM_SILU ? 1e-6 : 1e-5;
    promise_run(&s->does);
    const int64_t each = before ? heads / (p->groups ? p->groups : 1) : 1;
    for (int64_t u = 0; u < s->x.batch * heads * s->x.len; u++) {
      const int64_t b = u / s->x.len / heads, h = u / s->x.len % heads, i = u % s->x.len;
      double sum = 0;
      for (int64_t g = h / each * each; g < h / each * each + each; g++)
        for (int64_t c = 0; c < dim; c++) {
          const double z = oracle_get(&s->z, b, g, i, c);
          const double x = oracle_get(&s->x, b, g, i, c) * (before ? z * sigmoid(z) : 1);
          sum += x * x;
        }
      for (int64_t c = 0; c < dim; c++) {
        const double z = oracle_get(&s->z, b, h, i, c);
        const double gate = sigmoid(z) * (p->kind == ATTN_GATED_NORM_SIGMOID ? 1 : z);
        const double gain = p->gain ? (double)p->gain[before ? h * dim + c : c] : 1;
        const double want =
            oracle_get(&s->x, b, h, i, c) / sqrt(sum / (double)(dim * each) + eps) * gate * gain;
        value_check(oracle_get(&s->y, b, h, i, c), want, 4e-6 * fabs(want) + 1e-30, s->y.dtype,
                    "gated norm", b, h, i, c);
      }
    }
    if (n % 5 == 0) keeps(s);
  }
  /* in place; sizes that floats cannot square */
  parts *s = build(2, 0, 1, 2, 5, 20, &rng);
  for (int64_t c = 0; c < 20; c++)
    oracle_set(&s->x, 0, 1, 2, c, 1e25), oracle_set(&s->x, 0, 1, 3, c, 1e-25);
  attn_ctx ctx = test_ctx();
  promise_run(&s->does);
  const double z = oracle_get(&s->z, 0, 1, 2, 3);
  assert_true(fabs(oracle_get(&s->y, 0, 1, 2, 3) - z * sigmoid(z)) < 1e-5);
  attn_tensor same = s->x;
  assert_int_equal(attn_gated_norm(same, s->x, s->z, NULL, &ctx), ATTN_OK);
  test_assert_same(same, s->y, "in place");
}

/* Rows of sequences by the definition; in one call, row by row and in pieces the same bits. */
void M1_short_convolve(void **state) {
  (void)state;
  test_rng rng = test_seed(1922);
  for (int64_t n = test_count(80, 30); n-- > 0; test_mem_release()) {
    const int64_t heads = test_range(&rng, 1, 2), dim = test_range(&rng, 1, n % 7 ? 40 : 600),
                  taps = n % 9 ? test_range(&rng, 1, 5) : 64;
    const int64_t batch = test_range(&rng, 1, 2), len = test_range(&rng, 0, n % 4 ? 90 : 3);
    parts *s = build(1, n, batch, heads, len, dim, &rng);
    attn_short_convolve_params *p = &s->conv;
    const attn_tensor w = s->z =
        drawn(floats[n / 2 % 3], TEST_PADDED, 1, n % 2 ? heads : 1, taps, dim, 1, &rng);
    if (n % 3) p->bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, dim, 1, &rng);
    if (n % 4 == 0) p->activation = ATTN_ACT_NONE;
    int32_t marks[] = {0, (int32_t)(len / 3), (int32_t)(len / 3), (int32_t)len};
    if (batch == 1 && n % 2) p->cu_seqlens = marks, p->sequences = 3;
    if (!p->cu_seqlens && n % 3 == 0) p->len = test_lengths(batch, len, &rng);
    const int64_t units = p->cu_seqlens ? 3 : batch, keep = taps - 1;
    if (n % 5 && keep) p->initial = drawn(ATTN_F32, TEST_PADDED, units, heads, keep, dim, 1, &rng);
    if (n % 6 && keep) {
      p->final_rows = output(ATTN_F32, TEST_PADDED, units, heads, keep, dim, &s->does.block[1]);
      s->does.out[1] = &p->final_rows;
    }
    promise_run(&s->does);
    for (int64_t u = 0; u < units; u++)
      for (int64_t h = 0; h < heads; h++) {
        const int64_t b = p->cu_seqlens ? 0 : u, t0 = p->cu_seqlens ? marks[u] : 0;
        const int64_t t1 = p->cu_seqlens ? marks[u + 1] : p->len ? p->len[u] : len;
        const int64_t end = p->cu_seqlens ? t1 : len;
        for (int64_t t = t0; t < end; t++)
          for (int64_t c = 0; c < dim; c++) {
            double sum = p->bias.data ? oracle_get(&p->bias, 0, 0, 0, c) : 0, size = 0;
            for (int64_t r = 0; r < taps; r++) {
              const int64_t i = t - taps + 1 + r;
              const double x = i >= t0           ? oracle_get(&s->x, b, h, i, c)
                               : p->initial.data ? oracle_get(&p->initial, u, h, keep + i - t0, c)
                                                 : 0;
              sum += oracle_get(&w, 0, w.heads > 1 ? h : 0, r, c) * x;
              size += fabs(oracle_get(&w, 0, w.heads > 1 ? h : 0, r, c) * x);
            }
            if (n % 4) sum *= sigmoid(sum);
            value_check(oracle_get(&s->y, b, h, t, c), t < t1 ? sum : 0, 2e-6 * (1 + size),
                        s->y.dtype, "convolution", b, h, t, c);
          }
        for (int64_t k = 0; p->final_rows.data && k < keep; k++)
          for (int64_t c = 0; c < dim; c++) {
            const int64_t i = t1 - keep + k;
            const double x = i >= t0           ? oracle_get(&s->x, b, h, i, c)
                             : p->initial.data ? oracle_get(&p->initial, u, h, keep + i - t0, c)
                                               : 0;
            assert_true(oracle_get(&p->final_rows, u, h, k, c) == x);
          }
      }
    if (n % 5 == 0) keeps(s);
    if (p->cu_seqlens || p->len || !keep || !p->initial.data) continue;
    attn_tensor y = test_tensor(s->y.dtype, TEST_BHTD, batch, heads, len, dim);
    attn_tensor rows = test_tensor(ATTN_F32, TEST_BHTD, batch, heads, keep, dim);
    test_copy(rows, p->initial);
    for (int64_t i = 0, some; i < len; i += some) { /* in place */
      attn_short_convolve_params q = *p;
      attn_ctx ctx = test_ctx();
      some = n % 2 || len - i < 2 ? 1 : 1 + i % 7 < len - i ? 1 + i % 7 : len - i;
      q.initial = q.final_rows = rows;
      if (attn_short_convolve(test_rows(y, i, some), test_rows(s->x, i, some), w, &q, &ctx) !=
          ATTN_OK)
        fail_msg("%s", ctx.reason);
    }
    test_assert_same(y, s->y, "in pieces");
    if (p->final_rows.data) test_assert_same(rows, p->final_rows, "rows that are kept");
  }
}

/* What y has now, against `clean`: the one default NaN where `reads` says so, the same bits elsewhere. */
static void spread(const parts *s, attn_tensor clean, int (*reads)(const parts *, const int64_t *),
                   const char *what) {
  for (int64_t u = 0; u < clean.batch * clean.heads * clean.len; u++)
    for (int64_t c = 0; c < clean.dim; c++) {
      const int64_t at[4] = {u / clean.len / clean.heads, u / clean.len % clean.heads,
                             u % clean.len, c};
      const float got = *((const float *)s->y.data + at[0] * s->y.stride_batch +
                          at[1] * s->y.stride_head + at[2] * s->y.stride_len + c);
      const double want = oracle_get(&clean, at[0], at[1], at[2], c);
      uint32_t bits;
      memcpy(&bits, &got, 4);
      if (reads(s, at) ? bits != 0x7fc00000u : !((double)got == want))
        fail_msg("%s: [%d,%d,%d,%d] is %g (%08x), was %g", what, (int)at[0], (int)at[1], (int)at[2],
                 (int)c, (double)got, (unsigned)bits, want);
    }
}

enum { LOST_B = 1, LOST_H = 1, LOST_T = 66, LOST_C = 17, LOST_KEEP = 1, LOST_TAPS = 4 };

static int only_it(const parts *s, const int64_t *at) {
  (void)s;
  return at[0] == LOST_B && at[1] == LOST_H && at[2] == LOST_T && at[3] == LOST_C;
}
/* Its row, or the rows of its group. */
static int its_group(const parts *s, const int64_t *at) {
  const int before = s->norm.kind == ATTN_GATED_NORM_BEFORE;
  const int64_t each = before ? s->x.heads / (s->norm.groups ? s->norm.groups : 1) : 1;
  return at[0] == LOST_B && at[1] / each == LOST_H / each && at[2] == LOST_T;
}
static int its_taps(const parts *s, const int64_t *at) {
  (void)s;
  return at[0] == LOST_B && at[1] == LOST_H && at[3] == LOST_C && at[2] >= LOST_T &&
         at[2] < LOST_T + LOST_TAPS;
}
/* Kept row 1 of 3 lies two rows before the first. */
static int its_first_taps(const parts *s, const int64_t *at) {
  (void)s;
  return at[0] == LOST_B && at[1] == LOST_H && at[3] == LOST_C && at[2] <= LOST_KEEP;
}
static int its_column(const parts *s, const int64_t *at) {
  (void)s;
  return at[3] == LOST_C;
}

/* A NaN, of any sign and payload, is the default one where it is read, and changes no other bit. */
void M1_parts_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(1924);
  const uint32_t odd = 0xffa12345u; /* it signals */
  float lost;
  memcpy(&lost, &odd, 4);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    const int kind = n < 4 ? 0 : n < 8 ? 1 : 2;
    parts *s = build(kind, 0, 2, 4, 130, n % 2 ? 40 : 270, &rng);
    s->decay.bounded = n % 4 > 1, s->decay.channels = n % 2;
    s->norm.kind = (attn_gated_norm_kind)(n % 3);
    if (s->norm.kind == ATTN_GATED_NORM_BEFORE)
      s->norm.groups = n % 4 == 2 ? 0 : n % 4 == 3 ? 4 : 2;
    if (kind == 1) {
      s->z = drawn(ATTN_F32, TEST_PADDED, 1, 4, LOST_TAPS, s->x.dim, 1, &rng);
      s->conv.initial = drawn(ATTN_F32, TEST_PADDED, 2, 4, LOST_TAPS - 1, s->x.dim, 1, &rng);
      s->conv.bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, s->x.dim, 1, &rng);
      s->conv.final_rows = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, LOST_TAPS - 1, s->x.dim);
      if (n % 2) s->conv.activation = ATTN_ACT_NONE;
    }
    attn_tensor clean = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 130, s->x.dim);
    promise_run(&s->does);
    test_copy(clean, s->y);
    const struct {
      attn_tensor in;
      int64_t b, h, i;
      int (*reads)(const parts *, const int64_t *);
    } places[] = {{s->x, LOST_B, LOST_H, LOST_T,
                   kind == 0   ? only_it
                   : kind == 1 ? its_taps
                               : its_group},
                  {kind == 2 ? s->z : absent(), LOST_B, LOST_H, LOST_T,
                   s->norm.kind == ATTN_GATED_NORM_BEFORE ? its_group : only_it},
                  {s->conv.initial, LOST_B, LOST_H, LOST_KEEP, its_first_taps},
                  {s->conv.bias, 0, 0, 0, its_column}};
    for (int j = 0; j < 4; j++) {
      if (!places[j].in.data) continue;
      float *at = (float *)places[j].in.data + places[j].b * places[j].in.stride_batch +
                  places[j].h * places[j].in.stride_head + places[j].i * places[j].in.stride_len +
                  LOST_C;
      const float was = *at;
      char what[40];
      sprintf(what, "case %d, argument %d", n, j);
      memcpy(at, &lost, 4);
      promise_run(&s->does);
      spread(s, clean, places[j].reads, what);
      memcpy(at, &was, 4);
    }
    if (kind != 1) continue;
    /* rows that are kept keep it, whether they are the call's or were kept before */
    oracle_set(&s->x, LOST_B, LOST_H, 129, LOST_C, (double)NAN);
    promise_run(&s->does);
    for (int64_t c = 0; c < s->x.dim; c++)
      for (int64_t i = 0; i < LOST_TAPS - 1; i++) {
        const double got = oracle_get(&s->conv.final_rows, LOST_B, LOST_H, i, c);
        assert_true((got != got) == (c == LOST_C && i == LOST_TAPS - 2));
      }
    attn_short_convolve_params p = s->conv;
    attn_ctx ctx = test_ctx();
    p.initial = p.final_rows;
    assert_int_equal(
        attn_short_convolve(test_rows(s->y, 0, 1), test_rows(s->x, 0, 1), s->z, &p, &ctx), ATTN_OK);
    for (int64_t i = 0; i < LOST_TAPS - 1; i++) {
      const double got = oracle_get(&p.final_rows, LOST_B, LOST_H, i, LOST_C);
      assert_true((got != got) == (i == LOST_TAPS - 3));
    }
  }
}

#define BAD(what, status, word)                      \
  {                                                  \
    const parts was = *s;                            \
    what;                                            \
    promise_reject(&s->does, ATTN_E_##status, word); \
    *s = was;                                        \
  }

void M1_parts_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(1923);
  parts *s = build(0, 0, 2, 2, 9, 6, &rng);
  BAD(s->x.data = NULL, NULL, "x")
  BAD(s->y.dim = 5, SHAPE, "y")
  BAD(s->decay.lower = -1, VALUE, "lower")
  BAD(s->decay.bounded = 1; s->decay.lower = 1, VALUE, "lower")
  BAD(s->decay.bounded = 1; s->decay.lower = NAN, VALUE, "lower")
  BAD(s->decay.a_log = (const float *)(const void *)((const char *)s->x.data + 2), ALIGN, "a_log")
  BAD(s->decay.dt_bias = s->y.data, OVERLAP, "y")
  s = build(2, 0, 2, 2, 9, 6, &rng);
  BAD(s->z.data = NULL, NULL, "z")
  BAD(s->z.len = 8, SHAPE, "z")
  BAD(s->y.heads = 1, SHAPE, "y")
  BAD(s->norm.kind = ATTN_GATED_NORM_COUNT, RANGE, "kind")
  BAD(s->norm.groups = 2, RANGE, "groups")
  BAD(s->norm.kind = ATTN_GATED_NORM_BEFORE; s->norm.groups = 3, RANGE, "groups")
  BAD(s->norm.eps = -1, VALUE, "eps")
  s = build(1, 0, 2, 2, 9, 6, &rng);
  s->z = drawn(ATTN_F32, TEST_BHTD, 1, 2, 4, 6, 1, &rng);
  s->conv.initial = drawn(ATTN_F32, TEST_BHTD, 2, 2, 3, 6, 1, &rng);
  int32_t len[] = {9, 10}, cu[] = {0, 4, 9};
  BAD(s->z.dim = 5, SHAPE, "w")
  BAD(s->z.len = 0, SHAPE, "w")
  BAD(s->z.len = 65, SHAPE, "w")
  BAD(s->conv.initial.len = 2, SHAPE, "initial")
  BAD(s->conv.bias = s->x, SHAPE, "bias")
  BAD(s->conv.activation = ATTN_ACT_COUNT, RANGE, "activation")
  BAD(s->conv.len = len, RANGE, "len")
  BAD(s->conv.cu_seqlens = cu; s->conv.sequences = 2, SHAPE, "batch")
  BAD(s->conv.sequences = 2, NULL, "cu_seqlens")
  BAD(s->y.data = s->x.data, OVERLAP, "y")
  s = build(1, 0, 1, 2, 9, 6, &rng);
  s->z = drawn(ATTN_F32, TEST_BHTD, 1, 2, 4, 6, 1, &rng);
  int32_t bad[] = {0, 5, 4};
  BAD(s->conv.cu_seqlens = bad; s->conv.sequences = 2, RANGE, "cu_seqlens")
}
#undef BAD
