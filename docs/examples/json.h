/* json.h owns reading JSON (RFC 8259) into a tree: objects, arrays, strings, numbers, true, false, null.
 *
 *   json_document d;
 *   const char *error = json_read(&d, "config.json");
 *   const json *heads = json_get(d.root, "num_attention_heads");   null where there is none
 *   for (const json *member = d.root->first; member; member = member->next) ...
 *   json_free(&d);
 *
 * A text may come from anywhere: whatever it holds, it is read, or refused with one sentence that names the
 * byte (from 0), which lives as long as the document. Beyond RFC 8259, NaN, Infinity and -Infinity are numbers,
 * as Python writes them. A name that comes twice is no error here: json_get finds the first. */
#ifndef EXAMPLES_JSON_H
#define EXAMPLES_JSON_H

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_MAX_DEPTH = 48, JSON_MAX_BYTES = 1 << 30, JSON_BLOCK = 256 /* values */ };

typedef enum json_kind {
  JSON_NULL,
  JSON_BOOL,
  JSON_NUMBER,
  JSON_STRING,
  JSON_ARRAY,
  JSON_OBJECT
} json_kind;

typedef struct json {
  json_kind kind;
  int truth;          /* of a bool */
  int whole;          /* 1: the number is written without point and exponent, and is `integer` */
  int64_t integer;    /* exact */
  double number;      /* nearest to the number, whole or not; infinite beyond doubles */
  const char *string; /* UTF-8, a zero byte behind it */
  size_t length;      /* bytes of the string, which may hold zero bytes */
  const char *name;   /* of a member of an object, likewise; else null */
  size_t name_length;
  struct json *first, *next; /* what an array or object holds; the value behind this one */
  size_t count;              /* how many it holds */
  size_t at;                 /* the byte of the text where the value begins */
} json;

typedef struct json_document {
  json *root;
  char *text;   /* strings are decoded where they lie */
  void *blocks; /* of values; each begins with the address of the one before it */
  size_t taken; /* values of the newest block */
  char error[160];
} json_document;

/* ---- reading: functions return 0 after leaving a sentence */

typedef struct json_reader_ {
  json_document *d;
  char *at, *end; /* *end is 0 */
} json_reader_;

static int json_bad_(json_reader_ *r, const char *what) {
  snprintf(r->d->error, sizeof r->d->error, "at byte %td: %s", r->at - r->d->text, what);
  return 0;
}

static json *json_new_(json_reader_ *r) {
  json_document *d = r->d;
  if (!d->blocks || d->taken == JSON_BLOCK) {
    void *block = malloc(sizeof(json) * (JSON_BLOCK + 1));
    if (!block) return json_bad_(r, "out of memory"), NULL;
    memcpy(block, &d->blocks, sizeof(void *));
    d->blocks = block;
    d->taken = 0;
  }
  json *value = (json *)d->blocks + 1 + d->taken++;
  memset(value, 0, sizeof *value);
  return value;
}

static void json_space_(json_reader_ *r) {
  while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r') r->at++;
}

/* Takes c if it comes next. */
static int json_next_(json_reader_ *r, char c) {
  json_space_(r);
  if (*r->at != c) return 0;
  r->at++;
  return 1;
}

static int json_hex_(json_reader_ *r, unsigned *code) {
  *code = 0;
  for (int i = 0; i < 4; i++, r->at++) {
    const char *digits = "0123456789abcdefABCDEF", *digit = strchr(digits, *r->at);
    if (!*r->at || !digit) return json_bad_(r, "\\u takes four hexadecimal digits");
    const unsigned value = (unsigned)(digit - digits);
    *code = *code * 16 + (value < 16 ? value : value - 6);
  }
  return 1;
}

/* The character behind a backslash, as UTF-8 at *to. It is never longer than what it stands for. */
static int json_escape_(json_reader_ *r, char **to) {
  const char *escapes = "\"\\/bfnrt", *meanings = "\"\\/\b\f\n\r\t", *known;
  const char c = *r->at;
  if (c && (known = strchr(escapes, c)) != NULL) {
    r->at++;
    *(*to)++ = meanings[known - escapes];
    return 1;
  }
  if (c != 'u') return json_bad_(r, "an unknown escape in a string");
  unsigned code, low;
  r->at++;
  if (!json_hex_(r, &code)) return 0;
  if (code >= 0xD800 && code < 0xDC00) { /* the first half of a pair */
    if (r->at[0] != '\\' || r->at[1] != 'u') return json_bad_(r, "half a surrogate pair");
    r->at += 2;
    if (!json_hex_(r, &low)) return 0;
    if (low < 0xDC00 || low > 0xDFFF) return json_bad_(r, "half a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code <= 0xDFFF) {
    return json_bad_(r, "half a surrogate pair");
  }
  const int tail = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
  *(*to)++ = (char)(unsigned char)(lead[tail] | code >> 6 * tail);
  for (int i = tail - 1; i >= 0; i--)
    *(*to)++ = (char)(unsigned char)(0x80 | (code >> 6 * i & 0x3F));
  return 1;
}

/* Bytes of the UTF-8 character at c, 0 if it is none: too long a form, half a pair, beyond U+10FFFF. */
static int json_utf8_(const unsigned char *c) {
  const int n = c[0] < 0x80 ? 1 : c[0] < 0xC2 ? 0 : c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : 4;
  if (c[0] > 0xF4) return 0;
  for (int i = 1; i < n; i++)
    if ((c[i] & 0xC0) != 0x80) return 0; /* the 0 at the end of the text too */
  if ((c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xED && c[1] > 0x9F)) return 0;
  return (c[0] == 0xF0 && c[1] < 0x90) || (c[0] == 0xF4 && c[1] > 0x8F) ? 0 : n;
}

/* A string, decoded where it lies and ended by 0. */
static int json_string_(json_reader_ *r, const char **string, size_t *length) {
  if (!json_next_(r, '"')) return json_bad_(r, "a string must stand here");
  char *to = r->at;
  *string = to;
  while (*r->at != '"') {
    if ((unsigned char)*r->at < ' ')
      return json_bad_(
          r, r->at < r->end ? "a control character in a string" : "it ends within a string");
    if (*r->at == '\\') {
      r->at++;
      if (!json_escape_(r, &to)) return 0;
    } else {
      const int n = json_utf8_((unsigned char *)r->at);
      if (!n) return json_bad_(r, "a string is not UTF-8");
      for (int i = 0; i < n; i++) *to++ = *r->at++;
    }
  }
  r->at++;
  *length = (size_t)(to - *string);
  *to = 0;
  return 1;
}

static int json_word_(json_reader_ *r, const char *word) {
  const size_t n = strlen(word);
  if (strncmp(r->at, word, n)) return 0;
  r->at += n;
  return 1;
}

static size_t json_digits_(json_reader_ *r) {
  const size_t n = strspn(r->at, "0123456789");
  r->at += n;
  return n;
}

static int json_number_(json_reader_ *r, json *value) {
  const char *first = r->at;
  const int minus = json_word_(r, "-");
  value->kind = JSON_NUMBER;
  if (json_word_(r, "Infinity")) return value->number = minus ? -INFINITY : INFINITY, 1;
  const char *digits = r->at;
  const size_t count = json_digits_(r);
  if (!count) return json_bad_(r, "a value must stand here");
  if (*digits == '0' && count > 1) return json_bad_(r, "a number begins with 0");
  value->whole = 1;
  for (const char *c = digits; value->whole && c < r->at; c++) { /* negative: -2^63 fits too */
    const int digit = *c - '0';
    if (value->integer < (INT64_MIN + digit) / 10)
      value->whole = 0;
    else
      value->integer = 10 * value->integer - digit;
  }
  if (!minus && value->integer == INT64_MIN) value->whole = 0;
  if (!minus && value->whole) value->integer = -value->integer;
  if (*r->at == '.') {
    value->whole = 0;
    r->at++;
    if (!json_digits_(r)) return json_bad_(r, "a digit must follow the point");
  }
  if (*r->at == 'e' || *r->at == 'E') {
    value->whole = 0;
    r->at++;
    if (*r->at == '+' || *r->at == '-') r->at++;
    if (!json_digits_(r)) return json_bad_(r, "the exponent needs a digit");
  }
  if (!value->whole) value->integer = 0;
  value->number = strtod(first, NULL); /* stops where the grammar above did */
  return 1;
}

/* The value that comes next. */
static json *json_value_(json_reader_ *r, int depth) {
  json_space_(r);
  if (depth > JSON_MAX_DEPTH) return json_bad_(r, "it is nested too deeply"), NULL;
  json *value = json_new_(r);
  if (!value) return NULL;
  const char c = *r->at;
  value->at = (size_t)(r->at - r->d->text);
  if (c == '"') {
    value->kind = JSON_STRING;
    return json_string_(r, &value->string, &value->length) ? value : NULL;
  }
  if (c == '{' || c == '[') {
    const int object = c == '{';
    json **next = &value->first;
    value->kind = object ? JSON_OBJECT : JSON_ARRAY;
    r->at++;
    if (json_next_(r, object ? '}' : ']')) return value;
    do {
      const char *name = NULL;
      size_t length = 0;
      if (object) {
        if (!json_string_(r, &name, &length)) return NULL;
        if (!json_next_(r, ':')) return json_bad_(r, "a name must be followed by :"), NULL;
      }
      *next = json_value_(r, depth + 1);
      if (!*next) return NULL;
      (*next)->name = name;
      (*next)->name_length = length;
      next = &(*next)->next;
      value->count++;
    } while (json_next_(r, ','));
    if (json_next_(r, object ? '}' : ']')) return value;
    return json_bad_(r, object ? "an object must go on with , or end with }"
                               : "a list must go on with , or end with ]"),
           NULL;
  }
  if (json_word_(r, "true")) return value->kind = JSON_BOOL, value->truth = 1, value;
  if (json_word_(r, "false")) return value->kind = JSON_BOOL, value;
  if (json_word_(r, "null")) return value;
  if (json_word_(r, "NaN")) return value->kind = JSON_NUMBER, value->number = NAN, value;
  return json_number_(r, value) ? value : NULL;
}

/* ---- the whole */

/* Releases everything but the error. */
static inline void json_free(json_document *d) {
  while (d->blocks) {
    void *block = d->blocks;
    memcpy(&d->blocks, block, sizeof(void *));
    free(block);
  }
  free(d->text);
  d->text = NULL;
  d->root = NULL;
}

/* Reads `length` bytes of text, which malloc gave and which has room for one more; the document owns it from
 * here on, also after an error, when there is nothing to release. */
static inline const char *json_parse(json_document *d, char *text, size_t length) {
  memset(d, 0, sizeof *d);
  json_reader_ r = {d, text, text + length};
  d->text = text;
  text[length] = 0;
  d->root = json_value_(&r, 0);
  if (d->root) {
    json_space_(&r);
    if (r.at != r.end) json_bad_(&r, "something follows the last value");
  }
  if (!d->error[0]) return NULL;
  json_free(d);
  return d->error;
}

/* Reads a file. After an error there is nothing to release. */
static inline const char *json_read(json_document *d, const char *path) {
  memset(d, 0, sizeof *d);
  errno = 0;
  FILE *file = fopen(path, "rb");
  char *text = NULL;
  size_t length = 0, room = 0, more = 0;
  int fine = file != NULL;
  while (fine) { /* what it is that can be opened, and how long, only reading tells */
    if (length == room) {
      room = room ? 2 * room : 1 << 16;
      char *larger = room <= JSON_MAX_BYTES ? realloc(text, room + 1) : NULL;
      if (!larger) errno = room <= JSON_MAX_BYTES ? ENOMEM : EFBIG;
      fine = larger != NULL;
      if (!fine) break;
      text = larger;
    }
    more = fread(text + length, 1, room - length, file);
    if (!more) break;
    length += more;
  }
  if (!fine || ferror(file)) {
    snprintf(d->error, sizeof d->error, "%s", errno ? strerror(errno) : "it cannot be read");
    free(text);
  }
  if (file) fclose(file);
  return d->error[0] ? d->error : json_parse(d, text, length);
}

/* The member of that name; null where there is none, or no object. */
static inline const json *json_get(const json *object, const char *name) {
  const size_t length = strlen(name);
  if (!object || object->kind != JSON_OBJECT) return NULL;
  for (const json *member = object->first; member; member = member->next)
    if (member->name_length == length && !memcmp(member->name, name, length)) return member;
  return NULL;
}

#endif
