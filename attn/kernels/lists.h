/* kernels/lists.h owns work on rows that have key lists of their own: one query against rows picked
 * by index. Elements of a row sit in vector lanes here, so a dot product ends in a sum over lanes:
 * always over 16 running sums, joined by halves, whatever the width of a vector. */

enum { ATTN_FN_(parts) = 16 / ATTN_W_ };

/* 16 running sums joined to a vector; summed over its lanes they end as always halves of what is left. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(row_join)(const ATTN_VF_ *part) {
#if ATTN_W_ == 4
  return ATTN_V_ADD_(ATTN_V_ADD_(part[0], part[2]), ATTN_V_ADD_(part[1], part[3]));
#elif ATTN_W_ == 8
  return ATTN_V_ADD_(part[0], part[1]);
#else
  return part[0];
#endif
}

/* adds the columns from c on, fewer than 16, of four rows */
ATTN_OUTLINE_ void ATTN_FN_(dot_rest)(ATTN_VF_ *sum, const float *q, const char *const *rows,
                                      int64_t c, int64_t dk, int kind) {
  for (int i = 0; c + i * ATTN_W_ < dk; i++) {
    const int64_t at = c + i * ATTN_W_;
    const int w = ATTN_FN_(lanes_left)(dk, at);
    const ATTN_VF_ x = ATTN_FN_(load)(q, at, w, ATTN_F32);
    for (int r = 0; r < 4; r++) {
      ATTN_VF_ *to = sum + r * ATTN_FN_(parts) + i;
      *to = ATTN_V_FMA_(x, ATTN_FN_(load_any)(rows[r], at, w, kind), *to);
    }
  }
}

/* ATTN_W_ running sums of the dot products of q with four rows: elements c, c + 16, .. go to sum
 * c mod 16; sums 8, 4, .. apart are joined down to the vector. */
ATTN_INLINE_ void ATTN_FN_(dot_four)(ATTN_VF_ *sum, const float *q, const char *r0, const char *r1,
                                     const char *r2, const char *r3, int64_t dk, const int kind) {
  ATTN_VF_ a[4][ATTN_FN_(parts)];
  int64_t c = 0;
  ATTN_UNROLL_
  for (int i = 0; i < ATTN_FN_(parts); i++) a[0][i] = a[1][i] = a[2][i] = a[3][i] = ATTN_V_ZERO_();
  for (; c + 16 <= dk; c += 16) {
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_FN_(parts); i++) {
      const int64_t at = c + i * ATTN_W_;
      const ATTN_VF_ x = ATTN_V_LOAD_(q + at);
      a[0][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r0, at, ATTN_W_, kind), a[0][i]);
      a[1][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r1, at, ATTN_W_, kind), a[1][i]);
      a[2][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r2, at, ATTN_W_, kind), a[2][i]);
      a[3][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r3, at, ATTN_W_, kind), a[3][i]);
    }
  }
  if (c < dk) {
    const char *rows[4] = {r0, r1, r2, r3};
    ATTN_VF_ all[4][ATTN_FN_(parts)]; /* not a itself, which stays in registers */
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_FN_(parts); i++)
      all[0][i] = a[0][i], all[1][i] = a[1][i], all[2][i] = a[2][i], all[3][i] = a[3][i];
    ATTN_FN_(dot_rest)(all[0], q, rows, c, dk, kind);
    for (int r = 0; r < 4; r++) sum[r] = ATTN_FN_(row_join)(all[r]);
    return;
  }
  ATTN_UNROLL_
  for (int r = 0; r < 4; r++) sum[r] = ATTN_FN_(row_join)(a[r]);
}

ATTN_INLINE_ void ATTN_FN_(dots_kind)(float *out, const float *q, const void *k, int64_t stride,
                                      const int32_t *index, int64_t n, int64_t dk, const int kind,
                                      int ahead) {
  const char *rows = (const char *)k;
  const int64_t size = kind == ATTN_F32 ? 4 : 2, step = stride * size;
  for (int64_t e = 0; e < n; e += ATTN_W_) {
    ATTN_VF_ a[ATTN_W_]; /* in memory: unrolled, the loop would be a page of code */
    int32_t last[ATTN_W_];
    const int32_t *from = index + e;
    const int w = ATTN_FN_(lanes_left)(n, e);
    if (w < ATTN_W_) { /* fewer rows than lanes: the last one again and again */
      for (int i = 0; i < ATTN_W_; i++) last[i] = from[i < w ? i : w - 1];
      from = last;
    }
    for (int i = 0; i < ATTN_W_; i += 4) {
      const int32_t *x = from + i;
      if (ahead && e + i + ahead + 4 <= n)
        for (int r = 0; r < 4; r++)
          ATTN_FN_(ahead)(rows + index[e + i + r + ahead] * step, dk * size);
      ATTN_FN_(dot_four)(a + i, q, rows + x[0] * step, rows + x[1] * step, rows + x[2] * step,
                         rows + x[3] * step, dk, kind);
    }
    ATTN_FN_(store)(out, e, ATTN_V_SUMS_(a), w, ATTN_F32);
  }
}

ATTN_FUNC_ void ATTN_FN_(dots)(float *out, const float *q, const void *k, int64_t stride,
                               const int32_t *index, int64_t n, int64_t dk, attn_dtype dtype,
                               int ahead) {
#if ATTN_SPECIALISE_
  switch (dtype) {
    case ATTN_F32: ATTN_FN_(dots_kind)(out, q, k, stride, index, n, dk, ATTN_F32, ahead); return;
    case ATTN_F16: ATTN_FN_(dots_kind)(out, q, k, stride, index, n, dk, ATTN_F16, ahead); return;
    default: break;
  }
  dtype = ATTN_BF16;
#endif
  ATTN_FN_(dots_kind)(out, q, k, stride, index, n, dk, (int)dtype, ahead);
}

/* columns c .. c + 8 vectors of the sum */
#define ATTN_EACH8_(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7)
#define ATTN_SUM_OPEN_(i) ATTN_VF_ a##i = ATTN_V_ZERO_();
#define ATTN_SUM_ADD_(i) \
  a##i = ATTN_V_FMA_(w, ATTN_FN_(load)(row, c + i * ATTN_W_, ATTN_W_, kind), a##i);
#define ATTN_SUM_CLOSE_(i) \
  ATTN_V_STORE_(o + i * ATTN_W_, ATTN_V_FMA_(ATTN_V_LOAD_(o + i * ATTN_W_), scale, a##i));
ATTN_INLINE_ void ATTN_FN_(axpys_kind)(float *o, const float *p, const void *v, int64_t stride,
                                       const int32_t *index, int64_t n, int64_t dv, const int kind,
                                       float alpha, int ahead) {
  const char *rows = (const char *)v;
  const int64_t size = kind == ATTN_F32 ? 4 : 2, step = stride * size;
  const ATTN_VF_ scale = ATTN_V_SET1_(alpha);
  int64_t c = 0;
  for (; c + 8 * ATTN_W_ <= dv; c += 8 * ATTN_W_, o += 8 * ATTN_W_) {
    ATTN_EACH8_(ATTN_SUM_OPEN_)
    for (int64_t e = 0; e < n; e++) {
      const char *row = rows + index[e] * step;
      const ATTN_VF_ w = ATTN_V_SET1_(p[e]);
      if (ahead && e + ahead < n)
        ATTN_FN_(ahead)(rows + index[e + ahead] * step + c * size, 8 * ATTN_W_ * size);
      ATTN_EACH8_(ATTN_SUM_ADD_)
    }
    ATTN_EACH8_(ATTN_SUM_CLOSE_)
  }
  for (; c + 4 * ATTN_W_ <= dv; c += 4 * ATTN_W_, o += 4 * ATTN_W_) {
    ATTN_SUM_OPEN_(0)
    ATTN_SUM_OPEN_(1) ATTN_SUM_OPEN_(2) ATTN_SUM_OPEN_(3) for (int64_t e = 0; e < n; e++) {
      const char *row = rows + index[e] * step;
      const ATTN_VF_ w = ATTN_V_SET1_(p[e]);
      if (ahead && e + ahead < n)
        ATTN_FN_(ahead)(rows + index[e + ahead] * step + c * size, 4 * ATTN_W_ * size);
      ATTN_SUM_ADD_(0) ATTN_SUM_ADD_(1) ATTN_SUM_ADD_(2) ATTN_SUM_ADD_(3)
    }
    ATTN_SUM_CLOSE_(0) ATTN_SUM_CLOSE_(1) ATTN_SUM_CLOSE_(2) ATTN_SUM_CLOSE_(3)
  }
  for (; c < dv; c += ATTN_W_, o += ATTN_W_) {
    const int left = ATTN_FN_(lanes_left)(dv, c);
    ATTN_VF_ a = ATTN_V_ZERO_();
    for (int64_t e = 0; e < n; e++)
      a = ATTN_V_FMA_(ATTN_V_SET1_(p[e]), ATTN_FN_(load)(rows + index[e] * step, c, left, kind), a);
    a = ATTN_V_FMA_(ATTN_FN_(load)(o, 0, left, ATTN_F32), scale, a);
    ATTN_FN_(store)(o, 0, a, left, ATTN_F32);
  }
}
#undef ATTN_EACH8_
#undef ATTN_SUM_OPEN_
#undef ATTN_SUM_ADD_
#undef ATTN_SUM_CLOSE_

ATTN_FUNC_ void ATTN_FN_(axpys)(float *o, const float *p, const void *v, int64_t stride,
                                const int32_t *index, int64_t n, int64_t dv, attn_dtype dtype,
                                float alpha, int ahead) {
#if ATTN_SPECIALISE_
  switch (dtype) {
    case ATTN_F32:
      ATTN_FN_(axpys_kind)(o, p, v, stride, index, n, dv, ATTN_F32, alpha, ahead);
      return;
    case ATTN_F16:
      ATTN_FN_(axpys_kind)(o, p, v, stride, index, n, dv, ATTN_F16, alpha, ahead);
      return;
    default: break;
  }
  dtype = ATTN_BF16;
#endif
  ATTN_FN_(axpys_kind)(o, p, v, stride, index, n, dv, (int)dtype, alpha, ahead);
}
