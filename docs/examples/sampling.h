/* sampling.h owns the choice of the next token. With logits l of all tokens, in this order, each step left out where
 * its number says so:
 *
 *   repetition r (1)   of tokens that the text has: l = l / r where l > 0, else l r
 *   temperature T (0)  0: the likeliest token, of equal ones the first; else w = exp((l - max l) / T)
 *   top_k K (0)        the K largest w stay, of equal ones the first
 *   top_p P (1)        of those the fewest, largest first, whose sum reaches P times the sum of all
 *   min_p M (0)        of those the ones with w >= M
 *
 * and a token is drawn with probability w over the sum of what is left. A draw is a function of the seed and the number
 * of the step, so a text is one of its seed. Sources: temperature, top-k: Fan et al. 2018, arXiv 1805.04833; top-p:
 * Holtzman et al. 2019, arXiv 1904.09751; min-p: Nguyen et al. 2024, arXiv 2407.01082; repetition: Keskar et al. 2019,
 * arXiv 1909.05858. */
#ifndef EXAMPLES_SAMPLING_H
#define EXAMPLES_SAMPLING_H

#include "attn.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct sampling {
  double temperature, top_p, min_p, repetition; /* 0 of the last three: left out, too */
  int64_t top_k;
} sampling;

/* What choosing among `count` tokens needs. */
typedef struct sampler {
  sampling how;
  int64_t count;
  int32_t *kept;       /* tokens that may be drawn */
  double *weight;      /* of each token */
  unsigned char *seen; /* zeros between calls */
} sampler;

static int sampler_open(sampler *s, const sampling *how, int64_t count) {
  *s = (sampler){.how = *how, .count = count};
  s->kept = calloc((size_t)count, sizeof *s->kept);
  s->weight = calloc((size_t)count, sizeof *s->weight);
  s->seen = calloc((size_t)count, 1);
  return s->kept && s->weight && s->seen;
}

static void sampler_free(sampler *s) {
  free(s->kept);
  free(s->weight);
  free(s->seen);
}

/* Whether token a comes before b: a heap has the first one at its top. */
static int sampling_before_(const float *logits, int32_t a, int32_t b) {
  return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sampling_sink_(int32_t *heap, int64_t n, int64_t i, const float *logits) {
  for (int64_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && sampling_before_(logits, heap[child + 1], heap[child])) child++;
    if (!sampling_before_(logits, heap[child], heap[i])) return;
    const int32_t token = heap[i];
    heap[i] = heap[child];
    heap[child] = token;
  }
}

static void sampling_repetition_(sampler *s, float *logits, const int64_t *text, int64_t len) {
  const float r = (float)s->how.repetition;
  for (int64_t i = 0; i < len; i++)
    if (!s->seen[text[i]]) {
      float *l = &logits[text[i]];
      s->seen[text[i]] = 1;
      *l = *l > 0 ? *l / r : *l * r;
    }
  for (int64_t i = 0; i < len; i++) s->seen[text[i]] = 0;
}

/* Of weights, in order, of all n tokens: how many of kept may be drawn. top_k and top_p take the largest ones off a
 * heap, so a vocabulary is not sorted. */
static int64_t sampling_keep_(sampler *s, const float *logits) {
  const sampling *how = &s->how;
  const int nucleus = how->top_p > 0 && how->top_p < 1;
  int64_t n = s->count, most = n, kept = 0;
  for (int64_t i = 0; i < n; i++) s->kept[i] = (int32_t)i;
  if ((how->top_k > 0 && how->top_k < n) || nucleus) {
    double sum = 0, all = 0;
    if (how->top_k > 0 && how->top_k < n) most = how->top_k;
    for (int64_t i = n / 2 - 1; i >= 0; i--) sampling_sink_(s->kept, n, i, logits);
    if (most == n)
      for (int64_t i = 0; i < n; i++) all += s->weight[i];
    for (int64_t left = n;
         kept < most;) { /* the ones taken lie behind the heap, the last one first */
      const int32_t token = s->kept[0];
      s->kept[0] = s->kept[--left];
      s->kept[left] = token;
      sampling_sink_(s->kept, left, 0, logits);
      sum += s->weight[token];
      kept++;
      if (nucleus && most == n && sum >= how->top_p * all) break;
    }
    for (int64_t i = 0, j = n - 1; i < j; i++, j--) { /* the largest first */
      const int32_t token = s->kept[i];
      s->kept[i] = s->kept[j];
      s->kept[j] = token;
    }
    if (nucleus && most < n) {
      const double reach = how->top_p * sum;
      int64_t few = 0;
      for (sum = 0; few < kept && (few == 0 || sum < reach);) sum += s->weight[s->kept[few++]];
      kept = few;
    }
  } else {
    kept = n;
  }
  if (how->min_p > 0) {
    int64_t left = 0;
    for (int64_t i = 0; i < kept; i++)
      if (s->weight[s->kept[i]] >= how->min_p) s->kept[left++] = s->kept[i];
    kept = left;
  }
  return kept;
}

/* The next token of a text of `len` tokens; -1 if the logits are not finite. logits are changed. */
static int64_t sampler_choose(sampler *s, float *logits, const int64_t *text, int64_t len,
                              uint64_t seed, int64_t step) {
  int64_t best = 0;
  for (int64_t i = 0; i < s->count; i++)
    if (!isfinite(logits[i])) return -1;
  if (s->how.repetition > 0 && s->how.repetition != 1) sampling_repetition_(s, logits, text, len);
  for (int64_t i = 0; i < s->count; i++)
    if (logits[i] > logits[best]) best = i;
  if (s->how.temperature == 0) return best;
  for (int64_t i = 0; i < s->count; i++)
    s->weight[i] = exp(((double)logits[i] - (double)logits[best]) / s->how.temperature);
  const int64_t kept = sampling_keep_(s, logits);
  double sum = 0;
  int64_t i = 0;
  for (int64_t j = 0; j < kept; j++) sum += s->weight[s->kept[j]];
  sum *= (double)(attn_random_u64(seed, 0, (uint64_t)step) >> 11) * 0x1p-53;
  while (i < kept - 1 && (sum -= s->weight[s->kept[i]]) >= 0) i++;
  return s->kept[i];
}

#endif
