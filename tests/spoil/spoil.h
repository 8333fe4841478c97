/* spoil.h owns calls that are spoiled: what a table of arguments looks like, for entries.c (which entries.py makes)
 * and spoil.c. */

#ifndef TESTS_SPOIL_H
#define TESTS_SPOIL_H

#include <stddef.h>
#include <stdint.h>

#include "attn.h"

typedef enum spoil_kind {
  SPOIL_I64,
  SPOIL_INT, /* and enumerators */
  SPOIL_I32,
  SPOIL_U8,
  SPOIL_U64,
  SPOIL_SIZE,
  SPOIL_F32,
  SPOIL_F64,
  SPOIL_CALLBACK,
  SPOIL_DATA,  /* a pointer to an array */
  SPOIL_ONE,   /* a pointer to one structure */
  SPOIL_STRUCT /* a structure in place */
} spoil_kind;

typedef struct spoil_field {
  const char *name;
  spoil_kind kind;
  size_t at, times; /* the offset, and the length of an array in place */
  size_t element;   /* what SPOIL_DATA is aligned to */
  const struct spoil_type *type;
  int constant; /* of SPOIL_ONE: copied before it is changed */
} spoil_field;

typedef struct spoil_type {
  const char *name;
  size_t size;
  const spoil_field *field;
  int fields;
} spoil_type;

typedef struct spoil_entry {
  const char *name;
  const spoil_type *args;
  attn_status (*call)(const void *args, attn_ctx *ctx);
  size_t (*ask)(const void *args, const attn_ctx *ctx); /* null: it has no workspace query */
  int64_t seen, spoiled; /* calls so far, and those that were spoiled */
} spoil_entry;

/* All calls with a context, null at the end. */
extern spoil_entry *const spoil_entries[];

/* Whether the next call of an entry shall be spoiled. */
int spoil_wants(spoil_entry *entry);
/* Tries flaws in a copy of the arguments; the call itself comes after. */
void spoil_call(spoil_entry *entry, const void *args, attn_ctx *ctx);

#endif
