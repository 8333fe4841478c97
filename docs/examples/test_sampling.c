/* test_sampling.c owns the check of sampling.h: the probabilities of all tokens against the formulas in its first
 * comment, written out in double precision with a full sort, how often tokens are drawn, and the edges. */
#include "attn.h"
#include "sampling.h"

#include <stdarg.h>
#include <stdio.h>

enum { MOST = 300 };

static int failures;
static uint64_t noise = 1;

static void check(int good, const char *format, ...) {
  if (good) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("test_sampling: ", stderr);
  vfprintf(stderr, format, arguments);
  putc('\n', stderr);
  va_end(arguments);
  failures++;
}

/* 0 .. 1 */
static double random_number(void) {
  noise = noise * 6364136223846793005u + 1442695040888963407u;
  return (double)(noise >> 11) * 0x1p-53;
}

typedef struct candidate {
  double logit, weight;
  int token;
} candidate;

static int by_logit(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  return x->token - y->token;
}

/* p [n] of logits behind a text. */
static void reference(double *p, const float *logits, int n, const sampling *how,
                      const int64_t *text, int len) {
  candidate all[MOST];
  double sum = 0, reach = 0;
  int left = n;
  for (int i = 0; i < n; i++) {
    double l = (double)logits[i];
    int there = 0;
    for (int j = 0; j < len; j++) there |= text[j] == i;
    if (there && how->repetition > 0) l = l > 0 ? l / how->repetition : l * how->repetition;
    all[i] = (candidate){.logit = l, .token = i};
    p[i] = 0;
  }
  qsort(all, (size_t)n, sizeof *all, by_logit);
  for (int i = 0; i < n; i++) all[i].weight = exp((all[i].logit - all[0].logit) / how->temperature);
  if (how->top_k > 0 && how->top_k < left) left = (int)how->top_k;
  for (int i = 0; i < left; i++) sum += all[i].weight;
  if (how->top_p > 0 && how->top_p < 1) {
    int few = 0;
    while (few < left && reach < how->top_p * sum) reach += all[few++].weight;
    left = few;
  }
  sum = 0;
  for (int i = 0; i < left; i++)
    if (all[i].weight >= how->min_p) sum += p[all[i].token] = all[i].weight;
  for (int i = 0; i < n; i++) p[i] /= sum;
}

/* What the sampler gives each token, from its draws: those of many steps are as often as p says, none has p = 0. */
static void check_draws(const sampling *how, const float *logits, int n, const int64_t *text,
                        int len) {
  enum { DRAWS = 20000 };
  double p[MOST];
  int seen[MOST] = {0}, other = 0;
  float copy[MOST];
  sampler s;
  if (!sampler_open(&s, how, n)) exit(2);
  reference(p, logits, n, how, text, len);
  for (int i = 0; i < DRAWS; i++) {
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    const int64_t token = sampler_choose(&s, copy, text, len, 7, i);
    check(token >= 0 && token < n, "token %d of %d", (int)token, n);
    if (token < 0 || token >= n) break;
    seen[token]++;
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    other += token == sampler_choose(&s, copy, text, len, 8, i);
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    if (i < 100)
      check(token == sampler_choose(&s, copy, text, len, 7, i),
            "a draw is no function of its seed");
  }
  double most = 0;
  for (int i = 0; i < n; i++) {
    const double d = DRAWS;
    most = fmax(most, p[i]);
    check(p[i] > 0 || !seen[i], "token %d of probability 0 was drawn", i);
    check(fabs(seen[i] - d * p[i]) <= 4.5 * sqrt(d * p[i] * (1 - p[i])) + 1,
          "token %d was drawn %d times, p %g (T %g, k %d, p %g, min %g, r %g)", i, seen[i], p[i],
          how->temperature, (int)how->top_k, how->top_p, how->min_p, how->repetition);
  }
  check(most > 0.9 || other < DRAWS * 0.95, "two seeds draw alike");
  for (int i = 0; i < n; i++) check(!s.seen[i], "token %d is still marked", i);
  sampler_free(&s);
}

static void check_kinds(void) {
  static const sampling kinds[] = {{.temperature = 1},
                                   {.temperature = 0.5},
                                   {.temperature = 3},
                                   {.temperature = 1, .top_k = 5},
                                   {.temperature = 1, .top_k = 1},
                                   {.temperature = 1, .top_k = 1000},
                                   {.temperature = 1, .top_p = 0.5},
                                   {.temperature = 1, .top_p = 1e-9},
                                   {.temperature = 2, .top_k = 20, .top_p = 0.7},
                                   {.temperature = 1, .min_p = 0.2},
                                   {.temperature = 1, .min_p = 1},
                                   {.temperature = 1.5, .top_k = 12, .top_p = 0.9, .min_p = 0.1},
                                   {.temperature = 1, .repetition = 2},
                                   {.temperature = 1, .repetition = 0.5, .top_k = 6},
                                   {.temperature = 0.8, .top_p = 0.95, .repetition = 1.3}};
  static const int sizes[] = {1, 2, 3, 17, 64, MOST};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++) {
      const int n = sizes[i];
      float logits[MOST];
      int64_t text[12];
      for (int k = 0; k < n; k++) logits[k] = (float)(6 * random_number() - 3);
      if (n > 3) logits[n / 2] = logits[1]; /* equal ones */
      for (int k = 0; k < 12; k++) text[k] = (int64_t)(random_number() * n);
      check_draws(&kinds[j], logits, n, text, 12);
    }
}

static int64_t choose(double temperature, const float *logits, int64_t count, int64_t step) {
  const sampling how = {.temperature = temperature};
  float copy[4];
  sampler s;
  if (!sampler_open(&s, &how, count)) exit(2);
  memcpy(copy, logits, (size_t)count * sizeof *copy);
  const int64_t token = sampler_choose(&s, copy, NULL, 0, 5, step);
  sampler_free(&s);
  return token;
}

static void check_edges(void) {
  const float one[1] = {-5}, wide[3] = {-3e38f, 3e38f, -3e38f}, equal[3] = {2, 2, 2};
  const float bad[2] = {0, NAN}, infinite[2] = {INFINITY, 0};
  for (int step = 0; step < 100; step++) {
    check(choose(1, one, 1, step) == 0, "one token, which was not drawn");
    check(choose(1, wide, 3, step) == 1, "a token of probability 0 was drawn");
    check(choose(1e-320, wide, 3, step) == 1, "a cold draw is not the likeliest");
    const int64_t any = choose(1, equal, 3, step);
    check(any >= 0 && any < 3, "a draw among equals is none of them");
    check(choose(0, equal, 3, step) == 0, "the first of equals is the likeliest");
  }
  check(choose(1, bad, 2, 0) == -1 && choose(1, infinite, 2, 0) == -1, "NaN was taken");
}

int main(void) {
  check_kinds();
  check_edges();
  if (!failures) puts("sampling: all passed");
  return failures != 0;
}
