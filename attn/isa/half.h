/* isa/half.h owns the 16-bit formats in portable C, for the scalar tier and for tails. */

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
