/* store.h owns the arrays that a call's parameters point to: each a block of its own, as long as
 * it must be and no longer, all freed at once. */

#ifndef FUZZ_STORE_H
#define FUZZ_STORE_H

#include "buffer.h"
#include "input.h"

/* Longer arrays get no memory. */
#define ARRAY_MAX ((int64_t)1 << 16)

typedef struct store {
  void **block;
  size_t count;
} store;

static void *store_take(store *s, size_t bytes) {
  s->block = (void **)must(realloc(s->block, (s->count + 1) * sizeof *s->block));
  return s->block[s->count++] = must(calloc(bytes + !bytes, 1));
}

static void store_free(store *s) {
  for (size_t i = 0; i < s->count; i++) free(s->block[i]);
  free(s->block);
  s->block = NULL, s->count = 0;
}

/* The elements of an array of a x b x c, -1 when it gets no memory. */
static int64_t array_size(int64_t a, int64_t b, int64_t c) {
  if (a < 0 || b < 0 || c < 0) return -1;
  if (a > ARRAY_MAX || b > ARRAY_MAX || c > ARRAY_MAX) return -1;
  return a * b <= ARRAY_MAX && a * b * c <= ARRAY_MAX ? a * b * c : -1;
}

/* n multiples of 1/16 from low to high, which are such too; now and then one is no sane number,
 * which clears *tame. Null = no array. */
static float *store_floats(input *in, store *s, int64_t n, float low, float high, int *tame) {
  if (n < 0 || n > ARRAY_MAX) return NULL;
  float *x = (float *)store_take(s, (size_t)n * sizeof *x);
  filler f = {take(in), 0};
  const uint32_t steps = (uint32_t)((high - low) * 16.0f) + 1;
  for (int64_t i = 0; i < n; i++) x[i] = low + (float)(filler_next(&f) % steps) / 16.0f;
  if (n > 0 && chance(in, 24)) {
    x[take(in) % (uint64_t)n] = nasty_float(in);
    *tame = 0;
  }
  return x;
}

/* n integers from low .. low + span - 1. */
static int32_t *store_ints(input *in, store *s, int64_t n, int64_t low, int64_t span) {
  if (n < 0 || n > ARRAY_MAX) return NULL;
  int32_t *x = (int32_t *)store_take(s, (size_t)n * sizeof *x);
  filler f = {take(in), 0};
  for (int64_t i = 0; i < n; i++)
    x[i] = (int32_t)(low + (span > 0 ? (int64_t)filler_next(&f) % span : 0));
  if (n > 0 && chance(in, 24)) x[take(in) % (uint64_t)n] = (int32_t)nasty_int(in);
  return x;
}

/* n bytes, four of five not 0. */
static const uint8_t *store_valid(input *in, store *s, int64_t n) {
  if (n < 0) return NULL;
  uint8_t *on = (uint8_t *)store_take(s, (size_t)n);
  filler f = {take(in), 0};
  for (int64_t i = 0; i < n; i++) on[i] = filler_next(&f) % 5 != 0;
  return on;
}

/* n ascending integers below limit, or fewer when there are not so many; *n says how many. */
static int32_t *store_ascending(input *in, store *s, int64_t *n, int64_t limit) {
  filler f = {take(in), 0};
  int64_t count = 0, at = -1;
  if (limit <= 0) *n = 0;
  int32_t *x = (int32_t *)store_take(s, (size_t)*n * sizeof *x);
  for (; count < *n; count++) {
    at += 1 + (int64_t)filler_next(&f) % (limit / (*n + 1) + 1);
    if (at >= limit) break;
    x[count] = (int32_t)at;
  }
  /* exactly as long */
  int32_t *fit = (int32_t *)store_take(s, (size_t)count * sizeof *fit);
  for (int64_t i = 0; i < count; i++) fit[i] = x[i];
  *n = count;
  if (count > 0 && chance(in, 24)) fit[take(in) % (uint64_t)count] = (int32_t)nasty_int(in);
  return fit;
}

#endif
