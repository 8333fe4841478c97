/* kernels/decode.h owns the few-query kernels: up to 8 query rows against rows of K and V as they
 * lie in memory. Elements of a row sit in vector lanes here, so that a row is read once, in order,
 * and converted once for all queries. A dot product ends in a sum over lanes: always over 16 running
 * sums, joined by halves, whatever the width of a vector.
 *
 * Query and output rows are padded to whole vectors. For 4-bit rows they are kept with the 16 even
 * elements of each 32 before the odd ones, as the halves of 16 bytes give them. */

enum { ATTN_FN_(row_parts) = 16 / ATTN_W_ };

/* Where column c (in the order above, at the start of a vector) is. */
ATTN_INLINE_ int64_t ATTN_FN_(row_bytes)(int64_t c, const int kind) {
  return kind == ATTN_I4    ? (c >> 5) * 16 + (c & 15)
         : kind >= ATTN_I8  ? c
         : kind == ATTN_F32 ? 4 * c
                            : 2 * c;
}

/* A vector of a row, all of whose elements exist; c is a constant, or 4-bit rows would test it. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(row_kind)(const char *row, const int c, const int kind) {
  if (kind != ATTN_I4) return ATTN_FN_(load)(row, c, ATTN_W_, kind);
  row += ATTN_FN_(row_bytes)(c, kind);
  return c & 16 ? ATTN_V_LOAD_I4_ODD_(row) : ATTN_V_LOAD_I4_EVEN_(row);
}
#if ATTN_SPECIALISE_
#define ATTN_ROW_LOAD_(row, c, kind) ATTN_FN_(row_kind)(row, c, kind)
#else /* one copy for all types */
ATTN_FUNC_ ATTN_VF_ ATTN_FN_(row_load)(const char *row, int c, int kind) {
  return ATTN_FN_(row_kind)(row, c, kind);
}
#define ATTN_ROW_LOAD_(row, c, kind) ATTN_FN_(row_load)(row, c, kind)
#endif

/* The columns of a row from c on, fewer than 32, in the order above and as f32; zero (or a neighbour,
 * in a byte of two) in place of those that do not exist. */
ATTN_FUNC_ void ATTN_FN_(row_rest)(float *x, const char *row, int64_t c, int64_t dim, int kind) {
  char t[16] = {0};
  const int64_t from = ATTN_FN_(row_bytes)(c, kind), end = (dim + 1) / 2;
  if (kind == ATTN_I4) memcpy(t, row + from, (size_t)(end - from));
  for (int i = 0; i < 32; i += ATTN_W_) {
    ATTN_VF_ v = ATTN_V_ZERO_();
    if (kind == ATTN_I4)
      v = i & 16 ? ATTN_V_LOAD_I4_ODD_(t + (i & 15)) : ATTN_V_LOAD_I4_EVEN_(t + (i & 15));
    else if (c + i < dim)
      v = ATTN_FN_(load)(row, c + i, ATTN_FN_(lanes_left)(dim, c + i), kind);
    ATTN_V_STORE_(x + i, v);
  }
}

/* Columns up to which row_load serves, and up to which there are any. */
ATTN_INLINE_ int64_t ATTN_FN_(row_whole)(int64_t dim, const int kind) {
  return kind == ATTN_I4 ? dim / 32 * 32 : dim / 16 * 16;
}
ATTN_INLINE_ int64_t ATTN_FN_(row_end)(int64_t dim, const int kind) {
  return kind == ATTN_I4 ? (dim + 31) / 32 * 32 : (dim + 15) / 16 * 16;
}

/* The row that is read x->ahead rows after row j, here or in what comes next, and the step from it;
 * row j itself when there is none. */
ATTN_INLINE_ const char *ATTN_FN_(rows_ahead)(const attn_kv_rows_ *x, int64_t j, int64_t *step) {
  const int64_t at = j + x->ahead;
  *step = x->step;
  if (at < x->n) return x->row + at * x->step;
  if (at - x->n >= x->next_n) return x->row + j * x->step;
  *step = x->next_step;
  return x->next + (at - x->n) * x->next_step;
}

/* Asks for columns c.. of a row, a run of `bytes` (a constant) that begins `at` bytes from its start.
 * Requests are spread over the work on a row: many at once would be lost. */
#define ATTN_ASK_(row, at, bytes)                          \
  if ((bytes) >= 64) {                                     \
    ATTN_PREFETCH_((row) + (at));                          \
    if ((bytes) > 64) ATTN_PREFETCH_((row) + (at) + 64);   \
    if ((bytes) > 128) ATTN_PREFETCH_((row) + (at) + 128); \
    if ((bytes) > 192) ATTN_PREFETCH_((row) + (at) + 192); \
    if ((bytes) > 256) ATTN_PREFETCH_((row) + (at) + 256); \
    if ((bytes) > 320) ATTN_PREFETCH_((row) + (at) + 320); \
    if ((bytes) > 384) ATTN_PREFETCH_((row) + (at) + 384); \
    if ((bytes) > 448) ATTN_PREFETCH_((row) + (at) + 448); \
  } else if (((at)&63) < (bytes)) {                        \
    ATTN_PREFETCH_((row) + (at));                          \
  }

/* x[r][j] *= scale of row j */
ATTN_INLINE_ void ATTN_FN_(rows_scale)(float *x, int rows, const attn_kv_rows_ *k) {
  const float *scale = k->scale;
  if (!scale) return;
  for (int r = 0; r < rows; r++, x += ATTN_ROWS_ROOM_) {
    int64_t j = 0;
    for (; k->scale_step == 1 && j + ATTN_W_ <= k->n; j += ATTN_W_)
      ATTN_V_STORE_(x + j, ATTN_V_MUL_(ATTN_V_LOAD_(x + j), ATTN_V_LOAD_(scale + j)));
    for (; j < k->n; j++) x[j] = x[j] * scale[j * k->scale_step];
  }
}

/* --- scores ---------------------------------------------------------------------------------- */

/* mk keys by rr query rows in registers, each as the parts of 16 running sums: named sums, as in
 * kernels/score.h. Slot s is part s mod parts of key s / parts. */
#if ATTN_W_ == 16
#define ATTN_EACH_SLOT_(f) f(0) f(1) f(2) f(3)
#define ATTN_ROW_KEYS_(rr) 4
#elif ATTN_W_ == 8
#define ATTN_EACH_SLOT_(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define ATTN_ROW_KEYS_(rr) (4 / (rr))
#else
#define ATTN_EACH_SLOT_(f) \
  f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
#define ATTN_ROW_KEYS_(rr) (4 / (rr))
#endif
#define ATTN_ROW_INIT_(s) \
  ATTN_VF_ a##s##_0 = ATTN_V_ZERO_(), a##s##_1 = a##s##_0, a##s##_2 = a##s##_0, a##s##_3 = a##s##_0;
#define ATTN_ROW_ADD_(s, base, load)                                                 \
  if (mk * PARTS > s) {                                                              \
    const ATTN_VF_ x = load;                                                         \
    const float *at_q = q + c + (base) + s % PARTS * ATTN_W_;                        \
    a##s##_0 = ATTN_V_FMA_(ATTN_V_LOAD_(at_q), x, a##s##_0);                         \
    if (rr > 1) a##s##_1 = ATTN_V_FMA_(ATTN_V_LOAD_(at_q + width), x, a##s##_1);     \
    if (rr > 2) a##s##_2 = ATTN_V_FMA_(ATTN_V_LOAD_(at_q + 2 * width), x, a##s##_2); \
    if (rr > 3) a##s##_3 = ATTN_V_FMA_(ATTN_V_LOAD_(at_q + 3 * width), x, a##s##_3); \
  }
#define ATTN_ROW_KEY_(s) (s / PARTS == 0 ? k0 : s / PARTS == 1 ? k1 : s / PARTS == 2 ? k2 : k3)
#define ATTN_ROW_STEP0_(s) \
  ATTN_ROW_ADD_(s, 0, ATTN_ROW_LOAD_(ATTN_ROW_KEY_(s) + at, s % PARTS * ATTN_W_, kind))
#define ATTN_ROW_STEP16_(s) \
  ATTN_ROW_ADD_(s, 16, ATTN_ROW_LOAD_(ATTN_ROW_KEY_(s) + at, 16 + s % PARTS * ATTN_W_, kind))
#define ATTN_ROW_REST_(s) \
  ATTN_ROW_ADD_(s, at, ATTN_V_LOAD_(rest[s / PARTS] + at + s % PARTS * ATTN_W_))

/* sum[16 r + key] = running sums of query r and a key, of columns c, c + 16, .. in lane c */
ATTN_INLINE_ void ATTN_FN_(rows_dots)(const int rr, ATTN_VF_ *sum, const float *q, int64_t width,
                                      const char *k0, const char *k1, const char *k2,
                                      const char *k3, const char *ahead, int64_t step, int64_t dim,
                                      const int kind) {
  enum { PARTS = ATTN_FN_(row_parts) };
  const int mk = ATTN_ROW_KEYS_(rr);
  const int64_t whole = ATTN_FN_(row_whole)(dim, kind), end = ATTN_FN_(row_end)(dim, kind);
  int64_t c = 0, at = 0;
  ATTN_EACH_SLOT_(ATTN_ROW_INIT_)
  for (; c + 16 < whole; c += 32, at += ATTN_FN_(row_bytes)(32, kind)) {
    const int bytes = (int)ATTN_FN_(row_bytes)(32, kind);
    ATTN_EACH_SLOT_(ATTN_ROW_STEP0_)
    ATTN_ASK_(ahead, at, bytes)
    if (mk > 1) {
      ATTN_ASK_(ahead + step, at, bytes)
    }
    ATTN_EACH_SLOT_(ATTN_ROW_STEP16_)
    if (mk > 2) {
      ATTN_ASK_(ahead + 2 * step, at, bytes)
    }
    if (mk > 3) {
      ATTN_ASK_(ahead + 3 * step, at, bytes)
    }
  }
  if (c < whole) {
    ATTN_EACH_SLOT_(ATTN_ROW_STEP0_)
    c += 16;
  }
  if (c < end) {
    float rest[4][32];
    ATTN_FN_(row_rest)(rest[0], k0, c, dim, kind);
    if (mk > 1) {
      ATTN_FN_(row_rest)(rest[1], k1, c, dim, kind);
      ATTN_FN_(row_rest)(rest[2], k2, c, dim, kind);
      ATTN_FN_(row_rest)(rest[3], k3, c, dim, kind);
    }
    for (at = 0; c + at < end; at += 16) {
      ATTN_EACH_SLOT_(ATTN_ROW_REST_)
    }
  }
#if ATTN_W_ == 16
#define ATTN_ROW_SUMS_(r)                                                   \
  sum[16 * r] = a0_##r, sum[16 * r + 1] = a1_##r, sum[16 * r + 2] = a2_##r, \
           sum[16 * r + 3] = a3_##r;
#elif ATTN_W_ == 8
#define ATTN_ROW_SUMS_(r)                                    \
  sum[16 * r] = ATTN_V_ADD_(a0_##r, a1_##r);                 \
  if (mk > 1) sum[16 * r + 1] = ATTN_V_ADD_(a2_##r, a3_##r); \
  if (mk > 2) sum[16 * r + 2] = ATTN_V_ADD_(a4_##r, a5_##r); \
  if (mk > 3) sum[16 * r + 3] = ATTN_V_ADD_(a6_##r, a7_##r);
#else
#define ATTN_ROW_JOIN_(a, b, c, d) ATTN_V_ADD_(ATTN_V_ADD_(a, c), ATTN_V_ADD_(b, d))
#define ATTN_ROW_SUMS_(r)                                                         \
  sum[16 * r] = ATTN_ROW_JOIN_(a0_##r, a1_##r, a2_##r, a3_##r);                   \
  if (mk > 1) sum[16 * r + 1] = ATTN_ROW_JOIN_(a4_##r, a5_##r, a6_##r, a7_##r);   \
  if (mk > 2) sum[16 * r + 2] = ATTN_ROW_JOIN_(a8_##r, a9_##r, a10_##r, a11_##r); \
  if (mk > 3) sum[16 * r + 3] = ATTN_ROW_JOIN_(a12_##r, a13_##r, a14_##r, a15_##r);
#endif
  ATTN_ROW_SUMS_(0)
  if (rr > 1) {
    ATTN_ROW_SUMS_(1)
  }
  if (rr > 2) {
    ATTN_ROW_SUMS_(2)
  }
  if (rr > 3) {
    ATTN_ROW_SUMS_(3)
  }
}
#undef ATTN_EACH_SLOT_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_ADD_
#undef ATTN_ROW_KEY_
#undef ATTN_ROW_STEP0_
#undef ATTN_ROW_STEP16_
#undef ATTN_ROW_REST_
#undef ATTN_ROW_SUMS_
#undef ATTN_ROW_JOIN_

/* All keys for rr query rows: 16 at a time, so that the sums over lanes do not wait for each other. */
ATTN_INLINE_ void ATTN_FN_(score_rows_kind)(const int rr, float *s, const float *q, int64_t width,
                                            const attn_kv_rows_ *k, const int kind) {
  const int mk = ATTN_ROW_KEYS_(rr);
  const int64_t last = k->n - 1;
  ATTN_VF_ sum[64];
  for (int64_t j = 0; j < k->n; j += 16) {
    for (int i = 0; i < 16; i += mk) {
      const int64_t x = j + i;
      const char *k0 = k->row + (x < last ? x : last) * k->step, *k1 = k0, *k2 = k0, *k3 = k0;
      int64_t step;
      const char *ahead = ATTN_FN_(rows_ahead)(k, x, &step);
      if (mk > 1 && x + mk <= last) { /* else the last one again */
        k1 = k0 + k->step, k2 = k1 + k->step, k3 = k2 + k->step;
      } else if (mk > 1) {
        k1 = k->row + (x + 1 < last ? x + 1 : last) * k->step;
        k2 = k->row + (x + 2 < last ? x + 2 : last) * k->step;
        k3 = k->row + (x + 3 < last ? x + 3 : last) * k->step;
      }
      ATTN_FN_(rows_dots)(rr, sum + i, q, width, k0, k1, k2, k3, ahead, step, k->dim, kind);
    }
    for (int i = 0; i < 16 * rr; i += ATTN_W_)
      ATTN_V_STORE_(s + i / 16 * ATTN_ROWS_ROOM_ + j + i % 16, ATTN_V_SUMS_(sum + i));
  }
}
#undef ATTN_ROW_KEYS_

/* --- values ---------------------------------------------------------------------------------- */

/* mc vectors of columns by rr rows in registers */
#define ATTN_EACH_COL_(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define ATTN_ROW_INIT_(i)                                                                     \
  ATTN_VF_ a##i##0 = ATTN_V_ZERO_(), a##i##1 = a##i##0, a##i##2 = a##i##0, a##i##3 = a##i##0; \
  if (mc > i) {                                                                               \
    const float *from = o + i * ATTN_W_;                                                      \
    a##i##0 = ATTN_V_LOAD_(from);                                                             \
    if (rr > 1) a##i##1 = ATTN_V_LOAD_(from + width);                                         \
    if (rr > 2) a##i##2 = ATTN_V_LOAD_(from + 2 * width);                                     \
    if (rr > 3) a##i##3 = ATTN_V_LOAD_(from + 3 * width);                                     \
  }
#define ATTN_ROW_ADD_(i)                                                \
  if (mc > i) {                                                         \
    const ATTN_VF_ x = ATTN_ROW_LOAD_(v, 16 * odd + i * ATTN_W_, kind); \
    a##i##0 = ATTN_V_FMA_(p0, x, a##i##0);                              \
    if (rr > 1) a##i##1 = ATTN_V_FMA_(p1, x, a##i##1);                  \
    if (rr > 2) a##i##2 = ATTN_V_FMA_(p2, x, a##i##2);                  \
    if (rr > 3) a##i##3 = ATTN_V_FMA_(p3, x, a##i##3);                  \
  }
#define ATTN_ROW_STORE_(i)                    \
  if (mc > i) {                               \
    float *to = o + i * ATTN_W_;              \
    ATTN_V_STORE_(to, a##i##0);               \
    if (rr > 1) {                             \
      ATTN_V_STORE_(to + width, a##i##1);     \
    }                                         \
    if (rr > 2) {                             \
      ATTN_V_STORE_(to + 2 * width, a##i##2); \
    }                                         \
    if (rr > 3) {                             \
      ATTN_V_STORE_(to + 3 * width, a##i##3); \
    }                                         \
  }
/* Columns from c on, keys j..end. odd: the second 16 of 32 4-bit elements, c being in the first. */
ATTN_INLINE_ void ATTN_FN_(rows_sums)(const int mc, const int rr, const int odd, float *o,
                                      int64_t width, const float *p, const attn_kv_rows_ *rows,
                                      int64_t j, int64_t end, int64_t c, const int kind) {
  const char *v = rows->row + j * rows->step + ATTN_FN_(row_bytes)(c, kind);
  const int bytes = odd ? 0 : (int)ATTN_FN_(row_bytes)(mc * ATTN_W_, kind);
  const int ask = bytes >= 64 || (ATTN_FN_(row_bytes)(c, kind) & 63) < bytes;
  int64_t step;
  const char *ahead = ATTN_FN_(rows_ahead)(rows, j, &step) + ATTN_FN_(row_bytes)(c, kind);
  o += c + 16 * odd;
  ATTN_EACH_COL_(ATTN_ROW_INIT_)
  for (; j < end; j++, v += rows->step) {
    if (ask) {
      ATTN_ASK_(ahead, 0, bytes)
    }
    ahead += step;
    ATTN_VF_ p0 = ATTN_V_SET1_(p[j]), p1 = p0, p2 = p0, p3 = p0;
    if (rr > 1) p1 = ATTN_V_SET1_(p[ATTN_ROWS_ROOM_ + j]);
    if (rr > 2) p2 = ATTN_V_SET1_(p[2 * ATTN_ROWS_ROOM_ + j]);
    if (rr > 3) p3 = ATTN_V_SET1_(p[3 * ATTN_ROWS_ROOM_ + j]);
    ATTN_EACH_COL_(ATTN_ROW_ADD_)
  }
  ATTN_EACH_COL_(ATTN_ROW_STORE_)
}
#undef ATTN_EACH_COL_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_ADD_
#undef ATTN_ROW_STORE_

/* The columns from c on, which are fewer than 32. */
ATTN_FUNC_ void ATTN_FN_(rows_rest)(float *o, int64_t width, const float *p, int rows,
                                    const attn_kv_rows_ *v, int64_t c, int kind) {
  float rest[32];
  for (int64_t j = 0; j < v->n; j++) {
    ATTN_FN_(row_rest)(rest, v->row + j * v->step, c, v->dim, kind);
    for (int r = 0; r < rows; r++)
      for (int i = 0; c + i < width; i += ATTN_W_) {
        float *to = o + r * width + c + i;
        ATTN_V_STORE_(to, ATTN_V_FMA_(ATTN_V_SET1_(p[r * ATTN_ROWS_ROOM_ + j]),
                                      ATTN_V_LOAD_(rest + i), ATTN_V_LOAD_(to)));
      }
  }
}

/* All whole columns and keys for rr rows: a strip of keys at a time, whose rows stay in the first
 * cache while one run of columns after the other is summed. */
ATTN_INLINE_ void ATTN_FN_(value_rows_kind)(const int rr, float *o, int64_t width, const float *p,
                                            const attn_kv_rows_ *v, const int kind) {
  const int mc = rr > 1 ? ATTN_ROW_COLS_ / 4 : 8;
  const int half = mc * ATTN_W_ < 16 ? mc : 16 / ATTN_W_; /* vectors of 16 columns, or fewer */
  const int64_t whole = ATTN_FN_(row_whole)(v->dim, kind);
  for (int64_t j = 0, last; j < v->n; j = last) {
    int64_t c = 0;
    last = v->n - j < ATTN_ROW_STRIP_ ? v->n : j + ATTN_ROW_STRIP_;
    if (kind != ATTN_I4 || mc * ATTN_W_ % 32 == 0)
      for (; c + mc * ATTN_W_ <= whole; c += mc * ATTN_W_)
        ATTN_FN_(rows_sums)(mc, rr, 0, o, width, p, v, j, last, c, kind);
    for (; kind == ATTN_I4 && c < whole; c += 32)
      for (int64_t u = c; u < c + 16; u += half * ATTN_W_) {
        ATTN_FN_(rows_sums)(half, rr, 0, o, width, p, v, j, last, u, kind);
        ATTN_FN_(rows_sums)(half, rr, 1, o, width, p, v, j, last, u, kind);
      }
    for (; c < whole; c += ATTN_W_) ATTN_FN_(rows_sums)(1, rr, 0, o, width, p, v, j, last, c, kind);
  }
}

/* --- the primitives -------------------------------------------------------------------------- */

/* Rows by fours and ones, so that two kernels serve any number. The first of them asks ahead. Each type
 * has a function of its own: inlined into one, their stack frame would be huge without optimisation. */
#if ATTN_SPECIALISE_
#define ATTN_ROWS_AT_ONCE_(rows) ((rows) > 2 ? 4 : 1)
#define ATTN_ROW_COPY_(type, kind)                                                               \
  ATTN_OUTLINE_ void ATTN_FN_(score_rows_##type)(int n, float *s, const float *q, int64_t width, \
                                                 const attn_kv_rows_ *k) {                       \
    if (n == 1)                                                                                  \
      ATTN_FN_(score_rows_kind)(1, s, q, width, k, kind);                                        \
    else                                                                                         \
      ATTN_FN_(score_rows_kind)(4, s, q, width, k, kind);                                        \
  }                                                                                              \
  ATTN_OUTLINE_ void ATTN_FN_(value_rows_##type)(int n, float *o, int64_t width, const float *p, \
                                                 const attn_kv_rows_ *v) {                       \
    if (n == 1)                                                                                  \
      ATTN_FN_(value_rows_kind)(1, o, width, p, v, kind);                                        \
    else                                                                                         \
      ATTN_FN_(value_rows_kind)(4, o, width, p, v, kind);                                        \
  }
ATTN_ROW_COPY_(f32, ATTN_F32)
ATTN_ROW_COPY_(f16, ATTN_F16)
ATTN_ROW_COPY_(bf16, ATTN_BF16)
ATTN_ROW_COPY_(i8, ATTN_I8)
ATTN_ROW_COPY_(i4, ATTN_I4)
#undef ATTN_ROW_COPY_
#endif

ATTN_FUNC_ void ATTN_FN_(score_rows)(float *s, const float *q, int64_t width, int rows,
                                     const attn_kv_rows_ *k) {
  attn_kv_rows_ x = *k;
  for (int r = 0, n; r < rows; r += n, x.ahead = INT64_MAX / 2) {
    float *to = s + r * ATTN_ROWS_ROOM_;
    const float *from = q + r * width;
#if ATTN_SPECIALISE_
    n = ATTN_ROWS_AT_ONCE_(rows - r);
    switch (k->dtype) {
      case ATTN_F32: ATTN_FN_(score_rows_f32)(n, to, from, width, &x); break;
      case ATTN_F16: ATTN_FN_(score_rows_f16)(n, to, from, width, &x); break;
      case ATTN_BF16: ATTN_FN_(score_rows_bf16)(n, to, from, width, &x); break;
      case ATTN_I8: ATTN_FN_(score_rows_i8)(n, to, from, width, &x); break;
      default: ATTN_FN_(score_rows_i4)(n, to, from, width, &x);
    }
#else
    n = 1;
    ATTN_FN_(score_rows_kind)(1, to, from, width, &x, (int)k->dtype);
#endif
  }
  ATTN_FN_(rows_scale)(s, rows, k);
}

ATTN_FUNC_ void ATTN_FN_(value_rows)(float *o, int64_t width, float *p, int rows,
                                     const attn_kv_rows_ *v, const float *alpha) {
  attn_kv_rows_ x = *v;
  for (int r = 0; alpha && r < rows; r++) {
    const ATTN_VF_ a = ATTN_V_SET1_(alpha[r]);
    if (alpha[r] == 1.0f) continue;
    for (int64_t c = 0; c < width; c += ATTN_W_)
      ATTN_V_STORE_(o + r * width + c, ATTN_V_MUL_(ATTN_V_LOAD_(o + r * width + c), a));
  }
  ATTN_FN_(rows_scale)(p, rows, v);
  for (int r = 0, n; r < rows; r += n, x.ahead = INT64_MAX / 2) {
    float *to = o + r * width;
    const float *from = p + r * ATTN_ROWS_ROOM_;
#if ATTN_SPECIALISE_
    n = ATTN_ROWS_AT_ONCE_(rows - r);
    switch (v->dtype) {
      case ATTN_F32: ATTN_FN_(value_rows_f32)(n, to, width, from, &x); break;
      case ATTN_F16: ATTN_FN_(value_rows_f16)(n, to, width, from, &x); break;
      case ATTN_BF16: ATTN_FN_(value_rows_bf16)(n, to, width, from, &x); break;
      case ATTN_I8: ATTN_FN_(value_rows_i8)(n, to, width, from, &x); break;
      default: ATTN_FN_(value_rows_i4)(n, to, width, from, &x);
    }
#else
    n = 1;
    ATTN_FN_(value_rows_kind)(1, to, width, from, &x, (int)v->dtype);
#endif
  }
  const int64_t whole = ATTN_FN_(row_whole)(v->dim, (int)v->dtype);
  if (whole < v->dim) ATTN_FN_(rows_rest)(o, width, p, rows, v, whole, (int)v->dtype);
}
#undef ATTN_ROWS_AT_ONCE_
#undef ATTN_ROW_LOAD_
#undef ATTN_ASK_

/* the sum of 16 running sums: parts first, then lanes, always halves of what is left */
ATTN_INLINE_ float ATTN_FN_(row_sum)(ATTN_VF_ *part) {
#if ATTN_W_ == 4
  return ATTN_V_SUM_(ATTN_V_ADD_(ATTN_V_ADD_(part[0], part[2]), ATTN_V_ADD_(part[1], part[3])));
#elif ATTN_W_ == 8
  return ATTN_V_SUM_(ATTN_V_ADD_(part[0], part[1]));
#else
  return ATTN_V_SUM_(part[0]);
#endif
}

ATTN_FUNC_ void ATTN_FN_(softmax_rows)(float *s, int rows, float *m, float *l, float *alpha) {
  enum { PARTS = ATTN_FN_(row_parts) };
  for (int r = 0; r < rows; r++, s += ATTN_ROWS_ROOM_) {
    ATTN_VF_ sum[PARTS], t = ATTN_V_SET1_(-INFINITY), u = t;
    for (int j = 0; j < ATTN_BLOCK_; j += 2 * ATTN_W_) {
      t = ATTN_V_MAX_(ATTN_V_LOAD_(s + j), t);
      u = ATTN_V_MAX_(ATTN_V_LOAD_(s + j + ATTN_W_), u);
    }
    const float top = ATTN_V_TOP_(ATTN_V_MAX_(t, u)), old = m[r];
    m[r] = top > old ? top : old;
    const ATTN_VF_ base = ATTN_FN_(base)(ATTN_V_SET1_(m[r]));
    const ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_SET1_(old), base));
    float lanes[ATTN_W_];
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) sum[i] = ATTN_V_ZERO_();
    for (int j = 0; j < ATTN_BLOCK_; j += 4 * ATTN_W_) {
      ATTN_VF_ p[4];
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) p[i] = ATTN_V_SUB_(ATTN_V_LOAD_(s + j + i * ATTN_W_), base);
      ATTN_FN_(exp2_neg4)(p);
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        ATTN_V_STORE_(s + j + i * ATTN_W_, p[i]);
        sum[i % PARTS] = ATTN_V_ADD_(sum[i % PARTS], p[i]);
      }
    }
    ATTN_V_STORE_(lanes, keep);
    alpha[r] = lanes[0];
    ATTN_V_STORE_(lanes,
                  ATTN_V_FMA_(ATTN_V_SET1_(l[r]), keep, ATTN_V_SET1_(ATTN_FN_(row_sum)(sum))));
    l[r] = lanes[0];
  }
}

ATTN_FUNC_ void ATTN_FN_(pack_row)(float *dst, const void *row, int64_t dim, attn_dtype dtype,
                                   float hi, float lo) {
  const ATTN_VF_ vhi = ATTN_V_SET1_(hi), vlo = ATTN_V_SET1_(lo);
  for (int64_t c = 0; c < dim; c += ATTN_W_) {
    const int w = ATTN_FN_(lanes_left)(dim, c);
    ATTN_V_STORE_(dst + c, ATTN_FN_(scaled)(ATTN_FN_(load)(row, c, w, (int)dtype), vhi, vlo, 0));
  }
}
