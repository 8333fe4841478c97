/* sentencepiece.h owns text for models with a SentencePiece unigram vocabulary, such as ALBERT (spiece.model),
 * DeBERTa (spm.model) and XLM-R (sentencepiece.bpe.model): UTF-8 to the numbers of tokens.
 *
 *   normalise   by the map that the file holds: the longest match at each place; spaces at the ends go, several
 *               become one, each is written U+2581, and one is put before the text
 *   cut         into the pieces whose sum of scores is largest; what no piece covers is unknown, a run of it
 *               one token
 *
 * The file is a protocol buffer and may come from anywhere: all of it is checked. Functions return null,
 * or a sentence that says what is wrong and lives as long as the struct.
 * Sources: Kudo 2018, arXiv 1804.10959; Kudo and Richardson 2018, arXiv 1808.06226. */
#ifndef EXAMPLES_SENTENCEPIECE_H
#define EXAMPLES_SENTENCEPIECE_H

#include "utf8.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCEPIECE_MAX_FILE = 1 << 28, SENTENCEPIECE_MAX_PIECE = 1 << 10 };

/* What a piece is. Only normal and given ones are looked for in a text; given ones are not normalised. */
typedef enum sentencepiece_kind {
  SENTENCEPIECE_NORMAL = 1,
  SENTENCEPIECE_UNKNOWN,
  SENTENCEPIECE_CONTROL,
  SENTENCEPIECE_GIVEN,
  SENTENCEPIECE_UNUSED,
  SENTENCEPIECE_BYTE
} sentencepiece_kind;

typedef struct sentencepiece {
  const char **pieces; /* by number */
  int32_t count, unknown;
  int dummy_prefix, squeeze, escape; /* as the file's normaliser says */
  unsigned char *file_;              /* pieces point into it, ended by 0 */
  float *scores_;
  sentencepiece_kind *kinds_;
  int32_t *slots_; /* hash table of numbers of normal and given pieces; -1 = free */
  uint32_t mask_;
  size_t longest_;            /* bytes of such a piece */
  const unsigned char *trie_; /* units of 4 bytes */
  uint32_t units_;
  const char *forms_; /* what the trie's numbers lead to, strings that end with 0 */
  size_t forms_size_;
  int given_; /* there are given pieces */
  char error[160];
} sentencepiece;

static const char *sentencepiece_fail_(sentencepiece *sp, const char *what) {
  snprintf(sp->error, sizeof sp->error, "%s", what);
  return sp->error;
}

/* ---- the file */

typedef struct sentencepiece_field_ {
  uint32_t number;
  int kind; /* 0: a number, 2: bytes, 5: four bytes; others are passed over */
  uint64_t value;
  unsigned char *bytes;
  size_t length;
} sentencepiece_field_;

static int sentencepiece_number_(unsigned char **at, const unsigned char *end, uint64_t *n) {
  *n = 0;
  for (int shift = 0; *at < end && shift < 64; shift += 7) {
    const unsigned char c = *(*at)++;
    *n |= (uint64_t)(c & 127) << shift;
    if (c < 128) return 1;
  }
  return 0;
}

/* The next field of a message; 0 at its end or, with *at null, where it is broken. */
static int sentencepiece_field_of_(unsigned char **at, const unsigned char *end,
                                   sentencepiece_field_ *field) {
  uint64_t key, length = 0;
  if (*at >= end) return 0;
  memset(field, 0, sizeof *field);
  int fine = sentencepiece_number_(at, end, &key) && key >> 3 <= UINT32_MAX;
  field->number = (uint32_t)(key >> 3);
  field->kind = (int)(key & 7);
  if (fine && field->kind == 0) fine = sentencepiece_number_(at, end, &field->value);
  if (fine && field->kind == 2) fine = sentencepiece_number_(at, end, &length);
  if (field->kind == 1) length = 8;
  if (field->kind == 5) length = 4;
  fine = fine && (field->kind < 3 || field->kind == 5) && length <= (uint64_t)(end - *at);
  if (!fine) return *at = NULL, 0;
  field->bytes = *at;
  field->length = (size_t)length;
  *at += length;
  return 1;
}

static uint32_t sentencepiece_little_(const unsigned char *bytes) {
  return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static uint32_t sentencepiece_hash_(uint32_t hash, char c) {
  return (hash ^ (unsigned char)c) * 16777619u; /* FNV-1a */
}

static int32_t *sentencepiece_slot_(const sentencepiece *sp, uint32_t hash, const char *piece,
                                    size_t length) {
  uint32_t at = (hash ^ hash >> 15) & sp->mask_;
  for (; sp->slots_[at] >= 0; at = (at + 1) & sp->mask_) {
    const char *there = sp->pieces[sp->slots_[at]];
    if (!strncmp(there, piece, length) && !there[length]) break;
  }
  return &sp->slots_[at];
}

static const char *sentencepiece_piece_(sentencepiece *sp, sentencepiece_field_ message) {
  unsigned char *at = message.bytes, *text = NULL;
  const unsigned char *end = at + message.length;
  size_t length = 0;
  int kind = SENTENCEPIECE_NORMAL;
  float score = 0;
  sentencepiece_field_ field;
  while (sentencepiece_field_of_(&at, end, &field)) {
    if (field.number == 1 && field.kind == 2) text = field.bytes, length = field.length;
    if (field.number == 2 && field.kind == 5) {
      const uint32_t bits = sentencepiece_little_(field.bytes);
      memcpy(&score, &bits, sizeof score);
    }
    if (field.number == 3 && field.kind == 0) kind = field.value < 7 ? (int)field.value : 0;
  }
  if (!at || !text || !length || length > SENTENCEPIECE_MAX_PIECE || memchr(text, 0, length) ||
      kind < 1 || !isfinite(score))
    return sentencepiece_fail_(sp, "one of its pieces is broken");
  if (kind == SENTENCEPIECE_BYTE)
    return sentencepiece_fail_(sp, "pieces that stand for bytes are not read here");
  memmove(text - 1, text, length); /* over its length, so that there is room for a 0 */
  text[length - 1] = 0;
  if (utf8_wrong((char *)text - 1) >= 0) return sentencepiece_fail_(sp, "a piece is not UTF-8");
  if (kind == SENTENCEPIECE_UNKNOWN) sp->unknown = sp->count;
  sp->pieces[sp->count] = (char *)text - 1;
  sp->scores_[sp->count] = score;
  sp->kinds_[sp->count++] = (sentencepiece_kind)kind;
  return NULL;
}

static const char *sentencepiece_normaliser_(sentencepiece *sp, sentencepiece_field_ message) {
  unsigned char *at = message.bytes;
  const unsigned char *end = at + message.length;
  sentencepiece_field_ field;
  while (sentencepiece_field_of_(&at, end, &field)) {
    if (field.number == 2 && field.kind == 2 && field.length) {
      const uint32_t size = field.length > 4 ? sentencepiece_little_(field.bytes) : 0;
      if (!size || size % 4 || size > field.length - 5 || field.bytes[field.length - 1])
        return sentencepiece_fail_(sp, "its map of characters is broken");
      sp->trie_ = field.bytes + 4;
      sp->units_ = size / 4;
      sp->forms_ = (const char *)sp->trie_ + size;
      sp->forms_size_ = field.length - 4 - size;
      if (utf8_wrong(sp->forms_) >= 0) return sentencepiece_fail_(sp, "its map is not UTF-8");
    }
    if (field.number == 3 && field.kind == 0) sp->dummy_prefix = field.value != 0;
    if (field.number == 4 && field.kind == 0) sp->squeeze = field.value != 0;
    if (field.number == 5 && field.kind == 0) sp->escape = field.value != 0;
  }
  return at ? NULL : sentencepiece_fail_(sp, "its normaliser is broken");
}

/* The options of its training, of which two matter: the kind of model, and where the space stands. */
static const char *sentencepiece_trainer_(sentencepiece *sp, sentencepiece_field_ message) {
  unsigned char *at = message.bytes;
  const unsigned char *end = at + message.length;
  sentencepiece_field_ field;
  while (sentencepiece_field_of_(&at, end, &field)) {
    if (field.number == 3 && field.value != 1)
      return sentencepiece_fail_(sp, "it is no unigram model");
    if (field.number == 24 && field.value)
      return sentencepiece_fail_(sp, "spaces behind words are not read here");
  }
  return at ? NULL : sentencepiece_fail_(sp, "its trainer's part is broken");
}

static const char *sentencepiece_parse_(sentencepiece *sp, size_t size) {
  unsigned char *at = sp->file_;
  const unsigned char *end = at + size;
  const char *error = NULL;
  size_t pieces = 0;
  sentencepiece_field_ field;
  while (sentencepiece_field_of_(&at, end, &field)) pieces += field.number == 1 && field.kind == 2;
  if (!at || !pieces || pieces > INT32_MAX / 4)
    return sentencepiece_fail_(sp, "it is no model of SentencePiece");
  for (sp->mask_ = 16; sp->mask_ < 2 * pieces + 2;) sp->mask_ *= 2;
  sp->pieces = malloc(pieces * sizeof *sp->pieces);
  sp->scores_ = malloc(pieces * sizeof *sp->scores_);
  sp->kinds_ = malloc(pieces * sizeof *sp->kinds_);
  sp->slots_ = malloc(sp->mask_ * sizeof *sp->slots_);
  if (!sp->pieces || !sp->scores_ || !sp->kinds_ || !sp->slots_) return "out of memory";
  memset(sp->slots_, 0xFF, sp->mask_ * sizeof *sp->slots_);
  sp->mask_--;
  for (at = sp->file_; !error && sentencepiece_field_of_(&at, end, &field);) {
    if (field.kind != 2) continue;
    if (field.number == 1) error = sentencepiece_piece_(sp, field);
    if (field.number == 2) error = sentencepiece_trainer_(sp, field);
    if (field.number == 3) error = sentencepiece_normaliser_(sp, field);
  }
  if (error) return error;
  if (sp->unknown < 0) return sentencepiece_fail_(sp, "it has no piece for what is unknown");
  float least = HUGE_VALF, most = -HUGE_VALF;
  for (int32_t i = 0; i < sp->count; i++) {
    if (sp->kinds_[i] != SENTENCEPIECE_NORMAL) continue;
    least = sp->scores_[i] < least ? sp->scores_[i] : least;
    most = sp->scores_[i] > most ? sp->scores_[i] : most;
  }
  if (least > most) least = most = 0;
  for (int32_t i = 0; i < sp->count; i++) {
    const int given = sp->kinds_[i] == SENTENCEPIECE_GIVEN;
    if (i == sp->unknown) sp->scores_[i] = least - 10;
    if (!given && sp->kinds_[i] != SENTENCEPIECE_NORMAL) continue;
    const size_t length = strlen(sp->pieces[i]);
    uint32_t hash = 2166136261u;
    for (size_t c = 0; c < length; c++) hash = sentencepiece_hash_(hash, sp->pieces[i][c]);
    *sentencepiece_slot_(sp, hash, sp->pieces[i], length) = i;
    if (length > sp->longest_) sp->longest_ = length;
    if (given) sp->scores_[i] = (float)length * most - 0.1f; /* before all others */
    sp->given_ |= given;
  }
  return NULL;
}

static void sentencepiece_free(sentencepiece *sp) {
  free(sp->pieces);
  free(sp->file_);
  free(sp->scores_);
  free(sp->kinds_);
  free(sp->slots_);
  sp->pieces = NULL;
  sp->file_ = NULL;
  sp->scores_ = NULL;
  sp->kinds_ = NULL;
  sp->slots_ = NULL;
}

/* Reads a model. After an error there is nothing to release. */
static const char *sentencepiece_read(sentencepiece *sp, const char *path) {
  memset(sp, 0, sizeof *sp);
  sp->unknown = -1;
  sp->dummy_prefix = sp->squeeze = sp->escape = 1;
  errno = 0;
  FILE *file = fopen(path, "rb");
  if (!file) return strerror(errno);
  size_t size = 0, room = 0;
  const char *error = NULL;
  for (size_t got = 1; got && !error; size += got) {
    if (size == room) {
      room = room ? 2 * room : 1 << 18;
      unsigned char *larger = room <= SENTENCEPIECE_MAX_FILE ? realloc(sp->file_, room) : NULL;
      if (!larger)
        error = room > SENTENCEPIECE_MAX_FILE ? "the file is too large" : "out of memory";
      if (!larger) break;
      sp->file_ = larger;
    }
    got = fread(sp->file_ + size, 1, room - size, file);
  }
  if (!error && ferror(file)) error = errno ? strerror(errno) : "the file cannot be read";
  fclose(file);
  if (!error) error = sentencepiece_parse_(sp, size);
  if (error) sentencepiece_free(sp);
  return error;
}

/* The number of a piece by its name, whatever it is; -1 if there is none. */
static inline int32_t sentencepiece_find(const sentencepiece *sp, const char *piece) {
  for (int32_t i = 0; i < sp->count; i++)
    if (!strcmp(sp->pieces[i], piece)) return i;
  return -1;
}

/* ---- text to tokens */

/* The longest given piece that s begins with: its bytes, 0 if there is none. */
static size_t sentencepiece_given_(const sentencepiece *sp, const char *s) {
  size_t best = 0;
  uint32_t hash = 2166136261u;
  for (size_t n = 1; sp->given_ && n <= sp->longest_ && s[n - 1]; n++) {
    hash = sentencepiece_hash_(hash, s[n - 1]);
    const int32_t id = *sentencepiece_slot_(sp, hash, s, n);
    if (id >= 0 && sp->kinds_[id] == SENTENCEPIECE_GIVEN) best = n;
  }
  return best;
}

/* What s begins with, normalised: the bytes of s, and *form, *length. The trie is an array of units: a unit
 * leads to the base of its children, the child of byte c stands at base ^ c, a value at the base itself. */
static size_t sentencepiece_prefix_(const sentencepiece *sp, const char *s, const char **form,
                                    size_t *length) {
  size_t best = sentencepiece_given_(sp, s);
  const unsigned char *behind = (const unsigned char *)s;
  *form = s;
  *length = best;
  if (best) return best;
  uint32_t at = 0;
  for (size_t n = 0; sp->units_; n++) {
    const uint32_t unit = at < sp->units_ ? sentencepiece_little_(sp->trie_ + 4 * (size_t)at) : 0;
    if (at >= sp->units_ || (n && (unit & 0x800000FFu) != (unsigned char)s[n - 1])) break;
    at ^= unit >> 10 << ((unit & 0x200u) >> 6);
    if (n && unit >> 8 & 1 && at < sp->units_) {
      const uint32_t value = sentencepiece_little_(sp->trie_ + 4 * (size_t)at) & 0x7FFFFFFFu;
      if (value < sp->forms_size_) {
        best = n;
        *form = sp->forms_ + value;
      }
    }
    if (!s[n]) break;
    at ^= (unsigned char)s[n];
  }
  if (best) return *length = strlen(*form), best;
  utf8_next(&behind);
  return *length = (size_t)((const char *)behind - s);
}

typedef struct sentencepiece_text_ {
  char *bytes;
  size_t length, room;
} sentencepiece_text_;

static int sentencepiece_add_(sentencepiece_text_ *text, const char *bytes, size_t n) {
  if (text->length + n + 1 > text->room) {
    const size_t room = 2 * (text->length + n) + 64;
    char *larger = realloc(text->bytes, room);
    if (!larger) return 0;
    text->bytes = larger;
    text->room = room;
  }
  memcpy(text->bytes + text->length, bytes, n);
  text->length += n;
  text->bytes[text->length] = 0;
  return 1;
}

static int sentencepiece_normalise_(const sentencepiece *sp, const char *s,
                                    sentencepiece_text_ *text) {
  const char *form, *space = sp->escape ? "\xE2\x96\x81" : " ";
  size_t n, length;
  int fine = sentencepiece_add_(text, "", 0), spaced = sp->squeeze;
  while (sp->squeeze && *s) {
    n = sentencepiece_prefix_(sp, s, &form, &length);
    if (length != 1 || *form != ' ') break;
    s += n;
  }
  if (*s && sp->dummy_prefix) fine = fine && sentencepiece_add_(text, space, strlen(space));
  for (; *s && fine; s += n) {
    n = sentencepiece_prefix_(sp, s, &form, &length);
    for (; spaced && length && *form == ' '; length--) form++;
    if (length) spaced = sp->squeeze && form[length - 1] == ' ';
    for (size_t i = 0; i < length && fine; i++)
      fine = form[i] == ' ' ? sentencepiece_add_(text, space, strlen(space))
                            : sentencepiece_add_(text, form + i, 1);
  }
  const size_t wide = strlen(space);
  while (sp->squeeze && text->length >= wide &&
         !memcmp(text->bytes + text->length - wide, space, wide))
    text->length -= wide;
  return fine;
}

/* The best way to a place of the text: by which piece, from where. */
typedef struct sentencepiece_node_ {
  float score;
  int32_t id; /* -1: no way yet */
  size_t from;
} sentencepiece_node_;

/* The tokens of a text that ends with 0: memory that free releases, and their number. */
static const char *sentencepiece_encode(sentencepiece *sp, const char *s, int32_t **ids,
                                        int64_t *count) {
  const long wrong = utf8_wrong(s);
  *ids = NULL;
  *count = 0;
  if (wrong >= 0) {
    snprintf(sp->error, sizeof sp->error, "the text is not UTF-8 at byte %ld", wrong);
    return sp->error;
  }
  sentencepiece_text_ text = {NULL, 0, 0};
  if (!sentencepiece_normalise_(sp, s, &text)) return free(text.bytes), "out of memory";
  const size_t n = text.length;
  sentencepiece_node_ *best = malloc((n + 1) * sizeof *best);
  *ids = malloc((n + 1) * sizeof **ids);
  if (!best || !*ids) return free(text.bytes), free(best), "out of memory";
  for (size_t i = 0; i <= n; i++) best[i] = (sentencepiece_node_){0, -1, 0};
  for (size_t i = 0; i < n;) {
    const unsigned char *behind = (const unsigned char *)text.bytes + i;
    utf8_next(&behind);
    const size_t next = (size_t)((const char *)behind - text.bytes);
    uint32_t hash = 2166136261u;
    int alone = 0; /* a piece covers this character */
    for (size_t end = i + 1; end <= n && end - i <= sp->longest_ + 4; end++) {
      hash = sentencepiece_hash_(hash, text.bytes[end - 1]);
      int32_t id = *sentencepiece_slot_(sp, hash, text.bytes + i, end - i);
      alone |= id >= 0 && end == next;
      if (id < 0 && end == next && !alone) id = sp->unknown;
      const float score = id < 0 ? 0 : best[i].score + sp->scores_[id];
      if (id >= 0 && (best[end].id < 0 || score > best[end].score))
        best[end] = (sentencepiece_node_){score, id, i};
    }
    i = next;
  }
  for (size_t i = n; i; i = best[i].from) {
    const int32_t id = best[i].id;
    if (id != sp->unknown || !*count || (*ids)[*count - 1] != id) (*ids)[(*count)++] = id;
  }
  for (int64_t i = 0; i < *count / 2; i++) {
    const int32_t other = (*ids)[i];
    (*ids)[i] = (*ids)[*count - 1 - i];
    (*ids)[*count - 1 - i] = other;
  }
  free(text.bytes);
  free(best);
  return NULL;
}

#endif
