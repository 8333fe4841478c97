/* causal.h owns what a causal call under trial is: its tokens, its outputs and how it is called. The files
 * causal_*.c build the calls, test_causal.c tries them. */

#ifndef TESTS_CAUSAL_H
#define TESTS_CAUSAL_H

#include "compound.h"

enum { N = 141, D = 12, E = 10, MOST = 8 }; /* tokens, widths of keys and values */

/* A call over tokens: row i of in[x] is of token in_first[x] + i, or when[i]; out likewise. */
typedef struct play {
  attn_tensor in[MOST], out[3];
  int64_t in_first[MOST], out_first[3];
  const int32_t *when;
  int ins, outs, n; /* n: the form of the call, from 0 on */
  int near;         /* rows go together as their keys fall: sums may round otherwise */
  test_rng rng;
  attn_status (*call)(struct play *s, attn_ctx *ctx);
  attn_tensor w[24]; /* what belongs to no token */
  void *p;           /* parameters */
} play;

/* Rows of the last `len` tokens, inputs and outputs; what belongs to no token; the parameters, all zero. */
attn_tensor play_token(play *s, attn_dtype type, int64_t heads, int64_t len, int64_t dim);
attn_tensor play_out(play *s, attn_dtype type, int64_t heads, int64_t len, int64_t dim);
attn_tensor play_fixed(play *s, int64_t heads, int64_t len, int64_t dim);
void *play_params(play *s, size_t size);

typedef struct play_trio_of {
  attn_tensor o, q, k, v;
} play_trio_of;

play_trio_of play_trio(play *s, int64_t rows, int64_t group, attn_dtype type);

/* Options of scores that many calls take. */
void play_scores(play *s, attn_sdpa_params *p, int n, int64_t heads);

typedef struct causal_entry {
  const char *names; /* of functions, each with a blank behind; null ends a list */
  int (*build)(play *s);
  const char *why; /* no rows of tokens that could be compared */
} causal_entry;

extern const causal_entry causal_exact[], causal_sparse[], causal_fewer[], causal_layers[],
    causal_selection[];

#endif
