/* tests/main.c owns the runner: options, one cmocka group per tier, and the page at the end that
 * says which tiers ran.
 *
 *   runner [--isa TIER] [--filter PATTERN] [--other-bits] [--list] [--golden] [--exp-exhaustive]
 *
 * --other-bits: the implementation has other elementary functions, so hashes of results do not hold.
 * ATTN_TEST_SCALE=small runs fewer and smaller random cases; least, for what is slow besides, keeps each promise of a call
 * with two numbers of workers and goes through a part of the golden calls where that is a sweep over all of them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "modes.h"

static int ran; /* tests of the present group */

static int before(void **state) {
  (void)state;
  ran++;
  return 0;
}

static int after(void **state) {
  (void)state;
  for (int f = 1; test_repeats && f < ATTN_FEATURE_COUNT; f++) /* it failed in a mode */
    (void)attn_feature_off((attn_feature)f, 0);
  test_compute = ATTN_COMPUTE_F32, test_repeats = 0;
  test_mem_release();
  return 0;
}

#define ENTRY(name) {#name, name, before, after, NULL},
static const struct CMUnitTest once_tests[] = {FRESH_TESTS(ENTRY) ONCE_TESTS(ENTRY)};
static const struct CMUnitTest tier_tests[] = {TIER_TESTS(ENTRY)};
enum {
  ONCE_COUNT = sizeof once_tests / sizeof *once_tests,
  TIER_COUNT = sizeof tier_tests / sizeof *tier_tests
};

const char *test_name(int n) {
  if (n < ONCE_COUNT) return once_tests[n].name;
  return n < ONCE_COUNT + TIER_COUNT ? tier_tests[n - ONCE_COUNT].name : NULL;
}

/* What became of a tier. */
typedef struct outcome {
  int ran, failed, skipped, missing;
  const char *why;
} outcome;

static int usage(const char *word) {
  fprintf(stderr, "unknown option or tier: %s\n", word);
  return 2;
}

static attn_isa tier_of(const char *name) {
  for (int t = 1; t < ATTN_ISA_COUNT; t++) {
    if (strcmp(name, attn_isa_name((attn_isa)t)) == 0) return (attn_isa)t;
  }
  return ATTN_ISA_AUTO;
}

/* Runs the tests of one tier, or says why not. */
static outcome run_tier(attn_isa isa, int asked) {
  outcome o = {0, 0, 0, 0, NULL};
  test_isa = isa;
  if (attn_isa_status(isa) == ATTN_ISA_OK) {
    ran = test_skipped = 0;
    o.failed = _cmocka_run_group_tests(attn_isa_name(isa), tier_tests, TIER_COUNT, NULL, NULL);
    o.skipped = test_skipped;
    o.ran = ran - o.skipped;
    return o;
  }
  o.why = attn_isa_why(isa);
  o.missing = asked || test_expects(isa);
  return o;
}

int main(int argc, char **argv) {
  attn_isa only = ATTN_ISA_AUTO;
  const char *filter = NULL;
  const char *scale = getenv("ATTN_TEST_SCALE");
  test_fast = !scale ? 0 : strcmp(scale, "least") == 0 ? 2 : strcmp(scale, "small") == 0;
  for (int n = 1; n < argc; n++) {
    const char *word = argv[n], *value = n + 1 < argc ? argv[n + 1] : "";
    if (strcmp(word, "--list") == 0) {
      for (int t = 0; test_name(t); t++) puts(test_name(t));
      return 0;
    } else if (strcmp(word, "--golden") == 0) {
      return golden_print();
    } else if (strcmp(word, "--exp-exhaustive") == 0) {
      return exp_exhaustive();
    } else if (strcmp(word, "--isa") == 0) {
      only = tier_of(value);
      if (only == ATTN_ISA_AUTO) return usage(value);
      n++;
    } else if (strcmp(word, "--filter") == 0) {
      cmocka_set_test_filter(filter = value);
      n++;
    } else if (strcmp(word, "--other-bits") == 0) {
      test_other_bits = 1;
    } else {
      return usage(word);
    }
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (test_fast) printf("ATTN_TEST_SCALE=%s: FEWER AND SMALLER RANDOM CASES\n", scale);

  int failed = 0, found = 0;
  if (!only) {
    ran = 0;
    failed = _cmocka_run_group_tests("any tier", once_tests, ONCE_COUNT, NULL, NULL);
    printf("any tier: ran %d tests, %d failed\n", ran, failed);
    found = ran;
  }
  outcome outcomes[ATTN_ISA_COUNT];
  for (int t = 1; t < ATTN_ISA_COUNT; t++) {
    if (!only || only == (attn_isa)t) outcomes[t] = run_tier((attn_isa)t, only == (attn_isa)t);
  }
  puts("");
  for (int t = 1; t < ATTN_ISA_COUNT; t++) {
    const outcome *o = &outcomes[t];
    const char *name = attn_isa_name((attn_isa)t);
    if (only && only != (attn_isa)t) continue;
    if (filter && !o->why && o->ran + o->skipped == 0)
      continue; /* no test of a tier is called so */
    if (!o->why) {
      printf("tier %-6s  ran %d tests, %d failed, %d skipped%s\n", name, o->ran, o->failed,
             o->skipped,
             test_fast > 1 ? " (least scale)"
             : test_fast   ? " (small scale)"
                           : "");
      failed += o->failed, found += o->ran + o->skipped;
    } else {
      printf("tier %-6s  NOT RUN, %d tests skipped: %s%s\n", name, TIER_COUNT, o->why,
             o->missing ? "; IT SHOULD BE HERE" : "");
      failed += o->missing;
    }
  }
  if (filter && !found) {
    printf("no test is called %s\n", filter);
    failed = 1;
  }
  return failed ? 1 : 0;
}
