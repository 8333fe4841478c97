/* tests/multihead.h owns a call of attn_multihead or attn_collaborative with random arguments, and
 * its float64 answer. */

#ifndef TESTS_MULTIHEAD_H
#define TESTS_MULTIHEAD_H

#include "compound.h"

typedef struct multihead {
  attn_tensor y, x, x_k, x_v;
  attn_multihead_params p;
  attn_tensor mix, w_c; /* of a collaborative call */
  promise does;
} multihead;

enum { WANT_Y = 1, WANT_EACH = 2, WANT_LSE = 4, WANT_MAP = 8 };
enum { BIAS_Q = 1, BIAS_K = 2, BIAS_V = 4, BIAS_O = 8, BIAS_KV = 16 /* one more key */ };

typedef struct multihead_shape {
  int64_t batch, queries, keys, dm, dmk, dmv, dmo, heads, kv_heads, dk, dv; /* keys 0: x itself */
  attn_dtype x_type, w_type, y_type, each_type;
  int shared, content; /* collaborative: dk is the whole shared width */
  int biases, want;
} multihead_shape;

multihead_shape multihead_plain(int64_t queries, int64_t heads, int64_t dk, int64_t dv);
multihead *multihead_build(const multihead_shape *shape, test_rng *rng);
/* Runs it and holds every output against the oracle. */
void multihead_check(multihead *s, double tolerance, const char *what);

#endif
