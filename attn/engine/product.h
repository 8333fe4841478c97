/* engine/product.h owns products of a few rows with a matrix, which is read in place, lies in panels of 64
 * columns or, transposed, is turned while few rows read it. A sum over more than 128 elements goes on where Y
 * is: one chain all the same, so that all three ways give the same bits. */

/* TURN_COLS: of a strip of 128 rows; few, so that rows of memory are read in long runs. */
enum { ATTN_PANEL_ = 64, ATTN_DEEP_ = 128, ATTN_TURN_COLS_ = 16 };
/* Rows from which on copying W pays, and turning a strip of it once for all of them; measured. */
enum { ATTN_COPY_ROWS_ = 192, ATTN_TURN_ROWS_ = 9 };

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
  int64_t direct;             /* columns that are read in place */
  int in_turn;                /* all columns are read in place and turned */
  int64_t panels, one;        /* of the others; floats of a matrix of them */
  float *packed;              /* [w.batch][w.heads][panels][k][64] */
  const attn_low_table_ *low; /* products of bf16: packed holds pairs, [..][k / 2][64] */
} attn_matrix_;

/* W for so many products, each with so many rows; packed is still to be set. */
ATTN_FUNC_ attn_matrix_ attn_matrix_of_(attn_tensor w, int transposed, int64_t rows,
                                        int64_t products) {
  attn_matrix_ m;
  memset(&m, 0, sizeof m);
  m.w = w, m.transposed = transposed;
  m.k = transposed ? w.dim : w.len, m.n = transposed ? w.len : w.dim;
  m.in_turn = transposed && attn_mul_(rows, products) < ATTN_COPY_ROWS_;
  if (m.in_turn) return m;
  if (w.dtype == ATTN_F32 && !transposed && rows < ATTN_COPY_ROWS_) m.direct = m.n / 16 * 16;
  m.panels = attn_add_(attn_sub_(m.n, m.direct), ATTN_PANEL_ - 1) / ATTN_PANEL_;
  m.one = attn_mul_(m.panels, attn_mul_(m.k, ATTN_PANEL_));
  return m;
}

/* The same for products of bf16, which read panels alone. */
ATTN_FUNC_ void attn_matrix_narrow_(attn_matrix_ *m, const attn_low_table_ *low) {
  m->low = low, m->direct = 0, m->in_turn = 0;
  m->panels = attn_add_(m->n, ATTN_PANEL_ - 1) / ATTN_PANEL_;
  m->one = attn_mul_(m->panels, attn_mul_(m->k / 2 + m->k % 2, ATTN_PANEL_));
}

/* The same of a weight that attn_turn_ has seen. */
ATTN_FUNC_ attn_matrix_ attn_weight_matrix_(attn_tensor w, int64_t rows, int64_t products) {
  const int transposed = attn_turn_back_(&w);
  return attn_matrix_of_(w, transposed, rows, products);
}

ATTN_FUNC_ int64_t attn_matrix_bytes_(const attn_matrix_ *m) {
  return attn_piece_(attn_mul_(attn_mul_(m->w.batch, m->w.heads), m->one), sizeof(float));
}

/* What a product reads: rows k0 .. k0 + depth - 1, columns c0 .. c1 - 1 of the matrix of a batch entry
 * and head; c0 is a multiple of 64. */
typedef struct attn_matrix_part_ {
  int64_t b, h, k0, depth, c0, c1;
} attn_matrix_part_;

typedef struct attn_lay_ {
  const attn_table_ *table;
  const attn_matrix_ *m;
} attn_lay_;

/* Rows k .. k + n - 1 of `cols` columns from c on, as f32 in rows of 64; cleared where there are fewer. */
ATTN_FUNC_ void attn_lay_rows_(const attn_lay_ *a, const attn_matrix_part_ *part, float *to) {
  const attn_matrix_ *m = a->m;
  const int cols = (int)(part->c1 - part->c0);
  const int64_t c = part->c0;
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
         w->dim % 2 == 0 && (uintptr_t)w->data % 4 == 0 &&
         (w->stride_batch | w->stride_head | w->stride_len) % 2 == 0;
#endif
}

/* A panel of one matrix: 64 columns or what is left, the rest 0. */
ATTN_FUNC_ void attn_lay_item_(void *job, int worker, int64_t index) {
  const attn_lay_ *a = (const attn_lay_ *)job;
  const attn_matrix_ *m = a->m;
  const int64_t matrix = index / m->panels, panel = index % m->panels;
  const int64_t c = m->direct + panel * ATTN_PANEL_;
  attn_matrix_part_ part = {matrix / m->w.heads, matrix % m->w.heads, 0, m->k, c, 0};
  float *to = m->packed + matrix * m->one + panel * (m->one / m->panels);
  (void)worker;
  part.c1 = m->n - c < ATTN_PANEL_ ? m->n : c + ATTN_PANEL_;
  if (!ATTN_PART_(LOW, m->low)) {
    attn_lay_rows_(a, &part, to);
    return;
  }
  if (attn_lay_words_(a)) {
    const void *rows[ATTN_PANEL_];
    const int cols = (int)(part.c1 - c);
    if (cols < ATTN_PANEL_) memset(to, 0, (size_t)(m->k / 2 * ATTN_PANEL_) * sizeof(float));
    for (int i = 0; i < cols; i++) rows[i] = attn_at_(&m->w, part.b, part.h, c + i);
    attn_on_(dense, a->table)->turn(to, ATTN_PANEL_, rows, (int)ATTN_F32, m->k / 2, cols);
    return;
  }
  float some[32 * ATTN_PANEL_];
  uint32_t *pairs = (uint32_t *)(void *)to;
  for (; part.k0 < m->k; part.k0 += 32, pairs += 16 * ATTN_PANEL_) {
    part.depth = m->k - part.k0 < 32 ? m->k - part.k0 : 32;
    attn_lay_rows_(a, &part, some);
    m->low->pair_tile(pairs, some, part.depth, 0, 0, ATTN_PANEL_ / ATTN_GROUP_);
  }
}

/* Lays out the panels, in memory of attn_matrix_bytes_. */
ATTN_FUNC_ void attn_matrix_lay_(attn_matrix_ *m, const attn_table_ *table, void *memory,
                                 const attn_ctx *ctx, int workers) {
  attn_lay_ a = {table, m};
  const int64_t count = m->w.batch * m->w.heads * m->panels;
  m->packed = (float *)memory;
  if (count) attn_for_(ctx, attn_pieces_(workers, count), count, attn_lay_item_, &a);
}

/* The same for a matrix that is turned while it is read. */
ATTN_FUNC_ void attn_matrix_turn_(const attn_table_ *f, const attn_matrix_ *m,
                                  const attn_matrix_part_ *part, float *y, int64_t y_stride,
                                  attn_floats_ x, int start) {
  float strip[ATTN_DEEP_ * ATTN_TURN_COLS_];
  const void *w[ATTN_TURN_COLS_];
  const int deep = x.rows < ATTN_TURN_ROWS_ ? 0 : ATTN_DEEP_;
  const attn_dense_table_ *d = attn_on_(dense, f);
  attn_turned_product_ p = {y,           x.p, y_stride,        x.stride, x.rows,
                            part->depth, w,   (int)m->w.dtype, 0,        start};
  for (int64_t c = part->c0; c < part->c1; c += p.cols, p.y += p.cols) {
    p.cols = part->c1 - c < ATTN_TURN_COLS_ ? (int)(part->c1 - c) : (int)ATTN_TURN_COLS_;
    if (!deep) {
      for (int i = 0; i < p.cols; i++)
        w[i] = attn_at_(&m->w, part->b, part->h, c + i) + attn_bytes_(m->w.dtype, part->k0);
      d->gemm_turned(&p);
    }
    for (int64_t k = 0, n; deep && k < part->depth; k += n) {
      n = part->depth - k < deep ? part->depth - k : deep;
      for (int i = 0; i < p.cols; i++)
        w[i] = attn_at_(&m->w, part->b, part->h, c + i) + attn_bytes_(m->w.dtype, part->k0 + k);
      d->turn(strip, ATTN_TURN_COLS_, w, p.kind, n, p.cols);
      d->gemm(p.y, y_stride, x.rows, x.p + k, x.stride, 1, strip, ATTN_TURN_COLS_, n, p.cols,
              start && k == 0);
    }
  }
}

/* y[r][c - c0] = (start ? 0 : y) + sum_k x[r][k] w[k0 + k][c] */
ATTN_FUNC_ void attn_matrix_times_(const attn_table_ *f, const attn_matrix_ *m,
                                   const attn_matrix_part_ *part, float *y, int64_t y_stride,
                                   attn_floats_ x, int start) {
  const int64_t wb = m->w.batch > 1 ? part->b : 0, wh = m->w.heads > 1 ? part->h : 0;
  const int64_t k0 = part->k0, depth = part->depth, c0 = part->c0, c1 = part->c1;
  if (m->in_turn) {
    const attn_matrix_part_ at = {wb, wh, k0, depth, c0, c1};
    attn_matrix_turn_(f, m, &at, y, y_stride, x, start);
    return;
  }
  for (int64_t k = 0; k < depth; k += ATTN_DEEP_) {
    const int64_t n = depth - k < ATTN_DEEP_ ? depth - k : (int64_t)ATTN_DEEP_;
    for (int64_t c = c0, cols; c < c1; c += cols) {
      const float *w;
      int64_t stride = ATTN_PANEL_;
      cols = c1 - c < ATTN_PANEL_ ? c1 - c : (int64_t)ATTN_PANEL_;
      if (c < m->direct) {
        if (m->direct - c < cols) cols = m->direct - c;
        w = (const float *)(const void *)attn_at_(&m->w, wb, wh, k0 + k) + c;
        stride = m->w.stride_len;
      } else {
        w = m->packed + (wb * m->w.heads + wh) * m->one +
            ((c - m->direct) / ATTN_PANEL_ * m->k + k0 + k) * ATTN_PANEL_;
      }
      attn_on_(dense, f)->gemm(y + (c - c0), y_stride, x.rows, x.p + k, x.stride, 1, w, stride, n,
                               cols, start && k == 0);
    }
  }
}

/* The same of bf16: x has pairs, `step` bytes from a row to the next; whole groups of 16 columns of y are
 * written. */
ATTN_FUNC_ void attn_matrix_times_low_(const attn_matrix_ *m, const attn_matrix_part_ *part,
                                       float *y, int64_t y_stride, int64_t rows, const void *x,
                                       int64_t step) {
  const int64_t wb = m->w.batch > 1 ? part->b : 0, wh = m->w.heads > 1 ? part->h : 0;
  const int64_t one = m->one / m->panels;
  attn_pair_dots_ d;
  memset(&d, 0, sizeof d);
  d.ys = y_stride, d.b = x, d.row = step, d.step = sizeof(uint32_t), d.rows = rows;
  d.n = part->depth / 2 + part->depth % 2, d.start = part->k0 == 0;
  for (int64_t c = part->c0; c < part->c1; c += ATTN_PANEL_) {
    const int64_t cols = part->c1 - c < ATTN_PANEL_ ? part->c1 - c : (int64_t)ATTN_PANEL_;
    const float *w = m->packed + (wb * m->w.heads + wh) * m->one + c / ATTN_PANEL_ * one;
    d.y = y + (c - part->c0);
    d.x = (const uint32_t *)(const void *)w + part->k0 / 2 * ATTN_PANEL_;
    d.g1 = (int)((cols + ATTN_GROUP_ - 1) / ATTN_GROUP_);
    m->low->pair_dots(&d);
  }
}
