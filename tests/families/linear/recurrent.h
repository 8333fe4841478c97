/* tests/families/linear/recurrent.h owns what the tests of attn_recurrent share: a scene, and the recurrences in float64, one
 * token after another, straight from their papers. */

#ifndef TESTS_RECURRENT_H
#define TESTS_RECURRENT_H

#include "compound.h"

typedef struct recurrent_scene {
  attn_tensor o, q, k, v;
  attn_recurrent_params p;
  promise does;
} recurrent_scene;

/* What a rule is given: extents, head counts, kinds. */
typedef struct recurrent_shape {
  attn_recurrent_rule rule;
  int64_t batch, len, dk, dv;
  int64_t q_heads, k_heads, v_heads, more_heads; /* of decays and the like */
  int decay; /* 0 absent, 1 a head's, 2 a token's, 3 a channel's */
  attn_recurrent_form form;
  int keep;    /* 1: initial and final states */
  int shared;  /* 1: decays and the like have one batch entry */
  double slow; /* logs of decays are drawn from -slow .. 0, some -inf */
  double mean; /* added to values */
  attn_dtype type, o_type;
  test_layout layout;
  int64_t sequences;        /* with cu_seqlens: len is theirs in all */
  int64_t levels, position; /* of lambda, 0 = none; before the call */
} recurrent_shape;

recurrent_shape recurrent_plain(attn_recurrent_rule rule, int64_t heads, int64_t len, int64_t dk,
                                int64_t dv);
recurrent_scene *recurrent_build(const recurrent_shape *x, test_rng *rng);
/* The recurrence: o [B,H,T,dv], and final states [units,H,dk,dv], n, m where not null. size: what a row's sum is of. */
typedef struct recurrent_truth {
  cube o, size, s, n, m;
} recurrent_truth;
recurrent_truth recurrent_oracle(const recurrent_scene *s);
/* Runs the call and holds it against the recurrence; tolerance in units of size. */
void recurrent_check(recurrent_scene *s, double tolerance, const char *what);
/* The same from a state of its own, in calls of `step` tokens at most, in place; o and final state are compared
 * with the recurrence of the whole. */
void recurrent_check_steps(recurrent_scene *s, int64_t step, double tolerance, const char *what);
attn_tensor recurrent_rows(attn_tensor t, int64_t i0, int64_t len);
int64_t recurrent_heads(const recurrent_scene *s);
/* How many levels so many tokens have. */
int64_t recurrent_levels(int64_t tokens);

#endif
