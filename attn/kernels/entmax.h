/* kernels/entmax.h owns the weights of entmax, powers of what scores have above a threshold. */

/* log2 of 0 < u <= 1 by halves, without a word for exponents; of 0 it is below -127 */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(log2_below)(ATTN_VF_ u) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f);
  ATTN_VF_ e = ATTN_V_ZERO_();
#define ATTN_STEP_(bits)                                                                      \
  {                                                                                           \
    const ATTN_VF_ up = ATTN_V_MUL_(u, ATTN_V_SET1_((float)((uint64_t)1 << ((bits)-1)) * 2)); \
    const ATTN_VF_ far = ATTN_V_SUB_(e, ATTN_V_SET1_(bits));                                  \
    const ATTN_VF_ over = ATTN_V_SUB_(up, ATTN_V_SET1_(2.0f));                                \
    e = ATTN_V_SELECT_(ATTN_V_LT_(over, ATTN_V_ZERO_()), far, e);                             \
    u = ATTN_V_SELECT_(ATTN_V_LT_(over, ATTN_V_ZERO_()), up, u);                              \
  }
  ATTN_STEP_(64)
  ATTN_STEP_(32)
  ATTN_STEP_(16)
  ATTN_STEP_(8)
  ATTN_STEP_(4)
  ATTN_STEP_(2)
  ATTN_STEP_(1)
#undef ATTN_STEP_
  const ATTN_VF_ z = ATTN_V_MAX_(ATTN_V_ZERO_(), ATTN_V_SUB_(u, one));
  return ATTN_V_FMA_(ATTN_FN_(log2_beside)(z), z, e);
}

ATTN_INLINE_ void ATTN_FN_(entmax_lanes)(float *to, const float *x, int64_t n, ATTN_VF_ m,
                                         ATTN_VF_ tau, float by, float power, int way, float *sum,
                                         float *slope, float *count) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), times = ATTN_V_SET1_(by);
  ATTN_VF_ all = zero, steep = zero, many = zero;
  for (int64_t j = 0; j < n;) {
    const int64_t end = n - j < ATTN_BLOCK_ ? n : j + ATTN_BLOCK_;
    ATTN_VF_ part = zero, rise = zero;
    for (; j < end; j++) {
      const ATTN_VF_ above = ATTN_V_MUL_(ATTN_V_SUB_(ATTN_V_LOAD_(x + j * ATTN_GROUP_), m), times);
      const ATTN_VF_ u = ATTN_V_MAX_(zero, ATTN_V_SUB_(above, tau));
      const ATTN_VF_ is = ATTN_V_SELECT_(ATTN_V_EQ_(u, zero), zero, one);
      ATTN_VF_ w = u, over = is;
      if (!to && ATTN_V_ALL_(ATTN_V_EQ_(u, zero))) continue;
      if (way == 2) {
        w = ATTN_V_MUL_(u, u), over = u;
      } else if (way > 2) {
        const ATTN_VF_ high = ATTN_V_MUL_(ATTN_V_SET1_(power), ATTN_FN_(log2_below)(u));
        const ATTN_VF_ y = ATTN_FN_(exp2_neg)(ATTN_V_MAX_(ATTN_V_SET1_(-200.0f), high));
        w = ATTN_V_SELECT_(ATTN_V_EQ_(u, zero), zero, ATTN_V_ADD_(y, ATTN_V_SUB_(u, u)));
        over = ATTN_V_SELECT_(ATTN_V_EQ_(u, zero), zero, ATTN_V_DIV_(w, u));
      }
      if (to) {
        ATTN_V_STORE_(to + j * ATTN_TILE_, w);
        many = ATTN_V_ADD_(many, ATTN_V_SELECT_(ATTN_V_EQ_(w, zero), zero, one));
      }
      part = ATTN_V_ADD_(part, w), rise = ATTN_V_ADD_(rise, over);
    }
    all = ATTN_V_ADD_(all, part), steep = ATTN_V_ADD_(steep, rise);
  }
  ATTN_V_STORE_(sum, all);
  ATTN_V_STORE_(slope, steep);
  ATTN_V_STORE_(count, many);
}

ATTN_FUNC_ void ATTN_FN_(entmax_group)(float *to, const float *x, int64_t n, const float *m,
                                       const float *tau, float by, float power, float *sum,
                                       float *slope, float *count) {
  for (int lane = 0; lane < ATTN_GROUP_; lane += ATTN_W_) {
    const ATTN_VF_ top = ATTN_V_LOAD_(m + lane), least = ATTN_V_LOAD_(tau + lane);
    float *out = to ? to + lane : NULL;
#define ATTN_WAY_(way)                                                                           \
  ATTN_FN_(entmax_lanes)(out, x + lane, n, top, least, by, power, way, sum + lane, slope + lane, \
                         count + lane)
    if (power == 1.0f)
      ATTN_WAY_(1);
    else if (power == 2.0f)
      ATTN_WAY_(2);
    else
      ATTN_WAY_(3);
#undef ATTN_WAY_
  }
}
