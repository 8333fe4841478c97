/* kernels/value.h owns the value block: weights times value rows into the transposed output
 * accumulator. The micro-kernel holds mr columns of V by nv vectors of queries in registers; keys
 * are added in index order. */

#define ATTN_ROW_INIT_(r)                                                                     \
  ATTN_VF_ a##r##0 = ATTN_V_ZERO_(), a##r##1 = a##r##0, a##r##2 = a##r##0, a##r##3 = a##r##0; \
  if (mr > r && !start) {                                                                     \
    const float *row = ot + r * ATTN_TILE_;                                                   \
    a##r##0 = ATTN_V_LOAD_(row);                                                              \
    if (nv > 1) a##r##1 = ATTN_V_LOAD_(row + ATTN_W_);                                        \
    if (nv > 2) a##r##2 = ATTN_V_LOAD_(row + 2 * ATTN_W_);                                    \
    if (nv > 3) a##r##3 = ATTN_V_LOAD_(row + 3 * ATTN_W_);                                    \
    if (alpha) {                                                                              \
      a##r##0 = ATTN_V_MUL_(a##r##0, ATTN_V_LOAD_(alpha));                                    \
      if (nv > 1) a##r##1 = ATTN_V_MUL_(a##r##1, ATTN_V_LOAD_(alpha + ATTN_W_));              \
      if (nv > 2) a##r##2 = ATTN_V_MUL_(a##r##2, ATTN_V_LOAD_(alpha + 2 * ATTN_W_));          \
      if (nv > 3) a##r##3 = ATTN_V_MUL_(a##r##3, ATTN_V_LOAD_(alpha + 3 * ATTN_W_));          \
    }                                                                                         \
  }
#define ATTN_ROW_STEP_(r)                              \
  if (mr > r) {                                        \
    ATTN_VF_ b = ATTN_V_SET1_(v[r]);                   \
    a##r##0 = ATTN_V_FMA_(p0, b, a##r##0);             \
    if (nv > 1) a##r##1 = ATTN_V_FMA_(p1, b, a##r##1); \
    if (nv > 2) a##r##2 = ATTN_V_FMA_(p2, b, a##r##2); \
    if (nv > 3) a##r##3 = ATTN_V_FMA_(p3, b, a##r##3); \
  }
#define ATTN_ROW_STORE_(r)                                 \
  if (mr > r) {                                            \
    float *row = ot + r * ATTN_TILE_;                      \
    ATTN_V_STORE_(row, a##r##0);                           \
    if (nv > 1) ATTN_V_STORE_(row + ATTN_W_, a##r##1);     \
    if (nv > 2) ATTN_V_STORE_(row + 2 * ATTN_W_, a##r##2); \
    if (nv > 3) ATTN_V_STORE_(row + 3 * ATTN_W_, a##r##3); \
  }

ATTN_INLINE_ void ATTN_FN_(value_micro)(const int mr, const int nv, float *ot, const float *p,
                                        const float *v, int64_t stride, int64_t n,
                                        const float *alpha, int start) {
  ATTN_ROW_INIT_(0)
  ATTN_ROW_INIT_(1)
  ATTN_ROW_INIT_(2)
  ATTN_ROW_INIT_(3)
  ATTN_ROW_INIT_(4)
  ATTN_ROW_INIT_(5)
  ATTN_ROW_INIT_(6)
  ATTN_ROW_INIT_(7)
  ATTN_ROW_INIT_(8)
  ATTN_ROW_INIT_(9)
  ATTN_ROW_INIT_(10)
  ATTN_ROW_INIT_(11)
  for (ptrdiff_t j = 0; j < (ptrdiff_t)n; j++) {
    ATTN_VF_ p0 = ATTN_V_LOAD_(p), p1 = p0, p2 = p0, p3 = p0;
    if (nv > 1) p1 = ATTN_V_LOAD_(p + ATTN_W_);
    if (nv > 2) p2 = ATTN_V_LOAD_(p + 2 * ATTN_W_);
    if (nv > 3) p3 = ATTN_V_LOAD_(p + 3 * ATTN_W_);
    ATTN_ROW_STEP_(0)
    ATTN_ROW_STEP_(1)
    ATTN_ROW_STEP_(2)
    ATTN_ROW_STEP_(3)
    ATTN_ROW_STEP_(4)
    ATTN_ROW_STEP_(5)
    ATTN_ROW_STEP_(6)
    ATTN_ROW_STEP_(7)
    ATTN_ROW_STEP_(8)
    ATTN_ROW_STEP_(9)
    ATTN_ROW_STEP_(10)
    ATTN_ROW_STEP_(11)
    p += ATTN_TILE_, v += stride;
  }
  ATTN_ROW_STORE_(0)
  ATTN_ROW_STORE_(1)
  ATTN_ROW_STORE_(2)
  ATTN_ROW_STORE_(3)
  ATTN_ROW_STORE_(4)
  ATTN_ROW_STORE_(5)
  ATTN_ROW_STORE_(6)
  ATTN_ROW_STORE_(7)
  ATTN_ROW_STORE_(8)
  ATTN_ROW_STORE_(9)
  ATTN_ROW_STORE_(10)
  ATTN_ROW_STORE_(11)
}
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_

/* one strip of mr columns for ng groups of lanes */
ATTN_INLINE_ void ATTN_FN_(value_strip)(const int mr, int ng, float *ot, const float *p,
                                        const float *v, int64_t stride, int64_t n,
                                        const float *alpha, int start) {
#if ATTN_NG_ > 1
  switch (ng) {
    case 1: ATTN_FN_(value_micro)(mr, 1, ot, p, v, stride, n, alpha, start); break;
    case 2: ATTN_FN_(value_micro)(mr, 2, ot, p, v, stride, n, alpha, start); break;
    case 3: ATTN_FN_(value_micro)(mr, 3, ot, p, v, stride, n, alpha, start); break;
    default: ATTN_FN_(value_micro)(mr, 4, ot, p, v, stride, n, alpha, start);
  }
#else
  for (int g = 0; g < ng; g++)
    ATTN_FN_(value_micro)(mr, ATTN_GROUP_ / ATTN_W_, ot + g * ATTN_GROUP_, p + g * ATTN_GROUP_, v,
                          stride, n, alpha ? alpha + g * ATTN_GROUP_ : alpha, start);
#endif
}

ATTN_FUNC_ void ATTN_FN_(value_block)(float *ot, const float *p, const float *v, int64_t stride,
                                      int64_t n, int64_t dv, int g0, int g1, const float *alpha,
                                      int start) {
  int ng = g1 - g0;
  ot += g0 * ATTN_GROUP_, p += g0 * ATTN_GROUP_;
  if (alpha) alpha += g0 * ATTN_GROUP_;
#if ATTN_NG_ > 1
  /* one vector of queries: fewer than 8 sums would wait for each other (sdpa T:16: +7 %) */
  for (int rows = 0; ng == 1 && dv >= 8; dv -= rows, ot += rows * ATTN_TILE_, v += rows) {
    rows = dv == 12 || dv >= 20 ? 12 : 8;
    if (rows == 12) {
      ATTN_FN_(value_micro)(12, 1, ot, p, v, stride, n, alpha, start);
    } else {
      ATTN_FN_(value_micro)(8, 1, ot, p, v, stride, n, alpha, start);
    }
  }
#endif
  for (; dv > 0; dv -= ATTN_MR_) {
    switch (dv < ATTN_MR_ ? dv : ATTN_MR_) {
#if ATTN_MR_ > 5
      case 6: ATTN_FN_(value_strip)(6, ng, ot, p, v, stride, n, alpha, start); break;
#endif
#if ATTN_MR_ > 2
      case 5: ATTN_FN_(value_strip)(5, ng, ot, p, v, stride, n, alpha, start); break;
      case 4: ATTN_FN_(value_strip)(4, ng, ot, p, v, stride, n, alpha, start); break;
      case 3: ATTN_FN_(value_strip)(3, ng, ot, p, v, stride, n, alpha, start); break;
#endif
#if ATTN_MR_ > 1
      case 2: ATTN_FN_(value_strip)(2, ng, ot, p, v, stride, n, alpha, start); break;
#endif
      default: ATTN_FN_(value_strip)(1, ng, ot, p, v, stride, n, alpha, start);
    }
    ot += ATTN_MR_ * ATTN_TILE_, v += ATTN_MR_;
  }
}
