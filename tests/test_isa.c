/* tests/test_isa.c owns the choice of tiers: names, states, ATTN_ISA, attn_isa_limit, and that the
 * tier asked for is the one that runs. */

#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "list.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* CPUID leaf 7 register b, and the register sets the system saves. */
static unsigned leaf7(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) ? b : 0;
}

static unsigned saved(void) {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static int fma_and_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_FMA && c & bit_F16C && c & bit_AVX;
}

int test_expects(attn_isa isa) {
  const unsigned wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;
  int avx2 = fma_and_f16c() && leaf7() & bit_AVX2 && (saved() & 6) == 6;
  if (isa == ATTN_ISA_AVX2) return avx2;
  if (isa == ATTN_ISA_AVX512) return avx2 && (leaf7() & wide) == wide && (saved() & 0xE6) == 0xE6;
  return isa == ATTN_ISA_SCALAR;
}

int test_expects_feature(attn_feature feature) {
  unsigned a, b, c, d;
  if (!test_expects(ATTN_ISA_AVX2) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  if (feature == ATTN_FEATURE_AVX_VNNI)
    return a > 0 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
  if (!test_expects(ATTN_ISA_AVX512)) return 0;
  if (feature == ATTN_FEATURE_AVX512_VNNI) return c >> 11 & 1;
  if (feature != ATTN_FEATURE_AVX512_BF16 || a < 1) return 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
static const attn_isa family[] = {ATTN_ISA_SCALAR, ATTN_ISA_AVX2, ATTN_ISA_AVX512};
static const attn_isa foreign = ATTN_ISA_NEON;
#else
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

int test_expects(attn_isa isa) {
#if defined(__aarch64__) || (defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA))
  if (isa == ATTN_ISA_NEON) return 1;
#endif
  return isa == ATTN_ISA_SCALAR;
}
int test_expects_feature(attn_feature feature) {
#if defined(__aarch64__) && defined(__linux__)
  if (feature == ATTN_FEATURE_NEON_BF16) return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  if (feature == ATTN_FEATURE_NEON_DOTPROD) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  if (feature == ATTN_FEATURE_NEON_FP16FML) return getauxval(AT_HWCAP) >> 23 & 1;
#endif
  (void)feature;
  return 0;
}
static const attn_isa family[] = {ATTN_ISA_SCALAR, ATTN_ISA_NEON};
static const attn_isa foreign = ATTN_ISA_AVX2;
#endif
enum { FAMILY = sizeof family / sizeof *family };

static attn_isa best(void) {
  attn_isa isa = ATTN_ISA_SCALAR;
  for (int n = 0; n < FAMILY; n++) {
    if (test_expects(family[n])) isa = family[n];
  }
  return isa;
}

/* Runs check in a process that has not used attn.h; returns what check returned. */
static int fresh(const char *env, int (*check)(void)) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (env) {
      setenv("ATTN_ISA", env, 1);
    } else {
      unsetenv("ATTN_ISA");
    }
    _exit(check());
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* The least call there is, on a forced tier. */
static attn_status call_sdpa(attn_isa isa, attn_ctx *ctx, float *o) {
  static float x[4] = {1, 2, 3, 4};
  attn_tensor t = attn_bhtd(x, ATTN_F32, 1, 1, 2, 2), out = attn_bhtd(o, ATTN_F32, 1, 1, 2, 2);
  memset(ctx, 0, sizeof *ctx);
  ctx->isa = isa;
  return attn_sdpa(out, t, t, t, NULL, ctx);
}

#define WANT(condition) \
  if (!(condition)) return __LINE__ % 256

static int check_unknown(void) {
  attn_ctx ctx;
  float o[4] = {7, 7, 7, 7}, x[2] = {0, 0};
  WANT(call_sdpa(ATTN_ISA_AUTO, &ctx, o) == ATTN_E_ENV);
  WANT(ctx.reason && strstr(ctx.reason, "ATTN_ISA"));
  WANT(call_sdpa(ATTN_ISA_SCALAR, &ctx, o) == ATTN_E_ENV);
  WANT(o[0] == 7 && o[1] == 7 && o[2] == 7 && o[3] == 7);
  WANT(attn_exp(o, x, 2, NULL) == ATTN_E_ENV);
  attn_tensor t = attn_bhtd(x, ATTN_F32, 1, 1, 1, 2), out = attn_bhtd(o, ATTN_F32, 1, 1, 1, 2);
  WANT(attn_rope(out, t, NULL, NULL) == ATTN_E_ENV);
  attn_tensor l = attn_bhtd(x, ATTN_F32, 1, 1, 1, 1), none = l;
  none.data = NULL;
  WANT(attn_merge(out, none, t, l, t, l, NULL) == ATTN_E_ENV);
  WANT(o[0] == 7 && o[1] == 7);
  WANT(attn_sdpa_workspace(out, t, t, t, NULL, NULL) == ATTN_WORKSPACE_REJECTED);
  WANT(attn_isa_best() == ATTN_ISA_SCALAR);
  WANT(attn_isa_limit(ATTN_ISA_SCALAR) == ATTN_E_ENV);
  return 0;
}

void isa_env_unknown(void **state) {
  (void)state;
  static const char *const words[] = {"sse9",        "AVX2",         "avx2 ", "1",
                                      "scalar,avx2", "none",         "-",     "scalar-",
                                      "scalar-bf",   "scalar-bf16-", "-bf161"};
  for (int n = 0; n < 11; n++) assert_int_equal(fresh(words[n], check_unknown), 0);
  assert_int_equal(fresh(attn_isa_name(foreign), check_unknown), 0);
}

static attn_isa cap; /* what the children below are told */

static int check_cap(void) {
  attn_ctx ctx;
  float o[4];
  WANT(attn_isa_best() == cap);
  WANT(call_sdpa(ATTN_ISA_AUTO, &ctx, o) == ATTN_OK && ctx.report.isa == cap);
  for (int n = 0; n < FAMILY; n++) {
    if (!test_expects(family[n])) continue;
    int capped = family[n] > cap;
    WANT(attn_isa_status(family[n]) == (capped ? ATTN_ISA_CAPPED : ATTN_ISA_OK));
    attn_status status = call_sdpa(family[n], &ctx, o);
    WANT(status == (capped ? ATTN_E_ISA : ATTN_OK));
    WANT(capped ? strstr(ctx.reason, "isa") != NULL : ctx.report.isa == family[n]);
  }
  return 0;
}

void isa_env_caps(void **state) {
  (void)state;
  for (int n = 0; n < FAMILY; n++) {
    cap = family[n] < best() ? family[n] : best();
    assert_int_equal(fresh(attn_isa_name(family[n]), check_cap), 0);
  }
}

void isa_env_default(void **state) {
  (void)state;
  cap = best();
  assert_int_equal(fresh(NULL, check_cap), 0);
  assert_int_equal(fresh("", check_cap), 0);
  assert_int_equal(fresh("auto", check_cap), 0);
}

static int check_limit(void) {
  attn_isa top = best();
  WANT(attn_isa_limit(foreign) == ATTN_E_ISA);
  WANT(attn_isa_limit((attn_isa)ATTN_ISA_COUNT) == ATTN_E_ISA);
  WANT(attn_isa_limit((attn_isa)-1) == ATTN_E_ISA);
  WANT(attn_isa_best() == top);
  for (int n = FAMILY - 1; n >= 0; n--) {
    WANT(attn_isa_limit(family[n]) == ATTN_OK);
    cap = family[n] < top ? family[n] : top;
    int failed = check_cap();
    if (failed) return failed;
  }
  WANT(attn_isa_limit(ATTN_ISA_AUTO) == ATTN_OK);
  cap = top;
  return check_cap();
}

void isa_limit(void **state) {
  (void)state;
  assert_int_equal(fresh(NULL, check_limit), 0);
}

static int check_lower(void) {
  cap = ATTN_ISA_SCALAR;
  WANT(attn_isa_limit(best()) == ATTN_OK);
  return check_cap();
}

static int check_lower_limit(void) {
  cap = ATTN_ISA_SCALAR;
  WANT(attn_isa_limit(ATTN_ISA_SCALAR) == ATTN_OK);
  return check_cap();
}

void isa_lower_cap_holds(void **state) {
  (void)state;
  assert_int_equal(fresh("scalar", check_lower), 0);
  assert_int_equal(fresh(attn_isa_name(best()), check_lower_limit), 0);
}

static void *first_use(void *p) {
  attn_ctx ctx;
  float o[4];
  int *failed = p;
  *failed = call_sdpa(ATTN_ISA_AUTO, &ctx, o) != ATTN_OK || ctx.report.isa != best();
  return NULL;
}

static int check_many(void) {
  pthread_t threads[8];
  int failed[8], any = 0;
  for (int n = 0; n < 8; n++) WANT(pthread_create(&threads[n], NULL, first_use, &failed[n]) == 0);
  for (int n = 0; n < 8; n++) {
    WANT(pthread_join(threads[n], NULL) == 0);
    any |= failed[n];
  }
  return any;
}

void isa_first_use_by_many(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) assert_int_equal(fresh(NULL, check_many), 0);
}

void isa_names(void **state) {
  (void)state;
  static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
  for (int n = 0; n < 5; n++) assert_string_equal(attn_isa_name((attn_isa)n), names[n]);
  assert_string_equal(attn_isa_name((attn_isa)ATTN_ISA_COUNT), "unknown");
  assert_string_equal(attn_isa_name((attn_isa)-1), "unknown");
  for (int n = -2; n < ATTN_ISA_COUNT + 2; n++) {
    const char *why = attn_isa_why((attn_isa)n);
    assert_non_null(why);
    assert_true(strlen(why) > 0);
  }
  assert_int_equal(attn_isa_status(ATTN_ISA_AUTO), ATTN_ISA_NOT_COMPILED);
  assert_int_equal(attn_isa_status((attn_isa)-1), ATTN_ISA_NOT_COMPILED);
  assert_int_equal(attn_isa_status((attn_isa)1000), ATTN_ISA_NOT_COMPILED);
}

/* Neither more nor fewer tiers than the machine has. A cap of ATTN_ISA counts as fewer. */
void isa_matches_the_machine(void **state) {
  (void)state;
  for (int n = 1; n < ATTN_ISA_COUNT; n++) {
    int runs = attn_isa_status((attn_isa)n) == ATTN_ISA_OK;
    if (runs != test_expects((attn_isa)n)) {
      fail_msg("%s: %s", attn_isa_name((attn_isa)n), attn_isa_why((attn_isa)n));
    }
  }
  assert_int_equal(attn_isa_status(foreign), ATTN_ISA_NOT_COMPILED);
}

void isa_report_names_the_forced_tier(void **state) {
  (void)state;
  attn_ctx ctx;
  float o[4];
  assert_int_equal(call_sdpa(test_isa, &ctx, o), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
  assert_int_equal(attn_exp(o, o, 4, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
}

/* ---- features beside tiers --------------------------------------------------------------------*/

void O6_names(void **state) {
  (void)state;
  static const char *const names[] = {"none",        "avx512bf16", "avx512vnni", "neonbf16",
                                      "neondotprod", "avxvnni",    "neonfp16fml"};
  assert_int_equal(sizeof names / sizeof *names, ATTN_FEATURE_COUNT);
  for (int n = 0; n < ATTN_FEATURE_COUNT; n++)
    assert_string_equal(attn_feature_name((attn_feature)n), names[n]);
  assert_string_equal(attn_feature_name((attn_feature)ATTN_FEATURE_COUNT), "unknown");
  assert_string_equal(attn_feature_name((attn_feature)-1), "unknown");
  assert_int_equal(attn_feature_isa(ATTN_FEATURE_AVX512_BF16), ATTN_ISA_AVX512);
  assert_int_equal(attn_feature_isa(ATTN_FEATURE_AVX512_VNNI), ATTN_ISA_AVX512);
  assert_int_equal(attn_feature_isa(ATTN_FEATURE_AVX_VNNI), ATTN_ISA_AVX2);
  assert_int_equal(attn_feature_isa(ATTN_FEATURE_NEON_BF16), ATTN_ISA_NEON);
  assert_int_equal(attn_feature_isa(ATTN_FEATURE_NEON_DOTPROD), ATTN_ISA_NEON);
  for (int n = -2; n < ATTN_FEATURE_COUNT + 2; n++) {
    const attn_feature f = (attn_feature)n;
    assert_true(strlen(attn_feature_why(f)) > 0);
    if (n > 0 && n < ATTN_FEATURE_COUNT) continue;
    assert_int_equal(attn_feature_isa(f), ATTN_ISA_AUTO);
    assert_int_equal(attn_feature_status(f), ATTN_ISA_NOT_COMPILED);
    assert_int_equal(attn_feature_off(f, 1), ATTN_E_ISA);
  }
}

void O6_matches_the_machine(void **state) {
  (void)state;
  for (int n = 1; n < ATTN_FEATURE_COUNT; n++) {
    const attn_feature f = (attn_feature)n;
    const int runs = attn_feature_status(f) == ATTN_ISA_OK;
    if (runs != test_expects_feature(f))
      fail_msg("%s: %s", attn_feature_name(f), attn_feature_why(f));
    if (runs) assert_string_equal(attn_feature_why(f), "runs");
  }
}

/* What a feature that the machine has is like in a child, and that its tier stays. */
static attn_isa_state want_state;
static attn_isa want_best;
static int check_features(void) {
  attn_ctx ctx;
  float o[4];
  WANT(attn_isa_best() == want_best);
  WANT(call_sdpa(ATTN_ISA_AUTO, &ctx, o) == ATTN_OK && ctx.report.isa == want_best);
  for (int n = 1; n < ATTN_FEATURE_COUNT; n++) {
    const attn_feature f = (attn_feature)n;
    if (!test_expects_feature(f)) {
      WANT(attn_feature_status(f) != ATTN_ISA_OK);
      continue;
    }
    WANT(attn_feature_status(f) == want_state);
    WANT(want_state == ATTN_ISA_OK || strstr(attn_feature_why(f), "ATTN_ISA"));
    WANT(attn_feature_off(f, 1) == ATTN_OK && attn_feature_status(f) == ATTN_ISA_CAPPED);
    WANT(attn_feature_off(f, 0) == ATTN_OK && attn_feature_status(f) == want_state);
  }
  return 0;
}

void O6_env(void **state) {
  (void)state;
  char word[40];
  want_best = best(), want_state = ATTN_ISA_OK;
  assert_int_equal(fresh(NULL, check_features), 0);
  assert_int_equal(fresh(attn_isa_name(best()), check_features), 0);
  want_state = ATTN_ISA_CAPPED;
  assert_int_equal(fresh("auto-bf16-vnni-dotprod-fp16fml", check_features), 0);
  assert_int_equal(fresh("-dotprod-vnni-bf16-fp16fml", check_features), 0);
  snprintf(word, sizeof word, "%s-bf16-vnni-bf16-dotprod-fp16fml", attn_isa_name(best()));
  assert_int_equal(fresh(word, check_features), 0);
  want_best = ATTN_ISA_SCALAR;
  assert_int_equal(fresh("scalar", check_features), 0);
  assert_int_equal(fresh("scalar-bf16", check_features), 0);
}

/* A word behind a '+' demands what the machine has, and no more. */
static int check_bad_env(void);
void O6_env_demands(void **state) {
  (void)state;
  static const char *const words[] = {"bf16", "vnni", "dotprod", "fp16fml"};
  char word[60];
  want_best = best(), want_state = ATTN_ISA_OK;
  for (int n = 0; n < 4; n++) {
    int has = 0;
    for (int f = 1; f < ATTN_FEATURE_COUNT; f++)
      has |= test_expects_feature((attn_feature)f) &&
             strstr(attn_feature_name((attn_feature)f), words[n]) != NULL;
    for (int form = 0; form < 3; form++) {
      snprintf(word, sizeof word, "%s+%s",
               form == 0   ? ""
               : form == 1 ? "auto"
                           : attn_isa_name(best()),
               words[n]);
      assert_int_equal(fresh(word, has ? check_features : check_bad_env), 0);
    }
    snprintf(word, sizeof word, "scalar+%s", words[n]);
    assert_int_equal(fresh(word, check_bad_env), 0);
    snprintf(word, sizeof word, "-%s+%s", words[n], words[n]);
    assert_int_equal(fresh(word, check_bad_env), 0);
  }
}

static int check_bad_env(void) {
  WANT(attn_isa_best() == ATTN_ISA_SCALAR);
  for (int n = 1; n < ATTN_FEATURE_COUNT; n++) {
    const attn_status status = attn_feature_off((attn_feature)n, 1);
    WANT(status == ATTN_E_ENV || status == ATTN_E_ISA);
    WANT(attn_feature_status((attn_feature)n) != ATTN_ISA_OK);
  }
  return 0;
}

void O6_env_unknown(void **state) {
  (void)state;
  assert_int_equal(fresh("-bf17", check_bad_env), 0);
  assert_int_equal(fresh("+bf17", check_bad_env), 0);
  assert_int_equal(fresh("nonsense-bf16", check_bad_env), 0);
}
