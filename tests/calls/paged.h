/* tests/calls/paged.h owns a model of a cache: each sequence's rows in one piece, kept beside the library's
 * pages, and what must hold between the two after every call. */

#ifndef TESTS_PAGED_H
#define TESTS_PAGED_H

#include "harness.h"

enum { PAGED_SEQUENCES = 5, PAGED_ROWS = 260 };

/* What to open. byhand: 0 attn_cache_open, 1 [pages][page][heads] filled in by hand, 2 strides that
 * walk backwards. */
typedef struct paged_shape {
  attn_cache_params p;
  attn_dtype from; /* of the appended rows */
  int64_t table_len;
  int byhand;
} paged_shape;

/* A sequence in one piece, in the types of the cache, with its scales. slot[r] is the token that was
 * written last to row r of its table, -1 none. */
typedef struct paged_rows {
  attn_tensor k, v;
  attn_scales k_scales, v_scales;
  int64_t len;
  int64_t *slot;
} paged_rows;

typedef struct paged {
  paged_shape shape;
  attn_cache cache;
  attn_sequence s[PAGED_SEQUENCES];
  paged_rows rows[PAGED_SEQUENCES];
  int32_t *tables; /* of all, as opened */
  int64_t most;    /* rows that are worth trying in one append */
  unsigned char *memory, *image;
  size_t size;
} paged;

/* Float rows of 2 key heads and 1 value head. */
paged_shape paged_plain(int64_t pages, int64_t page);
paged *paged_open(const paged_shape *shape, test_rng *rng);

/* Each makes the call, demands the status that the model predicts, and changes the model likewise; a
 * call that fails must have changed nothing. */

/* mode 0: every sequence gets `most` rows; 1: up to that many, by rows; 2: by indptr. */
void paged_append(paged *m, int64_t first, int64_t n, int mode, int64_t most, test_rng *rng);
attn_status paged_append_each(paged *m, int64_t first, int64_t n, const int64_t *rows,
                              test_rng *rng);
/* One sequence, which must succeed. */
void paged_append_rows(paged *m, int64_t a, int64_t rows, test_rng *rng);
void paged_fork(paged *m, int64_t parent, int64_t child);
void paged_rollback(paged *m, int64_t a, int64_t len);
void paged_release(paged *m, int64_t a);

/* Remembers every byte, and demands that all are as they were. */
void paged_remember(paged *m);
void paged_unchanged(const paged *m);

/* Attends with up to `most` queries a sequence, and demands the bits of attn_sdpa on each one's rows in
 * one piece. */
void paged_attend(const paged *m, int64_t most, test_rng *rng);

/* The rows, the tables and the holders agree with the model. */
void paged_check(const paged *m);

#endif
