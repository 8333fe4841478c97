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
ATTN_COLD_ int attn_drawn_room_(attn_drawn_ *d, int64_t n, int64_t table) {
  void *a = d->list, *b = d->aside;
  const int fits = attn_room_(&a, &d->room, 0, n, sizeof *d->list) &&
                   attn_room_(&b, &d->aside_room, 0, attn_max64_(n, table), sizeof *d->aside);
  d->list = (int32_t *)a, d->aside = (int32_t *)b, d->count = 0;
  return fits;
}

/* Ascending order, by bytes from the lowest on; few numbers are put in place one by one. */
ATTN_COLD_ void attn_drawn_sort_(attn_drawn_ *d) {
  const int64_t n = d->count, few = 32;
  uint32_t any = 0;
  for (int64_t k = 1; n <= few && k < n; k++) {
    const int32_t x = d->list[k];
    int64_t at = k;
    for (; at > 0 && d->list[at - 1] > x; at--) d->list[at] = d->list[at - 1];
    d->list[at] = x;
  }
  if (n <= few) return;
  for (int64_t k = 0; k < n; k++) any |= (uint32_t)d->list[k];
  for (int s = 0; s < 32 && any >> s; s += 8) {
    int64_t start[257] = {0};
    for (int64_t k = 0; k < n; k++) start[((uint32_t)d->list[k] >> s & 255) + 1]++;
    for (int k = 0; k < 256; k++) start[k + 1] += start[k];
    for (int64_t k = 0; k < n; k++) d->aside[start[(uint32_t)d->list[k] >> s & 255]++] = d->list[k];
    int32_t *list = d->list;
    const int64_t room = d->room;
    d->list = d->aside, d->aside = list, d->room = d->aside_room, d->aside_room = room;
  }
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

/* r < n distinct numbers of [0, n), those of attn_sample_. 0 = no memory. */
ATTN_COLD_ int attn_draw_(attn_drawn_ *d, uint64_t s, int64_t n, int64_t r) {
  int64_t size = 4;
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
