/* engine/powers.h owns the powers of two that rows are divided by before they become f16, which ends at 65504 and
 * soon below 1. What a row is divided by hangs on its own numbers alone: so a result cannot hang on keys that its
 * row does not see. f16 that is stored stays as it is. */

/* Rows whose largest number lies between these are not divided; others come to 2^6 .. 2^7. */
#define ATTN_POWER_LEAST_ 0.00390625f
#define ATTN_POWER_MOST_ 32768.0f
/* Weights are stored times 2 to this (isa/simd_f16.h). */
enum { ATTN_WEIGHT_POWER_ = 15 };

/* 2^e for -126 <= e <= 127, and as a double for -1022 <= e <= 1023 */
ATTN_INLINE_ float attn_power_(int e) { return attn_from_bits_((uint32_t)(e + 127) << 23); }
ATTN_INLINE_ double attn_power_f64_(int e) {
  const uint64_t u = (uint64_t)(e + 1023) << 52;
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* e with 2^e <= x < 2^(e + 1), for x > 0 */
ATTN_FUNC_ int attn_exponent_(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return (int)(u >> 52) - 1023;
}

/* The power for numbers up to most, which is finite. */
ATTN_FUNC_ int attn_power_of_(float most) {
  if (most == 0.0f || (most >= ATTN_POWER_LEAST_ && most <= ATTN_POWER_MOST_)) return 0;
  const int e = attn_exponent_((double)most) - 6;
  return e < -126 ? -126 : e;
}

/* Powers of n rows of floats, and in by[i] what they are then times. 1: some power is not 0. */
ATTN_OUTLINE_ int attn_powers_(const attn_low_table_ *low, int16_t *power, float *by,
                               const float *x, int64_t stride, int64_t n, int64_t dim) {
  int any = 0;
  low->peaks(by, x, stride, n, dim);
  for (int64_t i = 0; i < n; i++) {
    float most = by[i];
    if (most - most != 0.0f) { /* of those that are finite */
      most = 0.0f;
      for (int64_t c = 0; c < dim; c++) {
        const float y = x[i * stride + c] < 0.0f ? -x[i * stride + c] : x[i * stride + c];
        if (y - y == 0.0f && y > most) most = y;
      }
    }
    power[i] = (int16_t)attn_power_of_(most);
    by[i] = attn_power_(-power[i]), any |= power[i];
  }
  return any != 0;
}

/* top[lane] = max(top, |x[i][lane]|) of finite numbers */
ATTN_FUNC_ void attn_lane_peaks_(float *top, const float *x, int64_t n, int lanes) {
  for (int64_t i = 0; i < n; i++)
    for (int lane = 0; lane < lanes; lane++) {
      const float a = x[i * ATTN_TILE_ + lane], y = a < 0.0f ? -a : a;
      if (y - y == 0.0f && y > top[lane]) top[lane] = y;
    }
}
ATTN_FUNC_ int attn_lane_powers_(int16_t *power, const float *top) {
  int any = 0;
  for (int lane = 0; lane < ATTN_TILE_; lane++)
    power[lane] = (int16_t)attn_power_of_(top[lane]), any |= power[lane];
  return any != 0;
}

/* pair_tile of x[i][lane] 2^(row[i] + lane[lane]), row null = 0. */
ATTN_OUTLINE_ void attn_power_tile_(const attn_low_table_ *low, uint32_t *to, const float *x, int n,
                                    int lead, int g0, int g1, const int16_t *row,
                                    const int16_t *lane) {
  for (int i = -lead; i < n; i += 2, to += ATTN_TILE_) {
    const int first = i < 0 ? 0 : i, end = i + 2 < n ? i + 2 : n;
    float two[2 * ATTN_TILE_];
    for (int j = first; j < end; j++)
      for (int r = g0 * ATTN_GROUP_; r < g1 * ATTN_GROUP_; r++)
        two[(j - first) * ATTN_TILE_ + r] =
            (float)((double)x[j * ATTN_TILE_ + r] * attn_power_f64_((row ? row[j] : 0) + lane[r]));
    low->pair_tile(to, two, end - first, i < 0, g0, g1);
  }
}

/* Sums are times 2^(row + lane[lane]) times scale: two factors a lane, since the whole may be beyond f32. */
ATTN_OUTLINE_ void attn_units_(float *unit, int row, const int16_t *lane, float scale) {
  for (int r = 0; r < ATTN_TILE_; r++) {
    const int e = row + lane[r], half = e / 2;
    unit[r] = attn_power_(half) * scale, unit[ATTN_TILE_ + r] = attn_power_(e - half);
  }
}

/* The row after i whose power is another one, or end. */
ATTN_FUNC_ int64_t attn_powers_run_(const int16_t *power, int64_t i, int64_t end) {
  int64_t to = i + 1;
  while (to < end && power[to] == power[i]) to++;
  return to;
}
