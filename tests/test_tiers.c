/* tests/test_tiers.c owns what a tier may differ by from scalar: no more than results do when the last bits of the
 * inputs change. */

#include "compound.h"

static void run(int n, attn_tensor out[2]) { golden_compound(n, &out[0], &out[1]); }

/* The largest difference of two results; *size: the largest number of b. */
static double apart(const attn_tensor a[2], const attn_tensor b[2], double *size) {
  double most = 0;
  *size = 0;
  for (int k = 0; k < 2; k++) {
    const float *x = a[k].data, *y = b[k].data;
    for (int64_t i = 0; i < a[k].batch * a[k].heads * a[k].len * a[k].dim; i++) {
      if (isfinite(y[i])) *size = fmax(*size, fabs((double)y[i]));
      if (isfinite(x[i]) && isfinite(y[i])) most = fmax(most, fabs((double)x[i] - (double)y[i]));
    }
  }
  return most;
}

void api_tiers_differ_by_roundings(void **state) {
  (void)state;
  const attn_isa isa = test_isa;
  const char *name;
  for (int n = 0; (name = golden_compound(n, NULL, NULL)); n++, test_mem_release()) {
    attn_tensor here[2], scalar[2], other[2];
    double size, moved = 0;
    if (test_fast > 1 && n % 4) continue;
    run(n, here);
    test_isa = ATTN_ISA_SCALAR;
    run(n, scalar);
    test_isa = isa;
    const double off = apart(here, scalar, &size);
    for (uint64_t k = 0; k < 4; k++) {
      static test_rng rng; /* outlives a failure */
      rng = test_seed(5300 + k);
      test_jitter = &rng;
      run(n, other);
      test_jitter = NULL;
      moved = fmax(moved, apart(other, here, &size));
    }
    if (strcmp(name, "losses") == 0) continue; /* the bits of doubles */
    if (!(off <= 4 * moved + 1e-6 * size))
      fail_msg("%s: %g from scalar, %g by last bits, of %g", name, off, moved, size);
  }
}
