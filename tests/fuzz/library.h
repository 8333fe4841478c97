/* library.h owns the library under test: attn.h, linked (Makefile) to an allocator that can be told to
 * fail and that knows how many blocks are in use. */

#ifndef FUZZ_LIBRARY_H
#define FUZZ_LIBRARY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Larger blocks are refused, so that huge but legal extents end in ATTN_E_MEMORY. */
#define MALLOC_MAX ((size_t)1 << 24)

static int fuzz_malloc_left = -1; /* allocations that will succeed; -1 = any number */
static int fuzz_malloc_refused;   /* whether one has failed since this was set to 0 */
static int fuzz_malloc_blocks;    /* in use */

void *fuzz_malloc(size_t size);
void fuzz_free(void *block);

void *fuzz_malloc(size_t size) {
  void *block = size <= MALLOC_MAX && fuzz_malloc_left ? malloc(size) : NULL;
  if (fuzz_malloc_left > 0) fuzz_malloc_left--;
  if (block)
    fuzz_malloc_blocks++;
  else
    fuzz_malloc_refused = 1;
  return block;
}

void fuzz_free(void *block) {
  if (!block) abort();
  fuzz_malloc_blocks--;
  free(block);
}

#include "attn.h"
#include "mend.h"

#endif
