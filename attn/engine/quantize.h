/* engine/quantize.h owns the way into quantised storage: one row, in plain C, so that all tiers
 * write the same bits. Quotients are taken in double: of two floats they are exact enough that a tie
 * is a tie. */

/* Numbers of a row that are converted at a time; a multiple of every group's 32 columns. */
enum { ATTN_QUANT_ = 256 };

/* Largest number of a type. */
ATTN_FUNC_ int attn_quant_top_(attn_dtype dtype) {
  return dtype == ATTN_I8 ? 127 : dtype == ATTN_I4 ? 7 : 448;
}

/* Columns c .. c + n - 1 as f32: the row itself or a copy. */
ATTN_FUNC_ const float *attn_quant_part_(const attn_table_ *f, float *copy, const void *x,
                                         attn_dtype dtype, int64_t c, int64_t n) {
  const char *at = (const char *)x + attn_bytes_(dtype, c);
  if (dtype == ATTN_F32) return (const float *)(const void *)at;
  f->widen(copy, at, 0, NULL, 1, n, dtype, NULL);
  return copy;
}

/* The bits of the magnitudes of the lowest and highest number, 0 included. Bits of magnitudes are
 * ordered as these are, NaN last. */
typedef struct attn_extremes_ {
  uint32_t lo, hi;
} attn_extremes_;

ATTN_FUNC_ attn_extremes_ attn_quant_extremes_(const attn_table_ *f, const void *x,
                                               attn_dtype dtype, int64_t c, int64_t end) {
  attn_extremes_ m = {0, 0};
  float copy[ATTN_QUANT_];
  for (int64_t n; c < end; c += n) {
    n = end - c < ATTN_QUANT_ ? end - c : (int64_t)ATTN_QUANT_;
    const float *p = attn_quant_part_(f, copy, x, dtype, c, n);
    for (int64_t i = 0; i < n; i++) {
      const uint32_t u = attn_to_bits_(p[i]), a = u & 0x7fffffffu;
      const uint32_t minus = 0u - (u >> 31), below = a & minus, above = a & ~minus;
      m.lo = below > m.lo ? below : m.lo;
      m.hi = above > m.hi ? above : m.hi;
    }
  }
  return m;
}

/* 1 when a row of floats holds neither NaN nor infinity. */
ATTN_COLD_ int attn_finite_row_(const attn_table_ *f, const void *x, attn_dtype dtype,
                                int64_t dim) {
  const attn_extremes_ m = attn_quant_extremes_(f, x, dtype, 0, dim);
  return m.lo < 0x7f800000u && m.hi < 0x7f800000u;
}

/* The nearest whole number, the even one of two. In any rounding mode: y - n is exact. */
ATTN_FUNC_ int attn_nearest_(double y) {
  const int n = (int)y;
  const double rest = y - (double)n;
  const int odd = n & 1; /* without branches: signs and halves are not to be guessed */
  return n + ((rest > 0.5) | ((rest == 0.5) & odd)) - ((rest < -0.5) | ((rest == -0.5) & odd));
}

/* The nearest E4M3 number, the even one of two, at most 448 in magnitude. */
ATTN_FUNC_ unsigned char attn_to_e4m3_(double y) {
  uint64_t u;
  memcpy(&u, &y, 8);
  const unsigned sign = (unsigned)(u >> 56) & 0x80u;
  u &= INT64_MAX;
  memcpy(&y, &u, 8);
  if (y >= 448.0) return (unsigned char)(sign | 0x7eu);
  if (y < 0.015625) return (unsigned char)(sign | (unsigned)attn_nearest_(y * 512.0));
  u += ((uint64_t)1 << 48) - 1 + (u >> 49 & 1);
  return (unsigned char)(sign | (unsigned)((u >> 49) - (1016u << 3)));
}

/* The smallest float s > 0 with s * steps >= range, so that nothing is clipped; 1 for 0 */
ATTN_FUNC_ float attn_quant_scale_(double range, double steps) {
  float s = (float)(range / steps);
  if (range == 0.0) return 1.0f;
  if ((double)s * steps < range) s = attn_from_bits_(attn_to_bits_(s) + 1u);
  return s;
}

/* Columns c .. end of a row, which share a scale. c is even. */
ATTN_FUNC_ void attn_quantize_part_(const attn_table_ *f, unsigned char *y, attn_dtype to,
                                    double scale, int zero, const void *x, attn_dtype from,
                                    int64_t c, int64_t end) {
  const int top = attn_quant_top_(to), bottom = -top - 1;
  float copy[ATTN_QUANT_];
  for (int64_t n; c < end; c += n) {
    n = end - c < ATTN_QUANT_ ? end - c : (int64_t)ATTN_QUANT_;
    const float *p = attn_quant_part_(f, copy, x, from, c, n);
    unsigned char *out = y + attn_bytes_(to, c);
    for (int64_t i = 0; i < n; i++) {
      const double q = (double)p[i] / scale;
      if (to == ATTN_E4M3) {
        out[i] = attn_to_e4m3_(q);
        continue;
      }
      int v = attn_nearest_(q) + zero;
      v = v < bottom ? bottom : v > top ? top : v;
      if (to == ATTN_I8)
        out[i] = (unsigned char)v;
      else if (i % 2 == 0)
        out[i / 2] = (unsigned char)(v & 15);
      else
        out[i / 2] = (unsigned char)(out[i / 2] | (v & 15) << 4);
    }
  }
}

/* Quantises a row of finite numbers. scale and zero are the row's own: a number for each group of
 * columns, written; zero null = symmetric, scale null = 1, for ATTN_E4M3 only. */
ATTN_FUNC_ void attn_quantize_row_(const attn_table_ *f, void *y, attn_dtype to, float *scale,
                                   float *zero, int64_t group, const void *x, attn_dtype from,
                                   int64_t dim) {
  const int top = attn_quant_top_(to);
  if (group == 0 || group > dim) group = dim;
  for (int64_t c = 0, g = 0; c < dim; c += group, g++) {
    const int64_t end = dim - c < group ? dim : c + group;
    int z = 0;
    float s = 1.0f;
    if (scale) {
      const attn_extremes_ m = attn_quant_extremes_(f, x, from, c, end);
      const double lo = (double)attn_from_bits_(m.lo), hi = (double)attn_from_bits_(m.hi);
      if (zero) {
        s = attn_quant_scale_(lo + hi, (double)(2 * top + 1));
        z = attn_nearest_(lo / (double)s) - top - 1;
        zero[g] = (float)z;
      } else {
        s = attn_quant_scale_(lo > hi ? lo : hi, (double)top);
      }
      scale[g] = s;
    }
    attn_quantize_part_(f, (unsigned char *)y, to, (double)s, z, x, from, c, end);
  }
}
