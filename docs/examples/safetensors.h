/* safetensors.h owns reading model weights from a .safetensors file:
 *
 *   8 bytes    n, the length of the header, little-endian
 *   n bytes    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *   the rest   the numbers, little-endian, row by row; offsets count from here
 *
 * A file may come from anywhere, so everything it says is checked before it is believed: each
 * tensor's bytes lie in the file, fit its shape and type, and belong to it alone. Functions return
 * null, or a sentence that says what went wrong and lives as long as the struct. */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include "attn.h"
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  SAFETENSORS_MAX_RANK = 8,
  SAFETENSORS_MAX_HEADER = 100000000, /* bytes; the format's own limit */
  SAFETENSORS_SHOWN = 80              /* bytes of a name that an error quotes */
};

typedef struct safetensor {
  const char *name;
  const char *type; /* as the file says: "F32", "I64", ... */
  attn_dtype dtype; /* ATTN_F32, ATTN_F16, ATTN_BF16; ATTN_DTYPE_COUNT for all others */
  int rank;
  int64_t shape[SAFETENSORS_MAX_RANK];
  int64_t begin, end; /* bytes from the start of the numbers */
  const void *data;
} safetensor;

typedef struct safetensors {
  safetensor *tensors; /* sorted by name */
  size_t count;
  json_document header; /* names point into it */
  char *bytes;          /* the numbers, all of them, or null */
  FILE *stream;         /* of safetensors_open */
  int64_t size;         /* bytes of the numbers */
  char error[256];
} safetensors;

/* Leaves a sentence in st->error, and returns it. */
static const char *safetensors_fail(safetensors *st, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(st->error, sizeof st->error, format, arguments);
  va_end(arguments);
  return st->error;
}

/* ---- the header. A function that fails leaves its sentence in st->error and returns 0. */

static int safetensors_bad_(safetensors *st, const json *value, const char *what) {
  safetensors_fail(st, "the header is not as it should be at byte %zu: %s", value->at, what);
  return 0;
}

/* [n, n, ...], at most `room` numbers. */
static int safetensors_numbers_(safetensors *st, const json *list, int64_t *n, int room,
                                int *count) {
  *count = 0;
  if (list->kind != JSON_ARRAY)
    return safetensors_bad_(st, list, "a list of numbers must stand here");
  for (const json *item = list->first; item; item = item->next) {
    if (*count == room) return safetensors_bad_(st, item, "too many numbers in a list");
    if (item->kind == JSON_NUMBER && !item->whole && item->number >= 0x1p63)
      return safetensors_bad_(st, item, "the number is too large");
    if (item->kind != JSON_NUMBER || !item->whole || item->integer < 0)
      return safetensors_bad_(st, item, "a whole number of 0 or more must stand here");
    n[(*count)++] = item->integer;
  }
  return 1;
}

/* Bits of a number; 0 for an unknown type. */
static int safetensors_bits_(const char *type) {
  static const struct {
    const char *type;
    int bits;
  } known[] = {{"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},    {"I64", 64},
               {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
               {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64},    {"F8_E5M2", 8},
               {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(type, known[i].type)) return known[i].bits;
  return 0;
}

/* {"dtype": .., "shape": .., "data_offsets": ..} of tensor t. */
static int safetensors_entry_(safetensors *st, const json *entry, safetensor *t) {
  int seen[3] = {0, 0, 0}, count = 0;
  int64_t offsets[2] = {0, 0};
  if (entry->kind != JSON_OBJECT) return safetensors_bad_(st, entry, "a tensor must be an object");
  for (const json *field = entry->first; field; field = field->next) {
    const int which = !strcmp(field->name, "dtype")          ? 0
                      : !strcmp(field->name, "shape")        ? 1
                      : !strcmp(field->name, "data_offsets") ? 2
                                                             : 3;
    if (which < 3 && seen[which]++)
      return safetensors_bad_(st, field, "a field of a tensor comes twice");
    if (which == 0 && (field->kind != JSON_STRING || strlen(field->string) != field->length))
      return safetensors_bad_(st, field, "a string must stand here, without \\u0000");
    if (which == 0) t->type = field->string;
    if ((which == 1 &&
         !safetensors_numbers_(st, field, t->shape, SAFETENSORS_MAX_RANK, &t->rank)) ||
        (which == 2 && !safetensors_numbers_(st, field, offsets, 2, &count)))
      return 0;
  }
  if (!seen[0] || !seen[1] || !seen[2] || count != 2)
    return safetensors_bad_(st, entry, "a tensor takes dtype, shape and two data_offsets");
  t->begin = offsets[0];
  t->end = offsets[1];
  return 1;
}

/* Whether errors may quote the text: no character of it moves a terminal's cursor. */
static int safetensors_plain_(const char *text) {
  for (const unsigned char *c = (const unsigned char *)text; *c; c++)
    if (*c < ' ' || *c == 127 || (*c == 0xC2 && c[1] < 0xA0)) return 0;
  return 1;
}

/* What tensor t says of itself: the type is known, and the bytes are those of the shape. */
static const char *safetensors_check_(safetensors *st, safetensor *t, int64_t size) {
  const int bits = safetensors_bits_(t->type);
  if (!safetensors_plain_(t->name) || !safetensors_plain_(t->type))
    return safetensors_fail(st, "a tensor's name or type has a control character");
  if (!bits)
    return safetensors_fail(st, "tensor '%.*s' has the unknown type '%.*s'", SAFETENSORS_SHOWN,
                            t->name, SAFETENSORS_SHOWN, t->type);
  t->dtype = !strcmp(t->type, "F32")    ? ATTN_F32
             : !strcmp(t->type, "F16")  ? ATTN_F16
             : !strcmp(t->type, "BF16") ? ATTN_BF16
                                        : ATTN_DTYPE_COUNT;
  if (t->begin > t->end || t->end > size)
    return safetensors_fail(st,
                            "tensor '%.*s' lies at bytes %" PRId64 " to %" PRId64
                            " of the numbers, of which the file has %" PRId64 " bytes",
                            SAFETENSORS_SHOWN, t->name, t->begin, t->end, size);
  int64_t total = bits;
  int empty = 0;
  for (int i = 0; i < t->rank; i++) empty = empty || !t->shape[i];
  for (int i = 0; i < t->rank && !empty; i++) {
    if (total > INT64_MAX / t->shape[i])
      return safetensors_fail(st, "the shape of tensor '%.*s' is too large", SAFETENSORS_SHOWN,
                              t->name);
    total *= t->shape[i];
  }
  if (empty) total = 0;
  if (total % 8 || total / 8 != t->end - t->begin)
    return safetensors_fail(
        st, "tensor '%.*s' has %" PRId64 " bytes, but its shape asks for %" PRId64,
        SAFETENSORS_SHOWN, t->name, t->end - t->begin, total / 8 + !!(total % 8));
  return NULL;
}

static int safetensors_by_name_(const void *a, const void *b) {
  return strcmp(((const safetensor *)a)->name, ((const safetensor *)b)->name);
}

static int safetensors_by_place_(const void *a, const void *b) {
  const safetensor *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* All of the header; size: bytes of the file behind it. */
static const char *safetensors_parse_(safetensors *st, char *text, size_t length, int64_t size) {
  if (memchr(text, 0, length) || length == 0 || *text != '{') {
    safetensors_fail(st, length && memchr(text, 0, length)
                             ? "the header has a zero byte"
                             : "the header is not as it should be at byte 0: it must begin with {");
    free(text);
    return st->error;
  }
  const char *error = json_parse(&st->header, text, length);
  if (error) return safetensors_fail(st, "the header is not as it should be %s", error);
  const json *entry = st->header.root->first;
  if (st->header.root->count > SIZE_MAX / sizeof *st->tensors ||
      !(st->tensors = calloc(st->header.root->count + 1, sizeof *st->tensors)))
    return safetensors_fail(st, "out of memory");
  for (; entry; entry = entry->next) {
    if (strlen(entry->name) != entry->name_length)
      return safetensors_fail(st, "a tensor's name has \\u0000");
    if (!strcmp(entry->name, "__metadata__")) continue; /* notes about the file */
    st->tensors[st->count] = (safetensor){.name = entry->name};
    if (!safetensors_entry_(st, entry, &st->tensors[st->count])) return st->error;
    st->count++;
  }

  for (size_t i = 0; i < st->count; i++)
    if (safetensors_check_(st, &st->tensors[i], size)) return st->error;
  if (st->count) qsort(st->tensors, st->count, sizeof *st->tensors, safetensors_by_place_);
  int64_t end = 0;
  for (size_t i = 0; i < st->count; end = st->tensors[i++].end)
    if (st->tensors[i].begin != end)
      return safetensors_fail(st, "tensor '%.*s' %s the one before it", SAFETENSORS_SHOWN,
                              st->tensors[i].name,
                              st->tensors[i].begin < end ? "overlaps" : "leaves a gap behind");
  if (end != size)
    return safetensors_fail(st, "%" PRId64 " bytes at the end of the file belong to no tensor",
                            size - end);
  if (st->count) qsort(st->tensors, st->count, sizeof *st->tensors, safetensors_by_name_);
  for (size_t i = 1; i < st->count; i++)
    if (!strcmp(st->tensors[i - 1].name, st->tensors[i].name))
      return safetensors_fail(st, "there are two tensors '%.*s'", SAFETENSORS_SHOWN,
                              st->tensors[i].name);
  return NULL;
}

static const char *safetensors_header_(safetensors *st) {
  const uint16_t one = 1;
  unsigned char first;
  memcpy(&first, &one, 1);
  if (!first) return safetensors_fail(st, "the file is little-endian, this machine is not");
  unsigned char prefix[8];
  errno = 0;
  if (fread(prefix, 1, 8, st->stream) != 8)
    return safetensors_fail(st, "%s", errno ? strerror(errno) : "the file has no 8 bytes");
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | prefix[i];
  const long all = fseek(st->stream, 0, SEEK_END) ? -1 : ftell(st->stream);
  if (all < 8 || fseek(st->stream, 8, SEEK_SET))
    return safetensors_fail(st, "the size of the file cannot be told");
  if (length > SAFETENSORS_MAX_HEADER)
    return safetensors_fail(st, "it is no safetensors file: a header of %" PRIu64 " bytes", length);
  if (length > (uint64_t)(all - 8))
    return safetensors_fail(st, "the file is cut short: it ends within its header");
  st->size = all - 8 - (int64_t)length;
  if ((uint64_t)st->size >= SIZE_MAX) return safetensors_fail(st, "out of memory");
  char *header = malloc((size_t)length + 1);
  if (!header) return safetensors_fail(st, "out of memory");
  if (fread(header, 1, (size_t)length, st->stream) != length) {
    free(header);
    return safetensors_fail(st, "the file is cut short: it ends within its header");
  }
  return safetensors_parse_(st, header, (size_t)length, st->size);
}

/* Releases what the struct holds; views of numbers that safetensors_read gave die with it. The error stays. */
static void safetensors_free(safetensors *st) {
  free(st->tensors);
  json_free(&st->header);
  free(st->bytes);
  if (st->stream) fclose(st->stream);
  st->tensors = NULL;
  st->bytes = NULL;
  st->stream = NULL;
  st->count = 0;
}

/* Reads what a file has, but no numbers: for models that are as large as memory, tensor after tensor. The file
 * stays open. After an error there is nothing to release. */
static const char *safetensors_open(safetensors *st, const char *path) {
  memset(st, 0, sizeof *st);
  st->stream = fopen(path, "rb");
  if (!st->stream) return safetensors_fail(st, "%s", strerror(errno));
  const char *error = safetensors_header_(st);
  if (error) safetensors_free(st);
  return error;
}

/* The numbers of one tensor of an open file: data points at them until safetensors_drop. */
static inline const char *safetensors_fetch(safetensors *st, safetensor *t) {
  const size_t bytes = (size_t)(t->end - t->begin);
  void *data = malloc(bytes + 1);
  if (!data) return safetensors_fail(st, "out of memory");
  if (fseek(st->stream, -(long)(st->size - t->begin), SEEK_END) ||
      fread(data, 1, bytes, st->stream) != bytes) {
    free(data);
    return safetensors_fail(st, "the file is cut short: it ends within its numbers");
  }
  t->data = data;
  return NULL;
}

static inline void safetensors_drop(safetensor *t) {
  free((void *)(uintptr_t)t->data);
  t->data = NULL;
}

/* Reads a file, all of it. After an error there is nothing to release. */
static inline const char *safetensors_read(safetensors *st, const char *path) {
  if (safetensors_open(st, path)) return st->error;
  st->bytes = malloc((size_t)st->size + 1);
  const char *error = NULL;
  if (!st->bytes)
    error = safetensors_fail(st, "out of memory");
  else if (fread(st->bytes, 1, (size_t)st->size, st->stream) != (size_t)st->size)
    error = safetensors_fail(st, "the file is cut short: it ends within its numbers");
  fclose(st->stream);
  st->stream = NULL;
  for (size_t i = 0; i < st->count && !error; i++)
    st->tensors[i].data = st->bytes + st->tensors[i].begin;
  if (error) safetensors_free(st);
  return error;
}

/* ---- what a model asks for */

/* The tensor of that name; null if there is none. */
static inline const safetensor *safetensors_find(const safetensors *st, const char *name) {
  const safetensor key = {.name = name};
  if (!st->count) return NULL;
  return bsearch(&key, st->tensors, st->count, sizeof key, safetensors_by_name_);
}

/* The same, which must be there, hold numbers that attn.h reads, and have this shape: rows and
 * columns, or with rows = 0 a vector of columns numbers. */
static const char *safetensors_expect_(safetensors *st, const safetensor **found, const char *name,
                                       int64_t rows, int64_t columns) {
  const safetensor *t = *found = safetensors_find(st, name);
  if (!t) return safetensors_fail(st, "there is no tensor '%s'", name);
  if (t->dtype == ATTN_DTYPE_COUNT)
    return safetensors_fail(st, "tensor '%s' has type %s; F32, F16 and BF16 can be read", name,
                            t->type);
  if (t->begin % (t->dtype == ATTN_F32 ? 4 : 2))
    return safetensors_fail(st, "tensor '%s' does not begin at a multiple of its numbers' size",
                            name);
  if (t->rank == (rows ? 2 : 1) && (!rows || t->shape[0] == rows) &&
      t->shape[t->rank - 1] == columns)
    return NULL;
  char shape[200];
  size_t length = 0;
  shape[0] = 0;
  for (int i = 0; i < t->rank; i++)
    length += (size_t)snprintf(shape + length, sizeof shape - length, "%s%" PRId64, i ? ", " : "",
                               t->shape[i]);
  if (rows)
    return safetensors_fail(st, "tensor '%s' has shape [%s], not [%" PRId64 ", %" PRId64 "]", name,
                            shape, rows, columns);
  return safetensors_fail(st, "tensor '%s' has shape [%s], not [%" PRId64 "]", name, shape,
                          columns);
}

/* A matrix [rows, columns] as a view [1, 1, rows, columns] of the numbers where they lie. */
static inline const char *safetensors_matrix(safetensors *st, attn_tensor *view, const char *name,
                                             int64_t rows, int64_t columns) {
  const safetensor *t;
  if (safetensors_expect_(st, &t, name, rows, columns)) return st->error;
  *view = attn_bhtd(t->data, t->dtype, 1, 1, rows, columns);
  return NULL;
}

/* A 16-bit number as a float, exactly. */
static float safetensors_widen_(uint16_t half, attn_dtype dtype) {
  uint32_t bits = (uint32_t)half << 16;
  float x;
  if (dtype == ATTN_F16) { /* exponent and fraction move to their places in a float ... */
    bits = (half & 0x7FFFu) << 13;
    if ((half & 0x7C00) == 0x7C00) bits += (uint32_t)224 << 23; /* ... infinity and NaN stay such */
  }
  memcpy(&x, &bits, sizeof x);
  if (dtype == ATTN_BF16) return x;
  x *= (half & 0x7C00) == 0x7C00 ? 1.0f : 0x1p112f; /* ... and the bias of the exponent changes */
  return half & 0x8000 ? -x : x;
}

/* Row i of a matrix that safetensors_matrix has given, copied to x as floats. */
static inline void safetensors_row(float *x, attn_tensor matrix, int64_t i) {
  const int64_t first = i * matrix.stride_len;
  if (matrix.dtype == ATTN_F32) {
    memcpy(x, (const float *)matrix.data + first, (size_t)matrix.dim * sizeof *x);
  } else {
    const uint16_t *halves = (const uint16_t *)matrix.data + first;
    for (int64_t j = 0; j < matrix.dim; j++) x[j] = safetensors_widen_(halves[j], matrix.dtype);
  }
}

/* A vector of n numbers, copied to x as floats. */
static inline const char *safetensors_vector(safetensors *st, float *x, const char *name,
                                             int64_t n) {
  const safetensor *t;
  if (safetensors_expect_(st, &t, name, 0, n)) return st->error;
  safetensors_row(x, attn_bhtd(t->data, t->dtype, 1, 1, 1, n), 0);
  return NULL;
}

#endif
