/* tests/calls/kept.c owns the storage of tests/calls/kept.h. */

#include <math.h>
#include <string.h>

#include "kept.h"

double kept_from_e4m3(uint8_t bits) {
  int exponent = bits >> 3 & 15, fraction = bits & 7;
  double x = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
  if (exponent == 15 && fraction == 7) x = (double)NAN;
  return bits & 0x80 ? -x : x;
}

int64_t kept_bytes(attn_dtype dtype, int64_t n) {
  if (dtype == ATTN_I4) return (n + 1) / 2;
  return dtype == ATTN_I8 || dtype == ATTN_E4M3 ? n : n * oracle_size(dtype);
}

static int is_float(attn_dtype dtype) {
  return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

/* Rows start on a byte, so their distances are even in 4 bits. */
static unsigned char *row_at(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  int64_t at = b * t->stride_batch + h * t->stride_head + i * t->stride_len;
  if (t->dtype == ATTN_I4) {
    assert_int_equal(at % 2, 0);
    return (unsigned char *)t->data + at / 2;
  }
  return (unsigned char *)t->data + at * kept_bytes(t->dtype, 1);
}

double kept_code(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
  const unsigned char *row = row_at(t, b, h, i);
  int n;
  switch (t->dtype) {
    case ATTN_I8: n = row[c]; return n > 127 ? n - 256 : n;
    case ATTN_I4: n = row[c / 2] >> (c % 2 ? 4 : 0) & 15; return n > 7 ? n - 16 : n;
    case ATTN_E4M3: return kept_from_e4m3(row[c]);
    default: return oracle_get(t, b, h, i, c);
  }
}

static int64_t groups_of(int64_t dim, int64_t group) {
  return group ? (dim + group - 1) / group : 1;
}

static int64_t scale_at(const attn_scales *s, int64_t b, int64_t h, int64_t i) {
  return b * s->stride_batch + h * s->stride_head + i * s->stride_len;
}

/* The bytes of quantised rows in a layout of tests/harness.h. */
static attn_tensor codes(const kept_spec *z, test_rng *rng) {
  int half = z->dtype == ATTN_I4;
  int64_t dim = half ? (z->dim + 1) / 2 * 2 : z->dim, pad = 0;
  int64_t batch = z->batch, heads = z->heads, len = z->len, count = 0;
  if (z->layout == TEST_SHARED) batch = heads = 1;
  if (z->layout == TEST_ONE_ROW) len = 1;
  if (z->layout == TEST_PADDED || z->layout == TEST_NEGATIVE) pad = half ? 6 : 3;
  attn_tensor t = attn_bhtd(NULL, z->dtype, z->batch, z->heads, z->len, z->dim);
  t.stride_len = dim + pad;
  t.stride_head = len * t.stride_len + 2 * pad;
  t.stride_batch = heads * t.stride_head + pad;
  if (z->layout == TEST_BTHD) {
    t.stride_head = dim;
    t.stride_len = z->heads * dim;
    t.stride_batch = z->len * z->heads * dim;
  }
  if (z->batch && z->heads && z->len) {
    count = (batch - 1) * t.stride_batch + (heads - 1) * t.stride_head + (len - 1) * t.stride_len;
    count = kept_bytes(z->dtype, count) + kept_bytes(z->dtype, z->dim);
  }
  if (z->layout == TEST_SHARED) t.stride_batch = t.stride_head = 0;
  if (z->layout == TEST_ONE_ROW) t.stride_len = 0;
  unsigned char *data = test_mem((size_t)count);
  t.data = data;
  for (int64_t n = 0; n < count; n++) {
    do {
      data[n] = (unsigned char)test_u64(rng);
    } while (z->dtype == ATTN_E4M3 && (data[n] & 0x7f) == 0x7f);
  }
  if (z->layout == TEST_NEGATIVE && count) {
    t.data = data + count - kept_bytes(z->dtype, z->dim);
    t.stride_batch = -t.stride_batch;
    t.stride_head = -t.stride_head;
    t.stride_len = -t.stride_len;
  }
  return t;
}

/* Exact on every machine when the limits are small fractions. */
static float *numbers(int64_t n, double low, double high, test_rng *rng) {
  float *x = test_mem((size_t)n * sizeof *x);
  for (int64_t k = 0; k < n; k++) {
    x[k] = (float)(low + (high - low) * (double)test_range(rng, 0, 64) / 64);
  }
  return x;
}

static attn_scales scales(const kept_spec *z, test_rng *rng) {
  static const double unit[ATTN_DTYPE_COUNT] = {1, 1, 1, 1.0 / 64, 0.25, 1.0 / 32};
  attn_scales s;
  memset(&s, 0, sizeof s);
  int64_t groups = groups_of(z->dim, z->group), pad = 0, last = groups;
  s.group = z->group;
  if (z->scaling == SCALE_PADDED || z->scaling == SCALE_NEGATIVE) pad = 2;
  s.stride_len = groups + pad;
  s.stride_head = z->len * s.stride_len + pad;
  s.stride_batch = z->heads * s.stride_head + pad;
  if (z->scaling == SCALE_BY_HEAD) s.stride_len = 0, s.stride_head = groups;
  if (z->scaling == SCALE_BY_HEAD) s.stride_batch = z->heads * groups;
  if (z->scaling == SCALE_SHARED) s.stride_len = s.stride_head = s.stride_batch = 0;
  if (z->batch && z->heads && z->len) last += scale_at(&s, z->batch - 1, z->heads - 1, z->len - 1);
  s.scale = numbers(last, unit[z->dtype] / 2, unit[z->dtype] * 2, rng);
  if (z->zero) s.zero = numbers(last, -4, 4, rng);
  if (z->scaling == SCALE_NEGATIVE) {
    s.scale += last - groups;
    if (z->zero) s.zero += last - groups;
    s.stride_batch = -s.stride_batch;
    s.stride_head = -s.stride_head;
    s.stride_len = -s.stride_len;
  }
  if (z->no_scale) s.scale = NULL;
  return s;
}

/* What row (b, h, i) stands for. */
static void refresh(kept *x, int64_t b, int64_t h, int64_t i) {
  const attn_scales *s = &x->s;
  for (int64_t c = 0; c < x->t.dim; c++) {
    int64_t at = scale_at(s, b, h, i) + (s->group ? c / s->group : 0);
    double n = kept_code(&x->t, b, h, i, c);
    double zero = s->zero ? (double)s->zero[at] : 0, scale = s->scale ? (double)s->scale[at] : 1;
    oracle_set(&x->plain, b, h, i, c, (n - zero) * scale);
  }
}

kept kept_rows(const kept_spec *z, test_rng *rng) {
  kept x;
  memset(&x, 0, sizeof x);
  if (is_float(z->dtype)) {
    x.t = test_tensor(z->dtype, z->layout, z->batch, z->heads, z->len, z->dim);
    test_fill(x.t, rng, test_normal);
  } else {
    x.t = codes(z, rng);
    x.s = scales(z, rng);
  }
  test_place where = test_where;
  test_where = TEST_HEAP;
  x.plain = test_tensor(ATTN_F32, TEST_BHTD, z->batch, z->heads, z->len, z->dim);
  test_where = where;
  for (int64_t row = 0; row < z->batch * z->heads * z->len; row++) {
    refresh(&x, row / z->len / z->heads, row / z->len % z->heads, row % z->len);
  }
  return x;
}

kept_spec kept_some(attn_dtype dtype, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                    test_rng *rng) {
  kept_spec z = {dtype, TEST_BHTD, batch, heads, len, dim, 0, 0, 0, SCALE_DENSE};
  z.layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
  z.group = (int64_t)(test_u64(rng) % 4) * 32;
  z.zero = dtype != ATTN_E4M3 && test_u64(rng) & 1;
  z.no_scale = dtype == ATTN_E4M3 && test_u64(rng) % 4 == 0;
  if (z.no_scale) z.group = 0;
  z.scaling = (kept_scaling)(test_u64(rng) % SCALE_KINDS);
  return z;
}

void kept_poison(kept *x, int64_t b, int64_t h, int64_t i) {
  unsigned char *row = row_at(&x->t, b, h, i);
  memset(row, x->t.dtype == ATTN_E4M3 ? 0x7f : 0xff, (size_t)kept_bytes(x->t.dtype, x->t.dim));
  for (int64_t g = 0; x->s.scale && g < groups_of(x->t.dim, x->s.group); g++) {
    x->s.scale[scale_at(&x->s, b, h, i) + g] = NAN;
  }
  test_fill_row(x->plain, b, h, i, (double)NAN);
}

void kept_move(kept *y, int64_t b1, int64_t i1, const kept *x, int64_t b0, int64_t i0) {
  assert_int_equal(x->t.dtype, y->t.dtype);
  for (int64_t h = 0; h < x->t.heads; h++) {
    memcpy(row_at(&y->t, b1, h, i1), row_at(&x->t, b0, h, i0),
           (size_t)kept_bytes(x->t.dtype, x->t.dim));
    for (int64_t g = 0; g < groups_of(x->t.dim, x->s.group); g++) {
      int64_t from = scale_at(&x->s, b0, h, i0) + g, to = scale_at(&y->s, b1, h, i1) + g;
      if (y->s.scale) y->s.scale[to] = x->s.scale[from];
      if (y->s.zero) y->s.zero[to] = x->s.zero[from];
    }
    for (int64_t c = 0; c < x->t.dim; c++) {
      oracle_set(&y->plain, b1, h, i1, c, oracle_get(&x->plain, b0, h, i0, c));
    }
  }
}

static void advance(kept *x, int64_t b, int64_t i) {
  x->t.data = row_at(&x->t, b, 0, i);
  if (x->s.scale) x->s.scale += scale_at(&x->s, b, 0, i);
  if (x->s.zero) x->s.zero += scale_at(&x->s, b, 0, i);
  x->plain.data = oracle_address(&x->plain, b, 0, i, 0);
}

kept kept_slice(kept x, int64_t i0, int64_t len) {
  if (len) advance(&x, 0, i0);
  x.t.len = x.plain.len = len;
  return x;
}

kept kept_entry(kept x, int64_t b) {
  advance(&x, b, 0);
  x.t.batch = x.plain.batch = 1;
  return x;
}

void kept_put(kept_call *c, kept k, kept v) {
  c->k = k, c->v = v;
  c->call.k = k.t, c->call.v = v.t;
  c->call.params.k_scales = k.s, c->call.params.v_scales = v.s;
}

void kept_compare(const kept_call *c, const char *what) {
  test_call plain = c->call;
  plain.k = c->k.plain, plain.v = c->v.plain;
  if (c->k.t.dtype >= ATTN_I8)
    test_compare_stored(&plain, what);
  else
    test_compare(&plain, what);
}

void kept_check(kept_call *c, const char *what) {
  test_run(&c->call);
  kept_compare(c, what);
}
