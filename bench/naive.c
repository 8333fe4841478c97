/* naive.c owns the plain loop: attention as a reader of the formula writes it. Compiled twice with
 * -O3 -ffast-math, so that the compiler makes of it what it can: for this processor
 * (-march=native), and as naive_head_baseline for the baseline one. */
#include <math.h>
#include <stdint.h>

#include "peers.h"

#ifdef NAIVE_BASELINE
#define naive_head naive_head_baseline
#endif

void naive_head(float *restrict o, const float *restrict q, const float *restrict k,
                const float *restrict v, float *restrict scores, int64_t tq, int64_t tk, int64_t dk,
                int64_t dv, int causal) {
  float scale = 1.0f / sqrtf((float)dk);
  for (int64_t i = 0; i < tq; i++) {
    int64_t n = causal ? i + tk - tq + 1 : tk;
    float max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
      float s = 0;
      for (int64_t x = 0; x < dk; x++) s += q[i * dk + x] * k[j * dk + x];
      scores[j] = s * scale;
    }
    for (int64_t j = 0; j < n; j++) max = scores[j] > max ? scores[j] : max;
    for (int64_t j = 0; j < n; j++) {
      scores[j] = expf(scores[j] - max);
      sum += scores[j];
    }
    for (int64_t x = 0; x < dv; x++) o[i * dv + x] = 0;
    for (int64_t j = 0; j < n; j++)
      for (int64_t x = 0; x < dv; x++) o[i * dv + x] += scores[j] * v[j * dv + x];
    for (int64_t x = 0; x < dv; x++) o[i * dv + x] /= sum;
  }
}
