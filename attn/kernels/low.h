/* kernels/low.h owns products of pairs of bf16 or of f16 summed in f32. A vector holds one pair of each lane; the
 * pair that it is multiplied by is broadcast from a row in memory. One micro-kernel serves scores (pairs of
 * columns; rows are keys) and sums of values (pairs of keys; rows are columns of V). */

#ifdef ATTN_TIER_ /* a later pass: functions of its tier */
#define ATTN_TIER_FN_(name) ATTN_CAT_(ATTN_CAT_(attn_##name##_, ATTN_TIER_), _)
#else
#define ATTN_TIER_FN_ ATTN_FN_
#endif
#ifdef ATTN_PAIR_DOT_ /* an instruction: as many sums as registers hold */
#define ATTN_LOW_FAST_ 1
#define ATTN_LOW_STEPS_(name) \
  ATTN_MICRO_STEP_(name, 6), ATTN_MICRO_STEP_(name, 2), ATTN_MICRO_STEP_(name, 1)
#define ATTN_LOW_(make) \
  ATTN_MICRO_ROWS_(make, 6) ATTN_MICRO_ROWS_(make, 2) ATTN_MICRO_ROWS_(make, 1)
#define ATTN_LOW_KINDS_ ATTN_NG_
#define ATTN_LOW_VECS_(ng) ATTN_MICRO_VECS_(ng)
#define ATTN_LOW_RUNS_(ng) ATTN_MICRO_RUNS_(ng)
#else /* emulated: small rather than fast */
#define ATTN_PAIR_EXP2_(x) ATTN_TIER_FN_(exp2_short4)(x)
#define ATTN_PAIR_DOT_(a, b, c)                     \
  ATTN_V_FMA_(ATTN_PAIR_ODD_(a), ATTN_PAIR_ODD_(b), \
              ATTN_V_FMA_(ATTN_PAIR_EVEN_(a), ATTN_PAIR_EVEN_(b), c))
#define ATTN_LOW_STEPS_(name)        \
  {2, {name(2, ATTN_LOW_WIDTH_)}}, { \
    1, { name(1, ATTN_LOW_WIDTH_) }  \
  }
#define ATTN_LOW_(make) make(2, ATTN_LOW_WIDTH_) make(1, ATTN_LOW_WIDTH_)
#if ATTN_W_ == 16
#define ATTN_LOW_WIDTH_ 1
#elif ATTN_W_ == 8
#define ATTN_LOW_WIDTH_ 2
#else
#define ATTN_LOW_WIDTH_ 4
#endif
#define ATTN_LOW_KINDS_ 1
#define ATTN_LOW_VECS_(ng) 0
#define ATTN_LOW_RUNS_(ng) (ng)
#endif

#ifndef ATTN_PAIR_KIND_ /* bf16, which has all powers of f32 */
#define ATTN_PAIR_KIND_ ATTN_BF16
#define ATTN_PAIR_ROW_(p, v) ATTN_V_STORE_BF16_(p, v)
#define ATTN_PAIR_WORDS_(to, even, odd) ATTN_PAIR_STORE_(to, ATTN_PAIR_JOIN_(even, odd))
#define ATTN_PAIR_ONES_ 0x3f803f80u
#define ATTN_PAIR_WEIGHT_(x) (x) /* as it is stored, and back */
#define ATTN_PAIR_SHARE_(x) (x)
#define ATTN_PAIR_TIMES_(x, by) ((void)(by), x)
#define ATTN_PAIR_UNIT_(d) 0
#endif
#ifndef ATTN_VP1_ /* what ATTN_PAIR_SET1_ gives */
#define ATTN_VP1_ ATTN_VP_
#endif

#define ATTN_SUM_(r, i) ATTN_VF_ a##r##i = ATTN_V_ZERO_();
#define ATTN_ADD_(r, i) a##r##i = ATTN_PAIR_DOT_(x##i, w, a##r##i);
#define ATTN_X_(r, i) const ATTN_VP_ x##i = ATTN_PAIR_LOAD_(x + i * ATTN_W_);
#define ATTN_ROW_INIT_(r, vecs)                  \
  const unsigned char *const b##r = b + r * row; \
  vecs(ATTN_SUM_, r)
#define ATTN_ROW_STEP_(r, vecs)                                    \
  {                                                                \
    const ATTN_VP1_ w = ATTN_PAIR_SET1_(attn_pair_at_(b##r + at)); \
    vecs(ATTN_ADD_, r)                                             \
  }
#define ATTN_TOP_(r, i) ATTN_VF_ t##i = ATTN_V_LOAD_(d->top + lane + i * ATTN_W_);
#define ATTN_SCORE_(r, i)                           \
  a##r##i = ATTN_V_MUL_(a##r##i, scale);            \
  ATTN_V_STORE_(y + r * ys + i * ATTN_W_, a##r##i); \
  t##i = ATTN_V_MAX_(a##r##i, t##i);
#define ATTN_UNIT_(r, i)                                            \
  const ATTN_VF_ u##i = ATTN_V_LOAD_(d->unit + lane + i * ATTN_W_), \
                 v##i = ATTN_V_LOAD_(d->unit + ATTN_TILE_ + lane + i * ATTN_W_);
#define ATTN_RAISE_(r, i) a##r##i = ATTN_V_MUL_(ATTN_V_MUL_(a##r##i, u##i), v##i);
#define ATTN_KEEP_(r, i) ATTN_V_STORE_(d->top + lane + i * ATTN_W_, t##i);
#define ATTN_ALPHA_(r, i) const ATTN_VF_ k##i = ATTN_V_LOAD_(alpha + lane + i * ATTN_W_);
#define ATTN_OLD_(r, i) \
  a##r##i = ATTN_V_FMA_(ATTN_V_LOAD_(y + r * ys + i * ATTN_W_), k##i, a##r##i);
#define ATTN_PUT_(r, i) ATTN_V_STORE_(y + r * ys + i * ATTN_W_, a##r##i);
#define ATTN_ROW_RAISE_(r, vecs) vecs(ATTN_RAISE_, r)
#define ATTN_ROW_SCORE_(r, vecs) vecs(ATTN_SCORE_, r)
#define ATTN_ROW_OLD_(r, vecs) vecs(ATTN_OLD_, r)
#define ATTN_ROW_PUT_(r, vecs) vecs(ATTN_PUT_, r)

#define ATTN_LOW_MICRO_(rows, vecs) ATTN_LOW_MICRO_OF_(rows, vecs)
#define ATTN_LOW_MICRO_OF_(rows, vecs)                                                            \
  ATTN_OUTLINE_ void ATTN_FN_(pair_dots_##rows##x##vecs)(const attn_pair_dots_ *d, int64_t first, \
                                                         int lane, int runs) {                    \
    const ptrdiff_t row = (ptrdiff_t)d->row, step = (ptrdiff_t)d->step, ys = (ptrdiff_t)d->ys;    \
    const unsigned char *b = (const unsigned char *)d->b + first * row;                           \
    const float *alpha = d->alpha ? d->alpha : attn_alpha_one_;                                   \
    for (; runs > 0; runs--, lane += ATTN_GROUP_) {                                               \
      const uint32_t *x = d->x + lane;                                                            \
      float *y = d->y + first * ys + lane;                                                        \
      ptrdiff_t at = 0;                                                                           \
      ATTN_ROWS_##rows##_(ATTN_ROW_INIT_, ATTN_VECS_##vecs##_);                                   \
      for (ptrdiff_t n = (ptrdiff_t)d->n; n > 0; n--) {                                           \
        ATTN_VECS_##vecs##_(ATTN_X_, 0);                                                          \
        ATTN_ROWS_##rows##_(ATTN_ROW_STEP_, ATTN_VECS_##vecs##_);                                 \
        x += ATTN_TILE_, at += step;                                                              \
      }                                                                                           \
      if (ATTN_PAIR_UNIT_(d)) {                                                                   \
        ATTN_VECS_##vecs##_(ATTN_UNIT_, 0);                                                       \
        ATTN_ROWS_##rows##_(ATTN_ROW_RAISE_, ATTN_VECS_##vecs##_);                                \
      }                                                                                           \
      if (d->top) {                                                                               \
        const ATTN_VF_ scale = ATTN_V_SET1_(d->scale);                                            \
        ATTN_VECS_##vecs##_(ATTN_TOP_, 0);                                                        \
        ATTN_ROWS_##rows##_(ATTN_ROW_SCORE_, ATTN_VECS_##vecs##_);                                \
        ATTN_VECS_##vecs##_(ATTN_KEEP_, 0);                                                       \
        continue;                                                                                 \
      }                                                                                           \
      if (!d->start) {                                                                            \
        ATTN_VECS_##vecs##_(ATTN_ALPHA_, 0);                                                      \
        ATTN_ROWS_##rows##_(ATTN_ROW_OLD_, ATTN_VECS_##vecs##_);                                  \
      }                                                                                           \
      ATTN_ROWS_##rows##_(ATTN_ROW_PUT_, ATTN_VECS_##vecs##_);                                    \
    }                                                                                             \
  }
ATTN_LOW_(ATTN_LOW_MICRO_)
#undef ATTN_SUM_
#undef ATTN_ADD_
#undef ATTN_X_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_TOP_
#undef ATTN_SCORE_
#undef ATTN_UNIT_
#undef ATTN_RAISE_
#undef ATTN_KEEP_
#undef ATTN_ALPHA_
#undef ATTN_OLD_
#undef ATTN_PUT_
#undef ATTN_ROW_RAISE_
#undef ATTN_ROW_SCORE_
#undef ATTN_ROW_OLD_
#undef ATTN_ROW_PUT_
#undef ATTN_LOW_MICRO_
#undef ATTN_LOW_MICRO_OF_

typedef struct {
  int rows;
  void (*by[ATTN_LOW_KINDS_])(const attn_pair_dots_ *, int64_t, int, int);
} ATTN_FN_(pair_step);
#define ATTN_LOW_NAME_(rows, vecs) ATTN_LOW_NAME_OF_(rows, vecs)
#define ATTN_LOW_NAME_OF_(rows, vecs) ATTN_FN_(pair_dots_##rows##x##vecs)
static const ATTN_FN_(pair_step) ATTN_FN_(pair_steps)[] = {ATTN_LOW_STEPS_(ATTN_LOW_NAME_)};
#undef ATTN_LOW_NAME_
#undef ATTN_LOW_NAME_OF_

ATTN_FUNC_ void ATTN_FN_(pair_dots)(const attn_pair_dots_ *d) {
  const ATTN_FN_(pair_step) *step = ATTN_FN_(pair_steps);
  const int ng = d->g1 - d->g0;
  for (int64_t at = 0; at < d->rows; at += step->rows) {
    while (step->rows > d->rows - at) step++;
    step->by[ATTN_LOW_VECS_(ng)](d, at, d->g0 * ATTN_GROUP_, ATTN_LOW_RUNS_(ng));
  }
}

ATTN_FUNC_ void ATTN_FN_(pair_tile)(uint32_t *to, const float *x, int64_t n, int lead, int g0,
                                    int g1) {
  for (int64_t i = -lead; i < n; i += 2, to += ATTN_TILE_)
    for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
      ATTN_VF_ even = ATTN_V_ZERO_(), odd = even;
      if (i >= 0) even = ATTN_V_LOAD_(x + i * ATTN_TILE_ + lane);
      if (i + 1 < n) odd = ATTN_V_LOAD_(x + (i + 1) * ATTN_TILE_ + lane);
      ATTN_PAIR_STORE_(to + lane, ATTN_PAIR_JOIN_(even, odd));
    }
}

/* two rows, null = 0, times by[0], by[1] */
ATTN_INLINE_ void ATTN_FN_(pair_two)(uint32_t *to, const void *even, const void *odd, int64_t dim,
                                     const int kind, const float *by) {
  int64_t c = 0;
#ifdef ATTN_PAIR_ZIP_
  if (kind == ATTN_PAIR_KIND_ && even && odd)
    for (; c + 2 * ATTN_W_ <= dim; c += 2 * ATTN_W_)
      ATTN_PAIR_ZIP_(to + c, (const uint16_t *)even + c, (const uint16_t *)odd + c);
#endif
  for (; c < dim; c += ATTN_W_) {
    const int w = ATTN_TIER_FN_(lanes_left)(dim, c);
    ATTN_VF_ x = ATTN_V_ZERO_(), y = x;
    if (even) x = ATTN_PAIR_TIMES_(ATTN_TIER_FN_(load)(even, c, w, kind), by[0]);
    if (odd) y = ATTN_PAIR_TIMES_(ATTN_TIER_FN_(load)(odd, c, w, kind), by[1]);
    ATTN_PAIR_WORDS_(to + c, x, y);
  }
}

ATTN_FUNC_ void ATTN_FN_(pair_rows)(uint32_t *to, int64_t width, const attn_pair_rows_ *rows) {
  const char *x = (const char *)rows->x;
  for (int64_t i = -rows->lead; i < rows->n; i += 2, to += width) {
    const char *even = i >= 0 ? x + i * rows->step : NULL;
    const char *odd = i + 1 < rows->n ? x + (i + 1) * rows->step : NULL;
    float by[2] = {1.0f, 1.0f};
    if (rows->by && even) by[0] = rows->by[i];
    if (rows->by && odd) by[1] = rows->by[i + 1];
    if (rows->kind == ATTN_F32) {
      ATTN_FN_(pair_two)(to, even, odd, rows->dim, ATTN_F32, by);
    } else {
      ATTN_FN_(pair_two)(to, even, odd, rows->dim, ATTN_PAIR_KIND_, by);
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(narrow)(uint16_t *to, int64_t width, const float *x, int64_t stride,
                                 int64_t n, int64_t dim, const float *by) {
  for (int64_t i = 0; i < n; i++, x += stride, to += width) {
    const float times = by ? by[i] : 1.0f;
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      const int w = ATTN_TIER_FN_(lanes_left)(dim, c);
      ATTN_PAIR_ROW_(to + c, ATTN_PAIR_TIMES_(ATTN_TIER_FN_(load)(x, c, w, ATTN_F32), times));
    }
  }
}

#ifdef ATTN_PAIR_PEAKS_
ATTN_FUNC_ void ATTN_FN_(peaks)(float *to, const float *x, int64_t stride, int64_t n, int64_t dim) {
  for (int64_t i = 0; i < n; i++, x += stride) {
    ATTN_VF_ top = ATTN_V_ZERO_();
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      const int w = ATTN_TIER_FN_(lanes_left)(dim, c);
      top = ATTN_V_MAX_(ATTN_V_ABS_(ATTN_TIER_FN_(load)(x, c, w, ATTN_F32)), top);
    }
    to[i] = ATTN_V_TOP_(top);
  }
}
#endif

/* Four keys from j on, or with four = 0 a pair of which one may be missing, of one vector of lanes: their
 * weights go to p. Returns sum and the weights. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(pair_weigh)(const int plain, const int four, uint32_t *p, float *s,
                                           int64_t j, int64_t n, int lane, ATTN_VF_ base,
                                           ATTN_VF_ sum, const attn_running_softmax_ *run) {
  const ATTN_VP1_ ones = ATTN_PAIR_SET1_(ATTN_PAIR_ONES_);
  const ATTN_VF_ none = ATTN_V_SET1_(-INFINITY);
  float *cell = s + j * ATTN_TILE_ + lane;
  ATTN_VF_ x[4];
  x[0] = four || j >= 0 ? ATTN_V_SUB_(ATTN_V_LOAD_(cell), base) : none;
  x[1] = four || j + 1 < n ? ATTN_V_SUB_(ATTN_V_LOAD_(cell + ATTN_TILE_), base) : none;
  x[2] = four ? ATTN_V_SUB_(ATTN_V_LOAD_(cell + 2 * ATTN_TILE_), base) : none;
  x[3] = four ? ATTN_V_SUB_(ATTN_V_LOAD_(cell + 3 * ATTN_TILE_), base) : none;
  ATTN_PAIR_EXP2_(x);
  if (!plain && run->ramp)
    for (int i = 0; i < (four ? 4 : 2); i++)
      if (j + i >= 0 && j + i < n)
        x[i] = ATTN_TIER_FN_(ramped)(x[i], ATTN_V_LOAD_(run->ramp->start + lane),
                                     ATTN_V_LOAD_(run->ramp->edge + lane), run->ramp, j + i);
#define ATTN_PAIR_PUT_(i)                                                                     \
  {                                                                                           \
    const ATTN_VP_ y = ATTN_PAIR_JOIN_(ATTN_PAIR_WEIGHT_(x[i]), ATTN_PAIR_WEIGHT_(x[i + 1])); \
    ATTN_PAIR_STORE_(p + i / 2 * ATTN_TILE_ + lane, y);                                       \
    sum = ATTN_PAIR_DOT_(y, ones, sum);                                                       \
    if (!plain && run->in_place && j + i >= 0)                                                \
      ATTN_V_STORE_(cell + i * ATTN_TILE_, ATTN_PAIR_SHARE_(ATTN_PAIR_EVEN_(y)));             \
    if (!plain && run->in_place && j + i + 1 < n)                                             \
      ATTN_V_STORE_(cell + (i + 1) * ATTN_TILE_, ATTN_PAIR_SHARE_(ATTN_PAIR_ODD_(y)));        \
  }
  ATTN_PAIR_PUT_(0)
  if (four) ATTN_PAIR_PUT_(2)
#undef ATTN_PAIR_PUT_
  return sum;
}

/* Rows of scores in their order, as they lie in the cache. */
ATTN_INLINE_ void ATTN_FN_(pair_softmax_rows)(const int plain, uint32_t *p, float *s, int64_t n,
                                              int lead, int g0, int g1,
                                              const attn_running_softmax_ *run) {
  ATTN_VF_ base[ATTN_TILE_ / ATTN_W_], sum[ATTN_TILE_ / ATTN_W_];
  const int v0 = g0 * ATTN_GROUP_ / ATTN_W_, v1 = g1 * ATTN_GROUP_ / ATTN_W_;
  for (int v = v0; v < v1; v++) {
    const ATTN_VF_ old = ATTN_V_LOAD_(run->m + v * ATTN_W_);
    const ATTN_VF_ now = ATTN_V_MAX_(ATTN_V_LOAD_(run->top + v * ATTN_W_), old);
    base[v] = ATTN_TIER_FN_(base)(now), sum[v] = ATTN_V_ZERO_();
    ATTN_V_STORE_(run->m + v * ATTN_W_, now);
    ATTN_V_STORE_(run->alpha + v * ATTN_W_, ATTN_TIER_FN_(exp2_neg)(ATTN_V_SUB_(old, base[v])));
  }
  int64_t j = -lead;
  while (j < n) {
#ifdef ATTN_LOW_FAST_
    if (j >= 0 && j + 4 <= n) {
      for (int v = v0; v < v1; v++)
        sum[v] = ATTN_FN_(pair_weigh)(plain, 1, p, s, j, n, v * ATTN_W_, base[v], sum[v], run);
      j += 4, p += 2 * ATTN_TILE_;
      continue;
    }
#endif
    for (int v = v0; v < v1; v++)
      sum[v] = ATTN_FN_(pair_weigh)(plain, 0, p, s, j, n, v * ATTN_W_, base[v], sum[v], run);
    j += 2, p += ATTN_TILE_;
  }
  for (int v = v0; v < v1; v++) {
    float *l = run->l + v * ATTN_W_;
    ATTN_V_STORE_(l, ATTN_V_FMA_(ATTN_V_LOAD_(l), ATTN_V_LOAD_(run->alpha + v * ATTN_W_), sum[v]));
  }
}

ATTN_FUNC_ void ATTN_FN_(pair_softmax)(uint32_t *p, float *s, int64_t n, int lead, int g0, int g1,
                                       const attn_running_softmax_ *run) {
#ifdef ATTN_LOW_FAST_
  if (!run->ramp && !run->in_place) {
    ATTN_FN_(pair_softmax_rows)(1, p, s, n, lead, g0, g1, run);
    return;
  }
#endif
  ATTN_FN_(pair_softmax_rows)(0, p, s, n, lead, g0, g1, run);
}
#undef ATTN_TIER_FN_
#undef ATTN_LOW_
#undef ATTN_LOW_FAST_
#undef ATTN_LOW_KINDS_
#undef ATTN_LOW_RUNS_
#undef ATTN_LOW_STEPS_
#undef ATTN_LOW_VECS_
#undef ATTN_LOW_WIDTH_
