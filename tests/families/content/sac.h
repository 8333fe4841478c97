/* tests/families/content/sac.h owns the oracle of the network that draws edges, and random networks. */

#ifndef TESTS_SAC_H
#define TESTS_SAC_H

#include "compound.h"
#include "oracle_pattern.h"

/* A step of the LSTM, in place. */
void sac_step(const attn_lstm_params *p, int64_t head, const double *x, double *h, double *c);
/* Logits of all nodes; source -1: without distances. */
void sac_point(double *y, const attn_sac_params *p, const attn_tensor *e, int64_t b, int64_t head,
               const double *h, int64_t source);
/* The number by which choice m is made. */
double sac_uniform(uint64_t seed, int64_t head, int64_t m);
/* Fails unless `pick` is what a greedy (u < 0) or drawn choice may take, with this log_p. */
void sac_judge(const double *y, const char *allowed, int64_t n, double u, int64_t pick,
               double log_p, const char *what);

typedef struct network {
  attn_tensor e;
  attn_sac_params p;
} network;
/* Random nodes and weights; reach < 0: without distances. */
network sac_network(int64_t batch, int64_t heads, int64_t nodes, int64_t de, int64_t dh,
                    int64_t reach, test_rng *rng);
attn_dtype sac_type(test_rng *rng);

#endif
