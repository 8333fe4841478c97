/* corpus.h owns what a model learns from: texts as tokens, a part of them held out, and the batches of a step. Tokens
 * are bytes, or what a tokenizer.json of byte pairs makes of the texts. The last of each 16 pieces, of 2048
 * tokens, or of a 16th of short texts, is held out: the model is judged by it and never learns from it. */
#ifndef EXAMPLES_CORPUS_H
#define EXAMPLES_CORPUS_H

#include "bpe.h"
#include "work.h"

enum { CORPUS_PIECE = 2048, CORPUS_EVERY = 16, CORPUS_BYTES = 256, CORPUS_MOST = 1 << 30 };
typedef enum corpus_part { CORPUS_LEARNED, CORPUS_HELD_OUT } corpus_part;

typedef struct corpus {
  int32_t *tokens[2]; /* of each part */
  int64_t count[2];
  bpe pairs; /* the tokeniser, if there is one */
  int has_pairs;
} corpus;

static void corpus_free(corpus *c) {
  free(c->tokens[0]);
  free(c->tokens[1]);
  if (c->has_pairs) bpe_free(&c->pairs);
  memset(c, 0, sizeof *c);
}

/* A file with a 0 behind it; free releases it. */
static char *corpus_file_(work *w, const char *path, int64_t *length) {
  FILE *file = fopen(path, "rb");
  char *text = NULL;
  size_t room = 0, n = 0;
  if (!file) return work_fail(w, "%s: %s", path, strerror(errno)), NULL;
  do {
    room = room ? 2 * room : 1 << 16;
    char *larger = realloc(text, room + 1);
    if (!larger) break;
    text = larger;
    n += fread(text + n, 1, room - n, file);
  } while (n == room && room < CORPUS_MOST);
  const int bad = ferror(file) || n == room;
  fclose(file);
  if (text) text[n] = 0;
  *length = (int64_t)n;
  if (!bad && text) return text;
  free(text);
  return work_fail(w, "%s: it cannot be read", path), NULL;
}

/* Tokens of one text join `all`; 0 after a sentence. */
static int corpus_add_(work *w, corpus *c, const char *path, int32_t **all, int64_t *count) {
  int64_t length, n;
  int32_t *ids = NULL;
  char *text = corpus_file_(w, path, &length);
  if (!text) return 0;
  n = length;
  if (c->has_pairs) {
    const char *error = memchr(text, 0, (size_t)length) ? "it has a zero byte"
                                                        : bpe_encode(&c->pairs, text, &ids, &n);
    if (error) {
      free(text);
      return work_fail(w, "%s: %s", path, error);
    }
  }
  int32_t *larger = realloc(*all, (size_t)(*count + n + 1) * sizeof **all);
  if (larger) *all = larger;
  for (int64_t i = 0; i < n && larger; i++)
    larger[*count + i] = ids ? ids[i] : (unsigned char)text[i];
  *count += n;
  free(ids);
  free(text);
  return larger || work_fail(w, "out of memory");
}

/* Reads texts, for a model of so many tokens whose folder may have a tokenizer.json: without, tokens are bytes. Each part
 * must have more than `length` tokens. */
static int corpus_read(work *w, corpus *c, char *const *paths, int64_t paths_count,
                       const char *folder, int64_t vocabulary, int64_t length) {
  char path[4096];
  int32_t *all = NULL;
  int64_t count = 0;
  memset(c, 0, sizeof *c);
  snprintf(path, sizeof path, "%s/tokenizer.json", folder ? folder : "");
  FILE *there = folder ? fopen(path, "rb") : NULL;
  if (there) {
    json_document d;
    fclose(there);
    const char *error = json_read(&d, path);
    if (error || (error = bpe_of(&c->pairs, &d)) != NULL)
      return work_fail(w, "tokenizer.json: %s", error);
    c->has_pairs = 1;
  } else if (vocabulary < CORPUS_BYTES) {
    return work_fail(w, "the model has %" PRId64 " tokens, which are no bytes", vocabulary);
  }
  for (int64_t i = 0; i < paths_count; i++)
    if (!corpus_add_(w, c, paths[i], &all, &count)) return free(all), 0;
  for (int i = 0; i < 2; i++) c->tokens[i] = malloc((size_t)(count + 1) * sizeof **c->tokens);
  int fine = c->tokens[0] && c->tokens[1] ? 1 : work_fail(w, "out of memory");
  const int64_t piece =
      count / CORPUS_EVERY < CORPUS_PIECE ? count / CORPUS_EVERY + 1 : CORPUS_PIECE;
  for (int64_t i = 0; i < count && fine; i++) {
    const int part = i / piece % CORPUS_EVERY == CORPUS_EVERY - 1;
    c->tokens[part][c->count[part]++] = all[i];
    if (all[i] >= vocabulary) fine = work_fail(w, "the model does not know token %" PRId32, all[i]);
  }
  free(all);
  for (int i = 0; i < 2 && fine; i++)
    if (c->count[i] <= length)
      fine = work_fail(w, "the texts have %" PRId64 " tokens, too few for sequences of %" PRId64,
                       count, length);
  return fine;
}

/* Sequences of `length` tokens, and behind each of these its target, the next one. They begin anywhere, as seed and step
 * say; those that are held out evenly from the first to the last, step of `steps`. */
static void corpus_batch(const corpus *c, corpus_part part, uint64_t seed, int64_t step,
                         int64_t steps, int64_t sequences, int64_t length, int64_t *tokens,
                         int32_t *targets) {
  const int64_t places = c->count[part] - length;
  for (int64_t b = 0; b < sequences; b++) {
    const int64_t i = step * sequences + b;
    const int64_t at =
        part == CORPUS_LEARNED
            ? attn_random_below(seed, 0, (uint64_t)i, places)
            : (int64_t)((double)(places - 1) * (double)i / (double)(steps * sequences));
    const int32_t *from = c->tokens[part] + at;
    for (int64_t j = 0; j < length; j++) {
      *tokens++ = from[j];
      *targets++ = from[j + 1];
    }
  }
}

#endif
