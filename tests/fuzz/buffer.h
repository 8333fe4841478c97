/* buffer.h owns the memory behind a view: exactly the bytes that the view reaches, on the heap, so
 * that the address sanitizer sees the first byte outside; and the proof that a call wrote to the
 * view's elements only, or to nothing. */

#ifndef FUZZ_BUFFER_H
#define FUZZ_BUFFER_H

#include <stdlib.h>
#include <string.h>

#include "attn.h"

/* Views that reach further than this get no memory and are only ever handed to calls that must
 * reject them. */
enum { SPAN_MAX = 1 << 20, PATTERN = 0xA5 };

typedef struct buffer {
  attn_tensor view;
  uint8_t *base;  /* the memory, or null */
  size_t size;    /* its bytes */
  size_t zero;    /* where element (0,0,0,0) lies */
  uint8_t *image; /* a copy, to compare with */
} buffer;

static size_t type_size(attn_dtype dtype) { return dtype == ATTN_F32 ? 4 : 2; }

/* The bytes the view reaches before and after its first element; 0 when that is too much or when
 * the view makes no sense. */
static int reach(attn_tensor t, size_t *before, size_t *after) {
  const int64_t count[3] = {t.batch, t.heads, t.len};
  const int64_t stride[3] = {t.stride_batch, t.stride_head, t.stride_len};
  __int128 low = 0, high = 0;
  *before = *after = 0;
  if (t.dtype != ATTN_F32 && t.dtype != ATTN_F16 && t.dtype != ATTN_BF16) return 0;
  if (count[0] < 0 || count[1] < 0 || count[2] < 0 || t.dim < 0) return 0;
  if (!count[0] || !count[1] || !count[2] || !t.dim) return 1;
  for (int i = 0; i < 3; i++) {
    __int128 far = (__int128)(count[i] - 1) * stride[i];
    if (far > 0) high += far;
    else low -= far;
  }
  high += t.dim;
  if (low > SPAN_MAX || high > SPAN_MAX) return 0;
  *before = (size_t)low * type_size(t.dtype);
  *after = (size_t)high * type_size(t.dtype);
  return 1;
}

/* Gives the view its memory, offset bytes into a block; 0 when it has none. */
static int buffer_make(buffer *b, attn_tensor view, size_t offset) {
  size_t before, after;
  memset(b, 0, sizeof *b);
  b->view = view;
  if (!reach(view, &before, &after)) return 0;
  b->zero = offset + before;
  b->size = offset + before + after;
  b->base = (uint8_t *)malloc(b->size ? b->size : 1);
  if (!b->base) abort();
  memset(b->base, PATTERN, b->size);
  b->view.data = b->base + b->zero;
  return 1;
}

static void buffer_free(buffer *b) {
  free(b->base);
  free(b->image);
  b->base = b->image = NULL;
}

static void buffer_remember(buffer *b) {
  if (!b->base) return;
  b->image = (uint8_t *)realloc(b->image, b->size ? b->size : 1);
  if (!b->image) abort();
  memcpy(b->image, b->base, b->size);
}

static int buffer_unchanged(const buffer *b) {
  return !b->image || memcmp(b->image, b->base, b->size) == 0;
}

static uint8_t *row_of(const buffer *b, int64_t i, int64_t h, int64_t t) {
  int64_t at = i * b->view.stride_batch + h * b->view.stride_head + t * b->view.stride_len;
  return b->base + ((int64_t)b->zero + at * (int64_t)type_size(b->view.dtype));
}

/* Calls visit for every row. */
static void each_row(const buffer *b, void (*visit)(const buffer *, uint8_t *row, void *),
                     void *user) {
  if (!b->view.dim) return;
  for (int64_t i = 0; i < b->view.batch; i++)
    for (int64_t h = 0; h < b->view.heads; h++)
      for (int64_t t = 0; t < b->view.len; t++) visit(b, row_of(b, i, h, t), user);
}

static void hide_row(const buffer *b, uint8_t *row, void *image) {
  size_t n = (size_t)b->view.dim * type_size(b->view.dtype);
  memcpy(row, (uint8_t *)image + (row - b->base), n);
}

/* 1 when nothing but the view's own elements differs from the image. Overwrites them with it. */
static int buffer_gaps_unchanged(buffer *b) {
  if (!b->image) return 1;
  each_row(b, hide_row, b->image);
  return buffer_unchanged(b);
}

/* One element as a float. */
static float element(const buffer *b, const uint8_t *row, int64_t c) {
  uint16_t half;
  uint32_t bits;
  float x;
  if (b->view.dtype == ATTN_F32) {
    memcpy(&x, row + 4 * c, 4);
    return x;
  }
  memcpy(&half, row + 2 * c, 2);
  if (b->view.dtype == ATTN_BF16) {
    bits = (uint32_t)half << 16;
  } else {
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023u;
    if (exponent == 0) return (half & 0x8000 ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    exponent = exponent == 31 ? 255 : exponent + 112;
    bits = (uint32_t)(half & 0x8000) << 16 | exponent << 23 | fraction << 13;
  }
  memcpy(&x, &bits, 4);
  return x;
}

/* Fills the view with small numbers, exact in every storage type; one in specials is infinite or
 * NaN when specials > 0. */
typedef struct filler {
  uint32_t state;
  int specials;
} filler;

static void fill_row(const buffer *b, uint8_t *row, void *user) {
  filler *f = (filler *)user;
  for (int64_t c = 0; c < b->view.dim; c++) {
    f->state = f->state * 1664525u + 1013904223u;
    uint32_t r = f->state >> 16;
    /* k/16 for |k| < 32 has the same bits in f16 and f32 once shifted */
    float x = (float)((int)(r % 63) - 31) / 16.0f;
    if (f->specials && r % (unsigned)f->specials == 1)
      x = r & 64 ? NAN : r & 128 ? INFINITY : -INFINITY;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    if (b->view.dtype == ATTN_F16) {
      uint32_t e = bits >> 23 & 255;
      half = (uint16_t)((bits >> 16 & 0x8000) | (bits >> 13 & 1023));
      half = (uint16_t)(half | (e == 255 ? 31u << 10 : e == 0 ? 0u : (e - 112) << 10));
    }
    if (b->view.dtype == ATTN_F32) memcpy(row + 4 * c, &x, 4);
    else memcpy(row + 2 * c, &half, 2);
  }
}

static void buffer_fill(buffer *b, uint32_t seed, int specials) {
  filler f = {seed * 2654435761u + 12345u, specials};
  if (b->base) each_row(b, fill_row, &f);
}

#endif
