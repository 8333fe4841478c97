/* engine/code_product.h owns products of rows with a matrix of codes in whole numbers: params.compute =
 * ATTN_COMPUTE_I8 of attn_gemm. Each run of a row, as the matrix has them (engine/matrix.h), becomes codes with a
 * scale before the product; rows with a number that codes cannot hold are left to products in f32. */

/* Rows of x as codes; batch entries and heads of x are units of `rows`. */
typedef struct attn_coded_ {
  const attn_code_table_ *codes; /* null: products are of f32 */
  const attn_code_panel_table_ *panel;
  const attn_code_line_table_ *line; /* few rows read w in place; or null */
  attn_tensor x;
  int64_t run, runs, size, width; /* bytes of a code, and of a row */
  int odd_apart;                  /* lines have the even ones of 8 codes first */
  char *code, *lines;             /* [units][rows][width]; lines: signed, or null */
  float *scale, *sums;            /* [units][runs][rows] */
  unsigned char *bad;             /* [units][rows]: the row has no codes */
} attn_coded_;

/* What a worker needs for a tile of w: rows of f32, codes, sums of rows of x, and numbers of columns and rows. */
enum { ATTN_CODED_ROWS_ = 24 };
typedef struct attn_coded_room_ {
  float strip[ATTN_STRIP_FLOATS_], tile[ATTN_STRIP_FLOATS_];
  float sum[ATTN_CODED_ROWS_ * (int)ATTN_PANEL_], some[ATTN_CODED_ROWS_];
  float by[ATTN_PANEL_], more[ATTN_PANEL_], one[ATTN_PANEL_], top[ATTN_PANEL_];
  int32_t raised[ATTN_PANEL_];
} attn_coded_room_;

/* The primitives of ATTN_COMPUTE_I8 for a w of dtype. */
ATTN_FUNC_ int attn_coded_choose_(attn_error_ *e, attn_coded_ *x, const attn_table_ *f,
                                  attn_dtype dtype, int prefer, attn_feature *feature) {
  *feature = ATTN_FEATURE_NONE;
  attn_clear_(x, sizeof *x);
#if ATTN_HAS_LOW && ATTN_HAS_QUANTIZE
  if (attn_quantized_(dtype)) {
    x->codes = attn_code_of_(f->isa, feature);
    if (prefer && *feature == ATTN_FEATURE_NONE) x->codes = NULL;
    if (x->codes) x->panel = attn_code_panel_of_(f->isa, *feature, &x->line);
    if (x->codes) return 1;
  }
#else
  (void)f;
#endif
  if (prefer) return 1;
  if (!ATTN_HAS_LOW)
    return attn_reject_(e, ATTN_E_ISA, "params.compute: ATTN_ONLY leaves out ATTN_FAMILY_LOW");
  if (!attn_quantized_(dtype))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.compute: ATTN_COMPUTE_I8 takes w.dtype ATTN_I8 or ATTN_I4");
  return attn_reject_(e, ATTN_E_ISA,
                      "params.compute: neither a feature of the processor nor an emulation has "
                      "products of int8 (attn_feature_why)");
}

/* Sizes for the rows of t times m. */
ATTN_FUNC_ void attn_coded_plan_(attn_coded_ *x, const attn_tensor *t, const attn_matrix_ *m,
                                 attn_feature feature) {
  x->x = *t, x->run = m->run;
  x->runs = m->k / m->run + (m->k % m->run != 0);
  x->size = feature == ATTN_FEATURE_NONE ? (int64_t)sizeof(float) : 1;
  x->width = attn_mul_(x->runs, m->run * x->size);
  x->odd_apart = m->transposed && m->w.dtype == ATTN_I4;
  if (t->len > ATTN_STORED_FEW_) x->line = NULL;
}

/* Bytes of codes of all rows, of as many numbers as runs have, and of all. */
ATTN_FUNC_ int64_t attn_coded_codes_(const attn_coded_ *x) {
  return attn_piece_(attn_mul_(attn_mul_(x->x.batch, x->x.heads), x->x.len), x->width);
}
ATTN_FUNC_ int64_t attn_coded_numbers_(const attn_coded_ *x) {
  const int64_t rows = attn_mul_(attn_mul_(x->x.batch, x->x.heads), x->x.len);
  return attn_piece_(attn_mul_(rows, x->runs), sizeof(float));
}
ATTN_FUNC_ int64_t attn_coded_bytes_(const attn_coded_ *x) {
  const int64_t rows = attn_mul_(attn_mul_(x->x.batch, x->x.heads), x->x.len);
  return attn_add_(attn_mul_(attn_coded_codes_(x), x->line ? 2 : 1),
                   attn_add_(attn_mul_(attn_coded_numbers_(x), 2), attn_piece_(rows, 1)));
}

#if ATTN_HAS_LOW && ATTN_HAS_QUANTIZE
/* Codes of rows as lines have them. */
ATTN_FUNC_ void attn_coded_line_(const attn_coded_ *x, int64_t row) {
  const unsigned char *from = (const unsigned char *)x->code + row * x->width;
  unsigned char *to = (unsigned char *)x->lines + row * x->width;
  for (int64_t i = 0; i < x->width; i++) {
    const int64_t at = x->odd_apart ? i / 8 * 8 + i % 4 * 2 + i / 4 % 2 : i;
    to[i] = (unsigned char)(from[at] ^ x->line->flip);
  }
}

/* 16 rows of a unit. */
typedef struct attn_coded_job_ {
  const attn_table_ *table;
  const attn_coded_ *x;
  int64_t items; /* of a unit */
} attn_coded_job_;

ATTN_FUNC_ void attn_coded_item_(void *job, int worker, int64_t index) {
  enum { ROWS = ATTN_GROUP_ };
  const attn_coded_job_ *a = (const attn_coded_job_ *)job;
  const attn_coded_ *x = a->x;
  const attn_tensor *t = &x->x;
  const int64_t unit = index / a->items, first = index % a->items * ROWS;
  const int64_t b = unit / t->heads, h = unit % t->heads;
  const int64_t n = t->len - first < ROWS ? t->len - first : (int64_t)ROWS;
  const int64_t at = unit * t->len + first;
  float wide[ROWS * (int)ATTN_DEEP_], center[ATTN_DEEP_];
  (void)worker;
  memset(center, 0, sizeof center);
  memset(x->code + at * x->width, 0, (size_t)(n * x->width));
  memset(x->bad + at, 0, (size_t)n);
  for (int64_t g = 0; g < x->runs; g++) {
    const int64_t k = g * x->run, left = t->dim - k,
                  numbers = (unit * x->runs + g) * t->len + first;
    attn_code_rows_ r;
    r.to = x->code + at * x->width + k * x->size, r.width = x->width;
    r.x = attn_at_(t, b, h, first) + attn_bytes_(t->dtype, k);
    r.step = attn_bytes_(t->dtype, t->stride_len), r.kind = (int)t->dtype;
    r.n = n, r.dim = left < x->run ? left : x->run;
    r.center = center, r.scale = x->scale + numbers;
    if (t->dtype == ATTN_F16) {
      a->table->widen(wide, r.x, t->stride_len, NULL, n, r.dim, t->dtype, NULL);
      r.x = wide, r.step = r.dim * (int64_t)sizeof(float), r.kind = ATTN_F32;
    }
    x->codes->code_rows(&r);
    x->panel->code_sums(x->sums + numbers, r.to, x->width, n, r.dim);
    for (int64_t i = 0; i < n; i++)
      if (r.scale[i] == 0.0f) x->bad[at + i] = 1;
  }
  for (int64_t i = 0; i < n && x->lines; i++) attn_coded_line_(x, at + i);
}

/* Codes of all rows, in memory of attn_coded_bytes_. */
ATTN_FUNC_ void attn_coded_make_(attn_coded_ *x, const attn_table_ *f, char *memory,
                                 const attn_ctx *ctx, int workers) {
  attn_coded_job_ a = {f, x, (x->x.len + ATTN_GROUP_ - 1) / ATTN_GROUP_};
  const int64_t count = x->x.batch * x->x.heads * a.items;
  x->code = memory, memory += attn_coded_codes_(x);
  if (x->line) x->lines = memory, memory += attn_coded_codes_(x);
  x->scale = (float *)(void *)memory, memory += attn_coded_numbers_(x);
  x->sums = (float *)(void *)memory, memory += attn_coded_numbers_(x);
  x->bad = (unsigned char *)memory;
  attn_for_(ctx, attn_pieces_(workers, count), count, attn_coded_item_, &a);
}

/* What a product of codes reads: rows of a unit of x. */
typedef struct attn_coded_rows_ {
  int64_t unit, first, n;
} attn_coded_rows_;

/* The part of y that a tile makes, from panels of w. */
ATTN_FUNC_ void attn_coded_tiles_(const attn_table_ *f, const attn_matrix_ *m, const attn_coded_ *x,
                                  const attn_coded_rows_ *rows, const attn_matrix_part_ *part,
                                  float *y, int64_t y_stride, attn_coded_room_ *own) {
  const int64_t len = x->x.len;
  attn_matrix_part_ p = *part;
  attn_code_dots_ d;
  memset(&d, 0, sizeof d);
  memset(own->top, 0, sizeof own->top);
  for (int i = 0; i < ATTN_PANEL_; i++) own->one[i] = 1.0f;
  d.y = own->sum, d.x = own->tile, d.row = x->width;
  d.raised = own->raised, d.x_scale = own->by, d.more = own->more;
  d.some = own->some, d.top = own->top;
  for (; p.c0 < part->c1; p.c0 = p.c1)
    for (int64_t k = 0; k < part->depth; k += p.depth) {
      p.k0 = part->k0 + k, p.depth = part->depth - k < x->run ? part->depth - k : x->run;
      p.c1 = part->c1 - p.c0 < ATTN_PANEL_ ? part->c1 : p.c0 + ATTN_PANEL_;
      const int cols = (int)(p.c1 - p.c0);
      const int64_t numbers = (rows->unit * x->runs + p.k0 / x->run) * len + rows->first;
      attn_codes_strip_(f, m, &p, own->strip, ATTN_PANEL_, own->by, own->more);
      x->panel->code_panel(own->tile, own->strip, p.depth, own->raised);
      d.n = p.depth, d.g1 = (cols + ATTN_GROUP_ - 1) / ATTN_GROUP_;
      for (int64_t r = 0; r < rows->n; r += d.rows) {
        d.rows = rows->n - r < ATTN_CODED_ROWS_ ? rows->n - r : (int64_t)ATTN_CODED_ROWS_;
        d.b = x->code + (rows->unit * len + rows->first + r) * x->width + p.k0 * x->size;
        d.scale = x->scale + numbers + r;
        for (int64_t i = 0; i < d.rows; i++) own->some[i] = -d.scale[i] * x->sums[numbers + r + i];
        x->codes->code_dots(&d);
        attn_on_(dense, f)->join_runs(y + r * y_stride + (p.c0 - part->c0), y_stride, own->sum,
                                      ATTN_PANEL_, own->one, d.rows, cols, p.k0 == 0);
      }
    }
}

/* Scales of a transposed matrix as they are, for n rows of k. */
ATTN_FUNC_ int64_t attn_coded_scales_(const attn_matrix_ *m, const attn_matrix_part_ *part,
                                      int64_t k, int64_t c, int64_t n, attn_code_line_ *p) {
  const attn_rows_scale_ s = attn_codes_scale_(m, part, k, c);
  const int64_t group = m->scales.group, most = group > m->run ? group - k % group : n;
  p->scale = s.scale, p->zero = s.zero, p->scale_step = m->scales.stride_len;
  p->each = group <= m->run;
  return n < most ? n : most;
}

/* Few rows of what attn_coded_part_ left. What further rows read again is near: 128 KB. */
ATTN_FUNC_ void attn_coded_lines_(const attn_table_ *f, const attn_matrix_ *m, const attn_coded_ *x,
                                  const attn_coded_rows_ *rows, const attn_matrix_part_ *part,
                                  float *y, int64_t y_stride) {
  const int along = m->transposed && attn_bytes_(m->w.dtype, m->run) % 64 == 0;
  const int64_t wide = m->transposed ? (int64_t)ATTN_PANEL_ : (int64_t)ATTN_STORED_COLS_;
  const int64_t len = x->x.len, end = part->k0 + part->depth;
  const int64_t deep = along         ? (rows->n > 1 ? ATTN_GROUP_ : (int)ATTN_CODE_RUNS_) * m->run
                       : rows->n > 1 ? (int64_t)ATTN_DEEP_
                                     : INT64_MAX;
  void (*const line)(const attn_code_line_ *) = along           ? x->line->code_along
                                                : m->transposed ? x->line->code_words
                                                                : x->line->code_columns;
  attn_stored_numbers_ s;
  attn_code_line_ p;
  memset(&p, 0, sizeof p);
  p.kind = (int)m->w.dtype, p.run = m->run, p.x_step = len;
  p.step = attn_bytes_(m->w.dtype, m->w.stride_len);
  for (int64_t c = part->c0; c < part->c1; c += p.cols) {
    p.cols = part->c1 - c < wide ? part->c1 - c : wide;
    for (int64_t k = part->k0; k < end; k += p.n) {
      p.n = end - k < deep ? end - k : deep;
      if (along) {
        p.n = attn_coded_scales_(m, part, k, c, p.n, &p);
      } else {
        p.n = attn_stored_find_(f, m, part, k, c, p.n, &s);
        p.scale = s.scale, p.zero = s.zero, p.scale_step = s.step;
      }
      p.start = k == 0;
      p.w = attn_at_(&m->w, part->b, part->h, m->transposed ? c : k) +
            attn_bytes_(m->w.dtype, m->transposed ? k : c);
      for (int64_t r = 0; r < rows->n; r++) {
        const int64_t row = rows->unit * len + rows->first + r;
        const int64_t at = (rows->unit * x->runs + k / x->run) * len + rows->first + r;
        p.x = (const signed char *)x->lines + row * x->width + k;
        p.x_scale = x->scale + at, p.sums = x->sums + at;
        p.y = y + r * y_stride + (c - part->c0);
        line(&p);
      }
    }
  }
}

/* What of a part lines take. */
ATTN_FUNC_ int attn_coded_part_(const attn_table_ *f, const attn_matrix_ *m, const attn_coded_ *x,
                                int64_t rows, attn_matrix_part_ *p) {
  const int64_t wide = !m->transposed && m->w.dtype == ATTN_I4 ? 128 : 64;
  if (!x->line || !attn_stored_part_(f, m, rows, p)) return 0;
  p->c1 = p->c0 + (p->c1 - p->c0) / wide * wide;
  return p->c1 > p->c0;
}

/* y[r][c - c0] = x w of all k, in whole numbers. */
ATTN_FUNC_ void attn_coded_times_(const attn_table_ *f, const attn_matrix_ *m, const attn_coded_ *x,
                                  const attn_coded_rows_ *rows, const attn_matrix_part_ *part,
                                  float *y, int64_t y_stride, char *own) {
  attn_coded_room_ *room = (attn_coded_room_ *)(void *)own;
  attn_matrix_part_ p = *part, some;
  if (m->w.batch <= 1) p.b = 0;
  if (m->w.heads <= 1) p.h = 0;
  some = p;
  if (attn_coded_part_(f, m, x, rows->n, &some)) {
    attn_coded_lines_(f, m, x, rows, &some, y, y_stride);
    some.k0 += some.depth, some.depth = p.depth - some.depth;
    if (some.depth) attn_coded_tiles_(f, m, x, rows, &some, y, y_stride, room);
    y += some.c1 - p.c0, p.c0 = some.c1;
  }
  if (p.c0 < p.c1) attn_coded_tiles_(f, m, x, rows, &p, y, y_stride, room);
}
#endif
