/* isa/half.h owns the storage types in portable C, for the scalar tier and for tails. */

/* Bytes of n elements in a row: a whole number of them, since rows start on bytes. */
ATTN_INLINE_ int64_t attn_bytes_(attn_dtype dtype, int64_t n) {
  return dtype == ATTN_F32    ? 4 * n
         : dtype <= ATTN_BF16 ? 2 * n
         : dtype == ATTN_I4   ? n / 2 + n % 2
                              : n;
}

/* Types that only keys and values may have. */
ATTN_INLINE_ int attn_quantized_(attn_dtype dtype) { return ATTN_HAS_QUANTIZE && dtype >= ATTN_I8; }

/* The same of a number, for kernels. */
#define ATTN_IS_SMALL_(kind) (ATTN_HAS_QUANTIZE && (kind) >= ATTN_I8)
#define ATTN_IS_I4_(kind) (ATTN_HAS_QUANTIZE && (kind) == ATTN_I4)

ATTN_INLINE_ float attn_from_bits_(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
ATTN_INLINE_ uint32_t attn_to_bits_(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

ATTN_INLINE_ float attn_from_bf16_(uint16_t h) { return attn_from_bits_((uint32_t)h << 16); }

ATTN_INLINE_ uint16_t attn_to_bf16_(float f) {
  uint32_t x = attn_to_bits_(f);
  if (f != f) return (uint16_t)((x | 0x400000u) >> 16);
  return (uint16_t)((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}

ATTN_INLINE_ float attn_from_f16_(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
  if (e == 31) return attn_from_bits_(sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u));
  if (e != 0) return attn_from_bits_(sign | ((e + 112u) << 23) | (m << 13));
  /* subnormal: m * 2^-24, exact in f32 */
  return attn_from_bits_(sign | attn_to_bits_((float)m * 5.9604644775390625e-8f));
}

ATTN_INLINE_ uint16_t attn_to_f16_(float f) {
  uint32_t x = attn_to_bits_(f), sign = (x >> 16) & 0x8000u, a = x & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65520 or more */
  if (a < 0x38800000u) { /* subnormal result: adding 0.5 leaves m in the low bits, rounded */
    uint32_t m = attn_to_bits_(attn_from_bits_(a) + 0.5f) - 0x3f000000u;
    return (uint16_t)(sign | m);
  }
  return (uint16_t)(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}

/* NaN has all bits set but the sign; 2^(e - 7) (1 + m / 8), and m 2^-9 for e = 0 */
ATTN_INLINE_ float attn_from_e4m3_(unsigned char b) {
  const uint32_t sign = (uint32_t)(b & 0x80u) << 24, e = (b >> 3) & 15u, m = b & 7u;
  if ((b & 0x7fu) == 0x7fu) return attn_from_bits_(0x7fc00000u);
  if (e != 0) return attn_from_bits_(sign | ((e + 120u) << 23) | (m << 20));
  return attn_from_bits_(sign | attn_to_bits_((float)m * 0.001953125f));
}

/* element i of a row of nibbles */
ATTN_INLINE_ float attn_from_i4_(const unsigned char *row, int64_t i) {
  const int n = (i & 1 ? row[i / 2] >> 4 : row[i / 2]) & 15;
  return (float)(n < 8 ? n : n - 16);
}
