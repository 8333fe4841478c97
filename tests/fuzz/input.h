/* input.h owns the reading of a fuzzer's bytes as small decisions. When they run out every further
 * decision is 0, which is always the plainest choice. */

#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

typedef struct input {
  const uint8_t *next, *end;
} input;

static unsigned take(input *in) { return in->next < in->end ? *in->next++ : 0; }

/* 0..n-1 */
static int below(input *in, int n) { return (int)(take(in) % (unsigned)n); }

/* 1 in n, and 0 when the bytes have run out */
static int chance(input *in, int n) { return (int)take(in) % n == n - 1; }

static int64_t nasty_int(input *in) {
  static const int64_t values[] = {0,
                                   1,
                                   -1,
                                   -2,
                                   2,
                                   63,
                                   64,
                                   65,
                                   1000,
                                   -1000,
                                   65536,
                                   INT32_MAX,
                                   INT32_MIN,
                                   INT64_MAX,
                                   INT64_MIN,
                                   INT64_MAX - 1,
                                   (int64_t)1 << 32,
                                   (int64_t)1 << 40,
                                   (int64_t)1 << 61,
                                   (int64_t)1 << 62,
                                   -((int64_t)1 << 40),
                                   INT64_MAX / 2,
                                   INT64_MAX / 4 + 1,
                                   3};
  return values[below(in, (int)(sizeof values / sizeof *values))];
}

static float nasty_float(input *in) {
  static const float values[] = {0.0f,  -0.0f, 1.0f,   -1.0f,  0.125f,   3.0f,      -7.5f, 1e-40f,
                                 1e30f, 3e38f, -3e38f, 1e-30f, INFINITY, -INFINITY, NAN,   100.0f};
  return values[below(in, (int)(sizeof values / sizeof *values))];
}

#endif
