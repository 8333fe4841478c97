/* tests/families/training/dense.h owns activations and their derivatives in float64, and gradients beside the bounds of
 * what f32 can know of them. */

#ifndef TESTS_DENSE_H
#define TESTS_DENSE_H

#include "compound.h"

double act_of(attn_activation f, double x);
double act_slope(attn_activation f, double x);
/* How far the slope may be from that at x, where x is known to within e. */
double act_slope_error(attn_activation f, double x, double e);

/* act(z) u in a form, and its derivatives by z and u; without a gate u is nothing. */
typedef struct act_formed {
  double y, z, u;
} act_formed;
act_formed act_in_form(const attn_act_form *m, attn_activation f, double z, double u, int gated);
/* How far that by z may be from it, where z is known to within e. */
double act_in_form_error(const attn_act_form *m, attn_activation f, double z, double e, double u,
                         int gated);

/* An element of t, whose extents of 1 stand for all. */
double dense_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c);

/* A gradient of the extents of d, and its bound. */
typedef struct dense_sum {
  cube want, size;
} dense_sum;
dense_sum dense_open(const attn_tensor *d);
/* Element (b, h, i, c) of what forward read gets x, whose size is a sum of magnitudes. */
void dense_add(dense_sum *s, int64_t b, int64_t h, int64_t i, int64_t c, double x, double size);
void dense_check(const dense_sum *s, const attn_tensor *got, const char *what);
/* <x, y>, in extents of x; y may have extents of 1. */
double dense_dot(const attn_tensor *x, const attn_tensor *y);

#endif
