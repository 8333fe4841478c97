/* engine/marks.h owns sets of small integers: bits, with a second level of bits that says which
 * words are not 0, so that a sparse set is read in ascending order and cleared at once. */

/* the lowest bit of x, which is not 0 */
ATTN_INLINE_ int attn_lowest_(uint64_t x) {
#if defined(__GNUC__)
  return __builtin_ctzll(x);
#else
  int n = 0;
  for (int s = 32; s > 0; s /= 2)
    if (!(x & (((uint64_t)1 << s) - 1))) x >>= s, n += s;
  return n;
#endif
}

ATTN_INLINE_ int attn_ones_(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return (int)(x * 0x0101010101010101u >> 56);
}

ATTN_INLINE_ uint64_t attn_bit_(int64_t n) { return (uint64_t)1 << n; }
/* the n lowest bits, 0 <= n <= 64 */
ATTN_INLINE_ uint64_t attn_low_bits_(int64_t n) {
  return n >= 64 ? ~(uint64_t)0 : attn_bit_(n) - 1;
}

typedef struct attn_marks_ {
  uint64_t *bits;  /* number x is bit x mod 64 of word x / 64 */
  uint64_t *words; /* bit w mod 64 of word w / 64: bits[w] is not 0 */
} attn_marks_;

/* words of both levels for the numbers 0 .. n - 1 */
ATTN_COLD_ int64_t attn_marks_words_(int64_t n) { return n / 64 + 1 + n / 4096 + 1; }

ATTN_FUNC_ void attn_marks_cut_(attn_marks_ *m, uint64_t *zeros, int64_t n) {
  m->bits = zeros;
  m->words = zeros + n / 64 + 1;
}

ATTN_INLINE_ void attn_mark_(const attn_marks_ *m, int64_t x) {
  m->bits[x >> 6] |= attn_bit_(x & 63);
  m->words[x >> 12] |= attn_bit_(x >> 6 & 63);
}

ATTN_INLINE_ int attn_marked_(const attn_marks_ *m, int64_t x) {
  return (int)(m->bits[x >> 6] >> (x & 63) & 1);
}

/* Takes the lowest word that is not 0 out of the set; *from is a number that none is below, and
 * becomes the first of that word. 0 when there is none among the numbers below n. */
ATTN_INLINE_ uint64_t attn_unmark_(const attn_marks_ *m, int64_t *from, int64_t n) {
  for (int64_t w = *from >> 12; w <= (n - 1) >> 12; w++) {
    if (!m->words[w]) continue;
    const int64_t b = w * 64 + attn_lowest_(m->words[w]);
    const uint64_t bits = m->bits[b];
    m->words[w] &= m->words[w] - 1, m->bits[b] = 0;
    *from = b * 64;
    return bits;
  }
  return 0;
}

/* Transposes 64 x 64 bits: bit c of row r becomes bit r of row c. */
ATTN_COLD_ void attn_transpose_bits_(uint64_t a[64]) {
  uint64_t m = 0x00000000ffffffffu;
  for (int s = 32; s > 0; s /= 2, m ^= m << s)
    for (int r = 0; r < 64; r = ((r | s) + 1) & ~s) {
      const uint64_t x = (a[r] >> s ^ a[r | s]) & m;
      a[r] ^= x << s, a[r | s] ^= x;
    }
}
