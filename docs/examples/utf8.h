/* utf8.h owns characters: UTF-8 to code points and back, and whether one is in a table of unicode.h. */
#ifndef EXAMPLES_UTF8_H
#define EXAMPLES_UTF8_H

#include "unicode.h"

#include <stddef.h>
#include <stdint.h>

/* The character at *at, which moves behind it. 0 at the end of the text, 0xFFFFFFFF if it is no
 * UTF-8: a stray or missing continuation, a longer form than needed, half a pair, beyond U+10FFFF. */
static inline uint32_t utf8_next(const unsigned char **at) {
  static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
  const unsigned char *s = *at;
  if (!*s) return 0;
  const int tail = *s < 0x80 ? 0 : *s >> 5 == 6 ? 1 : *s >> 4 == 14 ? 2 : *s >> 3 == 30 ? 3 : -1;
  if (tail < 0) return UINT32_MAX;
  uint32_t c = tail ? *s & (0x3Fu >> tail) : *s;
  for (int i = 1; i <= tail; i++) {
    if (s[i] >> 6 != 2) return UINT32_MAX; /* also at the end, which is 0 */
    c = c << 6 | (s[i] & 0x3F);
  }
  if (c < least[tail] || c > 0x10FFFF || c >> 11 == 0x1B) return UINT32_MAX;
  *at = s + tail + 1;
  return c;
}

/* Where a text stops to be UTF-8: a byte from 0 on, or -1 if it is all. */
static inline long utf8_wrong(const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  for (uint32_t c; (c = utf8_next(&at)) != 0;)
    if (c == UINT32_MAX) return (long)(at - (const unsigned char *)text);
  return -1;
}

/* Writes c at `to`; its bytes. */
static inline size_t utf8_put(char *to, uint32_t c) {
  static const uint32_t lead[] = {0, 0xC0, 0xE0, 0xF0};
  const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  for (int i = 0; i <= tail; i++)
    to[i] =
        (char)(unsigned char)(i ? 0x80 | (c >> 6 * (tail - i) & 0x3F) : lead[tail] | c >> 6 * tail);
  return (size_t)tail + 1;
}

static inline int unicode_in(const unicode_range *ranges, size_t count, uint32_t c) {
  size_t low = 0;
  while (low < count) { /* the first range that ends at c or later */
    const size_t middle = low + (count - low) / 2;
    if (ranges[middle].last < c)
      low = middle + 1;
    else
      count = middle;
  }
  return ranges[low].first <= c && c <= ranges[low].last;
}

/* The last entry of each table may be read beyond the search, so that no search runs off its end. */
#define UNICODE_IN(table, c) unicode_in(table, sizeof(table) / sizeof *(table)-1, c)

/* White space, as regular expressions mean it. */
static inline int unicode_white(uint32_t c) {
  return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

#endif
