/* calls/position.h owns family B: rotary embedding and the ALiBi slopes. T5 buckets are in
 * engine/t5.h. */

/* The angle of position p is that of 16 floor(p / 16) plus that of p mod 16. Sines of the second
 * kind are made once a call, of the first once in 16 positions, and joined by the addition theorem:
 * so a position costs six multiplications a pair, and its rotation depends on nothing else. */
enum { ATTN_ROPE_RUN_ = 16 };

/* The positions of rows: start + i, or those of an array, a set for each entry of the batch or for all. */
typedef struct attn_positions_ {
  int64_t start;
  const int64_t *whole;
  const double *real; /* in its place */
  int each;           /* a set for each entry */
  int64_t len;        /* positions of a set */
} attn_positions_;

ATTN_FUNC_ int attn_check_positions_(attn_error_ *e, attn_positions_ *p, int64_t batch,
                                     attn_span_ *span) {
  span->lo = span->hi = 0;
  if (!p->whole && !p->real) p->each = 0;
  if (attn_abs64_(p->start) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.start must lie within 2^61 of 0");
  if (p->whole && p->real)
    return attn_reject_(e, ATTN_E_NULL, "params.positions and .real_positions exclude each other");
  const int64_t count = attn_mul_(p->each ? batch : 1, p->len);
  if ((p->whole || p->real) && count > INT64_MAX / 8)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.positions spans more than the address space");
  if (p->real)
    return attn_check_array_(e, p->real, count, 8,
                             "params.real_positions must be aligned to its elements", span);
  return attn_check_array_(e, p->whole, count, 8,
                           "params.positions must be aligned to its elements", span);
}

/* Reads them. */
ATTN_FUNC_ int attn_check_real_positions_(attn_error_ *e, const attn_positions_ *p, int64_t batch) {
  const int64_t count = attn_mul_(p->each ? batch : 1, p->len);
  for (int64_t i = 0; p->real && i < count; i++)
    if (!(fabs(p->real[i]) < HUGE_VAL))
      return attn_reject_(e, ATTN_E_VALUE, "params.real_positions must be finite");
  return 1;
}

/* The position of a row where none is real. */
ATTN_FUNC_ int64_t attn_whole_position_(const attn_positions_ *p, int64_t b, int64_t i) {
  return p->whole ? p->whole[(p->each ? b * p->len : 0) + i] : p->start + i;
}

/* 1: the position of a row is this whole number; 0: it is none, but this real one. */
ATTN_FUNC_ int attn_position_(const attn_positions_ *p, int64_t b, int64_t i, int64_t *whole,
                              double *real) {
  if (!p->real) {
    *whole = attn_whole_position_(p, b, i);
    return 1;
  }
  *real = p->real[(p->each ? b * p->len : 0) + i];
  if (!(fabs(*real) < 9007199254740992.0) || *real != floor(*real)) return 0; /* 2^53 */
  *whole = (int64_t)*real;
  return 1;
}

/* What a position is beyond the last multiple of 16. */
ATTN_FUNC_ int64_t attn_rest_(int64_t position) {
  return (position % ATTN_ROPE_RUN_ + ATTN_ROPE_RUN_) % ATTN_ROPE_RUN_;
}

typedef struct attn_rope_job_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_positions_ at;
  attn_rope_params p; /* rot and base resolved */
  int64_t pairs;      /* rot / 2 */
  double *theta;      /* [pairs] */
  double *fine;       /* [run][2][pairs] sines and cosines of 0..15 */
  char *workspace;    /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_rope_job_;

/* One worker's part: the last coarse position and its sines and cosines, and one row's as floats
 * laid out as the primitive wants them. */
typedef struct attn_rope_row_ {
  int64_t *coarse;
  double *sine, *cosine;        /* [pairs] */
  float *sine_row, *cosine_row; /* [rot] */
} attn_rope_row_;

ATTN_FUNC_ int attn_rope_plan_(attn_error_ *e, attn_rope_job_ *j, const attn_rope_params *params,
                               const attn_ctx *ctx, int *workers, int data) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x");
  attn_span_ sy, sx, sp = {0, 0}, sw = {0, 0};
  memset(&j->p, 0, sizeof j->p);
  if (params) j->p = *params;
  attn_rope_params *p = &j->p;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->x, wx, &sx) || !attn_check_tensor_(e, &j->y, wy, &sy)) return 0;
  if (j->y.batch != j->x.batch || j->y.heads != j->x.heads || j->y.len != j->x.len ||
      j->y.dim != j->x.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "y must have the shape of x");
  if (!attn_check_rows_(e, &j->y, wy)) return 0;
  p->rotary_dim = attn_given_or_(p->has_rotary_dim, p->rotary_dim, j->x.dim);
  if (p->rotary_dim < 0 || p->rotary_dim > j->x.dim || p->rotary_dim % 2)
    return attn_reject_(e, ATTN_E_RANGE, "params.rotary_dim must be even and lie in 0..x.dim");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  if (p->layout != ATTN_ROPE_INTERLEAVED && p->layout != ATTN_ROPE_HALF)
    return attn_reject_(e, ATTN_E_RANGE, "params.layout must be an attn_rope_layout");
  const attn_positions_ at = {p->start, p->positions, p->real_positions, p->positions_per_batch,
                              j->x.len};
  j->at = at;
  if (!attn_check_positions_(e, &j->at, j->x.batch, &sp)) return 0;
  if ((attn_overlap_(sy, sx) && !attn_same_view_(&j->y, &j->x)) || attn_overlap_(sy, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wy, ATTN_SAYS_OVERLAP_));
  if (data && !attn_check_real_positions_(e, &j->at, j->x.batch)) return 0;
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sy) || attn_overlap_(sw, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  j->pairs = p->rotary_dim / 2;
  j->bytes = attn_add_(attn_piece_(1, sizeof(int64_t)),
                       attn_add_(attn_mul_(2, attn_piece_(j->pairs, sizeof(double))),
                                 attn_mul_(2, attn_piece_(p->rotary_dim, sizeof(float)))));
  return 1;
}

ATTN_FUNC_ int64_t attn_rope_shared_(const attn_rope_job_ *j) {
  return attn_add_(attn_piece_(j->pairs, sizeof(double)),
                   attn_piece_(attn_mul_(2 * ATTN_ROPE_RUN_, j->pairs), sizeof(double)));
}

ATTN_FUNC_ int64_t attn_rope_bytes_(const attn_rope_job_ *j, int workers) {
  return attn_workspace_bytes_(attn_add_(attn_rope_shared_(j), attn_mul_(j->bytes, workers)), 1);
}

ATTN_FUNC_ int64_t attn_rope_runs_(const attn_rope_job_ *j) {
  return j->x.len / ATTN_ROPE_RUN_ + (j->x.len % ATTN_ROPE_RUN_ != 0);
}

/* Runs of rows; with positions per batch entry each entry has its own. */
ATTN_FUNC_ int64_t attn_rope_items_(const attn_rope_job_ *j) {
  if (j->x.batch == 0 || j->x.heads == 0 || j->x.len == 0) return 0;
  return j->at.each ? attn_mul_(attn_rope_runs_(j), j->x.batch) : attn_rope_runs_(j);
}

ATTN_FUNC_ void attn_rope_cut_(const attn_rope_job_ *j, int worker, attn_rope_row_ *r) {
  char *at = j->workspace + worker * j->bytes;
  const int64_t pair = attn_piece_(j->pairs, sizeof(double));
  r->coarse = (int64_t *)(void *)at, at += attn_piece_(1, sizeof(int64_t));
  r->sine = (double *)(void *)at, at += pair;
  r->cosine = (double *)(void *)at, at += pair;
  r->sine_row = (float *)(void *)at, at += attn_piece_(j->p.rotary_dim, sizeof(float));
  r->cosine_row = (float *)(void *)at;
}

/* Angles in double: a float angle is wrong by 0.03 at position 10^6. */
ATTN_FUNC_ void attn_rope_angles_(const attn_rope_job_ *j, double position, double *sine,
                                  double *cosine) {
  for (int64_t m = 0; m < j->pairs; m++) attn_sincos_(position * j->theta[m], &sine[m], &cosine[m]);
}

/* Places one sine and cosine. */
ATTN_FUNC_ void attn_rope_place_(const attn_rope_job_ *j, attn_rope_row_ *r, int64_t m, double sine,
                                 double cosine) {
  const int half = j->p.layout == ATTN_ROPE_HALF;
  const float c = (float)cosine, s = (float)(j->p.inverse ? -sine : sine);
  const int64_t a = half ? m : 2 * m, b = half ? m + j->pairs : a + 1;
  r->cosine_row[a] = r->cosine_row[b] = c, r->sine_row[a] = -s, r->sine_row[b] = s;
}

/* The row of sines and cosines of row i of entry b. A position that is no whole number has its own. */
ATTN_FUNC_ void attn_rope_fill_(const attn_rope_job_ *j, attn_rope_row_ *r, int64_t b, int64_t i) {
  int64_t position = 0;
  double real = 0.0;
  if (!attn_position_(&j->at, b, i, &position, &real)) {
    attn_rope_angles_(j, real, r->sine, r->cosine);
    *r->coarse = INT64_MAX; /* no multiple of 16 */
    for (int64_t m = 0; m < j->pairs; m++) attn_rope_place_(j, r, m, r->sine[m], r->cosine[m]);
    return;
  }
  const int64_t fine = attn_rest_(position);
  const double *fs = j->fine + 2 * fine * j->pairs, *fc = fs + j->pairs;
  if (*r->coarse != position - fine) {
    attn_rope_angles_(j, (double)(position - fine), r->sine, r->cosine);
    *r->coarse = position - fine;
  }
  for (int64_t m = 0; m < j->pairs; m++)
    attn_rope_place_(j, r, m, r->sine[m] * fc[m] + r->cosine[m] * fs[m],
                     r->cosine[m] * fc[m] - r->sine[m] * fs[m]);
}

ATTN_FUNC_ void attn_rope_item_(void *job, int worker, int64_t index) {
  const attn_rope_job_ *j = (const attn_rope_job_ *)job;
  const int64_t runs = attn_rope_runs_(j);
  const int64_t first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->x.len - first < ATTN_ROPE_RUN_ ? j->x.len : first + ATTN_ROPE_RUN_;
  const int64_t b0 = index / runs, b1 = j->at.each ? b0 + 1 : j->x.batch;
  attn_rope_row_ r;
  attn_rope_cut_(j, worker, &r);
  for (int64_t i = first; i < end; i++) {
    attn_rope_fill_(j, &r, b0, i);
    for (int64_t b = b0; b < b1; b++)
      for (int64_t h = 0; h < j->x.heads; h++)
        attn_on_(rope, j->table)
            ->rope(attn_at_(&j->y, b, h, i), attn_at_(&j->x, b, h, i), j->y.dtype, j->x.dtype,
                   j->x.dim, j->p.rotary_dim, j->p.layout == ATTN_ROPE_HALF, r.cosine_row,
                   r.sine_row);
  }
}

/* Makes the tables all workers read: the frequencies, and the fine rows that occur. */
ATTN_FUNC_ void attn_rope_tables_(attn_rope_job_ *j, char *base, int workers) {
  unsigned seen = 0;
  j->theta = (double *)(void *)base;
  j->fine = (double *)(void *)(base + attn_piece_(j->pairs, sizeof(double)));
  j->workspace = (char *)j->fine + attn_piece_(2 * ATTN_ROPE_RUN_ * j->pairs, sizeof(double));
  for (int64_t m = 0; m < j->pairs; m++)
    j->theta[m] = pow(j->p.base, -2.0 * (double)m / (double)j->p.rotary_dim);
  for (int64_t b = 0; b < (j->at.each ? j->x.batch : 1); b++)
    for (int64_t i = 0; i < j->x.len && seen != 0xffffu; i++) {
      int64_t p;
      double real;
      if (!attn_position_(&j->at, b, i, &p, &real)) continue;
      const int64_t fine = attn_rest_(p);
      double *row = j->fine + 2 * fine * j->pairs;
      if (!(seen >> fine & 1u)) attn_rope_angles_(j, (double)fine, row, row + j->pairs);
      seen |= 1u << fine;
    }
  for (int w = 0; w < workers; w++) {
    attn_rope_row_ r;
    attn_rope_cut_(j, w, &r);
    *r.coarse = INT64_MAX; /* no multiple of 16 */
  }
}

ATTN_PUB_ attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  attn_workspace_ w;
  int workers;
  attn_clear_(&j, sizeof j);
  j.y = y, j.x = x;
  if (attn_rope_plan_(&e, &j, params, ctx, &workers, 1)) {
    int64_t items = attn_rope_items_(&j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no rows");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_rope_bytes_(&j, workers))) {
      attn_rope_tables_(&j, w.base, workers);
      attn_for_(ctx, workers, items, attn_rope_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "row rotation", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_clear_(&j, sizeof j);
  j.y = y, j.x = x;
  if (!attn_rope_plan_(&e, &j, params, &plain, &workers, 0)) return ATTN_WORKSPACE_REJECTED;
  int64_t items = attn_rope_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  int64_t bytes = attn_rope_bytes_(&j, attn_pieces_(workers, items));
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_ attn_status attn_alibi_slopes(float *slopes, int64_t n) {
  if (!slopes) return ATTN_E_NULL;
  if (n < 1) return ATTN_E_SHAPE;
  int64_t c = 1;
  while (c <= n / 2) c *= 2;
  for (int64_t h = 0; h < n; h++)
    slopes[h] = (float)pow(2.0, h < c ? -8.0 * (double)(h + 1) / (double)c
                                      : -4.0 * (double)(2 * (h - c) + 1) / (double)c);
  return ATTN_OK;
}
