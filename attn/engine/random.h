/* engine/random.h owns the reproducible integers of patterns: SplitMix64 keyed by seed, purpose,
 * head and row. The same on every machine. Source: Steele, Lea, Flood 2014; Lemire 2018, arXiv
 * 1805.10941; Floyd, in Bentley 1987. */

/* What the numbers are drawn for. */
enum {
  ATTN_DRAW_TOKENS_ = 1,
  ATTN_DRAW_BLOCKS_ = 2,
  ATTN_DRAW_BIGBIRD_ = 3,
  ATTN_DRAW_ROTATIONS_ = 4,
  ATTN_DRAW_CENTROIDS_ = 6,
  ATTN_DRAW_PERMUTATION_ = 7
};

ATTN_INLINE_ uint64_t attn_mix64_(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* The state of a stream. row may be negative: its two's complement counts. */
ATTN_FUNC_ uint64_t attn_stream_(uint64_t seed, uint64_t tag, int64_t head, int64_t row) {
  const uint64_t gamma = 0x9E3779B97F4A7C15u;
  uint64_t s = attn_mix64_((seed ^ tag) + gamma);
  s = attn_mix64_((s ^ (uint64_t)head) + gamma);
  return attn_mix64_((s ^ (uint64_t)row) + gamma);
}

ATTN_INLINE_ uint64_t attn_next64_(uint64_t *s) {
  *s += 0x9E3779B97F4A7C15u;
  return attn_mix64_(*s);
}

/* Uniform in [0, n), 1 <= n < 2^32, without bias. */
ATTN_INLINE_ int64_t attn_bounded_(uint64_t *s, int64_t n) {
  const uint64_t range = (uint64_t)n;
  uint64_t m = (attn_next64_(s) >> 32) * range;
  if ((m & 0xffffffffu) < range) {
    const uint64_t t = (((uint64_t)1 << 32) - range) % range;
    while ((m & 0xffffffffu) < t) m = (attn_next64_(s) >> 32) * range;
  }
  return (int64_t)(m >> 32);
}

/* Marks r < n distinct numbers of [0, n) in an empty set. */
ATTN_FUNC_ void attn_sample_(const attn_marks_ *set, uint64_t s, int64_t n, int64_t r) {
  for (int64_t t = n - r; t < n; t++) {
    const int64_t u = attn_bounded_(&s, t + 1);
    attn_mark_(set, attn_marked_(set, u) ? t : u);
  }
}

ATTN_COLD_ void attn_permutation_(int32_t *a, uint64_t s, int64_t n) {
  for (int64_t t = 0; t < n; t++) a[t] = (int32_t)t;
  for (int64_t t = n - 1; t > 0; t--) {
    const int64_t u = attn_bounded_(&s, t + 1);
    const int32_t x = a[t];
    a[t] = a[u], a[u] = x;
  }
}
