/* msvc.h takes from clang what MSVC does not define, once the vectors are there: clang's own, or those
 * of opaque/. */

#pragma clang system_header
#include "clang_cl.h"
#ifdef __x86_64__
#include <immintrin.h>
#include <intrin.h>
#else
#include <arm_neon.h>
#endif
#undef __clang__
#undef __x86_64__
#undef __aarch64__
#undef __ARM_NEON
#undef __BYTE_ORDER__
#undef __FLT_EVAL_METHOD__
#undef __OPTIMIZE__
#undef __FAST_MATH__
#undef __FINITE_MATH_ONLY__
