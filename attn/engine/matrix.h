/* engine/matrix.h owns the matrix of a product: how it is read, and parts of it as f32. Codes are whole numbers
 * with a scale for each column and group of k; what a product sums are codes less their zero points, in runs of
 * one scale, 128 elements at most: a run begins at a multiple of its length, so no cut reaches the sums. */

/* STRIP_FLOATS: of the largest strip. LAY_ROWS: of W, laid out as one item. */
enum {
  ATTN_PANEL_ = 64,
  ATTN_DEEP_ = 128,
  ATTN_STRIP_FLOATS_ = ATTN_PANEL_ * ATTN_DEEP_,
  ATTN_TURN_COLS_ = 16,
  ATTN_LAY_ROWS_ = 64
};

/* Rows of floats that are read. */
typedef struct attn_floats_ {
  const float *p;
  int64_t stride, rows;
} attn_floats_;

ATTN_FUNC_ attn_floats_ attn_floats_at_(const float *p, int64_t stride, int64_t rows) {
  attn_floats_ x = {p, stride, rows};
  return x;
}

/* Rows i .. i + n - 1 of a head: where they are, or in room if they are of another type. */
ATTN_FUNC_ attn_floats_ attn_floats_of_(const attn_table_ *f, const attn_tensor *t, int64_t b,
                                        int64_t h, int64_t i, int64_t n, float *room) {
  const void *at = attn_at_(t, b, h, i);
  if (t->dtype == ATTN_F32) return attn_floats_at_((const float *)at, t->stride_len, n);
  f->widen(room, at, t->stride_len, NULL, n, t->dim, t->dtype, NULL);
  return attn_floats_at_(room, t->dim, n);
}

typedef struct attn_matrix_ {
  attn_tensor w; /* [batch, heads, k, n] matrices; transposed: [.., n, k] */
  int transposed;
  int64_t k, n;
  int64_t direct;      /* columns that are read in place */
  int in_turn;         /* all columns are read in place and turned */
  int64_t panels, one; /* of the others; floats of a matrix of them */
  int strip;           /* columns of a strip; 0: as the tier has it */
  float *packed;       /* [w.batch][w.heads][panels][64 / strip][k][strip] */
  attn_scales scales;  /* of codes; their group is k at most */
  int64_t run;         /* elements of k whose codes have a sum of their own; 0: floats */
  const attn_low_table_
      *low; /* products of bf16 or f16: packed holds pairs, [..][k / 2][64], and of f16
                               * then the powers of columns (engine/powers.h) */
} attn_matrix_;

/* What a product reads: rows k0 .. k0 + depth - 1, columns c0 .. c1 - 1 of the matrix of a batch entry
 * and head; c0 is a multiple of 64. */
typedef struct attn_matrix_part_ {
  int64_t b, h, k0, depth, c0, c1;
} attn_matrix_part_;

/* Rows i .. i + n - 1 of columns c .. of a matrix into a strip, which ends in zeros. */
ATTN_FUNC_ void attn_strip_copy_(const attn_table_ *f, const attn_matrix_ *m, const char *from,
                                 float *to, int strip, int64_t n, int cols) {
  const int64_t step = m->w.stride_len * attn_bytes_(m->w.dtype, 8) / 8;
  if (cols == strip) {
    f->widen(to, from, m->w.stride_len, NULL, n, strip, m->w.dtype, NULL);
    return;
  }
  memset(to, 0, (size_t)(n * strip) * sizeof(float));
  for (int64_t i = 0; i < n; i++)
    f->widen(to + i * strip, from + i * step, 0, NULL, 1, cols, m->w.dtype, NULL);
}

/* The run of a matrix of codes with scales of so large a group. */
ATTN_FUNC_ int64_t attn_codes_run_(int64_t group, int64_t k) {
  return group >= k || group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
}

/* Makes m one of codes, all of which are read in place. */
ATTN_FUNC_ void attn_matrix_codes_(attn_matrix_ *m, const attn_scales *scales) {
  m->scales = *scales;
  if (scales->group == 0 || scales->group > m->k) m->scales.group = m->k;
  m->run = attn_codes_run_(m->scales.group, m->k);
  m->direct = m->panels = m->one = 0, m->in_turn = 0;
}

/* Scale and zero of column c in the group of row k; `step`: from a column to the next, *group: from a group. */
ATTN_FUNC_ attn_rows_scale_ attn_codes_scale_(const attn_matrix_ *m, const attn_matrix_part_ *p,
                                              int64_t k, int64_t c) {
  const int64_t g = k / m->scales.group;
  return attn_scales_column_(attn_scales_at_(&m->scales, p->b, p->h, m->transposed ? c : g),
                             m->transposed ? g : c);
}

/* x[i] -= zero[i step] */
ATTN_FUNC_ void attn_codes_centre_(float *x, const float *zero, int64_t step, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] -= zero[i * step];
}

/* The codes of a part within a run as f32 in rows of a strip, which ends in zeros; by: the scales of its columns;
 * more: their zeros times these. Null: zeros are taken off the codes. */
ATTN_FUNC_ void attn_codes_strip_(const attn_table_ *f, const attn_matrix_ *m,
                                  const attn_matrix_part_ *p, float *to, int strip, float *by,
                                  float *more) {
  const int cols = (int)(p->c1 - p->c0);
  attn_rows_scale_ s = attn_codes_scale_(m, p, p->k0, p->c0);
  const int64_t step = m->transposed ? m->scales.stride_len : 1;
  memset(by, 0, (size_t)strip * sizeof(float));
  for (int c = 0; c < cols; c++) by[c] = s.scale[c * step];
  if (more) {
    memset(more, 0, (size_t)strip * sizeof(float));
    for (int c = 0; s.zero && c < cols; c++) more[c] = s.zero[c * step] * by[c];
    s.zero = NULL;
  }
  if (!m->transposed) {
    const char *from = attn_at_(&m->w, p->b, p->h, p->k0) + attn_bytes_(m->w.dtype, p->c0);
    attn_strip_copy_(f, m, from, to, strip, p->depth, cols);
    for (int64_t i = 0; s.zero && i < p->depth; i++)
      attn_codes_centre_(to + i * strip, s.zero, 1, cols);
    return;
  }
  if (cols < strip) memset(to, 0, (size_t)(p->depth * strip) * sizeof(float));
  for (int c = 0, some; c < cols; c += some) { /* as rows of W, and then turned */
    float wide[ATTN_TURN_COLS_ * ATTN_DEEP_];
    const void *rows[ATTN_TURN_COLS_];
    some = cols - c < ATTN_TURN_COLS_ ? cols - c : (int)ATTN_TURN_COLS_;
    f->widen(wide, attn_at_(&m->w, p->b, p->h, p->c0 + c) + attn_bytes_(m->w.dtype, p->k0),
             m->w.stride_len, NULL, some, p->depth, m->w.dtype, NULL);
    for (int i = 0; i < some; i++) {
      rows[i] = wide + i * p->depth;
      if (s.zero) attn_codes_centre_(wide + i * p->depth, s.zero + (c + i) * step, 0, p->depth);
    }
    attn_on_(dense, f)->turn(to + c, strip, rows, ATTN_F32, p->depth, some);
  }
}
