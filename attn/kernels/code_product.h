/* kernels/code_product.h owns products of codes with a matrix of codes, beside kernels/codes.h: sums of codes, tiles of
 * the matrix, and a row of codes times a matrix that is read once, where it lies. All sums of a run are
 * whole numbers below 2^24, so that every way to make them has the same bits; a run joins Y as code_dots has it. */

/* The sum of n codes of each row. */
ATTN_FUNC_ void ATTN_FN_(code_sums)(float *sums, const void *codes, int64_t width, int64_t rows,
                                    int64_t n) {
  const char *row = (const char *)codes;
  for (int64_t r = 0; r < rows; r++, row += width) {
#ifdef ATTN_TIER_
    int sum = 0;
    for (int64_t i = 0; i < n; i++)
      sum += ATTN_CODE_RAISED_ > 0.0f ? (int)(unsigned char)row[i] - 128 : (int)(signed char)row[i];
    sums[r] = (float)sum;
#else
    const float *x = (const float *)(const void *)row;
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    sums[r] = sum;
#endif
  }
}

ATTN_FUNC_ void ATTN_FN_(code_panel)(void *to, const float *x, int64_t n, int32_t *raised) {
#ifdef ATTN_TIER_
  for (int lane = 0; lane < ATTN_TILE_; lane += ATTN_W_) {
    ATTN_VF_ total = ATTN_V_ZERO_();
    uint32_t *at = (uint32_t *)to + lane;
    for (int64_t c = 0; c < n; c += 4, at += ATTN_TILE_) {
      ATTN_VF_ y[4];
      for (int i = 0; i < 4; i++) {
        y[i] = c + i < n ? ATTN_V_LOAD_(x + (c + i) * ATTN_TILE_ + lane) : ATTN_V_ZERO_();
        total = ATTN_V_ADD_(total, y[i]);
      }
      ATTN_CODE_PUT_FOUR_(at, y);
    }
    ATTN_CODE_PUT_INT_(raised + lane, ATTN_V_MUL_(total, ATTN_V_SET1_(-ATTN_CODE_RAISED_)));
  }
#else
  (void)raised;
  memcpy(to, x, (size_t)n * ATTN_TILE_ * sizeof *x);
#endif
}

#ifdef ATTN_CODE_QUADS_
/* ---- a row where the matrix lies ---------------------------------------------------------- */

/* What codes of 8 bits are raised by, of rows of x as well before they become lines. */
enum { ATTN_FN_(code_flip) = (int)ATTN_CODE_RAISED_ };

/* Codes raised to what QUAD takes: two's complement of 8 bits, and of 4 the low ones of each byte. */
#define ATTN_CODE_UP_(v) ((v) ^ ATTN_CODE_ALL_((uint32_t)ATTN_FN_(code_flip) * 0x01010101u))
#define ATTN_CODE_UP_LOW_(v) (((v)&ATTN_CODE_ALL_(0x0f0f0f0fu)) ^ ATTN_CODE_ALL_(0x08080808u))

/* What a run of W columns adds to y; sum: of products less what codes are raised by. */
ATTN_INLINE_ void ATTN_FN_(code_join)(float *y, const attn_code_line_ *p, int64_t g, int64_t c,
                                      ATTN_VF_ sum) {
  const ATTN_VF_ by = ATTN_V_LOAD_(p->scale + g * p->scale_step + c);
  const float x = p->x_scale[g * p->x_step];
  ATTN_VF_ more = ATTN_V_ZERO_();
  if (p->zero) more = ATTN_V_MUL_(ATTN_V_LOAD_(p->zero + g * p->scale_step + c), by);
  more = ATTN_V_MUL_(ATTN_V_SET1_(-x * p->sums[g * p->x_step]), more);
  sum = ATTN_V_FMA_(ATTN_V_MUL_(sum, by), ATTN_V_SET1_(x), more);
  sum = ATTN_V_ADD_(sum, p->start && g == 0 ? ATTN_V_ZERO_() : ATTN_V_LOAD_(y + c));
  ATTN_V_STORE_(y + c, ATTN_TIER_FN_(quiet)(sum));
}

/* Adds four rows of W in turn, twice, to the sums, which lie as QUADS leaves columns; of 4 bits even ones, odd ones. */
ATTN_INLINE_ void ATTN_FN_(code_columns_add)(const int kind, int32_t *sums,
                                             const attn_code_line_ *p, int64_t k) {
  enum { BYTES = 4 * ATTN_W_ };
  const int parts = ATTN_IS_I4_(kind) ? 2 : 1;
  const char *w = p->w + k * p->step;
  const ATTN_VC_ x0 = ATTN_CODE_ALL_(attn_pair_at_(p->x + k)),
                 x1 = ATTN_CODE_ALL_(attn_pair_at_(p->x + k + 4));
  for (int64_t at = 0; at < p->cols / parts; at += BYTES, sums += parts * BYTES) {
    ATTN_VC_ a[4], b[4];
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) {
      const char *one = w + i * p->step + at, *other = one + 4 * p->step;
      a[i] = ATTN_CODE_LOAD_(one);
      b[i] = ATTN_CODE_LOAD_(other);
      if (at % 64 == 0) {
        ATTN_PREFETCH_(one + 8 * p->step);
        ATTN_PREFETCH_(other + 8 * p->step);
      }
    }
    ATTN_CODE_QUADS_(a);
    ATTN_CODE_QUADS_(b);
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) {
      int32_t *to = sums + i * parts * ATTN_W_;
      ATTN_VC_ s = ATTN_CODE_LOAD_(to);
      if (parts == 1) {
        s = ATTN_CODE_QUAD_(ATTN_CODE_UP_(a[i]), x0, s);
        s = ATTN_CODE_QUAD_(ATTN_CODE_UP_(b[i]), x1, s);
      } else {
        ATTN_VC_ odd = ATTN_CODE_LOAD_(to + ATTN_W_);
        s = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(a[i]), x0, s);
        s = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(b[i]), x1, s);
        odd = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(a[i] >> 4), x0, odd);
        odd = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(b[i] >> 4), x1, odd);
        ATTN_CODE_STORE_(to + ATTN_W_, odd);
      }
      ATTN_CODE_STORE_(to, s);
    }
  }
}

ATTN_INLINE_ void ATTN_FN_(code_columns_kind)(const int kind, const attn_code_line_ *p) {
  enum { BYTES = 4 * ATTN_W_ };
  const int parts = ATTN_IS_I4_(kind) ? 2 : 1;
  int32_t room[ATTN_STORED_COLS_ + 16];
  int32_t *sums = (int32_t *)(void *)ATTN_TIER_FN_(aligned)((float *)(void *)room);
  for (int64_t k = 0, g = 0; k < p->n; k += p->run, g++) {
    const int less = -(parts == 2 ? 8 : (int)ATTN_FN_(code_flip))*(int)p->sums[g * p->x_step];
    for (int64_t c = 0; c < p->cols; c += ATTN_W_) ATTN_CODE_STORE_(sums + c, ATTN_CODE_ALL_(less));
    for (int64_t i = 0; i < p->run; i += 8) ATTN_FN_(code_columns_add)(kind, sums, p, k + i);
    for (int64_t c = 0; c < p->cols; c += parts * BYTES) { /* in the order of columns again */
      int32_t some[2 * BYTES];
      for (int j = 0; j < parts; j++)
        for (int i = 0; i < ATTN_W_; i++) /* four columns */
          memcpy(some + j * BYTES + 4 * i, sums + c + (i % 4 * parts + j) * ATTN_W_ + i / 4 * 4,
                 4 * sizeof *some);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        const ATTN_VF_ even = ATTN_CODE_SUM_(ATTN_CODE_LOAD_(some + i * ATTN_W_));
        if (parts == 1) {
          ATTN_FN_(code_join)(p->y, p, g, c + i * ATTN_W_, even);
        } else {
          ATTN_VF_ both[2];
          ATTN_V_ZIP_(both, even, ATTN_CODE_SUM_(ATTN_CODE_LOAD_(some + BYTES + i * ATTN_W_)));
          ATTN_FN_(code_join)(p->y, p, g, c + 2 * i * ATTN_W_, both[0]);
          ATTN_FN_(code_join)(p->y, p, g, c + (2 * i + 1) * ATTN_W_, both[1]);
        }
      }
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(code_columns)(const attn_code_line_ *p) {
  if (p->kind == ATTN_I4)
    ATTN_FN_(code_columns_kind)(ATTN_I4, p);
  else
    ATTN_FN_(code_columns_kind)(ATTN_I8, p);
}

/* Rows of W as words of 32 bits, turned. */
ATTN_INLINE_ void ATTN_FN_(code_words_kind)(const int kind, const attn_code_line_ *p, int64_t c) {
  const int per = ATTN_IS_I4_(kind) ? 8 : 4;
  const char *w = p->w + c * p->step;
  float room[4 * ATTN_W_ * ATTN_W_ + 16], *words = ATTN_TIER_FN_(aligned)(room);
  const signed char *x = p->x;
  ATTN_VC_ s[4];
  int64_t left = 0, g = 0;
  for (int64_t k = 0; k < p->n; k += ATTN_W_ * per, w += 4 * ATTN_W_) {
    ATTN_TIER_FN_(words_turn)(words, w, p->step);
    for (int i = 0; i < ATTN_W_; i++, x += per) {
      const ATTN_VC_ x0 = ATTN_CODE_ALL_(attn_pair_at_(x));
      if (left == 0) {
        const int less = -(per == 8 ? 8 : (int)ATTN_FN_(code_flip))*(int)p->sums[g * p->x_step];
        ATTN_UNROLL_
        for (int v = 0; v < 4; v++) s[v] = ATTN_CODE_ALL_(less);
        left = p->run;
      }
      ATTN_UNROLL_
      for (int v = 0; v < 4; v++) {
        const ATTN_VC_ u = ATTN_CODE_LOAD_(words + (4 * i + v) * ATTN_W_);
        if (per == 4) {
          s[v] = ATTN_CODE_QUAD_(ATTN_CODE_UP_(u), x0, s[v]);
        } else {
          s[v] = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(u), x0, s[v]);
          s[v] = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(u >> 4), ATTN_CODE_ALL_(attn_pair_at_(x + 4)),
                                 s[v]);
        }
      }
      if (left -= per) continue;
      ATTN_UNROLL_
      for (int v = 0; v < 4; v++)
        ATTN_FN_(code_join)(p->y, p, g, c + v * ATTN_W_, ATTN_CODE_SUM_(s[v]));
      g++;
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(code_words)(const attn_code_line_ *p) {
  for (int64_t c = 0; c < p->cols; c += 4 * ATTN_W_)
    if (p->kind == ATTN_I4)
      ATTN_FN_(code_words_kind)(ATTN_I4, p, c);
    else
      ATTN_FN_(code_words_kind)(ATTN_I8, p, c);
}
/* A row of W after the other: sums of W runs become the lanes of one vector. */
ATTN_INLINE_ void ATTN_FN_(code_along_kind)(const int kind, const attn_code_line_ *p) {
  enum { BYTES = 4 * ATTN_W_ };
  const int parts = ATTN_IS_I4_(kind) ? 2 : 1;
  const int64_t vecs = p->run / parts / BYTES, runs = p->n / p->run; /* vectors of a run */
  const char *w = p->w;
  float codes[ATTN_CODE_RUNS_ * 32 + 16], *x = ATTN_TIER_FN_(aligned)(codes);
  float scale[ATTN_CODE_RUNS_] = {0}, some[ATTN_CODE_RUNS_] = {0}, less[ATTN_CODE_RUNS_] = {0};
  for (int64_t g = 0; g < runs; g++) {
    const float sum = p->sums[g * p->x_step];
    scale[g] = p->x_scale[g * p->x_step], some[g] = -scale[g] * sum;
    less[g] = (parts == 2 ? -8.0f : -ATTN_CODE_RAISED_) * sum;
  }
  for (int64_t i = 0; i < p->n / 4; i += parts * ATTN_W_) {
    const float *from = (const float *)(const void *)p->x + i;
    if (parts == 1) {
      memcpy(x + i, from, BYTES);
    } else { /* words of even codes, and of odd */
      ATTN_VF_ both[2];
      ATTN_V_UNZIP_(both, ATTN_V_LOAD_(from), ATTN_V_LOAD_(from + ATTN_W_));
      ATTN_V_STORE_(x + i, both[0]);
      ATTN_V_STORE_(x + i + ATTN_W_, both[1]);
    }
  }
  for (int64_t c = 0; c < p->cols; c++, w += p->step) {
    float y = p->start ? 0.0f : p->y[c];
    const char *at = w;
    const float *with = x;
    for (int64_t g = 0; g < runs; g += ATTN_W_) {
      const int n = ATTN_TIER_FN_(lanes_left)(runs, g);
      ATTN_VF_ square[ATTN_W_], by = ATTN_V_ZERO_(), more = by;
      float terms[ATTN_W_];
      for (int i = 0; i < n; i++) {
        ATTN_VC_ s = ATTN_CODE_ALL_(0), odd = s;
        for (int64_t v = 0; v < vecs; v++, at += BYTES, with += parts * ATTN_W_) {
          const ATTN_VC_ u = ATTN_CODE_LOAD_(at);
          ATTN_PREFETCH_(at + 1024);
          if (parts == 1) {
            s = ATTN_CODE_QUAD_(ATTN_CODE_UP_(u), ATTN_CODE_LOAD_(with), s);
          } else {
            s = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(u), ATTN_CODE_LOAD_(with), s);
            odd = ATTN_CODE_QUAD_(ATTN_CODE_UP_LOW_(u >> 4), ATTN_CODE_LOAD_(with + ATTN_W_), odd);
          }
        }
        square[i] = ATTN_CODE_SUM_(parts == 2 ? s + odd : s);
      }
      for (int i = n; i < ATTN_W_; i++) square[i] = ATTN_V_ZERO_();
      const float *scales = p->scale + c * p->scale_step;
      const float *zeros = p->zero ? p->zero + c * p->scale_step : NULL;
      by = p->each ? ATTN_TIER_FN_(load)(scales, g, n, ATTN_F32) : ATTN_V_SET1_(*scales);
      if (zeros) {
        more = p->each ? ATTN_TIER_FN_(load)(zeros, g, n, ATTN_F32) : ATTN_V_SET1_(*zeros);
        more = ATTN_V_MUL_(more, by);
      }
      more = ATTN_V_MUL_(ATTN_V_LOAD_(some + g), more);
      by = ATTN_V_MUL_(ATTN_V_ADD_(ATTN_V_SUMS_(square), ATTN_V_LOAD_(less + g)), by);
      ATTN_V_STORE_(terms, ATTN_V_FMA_(by, ATTN_V_LOAD_(scale + g), more));
      for (int i = 0; i < n; i++) y = terms[i] + y;
    }
    p->y[c] = y;
  }
  for (int64_t c = 0; c < p->cols; c += ATTN_W_)
    ATTN_V_STORE_(p->y + c, ATTN_TIER_FN_(quiet)(ATTN_V_LOAD_(p->y + c)));
}

ATTN_FUNC_ void ATTN_FN_(code_along)(const attn_code_line_ *p) {
  if (p->kind == ATTN_I4)
    ATTN_FN_(code_along_kind)(ATTN_I4, p);
  else
    ATTN_FN_(code_along_kind)(ATTN_I8, p);
}

#undef ATTN_CODE_UP_
#undef ATTN_CODE_UP_LOW_
#endif
#undef ATTN_TIER_FN_
