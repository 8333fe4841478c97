/* engine/normal.h owns reproducible random numbers: integers below a bound and normals as functions of
 * (seed, stream, n), and rows of orthogonal matrices made of them. The same on every machine. */

/* Every operation is rounded to double by itself. The strict region sees to that where the compiler
 * obeys it and registers are no wider; elsewhere each result goes through memory. */
#if (defined(ATTN_GCC_) || defined(ATTN_CLANG_)) && defined(FLT_EVAL_METHOD)
#if FLT_EVAL_METHOD == 0
#define ATTN_F64_(x) (x)
#endif
#endif
#ifndef ATTN_F64_
ATTN_COLD_ double attn_f64_(double x) {
  volatile double y = x;
  return y;
}
#define ATTN_F64_(x) attn_f64_(x)
#endif

ATTN_PUB_ uint64_t attn_random_u64(uint64_t seed, uint64_t stream, uint64_t n) {
  const uint64_t gamma = 0x9E3779B97F4A7C15u;
  const uint64_t base = attn_mix64_(seed + gamma * (stream + 1));
  return attn_mix64_(base + gamma * (n + 1));
}

ATTN_PUB_ int64_t attn_random_below(uint64_t seed, uint64_t stream, uint64_t n, int64_t below) {
  if (below < 1) return 0;
  const uint64_t u = attn_random_u64(seed, stream, n), b = (uint64_t)below, low = 0xffffffffu;
  /* the high half of u b, by halves */
  const uint64_t t = (u & low) * (b & low) >> 32, mid = (u >> 32) * (b & low) + t;
  const uint64_t side = (u & low) * (b >> 32) + (mid & low);
  return (int64_t)((u >> 32) * (b >> 32) + (mid >> 32) + (side >> 32));
}

ATTN_FUNC_ double attn_horner_(const double *c, double x) {
  double y = c[7];
  for (int i = 6; i >= 0; i--) y = ATTN_F64_(ATTN_F64_(y * x) + c[i]);
  return y;
}

/* ln p of a normal p > 0: p = m 2^e with m in [sqrt 1/2, sqrt 2), ln m = 2 atanh((m - 1) / (m + 1)) */
ATTN_FUNC_ double attn_ln_(double p) {
  static const double odd[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                               1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  uint64_t u;
  memcpy(&u, &p, sizeof u);
  double e = (double)(int)(u >> 52) - 1022.0, m, a = odd[10];
  u = (u & 0xfffffffffffffu) | (uint64_t)1022 << 52;
  memcpy(&m, &u, sizeof m);
  if (m < 0.70710678118654757) m = 2.0 * m, e -= 1.0; /* 0x1.6a09e667f3bcdp-1 */
  const double t = ATTN_F64_(ATTN_F64_(m - 1.0) / ATTN_F64_(m + 1.0)), t2 = ATTN_F64_(t * t);
  for (int k = 9; k >= 0; k--) a = ATTN_F64_(ATTN_F64_(a * t2) + odd[k]);
  return ATTN_F64_(ATTN_F64_(e * 0.69314718055994529) + ATTN_F64_(ATTN_F64_(2.0 * t) * a));
}

/* The normal of 64 random bits: the inverse of its distribution at the middle of one of 2^52 equal
 * intervals (AS 241, PPND16). */
ATTN_FUNC_ double attn_normal_of_(uint64_t bits) {
  static const double c[6][8] = {
      {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
       1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
       3.3430575583588128105e4, 2.5090809287301226727e3},
      {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
       2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
       5.2264952788528545610e3},
      {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
       3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
       2.27238449892691845833e-2, 7.74545014278341407640e-4},
      {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
       1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
       1.05075007164441684324e-9},
      {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
       2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
       2.71155556874348757815e-5, 2.01033439929228813265e-7},
      {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
       7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
       2.04426310338993978564e-15}};
  const double p = ((double)(int64_t)(bits >> 12) + 0.5) / 4503599627370496.0; /* exact */
  const double q = p - 0.5;
  if (q <= 0.425 && q >= -0.425) {
    const double r = ATTN_F64_(0.180625 - ATTN_F64_(q * q));
    return ATTN_F64_(ATTN_F64_(q * attn_horner_(c[0], r)) / attn_horner_(c[1], r));
  }
  double r = ATTN_F64_(sqrt(-attn_ln_(q < 0.0 ? p : 1.0 - p)));
  const int far = r > 5.0;
  r = ATTN_F64_(r - (far ? 5.0 : 1.6));
  const double z = ATTN_F64_(attn_horner_(c[far ? 4 : 2], r) / attn_horner_(c[far ? 5 : 3], r));
  return q < 0.0 ? -z : z;
}

ATTN_PUB_ double attn_random_normal(uint64_t seed, uint64_t stream, uint64_t n) {
  return attn_normal_of_(attn_random_u64(seed, stream, n));
}

/* x . y, in order */
ATTN_FUNC_ double attn_dot_f64_(const double *x, const double *y, int64_t n) {
  double sum = 0.0;
  for (int64_t c = 0; c < n; c++) sum = ATTN_F64_(sum + ATTN_F64_(x[c] * y[c]));
  return sum;
}

/* Turns row n of a block (before it: n orthonormal rows) orthogonal to them and of length 1, by
 * Gram-Schmidt done twice; 0 if nothing is left of it. */
ATTN_FUNC_ int attn_orthogonal_row_(double *rows, int64_t n, int64_t dim) {
  double *v = rows + n * dim;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t r = 0; r < n; r++) {
      const double *w = rows + r * dim, a = attn_dot_f64_(v, w, dim);
      for (int64_t c = 0; c < dim; c++) v[c] = ATTN_F64_(v[c] - ATTN_F64_(a * w[c]));
    }
  const double square = attn_dot_f64_(v, v, dim);
  if (!(square >= DBL_MIN && square <= DBL_MAX)) return 0;
  const double length = ATTN_F64_(sqrt(square));
  for (int64_t c = 0; c < dim; c++) v[c] = ATTN_F64_(v[c] / length);
  return 1;
}
