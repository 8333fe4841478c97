/* engine/draw.h owns lists of whole numbers that grow, are drawn and are sorted: what a schedule is built
 * from takes memory by what it holds, not by the length of a sequence. */

ATTN_INLINE_ int64_t attn_min64_(int64_t a, int64_t b) { return a < b ? a : b; }
ATTN_INLINE_ int64_t attn_max64_(int64_t a, int64_t b) { return a > b ? a : b; }
/* floor(a / b) and ceil(a / b), b > 0 */
ATTN_INLINE_ int64_t attn_floor_(int64_t a, int64_t b) { return a / b - (a % b < 0); }
ATTN_INLINE_ int64_t attn_ceil_(int64_t a, int64_t b) { return a / b + (a % b > 0); }

/* Makes room for `need` elements, keeping the first `used`. 0 = no memory. */
ATTN_COLD_ int attn_room_(void **data, int64_t *capacity, int64_t used, int64_t need,
                          int64_t size) {
  if (need <= *capacity) return 1;
  const int64_t to = attn_max64_(attn_max64_(need, 256), attn_mul_(*capacity, 2));
  const int64_t bytes = attn_mul_(to, size);
  if ((uint64_t)bytes > SIZE_MAX / 2) return 0;
  void *wide = ATTN_MALLOC((size_t)bytes);
  if (!wide) return 0;
  if (used) memcpy(wide, *data, (size_t)(used * size));
  if (*data) ATTN_FREE(*data);
  *data = wide, *capacity = to;
  return 1;
}

/* Distinct numbers, 0 <= x < 2^31, ascending. */
typedef struct attn_drawn_ {
  int32_t *list, *aside; /* aside: for sorting, and a table of what is drawn already */
  int64_t count, room, aside_room;
} attn_drawn_;

/* Room for n numbers and a table of `table`. 0 = no memory. */
ATTN_FUNC_ int attn_drawn_room_(attn_drawn_ *d, int64_t n, int64_t table) {
  void *a = d->list, *b = d->aside;
  const int fits = attn_room_(&a, &d->room, 0, n, sizeof *d->list) &&
                   attn_room_(&b, &d->aside_room, 0, attn_max64_(n, table), sizeof *d->aside);
  d->list = (int32_t *)a, d->aside = (int32_t *)b, d->count = 0;
  return fits;
}

/* Each number is put in place among those before it. */
ATTN_FUNC_ void attn_drawn_insert_(int32_t *list, int64_t n) {
  for (int64_t k = 1; k < n; k++) {
    const int32_t x = list[k];
    int64_t at = k;
    for (; at > 0 && list[at - 1] > x; at--) list[at] = list[at - 1];
    list[at] = x;
  }
}

/* aside = the list in order of 8 bits, from bit s on; then they change places. Returns the most that fall together. */
ATTN_FUNC_ int32_t attn_drawn_spread_(attn_drawn_ *d, int s) {
  int32_t start[257] = {0}, most = 0;
  for (int64_t k = 0; k < d->count; k++) start[((uint32_t)d->list[k] >> s & 255) + 1]++;
  for (int k = 0; k < 256; k++) {
    if (start[k + 1] > most) most = start[k + 1];
    start[k + 1] += start[k];
  }
  for (int64_t k = 0; k < d->count; k++)
    d->aside[start[(uint32_t)d->list[k] >> s & 255]++] = d->list[k];
  int32_t *list = d->list;
  const int64_t room = d->room;
  d->list = d->aside, d->aside = list, d->room = d->aside_room, d->aside_room = room;
  return most;
}

/* Ascending order. Numbers drawn at random are nearly in order once their highest bits are; others go by bytes from
 * the lowest on. */
ATTN_FUNC_ void attn_drawn_sort_(attn_drawn_ *d) {
  const int64_t few = 16;
  uint32_t any = 0;
  int high = 0;
  for (int64_t k = 0; k < d->count; k++) any |= (uint32_t)d->list[k];
  while (any >> high > 255) high++;
  if (d->count <= few || attn_drawn_spread_(d, high) <= few) {
    attn_drawn_insert_(d->list, d->count);
    return;
  }
  for (int s = 0; s < 32 && any >> s; s += 8) attn_drawn_spread_(d, s);
}

/* A sorted copy of a list. 0 = no memory. */
ATTN_COLD_ int attn_drawn_copy_(attn_drawn_ *d, const int32_t *a, int64_t n) {
  if (!attn_drawn_room_(d, n, 0)) return 0;
  if (n > 0) memcpy(d->list, a, (size_t)n * sizeof *a);
  d->count = n;
  attn_drawn_sort_(d);
  return 1;
}

/* The place of x in a table of size + 1 (a power of two): its own, or a free one. */
ATTN_INLINE_ uint64_t attn_drawn_place_(const int32_t *table, uint64_t size, int64_t x) {
  uint64_t at = (uint64_t)x * 0x9E3779B97F4A7C15u >> 32 & size;
  while (table[at] >= 0 && table[at] != x) at = (at + 1) & size;
  return at;
}

/* The same where n is not much more than r: a set of bits tells what is drawn already and in which order, above it
 * one of the words that are not 0. */
ATTN_FUNC_ int attn_draw_dense_(attn_drawn_ *d, uint64_t s, int64_t n, int64_t r) {
  const int64_t words = attn_ceil_(n, 64), tops = attn_ceil_(words, 64);
  if (!attn_drawn_room_(d, r, 2 * (words + tops))) return 0;
  uint64_t *set = (uint64_t *)(void *)d->aside, *top = set + words;
  memset(set, 0, (size_t)(words + tops) * sizeof *set);
  for (int64_t t = n - r; t < n; t++) {
    const int64_t u = attn_bounded_(&s, t + 1);
    const int64_t x = set[u >> 6] >> (u & 63) & 1 ? t : u;
    set[x >> 6] |= (uint64_t)1 << (x & 63);
    top[x >> 12] |= (uint64_t)1 << (x >> 6 & 63);
  }
  int32_t *to = d->list;
  for (int64_t k = 0; k < tops; k++)
    for (uint64_t some = top[k]; some; some &= some - 1) {
      const int64_t w = k * 64 + attn_lowest_(some);
      uint64_t bits = set[w];
      do *to++ = (int32_t)(w * 64 + attn_lowest_(bits));
      while (bits &= bits - 1);
    }
  d->count = r;
  return 1;
}

/* r < n distinct numbers of [0, n), those of attn_sample_. 0 = no memory. */
ATTN_FUNC_ int attn_draw_(attn_drawn_ *d, uint64_t s, int64_t n, int64_t r) {
  int64_t size = 4;
  if (n / 512 < r) return attn_draw_dense_(d, s, n, r);
  while (size < 2 * r) size *= 2;
  if (!attn_drawn_room_(d, r, size)) return 0;
  memset(d->aside, 0xff, (size_t)size * sizeof *d->aside);
  for (int64_t t = n - r; t < n; t++) {
    const int64_t u = attn_bounded_(&s, t + 1);
    uint64_t at = attn_drawn_place_(d->aside, (uint64_t)size - 1, u);
    const int64_t x = d->aside[at] < 0 ? u : t;
    if (x == t) at = attn_drawn_place_(d->aside, (uint64_t)size - 1, t);
    d->aside[at] = d->list[d->count++] = (int32_t)x;
  }
  attn_drawn_sort_(d);
  return 1;
}
