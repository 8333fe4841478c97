/* wordpiece.h owns text for models of the BERT family: UTF-8 to the numbers of tokens.
 *
 *   clean     controls, private use and U+FFFD are dropped; every white space is a space
 *   fold      unless the model is cased: lower case, without accents; a Hangul syllable becomes its two or
 *             three letters
 *   split     at white space; each punctuation mark and each CJK ideograph is a word of its own
 *   match     each word from its start on by the longest entry of the vocabulary, ## before all but
 *             the first piece; [UNK] for the whole word if a piece is not found, or beyond 100 characters
 *
 * [CLS] and [SEP] are put around them by whoever knows what a model wants.
 *
 * Characters are those of unicode.h. Left as they are, though canonical decomposition would change
 * them: compatibility ideographs, and 43 vowel signs and notes that decompose into several characters.
 * Unassigned characters are kept. Names like [MASK] in a text are text. Functions return null, or a
 * sentence that says what went wrong and lives as long as the struct.
 * Source: Devlin et al. 2019, arXiv 1810.04805; pieces: Wu et al. 2016, arXiv 1609.08144. */
#ifndef EXAMPLES_WORDPIECE_H
#define EXAMPLES_WORDPIECE_H

#include "utf8.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  WORDPIECE_LETTERS = 100,     /* of a word; a longer one is [UNK] */
  WORDPIECE_MAX_FILE = 1 << 27 /* bytes of a vocabulary */
};

typedef struct wordpiece {
  const char **pieces; /* by number, which is the line of the file */
  int32_t count;
  int32_t cls, sep, unk, pad; /* pad is -1 without [PAD] */
  int cased;                  /* 1: letters keep their case and accents */
  char *text_;                /* the file */
  int32_t *slots_;            /* hash table of numbers; -1 = free */
  uint32_t mask_;
  size_t longest_; /* bytes of a piece */
  char error[128];
} wordpiece;

/* ---- characters */

static int wordpiece_space_(uint32_t c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

static int wordpiece_dropped_(uint32_t c) {
  return c < ' ' || c == 127 || c == 0xFFFD || (c > 127 && UNICODE_IN(unicode_controls, c));
}

static int wordpiece_punctuation_(uint32_t c) {
  if (c > 127) return UNICODE_IN(unicode_punctuation, c);
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126); /* symbols too: $ + < = > ^ ` | ~ */
}

static int wordpiece_ideograph_(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* What a table of runs makes of c; 0 where it says nothing. */
static int wordpiece_run_(uint32_t *out, const unicode_run *runs, size_t count, uint32_t c) {
  size_t low = 0, high = count - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (runs[middle].last < c)
      low = middle + 1;
    else
      high = middle;
  }
  const unicode_run *run = &runs[low];
  if (c < run->first || c > run->last || (c - run->first) % run->step) return 0;
  *out = run->to + (run->moves ? c - run->first : 0);
  return 1;
}

/* c without accents in lower case: 0 to 3 characters, their number returned. */
static int wordpiece_fold_(uint32_t out[3], uint32_t c) {
  *out = c;
  if (c < 128) {
    if (c >= 'A' && c <= 'Z') *out = c + 32;
    return 1;
  }
  if (c >= 0xAC00 && c <= 0xD7A3) { /* (initial 21 + vowel) 28 + final */
    const uint32_t syllable = c - 0xAC00, last = syllable % 28;
    out[0] = 0x1100 + syllable / 588;
    out[1] = 0x1161 + syllable / 28 % 21;
    out[2] = 0x11A7 + last;
    return last ? 3 : 2;
  }
  if (UNICODE_IN(unicode_marks, c)) return 0;
  wordpiece_run_(out, unicode_folds, sizeof unicode_folds / sizeof *unicode_folds, c);
  return 1;
}

/* ---- the vocabulary */

static uint32_t wordpiece_hash_(const char *piece, size_t length) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  while (length--) hash = (hash ^ (unsigned char)*piece++) * 16777619u;
  return hash ^ hash >> 15;
}

/* The place of a piece in the table: where it is, or where it would go. */
static int32_t *wordpiece_slot_(const wordpiece *wp, const char *piece, size_t length) {
  uint32_t at = wordpiece_hash_(piece, length) & wp->mask_;
  for (; wp->slots_[at] >= 0; at = (at + 1) & wp->mask_) {
    const char *there = wp->pieces[wp->slots_[at]];
    if (!strncmp(there, piece, length) && !there[length]) break;
  }
  return &wp->slots_[at];
}

/* The number of a piece, -1 if the vocabulary lacks it. */
static int32_t wordpiece_find(const wordpiece *wp, const char *piece) {
  return *wordpiece_slot_(wp, piece, strlen(piece));
}

/* Pieces, one a line, that the struct owns from here on; size bytes and room for one more. */
static const char *wordpiece_parse_(wordpiece *wp, size_t size) {
  wp->text_[size] = 0;
  if (strlen(wp->text_) != size) return "the file has a zero byte: it is no list of words";

  size_t lines = 0;
  for (size_t i = 0; i < size; i++) lines += wp->text_[i] == '\n';
  wp->mask_ = 1;
  while (wp->mask_ < 2 * lines + 4) wp->mask_ *= 2;
  wp->pieces = malloc((lines + 1) * sizeof *wp->pieces);
  wp->slots_ = malloc(wp->mask_ * sizeof *wp->slots_);
  if (!wp->pieces || !wp->slots_) return "out of memory";
  for (uint32_t i = 0; i < wp->mask_; i++) wp->slots_[i] = -1;
  wp->mask_--;
  for (char *line = wp->text_, *end; *line; line = end) {
    const unsigned char *at = (const unsigned char *)line;
    size_t length = strcspn(line, "\n");
    end = line + length + (line[length] == '\n');
    if (length && line[length - 1] == '\r') length--;
    line[length] = 0;
    while (*at)
      if (utf8_next(&at) == UINT32_MAX) {
        snprintf(wp->error, sizeof wp->error, "line %ld is not UTF-8", (long)wp->count + 1);
        return wp->error;
      }
    if (length > wp->longest_) wp->longest_ = length;
    wp->pieces[wp->count] = line;
    *wordpiece_slot_(wp, line, length) = wp->count; /* of two equal lines the later counts */
    wp->count++;
  }
  const char *names[] = {"[CLS]", "[SEP]", "[UNK]"};
  int32_t *numbers[] = {&wp->cls, &wp->sep, &wp->unk};
  for (int i = 0; i < 3; i++)
    if ((*numbers[i] = wordpiece_find(wp, names[i])) < 0) {
      snprintf(wp->error, sizeof wp->error, "the vocabulary has no %s", names[i]);
      return wp->error;
    }
  wp->pad = wordpiece_find(wp, "[PAD]");
  return NULL;
}

static void wordpiece_free(wordpiece *wp) {
  free(wp->pieces);
  free(wp->text_);
  free(wp->slots_);
  wp->pieces = NULL;
  wp->text_ = NULL;
  wp->slots_ = NULL;
}

static const char *wordpiece_load_(wordpiece *wp, FILE *file) {
  size_t size = 0, room = 0;
  errno = 0;
  for (;;) {
    if (size == room) {
      if (room >= WORDPIECE_MAX_FILE) return "the file is too large for a vocabulary";
      room = room ? 2 * room : 1 << 18;
      char *more = realloc(wp->text_, room + 1);
      if (!more) return "out of memory";
      wp->text_ = more;
    }
    const size_t got = fread(wp->text_ + size, 1, room - size, file);
    size += got;
    if (!got) break;
  }
  if (ferror(file)) return errno ? strerror(errno) : "the file cannot be read";
  return wordpiece_parse_(wp, size);
}

/* Takes a vocabulary in memory of malloc's: one piece a line, size bytes and room for one more. After an error
 * there is nothing to release. */
static inline const char *wordpiece_of(wordpiece *wp, char *lines, size_t size) {
  memset(wp, 0, sizeof *wp);
  wp->text_ = lines;
  const char *error = wordpiece_parse_(wp, size);
  if (error) wordpiece_free(wp);
  return error;
}

/* Reads a vocabulary: one piece a line. After an error there is nothing to release. */
static const char *wordpiece_read(wordpiece *wp, const char *path) {
  memset(wp, 0, sizeof *wp);
  FILE *file = fopen(path, "rb");
  if (!file) return strerror(errno);
  const char *error = wordpiece_load_(wp, file);
  fclose(file);
  if (error) wordpiece_free(wp);
  return error;
}

/* ---- text to tokens */

typedef struct wordpiece_word_ {
  char bytes[2 + 4 * WORDPIECE_LETTERS]; /* room for ##, then the word */
  size_t length;                         /* without ## */
  int letters;                           /* may be more than there is room for */
} wordpiece_word_;

typedef struct wordpiece_tokens_ {
  int32_t *ids;
  int64_t room, count; /* count may be larger */
} wordpiece_tokens_;

static void wordpiece_push_(wordpiece_tokens_ *out, int32_t id) {
  if (out->count < out->room) out->ids[out->count] = id;
  out->count++;
}

/* Appends the tokens of a word and empties it. */
static void wordpiece_match_(const wordpiece *wp, wordpiece_word_ *word, wordpiece_tokens_ *out) {
  char *first = word->bytes + 2;
  const size_t length = word->length;
  const int64_t before = out->count;
  int known = word->letters <= WORDPIECE_LETTERS;
  word->length = 0;
  word->letters = 0;
  for (size_t start = 0, end; start < length && known; start = end) {
    /* ## goes where the piece before it lay, whose letters nobody needs any more */
    const size_t marks = start ? 2 : 0;
    const char *piece = memcpy(first + start - marks, "##", marks);
    int32_t id = -1;
    end = length - start + marks > wp->longest_ ? start + wp->longest_ - marks : length;
    for (; end > start; end--) {
      if (end < length && ((unsigned char)first[end] & 0xC0) == 0x80)
        continue; /* within a letter */
      id = *wordpiece_slot_(wp, piece, end - start + marks);
      if (id >= 0) break;
    }
    if (id >= 0)
      wordpiece_push_(out, id);
    else
      known = 0;
  }
  if (!known) {
    out->count = before;
    wordpiece_push_(out, wp->unk);
  }
}

/* The tokens of a text that ends with 0: at most `room` of them to ids, *count may be larger;
 * strlen(text) + 1 is always enough. */
static inline const char *wordpiece_encode(wordpiece *wp, const char *text, int32_t *ids,
                                           int64_t room, int64_t *count) {
  const unsigned char *at = (const unsigned char *)text;
  const long wrong = utf8_wrong(text);
  if (wrong >= 0) {
    snprintf(wp->error, sizeof wp->error, "the text is not UTF-8 at byte %ld", wrong);
    return wp->error;
  }

  wordpiece_word_ word;
  wordpiece_tokens_ out = {ids, room, 0};
  word.length = 0;
  word.letters = 0;
  for (uint32_t c; (c = utf8_next(&at)) != 0;) {
    uint32_t letters[3];
    if (wordpiece_space_(c)) {
      wordpiece_match_(wp, &word, &out);
      continue;
    }
    if (wordpiece_dropped_(c)) continue;
    const int ideograph = wordpiece_ideograph_(c),
              folded = wp->cased ? 1 : wordpiece_fold_(letters, c);
    if (wp->cased) letters[0] = c;
    for (int i = 0; i < folded; i++) {
      const int alone = ideograph || wordpiece_punctuation_(letters[i]);
      if (alone) wordpiece_match_(wp, &word, &out);
      if (++word.letters <= WORDPIECE_LETTERS)
        word.length += utf8_put(word.bytes + 2 + word.length, letters[i]);
      if (alone) wordpiece_match_(wp, &word, &out);
    }
  }
  wordpiece_match_(wp, &word, &out);
  *count = out.count;
  return NULL;
}

#endif
