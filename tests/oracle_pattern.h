/* tests/oracle_pattern.h owns the reference for patterns: which pairs exist, one pair at a time,
 * straight from the definitions. It shares with attn.h nothing but the struct. */

#ifndef TESTS_ORACLE_PATTERN_H
#define TESTS_ORACLE_PATTERN_H

#include "attn.h"

/* The generator: SplitMix64 with a stream for each (seed, tag, head, row). */
typedef struct oracle_stream {
  uint64_t state;
} oracle_stream;
oracle_stream oracle_stream_of(uint64_t seed, uint64_t tag, uint64_t head, uint64_t row);
uint64_t oracle_next64(oracle_stream *s);
uint64_t oracle_bounded(oracle_stream *s, uint64_t n);
/* count different numbers of 0 .. n-1, ascending; returns how many, at most n. */
int64_t oracle_sample(oracle_stream *s, int64_t n, int64_t count, int64_t *out);
void oracle_permutation(oracle_stream *s, int64_t n, int32_t *out);

/* 1 if the pattern has pair (i, j) of head h. */
int oracle_pattern(const attn_pattern *p, int64_t heads, int64_t q_len, int64_t k_len,
                   int64_t q_off, int64_t h, int64_t i, int64_t j);
/* All pairs of head h, a byte each: mask [q_len, k_len]. Returns how many there are. */
int64_t oracle_pattern_mask(uint8_t *mask, const attn_pattern *p, int64_t heads, int64_t q_len,
                            int64_t k_len, int64_t q_off, int64_t h);

/* Nodes of the tree over a sequence, and the length of the sequence of a tree of so many nodes, 0
 * if there is none. */
int64_t oracle_tree_nodes(int64_t tokens);
int64_t oracle_tree_tokens(int64_t nodes);

#endif
