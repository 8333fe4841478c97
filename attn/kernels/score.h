/* kernels/score.h owns the score block: keys times packed queries. The micro-kernel holds mr keys
 * by nv vectors of queries in registers; each score is one chain of multiply-adds over c. */

/* Macros, not loops over arrays: compilers keep arrays in memory at -O2. mr and nv are constants
 * at every call, so unused rows vanish. */
#define ATTN_ROW_INIT_(r)                                                                     \
  ATTN_VF_ a##r##0 = ATTN_V_ZERO_(), a##r##1 = a##r##0, a##r##2 = a##r##0, a##r##3 = a##r##0; \
  const float *k##r = k + (mr > r ? r : 0) * stride;
#define ATTN_ROW_STEP_(r)                              \
  if (mr > r) {                                        \
    ATTN_VF_ b = ATTN_V_SET1_(k##r[c]);                \
    a##r##0 = ATTN_V_FMA_(q0, b, a##r##0);             \
    if (nv > 1) a##r##1 = ATTN_V_FMA_(q1, b, a##r##1); \
    if (nv > 2) a##r##2 = ATTN_V_FMA_(q2, b, a##r##2); \
    if (nv > 3) a##r##3 = ATTN_V_FMA_(q3, b, a##r##3); \
  }
#define ATTN_ROW_STORE_(r)                                                                \
  if (mr > r) {                                                                           \
    float *row = s + r * ATTN_TILE_;                                                      \
    ATTN_V_STORE_(row, a##r##0);                                                          \
    t0 = ATTN_V_MAX_(a##r##0, t0);                                                        \
    if (nv > 1) ATTN_V_STORE_(row + ATTN_W_, a##r##1), t1 = ATTN_V_MAX_(a##r##1, t1);     \
    if (nv > 2) ATTN_V_STORE_(row + 2 * ATTN_W_, a##r##2), t2 = ATTN_V_MAX_(a##r##2, t2); \
    if (nv > 3) ATTN_V_STORE_(row + 3 * ATTN_W_, a##r##3), t3 = ATTN_V_MAX_(a##r##3, t3); \
  }

ATTN_INLINE_ void ATTN_FN_(score_micro)(const int mr, const int nv, float *s, const float *qt,
                                        const float *k, int64_t stride, int64_t dk, float *top) {
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
  for (ptrdiff_t c = 0; c < (ptrdiff_t)dk; c++) {
    ATTN_VF_ q0 = ATTN_V_LOAD_(qt), q1 = q0, q2 = q0, q3 = q0;
    if (nv > 1) q1 = ATTN_V_LOAD_(qt + ATTN_W_);
    if (nv > 2) q2 = ATTN_V_LOAD_(qt + 2 * ATTN_W_);
    if (nv > 3) q3 = ATTN_V_LOAD_(qt + 3 * ATTN_W_);
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
    qt += ATTN_TILE_;
  }
  ATTN_VF_ t0 = ATTN_V_LOAD_(top), t1 = t0, t2 = t0, t3 = t0;
  if (nv > 1) t1 = ATTN_V_LOAD_(top + ATTN_W_);
  if (nv > 2) t2 = ATTN_V_LOAD_(top + 2 * ATTN_W_);
  if (nv > 3) t3 = ATTN_V_LOAD_(top + 3 * ATTN_W_);
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
  ATTN_V_STORE_(top, t0);
  if (nv > 1) ATTN_V_STORE_(top + ATTN_W_, t1);
  if (nv > 2) ATTN_V_STORE_(top + 2 * ATTN_W_, t2);
  if (nv > 3) ATTN_V_STORE_(top + 3 * ATTN_W_, t3);
}
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_

/* one strip of mr keys against ng groups of lanes */
ATTN_INLINE_ void ATTN_FN_(score_strip)(const int mr, int ng, float *s, const float *qt,
                                        const float *k, int64_t stride, int64_t dk, float *top) {
#if ATTN_NG_ > 1
  switch (ng) {
    case 1: ATTN_FN_(score_micro)(mr, 1, s, qt, k, stride, dk, top); break;
    case 2: ATTN_FN_(score_micro)(mr, 2, s, qt, k, stride, dk, top); break;
    case 3: ATTN_FN_(score_micro)(mr, 3, s, qt, k, stride, dk, top); break;
    default: ATTN_FN_(score_micro)(mr, 4, s, qt, k, stride, dk, top);
  }
#else
  for (int g = 0; g < ng; g++)
    ATTN_FN_(score_micro)(mr, ATTN_GROUP_ / ATTN_W_, s + g * ATTN_GROUP_, qt + g * ATTN_GROUP_, k,
                          stride, dk, top + g * ATTN_GROUP_);
#endif
}

ATTN_FUNC_ void ATTN_FN_(score_block)(float *s, const float *qt, const float *k, int64_t stride,
                                      int64_t n, int64_t dk, int g0, int g1, float *top) {
  int ng = g1 - g0;
  s += g0 * ATTN_GROUP_, qt += g0 * ATTN_GROUP_, top += g0 * ATTN_GROUP_;
#if ATTN_NG_ > 1
  /* one vector of queries: fewer than 8 sums would wait for each other (sdpa T:16: +7 %) */
  for (int rows = 0; ng == 1 && n >= 8; n -= rows, s += rows * ATTN_TILE_, k += rows * stride) {
    rows = n == 12 || n >= 20 ? 12 : 8;
    if (rows == 12) {
      ATTN_FN_(score_micro)(12, 1, s, qt, k, stride, dk, top);
    } else {
      ATTN_FN_(score_micro)(8, 1, s, qt, k, stride, dk, top);
    }
  }
#endif
  for (; n > 0; n -= ATTN_MR_) {
    switch (n < ATTN_MR_ ? n : ATTN_MR_) {
#if ATTN_MR_ > 5
      case 6: ATTN_FN_(score_strip)(6, ng, s, qt, k, stride, dk, top); break;
#endif
#if ATTN_MR_ > 2
      case 5: ATTN_FN_(score_strip)(5, ng, s, qt, k, stride, dk, top); break;
      case 4: ATTN_FN_(score_strip)(4, ng, s, qt, k, stride, dk, top); break;
      case 3: ATTN_FN_(score_strip)(3, ng, s, qt, k, stride, dk, top); break;
#endif
#if ATTN_MR_ > 1
      case 2: ATTN_FN_(score_strip)(2, ng, s, qt, k, stride, dk, top); break;
#endif
      default: ATTN_FN_(score_strip)(1, ng, s, qt, k, stride, dk, top);
    }
    s += ATTN_MR_ * ATTN_TILE_, k += ATTN_MR_ * stride;
  }
}
