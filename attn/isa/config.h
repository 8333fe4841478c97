/* isa/config.h owns what the compiler and the target are: processor family, inlining, target
 * regions, the hooks a user may override. Nothing here looks at the running machine. */

#include <float.h>
#include <math.h>
#include <string.h>

/* The name by which this file includes itself, once per tier. Define it when you rename attn.h. */
#ifndef ATTN_SELF
#define ATTN_SELF "../all.h"
#endif
#ifdef __has_include
#if !__has_include(ATTN_SELF)
#error "attn.h was renamed or is not on the include path: define ATTN_SELF as its name"
#endif
#endif

/* Memory for calls without a workspace. Define both or neither. */
#if defined(ATTN_MALLOC) != defined(ATTN_FREE)
#error "define ATTN_MALLOC and ATTN_FREE together"
#endif
#ifndef ATTN_MALLOC
#include <stdlib.h>
#define ATTN_MALLOC(size) malloc(size)
#define ATTN_FREE(ptr) free(ptr)
#endif
#ifndef ATTN_NO_GETENV
#include <stdlib.h>
#endif

#if defined(__clang__)
#define ATTN_CLANG_ 1
#elif defined(__GNUC__)
#define ATTN_GCC_ 1
#elif defined(_MSC_VER)
#define ATTN_MSVC_ 1
#endif

/* gcc takes the flag back for our functions; clang cannot, and folds the rounding and the tests for
 * NaN and -inf away. */
#if defined(ATTN_CLANG_) && (defined(__FAST_MATH__) || __FINITE_MATH_ONLY__)
#error "compile the file that defines ATTN_IMPLEMENTATION without -ffast-math and -Ofast"
#endif

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
#define ATTN_X86_ 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define ATTN_ARM64_ 1
#elif defined(__arm__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
#define ATTN_ARM32_ 1
#endif
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define ATTN_BIG_ENDIAN_ 1
#endif
#endif

/* Which tiers are compiled: of compilers that are known to have the intrinsics. gcc for Windows misaligns the stack
 * for wide vectors (gcc bug 54412); define ATTN_FORCE_X86 if your compiler has that mended. */
#if defined(ATTN_X86_) && (defined(ATTN_CLANG_) || defined(ATTN_GCC_) || defined(ATTN_MSVC_)) && \
    !(defined(__MINGW32__) && defined(ATTN_GCC_) && !defined(ATTN_FORCE_X86))
#ifndef ATTN_NO_AVX2
#define ATTN_HAS_AVX2_ 1
#endif
#ifndef ATTN_NO_AVX512
#define ATTN_HAS_AVX512_ 1
#endif
#endif
/* and which features beside them: intrinsics that came later */
#if defined(ATTN_HAS_AVX512_) && !defined(_MSC_VER) && !defined(ATTN_NO_AVX512BF16)
#if (defined(ATTN_CLANG_) && __clang_major__ >= 9) || (defined(ATTN_GCC_) && __GNUC__ >= 10)
#define ATTN_HAS_AVX512BF16_ 1
#endif
#endif
#if defined(ATTN_HAS_AVX512_) && !defined(_MSC_VER) && !defined(ATTN_NO_AVX512VNNI)
#if (defined(ATTN_CLANG_) && __clang_major__ >= 7) || (defined(ATTN_GCC_) && __GNUC__ >= 8)
#define ATTN_HAS_AVX512VNNI_ 1
#endif
#endif
#if (defined(ATTN_ARM64_) || defined(ATTN_ARM32_)) && !defined(ATTN_BIG_ENDIAN_) && \
    !defined(ATTN_NO_NEON)
#define ATTN_HAS_NEON_ 1
#endif
#if defined(ATTN_HAS_AVX2_) && !defined(_MSC_VER) && !defined(ATTN_NO_AVXVNNI)
#if (defined(ATTN_CLANG_) && __clang_major__ >= 12) || (defined(ATTN_GCC_) && __GNUC__ >= 11)
#define ATTN_HAS_AVXVNNI_ 1
#endif
#endif
/* of ARM where the system says what the processor has */
#if defined(ATTN_HAS_NEON_) && defined(ATTN_ARM64_) && defined(__GNUC__) && \
    (defined(__linux__) || defined(__APPLE__) || defined(_WIN32))
#if !defined(ATTN_NO_NEONBF16) && \
    (__GNUC__ >= 10 || (defined(ATTN_CLANG_) && __clang_major__ >= 11))
#define ATTN_HAS_NEONBF16_ 1
#endif
#if !defined(ATTN_NO_NEONDOTPROD) && \
    (__GNUC__ >= 8 || (defined(ATTN_CLANG_) && __clang_major__ >= 7))
#define ATTN_HAS_NEONDOTPROD_ 1
#endif
#ifndef ATTN_NO_NEONFP16FML
#define ATTN_HAS_NEONFP16FML_ 1
#endif
#endif

#if defined(ATTN_HAS_AVX2_) && defined(ATTN_HAS_AVX512_)
#define ATTN_EMULATED_BY_AVX2_ 1 /* features of avx512: isa/tables.h */
#endif

/* Intrinsics headers come before any region: gcc ties their functions to the region they are
 * first seen in. */
#if defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)
#include <immintrin.h>
#endif
#if (defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)) && defined(ATTN_CLANG_) && \
    defined(_MSC_VER)
/* what clang-cl leaves out of immintrin.h unless a flag asks for it */
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <f16cintrin.h>
#include <fmaintrin.h>
#include <avx512fintrin.h>
#include <avx512bwintrin.h>
#include <avx512vlintrin.h>
#include <avx512vlbwintrin.h>
#endif
/* beside cpuid.h, whose macros take the names of its functions, <windows.h> would not compile */
#if (defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)) && defined(_MSC_VER)
#include <intrin.h>
#elif defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)
#include <cpuid.h>
#endif
#ifdef ATTN_HAS_NEON_
#include <arm_neon.h>
#endif
#if defined(ATTN_ARM64_) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(ATTN_ARM64_) && defined(__APPLE__) /* <sys/sysctl.h> does not compile as strict C */
#ifdef __cplusplus
extern "C"
#endif
    int
    sysctlbyname(const char *, void *, size_t *, void *, size_t);
#elif defined(ATTN_ARM64_) && defined(_WIN32) && defined(__GNUC__) /* <windows.h> is megabytes */
#ifdef __cplusplus
extern "C"
#endif
    __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long);
#endif

#if defined(ATTN_MSVC_)
#define ATTN_INLINE_ static __forceinline
#elif defined(__GNUC__)
#define ATTN_INLINE_ static inline __attribute__((always_inline, unused))
#else
#define ATTN_INLINE_ static inline
#endif

/* Vectors of the compiler's own, with operators: a fraction of what structs and intrinsics cost to
 * compile. They may alias their elements. Where floats are computed as doubles they do not mix with
 * numbers. */
#if (defined(__GNUC__) || defined(__clang__)) && defined(__FLT_EVAL_METHOD__)
#if __FLT_EVAL_METHOD__ == 0
#define ATTN_VECTORS_ 1
#ifdef __cplusplus
#define ATTN_VECTOR_ZERO_(type) type()
#else
#define ATTN_VECTOR_ZERO_(type) ((type){0})
#endif
#endif
#endif
/* Before an intrinsic, whose vectors are of other types than those. MSVC's are unions, which C does
 * not cast, not even to what they are. */
#ifdef ATTN_VECTORS_
#define ATTN_VECTOR_(type) (type)
#else
#define ATTN_VECTOR_(type)
#endif

/* Whether vector tiers have a copy of a loop for each storage type and set of modifiers. Without
 * optimisation that is time for nothing. */
#if defined(ATTN_SMALL) || (defined(__GNUC__) && !defined(__OPTIMIZE__))
#define ATTN_COPIES_ 0
#else
#define ATTN_COPIES_ 1
#endif

/* What is rare stays out of line: many copies of it cost more than the call. */
#if defined(ATTN_MSVC_)
#define ATTN_OUTLINE_ static __declspec(noinline)
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define ATTN_OUTLINE_ static __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define ATTN_OUTLINE_ ATTN_FUNC_
#else
#define ATTN_OUTLINE_ static
#endif

/* Before a short loop over vectors: unrolled whole, its array becomes registers. */
#if defined(ATTN_SMALL)
#define ATTN_UNROLL_
#elif defined(ATTN_CLANG_)
#define ATTN_UNROLL_ _Pragma("clang loop unroll(full)")
#elif defined(ATTN_GCC_)
#define ATTN_UNROLL_ _Pragma("GCC unroll 16")
#else
#define ATTN_UNROLL_
#endif

/* Rows picked by index come from anywhere: asked for some rows ahead, they are there in time. FAR: into the
 * second cache. The first can wait for few lines at once (Zen 4: 24), which is half of what memory gives. */
#if defined(__GNUC__)
#define ATTN_PREFETCH_(p) __builtin_prefetch(p)
#define ATTN_PREFETCH_FAR_(p) __builtin_prefetch(p, 0, 2)
#define ATTN_RARE_(x) __builtin_expect(!!(x), 0)
#else
#define ATTN_PREFETCH_(p) ((void)(p))
#define ATTN_PREFETCH_FAR_(p) ((void)(p))
#define ATTN_RARE_(x) (x)
#endif

/* A static function that a build may leave unused. Without optimisation gcc compiles even those, unless
 * they are inline. */
#if defined(__GNUC__)
#define ATTN_UNUSED_ __attribute__((unused))
#else
#define ATTN_UNUSED_
#endif
#if defined(__GNUC__) && !defined(__OPTIMIZE__)
#define ATTN_FUNC_ ATTN_UNUSED_ static inline
#else
#define ATTN_FUNC_ ATTN_UNUSED_ static
#endif
/* A public function. Unused ones must not warn when the implementation is private to a file. */
#ifdef ATTN_STATIC
#define ATTN_PUB_ ATTN_FUNC_
#else
#define ATTN_PUB_
#endif

/* What runs once a call: checks, plans, the naming of steps. As small as can be, and soon compiled. */
#if defined(ATTN_GCC_) && defined(__OPTIMIZE__)
#define ATTN_ONCE_ __attribute__((cold, optimize("O1")))
#elif defined(__GNUC__)
#define ATTN_ONCE_ __attribute__((cold))
#else
#define ATTN_ONCE_
#endif
#define ATTN_COLD_ ATTN_ONCE_ ATTN_FUNC_
#define ATTN_PUB_COLD_ ATTN_ONCE_ ATTN_PUB_

/* Atomics: relaxed is enough, since what they guard is idempotent. Compilers without them get
 * plain volatile accesses, which are atomic for aligned ints on everything they target. */
#if defined(__GNUC__)
#define ATTN_ATOMIC_LOAD_(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define ATTN_ATOMIC_STORE_(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#else
#define ATTN_ATOMIC_LOAD_(p) (*(p))
#define ATTN_ATOMIC_STORE_(p, v) ((void)(*(p) = (v)))
#endif

/* Which of SLEEF's functions a sleef.h included earlier has declared: it looks at the compiler's
 * flags, and its prototypes cannot be repeated in C++. Asked here, before any region. */
#if defined(ATTN_USE_SLEEF) && defined(__SLEEF_H__)
#define ATTN_SLEEF_HAS_SCALAR_ 1
#ifdef __AVX__
#define ATTN_SLEEF_HAS_AVX2_ 1
#endif
#ifdef __AVX512F__
#define ATTN_SLEEF_HAS_AVX512_ 1
#endif
#ifdef __ARM_NEON
#define ATTN_SLEEF_HAS_NEON_ 1
#endif
#endif

/* A region compiles the functions inside it for more than the baseline, and never lets the
 * compiler fuse a*b+c by itself: where bits must agree between tiers the code says FMA. */
#define ATTN_PRAGMA_(...) _Pragma(#__VA_ARGS__)
#define ATTN_PRAGMA_EXPAND_(...) ATTN_PRAGMA_(__VA_ARGS__)

/* What each tier needs of the processor: F(name, CPUID leaf, register, bit) then R(...) for the rest. The
 * region's target list and the run-time test are both made from this row. A leaf is that number plus
 * 65536 times its subleaf. A feature beside a tier has a row of its own, with the tier's in it. */
#define ATTN_FEATURES_AVX2_(F, R) \
  F("avx2", 7, EBX, 5) R("fma", 1, ECX, 12) R("f16c", 1, ECX, 29) R("avx", 1, ECX, 28)
#ifndef ATTN_FEATURES_AVXVNNI_ /* tests/emulated runs it without the instruction */
#define ATTN_FEATURES_AVXVNNI_(F, R) ATTN_FEATURES_AVX2_(F, R) R("avxvnni", 0x10007, EAX, 4)
#endif
#ifndef ATTN_FEATURES_AVX512_ /* tests/emulated runs this tier on AVX2 */
/* clang-format off */
#define ATTN_FEATURES_AVX512_(F, R)                                              \
  ATTN_FEATURES_AVX2_(F, R) R("avx512f", 7, EBX, 16) R("avx512bw", 7, EBX, 30)  \
  R("avx512dq", 7, EBX, 17) R("avx512vl", 7, EBX, 31) R("avx512cd", 7, EBX, 28)
#define ATTN_FEATURES_AVX512BF16_(F, R) \
  ATTN_FEATURES_AVX512_(F, R) R("avx512bf16", 0x10007, EAX, 5)
#define ATTN_FEATURES_AVX512VNNI_(F, R) ATTN_FEATURES_AVX512_(F, R) R("avx512vnni", 7, ECX, 11)
/* clang-format on */
/* The register state the system must save: SSE+AVX, then AVX-512's masks and upper halves. */
#define ATTN_XCR0_AVX512_ 0xE6u
#endif
#define ATTN_XCR0_AVX2_ 0x06u
/* Features of ARM: F(target, word and bit of Linux' hardware capabilities, name in macOS, number in Windows). A
 * target comes to what -march says: to name a version of the architecture may take away from it, and then
 * nothing of the tier can be inlined. But gas knows dotprod from 8.2 on alone. */
#if defined(ATTN_CLANG_)
#define ATTN_ARM_BF16_ "bf16"
#define ATTN_ARM_DOTPROD_ "dotprod"
#else
#define ATTN_ARM_BF16_ "+bf16"
#if defined(__ARM_FEATURE_DOTPROD) || defined(__ARM_FEATURE_SVE) ||  \
    defined(__ARM_FEATURE_COMPLEX) || defined(__ARM_FEATURE_SHA3) || \
    defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(__ARM_FEATURE_MATMUL_INT8)
#define ATTN_ARM_DOTPROD_ "+dotprod"
#elif defined(__ARM_FEATURE_CRYPTO) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define ATTN_ARM_DOTPROD_ "arch=armv8.2-a+dotprod+crypto+fp16"
#elif defined(__ARM_FEATURE_CRYPTO)
#define ATTN_ARM_DOTPROD_ "arch=armv8.2-a+dotprod+crypto"
#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define ATTN_ARM_DOTPROD_ "arch=armv8.2-a+dotprod+fp16"
#else
#define ATTN_ARM_DOTPROD_ "arch=armv8.2-a+dotprod"
#endif
#endif
#define ATTN_FEATURES_NEONBF16_(F, R) F(ATTN_ARM_BF16_, 26, 14, "BF16", 68)
#define ATTN_FEATURES_NEONDOTPROD_(F, R) F(ATTN_ARM_DOTPROD_, 16, 20, "DotProd", 43)
/* Windows has no number for products of f16. */
#define ATTN_FEATURES_NEONFP16FML_(F, R) F("fp16fml", 16, 23, "FHM", 0xffff)

#define ATTN_NAME_FIRST_(name, ...) name
#if defined(ATTN_CLANG_)
#define ATTN_NAME_REST_(name, leaf, reg, bit) "," name
#define ATTN_BEGIN_REGION_(row)             \
  ATTN_PRAGMA_EXPAND_(clang attribute push( \
      __attribute__((target(row(ATTN_NAME_FIRST_, ATTN_NAME_REST_)))), apply_to = function))
#define ATTN_END_REGION_ ATTN_PRAGMA_(clang attribute pop)
#define ATTN_BEGIN_STRICT_ ATTN_PRAGMA_(STDC FP_CONTRACT OFF)
#define ATTN_END_STRICT_ ATTN_PRAGMA_(STDC FP_CONTRACT DEFAULT)
#elif defined(ATTN_GCC_)
#define ATTN_NAME_REST_(name, leaf, reg, bit) , name
#define ATTN_BEGIN_REGION_(row)  \
  ATTN_PRAGMA_(GCC push_options) \
  ATTN_PRAGMA_EXPAND_(GCC target(row(ATTN_NAME_FIRST_, ATTN_NAME_REST_)))
#define ATTN_END_REGION_ ATTN_PRAGMA_(GCC pop_options)
/* gcc says in a note of -Wall that it judges no indentation in sources of this size. */
#define ATTN_BEGIN_STRICT_                                        \
  ATTN_PRAGMA_(GCC diagnostic push)                               \
  ATTN_PRAGMA_(GCC diagnostic ignored "-Wmisleading-indentation") \
  ATTN_PRAGMA_(GCC push_options) ATTN_PRAGMA_(GCC optimize("fp-contract=off", "no-fast-math"))
#define ATTN_END_STRICT_ ATTN_PRAGMA_(GCC pop_options) ATTN_PRAGMA_(GCC diagnostic pop)
#else
#define ATTN_BEGIN_REGION_(row)
#define ATTN_END_REGION_
#define ATTN_BEGIN_STRICT_
#define ATTN_END_STRICT_
#endif

#define ATTN_CAT2_(a, b) a##b
#define ATTN_CAT_(a, b) ATTN_CAT2_(a, b)
