/* tests/calls/few.h owns random calls with few queries: any storage types, layouts, masks, terms and
 * numbers of keys on either side of every mark where work may be split. */

#ifndef TESTS_FEW_H
#define TESTS_FEW_H

#include "kept.h"
#include "terms.h"

/* What a call may have beside plain attention. */
enum {
  FEW_TYPES = 1,     /* any float types */
  FEW_QUANTISED = 2, /* quantised keys, values or both */
  FEW_LAYOUTS = 4,
  FEW_BOUNDS = 8,  /* causal, q_off, windows, keep, lengths */
  FEW_MASKS = 16,  /* boolean, bits, bias */
  FEW_SCORES = 32, /* ALiBi, soft-cap, scale */
  FEW_SINKS = 64,
  FEW_TERMS = 128, /* of tests/terms.h, those that few queries take too */
  FEW_ALL = 255
};

/* A number of keys, a mark or its neighbour more often than not. */
int64_t few_keys(test_rng *rng, int64_t most);
/* A call with 1 .. 16 queries, whose cost for the oracle is bounded by `work` products. */
kept_call few_call(int features, int64_t work, test_rng *rng);
/* Random calls against the oracle. */
void few_check(int features, uint64_t seed, int64_t count, int64_t work, const char *what);

#endif
