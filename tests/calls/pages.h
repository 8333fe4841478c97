/* tests/calls/pages.h owns caches made by hand: pages in any order, shared ones, rings, and for each
 * sequence the same rows in one piece. All that no sequence holds is poisoned. */

#ifndef TESTS_PAGES_H
#define TESTS_PAGES_H

#include "kept.h"

typedef struct pages_spec {
  int64_t n, page, most; /* sequences, rows of a page, longest sequence */
  int64_t k_heads, v_heads, dk, dv;
  attn_dtype k_type, v_type;
  test_layout layout;    /* of the pages; not a shared one */
  int latent;            /* values are the first dv columns of the keys */
  int64_t window, sinks; /* window > 0: rings */
  int64_t queries;       /* the most that will be asked of a ring */
  int share;             /* sequences begin with pages of the first one */
} pages_spec;

typedef struct pages {
  attn_cache cache;
  attn_sequence *seq;
  int64_t n, longest;
  kept k, v;           /* the pages */
  kept *own_k, *own_v; /* [n] each sequence's rows, in order, of the cache's types */
} pages;

pages pages_make(const pages_spec *z, test_rng *rng);
pages_spec pages_some(test_rng *rng);

/* One sequence's part of a call over the cache, as a dense call over its rows. */
kept_call pages_dense(const pages *c, const test_call *call, int64_t b, attn_tensor q,
                      attn_tensor o, attn_tensor lse);

#endif
