/* kernels/softmax.h owns the passes over a score block: modifiers, the running softmax, sinks. */

/* E4: x = cap tanh(x / cap), four keys side by side */
ATTN_INLINE_ void ATTN_FN_(cap_lanes)(float *cell, int64_t n, float softcap) {
  const ATTN_VF_ cap = ATTN_V_SET1_(softcap), uncap = ATTN_V_SET1_(1.0f / softcap);
  for (; n >= 4; n -= 4, cell += 4 * ATTN_TILE_) {
    ATTN_VF_ x[4];
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) x[i] = ATTN_V_MUL_(ATTN_V_LOAD_(cell + i * ATTN_TILE_), uncap);
    ATTN_FN_(tanh4)(x);
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) ATTN_V_STORE_(cell + i * ATTN_TILE_, ATTN_V_MUL_(cap, x[i]));
  }
  for (; n > 0; n--, cell += ATTN_TILE_) {
    ATTN_VF_ x = ATTN_FN_(tanh)(ATTN_V_MUL_(ATTN_V_LOAD_(cell), uncap));
    ATTN_V_STORE_(cell, ATTN_V_MUL_(cap, x));
  }
}

/* The stages of a score tile, in the engine's order. Each is a vector operation or two on a score
 * in L1, so a stage that is absent must not cost a test: `use` is a constant for the usual sets. */
ATTN_INLINE_ void ATTN_FN_(modify_lanes)(const int use, float *s, int64_t key, int64_t n, int g0,
                                         int g1, const attn_modifiers_ *mod, float *top) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ slope = zero, rel = zero, lo = zero, hi = zero, t = ATTN_V_LOAD_(top + lane);
    ATTN_VF_ at = ATTN_V_SET1_((float)key);
    if (use & ATTN_USE_SLOPE_) slope = ATTN_V_LOAD_(mod->slope + lane);
    if (use & ATTN_USE_SLOPE_) rel = ATTN_V_LOAD_(mod->rel + lane);
    if (use & ATTN_USE_BOUND_) lo = ATTN_V_LOAD_(mod->lo + lane), hi = ATTN_V_LOAD_(mod->hi + lane);
    const float *bias = use & ATTN_USE_BIAS_ ? mod->bias + lane : NULL;
    const float *allow = use & ATTN_USE_ALLOW_ ? mod->allow + lane : NULL, *per_key = mod->key;
    float *cell = s + lane;
    if (use & ATTN_USE_CAP_) ATTN_FN_(cap_lanes)(cell, n, mod->softcap);
    for (int64_t r = 0; r < n; r++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell);
      if (use & ATTN_USE_SLOPE_) x = ATTN_V_FMA_(slope, ATTN_V_ABS_(ATTN_V_ADD_(rel, at)), x);
      if (use & ATTN_USE_BIAS_) {
        ATTN_VF_ b = ATTN_V_LOAD_(bias);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
        bias += ATTN_TILE_;
      }
      if (use & ATTN_USE_KEY_) {
        ATTN_VF_ b = ATTN_V_SET1_(per_key[r]);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
      }
      if (use & ATTN_USE_ALLOW_) {
        x = ATTN_V_SELECT_(ATTN_V_EQ_(ATTN_V_LOAD_(allow), zero), x, inf);
        allow += ATTN_TILE_;
      }
      if (use & ATTN_USE_BOUND_)
        x = ATTN_V_SELECT_(ATTN_V_LT_(at, lo), inf, ATTN_V_SELECT_(ATTN_V_LT_(at, hi), x, inf));
      if (use & (ATTN_USE_SLOPE_ | ATTN_USE_BOUND_)) at = ATTN_V_ADD_(at, one);
      ATTN_V_STORE_(cell, x);
      t = ATTN_V_MAX_(x, t);
    }
    ATTN_V_STORE_(top + lane, t);
  }
}

ATTN_FUNC_ void ATTN_FN_(modify_block)(float *s, int64_t key, int64_t n, int g0, int g1,
                                       const attn_modifiers_ *mod, float *top) {
  const int use = (mod->softcap > 0.0f ? ATTN_USE_CAP_ : 0) | (mod->slope ? ATTN_USE_SLOPE_ : 0) |
                  (mod->bias ? ATTN_USE_BIAS_ : 0) | (mod->key ? ATTN_USE_KEY_ : 0) |
                  (mod->allow ? ATTN_USE_ALLOW_ : 0) | (mod->lo ? ATTN_USE_BOUND_ : 0);
  switch (use) {
#if ATTN_SPECIALISE_
#define ATTN_CASE_(set) \
  case set: ATTN_FN_(modify_lanes)(set, s, key, n, g0, g1, mod, top); break;
    ATTN_CASE_(ATTN_USE_CAP_)
    ATTN_CASE_(ATTN_USE_SLOPE_)
    ATTN_CASE_(ATTN_USE_SLOPE_ | ATTN_USE_BOUND_)
    ATTN_CASE_(ATTN_USE_BIAS_)
    ATTN_CASE_(ATTN_USE_KEY_)
    ATTN_CASE_(ATTN_USE_ALLOW_)
    ATTN_CASE_(ATTN_USE_BOUND_)
#undef ATTN_CASE_
#endif
    default: ATTN_FN_(modify_lanes)(use, s, key, n, g0, g1, mod, top);
  }
}

/* what a score is taken relative to: the maximum, or 0 while a row has no key */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(base)(ATTN_VF_ m) {
  return ATTN_V_SELECT_(ATTN_V_EQ_(m, ATTN_V_SET1_(-INFINITY)), ATTN_V_ZERO_(), m);
}

ATTN_FUNC_ void ATTN_FN_(softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l,
                                        float *alpha, const float *top) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), now = ATTN_V_MAX_(ATTN_V_LOAD_(top + lane), old);
    ATTN_VF_ base = ATTN_FN_(base)(now), sum = ATTN_V_ZERO_();
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ p[4];
      p[0] = ATTN_V_SUB_(ATTN_V_LOAD_(cell), base);
      p[1] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + ATTN_TILE_), base);
      p[2] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 2 * ATTN_TILE_), base);
      p[3] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 3 * ATTN_TILE_), base);
      ATTN_FN_(exp2_neg4)(p);
      ATTN_V_STORE_(cell, p[0]);
      ATTN_V_STORE_(cell + ATTN_TILE_, p[1]);
      ATTN_V_STORE_(cell + 2 * ATTN_TILE_, p[2]);
      ATTN_V_STORE_(cell + 3 * ATTN_TILE_, p[3]);
      sum = ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(sum, p[0]), p[1]), p[2]), p[3]);
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_LOAD_(cell), base));
      ATTN_V_STORE_(cell, p);
      sum = ATTN_V_ADD_(sum, p);
    }
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, sum));
    ATTN_V_STORE_(alpha + lane, keep);
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

ATTN_FUNC_ void ATTN_FN_(join)(float *m, float *l, float *scale, const float *logit) {
  for (int lane = 0; lane < ATTN_TILE_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), x = ATTN_V_LOAD_(logit + lane);
    ATTN_VF_ now = ATTN_V_MAX_(x, old), base = ATTN_FN_(base)(now);
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(x, base));
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, p));
    ATTN_V_STORE_(scale + lane, ATTN_V_MUL_(ATTN_V_LOAD_(scale + lane), keep));
  }
}

ATTN_FUNC_ void ATTN_FN_(divide)(float *x, const float *y) {
  for (int lane = 0; lane < ATTN_TILE_; lane += ATTN_W_) {
    ATTN_VF_ b = ATTN_V_LOAD_(y + lane), zero = ATTN_V_ZERO_();
    ATTN_VF_ q = ATTN_V_DIV_(ATTN_V_LOAD_(x + lane), b);
    ATTN_V_STORE_(x + lane, ATTN_V_SELECT_(ATTN_V_EQ_(b, zero), zero, q));
  }
}
