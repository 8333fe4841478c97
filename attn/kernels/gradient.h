/* kernels/gradient.h owns what a gradient does to a tile of scores: the step from scores to weights and on to
 * the gradients of scores, and what a row's weights are held against. */

/* A vector of lanes. */
typedef struct {
  ATTN_VF_ hi, lo, less, uncap;
} ATTN_FN_(grad_of);

/* so many keys, 1 or 4, side by side */
ATTN_INLINE_ void ATTN_FN_(grad_keys)(const int many, const int capped, float *cell, float *to,
                                      const float *from, const ATTN_FN_(grad_of) *k) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), none = ATTN_V_SET1_(INFINITY);
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f);
  ATTN_VF_ x[4], y[4], e[4];
  ATTN_UNROLL_
  for (int i = 0; i < many; i++) {
    x[i] = ATTN_V_SELECT_(ATTN_V_EQ_(k->hi, none), inf, ATTN_V_LOAD_(cell + i * ATTN_TILE_));
    y[i] = ATTN_V_SUB_(ATTN_V_SUB_(x[i], k->hi), k->lo);
    y[i] = ATTN_V_SUB_(y[i], ATTN_V_MAX_(zero, y[i])); /* at most 0, and NaN stays */
    e[i] = ATTN_V_SUB_(ATTN_V_LOAD_(to + i * ATTN_TILE_), k->less);
    if (capped) {
      ATTN_VF_ z = ATTN_V_MUL_(ATTN_V_LOAD_(from + i * ATTN_TILE_), k->uncap);
      e[i] = ATTN_V_MUL_(e[i], ATTN_V_FMA_(ATTN_V_SUB_(zero, z), z, one));
    }
  }
  if (many == 4)
    ATTN_FN_(exp2_neg4)(y);
  else
    y[0] = ATTN_FN_(exp2_neg)(y[0]);
  ATTN_UNROLL_
  for (int i = 0; i < many; i++) {
    e[i] = ATTN_V_MUL_(y[i], e[i]);
    ATTN_V_STORE_(cell + i * ATTN_TILE_, ATTN_V_SELECT_(ATTN_V_EQ_(x[i], inf), zero, y[i]));
    ATTN_V_STORE_(to + i * ATTN_TILE_, ATTN_V_SELECT_(ATTN_V_EQ_(x[i], inf), zero, e[i]));
  }
}

ATTN_INLINE_ void ATTN_FN_(grad_lanes)(const int capped, float *s, float *d, int64_t n, int g0,
                                       int g1, const attn_grad_lanes_ *lanes,
                                       const attn_grad_cap_ *cap) {
  const float *capped_at = cap->capped ? cap->capped : s;
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_FN_(grad_of) k;
    int64_t at = lane, j = 0;
    k.hi = ATTN_V_LOAD_(lanes->hi + lane), k.lo = ATTN_V_LOAD_(lanes->lo + lane);
    k.less = ATTN_V_LOAD_(lanes->less + lane), k.uncap = ATTN_V_SET1_(cap->uncap);
    for (; j + 4 <= n; j += 4, at += 4 * ATTN_TILE_)
      ATTN_FN_(grad_keys)(4, capped, s + at, d + at, capped_at + at, &k);
    for (; j < n; j++, at += ATTN_TILE_)
      ATTN_FN_(grad_keys)(1, capped, s + at, d + at, capped_at + at, &k);
  }
}

ATTN_FUNC_ void ATTN_FN_(grad_block)(float *s, float *d, int64_t n, int g0, int g1,
                                     const attn_grad_lanes_ *lanes, const attn_grad_cap_ *cap) {
  if (cap->uncap > 0.0f)
    ATTN_FN_(grad_lanes)(1, s, d, n, g0, g1, lanes, cap);
  else
    ATTN_FN_(grad_lanes)(0, s, d, n, g0, g1, lanes, cap);
}

/* The same of rectified weights. */
ATTN_INLINE_ void ATTN_FN_(relu_grad_lanes)(const int capped, const int square, float *s, float *d,
                                            int64_t n, int g0, int g1,
                                            const attn_grad_lanes_ *lanes,
                                            const attn_grad_cap_ *cap) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), none = ATTN_V_SET1_(INFINITY);
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f);
  const ATTN_VF_ uncap = ATTN_V_SET1_(cap->uncap);
  const float *from = cap->capped ? cap->capped : s;
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ hi = ATTN_V_LOAD_(lanes->hi + lane), by = ATTN_V_LOAD_(lanes->lo + lane);
    const ATTN_VF_ less = ATTN_V_LOAD_(lanes->less + lane);
    for (int64_t j = 0, at = lane; j < n; j++, at += ATTN_TILE_) {
      const ATTN_VF_ x = ATTN_V_SELECT_(ATTN_V_EQ_(hi, none), inf, ATTN_V_LOAD_(s + at));
      const ATTN_VF_ r = ATTN_V_MAX_(zero, x); /* NaN stays */
      ATTN_VF_ e = ATTN_V_MUL_(by, ATTN_V_SUB_(ATTN_V_LOAD_(d + at), less));
      if (capped) {
        const ATTN_VF_ z = ATTN_V_MUL_(ATTN_V_LOAD_(from + at), uncap);
        e = ATTN_V_MUL_(e, ATTN_V_FMA_(ATTN_V_SUB_(zero, z), z, one));
      }
      if (square) e = ATTN_V_MUL_(e, ATTN_V_ADD_(r, r));
      const ATTN_VF_ w = ATTN_V_MUL_(by, square ? ATTN_V_MUL_(r, r) : r),
                     still = ATTN_V_MUL_(r, zero);
      ATTN_V_STORE_(s + at, ATTN_V_SELECT_(ATTN_V_LT_(zero, r), w, still));
      ATTN_V_STORE_(d + at, ATTN_V_SELECT_(ATTN_V_LT_(zero, r), e, still));
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(relu_grad_block)(float *s, float *d, int64_t n, int g0, int g1, int square,
                                          const attn_grad_lanes_ *lanes,
                                          const attn_grad_cap_ *cap) {
  const int capped = cap->uncap > 0.0f;
  if (square && capped)
    ATTN_FN_(relu_grad_lanes)(1, 1, s, d, n, g0, g1, lanes, cap);
  else if (square)
    ATTN_FN_(relu_grad_lanes)(0, 1, s, d, n, g0, g1, lanes, cap);
  else if (capped)
    ATTN_FN_(relu_grad_lanes)(1, 0, s, d, n, g0, g1, lanes, cap);
  else
    ATTN_FN_(relu_grad_lanes)(0, 0, s, d, n, g0, g1, lanes, cap);
}

ATTN_FUNC_ void ATTN_FN_(relu_dots)(const float *r, const float *d, int64_t n, int g0, int g1,
                                    float *sum) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ s = ATTN_V_LOAD_(sum + lane);
    for (int64_t j = 0, at = lane; j < n; j++, at += ATTN_TILE_) {
      const ATTN_VF_ x = ATTN_V_LOAD_(r + at);
      const ATTN_VF_ y = ATTN_V_SELECT_(ATTN_V_EQ_(x, zero), zero, ATTN_V_LOAD_(d + at));
      s = ATTN_V_FMA_(x, y, s);
    }
    ATTN_V_STORE_(sum + lane, s);
  }
}

ATTN_FUNC_ void ATTN_FN_(scatter)(float *to, const float *p, const float *row, const int32_t *index,
                                  int64_t n, int64_t dim, int ahead) {
  for (int64_t e = 0; e < n; e++) {
    const ATTN_VF_ w = ATTN_V_SET1_(p[e]);
    float *y = to + index[e] * dim;
    int64_t c = 0;
    if (ahead && e + ahead < n)
      ATTN_FN_(ahead)((const char *)(to + index[e + ahead] * dim), dim * (int64_t)sizeof(float));
    for (; c + ATTN_W_ <= dim; c += ATTN_W_)
      ATTN_V_STORE_(y + c, ATTN_V_FMA_(w, ATTN_V_LOAD_(row + c), ATTN_V_LOAD_(y + c)));
    if (c == dim) continue;
    const int left = ATTN_FN_(lanes_left)(dim, c);
    ATTN_FN_(store)(y, c,
                    ATTN_V_FMA_(w, ATTN_FN_(load)(row, c, left, ATTN_F32),
                                ATTN_FN_(load)(y, c, left, ATTN_F32)),
                    left, ATTN_F32);
  }
}

/* 16 sums joined by halves. */
ATTN_INLINE_ float ATTN_FN_(halves)(ATTN_VF_ *s) {
  float sum[ATTN_W_];
  ATTN_UNROLL_
  for (int half = ATTN_GROUP_ / ATTN_W_ / 2; half > 0; half /= 2) {
    ATTN_UNROLL_
    for (int i = 0; i < half; i++) s[i] = ATTN_V_ADD_(s[i], s[i + half]);
  }
  ATTN_V_STORE_(sum, s[0]);
  ATTN_UNROLL_
  for (int half = ATTN_W_ / 2; half > 0; half /= 2) {
    ATTN_UNROLL_
    for (int i = 0; i < half; i++) sum[i] += sum[i + half];
  }
  return sum[0];
}

ATTN_FUNC_ void ATTN_FN_(row_dots)(float *out, const float *x, const float *y, int64_t n,
                                   int64_t dim) {
  enum { PARTS = ATTN_GROUP_ / ATTN_W_ };
  for (int64_t r = 0; r < n; r++, x += dim, y += dim) {
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
    out[r] = ATTN_FN_(halves)(s);
  }
}
