/* attn.c owns the implementation whose avx512 tier runs on any processor with AVX2. */
#include "avx512.h"

#define ATTN_IMPLEMENTATION
#include "attn.h"
