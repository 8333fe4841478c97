/* tests/oracle.h owns the reference: float64 formulas written from the specification, one loop
 * nest per sum, sharing with attn.h nothing but its public structs. The terms of a score are in
 * tests/oracle_terms.c, the rest in tests/oracle.c. */

#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include <string.h>

#include "attn.h"

/* Storage conversion, by value and by bits; to 16 bits rounds to nearest even. */
double oracle_from_f16(uint16_t bits);
double oracle_from_bf16(uint16_t bits);
uint16_t oracle_to_f16(double x);
uint16_t oracle_to_bf16(double x);

/* One element of a view. */
double oracle_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c);
void oracle_set(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c, double x);
void *oracle_address(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c);
int64_t oracle_size(attn_dtype dtype);
/* Element c of a row, which need not be aligned. */
double oracle_wide(const void *p, attn_dtype dtype);
static inline double oracle_number(const void *row, attn_dtype dtype, int64_t c) {
  float f;
  if (dtype != ATTN_F32) return oracle_wide((const char *)row + 2 * c, dtype);
  memcpy(&f, (const char *)row + 4 * c, sizeof f);
  return (double)f;
}

/* One entry of a mask: additive value; a boolean or bit gives 0 or -inf. */
double oracle_mask(const attn_mask *m, int64_t b, int64_t h, int64_t i, int64_t j);

/* What a row of attention should be, and how well float32 can know it. The arrays are the
 * caller's. */
typedef struct oracle_row {
  double *o;    /* [dv] */
  double *p;    /* [Tk] */
  double *size; /* [Tk], the sum of the absolute terms of each score */
  double lse;
  double value;    /* max |v| over the allowed keys, with what relative vectors add to it */
  double noise;    /* sum_j P_ij size_ij: the score error that can reach the row, over epsilon */
  int64_t allowed; /* keys */
} oracle_row;

/* The key position of query i of batch entry b. */
int64_t oracle_position(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *params,
                        int64_t b, int64_t i);

/* 1 if query i may see key j, as far as anything but params->schedule and params->modify says. */
int oracle_allowed(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *params,
                   int64_t b, int64_t h, int64_t i, int64_t j);

/* What a caller's function makes of the score or the weight of one pair, as a tile of one pair. */
double oracle_hand(attn_score_fn function, void *user, int64_t b, int64_t h, int64_t i, int64_t j,
                   int64_t position, double x);

/* Four random numbers of a counter, by the rounds of the paper. */
void oracle_philox(uint32_t w[4], const uint32_t counter[4], const uint32_t key[2]);
/* What dropout multiplies element (b, h, i, j) by: 1 without. */
double oracle_drop(const attn_drop *drop, int64_t b, int64_t h, int64_t i, int64_t j);

/* The score of one pair after every term, and the sum of the absolute terms in it. */
typedef struct oracle_pair {
  double x, size;
} oracle_pair;
oracle_pair oracle_score(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *params,
                         int64_t b, int64_t h, int64_t i, int64_t j);

/* m(t) of the adaptive span, 0 for a key that it hides; 1 without a span. */
double oracle_span(const attn_sdpa_params *params, const attn_tensor *q, int64_t b, int64_t h,
                   int64_t i, int64_t delta);
/* Column c of the vector that relative.values adds to a value; 0 without. */
double oracle_relative_value(const attn_sdpa_params *params, int64_t h, int64_t delta, int64_t c);
/* f_h(t) of the distance-aware factor. */
double oracle_distance_factor(double alpha, double beta, double t);
/* The bucket of a signed distance, by the rule in integers. */
int64_t oracle_t5_bucket(int64_t delta, int bidirectional, int64_t buckets, int64_t max_distance);

/* Row (b, h, i) of attention. A schedule is not looked at: give the oracle the mask it stands for.
 */
void oracle_sdpa(const attn_tensor *q, const attn_tensor *k, const attn_tensor *v,
                 const attn_sdpa_params *params, int64_t b, int64_t h, int64_t i, oracle_row *row);

/* The merge of one row; o1, o2, o hold dv numbers. Returns the LSE. */
double oracle_merge(double *o, const double *o1, double lse1, const double *o2, double lse2,
                    int64_t dv);

/* Rotates one row of d numbers at a position. */
void oracle_rope(double *y, const double *x, int64_t d, int64_t rot, double base,
                 attn_rope_layout layout, int inverse, double position);

/* The ALiBi slope of head h of n. */
double oracle_slope(int64_t h, int64_t n);

#endif
