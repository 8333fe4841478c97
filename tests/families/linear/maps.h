/* tests/families/linear/maps.h owns the feature maps in float64, one row at a time, with what float32 can know of
 * each feature. */

#ifndef TESTS_MAPS_H
#define TESTS_MAPS_H

#include "compound.h"

/* The number of features. */
int64_t map_count(const attn_feature_map *f, int64_t dk);
/* Whether keys of this map have a stabiliser that depends on them. */
int map_stabilised(const attn_feature_map *f);
/* The eps that map_row wants: that of exp features of keys with a stabiliser of this kind. */
double map_eps(const attn_feature_map *f, attn_key_stab stab);
/* What a key contributes to the common stabiliser. */
double map_top(const attn_feature_map *f, const double *x, int64_t dk, int64_t head);
/* y[m] = phi(x), wrong by at most slack[m] in float32; c of keys. */
void map_row(double *y, double *slack, const attn_feature_map *f, const double *x, int64_t dk,
             int64_t head, int is_key, double c, double eps);

/* An activation, and how far its value moves when x moves by dx. */
double map_act(attn_activation f, double x, double dx, double *moves);

/* The row (b, h, i) of t. */
double *map_x(const attn_tensor *t, int64_t b, int64_t h, int64_t i);

/* A map of this kind with directions from attn_random_features where it has some. */
attn_feature_map map_of(attn_feature_kind kind, int64_t heads, int64_t directions, int64_t dk,
                        uint64_t seed, attn_dtype type);
/* A callback: [x, x^2, 1]. */
void map_callback(void *user, float *y, const float *x, int64_t n, int64_t m, int64_t dk,
                  int64_t head, int is_key);

#endif
