/* tests/families/content/routing.h owns what the tests of the Routing Transformer share: its calls, scenes with members of
 * clusters, and their definitions in float64. */

#ifndef TESTS_ROUTING_H
#define TESTS_ROUTING_H

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v, mu, next;
  attn_members mq, mk;
  attn_routing_params p;
  attn_routing_update_params u;
  promise does;
} scene;

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv, clusters;
  int shared;
  attn_dtype type;
  test_layout layout;
} shape;

/* A call, and what it asks for. */
attn_status routing_call(void *at, attn_ctx *ctx);
size_t routing_ask(void *at, const attn_ctx *ctx);
attn_status routing_select_call(void *at, attn_ctx *ctx);
size_t routing_select_ask(void *at, const attn_ctx *ctx);
attn_status routing_attend_call(void *at, attn_ctx *ctx);
size_t routing_attend_ask(void *at, const attn_ctx *ctx);
attn_status routing_update_call(void *at, attn_ctx *ctx);
size_t routing_update_ask(void *at, const attn_ctx *ctx);

/* Shapes, and a scene for the whole call. */
shape routing_plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv,
                    int64_t clusters);
shape routing_any_shape(test_rng *rng);
scene *routing_build(const shape *x, test_rng *rng);
void routing_any_params(scene *s, test_rng *rng);
/* n learned keys and values for each of some clusters. */
void routing_learn(scene *s, int64_t clusters, int64_t n, test_rng *rng);
/* An LSE, with the union that it needs. */
void routing_want_lse(scene *s);
/* Arrays for the members, of the size the selection wants; and as outputs of the selection. */
void routing_room(scene *s);
void routing_selects(scene *s);
/* Attention over random members. */
void routing_attends(scene *s, int64_t clusters, int64_t percent, test_rng *rng);

int64_t routing_length(const int32_t *len, int64_t b, int64_t all);
/* Normalised rows. */
cube routing_normal(const attn_tensor *x, attn_routing_norm norm);
double routing_dots(const double *a, const double *b, int64_t n);
/* Whether row i is in cluster c. */
int routing_has(const attn_members *m, int64_t u, int64_t c, int64_t i);
/* The selection property, with a tolerance for what float32 cannot tell; exact: ties as they are. */
void routing_check_members(const scene *s, int side, int exact);
/* Attention over the members as they are. */
void routing_check_attend(const scene *s, double tolerance, const char *what);

#endif
