/* tests/modes.h owns what the runner does besides testing. */

#ifndef TESTS_MODES_H
#define TESTS_MODES_H

/* Writes tests/golden.h to the standard output; 1 on failure. */
int golden_print(void);
/* The worst error of attn_exp over every float, on every tier; 1 if it passes 2 ULP. */
int exp_exhaustive(void);
/* The n-th test's name, null at the end. */
const char *test_name(int n);

#endif
