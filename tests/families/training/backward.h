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

/* Random extents, and then masks, windows, lengths, terms and sinks, each with a chance. */
test_spec backward_spec(test_rng *rng, int64_t most);
void backward_options(backward *s, test_rng *rng);
/* Forward's call, and its gradients by d_o; types and layouts of the outputs as o has them in `out`. */
backward *backward_build(const test_spec *spec, attn_dtype type, test_layout layout, test_rng *rng);
/* Adds what reaches the LSE, and the gradient of sinks. */
void backward_lse(backward *s, test_rng *rng);
void backward_sinks(backward *s);
/* Gradients of every term that the call has, and of the scale. */
void backward_terms(backward *s);
/* What reaches the weights of a map. */
void backward_map(backward *s, attn_map_stage stage, test_rng *rng);
/* A function of scores with a slope of its own at each, in place of params.modify, and the way back through it. */
void backward_modify(backward *s);
/* The outputs anew, for the same call. */
backward *backward_again(const backward *s);

/* Gradients as they should be, and how well f32 can know each row of them. */
typedef struct backward_want {
  cube q, k, v, q_bound, k_bound, v_bound;
  double *sinks, *sinks_bound;
  /* [B, H, Tq, Tk]: gradients of the last score, of what is added to it, of what the first soft-cap is given (a) and of
   * the product times the scale; weights as they multiply values */
  cube top, x, y, s, a, w, x_bound, s_bound, w_bound;
} backward_want;

/* The score of a pair; what backward_modify makes of it in float64. */
oracle_pair backward_score(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h,
                           int64_t i, int64_t j);
/* The same for a pair; s errs by s_by times what top does, and s_more |y|. */
typedef struct backward_pair {
  double x, y, s, a, s_by, s_more;
} backward_pair;
backward_pair backward_chain(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h,
                             int64_t i, int64_t j, double top);
/* What a pair's product is by its key, and by its query: a vector of each. */
void backward_sides(const backward *s, const attn_sdpa_params *p, int64_t b, int64_t h, int64_t i,
                    int64_t j, double *query, double *key);
void backward_compare_terms(const backward *s, const backward_want *w);

/* params: in place of the call's, where it has a schedule: a mask that says the same. */
backward_want backward_oracle(const backward *s, const attn_sdpa_params *params);
void backward_compare(const backward *s, const backward_want *w, const char *what);
/* Runs forward and backward, and compares. */
void backward_check(backward *s, const char *what);
/* The loss of which d_o and d_lse are the gradients. */
double backward_loss(const backward *s);

#endif
