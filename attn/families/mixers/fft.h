/* families/mixers/fft.h owns discrete Fourier transforms of any length, of many columns at once: mixed radices
 * up to 31 in place, and Bluestein's convolution for the lengths that have a larger prime factor.
 *
 * Rows are those of kernels/fourier.h. Output k of a transform stands in row attn_fft_row_(p, k): steps
 * from large pieces to small ones leave the digits of k in reversed order, and whoever reads the rows may
 * as well read them in that order. */

typedef struct attn_fft_ {
  int64_t n; /* the length */
  int64_t m; /* of the transform that is computed: n, or Bluestein's power of 2 */
  int steps; /* radix[i] of step i, the largest pieces first */
  int radix[64];
  float *root;   /* [m], cosine and sine of 2 pi k / m */
  int32_t *at;   /* [m], the row of output k of that transform */
  float *chirp;  /* [n], of pi k^2 / n; null = no convolution */
  float *filter; /* [m], in the order of rows */
} attn_fft_;

/* Bytes of rows that a transform should have left before it goes on with pieces one by one. */
enum { ATTN_FFT_NEAR_ = 32768 };

/* cos and sin of 2 pi k / n for 0 <= k < n: an eighth of a turn at most is left to the series, so that
 * symmetries are exact. */
ATTN_COLD_ void attn_root_(float *to, int64_t k, int64_t n) {
  const int64_t eighth = 8 * k / n, past = 8 * k - eighth * n;
  const int odd = (int)(eighth & 1), quarter = (int)((eighth + odd) / 2 & 3);
  double s, c;
  attn_sincos_((double)(odd ? n - past : past) / (double)n * 0.78539816339744830962, &s, &c);
  if (odd) s = -s;
  to[0] = (float)(quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s);
  to[1] = (float)(quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c);
}

/* The power of 2 in which a cyclic convolution of length n has room. */
ATTN_COLD_ int64_t attn_fft_padded_(int64_t n) {
  int64_t m = 1;
  while (m < 2 * n - 1) m *= 2;
  return m;
}

/* Rows that a transform of length n needs; of any length up to n if any. */
ATTN_COLD_ int64_t attn_fft_rows_(int64_t n, int any) {
  int64_t left = n;
  for (int64_t r = 2; r <= ATTN_RADIX_; r++)
    while (left % r == 0) left /= r;
  return left > 1 || (any && n > ATTN_RADIX_) ? attn_fft_padded_(n) : n;
}

/* Memory for lengths that need up to `rows` rows, which lasts as long as the call. */
ATTN_COLD_ void attn_fft_take_(attn_fft_ *p, attn_stage_ *s, int64_t n, int64_t rows) {
  p->n = 0;
  p->root = (float *)attn_stage_take_(s, rows, 8);
  p->at = (int32_t *)attn_stage_take_(s, rows, 4);
  p->chirp = p->filter = NULL;
  if (rows == n) return;
  p->chirp = (float *)attn_stage_take_(s, n, 8);
  p->filter = (float *)attn_stage_take_(s, rows, 8);
}

/* Step by step from `step` on, which finds pieces of n rows. */
ATTN_COLD_ void attn_fft_steps_(const attn_fft_ *p, const attn_table_ *f, float *x, int64_t half,
                                int lanes, int step, int64_t n) {
  const int near = n <= ATTN_FFT_NEAR_ / (8 * half);
  for (int64_t count = 1; step < p->steps; step++) {
    const int r = p->radix[step];
    n /= r;
    attn_on_(fourier, f)->butterflies(x, half, lanes, count, n, r, p->root, p->m);
    count *= r;
    if (near) continue;
    for (int k = 0; k < r; k++)
      attn_fft_steps_(p, f, x + k * n * 2 * half, half, lanes, step + 1, n);
    return;
  }
}

/* The radices: 4 outside, the odd ones and what is left of the power of 2 in the middle. Without odd ones
 * the list can be read from either end, and then `at` exchanges rows in pairs. */
ATTN_COLD_ void attn_fft_radices_(attn_fft_ *p) {
  int64_t left = p->m;
  int twos = 0;
  while (left % 2 == 0) left /= 2, twos++;
  p->steps = 0;
  for (int i = 0; i < twos / 4; i++) p->radix[p->steps++] = 4;
  for (int64_t r = 3; left > 1; r += 2)
    for (; left % r == 0; left /= r) p->radix[p->steps++] = (int)r;
  if (twos % 4 > 1 && (twos % 4 == 2 || p->m == p->n)) p->radix[p->steps++] = 4, twos -= 2;
  for (int i = 0; i < twos % 4; i++) p->radix[p->steps++] = 2;
  for (int i = 0; i < twos / 4; i++) p->radix[p->steps++] = 4;
}

/* Tables for length n; spare: rows of 16 columns. */
ATTN_COLD_ void attn_fft_open_(attn_fft_ *p, const attn_table_ *f, int64_t n, float *spare) {
  if (p->n == n) return;
  p->n = n, p->m = attn_fft_rows_(n, 0);
  attn_fft_radices_(p);
  const int64_t m = p->m;
  for (int64_t k = 0; k < m; k++) {
    int64_t digits = k, size = m, row = 0;
    for (int i = 0; i < p->steps; i++) {
      size /= p->radix[i];
      row += digits % p->radix[i] * size;
      digits /= p->radix[i];
    }
    p->at[k] = (int32_t)row;
    attn_root_(p->root + 2 * k, k, m);
  }
  if (m == n) return;
  memset(spare, 0, (size_t)m * 32 * sizeof(float));
  for (int64_t k = 0; k < n; k++) {
    float *w = p->chirp + 2 * k;
    attn_root_(w, k * k % (2 * n), 2 * n);
    for (int i = 0; i < 2; i++) {
      float *row = spare + (i && k ? m - k : k) * 32;
      row[0] = w[0], row[16] = w[1];
    }
  }
  attn_fft_steps_(p, f, spare, 16, 16, 0, m);
  for (int64_t k = 0; k < m; k++) { /* m is a power of 2 */
    p->filter[2 * k] = spare[32 * k] / (float)m;
    p->filter[2 * k + 1] = -spare[32 * k + 16] / (float)m;
  }
}

ATTN_FUNC_ int64_t attn_fft_row_(const attn_fft_ *p, int64_t k) {
  return p->m == p->n ? p->at[k] : p->at[k ? p->m - k : 0];
}

/* Transforms rows 0 .. n - 1 of x, which has room for m. With w_k = e^(-i pi k^2 / n)
 *   X_k = w_k sum_j (x_j w_j) conj(w_{k-j}),
 * a convolution; a second forward transform in place of an inverse one turns the order round. */
ATTN_FUNC_ void attn_fft_run_(const attn_fft_ *p, const attn_table_ *f, float *x, int64_t half,
                              int lanes) {
  const int64_t n = p->n, m = p->m, row = 2 * half;
  if (m == n) {
    attn_fft_steps_(p, f, x, half, lanes, 0, n);
    return;
  }
  attn_on_(fourier, f)->butterflies(x, half, lanes, 1, n, 1, p->chirp, n);
  memset(x + n * row, 0, (size_t)((m - n) * row) * sizeof(float));
  attn_fft_steps_(p, f, x, half, lanes, 0, m);
  attn_on_(fourier, f)->butterflies(x, half, lanes, 1, m, 1, p->filter, m);
  for (int64_t k = 0; k < m; k++) {
    float *a = x + k * row, *b = x + p->at[k] * row;
    for (int64_t i = 0; a < b && i < row; i++) {
      const float t = a[i];
      a[i] = b[i], b[i] = t;
    }
  }
  attn_fft_steps_(p, f, x, half, lanes, 0, m);
  for (int64_t k = 0; k < n; k++)
    attn_on_(fourier, f)
        ->butterflies(x + attn_fft_row_(p, k) * row, half, lanes, 1, 1, 1, p->chirp + 2 * k, 1);
}
