/* kernels/score.h owns the score block: keys times packed queries. The micro-kernel holds some keys
 * by some vectors of queries in registers; each score is one chain of multiply-adds over c. */

#define ATTN_SUM_(r, i) ATTN_VF_ a##r##i = ATTN_V_ZERO_();
#define ATTN_ADD_(r, i) a##r##i = ATTN_V_FMA_(q##i, b, a##r##i);
#define ATTN_PUT_(r, i)                      \
  ATTN_V_STORE_(row + i * ATTN_W_, a##r##i); \
  t##i = ATTN_V_MAX_(a##r##i, t##i);
#define ATTN_ROW_INIT_(r, vecs)       \
  const float *k##r = k + r * stride; \
  vecs(ATTN_SUM_, r)
#define ATTN_ROW_STEP_(r, vecs)               \
  {                                           \
    const ATTN_VF_ b = ATTN_V_SET1_(k##r[c]); \
    vecs(ATTN_ADD_, r)                        \
  }
#define ATTN_ROW_STORE_(r, vecs)     \
  {                                  \
    float *row = s + r * ATTN_TILE_; \
    vecs(ATTN_PUT_, r)               \
  }
#define ATTN_Q_(r, i) const ATTN_VF_ q##i = ATTN_V_LOAD_(q + i * ATTN_W_);
#define ATTN_TOP_(r, i) ATTN_VF_ t##i = ATTN_V_LOAD_(top + i * ATTN_W_);
#define ATTN_KEEP_(r, i) ATTN_V_STORE_(top + i * ATTN_W_, t##i);

#define ATTN_SCORE_MICRO_(rows, vecs)                                                           \
  ATTN_OUTLINE_ void ATTN_FN_(score_##rows##x##vecs)(float *s, const float *qt, const float *k, \
                                                     int64_t stride, int64_t dk, float *top,    \
                                                     int runs) {                                \
    for (; runs > 0; runs--, s += ATTN_GROUP_, qt += ATTN_GROUP_, top += ATTN_GROUP_) {         \
      const float *q = qt;                                                                      \
      ATTN_ROWS_##rows##_(ATTN_ROW_INIT_, ATTN_VECS_##vecs##_);                                 \
      for (ptrdiff_t c = 0; c < (ptrdiff_t)dk; c++) {                                           \
        ATTN_VECS_##vecs##_(ATTN_Q_, 0);                                                        \
        ATTN_ROWS_##rows##_(ATTN_ROW_STEP_, ATTN_VECS_##vecs##_);                               \
        q += ATTN_TILE_;                                                                        \
      }                                                                                         \
      ATTN_VECS_##vecs##_(ATTN_TOP_, 0);                                                        \
      ATTN_ROWS_##rows##_(ATTN_ROW_STORE_, ATTN_VECS_##vecs##_);                                \
      ATTN_VECS_##vecs##_(ATTN_KEEP_, 0);                                                       \
    }                                                                                           \
  }
ATTN_MICRO_(ATTN_SCORE_MICRO_)
#undef ATTN_SUM_
#undef ATTN_ADD_
#undef ATTN_PUT_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_
#undef ATTN_Q_
#undef ATTN_TOP_
#undef ATTN_KEEP_
#undef ATTN_SCORE_MICRO_

typedef struct {
  int rows;
  void (*by[ATTN_NG_])(float *, const float *, const float *, int64_t, int64_t, float *, int);
} ATTN_FN_(score_step);
#define ATTN_SCORE_NAME_(rows, vecs) ATTN_FN_(score_##rows##x##vecs)
static const ATTN_FN_(score_step) ATTN_FN_(score_steps)[] = {ATTN_MICRO_STEPS_(ATTN_SCORE_NAME_)};
#undef ATTN_SCORE_NAME_

ATTN_FUNC_ void ATTN_FN_(score_block)(float *s, const float *qt, const float *k, int64_t stride,
                                      int64_t n, int64_t dk, int g0, int g1, float *top) {
  const ATTN_FN_(score_step) *step = ATTN_FN_(score_steps);
  const int ng = g1 - g0;
  s += g0 * ATTN_GROUP_, qt += g0 * ATTN_GROUP_, top += g0 * ATTN_GROUP_;
  for (; n > 0; n -= step->rows) {
    ATTN_MICRO_NEXT_(step, n, ng);
    step->by[ATTN_MICRO_VECS_(ng)](s, qt, k, stride, dk, top, ATTN_MICRO_RUNS_(ng));
    s += step->rows * ATTN_TILE_, k += step->rows * stride;
  }
}
