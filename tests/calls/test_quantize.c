/* tests/calls/test_quantize.c owns attn_quantize and attn_dequantize: every code, the rule of the scales,
 * ties, errors, layouts, memory, and bad input. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "stored.h"

static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};
static double top_of(attn_dtype t) { return t == ATTN_I8 ? 127 : t == ATTN_I4 ? 7 : 448; }

static void quantize(const stored *t, attn_tensor x) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_quantize(t->x, t->s, x, &ctx);
  if (status) fail_msg("attn_quantize: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
}

static void dequantize(attn_tensor y, const stored *t) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_dequantize(y, t->x, t->s, &ctx);
  if (status) fail_msg("attn_dequantize: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
}

/* All codes at every place of a vector, every length of a tail, against unreadable pages. */
void A1_quantize_every_code(void **state) {
  (void)state;
  test_rng rng = test_seed(7000);
  for (int k = 0; k < 3; k++)
    for (int64_t dim = 1; dim <= 300; dim += dim < 40 ? 1 : 65) {
      test_where = dim & 1 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
      if (dim > 40) test_where = TEST_HEAP;
      int group = k == 2 && dim % 3 == 0 ? -1 : dim % 3 == 1 ? 32 : 0;
      stored t = stored_tensor(types[k], TEST_BHTD, 1, 1, 2, dim, group, k < 2 && dim % 4 < 2);
      stored_fill(&t, &rng);
      unsigned shift = (unsigned)test_u64(&rng);
      for (size_t i = 0; i < t.code.size; i++) t.code.data[i] = (unsigned char)(i + shift);
      stored_widen(&t);
      attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, 1, 1, 2, dim);
      dequantize(y, &t);
      for (int64_t i = 0; i < 2; i++)
        for (int64_t c = 0; c < dim; c++) {
          double got = oracle_get(&y, 0, 0, i, c), want = oracle_get(&t.wide, 0, 0, i, c);
          if (got != want && !(isnan(got) && isnan(want)))
            fail_msg("type %d, dim %d, column %d: %g, not %g", types[k], (int)dim, (int)c, got,
                     want);
        }
      for (attn_dtype to = ATTN_F16; to <= ATTN_BF16; to++) {
        attn_tensor z = test_tensor(to, TEST_BHTD, 1, 1, 2, dim);
        attn_tensor want = test_tensor(to, TEST_BHTD, 1, 1, 2, dim);
        dequantize(z, &t);
        test_copy(want, t.wide);
        for (int64_t c = 0; c < 2 * dim; c++) {
          double got = oracle_get(&z, 0, 0, c / dim, c % dim);
          double exact = oracle_get(&want, 0, 0, c / dim, c % dim);
          assert_true(got == exact || (isnan(got) && isnan(exact)));
        }
      }
      test_mem_release();
    }
}

/* Codes are kept: E4M3 without scales, and integers whose extremes are those of the type. */
void A1_quantize_keeps_codes(void **state) {
  (void)state;
  stored t = stored_tensor(ATTN_E4M3, TEST_BHTD, 1, 1, 1, 256, -1, 0), again = t;
  for (int c = 0; c < 256; c++) t.code.data[c] = (unsigned char)((c & 127) == 127 ? 0 : c);
  stored_widen(&t);
  again = stored_tensor(ATTN_E4M3, TEST_BHTD, 1, 1, 1, 256, -1, 0);
  quantize(&again, t.wide);
  assert_memory_equal(again.code.data, t.code.data, 256);
  for (int k = 0; k < 2; k++)
    for (int zero = 0; zero < 2; zero++) {
      int64_t n = k ? 16 : 256, first = zero ? 0 : 1; /* symmetric: the lowest code is not used */
      stored x = stored_tensor(types[k], TEST_BHTD, 1, 1, 1, n - first, 0, zero);
      float *in = test_mem((size_t)n * sizeof(float));
      for (int64_t c = 0; c < n - first; c++)
        in[c] = 0.25f * (float)(c + first - n / 2 + (zero ? 3 : 0));
      quantize(&x, attn_bhtd(in, ATTN_F32, 1, 1, 1, n - first));
      assert_true(x.s.scale[0] == 0.25f);
      if (zero) assert_true(x.s.zero[0] == -3.0f);
      for (int64_t c = 0; c < n - first; c++)
        assert_true(stored_number(types[k], stored_code(types[k], x.x.data, c)) ==
                    (double)(c + first - n / 2));
    }
}

/* The nearest code to q by search, of two the even one; q within range. */
static unsigned nearest(attn_dtype type, double q) {
  unsigned best = 0;
  for (unsigned code = 0; code < (type == ATTN_I4 ? 16u : 256u); code++) {
    double x = stored_number(type, code), d = fabs(x - q), least;
    if (isnan(x) || (x == 0 && signbit(x) != signbit(q) && type == ATTN_E4M3)) continue;
    least = fabs(stored_number(type, best) - q);
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return best;
}

static double draw_wild(test_rng *rng) {
  return ldexp(test_normal(rng), (int)test_range(rng, -12, 12));
}

/* One group of one row, judged from its input. */
static void judge(const stored *t, attn_tensor x, int64_t b, int64_t h, int64_t i, int64_t g) {
  attn_dtype type = t->x.dtype;
  int64_t group = t->s.group ? t->s.group : x.dim, from = g * group;
  int64_t end = from + group < x.dim ? from + group : x.dim;
  int64_t at = b * t->s.stride_batch + h * t->s.stride_head + i * t->s.stride_len + g;
  double lo = 0, hi = 0, top = top_of(type), scale = 1, zero = 0;
  for (int64_t c = from; c < end; c++) {
    double v = oracle_get(&x, b, h, i, c);
    lo = v < lo ? v : lo, hi = v > hi ? v : hi;
  }
  double range = t->s.zero ? hi - lo : hi > -lo ? hi : -lo, steps = t->s.zero ? 2 * top + 1 : top;
  if (t->s.scale) {
    scale = (double)t->s.scale[at];
    assert_true(scale > 0 && scale < (double)INFINITY);
    if (range == 0)
      assert_true(scale == 1);
    else /* the smallest float that covers the range */
      assert_true(scale * steps >= range && (double)nextafterf((float)scale, 0.0f) * steps < range);
  }
  if (t->s.zero) {
    zero = (double)t->s.zero[at];
    assert_true(zero == nearbyint(zero) && zero >= -top - 1 && zero <= top);
  }
  for (int64_t c = from; c < end; c++) {
    unsigned code = stored_code(type, stored_row(&t->x, b, h, i), c);
    double v = oracle_get(&x, b, h, i, c), n = stored_number(type, code);
    double off = fabs(v - (n - zero) * scale), q = v / scale;
    double bound = scale / 2 * (1 + ldexp(1, -20));
    if (type == ATTN_E4M3) {
      bound = fmax(fabs(v) / 16, scale * ldexp(1, -10));
      q = q > 448 ? 448 : q < -448 ? -448 : q;
      if (!t->s.scale && fabs(v) > 448) bound = (double)INFINITY;
      if (code != nearest(type, q)) fail_msg("%.17g became %g", q, n);
    } else {
      double want = nearbyint(q) + zero;
      want = want > top ? top : want < -top - 1 ? -top - 1 : want;
      if (n != want) fail_msg("%.17g became %g, not %g", q, n, want);
    }
    if (!(off <= bound)) fail_msg("%.17g is off by %g, more than %g", v, off, bound);
  }
}

static void judge_all(const stored *t, attn_tensor x) {
  int64_t groups = t->s.group ? (x.dim + t->s.group - 1) / t->s.group : 1;
  for (int64_t r = 0; r < x.batch * x.heads * x.len; r++)
    for (int64_t g = 0; g < groups; g++)
      judge(t, x, r / x.len / x.heads, r / x.len % x.heads, r % x.len, g);
}

/* Scales, zeros and codes of random rows of every magnitude, the error stated in api/calls/cache.h. */
void A1_quantize_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7001);
  static const int64_t dims[] = {1, 2, 7, 31, 32, 33, 64, 80, 127, 128, 255, 256, 257, 300};
  for (int64_t n = test_count(150, 40); n-- > 0;) {
    attn_dtype type = types[n % 3], from = (attn_dtype)test_range(&rng, 0, 2);
    int64_t dim = dims[test_u64(&rng) % 14], group = 32 * test_range(&rng, 0, 4);
    int none = type == ATTN_E4M3 && test_u64(&rng) % 3 == 0;
    stored t = stored_tensor(type, TEST_BHTD, 1, 2, 3, dim, none ? -1 : group,
                             type != ATTN_E4M3 && test_u64(&rng) % 2);
    attn_tensor x = test_tensor(from, TEST_PADDED, 1, 2, 3, dim);
    test_fill(x, &rng, test_u64(&rng) & 1 ? draw_wild : test_normal);
    test_fill_row(x, 0, 1, 1, 0.0);
    if (from != ATTN_F16) { /* far apart, and both near the ends of the range */
      double far = ldexp(test_normal(&rng), from == ATTN_BF16 || test_u64(&rng) & 1 ? 120 : -120);
      test_fill_row(x, 0, 0, 2, far);
      oracle_set(&x, 0, 0, 2, dim / 2, -far / 3);
    }
    for (int64_t c = 0; c < dim && n & 1; c++) /* one sign only */
      oracle_set(&x, 0, 1, 0, c, -fabs(oracle_get(&x, 0, 1, 0, c)));
    quantize(&t, x);
    judge_all(&t, x);
  }
}

/* Numbers so small that scales are subnormal, and the largest there are. */
void A1_quantize_extremes(void **state) {
  (void)state;
  static const float ends[] = {FLT_MAX, 1.4e-45f, 1e-44f, 2.7e-43f, FLT_MIN, 127 * 1.4e-45f};
  for (int k = 0; k < 3; k++)
    for (int n = 0; n < 6; n++)
      for (int zero = 0; zero < (k < 2 ? 2 : 1); zero++) {
        stored t = stored_tensor(types[k], TEST_BHTD, 1, 1, 1, 5, 0, zero);
        float *in = test_mem(5 * sizeof *in);
        in[0] = ends[n], in[1] = -ends[n], in[2] = ends[n] / 2, in[3] = -0.0f, in[4] = ends[n] / 3;
        quantize(&t, attn_bhtd(in, ATTN_F32, 1, 1, 1, 5));
        judge_all(&t, attn_bhtd(in, ATTN_F32, 1, 1, 1, 5));
      }
}

/* Exact halves go to even codes, just beside them to the nearer. */
void A1_quantize_ties(void **state) {
  (void)state;
  for (int k = 0; k < 3; k++) {
    attn_dtype type = types[k];
    int n = type == ATTN_I4 ? 14 : type == ATTN_I8 ? 254 : 252;
    float *in = test_mem((size_t)(3 * n + 1) * sizeof *in);
    for (int c = 0; c < n; c++) { /* between a code and the next */
      double a = type == ATTN_E4M3 ? stored_number(type, (unsigned)(c % 126) | (c < 126 ? 0 : 128u))
                                   : c - n / 2;
      double b = type == ATTN_E4M3
                     ? stored_number(type, ((unsigned)(c % 126) + 1) | (c < 126 ? 0 : 128u))
                     : a + 1;
      in[3 * c] = (float)((a + b) / 2);
      in[3 * c + 1] = nextafterf(in[3 * c], INFINITY),
                 in[3 * c + 2] = nextafterf(in[3 * c], -INFINITY);
    }
    in[3 * n] = (float)top_of(type);
    stored t = stored_tensor(type, TEST_BHTD, 1, 1, 1, 3 * n + 1, 0, 0);
    attn_tensor x = attn_bhtd(in, ATTN_F32, 1, 1, 1, 3 * n + 1);
    quantize(&t, x);
    assert_true(t.s.scale[0] == 1.0f);
    for (int c = 0; c < 3 * n + 1; c++) {
      unsigned got = stored_code(type, t.x.data, c), want = nearest(type, (double)in[c]);
      if (got != want) fail_msg("type %d: %.9g became %u, not %u", type, (double)in[c], got, want);
    }
  }
}

/* E4M3 without scales clips; the last number before 448 and all beyond become 448. */
void A1_quantize_clips(void **state) {
  (void)state;
  static const float x[8] = {448, 449, 464, 465, -1e30f, FLT_MAX, 432.1f, -439.9f};
  static const double want[8] = {448, 448, 448, 448, -448, 448, 448, -448};
  stored t = stored_tensor(ATTN_E4M3, TEST_BHTD, 1, 1, 1, 8, -1, 0);
  quantize(&t, attn_bhtd(x, ATTN_F32, 1, 1, 1, 8));
  for (int c = 0; c < 8; c++) assert_true(stored_number(ATTN_E4M3, t.code.data[c]) == want[c]);
}

/* Every layout of input, output and scales; what lies between rows stays; any workers; guarded. */
void A1_quantize_layouts(void **state) {
  (void)state;
  test_rng rng = test_seed(7002);
  for (int k = 0; k < 3; k++)
    for (int layout = 0; layout <= TEST_NEGATIVE; layout++)
      for (int from = 0; from < TEST_LAYOUTS; from++) {
        test_where = from % 2 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
        int zero = k < 2 && from % 3 == 0;
        int64_t dim = from % 2 ? 37 : 40, group = from % 4 < 2 ? 0 : 32;
        attn_tensor x = test_tensor((attn_dtype)(from % 3), (test_layout)from, 2, 2, 3, dim);
        test_fill(x, &rng, test_normal);
        stored t = stored_tensor(types[k], (test_layout)layout, 2, 2, 3, dim, group, zero);
        quantize(&t, x);
        judge_all(&t, x);
        size_t used = 0, groups = group ? 2 : 1; /* bytes that differ from the filling or not */
        unsigned char *was = test_mem(t.code.size);
        for (int64_t r = 0; r < 12; r++) {
          unsigned char *row = stored_row(&t.x, r / 6, r / 3 % 2, r % 3);
          size_t n = (size_t)(types[k] == ATTN_I4 ? (dim + 1) / 2 : dim);
          memcpy(was + (row - t.code.data), row, n), used += n;
        }
        assert_memory_equal(was, t.code.data, t.code.size);
        assert_true(layout == TEST_PADDED || layout == TEST_NEGATIVE || used == t.code.size);
        size_t unused = 0;
        for (size_t n = 0; n < t.scale.size; n += 4)
          unused += memcmp(t.scale.data + n, "\xA5\xA5\xA5\xA5", 4) == 0;
        assert_int_equal(unused, t.scale.size / 4 - 12 * groups);
        stored again = stored_tensor(types[k], (test_layout)layout, 2, 2, 3, dim, group, zero);
        attn_ctx ctx = test_ctx();
        ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
        assert_int_equal(attn_quantize(again.x, again.s, x, &ctx), ATTN_OK);
        assert_memory_equal(again.code.data, t.code.data, t.code.size);
        assert_memory_equal(again.scale.data, t.scale.data, t.scale.size);
        stored_widen(&t);
        attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 3, dim);
        dequantize(y, &t);
        for (int64_t r = 0; r < 12 * dim; r++)
          assert_true(((float *)y.data)[r] == ((float *)t.wide.data)[r]);
        test_mem_release();
      }
}

/* Rows longer than what is converted at a time, and more rows than a work item. */
void A1_quantize_long(void **state) {
  (void)state;
  test_rng rng = test_seed(7003);
  for (int k = 0; k < 3; k++)
    for (int shape = 0; shape < 2; shape++) {
      int64_t len = shape ? 200 : 2, dim = shape ? 3 : 1001;
      attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, dim);
      test_fill(x, &rng, test_normal);
      stored t = stored_tensor(types[k], TEST_BHTD, 1, 1, len, dim, shape ? 0 : 96 * k, k == 1);
      quantize(&t, x);
      judge_all(&t, x);
      stored_widen(&t);
      attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, dim);
      dequantize(y, &t);
      for (int64_t r = 0; r < len * dim; r++)
        assert_true(((float *)y.data)[r] == ((float *)t.wide.data)[r]);
    }
}

/* Extents of 0 need no memory; null contexts are fine. */
void A1_quantize_empty(void **state) {
  (void)state;
  attn_scales none;
  memset(&none, 0, sizeof none);
  for (int d = 0; d < 3; d++) {
    int64_t n[3] = {2, 2, 2};
    n[d] = 0;
    attn_tensor q = attn_bhtd(NULL, ATTN_I8, n[0], n[1], n[2], 5), x = q;
    x.dtype = ATTN_F32;
    assert_int_equal(attn_quantize(q, none, x, NULL), ATTN_OK);
    assert_int_equal(attn_dequantize(x, q, none, NULL), ATTN_OK);
  }
  attn_tensor t = attn_bhtd(NULL, ATTN_I8, 2, 3, 4, 70);
  attn_scales s = attn_scales_dense(NULL, NULL, 32, &t);
  assert_true(s.stride_len == 3 && s.stride_head == 12 && s.stride_batch == 36 && s.group == 32);
  s = attn_scales_dense(NULL, NULL, 0, &t);
  assert_true(s.stride_len == 1 && s.stride_head == 4 && s.stride_batch == 12);
  assert_int_equal(attn_quantize_workspace(t, s, t, NULL), ATTN_WORKSPACE_REJECTED);
  assert_int_equal(attn_dequantize_workspace(t, t, s, NULL), ATTN_WORKSPACE_REJECTED);
}

/* Bad input, both ways. */
void A1_quantize_rejects(void **state) {
  (void)state;
  enum { RULES = 32 };
  int met = 0;
  for (int n = 0; n < RULES; n++)
    for (int back = 0; back < 2; back++) {
      test_rng rng = test_seed(7004);
      int i4 = n == 13 || n == 14;
      stored t = stored_tensor(i4 ? ATTN_I4 : ATTN_I8, TEST_PADDED, 2, 2, 3, 40, 32, 1);
      stored_fill(&t, &rng);
      attn_tensor x = test_tensor(ATTN_F32, TEST_PADDED, 2, 2, 3, 40);
      test_block wide = test_last_block;
      test_fill(x, &rng, test_normal);
      attn_scales s = t.s;
      attn_tensor q = t.x, *out = back ? &x : &q;
      attn_ctx ctx = test_ctx();
      ctx.workers = 3,
      ctx.parallel_for = test_parallel_threads; /* who finds a NaN tells the others */
      attn_status want = ATTN_OK;
      const char *word = "";
      switch (n) {
        case 0: q.data = NULL, want = ATTN_E_NULL, word = back ? "x" : "y"; break;
        case 1: x.data = NULL, want = ATTN_E_NULL, word = back ? "y" : "x"; break;
        case 2: q.dtype = ATTN_F32, q.data = x.data, want = ATTN_E_DTYPE, word = "dtype"; break;
        case 3: x.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "dtype"; break;
        case 4: x.dtype = (attn_dtype)-1, want = ATTN_E_DTYPE, word = "dtype"; break;
        case 5: q.dtype = ATTN_DTYPE_COUNT, want = ATTN_E_DTYPE, word = "dtype"; break;
        case 6: x.dim = 39, want = ATTN_E_SHAPE, word = "shape"; break;
        case 7: x.batch = 1, want = ATTN_E_SHAPE, word = "shape"; break;
        case 8: q.len = -1, want = ATTN_E_SHAPE, word = "len"; break;
        case 9: s.group = 16, want = ATTN_E_SHAPE, word = "group"; break;
        case 10: s.group = -32, want = ATTN_E_SHAPE, word = "group"; break;
        case 11: s.scale = NULL, want = ATTN_E_NULL, word = "scales.scale"; break;
        case 12: q.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "scales.zero"; break;
        case 13: q.stride_len++, want = ATTN_E_STRIDE, word = "even"; break;
        case 14: q.stride_head--, want = ATTN_E_STRIDE, word = "even"; break;
        case 15: out->stride_head = 0, want = ATTN_E_STRIDE, word = back ? "y" : "y"; break;
        case 16: out->stride_len = 20, want = ATTN_E_STRIDE, word = "y"; break;
        case 17:
          s.stride_head = 0, want = back ? ATTN_OK : ATTN_E_STRIDE, word = "scales.scale";
          break;
        case 18:
          s.scale = (float *)(void *)((char *)s.scale + 1), want = ATTN_E_ALIGN;
          word = "scales.scale";
          break;
        case 19:
          s.zero = (float *)(void *)((char *)s.zero + 2), want = ATTN_E_ALIGN, word = "scales.zero";
          break;
        case 20: x.data = (char *)x.data + 1, want = ATTN_E_ALIGN, word = back ? "y" : "x"; break;
        case 21: out->data = s.scale, want = ATTN_E_OVERLAP, word = "y"; break;
        case 22: out->data = s.zero, want = ATTN_E_OVERLAP, word = "y"; break;
        case 23: q.data = x.data, want = ATTN_E_OVERLAP, word = "y"; break;
        case 24: s.zero = s.scale, want = back ? ATTN_OK : ATTN_E_OVERLAP, word = "scales"; break;
        case 25: s.scale = x.data, want = ATTN_E_OVERLAP, word = back ? "y" : "scales.scale"; break;
        case 26: s.zero = x.data, want = ATTN_E_OVERLAP, word = back ? "y" : "scales.zero"; break;
        case 27: s.stride_batch = INT64_MAX / 3, want = ATTN_E_OVERFLOW, word = "scales"; break;
        case 28: q.stride_batch = INT64_MAX / 3, want = ATTN_E_OVERFLOW, word = ""; break;
        case 29: ctx.workers = -1, want = ATTN_E_CTX, word = "workers"; break;
        case 30:
          if (back) {
            s.scale[3 * s.stride_len / 3] = -1.0f, want = ATTN_E_SCALE, word = "scales";
          } else {
            oracle_set(&x, 1, 1, 2, 39, (double)NAN), want = ATTN_E_VALUE, word = "x";
          }
          break;
        default:
          if (back) {
            s.zero[1] = INFINITY, want = ATTN_E_SCALE, word = "scales";
          } else {
            oracle_set(&x, 0, 1, 0, 0, -(double)INFINITY), want = ATTN_E_VALUE, word = "x";
          }
      }
      unsigned char *code = test_mem(t.code.size), *scale = test_mem(t.scale.size);
      unsigned char *zero = test_mem(t.zero.size), *f32 = test_mem(wide.size);
      memcpy(code, t.code.data, t.code.size), memcpy(scale, t.scale.data, t.scale.size);
      memcpy(zero, t.zero.data, t.zero.size), memcpy(f32, wide.data, wide.size);
      attn_status got = back ? attn_dequantize(x, q, s, &ctx) : attn_quantize(q, s, x, &ctx);
      if (got != want) fail_msg("rule %d, back %d: %d (%s)", n, back, got, ctx.reason);
      if (want == ATTN_OK) continue;
      if (!ctx.reason || !strstr(ctx.reason, word))
        fail_msg("rule %d, back %d: \"%s\" lacks \"%s\"", n, back, ctx.reason, word);
      assert_memory_equal(code, t.code.data, t.code.size);
      assert_memory_equal(scale, t.scale.data, t.scale.size);
      assert_memory_equal(zero, t.zero.data, t.zero.size);
      assert_memory_equal(f32, wide.data, wide.size);
      met++;
    }
  assert_int_equal(met, 2 * RULES - 2);
}

/* Scales that no reader may have: each way to be wrong. */
void A1_quantize_scale_values(void **state) {
  (void)state;
  static const float bad[] = {0.0f, -0.0f, -1.0f, INFINITY, NAN};
  for (int n = 0; n < 5; n++) {
    test_rng rng = test_seed(7005);
    stored t = stored_tensor(ATTN_E4M3, TEST_BHTD, 1, 1, 2, 70, 32, 0);
    stored_fill(&t, &rng);
    t.s.scale[n] = bad[n];
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, 70);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_dequantize(y, t.x, t.s, &ctx), ATTN_E_SCALE);
    assert_non_null(strstr(ctx.reason, "scales"));
  }
}
