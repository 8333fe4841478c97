/* implementation.c owns the one file that is compiled again and again: attn.h and nothing else. */

#define ATTN_IMPLEMENTATION
#include "attn.h"
