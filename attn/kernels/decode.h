/* kernels/decode.h owns the few-query kernels: up to 16 query rows against rows of K and V as they
 * lie in memory. Elements of a row sit in vector lanes here, so that a row is read once, in order,
 * and converted once for all queries. A dot product ends in a sum over lanes: always over 16 running
 * sums, joined by halves, whatever the width of a vector.
 *
 * Query and output rows are padded to whole vectors. For 4-bit rows they are kept with the 16 even
 * elements of each 32 before the odd ones, as the halves of 16 bytes give them. */

enum { ATTN_FN_(row_parts) = 16 / ATTN_W_ };

/* Where column c (in the order above, at the start of a vector) is. */
ATTN_INLINE_ int64_t ATTN_FN_(row_bytes)(int64_t c, const int kind) {
  return ATTN_IS_I4_(kind)      ? (c >> 5) * 16 + (c & 15)
         : ATTN_IS_SMALL_(kind) ? c
         : kind == ATTN_F32     ? 4 * c
                                : 2 * c;
}

/* A vector of a row, all of whose elements exist; c is a constant, or 4-bit rows would test it. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(row_kind)(const char *row, const int c, const int kind) {
  if (!ATTN_IS_I4_(kind)) return ATTN_FN_(load)(row, c, ATTN_W_, kind);
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
  if (ATTN_IS_I4_(kind)) memcpy(t, row + from, (size_t)(end - from));
  for (int i = 0; i < 32; i += ATTN_W_) {
    ATTN_VF_ v = ATTN_V_ZERO_();
    if (ATTN_IS_I4_(kind))
      v = i & 16 ? ATTN_V_LOAD_I4_ODD_(t + (i & 15)) : ATTN_V_LOAD_I4_EVEN_(t + (i & 15));
    else if (c + i < dim)
      v = ATTN_FN_(load)(row, c + i, ATTN_FN_(lanes_left)(dim, c + i), kind);
    ATTN_V_STORE_(x + i, v);
  }
}

/* Columns up to which row_load serves, and up to which there are any. */
ATTN_INLINE_ int64_t ATTN_FN_(row_whole)(int64_t dim, const int kind) {
  return ATTN_IS_I4_(kind) ? dim / 32 * 32 : dim / 16 * 16;
}
ATTN_INLINE_ int64_t ATTN_FN_(row_end)(int64_t dim, const int kind) {
  return ATTN_IS_I4_(kind) ? (dim + 31) / 32 * 32 : (dim + 15) / 16 * 16;
}

/* Begins with the row that is read x->ahead rows after row j, here or in what comes next; with row j
 * itself when there is none. */
ATTN_INLINE_ void ATTN_FN_(ask_from)(attn_ask_ *ask, const attn_kv_rows_ *x, int64_t j) {
  const int64_t at = j + x->ahead;
  ask->step = x->step, ask->bytes = x->bytes, ask->due = 0;
  ask->at = x->row + j * x->step;
  if (at < x->n) {
    ask->at = x->row + at * x->step;
  } else if (at - x->n < x->next_n) {
    ask->step = x->next_step;
    ask->at = x->next + (at - x->n) * ask->step;
  }
  ask->left = ask->step == x->bytes ? INT64_MAX / 2 : x->bytes;
}

/* soon: what computes for longer than it reads is better off with lines in the first cache */
ATTN_INLINE_ void ATTN_FN_(ask_line)(const char *at, const int soon) {
  if (soon)
    ATTN_PREFETCH_(at);
  else
    ATTN_PREFETCH_FAR_(at);
}

ATTN_INLINE_ int ATTN_FN_(ask_soon)(const int rr, const int kind) {
  return ATTN_IS_I4_(kind) || (rr > 1 && ATTN_IS_SMALL_(kind));
}

ATTN_INLINE_ void ATTN_FN_(ask_lines)(const char *at, const int bytes, const int soon) {
  ATTN_FN_(ask_line)(at, soon);
  if (bytes > 64) ATTN_FN_(ask_line)(at + 64, soon);
  if (bytes > 128) ATTN_FN_(ask_line)(at + 128, soon);
  if (bytes > 192) ATTN_FN_(ask_line)(at + 192, soon);
  if (bytes > 256) ATTN_FN_(ask_line)(at + 256, soon);
  if (bytes > 320) ATTN_FN_(ask_line)(at + 320, soon);
  if (bytes > 384) ATTN_FN_(ask_line)(at + 384, soon);
  if (bytes > 448) ATTN_FN_(ask_line)(at + 448, soon);
}

/* Asks for the next `bytes`, a constant of at most 512. Requests are spread over the work on rows: many
 * at once would be lost. */
ATTN_INLINE_ void ATTN_FN_(ask)(attn_ask_ *ask, const int bytes, const int soon) {
  if (bytes % 64) {
    ask->due += bytes;
    if (ask->due < 64) return;
    ask->due -= 64;
  }
  ATTN_FN_(ask_lines)(ask->at, bytes, soon);
  ask->at += bytes < 64 ? 64 : bytes, ask->left -= bytes < 64 ? 64 : bytes;
  if (ATTN_RARE_(ask->left <= 0))
    ask->at += ask->left + ask->step - ask->bytes, ask->left = ask->bytes;
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

/* mk keys by rr query rows in registers, each as pp of the parts of 16 running sums: named sums, as in
 * kernels/score.h. Slot s is part s mod pp of key s / pp. */
#if ATTN_W_ == 16
#define ATTN_EACH_SLOT_(f) f(0) f(1) f(2) f(3)
#elif ATTN_W_ == 8
#define ATTN_EACH_SLOT_(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#else
#define ATTN_EACH_SLOT_(f) \
  f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
#endif
#define ATTN_ROW_KEYS_(rr) ((rr) > 1 ? ATTN_ROW_COLS_ / 4 : 4)
#define ATTN_ROW_PARTS_(rr) ((rr) > 1 ? 1 : ATTN_FN_(row_parts))
#define ATTN_ROW_INIT_(s) \
  ATTN_VF_ a##s##_0 = ATTN_V_ZERO_(), a##s##_1 = a##s##_0, a##s##_2 = a##s##_0, a##s##_3 = a##s##_0;
/* Where a multiply-add could read q from memory, gcc reads it once a key: loads would be the limit. */
#if ATTN_W_ == 8 && defined(__GNUC__)
#define ATTN_ROW_HOLD_ __asm__("" : "+x"(q0), "+x"(q1), "+x"(q2), "+x"(q3))
#else
#define ATTN_ROW_HOLD_
#endif
/* Elements of q: of each row, or of each part of the one row. */
#define ATTN_ROW_Q_(i, base)                                                          \
  ATTN_VF_ q##i = i < (rr > 1 ? rr : pp)                                              \
                      ? ATTN_V_LOAD_(q + c + (base) + i * (rr > 1 ? width : ATTN_W_)) \
                      : ATTN_V_ZERO_()
#define ATTN_ROW_ADD_(s, base)                                                                 \
  if (mk * pp > s) {                                                                           \
    const ATTN_VF_ x = ATTN_ROW_LOAD_(ATTN_ROW_KEY_(s) + at, (base) + s % pp * ATTN_W_, kind); \
    a##s##_0 = ATTN_V_FMA_(ATTN_ROW_PART_(s), x, a##s##_0);                                    \
    if (rr > 1) a##s##_1 = ATTN_V_FMA_(q1, x, a##s##_1);                                       \
    if (rr > 2) a##s##_2 = ATTN_V_FMA_(q2, x, a##s##_2);                                       \
    if (rr > 3) a##s##_3 = ATTN_V_FMA_(q3, x, a##s##_3);                                       \
  }
#define ATTN_ROW_PART_(s) (s % pp == 0 ? q0 : s % pp == 1 ? q1 : s % pp == 2 ? q2 : q3)
#define ATTN_ROW_KEY_(s) (s / pp == 0 ? k0 : s / pp == 1 ? k1 : s / pp == 2 ? k2 : k3)
#define ATTN_ROW_ADD0_(s) ATTN_ROW_ADD_(s, 0)
#define ATTN_ROW_ADD16_(s) ATTN_ROW_ADD_(s, 16)
#define ATTN_ROW_STEP_(base)               \
  {                                        \
    ATTN_ROW_Q_(0, base);                  \
    ATTN_ROW_Q_(1, base);                  \
    ATTN_ROW_Q_(2, base);                  \
    ATTN_ROW_Q_(3, base);                  \
    ATTN_ROW_HOLD_;                        \
    ATTN_EACH_SLOT_(ATTN_ROW_ADD##base##_) \
  }
#define ATTN_ROW_KEEP_(s)                      \
  if (mk * pp > s) {                           \
    sum[s % pp * mk * rr + s / pp] = a##s##_0; \
    if (rr > 1) sum[mk + s] = a##s##_1;        \
    if (rr > 2) sum[2 * mk + s] = a##s##_2;    \
    if (rr > 3) sum[3 * mk + s] = a##s##_3;    \
  }

/* sum[(part rr + r) mk + key] = running sums of query r and a key, of the whole columns of pp parts */
ATTN_INLINE_ void ATTN_FN_(rows_dots)(const int rr, ATTN_VF_ *sum, const float *q, int64_t width,
                                      const char *k0, const char *k1, const char *k2,
                                      const char *k3, attn_ask_ *ask, int64_t whole,
                                      const int kind) {
  const int mk = ATTN_ROW_KEYS_(rr), pp = ATTN_ROW_PARTS_(rr), soon = ATTN_FN_(ask_soon)(rr, kind);
  const int bytes = mk * (int)ATTN_FN_(row_bytes)(32, kind) * pp / ATTN_FN_(row_parts) / 2;
  int64_t c = 0, at = 0;
  ATTN_EACH_SLOT_(ATTN_ROW_INIT_)
  for (; c + 16 < whole; c += 32, at += ATTN_FN_(row_bytes)(32, kind)) {
    ATTN_ROW_STEP_(0)
    ATTN_FN_(ask)(ask, bytes, soon);
    ATTN_ROW_STEP_(16)
    ATTN_FN_(ask)(ask, bytes, soon);
  }
  if (c < whole) {
    ATTN_ROW_STEP_(0)
    ATTN_FN_(ask)(ask, bytes, soon);
  }
  ATTN_EACH_SLOT_(ATTN_ROW_KEEP_)
}
#undef ATTN_EACH_SLOT_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_ADD_
#undef ATTN_ROW_KEY_
#undef ATTN_ROW_Q_
#undef ATTN_ROW_PART_
#undef ATTN_ROW_HOLD_
#undef ATTN_ROW_ADD0_
#undef ATTN_ROW_ADD16_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_KEEP_

/* Adds the columns of one key from c on, which are fewer than 32; its sums are mk apart, in parts. */
ATTN_OUTLINE_ void ATTN_FN_(rows_dots_rest)(ATTN_VF_ *sum, int mk, int rr, const float *q,
                                            int64_t width, const char *row, int64_t c, int64_t dim,
                                            int kind) {
  float rest[32];
  ATTN_FN_(row_rest)(rest, row, c, dim, kind);
  for (int i = 0; c + i < ATTN_FN_(row_end)(dim, kind); i += ATTN_W_)
    for (int r = 0; r < rr; r++) {
      ATTN_VF_ *to = sum + (i % 16 / ATTN_W_ * rr + r) * mk;
      *to = ATTN_V_FMA_(ATTN_V_LOAD_(q + r * width + c + i), ATTN_V_LOAD_(rest + i), *to);
    }
}

/* mk keys from j on: sum[apart r + key] = the 16 running sums, joined to the lanes of a vector. */
ATTN_INLINE_ void ATTN_FN_(rows_keys)(const int rr, ATTN_VF_ *sum, const int apart, const float *q,
                                      int64_t width, const char *row, int64_t step, int64_t j,
                                      int64_t last, attn_ask_ *ask, int64_t dim, const int kind) {
  enum { PARTS = ATTN_FN_(row_parts) };
  const int mk = ATTN_ROW_KEYS_(rr), pp = ATTN_ROW_PARTS_(rr), each = mk * rr;
  const int64_t whole = ATTN_FN_(row_whole)(dim, kind);
  const char *k0 = row + (j < last ? j : last) * step, *k1 = k0, *k2 = k0, *k3 = k0;
  ATTN_VF_ part[16 * 4];
  if (mk > 1 && j + mk <= last) { /* else the last one again */
    k1 = k0 + step, k2 = k1 + step, k3 = k2 + step;
  } else if (mk > 1) {
    k1 = row + (j + 1 < last ? j + 1 : last) * step;
    k2 = row + (j + 2 < last ? j + 2 : last) * step;
    k3 = row + (j + 3 < last ? j + 3 : last) * step;
  }
  for (int p = 0; p < PARTS; p += pp) {
    const int64_t at = ATTN_FN_(row_bytes)(p * ATTN_W_, kind);
    ATTN_FN_(rows_dots)(rr, part + p * each, q + p * ATTN_W_, width, k0 + at, k1 + at, k2 + at,
                        k3 + at, ask, whole, kind);
  }
  if (whole < dim) {
    ATTN_VF_ all[16 * 4]; /* not part itself, which stays in registers where it can */
    ATTN_UNROLL_
    for (int i = 0; i < PARTS * each; i++) all[i] = part[i];
    ATTN_FN_(rows_dots_rest)(all, mk, rr, q, width, k0, whole, dim, kind);
    if (mk > 1) ATTN_FN_(rows_dots_rest)(all + 1, mk, rr, q, width, k1, whole, dim, kind);
    if (mk > 2) ATTN_FN_(rows_dots_rest)(all + 2, mk, rr, q, width, k2, whole, dim, kind);
    if (mk > 3) ATTN_FN_(rows_dots_rest)(all + 3, mk, rr, q, width, k3, whole, dim, kind);
    ATTN_UNROLL_
    for (int i = 0; i < PARTS * each; i++) part[i] = all[i];
  }
  ATTN_UNROLL_
  for (int i = 0; i < each; i++) {
    ATTN_VF_ *to = sum + i / mk * apart + i % mk;
#if ATTN_W_ == 16
    *to = part[i];
#elif ATTN_W_ == 8
    *to = ATTN_V_ADD_(part[i], part[each + i]);
#else
    *to = ATTN_V_ADD_(ATTN_V_ADD_(part[i], part[2 * each + i]),
                      ATTN_V_ADD_(part[each + i], part[3 * each + i]));
#endif
  }
}

/* All keys for rr query rows: so many at a time that the sums over lanes fill vectors. */
ATTN_INLINE_ void ATTN_FN_(score_rows_kind)(const int rr, float *s, const float *q, int64_t width,
                                            const attn_kv_rows_ *k, const int kind) {
  const int mk = ATTN_ROW_KEYS_(rr), keys = mk * rr > ATTN_W_ ? mk : ATTN_W_ / rr;
  const int64_t last = k->n - 1, step = k->step, dim = k->dim;
  const char *row = k->row;
  attn_ask_ ask;
  ATTN_FN_(ask_from)(&ask, k, 0);
  for (int64_t j = 0; j <= last; j += keys) {
    ATTN_VF_ sum[16];
    float lanes[16];
    if (j && j % 16 == 0) ATTN_FN_(ask_from)(&ask, k, j); /* where it should be by now */
    if (kind == ATTN_F32) {
      ATTN_UNROLL_
      for (int i = 0; i < keys; i += mk)
        ATTN_FN_(rows_keys)(rr, sum + i, keys, q, width, row, step, j + i, last, &ask, dim, kind);
    } else { /* two at a time: all of them are a page of code, which f32 alone is worth */
      for (int i = 0; i < keys; i += 2 * mk) {
        const int next = i + mk;
        ATTN_FN_(rows_keys)(rr, sum + i, keys, q, width, row, step, j + i, last, &ask, dim, kind);
        if (keys == mk) break;
        ATTN_FN_(rows_keys)
        (rr, sum + next, keys, q, width, row, step, j + next, last, &ask, dim, kind);
      }
    }
    ATTN_UNROLL_
    for (int i = 0; i < keys * rr; i += ATTN_W_) ATTN_V_STORE_(lanes + i, ATTN_V_SUMS_(sum + i));
    ATTN_UNROLL_
    for (int r = 0; r < rr; r++)
      memcpy(s + r * ATTN_ROWS_ROOM_ + j, lanes + r * keys, sizeof(float) * (size_t)keys);
  }
}
#undef ATTN_ROW_PARTS_
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
                                      int64_t j, int64_t end, int64_t c, const attn_ask_ *ask,
                                      const int kind) {
  const char *v = rows->row + j * rows->step + ATTN_FN_(row_bytes)(c, kind);
  /* Rows end to end: the share of their bytes that this run of columns has, in order. Else these columns,
   * when a line begins in them. */
  const int all = (int)ATTN_FN_(row_bytes)(32, kind) * mc / (32 / ATTN_W_);
  const int bytes = ATTN_IS_I4_(kind) && mc * ATTN_W_ < 32 ? 2 * all : all; /* even and odd ones */
  const int soon = ATTN_FN_(ask_soon)(rr, kind);
  const int64_t first = ATTN_FN_(row_bytes)(c, kind), long_row = ask->step == ask->bytes;
  const int64_t step = rows->step, step_ahead = long_row ? bytes : ask->step;
  const int skip = bytes >= 64 ? 0 : long_row ? 64 / bytes - 1 : (first & 63) < bytes ? 0 : -1;
  const char *ahead = ask->at + (long_row ? first * (end - j) : first);
  o += c + 16 * odd;
  ATTN_EACH_COL_(ATTN_ROW_INIT_)
  for (int i = 0; j < end; i++, j++, v += step, ahead += step_ahead) {
    if (!odd && (bytes >= 64 || !(i & skip))) ATTN_FN_(ask_lines)(ahead, bytes, soon);
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
  const int64_t whole = ATTN_FN_(row_whole)(v->dim, kind), fit = ATTN_ROW_STRIP_ / v->bytes;
  /* in fewer rows sums come and go too often, and requests are for half a block of them */
  const int64_t strip = fit < 8 ? 8 : fit < ATTN_BLOCK_ / 2 ? fit : ATTN_BLOCK_ / 2;
  for (int64_t j = 0, last; j < v->n; j = last) {
    int64_t c = 0;
    attn_ask_ ask;
    ATTN_FN_(ask_from)(&ask, v, j);
    last = v->n - j < strip ? v->n : j + strip;
    if (!ATTN_IS_I4_(kind) || mc * ATTN_W_ % 32 == 0)
      for (; c + mc * ATTN_W_ <= whole; c += mc * ATTN_W_)
        ATTN_FN_(rows_sums)(mc, rr, 0, o, width, p, v, j, last, c, &ask, kind);
    for (; ATTN_IS_I4_(kind) && c < whole; c += 32)
      for (int64_t u = c; u < c + 16; u += half * ATTN_W_) {
        ATTN_FN_(rows_sums)(half, rr, 0, o, width, p, v, j, last, u, &ask, kind);
        ATTN_FN_(rows_sums)(half, rr, 1, o, width, p, v, j, last, u, &ask, kind);
      }
    for (; c < whole; c += ATTN_W_)
      ATTN_FN_(rows_sums)(1, rr, 0, o, width, p, v, j, last, c, &ask, kind);
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
#if ATTN_HAS_QUANTIZE
ATTN_ROW_COPY_(i8, ATTN_I8)
ATTN_ROW_COPY_(i4, ATTN_I4)
#endif
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
#if ATTN_HAS_QUANTIZE
      case ATTN_I8: ATTN_FN_(score_rows_i8)(n, to, from, width, &x); break;
      case ATTN_I4: ATTN_FN_(score_rows_i4)(n, to, from, width, &x); break;
#endif
      default: ATTN_FN_(score_rows_bf16)(n, to, from, width, &x);
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
  float *b = o + ATTN_ROWS_ * width;
  for (int r = 0; alpha && r < rows; r++) {
    const ATTN_VF_ a = ATTN_V_SET1_(alpha[r]);
    for (int64_t c = r * width; c < (r + 1) * width; c += ATTN_W_) {
      ATTN_VF_ y = ATTN_V_ADD_(ATTN_V_LOAD_(o + c), ATTN_V_LOAD_(b + c));
      ATTN_V_STORE_(o + c, ATTN_V_MUL_(y, a));
      ATTN_V_STORE_(b + c, ATTN_V_ZERO_());
    }
  }
  ATTN_FN_(rows_scale)(p, rows, v);
  for (int r = 0, n; r < rows; r += n, x.ahead = INT64_MAX / 2) {
    float *to = b + r * width;
    const float *from = p + r * ATTN_ROWS_ROOM_;
#if ATTN_SPECIALISE_
    n = ATTN_ROWS_AT_ONCE_(rows - r);
    switch (v->dtype) {
      case ATTN_F32: ATTN_FN_(value_rows_f32)(n, to, width, from, &x); break;
      case ATTN_F16: ATTN_FN_(value_rows_f16)(n, to, width, from, &x); break;
#if ATTN_HAS_QUANTIZE
      case ATTN_I8: ATTN_FN_(value_rows_i8)(n, to, width, from, &x); break;
      case ATTN_I4: ATTN_FN_(value_rows_i4)(n, to, width, from, &x); break;
#endif
      default: ATTN_FN_(value_rows_bf16)(n, to, width, from, &x);
    }
#else
    n = 1;
    ATTN_FN_(value_rows_kind)(1, to, width, from, &x, (int)v->dtype);
#endif
  }
  const int64_t whole = ATTN_FN_(row_whole)(v->dim, (int)v->dtype);
  if (whole < v->dim) ATTN_FN_(rows_rest)(b, width, p, rows, v, whole, (int)v->dtype);
}
#undef ATTN_ROWS_AT_ONCE_
#undef ATTN_ROW_LOAD_

ATTN_INLINE_ float ATTN_FN_(row_sum)(const ATTN_VF_ *part) {
  return ATTN_V_SUM_(ATTN_FN_(row_join)(part));
}

ATTN_FUNC_ void ATTN_FN_(softmax_rows)(float *s, int rows, int from, int to, float *m, float *l,
                                       float *alpha) {
  enum { PARTS = ATTN_FN_(row_parts) };
  for (int r = 0; r < rows; r++, s += ATTN_ROWS_ROOM_) {
    ATTN_VF_ sum[PARTS], t = ATTN_V_SET1_(-INFINITY), u = t;
    int j = from;
    for (; j + 2 * ATTN_W_ <= to; j += 2 * ATTN_W_) {
      t = ATTN_V_MAX_(ATTN_V_LOAD_(s + j), t);
      u = ATTN_V_MAX_(ATTN_V_LOAD_(s + j + ATTN_W_), u);
    }
    if (j < to) t = ATTN_V_MAX_(ATTN_V_LOAD_(s + j), t);
    const float top = ATTN_V_TOP_(ATTN_V_MAX_(t, u)), old = m[r];
    m[r] = top > old ? top : old;
    const ATTN_VF_ base = ATTN_FN_(base)(ATTN_V_SET1_(m[r]));
    const ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_SET1_(old), base));
    float lanes[ATTN_W_];
    ATTN_UNROLL_
    for (int i = 0; i < PARTS; i++) sum[i] = ATTN_V_ZERO_();
    for (j = from; j + 4 * ATTN_W_ <= to; j += 4 * ATTN_W_) {
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
    for (; j < to; j += PARTS * ATTN_W_) {
      ATTN_UNROLL_
      for (int i = 0; i < PARTS; i++) {
        const ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_LOAD_(s + j + i * ATTN_W_), base));
        ATTN_V_STORE_(s + j + i * ATTN_W_, p);
        sum[i] = ATTN_V_ADD_(sum[i], p);
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
