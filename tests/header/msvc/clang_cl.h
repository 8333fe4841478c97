/* clang_cl.h turns clang, before anything else is read, into clang-cl without Microsoft's headers:
 * those of MinGW-w64 are read while __GNUC__ and __MINGW32__ are defined, as they want it. */

#pragma clang system_header
#define _INC_SETJMP /* whose _setjmp is not Microsoft's, which clang's intrin.h declares */
typedef int jmp_buf[64];
#include <float.h>
#include <malloc.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef __GNUC__
#undef __MINGW32__
#undef __forceinline
#undef signbit /* there a macro that chooses by size, in C++ as a float */
#define signbit(x) __builtin_signbit(x)
#define _MSC_VER 1930
