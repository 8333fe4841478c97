/* tests/calls/rope.h owns the definition of M4, rotations, in double, and random descriptions of them. */

#ifndef TESTS_ROPE_H
#define TESTS_ROPE_H

#include "harness.h"

/* f_m of rows whose rotated width is r, and what multiplies cosine and sine. */
double rope_frequency(const attn_rope_params *p, double r, int64_t m);
double rope_factor(const attn_rope_params *p);
/* Position of row i of entry b on an axis. */
double rope_place(const attn_rope_params *p, const attn_tensor *x, int axis, int64_t b, int64_t i);
/* y is x turned as p says. */
void rope_compare(attn_tensor y, attn_tensor x, const attn_rope_params *p);
/* attn_rope, which must do it, on the present tier. */
void rope_turns(attn_tensor y, attn_tensor x, const attn_rope_params *p);
/* A legal description of each type for width r, which must be even. */
attn_rope_params rope_described(test_rng *rng, int type, int64_t r);
/* Positions up to `most` on `axes` axes, whole or real. */
void rope_take_positions(attn_rope_params *p, test_rng *rng, int64_t batch, int64_t len, int axes,
                         int64_t most);

#endif
