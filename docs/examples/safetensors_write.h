/* safetensors_write.h owns writing a .safetensors file (safetensors.h says what is in one). */
#ifndef EXAMPLES_SAFETENSORS_WRITE_H
#define EXAMPLES_SAFETENSORS_WRITE_H

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct safetensors_part {
  char name[96];         /* letters, digits, dots and underscores */
  const char *type;      /* "F32", "F16", "BF16", "I64" */
  int64_t rows, columns; /* rows = 0: a vector of columns numbers */
  const void *data;      /* numbers of that type */
} safetensors_part;

static int64_t safetensors_part_bytes_(const safetensors_part *part) {
  const int64_t numbers = part->rows ? part->rows * part->columns : part->columns;
  return numbers * (!strcmp(part->type, "F32") ? 4 : !strcmp(part->type, "I64") ? 8 : 2);
}

/* The header, to file or, with file null, nowhere; its length. */
static int64_t safetensors_write_header_(FILE *file, const safetensors_part *parts, int count) {
  char entry[256];
  int64_t length = 0, at = 0;
  for (int i = 0; i <= count; i++) {
    if (i == count) {
      strcpy(entry, "}");
    } else {
      const safetensors_part *part = &parts[i];
      const int64_t end = at + safetensors_part_bytes_(part);
      char rows[32] = "";
      if (part->rows) snprintf(rows, sizeof rows, "%" PRId64 ",", part->rows);
      snprintf(entry, sizeof entry,
               "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s%" PRId64 "],\"data_offsets\":[%" PRId64
               ",%" PRId64 "]}",
               i ? ',' : '{', part->name, part->type, rows, part->columns, at, end);
      at = end;
    }
    length += (int64_t)strlen(entry);
    if (file) fputs(entry, file);
  }
  for (; length % 8; length++) /* the numbers begin at a multiple of 8 */
    if (file) putc(' ', file);
  return length;
}

/* Null, or why the file could not be written. count is at least 1. */
static const char *safetensors_write(const char *path, const safetensors_part *parts, int count) {
  FILE *file = fopen(path, "wb");
  if (!file) return strerror(errno);
  const uint64_t length = (uint64_t)safetensors_write_header_(NULL, parts, count);
  for (int i = 0; i < 8; i++) putc((int)(length >> 8 * i & 255), file);
  safetensors_write_header_(file, parts, count);
  for (int i = 0; i < count; i++)
    fwrite(parts[i].data, 1, (size_t)safetensors_part_bytes_(&parts[i]), file);
  const int failed = ferror(file);
  return fclose(file) || failed ? "the file could not be written in full" : NULL;
}

#endif
