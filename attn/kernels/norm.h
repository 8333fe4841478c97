/* kernels/norm.h owns layer norm and RMS norm of rows, the divisions of many of them at once, and the two loops of
 * norms of one row: moments, and what is made of them. */

/* A row's sums run in vectors enough to hide the latency of an addition. */
enum { ATTN_FN_(norm_parts) = 32 / ATTN_W_ };

/* What the first pass does beside summing, and about what. */
enum { ATTN_FN_(norm_plain), ATTN_FN_(norm_adds), ATTN_FN_(norm_centred) };

/* Columns c .. c + left - 1, 32 at most: s += t, q += t^2 with t = x, t = x + more, which goes to `to`, or
 * t = x - mean. */
ATTN_INLINE_ void ATTN_FN_(norm_moments32)(ATTN_VF_ *s, ATTN_VF_ *q, const float *x,
                                           const float *more, float *to, ATTN_VF_ mean, int64_t c,
                                           int64_t left, const int mode) {
  ATTN_UNROLL_
  for (int p = 0; p < ATTN_FN_(norm_parts); p++) {
    const int64_t at = c + p * ATTN_W_, have = left - p * ATTN_W_;
    const int w = have < ATTN_W_ ? (int)have : ATTN_W_;
    if (w <= 0) continue;
    ATTN_VF_ t = ATTN_FN_(load)(x, at, w, ATTN_F32);
    if (mode == ATTN_FN_(norm_adds)) {
      if (more) t = ATTN_V_ADD_(t, ATTN_FN_(load)(more, at, w, ATTN_F32));
      ATTN_FN_(store)(to, at, t, w, ATTN_F32);
    } else if (mode == ATTN_FN_(norm_centred)) {
      t = ATTN_V_SUB_(t, mean);
      if (w < ATTN_W_) t = ATTN_V_SELECT_(ATTN_V_BITS_(((uint64_t)1 << w) - 1), t, ATTN_V_ZERO_());
    }
    s[p] = ATTN_V_ADD_(s[p], t);
    q[p] = ATTN_V_FMA_(t, t, q[p]);
  }
}

/* The sum of 32 running sums, down to a vector: always halves of what is left. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(norm_join)(ATTN_VF_ *part) {
  enum { HALF = ATTN_FN_(norm_parts) / 2 };
  ATTN_UNROLL_
  for (int i = 0; i < HALF; i++) part[i] = ATTN_V_ADD_(part[i], part[i + HALF]);
  return ATTN_FN_(row_join)(part);
}

/* The same of a row: a vector of sums and one of squares. */
ATTN_INLINE_ void ATTN_FN_(norm_moments)(ATTN_VF_ *sum, ATTN_VF_ *square, const attn_norm_rows_ *a,
                                         float *to, int64_t to_stride, int r, float shift,
                                         const int mode) {
  ATTN_VF_ s[ATTN_FN_(norm_parts)], q[ATTN_FN_(norm_parts)];
  const ATTN_VF_ mean = ATTN_V_SET1_(shift);
  const int64_t n = a->n;
  const float *x = a->x + r * a->x_stride, *more = a->more ? a->more + r * a->more_stride : NULL;
  int64_t c = 0;
  if (to) to += r * to_stride; /* null: nothing is written */
  ATTN_UNROLL_
  for (int p = 0; p < ATTN_FN_(norm_parts); p++) s[p] = q[p] = ATTN_V_ZERO_();
  for (; c + 32 <= n; c += 32) ATTN_FN_(norm_moments32)(s, q, x, more, to, mean, c, 32, mode);
  if (c < n) ATTN_FN_(norm_moments32)(s, q, x, more, to, mean, c, n - c, mode);
  *sum = ATTN_FN_(norm_join)(s), *square = ATTN_FN_(norm_join)(q);
}

/* What is known of a few rows between their two passes. */
typedef struct ATTN_FN_(norm_group_) {
  float mean[ATTN_W_], by[ATTN_W_], plus[ATTN_W_];
  uint64_t bad; /* rows that are left out */
} ATTN_FN_(norm_group_);

/* A row of the last pass: y = ((x - mean) by + plus) gain + bias. */
typedef struct ATTN_FN_(norm_row_) {
  float *y;
  const float *x;
  ATTN_VF_ mean, by, plus;
} ATTN_FN_(norm_row_);

ATTN_INLINE_ ATTN_FN_(norm_row_)
    ATTN_FN_(norm_row)(const attn_norm_rows_ *a, const ATTN_FN_(norm_group_) *g, int at, int r) {
  const ATTN_FN_(norm_row_) row = {a->y + r * a->y_stride, a->x + r * a->x_stride,
                                   ATTN_V_SET1_(g->mean[at]), ATTN_V_SET1_(g->by[at]),
                                   ATTN_V_SET1_(g->plus[at])};
  return row;
}

ATTN_INLINE_ void ATTN_FN_(norm_put)(const ATTN_FN_(norm_row_) *a, ATTN_VF_ gain, ATTN_VF_ bias,
                                     int64_t c, int w) {
  const ATTN_VF_ t = ATTN_V_SUB_(ATTN_FN_(load)(a->x, c, w, ATTN_F32), a->mean);
  ATTN_FN_(store)(a->y, c, ATTN_V_FMA_(ATTN_V_FMA_(t, a->by, a->plus), gain, bias), w, ATTN_F32);
}

/* One vector of the rows a and b, which share the loads of gain, plus lift, and bias; b null: of a. */
ATTN_INLINE_ void ATTN_FN_(norm_make)(const ATTN_FN_(norm_row_) *a, const ATTN_FN_(norm_row_) *b,
                                      const float *gain, ATTN_VF_ lift, const float *bias,
                                      int64_t c, int w) {
  const ATTN_VF_ f =
      gain ? ATTN_V_ADD_(ATTN_FN_(load)(gain, c, w, ATTN_F32), lift) : ATTN_V_SET1_(1.0f);
  const ATTN_VF_ more = bias ? ATTN_FN_(load)(bias, c, w, ATTN_F32) : ATTN_V_ZERO_();
  ATTN_FN_(norm_put)(a, f, more, c, w);
  if (b) ATTN_FN_(norm_put)(b, f, more, c, w);
}

ATTN_INLINE_ void ATTN_FN_(norm_write)(const ATTN_FN_(norm_row_) *a, const ATTN_FN_(norm_row_) *b,
                                       const float *gain, float less, const float *bias,
                                       int64_t n) {
  const ATTN_VF_ lift = ATTN_V_SET1_(less);
  int64_t c = 0;
  for (; c + 2 * ATTN_W_ <= n; c += 2 * ATTN_W_) {
    ATTN_FN_(norm_make)(a, b, gain, lift, bias, c, ATTN_W_);
    ATTN_FN_(norm_make)(a, b, gain, lift, bias, c + ATTN_W_, ATTN_W_);
  }
  for (; c < n; c += ATTN_W_)
    ATTN_FN_(norm_make)(a, b, gain, lift, bias, c, ATTN_FN_(lanes_left)(n, c));
}

ATTN_INLINE_ void ATTN_FN_(norm_last)(const ATTN_FN_(norm_row_) *a, const ATTN_FN_(norm_row_) *b,
                                      const attn_norm *norm, int64_t n) {
  const float less = norm->gain_less_one ? 1.0f : -0.0f;
  if (norm->gain && norm->bias)
    ATTN_FN_(norm_write)(a, b, norm->gain, less, norm->bias, n);
  else if (norm->gain)
    ATTN_FN_(norm_write)(a, b, norm->gain, less, NULL, n);
  else
    ATTN_FN_(norm_write)(a, b, NULL, less, norm->bias, n);
}

/* What belongs to a row is made in lanes, a vector of rows at a time: of sums s and squares q about a shift,
 * how far the mean is from it, and v = variance + eps. Returns the lanes where v is more than rounding: it
 * is within what floats hold, and not much less than what was subtracted. RMS: the mean counts as 0. */
ATTN_INLINE_ uint64_t ATTN_FN_(norm_judge)(ATTN_VF_ *off, ATTN_VF_ *v, ATTN_VF_ *s, ATTN_VF_ *q,
                                           ATTN_VF_ n, ATTN_VF_ eps, int rms) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), d = rms ? zero : ATTN_V_DIV_(ATTN_V_SUMS_(s), n);
  ATTN_VF_ t = ATTN_V_FMA_(ATTN_V_SUB_(zero, d), d, ATTN_V_DIV_(ATTN_V_SUMS_(q), n));
  t = ATTN_V_ADD_(ATTN_V_MAX_(zero, t), eps);
  *off = d, *v = t;
  return ATTN_V_CHOSEN_(ATTN_V_LT_(t, ATTN_V_SET1_(1e30f))) &
         ATTN_V_CHOSEN_(ATTN_V_LT_(ATTN_V_SET1_(1e-20f), t)) &
         ~ATTN_V_CHOSEN_(ATTN_V_LT_(ATTN_V_MUL_(t, ATTN_V_SET1_(4.0f)), ATTN_V_MUL_(d, d)));
}

/* The first pass of `some` rows from r0 on: moments about 0, and again about the mean those of rows whose
 * mean is large against their deviation. from: where the rows stand afterwards. */
ATTN_OUTLINE_ void ATTN_FN_(norm_first)(ATTN_FN_(norm_group_) *g, const attn_norm_rows_ *a,
                                        const attn_norm_rows_ *from, float *to, int64_t to_stride,
                                        int r0, int some, float e, int rms) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), n = ATTN_V_SET1_((float)a->n), eps = ATTN_V_SET1_(e);
  const int adds = a->more || a->sum;
  ATTN_VF_ s[ATTN_W_], q[ATTN_W_], off, v, less = zero;
  for (int r = 0; r < ATTN_W_; r++)
    if (r >= some)
      s[r] = q[r] = zero;
    else if (adds)
      ATTN_FN_(norm_moments)(s + r, q + r, a, to, to_stride, r0 + r, 0.0f, ATTN_FN_(norm_adds));
    else
      ATTN_FN_(norm_moments)(s + r, q + r, a, to, to_stride, r0 + r, 0.0f, ATTN_FN_(norm_plain));
  uint64_t bad = ~ATTN_FN_(norm_judge)(&off, &v, s, q, n, eps, rms) & (((uint64_t)1 << some) - 1);
  ATTN_V_STORE_(g->mean, off);
  if (ATTN_RARE_(bad)) {
    const ATTN_VM_ again = ATTN_V_BITS_(bad);
    ATTN_VF_ u;
    for (int r = 0; r < ATTN_W_; r++)
      if (bad >> r & 1)
        ATTN_FN_(norm_moments)(s + r, q + r, from, to, 0, r0 + r, g->mean[r],
                               ATTN_FN_(norm_centred));
      else
        s[r] = q[r] = zero;
    bad &= ~ATTN_FN_(norm_judge)(&off, &u, s, q, n, eps, rms);
    v = ATTN_V_SELECT_(again, u, v);
    less = ATTN_V_SELECT_(again, ATTN_V_SUB_(zero, off), zero);
  }
  v = ATTN_V_DIV_(ATTN_V_SET1_(1.0f), ATTN_V_SQRT_(v));
  ATTN_V_STORE_(g->by, v);
  ATTN_V_STORE_(g->plus, ATTN_V_MUL_(less, v));
  g->bad = bad;
}

/* Rows that were not left out are finite, unless gain or bias are not: then all of them are NaN or infinite
 * at the same places, and one row tells. */
ATTN_INLINE_ void ATTN_FN_(norm_quiet)(const attn_norm_rows_ *a, int rows, uint64_t hard) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  const uint64_t all = ((uint64_t)1 << ATTN_W_) - 1;
  ATTN_VF_ t = zero;
  int r = 0;
  while (r < rows && hard >> r & 1) r++;
  if (r == rows) return;
  for (int64_t c = 0; c < a->n; c += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(a->n, c);
    t = ATTN_V_FMA_(ATTN_FN_(load)(a->y + r * a->y_stride, c, w, ATTN_F32), zero, t);
  }
  if ((ATTN_V_CHOSEN_(ATTN_V_EQ_(t, t)) & all) == all) return;
  for (r = 0; r < rows; r++)
    for (int64_t c = 0; c < a->n; c += ATTN_W_) {
      const int w = ATTN_FN_(lanes_left)(a->n, c);
      float *y = a->y + r * a->y_stride;
      if (!(hard >> r & 1))
        ATTN_FN_(store)(y, c, ATTN_FN_(quiet)(ATTN_FN_(load)(y, c, w, ATTN_F32)), w, ATTN_F32);
    }
}

/* A group is as many rows as a vector, fewer where two groups fill the first cache. The first pass runs
 * before the last one of the group before: its chain of divisions waits beside their work. */
ATTN_FUNC_ uint64_t ATTN_FN_(norm)(const attn_norm_rows_ *a, int rows, const attn_norm *norm) {
  const int rms = norm->kind == ATTN_NORM_RMS;
  const float eps = norm->eps != 0.0f ? norm->eps : rms ? 1e-6f : 1e-5f;
  const int fit = a->n <= 192 ? 16 : a->n <= 384 ? 8 : 2, most = fit < ATTN_W_ ? fit : ATTN_W_;
  float *to = a->sum ? a->sum : a->y;
  const int64_t to_stride = a->sum ? a->sum_stride : a->y_stride;
  ATTN_FN_(norm_group_) group[2];
  attn_norm_rows_ from = *a;
  uint64_t hard = 0;
  if (a->more || a->sum) from.x = to, from.x_stride = to_stride, from.more = NULL;
  for (int r = 0; r < rows + most; r += most) {
    const int done = r - most, end = r < rows ? r : rows;
    if (r < rows)
      ATTN_FN_(norm_first)(&group[r / most % 2], a, &from, to, to_stride, r,
                           rows - r < most ? rows - r : most, eps, rms);
    const ATTN_FN_(norm_group_) *g = &group[(r / most + 1) % 2];
    for (int i = done < 0 ? 0 : done, two; i < end; i += 1 + two) {
      const uint64_t bad = g->bad >> (i - done);
      two = i + 2 <= end && !(bad & 3);
      if (bad & 1) continue;
      const ATTN_FN_(norm_row_) row = ATTN_FN_(norm_row)(&from, g, i - done, i);
      if (two) {
        const ATTN_FN_(norm_row_) next = ATTN_FN_(norm_row)(&from, g, i - done + 1, i + 1);
        ATTN_FN_(norm_last)(&row, &next, norm, a->n);
      } else {
        ATTN_FN_(norm_last)(&row, NULL, norm, a->n);
      }
    }
    if (done >= 0) hard |= g->bad << done;
  }
  ATTN_FN_(norm_quiet)(a, rows, hard);
  return hard;
}

ATTN_FUNC_ uint64_t ATTN_FN_(sizes)(float *size, const attn_norm_rows_ *a, int rows, float eps,
                                    int rms) {
  ATTN_FN_(norm_group_) g;
  uint64_t hard = 0;
  for (int r = 0; r < rows; r += ATTN_W_) {
    const int some = rows - r < ATTN_W_ ? rows - r : ATTN_W_;
    ATTN_FN_(norm_first)(&g, a, a, a->y, 0, r, some, eps, rms);
    for (int i = 0; i < some; i++, size += 3)
      size[0] = g.mean[i], size[1] = g.by[i], size[2] = g.plus[i];
    hard |= g.bad << r;
  }
  return hard;
}

/* One vector of a row, f = gain. */
ATTN_INLINE_ void ATTN_FN_(resize_put)(float *y, const float *x, ATTN_VF_ mean, ATTN_VF_ by,
                                       ATTN_VF_ plus, ATTN_VF_ f, int64_t c, int w) {
  const ATTN_VF_ t = ATTN_V_SUB_(ATTN_FN_(load)(x, c, w, ATTN_F32), mean);
  const ATTN_VF_ u = ATTN_V_FMA_(ATTN_V_FMA_(t, by, plus), f, ATTN_V_ZERO_());
  ATTN_FN_(store)(y, c, ATTN_FN_(quiet)(u), w, ATTN_F32);
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(resize_gain)(const float *gain, ATTN_VF_ lift, int64_t c, int w) {
  return gain ? ATTN_V_ADD_(ATTN_FN_(load)(gain, c, w, ATTN_F32), lift) : ATTN_V_SET1_(1.0f);
}

ATTN_FUNC_ void ATTN_FN_(resize)(const attn_norm_rows_ *a, int rows, const float *size,
                                 const float *gain, float lift) {
  const ATTN_VF_ less = ATTN_V_SET1_(lift);
  const float *x = a->x;
  float *y = a->y;
  for (int r = 0; r < rows; r++, x += a->x_stride, y += a->y_stride, size += 3) {
    const ATTN_VF_ mean = ATTN_V_SET1_(size[0]), by = ATTN_V_SET1_(size[1]);
    const ATTN_VF_ plus = ATTN_V_SET1_(size[2]);
    int64_t c = 0;
    for (; c + ATTN_W_ <= a->n; c += ATTN_W_)
      ATTN_FN_(resize_put)(y, x, mean, by, plus, ATTN_FN_(resize_gain)(gain, less, c, ATTN_W_), c,
                           ATTN_W_);
    if (c < a->n) {
      const int w = ATTN_FN_(lanes_left)(a->n, c);
      ATTN_FN_(resize_put)(y, x, mean, by, plus, ATTN_FN_(resize_gain)(gain, less, c, w), c, w);
    }
  }
}

/* out = sum of x - shift, and of its square, each over 16 running sums joined by halves. */
ATTN_FUNC_ void ATTN_FN_(moments)(float *out, const float *x, int64_t n, float shift) {
  enum { PARTS = 16 / ATTN_W_ };
  const ATTN_VF_ from = ATTN_V_SET1_(shift);
  ATTN_VF_ s[PARTS], q[PARTS];
  for (int i = 0; i < PARTS; i++) s[i] = q[i] = ATTN_V_ZERO_();
  for (int64_t c = 0; c < n; c += 16) {
    float tail[16];
    const float *at = x + c;
    if (n - c < 16) {
      for (int i = 0; i < 16; i++) tail[i] = c + i < n ? at[i] : shift;
      at = tail;
    }
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) {
      const ATTN_VF_ t = ATTN_V_SUB_(ATTN_V_LOAD_(at + i * ATTN_W_), from);
      s[i] = ATTN_V_ADD_(s[i], t);
      q[i] = ATTN_V_FMA_(t, t, q[i]);
    }
  }
  out[0] = ATTN_FN_(row_sum)(s), out[1] = ATTN_FN_(row_sum)(q);
}

/* x = ((x - shift) by + plus) gain + bias; gain null = 1, bias null = 0 */
ATTN_FUNC_ void ATTN_FN_(normalise)(float *x, int64_t n, float shift, float by, float plus,
                                    const float *gain, const float *bias) {
  const ATTN_VF_ from = ATTN_V_SET1_(shift), times = ATTN_V_SET1_(by), more = ATTN_V_SET1_(plus);
  for (int64_t c = 0; c < n; c += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(n, c);
    ATTN_VF_ t = ATTN_V_SUB_(ATTN_FN_(load)(x, c, w, ATTN_F32), from);
    t = ATTN_V_FMA_(t, times, more);
    if (gain)
      t = ATTN_V_FMA_(t, ATTN_FN_(load)(gain, c, w, ATTN_F32),
                      bias ? ATTN_FN_(load)(bias, c, w, ATTN_F32) : ATTN_V_ZERO_());
    else if (bias)
      t = ATTN_V_ADD_(t, ATTN_FN_(load)(bias, c, w, ATTN_F32));
    ATTN_FN_(store)(x, c, t, w, ATTN_F32);
  }
}
