/* engine/rope.h owns the sines and cosines of rows by their positions. */

/* The angle of position p is that of 16 floor(p / 16) plus that of p mod 16. Sines of the second
 * kind are made once a call, of the first once in 16 positions, and joined by the addition theorem:
 * so a position costs six multiplications a pair, and its rotation depends on nothing else. Factors of sines
 * and cosines that are powers of the position are joined with them. */
enum { ATTN_ROPE_RUN_ = 16, ATTN_ROPE_AXES_ = 3 };

/* The positions of rows: start + i, or those of an array, a set for each entry of the batch or for all. */
typedef struct attn_positions_ {
  int64_t start;
  const int64_t *whole;
  const double *real; /* in its place */
  int each;           /* a set for each entry */
  int64_t len;        /* positions of a set */
  int64_t batch;      /* sets of an axis */
  int axes;           /* positions of a row */
  int64_t first;      /* row 0 is this one of a set, */
  int64_t rows;       /* and there are so many */
} attn_positions_;

ATTN_FUNC_ int64_t attn_positions_count_(const attn_positions_ *p) {
  return attn_mul_(attn_mul_(p->axes, p->each ? p->batch : 1), p->len);
}

ATTN_FUNC_ int attn_check_positions_(attn_error_ *e, attn_positions_ *p, attn_span_ *span) {
  span->lo = span->hi = 0;
  if (!p->whole && !p->real) {
    p->start = attn_add_(p->start, p->first);
    p->each = 0, p->first = 0, p->len = p->rows;
  }
  if (p->first < 0 || p->rows > p->len - p->first)
    return attn_reject_(e, ATTN_E_RANGE, "params.positions must be there for every row");
  if (attn_abs64_(p->start) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.start must lie within 2^61 of 0");
  if (p->whole && p->real)
    return attn_reject_(e, ATTN_E_NULL, "params.positions and .real_positions exclude each other");
  const int64_t count = attn_positions_count_(p);
  if ((p->whole || p->real) && count > INT64_MAX / 8)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.positions spans more than the address space");
  if (p->real)
    return attn_check_array_(e, p->real, count, 8,
                             "params.real_positions must be aligned to its elements", span);
  return attn_check_array_(e, p->whole, count, 8,
                           "params.positions must be aligned to its elements", span);
}

/* Reads them. */
ATTN_FUNC_ int attn_check_real_positions_(attn_error_ *e, const attn_positions_ *p) {
  const int64_t count = attn_positions_count_(p);
  for (int64_t i = 0; p->real && i < count; i++)
    if (!(fabs(p->real[i]) < HUGE_VAL))
      return attn_reject_(e, ATTN_E_VALUE, "params.real_positions must be finite");
  return 1;
}

/* Where in the arrays a row has its position on an axis. */
ATTN_FUNC_ int64_t attn_position_at_(const attn_positions_ *p, int axis, int64_t b, int64_t i) {
  return ((p->each ? axis * p->batch + b : axis) * p->len) + p->first + i;
}

/* The position of a row where none is real. */
ATTN_FUNC_ int64_t attn_whole_position_(const attn_positions_ *p, int axis, int64_t b, int64_t i) {
  return p->whole ? p->whole[attn_position_at_(p, axis, b, i)] : p->start + i;
}

/* 1: the position of a row is this whole number; 0: it is none, but this real one. */
ATTN_FUNC_ int attn_position_(const attn_positions_ *p, int axis, int64_t b, int64_t i,
                              int64_t *whole, double *real) {
  if (!p->real) {
    *whole = attn_whole_position_(p, axis, b, i);
    return 1;
  }
  *real = p->real[attn_position_at_(p, axis, b, i)];
  if (!(fabs(*real) < 9007199254740992.0) || *real != floor(*real)) return 0; /* 2^53 */
  *whole = (int64_t)*real;
  return 1;
}

/* All positions lie in low .. high. */
ATTN_COLD_ int attn_positions_within_(const attn_positions_ *p, double low, double high) {
  const int64_t count = attn_positions_count_(p);
  if (!p->whole && !p->real)
    return count == 0 ||
           ((double)p->start >= low && (double)attn_add_(p->start, p->len - 1) <= high);
  for (int64_t i = 0; i < count; i++) {
    const double x = p->real ? p->real[i] : (double)p->whole[i];
    if (!(x >= low && x <= high)) return 0;
  }
  return 1;
}

/* What a position is beyond the last multiple of 16. */
ATTN_FUNC_ int64_t attn_rest_(int64_t position) {
  return (position % ATTN_ROPE_RUN_ + ATTN_ROPE_RUN_) % ATTN_ROPE_RUN_;
}

/* The memory of its parameters. */
enum {
  ATTN_ROPE_POSITIONS_,
  ATTN_ROPE_SHORT_, /* and long_factor */
  ATTN_ROPE_LONG_,
  ATTN_ROPE_COS_,
  ATTN_ROPE_SIN_,
  ATTN_ROPE_GAIN_, /* and temperature */
  ATTN_ROPE_TEMPERATURE_,
  ATTN_ROPE_SPANS_
};

/* What turns rows. Pairs are kept in the order of the axes that they turn by. */
typedef struct attn_rope_ {
  attn_rope_params p; /* resolved */
  attn_positions_ at;
  attn_span_ span[ATTN_ROPE_SPANS_];
  int64_t pairs;
  int64_t bound[ATTN_ROPE_AXES_ + 1]; /* those of an axis */
  double by;                          /* factor of sines and cosines */
  attn_qk_rows_ norm;                 /* of the rows, too */
  int64_t *order; /* [pairs] which pair is at a place; null: that of its number */
  double *theta;  /* [pairs] */
  double *zeta;   /* [pairs] xPos: log of the factor per position; null = 0 */
  double *fine;   /* [run][2][pairs] sines and cosines of 0..15 */
  unsigned seen;  /* which of its rows are made */
  char *rows;     /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_rope_;

/* One worker's part: the last coarse position of each axis and its sines and cosines, and one row's as floats
 * laid out as the primitive wants them. */
typedef struct attn_rope_row_ {
  int64_t *coarse;
  double *sine, *cosine;        /* [pairs] */
  float *sine_row, *cosine_row; /* [rotary_dim] */
  float *rows;                  /* [heads at once][dim], where they are normed */
  int64_t step, mate;           /* pair m is columns step m and step m + mate */
  double turn;                  /* -1: back */
} attn_rope_row_;

ATTN_FUNC_ int attn_rope_axis_(const attn_rope_params *p, int64_t pairs, int64_t m) {
  const int64_t *s = p->mrope_section;
  if (p->axial) return m >= pairs / 2;
  if (p->mrope_interleaved)
    return m % 3 == 1 && m < 3 * s[1] ? 1 : m % 3 == 2 && m < 3 * s[2] ? 2 : 0;
  return m < s[0] ? 0 : m < s[0] + s[1] ? 1 : 2;
}

ATTN_COLD_ int attn_check_rope_tables_(attn_error_ *e, attn_rope_ *g) {
  static const char wc[] = ATTN_WORDS_("params.cos"), ws[] = ATTN_WORDS_("params.sin");
  attn_rope_params *p = &g->p;
  if (!p->cos.data != !p->sin.data)
    return attn_reject_(e, ATTN_E_NULL, "params.cos and params.sin go together");
  if (!attn_check_tensor_(e, &p->cos, wc, &g->span[ATTN_ROPE_COS_]) ||
      !attn_check_tensor_(e, &p->sin, ws, &g->span[ATTN_ROPE_SIN_]))
    return 0;
  if (p->cos.dtype != ATTN_F32 || p->sin.dtype != ATTN_F32)
    return attn_reject_(e, ATTN_E_DTYPE, "params.cos and params.sin must be f32");
  if (p->cos.batch != 1 || p->cos.heads != 1 || p->cos.dim != g->pairs || p->sin.batch != 1 ||
      p->sin.heads != 1 || p->sin.dim != g->pairs || p->sin.len != p->cos.len)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.cos and params.sin must be [1, 1, n, rotary_dim / 2]");
  if (p->type != ATTN_ROPE_DEFAULT || p->xpos != 0.0 || p->attention_factor != 0.0)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.cos stands for base, type, attention_factor and xpos, which must be "
        "absent beside it");
  if (p->real_positions)
    return attn_reject_(e, ATTN_E_RANGE, "params.cos goes without real_positions");
  return 1;
}

/* Rules about values that may be read. */
ATTN_COLD_ int attn_check_rope_places_(attn_error_ *e, const attn_rope_ *g) {
  const double far = 64.0 * g->p.xpos;
  if (g->p.cos.data && !attn_positions_within_(&g->at, 0.0, (double)(g->p.cos.len - 1)))
    return attn_reject_(e, ATTN_E_RANGE, "positions must be rows of params.cos and params.sin");
  if (g->p.xpos != 0.0 && !attn_positions_within_(&g->at, -far, far))
    return attn_reject_(e, ATTN_E_RANGE, "positions must lie in -64 xpos .. 64 xpos");
  return 1;
}

/* Whether any column rotates. */
ATTN_FUNC_ int attn_rope_turns_(const attn_rope_params *p) {
  return !p->has_rotary_dim || p->rotary_dim != 0;
}

/* Heads whose rows are normed at once. */
ATTN_FUNC_ int64_t attn_rope_heads_(const attn_rope_ *g) {
  const int64_t heads = g->norm.heads;
  return g->norm.all || heads < ATTN_QK_ROWS_ ? heads : (int64_t)ATTN_QK_ROWS_;
}

/* Judges the rotation of `batch` times `rows` rows of heads of width dim, from row `first` of those whose positions may
 * be given, and says what it needs. data: arrays may be read. */
ATTN_FUNC_ int attn_rope_open_(attn_error_ *e, attn_rope_ *g, const attn_rope_params *params,
                               int64_t batch, int64_t heads, int64_t len, int64_t first,
                               int64_t rows, int64_t dim, int data) {
  memset(g, 0, sizeof *g);
  if (params) g->p = *params;
  attn_rope_params *p = &g->p;
  const int tables = p->cos.data || p->sin.data;
  if (tables && p->base != 0.0)
    return attn_reject_(e, ATTN_E_RANGE, "params.cos goes without base");
  if (!attn_check_rope_(e, p, dim, data, &g->span[ATTN_ROPE_SHORT_])) return 0;
  const int many = p->mrope_section[0] || p->mrope_section[1] || p->mrope_section[2];
  const attn_positions_ at = {
      p->start, p->positions, p->real_positions,           p->positions_per_batch,
      len,      batch,        p->axial ? 2 : many ? 3 : 1, first,
      rows};
  g->at = at, g->pairs = p->rotary_dim / 2;
  if (p->axial && !p->positions && !p->real_positions)
    return attn_reject_(e, ATTN_E_NULL, "params.positions must be given with axial");
  if (!attn_check_positions_(e, &g->at, &g->span[ATTN_ROPE_POSITIONS_])) return 0;
  if (tables && !attn_check_rope_tables_(e, g)) return 0;
  if (data && (!attn_check_real_positions_(e, &g->at) ||
               ((tables || p->xpos != 0.0) && !attn_check_rope_places_(e, g))))
    return 0;
  if (p->norm && !attn_qk_norm_open_(e, &g->norm, p->norm, p->keys, heads, dim, data,
                                     &g->span[ATTN_ROPE_GAIN_]))
    return 0;
  g->bytes = attn_add_(attn_piece_(ATTN_ROPE_AXES_, sizeof(int64_t)),
                       attn_add_(attn_mul_(2, attn_piece_(g->pairs, sizeof(double))),
                                 attn_mul_(2, attn_piece_(p->rotary_dim, sizeof(float)))));
  if (g->norm.on)
    g->bytes = attn_add_(g->bytes, attn_piece_(attn_mul_(attn_rope_heads_(g), dim), 4));
  return 1;
}

/* Memory that it shares with nothing but others that are only read. */
ATTN_FUNC_ int attn_rope_shares_(const attn_rope_ *g, attn_span_ span) {
  for (int i = 0; i < ATTN_ROPE_SPANS_; i++)
    if (attn_overlap_(g->span[i], span)) return 1;
  return 0;
}

/* Bytes for so many workers, in whole cache lines. */
ATTN_FUNC_ int64_t attn_rope_bytes_(const attn_rope_ *g, int workers) {
  const int64_t row = attn_piece_(g->pairs, sizeof(double));
  int64_t bytes = attn_add_(row, attn_piece_(attn_mul_(2 * ATTN_ROPE_RUN_, g->pairs), 8));
  if (g->p.xpos != 0.0) bytes = attn_add_(bytes, row);
  if (g->p.mrope_interleaved) bytes = attn_add_(bytes, row);
  return attn_add_(bytes, attn_mul_(g->bytes, workers));
}

ATTN_FUNC_ void attn_rope_cut_(const attn_rope_ *g, int worker, attn_rope_row_ *r) {
  char *at = g->rows + worker * g->bytes;
  const int64_t pair = attn_piece_(g->pairs, sizeof(double));
  r->coarse = (int64_t *)(void *)at, at += attn_piece_(ATTN_ROPE_AXES_, sizeof(int64_t));
  r->sine = (double *)(void *)at, at += pair;
  r->cosine = (double *)(void *)at, at += pair;
  r->sine_row = (float *)(void *)at, at += attn_piece_(g->p.rotary_dim, sizeof(float));
  r->cosine_row = (float *)(void *)at, at += attn_piece_(g->p.rotary_dim, sizeof(float));
  r->rows = (float *)(void *)at;
  const int half = g->p.layout == ATTN_ROPE_HALF;
  r->step = half ? 1 : 2, r->mate = half ? g->pairs : 1, r->turn = g->p.inverse ? -1.0 : 1.0;
}

/* Sines and cosines of places from .. to, `by` times. Angles in double: a float angle is wrong by 0.03 at
 * position 10^6. */
ATTN_FUNC_ void attn_rope_angles_(const attn_rope_ *g, int64_t from, int64_t to, double position,
                                  double by, double *sine, double *cosine) {
  for (int64_t n = from; n < to; n++) {
    const double size = g->zeta ? by * exp(g->zeta[n] * position) : by;
    attn_sincos_(position * g->theta[n], &sine[n], &cosine[n]);
    sine[n] *= size, cosine[n] *= size;
  }
}

/* Places one sine and cosine. */
ATTN_FUNC_ void attn_rope_place_(const attn_rope_row_ *r, int64_t m, double sine, double cosine) {
  const float c = (float)cosine, s = (float)(r->turn * sine);
  const int64_t a = r->step * m, b = a + r->mate;
  r->cosine_row[a] = r->cosine_row[b] = c, r->sine_row[a] = -s, r->sine_row[b] = s;
}

ATTN_FUNC_ int64_t attn_rope_pair_(const attn_rope_ *g, int64_t n) {
  return g->order ? g->order[n] : n;
}

/* The pairs of one axis. A position that is no whole number has its own sines. */
ATTN_FUNC_ void attn_rope_fill_axis_(const attn_rope_ *g, const attn_positions_ *at,
                                     attn_rope_row_ *r, int axis, int64_t b, int64_t i) {
  const int64_t from = g->bound[axis], to = g->bound[axis + 1], *const order = g->order;
  const attn_rope_row_ row = *r; /* a copy, which no store may change */
  int64_t position = 0;
  double real = 0.0;
  const int whole = attn_position_(at, axis, b, i, &position, &real);
  if (g->p.cos.data) {
    const float *c = (const float *)(const void *)attn_at_(&g->p.cos, 0, 0, position);
    const float *s = (const float *)(const void *)attn_at_(&g->p.sin, 0, 0, position);
    for (int64_t n = from; n < to; n++) {
      const int64_t m = attn_rope_pair_(g, n);
      attn_rope_place_(r, m, (double)s[m], (double)c[m]);
    }
    return;
  }
  if (!whole) {
    attn_rope_angles_(g, from, to, real, g->by, r->sine, r->cosine);
    r->coarse[axis] = INT64_MAX; /* no multiple of 16 */
    for (int64_t n = from; n < to; n++)
      attn_rope_place_(r, attn_rope_pair_(g, n), r->sine[n], r->cosine[n]);
    return;
  }
  const int64_t fine = attn_rest_(position);
  const double *fs = g->fine + 2 * fine * g->pairs, *fc = fs + g->pairs;
  if (r->coarse[axis] != position - fine) {
    attn_rope_angles_(g, from, to, (double)(position - fine), g->by, r->sine, r->cosine);
    r->coarse[axis] = position - fine;
  }
  for (int64_t n = from; n < to; n++)
    attn_rope_place_(&row, order ? order[n] : n, row.sine[n] * fc[n] + row.cosine[n] * fs[n],
                     row.cosine[n] * fc[n] - row.sine[n] * fs[n]);
}

/* The row of sines and cosines of row i of entry b. */
ATTN_FUNC_ void attn_rope_fill_(const attn_rope_ *g, const attn_positions_ *at, attn_rope_row_ *r,
                                int64_t b, int64_t i) {
  for (int axis = 0; axis < g->at.axes; axis++) attn_rope_fill_axis_(g, at, r, axis, b, i);
}

/* Pairs in the order of their axes. */
ATTN_COLD_ void attn_rope_sort_(attn_rope_ *g) {
  int64_t n = 0;
  for (int axis = 0; axis < g->at.axes; axis++) {
    g->bound[axis] = n;
    for (int64_t m = 0; m < g->pairs; m++) {
      if (attn_rope_axis_(&g->p, g->pairs, m) != axis) continue;
      if (g->order) g->order[n] = m;
      n++;
    }
  }
  g->bound[g->at.axes] = n;
}

/* Frequencies as the pairs lie; the fine rows hold those of the pairs meanwhile. */
ATTN_COLD_ void attn_rope_arrange_(attn_rope_ *g) {
  const double sign = g->p.keys ? -1.0 : 1.0, width = (double)g->p.rotary_dim;
  if (g->order) memcpy(g->fine, g->theta, (size_t)g->pairs * sizeof *g->fine);
  for (int64_t n = 0; n < g->pairs; n++) {
    const int64_t m = attn_rope_pair_(g, n);
    if (g->order) g->theta[n] = g->fine[m];
    if (g->zeta) g->zeta[n] = sign * log((2.0 * (double)m / width + 0.4) / 1.4) / g->p.xpos;
  }
}

/* Makes the fine rows that these positions want. */
ATTN_FUNC_ void attn_rope_see_(attn_rope_ *g, const attn_positions_ *at) {
  if (g->p.cos.data) return;
  for (int axis = 0; axis < at->axes; axis++)
    for (int64_t b = 0; b < (at->each ? at->batch : 1); b++)
      for (int64_t i = 0; i < at->rows && g->seen != 0xffffu; i++) {
        int64_t p;
        double real;
        if (!attn_position_(at, axis, b, i, &p, &real)) continue;
        const int64_t fine = attn_rest_(p);
        double *row = g->fine + 2 * fine * g->pairs;
        if (!(g->seen >> fine & 1u))
          attn_rope_angles_(g, 0, g->pairs, (double)fine, 1.0, row, row + g->pairs);
        g->seen |= 1u << fine;
      }
}

/* Lays out what all workers read, in attn_rope_bytes_, and makes the frequencies. */
ATTN_FUNC_ void attn_rope_lay_(attn_rope_ *g, char *base, int workers) {
  const int64_t row = attn_piece_(g->pairs, sizeof(double));
  g->seen = 0;
  g->theta = (double *)(void *)base, base += row;
  g->fine = (double *)(void *)base, base += attn_piece_(2 * ATTN_ROPE_RUN_ * g->pairs, 8);
  if (g->p.xpos != 0.0) g->zeta = (double *)(void *)base, base += row;
  if (g->p.mrope_interleaved) g->order = (int64_t *)(void *)base, base += row;
  g->rows = base;
  g->bound[0] = 0, g->bound[1] = g->pairs;
  if (g->at.axes > 1) attn_rope_sort_(g);
  for (int w = 0; w < workers; w++) {
    attn_rope_row_ r;
    attn_rope_cut_(g, w, &r);
    for (int axis = 0; axis < ATTN_ROPE_AXES_; axis++)
      r.coarse[axis] = INT64_MAX; /* no multiple of 16 */
  }
  if (g->p.cos.data) return;
  g->by = attn_rope_factor_(&g->p);
  attn_rope_frequencies_(&g->p, g->theta);
  if (g->order || g->zeta) attn_rope_arrange_(g);
}

/* One row of x to y. */
ATTN_FUNC_ void attn_rope_row_to_(const attn_rope_ *g, const attn_table_ *f,
                                  const attn_rope_row_ *r, void *y, attn_dtype ty, const void *x,
                                  attn_dtype tx, int64_t dim) {
  attn_on_(rope, f)->rope(y, x, ty, tx, dim, g->p.rotary_dim, g->p.layout == ATTN_ROPE_HALF,
                          r->cosine_row, r->sine_row);
}

/* The rows of all heads of a token, normed and rotated; steps in elements from head to head. y may be x. */
ATTN_FUNC_ void attn_rope_rows_(const attn_rope_ *g, const attn_table_ *f, const attn_rope_row_ *r,
                                char *y, int64_t y_step, attn_dtype ty, const char *x,
                                int64_t x_step, attn_dtype tx, int64_t heads, int64_t dim) {
  const attn_qk_rows_ *norm = &g->norm;
  const int64_t ys = attn_bytes_(ty, y_step), xs = attn_bytes_(tx, x_step);
  if (!norm->on) {
    for (int64_t h = 0; h < heads; h++)
      attn_rope_row_to_(g, f, r, y + h * ys, ty, x + h * xs, tx, dim);
    return;
  }
  for (int64_t h0 = 0, n; h0 < heads; h0 += n) {
    n = attn_rope_heads_(g) < heads - h0 ? attn_rope_heads_(g) : heads - h0;
    float *row = r->rows;
    if (g->p.norm->after) {
      for (int64_t h = 0; h < n; h++)
        attn_rope_row_to_(g, f, r, row + h * dim, ATTN_F32, x + (h0 + h) * xs, tx, dim);
      attn_qk_norm_rows_(norm, f, row, row, dim, ATTN_F32, n, h0, 1);
    } else {
      attn_qk_norm_rows_(norm, f, row, x + h0 * xs, x_step, tx, n, h0, 1);
    }
    for (int64_t h = 0; h < n; h++, row += dim)
      if (g->p.norm->after)
        f->blend(y + (h0 + h) * ys, row, NULL, ty, ATTN_F32, ATTN_F32, dim, 1.0f, 0.0f);
      else
        attn_rope_row_to_(g, f, r, y + (h0 + h) * ys, ty, row, ATTN_F32, dim);
  }
}
