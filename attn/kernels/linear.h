/* kernels/linear.h owns the sums of a linear state and its recurrent step. Even and odd rows of S are two
 * chains, the same on every tier.
 *
 * A sum s has a rest beside it: what is not yet in s, because s is rounded or only read so far. Steps add
 * to the rest; now and then it joins s, without a loss, so that the error does not grow with the steps. */

/* s + rest = s + y, s being the sum rounded. Where y is the larger one a little of it is lost. */
#define ATTN_CARRY_(s, rest, y)                 \
  {                                             \
    const ATTN_VF_ was = s;                     \
    s = ATTN_V_ADD_(was, y);                    \
    rest = ATTN_V_SUB_(y, ATTN_V_SUB_(s, was)); \
  }
/* s = s alpha, rounded; y += what that lost */
#define ATTN_FADE_(s, y, alpha)                       \
  {                                                   \
    const ATTN_VF_ full = s;                          \
    s = ATTN_V_MUL_(full, alpha);                     \
    y = ATTN_V_ADD_(y, ATTN_V_SLIP_(full, alpha, s)); \
  }

#define ATTN_STEP_EACH_(f, r, sum) f(0, r, sum) f(1, r, sum) f(2, r, sum) f(3, r, sum)
#define ATTN_STEP_OPEN_(i, r, sum)                                     \
  ATTN_VF_ even##i = ATTN_V_ZERO_(), odd##i = even##i, v##i = even##i; \
  if (writes && vecs > i) v##i = ATTN_V_LOAD_(v + c + i * ATTN_W_);    \
  (void)even##i, (void)odd##i, (void)v##i;
#define ATTN_STEP_ADD_(i, r, sum)                                                            \
  if (vecs > i) {                                                                            \
    ATTN_VF_ y = ATTN_V_LOAD_(r##_rest + i * ATTN_W_);                                       \
    if (writes) {                                                                            \
      y = ATTN_V_FMA_(pr, v##i, ATTN_V_MUL_(y, keep));                                       \
      ATTN_V_STORE_(r##_rest + i * ATTN_W_, y);                                              \
    }                                                                                        \
    if (reads)                                                                               \
      sum##i = ATTN_V_FMA_(qr, ATTN_V_FMA_(ATTN_V_LOAD_(r + i * ATTN_W_), left, y), sum##i); \
  }
#define ATTN_STEP_ROW_(at, sum)                                        \
  {                                                                    \
    const float *row = sums->s + (at)*sums->stride + c;                \
    float *row_rest = sums->rest + (at)*sums->stride + c;              \
    const ATTN_VF_ pr = writes ? ATTN_V_SET1_(p[at]) : ATTN_V_ZERO_(); \
    const ATTN_VF_ qr = reads ? ATTN_V_SET1_(q[at]) : ATTN_V_ZERO_();  \
    (void)pr, (void)qr, (void)row;                                     \
    ATTN_STEP_EACH_(ATTN_STEP_ADD_, row, sum)                          \
  }
#define ATTN_STEP_CLOSE_(i, r, sum) \
  if (reads && vecs > i) ATTN_V_STORE_(o + c + i * ATTN_W_, ATTN_V_ADD_(even##i, odd##i));

/* Columns from c on. */
ATTN_INLINE_ void ATTN_FN_(step_strip)(const int vecs, const int writes, const int reads, float *o,
                                       const float *q, const attn_sums_ *sums, int64_t c, int64_t m,
                                       float alpha, const float *p, const float *v) {
  const ATTN_VF_ keep = ATTN_V_SET1_(alpha), left = ATTN_V_SET1_(sums->left);
  (void)keep, (void)left;
  int64_t r = 0;
  ATTN_STEP_EACH_(ATTN_STEP_OPEN_, , )
  for (; r + 2 <= m; r += 2) {
    ATTN_STEP_ROW_(r, even)
    ATTN_STEP_ROW_(r + 1, odd)
  }
  if (r < m) ATTN_STEP_ROW_(r, even)
  ATTN_STEP_EACH_(ATTN_STEP_CLOSE_, , )
}
#undef ATTN_STEP_EACH_
#undef ATTN_STEP_OPEN_
#undef ATTN_STEP_ADD_
#undef ATTN_STEP_ROW_
#undef ATTN_STEP_CLOSE_

/* z = alpha z + p; returns q . z, over 16 running sums joined by halves. p null: z stays; q null: 0. */
ATTN_FUNC_ float ATTN_FN_(step_z)(const float *q, float *z, float *rest, int64_t m, float alpha,
                                  const float *p) {
  const ATTN_VF_ keep = ATTN_V_SET1_(alpha);
  ATTN_VF_ sum[16 / ATTN_W_];
  for (int i = 0; i < 16 / ATTN_W_; i++) sum[i] = ATTN_V_ZERO_();
  for (int64_t c = 0; c < m; c += 16) {
    ATTN_UNROLL_
    for (int i = 0; i < 16 / ATTN_W_; i++) {
      const int64_t at = c + i * ATTN_W_;
      if (at >= m) break;
      const int w = ATTN_FN_(lanes_left)(m, at);
      ATTN_VF_ x = ATTN_FN_(load)(z, at, w, ATTN_F32);
      if (p) {
        ATTN_VF_ y = ATTN_FN_(load)(rest, at, w, ATTN_F32);
        y = ATTN_V_FMA_(y, keep, ATTN_FN_(load)(p, at, w, ATTN_F32));
        ATTN_FADE_(x, y, keep)
        ATTN_CARRY_(x, y, y)
        ATTN_FN_(store)(z, at, x, w, ATTN_F32);
        ATTN_FN_(store)(rest, at, y, w, ATTN_F32);
      }
      if (q) sum[i] = ATTN_V_FMA_(x, ATTN_FN_(load)(q, at, w, ATTN_F32), sum[i]);
    }
  }
#if ATTN_W_ == 4
  sum[0] = ATTN_V_ADD_(ATTN_V_ADD_(sum[0], sum[2]), ATTN_V_ADD_(sum[1], sum[3]));
#elif ATTN_W_ == 8
  sum[0] = ATTN_V_ADD_(sum[0], sum[1]);
#endif
  return ATTN_V_SUM_(sum[0]);
}

/* s = alpha s + by x, n sums and their rests; x null: s = alpha s, the rests as they are. What is in the
 * rest joins s. */
ATTN_INLINE_ void ATTN_FN_(accrue_row)(float *s, float *rest, const float *x, int64_t n,
                                       double alpha, float by) {
  const float high = (float)alpha, low = (float)(alpha - (double)high);
  const ATTN_VF_ keep = ATTN_V_SET1_(high), more = ATTN_V_SET1_(low), scale = ATTN_V_SET1_(by);
  for (int64_t c = 0; c < n; c += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(n, c);
    ATTN_VF_ t = ATTN_FN_(load)(s, c, w, ATTN_F32), y = ATTN_FN_(load)(rest, c, w, ATTN_F32);
    if (x) y = ATTN_V_FMA_(scale, ATTN_FN_(load)(x, c, w, ATTN_F32), ATTN_V_MUL_(y, keep));
    y = ATTN_V_FMA_(t, more, y);
    ATTN_FADE_(t, y, keep)
    ATTN_CARRY_(t, y, y)
    ATTN_FN_(store)(s, c, t, w, ATTN_F32);
    ATTN_FN_(store)(rest, c, y, w, ATTN_F32);
  }
}
ATTN_FUNC_ void ATTN_FN_(accrue)(float *s, float *rest, const float *x, int64_t n, double alpha,
                                 float by) {
  ATTN_FN_(accrue_row)(s, rest, x, n, alpha, by);
}

/* n rows of the same */
ATTN_FUNC_ void ATTN_FN_(accrue_rows)(float *s, float *rest, int64_t stride, const float *x,
                                      int64_t x_stride, int64_t n, int64_t cols,
                                      const double *alpha, int64_t alpha_step) {
  for (int64_t r = 0; r < n; r++)
    ATTN_FN_(accrue_row)(s + r * stride, rest + r * stride, x + r * x_stride, cols,
                         alpha[r * alpha_step], 1.0f);
}
#undef ATTN_CARRY_
#undef ATTN_FADE_

/* rest[r] = alpha rest[r] + p[r] v, o = sum_r q[r] (left S[r] + rest[r]); p null: the rest stays; q null:
 * no o. Rows of whole groups of 16 columns. */
ATTN_FUNC_ void ATTN_FN_(step)(float *o, const float *q, const attn_sums_ *sums, int64_t m,
                               int64_t cols, float alpha, const float *p, const float *v) {
  enum { GROUP = 16 / ATTN_W_ };
  for (int64_t c = 0, done; c < cols; c += done) {
    const int wide = cols - c >= 4 * ATTN_W_;
    done = (wide ? 4 : (int64_t)GROUP) * ATTN_W_;
#define ATTN_STEP_CASE_(writes, reads)                                     \
  if (wide)                                                                \
    ATTN_FN_(step_strip)(4, writes, reads, o, q, sums, c, m, alpha, p, v); \
  else                                                                     \
    ATTN_FN_(step_strip)(GROUP, writes, reads, o, q, sums, c, m, alpha, p, v)
    if (p && q) {
      ATTN_STEP_CASE_(1, 1);
    } else if (p) {
      ATTN_STEP_CASE_(1, 0);
    } else if (q) {
      ATTN_STEP_CASE_(0, 1);
    }
#undef ATTN_STEP_CASE_
  }
}

/* y[r][c] = x[r][c] by[r] */
ATTN_FUNC_ void ATTN_FN_(scale_rows)(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                                     int64_t n, int64_t dim, const float *by) {
  for (int64_t r = 0; r < n; r++, y += y_stride, x += x_stride) {
    const ATTN_VF_ s = ATTN_V_SET1_(by[r]);
    int64_t c = 0;
    for (; c + ATTN_W_ <= dim; c += ATTN_W_)
      ATTN_V_STORE_(y + c, ATTN_FN_(quiet)(ATTN_V_MUL_(ATTN_V_LOAD_(x + c), s)));
    if (c < dim) {
      const int w = (int)(dim - c);
      const ATTN_VF_ t = ATTN_FN_(quiet)(ATTN_V_MUL_(ATTN_V_LOAD_PART_(x + c, w), s));
      ATTN_V_STORE_PART_(y + c, t, w);
    }
  }
}
