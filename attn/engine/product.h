/* engine/product.h owns products of rows with a matrix, which many rows read from panels of 64 columns and few
 * where it lies (the fewest as engine/stored.h has it). The kernel goes over all rows with a strip of columns, as
 * wide as its registers, that stays in the first cache: 16 KB, or 32 where a strip is a whole panel. Narrow strips
 * of a matrix in place have lines far apart, which would push each other out of the cache, so that a panel of them
 * is copied at once; a transposed one is turned. A sum over more elements than a strip is deep goes on where Y is:
 * one chain all the same, so that all ways give the same bits. */

/* Rows from which on panels pay, narrow strips that are copied, and those that are turned; measured. */
enum { ATTN_COPY_ROWS_ = 192, ATTN_STRIP_ROWS_ = 20, ATTN_TURN_ROWS_ = 9 };
/* From first to last: a matrix that the first cache holds as it lies. */
enum { ATTN_NEAR_FLOATS_ = 4096 };

/* Columns and rows of a strip. */
ATTN_FUNC_ int attn_matrix_strip_(const attn_matrix_ *m, const attn_table_ *f) {
  return m->strip ? m->strip : attn_on_(dense, f)->strip;
}
ATTN_FUNC_ int64_t attn_strip_deep_(int strip) {
  return strip == ATTN_PANEL_ ? (int64_t)ATTN_DEEP_ : (int64_t)2 * ATTN_DEEP_;
}

/* Row k of the strip from column c on. */
ATTN_FUNC_ float *attn_matrix_at_(const attn_matrix_ *m, int64_t matrix, int64_t c, int64_t k,
                                  int strip) {
  return m->packed + matrix * m->one + (c - m->direct) * m->k + k * strip;
}

/* m, which has its tensor and is zero but for that, for so many products, each with so many rows; packed is still
 * to be set. */
ATTN_FUNC_ void attn_matrix_open_(attn_matrix_ *m, int transposed, int64_t rows, int64_t products) {
  const attn_tensor *w = &m->w;
  m->transposed = transposed;
  m->k = transposed ? w->dim : w->len, m->n = transposed ? w->len : w->dim;
  m->direct = m->panels = m->one = 0;
  m->in_turn = transposed && attn_mul_(rows, products) < ATTN_COPY_ROWS_;
  if (m->in_turn) return;
  if (w->dtype == ATTN_F32 && !transposed && rows < ATTN_COPY_ROWS_) m->direct = m->n / 16 * 16;
  if (w->dtype != ATTN_F32 && !transposed && rows <= ATTN_STORED_FEW_) m->direct = m->n / 32 * 32;
  if (m->direct == m->n) return;
  m->panels = attn_add_(m->n - m->direct, ATTN_PANEL_ - 1) / ATTN_PANEL_;
  m->one = attn_mul_(m->panels, attn_mul_(m->k, ATTN_PANEL_));
}
ATTN_FUNC_ attn_matrix_ attn_matrix_of_(attn_tensor w, int transposed, int64_t rows,
                                        int64_t products) {
  attn_matrix_ m;
  memset(&m, 0, sizeof m);
  m.w = w;
  attn_matrix_open_(&m, transposed, rows, products);
  return m;
}

/* A matrix of which nothing is laid out: for parts of it that one item reads, strip by strip. */
ATTN_FUNC_ attn_matrix_ attn_matrix_loose_(attn_tensor w, int transposed, int64_t rows) {
  attn_matrix_ m;
  memset(&m, 0, sizeof m);
  m.w = w, m.transposed = m.in_turn = transposed;
  m.k = transposed ? w.dim : w.len, m.n = transposed ? w.len : w.dim;
  if (transposed) return m;
  if (w.dtype == ATTN_F32) m.direct = m.n / 16 * 16;
  if (w.dtype != ATTN_F32 && rows <= ATTN_STORED_FEW_) m.direct = m.n / 32 * 32;
  return m;
}

/* The same for products of bf16 or f16, which read panels alone. */
ATTN_FUNC_ void attn_matrix_narrow_(attn_matrix_ *m, const attn_low_table_ *low) {
  m->low = low, m->direct = 0, m->in_turn = 0;
  m->panels = attn_add_(m->n, ATTN_PANEL_ - 1) / ATTN_PANEL_;
  m->one = attn_mul_(m->panels, attn_mul_(m->k / 2 + m->k % 2 + (low->peaks != 0), ATTN_PANEL_));
}

/* The same of a weight that attn_turn_ has seen. */
ATTN_FUNC_ attn_matrix_ attn_weight_matrix_(attn_tensor w, int64_t rows, int64_t products) {
  const int transposed = attn_turn_back_(&w);
  return attn_matrix_of_(w, transposed, rows, products);
}

ATTN_FUNC_ int64_t attn_matrix_bytes_(const attn_matrix_ *m) {
  return attn_piece_(attn_mul_(attn_mul_(m->w.batch, m->w.heads), m->one), sizeof(float));
}

typedef struct attn_lay_ {
  const attn_table_ *table;
  const attn_matrix_ *m;
} attn_lay_;

/* Rows k .. k + n - 1 of `cols` columns from c on, as f32 in rows of 64; cleared where there are fewer. */
ATTN_FUNC_ void attn_lay_rows_(const attn_lay_ *a, const attn_matrix_part_ *part, float *to) {
  const attn_matrix_ *m = a->m;
  const int cols = (int)(part->c1 - part->c0);
  const int64_t c = part->c0;
  if (ATTN_HAS_QUANTIZE && m->run) {
    float by[ATTN_PANEL_];
    attn_codes_strip_(a->table, m, part, to, ATTN_PANEL_, by, NULL);
    for (int64_t i = 0; i < part->depth; i++)
      for (int j = 0; j < cols; j++) to[i * ATTN_PANEL_ + j] *= by[j];
    return;
  }
  if (cols < ATTN_PANEL_) memset(to, 0, (size_t)(part->depth * ATTN_PANEL_) * sizeof(float));
  if (m->transposed) {
    const void *rows[ATTN_PANEL_];
    for (int i = 0; i < cols; i++)
      rows[i] = attn_at_(&m->w, part->b, part->h, c + i) + attn_bytes_(m->w.dtype, part->k0);
    attn_on_(dense, a->table)->turn(to, ATTN_PANEL_, rows, (int)m->w.dtype, part->depth, cols);
    return;
  }
  const int64_t at_once = cols == ATTN_PANEL_ ? part->depth : 1;
  for (int64_t i = 0; i < part->depth; i += at_once)
    a->table->widen(to + i * ATTN_PANEL_,
                    attn_at_(&m->w, part->b, part->h, part->k0 + i) + attn_bytes_(m->w.dtype, c),
                    m->w.stride_len, NULL, at_once, cols, m->w.dtype, NULL);
}

/* Whether a transposed w has pairs in memory that can be turned as words, which vectors move as they are. */
ATTN_FUNC_ int attn_lay_words_(const attn_lay_ *a) {
#ifdef ATTN_BIG_ENDIAN_
  (void)a;
  return 0;
#else
  const attn_tensor *w = &a->m->w;
  return a->table->isa != ATTN_ISA_SCALAR && a->m->transposed && w->dtype == ATTN_BF16 &&
         !a->m->low->peaks && w->dim % 2 == 0 && (uintptr_t)w->data % 4 == 0 &&
         (w->stride_batch | w->stride_head | w->stride_len) % 2 == 0;
#endif
}

/* Where the powers of a panel's columns are. */
ATTN_FUNC_ int16_t *attn_panel_powers_(const attn_matrix_ *m, const float *panel) {
  return (int16_t *)(uintptr_t)(panel + (m->k / 2 + m->k % 2) * ATTN_PANEL_);
}

/* The powers of a panel's columns, and what they are then times: 1 of f16 that is stored. */
ATTN_FUNC_ void attn_lay_powers_(const attn_lay_ *a, attn_matrix_part_ part, int16_t *power,
                                 int16_t *by, float *some) {
  const attn_matrix_ *m = a->m;
  float top[ATTN_PANEL_] = {0};
  for (; m->w.dtype != ATTN_F16 && part.k0 < m->k; part.k0 += 32) {
    part.depth = m->k - part.k0 < 32 ? m->k - part.k0 : 32;
    attn_lay_rows_(a, &part, some);
    attn_lane_peaks_(top, some, part.depth, ATTN_PANEL_);
  }
  (void)attn_lane_powers_(power, top);
  for (int i = 0; i < ATTN_PANEL_; i++) by[i] = (int16_t)-power[i];
}

/* A panel of one matrix as pairs of bf16 or f16: 64 columns or what is left, the rest 0. */
ATTN_FUNC_ void attn_lay_pairs_(const attn_lay_ *a, int64_t matrix, int64_t panel) {
  const attn_matrix_ *m = a->m;
  const int64_t c = m->direct + panel * ATTN_PANEL_;
  attn_matrix_part_ part = {matrix / m->w.heads, matrix % m->w.heads, 0, m->k, c, 0};
  float some[32 * ATTN_PANEL_];
  uint32_t *pairs =
      (uint32_t *)(void *)(m->packed + matrix * m->one + panel * (m->one / m->panels));
  part.c1 = m->n - c < ATTN_PANEL_ ? m->n : c + ATTN_PANEL_;
  if (attn_lay_words_(a)) {
    const void *rows[ATTN_PANEL_];
    const int cols = (int)(part.c1 - c);
    if (cols < ATTN_PANEL_) memset(pairs, 0, (size_t)(m->k / 2 * ATTN_PANEL_) * sizeof *pairs);
    for (int i = 0; i < cols; i++) rows[i] = attn_at_(&m->w, part.b, part.h, c + i);
    attn_on_(dense, a->table)
        ->turn((float *)(void *)pairs, ATTN_PANEL_, rows, (int)ATTN_F32, m->k / 2, cols);
    return;
  }
  int16_t by[ATTN_PANEL_];
  const float *to = (const float *)(const void *)pairs;
  if (m->low->peaks) attn_lay_powers_(a, part, attn_panel_powers_(m, to), by, some);
  for (; part.k0 < m->k; part.k0 += 32, pairs += 16 * ATTN_PANEL_) {
    part.depth = m->k - part.k0 < 32 ? m->k - part.k0 : 32;
    attn_lay_rows_(a, &part, some);
    if (m->low->peaks)
      attn_power_tile_(m->low, pairs, some, (int)part.depth, 0, 0, ATTN_PANEL_ / ATTN_GROUP_, NULL,
                       by);
    else
      m->low->pair_tile(pairs, some, part.depth, 0, 0, ATTN_PANEL_ / ATTN_GROUP_);
  }
}

/* Items of laying out one matrix. */
ATTN_FUNC_ int64_t attn_lay_items_(const attn_matrix_ *m) {
  return m->transposed || ATTN_PART_(LOW, m->low) ? m->panels
                                                  : (m->k + ATTN_LAY_ROWS_ - 1) / ATTN_LAY_ROWS_;
}

/* Some rows of one matrix, read side by side; transposed: a panel. */
ATTN_FUNC_ void attn_lay_item_(void *job, int worker, int64_t index) {
  const attn_lay_ *a = (const attn_lay_ *)job;
  const attn_matrix_ *m = a->m;
  const int64_t items = attn_lay_items_(m), matrix = index / items, at = index % items;
  const int64_t b = matrix / m->w.heads, h = matrix % m->w.heads;
  const int strip = m->strip;
  (void)worker;
  if (ATTN_PART_(LOW, m->low)) {
    attn_lay_pairs_(a, matrix, at);
    return;
  }
  if (!m->transposed) {
    const int64_t first = at * ATTN_LAY_ROWS_;
    const int64_t end = m->k - first < ATTN_LAY_ROWS_ ? m->k : first + ATTN_LAY_ROWS_;
    for (int64_t i = first, n; i < end; i += n) {
      n = end - i < 8 ? end - i : 8;
      for (int64_t c = m->direct; c < m->n; c += strip)
        attn_strip_copy_(a->table, m, attn_at_(&m->w, b, h, i) + attn_bytes_(m->w.dtype, c),
                         attn_matrix_at_(m, matrix, c, i, strip), strip, n,
                         m->n - c < strip ? (int)(m->n - c) : strip);
    }
    return;
  }
  for (int64_t c = at * ATTN_PANEL_; c < m->n && c < (at + 1) * ATTN_PANEL_; c += strip) {
    const int cols = m->n - c < strip ? (int)(m->n - c) : strip;
    float *to = attn_matrix_at_(m, matrix, c, 0, strip);
    const void *rows[ATTN_PANEL_];
    if (cols < strip) memset(to, 0, (size_t)(m->k * strip) * sizeof(float));
    for (int i = 0; i < cols; i++) rows[i] = attn_at_(&m->w, b, h, c + i);
    attn_on_(dense, a->table)->turn(to, strip, rows, (int)m->w.dtype, m->k, cols);
  }
}

/* Lays out the panels, in memory of attn_matrix_bytes_. */
ATTN_FUNC_ void attn_matrix_lay_(attn_matrix_ *m, const attn_table_ *table, void *memory,
                                 const attn_ctx *ctx, int workers) {
  attn_lay_ a = {table, m};
  const int64_t count = m->panels ? m->w.batch * m->w.heads * attn_lay_items_(m) : 0;
  m->packed = (float *)memory;
  m->strip = attn_matrix_strip_(m, table);
  if (count) attn_for_(ctx, attn_pieces_(workers, count), count, attn_lay_item_, &a);
}

/* The same for a matrix of which few rows of x read turned squares. */
ATTN_FUNC_ void attn_matrix_turn_(const attn_table_ *f, const attn_matrix_ *m,
                                  const attn_matrix_part_ *part, float *y, int64_t y_stride,
                                  attn_floats_ x, int start) {
  const void *w[ATTN_PANEL_];
  attn_turned_product_ p = {y,           x.p, y_stride,        x.stride, x.rows,
                            part->depth, w,   (int)m->w.dtype, 0,        start};
  for (int64_t c = part->c0; c < part->c1; c += p.cols, p.y += p.cols) {
    p.cols = part->c1 - c < ATTN_TURN_COLS_ ? (int)(part->c1 - c) : (int)ATTN_TURN_COLS_;
    for (int i = 0; i < p.cols; i++)
      w[i] = attn_at_(&m->w, part->b, part->h, c + i) + attn_bytes_(m->w.dtype, part->k0);
    attn_on_(dense, f)->gemm_turned(&p);
  }
}

/* The columns of a part, no more than a strip, as rows of floats: in place, in panels or in `own`. */
ATTN_FUNC_ attn_floats_ attn_matrix_columns_(const attn_table_ *f, const attn_matrix_ *m,
                                             const attn_matrix_part_ *p, int strip, float *own) {
  attn_floats_ to = attn_floats_at_(own, strip, p->depth);
  if (m->in_turn) {
    const int cols = (int)(p->c1 - p->c0);
    const void *w[ATTN_PANEL_];
    for (int i = 0; i < cols; i++)
      w[i] = attn_at_(&m->w, p->b, p->h, p->c0 + i) + attn_bytes_(m->w.dtype, p->k0);
    attn_on_(dense, f)->turn(own, strip, w, (int)m->w.dtype, p->depth, cols);
  } else if (p->c0 >= m->direct && m->panels) {
    to.p = attn_matrix_at_(m, p->b * m->w.heads + p->h, p->c0, p->k0, strip);
  } else {
    const char *from = attn_at_(&m->w, p->b, p->h, p->k0) + attn_bytes_(m->w.dtype, p->c0);
    if (m->w.dtype == ATTN_F32 && p->c0 < m->direct)
      to.p = (const float *)(const void *)from, to.stride = m->w.stride_len;
    else
      attn_strip_copy_(f, m, from, own, strip, p->depth, (int)(p->c1 - p->c0));
  }
  return to;
}

/* Columns that are read in place, up to a panel, as narrow strips one after the other: each line of W is read once,
 * beside its neighbours. */
ATTN_FUNC_ void attn_matrix_copy_(const attn_matrix_ *m, const attn_matrix_part_ *p, int strip,
                                  float *own) {
  const float *from = (const float *)(const void *)attn_at_(&m->w, p->b, p->h, p->k0) + p->c0;
  const int64_t cols = p->c1 - p->c0, one = p->depth * strip;
  for (int64_t i = 0; i < p->depth; i++, from += m->w.stride_len, own += strip)
    for (int64_t c = 0, at = 0; c < cols; c += strip, at += one)
      for (int64_t e = 0; e < strip; e += 16) memcpy(own + at + e, from + c + e, 16 * sizeof *own);
}

/* y = (start ? 0 : y) + by (x w) of a strip of codes, some rows at a time: the sums stay in the first cache. */
ATTN_FUNC_ void attn_matrix_run_(const attn_table_ *f, const attn_matrix_part_ *p, float *y,
                                 int64_t y_stride, attn_floats_ x, const float *w, int strip,
                                 const float *by, int start) {
  enum { ROWS = 24, FLOATS = ROWS * 64 };
  float sum[FLOATS];
  for (int64_t r = 0, some; r < x.rows; r += some) {
    some = x.rows - r < ROWS ? x.rows - r : (int64_t)ROWS;
    attn_on_(dense, f)->gemm(sum, strip, some, x.p + r * x.stride, x.stride, 1, w, strip, p->depth,
                             strip, 1);
    attn_on_(dense, f)->join_runs(y + r * y_stride, y_stride, sum, strip, by, some,
                                  (int)(p->c1 - p->c0), start);
  }
}

/* y[r][c - c0] = (start ? 0 : y) + sum_k x[r][k] w[k0 + k][c], strip by strip */
ATTN_FUNC_ void attn_matrix_strips_(const attn_table_ *f, const attn_matrix_ *m,
                                    const attn_matrix_part_ *part, float *y, int64_t y_stride,
                                    attn_floats_ x, int start) {
  const int strip = attn_matrix_strip_(m, f);
  const int copied = part->c0 < m->direct && m->w.dtype == ATTN_F32 && strip < ATTN_PANEL_ &&
                     x.rows >= ATTN_STRIP_ROWS_ &&
                     part->depth * attn_abs64_(m->w.stride_len) > ATTN_NEAR_FLOATS_;
  const int64_t deep = ATTN_HAS_QUANTIZE && m->run ? m->run
                       : copied                    ? (int64_t)ATTN_DEEP_
                                                   : attn_strip_deep_(strip);
  attn_matrix_part_ p = *part;
  float own[ATTN_STRIP_FLOATS_], by[ATTN_PANEL_];
  if (m->in_turn && x.rows < ATTN_TURN_ROWS_) {
    attn_matrix_turn_(f, m, &p, y, y_stride, x, start);
    return;
  }
  for (int64_t k = 0; k < part->depth; k += p.depth) {
    p.k0 = part->k0 + k, p.depth = part->depth - k < deep ? part->depth - k : deep;
    for (int64_t c = part->c0; c < part->c1; c = p.c1) {
      const int64_t end = c < m->direct && part->c1 > m->direct ? m->direct : part->c1;
      const int64_t wide = copied && c < m->direct ? (int64_t)ATTN_PANEL_ : (int64_t)strip;
      attn_floats_ w = attn_floats_at_(own, strip, p.depth);
      p.c0 = c, p.c1 = end - c < wide ? end : c + wide;
      if (ATTN_HAS_QUANTIZE && m->run) {
        const attn_floats_ rows = {x.p + k, x.stride, x.rows};
        attn_codes_strip_(f, m, &p, own, strip, by, NULL);
        attn_matrix_run_(f, &p, y + (c - part->c0), y_stride, rows, own, strip, by,
                         start && k == 0);
        continue;
      }
      if (wide > strip)
        attn_matrix_copy_(m, &p, strip, own);
      else
        w = attn_matrix_columns_(f, m, &p, strip, own);
      for (int64_t at = c; at < p.c1; at += strip, w.p += p.depth * strip)
        attn_on_(dense, f)->gemm(y + (at - part->c0), y_stride, x.rows, x.p + k, x.stride, 1, w.p,
                                 w.stride, p.depth, p.c1 - at < strip ? p.c1 - at : strip,
                                 start && k == 0);
    }
  }
}

/* y[r][c - c0] = (start ? 0 : y) + sum_k x[r][k] w[k0 + k][c] */
ATTN_FUNC_ void attn_matrix_times_(const attn_table_ *f, const attn_matrix_ *m,
                                   const attn_matrix_part_ *part, float *y, int64_t y_stride,
                                   attn_floats_ x, int start) {
  attn_matrix_part_ p = *part, some;
  if (m->w.batch <= 1) p.b = 0;
  if (m->w.heads <= 1) p.h = 0;
  some = p;
  if (attn_stored_part_(f, m, x.rows, &some)) {
    const int64_t cols = some.c1 - some.c0, depth = some.depth;
    attn_stored_times_(f, m, &some, y, y_stride, x, start);
    some.k0 += depth, some.depth = p.depth - depth;
    if (some.depth)
      attn_matrix_strips_(f, m, &some, y, y_stride, attn_floats_at_(x.p + depth, x.stride, x.rows),
                          0);
    p.c0 += cols, y += cols;
  }
  if (p.c0 < p.c1) attn_matrix_strips_(f, m, &p, y, y_stride, x, start);
}

/* Rows of pairs, step bytes apart; of f16 their powers, null = 0. */
typedef struct attn_halves_ {
  const void *x;
  int64_t step, rows;
  const int16_t *power;
} attn_halves_;

/* The same of bf16 or f16; whole groups of 16 columns of y are written. */
ATTN_FUNC_ void attn_matrix_times_low_(const attn_matrix_ *m, const attn_matrix_part_ *part,
                                       float *y, int64_t y_stride, const attn_halves_ *x) {
  const int64_t wb = m->w.batch > 1 ? part->b : 0, wh = m->w.heads > 1 ? part->h : 0;
  const int64_t one = m->one / m->panels;
  attn_pair_dots_ d;
  memset(&d, 0, sizeof d);
  float unit[2 * ATTN_PANEL_];
  d.ys = y_stride, d.row = x->step, d.step = sizeof(uint32_t);
  d.n = part->depth / 2 + part->depth % 2, d.start = part->k0 == 0;
  for (int64_t c = part->c0; c < part->c1; c += ATTN_PANEL_) {
    const int64_t cols = part->c1 - c < ATTN_PANEL_ ? part->c1 - c : (int64_t)ATTN_PANEL_;
    const float *w = m->packed + (wb * m->w.heads + wh) * m->one + c / ATTN_PANEL_ * one;
    d.x = (const uint32_t *)(const void *)w + part->k0 / 2 * ATTN_PANEL_;
    d.g1 = (int)((cols + ATTN_GROUP_ - 1) / ATTN_GROUP_);
    const int16_t *power = m->low->peaks ? attn_panel_powers_(m, w) : NULL;
    int any = 0;
    for (int i = 0; power && i < ATTN_PANEL_; i++) any |= power[i];
    for (int64_t r = 0, to; r < x->rows; r = to) { /* rows of one power at a time */
      to = x->power ? attn_powers_run_(x->power, r, x->rows) : x->rows;
      const int row = x->power ? x->power[r] : 0;
      d.unit = any || row ? unit : NULL;
      if (d.unit) attn_units_(unit, row, power, 1.0f);
      d.y = y + r * y_stride + (c - part->c0);
      d.b = (const char *)x->x + r * x->step, d.rows = to - r;
      m->low->pair_dots(&d);
    }
  }
}
