/* isa/tiers.h owns the stanzas: each compiles the pass for one tier inside its region. A tier is
 * one vocabulary file, one feature row in isa/config.h and one stanza here. */

/* Adding 1.5 * 2^23 + 126 to a small number rounds it to an integer n and leaves n + 126, the
 * exponent field of 2^(n-1), in the low bits. The constant is even, so that ties go to even n as
 * rounding instructions have it; the factor 2 that is missing is in the polynomial, see
 * ATTN_EXP_UNIT_. */
#define ATTN_EXP_BIAS_ 12583038.0f
#define ATTN_EXP_BIAS_BITS_ 0x4B40007E
#define ATTN_EXP_C1_ 6.931472e-01f
#define ATTN_EXP_C2_ 2.4022646e-01f
#define ATTN_EXP_C3_ 5.5503383e-02f
#define ATTN_EXP_C4_ 9.61856e-03f
#define ATTN_EXP_C5_ 1.3397282e-03f
#define ATTN_EXP_C6_ 1.5322551e-04f

ATTN_BEGIN_STRICT_
#include "simd_scalar.h"
#define ATTN_PASS_ ATTN_VERSION
#if ATTN_HAS_LOW
#define ATTN_KEEP_WORDS_ 1 /* later passes go on with them */
#endif
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_
#if ATTN_HAS_LOW
#undef ATTN_TIER_
#define ATTN_TIER_ scalar
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1
#define ATTN_PASS_HALF_ 1 /* pairs of f16 */
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_HALF_
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
#endif

#ifdef ATTN_HAS_NEON_
#include "simd_neon.h"
#define ATTN_PASS_ ATTN_VERSION
#if ATTN_HAS_LOW
#define ATTN_KEEP_WORDS_ 1
#endif
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_
#if ATTN_HAS_LOW && defined(ATTN_HAS_NEONBF16_)
ATTN_BEGIN_REGION_(ATTN_FEATURES_NEONBF16_)
#include "simd_neonbf16.h"
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1 /* products of narrow numbers alone */
#define ATTN_KEEP_WORDS_ 1
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
ATTN_END_REGION_
#endif
#if ATTN_HAS_LOW && defined(ATTN_HAS_NEONDOTPROD_)
ATTN_BEGIN_REGION_(ATTN_FEATURES_NEONDOTPROD_)
#include "simd_neondotprod.h"
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_CODES_ 1 /* products of codes alone */
#define ATTN_KEEP_WORDS_ 1
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_CODES_
#undef ATTN_PASS_
ATTN_END_REGION_
#endif
#if ATTN_HAS_LOW
#undef ATTN_TIER_
#define ATTN_TIER_ neon
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1
#define ATTN_PASS_HALF_ 1 /* pairs of f16 */
#ifdef ATTN_HAS_NEONFP16FML_
#define ATTN_KEEP_WORDS_ 1
#endif
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_HALF_
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
#endif
#if ATTN_HAS_LOW && defined(ATTN_HAS_NEONFP16FML_)
#include "simd_neonfp16fml.h"
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1
#include ATTN_SELF
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
#endif
#endif

#ifdef ATTN_HAS_AVX2_
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX2_)
#include "simd_avx2.h"
#define ATTN_PASS_ ATTN_VERSION
#if ATTN_HAS_LOW
#define ATTN_KEEP_WORDS_ 1
#endif
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_
ATTN_END_REGION_
#if ATTN_HAS_LOW && defined(ATTN_HAS_AVXVNNI_)
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVXVNNI_)
#include "simd_avxvnni.h"
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_CODES_ 1
#define ATTN_KEEP_WORDS_ 1
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_CODES_
#undef ATTN_PASS_
ATTN_END_REGION_
#endif
#if ATTN_HAS_LOW
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX2_)
#undef ATTN_TIER_
#define ATTN_TIER_ avx2
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1
#define ATTN_PASS_HALF_ 1 /* pairs of f16 */
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_HALF_
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
ATTN_END_REGION_
#endif
#endif

#ifdef ATTN_HAS_AVX512_
#if defined(ATTN_GCC_)
/* g++ 12 finds uninitialised variables in its own avx512 headers; at -O0 some of its intrinsics
 * are macros with sign conversions */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX512_)
#include "simd_avx512.h"
#define ATTN_PASS_ ATTN_VERSION
#if ATTN_HAS_LOW
#define ATTN_KEEP_WORDS_ 1
#endif
#ifdef ATTN_EMULATED_BY_AVX2_
#define ATTN_PASS_BARE_ 1 /* nothing that stands in for features */
#endif
#include ATTN_SELF
#undef ATTN_PASS_BARE_
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_
ATTN_END_REGION_
#if ATTN_HAS_LOW && defined(ATTN_HAS_AVX512BF16_)
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX512BF16_)
#include "simd_avx512bf16.h"
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1
#define ATTN_KEEP_WORDS_ 1
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
ATTN_END_REGION_
#endif
#if ATTN_HAS_LOW && defined(ATTN_HAS_AVX512VNNI_)
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX512VNNI_)
#include "simd_avx512vnni.h"
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_CODES_ 1
#define ATTN_KEEP_WORDS_ 1
#include ATTN_SELF
#undef ATTN_KEEP_WORDS_
#undef ATTN_PASS_CODES_
#undef ATTN_PASS_
ATTN_END_REGION_
#endif
#if ATTN_HAS_LOW
#ifdef ATTN_EMULATED_BY_AVX2_
#define ATTN_PASS_BARE_ 1 /* a pass that forgets the words alone */
#else
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX512_)
#endif
#undef ATTN_TIER_
#define ATTN_TIER_ avx512
#define ATTN_PASS_ ATTN_VERSION
#define ATTN_PASS_LOW_ 1
#define ATTN_PASS_HALF_ 1 /* pairs of f16 */
#include ATTN_SELF
#undef ATTN_PASS_HALF_
#undef ATTN_PASS_LOW_
#undef ATTN_PASS_
#ifdef ATTN_EMULATED_BY_AVX2_
#undef ATTN_PASS_BARE_
#else
ATTN_END_REGION_
#endif
#endif
#if defined(ATTN_GCC_)
#pragma GCC diagnostic pop
#endif
#endif
ATTN_END_STRICT_
