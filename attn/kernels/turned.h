/* kernels/turned.h owns products with a matrix whose columns lie in memory as rows: squares of it are turned in
 * registers. So it is read once, and each sum is the chain that kernels/gemm.h has. */

/* A square: elements k .. of W rows. */
ATTN_INLINE_ void ATTN_FN_(square)(ATTN_VF_ *r, const void *const *w, int64_t k, int kind) {
  switch (kind) {
#define ATTN_CASE_(type) \
  ATTN_UNROLL_           \
  for (int i = 0; i < ATTN_W_; i++) r[i] = ATTN_FN_(load)(w[i], k, ATTN_W_, type);
    case ATTN_F32: ATTN_CASE_(ATTN_F32) break;
    case ATTN_F16: ATTN_CASE_(ATTN_F16) break;
    default: ATTN_CASE_(ATTN_BF16)
#undef ATTN_CASE_
  }
  ATTN_V_TRANSPOSE_(r);
}

/* What is no whole square: `deep` elements of `cols` rows, the rest 0. */
ATTN_OUTLINE_ void ATTN_FN_(square_part)(ATTN_VF_ *r, const void *const *w, int cols, int64_t k,
                                         int deep, int kind) {
  for (int i = 0; i < ATTN_W_; i++)
    r[i] = i < cols ? ATTN_FN_(load_any)(w[i], k, deep, kind) : ATTN_V_ZERO_();
  ATTN_V_TRANSPOSE_(r);
}

/* to[k][c] = w[c][k] for c < cols, in whole vectors */
ATTN_FUNC_ void ATTN_FN_(turn)(float *to, int64_t stride, const void *const *w, int kind, int64_t n,
                               int cols) {
  for (int c = 0; c < cols; c += ATTN_W_)
    for (int64_t k = 0; k < n; k += ATTN_W_) {
      const int some = ATTN_FN_(lanes_left)(cols, c), deep = ATTN_FN_(lanes_left)(n, k);
      float *at = to + k * stride + c;
      if (some == ATTN_W_ && deep == ATTN_W_) {
        ATTN_VF_ r[ATTN_W_];
        ATTN_FN_(square)(r, w + c, k, kind);
        ATTN_UNROLL_
        for (int i = 0; i < ATTN_W_; i++) ATTN_V_STORE_(at + i * stride, r[i]);
      } else {
        ATTN_VF_ r[ATTN_W_];
        ATTN_FN_(square_part)(r, w + c, some, k, deep, kind);
        for (int i = 0; i < deep; i++) ATTN_V_STORE_(at + i * stride, r[i]);
      }
    }
}

/* Sums of `cols` columns from c on, a square's at most, over elements k .. */
ATTN_OUTLINE_ void ATTN_FN_(turned_part)(const attn_turned_product_ *p, int c, int cols,
                                         int64_t k) {
  for (; k < p->n; k += ATTN_W_) {
    const int deep = ATTN_FN_(lanes_left)(p->n, k);
    ATTN_VF_ t[ATTN_W_];
    ATTN_FN_(square_part)(t, p->w + c, cols, k, deep, p->kind);
    for (int64_t r = 0; r < p->rows; r++) {
      const float *x = p->x + r * p->x_stride + k;
      float *y = p->y + r * p->y_stride + c;
      ATTN_VF_ a = p->start && k == 0 ? ATTN_V_ZERO_() : ATTN_FN_(load)(y, 0, cols, ATTN_F32);
      for (int i = 0; i < deep; i++) a = ATTN_V_FMA_(ATTN_V_SET1_(x[i]), t[i], a);
      ATTN_FN_(store)(y, 0, ATTN_FN_(quiet)(a), cols, ATTN_F32);
    }
  }
}

/* One row by two squares of columns, their first n elements. */
ATTN_INLINE_ void ATTN_FN_(turned_one)(const attn_turned_product_ *p, int c, int64_t n) {
  const void *const *w = p->w + c;
  const float *x = p->x;
  float *y = p->y + c;
  ATTN_VF_ a = p->start ? ATTN_V_ZERO_() : ATTN_V_LOAD_(y);
  ATTN_VF_ b = p->start ? ATTN_V_ZERO_() : ATTN_V_LOAD_(y + ATTN_W_);
  for (int64_t k = 0; k < n; k += ATTN_W_) {
    ATTN_VF_ t[ATTN_W_];
    ATTN_FN_(square)(t, w, k, p->kind);
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_W_; i++) a = ATTN_V_FMA_(ATTN_V_SET1_(x[k + i]), t[i], a);
    ATTN_FN_(square)(t, w + ATTN_W_, k, p->kind);
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_W_; i++) b = ATTN_V_FMA_(ATTN_V_SET1_(x[k + i]), t[i], b);
  }
  ATTN_V_STORE_(y, ATTN_FN_(quiet)(a));
  ATTN_V_STORE_(y + ATTN_W_, ATTN_FN_(quiet)(b));
}

/* Up to four rows from row0 on by one square of columns. */
ATTN_INLINE_ void ATTN_FN_(turned_four)(const attn_turned_product_ *p, int64_t row0, int c,
                                        int64_t n) {
#define ATTN_EACH_ROW_(f) f(0) f(1) f(2) f(3)
#define ATTN_OPEN_ROW_(r)                                            \
  const int64_t at##r = row0 + r < p->rows ? row0 + r : p->rows - 1; \
  const float *x##r = p->x + at##r * p->x_stride;                    \
  float *y##r = p->y + at##r * p->y_stride + c;                      \
  ATTN_VF_ a##r = p->start ? ATTN_V_ZERO_() : ATTN_V_LOAD_(y##r);
#define ATTN_ADD_ROW_(r) a##r = ATTN_V_FMA_(ATTN_V_SET1_(x##r[k + i]), t[i], a##r);
#define ATTN_PUT_ROW_(r) ATTN_V_STORE_(y##r, ATTN_FN_(quiet)(a##r));
  ATTN_EACH_ROW_(ATTN_OPEN_ROW_)
  for (int64_t k = 0; k < n; k += ATTN_W_) {
    ATTN_VF_ t[ATTN_W_];
    ATTN_FN_(square)(t, p->w + c, k, p->kind);
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_W_; i++) {
      ATTN_EACH_ROW_(ATTN_ADD_ROW_)
    }
  }
  ATTN_EACH_ROW_(ATTN_PUT_ROW_)
#undef ATTN_EACH_ROW_
#undef ATTN_OPEN_ROW_
#undef ATTN_ADD_ROW_
#undef ATTN_PUT_ROW_
}

/* y += x w for few rows: the columns are turned for each four of them. */
ATTN_FUNC_ void ATTN_FN_(gemm_turned)(const attn_turned_product_ *p) {
  const int64_t n = p->n / ATTN_W_ * ATTN_W_; /* in whole squares */
  for (int c = 0, cols; c < p->cols; c += cols) {
    const int left = p->cols - c, two = p->rows == 1 && left >= 2 * ATTN_W_;
    cols = two ? 2 * ATTN_W_ : left < ATTN_W_ ? left : ATTN_W_;
    const int64_t done = cols < ATTN_W_ ? 0 : n;
    if (done && two) ATTN_FN_(turned_one)(p, c, done);
    for (int64_t r = 0; done && !two && r < p->rows; r += 4) ATTN_FN_(turned_four)(p, r, c, done);
    for (int i = 0; done < p->n && i < cols; i += ATTN_W_)
      ATTN_FN_(turned_part)(p, c + i, cols - i < ATTN_W_ ? cols - i : ATTN_W_, done);
  }
}
