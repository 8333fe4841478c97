/* api/isa.h owns the public questions about tiers: which exist, which run, and why not. */

/* Why a tier runs or does not. */
typedef enum attn_isa_state {
  ATTN_ISA_OK = 0,       /* runs */
  ATTN_ISA_NOT_COMPILED, /* another processor family, an ATTN_NO_<TIER> switch, or the compiler */
  ATTN_ISA_CPU_LACKS,    /* the processor has not all of its instructions */
  ATTN_ISA_OS_LACKS,     /* the operating system does not save its registers */
  ATTN_ISA_CAPPED        /* ATTN_ISA or attn_isa_limit() rules it out */
} attn_isa_state;

/* "auto", "scalar", "avx2", "avx512", "neon"; "unknown" for any other value. */
ATTN_DEF const char *attn_isa_name(attn_isa isa);

/* The state of a tier here and now. ATTN_ISA_AUTO and unknown values are NOT_COMPILED.
 * List the tiers with: for (int i = 1; i < ATTN_ISA_COUNT; i++) attn_isa_status((attn_isa)i). */
ATTN_DEF attn_isa_state attn_isa_status(attn_isa isa);

/* The same as a static English sentence, e.g. "the processor lacks AVX-512 F, BW, DQ, VL or CD". */
ATTN_DEF const char *attn_isa_why(attn_isa isa);

/* The tier that ATTN_ISA_AUTO stands for now. With an ATTN_ISA that names no tier it is
 * ATTN_ISA_SCALAR, and every call returns ATTN_E_ENV. */
ATTN_DEF attn_isa attn_isa_best(void);

/* Caps the tiers of the whole process: those above isa are off (x86: scalar < avx2 < avx512;
 * ARM: scalar < neon). ATTN_ISA_AUTO lifts the cap. The environment variable ATTN_ISA, read at
 * first use, caps as well; the lower cap holds. Words behind it, each after a '-', switch features off:
 * "avx512-bf16", "neon-bf16-dotprod", "auto-bf16" or "-bf16"; behind a '+' they demand one of the tiers that are left,
 * "avx512+bf16" or "+vnni", and every call returns ATTN_E_ENV where none has it. Safe to call from any thread; calls
 * that run already keep their tier. ATTN_E_ISA for a tier of another family, ATTN_E_ENV if ATTN_ISA
 * holds an unknown word. */
ATTN_DEF attn_status attn_isa_limit(attn_isa isa);

/* "none", "avx512bf16", "avx512vnni", "neonbf16", "neondotprod", "avxvnni", "neonfp16fml"; "unknown" for any other
 * value. */
ATTN_DEF const char *attn_feature_name(attn_feature feature);

/* The tier that a feature lies beside: only calls on that tier use it. ATTN_ISA_AUTO for ATTN_FEATURE_NONE
 * and unknown values. */
ATTN_DEF attn_isa attn_feature_isa(attn_feature feature);

/* The state of a feature here and now: CAPPED where its tier is, or where it is switched off.
 * ATTN_FEATURE_NONE and unknown values are NOT_COMPILED; ATTN_NO_AVX512BF16, ATTN_NO_AVX512VNNI, ATTN_NO_AVXVNNI,
 * ATTN_NO_NEONBF16, ATTN_NO_NEONDOTPROD and ATTN_NO_NEONFP16FML leave one out. Those of NEON are known on Linux,
 * macOS and Windows (there not with MSVC). */
ATTN_DEF attn_isa_state attn_feature_status(attn_feature feature);

/* The same as a static English sentence, e.g. "the processor lacks it". */
ATTN_DEF const char *attn_feature_why(attn_feature feature);

/* Switches a feature off for the whole process, or with off = 0 on again, where the processor has it and
 * ATTN_ISA does not switch it off. Calls that need it are then emulated. Not for two threads at once; calls
 * that run already keep what they have. ATTN_E_ISA for a feature of another processor family, ATTN_E_ENV
 * if ATTN_ISA holds an unknown word. */
ATTN_DEF attn_status attn_feature_off(attn_feature feature, int off);
