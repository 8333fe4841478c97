/* tests/compound.h owns what the tests of compound mechanisms share: a softmax in float64 over keys
 * gathered one by one, and the promises every call makes. */

#ifndef TESTS_COMPOUND_H
#define TESTS_COMPOUND_H

#include <math.h>
#include <string.h>

#include "harness.h"
#include "list.h"

/* The keys of one row: scores and values. */
typedef struct bag {
  int64_t n, room, dv;
  double *x, *v;
  double *o, lse, value; /* the result, and the largest |v| */
} bag;

bag bag_of(int64_t room, int64_t dv);
void bag_empty(bag *a);
/* A key with score x and value row (b, h, j) of v. */
void bag_add(bag *a, double x, const attn_tensor *v, int64_t b, int64_t h, int64_t j);
void bag_close(bag *a);

/* q_i . k_j of query head h, whatever the heads of k. */
double dot_rows(const attn_tensor *q, const attn_tensor *k, int64_t b, int64_t h, int64_t i,
                int64_t j);
/* The head of k or v that query head h reads. */
int64_t head_of(const attn_tensor *k, int64_t h, int64_t heads);
double scale_of(float scale, int64_t dk);

/* Row (b, h, i) of o, and of lse if it is there, against the bag; tolerance in units of max |v|,
 * beside the rounding of o's type. */
void bag_check(const bag *a, const attn_tensor *o, const attn_tensor *lse, int64_t b, int64_t h,
               int64_t i, double tolerance, const char *what);
void value_check(double got, double want, double tolerance, attn_dtype type, const char *what,
                 int64_t b, int64_t h, int64_t i, int64_t c);

/* A tensor filled with test_normal times size. */
attn_tensor drawn(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads, int64_t len,
                  int64_t dim, double size, test_rng *rng);
attn_tensor absent(void);
/* An output: *block becomes its memory. */
attn_tensor output(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads, int64_t len,
                   int64_t dim, test_block *block);

/* A tensor of doubles. */
typedef struct cube {
  int64_t batch, heads, len, dim;
  double *data;
} cube;
cube cube_of(int64_t batch, int64_t heads, int64_t len, int64_t dim);
double *cube_at(const cube *a, int64_t b, int64_t h, int64_t i);
cube cube_from(const attn_tensor *t);
/* x w, with w [1, 1 or H, din, dout]; w absent: x itself */
cube cube_times(const cube *x, const attn_tensor *w);
/* Softmax attention of row q over n keys k(j), values v(j), j from a list. */
void cube_row(double *o, double *lse, const double *q, const cube *k, const cube *v, int64_t b,
              int64_t h, const int64_t *keys, int64_t n, double scale);
void cube_check(const cube *want, const attn_tensor *got, double tolerance, const char *what);

/* Runs golden call n into fresh outputs (o null: only the name); null after the last. */
const char *golden_compound(int n, attn_tensor *o, attn_tensor *lse);

/* A call with its arguments. */
typedef struct promise {
  attn_status (*call)(void *scene, attn_ctx *ctx);
  size_t (*ask)(void *scene, const attn_ctx *ctx);
  void *scene;
  attn_tensor *out[4]; /* outputs inside the scene; data null = absent */
  test_block block[4]; /* their memory */
  int mallocs;         /* 1: it may allocate although it has a workspace */
} promise;

/* Runs on the tier under test; fails the test otherwise. */
void promise_run(const promise *p);
/* Any number of workers in any order gives the same bits; with a workspace of the size asked for
 * nothing is allocated, with one byte less the call is rejected. */
void promise_keep(const promise *p);
/* The call is rejected with this status and a reason that has this word; outputs stay. */
void promise_reject(const promise *p, attn_status status, const char *word);

/* Whether a call of attn_linear is causal, and the value of its field that asks for that or the opposite. */
int linear_causal(const attn_linear_params *p);
int linear_order(int causal);

#endif
