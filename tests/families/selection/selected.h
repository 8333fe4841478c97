/* tests/families/selection/selected.h owns what the tests of learned selections share: calls, choices judged by scores
 * in float64, and the attention to what was chosen judged by the oracle of attn_sdpa under its mask. */

#ifndef TESTS_SELECTED_H
#define TESTS_SELECTED_H

#include "compound.h"

/* Tensors and the softmax of a call; causal. base.params has the same for the oracle. */
typedef struct selected_call {
  test_call base;
  attn_selected softmax;
} selected_call;

/* What a random case may have. */
enum { SELECTED_HALF = 1, SELECTED_LENGTHS = 2, SELECTED_OFFSET = 4, SELECTED_LAYOUTS = 8 };

selected_call selected_of(int64_t batch, int64_t heads, int64_t k_heads, int64_t tq, int64_t tk,
                          int64_t d, int options, test_rng *rng);
/* Whole numbers from -3 to 3 in q and k. */
void selected_whole(selected_call *c, test_rng *rng);
/* codes: k and v in rows of codes of a type, with numbers of their own for groups of `group` columns (0: for rows), and
 * zeros or none; k and v of c become what those stand for. */
selected_call selected_codes(selected_call *c, attn_dtype type, int64_t group, int zero);
/* Rows i .. i+n-1 at their positions, over the keys up to the last of them, into outputs of their own; *len is written. */
selected_call selected_part(const selected_call *c, int64_t i, int64_t n, int32_t *len);
/* o, lse and lists [heads][n][k] of such a part are those of the whole, bit for bit. */
void selected_same_part(const selected_call *part, const selected_call *whole, int64_t i,
                        const int32_t *list, const int32_t *all, int64_t heads, int64_t k);
/* Room for lists, filled with 0x77. */
int32_t *selected_lists(int64_t n);
/* Position of row i, keys of entry b. */
int64_t selected_position(const selected_call *c, int64_t i);
int64_t selected_keys(const selected_call *c, int64_t b);

/* A list: `forced` (n of them, always in) and the best of those that may[] says, `most` in all, by score, ties to the
 * lower; ascending, then -1 up to k. slack: scores this near may change places. */
void selected_judge(const int32_t *list, int64_t k, const int64_t *forced, int64_t n,
                    const double *score, const unsigned char *may, int64_t candidates, int64_t most,
                    double slack, const char *what);
/* o and lse against attention to the blocks of `size` keys of index [B][heads][Tq][k]. */
void selected_attended(const selected_call *c, const int32_t *index, int64_t heads, int64_t k,
                       int64_t size, const char *what);

#endif
