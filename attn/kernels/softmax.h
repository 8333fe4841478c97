/* kernels/softmax.h owns the passes over a score block: modifiers, the running softmax, sinks. */

/* E4: cap tanh(x / cap) = x (1 + y p(y)), y = (x / cap)^2, while |x / cap| < 1/2: p is a minimax
 * polynomial that errs by 2e-8. Most scores are that small, and a division costs more than all of
 * it. */
typedef struct {
  ATTN_VF_ cap, uncap, near;
} ATTN_FN_(cap_of);

ATTN_INLINE_ ATTN_FN_(cap_of) ATTN_FN_(cap_open)(float softcap) {
  ATTN_FN_(cap_of) k;
  k.cap = ATTN_V_SET1_(softcap), k.uncap = ATTN_V_SET1_(1.0f / softcap);
  k.near = ATTN_V_SET1_(0.5f * softcap);
  return k;
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(cap_near)(ATTN_VF_ x, const ATTN_FN_(cap_of) *k) {
  ATTN_VF_ z = ATTN_V_MUL_(x, k->uncap), y = ATTN_V_MUL_(z, z);
  ATTN_VF_ p = ATTN_V_FMA_(y, ATTN_V_SET1_(0.0179887444f), ATTN_V_SET1_(-0.0533871106f));
  p = ATTN_V_FMA_(y, p, ATTN_V_SET1_(0.133304765f));
  p = ATTN_V_FMA_(y, p, ATTN_V_SET1_(-0.333333111f));
  return ATTN_V_FMA_(ATTN_V_MUL_(x, y), p, x);
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(cap)(ATTN_VF_ x, const ATTN_FN_(cap_of) *k) {
  ATTN_VF_ t = ATTN_V_MUL_(k->cap, ATTN_FN_(tanh)(ATTN_V_MUL_(x, k->uncap)));
  return ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_ABS_(x), k->near), ATTN_FN_(cap_near)(x, k), t);
}

/* the same for a block, four keys side by side */
ATTN_INLINE_ void ATTN_FN_(cap_block)(float *s, int64_t n, int g0, int g1, float softcap,
                                      float *top) {
  const ATTN_FN_(cap_of) k = ATTN_FN_(cap_open)(softcap);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ t = ATTN_V_LOAD_(top + lane);
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ x[4], z[4], far;
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) x[i] = ATTN_V_LOAD_(cell + i * ATTN_TILE_);
      far = ATTN_V_ABS_(x[0]); /* second below: where one is NaN it stays, or is NaN */
      ATTN_UNROLL_
      for (int i = 1; i < 4; i++) far = ATTN_V_MAX_(ATTN_V_ABS_(x[i]), far);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) z[i] = ATTN_FN_(cap_near)(x[i], &k);
      if (!ATTN_V_ALL_(ATTN_V_LT_(far, k.near))) {
        ATTN_VF_ w[4];
        ATTN_UNROLL_
        for (int i = 0; i < 4; i++) w[i] = ATTN_V_MUL_(x[i], k.uncap);
        ATTN_FN_(tanh4)(w);
        ATTN_UNROLL_
        for (int i = 0; i < 4; i++)
          z[i] =
              ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_ABS_(x[i]), k.near), z[i], ATTN_V_MUL_(k.cap, w[i]));
      }
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        ATTN_V_STORE_(cell + i * ATTN_TILE_, z[i]);
        t = ATTN_V_MAX_(z[i], t);
      }
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ z = ATTN_FN_(cap)(ATTN_V_LOAD_(cell), &k);
      ATTN_V_STORE_(cell, z);
      t = ATTN_V_MAX_(z, t);
    }
    ATTN_V_STORE_(top + lane, t);
  }
}

/* The numbers of an array by distance, for key r */
ATTN_INLINE_ const float *ATTN_FN_(by_distance)(const float *x, const attn_modifiers_ *mod,
                                                int64_t r) {
  return mod->back ? x - mod->back[r] : x + r * ATTN_TILE_;
}

/* The stages of a score tile, in the engine's order. Each is a vector operation or two on a score
 * in L1, so a stage that is absent must not cost a test: `use` is a constant for the usual sets. */
ATTN_INLINE_ void ATTN_FN_(modify_lanes)(const int use, const int gather, float *s, int64_t n,
                                         int g0, int g1, const attn_modifiers_ *mod, float *top) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), zero = ATTN_V_ZERO_();
  const ATTN_FN_(cap_of) cap = ATTN_FN_(cap_open)(mod->softcap);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ slope = zero, rel = zero, lo = zero, hi = zero, t = ATTN_V_LOAD_(top + lane);
    ATTN_VF_ center = zero, precision = zero;
    if (use & ATTN_USE_SLOPE_) slope = ATTN_V_LOAD_(mod->slope + lane);
    if (use & ATTN_USE_SLOPE_) rel = ATTN_V_LOAD_(mod->rel + lane);
    if (use & ATTN_USE_QUAD_) center = ATTN_V_LOAD_(mod->center + lane);
    if (use & ATTN_USE_QUAD_) precision = ATTN_V_SUB_(zero, ATTN_V_LOAD_(mod->precision + lane));
    if (use & ATTN_USE_BOUND_) lo = ATTN_V_LOAD_(mod->lo + lane), hi = ATTN_V_LOAD_(mod->hi + lane);
    const float *bias = use & ATTN_USE_BIAS_ ? mod->bias + lane : NULL, *per_key = mod->key;
    const float *dot = use & ATTN_USE_DOT_ ? mod->dot + lane : NULL, *where = mod->at;
    const uint64_t *lanes = mod->lanes;
    float *cell = s + lane;
    for (int64_t r = 0; r < n; r++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell), at = zero;
      if (use & (ATTN_USE_SLOPE_ | ATTN_USE_QUAD_ | ATTN_USE_BOUND_)) at = ATTN_V_SET1_(where[r]);
      if (use & ATTN_USE_DOT_) x = ATTN_V_ADD_(x, ATTN_V_LOAD_(dot + r * ATTN_TILE_));
      if (use & ATTN_USE_FACTOR_) {
        const float *p = ATTN_FN_(by_distance)(mod->factor, mod, r);
        ATTN_VF_ f = gather ? ATTN_V_GATHER_(p, mod->index + lane) : ATTN_V_LOAD_(p + lane);
        x = ATTN_V_MUL_(ATTN_V_MAX_(zero, x), f);
      }
      if (use & ATTN_USE_CAP_) x = ATTN_FN_(cap)(x, &cap);
      if (use & ATTN_USE_TABLE_) {
        const float *p = ATTN_FN_(by_distance)(mod->table, mod, r);
        x = ATTN_V_ADD_(x, gather ? ATTN_V_GATHER_(p, mod->index + lane) : ATTN_V_LOAD_(p + lane));
      }
      if (use & ATTN_USE_SLOPE_) x = ATTN_V_FMA_(slope, ATTN_V_ABS_(ATTN_V_ADD_(rel, at)), x);
      if (use & ATTN_USE_QUAD_) {
        ATTN_VF_ d = ATTN_V_SUB_(at, center);
        x = ATTN_V_FMA_(ATTN_V_MUL_(d, d), precision, x);
      }
      if (use & ATTN_USE_BIAS_) {
        ATTN_VF_ b = ATTN_V_LOAD_(bias);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
        bias += ATTN_TILE_;
      }
      if (use & ATTN_USE_KEY_) {
        ATTN_VF_ b = ATTN_V_SET1_(per_key[r]);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
      }
      if (use & ATTN_USE_LANES_) x = ATTN_V_SELECT_(ATTN_V_BITS_(lanes[r] >> lane), x, inf);
      if (use & ATTN_USE_BOUND_)
        x = ATTN_V_SELECT_(ATTN_V_LT_(at, lo), inf, ATTN_V_SELECT_(ATTN_V_LT_(at, hi), x, inf));
      ATTN_V_STORE_(cell, x);
      t = ATTN_V_MAX_(x, t);
    }
    ATTN_V_STORE_(top + lane, t);
  }
}

ATTN_FUNC_ void ATTN_FN_(modify_block)(float *s, int64_t n, int g0, int g1,
                                       const attn_modifiers_ *mod, float *top) {
  const int use = (mod->softcap > 0.0f ? ATTN_USE_CAP_ : 0) | (mod->slope ? ATTN_USE_SLOPE_ : 0) |
                  (mod->bias ? ATTN_USE_BIAS_ : 0) | (mod->key ? ATTN_USE_KEY_ : 0) |
                  (mod->lanes ? ATTN_USE_LANES_ : 0) | (mod->lo ? ATTN_USE_BOUND_ : 0) |
                  (mod->dot ? ATTN_USE_DOT_ : 0) | (mod->factor ? ATTN_USE_FACTOR_ : 0) |
                  (mod->table ? ATTN_USE_TABLE_ : 0) | (mod->center ? ATTN_USE_QUAD_ : 0);
#if !ATTN_HAS_TERMS
  ATTN_FN_(modify_lanes)(use & ATTN_USE_PLAIN_, 0, s, n, g0, g1, mod, top);
#else
  if (use == ATTN_USE_CAP_) {
    ATTN_FN_(cap_block)(s, n, g0, g1, mod->softcap, top);
    return;
  }
  if (mod->index) {
    ATTN_FN_(modify_lanes)(use, 1, s, n, g0, g1, mod, top);
    return;
  }
  switch (use) {
#if ATTN_SPECIALISE_
#define ATTN_CASE_(set)                                     \
  case set:                                                 \
    ATTN_FN_(modify_lanes)(set, 0, s, n, g0, g1, mod, top); \
    break;
    ATTN_CASE_(0)
    ATTN_CASE_(ATTN_USE_SLOPE_)
    ATTN_CASE_(ATTN_USE_SLOPE_ | ATTN_USE_BOUND_)
    ATTN_CASE_(ATTN_USE_BIAS_)
    ATTN_CASE_(ATTN_USE_KEY_)
    ATTN_CASE_(ATTN_USE_LANES_)
    ATTN_CASE_(ATTN_USE_BOUND_)
    ATTN_CASE_(ATTN_USE_DOT_)
    ATTN_CASE_(ATTN_USE_FACTOR_)
    ATTN_CASE_(ATTN_USE_TABLE_)
    ATTN_CASE_(ATTN_USE_QUAD_)
#undef ATTN_CASE_
#endif
    default: ATTN_FN_(modify_lanes)(use, 0, s, n, g0, g1, mod, top);
  }
#endif
}

ATTN_FUNC_ void ATTN_FN_(exclude)(float *s, int64_t n, int g0, int g1,
                                  const attn_exclude_ *not_seen, float *top) {
  enum { PARTS = ATTN_GROUP_ / ATTN_W_ };
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY);
  for (int g = g0 * ATTN_GROUP_; g < g1 * ATTN_GROUP_; g += ATTN_GROUP_) {
    ATTN_VF_ most[PARTS];
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) most[i] = ATTN_V_LOAD_(top + g + i * ATTN_W_);
    for (int64_t j = 0; j < n; j++) {
      float *cell = s + j * ATTN_TILE_ + g;
      const uint32_t *x = not_seen->x + j, *lo = not_seen->lo + g, *len = not_seen->len + g;
      ATTN_VF_ y[PARTS];
      ATTN_UNROLL_
      for (int i = 0; i < PARTS; i++) y[i] = ATTN_V_LOAD_(cell + i * ATTN_W_);
      for (int64_t t = 0; t < not_seen->tests; t++) {
        ATTN_UNROLL_
        for (int i = 0; i < PARTS; i++)
          y[i] = ATTN_V_SELECT_(ATTN_V_WITHIN_(*x, lo + i * ATTN_W_, len + i * ATTN_W_), inf, y[i]);
        x += ATTN_BLOCK_, lo += ATTN_TILE_, len += ATTN_TILE_;
      }
      ATTN_UNROLL_
      for (int i = 0; i < PARTS; i++) {
        ATTN_V_STORE_(cell + i * ATTN_W_, y[i]);
        most[i] = ATTN_V_MAX_(y[i], most[i]);
      }
    }
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) ATTN_V_STORE_(top + g + i * ATTN_W_, most[i]);
  }
}

/* what a score is taken relative to: the maximum, or 0 while a row has no key */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(base)(ATTN_VF_ m) {
  return ATTN_V_SELECT_(ATTN_V_EQ_(m, ATTN_V_SET1_(-INFINITY)), ATTN_V_ZERO_(), m);
}

/* weight of key j times its ramp */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(ramped)(ATTN_VF_ p, ATTN_VF_ start, ATTN_VF_ edge,
                                       const attn_ramp_ *ramp, int64_t j) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f);
  ATTN_VF_ t =
      ATTN_V_FMA_(ATTN_V_ADD_(start, ATTN_V_SET1_(ramp->at[j])), ATTN_V_SET1_(ramp->rate), edge);
  t = ATTN_V_SELECT_(ATTN_V_LT_(t, one), ATTN_V_MAX_(ATTN_V_ZERO_(), t), one);
  return ATTN_V_MUL_(p, t);
}

ATTN_INLINE_ void ATTN_FN_(softmax_lanes)(const int use_ramp, float *s, int64_t n, int g0, int g1,
                                          float *m, float *l, float *alpha, const float *top,
                                          const attn_ramp_ *ramp) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), now = ATTN_V_MAX_(ATTN_V_LOAD_(top + lane), old);
    ATTN_VF_ base = ATTN_FN_(base)(now), sum = ATTN_V_ZERO_(), start = sum, edge = sum;
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    float *cell = s + lane;
    int64_t j = 0;
    if (use_ramp) start = ATTN_V_LOAD_(ramp->start + lane), edge = ATTN_V_LOAD_(ramp->edge + lane);
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ p[4];
      p[0] = ATTN_V_SUB_(ATTN_V_LOAD_(cell), base);
      p[1] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + ATTN_TILE_), base);
      p[2] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 2 * ATTN_TILE_), base);
      p[3] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 3 * ATTN_TILE_), base);
      ATTN_FN_(exp2_neg4)(p);
      if (use_ramp) {
        p[0] = ATTN_FN_(ramped)(p[0], start, edge, ramp, j);
        p[1] = ATTN_FN_(ramped)(p[1], start, edge, ramp, j + 1);
        p[2] = ATTN_FN_(ramped)(p[2], start, edge, ramp, j + 2);
        p[3] = ATTN_FN_(ramped)(p[3], start, edge, ramp, j + 3);
      }
      ATTN_V_STORE_(cell, p[0]);
      ATTN_V_STORE_(cell + ATTN_TILE_, p[1]);
      ATTN_V_STORE_(cell + 2 * ATTN_TILE_, p[2]);
      ATTN_V_STORE_(cell + 3 * ATTN_TILE_, p[3]);
      sum = ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(sum, p[0]), p[1]), p[2]), p[3]);
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_LOAD_(cell), base));
      if (use_ramp) p = ATTN_FN_(ramped)(p, start, edge, ramp, j);
      ATTN_V_STORE_(cell, p);
      sum = ATTN_V_ADD_(sum, p);
    }
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, sum));
    ATTN_V_STORE_(alpha + lane, keep);
  }
}

ATTN_FUNC_ void ATTN_FN_(softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l,
                                        float *alpha, const float *top, const attn_ramp_ *ramp) {
  if (ramp) {
    ATTN_FN_(softmax_lanes)(1, s, n, g0, g1, m, l, alpha, top, ramp);
  } else {
    ATTN_FN_(softmax_lanes)(0, s, n, g0, g1, m, l, alpha, top, ramp);
  }
}

ATTN_FUNC_ void ATTN_FN_(relu_block)(float *s, int64_t n, int g0, int g1, int square, float *l,
                                     float *count) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), inf = ATTN_V_SET1_(-INFINITY);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ sum = zero, keys = ATTN_V_LOAD_(count + lane);
    float *cell = s + lane;
    for (int64_t j = 0; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell), p = ATTN_V_MAX_(zero, x);
      if (square) p = ATTN_V_MUL_(p, p);
      keys = ATTN_V_ADD_(keys, ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), zero, one));
      sum = ATTN_V_ADD_(sum, p);
      ATTN_V_STORE_(cell, p);
    }
    ATTN_V_STORE_(l + lane, ATTN_V_ADD_(ATTN_V_LOAD_(l + lane), sum));
    ATTN_V_STORE_(count + lane, keys);
  }
}

ATTN_FUNC_ void ATTN_FN_(scale_block)(float *x, int64_t n, int g0, int g1, const float *alpha) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ a = ATTN_V_LOAD_(alpha + lane);
    float *cell = x + lane;
    for (int64_t r = 0; r < n; r++, cell += ATTN_TILE_)
      ATTN_V_STORE_(cell, ATTN_V_MUL_(ATTN_V_LOAD_(cell), a));
  }
}

/* The error of a sum is Knuth's: it is exact, whichever summand is larger. That of x keep is left: keep is 1
 * but for the few stretches that raise the maximum. */
ATTN_FUNC_ void ATTN_FN_(fold_block)(float *x, float *low, const float *y, int64_t n, int groups,
                                     const float *keep, int close) {
  for (int lane = 0; lane < groups * ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ by = ATTN_V_LOAD_(keep + lane);
    for (int64_t at = lane; at < n * ATTN_TILE_; at += ATTN_TILE_) {
      const ATTN_VF_ a = ATTN_V_MUL_(ATTN_V_LOAD_(x + at), by), b = ATTN_V_LOAD_(y + at);
      ATTN_VF_ sum = ATTN_V_ADD_(a, b), part = ATTN_V_SUB_(sum, a);
      ATTN_VF_ lost = ATTN_V_ADD_(ATTN_V_SUB_(a, ATTN_V_SUB_(sum, part)), ATTN_V_SUB_(b, part));
      lost = ATTN_V_FMA_(ATTN_V_LOAD_(low + at), by, lost);
      if (close) /* infinity has no rest */
        sum = ATTN_V_SELECT_(ATTN_V_EQ_(lost, lost), ATTN_V_ADD_(sum, lost), sum);
      ATTN_V_STORE_(low + at, lost);
      ATTN_V_STORE_(x + at, sum);
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(join)(float *m, float *l, float *scale, const float *logit, int groups) {
  for (int lane = 0; lane < groups * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), x = ATTN_V_LOAD_(logit + lane);
    ATTN_VF_ now = ATTN_V_MAX_(x, old), base = ATTN_FN_(base)(now);
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(x, base));
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, p));
    ATTN_V_STORE_(scale + lane, ATTN_V_MUL_(ATTN_V_LOAD_(scale + lane), keep));
  }
}

ATTN_FUNC_ void ATTN_FN_(divide)(float *x, const float *y, int groups) {
  for (int lane = 0; lane < groups * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ b = ATTN_V_LOAD_(y + lane), zero = ATTN_V_ZERO_();
    ATTN_VF_ q = ATTN_V_DIV_(ATTN_V_LOAD_(x + lane), b);
    ATTN_V_STORE_(x + lane, ATTN_V_SELECT_(ATTN_V_EQ_(b, zero), zero, q));
  }
}
