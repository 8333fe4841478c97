/* attn.c owns the implementation whose avx512 tier runs on any processor with AVX2. */
#include "avx512.h"
#include "avxvnni.h"

#define ATTN_NO_AVX512VNNI
#define ATTN_NO_AVX512BF16 /* its products have no emulated words: the scalar ones stand in */
#define ATTN_IMPLEMENTATION
#include "attn.h"
