/* texts.h owns what an encoder reads: the tokens of a text or of a pair, with the marks that its family
 * puts around them, [CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut to the most that the model takes.
 *
 * Functions return null or a sentence that lives as long as the struct. */
#ifndef EXAMPLES_TEXTS_H
#define EXAMPLES_TEXTS_H

#include "encoder_family.h"
#include "wordpiece.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct texts {
  const encoder_family *family;
  int64_t max;        /* tokens of a text */
  int64_t vocabulary; /* of the model */
  wordpiece words;
  char error[160];
} texts;

typedef struct texts_tokens {
  int32_t *ids;
  int64_t count;
  int64_t second; /* where the second text begins; count if there is none */
  int64_t whole;  /* tokens without the cut */
} texts_tokens;

static const char *texts_fail_(texts *t, const char *what, long number) {
  snprintf(t->error, sizeof t->error, what, number);
  return t->error;
}

/* Reads the vocabulary of a model: one piece of WordPiece a line. */
static const char *texts_read(texts *t, const char *path) {
  const char *error = wordpiece_read(&t->words, path);
  if (error) return error;
  if (t->words.count <= t->vocabulary) return NULL;
  return texts_fail_(t, "it has %ld pieces, which is longer than the model's vocabulary",
                     (long)t->words.count);
}

static void texts_free(texts *t) { wordpiece_free(&t->words); }

/* The piece of a token, to be looked at. */
static const char *texts_piece(const texts *t, int32_t id) {
  return id < t->words.count ? t->words.pieces[id] : "?";
}

/* Tokens of one text, without marks. */
static const char *texts_raw_(texts *t, const char *text, int32_t **ids, int64_t *count) {
  const int64_t room = (int64_t)strlen(text) + 1;
  *ids = malloc((size_t)room * sizeof **ids);
  return *ids ? wordpiece_encode(&t->words, text, *ids, room, count) : "out of memory";
}

/* The tokens of a text, or with b of a pair; the longer one is cut. */
static const char *texts_tokens_of(texts *t, texts_tokens *out, const char *a, const char *b) {
  const int64_t marks = b ? 2 + t->family->ends : 2;
  int32_t *ids[2] = {NULL, NULL};
  int64_t n[2] = {0, 0}, at = 0;
  memset(out, 0, sizeof *out);
  if (t->max < marks)
    return texts_fail_(t, "%ld tokens are the least that are needed", (long)marks);
  const char *error = texts_raw_(t, a, &ids[0], &n[0]);
  if (!error && b) error = texts_raw_(t, b, &ids[1], &n[1]);
  out->whole = n[0] + n[1] + marks;
  while (n[0] + n[1] + marks > t->max) n[n[1] > n[0]]--;
  out->ids = malloc((size_t)(n[0] + n[1] + marks) * sizeof *out->ids);
  if (!out->ids) error = "out of memory";
  if (!error) {
    out->ids[at++] = t->words.cls;
    for (int side = 0; side < 1 + (b != NULL); side++) {
      if (side) out->second = at;
      memcpy(out->ids + at, ids[side], (size_t)n[side] * sizeof **ids);
      at += n[side];
      for (int i = 0; i < (b && !side ? t->family->ends : 1); i++) out->ids[at++] = t->words.sep;
    }
    out->count = at;
    if (!b) out->second = at;
  }
  free(ids[0]);
  free(ids[1]);
  return error;
}

/* The numbers of "2 17 5 | 9 3", marks included, a bar before a second text. */
static const char *texts_numbers_of(texts *t, texts_tokens *out, const char *text) {
  memset(out, 0, sizeof *out);
  out->ids = malloc((strlen(text) / 2 + 1) * sizeof *out->ids);
  if (!out->ids) return "out of memory";
  int barred = 0;
  for (const char *at = text + strspn(text, " \t"); *at; at += strspn(at, " \t")) {
    char *end;
    if (*at == '|' && !barred && out->whole) {
      barred = 1;
      out->second = out->count;
      at++;
      continue;
    }
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno || !(*end == 0 || strchr(" \t|", *end)))
      return texts_fail_(t, "byte %ld must begin a token's number", (long)(at - text));
    if (id < 0 || id >= t->vocabulary) return texts_fail_(t, "the model has no token %ld", id);
    if (out->whole++ < t->max) out->ids[out->count++] = (int32_t)id;
    at = end;
  }
  if (!barred) out->second = out->count;
  return out->count ? NULL : texts_fail_(t, "a text needs %ld token at least", 1);
}

#endif
