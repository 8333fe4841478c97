/* nfc.h owns Unicode's normal form C: what looks the same is written the same, composed. A text is taken apart
 * (canonical decomposition), its marks are put in order, and what has a character of its own is joined again.
 * Tables are those of unicode.h; Hangul goes by rule. Source: Unicode Standard Annex 15. */
#ifndef EXAMPLES_NFC_H
#define EXAMPLES_NFC_H

#include "utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
  NFC_SYLLABLE = 0xAC00, /* Hangul: 19 first, 21 middle and 27 last letters, or no last one */
  NFC_FIRST = 0x1100,
  NFC_MIDDLE = 0x1161,
  NFC_LAST = 0x11A7,
  NFC_MOST = 4 /* characters of a decomposition */
};

/* How far a mark stands from its letter; 0 for what is no mark. */
static inline uint32_t nfc_class_(uint32_t c) {
  size_t low = 0, high = sizeof unicode_classes / sizeof *unicode_classes - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (unicode_classes[middle].last < c)
      low = middle + 1;
    else
      high = middle;
  }
  const unicode_class *found = &unicode_classes[low];
  return found->first <= c && c <= found->last ? found->rank : 0;
}

/* c taken apart; how many characters it is. */
static inline size_t nfc_parts_(uint32_t *out, uint32_t c) {
  if (c >= NFC_SYLLABLE && c < NFC_SYLLABLE + 11172) {
    const uint32_t i = c - NFC_SYLLABLE;
    out[0] = NFC_FIRST + i / 588;
    out[1] = NFC_MIDDLE + i % 588 / 28;
    out[2] = NFC_LAST + i % 28;
    return i % 28 ? 3 : 2;
  }
  size_t low = 0, high = sizeof unicode_parts / sizeof *unicode_parts - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (unicode_parts[middle].whole < c)
      low = middle + 1;
    else
      high = middle;
  }
  const unicode_part *found = &unicode_parts[low];
  if (found->whole != c) return *out = c, 1;
  const size_t n = nfc_parts_(out, found->first); /* the second is never taken apart further */
  if (found->second) out[n] = found->second;
  return n + (found->second != 0);
}

/* The character that two are together, 0 if there is none. Marks are rare, and the table is short. */
static inline uint32_t nfc_joined_(uint32_t a, uint32_t b) {
  if (a - NFC_FIRST < 19 && b - NFC_MIDDLE < 21)
    return NFC_SYLLABLE + ((a - NFC_FIRST) * 21 + b - NFC_MIDDLE) * 28;
  if (a >= NFC_SYLLABLE && a < NFC_SYLLABLE + 11172 && (a - NFC_SYLLABLE) % 28 == 0 &&
      b - NFC_LAST - 1 < 27)
    return a + b - NFC_LAST;
  for (size_t i = 0; b >= 0x300 && i < sizeof unicode_parts / sizeof *unicode_parts; i++)
    if (unicode_parts[i].first == a && unicode_parts[i].second == b && unicode_parts[i].joins)
      return unicode_parts[i].whole;
  return 0;
}

static inline int nfc_before_(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* n marks in a row by their rank, those of one as they stood; order and copy have room for them. */
static inline void nfc_sort_(uint32_t *marks, size_t n, uint64_t *order, uint32_t *copy) {
  for (size_t i = 0; i < n; i++) order[i] = (uint64_t)nfc_class_(marks[i]) << 32 | i;
  qsort(order, n, sizeof *order, nfc_before_);
  memcpy(copy, marks, n * sizeof *copy);
  for (size_t i = 0; i < n; i++) marks[i] = copy[(uint32_t)order[i]];
}

/* The normal form of a text in UTF-8, in memory that free releases; null if there is none. */
static inline char *nfc_of(const char *text) {
  const size_t length = strlen(text);
  const unsigned char *at = (const unsigned char *)text;
  if (length > SIZE_MAX / 64) return NULL;
  char *out = malloc(4 * length + 1);
  uint32_t *c = malloc((NFC_MOST * length + 1) * sizeof *c), next;
  size_t n = 0, kept = 0, starter = 0, to = 0, most = 0;
  for (; out && c && (next = utf8_next(&at)) != 0 && next != UINT32_MAX;)
    n += nfc_parts_(c + n, next);
  for (size_t i = 0, run = 0; out && c && i < n; i++) {
    run = nfc_class_(c[i]) ? run + 1 : 0;
    if (run > most) most = run;
  }
  uint64_t *order = malloc((most + 1) * sizeof *order);
  uint32_t *copy = malloc((most + 1) * sizeof *copy);
  if (!order || !copy) free(c), c = NULL;
  for (size_t i = 0, run = 0; out && c && i <= n; i++) {
    if (i < n && nfc_class_(c[i])) {
      run++;
      continue;
    }
    if (run > 1) nfc_sort_(c + i - run, run, order, copy);
    run = 0;
  }
  free(order), free(copy);
  uint32_t before = 0; /* rank of what was kept last behind the starter */
  int started = 0;
  for (size_t i = 0; out && c && i < n; i++) {
    const uint32_t rank = nfc_class_(c[i]);
    const int blocked = kept > starter + 1 && (before >= rank || !before);
    const uint32_t joined = started && !blocked ? nfc_joined_(c[starter], c[i]) : 0;
    if (joined) {
      c[starter] = joined;
      continue;
    }
    if (!rank) starter = kept, started = 1;
    before = rank;
    c[kept++] = c[i];
  }
  for (size_t i = 0; out && c && i < kept; i++) to += utf8_put(out + to, c[i]);
  if (out && c) out[to] = 0;
  if (!c) free(out), out = NULL;
  free(c);
  return out;
}

#endif
