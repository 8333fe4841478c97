/* kernels/reshape.h owns weights that are no softmax: sigmoids, the rectified softmax; and what changes scores
 * when all else has. */

/* 1 / (1 + 2^-z): the exponential is never above 1, so that small weights keep their bits */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(sigmoid_of)(ATTN_VF_ z, ATTN_VF_ e) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f);
  const ATTN_VF_ top = ATTN_V_SELECT_(ATTN_V_LT_(z, ATTN_V_ZERO_()), e, one);
  return ATTN_V_DIV_(top, ATTN_V_ADD_(one, e));
}

ATTN_FUNC_ void ATTN_FN_(sigmoid_block)(float *s, int64_t n, int g0, int g1, const float *shift,
                                        float *l) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ by = ATTN_V_LOAD_(shift + lane);
    ATTN_VF_ sum = zero;
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ z[4], e[4];
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        z[i] = ATTN_V_ADD_(ATTN_V_LOAD_(cell + i * ATTN_TILE_), by);
        e[i] = ATTN_V_SUB_(zero, ATTN_V_ABS_(z[i]));
      }
      ATTN_FN_(exp2_neg4)(e);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        const ATTN_VF_ p = ATTN_FN_(sigmoid_of)(z[i], e[i]);
        ATTN_V_STORE_(cell + i * ATTN_TILE_, p);
        sum = ATTN_V_ADD_(sum, p);
      }
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      const ATTN_VF_ z = ATTN_V_ADD_(ATTN_V_LOAD_(cell), by);
      const ATTN_VF_ p =
          ATTN_FN_(sigmoid_of)(z, ATTN_FN_(exp2_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(z))));
      ATTN_V_STORE_(cell, p);
      sum = ATTN_V_ADD_(sum, p);
    }
    ATTN_V_STORE_(l + lane, ATTN_V_ADD_(ATTN_V_LOAD_(l + lane), sum));
  }
}

/* 2^(y - m) - 2^-m, m >= 0, without loss where y is near 0: with z = y - c, c = max(m - 24, 0), it is
 * 2^(c - m) (2^z - 2^-c), and 2^z is a power of 2 and the rest. Beyond 24 the loss is below that of 1. */
typedef struct {
  ATTN_VF_ cut, whole, by; /* c, 2^-c, 2^(c - m) */
} ATTN_FN_(softpick_of);

ATTN_INLINE_ ATTN_FN_(softpick_of) ATTN_FN_(softpick_open)(ATTN_VF_ m) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_FN_(softpick_of) k;
  k.cut = ATTN_V_MAX_(zero, ATTN_V_SUB_(m, ATTN_V_SET1_(24.0f)));
  k.whole = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(zero, k.cut));
  k.by = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(k.cut, m));
  return k;
}

/* x: -inf is no key */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(softpick_end)(const ATTN_FN_(softpick_of) *k, ATTN_VF_ x,
                                             ATTN_VF_ power, ATTN_VF_ rest) {
  const ATTN_VF_ e = ATTN_V_MUL_(k->by, ATTN_V_ADD_(ATTN_V_SUB_(power, k->whole), rest));
  return ATTN_V_SELECT_(ATTN_V_EQ_(x, ATTN_V_SET1_(-INFINITY)), ATTN_V_ZERO_(), e);
}

ATTN_FUNC_ void ATTN_FN_(softpick_block)(float *s, int64_t n, int g0, int g1, float *m, float *l,
                                         float *alpha, const float *top) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), floor = ATTN_V_SET1_(-126.0f);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ old = ATTN_V_LOAD_(m + lane);
    const ATTN_VF_ now = ATTN_V_MAX_(ATTN_V_LOAD_(top + lane), ATTN_V_MAX_(zero, old));
    const ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, now));
    const ATTN_FN_(softpick_of) k = ATTN_FN_(softpick_open)(now);
    ATTN_VF_ sum = zero;
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ x[4], z[4], power[4];
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        x[i] = ATTN_V_LOAD_(cell + i * ATTN_TILE_);
        z[i] = ATTN_V_MAX_(floor, ATTN_V_SUB_(x[i], k.cut));
      }
      ATTN_FN_(exp2_parts4)(z, power);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        const ATTN_VF_ e = ATTN_FN_(softpick_end)(&k, x[i], power[i], z[i]);
        ATTN_V_STORE_(cell + i * ATTN_TILE_, ATTN_V_MAX_(zero, e));
        sum = ATTN_V_ADD_(sum, ATTN_V_ABS_(e));
      }
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      const ATTN_VF_ x = ATTN_V_LOAD_(cell);
      ATTN_VF_ z = ATTN_V_MAX_(floor, ATTN_V_SUB_(x, k.cut)), power;
      ATTN_FN_(exp2_parts)(&z, &power);
      const ATTN_VF_ e = ATTN_FN_(softpick_end)(&k, x, power, z);
      ATTN_V_STORE_(cell, ATTN_V_MAX_(zero, e));
      sum = ATTN_V_ADD_(sum, ATTN_V_ABS_(e));
    }
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, sum));
    ATTN_V_STORE_(alpha + lane, keep);
  }
}

/* -log2 of a sigmoid and of 1 less it share the logarithm. Keys from the last to the first; `behind` is the sum over
 * the keys after these. */
ATTN_FUNC_ void ATTN_FN_(stick_block)(float *s, int64_t n, int g0, int g1, float *high, float *low,
                                      float *l) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), inf = ATTN_V_SET1_(-INFINITY);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ behind = ATTN_V_LOAD_(high + lane), start = ATTN_V_LOAD_(low + lane);
    const ATTN_VF_ rest = ATTN_V_SELECT_(ATTN_V_EQ_(start, inf), zero, start);
    ATTN_VF_ here = zero, sum = zero;
    float *cell = s + n * ATTN_TILE_ + lane;
    for (int64_t j = n; j > 0;) {
      const int many = j >= 4 ? 4 : 1;
      ATTN_VF_ y[4], z[4], w[4];
      j -= many, cell -= many * ATTN_TILE_;
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) { /* with one key all four are that key */
        y[i] = ATTN_V_LOAD_(cell + (many == 4 ? i * ATTN_TILE_ : 0));
        z[i] = ATTN_V_SUB_(zero, ATTN_V_ABS_(y[i]));
      }
      ATTN_FN_(exp2_neg4)(z);
      ATTN_UNROLL_
      for (int i = 3; i >= 0; i--) {
        const ATTN_VF_ p = ATTN_FN_(log2_beside)(z[i]);
        const ATTN_VF_ after = ATTN_V_ADD_(ATTN_V_ADD_(behind, here), rest);
        const ATTN_VF_ own = ATTN_V_FMA_(p, z[i], ATTN_V_MAX_(zero, ATTN_V_SUB_(zero, y[i])));
        w[i] = ATTN_V_SUB_(zero, ATTN_V_ADD_(own, after));
        if (many == 4 || i == 0)
          here = ATTN_V_ADD_(here, ATTN_V_FMA_(p, z[i], ATTN_V_MAX_(zero, y[i])));
      }
      ATTN_FN_(exp2_neg4)(w);
      ATTN_UNROLL_
      for (int i = 3; i >= 0; i--) {
        if (many != 4 && i != 0) continue;
        ATTN_V_STORE_(cell + i * ATTN_TILE_, w[i]);
        sum = ATTN_V_ADD_(sum, w[i]);
      }
    }
    const ATTN_VF_ all = ATTN_V_ADD_(behind, here), part = ATTN_V_SUB_(all, behind);
    ATTN_VF_ lost =
        ATTN_V_ADD_(ATTN_V_SUB_(behind, ATTN_V_SUB_(all, part)), ATTN_V_SUB_(here, part));
    lost = ATTN_V_ADD_(lost, rest);
    ATTN_V_STORE_(high + lane, all);
    ATTN_V_STORE_(low + lane, ATTN_V_SELECT_(ATTN_V_EQ_(lost, lost), lost, zero));
    ATTN_V_STORE_(l + lane, ATTN_V_ADD_(ATTN_V_LOAD_(l + lane), sum));
  }
}

ATTN_FUNC_ void ATTN_FN_(late_block)(float *s, int64_t n, int g0, int g1, const attn_late_terms_ *p,
                                     float *top) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), one = ATTN_V_SET1_(1.0f);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ by = p->by ? ATTN_V_LOAD_(p->by + lane) : one;
    const ATTN_VF_ hi = ATTN_V_LOAD_(p->hi + lane), lo = ATTN_V_LOAD_(p->lo + lane);
    ATTN_VF_ most = ATTN_V_LOAD_(top + lane);
    float *cell = s + lane;
    for (int64_t j = 0; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell);
      if (p->by) x = ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), inf, ATTN_V_MUL_(x, by));
      if (p->key_hi) {
        const ATTN_VF_ far = ATTN_V_SUB_(hi, ATTN_V_SET1_(p->key_hi[j]));
        const ATTN_VF_ near = ATTN_V_SUB_(lo, ATTN_V_SET1_(p->key_lo[j]));
        x = ATTN_V_ADD_(x, ATTN_V_ADD_(far, near));
      }
      if (p->less) {
        const ATTN_VF_ less = ATTN_V_LOAD_(p->less + j * ATTN_TILE_ + lane);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), inf, ATTN_V_SUB_(x, less));
      }
      ATTN_V_STORE_(cell, x);
      most = ATTN_V_MAX_(x, most);
    }
    ATTN_V_STORE_(top + lane, most);
  }
}

/* Rows of z, a lane each, between two whole positions. A position that is NaN, whose score is too, counts as the
 * last. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(between)(const float *z, int32_t stride, ATTN_VF_ at, float last) {
  float p[ATTN_W_], part[ATTN_W_];
  int32_t low[ATTN_W_], high[ATTN_W_];
  ATTN_V_STORE_(p, ATTN_V_SELECT_(ATTN_V_LT_(at, ATTN_V_SET1_(last)), at, ATTN_V_SET1_(last)));
  for (int i = 0; i < ATTN_W_; i++) {
    const int32_t n = (int32_t)p[i];
    part[i] = p[i] - (float)n;
    low[i] = i * stride + n;
    high[i] = low[i] + (part[i] > 0.0f);
  }
  const ATTN_VF_ from = ATTN_V_GATHER_(z, low), to = ATTN_V_GATHER_(z, high);
  const ATTN_VF_ by = ATTN_V_LOAD_(part);
  const ATTN_VF_ x = ATTN_V_FMA_(by, ATTN_V_SUB_(to, from), from);
  return ATTN_V_SELECT_(ATTN_V_EQ_(by, ATTN_V_ZERO_()), from, x);
}

ATTN_FUNC_ void ATTN_FN_(cope_block)(float *s, int64_t n, int g0, int g1, const float *z,
                                     int64_t stride, int64_t last, float *high, float *low,
                                     float *top) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), inf = ATTN_V_SET1_(-INFINITY);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ behind = ATTN_V_LOAD_(high + lane), rest = ATTN_V_LOAD_(low + lane);
    const ATTN_VF_ most = ATTN_V_SET1_((float)last);
    const float *row = z + lane * stride;
    ATTN_VF_ here = zero, best = ATTN_V_LOAD_(top + lane);
    float *cell = s + n * ATTN_TILE_ + lane;
    int64_t j = n;
    for (; j > 0; j--) {
      const ATTN_VF_ so_far = ATTN_V_ADD_(ATTN_V_ADD_(behind, here), rest);
      if (!ATTN_V_CHOSEN_(ATTN_V_LT_(so_far, most))) break; /* gates change nothing any more */
      cell -= ATTN_TILE_;
      const ATTN_VF_ x = ATTN_V_LOAD_(cell);
      const ATTN_VF_ e = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(zero, ATTN_V_ABS_(x)));
      here = ATTN_V_ADD_(here, ATTN_FN_(sigmoid_of)(x, e));
      const ATTN_VF_ at = ATTN_V_ADD_(ATTN_V_ADD_(behind, here), rest);
      const ATTN_VF_ y = ATTN_V_ADD_(x, ATTN_FN_(between)(row, (int32_t)stride, at, (float)last));
      const ATTN_VF_ now = ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), inf, y);
      ATTN_V_STORE_(cell, now);
      best = ATTN_V_MAX_(now, best);
    }
    /* the end of a table that no row reaches is not there */
    const ATTN_VF_ end = j ? ATTN_FN_(between)(row, (int32_t)stride, most, (float)last) : zero;
    for (; j > 0; j--) {
      cell -= ATTN_TILE_;
      const ATTN_VF_ x = ATTN_V_LOAD_(cell);
      const ATTN_VF_ now = ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), inf, ATTN_V_ADD_(x, end));
      ATTN_V_STORE_(cell, now);
      best = ATTN_V_MAX_(now, best);
    }
    ATTN_V_STORE_(top + lane, best);
    /* a lane that is there stays there: how many more gates it adds hangs on its neighbours */
    const ATTN_VF_ all = ATTN_V_ADD_(behind, here), part = ATTN_V_SUB_(all, behind);
    const ATTN_VF_ lost =
        ATTN_V_ADD_(ATTN_V_SUB_(behind, ATTN_V_SUB_(all, part)), ATTN_V_SUB_(here, part));
    const ATTN_VM_ before = ATTN_V_LT_(ATTN_V_ADD_(all, rest), most);
    ATTN_V_STORE_(high + lane, ATTN_V_SELECT_(before, all, most));
    ATTN_V_STORE_(low + lane, ATTN_V_SELECT_(before, ATTN_V_ADD_(lost, rest), zero));
  }
}

/* Nothing is left of a weight long before the greatest float. */
ATTN_FUNC_ void ATTN_FN_(fade_row)(double *sum, float *x) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), most = ATTN_V_SET1_(1e36f);
  float y[ATTN_BLOCK_];
  for (int e = 0; e < ATTN_BLOCK_; e += ATTN_W_) {
    ATTN_VF_ v = ATTN_V_LOAD_(x + e);
    v = ATTN_V_SELECT_(ATTN_V_LT_(v, zero), zero, v);
    ATTN_V_STORE_(y + e, ATTN_V_SELECT_(ATTN_V_LT_(most, v), most, v));
  }
  for (int e = 0; e < ATTN_BLOCK_; e++) {
    x[e] = (float)(sum[e] * ATTN_LOG2E_);
    sum[e] += (double)y[e] * ATTN_LN2_;
  }
}
