/* intrin.h owns what attn.h asks of the processor through MSVC. */

#pragma once
#ifdef __cplusplus
extern "C" {
#endif
void __cpuidex(int[4], int, int);
unsigned __int64 _xgetbv(unsigned);
#ifdef __cplusplus
}
#endif
