/* patterns.c owns the example of sparse attention: patterns are composed like sets, made ready
 * once, and used by every layer. */
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LAYERS = 4, HEADS = 4, T = 4096, D = 64, VALUES = HEADS * T * D };

static float x_data[VALUES], y_data[VALUES];       /* a layer's input and output */
static float near_data[VALUES], rest_data[VALUES]; /* two parts of the last layer */
static float near_lse[HEADS * T], rest_lse[HEADS * T], lse[HEADS * T];

static attn_tensor rows(float *data) { return attn_bhtd(data, ATTN_F32, 1, HEADS, T, D); }
static attn_tensor numbers(float *data) { return attn_bhtd(data, ATTN_F32, 1, HEADS, T, 1); }

static void check(attn_status status, const attn_ctx *ctx) {
  if (status == ATTN_OK) return;
  fprintf(stderr, "patterns: %s: %s\n", attn_status_string(status), ctx->reason);
  exit(1);
}

static attn_schedule build(const attn_pattern *pattern) {
  attn_schedule schedule;
  attn_ctx ctx = {0};
  check(attn_schedule_build(&schedule, pattern, HEADS, T, T, NULL, &ctx), &ctx);
  return schedule;
}

/* out = softmax attention of x to itself over the pairs of the schedule (null: causal, all). */
static double attend(float *out, float *out_lse, const attn_schedule *schedule) {
  attn_sdpa_params params = {.causal = !schedule, .schedule = schedule, .lse = numbers(out_lse)};
  attn_ctx ctx = {0};
  clock_t start = clock();
  check(attn_sdpa(rows(out), rows(x_data), rows(x_data), rows(x_data), &params, &ctx), &ctx);
  return (double)(clock() - start) / CLOCKS_PER_SEC;
}

int main(void) {
  /* Each token sees the 64 before it, and every 64th one further back. */
  attn_pattern near = attn_pattern_band(64, 0);
  attn_pattern far = attn_pattern_strided(64);
  far.causal = 1;
  attn_pattern both = attn_pattern_union((attn_pattern[]){near, far}, 2);
  attn_pattern rest = attn_pattern_diff((attn_pattern[]){far, near}); /* far, but not near */
  attn_schedule both_ready = build(&both), near_ready = build(&near), rest_ready = build(&rest);

  attn_schedule_info info;
  if (attn_schedule_describe(&info, &both_ready) != ATTN_OK) return 1;
  double density = (double)info.pairs / (double)(info.heads * info.q_len * info.k_len);

  for (int i = 0; i < VALUES; i++) x_data[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
  double dense = attend(y_data, lse, NULL), sparse = 0;
  for (int layer = 0; layer < LAYERS; layer++) { /* one schedule serves all layers */
    sparse += attend(y_data, lse, &both_ready);
    if (layer < LAYERS - 1)
      for (int i = 0; i < VALUES; i++) x_data[i] = (x_data[i] + y_data[i]) / 2;
  }

  /* The union equals the near part merged with the rest, which shares no pair with it. */
  attend(near_data, near_lse, &near_ready);
  attend(rest_data, rest_lse, &rest_ready);
  attn_tensor merged = rows(near_data), merged_lse = numbers(near_lse);
  attn_ctx ctx = {0};
  check(
      attn_merge(merged, merged_lse, merged, merged_lse, rows(rest_data), numbers(rest_lse), &ctx),
      &ctx);
  double worst = 0;
  for (int i = 0; i < VALUES; i++)
    worst = fmax(worst, fabs((double)y_data[i] - (double)near_data[i]));
  printf(
      "%d layers of %.1f %% of the pairs: %.1f times as fast as causal attention; near + rest = "
      "union to %.1e\n",
      LAYERS, 100 * density, dense * LAYERS / sparse, worst);
  attn_schedule_free(&both_ready), attn_schedule_free(&near_ready), attn_schedule_free(&rest_ready);
  return worst < 1e-5 ? 0 : 1;
}
