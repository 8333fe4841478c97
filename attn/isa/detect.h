/* isa/detect.h owns what the running machine can do, the caps, and the choice of a tier's table. The
 * state of the library is here and in isa/features.h: two ints each, written with values any thread
 * would compute alike. */

#if defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)
enum { ATTN_REG_EAX_ = 0, ATTN_REG_EBX_ = 1, ATTN_REG_ECX_ = 2 };
typedef struct attn_cpu_bit_ {
  const char *name; /* the compiler's name, for tests */
  int leaf, reg, bit;
} attn_cpu_bit_;
#define ATTN_CPU_BIT_(name, leaf, reg, bit) {name, leaf, ATTN_REG_##reg##_, bit},

ATTN_FUNC_ void attn_cpuid_(int leaf, uint32_t r[4]) {
#ifdef _MSC_VER
  __cpuidex((int *)r, leaf & 0xffff, leaf >> 16);
#else
  __cpuid_count(leaf & 0xffff, leaf >> 16, r[0], r[1], r[2], r[3]);
#endif
}

/* which register sets the system saves; OSXSAVE must have been seen */
ATTN_FUNC_ uint32_t attn_xcr0_(void) {
#ifdef ATTN_MSVC_
  return (uint32_t)_xgetbv(0);
#else
  uint32_t lo, hi;
  __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(lo), "=d"(hi) : "c"(0)); /* xgetbv */
  (void)hi;
  return lo;
#endif
}

ATTN_FUNC_ attn_isa_state attn_probe_x86_(const attn_cpu_bit_ *f, int n, uint32_t xcr0) {
  uint32_t r[4] = {0, 0, 0, 0};
  attn_cpuid_(0, r);
  uint32_t max_leaf = r[0];
  for (int i = 0; i < n; i++) {
    if (((uint32_t)f[i].leaf & 0xffff) > max_leaf) return ATTN_ISA_CPU_LACKS;
    attn_cpuid_(f[i].leaf & 0xffff, r); /* the highest subleaf */
    if (f[i].leaf >> 16 && (uint32_t)f[i].leaf >> 16 > r[0]) return ATTN_ISA_CPU_LACKS;
    attn_cpuid_(f[i].leaf, r);
    if (!(r[f[i].reg] >> f[i].bit & 1u)) return ATTN_ISA_CPU_LACKS;
  }
  attn_cpuid_(1, r);
  if (!(r[ATTN_REG_ECX_] >> 27 & 1u)) return ATTN_ISA_OS_LACKS; /* OSXSAVE */
  return (attn_xcr0_() & xcr0) == xcr0 ? ATTN_ISA_OK : ATTN_ISA_OS_LACKS;
}
#endif

ATTN_FUNC_ attn_isa_state attn_probe_(attn_isa isa) {
  switch (isa) {
    case ATTN_ISA_SCALAR: return ATTN_ISA_OK;
#ifdef ATTN_HAS_AVX2_
    case ATTN_ISA_AVX2: {
      static const attn_cpu_bit_ f[] = {ATTN_FEATURES_AVX2_(ATTN_CPU_BIT_, ATTN_CPU_BIT_)};
      return attn_probe_x86_(f, (int)(sizeof f / sizeof *f), ATTN_XCR0_AVX2_);
    }
#endif
#ifdef ATTN_HAS_AVX512_
    case ATTN_ISA_AVX512: {
      static const attn_cpu_bit_ f[] = {ATTN_FEATURES_AVX512_(ATTN_CPU_BIT_, ATTN_CPU_BIT_)};
      return attn_probe_x86_(f, (int)(sizeof f / sizeof *f), ATTN_XCR0_AVX512_);
    }
#endif
#ifdef ATTN_HAS_NEON_
    case ATTN_ISA_NEON: return ATTN_ISA_OK; /* part of what this was compiled for */
#endif
    default: return ATTN_ISA_NOT_COMPILED;
  }
}

#if defined(ATTN_HAS_NEONBF16_) || defined(ATTN_HAS_NEONDOTPROD_) || defined(ATTN_HAS_NEONFP16FML_)
#define ATTN_ARM_BIT_(name, word, bit, apple, windows) \
  attn_probe_arm_(word, bit, "hw.optional.arm.FEAT_" apple, windows)

ATTN_FUNC_ attn_isa_state attn_probe_arm_(unsigned long word, int bit, const char *apple,
                                          unsigned long windows) {
  int has = 0;
#if defined(__linux__)
  has = (int)(getauxval(word) >> bit & 1);
#elif defined(__APPLE__)
  size_t size = sizeof has;
  if (sysctlbyname(apple, &has, &size, NULL, 0) != 0) has = 0;
#else
  has = IsProcessorFeaturePresent(windows);
#endif
  (void)word, (void)bit, (void)apple, (void)windows;
  return has ? ATTN_ISA_OK : ATTN_ISA_CPU_LACKS;
}
#endif

/* The features beside tiers: a name, the word that switches it off in ATTN_ISA, and its tier. */
typedef struct attn_feature_row_ {
  const char *name, *word;
  attn_isa isa;
} attn_feature_row_;
static const attn_feature_row_ attn_feature_rows_[ATTN_FEATURE_COUNT] = {
    {"none", "", ATTN_ISA_AUTO},
    {"avx512bf16", "bf16", ATTN_ISA_AVX512},
    {"avx512vnni", "vnni", ATTN_ISA_AVX512},
    {"neonbf16", "bf16", ATTN_ISA_NEON},
    {"neondotprod", "dotprod", ATTN_ISA_NEON},
    {"avxvnni", "vnni", ATTN_ISA_AVX2},
    {"neonfp16fml", "fp16fml", ATTN_ISA_NEON}};

ATTN_FUNC_ attn_isa_state attn_probe_feature_(attn_feature feature) {
#ifdef ATTN_HAS_AVX512BF16_
  static const attn_cpu_bit_ f[] = {ATTN_FEATURES_AVX512BF16_(ATTN_CPU_BIT_, ATTN_CPU_BIT_)};
  if (feature == ATTN_FEATURE_AVX512_BF16)
    return attn_probe_x86_(f, (int)(sizeof f / sizeof *f), ATTN_XCR0_AVX512_);
#endif
#ifdef ATTN_HAS_AVX512VNNI_
  static const attn_cpu_bit_ g[] = {ATTN_FEATURES_AVX512VNNI_(ATTN_CPU_BIT_, ATTN_CPU_BIT_)};
  if (feature == ATTN_FEATURE_AVX512_VNNI)
    return attn_probe_x86_(g, (int)(sizeof g / sizeof *g), ATTN_XCR0_AVX512_);
#endif
#ifdef ATTN_HAS_AVXVNNI_
  static const attn_cpu_bit_ h[] = {ATTN_FEATURES_AVXVNNI_(ATTN_CPU_BIT_, ATTN_CPU_BIT_)};
  if (feature == ATTN_FEATURE_AVX_VNNI)
    return attn_probe_x86_(h, (int)(sizeof h / sizeof *h), ATTN_XCR0_AVX2_);
#endif
#ifdef ATTN_HAS_NEONBF16_
  if (feature == ATTN_FEATURE_NEON_BF16)
    return ATTN_FEATURES_NEONBF16_(ATTN_ARM_BIT_, ATTN_ARM_BIT_);
#endif
#ifdef ATTN_HAS_NEONDOTPROD_
  if (feature == ATTN_FEATURE_NEON_DOTPROD)
    return ATTN_FEATURES_NEONDOTPROD_(ATTN_ARM_BIT_, ATTN_ARM_BIT_);
#endif
#ifdef ATTN_HAS_NEONFP16FML_
  if (feature == ATTN_FEATURE_NEON_FP16FML)
    return ATTN_FEATURES_NEONFP16FML_(ATTN_ARM_BIT_, ATTN_ARM_BIT_);
#endif
  (void)feature;
  return ATTN_ISA_NOT_COMPILED;
}

/* 1 for a tier of this processor family, whether or not it is compiled */
ATTN_FUNC_ int attn_isa_native_(attn_isa isa) {
#if defined(ATTN_X86_)
  return isa == ATTN_ISA_SCALAR || isa == ATTN_ISA_AVX2 || isa == ATTN_ISA_AVX512;
#elif defined(ATTN_ARM64_) || defined(ATTN_ARM32_)
  return isa == ATTN_ISA_SCALAR || isa == ATTN_ISA_NEON;
#else
  return isa == ATTN_ISA_SCALAR;
#endif
}

/* The cached machine word: bits 0-15 two bits of state per tier, bits 16-23 the cap of ATTN_ISA,
 * bit 24 an ATTN_ISA that names no tier, bit 25 "filled". */
static int attn_machine_word_;
static int attn_limit_word_; /* attn_isa_limit's tier, 0 = none */

#ifndef ATTN_NO_GETENV
/* The characters of s before a '-', a '+' or the end. */
ATTN_FUNC_ size_t attn_env_word_(const char *s) {
  size_t n = 0;
  while (s[n] && s[n] != '-' && s[n] != '+') n++;
  return n;
}

/* The features that "-word+word.." switches off, a bit each; -1 when a word names none, or one behind a '+' is
 * nowhere on the tiers up to cap (0: on any). */
ATTN_FUNC_ int attn_env_off_(const char *s, int cap) {
  int off = 0;
  while (*s) {
    const int wanted = *s == '+';
    const size_t n = attn_env_word_(++s);
    int known = 0, there = 0;
    for (int i = 1; i < ATTN_FEATURE_COUNT; i++) {
      const char *word = attn_feature_rows_[i].word;
      const attn_isa isa = attn_feature_rows_[i].isa;
      if (strlen(word) != n || memcmp(s, word, n) != 0) continue;
      known |= 1 << i;
      there |= !(off >> i & 1) && (!cap || (int)isa <= cap) && attn_probe_(isa) == ATTN_ISA_OK &&
               attn_probe_feature_((attn_feature)i) == ATTN_ISA_OK;
    }
    if (!known || (wanted && !there)) return -1;
    if (!wanted) off |= known;
    s += n;
  }
  return off;
}
#endif

ATTN_FUNC_ int attn_machine_(void) {
  int w = ATTN_ATOMIC_LOAD_(&attn_machine_word_);
  if (w) return w;
  for (int i = 1; i < ATTN_ISA_COUNT; i++) w |= (int)attn_probe_((attn_isa)i) << (2 * i);
#ifndef ATTN_NO_GETENV
  const char *env = getenv("ATTN_ISA");
  const size_t n = env ? attn_env_word_(env) : 0;
  int cap = 0;
  if (n && !(n == 4 && memcmp(env, "auto", n) == 0)) {
    for (int i = 1; i < ATTN_ISA_COUNT; i++) {
      const char *name = attn_isa_name((attn_isa)i);
      if (strlen(name) == n && memcmp(env, name, n) == 0 && attn_isa_native_((attn_isa)i)) cap = i;
    }
    w |= cap ? cap << 16 : 1 << 24;
  }
  if (env && attn_env_off_(env + n, cap) < 0) w |= 1 << 24;
#endif
  w |= 1 << 25;
  ATTN_ATOMIC_STORE_(&attn_machine_word_, w);
  return w;
}

ATTN_FUNC_ int attn_env_bad_(void) { return attn_machine_() >> 24 & 1; }

ATTN_PUB_ const char *attn_isa_name(attn_isa isa) {
  static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
  return (int)isa >= 0 && isa < ATTN_ISA_COUNT ? names[isa] : "unknown";
}

ATTN_PUB_ attn_isa_state attn_isa_status(attn_isa isa) {
  if ((int)isa <= 0 || isa >= ATTN_ISA_COUNT) return ATTN_ISA_NOT_COMPILED;
  int w = attn_machine_();
  attn_isa_state state = (attn_isa_state)(w >> (2 * (int)isa) & 3);
  if (state != ATTN_ISA_OK) return state;
  int cap = w >> 24 & 1 ? (int)ATTN_ISA_SCALAR : w >> 16 & 0xff;
  int limit = ATTN_ATOMIC_LOAD_(&attn_limit_word_);
  if ((cap && (int)isa > cap) || (limit && (int)isa > limit)) return ATTN_ISA_CAPPED;
  return ATTN_ISA_OK;
}

ATTN_PUB_ const char *attn_isa_why(attn_isa isa) {
  switch (attn_isa_status(isa)) {
    case ATTN_ISA_OK: return "runs";
    case ATTN_ISA_CAPPED:
      return attn_env_bad_() ? "the environment variable ATTN_ISA names no tier of this machine"
                             : "capped by ATTN_ISA or attn_isa_limit()";
    case ATTN_ISA_OS_LACKS: return "the operating system does not save the registers it needs";
    case ATTN_ISA_CPU_LACKS:
      return isa == ATTN_ISA_AVX512 ? "the processor lacks AVX-512 F, BW, DQ, VL or CD"
                                    : "the processor lacks AVX2, FMA or F16C";
    default: break;
  }
  if ((int)isa <= 0 || isa >= ATTN_ISA_COUNT) return "no such tier";
  return attn_isa_native_(isa) ? "left out when this was compiled"
                               : "a tier of another processor family";
}

ATTN_PUB_ attn_isa attn_isa_best(void) {
  for (int i = ATTN_ISA_COUNT - 1; i > 0; i--)
    if (attn_isa_status((attn_isa)i) == ATTN_ISA_OK) return (attn_isa)i;
  return ATTN_ISA_SCALAR;
}

ATTN_PUB_ attn_status attn_isa_limit(attn_isa isa) {
  if (isa != ATTN_ISA_AUTO && ((int)isa < 0 || isa >= ATTN_ISA_COUNT || !attn_isa_native_(isa)))
    return ATTN_E_ISA;
  if (attn_env_bad_()) return ATTN_E_ENV;
  ATTN_ATOMIC_STORE_(&attn_limit_word_, (int)isa);
  return ATTN_OK;
}
