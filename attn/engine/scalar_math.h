/* engine/scalar_math.h owns elementary functions of single numbers in double, for what happens once
 * a row or a position. Own code, so that results do not depend on the machine's libm. */

/* Finite stays finite when it becomes a float: -FLT_MAX is a popular "almost -inf". */
ATTN_FUNC_ double attn_clamp_f64_(double x) {
  const double most = (double)FLT_MAX;
  return x > most ? most : x < -most ? -most : x;
}

/* What a call stores: for any NaN the default one, since sign and payload of a computed one depend on processor
 * and compiler. */
ATTN_FUNC_ float attn_one_nan_(float x) { return x == x ? x : attn_from_bits_(0x7fc00000u); }
ATTN_FUNC_ double attn_one_nan_f64_(double x) {
  return x == x ? x : (double)attn_from_bits_(0x7fc00000u);
}

/* The low part of a factor that has none, for pack. Not 0, as inf * 0 is NaN; lost in the rounding of every product but
 * ties, which go one way; and not so small that products with ordinary numbers are subnormal, which takes a core of
 * Intel's 150 cycles a vector. */
ATTN_FUNC_ float attn_least_(float by) {
  const float x = fabsf(by) * 8.673617380e-19f; /* 2^-60 */
  return x > FLT_MIN ? x : FLT_MIN;
}

/* log2 of a normal positive float: e + 2/ln 2 (z + z^3/3 + ...), z = (f-1)/(f+1), |z| < 0.172 */
ATTN_FUNC_ double attn_log2_(float x) {
  uint32_t u = attn_to_bits_(x);
  int e = (int)(u >> 23) - 127;
  double f = (double)attn_from_bits_((u & 0x7fffffu) | 0x3f800000u);
  if (f > 1.4142135623730951) f *= 0.5, e++;
  double z = (f - 1.0) / (f + 1.0), y = z * z, p = 1.0 / 13;
  p = ((((((p * y + 1.0 / 11) * y + 1.0 / 9) * y + 1.0 / 7) * y + 1.0 / 5) * y + 1.0 / 3) * y +
       1.0);
  return (double)e + p * z * (2.0 / ATTN_LN2_);
}

/* Sine and cosine, wrong by less than 1e-11: phi = n pi/2 + r with pi/2 in three parts, the first
 * of which times n is exact up to n = 2^20; then Taylor sums for |r| <= pi/4. */
ATTN_FUNC_ void attn_sincos_(double phi, double *sine, double *cosine) {
  const double round = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
  if (!(phi < 1e6 && phi > -1e6)) {
    *sine = sin(phi), *cosine = cos(phi);
    return;
  }
  double n = (phi * 0.63661977236758134 + round) - round;
  double r = phi - n * 1.57079632673412561417e+00;
  r -= n * 6.07710050630396597660e-11;
  r -= n * 2.02226624879595063154e-21;
  double y = r * r;
  double s = -1.0 / 39916800, c = 1.0 / 479001600;
  s = ((((s * y + 1.0 / 362880) * y - 1.0 / 5040) * y + 1.0 / 120) * y - 1.0 / 6) * y + 1.0;
  c = (((((c * y - 1.0 / 3628800) * y + 1.0 / 40320) * y - 1.0 / 720) * y + 1.0 / 24) * y - 0.5) *
          y +
      1.0;
  s *= r;
  switch ((int)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s;
  }
}

static const double attn_exp_terms_[13] = {1.0 / 479001600,
                                           1.0 / 39916800,
                                           1.0 / 3628800,
                                           1.0 / 362880,
                                           1.0 / 40320,
                                           1.0 / 5040,
                                           1.0 / 720,
                                           1.0 / 120,
                                           1.0 / 24,
                                           1.0 / 6,
                                           0.5,
                                           1.0,
                                           1.0};
/* e^x to 2e-16 of it for any x: 2^n times a Taylor sum for |r| <= ln 2 / 2, ln 2 in two parts. */
ATTN_FUNC_ double attn_exp_f64_(double x) {
  const double round = 6755399441055744.0; /* 1.5 * 2^52 */
  uint64_t half, rest;
  double p = 1.0 / 6227020800.0, low, high;
  if (!(x > -745.5)) return x == x ? 0.0 : x;
  if (x > 709.7) return (double)INFINITY;
  const double n = (x * ATTN_LOG2E_ + round) - round;
  const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  for (int i = 0; i < 13; i++) p = p * r + attn_exp_terms_[i];
  const int e = (int)n, e0 = e / 2;
  half = (uint64_t)(e0 + 1023) << 52, rest = (uint64_t)(e - e0 + 1023) << 52;
  memcpy(&low, &half, 8), memcpy(&high, &rest, 8);
  return p * low * high;
}

/* log(1 + e^x) */
ATTN_FUNC_ double attn_softplus_f64_(double x) {
  const double y = attn_exp_f64_(x > 0.0 ? -x : x), z = y / (2.0 + y), t = z * z;
  double p = 1.0 / 31;
  for (int i = 29; i > 0; i -= 2) p = p * t + 1.0 / i;
  return (x > 0.0 ? x : 0.0) + (x == x ? 2.0 * z * p : x);
}

/* Both of n numbers, the same bits: 8 side by side, for the steps of one wait for each other. y may be x. */
ATTN_FUNC_ void attn_exp_row_f64_(double *y, const double *x, int n) {
  enum { MANY = 8 };
  const double round = 6755399441055744.0;
  if (n == 1) {
    *y = attn_exp_f64_(*x);
    return;
  }
  for (int i = 0; i < n; i += MANY) {
    const int some = n - i < MANY ? n - i : (int)MANY;
    double in[MANY], at[MANY], r[MANY], p[MANY];
    for (int j = 0; j < MANY; j++) in[j] = j < some ? x[i + j] : 0.0;
    for (int j = 0; j < MANY; j++) r[j] = in[j] > -745.5 && in[j] <= 709.7 ? in[j] : 0.0;
    for (int j = 0; j < MANY; j++) {
      at[j] = (r[j] * ATTN_LOG2E_ + round) - round;
      r[j] = (r[j] - at[j] * 6.93147180369123816490e-01) - at[j] * 1.90821492927058770002e-10;
      p[j] = 1.0 / 6227020800.0;
    }
    for (int k = 0; k < 13; k++)
      for (int j = 0; j < MANY; j++) p[j] = p[j] * r[j] + attn_exp_terms_[k];
    for (int j = 0; j < some; j++) {
      const int e = (int)at[j], e0 = e / 2;
      const uint64_t half = (uint64_t)(e0 + 1023) << 52, rest = (uint64_t)(e - e0 + 1023) << 52;
      double low, high;
      memcpy(&low, &half, 8), memcpy(&high, &rest, 8);
      y[i + j] = !(in[j] > -745.5) ? in[j] == in[j] ? 0.0 : in[j]
                 : in[j] > 709.7 ? (double)INFINITY
                                   : p[j] * low * high;
    }
  }
}
ATTN_FUNC_ void attn_softplus_row_f64_(double *y, const double *x, int n) {
  static const double by[] = {1.0 / 29, 1.0 / 27, 1.0 / 25, 1.0 / 23, 1.0 / 21,
                              1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                              1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  enum { MANY = 8 };
  if (n == 1) {
    *y = attn_softplus_f64_(*x);
    return;
  }
  for (int i = 0; i < n; i += MANY) {
    const int some = n - i < MANY ? n - i : (int)MANY;
    double in[MANY], z[MANY], t[MANY], p[MANY];
    for (int j = 0; j < MANY; j++) in[j] = j < some ? x[i + j] : 0.0;
    for (int j = 0; j < MANY; j++) z[j] = in[j] > 0.0 ? -in[j] : in[j];
    attn_exp_row_f64_(z, z, MANY);
    for (int j = 0; j < MANY; j++) z[j] = z[j] / (2.0 + z[j]), t[j] = z[j] * z[j], p[j] = 1.0 / 31;
    for (int k = 0; k < 15; k++)
      for (int j = 0; j < MANY; j++) p[j] = p[j] * t[j] + by[k];
    for (int j = 0; j < some; j++)
      y[i + j] = (in[j] > 0.0 ? in[j] : 0.0) + (in[j] == in[j] ? 2.0 * z[j] * p[j] : in[j]);
  }
}
