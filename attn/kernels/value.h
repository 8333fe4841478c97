/* kernels/value.h owns the value block: weights times value rows into the transposed output
 * accumulator. The micro-kernel holds some columns of V by some vectors of queries in registers. Keys
 * are added in index order to a sum that starts from zero and meets the accumulator at the end: a chain
 * over all keys would drift. */

#define ATTN_SUM_(r, i) ATTN_VF_ a##r##i = ATTN_V_ZERO_();
#define ATTN_OLD_(r, i) \
  a##r##i = ATTN_V_FMA_(ATTN_V_LOAD_(ot + r * ATTN_TILE_ + i * ATTN_W_), x##i, a##r##i);
#define ATTN_ALPHA_(r, i) const ATTN_VF_ x##i = ATTN_V_LOAD_(alpha + i * ATTN_W_);
#define ATTN_ADD_(r, i) a##r##i = ATTN_V_FMA_(p##i, b, a##r##i);
#define ATTN_PUT_(r, i) ATTN_V_STORE_(ot + r * ATTN_TILE_ + i * ATTN_W_, a##r##i);
#define ATTN_ROW_INIT_(r, vecs) vecs(ATTN_SUM_, r)
#define ATTN_ROW_OLD_(r, vecs) vecs(ATTN_OLD_, r)
#define ATTN_ROW_STEP_(r, vecs)            \
  {                                        \
    const ATTN_VF_ b = ATTN_V_SET1_(v[r]); \
    vecs(ATTN_ADD_, r)                     \
  }
#define ATTN_ROW_STORE_(r, vecs) vecs(ATTN_PUT_, r)
#define ATTN_P_(r, i) const ATTN_VF_ p##i = ATTN_V_LOAD_(from + i * ATTN_W_);

#define ATTN_VALUE_MICRO_(rows, vecs)                                                            \
  ATTN_OUTLINE_ void ATTN_FN_(value_##rows##x##vecs)(float *ot, const float *p, const float *v0, \
                                                     int64_t stride, int64_t n,                  \
                                                     const float *alpha, int start, int runs) {  \
    for (; runs > 0; runs--, ot += ATTN_GROUP_) {                                                \
      const float *v = v0, *from = p;                                                            \
      ATTN_ROWS_##rows##_(ATTN_ROW_INIT_, ATTN_VECS_##vecs##_);                                  \
      for (ptrdiff_t j = 0; j < (ptrdiff_t)n; j++) {                                             \
        ATTN_VECS_##vecs##_(ATTN_P_, 0);                                                         \
        ATTN_ROWS_##rows##_(ATTN_ROW_STEP_, ATTN_VECS_##vecs##_);                                \
        from += ATTN_TILE_, v += stride;                                                         \
      }                                                                                          \
      if (!start) {                                                                              \
        ATTN_VECS_##vecs##_(ATTN_ALPHA_, 0);                                                     \
        ATTN_ROWS_##rows##_(ATTN_ROW_OLD_, ATTN_VECS_##vecs##_);                                 \
        alpha += ATTN_GROUP_;                                                                    \
      }                                                                                          \
      ATTN_ROWS_##rows##_(ATTN_ROW_STORE_, ATTN_VECS_##vecs##_);                                 \
      p += ATTN_GROUP_;                                                                          \
    }                                                                                            \
  }
ATTN_MICRO_(ATTN_VALUE_MICRO_)
#undef ATTN_SUM_
#undef ATTN_OLD_
#undef ATTN_ALPHA_
#undef ATTN_ROW_OLD_
#undef ATTN_ADD_
#undef ATTN_PUT_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_
#undef ATTN_P_
#undef ATTN_VALUE_MICRO_

typedef struct {
  int rows;
  void (*by[ATTN_NG_])(float *, const float *, const float *, int64_t, int64_t, const float *, int,
                       int);
} ATTN_FN_(value_step);
#define ATTN_VALUE_NAME_(rows, vecs) ATTN_FN_(value_##rows##x##vecs)
static const ATTN_FN_(value_step) ATTN_FN_(value_steps)[] = {ATTN_MICRO_STEPS_(ATTN_VALUE_NAME_)};
#undef ATTN_VALUE_NAME_

ATTN_FUNC_ void ATTN_FN_(value_block)(float *ot, const float *p, const float *v, int64_t stride,
                                      int64_t n, int64_t dv, int g0, int g1, const float *alpha,
                                      int start) {
  const ATTN_FN_(value_step) *step = ATTN_FN_(value_steps);
  const int ng = g1 - g0;
  ot += g0 * ATTN_GROUP_, p += g0 * ATTN_GROUP_;
  alpha = (alpha ? alpha : attn_alpha_one_) + g0 * ATTN_GROUP_;
  for (; dv > 0; dv -= step->rows) {
    ATTN_MICRO_NEXT_(step, dv, ng);
    step->by[ATTN_MICRO_VECS_(ng)](ot, p, v, stride, n, alpha, start, ATTN_MICRO_RUNS_(ng));
    ot += step->rows * ATTN_TILE_, v += step->rows;
  }
}
