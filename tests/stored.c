/* tests/stored.c owns the making and reading of quantised tensors in the tests. */

#include "stored.h"

#include <math.h>
#include <string.h>

double stored_number(attn_dtype dtype, unsigned code) {
  if (dtype == ATTN_I8) return code < 128 ? (double)code : (double)code - 256;
  if (dtype == ATTN_I4) return code < 8 ? (double)code : (double)code - 16;
  int e = (int)(code >> 3 & 15u), m = (int)(code & 7u);
  double x = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
  if (e == 15 && m == 7) x = (double)NAN;
  return code & 128u ? -x : x;
}

static int64_t bytes_of(attn_dtype dtype, int64_t n) {
  return dtype == ATTN_I4 ? (n + (n & 1)) / 2 : n;
}

unsigned stored_code(attn_dtype dtype, const void *row, int64_t c) {
  const unsigned char *p = row;
  if (dtype != ATTN_I4) return p[c];
  return c & 1 ? (unsigned)p[c / 2] >> 4 : p[c / 2] & 15u;
}

unsigned char *stored_row(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  int64_t at = b * t->stride_batch + h * t->stride_head + i * t->stride_len;
  return (unsigned char *)t->data + (t->dtype == ATTN_I4 ? at / 2 : at);
}

/* Strides in units of rows of `row` elements; the count of elements spanned. */
static int64_t lay(attn_tensor *t, test_layout layout, int64_t row, int64_t pad) {
  int64_t batch = layout == TEST_SHARED ? 1 : t->batch,
          heads = layout == TEST_SHARED ? 1 : t->heads;
  int64_t len = layout == TEST_ONE_ROW ? 1 : t->len;
  if (layout != TEST_PADDED && layout != TEST_NEGATIVE) pad = 0;
  t->stride_len = row + pad, t->stride_head = len * t->stride_len + 2 * pad;
  if (layout == TEST_BTHD) t->stride_head = row, t->stride_len = heads * row;
  t->stride_batch = layout == TEST_BTHD ? len * t->stride_len : heads * t->stride_head + pad;
  if (!t->batch || !t->heads || !t->len) return 0;
  int64_t before =
      (batch - 1) * t->stride_batch + (heads - 1) * t->stride_head + (len - 1) * t->stride_len;
  if (layout == TEST_SHARED) t->stride_batch = t->stride_head = 0;
  if (layout == TEST_ONE_ROW) t->stride_len = 0;
  if (layout == TEST_NEGATIVE) t->stride_batch *= -1, t->stride_head *= -1, t->stride_len *= -1;
  return before;
}

static float *numbers(test_block *block, int64_t before, int64_t groups, int back) {
  block->size = (size_t)(before + groups) * sizeof(float);
  block->data = test_mem(block->size);
  return (float *)(void *)block->data + (back ? before : 0);
}

stored stored_tensor(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads,
                     int64_t len, int64_t dim, int64_t group, int zero) {
  stored t;
  memset(&t, 0, sizeof t);
  int back = layout == TEST_NEGATIVE, some = batch && heads && len;
  t.x = attn_bhtd(NULL, dtype, batch, heads, len, dim);
  int64_t before = lay(&t.x, layout, dtype == ATTN_I4 ? dim + dim % 2 : dim, 4);
  t.code.size = some ? (size_t)(bytes_of(dtype, before) + bytes_of(dtype, dim)) : 0;
  t.code.data = test_mem(t.code.size);
  t.x.data = t.code.data + (back ? bytes_of(dtype, before) : 0);
  t.wide = test_tensor(ATTN_F32, TEST_BHTD, batch, heads, len, dim);
  if (group < 0) return t;
  int64_t groups = group ? (dim + group - 1) / group : 1;
  attn_tensor shape = t.x;
  before = lay(&shape, layout, groups, 3);
  t.s.group = group;
  t.s.stride_batch = shape.stride_batch, t.s.stride_head = shape.stride_head;
  t.s.stride_len = shape.stride_len;
  if (!some) groups = 0;
  t.s.scale = numbers(&t.scale, before, groups, back);
  if (zero) t.s.zero = numbers(&t.zero, before, groups, back);
  return t;
}

void stored_fill(stored *t, test_rng *rng) {
  for (size_t i = 0; i < t->code.size; i++) {
    unsigned char code = (unsigned char)test_u64(rng);
    if (t->x.dtype == ATTN_E4M3 && (code & 127u) == 127u) code &= 128u;
    t->code.data[i] = code;
  }
  double top = t->x.dtype == ATTN_I8 ? 127 : t->x.dtype == ATTN_I4 ? 7 : 448;
  for (size_t i = 0; i < t->scale.size / sizeof(float); i++) {
    ((float *)(void *)t->scale.data)[i] = (float)((double)test_range(rng, 50, 200) / 100 / top);
    if (t->zero.size) ((float *)(void *)t->zero.data)[i] = (float)test_range(rng, -5, 5);
  }
  stored_widen(t);
}

void stored_widen(stored *t) {
  const attn_tensor *x = &t->x;
  for (int64_t b = 0; b < x->batch; b++)
    for (int64_t h = 0; h < x->heads; h++)
      for (int64_t i = 0; i < x->len; i++)
        for (int64_t c = 0; c < x->dim; c++) {
          float n =
              (float)stored_number(x->dtype, stored_code(x->dtype, stored_row(x, b, h, i), c));
          int64_t at = b * t->s.stride_batch + h * t->s.stride_head + i * t->s.stride_len +
                       (t->s.group ? c / t->s.group : 0);
          if (t->s.zero) n = n - t->s.zero[at];
          if (t->s.scale) n = n * t->s.scale[at];
          oracle_set(&t->wide, b, h, i, c, (double)n);
        }
}
