/* tests/harness.h owns what every test stands on: the tier under test, tracked memory, random
 * numbers, views in every layout, and the comparison of a call with the oracle. */

#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn.h"
#include "oracle.h"

/* The tier every call must run on, set by the runner. */
extern attn_isa test_isa;
/* ATTN_TEST_SCALE: 1 = small, fewer and smaller random cases; 2 = least, for emulators and sanitizers. */
extern int test_fast;
/* The implementation's exp is another one: bounds hold, golden hashes do not. */
extern int test_other_bits;
/* 1 when this machine has the instructions of a tier, found without asking attn.h. */
int test_expects(attn_isa isa);
/* The same of a feature beside one. */
int test_expects_feature(attn_feature feature);

/* What test_build and paged_attend ask products to be made of; test_fill then draws numbers that bf16,
 * or f16, has.
 * Set for one test. */
extern attn_compute test_compute;

/* Set while a test runs in yet another mode: fewer random cases still. */
extern int test_repeats;

/* How many random cases to run. */
int64_t test_count(int64_t full, int64_t fast);

/* Ends the test as skipped, with the reason on the output and in the count. */
void test_skip(const char *reason);
extern int test_skipped;

/* A context that forces the tier under test. */
attn_ctx test_ctx(void);

/* ---- memory ---------------------------------------------------------------------------------*/

/* Where test_mem puts a block: alone on the heap, or against an unreadable page. */
typedef enum test_place { TEST_HEAP, TEST_BEFORE_GUARD, TEST_AFTER_GUARD } test_place;
extern test_place test_where;

/* Bytes filled with 0xA5, freed when the test ends. */
void *test_mem(size_t size);
void test_mem_release(void);

/* The calls of ATTN_MALLOC so far, and whether the next ones return null. */
extern int64_t test_malloc_calls;
extern int test_malloc_fails;
extern size_t test_malloc_most; /* the largest request since it was set to 0 */

/* ---- random numbers -------------------------------------------------------------------------*/

typedef struct test_rng {
  uint64_t state;
} test_rng;

test_rng test_seed(uint64_t seed);
uint64_t test_u64(test_rng *rng);
int64_t test_range(test_rng *rng, int64_t low, int64_t high); /* both included */
double test_normal(test_rng *rng);                            /* roughly, |x| < 6 */
double test_exact(test_rng *rng); /* n/64, |n| < 128: exact in every storage type */
/* Above 0: each so manieth number of test_exact is a NaN of either sign or an infinity; how many there
 * were. */
extern int test_poison, test_drawn;
/* Not null: its numbers change the last bit of those of test_exact, or not. */
extern test_rng *test_jitter;

/* ---- views ----------------------------------------------------------------------------------*/

typedef enum test_layout {
  TEST_BHTD,
  TEST_BTHD,
  TEST_PADDED,   /* unused elements between rows, heads and batches */
  TEST_NEGATIVE, /* every stride walks backwards */
  TEST_SHARED,   /* inputs only: one batch and one head broadcast by stride 0 */
  TEST_ONE_ROW,  /* inputs only: one row broadcast over the length */
  TEST_LAYOUTS
} test_layout;

/* A view in fresh memory. */
attn_tensor test_tensor(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads,
                        int64_t len, int64_t dim);
/* The first block of memory behind the latest test_tensor, and its bytes. */
typedef struct test_block {
  unsigned char *data;
  size_t size;
} test_block;
extern test_block test_last_block;

void test_fill(attn_tensor t, test_rng *rng, double (*draw)(test_rng *));
void test_fill_value(attn_tensor t, double x);
void test_fill_row(attn_tensor t, int64_t b, int64_t h, int64_t i, double x);
/* Copies element by element; storage types may differ. */
void test_copy(attn_tensor to, attn_tensor from);
/* Rows i0 .. i0+len-1. */
attn_tensor test_rows(attn_tensor t, int64_t i0, int64_t len);
/* One batch or one head. */
attn_tensor test_one(attn_tensor t, int64_t b, int64_t nb, int64_t h, int64_t nh);
/* Bit for bit equal, -0 and +0 apart. */
int test_same(attn_tensor a, attn_tensor b);
void test_assert_same(attn_tensor a, attn_tensor b, const char *what);

/* ---- attention ------------------------------------------------------------------------------*/

/* The arguments of one attn_sdpa call. */
typedef struct test_call {
  attn_tensor o, q, k, v;
  attn_sdpa_params params;
} test_call;

/* What to build: extents, storage types, layouts, and which outputs. */
typedef struct test_spec {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv;
  attn_dtype q_type, k_type, v_type, o_type;
  test_layout q_layout, k_layout, v_layout, o_layout;
  int lse, map;
} test_spec;

/* One batch, equal head counts, float32, dense, with LSE. */
test_spec test_plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv);
/* Tensors filled with test_normal, outputs with 0xA5. */
test_call test_build(const test_spec *spec, test_rng *rng);
/* Fresh outputs for the same inputs. */
test_call test_again(const test_call *call);

/* One side of the window, the other as it was: unlimited where there was none. */
static inline void test_left(attn_sdpa_params *p, int64_t n) {
  p->window = attn_window_of(n, p->window.on ? p->window.right : -1);
}
static inline void test_right(attn_sdpa_params *p, int64_t n) {
  p->window = attn_window_of(p->window.on ? p->window.left : -1, n);
}

/* Runs the call on the tier under test; fails the test unless it succeeds there. */
attn_report test_run(test_call *call);
/* Compares outputs with the oracle. */
void test_compare(const test_call *call, const char *what);
/* The same when the call's keys are quantised. */
void test_compare_stored(const test_call *call, const char *what);
/* Runs and compares. */
void test_check(test_call *call, const char *what);
/* Both calls' outputs are the same bits. */
void test_assert_same_outputs(const test_call *a, const test_call *b, const char *what);
/* Equal within float32 noise: |a - b| <= tolerance * (1 + |b|). */
void test_assert_near(attn_tensor a, attn_tensor b, double tolerance, const char *what);

/* A random mask over [batch, heads, q_len, k_len], each extent possibly 1; padded strides. */
attn_mask test_mask(attn_mask_kind kind, attn_dtype dtype, int64_t batch, int64_t heads,
                    int64_t q_len, int64_t k_len, test_rng *rng);
/* An array of n lengths in 0..limit. */
int32_t *test_lengths(int64_t n, int64_t limit, test_rng *rng);
/* n random floats. */
float *test_floats(int64_t n, double scale, test_rng *rng);

/* ---- parallel_for ---------------------------------------------------------------------------*/

/* Ready-made: first to last, last to first, one pthread each. user may be a int64_t * which
 * receives the largest count seen. */
void test_parallel_forward(void *user, int64_t count, attn_task_fn task, void *arg);
void test_parallel_backward(void *user, int64_t count, attn_task_fn task, void *arg);
void test_parallel_threads(void *user, int64_t count, attn_task_fn task, void *arg);

#endif
