/* impl.c owns the one compilation of the implementation under test, built as users build it. */
#define ATTN_IMPLEMENTATION
#include "header.h"
