/* hello.c owns the shortest complete program: causal attention over random numbers, checked
 * against the textbook formula for one row. */
#define ATTN_IMPLEMENTATION /* in exactly one file of a program */
#define ATTN_STATIC /* no other file calls it: what this one does not call is not compiled */
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 2, H = 8, KV_HEADS = 2, T = 100, D = 64 };

static float q_data[B * H * T * D], k_data[B * KV_HEADS * T * D], v_data[B * KV_HEADS * T * D];
static float o_data[B * H * T * D];

static void fill(float *x, int n) {
  for (int i = 0; i < n; i++) x[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

/* The largest error of the last row of batch 1, head 5, which sees every key: the softmax of q.k /
 * sqrt(D), times v. Query heads 4..7 share key and value head 1. */
static double error_of_one_row(void) {
  const float *q = q_data + ((1 * H + 5) * T + T - 1) * D, *o = o_data + (q - q_data);
  const float *k = k_data + (1 * KV_HEADS + 1) * T * D, *v = v_data + (k - k_data);
  double sum = 0, row[D] = {0}, worst = 0;
  for (int j = 0; j < T; j++) {
    double score = 0;
    for (int d = 0; d < D; d++) score += (double)q[d] * (double)k[j * D + d];
    double p = exp(score / sqrt((double)D));
    sum += p;
    for (int d = 0; d < D; d++) row[d] += p * (double)v[j * D + d];
  }
  for (int d = 0; d < D; d++) worst = fmax(worst, fabs(row[d] / sum - (double)o[d]));
  return worst;
}

int main(void) {
  fill(q_data, B * H * T * D);
  fill(k_data, B * KV_HEADS * T * D);
  fill(v_data, B * KV_HEADS * T * D);

  attn_tensor q = attn_bhtd(q_data, ATTN_F32, B, H, T, D);
  attn_tensor k = attn_bhtd(k_data, ATTN_F32, B, KV_HEADS, T, D);
  attn_tensor v = attn_bhtd(v_data, ATTN_F32, B, KV_HEADS, T, D);
  attn_tensor o = attn_bhtd(o_data, ATTN_F32, B, H, T, D);
  attn_status status = attn_sdpa(o, q, k, v, &(attn_sdpa_params){.causal = 1}, NULL);
  if (status != ATTN_OK) {
    fprintf(stderr, "hello: %s\n", attn_status_string(status));
    return 1;
  }

  double error = error_of_one_row();
  printf("attention of %d x %d heads, %d tokens, on the %s tier: error of one row %.1e\n", B, H, T,
         attn_isa_name(attn_isa_best()), error);
  return error < 1e-5 ? 0 : 1; /* also 1 for NaN */
}
