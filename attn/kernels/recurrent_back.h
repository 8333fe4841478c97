/* kernels/recurrent_back.h owns a token of a fading state there and back. States lie turned: a row is a column of the
 * values, channels are in lanes, dk in whole groups of 16. */

ATTN_INLINE_ float ATTN_FN_(channels_dot)(const float *x, const float *y, int64_t n) {
  enum { PARTS = ATTN_GROUP_ / ATTN_W_ };
  ATTN_VF_ s[PARTS];
  ATTN_UNROLL_
  for (int i = 0; i < PARTS; i++) s[i] = ATTN_V_ZERO_();
  for (int64_t c = 0; c < n; c += ATTN_GROUP_) {
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++)
      s[i] =
          ATTN_V_FMA_(ATTN_V_LOAD_(x + c + i * ATTN_W_), ATTN_V_LOAD_(y + c + i * ATTN_W_), s[i]);
  }
  return ATTN_FN_(halves)(s);
}

ATTN_INLINE_ void ATTN_FN_(fade_on_of)(const int low, const attn_fade_token_ *at) {
  const attn_fade_token_ p = *at; /* what is stored might be pointers, for all a compiler knows */
  for (int64_t x = 0; low && x < p.cols; x++)
    p.y[x] = ATTN_FN_(channels_dot)(p.a, p.from + x * p.dk, p.dk);
  for (int64_t c = 0; c < p.dk; c += ATTN_W_) {
    const ATTN_VF_ left = ATTN_V_LOAD_(p.left + c), near = ATTN_V_LOAD_(p.near + c);
    const ATTN_VF_ k = ATTN_V_LOAD_(p.k + c), b = ATTN_V_LOAD_((low ? p.b : p.k) + c);
    const float *from = p.from + c;
    float *to = p.to + c;
    for (int64_t x = 0; x < p.cols; x++, from += p.dk, to += p.dk) {
      const ATTN_VF_ s = ATTN_V_LOAD_(from);
      ATTN_VF_ t = ATTN_V_FMA_(left, s, ATTN_V_MUL_(near, s));
      if (low) t = ATTN_V_FMA_(b, ATTN_V_SET1_(p.y[x]), t);
      ATTN_V_STORE_(to, ATTN_V_FMA_(k, ATTN_V_SET1_(p.v[x]), t));
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(fade_on)(const attn_fade_token_ *p) {
  if (p->a)
    ATTN_FN_(fade_on_of)(1, p);
  else
    ATTN_FN_(fade_on_of)(0, p);
}

ATTN_INLINE_ void ATTN_FN_(fade_off_of)(const int low, const int before,
                                        const attn_fade_token_ *of) {
  const attn_fade_token_ p = *of;
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  for (int64_t x = 0; x < p.cols; x++) {
    float *d = p.d + x * p.dk;
    const ATTN_VF_ d_o = ATTN_V_SET1_(p.d_o[x]);
    for (int64_t c = 0; !before && c < p.dk; c += ATTN_W_)
      ATTN_V_STORE_(d + c, ATTN_V_FMA_(ATTN_V_LOAD_(p.q + c), d_o, ATTN_V_LOAD_(d + c)));
    p.d_v[x] = ATTN_FN_(channels_dot)(p.k, d, p.dk);
    if (!low) continue;
    p.y[x] = ATTN_FN_(channels_dot)(p.a, p.from + x * p.dk, p.dk);
    p.d_y[x] = ATTN_FN_(channels_dot)(p.b, d, p.dk);
  }
  for (int64_t c = 0; c < p.dk; c += ATTN_W_) {
    const ATTN_VF_ left = ATTN_V_LOAD_(p.left + c), near = ATTN_V_LOAD_(p.near + c);
    const ATTN_VF_ k = ATTN_V_LOAD_(p.k + c), q = ATTN_V_LOAD_(p.q + c);
    const ATTN_VF_ a = low ? ATTN_V_LOAD_(p.a + c) : zero, b = low ? ATTN_V_LOAD_(p.b + c) : zero;
    ATTN_VF_ d_q = zero, d_k = zero, d_w = zero, d_a = zero, d_b = zero;
    const float *from = p.from + c;
    float *to = p.d + c;
    for (int64_t x = 0; x < p.cols; x++, from += p.dk, to += p.dk) {
      const ATTN_VF_ s = ATTN_V_LOAD_(from), d = ATTN_V_LOAD_(to);
      const ATTN_VF_ v = ATTN_V_SET1_(p.v[x]), d_o = ATTN_V_SET1_(p.d_o[x]);
      ATTN_VF_ next = ATTN_V_FMA_(left, d, ATTN_V_MUL_(near, d)), now = s;
      if (!before) now = ATTN_V_FMA_(k, v, ATTN_V_FMA_(left, s, ATTN_V_MUL_(near, s)));
      d_k = ATTN_V_FMA_(d, v, d_k);
      d_w = ATTN_V_FMA_(d, s, d_w);
      if (low) {
        const ATTN_VF_ y = ATTN_V_SET1_(p.y[x]), d_y = ATTN_V_SET1_(p.d_y[x]);
        now = ATTN_V_FMA_(b, y, now);
        d_b = ATTN_V_FMA_(d, y, d_b);
        d_a = ATTN_V_FMA_(s, d_y, d_a);
        next = ATTN_V_FMA_(a, d_y, next);
      }
      if (before) next = ATTN_V_FMA_(q, d_o, next);
      d_q = ATTN_V_FMA_(now, d_o, d_q);
      ATTN_V_STORE_(to, next);
    }
    ATTN_V_STORE_(p.d_q + c, ATTN_V_ADD_(ATTN_V_LOAD_(p.d_q + c), d_q));
    ATTN_V_STORE_(p.d_k + c, ATTN_V_ADD_(ATTN_V_LOAD_(p.d_k + c), d_k));
    ATTN_V_STORE_(p.d_w + c, ATTN_V_ADD_(ATTN_V_LOAD_(p.d_w + c), d_w));
    if (low) ATTN_V_STORE_(p.d_a + c, ATTN_V_ADD_(ATTN_V_LOAD_(p.d_a + c), d_a));
    if (low) ATTN_V_STORE_(p.d_b + c, ATTN_V_ADD_(ATTN_V_LOAD_(p.d_b + c), d_b));
  }
}

ATTN_FUNC_ void ATTN_FN_(fade_off)(const attn_fade_token_ *p) {
  if (p->a)
    ATTN_FN_(fade_off_of)(1, 0, p);
  else if (p->before)
    ATTN_FN_(fade_off_of)(0, 1, p);
  else
    ATTN_FN_(fade_off_of)(0, 0, p);
}
