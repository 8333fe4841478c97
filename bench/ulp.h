/* ulp.h owns the measured error of an exponential. */
#ifndef BENCH_ULP_H
#define BENCH_ULP_H

#include <stdint.h>

#include "header.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int (*ulp_function)(float *y, const float *x, int64_t n, attn_isa isa);

typedef struct ulp_record {
  double worst;   /* units in the last place of the exact result, as a float would round it */
  float at;       /* where */
  int64_t points; /* arguments tried */
} ulp_record;

/* Against expl: evenly spaced arguments over all results that are not 0 or infinity, subnormal
 * ones included, and every 1021st float whatever its size. `f` returns 0 on failure; then worst
 * is infinite. */
ulp_record ulp_exp(ulp_function f, attn_isa isa);

#ifdef __cplusplus
}
#endif
#endif
