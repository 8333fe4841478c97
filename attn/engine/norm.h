/* engine/norm.h owns layer norm and RMS norm of rows of floats: the primitive for many rows, and in double
 * what floats cannot square. */

/* Eight sums in f64, joined by halves. */
ATTN_FUNC_ double attn_row_sum_(const float *x, int64_t n, double shift, int square) {
  double s[8] = {0};
  for (int64_t c = 0; c < n; c++) {
    const double d = (double)x[c] - shift;
    s[c % 8] += square ? d * d : d;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* One row in double; y may be x. */
ATTN_FUNC_ void attn_norm_exact_(float *y, const float *x, int64_t n, const attn_norm *norm) {
  const int rms = norm->kind == ATTN_NORM_RMS;
  const double eps = norm->eps != 0.0f ? (double)norm->eps : rms ? 1e-6 : 1e-5, d = (double)n;
  const double mean = rms ? 0.0 : attn_row_sum_(x, n, 0.0, 0) / d;
  const double by = 1.0 / sqrt(attn_row_sum_(x, n, mean, 1) / d + eps);
  for (int64_t c = 0; c < n; c++) {
    /* as the kernel rounds it */
    const float lift = norm->gain_less_one ? 1.0f : -0.0f,
                gain = norm->gain ? norm->gain[c] + lift : 1.0f;
    const double t = ((double)x[c] - mean) * by * (double)gain;
    const float z = (float)(t + (norm->bias ? (double)norm->bias[c] : 0.0));
    y[c] = attn_one_nan_(z);
  }
}

ATTN_FUNC_ void attn_norm_rows_of_(const attn_table_ *f, const attn_norm_rows_ *all, int64_t rows,
                                   const attn_norm *norm) {
  attn_norm_rows_ a = *all;
  for (int64_t left = rows, run; left > 0; left -= run) {
    run = left < ATTN_TILE_ ? left : (int64_t)ATTN_TILE_;
    uint64_t hard = attn_on_(norm, f)->norm(&a, (int)run, norm);
    for (int64_t r = 0; hard; r++, hard >>= 1) {
      float *y = a.y + r * a.y_stride, *sum = a.sum ? a.sum + r * a.sum_stride : NULL;
      for (int64_t c = 0; sum && (hard & 1) && c < a.n; c++) sum[c] = attn_one_nan_(sum[c]);
      if (hard & 1) attn_norm_exact_(y, sum ? sum : a.more ? y : a.x + r * a.x_stride, a.n, norm);
    }
    a.y += run * a.y_stride, a.x += run * a.x_stride;
    if (a.sum) a.sum += run * a.sum_stride;
    if (a.more) a.more += run * a.more_stride;
  }
}

/* Dense rows in place. */
ATTN_FUNC_ void attn_norm_in_place_(const attn_table_ *f, float *x, int64_t n, int64_t rows,
                                    const attn_norm *norm) {
  const attn_norm_rows_ a = {x, NULL, x, NULL, n, 0, n, 0, n};
  attn_norm_rows_of_(f, &a, rows, norm);
}

/* One row in place. */
ATTN_FUNC_ void attn_row_norm_(const attn_table_ *f, float *x, int64_t n, const attn_norm *norm) {
  attn_norm_in_place_(f, x, n, 1, norm);
}
