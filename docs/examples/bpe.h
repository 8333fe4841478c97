/* bpe.h owns byte-level byte-pair encoding, as a tokenizer.json of HuggingFace describes it for RoBERTa,
 * ModernBERT, GPT-2 and their like: UTF-8 to the numbers of tokens.
 *
 *   added     names such as <mask>, and whatever else is listed as added, are tokens wherever they stand
 *   digits    each number is a word of its own, where it says so, as SmolLM does
 *   split     by the pattern of GPT-2: 's 't 're 've 'm 'll 'd, or a space at most and letters, or numbers, or
 *             other marks; white space before a word keeps its last space for that word
 *   merge     each byte is a token; of all neighbours those are joined that come first in the list of merges,
 *             until none are left
 *
 * What else a tokenizer.json may ask for is refused. Characters are those of unicode.h. Functions return
 * null, or a sentence that says what is wrong and lives as long as the struct.
 * Sources: Sennrich et al. 2016, arXiv 1508.07909; bytes and pattern: Radford et al. 2019, GPT-2. */
#ifndef EXAMPLES_BPE_H
#define EXAMPLES_BPE_H

#include "json.h"
#include "nfc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BPE_MAX_TOKENS = 1 << 24 };

typedef struct bpe_merge {
  int32_t left, right, joined, rank; /* joined < 0: no merge lies here */
} bpe_merge;

typedef struct bpe_added {
  const char *text;
  size_t length;
  int32_t id;
  int left, right; /* white space on that side belongs to it */
  int late;        /* looked for in what the others leave */
} bpe_added;

typedef struct bpe {
  const char **pieces; /* by number, bytes as GPT-2 writes them; null: no such token */
  int32_t count;
  int32_t byte[256]; /* the token of each byte */
  int32_t cls, sep;  /* what stands before and behind a text; -1: nothing */
  int space_first;   /* a text begins as if a space stood before it */
  int digits;        /* each number is a word */
  int compose;       /* text is put into normal form C */
  int whole_first;   /* a word that is a token is not cut */
  bpe_added *added;
  size_t added_count;
  bpe_merge *merges_; /* hash table */
  uint32_t merges_mask_;
  int32_t *slots_; /* hash table of numbers; -1 = free */
  uint32_t mask_;
  json_document file_; /* pieces point into it */
  char error[200];
} bpe;

static const char *bpe_fail_(bpe *b, const char *format, const char *word) {
  snprintf(b->error, sizeof b->error, format, word);
  return b->error;
}

/* ---- tables */

static int32_t *bpe_slot_(const bpe *b, const char *piece, size_t length) {
  uint32_t at = 2166136261u; /* FNV-1a */
  for (size_t i = 0; i < length; i++) at = (at ^ (unsigned char)piece[i]) * 16777619u;
  for (at = (at ^ at >> 15) & b->mask_; b->slots_[at] >= 0; at = (at + 1) & b->mask_) {
    const char *there = b->pieces[b->slots_[at]];
    if (!strncmp(there, piece, length) && !there[length]) break;
  }
  return &b->slots_[at];
}

/* The number of a piece, -1 if the vocabulary lacks it. */
static int32_t bpe_find(const bpe *b, const char *piece, size_t length) {
  return *bpe_slot_(b, piece, length);
}

static bpe_merge *bpe_merge_of_(const bpe *b, int32_t left, int32_t right) {
  uint32_t at = (uint32_t)left * 0x9E3779B1u ^ (uint32_t)right * 0x85EBCA77u;
  for (at = (at ^ at >> 15) & b->merges_mask_;; at = (at + 1) & b->merges_mask_) {
    bpe_merge *merge = &b->merges_[at];
    if (merge->joined < 0 || (merge->left == left && merge->right == right)) return merge;
  }
}

/* Room of a power of two, twice what is needed at least. */
static uint32_t bpe_mask_(size_t count) {
  uint32_t room = 16;
  while (room < 2 * count + 2) room *= 2;
  return room - 1;
}

/* The character that stands for a byte in pieces: itself if it can be seen, else one from U+0100 on. */
static uint32_t bpe_shown_(int byte) {
  uint32_t next = 256;
  for (int i = 0; i <= byte; i++) {
    const int seen = (i > 32 && i < 127) || (i > 160 && i != 173);
    if (i == byte) return seen ? (uint32_t)i : next;
    next += !seen;
  }
  return next;
}

/* ---- tokenizer.json */

static int bpe_is_(const json *value, const char *word) {
  return value && value->kind == JSON_STRING && !strcmp(value->string, word);
}

static int bpe_true_(const json *object, const char *key) {
  const json *value = json_get(object, key);
  return value && value->kind == JSON_BOOL && value->truth;
}

/* A step of the given type, alone or the one of a sequence; null for no step. */
static const char *bpe_step_(bpe *b, const char *name, const char *type, const json **step) {
  *step = json_get(b->file_.root, name);
  if (*step && (*step)->kind == JSON_OBJECT && bpe_is_(json_get(*step, "type"), "Sequence")) {
    const json *list = json_get(*step, "pretokenizers");
    if (!list) list = json_get(*step, "normalizers");
    if (list && list->kind == JSON_ARRAY && list->count < 2) *step = list->first;
  }
  if (!*step || (*step)->kind == JSON_NULL) return *step = NULL, NULL;
  return bpe_is_(json_get(*step, "type"), type)
             ? NULL
             : bpe_fail_(b, "its %s is not one that is done here", name);
}

static const char *bpe_vocabulary_(bpe *b, const json *vocab, const json *added) {
  int64_t most = -1;
  if (!vocab || vocab->kind != JSON_OBJECT) return bpe_fail_(b, "it has no %s", "model.vocab");
  if (added && added->kind != JSON_ARRAY) return bpe_fail_(b, "%s must be a list", "added_tokens");
  for (const json *v = vocab->first; v; v = v->next) {
    if (!v->whole || v->integer < 0 || v->integer >= BPE_MAX_TOKENS)
      return bpe_fail_(b, "the token '%.40s' has no number", v->name);
    most = v->integer > most ? v->integer : most;
  }
  for (const json *a = added ? added->first : NULL; a; a = a->next) {
    const json *id = json_get(a, "id"), *content = json_get(a, "content");
    if (!id || !id->whole || id->integer < 0 || id->integer >= BPE_MAX_TOKENS || !content ||
        content->kind != JSON_STRING || !content->length)
      return bpe_fail_(b, "one of the %s has no number or content", "added_tokens");
    if (bpe_true_(a, "single_word"))
      return bpe_fail_(b, "the token '%.40s' is a single_word, which is not done here",
                       content->string);
    most = id->integer > most ? id->integer : most;
  }
  b->count = (int32_t)(most + 1);
  b->pieces = calloc((size_t)b->count + 1, sizeof *b->pieces);
  b->added = calloc((added ? added->count : 0) + 1, sizeof *b->added);
  b->mask_ = bpe_mask_(vocab->count);
  b->slots_ = malloc(((size_t)b->mask_ + 1) * sizeof *b->slots_);
  if (!b->pieces || !b->added || !b->slots_) return "out of memory";
  memset(b->slots_, 0xFF, ((size_t)b->mask_ + 1) * sizeof *b->slots_);
  for (const json *v = vocab->first; v; v = v->next) {
    if (b->pieces[v->integer])
      return bpe_fail_(b, "the number of '%.40s' is another token's", v->name);
    b->pieces[v->integer] = v->name;
    *bpe_slot_(b, v->name, strlen(v->name)) = (int32_t)v->integer;
  }
  for (const json *a = added ? added->first : NULL; a; a = a->next) {
    const json *content = json_get(a, "content"), *late = json_get(a, "normalized");
    const int32_t id = (int32_t)json_get(a, "id")->integer;
    b->added[b->added_count++] = (bpe_added){content->string,
                                             content->length,
                                             id,
                                             bpe_true_(a, "lstrip"),
                                             bpe_true_(a, "rstrip"),
                                             !late || late->kind != JSON_BOOL || late->truth};
    if (!b->pieces[id]) b->pieces[id] = content->string;
  }
  return NULL;
}

/* ["a b", ..] or [["a", "b"], ..] */
static const char *bpe_merges_(bpe *b, const json *merges) {
  if (!merges || merges->kind != JSON_ARRAY) return bpe_fail_(b, "it has no %s", "model.merges");
  if (merges->count > BPE_MAX_TOKENS) return bpe_fail_(b, "it has too many %s", "model.merges");
  b->merges_mask_ = bpe_mask_(merges->count);
  b->merges_ = malloc(((size_t)b->merges_mask_ + 1) * sizeof *b->merges_);
  char *joined = NULL;
  if (!b->merges_) return "out of memory";
  for (uint32_t i = 0; i <= b->merges_mask_; i++) b->merges_[i].joined = -1;
  int32_t rank = 0;
  for (const json *m = merges->first; m; m = m->next, rank++) {
    const json *two = m->kind == JSON_ARRAY && m->count == 2 ? m->first : NULL;
    const char *space = m->kind == JSON_STRING ? strchr(m->string, ' ') : NULL;
    const char *left = two ? two->string : m->string;
    const char *right = two ? two->next->string : space ? space + 1 : NULL;
    if (!left || !right)
      return free(joined), bpe_fail_(b, "one of the %s is no pair", "model.merges");
    const size_t n = two ? strlen(left) : (size_t)(space - left), more = strlen(right);
    char *larger = realloc(joined, n + more + 1);
    if (!larger) return free(joined), "out of memory";
    joined = larger;
    memcpy(joined, left, n);
    memcpy(joined + n, right, more);
    const bpe_merge merge = {bpe_find(b, left, n), bpe_find(b, right, more),
                             bpe_find(b, joined, n + more), rank};
    if (merge.left < 0 || merge.right < 0 || merge.joined < 0) {
      bpe_fail_(b, "a merge to '%.40s' is one of no tokens", (joined[n + more] = 0, joined));
      return free(joined), b->error;
    }
    *bpe_merge_of_(b, merge.left, merge.right) = merge; /* of two the later counts */
  }
  free(joined);
  return NULL;
}

/* What stands before and behind a text: of RoBERTa's form, or the first and last of a template; a language model has
 * nothing there, or one mark before. */
static const char *bpe_marks_(bpe *b) {
  const json *post = json_get(b->file_.root, "post_processor");
  b->cls = b->sep = -1;
  if (bpe_is_(json_get(post, "type"), "Sequence")) {
    const json *list = json_get(post, "processors");
    for (post = list ? list->first : NULL; post && post->next; post = post->next)
      if (!bpe_is_(json_get(post, "type"), "ByteLevel")) break;
    for (const json *more = post ? post->next : NULL; more; more = more->next)
      if (!bpe_is_(json_get(more, "type"), "ByteLevel"))
        return bpe_fail_(b, "its %s puts marks twice, which is not done here", "post_processor");
  }
  if (!post || post->kind == JSON_NULL || bpe_is_(json_get(post, "type"), "ByteLevel")) return NULL;
  const json *ids[2] = {NULL, NULL};
  int marks = 2;
  if (bpe_is_(json_get(post, "type"), "RobertaProcessing")) {
    const json *pairs[] = {json_get(post, "cls"), json_get(post, "sep")};
    for (int i = 0; i < 2; i++)
      ids[i] = pairs[i] && pairs[i]->count == 2 ? pairs[i]->first->next : NULL;
  } else if (bpe_is_(json_get(post, "type"), "TemplateProcessing")) {
    const json *single = json_get(post, "single"), *known = json_get(post, "special_tokens");
    const json *item =
        single && single->kind == JSON_ARRAY && single->count >= 1 && single->count <= 3
            ? single->first
            : NULL;
    if (item && single->count < 3)
      marks = (int)single->count - 1; /* a mark at most, and the text */
    if (!marks && json_get(item, "Sequence")) return NULL;
    for (int i = 0; item; item = item->next, i++) {
      const json *name = json_get(json_get(item, "SpecialToken"), "id");
      if (i == 1 && !json_get(item, "Sequence")) break; /* the text stands between two marks */
      if (i == 1 || !name || name->kind != JSON_STRING) continue;
      const json *list = json_get(json_get(known, name->string), "ids");
      ids[i / 2] = list && list->count == 1 ? list->first : NULL;
    }
  }
  int32_t *to[] = {&b->cls, &b->sep};
  for (int i = 0; i < (marks ? marks : 2); i++) {
    if (!ids[i] || !ids[i]->whole || ids[i]->integer < 0 || ids[i]->integer >= b->count)
      return bpe_fail_(b, "its %s does not say what stands before and behind a text",
                       "post_processor");
    *to[i] = (int32_t)ids[i]->integer;
  }
  return NULL;
}

/* ByteLevel, alone or behind Digits. */
static const char *bpe_split_(bpe *b, const json **step) {
  const json *list = json_get(json_get(b->file_.root, "pre_tokenizer"), "pretokenizers");
  const json *first = list && list->kind == JSON_ARRAY && list->count == 2 ? list->first : NULL;
  if (!first || !bpe_is_(json_get(first, "type"), "Digits") ||
      !bpe_is_(json_get(first->next, "type"), "ByteLevel"))
    return bpe_step_(b, "pre_tokenizer", "ByteLevel", step);
  *step = first->next;
  b->digits = 1;
  return bpe_true_(first, "individual_digits") && !bpe_true_(*step, "add_prefix_space")
             ? NULL
             : bpe_fail_(b, "its %s has Digits in a form that is not done here", "pre_tokenizer");
}

static const char *bpe_load_(bpe *b) {
  const json *root = b->file_.root, *model = json_get(root, "model"), *step;
  const json *type = json_get(model, "type"), *merges = json_get(model, "merges");
  const char *error;
  if (!merges || (type && type->kind != JSON_NULL && !bpe_is_(type, "BPE")))
    return bpe_fail_(b, "its model is not %s", "BPE");
  if ((error = bpe_step_(b, "normalizer", "NFC", &step)) != NULL) return error;
  b->compose = step != NULL;
  if ((error = bpe_split_(b, &step)) != NULL) return error;
  if (!step) return bpe_fail_(b, "it has no %s", "pre_tokenizer");
  if (json_get(step, "use_regex") && !bpe_true_(step, "use_regex"))
    return bpe_fail_(b, "its %s has another pattern than GPT-2's", "pre_tokenizer");
  for (int i = 0; i < 2; i++) {
    const char *key = i ? "end_of_word_suffix" : "continuing_subword_prefix";
    const json *affix = json_get(model, key);
    if (affix && affix->length) return bpe_fail_(b, "its %s is not done here", key);
  }
  b->space_first = bpe_true_(step, "add_prefix_space");
  b->whole_first = bpe_true_(model, "ignore_merges");
  if ((error = bpe_vocabulary_(b, json_get(model, "vocab"), json_get(root, "added_tokens"))) !=
          NULL ||
      (error = bpe_merges_(b, merges)) != NULL)
    return error;
  for (int i = 0; i < 256; i++) {
    char shown[8];
    b->byte[i] = bpe_find(b, shown, utf8_put(shown, bpe_shown_(i)));
    if (b->byte[i] < 0) return bpe_fail_(b, "it has no token for each %s", "byte");
  }
  return bpe_marks_(b);
}

static void bpe_free(bpe *b) {
  json_free(&b->file_);
  free(b->pieces);
  free(b->added);
  free(b->merges_);
  free(b->slots_);
  b->pieces = NULL;
  b->added = NULL;
  b->merges_ = NULL;
  b->slots_ = NULL;
}

/* Takes a tokenizer.json that was read, and what it holds. After an error there is nothing to release. */
static const char *bpe_of(bpe *b, json_document *file) {
  memset(b, 0, sizeof *b);
  b->file_ = *file;
  memset(file, 0, sizeof *file);
  const char *error = bpe_load_(b);
  if (error) bpe_free(b);
  return error;
}

/* ---- text to tokens */

typedef struct bpe_out_ {
  int32_t *ids; /* room for one a byte of the text, and one more */
  int64_t count;
  struct bpe_pair_ *heap; /* of one word; grows */
  size_t room;
  int failed;
} bpe_out_;

/* Neighbours that may be joined: symbols at `at` and behind it, as they were when this was found. */
typedef struct bpe_pair_ {
  int32_t rank, joined;
  int64_t at, left, right;
} bpe_pair_;

static int bpe_before_(const bpe_pair_ *a, const bpe_pair_ *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void bpe_push_(bpe_out_ *out, size_t *count, bpe_pair_ pair) {
  if (*count == out->room) {
    const size_t room = out->room ? 2 * out->room : 64;
    bpe_pair_ *larger = realloc(out->heap, room * sizeof *larger);
    if (!larger) {
      out->failed = 1;
      return;
    }
    out->heap = larger;
    out->room = room;
  }
  size_t i = (*count)++;
  for (; i && bpe_before_(&pair, &out->heap[(i - 1) / 2]); i = (i - 1) / 2)
    out->heap[i] = out->heap[(i - 1) / 2];
  out->heap[i] = pair;
}

static bpe_pair_ bpe_pop_(bpe_out_ *out, size_t *count) {
  const bpe_pair_ first = out->heap[0], last = out->heap[--*count];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < *count; i = child) {
    if (child + 1 < *count && bpe_before_(&out->heap[child + 1], &out->heap[child])) child++;
    if (!bpe_before_(&out->heap[child], &last)) break;
    out->heap[i] = out->heap[child];
  }
  out->heap[i] = last;
  return first;
}

static void bpe_offer_(const bpe *b, bpe_out_ *out, size_t *count, const int32_t *ids, int64_t at,
                       int64_t next, int64_t n) {
  if (next >= n) return;
  const bpe_merge *merge = bpe_merge_of_(b, ids[at], ids[next]);
  if (merge->joined >= 0)
    bpe_push_(out, count, (bpe_pair_){merge->rank, merge->joined, at, ids[at], ids[next]});
}

/* A word of n bytes, with a space before it if `space`: its bytes lie as tokens in place, and those that are
 * joined away become -1. next[i] is found by going on: a run of -1 is skipped once, its length kept there. */
static void bpe_word_(const bpe *b, bpe_out_ *out, const char *word, int64_t bytes, int space) {
  int32_t *ids = out->ids + out->count;
  const int64_t n = bytes + space;
  size_t count = 0;
  for (int64_t i = 0; i < n; i++)
    ids[i] = b->byte[i < space ? ' ' : (unsigned char)word[i - space]];
  if (b->whole_first) {
    char *shown = malloc((size_t)n * 2), *to = shown;
    out->failed |= !shown;
    for (int64_t i = 0; shown && i < n; i++) {
      const char *piece = b->pieces[ids[i]];
      while (*piece) *to++ = *piece++;
    }
    const int32_t whole = shown ? bpe_find(b, shown, (size_t)(to - shown)) : -1;
    free(shown);
    if (whole >= 0) {
      ids[0] = whole;
      out->count++;
      return;
    }
  }
  int64_t *links = n > 1 ? malloc((size_t)(2 * n) * sizeof *links) : NULL;
  if (n > 1 && !links) out->failed = 1;
  if (links) {
    int64_t *next = links, *last = links + n;
    for (int64_t i = 0; i < n; i++) {
      next[i] = i + 1;
      last[i] = i - 1;
      bpe_offer_(b, out, &count, ids, i, i + 1, n);
    }
    while (count) {
      const bpe_pair_ pair = bpe_pop_(out, &count);
      const int64_t at = pair.at, gone = ids[at] == pair.left ? next[at] : n;
      if (gone >= n || ids[gone] != pair.right) continue; /* one of them is another by now */
      ids[at] = pair.joined;
      ids[gone] = -1;
      next[at] = next[gone];
      if (next[at] < n) last[next[at]] = at;
      if (last[at] >= 0) bpe_offer_(b, out, &count, ids, last[at], at, n);
      bpe_offer_(b, out, &count, ids, at, next[at], n);
    }
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++)
    if (ids[i] >= 0) ids[kept++] = ids[i];
  out->count += kept;
  free(links);
}

/* ' ' white space, 'a' a letter, '1' a number, '.' anything else, 0 the end. */
static char bpe_kind_(uint32_t c) {
  if (!c) return 0;
  if (unicode_white(c)) return ' ';
  if (c < 128) {
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return 'a';
    return c >= '0' && c <= '9' ? '1' : '.';
  }
  return UNICODE_IN(unicode_letters, c) ? 'a' : UNICODE_IN(unicode_numbers, c) ? '1' : '.';
}

/* Bytes of 's, 't, 're, 've, 'm, 'll, 'd at s. */
static size_t bpe_clitic_(const char *s, size_t room) {
  static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
  if (*s != '\'') return 0;
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    const size_t n = strlen(endings[i]);
    if (n + 1 <= room && !strncmp(s + 1, endings[i], n)) return n + 1;
  }
  return 0;
}

/* The character at s, before end, and where the next one begins. */
static uint32_t bpe_next_(const char *s, const char *end, const char **behind) {
  const unsigned char *at = (const unsigned char *)s;
  const uint32_t c = s < end ? utf8_next(&at) : 0;
  *behind = (const char *)at;
  return c;
}

/* Text without added tokens, to words; `space`: one stands before it. */
static void bpe_words_(const bpe *b, bpe_out_ *out, const char *s, const char *end, int space) {
  while (s < end && !out->failed) {
    const char *first = s, *next;
    const size_t clitic = space ? 0 : bpe_clitic_(s, (size_t)(end - s));
    uint32_t c = bpe_next_(s, end, &next);
    if (clitic) {
      s += clitic;
    } else if (bpe_kind_(c) != ' ' || (c == ' ' && !space && next < end &&
                                       bpe_kind_(bpe_next_(next, end, &next)) != ' ')) {
      if (c == ' ') s++;
      const char kind = bpe_kind_(bpe_next_(s, end, &next));
      while (s < end && bpe_kind_(bpe_next_(s, end, &next)) == kind) s = next;
    } else { /* white space: all of it at the end, else all but the last */
      const char *last = s;
      for (; s < end && bpe_kind_(bpe_next_(s, end, &next)) == ' '; s = next) last = s;
      if (s < end && (last > first || space)) s = last;
    }
    bpe_word_(b, out, first, s - first, space);
    space = 0;
  }
}

/* The same, each number by itself. */
static void bpe_digits_(const bpe *b, bpe_out_ *out, const char *s, const char *end) {
  for (const char *at = s, *next; at < end; at = next) {
    if (bpe_kind_(bpe_next_(at, end, &next)) != '1') continue;
    bpe_words_(b, out, s, at, 0);
    bpe_words_(b, out, at, next, 0);
    s = next;
  }
  bpe_words_(b, out, s, end, 0);
}

/* The first added token of a stage in s .. end, the longest of those that begin there. */
static const bpe_added *bpe_find_added_(const bpe *b, int late, const char *s, const char *end,
                                        const char **where) {
  for (; s < end; s++) {
    const bpe_added *best = NULL;
    for (size_t i = 0; i < b->added_count; i++) {
      const bpe_added *a = &b->added[i];
      if (a->late == late && a->length <= (size_t)(end - s) && *a->text == *s &&
          !memcmp(a->text, s, a->length) && (!best || a->length > best->length))
        best = a;
    }
    if (best) return *where = s, best;
  }
  return NULL;
}

static void bpe_stage_(const bpe *b, bpe_out_ *out, int late, const char *s, const char *end) {
  while (s < end && !out->failed) {
    const char *where = end, *from, *next;
    const bpe_added *added = bpe_find_added_(b, late, s, end, &where);
    const char *behind = added ? where + added->length : end;
    from = where;
    if (added && added->left) { /* back over white space */
      const char *white = NULL;
      for (const char *at = s; at < where; at = next)
        white = unicode_white(bpe_next_(at, where, &next)) ? white ? white : at : NULL;
      if (white) from = white;
    }
    if (added && added->right)
      while (behind < end && unicode_white(bpe_next_(behind, end, &next))) behind = next;
    if (from > s && !late)
      bpe_stage_(b, out, 1, s, from);
    else if (from > s && b->digits)
      bpe_digits_(b, out, s, from);
    else if (from > s)
      bpe_words_(b, out, s, from, b->space_first && *s != ' ');
    if (added) out->ids[out->count++] = added->id;
    s = behind;
  }
}

/* The tokens of a text that ends with 0: memory that free releases, and their number. */
static const char *bpe_encode(bpe *b, const char *text, int32_t **ids, int64_t *count) {
  bpe_out_ out = {.ids = NULL};
  const long wrong = utf8_wrong(text);
  *ids = NULL;
  *count = 0;
  if (wrong >= 0) {
    snprintf(b->error, sizeof b->error, "the text is not UTF-8 at byte %ld", wrong);
    return b->error;
  }
  char *composed = b->compose ? nfc_of(text) : NULL;
  if (b->compose && !composed) return "out of memory";
  if (composed) text = composed;
  const size_t length = strlen(text); /* before each of its parts may stand a space */
  out.ids = malloc((2 * length + 1) * sizeof *out.ids);
  if (out.ids) bpe_stage_(b, &out, 0, text, text + length);
  free(out.heap);
  free(composed);
  *ids = out.ids;
  *count = out.count;
  return out.failed || !out.ids ? "out of memory" : NULL;
}

/* The bytes that a token stands for, into `to`, which has room for strlen(b->pieces[id]); their number. An added token
 * is what it says. */
static inline size_t bpe_bytes(const bpe *b, int32_t id, char *to) {
  const char *piece = b->pieces[id] ? b->pieces[id] : "";
  size_t n = 0;
  for (size_t i = 0; i < b->added_count; i++)
    if (b->added[i].id == id) return memcpy(to, piece, strlen(piece)), strlen(piece);
  for (const unsigned char *at = (const unsigned char *)piece; *at;) {
    const uint32_t shown = utf8_next(&at);
    for (int byte = 0; byte < 256; byte++)
      if (bpe_shown_(byte) == shown) to[n++] = (char)byte;
  }
  return n;
}

#endif
