/* tests/families/training/loss.h owns a call of a loss over classes with all it reads, and the loss in float64. */

#ifndef TESTS_LOSS_H
#define TESTS_LOSS_H

#include <float.h>

#include "compound.h"

/* Rows of logits in double, and what follows from them. d has d loss / d logits. */
typedef struct loss_want {
  cube d, size; /* size: of d, by the magnitudes of its terms */
  double loss;
  double *row; /* [rows] */
  int64_t counted;
} loss_want;

/* Straight from the definition; targets end to end. */
loss_want loss_oracle(const cube *logits, const int32_t *targets,
                      const attn_cross_entropy_params *p);
/* Targets of so many classes, some of them ignored where p says so. */
int32_t *loss_targets(int64_t n, int64_t classes, attn_cross_entropy_params *p, test_rng *rng);
/* Options, each with a chance. */
void loss_options(attn_cross_entropy_params *p, test_rng *rng);
/* A double as an output of a promise: two floats of memory. */
attn_tensor loss_words(double **loss);

#endif
