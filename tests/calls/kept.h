/* tests/calls/kept.h owns keys and values as they are stored: quantised rows with their scales, pages of
 * a cache, and beside both the numbers that they stand for. */

#ifndef TESTS_KEPT_H
#define TESTS_KEPT_H

#include "harness.h"

/* The number that 8 bits of ATTN_E4M3 stand for. */
double kept_from_e4m3(uint8_t bits);

/* Bytes of n elements that start a row. */
int64_t kept_bytes(attn_dtype dtype, int64_t n);

/* Rows of any storage type. */
typedef struct kept {
  attn_tensor t;
  attn_scales s;     /* all zero for floats */
  attn_tensor plain; /* [batch, heads, len, dim] f32, dense: (n - zero) * scale */
} kept;

/* How scales lie in memory. */
typedef enum kept_scaling {
  SCALE_DENSE,
  SCALE_PADDED,
  SCALE_NEGATIVE,
  SCALE_BY_HEAD, /* one for all rows of a head, by stride 0 */
  SCALE_SHARED,  /* one for all */
  SCALE_KINDS
} kept_scaling;

typedef struct kept_spec {
  attn_dtype dtype;
  test_layout layout;
  int64_t batch, heads, len, dim;
  int64_t group;
  int zero, no_scale; /* no_scale: of ATTN_E4M3 */
  kept_scaling scaling;
} kept_spec;

/* Random rows of numbers of size about 1. */
kept kept_rows(const kept_spec *spec, test_rng *rng);
/* A random spec of these extents; legal for the type. */
kept_spec kept_some(attn_dtype dtype, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                    test_rng *rng);
/* The raw number at a place, and a row that no result may read: NaN in all that can hold it. */
double kept_code(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c);
void kept_poison(kept *x, int64_t b, int64_t h, int64_t i);
/* Copies row (b0, h, i0) of x to row (b1, h, i1) of y, which has its type and groups. */
void kept_move(kept *y, int64_t b1, int64_t i1, const kept *x, int64_t b0, int64_t i0);
/* Rows i0 .. i0+len-1. */
kept kept_slice(kept x, int64_t i0, int64_t len);
/* One batch entry. */
kept kept_entry(kept x, int64_t b);

/* An attn_sdpa call over such rows; call.k and call.v are k.t and v.t. */
typedef struct kept_call {
  test_call call;
  kept k, v;
} kept_call;

/* Puts rows into a call. */
void kept_put(kept_call *c, kept k, kept v);
/* Compares the outputs with the oracle's for the numbers that are stored. */
void kept_compare(const kept_call *c, const char *what);
/* Runs and compares. */
void kept_check(kept_call *c, const char *what);

#endif
