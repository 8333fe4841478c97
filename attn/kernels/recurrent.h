/* kernels/recurrent.h owns what states with decays need beside dense products: products of rows that fade from
 * token to token, and one token into a state. */

/* 16 sums in one vector */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(fade_join)(const ATTN_VF_ *sum) {
#if ATTN_W_ == 4
  return ATTN_V_ADD_(ATTN_V_ADD_(sum[0], sum[2]), ATTN_V_ADD_(sum[1], sum[3]));
#elif ATTN_W_ == 8
  return ATTN_V_ADD_(sum[0], sum[1]);
#else
  return sum[0];
#endif
}

/* Columns c .. of one reader x against `keys` writers from row m down: sums of 16 columns at a time, and x times what
 * their tokens leave. some: columns that exist. */
ATTN_INLINE_ void ATTN_FN_(fade_keys)(const int keys, const int writers, const attn_fade_ *p,
                                      float *x, int64_t m, int64_t c, const int64_t some,
                                      ATTN_VF_ *sum) {
  enum { PARTS = 16 / ATTN_W_ };
  const float *w = p->w + m * p->dim + c, *y = p->y[0] + m * p->y_stride[0] + c;
  const float *z = writers > 1 ? p->y[1] + m * p->y_stride[1] + c : y;
  ATTN_UNROLL_
  for (int i = 0; i < PARTS; i++) {
    const int64_t at = i * ATTN_W_;
    if (at >= some) continue;
    const int n = ATTN_FN_(lanes_left)(some, at);
    ATTN_VF_ s = ATTN_FN_(load)(x + c, at, n, ATTN_F32);
    ATTN_UNROLL_
    for (int k = 0; k < keys; k++) {
      ATTN_VF_ *to = sum + k * writers * PARTS + i;
      *to = ATTN_V_FMA_(s, ATTN_FN_(load)(y - k * p->y_stride[0], at, n, ATTN_F32), *to);
      if (writers > 1)
        to[PARTS] =
            ATTN_V_FMA_(s, ATTN_FN_(load)(z - k * p->y_stride[1], at, n, ATTN_F32), to[PARTS]);
      s = ATTN_V_MUL_(s, ATTN_FN_(load)(w - k * p->dim, at, n, ATTN_F32));
    }
    ATTN_FN_(store)(x + c, at, s, n, ATTN_F32);
  }
}

/* Reader x against rows m, m - 1, .., keys of them: their sums, 16 lanes in one vector, into all[writer][m]. */
ATTN_INLINE_ void ATTN_FN_(fade_some)(const int keys, const int writers, const attn_fade_ *p,
                                      float *x, int64_t m, ATTN_VF_ (*all)[16]) {
  enum { PARTS = 16 / ATTN_W_ };
  const int64_t whole = p->dim / 16 * 16;
  ATTN_VF_ sum[4 * PARTS];
  ATTN_UNROLL_
  for (int i = 0; i < keys * writers * PARTS; i++) sum[i] = ATTN_V_ZERO_();
  for (int64_t c = 0; c < whole; c += 16) ATTN_FN_(fade_keys)(keys, writers, p, x, m, c, 16, sum);
  if (whole < p->dim) { /* key after key: clang unrolls no more */
    ATTN_UNROLL_
    for (int k = 0; k < keys; k++)
      ATTN_FN_(fade_keys)(1, writers, p, x, m - k, whole, p->dim - whole,
                          sum + k * writers * PARTS);
  }
  ATTN_UNROLL_
  for (int k = 0; k < keys * writers; k++)
    all[k % writers][m - k / writers] = ATTN_FN_(fade_join)(sum + k * PARTS);
}

ATTN_INLINE_ void ATTN_FN_(fade_readers)(const int writers, const attn_fade_ *p, int r) {
  ATTN_VF_ all[2][16];
  for (int j = 0; j < writers; j++) /* what a token meets, the next one meets too */
    for (int64_t i = 0; i < 16; i++) all[j][i] = ATTN_V_ZERO_();
  for (int64_t t = 0; t < p->n; t++) {
    float *x = p->x[r] + t * p->dim;
    int64_t m = t - p->late[r];
#if ATTN_SPECIALISE_
    for (; m >= 4 / writers - 1; m -= 4 / writers)
      ATTN_FN_(fade_some)(4 / writers, writers, p, x, m, all);
    for (; writers == 1 && m >= 1; m -= 2) ATTN_FN_(fade_some)(2, 1, p, x, m, all);
#endif
    for (; m >= 0; m--) ATTN_FN_(fade_some)(1, writers, p, x, m, all);
    for (int j = 0; j < writers; j++)
      for (int i = 0; i < 16; i += ATTN_W_)
        ATTN_V_STORE_(p->g[r][j] + t * p->g_stride + i, ATTN_V_SUMS_(all[j] + i));
  }
}

ATTN_FUNC_ void ATTN_FN_(fade_products)(const attn_fade_ *p) {
  for (int r = 0; r < p->readers; r++)
    if (p->writers == 1)
      ATTN_FN_(fade_readers)(1, p, r);
    else
      ATTN_FN_(fade_readers)(2, p, r);
}

/* Rows of products times what lies between the two tokens, column by column in lanes. */
ATTN_FUNC_ void ATTN_FN_(fade_square)(float *g, const double *keep, int64_t n, int late) {
  enum { WIDE = 64 };
  static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const ATTN_VF_ lane = ATTN_V_LOAD_(lanes), one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_();
  ATTN_VF_ left[WIDE / ATTN_W_];
  for (int i = 0; i < WIDE / ATTN_W_; i++) left[i] = one;
  for (int64_t t = 0; t < n; t++, g += WIDE) {
    const ATTN_VF_ by = ATTN_V_SET1_(keep ? (float)keep[t] : 1.0f);
    for (int i = 0; i < WIDE / ATTN_W_; i++) {
      const ATTN_VM_ past = ATTN_V_LT_(lane, ATTN_V_SET1_((float)(t - i * ATTN_W_)));
      const ATTN_VF_ then = left[i], now = ATTN_V_SELECT_(past, ATTN_V_MUL_(then, by), then);
      const ATTN_VM_ meets =
          late ? past : ATTN_V_LT_(lane, ATTN_V_SET1_((float)(t + 1 - i * ATTN_W_)));
      const ATTN_VF_ x = ATTN_V_MUL_(ATTN_V_LOAD_(g + i * ATTN_W_), late ? then : now);
      ATTN_V_STORE_(g + i * ATTN_W_, ATTN_FN_(quiet)(ATTN_V_SELECT_(meets, x, zero)));
      left[i] = now;
    }
  }
}

/* y[m] = x[m] r[m], element by element */
ATTN_FUNC_ void ATTN_FN_(fade_by)(float *y, const float *x, int64_t x_stride, const float *r,
                                  int64_t r_stride, int64_t n, int64_t dim) {
  for (int64_t m = 0; m < n; m++, y += dim, x += x_stride, r += r_stride)
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      const int some = ATTN_FN_(lanes_left)(dim, c);
      const ATTN_VF_ left = ATTN_FN_(load)(r, c, some, ATTN_F32);
      ATTN_FN_(store)(y, c, ATTN_V_MUL_(ATTN_FN_(load)(x, c, some, ATTN_F32), left), some,
                      ATTN_F32);
    }
}

/* own[m] = sum_c q[m][c] k[m][c] u[c], over 16 sums joined by halves */
ATTN_FUNC_ void ATTN_FN_(meets)(float *own, const float *q, const float *k, int64_t k_stride,
                                const float *u, int64_t n, int64_t dim) {
  enum { PARTS = 16 / ATTN_W_ };
  for (int64_t m = 0; m < n; m++, q += dim, k += k_stride) {
    ATTN_VF_ sum[PARTS];
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) sum[i] = ATTN_V_ZERO_();
    for (int64_t c = 0; c < dim; c += 16) ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) {
      const int64_t at = c + i * ATTN_W_;
      if (at >= dim) break;
      const int some = ATTN_FN_(lanes_left)(dim, at);
      const ATTN_VF_ x =
          ATTN_V_MUL_(ATTN_FN_(load)(q, at, some, ATTN_F32), ATTN_FN_(load)(u, at, some, ATTN_F32));
      sum[i] = ATTN_V_FMA_(x, ATTN_FN_(load)(k, at, some, ATTN_F32), sum[i]);
    }
    own[m] = ATTN_V_SUM_(ATTN_FN_(fade_join)(sum));
  }
}

/* high + low = the sum of column c of n rows, or their product: what each step rounds off goes on by itself. */
ATTN_FUNC_ void ATTN_FN_(fade_whole)(float *high, float *low, const float *x, int64_t n,
                                     int64_t dim, int logs) {
  for (int64_t c = 0; c < dim; c += ATTN_W_) {
    const int some = ATTN_FN_(lanes_left)(dim, c);
    ATTN_VF_ s = ATTN_FN_(load)(x, c, some, ATTN_F32), rest = ATTN_V_ZERO_();
    for (int64_t m = 1; m < n; m++) {
      const ATTN_VF_ y = ATTN_FN_(load)(x + m * dim, c, some, ATTN_F32), was = s;
      if (logs) {
        s = ATTN_V_ADD_(was, y);
        const ATTN_VF_ part = ATTN_V_SUB_(s, was);
        rest = ATTN_V_ADD_(
            rest, ATTN_V_ADD_(ATTN_V_SUB_(was, ATTN_V_SUB_(s, part)), ATTN_V_SUB_(y, part)));
      } else {
        s = ATTN_V_MUL_(was, y);
        rest = ATTN_V_FMA_(rest, y, ATTN_V_SLIP_(was, y, s));
      }
    }
    ATTN_FN_(store)(high, c, s, some, ATTN_F32);
    ATTN_FN_(store)(low, c, rest, some, ATTN_F32);
  }
}

/* Whether n rows of numbers lie in lo .. hi; a NaN does not. */
ATTN_FUNC_ int ATTN_FN_(bounded)(const char *x, int64_t bytes, int64_t n, int64_t dim, int kind,
                                 float lo, float hi) {
  const ATTN_VF_ least = ATTN_V_SET1_(lo), most = ATTN_V_SET1_(hi), one = ATTN_V_SET1_(1.0f);
  ATTN_VF_ bad = ATTN_V_ZERO_();
  for (int64_t m = 0; m < n; m++, x += bytes)
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      const ATTN_VF_ y = ATTN_FN_(load)(x, c, ATTN_FN_(lanes_left)(dim, c), kind);
      bad = ATTN_V_SELECT_(ATTN_V_EQ_(y, y), bad, one);
      bad = ATTN_V_SELECT_(ATTN_V_LT_(y, least), one, bad);
      bad = ATTN_V_SELECT_(ATTN_V_LT_(most, y), one, bad);
    }
  return ATTN_V_ALL_(ATTN_V_LT_(bad, one));
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

/* w of a token's channels as a state meets it, less by 1 where near[r] is 1, from logs g (or null) and factors;
 * reads = w k (k null: none). Returns whether all are near. A factor above 1/2 less 1 is exact. */
ATTN_FUNC_ int ATTN_FN_(nearly)(float *w, float *near, float *reads, const float *g,
                                const float *rate, const float *k, int64_t dim) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f), zero = ATTN_V_ZERO_(),
                 edge = ATTN_V_SET1_(g ? -0.25f : 0.5f);
  int all = 1;
  for (int64_t c = 0; c < dim; c += ATTN_W_) {
    const int some = ATTN_FN_(lanes_left)(dim, c);
    const ATTN_VF_ x = ATTN_FN_(load)(rate, c, some, ATTN_F32);
    const ATTN_VF_ y = g ? ATTN_FN_(load)(g, c, some, ATTN_F32) : x;
    const ATTN_VM_ is = ATTN_V_LT_(edge, y);
    ATTN_VF_ less = ATTN_V_SUB_(x, one);
    if (g) { /* e^y - 1 */
      less = ATTN_V_FMA_(ATTN_V_SET1_(1.0f / 5040), y, ATTN_V_SET1_(1.0f / 720));
      less = ATTN_V_FMA_(less, y, ATTN_V_SET1_(1.0f / 120));
      less = ATTN_V_FMA_(less, y, ATTN_V_SET1_(1.0f / 24));
      less = ATTN_V_FMA_(less, y, ATTN_V_SET1_(1.0f / 6));
      less = ATTN_V_FMA_(less, y, ATTN_V_SET1_(0.5f));
      less = ATTN_V_FMA_(ATTN_V_MUL_(less, y), y, y);
    }
    const ATTN_VF_ t = ATTN_V_SELECT_(is, less, x), n = ATTN_V_SELECT_(is, one, zero);
    if (k) {
      const ATTN_VF_ z = ATTN_FN_(load)(k, c, some, ATTN_F32);
      ATTN_FN_(store)(reads, c, ATTN_V_FMA_(t, z, ATTN_V_SELECT_(is, z, zero)), some, ATTN_F32);
    }
    ATTN_FN_(store)(w, c, t, some, ATTN_F32);
    ATTN_FN_(store)(near, c, n, some, ATTN_F32);
    if (some == ATTN_W_)
      all &= ATTN_V_ALL_(is);
    else
      for (int i = 0; i < some; i++) all &= near[c + i] != 0.0f;
  }
  return all;
}

/* What a token is, known where its loops are compiled. */
enum {
  ATTN_FN_(token_adds),  /* reads nothing before it writes */
  ATTN_FN_(token_looks), /* writes the difference to what it read */
  ATTN_FN_(token_pairs), /* writes what it read to b */
  ATTN_FN_(token_before) /* its query reads the old state */
};
#define ATTN_TOKEN_EACH_(f, sum) f(0, sum) f(1, sum) f(2, sum) f(3, sum)
#define ATTN_TOKEN_OPEN_(i, sum)                                              \
  ATTN_VF_ u##i = ATTN_V_ZERO_(), v##i = u##i, even##i = u##i, odd##i = u##i; \
  if (vecs > i) v##i = ATTN_FN_(load)(p->v + c, i * ATTN_W_, some, ATTN_F32); \
  (void)u##i, (void)v##i, (void)even##i, (void)odd##i;
#define ATTN_TOKEN_READ_(i, sum) \
  if (vecs > i) sum##i = ATTN_V_FMA_(ar, ATTN_FN_(load)(row, i * ATTN_W_, some, ATTN_F32), sum##i);
#define ATTN_TOKEN_MEET_(i, sum)                                              \
  if (vecs > i) {                                                             \
    u##i = ATTN_V_ADD_(even##i, odd##i);                                      \
    if (kind == ATTN_FN_(token_looks)) v##i = ATTN_V_FMA_(minus, u##i, v##i); \
    even##i = odd##i = ATTN_V_ZERO_();                                        \
  }
#define ATTN_TOKEN_WRITE_(i, sum)                                                               \
  if (vecs > i) {                                                                               \
    const ATTN_VF_ s = row ? ATTN_FN_(load)(row, i * ATTN_W_, some, ATTN_F32) : ATTN_V_ZERO_(); \
    ATTN_VF_ t = fades == 0 ? s : near ? ATTN_V_FMA_(s, wr, s) : ATTN_V_MUL_(s, wr);            \
    if (kind == ATTN_FN_(token_pairs)) t = ATTN_V_FMA_(br, u##i, t);                            \
    t = ATTN_V_FMA_(kr, v##i, t);                                                               \
    if (kind == ATTN_FN_(token_before)) t = ATTN_FN_(quiet)(t);                                 \
    ATTN_FN_(store)(to, i * ATTN_W_, t, some, ATTN_F32);                                        \
    sum##i = ATTN_V_FMA_(qr, kind == ATTN_FN_(token_before) ? s : t, sum##i);                   \
  }
#define ATTN_TOKEN_CLOSE_(i, sum)                                                     \
  if (vecs > i) {                                                                     \
    even##i = ATTN_V_ADD_(even##i, odd##i);                                           \
    sound &= ATTN_V_ALL_(ATTN_V_EQ_(even##i, even##i));                               \
    if (kind == ATTN_FN_(token_before))                                               \
      even##i = ATTN_V_FMA_(ATTN_V_SET1_(p->own), v##i, even##i);                     \
    ATTN_FN_(store)(p->o + c, i * ATTN_W_, ATTN_FN_(quiet)(even##i), some, ATTN_F32); \
  }
#define ATTN_TOKEN_READ_ROW_(r, sum)                     \
  {                                                      \
    const float *row = p->from + (r)*p->from_stride + c; \
    const ATTN_VF_ ar = ATTN_V_SET1_(p->a[r]);           \
    ATTN_FN_(token_ahead)(p, c, r);                      \
    ATTN_TOKEN_EACH_(ATTN_TOKEN_READ_, sum)              \
  }
#define ATTN_TOKEN_WRITE_ROW_(r, sum)                                               \
  {                                                                                 \
    const float *row = p->from ? p->from + (r)*p->from_stride + c : NULL;           \
    float *to = p->to + (r)*p->to_stride + c;                                       \
    const ATTN_VF_ kr = ATTN_V_SET1_(p->k[r]), qr = ATTN_V_SET1_(p->q[r]);          \
    const ATTN_VF_ wr = fades ? ATTN_V_SET1_(p->w[(r)*p->w_step]) : kr,             \
                   br = kind == ATTN_FN_(token_pairs) ? ATTN_V_SET1_(p->b[r]) : kr; \
    const int near = fades == 1 || (fades && p->near[(r)*p->w_step] != 0.0f);       \
    (void)wr, (void)br, (void)near;                                                 \
    if (!reads && row) ATTN_FN_(token_ahead)(p, c, r);                              \
    ATTN_TOKEN_EACH_(ATTN_TOKEN_WRITE_, sum)                                        \
  }

/* The rest of a row that the first strip is about to meet, so that memory is read from end to end. */
ATTN_INLINE_ void ATTN_FN_(token_ahead)(const attn_token_ *p, int64_t c, int64_t r) {
  if (c || r + 4 >= p->dk) return;
  ATTN_FN_(ahead)((const char *)(p->from + (r + 4) * p->from_stride), p->cols * 4);
}

/* Columns c .. of one token: read for the error first, so that a strip of S comes from memory once. fades: 0 w is 1, 1
 * all near, 2 any. A NaN of S reaches what the query reads, and only then S is looked through for it. */
ATTN_INLINE_ void ATTN_FN_(token_strip)(const int vecs, const int kind, const int fades,
                                        const attn_token_ *p, int64_t c, int some) {
  const int reads = kind == ATTN_FN_(token_looks) || kind == ATTN_FN_(token_pairs);
  const ATTN_VF_ minus = ATTN_V_SET1_(p->minus);
  int64_t r = 0;
  int sound = 1;
  ATTN_TOKEN_EACH_(ATTN_TOKEN_OPEN_, )
  (void)minus;
  if (reads) {
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
  for (r = 0; !sound && r < p->dk; r++)
    for (int i = 0; i < vecs; i++) {
      float *to = p->to + r * p->to_stride + c;
      const ATTN_VF_ t = ATTN_FN_(load)(to, i * ATTN_W_, some, ATTN_F32);
      ATTN_FN_(store)(to, i * ATTN_W_, ATTN_FN_(quiet)(t), some, ATTN_F32);
    }
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
  const int kind = p->before ? ATTN_FN_(token_before)
                   : p->b    ? ATTN_FN_(token_pairs)
                   : p->a    ? ATTN_FN_(token_looks)
                             : ATTN_FN_(token_adds);
  const int fades = p->w ? p->nearly ? 1 : 2 : 0;
  int64_t c = 0;
#if ATTN_SPECIALISE_
#define ATTN_CASE_(kind, fades)                                                                  \
  case kind * 3 + fades:                                                                         \
    for (; c + WIDE <= p->cols; c += WIDE) ATTN_FN_(token_strip)(4, kind, fades, p, c, ATTN_W_); \
    break;
#define ATTN_CASES_(kind) \
  ATTN_CASE_(kind, 0)     \
  ATTN_CASE_(kind, 1)     \
  ATTN_CASE_(kind, 2)
  enum { WIDE = 4 * ATTN_W_ };
  if (p->from) switch (kind * 3 + fades) {
      ATTN_CASE_(ATTN_FN_(token_adds), 1)
      ATTN_CASE_(ATTN_FN_(token_adds), 2)
      ATTN_CASES_(ATTN_FN_(token_looks))
      ATTN_CASE_(ATTN_FN_(token_pairs), 1)
      ATTN_CASE_(ATTN_FN_(token_pairs), 2)
      ATTN_CASE_(ATTN_FN_(token_before), 1)
      ATTN_CASE_(ATTN_FN_(token_before), 2)
      default: break;
    }
#undef ATTN_CASES_
#undef ATTN_CASE_
#endif
  for (; c < p->cols; c += ATTN_W_)
    ATTN_FN_(token_strip)(1, kind, fades, p, c, ATTN_FN_(lanes_left)(p->cols, c));
}
