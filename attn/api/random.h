/* api/random.h owns the reproducible random numbers that patterns, features and samples are drawn from. */

/* ---- reproducible random numbers -----------------------------------------------------------------
 * Every number is a function of (seed, stream, n) alone, the same on every machine and tier, in any
 * order. All arithmetic is modulo 2^64, gold = 0x9E3779B97F4A7C15:
 *
 *   mix(z):  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
 *   u64   = mix(mix(seed + gold (stream + 1)) + gold (n + 1))
 *   below = floor(u64 N / 2^64)
 *   normal = the inverse normal distribution at (floor(u64 / 2^12) + 1/2) / 2^52, in double, every
 *            operation rounded by itself, with a logarithm of its own
 *
 * Source: SplitMix64 as a counter generator, Steele, Lea, Flood 2014, doi 10.1145/2660193.2660195;
 *   normals: algorithm AS 241 (PPND16), Wichura 1988, doi 10.2307/2347330: relative error 1e-16. */

/* stream = draw 2^32 + head 2^8 + which: draw < 2^32 counts redraws, head < 2^24, which < 256 says what
 * the numbers are for: 0 directions, 1 their lengths, 2 planes of hashing, 3 choice of centroids,
 * 4 their refill, 5 samples of keys. */
#define ATTN_STREAM(draw, head, which) \
  ((uint64_t)(draw) << 32 | (uint64_t)(head) << 8 | (uint64_t)(which))

/* 64 random bits. */
ATTN_DEF uint64_t attn_random_u64(uint64_t seed, uint64_t stream, uint64_t n);
/* 0 .. below - 1, 1 <= below < 2^63; 0 for other bounds. */
ATTN_DEF int64_t attn_random_below(uint64_t seed, uint64_t stream, uint64_t n, int64_t below);
/* A standard normal, |x| < 8.21. */
ATTN_DEF double attn_random_normal(uint64_t seed, uint64_t stream, uint64_t n);
