/* kernels/recurrent.h owns what states with decays need beside dense products: products of rows that fade from
 * token to token, and one token into a state. */

/* Stages of FADE_ keys at once, so that readers are loaded and stored once for all of them. */
#define ATTN_FADE_KEYS_(f) f(0) f(1) f(2) f(3)
#define ATTN_FADE_OPEN_(i)                                                                    \
  const int64_t m##i = m >= i ? m - i : 0;                                                    \
  const float *w##i = p->w + m##i * dim, *y##i = p->y[0] + m##i * p->y_stride[0];             \
  const float *z##i = writers > 1 ? p->y[1] + m##i * p->y_stride[1] : y##i;                   \
  const uint64_t on##i = m >= i ? ~(uint64_t)0 << m##i : 0;                                   \
  const ATTN_VM_ a##i = ATTN_V_BITS_((on##i << p->late[0] & 0xffffu) >> lane & ATTN_FADE_W_); \
  const ATTN_VM_ b##i = ATTN_V_BITS_((on##i << p->late[1] & 0xffffu) >> lane & ATTN_FADE_W_); \
  ATTN_VF_ g##i = ATTN_V_ZERO_(), h##i = g##i, k##i = g##i, l##i = g##i;                      \
  (void)b##i, (void)z##i, (void)h##i, (void)k##i, (void)l##i;
#define ATTN_FADE_ADD_(i)                                                               \
  {                                                                                     \
    const ATTN_VF_ y = ATTN_V_SET1_(y##i[c]), w = ATTN_V_SET1_(w##i[c]);                \
    g##i = ATTN_V_FMA_(y, s, g##i);                                                     \
    if (readers > 1) h##i = ATTN_V_FMA_(y, t, h##i);                                    \
    if (writers > 1) k##i = ATTN_V_FMA_(ATTN_V_SET1_(z##i[c]), s, k##i);                \
    if (readers > 1 && writers > 1) l##i = ATTN_V_FMA_(ATTN_V_SET1_(z##i[c]), t, l##i); \
    s = ATTN_V_MUL_(s, ATTN_V_SELECT_(a##i, w, one));                                   \
    if (readers > 1) t = ATTN_V_MUL_(t, ATTN_V_SELECT_(b##i, w, one));                  \
  }
#define ATTN_FADE_CLOSE_(i)                                               \
  if (m >= i) {                                                           \
    const int64_t at = m##i * 16 + lane;                                  \
    ATTN_V_STORE_(p->g[0][0] + at, g##i);                                 \
    if (readers > 1) ATTN_V_STORE_(p->g[1][0] + at, h##i);                \
    if (writers > 1) ATTN_V_STORE_(p->g[0][1] + at, k##i);                \
    if (readers > 1 && writers > 1) ATTN_V_STORE_(p->g[1][1] + at, l##i); \
  }
#define ATTN_FADE_W_ (((uint64_t)1 << ATTN_W_) - 1)

/* One vector of lanes. Keys behind all of them neither change nor meet a reader. */
ATTN_INLINE_ void ATTN_FN_(fade_lanes)(const int readers, const int writers, const attn_fade_ *p,
                                       int lane) {
  const int64_t dim = p->dim;
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f);
  float *x = p->x[0] + lane, *x1 = readers > 1 ? p->x[1] + lane : x;
  int64_t m = p->n - 1;
  if (m > lane + ATTN_W_ - 1) m = lane + ATTN_W_ - 1;
  for (; m >= 0; m -= 4) {
    ATTN_FADE_KEYS_(ATTN_FADE_OPEN_)
    for (int64_t c = 0; c < dim; c++) {
      ATTN_VF_ s = ATTN_V_LOAD_(x + c * ATTN_TILE_), t = s;
      if (readers > 1) t = ATTN_V_LOAD_(x1 + c * ATTN_TILE_);
      (void)t;
      ATTN_FADE_KEYS_(ATTN_FADE_ADD_)
      ATTN_V_STORE_(x + c * ATTN_TILE_, s);
      if (readers > 1) ATTN_V_STORE_(x1 + c * ATTN_TILE_, t);
    }
    ATTN_FADE_KEYS_(ATTN_FADE_CLOSE_)
  }
}
#undef ATTN_FADE_KEYS_
#undef ATTN_FADE_OPEN_
#undef ATTN_FADE_ADD_
#undef ATTN_FADE_CLOSE_
#undef ATTN_FADE_W_

ATTN_FUNC_ void ATTN_FN_(fade_products)(const attn_fade_ *p) {
  for (int lane = 0; lane < p->n; lane += ATTN_W_)
    if (p->readers == 1)
      ATTN_FN_(fade_lanes)(1, 1, p, lane);
    else if (p->writers == 1)
      ATTN_FN_(fade_lanes)(2, 1, p, lane);
    else
      ATTN_FN_(fade_lanes)(2, 2, p, lane);
}

/* y[m] = x[m] r, r = r w[m], column by column, from the last row to the first */
ATTN_FUNC_ void ATTN_FN_(fade_rows)(float *y, const float *x, int64_t x_stride, const float *w,
                                    int64_t n, int64_t dim, float *r) {
  for (int64_t c = 0; c < dim; c += ATTN_W_) {
    const int some = ATTN_FN_(lanes_left)(dim, c);
    ATTN_VF_ left = ATTN_FN_(load)(r, c, some, ATTN_F32);
    for (int64_t m = n; m-- > 0;) {
      const ATTN_VF_ t = ATTN_FN_(load)(x + m * x_stride, c, some, ATTN_F32);
      ATTN_FN_(store)(y + m * dim, c, ATTN_V_MUL_(t, left), some, ATTN_F32);
      left = ATTN_V_MUL_(left, ATTN_FN_(load)(w + m * dim, c, some, ATTN_F32));
    }
    ATTN_FN_(store)(r, c, left, some, ATTN_F32);
  }
}

#define ATTN_TOKEN_EACH_(f, sum) f(0, sum) f(1, sum) f(2, sum) f(3, sum)
#define ATTN_TOKEN_OPEN_(i, sum)                                              \
  ATTN_VF_ u##i = ATTN_V_ZERO_(), v##i = u##i, even##i = u##i, odd##i = u##i; \
  if (vecs > i) v##i = ATTN_FN_(load)(p->v + c, i * ATTN_W_, some, ATTN_F32); \
  (void)u##i, (void)v##i, (void)even##i, (void)odd##i;
#define ATTN_TOKEN_READ_(i, sum) \
  if (vecs > i) sum##i = ATTN_V_FMA_(ar, ATTN_FN_(load)(row, i * ATTN_W_, some, ATTN_F32), sum##i);
#define ATTN_TOKEN_MEET_(i, sum)                      \
  if (vecs > i) {                                     \
    u##i = ATTN_V_ADD_(even##i, odd##i);              \
    if (!p->b) v##i = ATTN_V_FMA_(minus, u##i, v##i); \
    even##i = odd##i = ATTN_V_ZERO_();                \
  }
#define ATTN_TOKEN_WRITE_(i, sum)                                                               \
  if (vecs > i) {                                                                               \
    const ATTN_VF_ s = row ? ATTN_FN_(load)(row, i * ATTN_W_, some, ATTN_F32) : ATTN_V_ZERO_(); \
    ATTN_VF_ t = s;                                                                             \
    if (p->w) t = near ? ATTN_V_FMA_(s, wr, s) : ATTN_V_MUL_(s, wr);                            \
    if (p->b) t = ATTN_V_FMA_(br, u##i, t);                                                     \
    t = ATTN_V_FMA_(kr, v##i, t);                                                               \
    ATTN_FN_(store)(to, i * ATTN_W_, ATTN_FN_(quiet)(t), some, ATTN_F32);                       \
    sum##i = ATTN_V_FMA_(qr, p->before ? s : t, sum##i);                                        \
  }
#define ATTN_TOKEN_CLOSE_(i, sum)                                                     \
  if (vecs > i) {                                                                     \
    even##i = ATTN_V_ADD_(even##i, odd##i);                                           \
    if (p->before) even##i = ATTN_V_FMA_(ATTN_V_SET1_(p->own), v##i, even##i);        \
    ATTN_FN_(store)(p->o + c, i * ATTN_W_, ATTN_FN_(quiet)(even##i), some, ATTN_F32); \
  }
#define ATTN_TOKEN_READ_ROW_(r, sum)                     \
  {                                                      \
    const float *row = p->from + (r)*p->from_stride + c; \
    const ATTN_VF_ ar = ATTN_V_SET1_(p->a[r]);           \
    ATTN_FN_(token_ahead)(p, c, r);                      \
    ATTN_TOKEN_EACH_(ATTN_TOKEN_READ_, sum)              \
  }
#define ATTN_TOKEN_WRITE_ROW_(r, sum)                                                              \
  {                                                                                                \
    const float *row = p->from ? p->from + (r)*p->from_stride + c : NULL;                          \
    float *to = p->to + (r)*p->to_stride + c;                                                      \
    const ATTN_VF_ kr = ATTN_V_SET1_(p->k[r]), qr = ATTN_V_SET1_(p->q[r]);                         \
    const ATTN_VF_ wr = p->w ? ATTN_V_SET1_(p->w[r]) : kr, br = p->b ? ATTN_V_SET1_(p->b[r]) : kr; \
    const int near = p->w && p->near[r] != 0.0f;                                                   \
    (void)wr, (void)br, (void)near;                                                                \
    if (!p->a && row) ATTN_FN_(token_ahead)(p, c, r);                                              \
    ATTN_TOKEN_EACH_(ATTN_TOKEN_WRITE_, sum)                                                       \
  }

/* The rest of a row that the first strip is about to meet, so that memory is read from end to end. */
ATTN_INLINE_ void ATTN_FN_(token_ahead)(const attn_token_ *p, int64_t c, int64_t r) {
  if (c || r + 4 >= p->dk) return;
  ATTN_FN_(ahead)((const char *)(p->from + (r + 4) * p->from_stride), p->cols * 4);
}

/* Columns c .. of one token: read for the error first, so that a strip of S comes from memory once. */
ATTN_INLINE_ void ATTN_FN_(token_strip)(const int vecs, const attn_token_ *p, int64_t c, int some) {
  const ATTN_VF_ minus = ATTN_V_SET1_(p->minus);
  int64_t r = 0;
  ATTN_TOKEN_EACH_(ATTN_TOKEN_OPEN_, )
  (void)minus;
  if (p->a) {
    if (p->from) {
      for (; r + 2 <= p->dk; r += 2) {
        ATTN_TOKEN_READ_ROW_(r, even)
        ATTN_TOKEN_READ_ROW_(r + 1, odd)
      }
      if (r < p->dk) ATTN_TOKEN_READ_ROW_(r, even)
    }
    ATTN_TOKEN_EACH_(ATTN_TOKEN_MEET_, )
  }
  for (r = 0; r + 2 <= p->dk; r += 2) {
    ATTN_TOKEN_WRITE_ROW_(r, even)
    ATTN_TOKEN_WRITE_ROW_(r + 1, odd)
  }
  if (r < p->dk) ATTN_TOKEN_WRITE_ROW_(r, even)
  ATTN_TOKEN_EACH_(ATTN_TOKEN_CLOSE_, )
}
#undef ATTN_TOKEN_EACH_
#undef ATTN_TOKEN_OPEN_
#undef ATTN_TOKEN_READ_
#undef ATTN_TOKEN_MEET_
#undef ATTN_TOKEN_WRITE_
#undef ATTN_TOKEN_CLOSE_
#undef ATTN_TOKEN_READ_ROW_
#undef ATTN_TOKEN_WRITE_ROW_

ATTN_FUNC_ void ATTN_FN_(token)(const attn_token_ *p) {
  int64_t c = 0;
  for (; c + 4 * ATTN_W_ <= p->cols; c += 4 * ATTN_W_) ATTN_FN_(token_strip)(4, p, c, ATTN_W_);
  for (; c < p->cols; c += ATTN_W_)
    ATTN_FN_(token_strip)(1, p, c, ATTN_FN_(lanes_left)(p->cols, c));
}
