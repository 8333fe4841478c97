/* tests/families/compression/shortened.h owns what the tests of attention over fewer keys share: q, k, v, o of random shapes,
 * and a softmax in float64 over keys that the test has made itself. */

#ifndef TESTS_SHORTENED_H
#define TESTS_SHORTENED_H

#include "compound.h"

/* The arguments that all of these calls have. */
typedef struct trio {
  attn_tensor o, q, k, v, lse;
  int32_t *kv_len, *q_len; /* or null */
  int64_t q_off;
  test_block o_block, lse_block;
} trio;

typedef struct trio_shape {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv;
  attn_dtype q_type, k_type, v_type, o_type;
  int lens, lse;
} trio_shape;

trio_shape trio_plain(int64_t q_len, int64_t k_len);
/* Random extents up to `most` rows; n chooses types, lengths, outputs. */
trio_shape trio_random(test_rng *rng, int64_t n, int64_t most);
trio trio_of(const trio_shape *x, test_rng *rng);
/* Fresh outputs for the same inputs. */
void trio_again(trio *x);
int64_t trio_keys(const trio *x, int64_t b);
int64_t trio_rows(const trio *x, int64_t b);

/* Row (b, h, i) as doubles, in memory of the test. */
double *row_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i);

/* The keys of one query. */
typedef struct keys {
  int64_t n, room;
  const double **k, **v;
} keys;
keys keys_of(int64_t room);
void keys_add(keys *a, const double *k, const double *v);
/* o[dv], zeros without keys; returns the LSE; *size: the largest |v| */
double keys_row(const keys *a, const double *q, int64_t dk, double scale, double *o, int64_t dv,
                double *size);
/* Row (b, h, i) of o and lse against the softmax over the keys. */
void keys_check(const keys *a, const trio *x, int64_t b, int64_t h, int64_t i, float scale,
                double tolerance, const char *what);

/* w [1, 1 or H, c d, d'] times c rows x (null: a row of zeros), plus bias. */
double *conv_row(const attn_tensor *w, const attn_tensor *bias, int64_t h, const double *const *x,
                 int64_t c, int64_t d);

/* Batch entry b alone, cut to its lengths. */
trio trio_cut(const trio *x, int64_t b);

#endif
