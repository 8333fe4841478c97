/* tests/terms.h owns random score terms: each of the fields of attn_sdpa_params that api/calls/score.h
 * declares, filled for a call. Every number is a small fraction, so that all machines have the same
 * ones. */

#ifndef TESTS_TERMS_H
#define TESTS_TERMS_H

#include "harness.h"

enum {
  TERM_KEYS = 1,
  TERM_VALUES = 2,
  TERM_XL = 4,
  TERM_LABELS = 8,
  TERM_FACTOR = 16,
  TERM_TOEPLITZ = 32,
  TERM_T5 = 64,
  TERM_PARABOLA = 128,
  TERM_GAUSSIAN = 256,
  TERM_SPAN = 512,
  TERM_MODIFY = 1024,
  TERM_WEIGHTS = 2048, /* changed after the softmax */
  TERM_QUERIES = 4096, /* queries by distance on keys */
  TERM_SCORES = 11,    /* those before it, */
  TERM_ALL = 2047,     /* all together, */
  TERM_COUNT = 13      /* and with the last two */
};

/* What test_label and test_modify read. Rows of a call that is part of another begin at row i0 of
 * it; base = its q_off. */
typedef struct test_term_user {
  int64_t labels, i0;
  uint64_t seed;
  int kind; /* of test_modify */
} test_term_user;

int64_t test_label(void *user, int64_t batch, int64_t head, int64_t i, int64_t j);

/* Kinds of test_modify: adds a fraction, halves and adds, forbids a third of the pairs, or doubles
 * the scores of one key in five. All depend on batch, head, position and key alone. */
enum { MODIFY_ADD, MODIFY_HALVE, MODIFY_FORBID, MODIFY_DOUBLE, MODIFY_KINDS };
void test_modify(void *user, const attn_score_tile *tile);
/* Drops a quarter of the weights, scales the rest and adds a little to some. */
void test_modify_weights(void *user, const attn_score_tile *tile);

/* Adds terms to a call whose other params are complete. */
void test_add_terms(test_call *call, int terms, test_rng *rng);

/* A call of random extents, types, layouts, masks and lengths; then test_add_terms. */
test_call test_terms_call(int terms, int64_t most, test_rng *rng);

/* Random calls with one set of terms against the oracle. */
void test_terms_check(int terms, uint64_t seed, int64_t count, int64_t most, const char *what);

/* A f32 table [1, heads, n, dim] of small fractions. */
attn_tensor test_table(int64_t heads, int64_t n, int64_t dim, test_layout layout, test_rng *rng);

/* n copies of one number. */
float *test_constant(int64_t n, double x);

#endif
