/* engine/stored.h owns products of a few rows with a matrix that is read once, as it is stored, for the tiers
 * that have kernels/stored.h. */

/* Whether rows of codes or 16 bits begin where a word of 32 may. */
ATTN_FUNC_ int attn_stored_words_(const attn_tensor *w) {
  return (((uint64_t)(uintptr_t)w->data | (uint64_t)attn_bytes_(w->dtype, w->stride_batch) |
           (uint64_t)attn_bytes_(w->dtype, w->stride_head) |
           (uint64_t)attn_bytes_(w->dtype, w->stride_len)) &
          3) == 0;
}

/* What of a part the kernels take, from its first row and column on: 0 = nothing. */
ATTN_FUNC_ int attn_stored_part_(const attn_table_ *f, const attn_matrix_ *m, int64_t rows,
                                 attn_matrix_part_ *p) {
  int64_t c1 = p->c1;
  if (rows > ATTN_STORED_FEW_ || f->isa == ATTN_ISA_SCALAR) return 0;
  if (m->transposed) {
    if (!(m->run ? m->scales.group == m->run || m->run == 128
                 : m->in_turn && m->w.dtype == ATTN_BF16))
      return 0;
    if (!attn_stored_words_(&m->w) || attn_bytes_(m->w.dtype, p->k0) % 4) return 0;
    p->depth = p->depth / 128 * 128, c1 = p->c0 + (c1 - p->c0) / 64 * 64;
  } else {
    if (!m->run && c1 > m->direct) c1 = m->direct;
    c1 = p->c0 + (c1 - p->c0) / 32 * 32;
  }
  if (!m->transposed) {
    const int64_t deep = m->run ? m->run : (int64_t)ATTN_STORED_DEEP_;
    p->depth = p->depth / deep * deep;
  }
  p->c1 = c1;
  return p->c1 > p->c0 && p->depth > 0;
}

/* Scales of a transposed matrix for 64 columns and so many groups from k on, as rows of 64. */
ATTN_FUNC_ void attn_stored_scales_(const attn_table_ *f, const float *s, int64_t step,
                                    int64_t groups, float *to) {
  const void *rows[ATTN_PANEL_];
  for (int i = 0; i < ATTN_PANEL_; i++) rows[i] = s + i * step;
  attn_on_(dense, f)->turn(to, ATTN_PANEL_, rows, ATTN_F32, groups, ATTN_PANEL_);
}

/* Scales of the columns from c on for runs from k on, and what of n rows they are for. */
enum { ATTN_STORED_GROUPS_ = 16 };
typedef struct attn_stored_numbers_ {
  const float *scale, *zero;
  int64_t step; /* from a run to the next */
  float room[2][ATTN_STORED_GROUPS_ * (int)ATTN_PANEL_];
} attn_stored_numbers_;

ATTN_FUNC_ int64_t attn_stored_find_(const attn_table_ *f, const attn_matrix_ *m,
                                     const attn_matrix_part_ *part, int64_t k, int64_t c, int64_t n,
                                     attn_stored_numbers_ *to) {
  const attn_rows_scale_ s = attn_codes_scale_(m, part, k, c);
  const int64_t group = m->scales.group, step = m->scales.stride_len;
  const int64_t most = group > m->run ? group - k % group : ATTN_STORED_GROUPS_ * group;
  to->scale = s.scale, to->zero = s.zero, to->step = group > m->run ? 0 : step;
  if (n > most && (m->transposed || group > m->run)) n = most;
  if (!m->transposed) return n;
  const int64_t groups = group > m->run ? 1 : n / group;
  attn_stored_scales_(f, s.scale, step, groups, to->room[0]);
  if (s.zero) attn_stored_scales_(f, s.zero, step, groups, to->room[1]);
  to->scale = to->room[0], to->zero = s.zero ? to->room[1] : NULL;
  if (to->step) to->step = ATTN_PANEL_;
  return n;
}

/* Rows of x, as many at a time as the kernels take, by what p has of W. */
ATTN_FUNC_ void attn_stored_rows_(const attn_table_ *f, const attn_matrix_ *m,
                                  attn_stored_product_ p, int64_t rows) {
  const int most = m->transposed || (!m->run && m->w.dtype != ATTN_BF16) ? 1 : ATTN_STORED_ROWS_;
  const attn_stored_table_ *stored = attn_stored_on_(f->isa);
  for (int64_t r = 0; r < rows; r += most) {
    p.rows = rows - r < most ? (int)(rows - r) : most;
    if (m->transposed)
      stored->words(&p);
    else
      stored->rows(&p);
    p.x += most * p.x_stride, p.y += most * p.y_stride;
  }
}

/* y = (start ? 0 : y) + x w of what attn_stored_part_ left. */
ATTN_FUNC_ void attn_stored_times_(const attn_table_ *f, const attn_matrix_ *m,
                                   const attn_matrix_part_ *part, float *y, int64_t y_stride,
                                   attn_floats_ x, int start) {
  const attn_dtype dtype = m->w.dtype;
  const int64_t wide = m->transposed ? (int64_t)ATTN_PANEL_
                       : x.rows > 1  ? (int64_t)ATTN_STORED_COLS_ / ATTN_STORED_ROWS_
                                     : (int64_t)ATTN_STORED_COLS_;
  const int64_t end = part->k0 + part->depth;
  attn_stored_numbers_ s;
  attn_stored_product_ p;
  attn_clear_(&p, sizeof p);
  p.x_stride = x.stride, p.y_stride = y_stride, p.kind = (int)dtype, p.run = m->run;
  p.step = attn_bytes_(dtype, m->w.stride_len);
  for (int64_t c = part->c0; c < part->c1; c += p.cols) {
    p.cols = part->c1 - c < wide ? part->c1 - c : wide;
    for (int64_t k = part->k0; k < end; k += p.n) {
      const int64_t row = m->transposed ? c : k, at = m->transposed ? k : c;
      p.n = end - k;
      if (x.rows > 1 && p.n > ATTN_DEEP_)
        p.n = ATTN_DEEP_; /* what further rows read again is near */
      if (ATTN_HAS_QUANTIZE && m->run) {
        p.n = attn_stored_find_(f, m, part, k, c, p.n, &s);
        p.scale = s.scale, p.zero = s.zero, p.scale_stride = s.step;
      }
      p.w = attn_at_(&m->w, part->b, part->h, row) + attn_bytes_(dtype, at);
      p.x = x.p + (k - part->k0), p.y = y + (c - part->c0);
      p.start = start && k == part->k0;
      attn_stored_rows_(f, m, p, x.rows);
    }
  }
}
