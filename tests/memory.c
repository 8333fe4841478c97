/* tests/memory.c owns the memory of the tests: blocks that live until the test ends, blocks
 * against unreadable pages, and the allocator given to attn.h. */

#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

test_place test_where = TEST_HEAP;
int64_t test_malloc_calls = 0;
int test_malloc_fails = 0;
size_t test_malloc_most = 0;

typedef struct block {
  struct block *next;
  void *data;
  size_t mapped; /* bytes of the mapping, 0 for the heap */
} block;

static block *blocks;

static void *keep(void *data, size_t mapped) {
  block *b = malloc(sizeof *b);
  assert_non_null(data);
  assert_non_null(b);
  b->data = data;
  b->mapped = mapped;
  b->next = blocks;
  blocks = b;
  return data;
}

/* [unreadable][pages][unreadable], the block at either end of the pages. Sixteen pages on either
 * side, so that a view which claims more than it has claims none of another block. */
static void *guarded(size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), middle = (size + page - 1) / page * page;
  size_t wall = 16 * page, mapped = middle + 2 * wall;
  char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(base != MAP_FAILED);
  keep(base, mapped);
  assert_int_equal(mprotect(base, wall, PROT_NONE), 0);
  assert_int_equal(mprotect(base + wall + middle, wall, PROT_NONE), 0);
  return test_where == TEST_AFTER_GUARD ? base + wall : base + wall + middle - size;
}

void *test_mem(size_t size) {
  void *data = test_where == TEST_HEAP ? keep(malloc(size ? size : 1), 0) : guarded(size);
  memset(data, 0xA5, size);
  return data;
}

void test_mem_release(void) {
  while (blocks) {
    block *b = blocks;
    blocks = b->next;
    if (b->mapped) {
      munmap(b->data, b->mapped);
    } else {
      free(b->data);
    }
    free(b);
  }
  test_where = TEST_HEAP;
  test_malloc_fails = 0;
}

void *hook_malloc(size_t size);
void hook_free(void *ptr);

void *hook_malloc(size_t size) {
  test_malloc_calls++;
  if (size > test_malloc_most) test_malloc_most = size;
  return test_malloc_fails ? NULL : malloc(size);
}

void hook_free(void *ptr) { free(ptr); }
