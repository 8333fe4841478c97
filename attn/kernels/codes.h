/* kernels/codes.h owns scores from codes of 8 bits: rows of keys and lanes of queries as whole numbers up to 127
 * with a scale each, sums of their products, and what these stand for. The sums are exact, so that all tiers
 * and features agree: emulated, codes are floats, and their products those of kernels/score.h. Features
 * have four codes in a word; those of keys are raised by 128 where one side is unsigned. */

#ifdef ATTN_TIER_
#define ATTN_TIER_FN_(name) ATTN_CAT_(ATTN_CAT_(attn_##name##_, ATTN_TIER_), _)
#else
#define ATTN_TIER_FN_ ATTN_FN_
#endif

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(code_of)(ATTN_VF_ x, ATTN_VF_ inverse) {
  ATTN_VF_ t, n;
  x = ATTN_V_MUL_(x, inverse);
  ATTN_V_ROUND_(x, t, n);
  (void)t;
  return n;
}

ATTN_INLINE_ void ATTN_FN_(code_row)(const int kind, char *to, const void *x, const float *center,
                                     int64_t dim, float *scale) {
  ATTN_VF_ top = ATTN_V_ZERO_(), sum = top;
  float inverse;
  for (int64_t c = 0; c < dim; c += ATTN_W_) {
    ATTN_VF_ y = ATTN_TIER_FN_(load)(x, c, ATTN_TIER_FN_(lanes_left)(dim, c), kind);
    y = ATTN_V_SUB_(y, ATTN_V_LOAD_(center + c));
    y = ATTN_V_ABS_(y);
    top = ATTN_V_MAX_(y, top), sum = ATTN_V_ADD_(sum, y);
  }
  const int numbers = ATTN_V_ALL_(ATTN_V_LT_(sum, ATTN_V_SET1_(ATTN_CODE_NUMBERS_)));
  *scale = attn_code_scale_(ATTN_V_TOP_(top), numbers, &inverse);
  const ATTN_VF_ by = ATTN_V_SET1_(inverse);
  for (int64_t c = 0; c < dim; c += ATTN_W_) {
    ATTN_VF_ y = ATTN_TIER_FN_(load)(x, c, ATTN_TIER_FN_(lanes_left)(dim, c), kind);
    y = ATTN_V_SUB_(y, ATTN_V_LOAD_(center + c));
    y = ATTN_FN_(code_of)(y, by);
#ifdef ATTN_TIER_
    ATTN_CODE_PUT_(to + c, y);
#else
    ATTN_V_STORE_((float *)(void *)to + c, y);
#endif
  }
}

ATTN_FUNC_ void ATTN_FN_(code_rows)(const attn_code_rows_ *r) {
  char *to = (char *)r->to;
  const char *x = (const char *)r->x;
  for (int64_t j = 0; j < r->n; j++, to += r->width, x += r->step) {
#ifdef ATTN_TIER_
    if (r->kind == ATTN_F32) {
      ATTN_FN_(code_row)(ATTN_F32, to, x, r->center, r->dim, r->scale + j);
      continue;
    }
    ATTN_FN_(code_row)(ATTN_BF16, to, x, r->center, r->dim, r->scale + j);
#else
    ATTN_FN_(code_row)(r->kind, to, x, r->center, r->dim, r->scale + j);
#endif
  }
}

ATTN_FUNC_ void ATTN_FN_(code_bytes)(void *to, const signed char *row, int64_t dim) {
#ifdef ATTN_TIER_
  char *x = (char *)to, rest[16] = {0};
  int64_t c = 0;
  for (; c + 16 <= dim; c += 16) ATTN_CODE_RAISE_(x + c, row + c);
  if (c < dim) memcpy(rest, row + c, (size_t)(dim - c));
  if (c < dim) ATTN_CODE_RAISE_(x + c, rest);
#else
  for (int64_t c = 0; c < dim; c += ATTN_W_)
    ATTN_V_STORE_((float *)to + c,
                  ATTN_TIER_FN_(load)(row, c, ATTN_TIER_FN_(lanes_left)(dim, c), ATTN_I8));
#endif
}

ATTN_FUNC_ void ATTN_FN_(code_tile)(const attn_code_tile_ *q) {
  for (int lane = 0; lane < q->groups * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ top = ATTN_V_ZERO_(), sum = top, total = top;
    float tops[ATTN_W_], sums[ATTN_W_], inverse[ATTN_W_];
    for (int64_t c = 0; c < q->n; c++) {
      const ATTN_VF_ y = ATTN_V_ABS_(ATTN_V_LOAD_(q->x + c * ATTN_TILE_ + lane));
      top = ATTN_V_MAX_(y, top), sum = ATTN_V_ADD_(sum, y);
    }
    ATTN_V_STORE_(tops, top);
    ATTN_V_STORE_(sums, sum);
    for (int i = 0; i < ATTN_W_; i++)
      q->scale[lane + i] = attn_code_scale_(tops[i], sums[i] < ATTN_CODE_NUMBERS_, inverse + i);
    const ATTN_VF_ by = ATTN_V_LOAD_(inverse);
#ifdef ATTN_TIER_
    uint32_t *to = (uint32_t *)q->to + lane;
    for (int64_t c = 0; c < q->n; c += 4, to += ATTN_TILE_) {
      ATTN_VF_ y[4];
      for (int i = 0; i < 4; i++) {
        y[i] = ATTN_V_ZERO_();
        if (c + i < q->n)
          y[i] = ATTN_FN_(code_of)(ATTN_V_LOAD_(q->x + (c + i) * ATTN_TILE_ + lane), by);
        total = ATTN_V_ADD_(total, y[i]);
      }
      ATTN_CODE_PUT_FOUR_(to, y);
    }
    ATTN_CODE_PUT_INT_(q->raised + lane, ATTN_V_MUL_(total, ATTN_V_SET1_(-ATTN_CODE_RAISED_)));
#else
    for (int64_t c = 0; c < q->n; c++) {
      const ATTN_VF_ y = ATTN_FN_(code_of)(ATTN_V_LOAD_(q->x + c * ATTN_TILE_ + lane), by);
      ATTN_V_STORE_((float *)q->to + c * ATTN_TILE_ + lane, y);
      total = ATTN_V_ADD_(total, y);
    }
#endif
    ATTN_V_STORE_(q->sums + lane, ATTN_V_MUL_(total, ATTN_V_LOAD_(q->scale + lane)));
  }
}

/* What a sum of products stands for. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(code_score)(ATTN_VF_ sum, const attn_code_dots_ *d, int lane,
                                           ATTN_VF_ scale, ATTN_VF_ more) {
  sum = ATTN_V_MUL_(sum, ATTN_V_LOAD_(d->x_scale + lane));
  return ATTN_V_FMA_(sum, scale, ATTN_V_MUL_(more, ATTN_V_LOAD_(d->more + lane)));
}

#ifdef ATTN_TIER_
#ifndef ATTN_VC1_ /* what ATTN_CODE_SET1_ gives */
#define ATTN_VC1_ ATTN_VC_
#endif
#define ATTN_SUM_(r, i) ATTN_VC_ a##r##i = ATTN_CODE_LOAD_(d->raised + lane + i * ATTN_W_);
#define ATTN_ADD_(r, i) a##r##i = ATTN_CODE_DOT_(w, x##i, a##r##i);
#define ATTN_X_(r, i) const ATTN_VC_ x##i = ATTN_CODE_LOAD_(x + i * ATTN_W_);
#define ATTN_ROW_INIT_(r, vecs)                  \
  const unsigned char *const b##r = b + r * row; \
  vecs(ATTN_SUM_, r)
#define ATTN_ROW_STEP_(r, vecs)                                    \
  {                                                                \
    const ATTN_VC1_ w = ATTN_CODE_SET1_(attn_pair_at_(b##r + at)); \
    vecs(ATTN_ADD_, r)                                             \
  }
#define ATTN_TOP_(r, i) ATTN_VF_ t##i = ATTN_V_LOAD_(d->top + lane + i * ATTN_W_);
#define ATTN_SCORE_(r, i)                                                                  \
  {                                                                                        \
    const ATTN_VF_ s =                                                                     \
        ATTN_FN_(code_score)(ATTN_CODE_SUM_(a##r##i), d, lane + i * ATTN_W_, scale, more); \
    ATTN_V_STORE_(y + r * ATTN_TILE_ + i * ATTN_W_, s);                                    \
    t##i = ATTN_V_MAX_(s, t##i);                                                           \
  }
#define ATTN_ROW_SCORE_(r, vecs)                              \
  {                                                           \
    const ATTN_VF_ scale = ATTN_V_SET1_(d->scale[first + r]), \
                   more = ATTN_V_SET1_(d->some[first + r]);   \
    vecs(ATTN_SCORE_, r)                                      \
  }
#define ATTN_KEEP_(r, i) ATTN_V_STORE_(d->top + lane + i * ATTN_W_, t##i);
#define ATTN_CODE_MICRO_(rows, vecs)                                                              \
  ATTN_OUTLINE_ void ATTN_FN_(code_dots_##rows##x##vecs)(const attn_code_dots_ *d, int64_t first, \
                                                         int lane, int runs) {                    \
    const ptrdiff_t row = (ptrdiff_t)d->row;                                                      \
    const unsigned char *b = (const unsigned char *)d->b + first * row;                           \
    for (; runs > 0; runs--, lane += ATTN_GROUP_) {                                               \
      const uint32_t *x = (const uint32_t *)d->x + lane;                                          \
      float *y = d->y + first * ATTN_TILE_ + lane;                                                \
      ATTN_ROWS_##rows##_(ATTN_ROW_INIT_, ATTN_VECS_##vecs##_);                                   \
      for (ptrdiff_t at = 0; at < (ptrdiff_t)d->n; at += 4, x += ATTN_TILE_) {                    \
        ATTN_VECS_##vecs##_(ATTN_X_, 0);                                                          \
        ATTN_ROWS_##rows##_(ATTN_ROW_STEP_, ATTN_VECS_##vecs##_);                                 \
      }                                                                                           \
      ATTN_VECS_##vecs##_(ATTN_TOP_, 0);                                                          \
      ATTN_ROWS_##rows##_(ATTN_ROW_SCORE_, ATTN_VECS_##vecs##_);                                  \
      ATTN_VECS_##vecs##_(ATTN_KEEP_, 0);                                                         \
    }                                                                                             \
  }
#if ATTN_NG_ > 1 /* a whole tile, or one vector of lanes after the other */
ATTN_CODE_MICRO_(6, 4)
ATTN_CODE_MICRO_(6, 1)
ATTN_CODE_MICRO_(1, 4)
ATTN_CODE_MICRO_(1, 1)
#elif ATTN_W_ == 8 /* one group of lanes after the other */
ATTN_CODE_MICRO_(6, 2)
ATTN_CODE_MICRO_(1, 2)
#else
ATTN_CODE_MICRO_(6, 4)
ATTN_CODE_MICRO_(1, 4)
#endif
#undef ATTN_SUM_
#undef ATTN_ADD_
#undef ATTN_X_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_TOP_
#undef ATTN_SCORE_
#undef ATTN_ROW_SCORE_
#undef ATTN_KEEP_
#undef ATTN_CODE_MICRO_

#if ATTN_NG_ > 1
#define ATTN_CODE_DOTS_(rows)                       \
  if (d->g1 - d->g0 == 4)                           \
    ATTN_FN_(code_dots_##rows##x4)(d, at, lane, 1); \
  else                                              \
    ATTN_FN_(code_dots_##rows##x1)(d, at, lane, d->g1 - d->g0);
#elif ATTN_W_ == 8
#define ATTN_CODE_DOTS_(rows) ATTN_FN_(code_dots_##rows##x2)(d, at, lane, d->g1 - d->g0);
#else
#define ATTN_CODE_DOTS_(rows) ATTN_FN_(code_dots_##rows##x4)(d, at, lane, d->g1 - d->g0);
#endif
ATTN_FUNC_ void ATTN_FN_(code_dots)(const attn_code_dots_ *d) {
  const int lane = d->g0 * ATTN_GROUP_;
  int64_t at = 0;
  for (; at + 6 <= d->rows; at += 6) ATTN_CODE_DOTS_(6)
  for (; at < d->rows; at++) ATTN_CODE_DOTS_(1)
}
#undef ATTN_CODE_DOTS_
#else
ATTN_FUNC_ void ATTN_FN_(code_dots)(const attn_code_dots_ *d) {
  float none[ATTN_TILE_] = {0};
  ATTN_FN_(score_block)
  (d->y, (const float *)d->x, (const float *)d->b, d->row / (int64_t)sizeof(float), d->rows, d->n,
   d->g0, d->g1, none);
  for (int64_t j = 0; j < d->rows; j++) {
    const ATTN_VF_ scale = ATTN_V_SET1_(d->scale[j]), more = ATTN_V_SET1_(d->some[j]);
    for (int lane = d->g0 * ATTN_GROUP_; lane < d->g1 * ATTN_GROUP_; lane += ATTN_W_) {
      float *y = d->y + j * ATTN_TILE_ + lane, *top = d->top + lane;
      const ATTN_VF_ s = ATTN_FN_(code_score)(ATTN_V_LOAD_(y), d, lane, scale, more);
      ATTN_V_STORE_(y, s);
      ATTN_V_STORE_(top, ATTN_V_MAX_(s, ATTN_V_LOAD_(top)));
    }
  }
}
#endif
