/* tests/attn_impl.c owns the one implementation of attn.h in the test program, with memory that
 * the tests can count and forbid. */

#include <stddef.h>

void *hook_malloc(size_t size);
void hook_free(void *ptr);

#define ATTN_MALLOC(size) hook_malloc(size)
#define ATTN_FREE(ptr) hook_free(ptr)
#define ATTN_IMPLEMENTATION
#include "attn.h"
