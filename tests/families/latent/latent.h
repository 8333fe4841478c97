/* tests/families/latent/latent.h owns layers of latent attention under trial: what they are given, their cache, and
 * what they ought to give, in float64. */

#ifndef TESTS_LATENT_H
#define TESTS_LATENT_H

#include "compound.h"

enum { LATENT_SEQUENCES = 4 };

/* dq 0: no w_dq. page 0: no cache. */
typedef struct latent_shape {
  int64_t batch, heads, dm, dq, dc, dr, dn, dv, dmo;
  attn_dtype x_type, w_type, y_type, cache_type;
  int transposed, gains;
  int64_t page, pages;
} latent_shape;

latent_shape latent_plain(int64_t batch, int64_t heads);

/* A layer; its sequences have had rows `past` of x each. */
typedef struct latent {
  latent_shape shape;
  attn_mla_params p; /* everything but indptr, sequences, lse */
  attn_rope_params rope;
  attn_tensor x, y; /* of the call at hand */
  cube past[LATENT_SEQUENCES];
  attn_cache cache;
  attn_sequence held[LATENT_SEQUENCES];
  unsigned char *memory, *image; /* of the cache; what a call begins with */
  size_t size;
  attn_cache was;
  attn_sequence had[LATENT_SEQUENCES];
  int32_t *tables, *table_was;
  promise does; /* the call from that beginning */
} latent;

latent *latent_build(const latent_shape *shape, test_rng *rng);
/* A call of rows[b] tokens of each sequence: x, y and lse are made. end to end: with indptr, and `extra` rows that no
 * one has. */
void latent_tokens(latent *z, const int64_t *rows, int ragged, int64_t extra, test_rng *rng);
/* What a call finds, from here on. */
void latent_remember(latent *z);
/* Runs it, demands the formula's results, and takes the tokens into the past. */
void latent_check(latent *z, double tolerance, const char *what);
/* The same in the other forms, from the same beginning; afterwards the call has been made once. */
void latent_check_forms(latent *z, double tolerance, const char *what);

#endif
