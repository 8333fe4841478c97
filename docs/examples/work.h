/* work.h owns what the parts of a model share while they work: memory that is released at once, the context of
 * calls with its workspace, and the sentence that says what went wrong. Functions return 1, or 0 after leaving
 * that sentence. */
#ifndef EXAMPLES_WORK_H
#define EXAMPLES_WORK_H

#include "attn.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
  attn_ctx ctx; /* may be set between calls, but for the workspace */
  void *blocks;
  int64_t bytes; /* of all blocks */
  int bf16;      /* 1: products of many rows are of bf16 where the processor has such */
  char error[512];
} work;

static int work_fail(work *w, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(w->error, sizeof w->error, format, arguments);
  va_end(arguments);
  return 0;
}

/* Zeroed memory at a multiple of 64 bytes, released with the rest. */
static void *work_take(work *w, int64_t count, int64_t each) {
  if (count >= 0 && count <= (PTRDIFF_MAX - 128) / each) {
    char *block = calloc(1, (size_t)(count * each) + sizeof(void *) + 64);
    if (block) {
      memcpy(block, &w->blocks, sizeof(void *));
      w->blocks = block;
      w->bytes += count * each;
      block += sizeof(void *);
      return block + (64 - (uintptr_t)block % 64) % 64;
    }
  }
  work_fail(w, "out of memory");
  return NULL;
}

static float *work_floats(work *w, int64_t rows, int64_t columns) {
  if (columns && rows <= INT64_MAX / columns) return work_take(w, rows * columns, sizeof(float));
  work_fail(w, "out of memory");
  return NULL;
}

static void work_free(work *w) {
  while (w->blocks) {
    void *block = w->blocks;
    memcpy(&w->blocks, block, sizeof(void *));
    free(block);
  }
  free(w->ctx.workspace);
  w->ctx.workspace = NULL;
  w->ctx.workspace_size = 0;
  w->bytes = 0;
}

/* The workspace holds so many bytes; it grows in the first calls. */
static int work_room(work *w, size_t bytes) {
  if (bytes <= w->ctx.workspace_size || bytes == ATTN_WORKSPACE_REJECTED)
    return 1; /* of what is rejected the call says why */
  free(w->ctx.workspace);
  w->ctx.workspace = malloc(bytes);
  w->ctx.workspace_size = w->ctx.workspace ? bytes : 0;
  return w->ctx.workspace || work_fail(w, "out of memory");
}

static int work_done(work *w, attn_status status) {
  if (status == ATTN_OK) return 1;
  return work_fail(w, "%s: %s", attn_status_string(status),
                   w->ctx.reason ? w->ctx.reason : "no reason given");
}

/* WORK_CALL(w, attn_gemm, (y, x, b, &params, &w->ctx)): a call with room for it. */
#define WORK_CALL(w, name, arguments) \
  (work_room(w, name##_workspace arguments) && work_done(w, name arguments))

/* Rows of so many numbers, `stride` apart. */
static attn_tensor work_rows(const float *data, int64_t rows, int64_t columns, int64_t stride) {
  attn_tensor t = attn_bhtd(data, ATTN_F32, 1, 1, rows, columns);
  t.stride_len = stride;
  return t;
}

#endif
