/* tests/patterns.h owns what the tests of patterns stand on: random patterns of every kind,
 * schedules in tracked memory, and their comparison with the oracle. */

#ifndef TESTS_PATTERNS_H
#define TESTS_PATTERNS_H

#include "harness.h"
#include "oracle_pattern.h"

/* A pattern and what it is built for. */
typedef struct test_graph {
  attn_pattern p;
  int64_t heads, q_len, k_len;
  int has_q_off;
  int64_t q_off;
} test_graph;

test_graph test_graph_of(attn_pattern p, int64_t heads, int64_t q_len, int64_t k_len);
/* A random pattern of a kind for about `size` keys, or extents that suit it. depth bounds how far
 * compositions go on; 0 makes atoms of their parts. */
test_graph test_random_graph(attn_pattern_kind kind, int64_t size, int depth, test_rng *rng);
/* One that fits the extents of another graph: for parts of compositions. */
attn_pattern test_random_part(const test_graph *g, int depth, test_rng *rng);
/* What it is, for messages. */
const char *test_graph_name(const test_graph *g);
/* An array of 32-bit numbers in test memory. */
int32_t *test_ints(int64_t n, const int32_t *from);
#define TEST_INTS(...) \
  test_ints((int64_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (int32_t[]){__VA_ARGS__})

/* The oracle's pairs: [heads, q_len, k_len] bytes. Returns them; *pairs gets the count. */
uint8_t *test_graph_mask(const test_graph *g, int64_t *pairs);
/* The schedule, in memory of the test; fails the test if it cannot be built. */
attn_schedule test_schedule(const test_graph *g);
/* The pairs that a schedule has, by attn_schedule_csr, like test_graph_mask; also judges the CSR's
 * own form. */
uint8_t *test_schedule_mask(const attn_schedule *s, int64_t *pairs);
/* Builds a graph and compares sets, counts and the picture with the oracle's. */
void test_graph_check(const test_graph *g, const char *what);
/* Both have the same pairs, by their schedules. */
void test_graphs_equal(const test_graph *a, const test_graph *b, const char *what);
/* Row i of head h has exactly the keys listed, ascending. */
void test_graph_row(const test_graph *g, int64_t h, int64_t i, int64_t n, const int32_t *keys);
#define TEST_ROW(g, h, i, ...)                                                                 \
  test_graph_row((g), (h), (i), (int64_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), \
                 (int32_t[]){__VA_ARGS__})

/* A call over a graph's extents, with its schedule and offset in place. spec may set anything but
 * the extents, which come from the graph. */
test_call test_graph_call(const test_graph *g, const test_spec *spec, test_rng *rng);
/* Runs a call and compares it with the oracle under the oracle's own pairs. */
void test_graph_run(test_call *call, const test_graph *g, const char *what);
/* The same, for a call that has run. */
void test_graph_compare(const test_call *call, const test_graph *g, const char *what);
/* A small call, run and compared. */
void test_graph_attend(const test_graph *g, test_rng *rng, const char *what);

#endif
