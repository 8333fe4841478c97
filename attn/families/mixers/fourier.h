/* families/mixers/fourier.h owns mixing by a two-dimensional Fourier transform, as fast transforms and as
 * products, and the block of FNet.
 *
 * The real part of the transform sees only the even part of an entry,
 *   E[n,m] = (x[n,m] + x[-n,-m]) / 2,
 * and is itself even. So columns m <= dm/2 of E are transformed along the rows, two real columns as one
 * complex one; their transform F has F[t,-m] = conj F[t,m], so that rows t <= N/2 of F become real rows of
 * y, again two as one; the other rows of y are these, mirrored. That is a quarter of a complex transform.
 *
 * A row of F has dm numbers: the real parts of F[t,m], m <= dm/2, then the imaginary ones, 0 < m < dm/2. */

typedef struct attn_fourier_job_ {
  attn_tensor y, x;
  attn_fnet_params par; /* of the mixing alone: its mix */
  int block;
} attn_fourier_job_;

/* ---- fast transforms -----------------------------------------------------------------------------*/

typedef struct attn_dft_ {
  const attn_table_ *table;
  attn_tensor y, x, f;
  attn_fft_ by_row, by_col; /* of length N, of length dm */
  int64_t first, entries;   /* batch entries of one length */
  int64_t wide;             /* complex columns that are transformed together */
  int64_t blocks, room;     /* of so many; floats of one */
  int64_t at_once, runs;    /* blocks of an item, items of an entry */
  char *memory;             /* of the workers */
  int64_t each, at_im;
} attn_dft_;

/* Blocks of an item: as many as have room in so many floats, and at most 4. Between them is a gap, so that
 * their rows are not in the same sets of the caches. */
enum { ATTN_DFT_BLOCKS_ = 4, ATTN_DFT_ROOM_ = 1 << 19, ATTN_DFT_GAP_ = 80 };

ATTN_FUNC_ int64_t attn_groups_up_(int64_t n) {
  return (n + ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
}

/* to[j] = 2 E[n, m0 + j] */
ATTN_FUNC_ void attn_dft_fold_(const attn_dft_ *a, float *to, int64_t b, int64_t n, int64_t m0,
                               int64_t cols) {
  const int64_t len = a->by_row.n, dm = a->x.dim, skip = m0 == 0;
  const char *x = attn_at_(&a->x, b, 0, n), *back = attn_at_(&a->x, b, 0, n ? len - n : 0);
  const float *p = (const float *)(const void *)x + m0, *q = (const float *)(const void *)back;
  float wide[2][4 * ATTN_GROUP_], first[1];
  if (skip) /* column 0 is its own mirror image */
    a->table->widen(first, back, 0, NULL, 1, 1, a->x.dtype, NULL);
  q += dm - m0;
  if (a->x.dtype != ATTN_F32) {
    const int64_t low = dm - m0 - cols + 1;
    a->table->widen(wide[0], x + attn_bytes_(a->x.dtype, m0), 0, NULL, 1, cols, a->x.dtype, NULL);
    if (cols > skip)
      a->table->widen(wide[1], back + attn_bytes_(a->x.dtype, low), 0, NULL, 1, cols - skip,
                      a->x.dtype, NULL);
    p = wide[0], q = wide[1] + cols - 1;
  }
  if (skip) to[0] = p[0] + first[0];
  if (cols > skip) attn_on_(fourier, a->table)->mirror(to + skip, p + skip, q - skip, cols - skip);
}

/* Row t of columns of 4 F from the transformed block x: with Z the transform of column m plus i times
 * column m + half, what is real in 2 E's transform is Z[t] + conj Z[-t], and so on. */
ATTN_FUNC_ void attn_dft_part_(const attn_dft_ *a, const float *x, int64_t b, int64_t t, int64_t m0,
                               int64_t cols, int64_t half) {
  const attn_table_ *f = a->table;
  const int64_t top = a->x.dim / 2, last = (a->x.dim - 1) / 2;
  /* columns of this block that have an imaginary part: from skip, to end in the first half, then more */
  const int64_t skip = m0 == 0, left = last + 1 - m0, end = left < half ? left : half;
  const int64_t more = left - half < half ? left - half : half;
  const float *z = x + attn_fft_row_(&a->by_row, t) * 2 * half;
  const float *v = x + attn_fft_row_(&a->by_row, t ? a->by_row.n - t : 0) * 2 * half;
  float *re = (float *)(void *)attn_at_(&a->f, b, 0, t) + m0, *im = re + top;
  f->blend(re, z, v, ATTN_F32, ATTN_F32, ATTN_F32, cols, 1.0f, 1.0f);
  if (end > skip)
    f->blend(im + skip, z + half + skip, v + half + skip, ATTN_F32, ATTN_F32, ATTN_F32, end - skip,
             1.0f, -1.0f);
  if (more > 0) f->blend(im + half, v, z, ATTN_F32, ATTN_F32, ATTN_F32, more, 1.0f, -1.0f);
}

/* Some blocks of columns of E become columns of 4 F, together row by row: lines of x and of F in one column
 * lie far apart. */
ATTN_FUNC_ void attn_dft_columns_item_(void *job, int worker, int64_t index) {
  const attn_dft_ *a = (const attn_dft_ *)job;
  const int64_t b = a->first + index / a->runs, first = index % a->runs * a->at_once;
  const int64_t len = a->by_row.n, top = a->x.dim / 2, wide = 2 * a->wide;
  const int64_t some = a->blocks - first < a->at_once ? a->blocks - first : a->at_once;
  float *x = (float *)(void *)(a->memory + worker * a->each);
  int64_t cols[ATTN_DFT_BLOCKS_], half[ATTN_DFT_BLOCKS_];
  for (int64_t k = 0; k < some; k++) {
    const int64_t left = top + 1 - (first + k) * wide;
    cols[k] = left < wide ? left : wide;
    half[k] = attn_groups_up_((cols[k] + 1) / 2);
  }
  for (int64_t n = 0; n < len; n++) {
    for (int64_t k = 0; k < some; k++) {
      float *to = x + k * a->room + n * 2 * half[k];
      attn_dft_fold_(a, to, b, n, (first + k) * wide, cols[k]);
      for (int64_t j = cols[k]; j < 2 * half[k]; j++) to[j] = 0.0f;
    }
  }
  for (int64_t k = 0; k < some; k++)
    attn_fft_run_(&a->by_row, a->table, x + k * a->room, half[k], (int)half[k]);
  for (int64_t t = 0; t <= len / 2; t++)
    for (int64_t k = 0; k < some; k++)
      attn_dft_part_(a, x + k * a->room, b, t, (first + k) * wide, cols[k], half[k]);
}

enum { ATTN_DFT_PAIRS_ = ATTN_TILE_ / 2 };

/* to[c][lane] = numbers of n rows of F from `at` on, times by. */
ATTN_FUNC_ void attn_dft_pack_(const attn_table_ *f, float *to, char *const *rows, int64_t at,
                               int n, int64_t dim, float by) {
  const void *from[ATTN_DFT_PAIRS_] = {NULL};
  for (int i = 0; i < n; i++) from[i] = rows[i] + at * (int64_t)sizeof(float);
  if (dim) f->pack(to, from, n, dim, (int)ATTN_F32, by, 0.0f);
}

/* Pairs of rows in an entry. Rows of two entries never meet: one would be rounded, or become NaN, with the
 * other. A last row without a partner is its own. */
ATTN_FUNC_ int64_t attn_dft_pairs_(int64_t len) { return (len / 2 + 2) / 2; }

/* Up to 32 pairs of rows of F become rows of y, and their mirror images. */
ATTN_FUNC_ void attn_dft_rows_item_(void *job, int worker, int64_t index) {
  const attn_dft_ *a = (const attn_dft_ *)job;
  const attn_table_ *f = a->table;
  const int64_t len = a->by_row.n, dm = a->x.dim, top = dm / 2, last = (dm - 1) / 2;
  const int64_t pairs = attn_dft_pairs_(len), p0 = index * ATTN_DFT_PAIRS_;
  const int64_t left = a->entries * pairs - p0;
  const int n = left < ATTN_DFT_PAIRS_ ? (int)left : (int)ATTN_DFT_PAIRS_;
  const int lanes = (int)attn_groups_up_(n);
  char *own = a->memory + worker * a->each;
  char *from[2][ATTN_DFT_PAIRS_], *to[2][2][ATTN_DFT_PAIRS_];
  float *x = (float *)(void *)own, *im = (float *)(void *)(own + a->at_im);
  for (int k = 0; k < 2; k++) {
    for (int i = 0; i < n; i++) {
      const int64_t b = a->first + (p0 + i) / pairs, t0 = 2 * ((p0 + i) % pairs);
      const int64_t t = t0 + k <= len / 2 ? t0 + k : t0;
      from[k][i] = attn_at_(&a->f, b, 0, t), to[0][k][i] = attn_at_(&a->y, b, 0, t);
      to[1][k][i] = attn_at_(&a->y, b, 0, t ? len - t : 0);
    }
  }
  /* Z = A + i B for rows A and B of F, whose transforms are real. What i makes of imaginary parts is in
   * `im`; in column -m it is the opposite. */
  attn_dft_pack_(f, x, from[0], 0, n, top + 1, 0.25f);
  attn_dft_pack_(f, x + ATTN_DFT_PAIRS_, from[1], 0, n, top + 1, 0.25f);
  attn_dft_pack_(f, im, from[1], top + 1, n, last, 0.25f);
  attn_dft_pack_(f, im + ATTN_DFT_PAIRS_, from[0], top + 1, n, last, -0.25f);
  const int parts = lanes == ATTN_DFT_PAIRS_ ? 1 : 2, wide = parts == 1 ? ATTN_TILE_ : lanes;
  for (int64_t m = 1; m <= last; m++) {
    float *z = x + m * ATTN_TILE_, *v = x + (dm - m) * ATTN_TILE_, *i = im + (m - 1) * ATTN_TILE_;
    for (int l = 0; l < parts * ATTN_DFT_PAIRS_; l += ATTN_DFT_PAIRS_) {
      f->blend(v + l, z + l, i + l, ATTN_F32, ATTN_F32, ATTN_F32, wide, 1.0f, 1.0f);
      f->blend(z + l, z + l, i + l, ATTN_F32, ATTN_F32, ATTN_F32, wide, 1.0f, -1.0f);
    }
  }
  attn_fft_run_(&a->by_col, f, x, ATTN_DFT_PAIRS_, lanes);
  for (int back = 0; back < 2; back++) {
    for (int64_t c0 = 0; c0 < dm; c0 += ATTN_TILE_) { /* columns in order, in the place of im */
      const int64_t cols = dm - c0 < ATTN_TILE_ ? dm - c0 : ATTN_TILE_;
      for (int64_t i = 0; i < cols; i++) {
        const int64_t c = back && c0 + i ? dm - c0 - i : c0 + i;
        memcpy(im + i * ATTN_TILE_, x + attn_fft_row_(&a->by_col, c) * ATTN_TILE_,
               ATTN_TILE_ * sizeof(float));
      }
      for (int k = 0; k < 2; k++) {
        void *out[ATTN_DFT_PAIRS_];
        for (int i = 0; i < n; i++) out[i] = to[back][k][i] + attn_bytes_(a->y.dtype, c0);
        f->unpack(out, im + k * ATTN_DFT_PAIRS_, n, cols, a->y.dtype, NULL);
      }
    }
  }
}

/* Rows from len on of an entry are 0. */
ATTN_COLD_ void attn_dft_clear_(const attn_tensor *y, int64_t b, int64_t len) {
  for (int64_t i = len; i < y->len; i++)
    memset(attn_at_(y, b, 0, i), 0, (size_t)attn_bytes_(y->dtype, y->dim));
}

/* Complex columns that are transformed together: 32, but 16 of more than 2048 rows, for the second cache.
 * Which columns meet depends on the entry alone. */
enum { ATTN_DFT_TALL_ = 2048 };
ATTN_COLD_ int64_t attn_dft_wide_(int64_t rows, int64_t dm) {
  return dm / 2 < 2 * ATTN_GROUP_ || rows > ATTN_DFT_TALL_ ? ATTN_GROUP_ : 2 * ATTN_GROUP_;
}

ATTN_COLD_ int attn_dft_fast_(attn_stage_ *s, attn_tensor y, attn_tensor x, const int32_t *x_len) {
  const int64_t len = x.len, dm = x.dim, top = dm / 2;
  const int64_t rows = attn_fft_rows_(len, x_len != NULL), cols = attn_fft_rows_(dm, 0);
  attn_dft_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.y = y, a.x = x;
  a.f = y.dtype == ATTN_F32 ? y : attn_stage_tensor_(s, y.batch, 1, len / 2 + 1, dm);
  attn_fft_take_(&a.by_row, s, len, rows);
  attn_fft_take_(&a.by_col, s, dm, cols);
  a.at_im = attn_piece_(attn_mul_(cols, ATTN_TILE_), sizeof(float));
  a.each = attn_add_(
      a.at_im,
      attn_piece_(attn_mul_(top < ATTN_TILE_ ? ATTN_TILE_ : top, ATTN_TILE_), sizeof(float)));
  /* the blocks of one item, of this length or a shorter one */
  const int64_t wide = 4 * ATTN_GROUP_, limit = ATTN_DFT_BLOCKS_ * wide;
  const int64_t some = attn_mul_(rows, top + wide < limit ? top + wide : limit);
  const int64_t most = attn_add_(some, ATTN_DFT_BLOCKS_ * ATTN_DFT_GAP_);
  int64_t blocks = attn_add_(attn_mul_(rows, 2 * attn_dft_wide_(rows, dm)), ATTN_DFT_GAP_);
  if (blocks < ATTN_DFT_ROOM_) blocks = most < ATTN_DFT_ROOM_ ? most : (int64_t)ATTN_DFT_ROOM_;
  if (a.each < attn_piece_(blocks, sizeof(float))) a.each = attn_piece_(blocks, sizeof(float));
  for (int64_t b = 0; b < x.batch; b += a.entries) {
    const int64_t n = x_len && s->run ? x_len[b] : len;
    a.first = b, a.entries = 1;
    while (b + a.entries < x.batch && (!x_len || !s->run || x_len[b + a.entries] == n)) a.entries++;
    if (s->run) {
      for (int64_t i = 0; i < a.entries; i++) attn_dft_clear_(&y, b + i, n);
      if (n == 0) continue;
      float *spare = (float *)(void *)attn_stage_spare_(s, 0);
      attn_fft_open_(&a.by_row, s->table, n, spare);
      attn_fft_open_(&a.by_col, s->table, dm, spare);
    }
    /* a shorter entry may need more rows, and has then more blocks: what is measured suffices for any */
    const int64_t m = s->run ? attn_fft_rows_(n, 0) : rows;
    a.wide = attn_dft_wide_(m, dm), a.room = attn_add_(attn_mul_(m, 2 * a.wide), ATTN_DFT_GAP_);
    a.blocks = (top + 2 * a.wide) / (2 * a.wide);
    a.at_once = ATTN_DFT_ROOM_ / a.room;
    if (a.at_once > ATTN_DFT_BLOCKS_) a.at_once = ATTN_DFT_BLOCKS_;
    const int64_t share = attn_mul_(a.entries, a.blocks) / s->workers;
    if (a.at_once > share) a.at_once = share;
    if (a.at_once < 1) a.at_once = 1;
    a.runs = (a.blocks + a.at_once - 1) / a.at_once;
    const int64_t tiles =
        (attn_mul_(a.entries, attn_dft_pairs_(n)) + ATTN_DFT_PAIRS_ - 1) / ATTN_DFT_PAIRS_;
    if (!attn_stage_for_(s, attn_mul_(a.entries, a.runs), attn_dft_columns_item_, &a, a.each,
                         &a.memory) ||
        !attn_stage_for_(s, tiles, attn_dft_rows_item_, &a, a.each, &a.memory))
      return 0;
  }
  return 1;
}

/* ---- products ------------------------------------------------------------------------------------*/

/* Rows of matrices of cosines and sines. */
typedef struct attn_waves_ {
  const float *root; /* [n] */
  float *cosine, *sine;
  int64_t n, stride, first; /* of the matrix: columns, from row to row; its row 0 is row `first` */
  float sign;               /* of the sines */
} attn_waves_;

ATTN_FUNC_ void attn_waves_item_(void *job, int worker, int64_t index) {
  const attn_waves_ *a = (const attn_waves_ *)job;
  const int64_t step = a->first + index;
  float *c = a->cosine + index * a->stride, *s = a->sine + index * a->stride;
  (void)worker;
  for (int64_t k = 0, at = 0; k < a->n; k++) {
    c[k] = a->root[2 * at], s[k] = a->sign * a->root[2 * at + 1];
    at += step;
    if (at >= a->n) at -= a->n;
  }
}

/* P = [x C ; x S] with the matrices of dm, then rows of y = [C, -S] P with those of N. */
ATTN_COLD_ int attn_dft_dense_(attn_stage_ *s, attn_tensor y, attn_tensor x, const int32_t *x_len) {
  const int64_t len = x.len, dm = x.dim, most = len < dm ? len : dm < 96 ? 96 : dm;
  const int64_t many = most < len ? most : len;
  float *root = (float *)attn_stage_take_(s, len > dm ? len : dm, 8);
  const attn_tensor w = attn_stage_tensor_(s, 1, 2, dm, dm);
  const attn_tensor room = attn_stage_tensor_(s, 1, 2, len, dm);
  const attn_tensor some = attn_stage_tensor_(s, 1, 1, many, attn_mul_(2, len));
  attn_waves_ a = {root, (float *)w.data, NULL, dm, dm, 0, 1.0f};
  a.sine = a.cosine;
  if (s->run) {
    a.sine += dm * dm;
    for (int64_t k = 0; k < dm; k++) attn_root_(root + 2 * k, k, dm);
  }
  if (!attn_stage_for_(s, dm, attn_waves_item_, &a, 0, NULL)) return 0;
  for (int64_t b = 0; b < (s->run ? x.batch : 1); b++) { /* the longest entry wants most */
    const int64_t n = s->run && x_len ? x_len[b] : len;
    const attn_tensor xb = attn_stage_rows_(attn_stage_entry_(x, b), 0, n);
    const attn_tensor yb = attn_stage_rows_(attn_stage_entry_(y, b), 0, n);
    const attn_tensor p = attn_bhtd(room.data, ATTN_F32, 1, 2, n, dm);
    if (s->run) attn_dft_clear_(&y, b, n);
    if (n == 0) continue;
    if (s->run)
      for (int64_t k = 0; k < n; k++) attn_root_(root + 2 * k, k, n);
    attn_tensor both = xb; /* for both matrices */
    both.heads = 2, both.stride_head = 0;
    if (!attn_stage_gemm_(s, p, both, w, NULL)) return 0;
    for (int64_t i = 0, rows; i < n; i += rows) {
      rows = n - i < many ? n - i : many;
      const attn_tensor t = attn_bhtd(some.data, ATTN_F32, 1, 1, rows, 2 * n);
      attn_waves_ c = {root, (float *)t.data, NULL, n, 2 * n, i, -1.0f};
      c.sine = c.cosine;
      if (s->run) c.sine += n;
      if (!attn_stage_for_(s, rows, attn_waves_item_, &c, 0, NULL) ||
          !attn_stage_gemm_(s, attn_stage_rows_(yb, i, rows), t,
                            attn_bhtd(p.data, ATTN_F32, 1, 1, 2 * n, dm), NULL))
        return 0;
    }
  }
  return 1;
}

/* y = fourier(x). */
ATTN_COLD_ int attn_stage_fourier_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                   const attn_fourier_params *p) {
  const int64_t mark = s->used;
  if (p->form == ATTN_FOURIER_GEMM ? !attn_dft_dense_(s, y, x, p->x_len)
                                   : !attn_dft_fast_(s, y, x, p->x_len))
    return 0;
  attn_stage_back_(s, mark);
  return 1;
}

/* ---- calls ---------------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_fourier_check_(attn_error_ *e, attn_fourier_job_ *j, const attn_ctx *ctx,
                                   const attn_table_ **table, int *workers) {
  static const char wx[] = ATTN_WORDS_("x"), wy[] = ATTN_WORDS_("y");
  const int64_t most = (int64_t)1 << 27, any = ATTN_ANY_, b = j->x.batch, t = j->x.len,
                dm = j->x.dim;
  attn_fourier_params *p = &j->par.mix;
  attn_operand_ op[2 + ATTN_FEED_OPERANDS_] = {
      ATTN_OPERAND_AS_(&j->x, wx, 0, any, 1, any, any, "x must be [B, 1, T, dm]"),
      ATTN_OPERAND_AS_(&j->y, wy, ATTN_OUT_, b, 1, t, dm, "y must be [x.batch, 1, x.len, x.dim]")};
  int count = 2;
  attn_arrays_ more;
  memset(&more, 0, sizeof more);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!attn_check_given_(e, op, 2)) return 0;
  if (t < 1) return attn_reject_(e, ATTN_E_SHAPE, "x.len must be at least 1");
  for (int i = 0; i < 2; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (t > most || dm > most)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len and x.dim must be at most 2^27");
  if ((int)p->form < 0 || p->form >= ATTN_FOURIER_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.form must be an attn_fourier_form");
  if (!attn_check_cut_(e, p->x_len, b, t, "params.x_len must be aligned to its elements",
                       "params.x_len must lie in 0..x.len", &more))
    return 0;
  if (j->block) {
    if (j->par.ff.activation == ATTN_ACT_DEFAULT) j->par.ff.activation = ATTN_ACT_GELU;
    if (!attn_check_feed_(e, &j->par.ff, *table, ATTN_PLACE_, 1, dm, dm, op + count) ||
        !attn_check_norm_(e, &j->par.norm_1, dm, &more) ||
        !attn_check_norm_(e, &j->par.norm_2, dm, &more))
      return 0;
    count += ATTN_FEED_OPERANDS_;
  }
  return attn_check_apart_(e, ctx, op, count, more.span, more.n);
}

ATTN_COLD_ int attn_fourier_steps_(attn_stage_ *s, void *job) {
  const attn_fourier_job_ *j = (const attn_fourier_job_ *)job;
  return attn_stage_fourier_(s, j->y, j->x, &j->par.mix);
}

/* h = norm_1(x + fourier(x)), y = norm_2(h + ff(h)), entry by entry where they are not equally long. */
ATTN_COLD_ int attn_fnet_steps_(attn_stage_ *s, void *job) {
  const attn_fourier_job_ *j = (const attn_fourier_job_ *)job;
  const attn_fnet_params *par = &j->par;
  const int32_t *x_len = par->mix.x_len;
  const attn_tensor all = attn_stage_part_(s, &j->y);
  const attn_surround_ around = attn_surround_of_(ATTN_SUBLAYER_POST, &par->norm_2);
  if (!attn_stage_fourier_(s, all, j->x, &par->mix)) return 0;
  for (int64_t b = 0; b < (x_len && s->run ? j->x.batch : 1); b++) {
    attn_tensor x = j->x, h = all, y = j->y;
    if (x_len) {
      const int64_t n = s->run ? x_len[b] : x.len;
      if (s->run) attn_dft_clear_(&y, b, n);
      x = attn_stage_rows_(attn_stage_entry_(x, b), 0, n);
      h = attn_stage_rows_(attn_stage_entry_(h, b), 0, n);
      y = attn_stage_rows_(attn_stage_entry_(y, b), 0, n);
    }
    if (!attn_stage_norm_(s, h, h, x, &par->norm_1) ||
        !attn_stage_feed_forward_(s, y, h, &par->ff, 0, &around))
      return 0;
  }
  return 1;
}

ATTN_COLD_ attn_status attn_fourier_job_call_(attn_fourier_job_ *j, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_fourier_check_(&e, j, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const int dense = j->par.mix.form == ATTN_FOURIER_GEMM;
    if (j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no batch entries");
    } else {
      attn_stage_call_(&s, ctx, j->block ? attn_fnet_steps_ : attn_fourier_steps_, j,
                       dense ? "Fourier transform, products" : "Fourier transform, mixed radices",
                       bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_fourier_call_(attn_tensor y, attn_tensor x,
                                          const attn_fourier_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_fourier_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (params) j.par.mix = *params;
  return attn_fourier_job_call_(&j, ctx, bytes);
}

ATTN_CALL_(attn_fourier, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_fourier_params *params)

ATTN_COLD_ attn_status attn_fnet_call_(attn_tensor y, attn_tensor x, const attn_fnet_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_fourier_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.block = 1;
  if (params) {
    j.par = *params;
    return attn_fourier_job_call_(&j, ctx, bytes);
  }
  attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_fnet, (y, x, params), attn_tensor y, attn_tensor x, const attn_fnet_params *params)
