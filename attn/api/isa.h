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
 * first use, caps as well; the lower cap holds. Safe to call from any thread; calls that run
 * already keep their tier. ATTN_E_ISA for a tier of another family, ATTN_E_ENV if ATTN_ISA
 * holds an unknown word. */
ATTN_DEF attn_status attn_isa_limit(attn_isa isa);
