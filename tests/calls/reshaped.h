/* tests/calls/reshaped.h owns random calls of attn_reshaped and its float64 formula, over the scores of the oracle. */

#ifndef TESTS_RESHAPED_H
#define TESTS_RESHAPED_H

#include "harness.h"
#include "list.h"

/* One call of attn_reshaped. */
typedef struct reshaped_call {
  attn_tensor o, q, k, v;
  attn_reshaped_params p;
} reshaped_call;

/* Runs on the tier under test; fails the test otherwise. */
attn_report reshaped_run(const reshaped_call *c);
/* A number against what is wanted, `unsure` by so much beside a rounding. */
void reshaped_judge(double got, double want, double unsure, const char *what, int64_t b, int64_t h,
                    int64_t i, int64_t x);
/* Outputs that are there against the formula. */
void reshaped_compare(const reshaped_call *c, const char *what);
/* Runs and compares. */
attn_report reshaped_check(const reshaped_call *c, const char *what);
/* The arguments of a call of attn_sdpa, without lse and map. */
reshaped_call reshaped_from(const test_call *t);
reshaped_call reshaped_plain(attn_reshape_kind kind, int64_t heads, int64_t tq, int64_t tk,
                             uint64_t seed);
/* Adds an LSE, and a map of the stage where that is not -1; of a softmax alone. */
void reshaped_show(reshaped_call *c, int stage);
/* The same call into other memory. */
reshaped_call reshaped_again(const reshaped_call *c);
/* log f of a forgetting gate; cuts: some are -inf. */
attn_tensor reshaped_decays(attn_dtype type, int64_t batch, int64_t heads, int64_t tk, int cuts,
                            test_rng *rng);
/* Transitions of any strength: none, reflections, those between. */
attn_path reshaped_path(const reshaped_call *c, test_rng *rng);
enum {
  HAS_SSMAX = 1,
  HAS_TEMPERATURE = 2,
  HAS_FORGET = 4,
  HAS_GATE = 8,
  HAS_COUNT = 16,
  HAS_COPE = 32,
  HAS_SELECTIVE = 64,
  HAS_PATH = 128
};
/* What stands around the weights, as `what` of these says. */
void reshaped_add(reshaped_call *c, int what, test_rng *rng);

#endif
