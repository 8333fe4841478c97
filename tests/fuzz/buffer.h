/* buffer.h owns the memory behind a view: exactly the bytes that the view reaches, on the heap, so
 * that the address sanitizer sees the first byte outside; and the proof that a call wrote to the
 * view's elements only, or to nothing. */

#ifndef FUZZ_BUFFER_H
#define FUZZ_BUFFER_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"

/* Views that reach further, have more rows or, by rows that overlap, more elements than places get no memory: filling them
 * would take longer than any call. */
#define SPAN_MAX ((int64_t)1 << 20)
#define ROWS_MAX ((int64_t)1 << 14)

typedef struct buffer {
  attn_tensor view;
  uint8_t *base;  /* the memory; null for none, or when another buffer owns it */
  uint8_t *image; /* what it held before the call */
  size_t size;
  size_t zero; /* where element (0, 0, 0, 0) lies */
} buffer;

static void *must(void *memory) {
  if (!memory) abort();
  return memory;
}

/* The bytes reached before and after the first element; 0 when they are too many. */
static int reach(const int64_t count[3], const int64_t stride[3], int64_t dim, size_t size,
                 size_t *before, size_t *after) {
  __int128 low = 0, high = dim, rows = 1;
  *before = *after = 0;
  for (int i = 0; i < 3; i++)
    if (count[i] < 0 || dim < 0) return 0;
  for (int i = 0; i < 3; i++)
    if (count[i] == 0 || dim == 0) return 1;
  for (int i = 0; i < 3; i++) {
    __int128 far = (__int128)(count[i] - 1) * stride[i];
    if (far > 0) high += far;
    if (far < 0) low -= far;
    rows *= count[i];
    if (rows > ROWS_MAX || rows * dim > SPAN_MAX || low > SPAN_MAX || high > SPAN_MAX) return 0;
  }
  *before = (size_t)low * size;
  *after = (size_t)high * size;
  return 1;
}

static size_t type_size(attn_dtype dtype) {
  return dtype == ATTN_F32 ? 4 : dtype >= ATTN_I8 && dtype < ATTN_DTYPE_COUNT ? 1 : 2;
}

/* Two elements of ATTN_I4 share a byte. */
static size_t bytes_of(const attn_tensor *t, size_t bytes) {
  return t->dtype == ATTN_I4 ? (bytes + 1) / 2 : bytes;
}

/* Gives the view its memory, shift elements into a block; 0 when it gets none. */
static int buffer_make(buffer *b, attn_tensor view, int shift) {
  const int64_t count[3] = {view.batch, view.heads, view.len};
  const int64_t stride[3] = {view.stride_batch, view.stride_head, view.stride_len};
  size_t before, after, size = type_size(view.dtype);
  memset(b, 0, sizeof *b);
  b->view = view;
  if ((unsigned)view.dtype >= ATTN_DTYPE_COUNT) return 0;
  if (!reach(count, stride, view.dim, size, &before, &after)) return 0;
  before = bytes_of(&view, before), after = bytes_of(&view, after);
  b->zero = (size_t)shift * size + before;
  b->size = b->zero + after;
  b->base = (uint8_t *)must(malloc(b->size + !b->size));
  b->image = (uint8_t *)must(malloc(b->size + !b->size));
  memset(b->base, 0xA5, b->size);
  b->view.data = b->base + b->zero;
  return 1;
}

/* 1 when the view has elements, in memory of its own. */
static int buffer_full(const buffer *b) {
  const attn_tensor *t = &b->view;
  return b->base && t->data && t->batch > 0 && t->heads > 0 && t->len > 0 && t->dim > 0;
}

static void buffer_free(buffer *b) {
  free(b->base);
  free(b->image);
}

static void buffer_remember(buffer *b) {
  if (b->base) memcpy(b->image, b->base, b->size);
}

static void buffer_restore(buffer *b) {
  if (b->base) memcpy(b->base, b->image, b->size);
}

static int buffer_unchanged(const buffer *b) {
  return !b->base || memcmp(b->image, b->base, b->size) == 0;
}

/* Calls visit with the place of every row's first byte. */
static void each_row(const buffer *b, void (*visit)(const buffer *, size_t place, void *),
                     void *user) {
  const attn_tensor *t = &b->view;
  /* an empty view may have endless extents beside its zero */
  if (!buffer_full(b)) return;
  for (int64_t i = 0; i < t->batch; i++)
    for (int64_t h = 0; h < t->heads; h++)
      for (int64_t n = 0; n < t->len; n++) {
        int64_t at = i * t->stride_batch + h * t->stride_head + n * t->stride_len;
        at = t->dtype == ATTN_I4 ? at / 2 : at * (int64_t)type_size(t->dtype);
        visit(b, (size_t)((int64_t)b->zero + at), user);
      }
}

static void hide_row(const buffer *b, size_t place, void *copy) {
  const size_t bytes = (size_t)b->view.dim * type_size(b->view.dtype);
  memcpy((uint8_t *)copy + place, b->image + place, bytes_of(&b->view, bytes));
}

/* 1 when nothing but the view's own elements was written. */
static int buffer_gaps_unchanged(const buffer *b) {
  if (!b->base) return 1;
  uint8_t *copy = (uint8_t *)must(malloc(b->size + 1));
  memcpy(copy, b->base, b->size);
  each_row(b, hide_row, copy);
  int same = memcmp(copy, b->image, b->size) == 0;
  free(copy);
  return same;
}

static float from_half(uint16_t half) {
  int e = half >> 10 & 31, fraction = half & 1023;
  float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (e == 31) return fraction ? NAN : sign * INFINITY;
  return sign * ldexpf((float)(e ? fraction + 1024 : fraction), (e ? e : 1) - 25);
}

/* Element c of the row whose first byte is at p. */
static float element(attn_dtype dtype, const uint8_t *p, int64_t c) {
  float x;
  uint16_t half;
  if (dtype == ATTN_F32) {
    memcpy(&x, p + 4 * c, 4);
    return x;
  }
  memcpy(&half, p + 2 * c, 2);
  if (dtype == ATTN_F16) return from_half(half);
  uint32_t bits = (uint32_t)half << 16;
  memcpy(&x, &bits, 4);
  return x;
}

/* Element c = x, which must be exact in the type: here a multiple of 1/16 below 2, or special. */
static void set_element(attn_dtype dtype, uint8_t *p, int64_t c, float x) {
  uint32_t bits;
  if (type_size(dtype) == 1) return; /* a wrong type here, or codes of make_stored */
  memcpy(&bits, &x, 4);
  uint32_t e = bits >> 23 & 255, half = bits >> 16;
  if (dtype == ATTN_F16)
    half = (bits >> 16 & 0x8000) |
           (e == 255 ? 31u << 10
            : e      ? (e - 112) << 10
                     : 0) |
           (bits >> 13 & 1023);
  uint16_t word = (uint16_t)half;
  if (dtype == ATTN_F32)
    memcpy(p + 4 * c, &x, 4);
  else
    memcpy(p + 2 * c, &word, 2);
}

/* Small numbers; when specials is not 0, about one in specials is infinite or NaN. */
typedef struct filler {
  uint32_t state;
  int specials;
} filler;

static uint32_t filler_next(filler *f) {
  f->state = f->state * 1664525u + 1013904223u;
  return f->state >> 12;
}

static float filler_number(filler *f) {
  uint32_t r = filler_next(f);
  if (f->specials && r % (uint32_t)f->specials == 0) {
    r = filler_next(f);
    return r % 3 == 0 ? NAN : r % 3 == 1 ? -INFINITY : INFINITY;
  }
  return (float)((int)(r % 63) - 31) / 16.0f;
}

static void fill_row(const buffer *b, size_t place, void *user) {
  for (int64_t c = 0; c < b->view.dim; c++)
    set_element(b->view.dtype, b->base + place, c, filler_number((filler *)user));
}

static void buffer_fill(buffer *b, filler *f) { each_row(b, fill_row, f); }

#endif
