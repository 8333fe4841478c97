/* tests/families/content/topk.h owns calls of attn_topk_sdpa in the tests, and their judge. The oracle scores every
 * pair in float64 and selects by the definition; what the call attends to is judged by the oracle of
 * attn_sdpa under the mask of the selection. */

#ifndef TESTS_TOPK_H
#define TESTS_TOPK_H

#include "compound.h"
#include "patterns.h"

/* A call and its selection; `base` is attention over the allowed set. */
typedef struct best_call {
  test_call base;
  attn_topk_params params;
  const test_graph *graph; /* what base.params.schedule stands for */
  test_block blocks[2];    /* of indptr and col */
} best_call;

best_call best_of(const test_call *base, attn_topk_mode mode, int64_t k, float bound);
/* Room for the lists of all keys. */
void best_lists(best_call *c);
attn_status best_attend(best_call *c, attn_ctx *ctx);
/* Runs on the tier under test; fails the test otherwise. */
attn_report best_run(best_call *c);
/* The list of row (b, h, i) of a call that has run. */
const int32_t *best_list(const best_call *c, int64_t b, int64_t h, int64_t i, int64_t *n);
/* The call of attn_sdpa over what has been selected. */
test_call best_chosen(const best_call *c);
/* Runs with and without lists, and the selection alone; judges all. exact: scores are known without
 * error, or the gaps between different ones are wide. */
void best_check(best_call *c, int exact, const char *what);
/* A bound that some scores pass. */
float best_bound(attn_topk_mode mode, test_rng *rng);

extern const char *const best_mode[ATTN_TOPK_MODES];

#endif
