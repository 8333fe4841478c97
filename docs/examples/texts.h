/* texts.h owns what an encoder reads: the tokens of a text or of a pair, with the marks that its family
 * puts around them, [CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut to the most that the model takes.
 *
 * Functions return null or a sentence that lives as long as the struct. */
#ifndef EXAMPLES_TEXTS_H
#define EXAMPLES_TEXTS_H

#include "bpe.h"
#include "encoder_family.h"
#include "sentencepiece.h"
#include "wordpiece.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum texts_kind { TEXTS_WORDS, TEXTS_BYTES, TEXTS_PIECES } texts_kind;

typedef struct texts {
  const encoder_family *family;
  int64_t max;        /* tokens of a text */
  int64_t vocabulary; /* of the model */
  texts_kind kind;
  wordpiece words;
  bpe bytes;
  sentencepiece pieces;
  int folds; /* SentencePiece of lower-case letters without accents, as ALBERT has it */
  int moved; /* XLM-R: numbers of pieces are 1 more, and the first four others */
  int32_t cls, sep;
  char error[200];
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

static int texts_ends_(const char *path, const char *tail) {
  const size_t n = strlen(path), m = strlen(tail);
  return n >= m && !strcmp(path + n - m, tail);
}

/* ---- vocabularies */

/* A switch; absent or null: as `otherwise`. */
static int texts_switch_(const json *object, const char *key, int otherwise) {
  const json *value = json_get(object, key);
  return value && value->kind == JSON_BOOL ? value->truth : otherwise;
}

/* BERT's options of WordPiece, under the names of one file: whether letters keep their case, and nothing else. */
static const char *texts_options_(texts *t, const json *object, const char *lower,
                                  const char *ideographs) {
  const int small = texts_switch_(object, lower, 1);
  t->words.cased = !small;
  if (texts_switch_(object, "strip_accents", small) == small &&
      texts_switch_(object, ideographs, 1) && texts_switch_(object, "clean_text", 1))
    return NULL;
  return texts_fail_(t, "strip_accents, clean_text or ideographs as it has them are not done here",
                     0);
}

/* What a tokenizer.json of WordPiece must say, beside its pieces. */
static const char *texts_plain_(texts *t, const json *root) {
  const json *model = json_get(root, "model"), *unknown = json_get(model, "unk_token");
  const json *prefix = json_get(model, "continuing_subword_prefix");
  const json *most = json_get(model, "max_input_chars_per_word");
  if (!bpe_is_(json_get(json_get(root, "normalizer"), "type"), "BertNormalizer") ||
      !bpe_is_(json_get(json_get(root, "pre_tokenizer"), "type"), "BertPreTokenizer"))
    return texts_fail_(t, "its normalizer or pre_tokenizer is not BERT's", 0);
  if ((unknown && !bpe_is_(unknown, "[UNK]")) || (prefix && !bpe_is_(prefix, "##")) ||
      (most && most->integer != WORDPIECE_LETTERS))
    return texts_fail_(t, "its model has other marks than [UNK] and ##, or words longer than %ld",
                       WORDPIECE_LETTERS);
  return NULL;
}

/* The pieces of a tokenizer.json of WordPiece as lines, which are numbers 0, 1, ... */
static const char *texts_lines_(texts *t, const json *root) {
  const json *vocab = json_get(json_get(root, "model"), "vocab");
  size_t size = 0, at = 0, n = vocab ? vocab->count : 0;
  const json **by_number = calloc(n + 1, sizeof *by_number);
  int fine = by_number && vocab && vocab->kind == JSON_OBJECT;
  for (const json *v = fine ? vocab->first : NULL; v && fine; v = v->next) {
    fine = v->whole && v->integer >= 0 && v->integer < (int64_t)n && !by_number[v->integer] &&
           !strchr(v->name, '\n');
    if (fine) by_number[v->integer] = v;
    size += v->name_length + 1;
  }
  char *lines = fine ? malloc(size + 1) : NULL;
  for (size_t i = 0; lines && i < n; i++) {
    memcpy(lines + at, by_number[i]->name, by_number[i]->name_length);
    at += by_number[i]->name_length;
    lines[at++] = '\n';
  }
  free(by_number);
  if (!lines) return texts_fail_(t, "model.vocab does not number its pieces from %ld on", 0);
  const char *error = wordpiece_of(&t->words, lines, size);
  if (!error) error = texts_plain_(t, root);
  return error
             ? error
             : texts_options_(t, json_get(root, "normalizer"), "lowercase", "handle_chinese_chars");
}

static const char *texts_json_(texts *t, const char *path) {
  json_document file;
  const char *error = json_read(&file, path);
  if (error) return snprintf(t->error, sizeof t->error, "%s", error), t->error;
  if (bpe_is_(json_get(json_get(file.root, "model"), "type"), "WordPiece")) {
    error = texts_lines_(t, file.root);
    json_free(&file);
    return error;
  }
  t->kind = TEXTS_BYTES;
  error = bpe_of(&t->bytes, &file);
  t->cls = t->bytes.cls;
  t->sep = t->bytes.sep;
  if (!error && (t->cls < 0 || t->sep < 0))
    error =
        texts_fail_(t, "its post_processor does not say what stands before and behind a text", 0);
  return error;
}

static const char *texts_pieces_(texts *t, const char *path) {
  const char *error = sentencepiece_read(&t->pieces, path);
  t->kind = TEXTS_PIECES;
  if (error) return error;
  t->moved = !strcmp(t->family->type, "xlm-roberta");
  t->folds = !strcmp(t->family->type, "albert");
  t->cls = t->moved ? 0 : sentencepiece_find(&t->pieces, "[CLS]");
  t->sep = t->moved ? 2 : sentencepiece_find(&t->pieces, "[SEP]");
  return t->cls < 0 || t->sep < 0 ? texts_fail_(t, "it has no pieces [CLS] and [SEP]", 0) : NULL;
}

static int64_t texts_count_(const texts *t) {
  return t->kind == TEXTS_WORDS   ? t->words.count
         : t->kind == TEXTS_BYTES ? t->bytes.count
                                  : t->pieces.count + t->moved;
}

/* What tokenizer_config.json beside a vocabulary says of letters, if it is there. */
static const char *texts_beside_(texts *t, const char *path) {
  static const char name[] = "tokenizer_config.json";
  const char *slash = strrchr(path, '/');
  const size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
  char *whole = malloc(folder + sizeof name);
  json_document file;
  const char *error = NULL;
  if (!whole) return "out of memory";
  memcpy(whole, path, folder);
  memcpy(whole + folder, name, sizeof name);
  if (!json_read(&file, whole)) {
    if (t->kind == TEXTS_WORDS)
      error = texts_options_(t, file.root, "do_lower_case", "tokenize_chinese_chars");
    else if (!strcmp(t->family->type, "albert"))
      t->folds = texts_switch_(file.root, "do_lower_case", 1);
    else if (texts_switch_(file.root, "do_lower_case", 0) ||
             texts_switch_(file.root, "split_by_punct", 0))
      error = texts_fail_(t, "do_lower_case and split_by_punct are not done here", 0);
    json_free(&file);
  }
  free(whole);
  return error;
}

/* Reads the vocabulary of a model: a tokenizer.json of byte pairs or WordPiece, a .model of SentencePiece, or
 * pieces of WordPiece, one a line. */
static const char *texts_read(texts *t, const char *path) {
  const char *error;
  if (texts_ends_(path, ".json")) {
    error = texts_json_(t, path);
  } else if (texts_ends_(path, ".model")) {
    error = texts_pieces_(t, path);
    if (!error) error = texts_beside_(t, path);
  } else {
    error = wordpiece_read(&t->words, path);
    if (!error) error = texts_beside_(t, path);
  }
  if (error) return error;
  if (t->kind == TEXTS_WORDS) {
    t->cls = t->words.cls;
    t->sep = t->words.sep;
  }
  if (texts_count_(t) <= t->vocabulary) return NULL;
  return texts_fail_(t, "it has %ld pieces, which is longer than the model's vocabulary",
                     (long)texts_count_(t));
}

static void texts_free(texts *t) {
  wordpiece_free(&t->words);
  bpe_free(&t->bytes);
  sentencepiece_free(&t->pieces);
}

/* The piece of a token, to be looked at. */
static const char *texts_piece(const texts *t, int32_t id) {
  static const char *const first[] = {"<s>", "<pad>", "</s>", "<unk>"};
  const char *piece = t->kind == TEXTS_WORDS   ? t->words.pieces[id]
                      : t->kind == TEXTS_BYTES ? t->bytes.pieces[id]
                      : t->moved && id < 4     ? first[id]
                                               : t->pieces.pieces[id - t->moved];
  return piece ? piece : "?";
}

/* ---- texts */

/* The characters that ALBERT makes of c, by compatibility decomposition without marks in lower case: in a list, or
 * in `room`; their number. */
static size_t texts_plain_of_(uint32_t room[3], const uint32_t **list, uint32_t c) {
  size_t low = 0, high = sizeof unicode_plain_many / sizeof *unicode_plain_many - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (unicode_plain_many[middle].whole < c)
      low = middle + 1;
    else
      high = middle;
  }
  const unicode_many *many = &unicode_plain_many[low];
  *list = room;
  if (many->whole == c) return *list = unicode_plain_list + many->first, many->count;
  if (wordpiece_run_(room, unicode_plain, sizeof unicode_plain / sizeof *unicode_plain, c))
    return 1;
  return (size_t)wordpiece_fold_(room, c);
}

/* What ALBERT makes of a text before it is normalised and cut: plain quotes, then character by character. One becomes
 * up to 18. */
static char *texts_fold_(const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  char *out = strlen(text) < SIZE_MAX / 128 ? malloc(72 * strlen(text) + 1) : NULL;
  size_t to = 0;
  for (uint32_t c; out && (c = utf8_next(&at)) != 0 && c != UINT32_MAX;) {
    uint32_t room[3];
    const uint32_t *letters;
    if ((c == '`' || c == '\'') && *at == c) {
      at++;
      c = '"';
    }
    const size_t n = texts_plain_of_(room, &letters, c);
    for (size_t i = 0; i < n; i++) to += utf8_put(out + to, letters[i]);
  }
  if (out) out[to] = 0;
  return out;
}

/* Tokens of one text, without marks. */
static const char *texts_raw_(texts *t, const char *text, int32_t **ids, int64_t *count) {
  if (t->kind == TEXTS_BYTES) return bpe_encode(&t->bytes, text, ids, count);
  if (t->kind == TEXTS_PIECES) {
    const long wrong = utf8_wrong(text);
    char *folded = t->folds && wrong < 0 ? texts_fold_(text) : NULL;
    if (t->folds && wrong < 0 && !folded) return "out of memory";
    const char *error = sentencepiece_encode(&t->pieces, folded ? folded : text, ids, count);
    free(folded);
    for (int64_t i = 0; i < *count && t->moved; i++)
      (*ids)[i] = (*ids)[i] == t->pieces.unknown ? 3 : (*ids)[i] + 1;
    return error;
  }
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
  const int64_t room = t->max - marks;
  const int longer = n[0] <= n[1];
  if (n[0] + n[1] > room) { /* as tokenizers cuts: half of the room, and what the shorter leaves */
    if (n[!longer] > room / 2) n[!longer] = room / 2;
    n[longer] = room - n[!longer];
  }
  out->ids = malloc((size_t)(n[0] + n[1] + marks) * sizeof *out->ids);
  if (!out->ids) error = "out of memory";
  if (!error) {
    out->ids[at++] = t->cls;
    for (int side = 0; side < 1 + (b != NULL); side++) {
      if (side) out->second = at;
      memcpy(out->ids + at, ids[side], (size_t)n[side] * sizeof **ids);
      at += n[side];
      for (int i = 0; i < (b && !side ? t->family->ends : 1); i++) out->ids[at++] = t->sep;
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
