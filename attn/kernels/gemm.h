/* kernels/gemm.h owns the tile of dense products: up to 6 rows of X, element by element, against
 * vectors of columns of W. Each element of Y is one chain of multiply-adds in the order of k,
 * whatever the tile. */

#define ATTN_GEMM_VECS_ (ATTN_ROW_COLS_ / 4)
enum { ATTN_FN_(strip) = ATTN_GEMM_VECS_ * ATTN_W_ > 16 ? ATTN_GEMM_VECS_ *ATTN_W_ : 16 };
#define ATTN_EACH_ROW_(f) f(0) f(1) f(2) f(3) f(4) f(5)
#define ATTN_GEMM_INIT_(r)                                                                       \
  float *y##r = y + (r < rows ? r : rows - 1) * y_stride;                                        \
  const float *x##r = x + (r < rows ? r : rows - 1) * x_stride;                                  \
  ATTN_VF_ a##r##0 = ATTN_V_ZERO_(), a##r##1 = a##r##0, a##r##2 = a##r##0, a##r##3 = a##r##0;    \
  if (!start) {                                                                                  \
    a##r##0 = vecs == 1 ? ATTN_FN_(load)(y##r, 0, last, ATTN_F32) : ATTN_V_LOAD_(y##r);          \
    if (vecs > 1) a##r##1 = ATTN_FN_(load)(y##r, ATTN_W_, vecs == 2 ? last : ATTN_W_, ATTN_F32); \
    if (vecs > 2)                                                                                \
      a##r##2 = ATTN_FN_(load)(y##r, 2 * ATTN_W_, vecs == 3 ? last : ATTN_W_, ATTN_F32);         \
    if (vecs > 3) a##r##3 = ATTN_FN_(load)(y##r, 3 * ATTN_W_, last, ATTN_F32);                   \
  }
/* start = 2: the sum meets what is there at the end */
#define ATTN_GEMM_MEET_(r, i)                                                               \
  if (vecs > i)                                                                             \
    a##r##i = ATTN_V_ADD_(vecs == i + 1 ? ATTN_FN_(load)(y##r, i * ATTN_W_, last, ATTN_F32) \
                                        : ATTN_V_LOAD_(y##r + i * ATTN_W_),                 \
                          a##r##i);
#define ATTN_GEMM_JOIN_(r) \
  if (start > 1) {         \
    ATTN_GEMM_MEET_(r, 0)  \
    ATTN_GEMM_MEET_(r, 1)  \
    ATTN_GEMM_MEET_(r, 2)  \
    ATTN_GEMM_MEET_(r, 3)  \
  }
/* 24 sums, 4 vectors of columns and 6 numbers at once were two more than neon has registers */
#define ATTN_GEMM_ADD_(r)                                \
  {                                                      \
    ATTN_V_APART_();                                     \
    const ATTN_VF_ t = ATTN_V_SET1_(x##r[at]);           \
    a##r##0 = ATTN_V_FMA_(t, w0, a##r##0);               \
    if (vecs > 1) a##r##1 = ATTN_V_FMA_(t, w1, a##r##1); \
    if (vecs > 2) a##r##2 = ATTN_V_FMA_(t, w2, a##r##2); \
    if (vecs > 3) a##r##3 = ATTN_V_FMA_(t, w3, a##r##3); \
  }
#define ATTN_GEMM_PUT_(r, i)                                                \
  if (vecs == i + 1 && last < ATTN_W_) {                                    \
    ATTN_V_STORE_PART_(y##r + i * ATTN_W_, ATTN_FN_(quiet)(a##r##i), last); \
  } else if (vecs > i) {                                                    \
    ATTN_V_STORE_(y##r + i * ATTN_W_, ATTN_FN_(quiet)(a##r##i));            \
  }
#define ATTN_GEMM_STORE_(r) \
  if (r < rows) {           \
    ATTN_GEMM_PUT_(r, 0)    \
    ATTN_GEMM_PUT_(r, 1)    \
    ATTN_GEMM_PUT_(r, 2)    \
    ATTN_GEMM_PUT_(r, 3)    \
  }

/* `vecs` vectors of columns, the last with `last` of them; rows of w are w_stride apart and whole. */
ATTN_INLINE_ void ATTN_FN_(gemm_tile)(const int vecs, float *y, int64_t y_stride, int rows,
                                      int last, const float *x, int64_t x_stride, int64_t x_step,
                                      const float *w, int64_t w_stride, int64_t n, int start) {
  ptrdiff_t at = 0;
  ATTN_EACH_ROW_(ATTN_GEMM_INIT_)
  for (int64_t k = 0; k < n; k++, w += w_stride, at += (ptrdiff_t)x_step) {
    const ATTN_VF_ w0 = ATTN_V_LOAD_(w);
    ATTN_VF_ w1 = w0, w2 = w0, w3 = w0;
    if (vecs > 1) w1 = ATTN_V_LOAD_(w + ATTN_W_);
    if (vecs > 2) w2 = ATTN_V_LOAD_(w + 2 * ATTN_W_);
    if (vecs > 3) w3 = ATTN_V_LOAD_(w + 3 * ATTN_W_);
    (void)w1, (void)w2, (void)w3;
    ATTN_EACH_ROW_(ATTN_GEMM_ADD_)
  }
  ATTN_EACH_ROW_(ATTN_GEMM_JOIN_)
  ATTN_EACH_ROW_(ATTN_GEMM_STORE_)
}
#undef ATTN_EACH_ROW_
#undef ATTN_GEMM_INIT_
#undef ATTN_GEMM_ADD_
#undef ATTN_GEMM_PUT_
#undef ATTN_GEMM_JOIN_
#undef ATTN_GEMM_MEET_
#undef ATTN_GEMM_STORE_

/* y[r][c] = (start ? 0 : y[r][c]) + sum_k x[r x_stride + k x_step] w[k][c] for c < cols, a panel, start = 2: y[r][c] +
 * (the sum from 0); rows of w have whole vectors. A strip of columns stays in the first cache while all rows pass. */
ATTN_FUNC_ void ATTN_FN_(gemm)(float *y, int64_t y_stride, int64_t rows, const float *x,
                               int64_t x_stride, int64_t x_step, const float *w, int64_t w_stride,
                               int64_t n, int64_t cols, int start) {
  enum { WIDE = ATTN_GEMM_VECS_ * ATTN_W_ };
  for (int64_t c = 0; c < cols; c += WIDE) {
    const int left = cols - c < WIDE ? (int)(cols - c) : (int)WIDE;
    const int vecs = (left + ATTN_W_ - 1) / ATTN_W_, last = left - (vecs - 1) * ATTN_W_;
    for (int64_t r = 0; r < rows; r += 6) {
      const int some = rows - r < 6 ? (int)(rows - r) : 6;
      float *to = y + r * y_stride + c;
      const float *from = x + r * x_stride;
      for (int64_t i = 6; start != 1 && i < 12 && r + i < rows; i++)
        ATTN_PREFETCH_(to + i * y_stride);
#define ATTN_GEMM_CASE_(vecs)                                                                     \
  ATTN_FN_(gemm_tile)(vecs, to, y_stride, some, last, from, x_stride, x_step, w + c, w_stride, n, \
                      start)
      switch (vecs) {
        case 1: ATTN_GEMM_CASE_(1); break;
#if ATTN_ROW_COLS_ >= 8
        case 2: ATTN_GEMM_CASE_(2); break;
#endif
#if ATTN_ROW_COLS_ >= 16
        case 3: ATTN_GEMM_CASE_(3); break;
        default: ATTN_GEMM_CASE_(4);
#endif
      }
#undef ATTN_GEMM_CASE_
    }
  }
}
#undef ATTN_GEMM_VECS_

/* y[r][c] = by[c] s[r][c] + (start ? 0 : y[r][c]), whole vectors of by and s */
ATTN_FUNC_ void ATTN_FN_(join_runs)(float *y, int64_t y_stride, const float *s, int64_t s_stride,
                                    const float *by, int64_t rows, int cols, int start) {
  for (int64_t r = 0; r < rows; r++)
    for (int c = 0; c < cols; c += ATTN_W_) {
      const int some = ATTN_FN_(lanes_left)(cols, c);
      const ATTN_VF_ old =
          start ? ATTN_V_ZERO_() : ATTN_FN_(load)(y + r * y_stride, c, some, ATTN_F32);
      const ATTN_VF_ sum =
          ATTN_V_FMA_(ATTN_V_LOAD_(by + c), ATTN_V_LOAD_(s + r * s_stride + c), old);
      ATTN_FN_(store)(y + r * y_stride, c, ATTN_FN_(quiet)(sum), some, ATTN_F32);
    }
}
