/* tests/stored.h owns quantised tensors in the tests: memory of exactly their bytes in several
 * layouts, and what their numbers stand for, from the definition of the types. */

#ifndef TESTS_STORED_H
#define TESTS_STORED_H

#include "harness.h"

typedef struct stored {
  attn_tensor x;    /* quantised */
  attn_scales s;    /* its scales; all zero for ATTN_E4M3 without any */
  attn_tensor wide; /* dense f32: what x stands for */
  test_block code;  /* the memory of x, */
  test_block scale, zero;
} stored;

/* What a code stands for: byte of ATTN_I8 and ATTN_E4M3, 0..15 of ATTN_I4. */
double stored_number(attn_dtype dtype, unsigned code);
/* The code of element c of a row. */
unsigned stored_code(attn_dtype dtype, const void *row, int64_t c);
/* Where a row begins. */
unsigned char *stored_row(const attn_tensor *t, int64_t b, int64_t h, int64_t i);

/* Tensor and scales in fresh memory, neither filled. zero = 1: with zero points; group -1: no
 * scales. TEST_SHARED and TEST_ONE_ROW hold for the scales as well. */
stored stored_tensor(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads,
                     int64_t len, int64_t dim, int64_t group, int zero);
/* Random codes (no NaN) and scales about 1 / their largest number. */
void stored_fill(stored *t, test_rng *rng);
/* Fills t->wide from codes and scales. */
void stored_widen(stored *t);

#endif
