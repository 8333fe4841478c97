/* kernels/stored.h owns products of few rows of X with a matrix that is read once, where it lies and as it is
 * stored. Its numbers are those of kernels/gemm.h in the same chains; of codes, runs of k have a sum each, which
 * joins Y times the run's scale. */

/* The code of so many bits that stands at bit `at` of each word. Under the exponent of 2^(23 - at) it is a
 * fraction that needs no shift, and a difference makes it the number. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(code)(ATTN_VP_ v, const int bits, const int at) {
#ifdef ATTN_PAIR_NIBBLE_
  if (bits == 4 && at == 0) return ATTN_PAIR_NIBBLE_(v);
#endif
  const uint32_t over = (uint32_t)(150 - at) << 23, sign = 1u << (bits - 1);
  return ATTN_V_SUB_(ATTN_PAIR_TAKE_(v, ((1u << bits) - 1) << at, over | sign << at),
                     ATTN_V_SET1_(attn_from_bits_(over) + (float)sign));
}

/* Where a line of the cache begins: vectors that cross two cost twice. */
ATTN_INLINE_ float *ATTN_FN_(aligned)(float *room) {
  return (float *)(((uintptr_t)room + 63) / 64 * 64);
}

/* Adds 8 rows of W (4 to four of X) from k on, as long as Y, to the sums: prefetchers follow so many. 4-bit columns
 * are taken 2 W at a time, even ones first, and lie so in sum and zero. */
ATTN_INLINE_ void ATTN_FN_(stored_add)(const int rr, const int kind, const int zeroed, float *sum,
                                       const float *zero, const attn_stored_product_ *p,
                                       int64_t k) {
  const int deep = rr > 1 ? ATTN_STORED_DEEP_ / 2 : ATTN_STORED_DEEP_;
  const int halves = ATTN_IS_I4_(kind) ? 2 : 1, wide = halves * ATTN_W_;
  const int line = ATTN_IS_I4_(kind) ? 128 : ATTN_IS_SMALL_(kind) ? 64 : 32;
  const char *w = p->w + k * p->step;
  ATTN_VF_ t[4 * ATTN_STORED_DEEP_];
  ATTN_UNROLL_
  for (int r = 0; r < rr; r++) {
    const float *x = p->x + (r < p->rows ? r : p->rows - 1) * p->x_stride + k;
    ATTN_UNROLL_
    for (int j = 0; j < deep; j++) t[r * deep + j] = ATTN_V_SET1_(x[j]);
  }
  for (int64_t c = 0; c < p->cols; c += wide) {
    if (kind != ATTN_F32 && c % line == 0) {
      const char *next = w + deep * p->step +
                         (ATTN_IS_I4_(kind)      ? c / 2
                          : ATTN_IS_SMALL_(kind) ? c
                                                 : 2 * c);
      ATTN_UNROLL_
      for (int j = 0; j < deep; j++) ATTN_PREFETCH_FAR_(next + j * p->step);
    }
    ATTN_VF_ a[8];
    ATTN_UNROLL_
    for (int i = 0; i < rr * halves; i++)
      a[i] = ATTN_V_LOAD_(sum + i / halves * (ATTN_STORED_COLS_ / rr) + c + i % halves * ATTN_W_);
    ATTN_UNROLL_
    for (int j = 0; j < deep; j++) {
      const char *row = w + j * p->step;
      ATTN_VF_ x[2];
      if (ATTN_IS_I4_(kind)) {
        const ATTN_VP_ both = ATTN_PAIR_BYTES_(row + c / 2);
        x[0] = ATTN_FN_(code)(both, 4, 0), x[1] = ATTN_FN_(code)(both, 4, 4);
      } else {
        x[0] = x[1] = ATTN_FN_(load)(row, c, ATTN_W_, kind);
      }
      ATTN_UNROLL_
      for (int half = 0; half < halves; half++) {
        if (zeroed) x[half] = ATTN_V_SUB_(x[half], ATTN_V_LOAD_(zero + c + half * ATTN_W_));
        ATTN_UNROLL_
        for (int r = 0; r < rr; r++)
          a[r * halves + half] = ATTN_V_FMA_(t[r * deep + j], x[half], a[r * halves + half]);
      }
    }
    ATTN_UNROLL_
    for (int i = 0; i < rr * halves; i++)
      ATTN_V_STORE_(sum + i / halves * (ATTN_STORED_COLS_ / rr) + c + i % halves * ATTN_W_, a[i]);
  }
}

/* to[2i], to[2i+1] = lane i of the two halves of 2 W numbers, and back. */
ATTN_OUTLINE_ void ATTN_FN_(stored_order)(float *to, const float *from, int64_t n, int back) {
  for (int64_t c = 0; c < n; c += 2 * ATTN_W_) {
    const ATTN_VF_ a = ATTN_V_LOAD_(from + c), b = ATTN_V_LOAD_(from + c + ATTN_W_);
    ATTN_VF_ s[2];
    if (back) {
      ATTN_V_UNZIP_(s, a, b);
    } else {
      ATTN_V_ZIP_(s, a, b);
    }
    ATTN_V_STORE_(to + c, s[0]);
    ATTN_V_STORE_(to + c + ATTN_W_, s[1]);
  }
}

/* What a sum begins with, and where it goes at the end of run g. */
ATTN_OUTLINE_ void ATTN_FN_(stored_open)(float *sum, const attn_stored_product_ *p, int r) {
  if (p->scale || p->start)
    memset(sum, 0, (size_t)p->cols * sizeof(float));
  else
    memcpy(sum, p->y + (r < p->rows ? r : p->rows - 1) * p->y_stride,
           (size_t)p->cols * sizeof(float));
}
ATTN_OUTLINE_ void ATTN_FN_(stored_close)(float *sum, const attn_stored_product_ *p, int r,
                                          int64_t g) {
  float *y = p->y + r * p->y_stride;
  const float *scale = p->scale ? p->scale + g * p->scale_stride : NULL;
  if (ATTN_IS_I4_(p->kind)) ATTN_FN_(stored_order)(sum, sum, p->cols, 0);
  for (int64_t c = 0; c < p->cols; c += ATTN_W_) {
    ATTN_VF_ s = ATTN_V_LOAD_(sum + c);
    if (scale)
      s = ATTN_V_FMA_(ATTN_V_LOAD_(scale + c), s,
                      p->start && g == 0 ? ATTN_V_ZERO_() : ATTN_V_LOAD_(y + c));
    ATTN_V_STORE_(y + c, ATTN_FN_(quiet)(s));
  }
}

ATTN_INLINE_ void ATTN_FN_(stored_kind)(const int rr, const int kind, const int zeroed,
                                        const attn_stored_product_ *p) {
  float room[ATTN_STORED_COLS_ + 16], zeros[ATTN_STORED_COLS_ + 16];
  float *sum = ATTN_FN_(aligned)(room), *part = ATTN_FN_(aligned)(zeros);
  const int64_t run = ATTN_IS_SMALL_(kind) ? p->run : p->n;
  if (zeroed && !p->zero) memset(part, 0, (size_t)p->cols * sizeof(float));
  for (int64_t k = 0, g = 0; k < p->n; k += run, g++) {
    const float *zero = zeroed && p->zero ? p->zero + g * p->scale_stride : part;
    for (int r = 0; r < rr; r++) ATTN_FN_(stored_open)(sum + r * (ATTN_STORED_COLS_ / rr), p, r);
    if (zeroed && p->zero && ATTN_IS_I4_(kind)) {
      ATTN_FN_(stored_order)(part, zero, p->cols, 1);
      zero = part;
    }
    for (int64_t i = 0; i<run; i += rr> 1 ? ATTN_STORED_DEEP_ / 2 : ATTN_STORED_DEEP_)
      ATTN_FN_(stored_add)(rr, kind, zeroed, sum, zero, p, k + i);
    for (int r = 0; r < rr && r < p->rows; r++)
      ATTN_FN_(stored_close)(sum + r * (ATTN_STORED_COLS_ / rr), p, r, g);
  }
}

ATTN_FUNC_ void ATTN_FN_(stored_rows)(const attn_stored_product_ *p) {
  switch (p->kind) {
    case ATTN_F32: ATTN_FN_(stored_kind)(1, ATTN_F32, 0, p); break;
    case ATTN_F16: ATTN_FN_(stored_kind)(1, ATTN_F16, 0, p); break;
#if ATTN_HAS_QUANTIZE
    case ATTN_I8:
      if (p->rows > 1)
        ATTN_FN_(stored_kind)(4, ATTN_I8, 1, p);
      else if (p->zero)
        ATTN_FN_(stored_kind)(1, ATTN_I8, 1, p);
      else
        ATTN_FN_(stored_kind)(1, ATTN_I8, 0, p);
      break;
    case ATTN_I4:
      if (p->rows > 1)
        ATTN_FN_(stored_kind)(4, ATTN_I4, 1, p);
      else if (p->zero)
        ATTN_FN_(stored_kind)(1, ATTN_I4, 1, p);
      else
        ATTN_FN_(stored_kind)(1, ATTN_I4, 0, p);
      break;
#endif
    default:
      if (p->rows > 1)
        ATTN_FN_(stored_kind)(4, ATTN_BF16, 0, p);
      else
        ATTN_FN_(stored_kind)(1, ATTN_BF16, 0, p);
  }
}

/* --- transposed ------------------------------------------------------------------------------
 * W as [cols][k]: words of 32 bits of W rows are turned, so that a vector has the same elements of k of W
 * columns; what is less than a word is taken from there. */

/* Element j of the words; codes are two's complement, whose sign bit is turned over. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(word_part)(ATTN_VP_ v, ATTN_VP_ down, const int j, const int kind) {
  if (kind == ATTN_BF16) return j ? ATTN_PAIR_ODD_(v) : ATTN_PAIR_EVEN_(v);
  const int bits = ATTN_IS_I4_(kind) ? 4 : 8, low = ATTN_IS_I4_(kind) ? 5 : 2;
  return ATTN_FN_(code)(j < low ? v : down, bits, (j < low ? j : j - low) * bits);
}

/* The words of 4 vectors of rows of W: W from each. */
ATTN_OUTLINE_ void ATTN_FN_(words_turn)(float *words, const char *w, int64_t step) {
  for (int v = 0; v < 4; v++) {
    ATTN_VF_ square[ATTN_W_];
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_W_; i++, w += step) {
      square[i] = ATTN_V_LOAD_((const float *)(const void *)w);
      ATTN_PREFETCH_FAR_(w + ATTN_STORED_AHEAD_);
    }
    ATTN_V_TRANSPOSE_(square);
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_W_; i++) ATTN_V_STORE_(words + (4 * i + v) * ATTN_W_, square[i]);
  }
}

/* A row of X by 4 vectors of columns, from c on. */
ATTN_INLINE_ void ATTN_FN_(words_kind)(const int kind, const int zeroed,
                                       const attn_stored_product_ *p, int64_t c) {
  const int per = ATTN_IS_I4_(kind) ? 8 : ATTN_IS_SMALL_(kind) ? 4 : 2;
  const int codes = ATTN_IS_SMALL_(kind);
  const char *w = p->w + c * p->step;
  float room[4 * ATTN_W_ * ATTN_W_ + 16], *words = ATTN_FN_(aligned)(room), *y = p->y + c;
  const float *x = p->x, *scale = codes ? p->scale + c : NULL, *zero = zeroed ? p->zero + c : NULL;
  ATTN_VF_ s[4];
  int64_t left = p->run;
  int start = p->start;
  ATTN_UNROLL_
  for (int v = 0; v < 4; v++)
    s[v] = codes || start ? ATTN_V_ZERO_() : ATTN_V_LOAD_(y + v * ATTN_W_);
  for (int64_t k = 0; k < p->n; k += ATTN_W_ * per, w += 4 * ATTN_W_) {
    ATTN_FN_(words_turn)(words, w, p->step);
    for (int i = 0; i < ATTN_W_; i++, x += per) {
      ATTN_VP_ u[4], down[4];
      ATTN_UNROLL_
      for (int v = 0; v < 4; v++) {
        u[v] = ATTN_PAIR_LOAD_((const uint32_t *)(const void *)words + (4 * i + v) * ATTN_W_);
        down[v] = codes ? ATTN_PAIR_DOWN_(u[v], ATTN_IS_I4_(kind) ? 20 : 16) : u[v];
      }
      ATTN_UNROLL_
      for (int j = 0; j < per; j++) {
        const ATTN_VF_ t = ATTN_V_SET1_(x[j]);
        ATTN_UNROLL_
        for (int v = 0; v < 4; v++) {
          ATTN_VF_ d = ATTN_FN_(word_part)(u[v], down[v], j, kind);
          if (zeroed) d = ATTN_V_SUB_(d, ATTN_V_LOAD_(zero + v * ATTN_W_));
          s[v] = ATTN_V_FMA_(t, d, s[v]);
        }
      }
      if (!codes || (left -= per)) continue;
      ATTN_UNROLL_
      for (int v = 0; v < 4; v++) {
        float *to = y + v * ATTN_W_;
        s[v] = ATTN_V_FMA_(ATTN_V_LOAD_(scale + v * ATTN_W_), s[v],
                           start ? ATTN_V_ZERO_() : ATTN_V_LOAD_(to));
        ATTN_V_STORE_(to, ATTN_FN_(quiet)(s[v]));
        s[v] = ATTN_V_ZERO_();
      }
      left = p->run, start = 0, scale += p->scale_stride;
      if (zeroed) zero += p->scale_stride;
    }
  }
  ATTN_UNROLL_
  for (int v = 0; v < 4; v++)
    if (!codes) ATTN_V_STORE_(y + v * ATTN_W_, ATTN_FN_(quiet)(s[v]));
}

ATTN_FUNC_ void ATTN_FN_(stored_words)(const attn_stored_product_ *p) {
  for (int64_t c = 0; c < p->cols; c += 4 * ATTN_W_) {
#if ATTN_HAS_QUANTIZE
    if (p->kind == ATTN_I8 && p->zero)
      ATTN_FN_(words_kind)(ATTN_I8, 1, p, c);
    else if (p->kind == ATTN_I8)
      ATTN_FN_(words_kind)(ATTN_I8, 0, p, c);
    else if (p->kind == ATTN_I4 && p->zero)
      ATTN_FN_(words_kind)(ATTN_I4, 1, p, c);
    else if (p->kind == ATTN_I4)
      ATTN_FN_(words_kind)(ATTN_I4, 0, p, c);
    else
#endif
      ATTN_FN_(words_kind)(ATTN_BF16, 0, p, c);
  }
}
