/* kernels/gradient.h owns what a gradient does to a tile of scores: the step from scores to weights and on to
 * the gradients of scores, and what a row's weights are held against. */

ATTN_FUNC_ void ATTN_FN_(grad_block)(float *s, float *d, int64_t n, int g0, int g1,
                                     const attn_grad_lanes_ *lanes) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), none = ATTN_V_SET1_(INFINITY);
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ hi = ATTN_V_LOAD_(lanes->hi + lane), lo = ATTN_V_LOAD_(lanes->lo + lane);
    const ATTN_VF_ less = ATTN_V_LOAD_(lanes->less + lane);
    float *cell = s + lane, *to = d + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_, to += 4 * ATTN_TILE_) {
      ATTN_VF_ x[4], y[4];
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        x[i] = ATTN_V_SELECT_(ATTN_V_EQ_(hi, none), inf, ATTN_V_LOAD_(cell + i * ATTN_TILE_));
        y[i] = ATTN_V_SUB_(ATTN_V_SUB_(x[i], hi), lo);
        y[i] = ATTN_V_SUB_(y[i], ATTN_V_MAX_(zero, y[i])); /* at most 0, and NaN stays */
      }
      ATTN_FN_(exp2_neg4)(y);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        ATTN_VF_ e = ATTN_V_MUL_(y[i], ATTN_V_SUB_(ATTN_V_LOAD_(to + i * ATTN_TILE_), less));
        ATTN_V_STORE_(cell + i * ATTN_TILE_, ATTN_V_SELECT_(ATTN_V_EQ_(x[i], inf), zero, y[i]));
        ATTN_V_STORE_(to + i * ATTN_TILE_, ATTN_V_SELECT_(ATTN_V_EQ_(x[i], inf), zero, e));
      }
    }
    for (; j < n; j++, cell += ATTN_TILE_, to += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_SELECT_(ATTN_V_EQ_(hi, none), inf, ATTN_V_LOAD_(cell));
      ATTN_VF_ y = ATTN_V_SUB_(ATTN_V_SUB_(x, hi), lo);
      y = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(y, ATTN_V_MAX_(zero, y)));
      ATTN_VF_ e = ATTN_V_MUL_(y, ATTN_V_SUB_(ATTN_V_LOAD_(to), less));
      ATTN_V_STORE_(cell, ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), zero, y));
      ATTN_V_STORE_(to, ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), zero, e));
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(row_dots)(float *out, const float *x, const float *y, int64_t n,
                                   int64_t dim) {
  enum { PARTS = ATTN_GROUP_ / ATTN_W_ };
  for (int64_t r = 0; r < n; r++, x += dim, y += dim) {
    float sum[ATTN_GROUP_];
    ATTN_VF_ s[PARTS];
    int64_t c = 0;
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) s[i] = ATTN_V_ZERO_();
    for (; c + ATTN_GROUP_ <= dim; c += ATTN_GROUP_) {
      ATTN_UNROLL_
      for (int i = 0; i < PARTS; i++)
        s[i] =
            ATTN_V_FMA_(ATTN_V_LOAD_(x + c + i * ATTN_W_), ATTN_V_LOAD_(y + c + i * ATTN_W_), s[i]);
    }
    for (int i = 0; c < dim; i++, c += ATTN_W_) {
      const int some = ATTN_FN_(lanes_left)(dim, c);
      s[i] = ATTN_V_FMA_(ATTN_FN_(load)(x, c, some, ATTN_F32), ATTN_FN_(load)(y, c, some, ATTN_F32),
                         s[i]);
    }
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) ATTN_V_STORE_(sum + i * ATTN_W_, s[i]);
    for (int half = ATTN_GROUP_ / 2; half > 0; half /= 2)
      for (int i = 0; i < half; i++) sum[i] += sum[i + half];
    out[r] = sum[0];
  }
}
