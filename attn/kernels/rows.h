/* kernels/rows.h owns work on rows: storage types, transposition between rows and lanes, and row
 * functions (exp, weights, blend, rotation). Tails touch only the elements that exist. */

/* n <= lanes numbers from element i of a row of any kind on; of 8 bits and fewer, the numbers that
 * stand there, without zero and scale, i even. */
ATTN_OUTLINE_ ATTN_VF_ ATTN_FN_(load_any)(const void *row, int64_t i, int n, int kind) {
  unsigned char t[4 * ATTN_W_] = {0};
  const int64_t at = ATTN_IS_I4_(kind)      ? i / 2
                     : ATTN_IS_SMALL_(kind) ? i
                     : kind == ATTN_F32     ? 4 * i
                                            : 2 * i;
  const int bytes = ATTN_IS_I4_(kind)      ? (n + 1) / 2
                    : ATTN_IS_SMALL_(kind) ? n
                    : kind == ATTN_F32     ? 4 * n
                                           : 2 * n;
  for (int c = 0; c < bytes; c++) t[c] = ((const unsigned char *)row)[at + c];
  switch (kind) {
    case ATTN_F32: return ATTN_V_LOAD_((const float *)(const void *)t);
    case ATTN_F16: return ATTN_V_LOAD_F16_((const uint16_t *)(const void *)t);
#if ATTN_HAS_QUANTIZE
    case ATTN_BF16: return ATTN_V_LOAD_BF16_((const uint16_t *)(const void *)t);
    case ATTN_I8: return ATTN_V_LOAD_I8_(t);
    case ATTN_I4: return ATTN_V_LOAD_I4_(t);
    default: return ATTN_V_LOAD_E4M3_(t);
#else
    default: return ATTN_V_LOAD_BF16_((const uint16_t *)(const void *)t);
#endif
  }
}

/* The same, in line where it is fast and small: whole vectors of a kind known here. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(load)(const void *row, int64_t i, int n, int kind) {
  if (kind == ATTN_F32) {
    const float *p = (const float *)row + i;
    return n == ATTN_W_ ? ATTN_V_LOAD_(p) : ATTN_V_LOAD_PART_(p, n);
  }
  if (!ATTN_SPECIALISE_ || n != ATTN_W_) return ATTN_FN_(load_any)(row, i, n, kind);
  if (kind == ATTN_F16) return ATTN_V_LOAD_F16_((const uint16_t *)row + i);
  if (!ATTN_IS_SMALL_(kind)) return ATTN_V_LOAD_BF16_((const uint16_t *)row + i);
  if (kind == ATTN_I8) return ATTN_V_LOAD_I8_((const unsigned char *)row + i);
  if (ATTN_IS_I4_(kind)) return ATTN_V_LOAD_I4_((const unsigned char *)row + i / 2);
  return ATTN_V_LOAD_E4M3_((const unsigned char *)row + i);
}

ATTN_INLINE_ void ATTN_FN_(store)(void *row, int64_t i, ATTN_VF_ v, int n, int kind) {
  if (kind == ATTN_F32) {
    float *p = (float *)row + i;
    if (n == ATTN_W_) {
      ATTN_V_STORE_(p, v);
    } else {
      ATTN_V_STORE_PART_(p, v, n);
    }
    return;
  }
  uint16_t *p = (uint16_t *)row + i, t[ATTN_W_];
  uint16_t *to = n == ATTN_W_ ? p : t;
  if (kind == ATTN_F16) {
    ATTN_V_STORE_F16_(to, v);
  } else {
    ATTN_V_STORE_BF16_(to, v);
  }
  if (n != ATTN_W_)
    for (int c = 0; c < n; c++) p[c] = t[c];
}

/* A NaN leaves as the one default NaN: payload and sign of a computed one differ between machines. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(quiet)(ATTN_VF_ x) {
  return ATTN_V_SELECT_(ATTN_V_EQ_(x, x), x, ATTN_V_SET1_(attn_from_bits_(0x7fc00000u)));
}

ATTN_INLINE_ int ATTN_FN_(lanes_left)(int64_t n, int64_t i) {
  return n - i < ATTN_W_ ? (int)(n - i) : ATTN_W_;
}

/* x (hi + lo); of a bias, a finite x stays finite: -FLT_MAX is not -inf */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(scaled)(ATTN_VF_ x, ATTN_VF_ hi, ATTN_VF_ lo, int bias) {
  const ATTN_VF_ inf = ATTN_V_SET1_(INFINITY), zero = ATTN_V_ZERO_();
  ATTN_VF_ y = ATTN_V_FMA_(x, hi, ATTN_V_MUL_(x, lo));
  if (bias) {
    const ATTN_VF_ most = ATTN_V_SET1_(FLT_MAX), least = ATTN_V_SET1_(-FLT_MAX);
    const ATTN_VF_ z = ATTN_V_SELECT_(
        ATTN_V_EQ_(y, inf), most, ATTN_V_SELECT_(ATTN_V_EQ_(y, ATTN_V_SUB_(zero, inf)), least, y));
    y = ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_ABS_(x), inf), z, y);
  }
  return y;
}

/* Whole squares of W rows by W columns, the usual case, stay in registers; n rows and w columns of one do
 * not. Scale hi + lo carries 48 bits, so that folding scale * log2 e into q costs one rounding. */
ATTN_INLINE_ void ATTN_FN_(pack_whole)(float *dst, const void *const *rows, int64_t c, int kind,
                                       const int bias, ATTN_VF_ hi, ATTN_VF_ lo) {
  ATTN_VF_ r[ATTN_W_];
  switch (kind & ~ATTN_KIND_BIAS_) {
#define ATTN_CASE_(type) \
  ATTN_UNROLL_           \
  for (int i = 0; i < ATTN_W_; i++) r[i] = ATTN_FN_(load)(rows[i], c, ATTN_W_, type);
    case ATTN_F32: ATTN_CASE_(ATTN_F32) break;
    case ATTN_F16: ATTN_CASE_(ATTN_F16) break;
    default: ATTN_CASE_(ATTN_BF16)
#undef ATTN_CASE_
  }
  ATTN_UNROLL_
  for (int i = 0; i < ATTN_W_; i++) r[i] = ATTN_FN_(scaled)(r[i], hi, lo, bias);
  ATTN_V_TRANSPOSE_(r);
  ATTN_UNROLL_
  for (int i = 0; i < ATTN_W_; i++) ATTN_V_STORE_(dst + i * ATTN_TILE_, r[i]);
}

ATTN_OUTLINE_ void ATTN_FN_(pack_part)(float *dst, const void *const *rows, int n, int64_t c, int w,
                                       int kind, float hi, float lo) {
  const ATTN_VF_ vhi = ATTN_V_SET1_(hi), vlo = ATTN_V_SET1_(lo);
  const int dtype = kind & ~ATTN_KIND_BIAS_;
  ATTN_VF_ r[ATTN_W_];
  for (int i = 0; i < ATTN_W_; i++) {
    r[i] = ATTN_V_ZERO_();
    if (i >= n) continue;
    if (dtype == ATTN_F32)
      r[i] = ATTN_V_LOAD_PART_((const float *)rows[i] + c, w);
    else
      r[i] = ATTN_FN_(load_any)(rows[i], c, w, dtype);
    r[i] = kind & ATTN_KIND_BIAS_ ? ATTN_FN_(scaled)(r[i], vhi, vlo, 1)
                                  : ATTN_FN_(scaled)(r[i], vhi, vlo, 0);
  }
  ATTN_V_TRANSPOSE_(r);
  for (int i = 0; i < w; i++) ATTN_V_STORE_(dst + i * ATTN_TILE_, r[i]);
}

ATTN_FUNC_ void ATTN_FN_(pack)(float *dst, const void *const *rows, int n, int64_t dim, int kind,
                               float hi, float lo) {
  const ATTN_VF_ vhi = ATTN_V_SET1_(hi), vlo = ATTN_V_SET1_(lo);
  for (int lane = 0; lane < n; lane += ATTN_W_)
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      float *to = dst + c * ATTN_TILE_ + lane;
      const int w = ATTN_FN_(lanes_left)(dim, c), some = ATTN_FN_(lanes_left)(n, lane);
      if (w == ATTN_W_ && some == ATTN_W_ && kind < ATTN_KIND_BIAS_)
        ATTN_FN_(pack_whole)(to, rows + lane, c, kind, 0, vhi, vlo);
      else if (w == ATTN_W_ && some == ATTN_W_)
        ATTN_FN_(pack_whole)(to, rows + lane, c, kind, 1, vhi, vlo);
      else
        ATTN_FN_(pack_part)(to, rows + lane, some, c, w, kind, hi, lo);
    }
  const int end = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
  for (int lane = (n + ATTN_W_ - 1) / ATTN_W_ * ATTN_W_; lane < end; lane += ATTN_W_)
    for (int64_t c = 0; c < dim; c++) ATTN_V_STORE_(dst + c * ATTN_TILE_ + lane, ATTN_V_ZERO_());
}

ATTN_INLINE_ void ATTN_FN_(unpack_whole)(void *const *rows, const float *src, int64_t c,
                                         attn_dtype dtype, ATTN_VF_ a) {
  ATTN_VF_ r[ATTN_W_];
  ATTN_UNROLL_
  for (int i = 0; i < ATTN_W_; i++)
    r[i] = ATTN_FN_(quiet)(ATTN_V_MUL_(ATTN_V_LOAD_(src + i * ATTN_TILE_), a));
  ATTN_V_TRANSPOSE_(r);
  switch (dtype) {
#define ATTN_CASE_(type) \
  ATTN_UNROLL_           \
  for (int i = 0; i < ATTN_W_; i++) ATTN_FN_(store)(rows[i], c, r[i], ATTN_W_, type);
    case ATTN_F32: ATTN_CASE_(ATTN_F32) break;
    case ATTN_F16: ATTN_CASE_(ATTN_F16) break;
    default: ATTN_CASE_(ATTN_BF16)
#undef ATTN_CASE_
  }
}

ATTN_OUTLINE_ void ATTN_FN_(unpack_part)(void *const *rows, const float *src, int n, int64_t c,
                                         int w, attn_dtype dtype, const float *scale) {
  const ATTN_VF_ a = scale ? ATTN_V_LOAD_(scale) : ATTN_V_SET1_(1.0f);
  ATTN_VF_ r[ATTN_W_];
  for (int i = 0; i < ATTN_W_; i++) {
    r[i] = ATTN_V_ZERO_();
    if (i < w) r[i] = ATTN_FN_(quiet)(ATTN_V_MUL_(ATTN_V_LOAD_(src + i * ATTN_TILE_), a));
  }
  ATTN_V_TRANSPOSE_(r);
  for (int i = 0; i < n; i++) ATTN_FN_(store)(rows[i], c, r[i], w, (int)dtype);
}

ATTN_FUNC_ void ATTN_FN_(unpack)(void *const *rows, const float *src, int n, int64_t dim,
                                 attn_dtype dtype, const float *scale) {
  for (int lane = 0; lane < n; lane += ATTN_W_) {
    const ATTN_VF_ a = scale ? ATTN_V_LOAD_(scale + lane) : ATTN_V_SET1_(1.0f);
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      const float *from = src + c * ATTN_TILE_ + lane;
      const int w = ATTN_FN_(lanes_left)(dim, c), some = ATTN_FN_(lanes_left)(n, lane);
      if (w == ATTN_W_ && some == ATTN_W_)
        ATTN_FN_(unpack_whole)(rows + lane, from, c, dtype, a);
      else
        ATTN_FN_(unpack_part)(rows + lane, from, some, c, w, dtype, scale ? scale + lane : NULL);
    }
  }
}

/* asks for a row of `bytes` bytes */
ATTN_INLINE_ void ATTN_FN_(ahead)(const char *row, int64_t bytes) {
  for (int64_t c = 0; c < bytes; c += 64) ATTN_PREFETCH_(row + c);
}

ATTN_INLINE_ void ATTN_FN_(widen_kind)(float *dst, const void *src, int64_t stride,
                                       const int32_t *index, int64_t n, int64_t dim,
                                       const int kind) {
  const int64_t size = kind == ATTN_F32 ? 4 : 2;
  for (int64_t r = 0; r < n; r++, dst += dim) {
    const char *row = (const char *)src + (index ? index[r] : r) * stride * size;
    int64_t c = 0;
    if (index && r + ATTN_AHEAD_ < n)
      ATTN_FN_(ahead)((const char *)src + index[r + ATTN_AHEAD_] * stride * size, dim * size);
    for (; c + ATTN_W_ <= dim; c += ATTN_W_)
      ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, kind));
    if (c < dim && dim >= ATTN_W_) { /* the last whole vector, some of it again */
      c = dim - ATTN_W_;
      ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, kind));
    } else if (c < dim) {
      int w = (int)(dim - c);
      ATTN_FN_(store)(dst, c, ATTN_FN_(load)(row, c, w, kind), w, ATTN_F32);
    }
  }
}

/* columns c..end of a row that have one scale */
ATTN_INLINE_ void ATTN_FN_(widen_part)(float *dst, const void *row, int64_t c, int64_t end,
                                       const int kind, const float *zero, float scale) {
  const ATTN_VF_ z = ATTN_V_SET1_(zero ? *zero : 0.0f), s = ATTN_V_SET1_(scale);
  for (; c + ATTN_W_ <= end; c += ATTN_W_) {
    ATTN_VF_ x = ATTN_FN_(load)(row, c, ATTN_W_, kind);
    if (zero) x = ATTN_V_SUB_(x, z);
    ATTN_V_STORE_(dst + c, ATTN_V_MUL_(x, s));
  }
  if (c < end) {
    const int w = (int)(end - c);
    ATTN_VF_ x = ATTN_FN_(load)(row, c, w, kind);
    if (zero) x = ATTN_V_SUB_(x, z);
    ATTN_FN_(store)(dst, c, ATTN_V_MUL_(x, s), w, ATTN_F32);
  }
}

ATTN_INLINE_ void ATTN_FN_(widen_scaled)(float *dst, const void *src, int64_t stride,
                                         const int32_t *index, int64_t n, int64_t dim,
                                         const int kind, const attn_rows_scale_ *s) {
  const int64_t bytes = attn_bytes_((attn_dtype)kind, dim);
  const int64_t step = attn_bytes_((attn_dtype)kind, stride);
  const int64_t group = s && s->group ? s->group : dim;
  for (int64_t r = 0; r < n; r++, dst += dim) {
    const int64_t at = index ? index[r] : r;
    const char *row = (const char *)src + at * step;
    const float *scale = s && s->scale ? s->scale + at * s->stride : NULL;
    const float *zero = s && s->zero ? s->zero + at * s->stride : NULL;
    if (index && r + ATTN_AHEAD_ < n)
      ATTN_FN_(ahead)((const char *)src + index[r + ATTN_AHEAD_] * step, bytes);
    for (int64_t c = 0, g = 0; c < dim; c += group, g++)
      ATTN_FN_(widen_part)(dst, row, c, dim - c < group ? dim : c + group, kind,
                           zero ? zero + g : NULL, scale ? scale[g] : 1.0f);
  }
}

ATTN_FUNC_ void ATTN_FN_(widen)(float *dst, const void *src, int64_t stride, const int32_t *index,
                                int64_t n, int64_t dim, attn_dtype dtype,
                                const attn_rows_scale_ *scales) {
#if ATTN_SPECIALISE_
  switch (dtype) {
#define ATTN_CASE_(type)                                         \
  case type:                                                     \
    ATTN_FN_(widen_kind)(dst, src, stride, index, n, dim, type); \
    return;
#define ATTN_CASE_SCALED_(type) \
  case type: ATTN_FN_(widen_scaled)(dst, src, stride, index, n, dim, type, scales); return;
    ATTN_CASE_(ATTN_F32)
    ATTN_CASE_(ATTN_F16)
#if ATTN_HAS_QUANTIZE
    ATTN_CASE_SCALED_(ATTN_I8)
    ATTN_CASE_SCALED_(ATTN_I4)
    ATTN_CASE_SCALED_(ATTN_E4M3)
#endif
#undef ATTN_CASE_
#undef ATTN_CASE_SCALED_
    default: break;
  }
  dtype = ATTN_BF16;
#endif
  if (attn_quantized_(dtype))
    ATTN_FN_(widen_scaled)(dst, src, stride, index, n, dim, (int)dtype, scales);
  else
    ATTN_FN_(widen_kind)(dst, src, stride, index, n, dim, (int)dtype);
}

/* x * 0 is 0 for every finite x, else NaN; four sums, or one addition waits for the other */
ATTN_FUNC_ int ATTN_FN_(finite)(const float *x, int64_t stride, int64_t n, int64_t dim) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_VF_ a0 = zero, a1 = zero, a2 = zero, a3 = zero;
  float lanes[ATTN_W_];
  for (int64_t r = 0; r < n; r++, x += stride) {
    int64_t c = 0;
    for (; c + 4 * ATTN_W_ <= dim; c += 4 * ATTN_W_) {
      a0 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c), zero, a0);
      a1 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c + ATTN_W_), zero, a1);
      a2 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c + 2 * ATTN_W_), zero, a2);
      a3 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c + 3 * ATTN_W_), zero, a3);
    }
    for (; c < dim; c += ATTN_W_)
      a0 = ATTN_V_FMA_(ATTN_FN_(load)(x, c, ATTN_FN_(lanes_left)(dim, c), ATTN_F32), zero, a0);
  }
  ATTN_V_STORE_(lanes, ATTN_V_ADD_(ATTN_V_ADD_(a0, a1), ATTN_V_ADD_(a2, a3)));
  for (int i = 0; i < ATTN_W_; i++)
    if (lanes[i] != 0.0f) return 0;
  return 1;
}

ATTN_FUNC_ void ATTN_FN_(exp_row)(float *y, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ e = ATTN_FN_(exp)(ATTN_FN_(load)(x, i, w, ATTN_F32));
    ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(e), w, ATTN_F32);
  }
}

ATTN_FUNC_ void ATTN_FN_(weights)(float *p, const float *x, int64_t n, float m, float scale) {
  ATTN_VF_ vm = ATTN_V_SET1_(m), a = ATTN_V_SET1_(scale);
  for (int64_t i = 0; i < n; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ y = ATTN_V_SUB_(ATTN_FN_(load)(x, i, w, ATTN_F32), vm);
    y = ATTN_V_MUL_(ATTN_FN_(exp2_full)(y), a);
    ATTN_FN_(store)(p, i, ATTN_FN_(quiet)(y), w, ATTN_F32);
  }
}

ATTN_FUNC_ void ATTN_FN_(blend)(void *y, const void *x1, const void *x2, attn_dtype ty,
                                attn_dtype t1, attn_dtype t2, int64_t n, float a, float b) {
  ATTN_VF_ va = ATTN_V_SET1_(a), vb = ATTN_V_SET1_(b);
  int64_t i = 0;
  if (x1 && !x2 && ty == ATTN_F32 && t1 == ATTN_F32) /* how a row is most often left */
    for (; i + ATTN_W_ <= n; i += ATTN_W_)
      ATTN_V_STORE_((float *)y + i,
                    ATTN_FN_(quiet)(ATTN_V_MUL_(va, ATTN_V_LOAD_((const float *)x1 + i))));
  for (; i < n; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ s = ATTN_V_ZERO_();
    if (x1) s = ATTN_V_MUL_(va, ATTN_FN_(load)(x1, i, w, (int)t1));
    if (x2) s = ATTN_V_FMA_(vb, ATTN_FN_(load)(x2, i, w, (int)t2), s);
    ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(s), w, (int)ty);
  }
}

ATTN_FUNC_ void ATTN_FN_(rope)(void *y, const void *x, attn_dtype ty, attn_dtype tx, int64_t dim,
                               int64_t rot, int half, const float *cos_row, const float *sin_row) {
  if (half) { /* both halves are loaded before either is stored: y may be x */
    int64_t h = rot / 2;
    for (int64_t i = 0; i < h; i += ATTN_W_) {
      int w = ATTN_FN_(lanes_left)(h, i);
      ATTN_VF_ a = ATTN_FN_(load)(x, i, w, (int)tx), b = ATTN_FN_(load)(x, i + h, w, (int)tx);
      ATTN_VF_ co = ATTN_FN_(load)(cos_row, i, w, ATTN_F32);
      ATTN_VF_ sa = ATTN_FN_(load)(sin_row, i, w, ATTN_F32);
      ATTN_VF_ sb = ATTN_FN_(load)(sin_row, i + h, w, ATTN_F32);
      ATTN_VF_ ya = ATTN_V_FMA_(b, sa, ATTN_V_MUL_(a, co));
      ATTN_VF_ yb = ATTN_V_FMA_(a, sb, ATTN_V_MUL_(b, co));
      ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(ya), w, (int)ty);
      ATTN_FN_(store)(y, i + h, ATTN_FN_(quiet)(yb), w, (int)ty);
    }
  } else {
    for (int64_t i = 0; i < rot; i += ATTN_W_) {
      int w = ATTN_FN_(lanes_left)(rot, i);
      ATTN_VF_ a = ATTN_FN_(load)(x, i, w, (int)tx);
      ATTN_VF_ co = ATTN_FN_(load)(cos_row, i, w, ATTN_F32);
      ATTN_VF_ si = ATTN_FN_(load)(sin_row, i, w, ATTN_F32);
      ATTN_VF_ r = ATTN_V_FMA_(ATTN_V_SWAP_PAIRS_(a), si, ATTN_V_MUL_(a, co));
      ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(r), w, (int)ty);
    }
  }
  const int64_t size = ty == ATTN_F32 ? 4 : 2;
  if (ty == tx) { /* the other columns keep their bits */
    if (y != x)
      memcpy((char *)y + rot * size, (const char *)x + rot * size, (size_t)((dim - rot) * size));
    return;
  }
  for (int64_t i = rot; i < dim; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(dim, i);
    ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(ATTN_FN_(load)(x, i, w, (int)tx)), w, (int)ty);
  }
}
