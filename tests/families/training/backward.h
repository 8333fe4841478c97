/* tests/families/training/backward.h owns a call of attn_sdpa_backward with all it reads, and its gradients in
 * float64. */

#ifndef TESTS_BACKWARD_H
#define TESTS_BACKWARD_H

#include "compound.h"

typedef struct backward {
  test_call call; /* forward's, whose lse is always there */
  attn_tensor d_q, d_k, d_v, d_o;
  attn_tensor sinks; /* [1, 1, 1, H] around gradients.d_sinks; data null: none */
  attn_sdpa_gradients g;
  promise does;
} backward;

/* Forward's call, and its gradients by d_o; types and layouts of the outputs as o has them in `out`. */
backward *backward_build(const test_spec *spec, attn_dtype type, test_layout layout, test_rng *rng);
/* Adds what reaches the LSE, and the gradient of sinks. */
void backward_lse(backward *s, test_rng *rng);
void backward_sinks(backward *s);
/* Gradients of every term that the call has. */
void backward_terms(backward *s);
/* The outputs anew, for the same call. */
backward *backward_again(const backward *s);

/* Gradients as they should be, and how well f32 can know each row of them. */
typedef struct backward_want {
  cube q, k, v, q_bound, k_bound, v_bound;
  double *sinks, *sinks_bound;
  cube x, x_bound; /* [B, H, Tq, Tk]: of what is added to scores */
} backward_want;

/* params: in place of the call's, where it has a schedule: a mask that says the same. */
backward_want backward_oracle(const backward *s, const attn_sdpa_params *params);
void backward_compare(const backward *s, const backward_want *w, const char *what);
/* Runs forward and backward, and compares. */
void backward_check(backward *s, const char *what);
/* The loss of which d_o and d_lse are the gradients. */
double backward_loss(const backward *s);

#endif
