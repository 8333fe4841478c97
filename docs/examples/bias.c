/* bias.c owns the example of attention of your own: a new bias in ten lines, and a mask that is a
 * function. Both are checked against the same thing said with what attn.h has ready: a table of
 * distances and a pattern of segments. */
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 4, T = 300, D = 32, VALUES = HEADS * T * D };

static float q_data[VALUES], k_data[VALUES], v_data[VALUES], mine[VALUES], ready[VALUES];

/* The new bias: the score of a key at distance d falls by strength[head] * log(1 + |d|) (Chi et al.
 * 2022, arXiv 2205.09921). This is all it takes. */
static void log_distance(void *user, const attn_score_tile *t) {
  const float *strength = user;
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      float distance = fabsf((float)(t->key[c] - t->position[r]));
      t->score[c * t->key_stride + r * t->query_stride] -=
          strength[t->head[r]] * logf(1 + distance);
    }
}

/* The new mask: tokens of one document see each other. */
static const int32_t starts[] = {0, 70, 71, 200, T};

static int same_document(void *user, int64_t head, int64_t i, int64_t j) {
  const int *document = user;
  (void)head;
  return document[i] == document[j];
}

static void check(attn_status status, const attn_ctx *ctx) {
  if (status == ATTN_OK) return;
  fprintf(stderr, "bias: %s: %s\n", attn_status_string(status), ctx->reason);
  exit(1);
}

/* Builds the schedule, attends, frees it. */
static void attend(float *out, const attn_pattern *pattern, attn_sdpa_params params) {
  attn_tensor q = attn_bhtd(q_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor k = attn_bhtd(k_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor v = attn_bhtd(v_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor o = attn_bhtd(out, ATTN_F32, 1, HEADS, T, D);
  attn_ctx ctx = {0};
  attn_schedule schedule;
  check(attn_schedule_build(&schedule, pattern, HEADS, T, T, NULL, &ctx), &ctx);
  params.schedule = &schedule;
  check(attn_sdpa(o, q, k, v, &params, &ctx), &ctx);
  attn_schedule_free(&schedule);
}

int main(void) {
  static float strength[HEADS] = {0.25f, 0.5f, 1, 2}, table[HEADS][2 * T - 1];
  static int document[T];
  for (int i = 0; i < VALUES; i++) {
    q_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    k_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    v_data[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
  }
  for (int i = 0; i < T; i++)
    while (i >= starts[document[i] + 1]) document[i]++;
  for (int h = 0; h < HEADS; h++)
    for (int d = 1 - T; d < T; d++) table[h][d + T - 1] = -strength[h] * logf(1 + fabsf((float)d));

  attn_pattern by_function = attn_pattern_predicate(same_document, NULL, document);
  attend(mine, &by_function, (attn_sdpa_params){.modify = log_distance, .modify_user = strength});

  attn_pattern by_offsets = attn_pattern_segments(starts, 4);
  attend(ready, &by_offsets,
         (attn_sdpa_params){
             .toeplitz = {.table = table[0], .len = 2 * T - 1, .first = 1 - T, .heads = HEADS}});

  double worst = 0;
  for (int i = 0; i < VALUES; i++) worst = fmax(worst, fabs((double)mine[i] - (double)ready[i]));
  printf("a bias and a mask of one's own: %.1e from the same of attn.h\n", worst);
  return worst < 1e-5 ? 0 : 1;
}
